"""Cases 1 to 14: views alias their base, strides and offsets are respected, layouts stay private."""

import copy
import io

import pytest
import torch
from cases_support import EveryChip, same
from torch.nn import functional as F

case = EveryChip("aliasing")


@case
def test_case_01_pieces_of_split_alias_the_base(d):
    a = torch.arange(4, device=d)
    b, c = torch.split(a, 2)
    a[0] = -1
    assert b.tolist() == [-1, 1] and c.tolist() == [2, 3]
    c.fill_(7)
    assert a.tolist() == [-1, 1, 7, 7]
    for cut in (
        lambda x: x.chunk(2), lambda x: x.tensor_split(2), lambda x: torch.hsplit(x, 2), lambda x: x.unbind(),
        lambda x: (x[:2], x[2:]), lambda x: x.split_with_sizes([2, 2]), lambda x: x.view(2, 2).unbind(0),
    ):  # fmt: skip
        x = torch.arange(4.0, device=d)
        pieces = cut(x)
        x += 10
        pieces[-1].mul_(2)
        assert torch.cat([p.reshape(-1) for p in pieces]).tolist() == x.tolist(), cut
        assert x[0].item() == 10 and x[3].item() == 26


@case
def test_case_02_a_view_is_fresh_after_its_base_changed_through_any_alias(d):
    base = torch.arange(12.0, device=d).view(3, 4)
    view, turned, diagonal = base[1:, ::2], base.t(), base.diagonal()
    handed = torch.from_dlpack(base)
    assert handed.device == d and handed.data_ptr() == base.data_ptr()
    handed.add_(100)  # through the DLPack alias
    assert view.tolist() == [[104, 106], [108, 110]] and turned[0].tolist() == [100, 104, 108]
    view.zero_()  # through a view
    assert base[1].tolist() == [0, 105, 0, 107] and handed[1].tolist() == [0, 105, 0, 107]
    diagonal.copy_(torch.tensor([1.0, 2.0, 3.0]))  # through a strided view, from the host
    assert handed[0, 0].item() == 1 and turned[1, 1].item() == 2 and base[2, 2].item() == 3
    base[:] = base @ torch.eye(4, device=d) + 1  # by a program or kernel of the chip
    assert handed[0].tolist() == [2, 102, 103, 104] and turned[3].tolist() == [104, 108, 112]
    again = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(base[1:, 1:]))
    again.neg_()
    assert base[1, 2].item() == -1 and base[2, 1].item() == -110 and base[0, 1].item() == 102


@case
def test_case_03_unfold_and_repeat_write_and_read_their_own_memory(d):
    x = torch.arange(6.0, device=d)
    x.unfold(0, 2, 2).zero_()
    assert x.tolist() == [0] * 6
    y = torch.arange(3.0, device=d)
    repeated = y.repeat(2, 2)
    assert repeated.tolist() == [[0, 1, 2, 0, 1, 2]] * 2
    repeated.zero_()
    assert y.tolist() == [0, 1, 2]
    z = torch.arange(24.0, device=d).view(4, 6)
    z.unfold(1, 3, 3)[:, 1].fill_(-1)
    want = torch.arange(24.0).view(4, 6)
    want.unfold(1, 3, 3)[:, 1].fill_(-1)
    assert torch.equal(z.cpu(), want)
    same(lambda a: a.unfold(0, 3, 1).sum(1), torch.arange(10.0), d=d)  # windows that overlap can be read


@case
def test_case_04_complex_views_reach_their_base(d):
    z = torch.ones(4, dtype=torch.complex64, device=d)
    z.real.zero_()
    assert z.cpu().tolist() == [0j] * 4
    z.imag.fill_(2)
    assert z.cpu().tolist() == [2j] * 4
    torch.view_as_real(z).zero_()
    assert z.cpu().tolist() == [0j] * 4
    parts = torch.zeros(3, 2, device=d)
    torch.view_as_complex(parts).add_(1 + 2j)
    assert parts.tolist() == [[1, 2]] * 3
    assert z[1:].imag.fill_(5).data_ptr() == z.data_ptr() + 12 and z.cpu().tolist() == [0j, 5j, 5j, 5j]


@case
def test_case_05_scalars_are_read_at_their_offset(d):
    x = torch.arange(10, device=d)
    assert [x[i].item() for i in range(10)] == list(range(10))
    for dtype in (torch.float32, torch.float16, torch.int8, torch.bool, torch.float64, torch.complex64):
        want = torch.arange(10).remainder(3).to(dtype)
        y = want.to(d)
        assert [y[i].item() for i in range(10)] == want.tolist(), dtype
    assert [int(v) for v in x[3::2]] == [3, 5, 7, 9] and float(x.view(2, 5)[1, 3]) == 8


@case
def test_case_06_a_contiguous_tensor_that_starts_inside_its_storage(d):
    assert (torch.arange(8.0, device=d)[3:] + 1).tolist() == [4, 5, 6, 7, 8]
    whole = torch.randn(7, 33)
    for start in range(7):  # at every alignment
        same(lambda x, start=start: x.view(-1)[start:].mul(2).add(x.view(-1)[start:]), whole, d=d)
        same(lambda x, start=start: x[start:] @ x[start:].t(), whole, d=d, tolerance=1e-4)
    y = torch.zeros(9, device=d)
    y[4:].add_(torch.ones(5, device=d))
    torch.add(y[:3], 2, out=y[6:])
    assert y.tolist() == [0, 0, 0, 0, 1, 1, 2, 2, 2]
    with pytest.raises(RuntimeError, match="single memory location"):
        torch.add(y[:3], 2, out=y[1:4])


@case
def test_case_07_index_tensors_may_have_any_strides_forward_and_backward(d):
    torch.manual_seed(0)
    x, index = torch.randn(5, 6), torch.randint(5, (6, 8)).t()[::2]
    assert not index.is_contiguous()

    def gathered(x, index):
        x = x.detach().requires_grad_()
        out = x.gather(0, index)
        out.square().sum().backward()
        return out.detach(), x.grad

    same(gathered, x, index, d=d)

    def selected(x, index):
        x = x.detach().requires_grad_()
        out = x.index_select(1, index)
        out.square().sum().backward()
        return out.detach(), x.grad

    same(selected, x, torch.randint(6, (8,))[::2], d=d)

    def pooled(x):
        x = x.detach().requires_grad_()
        out, where = F.adaptive_max_pool3d(x, 2, return_indices=True)
        out.square().sum().backward()
        return out.detach(), where, x.grad

    volume = torch.randn(2, 3, 5, 6, 7)
    same(pooled, volume, d=d)
    same(pooled, volume.to(memory_format=torch.channels_last_3d), d=d)

    def scattered(x, index, value):
        out = x.scatter_add(0, index, value)
        out[index[:, 0], 1] = 9.0
        return out.index_add(0, index[:, 1][::2], value[:2])

    same(scattered, x, torch.randint(5, (6, 4)).t(), torch.randn(4, 6), d=d)


@case
def test_case_08_equal_rows_give_equal_results_bit_for_bit(d):
    torch.manual_seed(0)
    for rows, k, n in ((5, 64, 33), (9, 48, 16), (33, 160, 70)):
        row, weight = torch.randn(1, k, device=d), torch.randn(k, n, device=d)
        bias = torch.randn(n, device=d)
        for w in (weight.t(), weight.t().contiguous()):
            for b in (None, bias):
                out = F.linear(row.expand(rows, -1), w, b)
                assert torch.equal(out[:1].expand_as(out).cpu(), out.cpu())
                torch.testing.assert_close(
                    F.linear(row.cpu().double(), w.cpu().double(), None if b is None else b.cpu().double()),
                    out[:1].cpu().double(), rtol=1e-4, atol=1e-4,
                )  # fmt: skip


@case
def test_case_09_linear_on_strided_activations_backward_with_a_strided_gradient(d):
    torch.manual_seed(0)

    def run(x, weight, bias, grad):
        x, weight, bias = (t.detach().requires_grad_() for t in (x, weight, bias))
        out = F.linear(x.transpose(0, 1), weight, bias)
        out.backward(grad.transpose(0, 2))
        return out.detach(), x.grad, weight.grad, bias.grad

    same(run, torch.randn(4, 3, 16), torch.randn(8, 16), torch.randn(8), torch.randn(8, 4, 3), d=d, tolerance=1e-4)
    same(run, torch.randn(4, 3, 32)[:, :, ::2], torch.randn(16, 8).t(), torch.randn(16)[::2],
         torch.randn(8, 4, 3), d=d, tolerance=1e-4)  # fmt: skip


@case
def test_case_10_group_norm_on_channels_last_plain_and_under_vmap(d):
    torch.manual_seed(0)
    x, weight, bias = torch.randn(2, 6, 4, 5), torch.rand(6) + 0.5, torch.randn(6)

    def plain(x, weight, bias):
        x, weight, bias = (t.detach().requires_grad_() for t in (x, weight, bias))
        out = F.group_norm(x, 3, weight, bias)
        out.square().sum().backward()
        return out.detach().contiguous(), x.grad.contiguous(), weight.grad, bias.grad

    same(plain, x.to(memory_format=torch.channels_last), weight, bias, d=d, tolerance=1e-4)
    many = torch.randn(3, 2, 6, 4, 5)
    same(lambda x, w, b: torch.vmap(lambda one: F.group_norm(one, 3, w, b))(x).contiguous(), many, weight, bias, d=d,
         tolerance=1e-4)  # fmt: skip
    # PyTorch's vmap asks no group norm for channels_last; one over the channels in the middle it does.
    same(lambda x, w, b: torch.vmap(lambda one: F.group_norm(one.contiguous(), 2, w, b), in_dims=-1)(x).contiguous(),
         many.permute(1, 2, 3, 4, 0), weight, bias, d=d, tolerance=1e-4)  # fmt: skip


@case
def test_case_11_writing_one_element_of_a_view_of_four_dimensions(d):
    w = torch.zeros(2, 3, 4, 5, device=d)
    w[0, 1, 0, 0] = 3
    assert w.sum().item() == 3 and w.view(-1)[20].item() == 3
    w[:, 1:][0, 0, 2, 3] += 4
    w[1, 2, 3, 4].fill_(5)
    want = torch.zeros(2, 3, 4, 5)
    want[0, 1, 0, 0], want[0, 1, 2, 3], want[1, 2, 3, 4] = 3, 4, 5
    assert torch.equal(w.cpu(), want)


@case
def test_case_12_broadcasting_with_an_expanded_operand(d):
    product = torch.full((1, 3, 128), 2.0, device=d) * torch.ones(1, 1, 128, device=d)
    assert product.shape == (1, 3, 128) and bool((product == 2).all())
    one = torch.arange(128.0)
    same(lambda x: x.expand(4, 3, 128) * x.view(1, 1, 128).expand(4, 3, 128) + x[:3].view(3, 1), one, d=d)
    # by the CPU path, and on a layout that is not row-major
    same(lambda x: torch.linalg.eigvalsh(x.expand(2, 4, 4)), torch.eye(4), d=d)
    image = torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last)
    same(lambda x: torch.linalg.eigvalsh(x + x.mT), image, d=d, tolerance=1e-4)
    same(lambda x: torch.sort(x, 1)[0] + x.mean((2, 3), keepdim=True).expand_as(x), image, d=d)


@case
def test_case_13_a_private_layout_is_never_seen_from_outside(d):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU(), torch.nn.Conv2d(8, 5, 3))
    x = torch.randn(2, 3, 9, 9)
    want, on_host = net(x).detach(), copy.deepcopy(net)
    net.to(d)
    for form in (x, x.to(memory_format=torch.channels_last)):
        got = net(form.to(d)).detach()
        assert got.stride() == on_host(form).stride()
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close((got + 1).cpu(), want + 1, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(got[1, 2].sum().cpu(), want[1, 2].sum(), rtol=1e-4, atol=1e-4)
        assert torch.equal(got.contiguous().view(-1)[7:9].cpu(), got.cpu().reshape(-1)[7:9])
        assert repr(got[0, 0, 0].cpu()).split("(")[1][:20] == repr(got[0, 0, 0]).split("(")[1][:20]
        file = io.BytesIO()
        torch.save(got, file)
        file.seek(0)
        loaded = torch.load(file, map_location="cpu")
        assert torch.equal(loaded, got.cpu()) and loaded.stride() == got.stride()


@case
def test_case_14_as_strided_with_a_stride_of_zero_then_resize(d):
    x = torch.ones(1, device=d)
    view = x.as_strided((100,), (0,))
    assert view.sum().item() == 100
    view.resize_(50)
    assert view.shape == (50,) and view.untyped_storage().nbytes() >= 200
    view.fill_(3)
    assert view.sum().item() == 150
    with pytest.raises(RuntimeError):
        torch.ones(4, device=d).as_strided((3,), (-1,))
    with pytest.raises(RuntimeError, match=r"storage|bounds"):
        torch.ones(4, device=d).as_strided((5,), (1,)).set_(torch.ones(4, device=d).untyped_storage(), -1, (5,), (1,))
