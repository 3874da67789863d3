"""Figures of composed operators for benchmarks/dispatch.py: what a trace costs, how rarely there is one, and that many
shapes are no burden.

Contract: each figure is measured in a process of its own, since caches are what is measured. This file run as a script
is that process: `python composed.py trace|shapes DEVICE` prints one JSON object.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: So many different shapes; memory is looked at after the first half.
SHAPES = 10_000
PROCESSES = 3


def operators() -> dict[str, Callable[[Any], Any]]:
    """Calls on a [8, 12] tensor of operators that NPU-V3 has no kernel for, by operator."""
    import torch
    import torch.nn.functional as F

    return {
        "softplus": lambda x: F.softplus(x),
        "mish": lambda x: F.mish(x),
        "elu": lambda x: F.elu(x),
        "hardswish": lambda x: F.hardswish(x),
        "logaddexp": lambda x: torch.logaddexp(x, x),
        "hypot": lambda x: torch.hypot(x, x),
        "huber_loss": lambda x: F.huber_loss(x, x),
        "var": lambda x: torch.var(x, 1),
        "hardsigmoid": lambda x: F.hardsigmoid(x),
        "native_group_norm": lambda x: F.group_norm(x, 4),
    }


class Traces:
    """Counts what is composed from now on."""

    def __init__(self) -> None:
        import torchfl.compose.composer as module

        self.count = 0
        original = module.compose

        def counted(*arguments: Any, **named: Any) -> Any:
            self.count += 1
            return original(*arguments, **named)

        module.compose = counted


def trace(device: str) -> dict[str, Any]:
    """First calls: how long each took in ms, and how many of them were traced."""
    import torch

    import torchfl

    torchfl.load(device.split(":")[0])
    x = torch.rand(8, 12, device=device)
    torch.nn.functional.softsign(x)  # the composer is imported at the first call that needs it
    torch.erfc(x)
    traces = Traces()
    torchfl.reset_stats()
    first = {}
    for name, call in operators().items():
        began = time.perf_counter()
        call(x)
        torch.accelerator.synchronize(x.device)
        first[name] = (time.perf_counter() - began) * 1e3
    composed = {row["op"].partition(".")[0] for row in torchfl.stats() if row["path"] == "composed"}
    missing = [name for name in first if f"aten::{name}" not in composed]
    if missing:
        raise SystemExit(f"expected on the path composed: {missing}; composed were {sorted(composed)}")
    return {"first_ms": first, "traces": traces.count}


def shapes(device: str) -> dict[str, Any]:
    """Many shapes of one operator that is traced once: time of a new one in us, what is kept, and memory."""
    import torch

    import torchfl
    from torchfl._native import engine

    torchfl.load(device.split(":")[0])
    base = torch.rand(SHAPES, device=device)
    views = ((rows, columns) for rows in range(1, 101) for columns in range(1, 101))
    mish = torch.nn.functional.mish
    for rows, columns in ((2, 3), (3, 1), (1, 3), (1, 1)):  # each way to broadcast is a program of its own
        mish(base[: rows * columns].view(rows, columns))
    traces = Traces()
    times, kept, resident = [], [], []
    for n, (rows, columns) in enumerate(views):
        x = base[: rows * columns].view(rows, columns)
        began = time.perf_counter()
        mish(x)
        times.append((time.perf_counter() - began) * 1e6)
        if (n + 1) % (SHAPES // 2) == 0:
            torch.accelerator.synchronize(base.device)
            resident.append(_resident())
        if (n + 1) % 500 == 0:
            kept.append(engine().cache_sizes())
    return {
        "new_shape_us": statistics.median(times),
        "traces": traces.count,
        "most_plans": max(k["plans"] for k in kept),
        "most_programs": max(k["programs"] for k in kept),
        "growth_mib": (resident[1] - resident[0]) / (1 << 20),
    }


def _resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _in_process(what: str, device: str, cache: str) -> dict[str, Any]:
    env = {**os.environ, "TORCHFL_CACHE_DIR": cache}
    ran = subprocess.run([sys.executable, __file__, what, device], env=env, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{what}: {ran.stderr or ran.stdout}")
    return dict(json.loads(ran.stdout.splitlines()[-1]))


def measure(device: str) -> dict[str, Any]:
    """first_trace_ms, traces_next_process, new_shape_us, and `many_shapes` with what it was seen to keep."""
    fresh = [_in_process("trace", device, "") for _ in range(PROCESSES)]
    with tempfile.TemporaryDirectory() as folder:
        _in_process("trace", device, folder)
        following = _in_process("trace", device, folder)
    many = _in_process("shapes", device, "")
    return {
        "first_trace_ms": statistics.median(statistics.median(one["first_ms"].values()) for one in fresh),
        "traces_next_process": following["traces"],
        "new_shape_us": many.pop("new_shape_us"),
        "many_shapes": {"shapes": SHAPES, **many},
    }


if __name__ == "__main__":
    print(json.dumps({"trace": trace, "shapes": shapes}[sys.argv[1]](sys.argv[2])))
