"""What importing costs: `import torchfl`, `torchfl.init()` beside a loaded torch, and what autoload adds to torch.

    python benchmarks/imports.py            # a table; status 1 if a figure is above its limit
    python benchmarks/imports.py --json

Each figure is the median of several processes of their own, in turns. "cold" is without what an earlier process kept
(TORCHFL_CACHE_DIR), as the very first one has it: shipped descriptors are kept with the package; "warm" is every later
one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass

#: name -> (what is timed, what runs before it, limit in milliseconds or None)
MEASURED = {
    "import torchfl": ("import torchfl", "", 80),
    "import torchfl.hcd and read a descriptor": (
        "from torchfl import hcd; hcd.load(shipped['npu_v3'])",
        "from torchfl._paths import shipped_chips; shipped = shipped_chips()",
        None,
    ),
    "init, one chip, warm": ("torchfl.init('npu_v3')", "import torch, torchfl", 250),
    "init, every shipped chip, warm": ("torchfl.init()", "import torch, torchfl", 250),
    "init, every shipped chip, cold": ("torchfl.init()", "import torch, torchfl", 250),
    "autoload, within import torch": ("from torchfl import _autoload; _autoload.start()", "import torch", 50),
    "first use of a name after autoload": (
        "torch.ones(1, device='npu_v3:0')",
        "import torch; from torchfl import _autoload; _autoload.start()",
        None,
    ),
}

_PROGRAM = """
import os, sys, time
os.environ["TORCHFL_AUTOLOAD"] = "1"
{before}
begin = time.perf_counter()
{timed}
print(time.perf_counter() - begin)
"""


@dataclass
class Figure:
    name: str
    milliseconds: float
    low: float
    high: float
    limit: int | None

    @property
    def good(self) -> bool:
        return self.limit is None or self.milliseconds <= self.limit


def measure(rounds: int) -> list[Figure]:
    times: dict[str, list[float]] = {name: [] for name in MEASURED}
    with tempfile.TemporaryDirectory() as kept:
        warm = {**os.environ, "TORCHFL_CACHE_DIR": kept, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
        _run("torchfl.init()", "import torch, torchfl", warm)  # keeps descriptors, and brings files into memory
        for _ in range(rounds):
            for name, (timed, before, _) in MEASURED.items():
                environment = {**warm, "TORCHFL_CACHE_DIR": ""} if name.endswith("cold") else warm
                times[name].append(_run(timed, before, environment))
    figures = []
    for name, (_, _, limit) in MEASURED.items():
        low, median, high = statistics.quantiles(times[name], n=4)
        figures.append(Figure(name, median, low, high, limit))
    return figures


def _run(timed: str, before: str, environment: dict[str, str]) -> float:
    """Milliseconds."""
    program = _PROGRAM.format(timed=timed, before=before)
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    return 1e3 * float(ran.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    figures = measure(args.rounds)
    if args.json:
        print(json.dumps([asdict(figure) for figure in figures], indent=2))
    else:
        print(f"{'milliseconds':<44}{'median':>8}{'quartiles':>16}{'limit':>8}")
        for f in figures:
            print(f"{f.name:<44}{f.milliseconds:>8.1f}{f'{f.low:.1f} - {f.high:.1f}':>16}{f.limit or '':>8}")
    return 0 if all(figure.good for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
