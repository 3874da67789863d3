"""`torch.<name>` after `torchfl.shutdown()`: PyTorch keeps the name of the device type, and asks its module whether
there is a device when it seeds generators or pins memory.

Contract: the module says that there is none; whoever asks for one is told how to have it again.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NoReturn

from torchfl._patches import Patches

patches = Patches()


class _NoDevice(ModuleType):
    def is_available(self) -> bool:
        return False

    def device_count(self) -> int:
        return 0

    def is_initialized(self) -> bool:
        return False

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        """Nothing to seed."""

    def current_device(self) -> NoReturn:
        raise RuntimeError(f"{self.__name__}: Torch-FL was shut down; torchfl.init() makes its devices usable again")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"{self.__name__}.{name}: Torch-FL was shut down; torchfl.init() makes its devices usable again"
        )


def module(name: str) -> ModuleType:
    return _NoDevice(f"torch.{name}", "Torch-FL was shut down: there is no device.")
