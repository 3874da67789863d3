"""Discrete Fourier transforms as products with the DFT matrix, on real and imaginary parts.

Contract: `_fft_r2c`, `_fft_c2c`, `_fft_c2r` with PyTorch's normalisation numbers (0: none, 1: 1/sqrt(n), 2: 1/n). A
length with factors is split after Cooley and Tukey, so n = a * b costs n (a + b) instead of n * n.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from torchfl.compose.own._register import own

_DIRECT = 64  # below this, splitting saves less than the two extra passes cost
Pair = tuple[Tensor, Tensor | None]


def _angles(rows: int, columns: int, n: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin of 2 pi j k / n. The product is reduced in integers: angles stay below one turn."""
    j = torch.arange(rows, device=like.device).unsqueeze(1)
    k = torch.arange(columns, device=like.device)
    turn = torch.remainder(j * k, n).to(like.dtype) * (2 * math.pi / n)
    return torch.cos(turn), torch.sin(turn)


def _rows(x: Tensor, matrix: Tensor) -> Tensor:
    """x @ matrix over the last dimension of x."""
    flat = x.reshape(-1, x.shape[-1])
    return torch.mm(flat, matrix).view(*x.shape[:-1], matrix.shape[1])


def dft(x: Pair, sign: int) -> tuple[Tensor, Tensor]:
    """Along the last dimension; sign -1 is the forward transform."""
    re, im = x
    n = re.shape[-1]
    a = max((d for d in range(2, math.isqrt(n) + 1) if n % d == 0), default=1)
    if n <= _DIRECT or a == 1:
        cos, sin = _angles(n, n, n, re)
        if im is None:
            return _rows(re, cos), _rows(re, sin) * sign
        return _rows(re, cos) - _rows(im, sin) * sign, _rows(im, cos) + _rows(re, sin) * sign
    b = n // a
    lead = re.shape[:-1]
    split: Pair = (re.reshape(*lead, a, b).transpose(-1, -2), None if im is None else
                   im.reshape(*lead, a, b).transpose(-1, -2))  # fmt: skip
    re, im = dft(split, sign)  # (b, a): over the first index
    cos, sin = _angles(b, a, n, re)
    sin = sin * sign
    re, im = re * cos - im * sin, re * sin + im * cos
    re, im = dft((re.transpose(-1, -2), im.transpose(-1, -2)), sign)  # (a, b)
    return re.transpose(-1, -2).reshape(*lead, n), im.transpose(-1, -2).reshape(*lead, n)


def _scale(normalization: int, count: int) -> float:
    return {0: 1.0, 1: 1 / math.sqrt(count), 2: 1 / count}[normalization]


def _along(x: Pair, dim: int, sign: int) -> tuple[Tensor, Tensor]:
    re, im = x
    moved: Pair = (re.movedim(dim, -1), None if im is None else im.movedim(dim, -1))
    made = dft(moved, sign)
    return made[0].movedim(-1, dim), made[1].movedim(-1, dim)


def _parts(x: Tensor) -> tuple[Tensor, Tensor]:
    both = torch.view_as_real(x)
    return both.select(-1, 0), both.select(-1, 1)


def _scaled(x: Tensor, by: float) -> Tensor:
    return x if by == 1 else x * by


@own("_fft_c2c")
def fft_c2c(x: Tensor, dim: list[int], normalization: int, forward: bool) -> Tensor:
    re, im = _parts(x)
    for d in dim:
        re, im = _along((re, im), d % x.dim(), -1 if forward else 1)
    by = _scale(normalization, math.prod(x.shape[d] for d in dim))
    return torch.complex(_scaled(re, by), _scaled(im, by))


@own("_fft_r2c")
def fft_r2c(x: Tensor, dim: list[int], normalization: int, onesided: bool) -> Tensor:
    last = dim[-1] % x.dim()
    re, im = _along((x, None), last, -1)
    if onesided:
        half = x.shape[last] // 2 + 1
        re, im = re.narrow(last, 0, half), im.narrow(last, 0, half)
    for d in dim[:-1]:
        re, im = _along((re, im), d % x.dim(), -1)
    by = _scale(normalization, math.prod(x.shape[d] for d in dim))
    return torch.complex(_scaled(re, by), _scaled(im, by))


@own("_fft_c2r")
def fft_c2r(x: Tensor, dim: list[int], normalization: int, n: int) -> Tensor:
    last = dim[-1] % x.dim()
    re, im = _parts(x)
    for d in dim[:-1]:
        re, im = _along((re, im), d % x.dim(), 1)
    re, im = re.movedim(last, -1), im.movedim(last, -1)
    # The other half of the spectrum is the conjugate of this one: each inner frequency counts twice.
    half = n // 2 + 1
    re, im = re.narrow(-1, 0, half), im.narrow(-1, 0, half)
    cos, sin = _angles(half, n, n, re)
    k = torch.arange(half, device=x.device).unsqueeze(1)
    once = (k == 0) | (k * 2 == n)
    weight = torch.where(once, 1.0, torch.full_like(cos, 2.0))
    made = _rows(re, cos * weight) - _rows(im, sin * weight)
    count = n * math.prod(x.shape[d] for d in dim[:-1])
    return _scaled(made, _scale(normalization, count)).movedim(-1, last)


@own("complex")
def complex_(re: Tensor, im: Tensor) -> Tensor:
    re, im = torch.broadcast_tensors(re, im)
    dtype = {torch.float16: torch.complex32, torch.float32: torch.complex64, torch.float64: torch.complex128}[re.dtype]
    made = torch.empty(re.shape, dtype=dtype, device=re.device)
    both = torch.view_as_real(made)
    both.select(-1, 0).copy_(re)
    both.select(-1, 1).copy_(im)
    return made
