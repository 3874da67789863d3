"""What the tests of the composer share: targets, and running a program against PyTorch's own result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfl.compose import reference
from torchfl.compose.program import Program
from torchfl.compose.trace import compose, full_arguments

aten = torch.ops.aten


class Chip:
    """Instructions by name (None: all), dtypes (None: all), and kernels for aten operators by name."""

    def __init__(
        self,
        instructions: str | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
        kernels: str = "",
        max_rank: int = 8,
    ) -> None:
        self.names = None if instructions is None else set(instructions.split())
        self.dtypes = dtypes
        self.kernels = set(kernels.split())
        self.max_rank = max_rank

    def native(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        return op._schema.name.split("::")[1] in self.kernels

    def instruction(self, name: str, dtypes: tuple[torch.dtype, ...]) -> bool:
        known = self.names is None or name in self.names
        return known and (self.dtypes is None or all(d in self.dtypes for d in dtypes))


ALL = Chip()


def copied(x: Any) -> Any:
    if isinstance(x, Tensor):
        return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype).copy_(x) if 0 not in x.stride() else x.clone()
    return [copied(e) for e in x] if isinstance(x, (list, tuple)) else x


def program_of(op: Any, *args: Any, chip: Chip = ALL, **kwargs: Any) -> Program:
    """Composed, and put through JSON."""
    program = compose(op, args, kwargs, chip)
    again = Program.from_dict(json.loads(json.dumps(program.to_dict())))
    assert again == program
    return again


def run(program: Program, op: Any, *args: Any, **kwargs: Any) -> tuple[list[Tensor | None], list[Any]]:
    """The results, and the arguments as they are afterwards."""
    given = copied(full_arguments(op, args, kwargs))
    return reference.run(program, given), given


def wider(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.double() if x.dtype.is_floating_point else x
    if isinstance(x, (list, tuple)):
        return [wider(e) for e in x]
    return torch.float64 if isinstance(x, torch.dtype) and x.is_floating_point else x


def check(op: Any, *args: Any, chip: Chip = ALL, tolerance: float | None = None, **kwargs: Any) -> Program:
    """Composes and runs the call, and compares with the CPU in float64, in the dtypes that the CPU gives."""
    program = program_of(op, *args, chip=chip, **kwargs)
    got, after = run(program, op, *args, **kwargs)
    expected_dtypes = op(*copied(args), **copied_map(kwargs))
    wide_args, wide_kwargs = wider(copied(args)), {k: wider(v) for k, v in kwargs.items()}
    want = op(*wide_args, **wide_kwargs)
    if op._schema.returns and program.outputs:
        dtypes = _list(expected_dtypes)
        for g, w, d in zip(got, _list(want), dtypes, strict=True):
            if g is not None and w is not None:
                assert g.dtype == d.dtype and g.shape == w.shape
                _close(g, w, tolerance)
    for g, w in zip(_tensors(after), _tensors(full_arguments(op, wide_args, wide_kwargs)), strict=True):
        _close(g, w, tolerance)
    return program


def copied_map(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: copied(v) for k, v in kwargs.items()}


def _list(x: Any) -> list[Any]:
    return [] if x is None else [x] if isinstance(x, Tensor) else [e for y in x for e in (_list(y) or [None])]


def _tensors(x: Any) -> list[Tensor]:
    return [x] if isinstance(x, Tensor) else [t for e in x for t in _tensors(e)] if isinstance(x, (list, tuple)) else []


def _close(got: Tensor, want: Tensor, tolerance: float | None) -> None:
    if not (got.dtype.is_floating_point or got.dtype.is_complex):
        torch.testing.assert_close(got, want.to(got.dtype), rtol=0, atol=0)
        return
    rtol = tolerance or {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float64: 1e-9}.get(got.dtype, 2e-5)
    wide = torch.complex128 if got.dtype.is_complex else torch.float64
    torch.testing.assert_close(got.to(wide), want.to(wide), rtol=rtol, atol=rtol, equal_nan=True)


def ops(program: Program) -> list[str]:
    return [s.op.removeprefix("uba::") for s in program.steps]
