"""Conformance of a chip: PyTorch's own operator list (op_db) on the device against the CPU, with proof of the path.

Contract: `check` runs everything and returns a `Result`; it never raises for what an entry does, not even for one that
kills its process. Entries run in worker processes, so importing this package imports neither torch nor native code.

    entries   which part of op_db, and its samples with hard inputs derived from them    (in a worker)
    run       one entry in one dtype: device and CPU, paths from the engine's statistics (in a worker)
    compare   whether a result is right, with tolerances
    knowledge what PyTorch leaves open: random, undefined, not unique
    rows      whether each row of the descriptor's `ops` really ran
    worker    the process that runs them; pool: those who feed it, with time limits and retries
    gaps      the chip's own list of known gaps, check.yaml
    result, html, junit: what comes out
"""

from __future__ import annotations

from torchfl.check.gaps import Gaps
from torchfl.check.pool import CheckError, NothingMeant, Options, check
from torchfl.check.result import Entry, Result

__all__ = ["CheckError", "Entry", "Gaps", "NothingMeant", "Options", "Result", "check"]
