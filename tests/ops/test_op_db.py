"""PyTorch's own list of operators and sample inputs (op_db), on the device against the CPU: results, and gradients.

The quick run takes the operators that models use; `-m slow` takes all of them in more dtypes. What is left out stands
in EXCLUDED, with its reason.
"""

from __future__ import annotations

import functools
import itertools
import re
import warnings
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from ops_support import DEVICE, assert_equal_to_reference, on_cpu
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves, tree_map

SAMPLES = 2

#: name of the entry (a regular expression) -> why its results are not compared, or it does not run at all.
EXCLUDED: dict[str, str] = {
    r"sparse\..*|to_sparse|.*sparse.*": "the device holds strided tensors only, as the error says",
    r"as_strided.*": "the sample looks behind its tensor, and a copy to the device takes the tensor alone",
    r"tensor_split": "one sample splits at indices that are a device tensor, which no device but the CPU takes",
    r"empty.*|new_empty.*|.*uninitialized.*": "the values are whatever the memory held",
    r"rand.*|normal.*|bernoulli|multinomial|cauchy|exponential|geometric|log_normal|uniform.*": "random numbers",
    r"nn\.functional\.(.*dropout.*|rrelu|fractional_max_pool.*|gumbel_softmax)": "random numbers",
    r"nn\.functional\.scaled_dot_product_attention": "one sample in two drops at random; tests/ops/test_training.py has it",
    r"svd.*|linalg\.(svd|eig|eigh|qr).*|geqrf|pca_lowrank|svd_lowrank|ormqr|symeig": "vectors are unique up to a sign",
    r"linalg\.(lstsq|ldl_factor|ldl_factor_ex|lu_factor|lu_factor_ex|pinv).*|lu.*": "not unique for singular samples",
}

#: The same for gradients alone.
EXCLUDED_BACKWARD: dict[str, str] = {
    r"std.*|var.*|.*norm.*|linalg\..*|.*dist.*": "samples with a norm of 0 have no unique gradient",
    r"nn\.functional\.(ctc_loss|max_unpool.*|grid_sample)": "double precision takes another branch at the kinks of the samples",
    r"a?max|a?min|sort|topk|kthvalue|median|nanmedian|mode|msort|cummax|cummin": "equal elements share a gradient in any way",
    r"masked\..*": "PyTorch composes these of operators that are in the list themselves",
}

#: What the quick run takes: the operators that models are made of.
QUICK = [
    "abs",
    "add",
    "addmm",
    "addmv",
    "addcdiv",
    "addcmul",
    "all",
    "amax",
    "amin",
    "any",
    "arange",
    "argmax",
    "argmin",
    "argsort",
    "atan2",
    "baddbmm",
    "bitwise_and",
    "bmm",
    "bool",
    "broadcast_to",
    "cat",
    "ceil",
    "chunk",
    "clamp",
    "clone",
    "contiguous",
    "cos",
    "cumprod",
    "cumsum",
    "diag",
    "diagonal",
    "div",
    "dot",
    "eq",
    "erf",
    "exp",
    "expand",
    "expm1",
    "eye",
    "fill",
    "flatten",
    "flip",
    "floor",
    "floor_divide",
    "fmod",
    "full",
    "full_like",
    "gather",
    "ge",
    "gt",
    "heaviside",
    "hypot",
    "index_add",
    "index_copy",
    "index_fill",
    "index_put",
    "index_select",
    "isclose",
    "isfinite",
    "isin",
    "isnan",
    "le",
    "lerp",
    "linspace",
    "log",
    "log1p",
    "log_softmax",
    "logaddexp",
    "logical_and",
    "logical_not",
    "logsumexp",
    "lt",
    "masked_fill",
    "masked_scatter",
    "masked_select",
    "matmul",
    "max",
    "maximum",
    "mean",
    "median",
    "min",
    "minimum",
    "mm",
    "mul",
    "mv",
    "nan_to_num",
    "narrow",
    "ne",
    "neg",
    "nonzero",
    "norm",
    "nn.functional.adaptive_avg_pool2d",
    "nn.functional.avg_pool2d",
    "nn.functional.batch_norm",
    "nn.functional.bilinear",
    "nn.functional.binary_cross_entropy",
    "nn.functional.conv1d",
    "nn.functional.conv2d",
    "nn.functional.conv_transpose2d",
    "nn.functional.cosine_similarity",
    "nn.functional.cross_entropy",
    "nn.functional.elu",
    "nn.functional.embedding",
    "nn.functional.gelu",
    "nn.functional.group_norm",
    "nn.functional.hardswish",
    "nn.functional.hardtanh",
    "nn.functional.instance_norm",
    "nn.functional.interpolate",
    "nn.functional.kl_div",
    "nn.functional.layer_norm",
    "nn.functional.leaky_relu",
    "nn.functional.linear",
    "nn.functional.logsigmoid",
    "nn.functional.max_pool2d",
    "nn.functional.mse_loss",
    "nn.functional.nll_loss",
    "nn.functional.one_hot",
    "nn.functional.pad",
    "nn.functional.pixel_shuffle",
    "nn.functional.prelu",
    "nn.functional.relu",
    "nn.functional.silu",
    "nn.functional.smooth_l1_loss",
    "nn.functional.softplus",
    "nn.functional.unfold",
    "ones_like",
    "outer",
    "permute",
    "pow",
    "prod",
    "reciprocal",
    "remainder",
    "repeat",
    "repeat_interleave",
    "reshape",
    "roll",
    "round",
    "rsqrt",
    "rsub",
    "scatter",
    "scatter_add",
    "select",
    "sigmoid",
    "sign",
    "sin",
    "softmax",
    "sort",
    "split",
    "sqrt",
    "square",
    "squeeze",
    "stack",
    "std",
    "sub",
    "sum",
    "t",
    "take",
    "tanh",
    "tile",
    "topk",
    "trace",
    "transpose",
    "tril",
    "triu",
    "trunc",
    "unbind",
    "unfold",
    "unique",
    "unsqueeze",
    "var",
    "view",
    "where",
    "zeros_like",
]

#: How much more than one rounding of the dtype a result may be off: sums of products in another order.
ULPS = {torch.float32: 400, torch.float16: 8, torch.bfloat16: 8, torch.complex64: 800}
#: Operators that double precision cannot judge: single precision cancels in them on the CPU too.
SINGLE_PRECISION = re.compile(
    r"cross|cov|corrcoef|.*det.*|.*inv.*|linalg\..*|cholesky.*|.*solve.*|matrix_exp|fft\..*|stft|istft|digamma|"
    r"polygamma.*|special\..*|.*lgamma.*|mvlgamma.*|nn\.functional\.grid_sample|tan|acos.*|asin.*|atanh|erfinv|"
    r"logcumsumexp|trapezoid|trapz|cumulative_trapezoid|gradient|cdist|pow|float_power|.*pow.*|rsqrt|.*norm.*|"
    r"floor_divide|remainder|fmod|div_.*|div|divide|nextafter|frexp|ldexp|isclose|allclose|floor|ceil|trunc|round|"
    r"quantile|nanquantile|histc|histogram.*|bucketize|searchsorted|unique.*|where|argsort|std.*|var.*"
)


def _matches(table: dict[str, str], op: OpInfo) -> bool:
    return any(re.fullmatch(pattern, op.name) for pattern in table)


def _name(op: OpInfo) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def _tested() -> list[OpInfo]:
    return [op for op in op_db if not _matches(EXCLUDED, op)]


def _moved(tree: Any, device: Any, dtype: torch.dtype | None = None) -> Any:
    """A copy of (nested) arguments on a device; floating tensors in `dtype`, if given."""

    def one(value: Any) -> Any:
        if isinstance(value, torch.device):
            return torch.device(device)
        if not isinstance(value, torch.Tensor):
            return value
        detached = value.detach()
        if dtype is not None and detached.dtype.is_floating_point:
            detached = detached.to(dtype)
        copied = detached.to(device) if str(device) != "cpu" else detached.clone()
        return copied.requires_grad_(value.requires_grad)

    return tree_map(one, tree)


def _call(op: OpInfo, sample: SampleInput, device: Any, dtype: torch.dtype | None) -> tuple[Any, list[torch.Tensor]]:
    """The result, and the tensors that take a gradient."""
    self, args, kwargs = _moved((sample.input, sample.args, sample.kwargs), device, dtype)
    if dtype is not None:
        kwargs = {k: dtype if isinstance(v, torch.dtype) and v.is_floating_point else v for k, v in kwargs.items()}
    tensors = [t for t in tree_leaves((self, args, kwargs)) if isinstance(t, torch.Tensor)]
    if not tensors:
        kwargs = {**kwargs, "device": device}  # a factory
    leaves = [t for t in tensors if t.requires_grad]
    torch.manual_seed(0)
    result = op(self, *args, **kwargs)
    return result, leaves


def _gradients(result: Any, leaves: list[torch.Tensor], process: Any) -> list[Any]:
    outputs = [t for t in tree_leaves(process(result)) if isinstance(t, torch.Tensor) and t.requires_grad]
    if not outputs or not leaves:
        return []
    weights = []
    for output in outputs:
        pattern = torch.linspace(0.5, 1.5, max(output.numel(), 1), dtype=torch.float64)[: output.numel()]
        weights.append(pattern.view(output.shape).to(output.dtype).to(output.device))
    return list(torch.autograd.grad(outputs, leaves, weights, allow_unused=True))


def _compare(op: OpInfo, dtype: torch.dtype, samples: Iterable[SampleInput], backward: bool) -> int:
    compared = 0
    wide = None
    if dtype.is_floating_point and not SINGLE_PRECISION.fullmatch(op.name) and torch.float64 in op.dtypes:
        wide = torch.float64
    for i, sample in enumerate(samples):
        what = f"{_name(op)}, {dtype}, sample {i}"
        try:
            right, right_leaves = _call(op, sample, "cpu", wide)
            right_grads = _gradients(right, right_leaves, sample.output_process_fn_grad) if backward else []
        except (RuntimeError, NotImplementedError, IndexError, ValueError, TypeError) as error:
            if wide is None:
                continue  # the CPU has no such kernel: nothing to compare with
            right, right_leaves = _call(op, sample, "cpu", None)
            right_grads = _gradients(right, right_leaves, sample.output_process_fn_grad) if backward else []
            del error
        got, leaves = _call(op, sample, DEVICE, None)
        grads = _gradients(got, leaves, sample.output_process_fn_grad) if backward else []
        for tensor in tree_leaves(got):
            if isinstance(tensor, torch.Tensor) and tensor.numel() > 0 and op.name not in ("to", "item"):
                assert tensor.device == torch.device(DEVICE), f"{what}: the result is on {tensor.device}"
        compared += 1
        ulps = ULPS.get(dtype, 400)
        scale = max((float(t.detach().abs().max()) for t in tree_leaves(on_cpu(right)) if isinstance(t, torch.Tensor) and t.is_floating_point() and t.numel() and torch.isfinite(t).all()), default=1.0)  # fmt: skip
        further = max(scale, 1.0) * {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}.get(dtype, 2e-5)
        assert_equal_to_reference(got, right, dtype, ulps, what, further)
        for n, (mine, other) in enumerate(zip(grads, right_grads, strict=True)):
            assert (mine is None) == (other is None), f"{what}: gradient {n} is missing on one side"
            if mine is not None:
                biggest = max(float(other.detach().abs().nan_to_num(0, 0, 0).max()) if other.numel() else 1.0, 1.0)
                assert_equal_to_reference(mine, other, dtype, ulps, f"{what}, gradient {n}", further * biggest)
    return compared


def _run(op: OpInfo, dtype: torch.dtype, count: int | None, backward: bool = False) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = op.sample_inputs("cpu", dtype, requires_grad=backward)
        samples = [s for s in itertools.islice(made, count)]
        compared = _compare(op, dtype, samples, backward)
    assert compared or not samples, f"{_name(op)}: the CPU computed none of {len(samples)} samples in {dtype}"


def _by_name(name: str) -> list[OpInfo]:
    return [op for op in _tested() if op.name == name]


QUICK_OPS = [op for name in QUICK for op in _by_name(name)]


def test_the_quick_list_is_in_op_db() -> None:
    missing = [name for name in QUICK if not _by_name(name)]
    assert not missing, f"not in op_db, or excluded: {missing}"
    assert len(QUICK_OPS) >= 120


def test_exclusions_are_needed() -> None:
    """Every pattern excludes something that exists."""
    for pattern in (*EXCLUDED, *EXCLUDED_BACKWARD):
        assert any(re.fullmatch(pattern, op.name) for op in op_db), f"{pattern} excludes nothing"


@functools.cache
def _mapped_in_half() -> frozenset[torch.dtype]:
    return frozenset((torch.float16,))


@pytest.mark.parametrize("op", QUICK_OPS, ids=_name)
def test_quick(op: OpInfo) -> None:
    """Forward in float32 and float16, backward in float32: the first samples."""
    for dtype in (torch.float32, *_mapped_in_half()):
        # Half numbers have many equals, which the CPU's sort leaves in another order.
        if dtype in op.dtypes and not (dtype == torch.float16 and op.name in ("sort", "argsort")):
            _run(op, dtype, SAMPLES)
    if torch.float32 in op.dtypes and op.supports_autograd and not _matches(EXCLUDED_BACKWARD, op):
        _run(op, torch.float32, SAMPLES, backward=True)


FORWARD = (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.complex64)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", FORWARD, ids=str)
@pytest.mark.parametrize("op", _tested(), ids=_name)
def test_forward(op: OpInfo, dtype: torch.dtype) -> None:
    if dtype not in op.dtypes:
        assert dtype != torch.float32 or torch.int64 in op.dtypes or torch.bool in op.dtypes or op.dtypes, op.name
        return
    _run(op, dtype, 12)


@pytest.mark.slow
@pytest.mark.parametrize("op", [op for op in _tested() if op.supports_autograd and torch.float32 in op.dtypes and not _matches(EXCLUDED_BACKWARD, op)], ids=_name)  # fmt: skip
def test_backward(op: OpInfo) -> None:
    _run(op, torch.float32, 6, backward=True)
