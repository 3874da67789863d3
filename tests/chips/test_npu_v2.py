"""The smaller member of the family composes what it has no kernel for, as the larger one does."""

from __future__ import annotations

import pytest
from helpers import OwnProcess

v2 = OwnProcess("npu_v2", NPU_SIM_CHIP="v2")


def device():
    import torch

    import torchfl

    torchfl.load("npu_v2")
    return torch.device("npu:0")


def same(function, *arguments, composed: str = "") -> None:
    """`function` gives on the chip what it gives on the CPU, without leaving it; `composed`: an operator that was."""
    import torch

    import torchfl

    d = device()
    want = function(*arguments)
    torchfl.reset_stats()
    with torchfl.strict():
        got = function(*(a.to(d) for a in arguments))
    paths = {row["op"].split(".")[0]: row["path"] for row in torchfl.stats()}
    torch.testing.assert_close(got.cpu(), want, rtol=1e-5, atol=1e-5, equal_nan=True)
    if composed:
        assert paths[composed] == "composed", paths


@v2
def test_elementwise_operators_and_normalisations() -> None:
    import torch
    from torch.nn import functional as F

    x = torch.randn(3, 7, 8)
    same(F.gelu, x)
    same(lambda x: F.layer_norm(x, (8,)), x)
    same(lambda x: F.softmax(x, 1), x)
    same(F.mish, x, composed="aten::mish")
    same(torch.sinh, x, composed="aten::sinh")
    same(lambda x: F.group_norm(x, 7), x, composed="aten::native_group_norm")
    same(lambda x: x.double().sum(), x, composed="aten::sum")
    same(lambda x: x.std(1), x, composed="aten::std")


@v2
def test_order_and_scans() -> None:
    import torch

    x = torch.randn(3, 7, 8)
    for dim in range(3):
        same(lambda x, dim=dim: torch.sort(x, dim)[0], x, composed="aten::sort")
        same(lambda x, dim=dim: torch.argsort(x, dim=dim, stable=True), x, composed="aten::sort")
        same(lambda x, dim=dim: torch.topk(x, 3, dim)[1], x, composed="aten::topk")
        same(lambda x, dim=dim: x.cumsum(dim), x, composed="aten::cumsum")
    same(lambda x: (x * 10).to(torch.int32).cumsum(0), x, composed="aten::cumsum")


@v2
def test_random_numbers() -> None:
    import torch
    from torch.nn import functional as F

    import torchfl

    x = torch.ones(4096, device=device())
    with torchfl.strict():
        torch.manual_seed(3)
        first = F.dropout(x, 0.25)
        torch.manual_seed(3)
        again = F.dropout(x, 0.25)
    assert again.tolist() == first.tolist()
    assert first.unique().tolist() == [0.0, pytest.approx(4 / 3)]
    assert abs(first.mean().item() - 1) < 0.1


@v2
def test_a_dtype_that_the_chip_lacks_is_computed_on_the_cpu() -> None:
    import torch

    x = torch.arange(200, dtype=torch.uint8)
    got = x.to(device()).cumsum(0)
    assert got.device == device() and torch.equal(got.cpu(), x.cumsum(0))
