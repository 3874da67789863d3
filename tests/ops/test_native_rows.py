"""Every row of the NPU-V3 descriptor: the call really reaches the kernel that the row names, for each of its dtypes and
for operands in any form, and the numbers are those of double precision, rounded.

The rows come from the descriptor: a row that nobody wrote a recipe for fails here.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import recipes
import torch
from ops_support import (
    DEVICE,
    FORMS,
    assert_equal_to_reference,
    dtype_named,
    lowered,
    on_cpu,
    place,
    watch,
)
from recipes import Call

ROWS: list[dict[str, Any]] = lowered()["ops"]

#: Calls that a row covers and that its kernel refuses when it runs: (operator, dtype) -> what the reason must say.
#: Results are checked all the same.
REFUSED: dict[tuple[str, str], str] = {
    ("add", "bool"): "out is bool, expected int64",  # the chip counts bools; PyTorch's sum of two is their `or`
}

#: Operators that PyTorch turns into their out= form by itself, which then must be native.
TAKEN_APART = {"arange": "argument 'device' is a Device, which no kernel takes"}


MUCH = "npu_v3_matmul_pipelined"  # its operands are large, and its tiling is that of the other two


def _base(row: dict[str, Any]) -> str:
    return str(row["op"]).removeprefix("aten::")


def _dtypes(row: dict[str, Any]) -> list[str]:
    return list(row["dtypes"].get("*") or lowered()["dtypes"])


def _rows() -> list[Any]:
    """(row, dtype), one for each operator, kernel and dtype."""
    seen: dict[tuple[str, str, str, str], dict[str, Any]] = {}
    for row in ROWS:
        for dtype in _dtypes(row):
            seen.setdefault((row["op"], row["overload"] or "", row["kernel"], dtype), row)
    return [
        pytest.param(row, dtype, id=f"{_base(row)}{'.' + o if o else ''}-{kernel.removeprefix('npu_v3_')}-{dtype}")
        for (_, o, kernel, dtype), row in seen.items()
    ]


def test_every_row_has_a_recipe() -> None:
    """Case 24: what the descriptor declares is what gets tested."""
    without = sorted({row["declared"] for row in ROWS if _base(row) not in recipes.RECIPES})
    assert not without, f"no recipe in recipes.py for {without}"


def _filled(args: tuple[Any, ...], kwargs: dict[str, Any], dtype: torch.dtype, device: Any) -> tuple[Any, Any]:
    def one(value: Any) -> Any:
        return dtype if value is recipes.DTYPE else device if value is recipes.DEVICE_OF_RUN else value

    return tuple(one(a) for a in args), {name: one(value) for name, value in kwargs.items()}


def _wide(tensor: Any) -> Any:
    return tensor.double() if isinstance(tensor, torch.Tensor) and tensor.dtype.is_floating_point else tensor


def _copied(tree: Any) -> Any:
    return torch.utils._pytree.tree_map(lambda t: t.clone() if isinstance(t, torch.Tensor) else t, tree)


def reference_of(call: Call, operands: tuple[Any, ...], dtype: torch.dtype) -> tuple[Any, Any]:
    """Result of the call in double precision (integers: as they are) and its operands afterwards."""
    wide = dtype.is_floating_point
    args = torch.utils._pytree.tree_map(_wide, operands) if wide else operands
    args, kwargs = _filled(_copied(args), call.kwargs, torch.float64 if wide else dtype, "cpu")
    if call.op.startswith("arange"):  # exact in double precision, then rounded once
        kwargs["dtype"] = torch.float64 if wide else dtype
    if wide and call.op.startswith("_amp"):  # the CPU takes these in float32 only
        args = torch.utils._pytree.tree_map(
            lambda t: t.float() if isinstance(t, torch.Tensor) and t.is_floating_point() else t, args
        )
    try:
        return (call.reference or call.overload())(*args, **kwargs), args
    except (NotImplementedError, RuntimeError) as error:
        # Other devices of PyTorch have these, the CPU has not.
        if dtype != torch.bool or not re.search("not implemented for 'Bool'|does not support bool", str(error)):
            raise
        small = torch.utils._pytree.tree_map(lambda t: t.char() if isinstance(t, torch.Tensor) else t, args)
        result = call.overload()(*small, **kwargs)
        return result.bool() if result.dtype == torch.int8 else result, args


def result_dtypes(call: Call, operands: tuple[Any, ...], dtype: torch.dtype) -> list[torch.dtype]:
    """What PyTorch's own shape function says about the dtypes of the results; None where it has none."""
    meta = torch.utils._pytree.tree_map(lambda t: t.to("meta") if isinstance(t, torch.Tensor) else t, operands)
    args, kwargs = _filled(meta, call.kwargs, dtype, "meta")
    result = call.overload()(*args, **kwargs)
    return [t.dtype for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]


def check(call: Call, dtype: torch.dtype, form: str, kernels: set[str], base: str) -> None:
    what = f"{call}, {form}"
    operands = recipes.map_operands(call, lambda operand: operand.make(dtype))
    reference, reference_operands = reference_of(call, operands, dtype)
    placed = recipes.map_operands(
        call, lambda operand: place(operand.make(dtype), "contiguous" if operand.dense else form)
    )
    args, kwargs = _filled(placed, call.kwargs, dtype, DEVICE)
    with watch() as rows:
        result = call.overload()(*args, **kwargs)
    ran = rows.of(f"aten::{base}")
    assert ran, f"{what}: never reached {base}; ran: {[r['op'] for r in rows]}"
    refusal = REFUSED.get((base, str(dtype).removeprefix("torch.")))
    for row in ran:
        if row["path"] == "composite" and row["reason"] == TAKEN_APART.get(base):
            assert len(ran) > 1, f"{what}: taken apart, and then nothing of it ran"
            continue
        if row["path"] != "native" and refusal is not None:
            assert refusal in row["reason"], f"{what}: {row['op']} was refused for another reason: {row['reason']}"
            continue
        assert row["path"] == "native", f"{what}: {row['op']} went to {row['path']}: {row['reason']}"
        assert row["target"] in kernels, f"{what}: ran {row['target']}, expected {kernels}"
        assert row["host_bytes"] == 0, f"{what}: {row['host_bytes']} bytes crossed the host boundary"
    if call.reference is None:
        got_dtypes = [t.dtype for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        right_dtypes = result_dtypes(call, operands, dtype)
        mask = call.args[-1]
        # Some shape functions leave out what an output mask does not want, others do not.
        if (
            isinstance(mask, list)
            and all(isinstance(wanted, bool) for wanted in mask)
            and len(right_dtypes) == len(mask)
        ):
            right_dtypes = [d for d, wanted in zip(right_dtypes, mask, strict=True) if wanted]
        assert got_dtypes == right_dtypes, f"{what}: results are {got_dtypes}, PyTorch says {right_dtypes}"
    assert_equal_to_reference(result, reference, dtype, call.ulps, what, call.absolute)
    # What the operator leaves in its arguments: running statistics, gradients in place, and everything else untouched.
    after = [t for t in torch.utils._pytree.tree_leaves(on_cpu(args)) if isinstance(t, torch.Tensor)]
    right = [t for t in torch.utils._pytree.tree_leaves(reference_operands) if isinstance(t, torch.Tensor)]
    assert_equal_to_reference(after, right, dtype, call.ulps, f"{what}, its arguments afterwards")


def _of_row(row: dict[str, Any], dtype: torch.dtype) -> list[Call]:
    """The calls that a row serves: those of its overload, and those meant for its kernel."""
    found = []
    for call in recipes.calls(_base(row), dtype):
        overload = call.op.partition(".")[2]
        if row["overload"] is not None and overload not in (row["overload"], "default" if not row["overload"] else ""):
            continue
        if call.kernel != row["kernel"] and (call.kernel or row["path"] > 0):
            continue
        found.append(call)
    return found


@pytest.mark.parametrize(("row", "dtype"), _rows())
def test_row(row: dict[str, Any], dtype: str) -> None:
    """Cases 6, 7, 12 and 24: each row is native and right for each dtype and each form of its operands."""
    calls = _of_row(row, dtype_named(dtype))
    assert calls, "no recipe of this operator reaches this row"
    failures = []
    others = [form for form in FORMS if form != "contiguous"]
    for i, call in enumerate(calls):
        # Every call as it is and in one other form, which is another one for each call.
        any_kernel = {other["kernel"] for other in ROWS if other["op"] == row["op"]}
        for form in ("contiguous", others[i % len(others)]) if call.kernel != MUCH else ("contiguous",):
            try:
                check(call, dtype_named(dtype), form, {call.kernel} if call.kernel else any_kernel, _base(row))
            except (AssertionError, RuntimeError) as error:
                failures.append(str(error).strip().replace("\n", "\n    ")[:600])
    assert not failures, f"{len(failures)} calls failed:\n" + "\n".join(failures[:8])
