// guard.cpp: current device, streams and events for PyTorch's generic code.
//
// Contract: deviceCount never throws and opens nothing. Events are the adapter's; where a chip has none, recording
// synchronises the stream, so an event is always passed.
#include <c10/core/DeviceCapability.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "runtime.h"

namespace torchfl {
namespace {

c10::Device device_at(int index) { return c10::Device(kDevice, c10::DeviceIndex(index)); }
int index_of(c10::Device device) { return device.has_index() ? device.index() : runtime::current_device(); }

// What PyTorch holds as `void*`: it does not say whose event it is when it asks.
struct Event {
  Device* device;
  void* handle;  // NULL on a chip without events
};

struct Guard final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kDevice; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const int previous = runtime::current_device();
    if (device.has_index() && device.index() != previous) runtime::set_current_device(device.index());
    return device_at(previous);
  }
  c10::Device getDevice() const override { return device_at(runtime::current_device()); }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) runtime::set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) runtime::t_state.device = device.index();
  }

  c10::Stream getStream(c10::Device device) const override {
    const int index = index_of(device);
    runtime::device_unopened(index);
    return c10::Stream(c10::Stream::UNSAFE, device_at(index), runtime::t_state.streams[index].id);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device_at(index_of(device)), 0);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    const int index = index_of(device);
    return c10::Stream(c10::Stream::UNSAFE, device_at(index), runtime::device(index).pooled_stream(high_priority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    const int index = index_of(device);
    return c10::Stream(c10::Stream::UNSAFE, device_at(index), runtime::device(index).pooled_stream(priority < 0));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const int index = stream.device_index();
    return c10::Stream(c10::Stream::UNSAFE, device_at(index), runtime::exchange_stream(index, stream.id()));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return handle(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    return guarded([&] { return entry(stream).device->stream_query(handle(stream)); });
  }
  void synchronizeStream(const c10::Stream& stream) const override { entry(stream).synchronize(handle(stream)); }
  void synchronizeDevice(const c10::DeviceIndex index) const override {
    DeviceEntry& entry = runtime::device_unopened(index);
    if (entry.opened) entry.synchronize_all();
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    auto* held = static_cast<Event*>(event);
    if (held == nullptr) return;
    held->device->event_destroy(held->handle);
    delete held;
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex index,
              const c10::EventFlag) const override {
    TORCH_CHECK(index == -1 || index == stream.device_index(), "an event of device ", int(index),
                " cannot be recorded on a stream of device ", int(stream.device_index()));
    Device* device = entry(stream).device.get();
    guarded([&] {
      if (*event == nullptr) *event = new Event{device, device->event_create()};
      device->event_record(static_cast<Event*>(*event)->handle, handle(stream));
    });
  }
  void block(void* event, const c10::Stream& stream) const override {
    auto* held = static_cast<Event*>(event);
    if (held == nullptr) return;
    Device* device = entry(stream).device.get();
    guarded([&] {
      if (device->adapter() == held->device->adapter()) {
        device->event_wait(held->handle, handle(stream));
      } else {
        held->device->event_synchronize(held->handle);  // another chip's queue cannot wait for it; the host can
      }
    });
  }
  bool queryEvent(void* event) const override {
    auto* held = static_cast<Event*>(event);
    return held == nullptr || guarded([&] { return held->device->event_query(held->handle); });
  }
  void synchronizeEvent(void* event) const override {
    auto* held = static_cast<Event*>(event);
    if (held != nullptr) guarded([&] { held->device->event_synchronize(held->handle); });
  }
  double elapsedTime(void* start, void* end, const c10::DeviceIndex) const override {
    TORCH_CHECK(start != nullptr && end != nullptr, "both events must be recorded before calculating elapsed time");
    auto *first = static_cast<Event*>(start), *second = static_cast<Event*>(end);
    // A handle means something to its own chip only: another's adapter would read it as its own event.
    TORCH_CHECK(first->device == second->device,
                "elapsed_time: the two events were recorded on different devices, and their clocks have nothing in "
                "common; record both on streams of one device (record() without a stream takes the current device's)");
    return guarded([&] { return second->device->event_elapsed(first->handle, second->handle); });
  }

  c10::DeviceIndex deviceCount() const noexcept override { return c10::DeviceIndex(runtime::device_count()); }
  c10::DeviceCapability getDeviceCapability(c10::Device device) const override {
    const DtypeSet dtypes = runtime::device_unopened(index_of(device)).chip->chip.dtypes;
    c10::DeviceCapability capability;
    capability.capability_data.capability_bits = 0;
    for (int i = 0; i < int(c10::NUMBER_OF_DEVICE_CAPABILITIES); i++) {
      const int32_t dtype = to_uba_dtype(c10::ScalarType(i));
      if (dtype != 0 && (dtypes & dtype_bit(dtype)) != 0)
        capability.capability_data.capability_bits |= uint64_t(1) << i;
    }
    return capability;
  }
  void recordDataPtrOnStream(const c10::DataPtr& ptr, const c10::Stream& stream) const override {
    static_cast<c10::DeviceAllocator*>(device_allocator())->recordStream(ptr, stream);
  }

 private:
  static DeviceEntry& entry(const c10::Stream& stream) { return runtime::device(stream.device_index()); }
  static void* handle(const c10::Stream& stream) { return entry(stream).stream_handle(stream.id()); }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

}  // namespace
}  // namespace torchfl
