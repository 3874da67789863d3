"""Numbers whose value a program leaves open: a scale factor or a learning rate costs no new composition.

Contract: while an operator is traced, such a number is a `torch.SymFloat` or `torch.SymInt` with a node of ours, so it
passes through PyTorch's dispatcher unseen. Arithmetic makes a new expression (`NumberExpr`). Whoever asks for the value
(a branch, `float()`, a C++ kernel) gets the value of this call, and the numbers it stems from are marked as baked.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch

from torchfl.compose.program import NumberExpr

_EVALUATE: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": operator.pow,
    "neg": operator.neg,
    "abs": abs,
    "max": max,
    "min": min,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
}


def _apply(op: str, values: list[Any]) -> Any:
    try:
        return _EVALUATE[op](*values)
    except ZeroDivisionError:
        return math.nan if values[0] == 0 or values[0] != values[0] else math.copysign(math.inf, values[0])
    except ValueError:
        return math.nan
    except OverflowError:
        return math.inf


def evaluate(numbers: Iterable[NumberExpr], argument: Callable[[int, int], Any]) -> list[Any]:
    """The value of each expression, given the arguments of a call."""
    values: list[Any] = []
    for n in numbers:
        if n.op == "arg":
            values.append(argument(*n.args))
        elif n.op == "literal":
            values.append(n.args[0])
        elif n.op == "cast":
            values.append((int if n.args[1] == "int" else float)(values[n.args[0]]))
        else:
            values.append(_apply(n.op, [values[i] for i in n.args]))
    return values


class Numbers:
    """All numbers of one trace."""

    def __init__(self) -> None:
        self.expressions: list[NumberExpr] = []
        self.baked: set[tuple[int, int]] = set()
        self.values: dict[tuple[int, int], Any] = {}
        self._known: dict[Any, Node] = {}

    def argument(self, arg: int, element: int, value: Any) -> Any:
        self.values[arg, element] = value
        return self._node("arg", [arg, element], value, frozenset({(arg, element)})).wrap()

    def bake(self, arg: int, element: int, value: Any) -> None:
        """The program will depend on this argument's value."""
        self.values[arg, element] = value
        self.baked.add((arg, element))

    def apply(self, op: str, *operands: Any) -> Any:
        nodes = [x.node if isinstance(x, (torch.SymFloat, torch.SymInt)) else self._literal(x) for x in operands]
        leaves = frozenset().union(*(n.leaves for n in nodes))
        return self._node(op, [n.index for n in nodes], _apply(op, [n.value for n in nodes]), leaves).wrap()

    def renamed(self, index: int, rename: Callable[[int], int]) -> int:
        """The expression with its operands renamed; the same one if that changes nothing."""
        e = self.expressions[index]
        if e.op in ("arg", "literal"):
            return index
        operands = e.args[:1] if e.op == "cast" else e.args
        new = [rename(i) for i in operands]
        if new == operands:
            return index
        self.expressions.append(NumberExpr(e.op, [*new, *e.args[len(operands) :]]))
        return len(self.expressions) - 1

    def cast(self, x: Any, kind: str) -> Any:
        node = x.node
        value = int(node.value) if kind == "int" else float(node.value)
        return self._node("cast", [node.index, kind], value, node.leaves).wrap()

    def _literal(self, value: Any) -> Node:
        return self._node("literal", [value], value, frozenset())

    def _node(self, op: str, args: list[Any], value: Any, leaves: frozenset[tuple[int, int]]) -> Node:
        key = (op, *args, type(value))
        node = self._known.get(key)
        if node is None:
            node = self._known[key] = Node(self, len(self.expressions), value, leaves)
            self.expressions.append(NumberExpr(op, args))
        return node


class Node:
    """The face that PyTorch's C++ side sees; its method names are PyTorch's."""

    constant = None

    def __init__(self, numbers: Numbers, index: int, value: Any, leaves: frozenset[tuple[int, int]]) -> None:
        self.numbers, self.index, self.value, self.leaves = numbers, index, value, leaves

    def wrap(self) -> Any:
        return FloatNumber(self) if isinstance(self.value, float) else IntNumber(self)

    def bake(self) -> Any:
        self.numbers.baked |= self.leaves
        return self.value

    def is_int(self) -> bool:
        return not isinstance(self.value, float)

    def is_float(self) -> bool:
        return isinstance(self.value, float)

    def is_bool(self) -> bool:
        return False

    def is_constant(self) -> bool:
        return False

    is_nested_int = is_constant

    def is_symbolic(self) -> bool:
        return True

    has_hint = is_symbolic

    def maybe_as_int(self) -> None:
        return None

    maybe_as_float = nested_int = maybe_as_int

    def guard_int(self, file: str, line: int) -> int:
        return int(self.bake())

    def guard_float(self, file: str, line: int) -> float:
        return float(self.bake())

    def int_(self) -> int:
        return int(self.bake())

    def float_(self) -> float:
        return float(self.bake())

    def _graph_repr(self) -> str:
        return f"${self.index}"

    __str__ = __repr__ = str = _graph_repr


def _binary(op: str, swap: bool = False) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if isinstance(other, torch.Tensor):
            return NotImplemented
        return self.node.numbers.apply(op, other, self) if swap else self.node.numbers.apply(op, self, other)

    return method


def _unary(op: str) -> Callable[[Any], Any]:
    return lambda self: self.node.numbers.apply(op, self)


def _asks(f: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *other: f(self.node.bake(), *(value_of(x, bake=True) for x in other))


_ARITHMETIC = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div"}
_METHODS: dict[str, Any] = {
    **{f"__{n}__": _binary(op) for n, op in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div"))},
    **{
        f"__r{n}__": _binary(op, True) for n, op in (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("truediv", "div"))
    },
    "__floordiv__": _binary("floordiv"),
    "__mod__": _binary("mod"),
    "__pow__": _binary("pow"),
    "__rpow__": _binary("pow", True),
    "__neg__": _unary("neg"),
    "__abs__": _unary("abs"),
    "sqrt": _unary("sqrt"),
    **{f"__{n}__": _asks(getattr(operator, n)) for n in ("eq", "ne", "lt", "le", "gt", "ge")},
    "__bool__": _asks(bool),
    "__int__": _asks(int),
    "__float__": _asks(float),
    "__index__": _asks(operator.index),
    "__hash__": lambda self: hash(self.node.index),
    "__repr__": lambda self: f"${self.node.index}",
}


class FloatNumber(torch.SymFloat):
    """A float left open."""


class IntNumber(torch.SymInt):
    """An int left open."""


for _name, _method in _METHODS.items():
    setattr(FloatNumber, _name, _method)
    setattr(IntNumber, _name, _method)


def is_open(x: Any) -> bool:
    return isinstance(x, (torch.SymFloat, torch.SymInt)) and isinstance(x.node, Node)


def value_of(x: Any, bake: bool = False) -> Any:
    """The number as this call has it; anything else as it is."""
    if not is_open(x):
        return x
    return x.node.bake() if bake else x.node.value
