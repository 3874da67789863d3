// opencl.h: what the parts of this adapter share: an open device, its memory, and how a kernel is built and launched.
//
// Contract: addresses that the host computes with are numbers, `tag | slot << 40 | offset`; a slot holds one cl_mem, so
// a kernel gets that and an offset, and no sub-buffer is ever needed. What fails throws Failure; `guard` turns it
// into a status at the C interface, and nothing else may throw across it. Kernels are cached for a device by source,
// name and options, and their programs on disk. Work of one stream runs in order; calls on one stream are never
// concurrent.
#pragma once
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <vector>

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

struct Failure {
  uba_status status;
  int64_t code;  // OpenCL's; 0: none
  std::string text;
};
// "not this call": the host takes the next path. Before anything is enqueued.
[[noreturn]] inline void refuse(std::string why) { throw Failure{UBA_NOT_SUPPORTED, 0, std::move(why)}; }
void check(cl_int code, const char *what);  // throws if OpenCL says anything but success
uba_status tell(const Failure &failure);    // to the host
template <class F>
uba_status guard(F &&body) noexcept {
  try {
    return body(), UBA_OK;
  } catch (const Failure &failure) {
    return tell(failure);
  } catch (const std::exception &error) {  // std::bad_alloc
    return tell({UBA_FAILED, 0, error.what()});
  }
}

struct Buffer {  // `offset` bytes into `memory`
  cl_mem memory = nullptr;
  uint64_t offset = 0;
};

struct Kernel {
  cl_kernel handle = nullptr;
  std::mutex setting;  // a cl_kernel holds its arguments until it is enqueued
};

struct Device;
struct Stream {
  Device *device = nullptr;
  cl_command_queue queue = nullptr;
  cl_mem scratch = nullptr;
  uint64_t scratch_bytes = 0;
  cl_mem fault = nullptr;  // an int: 1 when a kernel met an index that is out of range
  bool may_fault = false;
};

struct Device {
  cl_platform_id platform = nullptr;
  cl_device_id id = nullptr;
  cl_context context = nullptr;
  std::string name, versions, options;  // versions: of driver and platform; options: for every build
  uint64_t total = 0, largest = 0, parameters = 0;
  cl_uint units = 0, width = 0;  // width: of its vectors, in floats
  bool fp64 = false, cpu = false;
  std::atomic<uint64_t> used{0};
  Stream queue;  // the default one
  static constexpr size_t slot_count = 1 << 16;
  std::unique_ptr<cl_mem[]> slots;
  std::unique_ptr<uint64_t[]> slot_bytes;
  std::vector<uint32_t> free_slots;
  std::mutex slots_lock;
  std::unordered_map<std::string, std::unique_ptr<Kernel>> kernels;
  std::shared_mutex kernels_lock;
  std::shared_ptr<void> tables;  // nn.cpp's
  std::mutex tables_lock;
};

inline Stream &stream_of(void *device, void *stream) {
  return stream ? *static_cast<Stream *>(stream) : static_cast<Device *>(device)->queue;
}
Buffer buffer_at(Device &device, const void *address);  // the caller's pointer arithmetic is in `offset`
inline Buffer buffer_of(Device &device, const uba_tensor &t) {
  return buffer_at(device, static_cast<const char *>(t.data) + t.byte_offset);
}
// Memory for one call, until the next call of `scratch` on this stream: take it once and share it out.
Buffer scratch(Stream &stream, uint64_t bytes);
cl_mem fault_of(Stream &stream);  // for a kernel that may set it; `synchronize` looks at it

// The kernel `name` of `source`, built with `options`: built once a device, found again by `key` alone (all that
// tells it from others, `name` and `options` too).
template <class Make>  // Make() -> {source, name, options}
Kernel &kernel_for(Device &device, const std::string &key, Make &&make);
struct Recipe {
  std::string source, name, options;
};
Kernel &build(Device &device, const std::string &key, const Recipe &recipe);  // throws with the build log
template <class Make>
Kernel &kernel_for(Device &device, const std::string &key, Make &&make) {
  {
    std::shared_lock<std::shared_mutex> lock(device.kernels_lock);
    auto known = device.kernels.find(key);
    if (known != device.kernels.end()) return *known->second;
  }
  return build(device, key, make());
}
// The same for a source that is a constant of this library.
inline Kernel &kernel_of(Device &device, const char *source, const char *name, const std::string &options = "") {
  return kernel_for(device, name + (' ' + options), [&] { return Recipe{source, name, options}; });
}

// Arguments of a launch: a tensor stands for two, its memory and its offset in elements (long); NULL data is a NULL
// memory. A Buffer is its memory and its offset in bytes. Numbers and plain structs are passed as they are.
int64_t item_size(int32_t dtype);
struct Setter {
  Device &device;
  Kernel &kernel;
  cl_uint index = 0;
  void put(const void *value, size_t bytes) {
    check(cl::SetKernelArg(kernel.handle, index++, bytes, value), "argument");
  }
  void add(const Buffer &b, int64_t item = 1) {
    const int64_t offset = int64_t(b.offset) / item;
    put(&b.memory, sizeof(cl_mem)), put(&offset, sizeof(offset));
  }
  void add(const uba_tensor &t) { add(t.data ? buffer_of(device, t) : Buffer{}, item_size(t.dtype)); }
  template <class T>
  std::enable_if_t<std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>> add(const T &value) {
    put(&value, sizeof(value));
  }
};
// `global` is rounded up to multiples of `local`, so kernels must check their bounds. Zero work is no launch.
struct Range {
  size_t global[3] = {1, 1, 1}, local[3] = {64, 1, 1};
};
void enqueue(Stream &stream, Kernel &kernel, const Range &range);
template <class... Args>
void launch(Stream &stream, Kernel &kernel, const Range &range, const Args &...args) {
  std::lock_guard<std::mutex> lock(kernel.setting);
  Setter set{*stream.device, kernel};
  (set.add(args), ...);
  enqueue(stream, kernel, range);
}

// The C type in which a dtype is stored ("half", "ushort" for bfloat16, "uchar" for bool); refuses what the device
// lacks.
const char *storage_type(const Device &device, int32_t dtype);

// Defines prefix_T (as stored), prefix_R (in registers: float for float16, bfloat16, float32), prefix_LD(p, i),
// prefix_ST(p, i, x).
std::string type_macros(const Device &device, const std::string &prefix, int32_t dtype);
extern const char vector_prelude[];  // vector.cl: what these need; V must be defined before it

struct KernelTable {
  const uba_kernel *kernels;
  int64_t count;
};
KernelTable vector_kernels();  // vector.cpp
KernelTable data_kernels();    // data.cpp
KernelTable nn_kernels();      // nn.cpp
// vector.cpp
uba_status copy_nd(void *device, void *stream, const uba_tensor *dst, const uba_tensor *src);
uba_status fill_nd(void *device, void *stream, const uba_tensor *dst, const uba_value *value);
uba_status elementwise(void *device, const uba_call *call, int64_t tag);  // tag: kCopy, kFill or another form
enum { kCopy = 1, kFill = 2 };
int64_t bits_of(const uba_value &number, int32_t dtype);  // as a kernel takes it, in the first bytes
int32_t mover_dtype(int32_t dtype);  // the integer as which elements are moved as they are
bool is_float(int32_t dtype);  // float in registers
uba_status program_compile(void *device, const uba_program *program, void **compiled);
uba_status program_run(void *device, void *compiled, const uba_run *run);
uba_status program_release(void *device, void *compiled);

}  // namespace opencl
