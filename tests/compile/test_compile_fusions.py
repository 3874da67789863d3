"""The descriptor's fusions in compiled graphs: found where they hold, taken by their kernel, right; unfused elsewhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from compile_support import DEVICE, close, same_as_cpu
from torch import nn
from torch.nn import functional as F

import torchfl
from torchfl._paths import shipped_chips

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def rows(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(sum(sizes)))


def fused() -> list[str]:
    return torchfl.compile.programs()[-1]["fusions"]


def paths() -> dict[str, str]:
    """Fused operators that were called since the last reset: which path, or which kernel, and why."""
    return {
        row["op"]: row["target"] + (f": {row['reason']}" if row["path"] != "native" else "")
        for row in torchfl.stats()
        if row["op"].startswith("torchfl::") and row["calls"]
    }


def check(model, *inputs, kernel: str | None, dtype=torch.float32, **options):
    torchfl.reset_stats()
    with torch.no_grad():
        compiled = same_as_cpu(model, *inputs, dtype=dtype, **options)
    assert fused() == ([kernel] if kernel else [])
    if kernel:
        assert list(paths().values()) == [kernel]
    return compiled


def settled(norm: nn.BatchNorm2d) -> nn.BatchNorm2d:
    """With statistics and parameters that are no identity."""
    generator = torch.Generator().manual_seed(1)
    for value in (norm.running_mean, norm.weight.data, norm.bias.data):
        value.copy_(torch.randn(value.shape, generator=generator))
    norm.running_var.copy_(torch.rand(norm.running_var.shape, generator=generator) + 0.5)
    return norm


class Block(nn.Module):
    def __init__(self, form: str, **convolution) -> None:
        super().__init__()
        self.form = form
        self.conv = nn.Conv2d(4, 8, 3, **{"padding": 1, **convolution})
        self.norm = settled(nn.BatchNorm2d(8))

    def forward(self, x, residual=None):
        y = self.norm(self.conv(x))
        if "add" in self.form:
            y = residual + y if "turned" in self.form else y + residual
        return F.relu(y) if "relu" in self.form else y


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("form", "kernel"),
    [
        ("norm", "npu_v3_conv2d_norm"),
        ("norm_relu", "npu_v3_conv2d_norm_relu"),
        ("norm_add_relu", "npu_v3_conv2d_norm_add_relu"),
        ("norm_add_relu_turned", "npu_v3_conv2d_norm_add_relu"),
    ],
)
def test_convolution_chains(form, kernel, dtype):
    torch.manual_seed(0)
    inputs = [rows(2, 4, 6, 5) / 2] + ([rows(2, 8, 6, 5) / 2] if "add" in form else [])
    check(Block(form).eval(), *inputs, kernel=kernel, dtype=dtype)


@pytest.mark.parametrize(
    "options", [{"stride": 2, "bias": False}, {"groups": 2}, {"dilation": 2, "padding": 2}], ids=str
)
def test_convolutions_of_other_forms(options):
    torch.manual_seed(0)
    check(Block("norm_relu", **options).eval(), rows(2, 4, 8, 8), kernel="npu_v3_conv2d_norm_relu")


def test_channels_last():
    torch.manual_seed(0)
    x, residual = (rows(2, c, 6, 6).to(memory_format=torch.channels_last) for c in (4, 8))
    check(Block("norm_add_relu").eval(), x, residual, kernel="npu_v3_conv2d_norm_add_relu")


def test_a_residual_that_lies_otherwise_is_relaid():
    torch.manual_seed(0)
    residual = rows(2, 8, 6, 6).to(memory_format=torch.channels_last)
    check(Block("norm_add_relu").eval(), rows(2, 4, 6, 6), residual, kernel="npu_v3_conv2d_norm_add_relu")


def test_what_the_row_does_not_take_runs_link_by_link():
    torch.manual_seed(0)
    torchfl.reset_stats()
    with torch.no_grad():
        same_as_cpu(Block("norm_relu", stride=3).eval(), rows(2, 4, 9, 9))
    ((path, why),) = (text.split(": ", 1) for text in paths().values())
    assert path == "composite" and "stride" in why and "npu_v3_conv2d_norm_relu" in why
    torchfl.reset_stats()
    with torch.no_grad():
        same_as_cpu(lambda x, y, w: F.layer_norm(torch.add(x, y, alpha=2), (8,), w), rows(3, 8), rows(3, 8), rows(8))
    assert next(iter(paths().values())) == "composite: alpha is 2, npu_v3_layer_norm_residual takes only 1"


def test_training_statistics_are_not_fused():
    torch.manual_seed(0)
    same_as_cpu(Block("norm_relu", bias=False).train(), rows(2, 4, 6, 6))
    assert all(not program["fusions"] for program in torchfl.compile.programs()[-2:])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("activation", "kernel"),
    [
        (nn.GELU(), "npu_v3_linear_gelu"),
        (nn.GELU(approximate="tanh"), "npu_v3_linear_gelu"),
        (nn.ReLU(), "npu_v3_linear_relu"),
    ],
    ids=str,
)
@pytest.mark.parametrize("sizes", [(5, 16), (2, 3, 16)], ids=str)
def test_linear_chains(activation, kernel, sizes, dtype):
    torch.manual_seed(0)
    check(nn.Sequential(nn.Linear(16, 24), activation), rows(*sizes), kernel=kernel, dtype=dtype)


class Residual(nn.Module):
    def __init__(self, turned: bool) -> None:
        super().__init__()
        self.linear, self.turned = nn.Linear(16, 16), turned

    def forward(self, x):
        return x + self.linear(x) if self.turned else self.linear(x) + x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("turned", [False, True])
def test_a_linear_layer_with_its_residual(turned, dtype):
    torch.manual_seed(0)
    check(Residual(turned), rows(2, 3, 16), kernel="npu_v3_linear_add", dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_layer_norm_of_a_sum(dtype):
    norm = nn.LayerNorm(24)
    norm.weight.data.normal_()

    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = norm

        def forward(self, x, y):
            return self.norm(x + y)

    check(Sum(), rows(2, 5, 24), rows(5, 2, 24).transpose(0, 1), kernel="npu_v3_layer_norm_residual", dtype=dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("masked", ["no mask", "one for all heads", "one for each head", "causal", "nothing seen"])
def test_attention(masked, dtype):
    q, k, v = (rows(2, 3, n, 16) for n in (7, 9, 9))
    mask = {
        "no mask": None,
        "one for all heads": rows(2, 1, 7, 9),
        "one for each head": rows(2, 3, 7, 9),
        "causal": torch.zeros(7, 9).masked_fill(torch.ones(7, 9).triu(1).bool(), -torch.inf).expand(2, 1, 7, 9),
        "nothing seen": torch.full((2, 1, 7, 9), -torch.inf),
    }[masked]
    kernel = "npu_v3_attention" if mask is None else "npu_v3_attention_masked"
    check(
        lambda *args: F.scaled_dot_product_attention(*args),
        q,
        k,
        v,
        *([] if mask is None else [mask]),
        kernel=kernel,
        dtype=dtype,
    )


def test_a_mask_of_fewer_dimensions_goes_link_by_link():
    q = rows(2, 3, 6, 8)
    torchfl.reset_stats()
    with torch.no_grad():
        same_as_cpu(lambda q, m: F.scaled_dot_product_attention(q, q, q, m), q, rows(6, 6))


def test_a_result_that_others_read_ends_the_chain():
    torch.manual_seed(0)
    linear = nn.Linear(8, 8)

    class Read(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = linear

        def forward(self, x):
            y = self.linear(x)
            return F.gelu(y), y.sum()

    check(Read(), rows(3, 8), kernel=None)


def test_sizes_that_change():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 12), nn.GELU(), nn.Linear(12, 8))
    reference = nn.Sequential(*(module for module in model))
    ours = torch.compile(to_device(model), backend="torchfl", dynamic=True)
    for n in (3, 7, 2, 7):
        x = rows(n, 4, 8)
        with torch.no_grad():
            close(ours(x.to(DEVICE)), cpu_double(reference)(x.double()))
    assert fused() == ["npu_v3_linear_gelu"]


def to_device(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model).to(DEVICE)


def cpu_double(model: nn.Module) -> nn.Module:
    import copy

    return copy.deepcopy(model).double()


def test_without_fusions():
    torch.manual_seed(0)
    check(Block("norm_relu").eval(), rows(2, 4, 6, 6), kernel=None, options={"fusions": False})


def test_kernels_see_the_layout_that_the_documentation_says():
    c = torchfl._native.engine()
    name = "torchfl::convolution__native_batch_norm__add__relu"
    assert c.schema_of(name, "") == [
        *("input", "weight", "bias", "stride", "padding", "dilation", "transposed", "output_padding", "groups"),
        *("native_batch_norm_weight", "native_batch_norm_bias", "native_batch_norm_running_mean"),
        *("native_batch_norm_running_var", "native_batch_norm_training", "native_batch_norm_momentum"),
        *("native_batch_norm_eps", "add_other", "add_alpha"),
    ]
    with pytest.raises(ValueError, match="two operators or more"):
        c.define_fused(["aten::relu"])
    with pytest.raises(ValueError, match=r"no operator aten::relu\.Foo"):
        c.define_fused(["aten::mm", "aten::relu.Foo"])
    with pytest.raises(ValueError, match="takes no tensor"):
        c.define_fused(["aten::mm", "aten::arange"])
    with pytest.raises(ValueError, match="does not simply give"):
        c.define_fused(["aten::mm", "aten::relu_"])


def test_explain_answers_for_a_chain():
    meta = [torch.empty(*sizes, device="meta") for sizes in ((3, 8), (3, 8), (8,), (8,))]
    given = [meta[0], meta[1], 1, [8], meta[2], meta[3], 1e-5]
    answer = torchfl.explain("torchfl::add__native_layer_norm", *given, device=DEVICE)
    assert (answer["path"], answer["target"]) == ("native", "npu_v3_layer_norm_residual")
    given[2] = 2
    answer = torchfl.explain("torchfl::add__native_layer_norm", *given, device=DEVICE)
    assert answer["path"] == "composite" and answer["reason"].startswith("alpha is 2")


def test_a_fusion_of_an_own_descriptor_and_one_whose_kernel_is_missing(tmp_path):
    """A child of npu_v3 in a process of its own: one chain that nobody else has, one kernel that is not there."""
    from helpers import run_script

    parent = os.path.relpath(shipped_chips()["npu_v3"], tmp_path)
    descriptor = Path(tmp_path) / "mine.yaml"
    descriptor.write_text(
        f"hcd: 1\nextends: {parent}\nfusions:\n"
        "  - {name: product_relu, ops: [aten::addmm, aten::relu], kernel: npu_v3_linear_relu, dtypes: [float32]}\n"
        "  - {name: sine, ops: [aten::mul.Tensor, aten::sin], kernel: npu_v3_mul_sin}\n"
    )
    code = f"""
import torch, torchfl
chip = torchfl.load({str(descriptor)!r})
assert chip.missing_kernels == ["npu_v3_mul_sin"], chip.missing_kernels
x = torch.randn(4, 4)
def function(x):
    return torch.addmm(x, x, x).relu() + (x * x).sin()
got = torch.compile(function, backend="torchfl")(x.to("npu_v3:0"))
torch.testing.assert_close(got.cpu(), function(x))
rows = {{row["op"]: row["path"] for row in torchfl.stats()}}
assert rows["torchfl::addmm__relu"] == "native" and rows["torchfl::mul__sin"] == "composite", rows
"""
    ran = run_script(code)
    assert ran.code == 0, ran.err
