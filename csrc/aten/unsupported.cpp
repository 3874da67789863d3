// unsupported.cpp: see unsupported.h.
#include "unsupported.h"
#include "values.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/util/FunctionRef.h>

namespace torchfl {
namespace {

enum class NumberKind { whole, real, complex };
NumberKind kind_of(int32_t dtype) {
  const c10::ScalarType type = *from_uba_dtype(dtype);
  return c10::isComplexType(type)    ? NumberKind::complex
         : c10::isFloatingType(type) ? NumberKind::real
                                     : NumberKind::whole;
}

// The dtype of the first tensor of ours; 0 if there is none.
int32_t dtype_of(at::ArrayRef<c10::IValue> args) {
  for (const c10::IValue& arg : args) {
    if (arg.isTensor() && arg.toTensor().defined()) return to_uba_dtype(arg.toTensor().scalar_type());
    if (!arg.isTensorList()) continue;
    for (const c10::IValue& element : arg.toListRef()) {
      if (element.toTensor().defined()) return to_uba_dtype(element.toTensor().scalar_type());
    }
  }
  return 0;
}

using Change = c10::function_ref<at::Tensor(const at::Tensor&)>;  // gives a meta tensor

c10::IValue changed(const c10::IValue& value, Change change) {
  return map_tensors(value, [&](const at::Tensor& tensor) {
    return tensor.defined() && tensor.device().type() == kDevice ? change(tensor) : tensor;
  });
}

// Whether the chip itself runs the call, once its tensors are changed so.
bool runs_with(OpState& op, at::ArrayRef<c10::IValue> args, int device, Change change) {
  torch::jit::Stack stack;
  for (const c10::IValue& value : args) stack.push_back(changed(value, change));
  try {
    const std::string path = explain(op, std::move(stack), device).path;
    return path == "native" || path == "composed";
  } catch (const c10::Error&) {  // PyTorch refuses such a call
    return false;
  }
}

std::string quoted(DtypeSet set) {
  std::string list;
  for (int32_t d = 1; d < 32; d++) {
    if ((set & dtype_bit(d)) != 0) list += (list.empty() ? "'" : ", '") + std::string(dtype_name(d)) + "'";
  }
  return list;
}

// Of the accepted dtypes of its kind, the widest with which the call runs.
std::string cast_that_helps(OpState& op, at::ArrayRef<c10::IValue> args, int device, int32_t dtype, DtypeSet accepted) {
  std::vector<int32_t> candidates;
  for (int32_t d = 1; d < 32; d++) {
    if ((accepted & dtype_bit(d)) != 0 && kind_of(d) == kind_of(dtype)) candidates.push_back(d);
  }
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](int32_t a, int32_t b) { return dtype_size(a) > dtype_size(b); });
  for (int32_t candidate : candidates) {
    const c10::ScalarType from = *from_uba_dtype(dtype), to = *from_uba_dtype(candidate);
    auto cast = [&](const at::Tensor& tensor) {
      const c10::ScalarType type = tensor.scalar_type() == from ? to : tensor.scalar_type();
      return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().dtype(type).device(c10::kMeta));
    };
    if (runs_with(op, args, device, cast)) return std::string("cast input to torch.") + dtype_name(candidate);
  }
  return "";
}

std::string fix_for(OpState& op, at::ArrayRef<c10::IValue> args, int device, int32_t dtype, DtypeSet accepted) {
  std::string fix;
  if (dtype != 0 && (accepted & dtype_bit(dtype)) == 0) fix = cast_that_helps(op, args, device, dtype, accepted);
  if (!fix.empty()) return fix;
  bool strided = false;
  auto packed = [&](const at::Tensor& tensor) {
    strided |= !tensor.is_contiguous();
    return at::empty(tensor.sizes(), tensor.options().device(c10::kMeta));
  };
  if (runs_with(op, args, device, packed) && strided) return "call .contiguous() on its inputs";
  return "call it on the CPU (.cpu()), or give the descriptor a kernel or the instructions for it";
}

}  // namespace

std::string unsupported_text(OpState& op, at::ArrayRef<c10::IValue> args, const Plan& plan, const std::string& reason) {
  thread_local bool asking = false;  // what is tried out for a suggestion needs no text of its own
  if (asking) return reason;
  asking = true;
  struct Done {
    ~Done() { asking = false; }
  } done;
  const Chip& chip = plan.entry->chip->chip;
  const int32_t dtype = dtype_of(args);
  DtypeSet accepted = 0;
  for (const OpPath& row : chip.ops) {
    if (row.op != op.schema.name) continue;
    for (const auto& [argument, set] : row.dtypes) accepted |= argument == "*" ? set : 0;
  }
  const std::string device = chip.variant.empty() ? plan.entry->label : chip.device_type + ":" + chip.variant;
  std::string text = "Op '" + op.display + "' not supported on device '" + device + "'";
  if (dtype != 0) text += std::string(" with dtype '") + dtype_name(dtype) + "'";
  const std::string fix = fix_for(op, args, plan.device, dtype, accepted);
  if (dtype != 0 && accepted != 0 && (accepted & dtype_bit(dtype)) == 0)
    return text + ". Available dtypes: [" + quoted(accepted) + "]. Suggested fix: " + fix + ".";
  return text + ": " + reason + ". Suggested fix: " + fix + ".";
}

void refuse_call(Plan& plan, Decision& decision, const char* unit, std::string sentence) {
  decision.path = Path::error;
  decision.reason = sentence;
  decision.attempts = {{Path::native, unit, false, sentence, "", 0}, {Path::error, "error", true, "", "", 0}};
  plan.kind = Plan::Kind::error;
  plan.firewall = true;
  plan.error = std::move(sentence);
}

void raise_refusal(const Plan& plan) {
  if (!plan.firewall) stats::unsupported(plan.error);
  TORCH_CHECK_NOT_IMPLEMENTED(false, plan.error);
}

}  // namespace torchfl
