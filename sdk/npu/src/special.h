// special.h: special functions of the vector unit and the scalar core, in double.
//
// Contract. Relative error some 1e-14 where the function is not near a zero, 1e-13 for the incomplete gamma functions
// (for a beyond 1e7: 1e-7, by the leading terms of their uniform expansion). Poles, infinities and NaN as PyTorch has
// them. No global state: all may run on any thread.
#pragma once

namespace npu {
namespace math {

double erfinv(double y);             // NaN beyond [-1, 1]
double lgamma(double x);             // log |gamma(x)|
double digamma(double x);            // -inf for 0, inf for -0, NaN for the other poles
double igamma(double a, double x);   // P(a, x) = integral of t^(a-1) e^-t from 0 to x, over gamma(a)
double igammac(double a, double x);  // 1 - P(a, x), accurate where it is small
double zeta(double s, double q);     // sum of (q + k)^-s for k >= 0

}  // namespace math
}  // namespace npu
