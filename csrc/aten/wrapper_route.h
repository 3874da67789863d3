// wrapper_route.h: kernels that are functions of a pybind module, by the names that the descriptor's rows give them.
//
// Contract: a row whose kernel is such a function is a row like any other: the core routes it, and what a call needs
// converted is converted before. The function gets the arguments of the operator that its row names, in schema order
// (for aten::conv2d seven, though a backend is handed aten::convolution with nine); where that operator's arguments
// cannot be had from the call, those of the one that reaches the backend. Tensors are on the device, whose memory the
// CPU can read, and only lent: they may not be written or kept. Those of a pointwise operator come in one shape and
// one order of memory. What it returns is as function_call.h says.
//
// A function that takes fewer parameters is given those; a call whose further arguments are not at their defaults
// takes the next path, as does one that raises NotImplementedError. Every other exception reaches the caller with the
// names of operator, chip and function.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "function_call.h"

namespace torchfl {

struct Wrapper {
  std::string name;                // "x1_conv2d"
  std::string source;              // file of its module
  void* callable = nullptr;        // the Python function, never let go of
  int parameters = -1;             // that it takes; -1: not known
  std::vector<bool> takes_tensor;  // by parameter: a tensor and never None
};

// A call in the words of the row's author.
struct AuthorsForm {
  c10::OperatorHandle op;
  std::string name;       // "aten::conv2d"
  std::vector<int> from;  // by argument: its place in the form that reaches the backend; -1: at its default
};
std::shared_ptr<const AuthorsForm> authors_form(const std::string& declared, const OpState& op);

// Calls it under the GIL. False: it does not serve the call, and why is the SDK's message.
using CallWrapper = bool (*)(const Wrapper& wrapper, const Callee& callee, const c10::FunctionSchema& schema,
                             const std::vector<c10::IValue>& args, const c10::FunctionSchema& returns,
                             std::vector<c10::IValue>* results);
void set_call_wrapper(CallWrapper call);

// Runs a plan whose kernel is a wrapper; `prepared` are its stand-ins. False: not supported, as for run_plan.
bool run_wrapper(const Plan& plan, OpState& op, torch::jit::Stack* stack, const std::vector<at::Tensor>& prepared);

}  // namespace torchfl
