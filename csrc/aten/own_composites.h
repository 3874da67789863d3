// own_composites.h: operators that this backend takes apart itself, where PyTorch has no composite kernel or an unfit
// one.
//
// Contract: a chip that maps such an operator runs it; for every other call the kernel here stands in PyTorch's
// composite's place: its parts are routed one by one, and it is counted and explained as "composite".
#pragma once
#include <ATen/core/boxing/KernelFunction.h>
#include <ATen/core/ivalue.h>

#include <string>

#include "route.h"

namespace torchfl {

// By operator name without overload ("aten::native_group_norm"); NULL if there is none. Functional and in-place forms.
const c10::KernelFunction* own_composite(const std::string& name);

// Whether it serves this call on a chip with these routes; the arguments are those of the schema.
bool own_composite_serves(const std::string& name, at::ArrayRef<c10::IValue> args, const RouteTable& routes);

// Those of counted_composites.cpp, likewise.
const c10::KernelFunction* counted_composite(const std::string& name);

}  // namespace torchfl
