"""From what was watched to the report: plain data, ready for JSON.

Contract: pure functions. Times are seconds unless the key says `ms`; shares are between 0 and 1.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from torchfl.demo.watch import Counts, Crossing, Step

#: A step is steady when every signature has been met, and the allocator's blocks and the scaler's state exist.
WARM_UP = 10
#: Reading a number moves at most this many bytes.
SCALAR_BYTES = 8


def steady(steps: Sequence[Step]) -> list[Step]:
    """The steps after the warm-up; of a very short training, its second half."""
    first = min(WARM_UP, (len(steps) + 1) // 2)
    return list(steps[first:])


def crossings(steps: Iterable[Step]) -> list[Crossing]:
    """Of the first audited step."""
    return next((step.crossings for step in steps if step.kind == "audited"), [])


def excess_copies(step: Step, batch_tensors: int) -> int:
    """Copies between host and device beyond the batch and the numbers that the script reads.

    An audited step tells exactly, by the call that made each copy. Of others only the sums are known: copies to the
    device beyond the batch's tensors count, and copies to the host unless all of them are no larger than a number.
    """
    if step.kind == "audited":
        return sum(crossing.copies for crossing in step.crossings if crossing.kind == "other")
    moved = step.counts.transfers
    to_host, to_host_bytes = moved.get("to_host_copies", 0), moved.get("to_host_bytes", 0)
    excess = max(0, moved.get("to_device_copies", 0) - batch_tensors)
    return excess + (to_host if to_host_bytes > SCALAR_BYTES * to_host else 0)


def by_path(counts: Counts, timed: Counts) -> list[dict[str, Any]]:
    """Calls (of the whole training) and time (of the timed steps) for each path, with their shares."""
    calls: dict[str, int] = {}
    seconds: dict[str, float] = {}
    for (_, path, _, _), count in counts.calls.items():
        calls[path] = calls.get(path, 0) + count
    for (_, path, _, _), spent in timed.seconds.items():
        seconds[path] = seconds.get(path, 0.0) + spent
    all_calls, all_seconds = sum(calls.values()) or 1, sum(seconds.values()) or 1.0
    return [
        {
            "path": path,
            "calls": calls[path],
            "calls_share": calls[path] / all_calls,
            "seconds": seconds.get(path, 0.0),
            "seconds_share": seconds.get(path, 0.0) / all_seconds,
        }
        for path in sorted(calls, key=lambda path: -calls[path])
    ]


def by_operator(timed: Counts, steps: int) -> list[dict[str, Any]]:
    """Time for each operator and step, longest first. In-place and out forms count with the functional one."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for key, spent in timed.seconds.items():
        op, path, target, _ = key
        base = op.removeprefix("aten::").split(".")[0]
        base = base[:-1] if base.endswith("_") and not base.endswith("__") else base
        base = base.removesuffix("_overrideable")  # PyTorch's name for the convolution of an out-of-tree device
        row = rows.setdefault((base, path), {"op": base, "path": path, "targets": set(), "ms": 0.0, "calls": 0.0})
        row["targets"].add(target)
        row["ms"] += spent * 1e3 / max(steps, 1)
        row["calls"] += timed.calls[key] / max(steps, 1)
    whole = sum(row["ms"] for row in rows.values()) or 1.0
    out = sorted(rows.values(), key=lambda row: -row["ms"])
    for row in out:
        row["targets"] = sorted(row["targets"])
        row["share"] = row["ms"] / whole
    return out


def fallbacks(counts: Counts) -> list[dict[str, Any]]:
    """What ran on the CPU in the whole training, and why; the most frequent first."""
    return sorted(
        (
            {"op": op, "reason": reason, "calls": count, "host_bytes": counts.host_bytes[op, path, target, reason]}
            for (op, path, target, reason), count in counts.calls.items()
            if path == "cpu"
        ),
        key=lambda row: -row["calls"],
    )


def total(steps: Iterable[Step]) -> Counts:
    """The sum of the steps' counters."""
    out = Counts()
    for step in steps:
        for key, count in step.counts.calls.items():
            out.calls[key] = out.calls.get(key, 0) + count
            out.seconds[key] = out.seconds.get(key, 0.0) + step.counts.seconds[key]
            out.host_bytes[key] = out.host_bytes.get(key, 0) + step.counts.host_bytes[key]
        for name, value in step.counts.transfers.items():
            out.transfers[name] = out.transfers.get(name, 0) + value
    return out


def summarise(
    steps: Sequence[Step], whole: Counts, history: dict[str, Any], seconds: float, machine: dict[str, Any]
) -> dict[str, Any]:
    """The report. `history` is what the script wrote, `whole` how much all counters grew, `seconds` the whole time."""
    late = steady(steps)
    found = crossings(late) or crossings(steps)
    batch_tensors = sum(crossing.copies for crossing in found if crossing.kind == "batch") or 2
    plain = [step for step in late if step.kind == "plain"] or list(late)
    timed = [step for step in steps if step.kind == "timed"]
    timed_counts = total(timed)
    spent = sum(step.seconds for step in plain)
    rate = history["batch_size"] * len(plain) / spent if spent > 0 else history["images_per_second"]
    return {
        "test_accuracy": history["test_accuracy"],
        "images_per_second": rate,
        "steady_step_cpu_fallbacks": max((step.counts.calls_on("cpu") for step in late), default=0),
        "steady_step_host_copies": max((excess_copies(step, batch_tensors) for step in late), default=0),
        "seconds": seconds,
        "training": history,
        "steps": {
            "count": len(steps) + 1,
            "steady": len(late),
            "timed": len(timed),
            "median_ms": statistics.median(step.seconds for step in plain) * 1e3 if plain else None,
            "calls": round(statistics.median(sum(step.counts.calls.values()) for step in late)) if late else None,
            "ms": [{"step": step.index, "kind": step.kind, "ms": step.seconds * 1e3} for step in steps],
        },
        "paths": by_path(whole, timed_counts),
        "operators": by_operator(timed_counts, len(timed)),
        "fallbacks": fallbacks(whole),
        "crossings": [vars(crossing) for crossing in found],
        "transfers": whole.transfers,
        "machine": machine,
    }


__all__ = ["summarise"]
