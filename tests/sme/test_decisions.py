"""What is explained is what runs; equal calls are decided equally; each limit of the descriptor is honoured, and its
reason told."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ops_support
import pytest
import recipes
import torch
import torch.nn.functional as F
from helpers import in_threads
from ops_support import DEVICE, FORMS, lowered, place, watch
from test_native_rows import REFUSED, TAKEN_APART

import torchfl

# ------------------------------------------------------------------------------------------------ explain tells the truth


def _bases() -> list[str]:
    # PyTorch hands factories on by another name; there is no tensor to explain them by.
    return sorted(
        ({row["op"].removeprefix("aten::") for row in lowered()["ops"]} & set(recipes.RECIPES)) - set(TAKEN_APART)
    )


#: Kernels that may refuse when they run: nobody can say so beforehand.
_SURPRISES = {base for base, _ in REFUSED}


@pytest.mark.parametrize("base", _bases())
def test_explain_equals_what_runs(base: str, npu: torch.device) -> None:
    """For calls of every mapped operator, in dtypes with and without a kernel and in every form of its operands."""
    for dtype in (torch.float16, torch.float32, torch.float64, torch.int64, torch.bool, torch.int16):
        made = recipes.calls(base, dtype)
        for call, form in zip(made[:: max(1, len(made) // 6)], itertools.cycle(FORMS)):
            if call.kernel:
                continue
            args = recipes.map_operands(
                call, lambda operand, f=form, d=dtype: place(operand.make(d), "contiguous" if operand.dense else f)
            )
            args = tuple(dtype if a is recipes.DTYPE else a for a in args)
            kwargs = call.kwargs
            name, _, overload = call.op.partition(".")
            try:
                answer = torchfl.explain(f"aten::{name}.{overload or 'default'}", *args, **kwargs, device=DEVICE)
            except ValueError:
                # No form takes this: then the call is refused as well.
                with pytest.raises((RuntimeError, TypeError, NotImplementedError, ValueError)):
                    call.overload()(*args, **kwargs)
                    torch.npu_v3.synchronize()
                continue
            try:
                with watch() as rows:
                    call.overload()(*args, **kwargs)
                    torch.npu_v3.synchronize()
            except (RuntimeError, NotImplementedError, ValueError) as error:
                # A division by zero is found while it runs, whichever path that is.
                assert answer["path"] != "native" or "division by zero" in str(error), (
                    f"{call}, {dtype}, {form}: {error}"
                )
                continue
            own = [row for row in rows if row["op"] == answer["op"]] or rows.of(answer["op"])
            assert own, f"{call}: explained as {answer['op']}, ran {[r['op'] for r in rows]}"
            found = {(row["path"], row["target"]) for row in own}
            if base in _SURPRISES and answer["path"] == "native":
                assert found <= {("native", answer["target"]), ("cpu", "cpu"), ("composite", "composite")}
                continue
            assert found == {(answer["path"], answer["target"])}, f"{call}, {dtype}, {form}: {answer} but {own}"
            if answer["path"] != "native":
                assert own[0]["reason"] == answer["reason"], f"{call}, {dtype}, {form}"


def test_equal_inputs_are_decided_equally(npu: torch.device) -> None:
    for shape, dtype in itertools.product(
        ((3, 4), (64, 64), (512, 512)), (torch.float16, torch.float32, torch.float64)
    ):
        x = torch.empty(shape, dtype=dtype, device="meta")
        y = torch.empty(shape[::-1], dtype=dtype, device="meta")
        answers = [torchfl.explain("aten::mm", x, y, device=DEVICE) for _ in range(3)]
        assert answers[0] == answers[1] == answers[2]
        real = torchfl.explain(
            "aten::mm", torch.empty(shape, dtype=dtype, device=npu), torch.empty(shape[::-1], dtype=dtype, device=npu)
        )
        assert real == answers[0], "a tensor on meta must stand for one on the device"


def test_explain_tells_of_transforms(npu: torch.device) -> None:
    """Realignment and conversion are part of the answer."""
    x = torch.ones(9, device=npu)
    assert torchfl.explain("aten::exp", x)["transforms"] == []
    assert "self" in torchfl.explain("aten::exp", x[1:])["transforms"][0]
    mixed = torchfl.explain("aten::add", x, torch.ones(9, dtype=torch.float16, device=npu))
    assert any("other as float32" in t for t in mixed["transforms"])


def test_every_better_path_says_why_not(npu: torch.device) -> None:
    answer = torchfl.explain("aten::mm", torch.ones(4, 4, device=npu), torch.ones(4, 4, device=npu))
    assert answer["path"] == "native"
    assert len(answer["attempts"]) == 3
    for attempt in answer["attempts"]:
        assert attempt["taken"] or "takes" in attempt["reason"]
    other = torchfl.explain("aten::exp", torch.ones(2, dtype=torch.complex64, device=npu))
    assert other["path"] == "cpu"
    assert "complex64 is not a dtype of npu_v3_exp" in other["reason"]


# ------------------------------------------------------------------------------------------------ limits


def _conv(
    npu: torch.device, x: tuple[int, ...] = (1, 6, 16, 16), w: tuple[int, ...] = (6, 6, 3, 3), **kwargs: Any
) -> Any:
    torch.manual_seed(0)
    a, b = torch.randn(x), torch.randn(w)
    with watch() as rows:
        got = F.conv2d(a.to(npu), b.to(npu), **kwargs)
    torch.testing.assert_close(got.cpu(), F.conv2d(a, b, **kwargs), rtol=2e-4, atol=2e-4)
    (row,) = rows.of("aten::convolution")
    return row


@pytest.mark.parametrize(
    ("kwargs", "weight", "reason"),
    [
        ({"stride": 1}, (6, 6, 3, 3), ""),
        ({"stride": 2}, (6, 6, 3, 3), ""),
        (
            {"stride": 3},
            (6, 6, 3, 3),
            "stride is 3, npu_v3_conv2d takes 1, 2, 4 (the convolution unit steps by 1, 2 or 4)",
        ),
        ({"stride": (2, 3)}, (6, 6, 3, 3), "stride is [2, 3], npu_v3_conv2d takes 1, 2, 4"),
        ({"groups": 2}, (6, 3, 3, 3), ""),
        ({"groups": 3}, (6, 2, 3, 3), "groups is 3, npu_v3_conv2d takes 1, 2, 4"),
        ({"dilation": 2}, (6, 6, 3, 3), ""),
        ({"dilation": 3}, (6, 6, 3, 3), "dilation is 3, npu_v3_conv2d takes 1, 2"),
        ({}, (2, 6, 11, 11), ""),
        ({}, (2, 6, 13, 13), "kernel_size is 13, npu_v3_conv2d takes at most 11"),
        ({}, (2, 6, 13, 3), "kernel_size is [13, 3], npu_v3_conv2d takes at most 11"),
    ],
)
def test_limits_of_the_convolution_unit(kwargs: Any, weight: Any, reason: str, npu: torch.device) -> None:
    row = _conv(npu, w=weight, **kwargs)
    if reason:  # a product with the unfolded input instead
        assert row["path"] == "composed"
        assert row["reason"].startswith(reason)
    else:
        assert (row["path"], row["target"]) == ("native", "npu_v3_conv2d")


def test_limits_of_the_convolution_gradient(npu: torch.device) -> None:
    for stride, path in ((2, "native"), (3, "composed")):
        x = torch.randn(1, 2, 9, 9, device=npu, requires_grad=True)
        with watch() as rows:
            F.conv2d(x, torch.ones(2, 2, 3, 3, device=npu), stride=stride).sum().backward()
        assert {row["path"] for row in rows.of("aten::convolution_backward")} == {path}


def test_transposed_and_other_ranks(npu: torch.device) -> None:
    with watch() as rows:
        F.conv_transpose2d(torch.ones(1, 2, 4, 4, device=npu), torch.ones(2, 3, 3, 3, device=npu))
        F.conv3d(torch.ones(1, 2, 4, 4, 4, device=npu), torch.ones(3, 2, 3, 3, 3, device=npu))
    reasons = " ".join(row["reason"] for row in rows.of("aten::convolution"))
    assert "aten::conv2d is no transposed convolution" in reasons
    assert "aten::conv2d takes inputs of rank 4" in reasons


def test_rank(npu: torch.device) -> None:
    for rank, path in ((6, "native"), (7, "composed")):
        x = torch.arange(float(2**rank), device=npu).view((2,) * rank)
        with watch() as rows:
            y = x + x
        (row,) = rows.of("aten::add")
        assert row["path"] == path
        assert torch.equal(y.cpu(), x.cpu() * 2)
    assert row["reason"] == "rank 7 is more than npu_v3 takes (6)"


def test_batch(npu: torch.device) -> None:
    for batch, fits in ((512, True), (513, False)):
        with watch() as rows:
            F.conv2d(torch.ones(batch, 1, 2, 2, device=npu), torch.ones(1, 1, 1, 1, device=npu))
            F.max_pool2d(torch.ones(batch, 1, 2, 2, device=npu), 2)
        for op in ("aten::convolution", "aten::max_pool2d_with_indices"):
            assert {row["path"] == "native" for row in rows.of(op)} == {fits}
    assert "batch size 513 is more than npu_v3 takes (512)" in {row["reason"] for row in rows}


# ------------------------------------------------------------------------------------------------ the cheapest product


def _sdk_cycles(m: int, n: int, k: int, batch: int, dtype: torch.dtype) -> dict[str, float]:
    """The formulas of sdk/npu/README.md for an NPU-V3."""
    rate, size = (25600, 2) if dtype == torch.float16 else (6400, 4)
    memory, cache = 128, 8 << 20

    def up(value: int, tile: int) -> int:
        return -(-value // tile) * tile

    out = m * n * size
    rows = up(m, 16)
    few = 2 * rows * n * k / rate + (rows * k * size + rows // 16 * k * n * size + out) / memory
    tiles = up(m, 64) // 64 * (up(n, 64) // 64)
    compute = 2 * up(m, 64) * up(n, 64) * up(k, 64) / rate
    passes = 1 if (m * k + k * n) * size <= cache else max(1, math.ceil(m * k * size / (cache / 2)))
    data = (m * k * size + passes * k * n * size + out) / memory
    return {
        "npu_v3_matmul": 100 + batch * few,
        "npu_v3_matmul_tiled": 100 + batch * (200 * tiles + compute + data),
        "npu_v3_matmul_pipelined": 100 + 120000 + batch * max(compute, data),
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_choice_among_products(dtype: torch.dtype, npu: torch.device) -> None:
    """What the descriptor's cost model picks costs hardly more by the SDK's clock than the best there is."""
    sizes = (1, 4, 16, 32, 64, 100, 256, 768, 1024, 2048)
    losses = {}
    for m, n, k, batch in itertools.product(sizes, sizes, sizes, (1, 8, 32)):
        x = torch.empty((batch, m, k), dtype=dtype, device="meta")
        y = torch.empty((batch, k, n), dtype=dtype, device="meta")
        taken = torchfl.explain("aten::bmm", x, y, device=DEVICE)["target"]
        cycles = _sdk_cycles(m, n, k, batch, dtype)
        losses[m, n, k, batch] = cycles[taken] / min(cycles.values())
    mean = sum(losses.values()) / len(losses)
    worst = max(losses, key=lambda shape: losses[shape])
    assert mean < 1.005, f"on average {mean:.3f} times the cheapest"
    assert losses[worst] < 1.1, f"{worst} costs {losses[worst]:.2f} times the cheapest"


@pytest.mark.parametrize(
    ("m", "k", "n", "batch", "kernel"),
    [
        (32, 32, 32, 1, "npu_v3_matmul"),
        (4, 768, 768, 1, "npu_v3_matmul"),
        (1024, 768, 1024, 1, "npu_v3_matmul_tiled"),
        (1024, 768, 1024, 32, "npu_v3_matmul_pipelined"),
    ],
)
def test_the_sdks_own_examples(m: int, k: int, n: int, batch: int, kernel: str, npu: torch.device) -> None:
    """sdk/npu/README.md names these, in float16."""
    assert min(_sdk_cycles(m, n, k, batch, torch.float16).items(), key=lambda item: item[1])[0] == kernel
    x = torch.empty((batch, m, k), dtype=torch.float16, device="meta")
    y = torch.empty((batch, k, n), dtype=torch.float16, device="meta")
    assert torchfl.explain("aten::bmm", x, y, device=DEVICE)["target"] == kernel


# ------------------------------------------------------------------------------------------------ the plan cache


def test_three_shapes_alternate(npu: torch.device) -> None:
    shapes = ((3,), (2, 5), (4, 1, 2))
    for n in range(300):
        shape = shapes[n % 3]
        x = torch.full(shape, float(n), device=npu)
        assert (x + n).cpu().unique().tolist() == [2.0 * n]


def _resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


def test_many_shapes_do_not_grow_memory(npu: torch.device) -> None:
    """Dynamic shapes: a signature seen once is not kept for ever."""
    x = torch.zeros(1 << 17, device=npu)

    def run(begin: int, end: int) -> None:
        for stride in range(begin, end):
            x.as_strided((2,), (stride,)).add_(1)

    run(1, 40_000)
    before = _resident()
    run(40_000, 80_000)
    grown = _resident() - before
    assert grown < 48 << 20, f"{grown >> 20} MiB more after 40000 further shapes"
    assert x[0].item() == 79_999


def test_two_threads(npu: torch.device) -> None:
    """Each thread has its own plans; both get their own results."""
    failures: list[str] = []

    def work(seed: int) -> None:
        try:
            generator = torch.Generator().manual_seed(seed)
            for n in range(150):
                shape = (1 + n % 7, 2 + n % 3)
                x = torch.randint(0, 9, shape, generator=generator).float()
                y = x.to(npu)
                if not torch.equal((y * n + y.t().contiguous().t()).cpu(), x * n + x):
                    failures.append(f"thread {seed}, round {n}")
                if not torch.equal(y.cumsum(0).cpu(), x.cumsum(0)):
                    failures.append(f"thread {seed}, round {n}, on the CPU route")
        except Exception as error:
            failures.append(repr(error))

    in_threads(work, 2)
    assert not failures, failures[:3]


def test_plans_outlive_a_nested_clear(npu: torch.device) -> None:
    """An operator that is taken apart calls others, whose plans may fill the cache meanwhile."""
    for n in range(1, 200):
        x = torch.ones(n, 3, device=npu)
        assert F.layer_norm(x.t(), (n,)).shape == (3, n)
        assert torch.arange(n, device=npu).shape == (n,)


def test_module_is_the_shipped_chip() -> None:
    """The recipes and these tests speak of one descriptor."""
    assert ops_support.lowered()["device_type"] == "npu_v3"
