"""Indexing with tensors: one flat gather or scatter, whatever the number of indices."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own
from torchfl.compose.recorder import NotComposable


def _plan(x: Tensor, indices: list[Tensor | None]) -> tuple[Tensor, list[int], list[int], bool]:
    """x with its indexed dimensions in front; the flat index into these; the rest; whether they were neighbours."""
    wanted = [(d, i) for d, i in enumerate(indices) if i is not None]
    for _, i in wanted:
        if i.dtype in (torch.bool, torch.uint8):
            raise NotComposable("the size of the result depends on a mask")
    where = [d for d, _ in wanted]
    together = where == list(range(where[0], where[0] + len(where)))
    rest = [d for d in range(x.dim()) if d not in where]
    return x, where, rest, together


def flat_index(x: Tensor, where: list[int], indices: list[Tensor | None]) -> Tensor:
    """Where each element lies among the indexed dimensions, seen as one; negative indices count from the end."""
    flat: Tensor | None = None
    for d in where:
        i = indices[d]
        assert i is not None
        i = i.to(torch.int64)
        i = torch.where(i < 0, i + x.shape[d], i)
        flat = i if flat is None else flat * x.shape[d] + i
    assert flat is not None
    return flat


@own("index.Tensor", "_unsafe_index.Tensor")
def index(x: Tensor, indices: list[Tensor | None]) -> Tensor:
    x, where, rest, together = _plan(x, indices)
    flat = flat_index(x, where, indices)
    rest_shape = [x.shape[d] for d in rest]
    # (indexed, rest): the indexed dimensions as one, then the rest as one.
    table = x.permute(*where, *rest).reshape(math.prod(x.shape[d] for d in where), math.prod(rest_shape))
    made = torch.gather(table, 0, flat.reshape(-1, 1).expand(-1, table.shape[1]))
    made = made.view(*flat.shape, *rest_shape)
    if together and where[0] > 0:
        n = flat.dim()
        before = where[0]
        order = [*range(n, n + before), *range(n), *range(n + before, n + len(rest))]
        made = made.permute(order)
    return made


@own("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    x: Tensor, indices: list[Tensor | None], values: Tensor, accumulate: bool = False, unsafe: bool = False
) -> Tensor:
    masks = [i for i in indices if i is not None and i.dtype in (torch.bool, torch.uint8)]
    if masks:
        if len(masks) == 1 and values.numel() == 1 and len([i for i in indices if i is not None]) == 1:
            at = next(d for d, i in enumerate(indices) if i is not None)
            mask = masks[0].to(torch.bool).reshape(*masks[0].shape, *[1] * (x.dim() - at - masks[0].dim()))
            value = values.reshape(()).to(x.dtype)
            return torch.where(mask, x + value if accumulate else value, x)
        raise NotComposable("values for a mask: how many depends on data")
    x, where, rest, together = _plan(x, indices)
    flat = flat_index(x, where, indices)
    rest_shape = [x.shape[d] for d in rest]
    order = [*where, *rest]
    table = x.permute(order)
    sizes = table.shape
    table = table.reshape(math.prod(x.shape[d] for d in where), math.prod(rest_shape))
    n = flat.dim()
    if together and where[0] > 0:
        before = where[0]
        shape = [*rest_shape[:before], *flat.shape, *rest_shape[before:]]
        source = values.to(x.dtype).expand(shape)
        source = source.permute(*range(before, before + n), *range(before), *range(before + n, len(shape)))
    else:
        source = values.to(x.dtype).expand(*flat.shape, *rest_shape)
    source = source.reshape(flat.numel(), table.shape[1])
    at_rows = flat.reshape(-1, 1).expand(-1, table.shape[1])
    made = torch.scatter_add(table, 0, at_rows, source) if accumulate else torch.scatter(table, 0, at_rows, source)
    back = [order.index(d) for d in range(x.dim())]
    return made.view(sizes).permute(back)


@own("embedding_dense_backward")
def embedding_dense_backward(grad: Tensor, index: Tensor, rows: int, padding: int, scale: bool) -> Tensor:
    flat = index.reshape(-1).to(torch.int64)
    g = grad.reshape(flat.numel(), grad.shape[-1])
    wide = g.to(torch.float32) if g.dtype.itemsize == 2 else g
    if scale:
        counts = torch.zeros(rows, dtype=wide.dtype, device=g.device)
        counts = torch.scatter_add(counts, 0, flat, torch.ones_like(flat, dtype=wide.dtype))
        wide = wide / torch.gather(counts, 0, flat).unsqueeze(1)
    if padding >= 0:
        wide = torch.where((flat == padding).unsqueeze(1), 0.0, wide)
    made = torch.zeros(rows, grad.shape[-1], dtype=wide.dtype, device=g.device)
    return torch.scatter_add(made, 0, flat.unsqueeze(1).expand(-1, grad.shape[-1]), wide).to(grad.dtype)


@own("index_add")
def index_add(x: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Any = 1) -> Tensor:
    if x.dim() == 0:
        return x + torch.sum(source) * alpha
    at = index.reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())]).expand(source.shape)
    return torch.scatter_add(x, dim, at, source * alpha)


@own("index_copy")
def index_copy(x: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    if x.dim() == 0:
        return source.reshape(()).clone()
    at = index.reshape([-1 if d == dim % x.dim() else 1 for d in range(x.dim())]).expand(source.shape)
    return torch.scatter(x, dim, at, source)


@own("scatter_reduce.two")
def scatter_reduce(
    x: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    from torchfl.compose.own._instructions import scatter_with

    return scatter_with(x, dim, index, src, reduce, include_self)
