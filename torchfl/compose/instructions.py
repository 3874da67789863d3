"""The instruction set: what a chip may implement so that PyTorch's operators can be composed from it.

Contract: `INSTRUCTIONS` is the one list; docs/instructions.md is generated from it (`python -m
torchfl.compose.instructions`), and each `reference` is the definition that an implementation is measured against.

Arguments stand in the order of the schema: tensors first. Tensor operands of the vector families have equal sizes (a
broadcast operand has stride 0), and the one dtype that the call is for; in place of at most one of two tensor operands
an immediate number may stand, which is converted to that dtype. Every result is written to memory that the caller
chose, dense or strided. Floating operations are IEEE 754; in float16 and bfloat16 an implementation may compute in
float32 and round once. Integers wrap.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torchfl.compose import _references as ref

FLOATS = ("float16", "bfloat16", "float32", "float64")
INTS = ("uint8", "int8", "int16", "int32", "int64")
NUMBERS = FLOATS + INTS
ALL = NUMBERS + ("bool",)
_SETS = {"floats": FLOATS, "ints": INTS, "numbers": NUMBERS, "ints and bool": INTS + ("bool",), "bool": ("bool",)}
_SETS |= {"all": ALL, "float32, float64": ("float32", "float64"), "int64": ("int64",)}


@dataclass(frozen=True)
class Instruction:
    """`dtypes` names the set of dtypes that the operand may have; `result` is "same" or what else the result has. A
    chip declares an instruction for one dtype (that of the operands, or of the result where there are none), and
    `vcast` for a pair."""

    name: str
    family: str
    schema: str
    semantics: str
    reference: Callable[..., Any]
    dtypes: str = "floats"
    result: str = "same"

    @property
    def allowed(self) -> tuple[str, ...]:
        return _SETS[self.dtypes]

    @property
    def positions(self) -> list[str]:
        """The names of the arguments in their order."""
        inside = self.schema.split("(", 1)[1].split(")", 1)[0]
        return [part.split()[-1] for part in inside.split(", ")] if inside else []


INSTRUCTIONS: dict[str, Instruction] = {}


def _add(name: str, family: str, signature: str, semantics: str, reference: Callable[..., Any], **rule: str) -> None:
    INSTRUCTIONS[name] = Instruction(name, family, name + signature, semantics, reference, **rule)


def _unary(name: str, semantics: str, reference: Callable[..., Any], dtypes: str = "floats", **rule: str) -> None:
    family = "vector unary" if dtypes != "floats" or name in _CORE else "vector function"
    _add(name, family, "(Tensor x) -> Tensor", semantics, reference, dtypes=dtypes, **rule)


_CORE = {"vfloor", "vceil", "vtrunc", "vround"}
_unary("vneg", "-x; flips the sign of zero", torch.neg, "numbers")
_unary("vabs", "|x|; the least integer stays as it is", torch.abs, "numbers")
_unary("vnot", "all bits inverted; for bool: not x", torch.bitwise_not, "ints and bool")
_unary("vfloor", "the greatest integer <= x", torch.floor)
_unary("vceil", "the least integer >= x", torch.ceil)
_unary("vtrunc", "x without its fraction", torch.trunc)
_unary("vround", "the nearest integer, ties to even", torch.round)
_unary("vsqrt", "square root; NaN for x < 0", torch.sqrt)
_unary("vrsqrt", "1/sqrt(x); inf for 0", torch.rsqrt)
_unary("vexp", "e^x", torch.exp)
_unary("vexp2", "2^x", torch.exp2)
_unary("vexpm1", "e^x - 1, accurate near 0", torch.expm1)
_unary("vlog", "natural logarithm; -inf for 0, NaN for x < 0", torch.log)
_unary("vlog2", "logarithm to base 2", torch.log2)
_unary("vlog10", "logarithm to base 10", torch.log10)
_unary("vlog1p", "log(1 + x), accurate near 0", torch.log1p)
_unary("vsin", "sine of radians", torch.sin)
_unary("vcos", "cosine of radians", torch.cos)
_unary("vtan", "tangent of radians", torch.tan)
_unary("vasin", "arc sine in [-pi/2, pi/2]; NaN beyond [-1, 1]", torch.asin)
_unary("vacos", "arc cosine in [0, pi]; NaN beyond [-1, 1]", torch.acos)
_unary("vatan", "arc tangent in [-pi/2, pi/2]", torch.atan)
_unary("vsinh", "hyperbolic sine", torch.sinh)
_unary("vcosh", "hyperbolic cosine", torch.cosh)
_unary("vtanh", "hyperbolic tangent", torch.tanh)
_unary("vasinh", "inverse hyperbolic sine", torch.asinh)
_unary("vacosh", "inverse hyperbolic cosine; NaN for x < 1", torch.acosh)
_unary("vatanh", "inverse hyperbolic tangent; NaN beyond [-1, 1]", torch.atanh)
_unary("verf", "error function", torch.erf)
_unary("verfc", "1 - erf(x), accurate for large x", torch.erfc)
_unary("verfinv", "inverse of erf; NaN beyond [-1, 1]", torch.erfinv)
_unary("vlgamma", "log |gamma(x)|", torch.lgamma)
_unary("vdigamma", "derivative of log gamma; -inf for +0, inf for -0, NaN for other poles", torch.digamma)


def _binary(
    name: str, semantics: str, reference: Callable[..., Any], dtypes: str, family: str = "vector binary"
) -> None:
    _add(name, family, "(Tensor a, Tensor b) -> Tensor", semantics, reference, dtypes=dtypes)


_binary("vadd", "a + b", ref.add, "numbers")
_binary("vsub", "a - b", ref.sub, "numbers")
_binary("vmul", "a * b", ref.mul, "numbers")
_binary("vdiv", "a / b", ref.div, "floats")
_binary("vidiv", "a / b without fraction; undefined for b = 0", ref.idiv, "ints")
_binary("vmax", "the greater; NaN if one is NaN", ref.maximum, "numbers")
_binary("vmin", "the lesser; NaN if one is NaN", ref.minimum, "numbers")
_binary("vpow", "a to the power b, as C's pow; for integers with b < 0: 1/a^|b| without fraction", ref.power, "numbers")
_binary("vfmod", "remainder with the sign of a (C's fmod)", ref.fmod, "numbers")
_binary("vremainder", "remainder with the sign of b: a - b * floor(a / b) exactly", ref.remainder, "numbers")
_binary("vatan2", "angle of the point (b, a) in (-pi, pi]", ref.atan2, "floats")
_binary("vcopysign", "|a| with the sign of b, that of zero and NaN too", ref.copysign, "floats")
_binary("vnextafter", "the next value after a towards b", ref.nextafter, "floats")
_binary("vand", "bitwise and", ref.bit_and, "ints and bool", "vector bitwise")
_binary("vor", "bitwise or", ref.bit_or, "ints and bool", "vector bitwise")
_binary("vxor", "bitwise exclusive or", ref.bit_xor, "ints and bool", "vector bitwise")
_binary("vshl", "a shifted left by b bits; 0 if b < 0 or b >= width", ref.shift_left, "ints", "vector bitwise")
_binary(
    "vshr",
    "a shifted right by b bits, the sign copied; as if by width - 1 if b < 0 or beyond",
    ref.shift_right,
    "ints",
    "vector bitwise",
)
_binary("vgcd", "greatest common divisor of |a| and |b|; gcd(0, 0) = 0", ref.gcd, "ints", "vector special")
_binary("vigamma", "regularised lower incomplete gamma function P(a, b)", ref.igamma, "floats", "vector special")
_binary("vigammac", "regularised upper incomplete gamma function Q(a, b)", ref.igammac, "floats", "vector special")
_binary("vzeta", "Hurwitz zeta function of a at b", ref.zeta, "floats", "vector special")

for _name, _sign in (("eq", "="), ("ne", "!="), ("lt", "<"), ("le", "<="), ("gt", ">"), ("ge", ">=")):
    _add(
        f"v{_name}",
        "compare",
        "(Tensor a, Tensor b) -> Tensor",
        f"a {_sign} b; {'true' if _name == 'ne' else 'false'} if one is NaN",
        getattr(ref, _name),
        dtypes="all",
        result="bool",
    )

_add(
    "vselect",
    "select",
    "(Tensor cond, Tensor a, Tensor b) -> Tensor",
    "a where cond, else b; cond is bool; a and b may both be immediates",
    ref.select,
    dtypes="all",
)
_add(
    "vcast",
    "cast",
    "(Tensor x, ScalarType dtype) -> Tensor",
    "x as dtype: float to integer drops the fraction (beyond the range: undefined), to bool is x != 0; integers wrap; "
    "to a narrower float rounds to nearest even",
    ref.cast,
    dtypes="all",
    result="dtype",
)
_add("vfill", "fill", "(int[] sizes, Scalar value, ScalarType dtype) -> Tensor", "every element is value", ref.fill,
     dtypes="all", result="dtype")  # fmt: skip
_add(
    "iota",
    "iota",
    "(int n, Scalar start, Scalar step, ScalarType dtype) -> Tensor",
    "n elements, element i is start + i * step, computed exactly for integers, in float64 for floats",
    ref.iota,
    dtypes="numbers",
    result="dtype",
)


def _reduction(name: str, semantics: str, reference: Callable[..., Any], dtypes: str) -> None:
    _add(name, "reduce", "(Tensor x, int[] dims, bool keepdim) -> Tensor", semantics, reference, dtypes=dtypes)


_reduction("reduce_sum", "sum over dims; floats add up in float32 at least; 0 of nothing", ref.reduce_sum, "numbers")
_reduction("reduce_prod", "product over dims; 1 of nothing", ref.reduce_prod, "numbers")
_reduction("reduce_max", "maximum over dims; NaN if one is NaN; never of nothing", ref.reduce_max, "numbers")
_reduction("reduce_min", "minimum over dims; NaN if one is NaN; never of nothing", ref.reduce_min, "numbers")
_reduction("reduce_any", "whether one is true; false of nothing", ref.reduce_any, "bool")
_reduction("reduce_all", "whether all are true; true of nothing", ref.reduce_all, "bool")
for _name, _what in (("argmax", "maximum"), ("argmin", "minimum")):
    _add(
        _name,
        "arg-reduce",
        "(Tensor x, int dim, bool keepdim) -> Tensor",
        f"index of the first {_what} along dim; the first NaN, if there is one",
        getattr(ref, _name),
        dtypes="numbers",
        result="int64",
    )
_add(
    "matmul",
    "matmul",
    "(Tensor a, Tensor b) -> Tensor",
    "(m, k) x (k, n), or a batch of them: (b, m, k) x (b, k, n); floats accumulate in float32 at least",
    ref.matmul,
    dtypes="numbers",
)
_add(
    "copy_nd",
    "copy",
    "(Tensor x) -> Tensor",
    "the elements of x in the layout of the result",
    ref.copy_nd,
    dtypes="all",
)
_add("flip", "flip", "(Tensor x, int[] dims) -> Tensor", "x reversed along dims", ref.flip, dtypes="all")
_add(
    "gather",
    "gather",
    "(Tensor x, Tensor index, int dim) -> Tensor",
    "result has the sizes of index (int64, in range): x at the same place, but at index along dim; other dimensions "
    "of x are at least as long",
    ref.gather,
    dtypes="all",
)
for _name, _what in (
    ("scatter", "element := src; the last in row-major order wins"),
    ("scatter_add", "element += src"),
    ("scatter_mul", "element *= src"),
    ("scatter_max", "element := max(element, src), NaN wins"),
    ("scatter_min", "element := min(element, src), NaN wins"),
):
    _add(
        _name,
        "scatter",
        "(Tensor x, Tensor index, Tensor src, int dim) -> Tensor",
        f"a copy of x; then for each element of src, at its place, but at index (int64, as src) along dim: {_what}",
        getattr(ref, _name),
        dtypes="all" if _name == "scatter" else "numbers",
    )
_add(
    "sort",
    "sort",
    "(Tensor x, int dim, bool descending) -> (Tensor values, Tensor indices)",
    "stable sort along dim, and where (int64) each value came from; NaN counts as the greatest",
    ref.sort,
    dtypes="all",
)
for _name, _what in (
    ("cumsum", "sum of the elements up to here"),
    ("cumprod", "product of the elements up to here"),
    ("logcumsumexp", "log of the sum of e^x up to here, without overflow"),
):
    _add(
        _name,
        "scan",
        "(Tensor x, int dim) -> Tensor",
        f"{_what} along dim; accumulates in float32 at least",
        getattr(ref, _name),
        dtypes="floats" if _name == "logcumsumexp" else "numbers",
    )
for _name, _what in (("cummax", "maximum"), ("cummin", "minimum")):
    _add(
        _name,
        "scan",
        "(Tensor x, int dim) -> (Tensor values, Tensor indices)",
        f"{_what} up to here along dim, and the index (int64) of its last occurrence; NaN wins",
        getattr(ref, _name),
        dtypes="numbers",
    )
_add(
    "random_uniform",
    "random",
    "(int[] sizes, int seed, int offset, ScalarType dtype) -> Tensor",
    "Philox 4x32-10, key = seed, counter = offset + i // 4 (both 64 bit); element i is (lane i % 4 >> 8) * 2^-24, "
    "in [0, 1); float16 keeps 11 bits of it, bfloat16 8",
    ref.random_uniform,
    result="dtype",
)
_add(
    "random_bits",
    "random",
    "(int[] sizes, int seed, int offset) -> Tensor",
    "63 random bits: Philox counter = offset + i // 2; element i is lanes 2 * (i % 2) (low) and the next (high) as 64 "
    "bits, shifted right by 1",
    ref.random_bits,
    dtypes="int64",
    result="int64",
)


def by_family() -> dict[str, list[Instruction]]:
    ordered = sorted(INSTRUCTIONS.values(), key=lambda i: list(INSTRUCTIONS).index(i.name))
    families: dict[str, list[Instruction]] = {}
    for family, members in itertools.groupby(ordered, key=lambda i: i.family):
        families.setdefault(family, []).extend(members)
    return families


@functools.cache
def register_library() -> torch.library.Library:
    """Defines the schemas in the namespace `uba`, so that they are checked by PyTorch's own parser."""
    library = torch.library.Library("uba", "FRAGMENT")
    for instruction in INSTRUCTIONS.values():
        library.define(instruction.schema)
    return library


_HEAD = """# Instructions

<!-- Generated by `python -m torchfl.compose.instructions`; edit torchfl/compose/instructions.py. -->

A chip that has no kernel for an operator can still run it if it has the *instructions* that the operator reduces to.
There are {count} of them in {families} families; a chip may have any subset, in any dtypes. `gelu`, for one, becomes

```text
aten::gelu(%0:float32[4, 8])
  %1:float32[4, 8] = uba::vmul(%0:float32[4, 8], 0.5)
  %2:float32[4, 8] = uba::vmul(%0:float32[4, 8], 0.7071067811865476)
  %3:float32[4, 8] = uba::verf(%2:float32[4, 8])
  %4:float32[4, 8] = uba::vadd(%3:float32[4, 8], 1.0)
  %5:float32[4, 8] = uba::vmul(%1:float32[4, 8], %4:float32[4, 8])
  -> %5:float32[4, 8]
```

and on a chip without `verf`, `vrsqrt` or `vneg` others stand in where that costs no accuracy.

## Rules for all

- **Operands.** Tensors come first, in the order of the schema, then numbers and lists. The tensors of a vector
  instruction have equal sizes; a dimension along which an operand is broadcast has stride 0. Strides are never
  negative. Overlapping operands are legal, overlapping results do not occur. Sizes may be 0.
- **Dtype.** Both operands of a binary instruction and its result have one dtype. Comparisons give bool.
- **Immediates.** A number may stand in place of one of the two tensors of a binary instruction or comparison, and of
  one or both values of `vselect`. It is converted to the dtype of the operation.
- **Results** are written to memory that the caller chose, dense or strided. The result of a pointwise instruction may
  be exactly one of its operands.
- **Arithmetic.** Floats are IEEE 754, with NaN, infinities and signed zero. In float16 and bfloat16 an implementation
  may compute in float32 and round once. Integers wrap around. The functions are right to 2 units in the last place of
  float32, 1e-15 relatively in float64.
- **Declaring.** A descriptor's `instructions` lists names; a dtype set may be given for each. `vcast` is asked for by
  pairs.

"""


def page() -> str:
    """docs/instructions.md."""
    families = by_family()
    lines = [_HEAD.format(count=len(INSTRUCTIONS), families=len(families))]
    for family, members in families.items():
        lines.append(
            f"## {family[0].upper() + family[1:]}\n\n| schema | meaning | dtypes | result |\n|---|---|---|---|\n"
        )
        for i in members:
            meaning = i.semantics.replace("|", "\\|")
            lines.append(f"| `{i.schema}` | {meaning} | {i.dtypes} | {i.result} |\n")
        lines.append("\n")
    sets = "; ".join(f"{name}: {', '.join(members)}" for name, members in _SETS.items() if name in _USED_SETS)
    lines.append(
        f"Dtypes: {sets}. Result `same`: the dtype of the operands; `dtype`: that of the argument of this name.\n"
    )
    return "".join(lines)


_USED_SETS = ("floats", "ints", "numbers", "all")


if __name__ == "__main__":
    (Path(__file__).parents[2] / "docs" / "instructions.md").write_text(page(), encoding="utf-8")
