"""Brings a functional graph into the operators that chips have, where tracing left others.

Contract: `run` changes the graph in place and keeps its values; new nodes carry the fake value (`meta["val"]`) of those
they stand for.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch._prims import rng_prims
from torch.fx import Graph, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true

aten = torch.ops.aten


def run(graph: Graph) -> None:
    _merge_equal(graph)
    for node in list(graph.nodes):
        if node.target is aten._native_batch_norm_legit_no_training.default:
            _inference_norm(graph, node)
        elif node.target is aten._native_batch_norm_legit_functional.default:
            _training_norm(graph, node)
        elif node.target is rng_prims.run_and_save_rng_state:
            _save_state(graph, node)
        elif node.target is rng_prims.run_with_rng_state:
            _with_state(graph, node)
        elif node.target is aten.clone.default:
            _drop_clone(graph, node)
        elif node.target is aten.expand.default:
            _drop_expand(graph, node)


def _merge_equal(graph: Graph) -> None:
    """The same operator of the same arguments gives the same, unless it draws numbers or somebody may write to it: so
    no results, and nothing before a write."""
    known: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if not isinstance(node.target, torch._ops.OpOverload) or node.target.namespace != "aten":
            continue  # what a user's operator does beside its result, nobody knows
        if node.target._schema.is_mutable or _escapes(node) or torch.Tag.nondeterministic_seeded in node.target.tags:
            continue
        if any(_is_written(_base(arg)) for arg in node.all_input_nodes):
            continue
        key = (node.target, _frozen(node.args), _frozen(node.kwargs))
        first = known.setdefault(key, node)
        if first is not node:
            node.replace_all_uses_with(first)
            graph.erase_node(node)


def _frozen(value: Any) -> Any:
    """An argument as a key: 1, 1.0 and True are different ones."""
    if isinstance(value, (list, tuple)):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        return tuple(sorted((name, _frozen(item)) for name, item in value.items()))
    return value if isinstance(value, Node) else (type(value), repr(value))


def _inference_norm(graph: Graph, node: Node) -> None:
    """input, weight, bias, running_mean, running_var, momentum, eps -> with training=False."""
    *tensors, momentum, eps = positional(node)
    with graph.inserting_before(node):
        new = graph.call_function(aten.native_batch_norm.default, (*tensors, False, momentum, eps))
    _replace(graph, node, new)


def _training_norm(graph: Graph, node: Node) -> None:
    """Its results 3 and 4 are the new running statistics: native_batch_norm writes them to its arguments."""
    source, weight, bias, mean, var, training, momentum, eps = positional(node)
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


def _save_state(graph: Graph, node: Node) -> None:
    """Checkpointing: what draws numbers here is computed again in backward, with the state that it met."""
    operator_, *args = node.args
    with graph.inserting_before(node):
        state = graph.call_function(torch.ops.torchfl.rng_state.default, (_generator_of(node),))
        drawn = graph.call_function(operator_, tuple(args), dict(node.kwargs))
    values = node.meta.get("val") or (None, None)
    for new, value in zip((state, drawn), values, strict=True):
        new.meta["val"] = value
    for user in list(node.users):
        user.replace_all_uses_with((state, drawn)[user.args[1]])
        graph.erase_node(user)
    graph.erase_node(node)


def _with_state(graph: Graph, node: Node) -> None:
    state, operator_, *args = node.args
    device = _generator_of(node)
    with graph.inserting_before(node):
        before = graph.call_function(torch.ops.torchfl.rng_state.default, (device,))
        graph.call_function(torch.ops.torchfl.set_rng_state.default, (device, state))
        drawn = graph.call_function(operator_, tuple(args), dict(node.kwargs))
        graph.call_function(torch.ops.torchfl.set_rng_state.default, (device, before))
    _replace(graph, node, drawn)


def _generator_of(node: Node) -> int:
    """The index of our device whose generator it draws from, or -1 for the CPU's."""
    ours = torch._C._get_privateuse1_backend_name()
    devices = [node.kwargs.get("device")]
    devices += [arg.meta["val"].device for arg in node.all_input_nodes if isinstance(arg.meta.get("val"), torch.Tensor)]
    for device in devices:
        if isinstance(device, torch.device) and device.type == ours:
            return device.index or 0
    return -1


def _drop_clone(graph: Graph, node: Node) -> None:
    """Dropout leaves a clone in inference. One that lies like its source serves nobody, unless it is a result, or one
    of the two is written."""
    source = node.args[0]
    val, copied = node.meta.get("val"), source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(source, Node) or val is None or copied is None:
        return
    if _escapes(node) or _is_written(node) or _is_written(_base(source)):
        return
    if same_sizes(val.shape, copied.shape) and same_sizes(val.stride(), copied.stride()):
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def _drop_expand(graph: Graph, node: Node) -> None:
    """Attention expands what has its shape already."""
    source = node.args[0]
    val, same = node.meta.get("val"), source.meta.get("val") if isinstance(source, Node) else None
    if not isinstance(source, Node) or val is None or same is None or _escapes(node):
        return
    if same_sizes(val.shape, same.shape):
        node.replace_all_uses_with(source)
        graph.erase_node(node)


def same_sizes(a: Any, b: Any) -> bool:
    return len(a) == len(b) and all(statically_known_true(x == y) for x, y in zip(a, b, strict=True))


def _makes_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is None or any(result.alias_info is not None for result in schema.returns)


def _base(node: Node) -> Node:
    """Whose memory it is a view of."""
    while node.op == "call_function" and _makes_view(node) and node.all_input_nodes:
        node = node.all_input_nodes[0]
    return node


def _escapes(node: Node) -> bool:
    """Whether it, or a view of it, is a result of the graph."""
    return any(user.op == "output" or (_makes_view(user) and _escapes(user)) for user in node.users)


def _is_written(node: Node) -> bool:
    """Whether somebody writes to it, or to a view of it."""
    for user in node.users:
        schema = getattr(user.target, "_schema", None)
        if schema is not None and schema.is_mutable:
            return True
        if user.target is aten.native_batch_norm.default and node in user.args[3:5] and user.args[5]:
            return True
        if user.op != "output" and _makes_view(user) and _is_written(user):
            return True
    return False


def positional(node: Node) -> list[Any]:
    """The arguments in the order of the schema, defaults filled in."""
    args = list(node.args)
    for argument in node.target._schema.arguments[len(args) :]:
        args.append(node.kwargs.get(argument.name, argument.default_value))
    return args


def _replace(graph: Graph, node: Node, new: Node) -> None:
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    graph.erase_node(node)
