// signature.h: the key of a call: everything its decision may depend on, as machine words.
//
// Contract: two calls with equal words may share a plan. The words hold dtypes, sizes, strides, alignment, devices and
// plain arguments; they never hold data pointers, nor numbers that only scale values (OpState::patched).
#pragma once
#include <c10/util/SmallVector.h>

#include "router.h"

namespace torchfl {

struct Signature {
  c10::SmallVector<uint64_t, 96> words;
  int device = -1;    // of the first tensor of ours; -1: none
  bool lazy = false;  // a tensor has a conj or neg bit that is to be resolved, or stands for zeros without memory
  bool host_tensors = false;  // a CPU tensor that is more than a number takes part
  uint64_t hash() const {
    uint64_t h = 0x9e3779b97f4a7c15ull;
    for (uint64_t word : words) {
      h = (h ^ word) * 0xff51afd7ed558ccdull;
      h ^= h >> 32;
    }
    return h;
  }
};

enum : uint64_t {
  kNone = 1,
  kTensor,
  kUndefined,
  kNumber,
  kHostTensor,
  kInt,
  kDouble,
  kBool,
  kList,
  kString,
  kOther,
  kDefault
};

// One tensor's words.
void read_signature_tensor(const OpState& op, const at::Tensor& tensor, Signature& out);

// Throws when tensors live on two devices.
// The operator, and the default dtype: integers divide into it, and it may change. No address reaches those bits.
inline uint64_t signature_head(const OpState& op) {
  return reinterpret_cast<uint64_t>(&op) | uint64_t(c10::get_default_dtype_as_scalartype()) << 56;
}
void read_signature(const OpState& op, at::ArrayRef<c10::IValue> args, Signature& out);

// The same for any sizes: of each tensor its rank, and which dimensions have one element. False if a tensor is not
// row-major, or is none of ours.
bool read_generic_signature(const OpState& op, at::ArrayRef<c10::IValue> args, Signature& out);

}  // namespace torchfl
