"""A service that answers requests while its model is replaced, again and again.

A plain script: it needs torch. The device is an argument; nothing else depends on it.

    python examples/hot_swap.py --device cpu
    torchfl run --chip x1 examples/hot_swap.py --device xpu

One thread answers requests, images of changing sizes. Another loads models from files (three architectures in turn),
moves each to the device, tries it once on a small image, and puts it in the place of the one in service, which is then
dropped. The script prints the latency of the requests before, during and after the swaps, how much longer a request
takes that meets a swap, and what the swaps leave behind in the device's memory and in the process. It ends with status
1 if an answer was wrong.
"""

import argparse
import gc
import json
import os
import resource
import statistics
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

import torch
from torch import nn

SIZES = ((192, 192), (224, 160), (256, 192), (160, 288))
WIDTHS = (24, 32, 40)


class Block(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.first = nn.Conv2d(inside, outside, 3, stride, 1)
        self.second = nn.Conv2d(outside, outside, 3, 1, 1)
        self.shortcut = nn.Conv2d(inside, outside, 1, stride) if stride != 1 or inside != outside else nn.Identity()

    def forward(self, x):
        y = self.second(torch.relu(self.first(x)))
        return torch.relu(y + self.shortcut(x))


def build(width):
    """A residual network for images of any size."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, 2, 1),
        nn.ReLU(),
        Block(width, width, 1),
        Block(width, 2 * width, 2),
        Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    ).eval()


def load(path, device):
    """The model of a file, on the device."""
    saved = torch.load(path, map_location="cpu", weights_only=True)
    with torch.device("meta"):
        model = build(saved["width"])
    model.load_state_dict(saved["state"], assign=True)
    return model.to(device)


class Service:
    """Answers one request after the other with the model that is in service when it begins."""

    def __init__(self, model, name, images, device):
        self.current = (model, name)
        self.images, self.device = images, device
        self.times, self.answers = [], []  # (start, end, (name, image)); (name, image, the CPU's copy of the answer)
        self.stop = threading.Event()
        self.failure = None

    @torch.inference_mode()
    def answer(self, model, image):
        return model(image.to(self.device)).cpu()

    def run(self):
        turn = 0
        try:
            while not self.stop.is_set():
                index = turn % len(self.images)
                turn += 1
                start = time.perf_counter()
                model, name = self.current
                result = self.answer(model, self.images[index])
                self.times.append((start, time.perf_counter(), (name, index)))
                if turn % 16 == 0:
                    self.answers.append((name, index, result))
                del model
        except BaseException as error:
            self.failure = error


def device_memory(device):
    """Bytes that the device has reserved for this process, 0 where it does not say."""
    if device.type == "cpu":
        return 0
    torch.accelerator.synchronize()
    return torch.accelerator.memory_reserved()


def resident():
    """Bytes of this process in memory."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def figures(times):
    spans = sorted((end - start) * 1e3 for start, end, _ in times)
    if not spans:
        return {"requests": 0}
    at = lambda share: spans[min(len(spans) - 1, int(share * len(spans)))]  # noqa: E731
    return {"requests": len(spans), "median_ms": at(0.5), "p99_ms": at(0.99), "most_ms": spans[-1]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--swaps", type=int, default=60)
    parser.add_argument("--pause", type=float, default=0.05, help="seconds between two swaps")
    parser.add_argument("--seconds", type=float, default=3.0, help="of service before and after the swaps")
    parser.add_argument("--json", action="store_true", help="print the figures for a program")
    args = parser.parse_args()
    device = torch.device(args.device)
    torch.manual_seed(1)
    torch.set_num_threads(1)  # the service has a core, and the loader the other
    sys.setswitchinterval(5e-5)  # the loader is Python: it is not to hold the service up for long

    folder = tempfile.TemporaryDirectory()
    paths, originals = [], []
    for number, width in enumerate(WIDTHS):
        model = build(width)
        paths.append(Path(folder.name) / f"model{number}.pt")
        torch.save({"width": width, "state": model.state_dict()}, paths[-1])
        originals.append(model)
    images = [torch.randn(1, 3, *size) for size in SIZES]
    trial = torch.randn(1, 3, 48, 48)  # a small one: the device has one queue for the service and the trial
    with torch.inference_mode():
        expected = [[model(image) for image in images] for model in originals]

    service = Service(load(paths[0], device), 0, images, device)
    for path in paths:  # what happens only once has happened then
        model = load(path, device)
        for image in images:
            service.answer(model, image)
    gc.collect()
    gc.freeze()  # a collection looks at every object and stops all threads: these stay for good
    worker = threading.Thread(target=service.run)
    worker.start()
    time.sleep(args.seconds)
    began = time.perf_counter()
    switches, loading, memory = [], [], []
    warm = max(1, args.swaps // 10)
    for swap in range(1, args.swaps + 1):
        which = swap % len(paths) if swap < args.swaps else 0  # ends as it began
        start = time.perf_counter()
        model = load(paths[which], device)
        service.answer(model, trial)
        switches.append(time.perf_counter())
        service.current = (model, which)
        del model
        loading.append(switches[-1] - start)
        if swap == warm or swap == args.swaps:
            memory.append((device_memory(device), resident()))
        time.sleep(args.pause)
    ended = time.perf_counter()
    time.sleep(args.seconds)
    service.stop.set()
    worker.join()
    if service.failure:
        raise service.failure

    phases = {
        "before": [t for t in service.times if t[1] < began],
        "during": [t for t in service.times if t[1] >= began and t[0] <= ended],
        "after": [t for t in service.times if t[0] > ended],
    }
    typical = statistics.median(end - start for start, end, _ in phases["before"])
    spans = defaultdict(list)
    for start, end, what in service.times:
        spans[what].append(end - start)
    usual = {what: statistics.median(times) for what, times in spans.items()}
    # How much longer than usual for its model and size took the request under way at a switch, or the first one after.
    stalls, at = [], 0
    for switch in switches:
        while at < len(service.times) - 1 and service.times[at][1] < switch:
            at += 1
        met = service.times[at : at + 2]
        stalls.append(max((end - start - usual[what], usual[what]) for start, end, what in met))
    stalls.sort()
    stall, beside = stalls[min(len(stalls) - 1, int(0.99 * len(stalls)))] if stalls else (0.0, typical)
    wrong = sum(
        not torch.allclose(result, expected[name][index], rtol=1e-3, atol=1e-4)
        for name, index, result in service.answers
    )
    report = {
        "device": str(device),
        "swaps": args.swaps,
        "phases": {name: figures(times) for name, times in phases.items()},
        "load_ms": statistics.median(loading) * 1e3 if loading else 0.0,
        "inference_ms": typical * 1e3,
        "stall_p99_ms": max(stall, 0.0) * 1e3,
        "stall_in_inferences": max(stall, 0.0) / beside,
        "answers_checked": len(service.answers),
        "answers_wrong": wrong,
        "device_bytes": [m[0] for m in memory],
        "resident_bytes": [m[1] for m in memory],
        "noisy": os.getloadavg()[0] > 2 * (os.cpu_count() or 1),
    }
    if args.json:
        print(json.dumps(report))
    else:
        for name, row in report["phases"].items():
            if row["requests"]:
                print(
                    f"{name:>7}: {row['requests']:5} requests, median {row['median_ms']:6.2f} ms, "
                    f"99 % within {row['p99_ms']:6.2f} ms, longest {row['most_ms']:6.2f} ms"
                )
        print(f"  swaps: {args.swaps}, loaded and tried in {report['load_ms']:.1f} ms beside the service")
        print(
            f"  stall: {report['stall_p99_ms']:.2f} ms at the 99th percentile, "
            f"{report['stall_in_inferences']:.2f} of the time that the request takes otherwise"
        )
        (first_device, first_host), (last_device, last_host) = memory[0], memory[-1]
        print(
            f" memory: device {first_device / 2**20:.1f} to {last_device / 2**20:.1f} MiB, "
            f"process {first_host / 2**20:.0f} to {last_host / 2**20:.0f} MiB from swap {warm} to {args.swaps}"
        )
        print(f"answers: {report['answers_checked']} compared with the CPU's, {wrong} wrong")
        if report["noisy"]:
            print("The machine was busy with other work: the times say little.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
