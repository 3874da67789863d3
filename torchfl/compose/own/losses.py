"""Losses that PyTorch has no decomposition for."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own, wide
from torchfl.compose.own.activation import reduce_loss


def _weights(weight: Tensor | None, target: Tensor, like: Tensor) -> Any:
    return 1.0 if weight is None else torch.gather(weight.to(like.dtype), 0, target.reshape(-1)).unsqueeze(1)


def _margins(x: Tensor, target: Tensor, p: Any, margin: Any, weight: Any) -> tuple[Tensor, Tensor, Tensor, Any]:
    rows = x.reshape(-1, x.shape[-1] if x.dim() else 1)
    t = target.reshape(-1, 1)
    hinge = torch.clamp_min(rows - torch.gather(rows, 1, t) + margin, 0)
    others = torch.arange(rows.shape[1], device=x.device) != t
    return rows, torch.where(others, hinge, torch.zeros_like(hinge)), t, _weights(weight, target, x)


@own("multi_margin_loss")
@wide
def multi_margin_loss(
    x: Tensor, target: Tensor, p: Any = 1, margin: Any = 1, weight: Any = None, reduction: int = 1
) -> Any:
    rows, hinge, _, scale = _margins(x, target, p, margin, weight)
    each = torch.sum((hinge if p == 1 else hinge * hinge) * scale, 1) / rows.shape[1]
    return reduce_loss(each.reshape(target.shape), reduction)


@own("multi_margin_loss_backward")
@wide
def multi_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, p: Any, margin: Any, weight: Any = None,
                               reduction: int = 1) -> Any:  # fmt: skip
    rows, hinge, t, scale = _margins(x, target, p, margin, weight)
    slope = (hinge > 0).to(x.dtype) if p == 1 else hinge * 2
    slope = slope * scale / rows.shape[1]
    total = torch.sum(slope, 1, keepdim=True)
    mine = torch.arange(rows.shape[1], device=x.device) == t
    slope = torch.where(mine, -total, slope)
    g = grad.reshape(-1, 1)
    return (slope * (g / rows.shape[0] if reduction == 1 else g)).reshape(x.shape)


def _label_sets(x: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, targets, whether each target counts (those before the first -1), and which classes are targets."""
    classes = x.shape[-1] if x.dim() else 1
    rows, t = x.reshape(-1, classes), target.reshape(-1, classes)
    valid = torch.cumsum((t < 0).to(torch.int64), 1) == 0
    spare = torch.where(valid, t, torch.full_like(t, classes))
    marks = torch.zeros(rows.shape[0], classes + 1, dtype=x.dtype, device=x.device)
    marks = torch.scatter(marks, 1, spare, torch.ones_like(t, dtype=x.dtype))
    return rows, torch.where(valid, t, torch.zeros_like(t)), valid, marks[:, :-1]


def _pairs(rows: Tensor, t: Tensor, valid: Tensor, marks: Tensor) -> Tensor:
    """(rows, target, class): 1 - x[target] + x[class] where that counts and is positive, else 0."""
    z = 1 - torch.gather(rows, 1, t).unsqueeze(2) + rows.unsqueeze(1)
    counts = valid.unsqueeze(2) & (marks == 0).unsqueeze(1) & (z > 0)
    return torch.where(counts, z, torch.zeros_like(z))


@own("multilabel_margin_loss_forward")
@wide
def multilabel_margin_loss(x: Tensor, target: Tensor, reduction: int) -> Any:
    rows, t, valid, marks = _label_sets(x, target)
    each = torch.sum(_pairs(rows, t, valid, marks), [1, 2]) / rows.shape[1]
    return reduce_loss(each.reshape(x.shape[:-1]), reduction), marks.reshape(x.shape)


@own("multilabel_margin_loss_backward")
@wide
def multilabel_margin_loss_backward(grad: Tensor, x: Tensor, target: Tensor, reduction: int, is_target: Tensor) -> Any:
    rows, t, valid, marks = _label_sets(x, target)
    hit = (_pairs(rows, t, valid, marks) > 0).to(x.dtype) / rows.shape[1]
    slope = torch.scatter_add(torch.sum(hit, 1), 1, t, -torch.sum(hit, 2))
    g = grad.reshape(-1, 1)
    return (slope * (g / rows.shape[0] if reduction == 1 else g)).reshape(x.shape)
