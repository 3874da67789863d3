"""Data movement, scans and sorting as instructions.

Contract: as lower_pointwise.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.lower_pointwise import lower, to_float
from torchfl.compose.lower_reduce import dims_of, reshape, sum_dtype
from torchfl.compose.numbers import is_open
from torchfl.compose.recorder import NotComposable, Recorder, dtype_name
from torchfl.compose.vector import cast, vec


@lower("cat", "concat", "prims.cat")
def cat(rec: Recorder, tensors: Sequence[Tensor], dim: int = 0) -> Any:
    dtype = tensors[0].dtype
    for t in tensors[1:]:
        dtype = torch.promote_types(dtype, t.dtype)
    parts = [t for t in tensors if t.shape != (0,)]
    if not parts:
        return rec.empty([0], dtype)
    d = dims_of(parts[0], dim)[0]
    sizes = list(parts[0].shape)
    sizes[d] = sum(t.shape[d] for t in parts)
    made = rec.empty(sizes, dtype)
    at = 0
    for t in parts:
        n = t.shape[d]
        if t.numel():
            source = rec.value(cast(rec, t, dtype))
            rec.step_into("uba::copy_nd", [{"value": source}], made.narrow(d, at, n))
        at += n
    rec.versions.pop(rec.base(made), None)
    return made


@lower("copy")
def copy(rec: Recorder, x: Tensor, src: Tensor, non_blocking: bool = False) -> Any:
    return rec.copy(cast(rec, src, x.dtype).expand(x.shape))


@lower("flip", "prims.rev")
def flip(rec: Recorder, x: Tensor, dims: Sequence[int]) -> Any:
    where = [d for d in (dims_of(x, dims) if dims else []) if x.shape[d] != 1]
    if not where or x.numel() == 0:
        return rec.copy(x)
    if x.dtype.is_complex:
        return torch.view_as_complex(flip(rec, torch.view_as_real(x), where))
    if rec.has("flip", x.dtype):
        return rec.run("flip", [x, where], [(x.shape, x.dtype, None)])
    for d in where:
        index = iota(rec, x.shape[d], x.shape[d] - 1, -1, torch.int64)
        shape = [1] * x.dim()
        shape[d] = x.shape[d]
        x = pick(rec, x, index.view(shape).expand(x.shape), d)
    return x


def iota(rec: Recorder, n: int, start: Any, step: Any, dtype: torch.dtype) -> Tensor:
    if not rec.has("iota", dtype):
        if not is_open(start) and not is_open(step) and n <= 65536:
            return rec.constant(torch.arange(n, dtype=torch.float64 if dtype.is_floating_point else torch.int64)
                                .mul(step).add(start).to(dtype))  # fmt: skip
        raise NotComposable(f"no iota for {dtype_name(dtype)}")
    return rec.run("iota", [n, start, step, {"dtype": dtype_name(dtype)}], [([n], dtype, None)])


def pick(rec: Recorder, x: Tensor, index: Tensor, dim: int) -> Tensor:
    """gather, for any dtype, rank and sizes of its operands."""
    index = cast(rec, index, torch.int64)
    if x.dtype.is_complex:
        both = pick(rec, torch.view_as_real(x), index.unsqueeze(-1).expand(*index.shape, 2), dim)
        return torch.view_as_complex(both)
    if x.dim() == 0:
        return rec.copy(x.expand(index.shape))
    if index.dim() == 0:
        return pick(rec, x, index.view(1), dim).view(())
    if x.numel() == 0 and index.numel() == 0:
        return rec.empty(index.shape, x.dtype)
    for stand_in in (torch.uint8, torch.int32, torch.float32):
        if x.dtype == torch.bool and not rec.has("gather", x.dtype) and rec.has("gather", stand_in):
            return cast(rec, pick(rec, cast(rec, x, stand_in), index, dim), x.dtype)
    return rec.run("gather", [x, index, dim], [(index.shape, x.dtype, None)])


@lower("gather")
def gather(rec: Recorder, x: Tensor, dim: int, index: Tensor, *, sparse_grad: bool = False) -> Any:
    return pick(rec, x, index, dim % max(x.dim(), 1))


def pick_rows(rec: Recorder, x: Tensor, dim: int, index: Tensor) -> Tensor:
    shape = list(x.shape)
    shape[dim] = index.numel()
    view = [1] * x.dim()
    view[dim] = index.numel()
    return pick(rec, x, reshape(rec, index, view).expand(shape), dim)


@lower("index_select")
def index_select(rec: Recorder, x: Tensor, dim: int, index: Tensor) -> Any:
    if x.dim() == 0:
        return rec.copy(x)
    return pick_rows(rec, x, dim % x.dim(), index)


@lower("embedding")
def embedding(rec: Recorder, weight: Tensor, index: Tensor, *_: Any, **__: Any) -> Any:
    rows = pick_rows(rec, weight, 0, index)
    return rows.view(*index.shape, weight.shape[1])


def scatter_into(rec: Recorder, name: str, x: Tensor, dim: int, index: Tensor, src: Any) -> Tensor:
    index = cast(rec, index, torch.int64)
    if x.dtype.is_complex:
        if name not in ("scatter", "scatter_add"):
            raise NotComposable(f"{name} of complex numbers")
        src = src if isinstance(src, Tensor) else rec.full(index.shape, src, x.dtype)
        wide = index.unsqueeze(-1).expand(*index.shape, 2)
        both = scatter_into(rec, name, torch.view_as_real(x), dim, wide, torch.view_as_real(src))
        return torch.view_as_complex(both)
    if isinstance(src, Tensor) and src.shape != index.shape:
        src = src[tuple(slice(0, n) for n in index.shape)] if src.dim() else src.expand(index.shape)
    if x.dim() == 0:
        shape = [1]
        src = src.reshape(shape) if isinstance(src, Tensor) else src
        return scatter_into(rec, name, x.view(shape), 0, index.reshape(shape), src).view(())
    if index.dim() == 0:
        index = index.view(1)
        src = src.view(1) if isinstance(src, Tensor) else src
    if index.numel() == 0:
        return rec.copy(x)
    if not isinstance(src, Tensor):
        src = rec.full((), src, x.dtype).expand(index.shape)
    src = cast(rec, src, x.dtype)
    if name == "scatter_min" and not rec.has(name, x.dtype) and rec.has("scatter_max", x.dtype):
        turn = "vneg" if x.dtype.is_floating_point else "vnot"
        turned = scatter_into(rec, "scatter_max", vec(rec, turn, x), dim, index, vec(rec, turn, src))
        return vec(rec, turn, turned)
    wide_dtype = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.bool: torch.uint8}.get(x.dtype)
    if wide_dtype and (name == "scatter_add" or not rec.has(name, x.dtype)) and rec.has(name, wide_dtype):
        # Sums of many half numbers are kept in float32 until the end.
        made = scatter_into(rec, name, cast(rec, x, wide_dtype), dim, index, cast(rec, src, wide_dtype))
        return cast(rec, made, x.dtype)
    return rec.run(name, [x, index, src, dim], [(x.shape, x.dtype, None)])


@lower("scatter.src", "scatter.value")
def scatter(rec: Recorder, x: Tensor, dim: int, index: Tensor, src: Any = None, value: Any = None) -> Any:
    return scatter_into(rec, "scatter", x, dim % max(x.dim(), 1), index, value if src is None else src)


@lower("scatter_add")
def scatter_add(rec: Recorder, x: Tensor, dim: int, index: Tensor, src: Tensor) -> Any:
    return scatter_into(rec, "scatter_add", x, dim % max(x.dim(), 1), index, src)


@lower("scatter.reduce", "scatter.value_reduce")
def scatter_reduce_old(rec: Recorder, x: Tensor, dim: int, index: Tensor, src: Any = None, *, reduce: str,
                       value: Any = None) -> Any:  # fmt: skip
    name = {"add": "scatter_add", "multiply": "scatter_mul"}[reduce]
    return scatter_into(rec, name, x, dim % max(x.dim(), 1), index, value if src is None else src)


@lower("sort", "sort.stable")
def sort(rec: Recorder, x: Tensor, dim: int = -1, descending: bool = False, *, stable: Any = None) -> Any:
    if x.dim() == 0:
        return rec.copy(x), rec.full((), 0, torch.int64)
    d = dim % x.dim()
    values, indices = rec.run("sort", [x, d, descending], [(x.shape, x.dtype, None), (x.shape, torch.int64, None)])
    return values, indices


@lower("topk")
def topk(rec: Recorder, x: Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    if x.dim() == 0:
        return rec.copy(x), rec.full((), 0, torch.int64)
    values, indices = sort(rec, x, dim, largest)
    return rec.copy(values.narrow(dim, 0, k)), rec.copy(indices.narrow(dim, 0, k))


def _scan(name: str, sums: bool) -> Callable[..., Any]:
    def run(rec: Recorder, x: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Any:
        dtype = sum_dtype(x, dtype) if sums else to_float(x.dtype)
        x = cast(rec, x, dtype)
        if dtype.is_complex:
            if name != "cumsum":
                return NotImplemented
            return torch.view_as_complex(run(rec, torch.view_as_real(x), dim % max(x.dim(), 1)))
        if x.dim() == 0 or x.numel() == 0:
            return rec.copy(x)
        return rec.run(name, [x, dim % x.dim()], [(x.shape, dtype, None)])

    return run


lower("cumsum")(_scan("cumsum", True))
lower("cumprod")(_scan("cumprod", True))
lower("logcumsumexp", "_logcumsumexp")(_scan("logcumsumexp", False))


def _scan_extreme(name: str) -> Callable[..., Any]:
    def run(rec: Recorder, x: Tensor, dim: int) -> Any:
        if x.dim() == 0:
            return rec.copy(x), rec.full((), 0, torch.int64)
        results = [(x.shape, x.dtype, None), (x.shape, torch.int64, None)]
        return tuple(rec.run(name, [x, dim % x.dim()], results))

    return run


lower("cummax")(_scan_extreme("cummax"))
lower("cummin")(_scan_extreme("cummin"))
