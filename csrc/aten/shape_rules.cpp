// shape_rules.cpp: see shape_rules.h.
#include "shape_rules.h"

#include <ATen/native/BinaryOps.h>
#include <ATen/native/ConvUtils.h>
#include <ATen/native/TypeProperties.h>

#include <unordered_map>
#include <unordered_set>

#include "graph_fused.h"
#include "values.h"
#include "whole_attention.h"

namespace torchfl {
namespace {

at::Tensor as_meta(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kDevice) return tensor;  // numbers stay numbers
  at::Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
  return meta;
}

c10::IValue as_meta(const c10::IValue& value) {
  if (value.isDevice()) return c10::Device(c10::kMeta);
  return map_tensors(value, [](const at::Tensor& tensor) { return as_meta(tensor); });
}

OutputShape shape_of(const at::Tensor& tensor) {
  OutputShape shape;
  if (!tensor.defined()) return shape;
  shape.dtype = tensor.scalar_type();
  shape.sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  shape.strides.assign(tensor.strides().begin(), tensor.strides().end());
  return shape;
}

OutputShape contiguous(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  return shape_of(at::empty(sizes, at::TensorOptions().dtype(dtype).device(c10::kMeta)));
}

OutputShape like(const at::Tensor& tensor) { return shape_of(at::empty_like(as_meta(tensor))); }

// One number for each spatial dimension: a single one stands for all, as PyTorch's own functions take it.
std::vector<int64_t> ints(const c10::IValue& value, int64_t spatial) {
  std::vector<int64_t> list = value.toIntVector();
  if (list.size() == 1) list.resize(size_t(spatial), list[0]);
  TORCH_CHECK_VALUE(int64_t(list.size()) == spatial, "convolution over ", spatial, " dimensions was given a list of ",
                    list.size(), " numbers: ", list);
  return list;
}

// input, weight, bias, stride, padding, dilation, transposed, output_padding, groups
std::vector<OutputShape> convolution(at::ArrayRef<c10::IValue> args) {
  const at::Tensor &input = args[0].toTensor(), &weight = args[1].toTensor();
  // PyTorch's rule, on stand-ins of one dtype: here the weight may be of another.
  const auto options = input.options().device(c10::kMeta);
  const at::Tensor x = at::empty_strided(input.sizes(), input.strides(), options);
  const at::Tensor w = at::empty_strided(weight.sizes(), weight.strides(), options);
  const int64_t spatial = input.dim() - 2;
  const auto stride = ints(args[3], spatial), padding = ints(args[4], spatial), dilation = ints(args[5], spatial),
             output_padding = ints(args[7], spatial);
  const bool transposed = args[6].toBool();
  const int64_t groups = args[8].toInt();
  const auto sizes = transposed
                         ? at::native::conv_input_size(input.sizes(), weight.sizes(), padding, output_padding, stride,
                                                       dilation, groups)
                         : at::native::conv_output_size(input.sizes(), weight.sizes(), padding, stride, dilation);
  const bool channels_last = input.dim() == 4 && (x.suggest_memory_format() == c10::MemoryFormat::ChannelsLast ||
                                                  w.suggest_memory_format() == c10::MemoryFormat::ChannelsLast);
  return {shape_of(
      at::empty(sizes, options, channels_last ? c10::MemoryFormat::ChannelsLast : c10::MemoryFormat::Contiguous))};
}

// grad_output, input, weight, stride, padding, dilation, transposed, output_padding, groups, output_mask
std::vector<OutputShape> convolution_backward(at::ArrayRef<c10::IValue> args) {
  const at::Tensor &grad = args[0].toTensor(), &input = args[1].toTensor(), &weight = args[2].toTensor();
  const auto mask = args[9].toListRef();
  const int64_t channels = args[6].toBool() ? weight.size(1) * args[8].toInt() : weight.size(0);
  std::vector<OutputShape> out(3);
  if (mask[0].toBool()) out[0] = like(input);
  if (mask[1].toBool()) {
    out[1] = like(weight);
    out[1].dtype = grad.scalar_type();
  }
  if (mask[2].toBool()) out[2] = contiguous(grad.scalar_type(), {channels});
  return out;
}

c10::ScalarType statistics_dtype(const at::Tensor& input) {
  return c10::isReducedFloatingType(input.scalar_type()) ? c10::ScalarType::Float : input.scalar_type();
}

// input, weight?, bias?, [running_mean?, running_var?,] training, momentum, eps
std::vector<OutputShape> batch_norm(at::ArrayRef<c10::IValue> args) {
  const at::Tensor& input = args[0].toTensor();
  const int64_t kept = args[args.size() - 3].toBool() ? input.size(1) : 0;
  const OutputShape saved = contiguous(statistics_dtype(input), {kept});
  return {like(input), saved, saved};
}

// grad_out, input, weight?, running_mean?, running_var?, save_mean?, save_invstd?, train, eps, output_mask
std::vector<OutputShape> batch_norm_backward(at::ArrayRef<c10::IValue> args) {
  const at::Tensor &grad = args[0].toTensor(), &input = args[1].toTensor();
  const at::Tensor weight = args[2].isNone() ? at::Tensor() : args[2].toTensor();
  const auto mask = args[9].toListRef();
  const OutputShape parameter =
      contiguous(weight.defined() ? weight.scalar_type() : statistics_dtype(input), {input.size(1)});
  std::vector<OutputShape> out(3);
  if (mask[0].toBool()) {
    out[0] = like(input);
    out[0].dtype = grad.scalar_type();
  }
  if (mask[1].toBool()) out[1] = parameter;
  if (mask[2].toBool()) out[2] = parameter;
  return out;
}

using Rule = std::vector<OutputShape> (*)(at::ArrayRef<c10::IValue>);
const std::unordered_map<std::string, Rule>& rules() {
  static const std::unordered_map<std::string, Rule> table = {
      {"aten::convolution_overrideable", &convolution},
      {"aten::convolution_backward_overrideable", &convolution_backward},
      {"aten::native_batch_norm", &batch_norm},
      {"aten::_native_batch_norm_legit", &batch_norm},
      {"aten::native_batch_norm_backward", &batch_norm_backward},
      {kWholeAttention, &attention_outputs},
  };
  return table;
}

// Operators whose tensors are meant to share a dtype: the position of the one that decides.
int deciding_argument(const std::string& base) {
  static const std::unordered_map<std::string, int> table = {
      {"aten::convolution_overrideable", 0},
      {"aten::convolution_backward_overrideable", 0},
      {"aten::mm", 0},
      {"aten::bmm", 0},
      {"aten::addmm", 1},
      {"aten::baddbmm", 1},
      {"aten::addbmm", 1},
      {"aten::mv", 0},
      {"aten::addmv", 1},
      {"aten::dot", 0},
  };
  auto found = table.find(base);
  return found == table.end() ? -1 : found->second;
}

}  // namespace

bool wants_one_dtype(const std::string& base) { return deciding_argument(base) >= 0; }

c10::IValue meta_value(const c10::IValue& value) { return as_meta(value); }

std::optional<std::vector<OutputShape>> infer_outputs(const c10::OperatorHandle& op, const std::string& base,
                                                      at::ArrayRef<c10::IValue> args) {
  auto rule = rules().find(base);
  if (rule != rules().end()) return rule->second(args);
  if (is_fused(base)) return fused_outputs(base, args);
  if (!op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return std::nullopt;
  torch::jit::Stack stack;
  stack.reserve(args.size());
  const int decides = deciding_argument(base);
  for (size_t i = 0; i < args.size(); i++) {
    c10::IValue value = as_meta(args[i]);
    if (decides >= 0 && value.isTensor() && value.toTensor().defined()) {
      value = value.toTensor().to(args[size_t(decides)].toTensor().scalar_type());
    }
    stack.push_back(std::move(value));
  }
  try {
    op.callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;  // PyTorch has no rule for the operator, or for a part of it
  }
  std::vector<OutputShape> out;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      out.push_back(shape_of(value.toTensor()));
    } else if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) out.push_back(shape_of(tensor));
    } else {
      return std::nullopt;
    }
  }
  // Its shape function in Python promotes bools, which its kernels and its shape function in C++ do not.
  if (base == "aten::pow" && out.size() == 1) {
    at::native::ResultTypeState state{};
    for (const c10::IValue& value : args.slice(0, 2)) {
      state = value.isTensor() ? at::native::update_result_type_state(value.toTensor(), state)
                               : at::native::update_result_type_state(value.toScalar(), state);
    }
    out[0].dtype = at::native::result_type(state);
  }
  return out;
}

namespace {

// Operators whose result is bool whatever they look at.
bool is_predicate(const std::string& base) {
  static const std::unordered_set<std::string> names = {
      "aten::eq",       "aten::ne",          "aten::lt",          "aten::le",          "aten::gt",
      "aten::ge",       "aten::logical_and", "aten::logical_or",  "aten::isnan",       "aten::isinf",
      "aten::isposinf", "aten::isneginf",    "aten::logical_xor", "aten::logical_not", "aten::signbit"};
  return names.count(base) != 0;
}

// What PyTorch's kernels refuse, and its shape functions in Python let pass.
void check_operands(const OpState& op, at::ArrayRef<c10::IValue> args, c10::ScalarType result) {
  const std::string& base = op.schema.name;
  const bool subtraction = base == "aten::sub" || base == "aten::rsub";
  if (subtraction && args[0].isTensor() && args[1].isTensor()) {
    at::native::sub_check(args[0].toTensor(), args[1].toTensor());
  } else if (subtraction && args[0].isTensor() && args[1].isScalar()) {
    at::native::sub_check(args[0].toTensor(), args[1].toScalar());
  }
  if ((subtraction || base == "aten::add") && args.size() > 2 && args[2].isScalar()) {
    at::native::alpha_check(result, args[2].toScalar());
  }
  if (base == "aten::pow" && args[0].isTensor() && args[1].isScalar()) {
    const c10::Scalar exponent = args[1].toScalar();
    TORCH_CHECK(!(c10::isIntegralType(args[0].toTensor().scalar_type(), true) && exponent.isIntegral(true) &&
                  exponent.toLong() < 0),
                "Integers to negative integer powers are not allowed.");
  }
}

}  // namespace

c10::ScalarType compute_dtype(const OpState& op, at::ArrayRef<c10::IValue> args, c10::ScalarType functional_result) {
  // In a chain it is the first link whose weights follow.
  const int decides =
      deciding_argument(is_fused(op.schema.name) ? fused_links(op.schema.name).at(0).op : op.schema.name);
  if (decides >= 0) return args[size_t(decides)].toTensor().scalar_type();
  if (!op.pointwise) return c10::ScalarType::Undefined;
  if (functional_result != c10::ScalarType::Undefined) check_operands(op, args, functional_result);
  if (functional_result != c10::ScalarType::Undefined && !is_predicate(op.schema.name)) return functional_result;
  at::native::ResultTypeState state{};
  for (int position : op.kernel_args) {
    const c10::IValue& value = args[size_t(position)];
    if (value.isTensor() && value.toTensor().defined()) {
      state = at::native::update_result_type_state(value.toTensor(), state);
    } else if (value.isScalar()) {
      state = at::native::update_result_type_state(value.toScalar(), state);
    }
  }
  return at::native::result_type(state);
}

bool follows_compute_dtype(const OpState& op, int position, const at::Tensor& tensor, c10::ScalarType compute) {
  if (compute == c10::ScalarType::Undefined || tensor.scalar_type() == compute) return false;
  const std::string& name = op.handle.schema().arguments()[size_t(position)].name();
  if (name == "condition" || name == "mask") return false;
  if (is_fused(op.schema.name) && size_t(position) >= fused_links(op.schema.name).at(0).arguments) return false;
  if (op.pointwise) return true;
  return c10::isFloatingType(tensor.scalar_type()) && c10::isFloatingType(compute);
}

}  // namespace torchfl
