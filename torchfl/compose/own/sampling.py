"""Sampling on a grid (affine and other warps), forward and backward.

Contract: per dimension a list of taps: an index, its weight, and the weight's derivative by the coordinate; the value
is the sum over all combinations. Modes: 0 linear, 1 nearest, 2 cubic. Padding: 0 zeros, 1 border, 2 reflection.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own, wide

Tap = tuple[Tensor, Tensor, Tensor]  # index (float), weight, derivative


def _reflect(x: Tensor, low2: int, high2: int) -> tuple[Tensor, Tensor]:
    """Mirrors x into [low2 / 2, high2 / 2]; and the derivative of that."""
    if low2 == high2:
        return torch.zeros_like(x), torch.zeros_like(x)
    low, span = low2 / 2, (high2 - low2) / 2
    off = x - low
    size = torch.abs(off)
    flips = torch.floor(size / span)
    extra = size - flips * span
    odd = torch.remainder(flips, 2) == 1
    sign = torch.where(off < 0, -1.0, torch.ones_like(x))
    return torch.where(odd, span - extra + low, extra + low), torch.where(odd, -sign, sign)


def _pad(x: Tensor, n: int, padding: int, align: bool) -> tuple[Tensor, Tensor]:
    slope = torch.ones_like(x)
    if padding == 2:
        x, slope = _reflect(x, 0, 2 * (n - 1)) if align else _reflect(x, -1, 2 * n - 1)
    if padding:
        slope = torch.where((x <= 0) | (x >= n - 1), torch.zeros_like(x), slope)
        x = torch.clamp(x, 0, n - 1)
    return x, slope


def _cubic(t: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Weights of the taps at -1, 0, 1, 2 for the fraction t, and their derivatives."""
    a = -0.75
    made: list[tuple[Tensor, Tensor]] = []
    for d, sign, inner in ((t + 1, 1.0, False), (t, 1.0, True), (1 - t, -1.0, True), (2 - t, -1.0, False)):
        if inner:
            made.append((((a + 2) * d - (a + 3)) * d * d + 1, (3 * (a + 2) * d - 2 * (a + 3)) * d * sign))
        else:
            made.append((((d - 5) * d + 8) * d * a - 4 * a, ((3 * d - 10) * d + 8) * a * sign))
    return made


def _taps(grid: Tensor, n: int, mode: int, padding: int, align: bool) -> list[Tap]:
    scale = (n - 1) / 2 if align else n / 2
    x = (grid + 1) * scale if align else ((grid + 1) * n - 1) / 2
    if mode == 2:
        first = torch.floor(x)
        made = []
        for offset, (weight, slope) in zip((-1, 0, 1, 2), _cubic(x - first), strict=True):
            made.append((_pad(first + offset, n, padding, align)[0], weight, slope * scale))
        return made
    x, slope = _pad(x, n, padding, align)
    if mode == 1:
        return [(torch.round(x), torch.ones_like(x), torch.zeros_like(x))]
    first = torch.floor(x)
    t = x - first
    return [(first, 1 - t, -slope * scale), (first + 1, t, slope * scale)]


def _plan(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> tuple[list[list[Tap]], list[int], int]:
    rank = x.dim() - 2
    sizes = list(x.shape[2:])
    # The grid names its coordinates from the last dimension to the first.
    taps = [
        _taps(grid.select(-1, rank - 1 - d).reshape(x.shape[0], -1), sizes[d], mode, padding, align)
        for d in range(rank)
    ]
    return taps, sizes, rank


def _corner(corner: tuple[Tap, ...], sizes: list[int]) -> tuple[Tensor, Tensor]:
    """The flat index of a combination of taps, and whether it lies inside."""
    flat: Any = None
    inside: Any = None
    for (index, _, _), n in zip(corner, sizes, strict=True):
        ok = (index >= 0) & (index < n)
        at = torch.clamp(index, 0, n - 1).to(torch.int64)
        flat = at if flat is None else flat * n + at
        inside = ok if inside is None else inside & ok
    return flat, inside


def _product(factors: list[Tensor]) -> Tensor:
    made = factors[0]
    for f in factors[1:]:
        made = made * f
    return made


def sample(x: Tensor, grid: Tensor, mode: int, padding: int, align: bool) -> Tensor:
    taps, sizes, _ = _plan(x, grid, mode, padding, align)
    n, c = x.shape[:2]
    flat = x.reshape(n, c, math.prod(sizes))
    made: Tensor | None = None
    for corner in itertools.product(*taps):
        index, inside = _corner(corner, sizes)
        weight = _product([tap[1] for tap in corner])
        weight = torch.where(inside, weight, torch.zeros_like(weight)).unsqueeze(1)
        part = torch.gather(flat, 2, index.unsqueeze(1).expand(n, c, index.shape[1])) * weight
        made = part if made is None else made + part
    assert made is not None
    return made.view(n, c, *grid.shape[1:-1])


def sample_backward(grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding: int, align: bool, mask: Any) -> Any:
    taps, sizes, rank = _plan(x, grid, mode, padding, align)
    n, c = x.shape[:2]
    flat = x.reshape(n, c, math.prod(sizes))
    g = grad.reshape(n, c, -1)
    dx = torch.zeros_like(flat, memory_format=torch.contiguous_format)
    slopes: list[Any] = [None] * rank
    for corner in itertools.product(*taps):
        index, inside = _corner(corner, sizes)
        at = index.unsqueeze(1).expand(n, c, index.shape[1])
        if mask[0]:
            weight = _product([tap[1] for tap in corner])
            weight = torch.where(inside, weight, torch.zeros_like(weight)).unsqueeze(1)
            dx = torch.scatter_add(dx, 2, at, g * weight)
        if mask[1]:
            value = torch.sum(torch.gather(flat, 2, at) * g, 1)
            value = torch.where(inside, value, torch.zeros_like(value))
            for d in range(rank):
                part = value * _product([tap[2] if e == d else tap[1] for e, tap in enumerate(corner)])
                slopes[d] = part if slopes[d] is None else slopes[d] + part
    dgrid = torch.stack(slopes[::-1], -1).view(grid.shape) if mask[1] else None
    return dx.view(x.shape) if mask[0] else None, dgrid


own("grid_sampler_2d", "grid_sampler_3d")(wide(sample))
own("grid_sampler_2d_backward", "grid_sampler_3d_backward")(wide(sample_backward))
