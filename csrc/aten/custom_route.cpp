// custom_route.cpp: see custom_route.h.
#include "custom_route.h"

#include <ATen/native/Resize.h>
#include <c10/core/DeviceGuard.h>

#include <mutex>

#include "function_call.h"
#include "transfer.h"
#include "values.h"

namespace torchfl {
namespace {

std::mutex g_mutex;
auto* g_registered = new std::map<std::string, std::map<int, std::string>>();  // operator -> device -> function
std::atomic<CallCustom> g_call_custom{nullptr};

std::string registered(const std::string& op, int device) {
  auto found = g_registered->find(op);
  if (found == g_registered->end()) return "";
  auto own = found->second.find(device);
  if (own == found->second.end()) own = found->second.find(-1);
  return own == found->second.end() ? "" : own->second;
}

// The form that a function serves: without written arguments, where PyTorch has one.
const c10::OperatorHandle& served_form(const OpState& op) {
  return op.functional.has_value() ? *op.functional : op.handle;
}

// Functions know nothing of autograd: it is above them.
c10::IValue without_grad(const c10::IValue& value) {
  return map_tensors(value, [](const at::Tensor& t) { return t.defined() && t.requires_grad() ? t.detach() : t; });
}

// What PyTorch says of the results beforehand. Nothing where it has no shape function, or the data says the shape.
std::optional<std::vector<OutputShape>> expected(const c10::OperatorHandle& form, const std::string& base,
                                                 const std::vector<c10::IValue>& args) {
  if (form.hasTag(at::Tag::dynamic_output_shape) || form.hasTag(at::Tag::data_dependent_output)) return std::nullopt;
  try {
    return infer_outputs(form, base, args);
  } catch (const c10::NotImplementedError&) {
    return std::nullopt;
  }
}

// The in-place and out= forms: each written tensor receives its result.
void write(const OpState& op, at::ArrayRef<c10::IValue> args, const std::vector<at::Tensor>& results,
           const Plan& plan) {
  std::vector<std::pair<int, at::Tensor>> targets;
  for (int position : op.written)
    each_tensor(args[size_t(position)], [&](const at::Tensor& t) { targets.emplace_back(position, t); });
  TORCH_CHECK_NOT_IMPLEMENTED(results.size() == targets.size(), op.display, " on ", plan.entry->label,
                              ": its fallback ", plan.function, " gives ", results.size(),
                              " tensors, and this form writes ", targets.size(),
                              ". Call the form that returns new tensors.");
  for (size_t i = 0; i < targets.size(); i++) {
    const auto& [position, target] = targets[i];
    const at::Tensor& result = results[i];
    check_written_dtype(op, position, result.scalar_type(), target.scalar_type());
    if (op.is_out[size_t(position)]) {
      at::native::resize_output(target, result.sizes());  // warns as PyTorch does
    } else {
      TORCH_CHECK(result.sizes() == target.sizes(), "output with shape ", target.sizes(),
                  " doesn't match the broadcast shape ", result.sizes());
    }
    copy_tensor(target, result, true);
  }
}

}  // namespace

void set_call_custom(CallCustom call) { g_call_custom = call; }

std::string custom_function(const OpState& op, int device) {
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    if (!g_registered->empty()) {
      std::string own = registered(op.schema.name + "." + op.schema.overload, device);
      if (own.empty()) own = registered(op.schema.name, device);
      if (!own.empty()) return own;
    }
  }
  return runtime::device_unopened(device).chip->routes.function_of(op.schema);
}

bool is_custom(const std::string& base) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto of = [&](const std::string& name) {
    auto found = g_registered->lower_bound(name);
    return found != g_registered->end() && (found->first == name || found->first.rfind(name + ".", 0) == 0);
  };
  return !g_registered->empty() && (of(base) || (base.back() == '_' && of(base.substr(0, base.size() - 1))));
}

void register_custom(const std::string& op, int device, const std::string& function) {
  const size_t dot = op.find('.');
  const std::string base = op.substr(0, dot);
  bool exists = false, reaches = false, view = false, ours = false;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    if (name.name != base && name.name != base + "_") continue;
    const auto handle = c10::Dispatcher::singleton().findSchema(name);
    if (!handle.has_value()) continue;
    exists = true;
    if (handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    reaches = true;
    ours |= has_own_kernel(*handle);
    view |= op_state(*handle).is_view;
  }
  TORCH_CHECK_VALUE(exists, "PyTorch has no such operator: ", op);
  TORCH_CHECK_VALUE(reaches, op,
                    " never reaches a chip: PyTorch takes it apart before. Register a function for one of its parts, "
                    "which `torchfl explain ",
                    base, " --device CHIP` names.");
  TORCH_CHECK_VALUE(!view, op,
                    " is a view: a function would break its aliasing. Register one for what computes on it.");
  TORCH_CHECK_VALUE(!ours, op,
                    " moves or fills memory, which the engine does itself, for every chip alike. Register a function "
                    "for the operator that computes the values.");
  {
    std::lock_guard<std::mutex> lock(g_mutex);
    if (function.empty()) {
      auto found = g_registered->find(op);
      if (found != g_registered->end() && (found->second.erase(device), found->second.empty()))
        g_registered->erase(found);
    } else {
      (*g_registered)[op][device] = function;
    }
  }
  register_routes();  // which forgets the plans, too
}

bool custom_plan(OpState& op, at::ArrayRef<c10::IValue> args, const Refused& refused, const std::string& reason,
                 bool announce, BuiltPlan& built, std::string* why) {
  Plan& plan = *built.plan;
  Decision& decision = built.decision;
  const std::string function = custom_function(op, plan.device);
  if (function.empty()) return false;
  std::vector<Attempt>& attempts = decision.attempts;
  attempts.erase(std::remove_if(attempts.begin(), attempts.end(),
                                [](const Attempt& attempt) { return attempt.path > Path::composed; }),
                 attempts.end());
  const auto refusal =
      std::find_if(refused.begin(), refused.end(), [](const auto& entry) { return entry.first == nullptr; });
  if (refusal != refused.end()) {
    *why = refusal->second;
    attempts.push_back({Path::custom, function, false, *why, "", 0});
    const bool forbidden = plan.entry->chip->chip.fallback_default == "error";
    attempts.push_back({forbidden ? Path::error : Path::cpu, forbidden ? "error" : "cpu", true, "", "", 0});
    if (!forbidden) return false;
    decision.path = Path::error;
    plan.kind = Plan::Kind::error;
    plan.error = "Op '" + op.display + "' not supported on device '" + plan.entry->label + "': " + reason + "; " +
                 *why + ". Suggested fix: call it on the CPU (.cpu()).";
    return true;
  }
  attempts.push_back({Path::custom, function, true, "", "", 0});
  decision.path = Path::custom;
  decision.row = nullptr;
  decision.reason = reason;
  plan.kind = Plan::Kind::custom;
  plan.function = function;
  plan.patches.clear();
  plan.outputs.clear();
  const c10::OperatorHandle& form = served_form(op);
  if (!form.schema().is_mutable()) {
    if (const auto shapes = expected(form, op.schema.name, functional_arguments(op, args))) {
      plan.shapes_known = true;
      for (const OutputShape& shape : *shapes) {
        plan.outputs.emplace_back();
        plan.outputs.back().shape = shape;
      }
    }
  }
  bool created = false;
  plan.counters = &stats::counters(plan.entry->label, op.display, path_name(Path::custom), function, reason, &created);
  if (announce && created)
    stats::log(1, op.display + " on " + plan.entry->label + " runs in its fallback " + function + ": " + reason);
  if (announce && stats::debug_lines()) {
    std::fprintf(stderr, "[SME] Fallback to %s: %s (%s)\n", function.c_str(), op.display.c_str(), reason.c_str());
  }
  return true;
}

bool run_custom(const Plan& plan, OpState& op, torch::jit::Stack* stack) {
  const CallCustom call = g_call_custom.load();
  TORCH_CHECK(call != nullptr, op.display, ": functions are called from Python, which has not been set up");
  const at::ArrayRef<c10::IValue> args = torch::jit::last(*stack, op.arg_count);
  const uint64_t before = bytes_moved();
  std::vector<c10::IValue> given = functional_arguments(op, args);
  for (c10::IValue& value : given) value = without_grad(value);
  std::vector<c10::IValue> returned;
  const Callee callee{op.display, "its fallback", plan.function, plan};
  const Entered entered(op, callee);
  {
    Timer timer(*plan.counters, plan.device);
    const c10::DeviceGuard on_device(c10::Device(kDevice, c10::DeviceIndex(plan.device)));
    const at::NoGradGuard no_grad;
    if (!call(plan.function, served_form(op), given, plan.device, &returned)) {
      timer.take_back();
      return false;
    }
  }
  torch::jit::Stack out;
  if (op.written.empty() || op.functional.has_value()) {
    Results results(callee, given);
    for (c10::IValue& value : returned) value = results.accept(value);
    results.check_count();
    if (!op.written.empty()) write(op, args, results.tensors, plan);
  }
  for (size_t i = 0; i < op.returns.size(); i++) {
    const int source = op.returns[i];
    if (source >= 0) {
      out.push_back(args[size_t(source)]);
    } else {
      TORCH_CHECK(i < returned.size(), op.display, " on ", plan.entry->label, ": its fallback ", plan.function,
                  " returned ", returned.size(), " values, expected ", op.returns.size());
      out.push_back(returned[i]);
    }
  }
  torch::jit::drop(*stack, op.arg_count);
  for (c10::IValue& value : out) stack->push_back(std::move(value));
  plan.counters->host_bytes.fetch_add(bytes_moved() - before, std::memory_order_relaxed);
  return true;
}

}  // namespace torchfl
