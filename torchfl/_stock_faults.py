"""Faults of stock PyTorch that every renamed backend meets, and how each is worked around.

Contract: a work-around is installed only where the fault shows, on the PyTorch that is there, so none outlives its
fault.
"""

from __future__ import annotations

import enum
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


def install(patches: Patches) -> None:
    _dlpack_device(patches)


__all__ = ["dlpack_device", "install"]
