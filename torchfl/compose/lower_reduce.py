"""Reductions and matrix products as instructions.

Contract: as lower_pointwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.lower_pointwise import arith, as_bool, is_literal, lower
from torchfl.compose.numbers import value_of
from torchfl.compose.recorder import NotComposable, Recorder
from torchfl.compose.vector import cast, vec


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
        if name == "reduce_min" and rec.has("reduce_max", x.dtype):
            # The least is the greatest of the negatives; for integers of the complements, as every one has one.
            turn = "vneg" if x.dtype.is_floating_point else "vnot"
            return vec(rec, turn, reduce(rec, "reduce_max", vec(rec, turn, x), dims, keepdim))
        if name == "reduce_all" and rec.has("reduce_any", x.dtype):
            return vec(rec, "vnot", reduce(rec, "reduce_any", vec(rec, "vnot", x), dims, keepdim))
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


def sum_dtype(x: Tensor, dtype: torch.dtype | None) -> torch.dtype:
    return dtype or (x.dtype if x.dtype.is_floating_point or x.dtype.is_complex else torch.int64)


@lower("sum", "sum.dim_IntList")
def total(rec: Recorder, x: Tensor, dim: Any = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Any:
    dtype = sum_dtype(x, dtype)
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
    if not x.dtype.is_floating_point:
        raise NotComposable("variance of integers")
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
    if name == "argmin" and not rec.has(name, x.dtype):
        name, x = "argmax", vec(rec, "vneg" if x.dtype.is_floating_point else "vnot", x)
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
    dtype = sum_dtype(x, dtype or output_dtype)
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
        if (
            rec.has("matmul", wide)
            and wide.is_floating_point == a.dtype.is_floating_point
            and (
                wide == a.dtype or wide.itemsize > a.dtype.itemsize  # never in less than was asked for
            )
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
