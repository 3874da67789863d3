"""The report as one self-contained HTML page: no scripts, no fonts, nothing fetched.

Contract: `render` takes what `figures.summarise` returns and nothing else. Charts are inline SVG whose colours are CSS
variables, so they follow the reader's light or dark setting.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torchfl import pages


def ticks(low: float, high: float, count: int = 5) -> list[float]:
    """About `count` round numbers from `low` to `high`."""
    if not high > low:
        return [low]
    raw = (high - low) / count
    magnitude = 10.0 ** math.floor(math.log10(raw))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(i * step, 10) for i in range(first, last + 1)]


class Frame:
    """Maps data to the pixels of a chart. `log` gives the vertical axis a logarithmic scale."""

    def __init__(self, xs: Sequence[float], ys: Sequence[float], width: int, height: int, *, log: bool = False) -> None:
        self.width, self.height, self.log = width, height, log
        self.left, self.right, self.top, self.bottom = 48, 12, 12, 34
        self.x_low, self.x_high = min(xs), max(xs)
        positive = [y for y in ys if y > 0] or [1.0]
        if log:
            self.y_low = float(math.floor(math.log10(min(positive))))
            self.y_high = max(float(math.ceil(math.log10(max(positive)))), self.y_low + 1)
        else:
            self.y_low, self.y_high = 0.0, max(positive) * 1.08

    def x(self, value: float) -> float:
        span = self.x_high - self.x_low or 1
        return round(self.left + (value - self.x_low) / span * (self.width - self.left - self.right), 1)

    def y(self, value: float) -> float:
        if self.log:
            value = math.log10(max(value, 10.0**self.y_low))
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 1)

    @property
    def y_ticks(self) -> list[float]:
        if self.log:
            return [10.0**e for e in range(int(self.y_low), int(self.y_high) + 1)]
        return ticks(self.y_low, self.y_high, 4)

    def path(self, points: Sequence[tuple[float, float]]) -> str:
        return "M" + "L".join(f"{self.x(x)},{self.y(y)}" for x, y in points)

    def area(self, points: Sequence[tuple[float, float]]) -> str:
        floor = self.height - self.bottom
        return f"{self.path(points)}L{self.x(points[-1][0])},{floor}L{self.x(points[0][0])},{floor}Z"


def loss_chart(training: dict[str, Any]) -> dict[str, Any] | None:
    points = list(zip(training["steps"], training["losses"], strict=True))
    if len(points) < 2:
        return None
    losses = [p[1] for p in points]
    log = min(losses) > 0 and max(losses) > 30 * min(losses)  # else a straight scale shows more
    frame = Frame([p[0] for p in points], losses, 620, 260, log=log)
    per_epoch = max(points[-1][0] / max(training["epochs"], 1), 1)
    return {
        "frame": frame,
        "log": log,
        "line": frame.path(points),
        "area": frame.area(points),
        "points": [{"x": frame.x(x), "y": frame.y(y), "step": x, "loss": y} for x, y in points],
        "epochs": [{"epoch": e, "x": frame.x(max(e * per_epoch, frame.x_low))} for e in range(training["epochs"] + 1)],
    }


def step_chart(steps: dict[str, Any]) -> dict[str, Any] | None:
    rows = steps["ms"]
    if len(rows) < 2:
        return None
    values = sorted(row["ms"] for row in rows)
    # A few steps that met other work on the machine must not flatten all the rest.
    high = min(values[-1], 2.5 * values[len(values) // 2])
    frame = Frame([row["step"] for row in rows], [high], 620, 260)
    width = max((frame.width - frame.left - frame.right) / len(rows) - 0.6, 1.0)
    floor = frame.height - frame.bottom
    bars = []
    for row in rows:
        top = frame.y(min(row["ms"], high))
        x = frame.x(row["step"]) - width / 2
        bars.append({**row, "x": round(x, 1), "y": top, "height": round(floor - top, 1), "cut": row["ms"] > high})
    return {"frame": frame, "bars": bars, "width": round(width, 1), "x_ticks": ticks(frame.x_low, frame.x_high, 6)}


def operator_bars(operators: Sequence[dict[str, Any]], most: int = 14) -> list[dict[str, Any]]:
    """The longest-running operators, and one bar for the rest."""
    shown = list(operators[:most])
    rest = operators[most:]
    if rest:
        shown.append(
            {
                "op": f"{len(rest)} others",
                "path": "other",
                "targets": [],
                "ms": sum(row["ms"] for row in rest),
                "calls": sum(row["calls"] for row in rest),
                "share": sum(row["share"] for row in rest),
            }
        )
    longest = max((row["ms"] for row in shown), default=0.0) or 1.0
    return [{**row, "width": row["ms"] / longest * 100} for row in shown]


def render(report: dict[str, Any]) -> str:
    return (
        pages.environment("torchfl.demo")
        .get_template("report.html")
        .render(
            report=report,
            loss=loss_chart(report["training"]),
            step_times=step_chart(report["steps"]),
            bars=operator_bars(report["operators"]),
            calls_bar=pages.stacked(report["paths"], "calls_share"),
            time_bar=pages.stacked(report["paths"], "seconds_share"),
        )
    )


__all__ = ["render"]
