"""What a run found, summed up.

Contract: an entry is counted once, by the worst path that any of its runs took; `Result.to_dict` is the command's JSON.
"""

from __future__ import annotations

import collections
import re
from dataclasses import dataclass, field
from typing import Any

#: From best to worst.
ORDER = ("native", "composed", "custom", "cpu", "unsupported", "failed")

_VARYING = re.compile(r"\[[\d, ]*\]|\b(b?float\d*|complex\d+|u?int\d+|bool)\b", re.IGNORECASE)


@dataclass
class Entry:
    """One entry of op_db. `dtypes`: dtype -> {forward, backward}, each None where there is nothing to run."""

    name: str
    dtypes: dict[str, dict[str, Any]] = field(default_factory=dict)
    unsupported: str | None = None  # why, by the gap list, or because PyTorch's CPU has nothing to compare with
    listed: bool = False  # as unsupported in the gap list
    xfail: str | None = None
    seconds: float = 0.0

    def runs(self) -> list[tuple[str, str, dict[str, Any]]]:
        """(dtype, direction, what it was) of each that ran."""
        return [
            (dtype, direction, sides[direction])
            for dtype, sides in self.dtypes.items()
            for direction in ("forward", "backward")
            if sides.get(direction) is not None
        ]

    @property
    def path(self) -> str:
        if self.unsupported is not None:
            return "unsupported"
        return max((run["path"] for _, _, run in self.runs()), key=ORDER.index, default="unsupported")

    @property
    def left_the_chip(self) -> bool:
        return any(run["ran"] == "cpu" for _, _, run in self.runs())

    def to_dict(self) -> dict[str, Any]:
        known = {"unsupported": self.unsupported, "xfail": self.xfail}
        return {
            "name": self.name,
            "path": self.path,
            **{key: value for key, value in known.items() if value is not None},
            "seconds": round(self.seconds, 3),
            "dtypes": self.dtypes,
        }


@dataclass
class Result:
    chip: str
    device: str
    torch: str
    entries: list[Entry]
    rows: list[dict[str, Any]] = field(default_factory=list)
    gaps: str | None = None
    unused: list[str] = field(default_factory=list)  # patterns of the gap list that describe no entry
    notes: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def summary(self) -> dict[str, int]:
        counts = collections.Counter(entry.path for entry in self.entries)
        return {"entries": len(self.entries), **{path: counts.get(path, 0) for path in ORDER}}

    def failures(self) -> list[Entry]:
        """Entries that fail, and were not expected to."""
        return [entry for entry in self.entries if entry.path == "failed" and entry.xfail is None]

    def xfailed(self) -> list[Entry]:
        return [entry for entry in self.entries if entry.path == "failed" and entry.xfail is not None]

    def xpassed(self) -> list[Entry]:
        return [
            entry for entry in self.entries if entry.xfail is not None and entry.path not in ("failed", "unsupported")
        ]

    def on_the_cpu(self) -> list[Entry]:
        """Entries that left the chip and are no known gap."""
        return [
            entry for entry in self.entries if entry.path != "unsupported" and not entry.xfail and entry.left_the_chip
        ]

    def unproven(self) -> list[dict[str, Any]]:
        return [row for row in self.rows if not row["proven"]]

    def reasons(self) -> list[dict[str, Any]]:
        """Why entries left the chip, the most frequent first. What differs in dtypes and sizes alone is one reason, in
        the words of the first."""
        found: dict[str, tuple[str, dict[str, None]]] = {}
        for entry in self.entries:
            for _, _, run in entry.runs():
                for reason in run["reasons"]:
                    kind, _, text = reason.partition(": ")
                    if kind == "cpu":
                        found.setdefault(_VARYING.sub("?", text), (text, {}))[1][entry.name] = None
        return sorted(
            ({"reason": reason, "entries": list(names)} for reason, names in found.values()),
            key=lambda row: (-len(row["entries"]), row["reason"]),
        )

    def passed(self, strict: bool) -> bool:
        return not self.failures() and not (strict and self.on_the_cpu())

    def to_dict(self) -> dict[str, Any]:
        return {
            "chip": self.chip,
            "device": self.device,
            "torch": self.torch,
            "gaps": self.gaps,
            "seconds": round(self.seconds, 1),
            "summary": self.summary(),
            "xfailed": [entry.name for entry in self.xfailed()],
            "xpassed": [entry.name for entry in self.xpassed()],
            "unused_gaps": self.unused,
            "unproven": self.unproven(),
            "reasons": self.reasons(),
            "entries": [entry.to_dict() for entry in self.entries],
        }
