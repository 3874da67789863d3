"""What a chip costs to bring up: lines of each shipped chip by layer.

    python benchmarks/bringup.py           # a table
    python benchmarks/bringup.py --json    # one object: chips, limits, within_limits

A line counts if it holds code: blank lines and lines of nothing but comment do not; a docstring of Python does. `all`
tells what is in the files, with those. Layers, by file:

descriptor   *.yaml that begin a descriptor (`hcd:`)
adapter      *.c, *.cpp, *.h of the chip's folder
kernels      *.cl: programs that the chip compiles
tests        the chip's folder tests/, and tests/chips/test_CHIP*.py
build        CMakeLists.txt, *.cmake
known gaps   other *.yaml: what `torchfl check` leaves out, and why

The size of an adapter is its adapter and its kernels. What a chip takes from another one's folder counts there. The
kernel kit (kit/), which is of no chip and which any adapter may link, is told apart: `kit`, lines of host code and
kernels.
Exit status 1: an adapter is above its limit.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LAYERS = ("descriptor", "adapter", "kernels", "tests", "build", "known gaps")
#: Of adapter and kernels together.
LIMITS = {"opencl": 900, "host": 500}
_C = {".c", ".cpp", ".h", ".cl"}
#: A string, a character, or a comment of C.
_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|//[^\n]*|/\*.*?\*/', re.DOTALL)


def code(path: Path) -> int:
    """Lines of a file that hold code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix in _C:
        text = _TOKEN.sub(lambda m: m[0] if m[0][0] in "\"'" else "\n" * m[0].count("\n"), text)
        return sum(bool(line.strip()) for line in text.splitlines())
    return sum(bool(line.strip()) and not line.lstrip().startswith("#") for line in text.splitlines())


def layer(path: Path, folder: Path) -> str | None:
    """Which layer a file of a chip's folder belongs to; None for what is no part of it (README.md)."""
    if "tests" in path.relative_to(folder).parts[:-1]:
        return "tests"
    if path.name == "CMakeLists.txt" or path.suffix == ".cmake":
        return "build"
    if path.suffix == ".cl":
        return "kernels"
    if path.suffix in _C:
        return "adapter"
    if path.suffix in {".yaml", ".hcd"}:
        return "descriptor" if re.search(r"^hcd:", path.read_text(encoding="utf-8"), re.MULTILINE) else "known gaps"
    return None


def files(chip: str, root: Path = ROOT) -> dict[str, list[Path]]:
    """The files of a chip by layer."""
    folder = root / "chips" / chip
    found: dict[str, list[Path]] = {name: [] for name in LAYERS}
    for path in sorted(folder.rglob("*")):
        belongs = layer(path, folder) if path.is_file() else None
        if belongs:
            found[belongs].append(path)
    found["tests"] += sorted((root / "tests" / "chips").glob(f"test_{chip}*.py"))
    return found


def measure(root: Path = ROOT) -> dict[str, Any]:
    chips = {}
    for folder in sorted(path for path in (root / "chips").iterdir() if path.is_dir()):
        by_layer = files(folder.name, root)
        chips[folder.name] = {
            "lines": {name: sum(map(code, paths)) for name, paths in by_layer.items()},
            "all": {name: sum(len(p.read_text(encoding="utf-8").splitlines()) for p in paths)
                    for name, paths in by_layer.items()},
            "files": {name: [str(p.relative_to(root)) for p in paths] for name, paths in by_layer.items()},
        }  # fmt: skip
        chips[folder.name]["adapter_size"] = sum(chips[folder.name]["lines"][name] for name in ("adapter", "kernels"))
    kit = sorted(p for p in (root / "kit").glob("*") if p.suffix in _C)
    return {
        "chips": chips,
        "kit": {
            "adapter": sum(code(p) for p in kit if p.suffix != ".cl"),
            "kernels": sum(code(p) for p in kit if p.suffix == ".cl"),
            "linked_by": sorted(
                p.parent.name for p in (root / "chips").glob("*/CMakeLists.txt") if re.search(r"\bKIT\b", p.read_text())
            ),
        },
        "limits": LIMITS,
        "within_limits": all(chips[name]["adapter_size"] <= most for name, most in LIMITS.items() if name in chips),
    }


def show(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title="Lines of code (all lines)", title_justify="left")
    table.add_column("chip")
    for name in (*LAYERS, "adapter and kernels", "limit"):
        table.add_column(name, justify="right")
    for name, chip in figures["chips"].items():
        cells = [f"{chip['lines'][key]} ({chip['all'][key]})" if chip["all"][key] else "" for key in LAYERS]
        table.add_row(name, *cells, str(chip["adapter_size"]), str(figures["limits"].get(name, "")))
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(table)
    kit = figures["kit"]
    linked = ", ".join(kit["linked_by"]) or "nobody"
    console.print(f"The kernel kit: {kit['adapter']} lines and {kit['kernels']} of kernels, linked by {linked}.")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    options = parser.parse_args(arguments)
    figures = measure()
    if options.json:
        print(json.dumps(figures, indent=1))
    else:
        show(figures)
    return 0 if figures["within_limits"] else 1


if __name__ == "__main__":
    sys.exit(main())
