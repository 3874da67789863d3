"""From Dynamo's graph to programs: AOTAutograd makes graphs of operators below autograd, each becomes one program.

Contract: `compile_graph` returns what runs in the graph's place. Nothing here decides what runs where: each step of a
program is routed like an eager call. What cannot be a program runs as the graph that it is, and the log says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from functorch.compile import default_partition, make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.exc import TorchDynamoException
from torch.fx.experimental.symbolic_shapes import ConstraintViolationError

from torchfl._native import log
from torchfl.compile import _fusions, _layout, _lower, _normalize, _rounding

_OPTIONS = {"fusions": True}


def compile_graph(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    options = {**_OPTIONS, **(kwargs.pop("options", None) or {})}
    kwargs.pop("mode", None)  # Inductor's; it means nothing for programs
    unknown = (set(options) - set(_OPTIONS)) | {name for name, value in kwargs.items() if value is not None}
    if unknown:
        raise ValueError(
            f"torch.compile(backend='torchfl') has no option {', '.join(sorted(unknown))}; known: {', '.join(_OPTIONS)}"
        )

    kept = [i for i, example in enumerate(example_inputs) if _is_constant(example)]
    constant: set[str] = set()  # names of the placeholders that hold parameters and buffers, in forward and backward

    def compiler(part: str) -> Callable[..., Any]:
        def compile_part(gm: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            if part != "backward" and len(inputs) == len(example_inputs):  # else they are no more the same ones
                names = [node.name for node in gm.graph.nodes if node.op == "placeholder"]
                constant.update(names[i] for i in kept)
            return _program_of(gm, part, options, constant)

        return compile_part

    compiled = aot_autograd(
        fw_compiler=compiler("forward"),
        bw_compiler=compiler("backward"),
        inference_compiler=compiler("inference"),
        # Nothing is computed twice: steps are commands of their own, so recomputing saves no traffic.
        partition_fn=default_partition,
        keep_inference_input_mutations=True,
    )
    try:
        # Eager lets a graph be walked again (retain_graph), so what it saved stays as it was.
        with torch._functorch.config.patch(donated_buffer=False):
            result: Callable[..., Any] = compiled(_rounding.rounded(graph), list(example_inputs))
            return result
    except (TorchDynamoException, ConstraintViolationError):
        raise  # about Dynamo's own work: it knows what to do
    except Exception as error:
        _uncompiled("as Dynamo gave it", error)
        return graph.forward


def _program_of(gm: torch.fx.GraphModule, part: str, options: dict[str, Any], constant: set[str]) -> Callable[..., Any]:
    try:
        _normalize.run(gm.graph)
        if _rounding.rounding_of(gm.graph) is not None:
            _rounding.keep_weights_whole(gm.graph, {n for n in gm.graph.nodes if n.name in constant})
        if part == "inference":  # what backward reads, it reads as it was traced
            _layout.run(gm.graph)
        fused = _fusions.run(gm.graph) if options["fusions"] else []
        return _lower.program(gm, part, fused)
    except _lower.NoProgram as reason:
        _uncompiled(part, reason)
    except Exception as error:
        _uncompiled(part, error)
    gm.recompile()
    runs: Callable[..., Any] = make_boxed_func(gm.forward)
    return runs


def _is_constant(example: Any) -> bool:
    """Whether an input of Dynamo's graph is a parameter or a buffer of a module."""
    from torch._dynamo.utils import get_static_address_type

    return isinstance(example, torch.nn.Parameter) or get_static_address_type(example) is not None


def _uncompiled(what: str, reason: Exception) -> None:
    lines = str(reason).strip().splitlines() or ["no reason given"]
    kind = "" if isinstance(reason, _lower.NoProgram) else f"{type(reason).__name__}: "
    log.warning("torch.compile: a graph (%s) runs operator by operator: %s%s", what, kind, lines[0])
