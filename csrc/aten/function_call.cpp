// function_call.cpp: see function_call.h.
#include "function_call.h"

#include <algorithm>

#include "transfer.h"
#include "values.h"

namespace torchfl {
namespace {

// Which functions this thread is in.
struct RunningFunction {
  const std::string* op;
  int device;
};
thread_local std::vector<RunningFunction> t_running_functions;

std::string described(c10::ScalarType dtype, c10::IntArrayRef sizes) {
  return std::string(dtype_name(to_uba_dtype(dtype))) + c10::str(sizes);
}

// Sizes in another order of dimensions than PyTorch's are what a chip's own layout looks like, and no elements what an
// SDK leaves behind that has refused the call.
std::string shape_hint(c10::IntArrayRef returned, c10::IntArrayRef wanted) {
  if (c10::multiply_integers(returned) == 0 && c10::multiply_integers(wanted) != 0)
    return ". Has the SDK refused the call? Look at its status in the function, and throw what it says; or exclude "
           "such "
           "calls by `where` (`constraints`) of the row";
  if (returned.size() != 4 || wanted.size() != 4 || returned == wanted) return "";
  const int64_t nhwc[] = {wanted[0], wanted[2], wanted[3], wanted[1]};
  if (returned != c10::IntArrayRef(nhwc)) return "";
  return ". Tensor layout mismatch: expected NCHW, got NHWC: return result.permute({0, 3, 1, 2})";
}

}  // namespace

std::vector<c10::IValue> functional_arguments(const OpState& op, at::ArrayRef<c10::IValue> args) {
  std::vector<c10::IValue> out;
  for (int position : op.kernel_args) out.push_back(args[size_t(position)]);
  return out;
}

void each_tensor(const c10::IValue& value, c10::function_ref<void(const at::Tensor&)> function) {
  if (value.isTensor()) {
    function(value.toTensor());
  } else if (value.isTensorList()) {
    for (const c10::IValue& element : value.toListRef()) function(element.toTensor());
  }
}

Entered::Entered(const OpState& op, const Callee& callee) {
  for (const RunningFunction& outer : t_running_functions) {
    TORCH_CHECK(outer.device != callee.plan.device || *outer.op != op.schema.name, callee.text(), " calls ",
                op.schema.name,
                " on that device itself, which would never end. Compute it from other operators, or on the CPU "
                "(x.cpu()), or return NotImplemented to have the next path.");
  }
  t_running_functions.push_back({&op.schema.name, callee.plan.device});
}

Entered::~Entered() { t_running_functions.pop_back(); }

Results::Results(const Callee& callee, const std::vector<c10::IValue>& given) : callee_(callee), plan_(callee.plan) {
  for (const c10::IValue& value : given) each_tensor(value, [&](const at::Tensor& t) { given_.push_back(t); });
}

c10::IValue Results::accept(const c10::IValue& value) {
  return map_tensors(value, [this](const at::Tensor& tensor) { return accept(tensor); });
}

void Results::check_count() const {
  TORCH_CHECK(!plan_.shapes_known || tensors.size() == plan_.outputs.size(), callee_.text(), " returned ",
              tensors.size(), " tensors, expected ", plan_.outputs.size());
}

at::Tensor Results::accept(at::Tensor result) {
  const size_t index = tensors.size();
  if (plan_.shapes_known && index < plan_.outputs.size()) {
    const OutputShape& wanted = plan_.outputs[index].shape;
    const bool unwanted = wanted.dtype == c10::ScalarType::Undefined;
    TORCH_CHECK(
        result.defined()
            ? (!unwanted && result.scalar_type() == wanted.dtype && result.sizes() == c10::IntArrayRef(wanted.sizes))
            : unwanted,
        callee_.text(), " returned ", result.defined() ? described(result.scalar_type(), result.sizes()) : "no tensor",
        ", expected ", unwanted ? "none" : described(wanted.dtype, wanted.sizes),
        result.defined() && !unwanted ? shape_hint(result.sizes(), wanted.sizes) : "");
  }
  if (result.defined()) {
    TORCH_CHECK(result.layout() == c10::Layout::Strided, callee_.text(), " returned a tensor of layout ",
                result.layout(), ", which the device does not hold");
    const c10::Device device = result.device();
    TORCH_CHECK(device.is_cpu() || (device.type() == kDevice && device.index() == plan_.device), callee_.text(),
                " returned a tensor on ", device.type() == kDevice ? runtime::label(device.index()) : device.str(),
                ", expected one on ", plan_.entry->label, " or on the CPU");
    if (device.is_cpu()) result = to_device(result.detach().resolve_conj().resolve_neg(), plan_.device);
    result = own(result, index);
  }
  tensors.push_back(result);
  return result;
}

// A new value has memory of its own, in the strides that PyTorch would have given it.
at::Tensor Results::own(const at::Tensor& result, size_t index) const {
  const bool known = plan_.shapes_known && index < plan_.outputs.size();
  bool same = true;
  for (int64_t d = 0; known && d < result.dim(); d++)
    same &= result.size(d) <= 1 || result.stride(d) == plan_.outputs[index].shape.strides[size_t(d)];
  for (const at::Tensor& other : given_) same &= !other.defined() || !result.is_alias_of(other);
  for (const at::Tensor& other : tensors) same &= !other.defined() || !result.is_alias_of(other);
  if (same) return result.requires_grad() ? result.detach() : result;
  at::Tensor copy = known ? empty_on(plan_.device, result.scalar_type(), plan_.outputs[index].shape.sizes,
                                     plan_.outputs[index].shape.strides)
                          : empty_on(plan_.device, result.scalar_type(), result.sizes(),
                                     result.contiguous(result.suggest_memory_format()).strides());
  copy_tensor(copy, result, true);
  return copy;
}

}  // namespace torchfl
