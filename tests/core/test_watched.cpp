// test_watched.cpp: who looks on: a Watcher of a device's work, a MemoryListener of an allocator's blocks.
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "allocator_checks.h"
#include "fake_adapter.h"

using fake::Fake;
using torchfl::CachingAllocator;
using torchfl::Device;
using torchfl::MemoryEvent;
using torchfl::MemoryListener;
using torchfl::Work;

namespace {

// Writes down what it is told: "begin npu_v3_add", "end done".
class Notes final : public torchfl::Watcher {
 public:
  std::vector<std::string> lines;
  bool fail_next = false;
  void* begin(Device&, const Work& work) override {
    if (fail_next) {
      fail_next = false;
      throw torchfl::Error(torchfl::ErrorKind::failed, "an earlier failure");
    }
    lines.push_back(std::string("begin ") + work.name + " " + std::to_string(work.bytes));
    return this;
  }
  void end(Device&, void* token, bool done) noexcept override {
    CHECK(token == this);
    lines.push_back(done ? "end done" : "end refused");
  }
};

Notes& notes() {
  static auto* made = new Notes();  // a watcher lives as long as the process
  return *made;
}

std::vector<std::string> taken() { return std::exchange(notes().lines, {}); }

uba_status answer(void*, const uba_call*, int64_t tag) { return uba_status(tag); }

class History final : public MemoryListener {
 public:
  std::vector<MemoryEvent> events;
  std::map<void*, size_t> held;
  size_t reserved = 0;
  bool consistent = true;
  std::mutex mutex;
  void happened(const MemoryEvent& event) noexcept override {
    std::lock_guard<std::mutex> lock(mutex);
    events.push_back(event);
    switch (event.action) {
      case MemoryEvent::Action::alloc:
        consistent &= held.emplace(event.ptr, event.size).second;
        break;
      case MemoryEvent::Action::free_completed:
        consistent &= held.count(event.ptr) == 1 && held[event.ptr] == event.size;
        held.erase(event.ptr);
        break;
      case MemoryEvent::Action::segment_alloc:
        reserved += event.size;
        break;
      case MemoryEvent::Action::segment_free:
        reserved -= event.size;
        break;
      case MemoryEvent::Action::free_requested:
        consistent &= held.count(event.ptr) == 1;
        break;
    }
  }
  std::vector<MemoryEvent::Action> actions() const {
    std::vector<MemoryEvent::Action> out;
    for (const MemoryEvent& event : events) out.push_back(event.action);
    return out;
  }
};

}  // namespace

TEST(a_watched_device_tells_of_each_piece_of_work_and_an_unwatched_one_of_none) {
  Fake chip;
  auto device = chip.device();
  Device::set_watcher(&notes());
  uba_call call{};
  CHECK_EQ(device->run(&answer, call, UBA_OK, "k"), UBA_OK);
  CHECK(taken().empty());
  device->set_watched(true);
  CHECK_EQ(device->run(&answer, call, UBA_OK, "npu_v3_add"), UBA_OK);
  CHECK_EQ(device->run(&answer, call, UBA_NOT_SUPPORTED, "npu_v3_mul"), UBA_NOT_SUPPORTED);
  void* memory = device->alloc(512);
  device->fill(nullptr, memory, 512, 0);
  char host[512] = {};
  device->copy(nullptr, memory, host, 512, UBA_HOST_TO_DEVICE);
  device->copy(nullptr, memory, nullptr, 0, UBA_HOST_TO_DEVICE);  // nothing to do is no work
  device->synchronize(nullptr);
  const std::vector<std::string> wanted = {"begin npu_v3_add 0",  "end done", "begin npu_v3_mul 0",    "end refused",
                                           "begin Memset 512",    "end done", "begin Memcpy HtoD 512", "end done",
                                           "begin synchronize 0", "end done"};
  CHECK(taken() == wanted);
  device->set_watched(false);
  device->synchronize(nullptr);
  CHECK(taken().empty());
  device->free(memory);
}

TEST(work_that_fails_is_told_as_such) {
  Fake chip;
  auto device = chip.device();
  Device::set_watcher(&notes());
  device->set_watched(true);
  chip.script("synchronize", UBA_FAILED, 6, "injected");
  CHECK(ERROR_OF(device->synchronize(nullptr)).find("injected") != std::string::npos);
  CHECK_EQ(taken().back(), "end refused");
  uba_call call{};
  CHECK(ERROR_OF(device->run(&answer, call, UBA_FAILED, "k")).find("kernel k failed") != std::string::npos);
  CHECK_EQ(taken().back(), "end refused");
  notes().fail_next = true;
  CHECK_EQ(ERROR_OF(device->run(&answer, call, UBA_OK, "k")), "an earlier failure");
  CHECK(taken().empty());
}

TEST(a_lost_or_forked_device_stays_so_when_it_is_watched) {
  Fake chip;
  auto device = chip.device();
  Device::set_watcher(&notes());
  device->set_watched(true);
  uba_call call{};
  CHECK(!device->lost());
  CHECK(ERROR_OF(device->run(&answer, call, UBA_DEVICE_LOST, "k")).find("the device is lost") != std::string::npos);
  CHECK(device->lost());
  CHECK(ERROR_OF(device->run(&answer, call, UBA_OK, "k")).find("was lost earlier") != std::string::npos);
  device->set_watched(false);
  CHECK(device->lost());
  taken();
}

TEST(events_of_memory_can_be_replayed) {
  Fake chip;
  auto device = chip.device();
  History history;  // outlives who tells it
  CachingAllocator memory(device.get(), 256);
  Block* before = memory.allocate(1000, nullptr);
  memory.set_listener(&history);
  Block* block = memory.allocate(3 * MiB, nullptr);
  void* where = block->ptr;
  memory.release(block);
  memory.empty_cache();
  using Action = MemoryEvent::Action;
  CHECK((history.actions() == std::vector<Action>{Action::segment_alloc, Action::alloc, Action::free_requested,
                                                  Action::free_completed, Action::segment_free}));
  CHECK(history.events[1].ptr == where);
  CHECK_EQ(history.events[1].size, 3 * MiB);
  CHECK_EQ(history.events[1].requested, 3 * MiB);
  CHECK_EQ(history.reserved, size_t(0));
  memory.set_listener(nullptr);
  memory.release(before);
  CHECK_EQ(history.events.size(), size_t(5));
}

TEST(a_block_of_two_streams_is_completed_when_both_have_passed) {
  Fake chip;
  auto device = chip.device();
  History history;  // outlives who tells it
  CachingAllocator memory(device.get(), 256);
  memory.set_listener(&history);
  void* other = fake::stream(1);
  Block* block = memory.allocate(4096, nullptr);
  device->fill(other, block->ptr, 4096, 0);
  memory.record_stream(block, other);
  memory.release(block);
  using Action = MemoryEvent::Action;
  CHECK(history.events.back().action == Action::free_requested);
  chip.finish(other);
  memory.release(memory.allocate(4096, nullptr));
  CHECK(history.events[3].action == Action::free_completed);
  CHECK(history.consistent);
  CHECK(history.held.empty());
}

TEST(threads_leave_a_history_that_can_be_replayed) {
  Fake chip;
  auto device = chip.device();
  History history;  // outlives who tells it
  CachingAllocator memory(device.get(), 256);
  memory.set_listener(&history);
  auto work = [&](unsigned seed) {
    std::vector<Block*> held;
    for (int i = 0; i < 2000; ++i) {
      seed = seed * 1103515245u + 12345u;
      if ((seed >> 16) % 3 != 0 || held.empty()) {
        held.push_back(memory.allocate(1 + (seed >> 8) % 100000, nullptr));
      } else {
        memory.release(held.back());
        held.pop_back();
      }
    }
    for (Block* block : held) memory.release(block);
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  CHECK(history.consistent);
  CHECK(history.held.empty());
  CHECK_EQ(history.reserved, size_t(memory.stats().reserved_bytes.current));
  memory.empty_cache();
  CHECK_EQ(history.reserved, size_t(0));
}

int main(int argc, char** argv) { return check::run_tests(argc, argv); }
