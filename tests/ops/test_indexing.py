"""Indices, sizes and dtypes at their edges, and what happens with tensors from elsewhere. What the CPU does is right."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops_support import DEVICE, agree, sample, watch
from torch import nn

DTYPES = (torch.float32, torch.float16, torch.int64, torch.bool, torch.complex64, torch.float64)


# ------------------------------------------------------------------------------------------------ x[...], x[...] = v


def _selections() -> dict[str, Callable[[Callable[[Any], torch.Tensor]], Any]]:
    """Indices of a (4, 3, 5) tensor; `t` puts a list on the device of the index."""
    return {
        "one": lambda t: (t([0, 2]),),
        "second": lambda t: (slice(None), t([0, 2])),
        "last": lambda t: (..., t([4, 0, 0])),
        "pair": lambda t: (t([0, 3]), t([1, 2])),
        "apart": lambda t: (t([0, 3]), slice(None), t([1, 2])),
        "broadcast": lambda t: (t([[0], [3]]), t([1, 2])),
        "new_axis": lambda t: (None, t([1]), None),
        "mask": lambda t: (t([True, False, True, True]),),
        "mask_middle": lambda t: (slice(None), t([True, False, True])),
        "mask_2d": lambda t: (t([[True, False, True]] * 4),),
        "mask_and_index": lambda t: (t([True, False, True, False]), t([0, 2])),
        "negative": lambda t: (t([-1, -4]),),
        "slice_and_index": lambda t: (slice(1, 3), t([2]), slice(None, None, 2)),
        "int_and_index": lambda t: (2, t([0, 1, 1])),
        "empty": lambda t: (t([]).long(),),
        "zero_dim": lambda t: (t(2), t([1])),
    }


@pytest.mark.parametrize("where", ["device", "cpu"])
@pytest.mark.parametrize("name", _selections())
def test_index(name: str, where: str) -> None:
    """Case 26: reading with an index on the device or on the CPU, with None slots; and its gradient."""

    def program(device: Any) -> Any:
        x = torch.arange(60.0).view(4, 3, 5).to(device).requires_grad_()
        on = device if where == "device" else "cpu"
        index = _selections()[name](lambda values: torch.tensor(values, device=on))
        y = x[index]
        (y * torch.arange(float(y.numel())).view(y.shape).to(device)).sum().backward()
        return y, x.grad

    agree(program)


@pytest.mark.parametrize("where", ["device", "cpu"])
@pytest.mark.parametrize("name", _selections())
def test_index_put(name: str, where: str) -> None:
    """Case 26: writing there: a number, a tensor that broadcasts, accumulating; into a strided view as well."""

    def program(device: Any) -> Any:
        on = device if where == "device" else "cpu"
        index = _selections()[name](lambda values: torch.tensor(values, device=on))
        results = []
        for dtype in (torch.float32, torch.int64):
            x = torch.arange(60).view(4, 3, 5).to(device, dtype)
            x[index] = 7
            results.append(x.clone())
            shape = x[index].shape
            x[index] = torch.arange(int(torch.Size(shape).numel())).view(shape).to(device, dtype)
            results.append(x.clone())
            x[index] = torch.tensor(3, dtype=dtype)  # from the CPU, 0-dim
            results.append(x.clone())
            if None not in index and not any(isinstance(i, slice | int) or i is ... for i in index):
                x.index_put_(index, torch.ones((), dtype=dtype, device=device), accumulate=True)
                results.append(x.clone())
            base = torch.zeros(5, 3, 4, dtype=dtype, device=device)
            base.permute(2, 1, 0)[index] = 5
            results.append(base)
        return results

    agree(program)


def test_index_out_of_range_is_refused() -> None:
    """Nothing is read or written beyond a tensor, and later calls work."""
    for program in (
        lambda d: torch.arange(4.0, device=d).index_select(0, torch.tensor([4], device=d)),
        lambda d: torch.arange(4.0, device=d).gather(0, torch.tensor([7], device=d)),
        lambda d: torch.arange(4.0, device=d)[torch.tensor([4], device=d)],
        lambda d: F.embedding(torch.tensor([3], device=d), torch.ones(3, 2, device=d)),
        lambda d: F.nll_loss(torch.zeros(2, 3, device=d), torch.tensor([0, 3], device=d)),
        lambda d: torch.arange(4.0, device=d).index_fill(0, torch.tensor([9], device=d), 1),
    ):
        with pytest.raises((IndexError, RuntimeError)):
            program(DEVICE).cpu()
        assert (torch.ones(2, device=DEVICE) + 1).tolist() == [2, 2]


@pytest.mark.parametrize(
    "program",
    [
        lambda d: torch.arange(4.0, device=d).index_select(0, torch.tensor([-1], device=d)),
        lambda d: torch.arange(4.0, device=d).gather(0, torch.tensor([-1], device=d)),
        lambda d: F.embedding(torch.tensor([-1], device=d), torch.ones(3, 2, device=d)),
    ],
    ids=["index_select", "gather", "embedding"],
)
def test_negative_index_is_refused(program: Callable[[Any], Any]) -> None:
    """These operators take no index from the end: a -1 for padding must not read the last row in silence."""
    agree(program)


def test_deterministic_accumulation() -> None:
    """Case 25: the same bits twice."""
    torch.use_deterministic_algorithms(True)
    try:
        values = torch.rand(1000).to(DEVICE)
        index = torch.randint(0, 5, (1000,)).to(DEVICE)
        results = [torch.zeros(5, device=DEVICE).index_put_((index,), values, accumulate=True).cpu() for _ in range(3)]
        assert torch.equal(results[0], results[1])
        assert torch.equal(results[0], results[2])
    finally:
        torch.use_deterministic_algorithms(False)


# ------------------------------------------------------------------------------------------------ sizes


def test_no_elements() -> None:
    """Case 15."""

    def program(device: Any) -> Any:
        z = torch.zeros((1, 0, 3), device=device)
        w = torch.zeros(10, 0, device=device, requires_grad=True)
        e = F.embedding(torch.tensor([1, 2], device=device), w)
        e.sum().backward()
        renormed = F.embedding(torch.tensor([1, 2], device=device), torch.empty(20, 0, device=device), max_norm=1.0)
        return (
            z, z + 1, z.sum(), z.sum(1), z.prod(2), z.mean(1), z.exp(), z.t() if z.dim() < 3 else z.mT, e, w.grad, renormed,
            z.amax(2), z.any(), z.all(), z.argmax(2), torch.cat([z, z]), z.cumsum(1), F.softmax(z, 1), z @ z.mT, z.clone(),
            z.to(torch.float16), z.contiguous(), torch.stack([z, z]), z.view(-1), F.relu(z), z.sort(-1), z.unique(),
            F.layer_norm(torch.zeros(0, 4, device=device), (4,)), F.linear(torch.zeros(0, 3, device=device), torch.ones(2, 3, device=device)),
            F.batch_norm(torch.zeros(0, 3, device=device), torch.zeros(3, device=device), torch.ones(3, device=device)),
            F.max_pool2d(torch.zeros(0, 3, 4, 4, device=device), 2), F.avg_pool2d(torch.zeros(0, 3, 4, 4, device=device), 2),
            F.conv2d(torch.zeros(0, 3, 4, 4, device=device), torch.ones(2, 3, 3, 3, device=device)),
        )  # fmt: skip

    agree(program)


@pytest.mark.parametrize(
    "program",
    [
        lambda d: torch.zeros(0, 3, device=d).max(),
        lambda d: torch.zeros(0, 3, device=d).max(0),
        lambda d: torch.zeros(0, 3, device=d).amax(0),
        lambda d: torch.zeros(0, 3, device=d).argmin(0),
        lambda d: torch.zeros(0, 3, device=d).argmin(),
        lambda d: torch.zeros(0, 3, device=d).min(1),
        lambda d: F.nll_loss(torch.zeros(0, 3, device=d), torch.zeros(0, dtype=torch.int64, device=d)),
        lambda d: F.nll_loss(torch.zeros(0, 3, device=d), torch.zeros(0, dtype=torch.int64, device=d), reduction="sum"),
        lambda d: torch.ones(2, 3, device=d) @ torch.ones(4, 2, device=d),
        lambda d: torch.ones(2, 3, device=d) + torch.ones(4, device=d),
        lambda d: F.conv2d(torch.ones(1, 3, 4, 4, device=d), torch.ones(2, 4, 3, 3, device=d)),
        lambda d: F.conv2d(torch.ones(1, 3, 2, 2, device=d), torch.ones(2, 3, 3, 3, device=d)),
        lambda d: torch.ones(2, 3, device=d).sum(2),
        lambda d: torch.ones(2, 3, device=d).softmax(2),
        lambda d: torch.mm(torch.ones(2, 3, device=d), torch.ones(3, 2, device=d).long()),
        lambda d: torch.ones(2, 3, device=d).mean(dtype=torch.int64),
        lambda d: torch.ones(3, dtype=torch.int64, device=d).mean(),
        lambda d: torch.ones(2, 3, device=d).gather(0, torch.zeros(1, 4, dtype=torch.int64, device=d)),
        lambda d: torch.ones(2, 3, device=d).gather(0, torch.zeros(1, 2, device=d)),
        lambda d: torch.ones(2, 3, device=d).masked_fill(torch.ones(3, device=d), 1),
        lambda d: torch.where(torch.ones(3, device=d), 1, 2),
        lambda d: F.cross_entropy(torch.ones(2, 3, device=d), torch.ones(2, device=d)),
        lambda d: F.max_pool2d(torch.ones(1, 1, 2, 2, device=d), 5),
        lambda d: F.batch_norm(torch.ones(1, 3, device=d), None, None, training=True),
        lambda d: torch.ones(3, device=d).bitwise_and(torch.ones(3, device=d)),
        lambda d: ~torch.ones(3, device=d),
        lambda d: torch.ones(3, device=d).item(),
        lambda d: torch.arange(5, 1, device=d),
        lambda d: torch.ones(2, device=d).view(3),
        lambda d: torch.ones(2, 0, device=d).argmax(1),
    ],
    ids=lambda program: f"line{program.__code__.co_firstlineno}",
)  # fmt: skip
def test_errors_are_those_of_the_cpu(program: Callable[[Any], Any]) -> None:
    """Case 16: a call that the CPU refuses is refused, not computed somehow."""
    agree(program)


def test_empty_inputs_of_unmapped_operators() -> None:
    """Case 16."""

    def program(device: Any) -> Any:
        layer = nn.utils.parametrizations.weight_norm(nn.Linear(0, 3)).to(device)
        return (
            torch.cummax(torch.empty(0, 3, device=device), 0),
            torch.zeros(0, 3, device=device).index_copy(0, torch.empty(0, dtype=torch.int64, device=device), torch.empty(0, 3, device=device)),
            layer(torch.ones(2, 0, device=device)).shape,
            torch.empty(0, device=device).sort(),
            torch.empty(0, 2, device=device).nonzero(),
        )  # fmt: skip

    agree(program)


def test_bool_from_bytes() -> None:
    """Case 17: any byte but 0 is True, and counts once."""

    def program(device: Any) -> Any:
        b = torch.tensor([7, 0], dtype=torch.uint8).view(torch.bool).to(device)
        base = torch.zeros(2, dtype=torch.int64, device=device)
        return (
            b, b.sum(), torch.where(b, 1, 2), b.to(torch.int32), b.float(), b & True, ~b, b | b, b.any(), b.all(), b == True,  # noqa: E712
            base.index_add(0, torch.tensor([0, 1], device=device), b.long()), torch.ones(2, device=device).masked_fill(b, 5),
            b.logical_not(), b.to(torch.float16), b * 3, b + b.long(), torch.tensor([1.0, 2.0], device=device)[b],
            b.max(), b.clone(), torch.cat([b, b]).long(),
        )  # fmt: skip

    agree(program)


def test_sums_of_small_integers_are_int64() -> None:
    """Case 17."""
    total = torch.tensor([250, 10], dtype=torch.uint8, device=DEVICE).sum()
    assert total.item() == 260
    assert total.dtype == torch.int64
    for dtype in (torch.int8, torch.int16, torch.int32, torch.bool):
        agree(lambda d, t=dtype: (torch.full((300,), 100, device=d).to(t).sum(), torch.ones(9, device=d).to(t).prod()))


def test_whole_equals_its_slices() -> None:
    """Case 18: a product and a reduction over many elements, in parts that no index limit divides evenly."""
    x = torch.arange(1 << 20, device=DEVICE) % 1009
    parts = sum(part.sum().item() for part in x.split(99991))
    assert x.sum().item() == parts
    a, b = sample((1030, 40), torch.float32).to(DEVICE), sample((40, 20), torch.float32, seed=1).to(DEVICE)
    whole = a @ b
    torch.testing.assert_close(whole, torch.cat([part @ b for part in a.split(129)]), rtol=1e-5, atol=1e-5)


def test_large_upsample() -> None:
    """Case 19: 2^22 elements from 4."""

    def program(device: Any) -> Any:
        return F.interpolate(torch.arange(4.0, device=device).view(1, 1, 2, 2), scale_factor=1024, mode="nearest")

    agree(program)


def test_int64_is_on_the_device() -> None:
    """Case 20."""
    x = torch.ones(3, dtype=torch.int64).to(DEVICE)
    assert x.device == torch.device(DEVICE)
    assert x.dtype == torch.int64
    assert (x + x).device == torch.device(DEVICE)


def test_new_lands_on_the_device() -> None:
    """Case 21."""
    t = torch.ones(2, dtype=torch.int32, device=DEVICE)
    for made in (
        t.new(3).fill_(0),
        t.new_zeros(3),
        t.new_full((3,), 0),
        t.new_tensor([0, 0, 0]),
        t.new_empty(3).zero_(),
    ):
        assert made.device == torch.device(DEVICE)
        assert made.tolist() == [0, 0, 0]
        assert made.dtype == torch.int32


def test_repr() -> None:
    """Case 22."""
    for tensor in (
        torch.tensor([1.0, torch.inf, -torch.inf, torch.nan]),
        torch.tensor([]),
        torch.zeros(0, 3),
        torch.tensor([1 + 2j, 3.5 - 1j]),
        torch.tensor([1, -2, 300]),
        torch.tensor([True, False]),
        torch.tensor(3.25),
        torch.arange(2000.0),
        torch.tensor([1e-8, 1e8]),
        torch.ones(2, 2, dtype=torch.float16),
        torch.ones(2, requires_grad=True),
    ):
        text = repr(tensor.to(DEVICE).detach().requires_grad_(tensor.requires_grad))
        assert "".join(text.split()).replace(f",device='{DEVICE}'", "") == "".join(repr(tensor).split())


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8,
                                    torch.int16, torch.int32, torch.int64, torch.bool, torch.complex64], ids=str)  # fmt: skip
def test_copies_between_dtypes(source: torch.dtype) -> None:
    """Case 23: CPU to device, device to CPU, on the device; contiguous and strided."""
    values = sample((4, 6), source, 0, 9)
    for target in (torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16,
                   torch.int32, torch.int64, torch.bool, torch.complex64):  # fmt: skip
        if source.is_complex and not target.is_complex:
            continue  # discards the imaginary part, with a warning
        right = values.to(target)
        x = values.to(DEVICE)
        for view, expected in ((x, right), (x.t(), right.t()), (x[:, ::2], right[:, ::2]), (x[1:, 1:], right[1:, 1:])):
            down = torch.empty(expected.shape, dtype=target)
            down.copy_(view)
            across = torch.empty(expected.shape, dtype=target, device=DEVICE)
            across.copy_(view)
            strided = torch.zeros((*expected.shape, 2), dtype=target, device=DEVICE)
            strided[..., 1].copy_(view)
            up = torch.empty(expected.shape, dtype=target, device=DEVICE).copy_(view.cpu())
            for name, got in (
                ("down", down),
                ("across", across),
                ("strided", strided[..., 1]),
                ("up", up),
                ("to", view.to(target)),
            ):
                assert got.dtype == target
                assert torch.equal(got.cpu(), expected), f"{source} to {target}, {name}"
            assert not strided[..., 0].any().item()


def test_isclose_in_bfloat16() -> None:
    """Case 23."""
    agree(
        lambda d: torch.isclose(
            torch.tensor([1.0, 2.0, torch.nan], device=d).bfloat16(),
            torch.tensor([1.0, 2.1, torch.nan], device=d).bfloat16(),
            equal_nan=True,
        )
    )


# ------------------------------------------------------------------------------------------------ tensors from elsewhere


def test_zero_dim_tensors_from_both_sides() -> None:
    """Case 44."""
    for made in (
        torch.tensor([torch.tensor(1.0), torch.tensor(2.0)]),
        torch.stack([torch.ones((), device=DEVICE)] * 2),
    ):
        assert made.shape == (2,)
    on = torch.tensor([torch.ones((), device=DEVICE), torch.zeros((), device=DEVICE)])
    assert on.tolist() == [1.0, 0.0]


def test_cpu_tensor_beside_a_device_tensor_is_refused() -> None:
    """As users of torch.cuda know it: only a 0-dim CPU tensor may mix, everything else would hide a copy."""
    x = torch.ones(3, device=DEVICE)
    for program in (
        lambda: x + torch.ones(3),
        lambda: torch.mm(x.view(1, 3), torch.ones(3, 1)),
        lambda: torch.hypot(x, torch.ones(3)),
        lambda: F.linear(x.view(1, 3), torch.ones(2, 3)),
        lambda: x.add_(torch.ones(3)),
    ):
        with pytest.raises(RuntimeError, match="same device"):
            program()
    assert (x + torch.tensor(2.0)).tolist() == [3, 3, 3]
    assert (torch.tensor(2.0) * x).device == x.device


def test_in_place_does_not_re_enter_itself() -> None:
    """Case 27."""

    def program(device: Any) -> Any:
        x = torch.arange(1.0, 5.0, device=device)
        x.mul_(2.0)
        q = x[1:]
        q *= 3
        q **= 2
        q -= torch.tensor(1.0)
        q /= 2
        x.erfinv_().nan_to_num_(0.5).cumsum_(0)
        x.clamp_(0, 1).logical_not_()
        y = torch.arange(4, device=device)
        y += 1
        y //= 2
        y <<= 2
        y ^= 5
        return x, y

    agree(program)


def test_one_line_for_each_operator_and_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Case 29: a thousand calls of an operator without a kernel, one warning."""
    logging.getLogger("torchfl").setLevel(logging.WARNING)
    with caplog.at_level(logging.WARNING, logger="torchfl"):
        for n in range(1000):
            torch.linalg.eigvalsh(torch.eye(n % 3 + 1).to(DEVICE))
    lines = [r.getMessage() for r in caplog.records if "eigh" in r.getMessage()]
    assert len(lines) == 1, lines
    assert "no kernel" in lines[0]


def test_operators_leave_the_current_device() -> None:
    """Case 45."""
    before = torch.npu_v3.current_device()
    x = torch.ones(3, device=DEVICE)
    _ = (x + 1, x.cumsum(0), x.to("cpu"), torch.arange(3, device=DEVICE))
    assert torch.npu_v3.current_device() == before


def test_every_dtype_can_be_stored() -> None:
    """Case 20: also those that the chip does not compute in."""
    for dtype, make in itertools.product(DTYPES, (torch.zeros, torch.ones, lambda n, **k: torch.full((n,), 1, **k))):
        x = make(3, dtype=dtype, device=DEVICE)
        assert x.device == torch.device(DEVICE)
        assert torch.equal(x.cpu(), make(3, dtype=dtype))


def test_fallback_bytes_are_counted() -> None:
    """What crosses the host boundary is in the statistics."""
    x = torch.eye(10).to(DEVICE)
    with watch() as rows:
        torch.linalg.svdvals(x)
    (row,) = rows.of("aten::_linalg_svd")
    assert row["path"] == "cpu"
    assert row["host_bytes"] == 440  # the matrix, and ten values
