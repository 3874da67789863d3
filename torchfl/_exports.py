"""Telling the engine which CPU tensors' memory was handed out by DLPack: it is never shared with a device.

Contract: numpy marks such a storage itself (it can no longer be resized), DLPack leaves no mark. So its functions are
wrapped, where a chip is loaded that shares host memory. `shutdown` takes that back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.utils.dlpack

from torchfl._patches import Patches


def _noting(note: Callable[[torch.Tensor], None], stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def export(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        capsule = stock(tensor, *args, **kwargs)
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
            note(tensor)
        return capsule

    return export


def install(c: ModuleType, patches: Patches) -> None:
    """Once for all chips: `c` is the engine."""
    if hasattr(torch.Tensor.__dlpack__, "__wrapped__"):
        return
    for owner, name in ((torch.Tensor, "__dlpack__"), (torch.utils.dlpack, "to_dlpack"), (torch, "to_dlpack")):
        if hasattr(owner, name):
            patches.attribute(owner, name, _noting(c.note_exported, getattr(owner, name)))
