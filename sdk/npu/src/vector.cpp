// vector.cpp: the machinery of vector.h: merging dimensions, gathering, converting and scattering blocks, the driver
// of elementwise programs, and the argument checks the vector functions share.
#include "vector.h"

#include <cmath>

namespace npu {

#ifdef NPU_SIMD_X86
static int detect_simd() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return 2;
  return __builtin_cpu_supports("x86-64-v3") ? 1 : 0;
}
const int simd_level = detect_simd();
#else
const int simd_level = 0;
#endif

void collapse(const View* const* views, int count, bool order, uint32_t dims, Loop* loop, Operand* operands) {
  int perm[kMaxRank];
  int rank = 0;
  const View& lead = *views[0];
  loop->n = 1;
  for (int d = 0; d < lead.rank; d++) {
    if (!(dims >> d & 1)) continue;
    loop->n *= lead.shape[d];
    if (lead.shape[d] == 1) continue;
    int at = rank++;
    if (order)
      for (; at > 0 && lead.stride[perm[at - 1]] < lead.stride[d]; at--) perm[at] = perm[at - 1];
    perm[at] = d;
  }
  // From the inside out: dimension `d` joins the group's outermost one if every operand steps over it evenly.
  int groups = 0;
  int outermost[kMaxRank];
  int64_t size[kMaxRank], extent[kMaxRank];
  int innermost[kMaxRank];
  for (int i = rank - 1; i >= 0; i--) {
    const int d = perm[i];
    bool joined = groups > 0;
    for (int k = 0; joined && k < count; k++)
      joined = views[k]->stride[d] == views[k]->stride[outermost[groups - 1]] * extent[groups - 1];
    if (!joined) {
      innermost[groups] = d;
      size[groups++] = 1;
    }
    outermost[groups - 1] = d;
    extent[groups - 1] = lead.shape[d];
    size[groups - 1] *= lead.shape[d];
  }
  loop->rank = groups;
  for (int g = 0; g < groups; g++) loop->shape[groups - 1 - g] = size[g];
  for (int k = 0; k < count; k++) {
    Operand& o = operands[k];
    o.data = views[k]->data;
    o.dtype = views[k]->dtype;
    o.size = static_cast<int16_t>(dtype_size(o.dtype));
    bool dense = true;
    int64_t expected = 1;
    for (int g = 0; g < groups; g++) {
      const int64_t stride = views[k]->stride[innermost[g]];
      o.stride[groups - 1 - g] = stride;
      dense = dense && stride == expected;
      expected *= size[g];
    }
    o.dense = dense;
  }
}

// Moves a block between its places in a strided operand and a dense buffer.
template <class T, bool kGather>
static void move_block(const Loop& loop, const Operand& operand, int64_t begin, int64_t n, T* buffer) {
  const int last = loop.rank - 1;
  T* place = reinterpret_cast<T*>(operand.data);
  int64_t index[kMaxRank];
  for (int d = last; d > 0; d--) {
    index[d] = begin % loop.shape[d];
    begin /= loop.shape[d];
    place += index[d] * operand.stride[d];
  }
  index[0] = begin;
  place += begin * operand.stride[0];
  const int64_t step = operand.stride[last];
  for (;;) {
    const int64_t left = loop.shape[last] - index[last];
    const int64_t run = left < n ? left : n;
    if (kGather) {
      if (step == 0) {
        const T value = *place;
        for (int64_t i = 0; i < run; i++) buffer[i] = value;
      } else if (step == 1) {
        for (int64_t i = 0; i < run; i++) buffer[i] = place[i];
      } else {
        for (int64_t i = 0; i < run; i++) buffer[i] = place[i * step];
      }
    } else if (step == 1) {
      for (int64_t i = 0; i < run; i++) place[i] = buffer[i];
    } else {
      for (int64_t i = 0; i < run; i++) place[i * step] = buffer[i];
    }
    n -= run;
    if (n == 0) return;
    buffer += run;
    place -= index[last] * step;
    index[last] = 0;
    for (int d = last - 1; d >= 0; d--) {
      place += operand.stride[d];
      if (++index[d] < loop.shape[d]) break;
      place -= loop.shape[d] * operand.stride[d];
      index[d] = 0;
    }
  }
}

template <bool kGather>
static void move_block(const Loop& loop, const Operand& operand, int64_t begin, int64_t n, void* buffer) {
  switch (operand.size) {
    case 1:
      return move_block<uint8_t, kGather>(loop, operand, begin, n, static_cast<uint8_t*>(buffer));
    case 2:
      return move_block<uint16_t, kGather>(loop, operand, begin, n, static_cast<uint16_t*>(buffer));
    case 4:
      return move_block<uint32_t, kGather>(loop, operand, begin, n, static_cast<uint32_t*>(buffer));
    default:
      return move_block<uint64_t, kGather>(loop, operand, begin, n, static_cast<uint64_t*>(buffer));
  }
}

static bool native(int32_t dtype, Compute compute) {
  return compute == Compute::raw || (compute == Compute::f32 && dtype == NPU_FLOAT32) ||
         (compute == Compute::i64 && dtype == NPU_INT64) || (compute == Compute::f64 && dtype == NPU_FLOAT64);
}

const void* fetch(const Loop& loop, const Operand& operand, int64_t begin, int64_t n, Compute compute, Block* raw,
                  Block* buffer) {
  const bool is_native = native(operand.dtype, compute);
  const void* in = operand.data + begin * operand.size;
  if (!operand.dense) {
    Block* to = is_native ? buffer : raw;
    move_block<true>(loop, operand, begin, n, to->bytes);
    in = to->bytes;
  }
  if (is_native) return in;
  if (compute == Compute::f32)
    to_float(operand.dtype, in, reinterpret_cast<float*>(buffer->bytes), n);
  else
    to_int(operand.dtype, in, reinterpret_cast<int64_t*>(buffer->bytes), n);
  return buffer->bytes;
}

void* store_target(const Operand& operand, int64_t begin, Compute compute, Block* buffer) {
  return operand.dense && native(operand.dtype, compute) ? operand.data + begin * operand.size : buffer->bytes;
}

void store(const Loop& loop, const Operand& operand, int64_t begin, int64_t n, Compute compute, const void* values,
           Block* raw) {
  char* place = operand.data + begin * operand.size;
  if (operand.dense && values == place) return;
  if (!native(operand.dtype, compute)) {
    void* to = operand.dense ? place : raw->bytes;
    if (compute == Compute::f32)
      from_float(operand.dtype, static_cast<const float*>(values), to, n);
    else
      from_int(operand.dtype, static_cast<const int64_t*>(values), to, n);
    if (operand.dense) return;
    values = to;
  } else if (operand.dense) {
    std::memcpy(place, values, static_cast<size_t>(n) * operand.size);
    return;
  }
  move_block<false>(loop, operand, begin, n, const_cast<void*>(values));
}

// ---- conversions
template <class From, class To>
struct ConvertBody {
  NPU_INLINE static void run(const void* in, void* out, int64_t n) {
    const From* from = static_cast<const From*>(in);
    To* to = static_cast<To*>(out);
    NPU_IVDEP for (int64_t i = 0; i < n; i++) to[i] = static_cast<To>(from[i]);
  }
};
template <class From>
struct ToBoolBody {
  NPU_INLINE static void run(const void* in, void* out, int64_t n) {
    const From* from = static_cast<const From*>(in);
    uint8_t* to = static_cast<uint8_t*>(out);
    NPU_IVDEP for (int64_t i = 0; i < n; i++) to[i] = from[i] != 0;
  }
};
template <class To>
struct FromBoolBody {
  NPU_INLINE static void run(const void* in, void* out, int64_t n) {
    const uint8_t* from = static_cast<const uint8_t*>(in);
    To* to = static_cast<To*>(out);
    NPU_IVDEP for (int64_t i = 0; i < n; i++) to[i] = static_cast<To>(from[i] != 0);
  }
};

void to_float(int32_t dtype, const void* in, float* out, int64_t n) {
  void* to = out;
  switch (dtype) {
    case NPU_FLOAT16:
      return half_to_float(static_cast<const uint16_t*>(in), out, n);
    case NPU_BFLOAT16:
      return bf16_to_float(static_cast<const uint16_t*>(in), out, n);
    case NPU_FLOAT32:
      std::memcpy(out, in, static_cast<size_t>(n) * 4);
      return;
    case NPU_INT8:
      return simd<ConvertBody<int8_t, float>>(in, to, n);
    case NPU_UINT8:
      return simd<ConvertBody<uint8_t, float>>(in, to, n);
    case NPU_INT16:
      return simd<ConvertBody<int16_t, float>>(in, to, n);
    case NPU_INT32:
      return simd<ConvertBody<int32_t, float>>(in, to, n);
    case NPU_INT64:
      return simd<ConvertBody<int64_t, float>>(in, to, n);
    default:
      return simd<FromBoolBody<float>>(in, to, n);
  }
}

void from_float(int32_t dtype, const float* in, void* out, int64_t n) {
  const void* from = in;
  switch (dtype) {
    case NPU_FLOAT16:
      return float_to_half(in, static_cast<uint16_t*>(out), n);
    case NPU_BFLOAT16:
      return float_to_bf16(in, static_cast<uint16_t*>(out), n);
    case NPU_FLOAT32:
      std::memcpy(out, in, static_cast<size_t>(n) * 4);
      return;
    default:
      return simd<ToBoolBody<float>>(from, out, n);  // no function computes integers in float32
  }
}

void to_int(int32_t dtype, const void* in, int64_t* out, int64_t n) {
  void* to = out;
  switch (dtype) {
    case NPU_INT8:
      return simd<ConvertBody<int8_t, int64_t>>(in, to, n);
    case NPU_UINT8:
      return simd<ConvertBody<uint8_t, int64_t>>(in, to, n);
    case NPU_INT16:
      return simd<ConvertBody<int16_t, int64_t>>(in, to, n);
    case NPU_INT32:
      return simd<ConvertBody<int32_t, int64_t>>(in, to, n);
    case NPU_INT64:
      std::memcpy(out, in, static_cast<size_t>(n) * 8);
      return;
    default:
      return simd<FromBoolBody<int64_t>>(in, to, n);
  }
}

void from_int(int32_t dtype, const int64_t* in, void* out, int64_t n) {
  const void* from = in;
  switch (dtype) {
    case NPU_INT8:
      return simd<ConvertBody<int64_t, int8_t>>(from, out, n);
    case NPU_UINT8:
      return simd<ConvertBody<int64_t, uint8_t>>(from, out, n);
    case NPU_INT16:
      return simd<ConvertBody<int64_t, int16_t>>(from, out, n);
    case NPU_INT32:
      return simd<ConvertBody<int64_t, int32_t>>(from, out, n);
    case NPU_INT64:
      std::memcpy(out, in, static_cast<size_t>(n) * 8);
      return;
    default:
      return simd<ToBoolBody<int64_t>>(from, out, n);
  }
}

const float* load_floats(int32_t dtype, const char* in, int64_t stride, int64_t n, float* buffer) {
  if (stride == 1 || n == 1) {
    if (dtype == NPU_FLOAT32) return reinterpret_cast<const float*>(in);
    to_float(dtype, in, buffer, n);
    return buffer;
  }
  if (dtype == NPU_FLOAT32) {
    const float* from = reinterpret_cast<const float*>(in);
    for (int64_t i = 0; i < n; i++) buffer[i] = from[i * stride];
    return buffer;
  }
  const uint16_t* from = reinterpret_cast<const uint16_t*>(in);
  uint16_t packed[kBlock];
  for (int64_t b = 0; b < n; b += kBlock) {
    const int64_t m = n - b < kBlock ? n - b : kBlock;
    for (int64_t i = 0; i < m; i++) packed[i] = from[(b + i) * stride];
    to_float(dtype, packed, buffer + b, m);
  }
  return buffer;
}

void store_floats(int32_t dtype, const float* in, char* out, int64_t stride, int64_t n) {
  if (stride == 1 || n == 1) {
    if (reinterpret_cast<const char*>(in) != out) from_float(dtype, in, out, n);
    return;
  }
  if (dtype == NPU_FLOAT32) {
    float* to = reinterpret_cast<float*>(out);
    for (int64_t i = 0; i < n; i++) to[i * stride] = in[i];
    return;
  }
  uint16_t* to = reinterpret_cast<uint16_t*>(out);
  uint16_t packed[kBlock];
  for (int64_t b = 0; b < n; b += kBlock) {
    const int64_t m = n - b < kBlock ? n - b : kBlock;
    from_float(dtype, in + b, packed, m);
    for (int64_t i = 0; i < m; i++) to[(b + i) * stride] = packed[i];
  }
}

float load_float1(int32_t dtype, const void* in) {
  switch (dtype) {
    case NPU_FLOAT16:
      return half_to_float1(*static_cast<const uint16_t*>(in));
    case NPU_BFLOAT16:
      return bf16_to_float1(*static_cast<const uint16_t*>(in));
    default:
      return *static_cast<const float*>(in);
  }
}

void store_float1(int32_t dtype, float value, void* out) {
  switch (dtype) {
    case NPU_FLOAT16:
      *static_cast<uint16_t*>(out) = float_to_half1(value);
      return;
    case NPU_BFLOAT16:
      *static_cast<uint16_t*>(out) = float_to_bf161(value);
      return;
    default:
      *static_cast<float*>(out) = value;
      return;
  }
}

// ---- the driver
static void fill_scalar(const Program& p, int64_t n, Block* buffer) {
  if (p.in == Compute::f32) {
    float* f = reinterpret_cast<float*>(buffer->bytes);
    for (int64_t i = 0; i < n; i++) f[i] = static_cast<float>(p.scalar_f);
  } else if (p.in == Compute::f64) {
    double* d = reinterpret_cast<double*>(buffer->bytes);
    for (int64_t i = 0; i < n; i++) d[i] = p.scalar_f;
  } else if (p.in == Compute::i64) {
    int64_t* v = reinterpret_cast<int64_t*>(buffer->bytes);
    for (int64_t i = 0; i < n; i++) v[i] = p.scalar_i;
  } else {  // the bytes of an element of out
    const size_t size = static_cast<size_t>(p.operand[0].size);
    for (int64_t i = 0; i < n; i++) std::memcpy(buffer->bytes + i * size, &p.scalar_i, size);
  }
}

static void run_range(const Program& p, const Params& params, int64_t begin, int64_t end) {
  Block raw[4], buffer[4];
  const void* in[3] = {nullptr, nullptr, nullptr};
  const int64_t longest = end - begin < kBlock ? end - begin : kBlock;
  for (int k = 0; k < p.inputs; k++) {
    if (p.operand[k + 1].dtype != 0) continue;
    fill_scalar(p, longest, &buffer[k + 1]);
    in[k] = buffer[k + 1].bytes;
  }
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = end - at < kBlock ? end - at : kBlock;
    for (int k = 0; k < p.inputs; k++)
      if (p.operand[k + 1].dtype != 0)
        in[k] = fetch(p.loop, p.operand[k + 1], at, n, p.in, &raw[k + 1], &buffer[k + 1]);
    void* out = store_target(p.operand[0], at, p.out, &buffer[0]);
    p.run(in[0], in[1], in[2], out, n, &params);
    store(p.loop, p.operand[0], at, n, p.out, out, &raw[0]);
  }
}

int32_t run_program(const Program& p) {
  int32_t flag = 0;
  Params params = p.params;
  params.flag = &flag;
  if (p.loop.n <= 2 * kGrain) {
    run_range(p, params, 0, p.loop.n);
  } else {
    parallel_for(p.loop.n, kGrain, [&](int64_t begin, int64_t end, int) { run_range(p, params, begin, end); });
  }
  return flag;
}

// ---- argument checks
const char* dtype_text(int32_t dtype) {
  static const char* const names[] = {"none",  "float16", "bfloat16", "float32", "int8", "int32",
                                      "int64", "bool",    "uint8",    "float64", "int16"};
  return dtype >= 0 && dtype <= NPU_INT16 ? names[dtype] : "unknown";
}

// "[2, 3]" into a buffer of 128 bytes.
static const char* shape_text(int rank, const int64_t* shape, char* text) {
  size_t at = 0;
  text[at++] = '[';
  for (int d = 0; d < rank; d++)
    at += static_cast<size_t>(
        __builtin_snprintf(text + at, 128 - at, d ? ", %lld" : "%lld", static_cast<long long>(shape[d])));
  text[at++] = ']';
  text[at] = 0;
  return text;
}

npu_status_t expect_shape(const char* function, const char* what, const View& view, int rank, const int64_t* shape) {
  bool same = view.rank == rank;
  for (int d = 0; same && d < rank; d++) same = view.shape[d] == shape[d];
  if (__builtin_expect(same, 1)) return NPU_STATUS_SUCCESS;
  char got[192], wanted[192];
  return fail(NPU_STATUS_INVALID_VALUE, "%s: %s has shape %s, expected %s", function, what,
              shape_text(view.rank, view.shape, got), shape_text(rank, shape, wanted));
}

npu_status_t same_shape(const char* function, const char* what, const View& view, const View& out) {
  return expect_shape(function, what, view, out.rank, out.shape);
}

npu_status_t same_dtype(const char* function, const char* what, const View& view, int32_t dtype) {
  if (__builtin_expect(view.dtype == dtype, 1)) return NPU_STATUS_SUCCESS;
  return fail(NPU_STATUS_INVALID_VALUE, "%s: %s is %s, expected %s", function, what, dtype_text(view.dtype),
              dtype_text(dtype));
}

npu_status_t writable(const char* function, const char* what, const View& view) {
  for (int d = 0; d < view.rank; d++)
    if (__builtin_expect(view.stride[d] == 0 && view.shape[d] > 1, 0) && view.numel() > 0)
      return fail(NPU_STATUS_INVALID_VALUE,
                  "%s: %s has stride 0 in dimension %d of size %lld; an output cannot be broadcast", function, what, d,
                  static_cast<long long>(view.shape[d]));
  return NPU_STATUS_SUCCESS;
}

int64_t scalar_int(npu_scalar_t s) {
  if (s.is_integer) return s.i;
  if (!(s.d == s.d)) return 0;
  if (s.d >= 0x1p63) return INT64_MAX;
  if (s.d < -0x1p63) return INT64_MIN;
  return static_cast<int64_t>(s.d);
}

int64_t element_bits(npu_scalar_t s, int32_t dtype) {
  int64_t bits = 0;
  if (mask(dtype) & kFloats) {
    store_float1(dtype, static_cast<float>(scalar_double(s)), &bits);
  } else if (dtype == NPU_FLOAT64) {
    const double d = scalar_double(s);
    std::memcpy(&bits, &d, sizeof(d));
  } else if (dtype == NPU_BOOL) {
    bits = s.is_integer ? s.i != 0 : s.d != 0;
  } else {
    bits = scalar_int(s);
  }
  return bits;
}

npu_scalar_t converted(npu_scalar_t s, int32_t dtype) {
  const int64_t bits = element_bits(s, dtype);
  npu_scalar_t result{!(mask(dtype) & kFloats) && dtype != NPU_FLOAT64, 0, 0, 0};
  if (dtype == NPU_FLOAT64) {
    result.d = scalar_double(s);
  } else if (!result.is_integer) {
    result.d = load_float1(dtype, &bits);
  } else {
    to_int(dtype, &bits, &result.i, 1);
  }
  return result;
}

}  // namespace npu
