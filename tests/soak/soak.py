"""Long runs: training whose allocations never look alike, and threads that share devices. A script, so that it can run
under a sanitizer and for as long as one likes:

    python tests/soak/soak.py train --steps 2000
    python tests/soak/soak.py threads --seconds 60      # NPU_SIM_DEVICES=2

Contract: prints one JSON object; the exit status is 1 if memory grew, a result was wrong or something hung.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import gc
import json
import os
import random
import statistics
import sys
import threading
import time
from typing import Any

import torch
from torch import nn

import torchfl


def resident() -> int:
    """Bytes of this process in memory."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.conv = nn.Conv1d(16, 24, 3, padding=1)
        self.block = nn.TransformerEncoderLayer(24, 2, 48, dropout=0.1, batch_first=True)
        self.head = nn.Linear(24, 5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.conv(self.embed(tokens).transpose(1, 2)).transpose(1, 2)
        return self.head(self.block(x).mean(1))


def disturb(draw: random.Random, device: torch.device, kept: list[torch.Tensor], side: Any, lengths: list[int]) -> None:
    """What programs do beside training: tensors of any size that live for a while, other streams, copies that do not
    wait, what leaves the chip, what fails."""
    kind = draw.randrange(6)
    size = draw.choice(lengths)
    if kind == 0:
        kept.append(torch.empty(size, device=device))
    elif kind == 1 and kept:
        kept.pop(draw.randrange(len(kept)))
    elif kind == 2:
        with side:
            there = torch.ones(size, pin_memory=True).to(device, non_blocking=True)
            kept.append(there * 2)
        kept[-1].record_stream(torch.accelerator.current_stream())
        torch.accelerator.current_stream().wait_stream(side)
    elif kind == 3:
        torch.linalg.svdvals(torch.eye(draw.randrange(2, 6), device=device))
    elif kind == 4:
        with contextlib.suppress(torch.OutOfMemoryError):
            torch.empty(1 << 45, dtype=torch.uint8, device=device)
    else:
        x = torch.rand(7, size % 97 + 1, device=device)
        kept.append((x @ x.t()).softmax(1).clone())
    del kept[:-30]


def train(steps: int, chip: str, shapes: int) -> dict[str, Any]:
    torchfl.load(chip)
    device = torch.device(f"{chip}:0")
    module = getattr(torch, chip)
    torch.manual_seed(0)
    draw = random.Random(0)
    net = Net().to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    side = torch.Stream(device=device)
    kept: list[torch.Tensor] = []
    losses, reserved, rss = [], [], []
    sizes = [(draw.randrange(1, 24), draw.randrange(2, 20)) for _ in range(shapes)]
    lengths = [int(2 ** draw.uniform(4, 18)) for _ in range(shapes)]
    for step in range(steps):
        tokens = torch.randint(50, draw.choice(sizes), device=device)
        target = tokens[:, 0] % 5  # the first token says it
        optimizer.zero_grad(set_to_none=draw.random() < 0.5)
        loss = nn.functional.cross_entropy(net(tokens), target)
        loss.backward()
        optimizer.step()
        disturb(draw, device, kept, side, lengths)
        losses.append(loss.detach())
        if len(losses) == 20:
            losses = [torch.stack(losses).mean()] if step % 100 else [loss.detach()]
        if step % 10 == 9:
            reserved.append(module.memory_reserved())
            rss.append(resident())
        if step % 500 == 499:
            module.empty_cache()
    gc.collect()
    module.synchronize()
    half, quarter = len(rss) // 2, len(rss) // 4  # the first half warms up: every shape is planned once
    result = {
        "steps": steps,
        "loss": float(losses[-1]),
        "reserved_before": max(reserved[:half]),
        "reserved_after": max(reserved[half:]),
        "rss_before": statistics.median(rss[half : half + quarter]),
        "rss_after": statistics.median(rss[-quarter:]),
    }
    result["flat"] = (
        result["reserved_after"] <= result["reserved_before"] + (4 << 20)  # two segments
        and result["rss_after"] <= 1.05 * result["rss_before"]  # the heap's gaps are in it, too
    )
    return result


def threads(seconds: float, chip: str, count: int = 8) -> dict[str, Any]:
    torchfl.load(chip)
    devices = [torch.device(f"{chip}:{i}") for i in range(min(2, getattr(torch, chip).device_count()))]
    done, wrong = [0] * count, []
    until = time.monotonic() + seconds

    def work(n: int) -> None:
        device, other = devices[n % len(devices)], devices[(n + 1) % len(devices)]
        torch.accelerator.set_device_index(device.index)
        draw = random.Random(n)
        maker = torch.Generator().manual_seed(n)
        with torch.Stream(device=device):
            while time.monotonic() < until and not wrong:
                rows, columns = draw.randrange(1, 40), draw.randrange(1, 40)
                host = torch.rand(rows, columns, generator=maker)
                x = host.to(device, non_blocking=True).requires_grad_()
                y = torch.nn.functional.gelu(x @ x.t()).sum(1)
                y.sum().backward()
                far = y.detach().to(other).to(device)
                model = host.clone().requires_grad_()
                want = torch.nn.functional.gelu(model @ model.t()).sum(1)
                want.sum().backward()
                for got, right in ((far.cpu(), want.detach()), (x.grad.cpu(), model.grad)):
                    if not torch.allclose(got, right, rtol=1e-3, atol=1e-3):
                        wrong.append(f"thread {n}: {(got - right).abs().max().item()} at {rows}x{columns}")
                if draw.random() < 0.05:
                    torch.accelerator.empty_cache()
                done[n] += 1

    def guarded(n: int) -> None:
        try:
            work(n)
        except BaseException as error:
            wrong.append(f"thread {n}: {type(error).__name__}: {error}")

    workers = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(count)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds + 60)
    hung = sum(worker.is_alive() for worker in workers)
    if hung:
        faulthandler.dump_traceback(all_threads=True)
    return {"rounds": done, "devices": len(devices), "hung": hung, "wrong": wrong[:3], "flat": not hung and not wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "threads"])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument(
        "--shapes", type=int, default=40, help="how many sizes of a batch there are; with more, plans fill up longer"
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--chip", default="npu_v3")
    given = parser.parse_args()
    result = (
        train(given.steps, given.chip, given.shapes) if given.what == "train" else threads(given.seconds, given.chip)
    )
    print(json.dumps(result))
    sys.stdout.flush()
    if result.get("hung"):
        os._exit(1)
    return 0 if result["flat"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
