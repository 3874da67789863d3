// random_checks.h: what PyTorch's CPU refuses of a call that draws random numbers.
//
// Contract: looked at before the call has a route, and at every call: a plan is kept for the calls that come after it,
// so it cannot answer for the numbers of this one. Raises PyTorch's own errors. Nothing is drawn, and nothing is read
// back from a device: values in tensors (probabilities, deviations) are not looked at.
#pragma once
#include <ATen/core/stack.h>
#include <c10/util/ArrayRef.h>

#include <string>

namespace torchfl {

struct OpState;

using RandomCheck = void (*)(const OpState& op, at::ArrayRef<c10::IValue> args);

// The check of an operator (any of its forms, by the name in its schema), or NULL.
RandomCheck random_check(const std::string& name);

// Whether the generator, if one is given, is of the device of the call's tensors; then the operator's own check.
void check_random_call(const OpState& op, at::ArrayRef<c10::IValue> args);

}  // namespace torchfl
