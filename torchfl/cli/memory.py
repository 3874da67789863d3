"""`torchfl memory`: who held a chip's memory over a script's run, or in a snapshot that a script left.

Contract: a script runs as under `torchfl run`, with its allocations recorded from the first one on; whatever ends it,
the page is written afterwards, and its exit status is the command's. A snapshot is read without running code: a pickle
that holds anything but plain data is refused.
"""

from __future__ import annotations

import contextlib
import pickle
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from torchfl.cli.console import Command, console, fail, note, out, out_json, table

#: Suffixes of snapshots; everything else is a script.
_SNAPSHOTS = (".pickle", ".pkl")


class MemoryCommand(Command):
    """Ends the options at the script's name: what follows is the script's."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        i = 0
        while i < len(args) and args[i].startswith("-") and args[i] != "--":
            alone = args[i] in ("--json", "--help", "-h") or "=" in args[i]
            i += 1 if alone else 2
        if i < len(args) and args[i] != "--":
            args = [*args[:i], "--", *args[i:]]
        return super().parse_args(ctx, args)


def memory(
    script: Annotated[
        list[str], typer.Argument(metavar="SCRIPT|SNAPSHOT [ARGS]...", help="A script with its arguments, or a pickle.")
    ],
    chip: Annotated[
        list[str] | None,
        typer.Option("--chip", "-c", metavar="CHIP", help="For a script: load this chip. May be repeated."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where the page goes; default: NAME.memory.html, here.")
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="For a script: keep the snapshot of the (first) chip, too.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead; no page but with --html.")] = False,
) -> None:
    """Show who holds a chip's memory: over time, at the peak, and where in the code it was asked for.

    \b
    A script runs unmodified, as under `torchfl run`; its exit status is the command's. A snapshot is what
    torch.<chip>.memory._dump_snapshot() or torch.cuda.memory._dump_snapshot() wrote (.pickle or .pkl).
    The page is one file without scripts: the timeline of allocated and reserved memory by place in the code, the
    biggest blocks at the peak with their stacks, and the segments with the blocks in them.

    \b
    --json gives one object on stdout (a script's own output goes to stderr): source, status, ended; `devices`, each
    with device, seconds, events, allocated, reserved, blocks_held, peak (seconds, allocated, reserved, places, blocks,
    segments), timeline, ooms. Sizes are bytes, times seconds since the first event.

    \b
    Examples:
      torchfl memory --chip npu_v3 train.py --epochs 1
      torchfl memory --html memory.html snapshot.pickle
      torchfl memory --json snapshot.pickle
    """
    source = Path(script[0])
    if not source.exists():
        fail(f"error: {source}: there is no such file", 2)
    for option, path in (("--html", html), ("--snapshot", snapshot)):
        if path is not None and not path.absolute().parent.is_dir():
            fail(f"error: {option} {path}: there is no such folder", 2)
    if source.suffix in _SNAPSHOTS:
        if chip or snapshot or script[1:]:
            raise typer.BadParameter(f"{source} is a snapshot: --chip, --snapshot and arguments are for a script")
        _show(source, [_read(source)], "What its snapshot holds.", 0, html, as_json)
        return
    _run(script, chip or [], html, snapshot, as_json)


def _run(script: list[str], chips: list[str], html: Path | None, keep: Path | None, as_json: bool) -> None:
    import torch

    from torchfl.cli.routes import _join_threads, _status, _stdout_for_us
    from torchfl.cli.run import execute, load_chips

    loaded = load_chips(chips)
    modules = [getattr(torch, name) for name in dict.fromkeys(chip.device_type for chip in loaded)]
    for module in modules:
        module.memory._record_memory_history(context="alloc")
    left: SystemExit | None = None
    with _stdout_for_us() if as_json else contextlib.nullcontext():
        try:
            status = execute(None, script)
        except SystemExit as error:
            left, status = error, _status(error.code)
        status = _join_threads() or status
    snapshots = [module.memory._snapshot() for module in modules]
    for module in modules:
        module.memory._record_memory_history(None)
    if keep is not None:
        keep.write_bytes(pickle.dumps(snapshots[0]))
        note(f"wrote {keep}")
    ended = "It ended well." if status == 0 else f"It ended with status {status}."
    _show(Path(script[0]), snapshots, ended, status, html, as_json)
    if left is not None:
        raise left
    if status:
        raise typer.Exit(status)


class _PlainData(pickle.Unpickler):
    """Reads containers, numbers and texts: a snapshot has nothing else, and anything else could run code."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it wants {module}.{name}, and a snapshot is plain data")


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            snapshot = _PlainData(file).load()
    except (pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, AttributeError) as error:
        fail(f"error: {path}: no snapshot of memory: {error}")
    if not isinstance(snapshot, dict) or not {"segments", "device_traces"} <= snapshot.keys():
        fail(f"error: {path}: no snapshot of memory: it has no `segments` and `device_traces`")
    return snapshot


def _show(
    source: Path, snapshots: list[dict[str, Any]], ended: str, status: int, html: Path | None, as_json: bool
) -> None:
    from torchfl.pages import memory as page

    devices = [device for snapshot in snapshots for device in page.report(snapshot)]
    whole = {"source": str(source), "status": status, "ended": ended, "devices": devices}
    if as_json:
        out_json(whole)
    else:
        for device in devices:
            _print(device)
        if not devices:
            out("No device of Torch-FL held memory.")
    if html is None and not as_json:
        html = Path(f"{source.stem}.memory.html")
    if html is not None:
        html.write_text(page.render(whole), encoding="utf-8")
        note(f"wrote {html}")
    sys.stdout.flush()


def _print(device: dict[str, Any]) -> None:
    from rich.markup import escape

    from torchfl.pages import percent, size
    from torchfl.pages.memory import moment_text

    peak = device["peak"]
    out(
        f"\n{device['device']}: peak {size(peak['allocated'])} in {peak['block_count']} blocks after "
        f"{moment_text(peak['seconds'])}, {size(peak['reserved'])} reserved; at the end {size(device['allocated'])} in "
        f"{device['blocks_held']} blocks, {size(device['reserved'])} reserved"
    )
    rows = table("bytes", "share", "blocks", "allocated at")
    for row in peak["places"][:10]:
        share = percent(row["bytes"] / peak["allocated"] if peak["allocated"] else 0)
        rows.add_row(size(row["bytes"]), share, f"{row['blocks']:,}", escape(row["place"]))
    if peak["places"]:
        console().print(rows)
    if len(peak["places"]) > 10:
        out(f"{len(peak['places']) - 10} more places")
    for oom in device["ooms"]:
        out(
            f"out of memory after {moment_text(oom['seconds'])}: {size(oom['size'])} wanted at {oom['place']}, "
            f"{size(oom['device_free'])} free on the device"
        )


memory.command_options = {"cls": MemoryCommand}  # type: ignore[attr-defined]
