"""What a compiled step costs beyond the chip's own kernels.

Contract: a training step of ResNet-50 (forward, loss and backward as one torch.compile, then the optimizer) on a
simulated NPU. The step runs through an adapter that notes each kernel call on its way to the SDK (recorder.c); the
noted calls are then made again directly, one after the other, with nothing of PyTorch or of this package between
them. Step and replay take turns (rounds.py); `overhead` is the step's time over the replay's in the same round: 1.0
means that the engine, PyTorch and Python are hidden behind the chip entirely. Exit status 1: it is above the limit.

    python benchmarks/overhead.py [--chip npu_v3] [--batch 2] [--size 224] [--dtype float32] [--rounds 9] [--json]
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import rounds

HERE = Path(__file__).resolve().parent
#: The most that a compiled step may take, in units of the kernels' own time.
LIMIT = 1.05


def load_recorded(chip: str, folder: Path) -> ctypes.CDLL:
    """Load the chip through the recording adapter."""
    import torchfl
    from torchfl._paths import shipped_chips

    descriptor = torchfl.load_hcd(shipped_chips()[chip])
    adapter = descriptor.lower()["adapter_library"]
    library = folder / f"libuba_{chip}_recorded.so"
    command = ["cc", "-O2", "-std=c99", "-shared", "-fPIC", f"-I{HERE.parent / 'include'}", str(HERE / "recorder.c")]
    subprocess.run([*command, "-ldl", "-o", str(library)], check=True)
    os.environ["RECORDER_ADAPTER"] = adapter
    torchfl.load_uba(chip, library)
    return ctypes.CDLL(str(library))


def measure(chip: str, batch: int, size: int, dtype: str, count: int) -> dict[str, Any]:
    import torch

    with tempfile.TemporaryDirectory() as folder:
        library = load_recorded(chip, Path(folder))
        # After the chip: it asks PyTorch for devices, and then the shipped ones come, without the recorder.
        from transformers import ResNetConfig, ResNetForImageClassification

        device = f"{chip}:0"
        torch.manual_seed(0)
        model = ResNetForImageClassification(ResNetConfig(num_labels=10)).train().to(device)
        images = torch.randn(batch, 3, size, size, device=device)
        labels = torch.randint(10, (batch,), device=device)
        # So small that the replays, which update the parameters too, change nothing that matters.
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-12, momentum=0.9)

        @torch.compile(backend="torchfl", dynamic=False)
        def loss_of(images: Any, labels: Any) -> Any:
            with torch.autocast(chip, dtype=getattr(torch, dtype), enabled=dtype != "float32"):
                logits = model(pixel_values=images).logits
            return torch.nn.functional.cross_entropy(logits.float(), labels)

        def step() -> Any:
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(images, labels)
            loss.backward()
            optimizer.step()
            return loss

        def wait() -> None:
            getattr(torch, chip).synchronize()

        for _ in range(3):
            step()
        wait()
        library.recorder_start()
        step()
        wait()
        calls = int(library.recorder_stop())

        def timed_step() -> float:
            began = time.perf_counter()
            step()
            wait()
            return (time.perf_counter() - began) * 1e6

        def timed_replay() -> float:
            began = time.perf_counter()
            status = library.recorder_replay()
            took = (time.perf_counter() - began) * 1e6
            if status:
                raise RuntimeError(f"the replay failed with status {status}")
            return took

        timed_replay()
        result = rounds.run({"step": timed_step, "replay": timed_replay}, count, bursts=1)
        ratio = result.ratio("step", "replay")
    return {
        "chip": chip,
        "batch": batch,
        "size": size,
        "dtype": dtype,
        "kernel_calls": calls,
        "step_ms": result.time("step").median / 1e3,
        "kernels_ms": result.time("replay").median / 1e3,
        "overhead": ratio.as_dict(),
        "limit": LIMIT,
        "within_limit": ratio.median <= LIMIT,
        "noisy": result.noisy,
    }


def table(row: dict[str, Any]) -> str:
    ratio = row["overhead"]
    cells = {
        "step": f"ResNet-50 training, {row['chip']}, {row['dtype']}, {row['batch']} images of {row['size']} pixels",
        "compiled step": f"{row['step_ms']:.1f} ms",
        "its kernels alone": f"{row['kernels_ms']:.1f} ms ({row['kernel_calls']} calls)",
        "step / kernels": f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})",
        "limit": f"{row['limit']}",
    }
    lines = ["| " + " | ".join(cells) + " |", "|" + "---|" * len(cells), "| " + " | ".join(cells.values()) + " |"]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--chip", default="npu_v3", choices=("npu_v3", "npu_v2"))
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=224, help="of the images, in pixels")
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    row = measure(given.chip, given.batch, given.size, given.dtype, given.rounds)
    if given.json:
        print(json.dumps({"machine": rounds.machine(), **row}, indent=1))
    else:
        print(table(row))
        if row["noisy"]:
            print("\nThe machine was not quiet: trust the ratio, more than the times.")
    return 0 if row["within_limit"] else 1


if __name__ == "__main__":
    sys.exit(main())
