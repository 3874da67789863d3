"""Who held a chip's memory, and when: from a snapshot of `torch.<chip>.memory` to the report, and the report as a page.

Contract: `report` is a pure function of a snapshot (docs/memory.md says its form); bytes are as the allocator rounds
them, times seconds since the first event. The state before the first event is what the end and the events imply. A
place is the innermost frame of a stack outside of PyTorch and Torch-FL: "train.py:12 in forward".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchfl import pages

#: Places with a colour of their own; the others share one.
COLOURS = 7
#: Columns of the timeline, blocks and segments that are listed.
COLUMNS, BLOCKS, SEGMENTS = 480, 20, 24
BEFORE, UNKNOWN, OTHERS = "before the recording", "no Python stack", "others"

_LIBRARIES = ("/torch/", "/torchfl/", "<frozen ", "/runpy.py")
#: Frames of C++ code, where stacks have them; "??" is what could not be looked up.
_NATIVE = ("??", ".cpp", ".cc", ".c", ".h", ".hpp", ".S")


def place_of(frames: Sequence[dict[str, Any]]) -> str:
    """Where an allocation was asked for."""
    if not frames:
        return UNKNOWN
    own = [
        f
        for f in frames
        if not any(part in f["filename"] for part in _LIBRARIES) and not f["filename"].endswith(_NATIVE)
    ]
    return _frame_text((own or list(frames))[0])


def _frame_text(frame: dict[str, Any]) -> str:
    if frame["filename"] == "<autograd>":
        return f"backward: {frame['name']}"
    return f"{frame['filename']}:{frame['line']} in {frame['name']}"


@dataclass
class _Block:
    address: int
    size: int
    place: str
    frames: Sequence[dict[str, Any]] = ()
    since: float | None = None  # None: before the first event
    until: float | None = None


@dataclass
class _State:
    """What is held at one moment of a replay."""

    blocks: dict[int, _Block] = field(default_factory=dict)
    segments: dict[int, int] = field(default_factory=dict)
    allocated: int = 0
    reserved: int = 0


def _initial(trace: Sequence[dict[str, Any]], segments: Sequence[dict[str, Any]]) -> _State:
    """What was held before the first event: what is freed later without having been allocated, and what is held at the
    end without."""
    state = _State()
    seen: set[int] = set()
    reserved: set[int] = set()

    def hold(address: int, size: int, frames: Sequence[dict[str, Any]]) -> None:
        seen.add(address)
        state.blocks[address] = _Block(address, size, place_of(frames) if frames else BEFORE, frames)

    for event in trace:
        address: int = event.get("addr", 0)
        if event["action"] == "alloc":
            seen.add(address)
        elif event["action"] == "free_requested" and address not in seen:
            hold(address, event["size"], ())
        elif event["action"] == "segment_alloc":
            reserved.add(address)
        elif event["action"] == "segment_free" and address not in reserved:
            reserved.add(address)
            state.segments[address] = event["size"]
    for segment in segments:
        if segment["address"] not in reserved:
            state.segments[segment["address"]] = segment["total_size"]
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and block["address"] not in seen:
                hold(block["address"], block["size"], block.get("frames", ()))
    state.allocated = sum(block.size for block in state.blocks.values())
    state.reserved = sum(state.segments.values())
    return state


def _replay(trace: Sequence[dict[str, Any]], state: _State) -> Iterator[tuple[int, float, _Block | None, int]]:
    """After each event: its number, its time, the block that came or went, and the sign of that."""
    began = trace[0]["time_us"] if trace else 0
    for number, event in enumerate(trace):
        at = (event["time_us"] - began) * 1e-6
        address: int = event.get("addr", 0)
        size: int = event["size"]
        block: _Block | None = None
        sign = 0
        if event["action"] == "alloc":
            block, sign = _Block(address, size, place_of(event["frames"]), event["frames"], at), 1
            state.blocks[address] = block
        elif event["action"] == "free_requested":
            block, sign = state.blocks.pop(address, None), -1
            if block is not None:
                block.until = at
        elif event["action"] == "segment_alloc":
            state.segments[address] = size
            state.reserved += size
        elif event["action"] == "segment_free":
            state.reserved -= state.segments.pop(address, 0)
        if block is not None:
            state.allocated += sign * block.size
        yield number, at, block, sign


def report(snapshot: dict[str, Any]) -> list[dict[str, Any]]:
    """One dict for each device that has memory or events: see `of_device`."""
    names = snapshot.get("device_names", [])
    out = []
    for device, trace in enumerate(snapshot["device_traces"]):
        segments = [s for s in snapshot["segments"] if s["device"] == device]
        if trace or segments:
            label = names[device] if device < len(names) else f"device {device}"
            out.append({"device": label, **of_device(trace, segments)})
    return out


def of_device(trace: Sequence[dict[str, Any]], segments: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Keys: seconds, events (by action), allocated, reserved, blocks_held (at the end); peak: its seconds, allocated,
    reserved, places (place, bytes, blocks), blocks (the biggest: size, place, stack, since, until), block_count,
    segments (address, size, blocks: offset, size, place); timeline: [seconds, allocated, reserved, ...]; ooms."""
    events: dict[str, int] = {}
    for event in trace:
        events[event["action"]] = events.get(event["action"], 0) + 1
    state = _initial(trace, segments)
    peak_number, peak_allocated = -1, state.allocated
    for number, _, _, _ in _replay(trace, state):
        if state.allocated > peak_allocated:
            peak_number, peak_allocated = number, state.allocated
    end = {
        "allocated": sum(s["allocated_size"] for s in segments),
        "reserved": sum(s["total_size"] for s in segments),
        "blocks_held": sum(b["state"] == "active_allocated" for s in segments for b in s["blocks"]),
    }

    state = _initial(trace, segments)
    peak = _peak(state, 0.0) if peak_number < 0 else {}
    held: list[_Block] = list(state.blocks.values()) if peak_number < 0 else []
    for number, at, _, _ in _replay(trace, state):
        if number == peak_number:
            peak = _peak(state, at)
            held = list(state.blocks.values())
    # `until` of these is known only now.
    held.sort(key=lambda block: (-block.size, block.address))
    peak["blocks"] = [
        {
            "size": b.size,
            "place": b.place,
            "stack": [_frame_text(f) for f in b.frames],
            "since": b.since,
            "until": b.until,
        }
        for b in held[:BLOCKS]
    ]
    colours = [row["place"] for row in peak["places"]][:COLOURS]
    return {
        "seconds": (trace[-1]["time_us"] - trace[0]["time_us"]) * 1e-6 if trace else 0.0,
        "events": events,
        **end,
        "peak": peak,
        "timeline": _timeline(trace, segments, colours),
        "ooms": [
            {
                "seconds": (event["time_us"] - trace[0]["time_us"]) * 1e-6,
                "size": event["size"],
                "device_free": event["device_free"],
                "place": place_of(event["frames"]),
            }
            for event in trace
            if event["action"] == "oom"
        ],
    }


def _peak(state: _State, at: float) -> dict[str, Any]:
    by_place: dict[str, list[int]] = {}
    for block in state.blocks.values():
        by_place.setdefault(block.place, []).append(block.size)
    places = [{"place": place, "bytes": sum(sizes), "blocks": len(sizes)} for place, sizes in by_place.items()]
    rows = []
    addresses = sorted(state.blocks)
    for base, size in sorted(state.segments.items()):
        inside = [state.blocks[a] for a in addresses if base <= a < base + size]
        blocks = [{"offset": b.address - base, "size": b.size, "place": b.place} for b in inside]
        rows.append({"address": base, "size": size, "blocks": blocks})
    return {
        "seconds": at,
        "allocated": state.allocated,
        "reserved": state.reserved,
        "places": sorted(places, key=lambda row: (-row["bytes"], row["place"])),
        "block_count": len(state.blocks),
        "segments": sorted(rows, key=lambda row: -row["size"]),
    }


def _timeline(
    trace: Sequence[dict[str, Any]], segments: Sequence[dict[str, Any]], colours: Sequence[str]
) -> list[dict[str, Any]]:
    """At most COLUMNS moments, of each stretch of time the one with the most allocated; `by_place` follows `colours`,
    and then come all others."""
    if not trace:
        return []
    state = _initial(trace, segments)
    number_of = {place: i for i, place in enumerate(colours)}
    others = len(colours)
    amounts = [0] * (others + 1)
    for held in state.blocks.values():
        amounts[number_of.get(held.place, others)] += held.size

    def moment(at: float) -> dict[str, Any]:
        return {"seconds": at, "allocated": state.allocated, "reserved": state.reserved, "by_place": list(amounts)}

    length = (trace[-1]["time_us"] - trace[0]["time_us"]) * 1e-6 or 1e-6
    out = [moment(0.0)]
    best: dict[str, Any] | None = None
    column = 0
    for _, at, block, sign in _replay(trace, state):
        if block is not None:
            amounts[number_of.get(block.place, others)] += sign * block.size
        now = min(int(at / length * COLUMNS), COLUMNS - 1)
        if now != column and best is not None:
            out.append(best)
            best = None
        column = now
        if best is None or state.allocated > best["allocated"]:
            best = moment(at)
        best["reserved"] = max(best["reserved"], state.reserved)
    if best is not None:
        out.append(best)
    out.append(moment(length))
    return out


# ---------------------------------------------------------------------------------------------- the page


class Chart:
    """The timeline as SVG paths: what places hold, one on top of the other, below what is reserved."""

    width, height, left, right, top, bottom = 1060, 300, 66, 12, 14, 26

    def __init__(self, of: dict[str, Any]) -> None:
        points = of["timeline"]
        self.seconds = points[-1]["seconds"] or 1e-6
        self.high = max(max(p["reserved"], p["allocated"]) for p in points) or 1
        self.reserved = self._area([(p["seconds"], 0, p["reserved"]) for p in points])
        self.layers = []
        count = len(points[0]["by_place"])
        below = [0] * len(points)
        for i in range(count):
            above = [low + p["by_place"][i] for low, p in zip(below, points, strict=True)]
            if above != below:
                path = self._area([(p["seconds"], lo, hi) for p, lo, hi in zip(points, below, above, strict=True)])
                self.layers.append({"colour": i if i < count - 1 else "rest", "path": path})
            below = above
        self.peak = {"x": self.x(of["peak"]["seconds"]), "y": self.y(of["peak"]["allocated"])}
        self.ooms = [{"x": self.x(oom["seconds"]), **oom} for oom in of["ooms"]]
        self.y_ticks = [{"y": self.y(v), "text": pages.size(v)} for v in _round_bytes(self.high)]
        self.x_ticks = [{"x": self.x(v), "text": _seconds(v)} for v in _round_seconds(self.seconds)]

    def x(self, seconds: float) -> float:
        return round(self.left + seconds / self.seconds * (self.width - self.left - self.right), 1)

    def y(self, count: float) -> float:
        floor = self.height - self.bottom
        return round(floor - count / self.high * (floor - self.top), 1)

    def _area(self, steps: Sequence[tuple[float, float, float]]) -> str:
        """Between the lower and the upper edge, both constant from each moment to the next."""
        upper, lower = [], []
        for i, (at, low, high) in enumerate(steps):
            until = steps[i + 1][0] if i + 1 < len(steps) else at
            upper += [f"{self.x(at)},{self.y(high)}", f"{self.x(until)},{self.y(high)}"]
            lower += [f"{self.x(at)},{self.y(low)}", f"{self.x(until)},{self.y(low)}"]
        return "M" + "L".join([*upper, *reversed(lower)]) + "Z"


def _round_bytes(high: float) -> list[int]:
    """Four or so marks at powers of two times 1, 2, 3 ..."""
    step = 1
    while step * 5 < high:
        step *= 2
    return list(range(0, int(high) + 1, step))


def _round_seconds(high: float) -> list[float]:
    step = 1e-6
    factors = (2.0, 2.5, 2.0)
    i = 0
    while step * 8 < high:
        step *= factors[i % 3]
        i += 1
    return [k * step for k in range(int(high / step) + 1)]


def _seconds(value: float) -> str:
    if value == 0:
        return "0"
    return f"{value:g} s" if value >= 1 else f"{value * 1e3:g} ms" if value >= 1e-3 else f"{value * 1e6:g} us"


def _segment_rows(of: dict[str, Any], colours: dict[str, Any]) -> list[dict[str, Any]]:
    shown = of["peak"]["segments"][:SEGMENTS]
    longest = max((row["size"] for row in shown), default=1)
    out = []
    for row in shown:
        scale = 1000 / longest
        blocks = [
            {
                "x": round(b["offset"] * scale, 2),
                "width": round(max(b["size"] * scale, 0.6), 2),
                "colour": colours.get(b["place"], "rest"),
                "edge": b["size"] * scale >= 4,  # else the edge would hide it
                "title": f"{pages.size(b['size'])}: {b['place']}",
            }
            for b in row["blocks"]
        ]
        used = sum(b["size"] for b in row["blocks"])
        out.append({**row, "width": round(row["size"] * scale, 2), "rects": blocks, "used": used / row["size"]})
    return out


def render(whole: dict[str, Any]) -> str:
    """A page of `devices` (as `report` gives them), `source` (a script or a snapshot) and `ended` (how it ended)."""
    devices = []
    for of in whole["devices"]:
        colours: dict[str, Any] = {row["place"]: i for i, row in enumerate(of["peak"]["places"][:COLOURS])}
        devices.append(
            {
                **of,
                "chart": Chart(of) if of["timeline"] else None,
                "colours": colours,
                "rows": _segment_rows(of, colours),
                "more_segments": max(len(of["peak"]["segments"]) - SEGMENTS, 0),
            }
        )
    environment = pages.environment("torchfl.pages")
    environment.filters.update(seconds=_seconds, moment=moment_text)
    return environment.get_template("memory.html").render(whole=whole, devices=devices)


def moment_text(seconds: float) -> str:
    """A time of the report for people: four digits are enough."""
    return _seconds(float(f"{seconds:.4g}"))


__all__ = ["of_device", "place_of", "render", "report"]
