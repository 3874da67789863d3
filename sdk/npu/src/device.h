// device.h: the simulated hardware behind the handles: configuration, devices, streams and events.
//
// Contract: used by the runtime only (runtime*.cpp, memory.cpp, queue.cpp, dma.cpp and the matrix units' cost); kernels
// need nothing beyond sim.h. Objects behind handles are never unmapped while the process lives: a stale handle is
// recognised by its magic number and refused, it never crashes.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "sim.h"

namespace npu {

// What the chip's data sheet says. Rates are per cycle of the clock.
struct Chip {
  const char* name;
  int32_t max_rank;
  int32_t fp16_units;
  int32_t int8_units;
  int32_t clock_mhz;
  uint64_t cache_bytes;
  double matrix_fp16, matrix_int8, matrix_fp32;  // operations (a multiply-add is two)
  double vector_16bit;                           // lanes; 32-bit types have half of them, 64-bit types a quarter
  double cache_bandwidth, memory_bandwidth;      // bytes
};

enum class FaultKind { kernel, async, hang, lost, oom };
struct Fault {
  FaultKind kind;
  std::string name;
  int64_t call;    // strikes at this call, counted from 1
  int32_t device;  // -1: any
  std::atomic<int64_t> seen{0};
};

struct Config {
  int32_t devices;
  Chip chip;
  uint64_t memory_bytes;
  const char* sdk_version;
  uint64_t alignment;
  int threads;
  bool log;
  int64_t timeout_ms;
  int64_t index_limit;  // elements that an index of the units can tell apart
};
const Config& config();  // read from the environment once; starts nothing

// True if a fault of `kind` is due at this call of `function` on `device`. Cheap while no fault is configured.
bool fault_strikes(FaultKind kind, const char* function, int32_t device);
bool faults_configured();

int64_t now_ns();
void cpu_relax();

// Waiting that begins as a spin of about two microseconds, goes on by offering the CPU to others (whoever is waited for
// may need this very one), and after some 30 microseconds says that it is time to sleep.
class Spinner {
 public:
  bool again();

 private:
  int rounds_ = 0;
};

// After fork() the worker threads are gone: every call that needs them is refused.
bool forked_child();
npu_status_t fail_forked(const char* function);

constexpr uint32_t kDeviceMagic = 0x4e505544, kStreamMagic = 0x4e505553, kEventMagic = 0x4e505545;

// Best-fit allocator over [0, size) in units of kUnit; not thread-safe.
class FreeList {
 public:
  void reset(uint64_t size);
  bool take(uint64_t bytes, uint64_t* offset);
  uint64_t give(uint64_t offset);  // returns the size, 0 if `offset` is not the start of a live block
  uint64_t free_bytes() const { return free_; }
  uint64_t largest() const { return by_size_.empty() ? 0 : by_size_.rbegin()->first; }

 private:
  std::map<uint64_t, uint64_t> by_offset_;  // free blocks: offset -> size
  std::set<std::pair<uint64_t, uint64_t>> by_size_;
  std::map<uint64_t, uint64_t> live_;
  uint64_t free_ = 0;
};

// Device memory: an address range nobody may touch, the bytes elsewhere, and a table that tells for every unit of the
// range where the allocation that covers it ends (0: none), so that submission needs neither lock nor search.
class Memory {
 public:
  bool map(uint64_t bytes);
  void clear();
  npu_status_t allocate(uint64_t bytes, int32_t device, void** address);
  bool release(uint64_t offset);
  void info(uint64_t* free_bytes, uint64_t* total_bytes);

  bool contains(const void* address) const { return uint64_t(address) - base_ < bytes_; }
  uint64_t base() const { return base_; }
  uint64_t bytes() const { return bytes_; }
  char* backing(const void* address) const { return backing_ + (uint64_t(address) - base_); }
  // Bytes from `address` to the end of its allocation; 0 if it is in none.
  uint64_t extent(const void* address) const;

 private:
  void mark(uint64_t offset, uint64_t bytes, bool live);

  uint64_t base_ = 0, bytes_ = 0;
  char* backing_ = nullptr;
  std::atomic<uint32_t>* fine_ = nullptr;    // one entry for each kUnit bytes
  std::atomic<uint32_t>* coarse_ = nullptr;  // one entry for each kCoarse bytes, set where a block covers all of it
  std::mutex mutex_;
  FreeList list_;
};

constexpr uint64_t kUnit = 512;
constexpr uint64_t kCoarse = uint64_t(2) << 20;

}  // namespace npu

struct npu_device {
  std::atomic<uint32_t> magic{npu::kDeviceMagic};
  int32_t index = 0;
  int32_t opened = 0;
  npu::Memory memory;

  // A hung stream makes its device lost when the watchdog's time is up; a lost device only returns errors.
  std::atomic<bool> lost{false};
  std::atomic<bool> timeout_unreported{false};
  std::atomic<int64_t> hung_since_ns{0};
  std::mutex lost_mutex;
  std::string lost_reason;

  std::mutex streams_mutex;
  std::vector<npu_stream*> streams;  // all that were ever made, for waiting and for reuse
  std::vector<npu_stream*> idle_streams;
  npu_stream* default_stream = nullptr;

  std::mutex telemetry_mutex;
  int64_t telemetry_ns = 0;
  uint64_t telemetry_cycles = 0;
  double celsius = 35.0;

  alignas(64) std::atomic<uint64_t> cycles{0};  // written with every command: not beside what submitters read
};

namespace npu {

struct alignas(64) Slot {
  CommandFn run;
  uint64_t cycles;
  uint64_t not_before;
  alignas(16) unsigned char payload[kPayload];
};
constexpr uint64_t kRing = 512;

// Scratch memory of one stream's kernels: threads x slots, grown on demand.
struct ScratchSet;

}  // namespace npu

struct npu_stream {
  std::atomic<uint32_t> magic{npu::kStreamMagic};
  npu_device* device = nullptr;
  npu::Slot* ring = nullptr;
  npu::ScratchSet* scratch = nullptr;

  // Touched by submitters alone. The worker spins on `head`, so nothing else lies in its cache line.
  alignas(64) std::atomic_flag submit_lock = ATOMIC_FLAG_INIT;
  uint64_t known_tail = 0;

  // Written by submitters.
  alignas(64) std::atomic<uint64_t> head{0};

  // Written by waiters: commands up to here are waited for.
  alignas(64) std::atomic<uint64_t> bell{0};

  // Written by the worker.
  alignas(64) std::atomic<uint64_t> tail{0};
  uint64_t device_time = 0;  // cycles of the virtual clock; published with `tail`
  std::atomic<uint64_t> published_time{0};

  alignas(64) std::atomic<bool> sleeping{false};
  std::atomic<bool> quit{false};
  std::atomic<uint64_t> wake_at{UINT64_MAX};  // the worker wakes the waiters once tail has come here
  std::mutex mutex;
  std::condition_variable work, done;

  std::mutex error_mutex;
  std::atomic<bool> has_error{false};
  npu_status_t error = NPU_STATUS_SUCCESS;
  std::string error_text;
};

struct npu_event {
  std::atomic<uint32_t> magic{npu::kEventMagic};
  npu_device* device = nullptr;
  std::atomic<int32_t> references{1};
  std::atomic<uint64_t> issued{0};
  std::atomic<uint64_t> completed{0};
  std::atomic<uint64_t> time{0};
  std::mutex mutex;
  std::condition_variable done;
};

namespace npu {

inline bool valid(const npu_device* d) { return d && d->magic.load(std::memory_order_relaxed) == kDeviceMagic; }
inline bool valid(const npu_stream* s) { return s && s->magic.load(std::memory_order_relaxed) == kStreamMagic; }
inline bool valid(const npu_event* e) { return e && e->magic.load(std::memory_order_relaxed) == kEventMagic; }

npu_status_t check_device(npu_device* device, const char* function);
npu_status_t check_stream(npu_stream* stream, const char* function);
npu_status_t fail_lost(npu_device* device, const char* function);
void lose_device(npu_device* device, const std::string& reason);

// The device whose address range holds `address`, or NULL (host memory).
npu_device* owner_of(const void* address);
npu_device* opened_device(int32_t index);

// Opens device `index` if need be and counts the handle.
npu_status_t open_device(int32_t index, npu_device** device);

npu_stream* make_stream(npu_device* device);
// Waits until the stream has passed `target` commands. TIMEOUT or DEVICE_LOST if it never will.
npu_status_t wait_for(npu_stream* stream, uint64_t target, const char* function);
npu_status_t synchronize(npu_stream* stream, const char* function);
// Waits for all that was enqueued on the device; leaves errors for the streams' synchronise.
void drain(npu_device* device);

// Declares devices lost whose stream has hung for longer than the time-out. Called by whoever waits.
void watchdog();

// Streams and the host order the virtual clock: what the host has waited for is in the past of what it submits next.
uint64_t host_time();
void advance_host_time(uint64_t time);

npu_stream* current_stream();  // inside a closure
bool exiting();
void at_process_exit();

ScratchSet* new_scratch_set();
void bind_scratch(ScratchSet* set);

}  // namespace npu
