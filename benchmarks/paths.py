"""How well the engine chooses among the paths of a chip: what it picks against the best there is, by the chip's clock.

    python benchmarks/paths.py             # a table
    python benchmarks/paths.py --json      # one object: mean_regret, worst_regret, top1, shapes, ...

Matrix products of many shapes and convolutions run on the simulated NPU-V3, once as the engine routes them and once by
each of the chip's entry points (chips of one path each, in the same process). Time is device time: the virtual clock of
the silicon, which charges what its data sheet says and which the descriptor's constants only approximate. The regret of
a shape is the time of the path that was taken over that of the best, less one. Nothing here depends on how busy the
machine is. A convolution has one kernel, so that its regret is 0 unless something else was taken.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KERNELS = ("npu_v3_matmul", "npu_v3_matmul_tiled", "npu_v3_matmul_pipelined")
#: Operations of the largest shape that is measured, beside those of the document: the host computes them.
MOST = 2.5e9
DOCUMENT = [(1, 1024, 768, 1024), (32, 1024, 768, 1024)]  # batch, M, K, N of the first origin document


@dataclass(frozen=True)
class Case:
    kind: str  # "matmul", "conv"
    dtype: str
    sizes: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.kind} {'x'.join(map(str, self.sizes))} {self.dtype}"


def cases(seed: int = 0) -> list[Case]:
    """Products (batch, M, K, N) on a grid and at random, convolutions as residual networks have them."""
    grid = [(b, m, k, n) for b, m, k, n in itertools.product((1, 8), (1, 16, 64, 100, 512), (64, 768), (17, 64, 768))]
    grid += [(1, 2048, 256, 2048), (1, 1024, 1024, 1024), (64, 128, 64, 128), (1, 4096, 64, 512), (4, 512, 512, 512)]
    draw = random.Random(seed)
    while len(grid) < 130:
        shape = (draw.choice((1, 1, 2, 12, 32)), *(int(2 ** draw.uniform(0, 11)) for _ in range(3)))
        if 2.0 * shape[0] * shape[1] * shape[2] * shape[3] <= MOST:
            grid.append(shape)
    found = [Case("matmul", dtype, shape) for shape in grid for dtype in ("float16", "float32")]
    found += [Case("matmul", "float16", shape) for shape in DOCUMENT]
    for channels, size, kernel, stride in itertools.product((16, 64, 128), (8, 14, 28), (1, 3), (1, 2)):
        found.append(Case("conv", "float16", (4, channels, size, channels, kernel, stride)))
    return found


class Chips:
    """The shipped NPU-V3 and, beside it, one chip for each entry point of its matrix array."""

    def __init__(self, folder: Path) -> None:
        import torchfl
        from torchfl import hcd
        from torchfl._paths import shipped_chips

        torchfl.load("npu_v3")
        shipped = shipped_chips()["npu_v3"]
        library = hcd.load(shipped).lower()["adapter_library"]
        self.labels = {"": "npu_v3:0"}
        for i, kernel in enumerate(KERNELS):
            name = f"npu_path_{'abc'[i]}"
            removed = "".join(f"      - {{kernel: {k}, delete: true}}\n" for k in KERNELS if k != kernel)
            rows = "".join(f"  - op: aten::{op}.default\n    paths:\n{removed}" for op in ("mm", "bmm"))
            (folder / f"{name}.yaml").write_text(
                f"hcd: 1\nextends: {os.path.relpath(shipped, folder)}\nchip: {{device_type: {name}}}\n"
                f"adapter: {{library: {library}}}\nops:\n{rows}"
            )
            torchfl.load(folder / f"{name}.yaml")
            self.labels[kernel] = f"{name}:0"


def device_seconds(label: str) -> float:
    """Device time of everything that ran so far."""
    import torchfl

    row = next(row for row in torchfl.devices() if row["label"] == label)
    return float(row["telemetry"]["busy_time"])


def run(case: Case, label: str) -> tuple[float, str]:
    """Device time of one call, and the kernel that ran."""
    import torch

    import torchfl

    dtype = getattr(torch, case.dtype)
    if case.kind == "matmul":
        batch, m, k, n = case.sizes
        a, b = torch.zeros(batch, m, k, dtype=dtype), torch.zeros(batch, k, n, dtype=dtype)
        operands, op, base = (a, b), torch.bmm, "aten::bmm"
    else:
        batch, channels, size, out, kernel, stride = case.sizes
        x, w = (
            torch.zeros(batch, channels, size, size, dtype=dtype),
            torch.zeros(out, channels, kernel, kernel, dtype=dtype),
        )
        operands, base = (x, w), "aten::convolution"

        def op(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.conv2d(x, w, stride=stride, padding=kernel // 2)

    placed = [t.to(label) for t in operands]
    torch.accelerator.synchronize(placed[0].device)
    torchfl.reset_stats()
    before = device_seconds(label)
    op(*placed)
    torch.accelerator.synchronize(placed[0].device)
    spent = device_seconds(label) - before
    rows = [row for row in torchfl.stats() if row["op"].startswith(base) and row["device"] == label and row["calls"]]
    return spent, rows[0]["target"] if rows else "?"


def measure(progress: bool = True) -> dict[str, Any]:
    from rich.progress import track

    with tempfile.TemporaryDirectory() as folder:
        chips = Chips(Path(folder))
        rows = []
        for case in track(cases(), description="shapes", disable=not progress, transient=True):
            taken, kernel = run(case, chips.labels[""])
            others = {k: run(case, chips.labels[k])[0] for k in KERNELS} if case.kind == "matmul" else {kernel: taken}
            best = min(others, key=lambda k: others[k])
            rows.append({"case": str(case), "kind": case.kind, "taken": kernel, "seconds": taken, "best": best,
                         "best_seconds": others[best], "regret": taken / others[best] - 1})  # fmt: skip
    products = [row for row in rows if row["kind"] == "matmul"]
    regrets = [row["regret"] for row in rows]
    document = [row["taken"] for row in rows if row["case"] in {str(Case("matmul", "float16", s)) for s in DOCUMENT}]
    return {
        "mean_regret": statistics.fmean(regrets),
        "worst_regret": max(regrets),
        "mean_regret_of_products": statistics.fmean(row["regret"] for row in products),
        "top1": statistics.fmean(row["taken"] == row["best"] for row in rows),
        "shapes": len(rows),
        "document_shapes": document,
        "within_limits": statistics.fmean(regrets) <= 0.02 and max(regrets) <= 0.15 and len(set(document)) == 2,
        "worst": sorted(rows, key=lambda row: -row["regret"])[:8],
        "taken": {k: sum(row["taken"] == k for row in rows) for k in sorted({row["taken"] for row in rows})},
    }


def show(figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table(title="Choice of paths on npu_v3, by device time")
    table.add_column("figure")
    table.add_column("value", justify="right")
    table.add_column("limit", justify="right")
    table.add_row("mean regret", f"{figures['mean_regret']:.2%}", "2%")
    table.add_row("worst regret", f"{figures['worst_regret']:.2%}", "15%")
    table.add_row("best path taken", f"{figures['top1']:.1%}", "")
    table.add_row("shapes", str(figures["shapes"]), "200 or more")
    console.print(table)
    worst = Table(title="Where it cost most")
    for column in ("shape", "taken", "best", "regret"):
        worst.add_column(column)
    for row in figures["worst"]:
        worst.add_row(row["case"], row["taken"], row["best"], f"{row['regret']:.2%}")
    console.print(worst)
    console.print(f"The two shapes of the document take {' and '.join(figures['document_shapes'])}.")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure how well paths are chosen on npu_v3.")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of tables")
    options = parser.parse_args(arguments)
    figures = measure(progress=not options.json and sys.stderr.isatty())
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
