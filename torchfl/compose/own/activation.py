"""Activations, normalisations and losses, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own, wide


@own("gelu")
@wide
def gelu(x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = (x + 0.044715 * (x * x * x)) * math.sqrt(2 / math.pi)
        return x * 0.5 * (1 + torch.tanh(inner))
    return x * 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))


@own("gelu_backward")
@wide
def gelu_backward(grad: Tensor, x: Tensor, *, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        scale = math.sqrt(2 / math.pi)
        t = torch.tanh(scale * (x + 0.044715 * (x * x * x)))
        slope = scale * (1 + 3 * 0.044715 * (x * x))
        return grad * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    cdf = 0.5 * (1 + torch.erf(x * math.sqrt(0.5)))
    return grad * (cdf + x * (torch.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))))


@own("silu")
@wide
def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


@own("leaky_relu")
@wide
def leaky_relu(x: Tensor, slope: Any = 0.01) -> Tensor:
    return torch.where(x > 0, x, x * slope)


@own("leaky_relu_backward")
@wide
def leaky_relu_backward(grad: Tensor, x: Tensor, slope: Any, from_result: bool) -> Tensor:
    return torch.where(x > 0, grad, grad * slope)


@own("elu")
@wide
def elu(x: Tensor, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> Tensor:
    inner = x if isinstance(input_scale, int) and input_scale == 1 else x * input_scale
    low = torch.expm1(inner)
    low = low if isinstance(alpha, int) and alpha == 1 else low * alpha
    made = torch.where(x > 0, x, low)
    return made if isinstance(scale, int) and scale == 1 else made * scale


@own("elu_backward")
@wide
def elu_backward(grad: Tensor, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Tensor) -> Tensor:
    low = (x + alpha * scale) * input_scale if is_result else torch.exp(x * input_scale) * (input_scale * alpha * scale)
    return grad * torch.where(x > 0, torch.ones_like(x) * scale, low)


@own("_softmax")
def softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide_x = x.to(torch.float32) if x.dtype.itemsize == 2 else x
    if x.numel() == 0:
        return torch.empty_like(wide_x if half_to_float else x)
    e = torch.exp(wide_x - torch.amax(wide_x, dim, keepdim=True))
    made = e / torch.sum(e, dim, keepdim=True)
    return made if half_to_float else made.to(x.dtype)


@own("_log_softmax")
def log_softmax(x: Tensor, dim: int, half_to_float: bool) -> Tensor:
    wide_x = x.to(torch.float32) if x.dtype.itemsize == 2 else x
    if x.numel() == 0:
        return torch.empty_like(wide_x if half_to_float else x)
    shifted = wide_x - torch.amax(wide_x, dim, keepdim=True)
    made = shifted - torch.log(torch.sum(torch.exp(shifted), dim, keepdim=True))
    return made if half_to_float else made.to(x.dtype)


@own("_softmax_backward_data")
def softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    g, s = (t.to(torch.float32) if t.dtype.itemsize == 2 else t for t in (grad, y))
    product = g * s
    return (product - s * torch.sum(product, dim, keepdim=True)).to(input_dtype)


@own("_log_softmax_backward_data")
def log_softmax_backward(grad: Tensor, y: Tensor, dim: int, input_dtype: torch.dtype) -> Tensor:
    g, s = (t.to(torch.float32) if t.dtype.itemsize == 2 else t for t in (grad, y))
    return (g - torch.exp(s) * torch.sum(g, dim, keepdim=True)).to(input_dtype)


@own("native_layer_norm")
def native_layer_norm(x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: Any) -> Any:
    dims = list(range(x.dim() - len(shape), x.dim()))
    half = x.dtype.itemsize == 2
    y = x.to(torch.float32) if half else x
    mean = torch.mean(y, dims, keepdim=True)
    off = y - mean
    rstd = torch.rsqrt(torch.mean(off * off, dims, keepdim=True) + eps)
    made = off * rstd
    if weight is not None:
        made = made * weight
    if bias is not None:
        made = made + bias
    # The CPU keeps the statistics of half input in the dtype of the weights, and without weights in that of the input.
    kept = x.dtype if weight is None or not half else weight.dtype
    return made.to(x.dtype), mean.to(kept), rstd.to(kept)


@own("native_layer_norm_backward")
def native_layer_norm_backward(grad: Tensor, x: Tensor, shape: Any, mean: Tensor, rstd: Tensor, weight: Tensor | None,
                               bias: Tensor | None, mask: Any) -> Any:  # fmt: skip
    dims = list(range(x.dim() - len(shape), x.dim()))
    outer = list(range(x.dim() - len(shape)))
    half = x.dtype.itemsize == 2
    g, y, m, r = (t.to(torch.float32) if t.dtype.itemsize == 2 else t for t in (grad, x, mean, rstd))
    normal = (y - m) * r
    dx = dw = db = None
    if mask[0]:
        scaled = g if weight is None else g * (weight.to(torch.float32) if half else weight)
        a = torch.mean(scaled, dims, keepdim=True)
        b = torch.mean(scaled * normal, dims, keepdim=True)
        dx = (r * (scaled - a - normal * b)).to(x.dtype)
    if mask[1] and weight is not None:
        dw = (torch.sum(g * normal, outer) if outer else g * normal).to(weight.dtype)
    if mask[2] and bias is not None:
        db = (torch.sum(g, outer) if outer else g.clone()).to(bias.dtype)
    return dx, dw, db


@own("softshrink_backward", "hardshrink_backward")
def shrink_backward(grad: Tensor, x: Tensor, lambd: Any) -> Tensor:
    return torch.where((x >= -lambd) & (x <= lambd), torch.zeros_like(grad), grad)


@own("binary_cross_entropy")
@wide
def binary_cross_entropy(x: Tensor, target: Tensor, weight: Tensor | None = None, reduction: int = 1) -> Tensor:
    loss = (target - 1) * torch.clamp_min(torch.log1p(-x), -100) - target * torch.clamp_min(torch.log(x), -100)
    return reduce_loss(loss if weight is None else loss * weight, reduction)


def reduce_loss(loss: Tensor, reduction: int) -> Tensor:
    return loss if reduction == 0 else torch.mean(loss) if reduction == 1 else torch.sum(loss)
