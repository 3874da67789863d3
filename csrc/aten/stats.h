// stats.h: what ran where, how often, and why: one counter set for each (device, operator, path, target, reason).
// Paths are those of a decision, "composite", and "transfer": bytes that the caller moves between host and devices.
//
// Contract: a counter is found once, when a call is first decided, and then bumped without locks. Cheap enough to be
// always on. Times are taken only while `timing` is on, and then every call waits for the device, so that its time is
// its own.
#pragma once
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "route.h"

namespace torchfl {

struct OpCounters {
  std::string device, op, path, target, reason;
  std::atomic<uint64_t> calls{0};
  std::atomic<uint64_t> nanoseconds{0};  // while timing
  std::atomic<uint64_t> host_bytes{0};   // that this operator moved across the host boundary
  std::atomic<uint64_t> saved_bytes{0};  // that it did not have to move, because host and device share the memory
  // As they stood at the last reset, which sets nothing to zero: a whole run can be told whatever is reset in it.
  uint64_t calls_before = 0, nanoseconds_before = 0, host_bytes_before = 0, saved_bytes_before = 0;
};

namespace stats {

// Who looks at every call: `timing`, and sessions of the profiler (profiler.h). 0: nobody.
constexpr uint8_t kTimed = 1, kProfiled = 2;
extern std::atomic<uint8_t> g_timing;
// The counters of this combination; `created` tells that nobody asked before (time for the one log line).
OpCounters& counters(const std::string& device, const std::string& op, const std::string& path,
                     const std::string& target, const std::string& reason, bool* created = nullptr);
struct Row {
  std::string device, op, path, target, reason;
  uint64_t calls, nanoseconds, host_bytes, saved_bytes;
};
// Since the last reset, or (`whole`) since the process began; of all counters, or of those that left the chip.
enum class Which { all, off_chip };
std::vector<Row> snapshot(bool whole = false, Which which = Which::all);
void reset();

// The user's log: 0 debug, 1 info, 2 warning, 3 error. Lines go to Python's logging once it has told us how.
using Sink = void (*)(int level, const std::string& line);
void set_sink(Sink sink);
void log(int level, const std::string& line);
// Strict: what would leave the chip raises instead.
extern std::atomic<bool> g_strict;
// Raises torchfl.UnsupportedOpError, a NotImplementedError.
[[noreturn]] void unsupported(const std::string& text);
using Raise = void (*)(const std::string& text);
void set_raise(Raise raise);
bool debug_lines();  // TORCH_FL_DEBUG
void set_debug_lines(bool on);

}  // namespace stats
}  // namespace torchfl
