"""Symptoms that users of similar backends reported, each a test on every chip of CHIPS.

`EveryChip` makes a test of a function for each chip: the chip is alone in a process of its own, so nothing that one
did helps or hurts the other. The function is called with a device of that chip. Names begin with `test_case_NN_`, the
number under which the symptom is known; `test_case_numbers.py` sees to it that none is missing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from helpers import OwnProcess
from opencl_support import missing

CHIPS = ("npu_v3", "fpga_mm", "opencl", "host")


def device_of(chip: str) -> Any:
    import torch

    import torchfl

    torchfl.load(chip)
    return torch.device(f"{chip}:0")


class EveryChip:
    """Decorator for tests of one file. `env` is the environment of their processes, `{chip: {name: value}}` for what
    only one chip's SDK reads."""

    def __init__(self, name: str, timeout: float = 200, chip_env: dict[str, dict[str, str]] | None = None, **env: str):
        own = chip_env or {}
        self.processes = {
            chip: OwnProcess(f"{name}_{chip}", timeout, **env, **own.get(chip, {}))
            for chip in CHIPS
            if chip_env is None or chip in own
        }

    def __call__(self, function: Callable[[Any], object]) -> Callable[[str], object]:
        for chip, process in self.processes.items():
            name, file = function.__name__, function.__code__.co_filename
            process.add(name, file, functools.partial(lambda chip: function(device_of(chip)), chip))

        @pytest.mark.parametrize("chip", list(self.processes))
        def report(chip: str) -> None:
            if chip == "opencl" and missing():
                pytest.skip(missing())
            self.processes[chip].report(function.__name__)

        report.__name__, report.__doc__, report.__module__ = function.__name__, function.__doc__, function.__module__
        return report


def same(function: Callable[..., Any], *arguments: Any, d: Any, tolerance: float = 1e-5) -> None:
    """`function` gives with its tensors on `d` what it gives on the CPU; results are tensors or tuples of them."""
    import torch

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=d).copy_(value)
        return [moved(v) for v in value] if isinstance(value, (list, tuple)) else value

    want = function(*arguments)
    got = function(*(moved(a) for a in arguments))
    wants, gots = ([want], [got]) if isinstance(want, torch.Tensor) else (want, got)
    assert len(wants) == len(gots)
    for w, g in zip(wants, gots, strict=True):
        assert g.device == d and g.dtype == w.dtype
        torch.testing.assert_close(g.cpu(), w, rtol=tolerance, atol=tolerance, equal_nan=True)
