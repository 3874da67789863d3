"""What the composer makes and the executor runs: a program of steps over values.

Contract: a program is plain data, equal after `from_dict(to_dict())`, and holds no reference to PyTorch. All that its
composition depended on is either in the caller's key (operator, dtypes, sizes, strides, kinds of the numbers) or is
listed in `baked`.

A *value* is a tensor: it owns its memory (`base` is its own id) or is a view of the value that does. Sizes, strides and
offset count elements of the value's own dtype, the offset from the first byte of the base; strides are never negative.
An owned value that is no input and no constant is a temporary, which the executor allocates: `extent()` elements.

An argument of a step is one of
    {"value": id}   {"values": [id | null, ...]}   {"number": index into `numbers`}   {"dtype": "float32"}
    {"seed": true}  {"offset": k}                  the generator's seed, and its counter plus k
    null, bool, int, float, str, list of int, float, bool, or of {"number": ...}
with the non-finite floats as the strings {"float": "nan" | "inf" | "-inf"}, which JSON lacks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

FORMAT = 1


@dataclass
class Value:
    dtype: str
    sizes: list[int]
    strides: list[int]
    offset: int
    base: int

    def numel(self) -> int:
        return math.prod(self.sizes)

    def extent(self) -> int:
        """Elements from the first to just behind the last that the value reaches; 0 if it has none."""
        if 0 in self.sizes:
            return 0
        return 1 + sum((n - 1) * s for n, s in zip(self.sizes, self.strides, strict=True))


@dataclass
class Input:
    """Value `value` is the tensor at position `arg` of the operator's schema; in a list, its `element`, else -1."""

    value: int
    arg: int
    element: int = -1


@dataclass
class NumberExpr:
    """A number that is known when the program runs. op "arg": args = [position in the schema, list element or -1];
    "literal": [value]; "cast": [index, "int" | "float"]; all others: indices of earlier numbers. Integers stay integers
    under add, sub, mul, neg, abs, max, min, pow (of a non-negative exponent), floordiv and mod; div, sqrt and the other
    functions give doubles."""

    op: str
    args: list[Any]


@dataclass
class Step:
    """`op` is "uba::<instruction>" or "<namespace>::<operator>.<overload>" of an operator that the chip has a kernel
    for. `args` fill every position of its schema. An entry of `outs` is a temporary that this step defines, a view of a
    temporary or an input that the step then writes into, or null for a result nobody wants."""

    op: str
    args: list[Any]
    outs: list[int | None]


@dataclass
class Constant:
    """A small tensor known when composing: contiguous, its elements in row-major order (complex: pairs)."""

    value: int
    data: list[Any]


@dataclass
class Program:
    op: str
    values: list[Value] = field(default_factory=list)
    inputs: list[Input] = field(default_factory=list)
    numbers: list[NumberExpr] = field(default_factory=list)
    constants: list[Constant] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    outputs: list[int | None] = field(default_factory=list)
    writes: list[tuple[int, int]] = field(default_factory=list)
    """(value, index into `inputs`): after the last step the value is copied into that input."""
    baked: list[tuple[int, int]] = field(default_factory=list)
    """(arg, list element or -1) of the numbers that the program depends on: it serves only calls with equal ones."""
    baked_values: list[Any] = field(default_factory=list)
    """Their values, in the same order."""
    random: int = 0
    """How many Philox 4x32 counters a run consumes."""
    generic: str = ""
    """"pointwise": every value has the one common shape, or is an input broadcast to it, and all are contiguous; so the
    program serves all sizes with the same ranks and the same pattern of broadcast dimensions."""

    constant_steps: list[int] = field(default_factory=list)
    """Steps that depend on no argument, number or random draw, and whose results no other step writes into: what they
    compute is the same in every run, so it may be kept."""

    def to_dict(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "op": self.op,
            "values": [[v.dtype, v.sizes, v.strides, v.offset, v.base] for v in self.values],
            "inputs": [[i.value, i.arg, i.element] for i in self.inputs],
            "numbers": [[n.op, n.args] for n in self.numbers],
            "constants": [[c.value, c.data] for c in self.constants],
            "steps": [[s.op, s.args, s.outs] for s in self.steps],
            "outputs": self.outputs,
            "writes": [list(w) for w in self.writes],
            "baked": [list(b) for b in self.baked],
            "baked_values": self.baked_values,
            "random": self.random,
            "generic": self.generic,
            "constant_steps": self.constant_steps,
        }

    @classmethod
    def from_dict(cls, d: dict[str, Any]) -> Program:
        """Raises ValueError for another format, KeyError or TypeError for what is no program at all."""
        if d["format"] != FORMAT:
            raise ValueError(f"program of format {d['format']}, not {FORMAT}")
        return cls(
            op=d["op"],
            values=[Value(*v) for v in d["values"]],
            inputs=[Input(*i) for i in d["inputs"]],
            numbers=[NumberExpr(*n) for n in d["numbers"]],
            constants=[Constant(*c) for c in d["constants"]],
            steps=[Step(*s) for s in d["steps"]],
            outputs=list(d["outputs"]),
            writes=[(w[0], w[1]) for w in d["writes"]],
            baked=[(b[0], b[1]) for b in d["baked"]],
            baked_values=list(d["baked_values"]),
            random=d["random"],
            generic=d["generic"],
            constant_steps=list(d["constant_steps"]),
        )

    def text(self) -> str:
        """The program for people, one line a step."""

        def value(i: int | None) -> str:
            if i is None:
                return "_"
            v = self.values[i]
            name = f"%{i}" if v.base == i else f"%{v.base}@{i}"
            return f"{name}:{v.dtype}{v.sizes}"

        def arg(a: Any) -> str:
            if isinstance(a, dict):
                if "value" in a:
                    return value(a["value"])
                if "values" in a:
                    return "[" + ", ".join(value(i) for i in a["values"]) + "]"
                if "number" in a:
                    return f"${a['number']}"
                return "/".join(f"{k}={v}" for k, v in a.items())
            return repr(a)

        lines = [f"{self.op}({', '.join(value(i.value) for i in self.inputs)})"]
        lines += [f"  ${i} = {n.op}{n.args}" for i, n in enumerate(self.numbers)]
        for s in self.steps:
            lines.append(f"  {', '.join(value(o) for o in s.outs)} = {s.op}({', '.join(arg(a) for a in s.args)})")
        lines.append(f"  -> {', '.join(value(o) for o in self.outputs)}")
        lines += [f"  write {value(v)} -> input {i}" for v, i in self.writes]
        return "\n".join(lines)
