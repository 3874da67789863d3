"""Every instruction of the OpenCL adapter against its definition, computed in double precision: contiguous, strided,
broadcast, with an immediate, of one element and of none."""

from __future__ import annotations

import functools
import math
from typing import Any

import pytest
import torch
from opencl_support import Adapter, missing

from torchfl.compose.instructions import INSTRUCTIONS, Instruction

SIZES = (3, 4, 19)
SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -2.0, 1e-4, 60.0, -7.5, 2.0]
#: Units in the last place that a result may be off by: two, and the rounding to the dtype.
UNITS = {torch.float32: 2.5, torch.float16: 0.51, torch.bfloat16: 0.51, torch.float64: 8}
#: Each dtype is a kernel that has to be compiled: beside float32 one more of the instruction's dtypes, in turn.
ALWAYS = ("float32", "bool")


@functools.cache
def adapter() -> Adapter:
    return Adapter().open()


def dtypes_of(instruction: Instruction) -> list[str]:
    allowed = [d for d in instruction.allowed if not (instruction.name == "vnextafter" and d.endswith("16"))]
    turn = list(INSTRUCTIONS).index(instruction.name)
    others = [d for d in allowed if d not in ALWAYS]
    picked = {others[(turn + k) % len(others)] for k in (0,)} if others else set()
    return [d for d in allowed if d in ALWAYS or d in picked]


def values(sizes: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(sizes, generator=generator, dtype=torch.float64) * 8 - 4
    if dtype.is_floating_point:
        flat = x.flatten()
        n = min(len(SPECIAL), flat.numel())
        flat[torch.randperm(flat.numel(), generator=generator)[:n]] = torch.tensor(SPECIAL, dtype=torch.float64)[:n]
        return flat.view(sizes).to(dtype)
    return (x > 0) if dtype == torch.bool else (x * 3).round().to(torch.int64).to(dtype)


def arguments(i: Instruction, dtype: torch.dtype, sizes: tuple[int, ...], make: Any) -> list[Any]:
    dim = len(sizes) - 1 - (1 if len(sizes) > 1 else 0)
    made: list[Any] = []
    for k, name in enumerate(i.positions):
        if name == "cond":
            made.append(make(sizes, torch.bool, k))
        elif name == "index":
            longest = sizes[dim] if sizes else 1
            made.append(torch.randint(0, max(longest, 1), sizes, generator=torch.Generator().manual_seed(5)))
        elif i.name == "matmul":
            made.append(make([(4, 5), (5, 3)][k], dtype, k))
        elif name in ("x", "a", "b", "src"):
            made.append(make(sizes, dtype, k))
        else:
            made.append({"dim": dim, "dims": [dim], "keepdim": False, "descending": True, "n": 21, "start": 3, "step": 2,
                         "sizes": list(sizes), "seed": 7, "offset": 1 << 33, "value": 5,
                         "dtype": dtype}[name])  # fmt: skip
    return made


def reference(i: Instruction, args: list[Any], dtype: torch.dtype) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The results by the definition, and in double precision where the values are rounded."""
    plain = i.reference(*args)
    plain = list(plain) if isinstance(plain, tuple) else [plain]
    if not dtype.is_floating_point or i.family in ("Random", "random", "iota", "fill", "sort", "cast"):
        return plain, plain
    wide = i.reference(*(a.double() if isinstance(a, torch.Tensor) and a.dtype == dtype else a for a in args))
    return plain, list(wide) if isinstance(wide, tuple) else [wide]


def close(got: torch.Tensor, plain: torch.Tensor, wide: torch.Tensor, i: Instruction) -> None:
    assert got.dtype == plain.dtype and got.shape == plain.shape
    if not got.dtype.is_floating_point or i.name == "vnextafter" or "random" in i.name:
        torch.testing.assert_close(got, plain, rtol=0, atol=0, equal_nan=True)
        return
    exact, limit = wide.double(), torch.finfo(got.dtype)
    units = UNITS[got.dtype] * (
        4 if i.family in ("reduce", "scan", "matmul", "vector special") or i.name in HARD else 1
    )
    least = limit.eps if i.name in HARD else limit.tiny
    unit = torch.maximum(exact.abs() * limit.eps, torch.tensor(least, dtype=torch.float64))
    off = (got.double() - exact).abs()
    exact = exact.to(got.dtype).double()  # what overflows does so
    fine = (off <= units * unit) | (got.double() == exact) | (got.isnan() & exact.isnan())
    assert fine.all(), (i.name, got.dtype, got[~fine][:5], exact[~fine][:5], (off / unit)[~fine][:5])


#: Functions with zeros, whose relative error there is that of the argument's reduction.
HARD = {"vlgamma", "vdigamma", "verfinv"}


@pytest.mark.parametrize("name", list(INSTRUCTIONS))
def test_an_instruction_is_what_its_definition_says(name: str) -> None:
    if missing():
        pytest.skip(missing())
    i = INSTRUCTIONS[name]
    for dtype_name in dtypes_of(i):
        dtype = getattr(torch, dtype_name)
        for make in (values, transposed) if dtype_name == dtypes_of(i)[0] else (values,):
            args = arguments(i, dtype, SIZES, make)
            plain, wide = reference(i, args, dtype)
            outs = [torch.empty_like(p) for p in plain]
            got = adapter().run(name, args, outs)
            for g, p, w in zip(got, plain, wide, strict=True):
                close(g, p, w, i)


def transposed(sizes: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    """The same values at an offset, every other element, the first two dimensions exchanged in memory."""
    x = values(sizes, dtype, seed)
    order = [1, 0, *range(2, x.dim())] if x.dim() > 1 else [0]
    room = torch.empty([x.shape[d] for d in order[:-1]] + [2 * x.shape[order[-1]] + 1], dtype=dtype)
    view = room[..., 1::2].permute(order)
    return view.copy_(x)
