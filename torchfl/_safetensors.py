"""safetensors, to devices whose names it does not know.

Contract: its `safe_open` takes a fixed list of device names and says of any other that it is invalid. With one of ours
it reads on the CPU and moves what is asked for; every other call is its own. Installed when safetensors is imported,
before or after a chip is loaded; `remove` takes it back.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from torchfl._when_imported import forget, when_imported

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


def _prepare(module: Any) -> None:
    global _stock
    _stock = module.safe_open
    _replace(_stock, safe_open)


def install() -> None:
    if _stock is None:
        when_imported("safetensors", _prepare, "safe_open")


def remove() -> None:
    global _stock
    forget("safetensors")
    if _stock is not None:
        stock, _stock = _stock, None
        _replace(safe_open, stock)


__all__ = ["install", "remove", "safe_open"]
