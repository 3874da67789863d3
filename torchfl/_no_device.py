"""What is left after `torchfl.shutdown()`: PyTorch cannot forget a device type that was named, and goes on asking its
module whether there is a device, when it seeds generators or pins memory.

Contract: the type is printed and read as before it was named, as PyTorch's own parser may refuse its name. Its module
says that there is no device; whoever wants one is told how to have it again.
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


def install(engine: ModuleType) -> None:
    from torchfl._device_module import attach
    from torchfl._device_name import UNNAMED

    patches.undo()
    engine.show_device_name(UNNAMED)
    patches.on_undo(lambda: engine.show_device_name(""))
    attach(patches, UNNAMED, _NoDevice(f"torch.{UNNAMED}", "Torch-FL was shut down: there is no device."))
