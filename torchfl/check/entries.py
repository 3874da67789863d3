"""Entries of op_db, and what they are called with: PyTorch's first samples, and hard inputs derived from them.

Contract: all samples are on the CPU and the same in every run. A hard input is one that PyTorch may refuse: then it is
passed over (the runner asks the CPU). `moved` carries arguments to a device with their strides and offsets as they are.
"""

from __future__ import annotations

import itertools
import random
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import (
    BinaryUfuncInfo,
    OpInfo,
    ReductionOpInfo,
    SampleInput,
    UnaryUfuncInfo,
)
from torch.utils._pytree import tree_leaves, tree_map

from torchfl.check import knowledge

ELEMENTWISE = (UnaryUfuncInfo, BinaryUfuncInfo)


def name_of(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def all_entries() -> dict[str, OpInfo]:
    return {name_of(op): op for op in op_db}


def dtype_named(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype), name
    return found


@dataclass
class Sample:
    """One call of an entry."""

    label: str
    input: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    process: Callable[[Any], Any]
    hard: bool = False


def samples_of(op: OpInfo, dtype: torch.dtype, count: int, backward: bool) -> list[Sample]:
    """The first `count` samples, more if those are empty, and the hard inputs made of them."""
    seed = zlib.crc32(f"{name_of(op)} {dtype}".encode())
    torch.manual_seed(seed)
    random.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = list(_first(op, op.sample_inputs("cpu", dtype, requires_grad=backward), count))
    plain = [Sample(f"sample {i}", s.input, s.args, s.kwargs, s.output_process_fn_grad) for i, s in enumerate(made)]
    hard = [s for s in _hard(op, made) if (op.name, s.label) not in knowledge.NEVER]
    return plain + hard


#: How many samples are looked at for some that say anything.
_LOOKED_AT = 40


def _first(op: OpInfo, made: Iterable[SampleInput], count: int) -> Iterator[SampleInput]:
    """The first `count`, and as many further ones as there were among them whose result is empty or not a number."""
    telling = 0
    for i, sample in enumerate(itertools.islice(made, _LOOKED_AT)):
        tells = _tells(op, sample)
        if i < count or tells:
            yield sample
        telling += tells
        if i + 1 >= count and telling >= count:
            return


def _tells(op: OpInfo, sample: SampleInput) -> bool:
    with torch.no_grad():
        try:
            copied = tree_map(_copied, (sample.input, sample.args, sample.kwargs))
            result = op(copied[0], *copied[1], **copied[2])
        except Exception:  # whatever it is, the runner meets it again
            return False
        return any(not isinstance(leaf, torch.Tensor) or _says(leaf) for leaf in tree_leaves(result))


def _copied(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _says(value: torch.Tensor) -> bool:
    if value.layout != torch.strided or value.numel() == 0:
        return value.layout != torch.strided
    if not value.is_floating_point():
        return True
    return bool(torch.isfinite(value).any()) and bool((value != 0).any())


# ------------------------------------------------------------------------------------------------- hard inputs


def _hard(op: OpInfo, made: list[SampleInput]) -> Iterator[Sample]:
    dense = [s for s in made if any(t.numel() > 1 for t in _tensors(s))]
    if dense and all(t.layout == torch.strided for s in dense for t in _tensors(s)):
        is_complex = any(t.dtype.is_complex for s in dense for t in _tensors(s))
        for (label, form), sample in zip(_FORMS.items(), itertools.cycle(dense), strict=False):
            if label == "conjugated" and not is_complex:
                continue
            yield _derived(sample, label, form)
    tensors = [s for s in made if isinstance(s.input, torch.Tensor) and s.input.layout == torch.strided]
    first = next((s for s in tensors if s.input.dim() > 0 and s.input.numel() > 0), None)
    if first is None:
        return
    shape = first.input.shape
    if isinstance(op, ELEMENTWISE):
        yield _derived(first, "0-dim", lambda t: t.flatten()[0] if t.numel() else t)
        yield _derived(first, "zero-size", lambda t: t[:0] if t.shape == shape else t)
        if not _tells(op, first):
            yield _derived(first, "positive", torch.abs)
        yield _derived(first, "broadcast", lambda t: t[:1].expand(shape) if t.shape == shape else t)
    elif isinstance(op, ReductionOpInfo) or len(_tensors(first)) == 1:
        yield _derived(first, "zero-size", lambda t: t.narrow(0, 0, 0) if t.shape == shape else t)
    if isinstance(op, BinaryUfuncInfo):
        arguments = [t for t in tree_leaves(first.args) if isinstance(t, torch.Tensor)]
        if arguments and arguments[0].dim() > 0 and arguments[0].numel() > 0:
            yield _derived(first, "broadcast 0-dim", lambda t: t, lambda t: t.flatten()[0] if t.numel() else t)
            yield _derived(first, "broadcast row", lambda t: t, lambda t: t[:1] if t.dim() else t)


def _tensors(sample: SampleInput) -> list[torch.Tensor]:
    leaves = tree_leaves((sample.input, sample.args, sample.kwargs))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _derived(
    sample: SampleInput,
    label: str,
    form: Callable[[torch.Tensor], torch.Tensor],
    others: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Sample:
    def made(how: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Any], Any]:
        def one(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return how(value.detach()).detach().requires_grad_(value.requires_grad)

        return one

    rest = tree_map(made(others or form), (sample.args, sample.kwargs))
    first = tree_map(made(form), sample.input)
    return Sample(label, first, rest[0], rest[1], sample.output_process_fn_grad, hard=True)


def _gaps(value: torch.Tensor) -> torch.Tensor:
    """Every other element of a storage, from the second on."""
    if value.dim() == 0:
        return _offset(value)
    storage = torch.zeros((*value.shape[:-1], 2 * value.shape[-1] + 1), dtype=value.dtype)
    view = storage[..., 1::2]
    return view.copy_(value)


def _transposed(value: torch.Tensor) -> torch.Tensor:
    return value.transpose(0, -1).contiguous().transpose(0, -1) if value.dim() > 1 else _gaps(value)


def _offset(value: torch.Tensor) -> torch.Tensor:
    """Contiguous, at an address that is aligned to an element alone."""
    storage = torch.zeros(value.numel() + 3, dtype=value.dtype)
    return storage[3:].view(value.shape).copy_(value)


def _conjugated(value: torch.Tensor) -> torch.Tensor:
    """The conjugation of another tensor, not carried out yet."""
    return value.conj().resolve_conj().conj() if value.dtype.is_complex else value


_FORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "non-contiguous": _gaps,
    "transposed": _transposed,
    "offset": _offset,
    "conjugated": _conjugated,
}


# ------------------------------------------------------------------------------------------------- moving


def moved(op: OpInfo, sample: Sample, device: str, wide: torch.dtype | None = None) -> tuple[Any, Any, Any]:
    """Input, args and kwargs anew on a device, each tensor with its strides and offset; floating ones as `wide`."""
    kept = {where for entry, where in knowledge.CPU_ARGUMENTS if entry == op.name}

    def one(value: Any, where: str = "") -> Any:
        if isinstance(value, torch.device):
            return torch.device(device)
        if isinstance(value, torch.Tensor):
            return placed(value, "cpu" if where in kept else device, wide)
        if wide is not None and isinstance(value, torch.dtype) and (value.is_floating_point or value.is_complex):
            return wide if value.is_floating_point == wide.is_floating_point else value
        return value

    first = tree_map(one, sample.input)
    args = tuple(tree_map(lambda v, i=i: one(v, str(i)), arg) for i, arg in enumerate(sample.args))
    kwargs = {key: tree_map(lambda v, key=key: one(v, key), value) for key, value in sample.kwargs.items()}
    if "device" in kwargs or not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((first, args, kwargs))):
        kwargs["device"] = device  # a factory; one that knows no device says so (run.py)
    return first, args, kwargs


def placed(value: torch.Tensor, device: str, wide: torch.dtype | None = None) -> torch.Tensor:
    source = value.detach()
    dtype = source.dtype
    if wide is not None and dtype.is_floating_point:
        dtype = wide if wide.is_floating_point else torch.float64
    elif wide is not None and dtype.is_complex:
        dtype = wide if wide.is_complex else torch.complex128
    if source.layout == torch.strided and source.is_conj():
        copy = placed(source.conj(), device, wide).detach().conj()  # lazily, as it was
    elif source.layout != torch.strided or source.is_neg():
        copy = source.to(dtype).to(device) if device != "cpu" else source.to(dtype).clone()
    else:
        count = source.untyped_storage().nbytes() // source.element_size()
        whole = source.as_strided((count,), (1,), 0)
        there = whole.to(dtype).to(device) if device != "cpu" else whole.to(dtype, copy=True)
        copy = there.as_strided(source.shape, source.stride(), source.storage_offset())
    return copy.detach().requires_grad_(value.requires_grad)
