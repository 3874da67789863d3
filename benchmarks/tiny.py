"""tinygrad alone, for benchmarks/worker.py: inference from an ONNX file, a training step of residual networks.

Contract: runs in tinygrad's environment and imports no torch. Each call is captured by TinyJit, with the weights of the
reference. A residual network here computes what workloads.resnet does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from contestants import INPUTS, STATE, STEPS, Unavailable, onnx_of
from tinygrad import Context, Device, Tensor, TinyJit, nn


def version() -> dict[str, str]:
    from importlib.metadata import version

    return {"tinygrad": version("tinygrad"), "tinygrad device": Device.DEFAULT}


class Inference:
    def __init__(self, spec: dict[str, Any]) -> None:
        from tinygrad.nn.onnx import OnnxRunner

        folder = Path(spec["folder"])
        network = OnnxRunner(str(onnx_of(folder)))
        with np.load(folder / INPUTS) as stored:
            self.inputs = {name: Tensor(stored[name]).realize() for name in stored.files}

        @TinyJit
        def run(**inputs: Tensor) -> Tensor:
            return next(iter(network(inputs).values())).realize()

        self.run = run

    def result(self) -> np.ndarray:
        found: np.ndarray = self.run(**self.inputs).numpy()
        return found

    def call(self) -> None:
        self.run(**self.inputs)
        Device[Device.DEFAULT].synchronize()


class _Block:
    def __init__(self, state: dict[str, np.ndarray], name: str, stride: int) -> None:
        three = f"{name}.conv3.weight" in state
        strides = (1, stride, 1) if three else (stride, 1)
        self.convs = [_conv(state, f"{name}.conv{i + 1}", s) for i, s in enumerate(strides)]
        self.norms = [_norm(state, f"{name}.bn{i + 1}") for i in range(len(strides))]
        self.shortcut: list[Any] = []
        if f"{name}.shortcut.0.weight" in state:
            self.shortcut = [_conv(state, f"{name}.shortcut.0", stride), _norm(state, f"{name}.shortcut.1")]

    def __call__(self, x: Tensor) -> Tensor:
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(y))
            if i + 1 < len(self.convs):
                y = y.relu()
        return (y + x.sequential(self.shortcut)).relu()


def _conv(state: dict[str, np.ndarray], name: str, stride: int) -> Any:
    weight = state[f"{name}.weight"]
    outputs, inputs, size, _ = weight.shape
    made = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    made.weight.assign(Tensor(weight)).realize()
    return made


def _norm(state: dict[str, np.ndarray], name: str) -> Any:
    made = nn.BatchNorm(len(state[f"{name}.weight"]))
    for key in ("weight", "bias", "running_mean", "running_var"):
        getattr(made, key).assign(Tensor(state[f"{name}.{key}"])).realize()
    return made


class _ResNet:
    """Built from the state of workloads.resnet: numbers are places in its nn.Sequential."""

    def __init__(self, state: dict[str, np.ndarray]) -> None:
        self.stem = [_conv(state, "0", 2), _norm(state, "1")]
        places = sorted({int(key.split(".")[0]) for key in state if ".conv1." in key})
        widths = [len(state[f"{p}.conv1.weight"]) for p in places]
        self.blocks = [
            _Block(state, str(p), 2 if i > 0 and widths[i] != widths[i - 1] else 1) for i, p in enumerate(places)
        ]
        last = max(int(key.split(".")[0]) for key in state if key != "targets")
        weight, bias = state[f"{last}.weight"], state[f"{last}.bias"]
        self.head = nn.Linear(weight.shape[1], weight.shape[0])
        self.head.weight.assign(Tensor(weight)).realize()
        self.head.bias.assign(Tensor(bias)).realize()

    def __call__(self, x: Tensor) -> Tensor:
        x = x.sequential(self.stem).relu().max_pool2d((3, 3), 2, padding=1)
        return self.head(x.sequential(self.blocks).mean((2, 3)))


class Training:
    def __init__(self, spec: dict[str, Any]) -> None:
        folder = Path(spec["folder"])
        if not (folder / STATE).exists():
            raise Unavailable("a training step is written for residual networks alone")
        with np.load(folder / STATE) as stored:
            state = {name: stored[name] for name in stored.files}
        with np.load(folder / INPUTS) as stored:
            self.images = Tensor(stored["input0"]).realize()
        self.targets = Tensor(state["targets"].astype(np.int32)).realize()
        network = _ResNet(state)
        optimizer = nn.optim.SGD(nn.state.get_parameters(network), lr=0.01, momentum=0.9)

        @TinyJit
        def step(images: Tensor, targets: Tensor) -> Tensor:
            with Context(TRAINING=1):
                optimizer.zero_grad()
                loss = network(images).sparse_categorical_crossentropy(targets).backward()
                return loss.realize(*optimizer.schedule_step())

        self.step = step

    def result(self) -> np.ndarray:
        return np.array([float(self.step(self.images, self.targets).item()) for _ in range(STEPS)])

    def call(self) -> None:
        self.step(self.images, self.targets)
        Device[Device.DEFAULT].synchronize()
