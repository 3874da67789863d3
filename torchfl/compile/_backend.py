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
from torchfl.compile import _fusions, _lower, _normalize

_OPTIONS = {"fusions": True}


def compile_graph(graph: torch.fx.GraphModule, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    options = {**_OPTIONS, **(kwargs.pop("options", None) or {})}
    kwargs.pop("mode", None)  # Inductor's; it means nothing for programs
    unknown = (set(options) - set(_OPTIONS)) | {name for name, value in kwargs.items() if value is not None}
    if unknown:
        raise ValueError(
            f"torch.compile(backend='torchfl') has no option {', '.join(sorted(unknown))}; known: {', '.join(_OPTIONS)}"
        )

    def compiler(part: str) -> Callable[..., Any]:
        return lambda gm, _inputs: _program_of(gm, part, options)

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
            result: Callable[..., Any] = compiled(graph, list(example_inputs))
            return result
    except (TorchDynamoException, ConstraintViolationError):
        raise  # about Dynamo's own work: it knows what to do
    except Exception as error:
        _uncompiled("as Dynamo gave it", error)
        return graph.forward


def _program_of(gm: torch.fx.GraphModule, part: str, options: dict[str, Any]) -> Callable[..., Any]:
    try:
        _normalize.run(gm.graph)
        fused = _fusions.run(gm.graph) if options["fusions"] else []
        return _lower.program(gm, part, fused)
    except _lower.NoProgram as reason:
        _uncompiled(part, reason)
    except Exception as error:
        _uncompiled(part, error)
    gm.recompile()
    runs: Callable[..., Any] = make_boxed_func(gm.forward)
    return runs


def _uncompiled(what: str, reason: Exception) -> None:
    lines = str(reason).strip().splitlines() or ["no reason given"]
    kind = "" if isinstance(reason, _lower.NoProgram) else f"{type(reason).__name__}: "
    log.warning("torch.compile: a graph (%s) runs operator by operator: %s%s", what, kind, lines[0])
