"""Instructions that no operator of PyTorch stands for one to one, for decompositions that run under the tracer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes, _get_current_dispatch_mode

from torchfl.compose.lower_data import scatter_into


def directly(f: Any, *args: Any, **kwargs: Any) -> Any:
    """Calls f(recorder, ...) with the current recorder, and nothing recorded implicitly meanwhile."""
    recorder = _get_current_dispatch_mode()
    with _disable_current_modes():
        return f(recorder, *args, **kwargs)


def scatter_with(x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool) -> Tensor:
    name = {"sum": "scatter_add", "prod": "scatter_mul", "amax": "scatter_max", "amin": "scatter_min"}
    name |= {"mean": "scatter_add"}
    dim = dim % max(x.dim(), 1)
    index = index.to(torch.int64)
    base = x
    if not include_self:
        # Elements that something is scattered to start from the neutral one.
        start: Any = {"sum": 0, "mean": 0, "prod": 1}.get(reduce)
        if start is None:
            info: Any = torch.finfo(x.dtype) if x.dtype.is_floating_point else torch.iinfo(x.dtype)
            lowest = -float("inf") if x.dtype.is_floating_point else info.min
            highest = float("inf") if x.dtype.is_floating_point else info.max
            start = lowest if reduce == "amax" else highest
        base = torch.scatter(x, dim, index, torch.full((), start, dtype=x.dtype, device=x.device).expand(index.shape))
    made: Tensor = directly(scatter_into, name[reduce], base, dim, index, src)
    if reduce == "mean":
        counts = torch.ones_like(x) if include_self else torch.zeros_like(x)
        counts = torch.scatter_add(counts, dim, index, torch.ones_like(src))
        counts = torch.clamp_min(counts, 1)
        made = made / counts if x.dtype.is_floating_point else torch.div(made, counts, rounding_mode="floor")
    return made
