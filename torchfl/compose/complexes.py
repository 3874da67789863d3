"""Complex numbers as pairs: instructions see the real and the imaginary parts as strided views.

Contract: results are new complex values. Parts of a real tensor or number: the number itself and 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfl.compose.numbers import is_open, value_of
from torchfl.compose.recorder import NotComposable, Recorder
from torchfl.compose.vector import broadcast, cast, vec

_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
_COMPLEX = {v: k for k, v in _REAL.items()}


def parts(x: Any) -> tuple[Any, Any]:
    if isinstance(x, Tensor) and x.dtype.is_complex:
        both = torch.view_as_real(x)
        return both.select(-1, 0), both.select(-1, 1)
    if isinstance(x, complex):
        return x.real, x.imag
    return x, 0.0


def join(rec: Recorder, re: Any, im: Any, dtype: torch.dtype) -> Tensor:
    shapes = [x.shape for x in (re, im) if isinstance(x, Tensor)]
    made = rec.empty(broadcast(shapes), dtype)
    both = torch.view_as_real(made)
    for i, x in enumerate((re, im)):
        part = both.select(-1, i)
        if made.numel() == 0:
            continue
        if not isinstance(x, Tensor):
            x = rec.full(part.shape, x, part.dtype)
        x = cast(rec, x, part.dtype)
        rec.step_into("uba::copy_nd", [{"value": rec.value(x, part.shape)}], part)
    rec.versions.pop(rec.base(made), None)
    return made


def _operands(rec: Recorder, *operands: Any) -> tuple[torch.dtype, list[tuple[Any, Any]]]:
    kinds = [x for x in operands if x is not None]
    dtype = torch.result_type(value_of(kinds[0]), value_of(kinds[-1]))
    for x in kinds:
        dtype = torch.promote_types(dtype, torch.result_type(value_of(x), value_of(kinds[0])))
    if not dtype.is_complex:
        raise NotComposable("no complex operand")
    real = _REAL[dtype]
    return dtype, [tuple(cast(rec, p, real) for p in parts(x)) for x in kinds]


def _op(rec: Recorder, name: str, a: Any, b: Any) -> Any:
    """An instruction on parts, either of which may be a number."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        if name in ("vadd", "vsub") and not isinstance(b, Tensor) and not is_open(b) and b == 0:
            return a
        if name == "vadd" and not isinstance(a, Tensor) and not is_open(a) and a == 0:
            return b
        if name == "vmul" and any(not isinstance(x, Tensor) and not is_open(x) and x == 0 for x in (a, b)):
            return 0.0
        return vec(rec, name, a, b)
    return {"vadd": a + b, "vsub": a - b, "vmul": a * b}[name]


def _scaled(rec: Recorder, pair: tuple[Any, Any], by: Any) -> tuple[Any, Any]:
    if not isinstance(by, complex) and not is_open(by) and by == 1:
        return pair
    return _times(rec, pair, parts(by))


def _times(rec: Recorder, a: tuple[Any, Any], b: tuple[Any, Any]) -> tuple[Any, Any]:
    re = _op(rec, "vsub", _op(rec, "vmul", a[0], b[0]), _op(rec, "vmul", a[1], b[1]))
    im = _op(rec, "vadd", _op(rec, "vmul", a[0], b[1]), _op(rec, "vmul", a[1], b[0]))
    return re, im


def add(rec: Recorder, a: Any, b: Any, alpha: Any = 1) -> Tensor:
    dtype, (x, y) = _operands(rec, a, b)
    y = _scaled(rec, y, alpha)
    return join(rec, _op(rec, "vadd", x[0], y[0]), _op(rec, "vadd", x[1], y[1]), dtype)


def sub(rec: Recorder, a: Any, b: Any, alpha: Any = 1) -> Tensor:
    dtype, (x, y) = _operands(rec, a, b)
    y = _scaled(rec, y, alpha)
    return join(rec, _op(rec, "vsub", x[0], y[0]), _op(rec, "vsub", x[1], y[1]), dtype)


def mul(rec: Recorder, a: Any, b: Any) -> Tensor:
    dtype, (x, y) = _operands(rec, a, b)
    return join(rec, *_times(rec, x, y), dtype)


def div(rec: Recorder, a: Any, b: Any) -> Tensor:
    dtype, (x, y) = _operands(rec, a, b)
    if not isinstance(b, complex) and not (isinstance(b, Tensor) and b.dtype.is_complex):
        re, im = (_op2(rec, "vdiv", p, y[0]) for p in x)
        return join(rec, re, im, dtype)
    # Scaled by the greater part of the divisor, so that squares cannot overflow.
    size = _op2(rec, "vmax", _abs(rec, y[0]), _abs(rec, y[1]))
    yr, yi = _op2(rec, "vdiv", y[0], size), _op2(rec, "vdiv", y[1], size)
    norm = _op2(rec, "vmul", _op(rec, "vadd", _op(rec, "vmul", yr, yr), _op(rec, "vmul", yi, yi)), size)
    re, im = _times(rec, x, (yr, vec(rec, "vneg", yi) if isinstance(yi, Tensor) else -yi))
    return join(rec, _op2(rec, "vdiv", re, norm), _op2(rec, "vdiv", im, norm), dtype)


def _op2(rec: Recorder, name: str, a: Any, b: Any) -> Any:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return vec(rec, name, a, b)
    return {"vdiv": lambda: a / b, "vmax": lambda: max(a, b), "vmul": lambda: a * b}[name]()


def _abs(rec: Recorder, x: Any) -> Any:
    return vec(rec, "vabs", x) if isinstance(x, Tensor) else abs(x)


def neg(rec: Recorder, x: Tensor) -> Tensor:
    return torch.view_as_complex(vec(rec, "vneg", torch.view_as_real(x)))


def conj(rec: Recorder, x: Tensor) -> Tensor:
    re, im = parts(x)
    return join(rec, re, vec(rec, "vneg", im), x.dtype)


def absolute(rec: Recorder, x: Tensor) -> Tensor:
    from torchfl.compose.lower_pointwise import hypot

    made = hypot(rec, *parts(x))
    assert isinstance(made, Tensor)
    return made


def sgn(rec: Recorder, x: Tensor) -> Tensor:
    size = absolute(rec, x)
    safe = vec(rec, "vselect", vec(rec, "veq", size, 0), rec.full((), 1, size.dtype), size)
    re, im = (vec(rec, "vdiv", p, safe) for p in parts(x))
    return join(rec, re, im, x.dtype)


def isnan(rec: Recorder, x: Tensor) -> Tensor:
    re, im = parts(x)
    return vec(rec, "vor", vec(rec, "vne", re, re), vec(rec, "vne", im, im))


def where(rec: Recorder, cond: Tensor, a: Any, b: Any) -> Tensor:
    dtype, (x, y) = _operands(rec, a, b)
    real = _REAL[dtype]
    picked = [
        vec(rec, "vselect", cond, p if isinstance(p, Tensor) else rec.full((), p, real), q)
        for p, q in zip(x, y, strict=True)
    ]
    return join(rec, picked[0], picked[1], dtype)


def eq(rec: Recorder, a: Any, b: Any) -> Tensor:
    _, (x, y) = _operands(rec, a, b)
    return vec(rec, "vand", *(vec(rec, "veq", p, q) for p, q in zip(x, y, strict=True)))


def ne(rec: Recorder, a: Any, b: Any) -> Tensor:
    _, (x, y) = _operands(rec, a, b)
    return vec(rec, "vor", *(vec(rec, "vne", p, q) for p, q in zip(x, y, strict=True)))


def cast_complex(rec: Recorder, x: Tensor, dtype: torch.dtype) -> Tensor:
    re, im = parts(x)
    if not dtype.is_complex:
        if dtype == torch.bool:
            return ne(rec, x, 0)
        made = cast(rec, re, dtype)
        assert isinstance(made, Tensor)
        return made
    return join(rec, re, im, dtype)


def product(rec: Recorder, a: Tensor, b: Tensor) -> Tensor:
    from torchfl.compose.lower_reduce import product as real_product

    (ar, ai), (br, bi) = parts(a), parts(b)
    re = vec(rec, "vsub", real_product(rec, ar, br), real_product(rec, ai, bi))
    im = vec(rec, "vadd", real_product(rec, ar, bi), real_product(rec, ai, br))
    return join(rec, re, im, a.dtype)


def exp(rec: Recorder, x: Tensor) -> Tensor:
    re, im = parts(x)
    size = vec(rec, "vexp", re)
    return join(
        rec, vec(rec, "vmul", size, vec(rec, "vcos", im)), vec(rec, "vmul", size, vec(rec, "vsin", im)), x.dtype
    )


def angle(rec: Recorder, x: Tensor) -> Tensor:
    re, im = parts(x)
    return vec(rec, "vatan2", im, re)


def log(rec: Recorder, x: Tensor) -> Tensor:
    return join(rec, vec(rec, "vlog", absolute(rec, x)), angle(rec, x), x.dtype)


def polar(rec: Recorder, size: Tensor, turn: Tensor) -> Tensor:
    re, im = (vec(rec, "vmul", size, vec(rec, n, turn)) for n in ("vcos", "vsin"))
    return join(rec, re, im, _COMPLEX[size.dtype])
