"""Runs a program on CPU tensors: what an executor must do, in plain Python.

Contract: `run` gives the results in the order of `Program.outputs` and applies `Program.writes` to the given tensors.
Slow; for tests and for `tools/compose_coverage.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.instructions import INSTRUCTIONS
from torchfl.compose.numbers import evaluate
from torchfl.compose.program import Program


def argument(args: Sequence[Any], position: int, element: int) -> Any:
    return args[position] if element < 0 else args[position][element]


def run(program: Program, args: Sequence[Any], seed: int = 0, offset: int = 0) -> list[Tensor | None]:
    """`args`: those of the operator's schema, in its order, all given."""
    storage: dict[int, Tensor] = {}
    for given in program.inputs:
        storage[given.value] = argument(args, given.arg, given.element)
    for constant in program.constants:
        value = program.values[constant.value]
        dtype = getattr(torch, value.dtype)
        data = [_number(x) for x in constant.data]
        if dtype.is_complex:
            pairs = torch.tensor(data, dtype=dtype.to_real()).view(-1, 2)
            storage[constant.value] = torch.view_as_complex(pairs).view(value.sizes)
        else:
            storage[constant.value] = torch.tensor(data, dtype=dtype).view(value.sizes)
    numbers = evaluate(program.numbers, lambda position, element: argument(args, position, element))

    def tensor(ident: int) -> Tensor:
        value = program.values[ident]
        base = storage.get(value.base)
        if base is None:
            owner = program.values[value.base]
            assert owner.base == value.base
            base = torch.empty_strided(owner.sizes, owner.strides, dtype=getattr(torch, owner.dtype))
            base.untyped_storage().fill_(0x5A)  # what nobody wrote must not look like a result
            storage[value.base] = base
        if value.base == ident:
            return base
        return _view(base, value)

    def literal(a: Any) -> Any:
        if isinstance(a, dict):
            if "value" in a:
                return tensor(a["value"])
            if "values" in a:
                return [None if i is None else tensor(i) for i in a["values"]]
            if "number" in a:
                return numbers[a["number"]]
            if "dtype" in a:
                return getattr(torch, a["dtype"])
            if "seed" in a:
                return seed
            if "offset" in a:
                return offset + a["offset"]
            return _number(a)
        return [literal(e) for e in a] if isinstance(a, list) else a

    for step in program.steps:
        space, _, name = step.op.partition("::")
        given_args = [literal(a) for a in step.args]
        if space == "uba":
            if name == "vselect":
                first = next(o for o in step.outs if o is not None)
                given_args.append(getattr(torch, program.values[first].dtype))
            results = INSTRUCTIONS[name].reference(*given_args)
        else:
            results = _native(space, name, given_args)
        for out, result in zip(step.outs, results if isinstance(results, (tuple, list)) else [results], strict=True):
            if out is not None:
                target = tensor(out)
                assert target.dtype == result.dtype and target.shape == result.shape, (step, result.dtype, result.shape)
                target.copy_(result)
    outputs = [None if o is None else tensor(o) for o in program.outputs]
    finals = [(tensor(value), program.inputs[i]) for value, i in program.writes]
    finals = [(value.clone(), given) for value, given in finals]
    for value, given in finals:
        argument(args, given.arg, given.element).copy_(value)
    return outputs


def _view(base: Tensor, value: Any) -> Tensor:
    dtype = getattr(torch, value.dtype)
    start = base.storage_offset()
    if dtype != base.dtype:
        ratio = base.dtype.itemsize // dtype.itemsize
        if ratio:
            start *= ratio
        else:
            start //= dtype.itemsize // base.dtype.itemsize
        base = torch.empty(0, dtype=dtype).set_(base.untyped_storage())
    return base.as_strided(value.sizes, value.strides, start + value.offset)


def _native(space: str, name: str, args: list[Any]) -> Any:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
    positional, keyword = [], {}
    for a, x in zip(op._schema.arguments, args, strict=True):
        if str(a.type) == "Device" or a.name in ("device", "layout", "memory_format", "generator"):
            continue
        if a.kwarg_only:
            keyword[a.name] = x
        else:
            positional.append(x)
    return op(*positional, **keyword)


def _number(x: Any) -> Any:
    return float(x["float"]) if isinstance(x, Mapping) and "float" in x else x
