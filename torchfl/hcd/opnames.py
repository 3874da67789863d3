"""What is known of PyTorch's operators without torch: names, arguments, and which operators really reach a backend.

Contract: `resolve(name)` maps a name that a user knows to the operators that PyTorch 2.13 hands to a PrivateUse1
backend when that name is called (a convolution arrives as `convolution_overrideable`, a softmax as `_softmax`).
Names that are not composite resolve to themselves, in-place names to their functional ones (an entry serves all forms
of its operator). The argument tables come from `opnames.json`, written by `tools/gen_opnames.py`.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
from collections.abc import Iterable
from importlib import resources
from typing import Any, NamedTuple

NAME = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)::([A-Za-z_][A-Za-z0-9_]*)(?:\.([A-Za-z_][A-Za-z0-9_]*))?")

_CONV = ("convolution_overrideable",)
_CONV_BACKWARD = ("convolution_backward_overrideable",)

#: Bare names, user's -> those that reach the backend.
_REACHES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution", "_convolution", "_convolution_mode"), _CONV),
    **dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), _CONV),
    **dict.fromkeys(("conv1d_backward", "conv2d_backward", "conv3d_backward", "convolution_backward"), _CONV_BACKWARD),
    **dict.fromkeys(("softmax", "special_softmax"), ("_softmax",)),
    **dict.fromkeys(("log_softmax", "special_log_softmax"), ("_log_softmax",)),
    "softmax_backward": ("_softmax_backward_data",),
    "log_softmax_backward": ("_log_softmax_backward_data",),
    **dict.fromkeys(("matmul", "linalg_matmul"), ("mm", "bmm")),
    "linear": ("addmm", "mm"),
    "batch_norm": ("native_batch_norm",),
    "batch_norm_backward": ("native_batch_norm_backward",),
    "layer_norm": ("native_layer_norm",),
    "layer_norm_backward": ("native_layer_norm_backward",),
    "group_norm": ("native_group_norm",),
    "group_norm_backward": ("native_group_norm_backward",),
    "max_pool2d": ("max_pool2d_with_indices",),
    "max_pool3d": ("max_pool3d_with_indices",),
    "max_pool2d_backward": ("max_pool2d_with_indices_backward",),
    "max_pool3d_backward": ("max_pool3d_with_indices_backward",),
    "adaptive_avg_pool2d": ("_adaptive_avg_pool2d",),
    "adaptive_avg_pool3d": ("_adaptive_avg_pool3d",),
    "adaptive_avg_pool2d_backward": ("_adaptive_avg_pool2d_backward",),
    "adaptive_avg_pool3d_backward": ("_adaptive_avg_pool3d_backward",),
    "cross_entropy_loss": ("_log_softmax", "nll_loss_forward"),
    "nll_loss": ("nll_loss_forward",),
    "nll_loss2d": ("nll_loss2d_forward",),
    "scaled_dot_product_attention": ("_scaled_dot_product_fused_attention_overrideable",),
    "scaled_dot_product_attention_backward": ("_scaled_dot_product_fused_attention_overrideable_backward",),
    "dropout": ("native_dropout",),
    "dropout_backward": ("native_dropout_backward",),
    "embedding_backward": ("embedding_dense_backward",),
    "embedding_bag": ("_embedding_bag",),
    "log_sigmoid": ("log_sigmoid_forward",),
    "prelu": ("_prelu_kernel",),
    "prelu_backward": ("_prelu_kernel_backward",),
    "rrelu": ("rrelu_with_noise",),
    "cdist": ("_cdist_forward",),
    "ctc_loss": ("_ctc_loss",),
    # Other names of the same operator.
    "absolute": ("abs",),
    "arccos": ("acos",),
    "arccosh": ("acosh",),
    "arcsin": ("asin",),
    "arcsinh": ("asinh",),
    "arctan": ("atan",),
    "arctanh": ("atanh",),
    "arctan2": ("atan2",),
    "clip": ("clamp",),
    **dict.fromkeys(("concat", "concatenate"), ("cat",)),
    "divide": ("div",),
    "fix": ("trunc",),
    "greater": ("gt",),
    "greater_equal": ("ge",),
    "less": ("lt",),
    "less_equal": ("le",),
    "multiply": ("mul",),
    "negative": ("neg",),
    "not_equal": ("ne",),
    "subtract": ("sub",),
    "special_erf": ("erf",),
    "special_erfc": ("erfc",),
    "special_exp2": ("exp2",),
    "special_expit": ("sigmoid",),
    "special_expm1": ("expm1",),
    "special_log1p": ("log1p",),
}

#: Operators that PyTorch turns into a more general one. A kernel written for the special case must not be called for
#: the general one, so these do not resolve; the names are for a hint.
_BECOMES: dict[str, str] = {
    "max_pool1d": "max_pool2d",
    "avg_pool1d": "avg_pool2d",
    "adaptive_avg_pool1d": "adaptive_avg_pool2d",
    "adaptive_max_pool1d": "adaptive_max_pool2d",
    "instance_norm": "batch_norm",
    "nll_loss_nd": "nll_loss",
    "relu6": "hardtanh",
    "selu": "elu",
    "square": "pow",
    "true_divide": "div",
    "item": "_local_scalar_dense",
    "to": "_to_copy",
    "einsum": "bmm",
    "outer": "mul",
    "rms_norm": "mean",
}


def _convolution(base: str, dimensions: int, transposed: bool) -> tuple[tuple[str, int, str], ...]:
    kind = "a transposed convolution" if transposed else "no transposed convolution"
    return (
        ("rank", dimensions + 2, f"aten::{base} takes inputs of rank {dimensions + 2}"),
        ("transposed", int(transposed), f"aten::{base} is {kind}"),
    )


#: What a user's name says beyond the operator that it arrives as: (name, value it equals, why).
_IMPLIED: dict[str, tuple[tuple[str, int, str], ...]] = {
    **{f"conv{n}d": _convolution(f"conv{n}d", n, False) for n in (1, 2, 3)},
    **{f"conv{n}d_backward": _convolution(f"conv{n}d_backward", n, False) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _convolution(f"conv_transpose{n}d", n, True) for n in (1, 2, 3)},
}

_MATMUL = frozenset({"mm", "bmm", "addmm", "baddbmm", "addbmm", "_addmm_activation", "_int_mm", "_scaled_mm"})
_BATCHED_MATMUL = frozenset({"bmm", "baddbmm", "addbmm"})
_CONVS = frozenset({"convolution_overrideable", "convolution_backward_overrideable"})
_POOL = re.compile(r"_?(adaptive_)?(avg|max)_pool[123]d(_with_indices)?(_backward)?")
_NORM = re.compile(r"(native_|cudnn_|miopen_)?(batch|group)_norm(_backward)?")
_ATTENTION = re.compile(r"_?(scaled_dot_product_\w*attention\w*|flash_attention\w*|efficient_attention\w*)")

#: Quantities that the engine derives from the arguments of any operator with a tensor.
DERIVED_ALWAYS = frozenset({"numel", "rank", "contiguous", "offset", "zero_dim"})
DERIVED: frozenset[str] = DERIVED_ALWAYS | {
    *("M", "N", "K", "batch", "kernel_size", "channels", "in_channels", "out_channels", "heads", "seq_len", "head_dim")
}
#: Derived quantities that are true or false.
DERIVED_FLAGS = frozenset({"contiguous", "zero_dim"})


#: The namespace of the instructions: `vadd` of a descriptor is uba::vadd.
INSTRUCTION = "uba"


class OpName(NamedTuple):
    """`namespace::base.overload`; overload is None when the name means all of them."""

    namespace: str
    base: str
    overload: str | None

    @property
    def name(self) -> str:
        return f"{self.namespace}::{self.base}"


def parse(name: str) -> OpName | None:
    """The parts of an operator name, None if it is not one."""
    match = NAME.fullmatch(name)
    if match is None or len(name) > 200:
        return None
    return OpName(match.group(1), match.group(2), match.group(3))


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """Bare aten name -> {"a": arguments, "o": overloads, "c": 1 if composite}; see tools/gen_opnames.py."""
    text = resources.files("torchfl.hcd").joinpath("opnames.json").read_text(encoding="utf-8")
    data: dict[str, dict[str, Any]] = json.loads(text)
    return data


def known(name: OpName) -> bool:
    """Whether the operator (and the overload, if given) exists. Other namespaces than aten are taken as they are."""
    if name.namespace != "aten":
        return True
    if name.base not in table():
        return name.base in _REACHES and name.overload is None
    return name.overload is None or name.overload in table()[name.base]["o"] or name.overload == "default"


def user_names() -> list[str]:
    """The bare aten names that a descriptor may use, for did-you-mean."""
    return sorted({*(name for name in table() if "::" not in name), *_REACHES})


def overloads(base: str) -> list[str]:
    return [o or "default" for o in table().get(base, {"o": []})["o"]]


def resolve(name: str) -> tuple[str, ...]:
    """The operators that reach a backend when `name` is called, without overloads.

    >>> resolve("aten::conv2d")
    ('aten::convolution_overrideable',)
    >>> resolve("aten::add_.Tensor")
    ('aten::add',)
    """
    parsed = parse(name)
    if parsed is None or parsed.namespace != "aten":
        return (parsed.name if parsed else name,)
    base = functional(parsed.base)
    return tuple(f"aten::{n}" for n in _REACHES.get(base, (base,)))


def resolve_exactly(name: str) -> tuple[str, ...]:
    """Like `resolve`, with the overload where the name gives one that the operator still has.

    >>> resolve_exactly("aten::add_.Tensor"), resolve_exactly("aten::conv2d.default")
    (('aten::add.Tensor',), ('aten::convolution_overrideable',))
    """
    parsed = parse(name)
    if parsed is None or parsed.overload is None or is_renamed(parsed):
        return resolve(name)
    return tuple(f"{target}.{parsed.overload}" for target in resolve(name))


def functional(base: str) -> str:
    """The bare name without the underscore of an in-place form: add_ -> add."""
    plain = base[:-1]
    return plain if base.endswith("_") and not base.endswith("__") and (plain in table() or plain in _REACHES) else base


def is_renamed(name: OpName) -> bool:
    """Whether the operator reaches a backend under another name, so that its overloads mean nothing there."""
    return name.namespace == "aten" and functional(name.base) in _REACHES


def is_composite(name: str) -> bool:
    """Whether PyTorch takes the (resolved) operator apart before any backend sees it."""
    parsed = parse(name)
    return bool(parsed and parsed.namespace == "aten" and table().get(parsed.base, {}).get("c"))


def becomes(base: str) -> str | None:
    """The operator that a composite one turns into, if there is one to name."""
    found = _BECOMES.get(base)
    return f"aten::{found}" if found else None


def implied(name: str) -> tuple[tuple[str, int, str], ...]:
    """Conditions that a user's name carries: (name, value it equals, why). `aten::conv2d` arrives as
    `convolution_overrideable`, as a three-dimensional or transposed convolution does, which its kernel must not get.
    `rank` is that of the first tensor argument."""
    parsed = parse(name)
    return _IMPLIED.get(parsed.base, ()) if parsed and parsed.namespace == "aten" else ()


def arguments(name: str) -> dict[str, str]:
    """Argument name -> type letters (see tools/gen_opnames.py) of an operator or instruction; {} of others."""
    parsed = parse(name)
    if parsed is None or parsed.namespace not in ("aten", INSTRUCTION):
        return {}
    key = parsed.base if parsed.namespace == "aten" else parsed.name
    found: dict[str, str] = table().get(key, {}).get("a", {})
    return found


def chain_arguments(names: Iterable[str]) -> set[str]:
    """What conditions may name of a chain of operators, a fusion: the arguments of the first and what is derived from
    them, and OPERATOR_ARGUMENT of the others, but for the first tensor, which is the result before. It is
    OPERATOR2_ARGUMENT the second time that an operator takes part."""
    known: set[str] = set()
    for chain in itertools.product(*(resolve(name) for name in names)):
        times: dict[str, int] = {}
        for i, target in enumerate(chain):
            short = target.partition("::")[2].partition(".")[0].removesuffix("_overrideable")
            times[short] = times.get(short, 0) + 1
            if i == 0:
                known |= set(arguments(target)) | set(derived(target))
                continue
            prefix = f"{short}{times[short] if times[short] > 1 else ''}_"
            tensors = [name for name, kind in arguments(target).items() if kind.startswith("t")]
            known |= {prefix + name for name in arguments(target) if name not in tensors[:1]}
    return known


@functools.cache
def instructions() -> tuple[str, ...]:
    """The names of the instruction set."""
    return tuple(name.partition("::")[2] for name in table() if name.startswith(f"{INSTRUCTION}::"))


def derived(name: str) -> frozenset[str]:
    """The derived quantities that make sense for a resolved operator."""
    parsed = parse(name)
    if parsed is None or parsed.namespace != "aten":
        return DERIVED
    base, found = parsed.base, set(DERIVED_ALWAYS)
    if base in _MATMUL:
        found |= {"M", "N", "K"}
    if base in _BATCHED_MATMUL:
        found.add("batch")
    if base in _CONVS:
        found |= {"batch", "kernel_size", "channels", "in_channels", "out_channels"}
    if _POOL.fullmatch(base):
        found |= {"batch", "kernel_size", "channels"}
    if _NORM.fullmatch(base):
        found |= {"batch", "channels"}
    if _ATTENTION.fullmatch(base):
        found |= {"batch", "heads", "seq_len", "head_dim"}
    return frozenset(found)
