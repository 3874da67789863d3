// scan.cpp: npu_v3_scan: running sums, products, maxima and minima along one dimension.
//
// Contract: the header's. A line is read and written in blocks, in order; lines go to threads. Floats accumulate in
// double and are rounded to their dtype at each element; integers wrap around.
#include <cmath>

#include "lines.h"

namespace npu {
namespace {

struct Scan {
  int32_t opcode;
  bool indexed;
  Lines<3> lines;  // x, out, index
};

// The state of one line. T is the type that values are computed in: float, double or int64_t.
template <int kOp, class T>
struct Running {
  static constexpr bool kFloat = std::is_floating_point<T>::value;
  using A = typename std::conditional<kFloat, double, uint64_t>::type;
  A total = kOp == NPU_SCAN_PROD ? 1 : 0;

  T next(T x) {
    if constexpr (kOp == NPU_SCAN_SUM) total += static_cast<A>(x);
    if constexpr (kOp == NPU_SCAN_PROD) total *= static_cast<A>(x);
    return static_cast<T>(total);
  }
};
// log(e^a + e^b) = max + log1p(e^(min - max)); infinities of one sign stay, NaN wins.
template <class T>
struct Running<NPU_SCAN_LOG_SUM_EXP, T> {
  double total = -__builtin_inf();

  T next(T x_) {
    const double x = static_cast<double>(x_);
    const double low = total < x || total != total ? total : x, high = total < x || total != total ? x : total;
    if (x != x || total != total)
      total = total + x;
    else if (low != high || std::fabs(high) < __builtin_inf())
      total = high + std::log1p(std::exp(low - high));
    return static_cast<T>(total);
  }
};
template <int kOp, class T>
struct Extreme {
  T best = 0;
  int64_t place = -1;

  T next(T x, int64_t i) {
    const bool better = kOp == NPU_SCAN_MAX ? x >= best : x <= best;
    if (place < 0 || x != x || (best == best && better)) best = x, place = i;
    return best;
  }
};

template <int kOp, class T>
void scan(const Scan& s) {
  constexpr bool kExtreme = kOp == NPU_SCAN_MAX || kOp == NPU_SCAN_MIN;
  constexpr Compute compute = std::is_same<T, float>::value    ? Compute::f32
                              : std::is_same<T, double>::value ? Compute::f64
                                                               : Compute::i64;
  const Loop loop = s.lines.loop(0);
  parallel_for(s.lines.outer.n, kGrain / loop.n + 1, [&](int64_t begin, int64_t end, int) {
    Block raw, in, out, indices;
    T* result = reinterpret_cast<T*>(out.bytes);
    int64_t* place = reinterpret_cast<int64_t*>(indices.bytes);
    for (int64_t k = begin; k < end; k++) {
      typename std::conditional<kExtreme, Extreme<kOp, T>, Running<kOp, T>>::type state;
      const Operand from = s.lines.line(0, k), to = s.lines.line(1, k), index = s.lines.line(2, k);
      for (int64_t at = 0; at < loop.n; at += kBlock) {
        const int64_t n = loop.n - at < kBlock ? loop.n - at : kBlock;
        const T* x = static_cast<const T*>(fetch(loop, from, at, n, compute, &raw, &in));
        for (int64_t i = 0; i < n; i++) {
          if constexpr (kExtreme) {
            result[i] = state.next(x[i], at + i);
            place[i] = state.place;
          } else {
            result[i] = state.next(x[i]);
          }
        }
        store(loop, to, at, n, compute, result, &raw);
        if (kExtreme) store(loop, index, at, n, Compute::i64, place, &raw);
      }
    }
  });
}

template <int kOp>
void scan_op(const Scan& s) {
  switch (compute_of(s.lines.first[0].dtype)) {
    case Compute::f32:
      return scan<kOp, float>(s);
    case Compute::f64:
      return scan<kOp, double>(s);
    default:
      if constexpr (kOp != NPU_SCAN_LOG_SUM_EXP) scan<kOp, int64_t>(s);
  }
}

void run(const Scan& s) {
  switch (s.opcode) {
    case NPU_SCAN_SUM:
      return scan_op<NPU_SCAN_SUM>(s);
    case NPU_SCAN_PROD:
      return scan_op<NPU_SCAN_PROD>(s);
    case NPU_SCAN_LOG_SUM_EXP:
      return scan_op<NPU_SCAN_LOG_SUM_EXP>(s);
    case NPU_SCAN_MAX:
      return scan_op<NPU_SCAN_MAX>(s);
    default:
      return scan_op<NPU_SCAN_MIN>(s);
  }
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_scan(npu_stream_t stream, int32_t opcode, const npu_tensor_t* x, int32_t dim,
                                    const npu_tensor_t* out, const npu_tensor_t* index) {
  static const char fn[] = "npu_v3_scan";
  if (opcode < NPU_SCAN_SUM || opcode > NPU_SCAN_MIN)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: opcode %d is unknown, expected %d to %d", fn, opcode, NPU_SCAN_SUM,
                NPU_SCAN_MIN);
  const bool indexed = opcode >= NPU_SCAN_MAX;
  const uint32_t numbers = kAll & ~mask(NPU_BOOL);
  const uint32_t dtypes = opcode == NPU_SCAN_LOG_SUM_EXP ? numbers & ~kInts : numbers;
  View vx, vo, vi;
  NPU_TRY(resolve(stream, x, dtypes, Engine::compute, false, fn, "x", &vx));
  NPU_TRY(resolve(stream, out, dtypes, Engine::compute, false, fn, "out", &vo));
  NPU_TRY(check_dim(fn, dim, vx));
  NPU_TRY(same_dtype(fn, "out", vo, vx.dtype));
  NPU_TRY(same_shape(fn, "out", vo, vx));
  NPU_TRY(writable(fn, "out", vo));
  if (indexed) {
    NPU_TRY(resolve(stream, index, mask(NPU_INT64), Engine::compute, false, fn, "index", &vi));
    NPU_TRY(same_shape(fn, "index", vi, vx));
    NPU_TRY(writable(fn, "index", vi));
  } else if (index) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: index: only the running maximum and minimum have one, expected NULL",
                fn);
  }
  const double n = static_cast<double>(vx.numel());
  if (n == 0) return NPU_STATUS_SUCCESS;
  const Scan command{opcode, indexed, make_lines({&vx, &vo, indexed ? &vi : &vo}, dim)};
  const double flops = opcode == NPU_SCAN_LOG_SUM_EXP ? 20 : 2;
  const Work work = vx.dtype == NPU_FLOAT64
                        ? Work{n, 0, vx.dtype, Work::scalar}
                        : Work{n * flops, view_bytes(vx) + view_bytes(vo) + view_bytes(vi), vx.dtype};
  return submit(stream, fn, cycles(stream, work), [command] { run(command); });
}
