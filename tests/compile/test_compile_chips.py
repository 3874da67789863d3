"""torch.compile with several devices and unlike chips in one process, and on chips that have no fusions."""

from __future__ import annotations

from helpers import run_script

COMMON = """
import copy
import torch
import torchfl
from torch import nn

for chip in ("npu_v3", "npu_v2", "fpga_mm"):
    torchfl.load(chip)


def close(a, b, tolerance=2e-5):
    torch.testing.assert_close(a.detach().cpu().double(), b.detach().cpu().double(), rtol=tolerance, atol=tolerance)


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
                         nn.Linear(8 * 36, 16), nn.GELU(), nn.Linear(16, 4))
"""


def passes(code: str, **env: str) -> None:
    ran = run_script(COMMON + code, env=env)
    assert ran.code == 0, ran.err[-3000:]


def test_every_chip_trains_compiled():
    passes(
        """
for device in ("npu_v3:1", "npu:0", "fpga_mm:0"):
    torch._dynamo.reset()
    reference, ours = model().double(), model().to(device)
    compiled = torch.compile(ours, backend="torchfl")
    x = torch.randn(2, 3, 6, 6)
    for training in (True, False):
        reference.train(training), ours.train(training)
        for _ in range(3):
            got, want = compiled(x.to(device)), reference(x.double())
            close(got, want)
            got.square().sum().backward()
            want.square().sum().backward()
    for p, q in zip(ours.parameters(), reference.parameters()):
        close(p.grad / q.grad.abs().max(), q.grad / q.grad.abs().max(), 1e-4)
    with torch.no_grad():
        close(compiled(x.to(device)), reference(x.double()))
    fusions = torchfl.compile.programs()[-1]["fusions"]
    assert (len(fusions) == 2) == device.startswith("npu_v3"), (device, fusions)
""",
        NPU_SIM_DEVICES="2",
    )


def test_cases_33_and_41_on_another_chip():
    passes(
        """
from own_backward import Square

for backend in ("torchfl", "inductor"):
    x = torch.randn(4).to("fpga_mm:0").requires_grad_()
    torch.compile(lambda t: (Square.apply(t) + torch.tensor([1], device=t.device)).sum(), backend=backend)(x).backward()
    close(x.grad, 3 * x)
    made = torch.compile(lambda t: t + torch.tensor([1], device=t.device), backend=backend)(x)
    close(made, x + 1)
"""
    )


def test_a_graph_over_two_devices_and_two_chips():
    passes(
        """
for other in ("npu_v3:1", "fpga_mm:0"):
    for backend in ("torchfl", "inductor"):
        torch._dynamo.reset()

        def function(x):
            there = (x * 2).to(other)
            there = (there @ there).relu()
            return there.to(x.device) + x, there

        compiled = torch.compile(function, backend=backend)
        data = torch.randn(4, 4)
        want = data.double().requires_grad_()
        y = (want * 2 @ (want * 2)).relu()
        (y + want).sum().backward()
        for _ in range(3):
            x = data.to("npu_v3:0").requires_grad_()
            back, there = compiled(x)
            assert there.device == torch.zeros(1, device=other).device and back.device == x.device
            close(there, y), close(back, y + want)
            back.sum().backward()
            close(x.grad, want.grad)
""",
        NPU_SIM_DEVICES="2",
    )


def test_the_backend_is_there_without_a_chip_and_inductor_is_left_alone_after_shutdown():
    ran = run_script(
        """
import torch
from torchfl import compile as torchfl_compile

x = torch.linspace(-1, 1, 5)
torch.testing.assert_close(torch.compile(lambda t: t.sin() + 1, backend=torchfl_compile.backend)(x), x.sin() + 1)
import torchfl
torchfl.load("npu_v3")
from torch._inductor import compile_fx
assert hasattr(compile_fx.compile_fx, "_torchfl_before")
torchfl.shutdown()
assert not hasattr(compile_fx.compile_fx, "_torchfl_before")
"""
    )
    assert ran.code == 0, ran.err[-3000:]


def test_loading_a_chip_imports_nothing_of_the_compiler():
    ran = run_script(
        """
import sys
import torchfl
torchfl.load("npu_v3")
import torch
torch.ones(2, device="npu_v3:0")
assert not [name for name in sys.modules if name.startswith(("torch._dynamo", "torch._inductor"))]
import torch._dynamo
assert "torchfl" in torch._dynamo.list_backends()
"""
    )
    assert ran.code == 0, ran.err[-3000:]
