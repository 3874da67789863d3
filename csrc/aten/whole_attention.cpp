// whole_attention.cpp: see whole_attention.h.
#include "whole_attention.h"

#include <ATen/ExpandUtils.h>
#include <ATen/functorch/BatchedTensorImpl.h>
#include <torch/library.h>

#include <algorithm>
#include <numeric>

#include "graph_fused.h"

namespace torchfl {
namespace {

// Dense, the dimensions in the order of the query's: what PyTorch's shape function promises to compiled graphs.
at::DimVector strides_like(const at::Tensor& query, c10::IntArrayRef sizes) {
  if (query.sizes() == sizes && query.is_non_overlapping_and_dense()) return at::DimVector(query.strides());
  if (query.sizes() == sizes) return at::DimVector(at::infer_dense_strides(sizes, query.strides()));
  std::vector<int64_t> order(sizes.size());
  at::DimVector strides(sizes.size(), 0);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int64_t a, int64_t b) { return query.strides()[size_t(a)] > query.strides()[size_t(b)]; });
  int64_t step = 1;
  for (size_t i = order.size(); i-- > 0; step *= sizes[size_t(order[i])]) strides[size_t(order[i])] = step;
  return strides;
}

at::Tensor lying_like(const at::Tensor& query, const at::Tensor& result) {
  const at::DimVector strides = strides_like(query, result.sizes());
  if (result.strides() == c10::IntArrayRef(strides)) return result;
  return at::empty_strided(result.sizes(), strides, result.options()).copy_(result);
}

using AttentionResults = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt,
                                    at::Tensor, at::Tensor, at::Tensor>;

// Only the first result has a reader: the others are for a backward pass, and no call that needs one comes here.
AttentionResults whole_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                 const std::optional<at::Tensor>& bias, double dropout, bool causal, bool debug_mask,
                                 std::optional<double> scale) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow(define_fused({kWholeAttention}).c_str(), "")
          .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                            double, bool, bool, std::optional<double>)>();
  const at::Tensor y = op.call(query, key, value, bias, dropout, causal, debug_mask, scale);
  return {lying_like(query, y), {}, {}, {}, query.sym_size(-2), key.sym_size(-2), {}, {}, {}};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("_scaled_dot_product_fused_attention_overrideable", &whole_attention);
}

}  // namespace

bool is_whole(const Chip& chip, at::TensorList query_key_value, const std::optional<at::Tensor>& mask, double dropout,
              bool grouped) {
  if (!chip.whole_attention || dropout != 0 || grouped) return false;
  std::vector<at::Tensor> tensors = query_key_value.vec();
  const at::Tensor &query = tensors[0], &key = tensors[1], &value = tensors[2];
  if (query.dim() != 4 || key.dim() != 4 || value.dim() != 4) return false;
  for (int64_t d : {0, 1}) {
    if (query.sym_size(d) != key.sym_size(d) || query.sym_size(d) != value.sym_size(d)) return false;
  }
  if (mask.has_value() && mask->defined()) tensors.push_back(*mask);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.sym_numel() == 0 || at::functorch::isBatchedTensor(tensor)) return false;
    if (at::GradMode::is_enabled() && tensor.requires_grad()) return false;
    if (tensor._fw_grad(/*level=*/0).defined()) return false;
  }
  return true;
}

at::Tensor attention_apart(at::ArrayRef<c10::IValue> args) {
  const at::Tensor query = args[0].toTensor();
  const auto [y, weights] = at::_scaled_dot_product_attention_math(
      query, args[1].toTensor(), args[2].toTensor(), args[3].toOptional<at::Tensor>(), args[4].toDouble(),
      args[5].toBool(), /*dropout_mask=*/std::nullopt, args[7].toOptional<double>());
  return lying_like(query, y);
}

std::vector<OutputShape> attention_outputs(at::ArrayRef<c10::IValue> args) {
  const at::Tensor &query = args[0].toTensor(), &value = args[2].toTensor();
  OutputShape shape;
  shape.dtype = query.scalar_type();
  shape.sizes.assign(query.sizes().begin(), query.sizes().end());
  shape.sizes.back() = value.size(-1);
  const at::DimVector strides = strides_like(query, shape.sizes);
  shape.strides.assign(strides.begin(), strides.end());
  return {shape};
}

}  // namespace torchfl
