"""Shared by the tests of the descriptor reader."""

import pytest


@pytest.fixture
def write(tmp_path):
    """Writes a descriptor: `write(text)` or `write(text, "name")`; returns its path."""

    def _write(text, name="chip.hcd"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return _write
