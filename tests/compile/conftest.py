"""Fixtures of the tests of torch.compile."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def _fresh(npu):
    """Each test compiles anew, and what it says about fallbacks is looked at where it matters."""
    import torch

    torch._dynamo.reset()
    logger = logging.getLogger("torchfl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield
    logger.setLevel(before)
    torch._dynamo.reset()


@pytest.fixture(params=["torchfl", "inductor"])
def backend(request):
    return request.param
