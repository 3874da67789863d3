"""The limits of an attention unit where only PyTorch's Python code knows the number of heads.

Contract: `install` has every call of `torch.nn.functional.multi_head_attention_forward`, and so every
`nn.MultiheadAttention`, ask the engine whether the chip's attention unit has room for it. It is called for chips whose
descriptor refuses what is beyond (`beyond: error`); until then, and after `torchfl.shutdown()`, PyTorch is as it was.
Tensors on other devices pay one look at their device: no operator is called, so their graphs and transforms show none.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.nn.functional
from torch import Tensor

from torchfl._patches import engine_patches

F: Any = torch.nn.functional
_installed = False


def install() -> None:
    """Put the question before PyTorch's own check of shapes, which knows the heads and runs before anything else."""
    global _installed
    if _installed:
        return
    check = torch.ops.torchfl.check_multi_head_attention.default
    own = F._mha_shape_check
    name_of_ours = torch._C._get_privateuse1_backend_name  # of every chip: tensors of the others pass the check

    def ask(query: Tensor, key: Tensor, num_heads: int) -> None:
        if query.device.type == name_of_ours():
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

    engine_patches.attribute(F, "_mha_shape_check", _mha_shape_check)
    engine_patches.on_undo(_removed)
    _installed = True


def _removed() -> None:
    global _installed
    _installed = False
