"""Finds the chains of the descriptor's `fusions` in a graph, and puts the operator of the chain in their place.

Contract: a chain is taken where each link's result is read by the next link alone; reshapes between links do not
matter as long as what follows computes each element, or each row, for itself. Longer chains go first, then the order of
the descriptor. What is put in place is an operator like others (csrc/aten/graph_fused.h): whether the kernel takes the
call is decided when it runs, by the row's conditions, and it is taken apart where none does. `run` returns the kernels'
names, one for each chain found.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from torchfl._native import engine
from torchfl.compile._chips import chips_of
from torchfl.compile._normalize import positional, same_sizes
from torchfl.hcd import opnames

aten = torch.ops.aten

_RESHAPES = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_COMMUTES = (aten.add.Tensor, aten.mul.Tensor, aten.maximum.default, aten.minimum.default)


class _Link(NamedTuple):
    op: str
    overload: str
    arguments: int
    chained: int


class _Chain(NamedTuple):
    target: Any  # the fused operator
    links: tuple[_Link, ...]
    kernel: str


def run(graph: Graph) -> list[str]:
    found: list[str] = []
    for chain in _chains(graph):
        for node in list(graph.nodes):
            match = _match(chain, node)
            if match is not None and _put(graph, chain, match):
                found.append(chain.kernel)
    graph.lint()
    return found


def _chains(graph: Graph) -> list[_Chain]:
    c = engine()
    rows: dict[str, tuple[int, str]] = {}
    for chip in chips_of(graph):
        for row in chip["fusions"]:
            name = c.define_fused(row["chain"])
            rows.setdefault(name, (len(row["chain"]), row["kernel"]))
    chains = []
    for name, (_, kernel) in sorted(rows.items(), key=lambda item: -item[1][0]):
        links = tuple(_Link(*link) for link in c.fused_links(name))
        chains.append(_Chain(getattr(torch.ops.torchfl, name.partition("::")[2]).default, links, kernel))
    return chains


class _Match(NamedTuple):
    links: list[Node]
    values: list[Node]  # what each link gives: itself, or its first result
    reshapes: list[list[Node]]  # between a link and the next
    chained: list[int]  # position of the result before among the arguments of each link


def _is(node: Any, link: _Link) -> bool:
    if not isinstance(node, Node) or not isinstance(node.target, torch._ops.OpOverload):
        return False
    schema = node.target._schema
    return schema.overload_name == link.overload and (
        schema.name == link.op or (schema.name.startswith("aten::") and opnames.resolve(schema.name) == (link.op,))
    )


def _value_of(node: Node) -> Node | None:
    """What stands for its first result, if nobody reads another one."""
    if len(node.target._schema.returns) == 1:
        return node
    users = list(node.users)
    if len(users) == 1 and users[0].target is operator.getitem and users[0].args[1] == 0:
        return users[0]
    return None


def _match(chain: _Chain, first: Node) -> _Match | None:
    if not _is(first, chain.links[0]):
        return None
    value = _value_of(first)
    if value is None:
        return None
    match = _Match([first], [value], [], [-1])
    for link in chain.links[1:]:
        passed: list[Node] = []
        reader = _only_reader(value)
        while reader is not None and reader.target in _RESHAPES and not _is(reader, link):
            passed.append(reader)
            value = reader
            reader = _only_reader(value)
        if reader is None or not _is(reader, link):
            return None
        position = _position(reader, value, link)
        following = _value_of(reader)
        if position is None or following is None:
            return None
        if (any(match.reshapes) or passed) and not _row_by_row(reader, value, match.values[0], position):
            return None
        match.links.append(reader)
        match.values.append(following)
        match.reshapes.append(passed)
        match.chained.append(position)
        value = following
    return match


def _only_reader(value: Node) -> Node | None:
    return next(iter(value.users)) if len(value.users) == 1 else None


def _position(node: Node, value: Node, link: _Link) -> int | None:
    """Where `value` stands among the arguments, if the kernel's call has it there, or it may as well."""
    args = positional(node)
    places = [i for i, arg in enumerate(args) if arg is value]
    if places == [link.chained]:
        return link.chained
    swaps = node.target in _COMMUTES and len(places) == 1 and all(arg == 1 for arg in args[2:])
    return places[0] if swaps and isinstance(args[0], Node) and places[0] == 1 else None


def _shape(node: Node) -> Sequence[Any]:
    return tuple(node.meta["val"].shape)


def _row_by_row(node: Node, value: Node, start: Node, position: int) -> bool:
    """Whether the link gives the same for the value in the shape that the chain started with."""
    if sum(not isinstance(size, int) for size in _shape(start)) > 1:
        return False
    if node.target is aten.native_layer_norm.default:
        normalized = node.args[1]
        return len(normalized) == 1 and same_sizes(_shape(start)[-1:], _shape(value)[-1:])
    if torch.Tag.pointwise not in node.target.tags:
        return False
    others = [arg for i, arg in enumerate(positional(node)) if isinstance(arg, Node) and i != position]
    return all(
        isinstance(arg.meta.get("val"), torch.Tensor) and same_sizes(_shape(arg), _shape(value)) for arg in others
    )


def _put(graph: Graph, chain: _Chain, match: _Match) -> bool:
    last, result = match.links[-1], match.values[-1]
    reshaped = any(match.reshapes)
    start = [size if isinstance(size, int) else -1 for size in _shape(match.values[0])]
    with graph.inserting_before(last):
        arguments: list[Any] = []
        for i, (node, link) in enumerate(zip(match.links, chain.links, strict=True)):
            args = positional(node)
            if match.chained[i] not in (-1, link.chained):  # a commutative operator, the other way round
                args[link.chained], args[match.chained[i]] = args[match.chained[i]], args[link.chained]
            after_reshape = any(match.reshapes[:i])
            for position, arg in enumerate(args):
                if i > 0 and position == link.chained:
                    continue
                if after_reshape and isinstance(arg, Node) and torch.Tag.pointwise in node.target.tags:
                    before = arg
                    arg = graph.call_function(aten.reshape.default, (before, start))
                    arg.meta["val"] = before.meta["val"].reshape(start)
                arguments.append(arg)
        fused = graph.call_function(chain.target, tuple(arguments))
        fused.meta = {k: v for k, v in result.meta.items() if k != "val"}
        new = fused
        fused.meta["val"] = result.meta["val"].reshape(start) if reshaped else result.meta["val"]
        if reshaped:
            sizes = [node for nodes in match.reshapes for node in nodes][-1].args[1]
            new = graph.call_function(aten.view.default, (fused, sizes))
            new.meta = dict(result.meta)
    result.replace_all_uses_with(new)
    for i in reversed(range(len(match.links))):
        if match.values[i] is not match.links[i]:
            graph.erase_node(match.values[i])
        graph.erase_node(match.links[i])
        if i > 0:
            for node in reversed(match.reshapes[i - 1]):
                graph.erase_node(node)
    return True
