"""A chip's list of known gaps, `check.yaml` beside its descriptor.

    unsupported: {pattern: reason}    not run; counted as unsupported
    xfail:       {pattern: reason}    run, and expected to fail; if it does not, that is reported, to be removed

Contract: a pattern is a glob or a regular expression over whole entry names ("fft.*", "linalg.(eig|qr)"). A descriptor
that extends another and has no list of its own takes the nearest parent's.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from torchfl.errors import LoadError

FILE = "check.yaml"


def matches(pattern: str, name: str) -> bool:
    """Whether a glob or a regular expression describes the whole of a name."""
    if fnmatch.fnmatchcase(name, pattern):
        return True
    try:
        return re.fullmatch(pattern, name) is not None
    except re.error:
        return False


def matches_any(patterns: Iterable[str], *names: str) -> bool:
    return any(matches(pattern, name) for pattern in patterns for name in names)


@dataclass
class Gaps:
    file: str | None = None
    unsupported: dict[str, str] = field(default_factory=dict)
    xfail: dict[str, str] = field(default_factory=dict)

    def why_unsupported(self, name: str) -> str | None:
        return _first(self.unsupported, name)

    def why_xfail(self, name: str) -> str | None:
        return _first(self.xfail, name)

    def unused(self, names: Iterable[str]) -> list[str]:
        """Patterns that describe no entry."""
        known = list(names)
        patterns = [*self.unsupported, *self.xfail]
        return [pattern for pattern in patterns if not any(matches(pattern, name) for name in known)]


def _first(table: dict[str, str], name: str) -> str | None:
    return next((reason for pattern, reason in table.items() if matches(pattern, name)), None)


def load(descriptor: Path) -> Gaps:
    """The list that holds for a descriptor; an empty one if there is none."""
    seen: set[Path] = set()
    at: Path | None = descriptor
    while at is not None and at not in seen and at.is_file():
        seen.add(at)
        beside = at.absolute().parent / FILE
        if beside.is_file():
            return read(beside)
        at = _parent(at)
    return Gaps()


def _parent(descriptor: Path) -> Path | None:
    try:
        content = yaml.safe_load(descriptor.read_text())
    except yaml.YAMLError:
        return None  # the descriptor reader understands more than plain YAML, and reports what is wrong
    extends = content.get("extends") if isinstance(content, dict) else None
    return descriptor.parent / extends if isinstance(extends, str) else None


def read(file: Path) -> Gaps:
    """Read and check a list. Raises LoadError for one that is not as described above."""
    try:
        content = yaml.safe_load(file.read_text()) or {}
    except yaml.YAMLError as error:
        raise LoadError(f"{file}: not YAML: {error}") from None
    if not isinstance(content, dict):
        raise LoadError(f"{file}: expected the keys 'unsupported' and 'xfail'")
    for key, table in content.items():
        if key not in ("unsupported", "xfail"):
            raise LoadError(f"{file}: there is no key '{key}'; it has 'unsupported' and 'xfail'")
        if not isinstance(table or {}, dict):
            raise LoadError(f"{file}: {key}: expected 'pattern: reason' lines")
        for pattern, reason in (table or {}).items():
            if not isinstance(pattern, str) or not isinstance(reason, str) or not reason.strip():
                raise LoadError(f"{file}: {key}: {pattern}: a pattern needs a reason, both as text")
    return Gaps(str(file), dict(content.get("unsupported") or {}), dict(content.get("xfail") or {}))
