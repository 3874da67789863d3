"""`torch.compile` for our devices: `backend="torchfl"`, and what stock PyTorch asks a device for.

Contract: importing this package imports no torch. `backend` is what PyTorch calls for `backend="torchfl"` (entry point
`torch_dynamo_backends`). `install` makes the name known without that entry point, tells Dynamo of the
device, and has the default backend leave graphs of our devices to this one; all that happens when PyTorch imports the
modules concerned, never before, since they take seconds. `remove` undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def backend(graph: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """Compile one graph of Dynamo's: forward, and backward where gradients are wanted.

    `options={"fusions": False}` leaves the descriptor's fusions out. A graph that cannot become a program runs operator
    by operator, with a line in the log that says why.
    """
    from torchfl.compile._backend import compile_graph

    return compile_graph(graph, example_inputs, **kwargs)


def install() -> None:
    """Tell PyTorch of the backend and of our devices, now or when it gets there. Calling it again is harmless."""
    from torchfl.compile import _hooks

    _hooks.install()


def remove() -> None:
    """Give the default backend back to PyTorch."""
    from torchfl.compile import _hooks

    _hooks.remove()


def programs() -> list[dict[str, Any]]:
    """The programs of this process that are alive, oldest first: name, steps, fusions (kernel names of the descriptor's
    rows that took part), and memory: planned_bytes (of the one block that its intermediates share), separate_bytes
    (what they would take without sharing), runs, planned_runs."""
    import sys

    module = sys.modules.get("torchfl.compile._lower")
    return module.alive() if module is not None else []
