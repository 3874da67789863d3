// sim.h: what the parts of the simulated NPU share: resolved tensors, the queue, parallel loops, the clock.
//
// Contract: an entry point (extern "C" npu_v3_*) validates its tensors with `resolve`, computes a cycle cost, and
// hands a closure to `submit`, which copies it into the stream's ring. The closure runs on the device's worker
// thread, in stream order, on host backing memory. Closures are trivially copyable, at most kPayload bytes, never
// allocate through the caller, and never throw: a failure at run time is told by `runtime_failure`.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "npu_v3_sdk.h"
#include "numbers.h"

namespace npu {

constexpr int kMaxRank = NPU_MAX_RANK;
constexpr size_t kPayload = 704;  // bytes of a command's closure: five Views and some scalars

// A tensor on the backing memory. Dimensions of size 1 keep their place (kernels such as pooling need the rank).
struct View {
  char* data = nullptr;
  int32_t dtype = 0;
  int32_t rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t stride[kMaxRank] = {};  // elements
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; i++) n *= shape[i];
    return n;
  }
  explicit operator bool() const { return dtype != 0; }  // an absent optional tensor is false
};

inline constexpr uint32_t mask(int32_t dtype) { return 1u << dtype; }
constexpr uint32_t kFloats = (1u << NPU_FLOAT16) | (1u << NPU_BFLOAT16) | (1u << NPU_FLOAT32);
constexpr uint32_t kInts =
    (1u << NPU_INT8) | (1u << NPU_UINT8) | (1u << NPU_INT16) | (1u << NPU_INT32) | (1u << NPU_INT64);
constexpr uint32_t kAnyCompute = kFloats | kInts | (1u << NPU_BOOL);
constexpr uint32_t kAll = kAnyCompute | (1u << NPU_FLOAT64);  // the scalar core's as well

size_t dtype_size(int32_t dtype);

enum class Engine { compute, dma };  // compute demands the alignment, dma takes any address

// Checks address (device's own memory, range, alignment), rank, dtype, and translates to the backing memory.
// `tensor` NULL is allowed when `optional`, and gives a false View. `what` names the operand in the error text.
npu_status_t resolve(npu_stream_t stream, const npu_tensor_t* tensor, uint32_t dtypes, Engine engine, bool optional,
                     const char* function, const char* what, View* out);

// Records the text for npu_last_error_text() and returns `status`.
npu_status_t fail(npu_status_t status, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Inside a closure only: the stream's next synchronise returns this.
void runtime_failure(npu_status_t status, const char* text);

// The virtual clock's prices, in cycles.
struct Work {
  double flops = 0;   // of the unit that does it
  double bytes = 0;   // moved between memory and the unit
  int32_t dtype = 0;  // selects the unit's rate
  enum Unit { vector, matrix, dma, scalar } unit = vector;
  uint64_t fixed = 0;  // start-up cycles
  double overlap = 0;  // 0: compute and memory add up, 1: the longer hides the shorter
};
uint64_t cycles(npu_stream_t stream, const Work& work);

using CommandFn = void (*)(void* payload);
// Copies `bytes` of closure into the ring (blocks while it is full) and returns. Faults injected for `function` strike
// here.
npu_status_t enqueue(npu_stream_t stream, const char* function, uint64_t cycles, CommandFn run, const void* payload,
                     size_t bytes);

template <class F>
npu_status_t submit(npu_stream_t stream, const char* function, uint64_t cost, const F& closure) {
  static_assert(std::is_trivially_copyable<F>::value, "a command is copied as bytes");
  static_assert(sizeof(F) <= kPayload, "a command must fit the ring's slot");
  return enqueue(stream, function, cost, [](void* p) { (*static_cast<F*>(p))(); }, &closure, sizeof(F));
}

// Runs body(begin, end, thread) over [0, n) in chunks of at least `grain`, on the compute threads including the
// caller. Called from closures only; not nested.
void parallel_chunks(int64_t n, int64_t grain, void (*body)(void* context, int64_t begin, int64_t end, int thread),
                     void* context);
template <class F>
void parallel_for(int64_t n, int64_t grain, const F& f) {
  parallel_chunks(
      n, grain,
      [](void* context, int64_t begin, int64_t end, int thread) {
        (*static_cast<const F*>(context))(begin, end, thread);
      },
      const_cast<F*>(&f));
}
int compute_threads();

// Scratch memory of one compute thread, kept between calls; valid until the next call with the same thread and slot.
void* scratch(int thread, int slot, size_t bytes);

using silicon::bf16_to_float;
using silicon::bf16_to_float1;
using silicon::float_to_bf16;
using silicon::float_to_bf161;
using silicon::float_to_half;
using silicon::float_to_half1;
using silicon::half_to_float;
using silicon::half_to_float1;

}  // namespace npu
