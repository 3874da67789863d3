"""Special functions: by formula where there is one, else by polynomials fitted to PyTorch's own float64 function.

Contract: right to a few units in the last place of float32, absolutely near zeros; float64 is not offered where it
would need more terms, and then the operator is not composable.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own, wide
from torchfl.compose.recorder import NotComposable
from torchfl.compose.special import fit

_special = torch.special
Function = Callable[[Tensor], Tensor]


@functools.cache
def _coefficients(f: Function, low: float, high: float, degree: int) -> tuple[float, ...]:
    return tuple(fit(f, low, high, degree))


def poly(f: Function, x: Tensor, low: float, high: float, degree: int) -> Tensor:
    """f(x) on [low, high]; x is clamped to it."""
    t = (torch.clamp(x, low, high) - (low + high) / 2) * (2 / (high - low))
    coefficients = _coefficients(f, low, high, degree)
    made = t * coefficients[0] + coefficients[1]
    for c in coefficients[2:]:
        made = made * t + c
    return made


def single(f: Callable[..., Any]) -> Callable[..., Any]:
    """In float32 at most; integers are converted."""

    @functools.wraps(f)
    def run(x: Tensor, *args: Any) -> Any:
        if x.dtype == torch.float64:
            raise NotComposable(f"{f.__name__} in float64")
        return f(x if x.dtype.is_floating_point else x.to(torch.float32), *args)

    return wide(run)


# Fitted functions of one variable. Names, not lambdas in calls: their coefficients are kept by identity.
def _i0_near(x: Tensor) -> Tensor:
    return _special.i0e(x)


def _i0_far(t: Tensor) -> Tensor:
    return _special.i0e(1 / t) / t.sqrt()


def _i1_near(x: Tensor) -> Tensor:
    return _special.i1e(x) / x


def _i1_far(t: Tensor) -> Tensor:
    return _special.i1e(1 / t) / t.sqrt()


@own("special_i0e")
@single
def i0e(x: Tensor) -> Tensor:
    size = torch.abs(x)
    far = torch.rsqrt(torch.clamp_min(size, 8.0)) * poly(_i0_far, 1 / torch.clamp_min(size, 8.0), 1e-9, 0.125, 8)
    return torch.where(size <= 8, poly(_i0_near, size, 0.0, 8.0, 20), far)


@own("special_i1e")
@single
def i1e(x: Tensor) -> Tensor:
    size = torch.abs(x)
    far = torch.rsqrt(torch.clamp_min(size, 8.0)) * poly(_i1_far, 1 / torch.clamp_min(size, 8.0), 1e-9, 0.125, 8)
    return torch.where(size <= 8, poly(_i1_near, size, 1e-9, 8.0, 20) * x, torch.where(x < 0, -far, far))


@own("i0", "special_i0", "special_modified_bessel_i0")
@single
def i0(x: Tensor) -> Tensor:
    return i0e(x) * torch.exp(torch.abs(x))


@own("special_i1", "special_modified_bessel_i1")
@single
def i1(x: Tensor) -> Tensor:
    return i1e(x) * torch.exp(torch.abs(x))


def _k0_near(s: Tensor) -> Tensor:
    x = s.sqrt()
    return _special.modified_bessel_k0(x) + torch.log(x / 2) * _special.i0(x)


def _k1_near(s: Tensor) -> Tensor:
    x = s.sqrt()
    return (_special.modified_bessel_k1(x) - torch.log(x / 2) * _special.i1(x)) * x


def _k0_far(t: Tensor) -> Tensor:
    return _special.scaled_modified_bessel_k0(1 / t) / t.sqrt()


def _k1_far(t: Tensor) -> Tensor:
    return _special.scaled_modified_bessel_k1(1 / t) / t.sqrt()


def _k(order: int, scaled: bool) -> Callable[[Tensor], Tensor]:
    def k(x: Tensor) -> Tensor:
        size = torch.clamp_min(x, 2.0)
        far = torch.rsqrt(size) * poly(_k1_far if order else _k0_far, 1 / size, 1e-9, 0.5, 14)
        small = torch.clamp(x, 1e-38, 2.0)
        square = small * small
        if order:
            near = poly(_k1_near, square, 1e-9, 4.0, 9) / small + torch.log(small / 2) * i1(small)
        else:
            near = poly(_k0_near, square, 1e-9, 4.0, 9) - torch.log(small / 2) * i0(small)
        made = torch.where(
            x <= 2, near * torch.exp(small) if scaled else near, far if scaled else far * torch.exp(-size)
        )
        made = torch.where(x == 0, math.inf, made)
        return torch.where(x < 0, math.nan, torch.where(x != x, x, made))

    return k


for _order in (0, 1):
    own(f"special_modified_bessel_k{_order}")(single(_k(_order, False)))
    own(f"special_scaled_modified_bessel_k{_order}")(single(_k(_order, True)))


# Bessel functions of the first and second kind: a polynomial up to 8, modulus and phase beyond (Hankel's expansion).
def _j0_near(s: Tensor) -> Tensor:
    return _special.bessel_j0(s.sqrt())


def _j1_near(s: Tensor) -> Tensor:
    return _special.bessel_j1(s.sqrt()) / s.sqrt()


def _y0_near(s: Tensor) -> Tensor:
    x = s.sqrt()
    return _special.bessel_y0(x) - 2 / math.pi * torch.log(x) * _special.bessel_j0(x)


def _y1_near(s: Tensor) -> Tensor:
    x = s.sqrt()
    return (_special.bessel_y1(x) - 2 / math.pi * (torch.log(x) * _special.bessel_j1(x) - 1 / x)) / x


def _hankel(order: int, part: int) -> Function:
    def f(s: Tensor) -> Tensor:
        x = 8 / s.sqrt()
        j, y = (_special.bessel_j1, _special.bessel_y1) if order else (_special.bessel_j0, _special.bessel_y0)
        theta = x - (3 if order else 1) * math.pi / 4
        size = torch.sqrt(math.pi * x / 2)
        if part == 0:
            return size * (j(x) * theta.cos() + y(x) * theta.sin())
        return size * (y(x) * theta.cos() - j(x) * theta.sin()) * x

    return f


_HANKEL = {(o, p): _hankel(o, p) for o in (0, 1) for p in (0, 1)}
_NEAR = {("j", 0): _j0_near, ("j", 1): _j1_near, ("y", 0): _y0_near, ("y", 1): _y1_near}


def _bessel(kind: str, order: int) -> Callable[[Tensor], Tensor]:
    def bessel(x: Tensor) -> Tensor:
        size = torch.abs(x)
        square = torch.clamp(size * size, 0, 64)
        big = torch.clamp_min(size, 8.0)
        s = 64 / (big * big)
        p = poly(_HANKEL[order, 0], s, 1e-4, 1.0, 6)
        q = poly(_HANKEL[order, 1], s, 1e-4, 1.0, 6) / big
        theta = big - (3 if order else 1) * math.pi / 4
        cos, sin = torch.cos(theta), torch.sin(theta)
        wave = p * cos - q * sin if kind == "j" else p * sin + q * cos
        far = torch.sqrt((2 / math.pi) / big) * wave
        near = poly(_NEAR[kind, order], square, 1e-9, 64.0, 19)
        if kind == "j":
            made = torch.where(size <= 8, near * size if order else near, far)
            return torch.where(x < 0, -made, made) if order else made
        small = torch.clamp(size, 1e-38, 8.0)
        if order:
            near = near * small + (2 / math.pi) * (torch.log(small) * _J[1](small) - 1 / small)
        else:
            near = near + (2 / math.pi) * torch.log(small) * _J[0](small)
        made = torch.where(x <= 8, near, far)
        return torch.where(x < 0, math.nan, torch.where(x == 0, -math.inf, torch.where(x != x, x, made)))

    return bessel


_J = {order: _bessel("j", order) for order in (0, 1)}
for _order in (0, 1):
    own(f"special_bessel_j{_order}")(single(_J[_order]))
    own(f"special_bessel_y{_order}")(single(_bessel("y", _order)))


@own("special_spherical_bessel_j0")
@wide
def spherical_j0(x: Tensor) -> Tensor:
    x = x if x.dtype.is_floating_point else x.to(torch.float32)
    return torch.where(x == 0, 1.0, torch.where(torch.abs(x) == math.inf, 0.0, torch.sin(x) / x))


def _erfcx_map(t: Tensor) -> Tensor:
    """On t = 4 / (4 + x); near 0 by its expansion, where x is out of range."""
    x = 4 / t - 4
    return torch.where(t < 1e-6, t / 4 / math.sqrt(math.pi), _special.erfcx(x)) / t


@own("special_erfcx")
@single
def erfcx(x: Tensor) -> Tensor:
    t = 4 / (4 + torch.abs(x))
    made = poly(_erfcx_map, t, 0.0, 1.0, 18) * t
    return torch.where(x < 0, 2 * torch.exp(x * x) - made, made)


def _ndtri_tail(s: Tensor) -> Tensor:
    """-ndtri(e^(-r^2 / 2)) - r in s = 1 / r."""
    r = 1 / s
    return -_special.ndtri(torch.exp(-r * r / 2)) - r


@own("special_ndtri")
@single
def ndtri(p: Tensor) -> Tensor:
    small = torch.minimum(p, 1 - p)
    r = torch.sqrt(-2 * torch.log(torch.clamp_min(small, 1e-38)))
    tail = -(r + poly(_ndtri_tail, 1 / r, 1 / 13.3, 1 / 1.7, 16))
    tail = torch.where(p > 0.5, -tail, tail)
    middle = math.sqrt(2) * torch.erfinv(2 * p - 1)
    made = torch.where(small < 0.2, tail, middle)
    made = torch.where(p == 0, -math.inf, torch.where(p == 1, math.inf, made))
    return torch.where((p < 0) | (p > 1), math.nan, made)


@own("special_log_ndtr")
@single
def log_ndtr(x: Tensor) -> Tensor:
    t = x * math.sqrt(0.5)
    low = torch.log(torch.clamp_min(erfcx(-t) / 2, 1e-38)) - t * t
    return torch.where(x < -1, low, torch.log1p(-torch.erfc(t) / 2))


@own("polygamma")
@wide
def polygamma(n: int, x: Tensor) -> Tensor:
    x = x if x.dtype.is_floating_point else x.to(torch.float32)
    if n == 0:
        return torch.digamma(x)
    order = torch.full_like(x, n + 1.0)
    if n == 1:
        # Reflection, as the zeta function knows no negative second argument.
        turned = torch.where(x < 0.5, 1 - x, x)
        made = _special.zeta(order, turned)
        sine = torch.sin(math.pi * x)
        return torch.where(x < 0.5, (math.pi * math.pi) / (sine * sine) - made, made)
    factor = math.factorial(n) * (1.0 if n % 2 else -1.0)
    return _special.zeta(order, x) * factor


@own("angle")
def angle(x: Tensor) -> Tensor:
    if x.dtype.is_complex:
        both = torch.view_as_real(x)
        return torch.atan2(both.select(-1, 1), both.select(-1, 0))
    x = x if x.dtype.is_floating_point else x.to(torch.float32)
    return torch.where(x != x, x, torch.where(x < 0, math.pi, torch.zeros_like(x)))


@own("frexp.Tensor")
def frexp(x: Tensor) -> Any:
    y = x.to(torch.float32) if x.dtype.itemsize == 2 else x
    size = torch.abs(y)
    tiny = size < 2.0**-100  # subnormal numbers have no exponent of their own until scaled
    scaled = torch.where(tiny, size * 2.0**100, size)
    e = torch.floor(torch.log2(torch.where(scaled == 0, 1.0, scaled))) + 1
    m = scaled * torch.exp2(-torch.floor(e / 2)) * torch.exp2(-(e - torch.floor(e / 2)))
    over, under = m >= 1, m < 0.5  # log2 may be off by one next to powers of two
    e = torch.where(over, e + 1, torch.where(under, e - 1, e))
    m = torch.where(over, m / 2, torch.where(under, m * 2, m))
    e = torch.where(tiny, e - 100, e)
    plain = (size == 0) | (size != size) | (size == math.inf)
    mantissa = torch.where(plain, y, torch.where(y < 0, -m, m))
    return mantissa.to(x.dtype), torch.where(plain, torch.zeros_like(e), e).to(torch.int32)


def _trigonometric(kind: str) -> Callable[[Tensor, Tensor], Tensor]:
    """Chebyshev polynomials in closed form: n is data, so a recurrence would have no known length."""

    def f(x: Tensor, n: Tensor) -> Tensor:
        inside = torch.clamp(x, -1, 1)
        theta = torch.acos(inside)
        size = torch.clamp_min(torch.abs(x), 1)
        growth = torch.acosh(size)
        odd = torch.remainder(n, 2) == 1
        if kind == "t":
            near, far = torch.cos(n * theta), torch.cosh(n * growth)
            far = torch.where((x < 0) & odd, -far, far)
        elif kind == "u":
            sine = torch.sin(theta)
            near = torch.sin((n + 1) * theta) / torch.where(sine == 0, 1.0, sine)
            sinh = torch.sinh(growth)
            far = torch.sinh((n + 1) * growth) / torch.where(sinh == 0, 1.0, sinh)
            far = torch.where(size == 1, n + 1, far)
            far = torch.where((x < 0) & odd, -far, far)
        else:
            # V and W are each other's mirror images: V_n(-x) = (-1)^n W_n(x).
            half = theta / 2
            near = torch.cos((n + 0.5) * theta) / torch.cos(half) if kind == "v" else (
                torch.sin((n + 0.5) * theta) / torch.sin(half))  # fmt: skip
            cosh = torch.cosh((n + 0.5) * growth) / torch.cosh(growth / 2)
            sinh = torch.sinh(growth / 2)
            sinh = torch.where(sinh == 0, 2 * n + 1, torch.sinh((n + 0.5) * growth) / torch.where(sinh == 0, 1.0, sinh))
            plus, minus = (cosh, sinh) if kind == "v" else (sinh, cosh)
            far = torch.where(x < 0, torch.where(odd, -minus, minus), plus)
        made = torch.where(torch.abs(x) < 1, near, far)
        return torch.where(n < 0, torch.zeros_like(made), made)

    return f


def _polynomial(kind: str, shifted: bool) -> Callable[[Tensor, Tensor], Tensor]:
    f = _trigonometric(kind)

    @wide
    def run(x: Any, n: Any) -> Tensor:
        like = x if isinstance(x, Tensor) else n
        dtype = like.dtype if like.dtype.is_floating_point else torch.float32
        x, n = (
            v.to(dtype) if isinstance(v, Tensor) else torch.full((), float(v), dtype=dtype, device=like.device)
            for v in (x, n)
        )
        x, n = torch.broadcast_tensors(x, torch.trunc(n))
        return f(2 * x - 1 if shifted else x, n)

    return run


for _kind in "tuvw":
    for _shifted in (False, True):
        _name = ("special_shifted_" if _shifted else "special_") + f"chebyshev_polynomial_{_kind}"
        own(_name, _name + ".x_scalar", _name + ".n_scalar")(_polynomial(_kind, _shifted))
