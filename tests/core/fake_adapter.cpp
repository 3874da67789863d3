// fake_adapter.cpp: see fake_adapter.h.
#include "fake_adapter.h"

#include <cstdlib>
#include <cstring>

namespace fake {
namespace {

Fake* g_fake = nullptr;
int g_device = 0;  // its address is the handle

// Every function starts like this: one lock, one count, perhaps a scripted answer.
#define FAKE_ENTER(name)                           \
  std::lock_guard<std::mutex> lock(g_fake->mutex); \
  uba_status status = UBA_OK;                      \
  if (g_fake->scripted(name, &status)) return status

uba_status device_count(int32_t* count) {
  FAKE_ENTER("device_count");
  *count = 2;
  return UBA_OK;
}

uba_status open(int32_t, void** device) {
  FAKE_ENTER("open");
  *device = &g_device;
  return UBA_OK;
}

uba_status close(void*) {
  FAKE_ENTER("close");
  return UBA_OK;
}

uba_status properties(void*, uba_properties* out) {
  FAKE_ENTER("properties");
  std::strcpy(out->name, "Fake NPU");
  out->total_memory = g_fake->capacity;
  out->alignment = g_fake->alignment;
  out->max_allocation = g_fake->max_allocation;
  return UBA_OK;
}

uba_status alloc(void*, uint64_t bytes, void** ptr) {
  FAKE_ENTER("alloc");
  if (bytes == 0) ++g_fake->misuse;
  if (g_fake->used + bytes > g_fake->capacity) {
    torchfl::host_table()->set_error(3, "no room on the chip");
    return UBA_OUT_OF_MEMORY;
  }
  const uint64_t unit = g_fake->alignment;
  uint64_t address = (g_fake->next_address + unit - 1) / unit * unit + g_fake->address_offset;
  g_fake->next_address = address + bytes;
  g_fake->allocations[address] = bytes;
  g_fake->used += bytes;
  *ptr = reinterpret_cast<void*>(address);
  return UBA_OK;
}

uba_status free_memory(void*, void* ptr) {
  FAKE_ENTER("free");
  auto found = g_fake->allocations.find(reinterpret_cast<uint64_t>(ptr));
  if (found == g_fake->allocations.end()) {
    ++g_fake->misuse;
    return UBA_INVALID_VALUE;
  }
  g_fake->used -= found->second;
  g_fake->allocations.erase(found);
  return UBA_OK;
}

uba_status copy(void*, void* stream, void*, const void*, uint64_t, int32_t) {
  FAKE_ENTER("copy");
  ++g_fake->enqueued[stream];
  return UBA_OK;
}

uba_status fill(void*, void* stream, void*, uint64_t, int32_t) {
  FAKE_ENTER("fill");
  ++g_fake->enqueued[stream];
  return UBA_OK;
}

uba_status synchronize(void*, void* stream) {
  FAKE_ENTER("synchronize");
  g_fake->done[stream] = g_fake->enqueued[stream];
  return UBA_OK;
}

uba_status stream_create(void*, int32_t, void** stream) {
  FAKE_ENTER("stream_create");
  *stream = fake::stream(100 + g_fake->counts["stream_create"]);
  return UBA_OK;
}

uba_status stream_destroy(void*, void*) {
  FAKE_ENTER("stream_destroy");
  return UBA_OK;
}

uba_status stream_query(void*, void* stream) {
  FAKE_ENTER("stream_query");
  return g_fake->done[stream] >= g_fake->enqueued[stream] ? UBA_OK : UBA_NOT_READY;
}

uba_status event_create(void*, void** event) {
  FAKE_ENTER("event_create");
  Event* made = new Event;
  g_fake->events.insert(made);
  *event = made;
  return UBA_OK;
}

uba_status event_destroy(void*, void* event) {
  FAKE_ENTER("event_destroy");
  if (g_fake->events.erase(static_cast<Event*>(event)) == 0) ++g_fake->misuse;
  delete static_cast<Event*>(event);
  return UBA_OK;
}

uba_status event_record(void*, void* event, void* stream) {
  FAKE_ENTER("event_record");
  *static_cast<Event*>(event) = {stream, g_fake->enqueued[stream]};
  return UBA_OK;
}

uba_status event_wait(void*, void*, void*) {
  FAKE_ENTER("event_wait");
  return UBA_OK;
}

uba_status event_query(void*, void* event) {
  FAKE_ENTER("event_query");
  const Event& asked = *static_cast<Event*>(event);
  return g_fake->done[asked.stream] >= asked.position ? UBA_OK : UBA_NOT_READY;
}

uba_status event_synchronize(void*, void* event) {
  FAKE_ENTER("event_synchronize");
  const Event& asked = *static_cast<Event*>(event);
  int64_t& done = g_fake->done[asked.stream];
  if (done < asked.position) done = asked.position;
  return UBA_OK;
}

uba_status event_elapsed(void*, void*, void*, double* milliseconds) {
  FAKE_ENTER("event_elapsed");
  *milliseconds = 1.5;
  return UBA_OK;
}

uba_status memory_info(void*, uint64_t* free_bytes, uint64_t* total_bytes) {
  FAKE_ENTER("memory_info");
  *free_bytes = g_fake->capacity - g_fake->used;
  *total_bytes = g_fake->capacity;
  return UBA_OK;
}

// A kernel whose answer is its tag, and whose message is there if it is a failure.
uba_status kernel(void*, const uba_call*, int64_t tag) {
  FAKE_ENTER("kernel");
  if (tag != UBA_OK) torchfl::host_table()->set_error(6, "injected fault");
  return uba_status(tag);
}

const uba_kernel kKernels[] = {{"npu_v3_add", &kernel, 0}, {"npu_v3_mm", &kernel, 0}};

}  // namespace

Fake::Fake() {
  if (g_fake != nullptr) std::abort();
  g_fake = this;
  api_.header = UBA_HEADER(uba_device_api);
  api_.properties = &properties;
  api_.alloc = &alloc;
  api_.free = &free_memory;
  api_.copy = &copy;
  api_.fill = &fill;
  api_.synchronize = &synchronize;
  api_.stream_create = &stream_create;
  api_.stream_destroy = &stream_destroy;
  api_.stream_query = &stream_query;
  api_.event_create = &event_create;
  api_.event_destroy = &event_destroy;
  api_.event_record = &event_record;
  api_.event_wait = &event_wait;
  api_.event_query = &event_query;
  api_.event_synchronize = &event_synchronize;
  api_.event_elapsed = &event_elapsed;
  api_.memory_info = &memory_info;
  table_.header = UBA_HEADER(uba_adapter);
  table_.name = "npu_v3";
  table_.version = "1.0";
  table_.sdk_version = "9.9";
  table_.device_count = &device_count;
  table_.open = &open;
  table_.close = &close;
  table_.device = &api_;
  table_.kernels = kKernels;
  table_.kernel_count = 2;
}

Fake::~Fake() {
  for (Event* event : events) delete event;
  g_fake = nullptr;
}

void Fake::without_events() {
  api_.event_create = nullptr;
  api_.event_destroy = nullptr;
  api_.event_record = nullptr;
  api_.event_wait = nullptr;
  api_.event_query = nullptr;
  api_.event_synchronize = nullptr;
  api_.event_elapsed = nullptr;
}

void Fake::without_streams() {
  api_.stream_create = nullptr;
  api_.stream_destroy = nullptr;
  api_.stream_query = nullptr;
}

std::shared_ptr<torchfl::Adapter> Fake::adapter() {
  if (!adapter_) adapter_ = torchfl::Adapter::wrap(&table_, "/fake/libuba_fake.so");
  return adapter_;
}

void Fake::script(const std::string& function, uba_status status, int64_t code, const std::string& text) {
  std::lock_guard<std::mutex> lock(mutex);
  answers[function].push_back({status, code, text});
}

int Fake::calls(const std::string& function) {
  std::lock_guard<std::mutex> lock(mutex);
  return counts[function];
}

bool Fake::scripted(const char* function, uba_status* status) {
  ++counts[function];
  std::deque<Answer>& queue = answers[function];
  if (queue.empty()) return false;
  *status = queue.front().status;
  if (!queue.front().text.empty() || queue.front().code != 0) {
    torchfl::host_table()->set_error(queue.front().code, queue.front().text.c_str());
  }
  queue.pop_front();
  return true;
}

void Fake::finish(void* stream) {
  std::lock_guard<std::mutex> lock(mutex);
  done[stream] = enqueued[stream];
}

void Fake::finish_all() {
  std::lock_guard<std::mutex> lock(mutex);
  for (auto& entry : enqueued) done[entry.first] = entry.second;
}

}  // namespace fake
