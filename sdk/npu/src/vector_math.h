// vector_math.h: the functions of the vector unit, on one element, written without branches so that loops over them
// vectorise.
//
// Contract. Transcendental functions are computed in double precision by polynomials with a relative error below
// 1e-9 (1/50 ulp of float32), so what is returned is the float32 result rounded once in all but a few cases in a
// thousand. Infinities, NaN and -0 give what C's libm gives. Sources: range reduction by powers of two (Cody and
// Waite), exp and log by their series on the reduced argument, erf by Chebyshev interpolation: of erf(x)/x in x^2 on
// [0, 1.21], and of (1+2x) exp(x^2) erfc(x) in (x-3)/(x+3) on [1, 12].
#pragma once
#include <cmath>

#include "vector.h"

namespace npu {
namespace math {

NPU_INLINE double as_double(uint64_t bits) {
  double d;
  __builtin_memcpy(&d, &bits, 8);
  return d;
}
NPU_INLINE uint64_t as_bits(double d) {
  uint64_t bits;
  __builtin_memcpy(&bits, &d, 8);
  return bits;
}

constexpr double kInfinity = __builtin_inf();
// Adding this leaves an integer's two's complement in the low bits of the sum.
constexpr double kShifter = 0x1.8p52;
constexpr double kLimit = 150;  // exp(+-150) is beyond float32 in both directions

struct ExpParts {
  double scale;  // 2^k
  double q;      // exp(r) - 1, where x = k log 2 + r and |r| <= log(2)/2; q has a small relative error
};
NPU_INLINE ExpParts exp_parts(double x) {
  const double low = x < -kLimit ? -kLimit : x;
  const double c = low > kLimit ? kLimit : low;
  const double shifted = c * 0x1.71547652b82fep+0 + kShifter;
  const double k = shifted - kShifter;
  const double r = (c - k * 0x1.62e42fefa38p-1) - k * 0x1.ef35793c7673p-45;
  double p = 1.0 / 40320;
  p = p * r + 1.0 / 5040;
  p = p * r + 1.0 / 720;
  p = p * r + 1.0 / 120;
  p = p * r + 1.0 / 24;
  p = p * r + 1.0 / 6;
  p = p * r + 0.5;
  p = p * r * r + r;
  return {as_double((as_bits(shifted) + 1023) << 52), p};
}
NPU_INLINE double exp(double x) {
  const ExpParts e = exp_parts(x);
  const double y = e.scale * e.q + e.scale;
  const double z = x > kLimit ? kInfinity : y;
  return x < -kLimit ? 0.0 : z;
}
NPU_INLINE double expm1(double x) {
  const ExpParts e = exp_parts(x);
  const double y = e.scale * e.q + (e.scale - 1);
  const double z = x > kLimit ? kInfinity : y;
  return __builtin_copysign(z, x);
}
NPU_INLINE double tanh(double x) {
  const double low = x < -20 ? -20.0 : x;
  const double c = low > 20 ? 20.0 : low;
  const double t = expm1(2 * c);
  return __builtin_copysign(t / (t + 2), x);
}
NPU_INLINE double sigmoid(double x) { return 1 / (1 + exp(-x)); }

// log(1 + f), where u = 1 + f rounded to double; f is exact where u is near 1.
NPU_INLINE double log_of(double u, double f) {
  const uint64_t bits = as_bits(u);
  const uint64_t exponent = bits >> 52;
  const double m0 = as_double((bits & 0x000fffffffffffffull) | 0x3ff0000000000000ull);
  const double e0 = as_double(exponent | 0x4330000000000000ull) - 0x1p52 - 1023;
  const bool high = m0 > 1.4142135623730951;
  const double m = high ? m0 * 0.5 : m0;
  const double e = high ? e0 + 1 : e0;
  const double g = e == 0 ? f : m - 1;
  const double s = g / (g + 2);
  const double t = s * s;
  double p = 2.0 / 13;
  p = p * t + 2.0 / 11;
  p = p * t + 2.0 / 9;
  p = p * t + 2.0 / 7;
  p = p * t + 2.0 / 5;
  p = p * t + 2.0 / 3;
  p = p * t * s + 2 * s;
  const double y = e * 0.693147180559945309417 + p;
  const double a = u == 0 ? -kInfinity : y;
  const double b = u < 0 ? __builtin_nan("") : a;
  return u < kInfinity ? b : u;  // +inf and NaN stay
}
NPU_INLINE double log(double x) { return log_of(x, x - 1); }
NPU_INLINE double log1p(double x) { return __builtin_copysign(log_of(1 + x, x), x < -1 ? 1.0 : x); }

NPU_INLINE double erf_over_x(double t) {  // erf(x)/x for t = x^2 <= 1.21
  double p = 0x1.038192d9adec5p-20;
  p = p * t + -0x1.c5e602eb0565bp-17;
  p = p * t + 0x1.f2ccab492a5fep-14;
  p = p * t + -0x1.bf95f75ea25adp-11;
  p = p * t + 0x1.5653fe3f06dffp-8;
  p = p * t + -0x1.b82c6ecbc8029p-6;
  p = p * t + 0x1.ce2f1e39291a4p-4;
  p = p * t + -0x1.812746a65ef16p-2;
  return p * t + 0x1.20dd75042502bp+0;
}
// erfc(x) for x >= 1, given exp(-x^2); smoothly wrong, but finite, below 1.
NPU_INLINE double erfc_tail(double x, double gauss) {
  const double c = x > 12 ? 12.0 : x;
  const double t = (c - 3) / (c + 3);
  double p = 0x1.c4c6afd21232dp-14;
  p = p * t + -0x1.abecd55eabca4p-14;
  p = p * t + -0x1.959edb7171539p-11;
  p = p * t + 0x1.eeed49fb1754ep-10;
  p = p * t + 0x1.4b62f45ec0865p-9;
  p = p * t + -0x1.85748a8b1dd7bp-6;
  p = p * t + 0x1.17ca435f94291p-4;
  p = p * t + -0x1.e88b802fc23c6p-4;
  p = p * t + 0x1.0983661f00502p-3;
  p = p * t + -0x1.85a15c680877bp-5;
  p = p * t + -0x1.15c084ba1e4afp-3;
  p = p * t + 0x1.40c522d7e5a81p+0;
  return gauss * p / (1 + 2 * c);
}
NPU_INLINE double erf(double x) {
  const double a = __builtin_fabs(x);
  const double tail = 1 - erfc_tail(a, exp(-a * a));
  const double near = a > 1.1 ? 1.1 : a;
  const double small = near * erf_over_x(near * near);
  return __builtin_copysign(a > 1.1 ? tail : small, x);
}
NPU_INLINE double erfc(double x) {
  const double a = __builtin_fabs(x);
  const double tail = erfc_tail(a, exp(-a * a));
  const double far = x < 0 ? 2 - tail : tail;
  const double low = x < -1.1 ? -1.1 : x;
  const double near = low > 1.1 ? 1.1 : low;
  const double mid = 1 - near * erf_over_x(near * near);
  return a > 1.1 ? far : mid;
}
NPU_INLINE double sinh(double x) {
  const double t = expm1(__builtin_fabs(x));
  const double y = t < kInfinity ? 0.5 * (t + t / (t + 1)) : t;
  return __builtin_copysign(y, x);
}
NPU_INLINE double cosh(double x) {
  const double e = exp(__builtin_fabs(x));
  return 0.5 * (e + 1 / e);
}
NPU_INLINE double asinh(double x) {
  const double a = __builtin_fabs(x), c = a > 1e100 ? 1e100 : a, square = c * c;
  const double y = log1p(c + square / (1 + __builtin_sqrt(square + 1)));
  return __builtin_copysign(a > 1e100 ? a : y, x);  // beyond float32: infinity
}
NPU_INLINE double acosh(double x) {
  const double t = x - 1;
  const double y = log1p(t + __builtin_sqrt(t * (t + 2)));
  return x < 1 ? __builtin_nan("") : y;
}
NPU_INLINE double atanh(double x) {
  const double a = __builtin_fabs(x);
  return __builtin_copysign(0.5 * log1p(2 * a / (1 - a)), x);
}

// The normal distribution's integral up to x, with a small relative error for negative x too.
NPU_INLINE double normal_cdf(double x) {
  const double z = x * 0.70710678118654752440;
  const double a = __builtin_fabs(z);
  const double tail = 0.5 * erfc_tail(a, exp(-a * a));
  const double far = x < 0 ? tail : 1 - tail;
  const double low = z < -1.1 ? -1.1 : z;
  const double near = low > 1.1 ? 1.1 : low;
  const double mid = 0.5 + 0.5 * near * erf_over_x(near * near);
  return a > 1.1 ? far : mid;
}
NPU_INLINE double gelu(double x) { return x * normal_cdf(x); }
NPU_INLINE double gelu_derivative(double x) { return normal_cdf(x) + x * exp(-0.5 * x * x) * 0.39894228040143267794; }
constexpr double kGeluScale = 0.79788456080286535588, kGeluCube = 0.044715;
// (1 + tanh u)/2 is sigmoid(2u), which has no cancellation for negative u.
NPU_INLINE double gelu_tanh_gate(double x) { return sigmoid(2 * kGeluScale * (x + kGeluCube * x * x * x)); }
NPU_INLINE double gelu_tanh(double x) { return x * gelu_tanh_gate(x); }
NPU_INLINE double gelu_tanh_derivative(double x) {
  const double s = gelu_tanh_gate(x);
  return s + 2 * x * s * (1 - s) * kGeluScale * (1 + 3 * kGeluCube * x * x);
}
NPU_INLINE double silu(double x) { return x / (1 + exp(-x)); }
NPU_INLINE double silu_derivative(double x) {
  const double s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

}  // namespace math
}  // namespace npu
