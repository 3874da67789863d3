// queue.cpp: streams: a ring of commands each, executed in order by one worker thread.
//
// Contract: enqueue() copies the closure and returns; it waits only while the ring is full. Workers and waiters spin
// for some 30 microseconds and then sleep; nobody is woken who does not sleep. `sleeping`/`head` and `wake_at`/`tail`
// are Dekker pairs: each side stores its own word, then a fence, then reads the other's. The fence of the side that is
// about to sleep (heavy_fence) also makes all other threads pass one, so that the side in a hurry needs none.
#include <algorithm>
#include <cfenv>
#include <chrono>
#include <thread>

#if defined(__linux__)
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "device.h"

namespace npu {

namespace {

// A full fence in enqueue() would wait for all of the command's cache lines to come from the worker's core: 200 ns.
bool register_membarrier() {
#if defined(__linux__) && defined(SYS_membarrier) && !defined(__SANITIZE_THREAD__)
  return syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED, 0, 0) == 0;
#else
  return false;
#endif
}
bool g_membarrier = false;  // set before the first worker starts

void full_fence() {
#if defined(__SANITIZE_THREAD__)
  __sync_synchronize();  // GCC warns that it cannot follow std::atomic_thread_fence
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

void light_fence() {
  if (g_membarrier) {
    std::atomic_signal_fence(std::memory_order_seq_cst);
  } else {
    full_fence();
  }
}

void heavy_fence() {
  full_fence();
#if defined(__linux__) && defined(SYS_membarrier)
  if (g_membarrier) syscall(SYS_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0);
#endif
}

// How long a worker that has run out of commands does not look for new ones, unless somebody waits for them and has
// rung the bell; in nanoseconds. With each look the cache line that submitters write moves to the worker's core, and
// the next submitter waits for it longer than for most of what a small command costs.
constexpr int64_t kPatience = 5000;

constexpr auto kTick = std::chrono::milliseconds(5);

thread_local npu_stream* t_stream = nullptr;

// Workers between two looks at g_exiting. Written around every run of commands, so it has its cache line for itself:
// beside it would lie what submitters read with each command, and every read would fetch the line from another core.
struct alignas(64) Running {
  std::atomic<int> workers{0};
} g_running;
std::atomic<bool> g_exiting{false};
std::atomic<uint64_t> g_host_time{0};

struct SpinLock {
  explicit SpinLock(std::atomic_flag& flag) : flag(flag) {
    Spinner spinner;
    while (flag.test_and_set(std::memory_order_acquire)) {
      if (!spinner.again()) std::this_thread::yield();
    }
  }
  ~SpinLock() { flag.clear(std::memory_order_release); }
  std::atomic_flag& flag;
};

// The worker has read this slot one round of the ring ago: fetches its first line for the next submitter.
void prepare([[maybe_unused]] const Slot& slot) {
#if defined(__x86_64__)
  asm volatile("prefetchw %0" : : "m"(slot.run));
#endif
}

void publish(npu_stream* s, uint64_t tail) {
  s->published_time.store(s->device_time, std::memory_order_relaxed);
  s->tail.store(tail, std::memory_order_release);
  light_fence();
  if (tail >= s->wake_at.load(std::memory_order_relaxed)) {
    std::lock_guard<std::mutex> lock(s->mutex);
    s->wake_at.store(UINT64_MAX);
    s->done.notify_all();
  }
}

// Sleeps until there is work; false when the stream is to end.
bool await_work(npu_stream* s, uint64_t tail) {
  for (const int64_t until = now_ns() + kPatience; s->bell.load(std::memory_order_relaxed) <= tail && now_ns() < until;)
    cpu_relax();
  for (Spinner spinner; spinner.again();) {
    if (s->head.load(std::memory_order_acquire) != tail) return true;
  }
  std::unique_lock<std::mutex> lock(s->mutex);
  s->sleeping.store(true);
  heavy_fence();
  s->work.wait(lock, [&] { return s->head.load() != tail || s->quit.load(); });
  s->sleeping.store(false, std::memory_order_relaxed);
  return !s->quit.load() || s->head.load() != tail;
}

void work_loop(npu_stream* s) {
  std::fesetenv(FE_DFL_ENV);  // threads inherit it: a creator that flushes subnormals must not change results
  t_stream = s;
  bind_scratch(s->scratch);
  npu_device* device = s->device;
  for (uint64_t tail = 0; await_work(s, tail);) {
    uint64_t head = s->head.load(std::memory_order_acquire);
    g_running.workers.fetch_add(1);
    while (tail != head) {
      if (g_exiting.load(std::memory_order_relaxed)) {
        g_running.workers.fetch_sub(1);
        for (;;) std::this_thread::sleep_for(std::chrono::hours(24));  // the process is about to end
      }
      Slot& slot = s->ring[tail % kRing];
      if (!device->lost.load(std::memory_order_relaxed)) {
        s->device_time = std::max(s->device_time, slot.not_before) + slot.cycles;
        if (slot.cycles) device->cycles.fetch_add(slot.cycles, std::memory_order_relaxed);
        slot.run(slot.payload);
      }
      publish(s, ++tail);
    }
    g_running.workers.fetch_sub(1);
  }
}

// What an injected hang does: nothing, until the device is lost or closed.
void hang_here() {
  npu_device* device = t_stream->device;
  device->hung_since_ns.store(now_ns());
  while (!device->lost.load() && !t_stream->quit.load() && !g_exiting.load()) std::this_thread::sleep_for(kTick);
}

// Waits while the ring is full. Called under the submit lock.
npu_status_t make_room(npu_stream* s, uint64_t head, const char* function) {
  for (Spinner spinner;;) {
    s->known_tail = s->tail.load(std::memory_order_acquire);
    if (head - s->known_tail < kRing) return NPU_STATUS_SUCCESS;
    if (s->device->lost.load(std::memory_order_relaxed)) return fail_lost(s->device, function);
    if (spinner.again()) continue;
    npu_status_t status = wait_for(s, head - kRing / 2, function);
    if (status) return status;
  }
}

struct NamedFailure {
  const char* function;
};

npu_status_t inject(npu_stream* s, const char* function, CommandFn* run, const void** payload, size_t* bytes,
                    NamedFailure* failure) {
  int32_t index = s->device->index;
  // Every kind counts every call, whatever the others do.
  bool fails = fault_strikes(FaultKind::kernel, function, index),
       lost = fault_strikes(FaultKind::lost, function, index);
  bool later = fault_strikes(FaultKind::async, function, index),
       hangs = fault_strikes(FaultKind::hang, function, index);
  if (fails) {
    return fail(NPU_STATUS_EXECUTION_FAILED, "%s: device %d: the kernel failed (injected by NPU_SIM_FAULT)", function,
                index);
  }
  if (lost) {
    lose_device(s->device, std::string("fell off the bus in ") + function + ", injected by NPU_SIM_FAULT");
    return fail_lost(s->device, function);
  }
  if (later) {
    failure->function = function;
    *payload = failure;
    *bytes = sizeof(*failure);
    *run = [](void* p) {
      std::string text = std::string(static_cast<NamedFailure*>(p)->function) +
                         ": the kernel failed while it ran (injected by NPU_SIM_FAULT)";
      runtime_failure(NPU_STATUS_EXECUTION_FAILED, text.c_str());
    };
  }
  if (hangs) *run = [](void*) { hang_here(); };
  return NPU_STATUS_SUCCESS;
}

}  // namespace

uint64_t host_time() { return g_host_time.load(std::memory_order_relaxed); }

void advance_host_time(uint64_t time) {
  uint64_t seen = g_host_time.load();
  while (seen < time && !g_host_time.compare_exchange_weak(seen, time)) {
  }
}

npu_stream* current_stream() { return t_stream; }
bool exiting() { return g_exiting.load(); }

// Commands that run now may read host memory that is about to be destroyed: let them end, then freeze the workers.
void at_process_exit() {
  if (forked_child()) return;
  g_exiting.store(true);
  for (int i = 0; i < 200 && g_running.workers.load() > 0; i++) std::this_thread::sleep_for(kTick);
}

npu_status_t check_stream(npu_stream* stream, const char* function) {
  if (forked_child()) return fail_forked(function);
  if (!valid(stream)) {
    return fail(NPU_STATUS_INVALID_VALUE,
                "%s: stream: %s: expected a handle from npu_stream_create or npu_default_stream", function,
                stream ? "the handle is destroyed" : "NULL");
  }
  if (stream->device->lost.load(std::memory_order_acquire)) return fail_lost(stream->device, function);
  return NPU_STATUS_SUCCESS;
}

void runtime_failure(npu_status_t status, const char* text) {
  npu_stream* s = t_stream;
  if (!s) return;
  std::lock_guard<std::mutex> lock(s->error_mutex);
  if (s->error) return;  // the first one tells the cause
  s->error = status;
  s->error_text = text;
  s->has_error.store(true, std::memory_order_release);
}

npu_status_t enqueue(npu_stream_t s, const char* function, uint64_t cycles, CommandFn run, const void* payload,
                     size_t bytes) {
  if (forked_child() || !valid(s) || s->device->lost.load(std::memory_order_relaxed)) return check_stream(s, function);
  NamedFailure failure;
  if (__builtin_expect(faults_configured(), 0)) {
    npu_status_t status = inject(s, function, &run, &payload, &bytes, &failure);
    if (status) return status;
  }
  SpinLock lock(s->submit_lock);
  uint64_t head = s->head.load(std::memory_order_relaxed);
  if (__builtin_expect(head - s->known_tail >= kRing, 0)) {
    npu_status_t status = make_room(s, head, function);
    if (status) return status;
  }
  Slot& slot = s->ring[head % kRing];
  slot.run = run;
  slot.cycles = cycles;
  slot.not_before = g_host_time.load(std::memory_order_relaxed);
  std::memcpy(slot.payload, payload, bytes);
  s->head.store(head + 1, std::memory_order_release);
  prepare(s->ring[(head + 1) % kRing]);
  light_fence();
  if (s->sleeping.load(std::memory_order_relaxed)) {
    std::lock_guard<std::mutex> wake(s->mutex);
    s->work.notify_one();
  }
  return NPU_STATUS_SUCCESS;
}

npu_stream* make_stream(npu_device* device) {
  static std::once_flag once;
  std::call_once(once, [] { g_membarrier = register_membarrier(); });
  auto* s = new npu_stream;
  s->device = device;
  s->ring = new Slot[kRing];
  s->scratch = new_scratch_set();
  {
    std::lock_guard<std::mutex> lock(device->streams_mutex);
    device->streams.push_back(s);
  }
  std::thread(work_loop, s).detach();
  return s;
}

npu_status_t wait_for(npu_stream* s, uint64_t target, const char* function) {
  npu_device* device = s->device;
  s->bell.store(target, std::memory_order_relaxed);
  for (Spinner spinner; spinner.again();) {
    if (s->tail.load(std::memory_order_acquire) >= target) return NPU_STATUS_SUCCESS;
  }
  std::unique_lock<std::mutex> lock(s->mutex);
  while (s->tail.load() < target) {
    if (device->lost.load()) {
      lock.unlock();
      return fail_lost(device, function);
    }
    s->wake_at.store(std::min(s->wake_at.load(), target));
    heavy_fence();
    if (s->tail.load() >= target) break;
    s->done.wait_for(lock, std::chrono::milliseconds(20));
    lock.unlock();
    watchdog();
    lock.lock();
  }
  return NPU_STATUS_SUCCESS;
}

npu_status_t synchronize(npu_stream* s, const char* function) {
  uint64_t target = s->head.load();
  npu_status_t status = wait_for(s, target, function);
  if (status) return status;
  // Commands of a lost device are skipped, which also lets the tail arrive.
  if (s->device->lost.load()) return fail_lost(s->device, function);
  advance_host_time(s->published_time.load(std::memory_order_relaxed));
  if (!s->has_error.load(std::memory_order_acquire)) return NPU_STATUS_SUCCESS;
  std::lock_guard<std::mutex> lock(s->error_mutex);
  status = s->error;
  if (!status) return NPU_STATUS_SUCCESS;  // another thread took it
  fail(status, "%s", s->error_text.c_str());
  s->error = NPU_STATUS_SUCCESS;
  s->has_error.store(false);
  return status;
}

void drain(npu_device* device) {
  std::vector<npu_stream*> streams;
  {
    std::lock_guard<std::mutex> lock(device->streams_mutex);
    streams = device->streams;
  }
  for (npu_stream* s : streams) {
    uint64_t target = s->head.load();
    while (s->tail.load() < target && !device->lost.load() && !exiting()) {
      // The time-out is for the caller's next synchronise to report.
      if (wait_for(s, target, "drain") == NPU_STATUS_TIMEOUT) device->timeout_unreported.store(true);
    }
  }
}

}  // namespace npu

using namespace npu;

extern "C" {

NPU_API npu_status_t npu_default_stream(npu_device_t device, npu_stream_t* stream) {
  npu_status_t status = check_device(device, "npu_default_stream");
  if (status) return status;
  if (!stream) return fail(NPU_STATUS_INVALID_VALUE, "npu_default_stream: stream: NULL: expected an address");
  *stream = device->default_stream;
  return NPU_STATUS_SUCCESS;
}

// `priority` is accepted and has no effect: every stream has a worker of its own.
NPU_API npu_status_t npu_stream_create(npu_device_t device, int32_t, npu_stream_t* stream) {
  npu_status_t status = check_device(device, "npu_stream_create");
  if (status) return status;
  if (!stream) return fail(NPU_STATUS_INVALID_VALUE, "npu_stream_create: stream: NULL: expected an address");
  {
    std::lock_guard<std::mutex> lock(device->streams_mutex);
    if (!device->idle_streams.empty()) {
      *stream = device->idle_streams.back();
      device->idle_streams.pop_back();
      (*stream)->magic.store(kStreamMagic);
      return NPU_STATUS_SUCCESS;
    }
  }
  *stream = make_stream(device);
  return NPU_STATUS_SUCCESS;
}

NPU_API npu_status_t npu_stream_destroy(npu_stream_t stream) {
  if (forked_child()) return fail_forked("npu_stream_destroy");
  if (!valid(stream)) return check_stream(stream, "npu_stream_destroy");
  npu_device* device = stream->device;
  if (stream == device->default_stream) {
    return fail(NPU_STATUS_INVALID_VALUE,
                "npu_stream_destroy: the default stream of device %d lives as long as the device", device->index);
  }
  npu_status_t status = NPU_STATUS_SUCCESS;  // the last chance to tell what went wrong on it
  if (!device->lost.load()) status = synchronize(stream, "npu_stream_destroy");
  stream->magic.store(0);
  std::lock_guard<std::mutex> lock(device->streams_mutex);
  device->idle_streams.push_back(stream);
  return status;
}

NPU_API npu_status_t npu_stream_synchronize(npu_stream_t stream) {
  npu_status_t status = check_stream(stream, "npu_stream_synchronize");
  return status ? status : synchronize(stream, "npu_stream_synchronize");
}

NPU_API npu_status_t npu_stream_query(npu_stream_t stream) {
  npu_status_t status = check_stream(stream, "npu_stream_query");
  if (status) return status;
  watchdog();
  if (stream->device->lost.load()) return fail_lost(stream->device, "npu_stream_query");
  if (stream->tail.load() < stream->head.load()) return NPU_STATUS_NOT_READY;
  advance_host_time(stream->published_time.load(std::memory_order_relaxed));
  return NPU_STATUS_SUCCESS;
}

}  // extern "C"
