"""Programs of common operators, run by the reference, against the CPU in float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from composing import Chip, aten, check, ops, program_of, run
from torch import Tensor

from torchfl.compose.trace import NotComposable

F = torch.float32
H = torch.float16


def rand(*sizes: int, dtype: torch.dtype = F, seed: int = 0) -> Tensor:
    made = torch.randn(sizes, generator=torch.Generator().manual_seed(seed + sum(sizes)), dtype=torch.float64)
    return made.to(dtype)


def positive(*sizes: int, dtype: torch.dtype = F) -> Tensor:
    return rand(*sizes, dtype=dtype).abs() + 0.5


Case = Callable[[torch.dtype], tuple[Any, ...]]  # dtype -> operator, then its arguments; a dict at the end: keywords

CASES: dict[str, Case] = {
    "add": lambda d: (aten.add.Tensor, rand(3, 4, dtype=d), rand(4, dtype=d), {"alpha": 2}),
    "sub": lambda d: (aten.sub.Tensor, rand(3, 4, dtype=d), rand(3, 1, dtype=d)),
    "mul by a number": lambda d: (aten.mul.Tensor, rand(3, 4, dtype=d), 2.5),
    "div": lambda d: (aten.div.Tensor, rand(3, 4, dtype=d), positive(3, 4, dtype=d)),
    "div floor": lambda d: (aten.div.Tensor_mode, rand(3, 4, dtype=d) * 8, positive(3, 4, dtype=d), {"rounding_mode": "floor"}),
    "remainder": lambda d: (aten.remainder.Tensor, rand(9, dtype=d).round() * 3, torch.full((9,), -2.0, dtype=d)),
    "pow 2": lambda d: (aten.pow.Tensor_Scalar, rand(5, dtype=d), 2),
    "pow 1.5": lambda d: (aten.pow.Tensor_Scalar, positive(5, dtype=d), 1.5),
    "maximum": lambda d: (aten.maximum.default, rand(3, 4, dtype=d), rand(4, dtype=d)),
    "clamp": lambda d: (aten.clamp.default, rand(3, 4, dtype=d), -0.5, 0.75),
    "where": lambda d: (aten.where.self, rand(3, 4) > 0, rand(3, 4, dtype=d), rand(4, dtype=d)),
    "masked_fill": lambda d: (aten.masked_fill.Scalar, rand(3, 4, dtype=d), rand(3, 4) > 0, -5.0),
    "exp": lambda d: (aten.exp.default, rand(3, 4, dtype=d)),
    "log1p": lambda d: (aten.log1p.default, positive(3, 4, dtype=d)),
    "sigmoid": lambda d: (aten.sigmoid.default, rand(3, 4, dtype=d)),
    "tanh": lambda d: (aten.tanh.default, rand(3, 4, dtype=d)),
    "gelu": lambda d: (aten.gelu.default, rand(3, 4, dtype=d)),
    "gelu tanh": lambda d: (aten.gelu.default, rand(3, 4, dtype=d), {"approximate": "tanh"}),
    "gelu backward": lambda d: (aten.gelu_backward.default, rand(3, 4, dtype=d), rand(3, 4, dtype=d)),
    "silu": lambda d: (aten.silu.default, rand(3, 4, dtype=d)),
    "leaky_relu": lambda d: (aten.leaky_relu.default, rand(3, 4, dtype=d), 0.1),
    "hardswish": lambda d: (aten.hardswish.default, rand(3, 4, dtype=d)),
    "elu": lambda d: (aten.elu.default, rand(3, 4, dtype=d)),
    "softplus": lambda d: (aten.softplus.default, rand(3, 4, dtype=d)),
    "sign": lambda d: (aten.sign.default, rand(3, 4, dtype=d)),
    "hypot": lambda d: (aten.hypot.default, rand(3, 4, dtype=d), rand(3, 4, dtype=d)),
    "lerp": lambda d: (aten.lerp.Scalar, rand(3, 4, dtype=d), rand(3, 4, dtype=d), 0.3),
    "addcmul": lambda d: (aten.addcmul.default, rand(3, 4, dtype=d), rand(3, 4, dtype=d), rand(4, dtype=d), {"value": 0.5}),
    "addcdiv": lambda d: (aten.addcdiv.default, rand(3, 4, dtype=d), rand(3, 4, dtype=d), positive(4, dtype=d), {"value": 0.5}),
    "sum": lambda d: (aten.sum.dim_IntList, rand(3, 4, 5, dtype=d), [0, 2]),
    "sum all": lambda d: (aten.sum.default, rand(3, 4, dtype=d)),
    "mean": lambda d: (aten.mean.dim, rand(3, 4, dtype=d), [1], True),
    "prod": lambda d: (aten.prod.dim_int, rand(3, 4, dtype=d), 1),
    "var": lambda d: (aten.var.correction, rand(3, 40, dtype=d), [1]),
    "std": lambda d: (aten.std.correction, rand(3, 40, dtype=d), [1], {"correction": 0}),
    "amax": lambda d: (aten.amax.default, rand(3, 4, dtype=d), [0]),
    "max.dim": lambda d: (aten.max.dim, rand(3, 4, dtype=d), 1),
    "argmin": lambda d: (aten.argmin.default, rand(3, 4, dtype=d), 0),
    "any": lambda d: (aten.any.dim, rand(3, 4, dtype=d) > 1, 1),
    "vector norm": lambda d: (aten.linalg_vector_norm.default, rand(3, 4, dtype=d), 2, [1]),
    "cumsum": lambda d: (aten.cumsum.default, rand(3, 4, dtype=d), 1),
    "sort": lambda d: (aten.sort.default, rand(3, 7, dtype=d), 1, True),
    "topk": lambda d: (aten.topk.default, rand(3, 7, dtype=d), 3),
    "mm": lambda d: (aten.mm.default, rand(3, 4, dtype=d), rand(4, 5, dtype=d)),
    "addmm": lambda d: (aten.addmm.default, rand(5, dtype=d), rand(3, 4, dtype=d), rand(4, 5, dtype=d), {"beta": 0.5, "alpha": 2}),
    "baddbmm": lambda d: (aten.baddbmm.default, rand(2, 3, 5, dtype=d), rand(2, 3, 4, dtype=d), rand(2, 4, 5, dtype=d)),
    "softmax": lambda d: (aten._softmax.default, rand(3, 4, dtype=d), -1, False),
    "log_softmax": lambda d: (aten._log_softmax.default, rand(3, 4, dtype=d), 0, False),
    "softmax backward": lambda d: (aten._softmax_backward_data.default, rand(3, 4, dtype=d), rand(3, 4, dtype=d).double().softmax(1).to(d), 1, d),
    "layer_norm": lambda d: (aten.native_layer_norm.default, rand(3, 16, dtype=d), [16], rand(16, dtype=d), rand(16, dtype=d, seed=1), 1e-5),
    "group_norm": lambda d: (aten.native_group_norm.default, rand(2, 4, 6, dtype=d), rand(4, dtype=d), rand(4, dtype=d), 2, 4, 6, 2, 1e-5),
    "nll_loss": lambda d: (aten.nll_loss_forward.default, rand(3, 4, dtype=d), torch.tensor([0, 3, 1]), None, 1, -100),
    "mse_loss": lambda d: (aten.mse_loss.default, rand(3, 4, dtype=d), rand(3, 4, dtype=d, seed=1)),
    "cat": lambda d: (aten.cat.default, [rand(2, 3, dtype=d), rand(2, 5, dtype=d)], 1),
    "stack": lambda d: (aten.stack.default, [rand(2, 3, dtype=d), rand(2, 3, dtype=d)], 1),
    "pad": lambda d: (aten.constant_pad_nd.default, rand(3, 4, dtype=d), [1, 2, -1, 0], 0.5),
    "flip": lambda d: (aten.flip.default, rand(3, 4, dtype=d), [0, 1]),
    "roll": lambda d: (aten.roll.default, rand(3, 4, dtype=d), [1], [1]),
    "tril": lambda d: (aten.tril.default, rand(4, 4, dtype=d), -1),
    "gather": lambda d: (aten.gather.default, rand(3, 4, dtype=d), 1, torch.tensor([[0, 3], [1, 1], [2, 0]])),
    "scatter_add": lambda d: (aten.scatter_add.default, rand(3, 4, dtype=d), 1, torch.tensor([[0, 3], [1, 1], [2, 0]]), rand(3, 2, dtype=d)),
    "index": lambda d: (aten.index.Tensor, rand(3, 4, 5, dtype=d), [None, torch.tensor([0, -1]), torch.tensor([[1], [2]])]),
    "index_put": lambda d: (aten.index_put.default, rand(3, 4, dtype=d), [torch.tensor([0, 2])], rand(4, dtype=d)),
    "index_select": lambda d: (aten.index_select.default, rand(3, 4, dtype=d), 1, torch.tensor([3, 3, 0])),
    "embedding": lambda d: (aten.embedding.default, rand(6, 4, dtype=d), torch.tensor([[0, 5], [2, 2]])),
    "embedding backward": lambda d: (aten.embedding_dense_backward.default, rand(2, 2, 4, dtype=d), torch.tensor([[0, 5], [2, 2]]), 6, -1, False),
    "upsample backward": lambda d: (aten.upsample_nearest2d_backward.default, rand(1, 2, 6, 6, dtype=d), [6, 6], [1, 2, 3, 3]),
    "max_pool": lambda d: (aten.max_pool2d_with_indices.default, rand(1, 2, 6, 6, dtype=d), [3, 3], [2, 2], [1, 1]),
    "avg_pool": lambda d: (aten.avg_pool2d.default, rand(1, 2, 6, 6, dtype=d), [3, 3], [2, 2], [1, 1]),
    "convolution": lambda d: (aten.convolution.default, rand(2, 4, 7, 7, dtype=d), rand(6, 2, 3, 3, dtype=d), rand(6, dtype=d), [2, 1], [1, 0], [1, 2], False, [0, 0], 2),
    "transposed": lambda d: (aten.convolution.default, rand(2, 4, 5, 5, dtype=d), rand(4, 3, 3, 3, dtype=d), None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1),
}  # fmt: skip


def split(case: tuple[Any, ...]) -> tuple[Any, list[Any], dict[str, Any]]:
    op, *args = case
    return op, args[:-1] if isinstance(args[-1], dict) else args, args[-1] if isinstance(args[-1], dict) else {}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [F, H], ids=["float32", "float16"])
def test_operator(name: str, dtype: torch.dtype) -> None:
    op, args, kwargs = split(CASES[name](dtype))
    many = {"convolution", "transposed", "addmm", "baddbmm", "group_norm", "prod", "log_softmax"}
    check(op, *args, tolerance=2e-2 if dtype == H and name in many else None, **kwargs)


@pytest.mark.parametrize(
    "name", ["add", "gelu", "softmax", "layer_norm", "sum", "cat", "index", "where", "cumsum", "var"]
)
def test_strided_arguments(name: str) -> None:
    """Every tensor is a window with gaps: transposed storage, each second element."""

    def gaps(x: Any) -> Any:
        if isinstance(x, Tensor) and x.dim():
            wide = x.new_zeros([*x.shape[::-1][:-1], x.shape[0] * 2]) if x.dim() > 1 else x.new_zeros(x.shape[0] * 2)
            view = wide[..., ::2].permute(*reversed(range(x.dim()))) if x.dim() > 1 else wide[::2]
            return view.copy_(x)
        return [gaps(e) for e in x] if isinstance(x, list) and x and isinstance(x[0], Tensor) else x

    op, args, kwargs = split(CASES[name](F))
    check(op, *map(gaps, args), **kwargs)


SHAPES = [((), ()), ((0,), (1,)), ((3, 0), (3, 1)), ((1, 4), (3, 1)), ((2, 1, 3), (4, 1))]


@pytest.mark.parametrize("a, b", SHAPES, ids=str)
def test_broadcast_zero_size_and_zero_dim(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x, y = torch.ones(a) * 3, torch.ones(b) * 2
    check(aten.add.Tensor, x, y)
    check(aten.where.self, x > 1, x, y)
    check(aten.gelu.default, x)
    check(aten.sum.default, x)


def test_promotion() -> None:
    ints, floats = torch.tensor([7, -7, 5]), torch.tensor([2.0, 2.0, -2.0])
    check(aten.add.Tensor, ints, floats)
    check(aten.div.Tensor, ints, torch.tensor([2, 2, 3]))
    check(aten.floor_divide.default, ints, torch.tensor([2, 2, -3]))
    check(aten.mul.Tensor, floats.half(), torch.tensor(2.0))
    check(aten.add.Tensor, torch.tensor([True, False]), torch.tensor([True, True]))
    check(aten.eq.Tensor, ints, floats)
    check(aten.sum.default, torch.tensor([True, True]))
    check(aten.add.Tensor, torch.tensor([250, 10], dtype=torch.uint8), torch.tensor([10, 10], dtype=torch.uint8))


def test_special_values() -> None:
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1.0])
    for op in (aten.maximum.default, aten.fmax.default, aten.atan2.default, aten.eq.Tensor, aten.hypot.default):
        check(op, x, x.flip(0))
    for op in (aten.sign.default, aten.isnan.default, aten.isinf.default, aten.sigmoid.default, aten.signbit.default):
        check(op, x)
    check(aten._softmax.default, torch.tensor([[1e4, 0.0], [-1e4, -1e4]]), 1, False)


def test_writing_through_a_slice_leaves_what_was_read_before() -> None:
    check(aten.slice_scatter.default, rand(4, 6), rand(2, 6), 0, 1, 3)
    check(aten.diagonal_scatter.default, rand(4, 4), rand(4))
    check(aten.select_backward.default, rand(6), [4, 6], 0, 2)


def test_foreach_is_one_program_that_writes_in_place() -> None:
    params, grads = [rand(3, 3), rand(5)], [rand(3, 3, seed=1), rand(5, seed=1)]
    program = check(aten._foreach_add_.List, params, grads, alpha=-0.1)
    assert not program.writes and not program.outputs
    inputs = {i.value for i in program.inputs}
    assert {s.outs[0] for s in program.steps if s.op == "uba::vadd"} <= inputs
    check(aten._foreach_addcdiv_.ScalarList, params, grads, [g.abs() + 1 for g in grads], [0.1, 0.2])
    check(aten._foreach_lerp_.Scalar, params, grads, 0.1)
    check(aten._foreach_sqrt.default, [g.abs() for g in grads])
    check(aten._foreach_norm.Scalar, grads, 2)
    check(aten._foreach_mul_.Tensor, params, torch.tensor(0.5))


def test_elements_of_one_kind_are_traced_once_and_stay_apart() -> None:
    shapes = [(3, 3), (5,), (3, 3), (5,), (3, 3)]
    a, b, c = ([rand(*s, seed=10 * k + i) for i, s in enumerate(shapes)] for k in range(3))
    numbers = [0.1, 0.2, 0.3, 0.4, 0.5]
    for op, args in (
        (aten._foreach_addcdiv_.ScalarList, [a, b, [t.abs() + 1 for t in c], numbers]),
        (aten._foreach_addcmul.ScalarList, [a, b, c, numbers]),
        (aten._foreach_div.ScalarList, [a, numbers]),
        (aten._foreach_maximum_.List, [a, b]),
        (aten._foreach_exp_.default, [a]),
        (aten._foreach_lerp_.List, [a, b, [t.abs() for t in c]]),
        (aten._foreach_norm.Scalar, [a, 1]),
        (aten._foreach_copy_.default, [a, b]),
        (aten._foreach_zero_.default, [a]),
    ):
        check(op, *args)
    check(aten._foreach_add.List, a, b, alpha=0.5)
    turned = [t.t() for t in (rand(3, 3), rand(3, 3, seed=1))]
    check(aten._foreach_mul_.List, turned, [rand(3, 3, seed=2), rand(3, 3, seed=3)])


def test_fused_adamw() -> None:
    params = [rand(3, 3), rand(5), rand(3, 3, seed=7)]
    state = [[rand(*p.shape, seed=k + i) for i, p in enumerate(params)] for k in (1, 5)]
    squares = [rand(*p.shape, seed=3).abs() for p in params]
    steps = [torch.tensor(3.0), torch.tensor(3.0), torch.tensor(5.0)]
    hyper: dict[str, Any] = {"lr": 0.01, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
    for amsgrad in (False, True):
        top = [s * 2 for s in squares] if amsgrad else []
        check(aten._fused_adamw_.default, params, *state, squares, top, steps, **hyper, amsgrad=amsgrad, maximize=False)


def test_batch_norm_updates_running_statistics() -> None:
    args = (rand(4, 3, 5), rand(3), rand(3, seed=1), rand(3, seed=2), positive(3), True, 0.1, 1e-5)
    program = check(aten.native_batch_norm.default, *args)
    written = {program.inputs[i].arg for _, i in program.writes}
    written |= {i.arg for i in program.inputs for s in program.steps if i.value in s.outs}
    assert written == {3, 4}


def test_recurrent_cells_agree_with_the_layers() -> None:
    gates, hidden, cell = rand(2, 12), rand(2, 12, seed=1), rand(2, 3)
    program = program_of(aten._thnn_fused_lstm_cell.default, gates, hidden, cell, None, None)
    (h, c, _), _ = run(program, aten._thnn_fused_lstm_cell.default, gates, hidden, cell, None, None)
    i, f, g, o = (gates + hidden).chunk(4, 1)
    want = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    torch.testing.assert_close(c, want)
    torch.testing.assert_close(h, o.sigmoid() * want.tanh())


def test_random_numbers_count_their_counters() -> None:
    program = program_of(aten.rand.default, [10], dtype=F)
    assert program.random == 3 and ops(program) == ["random_uniform"]
    made, _ = run(program, aten.rand.default, [10], dtype=F)
    assert made[0] is not None and made[0].shape == (10,) and made[0].min() >= 0 and made[0].max() < 1
    big = program_of(aten.randn.default, [4096], dtype=F)
    normal, _ = run(big, aten.randn.default, [4096], dtype=F)
    assert normal[0] is not None and abs(float(normal[0].mean())) < 0.06 and abs(float(normal[0].std()) - 1) < 0.05

    class NoHalf(Chip):
        def instruction(self, name: str, dtypes: tuple[torch.dtype, ...]) -> bool:
            return H not in dtypes or name == "vcast"

    half, _ = run(
        program_of(aten.rand.default, [1 << 16], dtype=H, chip=NoHalf()), aten.rand.default, [1 << 16], dtype=H
    )
    assert half[0] is not None and half[0].max() < 1
    program = program_of(aten.bernoulli_.float, rand(64), 0.25)
    assert program.writes or program.steps[-1].outs == [program.inputs[0].value]


def test_fourier_transforms() -> None:
    x = rand(3, 30)
    check(aten._fft_r2c.default, x, [1], 0, True)
    z = torch.complex(rand(3, 130), rand(3, 130, seed=1))  # long enough to be split
    program = program_of(aten._fft_c2c.default, z, [1], 1, True)
    (made,), _ = run(program, aten._fft_c2c.default, z, [1], 1, True)
    torch.testing.assert_close(made, torch.fft.fft(z, norm="ortho"), rtol=1e-4, atol=1e-5)


def test_common_steps_are_shared_and_dead_ones_dropped() -> None:
    program = program_of(aten.gelu_backward.default, rand(4), rand(4))
    assert len(set(map(str, ((s.op, s.args) for s in program.steps)))) == len(program.steps)
    program = program_of(aten.native_layer_norm.default, rand(3, 4), [4], None, None, 1e-5)
    read = {a["value"] for s in program.steps for a in s.args if isinstance(a, dict) and "value" in a}
    read |= {program.values[i].base for i in read} | {o for o in program.outputs if o is not None}
    assert all(o in read for s in program.steps for o in s.outs)


def test_a_result_that_is_only_copied_is_made_in_place() -> None:
    z = torch.complex(rand(4), rand(4, seed=1))
    program = program_of(aten.mul.Tensor, z, z)
    assert "copy_nd" not in ops(program) and len(ops(program)) <= 6, program.text()


def test_steps_that_depend_on_nothing_are_named() -> None:
    program = program_of(aten.tril.default, rand(4, 4))
    constant = [ops(program)[n] for n in program.constant_steps]
    assert "iota" in constant and "vle" in constant and "vselect" not in constant
    assert not program_of(aten.rand_like.default, rand(4)).constant_steps
    assert not program_of(aten.gelu.default, rand(4)).constant_steps
    pool = program_of(aten.avg_pool2d.default, rand(1, 2, 6, 6), [3, 3], [2, 2], [1, 1])
    assert len(pool.steps) - len(pool.constant_steps) <= 6, pool.text()


def test_pointwise_programs_are_marked_for_any_size() -> None:
    assert program_of(aten.gelu.default, rand(3, 4)).generic == "pointwise"
    assert program_of(aten.addcmul.default, rand(3, 4), rand(1, 4), rand(3, 1), value=2.0).generic == "pointwise"
    assert program_of(aten._softmax.default, rand(3, 4), 1, False).generic == ""
    assert program_of(aten.add.Tensor, rand(3, 4), rand(4, 3).t()).generic == ""


@pytest.mark.parametrize(
    "call, reason",
    [
        ((aten.nonzero.default, torch.ones(3)), "aten::nonzero"),
        ((aten.index.Tensor, torch.ones(3), [torch.tensor([True, False, True])]), "mask"),
        ((aten._linalg_svd.default, torch.ones(3, 3)), "aten::_linalg_svd (float32)"),
    ],
)
def test_what_cannot_be_composed_says_so(call: tuple[Any, ...], reason: str) -> None:
    with pytest.raises(NotComposable) as caught:
        program_of(*call)
    assert reason in str(caught.value)
