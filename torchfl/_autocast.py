"""Autocast lists: torch.cuda's, as the descriptor changes them.

Contract: an operator named in the descriptor's `tensor.autocast` goes to the list it is named in and leaves all others.
One more rule needs no naming: an operator that would be lowered to float16, but that the chip has in float32 only, is
left as it is, since lowering it would send it to the CPU.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from torchfl.hcd import opnames

#: A descriptor's list -> the engine's policy.
_POLICIES = {"lower_precision": "lower_precision", "fp32": "fp32", "promote": "promote"}


def lists(defaults: dict[str, list[str]], lowered: dict[str, Any]) -> dict[str, list[str]]:
    """Operators by policy, for `_C.install_autocast`."""
    result = {policy: list(ops) for policy, ops in defaults.items()}
    for key, policy in _POLICIES.items():
        for name in lowered["autocast"][key]:
            bare = name.removeprefix("aten::")
            for ops in result.values():
                ops[:] = [op for op in ops if op.split(".")[0] != bare and op != bare]
            result[policy].append(bare)
    native: dict[str, set[str]] = {}
    for row in lowered["ops"]:
        native.setdefault(row["op"], set()).update(row["dtypes"]["*"])
    half = {"float16", "bfloat16"}

    def only_in_full_precision(op: str) -> bool:
        reached = [native.get(name, set()) for name in opnames.resolve(f"aten::{op.split('.')[0]}")]
        served = [dtypes for dtypes in reached if dtypes]
        return bool(served) and all("float32" in d and not d & half for d in served)

    result["lower_precision"] = [op for op in result["lower_precision"] if not only_in_full_precision(op)]
    return result


def install(engine: ModuleType, lowered: dict[str, Any], first_index: int, count: int) -> None:
    """For the devices of one chip: each has its own lists."""
    engine.install_autocast(lists(engine.default_autocast_lists(), lowered), first_index, count)
