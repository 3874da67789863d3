"""Operators that once left the chip: results that depend on data, factories, convolutions beyond the convolution unit,
pooling of any rank, tensors without elements. Each is what the CPU gives, and strict mode says that it stayed."""

from __future__ import annotations

import pytest
import torch
from ops_support import DEVICE
from torch.nn import functional as F

import torchfl


def on_chip(function, *tensors, gradients=False, tolerance=1e-5):
    """Forward, and with `gradients` backward, on the CPU and on the chip alone."""

    def run(device):
        mine = [t.detach().to(device).clone().requires_grad_(gradients and t.is_floating_point()) for t in tensors]
        made = function(*mine)
        outs = list(made) if isinstance(made, (tuple, list)) else [made]
        if gradients:
            total = sum((o * o).sum() for o in outs if torch.is_tensor(o) and o.is_floating_point())
            total.backward()
            outs += [t.grad for t in mine if t.grad is not None]
        return [o.detach().cpu() if torch.is_tensor(o) else o for o in outs]

    want = run("cpu")
    with torchfl.strict():
        got = run(DEVICE)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


X = torch.linspace(-2, 2, 20).sin().mul(3).view(4, 5)


@pytest.mark.parametrize("function", [
    lambda x: torch.nonzero(x > 0),
    lambda x: torch.nonzero(x > 9),
    lambda x: torch.nonzero(x[0].sum()),
    lambda x: torch.nonzero(x[:0]),
    lambda x: torch.nonzero(x > 0, as_tuple=True),
    lambda x: x.masked_select(x[0] > 0),
    lambda x: x[x > 0],
    lambda x: x[x[:, 0] > 0, 1],
    lambda x: x[:, x[0] > 0],
    lambda x: x[x > 9],
    lambda x: x.half()[x > 0],
    lambda x: x.clone().index_put_((x > 0,), x[x > 0] * 2),
    lambda x: torch.unique(x.round(), return_inverse=True, return_counts=True),
    lambda x: torch.unique(x > 0, return_counts=True),
    lambda x: torch.unique(x[:0], return_inverse=True),
    lambda x: torch.unique(torch.cat([x[0], x[0] * float("nan")])),
    lambda x: torch.unique_consecutive(x.flatten().round(), return_inverse=True, return_counts=True),
    lambda x: torch.unique_consecutive(torch.cat([x, x[3:], x[3:]]), dim=0, return_inverse=True),
    lambda x: torch.combinations(x[0], 2),
    lambda x: torch.equal(x, x) and not torch.equal(x, x + 1),
    lambda x: torch.cummax(x, 1),
    lambda x: torch.cummin(x, 0),
    lambda x: torch.logcumsumexp(x, 1),
    lambda x: torch.multinomial(x.abs(), 5).sort()[0],
])  # fmt: skip
def test_results_that_depend_on_data_and_scans(function):
    on_chip(function, X)


def test_their_gradients():
    on_chip(lambda x: x[x > 0], X, gradients=True)
    on_chip(lambda x: x.masked_select(x > 0), X, gradients=True)
    on_chip(lambda x: x.prod(1), torch.where(X > 1, 0.0, X), gradients=True)


def test_a_mask_that_does_not_fit_is_refused_in_pytorchs_words():
    with pytest.raises(IndexError, match=r"The shape of the mask \[3, 5\] at index 0 does not match"):
        X.to(DEVICE)[torch.ones(3, 5, dtype=torch.bool, device=DEVICE)]


@pytest.mark.parametrize("make", [
    lambda d: torch.linspace(-2, 3, 7, device=d),
    lambda d: torch.linspace(-2, 9, 7, device=d, dtype=torch.int32),
    lambda d: torch.linspace(0, 1, 5, out=torch.empty(0, device=d)),
    lambda d: torch.logspace(0, 5, 6, base=2, device=d),
    lambda d: torch.eye(3, 5, device=d, dtype=torch.int64),
    lambda d: torch.eye(3, device=d, dtype=torch.complex64),
    lambda d: torch.signal.windows.hann(7, device=d),
    lambda d: torch.randperm(50, device=d).sort()[0],
])  # fmt: skip
def test_factories(make):
    want = make("cpu")
    torch.zeros(1, device=DEVICE)
    with torchfl.strict():
        got = make(DEVICE)
    torch.testing.assert_close(got.cpu(), want)


def test_kaiser_window_needs_no_kernel_of_pytorchs():
    torch.testing.assert_close(torch.kaiser_window(7, device=DEVICE).cpu(), torch.kaiser_window(7))


CONVOLUTIONS = {
    "stride 3": (F.conv1d, (2, 4, 9), (6, 4, 3), {"stride": 3, "padding": 1}),
    "dilation": (F.conv2d, (2, 4, 9, 8), (6, 4, 3, 3), {"dilation": (2, 3)}),
    "unlike strides": (F.conv2d, (2, 4, 9, 8), (6, 2, 3, 2), {"stride": (3, 2), "padding": (1, 0), "groups": 2}),
    "three dimensions": (F.conv3d, (2, 4, 5, 6, 5), (6, 2, 3, 3, 2), {"stride": 2, "padding": 1, "groups": 2}),
    "transposed": (F.conv_transpose2d, (2, 4, 7, 5), (4, 3, 3, 2), {"stride": (3, 2), "padding": 1, "groups": 2}),
    "a result that ends in padding": (
        F.conv_transpose2d,
        (2, 4, 5, 4),
        (4, 3, 3, 2),
        {"stride": 2, "dilation": 3, "output_padding": 2},
    ),
    "transposed, 1": (F.conv_transpose1d, (2, 4, 7), (4, 3, 3), {"stride": 2, "output_padding": 1}),
    "transposed, 3": (F.conv_transpose3d, (1, 4, 3, 4, 3), (4, 3, 2, 3, 2), {"stride": (3, 2, 1)}),
}


@pytest.mark.parametrize("case", CONVOLUTIONS.values(), ids=CONVOLUTIONS)
def test_convolutions_beyond_the_convolution_unit(case):
    function, x, weight, options = case
    made = torch.Generator().manual_seed(0)
    tensors = [torch.randn(shape, generator=made) for shape in (x, weight)]
    on_chip(lambda x, w: function(x, w, **options), *tensors, gradients=True, tolerance=1e-3)


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_pooling_of_any_rank(rank):
    x = torch.randn(2, 3, *[8, 7, 6][:rank], generator=torch.Generator().manual_seed(rank))
    pool, adaptive = getattr(F, f"max_pool{rank}d"), getattr(F, f"adaptive_max_pool{rank}d")
    on_chip(lambda x: pool(x, 3, 2, 1), x, gradients=True)
    on_chip(lambda x: pool(x, 2, return_indices=True), x)
    on_chip(lambda x: adaptive(x, 3, return_indices=True), x)
    on_chip(lambda x: pool(x, 3, 2, 1), x[:0])
    on_chip(lambda x: adaptive(x, 3), x[:0])
    whole = x.mul(10).long()
    average = getattr(F, f"avg_pool{rank}d")
    assert torch.equal(average(whole.to(DEVICE), 2).cpu(), average(whole, 2))
    with pytest.raises(RuntimeError, match="not implemented for 'Int'"):
        average(whole.int().to(DEVICE), 2)


@pytest.mark.parametrize("function", [
    lambda x: torch.heaviside(x, x),
    lambda x: torch.special.entr(x.abs()),
    lambda x: torch.where(x > 0, 1.0, 0.0),
])  # fmt: skip
def test_selections_between_two_numbers(function):
    on_chip(function, X)


def test_uint8_between_negative_bounds():
    """PyTorch makes large numbers of them."""
    x = torch.arange(0, 250, 7, dtype=torch.uint8)
    for function in (lambda x: torch.clamp(x, -5, 100), lambda x: torch.clamp_min(x, -5)):
        assert torch.equal(function(x.to(DEVICE)).cpu(), function(x))


def test_complex_linear_layers():
    def run(x, weight, bias):
        made = F.linear(*(t.to(torch.complex64) for t in (x, weight, bias)))
        return torch.view_as_real(made)

    made = torch.Generator().manual_seed(0)
    for rows in (0, 4):
        tensors = [torch.randn(shape, generator=made) for shape in ((rows, 3), (2, 3), (2,))]
        on_chip(run, *tensors, gradients=True)


@pytest.mark.parametrize("function", [
    lambda x: torch.heaviside(x, x),
    torch.special.entr,
    F.logsigmoid,
    lambda x: torch.linalg.vector_norm(x, dim=1),
    lambda x: torch.linalg.vector_norm(x, float("inf"), dim=1),
    lambda x: torch.where(x > 0, 1.0, 0.0),
    lambda x: torch.cummax(x, 1),
])  # fmt: skip
def test_tensors_without_elements(function):
    on_chip(function, torch.zeros(0, 3))


@pytest.mark.parametrize("function", [
    lambda x: x.softmax(0),
    lambda x: x.log_softmax(0),
    lambda x: x.var(0),
    lambda x: x.std(),
    F.mish,
    F.logsigmoid,
    F.hardsigmoid,
    lambda x: F.glu(x[:2], 0),
    lambda x: torch.lerp(x, x, 0.5),
    lambda x: torch.logaddexp(x, x),
], ids=range(10))  # fmt: skip
def test_what_pytorch_has_for_floating_point_alone_is_refused_for_integers(function):
    """A program would compute it in floating point and cut the result."""
    x = torch.arange(6).view(3, 2)
    with pytest.raises((RuntimeError, NotImplementedError)):
        function(x)
    with pytest.raises((RuntimeError, NotImplementedError)):
        function(x.to(DEVICE))


def test_medians_of_nothing_and_counts_without_a_bin():
    assert torch.empty(0, device=DEVICE).median().isnan().item()
    x = torch.tensor([float("nan"), 0.0, float("inf"), 1.5])
    assert torch.equal(torch.histc(x.to(DEVICE), 5, -2, 2).cpu(), torch.histc(x, 5, -2, 2))
