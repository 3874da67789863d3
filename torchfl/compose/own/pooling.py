"""Maximum pooling: the elements of each window side by side, their maximum and where it was; backward scatters.

Contract: indices as PyTorch has them: flat within the spatial dimensions of one channel; of equal elements the first.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own
from torchfl.compose.own.separable import per_dimension, pooled_size


def pool(x: Tensor, positions: list[Tensor], valid: list[Tensor]) -> tuple[Tensor, Tensor]:
    """positions[d]: (out, window) of indices into dimension d of the last len(positions) ones of x; valid[d]: likewise,
    false for what does not count."""
    rank = len(positions)
    sizes = list(x.shape[-rank:])
    lead = list(x.shape[:-rank])
    channels = math.prod(lead)
    where = flat_indices([p.unsqueeze(0) for p in positions], sizes)[0]
    counts: Tensor | None = None
    for ok in valid:
        counts = ok if counts is None else _beside(counts.unsqueeze(0), ok.unsqueeze(0), torch.logical_and)[0]
    assert counts is not None
    outs = [p.shape[0] for p in positions]
    if x.numel() == 0:
        return _nothing(x, [*lead, *outs])
    windows = torch.index_select(x.reshape(channels, -1), 1, where.reshape(-1)).view(channels, *where.shape)
    windows = torch.where(counts, windows, lowest(x))
    best = torch.argmax(windows, -1, keepdim=True)
    values = torch.gather(windows, -1, best).squeeze(-1)
    indices = torch.gather(where.expand(channels, *where.shape), -1, best).squeeze(-1)
    return values.view(*lead, *outs), indices.view(*lead, *outs)


def _nothing(x: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor]:
    return torch.empty(sizes, dtype=x.dtype, device=x.device), torch.empty(sizes, dtype=torch.int64, device=x.device)


def _beside(a: Tensor, b: Tensor, combine: Any) -> Tensor:
    """(n, outs, window) of some dimensions with that of the next one, flattened again."""
    n = max(a.shape[0], b.shape[0])
    made = combine(a.unsqueeze(2).unsqueeze(-1), b.unsqueeze(1).unsqueeze(3))
    return made.reshape(n, a.shape[1] * b.shape[1], a.shape[2] * b.shape[2])


def flat_indices(positions: list[Tensor], sizes: list[int]) -> Tensor:
    """positions[d]: (n, out, window) of indices into dimension d; the result: (n, outs, windows) of flat ones."""
    where = positions[0]
    for at, size in zip(positions[1:], sizes[1:], strict=True):
        where = _beside(where, at, lambda a, b, size=size: a * size + b)
    return where


def lowest(x: Tensor) -> Any:
    return -math.inf if x.dtype.is_floating_point else torch.iinfo(x.dtype).min


def unpool(grad: Tensor, indices: Tensor, like: Tensor, rank: int) -> Tensor:
    size = math.prod(like.shape[-rank:])
    lead = math.prod(like.shape[:-rank])
    zeros = torch.zeros(lead, size, dtype=grad.dtype, device=grad.device)
    count = math.prod(grad.shape[-rank:])
    made = torch.scatter_add(zeros, 1, indices.reshape(lead, count), grad.reshape(lead, count))
    return made.view(like.shape)


def _windows(sizes: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool, device: Any) -> Any:
    rank = len(sizes)
    kernel = per_dimension(kernel, rank)
    stride = per_dimension(stride, rank) if stride else kernel
    positions, valid = [], []
    for n, k, s, p, d in zip(sizes, kernel, stride, per_dimension(padding, rank), per_dimension(dilation, rank),
                             strict=True):  # fmt: skip
        m = pooled_size(n, k, s, p, d, ceil)
        at = torch.arange(m, device=device).unsqueeze(1) * s - p + torch.arange(k, device=device) * d
        valid.append((at >= 0) & (at < n))
        positions.append(torch.clamp(at, 0, n - 1))
    return positions, valid


def _register(rank: int) -> None:
    @own(f"max_pool{rank}d_with_indices")
    def forward(
        x: Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1, ceil: bool = False
    ) -> Any:
        return pool(x, *_windows(x.shape[-rank:], kernel, stride, padding, dilation, ceil, x.device))

    @own(f"max_pool{rank}d_with_indices_backward")
    def backward(grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool,
                 indices: Tensor) -> Tensor:  # fmt: skip
        return unpool(grad, indices, x, rank)

    @own(f"adaptive_max_pool{rank}d")
    def adaptive(x: Tensor, size: Any) -> Any:
        positions, valid = [], []
        for n, m in zip(x.shape[-rank:], size, strict=True):
            out = torch.arange(m, device=x.device).unsqueeze(1)
            low = torch.div(out * n, m, rounding_mode="trunc")
            high = torch.div((out + 1) * n + (m - 1), m, rounding_mode="trunc")
            longest = max(-(-(i + 1) * n // m) - i * n // m for i in range(m))
            at = low + torch.arange(longest, device=x.device)
            valid.append(at < high)
            positions.append(torch.clamp_max(at, n - 1))
        return pool(x, positions, valid)

    @own(f"adaptive_max_pool{rank}d_backward")
    def adaptive_backward(grad: Tensor, x: Tensor, indices: Tensor) -> Tensor:
        return unpool(grad, indices, x, rank)

    @own(f"fractional_max_pool{rank}d")
    def fractional(x: Tensor, kernel: Any, size: Any, samples: Tensor) -> Any:
        n = x.shape[-rank:]
        batch, channels = (x.shape[0], x.shape[1]) if x.dim() == rank + 2 else (1, x.shape[0])
        flat = x.reshape(batch * channels, *n)
        u = samples.reshape(batch * channels, rank).to(x.dtype)
        shape = [*x.shape[:-rank], *size]
        if x.numel() == 0:
            return _nothing(x, shape)
        # Where windows start differs from channel to channel: each element's flat index, then one gather.
        positions = []
        for d in range(rank):
            # Samples come as (width, height) or (depth, width, height) of CPU code: the last dimension first.
            mine = u[:, rank - 1 - d if rank == 2 else d].unsqueeze(1)
            start = _starts(n[d], size[d], kernel[d], mine)
            positions.append(start.unsqueeze(-1) + torch.arange(kernel[d], device=x.device))
        where = flat_indices(positions, list(n))
        windows = torch.gather(flat.reshape(batch * channels, -1), 1, where.reshape(batch * channels, -1))
        windows = windows.view(where.shape)
        best = torch.argmax(windows, -1, keepdim=True)
        return torch.gather(windows, -1, best).view(shape), torch.gather(where, -1, best).view(shape)

    @own(f"fractional_max_pool{rank}d_backward")
    def fractional_backward(grad: Tensor, x: Tensor, kernel: Any, size: Any, indices: Tensor) -> Tensor:
        return unpool(grad, indices, x, rank)


def _starts(n: int, m: int, k: int, u: Tensor) -> Tensor:
    """trunc((i + u) alpha) - trunc(u alpha) for all but the last window, which ends at the end."""
    alpha = (n - k) / (m - 1) if m > 1 else 0.0
    i = torch.arange(m, dtype=u.dtype, device=u.device)
    at = torch.trunc((i + u) * alpha) - torch.trunc(u * alpha)
    return torch.where(i == m - 1, torch.full_like(at, n - k), at).to(torch.int64)


for _rank in (1, 2, 3):
    _register(_rank)


@own("max_unpool2d", "max_unpool3d")
def max_unpool(x: Tensor, indices: Tensor, size: Any, *_: Any) -> Tensor:
    rank = len(size)
    lead = math.prod(x.shape[:-rank])
    count = math.prod(x.shape[-rank:])
    zeros = torch.zeros(lead, math.prod(size), dtype=x.dtype, device=x.device)
    made = torch.scatter(zeros, 1, indices.reshape(lead, count), x.reshape(lead, count))
    return made.view(*x.shape[:-rank], *size)
