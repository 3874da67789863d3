"""Tensors of a device in messages between processes (torch.multiprocessing queues, pipes, DataLoader results).

Contract: a device's memory belongs to its process, so a tensor is sent by value: through the host, back to the device
of the same name, where the chip is loaded if it is not yet. Views of one storage in one message arrive as one storage.
Tensors on the CPU go as before.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from types import ModuleType
from typing import Any

import torch

from torchfl._patches import Patches


def restore(host: torch.UntypedStorage, label: str, descriptor: str, adapter: str) -> torch.UntypedStorage:
    """The storage in the process that receives it."""
    import torchfl

    device_type = label.partition(":")[0]
    if not torchfl.chips():
        torchfl.init()  # the sender's chips, in its order, if it is the parent
    if device_type not in {chip.device_type for chip in torchfl.chips()}:
        torchfl.load_hcd(descriptor)
        torchfl.load_uba(device_type, adapter)
    return torch.tensor([], dtype=torch.uint8).set_(host).to(torch.device(label)).untyped_storage()


def install(engine: ModuleType, patches: Patches) -> None:
    """Teach torch.multiprocessing to send storages of our devices."""
    import torch.multiprocessing  # registers its own reducers first
    from torch.multiprocessing.reductions import reduce_storage as stock

    def reduce(storage: torch.UntypedStorage) -> Any:
        if storage.device.type != torch._C._get_privateuse1_backend_name():
            return stock(storage)
        import torchfl

        label = str(engine.label(storage.device.index))
        chip = next(c for c in torchfl.chips() if label in c.labels)
        host = torch.tensor([], dtype=torch.uint8, device=storage.device).set_(storage).cpu().untyped_storage()
        return restore, (host, label, chip.descriptor, chip.adapter)

    reducers: dict[type, Any] = ForkingPickler._extra_reducers  # type: ignore[attr-defined]
    patches.item(reducers, torch.UntypedStorage, reduce)


__all__ = ["install", "restore"]
