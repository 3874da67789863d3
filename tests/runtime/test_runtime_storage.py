"""Storages of the device: resizing, sharing, printing, and addresses that the SDK would refuse."""

import copy
import logging

import pytest
import torch
from helpers import OwnProcess, heard, standard_error

inf, nan = float("inf"), float("nan")


def test_resize_keeps_what_fits_and_grows_the_storage(npu):
    """Case 21."""
    x = torch.arange(6.0, device=npu)
    assert x.resize_(2, 2) is x
    assert x.tolist() == [[0, 1], [2, 3]]
    x.resize_(3, 4)
    assert x.flatten()[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert x.shape == (3, 4) and x.untyped_storage().nbytes() == 48
    x.fill_(1)
    assert x.sum().item() == 12
    x.resize_(0)
    assert x.numel() == 0
    assert torch.empty(0, device=npu).resize_(3).zero_().tolist() == [0, 0, 0]
    assert torch.empty(0, device=npu).resize_as_(torch.ones(2, 3, device=npu)).shape == (2, 3)


def test_resize_follows_a_memory_format(npu):
    x = torch.empty(0, device=npu).resize_(2, 3, 4, 5, memory_format=torch.channels_last)
    assert x.is_contiguous(memory_format=torch.channels_last)
    x = torch.zeros(2, 3, 4, 5, device=npu).resize_(1, 3, 4, 5, memory_format=torch.preserve_format)
    assert x.shape == (1, 3, 4, 5)


def test_an_offset_view_can_be_resized(npu):
    x = torch.arange(8.0, device=npu)
    y = x[6:]
    y.resize_(4)
    assert y[:2].tolist() == [6, 7]
    assert y.storage_offset() == 6
    y.fill_(9)
    assert y.tolist() == [9] * 4
    assert x.tolist() == [0, 1, 2, 3, 4, 5, 9, 9]


def test_storage_can_be_emptied_and_refilled(npu):
    """As sharded training frees parameters and gathers them again."""
    x = torch.arange(8.0, device=npu)
    before = torch.npu_v3.memory_allocated()
    x.untyped_storage().resize_(0)
    assert x.untyped_storage().nbytes() == 0
    assert torch.npu_v3.memory_allocated() < before
    assert x.shape == (8,)
    x.untyped_storage().resize_(32)
    x.copy_(torch.arange(8.0))
    assert x.tolist() == list(range(8))
    x.untyped_storage().resize_(64)
    assert x.tolist() == list(range(8))
    assert x.untyped_storage().nbytes() == 64


def test_set_shares_storage(npu):
    """Case 21."""
    x, y = torch.arange(6.0, device=npu), torch.empty(0, device=npu)
    y.set_(x)
    y[0] = -1
    assert x[0].item() == -1
    y.set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    assert y.tolist() == [[2, 3], [4, 5]]
    y.set_(x.untyped_storage())
    assert y.tolist() == x.tolist()
    y.set_()
    assert y.numel() == 0 and x.numel() == 6
    with pytest.raises(RuntimeError):
        torch.empty(0, device=npu).set_(torch.ones(3).untyped_storage())
    with pytest.raises(RuntimeError):
        torch.empty(0, dtype=torch.int64, device=npu).set_(x)


def test_assigning_data_shares_storage(npu):
    x, y = torch.zeros(3, device=npu), torch.ones(3, device=npu)
    x.data = y
    y[0] = 5
    assert x.tolist() == [5, 1, 1]
    p = torch.nn.Parameter(torch.zeros(2, device=npu))
    p.data = p.data.half()
    assert p.dtype == torch.float16 and p.device == npu


def test_storage_functions(npu):
    x = torch.arange(4, dtype=torch.int32, device=npu)
    storage = x.untyped_storage()
    assert storage.device == npu and storage.nbytes() == 16
    assert bytes(storage.cpu().tolist()) == torch.arange(4, dtype=torch.int32).numpy().tobytes()
    assert storage.data_ptr() == x.data_ptr() != 0
    assert x.data_ptr() % 256 == 0
    clone = storage.clone()
    x.zero_()
    assert torch.empty(0, dtype=torch.int32, device=npu).set_(clone).tolist() == [0, 1, 2, 3]
    storage.copy_(clone)
    assert x.tolist() == [0, 1, 2, 3]
    storage.fill_(0)
    assert x.tolist() == [0, 0, 0, 0]
    assert storage.is_npu_v3
    host = torch.arange(4, dtype=torch.int32).untyped_storage()
    moved = host.npu_v3()
    assert moved.device == npu and bytes(moved.cpu().tolist()) == bytes(host.tolist())


def test_deep_copies_are_apart_and_keep_what_is_shared(npu):
    base = torch.arange(6.0, device=npu)
    original = {"a": base[:4], "b": base[2:], "p": torch.nn.Parameter(torch.ones(2, device=npu))}
    other = copy.deepcopy(original)
    other["a"][3] = 9
    assert other["b"][1].item() == 9 and base[3].item() == 3
    assert isinstance(other["p"], torch.nn.Parameter) and other["p"].device == npu
    grown = torch.ones(2, device=npu, requires_grad=True)
    (grown * 3).sum().backward()
    assert copy.deepcopy(grown).grad.tolist() == [3, 3]
    strided = torch.arange(12.0, device=npu).view(3, 4).t()
    assert copy.deepcopy(strided).stride() == (1, 4)
    assert copy.copy(base).data_ptr() == base.data_ptr()


PRINTED = [
    torch.tensor([1.0, inf, -inf, nan]), torch.tensor([]), torch.empty(0, 3), torch.tensor([1 + 2j, complex(inf, -1)]),
    torch.arange(3), torch.tensor([True, False]), torch.tensor(2.5), torch.tensor([1e-8, 1e8]),
    torch.ones(2, 2).half(), torch.ones(2).bfloat16(), torch.ones(2).double(),
    torch.tensor([1, 255], dtype=torch.uint8), torch.arange(2000.0), torch.arange(6.0).view(2, 3).t(),
    torch.tensor([1 + 1j]).conj(), torch.linspace(-1, 1, 9).view(3, 3),
]  # fmt: skip


@pytest.mark.parametrize("host", PRINTED, ids=lambda t: f"{t.dtype}{list(t.shape)}")
def test_a_tensor_prints_as_on_the_cpu_with_its_device(npu, host):
    """Case 22."""
    ours = repr(host.to(npu))
    assert "device='npu_v3:0'" in ours
    squeezed = ours.replace(", device='npu_v3:0'", "").replace("device='npu_v3:0', ", "")
    assert "".join(squeezed.split()) == "".join(repr(host).split())
    assert str(host.to(npu)) == ours and f"{host.to(npu)}" == (ours if host.dim() else f"{host.item()}")


def test_parameters_and_gradients_print(npu):
    """Case 22."""
    p = torch.nn.Parameter(torch.ones(2, device=npu))
    assert "Parameter containing" in repr(p) and "npu_v3:0" in repr(p) and "requires_grad=True" in repr(p)
    assert "grad_fn=<MulBackward0>" in repr(p * 2)
    assert "npu_v3:0" in repr([p]) and "npu_v3" in repr(p.untyped_storage().device)


def test_printing_options_apply(npu):
    with torch._tensor_str.printoptions(precision=2):
        assert "0.33" in repr(torch.tensor([1 / 3], device=npu))


misaligned = OwnProcess("misaligned", NPU_SIM_LOG="1")


def everything_misaligned(x, to):
    """Operators on views that start inside a storage; each result beside what the CPU makes of it."""
    a, b = x.clone().to(to), x.flip(0).contiguous().to(to)
    yield a[1:] + 1
    yield a[1:] * b[:-1]
    yield a[3:].relu()
    yield (a[1:].view(3, 5) @ b[1:].view(5, 3)) if x.is_floating_point() else a[1:]
    yield a[1:].sum(), a[5:].max(), a[2:].mean() if x.is_floating_point() else a[2:].min()
    yield torch.cat([a[1:3], b[5:]])
    yield torch.where(a[1:] > b[1:], a[1:], b[1:])
    yield a[1:].clone(), a[1:].contiguous(), a[3:].to(torch.float64), a[7:].to(torch.int32)
    c = a.clone()
    c[3:] += 1
    c[5:].mul_(2)
    c[7:9] = b[:2]
    yield c
    c = a.clone()
    c[1:].zero_()
    yield c
    c = a.clone()
    torch.add(a[:4], b[:4], out=c[1:5])
    yield c
    c = torch.zeros(20, dtype=x.dtype).to(to)
    torch.neg(a[:5], out=c[3:13:2])
    yield c
    m = a.view(4, 4).clone()
    m[1:, 2] = 5
    m[:, 1] += m[:, 3]
    yield m
    yield torch.nn.functional.softmax(a[1:].float(), 0), a[1:].float().view(3, 5).t().contiguous()


@misaligned
def test_views_at_any_offset_are_right_and_never_reach_the_sdk_as_a_bad_address():
    """Cases 6 and 11."""
    import torchfl

    torchfl.load("npu_v3")
    with standard_error() as said:
        for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64):
            x = torch.arange(16).to(dtype) % 7 - 3
            pairs = zip(everything_misaligned(x, "npu_v3:0"), everything_misaligned(x, "cpu"), strict=True)
            for i, (ours, host) in enumerate(pairs):
                torch.testing.assert_close(
                    torch.utils._pytree.tree_map(torch.Tensor.cpu, ours),
                    host,
                    rtol=1e-2,
                    atol=1e-2,
                    msg=lambda text, i=i, dtype=dtype: f"{dtype}, number {i}: {text}",
                )
        torch.npu_v3.synchronize()
    assert "INVALID_ADDRESS" not in said()


@misaligned
def test_a_layer_on_a_misaligned_slice_of_a_batch_is_right():
    batch = torch.arange(5 * 3 * 8 * 8, dtype=torch.float32).view(5, 3, 8, 8) / 100
    nn = torch.nn
    layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2))
    ours = copy.deepcopy(layers).to("npu_v3:0")
    w = torch.arange(13.0).to("npu_v3:0")[1:].view(3, 4)
    with standard_error() as said:
        torch.testing.assert_close(ours(batch.to("npu_v3:0")[1:]).cpu(), layers(batch[1:]), rtol=1e-4, atol=1e-4)
        expected = torch.nn.functional.linear(w.cpu()[1:], w.cpu())
        assert torch.nn.functional.linear(w[1:], w).tolist() == expected.tolist()
        torch.npu_v3.synchronize()
    assert "INVALID_ADDRESS" not in said()


strict_sdk = OwnProcess("strict_sdk", NPU_SIM_LOG="1", NPU_SIM_SDK_VERSION="1.2.1")


@strict_sdk
def test_an_sdk_that_wants_more_alignment_than_the_descriptor_works():
    """SDK 1.2.1 wants 512 bytes; the descriptor was written for 256."""
    import torchfl

    lines = heard(logging.INFO)
    chip = torchfl.load("npu_v3")
    assert chip.sdk_version == "1.2.1"
    with standard_error() as said:
        small = [torch.full((n,), float(n), device="npu_v3:0") for n in range(1, 200)]
        assert {t.data_ptr() % 512 for t in small} == {0}
        assert [t.sum().item() for t in small] == [float(n * n) for n in range(1, 200)]
        x = torch.arange(256.0, device="npu_v3:0")
        assert (x[64:] + 1).cpu().tolist() == list(range(65, 257))  # 256 bytes in: aligned for 1.2.0 only
        x[64:].mul_(2)
        assert x.cpu().tolist() == list(range(64)) + list(range(128, 512, 2))
        assert (x.view(16, 16) @ x.view(16, 16)).shape == (16, 16)
    assert "INVALID_ADDRESS" not in said()
    assert [line for line in lines if "512" in line and "256" in line], "the log says that the SDK demands more"
    assert torch.npu_v3.get_device_properties().alignment == 512
