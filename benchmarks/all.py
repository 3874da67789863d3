"""All benchmarks, one after the other, and the page of their figures.

    python benchmarks/all.py                        # what `make bench` runs: hours; says how long before it begins
    python benchmarks/all.py --quick                # fewer rounds
    python benchmarks/all.py --only "models-*"      # some parts; the page then has the saved runs of the others
    python benchmarks/all.py --list                 # the parts, and the minutes that each takes

Contract: each part is a benchmark's --json in a process of its own, saved as out/bench/PART.json; a part that fails
keeps the run saved before, its log is PART.log beside it, and the others go on. Then benchmarks/report.py writes
docs/benchmarks.md from all saved runs. Exit status 1: a part failed (that a limit is exceeded is no failure).
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import report

HERE = Path(__file__).resolve().parent
DEVICES = ("host", "host_bf16", "opencl")


@dataclass(frozen=True)
class Part:
    name: str
    command: tuple[str, ...]
    minutes: float  # on two cores, without --quick; the peers' installation not counted


def parts(quick: bool) -> list[Part]:
    devices = [word for device in DEVICES for word in ("--device", device)]
    shorter = ("--seconds", "45", "--rounds", "9") if quick else ()
    models = [
        ("resnet50", 35), ("resnet18", 30), ("minilm", 25), ("vit", 25), ("llama-prefill", 20), ("llama-decode", 8)
    ]  # fmt: skip
    return [
        Part("bringup", ("bringup.py",), 0.1),
        Part("imports", ("imports.py",), 1.5),
        Part("paths", ("paths.py",), 1),
        Part("memory", ("memory.py",), 1.5),
        Part("dispatch", ("dispatch.py", "--rounds", "9" if quick else "25"), 4),
        Part("overhead", ("overhead.py",), 2),
        Part("compiled", ("compiled.py", "--rounds", "5" if quick else "12"), 4),
        *(
            Part(f"models-{name}", ("models.py", "--model", name, *devices, *shorter), minutes * (0.6 if quick else 1))
            for name, minutes in models
        ),
    ]


def run(part: Part, folder: Path) -> bool:
    """Whether the part printed its figures."""
    log = folder / f"{part.name}.log"
    command = [sys.executable, str(HERE / part.command[0]), *part.command[1:], "--json"]
    with log.open("w", encoding="utf-8") as told:
        ran = subprocess.run(command, stdout=subprocess.PIPE, stderr=told, text=True)
    try:
        figures = json.loads(ran.stdout)
    except ValueError:
        return False
    (folder / f"{part.name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    return True


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="PATTERN", action="append", help="parts by name or pattern; may be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--list", action="store_true", help="print the parts, and run nothing")
    parser.add_argument("--folder", type=Path, default=report.SAVED, help="of the saved runs")
    parser.add_argument("--output", type=Path, default=report.PAGE, help="the page")
    options = parser.parse_args(arguments)
    chosen = parts(options.quick)
    if options.only:
        chosen = [part for part in chosen if any(fnmatch.fnmatchcase(part.name, p) for p in options.only)]
        if not chosen:
            parser.error(f"--only names none of: {', '.join(part.name for part in parts(False))}")
    for part in chosen:
        print(f"{part.name:<22} about {part.minutes:4.1f} min   {' '.join(part.command)}", flush=True)
    print(f"{'in all':<22} about {sum(part.minutes for part in chosen):.0f} min on two quiet cores", flush=True)
    if options.list:
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    failed = []
    for part in chosen:
        began = time.monotonic()
        print(f"{part.name}: running", flush=True)
        if run(part, options.folder):
            print(f"{part.name}: done in {(time.monotonic() - began) / 60:.1f} min", flush=True)
        else:
            failed.append(part.name)
            print(f"{part.name}: failed, see {options.folder / part.name}.log", flush=True)
    report.main([str(options.folder), "--output", str(options.output)])
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
