"""What each instruction means, on CPU tensors. Operands may be numbers where the instruction allows an immediate.

Contract: slow and plain; equal in value to what docs/instructions.md says. Used by tests and by `reference.run`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Operand = Any  # a tensor, or an immediate number


def _pair(a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """Both as tensors of the dtype of the one that is a tensor."""
    if not isinstance(a, Tensor):
        return torch.full_like(b, _convert(a, b.dtype)), b
    if not isinstance(b, Tensor):
        return a, torch.full_like(a, _convert(b, a.dtype))
    assert a.dtype == b.dtype and a.shape == b.shape, (a.dtype, b.dtype, a.shape, b.shape)
    return a, b


def _convert(value: Any, dtype: torch.dtype) -> Any:
    if dtype == torch.bool:
        return bool(value)
    return value if dtype.is_floating_point else int(value)


def _binary(f: Any) -> Any:
    return lambda a, b: f(*_pair(a, b))


add = _binary(torch.add)
sub = _binary(torch.sub)
mul = _binary(torch.mul)
div = _binary(torch.div)
idiv = _binary(lambda a, b: torch.div(a, torch.where(b == 0, 1, b), rounding_mode="trunc"))
maximum = _binary(torch.maximum)
minimum = _binary(torch.minimum)
power = _binary(torch.pow)
fmod = _binary(torch.fmod)
remainder = _binary(torch.remainder)
atan2 = _binary(torch.atan2)
copysign = _binary(torch.copysign)
nextafter = _binary(torch.nextafter)
bit_and = _binary(torch.bitwise_and)
bit_or = _binary(torch.bitwise_or)
bit_xor = _binary(torch.bitwise_xor)
shift_left = _binary(torch.bitwise_left_shift)
shift_right = _binary(torch.bitwise_right_shift)
gcd = _binary(torch.gcd)


def _via_float32(f: Any) -> Any:
    return _binary(lambda a, b: f(a.float(), b.float()).to(a.dtype) if a.dtype.itemsize < 4 else f(a, b))


igamma = _via_float32(torch.igamma)
igammac = _via_float32(torch.igammac)
zeta = _via_float32(torch.special.zeta)

eq = _binary(torch.eq)
ne = _binary(torch.ne)
lt = _binary(torch.lt)
le = _binary(torch.le)
gt = _binary(torch.gt)
ge = _binary(torch.ge)


def select(cond: Tensor, a: Operand, b: Operand, dtype: torch.dtype | None = None) -> Tensor:
    assert cond.dtype == torch.bool
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        a, b = _pair(a, b)
        return torch.where(cond, a, b)
    dtype = dtype or torch.get_default_dtype()
    x, y = (torch.full(cond.shape, _convert(v, dtype), dtype=dtype) for v in (a, b))
    return torch.where(cond, x, y)


def cast(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype)


def fill(sizes: list[int], value: Any, dtype: torch.dtype) -> Tensor:
    return torch.full(sizes, _convert(value, dtype), dtype=dtype)


def iota(n: int, start: Any, step: Any, dtype: torch.dtype) -> Tensor:
    wide = torch.float64 if dtype.is_floating_point else torch.int64
    return (torch.arange(n, dtype=wide) * step + start).to(dtype)


def _wide(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def reduce_sum(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    return torch.sum(x, dims, keepdim, dtype=x.dtype) if dims else x.clone()


def reduce_prod(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    y = _wide(x)
    for d in sorted(dims, reverse=True):
        y = torch.prod(y, d, keepdim, dtype=y.dtype)
    return y.to(x.dtype)


def reduce_max(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    return torch.amax(x, dims, keepdim) if dims else x.clone()


def reduce_min(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    return torch.amin(x, dims, keepdim) if dims else x.clone()


def reduce_any(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    return torch.any(x, dims, keepdim) if dims else x.clone()


def reduce_all(x: Tensor, dims: list[int], keepdim: bool) -> Tensor:
    return torch.all(x, dims, keepdim) if dims else x.clone()


def argmax(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    return torch.argmax(x, dim, keepdim)


def argmin(x: Tensor, dim: int, keepdim: bool) -> Tensor:
    return torch.argmin(x, dim, keepdim)


def matmul(a: Tensor, b: Tensor) -> Tensor:
    assert a.dtype == b.dtype and a.dim() == b.dim() and a.dim() in (2, 3)
    return torch.matmul(_wide(a), _wide(b)).to(a.dtype)


def copy_nd(x: Tensor) -> Tensor:
    return x.clone()


def flip(x: Tensor, dims: list[int]) -> Tensor:
    return torch.flip(x, dims)


def gather(x: Tensor, index: Tensor, dim: int) -> Tensor:
    return torch.gather(x, dim, index) if x.dim() else x.expand(index.shape).clone()


def scatter(x: Tensor, index: Tensor, src: Operand, dim: int) -> Tensor:
    return torch.scatter(x, dim, index, _source(x, index, src))


def _source(x: Tensor, index: Tensor, src: Operand) -> Tensor:
    return src if isinstance(src, Tensor) else torch.full(index.shape, _convert(src, x.dtype), dtype=x.dtype)


def _scatter_reduce(how: str) -> Any:
    def run(x: Tensor, index: Tensor, src: Operand, dim: int) -> Tensor:
        return torch.scatter_reduce(x, dim, index, _source(x, index, src), how)

    return run


scatter_add = _scatter_reduce("sum")
scatter_mul = _scatter_reduce("prod")
scatter_max = _scatter_reduce("amax")
scatter_min = _scatter_reduce("amin")


def sort(x: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    values, indices = torch.sort(x, dim=dim, descending=descending, stable=True)
    return values, indices


def cumsum(x: Tensor, dim: int) -> Tensor:
    return torch.cumsum(_wide(x), dim, dtype=_wide(x).dtype).to(x.dtype)


def cumprod(x: Tensor, dim: int) -> Tensor:
    return torch.cumprod(_wide(x), dim, dtype=_wide(x).dtype).to(x.dtype)


def logcumsumexp(x: Tensor, dim: int) -> Tensor:
    return torch.logcumsumexp(_wide(x), dim).to(x.dtype)


def cummax(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    values, indices = torch.cummax(x, dim)
    return values, indices


def cummin(x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    values, indices = torch.cummin(x, dim)
    return values, indices


def _mul_hi_lo(a: int, b: Tensor) -> tuple[Tensor, Tensor]:
    """High and low 32 bits of the product of two unsigned 32-bit numbers held in int64."""
    low = (a & 0xFFFF) * b
    high = (a >> 16) * b
    whole_low = (low + ((high & 0xFFFF) << 16)) & 0xFFFFFFFF
    carry = ((low >> 16) + (high & 0xFFFF)) >> 16
    return ((high >> 16) + carry) & 0xFFFFFFFF, whole_low


def philox(counters: Tensor, seed: int) -> Tensor:
    """(n,) 64-bit counters -> (n, 4) unsigned 32-bit lanes, in int64: Philox 4x32-10 of Salmon et al. (2011)."""
    c0, c1 = counters & 0xFFFFFFFF, (counters >> 32) & 0xFFFFFFFF
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    for _ in range(10):
        h0, l0 = _mul_hi_lo(0xD2511F53, c0)
        h1, l1 = _mul_hi_lo(0xCD9E8D57, c2)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return torch.stack([c0, c1, c2, c3], 1)


def _numel(sizes: list[int]) -> int:
    n = 1
    for s in sizes:
        n *= s
    return n


def random_uniform(sizes: list[int], seed: int, offset: int, dtype: torch.dtype) -> Tensor:
    n = _numel(sizes)
    lanes = philox(torch.arange((n + 3) // 4) + offset, seed).flatten()[:n]
    keep = {torch.float16: 11, torch.bfloat16: 8}.get(dtype, 24)
    return ((lanes >> (32 - keep)).to(torch.float64) * 2.0**-keep).to(dtype).reshape(sizes)


def random_bits(sizes: list[int], seed: int, offset: int) -> Tensor:
    n = _numel(sizes)
    lanes = philox(torch.arange((n + 1) // 2) + offset, seed).reshape(-1, 2)[:n]
    return (((lanes[:, 1] >> 1) << 32) | (((lanes[:, 1] & 1) << 31) | (lanes[:, 0] >> 1))).reshape(sizes)
