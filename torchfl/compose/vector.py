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
from torchfl.compose.numbers import is_open
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
_ALTERNATIVES: dict[str, tuple[Callable[..., Any], ...]] = {}
"""What stands in for an instruction, the best first. Filled by alternatives.py."""
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
    result: Any = _by_kernel(rec, name, dtype, operands)
    if result is NotImplemented and name not in rec.trying:
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


_aten = torch.ops.aten
_KERNELS = {
    "vadd": _aten.add.Tensor,
    "vsub": _aten.sub.Tensor,
    "vmul": _aten.mul.Tensor,
    "vdiv": _aten.div.Tensor,
    "vmax": _aten.maximum.default,
    "vmin": _aten.minimum.default,
    "vselect": _aten.where.self,
    **{
        f"v{n}": getattr(_aten, n).default
        for n in ["neg", "abs", "floor", "ceil", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "erf"]
    },
}


def _by_kernel(rec: Recorder, name: str, dtype: torch.dtype, operands: list[Any]) -> Any:
    """By a kernel that the chip has for the operator of the same meaning."""
    op = _KERNELS.get(name)
    if op is None or op is rec.root or not all(isinstance(x, Tensor) for x in operands):
        return NotImplemented
    return rec.native(op, operands, {}) if rec.target.native(op, operands, {}) else NotImplemented


def _widened(rec: Recorder, name: str, dtype: torch.dtype, wide: torch.dtype, operands: list[Any]) -> Tensor:
    first = 1 if name == "vselect" else 0
    result = vec(rec, name, *operands[:first], *(cast(rec, x, wide) for x in operands[first:]))
    return result if name in _RESULT_BOOL else cast(rec, result, dtype)
