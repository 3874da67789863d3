"""Small operators, eager: what a call costs on a device that is the CPU itself, against stock PyTorch.

Contract: each operator is called from Python on tensors of [16, 16] float32, back to back, on the device and on the
stock CPU, by turns in one process (rounds.py); `ratio` is device / CPU within a round. Results are compared before
anything is timed. This file run as a script prints one JSON object: `python small.py DEVICE ROUNDS CALLS`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import repeat
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import rounds as measuring

SIZE = 16
#: Of the median over the operators.
LIMIT = 1.0


def operators() -> dict[str, Callable[[dict[str, Any]], Any]]:
    """By name, calls on the tensors that `tensors` makes."""
    import torch
    import torch.nn.functional as F

    return {
        "add": lambda t: torch.add(t["x"], t["y"]),
        "mul by a number": lambda t: torch.mul(t["x"], 2.0),
        "add_": lambda t: t["z"].add_(t["y"]),
        "div": lambda t: torch.div(t["x"], t["p"]),
        "relu": lambda t: torch.relu(t["x"]),
        "sigmoid": lambda t: torch.sigmoid(t["x"]),
        "exp": lambda t: torch.exp(t["x"]),
        "gelu": lambda t: F.gelu(t["x"]),
        "gt": lambda t: torch.gt(t["x"], t["y"]),
        "where": lambda t: torch.where(t["m"], t["x"], t["y"]),
        "sum": lambda t: torch.sum(t["x"]),
        "mean, last dimension": lambda t: torch.mean(t["x"], -1),
        "argmax, last dimension": lambda t: torch.argmax(t["x"], -1),
        "softmax": lambda t: torch.softmax(t["x"], -1),
        "layer_norm": lambda t: F.layer_norm(t["x"], (SIZE,), t["w"], t["b"]),
        "mm": lambda t: torch.mm(t["x"], t["y"]),
        "linear": lambda t: F.linear(t["x"], t["y"], t["b"]),
        "cat": lambda t: torch.cat([t["x"], t["y"]]),
        "embedding": lambda t: F.embedding(t["i"], t["x"]),
        "transposed copy": lambda t: t["x"].t().contiguous(),
        "view": lambda t: t["x"].view(-1),
        "transpose": lambda t: t["x"].transpose(0, 1),
        "zeros_like": lambda t: torch.zeros_like(t["x"]),
        "to bfloat16": lambda t: t["x"].to(torch.bfloat16),
    }


def tensors(device: Any) -> dict[str, Any]:
    import torch

    made = torch.Generator().manual_seed(0)
    one = {name: torch.randn(SIZE, SIZE, generator=made) for name in "xyz"}
    one["p"] = one["x"].abs() + 1
    one["m"] = one["x"] > 0
    one["w"], one["b"] = torch.rand(SIZE, generator=made), torch.rand(SIZE, generator=made)
    one["i"] = torch.arange(0, SIZE, 2)
    return {name: tensor.to(device) for name, tensor in one.items()}


def measure(device_name: str, turns: int, calls: int) -> dict[str, Any]:
    import torch

    import torchfl

    loaded = torchfl.load(device_name.partition(":")[0])
    device = torch.device(device_name if ":" in device_name else loaded.labels[0])
    here, there = tensors("cpu"), tensors(device)

    def loop(call: Callable[[dict[str, Any]], Any], operands: dict[str, Any]) -> Callable[[], float]:
        def measured() -> float:
            for _ in repeat(None, max(calls // 10, 1)):
                call(operands)
            torch.accelerator.synchronize(device)
            began = time.perf_counter()
            for _ in repeat(None, calls):
                call(operands)
            torch.accelerator.synchronize(device)
            return (time.perf_counter() - began) / calls * 1e6

        return measured

    variants, paths = {}, {}
    for name, call in operators().items():
        torchfl.reset_stats()
        found = call(there).cpu()
        paths[name] = sorted({row["path"] for row in torchfl.stats() if row["calls"]} - {"transfer"})
        torch.testing.assert_close(found, call(here), rtol=2e-2, atol=2e-2)  # a chip may compute in bfloat16
        variants[f"{name}, cpu"] = loop(call, here)
        variants[f"{name}, device"] = loop(call, there)
    result = measuring.run(variants, turns)
    rows = {
        name: {
            "cpu_us": result.time(f"{name}, cpu").median,
            "device_us": result.time(f"{name}, device").median,
            "ratio": result.ratio(f"{name}, device", f"{name}, cpu").as_dict(),
            "paths": paths[name],
        }
        for name in paths
    }
    ratios = [row["ratio"]["median"] for row in rows.values()]
    middle = statistics.median(ratios)
    return {
        "device": str(device),
        "operators": rows,
        "median_ratio": middle,
        "worst_ratio": max(ratios),
        "slower": sorted(name for name, row in rows.items() if row["ratio"]["median"] > 1),
        "limit": LIMIT,
        "within_limit": middle <= LIMIT,
        "noisy": result.noisy,
    }


def in_process(device: str, turns: int, calls: int) -> dict[str, Any] | None:
    """`measure` in a process of its own: other chips that are loaded are not to matter. None, with a word on standard
    error, for a shipped chip that was not built."""
    from torchfl._paths import shipped_chips

    chip = device.partition(":")[0]
    if not Path(chip).exists() and chip not in shipped_chips():
        print(f"small operators: left out, no chip '{chip}' was built", file=sys.stderr)
        return None
    ran = subprocess.run(
        [sys.executable, __file__, device, str(turns), str(calls)], capture_output=True, text=True, check=False
    )
    if ran.returncode != 0:
        raise SystemExit(f"small operators on {device}: {ran.stderr or ran.stdout}")
    figures: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return figures


def table(figures: dict[str, Any]) -> Any:
    from rich.table import Table

    made = Table(title=f"Small operators on {figures['device']}, eager, microseconds", title_justify="left")
    for column in ("operator", "cpu", "device", "device / cpu", "quartiles", "path"):
        made.add_column(column, justify="left" if column in ("operator", "path") else "right")
    for name, row in figures["operators"].items():
        ratio = row["ratio"]
        colour = "green" if ratio["median"] <= 1 else "red"
        made.add_row(
            name,
            f"{row['cpu_us']:.2f}",
            f"{row['device_us']:.2f}",
            f"[{colour}]{ratio['median']:.2f}",
            f"{ratio['low']:.2f} to {ratio['high']:.2f}",
            ", ".join(row["paths"]),
        )
    made.add_section()
    made.add_row("median", "", "", f"{figures['median_ratio']:.2f}", f"limit {figures['limit']:g}")
    return made


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))))
