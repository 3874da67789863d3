"""From a graph of operators to the engine's program object (csrc/aten/graph_program.h).

Contract: `program` gives a function that takes and empties the list of inputs, and returns the results; `NoProgram` is
raised for what in the graph has no place in a program. Everything is decided by the graph; nothing is computed here.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import GraphModule, Node

from torchfl._native import engine


class NoProgram(Exception):
    """Something in the graph that a program cannot hold."""


_alive: weakref.WeakValueDictionary[int, _Program] = weakref.WeakValueDictionary()
_count = 0


class _Program:
    def __init__(self, built: Any, fusions: list[str]) -> None:
        global _count
        self.built = built
        self.fusions = fusions
        _count += 1
        _alive[_count] = self


def alive() -> list[dict[str, Any]]:
    return [
        {"name": p.built.name, "steps": p.built.step_count, "fusions": list(p.fusions), "memory": p.built.memory()}
        for _, p in sorted(_alive.items())
    ]


def program(gm: GraphModule, name: str, fusions: list[str]) -> Callable[..., Any]:
    held = _Program(_Builder(gm, name).build(), fusions)
    execute = held.built.run

    def run(inputs: list[Any]) -> list[Any]:
        return execute(inputs)

    run._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd: takes one list, and empties it
    run._program = held  # type: ignore[attr-defined]
    return run


#: What graphs compute with sizes, by the name of the Python function.
_COMPUTES = {
    *(
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "pow",
        "neg",
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "and_",
        "or_",
    ),
    *("floor", "ceil", "trunc", "sym_min", "sym_max", "sym_not", "sym_ite", "sym_int", "sym_float"),
}


class _Builder:
    def __init__(self, gm: GraphModule, name: str) -> None:
        self.gm = gm
        self.name = name
        self.c = engine()
        self.nodes = list(gm.graph.nodes)
        self.slots: dict[Node, int] = {}
        self.results: dict[Node, list[int]] = {}  # of operators with several: a slot each, -1 if nobody reads it
        self.constants: dict[Node, Any] = {}
        self.count = 0

    def build(self) -> Any:
        inputs = [node for node in self.nodes if node.op == "placeholder"]
        for node in inputs:
            self.slots[node] = self._new()
        for node in self.nodes:
            if node.op == "get_attr":
                self.constants[node] = self._attribute(node)
            elif node.op == "call_function":
                self._place(node)
            elif node.op not in ("placeholder", "output"):
                raise NoProgram(f"it has a node of kind {node.op}")
        built = self.c.GraphProgram(self.name, len(inputs), self.count)
        frees = self._last_reads()
        for node in self.nodes:
            if node.op == "call_function":
                self._step(built, node, frees.get(node, []))
        built.finish([self._value(result) for result in self._outputs()], self._device())
        return built

    def _new(self) -> int:
        self.count += 1
        return self.count - 1

    def _attribute(self, node: Node) -> Any:
        value: Any = self.gm
        for part in str(node.target).split("."):
            value = getattr(value, part)
        if isinstance(value, GraphModule):
            raise NoProgram(f"it holds another graph, {node.target}")
        if not isinstance(value, (torch.Tensor, int, float, bool, type(None))):
            raise NoProgram(f"it holds a {type(value).__name__}, {node.target}")
        return value

    def _outputs(self) -> list[Any]:
        (results,) = self.nodes[-1].args
        return list(results) if isinstance(results, (tuple, list)) else [results]

    # ------------------------------------------------------------------------------------------------ slots

    def _place(self, node: Node) -> None:
        target = node.target
        if target is operator.getitem:
            source, index = node.args
            if source in self.results:
                self.slots[node] = self.results[source][index]
                return
            self.slots[node] = self._new()
        elif isinstance(target, torch._ops.OpOverload):
            returns = target._schema.returns
            if len(returns) > 1:
                read = {user.args[1] for user in node.users if user.target is operator.getitem}
                if any(user.target is not operator.getitem for user in node.users):
                    raise NoProgram(f"{target} whose results are passed on together")
                self.results[node] = [self._new() if i in read else -1 for i in range(len(returns))]
            elif returns:
                self.slots[node] = self._new() if node.users else -1
        elif self._computes(node) or target is torch.sym_sum:
            self.slots[node] = self._new()
        else:
            raise NoProgram(f"{getattr(target, '__name__', target)} is no operator that a program has")

    @staticmethod
    def _computes(node: Node) -> bool:
        module = getattr(node.target, "__module__", "")
        name = getattr(node.target, "__name__", "")
        return name in _COMPUTES and module.partition(".")[0] in ("_operator", "operator", "math", "torch")

    def _last_reads(self) -> dict[Node, list[int]]:
        """For each node the slots that nobody reads after it."""
        last: dict[int, Node | None] = {}
        for node in self.nodes:
            if node.op == "output":
                for read in node.all_input_nodes:
                    last[self.slots.get(read, -1)] = None  # a result
            elif node.op == "call_function" and not self._is_alias(node):
                for read in node.all_input_nodes:
                    if self.slots.get(read, -1) >= 0:
                        last[self.slots[read]] = node
        frees: dict[Node, list[int]] = {}
        for slot, node in last.items():
            if node is not None:
                frees.setdefault(node, []).append(slot)
        return frees

    def _is_alias(self, node: Node) -> bool:
        return node.target is operator.getitem and node.args[0] in self.results

    # ------------------------------------------------------------------------------------------------ steps

    def _step(self, built: Any, node: Node, frees: list[int]) -> None:
        target = node.target
        if self._is_alias(node):
            return
        if target is operator.getitem:
            source, index = node.args
            built.item(self.slots[source], index, self.slots[node], frees)
        elif isinstance(target, torch._ops.OpOverload):
            schema = target._schema
            outs = self.results.get(node) or [self.slots[node] for _ in schema.returns]
            built.call(schema.name, schema.overload_name, self._arguments(node), outs, frees)
        elif target is torch.sym_sum:
            (items,) = node.args
            out = self.slots[node]
            built.compute("add", [self._value(items[0]), 0], out, [])
            for i, item in enumerate(items[1:], 2):
                built.compute("add", [self.c.Slot(out), self._value(item)], out, frees if i == len(items) else [])
        else:
            if node.kwargs:
                raise NoProgram(f"{target} with keyword arguments")
            built.compute(target.__name__, [self._value(a) for a in node.args], self.slots[node], frees)

    def _arguments(self, node: Node) -> list[Any]:
        values = [self._value(arg) for arg in node.args]
        for argument in node.target._schema.arguments[len(values) :]:
            if argument.name in node.kwargs:
                values.append(self._value(node.kwargs[argument.name]))
            else:
                values.append(argument.default_value)
        return values

    def _value(self, arg: Any) -> Any:
        if isinstance(arg, Node):
            if arg in self.constants:
                return self.constants[arg]
            if arg not in self.slots or self.slots[arg] < 0:
                raise NoProgram(f"{arg.target} whose results are passed on together")
            return self.c.Slot(self.slots[arg])
        if isinstance(arg, (list, tuple)):
            return [self._value(item) for item in arg]
        if isinstance(arg, (torch.SymInt, torch.SymFloat, torch.SymBool)):
            raise NoProgram(f"the size {arg}, which no node of the graph gives")
        return arg

    def _device(self) -> int:
        """The first of our devices that takes part, or -1."""
        ours = torch._C._get_privateuse1_backend_name()
        for node in self.nodes:
            value = node.meta.get("val")
            for item in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(item, torch.Tensor) and item.device.type == ours:
                    return item.device.index or 0
        return -1
