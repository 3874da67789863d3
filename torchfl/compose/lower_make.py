"""Factories and random numbers as instructions.

Contract: as lower_pointwise.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.lower_data import iota, sort
from torchfl.compose.lower_pointwise import arith, is_literal, lower
from torchfl.compose.numbers import value_of
from torchfl.compose.recorder import NotComposable, Recorder, dtype_name
from torchfl.compose.vector import cast, vec


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


@lower("range", "range.step")
def range_(rec: Recorder, start: Any, end: Any, step: Any = 1, *, dtype: torch.dtype | None = None, **_: Any) -> Any:
    start, end, step = (value_of(x, bake=True) for x in (start, end, step))
    if step == 0 or (end - start) / step < 0:
        raise NotComposable("a range that does not reach its end")
    return iota(rec, int((end - start) / step) + 1, start, step, _default(dtype))


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
    if wide != dtype:  # rounding up would give 1: drop what the narrow dtype has no bits for
        bits = 2.0 ** (11 if dtype == torch.float16 else 8)
        made = vec(rec, "vmul", vec(rec, "vfloor", vec(rec, "vmul", made, bits)), 1 / bits)
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


def bounds_within(low: int, high: int, dtype: torch.dtype) -> tuple[int, int]:
    """The bounds of [low, high) moved inwards, so that no integer between them becomes `high` when it is rounded to a
    floating dtype: as PyTorch moves them (update_from and update_to in ATen/native/DistributionTemplates.h)."""
    if not dtype.is_floating_point:
        return low, high

    def rounded(value: int) -> int:
        return int(torch.tensor(value, dtype=torch.float64).to(dtype).item())

    def step(value: int) -> int:  # between neighbouring numbers of the dtype
        return max(1, int(2 ** (abs(value).bit_length()) * torch.finfo(dtype).eps / 2))

    above, below = rounded(low + 1), rounded(high - 1)
    return (above + step(low + 1) if above < low else low), (below - step(high - 1) if below >= high else high)


def integers(rec: Recorder, sizes: Sequence[int], low: int, high: int, dtype: torch.dtype) -> Tensor:
    low, high = bounds_within(low, high, dtype)
    if not (low < high and high - low < 1 << 63):  # PyTorch's CPU refuses the one, and can do the other
        raise NotComposable(f"random integers from {low} to {high}")
    bits = vec(rec, "vremainder", random_bits(rec, sizes), high - low)
    if dtype.is_complex:
        raise NotComposable("random complex integers")
    return cast(rec, vec(rec, "vadd", bits, low) if low else bits, dtype)


def _default(dtype: torch.dtype | None) -> torch.dtype:
    return dtype or torch.get_default_dtype()


lower("rand", "rand.generator")(lambda rec, sizes, dtype=None, **_: uniform(rec, sizes, _default(dtype)))
lower("randn", "randn.generator")(lambda rec, sizes, dtype=None, **_: normal(rec, sizes, _default(dtype)))
lower("rand_like")(lambda rec, x, dtype=None, **_: uniform(rec, x.shape, dtype or x.dtype))
lower("randn_like")(lambda rec, x, dtype=None, **_: normal(rec, x.shape, dtype or x.dtype))
lower("randint", "randint.generator")(
    lambda rec, high, sizes, dtype=None, **_: integers(rec, sizes, 0, value_of(high, True), dtype or torch.int64)
)
lower("randint.low", "randint.low_generator")(
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
lower("randperm", "randperm.generator")(
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
