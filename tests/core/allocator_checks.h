// allocator_checks.h: what the tests of the allocator share.
#pragma once
#include <cstdint>

#include "caching_allocator.h"
#include "check.h"

using Block = torchfl::CachingAllocator::Block;

inline constexpr size_t MiB = size_t(1) << 20;

inline uint64_t address(const Block* block) { return reinterpret_cast<uint64_t>(block->ptr); }

// What must hold at any time: the snapshot tiles each segment, free neighbours are merged, the counters agree.
inline void check_consistent(const torchfl::CachingAllocator& memory) {
  int64_t reserved = 0, allocated = 0, active = 0, requested = 0, split_bytes = 0;
  int64_t blocks = 0, active_blocks = 0, split_blocks = 0, segments = 0;
  for (const auto& segment : memory.snapshot()) {
    ++segments;
    reserved += int64_t(segment.total_size);
    uint64_t at = segment.address;
    bool previous_free = false;
    for (const auto& block : segment.blocks) {
      CHECK_EQ(block.address, at);
      CHECK_EQ(block.address % memory.alignment(), uint64_t(0));
      at += block.size;
      const bool is_free = block.state == "inactive";
      CHECK(!(is_free && previous_free));
      previous_free = is_free;
      if (is_free) {
        if (segment.blocks.size() > 1) {
          ++split_blocks;
          split_bytes += int64_t(block.size);
        }
        continue;
      }
      ++active_blocks;
      active += int64_t(block.size);
      if (block.state == "active_allocated") {
        ++blocks;
        allocated += int64_t(block.size);
        requested += int64_t(block.requested);
      }
    }
    CHECK_EQ(at, segment.address + segment.total_size);
  }
  torchfl::MemoryStats stats = memory.stats();
  CHECK_EQ(stats.segment.current, segments);
  CHECK_EQ(stats.reserved_bytes.current, reserved);
  CHECK_EQ(stats.allocation.current, blocks);
  CHECK_EQ(stats.allocated_bytes.current, allocated);
  CHECK_EQ(stats.requested_bytes.current, requested);
  CHECK_EQ(stats.active.current, active_blocks);
  CHECK_EQ(stats.active_bytes.current, active);
  CHECK_EQ(stats.inactive_split.current, split_blocks);
  CHECK_EQ(stats.inactive_split_bytes.current, split_bytes);
  for (const torchfl::Counter& counter :
       {stats.allocation, stats.segment, stats.active, stats.inactive_split, stats.allocated_bytes,
        stats.reserved_bytes, stats.active_bytes, stats.inactive_split_bytes, stats.requested_bytes}) {
    CHECK_EQ(counter.current, counter.allocated - counter.freed);
    CHECK(counter.peak >= counter.current);
  }
}
