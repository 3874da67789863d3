"""The process that runs entries: `python -m torchfl.check.worker`, driven by pool.py with lines of JSON.

Contract: this process imports PyTorch and op_db (seconds) and then only forks. The child loads the chip (a tenth of a
second), takes one task a line from stdin and answers with one line on stdout; nothing else is written there. When a
child ends, by itself or by a signal, the parent says so in a line, and the next `start` forks another.

    <- {"entries": {name: [dtypes]}, "torch": version}
    -> {"start": descriptor}
    <- {"pid": n}, then {"ready": {chip, device, ...}} or {"refused": text}
    -> {"entry": name, "dtype": name, "samples": n} | {"row": row, "dtypes": names, "hints": entries} | {"stop": true}
    <- {"stage": text} ..., {"result": {...}}
    <- {"ended": wait status}
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


class Lines:
    """Lines of a file descriptor, read no further than asked: parent and child share it."""

    def __init__(self, source: int, target: int) -> None:
        self._source, self._target = source, target

    def read(self) -> dict[str, Any] | None:
        collected = b""
        while not collected.endswith(b"\n"):
            byte = os.read(self._source, 1)
            if not byte:
                return None
            collected += byte
        found: dict[str, Any] = json.loads(collected)
        return found

    def write(self, message: dict[str, Any]) -> None:
        data = (json.dumps(message) + "\n").encode()
        while data:
            data = data[os.write(self._target, data) :]


def main() -> None:
    # Vendor libraries print: what is not ours goes to stderr.
    lines = Lines(os.dup(0), os.dup(1))
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    import torch

    torch.set_num_threads(1)
    from torchfl.check import entries, rows, run  # noqa: F401  here, so that no child has to

    known = entries.all_entries()
    dtypes = {name: sorted(str(d).removeprefix("torch.") for d in op.dtypes) for name, op in known.items()}
    lines.write({"entries": dtypes, "torch": str(torch.__version__)})
    while True:
        message = lines.read()
        if message is None:
            return
        if "start" not in message:
            continue
        child = os.fork()
        if child == 0:
            _child(lines, message["start"], known)
        _, status = os.waitpid(child, 0)
        lines.write({"ended": status})


def _child(lines: Lines, descriptor: str, known: dict[str, Any]) -> None:
    """Never returns."""
    lines.write({"pid": os.getpid()})
    try:
        import torchfl
        from torchfl.cli.console import expected

        try:
            chip = torchfl.load(descriptor)
            if not chip.labels:
                raise torchfl.LoadError(f"{chip.name} has no device here")
        except Exception as error:
            lines.write({"refused": expected(error) or f"{type(error).__name__}: {error}"})
            os._exit(0)
        lines.write({"ready": {"chip": chip.name, "device": chip.labels[0]}})
        _serve(lines, chip.labels[0], known)
    except BaseException:
        import traceback

        traceback.print_exc()
        sys.stderr.flush()
        os._exit(70)
    os._exit(0)


def _serve(lines: Lines, device: str, known: dict[str, Any]) -> None:
    from torchfl.check import rows, run
    from torchfl.check.entries import dtype_named

    def stage(text: str) -> None:
        lines.write({"stage": text})

    while True:
        task = lines.read()
        if task is None or "stop" in task:
            return
        start = time.perf_counter()
        if "entry" in task:
            op, dtype = known[task["entry"]], dtype_named(task["dtype"])
            made = run.run_entry(op, dtype, task["samples"], device, stage, task.get("backward", True))
        else:
            made = rows.prove(task["row"], task["dtypes"], task["hints"], device, known, stage)
        lines.write({"result": {**made, "seconds": time.perf_counter() - start}})


if __name__ == "__main__":
    main()
