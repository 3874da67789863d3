"""Preparing a module when it is imported, without importing it.

Contract: `when_imported` calls `prepare` with the module right after it has run, before anyone can take names from it;
at once if it is there already. `forget` takes back what has not happened yet. Nothing here imports torch.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


class _After(importlib.abc.MetaPathFinder):
    """Calls `prepare` after one module was executed, and then has done its work."""

    def __init__(self, name: str, prepare: Callable[[Any], object]) -> None:
        self.name, self.prepare = name, prepare

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.name or self not in sys.meta_path:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self.prepare(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def when_imported(name: str, prepare: Callable[[Any], object], last_name: str) -> None:
    """`last_name` is one that the module has only once it has run: it may be half imported now."""
    module = sys.modules.get(name)
    if module is not None and hasattr(module, last_name):
        prepare(module)
    elif not any(isinstance(finder, _After) and finder.name == name for finder in sys.meta_path):
        sys.meta_path.insert(0, _After(name, prepare))


def forget(*names: str) -> None:
    sys.meta_path[:] = [f for f in sys.meta_path if not (isinstance(f, _After) and f.name in names)]


__all__ = ["forget", "when_imported"]
