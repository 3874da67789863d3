// allocator.cpp: the caching allocators of all devices as PyTorch's one DeviceAllocator, and pinned host memory.
//
// Contract: allocate uses the current device and stream; the GIL is never taken here or in the deleter. A DataPtr's
// context is the allocator's Block, so that record_stream and the deleter need no lookup.
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>

#include "graph_memory.h"
#include "kept.h"
#include "memory_history.h"
#include "runtime.h"

namespace torchfl {
namespace {

void release_block(void* context) {
  auto* block = static_cast<CachingAllocator::Block*>(context);
  if (C10_UNLIKELY(graph_memory::t_scope != nullptr)) graph_memory::t_scope->released(block);
  static_cast<CachingAllocator*>(block->owner)->release(block);
}

// With who holds the memory, where its history is on.
[[noreturn]] void throw_out_of_memory(DeviceEntry& entry, size_t bytes, const Error& error) {
  std::string text = error.what();
  if (const uint64_t mapped = entry.mapped_bytes.load())
    text += " " + std::to_string(mapped) + " bytes of the host's memory are mapped besides: tensors that lie there.";
  throw Error(error.kind, text + memory_history::out_of_memory(entry, bytes), error.sdk_code);
}

using c10::CachingAllocator::StatType;
void fill_stat(c10::CachingAllocator::StatArray& out, const Counter& counter) {
  auto& stat = out[size_t(StatType::AGGREGATE)];
  stat.current = counter.current;
  stat.peak = counter.peak;
  stat.allocated = counter.allocated;
  stat.freed = counter.freed;
}

class TorchDeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const int index = runtime::current_device();
    const c10::Device device(kDevice, c10::DeviceIndex(index));
    if (bytes == 0) return c10::DataPtr(nullptr, device);
    if (C10_UNLIKELY(graph_memory::t_scope != nullptr)) {
      if (auto piece = graph_memory::t_scope->take(index, bytes)) return std::move(*piece);
    }
    DeviceEntry& entry = runtime::device(index);
    CachingAllocator::Block* block = guarded([&] {
      try {
        return entry.allocator->allocate(bytes, runtime::current_stream(index));
      } catch (const Error& error) {
        if (error.kind != ErrorKind::out_of_memory) throw;
        // What was only kept in case it is needed again goes first, and what waits for its stream.
        const bool waited = entry.synchronize_pending();
        if (!drop_kept(index) && !waited) throw_out_of_memory(entry, bytes, error);
        try {
          return entry.allocator->allocate(bytes, runtime::current_stream(index));
        } catch (const Error& again) {
          if (again.kind != ErrorKind::out_of_memory) throw;
          throw_out_of_memory(entry, bytes, again);
        }
      }
    });
    block->owner = entry.allocator.get();
    if (C10_UNLIKELY(graph_memory::t_scope != nullptr)) graph_memory::t_scope->allocated(index, block, bytes);
    return c10::DataPtr(block->ptr, block, &release_block, device);
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }  // the context is not the pointer
  void copy_data(void* dest, const void* src, std::size_t bytes) const override {
    DeviceEntry& entry = runtime::device(runtime::current_device());
    guarded([&] { entry.device->copy(runtime::current_stream(entry.index), dest, src, bytes, UBA_DEVICE_TO_DEVICE); });
  }

  bool initialized() override { return runtime::any_opened(); }
  void emptyCache(c10::MempoolId_t) override {
    for (int i = 0; i < runtime::device_count(); i++) {
      DeviceEntry& entry = runtime::device_unopened(i);
      drop_kept(i);
      if (entry.opened && !entry.device->lost()) guarded([&] { entry.allocator->empty_cache(); });
    }
  }
  void recordStream(const c10::DataPtr& ptr, c10::Stream stream) override {
    CachingAllocator::Block* block = block_of(ptr);
    DeviceEntry& entry = runtime::device(stream.device_index());
    if (unified::lies_on_host(ptr)) unified::record_stream(ptr, entry.stream_handle(stream.id()));
    if (block == nullptr) return;
    graph_memory::pin(ptr);
    entry.allocator->record_stream(block, entry.stream_handle(stream.id()));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex index) override {
    c10::CachingDeviceAllocator::DeviceStats out;
    DeviceEntry& entry = runtime::device_unopened(index);
    if (!entry.opened) return out;  // nothing was ever allocated there, and asking must not open it
    const MemoryStats stats = entry.allocator->stats();
    fill_stat(out.allocation, stats.allocation);
    fill_stat(out.segment, stats.segment);
    fill_stat(out.active, stats.active);
    fill_stat(out.inactive_split, stats.inactive_split);
    fill_stat(out.allocated_bytes, stats.allocated_bytes);
    fill_stat(out.reserved_bytes, stats.reserved_bytes);
    fill_stat(out.active_bytes, stats.active_bytes);
    fill_stat(out.inactive_split_bytes, stats.inactive_split_bytes);
    fill_stat(out.requested_bytes, stats.requested_bytes);
    out.num_alloc_retries = stats.num_alloc_retries;
    out.num_ooms = stats.num_ooms;
    out.num_device_alloc = stats.num_device_alloc;
    out.num_device_free = stats.num_device_free;
    out.num_sync_all_streams = stats.num_sync_all_streams;
    return out;
  }
  void resetAccumulatedStats(c10::DeviceIndex index) override {
    DeviceEntry& entry = runtime::device_unopened(index);
    if (entry.opened) entry.allocator->reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex index) override {
    DeviceEntry& entry = runtime::device_unopened(index);
    if (entry.opened) entry.allocator->reset_peak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex index) override {
    uint64_t free_bytes = 0, total_bytes = 0;
    guarded([&] { runtime::device(index).device->memory_info(&free_bytes, &total_bytes); });
    return {free_bytes, total_bytes};
  }
};

TorchDeviceAllocator g_allocator;
struct RegisterAllocator {
  RegisterAllocator() { c10::SetAllocator(kDevice, &g_allocator); }
} g_register;

}  // namespace

c10::Allocator* device_allocator() { return &g_allocator; }

CachingAllocator::Block* block_of(const c10::DataPtr& ptr) {
  if (const c10::DataPtr* behind = graph_memory::block_behind(ptr)) return block_of(*behind);
  if (ptr.get_deleter() != &release_block) return nullptr;
  return static_cast<CachingAllocator::Block*>(ptr.get_context());
}

}  // namespace torchfl
