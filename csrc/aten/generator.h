// generator.h: random generators of devices, and what one operator call draws from them.
//
// Contract: a generator is a seed and an offset, as torch.cuda's. Each call that draws takes one ticket: 64 bits of
// Philox 4x32-10 (key = seed, counter = offset), which then seed whatever makes the call's numbers, the chip's own
// Philox or a generator of the CPU; and the offset grows by kOffsetStep. So equal seeds give equal numbers on every
// chip that makes them by the same program, and what one call draws does not depend on how much another one did.
#pragma once
#include <ATen/core/Generator.h>

namespace torchfl {

constexpr uint64_t kOffsetStep = 4;  // torch.cuda's offsets are multiples of it

const at::Generator& default_generator(int index);
at::Generator new_generator(int index);

// The generator that a call means: the one it was given, which must be a device's, else the device's default one.
at::Generator generator_of_call(const std::optional<at::Generator>& given, int device);

// The ticket of one call.
class Draw {
 public:
  explicit Draw(at::Generator generator);
  uint64_t seed() const { return seed_; }
  at::Generator host() const;  // a CPU generator of this call
  // Undoes it, for a call that did not run, so that what the next one draws does not depend on whether that was known
  // before. If another thread has drawn since, nothing changes.
  void give_back();

 private:
  at::Generator generator_;
  uint64_t seed_ = 0, after_ = 0;
};

}  // namespace torchfl
