// autocast.cpp: see autocast.h.
#include "autocast.h"

#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include <array>
#include <atomic>

#include "runtime.h"

namespace torchfl::autocast {
namespace {

enum class Policy : int8_t { none, lower_precision, fp32, fp32_set_opt_dtype, promote };

// An operator's, for each device: unlike chips have lists of their own.
using Policies = std::array<std::atomic<Policy>, kMaxDevices>;

bool eligible(const at::Tensor& tensor) {
  return tensor.defined() && at::autocast::is_autocast_eligible(tensor, kDevice) && tensor.scalar_type() != at::kDouble;
}

template <class F>
void for_each_tensor(const c10::IValue& value, const F& f) {
  if (value.isTensor()) {
    f(value.toTensor());
  } else if (value.isTensorList() || value.isOptionalTensorList()) {
    for (const c10::IValue& element : value.toListRef()) {
      if (element.isTensor()) f(element.toTensor());
    }
  }
}

c10::IValue cast(const c10::IValue& value, at::ScalarType to) {
  if (value.isTensor()) return at::autocast::cached_cast(to, value.toTensor(), kDevice);
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& element : value.toListRef())
      list.push_back(at::autocast::cached_cast(to, element.toTensor(), kDevice));
    return list;
  }
  return value;
}

struct AutocastKernel final : c10::OperatorKernel {
  explicit AutocastKernel(const Policies& kernel_policies) : policies(kernel_policies) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
    const auto& schema_args = op.schema().arguments();
    const size_t base = stack->size() - schema_args.size();
    int device = -1;
    for (size_t i = 0; i < schema_args.size() && device < 0; i++) {
      for_each_tensor((*stack)[base + i], [&](const at::Tensor& tensor) {
        if (device < 0 && tensor.defined() && tensor.device().type() == kDevice) device = tensor.device().index();
      });
    }
    const Policy policy = device < 0 ? Policy::none : policies[size_t(device)].load(std::memory_order_relaxed);
    if (policy == Policy::none) {
      op.callBoxed(*stack);
      return;
    }
    if (policy == Policy::fp32_set_opt_dtype) {
      // As torch: the result's dtype is set where the caller did not, and the input stays as it is.
      const c10::IValue& first = (*stack)[base];
      if (first.isTensor() && eligible(first.toTensor())) {
        for (size_t i = 0; i < schema_args.size(); i++) {
          if (schema_args[i].name() == "dtype" && (*stack)[base + i].isNone()) (*stack)[base + i] = at::kFloat;
        }
      }
    } else {
      at::ScalarType to = at::kFloat;
      if (policy != Policy::fp32) {
        const at::ScalarType lower = at::autocast::get_autocast_dtype(kDevice);
        to = lower;
        if (policy == Policy::promote) {
          for (size_t i = 0; i < schema_args.size(); i++) {
            for_each_tensor((*stack)[base + i], [&](const at::Tensor& tensor) {
              if (eligible(tensor)) to = c10::promoteTypes(to, tensor.scalar_type());
            });
          }
        }
      }
      for (size_t i = 0; i < schema_args.size(); i++) (*stack)[base + i] = cast((*stack)[base + i], to);
    }
    op.callBoxed(*stack);
  }
  const Policies& policies;
};

std::string full_name(const char* op, const char* overload = "") {
  return *overload != '\0' ? std::string(op) + "." + overload : std::string(op);
}

}  // namespace

std::map<std::string, std::vector<std::string>> default_lists() {
  std::map<std::string, std::vector<std::string>> lists;
#define TORCHFL_PICK(_1, _2, NAME, ...) NAME
#define TORCHFL_NAME1(OP) out.push_back(full_name(#OP));
#define TORCHFL_NAME2(OP, OVERLOAD) out.push_back(full_name(#OP, #OVERLOAD));
#define TORCHFL_NAME(...) TORCHFL_PICK(__VA_ARGS__, TORCHFL_NAME2, TORCHFL_NAME1, )(__VA_ARGS__)
  {
    auto& out = lists["lower_precision"];
    AT_FORALL_LOWER_PRECISION_FP(TORCHFL_NAME)
  }
  {
    auto& out = lists["fp32"];
    AT_FORALL_FP32(TORCHFL_NAME)
    // Where torch.cuda passes a result dtype to another overload; casting the input gives the same numbers.
    for (const char* norm : {"norm.Scalar", "norm.ScalarOpt_dim", "norm.names_ScalarOpt_dim"}) out.emplace_back(norm);
  }
  {
    auto& out = lists["fp32_set_opt_dtype"];
    AT_FORALL_FP32_SET_OPT_DTYPE(TORCHFL_NAME)
  }
  {
    auto& out = lists["promote"];
    AT_FORALL_PROMOTE(TORCHFL_NAME)
  }
#undef TORCHFL_NAME
#undef TORCHFL_NAME1
#undef TORCHFL_NAME2
#undef TORCHFL_PICK
  return lists;
}

void install(const std::map<std::string, std::vector<std::string>>& lists, int first_device, int count) {
  static auto* fallthrough = [] {
    auto* made =
        new torch::Library(torch::Library::IMPL, "_", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
    made->fallback(torch::CppFunction::makeFallthrough());
    return made;
  }();
  (void)fallthrough;
  static auto* table = new std::map<std::string, std::unique_ptr<Policies>>();  // kernels refer to it
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::AutocastPrivateUse1, __FILE__, __LINE__);
  const std::pair<const char*, Policy> kPolicies[] = {{"lower_precision", Policy::lower_precision},
                                                      {"fp32", Policy::fp32},
                                                      {"fp32_set_opt_dtype", Policy::fp32_set_opt_dtype},
                                                      {"promote", Policy::promote}};
  for (const auto& [name, policy] : kPolicies) {
    auto found = lists.find(name);
    if (found == lists.end()) continue;
    for (const std::string& op : found->second) {
      const size_t dot = op.find('.');
      const std::string base = "aten::" + op.substr(0, dot),
                        overload = dot == std::string::npos ? "" : op.substr(dot + 1);
      if (!c10::Dispatcher::singleton().findSchema({base.c_str(), overload.c_str()}).has_value()) continue;
      std::unique_ptr<Policies>& policies = (*table)[op];
      if (policies == nullptr) {
        policies = std::make_unique<Policies>();
        for (auto& of_device : *policies) of_device.store(Policy::none, std::memory_order_relaxed);
        library->impl(op.c_str(),
                      torch::CppFunction::makeFromBoxedFunctor(std::make_unique<AutocastKernel>(*policies)));
      }
      for (int i = first_device; i < first_device + count; i++)
        (*policies)[size_t(i)].store(policy, std::memory_order_relaxed);
    }
  }
}

}  // namespace torchfl::autocast
