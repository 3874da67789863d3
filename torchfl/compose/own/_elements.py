"""Lists of many tensors: each kind of element is traced once, and its steps are copied for the others.

Contract: `over_elements(f, tables)` is [f(*row) for row in zip(*tables)], where f writes at most into the tensors of
its row. Two rows are of one kind if their tensors have the same dtypes, sizes and strides, and their numbers the same
kinds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.numbers import is_open
from torchfl.compose.own._instructions import directly
from torchfl.compose.program import Step, Value
from torchfl.compose.recorder import Recorder


class _Template:
    """What tracing one row left in the recorder."""

    def __init__(self, row: Sequence[Any], bases: list[int], after: list[int], result: Any, values: range, steps: range,
                 random: int) -> None:  # fmt: skip
        self.row, self.bases, self.after, self.result = row, bases, after, result
        self.values, self.steps, self.random = values, steps, random


def over_elements(f: Callable[..., Any], tables: Sequence[Sequence[Any]]) -> list[Any]:
    known: dict[Any, _Template] = {}
    made = []
    for row in zip(*tables, strict=True):
        kind = tuple(map(_kind, row))
        template = known.get(kind)
        if template is not None:
            made.append(directly(_again, template, row))
            continue
        before = directly(_state, row)
        result = f(*row)
        after = directly(_state, row)
        if before[3] == after[3]:  # what draws random numbers is traced each time
            known[kind] = _Template(
                row, before[0], after[0], result, range(before[1], after[1]), range(before[2], after[2]), 0
            )
        made.append(result)
    return made


def _kind(x: Any) -> Any:
    if isinstance(x, Tensor):
        return (x.dtype, x.shape, x.stride(), x.storage_offset())
    return type(x) if is_open(x) else (type(x), x)


def _state(rec: Recorder, row: Sequence[Any]) -> tuple[list[int], int, int, int]:
    bases = [rec.base(x) for x in row if isinstance(x, Tensor)]
    return bases, len(rec.program.values), len(rec.program.steps), rec.program.random


def _again(rec: Recorder, template: _Template, row: Sequence[Any]) -> Any:
    values, steps = rec.program.values, rec.program.steps
    tensors = [x for x in row if isinstance(x, Tensor)]
    new: dict[int, int] = {}
    for base, tensor in zip(template.bases, tensors, strict=True):
        new[base] = rec.base(tensor)
    numbers = {
        old.node.index: x.node.index for old, x in zip(template.row, row, strict=True) if is_open(old) and is_open(x)
    }
    views: dict[int, int] = {}

    def value(ident: int) -> int:
        """The same value for this row: of the row's own tensor, or of a result of one of its steps."""
        known = new.get(ident)
        if known is not None:
            return known
        v = values[ident]
        if ident not in template.values and v.base not in new:
            return ident  # shared by all rows
        known = views.get(ident)
        if known is None:
            known = views[ident] = len(values)
            own = v.base == ident
            values.append(Value(v.dtype, v.sizes, v.strides, v.offset, known if own else value(v.base)))
            if own:
                rec.sharers[known] = 1
        return known

    def number(index: int) -> int:
        mine = numbers.get(index)
        if mine is None:
            mine = numbers[index] = rec.numbers.renamed(index, number)
        return mine

    def argument(a: Any) -> Any:
        if isinstance(a, dict):
            if "value" in a:
                return {"value": value(a["value"])}
            if "values" in a:
                return {"values": [None if i is None else value(i) for i in a["values"]]}
            if "number" in a:
                return {"number": number(a["number"])}
            return a
        return [argument(e) for e in a] if isinstance(a, list) else a

    for i in template.steps:
        step = steps[i]
        steps.append(
            Step(step.op, [argument(a) for a in step.args], [None if o is None else value(o) for o in step.outs])
        )
    for tensor, base in zip(tensors, template.after, strict=True):
        rec.base_of[tensor.untyped_storage()._cdata] = value(base)

    def result(x: Any) -> Any:
        if isinstance(x, (list, tuple)):
            return [result(e) for e in x]
        if not isinstance(x, Tensor):
            return x
        base = value(rec.base(x))
        mine = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        if x.storage_offset() or not rec.is_whole(x):
            owner = values[base]
            whole = torch.empty_strided(owner.sizes, owner.strides, dtype=getattr(torch, owner.dtype), device="meta")
            mine = torch.as_strided(whole, x.shape, x.stride(), x.storage_offset())
        rec._bind(mine, base)
        return mine

    return result(template.result)
