"""Reductions, matrix products, data movement, scans, sorting, random numbers and factories as instructions.

Contract: as lower_pointwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.lower_pointwise import arith, as_bool, is_literal, lower, to_float
from torchfl.compose.numbers import is_open, value_of
from torchfl.compose.recorder import NotComposable, Recorder, dtype_name
from torchfl.compose.vector import cast, vec

# ---------------------------------------------------------------------------------------------------------- reductions


def dims_of(x: Tensor, dim: Any) -> list[int]:
    rank = max(x.dim(), 1)
    if dim is None or (isinstance(dim, (list, tuple)) and len(dim) == 0):
        return list(range(x.dim()))
    dims = [dim] if isinstance(dim, int) else list(dim)
    for d in dims:
        if not -rank <= d < rank:
            raise IndexError(f"Dimension out of range (got {d})")
    return sorted({d % rank for d in dims}) if x.dim() else []


def reduced(shape: Sequence[int], dims: Sequence[int], keepdim: bool) -> list[int]:
    return [1 if d in dims else n for d, n in enumerate(shape) if keepdim or d not in dims]


def reduce(rec: Recorder, name: str, x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    if not dims:
        return x
    if not rec.has(name, x.dtype):
        wide = {torch.float16: torch.float32, torch.bfloat16: torch.float32}.get(x.dtype)
        wide = wide or (torch.int64 if not x.dtype.is_floating_point and x.dtype != torch.bool else None)
        if wide is not None and wide != x.dtype and rec.has(name, wide):
            return cast(rec, reduce(rec, name, cast(rec, x, wide), dims, keepdim), x.dtype)
        if name in ("reduce_any", "reduce_all"):
            for number in (torch.uint8, torch.int32, torch.float32, torch.float16):
                by = "reduce_max" if name == "reduce_any" else "reduce_min"
                if rec.has(by, number) and x.numel():
                    made = reduce(rec, by, cast(rec, x, number), dims, keepdim)
                    return cast(rec, made, torch.bool)
    sizes = reduced(x.shape, dims, keepdim)
    if x.dim() > rec.target.max_rank:
        # Reducing neighbours is reducing their product; others go one group at a time.
        return _reduce_high_rank(rec, name, x, dims, keepdim)
    return rec.run(name, [x, dims, keepdim], [(sizes, x.dtype, None)])


def _reduce_high_rank(rec: Recorder, name: str, x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    x = x if x.is_contiguous() else rec.copy(x)
    sizes = reduced(x.shape, dims, keepdim)
    shape: list[int] = []
    mine: list[int] = []
    for d, n in enumerate(x.shape):
        if d and (d in dims) == (d - 1 in dims):
            shape[-1] *= n
        else:
            shape.append(n)
            if d in dims:
                mine.append(len(shape) - 1)
    if len(shape) > rec.target.max_rank:
        raise NotComposable(f"{name} of rank {len(shape)} (at most {rec.target.max_rank})")
    made = rec.run(name, [x.view(shape), mine, False], [(reduced(shape, mine, False), x.dtype, None)])
    return made.view(sizes)


def _sum_dtype(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)


@lower("sum", "sum.dim_IntList")
def total(rec: Recorder, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    dtype = _sum_dtype(x, dtype)
    x = cast(rec, x, dtype)
    if dtype.is_complex:
        parts = reduce(rec, "reduce_sum", torch.view_as_real(x), dims_of(x, dim), keepdim)
        return torch.view_as_complex(parts)
    return reduce(rec, "reduce_sum", x, dims_of(x, dim), keepdim)


@lower("prims.sum")
def prims_sum(rec: Recorder, x: Tensor, dims: Any, *, output_dtype: torch.dtype | None = None) -> Any:
    return total(rec, x, dims, dtype=output_dtype) if dims else x


@lower("mean", "mean.dim")
def mean(rec: Recorder, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    dtype = dtype or x.dtype
    if dtype.is_complex:
        return NotImplemented
    dims = dims_of(x, dim)
    wide = rec.opmath(dtype)
    whole = reduce(rec, "reduce_sum", cast(rec, x, wide), dims, keepdim)
    count = math.prod(x.shape[d] for d in dims)
    return cast(rec, divide(rec, whole, count), dtype)


def divide(rec: Recorder, x: Tensor, by: float) -> Tensor:
    if by == 0:
        return vec(rec, "vmul", x, math.nan)
    if rec.has("vdiv", x.dtype):
        return vec(rec, "vdiv", x, float(by))
    return vec(rec, "vmul", x, 1.0 / by)


@lower("var.correction", "prims.var")
def var(rec: Recorder, x: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False, **_: Any) -> Any:
    return _variance(rec, x, dim, correction, keepdim)[0]


@lower("var_mean.correction")
def var_mean(rec: Recorder, x: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    return _variance(rec, x, dim, correction, keepdim)


@lower("std.correction")
def std(rec: Recorder, x: Tensor, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    if x.dtype.is_complex:
        return NotImplemented
    wide = rec.opmath(x.dtype)
    return cast(rec, vec(rec, "vsqrt", _variance(rec, cast(rec, x, wide), dim, correction, keepdim)[0]), x.dtype)


def _variance(rec: Recorder, x: Tensor, dim: Any, correction: Any, keepdim: bool) -> tuple[Any, Any]:
    if x.dtype.is_complex:
        raise NotComposable("variance of complex numbers")
    correction = 1 if correction is None else value_of(correction, bake=True)
    dims = dims_of(x, dim)
    wide = rec.opmath(x.dtype)
    y = cast(rec, x, wide)
    count = math.prod(x.shape[d] for d in dims)
    middle = divide(rec, reduce(rec, "reduce_sum", y, dims, True), count)
    off = vec(rec, "vsub", y, middle)
    squares = reduce(rec, "reduce_sum", vec(rec, "vmul", off, off), dims, keepdim)
    freedom = max(count - correction, 0)
    variance = divide(rec, squares, freedom) if freedom else vec(rec, "vdiv", squares, 0.0)
    flat = middle if keepdim else middle.reshape(reduced(x.shape, dims, False))
    return cast(rec, variance, x.dtype), cast(rec, flat, x.dtype)


def _extreme(name: str, arg: str) -> None:
    def whole(rec: Recorder, x: Tensor, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
        dims = dims_of(x, dim)
        if x.dtype == torch.bool:
            return reduce(rec, "reduce_any" if name == "reduce_max" else "reduce_all", x, dims, keepdim)
        if x.numel() == 0 and any(x.shape[d] == 0 for d in dims):
            raise IndexError("Expected reduction dim to be specified for input.numel() == 0")
        made = reduce(rec, name, x, dims, keepdim)
        return rec.copy(made) if made is x else made

    lower(*(["amax", "prims.amax", "max"] if name == "reduce_max" else ["amin", "prims.amin", "min"]))(whole)

    def along(rec: Recorder, x: Tensor, dim: int, keepdim: bool = False) -> Any:
        index = argument(rec, arg, x, dim, keepdim)
        if x.dim() == 0:
            return rec.copy(x), index
        return whole(rec, x, dim, keepdim), index

    lower("max.dim" if name == "reduce_max" else "min.dim")(along)


def argument(rec: Recorder, name: str, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    if x.dim() == 0:
        return rec.full((), 0, torch.int64)
    if dim is None:
        flat = reshape(rec, x, [x.numel()])
        made = argument(rec, name, flat, 0)
        return made.view([1] * x.dim()) if keepdim else made
    d = dims_of(x, dim)[0]
    if x.dtype == torch.bool:
        x = cast(rec, x, torch.uint8)
    if x.shape[d] == 0:
        raise IndexError("Expected reduction dim to have non-zero size")
    if not rec.has(name, x.dtype) and x.dtype in (torch.float16, torch.bfloat16):
        x = cast(rec, x, torch.float32)
    return rec.run(name, [x, d, keepdim], [(reduced(x.shape, [d], keepdim), torch.int64, None)])


_extreme("reduce_max", "argmax")
_extreme("reduce_min", "argmin")
lower("argmax")(lambda rec, x, dim=None, keepdim=False: argument(rec, "argmax", x, dim, keepdim))
lower("argmin")(lambda rec, x, dim=None, keepdim=False: argument(rec, "argmin", x, dim, keepdim))


def _truth(name: str) -> Callable[..., Any]:
    def run(rec: Recorder, x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        made = reduce(rec, name, as_bool(rec, x), dims_of(x, dim), keepdim)
        return cast(rec, made, torch.uint8) if x.dtype == torch.uint8 else rec.copy(made) if made is x else made

    return run


lower("any", "any.dim", "any.dims")(_truth("reduce_any"))
lower("all", "all.dim", "all.dims")(_truth("reduce_all"))


@lower("prod", "prod.dim_int", "prims.prod")
def prod(rec: Recorder, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None,
         output_dtype: torch.dtype | None = None) -> Any:  # fmt: skip
    dtype = _sum_dtype(x, dtype or output_dtype)
    if dtype.is_complex:
        return NotImplemented
    return reduce(rec, "reduce_prod", cast(rec, x, dtype), dims_of(x, dim), keepdim)


# -------------------------------------------------------------------------------------------------------------- matmul


def reshape(rec: Recorder, x: Tensor, sizes: Sequence[int]) -> Tensor:
    try:
        return x.view(sizes)
    except RuntimeError:
        return rec.copy(x).view(sizes)


def product(rec: Recorder, a: Tensor, b: Tensor) -> Tensor:
    """(m, k) x (k, n) or (b, m, k) x (b, k, n), of one dtype."""
    if a.dtype.is_complex:
        from torchfl.compose.complexes import product as complex_product

        return complex_product(rec, a, b)
    sizes = [*a.shape[:-1], b.shape[-1]]
    if a.shape[-1] == 0:
        return rec.full(sizes, 0, a.dtype)
    native = torch.ops.aten.mm.default if a.dim() == 2 else torch.ops.aten.bmm.default
    if rec.root is not native and rec.target.native(native, (a, b), {}):
        return rec.native(native, (a, b), {})
    for wide in (a.dtype, torch.float32, torch.int64):
        if rec.has("matmul", wide) and wide.is_floating_point == a.dtype.is_floating_point and (
            wide == a.dtype or wide.itemsize > a.dtype.itemsize  # never in less than was asked for
        ):
            a2, b2 = cast(rec, a, wide), cast(rec, b, wide)
            return cast(rec, rec.run("matmul", [a2, b2], [(sizes, wide, None)]), a.dtype)
    # Without a product unit: products of all pairs, summed.
    pairs = vec(rec, "vmul", a.unsqueeze(-1), b.unsqueeze(-3))
    return reduce(rec, "reduce_sum", pairs, [a.dim() - 1], False)


@lower("mm", "bmm")
def mm(rec: Recorder, a: Tensor, b: Tensor, out_dtype: Any = None) -> Any:
    return product(rec, a, b)


@lower("mv")
def mv(rec: Recorder, a: Tensor, b: Tensor) -> Any:
    return product(rec, a, b.unsqueeze(1)).squeeze(1)


@lower("dot")
def dot(rec: Recorder, a: Tensor, b: Tensor) -> Any:
    return product(rec, a.unsqueeze(0), b.unsqueeze(1)).reshape(())


def _scale(rec: Recorder, x: Tensor, by: Any) -> Tensor:
    if is_literal(by, 1):
        return x
    made = arith(rec, "vmul", x, by, x.dtype) if not x.dtype.is_complex else torch.ops.aten.mul.Tensor
    if not isinstance(made, Tensor):
        from torchfl.compose.complexes import mul as complex_mul

        return complex_mul(rec, x, by)
    return made


@lower("addmm", "baddbmm")
def addmm(rec: Recorder, c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1, **_: Any) -> Any:
    ab = product(rec, a, b)
    if is_literal(beta, 0):
        return _scale(rec, ab, alpha)
    if ab.dtype.is_complex:
        return NotImplemented
    wide = rec.opmath(ab.dtype) if not (is_literal(beta, 1) and is_literal(alpha, 1)) else ab.dtype
    scaled = _scale(rec, cast(rec, c, wide), beta)
    return arith(rec, "vadd", scaled, _scale(rec, cast(rec, ab, wide), alpha), wide, ab.dtype)


@lower("addmv")
def addmv(rec: Recorder, c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Any:
    made = addmm(rec, c.unsqueeze(-1), a, b.unsqueeze(1), beta=beta, alpha=alpha)
    return made if made is NotImplemented else made.squeeze(1)


# ------------------------------------------------------------------------------------------------------- data movement


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
        dtype = _sum_dtype(x, dtype) if sums else to_float(x.dtype)
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
lower("logcumsumexp")(_scan("logcumsumexp", False))


def _scan_extreme(name: str) -> Callable[..., Any]:
    def run(rec: Recorder, x: Tensor, dim: int) -> Any:
        if x.dim() == 0:
            return rec.copy(x), rec.full((), 0, torch.int64)
        results = [(x.shape, x.dtype, None), (x.shape, torch.int64, None)]
        return tuple(rec.run(name, [x, dim % x.dim()], results))

    return run


lower("cummax")(_scan_extreme("cummax"))
lower("cummin")(_scan_extreme("cummin"))


# ----------------------------------------------------------------------------------------------- factories and random


@lower("empty.memory_format")
def empty(rec: Recorder, sizes: Sequence[int], *, dtype: torch.dtype | None = None, memory_format: Any = None,
          **_: Any) -> Any:  # fmt: skip
    like = torch.empty(sizes, device="meta", dtype=dtype or torch.get_default_dtype(), memory_format=memory_format)
    return rec.empty(like.shape, like.dtype, like.stride())


@lower("empty_strided", "prims.empty_strided")
def empty_strided(rec: Recorder, sizes: Any, strides: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return rec.empty(sizes, dtype or torch.get_default_dtype(), strides)


@lower("empty_permuted", "prims.empty_permuted")
def empty_permuted(rec: Recorder, sizes: Any, order: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    like = torch.empty_permuted(sizes, order, device="meta", dtype=dtype or torch.get_default_dtype())
    return rec.empty(like.shape, like.dtype, like.stride())


def _like(rec: Recorder, x: Tensor, dtype: torch.dtype | None, memory_format: Any) -> tuple[Any, torch.dtype]:
    return x.shape, dtype or x.dtype


@lower("empty_like", "new_empty")
def empty_like(rec: Recorder, x: Tensor, sizes: Any = None, *, dtype: Any = None, memory_format: Any = None,
               **_: Any) -> Any:  # fmt: skip
    if sizes is not None:
        return rec.empty(sizes, dtype or x.dtype)
    like = torch.empty_like(x, dtype=dtype, memory_format=memory_format or torch.preserve_format, device="meta")
    return rec.empty(like.shape, like.dtype, like.stride())


@lower("new_empty_strided")
def new_empty_strided(rec: Recorder, x: Tensor, sizes: Any, strides: Any, *, dtype: Any = None, **_: Any) -> Any:
    return rec.empty(sizes, dtype or x.dtype, strides)


def _filled(rec: Recorder, sizes: Any, value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, complex) or dtype.is_complex:
        return rec.copy(rec.constant(torch.full((), value, dtype=dtype)).expand(sizes))
    return rec.full(sizes, value, dtype)


@lower("full")
def full(rec: Recorder, sizes: Any, value: Any, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    return _filled(rec, sizes, value, dtype or torch.full((), value_of(value)).dtype)


lower("zeros")(lambda rec, sizes, dtype=None, **_: _filled(rec, sizes, 0, dtype or torch.get_default_dtype()))
lower("ones")(lambda rec, sizes, dtype=None, **_: _filled(rec, sizes, 1, dtype or torch.get_default_dtype()))
lower("scalar_tensor", "prims.scalar_tensor")(
    lambda rec, value, dtype=None, **_: _filled(rec, (), value, dtype or torch.scalar_tensor(value_of(value)).dtype)
)
lower("full_like")(lambda rec, x, value, dtype=None, **_: _filled(rec, x.shape, value, dtype or x.dtype))
lower("_efficientzerotensor")(lambda rec, sizes, dtype=None, **_: _filled(rec, sizes, 0, _default(dtype)))
lower("zeros_like")(lambda rec, x, dtype=None, **_: _filled(rec, x.shape, 0, dtype or x.dtype))
lower("ones_like")(lambda rec, x, dtype=None, **_: _filled(rec, x.shape, 1, dtype or x.dtype))
lower("new_zeros")(lambda rec, x, sizes, dtype=None, **_: _filled(rec, sizes, 0, dtype or x.dtype))
lower("new_ones")(lambda rec, x, sizes, dtype=None, **_: _filled(rec, sizes, 1, dtype or x.dtype))
lower("new_full")(lambda rec, x, sizes, value, dtype=None, **_: _filled(rec, sizes, value, dtype or x.dtype))


@lower("arange", "arange.start", "arange.start_step")
def arange(rec: Recorder, *args: Any, dtype: torch.dtype | None = None, **_: Any) -> Any:
    numbers = [value_of(a, bake=True) for a in args]
    start, step = (0, 1) if len(args) == 1 else (numbers[0], numbers[2] if len(args) > 2 else 1)
    end = numbers[0] if len(args) == 1 else numbers[1]
    if dtype is None:
        dtype = torch.get_default_dtype() if any(isinstance(n, float) for n in numbers) else torch.int64
    return iota(rec, max(math.ceil((end - start) / step), 0), start, step, dtype)


@lower("prims.iota")
def prims_iota(rec: Recorder, n: int, *, start: Any, step: Any, dtype: torch.dtype, **_: Any) -> Any:
    return iota(rec, n, start, step, dtype)


def uniform(rec: Recorder, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """In [0, 1), from the device's generator."""
    if not dtype.is_floating_point:
        raise NotComposable(f"uniform numbers of {dtype_name(dtype)}")
    wide = dtype if rec.has("random_uniform", dtype) else torch.float32
    offset = rec.program.random
    args = [list(sizes), {"seed": True}, {"offset": offset}, {"dtype": dtype_name(wide)}]
    made = rec.run("random_uniform", args, [(sizes, wide, None)])
    rec.program.random += -(-math.prod(sizes) // 4)
    return cast(rec, made, dtype)


def random_bits(rec: Recorder, sizes: Sequence[int]) -> Tensor:
    offset = rec.program.random
    args = [list(sizes), {"seed": True}, {"offset": offset}]
    made = rec.run("random_bits", args, [(sizes, torch.int64, None)])
    rec.program.random += -(-math.prod(sizes) // 2)
    return made


def normal(rec: Recorder, sizes: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Box and Muller: both halves of each pair."""
    wide = rec.opmath(dtype)
    n = math.prod(sizes)
    half = (n + 1) // 2
    u = uniform(rec, [2, half], wide)
    radius = vec(rec, "vsqrt", vec(rec, "vmul", vec(rec, "vlog", vec(rec, "vsub", 1.0, u[0])), -2.0))
    angle = vec(rec, "vmul", u[1], 2 * math.pi)
    made = rec.empty([2, half], wide)
    for row, name in ((0, "vcos"), (1, "vsin")):
        value = rec.value(vec(rec, "vmul", radius, vec(rec, name, angle)))
        rec.step_into("uba::copy_nd", [{"value": value}], made[row])
    rec.versions.pop(rec.base(made), None)
    return cast(rec, made.view(-1)[:n].view(sizes), dtype)


def integers(rec: Recorder, sizes: Sequence[int], low: int, high: int, dtype: torch.dtype) -> Tensor:
    bits = vec(rec, "vremainder", random_bits(rec, sizes), high - low)
    if dtype.is_complex:
        raise NotComposable("random complex integers")
    return cast(rec, vec(rec, "vadd", bits, low) if low else bits, dtype)


def _default(dtype: torch.dtype | None) -> torch.dtype:
    return dtype or torch.get_default_dtype()


lower("rand")(lambda rec, sizes, dtype=None, **_: uniform(rec, sizes, _default(dtype)))
lower("randn")(lambda rec, sizes, dtype=None, **_: normal(rec, sizes, _default(dtype)))
lower("rand_like")(lambda rec, x, dtype=None, **_: uniform(rec, x.shape, dtype or x.dtype))
lower("randn_like")(lambda rec, x, dtype=None, **_: normal(rec, x.shape, dtype or x.dtype))
lower("randint")(
    lambda rec, high, sizes, dtype=None, **_: integers(rec, sizes, 0, value_of(high, True), dtype or torch.int64)
)
lower("randint.low")(
    lambda rec, low, high, sizes, dtype=None, **_: integers(
        rec, sizes, value_of(low, True), value_of(high, True), dtype or torch.int64
    )
)
lower("randint_like")(
    lambda rec, x, high, dtype=None, **_: integers(rec, x.shape, 0, value_of(high, True), dtype or x.dtype)
)
lower("randint_like.low_dtype")(
    lambda rec, x, low, high, dtype=None, **_: integers(
        rec, x.shape, value_of(low, True), value_of(high, True), dtype or x.dtype
    )
)
lower("randperm")(
    lambda rec, n, dtype=None, **_: cast(rec, sort(rec, random_bits(rec, [n]), 0)[1], dtype or torch.int64)
)


@lower("uniform", "prims.uniform")
def uniform_between(rec: Recorder, x: Tensor, from_: Any = 0.0, to: Any = 1.0, **more: Any) -> Any:
    low, high = more.get("from", from_), to
    u = uniform(rec, x.shape, x.dtype)
    if is_literal(low, 0) and is_literal(high, 1):
        return u
    return vec(rec, "vadd", vec(rec, "vmul", u, high - low), low)


@lower("normal_functional")
def normal_with(rec: Recorder, x: Tensor, mean: Any = 0.0, std: Any = 1.0, **_: Any) -> Any:
    made = normal(rec, x.shape, x.dtype)
    made = made if is_literal(std, 1) else vec(rec, "vmul", made, std)
    return made if is_literal(mean, 0) else vec(rec, "vadd", made, mean)


@lower("bernoulli", "bernoulli.p", "bernoulli.Tensor")
def bernoulli(rec: Recorder, x: Tensor, p: Any = None, **_: Any) -> Any:
    dtype = x.dtype
    chance = x if p is None else p
    wide = torch.float32 if not dtype.is_floating_point or dtype.itemsize == 2 else dtype
    u = uniform(rec, x.shape, wide)
    return cast(rec, arith(rec, "vlt", u, cast(rec, chance, wide), wide), dtype)
