"""The cells of recurrent networks, as the fused operators that PyTorch calls on accelerators.

Contract: `workspace` is ours to define, as only our backward reads it: the activated gates side by side.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from torchfl.compose.own._register import own, wide


def _gates(a: Tensor, b: Tensor, *biases: Any) -> Tensor:
    made = a + b
    for bias in biases:
        made = made if bias is None else made + bias
    return made


@own("_thnn_fused_lstm_cell")
@wide
def lstm_cell(gi: Tensor, gh: Tensor, c: Tensor, bi: Any = None, bh: Any = None) -> Any:
    i, f, g, o = torch.chunk(_gates(gi, gh, bi, bh), 4, 1)
    i, f, g, o = torch.sigmoid(i), torch.sigmoid(f), torch.tanh(g), torch.sigmoid(o)
    cy = f * c + i * g
    return o * torch.tanh(cy), cy, torch.cat([i, f, g, o], 1)


@own("_thnn_fused_lstm_cell_backward_impl")
@wide
def lstm_cell_backward(dh: Any, dc: Any, cx: Tensor, cy: Tensor, workspace: Tensor, has_bias: bool) -> Any:
    i, f, g, o = torch.chunk(workspace, 4, 1)
    t = torch.tanh(cy)
    through = torch.zeros_like(cx) if dc is None else dc
    do = torch.zeros_like(cx)
    if dh is not None:
        do = dh * t * o * (1 - o)
        through = through + dh * o * (1 - t * t)
    di, df, dg = through * g * i * (1 - i), through * cx * f * (1 - f), through * i * (1 - g * g)
    gates = torch.cat([di, df, dg, do], 1)
    return gates, through * f, torch.sum(gates, 0) if has_bias else None


@own("_thnn_fused_gru_cell")
@wide
def gru_cell(gi: Tensor, gh: Tensor, h: Tensor, bi: Any = None, bh: Any = None) -> Any:
    gi = gi if bi is None else gi + bi
    gh = gh if bh is None else gh + bh
    (ir, iz, inew), (hr, hz, hn) = torch.chunk(gi, 3, 1), torch.chunk(gh, 3, 1)
    r, z = torch.sigmoid(ir + hr), torch.sigmoid(iz + hz)
    n = torch.tanh(inew + r * hn)
    return n + z * (h - n), torch.cat([r, z, n, h, hn], 1)


@own("_thnn_fused_gru_cell_backward")
@wide
def gru_cell_backward(dh: Tensor, workspace: Tensor, has_bias: bool) -> Any:
    r, z, n, h, hn = torch.chunk(workspace, 5, 1)
    dn = dh * (1 - z) * (1 - n * n)
    dz = dh * (h - n) * z * (1 - z)
    dr = dn * hn * r * (1 - r)
    gi, gh = torch.cat([dr, dz, dn], 1), torch.cat([dr, dz, dn * r], 1)
    return gi, gh, dh * z, torch.sum(gi, 0) if has_bias else None, torch.sum(gh, 0) if has_bias else None
