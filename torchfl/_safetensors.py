"""safetensors, to devices whose names it does not know.

Contract: its `safe_open` takes a fixed list of device names and says of any other that it is invalid. With one of ours
it reads on the CPU and moves what is asked for; every other call is its own. Installed when safetensors is imported,
before or after a chip is loaded; `remove` takes it back.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import torch

_stock: Any = None


def _ours(device: Any) -> torch.device | None:
    if not isinstance(device, (str, torch.device)):
        return None
    try:
        parsed = torch.device(device)
    except RuntimeError:
        return None  # safetensors' to refuse
    return parsed if parsed.type == torch._C._get_privateuse1_backend_name() else None


class _Slice:
    """What `get_slice` gives: indexing reads."""

    def __init__(self, inner: Any, device: torch.device) -> None:
        self._inner, self._device = inner, device

    def __getitem__(self, index: Any) -> Any:
        return self._inner[index].to(self._device)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _Opened:
    def __init__(self, inner: Any, device: torch.device) -> None:
        self._inner, self._device = inner, device

    def get_tensor(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._inner.get_tensor(name).to(self._device)
        return tensor

    def get_tensors(self, *args: Any, **kwargs: Any) -> dict[str, torch.Tensor]:
        loaded = self._inner.get_tensors(*args, **kwargs)
        return {name: tensor.to(self._device) for name, tensor in loaded.items()}

    def get_slice(self, name: str) -> _Slice:
        return _Slice(self._inner.get_slice(name), self._device)

    def __enter__(self) -> _Opened:
        self._inner.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self._inner.__exit__(*exc)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def safe_open(filename: Any, framework: str, device: Any = "cpu", **options: Any) -> Any:
    """As safetensors.safe_open, for our devices too."""
    ours = _ours(device) if framework in ("pt", "torch", "pytorch") else None
    if ours is None:
        return _stock(filename, framework, device, **options)
    return _Opened(_stock(filename, framework, "cpu", **options), ours)


def _replace(old: Any, new: Any) -> None:
    """In every module that has it by name."""
    for module in list(sys.modules.values()):
        if isinstance(module, ModuleType) and module.__dict__.get("safe_open") is old:
            vars(module)["safe_open"] = new


class _WhenImported(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Installs as soon as safetensors is imported, before anyone can take its `safe_open` by name."""

    def __init__(self) -> None:
        self._loader: Any = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "safetensors":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        install()


def install() -> None:
    global _stock
    if _stock is not None:
        return
    module = sys.modules.get("safetensors")
    if module is None:
        if not any(isinstance(finder, _WhenImported) for finder in sys.meta_path):
            sys.meta_path.insert(0, _WhenImported())
        return
    _stock = module.safe_open
    _replace(_stock, safe_open)


def remove() -> None:
    global _stock
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, _WhenImported)]
    if _stock is not None:
        stock, _stock = _stock, None
        _replace(safe_open, stock)


__all__ = ["install", "remove", "safe_open"]
