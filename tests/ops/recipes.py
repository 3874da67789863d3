"""How to call every operator that the NPU-V3 descriptor maps, so that each row is tested by what it promises.

`calls(base, dtype)` gives the calls of one operator in one dtype. An operator without an entry here has no test, which
`test_native_rows.py` reports as a failure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from ops_support import sample


@dataclass(frozen=True)
class T:
    """A tensor operand: shape, range of its values, and its dtype if it is not the one that is tested.

    "stat" is the dtype of statistics and parameters beside 16-bit activations: float32, else the one that is tested."""

    shape: tuple[int, ...]
    low: float = -3
    high: float = 3
    dtype: str | None = None
    seed: int = 0
    dense: bool = False  # always so: the operator writes it, or PyTorch never makes it in another form

    def make(self, dtype: torch.dtype) -> torch.Tensor:
        own = dtype if self.dtype is None else statistics(dtype) if self.dtype == "stat" else getattr(torch, self.dtype)
        low, high = self.low, self.high
        return sample(self.shape, own, low, high, self.seed)


@dataclass(frozen=True)
class Given:
    """A tensor operand that is computed: by a function of the dtype that is tested."""

    function: Callable[[torch.dtype], torch.Tensor]
    dense: bool = False

    def make(self, dtype: torch.dtype) -> torch.Tensor:
        return self.function(dtype)


class _Marker:
    """Stands for the dtype (or the device) of this run."""


DTYPE, DEVICE_OF_RUN = _Marker(), _Marker()


@dataclass(frozen=True)
class Call:
    """One call: operator with overload, arguments with T or Given for tensors."""

    op: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    ulps: float = 1
    reference: Callable[..., Any] | None = None  # instead of the operator itself, on CPU tensors
    kernel: str = ""  # which of several rows of the operator this call must reach
    absolute: float = 0  # further error that sums of many terms may have near 0

    def overload(self) -> Any:
        base, _, overload = self.op.partition(".")
        return getattr(getattr(torch.ops.aten, base), overload or "default")

    def __str__(self) -> str:
        def text(arg: Any) -> str:
            if isinstance(arg, T):
                return "x".join(map(str, arg.shape)) or "0-dim"
            return "[" + ", ".join(map(text, arg)) + "]" if isinstance(arg, list | tuple) else str(arg)

        return f"{self.op}({', '.join(text(a) for a in self.args)})"


def statistics(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


Recipe = Callable[[torch.dtype], list[Call]]
RECIPES: dict[str, Recipe] = {}


def recipe(*names: str) -> Callable[[Recipe], Recipe]:
    def add(function: Recipe) -> Recipe:
        for name in names:
            assert name not in RECIPES
            RECIPES[name] = function
        return function

    return add


def calls(base: str, dtype: torch.dtype) -> list[Call]:
    return RECIPES[base](dtype)


# ------------------------------------------------------------------------------------------------ element by element

ONE_SHAPE = [(3, 5), (2, 3, 4, 5), (2, 0, 3), (), (1,), (2, 1, 3, 1, 2, 2), (257,)]
TWO_SHAPES = [
    ((3, 5), (3, 5)),
    ((2, 3, 4, 5), (2, 3, 4, 5)),
    ((2, 3, 4), (4,)),
    ((3, 1), (1, 4)),
    ((5,), (2, 3, 5)),
    ((2, 0, 3), (1, 3)),
    ((), (4,)),
    ((4,), ()),
    ((), ()),
    ((2, 1, 3, 1, 2, 2), (3, 2, 1, 1)),
    ((2, 3, 4, 5), (1, 3, 1, 1)),
]
THREE_SHAPES = [
    ((3, 5), (3, 5), (3, 5)),
    ((2, 3, 4), (4,), (3, 1)),
    ((4,), (), (2, 4)),
    ((2, 0), (1,), (1, 1)),
    ((), (), ()),
    ((2, 3, 4, 5), (1, 3, 1, 1), (2, 3, 4, 5)),
]


@dataclass(frozen=True)
class Elementwise:
    """An operator that works element by element. `variants`: the arguments behind the tensors; `low`, `high`: of each
    operand in floating dtypes; `integers`: the same in integer ones."""

    name: str
    arity: int
    low: tuple[float, ...] = (-3, -3, -3)
    high: tuple[float, ...] = (3, 3, 3)
    variants: tuple[tuple[tuple[Any, ...], dict[str, Any]], ...] = (((), {}),)
    integers: tuple[tuple[float, float], ...] = ((-100, 100), (-100, 100), (-100, 100))
    fixed: tuple[str | None, ...] = (None, None, None)  # dtypes of operands that have their own
    ulps: float = 1
    whole: bool = False  # the results jump at whole numbers: no operand may come near one but by intent
    in_place: bool = True
    huge: bool = True  # arguments as large as the dtype allows are meaningful

    def operand(self, i: int, shape: tuple[int, ...], dtype: torch.dtype) -> T:
        low, high = (self.low[i], self.high[i]) if dtype.is_floating_point else self.integers[i]
        return T(shape, low, high, self.fixed[i], seed=i)

    def calls(self, dtype: torch.dtype) -> list[Call]:
        shapes: list[Any] = (
            [(s,) for s in ONE_SHAPE] if self.arity == 1 else TWO_SHAPES if self.arity == 2 else THREE_SHAPES
        )
        made = []
        for shape in shapes:
            operands = tuple(self.operand(i, s, dtype) for i, s in enumerate(shape))
            for behind, named in self.variants:
                made.append(Call(self.name, operands + behind, named, self.ulps))
        return made


def _plain(*names: str, **settings: Any) -> list[Elementwise]:
    return [Elementwise(name, 1, **settings) for name in names]


_POSITIVE = {"low": (0.05, 0.05, 0.05), "high": (9, 9, 9)}
_NOT_ZERO = ((-100, 100), (1, 9), (1, 9))
ELEMENTWISE: list[Elementwise] = [
    *_plain("exp", "expm1", "tanh", "erf", "sigmoid", "silu"),
    *_plain("sin", "cos", low=(-9,), high=(9,), huge=False, ulps=4),
    *_plain("log", "sqrt", "rsqrt", "reciprocal", **_POSITIVE),
    *_plain("log1p", low=(-0.9,), high=(9,)),
    Elementwise("gelu", 1, variants=(((), {}), ((), {"approximate": "tanh"})), ulps=2),
    Elementwise("leaky_relu", 1, variants=(((), {}), ((0.25,), {}))),
    *_plain("neg", "relu", "floor", "ceil", "trunc", "round", "abs", "sign", "sgn"),
    *_plain("logical_not", integers=((-1, 1),)),
    *_plain("isnan", in_place=False),
    *_plain("bitwise_not"),
    Elementwise("hardtanh", 1, variants=(((), {}), ((-2, 2), {}), ((0, 1), {})), integers=((-4, 4),)),
    Elementwise("clamp", 1, variants=(((-1, 2), {}), ((None, 1), {}), ((0,), {}), ((2, -1), {})), integers=((-4, 4),)),
    Elementwise("clamp.Tensor", 3, integers=((-9, 9), (-9, 9), (-9, 9))),
    *[Elementwise(name, 1, variants=(((1,), {}), ((-2,), {}))) for name in ("clamp_min", "clamp_max")],
    *[Elementwise(f"{name}.Tensor", 2) for name in ("clamp_min", "clamp_max")],
    *[Elementwise(f"{n}.Tensor", 2, variants=(((), {}), ((), {"alpha": 2}))) for n in ("add", "sub")],
    Elementwise("rsub.Tensor", 2, variants=(((), {}), ((), {"alpha": 3})), in_place=False),
    Elementwise("rsub.Scalar", 1, variants=(((2,), {}), ((2, 3), {})), in_place=False),
    Elementwise("mul.Tensor", 2),
    *[Elementwise(n, 2, in_place=False) for n in ("maximum", "minimum", "atan2")],
    *[
        Elementwise(f"{n}.{form}", arity, variants=variants, integers=((-2, 2), (-2, 2)), low=(-2, -2), high=(2, 2))
        for n in ("eq", "ne", "lt", "le", "gt", "ge")
        for form, arity, variants in (("Tensor", 2, (((), {}),)), ("Scalar", 1, (((1,), {}),)))
    ],
    *[Elementwise(n, 2, integers=((-1, 1), (-1, 1))) for n in ("logical_and", "logical_or", "logical_xor")],
    *[Elementwise(f"{n}.Tensor", 2) for n in ("bitwise_and", "bitwise_or", "bitwise_xor")],
    *[Elementwise(f"{n}.Scalar", 1, variants=(((1,), {}),)) for n in ("bitwise_and", "bitwise_or", "bitwise_xor")],
    Elementwise("div.Tensor", 2, low=(-9, 0.5), high=(9, 5), integers=_NOT_ZERO),
    Elementwise(
        "div.Tensor_mode",
        2,
        low=(-9, 0.5),
        high=(9, 5),
        integers=_NOT_ZERO,
        variants=tuple(((), {"rounding_mode": mode}) for mode in ("trunc", "floor")),
        whole=True,
    ),
    *[
        Elementwise(name, 2, low=(-9, 0.5), high=(9, 5), integers=_NOT_ZERO, whole=True)
        for name in ("remainder.Tensor", "fmod.Tensor", "floor_divide")
    ],
    *[
        Elementwise(f"{name}.Scalar", 1, low=(-9,), high=(9,), variants=(((2,), {}), ((-3,), {})), whole=True)
        for name in ("remainder", "fmod")
    ],
    Elementwise("pow.Tensor_Tensor", 2, low=(0.2, -2), high=(3, 2), integers=((-4, 4), (0, 3)), ulps=2),
    Elementwise("pow.Tensor_Scalar", 1, integers=((-4, 4),), variants=(((2,), {}), ((3,), {})), ulps=2),
    Elementwise("where.self", 3, fixed=("bool", None, None), in_place=False),
    Elementwise("masked_fill.Scalar", 2, fixed=(None, "bool"), variants=(((2,), {}),)),
    Elementwise("addcmul", 3, variants=(((), {}), ((), {"value": 2})), integers=((-9, 9),) * 3, ulps=2),
    Elementwise("addcdiv", 3, low=(-3, -3, 0.5), high=(3, 3, 4), variants=(((), {}), ((), {"value": -2})), ulps=2),
    Elementwise("lerp.Tensor", 3, low=(-3, -3, 0), high=(3, 3, 1), ulps=2),
    Elementwise("lerp.Scalar", 2, variants=(((0.25,), {}), ((0.75,), {})), ulps=2),
    Elementwise("threshold_backward", 2, variants=(((0,), {}), ((0.5,), {})), in_place=False),
    Elementwise("sigmoid_backward", 2, low=(-3, 0), high=(3, 1), in_place=False, huge=False),
    Elementwise("tanh_backward", 2, low=(-3, -1), high=(3, 1), in_place=False, huge=False),
    Elementwise(
        "gelu_backward", 2, variants=(((), {}), ((), {"approximate": "tanh"})), in_place=False, huge=False, ulps=4
    ),
    Elementwise("leaky_relu_backward", 2, variants=(((0.1, False), {}), ((0.1, True), {})), in_place=False),
    Elementwise("silu_backward", 2, in_place=False, huge=False, ulps=2),
]


def _by_base(base: str) -> list[Elementwise]:
    return [spec for spec in ELEMENTWISE if spec.name.split(".")[0] == base]


for _base in {spec.name.split(".")[0] for spec in ELEMENTWISE}:

    @recipe(_base)
    def _elementwise(dtype: torch.dtype, specs: list[Elementwise] = _by_base(_base)) -> list[Call]:
        return [call for spec in specs for call in spec.calls(dtype)]


# The base may be a number.
_pow_tensors = RECIPES["pow"]
RECIPES["pow"] = lambda dtype: [
    *_pow_tensors(dtype),
    *[
        Call("pow.Scalar", (2, T(shape, *((-2, 2) if dtype.is_floating_point else (0, 5)))), ulps=2)
        for shape in ONE_SHAPE
    ],
]

# masked_fill with a tensor as value must stay on the chip too: its value is 0-dim by contract.
_masked_fill_scalar = RECIPES["masked_fill"]
RECIPES["masked_fill"] = lambda dtype: [
    *_masked_fill_scalar(dtype),
    Call("masked_fill.Tensor", (T((3, 5)), T((3, 5), dtype="bool"), T(()))),
]

# ------------------------------------------------------------------------------------------------ reductions


def _reduction(name: str, forms: list[tuple[str, tuple[Any, ...], dict[str, Any]]], **settings: Any) -> Recipe:
    def made(dtype: torch.dtype) -> list[Call]:
        low, high = settings.get("range", (-3, 3))
        ulps = settings.get("ulps", 1)
        return [
            Call(f"{name}.{overload}" if overload else name, (T(shape, low, high), *args), kwargs, ulps)
            for overload, args, kwargs in forms
            for shape in settings.get("shapes", [(4, 5, 6), (2, 3, 4, 5), (33, 7)])
        ]

    return made


_DIMS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("dim_IntList", ([0],), {}),
    ("dim_IntList", ([-1],), {}),
    ("dim_IntList", ([0, 1], True), {}),
    ("dim_IntList", ([1], True), {}),
]
_ONE_DIM: list[tuple[tuple[Any, ...], dict[str, Any]]] = [((0,), {}), ((-1,), {}), ((1, True), {})]

RECIPES["sum"] = _reduction("sum", [("", (), {}), *_DIMS], ulps=4)
RECIPES["mean"] = _reduction("mean", [("", (), {}), *[("dim", a, k) for _, a, k in _DIMS]], ulps=4)
RECIPES["prod"] = _reduction(
    "prod",
    [("", (), {}), *[("dim_int", a, k) for a, k in _ONE_DIM]],
    shapes=[(4, 5), (2, 3, 2)],
    range=(0.5, 2),
    ulps=4,
)
for _name in ("any", "all"):
    RECIPES[_name] = _reduction(
        _name,
        [("", (), {}), *[("dim", a, k) for a, k in _ONE_DIM], ("dims", ([0, 1],), {}), ("dims", ([0], True), {})],
        range=(-0.6, 0.6),
    )
for _name in ("argmax", "argmin"):
    RECIPES[_name] = _reduction(_name, [("", (), {}), *[("", a, k) for a, k in _ONE_DIM]], range=(-60, 60))
for _name in ("max", "min"):
    RECIPES[_name] = _reduction(_name, [("", (), {}), *[("dim", a, k) for a, k in _ONE_DIM]], range=(-60, 60))
for _name in ("amax", "amin"):
    RECIPES[_name] = _reduction(_name, [("", (), {}), *[("", a, k) for _, a, k in _DIMS]])


# ------------------------------------------------------------------------------------------------ products

#: Shapes for which each entry point is the cheapest: a few rows, whole tiles, and much of everything.
_FEW, _TILES, _MUCH = "npu_v3_matmul", "npu_v3_matmul_tiled", "npu_v3_matmul_pipelined"


def _product_shapes(dtype: torch.dtype, batch: int = 1) -> list[tuple[int, int, int, str]]:
    much = (1536, 512, 1536)
    if batch > 1:
        much = (768, 512, 768) if dtype == torch.float32 else (1152, 384, 1152)
    return [(3, 5, 4, _FEW), (1, 1, 1, _FEW), (16, 32, 8, _FEW), (512, 256, 512, _TILES), (*much, _MUCH)]


def _product(op: str, operands: tuple[Any, ...], k: int, kernel: str) -> Call:
    """Sums of k float32 products of numbers below 1: the error grows like sqrt(k), whatever the sum."""
    return Call(op, operands, ulps=2, absolute=1e-6 * max(k, 1) ** 0.5, kernel=kernel)


@recipe("mm")
def _mm(dtype: torch.dtype) -> list[Call]:
    made = [
        _product("mm", (T((m, k), -1, 1), T((k, n), -1, 1, seed=1)), k, kernel)
        for m, k, n, kernel in _product_shapes(dtype)
    ]
    return [*made, Call("mm", (T((3, 0)), T((0, 4)))), Call("mm", (T((0, 3)), T((3, 4))))]


@recipe("bmm")
def _bmm(dtype: torch.dtype) -> list[Call]:
    made = [
        _product("bmm", (T((2, m, k), -1, 1), T((2, k, n), -1, 1, seed=1)), k, kernel)
        for m, k, n, kernel in _product_shapes(dtype, 2)
    ]
    return [*made, Call("bmm", (T((2, 3, 0)), T((2, 0, 4)))), Call("bmm", (T((0, 2, 3)), T((0, 3, 4))))]


@recipe("addmm")
def _addmm(dtype: torch.dtype) -> list[Call]:
    made = []
    for m, k, n, kernel in _product_shapes(dtype):
        factors = (T((m, k), -1, 1), T((k, n), -1, 1, seed=1))
        made.append(_product("addmm", (T((n,), seed=2), *factors), k, kernel))
    factors = (T((3, 5)), T((5, 4), seed=1))
    return [
        *made,
        Call("addmm", (T((3, 4), seed=2), *factors), {"beta": 0.5, "alpha": 2}, ulps=4),
        Call("addmm", (T((3, 1), seed=2), *factors), {"beta": 2}, ulps=4),
        Call("addmm", (T((), seed=2), *factors), {"alpha": -1}, ulps=4),
        Call("addmm", (Given(lambda d: torch.full((4,), torch.nan).to(d)), *factors), {"beta": 0}, ulps=4),
        Call("addmm", (T((4,)), T((3, 0)), T((0, 4))), {"beta": 3}, ulps=2),
    ]


@recipe("baddbmm")
def _baddbmm(dtype: torch.dtype) -> list[Call]:
    made = []
    for m, k, n, kernel in _product_shapes(dtype, 2):
        factors = (T((2, m, k), -1, 1), T((2, k, n), -1, 1, seed=1))
        made.append(_product("baddbmm", (T((n,), seed=2), *factors), k, kernel))
    factors = (T((2, 3, 5)), T((2, 5, 4), seed=1))
    return [
        *made,
        Call("baddbmm", (T((2, 3, 4), seed=2), *factors), {"beta": 0.5, "alpha": 2}, ulps=4),
        Call("baddbmm", (T((2, 1, 1), seed=2), *factors), {"alpha": 2}, ulps=4),
        Call("baddbmm", (Given(lambda d: torch.full((2, 3, 4), torch.nan).to(d)), *factors), {"beta": 0}, ulps=4),
    ]


@recipe("mv")
def _mv(dtype: torch.dtype) -> list[Call]:
    return [Call("mv", (T(a), T(b, seed=1)), ulps=6) for a, b in (((3, 5), (5,)), ((1, 7), (7,)), ((4, 0), (0,)))]


@recipe("addmv")
def _addmv(dtype: torch.dtype) -> list[Call]:
    factors = (T((3, 5)), T((5,), seed=1))
    return [
        Call("addmv", (T((3,), seed=2), *factors), ulps=6),
        Call("addmv", (T((1,), seed=2), *factors), {"beta": 0.5, "alpha": 2}, ulps=6),
        Call("addmv", (T((), seed=2), *factors), ulps=6),
        Call("addmv", (Given(lambda d: torch.full((3,), torch.nan).to(d)), *factors), {"beta": 0}, ulps=6),
    ]


@recipe("dot")
def _dot(dtype: torch.dtype) -> list[Call]:
    return [Call("dot", (T((n,)), T((n,), seed=1)), ulps=8) for n in (1, 7, 300, 0)]


# ------------------------------------------------------------------------------------------------ convolution

_CONVOLUTIONS: list[tuple[tuple[int, ...], tuple[int, ...], bool, int, int, int, int]] = [
    # input, weight, bias, stride, padding, dilation, groups
    ((2, 3, 8, 8), (4, 3, 3, 3), True, 1, 1, 1, 1),
    ((2, 3, 8, 8), (4, 3, 3, 3), False, 2, 1, 1, 1),
    ((1, 4, 9, 7), (6, 2, 3, 2), True, 1, 0, 1, 2),
    ((2, 4, 9, 9), (8, 1, 3, 3), False, 4, 2, 2, 4),
    ((2, 3, 12, 12), (2, 3, 11, 11), True, 1, 0, 1, 1),
    ((3, 8, 1, 1), (4, 8, 1, 1), True, 1, 0, 1, 1),
    ((0, 3, 5, 5), (4, 3, 3, 3), True, 1, 1, 1, 1),
]


def _convolution_reference(*args: Any) -> Any:
    return torch.ops.aten.convolution(*args)


def _convolution_backward_reference(grad: Any, x: Any, weight: Any, *rest: Any) -> Any:
    return torch.ops.aten.convolution_backward(grad, x, weight, [weight.shape[0]], *rest)


@recipe("convolution_overrideable")
def _convolution(dtype: torch.dtype) -> list[Call]:
    made = []
    for x, w, bias, stride, padding, dilation, groups in _CONVOLUTIONS:
        rest = ([stride, stride], [padding, padding], [dilation, dilation], False, [0, 0], groups)
        operands = (T(x), T(w, -1, 1, seed=1), T((w[0],), seed=2) if bias else None)
        made.append(Call("convolution_overrideable", operands + rest, ulps=16, reference=_convolution_reference))
    return made


@recipe("convolution_backward_overrideable")
def _convolution_backward(dtype: torch.dtype) -> list[Call]:
    made = []
    for x, w, bias, stride, padding, dilation, groups in _CONVOLUTIONS:
        if x[0] == 0:
            continue
        out = [(n + 2 * padding - dilation * (k - 1) - 1) // stride + 1 for n, k in zip(x[2:], w[2:], strict=True)]
        for mask in ([True, True, bias], [True, False, False], [False, True, True]):
            rest = ([stride, stride], [padding, padding], [dilation, dilation], False, [0, 0], groups, mask)
            made.append(
                Call(
                    "convolution_backward_overrideable",
                    (T((x[0], w[0], *out), -1, 1), T(x, seed=1), T(w, -1, 1, seed=2), *rest),
                    ulps=64,
                    reference=_convolution_backward_reference,
                )
            )
    return made


# ------------------------------------------------------------------------------------------------ normalisation


def _norm_operands(shape: tuple[int, ...], affine: bool, running: bool) -> tuple[Any, ...]:
    c = (shape[1],)
    parameters = (T(c, 0.5, 1.5, "stat"), T(c, -1, 1, "stat", 1)) if affine else (None, None)
    statistics_ = (T(c, -0.5, 0.5, "stat", 2, True), T(c, 0.5, 2, "stat", 3, True)) if running else (None, None)
    return (T(shape, -2, 2), *parameters, *statistics_)


@recipe("native_batch_norm")
def _batch_norm(dtype: torch.dtype) -> list[Call]:
    made = []
    for shape in ((4, 3, 5, 5), (8, 3), (4, 3, 7), (2, 3, 2, 2, 2)):
        for affine, running, training in ((True, True, True), (False, False, True), (True, True, False)):
            operands = _norm_operands(shape, affine, running)
            made.append(Call("native_batch_norm", (*operands, training, 0.1, 1e-5), ulps=8))
    return made


@recipe("_native_batch_norm_legit")
def _batch_norm_legit(dtype: torch.dtype) -> list[Call]:
    return [
        Call("_native_batch_norm_legit", (*_norm_operands(shape, affine, True), training, 0.1, 1e-5), ulps=8)
        for shape in ((4, 3, 5, 5), (8, 3))
        for affine, training in ((True, True), (True, False), (False, True))
    ]


@recipe("native_batch_norm_backward")
def _batch_norm_backward(dtype: torch.dtype) -> list[Call]:
    made = []
    for shape in ((4, 3, 5, 5), (8, 3)):
        dims = [d for d in range(len(shape)) if d != 1]

        def mean(d: torch.dtype, s: tuple[int, ...] = shape, dims: list[int] = dims) -> torch.Tensor:
            return T(s, -2, 2, seed=1).make(d).double().mean(dims).to(statistics(d))

        def invstd(d: torch.dtype, s: tuple[int, ...] = shape, dims: list[int] = dims) -> torch.Tensor:
            return (T(s, -2, 2, seed=1).make(d).double().var(dims, unbiased=False) + 1e-5).rsqrt().to(statistics(d))

        for affine, training, mask in (
            (True, True, [True, True, True]),
            (False, True, [True, False, False]),
            (True, False, [True, True, True]),
            (True, True, [False, True, True]),
        ):
            c = (shape[1],)
            weight = T(c, 0.5, 1.5, "stat", 2) if affine else None
            running = (T(c, -0.5, 0.5, "stat", 3), T(c, 0.5, 2, "stat", 4))
            operands = (
                T(shape, -1, 1),
                T(shape, -2, 2, seed=1),
                weight,
                *running,
                Given(mean, True),
                Given(invstd, True),
            )
            made.append(Call("native_batch_norm_backward", (*operands, training, 1e-5, mask), ulps=32))
    return made


@recipe("native_layer_norm")
def _layer_norm(dtype: torch.dtype) -> list[Call]:
    made = []
    for shape, normalized in (((4, 5, 6), [6]), ((4, 5, 6), [5, 6]), ((3, 7), [7]), ((2, 3, 4, 5), [5])):
        last = tuple(normalized)
        for weight, bias in ((True, True), (False, False), (True, False)):
            parameters = (T(last, 0.5, 1.5, "stat", 1) if weight else None, T(last, -1, 1, "stat", 2) if bias else None)
            made.append(Call("native_layer_norm", (T(shape, -2, 2), normalized, *parameters, 1e-5), ulps=8))
    return made


@recipe("native_layer_norm_backward")
def _layer_norm_backward(dtype: torch.dtype) -> list[Call]:
    made = []
    for shape, normalized in (((4, 5, 6), [6]), ((4, 5, 6), [5, 6]), ((3, 7), [7])):
        last, kept = tuple(normalized), len(shape) - len(normalized)
        dims = list(range(kept, len(shape)))

        def mean(d: torch.dtype, s: tuple[int, ...] = shape, dims: list[int] = dims) -> torch.Tensor:
            return T(s, -2, 2, seed=1).make(d).double().mean(dims, keepdim=True).to(statistics(d))

        def rstd(d: torch.dtype, s: tuple[int, ...] = shape, dims: list[int] = dims) -> torch.Tensor:
            x = T(s, -2, 2, seed=1).make(d).double()
            return (x.var(dims, unbiased=False, keepdim=True) + 1e-5).rsqrt().to(statistics(d))

        for affine, mask in ((True, [True, True, True]), (False, [True, False, False])):
            parameters = (T(last, 0.5, 1.5, "stat", 2), T(last, -1, 1, "stat", 3)) if affine else (None, None)
            operands = (
                T(shape, -1, 1),
                T(shape, -2, 2, seed=1),
                normalized,
                Given(mean, True),
                Given(rstd, True),
                *parameters,
            )
            made.append(Call("native_layer_norm_backward", (*operands, mask), ulps=32))
    return made


# ------------------------------------------------------------------------------------------------ pooling

_POOLS: list[tuple[tuple[int, ...], int, int, int]] = [
    ((2, 3, 8, 8), 2, 2, 0),
    ((2, 3, 9, 7), 3, 2, 1),
    ((3, 8, 8), 3, 1, 1),
    ((1, 2, 6, 6), 2, 3, 0),
]


@recipe("max_pool2d_with_indices")
def _max_pool(dtype: torch.dtype) -> list[Call]:
    made = [
        Call("max_pool2d_with_indices", (T(x), [k, k], [s, s], [p, p], [1, 1], ceil))
        for x, k, s, p in _POOLS
        for ceil in (False, True)
    ]
    return [*made, Call("max_pool2d_with_indices", (T((2, 3, 9, 9)), [2, 3], [], [0, 0], [2, 2]))]


@recipe("max_pool2d_with_indices_backward")
def _max_pool_backward(dtype: torch.dtype) -> list[Call]:
    made = []
    for x, k, s, p in _POOLS:

        def forward(d: torch.dtype, x: Any = x, k: int = k, s: int = s, p: int = p) -> Any:
            return torch.ops.aten.max_pool2d_with_indices(T(x).make(d).double(), [k, k], [s, s], [p, p])

        shape = tuple(forward(torch.float32)[0].shape)
        indices = Given(lambda d, f=forward: f(d)[1])
        arguments = ([k, k], [s, s], [p, p], [1, 1], False)
        made.append(
            Call("max_pool2d_with_indices_backward", (T(shape, -1, 1, seed=1), T(x), *arguments, indices), ulps=4)
        )
    return made


_AVERAGES: list[tuple[bool, bool, int | None]] = [
    (False, True, None),
    (False, False, None),
    (True, True, None),
    (False, True, 5),
]


@recipe("avg_pool2d")
def _avg_pool(dtype: torch.dtype) -> list[Call]:
    return [
        Call("avg_pool2d", (T(x), [k, k], [s, s], [p, p], ceil, padded, divisor), ulps=4)
        for x, k, s, p in _POOLS
        for ceil, padded, divisor in _AVERAGES
    ]


@recipe("avg_pool2d_backward")
def _avg_pool_backward(dtype: torch.dtype) -> list[Call]:
    made = []
    for x, k, s, p in _POOLS:
        for ceil, padded, divisor in _AVERAGES:
            arguments = ([k, k], [s, s], [p, p], ceil, padded, divisor)
            shape = tuple(torch.ops.aten.avg_pool2d(torch.zeros(x), *arguments).shape)
            made.append(Call("avg_pool2d_backward", (T(shape, -1, 1), T(x, seed=1), *arguments), ulps=4))
    return made


_ADAPTIVE: list[tuple[tuple[int, ...], tuple[int, int]]] = [
    ((2, 3, 8, 8), (1, 1)),
    ((2, 3, 7, 9), (3, 4)),
    ((3, 5, 5), (2, 2)),
    ((2, 3, 4, 4), (6, 6)),
]


@recipe("_adaptive_avg_pool2d")
def _adaptive(dtype: torch.dtype) -> list[Call]:
    return [Call("_adaptive_avg_pool2d", (T(x), list(out)), ulps=4) for x, out in _ADAPTIVE]


@recipe("_adaptive_avg_pool2d_backward")
def _adaptive_backward(dtype: torch.dtype) -> list[Call]:
    return [Call("_adaptive_avg_pool2d_backward", (T((*x[:-2], *out)), T(x, seed=1)), ulps=4) for x, out in _ADAPTIVE]


# ------------------------------------------------------------------------------------------------ softmax and loss

_SOFTMAX: list[tuple[tuple[int, ...], int]] = [
    ((3, 5), 1),
    ((3, 5), 0),
    ((2, 3, 4, 5), 1),
    ((7,), -1),
    ((2, 0, 3), 2),
    ((), 0),
]


@recipe("_softmax", "_log_softmax")
def _softmax(dtype: torch.dtype) -> list[Call]:
    raise AssertionError("replaced below")


@recipe("_softmax_backward_data", "_log_softmax_backward_data")
def _softmax_backward(dtype: torch.dtype) -> list[Call]:
    raise AssertionError("replaced below")


for _name in ("_softmax", "_log_softmax"):

    def _softmax_of(dtype: torch.dtype, name: str = _name) -> list[Call]:
        return [Call(name, (T(shape), dim, False), ulps=4) for shape, dim in _SOFTMAX]

    def _softmax_gradient_of(dtype: torch.dtype, name: str = _name) -> list[Call]:
        made = []
        for shape, dim in _SOFTMAX:
            result = Given(
                lambda d, s=shape, a=dim, n=name: getattr(torch.ops.aten, n)(T(s).make(d).double(), a, False).to(d)
            )
            made.append(Call(f"{name}_backward_data", (T(shape, -1, 1, seed=1), result, dim, DTYPE), ulps=16))
        return made

    RECIPES[_name] = _softmax_of
    RECIPES[f"{_name}_backward_data"] = _softmax_gradient_of


def _targets(n: int, classes: int, ignored: bool = False) -> Given:
    def made(_: torch.dtype) -> torch.Tensor:
        target = T((n,), 0, classes - 1, "int64").make(torch.float32)
        if ignored:
            target[::3] = -100
        return target

    return Given(made)


@recipe("nll_loss_forward")
def _nll_loss(dtype: torch.dtype) -> list[Call]:
    made = []
    for reduction in (0, 1, 2):
        for weight in (None, T((5,), 0.5, 2, seed=1)):
            for ignored in (False, True):
                operands = (T((7, 5), -4, 0), _targets(7, 5, ignored), weight)
                made.append(Call("nll_loss_forward", (*operands, reduction, -100), ulps=8))
    return [*made, Call("nll_loss_forward", (T((5,), -4, 0), Given(lambda _: torch.tensor(3)), None, 1, -100), ulps=8)]


@recipe("nll_loss_backward")
def _nll_loss_backward(dtype: torch.dtype) -> list[Call]:
    made = []
    for reduction in (0, 1, 2):
        for weight in (None, T((5,), 0.5, 2, seed=1)):
            for ignored in (False, True):

                def total(d: torch.dtype, w: T | None = weight, r: int = reduction, i: bool = ignored) -> torch.Tensor:
                    weights = None if w is None else w.make(d).double()
                    target = _targets(7, 5, i).make(d)
                    forward = torch.ops.aten.nll_loss_forward(
                        T((7, 5), -4, 0).make(d).double(), target, weights, r, -100
                    )
                    return forward[1].to(d)

                grad = T((7,) if reduction == 0 else (), 0.5, 1.5, seed=2)
                operands = (grad, T((7, 5), -4, 0), _targets(7, 5, ignored), weight, reduction, -100, Given(total))
                made.append(Call("nll_loss_backward", operands, ulps=8))
    return made


# ------------------------------------------------------------------------------------------------ movement, AMP


def _indices(shape: tuple[int, ...], size: int) -> list[T]:
    return [T(shape, 0, size - 1, kind, seed=1) for kind in ("int64", "int32")]


@recipe("index_select")
def _index_select(dtype: torch.dtype) -> list[Call]:
    made = []
    for shape, dim in (((5, 4), 0), ((5, 4), 1), ((2, 3, 4), -1), ((6,), 0), ((2, 3, 4, 5), 1)):
        made += [Call("index_select", (T(shape, -60, 60), dim, index)) for index in _indices((7,), shape[dim])]
    return [*made, Call("index_select", (T((5, 4), -60, 60), 0, T((0,), 0, 1, "int64")))]


@recipe("gather")
def _gather(dtype: torch.dtype) -> list[Call]:
    made = []
    for shape, dim, out in (((5, 4), 0, (3, 4)), ((5, 4), 1, (5, 2)), ((2, 3, 4), -1, (2, 2, 6)), ((6,), 0, (9,))):
        made.append(Call("gather", (T(shape, -60, 60), dim, T(out, 0, shape[dim] - 1, "int64", 1))))
    return made


@recipe("embedding_dense_backward")
def _embedding_backward(dtype: torch.dtype) -> list[Call]:
    return [
        Call("embedding_dense_backward", (T((*shape, 4), -1, 1), index, 10, -1, False), ulps=4)
        for shape in ((7,), (2, 3))
        for index in _indices(shape, 10)
    ]


@recipe("arange")
def _arange(dtype: torch.dtype) -> list[Call]:
    named = {"device": DEVICE_OF_RUN, "dtype": DTYPE}
    made = [
        Call("arange", (5,), named),
        Call("arange.start", (2, 9), named),
        Call("arange.start_step", (2, 30, 4), named),
        Call("arange.start_step", (9, 2, -2), named),
        Call("arange.start_step", (-3, 4, 1), named),
        Call("arange", (0,), named),
    ]
    if dtype.is_floating_point:
        made += [Call("arange.start_step", (0.5, 4, 0.25), named), Call("arange.start_step", (1, -1, -0.125), named)]
    return made


@recipe("_amp_foreach_non_finite_check_and_unscale")
def _unscale(dtype: torch.dtype) -> list[Call]:
    def broken(d: torch.dtype) -> torch.Tensor:
        x = T((4, 3)).make(d)
        if d.is_floating_point:
            x[1, 2] = torch.inf
        return x

    name, found = "_amp_foreach_non_finite_check_and_unscale_", Given(lambda _: torch.zeros(1), dense=True)
    scale = Given(lambda _: torch.tensor([0.25]))
    return [
        Call(name, ([T((3, 4), dense=True), T((7,), seed=1, dense=True)], found, scale)),
        Call(name, ([T((3, 4), dense=True), Given(broken, dense=True)], found, scale)),
    ]


@recipe("_amp_update_scale")
def _update_scale(dtype: torch.dtype) -> list[Call]:
    def state(scale: float, tracker: int, found: float) -> tuple[Any, ...]:
        return (
            Given(lambda _: torch.tensor([scale]), dense=True),
            Given(lambda _: torch.tensor([tracker], dtype=torch.int32), dense=True),
            Given(lambda _: torch.tensor([found])),
        )

    return [
        Call("_amp_update_scale_", (*state(*values), 2.0, 0.5, 3))
        for values in ((1024.0, 0, 0.0), (1024.0, 2, 0.0), (1024.0, 1, 1.0))
    ]


def every_tensor(call: Call) -> list[T | Given]:
    found: list[T | Given] = []
    for arg in call.args:
        if isinstance(arg, T | Given):
            found.append(arg)
        elif isinstance(arg, list):
            found += [a for a in arg if isinstance(a, T | Given)]
    return found


def map_operands(call: Call, function: Callable[[T | Given], Any]) -> tuple[Any, ...]:
    def one(arg: Any) -> Any:
        if isinstance(arg, T | Given):
            return function(arg)
        if isinstance(arg, list):
            return [one(a) for a in arg]
        return arg

    return tuple(one(arg) for arg in call.args)


def with_op(call: Call, op: str) -> Call:
    return dataclasses.replace(call, op=op)
