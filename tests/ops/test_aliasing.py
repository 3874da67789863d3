"""Views share memory: on the chip, on the CPU route, in place, through any alias. What the CPU does is right."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from ops_support import DEVICE, agree, watch
from torch import nn


def _views() -> dict[str, Callable[[torch.Tensor], Any]]:
    """Every way to look at a (4, 6) tensor without copying it."""
    return {
        "split": lambda x: x.split(2)[1],
        "chunk": lambda x: x.chunk(3, 1)[2],
        "tensor_split": lambda x: x.tensor_split(3)[0],
        "unbind": lambda x: x.unbind(1)[4],
        "narrow": lambda x: x.narrow(1, 2, 3),
        "select": lambda x: x.select(0, 3),
        "slice": lambda x: x[1:, ::2],
        "transpose": lambda x: x.t(),
        "permute": lambda x: x.view(4, 2, 3).permute(2, 0, 1),
        "view": lambda x: x.view(2, 12),
        "reshape": lambda x: x.reshape(-1),
        "flatten": lambda x: x.flatten(),
        "unsqueeze": lambda x: x.unsqueeze(1),
        "squeeze": lambda x: x.view(4, 1, 6).squeeze(1),
        "unfold": lambda x: x.unfold(1, 2, 2),
        "as_strided": lambda x: x.as_strided((3, 3), (6, 1), 4),
        "diagonal": lambda x: x.diagonal(1),
        "movedim": lambda x: x.view(2, 2, 6).movedim(0, 2),
        "unflatten": lambda x: x.unflatten(1, (2, 3)),
        "view_dtype": lambda x: x.view(torch.int32),
        "detach": lambda x: x.detach(),
        "real": lambda x: torch.view_as_complex(x.view(4, 3, 2)).real,
        "imag": lambda x: torch.view_as_complex(x.view(4, 3, 2)).imag,
        "hsplit": lambda x: x.hsplit(2)[1],
        "view_as": lambda x: x.view_as(torch.empty(8, 3)),
        "swapaxes": lambda x: x.swapaxes(0, 1),
        "alias": lambda x: torch.ops.aten.alias(x),
    }


@pytest.mark.parametrize("name", _views())
def test_view_aliases_its_base(name: str) -> None:
    """Cases 1 and 2: a write through the base is seen in the view and the other way round, natively and on the CPU
    route."""

    def program(device: Any) -> Any:
        results = []
        # zero_ and add_ run on the chip, cumsum_ and erfinv_ on the CPU.
        for write in (lambda t: t.zero_(), lambda t: t.add_(1), lambda t: t.cumsum_(0), lambda t: t.fill_(2)):
            base = torch.arange(24.0, device=device).view(4, 6)
            view = _views()[name](base)
            write(base)
            results.append(view.clone())
            base = torch.arange(24.0, device=device).view(4, 6)
            view = _views()[name](base)
            write(view)
            results += [base.clone(), view.clone()]
        return results

    agree(program)


def test_pieces_of_split() -> None:
    """Case 1."""
    a = torch.arange(4, device=DEVICE)
    b, c = a.split(2)
    a[0] = -1
    assert b.tolist() == [-1, 1]
    c.zero_()
    assert a.tolist() == [-1, 1, 0, 0]


def test_no_view_is_stale() -> None:
    """Case 2: whichever alias wrote last, all of them see it."""
    base = torch.arange(6.0, device=DEVICE)
    views = [base, base.view(2, 3), base.view(2, 3).t(), base[::2], base.detach(), base.as_strided((6,), (1,))]
    for i, view in enumerate(views):
        view.fill_(i)
        expected = base.tolist()
        assert views[1].flatten().tolist() == expected
        assert views[2].t().flatten().tolist() == expected
        assert views[3].tolist() == expected[::2]
        base.copy_(torch.arange(6.0))
        assert views[2][2, 1].item() == 5


def test_repeat_is_a_copy() -> None:
    """Case 3."""
    agree(lambda d: (lambda x: (x.repeat(2, 2).zero_(), x))(torch.arange(3.0, device=d)))


def test_unfold_writes_through() -> None:
    """Case 3: `unfold` by copying would leave the base as it was."""
    x = torch.arange(6.0, device=DEVICE)
    x.unfold(0, 2, 2).zero_()
    assert x.tolist() == [0.0] * 6
    x = torch.arange(7.0, device=DEVICE)
    x.unfold(0, 2, 3).zero_()
    assert x.tolist() == [0, 0, 2, 0, 0, 5, 6]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_views(dtype: torch.dtype) -> None:
    """Case 4."""
    z = torch.ones(4, dtype=dtype, device=DEVICE)
    z.real.zero_()
    assert z.cpu().tolist() == [0j] * 4
    z.imag.fill_(3)
    assert z.cpu().tolist() == [3j] * 4
    torch.view_as_real(z).zero_()
    assert z.cpu().tolist() == [0j] * 4


def test_conjugates_are_views() -> None:
    """Cases 4 and 43: the lazy bits survive views and copies."""

    def program(device: Any) -> Any:
        z = torch.tensor([1 + 2j, 3 - 1j]).to(device)
        lazy = z.conj()
        lazy.mul_(2j)
        w = torch.tensor([1 + 2j, 3 - 1j]).conj().to(device)
        return z, lazy.resolve_conj(), w.resolve_conj(), lazy.imag, z.conj()[1:].resolve_conj(), z.conj().imag.abs()

    agree(program)


def test_scalar_reads_at_an_offset() -> None:
    """Case 5."""
    for dtype in (torch.float32, torch.float16, torch.int64, torch.bool, torch.float64, torch.int8):
        x = torch.arange(10, device=DEVICE).to(dtype)
        right = torch.arange(10).to(dtype)
        assert [x[i].item() for i in range(10)] == [right[i].item() for i in range(10)]


def test_contiguous_inside_its_storage() -> None:
    """Case 6: alignment is of the address, not of the storage."""

    def program(device: Any) -> Any:
        x = torch.arange(8.0, device=device)
        y = torch.arange(1000.0, device=device)
        return (
            x[3:] + 1,
            x[3:].exp(),
            x[1:].view(7, 1) @ x[:1].view(1, 1),
            y[129:].sum(),
            y[64:].sum(),
            y[1:].add_(1),
            y,
        )

    agree(program, ulps=4)


@pytest.mark.parametrize("layout", ["strided", "expanded", "offset"])
def test_index_tensor_that_is_not_contiguous(layout: str) -> None:
    """Case 7: forward and backward."""

    def index(device: Any, values: list[list[int]]) -> torch.Tensor:
        whole = torch.tensor(values, device=device)
        if layout == "strided":
            return torch.stack([whole, whole + 100], -1).flatten(-2)[..., ::2]
        if layout == "expanded":
            return whole[:1].expand_as(whole)
        return torch.cat([whole.flatten()[:1], whole.flatten()])[1:].view(whole.shape)

    def program(device: Any) -> Any:
        x = (torch.arange(12.0).view(3, 4) / 7).to(device).requires_grad_()
        i = index(device, [[0, 2, 1, 0], [2, 2, 0, 1]])
        gathered = x.gather(0, i)
        selected = x.index_select(0, i[0])
        indexed = x[i[1], i[0]]
        embedded = F.embedding(i, x)
        total = (gathered**2).sum() + (selected**3).sum() + (indexed**2).sum() + (embedded**2).sum()
        total.backward()
        return gathered, selected, indexed, embedded, x.grad, x.detach().scatter(0, i, 5.0), x.detach().take(i)

    agree(program, ulps=8)


def test_pool_indices_in_channels_last() -> None:
    """Case 7."""

    def program(device: Any) -> Any:
        x = torch.arange(2 * 3 * 4 * 4 * 4.0).sin().view(2, 3, 4, 4, 4).to(device)
        x = x.contiguous(memory_format=torch.channels_last_3d).requires_grad_()
        y, where = F.adaptive_max_pool3d(x, 2, return_indices=True)
        (y * y).sum().backward()
        z = x.detach()[:, :, 0].contiguous(memory_format=torch.channels_last).requires_grad_()
        p, at = F.max_pool2d(z, 2, return_indices=True)
        (p * p).sum().backward()
        return y, where, x.grad, p, at, z.grad, F.max_unpool2d(p.detach(), at, 2)

    agree(program, ulps=4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("shape", [(64, 48), (96, 33), (512, 256)])
def test_equal_rows_give_equal_results(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    """Case 8: bit for bit, also with a transposed weight."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(shape, generator=generator).to(DEVICE, dtype)
    row = torch.randn(shape[0], generator=generator).to(DEVICE, dtype)
    many = F.linear(row.expand(70, -1), weight.t())
    assert (many == many[0]).all().item()
    again = F.linear(row.expand(70, -1).contiguous(), weight.t())
    assert torch.equal(many.cpu(), again.cpu())
    straight = F.linear(row.expand(70, -1), weight.t().contiguous())
    assert (straight == straight[0]).all().item()


def test_linear_on_strided_activation() -> None:
    """Case 9: three dimensions, strided input, strided gradient."""

    def program(device: Any) -> Any:
        torch.manual_seed(0)
        layer = nn.Linear(6, 5)
        x = torch.randn(4, 6, 3)
        g = torch.randn(5, 4, 3)
        layer, x, g = layer.to(device), x.to(device).transpose(1, 2).requires_grad_(), g.to(device).permute(1, 2, 0)
        y = layer(x)
        y.backward(g)
        return y, x.grad, layer.weight.grad, layer.bias.grad

    agree(program, ulps=16)


@pytest.mark.parametrize("mapped", [False, True])
def test_group_norm_on_channels_last(mapped: bool) -> None:
    """Case 10: plain and under vmap, with the gradient."""

    def program(device: Any) -> Any:
        torch.manual_seed(0)
        layer = nn.GroupNorm(2, 4).to(device)
        x = torch.randn(3, 2, 4, 5, 5).to(device)
        if mapped:
            return torch.vmap(layer)(x)
        y = x[0].contiguous(memory_format=torch.channels_last).requires_grad_()
        z = layer(y)
        (z**2).sum().backward()
        return z, y.grad, layer.weight.grad

    agree(program, ulps=64)


def test_one_element_of_a_view() -> None:
    """Case 11."""

    def program(device: Any) -> Any:
        w = torch.zeros(2, 2, 2, 2, device=device)
        w[0, 1, 0, 0] = 3
        w.permute(3, 2, 1, 0)[1, 0, 1, 0] += 2
        w[1, :, 0, 1].mul_(4).sub_(1)
        w[..., 0].select(0, 0).select(0, 1)[1] = -7
        return w

    agree(program)


def test_broadcasting_an_expanded_operand() -> None:
    """Case 12: on the chip and on the CPU route."""

    def program(device: Any) -> Any:
        a, b = torch.full((1, 3, 128), 2.0, device=device), torch.ones(1, 1, 128, device=device)
        e = torch.arange(3.0, device=device).view(3, 1).expand(3, 4)
        return (
            a * b,
            a + b.expand(2, 3, 128),
            e + e.t()[:3, :3].sum(),
            torch.special.i0(e),
            e.cumsum(1),
            torch.hypot(e, e),
        )

    agree(program, ulps=8)


def test_no_private_layout_is_seen() -> None:
    """Case 13: strides, printing, saving and views tell one story, whatever layout the chip computes in."""
    torch.manual_seed(0)
    x = torch.randn(2, 3, 5, 5)
    layer = nn.Conv2d(3, 4, 3, padding=1)
    right, got = layer(x), copy.deepcopy(layer).to(DEVICE)(x.to(DEVICE))
    assert got.stride() == right.stride()
    torch.testing.assert_close(got.cpu(), right, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(got.flatten().cpu(), got.cpu().flatten(), rtol=0, atol=0)
    torch.testing.assert_close((got.view(2, -1) + 0).cpu(), got.cpu().view(2, -1), rtol=0, atol=0)
    buffer = io.BytesIO()
    torch.save(got, buffer)
    buffer.seek(0)
    saved = torch.load(buffer, map_location="cpu")
    torch.testing.assert_close(saved, got.detach().cpu(), rtol=0, atol=0)
    printed, on_host = repr(got.detach()[0, 0]), repr(got.detach().cpu()[0, 0])
    assert "".join(printed.split()).replace(",device='npu_v3:0'", "") == "".join(on_host.split())


def test_nothing_is_read_beyond_a_storage() -> None:
    """Case 14: a view of one element a hundred times, resized; a resize that keeps what was there."""

    def program(device: Any) -> Any:
        x = torch.tensor([3.0], device=device)
        view = x.as_strided((100,), (0,))
        total, copied = view.sum(), view.clone()
        view.resize_(50)
        kept = torch.arange(4.0, device=device)
        kept.resize_(2, 3)
        return total, copied, list(view.shape), kept.flatten()[:4], list(kept.shape)

    agree(program)
    with pytest.raises(RuntimeError, match="storage"):
        torch.ones(4, device=DEVICE).as_strided((5,), (1,)).cpu()


# ------------------------------------------------------------------------------------------------ written back


def test_cpu_route_writes_back_through_views_of_one_storage() -> None:
    """Case 27: an in-place operator without a kernel, whose arguments share a storage, in every arrangement."""

    def program(device: Any) -> Any:
        results = []
        base = torch.arange(12.0, device=device).view(3, 4)
        base[1].cumsum_(0)
        results.append(base.clone())
        base[:, 1:3].cumprod_(0)
        results.append(base.clone())
        base.t()[2:].copysign_(torch.tensor(-1.0, device=device))
        results.append(base.clone())
        # One argument written, another read, both views of one storage.
        base[0].index_copy_(0, torch.tensor([0, 3], device=device), base[2, :2])
        results.append(base.clone())
        base[0].index_add_(0, torch.tensor([1, 1], device=device), base[1, 1:3])
        results.append(base.clone())
        base.hypot_(base.flip(0))
        results.append(base.clone())
        base[:2].lerp_(base[1:].clone(), 0.5)
        results.append(base.clone())
        base.fill_diagonal_(9)
        results.append(base.clone())
        base.transpose_(0, 1)
        results.append(base.clone())
        return results

    with watch() as rows:
        agree(program, ulps=8)
    assert rows.count("cpu") + rows.count("composed") > 0


def test_cpu_route_returns_the_callers_tensor() -> None:
    """What an in-place or out= operator returns is the argument itself, also without a kernel."""
    x = torch.rand(4, device=DEVICE)
    assert x.erfinv_() is x
    out = torch.empty(0, device=DEVICE)
    assert torch.cumsum(x, 0, out=out) is out
    assert out.shape == (4,)
    values, indices = torch.empty(0, device=DEVICE), torch.empty(0, dtype=torch.int64, device=DEVICE)
    result = torch.sort(torch.tensor([3.0, 1.0], device=DEVICE), out=(values, indices))
    assert result[0] is values
    assert indices.tolist() == [1, 0]


def test_out_with_gaps_on_the_cpu_route() -> None:
    """Only the elements of a strided out= are written."""

    def program(device: Any) -> Any:
        whole = torch.zeros(4, 6, device=device)
        torch.cumsum(torch.ones(4, 3, device=device), 0, out=whole[:, ::2])
        torch.cumsum(torch.ones(3, 2, device=device), 0, out=whole[1:, 1:5:2])
        return whole

    agree(program)


def test_foreach_in_place_through_views() -> None:
    """A list of written tensors that are views of one storage."""

    def program(device: Any) -> Any:
        base = torch.arange(12.0, device=device)
        parts = [base[:4], base[4:8], base[8:]]
        torch._foreach_add_(parts, 1.0)
        torch._foreach_mul_(parts, [1.0, 2.0, 3.0])
        torch._foreach_sqrt_(parts)
        torch._foreach_addcdiv_(parts, parts, [p + 1 for p in parts], value=0.5)
        torch._foreach_lerp_(parts, [p * 2 for p in parts], 0.1)
        norms = torch._foreach_norm(parts)
        return base, norms

    agree(program, ulps=8)


# ------------------------------------------------------------------------------------------------ batch norm statistics


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("route", ["native", "cpu", "offset"])
def test_running_statistics(route: str, half: bool) -> None:
    """Case 27: batch norm updates its running statistics, which its schema does not say, on every path."""
    kinds = {"native": nn.BatchNorm2d, "cpu": nn.BatchNorm2d, "offset": nn.BatchNorm2d}

    def program(device: Any) -> Any:
        torch.manual_seed(0)
        layer = kinds[route](3, momentum=0.3)
        x = torch.randn(4, 3, 5, 5)
        if route == "cpu":  # float64 is not a dtype of the kernel
            layer, x = layer.double(), x.double()
        layer, x = layer.to(device), x.to(device)
        if route == "offset":  # the statistics are parts of one buffer, as in a flattened module
            flat = torch.zeros(7, device=device)
            flat[4:] = 1
            layer._buffers["running_mean"], layer._buffers["running_var"] = flat[1:4], flat[4:]
        if half and route != "cpu":
            x = x.bfloat16()
        for _ in range(3):
            y = layer(x)
        layer.eval()
        z = layer(x)
        return y, z, layer.running_mean, layer.running_var, layer.num_batches_tracked

    with watch() as rows:
        agree(program, ulps=16 if not half else 2)
    paths = {row["path"] for row in rows.of("aten::native_batch_norm")}
    if route == "native":
        assert paths == {"native"}
    if route == "cpu":
        assert "native" not in paths


def test_buffers_shared_by_two_norms() -> None:
    """Two layers with one buffer: each sees what the other wrote."""

    def program(device: Any) -> Any:
        torch.manual_seed(0)
        first, second = nn.BatchNorm1d(3).to(device), nn.BatchNorm1d(3).to(device)
        second._buffers["running_mean"] = first.running_mean
        x = torch.randn(8, 3).to(device)
        return second(first(x)), first.running_mean, second.running_mean, second.running_var

    agree(program, ulps=16)
