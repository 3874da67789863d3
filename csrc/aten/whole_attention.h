// whole_attention.h: scaled_dot_product_attention as one call, for chips that have a row for it.
//
// Contract: PyTorch takes scaled_dot_product_attention apart unless the device says that it does the whole; `is_whole`
// is that answer: the chip has a row, and the call is one of inference, of four dimensions each and without dropout.
// Then the operator of a chain of one (graph_fused.h), torchfl::_scaled_dot_product_fused_attention, is routed by the
// row's conditions; a call that the row does not take is made of products and a softmax after all. Results lie as the
// query does, in compiled graphs too.
#pragma once
#include "chip.h"
#include "shape_rules.h"

namespace torchfl {

// As it reaches a backend, and as rows of a descriptor call it.
constexpr const char* kWholeAttention = "aten::_scaled_dot_product_fused_attention_overrideable";

bool is_whole(const Chip& chip, at::TensorList query_key_value, const std::optional<at::Tensor>& mask, double dropout,
              bool grouped);

// Of query, key, value, bias, dropout, causal, debug mask, scale: products and a softmax.
at::Tensor attention_apart(at::ArrayRef<c10::IValue> args);
std::vector<OutputShape> attention_outputs(at::ArrayRef<c10::IValue> args);

}  // namespace torchfl
