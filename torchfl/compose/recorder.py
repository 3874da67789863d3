"""Records an operator as steps, while its decomposition runs on meta tensors.

Contract: inside a trace every tensor is a meta tensor, and its storage says which value it is: `base_of` maps a storage
to the value that owns the memory, so PyTorch's own view operators need no recording. Writing in place gives a storage a
new value (or, for a slice, a step that writes into a copy), so values that were read before stay what they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from torchfl.compose.instructions import INSTRUCTIONS
from torchfl.compose.numbers import Numbers, is_open, value_of
from torchfl.compose.program import Constant, Input, Program, Step, Value


class NotComposable(Exception):
    """The operator cannot be made from what the chip has; the text says which part has no way."""


class Target(Protocol):
    """What the chip can do."""

    max_rank: int

    def native(self, op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a kernel of the chip runs this call."""

    def instruction(self, name: str, dtypes: tuple[torch.dtype, ...]) -> bool:
        """Whether the chip has the instruction for the dtype (vcast: from, to)."""


_MAX_CONSTANT = 1 << 16
_MAX_STEPS = 20000
_VECTOR_FAMILIES = {f for f in (i.family for i in INSTRUCTIONS.values()) if f.startswith("vector")}
_VECTOR_FAMILIES |= {"compare", "select", "cast", "copy"}
ELEMENTWISE = frozenset(i.name for i in INSTRUCTIONS.values() if i.family in _VECTOR_FAMILIES)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype)[6:]


_NAMES = {d: dtype_name(d) for d in vars(torch).values() if isinstance(d, torch.dtype)}


class Recorder(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # else the first use imports torch._dynamo: 1.5 s
        return False

    def __init__(self, target: Target, name: str) -> None:
        super().__init__()
        self.target = target
        self.program = Program(name)
        self.numbers = Numbers()
        self.versions: dict[int, int] = {}  # of a base that a step has written into
        self.sharers: dict[int, int] = {}  # how many storages stand for a base
        self.blank: set[int] = set()  # bases that nothing has been written into yet
        self.fixed: set[int] = set()  # inputs and constants
        self.base_of: dict[int, int] = {}
        self.alive: list[Tensor] = []
        self.inside: list[Any] = []  # the operators whose decompositions are being run
        self.trying: list[str] = []  # instructions that others are standing in for
        self._views: dict[Any, int] = {}
        self._done: dict[Any, list[int | None]] = {}
        self._has: dict[Any, bool] = {}
        self.fills: dict[int, Any] = {}  # the one number that a base is full of
        self.narrowed_from: dict[int, Tensor] = {}  # value -> the tensor it is a lossless widening of

    # ------------------------------------------------------------------------------------------------------- values

    def _own(self, tensor: Tensor) -> int:
        """A new value that owns the memory of `tensor`, whose storage it becomes."""
        values = self.program.values
        ident = len(values)
        values.append(Value(_NAMES[tensor.dtype], list(tensor.shape), list(tensor.stride()), 0, ident))
        self._views[(ident, tensor.dtype, 0, tensor.shape, tensor.stride())] = ident
        self._bind(tensor, ident)
        return ident

    def _bind(self, tensor: Tensor, base: int) -> None:
        self.alive.append(tensor)
        self.base_of[tensor.untyped_storage()._cdata] = base
        self.sharers[base] = self.sharers.get(base, 0) + 1

    def empty(self, sizes: Sequence[int], dtype: torch.dtype, strides: Sequence[int] | None = None) -> Tensor:
        """A temporary with nothing in it."""
        if strides is None:
            tensor = torch.empty(sizes, dtype=dtype, device="meta")
        else:
            tensor = torch.empty_strided(sizes, strides, dtype=dtype, device="meta")
        self.blank.add(self._own(tensor))
        return tensor

    def add_input(self, tensor: Tensor, arg: int, element: int = -1) -> Tensor:
        mine = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
        ident = self._own(mine)
        self.fixed.add(ident)
        self.program.inputs.append(Input(ident, arg, element))
        return mine

    def constant(self, tensor: Tensor) -> Tensor:
        if tensor.numel() > _MAX_CONSTANT:
            raise NotComposable(f"a constant of {tensor.numel()} elements")
        mine = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        ident = self._own(mine)
        self.fixed.add(ident)
        flat = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        self.program.constants.append(Constant(ident, [plain(x) for x in flat.reshape(-1).tolist()]))
        return mine

    def known(self, tensor: Tensor) -> bool:
        return tensor.device.type == "meta" and tensor.untyped_storage()._cdata in self.base_of

    def base(self, tensor: Tensor) -> int:
        base = self.base_of.get(tensor.untyped_storage()._cdata)
        if base is None:
            if tensor.device.type != "meta":
                return self.base(self._adopt(tensor))
            # PyTorch made it behind our back, so nothing was recorded for it: only its layout can be trusted.
            raise NotComposable(f"a tensor of {tuple(tensor.shape)} came from nowhere")
        return base

    def _adopt(self, tensor: Tensor) -> Tensor:
        # All of its storage: other views of it may follow.
        count = tensor.untyped_storage().nbytes() // tensor.element_size()
        mine = self.constant(tensor.as_strided([count], [1], 0))
        self.alive.append(tensor)
        self.base_of[tensor.untyped_storage()._cdata] = self.base_of[mine.untyped_storage()._cdata]
        return mine

    def value(self, tensor: Tensor, sizes: torch.Size | None = None) -> int:
        """The id of the tensor as a value, broadcast to `sizes`."""
        base = self.base(tensor)
        shape, strides = tensor.shape, tensor.stride()
        if sizes is not None and shape != sizes:
            lead = len(sizes) - len(shape)
            strides = (0,) * lead + tuple(
                0 if n == 1 and m != 1 else s for n, s, m in zip(shape, strides, sizes[lead:], strict=True)
            )
            shape = sizes
        offset = tensor.storage_offset()
        key = (base, tensor.dtype, offset, shape, strides)
        ident = self._views.get(key)
        if ident is None:
            ident = self._views[key] = len(self.program.values)
            self.program.values.append(Value(_NAMES[tensor.dtype], list(shape), list(strides), offset, base))
        return ident

    def fill_of(self, tensor: Tensor) -> Any:
        """The one number that all elements of the tensor are, if that is known; else None."""
        if tensor.device.type != "meta":
            if tensor.dim() == 0 and not tensor.is_complex():
                number = getattr(tensor, "_wrapped_number", None)
                return tensor.item() if number is None else number
            return None
        base = self.base_of.get(tensor.untyped_storage()._cdata)
        return self.fills.get(base) if base is not None and base not in self.versions else None

    def is_whole(self, tensor: Tensor) -> bool:
        """Whether the tensor is all of its base, in its layout."""
        return self.value(tensor) == self.base(tensor)

    # -------------------------------------------------------------------------------------------------------- steps

    def has(self, name: str, *dtypes: torch.dtype) -> bool:
        key = (name, dtypes)
        known = self._has.get(key)
        if known is None:
            known = self._has[key] = bool(self.target.instruction(name, dtypes))
        return known

    def literal(self, x: Any) -> Any:
        """An argument as the program has it; tensors become values."""
        if x is None or isinstance(x, (bool, int, str)):
            return x
        if isinstance(x, float):
            return plain(x)
        if isinstance(x, Tensor):
            return {"value": self.value(x)}
        if is_open(x):
            return {"number": x.node.index}
        if isinstance(x, torch.dtype):
            return {"dtype": _NAMES[x]}
        if isinstance(x, dict):
            return x
        if isinstance(x, (list, tuple)):
            if any(isinstance(e, Tensor) for e in x):
                return {"values": [None if e is None else self.value(e) for e in x]}
            return [self.literal(e) for e in x]
        if isinstance(x, complex):
            raise NotComposable("complex numbers as arguments")
        return str(x).removeprefix("torch.")

    def step(self, op: str, args: list[Any], results: Sequence[Any], share: bool = True) -> list[Tensor]:
        """Appends a step (or finds an equal one). `results`: (sizes, dtype, strides or None) of each."""
        key = (op, self._freeze(args), tuple((tuple(r[0]), r[1], r[2] and tuple(r[2])) for r in results))
        outs = self._done.get(key) if share else None
        if outs is not None and not any(o in self.versions for o in outs):
            again = []
            for (sizes, dtype, strides), o in zip(results, outs, strict=True):
                assert o is not None
                v = self.program.values[o]
                again.append(torch.empty_strided(sizes, strides or v.strides, dtype=dtype, device="meta"))
                self._bind(again[-1], o)
            return again
        made = []
        for sizes, dtype, strides in results:
            if strides is None:
                made.append(torch.empty(sizes, dtype=dtype, device="meta"))
            else:
                made.append(torch.empty_strided(sizes, strides, dtype=dtype, device="meta"))
            self._own(made[-1])
        ids: list[int | None] = [self.base(m) for m in made]
        self._append(Step(op, args, ids))
        if share:
            self._done[key] = ids
        return made

    def _append(self, step: Step) -> None:
        self.program.steps.append(step)
        if len(self.program.steps) > _MAX_STEPS:
            raise NotComposable(f"more than {_MAX_STEPS} steps")

    def _freeze(self, x: Any) -> Any:
        if isinstance(x, list):
            return tuple(map(self._freeze, x))
        if isinstance(x, dict):
            if "value" in x:
                ident = x["value"]
                return ("value", ident, self.versions.get(self.program.values[ident].base, 0))
            if "values" in x:
                return ("values", *(self._freeze({"value": i}) if i is not None else None for i in x["values"]))
            return tuple(x.items())
        return (type(x), x, math.copysign(1, x)) if isinstance(x, float) else (type(x), x)

    def step_into(self, op: str, args: list[Any], tensor: Tensor) -> None:
        """A step that writes into the memory of `tensor`, which must be ours alone (see `writable`)."""
        out = self.value(tensor)
        base = self.program.values[out].base
        self._append(Step(op, args, [out]))
        self.blank.discard(base)
        self.versions[base] = self.versions.get(base, 0) + 1

    def writable(self, tensor: Tensor) -> None:
        """Makes the base of `tensor` one that steps may write into: a copy, if others see it too."""
        base = self.base(tensor)
        if base not in self.fixed and self.sharers[base] == 1:
            return
        old = self.program.values[base]
        fresh = self.empty(old.sizes, getattr(torch, old.dtype), old.strides)
        new = self.base(fresh)
        if base not in self.blank:
            self.step_into("uba::copy_nd", [{"value": base}], fresh)
            self.versions.pop(new)
        self.sharers[base] -= 1
        self.base_of[tensor.untyped_storage()._cdata] = new

    def write(self, target: Tensor, source: Any) -> None:
        """target.copy_(source), for a source of its dtype that broadcasts to it."""
        if target.numel() == 0:
            return
        if not isinstance(source, Tensor):
            source = self.full(target.shape, source, target.dtype)
        base = self.base(target)
        old = self.program.values[base]
        if self.value(target) == base or (target.storage_offset() == 0 and _dense(target, old)):
            new = self.base(source)
            shape = self.program.values[new]
            whole = self.value(source) == new and shape.sizes == old.sizes and shape.strides == old.strides
            if not whole or new in self.fixed or shape.dtype != old.dtype:
                fresh = self.empty(old.sizes, getattr(torch, old.dtype), old.strides)
                window = torch.as_strided(fresh, target.shape, target.stride())
                self.step_into("uba::copy_nd", [{"value": self.value(source, target.shape)}], window)
                new = self.base(fresh)
                self.versions.pop(new, None)
            self.sharers[base] -= 1
            self.sharers[new] += 1
            self.base_of[target.untyped_storage()._cdata] = new
            return
        self.writable(target)
        self.step_into("uba::copy_nd", [{"value": self.value(source, target.shape)}], target)

    # ------------------------------------------------------------------------------------------------- instructions

    def opmath(self, dtype: torch.dtype) -> torch.dtype:
        """The dtype that several steps on this one are computed in: as on the CPU, float32 for the half ones."""
        return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype

    def full(self, sizes: Sequence[int], value: Any, dtype: torch.dtype) -> Tensor:
        """A new tensor of one number. Vector instructions that read it take the number as an immediate."""
        if dtype.is_complex:
            return self.copy(self.constant(torch.full((), value_of(value, bake=True), dtype=dtype)).expand(sizes))
        if is_open(value):
            if dtype == torch.bool:
                value = bool(value)
        elif isinstance(value, (bool, int, float)):
            value = bool(value) if dtype == torch.bool else float(value) if dtype.is_floating_point else int(value)
        else:
            raise NotComposable(f"filling with {value!r}")
        if self.has("vfill", dtype):
            args = [list(sizes), self.literal(value), {"dtype": _NAMES[dtype]}]
            if len(sizes) > self.target.max_rank:
                return self.full([math.prod(sizes)], value, dtype).view(list(sizes))
            made = self.step("uba::vfill", args, [(sizes, dtype, None)])[0]
        elif is_open(value):
            raise NotComposable(f"no vfill for {_NAMES[dtype]}")
        else:
            made = self.copy(self.constant(torch.full((), value, dtype=dtype)).expand(sizes))
        self.fills[self.base(made)] = value
        return made

    def copy(self, x: Tensor, strides: Sequence[int] | None = None) -> Tensor:
        return self.step("uba::copy_nd", [{"value": self.value(x)}], [(x.shape, x.dtype, strides)])[0]

    def run(self, name: str, args: Sequence[Any], results: Sequence[Any]) -> Any:
        """A step of one non-vector instruction, whose dtype is that of its first tensor (else of its result)."""
        first = next((a.dtype for a in args if isinstance(a, Tensor)), results[0][1])
        if not self.has(name, first):
            raise NotComposable(f"no {name} for {_NAMES[first]}")
        made = self.step("uba::" + name, [self.literal(a) for a in args], results)
        return made[0] if len(made) == 1 else made

    def need(self, f: Callable[[], Any]) -> Any:
        """`f`'s result, or NotImplemented if the chip lacks something for it; nothing is left of a failed try."""
        count = len(self.program.steps)
        try:
            return f()
        except NotComposable:
            for step in self.program.steps[count:]:
                self._done = {k: v for k, v in self._done.items() if v is not step.outs}
            del self.program.steps[count:]
            return NotImplemented


def _dense(tensor: Tensor, base: Value) -> bool:
    """Whether a tensor at offset 0 reaches each element of the base exactly once."""
    if tensor.numel() != base.numel() or _NAMES[tensor.dtype] != base.dtype:
        return False
    pairs = sorted((s, n) for n, s in zip(tensor.shape, tensor.stride(), strict=True) if n != 1)
    mine = sorted((s, n) for n, s in zip(base.sizes, base.strides, strict=True) if n != 1)
    if pairs == mine:
        return all(s > 0 for s, _ in pairs)
    for both in (pairs, mine):
        expected = 1
        for s, n in both:
            if s != expected:
                return False
            expected *= n
    return True


def plain(x: Any) -> Any:
    """A number as JSON has it."""
    if isinstance(x, float) and not math.isfinite(x):
        return {"float": "nan" if math.isnan(x) else "inf" if x > 0 else "-inf"}
    return x
