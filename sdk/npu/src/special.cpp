// special.cpp: the functions of special.h. Sources: DLMF (dlmf.nist.gov), by the numbers of its equations.
#include "special.h"

#include <cmath>

namespace npu {
namespace math {
namespace {

constexpr double kPi = 3.14159265358979323846, kEpsilon = 0x1p-53;
const double kNaN = __builtin_nan(""), kInf = __builtin_inf();

// Bernoulli numbers B2, B4, ... B16.
constexpr double kBernoulli[] = {1.0 / 6,  -1.0 / 30,     1.0 / 42, -1.0 / 30,
                                 5.0 / 66, -691.0 / 2730, 7.0 / 6,  -3617.0 / 510};
constexpr int kTerms = 8;

// log gamma(a) less its leading terms (a - 1/2) log a - a + log(2 pi)/2, for a >= 10: DLMF 5.11.1.
double stirling_rest(double a) {
  double sum = 0, power = 1 / a;
  for (int k = 1; k <= kTerms; k++, power /= a * a) sum += kBernoulli[k - 1] / (2 * k * (2 * k - 1)) * power;
  return sum;
}

// x^a e^-x / gamma(a + 1)
double gamma_front(double a, double x) {
  if (a < 10) return std::exp(a * std::log(x) - x - lgamma(a + 1));
  const double u = (x - a) / a;  // the large terms of the exponent cancel on paper
  return std::exp(a * (std::log1p(u) - u) - stirling_rest(a)) / std::sqrt(2 * kPi * a);
}
// P by its series, DLMF 8.7.1, for x <= a + 1.
double lower_series(double a, double x) {
  double term = 1, sum = 1;
  for (double n = a + 1; term > kEpsilon * sum; n++) sum += term *= x / n;
  return gamma_front(a, x) * sum;
}
// Q by its continued fraction, DLMF 8.9.2 in its even part, by Lentz's method, for x > a + 1.
double upper_fraction(double a, double x) {
  double b = x + 1 - a, c = 1 / 1e-300, d = 1 / b, h = d;
  for (double i = 1; i < 1e6; i++) {
    const double an = -i * (i - a);
    b += 2;
    d = an * d + b;
    if (std::fabs(d) < 1e-300) d = 1e-300;
    c = b + an / c;
    if (std::fabs(c) < 1e-300) c = 1e-300;
    d = 1 / d;
    const double step = d * c;
    h *= step;
    if (std::fabs(step - 1) < 2 * kEpsilon) break;
  }
  return gamma_front(a, x) * a * h;
}
// Q for a < 1 and x <= 1, where 1 - P cancels: DLMF 8.7.1 with e^-x expanded.
double upper_small(double a, double x) {
  const double log_u = a * std::log(x) - lgamma(a + 1);
  double term = 1, sum = 0;
  for (double n = 1; std::fabs(term) > kEpsilon * std::fabs(sum) * 0.1 && n < 60; n++) {
    term *= -x / n;
    sum += term / (a + n);
  }
  return -std::expm1(log_u) - std::exp(log_u) * a * sum;
}
// Q for large a: DLMF 8.12.4 with the first coefficient of 8.12.7.
double upper_uniform(double a, double x) {
  const double mu = (x - a) / a, eta = std::copysign(std::sqrt(2 * (mu - std::log1p(mu))), mu);
  const double c0 = std::fabs(mu) < 1e-3 ? -1.0 / 3 + mu / 12 : 1 / mu - 1 / eta;
  return 0.5 * std::erfc(eta * std::sqrt(a / 2)) + std::exp(-0.5 * a * eta * eta) / std::sqrt(2 * kPi * a) * c0;
}
double lower_or_upper(double a, double x, bool upper) {
  if (x < 0 || a < 0) return kNaN;
  if (a == 0) return x > 0 ? !upper : kNaN;
  if (x == 0) return upper;
  if (std::isinf(a)) return std::isinf(x) ? kNaN : upper;
  if (std::isinf(x)) return !upper;
  if (x != x || a != a) return kNaN;
  if (a > 1e7) {
    const double q = upper_uniform(a, x);
    return upper ? q : 1 - q;
  }
  if (x > a + 1) {
    const double q = upper_fraction(a, x);
    return upper ? q : 1 - q;
  }
  if (upper && a < 1 && x <= 1) return upper_small(a, x);
  const double p = lower_series(a, x);
  return upper ? 1 - p : p;
}

// Hurwitz's zeta for q > 0 by Euler's and Maclaurin's formula, DLMF 25.11.28.
double zeta_positive(double s, double q) {
  double sum = 0, at = q;
  for (; at < 12; at++) sum += std::pow(at, -s);
  const double power = std::pow(at, -s);
  sum += power * at / (s - 1) + power / 2;
  double factor = s * power / at;  // s (s+1) ... (s+2k-2) at^(-s-2k+1) / (2k)!, times 2 for k = 1
  for (int k = 1; k <= kTerms; k++) {
    if (k == 1)
      factor /= 2;
    else
      factor *= (s + 2 * k - 3) * (s + 2 * k - 2) / ((2 * k - 1) * (2 * k) * at * at);
    sum += kBernoulli[k - 1] * factor;
  }
  return sum;
}

}  // namespace

double lgamma(double x) {
  int sign;
  return ::lgamma_r(x, &sign);
}

double erfinv(double y) {
  const double a = std::fabs(y);
  if (!(a < 1)) return a == 1 ? std::copysign(kInf, y) : kNaN;
  double x;
  if (a < 1e-3) {
    x = a * std::sqrt(kPi) / 2;
  } else {  // Winitzki's approximation, good to 2e-3
    const double l = std::log1p(-a * a), t = 2 / (kPi * 0.147) + l / 2;
    x = std::sqrt(std::sqrt(t * t - l / 0.147) - t);
  }
  for (int k = 0; k < 3 && x > 0; k++) {  // Halley's steps; near 1 on erfc, where the difference is exact
    const double error = a < 0.5 ? std::erf(x) - a : (1 - a) - std::erfc(x);
    const double u = error * std::sqrt(kPi) / 2 * std::exp(x * x);
    x -= u / (1 + x * u);
  }
  return std::copysign(x, y);
}

double digamma(double x) {
  if (x == 0) return std::copysign(kInf, -x);
  double rest = 0;
  if (x < 0) {
    if (x == std::trunc(x)) return kNaN;
    const double fraction = x - std::floor(x);
    rest = -kPi / std::tan(kPi * fraction);  // DLMF 5.5.4
    x = 1 - x;
  }
  for (; x < 12; x++) rest -= 1 / x;
  double sum = 0, power = 1 / (x * x);
  for (int k = 1; k <= kTerms; k++, power /= x * x) sum += kBernoulli[k - 1] / (2 * k) * power;  // DLMF 5.11.2
  return rest + std::log(x) - 0.5 / x - sum;
}

double igamma(double a, double x) { return lower_or_upper(a, x, false); }
double igammac(double a, double x) { return lower_or_upper(a, x, true); }

double zeta(double s, double q) {
  if (s == 1) return kInf;
  if (s < 1) return kNaN;
  if (q <= 0 && q == std::floor(q)) return kInf;
  if (s != s || q != q || std::isinf(q)) return kNaN;
  if (std::isinf(s)) return q == 1 ? 1 : q > 1 || q < 0 ? kNaN : kInf;
  if (q > 0) return zeta_positive(s, q);
  if (s != std::floor(s)) return kNaN;
  // The terms of negative q + k are those of two other series, (j - r)^-s with the sign of an odd s.
  const double r = q - std::floor(q), steps = -std::floor(q);
  const double below = zeta_positive(s, 1 - r) - zeta_positive(s, steps + 1 - r);
  return zeta_positive(s, r) + (std::fmod(s, 2) != 0 ? -below : below);
}

}  // namespace math
}  // namespace npu
