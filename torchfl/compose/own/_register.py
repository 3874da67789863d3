"""How the topics register their decompositions."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.lower_pointwise import overload
from torchfl.compose.trace import INPLACE, OWN

Function = Callable[..., Any]
_HALVES = (torch.float16, torch.bfloat16)


def _into(table: dict[Any, Any], names: tuple[str, ...]) -> Callable[[Function], Function]:
    """Names that this PyTorch lacks are passed over."""

    def register(f: Function) -> Function:
        for name in names:
            op = overload(name)
            if op is not None:
                table[op] = f
        return f

    return register


def own(*names: str) -> Callable[[Function], Function]:
    """For "gelu", "lerp.Scalar", ...: what the operator is made of."""
    return _into(OWN, names)


def in_place(*names: str) -> Callable[[Function], Function]:
    """For operators that exist in place only: what gives the new value of their first argument."""
    return _into(INPLACE, names)


def wide(f: Function) -> Function:
    """Computes half precision in float32, as PyTorch does, and gives back the dtype of the first half argument."""

    def lift(x: Any) -> Any:
        if isinstance(x, Tensor) and x.dtype in _HALVES:
            return x.to(torch.float32)
        if isinstance(x, (list, tuple)):
            return [lift(e) for e in x]
        return x

    @functools.wraps(f)
    def run(*args: Any, **kwargs: Any) -> Any:
        half = next((a.dtype for a in args if isinstance(a, Tensor) and a.dtype in _HALVES), None)
        if half is None:
            return f(*args, **kwargs)

        def lower(x: Any) -> Any:
            if isinstance(x, (list, tuple)):
                return type(x)(lower(e) for e in x)
            return x.to(half) if isinstance(x, Tensor) and x.dtype == torch.float32 else x

        return lower(f(*map(lift, args), **{k: lift(v) for k, v in kwargs.items()}))

    return run
