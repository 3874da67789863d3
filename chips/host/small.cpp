// small.cpp: loops for small calls on dense float32 tensors, where a call into PyTorch costs more than the work.
//
// Contract: see small.h. This file alone is compiled for the vector units that PyTorch's fast paths ask for, and is only
// called on a CPU that has them: so it includes nothing whose inline functions others share.
#include "small.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <iterator>

namespace host {
namespace {

constexpr int64_t kSmall = 4096;        // elements: no more than what one core does in the time of a call into PyTorch
constexpr int64_t kProducts = 1 << 13;  // multiplications of a matrix product, and elements of a factor that is turned

template <class T>
T* start(const uba_tensor& t) {
  return reinterpret_cast<T*>(static_cast<char*>(t.data) + t.byte_offset);
}
template <class T>
constexpr int32_t kDtype = UBA_DTYPE_FLOAT32;
template <>
constexpr int32_t kDtype<bool> = UBA_DTYPE_BOOL;
template <>
constexpr int32_t kDtype<int64_t> = UBA_DTYPE_INT64;
// The elements of a small row-major tensor of this type; -1: it is another.
template <class T>
int64_t small(const uba_tensor& t) {
  int64_t count = 1;
  for (int32_t d = t.rank; d-- > 0; count *= t.sizes[d])
    if (t.strides[d] != count && t.sizes[d] > 1) return -1;
  return t.dtype == kDtype<T> && count <= kSmall ? count : -1;
}
double number(const uba_value& value) { return value.kind == UBA_INT ? double(value.v.i) : value.v.d; }

// An operand of an elementwise call: as many elements as the result has, or a number.
bool operand(const uba_value& arg, const uba_tensor& like, const float** data, float* value) {
  *value = arg.kind == UBA_TENSOR ? 0 : float(number(arg));
  if (arg.kind != UBA_TENSOR) return arg.kind == UBA_INT || arg.kind == UBA_DOUBLE;
  const uba_tensor& t = *arg.v.tensor;
  *data = start<float>(t);
  return t.rank == like.rank && small<float>(t) >= 0 && !std::memcmp(t.sizes, like.sizes, size_t(t.rank) * sizeof(int64_t));
}
// y = f(a, b, c): two operands, and a number where there is a third argument.
template <auto f>
bool binary(const uba_call& call) {
  using R = decltype(f(0.f, 0.f, 0.f));
  const float *a = nullptr, *b = nullptr;
  float x = 0, z = 0;
  const uba_tensor& out = call.outputs[0];
  const int64_t n = call.arg_count < 3 || call.args[2].kind <= UBA_DOUBLE ? small<R>(out) : -1;
  if (n < 0 || !operand(call.args[0], out, &a, &x) || !operand(call.args[1], out, &b, &z)) return false;
  const float c = call.arg_count > 2 ? float(number(call.args[2])) : 1;
  R* y = start<R>(out);
  for (int64_t i = 0; a && b && i < n; i++) y[i] = f(a[i], b[i], c);
  for (int64_t i = 0; a && !b && i < n; i++) y[i] = f(a[i], z, c);
  for (int64_t i = 0; !a && i < n; i++) y[i] = f(x, b[i], c);
  return true;
}
template <auto f>
bool unary(const uba_call& call) {
  const float* x = nullptr;
  float value = 0, *y = start<float>(call.outputs[0]);
  const int64_t n = small<float>(call.outputs[0]);
  if (n < 0 || !operand(call.args[0], call.outputs[0], &x, &value) || !x) return false;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = f(x[i]);
  return true;
}

template <class F>
float sum_of(int64_t n, const F& f) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += f(i);
  return sum;
}
// e^x, to two units in the last place.
inline float exp_of(float given) {
  const float bounded = given < -104.f ? -104.f : given, x = bounded > 89.f ? 89.f : bounded;  // zero and infinity beyond
  const float shifted = x * 1.44269504f + 12582912.f, turns = shifted - 12582912.f;
  const float r = x - turns * 0.693359375f - turns * -2.12194440e-4f;
  const float upper = (1.9875691500e-4f * r + 1.3981999507e-3f) * r + 8.3334519073e-3f;
  const float p = ((upper * r + 4.1665795894e-2f) * r + 1.6666665459e-1f) * r + 5.0000001201e-1f;
  const int32_t k = std::bit_cast<int32_t>(shifted) - 0x4b400000, half = k / 2;  // 2^k may be no float, e^x still is
  const auto power = [](int32_t n) { return std::bit_cast<float>((n + 127) << 23); };
  return (p * r * r + r + 1.f) * power(half) * power(k - half);
}
// y += x of k elements, times `width` columns of a factor.
template <int width>
void products(float* y, const float* x, int64_t step, const float* factor, int64_t row, int64_t k) {
  float sums[width];
  std::memcpy(sums, y, sizeof(sums));
  for (int64_t l = 0; l < k; l++, x += step, factor += row)
    for (int j = 0; j < width; j++) sums[j] += *x * factor[j];
  std::memcpy(y, sums, sizeof(sums));
}
// (a, b), or (c, a, b, beta, alpha)
bool matrix_product(const uba_call& call) {
  const int first = call.arg_count == 5;
  const uba_tensor &out = call.outputs[0], &a = *call.args[first].v.tensor, &b = *call.args[first + 1].v.tensor;
  if (small<float>(out) < 0 || a.dtype != UBA_DTYPE_FLOAT32 || b.dtype != a.dtype) return false;
  const int64_t m = out.sizes[0], n = out.sizes[1], k = a.sizes[1], turn = b.strides[1];
  if (m * n * k > kProducts || k * n > kProducts) return false;
  float *y = start<float>(out), turned[kProducts];
  if (first) {
    const uba_tensor* c = call.args[0].kind == UBA_TENSOR ? call.args[0].v.tensor : nullptr;
    if (number(call.args[3]) != 1 || number(call.args[4]) != 1 || !c || c->rank == 0) return false;
    if (small<float>(*c) < 0 || c->sizes[c->rank - 1] != n || c->data == out.data) return false;
    const int64_t row = c->rank == 2 && c->sizes[0] == m ? n : 0;
    for (int64_t i = 0; i < m; i++) std::memcpy(y + i * n, start<float>(*c) + i * row, size_t(n) * sizeof(float));
  } else {
    std::memset(y, 0, size_t(m * n) * sizeof(float));
  }
  const float *from = start<float>(a), *factor = start<float>(b);
  for (int64_t j = 0; turn != 1 && j < n; j++)  // sums are made side by side
    for (int64_t l = 0; l < k; l++) turned[l * n + j] = factor[l * b.strides[0] + j * turn];
  if (turn != 1) factor = turned;
  for (int64_t i = 0, row = turn != 1 ? n : b.strides[0]; i < m; i++, from += a.strides[0], y += n) {
    int64_t j = 0;
    for (; j + 16 <= n; j += 16) products<16>(y + j, from, a.strides[1], factor + j, row, k);
    for (; j < n; j++) products<1>(y + j, from, a.strides[1], factor + j, row, k);
  }
  return true;
}
// Over the last dimension or all: (x, dims, keepdim, dtype) or (x, dtype).
template <bool mean>
bool sum(const uba_call& call) {
  const uba_tensor &x = *call.args[0].v.tensor, &out = call.outputs[0];
  const uba_value& dims = call.args[1];
  const int64_t all = small<float>(x), rows = small<float>(out), last = x.rank - 1;
  if (all <= 0 || rows <= 0) return false;
  if (call.arg_count > 2 && dims.kind != UBA_NONE && dims.count != 0)
    if (dims.count != 1 || last < 0 || (dims.v.ints[0] != last && dims.v.ints[0] != -1)) return false;
  for (int64_t i = 0, n = all / rows; i < rows; i++) {
    const float* from = start<float>(x) + i * n;
    start<float>(out)[i] = sum_of(n, [&](int64_t j) { return from[j]; }) / (mean ? float(n) : 1.f);
  }
  return true;
}
bool embedding(const uba_call& call) {  // (weight, indices, ...)
  const uba_tensor &weight = *call.args[0].v.tensor, &indices = *call.args[1].v.tensor, &out = call.outputs[0];
  const int64_t count = small<int64_t>(indices), *index = start<int64_t>(indices);
  if (small<float>(out) <= 0 || count <= 0 || weight.rank != 2 || weight.strides[1] != 1) return false;
  for (int64_t i = 0; i < count; i++)
    if (index[i] < 0 || index[i] >= weight.sizes[0]) return false;
  for (int64_t i = 0, width = weight.sizes[1]; i < count; i++)
    std::memcpy(start<float>(out) + i * width, start<float>(weight) + index[i] * weight.strides[0], size_t(width) * sizeof(float));
  return true;
}
bool softmax(const uba_call& call) {  // (x, dim, half_to_float)
  const uba_tensor &x = *call.args[0].v.tensor, &out = call.outputs[0];
  const int64_t count = small<float>(x), dim = call.args[1].v.i;
  if (count <= 0 || count > kSmall / 16 || small<float>(out) != count || x.rank == 0 || (dim != x.rank - 1 && dim != -1)) return false;
  for (int64_t i = 0, n = x.sizes[x.rank - 1]; i < count; i += n) {
    const float* from = start<float>(x) + i;
    float *y = start<float>(out) + i, most = from[0];
    for (int64_t j = 0; j < n; j++) most = from[j] > most ? from[j] : most;
    const float total = sum_of(n, [&](int64_t j) { return y[j] = exp_of(from[j] - most); });
    for (int64_t j = 0; j < n; j++) y[j] /= total;
  }
  return true;
}
bool layer_norm(const uba_call& call) {  // (x, normalized_shape, weight, bias, eps) -> y, mean, rstd
  const uba_tensor &x = *call.args[0].v.tensor, *out = call.outputs;
  const int64_t count = small<float>(x), rows = small<float>(out[1]), n = rows > 0 ? count / rows : 0;
  if (count <= 0 || n == 0 || small<float>(out[0]) != count || small<float>(out[2]) != rows) return false;
  const float* parameters[2] = {};
  for (int i = 0; i < 2; i++) {
    if (call.args[2 + i].kind == UBA_NONE) continue;
    if (small<float>(*call.args[2 + i].v.tensor) != n) return false;
    parameters[i] = start<float>(*call.args[2 + i].v.tensor);
  }
  for (int64_t i = 0; i < rows; i++) {
    const float *from = start<float>(x) + i * n, mean = sum_of(n, [&](int64_t j) { return from[j]; }) / float(n);
    const float squares = sum_of(n, [&](int64_t j) { return (from[j] - mean) * (from[j] - mean); });
    const float rstd = 1 / std::sqrt(squares / float(n) + float(number(call.args[4])));
    float* y = start<float>(out[0]) + i * n;
    for (int64_t j = 0; j < n; j++) y[j] = (from[j] - mean) * rstd;
    for (int64_t j = 0; parameters[0] && j < n; j++) y[j] *= parameters[0][j];
    for (int64_t j = 0; parameters[1] && j < n; j++) y[j] += parameters[1][j];
    start<float>(out[1])[i] = mean, start<float>(out[2])[i] = rstd;
  }
  return true;
}

#define OF(...) binary<([](float a, float b, [[maybe_unused]] float c) { return __VA_ARGS__; })>
}  // namespace

// clang-format off
constinit const SmallLoop kSmallLoops[] = {
    {"add", OF(a + c * b)}, {"sub", OF(a - c * b)}, {"mul", OF(a * b)}, {"div", OF(a / b)},
    {"eq", OF(a == b)}, {"ne", OF(a != b)}, {"lt", OF(a < b)}, {"le", OF(a <= b)}, {"gt", OF(a > b)}, {"ge", OF(a >= b)},
    {"threshold_backward", OF(b <= c ? 0.f : a)}, {"relu", unary<[](float a) { return a <= 0 ? 0 : a; }>},
    {"exp", unary<[](float a) { return exp_of(a); }>}, {"sigmoid", unary<[](float a) { return 1 / (1 + exp_of(-a)); }>},
    {"sum", sum<false>}, {"mean", sum<true>}, {"mm", matrix_product}, {"addmm", matrix_product},
    {"embedding", embedding}, {"_softmax", softmax}, {"native_layer_norm", layer_norm},
};
// clang-format on
constinit const size_t kSmallLoopCount = std::size(kSmallLoops);

}  // namespace host
