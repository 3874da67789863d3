"""Distances between points, and other operators that PyTorch's decompositions leave out."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own, wide
from torchfl.compose.own.separable import apply


def _norm(d: Tensor, p: float) -> Tensor:
    """Over the last dimension."""
    size = torch.abs(d)
    if d.shape[-1] == 0:
        return torch.zeros(d.shape[:-1], dtype=d.dtype, device=d.device)
    if p == 0:
        return torch.sum((d != 0).to(d.dtype), -1)
    if p == math.inf:
        return torch.amax(size, -1)
    if p == 1:
        return torch.sum(size, -1)
    if p == 2:
        return torch.sqrt(torch.sum(d * d, -1))
    return torch.pow(torch.sum(torch.pow(size, p), -1), 1 / p)


def _slope(d: Tensor, norm: Tensor, p: float) -> Tensor:
    """Derivative of the norm by d; 0 where the norm is 0."""
    norm = norm.unsqueeze(-1)
    if p == 0:
        return torch.zeros_like(d)
    if p == 1:
        return torch.sign(d)
    if p == math.inf:
        return torch.sign(d) * (torch.abs(d) == norm).to(d.dtype)
    safe = torch.where(norm == 0, 1.0, norm)
    if p == 2:
        made = d / safe
    else:
        size = torch.abs(d)
        power = torch.where(size == 0, torch.zeros_like(size), torch.pow(torch.where(size == 0, 1.0, size), p - 1))
        made = torch.sign(d) * power / torch.pow(safe, p - 1)
    return torch.where(norm == 0, torch.zeros_like(made), made)


@own("_cdist_forward")
def cdist(a: Tensor, b: Tensor, p: Any, mode: Any) -> Tensor:
    return _norm(a.unsqueeze(-2) - b.unsqueeze(-3), float(p))


@own("_cdist_backward")
def cdist_backward(grad: Tensor, a: Tensor, b: Tensor, p: Any, norm: Tensor) -> Tensor:
    d = a.unsqueeze(-2) - b.unsqueeze(-3)
    return torch.sum(_slope(d, norm, float(p)) * grad.unsqueeze(-1), -2)


def _pairs(n: int, device: Any) -> tuple[Tensor, Tensor]:
    pairs = torch.triu_indices(n, n, 1)
    return pairs[0].to(torch.int64), pairs[1].to(torch.int64)


@own("_pdist_forward")
def pdist(x: Tensor, p: Any = 2) -> Tensor:
    i, j = _pairs(x.shape[0], x.device)
    return _norm(torch.index_select(x, 0, i) - torch.index_select(x, 0, j), float(p))


@own("_pdist_backward")
def pdist_backward(grad: Tensor, x: Tensor, p: Any, norm: Tensor) -> Tensor:
    i, j = _pairs(x.shape[0], x.device)
    d = torch.index_select(x, 0, i) - torch.index_select(x, 0, j)
    step = _slope(d, norm, float(p)) * grad.unsqueeze(-1)
    made = torch.scatter_add(torch.zeros_like(x), 0, i.unsqueeze(1).expand(step.shape), step)
    return torch.scatter_add(made, 0, j.unsqueeze(1).expand(step.shape), -step)


@own("_trilinear")
def trilinear(a: Tensor, b: Tensor, c: Tensor, ea: Any, eb: Any, ec: Any, sums: Any, unroll: int = 1) -> Tensor:
    for d in ea:
        a = a.unsqueeze(d)
    for d in eb:
        b = b.unsqueeze(d)
    for d in ec:
        c = c.unsqueeze(d)
    return torch.sum(a * b * c, list(sums)) if len(sums) else a * b * c


@own("addbmm")
def addbmm(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    # A sum of products is one product of the matrices side by side.
    wide_a = a.permute(1, 0, 2).reshape(a.shape[1], -1)
    return torch.addmm(c, wide_a, b.reshape(-1, b.shape[2]), beta=beta, alpha=alpha)


@own("addr")
def addr(c: Tensor, a: Tensor, b: Tensor, *, beta: Any = 1, alpha: Any = 1) -> Tensor:
    outer = a.unsqueeze(1) * b
    outer = outer if isinstance(alpha, int) and alpha == 1 else outer * alpha
    if isinstance(beta, int) and beta == 0:
        return outer
    return (c if isinstance(beta, int) and beta == 1 else c * beta) + outer


def _replicate(n: int, left: int, right: int, like: Tensor) -> Tensor:
    at = torch.clamp(torch.arange(n + left + right, device=like.device) - left, 0, n - 1).unsqueeze(1)
    return (at == torch.arange(n, device=like.device)).to(like.dtype)


def _register_pad(rank: int) -> None:
    @own(f"replication_pad{rank}d_backward")
    @wide
    def backward(grad: Tensor, x: Tensor, padding: Any) -> Tensor:
        sides = [(padding[2 * (rank - 1 - d)], padding[2 * (rank - 1 - d) + 1]) for d in range(rank)]
        maps = [_replicate(n, *side, grad).t() for n, side in zip(x.shape[-rank:], sides, strict=True)]
        return apply(grad, maps)


for _rank in (1, 2, 3):
    _register_pad(_rank)


@own("rrelu_with_noise_functional")
def rrelu_functional(x: Tensor, noise: Tensor, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False,
                     generator: Any = None) -> Any:  # fmt: skip
    if not training:
        return torch.where(x < 0, x * ((lower + upper) / 2), x), noise.clone()
    slope = torch.rand_like(x) * (upper - lower) + lower
    slope = torch.where(x <= 0, slope, torch.ones_like(slope))
    return x * slope, slope


@own("rrelu_with_noise")
def rrelu(x: Tensor, noise: Tensor, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False,
          generator: Any = None) -> Tensor:  # fmt: skip
    made, slope = rrelu_functional(x, noise, lower, upper, training)
    if training:
        noise.copy_(slope)
    return made


@own("equal")
def equal(a: Tensor, b: Tensor) -> Tensor:
    """One element, to be read by whoever asked."""
    if a.shape != b.shape:
        return torch.full((), False, dtype=torch.bool, device=a.device)
    return torch.all(a == b)


@own("allclose")
def allclose(a: Tensor, b: Tensor, rtol: Any = 1e-05, atol: Any = 1e-08, equal_nan: bool = False) -> Tensor:
    return torch.all(torch.isclose(a, b, rtol, atol, equal_nan))


@own("multinomial")
def multinomial(p: Tensor, n: int, replacement: bool = False, *, generator: Any = None) -> Tensor:
    wide = torch.float64 if p.dtype == torch.float64 else torch.float32
    p = p.to(wide)
    if not replacement or n == 1:
        # Of exponential waiting times with these rates the shortest come first: a draw without replacement.
        waits = -torch.log1p(-torch.rand(p.shape, dtype=wide, device=p.device))
        return torch.topk(p / torch.clamp_min(waits, 1e-30), n, -1)[1]
    total = torch.cumsum(p, -1)
    u = torch.rand((*p.shape[:-1], n), dtype=wide, device=p.device) * total.narrow(-1, p.shape[-1] - 1, 1)
    found = torch.sum((total.unsqueeze(-2) <= u.unsqueeze(-1)).to(torch.int64), -1)
    return torch.clamp_max(found, p.shape[-1] - 1)
