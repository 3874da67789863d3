// memory_pool.h: what the caching allocator is made of: segments, free blocks by size, split and merge, statistics.
//
// Contract: plain data structures without locks and without calls into the device; CachingAllocator guards them. All
// lists are intrusive, so that giving a block back never allocates host memory. `MemoryPool::find` is a best fit: the
// smallest free block that is large enough, of equal ones the one freed last.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "caching_allocator.h"

namespace torchfl {

constexpr size_t kBlockUnit = 512;
constexpr size_t kSmallLimit = size_t(1) << 20;      // smaller requests are "small"
constexpr size_t kSmallSegment = size_t(2) << 20;    // what they are cut from
constexpr size_t kMediumLimit = size_t(10) << 20;    // up to here, large requests are
constexpr size_t kMediumSegment = size_t(20) << 20;  // cut from these
constexpr size_t kLargeRounding = size_t(2) << 20;   // beyond, a segment each, rounded up to this
constexpr size_t kLargeRemainder = size_t(1) << 20;  // a large block is split only if more than this is left

// Free blocks in bins by size: `exact` gives each multiple of kBlockUnit a bin of its own (up to kSmallSegment),
// otherwise there are 16 bins an octave. A bitmap of two levels finds the next bin that is not empty.
class FreeLists {
 public:
  using Block = CachingAllocator::Block;
  explicit FreeLists(bool exact) : exact_(exact) {}
  Block* find(size_t size) const;  // does not remove it; NULL if none is large enough
  void insert(Block* block);
  void remove(Block* block);

 private:
  static constexpr size_t kBins = kSmallSegment / kBlockUnit;
  size_t bin_of(size_t size) const;
  size_t next_bin(size_t bin) const;  // first bin from `bin` on that is not empty; kBins if none
  Block* smallest(size_t bin, size_t size) const;
  bool exact_;
  uint64_t summary_ = 0;
  std::array<uint64_t, kBins / 64> occupied_{};
  std::array<Block*, kBins> heads_{};
};

struct StreamPool {
  explicit StreamPool(void* of_stream) : stream(of_stream) {}
  void* stream;
  FreeLists small{true};
  FreeLists large{false};
};

struct Segment {
  void* base = nullptr;
  size_t size = 0;
  bool small = false;
  StreamPool* pool = nullptr;
  CachingAllocator::Block* first = nullptr;
  size_t index = 0;  // in MemoryPool::segments_
  FreeLists& lists() { return small ? pool->small : pool->large; }
};

class MemoryPool {
 public:
  using Block = CachingAllocator::Block;
  explicit MemoryPool(size_t granule) : granule_(granule) {}

  // A block of `size` bytes for `stream` out of what is free, NULL if nothing fits.
  Block* take(size_t size, size_t requested, void* stream);
  // Adds a segment from the device and takes a block of it.
  Block* add_segment(void* base, size_t segment_size, size_t size, size_t requested, void* stream);
  // The user gave the block back; other streams may still use it.
  void end_use(Block* block);
  // Nothing uses the block any more: it becomes free and merges with its neighbours.
  void make_free(Block* block);
  // Takes every segment that is wholly free out of the pool.
  std::vector<std::unique_ptr<Segment>> detach_free_segments();

  const std::vector<std::unique_ptr<Segment>>& segments() const { return segments_; }
  MemoryStats stats;

 private:
  StreamPool& pool_of(void* stream);
  Block* use(Block* block, size_t size, size_t requested);
  void absorb_next(Block* block);
  Block* new_block();
  void recycle(Block* block);

  size_t granule_;
  std::vector<std::unique_ptr<StreamPool>> pools_;
  StreamPool* last_pool_ = nullptr;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::deque<Block> nodes_;  // owns every Block that ever was
  Block* spare_ = nullptr;   // those not in use, by free_next
};

inline bool is_small(size_t size) { return size < kSmallLimit; }
inline bool is_free(const CachingAllocator::Block* block) { return !block->in_use && block->pending_events == 0; }

}  // namespace torchfl
