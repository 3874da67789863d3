"""Chips that have little: what is composed all the same, and with what."""

from __future__ import annotations

import pytest
import torch
from composing import Chip, aten, check, ops, program_of

from torchfl.compose.trace import NotComposable

H = torch.float16
POOR = "matmul vadd vmul vmax vexp vdiv vsqrt reduce_sum reduce_max vcast copy_nd gather vlt vselect vfill"
poor = Chip(POOR)
x = torch.randn(4, 16, generator=torch.Generator().manual_seed(1))


def test_softmax_gelu_and_layer_norm_of_a_poor_chip() -> None:
    check(aten._softmax.default, x, -1, False, chip=poor)
    check(aten.native_layer_norm.default, x, [16], x[0], x[1], 1e-12, chip=poor)
    check(aten.gelu.default, x * 3, chip=poor)
    check(aten.tanh.default, x * 3, chip=poor, tolerance=1e-6)
    check(aten.embedding.default, x, torch.tensor([3, 0]), chip=poor)
    check(aten.addmm.default, x[0], x, torch.randn(16, 16), chip=poor)
    assert set(ops(program_of(aten.gelu.default, x, chip=poor))) <= set(POOR.split())


@pytest.mark.parametrize(
    "missing, op, args",
    [
        ("vneg", aten.neg.default, [x]),
        ("vsub", aten.sub.Tensor, [x, x[0]]),
        ("vabs", aten.abs.default, [x]),
        ("vrsqrt", aten.rsqrt.default, [x.abs() + 1]),
        ("vgt", aten.gt.Tensor, [x, x[0]]),
        ("vle vge", aten.ne.Tensor, [x, x[0]]),
        ("vne", aten.ne.Tensor, [x, x[0]]),
        ("vmax", aten.maximum.default, [x, x[0]]),
        ("vmin", aten.clamp_max.default, [x, 0.5]),
        ("vremainder", aten.remainder.Scalar, [x, 0.75]),
        ("vceil", aten.ceil.default, [x]),
        ("vlog2", aten.log2.default, [x.abs() + 1]),
        ("vexp2", aten.exp2.default, [x]),
        ("vcopysign", aten.copysign.Tensor, [x, x[0]]),
        ("verf", aten.erf.default, [x]),
        ("vtanh", aten.tanh.default, [x]),
        ("vle vge", aten.ge.Tensor, [x, x[0]]),
        ("vtrunc", aten.trunc.default, [x * 3]),
        ("vround", aten.round.default, [torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 2.4, -2.6])]),
        ("vlog1p", aten.log1p.default, [torch.tensor([1e-9, -1e-4, 0.5, 1e12, -0.99, 0.0, -1.0, float("inf")])]),
        ("vexpm1", aten.expm1.default, [torch.tensor([1e-9, -1e-4, 0.5, 60.0, -90.0, 0.0, 80.0])]),
        ("vsinh", aten.sinh.default, [torch.tensor([1e-5, -0.3, 4.0, -70.0, 89.0])]),
        ("vcosh", aten.cosh.default, [torch.tensor([1e-5, -0.3, 4.0, -70.0, 89.0])]),
        ("vasin", aten.asin.default, [torch.tensor([-1.0, -0.5, 0.0, 0.999, 1.0, 1.5])]),
        ("vacos", aten.acos.default, [torch.tensor([-1.0, -0.5, 0.0, 0.999, 1.0, 1.5])]),
        ("vatan", aten.atan.default, [x]),
        ("vasinh", aten.asinh.default, [torch.tensor([1e-6, -0.3, 4.0, -1e10, 1e30])]),
        ("vacosh", aten.acosh.default, [torch.tensor([1.0, 1.001, 4.0, 1e10, 0.5])]),
        ("vatanh", aten.atanh.default, [torch.tensor([1e-6, -0.3, 0.999, -1.0])]),
        ("reduce_min", aten.amin.default, [x, [1]]),
        ("reduce_min", aten.amin.default, [torch.tensor([[-128, 5], [127, 3]], dtype=torch.int8), [1]]),
        ("argmin", aten.argmin.default, [x, 1]),
        ("reduce_all reduce_min", aten.all.dim, [x > -1, 1]),
        ("scatter_min", aten.scatter_reduce.two, [x, 1, torch.zeros(4, 16, dtype=torch.int64), x, "amin"]),
        ("vnot", aten.logical_not.default, [x > 0]),
        ("flip", aten.flip.default, [x, [1]]),
        ("iota", aten.tril.default, [x]),
        ("vfill", aten.constant_pad_nd.default, [x, [1, 1], 2.0]),
        ("reduce_any", aten.any.dim, [x > 1, 1]),
        ("matmul", aten.mm.default, [x, x.t()]),
    ],
)
def test_others_stand_in_for_a_missing_instruction(missing: str, op: object, args: list[object]) -> None:
    class Without(Chip):
        def instruction(self, name: str, dtypes: tuple[torch.dtype, ...]) -> bool:
            return name not in missing.split()

    program = check(op, *args, chip=Without())
    assert not set(ops(program)) & set(missing.split())


def test_half_is_widened_where_the_chip_has_only_float32() -> None:
    chip = Chip(dtypes=None)

    class NoHalf(Chip):
        def instruction(self, name: str, dtypes: tuple[torch.dtype, ...]) -> bool:
            return name in ("vcast", "copy_nd") or H not in dtypes

    program = check(aten.exp.default, x.half(), chip=NoHalf())
    assert ops(program) == ["vcast", "vexp", "vcast"]
    assert ops(program_of(aten.exp.default, x.half(), chip=chip)) == ["vexp"]


def test_a_chip_without_float32_computes_in_half() -> None:
    chip = Chip(dtypes=(H, torch.int64, torch.bool))
    program = check(aten.gelu.default, x.half(), chip=chip, tolerance=1e-2)
    assert {v.dtype for v in program.values} == {"float16"}
    check(aten._softmax.default, x.half(), 1, False, chip=chip, tolerance=1e-2)
    with pytest.raises(NotComposable, match="float32"):
        program_of(aten.gelu.default, x, chip=chip)


def test_kernels_of_the_chip_are_steps_but_not_for_the_call_itself() -> None:
    chip = Chip(kernels="mm addmm")
    assert ops(program_of(aten.addmm.default, x[0, :4], x, x.t(), chip=chip))[0] == "aten::mm.default"
    assert ops(program_of(aten.mm.default, x, x.t(), chip=chip)) == ["matmul"]
    with pytest.raises(NotComposable, match=r"vmul|reduce_sum"):
        program_of(aten.mm.default, x, x.t(), chip=Chip("vadd", kernels="mm"))


def test_a_kernel_of_the_same_meaning_stands_in_for_an_instruction() -> None:
    program = check(aten._softmax.default, x, 1, False, chip=Chip("reduce_max reduce_sum vsub vdiv", kernels="exp"))
    assert "aten::exp.default" in ops(program)
    program = check(aten.sigmoid.default, x, chip=Chip("vmul vadd vdiv", kernels="exp"))  # no call of exp: a lowering
    assert ops(program) == ["vmul", "aten::exp.default", "vadd", "vdiv"]


def test_rank_beyond_the_chip() -> None:
    deep = torch.randn(2, 1, 3, 2, 2, 2)
    chip = Chip(max_rank=3)
    check(aten.gelu.default, deep, chip=chip)
    check(aten.mul.Tensor, deep, torch.randn(2, 2, 2), chip=chip)
    check(aten.sum.dim_IntList, deep, [3, 4, 5], chip=chip)
    for value in program_of(aten.gelu.default, deep, chip=chip).values[1:]:
        assert len(value.sizes) <= 3 or value.sizes == list(deep.shape)
    with pytest.raises(NotComposable, match="rank"):
        program_of(aten.mul.Tensor, deep, torch.randn(2, 1, 3, 1, 2, 1), chip=Chip(max_rank=2))


def test_the_reason_names_what_is_missing() -> None:
    with pytest.raises(NotComposable, match="no vexp for float32"):
        program_of(aten._softmax.default, x, 1, False, chip=Chip("vadd vsub vdiv reduce_max reduce_sum"))
