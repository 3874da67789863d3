"""`python -m torchfl.demo`: train ResNet-50 on a chip, and write out/demo/report.json and report.html."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torchfl
from torchfl import pages
from torchfl.demo import figures, page
from torchfl.demo.watch import Watch
from torchfl.errors import LoadError

if TYPE_CHECKING:
    from torchfl._engine import LoadedChip

CHECKOUT = Path(torchfl.__file__).resolve().parent.parent
AUDITED = 40
TIMED = range(60, 65)
GOAL = 0.97


def main(arguments: Sequence[str] | None = None) -> int:
    began = time.perf_counter()
    options = _options(arguments)
    if not options.script.is_file():
        print(
            f"{options.script} does not exist: run this in a checkout, or name the script with --script",
            file=sys.stderr,
        )
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    try:
        chip = torchfl.load(options.device.split(":")[0])
    except LoadError as error:
        print(error, file=sys.stderr)
        return 1
    history = options.out / "history.json"
    history.unlink(missing_ok=True)

    from torchfl import _engine

    with Watch(_engine, options.script, audited=[AUDITED], timed=TIMED) as watch:
        run_script(options.script, ["--device", options.device, "--history", str(history), *options.rest])

    report = figures.summarise(
        watch.steps,
        watch.total,
        json.loads(history.read_text(encoding="utf-8")),
        time.perf_counter() - began,
        machine(chip, options.script),
    )
    # Last, so that an interrupted run leaves no report that looks whole.
    (options.out / "report.html").write_text(page.render(report), encoding="utf-8")
    (options.out / "report.json").write_text(json.dumps(report, indent=2), encoding="utf-8")
    show(report, options.out)
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m torchfl.demo",
        description="Train ResNet-50 on a chip and report what ran where. Further arguments go to the script.",
    )
    parser.add_argument("--device", default="npu_v3:0", help="where to train (default: npu_v3:0)")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="where the reports go (default: out/demo)")
    parser.add_argument("--script", type=Path, default=CHECKOUT / "examples" / "resnet50_digits.py")
    options, rest = parser.parse_known_args(arguments)
    options.rest = rest
    return options


def run_script(script: Path, arguments: Sequence[str]) -> None:
    """Run a script as `python script arguments` would."""
    with _as_main(script, arguments):
        runpy.run_path(str(script), run_name="__main__")


@contextlib.contextmanager
def _as_main(script: Path, arguments: Sequence[str]) -> Iterator[None]:
    argv, path = sys.argv, list(sys.path)
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = argv, path


def machine(chip: LoadedChip, script: Path) -> dict[str, Any]:
    """What the run was made on."""
    import torch

    try:
        shown = script.resolve().relative_to(CHECKOUT)
    except ValueError:
        shown = Path(script.name)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "chip": chip.name,
        "script": shown.as_posix(),
        "sdk": chip.sdk_version,
        "adapter": f"{Path(chip.adapter).name} {chip.adapter_version} (ABI {chip.abi})",
        "torchfl": torchfl.__version__,
        "torch": str(torch.__version__),
        "python": platform.python_version(),
        "host": f"{_processor()}, {cores} cores",
        "system": f"{platform.system()} {platform.machine()}",
        "date": time.strftime("%Y-%m-%d %H:%M"),
    }


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def show(report: dict[str, Any], out: Path) -> None:
    """The closing table."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="ResNet-50 on " + report["machine"]["chip"], title_justify="left", show_header=False)
    table.add_column(style="dim")
    table.add_column()

    def verdict(text: str, good: bool) -> str:
        return f"[green]{text}[/]" if good else f"[red]{text}[/]"

    accuracy = report["test_accuracy"]
    fallbacks, copies = report["steady_step_cpu_fallbacks"], report["steady_step_host_copies"]
    table.add_row("test accuracy", verdict(f"{accuracy:.2%}", accuracy >= GOAL))
    table.add_row("images per second", f"{report['images_per_second']:.0f}")
    table.add_row("calls by path", _shares(report["paths"], "calls_share"))
    table.add_row("time by path", _shares(report["paths"], "seconds_share"))
    table.add_row("CPU fallbacks in a steady step", verdict(str(fallbacks), fallbacks == 0))
    table.add_row("host copies in it beyond batch and numbers read", verdict(str(copies), copies == 0))
    table.add_row("whole run", f"{report['seconds']:.0f} s")
    console.print(table)

    reasons = Table(title="CPU fallbacks of the whole run", title_justify="left")
    reasons.add_column("operator")
    reasons.add_column("reason", overflow="fold")
    reasons.add_column("calls", justify="right")
    for row in report["fallbacks"]:
        reasons.add_row(row["op"], row["reason"], f"{row['calls']:,}")
    if report["fallbacks"]:
        console.print(reasons)
    else:
        console.print("No operator of the run was executed on the CPU.")
    console.print(f"Reports: {out / 'report.html'} and {out / 'report.json'}")


def _shares(paths: Sequence[dict[str, Any]], key: str) -> str:
    return ", ".join(f"{row['path']} {pages.percent(row[key])}" for row in paths if row[key]) or "none"


if __name__ == "__main__":
    sys.exit(main())
