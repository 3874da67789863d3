"""Fixtures for every test that needs a device. What needs another environment is in helpers.py."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def npu():
    """The device `npu_v3:0` of this process, as a torch.device; its chip is loaded once."""
    import torch

    import torchfl

    torchfl.load("npu_v3")
    return torch.device("npu_v3:0")
