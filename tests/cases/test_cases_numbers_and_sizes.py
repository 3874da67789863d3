"""Cases 15 to 25: empty and huge sizes, dtypes as they are declared, indices."""

import itertools
import warnings

import pytest
import torch
from cases_support import EveryChip, same
from torch.nn import functional as F

case = EveryChip("sizes")
narrow = EveryChip(
    "narrow_index",
    chip_env={"npu_v3": {"NPU_SIM_INDEX_LIMIT": "5000"}, "fpga_mm": {"FPGA_MM_INDEX_LIMIT": "5000"}},
)


@case
def test_case_15_zero_sizes_and_empty_embeddings(d):
    assert torch.zeros((1, 0, 3), device=d).shape == (1, 0, 3)
    assert torch.zeros((1, 0, 3), device=d).sum().item() == 0
    embedding = torch.nn.Embedding(10, 0).to(d)
    out = embedding(torch.tensor([1, 2], device=d))
    assert out.shape == (2, 0)
    out.sum().backward()
    assert embedding.weight.grad.shape == (10, 0)
    nothing = F.embedding(torch.empty(0, dtype=torch.int64, device=d), torch.empty(0, 20, device=d), max_norm=1.0)
    assert nothing.shape == (0, 20)
    none = F.embedding(torch.tensor([3], device=d), torch.empty(20, 0, device=d), max_norm=1.0)
    assert none.shape == (1, 0)


@case
def test_case_16_operators_on_empty_inputs(d):
    same(lambda x: torch.cummax(x, 0), torch.empty(0, 3), d=d)
    same(lambda x: torch.cummax(x, 1), torch.empty(3, 0), d=d)
    same(lambda x, i, y: x.index_copy(0, i, y), torch.ones(3, 2), torch.empty(0, dtype=torch.int64),
         torch.empty(0, 2), d=d)  # fmt: skip
    same(lambda v, g: torch._weight_norm(v, g, 0), torch.empty(3, 0), torch.ones(3, 1), d=d)
    same(lambda x: (x.sum(), x.prod(), x.mean(0), torch.cat([x, x]), x @ x.t(), x.softmax(0)), torch.empty(0, 4), d=d)
    same(lambda x: (F.relu(x), x.sort(1)[0], x.cumsum(0), torch.where(x > 0, x, -x)), torch.empty(2, 0), d=d)
    same(lambda x, w: F.conv2d(x, w), torch.empty(0, 3, 5, 5), torch.randn(2, 3, 3, 3), d=d)
    same(lambda x, w: F.linear(x, w), torch.empty(0, 3), torch.randn(2, 3), d=d)
    for reduce in (torch.max, torch.min, torch.argmax):
        with pytest.raises((RuntimeError, IndexError)) as ours:
            reduce(torch.empty(0, device=d))
        with pytest.raises((RuntimeError, IndexError)) as theirs:
            reduce(torch.empty(0))
        for error in (ours, theirs):
            assert "Expected reduction dim to be specified for input.numel() == 0" in str(error.value)


@case
def test_case_17_bool_and_bytes(d):
    mask = torch.tensor([7, 0], dtype=torch.uint8).view(torch.bool).to(d)  # a true that is not stored as 1
    assert mask.tolist() == [True, False]
    assert mask.sum().item() == 1
    assert torch.where(mask, 5, 6).tolist() == [5, 6]
    added = torch.zeros(3, dtype=torch.bool, device=d).index_add(0, torch.tensor([2, 0], device=d), mask)
    assert added.tolist() == [False, False, True]
    assert (~mask).tolist() == [False, True] and mask.to(torch.float32).tolist() == [1, 0]
    assert (mask == torch.tensor([True, False], device=d)).all().item()
    total = torch.tensor([250, 10], dtype=torch.uint8, device=d).sum()
    assert total.item() == 260 and total.dtype == torch.int64
    assert torch.tensor([250, 10], dtype=torch.uint8, device=d).add(10).tolist() == [4, 20]
    # A copy of them into a view, and one that is not dense.
    room = torch.zeros(4, dtype=torch.bool, device=d)
    room[::2] = torch.tensor([9, 0], dtype=torch.uint8).view(torch.bool)
    assert room.sum().item() == 1 and room.tolist() == [True, False, False, False]
    # A chip is promised bools of 0 and 1: what is none is refused rather than taken for something.
    with pytest.raises(RuntimeError, match=r"byte of 0 or 1.*use \.ne\(0\)"):
        torch.tensor([3, 0], dtype=torch.uint8, device=d).view(torch.bool)
    assert torch.tensor([1, 0], dtype=torch.uint8, device=d).view(torch.bool).tolist() == [True, False]


@narrow
def test_case_18_more_elements_than_the_chip_can_index(d):
    """The limit of 2^31 at a size that a test can have: the simulated chips then take 5,000 elements a tensor."""
    import torchfl

    torch.manual_seed(0)
    x, y = torch.randn(3, 4001), torch.randn(3, 4001)
    big_x, big_y = x.to(d), y.to(d)

    def slices(function):
        return torch.cat([function(big_x[i : i + 1], big_y[i : i + 1]) for i in range(3)]).cpu()

    torchfl.reset_stats()
    slices(lambda a, b: a + b)
    assert {row["path"] for row in torchfl.stats() if row["op"].startswith("aten::add")} <= {"native", "composed"}
    for function in (
        lambda a, b: a + b, lambda a, b: F.gelu(a) * b, lambda a, b: torch.where(a > b, a, b.exp()),
        lambda a, b: a.softmax(1), lambda a, b: a.flip(1), lambda a, b: a.half().float() + b,
    ):  # fmt: skip
        torch.testing.assert_close(function(big_x, big_y).cpu(), slices(function), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(function(big_x, big_y).cpu(), function(x, y), rtol=1e-2, atol=1e-3)
    weight = torch.randn(70, 4001)
    torch.testing.assert_close((big_x @ weight.to(d).t()).cpu(), x @ weight.t(), rtol=1e-3, atol=1e-3)
    big_x.view(-1)[5001:].add_(1)
    assert torch.equal(big_x.cpu().view(-1)[:5001], x.view(-1)[:5001])
    torch.testing.assert_close(big_x.cpu().view(-1)[5001:], x.view(-1)[5001:] + 1)
    chosen = big_x.view(-1)[torch.tensor([0, 5002, 12002], device=d)].cpu()
    assert torch.equal(chosen, big_x.cpu().view(-1)[[0, 5002, 12002]])


@case
def test_case_19_launch_sizes_beyond_what_a_grid_holds(d):
    same(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), torch.randn(1, 1, 2, 40000), d=d)
    same(lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), torch.randn(70000, 1, 2, 2), d=d)
    same(lambda x: F.interpolate(x, size=(1, 70000), mode="nearest"), torch.randn(1, 2, 1, 7), d=d)
    same(lambda x: (x + 1, x.sum(1), x.t().contiguous()), torch.randn(70000, 3), d=d, tolerance=1e-4)


@case
def test_case_20_an_int64_tensor_is_really_on_the_device(d):
    x = torch.ones(3, dtype=torch.int64).to(d)
    assert x.device == d and not x.is_cpu and x.dtype == torch.int64
    assert (x * 2**40 + 1).tolist() == [2**40 + 1] * 3
    assert torch.arange(3, device=d).device == d and torch.tensor([2**62], device=d).item() == 2**62


@case
def test_case_21_new_makes_a_tensor_on_the_device(d):
    t = torch.ones(2, dtype=torch.int64, device=d)
    made = t.new(3).fill_(0)
    assert made.device == d and made.dtype == torch.int64 and made.tolist() == [0, 0, 0]
    assert t.new_tensor([1.5]).device == d and t.new_zeros(2).device == d and t.new_full((2,), 7).tolist() == [7, 7]
    assert t.new([4, 5]).device == d and t.new_empty(0).device == d and t.new_ones(1, dtype=torch.half).item() == 1


@case
def test_case_22_every_kind_of_tensor_prints(d):
    for value in (
        torch.tensor([1.0, float("inf"), float("nan"), -float("inf")]), torch.empty(0), torch.empty(2, 0),
        torch.tensor([1 + 2j, -3j]), torch.tensor([1, -2]), torch.tensor([True, False]), torch.tensor(2.5),
        torch.arange(2000.0), torch.eye(3, dtype=torch.float64), torch.tensor([1.5, 2.25], dtype=torch.bfloat16),
        torch.tensor([1e-8, 1e8]), torch.zeros(2, dtype=torch.uint8),
    ):  # fmt: skip
        on_device = value.to(d)
        text = repr(on_device)
        assert f"device='{d}'" in text
        numbers = text.replace(f", device='{d}'", "").replace("\n       ", " ")
        assert numbers.replace(",  ", ", ") == repr(value).replace("\n       ", " ").replace(",  ", ", ")
        assert str(on_device[..., :1] if on_device.dim() else on_device)
    leaf = torch.ones(2, device=d, requires_grad=True)
    assert "requires_grad=True" in repr(leaf) and "grad_fn=" in repr(leaf * 2)


DTYPES = [
    torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.uint8, torch.int16, torch.int32,
    torch.int64, torch.bool, torch.complex64,
]  # fmt: skip


@case
def test_case_23_copies_between_every_pair_of_dtypes_in_every_direction(d):
    warnings.filterwarnings("ignore", "Casting complex")
    values = torch.tensor([0.0, 1.0, 2.5, 100.0, 3.0, 0.0])
    for source, target in itertools.product(DTYPES, DTYPES):
        x = values.to(source)
        want = torch.zeros(6, dtype=target).copy_(x)
        for start, end in (("cpu", d), (d, "cpu"), (d, d)):
            for stride in (1, 2):
                room = torch.zeros(6 * stride, dtype=target, device=end)[::stride]
                got = room.copy_(x.to(start).repeat_interleave(stride)[::stride])
                assert torch.equal(got.cpu(), want), (source, target, start, end, stride)
    a = torch.tensor([1.0, 2.0, float("nan"), float("inf")], dtype=torch.bfloat16)
    same(lambda x, y: (torch.isclose(x, y), torch.isclose(x, y, equal_nan=True)), a, a * 1.001, d=d)


@case
def test_case_24_declared_dtypes_are_the_real_ones(d):
    """`get_device_capability` is the descriptor's; an operator that says native in a dtype computes in it."""
    import torchfl

    module = getattr(torch, str(d).partition(":")[0])
    declared = module.get_device_capability()["supported_dtypes"]
    assert torch.float32 in declared
    for dtype in DTYPES:
        torchfl.reset_stats()
        x = torch.tensor([1, 2, 3]).to(dtype).to(d)
        got = x + x
        assert got.dtype == dtype and torch.equal(got.cpu(), x.cpu() + x.cpu()), dtype
        paths = {row["path"] for row in torchfl.stats() if row["op"].startswith("aten::add")}
        assert (paths <= {"native", "composed"}) or dtype not in declared, (dtype, paths)
        if paths & {"native", "composed"} and not dtype.is_complex:  # complex numbers run as their parts
            assert dtype in declared, f"{dtype} runs on the chip and is not declared"
        with torch.no_grad():
            said = torchfl.explain("aten::add", x, x)["path"]
        assert {said} == paths, (dtype, said, paths)


@case
def test_case_25_accumulating_index_put_gives_the_same_bits_twice(d):
    torch.manual_seed(0)
    rows, values = torch.randint(7, (5000,), device=d), torch.randn(5000, 3, device=d)
    torch.use_deterministic_algorithms(True)
    try:
        results = [torch.zeros(7, 3, device=d).index_put_((rows,), values, accumulate=True).cpu() for _ in range(3)]
        added = [torch.zeros(7, 3, device=d).index_add_(0, rows, values).cpu() for _ in range(3)]
        scattered = [
            torch.zeros(7, 3, device=d).scatter_add_(0, rows[:, None].expand(-1, 3), values).cpu() for _ in range(3)
        ]
    finally:
        torch.use_deterministic_algorithms(False)
    for made in (results, added, scattered):
        assert torch.equal(made[0], made[1]) and torch.equal(made[0], made[2])
    want = torch.zeros(7, 3, dtype=torch.float64).index_put_((rows.cpu(),), values.cpu().double(), accumulate=True)
    for made in (results, added, scattered):
        torch.testing.assert_close(made[0].double(), want, rtol=1e-4, atol=1e-3)
