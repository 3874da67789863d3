"""The last passes over a recorded program: what nobody reads goes, copies that a step can avoid go, ids become dense.

Contract: the program computes the same. Order matters: dead steps first, so that use counts are true.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from torchfl.compose.program import Program, Step, Value
from torchfl.compose.recorder import ELEMENTWISE, Recorder, plain


def finish(rec: Recorder, half: str | None = None) -> Program:
    program = rec.program
    _drop_dead(program)
    if half is not None:
        _narrow(program, half)
        _drop_dead(program)
    _forward_copies(program)
    _write_inputs(program)
    _drop_dead(program)
    _renumber(program, rec)
    program.baked = sorted(rec.numbers.baked)
    program.baked_values = [plain(rec.numbers.values[b]) for b in program.baked]
    program.generic = _generic(program)
    program.constant_steps = _constant_steps(program)
    return program


def reads(step: Step) -> list[int]:
    found: list[int] = []
    for a in step.args:
        if isinstance(a, dict):
            if "value" in a:
                found.append(a["value"])
            elif "values" in a:
                found += [i for i in a["values"] if i is not None]
    return found


def _drop_dead(program: Program) -> None:
    values = program.values
    live = {values[o].base for o in program.outputs if o is not None}
    live |= {values[v].base for v, _ in program.writes}
    live |= {i.value for i in program.inputs}  # a step that writes into an argument stays
    kept: list[Step] = []
    for step in reversed(program.steps):
        if not any(o is not None and values[o].base in live for o in step.outs):
            continue
        kept.append(step)
        live.update(values[i].base for i in reads(step))
    # A result that nobody reads stays a temporary: an instruction writes all of its results.
    program.steps = kept[::-1]


def _narrow(program: Program, half: str) -> None:
    """All that was traced as float32 is half precision: the chip has nothing else."""
    values = program.values
    for value in values:
        if value.dtype == "float32":
            value.dtype = half
    steps: list[Step] = []
    for step in program.steps:
        step.args = [{"dtype": half} if a == {"dtype": "float32"} else a for a in step.args]
        steps.append(step)
    program.steps = steps


def _uses(program: Program) -> dict[int, list[int]]:
    """For each base, the steps that touch it; outputs and writes count as touches after the end."""
    values = program.values
    uses: dict[int, list[int]] = {}
    for n, step in enumerate(program.steps):
        for i in {values[i].base for i in reads(step)} | {values[o].base for o in step.outs if o is not None}:
            uses.setdefault(i, []).append(n)
    end = len(program.steps)
    for o in program.outputs:
        if o is not None:
            uses.setdefault(values[o].base, []).append(end)
    for v, _ in program.writes:
        uses.setdefault(values[v].base, []).append(end)
    return uses


def _forward_copies(program: Program) -> None:
    """A copy of a result that is used for nothing else: the step that makes it writes where the copy would."""
    values, steps = program.values, program.steps
    uses = _uses(program)
    inputs = {i.value for i in program.inputs} | {c.value for c in program.constants}
    written: dict[int, list[int]] = {}
    for n, step in enumerate(steps):
        for o in step.outs:
            if o is not None:
                written.setdefault(values[o].base, []).append(n)
    dropped: set[int] = set()
    for n, step in enumerate(steps):
        if step.op != "uba::copy_nd":
            continue
        source = step.args[0]["value"]
        value = values[source]
        if value.base != source or source in inputs or uses[source] != [uses[source][0], n] or len(uses[source]) != 2:
            continue
        maker = uses[source][0]
        target = step.outs[0]
        made = steps[maker]
        if maker in dropped or made.outs != [source] or not _elementwise(made.op):
            continue
        assert target is not None
        if values[target].sizes != value.sizes or values[target].dtype != value.dtype:
            continue
        # The maker moves down to the copy's place: what it reads must still be the same there.
        bases = {values[i].base for i in reads(made)}
        if values[target].base in bases or any(maker < w < n for b in bases for w in written.get(b, ())):
            continue
        steps[n] = Step(made.op, made.args, [target])
        dropped.add(maker)
        for b in bases:
            uses[b] = sorted(n if u == maker else u for u in uses[b])
    program.steps = [s for n, s in enumerate(steps) if n not in dropped]


def _write_inputs(program: Program) -> None:
    """A pointwise step may write its result straight over an argument that nothing reads any more."""
    values = program.values
    uses = _uses(program)
    remaining: list[tuple[int, int]] = []
    replaced: dict[int, int] = {}
    maker_of: dict[int, list[int]] = {}
    for n, step in enumerate(program.steps):
        for o in step.outs:
            if o is not None:
                maker_of.setdefault(values[o].base, []).append(n)
    wanted = [v for v, _ in program.writes]
    outputs = {values[o].base for o in program.outputs if o is not None}
    for v, index in program.writes:
        target = program.inputs[index].value
        into, value = values[target], values[v]
        makers = maker_of.get(v, [])
        fits = (
            value.base == v
            and wanted.count(v) == 1
            and v not in outputs
            and target not in outputs
            and len(makers) == 1
            and value.strides == into.strides
            and value.sizes == into.sizes
            and value.dtype == into.dtype
            and 0 not in into.strides
        )
        if fits:
            n = makers[0]
            step = program.steps[n]
            mine = [i for i in reads(step) if values[i].base == target]
            fits = _elementwise(step.op) and len(step.outs) == 1
            fits = fits and all(i == target for i in mine)
            fits = fits and all(u <= n for u in uses.get(target, []) if u != len(program.steps))
            fits = fits and target not in maker_of
        if not fits:
            remaining.append((v, index))
            continue
        program.steps[makers[0]].outs = [target]
        replaced[v] = target
    for value in values:
        value.base = replaced.get(value.base, value.base)
    if replaced:
        for step in program.steps:
            step.args = [_replace(a, replaced) for a in step.args]
    program.writes = remaining


def _replace(a: Any, new: dict[int, int]) -> Any:
    if isinstance(a, dict) and "value" in a:
        return {"value": new.get(a["value"], a["value"])}
    if isinstance(a, dict) and "values" in a:
        return {"values": [i if i is None else new.get(i, i) for i in a["values"]]}
    return a


def _renumber(program: Program, rec: Recorder) -> None:
    values = program.values
    used: set[int] = {i.value for i in program.inputs}
    for step in program.steps:
        used.update(reads(step))
        used.update(o for o in step.outs if o is not None)
    used.update(o for o in program.outputs if o is not None)
    used.update(v for v, _ in program.writes)
    used |= {values[i].base for i in used}
    order = sorted(used)
    new = {old: n for n, old in enumerate(order)}
    program.values = [Value(v.dtype, v.sizes, v.strides, v.offset, new[v.base]) for v in (values[i] for i in order)]
    program.constants = [c for c in program.constants if c.value in used]
    for constant in program.constants:
        constant.value = new[constant.value]
    for given in program.inputs:
        given.value = new[given.value]
    for step in program.steps:
        step.outs = [None if o is None else new[o] for o in step.outs]
        step.args = [_replace(a, new) for a in step.args]
    program.outputs = [None if o is None else new[o] for o in program.outputs]
    program.writes = [(new[v], i) for v, i in program.writes]
    _renumber_numbers(program, rec)


def _renumber_numbers(program: Program, rec: Recorder) -> None:
    expressions = rec.numbers.expressions
    needed: set[int] = set()

    def need(index: int) -> None:
        if index in needed:
            return
        needed.add(index)
        e = expressions[index]
        if e.op == "cast":
            need(e.args[0])
        elif e.op not in ("arg", "literal"):
            for i in e.args:
                need(i)

    def visit(a: Any) -> None:
        if isinstance(a, dict) and "number" in a:
            need(a["number"])
        elif isinstance(a, list):
            for e in a:
                visit(e)

    for step in program.steps:
        visit(step.args)
    order = sorted(needed)
    new = {old: n for n, old in enumerate(order)}
    for index in order:
        e = expressions[index]
        args = list(e.args)
        if e.op == "cast":
            args[0] = new[args[0]]
        elif e.op not in ("arg", "literal"):
            args = [new[i] for i in args]
        program.numbers.append(type(e)(e.op, args))

    def rename(a: Any) -> Any:
        if isinstance(a, dict) and "number" in a:
            return {"number": new[a["number"]]}
        return [rename(e) for e in a] if isinstance(a, list) else a

    for step in program.steps:
        step.args = [rename(a) for a in step.args]


@functools.cache
def _pointwise_kernel(op: str) -> bool:
    """Whether a step that a kernel of the chip runs is elementwise. Whether the kernel takes other sizes too is seen
    when the program is bound."""
    namespace, _, name = op.partition("::")
    if namespace != "aten":
        return False
    packet, _, overload = name.partition(".")
    return torch.Tag.pointwise in getattr(getattr(torch.ops.aten, packet), overload or "default").tags


def _constant_steps(program: Program) -> list[int]:
    values = program.values
    varying = {i.value for i in program.inputs} | {values[v].base for v, _ in program.writes}
    found: set[int] = set(range(len(program.steps)))
    while True:  # until no step that a varying value reaches is left; programs are short
        before = len(found)
        for n in sorted(found):
            step = program.steps[n]
            bases = {values[o].base for o in step.outs if o is not None}
            if _varies(step) or bases & varying or any(values[i].base in varying for i in reads(step)):
                found.discard(n)
                varying |= bases
        if len(found) == before:
            return sorted(found)


def _varies(step: Step) -> bool:
    def open_(a: Any) -> bool:
        if isinstance(a, dict):
            return not ("value" in a or "values" in a or "dtype" in a or "float" in a)
        return any(map(open_, a)) if isinstance(a, list) else False

    return not step.op.startswith("uba::") or open_(step.args)


def _elementwise(op: str) -> bool:
    return op.removeprefix("uba::") in ELEMENTWISE or _pointwise_kernel(op)


def _generic(program: Program) -> str:
    values = program.values
    if not program.steps or program.constants or program.writes:
        return ""
    if not all(_elementwise(s.op) for s in program.steps):
        return ""
    inputs = {i.value for i in program.inputs}
    shape = next(values[o].sizes for s in program.steps for o in s.outs if o is not None)

    def contiguous(v: Value) -> bool:
        expected = 1
        for n, s in zip(reversed(v.sizes), reversed(v.strides), strict=True):
            if n != 1 and s != expected:
                return False
            expected *= n
        return True

    for ident, v in enumerate(values):
        if v.base == ident:
            if not contiguous(v) or (ident not in inputs and v.sizes != shape):
                return ""
            continue
        base = values[v.base]
        if v.base not in inputs or v.sizes != shape or v.offset or v.dtype != base.dtype:
            return ""
        lead = len(shape) - len(base.sizes)
        if lead < 0:
            return ""
        own = zip(base.sizes, shape[lead:], base.strides, strict=True)
        want = [0] * lead + [0 if n == 1 and m != 1 else s for n, m, s in own]
        if v.strides != want:
            return ""
    for step in program.steps:  # a smaller operand must have been broadcast
        if any(values[i].sizes != shape for i in reads(step)):
            return ""
    return "pointwise"
