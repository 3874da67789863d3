// runtime.cpp: see runtime.h.
#include "runtime.h"

#include <pthread.h>

#include <algorithm>

#include "memory_history.h"
#include "profiler.h"
#include "stats.h"
#include "torchfl/uba_aten.h"

namespace torchfl {
namespace runtime {

std::atomic<DeviceEntry*> g_devices[kMaxDevices];
thread_local ThreadState t_state;

namespace {
std::mutex g_mutex;
std::vector<std::unique_ptr<ChipEntry>> g_chips;
std::atomic<int> g_count{0};
std::atomic<bool> g_any_opened{false};
std::atomic<bool> g_forked{false};

void after_fork_in_child() {
  if (!g_any_opened.load()) return;
  g_forked.store(true);
  for (auto& slot : g_devices) {
    DeviceEntry* entry = slot.load();
    if (entry != nullptr && entry->device) entry->device->mark_forked();
  }
}
}  // namespace

ChipEntry& add_chip(Chip chip, std::shared_ptr<Adapter> adapter) {
  std::lock_guard<std::mutex> lock(g_mutex);
  const int count = adapter->device_count();
  const int first = g_count.load();
  if (first + count > kMaxDevices) {
    throw Error(ErrorKind::load, chip.name + ": " + std::to_string(first + count) +
                                     " devices in all, but this process can hold " + std::to_string(kMaxDevices));
  }
  g_chips.push_back(std::make_unique<ChipEntry>(std::move(chip), std::move(adapter)));
  ChipEntry& entry = *g_chips.back();
  entry.first_index = first;
  entry.count = count;
  for (int i = 0; i < count; i++) {
    auto* device = new DeviceEntry();  // lives as long as the process: tensors may outlive any owner
    device->chip = &entry;
    device->index = first + i;
    device->local_index = i;
    device->label = entry.chip.device_type + ":" + std::to_string(i);
    device->streams.push_back(nullptr);
    g_devices[first + i].store(device, std::memory_order_release);
  }
  g_count.store(first + count);
  static std::once_flag once;
  std::call_once(once, [] { pthread_atfork(nullptr, nullptr, after_fork_in_child); });
  return entry;
}

const std::vector<std::unique_ptr<ChipEntry>>& chips() { return g_chips; }
int device_count() { return g_count.load(); }
bool forked_after_use() { return g_forked.load(); }
bool any_opened() { return g_any_opened.load(); }

DeviceEntry& device_unopened(int index) {
  DeviceEntry* entry = index >= 0 && index < kMaxDevices ? g_devices[index].load() : nullptr;
  TORCH_CHECK(entry != nullptr, "device index ", index, " is out of range: this process has ", g_count.load(),
              " device(s) of type '", c10::get_privateuse1_backend(), "'");
  return *entry;
}

const std::string& label(int index) { return device_unopened(index).label; }

void set_current_device(int index) {
  device_unopened(index);
  t_state.device = index;
}

c10::StreamId exchange_stream(int index, c10::StreamId id) {
  CurrentStream& current = t_state.streams[index];
  const c10::StreamId previous = current.id;
  if (id != previous) {
    current.handle = device(index).stream_handle(id);
    current.id = id;
  }
  return previous;
}

}  // namespace runtime

void DeviceEntry::open() {
  static std::mutex open_mutex;
  std::lock_guard<std::mutex> lock(open_mutex);
  if (opened.load()) return;
  TORCH_CHECK(!runtime::forked_after_use(), "Cannot re-initialize ", label,
              " in forked subprocess. To use it with multiprocessing, you must use the 'spawn' start method");
  guarded([&] {
    device = std::make_unique<Device>(chip->adapter, local_index, label);
    // The descriptor was written for some version of the SDK; what the SDK at hand demands can only add to it.
    const uint64_t demanded = device->properties().alignment;
    if (demanded > chip->chip.alignment) {
      stats::log(1, label + ": the SDK demands addresses aligned to " + std::to_string(demanded) +
                        " bytes, the descriptor says " + std::to_string(chip->chip.alignment) + ": taking the larger");
      chip->chip.alignment = demanded;
    }
    for (const std::string& line : contradictions(chip->chip, device->properties())) stats::log(2, label + ": " + line);
    allocator = std::make_unique<CachingAllocator>(device.get(), chip->chip.alignment);
    host_memory = unified::strategy(chip->chip.host_memory, device->can_map_host(), label);
  });
  runtime::g_any_opened.store(true);
  opened.store(true, std::memory_order_release);
  profiler::device_opened(*this);
  memory_history::device_opened(*this);
}

void* DeviceEntry::stream_handle(c10::StreamId id) {
  if (id == 0) return nullptr;
  std::lock_guard<std::mutex> lock(streams_mutex);
  TORCH_CHECK(id > 0 && size_t(id) < streams.size(), label, " has no stream ", id);
  return streams[size_t(id)];
}

c10::StreamId DeviceEntry::new_stream(int priority) {
  void* handle = guarded([&] { return device->stream_create(priority); });
  std::lock_guard<std::mutex> lock(streams_mutex);
  streams.push_back(handle);
  return c10::StreamId(streams.size() - 1);
}

c10::StreamId DeviceEntry::pooled_stream(bool high_priority) {
  constexpr size_t kPool = 32;  // as torch.cuda: stream objects beyond this share
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    const auto& made = pool[high_priority];
    if (made.size() >= kPool) return made[next_pooled[high_priority]++ % kPool];
  }
  const c10::StreamId id = new_stream(high_priority ? -1 : 0);
  std::lock_guard<std::mutex> lock(streams_mutex);
  pool[high_priority].push_back(id);
  return id;
}

void DeviceEntry::synchronize(void* stream) {
  // What is pending now is what this wait covers: other threads may enqueue more meanwhile, which is theirs to wait
  // for.
  std::vector<std::pair<void*, at::Tensor>> passed;
  {
    std::lock_guard<std::mutex> lock(pending_mutex);
    auto waits =
        std::stable_partition(pending.begin(), pending.end(), [&](const auto& p) { return p.first != stream; });
    passed.assign(std::make_move_iterator(waits), std::make_move_iterator(pending.end()));
    pending.erase(waits, pending.end());
    for (const auto& entry : passed) pending_bytes -= entry.second.storage().nbytes();
  }
  try {
    guarded([&] { device->synchronize(stream); });
  } catch (...) {
    if (device->lost()) {  // its queue may still hold the addresses
      std::lock_guard<std::mutex> lock(pending_mutex);
      for (auto& entry : passed) pending.push_back(std::move(entry));
    }
    throw;
  }
}

void DeviceEntry::synchronize_all() {
  std::vector<void*> handles;
  {
    std::lock_guard<std::mutex> lock(streams_mutex);
    handles.assign(streams.begin(), streams.end());
  }
  for (void* handle : handles) synchronize(handle);
}

bool DeviceEntry::synchronize_pending() {
  std::vector<void*> handles;
  {
    std::lock_guard<std::mutex> lock(pending_mutex);
    for (const auto& [stream, host] : pending) {
      if (std::find(handles.begin(), handles.end(), stream) == handles.end()) handles.push_back(stream);
    }
  }
  for (void* handle : handles) synchronize(handle);
  return !handles.empty();
}

void DeviceEntry::keep_until_passed(void* stream, at::Tensor host) {
  constexpr size_t kMaxBytes = size_t(64) << 20, kMaxCount = 512;
  bool full = false;
  {
    std::lock_guard<std::mutex> lock(pending_mutex);
    pending_bytes += host.storage().nbytes();
    pending.emplace_back(stream, std::move(host));
    full = pending_bytes > kMaxBytes || pending.size() > kMaxCount;
  }
  if (full) synchronize_pending();
}

void rethrow(const Error& error) {
  switch (error.kind) {
    case ErrorKind::out_of_memory:
      throw c10::OutOfMemoryError({__func__, __FILE__, uint32_t(__LINE__)}, error.what());
    case ErrorKind::invalid_value:
    case ErrorKind::failed:
    case ErrorKind::device_lost:
    case ErrorKind::load:
    case ErrorKind::internal:
      break;
  }
  throw c10::Error({__func__, __FILE__, uint32_t(__LINE__)}, error.what());
}

namespace {
using torch::fl::kScalarTypes;
struct DtypeTable {
  int32_t by_torch[int(c10::ScalarType::NumOptions)] = {};
  constexpr DtypeTable() {
    for (size_t dtype = 1; dtype < std::size(kScalarTypes); dtype++)
      by_torch[int(kScalarTypes[dtype])] = int32_t(dtype);
  }
};
constexpr DtypeTable kDtypeTable;
}  // namespace

int32_t to_uba_dtype(c10::ScalarType type) { return kDtypeTable.by_torch[int(type)]; }

std::optional<c10::ScalarType> from_uba_dtype(int32_t dtype) {
  const c10::ScalarType type = torch::fl::scalar_type(dtype);
  return type == c10::ScalarType::Undefined ? std::nullopt : std::optional(type);
}

}  // namespace torchfl
