// fast_route.cpp: the route for the commonest forms of call, without boxing.
//
// Contract: gives exactly what the boxed route gives, from the same plans, and hands it every call that is not a plain
// hit: an unknown signature, a plan with preparations, shared memory, timing. It saves the stack of boxed values, which
// for a small elementwise operator is a fifth of the whole cost.
#include "fast_route.h"

#include "kept.h"
#include "plan.h"
#include "transfer.h"

namespace torchfl {
namespace {

uint64_t number_word(const c10::Scalar& number) {
  return number.isFloatingPoint() ? kDouble : number.isBoolean() ? kBool : number.isIntegral(false) ? kInt : kOther;
}

// One call: up to three tensors and then at most one number, in schema order.
struct FastCall {
  const at::Tensor* tensors[3];
  int tensor_count;
  const c10::Scalar* number;

  c10::IValue boxed(int position) const {
    return position < tensor_count ? c10::IValue(*tensors[position]) : c10::IValue(*number);
  }
};

// The plan of a call that can run without boxing, or NULL.
const Plan* find_fast(const OpState& op, const FastCall& call) {
  Signature signature;
  auto& words = signature.words;
  words.push_back(signature_head(op));
  for (int i = 0; i < call.tensor_count; i++) {
    if (!call.tensors[i]->defined() || call.tensors[i]->device().type() != kDevice) return nullptr;
    read_signature_tensor(op, *call.tensors[i], signature);
  }
  if (C10_UNLIKELY(signature.lazy)) return nullptr;
  if (call.number != nullptr) words.push_back(number_word(*call.number));
  const Plan* plan = find_plan(signature);
  return plan != nullptr && plan->fast ? plan : nullptr;
}

// Runs it, writing to `out`. False: refused by the kernel.
bool run_fast(const Plan& plan, const FastCall& call, const at::Tensor& out) {
  // At most three tensors and a number: the forms below have no more, and plan.fast holds for no others.
  uba_tensor tensors[3];
  uba_value values[4];
  std::copy(plan.tensors.begin(), plan.tensors.end(), tensors);
  std::copy(plan.values.begin(), plan.values.end(), values);
  for (const Plan::Patch& patch : plan.patches) {
    if (patch.source == Plan::Patch::tensor_address) {
      const at::Tensor& tensor = *call.tensors[patch.arg];
      const Place place = place_of(tensor);
      tensors[size_t(patch.tensor)].data = place.data;
      tensors[size_t(patch.tensor)].byte_offset = place.offset;
    } else if (patch.floating) {
      values[size_t(patch.value)].v.d = call.number->toDouble();
    } else {
      values[size_t(patch.value)].v.i = whole_number(*call.number);
    }
  }
  for (size_t i = 0; i < plan.values.size(); i++) {
    if (values[i].kind == UBA_TENSOR) values[i].v.tensor = tensors + (values[i].v.tensor - plan.tensors.data());
  }
  const Plan::Output& output = plan.outputs[0];
  uba_tensor result;
  const Place place = place_of(out);
  result.data = place.data;
  result.byte_offset = place.offset;
  result.sizes = output.shape.sizes.data();
  result.strides = output.shape.strides.data();
  result.dtype = plan.output_dtype;
  result.rank = int32_t(output.shape.sizes.size());
  uba_call request;
  request.header = UBA_HEADER(uba_call);
  request.op = plan.functional_name.c_str();
  request.args = values;
  request.outputs = &result;
  request.arg_count = int32_t(plan.values.size());
  request.output_count = 1;
  request.stream = runtime::current_stream(plan.device);
  plan.counters->calls.fetch_add(1, std::memory_order_relaxed);
  const uba_status status =
      guarded([&] { return plan.entry->device->run(plan.run, request, plan.tag, plan.kernel_name); });
  if (C10_LIKELY(status == UBA_OK)) return true;
  plan.counters->calls.fetch_sub(1, std::memory_order_relaxed);
  return false;
}

at::Tensor through_the_stack(OpState& op, const FastCall& call) {
  torch::jit::Stack stack;
  for (size_t i = 0; i < op.arg_count; i++) stack.push_back(call.boxed(int(i)));
  route(op, &stack);
  return stack.back().toTensor();
}

at::Tensor functional(OpState& op, const FastCall& call) {
  const Plan* plan = find_fast(op, call);
  if (C10_LIKELY(plan != nullptr && !stats::g_timing.load(std::memory_order_relaxed))) {
    const Plan::Output& output = plan->outputs[0];
    at::Tensor out = empty_planned(plan->device, output.shape.dtype, output.shape.sizes, output.shape.strides,
                                   output.bytes, output.contiguous);
    if (C10_LIKELY(run_fast(*plan, call, out))) return out;
  }
  return through_the_stack(op, call);
}

void in_place(OpState& op, const FastCall& call) {
  note_written(*call.tensors[0]);
  const Plan* plan = find_fast(op, call);
  bool apart = plan != nullptr && !stats::g_timing.load(std::memory_order_relaxed);
  // Memory that is shared with another operand needs the careful look of the boxed route.
  for (int i = 1; apart && i < call.tensor_count; i++) {
    apart = !call.tensors[i]->storage().is_alias_of(call.tensors[0]->storage());
  }
  if (C10_LIKELY(apart) && C10_LIKELY(run_fast(*plan, call, *call.tensors[0]))) return;
  through_the_stack(op, call);
}

using T = const at::Tensor&;
using S = const c10::Scalar&;

}  // namespace

std::optional<torch::CppFunction> fast_kernel(OpState& op) {
  const c10::FunctionSchema& schema = op.handle.schema();
  std::string form;
  for (const c10::Argument& arg : schema.arguments()) {
    if (arg.is_out()) return std::nullopt;
    const auto kind = arg.type()->kind();
    form += kind == c10::TypeKind::TensorType ? 'T' : kind == c10::TypeKind::NumberType ? 'S' : '?';
  }
  if (!op.pointwise || schema.returns().size() != 1 ||
      schema.returns()[0].type()->kind() != c10::TypeKind::TensorType) {
    return std::nullopt;
  }
  OpState* state = &op;
  const bool mutates = op.written.size() == 1 && op.written[0] == 0 && op.returns[0] == 0;
  if (!mutates && !op.written.empty()) return std::nullopt;
  if (!mutates) {
    if (form == "T") return torch::CppFunction([state](T a) { return functional(*state, {{&a}, 1, nullptr}); });
    if (form == "TT")
      return torch::CppFunction([state](T a, T b) { return functional(*state, {{&a, &b}, 2, nullptr}); });
    if (form == "TS") return torch::CppFunction([state](T a, S s) { return functional(*state, {{&a}, 1, &s}); });
    if (form == "TTS")
      return torch::CppFunction([state](T a, T b, S s) { return functional(*state, {{&a, &b}, 2, &s}); });
    if (form == "TTTS") {
      return torch::CppFunction([state](T a, T b, T c, S s) { return functional(*state, {{&a, &b, &c}, 3, &s}); });
    }
    return std::nullopt;
  }
  using W = at::Tensor&;
  if (form == "T") return torch::CppFunction([state](W a) -> W { return in_place(*state, {{&a}, 1, nullptr}), a; });
  if (form == "TT")
    return torch::CppFunction([state](W a, T b) -> W { return in_place(*state, {{&a, &b}, 2, nullptr}), a; });
  if (form == "TS") return torch::CppFunction([state](W a, S s) -> W { return in_place(*state, {{&a}, 1, &s}), a; });
  if (form == "TTS") {
    return torch::CppFunction([state](W a, T b, S s) -> W { return in_place(*state, {{&a, &b}, 2, &s}), a; });
  }
  if (form == "TTTS") {
    return torch::CppFunction([state](W a, T b, T c, S s) -> W { return in_place(*state, {{&a, &b, &c}, 3, &s}), a; });
  }
  return std::nullopt;
}

}  // namespace torchfl
