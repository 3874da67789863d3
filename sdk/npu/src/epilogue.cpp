// epilogue.cpp: see epilogue.h.
#include "epilogue.h"

#include <cmath>

#include "device.h"
#include "norm.h"

namespace npu {
namespace {

constexpr int kLane = 16;

// exp within 2 ulp; 0 below the smallest normal number.
NPU_INLINE float fast_exp(float x) {
  const float low = x < -87.3f ? -87.3f : x;
  const float c = low > 88.7f ? 88.7f : low;
  const float shifted = c * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: leaves the integer in the low bits
  const float k = shifted - 12582912.0f;
  const float r = (c - k * 0.693359375f) + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  uint32_t bits;
  __builtin_memcpy(&bits, &shifted, 4);
  bits = (bits + 127) << 23;
  float scale;
  __builtin_memcpy(&scale, &bits, 4);
  const float y = p * scale;
  return x < -87.3f ? 0.0f : y;
}

struct Line {
  float add, mean, slope, bias;
};

template <class Activation>
NPU_INLINE void run_line(const float* x, const float* r, float* out, int64_t n, Line line) {
  if (r) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] =
        Activation::f(line.slope * (x[i] + line.add - line.mean) + line.bias + r[i]);
  } else {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] =
        Activation::f(line.slope * (x[i] + line.add - line.mean) + line.bias);
  }
}

struct Nothing {
  NPU_INLINE static float f(float x) { return x; }
};
struct Relu {
  NPU_INLINE static float f(float x) { return x < 0 ? 0.0f : x; }
};
// erf by a quotient of polynomials on [-4, 4], beyond which float32 has nothing but 1; within 4 ulp of 1 (gelu within
// 8, where 1 + erf cancels).
NPU_INLINE float fast_erf(float v) {
  const float high = v > 4 ? 4.0f : v;
  const float x = high < -4 ? -4.0f : high;
  const float s = x * x;
  float p = -2.72614225801306e-10f;
  p = p * s + 2.77068142495902e-08f;
  p = p * s - 2.10102402082508e-06f;
  p = p * s - 5.69250639462346e-05f;
  p = p * s - 7.34990630326855e-04f;
  p = p * s - 2.95459980854025e-03f;
  p = p * s - 1.60960333262415e-02f;
  float q = -1.45660718464996e-05f;
  q = q * s - 2.13374055278905e-04f;
  q = q * s - 1.68282697438203e-03f;
  q = q * s - 7.37332916720468e-03f;
  q = q * s - 1.42647390514189e-02f;
  const float inside = x * p / q, outside = v > 0 ? 1.0f : -1.0f;
  return s >= 16 ? outside : inside;  // so that large negative numbers times nothing stay nothing
}
struct Gelu {
  NPU_INLINE static float f(float x) { return 0.5f * x * (1.0f + fast_erf(x * 0.70710678f)); }
};
struct GeluTanh {  // (1 + tanh u) / 2 is the sigmoid of 2u
  NPU_INLINE static float f(float x) { return x / (1.0f + fast_exp(-1.5957691216f * (x + 0.044715f * x * x * x))); }
};
template <class Activation>
struct LineBody {
  NPU_INLINE static void run(const float* x, const float* r, float* out, int64_t n, Line line) {
    run_line<Activation>(x, r, out, n, line);
  }
};

// x[i] = exp(x[i] - max); `sum` and whether any score was there.
struct ExponentialsBody {
  NPU_INLINE static void run(float* x, int64_t n, float* sum) {
    float most[kLane], total[kLane];
    const float none = -__builtin_inff();
    for (int k = 0; k < kLane; k++) most[k] = none, total[k] = 0;
    int64_t i = 0;
    for (; i + kLane <= n; i += kLane)
      for (int k = 0; k < kLane; k++) most[k] = x[i + k] > most[k] ? x[i + k] : most[k];
    for (; i < n; i++) most[0] = x[i] > most[0] ? x[i] : most[0];
    float max = none;
    bool lost = false;
    for (int k = 0; k < kLane; k++) max = most[k] > max ? most[k] : max;
    if (max == none) {  // nothing but -inf gives zeros; NaN stays
      for (int64_t j = 0; j < n; j++) lost |= x[j] != x[j];
      for (int64_t j = 0; j < n; j++) x[j] = lost ? __builtin_nanf("") : 0.0f;
      *sum = 1;
      return;
    }
    NPU_IVDEP for (int64_t j = 0; j < n; j++) x[j] = fast_exp(x[j] - max);
    for (i = 0; i + kLane <= n; i += kLane)
      for (int k = 0; k < kLane; k++) total[k] += x[i + k];
    for (; i < n; i++) total[0] += x[i];
    float all = 0;
    for (int k = 0; k < kLane; k++) all += total[k];
    *sum = all;
  }
};

struct ScaleBody {
  NPU_INLINE static void run(const float* x, const float* m, float* out, int64_t n, float scale) {
    if (m) {
      NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = scale * x[i] + m[i];
    } else {
      NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = scale * x[i];
    }
  }
};

bool same_places(const View& a, const View& b) {
  for (int i = 0; i < a.rank; i++) {
    if (a.shape[i] != 1 && a.stride[i] != b.stride[i]) return false;
  }
  return true;
}

}  // namespace

float PerChannel::get(int64_t channel, float absent) const {
  return dtype ? load_float1(dtype, data + channel * stride * (dtype == NPU_FLOAT32 ? 4 : 2)) : absent;
}

void Epilogue::apply(int64_t channel, float add, const float* values, const float* from, float* out, int64_t n) const {
  Line line{add, 0, 1, 0};
  if (mean) {
    const double inverse = 1 / std::sqrt(double(variance.get(channel, 1)) + double(eps));
    line = {add, mean.get(channel, 0), float(inverse * double(weight.get(channel, 1))), bias.get(channel, 0)};
  }
  switch (activation) {
    case NPU_UNARY_RELU:
      return simd<LineBody<Relu>>(values, from, out, n, line);
    case NPU_UNARY_GELU:
      return simd<LineBody<Gelu>>(values, from, out, n, line);
    case NPU_UNARY_GELU_TANH:
      return simd<LineBody<GeluTanh>>(values, from, out, n, line);
    default:
      return simd<LineBody<Nothing>>(values, from, out, n, line);
  }
}

void scale_add(const float* x, const float* m, float* out, int64_t n, float scale) {
  simd<ScaleBody>(x, m, out, n, scale);
}

float exponentials(float* x, int64_t n) {
  float sum = 0;
  simd<ExponentialsBody>(x, n, &sum);
  return sum;
}

namespace {
npu_status_t resolve_numbers(npu_stream_t stream, const npu_tensor_t* tensor, int32_t dtype, int64_t channels,
                             bool optional, const char* function, const char* what, PerChannel* out) {
  Channel channel;
  NPU_TRY(resolve_channel(stream, tensor, dtype, channels, optional, false, function, what, &channel));
  *out = {channel.data, channel.stride, channel.dtype};
  return NPU_STATUS_SUCCESS;
}
}  // namespace

npu_status_t resolve_epilogue(npu_stream_t stream, const char* function, const npu_epilogue_t* epilogue, const View& y,
                              int64_t channels, Epilogue* out) {
  *out = Epilogue{};
  if (!epilogue) return NPU_STATUS_SUCCESS;
  if (epilogue->mean || epilogue->variance) {
    if (channels < 0 || !epilogue->mean || !epilogue->variance)
      return fail(NPU_STATUS_INVALID_VALUE, "%s: epilogue: expected mean and variance both, of a convolution",
                  function);
    const struct {
      const npu_tensor_t* tensor;
      const char* what;
      PerChannel* to;
    } parts[] = {{epilogue->mean, "mean", &out->mean},
                 {epilogue->variance, "variance", &out->variance},
                 {epilogue->weight, "weight", &out->weight},
                 {epilogue->bias, "bias", &out->bias}};
    for (auto& part : parts)
      NPU_TRY(resolve_numbers(stream, part.tensor, y.dtype, channels, true, function, part.what, part.to));
  }
  out->eps = float(epilogue->eps);
  out->activation = epilogue->activation;
  if (out->activation && out->activation != NPU_UNARY_RELU && out->activation != NPU_UNARY_GELU &&
      out->activation != NPU_UNARY_GELU_TANH)
    return fail(NPU_STATUS_NOT_SUPPORTED, "%s: epilogue: activation %d: expected none, RELU, GELU or GELU_TANH",
                function, out->activation);
  View residual;
  NPU_TRY(resolve(stream, epilogue->residual, mask(y.dtype), Engine::compute, true, function, "residual", &residual));
  if (!residual) return NPU_STATUS_SUCCESS;
  NPU_TRY(same_shape(function, "residual", residual, y));
  if (!same_places(residual, y))
    return fail(NPU_STATUS_NOT_SUPPORTED, "%s: residual: expected the strides of the result", function);
  out->residual = residual.data;
  return NPU_STATUS_SUCCESS;
}

uint64_t epilogue_cycles(const Epilogue& epilogue, const View& y) {
  return epilogue.residual ? uint64_t(std::ceil(view_bytes(y) / config().chip.memory_bandwidth)) : 0;
}

}  // namespace npu
