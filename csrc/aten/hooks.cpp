// hooks.cpp: what PyTorch asks of the backend through PrivateUse1HooksInterface, and the random generator.
//
// Contract: registered once, before any tensor of ours can exist (autograd reads it). The generator of a device holds
// a CPU generator of its own: random operators that run through the host draw from that one, so `manual_seed` on
// the device alone decides what they give.
#include "hooks.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>

#include <unordered_set>

#include "runtime.h"

namespace torchfl {
namespace {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  explicit DeviceGenerator(c10::DeviceIndex index)
      : c10::GeneratorImpl(c10::Device(kDevice, index), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        host(at::detail::createCPUGenerator()) {}
  void set_current_seed(uint64_t seed) override { host.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { host.set_offset(offset); }
  uint64_t get_offset() const override { return host.get_offset(); }
  uint64_t current_seed() const override { return host.current_seed(); }
  uint64_t seed() override { return host.seed(); }
  void set_state(const c10::TensorImpl& state) override {
    host.set_state(at::Tensor(c10::intrusive_ptr<c10::TensorImpl>::reclaim_copy(const_cast<c10::TensorImpl*>(&state))));
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return at::Generator(host).get_state().getIntrusivePtr();
  }
  static c10::DeviceType device_type() { return kDevice; }

  at::Generator host;

 private:
  DeviceGenerator* clone_impl() const override {
    auto* copy = new DeviceGenerator(device().index());
    copy->host = host.clone();
    return copy;
  }
};

at::Generator& default_generator(int index) {
  static std::mutex mutex;
  static std::vector<at::Generator> generators;
  std::lock_guard<std::mutex> lock(mutex);
  runtime::device_unopened(index);
  if (generators.empty()) generators.resize(kMaxDevices);  // once: references stay valid
  at::Generator& generator = generators[size_t(index)];
  if (!generator.defined()) {
    generator = at::make_generator<DeviceGenerator>(c10::DeviceIndex(index));
    generator.set_current_seed(c10::default_rng_seed_val);
  }
  return generator;
}

// Pinned memory: page-aligned host memory whose addresses are known, so that is_pinned() can answer. The simulated
// and the real adapters alike take any host address for their asynchronous copies; what a user gains is the
// guarantee that a non-blocking copy from it does not stage.
class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU));
    void* ptr = nullptr;
    TORCH_CHECK(posix_memalign(&ptr, 4096, bytes) == 0, "pinned memory: the host has no ", bytes, " bytes left");
    std::lock_guard<std::mutex> lock(mutex());
    ranges()[reinterpret_cast<uintptr_t>(ptr)] = bytes;
    return c10::DataPtr(ptr, ptr, &release, c10::Device(c10::DeviceType::CPU));
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override { default_copy_data(dest, src, bytes); }

  static bool contains(const void* data) {
    const auto address = reinterpret_cast<uintptr_t>(data);
    std::lock_guard<std::mutex> lock(mutex());
    auto after = ranges().upper_bound(address);
    if (after == ranges().begin()) return false;
    --after;
    return address < after->first + after->second;
  }

 private:
  static void release(void* ptr) {
    {
      std::lock_guard<std::mutex> lock(mutex());
      ranges().erase(reinterpret_cast<uintptr_t>(ptr));
    }
    ::free(ptr);
  }
  static std::mutex& mutex() {
    static auto* m = new std::mutex();  // outlives every static tensor
    return *m;
  }
  static std::map<uintptr_t, size_t>& ranges() {
    static auto* r = new std::map<uintptr_t, size_t>();
    return *r;
  }
};
PinnedAllocator g_pinned;

struct Hooks final : public at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return runtime::device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex index) const override { return runtime::device_unopened(index).opened; }
  c10::DeviceIndex deviceCount() const override { return c10::DeviceIndex(runtime::device_count()); }
  void setCurrentDevice(c10::DeviceIndex index) const override { runtime::set_current_device(index); }
  c10::DeviceIndex getCurrentDevice() const override { return c10::DeviceIndex(runtime::current_device()); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex index) const override {
    const int previous = runtime::current_device();
    runtime::set_current_device(index);
    return c10::DeviceIndex(previous);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex index) const override {
    return index < 0 ? c10::DeviceIndex(runtime::current_device()) : exchangeDevice(index);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex index) const override {
    return default_generator(index < 0 ? runtime::current_device() : index);
  }
  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    return at::make_generator<DeviceGenerator>(c10::DeviceIndex(index < 0 ? runtime::current_device() : index));
  }
  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(false, "the device of the bare address ", data, " is not known: ask a tensor for its device");
  }
  bool isPinnedPtr(const void* data) const override { return PinnedAllocator::contains(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return &g_pinned; }
  void init() const override {}
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), bytes);
  }
};

}  // namespace

void register_hooks() {
  static Hooks* hooks = [] {
    auto* created = new Hooks();
    at::RegisterPrivateUse1HooksInterface(created);
    return created;
  }();
  (void)hooks;
}

at::Generator host_generator(const at::Generator& device_generator) {
  auto* impl = dynamic_cast<DeviceGenerator*>(device_generator.unsafeGetGeneratorImpl());
  return impl != nullptr ? impl->host : device_generator;
}

at::Generator default_host_generator(int index) { return host_generator(default_generator(index)); }

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const size_t before = storage->nbytes();
  if (bytes == before) return;
  c10::DeviceGuard on_device(storage->device());
  c10::DataPtr fresh = device_allocator()->allocate(bytes);
  const size_t kept = std::min(before, bytes);
  if (kept > 0) {
    DeviceEntry& entry = runtime::device(storage->device().index());
    guarded([&] {
      entry.device->copy(runtime::current_stream(entry.index), fresh.get(), storage->data(), kept,
                         UBA_DEVICE_TO_DEVICE);
    });
  }
  storage->set_data_ptr_noswap(std::move(fresh));
  storage->set_nbytes(bytes);
}

}  // namespace torchfl
