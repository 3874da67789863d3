"""Order statistics, histograms, packing by a mask, segments and bags: sort, scan and scatter do the work.

Contract: results whose size depends on data are not composable; those with a given size are.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._instructions import scatter_with
from torchfl.compose.own._register import own
from torchfl.compose.recorder import NotComposable

_MOST_PAIRS = 1 << 26  # of a comparison of everything with everything


# ---------------------------------------------------------------------------------------------------- order statistics


@own("kthvalue")
def kthvalue(x: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, indices = torch.sort(x, dim=dim, stable=True)
    picked = values.narrow(dim, k - 1, 1), indices.narrow(dim, k - 1, 1)
    return tuple((p if keepdim else p.squeeze(dim)).clone() for p in picked)


def _at(values: Tensor, where: Tensor, dim: int, keepdim: bool) -> Tensor:
    made = torch.gather(values, dim, where)
    return made if keepdim else made.squeeze(dim)


def _median(x: Tensor, dim: int, keepdim: bool, skip_nan: bool) -> Any:
    """The lower of two middle elements. NaN sorts last: it is the median if there is one and none are skipped."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    n = x.shape[dim]
    if n == 0:
        raise NotComposable("aten::median: of no elements")
    values, indices = torch.sort(x, dim=dim, stable=True)
    if x.dtype.is_floating_point:
        count = torch.sum((values == values).to(torch.int64), dim, keepdim=True)
        middle = torch.clamp_min(torch.div(count - 1, 2, rounding_mode="trunc"), 0)
        if not skip_nan:
            middle = torch.where(count < n, count, middle)
    else:
        shape = list(x.shape)
        shape[dim] = 1
        middle = torch.full(shape, (n - 1) // 2, dtype=torch.int64, device=x.device)
    return _at(values, middle, dim, keepdim), _at(indices, middle, dim, keepdim)


@own("median.dim")
def median_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _median(x, dim, keepdim, False)


@own("nanmedian.dim")
def nanmedian_dim(x: Tensor, dim: int, keepdim: bool = False) -> Any:
    return _median(x, dim, keepdim, True)


@own("median")
def median(x: Tensor) -> Tensor:
    return _median(x.reshape(-1), 0, False, False)[0]


@own("nanmedian")
def nanmedian(x: Tensor) -> Tensor:
    return _median(x.reshape(-1), 0, False, True)[0]


@own("mode")
def mode(x: Tensor, dim: int = -1, keepdim: bool = False) -> Any:
    """The least of the most frequent values, and the index of its last occurrence."""
    if x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, indices = torch.sort(x, dim=dim, stable=True)
    values, indices = values.movedim(dim, -1), indices.movedim(dim, -1)
    n = values.shape[-1]
    place = torch.arange(n, device=x.device)
    fresh = torch.ones_like(values, dtype=torch.bool)
    if n > 1:
        changes = values.narrow(-1, 1, n - 1) != values.narrow(-1, 0, n - 1)
        fresh = torch.cat([fresh.narrow(-1, 0, 1), changes], -1)
    start = torch.cummax(torch.where(fresh, place, torch.zeros_like(indices)), -1)[0]
    run = place - start
    best = torch.argmax(run, -1, keepdim=True)
    picked = torch.gather(values, -1, best), torch.gather(indices, -1, best)
    return tuple(p.movedim(-1, dim) if keepdim else p.squeeze(-1) for p in picked)


# ----------------------------------------------------------------------------------------------------------- histograms


def _compare_all(sorted_: Tensor, x: Tensor, right: bool) -> Tensor:
    """How many of the sorted values (n) lie before each x."""
    if sorted_.shape[-1] * x.numel() > _MOST_PAIRS:
        raise NotComposable("more pairs than fit")
    before = sorted_.unsqueeze(-2) <= x.unsqueeze(-1) if right else sorted_.unsqueeze(-2) < x.unsqueeze(-1)
    if not right and x.dtype.is_floating_point:
        before = before | (x != x).unsqueeze(-1)
    return torch.sum(before.to(torch.int64), -1)


@own("searchsorted.Tensor")
def searchsorted(sorted_: Tensor, x: Tensor, *, out_int32: bool = False, right: bool = False, side: Any = None,
                 sorter: Any = None) -> Tensor:  # fmt: skip
    if sorter is not None:
        sorted_ = torch.gather(sorted_, -1, sorter)
    right = right or side == "right"
    if sorted_.dim() == 1:
        found = _compare_all(sorted_, x.reshape(-1), right).reshape(x.shape)
    else:
        found = _compare_all(sorted_, x, right)
    return found.to(torch.int32) if out_int32 else found


@own("searchsorted.Scalar")
def searchsorted_scalar(sorted_: Tensor, x: Any, **more: Any) -> Tensor:
    return searchsorted(sorted_, torch.full((), float(x), dtype=sorted_.dtype, device=sorted_.device), **more)


@own("bucketize.Tensor")
def bucketize(x: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return searchsorted(boundaries, x, out_int32=out_int32, right=right)


def _edges(x: Tensor, low: Tensor, high: Tensor, bins: int) -> Tensor:
    """bins + 1 edges; an empty range is widened by a half on both sides."""
    same = low == high
    low, high = torch.where(same, low - 0.5, low), torch.where(same, high + 0.5, high)
    step = (high - low) / bins
    i = torch.arange(bins + 1, dtype=x.dtype, device=x.device)
    return torch.where(i < (bins + 1) // 2, low + step * i, high - step * (bins - i))


def _histogram(x: Tensor, edges: Tensor, weight: Tensor | None) -> Tensor:
    """Counts in edges [e_i, e_i+1), the last closed."""
    flat = x.reshape(-1)
    bins = edges.shape[0] - 1
    at = _compare_all(edges, flat, True) - 1
    at = torch.where(flat == edges.narrow(0, bins, 1), torch.full_like(at, bins - 1), at)
    inside = (at >= 0) & (at < bins)
    one = torch.ones_like(flat) if weight is None else weight.reshape(-1)
    zeros = torch.zeros(bins, dtype=x.dtype, device=x.device)
    return torch.scatter_add(zeros, 0, torch.clamp(at, 0, bins - 1), torch.where(inside, one, torch.zeros_like(one)))


def _range(x: Tensor, low: Any, high: Any) -> tuple[Tensor, Tensor]:
    if low is None or low == high == 0:
        if x.numel() == 0:
            return torch.zeros((), dtype=x.dtype, device=x.device), torch.ones((), dtype=x.dtype, device=x.device)
        return torch.amin(x), torch.amax(x)
    made = [torch.full((), float(v), dtype=x.dtype, device=x.device) for v in (low, high)]
    return made[0], made[1]


@own("histc")
def histc(x: Tensor, bins: int = 100, min: Any = 0, max: Any = 0) -> Tensor:
    low, high = _range(x, min, max)
    same = low == high
    low, high = torch.where(same, low - 1, low), torch.where(same, high + 1, high)
    flat = x.reshape(-1)
    at = torch.floor((flat - low) / (high - low) * bins)
    at = torch.where(flat == high, torch.full_like(at, bins - 1), at)
    inside = (flat >= low) & (flat <= high)
    at = torch.where(inside, at, torch.zeros_like(at))  # what is not counted has no bin: NaN least of all
    zeros = torch.zeros(bins, dtype=x.dtype, device=x.device)
    return torch.scatter_add(zeros, 0, torch.clamp(at, 0, bins - 1).to(torch.int64), inside.to(x.dtype))


@own("histogram.bin_ct")
def histogram(
    x: Tensor, bins: int = 100, *, range: Any = None, weight: Tensor | None = None, density: bool = False
) -> Any:
    low, high = _range(x, *(range or (None, None)))
    edges = _edges(x, low, high, bins)
    return _finish_histogram(_histogram(x, edges, weight), edges, density), edges


@own("histogram.bins_tensor")
def histogram_edges(x: Tensor, bins: Tensor, *, weight: Tensor | None = None, density: bool = False) -> Any:
    return _finish_histogram(_histogram(x, bins, weight), bins, density), bins.clone()


def _finish_histogram(counts: Tensor, edges: Tensor, density: bool) -> Tensor:
    if not density:
        return counts
    bins = counts.shape[0]
    return counts / (torch.sum(counts) * (edges.narrow(0, 1, bins) - edges.narrow(0, 0, bins)))


@own("bincount")
def bincount(x: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
    raise NotComposable("aten::bincount: the size of the result depends on data")


# -------------------------------------------------------------------------------------------------------------- packing


def _ranks(mask: Tensor) -> Tensor:
    """Of each element of the flattened mask, how many true ones come before it."""
    ones = mask.reshape(-1).to(torch.int64)
    return torch.cumsum(ones, 0) - ones


def _extreme_so_far(name: str) -> None:
    @own(f"_{name}_helper")
    def helper(x: Tensor, values: Tensor, indices: Tensor, dim: int) -> None:
        found = getattr(torch, name)(x, dim)
        values.copy_(found[0])
        indices.copy_(found[1])


for _name in ("cummax", "cummin"):
    _extreme_so_far(_name)


@own("masked_scatter")
def masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    x, mask = torch.broadcast_tensors(x, mask.to(torch.bool))
    if source.numel() == 0:
        return x.clone()
    at = torch.clamp_max(_ranks(mask), source.numel() - 1)
    return torch.where(mask, torch.gather(source.reshape(-1), 0, at).reshape(x.shape), x)


@own("masked_scatter_backward")
def masked_scatter_backward(grad: Tensor, mask: Tensor, sizes: Any) -> Tensor:
    count = math.prod(sizes)
    mask = mask.to(torch.bool).expand(grad.shape)
    at = torch.where(mask.reshape(-1), torch.clamp_max(_ranks(mask), count), torch.full_like(_ranks(mask), count))
    made = torch.zeros(count + 1, dtype=grad.dtype, device=grad.device)
    return torch.scatter(made, 0, at, grad.reshape(-1)).narrow(0, 0, count).reshape(sizes)


@own("nonzero_static")
def nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    mask = x != 0
    ranks = _ranks(mask)
    at = torch.where(mask.reshape(-1), torch.clamp_max(ranks, size), torch.full_like(ranks, size))
    flat = torch.arange(x.numel(), device=x.device)
    columns = []
    below = x.numel()
    for n in x.shape:
        below //= max(n, 1)
        column = torch.full((size + 1,), fill_value, dtype=torch.int64, device=x.device)
        coordinate = torch.remainder(torch.div(flat, max(below, 1), rounding_mode="trunc"), max(n, 1))
        columns.append(torch.scatter(column, 0, at, coordinate).narrow(0, 0, size))
    if not columns:
        return torch.empty(size, 0, dtype=torch.int64, device=x.device)
    return torch.stack(columns, 1)


@own("put")
def put(x: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat = x.reshape(-1)
    at = index.reshape(-1).to(torch.int64)
    at = torch.where(at < 0, at + x.numel(), at)
    values = source.reshape(-1)
    made = torch.scatter_add(flat, 0, at, values) if accumulate else torch.scatter(flat, 0, at, values)
    return made.view(x.shape)


@own("take")
def take(x: Tensor, index: Tensor) -> Tensor:
    at = torch.where(index < 0, index + x.numel(), index).reshape(-1)
    return torch.gather(x.reshape(-1), 0, at).view(index.shape)


@own("index_reduce")
def index_reduce(
    x: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    if x.dim() == 0:
        made = index_reduce(x.reshape(1), 0, index.reshape(-1), source.reshape(-1), reduce, include_self=include_self)
        return made.reshape(())
    at = index.reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())]).expand(source.shape)
    return scatter_with(x, dim, at, source, reduce, include_self)


@own("as_strided_scatter")
def as_strided_scatter(x: Tensor, src: Tensor, size: Any, stride: Any, offset: Any = None) -> Tensor:
    made = x.clone(memory_format=torch.contiguous_format)
    torch.as_strided(made, size, stride, offset or 0).copy_(src)
    return made
