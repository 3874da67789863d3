"""Proof that each row of a descriptor's `ops` runs: for every dtype that it claims, a call that was seen on its kernel.

Contract: `prove` makes the operator's plain call first (the arguments that `torchfl explain` would guess), then op_db
entries of that operator, until the kernel was seen to run natively with right values. What was never seen is
`unproven`, with what happened instead; that is said of these calls, and is no proof that none reaches the kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

import torchfl
from torchfl.check import entries, run
from torchfl.check.compare import Measure, differences
from torchfl.check.listed import bare, is_kernel_of

#: Shapes tried in turn: none (what fits the operator), then others.
_SHAPES: tuple[list[list[int]], ...] = ([], [[8, 8]], [[2, 8, 8]], [[2, 4, 8, 8]], [[512, 512]], [[2, 512, 512]])
#: For kernels that want much work: seconds on a simulated chip, so run only where the engine would take the kernel.
_LARGE: tuple[list[list[int]], ...] = ([[2048, 2048]], [[1, 2048, 2048]])


def prove(
    row: dict[str, Any],
    dtypes: list[str],
    hints: list[str],
    device: str,
    known: dict[str, Any],
    stage: Callable[[str], None],
) -> dict[str, Any]:
    """dtype -> {proven, by, reason} of one row. `hints`: entries that ran its kernel in another dtype."""
    found = {}
    for name in dtypes:
        stage(f"{row['op']} in {name}")
        dtype = entries.dtype_named(name)
        try:
            found[name] = _direct(row, dtype, device)
            if not found[name]["proven"] and not found[name].get("wrong"):
                by_entry = _by_entries(row, dtype, hints, device, known, stage)
                found[name] = by_entry or found[name]
        except run.REFUSALS as error:
            found[name] = {"proven": False, "by": None, "reason": f"{type(error).__name__}: {str(error)[:200]}"}
    return {"proofs": found}


# ------------------------------------------------------------------------------------------------- the plain call


def _direct(row: dict[str, Any], dtype: torch.dtype, device: str) -> dict[str, Any]:
    said = "no call could be made up"
    for call in _calls(row, dtype, device):
        try:
            answer = _attempt(row, call, dtype, device)
        except run.REFUSALS as error:
            answer = f"{call.text}: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
        if isinstance(answer, dict):
            return answer
        said = answer or said
    return {"proven": False, "by": None, "reason": said}


def _calls(row: dict[str, Any], dtype: torch.dtype, device: str) -> Iterator[Any]:
    from torchfl.cli import arguments

    yield from _made_up(bare(row["op"]), dtype)
    name = row["op"] + (f".{row['overload']}" if row["overload"] else "")
    for shapes in (*_SHAPES, *_LARGE):
        try:
            for call in arguments.calls(name, shapes, [dtype], {})[:3]:
                if shapes not in _LARGE or _would_run(row, call, device):
                    yield call
        except (*run.REFUSALS, arguments.ArgumentsError):
            continue


def _made_up(name: str, dtype: torch.dtype) -> Iterator[Any]:
    """Calls of operators whose tensors must be of particular shapes and dtypes."""
    from torchfl.cli.arguments import Call

    def one(*shape: int, of: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(shape, dtype=of, device="meta")

    aten = torch.ops.aten
    if name == "_amp_foreach_non_finite_check_and_unscale":
        function, args = getattr(aten, f"{name}_").default, [[one(4, 4, of=dtype), one(3, of=dtype)], one(1), one(1)]
    elif name == "_amp_update_scale":
        function, args = getattr(aten, f"{name}_").default, [one(1), one(1, of=torch.int32), one(1), 2.0, 0.5, 100]
    else:
        return
    yield Call(function, args, {}, f"aten::{name}_")


def _would_run(row: dict[str, Any], call: Any, device: str) -> bool:
    overload = "" if call.function._overloadname == "default" else f".{call.function._overloadname}"
    answer = torchfl.explain(call.function._schema.name + overload, *call.args, device=device, **call.kwargs)
    return bool(answer["path"] == "native" and answer["target"] == row["kernel"])


def _attempt(row: dict[str, Any], call: Any, dtype: torch.dtype, device: str) -> dict[str, Any] | str:
    """The proof; or why this call is none."""
    args, kwargs = tree_map(_filled, (tuple(call.args), dict(call.kwargs)))
    if not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves((args, kwargs))):
        if not any(a.name == "device" for a in call.function._schema.arguments):
            return f"{call.text}: has no tensor"
        kwargs.setdefault("dtype", dtype)
    there_args, there_kwargs = tree_map(lambda v: _there(v, device), (args, kwargs))
    here_kwargs = {key: "cpu" if key == "device" else value for key, value in kwargs.items()}
    if "device" in {a.name for a in call.function._schema.arguments}:
        there_kwargs["device"], here_kwargs["device"] = device, "cpu"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        torchfl.reset_stats()
        result = call.function(*there_args, **there_kwargs)
        ran = [r for r in torchfl.stats() if r["device"] == device and r["path"] not in ("composite", "transfer")]
        mine = [r for r in ran if bare(r["op"]) == bare(row["op"])]
        if not any(r["path"] == "native" and r["target"] == row["kernel"] for r in mine):
            what = "; ".join(dict.fromkeys(f"{r['path']} ({r['reason'] or r['target']})" for r in mine or ran))
            return f"{call.text}: {what or 'nothing ran'}"
        got = tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, result)
        wrong = _wrong(call, args, here_kwargs, got, dtype)
    if wrong:
        return {"proven": False, "by": None, "wrong": True, "reason": f"{call.text}: {wrong}"}
    return {"proven": True, "by": call.text, "reason": ""}


def _filled(value: Any) -> Any:
    """A meta tensor as one with values that any operator takes."""
    if not isinstance(value, torch.Tensor):
        return value
    count = value.numel()
    if value.dtype == torch.bool:
        return (torch.arange(count) % 2 == 0).reshape(value.shape)
    if not value.dtype.is_floating_point and not value.dtype.is_complex:
        return (torch.arange(count) % 2).to(value.dtype).reshape(value.shape)
    return (torch.arange(count) % 7 / 8 + 0.0625).to(value.dtype).reshape(value.shape)


def _there(value: Any, device: str) -> Any:
    return value.to(device) if isinstance(value, torch.Tensor) else value


def _wrong(call: Any, args: tuple[Any, ...], kwargs: dict[str, Any], got: Any, dtype: torch.dtype) -> str | None:
    """Against the CPU, in double precision too; None also if the CPU has no such call."""
    sizes = [t.numel() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
    if {torch.Tag.nondeterministic_seeded} & set(call.function.tags):
        return None
    much = max(sizes, default=0) >= 1 << 20  # minutes in half precision on a CPU: double precision alone
    try:
        wide_args, wide_kwargs = tree_map(_wide, (args, kwargs))
        same = None if much else call.function(*tree_map(_copy, args), **tree_map(_copy, kwargs))
    except run.REFUSALS:
        return None
    try:
        wide = call.function(*wide_args, **wide_kwargs) if dtype.is_floating_point else None
    except run.REFUSALS:
        wide = None
    if same is None and wide is None:
        return None
    if same is not None and _dtypes(got) != _dtypes(same):
        same = run.as_typed(got, same, _on_meta(call))
    return differences(got, same, wide, Measure(dtype, max(sizes, default=1)))


def _dtypes(tree: Any) -> list[Any]:
    return [getattr(leaf, "dtype", None) for leaf in tree_leaves(tree)]


def _on_meta(call: Any) -> Any:
    try:
        return call.function(*call.args, **call.kwargs)  # its tensors are meta tensors
    except run.REFUSALS:
        return None


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _wide(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.double() if value.dtype.is_floating_point else value.clone()
    return torch.float64 if isinstance(value, torch.dtype) and value.is_floating_point else value


# ------------------------------------------------------------------------------------------------- entries of op_db


def _by_entries(
    row: dict[str, Any],
    dtype: torch.dtype,
    hints: list[str],
    device: str,
    known: dict[str, Any],
    stage: Callable[[str], None],
) -> dict[str, Any] | None:
    name = bare(row["op"])
    named = [key for key, op in known.items() if name in (op.aten_name, op.name, op.name.rpartition(".")[2])]
    for key in list(dict.fromkeys([*named, *hints]))[:4]:
        op = known[key]
        if dtype not in op.dtypes:
            continue
        made = run.run_entry(op, dtype, 2, device, stage)
        for direction in ("forward", "backward"):
            side = made[direction]
            if side is None or not any(is_kernel_of(kernel, row) for kernel in side["kernels"]):
                continue
            if not side["ok"]:
                return {
                    "proven": False,
                    "by": None,
                    "wrong": True,
                    "reason": f"op_db {key}, {direction}: {side['error']}",
                }
            return {"proven": True, "by": f"op_db {key}", "reason": ""}
    return None
