// generator.cpp: see generator.h.
#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/PhiloxRNGEngine.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>
#include <mutex>

#include "runtime.h"

namespace torchfl {
namespace {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex index)
      : c10::GeneratorImpl(c10::Device(kDevice, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
  static c10::DeviceType device_type() { return kDevice; }

  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK_VALUE(offset % kOffsetStep == 0, "offset must be a multiple of ", kOffsetStep, ", got ", offset);
    offset_ = offset;
  }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override {
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
  }

  // As torch.cuda's: the seed and the offset, 8 bytes each. A state of 8 bytes is a seed.
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    at::Tensor state = at::empty({2 * int64_t(sizeof(uint64_t))}, at::TensorOptions().dtype(at::kByte));
    auto* bytes = state.mutable_data_ptr<uint8_t>();
    std::memcpy(bytes, &seed_, sizeof(seed_));
    std::memcpy(bytes + sizeof(seed_), &offset_, sizeof(offset_));
    return state.getIntrusivePtr();
  }
  void set_state(const c10::TensorImpl& given) override {
    at::detail::check_rng_state(given);
    const auto bytes = size_t(given.numel());
    TORCH_CHECK(bytes == 2 * sizeof(uint64_t) || bytes == sizeof(uint64_t), "RNG state is wrong size: ", bytes,
                " bytes; that of a device has ", 2 * sizeof(uint64_t), " (a state of the CPU's generator?)");
    const auto* data = given.data_dtype_initialized<uint8_t>();
    uint64_t seed = 0, offset = 0;
    std::memcpy(&seed, data, sizeof(seed));
    if (bytes > sizeof(seed)) std::memcpy(&offset, data + sizeof(seed), sizeof(offset));
    set_current_seed(seed);
    set_offset(offset);
  }

  // Under the lock of its mutex.
  uint64_t next(uint64_t* after) {
    at::philox_engine engine(seed_, /*subsequence=*/0, offset_);
    const uint64_t low = engine(), high = engine();
    *after = offset_ += kOffsetStep;
    return low | high << 32;
  }

 private:
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
  }
  uint64_t seed_ = c10::default_rng_seed_val, offset_ = 0;
};

DeviceGenerator& ours(const at::Generator& generator) {
  return *static_cast<DeviceGenerator*>(generator.unsafeGetGeneratorImpl());
}

}  // namespace

const at::Generator& default_generator(int index) {
  static std::mutex mutex;
  static std::vector<at::Generator> generators;
  std::lock_guard<std::mutex> lock(mutex);
  runtime::device_unopened(index);
  if (generators.empty()) generators.resize(kMaxDevices);  // once: references stay valid
  at::Generator& generator = generators[size_t(index)];
  if (!generator.defined()) generator = new_generator(index);
  return generator;
}

at::Generator new_generator(int index) { return at::make_generator<DeviceGenerator>(c10::DeviceIndex(index)); }

at::Generator generator_of_call(const std::optional<at::Generator>& given, int device) {
  if (!given.has_value() || !given->defined()) return default_generator(device);
  TORCH_CHECK(given->device().type() == kDevice, "Expected a '", c10::get_privateuse1_backend(),
              "' device type for generator but found '", given->device().type(), "'");
  return *given;
}

Draw::Draw(at::Generator generator) : generator_(std::move(generator)) {
  std::lock_guard<std::mutex> lock(generator_.mutex());
  seed_ = ours(generator_).next(&after_);
}

at::Generator Draw::host() const { return at::detail::createCPUGenerator(seed_); }

void Draw::give_back() {
  std::lock_guard<std::mutex> lock(generator_.mutex());
  DeviceGenerator& generator = ours(generator_);
  if (generator.get_offset() == after_) generator.set_offset(after_ - kOffsetStep);
}

}  // namespace torchfl
