// own_composites.cpp: see own_composites.h. Recurrent cells, norms, and the fused attention of evaluation.
//
// Recurrent cells: PyTorch's formulas (nn.LSTM, nn.GRU) and its own layout of the workspace, which goes from forward to
// backward unseen: LSTM keeps the activated gates i, f, g, o; GRU keeps r, z, n, the old state and the hidden part of n
// with its bias.
#include "own_composites.h"

#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <unordered_map>

namespace torchfl {
namespace {

using Maybe = const std::optional<at::Tensor>&;

at::Tensor with_bias(const at::Tensor& gates, Maybe bias) {
  return bias.has_value() && bias->defined() ? gates + *bias : gates;
}

at::Tensor or_zeros(Maybe grad, const at::Tensor& like) {
  return grad.has_value() && grad->defined() ? *grad : at::zeros_like(like);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                                         const at::Tensor& cx, Maybe input_bias, Maybe hidden_bias) {
  const at::Tensor gates = with_bias(input_gates, input_bias) + with_bias(hidden_gates, hidden_bias);
  const auto parts = gates.chunk(4, 1);
  const at::Tensor i = parts[0].sigmoid(), f = parts[1].sigmoid(), g = parts[2].tanh(), o = parts[3].sigmoid();
  const at::Tensor cy = f * cx + i * g;
  return {o * cy.tanh(), cy, at::cat({i, f, g, o}, 1)};
}

// Gradients of the gates (before activation), of cx, and of each bias.
std::tuple<at::Tensor, at::Tensor, at::Tensor> lstm_cell_backward(Maybe grad_hy, Maybe grad_cy, const at::Tensor& cx,
                                                                  const at::Tensor& cy, const at::Tensor& workspace,
                                                                  bool has_bias) {
  if ((!grad_hy.has_value() || !grad_hy->defined()) && (!grad_cy.has_value() || !grad_cy->defined())) return {};
  const auto parts = workspace.chunk(4, 1);
  const at::Tensor &i = parts[0], &f = parts[1], &g = parts[2], &o = parts[3];
  const at::Tensor activated = cy.tanh(), grad = or_zeros(grad_hy, cx);
  const at::Tensor grad_c = or_zeros(grad_cy, cx) + at::tanh_backward(grad * o, activated);
  const at::Tensor grad_gates = at::cat({at::sigmoid_backward(grad_c * g, i), at::sigmoid_backward(grad_c * cx, f),
                                         at::tanh_backward(grad_c * i, g), at::sigmoid_backward(grad * activated, o)},
                                        1);
  return {grad_gates, grad_c * f, has_bias ? grad_gates.sum(0) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor> gru_cell(const at::Tensor& input_gates, const at::Tensor& hidden_gates,
                                            const at::Tensor& hx, Maybe input_bias, Maybe hidden_bias) {
  const auto of_input = with_bias(input_gates, input_bias).chunk(3, 1);
  const auto of_hidden = with_bias(hidden_gates, hidden_bias).chunk(3, 1);
  const at::Tensor r = (of_input[0] + of_hidden[0]).sigmoid(), z = (of_input[1] + of_hidden[1]).sigmoid();
  const at::Tensor n = (of_input[2] + r * of_hidden[2]).tanh();
  return {n + z * (hx - n), at::cat({r, z, n, hx, of_hidden[2]}, 1)};
}

// Gradients of the input's gates, of the hidden gates, of hx, and of the two biases.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> gru_cell_backward(const at::Tensor& grad,
                                                                                         const at::Tensor& workspace,
                                                                                         bool has_bias) {
  const auto parts = workspace.chunk(5, 1);
  const at::Tensor &r = parts[0], &z = parts[1], &n = parts[2], &hx = parts[3], &hidden = parts[4];
  const at::Tensor grad_n = at::tanh_backward(grad * (1 - z), n);
  const at::Tensor grad_z = at::sigmoid_backward(grad * (hx - n), z);
  const at::Tensor grad_r = at::sigmoid_backward(grad_n * hidden, r);
  const at::Tensor of_input = at::cat({grad_r, grad_z, grad_n}, 1);
  const at::Tensor of_hidden = at::cat({grad_r, grad_z, grad_n * r}, 1);
  return {of_input, of_hidden, grad * z, has_bias ? of_input.sum(0) : at::Tensor(),
          has_bias ? of_hidden.sum(0) : at::Tensor()};
}

using Norm = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// PyTorch's own take views of a contiguous input, and promote it with the parameters; here a norm keeps its dtype.
// The rest of theirs fits.
const auto kComposite = c10::DispatchKeySet(c10::DispatchKey::CompositeExplicitAutograd);

Norm layer_norm(const at::Tensor& input, c10::SymIntArrayRef shape, Maybe weight, Maybe bias, double eps) {
  static const auto theirs =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::native_layer_norm", "").typed<decltype(layer_norm)>();
  Norm result = theirs.redispatch(kComposite, input.contiguous(), shape, weight, bias, eps);
  std::get<0>(result) = std::get<0>(result).to(input.scalar_type());
  return result;
}

Norm group_norm(const at::Tensor& input, Maybe weight, Maybe bias, c10::SymInt n, c10::SymInt channels,
                c10::SymInt area, int64_t groups, double eps) {
  static const auto theirs =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::native_group_norm", "").typed<decltype(group_norm)>();
  Norm result = theirs.redispatch(kComposite, input.contiguous(), weight, bias, n, channels, area, groups, eps);
  std::get<0>(result) = std::get<0>(result).to(input.options(), false, false, input.suggest_memory_format());
  return result;
}

// nn.MultiheadAttention and nn.TransformerEncoderLayer call these in evaluation, where no gradient is wanted. Masks are
// as their module merges them: true, or not zero, where nothing is to be seen; of queries and keys (type 0), of samples
// and keys (type 1), or in full.
std::tuple<at::Tensor, at::Tensor> multi_head_attention(const at::Tensor& query, const at::Tensor& key,
                                                        const at::Tensor& value, int64_t embedding, int64_t heads,
                                                        const at::Tensor& qkv_weight, const at::Tensor& qkv_bias,
                                                        const at::Tensor& out_weight, const at::Tensor& out_bias,
                                                        Maybe mask, bool need_weights, bool average,
                                                        std::optional<int64_t> mask_type) {
  TORCH_CHECK(query.dim() == 3 && key.dim() == 3 && value.dim() == 3, "expected 3-D `query`, `key` and `value`, got ",
              query.dim(), "-D, ", key.dim(), "-D and ", value.dim(), "-D tensors");
  TORCH_CHECK(heads > 0 && embedding % heads == 0, "`embed_dim` must divide evenly by `num_heads`");
  std::vector<at::Tensor> projected;
  if (query.is_same(key) && key.is_same(value)) {
    projected = at::linear(query, qkv_weight, qkv_bias).chunk(3, -1);
  } else {
    const auto weights = qkv_weight.chunk(3), biases = qkv_bias.chunk(3);
    projected = {at::linear(query, weights[0], biases[0]), at::linear(key, weights[1], biases[1]),
                 at::linear(value, weights[2], biases[2])};
  }
  const int64_t width = embedding / heads;
  for (at::Tensor& part : projected) part = part.view({part.size(0), part.size(1), heads, width}).transpose(1, 2);
  at::Tensor scores = at::matmul(projected[0] * (1 / std::sqrt(double(width))), projected[1].transpose(-2, -1));
  if (mask.has_value() && mask->defined()) {
    at::Tensor hidden = mask->to(at::kBool);
    if (hidden.dim() == 2 && mask_type.value_or(0) == 1) hidden = hidden.unsqueeze(1).unsqueeze(1);
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  const at::Tensor weights = scores.softmax(-1);
  const at::Tensor context =
      at::matmul(weights, projected[2]).transpose(1, 2).reshape({query.size(0), query.size(1), embedding});
  return {at::linear(context, out_weight, out_bias), !need_weights ? at::Tensor()
                                                     : average     ? weights.mean(1)
                                                                   : weights};
}

at::Tensor encoder_layer(const at::Tensor& src, int64_t embedding, int64_t heads, const at::Tensor& qkv_weight,
                         const at::Tensor& qkv_bias, const at::Tensor& out_weight, const at::Tensor& out_bias,
                         bool use_gelu, bool norm_first, double eps, const at::Tensor& norm_weight_1,
                         const at::Tensor& norm_bias_1, const at::Tensor& norm_weight_2, const at::Tensor& norm_bias_2,
                         const at::Tensor& ffn_weight_1, const at::Tensor& ffn_bias_1, const at::Tensor& ffn_weight_2,
                         const at::Tensor& ffn_bias_2, Maybe mask, std::optional<int64_t> mask_type) {
  auto norm = [&](const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias) {
    return at::layer_norm(x, {embedding}, weight, bias, eps);
  };
  const at::Tensor x = norm_first ? norm(src, norm_weight_1, norm_bias_1) : src;
  at::Tensor seen = src + std::get<0>(at::_native_multi_head_attention(x, x, x, embedding, heads, qkv_weight, qkv_bias,
                                                                       out_weight, out_bias, mask,
                                                                       /*need_weights=*/false,
                                                                       /*average_attn_weights=*/true, mask_type));
  if (!norm_first) seen = norm(seen, norm_weight_1, norm_bias_1);
  const at::Tensor inner =
      at::linear(norm_first ? norm(seen, norm_weight_2, norm_bias_2) : seen, ffn_weight_1, ffn_bias_1);
  const at::Tensor out = seen + at::linear(use_gelu ? at::gelu(inner) : at::relu(inner), ffn_weight_2, ffn_bias_2);
  return norm_first ? out : norm(out, norm_weight_2, norm_bias_2);
}

// PyTorch wants the bias of a convolution in the dtype of the input, before it asks a backend; here input and
// parameters may differ, as for a linear layer. Above autograd, so that the gradient finds its way back to the bias.
void same_dtype_bias(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t base = stack->size() - op.schema().arguments().size();
  const at::Tensor& input = (*stack)[base].toTensor();
  c10::IValue& bias = (*stack)[base + 2];
  if (bias.isTensor() && bias.toTensor().defined() && bias.toTensor().scalar_type() != input.scalar_type() &&
      input.is_floating_point() && bias.toTensor().is_floating_point()) {
    bias = bias.toTensor().to(input.scalar_type());
  }
  op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
}

// PyTorch makes those without memory; its own devices alone can.
at::Tensor efficient_zeros(c10::SymIntArrayRef sizes, std::optional<c10::ScalarType> dtype,
                           std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                           std::optional<bool> pin_memory) {
  return at::zeros_symint(sizes, dtype, layout, device, pin_memory);
}

template <class F>
c10::KernelFunction boxed(F* kernel) {
  return c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel);
}

}  // namespace

const c10::KernelFunction* own_composite(const std::string& name) {
  static const auto* table = new std::unordered_map<std::string, c10::KernelFunction>{
      {"aten::_thnn_fused_lstm_cell", boxed(&lstm_cell)},
      {"aten::_thnn_fused_lstm_cell_backward_impl", boxed(&lstm_cell_backward)},
      {"aten::_thnn_fused_gru_cell", boxed(&gru_cell)},
      {"aten::_thnn_fused_gru_cell_backward", boxed(&gru_cell_backward)},
      {"aten::_efficientzerotensor", boxed(&efficient_zeros)},
      {"aten::native_layer_norm", boxed(&layer_norm)},
      {"aten::native_group_norm", boxed(&group_norm)},
      {"aten::_native_multi_head_attention", boxed(&multi_head_attention)},
      {"aten::_transformer_encoder_layer_fwd", boxed(&encoder_layer)},
  };
  auto found = table->find(name);
  return found == table->end() ? counted_composite(name) : &found->second;
}

namespace {
void convolutions(torch::Library& m) {
  for (const char* name : {"conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding",
                           "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&same_dtype_bias>());
  }
}
}  // namespace

TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { convolutions(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { convolutions(m); }

}  // namespace torchfl
