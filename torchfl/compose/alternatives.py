"""What stands in for a vector instruction that a chip lacks, where it costs no accuracy.

Contract: each function has the operands of the instruction (tensors of one dtype, or numbers) and gives its result, or
NotImplemented, or raises NotComposable where the chip lacks for it too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.numbers import is_open, value_of
from torchfl.compose.recorder import NotComposable, Recorder, dtype_name
from torchfl.compose.vector import _ALTERNATIVES, vec


def _swap(name: str) -> Callable[..., Tensor]:
    return lambda rec, a, b: vec(rec, name, b, a)


def _logical_not(rec: Recorder, x: Tensor) -> Tensor:
    if x.dtype != torch.bool:
        return vec(rec, "vsub", -1, x)  # two's complement
    return vec(rec, "veq", x, False)


def _abs(rec: Recorder, x: Tensor) -> Tensor:
    return vec(rec, "vmax", x, vec(rec, "vneg", x))


def _neg(rec: Recorder, x: Tensor) -> Tensor:
    return vec(rec, "vmul", x, -1) if rec.has("vmul", x.dtype) else vec(rec, "vsub", -0.0, x)


def _sub(rec: Recorder, a: Any, b: Any) -> Tensor:
    if isinstance(b, Tensor):
        return vec(rec, "vadd", a, vec(rec, "vneg", b) if rec.has("vneg", b.dtype) else vec(rec, "vmul", b, -1))
    return vec(rec, "vadd", a, -b)


def _select(rec: Recorder, cond: Tensor, a: Any, b: Any) -> Tensor:
    """cond * a + (1 - cond) * b would turn an unused NaN into a result; bits do not."""
    dtype = a.dtype if isinstance(a, Tensor) else b.dtype
    if dtype != torch.bool:
        raise NotComposable(f"no vselect for {dtype_name(dtype)}")
    yes = vec(rec, "vand", cond, a)
    return vec(rec, "vor", yes, vec(rec, "vand", vec(rec, "vnot", cond), b))


def _or(rec: Recorder, a: Any, b: Any) -> Any:
    if not isinstance(a, Tensor):
        a, b = b, a
    return vec(rec, "vselect", a, _like(rec, a, True), b) if _truth(rec, a) else NotImplemented


def _and(rec: Recorder, a: Any, b: Any) -> Any:
    if not isinstance(a, Tensor):
        a, b = b, a
    return vec(rec, "vselect", a, b, _like(rec, a, False)) if _truth(rec, a) else NotImplemented


def _truth(rec: Recorder, x: Tensor) -> bool:
    return x.dtype == torch.bool and rec.has("vselect", torch.bool)


def _like(rec: Recorder, x: Tensor, value: bool) -> Tensor:
    """The dtype of a selection is that of a tensor among what it selects from."""
    return rec.full(x.shape, value, x.dtype)


def _max_by_compare(name: str, compare: str) -> Callable[..., Tensor]:
    def run(rec: Recorder, a: Any, b: Any) -> Tensor:
        if not isinstance(a, Tensor):
            a, b = b, a
        picked = vec(rec, "vselect", vec(rec, compare, a, b), a, b)
        if not a.dtype.is_floating_point:
            return picked
        return vec(rec, "vselect", vec(rec, "vne", a, a), a, picked)  # a NaN; one in b was picked already

    return run


def _opposite(name: str) -> Callable[..., Any]:
    """The least is the negative of the greatest negative; integers have a number without one."""

    def run(rec: Recorder, a: Any, b: Any) -> Any:
        dtype = a.dtype if isinstance(a, Tensor) else b.dtype
        if not dtype.is_floating_point:
            return NotImplemented
        a, b = (vec(rec, "vneg", x) if isinstance(x, Tensor) else -x for x in (a, b))
        return vec(rec, "vneg", vec(rec, name, a, b))

    return run


def _select_not(rec: Recorder, x: Tensor) -> Any:
    if x.dtype != torch.bool:
        return NotImplemented
    return vec(rec, "vselect", x, False, rec.full((), True, torch.bool))


def _floor_from(name: str) -> Callable[..., Tensor]:
    def run(rec: Recorder, x: Tensor) -> Tensor:
        return vec(rec, "vneg", vec(rec, name, vec(rec, "vneg", x)))

    return run


def _remainder(rec: Recorder, a: Any, b: Any) -> Tensor:
    r = vec(rec, "vfmod", a, b)
    fix = vec(rec, "vand", vec(rec, "vne", r, 0), vec(rec, "vne", vec(rec, "vlt", r, 0), _negative(rec, b)))
    return vec(rec, "vselect", fix, vec(rec, "vadd", r, b), r)


def _negative(rec: Recorder, b: Any) -> Any:
    return vec(rec, "vlt", b, 0) if isinstance(b, Tensor) else bool(b < 0)


def _scaled(name: str, factor: float) -> Callable[..., Tensor]:
    return lambda rec, x: vec(rec, "vmul", vec(rec, name, x), factor)


def _tanh(rec: Recorder, x: Tensor) -> Tensor:
    """Through e^-2|x|, which cannot overflow; near 0 the difference 1 - e loses digits, where x - x^3/3 + 2x^5/15 has
    them."""
    e = vec(rec, "vexp", vec(rec, "vmul", vec(rec, "vabs", x), -2.0))
    t = vec(rec, "vdiv", vec(rec, "vsub", 1.0, e), vec(rec, "vadd", e, 1.0))
    s = vec(rec, "vmul", x, x)
    p = vec(rec, "vadd", vec(rec, "vmul", s, -17.0 / 315), 2.0 / 15)
    p = vec(rec, "vadd", vec(rec, "vmul", vec(rec, "vadd", vec(rec, "vmul", p, s), -1.0 / 3), s), 1.0)
    near = vec(rec, "vmul", x, p)
    signed = vec(rec, "vselect", vec(rec, "vlt", x, 0), vec(rec, "vneg", t), t)
    return vec(rec, "vselect", vec(rec, "vlt", s, 0.04), near, signed)


def _copysign(rec: Recorder, a: Any, b: Any) -> Tensor:
    """The sign of zero shows in its reciprocal."""
    if not isinstance(b, Tensor):
        size = vec(rec, "vabs", a)
        return vec(rec, "vneg", size) if math.copysign(1, value_of(b, bake=True)) < 0 else size
    size = vec(rec, "vabs", a) if isinstance(a, Tensor) else abs(a)
    negative = vec(rec, "vlt", vec(rec, "vselect", vec(rec, "veq", b, 0), vec(rec, "vdiv", 1.0, b), b), 0)
    return vec(rec, "vselect", negative, vec(rec, "vneg", size) if isinstance(size, Tensor) else -size,
               size if isinstance(size, Tensor) else rec.full(b.shape, size, b.dtype))  # fmt: skip


def _pow(rec: Recorder, a: Any, b: Any) -> Tensor:
    if not isinstance(b, Tensor) and not is_open(b) and float(b).is_integer() and 0 < b <= 16:
        result, square, n = None, a, int(b)
        while n:
            if n & 1:
                result = square if result is None else vec(rec, "vmul", result, square)
            n >>= 1
            square = vec(rec, "vmul", square, square) if n else square
        return result if result is not a else vec(rec, "vmul", a, 1)
    if isinstance(a, Tensor) or is_open(a) or a <= 0:
        raise NotComposable("no vpow")
    return vec(rec, "vexp", vec(rec, "vmul", b, math.log(a)))


def _erf(rec: Recorder, x: Tensor) -> Tensor:
    """By numerical approximations fitted on first use (see special.py); about 1e-7 in float32."""
    from torchfl.compose.special import erf

    return erf(rec, x)


def _le(rec: Recorder, a: Any, b: Any) -> Tensor:
    return vec(rec, "vor", vec(rec, "vlt", a, b), vec(rec, "veq", a, b))


def _trunc(rec: Recorder, x: Tensor) -> Tensor:
    up = vec(rec, "vneg", vec(rec, "vfloor", vec(rec, "vneg", x)))
    return vec(rec, "vselect", vec(rec, "vlt", x, 0), up, vec(rec, "vfloor", x))


def _round(rec: Recorder, x: Tensor) -> Tensor:
    """Up from the floor where more than a half is left, or a half and the floor is odd."""
    low = vec(rec, "vfloor", x)
    left = vec(rec, "vsub", x, low)
    half = vec(rec, "vmul", low, 0.5)
    odd = vec(rec, "vne", half, vec(rec, "vfloor", half))
    up = vec(rec, "vor", vec(rec, "vgt", left, 0.5), vec(rec, "vand", vec(rec, "veq", left, 0.5), odd))
    return vec(rec, "vselect", up, vec(rec, "vadd", low, 1.0), low)


def _log1p(rec: Recorder, x: Tensor) -> Tensor:
    """Kahan: what rounding took from 1 + x is made good by x / (u - 1)."""
    u = vec(rec, "vadd", x, 1.0)
    log = vec(rec, "vlog", u)
    made = vec(rec, "vmul", log, vec(rec, "vdiv", x, vec(rec, "vsub", u, 1.0)))
    return vec(rec, "vselect", vec(rec, "veq", u, 1.0), x, vec(rec, "vselect", vec(rec, "veq", u, x), log, made))


def _expm1(rec: Recorder, x: Tensor) -> Tensor:
    """Kahan, as for log1p."""
    u = vec(rec, "vexp", x)
    less = vec(rec, "vsub", u, 1.0)
    made = vec(rec, "vmul", less, vec(rec, "vdiv", x, vec(rec, "vlog", u)))
    plain = vec(rec, "vor", vec(rec, "veq", less, -1.0), vec(rec, "veq", u, math.inf))
    return vec(rec, "vselect", vec(rec, "veq", u, 1.0), x, vec(rec, "vselect", plain, less, made))


def _cosh(rec: Recorder, x: Tensor) -> Tensor:
    half = vec(rec, "vexp", vec(rec, "vmul", vec(rec, "vabs", x), 0.5))
    big = vec(rec, "vmul", vec(rec, "vmul", half, 0.5), half)  # the whole exponential would overflow too early
    return vec(rec, "vadd", big, vec(rec, "vdiv", 0.25, big))


def _sinh(rec: Recorder, x: Tensor) -> Tensor:
    e = vec(rec, "vexpm1", vec(rec, "vmin", vec(rec, "vabs", x), 88.0))
    near = vec(rec, "vmul", vec(rec, "vadd", e, vec(rec, "vdiv", e, vec(rec, "vadd", e, 1.0))), 0.5)
    size = vec(rec, "vselect", vec(rec, "vlt", vec(rec, "vabs", x), 80.0), near, _cosh(rec, x))
    return vec(rec, "vselect", vec(rec, "vlt", x, 0), vec(rec, "vneg", size), size)


def _beside(rec: Recorder, x: Tensor) -> Tensor:
    """sqrt(1 - x^2)."""
    return vec(rec, "vsqrt", vec(rec, "vmul", vec(rec, "vsub", 1.0, x), vec(rec, "vadd", x, 1.0)))


def _asinh(rec: Recorder, x: Tensor) -> Tensor:
    size = vec(rec, "vabs", x)
    small = vec(rec, "vmin", size, 1e6)
    square = vec(rec, "vmul", small, small)
    root = vec(rec, "vadd", vec(rec, "vsqrt", vec(rec, "vadd", square, 1.0)), 1.0)
    near = vec(rec, "vlog1p", vec(rec, "vadd", small, vec(rec, "vdiv", square, root)))
    far = vec(rec, "vadd", vec(rec, "vlog", size), math.log(2))
    made = vec(rec, "vselect", vec(rec, "vlt", size, 1e6), near, far)
    return vec(rec, "vselect", vec(rec, "vlt", x, 0), vec(rec, "vneg", made), made)


def _acosh(rec: Recorder, x: Tensor) -> Tensor:
    t = vec(rec, "vsub", vec(rec, "vmin", x, 1e6), 1.0)
    near = vec(rec, "vlog1p", vec(rec, "vadd", t, vec(rec, "vsqrt", vec(rec, "vmul", t, vec(rec, "vadd", t, 2.0)))))
    far = vec(rec, "vadd", vec(rec, "vlog", x), math.log(2))
    return vec(rec, "vselect", vec(rec, "vlt", x, 1e6), near, vec(rec, "vselect", vec(rec, "vge", x, 1e6), far, x))


def _atanh(rec: Recorder, x: Tensor) -> Tensor:
    ratio = vec(rec, "vdiv", vec(rec, "vmul", x, 2.0), vec(rec, "vsub", 1.0, x))
    return vec(rec, "vmul", vec(rec, "vlog1p", ratio), 0.5)


_ALTERNATIVES |= {
    "vgt": (_swap("vlt"),),
    "vlt": (_swap("vgt"),),
    "vge": (_swap("vle"), lambda rec, a, b: _le(rec, b, a)),
    "vle": (_swap("vge"), _le),
    "vne": ((lambda rec, a, b: vec(rec, "vnot", vec(rec, "veq", a, b))),),
    "veq": (
        (lambda rec, a, b: vec(rec, "vnot", vec(rec, "vne", a, b))),
        (lambda rec, a, b: vec(rec, "vand", vec(rec, "vle", a, b), vec(rec, "vle", b, a))),
    ),
    "vnot": (_logical_not, _select_not),
    "vneg": (_neg,),
    "vsub": (_sub,),
    "vabs": (_abs,),
    "vselect": (_select,),
    "vor": (_or,),
    "vand": (_and,),
    "vmax": (_opposite("vmin"), _max_by_compare("vmax", "vgt")),
    "vmin": (_opposite("vmax"), _max_by_compare("vmin", "vlt")),
    "vceil": (_floor_from("vfloor"),),
    "vfloor": (_floor_from("vceil"),),
    "vremainder": (_remainder,),
    "vtrunc": (_trunc,),
    "vround": (_round,),
    "vlog1p": (_log1p,),
    "vexpm1": (_expm1,),
    "vcosh": (_cosh,),
    "vsinh": (_sinh,),
    "vasin": ((lambda rec, x: vec(rec, "vatan2", x, _beside(rec, x))),),
    "vacos": ((lambda rec, x: vec(rec, "vatan2", _beside(rec, x), x)),),
    "vatan": ((lambda rec, x: vec(rec, "vatan2", x, 1.0)),),
    "vasinh": (_asinh,),
    "vacosh": (_acosh,),
    "vatanh": (_atanh,),
    "vrsqrt": ((lambda rec, x: vec(rec, "vdiv", 1.0, vec(rec, "vsqrt", x))),),
    "vsqrt": ((lambda rec, x: vec(rec, "vpow", x, 0.5)),),
    "vexp2": ((lambda rec, x: vec(rec, "vexp", vec(rec, "vmul", x, math.log(2)))),),
    "vlog2": (_scaled("vlog", 1 / math.log(2)),),
    "vlog10": (_scaled("vlog", 1 / math.log(10)),),
    "vtanh": (_tanh,),
    "vtan": ((lambda rec, x: vec(rec, "vdiv", vec(rec, "vsin", x), vec(rec, "vcos", x))),),
    "vcopysign": (_copysign,),
    "vpow": (_pow,),
    "verf": (_erf,),
    "vxor": ((lambda rec, a, b: vec(rec, "vne", a, b) if a.dtype == torch.bool else NotImplemented),),
}
