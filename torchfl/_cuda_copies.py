"""What `torch.nn.DataParallel` asks of CUDA's library: copies between devices and back, which a CPU build has not.

Contract: the functions have the names and arguments of torch._C's; devices are indices of `torch.cuda`. They are made
of copies that autograd does not see, as those are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def _at(index: int) -> torch.device:
    return torch.device("cpu") if index < 0 else torch.device("cuda", index)


def _scatter(
    tensor: Tensor, devices: Sequence[int], chunk_sizes: Sequence[int] | None, dim: int, streams: object
) -> list[Tensor]:
    parts = tensor.split(list(chunk_sizes), dim) if chunk_sizes else tensor.chunk(len(devices), dim)
    return [part.to(_at(device), non_blocking=True) for part, device in zip(parts, devices, strict=False)]


def _gather(tensors: Sequence[Tensor], dim: int, destination: int | None) -> Tensor:
    target = torch.device("cuda", torch.cuda.current_device()) if destination is None else _at(destination)
    return torch.cat([tensor.to(target) for tensor in tensors], dim)


def _broadcast(tensor: Tensor, devices: Sequence[int]) -> list[Tensor]:
    return [tensor.to(_at(device), non_blocking=True) for device in devices]


def _broadcast_coalesced(tensors: Sequence[Tensor], devices: Sequence[int], buffer_size: int) -> list[list[Tensor]]:
    return [[tensor.to(_at(device), non_blocking=True) for tensor in tensors] for device in devices]


ALL = (_scatter, _gather, _broadcast, _broadcast_coalesced)
