"""`fallback.budget` of a descriptor: how many calls, and how many bytes, may leave the chip in one step.

Contract: a *step* is what lies between two marks; a mark is the end of a `step()` of any `torch.optim` optimizer, or a
call of `torchfl.step()`. What comes before the first mark (building and moving a model) is no step. Looked at only at a
mark, from the counters that run anyway: a call costs nothing more. Each device is held to its chip's budget.

Over the budget: one warning for each chip and process; in strict mode `torchfl.BudgetError`, at each such step.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from torchfl._patches import engine_patches
from torchfl.errors import BudgetError

#: (device, operator, path, target, reason)
Key = tuple[str, str, str, str, str]
_SHOWN = 3


@dataclasses.dataclass
class Left:
    """What left the chip by one counter in one step."""

    op: str
    path: str
    reason: str
    calls: int
    bytes: int


@dataclasses.dataclass(frozen=True)
class Budget:
    """`calls` and `bytes`: None is no limit. `source`: the descriptor."""

    calls: int | None
    bytes: int | None
    source: str

    def exceeded(self, left: list[Left]) -> bool:
        return self._over_calls(left) or self._over_bytes(left)

    def _over_calls(self, left: list[Left]) -> bool:
        return self.calls is not None and sum(row.calls for row in left) > self.calls

    def _over_bytes(self, left: list[Left]) -> bool:
        return self.bytes is not None and sum(row.bytes for row in left) > self.bytes

    def text(self, device: str, left: list[Left]) -> str:
        """For the user: how much, the operators that matter most with their reasons, and what to do."""
        by_calls = self._over_calls(left)
        first = sorted(left, key=lambda r: (-r.calls, -r.bytes) if by_calls else (-r.bytes, -r.calls))[:_SHOWN]
        allowed = [
            text
            for text in (
                "" if self.calls is None else _calls(self.calls),
                "" if self.bytes is None else _bytes(self.bytes),
            )
            if text
        ]
        moved = f"{_calls(sum(r.calls for r in left))} and {_bytes(sum(r.bytes for r in left))}"
        lines = [
            f"{moved} left {device} in one step; fallback.budget of {self.source} allows {' and '.join(allowed)}.",
            *(f"  {r.op} ({r.path}): {_calls(r.calls)}, {_bytes(r.bytes)}: {r.reason or 'as declared'}" for r in first),
        ]
        if len(left) > len(first):
            lines.append(f"  and {len(left) - len(first)} more")
        lines.append(
            "Give the descriptor a kernel or instructions for them, or change the calls as the reasons say "
            "(`torchfl explain script.py` lists every one); or raise fallback.budget."
        )
        return "\n".join(lines)


def _calls(count: int) -> str:
    return "1 call" if count == 1 else f"{count} calls"


def _bytes(count: int) -> str:
    from torchfl.pages import size

    return size(count)


class Watch:
    """The budgets of this process' chips. `rows` gives the counters of what left a chip since the process began."""

    def __init__(self, rows: Callable[[], list[dict[str, Any]]], strict: Callable[[], bool], warn: Any) -> None:
        self._rows, self._strict, self._warn = rows, strict, warn
        self._budgets: dict[str, Budget] = {}  # by device type
        self._before: dict[Key, tuple[int, int]] | None = None
        self._warned: set[str] = set()

    def add(self, device_type: str, budget: Budget) -> None:
        self._budgets[device_type] = budget

    def mark(self) -> None:
        """The end of a step. Raises BudgetError in strict mode, if a device was over its budget."""
        now = {
            (r["device"], r["op"], r["path"], r["target"], r["reason"]): (r["calls"], r["host_bytes"])
            for r in self._rows()
        }
        before, self._before = self._before, now
        if before is None:
            return
        left: dict[str, list[Left]] = {}
        for key, (calls, moved) in now.items():
            old_calls, old_moved = before.get(key, (0, 0))
            if calls > old_calls:
                device, op, path, _, reason = key
                left.setdefault(device, []).append(Left(op, path, reason, calls - old_calls, moved - old_moved))
        for device, rows in left.items():
            device_type = device.partition(":")[0]
            budget = self._budgets.get(device_type)
            if budget is None or not budget.exceeded(rows):
                continue
            if self._strict():
                raise BudgetError(budget.text(device, rows))
            if device_type not in self._warned:
                self._warned.add(device_type)
                self._warn("%s", budget.text(device, rows))


_watch: Watch | None = None


def install(engine: Any, warn: Any, device_type: str, lowered: dict[str, Any]) -> None:
    """Hold a chip to its budget, if its descriptor states one. The first one registers the hook on optimizers."""
    global _watch
    stated = lowered["fallback"]["budget"]
    if stated["calls"] is None and stated["bytes"] is None:
        return
    if _watch is None:
        from torch.optim.optimizer import register_optimizer_step_post_hook

        _watch = Watch(lambda: list(engine.stats(whole=True, off_chip=True)), engine.is_strict, warn)
        hook = register_optimizer_step_post_hook(lambda optimizer, args, kwargs: mark())
        engine_patches.on_undo(hook.remove)
        engine_patches.on_undo(_forget)
    _watch.add(device_type, Budget(stated["calls"], stated["bytes"], lowered["descriptor"]))


def _forget() -> None:
    global _watch
    _watch = None


def mark() -> None:
    """The end of a step, for every chip that has a budget; without one, nothing."""
    if _watch is not None:
        _watch.mark()


__all__ = ["Budget", "Left", "Watch", "install", "mark"]
