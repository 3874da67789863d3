// attention_limits.cpp: see attention_limits.h.
//
// scaled_dot_product_attention asks each device which kernel it shall take, on tensors of the caller's own shapes: that
// is where its limits are looked at. MultiheadAttention says its number of heads to multi_head_attention_forward
// (torchfl/_attention.py calls from there), and in evaluation to the fused operators, which the route sees.
#include "attention_limits.h"

#include <ATen/SDPBackend.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <ATen/native/transformers/attention.h>
#include <torch/library.h>

#include "attention.h"
#include "whole_attention.h"

namespace torchfl {
namespace {

const Chip* chip_of(const at::Tensor& query) {
  if (!query.defined() || query.device().type() != kDevice) return nullptr;
  return &runtime::device_unopened(std::max<int>(query.device().index(), 0)).chip->chip;
}

// The size if it is more than the limit: a symbolic one within stays open.
int64_t if_beyond(const c10::SymInt& size, int64_t limit) {
  return limit > 0 && size > limit ? size.guard_int(__FILE__, __LINE__) : 0;
}

struct Sizes {
  c10::SymInt heads = 0, batch = 1, query_length = 0, key_length = 0;
  int64_t rank = 0;
};

std::string beyond(const Chip& chip, const char* what, const Sizes& sizes) {
  AttentionCall call;
  call.what = what;
  if (!chip.attention->supported_heads.empty()) call.heads = sizes.heads.guard_int(__FILE__, __LINE__);
  const int64_t limit = attention_length_limit(chip);
  call.length = std::max(if_beyond(sizes.query_length, limit), if_beyond(sizes.key_length, limit));
  call.batch = if_beyond(sizes.batch, chip.max_batch);
  call.rank = sizes.rank;
  return beyond_attention(chip, call);
}

// [batch..., heads,] length, head_dim; of three dimensions the first is the batch
Sizes sizes_of_products(const at::Tensor& query, const at::Tensor& key) {
  Sizes sizes;
  sizes.rank = query.dim();
  if (query.dim() < 2 || key.dim() < 2) return sizes;
  sizes.query_length = query.sym_size(-2);
  sizes.key_length = key.sym_size(-2);
  sizes.heads = query.dim() > 3 ? query.sym_size(-3) : c10::SymInt(1);
  for (int64_t d = 0; d < (query.dim() == 3 ? 1 : query.dim() - 3); d++) sizes.batch = sizes.batch * query.sym_size(d);
  return sizes;
}

void refuse(const std::string& text) { TORCH_CHECK_NOT_IMPLEMENTED(text.empty(), text); }

// The composite kernel, made of operators that are routed, or the chip's own (whole_attention.h).
int64_t fused_sdp_choice(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const std::optional<at::Tensor>& mask, double dropout, bool, std::optional<double>,
                         bool grouped) {
  const Chip* chip = chip_of(query);
  if (chip != nullptr && attention_is_firewalled(*chip))
    refuse(beyond(*chip, "scaled_dot_product_attention", sizes_of_products(query, key)));
  const bool whole = chip != nullptr && is_whole(*chip, {query, key, value}, mask, dropout, grouped);
  return int64_t(whole ? at::SDPBackend::overrideable : at::SDPBackend::math);
}

// How many samples vmap, at all its levels, hides from the sizes: the chip gets them as one batch.
c10::SymInt samples_of(at::Tensor tensor) {
  c10::SymInt samples = 1;
  while (const auto* batched = at::functorch::maybeGetBatchedImpl(tensor)) {
    samples = samples * batched->value().sym_size(batched->bdim());
    tensor = at::Tensor(batched->value());
  }
  return samples;
}

// `query` and `key` as multi_head_attention_forward gets them: (length, [batch,] embedding).
void check_multi_head_attention(const at::Tensor& query, const at::Tensor& key, int64_t heads) {
  const Chip* chip = chip_of(query);
  if (chip == nullptr || !attention_is_firewalled(*chip) || query.dim() < 2 || key.dim() < 2) return;
  Sizes sizes;
  sizes.heads = heads;
  sizes.rank = query.dim();
  sizes.query_length = query.sym_size(0);
  sizes.key_length = key.sym_size(0);
  sizes.batch = samples_of(query);
  if (query.dim() == 3) sizes.batch = sizes.batch * query.sym_size(1);
  refuse(beyond(*chip, "MultiheadAttention", sizes));
}

// An operator, so that torch.compile keeps what asks it in one graph.
TORCH_LIBRARY(torchfl, m) {
  m.def("check_multi_head_attention(Tensor query, Tensor key, int heads) -> ()", &check_multi_head_attention);
}

// Nothing is computed for the samples: the question is the same for all of them.
TORCH_LIBRARY_IMPL(torchfl, FuncTorchBatched, m) { m.impl("check_multi_head_attention", &check_multi_head_attention); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { m.impl("_fused_sdp_choice", &fused_sdp_choice); }

}  // namespace

std::string beyond_attention_unit(const OpState& op, at::ArrayRef<c10::IValue> args, const Chip& chip) {
  if (!attention_is_firewalled(chip)) return "";
  const std::string& name = op.schema.name;
  auto tensor = [&](const char* first, const char* second) {
    const auto& declared = op.handle.schema().arguments();
    for (size_t i = 0; i < declared.size(); i++) {
      if ((declared[i].name() == first || declared[i].name() == second) && args[i].isTensor())
        return args[i].toTensor();
    }
    return at::Tensor();
  };
  if (name == "aten::_native_multi_head_attention" || name == "aten::_transformer_encoder_layer_fwd") {
    const at::Tensor query = tensor("query", "src"), key = tensor("key", "src");
    Sizes sizes;
    const int heads = op.handle.schema()
                          .argumentIndexWithName("num_head")
                          .value_or(op.handle.schema().argumentIndexWithName("num_heads").value_or(-1));
    if (heads < 0 || !query.defined() || !key.defined() || query.dim() != 3 || key.dim() != 3) return "";
    sizes.heads = args[size_t(heads)].toInt();
    sizes.rank = query.dim();
    sizes.batch = query.sym_size(0);
    sizes.query_length = query.sym_size(1);
    sizes.key_length = key.sym_size(1);
    return beyond(chip, "MultiheadAttention", sizes);
  }
  if (name.find("scaled_dot_product") == std::string::npos || name.find("backward") != std::string::npos) return "";
  const at::Tensor query = tensor("query", "query"), key = tensor("key", "key");
  if (!query.defined() || !key.defined()) return "";
  return beyond(chip, "scaled_dot_product_attention", sizes_of_products(query, key));
}

}  // namespace torchfl

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &torchfl::fused_sdp_choice)
}  // namespace at::native
