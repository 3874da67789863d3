// memory_history.h: who holds a device's memory, and who held it: what `torch.<chip>.memory` records and shows.
//
// Contract: an allocator has a listener only while its device's history is on or PyTorch's profiler runs; otherwise an
// allocation pays one load. Stacks are taken under the GIL, on the thread that allocates or frees, while no lock of the
// allocator is held: whoever holds another lock around that must not hold it while waiting for the GIL. The history
// survives being turned off, until it is cleared or turned on again.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "caching_allocator.h"

namespace torch {
struct CapturedTraceback;
}

namespace torchfl {
struct DeviceEntry;

namespace memory_history {

struct Settings {
  bool events = false;  // keep what happens; else only what is held now
  bool alloc_stacks = false, free_stacks = false;
  bool cpp_stacks = false;  // C++ frames too: looking up their names is slow
  size_t max_entries = 0;   // events; the oldest go first
};

// Where something was asked for. Autograd's threads have no Python frames: then the node of the backward says it.
struct Stack {
  std::shared_ptr<torch::CapturedTraceback> frames;  // NULL: none was taken
  std::string node;                                  // "AddmmBackward0"
};
struct Entry {
  enum class Action : uint8_t { alloc, free_requested, free_completed, segment_alloc, segment_free, oom, snapshot };
  Action action;
  uint64_t address = 0;  // oom: what was free on the device
  uint64_t size = 0;
  uint64_t stream = 0;
  int64_t microseconds = 0;  // since the epoch
  Stack stack;
};
const char* action_name(Entry::Action action);

void record(int device, const Settings& settings);  // from now on; forgets what was
void stop(int device);
bool recording(int device);
void clear(int device);
std::vector<Entry> entries(int device);
// The stacks of what is held, by address of the block.
std::vector<std::pair<uint64_t, Stack>> held(int device);
void note_snapshot(int device);

// An allocation failed: notes it, and says who holds the most ("" if no history is on). Takes the GIL.
std::string out_of_memory(DeviceEntry& entry, size_t bytes);

// While on, allocations of all devices are told to PyTorch's profiler too. Nests.
void report_to_pytorch(bool on);

void device_opened(DeviceEntry& entry);

}  // namespace memory_history
}  // namespace torchfl
