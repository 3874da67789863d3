"""How tensors of the host reach a chip that could work on them where they are: three strategies, one network.

Contract: ResNet-18 (random weights), inference, batch by batch from host memory and back, on a chip with unified
memory. Each strategy runs in a process of its own, with the same numbers, and its result is compared with the CPU's:

    naive   every operator's operands are copied to the device, and its results back
    lazy    what lies on the host is copied to the device when it is first used there, and stays
    mapped  what lies on the host is used where it is

`seconds` is the median time of a batch, `bytes` what was copied between host and device for one batch (either way),
`setup_bytes` what was copied before the first one, `saved_bytes` what would have been copied and was not,
`device_peak` the most memory that the device's allocator held, `host_peak` the most that the process did. Exit status
1: results differ, or mapped copies 1 % of naive's bytes or more.

    python benchmarks/memory.py [--chip x1] [--batch 4] [--size 224] [--rounds 5] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

#: What the engine is told (TORCHFL_HOST_MEMORY) for each.
STRATEGIES = {"naive": "copy", "lazy": "lazy", "mapped": "map"}
#: Of the largest element of the CPU's result.
TOLERANCE = 1e-4
MOST_OF_NAIVE = 0.01


def naively(device: Any) -> Any:
    """A mode that runs each operator on the device: it copies the operands there and the results back."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_map_only

    class Naive(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.is_view:  # nothing is computed
                return func(*args, **(kwargs or {}))
            there = tree_map_only(torch.Tensor, lambda t: t.to(device), (args, kwargs or {}))
            return tree_map_only(torch.Tensor, lambda t: t.cpu(), func(*there[0], **there[1]))

    return Naive()


def measure(strategy: str, chip: str, batch: int, size: int, rounds: int) -> dict[str, Any]:
    """One strategy, in this process."""
    import contextlib

    import torch
    from workloads import resnet

    import torchfl

    loaded = torchfl.load(chip)
    device = torch.device(loaded.labels[0])
    torch.manual_seed(0)
    model = resnet(18).eval()
    images = [torch.randn(batch, 3, size, size) for _ in range(rounds)]

    def copied() -> int:
        moved = torchfl.transfers()
        return int(moved["to_device_bytes"] + moved["to_host_bytes"])

    with torch.no_grad():
        want = model(images[0])
        if strategy != "naive":
            model = model.to(device)

        def infer(x: torch.Tensor) -> torch.Tensor:
            if strategy != "naive":
                return model(x.to(device)).cpu()
            with naively(device):
                return model(x)

        got = infer(images[0].clone())  # and all plans are made
        setup, saved = copied(), torchfl.transfers().get("shared_bytes", 0)
        seconds = []
        for x in images:
            begin = time.perf_counter()
            infer(x)
            seconds.append(time.perf_counter() - begin)
    off = float((got - want).abs().max() / want.abs().max())
    peak = 0
    with contextlib.suppress(RuntimeError):
        peak = int(torch.accelerator.max_memory_allocated(device))
    return {
        "strategy": strategy,
        "host_memory": os.environ.get("TORCHFL_HOST_MEMORY", ""),
        "seconds": statistics.median(seconds),
        "bytes": (copied() - setup) // rounds,
        "setup_bytes": setup,
        "saved_bytes": (torchfl.transfers().get("shared_bytes", 0) - saved) // rounds,
        "device_peak": peak,
        "host_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "off": off,
        "cpu_path": sorted({row["op"] for row in torchfl.stats() if row["path"] == "cpu"}),
    }


def in_child(strategy: str, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--strategy", strategy, "--chip", arguments.chip, "--json"]
    for name in ("batch", "size", "rounds"):
        command += [f"--{name}", str(getattr(arguments, name))]
    environment = {**os.environ, "TORCHFL_HOST_MEMORY": STRATEGIES[strategy]}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True)
    if ran.returncode != 0:
        raise SystemExit(f"{strategy}: exit status {ran.returncode}\n{ran.stderr}")
    result: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return result


def table(rows: list[dict[str, Any]]) -> str:
    mib = 1 << 20
    heads = ("ms/batch", 10), ("MiB copied", 13), ("MiB before", 12), ("device MiB", 12), ("process MiB", 13)
    lines = [f"{'strategy':<10}" + "".join(f"{head:>{width}}" for head, width in heads)]
    for row in rows:
        lines.append(
            f"{row['strategy']:<10}{row['seconds'] * 1e3:>10.1f}{row['bytes'] / mib:>13.2f}"
            f"{row['setup_bytes'] / mib:>12.1f}{row['device_peak'] / mib:>12.1f}{row['host_peak'] / mib:>13.1f}"
        )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chip", default="x1")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--size", type=int, default=224, help="height and width of the images")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--strategy", choices=STRATEGIES, help="run this one alone, in this process")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.strategy:
        row = measure(arguments.strategy, arguments.chip, arguments.batch, arguments.size, arguments.rounds)
        print(json.dumps(row) if arguments.json else table([row]))
        return 0
    rows = [in_child(strategy, arguments) for strategy in STRATEGIES]
    share = rows[-1]["bytes"] / rows[0]["bytes"]
    right = all(row["off"] <= TOLERANCE for row in rows)
    if arguments.json:
        print(json.dumps({"rows": rows, "mapped_of_naive": share, "right": right}))
    else:
        print(f"{arguments.chip}: ResNet-18, batch {arguments.batch}, {arguments.size} x {arguments.size}")
        print(table(rows))
        print(f"mapped copies {share:.2%} of naive's bytes; results are {'' if right else 'NOT '}the CPU's")
    return 0 if right and share < MOST_OF_NAIVE else 1


if __name__ == "__main__":
    raise SystemExit(main())
