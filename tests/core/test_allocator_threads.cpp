// test_allocator_threads.cpp: many threads on one allocator; meant to run under ThreadSanitizer too.
#include <atomic>
#include <random>
#include <thread>

#include "caching_allocator.h"
#include "check.h"
#include "fake_adapter.h"

using fake::Fake;
using torchfl::CachingAllocator;
using Block = CachingAllocator::Block;

namespace {
constexpr size_t MiB = size_t(1) << 20;
constexpr int kThreads = 4;

// An owner for every 512 bytes of address space that the fake device can hand out in one test.
struct Owners {
  std::vector<std::atomic<int>> slots = std::vector<std::atomic<int>>(size_t(1) << 22);
  std::atomic<int> conflicts{0};
  void mark(const Block* block, int from, int to) {
    const uint64_t first = (reinterpret_cast<uint64_t>(block->ptr) - (uint64_t(1) << 32)) / 512;
    for (uint64_t i = first; i < first + block->size / 512; i += 1 + block->size / 8192) {
      int expected = from;
      if (!slots[i % slots.size()].compare_exchange_strong(expected, to)) ++conflicts;
    }
  }
};
}  // namespace

TEST(no_block_has_two_owners) {
  Fake chip;
  chip.capacity = 256 * MiB;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  Owners owners;
  std::atomic<int> unexpected{0};
  std::vector<std::thread> threads;
  for (int id = 1; id <= kThreads; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937 random{unsigned(id)};
      std::vector<Block*> mine;
      void* stream = id % 2 ? nullptr : fake::stream(uintptr_t(id));
      for (int step = 0; step < 4000; ++step) {
        try {
          if (random() % 2 == 0 || mine.empty()) {
            Block* block = memory.allocate(1 + random() % (size_t(1) << (random() % 21)), stream);
            owners.mark(block, 0, id);
            mine.push_back(block);
          } else {
            std::swap(mine[random() % mine.size()], mine.back());
            Block* block = mine.back();
            mine.pop_back();
            if (random() % 8 == 0) {
              device->fill(fake::stream(9), block->ptr, 1, 0);
              memory.record_stream(block, fake::stream(9));
            }
            owners.mark(block, id, 0);
            memory.release(block);
          }
          if (random() % 64 == 0) chip.finish_all();
          if (random() % 1000 == 0) memory.empty_cache();
          if (random() % 500 == 0) memory.snapshot();
          if (random() % 100 == 0) memory.stats();
        } catch (const torchfl::Error& error) {
          if (error.kind != torchfl::ErrorKind::out_of_memory) ++unexpected;
        }
      }
      for (Block* block : mine) {
        owners.mark(block, id, 0);
        memory.release(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK_EQ(owners.conflicts.load(), 0);
  CHECK_EQ(unexpected.load(), 0);
  CHECK_EQ(memory.stats().allocation.current, int64_t(0));
  memory.empty_cache();
  CHECK_EQ(memory.stats().reserved_bytes.current, int64_t(0));
  CHECK_EQ(chip.used, uint64_t(0));
  CHECK_EQ(chip.misuse, 0);
}

TEST(a_block_is_released_by_another_thread_than_allocated_it) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  std::vector<Block*> handed(2000);
  std::atomic<size_t> ready{0};
  std::thread consumer([&] {
    for (size_t i = 0; i < handed.size(); ++i) {
      while (ready.load(std::memory_order_acquire) <= i) std::this_thread::yield();
      memory.release(handed[i]);
    }
  });
  for (size_t i = 0; i < handed.size(); ++i) {
    handed[i] = memory.allocate(1 + i * 37 % 9000, nullptr);
    ready.store(i + 1, std::memory_order_release);
  }
  consumer.join();
  CHECK_EQ(memory.stats().allocated_bytes.current, int64_t(0));
  CHECK_EQ(memory.stats().inactive_split.current, int64_t(0));
}

TEST(one_thread_loses_the_device_while_others_use_it) {
  Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      for (int step = 0; step < 2000; ++step) {
        try {
          Block* block = memory.allocate(4096, nullptr);
          if (id == 0 && step == 1000) chip.script("fill", UBA_DEVICE_LOST, 8, "gone");
          try {
            device->fill(nullptr, block->ptr, 4, 0);
          } catch (const torchfl::Error&) {
            memory.release(block);
            throw;
          }
          memory.release(block);
        } catch (const torchfl::Error& error) {
          if (error.kind != torchfl::ErrorKind::device_lost) ++wrong;
          if (std::string(error.what()).find("fill: gone") == std::string::npos) ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(device->lost());
  CHECK_EQ(wrong.load(), 0);
  CHECK_EQ(memory.stats().allocation.current, int64_t(0));
}

int main(int argc, char** argv) { return check::run_tests(argc, argv); }
