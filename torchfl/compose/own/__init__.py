"""Our own decompositions, by topic: where PyTorch has none, or one that is slow to trace, inaccurate or data-dependent.

Contract: PyTorch code that is run under the tracer, with the arguments of the operator. Registered for their overloads
in `trace.OWN` (a decomposition) or `trace.INPLACE` (the new value of the first argument of an in-place operator).
"""

from __future__ import annotations

import importlib

import torch
from torch._decomp import decomposition_table

from torchfl.compose._lean import spare_dynamo

_TOPICS = (
    "activation",
    "bags",
    "basic",
    "convolution",
    "counting",
    "distance",
    "fft",
    "foreach",
    "functions",
    "indexing",
    "linalg",
    "losses",
    "norm",
    "pooling",
    "random",
    "recurrent",
    "sampling",
    "separable",
)
_done = False


def register() -> None:
    """Fills the tables, once."""
    global _done
    if not _done:
        for topic in _TOPICS:
            importlib.import_module(f"torchfl.compose.own.{topic}")
        for module in (torch._refs, torch._refs.nn.functional, torch._refs.special, torch._refs.linalg):
            for f in vars(module).values():
                if hasattr(f, "__wrapped__"):
                    spare_dynamo(f)
        for f in decomposition_table.values():
            spare_dynamo(f)
        _done = True


def preload() -> None:
    """Imports what PyTorch's own decompositions import when they are first used (SymPy: 0.3 s), for a quiet moment."""
    import torch.fx.experimental.symbolic_shapes as module

    assert module
