// function_call.h: what functions of the user's that stand for an operator have in common, be they custom fallbacks
// (custom_route.h) or wrappers of the chip's kernels (wrapper_route.h).
//
// Contract: a function is given arguments without gradients and returns new tensors, on its device or on the CPU. What
// it returns is checked against what PyTorch's operator gives, brought to the device, and has memory and strides of its
// own there. A function that calls its own operator on its device raises instead of never ending.
#pragma once
#include <c10/util/FunctionRef.h>

#include <string>
#include <vector>

#include "plan.h"

namespace torchfl {

// Who is called, for messages: "aten::conv2d on xpu:0: its kernel x1_conv2d".
struct Callee {
  const std::string& op;        // as its author knows the operator
  const char* kind;             // "its kernel", "its fallback"
  const std::string& function;  // by name
  const Plan& plan;
  std::string text() const { return op + " on " + plan.entry->label + ": " + kind + " " + function; }
};

// The call's arguments in the order of its functional form.
std::vector<c10::IValue> functional_arguments(const OpState& op, at::ArrayRef<c10::IValue> args);

void each_tensor(const c10::IValue& value, c10::function_ref<void(const at::Tensor&)> function);

// Lives while a function runs. Raises if this thread is in one for the same operator on the same device.
class Entered {
 public:
  Entered(const OpState& op, const Callee& callee);
  ~Entered();
  Entered(const Entered&) = delete;
};

// Takes over the results of one call.
class Results {
 public:
  // `given`: the arguments, whose memory no result may share.
  Results(const Callee& callee, const std::vector<c10::IValue>& given);

  c10::IValue accept(const c10::IValue& value);
  void check_count() const;

  std::vector<at::Tensor> tensors;  // all of them, in order

 private:
  at::Tensor accept(at::Tensor result);
  at::Tensor own(const at::Tensor& result, size_t index) const;
  const Callee& callee_;
  const Plan& plan_;
  std::vector<at::Tensor> given_;
};

}  // namespace torchfl
