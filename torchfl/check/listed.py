"""The rows of a descriptor's `ops`, as they are checked. Contract: imports neither torch nor native code."""

from __future__ import annotations

import functools
from typing import Any

from torchfl import hcd


@functools.cache
def rows_of(descriptor: str) -> list[dict[str, Any]]:
    """The rows of a descriptor, each operator, form and kernel once, with the dtypes that it claims."""
    lowered = hcd.load(descriptor).lower()
    made: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in lowered["ops"]:
        key = (row["op"], row["overload"] or "", row["kernel"])
        dtypes = row["dtypes"].get("*") or sorted({d for some in row["dtypes"].values() for d in some})
        known = made.setdefault(
            key,
            {"op": row["op"], "overload": row["overload"], "kernel": row["kernel"], "line": row["line"], "dtypes": []},
        )
        known["dtypes"] += [d for d in dtypes or lowered["dtypes"] if d not in known["dtypes"]]
    return list(made.values())


def bare(op: str) -> str:
    """ "aten::add_.Tensor" and "aten::convolution_overrideable" as "add" and "convolution"."""
    return (
        op.removeprefix("aten::")
        .removeprefix("torchfl::")
        .partition(".")[0]
        .removesuffix("_overrideable")
        .removesuffix("_")
    )


def is_kernel_of(kernel: str, row: dict[str, Any]) -> bool:
    """Whether "aten::add npu_v3_add", an operator and what ran it, is a row's."""
    op, _, target = kernel.partition(" ")
    return bool(target == row["kernel"] and bare(op) == bare(row["op"]))
