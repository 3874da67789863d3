"""One contestant with one workload, in a process of its own: benchmarks/models.py starts it and tells it when to run.

Contract: the argument is a JSON object (see `main`). The process answers on what was its standard output, one JSON
object a line: first `ready` with what the result differs from the reference, or `failed` with the reason; then, for
each line that it reads, the `seconds` of one call, the mean of a burst. All other output goes to standard error. A call
is one inference or one training step whose result has been computed when the call ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import numpy as np
from contestants import INPUTS, NO_ONNX, ONNX, REFERENCE, STATE, STEPS, Unavailable, onnx_of

#: A burst is repeated calls for at least so many seconds, but never more calls than that.
BURST_SECONDS, BURST_CALLS = 0.2, 200


class Torch:
    """A workload on a torch device. Subclasses say where and how."""

    device: Any = "cpu"

    def __init__(self, spec: dict[str, Any]) -> None:
        import torch
        import workloads

        torch.set_num_threads(spec["threads"])
        self.torch, self.spec, self.train = torch, spec, spec["mode"] == "train"
        self.bf16 = spec["precision"] == "bf16"
        self.workload = workloads.build(spec["workload"], spec["small"])
        self.prepare()
        self.inputs = tuple(self.placed(x) for x in self.workload.inputs)
        self.workload.targets_to(self.device)
        self.model = self.workload.model
        if self.train:
            self.model.train()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=self.workload.rate, momentum=0.9)
        self.run = self.compiled() if spec["compiled"] else self.model

    def prepare(self) -> None:
        """Put the network where it is to run."""

    def placed(self, x: Any) -> Any:
        return x.to(self.device)

    def compiled(self) -> Any:
        raise Unavailable("there is nothing to compile with")

    def autocast(self) -> Any:
        return contextlib.nullcontext()

    def synchronize(self) -> None:
        """Wait until all results have been computed."""

    def infer(self) -> Any:
        with self.torch.no_grad():
            return self.run(*self.inputs)

    def step(self) -> Any:
        self.optimizer.zero_grad(set_to_none=True)
        with self.autocast():
            result = self.run(*self.inputs)
        loss = self.workload.loss(result)  # type: ignore[misc]
        loss.backward()
        self.optimizer.step()
        return loss

    def result(self) -> np.ndarray:
        if self.train:
            return np.array([float(self.step().detach().cpu()) for _ in range(STEPS)])
        found = self.infer().detach().cpu()
        return found.to(self.torch.float64).numpy()

    def call(self) -> None:
        if self.train:
            self.step()
        else:
            self.infer()
        self.synchronize()

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__}

    def close(self) -> dict[str, Any]:
        """What is worth saying after the last call."""
        return {}


class Reference(Torch):
    """The CPU in double precision; writes what the others need."""

    def prepare(self) -> None:
        folder = Path(self.spec["folder"])
        arrays = {f"input{i}": x.numpy() for i, x in enumerate(self.workload.inputs)}
        np.savez(folder / INPUTS, **arrays)
        if self.train and self.workload.layers:
            targets = {"targets": self.workload.loss.targets.numpy()}  # type: ignore[union-attr]
            np.savez(folder / STATE, **targets, **{k: v.numpy() for k, v in self.workload.model.state_dict().items()})
        if self.spec["onnx"]:
            try:
                self.export(folder / ONNX)
            except Exception as error:  # whatever it is: the others can do without
                (folder / ONNX).unlink(missing_ok=True)
                (folder / NO_ONNX).write_text(
                    f"{type(error).__name__}: {error}".splitlines()[0][:200], encoding="utf-8"
                )
        self.workload.model.double()

    def export(self, path: Path) -> None:
        names = [f"input{i}" for i in range(len(self.workload.inputs))]
        with self.torch.no_grad():
            self.torch.onnx.export(
                self.workload.model, self.workload.inputs, str(path), input_names=names, dynamo=True, verbose=False
            )

    def placed(self, x: Any) -> Any:
        return x.double() if x.is_floating_point() else x

    def result(self) -> np.ndarray:
        found = super().result()
        np.save(Path(self.spec["folder"]) / REFERENCE.format(mode=self.spec["mode"]), found)
        return found


class Stock(Torch):
    """PyTorch on the CPU. In bfloat16 a network that infers is converted whole, and images lie channels last, which is
    the fastest way that stock PyTorch has; training is autocast."""

    def prepare(self) -> None:
        model = self.workload.model
        if self.bf16 and not self.train:
            model.to(self.torch.bfloat16)
        if self.bf16 and self.workload.images:
            model.to(memory_format=self.torch.channels_last)

    def placed(self, x: Any) -> Any:
        if self.bf16 and not self.train and x.is_floating_point():
            x = x.to(self.torch.bfloat16)
        if self.bf16 and self.workload.images:
            x = x.to(memory_format=self.torch.channels_last)
        return x

    def autocast(self) -> Any:
        return self.torch.autocast("cpu", self.torch.bfloat16, enabled=self.bf16)

    def compiled(self) -> Any:
        import torch._inductor.config as inductor

        inductor.freezing = not self.train
        return self.torch.compile(self.model, dynamic=False)


class Ours(Torch):
    """A device of Torch-FL: the network as it is, moved there."""

    def prepare(self) -> None:
        import torchfl

        name: str = self.spec["device"]
        loaded = torchfl.load(name.partition(":")[0])
        self.device = self.torch.device(name if ":" in name else loaded.labels[0])
        self.torchfl = torchfl
        self.workload.model.to(self.device)

    def compiled(self) -> Any:
        return self.torch.compile(self.model, backend="torchfl", dynamic=False)

    def synchronize(self) -> None:
        self.torch.accelerator.synchronize(self.device)

    def versions(self) -> dict[str, str]:
        return {"torch": self.torch.__version__, "torchfl": self.torchfl.__version__}

    def close(self) -> dict[str, Any]:
        self.torchfl.reset_stats()
        self.call()
        left = [row for row in self.torchfl.stats() if row["path"] == "cpu" and row["calls"]]
        return {"cpu_calls": sum(row["calls"] for row in left), "cpu_ops": sorted({row["op"] for row in left})}


class FromOnnx:
    """What the engines that read ONNX files share: inputs as arrays, inference alone."""

    def __init__(self, spec: dict[str, Any]) -> None:
        if spec["mode"] == "train":
            raise Unavailable("it does not train")
        folder = Path(spec["folder"])
        with np.load(folder / INPUTS) as stored:
            self.inputs = {name: stored[name] for name in stored.files}
        self.path = onnx_of(folder)
        self.spec = spec
        self.open()

    def open(self) -> None:
        raise NotImplementedError

    def result(self) -> np.ndarray:
        raise NotImplementedError

    def call(self) -> None:
        self.result()

    def versions(self) -> dict[str, str]:
        return {}

    def close(self) -> dict[str, Any]:
        return {}


class OnnxRuntime(FromOnnx):
    """ONNX Runtime on the CPU, with all its optimisations."""

    def open(self) -> None:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.spec["threads"]
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        self.session = onnxruntime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        self.version = onnxruntime.__version__

    def result(self) -> np.ndarray:
        return np.asarray(self.session.run(None, self.inputs)[0])

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": self.version}


class OpenVino(FromOnnx):
    """OpenVINO on the CPU, for latency."""

    def open(self) -> None:
        import openvino

        config = {
            "INFERENCE_PRECISION_HINT": "bf16" if self.spec["precision"] == "bf16" else "f32",
            "INFERENCE_NUM_THREADS": self.spec["threads"],
            "PERFORMANCE_HINT": "LATENCY",
        }
        self.network = openvino.compile_model(str(self.path), "CPU", config)
        self.version = openvino.__version__

    def result(self) -> np.ndarray:
        return np.asarray(self.network(self.inputs)[0], dtype=np.float32)

    def versions(self) -> dict[str, str]:
        return {"openvino": self.version}


class Tinygrad:
    """tinygrad alone on its OpenCL device, its own just-in-time compiler in both modes: inference from the ONNX file, a
    training step for residual networks, written in its own terms (benchmarks/tiny.py)."""

    def __init__(self, spec: dict[str, Any]) -> None:
        os.environ.setdefault("DEV", "CL")
        import tiny

        self.runner = (tiny.Training if spec["mode"] == "train" else tiny.Inference)(spec)
        self.version = tiny.version()

    def result(self) -> np.ndarray:
        return self.runner.result()

    def call(self) -> None:
        self.runner.call()

    def versions(self) -> dict[str, str]:
        return self.version

    def close(self) -> dict[str, Any]:
        return {}


class TinygradTorch(Torch):
    """tinygrad's PyTorch backend on its OpenCL device. The released package does not carry it: `TINYGRAD_SOURCE` names
    a checkout that does (`extra/torch_backend`) and that fits the installed release."""

    def prepare(self) -> None:
        os.environ.setdefault("DEV", "CL")
        source = os.environ.get("TINYGRAD_SOURCE")
        if source:
            sys.path.insert(0, source)
        try:
            from extra.torch_backend import backend  # type: ignore[import-not-found]
        except ImportError as error:
            raise Unavailable(
                f"the package on the index does not carry its PyTorch backend ({error}); TINYGRAD_SOURCE may name a "
                "checkout that does"
            ) from error
        self.backend = backend
        self.device = self.torch.device("tiny")
        self.workload.model.to(self.device)

    def realize(self, *results: Any) -> None:
        """The backend is lazy: what nobody asks for is not computed. All that is asked for at once is scheduled as
        one."""
        from tinygrad import Tensor

        Tensor.realize(*(self.backend.unwrap(x) for x in results))

    def infer(self) -> Any:
        found = super().infer()
        self.realize(found)
        return found

    def step(self) -> Any:
        """The loss alone needs neither gradients nor updates: a step has been done when what it leaves behind is
        there."""
        loss = super().step()
        kept = [x for state in self.optimizer.state.values() for x in state.values() if self.torch.is_tensor(x)]
        self.realize(loss, *self.model.parameters(), *self.model.buffers(), *kept)
        return loss

    def synchronize(self) -> None:
        from tinygrad import Device

        Device[Device.DEFAULT].synchronize()

    def versions(self) -> dict[str, str]:
        import tiny

        return {"torch": self.torch.__version__, **tiny.version()}


ENGINES: dict[str, Any] = {
    c.__name__: c for c in (Reference, Stock, Ours, OnnxRuntime, OpenVino, Tinygrad, TinygradTorch)
}


def die_with_parent() -> None:
    """A process that is stopped between its turns would otherwise outlive a parent that was killed."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def error_of(found: np.ndarray, reference: np.ndarray) -> float:
    """The largest difference, as a share of the largest value of the reference."""
    if found.shape != reference.shape:
        raise ValueError(f"the result has shape {found.shape}, the reference {reference.shape}")
    if not np.isfinite(found).all():
        return float("inf")
    return float(np.abs(found.astype(np.float64) - reference).max() / np.abs(reference).max())


def main() -> int:
    """Keys of the argument: engine, precision, compiled, device, workload, mode (infer, train), small, threads, folder,
    onnx (the reference is to export it)."""
    spec = json.loads(sys.argv[1])
    die_with_parent()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def answer(**values: Any) -> None:
        answers.write(json.dumps(values) + "\n")

    began = time.perf_counter()
    try:
        engine = ENGINES[spec["engine"]](spec)
        found = engine.result()
        if spec["engine"] == "Reference":
            answer(ready=True, what=engine.workload.what)
            return 0
        reference = np.load(Path(spec["folder"]) / REFERENCE.format(mode=spec["mode"]))
        error = error_of(np.asarray(found), reference)
        first = time.perf_counter()
        for _ in range(3):  # whoever compiles, records or plans has done so then
            engine.call()
        setup = time.perf_counter() - began
        first = time.perf_counter()
        engine.call()
        once = time.perf_counter() - first
    except Unavailable as error:
        answer(failed=str(error))
        return 0
    except Exception as error:
        import traceback

        traceback.print_exc()
        text = f"{type(error).__name__}: {str(error).strip()}"
        answer(failed=text.splitlines()[0][:300])
        return 0
    count = min(max(int(BURST_SECONDS / max(once, 1e-7)), 1), BURST_CALLS)
    answer(ready=True, error=error, setup_seconds=setup, seconds=once, calls=count, versions=engine.versions())
    for line in sys.stdin:
        if line.strip() == "end":
            answer(**engine.close())
            break
        began = time.perf_counter()
        for _ in range(count):
            engine.call()
        answer(seconds=(time.perf_counter() - began) / count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
