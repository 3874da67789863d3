// vector.h: the vector unit's loops: what every elementwise and reducing function of the simulator is built from.
//
// Contract. A `Loop` is an iteration space with its dimensions merged as far as the operands allow; an `Operand` is
// one tensor in it. Work is done in blocks of at most kBlock elements in linear order of the loop: `fetch` gives a
// block of an operand as float32 or int64 (in place when the memory already is that, else gathered and converted into
// the caller's buffer) and `store` puts a block back. So an opcode needs one kernel on float and one on int64, and no
// kernel knows strides or storage types. float64 is only ever fetched as itself, for the scalar core. Nothing here
// allocates; all of it may run on any compute thread.
//
// `simd<Body>(args...)` runs Body::run compiled for the widest vectors this CPU has. Body::run and all it calls must
// be NPU_INLINE. The flags -O3 -fno-math-errno -fno-trapping-math let gcc vectorise all of it; without them it is
// only slower.
#pragma once
#include "sim.h"

namespace npu {

#define NPU_INLINE __attribute__((always_inline)) inline
// Within one iteration a kernel loads before it stores, so an output that is one of the inputs is no obstacle.
#define NPU_IVDEP _Pragma("GCC ivdep")
#define NPU_TRY(expression)                                  \
  do {                                                       \
    const npu_status_t try_status = (expression);            \
    if (try_status != NPU_STATUS_SUCCESS) return try_status; \
  } while (0)

// ---- compilation for several instruction sets
extern const int simd_level;  // 0 portable, 1 AVX2 with FMA, 2 AVX-512
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define NPU_SIMD_X86 1
template <class Body, class... A>
__attribute__((target("arch=x86-64-v4,prefer-vector-width=512"))) void simd_v4(A... a) {
  Body::run(a...);
}
template <class Body, class... A>
__attribute__((target("arch=x86-64-v3"))) void simd_v3(A... a) {
  Body::run(a...);
}
#endif
template <class Body, class... A>
void simd_v1(A... a) {
  Body::run(a...);
}
template <class Body, class... A>
NPU_INLINE auto simd_pick() -> void (*)(A...) {
#ifdef NPU_SIMD_X86
  if (simd_level == 2) return &simd_v4<Body, A...>;
  if (simd_level == 1) return &simd_v3<Body, A...>;
#endif
  return &simd_v1<Body, A...>;
}
template <class Body, class... A>
NPU_INLINE void simd(A... a) {
  simd_pick<Body, A...>()(a...);
}

// ---- loops and operands
constexpr int64_t kBlock = 512;
constexpr int64_t kGrain = 16384;  // elements worth handing to another thread

enum class Compute : int32_t { f32, i64, f64, raw };
inline Compute compute_of(int32_t dtype) {
  if (dtype == NPU_FLOAT64) return Compute::f64;
  return (mask(dtype) & kFloats) ? Compute::f32 : Compute::i64;
}

struct Loop {
  int64_t n = 1;
  int32_t rank = 0;
  int64_t shape[kMaxRank];  // the first `rank` are set
};

struct Place {
  char* data = nullptr;
  int32_t dtype = 0;   // 0: a scalar, which the caller has put into the buffer
  int16_t size = 0;    // bytes of an element
  bool dense = false;  // linear order of the loop is memory order
};
struct Operand : Place {
  int64_t stride[kMaxRank];  // the first `rank` of the loop are set
};

// Bytes of one block's buffer: int64 elements.
struct alignas(64) Block {
  char bytes[kBlock * 8];
};

// Merges the dimensions of `count` views of one shape. `order`: sort dimensions by the strides of views[0] (largest
// outermost), so that it is walked in memory order; otherwise the logical order stays. `dims` selects dimensions.
void collapse(const View* const* views, int count, bool order, uint32_t dims, Loop* loop, Operand* operands);

// An element range [begin, begin + n), n <= kBlock, of the operand as `compute` type; `raw` and `buffer` are used as
// needed, and the result is valid until they are.
const void* fetch(const Loop& loop, const Operand& operand, int64_t begin, int64_t n, Compute compute, Block* raw,
                  Block* buffer);
inline const float* fetch_float(const Loop& loop, const Operand& operand, int64_t begin, int64_t n, Block* raw,
                                Block* buffer) {
  return static_cast<const float*>(fetch(loop, operand, begin, n, Compute::f32, raw, buffer));
}
// Where a kernel may write its block before `store`: the operand's own memory, if it is dense and of the type.
void* store_target(const Operand& operand, int64_t begin, Compute compute, Block* buffer);
void store(const Loop& loop, const Operand& operand, int64_t begin, int64_t n, Compute compute, const void* values,
           Block* raw);

// Dense conversions between a storage type and a compute type.
void to_float(int32_t dtype, const void* in, float* out, int64_t n);
void from_float(int32_t dtype, const float* in, void* out, int64_t n);
void to_int(int32_t dtype, const void* in, int64_t* out, int64_t n);
void from_int(int32_t dtype, const int64_t* in, void* out, int64_t n);
// n elements from `in`, `stride` elements apart, as float32; any n. In place (no copy) for dense float32.
const float* load_floats(int32_t dtype, const char* in, int64_t stride, int64_t n, float* buffer);
void store_floats(int32_t dtype, const float* in, char* out, int64_t stride, int64_t n);
float load_float1(int32_t dtype, const void* in);
void store_float1(int32_t dtype, float value, void* out);

// ---- elementwise programs
struct Params {
  float f0 = 0, f1 = 0;
  int64_t i0 = 0, i1 = 0;
  const float* device = nullptr;  // a number read when the command runs
  int32_t* flag = nullptr;        // set by a kernel that met a fault (or a non-finite number); shared by threads
};
using Kernel = void (*)(const void* a, const void* b, const void* c, void* out, int64_t n, const Params* params);
template <class Body>
NPU_INLINE Kernel kernel() {
  return simd_pick<Body, const void*, const void*, const void*, void*, int64_t, const Params*>();
}

struct ProgramHead {
  Kernel run = nullptr;
  Params params;
  int32_t inputs = 0;
  Compute in = Compute::f32;   // of all inputs
  Compute out = Compute::f32;  // raw: the kernel writes elements of out's own type
  double scalar_f = 0;         // the scalar operands' value
  int64_t scalar_i = 0;
};
struct Program : ProgramHead {
  Loop loop;
  Operand operand[4];  // out, a, b, c
};
// Runs over the whole loop, on several threads when it is long. Returns the flag the kernels set.
int32_t run_program(const Program& program);

// The scalar core's kernels on float64 by opcode, in scalar_core.cpp; NULL for what it lacks. The alpha of ADD and SUB
// is in params.i0, by its bits.
Kernel scalar_unary(int32_t opcode);
Kernel scalar_binary(int32_t opcode);

// A program whose operands are all dense needs no shape and no strides. Commands of small tensors spend their time on
// moving the closure from core to core, so the common case carries only this.
struct DenseProgram {
  ProgramHead head;
  int64_t n;
  Place place[4];
  int32_t run() const {
    Program p;
    static_cast<ProgramHead&>(p) = head;
    p.loop.n = n;
    for (int k = 0; k < 4; k++) static_cast<Place&>(p.operand[k]) = place[k];
    return run_program(p);
  }
};
// Submits the program; `after(flag)` follows it on the worker.
template <class After>
npu_status_t submit_program(npu_stream_t stream, const char* function, uint64_t cost, const Program& p, After after) {
  bool dense = true;
  for (int k = 0; k <= p.inputs; k++) dense = dense && (p.operand[k].dense || p.operand[k].dtype == 0);
  if (!dense) return submit(stream, function, cost, [p, after] { after(run_program(p)); });
  struct Command {
    DenseProgram program;
    After after;
    void operator()() const { after(program.run()); }
  } command{{p, p.loop.n, {p.operand[0], p.operand[1], p.operand[2], p.operand[3]}}, after};
  return submit(stream, function, cost, command);
}

// ---- argument checks
// A view that resolve() will fill: zeroing it first is a third of what a call costs.
struct Unset {
  union {
    View view;
  };
  Unset() {}
};
npu_status_t same_shape(const char* function, const char* what, const View& view, const View& out);
npu_status_t same_dtype(const char* function, const char* what, const View& view, int32_t dtype);
// An output must not have an element twice (stride 0).
npu_status_t writable(const char* function, const char* what, const View& view);
npu_status_t expect_shape(const char* function, const char* what, const View& view, int rank, const int64_t* shape);
const char* dtype_text(int32_t dtype);
inline double scalar_double(npu_scalar_t s) { return s.is_integer ? static_cast<double>(s.i) : s.d; }
int64_t scalar_int(npu_scalar_t s);  // saturating; NaN is 0
// The bytes of `s` as an element of `dtype`, in the low end of the result (little-endian, as all chips are).
int64_t element_bits(npu_scalar_t s, int32_t dtype);
// `s` as a tensor of `dtype` would hold it.
npu_scalar_t converted(npu_scalar_t s, int32_t dtype);
inline double view_bytes(const View& v) { return v ? static_cast<double>(v.numel()) * dtype_size(v.dtype) : 0; }
inline int64_t offset_of(const Loop& loop, const Operand& operand, int64_t index) {
  int64_t offset = 0;
  for (int d = loop.rank - 1; d >= 0; d--) {
    offset += index % loop.shape[d] * operand.stride[d];
    index /= loop.shape[d];
  }
  return offset;
}

// ---- small vectors, for loops whose order of additions gcc may not change by itself
template <class T>
struct Lanes {
  typedef T v8 __attribute__((vector_size(8 * sizeof(T)), aligned(sizeof(T)), may_alias));
};

}  // namespace npu
