// fake_adapter.h: an adapter without a chip, whose every answer a test can script.
//
// Contract: `Fake` is one adapter with its devices; one may exist at a time (the ABI passes no context to `open`).
// Device addresses are numbers that nothing may dereference. Each function first takes a scripted answer, if one is
// queued under its name (`script("alloc", UBA_FAILED, 7, "text")`), and counts its calls (`calls("alloc")`). Events
// are ready when the test says so (`finish(stream)`). Misuse by the host (freeing an unknown address, freeing while an
// event is outstanding where the test forbids it) is counted in `misuse`. Thread-safe.
#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "device.h"
#include "error.h"

namespace fake {

struct Answer {
  uba_status status;
  int64_t code;
  std::string text;
};

struct Event {
  void* stream = nullptr;
  int64_t position = 0;  // of the stream's work that it waits for
};

class Fake {
 public:
  Fake();
  ~Fake();
  Fake(const Fake&) = delete;

  // Before adapter() is first called.
  uba_device_api& api() { return api_; }
  uba_adapter& table() { return table_; }
  void without_events();
  void without_streams();

  std::shared_ptr<torchfl::Adapter> adapter();
  // Opens device 0.
  std::unique_ptr<torchfl::Device> device() { return std::make_unique<torchfl::Device>(adapter(), 0, "npu_v3:0"); }

  void script(const std::string& function, uba_status status, int64_t code = 0, const std::string& text = "");
  int calls(const std::string& function);
  void finish(void* stream);  // all work enqueued so far on the stream is done
  void finish_all();

  uint64_t capacity = uint64_t(1) << 40;
  uint64_t alignment = 4096;
  uint64_t address_offset = 0;  // added to addresses, to misalign them
  uint64_t max_allocation = 0;
  int misuse = 0;
  std::map<uint64_t, uint64_t> allocations;  // address -> bytes
  uint64_t used = 0;

  // The functions of the table use these.
  std::mutex mutex;
  bool scripted(const char* function, uba_status* status);  // counts, and takes the next scripted answer
  std::map<std::string, std::deque<Answer>> answers;
  std::map<std::string, int> counts;
  std::map<void*, int64_t> enqueued, done;  // by stream
  std::set<Event*> events;
  uint64_t next_address = uint64_t(1) << 32;

 private:
  uba_device_api api_{};
  uba_adapter table_{};
  std::shared_ptr<torchfl::Adapter> adapter_;
};

// A stream handle that is not the default one.
inline void* stream(uintptr_t number) { return reinterpret_cast<void*>(number * 16); }

}  // namespace fake
