"""Keeps PyTorch's decompositions from importing what a trace does not need.

The wrappers of torch._refs import torch._dynamo when they are first called, which takes 0.7 s, only to tell it to stay
out. Until something else has imported it, there is nobody to tell.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch._compile

_ATTRIBUTE = "__dynamo_disable"  # where torch._compile keeps the function that it would make
_inner_code = torch._compile._disable_dynamo(lambda: None).__code__


def _later(f: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        disable = getattr(sys.modules.get("torch._dynamo"), "disable", None)
        if disable is None:
            return f(*args, **kwargs)
        kept = disable(f, True, wrapping=False)
        setattr(f, _ATTRIBUTE, kept)
        return kept(*args, **kwargs)

    return run


def spare_dynamo(decomposition: Any) -> None:
    """Postpones that import for one decomposition."""
    f = decomposition
    while f is not None:
        if getattr(f, "__code__", None) is _inner_code:
            wrapped = f.__wrapped__
            if getattr(wrapped, _ATTRIBUTE, None) is None:
                setattr(wrapped, _ATTRIBUTE, _later(wrapped))
        f = getattr(f, "__wrapped__", None)
