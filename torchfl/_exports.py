"""Telling the engine which CPU tensors' memory was handed out, and of which nobody else can know.

Contract: memory that code outside of PyTorch may write is never shared with a device (csrc/aten/unified.h). numpy
leaves a mark on a storage (it can no longer be resized), DLPack leaves none, and tensors of `torch.load` and
`pin_memory` have the mark from the beginning. So these functions are wrapped, where a chip is loaded that shares the
host's memory. `shutdown` takes that back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.utils.dlpack

from torchfl._patches import Patches

_MARK = "_torchfl_notes"


def _exporting(note: Callable[[torch.Tensor], None], stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def export(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        capsule = stock(tensor, *args, **kwargs)
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu":
            note(tensor)
        return capsule

    setattr(export, _MARK, True)
    return export


def _making(note: Callable[[torch.Tensor], None], stock: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(stock)
    def make(self: Any, *args: Any, **kwargs: Any) -> Any:
        made = stock(self, *args, **kwargs)
        if isinstance(made, torch.Tensor) and made is not self and made.layout is torch.strided:
            note(made)
        return made

    setattr(make, _MARK, True)
    return make


def install(c: ModuleType, patches: Patches) -> None:
    """Once for all chips: `c` is the engine."""
    if hasattr(torch._C._to_dlpack, _MARK):
        return
    for owner, name in (
        (torch._C, "_to_dlpack"),
        (torch._C, "_to_dlpack_versioned"),
        (torch.utils.dlpack, "to_dlpack"),
        (torch, "to_dlpack"),
    ):
        if hasattr(owner, name):
            patches.attribute(owner, name, _exporting(c.note_exported, getattr(owner, name)))
    patches.attribute(torch.Tensor, "pin_memory", _making(c.note_fresh, torch.Tensor.pin_memory))
    reader = torch._C.PyTorchFileReader
    patches.attribute(reader, "get_storage_from_record", _making(c.note_fresh, reader.get_storage_from_record))
