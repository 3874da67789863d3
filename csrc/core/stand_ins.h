// stand_ins.h: a call as the kernel will see it, where that differs from the call as it was made.
//
// Contract: a StandIns copies the call's views (never data) and is changed step by step; call() stays valid and shows
// the current state, transforms() says what differs from the original. Private to the core, one thread.
#pragma once
#include "route_parts.h"

namespace torchfl {

class StandIns {
 public:
  explicit StandIns(const CallView& original);
  StandIns(const StandIns&) = delete;
  StandIns& operator=(const StandIns&) = delete;

  const CallView& call() const { return call_; }

  // `tensor` below is one of call()'s. Each of these gives it a stand-in, or changes the one it has.
  void cast(const uba_tensor& tensor, int32_t dtype);
  void relay(const uba_tensor& tensor, const std::string& layout);  // a permutation of the letters of its rank
  void relay_contiguous(const uba_tensor& tensor);
  void realign(const uba_tensor& tensor);

  // Results of a dtype that arguments were cast from are computed in what those were cast to.
  void cast_outputs();

  // Makes `quantity` (M, N, K of a matrix product, in_channels or out_channels of a convolution) a multiple by zeros at
  // the end. False if it cannot be done for this operator.
  bool pad(const std::string& quantity, int64_t multiple);

  std::vector<Transform> transforms() const;
  std::string text() const;  // "K padded from 30 to 32; float64 computed in float32"; "" without stand-ins

 private:
  struct Slot {
    Transform transform;  // its sizes and strides are the current ones; `why` is 0 without a stand-in
    const uba_tensor* original = nullptr;
  };
  size_t index_of(const uba_tensor& tensor) const;
  Slot& stand_in(const uba_tensor& tensor, Transform::Why why);
  static void restride(Slot& slot, const std::vector<int64_t>& strides);
  std::string name_of(const Slot& slot) const;
  void grow(const uba_tensor* tensor, int dimension, int64_t size);
  void note(const std::string& text);
  uba_tensor* tensor_named(const char* name);

  CallView call_;
  std::vector<uba_value> values_;
  std::vector<uba_tensor> tensors_;  // of the arguments, then of the results; never grows after the constructor
  std::vector<Slot> slots_;          // as tensors_
  size_t first_output_ = 0;
  std::vector<std::pair<int32_t, int32_t>> casts_;
  std::vector<std::string> notes_;
};

}  // namespace torchfl
