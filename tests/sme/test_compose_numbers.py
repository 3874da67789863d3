"""Numbers that a program leaves open, and those that it depends on."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from composing import aten, check, program_of, run

X, Y = torch.tensor([1.0, -2.0, 3.0]), torch.tensor([0.5, 4.0, 2.0])

OPEN: list[tuple[Any, list[Any], dict[str, Any], dict[str, Any]]] = [
    (aten.add.Tensor, [X, Y], {"alpha": 2.0}, {"alpha": -3.0}),
    (aten.mul.Tensor, [X, 3.0], {}, {}),
    (aten.addcdiv.default, [X, X, Y], {"value": 0.25}, {"value": -4.0}),
    (aten.addcmul.default, [X, X, Y], {"value": 0.25}, {"value": -4.0}),
    (aten.clamp.default, [X, -1.0, 2.5], {}, {}),
    (aten.leaky_relu.default, [X, 0.2], {}, {}),
    (aten.lerp.Scalar, [X, Y, 0.3], {}, {}),
    (aten.elu.default, [X, 2.0], {}, {}),
    (aten.threshold.default, [X, 0.1, 20.0], {}, {}),
    (aten.masked_fill.Scalar, [X, X > 0, 7.0], {}, {}),
    (aten.native_layer_norm.default, [X, [3], None, None, 1e-5], {}, {}),
    (aten._foreach_add_.List, [[X.clone()], [Y]], {"alpha": 2.0}, {"alpha": 5.0}),
    (aten._foreach_addcdiv_.Scalar, [[X.clone()], [Y], [Y]], {"value": 2.0}, {"value": 5.0}),
]


@pytest.mark.parametrize(
    "op, args, kwargs, later", OPEN, ids=lambda x: str(x) if isinstance(x, torch._ops.OpOverload) else ""
)
def test_open_numbers(op: Any, args: list[Any], kwargs: dict[str, Any], later: dict[str, Any]) -> None:
    """One program, other numbers: right again."""
    program = check(op, *args, **kwargs)
    positions = {tuple(n.args) for n in program.numbers if n.op == "arg"}
    assert positions and not set(program.baked) & positions
    changed = [x * 1.5 if isinstance(x, float) else x for x in args]
    made, after = run(program, op, *changed, **(later or kwargs))
    fresh = [[t.clone() for t in x] if isinstance(x, list) and isinstance(x[0], torch.Tensor) else x for x in changed]
    want = op(*fresh, **(later or kwargs))
    if want is None:
        made, want = after[0], fresh[0]
    for m, w in zip(made, [want] if isinstance(want, torch.Tensor) else want, strict=True):
        torch.testing.assert_close(m, w)


def test_the_default_of_a_number_is_part_of_the_program() -> None:
    plain = program_of(aten.add.Tensor, X, Y)
    assert [s.op for s in plain.steps] == ["uba::vadd"] and not plain.numbers
    given = program_of(aten.add.Tensor, X, Y, alpha=1)
    assert given.baked == [(2, -1)] and given.baked_values == [1]


def test_an_exponent_is_part_of_the_program() -> None:
    square = program_of(aten.pow.Tensor_Scalar, X, 2)
    assert [s.op for s in square.steps] == ["uba::vmul"] and square.baked == [(1, -1)]


def test_a_branch_on_a_number_makes_it_part_of_the_program() -> None:
    program = program_of(aten.native_dropout.default, X, 0.5, True)
    assert (1, -1) in program.baked and program.baked_values[program.baked.index((1, -1))] == 0.5


def test_expressions_are_computed_when_the_program_runs() -> None:
    params, grads = [X.clone()], [Y]
    hyper: dict[str, Any] = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "eps": 1e-8}
    program = program_of(
        aten._fused_adamw_.default,
        params,
        grads,
        [X * 0],
        [X * 0],
        [],
        [torch.ones(())],
        **hyper,
        amsgrad=False,
        maximize=False,
    )
    assert {n.op for n in program.numbers} >= {"arg", "sub", "mul", "literal"}
    assert not program.baked


def test_numbers_keep_their_kind() -> None:
    ints = torch.tensor([1, 2, 3])
    program = check(aten.add.Tensor, ints, ints, alpha=3)
    assert program.values[program.outputs[0] or 0].dtype == "int64"
    check(aten.mul.Tensor, ints, 2.5)
    check(aten.eq.Scalar, ints, 2)
