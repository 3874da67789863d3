"""`torchfl explain script.py`: the routes of a whole run.

Contract: the script runs as under `torchfl run`, with every operator timed. Whatever ends it, an exception or an exit
of its own, the routes are printed when its threads have ended (daemons aside), and its exit status is the command's.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from torchfl.cli.console import console, fail, note, out, out_json, table


def explain_script(script: list[str], chips: list[str], html: Path | None, as_json: bool) -> None:
    """`script`: its path, then its own arguments."""
    import torchfl
    from torchfl._native import engine
    from torchfl.cli.run import execute, load_chips

    if not Path(script[0]).exists():
        fail(f"error: {script[0]}: there is no such file", 2)
    if html is not None and not html.absolute().parent.is_dir():
        fail(f"error: --html {html}: there is no such folder", 2)
    loaded = load_chips(chips)
    left: SystemExit | None = None
    began = time.perf_counter()
    with _stdout_for_us() if as_json else contextlib.nullcontext(), torchfl.timing():
        try:
            status = execute(None, script)
        except SystemExit as error:
            left, status = error, _status(error.code)
        status = _join_threads() or status
        wall = time.perf_counter() - began
    from torchfl.pages import routes

    report = {
        "script": script[0],
        "arguments": script[1:],
        "status": status,
        "ended": "it ended well" if status == 0 else f"it ended with status {status}",
        "chips": [chip.name for chip in loaded],
        "wall_seconds": wall,
        **routes.summarise(engine().stats(whole=True)),
    }
    if as_json:
        out_json(report)
    else:
        _print(report)
    if html is not None:
        html.write_text(routes.render(report), encoding="utf-8")
        note(f"wrote {html}")
    if left is not None:
        raise left
    if status:
        raise typer.Exit(status)


def _join_threads() -> int:
    """Waits as the interpreter does at its end, which comes too late for the report. 130 if that is interrupted."""
    try:
        for stop in reversed(getattr(threading, "_threading_atexits", [])):
            stop()  # the threads of executors, which would wait for work for ever
        ours = (threading.main_thread(), threading.current_thread())
        while alive := [t for t in threading.enumerate() if not t.daemon and t not in ours]:
            for thread in alive:
                thread.join()
    except KeyboardInterrupt:
        return 130
    return 0


def _status(code: Any) -> int:
    """The exit status that the interpreter makes of a SystemExit's code."""
    return 0 if code is None else code if isinstance(code, int) else 1


@contextlib.contextmanager
def _stdout_for_us() -> Iterator[None]:
    """Inside, all that is written to standard output, by C libraries and children too, goes to standard error."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        sys.stderr.flush()
        os.dup2(kept, 1)
        os.close(kept)


def _print(report: dict[str, Any]) -> None:
    from rich.markup import escape

    from torchfl.pages import percent, size

    out(f"\nRoutes of {report['script']} on {', '.join(report['chips'])}; {report['ended']}")
    rows = table("operator", "device", "path", "target", "reason", "calls", "share", "time", "share", "host bytes")
    for row in report["rows"]:
        cells = [
            row["op"],
            row["device"],
            row["path"],
            "" if row["target"] == row["path"] else row["target"],
            row["reason"],
            f"{row['calls']:,}",
            percent(row["calls_share"]),
            _time(row["seconds"]),
            percent(row["seconds_share"]),
            size(row["host_bytes"]) if row["host_bytes"] else "",
        ]
        rows.add_row(*(escape(cell) for cell in cells))
    if not report["rows"]:
        out("No operator of it reached a device that Torch-FL loaded.")
        return
    console().print(rows)
    for path in report["paths"]:
        moved = f", {size(path['host_bytes'])} across the host boundary" if path["host_bytes"] else ""
        word = "call" if path["calls"] == 1 else "calls"
        out(
            f"{path['path'] + ':':<10} {path['calls']:,} {word} ({percent(path['calls_share'])}), "
            f"{_time(path['seconds'])} ({percent(path['seconds_share'])}){moved}"
        )
    waited = f"{report['seconds']:.2f} s in operators, each of which waited for the device"
    out(f"{waited}; {report['wall_seconds']:.1f} s in all")


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 10 else f"{seconds * 1e3:.2f} ms"
