"""Convolution as one matrix product with the unfolded input, for chips without a convolution kernel.

Contract: any rank, groups, stride, padding, dilation; transposed convolution is the convolution of the input with zeros
put between its elements.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format
from torch.nn.functional import pad as pad_with

from torchfl.compose.own._register import own
from torchfl.compose.own.separable import per_dimension


def unfold(
    x: Tensor, kernel: list[int], stride: list[int], dilation: list[int], groups: int
) -> tuple[Tensor, list[int]]:
    """(N, C, *sizes) -> (groups, C / groups * prod(kernel), N * prod(out)), and out."""
    x = x.contiguous()
    rank = len(kernel)
    n, c = x.shape[:2]
    sizes, strides = list(x.shape[2:]), list(x.stride()[2:])
    out = [(size - d * (k - 1) - 1) // s + 1 for size, k, s, d in zip(sizes, kernel, stride, dilation, strict=True)]
    view = torch.as_strided(
        x,
        [groups, c // groups, *kernel, n, *out],
        [x.stride(1) * (c // groups), x.stride(1)]
        + [s * d for s, d in zip(strides, dilation, strict=True)]
        + [x.stride(0)]
        + [s * t for s, t in zip(strides, stride, strict=True)],
    )
    assert len(view.shape) == 3 + 2 * rank
    return view.reshape(groups, c // groups * math.prod(kernel), n * math.prod(out)), out


def padded(x: Tensor, padding: list[int], extra: list[int] | None = None) -> Tensor:
    """Negative padding crops."""
    extra = extra or [0] * len(padding)
    amounts = [e for p, q in zip(reversed(padding), reversed(extra), strict=True) for e in (p, p + q)]
    return pad_with(x, amounts) if any(amounts) else x


def convolve(
    x: Tensor, weight: Tensor, stride: list[int], padding: list[int], dilation: list[int], groups: int
) -> Tensor:
    kernel = list(weight.shape[2:])
    columns, out = unfold(padded(x, padding), kernel, stride, dilation, groups)
    filters = weight.reshape(groups, weight.shape[0] // groups, -1)
    made = torch.bmm(filters, columns).view(weight.shape[0], x.shape[0], *out)
    return made.transpose(0, 1)


def laid_out(made: Tensor, *models: Tensor) -> Tensor:
    """In memory as PyTorch has it: channels last if one of the models is."""
    last = made.dim() == 4 and any(suggest_memory_format(model) == torch.channels_last for model in models)
    return made.contiguous(memory_format=torch.channels_last if last else torch.contiguous_format)


def crop(x: Tensor, sizes: list[int]) -> Tensor:
    for d, n in enumerate(sizes):
        x = x.narrow(2 + d, 0, n)
    return x


def spread(x: Tensor, stride: list[int]) -> Tensor:
    """stride - 1 zeros between neighbours."""
    if all(s == 1 for s in stride):
        return x
    sizes = [(n - 1) * s + 1 for n, s in zip(x.shape[2:], stride, strict=True)]
    made = torch.zeros(*x.shape[:2], *sizes, dtype=x.dtype, device=x.device)
    window = made
    for d, s in enumerate(stride):
        window = window[(slice(None),) * (2 + d) + (slice(None, None, s),)]
    window.copy_(x)
    return made


def transposed(x: Tensor, weight: Tensor, stride: list[int], padding: list[int], output_padding: list[int],
               dilation: list[int], groups: int) -> Tensor:  # fmt: skip
    """weight: (C_in, C_out / groups, *kernel)."""
    kernel = list(weight.shape[2:])
    inner = [d * (k - 1) - p for d, k, p in zip(dilation, kernel, padding, strict=True)]
    big = padded(spread(x, stride), inner, output_padding)
    c, per_group = weight.shape[:2]
    turned = (
        weight.reshape(c, per_group, math.prod(kernel))
        .flip(-1)
        .reshape(groups, c // groups, per_group, *kernel)
        .transpose(1, 2)
    )
    turned = turned.reshape(groups * per_group, c // groups, *kernel)
    return convolve(big, turned, [1] * len(kernel), [0] * len(kernel), dilation, groups)


@own("convolution", "convolution_overrideable")
def convolution(x: Tensor, weight: Tensor, bias: Tensor | None, stride: Any, padding: Any, dilation: Any, flip: bool,
                output_padding: Any, groups: int) -> Tensor:  # fmt: skip
    rank = weight.dim() - 2
    single = x.dim() == rank + 1
    x = x.unsqueeze(0) if single else x
    stride, padding, dilation = (per_dimension(v, rank) for v in (stride, padding, dilation))
    if flip:
        made = transposed(x, weight, stride, padding, per_dimension(output_padding, rank), dilation, groups)
    else:
        made = convolve(x, weight, stride, padding, dilation, groups)
    if bias is not None:
        made = made + bias.view(-1, *[1] * rank)
    return laid_out(made.squeeze(0) if single else made, x, weight)


@own("convolution_backward", "convolution_backward_overrideable")
def convolution_backward(grad: Tensor, x: Tensor, weight: Tensor, *rest: Any) -> Any:
    # The plain form has the sizes of the bias first, the overrideable one ends without.
    stride, padding, dilation, flip, _, groups, mask = rest if len(rest) == 7 else rest[1:]
    rank = weight.dim() - 2
    kernel = list(weight.shape[2:])
    stride, padding, dilation = (per_dimension(v, rank) for v in (stride, padding, dilation))
    dx = dw = db = None
    if mask[0]:
        if flip:
            dx = convolve(grad, weight, stride, padding, dilation, groups)
            dx = crop(dx, list(x.shape[2:]))
        else:
            left = [
                n + 2 * p - d * (k - 1) - 1 - (m - 1) * s
                for n, p, d, k, m, s in zip(x.shape[2:], padding, dilation, kernel, grad.shape[2:], stride, strict=True)
            ]
            dx = transposed(grad, weight, stride, padding, left, dilation, groups)
        dx = laid_out(dx, x)
    if mask[1]:
        moved, fixed = (grad, x) if flip else (x, grad)
        moved = padded(moved, padding)
        # What lies behind the last window, such as the padding of a transposed convolution's result, takes no part.
        reach = [
            (m - 1) * s + d * (k - 1) + 1 for m, s, d, k in zip(fixed.shape[2:], stride, dilation, kernel, strict=True)
        ]
        columns, _ = unfold(crop(moved, reach), kernel, stride, dilation, groups)
        g = fixed.transpose(0, 1).reshape(groups, fixed.shape[1] // groups, -1)
        dw = torch.bmm(g, columns.transpose(1, 2)).view(weight.shape)
        dw = laid_out(dw, weight)
    if mask[2]:
        db = torch.sum(grad, [0, *range(2, grad.dim())])
    return dx, dw, db
