"""`python -m torchfl.cli.probe REPORT DESCRIPTOR...`: loads chips and runs one addition on each.

Contract: whatever an adapter does to this process (a crash, an exit, text on stdout), the caller learns how far it
came: one JSON object a line in REPORT, written before and after each step. Meant for `torchfl doctor` alone.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def main(report: str, descriptors: list[str]) -> None:
    with Path(report).open("a", encoding="utf-8") as file:

        def tell(**facts: Any) -> None:
            file.write(json.dumps(facts) + "\n")
            file.flush()

        tell(step="engine", state="begun")
        try:
            from torchfl._native import engine

            abi = engine().abi
        except Exception as error:
            tell(step="engine", state="failed", error=_text(error))
            return
        tell(step="engine", state="done", abi=abi)
        for descriptor in descriptors:
            _chip(descriptor, tell)


def _chip(descriptor: str, tell: Any) -> None:
    import torchfl

    tell(step="load", chip=descriptor, state="begun")
    try:
        chip = torchfl.load(descriptor)
    except Exception as error:
        tell(step="load", chip=descriptor, state="failed", error=_text(error))
        return
    tell(
        step="load",
        chip=descriptor,
        state="done",
        adapter=chip.adapter,
        adapter_version=chip.adapter_version,
        sdk_version=chip.sdk_version,
        labels=chip.labels,
        missing_kernels=sorted(set(chip.missing_kernels)),
    )
    for label in chip.labels:
        tell(step="add", chip=descriptor, device=label, state="begun")
        try:
            path = _add(label)
        except Exception as error:
            tell(step="add", chip=descriptor, device=label, state="failed", error=_text(error))
        else:
            tell(step="add", chip=descriptor, device=label, state="done", path=path)


def _add(label: str) -> str:
    """Adds on the device; returns the path that it took. Raises if the sum is wrong."""
    import torch

    import torchfl

    a, b = torch.arange(8.0), torch.full((8,), 0.5)
    torchfl.reset_stats()
    total = (a.to(label) + b.to(label)).cpu()
    if not torch.equal(total, a + b):
        raise ArithmeticError(f"{a.tolist()} + {b.tolist()} gave {total.tolist()}")
    paths = [row["path"] for row in torchfl.stats() if row["op"].startswith("aten::add")]
    return str(paths[0]) if paths else "unknown"


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
