"""Faults of stock PyTorch that every renamed backend meets, and how each is worked around.

Contract: a work-around is installed only where the fault shows, on the PyTorch that is there, so none outlives its
fault; `remove` takes all of them back.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

import torch

_undo: list[Callable[[], None]] = []


def _dlpack_device(type_name: str) -> None:
    """`Tensor.__dlpack_device__` compares the device type with the literal "privateuse1" (2.13, 2.14), so that
    `from_dlpack` of a tensor on a renamed backend says that the device type is unknown."""
    stock = torch.Tensor.__dlpack_device__
    try:
        stock(torch.empty(0, device=torch.device(type_name, 0)))  # without elements it opens no device
        return
    except ValueError:
        pass

    def __dlpack_device__(self: torch.Tensor) -> tuple[enum.IntEnum, int]:
        if self.device.type != type_name:
            return stock(self)
        from torch.utils.dlpack import DLDeviceType

        return DLDeviceType.kDLExtDev, self.device.index

    torch.Tensor.__dlpack_device__ = __dlpack_device__
    _undo.append(lambda: setattr(torch.Tensor, "__dlpack_device__", stock))


def install(type_name: str) -> None:
    """Work around what is wrong with devices of PyTorch's type `type_name`."""
    if not _undo:
        _dlpack_device(type_name)


def remove() -> None:
    while _undo:
        _undo.pop()()


__all__ = ["install", "remove"]
