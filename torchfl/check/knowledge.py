"""What PyTorch itself leaves open, by name of the op_db entry: these results cannot be compared number by number.

Contract: patterns are regular expressions over the whole name of an entry (`OpInfo.name`, without its variant). What is
not named here is compared in full. Where a weaker comparison is made, the result says which (`weak`).
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from typing import Any

import torch

#: Random numbers: shape, dtype, range, and the same numbers from the same seed.
RANDOM = (
    r"rand|randn|randint|randperm|rand_like|randn_like|randint_like|normal|bernoulli|multinomial|cauchy|exponential|"
    r"geometric|log_normal|uniform|nn\.functional\.(alpha_dropout|feature_alpha_dropout|dropout|dropout2d|dropout3d|"
    r"rrelu|gumbel_softmax|fractional_max_pool2d|fractional_max_pool3d)|svd_lowrank|pca_lowrank"
)
#: Values are whatever the memory held: shape and dtype only.
UNDEFINED = r"empty|empty_like|empty_strided|empty_permuted|new_empty|new_empty_strided|resize_|resize_as_"
#: Unique only after what op_db does with the result before it takes a gradient (`output_process_fn_grad`), or only in
#: the value named in FACTORS below.
FACTORED = (
    r"svd|linalg\.svd|linalg\.eig|linalg\.eigh|qr|linalg\.qr|geqrf|svd_lowrank|pca_lowrank|lu|linalg\.lu|"
    r"linalg\.lu_factor|linalg\.lu_factor_ex|linalg\.ldl_factor|linalg\.ldl_factor_ex"
)
#: Which of several equal elements an index names is left open: what it names is compared instead.
INDICES = (
    r"sort|argsort|topk|kthvalue|median|nanmedian|mode|max|min|argmax|argmin|cummax|cummin|"
    r"nn\.functional\.(adaptive_max_pool[123]d|max_pool[123]d)"
)
#: Equal elements share a gradient in any way: where the elements differ, the sums are compared.
TIES = (
    r"a?max|a?min|aminmax|fmax|fmin|maximum|minimum|sort|topk|kthvalue|median|nanmedian|mode|msort|cummax|cummin|"
    r"masked\.(amax|amin|median)|index_reduce|scatter_reduce|quantile|nanquantile|nn\.functional\.(adaptive_)?max_pool[123]d|"
    r"clamp|clamp_max|clamp_min|norm|linalg\.(norm|vector_norm|matrix_norm)|dist|masked\.norm|renorm"
)
#: Computed by series whose terms cancel: single precision is off by some dozens of roundings where the value is small.
SERIES = r"special\..*|i0|digamma|lgamma|polygamma|mvlgamma|igamma|igammac|erfinv"
SERIES_UNITS = 64.0
#: Results live where the caller says, not where the tensor was.
ELSEWHERE = r"to|item"
#: Arguments that PyTorch wants on the CPU, whatever the device: (entry, position among args or keyword).
CPU_ARGUMENTS = {("tensor_split", "0"), ("tensor_split", "tensor_indices_or_sections"), ("histogram", "bins")}
#: Hard inputs that end the process on PyTorch's own CPU.
NEVER = {("nn.functional.pdist", "zero-size")}


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)


def is_one_of(pattern: str, name: str) -> bool:
    return _pattern(pattern).fullmatch(name) is not None


# ----------------------------------------------------------------------------------------------------- random


def _within(low: float, high: float) -> Callable[[torch.Tensor, Any], bool]:
    return lambda t, sample: bool(((t >= low) & (t <= high)).all())


def _scaled_or_zero(t: torch.Tensor, sample: Any) -> bool:
    """Dropout: an element is 0, or the input's over the share that is kept."""
    source = sample.input.to(torch.float64)
    p = sample.kwargs.get("p", 0.5)
    if not sample.kwargs.get("training", True):
        return torch.allclose(t.double(), source, rtol=2e-3)
    kept = source / (1 - p) if p < 1 else torch.zeros_like(source)
    right = torch.isclose(t.double(), kept, rtol=2e-3, atol=1e-6) | (t == 0)
    return bool(right.all())


def _integers_from(low: float) -> Callable[[torch.Tensor, Any], bool]:
    return lambda t, sample: bool(((t >= low) & (t == t.floor())).all())


#: entry -> whether the values can be what the operator promises
RANGES: dict[str, Callable[[torch.Tensor, Any], bool]] = {
    "rand_like": _within(-9, 9),  # op_db calls randn_like under this name
    "uniform": lambda t, sample: bool(torch.isfinite(t).all()),
    "bernoulli": lambda t, sample: bool(((t == 0) | (t == 1)).all()),
    "randn": _within(-9, 9),
    "randn_like": _within(-9, 9),
    "normal": lambda t, sample: bool(torch.isfinite(t).all()),
    "exponential": lambda t, sample: bool((t >= 0).all()),
    "log_normal": lambda t, sample: bool((t >= 0).all()),
    "geometric": _integers_from(1),
    "randint": _integers_from(-math.inf),
    "randint_like": _integers_from(-math.inf),
    "multinomial": lambda t, sample: bool(((t >= 0) & (t < sample.input.shape[-1])).all()),
    "nn.functional.dropout": _scaled_or_zero,
    "nn.functional.dropout2d": _scaled_or_zero,
    "nn.functional.dropout3d": _scaled_or_zero,
}


# ----------------------------------------------------------------------------------------------------- not unique


def rebuilt(name: str, result: Any) -> Any | None:
    """What is unique about a factorization: the product of its factors, its values. None: nothing is known."""
    try:
        return _rebuilt(name, result)
    except (RuntimeError, ValueError, TypeError):
        return None


def _rebuilt(name: str, result: Any) -> Any | None:
    if name in ("svd", "linalg.svd") and isinstance(result, tuple) and len(result) == 3:
        u, s, v = result
        vh = v if name == "linalg.svd" else v.mH
        if s.numel() == 0 or u.numel() == 0:
            return (s,)
        k = s.shape[-1]
        return s, (u[..., :k] * s.unsqueeze(-2).to(u.dtype)) @ vh[..., :k, :]
    if name == "linalg.eigh":
        values, vectors = result
        return values, (vectors * values.unsqueeze(-2).to(vectors.dtype)) @ vectors.mH
    if name == "linalg.eig":
        values, _ = result
        return torch.sort(values.abs(), -1)[0]
    if name in ("qr", "linalg.qr"):
        q, r = result
        return (q @ r,) if q.numel() else (r.abs(),)
    if name == "linalg.lu":
        p, low, up = result
        return p @ low @ up if p.numel() else low @ up
    return None
