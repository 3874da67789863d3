"""Brings a functional graph into the operators that chips have, where tracing left others.

Contract: `run` changes the graph in place and keeps its values; new nodes carry the fake value (`meta["val"]`) of those
they stand for.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten


def run(graph: Graph) -> None:
    for node in list(graph.nodes):
        if node.target is aten._native_batch_norm_legit_no_training.default:
            _inference_norm(graph, node)
        elif node.target is aten._native_batch_norm_legit_functional.default:
            _training_norm(graph, node)
        elif node.target is aten.clone.default:
            _drop_clone(graph, node)
        elif node.target is aten.expand.default:
            _drop_expand(graph, node)


def _inference_norm(graph: Graph, node: Node) -> None:
    """input, weight, bias, running_mean, running_var, momentum, eps -> with training=False."""
    *tensors, momentum, eps = _positional(node)
    with graph.inserting_before(node):
        new = graph.call_function(aten.native_batch_norm.default, (*tensors, False, momentum, eps))
    _replace(graph, node, new)


def _training_norm(graph: Graph, node: Node) -> None:
    """Its results 3 and 4 are the new running statistics: native_batch_norm writes them to its arguments."""
    source, weight, bias, mean, var, training, momentum, eps = _positional(node)
    if mean is None or var is None or not training:
        return
    with graph.inserting_before(node):
        copies = [graph.call_function(aten.clone.default, (statistic,)) for statistic in (mean, var)]
        for copy, statistic in zip(copies, (mean, var), strict=True):
            copy.meta["val"] = statistic.meta.get("val")
        new = graph.call_function(
            aten.native_batch_norm.default, (source, weight, bias, *copies, training, momentum, eps)
        )
    for user in list(node.users):
        if user.target is operator.getitem and user.args[1] in (3, 4):
            user.replace_all_uses_with(copies[int(user.args[1]) - 3])
            graph.erase_node(user)
    _replace(graph, node, new)


def _drop_clone(graph: Graph, node: Node) -> None:
    """Dropout leaves a clone in inference. One of an intermediate value serves nobody in a functional graph, unless it
    has other strides or is a result."""
    source = node.args[0]
    val, copied = node.meta.get("val"), source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(source, Node) or source.op != "call_function" or val is None or copied is None:
        return
    if any(user.op == "output" for user in node.users) or _is_written(source) or _is_written(node):
        return
    if _makes_view(source) or any(_makes_view(user) for user in node.users if user.op != "output"):
        return  # a view of it may be a result
    if tuple(val.stride()) == tuple(copied.stride()) and val.storage_offset() == copied.storage_offset() == 0:
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _drop_expand(graph: Graph, node: Node) -> None:
    """Attention expands what has its shape already."""
    source = node.args[0]
    val, same = node.meta.get("val"), source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(source, Node) or val is None or same is None or val.dim() != same.dim():
        return
    if any(user.op == "output" for user in node.users):
        return
    if all(statically_known_true(a == b) for a, b in zip(val.shape, same.shape, strict=True)):
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _makes_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _is_written(node: Node) -> bool:
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return True
        if user.target is aten.native_batch_norm.default and node in user.args[3:5]:
            return True
    return False


def _positional(node: Node) -> list[Any]:
    """The arguments in the order of the schema, defaults filled in."""
    args = list(node.args)
    for argument in node.target._schema.arguments[len(args) :]:
        args.append(node.kwargs.get(argument.name, argument.default_value))
    return args


def _replace(graph: Graph, node: Node, new: Node) -> None:
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
