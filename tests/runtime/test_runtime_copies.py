"""Copies between host and device: every dtype, every shape of view, every promise about when memory may change."""

import itertools

import pytest
import torch

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64, torch.complex128,
]  # fmt: skip
STORED_ONLY = [torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.complex32]


def values(dtype, count=120):
    """`count` numbers that every dtype can hold in its own way, among them both signs, fractions and zero."""
    base = torch.arange(count, dtype=torch.float64) % 13 - (0 if not dtype.is_signed else 6)
    if dtype.is_complex:
        return torch.complex(base / 4, base.flip(0) / 2).to(dtype)
    return (base / 4).to(dtype) if dtype.is_floating_point else base.to(dtype)


VIEWS = {
    "contiguous": lambda t: t.view(2, 3, 4, 5),
    "transposed": lambda t: t.view(10, 12).t(),
    "permuted": lambda t: t.view(2, 3, 4, 5).permute(3, 0, 2, 1),
    "channels last": lambda t: t.view(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "stepped": lambda t: t.view(12, 10)[::2, ::3],
    "with an offset": lambda t: t[7:103],
    "stepped with an offset": lambda t: t.view(12, 10)[1:, 3::2],
    "one column": lambda t: t.view(12, 10)[:, 4],
    "expanded": lambda t: t[:5].view(5, 1).expand(5, 6),
    "of no elements": lambda t: t.view(12, 10)[:, 3:3],
    "of no dimensions": lambda t: t[11],
    "of one element": lambda t: t[5:6].view(1, 1, 1),
    "of seven dimensions": lambda t: t.view(1, 2, 3, 1, 4, 5, 1)[:, :, ::2],
    "overlapping": lambda t: t.as_strided((5, 4), (2, 1)),
}


def equal(ours, expected):
    """Whether a tensor of the device holds exactly the numbers of one on the CPU."""
    back = ours.cpu()
    return back.dtype == expected.dtype and back.shape == expected.shape and bool((back == expected).all())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_view_goes_there_and_back(npu, dtype):
    """Case 23."""
    for name, view in VIEWS.items():
        host = view(values(dtype))
        ours = host.to(npu)
        assert ours.device == npu and equal(ours, host), name
        expected = torch.empty_like(host).copy_(host)  # as PyTorch lays it out
        assert ours.stride() == expected.stride(), name
        assert equal(view(values(dtype).to(npu)), host), f"{name}, taken on the device"
        assert equal(view(values(dtype).to(npu)).clone(), host), f"{name}, cloned on the device"
        assert equal(view(values(dtype).to(npu)).contiguous(), host), f"{name}, made contiguous on the device"


@pytest.mark.parametrize("dtype", STORED_ONLY, ids=str)
def test_dtypes_that_the_chip_does_not_compute_in_are_stored_bit_by_bit(npu, dtype):
    bits = torch.arange(48, dtype=torch.uint8)
    host = bits.view(dtype)
    ours = host.to(npu)
    assert ours.dtype == dtype
    assert torch.equal(ours.cpu().view(torch.uint8), bits)
    assert torch.equal(ours[1::2].clone().cpu().view(torch.uint8), host[1::2].contiguous().view(torch.uint8))


@pytest.mark.parametrize("source", DTYPES, ids=str)
def test_copying_converts_between_any_two_dtypes_in_every_direction(npu, source):
    """Case 23."""
    wrong = []
    for target in DTYPES:
        if source.is_complex and not target.is_complex:
            continue
        host = values(source)
        if target is torch.uint8:
            host = host.abs() if source is not torch.bool else host  # what a negative number becomes is undefined
        expected = host.to(target)
        into = {
            "to the device": torch.empty(120, dtype=target, device=npu).copy_(host),
            "to the host": torch.empty(120, dtype=target).copy_(host.to(npu)),
            "on the device": torch.empty(120, dtype=target, device=npu).copy_(host.to(npu)),
            "by to()": host.to(npu).to(target),
            "by to() with both": host.to(npu, target),
            "strided": torch.empty(120, 2, dtype=target, device=npu)[:, 1].copy_(host.to(npu)),
        }
        wrong += [(target, how) for how, result in into.items() if not equal(result, expected)]
    assert wrong == []


def test_special_values_survive_conversion(npu):
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0, 65504.0, 65520.0, 1e-8, 3.4e38])
    for target in (torch.float16, torch.bfloat16, torch.float64, torch.bool):
        expected = special.to(target)
        assert torch.allclose(
            special.to(npu).to(target).cpu().double(), expected.double(), equal_nan=True, rtol=0, atol=0
        )
    wide = torch.tensor([2**53 + 1, -(2**62), 2**31, -1], dtype=torch.int64)
    assert equal(wide.to(npu), wide)
    assert equal(wide.to(npu).to(torch.int32), wide.to(torch.int32))
    double = torch.tensor([1 / 3, 1e300, 1 + 2**-50], dtype=torch.float64)
    assert equal(double.to(npu), double)


def test_isclose_in_bfloat16(npu):
    """Case 23."""
    a = torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)
    b = torch.tensor([1.0, 2.03125, 3.0], dtype=torch.bfloat16)
    for tolerance in (1e-5, 0.05):
        ours = torch.isclose(a.to(npu), b.to(npu), rtol=tolerance)
        assert ours.tolist() == torch.isclose(a, b, rtol=tolerance).tolist()


@pytest.mark.parametrize("name", [n for n in VIEWS if n not in ("expanded", "overlapping")])
def test_writing_through_a_view_leaves_the_rest_alone(npu, name):
    view = VIEWS[name]
    if name == "channels last":  # that one is a copy
        view = lambda t: t.view(2, 5, 4, 3).permute(0, 3, 1, 2)  # noqa: E731
    for dtype in (torch.float32, torch.int16, torch.uint8, torch.complex64):
        host, ours = values(dtype), values(dtype).to(npu)
        new = torch.ones_like(view(host))
        view(host).copy_(new)
        view(ours).copy_(new)
        assert equal(ours, host), f"{dtype} from the host"
        ours = values(dtype).to(npu)
        view(ours).copy_(new.to(npu))
        assert equal(ours, host), f"{dtype} from the device"
        back = values(dtype)
        view(back).copy_(new.to(npu))
        assert torch.equal(back, host), f"{dtype} into a view on the host"


def test_copying_broadcasts(npu):
    for source in (torch.tensor(3.0), torch.arange(4.0), torch.arange(3.0).view(3, 1)):
        expected = torch.empty(3, 4).copy_(source)
        assert equal(torch.empty(3, 4, device=npu).copy_(source), expected)
        assert equal(torch.empty(3, 4, device=npu).copy_(source.to(npu)), expected)
        assert torch.equal(torch.empty(3, 4).copy_(source.to(npu)), expected)
    with pytest.raises(RuntimeError, match="size"):
        torch.empty(3, 4, device=npu).copy_(torch.ones(5))


def test_a_target_that_overlaps_itself_is_refused_as_on_the_cpu(npu):
    for device in ("cpu", npu):
        target = torch.zeros(3, device=device).as_strided((3, 2), (1, 0))
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            target.copy_(torch.ones(3, 2, device=device))
        with pytest.raises(RuntimeError, match="more than one element of the written-to tensor"):
            torch.zeros(1, device=device).expand(3).add_(1)
        assert (
            torch.zeros(2, 1, device=device).expand(2, 3).fill_(1).tolist() == [[1] * 3] * 2
        )  # the order is no matter
        assert torch.ones(1, device=device).expand(3).zero_().tolist() == [0] * 3


def test_a_source_that_partly_overlaps_its_target_is_refused_as_on_the_cpu(npu):
    for device in ("cpu", npu):
        x = torch.arange(6.0, device=device)
        with pytest.raises(RuntimeError, match="refer to a single memory location"):
            x[1:].copy_(x[:-1])
        x.copy_(x)
        assert x.tolist() == [0, 1, 2, 3, 4, 5]


def test_repeat_unfold_and_zero_reach_the_base(npu):
    """Case 3."""
    base = torch.arange(6.0, device=npu)
    base.unfold(0, 2, 2).zero_()
    assert base.tolist() == [0] * 6
    assert torch.arange(3.0, device=npu).repeat(2, 2).tolist() == torch.arange(3.0).repeat(2, 2).tolist()


def test_an_expanded_stride_of_zero_then_resize_reads_nothing_out_of_bounds(npu):
    """Case 14."""
    x = torch.ones(1, device=npu).as_strided((100,), (0,))
    assert x.cpu().tolist() == [1.0] * 100
    x.resize_(50)
    assert x.shape == (50,)
    x.fill_(2)
    assert x.tolist() == [2.0] * 50


@pytest.mark.parametrize("count", [1, 100, 1 << 20])
def test_pageable_memory_may_change_right_after_a_non_blocking_copy(npu, count):
    """Case 31. Without pinned memory the user made no promise, so what was there at the call is what arrives."""
    host = torch.arange(count, dtype=torch.float32)
    busy = torch.ones(256, 256, device=npu)
    for _ in range(4):
        busy = busy @ busy * 1e-3
    ours = host.to(npu, non_blocking=True)
    host.fill_(-1)
    assert torch.equal(ours.cpu(), torch.arange(count, dtype=torch.float32))


@pytest.mark.parametrize("count", [3, 1 << 18])
def test_pinned_memory_copies_without_waiting_and_arrives_after_a_synchronise(npu, count):
    host = torch.arange(count, dtype=torch.float32).pin_memory()
    assert host.is_pinned()
    ours = host.to(npu, non_blocking=True)
    doubled = ours * 2
    back = torch.empty(count, pin_memory=True)
    back.copy_(doubled, non_blocking=True)
    torch.npu_v3.synchronize()
    assert torch.equal(back, torch.arange(count, dtype=torch.float32) * 2)


def test_a_pinned_tensor_may_be_dropped_while_its_copy_is_on_its_way(npu):
    results = []
    for i in range(20):
        host = torch.full((1 << 16,), float(i)).pin_memory()
        results.append(host.to(npu, non_blocking=True))
        del host
        torch.full((1 << 16,), -1.0).pin_memory()  # would be given the same memory
    assert [r.cpu().unique().tolist() for r in results] == [[float(i)] for i in range(20)]


def test_a_non_blocking_copy_to_pageable_memory_is_there_when_it_returns(npu):
    """Case 31."""
    x = torch.ones(512, 512, device=npu) @ torch.ones(512, 512, device=npu)
    back = torch.empty(512, 512).copy_(x, non_blocking=True)
    assert back.unique().tolist() == [512.0]


def test_a_tensor_taken_to_the_host_without_waiting_is_pinned_and_there_after_a_synchronise(npu):
    """Case 31. PyTorch pins the result itself, so that nothing needs to wait; as with torch.cuda."""
    x = torch.ones(512, 512, device=npu) @ torch.ones(512, 512, device=npu)
    back = x.to("cpu", non_blocking=True)
    assert back.is_pinned()
    torch.npu_v3.synchronize()
    assert back.unique().tolist() == [512.0]


def test_conversion_with_non_blocking_is_right_too(npu):
    host = torch.arange(1000).pin_memory()
    ours = host.to(npu, torch.float16, non_blocking=True)
    host.zero_()
    assert torch.equal(ours.cpu(), torch.arange(1000).to(torch.float16))
    back = torch.empty(1000, dtype=torch.int32, pin_memory=True)
    back.copy_(ours, non_blocking=True)
    torch.npu_v3.synchronize()
    assert torch.equal(back, torch.arange(1000, dtype=torch.int32))


def test_pinned_memory_of_every_kind_is_recognised(npu):
    """Case 31."""
    pinned = torch.arange(10.0).pin_memory()
    assert pinned.is_pinned() and pinned[3:].is_pinned()
    assert pinned.pin_memory() is pinned
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert torch.empty(0).pin_memory().numel() == 0
    assert not torch.empty(3).is_pinned()
    assert not torch.ones(3, device=npu).is_pinned()
    with pytest.raises(RuntimeError, match="pin"):
        torch.ones(3, device=npu).pin_memory()
    with pytest.raises(RuntimeError, match="pin"):
        torch.empty(3, device=npu, pin_memory=True)
    assert torch.equal(pinned, torch.arange(10.0))


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_conjugate_and_negative_bits_survive_every_copy(npu, dtype):
    """Case 43."""
    x = torch.complex(torch.arange(6.0, dtype=torch.float64), -torch.arange(6.0, dtype=torch.float64) - 1).to(dtype)
    expected = x.conj().resolve_conj()
    assert x.conj().is_conj()
    assert equal(x.conj().to(npu).resolve_conj(), expected)
    assert equal(x.to(npu).conj(), expected)
    assert equal(x.to(npu).conj().resolve_conj(), expected)
    assert equal(x.to(npu).conj().clone(), expected)
    assert equal(torch.empty(6, dtype=dtype, device=npu).copy_(x.conj()), expected)
    assert equal(torch.empty(6, dtype=dtype, device=npu).copy_(x.to(npu).conj()), expected)
    assert torch.equal(torch.empty(6, dtype=dtype).copy_(x.to(npu).conj()), expected)
    target = torch.empty(6, dtype=dtype, device=npu)
    target.conj().copy_(x)
    assert equal(target, expected)
    target = torch.empty(6, dtype=dtype, device=npu)
    target.conj().copy_(x.to(npu))
    assert equal(target, expected)
    negated = x.conj().imag
    assert negated.is_neg()
    assert equal(negated.to(npu).resolve_neg(), negated.resolve_neg())
    assert equal(x.to(npu).conj().imag, negated.resolve_neg())
    assert equal(x.to(npu).conj().imag.clone(), negated.resolve_neg())
    imag = torch.zeros(6, dtype=negated.dtype, device=npu).copy_(x.to(npu).conj().imag)
    assert equal(imag, negated.resolve_neg())
    assert x.conj().to(npu).tolist() == x.conj().tolist()
    assert repr(x.to(npu).conj()[0].item()) == repr(x.conj()[0].item())


def test_complex_views_reach_their_base(npu):
    """Case 4."""
    z = torch.ones(4, dtype=torch.complex64, device=npu)
    z.real.zero_()
    assert z.tolist() == [0] * 4
    z.imag.fill_(2)
    assert z.tolist() == [2j] * 4
    torch.view_as_real(z).zero_()
    assert z.tolist() == [0] * 4
    assert torch.view_as_complex(torch.ones(2, 2, device=npu)).tolist() == [1 + 1j] * 2


def test_a_tensor_is_built_from_scalars_on_either_side(npu):
    """Case 44."""
    t0, t1 = torch.tensor(1.5), torch.tensor(2.5)
    for parts in itertools.product((t0, t0.to(npu)), (t1, t1.to(npu))):
        assert torch.tensor(list(parts)).tolist() == [1.5, 2.5]
        built = torch.tensor(list(parts), device=npu)
        assert built.device == npu and built.tolist() == [1.5, 2.5]


def test_scalars_read_at_every_offset(npu):
    """Case 5."""
    x = torch.arange(10, device=npu)
    assert [x[i].item() for i in range(10)] == list(range(10))
    assert [int(i) for i in x] == list(range(10))
    y = torch.arange(10.0, device=npu)[3:]
    assert [float(i) for i in y] == [3, 4, 5, 6, 7, 8, 9]
    assert bool(torch.tensor([False, True], device=npu)[1])
    assert range(5)[torch.tensor(2, device=npu)] == 2
    with pytest.raises(RuntimeError, match="2 elements cannot be converted to Scalar"):
        torch.ones(2, device=npu).item()


def test_pieces_of_a_split_alias_the_base(npu):
    """Case 1."""
    a = torch.arange(4, device=npu)
    b, c = torch.split(a, 2)
    a[0] = -1
    c[1] = 7
    assert b.tolist() == [-1, 1]
    assert a.tolist() == [-1, 1, 2, 7]


def test_numpy_needs_a_copy_to_the_host_as_on_any_device(npu):
    x = torch.arange(3.0, device=npu)
    with pytest.raises(TypeError, match="can't convert npu_v3:0 device type tensor to numpy"):
        x.numpy()
    assert x.numpy(force=True).tolist() == [0, 1, 2]
    assert x.cpu().numpy().tolist() == [0, 1, 2]


def test_many_small_copies_in_flight_keep_their_values(npu):
    ours = [torch.full((7,), i).to(npu, non_blocking=True) for i in range(1500)]
    assert [int(t[3]) for t in ours[::100]] == list(range(0, 1500, 100))
