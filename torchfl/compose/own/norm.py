"""Batch normalisation in its many forms.

Contract: running statistics are written in place; saved statistics are the mean and 1 / sqrt(variance + eps).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own


def _wide(x: Tensor | None) -> Any:
    return x.to(torch.float32) if x is not None and x.dtype.itemsize == 2 else x


def _shape(x: Tensor) -> list[int]:
    return [-1 if d == 1 else 1 for d in range(x.dim())]


def _normalise(x: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor, rstd: Tensor) -> Tensor:
    view = _shape(x)
    scale = rstd if weight is None else rstd * _wide(weight)
    made = (_wide(x) - mean.view(view)) * scale.view(view)
    if bias is not None:
        made = made + _wide(bias).view(view)
    return made.to(x.dtype)


def batch_norm(x: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool, momentum: Any,
               eps: Any) -> tuple[Tensor, Tensor, Tensor, Any, Any]:  # fmt: skip
    """Result, saved mean, saved 1 / deviation, and the new running statistics (None if there are none)."""
    if not training:
        rstd = torch.rsqrt(_wide(running_var) + eps)
        kept_as = x.dtype if weight is None else weight.dtype
        made = _normalise(x, weight, bias, _wide(running_mean), rstd)
        nothing = torch.empty([0], dtype=kept_as, device=x.device)
        return made, nothing, nothing.clone(), running_mean, running_var
    dims = [0, *range(2, x.dim())]
    count = x.numel() // max(x.shape[1], 1)
    y = _wide(x)
    mean = torch.mean(y, dims)
    off = y - mean.view(_shape(x))
    variance = torch.mean(off * off, dims)
    rstd = torch.rsqrt(variance + eps)
    made = _normalise(x, weight, bias, mean, rstd)
    if running_mean is not None:
        kept = 1 - momentum
        running_mean = (_wide(running_mean) * kept + mean * momentum).to(running_mean.dtype)
    if running_var is not None:
        unbiased = variance * (count / max(count - 1, 1))
        running_var = (_wide(running_var) * (1 - momentum) + unbiased * momentum).to(running_var.dtype)
    kept_as = x.dtype if weight is None else weight.dtype  # as the CPU keeps them
    return made, mean.to(kept_as), rstd.to(kept_as), running_mean, running_var


@own("native_batch_norm", "_native_batch_norm_legit", "miopen_batch_norm")
def native_batch_norm(x: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
                      momentum: Any, eps: Any) -> Any:  # fmt: skip
    made, mean, rstd, new_mean, new_var = batch_norm(
        x, weight, bias, running_mean, running_var, training, momentum, eps
    )
    if training:
        if running_mean is not None:
            running_mean.copy_(new_mean)
        if running_var is not None:
            running_var.copy_(new_var)
    return made, mean, rstd


@own("_native_batch_norm_legit.no_stats")
def native_batch_norm_no_stats(x: Tensor, weight: Any, bias: Any, training: bool, momentum: Any, eps: Any) -> Any:
    return batch_norm(x, weight, bias, None, None, True, momentum, eps)[:3]


@own("_native_batch_norm_legit_functional")
def native_batch_norm_functional(x: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, training: bool,
                                 momentum: Any, eps: Any) -> Any:  # fmt: skip
    return batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)


@own("_native_batch_norm_legit_no_training")
def native_batch_norm_no_training(x: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any,
                                  eps: Any) -> Any:  # fmt: skip
    return batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)[:3]


@own("_batch_norm_with_update")
def batch_norm_with_update(x: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any,
                           eps: Any) -> Any:  # fmt: skip
    made = native_batch_norm(x, weight, bias, running_mean, running_var, True, momentum, eps)
    return *made, torch.empty([0], dtype=torch.uint8, device=x.device)


@own("_batch_norm_no_update")
def batch_norm_no_update(x: Tensor, weight: Any, bias: Any, running_mean: Any, running_var: Any, momentum: Any,
                         eps: Any) -> Any:  # fmt: skip
    made = batch_norm(x, weight, bias, running_mean, running_var, False, momentum, eps)[:3]
    return *made, torch.empty([0], dtype=torch.uint8, device=x.device)


@own("native_batch_norm_backward")
def native_batch_norm_backward(grad: Tensor, x: Tensor, weight: Any, running_mean: Any, running_var: Any, mean: Any,
                               rstd: Any, training: bool, eps: Any, mask: Any) -> Any:  # fmt: skip
    view = _shape(x)
    dims = [0, *range(2, x.dim())]
    if not training:
        mean, rstd = _wide(running_mean), torch.rsqrt(_wide(running_var) + eps)
    else:
        mean, rstd = _wide(mean), _wide(rstd)
    g = _wide(grad)
    normal = (_wide(x) - mean.view(view)) * rstd.view(view)
    sum_g = torch.sum(g, dims)
    sum_gn = torch.sum(g * normal, dims)
    dx = dw = db = None
    if mask[0]:
        scale = (rstd if weight is None else rstd * _wide(weight)).view(view)
        if training:
            count = x.numel() // max(x.shape[1], 1)
            dx = (g - (sum_g / count).view(view) - normal * (sum_gn / count).view(view)) * scale
        else:
            dx = g * scale
        dx = dx.to(x.dtype)
    if mask[1]:
        dw = sum_gn.to(weight.dtype if weight is not None else sum_gn.dtype)
    if mask[2]:
        db = sum_g.to(weight.dtype if weight is not None else sum_g.dtype)
    return dx, dw, db


@own("batch_norm_backward")
def batch_norm_backward(grad: Tensor, x: Tensor, weight: Any, running_mean: Any, running_var: Any, mean: Any, rstd: Any,
                        update: bool, eps: Any, mask: Any, reserve: Any) -> Any:  # fmt: skip
    return native_batch_norm_backward(grad, x, weight, running_mean, running_var, mean, rstd, update, eps, mask)
