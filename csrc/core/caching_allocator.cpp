// caching_allocator.cpp: locks, the device, and waiting for other streams, around memory_pool.h.
//
// Contract: see caching_allocator.h. Three locks, always taken in this order and never across each other's waits:
//   slow    segments from and to the device (may wait for the device)
//   events  blocks that other streams still use (may query the device)
//   spin    the pool itself (never calls the device)
// A failure of enqueued work that only a synchronise of ours brought to light is kept and thrown by the next call that
// may throw, because it belongs to the user and must not be swallowed.
#include "caching_allocator.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <exception>
#include <iterator>
#include <numeric>
#include <thread>
#include <utility>

#include "memory_pool.h"

namespace torchfl {
namespace {

class SpinLock {
 public:
  void lock() noexcept {
    int spins = 0;
    while (taken_.exchange(true, std::memory_order_acquire)) {
      while (taken_.load(std::memory_order_relaxed)) {
        // The holder may have been descheduled: with few cores, spinning on would keep it from going on.
        if (++spins > 100) std::this_thread::yield();
      }
    }
  }
  void unlock() noexcept { taken_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> taken_{false};
};

size_t round_up(size_t value, size_t unit) { return (value + unit - 1) / unit * unit; }

std::string size_text(uint64_t bytes) {
  const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB"};
  double value = double(bytes);
  int unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    ++unit;
  }
  char text[48];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value, units[unit]);
  return text;
}

}  // namespace

struct CachingAllocator::Impl {
  struct Waiting {
    Block* block;
    void* event;  // NULL: it could not be recorded, so the stream itself is asked
  };

  Impl(Device* of_device, size_t of_alignment)
      : device(of_device),
        alignment(of_alignment == 0 ? 1 : of_alignment),
        granule(std::lcm(kBlockUnit, alignment)),
        pool(granule) {}

  Block* allocate_slow(size_t size, size_t bytes, void* stream);
  void* reserve(size_t segment_size);
  size_t segment_size_for(size_t size) const;
  void free_cached();
  void release_after_events(Block* block) noexcept;
  void process_events(bool wait);
  void one_event_passed(Block* block) noexcept;
  void keep_error(std::exception_ptr error) noexcept;
  void throw_kept_error();
  [[noreturn]] void throw_out_of_memory(size_t bytes, size_t segment_size);

  Device* device;
  size_t alignment;
  size_t granule;  // every block's size is a multiple of it, so every block's address is one of `alignment`
  std::mutex slow;
  std::mutex events;
  SpinLock spin;
  MemoryPool pool;                               // under spin
  std::map<void*, std::deque<Waiting>> waiting;  // by stream, in order; under events
  std::exception_ptr kept_error;                 // under spin
  std::atomic<uint32_t> waiting_count{0};
  std::atomic<bool> has_kept_error{false};
  std::atomic<uint64_t> limit{0};
  std::atomic<MemoryListener*> listener{nullptr};

  void tell(const MemoryEvent& event) noexcept {
    if (MemoryListener* who = listener.load(std::memory_order_acquire)) who->happened(event);
  }
};

// ---------------------------------------------------------------------------------------------- allocation

CachingAllocator::CachingAllocator(Device* device, size_t alignment)
    : impl_(new Impl(device, alignment)), device_(device), alignment_(alignment == 0 ? 1 : alignment) {}

CachingAllocator::~CachingAllocator() {
  // A lost device takes nothing back. Memory that is still in use stays until the adapter closes the device.
  if (device_->lost() || device_->forked()) return;
  try {
    empty_cache();
  } catch (...) {  // there is nobody left to tell
  }
}

CachingAllocator::Block* CachingAllocator::allocate(size_t bytes, void* stream) {
  device_->ready();
  if (__builtin_expect(impl_->waiting_count.load(std::memory_order_relaxed) != 0, 0)) impl_->process_events(false);
  if (__builtin_expect(impl_->has_kept_error.load(std::memory_order_relaxed), 0)) impl_->throw_kept_error();
  if (__builtin_expect(bytes == 0 || bytes > (SIZE_MAX >> 16), 0)) {
    if (bytes == 0) throw Error(ErrorKind::internal, device_->label() + ": an allocation of zero bytes has no block");
    impl_->throw_out_of_memory(bytes, bytes);
  }
  // Powers of two are the rule; a division costs more than the rest of the search.
  const size_t granule = impl_->granule;
  const size_t size =
      (granule & (granule - 1)) == 0 ? (bytes + granule - 1) & ~(granule - 1) : round_up(bytes, granule);
  Block* block;
  {
    std::lock_guard<SpinLock> lock(impl_->spin);
    block = impl_->pool.take(size, bytes, stream);
  }
  if (__builtin_expect(block == nullptr, 0)) block = impl_->allocate_slow(size, bytes, stream);
  if (__builtin_expect(impl_->listener.load(std::memory_order_relaxed) != nullptr, 0))
    impl_->tell({MemoryEvent::Action::alloc, block->ptr, block->size, bytes, stream});
  return block;
}

size_t CachingAllocator::Impl::segment_size_for(size_t size) const {
  // Rounded down, because the exact bins of small blocks end at kSmallSegment.
  size_t wanted = kSmallSegment / granule * granule;
  if (!is_small(size))
    wanted = round_up(size <= kMediumLimit ? kMediumSegment : round_up(size, kLargeRounding), granule);
  const uint64_t most = device->properties().max_allocation;
  return most != 0 && wanted > most ? size : wanted;
}

// Memory from the device, NULL if it (or the limit) has none.
void* CachingAllocator::Impl::reserve(size_t segment_size) {
  take_sdk_message();  // so that an error text cannot quote an older failure
  const uint64_t most = limit.load();
  {
    std::lock_guard<SpinLock> lock(spin);
    if (most != 0 && uint64_t(pool.stats.reserved_bytes.current) + segment_size > most) return nullptr;
  }
  void* base = device->alloc(segment_size);
  if (base == nullptr) return nullptr;
  std::lock_guard<SpinLock> lock(spin);
  ++pool.stats.num_device_alloc;
  return base;
}

CachingAllocator::Block* CachingAllocator::Impl::allocate_slow(size_t size, size_t bytes, void* stream) {
  std::lock_guard<std::mutex> slow_lock(slow);
  auto take = [&]() {
    std::lock_guard<SpinLock> lock(spin);
    return pool.take(size, bytes, stream);
  };
  if (Block* block = take()) return block;  // another thread has been here meanwhile

  size_t segment_size = segment_size_for(size);
  void* base = reserve(segment_size);
  if (base == nullptr) {
    {
      std::lock_guard<SpinLock> lock(spin);
      ++pool.stats.num_alloc_retries;
    }
    process_events(true);
    if (Block* block = take()) return block;
    free_cached();
    base = reserve(segment_size);
    if (base == nullptr && segment_size > size) {
      segment_size = size;  // no room for a whole segment: for the block alone, perhaps
      base = reserve(segment_size);
    }
    if (base == nullptr) throw_out_of_memory(bytes, segment_size);
  }
  if (reinterpret_cast<uintptr_t>(base) % alignment != 0) {
    char text[160];
    std::snprintf(
        text, sizeof(text),
        ": alloc returned %p, which is not a multiple of %zu as the descriptor says: this is a bug of the adapter ",
        base, alignment);
    device->free(base);
    throw Error(ErrorKind::internal, device->label() + text + device->adapter()->path());
  }
  tell({MemoryEvent::Action::segment_alloc, base, segment_size, 0, stream});
  std::lock_guard<SpinLock> lock(spin);
  return pool.add_segment(base, segment_size, size, bytes, stream);
}

void CachingAllocator::Impl::throw_out_of_memory(size_t bytes, size_t segment_size) {
  SdkMessage said = take_sdk_message();
  uint64_t free_bytes = 0, total_bytes = 0;
  try {
    device->memory_info(&free_bytes, &total_bytes);
  } catch (const Error&) {  // then without
  }
  MemoryStats stats;
  {
    std::lock_guard<SpinLock> lock(spin);
    ++pool.stats.num_ooms;
    stats = pool.stats;
  }
  const uint64_t allocated = uint64_t(stats.allocated_bytes.current);
  const uint64_t reserved = uint64_t(stats.reserved_bytes.current);
  const uint64_t cached = reserved - allocated;
  std::string text = device->label() + ": out of memory: tried to allocate " + size_text(bytes);
  if (segment_size > bytes && segment_size - bytes >= kBlockUnit)
    text += " (a segment of " + size_text(segment_size) + ")";
  if (total_bytes != 0) {
    text += ". Of " + size_text(total_bytes) + " in total, " + size_text(free_bytes) + " are free";
  } else if (device->properties().total_memory != 0) {
    text += ". The device has " + size_text(device->properties().total_memory) + " in total";
  }
  text += ". This process holds " + size_text(reserved) + ": " + size_text(allocated) + " allocated to tensors, " +
          size_text(cached) + " cached";
  const uint64_t most = limit.load();
  if (most != 0) text += ". It is limited to " + size_text(most) + " (memory fraction)";
  const uint64_t largest = device->properties().max_allocation;
  if (largest != 0 && bytes > largest) {
    text += ". The device gives at most " + size_text(largest) + " in one piece: split the tensor";
  } else if (cached >= bytes) {
    text +=
        ". The cached memory is fragmented: it is held by segments that tensors still use; delete tensors that are no "
        "longer needed, or use fewer different sizes";
  } else {
    text +=
        ". Use a smaller batch, delete tensors that are no longer needed, or see what holds the memory with "
        "memory_summary()";
  }
  if (!said.text.empty()) text += ". The SDK says: " + said.text + " (SDK code " + std::to_string(said.code) + ")";
  throw Error(ErrorKind::out_of_memory, text, said.code);
}

// ---------------------------------------------------------------------------------------------- giving back

void CachingAllocator::release(Block* block) noexcept {
  // In a forked child another thread may have held the lock at the fork, and the memory is the parent's anyway.
  if (block == nullptr || device_->forked()) return;
  const bool in_use = !block->used_by.empty();
  if (__builtin_expect(impl_->listener.load(std::memory_order_relaxed) != nullptr, 0)) {
    impl_->tell({MemoryEvent::Action::free_requested, block->ptr, block->size, 0, block->stream});
    if (!in_use) impl_->tell({MemoryEvent::Action::free_completed, block->ptr, block->size, 0, block->stream});
  }
  if (__builtin_expect(in_use, 0)) return impl_->release_after_events(block);
  std::lock_guard<SpinLock> lock(impl_->spin);
  impl_->pool.end_use(block);
  impl_->pool.make_free(block);
}

void CachingAllocator::record_stream(Block* block, void* stream) {
  if (block == nullptr || stream == block->stream) return;
  std::lock_guard<SpinLock> lock(impl_->spin);
  for (void* known : block->used_by) {
    if (known == stream) return;
  }
  block->used_by.push_back(stream);
}

void CachingAllocator::Impl::one_event_passed(Block* block) noexcept {
  // All its events are counted down under `events`, so nobody else reaches zero between the two looks.
  if (block->pending_events == 1)
    tell({MemoryEvent::Action::free_completed, block->ptr, block->size, 0, block->stream});
  std::lock_guard<SpinLock> lock(spin);
  if (--block->pending_events == 0) pool.make_free(block);
}

void CachingAllocator::Impl::release_after_events(Block* block) noexcept {
  std::lock_guard<std::mutex> events_lock(events);
  std::vector<void*> streams;
  {
    std::lock_guard<SpinLock> lock(spin);
    streams.swap(block->used_by);
    block->pending_events = int(streams.size());
    pool.end_use(block);
  }
  for (void* stream : streams) {
    bool passed = device->lost();  // nothing runs there any more
    void* event = nullptr;
    try {
      if (!passed && device->has_events()) {
        event = device->event_create();
        device->event_record(event, stream);
      } else if (!passed) {
        device->synchronize(stream);
        passed = true;
      }
    } catch (const Error&) {
      // Without events, the failure is one of the user's work, and the stream has passed it.
      if (!device->has_events()) keep_error(std::current_exception());
      passed = device->lost() || !device->has_events();
      device->event_destroy(std::exchange(event, nullptr));
    } catch (...) {
    }
    if (!passed) {
      try {
        waiting[stream].push_back({block, event});
        waiting_count.fetch_add(1, std::memory_order_relaxed);
        continue;
      } catch (...) {  // no host memory for a note: the block stays out of use for good, which is safe
        continue;
      }
    }
    one_event_passed(block);
  }
}

// Frees the blocks whose other streams have passed; `wait` waits for all of them.
void CachingAllocator::Impl::process_events(bool wait) {
  std::unique_lock<std::mutex> events_lock(events, std::defer_lock);
  if (wait) {
    events_lock.lock();
  } else if (!events_lock.try_lock()) {
    return;
  }
  for (auto stream = waiting.begin(); stream != waiting.end();) {
    std::deque<Waiting>& queue = stream->second;
    while (!queue.empty()) {
      Waiting& front = queue.front();
      bool passed = true;
      try {
        if (wait && front.event != nullptr) {
          device->event_synchronize(front.event);
        } else if (wait) {
          device->synchronize(stream->first);
        } else {
          passed = front.event != nullptr ? device->event_query(front.event) : device->stream_query(stream->first);
        }
      } catch (const Error&) {
        keep_error(std::current_exception());  // a failure is reported once; what failed has passed
      }
      if (!passed) break;
      device->event_destroy(front.event);
      one_event_passed(front.block);
      queue.pop_front();
      waiting_count.fetch_sub(1, std::memory_order_relaxed);
    }
    stream = queue.empty() ? waiting.erase(stream) : std::next(stream);
  }
}

void CachingAllocator::Impl::keep_error(std::exception_ptr error) noexcept {
  if (device->lost()) return;  // every later call says so by itself
  std::lock_guard<SpinLock> lock(spin);
  if (!kept_error) kept_error = std::move(error);
  has_kept_error.store(true, std::memory_order_relaxed);
}

void CachingAllocator::Impl::throw_kept_error() {
  std::exception_ptr error;
  {
    std::lock_guard<SpinLock> lock(spin);
    error = std::exchange(kept_error, nullptr);
    has_kept_error.store(false, std::memory_order_relaxed);
  }
  if (error) std::rethrow_exception(error);
}

// Gives every wholly free segment back to the device. Work may still be enqueued that uses its memory (that is what
// stream order allows), so its stream is waited for, once it can no longer be handed out.
void CachingAllocator::Impl::free_cached() {
  std::vector<std::unique_ptr<Segment>> segments;
  {
    std::lock_guard<SpinLock> lock(spin);
    segments = pool.detach_free_segments();
  }
  std::set<void*> streams;
  for (const auto& segment : segments) streams.insert(segment->pool->stream);
  for (void* stream : streams) {
    try {
      device->synchronize(stream);
    } catch (const Error&) {
      if (device->lost()) throw;
      keep_error(std::current_exception());
    }
  }
  int64_t freed = 0;
  for (const auto& segment : segments) {
    tell({MemoryEvent::Action::segment_free, segment->base, segment->size, 0, segment->pool->stream});
    try {
      device->free(segment->base);
      ++freed;
    } catch (const Error&) {
      if (device->lost()) throw;
      keep_error(std::current_exception());
    }
  }
  {
    std::lock_guard<SpinLock> lock(spin);
    pool.stats.num_device_free += freed;
    if (!streams.empty()) ++pool.stats.num_sync_all_streams;
  }
  throw_kept_error();
}

void CachingAllocator::empty_cache() {
  device_->ready();
  std::lock_guard<std::mutex> slow_lock(impl_->slow);
  impl_->process_events(true);
  impl_->free_cached();
}

void CachingAllocator::set_limit(uint64_t bytes) { impl_->limit.store(bytes); }

void CachingAllocator::set_listener(MemoryListener* listener) { impl_->listener.store(listener); }

// ---------------------------------------------------------------------------------------------- statistics

MemoryStats CachingAllocator::stats() const {
  std::lock_guard<SpinLock> lock(impl_->spin);
  return impl_->pool.stats;
}

namespace {
template <typename Function>
void for_each_counter(MemoryStats& stats, Function function) {
  for (Counter* counter :
       {&stats.allocation, &stats.segment, &stats.active, &stats.inactive_split, &stats.allocated_bytes,
        &stats.reserved_bytes, &stats.active_bytes, &stats.inactive_split_bytes, &stats.requested_bytes}) {
    function(*counter);
  }
}
}  // namespace

void CachingAllocator::reset_peak() {
  std::lock_guard<SpinLock> lock(impl_->spin);
  for_each_counter(impl_->pool.stats, [](Counter& counter) { counter.peak = counter.current; });
}

void CachingAllocator::reset_accumulated() {
  std::lock_guard<SpinLock> lock(impl_->spin);
  MemoryStats& stats = impl_->pool.stats;
  for_each_counter(stats, [](Counter& counter) { counter.allocated = counter.freed = 0; });
  stats.num_alloc_retries = stats.num_ooms = stats.num_device_alloc = stats.num_device_free = 0;
  stats.num_sync_all_streams = 0;
}

std::vector<CachingAllocator::SnapshotSegment> CachingAllocator::snapshot() const {
  std::vector<SnapshotSegment> segments;
  std::lock_guard<SpinLock> lock(impl_->spin);
  for (const auto& segment : impl_->pool.segments()) {
    SnapshotSegment seen;
    seen.address = reinterpret_cast<uint64_t>(segment->base);
    seen.total_size = segment->size;
    seen.stream = reinterpret_cast<uint64_t>(segment->pool->stream);
    seen.type = segment->small ? "small" : "large";
    for (const Block* block = segment->first; block != nullptr; block = block->next) {
      const char* state = block->in_use ? "active_allocated" : is_free(block) ? "inactive" : "active_pending_free";
      seen.blocks.push_back(
          {reinterpret_cast<uint64_t>(block->ptr), block->size, is_free(block) ? 0 : block->requested, state});
    }
    segments.push_back(std::move(seen));
  }
  return segments;
}

std::string CachingAllocator::summary_line() const {
  MemoryStats now = stats();
  return size_text(uint64_t(now.allocated_bytes.current)) + " allocated, " +
         size_text(uint64_t(now.reserved_bytes.current - now.allocated_bytes.current)) + " cached, peak " +
         size_text(uint64_t(now.allocated_bytes.peak)) + " allocated and " +
         size_text(uint64_t(now.reserved_bytes.peak)) + " reserved";
}

}  // namespace torchfl
