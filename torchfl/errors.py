"""The exceptions of this package that are not PyTorch's own. Contract: imports neither torch nor native code."""

from __future__ import annotations


class LoadError(RuntimeError):
    """A chip, its descriptor or its adapter cannot be used; the message says which, why, and what to do."""


class UnsupportedOpError(NotImplementedError):
    """No path that the descriptor (or strict mode) allows can run an operator call; the message tells the operator, the
    device, the dtype, what would be accepted, and a change that makes it so."""


class BudgetError(UnsupportedOpError):
    """In strict mode: more left the chip in a step than the descriptor's `fallback.budget` allows. The step is done."""


class VersionError(LoadError):
    """The engine was compiled for another PyTorch than the one that is installed."""
