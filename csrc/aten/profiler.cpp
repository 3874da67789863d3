// profiler.cpp: see profiler.h. Sessions share one store, which is emptied when the last of them has closed.
#include "profiler.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <thread>

#include "runtime.h"
#include "transfer.h"

namespace torchfl::profiler {
namespace {

struct Pending {  // an activity whose device time is not known yet
  size_t activity;
  void *begin, *end;
};

struct DeviceClock {
  void* base = nullptr;  // an event; all times of the device count from it
  int64_t base_time = 0;
  bool runs_with_host = false;
  std::deque<Pending> pending;
  std::vector<void*> spare;    // events
  std::exception_ptr failure;  // that a wait of ours brought to light
};

std::mutex g_mutex;  // guards what follows
int g_open = 0;
std::deque<Call> g_calls;
std::deque<Activity> g_activities;
DeviceClock g_clocks[kMaxDevices];

std::atomic<uint64_t> g_next_call{1};

struct Frame {
  Call call;
  int64_t within = 0;  // spent in calls within
  uint64_t bytes_before = 0, bytes_within = 0;
};
struct ThreadLog {
  std::vector<Frame> frames;
  std::vector<int64_t> entries;  // of calls that have reached the engine and are not decided yet
  std::vector<int64_t> correlations;
  bool busy = false;  // the watcher's own calls into the device are no work
};
thread_local ThreadLog t_log;

// ---------------------------------------------------------------------------------------------- device time

void* take_event(Device& device, DeviceClock& clock) {
  if (clock.spare.empty()) return device.event_create();
  void* event = clock.spare.back();
  clock.spare.pop_back();
  return event;
}

// Reads the times of finished work; `wait`: of all. Under g_mutex.
void resolve(Device& device, DeviceClock& clock, bool wait) noexcept {
  while (!clock.pending.empty()) {
    const Pending front = clock.pending.front();
    Activity& activity = g_activities[front.activity];
    try {
      if (!wait && !device.event_query(front.end)) return;
      device.event_synchronize(front.end);
      const double begin = device.event_elapsed(clock.base, front.begin);
      activity.begin = int64_t(begin * 1e6);
      activity.duration = int64_t((device.event_elapsed(clock.base, front.end) - begin) * 1e6 + 0.5);
      clock.spare.push_back(front.begin);
      clock.spare.push_back(front.end);
    } catch (...) {  // the work failed and has no time
      if (!device.lost() && !clock.failure) clock.failure = std::current_exception();
      device.event_destroy(front.begin);
      device.event_destroy(front.end);
    }
    clock.pending.pop_front();
  }
}

int index_of(const Device& device) {
  for (int i = 0; i < runtime::device_count(); i++) {
    DeviceEntry* entry = runtime::g_devices[i].load();
    if (entry != nullptr && entry->device.get() == &device) return i;
  }
  return -1;
}

uint64_t bytes_of(const uba_tensor& tensor) {
  uint64_t count = uint64_t(dtype_size(tensor.dtype));
  for (int32_t d = 0; d < tensor.rank; d++) count *= uint64_t(tensor.sizes[d]);
  return count;
}

class Recorder final : public Watcher {
 public:
  void* begin(Device& device, const Work& work) override {
    if (t_log.busy) return nullptr;
    const int64_t entered = now();
    const int index = index_of(device);
    if (index < 0) return nullptr;
    thread_local Open open;
    open = Open{};
    open.entered = entered;
    Activity& activity = open.activity;
    activity.kind = work.kind;
    activity.direction = work.direction;
    activity.name = work.name;
    activity.device = index;
    activity.handle = work.stream;
    activity.bytes = work.target != nullptr ? bytes_of(*work.target) : work.bytes;
    activity.thread = thread_id();
    activity.call = t_log.frames.empty() ? 0 : t_log.frames.back().call.id;
    activity.correlation = t_log.correlations.empty() ? 0 : t_log.correlations.back();
    std::exception_ptr failure;
    t_log.busy = true;
    try {
      if (work.kind == Work::Kind::synchronize) {
        // Its time is the host's.
      } else if (device.has_events()) {
        std::lock_guard<std::mutex> lock(g_mutex);
        DeviceClock& clock = g_clocks[index];
        if (clock.base == nullptr) {
          clock.base = device.event_create();
          device.event_record(clock.base, work.stream);
          device.event_synchronize(clock.base);
          clock.base_time = now();
        }
        open.begin = take_event(device, clock);
        open.end = take_event(device, clock);
        device.event_record(open.begin, work.stream);
      } else {
        device.synchronize(work.stream);
      }
      std::lock_guard<std::mutex> lock(g_mutex);
      failure = std::exchange(g_clocks[index].failure, nullptr);
    } catch (...) {
      failure = std::current_exception();
    }
    t_log.busy = false;
    if (failure) std::rethrow_exception(failure);
    activity.submitted = now();
    return &open;
  }

  void end(Device& device, void* token, bool done) noexcept override {
    Open& open = *static_cast<Open*>(token);
    Activity& activity = open.activity;
    activity.returned = now();
    const bool waits = activity.kind == Work::Kind::synchronize;
    t_log.busy = true;
    try {
      if (open.end != nullptr && done) device.event_record(open.end, activity.handle);
      if (open.end == nullptr && !waits && done) {
        activity.begin = activity.submitted;
        try {
          device.synchronize(activity.handle);
          activity.duration = now() - activity.submitted;
        } catch (...) {
          std::lock_guard<std::mutex> lock(g_mutex);
          if (!g_clocks[activity.device].failure) g_clocks[activity.device].failure = std::current_exception();
        }
      }
      std::lock_guard<std::mutex> lock(g_mutex);
      DeviceClock& clock = g_clocks[activity.device];
      if (!done || g_open == 0) {
        if (open.begin != nullptr) clock.spare.insert(clock.spare.end(), {open.begin, open.end});
      } else {
        g_activities.push_back(activity);
        if (open.end != nullptr) {
          g_activities.back().clock = Clock::device;
          clock.pending.push_back({g_activities.size() - 1, open.begin, open.end});
          if (clock.pending.size() > kManyPending) resolve(device, clock, false);
        }
      }
    } catch (...) {  // no host memory for a note, or the device failed: the piece goes unrecorded
    }
    t_log.busy = false;
    if (t_log.frames.empty()) return;
    Call& call = t_log.frames.back().call;
    call.observed += now() - open.entered;
    (waits ? call.waiting : call.submitting) += activity.returned - activity.submitted;
  }

 private:
  static constexpr size_t kManyPending = 1024;
  struct Open {
    Activity activity;
    int64_t entered = 0;
    void *begin = nullptr, *end = nullptr;
  };
};

Recorder g_recorder;

template <class F>
void for_each_open_device(F&& body) {
  for (int i = 0; i < runtime::device_count(); i++) {
    DeviceEntry* entry = runtime::g_devices[i].load();
    if (entry != nullptr && entry->opened.load()) body(*entry);
  }
}

int64_t stream_id(DeviceEntry& entry, void* handle) {
  std::lock_guard<std::mutex> lock(entry.streams_mutex);
  const auto found = std::find(entry.streams.begin(), entry.streams.end(), handle);
  return found == entry.streams.end() ? -1 : int64_t(found - entry.streams.begin());
}

// Whether the clock of a device's events runs with the host's: by both, as much time has passed since the first of
// them.
void compare_clocks(Device& device, DeviceClock& clock) noexcept {
  constexpr int64_t kEnough = 5'000'000;  // below, what recording an event takes would blur it
  if (clock.base == nullptr) return;
  t_log.busy = true;
  try {
    if (const int64_t passed = now() - clock.base_time; passed < kEnough)
      std::this_thread::sleep_for(std::chrono::nanoseconds(kEnough - passed));
    void* event = take_event(device, clock);
    clock.spare.push_back(event);
    device.event_record(event, nullptr);
    device.event_synchronize(event);
    const double share = device.event_elapsed(clock.base, event) * 1e6 / double(now() - clock.base_time);
    clock.runs_with_host = share > 0.8 && share < 1.25;
  } catch (...) {  // a device that failed: its clock is not trusted
    clock.runs_with_host = false;
  }
  t_log.busy = false;
}

// Turns what the events said into times of the host's clock, one device's work in the order of submission.
void place(std::vector<Activity*>& work, const DeviceClock& clock) {
  // No work can begin before it was submitted: a clock that says so of more than a few cannot be the host's.
  constexpr int64_t kTolerance = 100'000;
  const int64_t base_time = clock.base_time;
  size_t timed = 0, too_early = 0;
  for (const Activity* activity : work) {
    if (activity->clock == Clock::host || activity->duration < 0) continue;
    ++timed;
    too_early += base_time + activity->begin + kTolerance < activity->submitted;
  }
  const bool runs_with_host = clock.runs_with_host && too_early * 100 <= timed;
  std::map<void*, int64_t> free_from;  // by stream
  for (Activity* activity : work) {
    if (activity->clock == Clock::host) continue;
    if (runs_with_host) {
      activity->begin += base_time;
      continue;
    }
    activity->clock = Clock::placed;
    int64_t& from = free_from[activity->handle];
    activity->begin = std::max(activity->submitted, from);
    from = activity->begin + std::max<int64_t>(activity->duration, 0);
  }
}

}  // namespace

const char* clock_name(Clock clock) {
  return clock == Clock::device ? "device" : clock == Clock::placed ? "placed" : "host";
}

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

int32_t thread_id() {
  thread_local const int32_t id = int32_t(syscall(SYS_gettid));
  return id;
}

// ---------------------------------------------------------------------------------------------- sessions

Session::Session() {
  std::lock_guard<std::mutex> lock(g_mutex);
  first_call_ = g_calls.size();
  first_activity_ = g_activities.size();
  began_ = now();
  if (g_open++ > 0) return;
  Device::set_watcher(&g_recorder);
  for_each_open_device([](DeviceEntry& entry) { entry.device->set_watched(true); });
  stats::g_timing.fetch_or(stats::kProfiled);
}

Session::~Session() {
  if (!open_) return;
  try {
    stop();
  } catch (...) {  // no host memory for what nobody wants
  }
}

Recording Session::stop() {
  Recording out;
  open_ = false;
  out.began = began_;
  out.ended = now();
  std::lock_guard<std::mutex> lock(g_mutex);
  if (--g_open == 0) {
    stats::g_timing.fetch_and(uint8_t(~stats::kProfiled));
    for_each_open_device([](DeviceEntry& entry) { entry.device->set_watched(false); });
  }
  for_each_open_device([&](DeviceEntry& entry) {
    DeviceClock& clock = g_clocks[entry.index];
    resolve(*entry.device, clock, true);
    if (clock.failure && !out.failure) out.failure = clock.failure;
    clock.failure = nullptr;
    compare_clocks(*entry.device, clock);
  });
  out.calls.assign(g_calls.begin() + std::ptrdiff_t(first_call_), g_calls.end());
  out.activities.assign(g_activities.begin() + std::ptrdiff_t(first_activity_), g_activities.end());
  std::map<int, std::vector<Activity*>> by_device;
  for (Activity& activity : out.activities) {
    activity.stream = stream_id(*runtime::g_devices[activity.device].load(), activity.handle);
    if (activity.kind != Work::Kind::synchronize) by_device[activity.device].push_back(&activity);
  }
  for (auto& [device, work] : by_device) place(work, g_clocks[device]);
  if (g_open > 0) return out;
  g_calls.clear();
  g_activities.clear();
  for_each_open_device([](DeviceEntry& entry) {
    DeviceClock& clock = g_clocks[entry.index];
    clock.spare.push_back(clock.base);
    for (void* event : clock.spare) entry.device->event_destroy(event);
    clock = DeviceClock{};
  });
  return out;
}

void device_opened(DeviceEntry& entry) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_open > 0) entry.device->set_watched(true);
}

// ---------------------------------------------------------------------------------------------- the call path

void enter() noexcept {
  try {
    t_log.entries.push_back(now());
  } catch (...) {  // the call counts from its decision on
  }
}

void leave() noexcept {
  if (!t_log.entries.empty()) t_log.entries.pop_back();
}

void taken_apart() noexcept {
  if (!t_log.entries.empty()) t_log.entries.back() = 0;
}

void begin_call(int device) noexcept {
  try {
    Frame frame;
    frame.call.id = g_next_call.fetch_add(1, std::memory_order_relaxed);
    frame.call.parent = t_log.frames.empty() ? 0 : t_log.frames.back().call.id;
    frame.call.device = device;
    frame.call.thread = thread_id();
    frame.bytes_before = bytes_moved();
    frame.call.begin = now();
    frame.call.entered = frame.call.begin;
    // An entry is this call's if it is younger than the call around it; what it has used is not another's.
    if (!t_log.entries.empty() && t_log.entries.back() != 0) {
      if (t_log.frames.empty() || t_log.entries.back() >= t_log.frames.back().call.begin)
        frame.call.entered = std::exchange(t_log.entries.back(), 0);
    }
    t_log.frames.push_back(std::move(frame));
  } catch (...) {  // then it goes unrecorded, as do its parts
    t_log.frames.clear();
  }
}

void end_call(const OpCounters* counters) noexcept {
  if (t_log.frames.empty()) return;
  Frame frame = std::move(t_log.frames.back());
  t_log.frames.pop_back();
  Call& call = frame.call;
  call.end = now();
  call.counters = counters;
  call.self = call.end - call.begin - frame.within;
  const uint64_t moved = bytes_moved() - frame.bytes_before;
  call.host_bytes = moved - frame.bytes_within;
  if (!t_log.frames.empty()) {
    t_log.frames.back().within += call.end - call.entered;
    t_log.frames.back().bytes_within += moved;
  }
  if (counters == nullptr) return;
  try {
    std::lock_guard<std::mutex> lock(g_mutex);
    if (g_open > 0) g_calls.push_back(call);
  } catch (...) {  // no host memory for a note
  }
}

void push_correlation(int64_t id) { t_log.correlations.push_back(id); }
void pop_correlation() {
  if (!t_log.correlations.empty()) t_log.correlations.pop_back();
}

}  // namespace torchfl::profiler
