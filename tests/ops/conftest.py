"""Fixtures of the operator tests."""

from __future__ import annotations

import logging

import pytest


@pytest.fixture(autouse=True)
def _device(npu):
    """Every test here needs the device; what it says about fallbacks is looked at where it matters, not printed."""
    logger = logging.getLogger("torchfl")
    before = logger.level
    logger.setLevel(logging.ERROR)
    yield npu
    logger.setLevel(before)
