"""Operator names: what they resolve to, and that the tables agree with the installed PyTorch."""

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchfl.hcd import opnames

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("aten::conv1d", ["convolution_overrideable"]),
        ("aten::conv2d", ["convolution_overrideable"]),
        ("aten::conv2d.padding", ["convolution_overrideable"]),
        ("aten::convolution", ["convolution_overrideable"]),
        ("aten::_convolution", ["convolution_overrideable"]),
        ("aten::convolution_backward", ["convolution_backward_overrideable"]),
        ("aten::conv2d_backward", ["convolution_backward_overrideable"]),
        ("aten::softmax", ["_softmax"]),
        ("aten::softmax.int", ["_softmax"]),
        ("aten::log_softmax", ["_log_softmax"]),
        ("aten::_softmax_backward_data", ["_softmax_backward_data"]),
        ("aten::matmul", ["mm", "bmm"]),
        ("aten::linear", ["addmm", "mm"]),
        ("aten::batch_norm", ["native_batch_norm"]),
        ("aten::batch_norm_backward", ["native_batch_norm_backward"]),
        ("aten::layer_norm", ["native_layer_norm"]),
        ("aten::group_norm", ["native_group_norm"]),
        ("aten::max_pool2d", ["max_pool2d_with_indices"]),
        ("aten::max_pool2d_backward", ["max_pool2d_with_indices_backward"]),
        ("aten::adaptive_avg_pool2d", ["_adaptive_avg_pool2d"]),
        ("aten::cross_entropy_loss", ["_log_softmax", "nll_loss_forward"]),
        ("aten::nll_loss", ["nll_loss_forward"]),
        ("aten::scaled_dot_product_attention", ["_scaled_dot_product_fused_attention_overrideable"]),
        ("aten::add", ["add"]),
        ("aten::add_", ["add"]),
        ("aten::add.Tensor", ["add"]),
        ("aten::add_.Tensor", ["add"]),
        ("aten::__and__.Tensor", ["__and__"]),
        ("aten::relu", ["relu"]),
    ],
)
def test_resolve(name, targets):
    assert opnames.resolve(name) == tuple(f"aten::{t}" for t in targets)


def test_other_namespaces_are_taken_as_they_are():
    assert opnames.resolve("mylib::thing.out") == ("mylib::thing",)
    assert opnames.known(opnames.parse("mylib::thing"))


@pytest.mark.parametrize(
    "name", ["", "add", "aten::", "::add", "aten::add.", "aten::a b", "aten:add", "aten::" + "a" * 300]
)
def test_not_names(name):
    assert opnames.parse(name) is None


def test_derived_quantities_are_those_that_make_sense():
    assert {"M", "N", "K"} <= opnames.derived("aten::mm") and "kernel_size" not in opnames.derived("aten::mm")
    assert {"kernel_size", "in_channels"} <= opnames.derived("aten::convolution_overrideable")
    assert "K" not in opnames.derived("aten::convolution_overrideable")
    assert "channels" in opnames.derived("aten::native_batch_norm")
    assert {"heads", "seq_len", "head_dim"} <= opnames.derived("aten::_scaled_dot_product_fused_attention_overrideable")
    assert {"kernel_size", "channels"} <= opnames.derived("aten::max_pool2d_with_indices")
    for op in ("aten::add", "aten::mm", "aten::sum"):
        assert opnames.DERIVED_ALWAYS <= opnames.derived(op) <= opnames.DERIVED


def test_special_cases_do_not_stand_for_the_general_one():
    for name in opnames._BECOMES:
        assert opnames.resolve(f"aten::{name}") == (f"aten::{name}",)
        target = opnames.becomes(name)
        assert all(t.removeprefix("aten::") in opnames.table() for t in opnames.resolve(target))
    assert opnames.becomes("relu") is None


def test_arguments():
    assert opnames.arguments("aten::convolution_overrideable")["stride"] == "n"
    assert opnames.arguments("aten::convolution_overrideable")["bias"] == "t?"
    assert opnames.arguments("aten::add")["alpha"] == "n"
    assert opnames.arguments("mylib::thing") == {}


def test_every_resolved_name_is_in_the_table():
    for name in opnames._REACHES:
        for target in opnames.resolve(f"aten::{name}"):
            assert target.removeprefix("aten::") in opnames.table(), (name, target)
            assert not opnames.is_composite(target), (name, target)


ARRIVALS = """
import torch, torch.nn.functional as F
from torch.utils._pytree import tree_map

seen = []

class Recorder(torch.Tensor):  # claims to be on PrivateUse1, so PyTorch takes that backend's branches
    def __new__(cls, inner):
        device = torch.device("privateuseone:0")
        return torch.Tensor._make_wrapper_subclass(cls, inner.size(), dtype=inner.dtype, device=device)
    def __init__(self, inner):
        self.inner = inner
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        seen.append(func._schema.name)
        bare = lambda x: x.inner if isinstance(x, cls) else x
        out = func(*tree_map(bare, args), **tree_map(bare, kwargs or {}))
        return tree_map(lambda x: cls(x) if isinstance(x, torch.Tensor) else x, out)

r = lambda *size: Recorder(torch.rand(*size))
x, t = r(2, 4, 8, 8), Recorder(torch.tensor([1, 0, 2]))
CALLS = {
    "softmax": lambda: F.softmax(x, 1), "log_softmax": lambda: F.log_softmax(x, 1),
    "matmul": lambda: (r(3, 4) @ r(4, 5), r(2, 3, 4) @ r(2, 4, 5)),
    "linear": lambda: (F.linear(r(3, 4), r(5, 4), r(5)), F.linear(r(3, 4), r(5, 4))),
    "layer_norm": lambda: F.layer_norm(x, (8,)), "group_norm": lambda: F.group_norm(x, 2),
    "max_pool2d": lambda: F.max_pool2d(x, 2), "max_pool3d": lambda: F.max_pool3d(r(1, 2, 4, 4, 4), 2),
    "adaptive_avg_pool2d": lambda: F.adaptive_avg_pool2d(x, 2),
    "cross_entropy_loss": lambda: F.cross_entropy(r(3, 4), t), "nll_loss": lambda: F.nll_loss(r(3, 4), t),
    "dropout": lambda: F.dropout(x, 0.5, True), "log_sigmoid": lambda: F.logsigmoid(x),
    "prelu": lambda: F.prelu(x, r(1)), "cdist": lambda: torch.cdist(r(3, 4), r(3, 4)),
    "multiply": lambda: torch.multiply(x, x), "clip": lambda: torch.clip(x, 0, 1), "concat": lambda: torch.concat([x]),
    "add": lambda: x + x,
}
from torchfl.hcd import opnames
for name, call in CALLS.items():
    seen.clear()
    call()
    for target in opnames.resolve("aten::" + name):
        assert target in seen, (name, target, seen)
"""


def _run_with_torch(*args):
    """In a process of its own: what other tests do to torch must not show here, nor the other way round."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    if not importlib.metadata.version("torch").startswith("2.13."):
        pytest.skip("the tables were made from torch 2.13")
    env = {**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    done = subprocess.run([sys.executable, *args], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_names_arrive_as_the_tables_say():
    _run_with_torch("-c", ARRIVALS)


def test_the_tables_agree_with_torch():
    """That every resolved name exists follows: test_every_resolved_name_is_in_the_table looks them up in the table."""
    _run_with_torch(str(ROOT / "tools" / "gen_opnames.py"), "--check")
