"""The limits of an attention unit where only PyTorch's Python code knows the number of heads.

Contract: `install` has every call of `torch.nn.functional.multi_head_attention_forward`, and so every
`nn.MultiheadAttention`, ask the engine whether the chip's attention unit has room for it. It is called for chips whose
descriptor refuses what is beyond (`beyond: error`); until then, and after `remove`, PyTorch is as it was. Tensors on
other devices pay one look at their device: no operator is called, so their graphs and transforms show none.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn.functional
from torch import Tensor

F: Any = torch.nn.functional
_original: Any = None


def install() -> None:
    """Put the question before PyTorch's own check of shapes, which knows the heads and runs before anything else."""
    global _original
    if _original is not None:
        return
    check = torch.ops.torchfl.check_multi_head_attention.default
    own = F._mha_shape_check
    ours = torch._C._get_privateuse1_backend_name()  # of every chip: tensors of the others pass the check

    def ask(query: Tensor, key: Tensor, num_heads: int) -> None:
        if query.device.type == ours:
            check(query, key, num_heads)

    # TorchScript compiles this function where it meets it, so it is written in what that reads.
    def _mha_shape_check(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Optional[Tensor],  # noqa: UP045
        attn_mask: Optional[Tensor],  # noqa: UP045
        num_heads: int,
    ) -> bool:
        if not torch.jit.is_scripting():
            ask(query, key, num_heads)
        return own(query, key, value, key_padding_mask, attn_mask, num_heads)

    _original = own
    F._mha_shape_check = _mha_shape_check


def remove() -> None:
    """Leave PyTorch as it was."""
    global _original
    if _original is not None:
        F._mha_shape_check = _original
    _original = None
