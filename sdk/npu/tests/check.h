// check.h: what the tests of the NPU SDK share: checks that report, tensors on the device, 16-bit floats by the book.
//
// Contract: uses nothing of the SDK but its public header. CHECK counts a failure and goes on; report() is main's
// result.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "npu_v3_sdk.h"

inline int g_failures = 0, g_checks = 0;

#define CHECK(condition)                                                                                \
  do {                                                                                                  \
    g_checks++;                                                                                         \
    if (!(condition) && ++g_failures <= 30)                                                             \
      std::printf("%s:%d: failed: %s   [%s]\n", __FILE__, __LINE__, #condition, npu_last_error_text()); \
  } while (0)

#define OK(call)                                                                                  \
  do {                                                                                            \
    npu_status_t status_ = (call);                                                                \
    g_checks++;                                                                                   \
    if (status_ != NPU_STATUS_SUCCESS && ++g_failures <= 30)                                      \
      std::printf("%s:%d: %s gave %s: %s\n", __FILE__, __LINE__, #call, npu_status_name(status_), \
                  npu_last_error_text());                                                         \
  } while (0)

// The call is refused with `status`, and the text says `words`.
#define REFUSED(call, status, words)                                                               \
  do {                                                                                             \
    npu_status_t status_ = (call);                                                                 \
    g_checks++;                                                                                    \
    if ((status_ != (status) || !std::strstr(npu_last_error_text(), words)) && ++g_failures <= 30) \
      std::printf("%s:%d: %s gave %s: '%s', expected %s with '%s'\n", __FILE__, __LINE__, #call,   \
                  npu_status_name(status_), npu_last_error_text(), #status, words);                \
  } while (0)

inline int report(const char* name) {
  std::printf("%s: %d checks, %d failures\n", name, g_checks, g_failures);
  return g_failures ? 1 : 0;
}

// ---- 16-bit floats, written for clarity and independent of the SDK: exact values by ldexp, nearest even by nearbyint
inline float value_of_half(uint16_t h) {
  int exponent = h >> 10 & 31, fraction = h & 1023;
  double magnitude = exponent == 31  ? (fraction ? NAN : INFINITY)
                     : exponent == 0 ? std::ldexp(fraction, -24)
                                     : std::ldexp(1024 + fraction, exponent - 25);
  return float(h & 0x8000 ? -magnitude : magnitude);
}
inline uint16_t half_of(double x) {
  uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  double a = std::fabs(x);
  if (std::isnan(x)) return sign | 0x7e00;
  if (a >= 65520) return sign | 0x7c00;
  int exponent = a < 0x1p-14 ? -14 : std::ilogb(a);
  double units = std::nearbyint(std::ldexp(a, 10 - exponent));  // of 2^(exponent-10)
  if (units >= 2048) exponent++, units /= 2;
  return uint16_t(sign | (units < 1024 ? int(units) : ((exponent + 15) << 10) + int(units) - 1024));
}
inline float value_of_bf16(uint16_t b) {
  uint32_t u = uint32_t(b) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
inline uint16_t bf16_of(float f) {
  if (std::isnan(f)) return 0x7fc0;
  uint32_t u;
  std::memcpy(&u, &f, 4);
  uint32_t low = u & 0xffff, high = u >> 16;
  if (low > 0x8000 || (low == 0x8000 && (high & 1))) high++;
  return uint16_t(high);
}

inline size_t size_of(int32_t dtype) {
  static const size_t sizes[] = {0, 2, 2, 4, 1, 4, 8, 1, 1, 8, 2};
  return sizes[dtype];
}
inline double get(const void* data, int32_t dtype, int64_t i) {
  switch (dtype) {
    case NPU_FLOAT16:
      return value_of_half(static_cast<const uint16_t*>(data)[i]);
    case NPU_BFLOAT16:
      return value_of_bf16(static_cast<const uint16_t*>(data)[i]);
    case NPU_FLOAT32:
      return static_cast<const float*>(data)[i];
    case NPU_INT8:
      return static_cast<const int8_t*>(data)[i];
    case NPU_INT16:
      return static_cast<const int16_t*>(data)[i];
    case NPU_INT32:
      return static_cast<const int32_t*>(data)[i];
    case NPU_INT64:
      return double(static_cast<const int64_t*>(data)[i]);
    case NPU_FLOAT64:
      return static_cast<const double*>(data)[i];
    default:
      return static_cast<const uint8_t*>(data)[i];
  }
}
inline void put(void* data, int32_t dtype, int64_t i, double x) {
  switch (dtype) {
    case NPU_FLOAT16:
      static_cast<uint16_t*>(data)[i] = half_of(x);
      break;
    case NPU_BFLOAT16:
      static_cast<uint16_t*>(data)[i] = bf16_of(float(x));
      break;
    case NPU_FLOAT32:
      static_cast<float*>(data)[i] = float(x);
      break;
    case NPU_INT8:
      static_cast<int8_t*>(data)[i] = int8_t(x);
      break;
    case NPU_INT16:
      static_cast<int16_t*>(data)[i] = int16_t(x);
      break;
    case NPU_INT32:
      static_cast<int32_t*>(data)[i] = int32_t(x);
      break;
    case NPU_INT64:
      static_cast<int64_t*>(data)[i] = int64_t(x);
      break;
    case NPU_FLOAT64:
      static_cast<double*>(data)[i] = x;
      break;
    default:
      static_cast<uint8_t*>(data)[i] = uint8_t(x);
      break;
  }
}

inline npu_scalar_t real(double d) { return npu_scalar_t{0, 0, d, 0}; }
inline npu_scalar_t whole(int64_t i) { return npu_scalar_t{1, 0, 0, i}; }

// One opened device and its default stream.
struct Bench {
  npu_device_t device = nullptr;
  npu_stream_t stream = nullptr;
  explicit Bench(int32_t index = 0) {
    OK(npu_device_open(index, &device));
    OK(npu_default_stream(device, &stream));
  }
  ~Bench() { npu_device_close(device); }
};

// A tensor in device memory with its values mirrored on the host. `span` elements are allocated; shape and stride
// say which of them are its elements.
struct Tensor {
  npu_device_t device;
  npu_stream_t stream;
  void* address = nullptr;
  int32_t dtype;
  std::vector<int64_t> shape, stride;
  int64_t span = 1;
  std::vector<char> host;
  npu_tensor_t desc;

  Tensor(const Bench& bench, int32_t dtype, std::vector<int64_t> shape_, std::vector<int64_t> stride_ = {})
      : device(bench.device), stream(bench.stream), dtype(dtype), shape(std::move(shape_)), stride(std::move(stride_)) {
    if (stride.size() != shape.size()) {
      stride.resize(shape.size());
      int64_t step = 1;
      for (size_t i = shape.size(); i-- > 0; step *= shape[i]) stride[i] = step;
    }
    for (size_t i = 0; i < shape.size(); i++) span += (shape[i] - 1) * stride[i];
    for (int64_t s : shape) span = s ? span : 0;
    OK(npu_malloc(device, uint64_t(span) * size_of(dtype), &address));
    host.assign(size_t(span) * size_of(dtype), 0);
    desc = {address, shape.data(), stride.data(), dtype, int32_t(shape.size())};
  }
  Tensor(const Tensor&) = delete;
  ~Tensor() { npu_free(device, address); }

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t s : shape) n *= s;
    return n;
  }
  int64_t offset(int64_t linear) const {
    int64_t at = 0;
    for (size_t i = shape.size(); i-- > 0; linear /= shape[i]) at += linear % shape[i] * stride[i];
    return at;
  }
  double at(int64_t linear) const { return get(host.data(), dtype, offset(linear)); }
  Tensor& fill(const std::function<double(int64_t)>& f) {
    for (int64_t i = 0; i < numel(); i++) put(host.data(), dtype, offset(i), f(i));
    return upload();
  }
  Tensor& random(std::mt19937& g, double low = -1, double high = 1) {
    std::uniform_real_distribution<double> u(low, high);
    bool integer = dtype >= NPU_INT8 && dtype != NPU_FLOAT64;
    return fill([&](int64_t) { return integer ? std::floor(u(g)) : u(g); });
  }
  Tensor& upload() {
    OK(npu_memcpy_async(stream, address, host.data(), host.size(), NPU_COPY_TO_DEVICE));
    OK(npu_stream_synchronize(stream));
    return *this;
  }
  Tensor& download() {
    OK(npu_memcpy_async(stream, host.data(), address, host.size(), NPU_COPY_TO_HOST));
    OK(npu_stream_synchronize(stream));
    return *this;
  }
  operator const npu_tensor_t*() const { return &desc; }
};
