"""Keeps images in the order of memory that the chip's convolutions want, between the operators of a compiled graph.

Contract: for chips whose descriptor says `tensor.compiled_layout`. `run` has a convolution's input put in that order
where it is not, follows what becomes of it through the graph, and puts results of the graph back in the order that the
user's code gives; so nobody sees it. Values do not change. A graph in which something depends on strides in another way
is left as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, Node

from torchfl.compile._chips import chips_of
from torchfl.compile._normalize import same_sizes

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default)
_LAST = torch.channels_last


def run(graph: Graph) -> None:
    layouts = {chip["compiled_layout"] for chip in chips_of(graph)}
    if layouts != {"NHWC"}:
        return
    values: dict[Node, Any] = {}  # where they are others than before
    try:
        edits = [edit for node in graph.nodes for edit in _follow(node, values)]
    except _Unlike:
        return
    for kind, node, arg in edits:
        if kind == "reshape":
            node.target = aten.reshape.default
        else:
            format = _LAST if kind == "last" else torch.contiguous_format
            with graph.inserting_before(node):
                copy = graph.call_function(aten.clone.default, (arg,), {"memory_format": format})
            copy.meta["val"] = arg.meta["val"].contiguous(memory_format=format)
            node.replace_input_with(arg, copy)
    for node, value in values.items():
        node.meta["val"] = value


class _Unlike(Exception):
    """Something that cannot be followed."""


def _follow(node: Node, values: dict[Node, Any]) -> list[tuple[str, Node, Node]]:
    """Notes what the node gives now, and tells what has to be done for it."""
    if node.op == "output":
        changed = [arg for arg in node.all_input_nodes if arg in values]
        if not all(arg.meta["val"].is_contiguous() for arg in changed):
            raise _Unlike
        return [("first", node, arg) for arg in changed]
    if node.op != "call_function":
        return []
    edits: list[tuple[str, Node, Node]] = []
    convolves = node.target is aten.convolution.default and not node.args[6] and _value(node.args[0], values).dim() == 4
    if convolves and not _is_last(_value(node.args[0], values)):
        edits.append(("last", node, node.args[0]))
    elif not any(arg in values for arg in node.all_input_nodes):
        return []
    if getattr(node.target, "_schema", None) is not None and node.target._schema.is_mutable:
        raise _Unlike
    if convolves:  # PyTorch's own rule for shapes does not know the chip
        values[node] = node.meta["val"].contiguous(memory_format=_LAST)
        return edits
    if node.target in (aten.as_strided.default, aten.set_.source_Tensor):
        raise _Unlike
    old = node.meta.get("val")
    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda arg: _value(arg, values))
    target = node.target
    if target in _VIEWS:
        try:
            new = target(*args, **kwargs)
        except (RuntimeError, ValueError):
            edits.append(("reshape", node, node))
            new = aten.reshape.default(*args, **kwargs)
    elif callable(target):
        new = target(*args, **kwargs)
    if _strides(new) != _strides(old):
        values[node] = new
    return edits


def _value(arg: Any, values: dict[Node, Any]) -> Any:
    return values.get(arg, arg.meta.get("val")) if isinstance(arg, Node) else arg


def _strides(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(str(stride) for size, stride in zip(value.shape, value.stride(), strict=True) if size != 1)
    return [_strides(item) for item in value] if isinstance(value, (list, tuple)) else None


def _is_last(value: torch.Tensor) -> bool:
    _, c, h, w = value.shape
    wanted: Sequence[Any] = (c * h * w, 1, w * c, c)
    return same_sizes(value.stride(), wanted)
