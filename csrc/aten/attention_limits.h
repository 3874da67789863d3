// attention_limits.h: the limits of a chip's attention unit, at the places where PyTorch still knows the heads.
//
// Contract: a call beyond the unit of a chip whose descriptor says `beyond: error` raises NotImplementedError before
// anything runs; other devices and other chips are let through. Sizes may be symbolic: then the answer is guarded on.
// torch.ops.torchfl.check_multi_head_attention is the operator that asks for `nn.MultiheadAttention`.
#pragma once
#include "router.h"

namespace torchfl {

// For an operator that is an attention of its own: the sentence, or "" (also when nothing is refused).
std::string beyond_attention_unit(const OpState& op, at::ArrayRef<c10::IValue> args, const Chip& chip);

}  // namespace torchfl
