"""`torchfl.profiler.profile()`: what ran where, why there, and what the engine itself cost.

Contract: a profile sees the whole process between its start and its stop, all threads of it, autograd's too. Profiles
may overlap and nest, in each other and in `torch.profiler`. While one is open every operator call is looked at, by the
engine's general route; without one, nothing is paid. Times are microseconds where PyTorch's tables have microseconds,
else seconds where the name says so.

    with torchfl.profiler.profile() as prof:
        output = model(input)
    print(prof.key_averages().table(sort_by="self_cpu_time_total"))
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

#: Paths on which the work stays on the chip.
ON_CHIP = ("native", "composed")
#: What the engine does on these paths on the host is work that the operator asked for, not overhead of dispatch.
_HOST_WORK = ("cpu", "custom", "transfer")

#: Share of the calls on the CPU beyond which the log says so, once; of fewer calls than _FEW nothing can be concluded.
MOST_ON_CPU = 0.5
_FEW = 8
_warned = False

log = logging.getLogger("torchfl")


class Call(NamedTuple):
    """One operator call as the engine served it; times are nanoseconds of the host (since the epoch, or a span)."""

    id: int
    parent: int
    op: str
    path: str
    target: str
    reason: str
    device: str
    thread: int
    entered: int
    begin: int
    end: int
    self_time: int
    observed: int
    submitting: int
    waiting: int
    host_bytes: int


class Activity(NamedTuple):
    """One piece of work of a device. `begin` and `duration` by its `clock` (see docs/profiler.md), nanoseconds;
    `duration` is -1 where the device failed, and of a wait there is none."""

    kind: str
    name: str
    device: str
    stream: int
    bytes: int
    submitted: int
    returned: int
    begin: int
    duration: int
    clock: str
    thread: int
    call: int


_COLUMNS = {
    # name: (heading, right-aligned)
    "op": ("Name", False),
    "path": ("Path", False),
    "kernel": ("Kernel", False),
    "calls": ("Calls", True),
    "self_cpu_time_total": ("Self CPU", True),
    "self_cpu_percent": ("Self CPU %", True),
    "cpu_time_total": ("CPU total", True),
    "dispatch_time_total": ("Dispatch", True),
    "device_time_total": ("Device", True),
    "device_percent": ("Device %", True),
    "host_bytes": ("Host bytes", True),
    "device": ("On", False),
    "reason": ("Reason", False),
}
_SORTABLE = ("self_cpu_time_total", "cpu_time_total", "dispatch_time_total", "device_time_total", "calls", "host_bytes")
_ALIASES = {
    "self_device_time_total": "device_time_total",
    "self_cpu_time": "self_cpu_time_total",
    "cpu_time": "cpu_time_total",
    "count": "calls",
}


class Row:
    """What one operator did on one path: attributes as `rows()` names them, and those that PyTorch's tables have."""

    def __init__(self, values: dict[str, Any]) -> None:
        self.__dict__.update(values)
        self.key = values["op"]
        self.count = values["calls"]
        self.self_device_time_total = values["device_time_total"]

    def __repr__(self) -> str:
        facts = f"{self.path}, {self.count} calls, self CPU {time_text(self.self_cpu_time_total)}"
        return f"<Row {self.key}: {facts}>"

    def __getattr__(self, name: str) -> Any:  # for type checkers: what `rows()` names
        raise AttributeError(name)


class Averages(Sequence[Row]):
    """The rows of a profile, by time, with their table."""

    def __init__(self, profile: profile) -> None:
        self._profile = profile
        self._rows = [Row(values) for values in profile.rows()]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __str__(self) -> str:
        return self.table()

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_name_column_width: int = 55,
        header: str | None = None,
    ) -> str:
        """The rows as text, sorted by one of their numbers, and below it what they come to."""
        rows = sorted_rows(self._profile.rows(), sort_by or "self_cpu_time_total")
        return _table(rows, self._profile, row_limit, max_name_column_width, header)


class profile:
    """Records what operators do on the devices of Torch-FL, inside a `with` block or between `start()` and `stop()`."""

    def __init__(self) -> None:
        self._session: Any = None
        self._lock = threading.Lock()
        self._before: dict[tuple[str, ...], int] = {}
        self._composites: list[dict[str, Any]] = []
        self._rows: list[dict[str, Any]] | None = None
        self.calls: list[Call] = []
        self.activities: list[Activity] = []
        self._began = self._ended = 0

    # ------------------------------------------------------------------ life

    def start(self) -> profile:
        """Begin to record. RuntimeError if it records already."""
        from torchfl._native import engine

        c = engine()
        with self._lock:
            if self._session is not None:
                raise RuntimeError("this profile records already: stop() it first, or make another one")
            self._before = _composite_calls(c)
            self._rows = None
            self._session = c.ProfilerSession()
        return self

    def stop(self) -> None:
        """End the recording; waits for the work that it saw. RuntimeError if it does not record."""
        from torchfl._native import engine

        with self._lock:
            if self._session is None:
                raise RuntimeError("this profile does not record: start() it first")
            session, self._session = self._session, None
            recording = session.stop()
        self._began, self._ended = recording["began"], recording["ended"]
        self.calls = [Call(*values) for values in recording["calls"]]
        self.activities = [Activity(*values) for values in recording["activities"]]
        self._composites = [
            {"device": device, "op": op, "path": path, "target": target, "reason": reason, "calls": made}
            for (device, op, path, target, reason), calls in _composite_calls(engine()).items()
            if (made := calls - self._before.get((device, op, path, target, reason), 0)) > 0
        ]
        self._warn()

    def _warn(self) -> None:
        """Once a process: most operators leave the chip, so that it can hardly be of use."""
        global _warned
        served = [call.path for call in self.calls if call.path != "transfer"]
        if not _warned and len(served) >= _FEW and served.count("cpu") / len(served) > MOST_ON_CPU:
            _warned = True
            log.warning("%s", self.verdict())

    def __enter__(self) -> profile:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # ------------------------------------------------------------------ figures

    @property
    def seconds(self) -> float:
        """From start to stop, by the host."""
        return (self._ended - self._began) * 1e-9

    @property
    def dispatch_seconds(self) -> float:
        """What the engine itself took of the host's time: decisions, arguments, allocations; no kernel, no copy, no
        wait, and not the recording."""
        return sum(dispatch_time(call) for call in self.calls) * 1e-9

    @property
    def dispatch_share(self) -> float:
        """`dispatch_seconds` as a share of the work: of host and device time together where they do not overlap, so of
        what the whole run would take if nothing was hidden behind something else."""
        whole = self.dispatch_seconds + self._work_seconds
        return self.dispatch_seconds / whole if whole else 0.0

    @property
    def device_seconds(self) -> float:
        """What devices worked, all together, by their own clocks."""
        return sum(max(a.duration, 0) for a in self.activities) * 1e-9

    @property
    def _work_seconds(self) -> float:
        """Device time, and the host's time in operators that ran there."""
        host = sum(max(call.self_time - call.observed, 0) for call in self.calls if call.path in _HOST_WORK)
        return self.device_seconds + host * 1e-9

    @property
    def clocks(self) -> list[str]:
        """Which clocks timed the devices' work: "device", "placed", "host"."""
        return sorted({a.clock for a in self.activities if a.kind != "synchronize"})

    def rows(self) -> list[dict[str, Any]]:
        """One dict for each operator, path, kernel, reason and device, by self CPU time; plain data for `json`.

        Keys: op, path (native, composed, custom, cpu, transfer, composite), kernel, kernels (all work that it gave to
        the device, by name), reason, device, calls, self_cpu_time_total, cpu_time_total, dispatch_time_total,
        device_time_total (microseconds), self_cpu_percent, device_percent (of all rows), host_bytes.
        """
        if self._rows is None:
            self._rows = sorted_rows(self._summarise(), "self_cpu_time_total")
        return [dict(row) for row in self._rows]

    def _summarise(self) -> list[dict[str, Any]]:
        device_time: dict[int, int] = {}
        kernels: dict[int, list[str]] = {}
        for activity in self.activities:
            device_time[activity.call] = device_time.get(activity.call, 0) + max(activity.duration, 0)
            if activity.kind != "synchronize":
                kernels.setdefault(activity.call, []).append(activity.name)
        rows: dict[tuple[str, ...], dict[str, Any]] = {}

        def row(op: str, path: str, target: str, reason: str, device: str) -> dict[str, Any]:
            key = (op, path, target, reason, device)
            if key not in rows:
                rows[key] = {
                    "op": op,
                    "path": path,
                    "kernel": "" if target == path else target,
                    "kernels": [],
                    "reason": reason,
                    "device": device,
                    "calls": 0,
                    "self_cpu_time_total": 0.0,
                    "cpu_time_total": 0.0,
                    "dispatch_time_total": 0.0,
                    "device_time_total": 0.0,
                    "host_bytes": 0,
                }
            return rows[key]

        costs: dict[int, int] = {}  # of the recording, in parts of a call
        for call in self.calls:
            at = row(call.op, call.path, call.target, call.reason, call.device)
            at["calls"] += 1
            # The recording's own time is not the operator's. Calls come in the order of their ends: parts first.
            cost = call.observed - call.submitting - call.waiting
            at["self_cpu_time_total"] += max(call.begin - call.entered + call.self_time - cost, 0) * 1e-3
            cost += costs.pop(call.id, 0)
            costs[call.parent] = costs.get(call.parent, 0) + cost
            at["cpu_time_total"] += max(call.end - call.entered - cost, 0) * 1e-3
            at["dispatch_time_total"] += dispatch_time(call) * 1e-3
            at["device_time_total"] += device_time.pop(call.id, 0) * 1e-3
            at["host_bytes"] += call.host_bytes
            at["kernels"] = list(dict.fromkeys([*at["kernels"], *kernels.get(call.id, ())]))
        # Work of no recorded call: storage that is resized, calls that began before the profile did.
        for activity in self.activities:
            if activity.call in device_time and activity.kind != "synchronize":
                at = row("(outside of operators)", "native", activity.name, "", activity.device)
                at["calls"] += 1
                at["device_time_total"] += max(activity.duration, 0) * 1e-3
                at["self_cpu_time_total"] += (activity.returned - activity.submitted) * 1e-3
                at["cpu_time_total"] += (activity.returned - activity.submitted) * 1e-3
        for composite in self._composites:
            at = row(*(composite[key] for key in ("op", "path", "target", "reason", "device")))
            at["calls"] += composite["calls"]
        everything = list(rows.values())
        cpu = sum(at["self_cpu_time_total"] for at in everything) or 1.0
        device = sum(at["device_time_total"] for at in everything) or 1.0
        for at in everything:
            at["self_cpu_percent"] = 100 * at["self_cpu_time_total"] / cpu
            at["device_percent"] = 100 * at["device_time_total"] / device
        return everything

    def key_averages(self, group_by_input_shape: bool = False, group_by_stack_n: int = 0) -> Averages:
        """The rows, as `torch.profiler` names the call. Shapes and stacks are not recorded here, but by that one."""
        if group_by_input_shape or group_by_stack_n:
            raise ValueError(
                "shapes and stacks are not recorded here: use torch.profiler with record_shapes, with_stack"
            )
        return Averages(self)

    def summary(self) -> dict[str, Any]:
        """Calls and shares of the whole profile, and what left the chip; plain data for `json`."""
        served = [row for row in self.rows() if row["path"] in (*ON_CHIP, "cpu", "custom")]
        calls = sum(row["calls"] for row in served)
        left = [row for row in served if row["path"] == "cpu"]
        on_cpu = sum(row["calls"] for row in left)
        substituted = sum(row["calls"] for row in served if row["path"] == "custom")
        worst = sorted(left, key=lambda row: -row["self_cpu_time_total"])
        return {
            "seconds": self.seconds,
            "device_seconds": self.device_seconds,
            "dispatch_seconds": self.dispatch_seconds,
            "dispatch_share": self.dispatch_share,
            "calls": calls,
            "cpu_calls": on_cpu,
            "cpu_share": on_cpu / calls if calls else 0.0,
            "custom_calls": substituted,
            "host_bytes": sum(row["host_bytes"] for row in self.rows()),
            "fallbacks": list(dict.fromkeys(row["op"] for row in worst)),
            "clocks": self.clocks,
        }

    def verdict(self) -> str:
        """One line: how much left the chip, and what the engine's own work came to."""
        facts = self.summary()
        if not facts["calls"]:
            return "PROFILER: no operator reached a device of Torch-FL"
        share = percent_text(facts["cpu_share"])
        line = f"PROFILER: {share} ops falling back to CPU"
        if facts["fallbacks"]:
            more = len(facts["fallbacks"]) - 3
            line += f" ({', '.join(facts['fallbacks'][:3])}{f' and {more} more' if more > 0 else ''})"
        line += f"; dispatch overhead {percent_text(facts['dispatch_share'])}"
        if facts["cpu_calls"]:
            line += "; see which rows the descriptor's ops could take: torchfl explain"
        return line

    # ------------------------------------------------------------------ files

    def export_chrome_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes a trace for Perfetto (ui.perfetto.dev) and chrome://tracing: rows by device and stream, and the calls
        on the host's threads, with arrows from a call to the work that it gave."""
        Path(path).write_text(json.dumps(self._trace()), encoding="utf-8")

    def _trace(self) -> dict[str, Any]:
        pid = os.getpid()
        devices = sorted({a.device for a in self.activities})
        process = {label: pid + 1 + i for i, label in enumerate(devices)}
        events: list[dict[str, Any]] = []

        def name(what: str, at: int, thread: int, text: str) -> None:
            events.append({"ph": "M", "name": what, "pid": at, "tid": thread, "ts": 0, "args": {"name": text}})

        name("process_name", pid, 0, "host")
        for label, at in process.items():
            name("process_name", at, 0, label)
        threads = {call.thread for call in self.calls} | {a.thread for a in self.activities}
        for thread in sorted(threads):
            name("thread_name", pid, thread, f"thread {thread}")
        for label, stream in sorted({(a.device, a.stream) for a in self.activities if a.kind != "synchronize"}):
            name("thread_name", process[label], stream, f"stream {stream}")

        def span(text: str, category: str, at: int, thread: int, begin: int, length: int, args: dict[str, Any]) -> None:
            events.append(
                {
                    "ph": "X",
                    "name": text,
                    "cat": category,
                    "pid": at,
                    "tid": thread,
                    "ts": (begin - self._began) * 1e-3,
                    "dur": length * 1e-3,
                    "args": args,
                }
            )

        began: dict[int, Call] = {}
        for call in self.calls:
            began[call.id] = call
            facts = {"path": call.path, "kernel": call.target, "reason": call.reason, "device": call.device}
            facts["host bytes"] = str(call.host_bytes) if call.host_bytes else ""
            length = call.end - call.entered
            args = {key: value for key, value in facts.items() if value}
            span(call.op, call.path, pid, call.thread, call.entered, length, args)
        for number, a in enumerate(self.activities, 1):
            if a.kind == "synchronize":
                length = a.returned - a.submitted
                span(f"wait for {a.device}", "wait", pid, a.thread, a.submitted, length, {"stream": a.stream})
                continue
            if a.duration < 0:
                continue
            facts_of: dict[str, Any] = {"clock": a.clock, "stream": a.stream}
            if a.bytes:
                facts_of["bytes"] = a.bytes
            span(a.name, a.kind, process[a.device], a.stream, a.begin, a.duration, facts_of)
            if a.call in began:
                flow: dict[str, Any] = {"cat": "submit", "name": "submit", "id": number}
                submitted, begin = (a.submitted - self._began) * 1e-3, (a.begin - self._began) * 1e-3
                events.append({"ph": "s", **flow, "pid": pid, "tid": a.thread, "ts": submitted})
                events.append({"ph": "f", "bp": "e", **flow, "pid": process[a.device], "tid": a.stream, "ts": begin})
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": self.summary()}

    def export_json(self, path: str | os.PathLike[str]) -> None:
        """Writes `summary()` and `rows()` as one JSON object."""
        text = json.dumps({**self.summary(), "rows": self.rows()}, indent=1)
        Path(path).write_text(text, encoding="utf-8")


def dispatch_time(call: Call) -> int:
    """Nanoseconds that the engine took for a call, for itself."""
    own = max(call.self_time - call.observed, 0) if call.path not in _HOST_WORK else 0
    return call.begin - call.entered + own


def sorted_rows(rows: list[dict[str, Any]], sort_by: str) -> list[dict[str, Any]]:
    """By a number of the rows, the largest first. ValueError for what is none."""
    by = _ALIASES.get(sort_by, sort_by)
    if by not in _SORTABLE:
        raise ValueError(f"sort_by={sort_by!r}: rows are sorted by one of {', '.join((*_SORTABLE, *_ALIASES))}")
    return sorted(rows, key=lambda row: (-row[by], -row["calls"], row["op"]))


def _composite_calls(c: Any) -> dict[tuple[str, ...], int]:
    """Calls so far of operators that PyTorch takes apart: they have no time, their parts have it."""
    keys = ("device", "op", "path", "target", "reason")
    return {tuple(row[k] for k in keys): row["calls"] for row in c.stats(whole=True) if row["path"] == "composite"}


def time_text(microseconds: float) -> str:
    """As PyTorch's tables print it."""
    for unit, size in (("s", 1e6), ("ms", 1e3)):
        if abs(microseconds) >= size:
            return f"{microseconds / size:.3f}{unit}"
    return f"{microseconds:.3f}us"


def percent_text(share: float) -> str:
    return f"{100 * share:.0f}%" if share == 0 or share >= 0.1 else f"{100 * share:.1f}%"


def _bytes_text(count: int) -> str:
    from torchfl.pages import size

    return size(count) if count else "-"


def _listed(names: Sequence[str], most: int = 3) -> str:
    more = len(names) - most
    return " ".join(names[:most]) + (f" +{more}" if more > 0 else "") or "-"


def _table(rows: list[dict[str, Any]], prof: profile, row_limit: int, width: int, header: str | None) -> str:
    formats: dict[str, Callable[[Any], str]] = {
        "calls": lambda v: f"{v:,}",
        "host_bytes": _bytes_text,
        "self_cpu_percent": lambda v: f"{v:.2f}%",
        "device_percent": lambda v: f"{v:.2f}%",
        **{key: time_text for key in _COLUMNS if key.endswith("time_total")},
    }

    def cell(row: dict[str, Any], key: str) -> str:
        if row["path"] == "composite" and key not in ("op", "path", "calls", "device", "reason"):
            return "-"
        if key == "kernel" and row["path"] == "composed":
            return _listed(row["kernels"])
        text = formats[key](row[key]) if key in formats else str(row[key]) or "-"
        return text if len(text) <= width or key == "reason" else text[: width - 3] + "..."

    shown = rows if row_limit < 0 else rows[:row_limit]
    cells = [[cell(row, key) for key in _COLUMNS] for row in shown]
    headings = [heading for heading, _ in _COLUMNS.values()]
    widths = [max(len(text) for text in column) for column in zip(headings, *cells, strict=True)]
    widths[-1] = min(widths[-1], 70)  # the last one may run on
    right = [aligned for _, aligned in _COLUMNS.values()]

    def line(texts: list[str]) -> str:
        parts = [t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True)]
        return "  ".join(parts).rstrip()

    rule = "  ".join("-" * w for w in widths)
    lines = [rule, line(headings), rule, *(line(texts) for texts in cells), rule]
    if header is not None:
        lines = [header, *lines]
    if len(shown) < len(rows):
        lines.append(f"{len(rows) - len(shown)} more rows (row_limit)")
    facts = prof.summary()
    total = sum(row["self_cpu_time_total"] for row in rows)
    lines.append(f"Self CPU time total: {time_text(total)}")
    clock = {"device": "its own clock", "placed": "its own clock", "host": "the host's clock, each call waited for"}
    by = " and ".join(dict.fromkeys(clock[name] for name in facts["clocks"]))
    lines.append(f"Device time total: {time_text(1e6 * facts['device_seconds'])}" + (f" (by {by})" if by else ""))
    dispatch = time_text(1e6 * facts["dispatch_seconds"])
    lines.append(f"Dispatch overhead: {dispatch}, {percent_text(facts['dispatch_share'])} of the work")
    lines.append(prof.verdict())
    return "\n".join(lines) + "\n"


__all__ = ["Activity", "Averages", "Call", "Row", "profile"]
