"""Resampling and average pooling: linear maps along each dimension, so one small matrix product for each.

Contract: forward multiplies by the matrix (out, in) of each spatial dimension, backward by its transpose. The matrices
are made on the chip from their formula. Sizes and scales mean what they mean in torch.nn.functional.interpolate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own, wide
from torchfl.compose.recorder import NotComposable, dtype_name

Matrix = Callable[[int, int, Any, Any], Tensor]  # (in, out, dtype, device) -> (out, in)


def apply(x: Tensor, matrices: list[Tensor]) -> Tensor:
    """Multiplies the last len(matrices) dimensions of x by the matrices (new, old)."""
    for d, matrix in zip(range(x.dim() - len(matrices), x.dim()), matrices, strict=True):
        moved = x.movedim(d, -1)
        flat = moved.reshape(-1, moved.shape[-1])
        x = torch.mm(flat, matrix.t()).view(*moved.shape[:-1], matrix.shape[0]).movedim(-1, d)
    return x.contiguous()


def _scale(n: int, m: int, align: bool, scale: float | None) -> float:
    if align:
        return (n - 1) / (m - 1) if m > 1 else 0.0
    return 1 / scale if scale is not None and scale > 0 else n / m


def _grid(n: int, m: int, like: Tensor) -> tuple[Tensor, Tensor]:
    dtype = torch.float32 if like.dtype != torch.float64 else torch.float64
    out = torch.arange(m, dtype=dtype, device=like.device).unsqueeze(1)
    return out, torch.arange(n, dtype=dtype, device=like.device)


def nearest(n: int, m: int, scale: float | None, exact: bool, like: Tensor) -> Tensor:
    out, source = _grid(n, m, like)
    step = _scale(n, m, False, scale)
    at = torch.floor((out + 0.5) * step if exact else out * step)
    return (torch.clamp_max(at, n - 1) == source).to(like.dtype)


def _source(out: Tensor, n: int, m: int, align: bool, scale: float | None) -> Tensor:
    step = _scale(n, m, align, scale)
    return out * step if align else (out + 0.5) * step - 0.5


def linear(n: int, m: int, align: bool, scale: float | None, like: Tensor) -> Tensor:
    out, source = _grid(n, m, like)
    at = torch.clamp(_source(out, n, m, align, scale), 0, n - 1)
    return torch.clamp_min(1 - torch.abs(at - source), 0).to(like.dtype)


def _cubic(t: Tensor, a: float) -> Tensor:
    t = torch.abs(t)
    near = ((a + 2) * t - (a + 3)) * t * t + 1
    far = ((t - 5) * t + 8) * t * a - 4 * a
    return torch.where(t <= 1, near, torch.where(t < 2, far, torch.zeros_like(t)))


def cubic(n: int, m: int, align: bool, scale: float | None, like: Tensor) -> Tensor:
    out, source = _grid(n, m, like)
    at = _source(out, n, m, align, scale)
    first = torch.floor(at)
    whole: Tensor | None = None
    for tap in (-1, 0, 1, 2):
        hit = (torch.clamp(first + tap, 0, n - 1) == source).to(at.dtype)
        part = hit * _cubic(at - first - tap, -0.75)
        whole = part if whole is None else whole + part
    assert whole is not None
    return whole.to(like.dtype)


def antialiased(n: int, m: int, align: bool, scale: float | None, kind: str, like: Tensor) -> Tensor:
    """The filter is stretched by the step where that shrinks, and its weights are made to sum to 1."""
    out, source = _grid(n, m, like)
    step = _scale(n, m, align, scale)
    stretch = max(step, 1.0)
    support = (1.0 if kind == "linear" else 2.0) * stretch
    centre = (out + 0.5) * step
    low = torch.clamp_min(torch.trunc(centre - support + 0.5), 0)
    high = torch.clamp_max(torch.trunc(centre + support + 0.5), n)
    t = (source - centre + 0.5) / stretch
    weight = torch.clamp_min(1 - torch.abs(t), 0) if kind == "linear" else _cubic(t, -0.5)
    weight = torch.where((source >= low) & (source < high), weight, torch.zeros_like(weight))
    return (weight / torch.sum(weight, 1, keepdim=True)).to(like.dtype)


def _register_nearest(name: str, rank: int, exact: bool) -> None:
    @own(name + "_backward")
    @wide
    def backward(grad: Tensor, output: list[int], size: list[int], *scales: Any) -> Tensor:
        given = list(scales) or [None] * rank
        maps = [nearest(size[2 + d], output[d], given[d], exact, grad).t() for d in range(rank)]
        return apply(grad, maps)


def _register(name: str, rank: int, make: Callable[..., Tensor], forward: bool, *more: Any) -> None:
    @own(name + "_backward")
    @wide
    def backward(grad: Tensor, output: list[int], size: list[int], align: bool, *scales: Any) -> Tensor:
        given = list(scales) or [None] * rank
        maps = [make(size[2 + d], output[d], align, given[d], *more, grad).t() for d in range(rank)]
        return apply(grad, maps)

    if not forward:
        return

    @own(name)
    @wide
    def resample(x: Tensor, output: list[int], align: bool, *scales: Any) -> Tensor:
        _floating(x)
        given = list(scales) or [None] * rank
        return apply(x, [make(x.shape[2 + d], output[d], align, given[d], *more, x) for d in range(rank)])


for _rank in (1, 2, 3):
    _register_nearest(f"upsample_nearest{_rank}d", _rank, False)
    _register_nearest(f"_upsample_nearest_exact{_rank}d", _rank, True)
_register("upsample_linear1d", 1, linear, True)
_register("upsample_bilinear2d", 2, linear, True)
_register("upsample_trilinear3d", 3, linear, True)
_register("upsample_bicubic2d", 2, cubic, True)
_register("_upsample_bilinear2d_aa", 2, antialiased, True, "linear")
_register("_upsample_bicubic2d_aa", 2, antialiased, True, "cubic")


# ----------------------------------------------------------------------------------------------------- average pooling


def per_dimension(x: Any, rank: int) -> list[int]:
    values = [x] if isinstance(x, int) else list(x)
    return values * rank if len(values) == 1 else values


def pooled_size(n: int, k: int, stride: int, pad: int, dilation: int, ceil: bool) -> int:
    span = n + 2 * pad - dilation * (k - 1) - 1
    m = (span + (stride - 1 if ceil else 0)) // stride + 1
    # A window that would start in the padding behind the end is left out.
    return m - 1 if ceil and (m - 1) * stride >= n + pad else m


def _window(n: int, m: int, k: int, stride: int, pad: int, include: bool, override: bool, like: Tensor) -> Tensor:
    out, source = _grid(n, m, like)
    low = out * stride - pad
    high = torch.clamp_max(low + k, n + pad)
    inside = (source >= low) & (source < high)
    size = high - low if include else torch.clamp_max(high, n) - torch.clamp_min(low, 0)
    weight = inside.to(size.dtype)
    return (weight if override else weight / size).to(like.dtype)


def _pool_maps(sizes: list[int], kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool, divisor: Any,
               like: Tensor) -> list[Tensor]:  # fmt: skip
    rank = len(sizes)
    kernel = per_dimension(kernel, rank)
    stride = per_dimension(stride, rank) if stride else kernel
    padding = per_dimension(padding, rank)
    maps = []
    for n, k, s, p in zip(sizes, kernel, stride, padding, strict=True):
        m = pooled_size(n, k, s, p, 1, ceil)
        maps.append(_window(n, m, k, s, p, include, divisor is not None, like))
    if divisor is not None:
        maps[-1] = maps[-1] * (1.0 / divisor)
    return maps


def _floating(x: Tensor) -> None:
    """The weights of a map are fractions; integers, where PyTorch takes them at all, round in its own way."""
    if not x.dtype.is_floating_point:
        raise NotComposable(f"averages of {dtype_name(x.dtype)}")


def _register_average(rank: int) -> None:
    @own(f"avg_pool{rank}d")
    @wide
    def forward(x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, ceil: bool = False, include: bool = True,
                divisor: Any = None) -> Tensor:  # fmt: skip
        _floating(x)
        return apply(x, _pool_maps(list(x.shape[-rank:]), kernel, stride, padding, ceil, include, divisor, x))

    @own(f"avg_pool{rank}d_backward")
    @wide
    def backward(grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, ceil: bool, include: bool,
                 divisor: Any) -> Tensor:  # fmt: skip
        maps = _pool_maps(list(x.shape[-rank:]), kernel, stride, padding, ceil, include, divisor, grad)
        return apply(grad, [m.t() for m in maps])

    @own(f"_adaptive_avg_pool{rank}d")
    @wide
    def adaptive(x: Tensor, size: Any) -> Tensor:
        _floating(x)
        return apply(x, [_adaptive(n, m, x) for n, m in zip(x.shape[-rank:], size, strict=True)])

    @own(f"_adaptive_avg_pool{rank}d_backward")
    @wide
    def adaptive_backward(grad: Tensor, x: Tensor) -> Tensor:
        return apply(
            grad, [_adaptive(n, m, grad).t() for n, m in zip(x.shape[-rank:], grad.shape[-rank:], strict=True)]
        )


def _adaptive(n: int, m: int, like: Tensor) -> Tensor:
    out = torch.arange(m, device=like.device).unsqueeze(1)
    source = torch.arange(n, device=like.device)
    low = torch.div(out * n, m, rounding_mode="trunc")
    high = torch.div((out + 1) * n + (m - 1), m, rounding_mode="trunc")
    return ((source >= low) & (source < high)).to(like.dtype) / (high - low).to(like.dtype)


for _rank in (1, 2, 3):
    _register_average(_rank)
