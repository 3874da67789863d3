"""Tests that need a process of their own: another environment, a fault that stays, a fork.

A process holds one configuration of a simulated chip. `run_script` runs a piece of code in a fresh one. `OwnProcess`
collects the test functions of a file that share an environment: the first of them that pytest runs starts one process,
which imports the file and runs them all in order; each test then reports its own outcome. Under xdist the process runs
once for all workers.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import importlib.util
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
_INSIDE = "TORCHFL_TEST_GROUP"  # names the group whose process this is
#: Settings of the user's shell that would change what a test sees, by how their names start.
_SETTINGS = ("NPU_SIM_", "TORCHFL_", "TORCH_FL_")
#: With `CI` PyTorch's test runner writes XML reports, by a package that nobody here needs.
_RUNNERS = {"CI"}


def environment(**changes: str) -> dict[str, str]:
    """The environment of a child: this one without settings of the simulation or of Torch-FL, and with `changes`."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS) and name not in _RUNNERS
    }
    path = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), os.environ.get("PYTHONPATH")]))
    return {**kept, "PYTHONPATH": path, **changes}


def in_threads(work: Callable[..., object], count: int | Sequence[int]) -> None:
    """`work` of each number at once, a thread each, until all are done. Of a count: of the numbers below it."""
    threads = [threading.Thread(target=work, args=(n,)) for n in (range(count) if isinstance(count, int) else count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@dataclass
class Ran:
    code: int
    out: str
    err: str


def run_script(code: str, *args: str, env: dict[str, str] | None = None, timeout: float = 100) -> Ran:
    """Runs Python code in a new process. It never raises for what the code does: look at `code`, `out` and `err`."""
    command = [sys.executable, "-c", code, *args]
    ran = subprocess.run(command, env=environment(**(env or {})), capture_output=True, text=True, timeout=timeout)
    return Ran(ran.returncode, ran.stdout, ran.stderr)


class OwnProcess:
    """Decorator for tests that run together in one process with the environment `env`.

    The functions take no arguments. They run in the order of the file, and an earlier one may change what the device
    is like for a later one.
    """

    every: dict[str, OwnProcess] = {}

    def __init__(self, name: str, timeout: float = 100, **env: str) -> None:
        self.name, self.timeout, self.env = name, timeout, env
        self.file = ""
        self.functions: dict[str, Callable[[], object]] = {}
        self.every[name] = self

    def __call__(self, function: Callable[[], object]) -> Callable[[], object]:
        self.add(function.__name__, function.__code__.co_filename, function)
        if os.environ.get(_INSIDE) == self.name:
            return function
        return functools.wraps(function)(lambda: self.report(function.__name__))

    def add(self, name: str, file: str, function: Callable[[], object]) -> None:
        self.file = file
        self.functions[name] = function

    def report(self, name: str) -> None:
        """Fails if the function of that name did in the process."""
        outcome = self.outcomes().get(name, "it was never reached")
        if outcome:
            pytest.fail(outcome, pytrace=False)

    @functools.cached_property
    def _outcomes(self) -> dict[str, str]:
        session = os.environ.get("PYTEST_XDIST_TESTRUNUID")
        if session is None:
            return self._run()
        folder = Path(tempfile.gettempdir()) / f"torchfl-tests-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        kept = folder / f"{session}-{self.name}.json"
        with kept.open("a+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            if not text:
                text = json.dumps(self._run())
                file.write(text)
            return dict(json.loads(text))

    def outcomes(self) -> dict[str, str]:
        """What became of each function: "" if it passed, else why it did not."""
        return self._outcomes

    def _run(self) -> dict[str, str]:
        with tempfile.TemporaryDirectory() as folder:
            written = Path(folder) / "outcomes.jsonl"
            child = subprocess.Popen(
                [sys.executable, __file__, self.file, self.name, str(written)],
                env=environment(**self.env, **{_INSIDE: self.name}),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            try:
                output, _ = child.communicate(timeout=self.timeout)
                how = f"exit status {child.returncode}"
                if child.returncode < 0:
                    how = signal.Signals(-child.returncode).name
            except subprocess.TimeoutExpired:
                child.kill()
                output, _ = child.communicate()
                how = f"not finished after {self.timeout} s"
            lines = written.read_text().splitlines() if written.exists() else []
        outcomes: dict[str, str] = {}
        for name, outcome in map(json.loads, lines):
            outcomes[name] = outcome
        ended = f"the process of '{self.name}' ended ({how}); it printed:\n{output}"
        return {
            name: ended if outcomes.get(name, "started") == "started" else outcomes[name] for name in self.functions
        }


@contextlib.contextmanager
def standard_error() -> Iterator[Callable[[], str]]:
    """Catches what this process writes to its standard error, C libraries included; the value gives all of it."""
    with tempfile.TemporaryFile() as file:
        sys.stderr.flush()
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        kept = []

        def text() -> str:
            if kept:
                return kept[0]
            sys.stderr.flush()
            return os.pread(file.fileno(), 1 << 24, 0).decode(errors="replace")

        try:
            yield text
        finally:
            kept.append(text())
            os.dup2(saved, 2)
            os.close(saved)


def heard(level: int = logging.WARNING) -> list[str]:
    """A list to which every line that Torch-FL logs from now on is added. Only for a process of the test's own."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("torchfl")
    logger.addHandler(handler)
    logger.setLevel(level)
    return lines


def in_forked_child(function: Callable[[], str]) -> str:
    """What `function` returns in a child of this process made by fork, or how it failed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            text = function()
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return text if status == 0 else f"the child ended with {status}, having said: {text}"


def _main(file: str, group: str, written: str) -> None:
    path = Path(file)
    sys.path.insert(0, str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    own = sys.modules["helpers"].OwnProcess.every[group]  # the module's own import of this file
    with open(written, "a") as out:
        for name, function in own.functions.items():
            print(json.dumps([name, "started"]), file=out, flush=True)
            try:
                function()
                outcome = ""
            except BaseException:
                outcome = traceback.format_exc()
            print(json.dumps([name, outcome]), file=out, flush=True)
    sys.stdout.flush()
    sys.stderr.flush()


if __name__ == "__main__":
    _main(*sys.argv[1:])
