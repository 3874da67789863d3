"""Our own decompositions, by topic: where PyTorch has none, or one that is slow to trace, inaccurate or data-dependent.

Contract: PyTorch code that is run under the tracer, with the arguments of the operator. Registered for their overloads
in `trace.OWN` (a decomposition) or `trace.INPLACE` (the new value of the first argument of an in-place operator).
"""

from __future__ import annotations

import importlib

_TOPICS = (
    "activation",
    "bags",
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
        _done = True
