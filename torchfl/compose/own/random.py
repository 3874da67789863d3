"""Random operators that write in place, and dropout."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.lower_make import bounds_within
from torchfl.compose.own._register import in_place, own


@in_place("uniform_")
def uniform_(x: Tensor, *args: Any, **kwargs: Any) -> Any:
    low = kwargs.get("from", args[0] if args else 0.0)
    high = kwargs.get("to", args[1] if len(args) > 1 else 1.0)
    return torch.rand_like(x) * (high - low) + low


@in_place("normal_")
def normal_(x: Tensor, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Any:
    return torch.randn_like(x) * std + mean


@in_place("bernoulli_.float", "bernoulli_.Tensor")
def bernoulli_(x: Tensor, p: Any = 0.5, *, generator: Any = None) -> Any:
    u = torch.rand(x.shape, dtype=torch.float64 if x.dtype == torch.float64 else torch.float32, device=x.device)
    return (u < p).to(x.dtype)


@in_place("exponential_")
def exponential_(x: Tensor, lambd: Any = 1.0, *, generator: Any = None) -> Any:
    return torch.log1p(-torch.rand_like(x)) * (-1.0 / lambd)


@in_place("cauchy_")
def cauchy_(x: Tensor, median: Any = 0.0, sigma: Any = 1.0, *, generator: Any = None) -> Any:
    return torch.tan((torch.rand_like(x) - 0.5) * math.pi) * sigma + median


@in_place("log_normal_")
def log_normal_(x: Tensor, mean: Any = 1.0, std: Any = 2.0, *, generator: Any = None) -> Any:
    return torch.exp(torch.randn_like(x) * std + mean)


@in_place("geometric_")
def geometric_(x: Tensor, p: Any, *, generator: Any = None) -> Any:
    u = torch.rand(x.shape, dtype=torch.float32, device=x.device)
    return torch.clamp_min(torch.ceil(torch.log1p(-u) / math.log1p(-float(p))), 1).to(x.dtype)


@in_place("random_", "random_.to", "random_.from")
def random_(x: Tensor, *args: Any, generator: Any = None, **kwargs: Any) -> Any:
    low, high = 0, None
    if len(args) == 1:
        high = int(args[0])
    elif len(args) == 2:
        low, high = int(args[0]), None if args[1] is None else int(args[1])
    if high is None:
        if x.dtype.is_floating_point:
            high = 1 << {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24}.get(x.dtype, 53)
        else:
            high = 2 if x.dtype == torch.bool else torch.iinfo(x.dtype).max + 1
    low, high = bounds_within(low, high, x.dtype)
    return torch.randint(low, high, x.shape, dtype=torch.int64, device=x.device).to(x.dtype)


@own("native_dropout")
def native_dropout(x: Tensor, p: Any, train: Any) -> Any:
    if not train or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    kept = torch.rand(x.shape, dtype=torch.float32, device=x.device) >= p
    if p == 1:
        return x * kept, kept
    return x * kept * (1 / (1 - p)), kept


@own("normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor")
def normal_of(mean: Any, std: Any = 1.0, *, generator: Any = None) -> Any:
    like = torch.broadcast_tensors(*(t for t in (mean, std) if isinstance(t, Tensor)))[0]
    return torch.randn(like.shape, dtype=like.dtype, device=like.device) * std + mean


@own("normal.float_float")
def normal_numbers(mean: Any, std: Any, size: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    return torch.randn(size, dtype=dtype, device=device) * std + mean
