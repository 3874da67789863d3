// kit/kit.h: the kernel kit: all vector instructions, fused vector programs and the common operators of PyTorch, for
// chips whose SDK compiles a C-like kernel language: OpenCL C, or what a header of macros makes of another one.
//
// The kit gives: `kernels()` for the adapter's table, copy_nd and fill_nd, programs of vector instructions as one fused
// kernel each, and kernels that are built once a device and kept on disk for the next process.
// The adapter gives: a class derived from Device, one from Stream and one from Kernel; the rest of its own is what
// every adapter has (memory, plain copies, streams, events). `void *device` and `void *stream` of uba.h must be a
// kit::Device * and a kit::Stream *: `*device = static_cast<kit::Device *>(mine)`.
// The kit knows no chip and no SDK: it includes uba.h, its own headers and the standard library. Link the static
// library uba_kit (`uba_adapter(... KIT)`); several adapters of one process have one each.
//
// Errors: whatever fails throws a Failure, the adapter's functions too; `guard` turns it into a status at the C
// interface. Threads: the kit may call Device from any thread, at the same time; a Stream from one at a time: it holds
// the stream's `turn` for a whole call, for PyTorch's threads share streams.
//
// Dialect: a kernel's source is Device::dialect and then the kit's own, with the names of OpenCL C. What another
// language defines in its dialect, with the meaning that OpenCL C gives it:
//   words      KERNEL (before void), GLOBAL and LOCAL (address spaces), BARRIER() (of local memory), ITEMS(x, y) (a
//              kernel's fixed work-group), EXACT (from here on, products and sums are not contracted to fma)
//   types      uchar, ushort, uint, ulong; long of 64 bits; half, which is only stored
//   functions  get_global_id, get_group_id, get_local_id; as_float, as_int, as_uint, as_double; vload_half(i, p),
//              vstore_half(x, i, p), vstore_half_rte; min, max, mul_hi, rsqrt; those of C's math.h, by type
//   vectors    float8, (float8)(x), vload8, vstore8, select, convert_float8, as_uint8, ...: with `lanes` > 1 only
// tests/kit/dialect.h is a whole one, for C++.
#pragma once
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "torchfl/uba.h"

namespace kit {

extern const uba_host *host;  // set by uba_query

// ------------------------------------------------------------------------------------------------ errors

struct Failure {
  uba_status status;
  int64_t code;  // the SDK's; 0: none
  std::string text;
};
// "not this call": the host takes the next path. Before anything is enqueued.
[[noreturn]] inline void refuse(std::string why) { throw Failure{UBA_NOT_SUPPORTED, 0, std::move(why)}; }
inline Failure fault() {
  return {UBA_INVALID_VALUE, 0, "an index is out of range: what was read or written there is left out"};
}
uba_status tell(const Failure &failure);  // to the host
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

// ------------------------------------------------------------------------------------------- what an adapter gives

struct Buffer {  // `offset` bytes into what the SDK knows as `memory`: a handle, or an address; NULL: none
  void *memory = nullptr;
  uint64_t offset = 0;
};
struct Kernel {  // as the SDK launches it
  virtual ~Kernel() = default;
};
struct Recipe {
  std::string source, name;  // name: of the one kernel in `source` that is wanted
};
// `value` points to `bytes` bytes that are passed as they are: a number, a struct, or, if `memory`, a Buffer's handle.
struct Argument {
  const void *value;
  size_t bytes;
  bool memory;
};
struct Range {  // work-items; the kit makes `global` a multiple of `local`
  size_t global[3] = {1, 1, 1}, local[3] = {64, 1, 1};
};
struct Matrix {  // strides in elements
  Buffer at;
  int64_t batch, row, column;
};
struct Matmul {  // y = alpha * a b + beta * y, `batch` times: a is of M rows and K columns, b of K and N
  int32_t dtype;
  int64_t batch, M, N, K;
  Matrix a, b, y;
  double alpha, beta;
};

class Device;
class Stream {
 public:
  explicit Stream(Device &of) : device(of) {}
  Stream(const Stream &) = delete;
  virtual ~Stream() = default;
  Device &device;
  // `scratch` and the launches that use it belong together: the kit holds this while it serves a call, and the
  // adapter's own functions where they use what a Stream keeps. Recursive, for calls contain calls.
  std::recursive_mutex turn;

  // Enqueues a kernel. The values of the arguments are read before it returns.
  virtual void launch(Kernel &kernel, const Range &range, const Argument *arguments, size_t count) = 0;
  // Memory for what is enqueued from here to the next call of `scratch`; work enqueued before keeps its own.
  virtual Buffer scratch(uint64_t bytes) = 0;
  // The handle of an int in memory, 0 at first, which a kernel of this call sets to 1 where an index is out of range.
  // `synchronize` looks at it, sets it back, and throws `fault()`.
  virtual void *fault() = 0;
  // The vendor's own matrix product: whether it takes this one and does it better; and then, enqueues it.
  virtual bool takes(const Matmul &) const { return false; }
  virtual void matmul(const Matmul &) {}
};

class Device {
 public:
  Device();
  Device(const Device &) = delete;
  virtual ~Device();

  // ---- facts: set when it is opened, and not changed after
  std::string name;      // for messages
  std::string versions;  // all that a built program depends on beside its source: device, driver, compiler, its options
  std::string dialect;   // source text before every kernel: see above
  std::string folder;    // of the cache on disk, a name in TORCHFL_CACHE_DIR: "opencl"
  uint64_t kept_bytes = 256u << 20;  // of that folder
  uint64_t parameter_bytes = 1024;   // that the arguments of a kernel may have together
  int64_t lanes = 4;                 // floats that a work-item computes at a time: 1, 4, 8 or 16
  bool fp64 = false;
  bool cpu = false;          // a work-item has a vector unit of its own: work-groups of one item, large tiles
  Stream *stream = nullptr;  // the default one

  // ---- functions
  // Where an address that the host computed lies. The arithmetic on what `alloc` returned is in the offset.
  virtual Buffer at(const void *address) = 0;
  // Compiles; a Failure holds the compiler's log. Sets *binary to what `load` takes, if the SDK gives such a thing.
  virtual std::unique_ptr<Kernel> build(const Recipe &recipe, std::string *binary) = 0;
  // From a binary that an equal device has built; NULL: the SDK does not take it.
  virtual std::unique_ptr<Kernel> load(const std::string &, const std::string &) { return nullptr; }
  // Memory with these contents. When the last owner lets go, enqueued work may still read it.
  virtual std::shared_ptr<void> constant(const void *contents, size_t bytes) = 0;

  // Lets go of all kernels and constants: before the adapter closes what they are made of.
  void forget();

  struct Parts;  // the kit's own
  std::unique_ptr<Parts> parts;
};

// ------------------------------------------------------------------------------------------------ what the kit gives

std::vector<uba_kernel> kernels();
uba_status copy_nd(void *device, void *stream, const uba_tensor *dst, const uba_tensor *src);
uba_status fill_nd(void *device, void *stream, const uba_tensor *dst, const uba_value *value);
uba_status program_compile(void *device, const uba_program *program, void **compiled);
uba_status program_run(void *device, void *compiled, const uba_run *run);
uba_status program_release(void *device, void *compiled);

}  // namespace kit
