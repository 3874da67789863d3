// pinned.cpp: page-aligned host memory whose addresses are known, so that is_pinned() can answer, with a cache.
//
// Contract: adapters take any host address for their asynchronous copies; what a user gains is that a non-blocking copy
// does not stage. Blocks have a power of two of bytes, from a page on. A freed one is kept for the next request of its
// size until empty_cache(); a copy on its way holds its tensor, so a free block is in no device's hands. The statistics
// mean what torch.cuda.host_memory_stats says of them. All functions are safe from any thread and need no GIL.
#include "pinned.h"

#include <array>
#include <chrono>
#include <map>
#include <mutex>

#include "runtime.h"

namespace torchfl {
namespace {

constexpr size_t kPage = 4096;

struct Block {
  void* data = nullptr;
  size_t bytes = 0;
  std::vector<c10::Stream> streams;  // that a user said use it
};

struct Store {
  std::mutex mutex;
  std::map<uintptr_t, Block*> blocks;                // all, by address
  std::map<size_t, std::vector<Block*>> free_lists;  // by size
  at::HostStats stats;
};
Store& store() {
  static auto* only = new Store();  // outlives every static tensor
  return *only;
}

int64_t microseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - start).count();
}

void give_up(Store& s, Block* block) {
  const auto start = std::chrono::steady_clock::now();
  ::free(block->data);
  s.stats.host_free_time.increase(microseconds_since(start));
  s.stats.num_host_free++;
  s.stats.allocations.decrease(1);
  s.stats.allocated_bytes.decrease(int64_t(block->bytes));
  delete block;
}

void release(void* context) {
  auto* block = static_cast<Block*>(context);
  for (const c10::Stream& stream : block->streams) {
    try {
      DeviceEntry& entry = runtime::device(stream.device_index());
      entry.synchronize(entry.stream_handle(stream.id()));
    } catch (...) {  // a lost device does not use it any more
    }
  }
  Store& s = store();
  std::lock_guard<std::mutex> lock(s.mutex);
  block->streams.clear();
  s.blocks.erase(reinterpret_cast<uintptr_t>(block->data));
  s.free_lists[block->bytes].push_back(block);
  s.stats.active_requests.decrease(1);
  s.stats.active_bytes.decrease(int64_t(block->bytes));
}

size_t rounded(size_t bytes) {
  size_t size = kPage;
  while (size < bytes) {
    TORCH_CHECK_VALUE(size <= SIZE_MAX / 2, "pinned memory: ", bytes, " bytes are more than there can be");
    size *= 2;
  }
  return size;
}

class PinnedAllocator final : public at::HostAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return c10::DataPtr(nullptr, c10::Device(c10::DeviceType::CPU));
    const size_t size = rounded(bytes);
    Store& s = store();
    std::lock_guard<std::mutex> lock(s.mutex);
    Block* block = nullptr;
    std::vector<Block*>& free_list = s.free_lists[size];
    if (!free_list.empty()) {
      block = free_list.back();
      free_list.pop_back();
    } else {
      const auto start = std::chrono::steady_clock::now();
      void* data = nullptr;
      if (posix_memalign(&data, kPage, size) != 0) {
        free_cached(s);
        TORCH_CHECK(posix_memalign(&data, kPage, size) == 0, "pinned memory: the host has no ", size, " bytes left");
      }
      block = new Block{data, size, {}};
      s.stats.host_alloc_time.increase(microseconds_since(start));
      s.stats.num_host_alloc++;
      s.stats.allocations.increase(1);
      s.stats.allocated_bytes.increase(int64_t(size));
    }
    s.blocks[reinterpret_cast<uintptr_t>(block->data)] = block;
    s.stats.active_requests.increase(1);
    s.stats.active_bytes.increase(int64_t(size));
    return c10::DataPtr(block->data, block, &release, c10::Device(c10::DeviceType::CPU));
  }
  void copy_data(void* dest, const void* src, std::size_t bytes) const override { default_copy_data(dest, src, bytes); }

  bool record_event(void*, void* context, c10::Stream stream) override {
    if (stream.device_type() != kDevice) return false;
    Store& s = store();
    std::lock_guard<std::mutex> lock(s.mutex);
    for (const auto& [address, block] : s.blocks) {
      if (block != context) continue;
      block->streams.push_back(stream);
      return true;
    }
    return false;
  }
  void empty_cache() override {
    Store& s = store();
    std::lock_guard<std::mutex> lock(s.mutex);
    free_cached(s);
  }
  at::HostStats get_stats() override {
    Store& s = store();
    std::lock_guard<std::mutex> lock(s.mutex);
    return s.stats;
  }
  void reset_accumulated_stats() override {
    Store& s = store();
    std::lock_guard<std::mutex> lock(s.mutex);
    for (auto* stat : counters(s)) stat->reset_accumulated();
    s.stats.host_alloc_time.reset_accumulated();
    s.stats.host_free_time.reset_accumulated();
    s.stats.num_host_alloc = s.stats.num_host_free = 0;
  }
  void reset_peak_stats() override {
    Store& s = store();
    std::lock_guard<std::mutex> lock(s.mutex);
    for (auto* stat : counters(s)) stat->reset_peak();
    s.stats.host_alloc_time.reset_peak();
    s.stats.host_free_time.reset_peak();
  }

 private:
  static std::array<c10::CachingAllocator::Stat*, 4> counters(Store& s) {
    return {&s.stats.allocations, &s.stats.allocated_bytes, &s.stats.active_requests, &s.stats.active_bytes};
  }
  static void free_cached(Store& s) {
    for (auto& [size, list] : s.free_lists) {
      for (Block* block : list) give_up(s, block);
      list.clear();
    }
  }
};

PinnedAllocator g_pinned;
REGISTER_HOST_ALLOCATOR(kDevice, &g_pinned)

}  // namespace

at::HostAllocator* pinned_allocator() { return &g_pinned; }

bool is_pinned(const void* data) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  Store& s = store();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto after = s.blocks.upper_bound(address);
  if (after == s.blocks.begin()) return false;
  --after;
  return address < after->first + after->second->bytes;
}

}  // namespace torchfl
