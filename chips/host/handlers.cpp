// handlers.cpp: kernels of the host CPU that make their own results: convolutions and linear layers of oneDNN, with packed
// weights and what follows them fused in, and attention.
//
// Contract: a weight is packed, with a batch norm folded in, when it is first used, and kept until it, or a parameter of
// the norm, is written to. Everything is exact in the dtype of the input; the kernels named ..._bf16 round float32
// operands to bfloat16, and give float32, where that pays (rounding_pays: the device tells the host, which tells users).
// What oneDNN does not do throws NotImplementedError: the next path is taken.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/cpu/Utils.h>

#include "torchfl/uba_aten.h"

namespace host {
bool rounding_pays();
}
namespace {

using c10::IValue;
using torch::fl::OpRequest;
constexpr auto kLast = c10::MemoryFormat::ChannelsLast;
const c10::List<std::optional<at::Scalar>> kNoNumbers;

// The CPU's view of a tensor of the device.
at::Tensor on_cpu(const IValue& value) {
  const at::Tensor& t = value.toTensor();
  return torch::fl::on_cpu(const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides(), t.scalar_type());
}

// The arguments of a call by their position.
struct Call {
  explicit Call(const OpRequest& request) : r(request) {
    for (const IValue& arg : r.args) places.push_back(count), count += arg.isTensor() && arg.toTensor().defined();
  }
  bool has(size_t i) const { return r.args[i].isTensor() && r.args[i].toTensor().defined(); }
  at::Tensor operator[](size_t i) const { return on_cpu(r.tensor_args.at(places[i])); }  // as the host converted it
  double number(size_t i) const { return r.args[i].toScalar().toDouble(); }
  std::vector<int64_t> list(size_t i) const { return r.args[i].toIntVector(); }
  const OpRequest& r;
  std::vector<size_t> places;
  size_t count = 0;
};

void supported(bool condition, const char* what) { TORCH_CHECK_NOT_IMPLEMENTED(condition, "not for oneDNN: ", what); }

IValue onednn(const char* name, const char* overload, torch::jit::Stack stack) try {
  c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).callBoxed(stack);
  return stack[0];
} catch (const c10::Error& error) {
  C10_THROW_ERROR(NotImplementedError, error.what_without_backtrace());
}
bool has_bfloat16() {
  static const bool has = onednn("mkldnn::_is_mkldnn_bf16_supported", "", {}).toBool();
  return has;
}
// What oneDNN is to compute in.
c10::ScalarType rounded(c10::ScalarType given, bool round) {
  if (given != c10::kBFloat16 && !round) return given;
  return has_bfloat16() ? c10::kBFloat16 : c10::kFloat;
}
bool is_packable(c10::ScalarType type) { return type == c10::kFloat || type == c10::kBFloat16; }

struct After {  // what follows a convolution
  bool norm = false, add = false, relu = false, round = false;
};

// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups;
// weight, bias, mean, variance, training, momentum, eps of the norm; the residual and its factor
at::Tensor convolution(const OpRequest& r, After after) {
  const Call call(r);
  const at::Tensor input = call[0];
  const auto stride = call.list(3), padding = call.list(4), dilation = call.list(5);
  const int64_t groups = r.args[8].toInt();
  const c10::ScalarType given = input.scalar_type(), compute = rounded(given, after.round);
  const bool last = input.dim() == 4 && input.suggest_memory_format() == kLast, packs = after.norm || after.round || last;
  if (!packs || !is_packable(compute) || input.dim() != 4 || input.numel() == 0 || r.args[6].toBool()) {
    supported(!after.norm, "such an input");  // PyTorch does it as well
    return at::convolution(input, call[1], call.has(2) ? std::optional(call[2]) : std::nullopt, stride, padding, dilation,
                           r.args[6].toBool(), call.list(7), groups);
  }
  supported(!after.norm || !r.args[13].toBool(), "the norm of a training step");

  std::vector<at::Tensor> sources;
  for (size_t i : {1, 2, 9, 10, 11, 12})
    if ((i < 3 || after.norm) && call.has(i)) sources.push_back(r.args[i].toTensor());
  int64_t key = int64_t(compute) * 2 + after.norm;
  for (const auto& words : {stride, padding, dilation, {groups}})
    for (int64_t word : words) key = key * 1000003 + word;
  auto whole = [&](size_t i) { return on_cpu(r.args[i]).to(c10::kFloat); };  // not as the host may have rounded it
  auto scale = [&] {
    const at::Tensor inverse = (whole(12) + call.number(15)).rsqrt();
    return call.has(9) ? inverse * whole(9) : inverse;
  };
  const at::Tensor weight = torch::fl::kept(sources, key, [&] {
    const at::Tensor w = after.norm ? whole(1) * scale().view({-1, 1, 1, 1}) : whole(1);
    return onednn("mkldnn::_reorder_convolution_weight", "",
                  {w.to(compute).contiguous(kLast), padding, stride, dilation, groups, input.sizes().vec()})
        .toTensor();
  });
  const auto make_bias = [&] {
    at::Tensor b = call.has(2) ? whole(2) : at::zeros({weight.size(0)});
    if (after.norm) b = (b - whole(11)) * scale();
    return (after.norm && call.has(10) ? b + whole(10) : b).to(compute, false, /*copy=*/true);
  };
  const IValue bias = after.norm || call.has(2) ? torch::fl::kept(sources, ~key, make_bias) : IValue();
  const at::Tensor x = input.to(compute, false, false, kLast);
  const auto result = [&](const IValue& y) {
    return y.toTensor().to(given, false, false, last ? kLast : c10::MemoryFormat::Contiguous);
  };
  const IValue relu = after.relu ? IValue("relu") : IValue();
  if (!after.add) {
    return result(onednn("mkldnn::_convolution_pointwise", "",
                         {x, weight, bias, padding, stride, dilation, groups, after.relu ? "relu" : "none", kNoNumbers, ""}));
  }
  supported(call.number(17) == 1 && call[16].scalar_type() == given, "such a residual");
  const at::Tensor residual = call[16], other = residual.to(compute, false, false, kLast);
  if (r.spare[16] && last && given == compute && other.is_same(residual)) {  // the result takes its place
    onednn("mkldnn::_convolution_pointwise_", "binary",
           {other, x, weight, bias, padding, stride, dilation, groups, "add", 1.0, relu, kNoNumbers, IValue()});
    return r.args[16].toTensor();
  }
  return result(onednn("mkldnn::_convolution_pointwise", "binary",
                       {x, other, weight, bias, padding, stride, dilation, groups, "add", 1.0, relu, kNoNumbers, IValue()}));
}

// bias, x, weight^T, beta, alpha; then gelu's approximation, or the other summand and its factor; and then a norm's shape,
// weight, bias, eps
at::Tensor linear(const OpRequest& r, const std::string& next, bool round) {
  const Call call(r);
  const at::Tensor input = call[1], transposed = on_cpu(r.args[2]), bias = on_cpu(r.args[0]);
  const c10::ScalarType given = input.scalar_type(), compute = rounded(given, round);
  const bool adds = next == "add" || next == "add_norm";
  supported(is_packable(compute) && transposed.t().is_contiguous(), "a factor that is no weight");
  supported(!adds || (call.number(6) == 1 && call[5].scalar_type() == given), "such a summand");
  supported(bias.dim() == 1 && bias.size(0) == transposed.size(1) && call.number(3) == 1 && call.number(4) == 1, "a bias");
  const at::Tensor weight = torch::fl::kept({r.args[2].toTensor()}, int64_t(compute), [&] {
    return onednn("mkldnn::_reorder_linear_weight", "", {transposed.t().to(compute), input.size(0)}).toTensor();
  });
  const at::Tensor x = input.to(compute).contiguous(), b = bias.to(compute);
  const IValue form = next == "gelu" ? r.args[5] : IValue("");
  if (!adds) return onednn("mkldnn::_linear_pointwise", "", {x, weight, b, next, kNoNumbers, form}).toTensor().to(given);
  const at::Tensor other = call[5].to(compute).contiguous();
  const at::Tensor y = onednn("mkldnn::_linear_pointwise", "binary", {x, other, weight, b, "add"}).toTensor().to(given);
  auto optional = [&](size_t i) { return call.has(i) ? std::optional(call[i]) : std::nullopt; };
  if (next == "add") return y;
  return std::get<0>(at::native_layer_norm(y, call.list(7), optional(8), optional(9), call.number(10)));
}

// query, key, value, bias, dropout, causal, debug mask, scale
at::Tensor attention(const OpRequest& r) {
  const Call call(r);
  const auto dense = [&](size_t i) { return call[i].stride(-1) == 1 ? call[i] : call[i].contiguous(); };
  const at::Tensor q = dense(0), k = dense(1), v = dense(2);
  supported(q.size(-1) == v.size(-1) && q.size(-1) == k.size(-1), "attention of such a shape");
  std::optional<at::Tensor> bias;
  if (call.has(3)) bias = call[3].to(q.scalar_type()).expand({q.size(0), q.size(1), q.size(2), k.size(2)});
  const auto scale = r.args[7].toOptional<double>();
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, r.args[5].toBool(), bias, scale));
}

}  // namespace

// The vector units of Intel's CPUs multiply bfloat16 at half the rate of float32; their matrix units at eight times it.
bool host::rounding_pays() {
  static const bool pays = [] {
    if (const char* chosen = std::getenv("TORCHFL_HOST_ROUND")) return *chosen == '1';
    const auto cpu = at::cpu::get_cpu_capabilities();
    const auto has = [&](const char* what) { return cpu.count(what) && cpu.at(what).isBool() && cpu.at(what).toBool(); };
    const bool intel = cpu.count("cpu_name") && cpu.at("cpu_name").toStringRef().rfind("Intel", 0) == 0;
    return has_bfloat16() && (has("amx_bf16") || !intel);
  }();
  return pays;
}

extern "C" __attribute__((visibility("default"))) void torch_fl_register_host() {
  const auto kernel = [](const std::string& name, auto function, auto... how) {
    torch::fl::register_kernel("host_" + name, [=](const OpRequest& r) {
      at::AutoDispatchBelowADInplaceOrView below;
      return function(r, how...);
    });
  };
  torch::fl::register_device("host");
  kernel("conv", convolution, After{});
  kernel("conv_bf16", convolution, After{.round = host::rounding_pays()});
  kernel("conv_norm", convolution, After{.norm = true});
  kernel("conv_norm_relu", convolution, After{.norm = true, .relu = true});
  kernel("conv_norm_add_relu", convolution, After{.norm = true, .add = true, .relu = true});
  kernel("linear", linear, "none", false);
  kernel("linear_bf16", linear, "none", host::rounding_pays());
  for (const char* next : {"relu", "gelu", "add", "add_norm"}) kernel(std::string("linear_") + next, linear, next, false);
  kernel("attention", attention);
}
