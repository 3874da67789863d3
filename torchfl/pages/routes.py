"""The routes of a whole run: from the engine's counters to the report, and the report as a page.

Contract: `summarise` is a pure function of the rows of `torchfl.stats`; times are seconds, shares between 0 and 1. Rows
are sorted by time, then by calls. What PyTorch takes apart (composite) has calls but no time: its parts have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchfl import pages

_SUMS = ("calls", "seconds", "host_bytes")


def summarise(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`calls`, `seconds`, `host_bytes` of all; `paths` and `rows`: the same for each, with their shares."""
    total = {key: sum(row[key] for row in rows) for key in _SUMS}
    by_path: dict[str, dict[str, Any]] = {}
    for row in rows:
        path = by_path.setdefault(row["path"], {"path": row["path"], **dict.fromkeys(_SUMS, 0)})
        for key in _SUMS:
            path[key] += row[key]

    def shared(row: dict[str, Any]) -> dict[str, Any]:
        return {
            **row,
            "calls_share": row["calls"] / (total["calls"] or 1),
            "seconds_share": row["seconds"] / (total["seconds"] or 1),
        }

    def order(row: dict[str, Any]) -> tuple[float, int]:
        return -row["seconds"], -row["calls"]

    return {
        **total,
        "paths": sorted(map(shared, by_path.values()), key=order),
        "rows": sorted(map(shared, rows), key=order),
    }


def render(report: dict[str, Any]) -> str:
    """A page of `summarise`'s keys, with `script`, `chips`, `ended` (how the script ended) and `wall_seconds`."""
    longest = max((row["seconds"] for row in report["rows"]), default=0.0) or 1.0
    return (
        pages.environment("torchfl.pages")
        .get_template("routes.html")
        .render(
            report=report,
            calls_bar=pages.stacked(report["paths"], "calls_share"),
            time_bar=pages.stacked(report["paths"], "seconds_share"),
            width=lambda row: row["seconds"] / longest * 100,
        )
    )


__all__ = ["render", "summarise"]
