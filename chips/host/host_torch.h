// host_torch.h: what the two halves of the adapter share: tensors of the call as CPU tensors, without a copy.
#pragma once
#include <ATen/ATen.h>

#include "torchfl/uba.h"

namespace host {

c10::ScalarType scalar_type(int32_t dtype);

// CPU tensors over the memory of one call. They are this thread's, used again from call to call: nobody may hold one when
// the Lent is gone (who does has it to himself, over memory that may be another's).
class Lent {
 public:
  Lent();
  ~Lent();
  Lent(const Lent&) = delete;
  at::Tensor operator()(const uba_tensor& tensor) const;

 private:
  size_t first_;
};

}  // namespace host
