// runtime.h: the process's chips and devices as PyTorch counts them, and the calling thread's current ones.
//
// Contract: chips are added at load time, in order, and keep their place until the process ends: chip 0 names the
// PyTorch device type, each further chip is a range of further indices of it. A device is opened when it is first
// used, never earlier (so counting devices is safe before a fork). Lookups on the call path take no lock.
#pragma once
#include <ATen/ATen.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "caching_allocator.h"
#include "chip.h"
#include "device.h"
#include "route.h"
#include "unified.h"

namespace torchfl {

constexpr int kMaxDevices = 64;
constexpr c10::DeviceType kDevice = c10::DeviceType::PrivateUse1;

// An operator that an ATen-style adapter serves (torchfl/uba_aten.h).
struct AtenHandler;

struct ChipEntry {
  ChipEntry(Chip table, std::shared_ptr<Adapter> library)
      : chip(std::move(table)), routes(chip), adapter(std::move(library)) {}
  Chip chip;
  RouteTable routes;
  std::shared_ptr<Adapter> adapter;
  std::unordered_map<std::string, std::shared_ptr<AtenHandler>> handlers;  // by kernel name
  int first_index = 0;                                                     // of its devices, in PyTorch's counting
  int count = 0;
};

struct DeviceEntry {
  ChipEntry* chip = nullptr;
  int index = 0;        // PyTorch's
  int local_index = 0;  // the adapter's
  std::string label;    // "npu_v3:0": how its chip's users call it

  std::atomic<bool> opened{false};
  std::unique_ptr<Device> device;
  std::unique_ptr<CachingAllocator> allocator;
  HostMemory host_memory = HostMemory::copy;
  std::atomic<uint64_t> mapped_bytes{0};  // of the host's memory

  std::mutex streams_mutex;
  std::deque<void*> streams;           // by stream id; id 0 is the default stream (NULL)
  std::vector<c10::StreamId> pool[2];  // of normal and of high priority
  size_t next_pooled[2] = {0, 0};

  // Host memory that enqueued copies still read; dropped when the stream is next synchronised.
  std::mutex pending_mutex;
  std::vector<std::pair<void*, at::Tensor>> pending;
  size_t pending_bytes = 0;

  void open();  // idempotent, thread-safe
  void* stream_handle(c10::StreamId id);
  c10::StreamId new_stream(int priority);
  c10::StreamId pooled_stream(bool high_priority);
  void synchronize(void* stream);  // and lets go of what the stream's copies read
  void synchronize_all();
  bool synchronize_pending();  // the streams that `pending` waits for; whether there are any
  void keep_until_passed(void* stream, at::Tensor host);
};

namespace runtime {

// Adds a chip; its devices get the next indices. Throws Error when no place is left.
ChipEntry& add_chip(Chip chip, std::shared_ptr<Adapter> adapter);
const std::vector<std::unique_ptr<ChipEntry>>& chips();
int device_count();
DeviceEntry& device_unopened(int index);  // throws c10::Error with the legal range
extern std::atomic<DeviceEntry*> g_devices[kMaxDevices];

inline DeviceEntry& device(int index) {
  DeviceEntry* entry = index >= 0 && index < kMaxDevices ? g_devices[index].load(std::memory_order_acquire) : nullptr;
  if (C10_UNLIKELY(entry == nullptr || !entry->opened.load(std::memory_order_acquire))) {
    device_unopened(index).open();
    entry = g_devices[index].load(std::memory_order_acquire);
  }
  return *entry;
}

// The calling thread's current device and stream.
struct CurrentStream {
  c10::StreamId id = 0;
  void* handle = nullptr;
};
struct ThreadState {
  int device = 0;
  CurrentStream streams[kMaxDevices];
};
extern thread_local ThreadState t_state;
inline int current_device() { return t_state.device; }
inline void* current_stream(int index) { return t_state.streams[index].handle; }
void set_current_device(int index);                          // checks the range
c10::StreamId exchange_stream(int index, c10::StreamId id);  // returns the previous one

// True in a child that was forked after a device had been opened.
bool forked_after_use();
bool any_opened();
// Names in errors and logs: "npu_v3:0".
const std::string& label(int index);

}  // namespace runtime

// Turns the core's errors into the exceptions that PyTorch users expect. Use around calls into the core.
[[noreturn]] void rethrow(const Error& error);
template <class F>
auto guarded(F&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const Error& error) {
    rethrow(error);
  }
}

// The DeviceAllocator over all devices.
c10::Allocator* device_allocator();
CachingAllocator::Block* block_of(const c10::DataPtr& ptr);

// A number that is no floating one.
inline int64_t whole_number(const c10::Scalar& number) {
  return number.isBoolean() ? int64_t(number.toBool()) : number.toLong();
}

int32_t to_uba_dtype(c10::ScalarType type);  // 0 when the ABI has no such dtype
std::optional<c10::ScalarType> from_uba_dtype(int32_t dtype);

// Where a tensor of ours begins: an address that is aligned as its device demands, and bytes from there. A storage
// begins at one; but memory that came by DLPack begins wherever the tensor did that was handed out.
struct Place {
  void* data;
  uint64_t offset;
};
inline Place place_of(const at::Tensor& tensor) {
  const DeviceEntry* entry = runtime::g_devices[tensor.device().index()].load(std::memory_order_relaxed);
  if (C10_UNLIKELY(entry->host_memory == HostMemory::lazy)) unified::arrive(tensor);
  const uint64_t within = entry->chip->chip.alignment - 1;  // a power of two, which the descriptor reader has checked
  const auto start = reinterpret_cast<uintptr_t>(tensor.storage().data());
  return {reinterpret_cast<void*>(start & ~within),
          (start & within) + uint64_t(tensor.storage_offset()) * tensor.itemsize()};
}

// A borrowed view of a tensor of ours for the adapter (sizes and strides are the tensor's own memory).
inline uba_tensor view_of(const at::Tensor& tensor) {
  uba_tensor view;
  const Place place = place_of(tensor);
  view.data = place.data;
  view.byte_offset = place.offset;
  view.sizes = tensor.sizes().data();
  view.strides = tensor.strides().data();
  view.dtype = to_uba_dtype(tensor.scalar_type());
  view.rank = int32_t(tensor.dim());
  return view;
}

}  // namespace torchfl
