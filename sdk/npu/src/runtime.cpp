// runtime.cpp: devices: opening, closing, properties, telemetry, loss, and what fork() and exit() do to them.
//
// Contract: a device comes to life at its first npu_device_open (until then no thread or mapping exists), may be opened
// many times, and gives up its memory and streams with its last close. A device that was lost is replaced by a fresh
// one when it is opened after its last close. Device objects are never destroyed: stale handles are refused.
#include <pthread.h>
#include <sys/types.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>

#include "device.h"

namespace npu {

namespace {

constexpr int32_t kMaxDevices = 64;

struct Registry {
  std::mutex mutex;
  std::atomic<npu_device*> device[kMaxDevices] = {};
  std::vector<npu_device*> retired;
};
Registry& registry() {
  static auto* r = new Registry;
  return *r;
}

std::atomic<bool> g_started{false};
std::atomic<bool> g_forked{false};

void start_runtime() {  // under the registry's mutex
  if (g_started.load()) return;
  pthread_atfork(nullptr, nullptr, [] { g_forked.store(true); });
  std::atexit(at_process_exit);
  g_started.store(true);
}

}  // namespace

bool forked_child() { return g_forked.load(std::memory_order_relaxed); }

npu_status_t fail_forked(const char* function) {
  return fail(NPU_STATUS_NOT_SUPPORTED,
              "%s: this process was forked after its parent had opened the NPU, whose queues do not survive fork(): "
              "open the device in the child only, or start the child by exec (Python: the \"spawn\" start method)",
              function);
}

npu_device* opened_device(int32_t index) {
  return index >= 0 && index < kMaxDevices ? registry().device[index].load(std::memory_order_acquire) : nullptr;
}

npu_device* owner_of(const void* address) {
  for (int32_t i = 0; i < kMaxDevices; i++) {
    npu_device* d = opened_device(i);
    if (d && d->memory.contains(address)) return d;
  }
  return nullptr;
}

npu_status_t check_device(npu_device* device, const char* function) {
  if (forked_child()) return fail_forked(function);
  if (!valid(device)) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: device: %s: expected a handle from npu_device_open", function,
                device ? "the handle is closed" : "NULL");
  }
  if (device->lost.load(std::memory_order_acquire)) return fail_lost(device, function);
  return NPU_STATUS_SUCCESS;
}

npu_status_t fail_lost(npu_device* device, const char* function) {
  std::lock_guard<std::mutex> lock(device->lost_mutex);
  if (device->timeout_unreported.exchange(false)) {
    return fail(NPU_STATUS_TIMEOUT, "%s: device %d: %s", function, device->index, device->lost_reason.c_str());
  }
  return fail(NPU_STATUS_DEVICE_LOST, "%s: device %d is lost (%s): close all its handles and open it again", function,
              device->index, device->lost_reason.c_str());
}

void lose_device(npu_device* device, const std::string& reason) {
  {
    std::lock_guard<std::mutex> lock(device->lost_mutex);
    if (device->lost.load()) return;
    device->lost_reason = reason;
    device->lost.store(true);
  }
  std::lock_guard<std::mutex> lock(device->streams_mutex);
  for (npu_stream* stream : device->streams) {
    std::lock_guard<std::mutex> stream_lock(stream->mutex);
    stream->work.notify_all();
    stream->done.notify_all();
  }
}

void watchdog() {
  for (int32_t i = 0; i < kMaxDevices; i++) {
    npu_device* d = opened_device(i);
    if (!d || d->lost.load()) continue;
    int64_t since = d->hung_since_ns.load();
    if (!since || now_ns() - since < config().timeout_ms * 1000000) continue;
    d->timeout_unreported.store(true);
    lose_device(d, "a stream made no progress for " + std::to_string(config().timeout_ms) + " ms");
  }
}

npu_status_t open_device(int32_t index, npu_device** device) {
  if (forked_child()) return fail_forked("npu_device_open");
  const Config& cfg = config();
  if (index < 0 || index >= cfg.devices) {
    return fail(NPU_STATUS_NO_DEVICE, "npu_device_open: index %d: there %s %d device%s%s", index,
                cfg.devices == 1 ? "is" : "are", cfg.devices, cfg.devices == 1 ? "" : "s",
                cfg.devices ? ", counted from 0" : "");
  }
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  npu_device* d = r.device[index].load();
  if (d && !d->opened) {
    d->magic.store(kDeviceMagic);
    d->default_stream->magic.store(kStreamMagic);
  }
  if (!d) {
    start_runtime();
    d = new npu_device;
    d->index = index;
    if (!d->memory.map(cfg.memory_bytes)) {
      delete d;
      return fail(NPU_STATUS_OUT_OF_MEMORY,
                  "npu_device_open: device %d: no address space for %" PRIu64 " bytes: set NPU_SIM_MEMORY lower", index,
                  cfg.memory_bytes);
    }
    d->telemetry_ns = now_ns();
    d->default_stream = make_stream(d);
    r.device[index].store(d, std::memory_order_release);
  }
  d->opened++;
  *device = d;
  return NPU_STATUS_SUCCESS;
}

}  // namespace npu

using namespace npu;

extern "C" {

NPU_API npu_status_t npu_device_count(int32_t* count) {
  if (!count) return fail(NPU_STATUS_INVALID_VALUE, "npu_device_count: count: NULL: expected an address");
  *count = config().devices;
  return NPU_STATUS_SUCCESS;
}

NPU_API npu_status_t npu_device_open(int32_t index, npu_device_t* device) {
  if (!device) return fail(NPU_STATUS_INVALID_VALUE, "npu_device_open: device: NULL: expected an address");
  *device = nullptr;
  return open_device(index, device);
}

NPU_API npu_status_t npu_device_close(npu_device_t device) {
  if (forked_child()) return fail_forked("npu_device_close");
  if (!valid(device)) return check_device(device, "npu_device_close");  // a lost device may be closed
  drain(device);
  Registry& r = registry();
  std::lock_guard<std::mutex> lock(r.mutex);
  if (--device->opened > 0) return NPU_STATUS_SUCCESS;
  device->magic.store(0);
  bool lost = device->lost.load();
  if (lost) {
    r.device[device->index].store(nullptr);
    r.retired.push_back(device);
  }
  std::lock_guard<std::mutex> streams_lock(device->streams_mutex);
  device->idle_streams.clear();
  for (npu_stream* stream : device->streams) {
    std::lock_guard<std::mutex> stream_lock(stream->mutex);
    stream->magic.store(0);
    if (lost) {
      stream->quit.store(true);
      stream->work.notify_all();
    } else if (stream != device->default_stream) {
      device->idle_streams.push_back(stream);
    }
  }
  if (!lost) device->memory.clear();
  return NPU_STATUS_SUCCESS;
}

NPU_API npu_status_t npu_device_properties(npu_device_t device, npu_props_t* props) {
  npu_status_t status = check_device(device, "npu_device_properties");
  if (status) return status;
  if (!props) return fail(NPU_STATUS_INVALID_VALUE, "npu_device_properties: props: NULL: expected an address");
  const Config& cfg = config();
  *props = npu_props_t{};
  std::snprintf(props->name, sizeof(props->name), "%s", cfg.chip.name);
  std::snprintf(props->serial, sizeof(props->serial), "%s-SIM-%06d", cfg.chip.name, device->index + 1);
  props->memory_bytes = device->memory.bytes();
  props->alignment = cfg.alignment;
  props->on_chip_cache_bytes = cfg.chip.cache_bytes;
  props->max_rank = cfg.chip.max_rank;
  props->fp16_units = cfg.chip.fp16_units;
  props->int8_units = cfg.chip.int8_units;
  props->clock_mhz = cfg.chip.clock_mhz;
  return NPU_STATUS_SUCCESS;
}

// Utilisation is device time over wall time since the previous call (at least 1 ms ago); power and temperature follow
// it.
NPU_API npu_status_t npu_device_telemetry(npu_device_t device, double* utilization, double* watts, double* celsius,
                                          double* busy_seconds) {
  npu_status_t status = check_device(device, "npu_device_telemetry");
  if (status) return status;
  double hertz = config().chip.clock_mhz * 1e6;
  uint64_t spent = device->cycles.load();
  std::lock_guard<std::mutex> lock(device->telemetry_mutex);
  int64_t now = now_ns();
  double wall = std::max(double(now - device->telemetry_ns) * 1e-9, 1e-3);
  double used = std::min(1.0, double(spent - device->telemetry_cycles) / hertz / wall);
  device->telemetry_ns = now;
  device->telemetry_cycles = spent;
  double target = 35.0 + 40.0 * used;
  device->celsius += (target - device->celsius) * std::min(1.0, wall / 5.0);
  if (utilization) *utilization = used;
  if (watts) *watts = 8.0 + 52.0 * used;
  if (celsius) *celsius = device->celsius;
  if (busy_seconds) *busy_seconds = double(spent) / hertz;
  return NPU_STATUS_SUCCESS;
}

NPU_API npu_status_t npu_device_cycles(npu_device_t device, uint64_t* cycles) {
  npu_status_t status = check_device(device, "npu_device_cycles");
  if (status) return status;
  if (!cycles) return fail(NPU_STATUS_INVALID_VALUE, "npu_device_cycles: cycles: NULL: expected an address");
  *cycles = device->cycles.load();
  return NPU_STATUS_SUCCESS;
}

}  // extern "C"
