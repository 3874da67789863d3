// device.h: one open device of one adapter: statuses become errors, and a lost device stays lost.
//
// Contract: every method throws Error on failure, with the device's name, the function, the SDK's code and text.
// UBA_DEVICE_LOST poisons this device: every later call on it throws Error(device_lost) at once, with the first
// cause, and nothing more reaches the adapter; other devices go on. In a forked child every call throws.
// Optional functions are given their default here, so callers need no NULL checks. No locks on the call path.
// A profiler sees the work through a Watcher (watcher.h).
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "adapter.h"
#include "watcher.h"

namespace torchfl {

class Device {
 public:
  // `label` is what users call it ("npu_v3:0").
  Device(std::shared_ptr<Adapter> adapter, int32_t adapter_index, std::string label);
  ~Device();
  Device(const Device&) = delete;

  const std::string& label() const { return label_; }
  const std::shared_ptr<Adapter>& adapter() const { return adapter_; }
  int32_t adapter_index() const { return adapter_index_; }
  void* handle() const { return handle_; }
  const uba_properties& properties() const { return properties_; }

  void* alloc(uint64_t bytes);  // NULL when the device is out of memory; other failures throw
  void free(void* ptr);
  void copy(void* stream, void* dst, const void* src, uint64_t bytes, int32_t direction);
  void fill(void* stream, void* dst, uint64_t bytes, int32_t value);
  void synchronize(void* stream);
  bool copy_nd(void* stream, const uba_tensor& dst, const uba_tensor& src);   // false: not supported
  bool fill_nd(void* stream, const uba_tensor& dst, const uba_value& value);  // false: not supported
  bool peer_copy(void* stream, void* dst, const Device& src_device, const void* src, uint64_t bytes);  // false: cannot

  void* stream_create(int32_t priority);  // NULL (the default stream) when the chip has one stream
  void stream_destroy(void* stream);
  bool stream_query(void* stream);

  bool has_events() const;
  void* event_create();  // NULL without events
  void event_destroy(void* event) noexcept;
  void event_record(void* event, void* stream);  // without events: synchronises the stream
  void event_wait(void* event, void* stream);
  bool event_query(void* event);
  void event_synchronize(void* event);
  double event_elapsed(void* start, void* end);

  bool can_map_host() const;
  void* map_host(void* host, uint64_t bytes);
  void unmap_host(void* ptr);
  bool host_accessible() const { return properties_.host_accessible != 0; }

  void memory_info(uint64_t* free_bytes, uint64_t* total_bytes);  // 0, 0 = unknown
  bool telemetry(uba_telemetry* out);

  // Runs a kernel. UBA_OK and UBA_NOT_SUPPORTED are returned (with NOT_SUPPORTED the reason is in
  // take_sdk_message()); everything else throws. Inline-fast: one atomic load, one call.
  uba_status run(uba_kernel_fn fn, const uba_call& call, int64_t tag, const char* kernel_name) {
    if (__builtin_expect(state_.load(std::memory_order_relaxed) != 0, 0))
      return run_watched(fn, call, tag, kernel_name);
    uba_status status = fn(handle_, &call, tag);
    // Unsigned, so that a negative status (which does not exist) is a failure too.
    if (__builtin_expect(uint32_t(status) > uint32_t(UBA_NOT_SUPPORTED), 0)) raise(status, kernel_name);
    return status;
  }

  bool has_programs() const { return api_.program_compile != nullptr; }
  void* program_compile(const uba_program& program);                       // NULL: not supported
  void program_run(void* compiled, const uba_run& run, const char* name);  // `name` is the watcher's
  void program_release(void* compiled) noexcept;

  bool lost() const { return (state_.load() & kLost) != 0; }
  std::string lost_reason() const;
  // Called in a forked child: from now on every call throws, saying that a device cannot be used after fork.
  void mark_forked() { state_.fetch_or(kForked); }
  bool forked() const { return (state_.load() & kForked) != 0; }
  // Turns a kernel's failure into an Error; poisons on UBA_DEVICE_LOST.
  [[noreturn]] void raise(uba_status status, const char* kernel_name);
  // Throws if the device is lost or was opened before a fork: for callers that would otherwise not reach the adapter.
  void ready() const {
    if (__builtin_expect((state_.load(std::memory_order_relaxed) & kDown) != 0, 0)) refuse();
  }

  // From now on the process's watcher is told of this device's work, or no longer.
  static void set_watcher(Watcher* watcher);
  void set_watched(bool on) { on ? state_.fetch_or(kWatched) : state_.fetch_and(~kWatched); }

 private:
  static constexpr int kLost = 1, kForked = 2, kDown = kLost | kForked, kWatched = 4;
  class Watched;
  uba_status run_watched(uba_kernel_fn fn, const uba_call& call, int64_t tag, const char* kernel_name);
  [[noreturn]] void refuse() const;
  [[noreturn]] void fail(uba_status status, const char* kind, const char* name);
  void check(uba_status status, const char* function) {
    if (__builtin_expect(status != UBA_OK, 0)) fail(status, "", function);
  }
  bool supported(uba_status status, const char* function);
  bool query(uba_status status, const char* function);
  void close() noexcept;
  std::shared_ptr<Adapter> adapter_;
  int32_t adapter_index_;
  std::string label_;
  void* handle_ = nullptr;
  uba_device_api api_{};
  uba_properties properties_{};
  std::atomic<int> state_{0};  // kLost, kForked, kWatched
  mutable std::mutex reason_mutex_;
  std::string reason_;
};

}  // namespace torchfl
