"""The exceptions of this package that are not PyTorch's own. Contract: imports neither torch nor native code."""

from __future__ import annotations


class LoadError(RuntimeError):
    """A chip, its descriptor or its adapter cannot be used; the message says which, why, and what to do."""


class VersionError(LoadError):
    """The engine was compiled for another PyTorch than the one that is installed."""
