"""Whether a result of the device is right.

Contract: `differences` compares nested results with the CPU's in the same dtype (which says the shapes and dtypes) and
with the CPU's in double precision (which says the values), and returns text that says what was expected, or None. A
value may differ from double precision by

    a few units of its dtype's rounding,
  + for operators that accumulate n elements, 4 sqrt(n) roundings of the largest of them,
  + 4 times what the CPU itself is off there, and typically in the tensor,

so the device is measured by the CPU where a problem is ill-conditioned, and by the rounding alone where it is not. It
is right too if it is within the first two of what the CPU computes in the same dtype: where double precision falls to
another side of a step (floor, remainder, a comparison), the CPU's side is as good.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

#: The width of one rounding.
EPS = {
    torch.float16: 2.0**-10,
    torch.bfloat16: 2.0**-7,
    torch.float32: 2.0**-23,
    torch.float64: 2.0**-52,
    torch.complex32: 2.0**-10,
    torch.complex64: 2.0**-23,
    torch.complex128: 2.0**-52,
}
#: How many of them any operator may be off: half precision is computed in single and rounded, so hardly more than one.
UNITS = {torch.float16: 2.0, torch.bfloat16: 2.0, torch.complex32: 2.0}
OTHER_UNITS = 16.0
#: How many times larger than the largest result the terms of a sum may be for their rounding to be allowed: where terms
#: cancel further, what the CPU is off says so.
_TERMS = 4.0
#: Sums of half precision are kept in single.
ACCUMULATED_IN = {torch.float16: torch.float32, torch.bfloat16: torch.float32, torch.complex32: torch.complex64}


@dataclass
class Measure:
    """How exact a comparison is: the dtype computed in, how many elements are summed up (0: elementwise), the largest
    of them, and how many roundings the operator may be off if more than most."""

    dtype: torch.dtype
    accumulated: int = 0
    largest: float = 1.0
    units: float = 0.0


def differences(got: Any, same: Any, wide: Any, measure: Measure) -> str | None:
    """What is wrong with `got`; None if nothing. All on the CPU. `same` is what the CPU gives in the same dtype, `wide`
    in a wider one; either may be None, not both."""
    mine = tree_flatten(got)[0]
    first, second = (tree_flatten(tree)[0] if tree is not None else None for tree in (same, wide))
    known = first if first is not None else second
    assert known is not None
    if len(mine) != len(known):
        return f"{len(mine)} results, expected {len(known)}"
    if second is not None and len(second) != len(known):
        second = None
    for i, value in enumerate(mine):
        where = f"result {i}: " if len(mine) > 1 else ""
        wrong = _leaf(value, first[i] if first else None, second[i] if second else None, measure)
        if wrong is not None:
            return where + wrong
    return None


def _leaf(got: Any, same: Any, wide: Any, measure: Measure) -> str | None:
    known = same if same is not None else wide
    if not isinstance(known, torch.Tensor):
        if isinstance(got, float) and isinstance(known, float):
            made = [torch.tensor(v, dtype=torch.float64) if v is not None else None for v in (got, same, wide)]
            return _values(made[0], made[1], made[2], measure)
        return None if got == known or (wide is not None and got == wide) else f"{got}, expected {known}"
    if not isinstance(got, torch.Tensor):
        return f"{type(got).__name__}, expected a tensor"
    if got.shape != known.shape:
        return f"shape {list(got.shape)}, expected {list(known.shape)}"
    if same is not None and got.dtype != same.dtype:
        return f"dtype {_name(got.dtype)}, expected {_name(same.dtype)}"
    if got.layout != known.layout:
        return f"layout {got.layout}, expected {known.layout}"
    if got.layout != torch.strided:
        got, same, wide = (t.to_dense() if t is not None else None for t in (got, same, wide))
    if got.numel() == 0:
        return None
    if wide is not None and (wide.shape != got.shape or wide.is_complex() != got.is_complex()):
        wide = None
    return _values(got, same, wide, measure)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _values(got: Any, same: Any, wide: Any, measure: Measure) -> str | None:
    got, same, wide = (t.resolve_conj().resolve_neg() if t is not None else None for t in (got, same, wide))
    if not (got.is_floating_point() or got.is_complex()):
        return _exact(got, same if same is not None else wide, wide)
    work = torch.complex128 if got.is_complex() else torch.float64
    # A float64 result of a float32 call (x.double(), softmax(dtype=...)) carries the error of what it was made of.
    base = measure.dtype if measure.dtype in EPS else torch.float32
    coarse = max((base, got.dtype), key=lambda d: EPS[d])
    eps = EPS[coarse]
    mine = got.to(work)
    limit = torch.finfo(got.dtype).max
    references = [_overflown(t.to(work), limit, eps) for t in (wide, same) if t is not None]
    best = references[0]
    magnitude = best.abs().nan_to_num(0, 0, 0)
    scale = float(magnitude.max())
    units = max(UNITS.get(coarse, OTHER_UNITS), measure.units)
    allowed = units * eps * magnitude
    if measure.accumulated:
        fine = EPS[ACCUMULATED_IN.get(coarse, coarse)]
        allowed = allowed + 4 * fine * measure.accumulated**0.5 * max(scale, min(measure.largest, _TERMS * scale))
    allowed = allowed + units / 8 * eps * min(scale, 1.0) + torch.finfo(coarse).tiny
    own = torch.zeros_like(magnitude)
    if len(references) == 2:
        own = (references[1] - best).abs().nan_to_num(0, 0, 0)
        own = 4 * own + 4 * _noise(own, scale, eps, measure)
    right = _close(mine, best, allowed + own)
    for other in references[1:]:
        right = right | _close(mine, other, allowed)
    if bool(right.all()):
        return None
    wrong = int((~right).sum())
    at = [int(i) for i in (~right).nonzero()[0]]
    place = tuple(at)
    expected = f"{_number(best[place])}"
    if len(references) == 2 and _number(references[1][place]) != expected:
        expected += f" (CPU in {_name(same.dtype)}: {_number(references[1][place])})"
    tolerance = float((allowed + own)[place])
    where = f" at {at}" if at else ""
    return (
        f"{wrong} of {got.numel()} values wrong in {_name(got.dtype)}{list(got.shape)}: "
        f"{_number(mine[place])}{where}, expected {expected}, within {tolerance:.2g}"
    )


def _noise(own: torch.Tensor, scale: float, eps: float, measure: Measure) -> torch.Tensor:
    """What the CPU is typically off: in the middle element of an elementwise result, in the worst where elements depend
    on many inputs; there, what is a step rather than a rounding is left out."""
    if not measure.accumulated:
        return 2 * own.median()
    small = own[own <= eps**0.5 * max(scale, measure.largest)]
    return small.max() if small.numel() else own.median()


def _number(value: torch.Tensor) -> str:
    item = value.item()
    return f"{item:.6g}"


def _overflown(reference: torch.Tensor, limit: float, eps: float) -> torch.Tensor:
    """What overflows in the narrow dtype is right as infinity."""
    if reference.is_complex():
        return reference
    return torch.where(reference.abs() > limit * (1 + eps), reference.sign() * torch.inf, reference)


def _close(mine: torch.Tensor, reference: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    same = (mine == reference) | (torch.isnan(mine) & torch.isnan(reference))
    return same | ((mine - reference).abs() <= allowed)


def _exact(got: torch.Tensor, same: torch.Tensor, wide: torch.Tensor | None) -> str | None:
    right = got == same
    if wide is not None and wide.shape == got.shape:
        right = right | (got == wide)
    if bool(right.all()):
        return None
    at = [int(i) for i in (~right).nonzero()[0]]
    place = tuple(at)
    return (
        f"{int((~right).sum())} of {got.numel()} values wrong in {_name(got.dtype)}{list(got.shape)}: "
        f"{got[place].item()}{f' at {at}' if at else ''}, expected {same[place].item()}"
    )
