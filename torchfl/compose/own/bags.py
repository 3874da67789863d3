"""Segments of a tensor and bags of embeddings: each element knows its segment, scatter does the rest.

Contract: segments are given by lengths or offsets.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._instructions import scatter_with
from torchfl.compose.own._register import own, wide
from torchfl.compose.recorder import NotComposable


def _segment_ids(lengths: Tensor, n: int) -> Tensor:
    """(..., segments) -> (..., n): the segment of each place; those behind the last get the number of segments."""
    ends = torch.cumsum(lengths.to(torch.int64), -1)
    places = torch.arange(n, device=lengths.device)
    return torch.sum((ends.unsqueeze(-2) <= places.unsqueeze(-1)).to(torch.int64), -1)


def _lengths(data: Tensor, lengths: Any, offsets: Any) -> Tensor:
    if lengths is not None:
        return lengths
    if offsets is None:
        raise NotComposable("segments given by indices")
    n = offsets.shape[-1] - 1
    return offsets.narrow(-1, 1, n) - offsets.narrow(-1, 0, n)


_NAMES = {"sum": "sum", "mean": "sum", "max": "amax", "min": "amin", "prod": "prod"}


@own("segment_reduce")
def segment_reduce(data: Tensor, reduce: str, *, lengths: Any = None, indices: Any = None, offsets: Any = None,
                   axis: int = 0, unsafe: bool = False, initial: Any = None) -> Tensor:  # fmt: skip
    lengths = _lengths(data, lengths, offsets)
    count = lengths.shape[-1]
    ids = _segment_ids(lengths, data.shape[axis])
    shape = list(data.shape)
    shape[axis] = count + 1
    start = (
        initial if initial is not None else {"sum": 0, "mean": 0, "prod": 1, "max": -math.inf, "min": math.inf}[reduce]
    )
    base = torch.full(shape, start, dtype=data.dtype, device=data.device)
    trailing = [1] * (data.dim() - axis - 1)
    at = ids.reshape(*ids.shape, *trailing).expand(data.shape)
    made = scatter_with(base, axis, at, data, _NAMES[reduce], True).narrow(axis, 0, count)
    sizes = lengths.reshape(*lengths.shape, *trailing).expand(made.shape)
    if reduce == "mean":
        empty = math.nan if initial is None else initial
        made = torch.where(sizes > 0, made / torch.clamp_min(sizes, 1).to(data.dtype), empty)
    return made


@own("_segment_reduce_backward")
def segment_reduce_backward(grad: Tensor, output: Tensor, data: Tensor, reduce: str, *, lengths: Any = None,
                            offsets: Any = None, axis: int = 0, initial: Any = None) -> Tensor:  # fmt: skip
    lengths = _lengths(data, lengths, offsets)
    count = lengths.shape[-1]
    ids = _segment_ids(lengths, data.shape[axis])
    trailing = [1] * (data.dim() - axis - 1)
    at = torch.clamp_max(ids, count - 1).reshape(*ids.shape, *trailing).expand(data.shape)
    inside = (ids < count).reshape(*ids.shape, *trailing).expand(data.shape)
    g, o = torch.gather(grad, axis, at), torch.gather(output, axis, at)
    sizes = lengths.reshape(*lengths.shape, *trailing).expand(grad.shape)
    if reduce == "mean":
        made = g / torch.clamp_min(torch.gather(sizes, axis, at), 1).to(g.dtype)
    elif reduce == "prod":
        made = g * o / data
    elif reduce == "sum":
        made = g
    else:
        same = (data == o).to(g.dtype)
        zeros = torch.zeros_like(grad)
        ties = torch.scatter_add(zeros, axis, at, torch.where(inside, same, torch.zeros_like(same)))
        made = g * same / torch.clamp_min(torch.gather(ties, axis, at), 1)
    return torch.where(inside, made, torch.zeros_like(made))


def _bag_of(offsets: Tensor, n: int) -> Tensor:
    places = torch.arange(n, device=offsets.device)
    return torch.sum((offsets.to(torch.int64).unsqueeze(0) <= places.unsqueeze(1)).to(torch.int64), 1) - 1


@own("_embedding_bag", "_embedding_bag_forward_only")
@wide
def embedding_bag(weight: Tensor, indices: Tensor, offsets: Tensor, scale: bool = False, mode: int = 0,
                  sparse: bool = False, per_sample_weights: Any = None, include_last: bool = False,
                  padding: int = -1) -> Any:  # fmt: skip
    """mode 0: sum, 1: mean, 2: max."""
    n = indices.shape[0]
    bags = offsets.shape[0] - (1 if include_last else 0)
    starts = offsets.narrow(0, 0, bags).to(torch.int64)
    places = torch.arange(n, device=weight.device)
    bag = torch.sum((starts.unsqueeze(0) <= places.unsqueeze(1)).to(torch.int64), 1) - 1
    flat = indices.to(torch.int64)
    used = flat != padding if padding >= 0 else torch.ones_like(flat, dtype=torch.bool)
    rows = torch.index_select(weight, 0, flat)
    at = bag.unsqueeze(1).expand(rows.shape)
    counts = torch.zeros(bags, dtype=torch.int64, device=weight.device)
    counts = torch.scatter_add(counts, 0, bag, used.to(torch.int64))
    if per_sample_weights is not None:
        rows = rows * per_sample_weights.unsqueeze(1)
    shape = [bags, weight.shape[1]]
    if mode == 2:
        low = torch.full(shape, -math.inf, dtype=weight.dtype, device=weight.device)
        masked = torch.where(used.unsqueeze(1), rows, -math.inf)
        made = scatter_with(low, 0, at, masked, "amax", True)
        made = torch.where(counts.unsqueeze(1) > 0, made, torch.zeros_like(made))
        # The row that gave each maximum: the first of equal ones.
        hit = (rows == torch.gather(made, 0, at)) & used.unsqueeze(1)
        first = torch.full(shape, n, dtype=torch.int64, device=weight.device)
        first = scatter_with(first, 0, at, torch.where(hit, places.unsqueeze(1), torch.full_like(at, n)), "amin", True)
        picked = torch.gather(flat, 0, torch.clamp_max(first, n - 1).reshape(-1)).view(shape)
        return made, bag, counts, torch.where(first < n, picked, torch.full_like(picked, 0))
    zeros = torch.zeros(shape, dtype=weight.dtype, device=weight.device)
    made = torch.scatter_add(zeros, 0, at, torch.where(used.unsqueeze(1), rows, torch.zeros_like(rows)))
    if mode == 1:
        made = made / torch.clamp_min(counts, 1).to(made.dtype).unsqueeze(1)
    return made, bag, counts, torch.zeros_like(counts)


@own("_embedding_bag_backward")
def embedding_bag_backward(grad: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor, sizes: Tensor, maximum: Tensor,
                           rows: int, scale: bool, mode: int, sparse: bool, weights: Any,
                           padding: int = -1) -> Any:  # fmt: skip
    if sparse:
        raise NotComposable("a sparse gradient")
    if bag.numel() != indices.numel():  # the forward pass of the CPU does not always give it
        bag = _bag_of(offsets, indices.shape[0])
    return embedding_bag_dense_backward(grad, indices, bag, sizes, maximum, rows, scale, mode, weights, padding)


@own("_embedding_bag_dense_backward")
@wide
def embedding_bag_dense_backward(grad: Tensor, indices: Tensor, bag: Tensor, sizes: Tensor, maximum: Tensor, rows: int,
                                 scale: bool, mode: int, weights: Any, padding: int = -1) -> Tensor:  # fmt: skip
    made = torch.zeros(rows, grad.shape[1], dtype=grad.dtype, device=grad.device)
    if mode == 2:
        some = (sizes > 0).unsqueeze(1)
        return torch.scatter_add(made, 0, maximum.to(torch.int64), torch.where(some, grad, torch.zeros_like(grad)))
    flat, bag = indices.to(torch.int64), bag.to(torch.int64)
    each = torch.index_select(grad, 0, bag)
    if mode == 1:
        each = each / torch.clamp_min(torch.gather(sizes, 0, bag), 1).to(grad.dtype).unsqueeze(1)
    if weights is not None:
        each = each * weights.unsqueeze(1)
    if scale:
        counts = torch.zeros(rows, dtype=grad.dtype, device=grad.device)
        counts = torch.scatter_add(counts, 0, flat, torch.ones_like(flat, dtype=grad.dtype))
        each = each / torch.gather(counts, 0, flat).unsqueeze(1)
    if padding >= 0:
        each = torch.where((flat != padding).unsqueeze(1), each, torch.zeros_like(each))
    return torch.scatter_add(made, 0, flat.unsqueeze(1).expand(each.shape), each)


@own("_embedding_bag_per_sample_weights_backward")
@wide
def embedding_bag_weights_backward(grad: Tensor, weight: Tensor, indices: Tensor, offsets: Tensor, bag: Tensor,
                                   mode: int, padding: int = -1) -> Tensor:  # fmt: skip
    flat = indices.to(torch.int64)
    if bag.numel() != flat.numel():
        bag = _bag_of(offsets, flat.shape[0])
    made = torch.sum(torch.index_select(grad, 0, bag.to(torch.int64)) * torch.index_select(weight, 0, flat), 1)
    return torch.where(flat != padding, made, torch.zeros_like(made)) if padding >= 0 else made
