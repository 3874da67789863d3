"""Torch-FL: any AI chip runs stock PyTorch from one YAML file and a tiny adapter.

Contract: importing this package imports neither torch nor any native code; the first call that needs a device does.

    import torchfl
    torchfl.load("npu_v3")                     # a shipped chip by name, or the path of a descriptor
    x = torch.ones(4, device="npu_v3:0")       # from here on everything is stock PyTorch
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from torchfl import profiler as profiler
    from torchfl._as_cuda import as_cuda
    from torchfl._default_device import set_default_device
    from torchfl._engine import (
        LoadedChip,
        chips,
        devices,
        explain,
        init,
        load,
        load_hcd,
        load_uba,
        register_fallback,
        reset_stats,
        shutdown,
        stats,
        step,
        strict,
        timing,
        transfers,
    )
    from torchfl._paths import get_include
    from torchfl.errors import BudgetError, LoadError, UnsupportedOpError, VersionError
    from torchfl.hcd import DescriptorError

__all__ = [
    "BudgetError",
    "DescriptorError",
    "LoadError",
    "LoadedChip",
    "UnsupportedOpError",
    "VersionError",
    "__version__",
    "as_cuda",
    "chips",
    "devices",
    "explain",
    "get_include",
    "init",
    "load",
    "load_hcd",
    "load_uba",
    "profiler",
    "register_fallback",
    "reset_stats",
    "set_default_device",
    "shutdown",
    "stats",
    "step",
    "strict",
    "timing",
    "transfers",
]

_HOME = {
    "BudgetError": "torchfl.errors",
    "DescriptorError": "torchfl.hcd",
    "LoadError": "torchfl.errors",
    "UnsupportedOpError": "torchfl.errors",
    "VersionError": "torchfl.errors",
    "as_cuda": "torchfl._as_cuda",
    "get_include": "torchfl._paths",
    "set_default_device": "torchfl._default_device",
}

#: Modules of the package that are there without an import of their own.
_MODULES = ("profiler",)


def __getattr__(name: str) -> Any:
    """Public names are imported when they are first asked for, so that `import torchfl` stays cheap."""
    if name not in __all__:
        raise AttributeError(f"module 'torchfl' has no attribute {name!r}")
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"torchfl.{name}")
    value = getattr(importlib.import_module(_HOME.get(name, "torchfl._engine")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
