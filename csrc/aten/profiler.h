// profiler.h: what the engine did while somebody looked: operator calls with their path, and the work that they gave
// to devices, with the device's own times.
//
// Contract: nothing is recorded, and nothing is paid, while no session is open. Sessions may overlap, on any threads;
// each gets what happened in the whole process between its start and its stop. Times on the host are nanoseconds since
// the epoch. Two clocks can time the work of a device, and a recording says which (Clock):
//   device   the chip has events, and their clock runs with the host's: begins and durations are measured
//   placed   the chip has events, but their clock stands still between pieces of work (a simulated one): durations are
//            measured, begins are the earliest that submission and the stream's order allow
//   host     the chip has no events: the host waited before and after each piece and timed it
#pragma once
#include <exception>
#include <map>
#include <string>
#include <vector>

#include "stats.h"
#include "watcher.h"

namespace torchfl {
struct DeviceEntry;

namespace profiler {

enum class Clock : uint8_t { device, placed, host };
const char* clock_name(Clock clock);

// One operator call as the engine served it.
struct Call {
  uint64_t id = 0, parent = 0;           // parent: the call in which it was made, 0 if none
  const OpCounters* counters = nullptr;  // operator, path, target, reason
  int device = 0;
  int32_t thread = 0;                       // as the system numbers them
  int64_t entered = 0, begin = 0, end = 0;  // entered: when the call reached the engine; begin: when it was decided
  int64_t self = 0;                         // of begin to end, what was not spent in calls within
  int64_t observed = 0;                     // of self, what was spent in the adapter and in timing it
  int64_t submitting = 0, waiting = 0;      // of observed, in functions of the adapter; in waits for the device
  uint64_t host_bytes = 0;                  // across the host boundary, without those of calls within
};

// One piece of work of one device.
struct Activity {
  Work::Kind kind = Work::Kind::kernel;
  int32_t direction = 0;
  std::string name;
  int device = 0;
  int64_t stream = 0;  // id
  void* handle = nullptr;
  uint64_t bytes = 0;
  int64_t submitted = 0, returned = 0;  // on the host: around the adapter's function
  int64_t begin = 0, duration = -1;     // on the device; duration -1: unknown, because the device failed
  Clock clock = Clock::host;
  int32_t thread = 0;
  uint64_t call = 0;        // in which call, 0 if in none
  int64_t correlation = 0;  // of PyTorch's profiler: its operator
};

struct Recording {
  int64_t began = 0, ended = 0;
  std::vector<Call> calls;
  std::vector<Activity> activities;
  std::exception_ptr failure;  // of the user's work, which a wait of ours brought to light: it is the user's to know
};

class Session {
 public:
  Session();
  ~Session();
  Session(const Session&) = delete;
  Recording stop();  // waits for the devices' recorded work. Once.

 private:
  bool open_ = true;
  size_t first_call_ = 0, first_activity_ = 0;
  int64_t began_ = 0;
};

// A device was opened: it is watched too, if anybody looks.
void device_opened(DeviceEntry& entry);

// The hooks of the call path (router.h); only while a session is open.
void enter() noexcept;  // a call has reached the engine
void leave() noexcept;
void taken_apart() noexcept;  // ... and PyTorch's composite kernel has it now, whose parts are calls of their own
void begin_call(int device) noexcept;
void end_call(const OpCounters* counters) noexcept;  // NULL: it came to nothing

struct Entry {
  Entry() : open(C10_UNLIKELY((stats::g_timing.load(std::memory_order_relaxed) & stats::kProfiled) != 0)) {
    if (C10_UNLIKELY(open)) enter();
  }
  ~Entry() {
    if (C10_UNLIKELY(open)) leave();
  }
  Entry(const Entry&) = delete;
  const bool open;
};

// PyTorch's profiler tells which of its operators is running on this thread.
void push_correlation(int64_t id);
void pop_correlation();

int64_t now();
int32_t thread_id();

}  // namespace profiler
}  // namespace torchfl
