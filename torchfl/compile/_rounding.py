"""Compiled graphs on a chip that rounds the operands of its products (`tensor.compute_as` of the descriptor).

Contract: `rounded` makes Dynamo's graph one that runs under autocast and gives results in the dtypes that the user's
code gives; on other chips it is the graph itself. `keep_weights_whole`, on the graph of operators that comes of it,
hands weights to convolutions and products as they are: the engine lets a weight follow the dtype of the input, and
keeps what it made of it until the weight changes, so no step rounds one again.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from torchfl.compile._chips import chips_of

aten = torch.ops.aten

#: The operand that a weight may be, and the one whose dtype it follows.
_WEIGHTED = {
    aten.convolution.default: ((1, 2), 0),
    aten.convolution_backward.default: ((2,), 0),
    aten.addmm.default: ((0, 2), 1),
    aten.mm.default: ((1,), 0),
    aten.bmm.default: ((1,), 0),
    aten.baddbmm.default: ((0, 2), 1),
}
_TURNS = (aten.t.default, aten.permute.default, aten.transpose.int)


def rounding_of(graph: Graph) -> torch.dtype | None:
    """The dtype that the chip of the graph's tensors rounds operands to. Graphs of several chips are left alone."""
    found = {_rounds_to(chip) for chip in chips_of(graph)}
    name = found.pop() if len(found) == 1 else None
    return getattr(torch, name) if name else None


def _rounds_to(chip: dict[str, Any]) -> str | None:
    """None also where the device says that it gains nothing by it (`product_dtypes` of uba.h)."""
    from torchfl import _engine

    name: str | None = chip["compute_as"].get("float32")
    if name is None:
        return None
    first = _engine._loaded[chip["device_type"]].first_index
    fast = _engine.engine().properties(first)["product_dtypes"]
    return name if not fast or name in fast else None


class _Rounded(torch.nn.Module):
    """`graph` under autocast, its results in the dtypes that it gives without."""

    def __init__(self, graph: GraphModule, dtype: torch.dtype) -> None:
        super().__init__()
        self.graph = graph
        self.meta = graph.meta
        self._dtype = dtype
        (results,) = next(iter(reversed(graph.graph.nodes))).args
        self._dtypes = [_dtype_of(result) for result in results]

    def forward(self, *inputs: Any) -> Any:
        kind = torch._C._get_privateuse1_backend_name()
        # Without its cache: equal casts are merged later, and a cached one would belong to the tracing.
        with torch.autocast(kind, dtype=self._dtype, cache_enabled=False):
            results = self.graph(*inputs)
        return tuple(
            result.to(dtype) if dtype is not None and result.dtype != dtype else result
            for result, dtype in zip(results, self._dtypes, strict=True)
        )


def _dtype_of(result: Any) -> torch.dtype | None:
    value = result.meta.get("example_value") if isinstance(result, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) and value.is_floating_point() else None


def rounded(graph: GraphModule) -> torch.nn.Module:
    dtype = rounding_of(graph.graph)
    return graph if dtype is None else _Rounded(graph, dtype)


def keep_weights_whole(graph: Graph, constant: Collection[Node]) -> None:
    """`constant`: the placeholders that hold parameters and buffers."""
    for node in list(graph.nodes):
        places, leader = _WEIGHTED.get(node.target, ((), 0))
        for place in places:
            if place >= len(node.args) or not isinstance(node.args[place], Node):
                continue
            whole = _before_the_cast(graph, node, node.args[place], constant, _dtype(node.args[leader]))
            if whole is not None:
                node.update_arg(place, whole)
    graph.eliminate_dead_code()


def _before_the_cast(
    graph: Graph, reader: Node, weight: Node, constant: Collection[Node], dtype: torch.dtype | None
) -> Node | None:
    turns: list[Node] = []
    while weight.target in _TURNS:
        turns.append(weight)
        weight = weight.args[0]
    is_cast = weight.target in (aten._to_copy.default, torch.ops.prims.convert_element_type.default)
    if not is_cast or weight.args[0] not in constant or _dtype(weight) != dtype:
        return None
    source = weight.args[0]
    with graph.inserting_before(reader):
        for turn in reversed(turns):
            value = source.meta["val"]
            source = graph.call_function(turn.target, (source, *turn.args[1:]))
            source.meta = {**turn.meta, "val": turn.target(value, *turn.args[1:])}
    return source


def _dtype(node: Any) -> torch.dtype | None:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return value.dtype if isinstance(value, torch.Tensor) else None
