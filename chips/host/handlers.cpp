// handlers.cpp: kernels of the host CPU that make their own results: convolutions and linear layers of oneDNN, with packed
// weights and what follows them fused in, and attention.
//
// Contract: a weight is packed, with a batch norm folded in, when it is first used, and kept until it, or a parameter of
// the norm, is written to. Everything is exact in the dtype of the input; the kernels named ..._bf16 round float32
// operands to bfloat16, and give float32. What oneDNN does not do throws NotImplementedError: the next path is taken.
#include <ATen/core/dispatch/Dispatcher.h>

#include "torchfl/uba_aten.h"

namespace {

using torch::fl::OpRequest;
constexpr auto kLast = c10::MemoryFormat::ChannelsLast;

// The CPU's view of a tensor of the device.
at::Tensor on_cpu(const at::Tensor& t) {
  return at::from_blob(const_cast<void*>(t.const_data_ptr()), t.sizes(), t.strides(), at::dtype(t.scalar_type()));
}

// The arguments of a call by their position.
struct Call {
  explicit Call(const OpRequest& request) : r(request) {
    for (const c10::IValue& arg : r.args) {
      places.push_back(count);
      if (present(arg)) count++;
    }
  }
  static bool present(const c10::IValue& arg) { return arg.isTensor() && arg.toTensor().defined(); }
  bool has(size_t i) const { return present(r.args[i]); }
  // As the kernel is to see it: converted where the host did so.
  at::Tensor operator[](size_t i) const { return has(i) ? on_cpu(r.tensor_args.at(places[i])) : at::Tensor(); }
  double number(size_t i) const { return r.args[i].toScalar().toDouble(); }
  std::vector<int64_t> list(size_t i) const { return r.args[i].toIntVector(); }
  const OpRequest& r;
  std::vector<size_t> places;
  size_t count = 0;
};

void supported(bool condition, const char* what) { TORCH_CHECK_NOT_IMPLEMENTED(condition, "oneDNN: ", what); }

int64_t mix(int64_t key, int64_t word) { return int64_t((uint64_t(key) ^ uint64_t(word)) * 0x9e3779b97f4a7c15ull); }
int64_t mix(int64_t key, const std::vector<int64_t>& words) {
  for (int64_t word : words) key = mix(key, word);
  return key;
}

using Ints = c10::ArrayRef<int64_t>;
using Words = const c10::List<std::optional<at::Scalar>>&;
using Word = std::optional<std::string_view>;
template <class Signature>
auto mkldnn(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}
using T = const at::Tensor&;
using OptionalT = const std::optional<at::Tensor>&;

// ------------------------------------------------------------------------------------------ convolution

struct Chain {  // what follows a convolution
  bool norm, add, relu, round;
};

// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups;
// weight, bias, mean, variance, training, momentum, eps of the norm; the residual and its factor
at::Tensor convolution(const OpRequest& r, Chain chain) {
  const Call call(r);
  const at::Tensor input = call[0];
  const auto stride = call.list(3), padding = call.list(4), dilation = call.list(5);
  const int64_t groups = r.args[8].toInt();
  const c10::ScalarType given = input.scalar_type(), compute = chain.round ? c10::kBFloat16 : given;
  const bool last = input.dim() == 4 && input.suggest_memory_format() == kLast;
  supported(!r.args[6].toBool() && input.numel() > 0, "no transposed convolutions here");
  if (!chain.norm && !chain.round && !last) {  // in PyTorch's order there is nothing to gain
    const at::Tensor weight = call[1];
    supported(weight.scalar_type() == given, "weights of another dtype");
    return at::convolution(input, weight, call.has(2) ? std::optional(call[2]) : std::nullopt, stride, padding, dilation,
                           false, call.list(7), groups);
  }
  supported(input.dim() == 4 && (compute == c10::kFloat || compute == c10::kBFloat16), "such an input");
  if (chain.norm) supported(!r.args[13].toBool(), "the norm of a training step");

  std::vector<at::Tensor> sources;
  for (size_t i : {1, 2, 9, 10, 11, 12})
    if ((i < 3 || chain.norm) && call.has(i)) sources.push_back(r.args[i].toTensor());
  const int64_t key = mix(mix(mix(mix(mix(int64_t(compute), groups), stride), padding), dilation), chain.norm);
  auto whole = [&](size_t i) { return on_cpu(r.args[i].toTensor()).to(c10::kFloat); };  // not as the host may have rounded it
  auto scale = [&] {
    const at::Tensor inverse = (whole(12) + call.number(15)).rsqrt();
    return call.has(9) ? inverse * whole(9) : inverse;
  };
  const at::Tensor weight = torch::fl::kept(sources, key, [&] {
    at::Tensor w = whole(1);
    if (chain.norm) w = w * scale().view({-1, 1, 1, 1});
    static const auto pack = mkldnn<at::Tensor(T, Ints, Ints, Ints, int64_t, std::optional<Ints>)>(
        "mkldnn::_reorder_convolution_weight");
    return pack.call(w.to(compute).contiguous(kLast), padding, stride, dilation, groups, input.sizes());
  });
  at::Tensor bias;
  if (chain.norm || call.has(2)) {
    bias = torch::fl::kept(sources, mix(key, 1), [&] {
      at::Tensor b = call.has(2) ? whole(2) : at::Tensor();
      if (chain.norm) {
        const at::Tensor shifted = b.defined() ? b - whole(11) : -whole(11);
        b = shifted * scale();
        if (call.has(10)) b = b + whole(10);
      }
      return b.to(compute).clone();
    });
  }
  const at::Tensor x = input.to(compute, false, false, kLast);
  static const auto plain =
      mkldnn<at::Tensor(T, T, OptionalT, Ints, Ints, Ints, int64_t, std::string_view, Words, Word)>(
          "mkldnn::_convolution_pointwise");
  static const auto added = mkldnn<at::Tensor(T, T, T, OptionalT, Ints, Ints, Ints, int64_t, std::string_view,
                                              std::optional<at::Scalar>, Word, Words, Word)>(
      "mkldnn::_convolution_pointwise", "binary");
  const c10::List<std::optional<at::Scalar>> none;
  const std::optional<at::Tensor> b = bias.defined() ? std::optional(bias) : std::nullopt;
  at::Tensor y;
  if (chain.add) {
    supported(call.number(17) == 1, "a factor of the residual");
    const at::Tensor other = call[16].to(compute, false, false, kLast);
    y = added.call(x, other, weight, b, padding, stride, dilation, groups, "add", 1.0,
                   chain.relu ? Word("relu") : std::nullopt, none, std::nullopt);
  } else {
    y = plain.call(x, weight, b, padding, stride, dilation, groups, chain.relu ? "relu" : "none", none, "");
  }
  return y.to(given, false, false, last ? kLast : c10::MemoryFormat::Contiguous);
}

// ------------------------------------------------------------------------------------------ linear layers

struct After {
  const char* activation;  // "none", "relu", "gelu"
  bool add, round;
};

// bias, x, weight^T, beta, alpha of addmm, or x, weight^T of mm; then gelu's approximation, or the other summand and its factor
at::Tensor linear(const OpRequest& r, bool biased, After after) {
  const Call call(r);
  const size_t at = biased ? 1 : 0;
  const at::Tensor input = call[at], transposed = on_cpu(r.args[at + 1].toTensor());
  const c10::ScalarType given = input.scalar_type(), compute = after.round ? c10::kBFloat16 : given;
  supported(compute == c10::kFloat || compute == c10::kBFloat16, "such an input");
  supported(transposed.t().is_contiguous(), "a factor that is no weight");
  supported(!biased || (call.number(3) == 1 && call.number(4) == 1), "beta and alpha");
  if (after.add) supported(call.number(6) == 1, "a factor of the summand");
  const at::Tensor bias = biased ? on_cpu(r.args[0].toTensor()) : at::Tensor();
  supported(!biased || (bias.dim() == 1 && bias.size(0) == transposed.size(1)), "a bias that is no row");
  const at::Tensor weight = torch::fl::kept({r.args[at + 1].toTensor()}, mix(int64_t(compute), 2), [&] {
    static const auto pack = mkldnn<at::Tensor(T, std::optional<int64_t>)>("mkldnn::_reorder_linear_weight");
    return pack.call(transposed.t().to(compute), input.size(0));
  });
  const at::Tensor x = input.to(compute).contiguous();
  const std::optional<at::Tensor> b = biased ? std::optional(bias.to(compute)) : std::nullopt;
  static const auto plain = mkldnn<at::Tensor(T, T, OptionalT, std::string_view, Words, Word)>("mkldnn::_linear_pointwise");
  static const auto added = mkldnn<at::Tensor(T, T, T, OptionalT, std::string_view)>("mkldnn::_linear_pointwise", "binary");
  const c10::List<std::optional<at::Scalar>> none;
  if (after.add) return added.call(x, call[5].to(compute).contiguous(), weight, b, "add").to(given);
  const bool gelu = after.activation[0] == 'g';
  const std::string algorithm = gelu ? r.args[5].toStringRef() : "";
  return plain.call(x, weight, b, after.activation, none, algorithm).to(given);
}

// ------------------------------------------------------------------------------------------ attention

// q and k^T of a product, the shape of the scores, [mask, alpha,] dim and dtype of the softmax, a shape, v
at::Tensor attention(const OpRequest& r, bool masked) {
  const Call call(r);
  const size_t v_at = r.args.size() - 1;
  const auto scores = call.list(2);
  supported(scores.size() == 4 && r.args[v_at - 2].isNone(), "attention of such a shape");
  if (masked) supported(call.number(4) == 1, "a factor of the mask");
  const int64_t batch = scores[0], heads = scores[1];
  auto split = [&](const at::Tensor& t) { return t.view({batch, heads, t.size(1), t.size(2)}); };
  const at::Tensor q = split(call[0]), k = split(call[1].transpose(1, 2)), v = split(call[v_at]);
  supported(q.size(-1) == v.size(-1) && k.size(-2) == scores[3] && v.size(-2) == scores[3], "attention of such a shape");
  std::optional<at::Tensor> mask;
  if (masked) mask = call[3].to(q.scalar_type()).expand(scores);
  // q and k are scaled already.
  return std::get<0>(at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, false, mask, 1.0))
      .contiguous()
      .view({batch * heads, scores[2], v.size(-1)});
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void torch_fl_register_host() {
  auto add = [](const std::string& name, const auto& kernel) {
    torch::fl::register_kernel(name, [kernel](const OpRequest& r) {
      at::AutoDispatchBelowADInplaceOrView below;
      return kernel(r);
    });
  };
  torch::fl::register_device("host");
  for (const bool round : {false, true}) {
    const std::string end = round ? "_bf16" : "";
    add("host_conv" + end, [=](const OpRequest& r) { return convolution(r, {false, false, false, round}); });
    add("host_conv_norm" + end, [=](const OpRequest& r) { return convolution(r, {true, false, false, round}); });
    add("host_conv_norm_relu" + end, [=](const OpRequest& r) { return convolution(r, {true, false, true, round}); });
    add("host_conv_norm_add_relu" + end, [=](const OpRequest& r) { return convolution(r, {true, true, true, round}); });
    add("host_linear" + end, [=](const OpRequest& r) { return linear(r, true, {"none", false, round}); });
    add("host_linear_plain" + end, [=](const OpRequest& r) { return linear(r, false, {"none", false, round}); });
    add("host_linear_relu" + end, [=](const OpRequest& r) { return linear(r, true, {"relu", false, round}); });
    add("host_linear_gelu" + end, [=](const OpRequest& r) { return linear(r, true, {"gelu", false, round}); });
    add("host_linear_add" + end, [=](const OpRequest& r) { return linear(r, true, {"none", true, round}); });
  }
  add("host_attention", [](const OpRequest& r) { return attention(r, false); });
  add("host_attention_masked", [](const OpRequest& r) { return attention(r, true); });
}
