"""One entry of op_db in one dtype: forward, and backward where there is one, on the device against the CPU.

Contract: `run_entry` returns what JSON holds (`{forward, backward, refused}`), whatever the operator does short of
ending the process. Statistics are set to zero before the operator and read before anything else touches the device, so
the rows are the operator's own. What the CPU refuses is not asked of the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten

import torchfl
from torchfl.check import entries, knowledge
from torchfl.check.compare import EPS, Measure, differences
from torchfl.check.entries import Sample, moved
from torchfl.check.result import ORDER

#: What an operator may raise that is not a fault of this program.
REFUSALS = (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError, ZeroDivisionError, AssertionError)

WIDER = {
    torch.float16: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float32: torch.float64,
    torch.complex32: torch.complex128,
    torch.complex64: torch.complex128,
}


@dataclass
class Direction:
    """Forward or backward, summed up over the samples."""

    path: str = "native"
    ok: bool = True
    error: str | None = None
    reasons: dict[str, None] = field(default_factory=dict)  # as an ordered set
    kernels: dict[str, None] = field(default_factory=dict)
    samples: int = 0
    weak: dict[str, None] = field(default_factory=dict)
    left: dict[str, None] = field(default_factory=dict)  # the samples of which the CPU did a part

    def saw(self, rows: list[dict[str, Any]], label: str) -> None:
        for row in rows:
            if row["path"] in ("composite", "transfer"):
                continue  # its parts have rows of their own; what a sample itself moves, it would move anywhere
            path = row["path"] if row["path"] in ORDER else "cpu"
            self.path = max(self.path, path, key=ORDER.index)
            if path == "cpu":
                self.left[label] = None
            if path == "native":
                self.kernels[f"{row['op'].partition('.')[0]} {row['target']}"] = None
            elif row["reason"]:
                self.reasons[f"{path}: {row['reason']}"] = None

    def failed(self, text: str) -> None:
        self.ok = False
        self.error = self.error or text

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": self.path if self.ok else "failed",
            "ran": self.path,
            "ok": self.ok,
            "error": self.error,
            "reasons": list(self.reasons),
            "kernels": list(self.kernels),
            "samples": self.samples,
            "weak": list(self.weak),
            "left": list(self.left),
        }


@dataclass
class Outcome:
    """What one place computed: all on the CPU, results as they are and as they are compared."""

    result: Any = None
    processed: Any = None  # after output_process_fn_grad, on the CPU
    gradients: list[Any] | None = None
    error: Exception | None = None


def run_entry(
    op: OpInfo, dtype: torch.dtype, count: int, device: str, stage: Callable[[str], None], backward: bool = True
) -> dict[str, Any]:
    """`stage` is told what is about to happen, so that whoever waits knows what crashed."""
    backward = backward and bool(op.supports_autograd) and (dtype.is_floating_point or dtype.is_complex)
    forward, reverse = Direction(), Direction()
    refused = ""
    try:
        samples = entries.samples_of(op, dtype, count, backward)
    except REFUSALS as error:
        return {"forward": None, "backward": None, "refused": f"PyTorch makes no samples: {_text(error)}"}
    for sample in samples:
        stage(f"{sample.label} on the CPU")
        same, wide = _on_cpu(op, sample, dtype, backward)
        if same.error is not None and (wide is None or wide.error is not None):
            refused = refused or f"PyTorch's CPU refuses: {_text(same.error)}"
            continue
        _one(op, sample, dtype, device, same, wide, forward, reverse, stage)
    return {
        "forward": forward.to_dict() if forward.samples else None,
        "backward": reverse.to_dict() if reverse.samples else None,
        "refused": refused if not forward.samples else "",
    }


# ---------------------------------------------------------------------------------------------- the CPU


def _on_cpu(op: OpInfo, sample: Sample, dtype: torch.dtype, backward: bool) -> tuple[Outcome, Outcome | None]:
    same = _reference(op, sample, None, backward)
    to = WIDER.get(dtype)
    wide = _reference(op, sample, to, backward) if to is not None and to in op.dtypes else None
    if same.error is None and wide is not None and wide.error is not None:
        wide = None
    return same, wide


def _reference(op: OpInfo, sample: Sample, wide: torch.dtype | None, backward: bool) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            outcome, outputs, leaves = _forward(op, sample, "cpu", wide)
        except REFUSALS as error:
            return Outcome(error=error)
        if backward and outputs and leaves:
            try:
                made = torch.autograd.grad(outputs, leaves, _weights(outputs), allow_unused=True)
                outcome.gradients = list(made)
            except REFUSALS:
                outcome.gradients = None  # no backward in this dtype
        return outcome


def _forward(op: OpInfo, sample: Sample, device: str, wide: torch.dtype | None) -> tuple[Outcome, list[Any], list[Any]]:
    first, args, kwargs = moved(op, sample, device, wide)
    leaves = [t for t in tree_leaves((first, args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    torch.manual_seed(0)
    result = _call(op, first, args, kwargs)
    processed = sample.process(result)
    outputs = [t for t in tree_leaves(processed) if isinstance(t, torch.Tensor) and t.requires_grad]
    return Outcome(_detached(result), _detached(processed)), outputs, leaves


def _call(op: OpInfo, first: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if "device" in kwargs:
        try:
            return op(first, *args, **kwargs)
        except TypeError as error:
            if "device" not in str(error):
                raise
            kwargs = {key: value for key, value in kwargs.items() if key != "device"}
    return op(first, *args, **kwargs)


def _detached(tree: Any) -> Any:
    return tree_map(lambda t: t.detach() if isinstance(t, torch.Tensor) else t, tree)


def _weights(outputs: list[Any]) -> list[torch.Tensor]:
    """The gradients that come in: all different, so that a permuted result shows."""
    made = []
    for output in outputs:
        pattern = torch.linspace(0.5, 1.5, max(output.numel(), 1), dtype=torch.float64)[: output.numel()]
        made.append(pattern.view(output.shape).to(output.dtype).to(output.device))
    return made


# ---------------------------------------------------------------------------------------------- the device


def _one(
    op: OpInfo,
    sample: Sample,
    dtype: torch.dtype,
    device: str,
    same: Outcome,
    wide: Outcome | None,
    forward: Direction,
    reverse: Direction,
    stage: Callable[[str], None],
) -> None:
    known = same if same.error is None else wide
    assert known is not None
    first, args, kwargs = moved(op, sample, device)
    leaves = [t for t in tree_leaves((first, args, kwargs)) if isinstance(t, torch.Tensor) and t.requires_grad]
    stage(f"forward of {sample.label}")
    torch.manual_seed(0)
    torchfl.reset_stats()
    forward.samples += 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            result = _call(op, first, args, kwargs)
        except REFUSALS as error:
            forward.saw(_rows(device), sample.label)
            forward.failed(f"{sample.label}: raises {_text(error)}")
            return
        forward.saw(_rows(device), sample.label)
        stage(f"result of {sample.label}")
        _judge(op, sample, dtype, device, result, same, wide, forward)
        if known.gradients is None:
            return
        processed = sample.process(result)
        outputs = [t for t in tree_leaves(processed) if isinstance(t, torch.Tensor) and t.requires_grad]
        reverse.samples += 1
        if not outputs:
            reverse.failed(f"{sample.label}: no result takes a gradient, on the CPU one does")
            return
        weights = _weights(outputs)
        stage(f"backward of {sample.label}")
        torchfl.reset_stats()
        try:
            gradients = list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))
        except REFUSALS as error:
            reverse.saw(_rows(device), sample.label)
            reverse.failed(f"{sample.label}: raises {_text(error)}")
            return
        reverse.saw(_rows(device), sample.label)
        stage(f"gradients of {sample.label}")
        _judge_gradients(op, sample, dtype, device, gradients, leaves, same, wide, reverse)


def _rows(device: str) -> list[dict[str, Any]]:
    return [row for row in torchfl.stats() if row["device"] == device]


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {lines[0][:300]}"


def _cpu(tree: Any) -> Any:
    return tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, tree)


def _elsewhere(tree: Any, device: str, sample: Sample) -> Iterator[str]:
    for leaf in tree_leaves(tree):
        if isinstance(leaf, torch.Tensor) and leaf.device != torch.device(device):
            yield f"{sample.label}: the result is on {leaf.device}, expected {device}"


def _measure(op: OpInfo, sample: Sample, dtype: torch.dtype) -> Measure:
    units = (
        knowledge.SERIES_UNITS if knowledge.is_one_of(knowledge.SERIES, op.name) and EPS.get(dtype, 0.0) < 1e-5 else 0.0
    )
    if isinstance(op, entries.ELEMENTWISE):
        return Measure(dtype, units=units)
    tensors = [t for t in tree_leaves((sample.input, sample.args, sample.kwargs)) if isinstance(t, torch.Tensor)]
    dense = [t.detach() for t in tensors if t.layout == torch.strided and (t.is_floating_point() or t.is_complex())]
    largest = max((float(t.abs().nan_to_num(0, 0, 0).max()) for t in dense if t.numel()), default=1.0)
    return Measure(dtype, max((t.numel() for t in dense), default=1), largest, units)


def _judge(
    op: OpInfo,
    sample: Sample,
    dtype: torch.dtype,
    device: str,
    result: Any,
    same: Outcome,
    wide: Outcome | None,
    forward: Direction,
) -> None:
    if not knowledge.is_one_of(knowledge.ELSEWHERE, op.name) and _device_matters(op, result):
        for misplaced in _elsewhere(result, device, sample):
            forward.failed(misplaced)
    try:
        got = _cpu(result)
    except REFUSALS as error:
        return forward.failed(f"{sample.label}: its result cannot be read: {_text(error)}")
    wrong: str | None
    right = same.result if same.error is None else None
    finer = wide.result if wide is not None and wide.error is None else None
    measure = _measure(op, sample, dtype)
    if knowledge.is_one_of(knowledge.UNDEFINED, op.name):
        forward.weak["values are undefined: shape and dtype only"] = None
        wrong = differences(_emptied(got), _emptied(right if right is not None else finer), None, measure)
    elif _random(op, sample, right):
        forward.weak["random: shape, dtype, range, and the same from the same seed"] = None
        wrong = differences(_emptied(got), _emptied(right), None, measure) or _random_wrong(op, sample, device, got)
    elif knowledge.is_one_of(knowledge.FACTORED, op.name):
        wrong = _factors_wrong(op, sample, got, right, finer, measure, forward)
    else:
        wrong = differences(got, right, finer, measure)
        if wrong and "dtype" in wrong and right is not None:
            wrong = differences(got, as_typed(got, right, _on_meta(op, sample)), finer, measure)
        if wrong and knowledge.is_one_of(knowledge.INDICES, op.name) and _same_named(sample, got, right):
            forward.weak["of equal elements another index is as good"] = None
            wrong = None
    if wrong:
        forward.failed(f"{sample.label}: {wrong}")
    return None


def _on_meta(op: OpInfo, sample: Sample) -> Any:
    """What PyTorch's own shape function gives; None where there is none."""
    try:
        return _call(op, *moved(op, sample, "meta"))
    except REFUSALS:
        return None


def as_typed(got: Any, right: Any, shapes: Any) -> Any:
    """`right`, a result of the CPU, with the dtypes of `got` where PyTorch's shape function gives those: some kernels
    of the CPU keep statistics in half precision, other devices in single."""
    if shapes is None:
        return right
    kept, structure = tree_flatten(right)
    mine, meant = tree_leaves(got), tree_leaves(shapes)
    if not len(kept) == len(mine) == len(meant):
        return right
    made = [
        one.to(other.dtype) if isinstance(one, torch.Tensor) and one.dtype != other.dtype == shape.dtype else one
        for one, other, shape in zip(kept, mine, meant, strict=True)
    ]
    return tree_unflatten(made, structure)


def _device_matters(op: OpInfo, result: Any) -> bool:
    return not op.name.startswith("signal.windows") or any(
        isinstance(leaf, torch.Tensor) and leaf.device.type != "cpu" for leaf in tree_leaves(result)
    )


def _emptied(tree: Any) -> Any:
    """The same shapes and dtypes, all zero."""
    if tree is None:
        return None
    return tree_map(
        lambda t: torch.zeros_like(t) if isinstance(t, torch.Tensor) and t.layout == torch.strided else t, tree
    )


def _random(op: OpInfo, sample: Sample, right: Any) -> bool:
    if knowledge.is_one_of(knowledge.RANDOM, op.name):
        return True
    if "dropout_p" in sample.kwargs or op.name == "nn.functional.multi_head_attention_forward":
        dropout = sample.kwargs.get("dropout_p", 0.0)
        if not isinstance(dropout, float):
            return False
        if dropout > 0:
            return True
        return len(sample.args) > 9 and isinstance(sample.args[9], float) and sample.args[9] > 0
    return False


def _random_wrong(op: OpInfo, sample: Sample, device: str, got: Any) -> str | None:
    again, args, kwargs = moved(op, sample, device)
    torch.manual_seed(0)
    second = _cpu(_call(op, again, args, kwargs))
    pairs = zip(tree_leaves(got), tree_leaves(second), strict=True)
    if not all(torch.equal(a.nan_to_num(0), b.nan_to_num(0)) for a, b in pairs if isinstance(a, torch.Tensor)):
        return "other numbers from the same seed"
    holds = knowledge.RANGES.get(op.name)
    tensors = [t for t in tree_leaves(got) if isinstance(t, torch.Tensor) and t.numel()]
    tensors = [torch.view_as_real(t) if t.is_complex() else t for t in tensors]
    if holds is not None and not all(holds(t, sample) for t in tensors):
        return f"values that {op.name} cannot give: {tensors[0].flatten()[:4].tolist()}"
    return None


def _factors_wrong(
    op: OpInfo, sample: Sample, got: Any, right: Any, finer: Any, measure: Measure, forward: Direction
) -> str | None:
    wrong = differences(_emptied(got), _emptied(right), None, measure)
    if wrong:
        return wrong
    again = [knowledge.rebuilt(op.name, _double(tree)) if tree is not None else None for tree in (got, right, finer)]
    if again[0] is not None and (again[1] is not None or again[2] is not None):
        forward.weak["factors are not unique: their product and values"] = None
        return differences(again[0], None, again[2] if again[2] is not None else again[1], measure)
    forward.weak["factors are not unique: shape and dtype only"] = None
    return None


def _double(tree: Any) -> Any:
    def one(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        return value.to(torch.complex128 if value.is_complex() else torch.float64)

    return tree_map(one, tree)


def _same_named(sample: Sample, got: Any, right: Any) -> bool:
    """Whether indices that differ name equal elements."""
    if not isinstance(sample.input, torch.Tensor) or right is None:
        return False
    source = sample.input.detach()
    for mine, other in zip(tree_leaves(got), tree_leaves(right), strict=True):
        if not isinstance(mine, torch.Tensor) or mine.dtype != torch.int64:
            continue
        dims = [d for d in (sample.kwargs.get("dim"), *sample.args) if isinstance(d, int) and not isinstance(d, bool)]
        if not any(_names_equal(source, mine, other, dim) for dim in (*dims, -1, None)):
            return False
    return True


def _names_equal(source: torch.Tensor, mine: torch.Tensor, other: torch.Tensor, dim: int | None) -> bool:
    try:
        if dim is None:
            flat = source.flatten()
            return torch.equal(flat[mine], flat[other])
        if mine.dim() < source.dim():
            mine, other = mine.unsqueeze(dim), other.unsqueeze(dim)
        return torch.equal(torch.gather(source, dim, mine), torch.gather(source, dim, other))
    except (RuntimeError, IndexError):
        return False


def _judge_gradients(
    op: OpInfo,
    sample: Sample,
    dtype: torch.dtype,
    device: str,
    gradients: list[Any],
    leaves: list[Any],
    same: Outcome,
    wide: Outcome | None,
    reverse: Direction,
) -> None:
    right = same.gradients if same.error is None else None
    finer = wide.gradients if wide is not None and wide.error is None else None
    known = right if right is not None else finer
    assert known is not None
    if [g is None for g in gradients] != [g is None for g in known]:
        return reverse.failed(f"{sample.label}: a gradient is missing on one side")
    for wrong in _elsewhere(gradients, device, sample):
        reverse.failed(wrong)
    mine = [_cpu(g) for g in gradients]
    measure = _measure(op, sample, dtype)
    loose = _random(op, sample, None) or knowledge.is_one_of(knowledge.UNDEFINED, op.name)
    for i, got in enumerate(mine):
        if got is None:
            continue
        one, other = (side[i] if side is not None else None for side in (right, finer))
        if loose:
            reverse.weak["random: shape and dtype only"] = None
            wrong_text = differences(_emptied(got), _emptied(one if one is not None else other), None, measure)
        else:
            wrong_text = differences(got, one, other, measure)
            if wrong_text and knowledge.is_one_of(knowledge.TIES, op.name) and _same_sum(got, one, other, measure):
                reverse.weak["equal elements share a gradient in any way: sums only"] = None
                wrong_text = None
        if wrong_text:
            reverse.failed(f"{sample.label}, gradient {i}: {wrong_text}")
    return None


def _same_sum(got: torch.Tensor, one: Any, other: Any, measure: Measure) -> bool:
    known = one if one is not None else other
    if got.shape != known.shape or got.dtype != (one.dtype if one is not None else got.dtype):
        return False
    wider = Measure(
        measure.dtype, max(got.numel(), 1), float(known.abs().nan_to_num(0, 0, 0).max()) if known.numel() else 1.0
    )
    return differences(got.double().sum(), None, known.double().sum(), wider) is None
