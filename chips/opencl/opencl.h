// opencl.h: what the parts of this adapter share: the OpenCL library, an open device, its memory, and its queues.
//
// Contract: addresses that the host computes with are numbers, `tag | slot << 40 | offset`; a slot holds one cl_mem,
// so a kernel gets that and an offset, and no sub-buffer is ever needed. Kernels come from the kit (kit/kit.h): here is
// how they are built and launched. What fails throws kit::Failure. Work of one stream runs in order; several threads
// may call on one, and take turns where a Stream keeps something (kit::Stream::turn).
#pragma once
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kit/kit.h"
#include "torchfl/uba.h"

// The OpenCL functions that are used, as cl::Finish and so on: looked up when the first is needed, so that a machine
// without the loader is told what it lacks instead of "cannot open shared object file".
namespace cl {
#define CL_FUNCTIONS(X)                                                                                            \
  X(GetPlatformIDs) X(GetPlatformInfo) X(GetDeviceIDs) X(GetDeviceInfo) X(CreateContext) X(ReleaseContext)          \
  X(CreateCommandQueue) X(ReleaseCommandQueue) X(CreateBuffer) X(ReleaseMemObject) X(CreateProgramWithSource)       \
  X(CreateProgramWithBinary) X(BuildProgram) X(GetProgramBuildInfo) X(GetProgramInfo) X(ReleaseProgram)             \
  X(CreateKernel) X(ReleaseKernel) X(SetKernelArg) X(EnqueueNDRangeKernel) X(EnqueueReadBuffer)                     \
  X(EnqueueWriteBuffer) X(EnqueueCopyBuffer) X(EnqueueFillBuffer) X(EnqueueMigrateMemObjects)                       \
  X(EnqueueMarkerWithWaitList) X(EnqueueBarrierWithWaitList) X(Finish) X(Flush) X(WaitForEvents) X(GetEventInfo)    \
  X(GetEventProfilingInfo) X(ReleaseEvent)
#define CL_DECLARE(name) inline decltype(&::cl##name) name = nullptr;
CL_FUNCTIONS(CL_DECLARE)
}  // namespace cl

namespace opencl {

using kit::Buffer, kit::Failure, kit::guard;
void check(cl_int code, const char *what);  // throws if OpenCL says anything but success

struct Kernel final : kit::Kernel {
  cl_kernel handle = nullptr;
  std::mutex setting;  // a cl_kernel holds its arguments until it is enqueued
  ~Kernel() override {
    if (handle) cl::ReleaseKernel(handle);
  }
};

struct Device;
struct Stream final : kit::Stream {
  cl_command_queue queue = nullptr;
  cl_mem room = nullptr;  // what `scratch` gives
  uint64_t room_bytes = 0;
  cl_mem flag = nullptr;  // what `fault` gives
  bool may_fault = false;
  explicit Stream(Device &of);
  ~Stream() override;
  void launch(kit::Kernel &kernel, const kit::Range &range, const kit::Argument *arguments, size_t count) override;
  Buffer scratch(uint64_t bytes) override;
  void *fault() override;
  bool takes(const kit::Matmul &m) const override;  // product.cpp
  void matmul(const kit::Matmul &m) override;
  void finish();  // waits, and throws what went wrong
};

struct Device final : kit::Device {
  cl_platform_id platform = nullptr;
  cl_device_id id = nullptr;
  cl_context context = nullptr;
  std::string options;  // for every build
  uint64_t total = 0, largest = 0;
  cl_uint units = 0;
  std::atomic<uint64_t> used{0};
  std::unique_ptr<Stream> queue;  // the default one
  static constexpr size_t slot_count = 1 << 16;
  std::unique_ptr<cl_mem[]> slots{new cl_mem[slot_count]()};
  std::unique_ptr<uint64_t[]> slot_bytes{new uint64_t[slot_count]()};
  std::vector<uint32_t> free_slots;
  std::mutex slots_lock;
  ~Device() override;
  Buffer at(const void *address) override;
  std::unique_ptr<kit::Kernel> build(const kit::Recipe &recipe, std::string *binary) override;
  std::unique_ptr<kit::Kernel> load(const std::string &binary, const std::string &name) override;
  std::shared_ptr<void> constant(const void *contents, size_t bytes) override;
};
extern const char dialect[];  // build.cpp

inline Device &device_of(void *device) { return static_cast<Device &>(*static_cast<kit::Device *>(device)); }
inline Stream &stream_of(void *device, void *stream) {
  return stream ? static_cast<Stream &>(*static_cast<kit::Stream *>(stream)) : *device_of(device).queue;
}

}  // namespace opencl
