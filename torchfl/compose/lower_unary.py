"""Functions of one tensor, selection, and what else is pointwise with more than two operands, as instructions.

Contract: as lower_pointwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.lower_pointwise import (
    arith,
    complex_way,
    is_complex,
    is_literal,
    lower,
    result_type,
    strides_of,
    tensor_of,
    to_float,
)
from torchfl.compose.numbers import is_open
from torchfl.compose.recorder import NotComposable, Recorder
from torchfl.compose.vector import broadcast, cast, vec


def _float_unary(name: str) -> Callable[..., Any]:
    def run(rec: Recorder, x: Tensor) -> Any:
        if x.dtype.is_complex:
            return NotImplemented
        return vec(rec, name, cast(rec, x, to_float(x.dtype)), strides=strides_of(x))

    return run


for _word in [
    "exp",
    "exp2",
    "expm1",
    "log",
    "log2",
    "log10",
    "log1p",
    "sqrt",
    "rsqrt",
    "sin",
    "cos",
    "tan",
    "asin",
    "acos",
    "atan",
    "sinh",
    "cosh",
    "tanh",
    "asinh",
    "acosh",
    "atanh",
    "erf",
    "erfc",
    "erfinv",
    "lgamma",
    "digamma",
]:
    _prim = {"erfinv": "erf_inv"}.get(_word, _word)
    lower(_word, "prims." + _prim, *(["special_" + _word] if _word.startswith("erf") else []))(
        _float_unary("v" + _word)
    )


def _same_unary(name: str) -> Callable[..., Any]:
    def run(rec: Recorder, x: Tensor) -> Any:
        if x.dtype.is_complex:
            return NotImplemented
        if not x.dtype.is_floating_point:
            return rec.copy(x)
        return vec(rec, name, x, strides=strides_of(x))

    return run


for _word in ("floor", "ceil", "trunc", "round"):
    lower(_word, "prims." + _word)(_same_unary("v" + _word))


@lower("neg", "prims.neg")
def neg(rec: Recorder, x: Tensor) -> Any:
    return complex_way("neg", rec, x) if x.dtype.is_complex else vec(rec, "vneg", x, strides=strides_of(x))


@lower("abs", "prims.abs")
def absolute(rec: Recorder, x: Tensor) -> Any:
    if x.dtype.is_complex:
        return complex_way("absolute", rec, x)
    return rec.copy(x) if x.dtype in (torch.bool, torch.uint8) else vec(rec, "vabs", x, strides=strides_of(x))


@lower("bitwise_not", "prims.bitwise_not")
def bitwise_not(rec: Recorder, x: Tensor) -> Any:
    return vec(rec, "vnot", x, strides=strides_of(x))


@lower("reciprocal", "prims.reciprocal")
def reciprocal(rec: Recorder, x: Tensor) -> Any:
    if x.dtype.is_complex:
        return complex_way("div", rec, 1.0, x)
    return vec(rec, "vdiv", 1.0, cast(rec, x, to_float(x.dtype)), strides=strides_of(x))


@lower("sign", "prims.sign", "sgn")
def sign(rec: Recorder, x: Tensor) -> Any:
    if x.dtype.is_complex:
        return complex_way("sgn", rec, x)
    if x.dtype == torch.bool:
        return rec.copy(x)
    strides = strides_of(x)
    one = vec(rec, "vselect", vec(rec, "vgt", x, 0, strides=strides), tensor_of(rec, 1, x.dtype), 0)
    if not x.dtype.is_signed:
        return one
    return vec(rec, "vselect", vec(rec, "vlt", x, 0, strides=strides), tensor_of(rec, -1, x.dtype), one)


@lower("signbit", "prims.signbit")
def signbit(rec: Recorder, x: Tensor) -> Any:
    if not x.dtype.is_floating_point:
        return vec(rec, "vlt", x, 0) if x.dtype != torch.bool else rec.full(x.shape, False, torch.bool)
    return vec(rec, "vlt", vec(rec, "vcopysign", 1.0, x), 0, strides=strides_of(x))


@lower("isnan")
def isnan(rec: Recorder, x: Tensor) -> Any:
    if x.dtype.is_complex:
        return complex_way("isnan", rec, x)
    return vec(rec, "vne", x, x) if x.dtype.is_floating_point else rec.full(x.shape, False, torch.bool)


@lower("isinf")
def isinf(rec: Recorder, x: Tensor) -> Any:
    if x.dtype.is_complex:
        return NotImplemented
    if not x.dtype.is_floating_point:
        return rec.full(x.shape, False, torch.bool)
    return vec(rec, "veq", vec(rec, "vabs", x), math.inf)


@lower("prims.isfinite")
def isfinite(rec: Recorder, x: Tensor) -> Any:
    return vec(rec, "vlt", vec(rec, "vabs", x), math.inf)


@lower("relu")
def relu(rec: Recorder, x: Tensor) -> Any:
    return vec(rec, "vmax", x, 0, strides=strides_of(x))


@lower("sigmoid")
def sigmoid(rec: Recorder, x: Tensor) -> Any:
    if x.dtype.is_complex:
        return NotImplemented
    dtype = to_float(x.dtype)
    strides = strides_of(x)
    e = vec(rec, "vexp", vec(rec, "vneg", cast(rec, x, rec.opmath(dtype)), strides=strides), strides=strides)
    return cast(rec, vec(rec, "vdiv", 1.0, vec(rec, "vadd", e, 1.0, strides=strides), strides=strides), dtype)


# ---------------------------------------------------------------------------------------------------------- select etc.


@lower("where.self", "where.ScalarSelf", "where.ScalarOther", "where.Scalar", "prims.where")
def where(rec: Recorder, cond: Tensor, a: Any, b: Any) -> Any:
    cond = cast(rec, cond, torch.bool)
    dtype = result_type(a, b)
    if dtype.is_complex:
        return complex_way("where", rec, cond, a, b)
    strides = strides_of(cond, a, b)
    a, b = cast(rec, a, dtype), cast(rec, b, dtype)
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        a = rec.full((), a, dtype)
    return vec(rec, "vselect", cond, a, b, strides=strides)


@lower("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(rec: Recorder, x: Tensor, mask: Tensor, value: Any) -> Any:
    if is_complex(x, value):
        return NotImplemented
    shape = broadcast([x.shape, mask.shape])
    return vec(rec, "vselect", cast(rec, mask, torch.bool), cast(rec, value, x.dtype), x.expand(shape))


@lower("clamp", "clamp.Tensor", "clip", "clip.Tensor")
def clamp(rec: Recorder, x: Tensor, min: Any = None, max: Any = None) -> Any:
    dtype = x.dtype
    for bound in (min, max):
        if bound is not None:
            dtype = torch.promote_types(dtype, result_type(x, bound))
    made: Any = cast(rec, x, dtype)
    if min is not None:
        made = arith(rec, "vmax", made, min, dtype)
    return arith(rec, "vmin", made, max, dtype) if max is not None else made


@lower("clamp_min", "clamp_min.Tensor")
def clamp_min(rec: Recorder, x: Tensor, min: Any) -> Any:
    return clamp(rec, x, min)


@lower("clamp_max", "clamp_max.Tensor")
def clamp_max(rec: Recorder, x: Tensor, max: Any) -> Any:
    return clamp(rec, x, None, max)


def _addc(name: str) -> Callable[..., Any]:
    def run(rec: Recorder, x: Tensor, a: Tensor, b: Tensor, value: Any = 1) -> Any:
        if is_complex(x, a, b, value):
            return NotImplemented
        dtype = torch.promote_types(result_type(x, a), result_type(x, b))
        dtype = torch.promote_types(dtype, result_type(a, b))
        wide = rec.opmath(dtype)
        x, a, b = (cast(rec, t, wide) for t in (x, a, b))
        if name == "vmul":
            product = arith(rec, "vmul", a, b)
            product = product if is_literal(value, 1) else vec(rec, "vmul", product, value)
        else:
            product = arith(rec, "vdiv", a if is_literal(value, 1) else vec(rec, "vmul", a, value), b)
        return arith(rec, "vadd", x, product, wide, dtype)

    return run


lower("addcmul")(_addc("vmul"))
lower("addcdiv")(_addc("vdiv"))


@lower("lerp.Scalar", "lerp.Tensor")
def lerp(rec: Recorder, a: Tensor, b: Tensor, weight: Any) -> Any:
    """a + w (b - a) below 1/2, b - (1 - w)(b - a) above: exact at both ends."""
    if is_complex(a, b, weight):
        return NotImplemented
    dtype = a.dtype
    wide = rec.opmath(dtype)
    a, b, weight = cast(rec, a, wide), cast(rec, b, wide), cast(rec, weight, wide)
    diff = arith(rec, "vsub", b, a)
    low = arith(rec, "vadd", a, arith(rec, "vmul", diff, weight))
    if not isinstance(weight, Tensor):
        if is_open(weight):
            return cast(rec, low, dtype)  # which half it lies in is not known; the sum is right to rounding in both
        if abs(weight) < 0.5:
            return cast(rec, low, dtype)
        return cast(rec, arith(rec, "vsub", b, vec(rec, "vmul", diff, 1 - weight)), dtype)
    high = arith(rec, "vsub", b, arith(rec, "vmul", diff, arith(rec, "vsub", 1.0, weight)))
    near = vec(rec, "vlt", vec(rec, "vabs", weight), 0.5)
    return cast(rec, vec(rec, "vselect", near, low, high), dtype)


@lower("_to_copy", "prims.convert_element_type", "_prims_convert")
def to_copy(rec: Recorder, x: Tensor, dtype: torch.dtype | None = None, memory_format: Any = None, **_: Any) -> Any:
    made = cast(rec, x, dtype or x.dtype)
    if memory_format not in (None, torch.preserve_format):
        want = torch.empty(x.shape, device="meta", memory_format=memory_format)
        return rec.copy(made, want.stride())
    return made if made is not x else rec.copy(x)


@lower("clone", "prims.clone")
def clone(rec: Recorder, x: Tensor, memory_format: Any = None) -> Any:
    if memory_format in (None, torch.preserve_format):
        return rec.copy(x, strides_of(x))
    return rec.copy(x, torch.empty(x.shape, device="meta", memory_format=memory_format).stride())


@lower("_conj_physical", "conj_physical")
def conj_physical(rec: Recorder, x: Tensor) -> Any:
    return complex_way("conj", rec, x) if x.dtype.is_complex else x


@lower("_local_scalar_dense", "item")
def local_scalar(rec: Recorder, x: Tensor) -> Any:
    number = rec.fill_of(x) if x.numel() == 1 else None
    if number is None:
        raise NotComposable("depends on a number read back from the device")
    return number
