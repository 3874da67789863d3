"""Compiled graphs on a chip whose descriptor rounds the operands of products (`tensor.compute_as`)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from helpers import run_script

from torchfl._paths import shipped_chips

#: NPU-V3 with the choice made; a model, its compiled self on the device, and how far the two are apart.
PRELUDE = """
import copy, torch, torchfl
from torch import nn
torchfl.load({descriptor!r})
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 16), nn.GELU(), nn.Linear(16, 4)
)
ours = copy.deepcopy(model).to("npu_v3:0")
x = torch.randn(2, 3, 8, 8)
d = x.to("npu_v3:0")
compiled = torch.compile(ours, backend="torchfl")

def apart(got, want):
    assert got.dtype == want.dtype == torch.float32
    return float((got.detach().cpu() - want.detach()).abs().max() / want.detach().abs().max())

def rounded(got, want):
    return 1e-5 < apart(got, want) < 3e-2
"""


def run(code: str) -> None:
    ran = run_script(code)
    assert ran.code == 0, ran.err


@pytest.fixture
def prelude(tmp_path: Path) -> str:
    shipped = shipped_chips()["npu_v3"]
    adapter = next(shipped.parent.glob("libuba_npu_v3*.so"))
    descriptor = tmp_path / "rounding.yaml"
    descriptor.write_text(
        f"hcd: 1\nextends: {os.path.relpath(shipped, tmp_path)}\n"
        f"adapter: {{library: {adapter}}}\ntensor: {{compute_as: {{float32: bfloat16}}}}\n"
    )
    return PRELUDE.format(descriptor=str(descriptor))


def test_inference_rounds_keeps_weights_and_gives_float32(prelude: str) -> None:
    run(
        prelude
        + """
model.eval(), ours.eval()
with torch.no_grad():
    for _ in range(3):
        assert rounded(compiled(d), model(x))
    torchfl.reset_stats()
    compiled(d)
    targets = {row["op"]: (row["target"], row["calls"]) for row in torchfl.stats()}
    # The input and the result are converted, and no weight is.
    assert targets["aten::copy_"] == ("copy_nd", 2), targets
    assert targets["torchfl::convolution__native_batch_norm__relu"][0] == "npu_v3_conv2d_norm_relu", targets
    assert targets["torchfl::addmm__gelu"][0] == "npu_v3_linear_gelu", targets
    # A weight that changes is rounded anew.
    for parameter, twin in zip(ours.parameters(), model.parameters()):
        parameter.mul_(1.5), twin.mul_(1.5)
    assert rounded(compiled(d), model(x))
    ours[0].weight.data.neg_(), model[0].weight.data.neg_()
    assert rounded(compiled(d), model(x))
"""
    )


def test_training_rounds_and_gradients_are_float32(prelude: str) -> None:
    run(
        prelude
        + """
for _ in range(2):
    got, want = compiled(d), model(x)
    assert rounded(got, want)
    got.square().sum().backward(), want.square().sum().backward()
for name, parameter in ours.named_parameters():
    twin = model.get_parameter(name)
    assert apart(parameter.grad, twin.grad) < 0.1 or name == "0.bias", name  # which a batch norm takes back to 0
"""
    )


def test_a_region_without_autocast_is_exact_and_eager_stays_as_it_is(prelude: str) -> None:
    run(
        prelude
        + """
model.eval(), ours.eval()

@torch.compile(backend="torchfl")
def exact(d):
    with torch.autocast("npu_v3", enabled=False):
        return ours(d)

with torch.no_grad():
    assert apart(exact(d), model(x)) < 1e-5
    assert apart(ours(d), model(x)) < 1e-5
"""
    )


@pytest.mark.parametrize("choice, code", [("float8_e4m3fn", "HCD014"), ("bfloat16", "HCD052")])
def test_a_choice_that_the_chip_cannot_make_is_refused(tmp_path: Path, choice: str, code: str) -> None:
    from torchfl import hcd

    file = tmp_path / "chip.yaml"
    file.write_text(
        "hcd: 1\nchip: {name: C, vendor: V, device_type: c}\n"
        f"tensor: {{supported_dtypes: [float32, float16], compute_as: {{float32: {choice}}}}}\n"
    )
    assert code in [problem.code for problem in hcd.validate(file)]
