"""Pointwise operators that are one instruction, or a few.

Contract: a lowering is called with the recorder and the operator's arguments while nothing is being recorded
implicitly; it returns the result, or NotImplemented to leave the operator to its decomposition. Type promotion is
PyTorch's. Registered in `LOWER` by overload.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.numbers import value_of
from torchfl.compose.recorder import Recorder
from torchfl.compose.vector import cast, vec

LOWER: dict[Any, Callable[..., Any]] = {}

aten = torch.ops.aten
prims = torch.ops.prims


def overload(name: str) -> Any:
    """ "add.Tensor" -> torch.ops.aten.add.Tensor; "prims.add" -> prims.add.default. None if torch lacks it."""
    space: Any = aten
    if name.startswith("prims."):
        space, name = prims, name.removeprefix("prims.")
    packet, _, over = name.partition(".")
    try:
        return getattr(getattr(space, packet), over or "default")
    except AttributeError:
        return None


def lower(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(f: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            op = overload(name)
            if op is not None:
                LOWER[op] = f
        return f

    return register


# ------------------------------------------------------------------------------------------------------------ promotion


def result_type(a: Any, b: Any) -> torch.dtype:
    return torch.result_type(value_of(a), value_of(b))


def to_float(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()


def is_complex(*operands: Any) -> bool:
    return any(isinstance(x, complex) or (isinstance(x, Tensor) and x.dtype.is_complex) for x in operands)


def strides_of(*operands: Any) -> Any:
    """The layout that PyTorch gives the result of a pointwise operator; None: contiguous."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    if all(t.is_contiguous() for t in tensors):
        return None
    if len(tensors) == 1 and torch._prims_common.is_non_overlapping_and_dense_or_false(tensors[0]):
        return tensors[0].stride()
    # PyTorch's own iterator decides (its Python twin imports SymPy: 300 ms).
    if len(tensors) == 1:
        return torch.logical_not(tensors[0]).stride()
    if len(tensors) == 2:
        return torch.mul(*tensors).stride()  # logical_and, on meta tensors, has other ones
    return torch.where(tensors[0] if tensors[0].dtype == torch.bool else tensors[0].bool(), *tensors[1:3]).stride()


def tensor_of(rec: Recorder, x: Any, dtype: torch.dtype) -> Tensor:
    return x if isinstance(x, Tensor) else rec.full((), x, dtype)


def arith(rec: Recorder, name: str, a: Any, b: Any, dtype: torch.dtype | None = None, out: Any = None) -> Any:
    """A binary instruction on promoted operands, computed in `dtype` and returned in `out`."""
    dtype = dtype or result_type(a, b)
    strides = strides_of(a, b)
    a, b = cast(rec, a, dtype), cast(rec, b, dtype)
    if not isinstance(a, Tensor) and not isinstance(b, Tensor):
        a = rec.full((), a, dtype)
    made = vec(rec, name, a, b, strides=strides)
    return cast(rec, made, out) if out is not None else made


def is_literal(x: Any, value: float) -> bool:
    return isinstance(x, (bool, int, float)) and x == value


# ------------------------------------------------------------------------------------------------------------- binary


def complex_way(kind: str, rec: Recorder, *args: Any) -> Any:
    from torchfl.compose import complexes

    return getattr(complexes, kind)(rec, *args)


def _sum(rec: Recorder, name: str, a: Any, b: Any, alpha: Any) -> Any:
    if is_complex(a, b, alpha):
        return complex_way("add" if name == "vadd" else "sub", rec, a, b, alpha)
    dtype = result_type(a, b)
    if dtype == torch.bool:
        return arith(rec, "vor" if name == "vadd" else "vxor", a, b)
    if is_literal(alpha, 1):
        return arith(rec, name, a, b)
    wide = rec.opmath(dtype)
    b = cast(rec, b, wide)
    scaled = vec(rec, "vmul", b, alpha) if isinstance(b, Tensor) else b * alpha
    return arith(rec, name, a, scaled, wide, dtype)


@lower("add.Tensor", "add.Scalar", "prims.add")
def add(rec: Recorder, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _sum(rec, "vadd", a, b, alpha)


@lower("sub.Tensor", "sub.Scalar", "prims.sub")
def sub(rec: Recorder, a: Any, b: Any, alpha: Any = 1) -> Any:
    return _sum(rec, "vsub", a, b, alpha)


@lower("rsub.Tensor", "rsub.Scalar")
def rsub(rec: Recorder, a: Any, b: Any, alpha: Any = 1) -> Any:
    if is_literal(alpha, 1):
        return _sum(rec, "vsub", b, a, 1)
    return _sum(rec, "vsub", b, mul(rec, a, alpha), 1)


@lower("mul.Tensor", "mul.Scalar", "prims.mul")
def mul(rec: Recorder, a: Any, b: Any) -> Any:
    if is_complex(a, b):
        return complex_way("mul", rec, a, b)
    dtype = result_type(a, b)
    return arith(rec, "vand" if dtype == torch.bool else "vmul", a, b)


@lower("div.Tensor", "div.Scalar")
def div(rec: Recorder, a: Any, b: Any) -> Any:
    if is_complex(a, b):
        return complex_way("div", rec, a, b)
    return arith(rec, "vdiv", a, b, to_float(result_type(a, b)))


@lower("prims.div")
def prims_div(rec: Recorder, a: Any, b: Any) -> Any:
    return div(rec, a, b) if is_complex(a, b) or result_type(a, b).is_floating_point else arith(rec, "vidiv", a, b)


@lower("div.Tensor_mode", "div.Scalar_mode")
def div_mode(rec: Recorder, a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return div(rec, a, b)
    return floor_divide(rec, a, b) if rounding_mode == "floor" else trunc_divide(rec, a, b)


def trunc_divide(rec: Recorder, a: Any, b: Any) -> Any:
    dtype = result_type(a, b)
    if not dtype.is_floating_point:
        return arith(rec, "vidiv", a, b)
    wide = rec.opmath(dtype)
    return cast(rec, vec(rec, "vtrunc", arith(rec, "vdiv", a, b, wide)), dtype)


@lower("floor_divide", "floor_divide.Scalar")
def floor_divide(rec: Recorder, a: Any, b: Any) -> Any:
    dtype = result_type(a, b)
    if not dtype.is_floating_point:
        a, b = cast(rec, a, dtype), cast(rec, b, dtype)
        q, r = arith(rec, "vidiv", a, b), arith(rec, "vfmod", a, b)
        if not dtype.is_signed:
            return q
        # Division drops the fraction; the floor is one less where there is one and the signs differ.
        negative = vec(rec, "vlt", b, 0) if isinstance(b, Tensor) else bool(b < 0)
        below = vec(rec, "vand", vec(rec, "vne", r, 0), vec(rec, "vne", vec(rec, "vlt", r, 0), negative))
        return vec(rec, "vselect", below, vec(rec, "vsub", q, 1), q)
    wide = rec.opmath(dtype)
    a, b = cast(rec, a, wide), cast(rec, b, wide)
    # As CPython: the quotient of what remains after the remainder is taken off is nearly an integer, and rounding it
    # gives the exact floor where floor(a / b) is off by one.
    mod = arith(rec, "vremainder", a, b)
    quotient = arith(rec, "vdiv", a, b)
    near = vec(rec, "vround", arith(rec, "vdiv", arith(rec, "vsub", a, mod), b))
    zero = vec(rec, "vcopysign", vec(rec, "vmul", near, 0.0), quotient) if rec.has("vcopysign", wide) else near
    near = vec(rec, "vselect", vec(rec, "veq", near, 0), zero, near)
    by_zero = vec(rec, "veq", b, 0) if isinstance(b, Tensor) else rec.full((), b == 0, torch.bool)
    return cast(rec, vec(rec, "vselect", by_zero, quotient, near), dtype)


def _plain(name: str, floats: bool = False, bools: str = "") -> Callable[..., Any]:
    def run(rec: Recorder, a: Any, b: Any) -> Any:
        if is_complex(a, b):
            return NotImplemented
        dtype = result_type(a, b)
        if dtype == torch.bool and bools:
            return arith(rec, bools, a, b)
        return arith(rec, name, a, b, to_float(dtype) if floats else dtype)

    return run


for _names, _run in (
    (("maximum", "prims.maximum", "max.other"), _plain("vmax", bools="vor")),
    (("minimum", "prims.minimum", "min.other"), _plain("vmin", bools="vand")),
    (("fmod.Tensor", "fmod.Scalar", "prims.fmod"), _plain("vfmod")),
    (("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", "prims.remainder"), _plain("vremainder")),
    (("atan2", "prims.atan2"), _plain("vatan2", floats=True)),
    (("copysign.Tensor", "copysign.Scalar"), _plain("vcopysign", floats=True)),
    (("nextafter", "prims.nextafter"), _plain("vnextafter")),
    (("igamma", "special_gammainc", "prims.igamma"), _plain("vigamma")),
    (("igammac", "special_gammaincc", "prims.igammac"), _plain("vigammac")),
    (("special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar", "prims.zeta"), _plain("vzeta", True)),
    (("gcd", "prims.gcd"), _plain("vgcd")),
    (("bitwise_left_shift.Tensor", "bitwise_left_shift.Tensor_Scalar", "bitwise_left_shift.Scalar_Tensor",
      "__lshift__.Tensor", "__lshift__.Scalar", "prims.shift_left"), _plain("vshl")),
    (("bitwise_right_shift.Tensor", "bitwise_right_shift.Tensor_Scalar", "bitwise_right_shift.Scalar_Tensor",
      "__rshift__.Tensor", "__rshift__.Scalar", "prims.shift_right_arithmetic"), _plain("vshr")),
):  # fmt: skip
    lower(*_names)(_run)
for _word in ("and", "or", "xor"):
    lower(
        *(f"bitwise_{_word}.{o}" for o in ("Tensor", "Scalar", "Scalar_Tensor")),
        f"prims.bitwise_{_word}",
        f"__{_word}__.Tensor",
        f"__{_word}__.Scalar",
    )(_plain("v" + _word))


def _fpick(name: str) -> Callable[..., Any]:
    def run(rec: Recorder, a: Any, b: Any) -> Any:
        dtype = result_type(a, b)
        if not dtype.is_floating_point:
            return (
                arith(rec, name, a, b) if dtype != torch.bool else arith(rec, {"vmax": "vor"}.get(name, "vand"), a, b)
            )
        a, b = cast(rec, a, dtype), cast(rec, b, dtype)
        a, b = torch.broadcast_tensors(a, b)
        picked = vec(rec, name, a, b, strides=strides_of(a, b))
        return vec(rec, "vselect", vec(rec, "vne", a, a), b, vec(rec, "vselect", vec(rec, "vne", b, b), a, picked))

    return run


lower("fmax", "prims.fmax")(_fpick("vmax"))
lower("fmin", "prims.fmin")(_fpick("vmin"))


@lower("hypot", "prims.hypot")
def hypot(rec: Recorder, a: Tensor, b: Tensor) -> Any:
    dtype = result_type(a, b)
    wide = rec.opmath(dtype)
    strides = strides_of(a, b)
    a, b = (vec(rec, "vabs", cast(rec, x, wide)) for x in (a, b))
    big, small = vec(rec, "vmax", a, b, strides=strides), vec(rec, "vmin", a, b, strides=strides)
    ratio = vec(rec, "vdiv", small, big)
    length = vec(rec, "vmul", big, vec(rec, "vsqrt", vec(rec, "vadd", vec(rec, "vmul", ratio, ratio), 1.0)))
    flat = vec(rec, "vor", vec(rec, "veq", big, 0), vec(rec, "veq", small, math.inf))
    length = vec(rec, "vselect", flat, big, length)
    return cast(rec, vec(rec, "vselect", vec(rec, "veq", big, math.inf), big, length), dtype)


@lower("lcm", "prims.lcm")
def lcm(rec: Recorder, a: Tensor, b: Tensor) -> Any:
    g = arith(rec, "vgcd", a, b)
    safe = vec(rec, "vmax", g, 1)
    return vec(rec, "vabs", arith(rec, "vmul", arith(rec, "vidiv", a, safe, g.dtype), b, g.dtype))


@lower("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "prims.pow")
def power(rec: Recorder, a: Any, b: Any) -> Any:
    if is_complex(a, b):
        return NotImplemented
    dtype = result_type(a, b)
    if isinstance(b, Tensor):
        return arith(rec, "vpow", a, b, dtype)
    # An exponent is a constant of the model far more often than a number that changes: worth a program of its own.
    b = value_of(b, bake=True)
    if b in (1, 0):
        return cast(rec, rec.full(a.shape, 1, dtype) if b == 0 else a, dtype)
    if not dtype.is_floating_point and b < 0:
        raise RuntimeError("Integers to negative integer powers are not allowed.")
    wide = rec.opmath(dtype)
    x = cast(rec, a, wide)
    strides = strides_of(a)
    if b in (2, 3):
        square = vec(rec, "vmul", x, x, strides=strides)
        made = square if b == 2 else vec(rec, "vmul", square, x, strides=strides)
    elif b == 0.5:
        made = vec(rec, "vsqrt", x, strides=strides)
    elif b == -1:
        made = vec(rec, "vdiv", 1.0, x, strides=strides)
    elif b == -0.5:
        made = vec(rec, "vrsqrt", x, strides=strides)
    elif b == -2:
        made = vec(rec, "vdiv", 1.0, vec(rec, "vmul", x, x, strides=strides))
    else:
        made = vec(rec, "vpow", x, b, strides=strides)
    return cast(rec, made, dtype)


def _compare(name: str) -> Callable[..., Any]:
    def run(rec: Recorder, a: Any, b: Any) -> Any:
        if is_complex(a, b):
            return complex_way(name[1:], rec, a, b)
        return arith(rec, name, a, b)

    return run


for _word in ("eq", "ne", "lt", "le", "gt", "ge"):
    lower(f"{_word}.Tensor", f"{_word}.Scalar", f"prims.{_word}")(_compare("v" + _word))


def as_bool(rec: Recorder, x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        return ne_zero(rec, x)
    return cast(rec, x, torch.bool)


def ne_zero(rec: Recorder, x: Tensor) -> Tensor:
    made = complex_way("ne", rec, x, 0)
    assert isinstance(made, Tensor)
    return made


for _word in ("and", "or", "xor"):

    def _logical(rec: Recorder, a: Tensor, b: Tensor, _name: str = "v" + _word) -> Any:
        return arith(rec, _name, as_bool(rec, a), as_bool(rec, b), torch.bool)

    lower(f"logical_{_word}")(_logical)


@lower("logical_not")
def logical_not(rec: Recorder, x: Tensor) -> Any:
    return vec(rec, "vnot", as_bool(rec, x), strides=strides_of(x))
