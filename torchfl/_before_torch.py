"""`torchfl.init()` before `import torch`: the chips are settled now, and loaded when torch is there.

Contract: `plan` imports no torch. It reads and checks every descriptor, and what else can be checked without running
code of an adapter, so that what is wrong raises where `init` stands. The rest happens right after `import torch` has
run, before its caller goes on; a chip that cannot be loaded then is an error in the log, and `import torch` succeeds.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torchfl import _device_name, _registry, _wrappers, hcd
from torchfl._native import log
from torchfl._when_imported import forget, when_imported
from torchfl.errors import LoadError


@dataclass(frozen=True)
class PlannedChip:
    """A chip that is loaded once torch is imported. `device_type` names its devices then."""

    name: str
    device_type: str
    descriptor: str


_pending: list[_registry.Source] = []


def is_time() -> bool:
    """Whether chips can be loaded without importing torch for it."""
    return "torch" in sys.modules


def plan(sources: Sequence[_registry.Source]) -> list[PlannedChip]:
    """Have `sources` loaded when torch is imported. Raises LoadError or DescriptorError for what is wrong with one that
    somebody named; others are passed over."""
    _device_name.requested()  # raises if it cannot be one
    before = list(_pending)
    _pending.extend(source for source in sources if source not in before)
    try:
        planned = _read()
    except BaseException:
        _pending[:] = before
        raise
    if _pending:
        when_imported("torch", _settle, "_native")
    return planned


def _read() -> list[PlannedChip]:
    from torchfl._engine import descriptor_for

    found: dict[str, PlannedChip] = {}
    for source in list(_pending):
        try:
            lowered = descriptor_for(source)
            if lowered["device_type"] not in found and lowered["adapter"]["style"] == "pybind":
                _wrappers.check(lowered)
        except (LoadError, hcd.DescriptorError) as error:
            if source.named:
                raise
            _pending.remove(source)
            log.info("%s is not usable here: %s", source.chip, error)
            continue
        found.setdefault(
            lowered["device_type"], PlannedChip(lowered["name"], lowered["device_type"], lowered["descriptor"])
        )
    return list(found.values())


def _settle(torch: Any) -> None:
    sources = take()
    if not sources:
        return
    try:
        from torchfl._engine import load_sources

        load_sources(sources)
    except Exception as error:
        log.error("%s", error)


def take() -> list[_registry.Source]:
    """What is still to be loaded: the caller sees to it."""
    sources = list(_pending)
    _pending.clear()
    forget("torch")
    return sources
