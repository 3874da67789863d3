// hooks.cpp: what PyTorch asks of the backend through PrivateUse1HooksInterface.
//
// Contract: registered once, before any tensor of ours can exist (autograd reads it).
#include "hooks.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>

#include "generator.h"
#include "pinned.h"
#include "runtime.h"

namespace torchfl {
namespace {

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
    return new_generator(index < 0 ? runtime::current_device() : index);
  }
  at::Device getDeviceFromPtr(void* data) const override {
    TORCH_CHECK(false, "the device of the bare address ", data, " is not known: ask a tensor for its device");
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
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

void resize_storage(c10::StorageImpl* storage, size_t bytes) {
  TORCH_CHECK(storage->resizable(), "Trying to resize storage that is not resizable");
  const size_t before = storage->nbytes();
  if (bytes == before) return;
  storage->mutable_data();  // no longer shared
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
