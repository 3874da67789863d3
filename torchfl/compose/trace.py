"""Turns an operator call into a program of what a chip has.

Contract: `compose` reads only metadata of its tensors. Each call met on the way goes down the ladder of `_Tracer.call`:
a view costs nothing; a kernel of the chip is a step; a lowering makes instructions; a decomposition is run under this
same tracer; a call that is none of these makes the whole NotComposable, with a text that names it.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._decomp import decomposition_table

from torchfl.compose import alternatives, lower_make, lower_pointwise, lower_unary
from torchfl.compose.finish import finish
from torchfl.compose.lower_pointwise import LOWER
from torchfl.compose.numbers import is_open, value_of
from torchfl.compose.program import Program
from torchfl.compose.recorder import NotComposable, Recorder, Target, dtype_name
from torchfl.compose.vector import cast

__all__ = ["NotComposable", "Target", "compose"]

_EXPLICIT = torch._C.DispatchKey.CompositeExplicitAutograd
_HALVES = (torch.float16, torch.bfloat16)

OWN: dict[Any, Any] = {}
"""Our decompositions, which come before PyTorch's: PyTorch code, run under the tracer. Filled by own_*.py."""
INPLACE: dict[Any, Any] = {}
"""For operators that exist in place only: what gives the new value of their first argument."""


_NUMERIC = re.compile("number|float|Scalar|Tensor")


class _Schema:
    """What `call` must know of an operator."""

    __slots__ = ("defaults", "metadata", "names", "numeric", "out", "view", "writes")

    def __init__(self, op: torch._ops.OpOverload) -> None:
        schema = op._schema
        arguments = schema.arguments
        self.names = [a.name for a in arguments]
        self.numeric = [_NUMERIC.search(str(a.type)) is not None for a in arguments]
        self.defaults = [a.default_value if a.has_default_value() else None for a in arguments]
        if "dtype" in self.names and self.defaults[self.names.index("dtype")] is not None:
            self.defaults[self.names.index("dtype")] = torch.int64  # the schema says 4, and no other occurs
        self.writes = [i for i, a in enumerate(arguments) if a.alias_info is not None and a.alias_info.is_write]
        self.out = any(a.is_out for a in arguments)
        aliases = any(a.alias_info is not None and not a.alias_info.is_write for a in arguments)
        returns = [r for r in schema.returns if r.alias_info is not None]
        self.view = (aliases and bool(returns) and not self.writes) or op in _VIEWS
        self.metadata = op in _METADATA


def _overloads(text: str) -> set[Any]:
    found = {lower_pointwise.overload(name) for name in text.split()}
    return found - {None}


_VIEWS = _overloads("detach alias lift_fresh _reshape_alias prims.view_of _unsafe_view reshape")
_METADATA = _overloads(
    "squeeze_ squeeze_.dim squeeze_.dims unsqueeze_ transpose_ t_ swapaxes_ swapdims_ as_strided_ detach_"
)
_IGNORED = _overloads("_linalg_check_errors _assert_async _assert_async.msg record_stream _assert_scalar")
_SECRET_WRITERS = _overloads("native_batch_norm miopen_batch_norm cudnn_batch_norm")  # their schemas do not tell
_schemas: dict[Any, _Schema] = {}


def schema_of(op: torch._ops.OpOverload) -> _Schema:
    known = _schemas.get(op)
    if known is None:
        known = _schemas[op] = _Schema(op)
    return known


def full_arguments(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """All arguments in the order of the schema, defaults filled in."""
    info = schema_of(op)
    given = list(args)
    for name, default in zip(info.names[len(given) :], info.defaults[len(given) :], strict=True):
        given.append(kwargs.get(name, default))
    return given


class Tracer(Recorder):
    root: Any = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], root: bool = False) -> Any:
        """What `op` returns, as meta tensors whose values the program computes."""
        info = schema_of(op)
        if info.view or info.metadata:
            return self._view(op, args, kwargs)
        if info.writes:
            return self._in_place(op, info, args, kwargs)
        if op in _IGNORED:
            return None
        if not root and op.namespace != "prims" and self.target.native(op, args, kwargs):
            return self.native(op, args, kwargs)
        lowering = LOWER.get(op)
        if lowering is not None:
            made = lowering(self, *args, **kwargs)
            if made is not NotImplemented:
                return made
        return self._decompose(op, info, args, kwargs)

    def _view(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        args = [value_of(a, bake=True) for a in args]
        if op.namespace == "prims":
            return _prim_view(op, args, kwargs)
        if op is torch.ops.aten._unsafe_view.default:
            op = torch.ops.aten.view.default
        made = op(*args, **kwargs)
        first = made[0] if isinstance(made, (list, tuple)) and made else made
        if isinstance(first, Tensor) and first.device.type == "meta" and not self.known(first):
            with self:
                return op.decompose(*args, **kwargs)  # reshape and kin copy where no view will do
        return made

    def native(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """A step that a kernel of the chip runs."""
        results = op(*_concrete(args), **{k: _concrete(v) for k, v in kwargs.items()})
        flat = results if isinstance(results, (tuple, list)) else [results]
        if any(not isinstance(r, Tensor) for r in flat):
            raise NotComposable(f"{op} gives something else than tensors")
        literal = [self.literal(a) for a in full_arguments(op, args, kwargs)]
        random = torch.Tag.nondeterministic_seeded in op.tags
        made = self.step(str(op).replace(".", "::", 1), literal, [(r.shape, r.dtype, r.stride()) for r in flat],
                         share=not random)  # fmt: skip
        return made[0] if isinstance(results, Tensor) else type(results)(made) if type(results) is list else tuple(made)

    def _in_place(self, op: Any, info: _Schema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        aten = torch.ops.aten
        name = op._schema.name.split("::")[1]
        if op in (aten.copy_.default, torch.ops.prims.copy_to.default):
            self.write(args[0], cast(self, args[1], args[0].dtype))
            return args[0]
        if name in ("fill_", "zero_"):
            value = args[1] if len(args) > 1 else 0
            self.write(args[0], cast(self, value, args[0].dtype))
            return args[0]
        if op in (aten.resize_.default, aten.resize_as_.default, aten.set_.source_Storage):
            if self.base(args[0]) not in self.blank:
                raise NotComposable(f"{op} of a tensor that is in use")
            return op(*args, **kwargs)
        if op in OWN and op not in INPLACE:
            with self:
                return OWN[op](*args, **kwargs)
        if info.out:
            return self._out(op, info, args, kwargs)
        make = INPLACE.get(op)
        if make is not None:
            with self:
                made = make(*args, **kwargs)
        else:
            functional = _functional(op)
            if functional is None:
                if info.writes == [0] or not op.has_kernel_for_dispatch_key(_EXPLICIT):
                    raise NotComposable(f"{op} has no functional form")
                return self._decompose(op, info, args, kwargs)
            made = self.call(functional, args, kwargs)
        if isinstance(made, (list, tuple)):
            for target, source in zip(args[0], made, strict=True):
                self.write(target, cast(self, source, target.dtype))
            return None if not op._schema.returns else args[0]
        self.write(args[0], cast(self, made, args[0].dtype))
        return args[0]

    def _out(self, op: Any, info: _Schema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        functional = _functional(op)
        if functional is None:
            raise NotComposable(f"{op} has no functional form")
        outs = {a.name for a in op._schema.arguments if a.is_out}
        given = full_arguments(op, args, kwargs)
        targets = [v for n, v in zip(info.names, given, strict=True) if n in outs]
        by_name = dict(zip(info.names, given, strict=True))
        wanted = functional._schema.arguments
        positional = [by_name[a.name] for a in wanted if not a.kwarg_only]
        made = self.call(functional, positional, {a.name: by_name[a.name] for a in wanted if a.kwarg_only})
        for target, source in zip(targets, made if isinstance(made, (tuple, list)) else [made], strict=True):
            if target.shape != source.shape:
                raise NotComposable(f"{op} would resize its result")
            self.write(target, cast(self, source, target.dtype))
        return targets[0] if len(targets) == 1 else tuple(targets)

    def _decompose(self, op: Any, info: _Schema, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not any(isinstance(a, Tensor) and a.device.type == "meta" for a in _leaves([*args, *kwargs.values()])):
            device = kwargs.get("device")
            if "device" in info.names and device is not None and torch.device(device).type != "meta":
                return op(*args, **kwargs)  # on the CPU: a constant, should anyone read it
        decomposition = OWN.get(op) or decomposition_table.get(op)
        if self.inside.count(op) >= 2:  # its decompositions lead back to it
            raise NotComposable(f"{_name(op)} ({_dtypes(args, kwargs)}) has neither instruction nor decomposition")
        self.inside.append(op)
        try:
            if decomposition is not None:
                with self:
                    made = decomposition(*args, **kwargs)
                if made is not NotImplemented:
                    return made
            if op.has_kernel_for_dispatch_key(torch._C.DispatchKey.CompositeImplicitAutograd):
                with self:
                    return op.decompose(*args, **kwargs)
            if op.has_kernel_for_dispatch_key(_EXPLICIT):
                with self:
                    return op._op_dk(_EXPLICIT, *args, **kwargs)
        finally:
            self.inside.pop()
        raise NotComposable(f"{_name(op)} ({_dtypes(args, kwargs)}) has neither instruction nor decomposition")


def _dtypes(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    tensors = [a for a in _leaves([*args, *kwargs.values()]) if isinstance(a, Tensor)]
    return ", ".join(sorted({dtype_name(t.dtype) for t in tensors}))


def _name(op: Any) -> str:
    return str(op).replace(".", "::", 1).removesuffix(".default")


def _leaves(x: Any) -> list[Any]:
    if isinstance(x, (list, tuple)):
        return [leaf for e in x for leaf in _leaves(e)]
    return [x]


def _concrete(x: Any) -> Any:
    if isinstance(x, (list, tuple)):
        return [_concrete(e) for e in x]
    return value_of(x)


def _prim_view(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = op._schema.name.split("::")[1]
    x = args[0]
    if name == "broadcast_in_dim":
        sizes, where = args[1], list(args[2])
        strides = [0] * len(sizes)
        for d, n, s in zip(where, x.shape, x.stride(), strict=True):
            strides[d] = 0 if n == 1 and sizes[d] != 1 else s
        return torch.as_strided(x, sizes, strides, x.storage_offset())
    if name == "view_of":
        return x.view(x.shape) if x.is_contiguous() else torch.as_strided(x, x.shape, x.stride(), x.storage_offset())
    if name == "transpose":
        return x.permute(args[1])
    if name == "squeeze":
        return x.squeeze(tuple(args[1]))
    if name == "as_strided":
        return torch.as_strided(*args, **kwargs)
    return op(*args, **kwargs)


_functional_of: dict[Any, Any] = {}


def _functional(op: Any) -> Any:
    """The overload without side effects; None if there is none."""
    if op in _functional_of:
        return _functional_of[op]
    name = op._schema.name.split("::")[1]
    packet = getattr(getattr(torch.ops, op.namespace), name.removesuffix("_") if not name.startswith("__i") else
                     "__" + name[3:], None)  # fmt: skip
    found = None
    if packet is not None:
        wanted = [(a.name, str(a.type)) for a in op._schema.arguments if not a.is_out]
        for overload in packet.overloads():
            candidate = getattr(packet, overload)
            if candidate is op or schema_of(candidate).writes:
                continue
            if [(a.name, str(a.type)) for a in candidate._schema.arguments] == wanted:
                found = candidate
    _functional_of[op] = found
    return found


def is_number(op: Any, position: int, x: Any) -> bool:
    """Whether a program may leave this argument open: a number, at a place for numbers (dimensions, sizes and flags are
    none) or in place of a tensor."""
    if not isinstance(x, (int, float)) or isinstance(x, bool):
        return False
    return schema_of(op).numeric[position]


def _inputs(tracer: Tracer, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], baked: bool, wide: bool) -> Any:
    """The arguments as the trace sees them: tensors as meta tensors of our own, numbers left open."""
    info = schema_of(op)

    def tensor(t: Tensor, position: int, element: int) -> Tensor:
        if wide and t.dtype in _HALVES:
            t = torch.empty_strided(t.shape, t.stride(), dtype=torch.float32, device="meta")
        return tracer.add_input(t, position, element)

    def number(x: Any, position: int, element: int) -> Any:
        if not is_number(op, position, x):
            return x  # part of the caller's key
        default = info.defaults[position]
        if baked or (isinstance(default, (int, float)) and default == x):
            tracer.numbers.bake(position, element, x)
            return x
        return tracer.numbers.argument(position, element, x)

    def convert(x: Any, position: int) -> Any:
        if isinstance(x, Tensor):
            return tensor(x, position, -1)
        if isinstance(x, (list, tuple)):
            return [
                tensor(e, position, i) if isinstance(e, Tensor) else number(e, position, i) for i, e in enumerate(x)
            ]
        if isinstance(x, torch.device):
            return torch.device("meta")
        return number(x, position, -1)

    new_args = [convert(a, i) for i, a in enumerate(args)]
    new_kwargs = {k: convert(v, info.names.index(k)) for k, v in kwargs.items()}
    if "device" in info.names and "device" not in new_kwargs and info.names.index("device") >= len(new_args):
        new_kwargs["device"] = torch.device("meta")
    return new_args, new_kwargs


class _AsFloat32:
    """A chip without float32, seen as one whose float32 is its half precision."""

    def __init__(self, target: Target, half: torch.dtype) -> None:
        self.target, self.half, self.max_rank = target, half, target.max_rank

    def native(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        return False

    def instruction(self, name: str, dtypes: tuple[torch.dtype, ...]) -> bool:
        return self.half not in dtypes and self.target.instruction(
            name, tuple(self.half if d == torch.float32 else d for d in dtypes)
        )


def _trace(op: Any, args: Sequence[Any], kwargs: Mapping[str, Any], target: Target, baked: bool, half: Any) -> Program:
    tracer = Tracer(_AsFloat32(target, half) if half else target, _name(op))
    tracer.root = op
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        mine, keywords = _inputs(tracer, op, args, kwargs, baked, half is not None)
        given = [x for x in _leaves([*mine, *keywords.values()]) if isinstance(x, Tensor)]
        results = tracer.call(op, mine, keywords, root=True) if op not in OWN else _own(tracer, op, mine, keywords)
        outputs = _outputs(tracer, op, results)
        for i, tensor in enumerate(given):
            now = tracer.base(tensor)
            if now != tracer.program.inputs[i].value:
                if not schema_of(op).writes and op not in _SECRET_WRITERS:
                    raise NotComposable(f"{_name(op)} would write into its argument")
                tracer.program.writes.append((now, i))
    tracer.program.outputs = outputs
    return finish(tracer, (dtype_name(half) if half else None))


def _own(tracer: Tracer, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    with tracer:
        made = OWN[op](*args, **kwargs)
    return made if made is not NotImplemented else tracer.call(op, args, kwargs, root=True)


def _outputs(tracer: Tracer, op: Any, results: Any) -> list[int | None]:
    outputs: list[int | None] = []
    if schema_of(op).writes and not schema_of(op).out:
        aliased = [r for r in op._schema.returns if r.alias_info is not None]
        if len(aliased) == len(op._schema.returns):
            return []  # it returns what it wrote
    for leaf in _leaves(results):
        if leaf is None:
            outputs.append(None)
        elif isinstance(leaf, Tensor):
            outputs.append(tracer.value(leaf))
        elif isinstance(leaf, (bool, int, float)) or is_open(leaf):
            raise NotComposable("the result is a number")
        else:
            raise NotComposable(f"the result is a {type(leaf).__name__}")
    return outputs


_FAULTS = (RuntimeError, TypeError, ValueError, AssertionError, NotImplementedError, IndexError, KeyError,
           AttributeError, RecursionError)  # fmt: skip


def compose(op: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], target: Target) -> Program:
    """A program for the call. Only dtypes, sizes and strides of tensors matter, which may be on any device.

    Raises NotComposable with the reason. Errors that the operator itself would raise for these arguments count as that.
    """
    from torchfl.compose import own

    own.register()
    tensors = [x for x in _leaves([*args, *kwargs.values()]) if isinstance(x, Tensor)]
    halves = {t.dtype for t in tensors if t.dtype in _HALVES}
    others = any(t.dtype.is_floating_point and t.dtype not in _HALVES for t in tensors)
    tries: list[tuple[bool, Any]] = [(False, None)]
    given = full_arguments(op, args, kwargs)
    if any(is_number(op, i, e) for i, x in enumerate(given) for e in _leaves(x)):
        tries.append((True, None))
    if len(halves) == 1 and not others:
        tries.append((False, halves.pop()))
    reason: NotComposable | None = None
    for baked, half in tries:
        try:
            made = _trace(op, args, kwargs, target, baked, half)
            reason = None  # as at the end
            return made
        except NotComposable as error:
            reason = error if reason is None or (baked and "Error" in str(reason)) else reason
        except _FAULTS as error:
            # With numbers left open, PyTorch code may stumble over them; what it says without is what counts.
            text = f"{_name(op)}: {type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"
            if reason is None or baked:
                reason = NotComposable(text)
                reason.__cause__ = error
    assert reason is not None
    try:
        raise reason
    finally:
        del reason  # the exception knows this frame: together they would keep the caller's frames, and what those hold


assert alternatives and lower_make and lower_unary  # they register on import
