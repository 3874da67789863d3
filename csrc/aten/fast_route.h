// fast_route.h: unboxed kernels for elementwise operators of the commonest forms; see fast_route.cpp.
#pragma once
#include <torch/library.h>

#include <optional>

#include "router.h"

namespace torchfl {

// A kernel that takes the arguments as they are, or nothing when the operator's form is not among them.
std::optional<torch::CppFunction> fast_kernel(OpState& op);

}  // namespace torchfl
