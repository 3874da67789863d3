// host_device.h: a chip whose SDK works on host memory, as an adapter without an adapter library.
//
// Contract: the device's memory is host memory, aligned as asked, so the CPU and the SDK read and write it at the same
// addresses. Where the vendor's runtime library has functions for it, its memory is theirs and host memory is mapped by
// them: PREFIX_mem_alloc, PREFIX_mem_free, PREFIX_mem_map, PREFIX_mem_unmap, found by name. No kernels: those are
// somebody else's (ATen-style handlers, functions of a pybind module). Throws Error(load). Adapters live as long as the
// process.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "adapter.h"

namespace torchfl {

struct HostDeviceOptions {
  std::string name;             // of the chip
  uint64_t alignment = 64;      // of what is allocated
  int count = 1;                // of devices, at most 8
  uint64_t total_memory = 0;    // bytes; more is not allocated. 0: whatever the host has
  std::string runtime_library;  // the vendor's, an absolute path; "" = none
  // What the functions' names may begin with, the likeliest first: "x1" for x1_mem_map.
  std::vector<std::string> prefixes;
};

std::shared_ptr<Adapter> host_device_adapter(HostDeviceOptions options);

}  // namespace torchfl
