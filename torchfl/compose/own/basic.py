"""Everyday operators whose decomposition in PyTorch is right but slow to trace: its checks alone cost more."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own, wide
from torchfl.compose.own.activation import reduce_loss


@own("stack")
def stack(tensors: list[Tensor], dim: int = 0) -> Tensor:
    rank = tensors[0].dim() + 1
    return torch.cat([t.unsqueeze(dim % rank) for t in tensors], dim % rank)


@own("constant_pad_nd")
def constant_pad_nd(x: Tensor, pad: list[int], value: Any = 0) -> Tensor:
    sides = [(0, 0)] * x.dim()
    for i in range(len(pad) // 2):
        sides[x.dim() - 1 - i] = (pad[2 * i], pad[2 * i + 1])
    sizes = [n + a + b for n, (a, b) in zip(x.shape, sides, strict=True)]
    if min(sizes, default=0) < 0:
        raise ValueError("padding leaves a negative size")
    inner = x
    made = torch.full(sizes, value, dtype=x.dtype, device=x.device)
    window = made
    for d, (a, b) in enumerate(sides):
        inner = inner.narrow(d, max(-a, 0), max(x.shape[d] - max(-a, 0) - max(-b, 0), 0))
        window = window.narrow(d, max(a, 0), inner.shape[d])
    window.copy_(inner)
    return made


def _below(x: Tensor, diagonal: int) -> Tensor:
    rows = torch.arange(x.shape[-2], device=x.device).unsqueeze(1)
    return torch.arange(x.shape[-1], device=x.device) - rows <= diagonal


@own("tril")
def tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return torch.where(_below(x, diagonal), x, torch.zeros((), dtype=x.dtype, device=x.device))


@own("triu")
def triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return torch.where(_below(x, diagonal - 1), torch.zeros((), dtype=x.dtype, device=x.device), x)


@own("roll")
def roll(x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    if x.numel() == 0:
        return x.clone()
    if not dims:
        return roll(x.reshape(-1), shifts, [0]).view(x.shape)
    for shift, d in zip(shifts, dims, strict=True):
        n = x.shape[d]
        start = -shift % n
        if start:
            x = torch.cat([x.narrow(d, start, n - start), x.narrow(d, 0, start)], d)
        else:
            x = x.clone()
    return x


def _part(x: Tensor, dim: int, start: Any, end: Any, step: int) -> Tensor:
    n = x.shape[dim]
    first = 0 if start is None else max(min(start + n if start < 0 else start, n), 0)
    last = n if end is None else max(min(end + n if end < 0 else end, n), first)
    return torch.ops.aten.slice.Tensor(x, dim, first, last, step)


@own("slice_backward")
def slice_backward(grad: Tensor, sizes: list[int], dim: int, start: int, end: int, step: int) -> Tensor:
    made = torch.zeros(sizes, dtype=grad.dtype, device=grad.device)
    _part(made, dim, start, end, step).copy_(grad)
    return made


@own("slice_scatter")
def slice_scatter(x: Tensor, src: Tensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    made = x.clone(memory_format=torch.contiguous_format)
    _part(made, dim, start, end, step).copy_(src)
    return made


@own("select_backward")
def select_backward(grad: Tensor, sizes: list[int], dim: int, index: int) -> Tensor:
    made = torch.zeros(sizes, dtype=grad.dtype, device=grad.device)
    made.select(dim, index).copy_(grad)
    return made


@own("select_scatter")
def select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    made = x.clone(memory_format=torch.contiguous_format)
    made.select(dim, index).copy_(src)
    return made


@own("diagonal_backward")
def diagonal_backward(grad: Tensor, sizes: list[int], offset: int, dim1: int, dim2: int) -> Tensor:
    made = torch.zeros(sizes, dtype=grad.dtype, device=grad.device)
    made.diagonal(offset, dim1, dim2).copy_(grad)
    return made


@own("diagonal_scatter")
def diagonal_scatter(x: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    made = x.clone(memory_format=torch.contiguous_format)
    made.diagonal(offset, dim1, dim2).copy_(src)
    return made


@own("mse_loss")
@wide
def mse_loss(x: Tensor, target: Tensor, reduction: int = 1) -> Tensor:
    d = x - target
    return reduce_loss(d * d, reduction)


@own("mse_loss_backward")
@wide
def mse_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int) -> Tensor:
    return (x - target) * (2.0 / max(x.numel(), 1) if reduction == 1 else 2.0) * grad


@own("softplus")
@wide
def softplus(x: Tensor, beta: Any = 1, threshold: Any = 20) -> Tensor:
    inner = x if isinstance(beta, int) and beta == 1 else x * beta
    soft = torch.log1p(torch.exp(inner))
    return torch.where(inner > threshold, x, soft if inner is x else soft / beta)


@own("softplus_backward")
@wide
def softplus_backward(grad: Tensor, x: Tensor, beta: Any, threshold: Any) -> Tensor:
    inner = x * beta
    e = torch.exp(inner)
    return torch.where(inner > threshold, grad, grad * e / (e + 1))


@own("hardswish")
@wide
def hardswish(x: Tensor) -> Tensor:
    return x * torch.clamp(x + 3, 0, 6) / 6


@own("hardtanh")
def hardtanh(x: Tensor, min_val: Any = -1, max_val: Any = 1) -> Tensor:
    return torch.clamp(x, min_val, max_val)


@own("sigmoid_backward")
@wide
def sigmoid_backward(grad: Tensor, y: Tensor) -> Tensor:
    if y.dtype.is_complex:
        return NotImplemented
    return grad * (1 - y) * y


@own("tanh_backward")
@wide
def tanh_backward(grad: Tensor, y: Tensor) -> Tensor:
    if y.dtype.is_complex:
        return NotImplemented
    return grad * (1 - y * y)


@own("silu_backward")
@wide
def silu_backward(grad: Tensor, x: Tensor) -> Tensor:
    s = 1 / (1 + torch.exp(-x))
    return grad * s * (1 + x * (1 - s))


@own("threshold_backward")
def threshold_backward(grad: Tensor, x: Tensor, threshold: Any) -> Tensor:
    return torch.where(x <= threshold, torch.zeros((), dtype=grad.dtype, device=grad.device), grad)


@own("native_dropout_backward")
def native_dropout_backward(grad: Tensor, mask: Tensor, scale: Any) -> Tensor:
    return grad * (mask.to(grad.dtype) * scale)


def _picked(x: Tensor, target: Tensor, ignore: int) -> tuple[Tensor, Tensor, int]:
    """The target with a dimension of its own for the class, made safe; whether each counts; where classes are."""
    d = 1 if x.dim() > 1 else 0
    t = target.unsqueeze(d) if x.dim() > 1 else target.reshape(1)
    counts = t != ignore
    return torch.where(counts, t, torch.zeros_like(t)), counts, d


def _weight_of(weight: Tensor, t: Tensor, x: Tensor, d: int) -> Tensor:
    shape = [1] * x.dim()
    shape[d] = x.shape[d]
    return torch.gather(weight.view(shape).expand(x.shape), d, t)


@own("nll_loss_forward", "nll_loss2d_forward")
@wide
def nll_loss_forward(x: Tensor, target: Tensor, weight: Any, reduction: int, ignore: int) -> Any:
    t, counts, d = _picked(x, target, ignore)
    loss = -torch.gather(x, d, t)
    zero = torch.zeros((), dtype=x.dtype, device=x.device)
    scale = None if weight is None else torch.where(counts, _weight_of(weight, t, x, d), zero)
    loss = torch.where(counts, loss if scale is None else loss * scale, zero)
    if reduction == 0:
        return loss.reshape(target.shape), zero.clone()
    total = torch.sum(counts.to(x.dtype) if scale is None else scale)
    whole = torch.sum(loss)
    return (whole / total if reduction == 1 else whole), total


@own("nll_loss_backward", "nll_loss2d_backward")
@wide
def nll_loss_backward(grad: Tensor, x: Tensor, target: Tensor, weight: Any, reduction: int, ignore: int,
                      total: Tensor) -> Tensor:  # fmt: skip
    t, counts, d = _picked(x, target, ignore)
    step = -(grad / total) if reduction == 1 else -grad
    step = step.reshape(t.shape) if reduction == 0 else step.expand(t.shape)
    if weight is not None:
        step = step * _weight_of(weight, t, x, d)
    step = torch.where(counts, step, torch.zeros((), dtype=x.dtype, device=x.device))
    return torch.scatter(torch.zeros_like(x, memory_format=torch.contiguous_format), d, t, step)


@own("native_group_norm")
@wide
def native_group_norm(x: Tensor, weight: Any, bias: Any, n: int, c: int, hxw: int, groups: int, eps: Any) -> Any:
    y = x.reshape(n, groups, -1)
    mean = torch.mean(y, 2, keepdim=True)
    off = y - mean
    rstd = torch.rsqrt(torch.mean(off * off, 2, keepdim=True) + eps)
    made = (off * rstd).view(x.shape)
    shape = [1, c] + [1] * (x.dim() - 2)
    made = made if weight is None else made * weight.view(shape)
    made = made if bias is None else made + bias.view(shape)
    return made, mean.view(n, groups), rstd.view(n, groups)


@own("linalg_vector_norm")
def linalg_vector_norm(x: Tensor, ord: Any = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    dims = list(range(x.dim())) if dim is None or dim == [] else [dim] if isinstance(dim, int) else list(dim)
    if x.dtype.is_complex or (math.isinf(ord) and any(x.shape[d] == 0 for d in dims)):
        return NotImplemented
    kept = dtype or x.dtype
    y = x.to(torch.float32 if kept.itemsize == 2 else kept)
    size = torch.abs(y)
    p = float(ord)
    if p == math.inf:
        made = torch.amax(size, dims, keepdim) if dims else size
    elif p == -math.inf:
        made = torch.amin(size, dims, keepdim) if dims else size
    elif p == 0:
        made = torch.sum((y != 0).to(y.dtype), dims, keepdim)
    elif p == 1:
        made = torch.sum(size, dims, keepdim)
    elif p == 2:
        made = torch.sqrt(torch.sum(y * y, dims, keepdim))
    else:
        made = torch.pow(torch.sum(torch.pow(size, p), dims, keepdim), 1 / p)
    return made.to(kept)
