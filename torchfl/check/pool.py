"""Runs entries in worker processes: a crash, a hang or a refusal of one of them is a finding, and not the end.

Contract: `check` gives each worker one task at a time. A worker that dies or exceeds the time limit is replaced; what
it was running is tried once more in a fresh process, as an earlier entry may have damaged the first, and if that too
fails it is reported as failed with where it was. Only a chip that cannot be loaded at all raises (CheckError).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchfl.check import gaps as gap_lists
from torchfl.check.gaps import Gaps, matches_any
from torchfl.check.result import Entry, Result
from torchfl.errors import LoadError

#: Tasks that one process runs before it is replaced: bounds what a leak or a damage of one can do to others.
BATCH = 64
_START_SECONDS = 300.0


class CheckError(LoadError):
    """The run itself cannot take place: the chip does not load, or a worker does not start."""


class NothingMeant(ValueError):
    """The options leave no entry."""


@dataclass
class Options:
    ops: list[str] = field(default_factory=list)
    dtypes: list[str] = field(default_factory=lambda: ["float32", "float16"])
    samples: int = 3
    jobs: int = 1
    timeout: float = 60.0


Progress = Callable[[int, int, str], None]


def check(descriptor: Path, options: Options, progress: Progress = lambda done, of, what: None) -> Result:
    """Run everything. `progress` is told (done, of how many, what is next)."""
    start = time.perf_counter()
    gaps = gap_lists.load(descriptor)
    workers = [_Worker(descriptor, options.timeout) for _ in range(max(1, options.jobs))]
    try:
        hello, *_ = [worker.hello() for worker in workers]
        ready = workers[0].start()
        entries, tasks = _plan(hello["entries"], options, gaps)
        if not entries:
            raise NothingMeant("no entry of op_db is meant by " + ", ".join(options.ops or options.dtypes))
        rows = _rows(descriptor, options)
        shared = _Shared(tasks, len(tasks) + len(rows), progress)
        _run_all(workers, shared)
        for task, made in shared.done:
            _enter(entries[task["entry"]], task["dtype"], made)
        proofs = _prove(workers, shared, rows, entries)
    finally:
        for worker in workers:
            worker.close()
    return Result(
        chip=ready["chip"],
        device=ready["device"],
        torch=hello["torch"],
        entries=list(entries.values()),
        rows=proofs,
        gaps=gaps.file,
        unused=gaps.unused(hello["entries"]),
        seconds=time.perf_counter() - start,
    )


def _plan(known: dict[str, list[str]], options: Options, gaps: Gaps) -> tuple[dict[str, Entry], list[dict[str, Any]]]:
    entries: dict[str, Entry] = {}
    tasks = []
    for name, dtypes in known.items():
        wanted = [d for d in options.dtypes if d in dtypes]
        if not wanted or (options.ops and not matches_any(options.ops, name)):
            continue
        entry = entries[name] = Entry(name, xfail=gaps.why_xfail(name), unsupported=gaps.why_unsupported(name))
        entry.listed = entry.unsupported is not None
        if not entry.listed:
            tasks += [{"entry": name, "dtype": dtype, "samples": options.samples} for dtype in wanted]
    return entries, tasks


def _enter(entry: Entry, dtype: str, made: dict[str, Any]) -> None:
    entry.seconds += made.get("seconds", 0.0)
    if "crash" in made:
        backward = made["crash"].partition(": ")[2].startswith(("backward", "gradients"))
        side = {"path": "failed", "ran": "native", "ok": False, "error": made["crash"], "reasons": []}
        side |= {"kernels": [], "samples": 0, "weak": [], "left": []}
        entry.dtypes[dtype] = {"forward": None if backward else side, "backward": side if backward else None}
        return
    entry.dtypes[dtype] = {"forward": made["forward"], "backward": made["backward"]}
    if made.get("refused"):
        entry.dtypes[dtype]["refused"] = made["refused"]
    if not entry.runs():
        entry.unsupported = made.get("refused") or "there is nothing to run"
    elif not entry.listed:
        entry.unsupported = None


# ----------------------------------------------------------------------------------------------- rows


def _rows(descriptor: Path, options: Options) -> list[dict[str, Any]]:
    from torchfl.check.listed import bare, rows_of

    rows = rows_of(str(descriptor))
    return [row for row in rows if not options.ops or matches_any(options.ops, bare(row["op"]), row["op"])]


def _prove(
    workers: list[_Worker], shared: _Shared, rows: list[dict[str, Any]], entries: dict[str, Entry]
) -> list[dict[str, Any]]:
    from torchfl.check.listed import is_kernel_of

    ran: dict[str, dict[str, list[str]]] = {}  # "op kernel" -> dtype -> entries that ran it with right values
    for entry in entries.values():
        for dtype, _, run in entry.runs():
            for kernel in run["kernels"] if run["ok"] else ():
                ran.setdefault(kernel, {}).setdefault(dtype, []).append(entry.name)
    tasks = []
    for row in rows:
        by_dtype = [found for kernel, found in ran.items() if is_kernel_of(kernel, row)]
        hints = list(dict.fromkeys(name for found in by_dtype for names in found.values() for name in names))
        tasks.append({"row": row, "dtypes": row["dtypes"], "hints": hints[:2], "by_dtype": by_dtype})
    shared.tasks.extend(tasks)
    shared.done.clear()
    _run_all(workers, shared)
    proofs = []
    for task, made in shared.done:
        row = task["row"]
        for dtype in row["dtypes"]:
            proof = made.get("proofs", {}).get(dtype) or {"proven": False, "by": None, "reason": made.get("crash", "")}
            seen = [name for found in task["by_dtype"] for name in found.get(dtype, [])]
            if not proof["proven"] and not proof.get("wrong") and seen:
                proof = {"proven": True, "by": f"op_db {seen[0]}", "reason": ""}
            place = {key: row[key] for key in ("op", "overload", "kernel", "line")}
            proofs.append({**place, "dtype": dtype, **proof})
    return sorted(proofs, key=lambda p: (p["line"], p["op"], p["dtype"]))


# ----------------------------------------------------------------------------------------------- workers


class _Shared:
    """What the threads that feed workers have in common."""

    def __init__(self, tasks: list[dict[str, Any]], total: int, progress: Progress) -> None:
        self.tasks = deque(tasks)
        self.done: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.errors: list[BaseException] = []
        self._lock = threading.Lock()
        self._progress, self._total, self._count = progress, total, 0

    def take(self) -> dict[str, Any] | None:
        with self._lock:
            if not self.tasks or self.errors:
                return None
            task = self.tasks.popleft()
            self._progress(self._count, self._total, task.get("entry") or task["row"]["op"])
            return task

    def put(self, task: dict[str, Any], made: dict[str, Any]) -> None:
        with self._lock:
            self.done.append((task, made))
            self._count += 1
            self._progress(self._count, self._total, task.get("entry") or task["row"]["op"])


def _run_all(workers: list[_Worker], shared: _Shared) -> None:
    def feed(worker: _Worker) -> None:
        try:
            while (task := shared.take()) is not None:
                shared.put(task, worker.run(task))
        except BaseException as error:
            shared.errors.append(error)

    if len(workers) == 1:
        feed(workers[0])
    else:
        threads = [threading.Thread(target=feed, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    if shared.errors:
        raise shared.errors[0]


class _Died(Exception):
    """A worker ended in the middle of a task; the text says how and where."""


class _Worker:
    """One process of worker.py, and the child that it forked."""

    def __init__(self, descriptor: Path, timeout: float) -> None:
        self._descriptor, self._timeout = str(descriptor.absolute()), timeout
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 (open as long as the process)
        root = str(Path(__file__).parent.parent.parent)
        path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "torchfl.check.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONPATH": path},
        )
        self._buffer = b""
        self._child: int | None = None
        self._ran = 0

    def hello(self) -> dict[str, Any]:
        message = self._read(_START_SECONDS)
        if message is None:
            raise CheckError(f"the worker did not start within {_START_SECONDS:g} s")
        return message

    def start(self) -> dict[str, Any]:
        """A fresh child with the chip loaded."""
        self._write({"start": self._descriptor})
        self._ran = 0
        while True:
            message = self._read(_START_SECONDS)
            if message is None:
                raise CheckError(f"the chip was not loaded within {_START_SECONDS:g} s")
            if "pid" in message:
                self._child = message["pid"]
            elif "refused" in message:
                raise CheckError(message["refused"].removeprefix("error: "))
            elif "ready" in message:
                ready: dict[str, Any] = message["ready"]
                return ready
            elif "ended" in message:
                raise CheckError(f"loading the chip {_how(message['ended'])}:\n{self._last_words(8)}")

    def run(self, task: dict[str, Any]) -> dict[str, Any]:
        """What the task gives; {"crash": text} if it brings its process down twice, or takes too long."""
        if self._child is not None and self._ran >= BATCH:
            self._end()
        try:
            return self._try(task)
        except _Died:
            pass
        try:
            return self._try(task)
        except _Died as died:
            return {"crash": str(died)}

    def _try(self, task: dict[str, Any]) -> dict[str, Any]:
        if self._child is None:
            self.start()
        self._ran += 1
        self._write({key: value for key, value in task.items() if key != "by_dtype"})
        stage = ""
        deadline = time.monotonic() + self._timeout
        while True:
            message = self._read(max(0.0, deadline - time.monotonic()))
            if message is None:
                assert self._child is not None
                os.kill(self._child, signal.SIGKILL)
                self._wait_for_end()
                raise _Died(f"took longer than {self._timeout:g} s: {stage}")
            if "stage" in message:
                stage = message["stage"]
            elif "ended" in message:
                self._child = None
                words = self._last_words(1)
                raise _Died(f"{_how(message['ended'])}: {stage}" + (f" ({words})" if words else ""))
            elif "result" in message:
                result: dict[str, Any] = message["result"]
                return result

    def _end(self) -> None:
        self._write({"stop": True})
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        while (message := self._read(_START_SECONDS)) is not None and "ended" not in message:
            pass
        self._child = None

    def close(self) -> None:
        """The child too, whatever it does."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._log):
            if stream is not None:
                stream.close()

    def _write(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the next read says so
            os.write(self._process.stdin.fileno(), (json.dumps(message) + "\n").encode())

    def _read(self, seconds: float) -> dict[str, Any] | None:
        """The next message; None if there is none in time."""
        assert self._process.stdout is not None
        source = self._process.stdout.fileno()
        deadline = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([source], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            block = os.read(source, 1 << 16)
            if not block:
                raise CheckError(f"the worker is gone:\n{self._last_words(20)}")
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _last_words(self, lines: int) -> str:
        self._log.seek(0, os.SEEK_END)
        size = self._log.tell()
        self._log.seek(max(0, size - 4096))
        return "\n".join(self._log.read().decode(errors="replace").strip().splitlines()[-lines:])


def _how(status: int) -> str:
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        return f"crashed ({signal.Signals(number).name})"
    return f"ended the process (status {os.waitstatus_to_exitcode(status)})"
