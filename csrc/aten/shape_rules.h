// shape_rules.h: what an operator's outputs look like, before it runs.
//
// Contract: by PyTorch's own meta kernels, and by rules of ours for the operators that only out-of-tree backends have
// and for which PyTorch has none. Errors in the arguments surface here as PyTorch words them.
#pragma once
#include <ATen/core/stack.h>

#include <optional>
#include <vector>

#include "router.h"

namespace torchfl {

struct OutputShape {
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // Undefined: an output that is not wanted
  c10::SmallVector<int64_t, 6> sizes, strides;
};

// nullopt: PyTorch has no rule for this operator.
std::optional<std::vector<OutputShape>> infer_outputs(const c10::OperatorHandle& op, const std::string& base,
                                                      at::ArrayRef<c10::IValue> args);

// Whether PyTorch wants the operator's tensors in one dtype, which its shape function does not look at.
bool wants_one_dtype(const std::string& base);

// The value with meta tensors in the place of ours: sizes, strides and dtypes, no memory.
c10::IValue meta_value(const c10::IValue& value);

// The dtype that a mixed call computes in: for elementwise operators by PyTorch's promotion; for convolution, linear
// and normalisation that of the input (weights follow). Undefined: the operator mixes no dtypes.
c10::ScalarType compute_dtype(const OpState& op, at::ArrayRef<c10::IValue> args, c10::ScalarType functional_result);

// Whether argument `position` takes part in that (a condition, an index or a target does not).
bool follows_compute_dtype(const OpState& op, int position, const at::Tensor& tensor, c10::ScalarType compute);

}  // namespace torchfl
