"""Watching a training from outside: what each step called, and what crossed the host boundary.

Contract: works on any script that uses a `torch.optim` optimizer, without changing it. A *step* reaches from the end of
one `optimizer.step()` to the end of the next, so it holds everything that the script does once a step: fetching and
copying a batch, forward, backward, unscaling, the update, and reading numbers. Three kinds of step:

plain    only counted
audited  every operator call is looked at, to tell which lines of the script move data between host and device
timed    every operator waits for the device, so that its time is its own; slower as a whole

Counters are read, never reset.
"""

from __future__ import annotations

import contextlib
import linecache
import sys
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

#: (operator, path, target, reason) as `torchfl.stats` tells them apart.
Key = tuple[str, str, str, str]


class Engine(Protocol):
    """What is asked of the engine; `torchfl._engine` is one."""

    def stats(self) -> list[dict[str, Any]]: ...
    def transfers(self) -> dict[str, int]: ...
    def timing(self) -> contextlib.AbstractContextManager[None]: ...


@dataclass
class Counts:
    """The engine's counters: as they stand, or how much they grew."""

    calls: dict[Key, int] = field(default_factory=dict)
    seconds: dict[Key, float] = field(default_factory=dict)
    host_bytes: dict[Key, int] = field(default_factory=dict)
    transfers: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, engine: Engine) -> Counts:
        out = cls(transfers=engine.transfers())
        for row in engine.stats():
            key = (row["op"], row["path"], row["target"], row["reason"])
            # Several devices may have run one operator: they are summed.
            out.calls[key] = out.calls.get(key, 0) + row["calls"]
            out.seconds[key] = out.seconds.get(key, 0.0) + row["seconds"]
            out.host_bytes[key] = out.host_bytes.get(key, 0) + row["host_bytes"]
        return out

    def __sub__(self, earlier: Counts) -> Counts:
        calls = {key: count - earlier.calls.get(key, 0) for key, count in self.calls.items()}
        grown = [key for key, count in calls.items() if count]
        return Counts(
            calls={key: calls[key] for key in grown},
            seconds={key: self.seconds[key] - earlier.seconds.get(key, 0.0) for key in grown},
            host_bytes={key: self.host_bytes[key] - earlier.host_bytes.get(key, 0) for key in grown},
            transfers={name: value - earlier.transfers.get(name, 0) for name, value in self.transfers.items()},
        )

    def calls_on(self, path: str) -> int:
        return sum(count for (_, where, _, _), count in self.calls.items() if where == path)


@dataclass
class Crossing:
    """Data that one line of the script moved between host and device in an audited step."""

    kind: str  # "batch": a tensor that the script itself copies; "scalar": a number that is read; "other"
    direction: str  # "to device" or "to host"
    op: str
    bytes: int
    copies: int
    line: str  # "resnet50_digits.py:112"
    source: str  # the text of that line


@dataclass
class Step:
    index: int  # from 1; the first one that is measured as a whole is 2
    kind: str  # plain, audited, timed
    seconds: float
    counts: Counts
    crossings: list[Crossing] = field(default_factory=list)


class Watch:
    """Use as a context manager around the training. `audited` and `timed` are numbers of steps, counted from 1."""

    def __init__(
        self, engine: Engine, script: Path, audited: Collection[int] = (), timed: Collection[int] = ()
    ) -> None:
        self._engine = engine
        self._script = str(script.resolve())
        self._kinds = {**dict.fromkeys(timed, "timed"), **dict.fromkeys(audited, "audited")}
        self._done = 0
        self._measuring = contextlib.ExitStack()
        self._crossings: list[Crossing] = []
        self.steps: list[Step] = []
        self.total = Counts()

    def __enter__(self) -> Watch:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        self._hook = register_optimizer_step_post_hook(self._step_done)
        self._start = self._before = Counts.of(self._engine)
        self._began = time.perf_counter()
        return self

    def __exit__(self, *failure: object) -> None:
        self._hook.remove()
        self._measuring.close()
        self.total = Counts.of(self._engine) - self._start

    def _step_done(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        ended = time.perf_counter()
        self._measuring.close()
        now = Counts.of(self._engine)
        self._done += 1
        if self._done > 1:  # before the first one ends, models are built and moved
            kind = self._kinds.get(self._done, "plain")
            self.steps.append(Step(self._done, kind, ended - self._began, now - self._before, self._crossings))
        self._crossings = []
        following = self._kinds.get(self._done + 1, "plain")
        if following == "timed":
            self._measuring.enter_context(self._engine.timing())
        elif following == "audited":
            self._measuring.enter_context(_auditor(self._engine, self._script, self._crossings))
        self._before = now
        self._began = time.perf_counter()


def _auditor(engine: Engine, script: str, crossings: list[Crossing]) -> contextlib.AbstractContextManager[Any]:
    """A dispatch mode that runs each operator and appends to `crossings` what it moved across the host boundary."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Auditor(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            before = engine.transfers()
            result = func(*args, **(kwargs or {}))
            after = engine.transfers()
            name = func._schema.name.removeprefix("aten::")
            for direction in ("to_device", "to_host"):
                copies = after[f"{direction}_copies"] - before[f"{direction}_copies"]
                if copies == 0:
                    continue
                moved = after[f"{direction}_bytes"] - before[f"{direction}_bytes"]
                line, source, direct = _script_line(sys._getframe(1), script)
                kind = "other"
                if name == "_local_scalar_dense" and direction == "to_host":
                    kind = "scalar"
                elif name in ("_to_copy", "copy_") and direction == "to_device" and direct:
                    kind = "batch"
                crossings.append(
                    Crossing(kind, direction.replace("_", " "), f"aten::{name}", moved, copies, line, source)
                )
            return result

    return Auditor()


def _script_line(frame: FrameType | None, script: str) -> tuple[str, str, bool]:
    """(file:line, its text, whether the script itself made the call) of the innermost frame that is in the script."""
    direct = True
    while frame is not None and (frame.f_code.co_filename == __file__ or _carries_modes(frame)):
        frame = frame.f_back
    while frame is not None:
        name = frame.f_code.co_filename
        if str(Path(name).resolve()) == script:
            return f"{Path(script).name}:{frame.f_lineno}", linecache.getline(name, frame.f_lineno).strip(), direct
        direct = False
        frame = frame.f_back
    return "", "", False


def _carries_modes(frame: FrameType) -> bool:
    """True for the frames of PyTorch's own between an operator call and the dispatch mode that sees it."""
    path = Path(frame.f_code.co_filename).as_posix()
    return path.endswith(("torch/_compile.py", "torch/utils/_python_dispatch.py")) or "torch/_dynamo/" in path


__all__ = ["Counts", "Crossing", "Engine", "Key", "Step", "Watch"]
