"""What the tests of torch.compile share: a compiled function beside the same one on the CPU in double precision."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

DEVICE = "npu_v3:0"
TOLERANCE = {
    torch.float32: {"rtol": 2e-5, "atol": 2e-5},
    torch.float16: {"rtol": 4e-3, "atol": 4e-3},
    torch.bfloat16: {"rtol": 3e-2, "atol": 3e-2},
}


def to(value: Any, *args: Any) -> Any:
    """Tensors of nested lists and tuples, moved or converted; those without a fraction keep their dtype."""
    if isinstance(value, torch.Tensor):
        only_device = [a for a in args if not isinstance(a, torch.dtype)]
        moved = value.detach().to(*(args if value.is_floating_point() else only_device)) if args else value
        return moved.requires_grad_(value.requires_grad)
    if isinstance(value, (list, tuple)):
        return type(value)(to(item, *args) for item in value)
    return value


def leaves(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, (list, tuple)):
        return [leaf for item in value for leaf in leaves(item)]
    return []


def close(got: Any, want: Any, dtype: torch.dtype = torch.float32) -> None:
    for a, b in zip(leaves(got), leaves(want), strict=True):
        assert a.shape == b.shape
        if a.is_floating_point():
            torch.testing.assert_close(a.detach().cpu().double(), b.detach().double(), **TOLERANCE[dtype])
        else:
            assert torch.equal(a.cpu(), b)


def loss(value: Any) -> torch.Tensor:
    return sum((leaf.float() ** 2).sum() for leaf in leaves(value) if leaf.requires_grad)


def same_as_cpu(
    function: Callable[..., Any],
    *inputs: Any,
    backend: str = "torchfl",
    dtype: torch.dtype = torch.float32,
    runs: int = 3,
    **options: Any,
) -> Any:
    """Compile `function` (a module, or a function of tensors), and compare results and gradients with the CPU's in
    double precision, in several runs, since memory is planned from the second one on."""
    is_module = isinstance(function, torch.nn.Module)
    reference = copy.deepcopy(function).double() if is_module else function
    ours = copy.deepcopy(function).to(DEVICE, dtype) if is_module else function
    compiled = torch.compile(ours, backend=backend, **options)
    for _ in range(runs):
        given, wanted = to(inputs, DEVICE, dtype), to(inputs, torch.float64)
        got, want = compiled(*given), reference(*wanted)
        close(got, want, dtype)
        if torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves(want)):
            loss(got).backward()
            loss(want).backward()
            close(
                [x.grad for x in leaves(given) if x.grad is not None],
                [x.grad for x in leaves(wanted) if x.grad is not None],
                dtype,
            )
        close(given, wanted, dtype)  # what it writes to
    if is_module:
        for (name, a), (_, b) in zip(ours.named_parameters(), reference.named_parameters(), strict=True):
            assert (a.grad is None) == (b.grad is None), name
            if a.grad is not None:
                scale = float(b.grad.abs().max()) + 1e-9
                torch.testing.assert_close(a.grad.cpu().double() / scale, b.grad / scale, **TOLERANCE[dtype])
        close(list(ours.buffers()), list(reference.buffers()), dtype)
    return compiled


@contextmanager
def log_lines() -> Iterator[list[str]]:
    lines: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("torchfl")
    before = logger.level
    logger.setLevel(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)
