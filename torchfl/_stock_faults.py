"""Faults of stock PyTorch that every renamed backend meets, and how each is worked around.

Contract: a work-around is installed only where the fault shows, on the PyTorch that is there, so none outlives its
fault.
"""

from __future__ import annotations

import enum
import functools
import threading
from collections.abc import Callable
from typing import Any

import torch

from torchfl._patches import Patches


def dlpack_device(stock: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """`Tensor.__dlpack_device__` that knows our devices, whatever the type is called when it is asked."""

    def __dlpack_device__(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
        if self.device.type != torch._C._get_privateuse1_backend_name():
            return stock(self)
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index

    return __dlpack_device__


def _dlpack_device(patches: Patches) -> None:
    """`Tensor.__dlpack_device__` compares the device type with the literal "privateuse1" (2.13, 2.14), so that
    `from_dlpack` of a tensor on a renamed backend says that the device type is unknown."""
    stock = torch.Tensor.__dlpack_device__
    try:
        # Without elements it opens no device.
        stock(torch.empty(0, device=torch.device(torch._C._get_privateuse1_backend_name(), 0)))
    except ValueError:
        patches.attribute(torch.Tensor, "__dlpack_device__", dlpack_device(stock))


def _moved_parameters(patches: Patches) -> None:
    """`Module.to` puts a new parameter in the place of each that goes to a renamed backend (`.data` of a CPU tensor
    cannot be set to one of its tensors), once for each module that has it. So an optimizer that was made before trains
    what nobody uses, and what was one parameter, as tied embeddings are, comes apart. As on CUDA the parameter is to
    stay the object that it was. Where it cannot (a graph or a weak reference holds it), it is replaced, once for all.
    """
    cpu, ours = torch.empty(0), torch.empty(0, device=torch.device(torch._C._get_privateuse1_backend_name(), 0))
    if torch._has_compatible_shallow_copy_type(cpu, ours):
        return
    inside = threading.local()
    stock = torch.nn.Module._apply

    @functools.wraps(stock)
    def _apply(self: torch.nn.Module, fn: Callable[..., Any], recurse: bool = True) -> Any:
        if getattr(inside, "a_call", False):
            return stock(self, fn, recurse)
        places: dict[int, list[tuple[dict[str, Any], str, Any]]] = {}
        for module in self.modules() if recurse else (self,):
            for key, parameter in module._parameters.items():
                if parameter is not None:
                    places.setdefault(id(parameter), []).append((module._parameters, key, parameter))
        inside.a_call = True
        try:
            applied = stock(self, fn, recurse)
        finally:
            inside.a_call = False
        for (held, key, before), *others in places.values():
            made = held[key]
            if made is before:
                continue
            attributes = dict(vars(before))
            try:
                torch.utils.swap_tensors(before, made)
                vars(before).update(attributes)
                made = before
            except RuntimeError:
                pass
            for parameters, name in ((held, key), *((p, n) for p, n, _ in others)):
                parameters[name] = made
        return applied

    patches.attribute(torch.nn.Module, "_apply", _apply)


def install(patches: Patches) -> None:
    _dlpack_device(patches)
    _moved_parameters(patches)


__all__ = ["dlpack_device", "install"]
