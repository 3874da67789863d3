"""The whole of PyTorch's `op_db`: how much of it composes, forward and backward, with right values."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ROOT


def _coverage(tmp_path: Path, *more: str) -> dict[str, list[str]]:
    out = tmp_path / "coverage.json"
    command = [sys.executable, str(ROOT / "tools" / "compose_coverage.py"), "--json", str(out), *more]
    subprocess.run(command, check=True, capture_output=True, timeout=1800)
    entries: dict[str, list[str]] = json.loads(out.read_text(encoding="utf-8"))["entries"]
    return entries


@pytest.mark.slow
def test_most_of_op_db_composes(tmp_path: Path) -> None:
    entries = _coverage(tmp_path)
    assert len(entries) > 600
    covered = sum(not reasons for reasons in entries.values())
    assert covered >= 0.9 * len(entries)


@pytest.mark.slow
def test_nothing_composes_to_wrong_values(tmp_path: Path) -> None:
    """But where the CPU leaves a result undefined, or another order of additions shows."""
    entries = _coverage(tmp_path, "--samples", "3")
    known = {"nn.functional.embedding_bag", "nn.functional.layer_norm"}
    wrong = {name for name, reasons in entries.items() if any("wrong" in r for r in reasons)}
    assert wrong <= known
