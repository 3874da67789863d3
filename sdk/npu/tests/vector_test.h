// vector_test.h: what the tests of the vector unit share: a device, tensors of any layout, exact rounding, checks.
//
// Contract: only the public header is used. A test's reference is computed in double; `near` compares in units of the
// last place of the tensor's dtype. A failed check prints where and ends the program with status 1.
#pragma once
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "npu_v3_sdk.h"

#define CHECK(condition, ...)                                     \
  do {                                                            \
    if (!(condition)) {                                           \
      std::printf("%s:%d: %s: ", __FILE__, __LINE__, #condition); \
      std::printf(" " __VA_ARGS__);                               \
      std::printf(" [%s]\n", npu_last_error_text());              \
      std::exit(1);                                               \
    }                                                             \
  } while (0)
#define OK(call) CHECK((call) == NPU_STATUS_SUCCESS)

using Shape = std::vector<int64_t>;
using Values = std::vector<double>;
using Integers = std::vector<int64_t>;

inline npu_device_t device;
inline npu_stream_t stream;
inline void open_device() {
  OK(npu_device_open(0, &device));
  OK(npu_default_stream(device, &stream));
}
inline void sync() { OK(npu_stream_synchronize(stream)); }

// The call is refused with `status`, and the text holds every given part.
inline void refused(npu_status_t got, npu_status_t status, std::initializer_list<const char*> parts, int line) {
  const std::string text = npu_last_error_text();
  bool good = got == status;
  for (const char* part : parts) good = good && text.find(part) != std::string::npos;
  if (good) return;
  std::printf("line %d: got %s, expected %s; the text is: %s\n", line, npu_status_name(got), npu_status_name(status),
              text.c_str());
  std::exit(1);
}
#define REFUSED(call, status, ...) refused(call, status, {__VA_ARGS__}, __LINE__)

inline bool is_float(int dtype) { return dtype <= NPU_FLOAT32 || dtype == NPU_FLOAT64; }
inline int item_size(int dtype) {
  static const int sizes[] = {0, 2, 2, 4, 1, 4, 8, 1, 1, 8, 2};
  return sizes[dtype];
}
inline const char* name_of(int dtype) {
  static const char* const names[] = {"",      "float16", "bfloat16", "float32", "int8", "int32",
                                      "int64", "bool",    "uint8",    "float64", "int16"};
  return names[dtype];
}

// ---- floating types: bits after the leading one, least exponent of a normal number, largest number
struct Format {
  int bits, least;
  double largest;
};
inline Format format_of(int dtype) {
  if (dtype == NPU_FLOAT16) return {10, -14, 65504};
  if (dtype == NPU_BFLOAT16) return {7, -126, 0x1.fep127};
  if (dtype == NPU_FLOAT64) return {52, -1022, std::numeric_limits<double>::max()};
  return {23, -126, static_cast<double>(std::numeric_limits<float>::max())};
}
inline double ulp(int dtype, double v) {
  const Format f = format_of(dtype);
  int e = v == 0 || !std::isfinite(v) ? f.least : std::ilogb(v);
  if (e < f.least) e = f.least;
  return std::ldexp(1.0, e - f.bits);
}
inline double round_to(int dtype, double v) {
  if (!is_float(dtype) || v == 0 || !std::isfinite(v)) return v;
  const double u = ulp(dtype, v), r = std::nearbyint(v / u) * u;
  return std::fabs(r) > format_of(dtype).largest ? std::copysign(std::numeric_limits<double>::infinity(), v) : r;
}
inline void encode(int dtype, double v, void* out) {
  if (dtype == NPU_FLOAT64) {
    std::memcpy(out, &v, 8);
    return;
  }
  const float f = static_cast<float>(round_to(dtype, v));
  uint32_t u;
  std::memcpy(&u, &f, 4);
  uint16_t h;
  if (dtype == NPU_FLOAT32) {
    std::memcpy(out, &f, 4);
    return;
  }
  if (dtype == NPU_BFLOAT16) {
    h = static_cast<uint16_t>(std::isnan(f) ? 0x7fc0 : u >> 16);
  } else {
    const uint16_t sign = static_cast<uint16_t>(u >> 16 & 0x8000);
    if (std::isnan(f))
      h = 0x7e00;
    else if (std::isinf(f))
      h = sign | 0x7c00;
    else if (std::fabs(f) < 0x1p-14f)
      h = static_cast<uint16_t>(sign | static_cast<int>(std::fabs(f) * 0x1p24f));
    else
      h = static_cast<uint16_t>(sign | (((u >> 13) & 0x3ffff) - (112 << 10)));
  }
  std::memcpy(out, &h, 2);
}
inline double decode(int dtype, const void* in) {
  if (dtype == NPU_FLOAT64) {
    double d;
    std::memcpy(&d, in, 8);
    return d;
  }
  if (dtype == NPU_FLOAT32) {
    float f;
    std::memcpy(&f, in, 4);
    return f;
  }
  uint16_t h;
  std::memcpy(&h, in, 2);
  if (dtype == NPU_BFLOAT16) {
    const uint32_t u = static_cast<uint32_t>(h) << 16;
    float f;
    std::memcpy(&f, &u, 4);
    return f;
  }
  const int e = h >> 10 & 31, m = h & 1023;
  const double a = e == 31 ? (m ? std::nan("") : HUGE_VAL) : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
  return h & 0x8000 ? -a : a;
}

// ---- tensors
inline Shape dense_strides(const Shape& shape, Shape order = {}) {  // order: dimensions from the outermost inwards
  if (order.empty())
    for (size_t d = 0; d < shape.size(); d++) order.push_back(static_cast<int64_t>(d));
  Shape stride(shape.size());
  int64_t step = 1;
  for (size_t k = shape.size(); k-- > 0; step *= shape[order[k]]) stride[order[k]] = step;
  return stride;
}

class Tensor {
 public:
  Tensor(int dtype, Shape shape_, Shape stride_ = {}, int64_t offset_bytes = 0)
      : shape(std::move(shape_)), stride(std::move(stride_)) {
    if (stride.size() != shape.size()) stride = dense_strides(shape);
    n = 1, span = 1;
    for (size_t d = 0; d < shape.size(); d++) n *= shape[d], span += (shape[d] - 1) * stride[d];
    if (n == 0) span = 0;
    bytes = static_cast<uint64_t>(span) * item_size(dtype);
    OK(npu_malloc(device, bytes + offset_bytes + 512, &base));
    t = {static_cast<char*>(base) + offset_bytes, shape.data(), stride.data(), dtype,
         static_cast<int32_t>(shape.size())};
    if (bytes) OK(npu_memset_async(stream_(), t.address, 0x5a, bytes));
  }
  Tensor(const Tensor&) = delete;
  ~Tensor() { npu_free(device, base); }
  operator const npu_tensor_t*() const { return &t; }

  int64_t offset(int64_t i) const {
    int64_t at = 0;
    for (size_t d = shape.size(); d-- > 0; i /= shape[d]) at += i % shape[d] * stride[d];
    return at;
  }
  template <class V>
  Tensor& set(const std::vector<V>& values) {
    CHECK(static_cast<int64_t>(values.size()) == n);
    std::vector<char> host(bytes + 1);
    for (int64_t i = 0; i < n; i++) {
      char* at = host.data() + offset(i) * item_size(t.dtype);
      if (is_float(t.dtype)) {
        encode(t.dtype, static_cast<double>(values[i]), at);
      } else {
        const int64_t v = t.dtype == NPU_BOOL ? values[i] != 0 : static_cast<int64_t>(values[i]);
        std::memcpy(at, &v, item_size(t.dtype));
      }
    }
    if (bytes) OK(npu_memcpy_async(stream_(), t.address, host.data(), bytes, NPU_COPY_TO_DEVICE));
    sync();
    return *this;
  }
  std::vector<char> raw() const {
    std::vector<char> host(bytes + 1);
    if (bytes) OK(npu_memcpy_async(stream_(), host.data(), t.address, bytes, NPU_COPY_TO_HOST));
    sync();
    return host;
  }
  Values get() const {
    const std::vector<char> host = raw();
    Values v(n);
    for (int64_t i = 0; i < n; i++) {
      const char* at = host.data() + offset(i) * item_size(t.dtype);
      v[i] = is_float(t.dtype) ? decode(t.dtype, at) : static_cast<double>(integer(at));
    }
    return v;
  }
  Integers get_i() const {
    const std::vector<char> host = raw();
    Integers v(n);
    for (int64_t i = 0; i < n; i++) v[i] = integer(host.data() + offset(i) * item_size(t.dtype));
    return v;
  }

  Shape shape, stride;
  int64_t n, span;
  uint64_t bytes;
  npu_tensor_t t;

 private:
  static npu_stream_t stream_() { return ::stream; }
  int64_t integer(const char* at) const {
    if (t.dtype == NPU_INT8) return *reinterpret_cast<const int8_t*>(at);
    if (t.dtype == NPU_INT16) return *reinterpret_cast<const int16_t*>(at);
    if (t.dtype == NPU_INT32) return *reinterpret_cast<const int32_t*>(at);
    if (t.dtype == NPU_INT64) return *reinterpret_cast<const int64_t*>(at);
    return *reinterpret_cast<const uint8_t*>(at);
  }
  void* base = nullptr;
};

inline npu_scalar_t number(double d) { return {0, 0, d, 0}; }
inline npu_scalar_t whole(int64_t i) { return {1, 0, 0, i}; }

// ---- comparing
inline bool near1(int dtype, double got, double expected, double ulps) {
  if (std::isnan(expected)) return std::isnan(got);
  const double rounded = round_to(dtype, expected);
  if (got == rounded) return true;
  if (std::isinf(got) || std::isinf(rounded))  // at the edge of the range
    return std::fabs(std::isinf(got) ? rounded : got) >= format_of(dtype).largest * (1 - 1e-3) &&
           std::signbit(got) == std::signbit(rounded);
  return std::fabs(got - expected) <= ulps * ulp(dtype, expected);
}
inline void near(const Tensor& tensor, const Values& expected, double ulps, const char* format, ...) {
  const Values got = tensor.get();
  for (size_t i = 0; i < expected.size(); i++) {
    if (near1(tensor.t.dtype, got[i], expected[i], ulps)) continue;
    va_list list;
    va_start(list, format);
    std::vprintf(format, list);
    va_end(list);
    std::printf(" %s: element %zu is %.9g, expected %.9g (%.2f ulp)\n", name_of(tensor.t.dtype), i, got[i], expected[i],
                std::fabs(got[i] - expected[i]) / ulp(tensor.t.dtype, expected[i]));
    std::exit(1);
  }
}
// Within `tolerance` times the given scale.
inline void close(const Tensor& tensor, const Values& expected, double tolerance, const char* what) {
  const Values got = tensor.get();
  for (size_t i = 0; i < expected.size(); i++) {
    const double allowed = tolerance + 0.5001 * ulp(tensor.t.dtype, expected[i]);
    if (std::isnan(expected[i]) ? std::isnan(got[i]) : std::fabs(got[i] - expected[i]) <= allowed) continue;
    std::printf("%s %s: element %zu is %.9g, expected %.9g +- %.3g\n", what, name_of(tensor.t.dtype), i, got[i],
                expected[i], allowed);
    std::exit(1);
  }
}
inline void equal(const Tensor& tensor, const Integers& expected, const char* format, ...) {
  const Integers got = tensor.get_i();
  for (size_t i = 0; i < expected.size(); i++) {
    if (got[i] == expected[i]) continue;
    va_list list;
    va_start(list, format);
    std::vprintf(format, list);
    va_end(list);
    std::printf(" %s: element %zu is %lld, expected %lld\n", name_of(tensor.t.dtype), i, static_cast<long long>(got[i]),
                static_cast<long long>(expected[i]));
    std::exit(1);
  }
}

// ---- numbers to try
inline uint64_t random_bits() {
  static uint64_t state = 0x9e3779b97f4a7c15ull;
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}
inline double uniform(double low, double high) {
  return low + (high - low) * static_cast<double>(random_bits() >> 11) * 0x1p-53;
}
inline Values uniforms(int64_t n, int dtype, double low = -2, double high = 2) {
  Values v(n);
  for (double& x : v) x = round_to(dtype, uniform(low, high));
  return v;
}
