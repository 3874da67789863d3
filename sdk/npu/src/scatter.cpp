// scatter.cpp: npu_v3_scatter: elements put or combined where an index says, in one dimension.
//
// Contract: the header's. Elements that share all other coordinates form a line, and only they can meet: lines go to
// threads, and within one the order is that of src. float16 and bfloat16 are combined in float32, and rounded once.
// Indices are checked first: one that is out of range means that nothing is written.
#include "lines.h"

namespace npu {
namespace {

constexpr int kLineSlot = 0;  // of scratch()

template <int kOp, class T>
NPU_INLINE T combined(T a, T b) {
  if constexpr (kOp == NPU_SCATTER_REPLACE) {
    return b;
  } else if constexpr (kOp == NPU_SCATTER_MAX) {
    return (b > a) | (b != b) ? b : a;
  } else if constexpr (kOp == NPU_SCATTER_MIN) {
    return (b < a) | (b != b) ? b : a;
  } else if constexpr (std::is_floating_point<T>::value) {
    return kOp == NPU_SCATTER_ADD ? a + b : a * b;
  } else {
    const uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    return static_cast<T>(kOp == NPU_SCATTER_ADD ? x + y : x * y);
  }
}

struct Scatter {
  int32_t opcode;
  bool scalar;
  int64_t bits;  // of the scalar, as an element
  View dst, index, src;
  int32_t dim;
};

// src_at(k) is element k of the line's source.
template <int kOp, class T, class Source>
NPU_INLINE void scatter_line(T* dst, int64_t dst_step, const View& index, int64_t at, int64_t index_step, int64_t n,
                             const Source& src_at) {
  for (int64_t k = 0; k < n; k++) {
    T& to = dst[read_index(index, at + k * index_step) * dst_step];
    to = combined<kOp, T>(to, src_at(k));
  }
}

// kWide: T is float, which stands for a line of 16-bit elements.
template <int kOp, class T, bool kWide>
void scatter(const Scatter& s) {
  // Of dst only the part that has the index's sizes has lines that are written.
  View dst = s.dst;
  for (int d = 0; d < dst.rank; d++)
    if (d != s.dim) dst.shape[d] = s.index.shape[d];
  const View& src = s.scalar ? s.index : s.src;
  const Lines<3> lines = make_lines({&dst, &s.index, &src}, s.dim);
  const int64_t n = lines.length[1], length = lines.length[0], step = lines.step[0];
  parallel_for(lines.outer.n, kGrain / (n + (kWide ? length : 0)) + 1, [&](int64_t begin, int64_t end, int thread) {
    float* wide = nullptr;
    if (kWide) wide = static_cast<float*>(scratch(thread, kLineSlot, static_cast<size_t>(length) * sizeof(float)));
    for (int64_t k = begin; k < end; k++) {
      const Operand to = lines.line(0, k), from = lines.line(2, k);
      const int64_t at = offset_of(lines.outer, lines.first[1], k), from_step = lines.step[2];
      if constexpr (kWide) {
        load_floats(to.dtype, to.data, step, length, wide);
        const float number = load_float1(to.dtype, &s.bits);
        scatter_line<kOp>(wide, 1, s.index, at, lines.step[1], n, [&](int64_t i) {
          return s.scalar ? number : load_float1(to.dtype, from.data + i * from_step * 2);
        });
        store_floats(to.dtype, wide, to.data, step, length);
      } else {
        T number;
        std::memcpy(&number, &s.bits, sizeof(T));
        const T* source = reinterpret_cast<const T*>(from.data);
        scatter_line<kOp>(reinterpret_cast<T*>(to.data), step, s.index, at, lines.step[1], n,
                          [&](int64_t i) { return s.scalar ? number : source[i * from_step]; });
      }
    }
  });
}

template <int kOp>
void scatter_op(const Scatter& s) {
  if (kOp == NPU_SCATTER_REPLACE) {  // elements are moved as they are
    switch (dtype_size(s.dst.dtype)) {
      case 1:
        return scatter<NPU_SCATTER_REPLACE, uint8_t, false>(s);
      case 2:
        return scatter<NPU_SCATTER_REPLACE, uint16_t, false>(s);
      case 4:
        return scatter<NPU_SCATTER_REPLACE, uint32_t, false>(s);
      default:
        return scatter<NPU_SCATTER_REPLACE, uint64_t, false>(s);
    }
  }
  switch (s.dst.dtype) {
    case NPU_FLOAT32:
      return scatter<kOp, float, false>(s);
    case NPU_FLOAT64:
      return scatter<kOp, double, false>(s);
    case NPU_INT8:
      return scatter<kOp, int8_t, false>(s);
    case NPU_UINT8:
      return scatter<kOp, uint8_t, false>(s);
    case NPU_INT16:
      return scatter<kOp, int16_t, false>(s);
    case NPU_INT32:
      return scatter<kOp, int32_t, false>(s);
    case NPU_INT64:
      return scatter<kOp, int64_t, false>(s);
    default:
      return scatter<kOp, float, true>(s);
  }
}

void run(const Scatter& s) {
  switch (s.opcode) {
    case NPU_SCATTER_REPLACE:
      return scatter_op<NPU_SCATTER_REPLACE>(s);
    case NPU_SCATTER_ADD:
      return scatter_op<NPU_SCATTER_ADD>(s);
    case NPU_SCATTER_MUL:
      return scatter_op<NPU_SCATTER_MUL>(s);
    case NPU_SCATTER_MAX:
      return scatter_op<NPU_SCATTER_MAX>(s);
    default:
      return scatter_op<NPU_SCATTER_MIN>(s);
  }
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_scatter(npu_stream_t stream, int32_t opcode, const npu_tensor_t* dst, int32_t dim,
                                       const npu_tensor_t* index, const npu_tensor_t* src, npu_scalar_t s) {
  static const char fn[] = "npu_v3_scatter";
  if (opcode < NPU_SCATTER_REPLACE || opcode > NPU_SCATTER_MIN)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: opcode %d is unknown, expected %d to %d", fn, opcode,
                NPU_SCATTER_REPLACE, NPU_SCATTER_MIN);
  const uint32_t dtypes = opcode == NPU_SCATTER_REPLACE ? kAll : kAll & ~mask(NPU_BOOL);
  Scatter command{};
  View &vd = command.dst, &vi = command.index, &vs = command.src;
  NPU_TRY(resolve(stream, dst, dtypes, Engine::dma, false, fn, "dst", &vd));
  NPU_TRY(resolve(stream, index, kIndexTypes, Engine::dma, false, fn, "index", &vi));
  NPU_TRY(resolve(stream, src, dtypes, Engine::dma, true, fn, "src", &vs));
  NPU_TRY(check_dim(fn, dim, vd));
  NPU_TRY(fits_but_dim(fn, "index", vi, "dst", vd, dim));
  if (vs) {
    NPU_TRY(same_dtype(fn, "src", vs, vd.dtype));
    NPU_TRY(same_shape(fn, "src", vs, vi));
  }
  NPU_TRY(writable(fn, "dst", vd));
  const double n = static_cast<double>(vi.numel());
  if (n == 0) return NPU_STATUS_SUCCESS;
  command.opcode = opcode;
  command.scalar = !vs;
  command.bits = vs ? 0 : element_bits(s, vd.dtype);
  command.dim = dim;
  Work work{n, view_bytes(vi) + view_bytes(vs) + 2 * n * static_cast<double>(dtype_size(vd.dtype)), vd.dtype};
  if (opcode == NPU_SCATTER_REPLACE)
    work.unit = Work::dma;
  else if (vd.dtype == NPU_FLOAT64)
    work = Work{n, 0, vd.dtype, Work::scalar};
  return submit(stream, fn, cycles(stream, work), [command] {
    if (in_range(fn, command.index, command.dst.shape[command.dim])) run(command);
  });
}
