// runtime_event.cpp: events: marks in one stream that the host or another stream, of any device, can wait for.
//
// Contract: recording again replaces the mark; waiting for an event that was never recorded is waiting for nothing. An
// event may be destroyed while commands refer to it. Its time is the recording stream's virtual clock.
#include <chrono>

#include "device.h"

namespace npu {

namespace {

// Events that nobody refers to, for reuse: never freed, so that a stale handle is recognised.
struct Attic {
  std::mutex mutex;
  std::vector<npu_event*> events;
};
Attic& attic() {
  static auto* a = new Attic;
  return *a;
}

npu_event* make_event(npu_device* device) {
  npu_event* e = nullptr;
  {
    std::lock_guard<std::mutex> lock(attic().mutex);
    if (!attic().events.empty()) {
      e = attic().events.back();
      attic().events.pop_back();
    }
  }
  if (!e) e = new npu_event;
  e->device = device;
  e->references.store(1);
  e->issued.store(0);
  e->completed.store(0);
  e->time.store(0);
  e->magic.store(kEventMagic);
  return e;
}

void drop(npu_event* e) {
  if (e->references.fetch_sub(1) != 1) return;
  std::lock_guard<std::mutex> lock(attic().mutex);
  attic().events.push_back(e);
}

npu_status_t check_event(npu_event* event, const char* function) {
  if (forked_child()) return fail_forked(function);
  if (!valid(event)) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: event: %s: expected a handle from npu_event_create", function,
                event ? "the handle is destroyed" : "NULL");
  }
  if (event->device->lost.load()) return fail_lost(event->device, function);
  return NPU_STATUS_SUCCESS;
}

bool reached(npu_event* e, uint64_t mark) { return e->completed.load(std::memory_order_acquire) >= mark; }

// Runs on the recording stream's worker.
void complete(npu_event* e, uint64_t mark) {
  {
    std::lock_guard<std::mutex> lock(e->mutex);
    if (e->completed.load() < mark) {
      e->time.store(current_stream()->device_time);
      e->completed.store(mark, std::memory_order_release);
    }
    e->done.notify_all();
  }
  drop(e);
}

// False if the event's device is lost, or the caller's (`mine`, may be NULL) is, before the mark is reached.
bool await(npu_event* e, uint64_t mark, npu_device* mine) {
  for (Spinner spinner; spinner.again();) {
    if (reached(e, mark)) return true;
  }
  std::unique_lock<std::mutex> lock(e->mutex);
  while (!reached(e, mark)) {
    if (e->device->lost.load() || (mine && mine->lost.load()) || exiting()) return false;
    e->done.wait_for(lock, std::chrono::milliseconds(10));
    lock.unlock();
    watchdog();
    lock.lock();
  }
  return true;
}

void await_on_stream(npu_event* e, uint64_t mark) {
  npu_stream* s = current_stream();
  if (await(e, mark, s->device)) {
    uint64_t time = e->time.load();
    if (s->device_time < time) s->device_time = time;
  } else if (!s->device->lost.load()) {
    runtime_failure(NPU_STATUS_EXECUTION_FAILED, "npu_event_wait: the event's device was lost before the event came");
  }
  drop(e);
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" {

NPU_API npu_status_t npu_event_create(npu_device_t device, npu_event_t* event) {
  npu_status_t status = check_device(device, "npu_event_create");
  if (status) return status;
  if (!event) return fail(NPU_STATUS_INVALID_VALUE, "npu_event_create: event: NULL: expected an address");
  *event = make_event(device);
  return NPU_STATUS_SUCCESS;
}

NPU_API npu_status_t npu_event_destroy(npu_event_t event) {
  if (forked_child()) return fail_forked("npu_event_destroy");
  if (!valid(event)) return check_event(event, "npu_event_destroy");
  event->magic.store(0);
  drop(event);
  return NPU_STATUS_SUCCESS;
}

NPU_API npu_status_t npu_event_record(npu_event_t event, npu_stream_t stream) {
  npu_status_t status = check_event(event, "npu_event_record");
  if (!status) status = check_stream(stream, "npu_event_record");
  if (status) return status;
  if (stream->device != event->device) {
    return fail(NPU_STATUS_INVALID_VALUE,
                "npu_event_record: the event is of device %d, the stream of device %d: record on the event's device",
                event->device->index, stream->device->index);
  }
  event->references.fetch_add(1);
  uint64_t mark = event->issued.fetch_add(1) + 1;
  status = submit(stream, "npu_event_record", 0, [event, mark] { complete(event, mark); });
  if (status) drop(event);
  return status;
}

NPU_API npu_status_t npu_event_wait(npu_event_t event, npu_stream_t stream) {
  npu_status_t status = check_event(event, "npu_event_wait");
  if (!status) status = check_stream(stream, "npu_event_wait");
  if (status) return status;
  uint64_t mark = event->issued.load();
  if (!mark) return NPU_STATUS_SUCCESS;
  event->references.fetch_add(1);
  status = submit(stream, "npu_event_wait", 0, [event, mark] { await_on_stream(event, mark); });
  if (status) drop(event);
  return status;
}

NPU_API npu_status_t npu_event_query(npu_event_t event) {
  npu_status_t status = check_event(event, "npu_event_query");
  if (status) return status;
  watchdog();
  if (event->device->lost.load()) return fail_lost(event->device, "npu_event_query");
  if (!reached(event, event->issued.load())) return NPU_STATUS_NOT_READY;
  advance_host_time(event->time.load());
  return NPU_STATUS_SUCCESS;
}

NPU_API npu_status_t npu_event_synchronize(npu_event_t event) {
  npu_status_t status = check_event(event, "npu_event_synchronize");
  if (status) return status;
  event->references.fetch_add(1);
  if (await(event, event->issued.load(), nullptr)) {
    advance_host_time(event->time.load());
  } else {
    status = fail_lost(event->device, "npu_event_synchronize");
  }
  drop(event);
  return status;
}

NPU_API npu_status_t npu_event_elapsed(npu_event_t start, npu_event_t end, double* milliseconds) {
  npu_status_t status = check_event(start, "npu_event_elapsed");
  if (!status) status = check_event(end, "npu_event_elapsed");
  if (status) return status;
  if (!milliseconds)
    return fail(NPU_STATUS_INVALID_VALUE, "npu_event_elapsed: milliseconds: NULL: expected an address");
  if (start->device != end->device) {
    return fail(NPU_STATUS_INVALID_VALUE,
                "npu_event_elapsed: start is of device %d, end of device %d: expected one device", start->device->index,
                end->device->index);
  }
  for (npu_event* e : {start, end}) {
    const char* which = e == start ? "start" : "end";
    if (!e->issued.load()) return fail(NPU_STATUS_INVALID_VALUE, "npu_event_elapsed: %s was never recorded", which);
    if (!reached(e, e->issued.load())) {
      return fail(NPU_STATUS_NOT_READY, "npu_event_elapsed: %s has not come yet: synchronise first", which);
    }
  }
  double cycles = double(end->time.load()) - double(start->time.load());
  *milliseconds = cycles / (config().chip.clock_mhz * 1e3);
  return NPU_STATUS_SUCCESS;
}

}  // extern "C"
