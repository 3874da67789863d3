// wrapper_route.cpp: see wrapper_route.h.
#include "wrapper_route.h"

#include <c10/core/DeviceGuard.h>

#include <algorithm>
#include <atomic>
#include <functional>

#include "aten_handlers.h"
#include "conversion.h"
#include "shape_rules.h"
#include "transfer.h"
#include "unified.h"
#include "values.h"

namespace torchfl {
namespace {

std::atomic<CallWrapper> g_call_wrapper{nullptr};

std::vector<c10::OperatorHandle> overloads_of(const std::string& base) {
  static const auto* by_name = [] {
    auto* index = new std::multimap<std::string, std::string>();
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
      index->emplace(name.name, name.overload_name);
    return index;
  }();
  std::vector<c10::OperatorHandle> found;
  auto [begin, end] = by_name->equal_range(base);
  for (auto it = begin; it != end; ++it) {
    if (auto op = c10::Dispatcher::singleton().findSchema({base, it->second})) found.push_back(*op);
  }
  return found;
}

// Where the arguments of `wanted` are in the form that reaches the backend: by name, or, if the forms are alike but
// for names (matmul and mm), by place. nullopt: they cannot be had.
std::optional<std::vector<int>> find_arguments(const c10::FunctionSchema& wanted,
                                               const std::vector<const c10::Argument*>& have) {
  std::vector<int> from;
  bool by_place = wanted.arguments().size() == have.size(), by_name = true;
  for (size_t i = 0; i < wanted.arguments().size(); i++) {
    const c10::Argument& argument = wanted.arguments()[i];
    const auto found = std::find_if(have.begin(), have.end(), [&](const c10::Argument* a) {
      return a->name() == argument.name() && *a->type() == *argument.type();
    });
    by_name &= found != have.end() || argument.default_value().has_value();
    by_place = by_place && *have[i]->type() == *argument.type();
    from.push_back(found == have.end() ? -1 : int(found - have.begin()));
  }
  if (by_name) return from;
  if (!by_place) return std::nullopt;
  for (size_t i = 0; i < from.size(); i++) from[i] = int(i);
  return from;
}

// What a function is given of a tensor: only to read, however it asks for its address, and without a gradient.
at::Tensor lend(const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.device().type() != kDevice) return tensor;
  at::Tensor lent = unified::read_only(tensor);
  return lent.requires_grad() ? lent.detach() : lent;
}

// What a pointwise kernel is given: every tensor in the shape of the result, and in one dense order of memory, so that
// one loop over all elements is right.
at::Tensor aligned_with(const Plan& plan, const OpState& op, at::ArrayRef<c10::IValue> args, int position,
                        const at::Tensor& tensor) {
  const Plan::Output& output = plan.outputs[0];
  const OutputShape& shape = output.shape;
  const bool dense = output.bytes == size_t(c10::multiply_integers(shape.sizes)) * c10::elementSize(shape.dtype);
  const bool here = tensor.device().type() == kDevice;
  if (here && tensor.sizes() == c10::IntArrayRef(shape.sizes) &&
      (dense ? tensor.strides() == c10::IntArrayRef(shape.strides) : tensor.is_contiguous()))
    return tensor;
  c10::ScalarType dtype = tensor.scalar_type();
  if (!here) {  // a number in the place of a tensor takes part in their dtype
    const c10::ScalarType compute = compute_dtype(op, args, shape.dtype);
    if (follows_compute_dtype(op, position, tensor, compute)) dtype = compute;
  }
  at::Tensor full = dense ? empty_on(plan.device, dtype, shape.sizes, shape.strides)
                          : empty_contiguous_on(plan.device, dtype, shape.sizes);
  copy_tensor(full, tensor, true);
  return full;
}

// The arguments of the functional form with stand-ins in their places.
std::vector<c10::IValue> with_stand_ins(const Plan& plan, const OpState& op, at::ArrayRef<c10::IValue> args,
                                        const std::vector<at::Tensor>& prepared) {
  std::vector<c10::IValue> given = functional_arguments(op, args);
  size_t next = 0;
  for (const Plan::Patch& patch : plan.patches) {
    if (patch.source != Plan::Patch::prepared_tensor) continue;
    const auto place = std::find(op.kernel_args.begin(), op.kernel_args.end(), int(patch.arg));
    c10::IValue& value = given[size_t(place - op.kernel_args.begin())];
    const at::Tensor& stand_in = prepared[next++];
    if (patch.element < 0) {
      value = stand_in;
      continue;
    }
    int element = 0;
    value = map_tensors(value, [&](const at::Tensor& t) { return element++ == patch.element ? stand_in : t; });
  }
  return given;
}

// Leaves out the arguments that the function has no parameters for. Empty text: done; else which one cannot be.
std::string drop_defaults(const Wrapper& wrapper, const c10::FunctionSchema& schema, std::vector<c10::IValue>& args) {
  while (wrapper.parameters >= 0 && args.size() > size_t(wrapper.parameters)) {
    const c10::Argument& argument = schema.arguments()[args.size() - 1];
    const auto& fallback = argument.default_value();
    const c10::IValue& value = args.back();
    const bool absent = value.isNone() || (value.isTensor() && !value.toTensor().defined());
    if (!fallback.has_value() || !(absent ? fallback->isNone() : !value.isTensor() && value == *fallback)) {
      return wrapper.name + " takes " + std::to_string(wrapper.parameters) + " arguments, and " + argument.name() +
             (fallback.has_value() ? " is not at its default" : " is one more");
    }
    args.pop_back();
  }
  return "";
}

// The device runs it as it runs a kernel, so that a lost one refuses, and a profiler sees the work.
using Body = std::function<bool()>;
uba_status run_body(void*, const uba_call*, int64_t tag) {
  return (*reinterpret_cast<const Body*>(tag))() ? UBA_OK : UBA_NOT_SUPPORTED;
}

bool run_on_device(const Plan& plan, const Body& body) {
  uba_call call{};
  call.header = UBA_HEADER(uba_call);
  call.op = plan.functional_name.c_str();
  call.stream = runtime::current_stream(plan.device);
  return plan.entry->device->run(&run_body, call, reinterpret_cast<int64_t>(&body), plan.kernel_name) == UBA_OK;
}

}  // namespace

void set_call_wrapper(CallWrapper call) { g_call_wrapper = call; }

std::shared_ptr<const AuthorsForm> authors_form(const std::string& declared, const OpState& op) {
  const c10::OperatorHandle& reaches = op.functional.has_value() ? *op.functional : op.handle;
  std::vector<const c10::Argument*> have;
  for (const c10::Argument& argument : reaches.schema().arguments()) {
    if (!argument.is_out()) have.push_back(&argument);
  }
  const std::string base = declared.substr(0, declared.find('.'));
  if (base != op.schema.name && base != op.schema.name + "_") {
    // Of several overloads the one of which most comes from the call: conv2d with numbers as padding, not with a word.
    std::shared_ptr<const AuthorsForm> best;
    int64_t fewest = 0;
    for (const c10::OperatorHandle& candidate : overloads_of(base)) {
      if (candidate.schema().is_mutable()) continue;
      if (candidate.schema().returns().size() != reaches.schema().returns().size()) continue;
      auto from = find_arguments(candidate.schema(), have);
      if (!from) continue;
      const int64_t defaults = std::count(from->begin(), from->end(), -1);
      if (best != nullptr && defaults >= fewest) continue;
      fewest = defaults;
      best = std::make_shared<const AuthorsForm>(AuthorsForm{candidate, base, std::move(*from)});
    }
    if (best != nullptr) return best;
  }
  AuthorsForm same{reaches, op.display, {}};
  for (size_t i = 0; i < have.size(); i++) same.from.push_back(int(i));
  return std::make_shared<const AuthorsForm>(std::move(same));
}

bool run_wrapper(const Plan& plan, OpState& op, torch::jit::Stack* stack, const std::vector<at::Tensor>& prepared) {
  const CallWrapper call = g_call_wrapper.load();
  const Wrapper& wrapper = *plan.handler->wrapper;
  const AuthorsForm& form = *plan.form;
  const Callee callee{form.name, "its kernel", wrapper.name, plan};
  const at::ArrayRef<c10::IValue> args = torch::jit::last(*stack, op.arg_count);
  std::vector<c10::IValue> given = with_stand_ins(plan, op, args, prepared);
  if (op.pointwise && plan.outputs.size() == 1) {
    for (size_t k = 0; k < given.size(); k++) {
      if (!given[k].isTensor() || !given[k].toTensor().defined()) continue;
      given[k] = aligned_with(plan, op, args, op.kernel_args[k], given[k].toTensor());
    }
  }
  for (c10::IValue& value : given) value = map_tensors(value, lend);
  const c10::FunctionSchema& schema = form.op.schema();
  std::vector<c10::IValue> passed;
  for (size_t i = 0; i < form.from.size(); i++) {
    const int from = form.from[i];
    passed.push_back(from >= 0 ? given[size_t(from)] : *schema.arguments()[i].default_value());
  }
  if (const std::string refusal = drop_defaults(wrapper, schema, passed); !refusal.empty()) {
    host_table()->set_error(0, refusal.c_str());
    return false;
  }
  std::vector<c10::IValue> returned;
  {
    const Entered entered(op, callee);
    plan.entry->synchronize(runtime::current_stream(plan.device));  // the function reads memory as it is now
    const c10::DeviceGuard on_device(c10::Device(kDevice, c10::DeviceIndex(plan.device)));
    const at::NoGradGuard no_grad;
    const c10::OperatorHandle& reaches = op.functional.has_value() ? *op.functional : op.handle;
    const bool done =
        run_on_device(plan, [&] { return call(wrapper, callee, schema, passed, reaches.schema(), &returned); });
    if (!done) return false;
  }
  Results results(callee, given);
  for (c10::IValue& value : returned) value = results.accept(value);
  TORCH_CHECK(results.tensors.size() == plan.outputs.size(), callee.text(), " returned ", results.tensors.size(),
              " tensors, expected ", plan.outputs.size());
  for (size_t i = 0; i < plan.outputs.size(); i++) {
    const Plan::Output& output = plan.outputs[i];
    at::Tensor& result = results.tensors[i];
    if (output.result.dtype != c10::ScalarType::Undefined) {
      const at::Tensor wanted = empty_on(plan.device, output.result.dtype, output.result.sizes, output.result.strides);
      deliver(wanted, result);
      result = wanted;
    }
    if (output.written_arg < 0) continue;
    const at::Tensor target = args[size_t(output.written_arg)].toTensor();
    deliver(target, result);
    result = target;
  }
  torch::jit::drop(*stack, op.arg_count);
  for (at::Tensor& result : results.tensors) stack->emplace_back(std::move(result));
  return true;
}

}  // namespace torchfl
