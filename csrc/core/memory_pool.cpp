// memory_pool.cpp: see memory_pool.h.
#include "memory_pool.h"

#include <algorithm>
#include <utility>

namespace torchfl {
namespace {

inline void add(Counter& counter, int64_t amount) {
  counter.current += amount;
  counter.allocated += amount;
  counter.peak = std::max(counter.peak, counter.current);
}

inline void subtract(Counter& counter, int64_t amount) {
  counter.current -= amount;
  counter.freed += amount;
}

// The net change of one call, so that a split and its merge do not show as traffic.
inline void change(Counter& counter, int64_t amount) {
  if (amount > 0) {
    add(counter, amount);
  } else if (amount < 0) {
    subtract(counter, -amount);
  }
}

inline bool is_split(const CachingAllocator::Block* block) { return block->prev != nullptr || block->next != nullptr; }

inline int log2_floor(size_t value) { return 63 - __builtin_clzll(value); }

}  // namespace

// ---------------------------------------------------------------------------------------------- FreeLists

size_t FreeLists::bin_of(size_t size) const {
  if (exact_) return size / kBlockUnit - 1;
  int octave = log2_floor(size);  // size >= kBlockUnit, so at least 9
  return size_t(octave - 9) * 16 + ((size >> (octave - 4)) & 15);
}

size_t FreeLists::next_bin(size_t bin) const {
  if (bin >= kBins) return kBins;
  size_t word = bin / 64;
  uint64_t here = occupied_[word] & (~uint64_t(0) << (bin % 64));
  if (here == 0) {
    uint64_t later = word == 63 ? 0 : summary_ & (~uint64_t(0) << (word + 1));
    if (later == 0) return kBins;
    word = size_t(__builtin_ctzll(later));
    here = occupied_[word];
  }
  return word * 64 + size_t(__builtin_ctzll(here));
}

FreeLists::Block* FreeLists::smallest(size_t bin, size_t size) const {
  Block* best = nullptr;
  for (Block* block = heads_[bin]; block != nullptr; block = block->free_next) {
    if (block->size >= size && (best == nullptr || block->size < best->size)) best = block;
  }
  return best;
}

FreeLists::Block* FreeLists::find(size_t size) const {
  if (exact_) {
    size_t bin = next_bin(bin_of(size));
    return bin == kBins ? nullptr : heads_[bin];
  }
  size_t bin = bin_of(size);
  if (Block* block = smallest(bin, size)) return block;
  bin = next_bin(bin + 1);
  return bin == kBins ? nullptr : smallest(bin, size);
}

void FreeLists::insert(Block* block) {
  size_t bin = bin_of(block->size);
  block->free_prev = nullptr;
  block->free_next = heads_[bin];
  if (heads_[bin] != nullptr) heads_[bin]->free_prev = block;
  heads_[bin] = block;
  occupied_[bin / 64] |= uint64_t(1) << (bin % 64);
  summary_ |= uint64_t(1) << (bin / 64);
}

void FreeLists::remove(Block* block) {
  if (block->free_next != nullptr) block->free_next->free_prev = block->free_prev;
  if (block->free_prev != nullptr) {
    block->free_prev->free_next = block->free_next;
    return;
  }
  size_t bin = bin_of(block->size);
  heads_[bin] = block->free_next;
  if (heads_[bin] == nullptr) {
    occupied_[bin / 64] &= ~(uint64_t(1) << (bin % 64));
    if (occupied_[bin / 64] == 0) summary_ &= ~(uint64_t(1) << (bin / 64));
  }
}

// ---------------------------------------------------------------------------------------------- MemoryPool

StreamPool& MemoryPool::pool_of(void* stream) {
  if (last_pool_ != nullptr && last_pool_->stream == stream) return *last_pool_;
  for (const auto& pool : pools_) {
    if (pool->stream == stream) return *(last_pool_ = pool.get());
  }
  pools_.push_back(std::make_unique<StreamPool>(stream));
  return *(last_pool_ = pools_.back().get());
}

MemoryPool::Block* MemoryPool::new_block() {
  if (spare_ == nullptr) return &nodes_.emplace_back();
  return std::exchange(spare_, spare_->free_next);
}

void MemoryPool::recycle(Block* block) {
  block->free_next = spare_;
  spare_ = block;
}

MemoryPool::Block* MemoryPool::take(size_t size, size_t requested, void* stream) {
  StreamPool& pool = pool_of(stream);
  FreeLists& lists = is_small(size) ? pool.small : pool.large;
  Block* block = lists.find(size);
  if (block == nullptr) return nullptr;
  const size_t remainder = block->size - size;
  const bool split = is_small(size) ? remainder >= granule_ : remainder > kLargeRemainder;
  Block* rest = split ? new_block() : nullptr;  // first, since it may throw

  lists.remove(block);
  int64_t split_count = 0, split_bytes = 0;
  if (is_split(block)) {
    split_count -= 1;
    split_bytes -= int64_t(block->size);
  }
  if (rest != nullptr) {
    rest->ptr = static_cast<char*>(block->ptr) + size;
    rest->size = remainder;
    rest->requested = 0;
    rest->stream = stream;
    rest->segment = block->segment;
    rest->in_use = false;
    rest->pending_events = 0;
    rest->prev = block;
    rest->next = block->next;
    if (rest->next != nullptr) rest->next->prev = rest;
    block->next = rest;
    block->size = size;
    lists.insert(rest);
    split_count += 1;
    split_bytes += int64_t(remainder);
  }
  change(stats.inactive_split, split_count);
  change(stats.inactive_split_bytes, split_bytes);
  return use(block, block->size, requested);
}

MemoryPool::Block* MemoryPool::use(Block* block, size_t size, size_t requested) {
  block->requested = requested;
  block->in_use = true;
  add(stats.allocation, 1);
  add(stats.active, 1);
  add(stats.allocated_bytes, int64_t(size));
  add(stats.active_bytes, int64_t(size));
  add(stats.requested_bytes, int64_t(requested));
  return block;
}

MemoryPool::Block* MemoryPool::add_segment(void* base, size_t segment_size, size_t size, size_t requested,
                                           void* stream) {
  auto segment = std::make_unique<Segment>();
  Block* block = new_block();
  StreamPool& pool = pool_of(stream);
  segment->base = base;
  segment->size = segment_size;
  segment->small = is_small(size);
  segment->pool = &pool;
  segment->first = block;
  segment->index = segments_.size();
  block->ptr = base;
  block->size = segment_size;
  block->requested = 0;
  block->stream = stream;
  block->segment = segment.get();
  block->prev = block->next = nullptr;
  block->in_use = false;
  block->pending_events = 0;
  segments_.push_back(std::move(segment));
  block->segment->lists().insert(block);
  add(stats.segment, 1);
  add(stats.reserved_bytes, int64_t(segment_size));
  return take(size, requested, stream);
}

void MemoryPool::end_use(Block* block) {
  block->in_use = false;
  subtract(stats.allocation, 1);
  subtract(stats.allocated_bytes, int64_t(block->size));
  subtract(stats.requested_bytes, int64_t(block->requested));
}

void MemoryPool::absorb_next(Block* block) {
  Block* next = block->next;
  block->size += next->size;
  block->next = next->next;
  if (block->next != nullptr) block->next->prev = block;
  recycle(next);
}

void MemoryPool::make_free(Block* block) {
  subtract(stats.active, 1);
  subtract(stats.active_bytes, int64_t(block->size));
  FreeLists& lists = block->segment->lists();
  int64_t split_count = 0, split_bytes = 0;
  Block* next = block->next;
  if (next != nullptr && is_free(next)) {
    lists.remove(next);
    split_count -= 1;
    split_bytes -= int64_t(next->size);
    absorb_next(block);
  }
  Block* prev = block->prev;
  if (prev != nullptr && is_free(prev)) {
    lists.remove(prev);
    split_count -= 1;
    split_bytes -= int64_t(prev->size);
    absorb_next(prev);
    block = prev;
  }
  if (is_split(block)) {
    split_count += 1;
    split_bytes += int64_t(block->size);
  }
  change(stats.inactive_split, split_count);
  change(stats.inactive_split_bytes, split_bytes);
  lists.insert(block);
}

std::vector<std::unique_ptr<Segment>> MemoryPool::detach_free_segments() {
  std::vector<std::unique_ptr<Segment>> detached;
  detached.reserve(segments_.size());
  for (size_t i = segments_.size(); i-- > 0;) {
    Segment& segment = *segments_[i];
    if (segment.first->next != nullptr || !is_free(segment.first)) continue;
    segment.lists().remove(segment.first);
    recycle(segment.first);
    segment.first = nullptr;
    subtract(stats.segment, 1);
    subtract(stats.reserved_bytes, int64_t(segment.size));
    std::swap(segments_[i], segments_.back());
    segments_[i]->index = i;
    detached.push_back(std::move(segments_.back()));
    segments_.pop_back();
  }
  return detached;
}

}  // namespace torchfl
