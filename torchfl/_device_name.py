"""The name of PyTorch's one out-of-tree device type in this process.

Contract: the first chip's `device_type` names it, unless the user asks for another name (by
`torchfl.init(device_name=...)` or `TORCHFL_DEVICE_NAME`). PyTorch takes the name once a process, so it is settled when
the first chip is loaded; the chips' names go on working beside it. A chosen name means the devices of all chips.
PyTorch does not let the type have the name of a device type of its own. Where the first chip is called so ("xpu:x1"),
the type takes the variant's name (x1), and is printed and read by the chip's.
"""

from __future__ import annotations

import os
import re
from types import ModuleType
from typing import Any

from torchfl.errors import LoadError

#: What PyTorch calls the type before someone names it.
UNNAMED = "privateuseone"
VARIABLE = "TORCHFL_DEVICE_NAME"
#: Device types that PyTorch parses itself (c10/core/Device.cpp).
_TAKEN = frozenset(
    (
        *("xpu", "mkldnn", "opengl", "opencl", "ideep", "hip", "ve", "fpga", "maia", "xla", "lazy", "vulkan", "mps"),
        *("meta", "hpu", "mtia", "ipu", UNNAMED),
    )
)

_requested: str | None = None


def request(name: str | None) -> None:
    """Ask for a name before the first chip is loaded; None leaves it to `TORCHFL_DEVICE_NAME` and the chip.

    Raises LoadError if the name cannot be one, or if the type has another one by now.
    """
    global _requested
    if name is None:
        return
    check(name)
    now = current()
    if now not in (UNNAMED, name):
        raise LoadError(
            f"device_name='{name}': the device type of this process is named '{now}' already, and PyTorch takes a name "
            f"once: call torchfl.init(device_name='{name}') before any chip is loaded, or set {VARIABLE}={name}"
        )
    _requested = name


def requested() -> str | None:
    """The name that was asked for, if any. Raises LoadError if the one in the environment cannot be one."""
    if _requested is not None:
        return _requested
    from torchfl._children import PARENTS_NAME

    for variable in (VARIABLE, PARENTS_NAME):
        name = os.environ.get(variable, "")
        if name:
            check(name, f"{variable}=")
            return name
    return None


def current() -> str:
    """The name that PyTorch knows the type by, whatever it is printed as."""
    import sys

    if "torch" not in sys.modules:
        return UNNAMED
    from torch.utils import backend_registration

    return str(backend_registration._privateuse1_backend_name)


_ours: str | None = None  # what this package has named the type


def choose(device_type: str, variant: str | None = None) -> str:
    """The name that the type is to have, with `device_type` as its first chip.

    Raises LoadError if another backend has named it, or the name is taken.
    """
    import torch

    name, now = requested() or _own_name(device_type, variant), current()
    if now != UNNAMED and now == _ours:
        return now  # a process that was shut down keeps the name, as PyTorch does
    if now != UNNAMED:
        raise LoadError(
            f"another PyTorch backend, '{now}', already holds the one out-of-tree device type of this process: "
            "uninstall it, or start a process in which only Torch-FL is loaded"
        )
    # What is there, not what a look would bring about: `torch` may know the name only in order to load chips.
    owners = {"torch": {*vars(torch)}, "torch.Tensor": {*dir(torch.Tensor)}, "nn.Module": {*dir(torch.nn.Module)}}
    for what, taken in owners.items():
        if name != device_type and name in taken:
            raise LoadError(f"device name '{name}': {what}.{name} is PyTorch's own; choose another name")
    return name


def _own_name(device_type: str, variant: str | None) -> str:
    if device_type not in _TAKEN:
        return device_type
    import torch

    for name in (variant or "", f"{device_type}_{variant}", f"{device_type}_chip"):
        try:
            check(name)
        except LoadError:
            continue
        if not any(hasattr(owner, name) for owner in (torch.Tensor, torch.nn.Module)) and name not in vars(torch):
            return name
    raise LoadError(f"'{device_type}' is a device type of PyTorch's own, and no other name is free")


_shown = ""  # what this package has it printed as, if that is not its name


def show(engine: ModuleType, device_type: str) -> None:
    """Have the type printed as its first chip is called, where PyTorch does not let it have that name."""
    global _shown
    _shown = device_type if device_type in _TAKEN and requested() is None else ""
    reason = show_again(engine)
    if reason:
        raise LoadError(f"the device name '{device_type}' cannot be printed: {reason}; choose another by {VARIABLE}")


def show_again(engine: ModuleType) -> str:
    """After another name was shown for a while."""
    return str(engine.show_device_name(_shown))


def shown() -> str:
    return _shown


def give(name: str) -> None:
    """Have PyTorch call the type by a name that was chosen."""
    global _ours
    import torch

    if current() == UNNAMED:
        torch.utils.rename_privateuse1_backend(name)
    _ours = name


def check(name: Any, source: str = "device_name=") -> None:
    """Raises LoadError if `name` cannot name a device type of PyTorch, and says why."""
    text = str(name)
    reason = ""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        reason = "it must be letters, digits and underscores, and begin with no digit"
    elif text.lower() != text:
        reason = f"PyTorch compares names in lower case: write '{text.lower()}'"
    elif text.startswith(("cpu", "cuda")):
        reason = "torch.load takes every name that begins with cpu or cuda for that device"
        if text == "cuda":
            reason += "; scripts written for CUDA run under `torchfl run --as-cuda` or torchfl.as_cuda()"
    elif text in _TAKEN:
        reason = "it is a device type of PyTorch's own"
    if reason:
        raise LoadError(f"{source}{text!r} cannot name the device type: {reason}")
