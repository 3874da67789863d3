"""`fallback.ops: {"aten::foo": onnxruntime}`: one operator as an ONNX graph, run by ONNX Runtime on the host.

Contract: a session is made once for each operator, its tensors' dtypes and shapes, and its plain arguments, which are
constants of the graph; making one takes seconds, running it copies the tensors to the host. The results are CPU
tensors. Needs the packages onnxruntime, onnx and onnxscript, which are imported at the first call; LoadError names
those that are missing. bfloat16, which NumPy has not, is computed in float32 and rounded once.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import importlib
import io
import logging
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from torchfl.errors import LoadError, UnsupportedOpError

_PACKAGES = ("onnxruntime", "onnx", "onnxscript")

#: Operators that only out-of-tree backends have, by their equal.
_EQUAL = {"aten::convolution_overrideable": "convolution"}

_sessions: dict[Any, _Session] = {}
_lock = threading.Lock()


class _Session:
    """The graph of one call, its inputs in the order of the call's tensors."""

    def __init__(self, model: bytes) -> None:
        onnxruntime = importlib.import_module("onnxruntime")
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._inputs = [i.name for i in self._session.get_inputs()]

    def __call__(self, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        feed = {f"t{i}": t for i, t in enumerate(tensors)}
        # Inputs that the result does not depend on are no part of the graph.
        values = self._session.run(None, {name: feed[name].contiguous().numpy() for name in self._inputs})
        return [torch.from_numpy(value) for value in values]


class _One(torch.nn.Module):
    """The operator alone, as a function of its tensors."""

    def __init__(self, op: Any, args: list[Any]) -> None:
        super().__init__()
        self.op, self.args = op, args

    def forward(self, *tensors: torch.Tensor) -> Any:
        from torchfl._fallbacks import split

        positional, keywords = split(self.op, _replace(self.args, iter(tensors)))
        return self.op(*positional, **keywords)


def _replace(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        return next(tensors)
    return [_replace(v, tensors) for v in value] if isinstance(value, (list, tuple)) else value


def _tensors_of(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [t for v in value for t in _tensors_of(v)] if isinstance(value, (list, tuple)) else []


def _signature(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return (value.dtype, tuple(value.shape))
    if isinstance(value, (list, tuple)):
        return tuple(_signature(v) for v in value)
    return (type(value).__name__, repr(value))


def run(op: torch._ops.OpOverload, args: list[Any]) -> Any:
    """The results of `op` on `args`, which are in the order of its schema."""
    _check_packages(op)
    if op._schema.is_mutable:
        raise UnsupportedOpError(
            f"{op._schema.name} changes its arguments and has no other form, which no ONNX graph can say: name another "
            "fallback for it"
        )
    if op._schema.name in _EQUAL:
        op = getattr(torch.ops.aten, _EQUAL[op._schema.name]).default
    given = _tensors_of(args)
    narrow = any(t.dtype == torch.bfloat16 for t in given)
    on_host = [t.cpu().float() if t.dtype == torch.bfloat16 else t.cpu() for t in given]
    args = [torch.device("cpu") if isinstance(a, torch.device) else a for a in args]
    plain = _replace(args, iter(on_host))
    key = (op, _signature(plain))
    with _lock:
        session = _sessions.get(key)
        if session is None:
            session = _sessions[key] = _Session(_export(op, plain, on_host))
    results = session(on_host)
    if narrow:
        results = [r.bfloat16() if r.dtype == torch.float32 else r for r in results]
    returns = op._schema.returns
    if len(returns) == 1 and "[]" not in str(returns[0].type):
        return results[0]
    return results


def _check_packages(op: torch._ops.OpOverload) -> None:
    missing = []
    for package in _PACKAGES:
        try:
            importlib.import_module(package)
        except ImportError:
            missing.append(package)
    if missing:
        raise LoadError(
            f"fallback.ops names 'onnxruntime' for {op._schema.name}, which needs {', '.join(missing)}: "
            f"pip install {' '.join(_PACKAGES)}"
        )


def _export(op: torch._ops.OpOverload, args: list[Any], tensors: list[torch.Tensor]) -> bytes:
    # In a thread of its own: a kernel runs below autograd, and under the modes of its caller.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        try:
            return pool.submit(_export_here, op, args, [torch.zeros_like(t) for t in tensors]).result()
        except Exception as error:
            cause: BaseException = error
            while cause.__cause__ is not None:  # the exporter's own words are about its steps
                cause = cause.__cause__
            line = next(iter(str(cause).strip().splitlines()), type(cause).__name__)
            raise UnsupportedOpError(
                f"{op} cannot be written as an ONNX graph ({line}): name another fallback for {op._schema.name}, or "
                "'cpu'"
            ) from error


def _export_here(op: torch._ops.OpOverload, args: list[Any], tensors: list[torch.Tensor]) -> bytes:
    names = [f"t{i}" for i in range(len(tensors))]
    with _quiet():
        program = torch.onnx.export(
            _One(op, args), tuple(tensors), dynamo=True, input_names=names, verbose=False, optimize=True
        )
    assert program is not None  # no file was named
    return bytes(program.model_proto.SerializeToString())


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter reports its progress to everyone."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
