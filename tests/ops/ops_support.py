"""Shared by the operator tests: operands in every form that a view can have, references in double precision, a look at
which path ran, and programs that must do on the device what they do on the CPU."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import torchfl
from torchfl import hcd
from torchfl._paths import shipped_chips

DEVICE = "npu_v3:0"

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)

#: dtype -> (relative, absolute) error that one correctly rounded operation, computed in float32 or better, may have.
#: The 16-bit ones are one unit in the last place: a float32 result next to the middle between two of them may round
#: either way. float32 allows the few units that its exp, sin and the like are off in any library.
ROUNDING = {
    torch.float16: (9.8e-4, 6.0e-8),
    torch.bfloat16: (7.9e-3, 1e-38),
    torch.float32: (2e-6, 1e-7),
    torch.float64: (1e-13, 1e-15),
    torch.complex64: (2e-6, 1e-7),
    torch.complex128: (1e-13, 1e-15),
}


def dtype_named(name: str) -> torch.dtype:
    found = getattr(torch, name)
    assert isinstance(found, torch.dtype), name
    return found


@functools.cache
def lowered() -> dict[str, Any]:
    """The shipped descriptor as the engine gets it."""
    return hcd.load(shipped_chips()["npu_v3"]).lower()


# ------------------------------------------------------------------------------------------------ operands


def sample(shape: tuple[int, ...], dtype: torch.dtype, low: float = -3, high: float = 3, seed: int = 0) -> torch.Tensor:
    """A CPU tensor of `dtype` with values between `low` and `high`, the same for the same arguments."""
    generator = torch.Generator().manual_seed(1000003 * seed + 101 * len(shape) + sum(shape))
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    values = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    if dtype.is_complex:
        return torch.complex(values, values.flip(0) if values.dim() else values).to(dtype)
    return values.round().to(dtype) if not dtype.is_floating_point else values.to(dtype)


def _transposed(value: torch.Tensor, device: Any) -> torch.Tensor:
    if value.dim() < 2:
        return _gaps(value, device)
    return value.transpose(0, -1).contiguous().to(device).transpose(0, -1)


def _misaligned(value: torch.Tensor, device: Any) -> torch.Tensor:
    storage = torch.zeros(value.numel() + 3, dtype=value.dtype, device=device)
    view = storage[3:].view(value.shape)
    view.copy_(value)
    return view


def _gaps(value: torch.Tensor, device: Any) -> torch.Tensor:
    if value.dim() == 0:
        return _misaligned(value, device)
    storage = torch.zeros((*value.shape[:-1], 2 * value.shape[-1] + 1), dtype=value.dtype, device=device)
    view = storage[..., 1::2]
    view.copy_(value)
    return view


def _channels_last(value: torch.Tensor, device: Any) -> torch.Tensor:
    if value.dim() != 4:
        return _transposed(value, device)
    return value.to(device).contiguous(memory_format=torch.channels_last)


#: How an operand may lie in memory; each takes (CPU tensor, device) and returns a device tensor of the same values.
FORMS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "contiguous": lambda value, device: value.contiguous().to(device),
    "transposed": _transposed,
    "misaligned": _misaligned,
    "gaps": _gaps,
    "channels_last": _channels_last,
}


def place(value: torch.Tensor, form: str, device: Any = DEVICE) -> torch.Tensor:
    view = FORMS[form](value.detach().clone(), device)
    assert view.shape == value.shape and view.dtype == value.dtype
    return view


# ------------------------------------------------------------------------------------------------ what ran


class Watched(list):  # type: ignore[type-arg]
    """Rows of torchfl.stats() of what ran inside `watch`."""

    def of(self, op: str) -> list[dict[str, Any]]:
        """The rows of an operator (`aten::add`), whatever its form."""
        base = op.split(".")[0].removesuffix("_overrideable").removesuffix("_")
        return [row for row in self if row["op"].split(".")[0].removesuffix("_overrideable").removesuffix("_") == base]

    def elsewhere(self) -> list[str]:
        """Everything that did not run on the chip, one line each."""
        return [
            f"{r['op']} x{r['calls']}: {r['path']}: {r['reason']}"
            for r in self
            if r["path"] not in ("native", "transfer")
        ]

    def count(self, path: str) -> int:
        return sum(row["calls"] for row in self if row["path"] == path)


@contextlib.contextmanager
def watch() -> Iterator[Watched]:
    rows = Watched()
    torchfl.reset_stats()
    yield rows
    rows.extend(torchfl.stats())


# ------------------------------------------------------------------------------------------------ comparing


def on_cpu(tree: Any) -> Any:
    return tree_map(lambda t: t.detach().cpu() if isinstance(t, torch.Tensor) else t, tree)


def assert_equal_to_reference(
    got: Any, reference: Any, dtype: torch.dtype, ulps: float = 1, what: str = "", further: float = 0
) -> None:
    """`got` (device or CPU, any dtype) against `reference` (the same in double precision, or exact).

    Floating results must agree to `ulps` times the rounding of the coarser of their own dtype and `dtype`, plus
    `further`.
    """
    got_leaves, reference_leaves = tree_flatten(on_cpu(got))[0], tree_flatten(on_cpu(reference))[0]
    assert len(got_leaves) == len(reference_leaves), (
        f"{what}: {len(got_leaves)} results, {len(reference_leaves)} expected"
    )
    for mine, right in zip(got_leaves, reference_leaves, strict=True):
        if not isinstance(mine, torch.Tensor):
            assert mine == right or (mine != mine and right != right), f"{what}: {mine}, expected {right}"
            continue
        assert mine.shape == right.shape, f"{what}: shape {tuple(mine.shape)}, expected {tuple(right.shape)}"
        if not (mine.dtype.is_floating_point or mine.dtype.is_complex):
            torch.testing.assert_close(mine, right, rtol=0, atol=0, check_dtype=False, msg=lambda m: f"{what}: {m}")
            continue
        coarser = max((mine.dtype, dtype), key=lambda d: ROUNDING.get(d, (0, 0))[0])
        relative, absolute = ROUNDING[coarser]
        if mine.dtype in (torch.float16, torch.bfloat16, torch.float32) and right.dtype == torch.float64:
            # What overflows in the narrow dtype is right as infinity.
            limit = torch.finfo(mine.dtype).max
            right = torch.where(right.abs() > limit * (1 + relative), right.sign() * torch.inf, right)
        wide = torch.complex128 if mine.dtype.is_complex else torch.float64
        torch.testing.assert_close(
            mine.to(wide),
            right.to(wide),
            rtol=ulps * relative,
            atol=ulps * absolute + further,
            equal_nan=True,
            msg=lambda m: f"{what}: {m}",
        )


def outcome(program: Callable[[Any], Any], device: Any) -> Any:
    """What a program returns, as CPU tensors; if it raises, the kind of its error."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = program(device)
            return on_cpu(result)
    except (NotImplementedError, RuntimeError, TypeError, ValueError, IndexError, ZeroDivisionError) as error:
        return error


#: What the CPU refuses only because its own kernel lacks something: other devices of PyTorch compute these.
CPU_ONLY = (
    "not implemented for",  # no kernel in this dtype
    "without overflow",  # a number is narrowed to the dtype first
)


def agree(
    program: Callable[[Any], Any],
    ulps: float = 2,
    strides: bool = False,
    dtype: torch.dtype | None = None,
    cpu_only: tuple[str, ...] = CPU_ONLY,
    further: float = 0,
) -> None:
    """`program(device)` returns (nested) tensors, or raises: on the device as on the CPU. Which kind of error PyTorch's
    shape functions raise differs from its kernels', so any will do. `dtype`: what is computed in, if the results are of
    a finer one. `further`: an absolute error allowed beside the ulps."""
    right, got = outcome(program, "cpu"), outcome(program, DEVICE)
    if isinstance(right, Exception) and any(part in str(right) for part in cpu_only):
        return
    if isinstance(right, Exception) or isinstance(got, Exception):
        both = isinstance(right, Exception) and isinstance(got, Exception)
        assert both, f"CPU: {right!r}\ndevice: {got!r}"
        return
    left, others = tree_flatten(got)[0], tree_flatten(right)[0]
    assert len(left) == len(others)
    for mine, other in zip(left, others, strict=True):
        if isinstance(other, torch.Tensor):
            assert mine.dtype == other.dtype, f"dtype {mine.dtype}, on the CPU {other.dtype}"
            if strides:
                assert mine.stride() == other.stride(), f"strides {mine.stride()}, on the CPU {other.stride()}"
            assert_equal_to_reference(mine, other, dtype or mine.dtype, ulps, further=further)
        else:
            assert mine == other
