"""`torchfl.set_default_device`: one device for what a script leaves open.

Contract: two settings of PyTorch's are made together, so that they cannot disagree: factories that are given no device
make tensors there (`torch.set_default_device`), and where a device is named without an index, or an accelerator is
meant without a name (`torch.accelerator`), it is that one. Like PyTorch's, both are the calling thread's.
"""

from __future__ import annotations

from typing import Any

from torchfl.errors import LoadError


def set_default_device(device: Any) -> None:
    """Make `device` the one that is meant where none is named: "xpu", "npu_v3:1", a torch.device; "cpu" or None leave
    factories to the CPU, and the current device as it is.

    Works before a chip was loaded: naming it loads it. Other devices go on working by their names. Raises LoadError if
    it is no device of this process.
    """
    import torch

    from torchfl._native import engine

    if device is None:
        torch.set_default_device(None)
        return
    try:
        target = torch.device(device)
    except RuntimeError as error:
        raise LoadError(f"set_default_device: {str(error).splitlines()[0]}; {_known()}") from error
    c = engine()
    ours = torch._C._get_privateuse1_backend_name()
    if target.type == ours and c.device_count() > 0:
        index = _meant(c.current_device(), str(device)) if target.index is None else target.index
        if not 0 <= index < c.device_count():
            raise LoadError(f"set_default_device: there is no device '{device}'; {_known()}")
        torch.accelerator.set_device_index(index)
        target = torch.device(ours, index)
    elif target.type != "cpu":
        raise LoadError(f"set_default_device: '{device}' is no device of Torch-FL's; {_known()}")
    torch.set_default_device(target)


def _meant(current: int, name: str) -> int:
    """Without an index: the current device if the name means it too, else the first that it means."""
    from torchfl import chips

    for chip in chips():
        if chip.device_type == name and not chip.first_index <= current < chip.first_index + chip.count:
            return chip.first_index
    return current


def _known() -> str:
    from torchfl import chips

    labels = [label for chip in chips() for label in chip.labels]
    return f"there are: {', '.join(labels) or 'none'}, cpu"
