"""Vector instructions: broadcasting, immediates, dtypes that the chip lacks, and what to do without an instruction.

Contract: operands of one call have one dtype, or are numbers; the result has their broadcast sizes. Where the chip
lacks the instruction in that dtype, it is computed in a wider one or by others (`_ALTERNATIVES`); else NotComposable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.instructions import INSTRUCTIONS
from torchfl.compose.numbers import is_open, value_of
from torchfl.compose.recorder import NotComposable, Recorder, dtype_name

_WIDER = {
    torch.float16: (torch.float32,),
    torch.bfloat16: (torch.float32,),
    torch.float32: (torch.float64,),
    torch.uint8: (torch.int16, torch.int32, torch.int64),
    torch.int8: (torch.int16, torch.int32, torch.int64),
    torch.int16: (torch.int32, torch.int64),
    torch.int32: (torch.int64,),
    torch.bool: (torch.uint8, torch.int8, torch.int32, torch.int64, torch.float32, torch.float16),
}
_RESULT_BOOL = frozenset(i.name for i in INSTRUCTIONS.values() if i.result == "bool")


def broadcast(shapes: Sequence[torch.Size]) -> torch.Size:
    first = shapes[0]
    if all(s == first for s in shapes):
        return first
    rank = max(map(len, shapes))
    sizes = [1] * rank
    for shape in shapes:
        for d, n in enumerate(shape, rank - len(shape)):
            if n != 1:
                if sizes[d] not in (1, n):
                    raise ValueError(f"sizes {shapes} do not broadcast")
                sizes[d] = n
    return torch.Size(sizes)


def _strides(tensors: Sequence[Tensor], sizes: torch.Size) -> Sequence[int] | None:
    """The layout of the result: that of the operands if they agree on a dense one, else contiguous."""
    full = [t for t in tensors if t.shape == sizes]
    if not full or full[0].is_contiguous():
        return None
    strides = full[0].stride()
    if all(t.stride() == strides for t in full) and torch._prims_common.is_non_overlapping_and_dense_or_false(full[0]):
        return strides
    return None


def vec(rec: Recorder, name: str, *operands: Any, strides: Sequence[int] | None = None) -> Tensor:
    """Runs a vector instruction. Numbers among the operands stay immediates."""
    tensors = [x for x in operands if isinstance(x, Tensor)]
    values = tensors[1:] if name == "vselect" else tensors
    dtype = values[0].dtype if values else None
    assert dtype is not None and all(t.dtype == dtype for t in values), (name, [t.dtype for t in tensors])
    if dtype.is_complex:
        raise NotComposable(f"{name} of complex numbers")
    sizes = broadcast([t.shape for t in tensors])
    kept = list(operands)
    if len(tensors) > 1 and name != "vselect":
        for i, x in enumerate(operands):
            number = rec.fill_of(x) if isinstance(x, Tensor) else None
            if number is not None and sum(isinstance(k, Tensor) for k in kept) > 1:
                kept[i] = number
    elif name == "vselect":
        for i in (1, 2):
            number = rec.fill_of(kept[i]) if isinstance(kept[i], Tensor) else None
            if number is not None and sum(isinstance(k, Tensor) for k in kept[1:]) > 1:
                kept[i] = number
    if not rec.has(name, dtype):
        return _otherwise(rec, name, dtype, kept, sizes)
    args: list[Any] = [
        {"value": rec.value(x, sizes)} if isinstance(x, Tensor) else rec.literal(_immediate(x, dtype)) for x in kept
    ]
    if strides is None:
        strides = _strides(tensors, sizes)
    out = torch.bool if name in _RESULT_BOOL else dtype
    if len(sizes) > rec.target.max_rank:
        return _collapsed(rec, name, kept, sizes, dtype, out)
    return rec.step("uba::" + name, args, [(sizes, out, strides)])[0]


def _immediate(x: Any, dtype: torch.dtype) -> Any:
    if is_open(x):
        return x
    if isinstance(x, complex):
        raise NotComposable("a complex number")
    return bool(x) if dtype == torch.bool else float(x) if dtype.is_floating_point else int(x)


def _collapsed(
    rec: Recorder, name: str, operands: list[Any], sizes: torch.Size, dtype: torch.dtype, out: torch.dtype
) -> Tensor:
    """Runs the instruction on fewer dimensions: neighbours that every operand walks through evenly become one."""
    views = [rec.program.values[rec.value(x, sizes)] if isinstance(x, Tensor) else None for x in operands]
    groups: list[list[int]] = []
    for d, n in enumerate(sizes):
        if n == 1:
            continue
        last = groups[-1] if groups else None
        if last and all(v is None or v.strides[last[-1]] == v.strides[d] * n for v in views):
            last.append(d)
        else:
            groups.append([d])
    if len(groups) > rec.target.max_rank:
        raise NotComposable(f"{name} of rank {len(groups)} (at most {rec.target.max_rank})")
    short = [math.prod(sizes[d] for d in g) for g in groups]
    narrow = [
        x if v is None else torch.as_strided(x, short, [v.strides[g[-1]] for g in groups], v.offset)
        for x, v in zip(operands, views, strict=True)
    ]
    made = rec.empty(sizes, out)
    window = made.view(short)
    args = [{"value": rec.value(x)} if isinstance(x, Tensor) else rec.literal(_immediate(x, dtype)) for x in narrow]
    rec.step_into("uba::" + name, args, window)
    rec.versions.pop(rec.base(made), None)
    return made


def cast(rec: Recorder, x: Any, dtype: torch.dtype) -> Any:
    """x in another dtype. Numbers pass: an immediate is converted by the instruction that reads it."""
    if not isinstance(x, Tensor) or x.dtype == dtype:
        return x
    number = rec.fill_of(x)
    if number is not None and not dtype.is_complex and not is_open(number) and math.isfinite(number):
        if x.dtype.is_floating_point:
            number = torch.tensor(number, dtype=x.dtype).item()
        return rec.full(x.shape, number, dtype)
    if x.device.type != "meta":
        return rec.constant(x.to(dtype))
    if x.dtype.is_complex or dtype.is_complex:
        from torchfl.compose.complexes import cast_complex

        return cast_complex(rec, x, dtype)
    ident = rec.value(x)
    wide = rec.narrowed_from.get(ident)
    if wide is not None and wide.dtype == dtype and rec.program.values[ident].base not in rec.versions:
        return wide
    if rec.has("vcast", x.dtype, dtype):
        strides = None if x.is_contiguous() else _strides([x], x.shape)
        if len(x.shape) > rec.target.max_rank and x.is_contiguous():
            return cast(rec, x.reshape(-1), dtype).view(x.shape)
        args = [{"value": ident}, {"dtype": dtype_name(dtype)}]
        made = rec.step("uba::vcast", args, [(x.shape, dtype, strides)])[0]
    elif dtype == torch.bool:
        made = vec(rec, "vne", x, 0)
    elif x.dtype == torch.bool and rec.has("vselect", dtype):
        args = [{"value": ident}, rec.literal(_immediate(1, dtype)), rec.literal(_immediate(0, dtype))]
        made = rec.step("uba::vselect", args, [(x.shape, dtype, _strides([x], x.shape))])[0]
    else:
        for middle in (torch.float32, torch.int32):
            possible = middle not in (x.dtype, dtype) and _exact(x.dtype, middle)
            if possible and rec.has("vcast", x.dtype, middle) and rec.has("vcast", middle, dtype):
                return cast(rec, cast(rec, x, middle), dtype)
        raise NotComposable(f"no vcast from {dtype_name(x.dtype)} to {dtype_name(dtype)}")
    if _exact(x.dtype, dtype) and rec.program.values[ident].base not in rec.versions:
        rec.narrowed_from[rec.value(made)] = x
    return made


def _exact(narrow: torch.dtype, wide: torch.dtype) -> bool:
    """Whether every value of the one is a value of the other."""
    if narrow == torch.bool:
        return True
    if narrow.is_floating_point:
        return wide.is_floating_point and wide.itemsize > narrow.itemsize
    if wide.is_floating_point:
        return narrow.itemsize * 8 <= {2: 8, 4: 16, 8: 32}[wide.itemsize]
    return wide.itemsize > narrow.itemsize and not (narrow.is_signed and not wide.is_signed)


def _otherwise(rec: Recorder, name: str, dtype: torch.dtype, operands: list[Any], sizes: torch.Size) -> Tensor:
    result: Any = NotImplemented
    if name not in rec.trying:
        rec.trying.append(name)  # vne by veq by vne ...
        for alternative in _ALTERNATIVES.get(name, ()):
            if result is NotImplemented:
                result = rec.need(lambda f=alternative: f(rec, *operands))  # type: ignore[misc]
        rec.trying.pop()
    if (result is NotImplemented and name not in ("vnot", "vshl", "vshr")) or dtype == torch.bool:
        for wide in _WIDER.get(dtype, ()):
            if result is NotImplemented and rec.has(name, wide):
                result = rec.need(lambda w=wide: _widened(rec, name, dtype, w, operands))  # type: ignore[misc]
    if result is NotImplemented:
        raise NotComposable(f"no {name} for {dtype_name(dtype)}")
    assert isinstance(result, Tensor)
    return result.expand(sizes) if result.shape != sizes else result


def _widened(rec: Recorder, name: str, dtype: torch.dtype, wide: torch.dtype, operands: list[Any]) -> Tensor:
    first = 1 if name == "vselect" else 0
    result = vec(rec, name, *operands[:first], *(cast(rec, x, wide) for x in operands[first:]))
    return result if name in _RESULT_BOOL else cast(rec, result, dtype)


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


_ALTERNATIVES: dict[str, tuple[Callable[..., Any], ...]] = {
    "vgt": (_swap("vlt"),),
    "vlt": (_swap("vgt"),),
    "vge": (_swap("vle"),),
    "vle": (_swap("vge"),),
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
    "vmax": (_opposite("vmin"), _max_by_compare("vmax", "vgt")),
    "vmin": (_opposite("vmax"), _max_by_compare("vmin", "vlt")),
    "vceil": (_floor_from("vfloor"),),
    "vfloor": (_floor_from("vceil"),),
    "vremainder": (_remainder,),
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
