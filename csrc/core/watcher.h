// watcher.h: who looks on while a device is given work: the seam between the core and a profiler.
//
// Contract: a Device that is not watched pays nothing: the bit that says so lies in the word that every call reads
// anyway. A watched one tells its watcher of each piece of work just before and just after the call that submits it, on
// the thread that submits it. Both may call into the device (its events). `begin` throws only what the user's earlier
// work failed with, if a wait of the watcher's own brought it to light; `end` does not throw. There is one watcher in a
// process, which lives as long as it.
#pragma once
#include <cstdint>

#include "torchfl/uba.h"

namespace torchfl {

class Device;

// One piece of work as it is submitted. The pointers are valid during the call only.
struct Work {
  enum class Kind : uint8_t {
    kernel,       // a kernel of the adapter's table
    program,      // a program that the adapter compiled
    copy,         // bytes or elements, `direction` says which way
    fill,         // one value everywhere
    synchronize,  // the host waits
  };
  Kind kind = Kind::kernel;
  const char* name = "";
  void* stream = nullptr;
  uint64_t bytes = 0;                   // copy, fill; of strided ones see `target`
  int32_t direction = 0;                // copy: UBA_HOST_TO_DEVICE ...
  const Device* peer_source = nullptr;  // copy from another device
  const uba_tensor* target = nullptr;   // of a strided copy or fill
};

class Watcher {
 public:
  virtual ~Watcher() = default;
  // What it returns is handed to `end`. NULL: the watcher does not care about this one.
  virtual void* begin(Device& device, const Work& work) = 0;
  // `done`: the adapter took the work. Otherwise it was refused, or failed.
  virtual void end(Device& device, void* token, bool done) noexcept = 0;
};

}  // namespace torchfl
