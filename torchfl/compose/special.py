"""Functions of one variable by polynomials, for chips that lack the instruction and for rare functions.

Contract: coefficients are fitted on first use to PyTorch's float64 function at the Chebyshev nodes of each interval;
the result is right to a few units in the last place of float32. Not offered for float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes

from torchfl.compose.recorder import NotComposable, Recorder
from torchfl.compose.vector import vec


def fit(f: Callable[[Tensor], Tensor], low: float, high: float, degree: int) -> list[float]:
    """Coefficients, the highest power first, of the polynomial in t in [-1, 1] that interpolates f(x(t))."""
    with _disable_current_modes():
        n = degree + 1
        k = torch.arange(n, dtype=torch.float64)
        nodes = torch.cos(math.pi * (k + 0.5) / n)
        values = f((low + high) / 2 + (high - low) / 2 * nodes)
        chebyshev = [
            float((values * torch.cos(math.pi * j * (k + 0.5) / n)).sum()) * (1 if j == 0 else 2) / n for j in range(n)
        ]
    power = [0.0] * n
    before, now = [1.0], [0.0, 1.0]
    for j, c in enumerate(chebyshev):
        terms = before if j == 0 else now
        for i, t in enumerate(terms):
            power[i] += c * t
        if j:
            following = [0.0, *(2 * t for t in now)]
            for i, t in enumerate(before):
                following[i] -= t
            before, now = now, following
    return power[::-1]


def horner(rec: Recorder, t: Tensor, coefficients: list[float]) -> Tensor:
    made: Any = vec(rec, "vadd", vec(rec, "vmul", t, coefficients[0]), coefficients[1])
    for c in coefficients[2:]:
        made = vec(rec, "vadd", vec(rec, "vmul", made, t), c)
    return made


@functools.cache
def _erf_pieces() -> tuple[list[float], list[float]]:
    """erf(x)/x in x^2 on [0, 1]; log(erfc(x)) on [1, 4]."""
    near = fit(lambda s: torch.erf(s.sqrt()) / s.sqrt(), 1e-12, 1.0, 7)
    far = fit(lambda x: torch.log(torch.special.erfcx(x)) - x * x, 1.0, 4.0, 11)
    return near, far


def erf(rec: Recorder, x: Tensor) -> Tensor:
    if x.dtype == torch.float64:
        raise NotComposable("no verf for float64")
    near, far = _erf_pieces()
    size = vec(rec, "vmin", vec(rec, "vabs", x), 4.0)
    small = vec(rec, "vmin", vec(rec, "vmul", x, x), 1.0)
    inner = vec(rec, "vmul", x, horner(rec, vec(rec, "vadd", vec(rec, "vmul", small, 2.0), -1.0), near))
    t = vec(rec, "vadd", vec(rec, "vmul", vec(rec, "vmax", size, 1.0), 2 / 3), -5 / 3)
    outer = vec(rec, "vsub", 1.0, vec(rec, "vexp", horner(rec, t, far)))
    signed = vec(rec, "vselect", vec(rec, "vlt", x, 0), vec(rec, "vneg", outer), outer)
    return vec(rec, "vselect", vec(rec, "vlt", size, 1.0), inner, signed)
