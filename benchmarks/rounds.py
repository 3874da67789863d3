"""Fair comparisons on a machine that other work may disturb.

Contract: what is compared is measured alternately, in many short rounds, each in a new order. A comparison is made in a
round, where both sides met the same machine, and its median over all rounds is the figure; the quartiles tell how far
to trust it. Within a round the best of a few bursts counts: that the system took the core away is no property of the
code. A fixed piece of arithmetic runs along with every round, and shows whether the machine was quiet.
Times are microseconds for one call.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

#: A machine is noisy when the fixed work varied by more than this between its quartiles,
QUIET_SPREAD = 0.10
#: or when more than this share of its cores was taken before the measurement began.
QUIET_LOAD = 0.5
#: Bursts of one variant in one round.
BURSTS = 3


@dataclass(frozen=True)
class Summary:
    """Of one quantity over the rounds: median and quartiles."""

    median: float
    low: float
    high: float
    rounds: int

    @property
    def spread(self) -> float:
        """Distance of the quartiles as a share of the median."""
        return (self.high - self.low) / abs(self.median) if self.median else float("inf")

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "spread": self.spread}


def summary(values: Sequence[float]) -> Summary:
    if not values:
        raise ValueError("nothing was measured")
    ordered = sorted(values)
    if len(ordered) == 1:
        return Summary(ordered[0], ordered[0], ordered[0], 1)
    low, median, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return Summary(median, low, high, len(ordered))


@dataclass
class Rounds:
    """The measurements: by name, one value for each round, in the order of the rounds."""

    times: dict[str, list[float]]
    calibration: list[float]
    load: float = 0.0  # processes that wanted to run before the measurement began, for each core

    def time(self, name: str) -> Summary:
        return summary(self.times[name])

    def ratio(self, name: str, other: str) -> Summary:
        """name / other, compared round by round."""
        return summary([a / b for a, b in zip(self.times[name], self.times[other], strict=True)])

    def difference(self, name: str, other: str) -> Summary:
        """name - other, compared round by round."""
        return summary([a - b for a, b in zip(self.times[name], self.times[other], strict=True)])

    @property
    def noise(self) -> float:
        """How much the fixed work varied: the distance of its quartiles as a share of its median."""
        return summary(self.calibration).spread

    @property
    def noisy(self) -> bool:
        return self.noise > QUIET_SPREAD or self.load > QUIET_LOAD


def calibration() -> float:
    """Seconds for a fixed piece of arithmetic that does nothing but use one core (some 2 ms)."""
    began = time.perf_counter()
    total = 0
    for i in range(20_000):
        total += i * i % 7
    return time.perf_counter() - began


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run(variants: Mapping[str, Callable[[], float]], rounds: int, bursts: int = BURSTS) -> Rounds:
    """Measure each variant in every round: the best of `bursts`. A variant returns the time of one call; it is called
    twice before the first round, to warm up."""
    load = os.getloadavg()[0] / cores()
    names = list(variants)
    for name in names:
        variants[name]()
        variants[name]()
    times: dict[str, list[float]] = {name: [] for name in names}
    fixed = []
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds):
            fixed.append(calibration())
            shift = turn % len(names)  # nobody always follows the same neighbour's cache
            order = names[shift:] + names[:shift]
            for name in order if turn % 2 == 0 else reversed(order):
                times[name].append(min(variants[name]() for _ in range(bursts)))
            gc.collect()
    finally:
        if was_enabled:
            gc.enable()
    return Rounds(times, fixed, load)


def machine() -> dict[str, Any]:
    """What the figures were taken on."""
    import platform

    model = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    except OSError:
        pass
    return {
        "processor": model,
        "cores": cores(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
