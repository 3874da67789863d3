"""Reads Hardware Capability Descriptors (HCD): the file that says what a chip is and can do.

    from torchfl import hcd
    descriptor = hcd.load("npu_v3.hcd")        # DescriptorError with all diagnostics, or a Descriptor
    problems = hcd.validate("npu_v3.hcd")      # list of Diagnostic
    descriptor.model.memory.off_chip_memory    # values in base units (bytes, bytes per second, ...)
    descriptor.origins["chip.name"]            # file, line and column it was written at
    descriptor.lower()                         # plain data for the engine
    hcd.json_schema()                          # for editors

Imports no torch; the parts are loaded when first used. The format is explained in docs/descriptor.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchfl.hcd.diagnostics import DescriptorError, Diagnostic, Note, Origin
    from torchfl.hcd.reader import Descriptor, load, validate
    from torchfl.hcd.schema import json_schema

_HOME = {
    "Descriptor": "reader",
    "DescriptorError": "diagnostics",
    "Diagnostic": "diagnostics",
    "Note": "diagnostics",
    "Origin": "diagnostics",
    "json_schema": "schema",
    "load": "reader",
    "validate": "reader",
}

__all__ = ["Descriptor", "DescriptorError", "Diagnostic", "Note", "Origin", "json_schema", "load", "validate"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
