// memory_history.cpp: see memory_history.h.
#include "memory_history.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/profiler/combined_traceback.h>

#include <Python.h>
#include <c10/core/Allocator.h>

#include <chrono>
#include <deque>
#include <mutex>
#include <unordered_map>

#include "runtime.h"

namespace torchfl::memory_history {
namespace {

struct History {
  std::mutex mutex;
  bool on = false;
  Settings settings;
  std::deque<Entry> entries;
  struct Holder {
    Stack stack;
    uint64_t size;
  };
  std::unordered_map<uint64_t, Holder> held;  // by address
  uint64_t dropped = 0;                       // entries that went, the oldest first

  void add(Entry entry) {
    if (!settings.events || settings.max_entries == 0) return;
    if (entries.size() >= settings.max_entries) {
      entries.pop_front();
      ++dropped;
    }
    entries.push_back(std::move(entry));
  }
};
History g_histories[kMaxDevices];
std::atomic<int> g_reporting{0};

int64_t microseconds() {
  return std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Stack stack_here(bool cpp) {
  Stack stack;
  try {
    stack.frames = torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, cpp);
    if (const auto node = torch::autograd::get_current_node()) stack.node = node->name();
  } catch (...) {  // an interpreter at its end
  }
  return stack;
}

Entry::Action action_of(MemoryEvent::Action action) {
  switch (action) {
    case MemoryEvent::Action::alloc:
      return Entry::Action::alloc;
    case MemoryEvent::Action::free_requested:
      return Entry::Action::free_requested;
    case MemoryEvent::Action::free_completed:
      return Entry::Action::free_completed;
    case MemoryEvent::Action::segment_alloc:
      return Entry::Action::segment_alloc;
    case MemoryEvent::Action::segment_free:
      break;
  }
  return Entry::Action::segment_free;
}

class Listener final : public MemoryListener {
 public:
  int index = 0;
  DeviceEntry* entry = nullptr;

  void happened(const MemoryEvent& event) noexcept override {
    try {
      History& history = g_histories[index];
      bool on;
      Settings settings;
      {
        std::lock_guard<std::mutex> lock(history.mutex);
        on = history.on;
        settings = history.settings;
      }
      if (on) remember(history, settings, event);
      if (g_reporting.load(std::memory_order_relaxed) > 0 && c10::memoryProfilingEnabled()) report(event);
    } catch (...) {  // no host memory for a note: memory itself goes on
    }
  }

 private:
  void remember(History& history, const Settings& settings, const MemoryEvent& event) {
    const bool alloc = event.action == MemoryEvent::Action::alloc;
    const bool freed = event.action == MemoryEvent::Action::free_requested;
    Stack stack;
    if (alloc && settings.alloc_stacks) stack = stack_here(settings.cpp_stacks);
    if (freed && settings.free_stacks) stack = stack_here(settings.cpp_stacks);
    const auto address = reinterpret_cast<uint64_t>(event.ptr);
    std::lock_guard<std::mutex> lock(history.mutex);
    if (!history.on) return;
    // A segment is allocated for the block that follows on this thread: they have one stack.
    thread_local uint64_t segment_of = 0;
    thread_local size_t segment_entry = 0;
    if (event.action == MemoryEvent::Action::segment_alloc) {
      segment_of = address;
      segment_entry = history.entries.size() + history.dropped;
    }
    history.add({action_of(event.action), address, event.size, reinterpret_cast<uint64_t>(event.stream), microseconds(),
                 stack});
    if (alloc) {
      history.held[address] = {stack, event.size};
      if (segment_of == address && segment_entry >= history.dropped) {
        const size_t at = segment_entry - history.dropped;
        if (at < history.entries.size() && history.entries[at].action == Entry::Action::segment_alloc)
          history.entries[at].stack = stack;
      }
      segment_of = 0;
    } else if (freed) {
      history.held.erase(address);
    }
  }

  // PyTorch counts what tensors hold, as torch.cuda tells it: a free when it is requested.
  void report(const MemoryEvent& event) {
    int64_t change;
    if (event.action == MemoryEvent::Action::alloc) {
      change = int64_t(event.size);
    } else if (event.action == MemoryEvent::Action::free_completed) {
      change = -int64_t(event.size);
    } else {
      return;
    }
    const MemoryStats stats = entry->allocator->stats();
    // A free is told before it is done.
    const int64_t allocated = stats.allocated_bytes.current + (change < 0 ? change : 0);
    c10::reportMemoryUsageToProfiler(event.ptr, change, size_t(allocated), size_t(stats.reserved_bytes.current),
                                     c10::Device(kDevice, c10::DeviceIndex(index)));
  }
};
Listener g_listeners[kMaxDevices];

// Has a device's allocator listened to exactly if somebody wants it.
void listen(DeviceEntry& entry) {
  static std::mutex mutex;  // two who change it must not overtake each other
  std::lock_guard<std::mutex> lock(mutex);
  Listener& listener = g_listeners[entry.index];
  if (listener.entry == nullptr) {
    listener.index = entry.index;
    listener.entry = &entry;
  }
  const bool wanted = g_reporting.load() > 0 || recording(entry.index);
  entry.allocator->set_listener(wanted ? &listener : nullptr);
}

void listen(int device) {
  DeviceEntry& entry = runtime::device_unopened(device);
  if (entry.opened.load()) listen(entry);
}

std::string size_text(uint64_t bytes) {
  constexpr const char* kUnits[] = {"bytes", "KiB", "MiB", "GiB"};
  double value = double(bytes);
  int unit = 0;
  for (; value >= 1024 && unit < 3; ++unit) value /= 1024;
  char text[32];
  std::snprintf(text, sizeof(text), unit == 0 ? "%.0f %s" : "%.2f %s", value, kUnits[unit]);
  return text;
}

// Where a script of the user's stands in a stack: its innermost frame outside of PyTorch and of this package.
std::string place_of(const torch::SymbolizedTracebacks& symbols, size_t i, const std::string& node) {
  const torch::unwind::Frame* first = nullptr;
  for (const uint64_t frame : symbols.tracebacks.at(i)) {
    const torch::unwind::Frame& at = symbols.all_frames.at(frame);
    if (first == nullptr) first = &at;
    const std::string& file = at.filename;
    const bool python = file.size() > 3 && (file.compare(file.size() - 3, 3, ".py") == 0 || file[0] == '<');
    if (!python || file.find("/torch/") != std::string::npos || file.find("/torchfl/") != std::string::npos) continue;
    first = &at;
    break;
  }
  if (first == nullptr) return node.empty() ? "" : "backward: " + node;
  return first->filename + ":" + std::to_string(first->lineno) + " in " + first->funcname;
}

}  // namespace

const char* action_name(Entry::Action action) {
  static const char* const kNames[] = {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
                                       "oom",   "snapshot"};
  return kNames[size_t(action)];
}

void record(int device, const Settings& settings) {
  runtime::device_unopened(device);  // refuses one that is not there
  History& history = g_histories[device];
  {
    std::lock_guard<std::mutex> lock(history.mutex);
    history.on = true;
    history.settings = settings;
    history.entries.clear();
    history.held.clear();
    history.dropped = 0;
  }
  listen(device);
}

void stop(int device) {
  {
    std::lock_guard<std::mutex> lock(g_histories[device].mutex);
    g_histories[device].on = false;
  }
  listen(device);
}

bool recording(int device) {
  std::lock_guard<std::mutex> lock(g_histories[device].mutex);
  return g_histories[device].on;
}

void clear(int device) {
  History& history = g_histories[device];
  std::lock_guard<std::mutex> lock(history.mutex);
  history.entries.clear();
  history.dropped = 0;
}

std::vector<Entry> entries(int device) {
  std::lock_guard<std::mutex> lock(g_histories[device].mutex);
  return {g_histories[device].entries.begin(), g_histories[device].entries.end()};
}

std::vector<std::pair<uint64_t, Stack>> held(int device) {
  std::lock_guard<std::mutex> lock(g_histories[device].mutex);
  std::vector<std::pair<uint64_t, Stack>> out;
  for (const auto& [address, holder] : g_histories[device].held) out.emplace_back(address, holder.stack);
  return out;
}

void note_snapshot(int device) {
  History& history = g_histories[device];
  std::lock_guard<std::mutex> lock(history.mutex);
  if (history.on) history.add({Entry::Action::snapshot, 0, 0, 0, microseconds(), {}});
}

std::string out_of_memory(DeviceEntry& entry, size_t bytes) {
  if (g_reporting.load() > 0) {
    const MemoryStats stats = entry.allocator->stats();
    c10::reportOutOfMemoryToProfiler(int64_t(bytes), size_t(stats.allocated_bytes.current),
                                     size_t(stats.reserved_bytes.current),
                                     c10::Device(kDevice, c10::DeviceIndex(entry.index)));
  }
  History& history = g_histories[entry.index];
  if (!recording(entry.index)) return "";
  uint64_t free_bytes = 0, total_bytes = 0;
  try {
    entry.device->memory_info(&free_bytes, &total_bytes);
  } catch (...) {  // then without
  }
  Stack here = stack_here(false);
  struct Holders {
    uint64_t bytes = 0;
    size_t count = 0;
  };
  std::vector<std::pair<Stack, uint64_t>> holders;
  {
    std::lock_guard<std::mutex> lock(history.mutex);
    history.add({Entry::Action::oom, free_bytes, bytes,
                 reinterpret_cast<uint64_t>(runtime::current_stream(entry.index)), microseconds(), here});
    for (const auto& [address, holder] : history.held) {
      if (holder.stack.frames) holders.emplace_back(holder.stack, holder.size);
    }
  }
  if (holders.empty() || !Py_IsInitialized()) return "";
  PyGILState_STATE gil = PyGILState_Ensure();
  std::map<std::string, Holders> by_place;
  try {
    std::vector<torch::CapturedTraceback*> stacks;
    for (const auto& holder : holders) stacks.push_back(holder.first.frames.get());
    const torch::SymbolizedTracebacks symbols = torch::symbolize(stacks);
    for (size_t i = 0; i < holders.size(); i++) {
      Holders& at = by_place[place_of(symbols, i, holders[i].first.node)];
      at.bytes += holders[i].second;
      ++at.count;
    }
  } catch (...) {  // the report is a courtesy
  }
  holders.clear();  // Python objects go while we may let them
  PyGILState_Release(gil);
  std::vector<std::pair<std::string, Holders>> most(by_place.begin(), by_place.end());
  std::sort(most.begin(), most.end(), [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  std::string text;
  constexpr size_t kShown = 5;
  for (size_t i = 0; i < most.size() && i < kShown; i++) {
    if (most[i].first.empty()) continue;
    text += "\n  " + size_text(most[i].second.bytes) + " in " + std::to_string(most[i].second.count) +
            (most[i].second.count == 1 ? " block" : " blocks") + " allocated at " + most[i].first;
  }
  return text.empty() ? "" : "\nMost is held by what was allocated since the memory history is on:" + text;
}

void report_to_pytorch(bool on) {
  g_reporting.fetch_add(on ? 1 : -1);
  for (int i = 0; i < runtime::device_count(); i++) listen(i);
}

void device_opened(DeviceEntry& entry) { listen(entry); }

}  // namespace torchfl::memory_history
