"""Fixtures of the main job's tests."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "resnet50_digits.py"


def _load(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def script() -> Path:
    return SCRIPT


@pytest.fixture(scope="session")
def example() -> ModuleType:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    return _load(SCRIPT, "resnet50_digits_example")


@pytest.fixture(scope="session")
def rounds() -> ModuleType:
    import sys

    name = "torchfl_benchmark_rounds"
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / "rounds.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def bench() -> Callable[[str], ModuleType]:
    """A benchmark by its name, as a module."""
    import sys

    def load(name: str) -> ModuleType:
        full = f"torchfl_benchmark_{name}"
        if full not in sys.modules:
            spec = importlib.util.spec_from_file_location(full, ROOT / "benchmarks" / f"{name}.py")
            assert spec is not None and spec.loader is not None
            sys.modules[full] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[full])
        return sys.modules[full]

    return load
