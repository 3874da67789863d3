// dma.cpp: the DMA engine: copies between host and devices, strided copies that convert, fills and ramps.
//
// Contract: any element address; all dtypes. Conversions are C's; floats beyond an integer's range give what the x86
// instruction gives (the smallest 32- or 64-bit integer, cut to size) instead of undefined behaviour.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "device.h"

namespace npu {

namespace {

struct Half {
  uint16_t bits;
};
struct Brain {
  uint16_t bits;
};
struct Bool {
  uint8_t byte;
};

template <class T>
inline T widen(T x) {
  return x;
}
inline float widen(Half h) { return half_to_float1(h.bits); }
inline float widen(Brain b) { return bf16_to_float1(b.bits); }
inline uint8_t widen(Bool b) { return b.byte != 0; }

inline int64_t to_int64(double d) { return d >= -0x1p63 && d < 0x1p63 ? int64_t(d) : INT64_MIN; }
inline int32_t to_int32(double d) { return d > -0x1p31 - 1 && d < 0x1p31 ? int32_t(d) : INT32_MIN; }

// A float32 that the 16-bit types round as they would round `x`. From a double that float32 lacks, it is the neighbour
// whose last bit is odd: never the middle between two shorter numbers, where a second rounding would go astray.
// Integers go by way of float32.
inline float unrounded(double x) {
  float f = float(x);
  uint32_t u;
  std::memcpy(&u, &f, 4);
  if (double(f) == x || u & 1 || x != x) return f;
  u += std::fabs(double(f)) < std::fabs(x) ? 1 : -1;
  std::memcpy(&f, &u, 4);
  return f;
}
template <class T>
inline float unrounded(T x) {
  return float(x);
}

template <class To, class Wide>
inline To narrow(Wide x) {
  if constexpr (std::is_same_v<To, Half>) {
    return {float_to_half1(unrounded(x))};
  } else if constexpr (std::is_same_v<To, Brain>) {
    return {float_to_bf161(unrounded(x))};
  } else if constexpr (std::is_same_v<To, Bool>) {
    return {uint8_t(x != 0)};
  } else if constexpr (std::is_integral_v<To> && std::is_floating_point_v<Wide>) {
    return sizeof(To) == 8 || std::is_unsigned_v<To> ? To(to_int64(x)) : To(to_int32(x));
  } else {
    return To(x);
  }
}

using RowFn = void (*)(char* dst, int64_t dst_stride, const char* src, int64_t src_stride, int64_t n);

template <class To, class From>
void convert_row(char* dst, int64_t dst_stride, const char* src, int64_t src_stride, int64_t n) {
  auto* to = reinterpret_cast<To*>(dst);
  auto* from = reinterpret_cast<const From*>(src);
  bool dense = dst_stride == 1 && src_stride == 1;
  if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Half>) {
    if (dense) return float_to_half(from, &to->bits, n);
  } else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, Brain>) {
    if (dense) return float_to_bf16(from, &to->bits, n);
  } else if constexpr (std::is_same_v<From, Half> && std::is_same_v<To, float>) {
    if (dense) return half_to_float(&from->bits, to, n);
  } else if constexpr (std::is_same_v<From, Brain> && std::is_same_v<To, float>) {
    if (dense) return bf16_to_float(&from->bits, to, n);
  }
  if (dense) {
    for (int64_t i = 0; i < n; i++) to[i] = narrow<To>(widen(from[i]));
  } else {
    for (int64_t i = 0; i < n; i++) to[i * dst_stride] = narrow<To>(widen(from[i * src_stride]));
  }
}

template <class T>
void copy_row(char* dst, int64_t dst_stride, const char* src, int64_t src_stride, int64_t n) {
  auto* to = reinterpret_cast<T*>(dst);
  auto* from = reinterpret_cast<const T*>(src);
  if (dst_stride == 1 && src_stride == 1) {
    std::memmove(to, from, size_t(n) * sizeof(T));
  } else if (dst_stride == 1) {
    for (int64_t i = 0; i < n; i++) to[i] = from[i * src_stride];
  } else {
    for (int64_t i = 0; i < n; i++) to[i * dst_stride] = from[i * src_stride];
  }
}

template <class To>
RowFn row_from(int32_t src) {
  switch (src) {
    case NPU_FLOAT16:
      return convert_row<To, Half>;
    case NPU_BFLOAT16:
      return convert_row<To, Brain>;
    case NPU_FLOAT32:
      return convert_row<To, float>;
    case NPU_INT8:
      return convert_row<To, int8_t>;
    case NPU_INT16:
      return convert_row<To, int16_t>;
    case NPU_INT32:
      return convert_row<To, int32_t>;
    case NPU_INT64:
      return convert_row<To, int64_t>;
    case NPU_BOOL:
      return convert_row<To, Bool>;
    case NPU_FLOAT64:
      return convert_row<To, double>;
    default:
      return convert_row<To, uint8_t>;
  }
}

RowFn row_function(int32_t dst, int32_t src) {
  if (dst == src) {
    switch (dtype_size(dst)) {
      case 1:
        return copy_row<uint8_t>;
      case 2:
        return copy_row<uint16_t>;
      case 4:
        return copy_row<uint32_t>;
      default:
        return copy_row<uint64_t>;
    }
  }
  switch (dst) {
    case NPU_FLOAT16:
      return row_from<Half>(src);
    case NPU_BFLOAT16:
      return row_from<Brain>(src);
    case NPU_FLOAT32:
      return row_from<float>(src);
    case NPU_INT8:
      return row_from<int8_t>(src);
    case NPU_INT16:
      return row_from<int16_t>(src);
    case NPU_INT32:
      return row_from<int32_t>(src);
    case NPU_INT64:
      return row_from<int64_t>(src);
    case NPU_BOOL:
      return row_from<Bool>(src);
    case NPU_FLOAT64:
      return row_from<double>(src);
    default:
      return row_from<uint8_t>(src);
  }
}

// The loop nest of a copy: outermost dimension first, dimensions that lie behind one another merged.
struct Nest {
  int rank = 0;
  int64_t shape[kMaxRank], dst[kMaxRank], src[kMaxRank];  // strides in elements
};

Nest make_nest(const View& dst, const View* src) {
  int order[kMaxRank], n = 0;
  for (int i = 0; i < dst.rank; i++) {
    if (dst.shape[i] != 1) order[n++] = i;
  }
  std::stable_sort(order, order + n, [&](int a, int b) { return dst.stride[a] > dst.stride[b]; });
  Nest nest;
  for (int k = 0; k < n; k++) {
    int i = order[k];
    int64_t size = dst.shape[i], d = dst.stride[i], s = src ? src->stride[i] : d;
    int last = nest.rank - 1;
    if (last >= 0 && nest.dst[last] == d * size && nest.src[last] == s * size) {
      nest.shape[last] *= size;
      nest.dst[last] = d;
      nest.src[last] = s;
    } else {
      nest.shape[nest.rank] = size;
      nest.dst[nest.rank] = d;
      nest.src[nest.rank++] = s;
    }
  }
  if (!nest.rank) {
    nest.shape[0] = nest.dst[0] = nest.src[0] = 1;
    nest.rank = 1;
  }
  return nest;
}

// Calls f(dst offset, src offset), in elements, for the positions [begin, end) of the nest's first `rank` dimensions.
template <class F>
void walk(const Nest& nest, int rank, int64_t begin, int64_t end, const F& f) {
  int64_t at[kMaxRank] = {}, d = 0, s = 0, rest = begin;
  for (int i = rank - 1; i >= 0; i--) {
    at[i] = rest % nest.shape[i];
    rest /= nest.shape[i];
    d += at[i] * nest.dst[i];
    s += at[i] * nest.src[i];
  }
  for (int64_t k = begin; k < end; k++) {
    f(d, s);
    for (int i = rank - 1; i >= 0; i--) {
      d += nest.dst[i];
      s += nest.src[i];
      if (++at[i] < nest.shape[i]) break;
      d -= nest.dst[i] * nest.shape[i];
      s -= nest.src[i] * nest.shape[i];
      at[i] = 0;
    }
  }
}

constexpr int64_t kParallel = 1 << 15;  // elements that are worth a second thread
constexpr int64_t kTile = 64;

struct CopyCommand {
  Nest nest;
  char* dst;
  const char* src;
  int32_t dst_size, src_size;
  RowFn row;

  void operator()() {
    int inner = nest.rank - 1;
    // A transposition: some other dimension is the source's innermost. Go tile by tile, to use each line fetched.
    int fast = inner;
    for (int i = 0; i < inner; i++) {
      if (nest.src[i] && std::abs(nest.src[i]) < std::abs(nest.src[fast])) fast = i;
    }
    if (fast != inner && nest.shape[inner] >= 8 && nest.shape[fast] >= 8) return transpose(fast);
    int64_t rows = 1, n = nest.shape[inner];
    for (int i = 0; i < inner; i++) rows *= nest.shape[i];
    if (rows == 1) {
      return parallel_for(n, kParallel, [&](int64_t begin, int64_t end, int) {
        row(dst + begin * nest.dst[0] * dst_size, nest.dst[0], src + begin * nest.src[0] * src_size, nest.src[0],
            end - begin);
      });
    }
    parallel_for(rows, kParallel / n + 1, [&](int64_t begin, int64_t end, int) {
      walk(nest, inner, begin, end, [&](int64_t d, int64_t s) {
        row(dst + d * dst_size, nest.dst[inner], src + s * src_size, nest.src[inner], n);
      });
    });
  }

  void transpose(int fast) {
    Nest outer = nest;
    int inner = nest.rank - 1;
    int64_t columns = nest.shape[inner], lines = nest.shape[fast], strips = (lines + kTile - 1) / kTile, count = strips;
    outer.shape[fast] = strips;
    outer.dst[fast] *= kTile;
    outer.src[fast] *= kTile;
    for (int i = 0; i < inner; i++) count *= i == fast ? 1 : nest.shape[i];
    // `fast` is put last, so that a position tells its strip by its remainder.
    std::swap(outer.shape[fast], outer.shape[inner - 1]);
    std::swap(outer.dst[fast], outer.dst[inner - 1]);
    std::swap(outer.src[fast], outer.src[inner - 1]);
    parallel_for(count, kParallel / (columns * kTile) + 1, [&](int64_t begin, int64_t end, int) {
      int64_t position = begin;
      walk(outer, inner, begin, end, [&](int64_t d, int64_t s) {
        int64_t first = position++ % strips * kTile, height = std::min(kTile, lines - first);
        for (int64_t c = 0; c < columns; c += kTile) {
          int64_t width = std::min(kTile, columns - c);
          for (int64_t l = 0; l < height; l++) {
            row(dst + (d + l * nest.dst[fast] + c * nest.dst[inner]) * dst_size, nest.dst[inner],
                src + (s + l * nest.src[fast] + c * nest.src[inner]) * src_size, nest.src[inner], width);
          }
        }
      });
    });
  }
};

// Memory is moved in bursts of 64 bytes: runs shorter than that cost more than their bytes, up to eight times.
double burst_bytes(double elements, double size, int64_t run) {
  return elements * size * std::clamp(64.0 / (double(run) * size), 1.0, 8.0);
}

struct FillCommand {
  Nest nest;
  char* dst;
  int32_t size;
  uint64_t pattern;

  template <class T>
  void rows() {
    int inner = nest.rank - 1;
    int64_t count = 1, n = nest.shape[inner], stride = nest.dst[inner];
    for (int i = 0; i < inner; i++) count *= nest.shape[i];
    auto value = T(pattern);
    auto* to = reinterpret_cast<T*>(dst);
    auto row = [&](T* p, int64_t length) {
      if (stride == 1) {
        std::fill_n(p, length, value);
      } else {
        for (int64_t i = 0; i < length; i++) p[i * stride] = value;
      }
    };
    if (count == 1) {
      parallel_for(n, 2 * kParallel, [&](int64_t begin, int64_t end, int) { row(to + begin * stride, end - begin); });
    } else {
      parallel_for(count, 2 * kParallel / n + 1, [&](int64_t begin, int64_t end, int) {
        walk(nest, inner, begin, end, [&](int64_t d, int64_t) { row(to + d, n); });
      });
    }
  }

  void operator()() {
    switch (size) {
      case 1:
        return rows<uint8_t>();
      case 2:
        return rows<uint16_t>();
      case 4:
        return rows<uint32_t>();
      default:
        return rows<uint64_t>();
    }
  }
};

uint64_t scalar_pattern(npu_scalar_t value, int32_t dtype) {
  uint64_t pattern = 0;
  const void* from = value.is_integer ? static_cast<const void*>(&value.i) : &value.d;
  row_function(dtype, value.is_integer ? NPU_INT64 : NPU_FLOAT64)(reinterpret_cast<char*>(&pattern), 1,
                                                                  static_cast<const char*>(from), 1, 1);
  return pattern;
}

struct IotaCommand {
  View dst;
  npu_scalar_t start, step;

  template <class To>
  void fill() {
    auto* to = reinterpret_cast<To*>(dst.data);
    int64_t stride = dst.stride[0];
    bool whole = start.is_integer && step.is_integer;
    double start_d = start.is_integer ? double(start.i) : start.d, step_d = step.is_integer ? double(step.i) : step.d;
    parallel_for(dst.shape[0], kParallel, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; i++) {
        if (whole) {  // wraps around, as integers do
          to[i * stride] = narrow<To>(int64_t(uint64_t(start.i) + uint64_t(step.i) * uint64_t(i)));
        } else {
          to[i * stride] = narrow<To>(start_d + step_d * double(i));
        }
      }
    });
  }

  void operator()() {
    switch (dst.dtype) {
      case NPU_FLOAT16:
        return fill<Half>();
      case NPU_BFLOAT16:
        return fill<Brain>();
      case NPU_FLOAT32:
        return fill<float>();
      case NPU_INT8:
        return fill<int8_t>();
      case NPU_INT16:
        return fill<int16_t>();
      case NPU_INT32:
        return fill<int32_t>();
      case NPU_INT64:
        return fill<int64_t>();
      case NPU_FLOAT64:
        return fill<double>();
      default:
        return fill<uint8_t>();
    }
  }
};

// A copy that reads `src` backwards along the dimensions of the mask `flipped`.
npu_status_t copy(npu_stream_t stream, const char* function, const npu_tensor_t* dst, const npu_tensor_t* src,
                  uint32_t flipped) {
  View d, s;
  npu_status_t status = resolve(stream, dst, kAll, Engine::dma, false, function, "dst", &d);
  if (!status) status = resolve(stream, src, kAll, Engine::dma, false, function, "src", &s);
  if (status) return status;
  if (d.rank != s.rank || !std::equal(d.shape, d.shape + d.rank, s.shape)) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: dst and src differ in shape: expected the same rank and sizes",
                function);
  }
  if (flipped >> s.rank) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: dims: 0x%x names dimensions that src, of rank %d, does not have",
                function, flipped, s.rank);
  }
  int64_t n = d.numel();
  if (!n) return check_stream(stream, function);
  size_t item = dtype_size(s.dtype);
  for (int i = 0; i < s.rank; i++) {
    if (!(flipped >> i & 1)) continue;
    s.data += (s.shape[i] - 1) * s.stride[i] * int64_t(item);
    s.stride[i] = -s.stride[i];
  }
  CopyCommand command;
  command.nest = make_nest(d, &s);
  command.dst = d.data;
  command.src = s.data;
  command.dst_size = int32_t(dtype_size(d.dtype));
  command.src_size = int32_t(item);
  command.row = row_function(d.dtype, s.dtype);
  Work work;
  work.unit = Work::dma;
  int inner = command.nest.rank - 1;
  int64_t run = command.nest.shape[inner];
  work.bytes = burst_bytes(double(n), command.dst_size, command.nest.dst[inner] == 1 ? run : 1) +
               burst_bytes(double(n), command.src_size, std::abs(command.nest.src[inner]) <= 1 ? run : 1);
  return submit(stream, function, cycles(stream, work), command);
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" {

NPU_API npu_status_t npu_v3_copy_nd(npu_stream_t stream, const npu_tensor_t* dst, const npu_tensor_t* src) {
  return copy(stream, "npu_v3_copy_nd", dst, src, 0);
}

NPU_API npu_status_t npu_v3_flip(npu_stream_t stream, const npu_tensor_t* dst, const npu_tensor_t* src, uint32_t dims) {
  return copy(stream, "npu_v3_flip", dst, src, dims);
}

NPU_API npu_status_t npu_v3_fill_nd(npu_stream_t stream, const npu_tensor_t* dst, npu_scalar_t value) {
  View d;
  npu_status_t status = resolve(stream, dst, kAll, Engine::dma, false, "npu_v3_fill_nd", "dst", &d);
  if (status) return status;
  int64_t n = d.numel();
  if (!n) return check_stream(stream, "npu_v3_fill_nd");
  FillCommand command{make_nest(d, nullptr), d.data, int32_t(dtype_size(d.dtype)), scalar_pattern(value, d.dtype)};
  Work work;
  work.unit = Work::dma;
  int inner = command.nest.rank - 1;
  work.bytes = burst_bytes(double(n), command.size, command.nest.dst[inner] == 1 ? command.nest.shape[inner] : 1);
  return submit(stream, "npu_v3_fill_nd", cycles(stream, work), command);
}

NPU_API npu_status_t npu_v3_iota(npu_stream_t stream, const npu_tensor_t* dst, npu_scalar_t start, npu_scalar_t step) {
  IotaCommand command{};
  npu_status_t status =
      resolve(stream, dst, kAll & ~mask(NPU_BOOL), Engine::dma, false, "npu_v3_iota", "dst", &command.dst);
  if (status) return status;
  if (command.dst.rank != 1) {
    return fail(NPU_STATUS_INVALID_VALUE, "npu_v3_iota: dst: rank %d: expected 1 dimension", command.dst.rank);
  }
  if (!command.dst.shape[0]) return check_stream(stream, "npu_v3_iota");
  command.start = start;
  command.step = step;
  Work work;
  work.unit = Work::dma;
  work.bytes = burst_bytes(double(command.dst.shape[0]), double(dtype_size(command.dst.dtype)),
                           command.dst.stride[0] == 1 ? command.dst.shape[0] : 1);
  return submit(stream, "npu_v3_iota", cycles(stream, work), command);
}

}  // extern "C"
