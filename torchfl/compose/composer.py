"""Programs for calls, made once: in memory, then on disk, then by tracing.

Contract: `Composer.program` gives a program that serves the call, or raises NotComposable; both answers are kept. What
is kept in memory is bounded. Not thread-safe; calls come under the GIL.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.cache import ProgramCache
from torchfl.compose.program import Program
from torchfl.compose.recorder import plain
from torchfl.compose.trace import NotComposable, Target, compose, full_arguments, is_number, schema_of


def signature(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """All of a call that a program may depend on, but the values of its numbers: of those only the kind."""
    info = schema_of(op)
    parts = []
    for position, x in enumerate(full_arguments(op, args, kwargs)):
        parts.append(f"{info.names[position]}={_text(op, position, x)}")
    return ";".join(parts)


def _text(op: Any, position: int, x: Any) -> str:
    if isinstance(x, Tensor):
        return f"{str(x.dtype)[6:]}{list(x.shape)}{list(x.stride())}"
    if isinstance(x, (list, tuple)):
        return "[" + ",".join(_text(op, position, e) for e in x) + "]"
    return type(x).__name__ if is_number(op, position, x) else repr(x)


def serves(program: Program, given: Sequence[Any]) -> bool:
    """Whether the numbers that the program depends on are those of the call (all arguments, in the schema's order)."""
    for (position, element), value in zip(program.baked, program.baked_values, strict=True):
        x = given[position] if position < len(given) else None
        if element >= 0:
            x = x[element] if isinstance(x, (list, tuple)) and element < len(x) else None
        if plain(x) != value or isinstance(x, bool) != isinstance(value, bool):
            return False
    return True


class Composer:
    """`traces` counts the programs that no cache had."""

    def __init__(self, target: Target, cache: ProgramCache | None = None, most: int = 4096) -> None:
        self.target, self.cache, self.most = target, cache, most
        self.traces = 0
        self._kept: OrderedDict[tuple[Any, str], list[Program]] = OrderedDict()
        self._refused: OrderedDict[tuple[Any, str], str] = OrderedDict()

    def program(self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        collects = gc.isenabled()
        gc.disable()  # so many small objects at once would set off a collection of the whole process: 100 ms
        try:
            return self._program(op, args, kwargs)
        finally:
            if collects:
                gc.enable()

    def _program(self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Program:
        text = signature(op, args, kwargs)
        key = (op, text)
        given = full_arguments(op, args, kwargs)
        if key in self._refused:
            raise NotComposable(self._refused[key])
        kept = self._kept.get(key)
        if kept is None:
            kept = self.cache.get(str(op), text) if self.cache is not None else []
            self._keep(self._kept, key, kept)
        else:
            self._kept.move_to_end(key)
        for program in kept:
            if serves(program, given):
                return program
        self.traces += 1
        try:
            program = compose(op, args, kwargs, self.target)
        except NotComposable as reason:
            self._keep(self._refused, key, str(reason))
            raise
        kept.insert(0, program)
        del kept[8:]  # a number that changes with every call and cannot be left open must not fill the cache
        if self.cache is not None:
            self.cache.put(str(op), text, kept)
        return program

    def _keep(self, table: OrderedDict[Any, Any], key: Any, value: Any) -> None:
        table[key] = value
        while len(table) > self.most:
            table.popitem(last=False)
