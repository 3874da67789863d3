// own_composites.h: operators that this backend takes apart itself, where PyTorch has no composite kernel or an unfit
// one.
//
// Contract: a chip that maps such an operator runs it; for every other call the kernel here stands in PyTorch's
// composite's place: its parts are routed one by one, and it is counted and explained as "composite".
#pragma once
#include <ATen/core/boxing/KernelFunction.h>

#include <string>

namespace torchfl {

// By operator name without overload ("aten::native_group_norm"); NULL if there is none. The functional form only.
const c10::KernelFunction* own_composite(const std::string& name);

}  // namespace torchfl
