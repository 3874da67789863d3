// custom_route.h: operators that run in a function which the descriptor (fallback.ops) or the user
// (torchfl.register_fallback) names, in the place of a program or the CPU. Kernels of the adapter that fallback.ops
// names are rows like others: the core routes them.
//
// Contract: the function gets the arguments of the operator's functional form and gives new tensors; the in-place and
// out= forms write them to their arguments here. What it returns is checked against PyTorch's shape function.
#pragma once
#include <string>

#include "plan.h"

namespace torchfl {

// The function for this operator on this device: the registered one, else the descriptor's; "" = none.
std::string custom_function(const OpState& op, int device);

// Makes built.plan call it. False: there is none, or it has refused (see `why`) and the path behind it is open.
bool custom_plan(OpState& op, at::ArrayRef<c10::IValue> args, const Refused& refused, const std::string& reason,
                 bool announce, BuiltPlan& built, std::string* why);

// False: it does not serve this call, and nothing was written.
bool run_custom(const Plan& plan, OpState& op, torch::jit::Stack* stack);

// Registers `function` for an operator ("aten::foo", or with its overload) on the device (-1: on all); "" takes it
// back. Raises ValueError for an operator that never reaches the route.
void register_custom(const std::string& op, int device, const std::string& function);
bool is_custom(const std::string& base);  // whether a registered function waits for it

// Calls a function by name. `functional`: the form that `args` belong to. False: it does not serve the call.
using CallCustom = bool (*)(const std::string& function, const c10::OperatorHandle& functional,
                            const std::vector<c10::IValue>& args, int device, std::vector<c10::IValue>* results);
void set_call_custom(CallCustom call);

}  // namespace torchfl
