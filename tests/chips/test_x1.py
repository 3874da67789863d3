"""The X1: a network on a chip that shares the host's memory, and int8 by way of units that know uint8 only."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from helpers import ROOT, OwnProcess, environment, run_script

# In the runtime's unforgiving mode: what it does not reach, or cannot do, would end the process.
chip = OwnProcess("x1", timeout=300, X1_SIM_UNFORGIVING="1")


def device():
    import torch

    import torchfl

    torchfl.load("x1")
    return torch.device("xpu:0")


def ran(function):
    """The result, and the path and the kernel of each operator."""
    import torchfl

    torchfl.reset_stats()
    result = function()
    return result, {row["op"].split(".")[0]: (row["path"], row["target"]) for row in torchfl.stats()}


def left(paths):
    return [op for op, (path, _) in paths.items() if path == "cpu"]


def resnet18():
    spec = importlib.util.spec_from_file_location("benchmark_workloads", ROOT / "benchmarks" / "workloads.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module.resnet(18, 10)


@chip
def test_resnet18_never_leaves_the_chip() -> None:
    import copy

    import torch
    from torch.nn import functional as F

    d = device()
    torch.manual_seed(0)
    model, images, labels = resnet18(), torch.randn(2, 3, 64, 64), torch.tensor([3, 5])
    ours = copy.deepcopy(model).to(d)
    with torch.no_grad():
        want = model.eval()(images)
        got, paths = ran(lambda: ours.eval()(images.to(d)))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
    assert not left(paths) and paths["aten::convolution"][0] in ("native", "composed"), paths

    def step(network, x, y):
        network.train().zero_grad()
        loss = F.cross_entropy(network(x), y)
        loss.backward()
        torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9).step()
        return loss.detach()

    want = step(model, images, labels)
    got, paths = ran(lambda: step(ours, images.to(d), labels.to(d)))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4)
    assert not left(paths), paths
    for theirs, mine in zip(model.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), rtol=1e-3, atol=1e-3)


@chip
def test_units_and_their_limits() -> None:
    import torch
    from torch.nn import functional as F

    d = device()
    x, w = torch.randn(2, 8, 12, 12), torch.randn(8, 8, 3, 3)

    def same(function, *arguments, path=None):
        want = function(*arguments)
        got, paths = ran(lambda: function(*(a.to(d) for a in arguments)))
        torch.testing.assert_close(got.cpu(), want, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert path is None or path in paths.values(), paths

    same(lambda x, w: F.conv2d(x, w, stride=4, padding=2), x, w, path=("native", "x1_conv2d"))
    same(lambda x, w: F.conv2d(x, w, dilation=2), x, w, path=("composed", "program"))
    same(lambda x, w: F.conv2d(x, w, padding=3), x, w, path=("composed", "program"))
    same(lambda x, w: F.conv2d(x, w[:, :1], groups=8), x, w, path=("composed", "program"))
    same(lambda x, w: F.conv1d(x[:, :, 0], w[:, :, 0], stride=2), x, w, path=("native", "x1_conv2d"))
    same(lambda x, w: F.conv_transpose2d(x, w, stride=2), x, w, path=("composed", "program"))
    same(lambda x: F.max_pool2d(x, 3, 2, 1, ceil_mode=True), x, path=("native", "x1_max_pool2d"))
    same(lambda x: F.avg_pool2d(x, 3, 2, 1, True, False), x, path=("native", "x1_avg_pool2d"))
    same(lambda x: F.avg_pool2d(x[0], 2, divisor_override=3), x, path=("native", "x1_avg_pool2d"))
    same(lambda x: x.sum((0, 2)), x, path=("native", "x1_sum"))
    same(lambda x: x.softmax(1), x * 30, path=("custom", "custom_softmax_x1"))
    same(lambda x: x.softmax(-1), x[0, 0].log(), path=("custom", "custom_softmax_x1"))  # NaN
    same(lambda x: x.log_softmax(1), x, path=("composed", "program"))
    same(lambda x: x + x[:, :1] * 2, x, path=("native", "x1_vadd"))
    same(lambda x: torch.baddbmm(x[0], x[0], x[1], alpha=2, beta=0.5), x, path=("native", "x1_matmul"))
    same(lambda x: torch.addmm(x[0, 0, 0] * float("nan"), x[0, 0], x[1, 1], beta=0), x, path=("native", "x1_matmul"))
    half, paths = ran(lambda: F.conv2d(x.half().to(d), w.half().to(d)))
    torch.testing.assert_close(half.float().cpu(), F.conv2d(x.half().float(), w.half().float()), rtol=2e-3, atol=2e-3)
    assert paths["aten::convolution"] == ("native", "x1_conv2d")


@chip
def test_int8_reaches_units_that_take_uint8_with_zero_point_128() -> None:
    """All 256 values, and results that wrap around, as on the CPU."""
    import torch
    from torch.nn import functional as F

    d = device()
    every = torch.arange(-128, 128).to(torch.int8)
    a, b = every.repeat_interleave(256), every.repeat(256)
    x = torch.randint(-128, 128, (2, 4, 9, 9), dtype=torch.int8)
    w, bias = torch.randint(-128, 128, (8, 4, 3, 3), dtype=torch.int8), torch.randint(-128, 128, (8,), dtype=torch.int8)
    m = torch.randint(-128, 128, (32, 64), dtype=torch.int8)
    calls = {
        "x1_vadd": (torch.add, a, b),
        "x1_vsub": (torch.sub, a, b),
        "x1_vmul": (torch.mul, a, b),
        "x1_conv2d": (lambda x, w, c: F.conv2d(x, w, c, stride=2, padding=1), x, w, bias),
        "x1_matmul": (lambda p, q: p @ q.t(), m, m),
    }
    for kernel, (function, *arguments) in calls.items():
        want = function(*arguments)
        got, paths = ran(lambda f=function, args=arguments: f(*(t.to(d) for t in args)))
        assert torch.equal(got.cpu(), want) and got.dtype == torch.int8, kernel
        assert ("native", kernel) in paths.values(), paths
    assert torch.equal(F.linear(m.to(d), m.to(d)).cpu(), F.linear(m, m))
    got, paths = ran(lambda: torch._int_mm(m.to(d), m.t().to(d)))
    assert torch.equal(got.cpu(), torch._int_mm(m, m.t())) and got.dtype == torch.int32
    assert paths["aten::_int_mm"] == ("native", "x1_matmul")
    for function in (lambda a, b: a + 5, lambda a, b: a < b, lambda a, b: -a, lambda a, b: a.amax(0), torch.maximum,
                     lambda a, b: a.view(256, 256).sum(1), lambda a, b: a.float() / 3, lambda a, b: a.clamp(-3, 9)):  # fmt: skip
        got, paths = ran(lambda f=function: f(a.to(d), b.to(d)))
        assert torch.equal(got.cpu(), function(a, b)) and not left(paths), paths


class Net:
    """Convolutions and a linear layer, as a module and with numbers to try it on."""

    def __new__(cls):
        import torch
        from torch import nn

        torch.manual_seed(0)
        layers = (nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten())
        return nn.Sequential(*layers, nn.Linear(8 * 7 * 7, 10)).eval(), torch.randn(4, 3, 16, 16)


@chip
def test_a_static_int8_model_of_int8_tensors_gives_the_results_of_the_cpu() -> None:
    """As torch.export's quantizers leave it: int8 tensors between operators of plain arithmetic."""
    import copy
    import warnings

    import torch

    warnings.simplefilter("ignore")
    from torch.ao.quantization import get_default_qconfig_mapping
    from torch.ao.quantization.quantize_fx import _convert_to_reference_decomposed_fx, prepare_fx

    d = device()
    model, x = Net()
    prepared = prepare_fx(model, get_default_qconfig_mapping("onednn"), (x,))
    prepared(x)
    quantized = _convert_to_reference_decomposed_fx(prepared)
    assert any("quantize_per_tensor" in str(node.target) for node in quantized.graph.nodes)
    want = quantized(x)
    ours = copy.deepcopy(quantized).to(d)
    with torch.no_grad():
        got, paths = ran(lambda: ours(x.to(d)))
    # A sum in another order may fall on the other side of a rounding: one step of the last quantizer.
    step = float(next(v for k, v in reversed(list(quantized.named_buffers())) if "scale" in k).max())
    assert (got.cpu() - want).abs().max() <= 2 * step
    assert paths["aten::convolution"] == ("native", "x1_conv2d") and not left(paths), paths


@chip
def test_a_dynamic_int8_model_gives_the_results_of_the_cpu() -> None:
    import copy
    import warnings

    import torch

    warnings.simplefilter("ignore")
    d = device()
    model, x = Net()
    # PyTorch's own layers, whose weights are packed for the CPU: those run there, the convolutions on the chip.
    quantized = torch.ao.quantization.quantize_dynamic(model, {torch.nn.Linear}, dtype=torch.qint8)
    want = quantized(x)
    got, paths = ran(lambda: copy.deepcopy(quantized).to(d)(x.to(d)))
    torch.testing.assert_close(got.cpu(), want, rtol=1e-3, atol=2e-2)
    assert paths["aten::convolution"][0] == "native" and paths["quantized::linear_dynamic"][0] == "cpu"

    # int8 weights, activations quantized by what they are, the product in whole numbers: all on the chip.
    linear = model[-1]
    weight_scale = linear.weight.detach().abs().amax(1) / 127
    weight = (linear.weight.detach() / weight_scale[:, None]).round().to(torch.int8)

    def dynamic(activation, weight, scale, bias):
        by = activation.abs().amax() / 127
        numbers = (activation / by).round().clamp(-128, 127).to(torch.int8)
        return torch._int_mm(numbers, weight.t()).float() * (by * scale) + bias

    rows = torch.randn(32, linear.in_features)
    arguments = (rows, weight, weight_scale, linear.bias.detach())
    got, paths = ran(lambda: dynamic(*(a.to(d) for a in arguments)))
    torch.testing.assert_close(got.cpu(), dynamic(*arguments), rtol=1e-4, atol=1e-4)
    assert paths["aten::_int_mm"] == ("native", "x1_matmul") and not left(paths), paths


@chip
def test_quantized_tensors_are_refused_with_what_to_use_instead() -> None:
    import pytest
    import torch

    d = device()
    x = torch.randn(4, 4)
    with pytest.raises(NotImplementedError, match=r"quantized tensors .*stay on the CPU.*int8 numbers"):
        torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).to(d)
    with pytest.raises(NotImplementedError, match=r"quantized tensors .*stay on the CPU.*int8 numbers"):
        torch.quantize_per_tensor(x.to(d), 0.1, 0, torch.qint8)


TOGETHER = """
import torch
import torchfl

npu, x1 = torchfl.load("npu_v3"), torchfl.load("x1")
assert [str(d["label"]) for d in torchfl.devices()] == ["npu_v3:0", "xpu:0"], torchfl.devices()
for dtype in (torch.float32, torch.float16, torch.int8, torch.int64, torch.bool, torch.float64, torch.complex64):
    made = torch.randn(5, 7, 3).mul(50).to(dtype)
    for shaped in (made, made.transpose(0, 2), made[1:, ::2], made[:0], made[0, 0, 0]):
        there = shaped.to("npu_v3:0")
        other = there.to("xpu:0")
        back = other.to("npu_v3:0")
        assert str(other.device) != str(back.device) and back.device == there.device
        assert torch.equal(other.cpu(), shaped) and torch.equal(back.cpu(), shaped), (dtype, shaped.shape)
x = torch.randn(2, 3, 16, 16)
w = torch.randn(4, 3, 3, 3)
torchfl.reset_stats()
half_way = torch.conv2d(x.to("npu_v3:0"), w.to("npu_v3:0"), padding=1)
all_of_it = torch.conv2d(half_way.to("xpu:0"), w.transpose(0, 1).to("xpu:0"), padding=1)
want = torch.conv2d(torch.conv2d(x, w, padding=1), w.transpose(0, 1), padding=1)
torch.testing.assert_close(all_of_it.cpu(), want, rtol=1e-3, atol=1e-3)
kernels = {(row["device"], row["target"]) for row in torchfl.stats() if "convolution" in row["op"]}
assert kernels == {("npu_v3:0", "npu_v3_conv2d"), ("xpu:0", "x1_conv2d")}, kernels
try:
    half_way + all_of_it[:, :1]
except RuntimeError as error:
    assert "same device" in str(error) or "devices" in str(error), error
else:
    raise AssertionError("tensors of two devices were added")
print("ok")
"""


def test_it_works_beside_a_chip_with_memory_of_its_own() -> None:
    result = run_script(TOGETHER, env={"X1_SIM_UNFORGIVING": "1"})
    assert result.code == 0 and result.out.strip() == "ok", result.err[-3000:]


def test_mapped_memory_moves_less_than_a_hundredth_of_what_naive_copies_do() -> None:
    command = [sys.executable, str(ROOT / "benchmarks" / "memory.py"), "--json"]
    command += ["--size", "64", "--batch", "2", "--rounds", "2"]
    ran = subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    rows = {row["strategy"]: row for row in json.loads(ran.stdout)["rows"]}
    parameters = 4 * 11_000_000
    assert rows["naive"]["bytes"] > parameters, "every operator's operands are copied, the weights too"
    assert rows["mapped"]["bytes"] < rows["naive"]["bytes"] / 100
    assert rows["lazy"]["setup_bytes"] > parameters > rows["mapped"]["setup_bytes"], "once, and never"
    assert not any(row["cpu_path"] for row in rows.values())
