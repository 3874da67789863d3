"""Element-by-element operators beyond plain calls: numbers and 0-dim tensors beside a tensor, mixed dtypes, in place,
out=, memory that overlaps, and values at the edge of a dtype. What the CPU does is right."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import recipes
import torch
from ops_support import (
    CPU_ONLY,
    DEVICE,
    FORMS,
    agree,
    assert_equal_to_reference,
    dtype_named,
    lowered,
    on_cpu,
    place,
    sample,
    watch,
)
from recipes import Elementwise

ALL = ("float16", "bfloat16", "float32", "int8", "int32", "int64", "bool")
MAPPED = {row["op"].removeprefix("aten::") for row in lowered()["ops"]}
SPECS = [spec for spec in recipes.ELEMENTWISE if spec.name.split(".")[0] in MAPPED]


def _dtypes(spec: Elementwise) -> list[torch.dtype]:
    """The dtypes of the operator's rows that PyTorch's CPU has too."""
    base, _, overload = spec.name.partition(".")
    found: list[str] = []
    for row in lowered()["ops"]:
        if row["op"] == f"aten::{base}" and (row["overload"] is None or row["overload"] in ("", overload)):
            found += [d for d in row["dtypes"].get("*", lowered()["dtypes"]) if d not in found]
    return [dtype_named(name) for name in found]


def _operands(spec: Elementwise, dtype: torch.dtype, shapes: Any = ((3, 5),) * 3) -> list[torch.Tensor]:
    return [spec.operand(i, shapes[i], dtype).make(dtype) for i in range(spec.arity)]


def _overload(name: str) -> Any:
    base, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _form_with(spec: Elementwise, kind: str) -> Any:
    """The in-place ("inplace") or out= ("out") overload with the same arguments as the functional one."""
    functional = _overload(spec.name)
    names = [a.name for a in functional._schema.arguments]
    packet = getattr(torch.ops.aten, spec.name.split(".")[0] + ("_" if kind == "inplace" else ""), None)
    for overload in packet.overloads() if packet is not None else []:
        candidate = getattr(packet, overload)
        inputs = [a for a in candidate._schema.arguments if not a.is_out]
        outs = [a for a in candidate._schema.arguments if a.is_out]
        types = [str(a.type) for a in inputs] == [str(a.type) for a in functional._schema.arguments]
        if types and [a.name for a in inputs] == names and len(outs) == (kind == "out"):
            return candidate
    return None


# ------------------------------------------------------------------------------------------------ in place and out=


@pytest.mark.parametrize("spec", [s for s in SPECS if s.in_place], ids=lambda s: s.name)
def test_in_place(spec: Elementwise) -> None:
    """Cases 11 and 27: written where it stands, whatever the form of the memory, and only there."""
    op = _form_with(spec, "inplace")
    assert op is not None, f"{spec.name} has no in-place form; say so in recipes.py"
    for dtype, form in itertools.product(_dtypes(spec), FORMS):
        operands = _operands(spec, dtype)
        for behind, named in spec.variants[:2]:

            def program(
                device: Any, op: Any = op, form: str = form, operands: Any = operands, b: Any = behind, n: Any = named
            ) -> Any:
                target = place(operands[0], form, device)
                result = op(target, *(place(t, "contiguous", device) for t in operands[1:]), *b, **n)
                assert result is target
                whole = target.as_strided((target.untyped_storage().nbytes() // target.itemsize,), (1,), 0)
                return target, whole

            agree(program, ulps=2 * spec.ulps)


#: The CPU wants `out` in the very dtype of some operators where it casts for others; either will do.
STRICT_OUT = (*CPU_ONLY, "Found dtype", "Expected out tensor to have dtype", "expected dtype")


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
@torch.backends.mkldnn.flags(
    enabled=False
)  # the CPU's gelu leaves an `out` with gaps unwritten where oneDNN computes it
def test_out(spec: Elementwise) -> None:
    """out= of the right and of the wrong shape, of another dtype, with gaps, and one of the inputs."""
    op = _form_with(spec, "out")
    if op is None:
        # Then PyTorch has none on any device.
        assert not any("out" in o for o in getattr(torch.ops.aten, spec.name.split(".")[0]).overloads())
        return
    out_name = op._schema.arguments[-1].name

    for dtype in _dtypes(spec):
        operands = _operands(spec, dtype)
        behind, named = spec.variants[0]

        def run(
            device: Any,
            make_out: Callable[[list[torch.Tensor]], torch.Tensor],
            op: Any = op,
            operands: Any = operands,
            b: Any = behind,
            n: Any = named,
        ) -> Any:
            placed = [place(t, "contiguous", device) for t in operands]
            out = make_out(placed)
            before = out.data_ptr()
            result = op(*placed, *b, **n, **{out_name: out})
            assert result is out
            same_memory = out.data_ptr() == before
            return result, same_memory, *placed

        outs: list[Callable[[list[torch.Tensor]], torch.Tensor]] = [
            lambda placed: torch.empty((3, 5), dtype=placed[-1].dtype, device=placed[0].device),
            lambda placed: torch.empty((3, 5), dtype=torch.float32, device=placed[0].device),
            lambda placed: torch.empty((3, 5), dtype=torch.int64, device=placed[0].device),
            lambda placed: torch.zeros((3, 11), dtype=placed[-1].dtype, device=placed[0].device)[:, 1::2],
            lambda placed: torch.empty((5, 3), dtype=placed[-1].dtype, device=placed[0].device).t(),
            lambda placed: torch.empty((16,), dtype=placed[-1].dtype, device=placed[0].device)[1:].view(3, 5),
            lambda placed: placed[-1],
            lambda placed: placed[0],
        ]
        for make_out in outs:
            agree(
                lambda device, make_out=make_out, run=run: run(device, make_out),
                ulps=2 * spec.ulps,
                dtype=dtype,
                cpu_only=STRICT_OUT,
            )
        # A result that does not fit: resized, with PyTorch's warning when it held something.
        for shape in ((0,), (2, 2), (30,)):
            agree(
                lambda device, shape=shape, run=run: run(
                    device, lambda placed: torch.zeros(shape, dtype=placed[-1].dtype, device=device)
                )[0],
                ulps=2 * spec.ulps,
            )


# ------------------------------------------------------------------------------------------------ numbers and mixtures

NUMBERS: list[Any] = [2, -1, 0, 2.5, True, 1 << 40]


def _number_ops() -> dict[str, Callable[[Any, Any], Any]]:
    return {
        "add": torch.add,
        "sub": torch.sub,
        "rsub": lambda a, b: torch.rsub(a, b),
        "mul": torch.mul,
        "div": torch.div,
        "div_floor": lambda a, b: torch.div(a, b, rounding_mode="floor"),
        "remainder": torch.remainder,
        "fmod": torch.fmod,
        "floor_divide": torch.floor_divide,
        "pow": torch.pow,
        "eq": torch.eq,
        "lt": torch.lt,
        "ge": torch.ge,
        "maximum": torch.maximum,
        "clamp_min": torch.clamp_min,
        "atan2": torch.atan2,
        "logical_and": torch.logical_and,
        "bitwise_and": torch.bitwise_and,
        "where_left": lambda a, b: torch.where(a > 0, a, b),
        "where_right": lambda a, b: torch.where(a > 0, b, a),
    }


@pytest.mark.parametrize("name", _number_ops())
def test_numbers_beside_a_tensor(name: str) -> None:
    """Case 27: Python numbers and 0-dim CPU tensors keep PyTorch's rules of promotion, and its errors."""
    function = _number_ops()[name]
    for dtype in ALL:
        x = sample((3, 5), dtype_named(dtype), 1, 5)
        others = [
            *NUMBERS,
            torch.tensor(3),
            torch.tensor(0.3),
            torch.tensor(0.3, dtype=torch.float64),
            torch.tensor(True),
        ]
        if name in ("remainder", "fmod", "floor_divide", "div_floor"):
            # These jump: what 0.3 is rounded to before the division decides.
            others = [n for n in others if not (isinstance(n, torch.Tensor) and n.is_floating_point())]
        for number in others:
            # 2^40 fits no narrow integer: what the CPU makes of it is left open by C++, unless it is compared.
            if isinstance(number, int) and number == 1 << 40 and dtype in ("int8", "int32", "bool"):
                continue
            agree(lambda device, x=x, number=number: function(x.to(device), number), ulps=2, dtype=dtype_named(dtype))


@pytest.mark.parametrize("name", _number_ops())
def test_mixed_dtypes(name: str) -> None:
    """Every pair of dtypes, as tensors of one rank and with a 0-dim tensor on the device on either side."""
    function = _number_ops()[name]
    for left, right in itertools.product(ALL, ALL):
        a, b = sample((3, 5), dtype_named(left), 1, 5), sample((3, 5), dtype_named(right), 1, 5, seed=1)
        for first, second in ((a, b), (a, b[0, 0]), (a[0, 0], b)):
            agree(lambda device, x=first, y=second: function(x.to(device), y.to(device)), ulps=2)


@pytest.mark.parametrize("alpha", [2, 0.5, True])
def test_alpha(alpha: Any) -> None:
    """A factor that does not fit the dtypes is refused as on the CPU, also after one that does."""
    for dtype in ALL:
        x = sample((4,), dtype_named(dtype), 1, 5)
        agree(lambda device, x=x: torch.add(x.to(device), x.to(device), alpha=1))
        agree(lambda device, x=x: torch.add(x.to(device), x.to(device), alpha=alpha))
        agree(lambda device, x=x: torch.sub(x.to(device), x.to(device), alpha=alpha))


@pytest.mark.parametrize("dtype", ALL)
def test_in_place_promotion(dtype: str) -> None:
    """In place the tensor keeps its dtype: `int += float` is refused, `half += float` is not."""
    for number in (2, 0.5, True):
        agree(lambda device, n=number: torch.ones(3, dtype=dtype_named(dtype), device=device).add_(n))
        agree(lambda device, n=number: torch.ones(3, dtype=dtype_named(dtype), device=device).div_(n))
    for other in ALL:

        def program(device: Any, other: str = other) -> Any:
            x = torch.ones(3, dtype=dtype_named(dtype), device=device)
            return x.mul_(torch.full((3,), 2, device=device).to(dtype_named(other)))

        agree(program)


def test_default_dtype_is_looked_at_on_every_call() -> None:
    """Integers divide into the default dtype, which may change between two equal calls."""
    x = torch.arange(1, 5, device=DEVICE)
    before = torch.get_default_dtype()
    try:
        for dtype in (torch.float32, torch.float64, torch.float16, torch.float32):
            torch.set_default_dtype(dtype)
            assert (x / 2).dtype == dtype
            assert (x * 0.5).dtype == dtype
            assert x.float().to(torch.int64).true_divide(x).dtype == dtype
            assert torch.arange(0.0, 1.0, 0.25, device=DEVICE).dtype == dtype
    finally:
        torch.set_default_dtype(before)


def test_numbers_change_between_calls() -> None:
    """A number is no part of a decision: each call uses its own."""
    x = torch.arange(6.0, device=DEVICE)
    for n in (1, 2, 3):
        assert (x * n).tolist() == [i * n for i in range(6)]
        assert torch.add(x, x, alpha=n).tolist() == [i * (1 + n) for i in range(6)]
        assert x.clamp(max=n).tolist() == [min(i, n) for i in range(6)]
        assert torch.add(x, torch.tensor(float(n))).tolist() == [i + n for i in range(6)]
        assert torch.where(x > 2, x, float(n)).tolist() == [i if i > 2 else n for i in range(6)]


def test_where_of_two_numbers() -> None:
    """Both branches may be numbers."""
    agree(lambda device: torch.where(torch.tensor([True, False, True], device=device), 1.5, -2.0))
    agree(lambda device: torch.where(torch.tensor([True, False], device=device), 3, 4))
    agree(lambda device: torch.where(torch.tensor([True, False], device=device), torch.tensor(1.0), torch.tensor(2.0)))


@pytest.mark.parametrize("dtype", ["int8", "int32", "int64"])
@pytest.mark.parametrize("name", ["div", "floor_divide", "remainder", "fmod"])
def test_integer_division_by_zero(dtype: str, name: str) -> None:
    """Case 48: refused as on the CPU, when the result is waited for; later calls work."""
    x = torch.tensor([7, -7, 0], dtype=dtype_named(dtype), device=DEVICE)
    zero = torch.zeros(3, dtype=dtype_named(dtype), device=DEVICE)
    if name == "div":  # true division: into floating numbers
        assert str(torch.div(x, zero).cpu().tolist()) == "[inf, -inf, nan]"
        return
    with pytest.raises(RuntimeError, match="division by zero"):
        getattr(torch, name)(x, zero).cpu()
    assert (x + 1).tolist() == [8, -6, 1]


def test_integer_to_a_negative_power() -> None:
    agree(lambda device: torch.arange(1, 5, device=device) ** -1)
    agree(lambda device: torch.arange(1, 5, device=device) ** 2)


# ------------------------------------------------------------------------------------------------ values at the edge

_EDGE_FLOATS = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 1.0, -1.0, torch.inf, -torch.inf, torch.nan, 3.0e-5, -7.0]


def _edges(dtype: torch.dtype, room: float) -> torch.Tensor:
    """`room`: how far below the largest number, so that what a formula does on its way does not overflow."""
    if dtype == torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        return torch.tensor([info.min, info.min + 1, -3, -2, -1, 0, 1, 2, 3, info.max - 1, info.max], dtype=dtype)
    info = torch.finfo(dtype)
    return torch.tensor([*_EDGE_FLOATS, info.max / room, info.min / room, info.tiny, info.tiny / 4], dtype=dtype)


def _skip_edge(spec: Elementwise, dtype: torch.dtype) -> bool:
    # Integer division traps on the CPU for what only wraps around here.
    return spec.whole and not dtype.is_floating_point


@pytest.mark.parametrize("spec", [s for s in SPECS if s.arity < 3], ids=lambda s: s.name)
def test_edge_values(spec: Elementwise) -> None:
    """Infinities, NaN, signed zeros, halves, subnormal and largest numbers, the ends of the integers."""
    op = _overload(spec.name)
    for dtype in _dtypes(spec):
        if _skip_edge(spec, dtype):
            continue
        edges = _edges(dtype, 1 if spec.arity == 1 else 8)
        if not spec.huge:
            edges = edges[edges.abs() < 100]
        if spec.name.startswith("pow") and not dtype.is_floating_point:
            edges = edges.clamp(0, 3)
        if spec.arity == 1:
            operands = [edges]
        else:
            count = len(edges)
            operands = [edges.repeat_interleave(count), edges.repeat(count)]
            for i in range(2):
                if spec.fixed[i]:
                    operands[i] = operands[i] > 0
        for behind, named in spec.variants:
            wide = dtype.is_floating_point
            reference_operands = [t.double() if wide and t.is_floating_point() else t for t in operands]
            try:
                reference = op(*reference_operands, *behind, **named)
            except (RuntimeError, NotImplementedError) as error:
                assert "not implemented for 'Bool'" in str(error) or "bool" in str(error).lower(), error
                continue
            with watch() as rows:
                got = op(*(t.to(DEVICE) for t in operands), *behind, **named)
            assert rows, "nothing ran"
            # Next to the largest number of a dtype one ulp decides between that and infinity.
            mine, right = on_cpu(got), reference
            if mine.is_floating_point():
                finite = torch.isfinite(mine.double()) == torch.isfinite(right.to(mine.dtype).double())
                assert finite.all(), (
                    f"{spec.name}{behind}, {dtype}: {[o[~finite] for o in operands]} -> {mine[~finite]}, expected {right[~finite]}"
                )
                zero = (right == 0) & (mine == 0) & ~torch.isnan(right)
                signs = torch.signbit(mine[zero]) == torch.signbit(right[zero])
                assert signs.all(), (
                    f"{spec.name}{behind}, {dtype}: sign of zero for {[o[zero][~signs] for o in operands]}"
                )
                keep = torch.isfinite(right.to(mine.dtype).double())
                right = torch.where(keep, right, right.to(mine.dtype).to(right.dtype))
            assert_equal_to_reference(mine, right, dtype, 4 * spec.ulps, f"{spec.name}{behind}, {dtype}")


def test_int64_keeps_all_bits() -> None:
    """Integers beyond 2^53 are no floating numbers in between."""
    big = (1 << 53) + 1

    def program(device: Any) -> Any:
        x = torch.tensor([big, -big, 7], device=device)
        return (
            x + 1, x - 1, x * 3, x // 3, x % 10, -x, x.abs(), x.clamp(max=big - 1), torch.maximum(x, x - 1), x == big,
            x < big + 1, x.sum(), x.max(), x.min(), x.argmax(), torch.where(x > 0, x, 0), x & 0xFFFF, x + torch.tensor(big),
            x.masked_fill(x < 0, big), torch.add(x, x, alpha=big), x.fill_(big), torch.arange(big, big + 3, device=device),
            torch.full((2,), big, device=device), x.eq(float(1 << 53)),
        )  # fmt: skip

    agree(program)


def test_small_integers_wrap_around() -> None:
    """int8 and int32 overflow as on the CPU: two's complement."""

    def program(device: Any) -> Any:
        a = torch.tensor([127, -128, 100], dtype=torch.int8, device=device)
        b = torch.tensor([2**31 - 1, -(2**31)], dtype=torch.int32, device=device)
        return a + 1, a * 2, -a, a + a, b + 1, b * 3, b - 1, a.sum(), b.sum(), a.prod(), a.abs()

    agree(program)


# ------------------------------------------------------------------------------------------------ memory that overlaps


@pytest.mark.parametrize(
    "program",
    [
        lambda d: torch.ones(3, 1, device=d).expand(3, 4).add_(1),
        lambda d: torch.ones(1, device=d).expand(4).exp_(),
        lambda d: torch.ones(1, device=d).expand(4).fill_(2),
        lambda d: torch.ones(1, device=d).expand(4).zero_(),
        lambda d: torch.ones(1, device=d).expand(4).copy_(torch.ones(4, device=d)),
        lambda d: torch.ones(1, device=d).expand(4).mul_(2),
        lambda d: torch.ones(1, device=d).expand(4).clamp_(0, 1),
        lambda d: torch.ones(1, device=d).expand(4).cumsum_(0),
        lambda d: torch.add(torch.ones(4, device=d), 1, out=torch.ones(1, device=d).expand(4)),
        lambda d: torch.exp(torch.ones(4, device=d), out=torch.ones(1, device=d).expand(4)),
        lambda d: (lambda x: x[1:].add_(x[:-1]))(torch.arange(6.0, device=d)),
        lambda d: (lambda x: x[1:].copy_(x[:-1]))(torch.arange(6.0, device=d)),
        lambda d: (lambda x: torch.add(x[:-1], 1, out=x[1:]))(torch.arange(6.0, device=d)),
        lambda d: (lambda x: x.add_(x.t()))(torch.arange(9.0, device=d).view(3, 3)),
        lambda d: (lambda x: x.add_(x[0]))(torch.arange(9.0, device=d).view(3, 3)),
        lambda d: (lambda x: x.add_(x))(torch.arange(9.0, device=d).view(3, 3)),
        lambda d: (lambda x: torch.mul(x, x, out=x))(torch.arange(9.0, device=d).view(3, 3)),
        lambda d: (lambda x: torch.mm(x, x, out=x))(torch.arange(9.0, device=d).view(3, 3)),
        lambda d: (lambda x: torch.softmax(x, 0, out=x))(torch.arange(9.0, device=d).view(3, 3)),
        lambda d: (lambda x: x[::2].add_(x[1::2]))(torch.arange(8.0, device=d)),
        lambda d: (lambda x: x[1::2].copy_(x[::2]))(torch.arange(8.0, device=d)),
        lambda d: (lambda x: x[:4].add_(x[4:]))(torch.arange(8.0, device=d)),
        lambda d: (lambda x: x.addcmul_(x, x))(torch.arange(4.0, device=d)),
        lambda d: (lambda x: torch.where(x > 1, x, -x, out=x))(torch.arange(4.0, device=d)),
        lambda d: (lambda x: torch.index_select(x, 0, torch.tensor([1, 0], device=d), out=x))(torch.arange(2.0, device=d)),
        lambda d: (lambda x: torch.gather(x, 0, torch.tensor([1, 0], device=d), out=x))(torch.arange(2.0, device=d)),
        lambda d: (lambda x: torch.cat([x[:2], x[2:]], out=x))(torch.arange(4.0, device=d)),
    ],
    ids=lambda program: f"line{program.__code__.co_firstlineno}",
)  # fmt: skip
def test_overlapping_memory(program: Callable[[Any], Any]) -> None:
    """What the CPU refuses is refused, and what it computes comes out the same. Case 12."""
    agree(program)
