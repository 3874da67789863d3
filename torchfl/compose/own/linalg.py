"""Dense linear algebra of small matrices, with the loop over columns unrolled.

Contract: batches of matrices up to `_MOST` columns; larger ones are not composable, as the program would be longer than
it is worth. Pivots and signs are LAPACK's, so factors equal the CPU's, not only their product.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own
from torchfl.compose.recorder import NotComposable
from torchfl.compose.vector import broadcast

_MOST = 64


def _check(*tensors: Tensor) -> None:
    for t in tensors:
        if max(t.shape[-2:]) > _MOST:
            raise NotComposable(f"linear algebra of more than {_MOST} rows")
        if t.dtype.is_complex:
            raise NotComposable("complex linear algebra")


def solve_lower(a: Tensor, b: Tensor, unit: bool) -> Tensor:
    """x with a x = b, a lower triangular; only that triangle is read."""
    n = a.shape[-1]
    batch = broadcast([a.shape[:-2], b.shape[:-2]])
    a, b = a.expand(*batch, *a.shape[-2:]), b.expand(*batch, *b.shape[-2:])
    rows: list[Tensor] = []
    for k in range(n):
        row = b.narrow(-2, k, 1)
        if rows:
            row = row - torch.matmul(a.narrow(-2, k, 1).narrow(-1, 0, k), torch.cat(rows, -2))
        rows.append(row if unit else row / a.narrow(-2, k, 1).narrow(-1, k, 1))
    return torch.cat(rows, -2) if rows else torch.zeros(b.shape, dtype=b.dtype, device=b.device)


def solve_triangular(a: Tensor, b: Tensor, upper: bool, left: bool = True, unit: bool = False) -> Tensor:
    _check(a)
    if not left:
        return solve_triangular(a.mT, b.mT, not upper, True, unit).mT
    if upper:  # turned by half a turn, an upper triangle is a lower one
        return solve_lower(a.flip([-2, -1]), b.flip([-2]), unit).flip([-2])
    return solve_lower(a, b, unit)


@own("linalg_solve_triangular")
def linalg_solve_triangular(
    a: Tensor, b: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
) -> Tensor:
    return solve_triangular(a, b, upper, left, unitriangular)


@own("triangular_solve")
def triangular_solve(
    b: Tensor, a: Tensor, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> Any:
    batch = broadcast([a.shape[:-2], b.shape[:-2]])
    x = solve_triangular(a.mT if transpose else a, b, upper != transpose, True, unitriangular)
    return x, a.expand(*batch, *a.shape[-2:]).clone()


def lu(a: Tensor, pivot: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """L and U in one matrix, LAPACK's pivots (int32, from 1), the rows in their new order, and info."""
    _check(a)
    m, n = a.shape[-2:]
    batch = a.shape[:-2]
    places = torch.arange(m, device=a.device).expand(*batch, m)
    order = places
    pivots: list[Tensor] = []
    info = torch.zeros(batch, dtype=torch.int32, device=a.device)
    for k in range(min(m, n)):
        if pivot:
            column = a.narrow(-1, k, 1).narrow(-2, k, m - k).squeeze(-1)
            p = torch.argmax(torch.abs(column), -1, keepdim=True) + k
            swap = torch.where(places == k, p, torch.where(places == p, k, places))
            a = torch.gather(a, -2, swap.unsqueeze(-1).expand(a.shape))
            order = torch.gather(order, -1, swap)
            pivots.append(p.to(torch.int32) + 1)
        else:
            pivots.append(torch.full((*batch, 1), k + 1, dtype=torch.int32, device=a.device))
        head = a.narrow(-2, k, 1).narrow(-1, k, 1)
        zero = (head == 0).reshape(batch)
        info = torch.where(zero & (info == 0), k + 1, info)
        if k + 1 < m:
            below = a.narrow(-2, k + 1, m - k - 1)
            factor = below.narrow(-1, k, 1) / torch.where(head == 0, 1.0, head)
            parts = [below.narrow(-1, 0, k), factor]
            if k + 1 < n:
                row = a.narrow(-2, k, 1).narrow(-1, k + 1, n - k - 1)
                parts.append(below.narrow(-1, k + 1, n - k - 1) - factor * row)
            a = torch.cat([a.narrow(-2, 0, k + 1), torch.cat(parts, -1)], -2)
    flat = torch.cat(pivots, -1) if pivots else torch.zeros(*batch, 0, dtype=torch.int32, device=a.device)
    return a.clone(), flat, order, info


@own("linalg_lu_factor_ex")
def linalg_lu_factor_ex(a: Tensor, *, pivot: bool = True, check_errors: bool = False) -> Any:
    made, pivots, _, info = lu(a, pivot)
    return made, pivots, info


def _order(pivots: Tensor, m: int) -> Tensor:
    """The rows in the order that a sequence of swaps brings about."""
    places = torch.arange(m, device=pivots.device).expand(*pivots.shape[:-1], m)
    order = places
    for k in range(pivots.shape[-1]):
        p = pivots.narrow(-1, k, 1).to(torch.int64) - 1
        order = torch.gather(order, -1, torch.where(places == k, p, torch.where(places == p, k, places)))
    return order


def _permutation(order: Tensor, dtype: torch.dtype) -> Tensor:
    """P with A = P L U."""
    return (torch.arange(order.shape[-1], device=order.device).unsqueeze(-1) == order.unsqueeze(-2)).to(dtype)


def _triangles(a: Tensor) -> tuple[Tensor, Tensor]:
    m, n = a.shape[-2:]
    k = min(m, n)
    lower = torch.tril(a.narrow(-1, 0, k), -1) + torch.eye(m, k, dtype=a.dtype, device=a.device)
    return lower, torch.triu(a.narrow(-2, 0, k))


@own("lu_unpack")
def lu_unpack(a: Tensor, pivots: Tensor, unpack_data: bool = True, unpack_pivots: bool = True) -> Any:
    _check(a)
    nothing = torch.empty([0], dtype=a.dtype, device=a.device)
    p = _permutation(_order(pivots, a.shape[-2]), a.dtype) if unpack_pivots else nothing
    lower, upper = _triangles(a) if unpack_data else (nothing, nothing.clone())
    return p, lower, upper


@own("linalg_lu")
def linalg_lu(a: Tensor, *, pivot: bool = True) -> Any:
    made, _, order, _ = lu(a, pivot)
    p = _permutation(order, a.dtype) if pivot else torch.empty([0], dtype=a.dtype, device=a.device)
    return p, *_triangles(made)


def _lu_solve(a: Tensor, order: Tensor, b: Tensor, adjoint: bool) -> Tensor:
    batch = broadcast([a.shape[:-2], b.shape[:-2]])
    b = b.expand(*batch, *b.shape[-2:])
    order = order.expand(*batch, order.shape[-1])
    if not adjoint:
        b = torch.gather(b, -2, order.unsqueeze(-1).expand(b.shape))
        return solve_triangular(a, solve_triangular(a, b, False, True, True), True)
    x = solve_triangular(a.mT, solve_triangular(a.mT, b, False), True, True, True)
    return torch.scatter(torch.zeros_like(x), -2, order.unsqueeze(-1).expand(x.shape), x)


@own("linalg_lu_solve")
def linalg_lu_solve(a: Tensor, pivots: Tensor, b: Tensor, *, left: bool = True, adjoint: bool = False) -> Tensor:
    _check(a)
    order = _order(pivots, a.shape[-1])
    return _lu_solve(a, order, b, adjoint) if left else _lu_solve(a, order, b.mT, not adjoint).mT


@own("_linalg_solve_ex")
def linalg_solve_ex(a: Tensor, b: Tensor, *, left: bool = True, check_errors: bool = False) -> Any:
    vector = b.dim() == 1 or (a.dim() - 1 == b.dim() and b.shape == a.shape[:-1])
    columns = b.unsqueeze(-1) if vector else b
    made, pivots, order, info = lu(a, True)
    x = _lu_solve(made, order, columns, False) if left else _lu_solve(made, order, columns.mT, True).mT
    return x.squeeze(-1) if vector else x, made, pivots, info


@own("linalg_inv_ex")
def linalg_inv_ex(a: Tensor, *, check_errors: bool = False) -> Any:
    made, _, order, info = lu(a, True)
    eye = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape)
    return _lu_solve(made, order, eye, False), info


def _parity(pivots: Tensor, dtype: torch.dtype) -> Tensor:
    n = pivots.shape[-1]
    moved = (pivots != torch.arange(1, n + 1, device=pivots.device)).to(torch.int64)
    return 1 - 2 * torch.remainder(torch.sum(moved, -1), 2).to(dtype)


def _as_factored(a: Tensor) -> Tensor:
    """PyTorch factors the transpose of a contiguous matrix here, and its backward formula relies on that."""
    return a.mT if a.is_contiguous() else a


@own("_linalg_det")
def linalg_det(a: Tensor) -> Any:
    made, pivots, _, _ = lu(_as_factored(a), True)
    return torch.prod(torch.diagonal(made, 0, -2, -1), -1) * _parity(pivots, a.dtype), made, pivots


@own("_linalg_slogdet")
def linalg_slogdet(a: Tensor) -> Any:
    made, pivots, _, _ = lu(_as_factored(a), True)
    diagonal = torch.diagonal(made, 0, -2, -1)
    sign = torch.prod(torch.sign(diagonal), -1) * _parity(pivots, a.dtype)
    return sign, torch.sum(torch.log(torch.abs(diagonal)), -1), made, pivots


def cholesky_lower(a: Tensor) -> Tensor:
    """L with L L^T = a, of which only the lower triangle is read."""
    _check(a)
    n = a.shape[-1]
    columns: list[Tensor] = []
    for k in range(n):
        column = a.narrow(-1, k, 1).narrow(-2, k, n - k)
        if columns:
            done = torch.cat(columns, -1)
            column = column - torch.matmul(done.narrow(-2, k, n - k), done.narrow(-2, k, 1).mT)
        column = column / torch.sqrt(column.narrow(-2, 0, 1))
        above = torch.zeros(*a.shape[:-2], k, 1, dtype=a.dtype, device=a.device)
        columns.append(torch.cat([above, column], -2) if k else column)
    return torch.cat(columns, -1) if columns else a.clone()


@own("linalg_cholesky_ex")
def linalg_cholesky_ex(a: Tensor, *, upper: bool = False, check_errors: bool = False) -> Any:
    made = cholesky_lower(a.mT if upper else a)
    diagonal = torch.diagonal(made, 0, -2, -1)
    bad = torch.logical_not(diagonal > 0)
    first = (
        torch.argmax(bad.to(torch.int64), -1) + 1 if diagonal.shape[-1] else torch.zeros(a.shape[:-2], device=a.device)
    )
    some = torch.any(bad, -1)
    info = torch.where(some, first, torch.zeros_like(first)).to(torch.int32)
    return made.mT.contiguous() if upper else made, info


@own("cholesky")
def cholesky(a: Tensor, upper: bool = False) -> Tensor:
    made = cholesky_lower(a.mT if upper else a)
    return made.mT.contiguous() if upper else made


@own("_cholesky_solve_helper")
def cholesky_solve(b: Tensor, a: Tensor, upper: bool) -> Tensor:
    lower = a.mT if upper else a
    return solve_triangular(lower.mT, solve_triangular(lower, b, False), True)


@own("cholesky_inverse")
def cholesky_inverse(a: Tensor, upper: bool = False) -> Tensor:
    return cholesky_solve(torch.eye(a.shape[-1], dtype=a.dtype, device=a.device).expand(a.shape), a, upper)


def _reflect(v: Tensor, tau: Tensor, x: Tensor) -> Tensor:
    return x - tau * torch.matmul(v, torch.matmul(v.mT, x))


def _packed(a: Tensor, tau: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The reflectors that LAPACK keeps below the diagonal: (rows from i on, factor)."""
    m = a.shape[-2]
    made = []
    for i in range(tau.shape[-1]):
        t = tau.narrow(-1, i, 1).unsqueeze(-1)
        tail = a.narrow(-1, i, 1).narrow(-2, i + 1, m - i - 1)
        made.append((torch.cat([torch.ones_like(t), tail], -2), t))
    return made


@own("linalg_householder_product")
def linalg_householder_product(a: Tensor, tau: Tensor) -> Tensor:
    _check(a)
    m, n = a.shape[-2:]
    q = torch.eye(m, n, dtype=a.dtype, device=a.device).expand(a.shape)
    for i, (v, t) in reversed(list(enumerate(_packed(a, tau)))):
        below = _reflect(v, t, q.narrow(-2, i, m - i))
        q = torch.cat([q.narrow(-2, 0, i), below], -2) if i else below
    return q.clone()


@own("ormqr")
def ormqr(a: Tensor, tau: Tensor, x: Tensor, left: bool = True, transpose: bool = False) -> Tensor:
    _check(a, x)
    if not left:
        return ormqr(a, tau, x.mT, True, not transpose).mT
    m = a.shape[-2]
    reflectors = list(enumerate(_packed(a, tau)))
    for i, (v, t) in reflectors if transpose else reversed(reflectors):
        below = _reflect(v, t, x.narrow(-2, i, m - i))
        x = torch.cat([x.narrow(-2, 0, i), below], -2) if i else below
    return x


@own("linalg_qr")
def linalg_qr(a: Tensor, mode: str = "reduced") -> Any:
    """By Householder's reflections; R's diagonal has the sign that LAPACK gives it."""
    _check(a)
    m, n = a.shape[-2:]
    k = min(m, n)
    width = m if mode == "complete" else k
    reflectors: list[tuple[Tensor, Tensor]] = []
    r = a
    for i in range(min(k, m - 1)):
        x = r.narrow(-2, i, m - i).narrow(-1, i, 1)
        head = x.narrow(-2, 0, 1)
        tail = x.narrow(-2, 1, m - i - 1)
        rest = torch.sum(tail * tail, -2, keepdim=True)
        size = torch.sqrt(head * head + rest)
        alpha = torch.where(head < 0, size, -size)
        flat = rest == 0
        u = torch.where(flat, 1.0, head - alpha)
        v = torch.cat([torch.ones_like(head), tail / u], -2)
        tau = torch.where(flat, torch.zeros_like(head), (alpha - head) / torch.where(flat, 1.0, alpha))
        below = r.narrow(-2, i, m - i)
        below = below - tau * torch.matmul(v, torch.matmul(v.mT, below))
        r = torch.cat([r.narrow(-2, 0, i), below], -2) if i else below
        reflectors.append((v, tau))
    upper = torch.triu(r.narrow(-2, 0, width))
    if mode == "r":
        return torch.empty([0], dtype=a.dtype, device=a.device), upper
    q = torch.eye(m, width, dtype=a.dtype, device=a.device).expand(*a.shape[:-2], m, width)
    for i, (v, tau) in reversed(list(enumerate(reflectors))):
        below = q.narrow(-2, i, m - i)
        below = below - tau * torch.matmul(v, torch.matmul(v.mT, below))
        q = torch.cat([q.narrow(-2, 0, i), below], -2) if i else below
    return q.clone(), upper
