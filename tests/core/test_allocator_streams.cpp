// test_allocator_streams.cpp: blocks that several streams use, lost and forked devices, and random calls against a
// model.
#include <map>
#include <random>

#include "allocator_checks.h"
#include "fake_adapter.h"

using fake::Fake;
using torchfl::CachingAllocator;

TEST(streams_do_not_share_blocks) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  void* other = fake::stream(1);
  Block* first = memory.allocate(4096, nullptr);
  const uint64_t where = address(first);
  memory.release(first);
  Block* second = memory.allocate(4096, other);
  CHECK(address(second) != where);
  CHECK(second->stream == other);
  CHECK_EQ(chip.calls("alloc"), 2);
}

TEST(a_block_that_another_stream_used_waits_for_that_stream) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  void* other = fake::stream(1);
  Block* block = memory.allocate(4096, nullptr);
  const uint64_t where = address(block);
  device->fill(other, block->ptr, 4096, 0);
  memory.record_stream(block, other);
  memory.record_stream(block, other);    // twice is once
  memory.record_stream(block, nullptr);  // its own stream needs no record
  memory.release(block);
  CHECK_EQ(chip.calls("event_record"), 1);
  CHECK_EQ(memory.stats().allocation.current, int64_t(0));
  CHECK_EQ(memory.stats().active.current, int64_t(1));
  check_consistent(memory);

  Block* second = memory.allocate(4096, nullptr);
  CHECK(address(second) != where);
  chip.finish(other);
  Block* third = memory.allocate(4096, nullptr);
  CHECK_EQ(address(third), where);
  CHECK(chip.events.empty());
  CHECK_EQ(memory.stats().active.current, int64_t(2));
  memory.release(second);
  memory.release(third);
  CHECK_EQ(chip.calls("event_record"), 1);  // the record does not outlive the block
  check_consistent(memory);
}

TEST(a_block_used_by_several_streams_waits_for_all) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  void *one = fake::stream(1), *two = fake::stream(2);
  Block* block = memory.allocate(4096, nullptr);
  const uint64_t where = address(block);
  for (void* stream : {one, two}) {
    device->fill(stream, block->ptr, 4096, 0);
    memory.record_stream(block, stream);
  }
  memory.release(block);
  chip.finish(two);
  CHECK(address(memory.allocate(4096, nullptr)) != where);
  chip.finish(one);
  CHECK_EQ(address(memory.allocate(4096, nullptr)), where);
}

TEST(empty_cache_waits_for_pending_blocks) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  Block* block = memory.allocate(4096, nullptr);
  device->fill(fake::stream(1), block->ptr, 4096, 0);
  memory.record_stream(block, fake::stream(1));
  memory.release(block);
  memory.empty_cache();
  CHECK_EQ(chip.calls("event_synchronize"), 1);
  CHECK_EQ(chip.used, uint64_t(0));
  CHECK(chip.events.empty());
  CHECK_EQ(memory.stats().reserved_bytes.current, int64_t(0));
}

TEST(without_events_the_stream_is_waited_for) {
  Fake chip;
  chip.without_events();
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  Block* block = memory.allocate(4096, nullptr);
  const uint64_t where = address(block);
  memory.record_stream(block, fake::stream(1));
  memory.release(block);
  CHECK_EQ(chip.calls("synchronize"), 1);
  CHECK_EQ(address(memory.allocate(4096, nullptr)), where);
}

TEST(a_failure_that_release_met_is_thrown_by_the_next_allocation) {
  Fake chip;
  chip.without_events();
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  Block* block = memory.allocate(4096, nullptr);
  memory.record_stream(block, fake::stream(1));
  chip.script("synchronize", UBA_FAILED, 6, "the kernel before went wrong");
  memory.release(block);
  CHECK_CONTAINS(ERROR_OF(memory.allocate(4096, nullptr)), "the kernel before went wrong (SDK code 6");
  memory.release(memory.allocate(4096, nullptr));  // reported once
  check_consistent(memory);
}

TEST(an_event_that_cannot_be_recorded_is_replaced_by_asking_the_stream) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  void* other = fake::stream(1);
  Block* block = memory.allocate(4096, nullptr);
  const uint64_t where = address(block);
  device->fill(other, block->ptr, 4096, 0);
  memory.record_stream(block, other);
  chip.script("event_create", UBA_FAILED, 1, "no more events");
  memory.release(block);
  CHECK(address(memory.allocate(4096, nullptr)) != where);
  chip.finish(other);
  CHECK_EQ(address(memory.allocate(4096, nullptr)), where);
  check_consistent(memory);
}

TEST(on_a_lost_device_release_forgets_and_everything_else_throws) {
  Fake chip;
  auto device = chip.device();
  {
    CachingAllocator memory(device.get(), 256);
    Block* plain = memory.allocate(4096, nullptr);
    Block* recorded = memory.allocate(4096, nullptr);
    memory.record_stream(recorded, fake::stream(1));
    chip.script("synchronize", UBA_DEVICE_LOST, 8, "gone");
    ERROR_OF(device->synchronize(nullptr));
    const int before = chip.calls("event_record") + chip.calls("free") + chip.calls("event_create");
    memory.release(plain);
    memory.release(recorded);
    CHECK_EQ(chip.calls("event_record") + chip.calls("free") + chip.calls("event_create"), before);
    CHECK_CONTAINS(ERROR_OF(memory.allocate(4096, nullptr)), "lost earlier");  // also on a hit
    CHECK_CONTAINS(ERROR_OF(memory.empty_cache()), "lost earlier");
    check_consistent(memory);
  }
  CHECK_EQ(chip.calls("free"), 0);
}

TEST(a_device_lost_while_the_cache_is_freed) {
  Fake chip;
  chip.capacity = 20 * MiB;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  memory.release(memory.allocate(12 * MiB, nullptr));
  chip.script("synchronize", UBA_DEVICE_LOST, 8, "gone");
  CHECK_CONTAINS(ERROR_OF(memory.allocate(16 * MiB, nullptr)), "the device is lost: synchronize: gone");
  check_consistent(memory);
}

TEST(a_forked_child_neither_allocates_nor_frees) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  Block* block = memory.allocate(4096, nullptr);
  device->mark_forked();
  memory.release(block);
  CHECK_EQ(memory.stats().allocation.current, int64_t(1));
  CHECK_CONTAINS(ERROR_OF(memory.allocate(4096, nullptr)), "forked");
}

// Random calls against the simplest model there is: the set of address ranges in use.
TEST(random_calls_agree_with_a_model) {
  for (unsigned seed = 1; seed <= 6; ++seed) {
    Fake chip;
    chip.capacity = 96 * MiB;
    if (seed % 3 == 0) chip.without_events();
    auto device = chip.device();
    CachingAllocator memory(device.get(), seed % 2 ? 256 : 4096);
    std::mt19937 random(seed);
    std::map<uint64_t, uint64_t> in_use;  // address -> end
    std::vector<Block*> blocks;
    int refused = 0;
    for (int step = 0; step < 6000; ++step) {
      const unsigned choice = random() % 100;
      if (choice < 52) {
        const int scale = int(random() % 24);
        const size_t bytes = 1 + random() % (size_t(1) << scale);
        void* stream = random() % 4 == 0 ? fake::stream(1 + random() % 3) : nullptr;
        Block* block = nullptr;
        try {
          block = memory.allocate(bytes, stream);
        } catch (const torchfl::Error& error) {
          CHECK(error.kind == torchfl::ErrorKind::out_of_memory);
          ++refused;
          continue;
        }
        const uint64_t begin = address(block), end = begin + block->size;
        auto next = in_use.upper_bound(begin);
        CHECK(next == in_use.end() || next->first >= end);
        CHECK(next == in_use.begin() || std::prev(next)->second <= begin);
        in_use[begin] = end;
        blocks.push_back(block);
      } else if (choice < 96 && !blocks.empty()) {
        std::swap(blocks[random() % blocks.size()], blocks.back());
        Block* block = blocks.back();
        blocks.pop_back();
        if (random() % 5 == 0) {
          void* stream = fake::stream(1 + random() % 3);
          device->fill(stream, block->ptr, 1, 0);
          memory.record_stream(block, stream);
        }
        in_use.erase(address(block));
        memory.release(block);
      } else if (choice == 96) {
        chip.finish_all();
      } else if (choice == 97 && random() % 20 == 0) {
        memory.empty_cache();
      }
      if (step % 500 == 0) check_consistent(memory);
    }
    check_consistent(memory);
    CHECK_EQ(size_t(memory.stats().allocation.current), blocks.size());
    CHECK(refused > 0 || memory.stats().num_alloc_retries > 0);
    for (Block* block : blocks) memory.release(block);
    memory.empty_cache();
    CHECK_EQ(chip.used, uint64_t(0));
    CHECK_EQ(chip.misuse, 0);
    CHECK(chip.events.empty());
    check_consistent(memory);
  }
}

int main(int argc, char** argv) { return check::run_tests(argc, argv); }
