// test_allocator.cpp: reuse, splitting, alignment, statistics, limits and out-of-memory.
#include "allocator_checks.h"
#include "fake_adapter.h"

using fake::Fake;
using torchfl::CachingAllocator;
using torchfl::MemoryStats;

TEST(a_released_block_is_handed_out_again_at_once) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  Block* first = memory.allocate(1000, nullptr);
  CHECK_EQ(first->size, size_t(1024));
  CHECK_EQ(first->requested, size_t(1000));
  const uint64_t where = address(first);
  memory.release(first);
  Block* second = memory.allocate(900, nullptr);
  CHECK_EQ(address(second), where);
  CHECK_EQ(chip.calls("alloc"), 1);
  CHECK_EQ(chip.calls("synchronize"), 0);
  memory.release(second);
  check_consistent(memory);
}

TEST(segments_have_the_sizes_that_the_header_states) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  memory.allocate(1, nullptr);
  CHECK_EQ(memory.stats().reserved_bytes.current, int64_t(2 * MiB));
  memory.allocate(MiB - 512, nullptr);  // below 1 MiB: from the same segment
  CHECK_EQ(memory.stats().reserved_bytes.current, int64_t(2 * MiB));
  memory.allocate(MiB, nullptr);
  CHECK_EQ(memory.stats().reserved_bytes.current, int64_t(22 * MiB));
  memory.allocate(10 * MiB, nullptr);  // 19 MiB are left in the segment of 20
  CHECK_EQ(memory.stats().reserved_bytes.current, int64_t(22 * MiB));
  memory.allocate(10 * MiB + 1, nullptr);
  CHECK_EQ(memory.stats().reserved_bytes.current, int64_t(34 * MiB));
  check_consistent(memory);
}

TEST(every_address_is_aligned) {
  for (size_t alignment : {size_t(1), size_t(64), size_t(256), size_t(512), size_t(1024), size_t(4096), size_t(768)}) {
    Fake chip;
    chip.alignment = alignment == 768 ? 768 : 4096;
    auto device = chip.device();
    CachingAllocator memory(device.get(), alignment);
    std::vector<Block*> blocks;
    for (size_t bytes :
         {size_t(1), size_t(513), size_t(5000), 700 * size_t(1024), MiB - 1, 3 * MiB + 5, 30 * MiB + 7}) {
      blocks.push_back(memory.allocate(bytes, nullptr));
      CHECK_EQ(address(blocks.back()) % alignment, uint64_t(0));
      CHECK(blocks.back()->size >= bytes);
    }
    check_consistent(memory);
    for (Block* block : blocks) memory.release(block);
    check_consistent(memory);
    memory.empty_cache();
    CHECK_EQ(chip.used, uint64_t(0));
  }
}

TEST(an_adapter_that_breaks_the_alignment_is_told) {
  Fake chip;
  chip.alignment = 512;
  chip.address_offset = 64;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  std::string text = ERROR_OF(memory.allocate(4, nullptr));
  CHECK_CONTAINS(text, "not a multiple of 256");
  CHECK_CONTAINS(text, "/fake/libuba_fake.so");
  CHECK_EQ(chip.used, uint64_t(0));
}

TEST(neighbours_merge) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  std::vector<Block*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(memory.allocate(512 * 1024, nullptr));
  CHECK_EQ(memory.stats().segment.current, int64_t(1));
  const uint64_t start = address(blocks[0]);
  memory.release(blocks[1]);
  memory.release(blocks[3]);
  CHECK_EQ(memory.stats().inactive_split.current, int64_t(2));
  memory.release(blocks[2]);
  CHECK_EQ(memory.stats().inactive_split.current, int64_t(1));
  check_consistent(memory);
  memory.release(blocks[0]);
  CHECK_EQ(memory.stats().inactive_split.current, int64_t(0));
  Block* whole = memory.allocate(MiB - 512, nullptr);
  CHECK_EQ(address(whole), start);
  CHECK_EQ(chip.calls("alloc"), 1);
  memory.release(whole);
  check_consistent(memory);
}

TEST(the_smallest_block_that_fits_is_taken) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  for (size_t unit : {size_t(512), 2 * MiB}) {
    Block* wide = memory.allocate(8 * unit, nullptr);
    Block* wall = memory.allocate(unit, nullptr);
    Block* narrow = memory.allocate(4 * unit, nullptr);
    Block* end = memory.allocate(unit, nullptr);
    const uint64_t where = address(narrow);
    memory.release(wide);
    memory.release(narrow);
    Block* again = memory.allocate(3 * unit, nullptr);
    CHECK_EQ(address(again), where);
    for (Block* block : {again, wall, end}) memory.release(block);
    check_consistent(memory);
  }
}

TEST(empty_cache_frees_only_what_is_wholly_free_and_synchronises_first) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  Block* kept = memory.allocate(4096, nullptr);
  Block* freed = memory.allocate(12 * MiB, fake::stream(1));
  memory.release(freed);
  memory.empty_cache();
  CHECK_EQ(chip.calls("synchronize"), 1);
  CHECK_EQ(chip.calls("free"), 1);
  CHECK_EQ(memory.stats().reserved_bytes.current, int64_t(2 * MiB));
  CHECK_EQ(memory.stats().num_device_free, int64_t(1));
  memory.release(kept);
  memory.empty_cache();
  CHECK_EQ(chip.used, uint64_t(0));
  CHECK_EQ(chip.misuse, 0);
  check_consistent(memory);
}

TEST(when_memory_is_short_the_cache_is_freed_and_the_allocation_retried) {
  Fake chip;
  chip.capacity = 40 * MiB;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  memory.release(memory.allocate(16 * MiB, nullptr));
  memory.release(memory.allocate(14 * MiB, fake::stream(1)));
  Block* block = memory.allocate(30 * MiB, nullptr);
  CHECK_EQ(block->size, 30 * MiB);
  MemoryStats stats = memory.stats();
  CHECK_EQ(stats.num_alloc_retries, int64_t(1));
  CHECK_EQ(stats.num_ooms, int64_t(0));
  CHECK_EQ(stats.num_device_free, int64_t(2));
  CHECK_EQ(stats.num_sync_all_streams, int64_t(1));
  check_consistent(memory);
}

TEST(a_segment_that_does_not_fit_whole_is_taken_to_measure) {
  Fake chip;
  chip.capacity = 12 * MiB;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  CHECK_EQ(memory.allocate(3 * MiB, nullptr)->size, 3 * MiB);
  CHECK_EQ(memory.allocate(9 * MiB, nullptr)->size, 9 * MiB);
  check_consistent(memory);
}

TEST(the_largest_allocation_is_respected) {
  Fake chip;
  chip.max_allocation = 4 * MiB;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  CHECK_EQ(memory.allocate(3 * MiB, nullptr)->size, 3 * MiB);
  chip.script("alloc", UBA_OUT_OF_MEMORY);
  chip.script("alloc", UBA_OUT_OF_MEMORY);
  CHECK_CONTAINS(ERROR_OF(memory.allocate(5 * MiB, nullptr)), "at most 4.00 MiB in one piece");
}

TEST(out_of_memory_tells_the_numbers_and_what_to_do) {
  Fake chip;
  chip.capacity = 64 * MiB;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  Block* held = memory.allocate(48 * MiB, nullptr);
  std::string text = ERROR_OF(memory.allocate(32 * MiB, nullptr));
  CHECK_CONTAINS(text, "npu_v3:0: out of memory: tried to allocate 32.00 MiB");
  CHECK_CONTAINS(text, "Of 64.00 MiB in total, 16.00 MiB are free");
  CHECK_CONTAINS(text, "holds 48.00 MiB: 48.00 MiB allocated to tensors, 0 bytes cached");
  CHECK_CONTAINS(text, "Use a smaller batch");
  CHECK_CONTAINS(text, "no room on the chip (SDK code 3)");
  CHECK_EQ(memory.stats().num_ooms, int64_t(1));
  try {
    memory.allocate(32 * MiB, nullptr);
  } catch (const torchfl::Error& error) {
    CHECK(error.kind == torchfl::ErrorKind::out_of_memory);
    CHECK_EQ(error.sdk_code, int64_t(3));
  }
  memory.release(held);
  memory.release(memory.allocate(32 * MiB, nullptr));  // and it goes on
  CHECK_CONTAINS(ERROR_OF(memory.allocate(SIZE_MAX, nullptr)), "out of memory");
  check_consistent(memory);
}

TEST(out_of_memory_by_fragmentation_says_so) {
  Fake chip;
  chip.capacity = 20 * MiB;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  std::vector<Block*> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(memory.allocate(2 * MiB, nullptr));
  for (int i = 0; i < 10; i += 2) memory.release(blocks[size_t(i)]);
  CHECK_CONTAINS(ERROR_OF(memory.allocate(4 * MiB, nullptr)), "fragmented");
  check_consistent(memory);
}

TEST(a_limit_is_out_of_memory_too) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  memory.set_limit(8 * MiB);
  Block* held = memory.allocate(6 * MiB, nullptr);
  std::string text = ERROR_OF(memory.allocate(4 * MiB, nullptr));
  CHECK_CONTAINS(text, "limited to 8.00 MiB");
  memory.release(held);
  memory.release(memory.allocate(7 * MiB, nullptr));
  memory.set_limit(0);
  memory.allocate(100 * MiB, nullptr);
  check_consistent(memory);
}

TEST(other_failures_of_alloc_are_not_out_of_memory) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  chip.script("alloc", UBA_FAILED, 6, "broken");
  CHECK_CONTAINS(ERROR_OF(memory.allocate(4, nullptr)), "alloc failed: broken (SDK code 6");
  CHECK_EQ(memory.stats().num_ooms, int64_t(0));
  memory.release(memory.allocate(4, nullptr));
  CHECK_CONTAINS(ERROR_OF(memory.allocate(0, nullptr)), "zero bytes");
}

TEST(a_failure_met_while_freeing_is_thrown_after_the_rest_was_freed) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  memory.release(memory.allocate(12 * MiB, nullptr));
  memory.release(memory.allocate(12 * MiB, fake::stream(1)));
  chip.script("synchronize", UBA_FAILED, 6, "earlier work failed");
  CHECK_CONTAINS(ERROR_OF(memory.empty_cache()), "earlier work failed");
  CHECK_EQ(chip.used, uint64_t(0));
  check_consistent(memory);
}

TEST(statistics_follow_torch_cuda) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  Block* a = memory.allocate(1000, nullptr);
  Block* b = memory.allocate(3000, nullptr);
  memory.release(a);
  MemoryStats stats = memory.stats();
  CHECK_EQ(stats.allocation.current, int64_t(1));
  CHECK_EQ(stats.allocation.peak, int64_t(2));
  CHECK_EQ(stats.allocation.allocated, int64_t(2));
  CHECK_EQ(stats.allocation.freed, int64_t(1));
  CHECK_EQ(stats.allocated_bytes.current, int64_t(3072));
  CHECK_EQ(stats.allocated_bytes.peak, int64_t(4096));
  CHECK_EQ(stats.requested_bytes.current, int64_t(3000));
  CHECK_EQ(stats.segment.current, int64_t(1));
  CHECK_EQ(stats.inactive_split.current, int64_t(2));
  CHECK_EQ(stats.inactive_split_bytes.current, int64_t(2 * MiB - 3072));
  CHECK_EQ(stats.num_device_alloc, int64_t(1));

  memory.reset_peak();
  CHECK_EQ(memory.stats().allocation.peak, int64_t(1));
  CHECK_EQ(memory.stats().allocated_bytes.peak, int64_t(3072));
  memory.reset_accumulated();
  CHECK_EQ(memory.stats().allocation.allocated, int64_t(0));
  CHECK_EQ(memory.stats().allocation.freed, int64_t(0));
  CHECK_EQ(memory.stats().allocation.current, int64_t(1));
  CHECK_EQ(memory.stats().num_device_alloc, int64_t(0));
  CHECK_CONTAINS(memory.summary_line(), "3.00 KiB allocated, 2.00 MiB cached");
  memory.release(b);
}

TEST(the_snapshot_shows_each_block) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  Block* used = memory.allocate(1000, nullptr);
  Block* pending = memory.allocate(1000, nullptr);
  device->fill(fake::stream(7), pending->ptr, 4, 0);
  memory.record_stream(pending, fake::stream(7));
  memory.release(pending);
  auto segments = memory.snapshot();
  CHECK_EQ(segments.size(), size_t(1));
  CHECK_EQ(segments[0].type, "small");
  CHECK_EQ(segments[0].blocks.size(), size_t(3));
  CHECK_EQ(segments[0].blocks[0].state, "active_allocated");
  CHECK_EQ(segments[0].blocks[0].requested, uint64_t(1000));
  CHECK_EQ(segments[0].blocks[1].state, "active_pending_free");
  CHECK_EQ(segments[0].blocks[2].state, "inactive");
  memory.release(used);
  memory.allocate(5 * MiB, fake::stream(3));
  CHECK_EQ(memory.snapshot()[1].type, "large");
  CHECK_EQ(memory.snapshot()[1].stream, reinterpret_cast<uint64_t>(fake::stream(3)));
}

int main(int argc, char** argv) { return check::run_tests(argc, argv); }
