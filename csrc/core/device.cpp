// device.cpp: statuses become errors, optional functions get their defaults, a lost device stays lost.
//
// Contract: see device.h. The order in `fail` matters: the reason is written before the state bit is set, so a thread
// that sees the bit finds the reason.
#include "device.h"

#include <cstring>
#include <utility>

namespace torchfl {
namespace {

constexpr const char* kLostAdvice =
    "The device stays unusable in this process: create a new process to use it again; other devices of this process "
    "are unaffected";

// "injected fault (SDK code 6, UBA_FAILED)", or what can be said when the adapter left no message.
std::string describe(const SdkMessage& message, uba_status status) {
  std::string name = status_name(status);
  if (status < UBA_OK || status > UBA_NOT_READY) name = "status " + std::to_string(status);
  if (message.text.empty() && message.code == 0) {
    return name + " (the adapter gave no reason: it should call host->set_error before it returns a failure)";
  }
  std::string text = message.text.empty() ? "the SDK gave no text" : message.text;
  return text + " (SDK code " + std::to_string(message.code) + ", " + name + ")";
}

ErrorKind kind_of(uba_status status) {
  switch (status) {
    case UBA_OUT_OF_MEMORY:
      return ErrorKind::out_of_memory;
    case UBA_INVALID_VALUE:
      return ErrorKind::invalid_value;
    case UBA_DEVICE_LOST:
      return ErrorKind::device_lost;
    case UBA_NOT_SUPPORTED:
    case UBA_FAILED:
      return ErrorKind::failed;
    default:  // UBA_NOT_READY where nothing was asked, or a status that does not exist
      return ErrorKind::internal;
  }
}

std::atomic<Watcher*> g_watcher{nullptr};

const char* copy_name(int32_t direction) {
  switch (direction) {
    case UBA_HOST_TO_DEVICE:
      return "Memcpy HtoD";
    case UBA_DEVICE_TO_HOST:
      return "Memcpy DtoH";
    default:
      return "Memcpy DtoD";
  }
}

}  // namespace

void Device::set_watcher(Watcher* watcher) { g_watcher.store(watcher); }

// Tells the watcher, if there is one for this device, that work begins and how it ended.
class Device::Watched {
 public:
  Watched(Device& device, const Work& work) : device_(device) {
    if (__builtin_expect((device.state_.load(std::memory_order_relaxed) & kWatched) == 0, 1)) return;
    watcher_ = g_watcher.load();
    if (watcher_ != nullptr) token_ = watcher_->begin(device, work);
  }
  ~Watched() {
    if (__builtin_expect(token_ != nullptr, 0)) watcher_->end(device_, token_, done);
  }
  Watched(const Watched&) = delete;
  bool done = false;

 private:
  Device& device_;
  Watcher* watcher_ = nullptr;
  void* token_ = nullptr;
};

uba_status Device::run_watched(uba_kernel_fn fn, const uba_call& call, int64_t tag, const char* kernel_name) {
  ready();
  Watched watched(*this, {Work::Kind::kernel, kernel_name, call.stream, 0, 0});
  uba_status status = fn(handle_, &call, tag);
  if (uint32_t(status) > uint32_t(UBA_NOT_SUPPORTED)) raise(status, kernel_name);
  watched.done = status == UBA_OK;
  return status;
}

void Device::program_run(void* compiled, const uba_run& run, const char* name) {
  ready();
  Watched watched(*this, {Work::Kind::program, name, run.stream, 0, 0});
  check(api_.program_run(handle_, compiled, &run), "program_run");
  watched.done = true;
}

Device::Device(std::shared_ptr<Adapter> adapter, int32_t adapter_index, std::string label)
    : adapter_(std::move(adapter)),
      adapter_index_(adapter_index),
      label_(std::move(label)),
      api_(adapter_->device_api()) {
  check(adapter_->table()->open(adapter_index, &handle_), "open");
  properties_.header = UBA_HEADER(uba_properties);
  try {
    check(api_.properties(handle_, &properties_), "properties");
  } catch (...) {
    close();
    throw;
  }
  // The texts come from fixed-size fields: an SDK that fills all 64 bytes leaves no terminator.
  properties_.name[sizeof(properties_.name) - 1] = '\0';
  properties_.serial[sizeof(properties_.serial) - 1] = '\0';
}

Device::~Device() { close(); }

void Device::close() noexcept {
  // A lost device is not touched again; a forked child must not close what its parent uses.
  if ((state_.load() & kDown) == 0 && adapter_->table()->close != nullptr) adapter_->table()->close(handle_);
}

void* Device::alloc(uint64_t bytes) {
  ready();
  void* ptr = nullptr;
  uba_status status = api_.alloc(handle_, bytes, &ptr);
  if (status == UBA_OUT_OF_MEMORY) return nullptr;  // the message stays for whoever reports it
  check(status, "alloc");
  if (ptr == nullptr) {
    throw Error(ErrorKind::internal,
                label_ + ": alloc returned UBA_OK but no address: this is a bug of the adapter " + adapter_->path());
  }
  return ptr;
}

void Device::free(void* ptr) {
  ready();
  if (ptr != nullptr) check(api_.free(handle_, ptr), "free");
}

void Device::copy(void* stream, void* dst, const void* src, uint64_t bytes, int32_t direction) {
  ready();
  if (bytes == 0) return;
  Watched watched(*this, {Work::Kind::copy, copy_name(direction), stream, bytes, direction});
  check(api_.copy(handle_, stream, dst, src, bytes, direction), "copy");
  watched.done = true;
}

void Device::fill(void* stream, void* dst, uint64_t bytes, int32_t value) {
  ready();
  if (bytes == 0) return;
  Watched watched(*this, {Work::Kind::fill, "Memset", stream, bytes, 0});
  check(api_.fill(handle_, stream, dst, bytes, value), "fill");
  watched.done = true;
}

void Device::synchronize(void* stream) {
  ready();
  Watched watched(*this, {Work::Kind::synchronize, "synchronize", stream, 0, 0});
  check(api_.synchronize(handle_, stream), "synchronize");
  watched.done = true;
}

// UBA_NOT_SUPPORTED is an answer, not a failure; its message must not be taken for that of a later failure.
bool Device::supported(uba_status status, const char* function) {
  if (status == UBA_NOT_SUPPORTED) {
    take_sdk_message();
    return false;
  }
  check(status, function);
  return true;
}

bool Device::copy_nd(void* stream, const uba_tensor& dst, const uba_tensor& src) {
  ready();
  if (api_.copy_nd == nullptr) return false;
  Watched watched(*this, {Work::Kind::copy, "copy_nd", stream, 0, UBA_DEVICE_TO_DEVICE, nullptr, &dst});
  return watched.done = supported(api_.copy_nd(handle_, stream, &dst, &src), "copy_nd");
}

bool Device::fill_nd(void* stream, const uba_tensor& dst, const uba_value& value) {
  ready();
  if (api_.fill_nd == nullptr) return false;
  Watched watched(*this, {Work::Kind::fill, "fill_nd", stream, 0, 0, nullptr, &dst});
  return watched.done = supported(api_.fill_nd(handle_, stream, &dst, &value), "fill_nd");
}

bool Device::peer_copy(void* stream, void* dst, const Device& src_device, const void* src, uint64_t bytes) {
  ready();
  src_device.ready();
  if (api_.peer_copy == nullptr || src_device.adapter_ != adapter_) return false;
  if (bytes == 0) return true;
  Watched watched(*this, {Work::Kind::copy, "Memcpy PtoP", stream, bytes, UBA_DEVICE_TO_DEVICE, &src_device});
  return watched.done = supported(api_.peer_copy(handle_, stream, dst, src_device.handle_, src, bytes), "peer_copy");
}

void* Device::stream_create(int32_t priority) {
  ready();
  void* stream = nullptr;
  if (api_.stream_create != nullptr) check(api_.stream_create(handle_, priority, &stream), "stream_create");
  return stream;
}

void Device::stream_destroy(void* stream) {
  ready();
  if (stream != nullptr && api_.stream_destroy != nullptr) {
    check(api_.stream_destroy(handle_, stream), "stream_destroy");
  }
}

bool Device::query(uba_status status, const char* function) {
  if (status == UBA_NOT_READY) return false;
  check(status, function);
  return true;
}

bool Device::stream_query(void* stream) {
  ready();
  if (api_.stream_query == nullptr) {
    synchronize(stream);
    return true;
  }
  return query(api_.stream_query(handle_, stream), "stream_query");
}

bool Device::has_events() const { return api_.event_create != nullptr; }

void* Device::event_create() {
  ready();
  void* event = nullptr;
  if (has_events()) check(api_.event_create(handle_, &event), "event_create");
  return event;
}

void Device::event_destroy(void* event) noexcept {
  if (event == nullptr || !has_events() || (state_.load(std::memory_order_relaxed) & kDown) != 0) return;
  if (api_.event_destroy(handle_, event) != UBA_OK) take_sdk_message();
}

void Device::event_record(void* event, void* stream) {
  ready();
  if (event == nullptr || !has_events()) return synchronize(stream);
  check(api_.event_record(handle_, event, stream), "event_record");
}

void Device::event_wait(void* event, void* stream) {
  ready();  // without events, the record has already waited
  if (event != nullptr && has_events()) check(api_.event_wait(handle_, event, stream), "event_wait");
}

bool Device::event_query(void* event) {
  ready();
  if (event == nullptr || !has_events()) return true;
  return query(api_.event_query(handle_, event), "event_query");
}

void Device::event_synchronize(void* event) {
  ready();
  if (event != nullptr && has_events()) check(api_.event_synchronize(handle_, event), "event_synchronize");
}

double Device::event_elapsed(void* start, void* end) {
  ready();
  if (start == nullptr || end == nullptr || !has_events()) {
    throw Error(ErrorKind::invalid_value,
                label_ +
                    ": this chip has no events, so device time cannot be measured; time on the host around a "
                    "synchronise instead");
  }
  double milliseconds = 0;
  check(api_.event_elapsed(handle_, start, end, &milliseconds), "event_elapsed");
  return milliseconds;
}

void* Device::program_compile(const uba_program& program) {
  ready();
  void* compiled = nullptr;
  return supported(api_.program_compile(handle_, &program, &compiled), "program_compile") ? compiled : nullptr;
}

void Device::program_release(void* compiled) noexcept {
  // A lost device has nothing to give back, and in a forked child nothing of it is ours.
  if ((state_.load() & kDown) == 0) (void)api_.program_release(handle_, compiled);
}

bool Device::can_map_host() const { return api_.map_host != nullptr; }

void* Device::map_host(void* host, uint64_t bytes) {
  ready();
  if (api_.map_host == nullptr) {
    throw Error(ErrorKind::invalid_value, label_ + ": this chip cannot map host memory");
  }
  void* ptr = nullptr;
  check(api_.map_host(handle_, host, bytes, &ptr), "map_host");
  return ptr;
}

void Device::unmap_host(void* ptr) {
  ready();
  if (ptr != nullptr && api_.unmap_host != nullptr) check(api_.unmap_host(handle_, ptr), "unmap_host");
}

void Device::memory_info(uint64_t* free_bytes, uint64_t* total_bytes) {
  ready();
  *free_bytes = 0;
  *total_bytes = 0;
  if (api_.memory_info != nullptr) check(api_.memory_info(handle_, free_bytes, total_bytes), "memory_info");
}

bool Device::telemetry(uba_telemetry* out) {
  ready();
  *out = uba_telemetry{UBA_HEADER(uba_telemetry), -1, -1, -1, -1};
  return api_.telemetry != nullptr && supported(api_.telemetry(handle_, out), "telemetry");
}

std::string Device::lost_reason() const {
  std::lock_guard<std::mutex> lock(reason_mutex_);
  return reason_;
}

void Device::raise(uba_status status, const char* function) { fail(status, "kernel ", function); }

void Device::fail(uba_status status, const char* kind, const char* name) {
  SdkMessage message = take_sdk_message();
  std::string what = std::string(kind) + (name != nullptr ? name : "?");
  std::string said = describe(message, status);
  std::string text = label_ + ": ";
  switch (status) {
    case UBA_DEVICE_LOST: {
      std::string cause = what + ": " + said;
      {
        std::lock_guard<std::mutex> lock(reason_mutex_);
        if (reason_.empty()) reason_ = cause;  // a second thread's failure is a consequence, not the cause
      }
      state_.fetch_or(kLost);
      text += "the device is lost: " + cause + ". " + kLostAdvice;
      break;
    }
    case UBA_OUT_OF_MEMORY:
      text += what + " ran out of memory: " + said;
      break;
    case UBA_INVALID_VALUE:
      text += what + " refused an argument: " + said;
      break;
    case UBA_NOT_SUPPORTED:
    case UBA_FAILED:
      text += what + " failed: " + said;
      break;
    default:
      text += what + " returned " + said + ", which it may not: this is a bug of the adapter " + adapter_->path();
  }
  throw Error(kind_of(status), text, message.code);
}

void Device::refuse() const {
  if ((state_.load() & kForked) != 0) {
    // No lock here: another thread may have held it at the fork.
    throw Error(ErrorKind::failed,
                label_ +
                    ": this process was forked after the device had been opened, and an open device does not survive "
                    "a fork. Start the process with multiprocessing's 'spawn' method, or use the device for the first "
                    "time in the child");
  }
  throw Error(ErrorKind::device_lost,
              label_ + ": the device was lost earlier, at " + lost_reason() + ". " + kLostAdvice);
}

}  // namespace torchfl
