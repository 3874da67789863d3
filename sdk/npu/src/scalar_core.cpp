// scalar_core.cpp: the scalar core, which computes float64: one plain functor per opcode, on double.
//
// Contract: npu_v3_unary and npu_v3_binary check the arguments and bring the blocks, as for the vector unit; here are
// the functors, and an opcode without one does not take float64. The arithmetic is IEEE double's, nothing is fused, and
// the functions are those of the C library. In SIGN a NaN gives 0, in MAX and MIN it wins, as in the vector unit.
// The core works on one element after the other. That the simulator may spread a long command over its threads shows
// neither in the results nor in device time.
#include <cmath>

#include "special.h"
#include "vector.h"

namespace npu {
namespace {

template <class Op, class R>
void unary(const void* x_, const void*, const void*, void* out_, int64_t n, const Params*) {
  const double* x = static_cast<const double*>(x_);
  R* out = static_cast<R*>(out_);
  for (int64_t i = 0; i < n; i++) out[i] = Op::f(x[i]);
}
template <class Op, class R>
void binary(const void* a_, const void* b_, const void*, void* out_, int64_t n, const Params* params) {
  const double* a = static_cast<const double*>(a_);
  const double* b = static_cast<const double*>(b_);
  R* out = static_cast<R*>(out_);
  double alpha;
  std::memcpy(&alpha, &params->i0, sizeof(alpha));
  for (int64_t i = 0; i < n; i++) out[i] = Op::f(a[i], b[i], alpha);
}

#define UNARY_OP(Name, Result, expression)           \
  struct Name {                                      \
    static Result f(double x) { return expression; } \
  };
#define BINARY_OP(Name, Result, expression)             \
  struct Name {                                         \
    static Result f(double a, double b, double alpha) { \
      (void)alpha;                                      \
      return expression;                                \
    }                                                   \
  };

double python_remainder(double a, double b) {
  const double m = std::fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}

UNARY_OP(Neg, double, -x)
UNARY_OP(Abs, double, std::fabs(x))
UNARY_OP(Exp, double, std::exp(x))
UNARY_OP(Expm1, double, std::expm1(x))
UNARY_OP(Log, double, std::log(x))
UNARY_OP(Log1p, double, std::log1p(x))
UNARY_OP(Sqrt, double, std::sqrt(x))
UNARY_OP(Rsqrt, double, 1 / std::sqrt(x))
UNARY_OP(Reciprocal, double, 1 / x)
UNARY_OP(Sin, double, std::sin(x))
UNARY_OP(Cos, double, std::cos(x))
UNARY_OP(Tanh, double, std::tanh(x))
UNARY_OP(Erf, double, std::erf(x))
UNARY_OP(Exp2, double, std::exp2(x))
UNARY_OP(Log2, double, std::log2(x))
UNARY_OP(Log10, double, std::log10(x))
UNARY_OP(Tan, double, std::tan(x))
UNARY_OP(Asin, double, std::asin(x))
UNARY_OP(Acos, double, std::acos(x))
UNARY_OP(Atan, double, std::atan(x))
UNARY_OP(Sinh, double, std::sinh(x))
UNARY_OP(Cosh, double, std::cosh(x))
UNARY_OP(Asinh, double, std::asinh(x))
UNARY_OP(Acosh, double, std::acosh(x))
UNARY_OP(Atanh, double, std::atanh(x))
UNARY_OP(Erfc, double, std::erfc(x))
UNARY_OP(Erfinv, double, math::erfinv(x))
UNARY_OP(Lgamma, double, math::lgamma(x))
UNARY_OP(Digamma, double, math::digamma(x))
UNARY_OP(Floor, double, std::floor(x))
UNARY_OP(Ceil, double, std::ceil(x))
UNARY_OP(Round, double, std::nearbyint(x))
UNARY_OP(Trunc, double, std::trunc(x))
UNARY_OP(Sign, double, double(x > 0) - double(x < 0))
UNARY_OP(IsNan, uint8_t, x != x)
UNARY_OP(IsFinite, uint8_t, std::fabs(x) < __builtin_inf())
UNARY_OP(LogicalNot, uint8_t, x == 0)

BINARY_OP(Add, double, a + alpha * b)
BINARY_OP(Sub, double, a - alpha * b)
BINARY_OP(Mul, double, a* b)
BINARY_OP(Div, double, a / b)
BINARY_OP(Max, double, a > b || a != a ? a : b)
BINARY_OP(Min, double, a < b || a != a ? a : b)
BINARY_OP(Remainder, double, python_remainder(a, b))
BINARY_OP(Fmod, double, std::fmod(a, b))
BINARY_OP(Pow, double, std::pow(a, b))
BINARY_OP(Atan2, double, std::atan2(a, b))
BINARY_OP(Copysign, double, std::copysign(a, b))
BINARY_OP(Igamma, double, math::igamma(a, b))
BINARY_OP(Igammac, double, math::igammac(a, b))
BINARY_OP(Zeta, double, math::zeta(a, b))
BINARY_OP(Eq, uint8_t, a == b)
BINARY_OP(Ne, uint8_t, a != b)
BINARY_OP(Lt, uint8_t, a < b)
BINARY_OP(Le, uint8_t, a <= b)
BINARY_OP(Gt, uint8_t, a > b)
BINARY_OP(Ge, uint8_t, a >= b)

// By opcode.
template <int kSize>
struct Table {
  Kernel at[kSize] = {};
};

Table<NPU_UNARY_DIGAMMA + 1> unary_table() {
  Table<NPU_UNARY_DIGAMMA + 1> t;
  t.at[NPU_UNARY_NEG] = unary<Neg, double>;
  t.at[NPU_UNARY_ABS] = unary<Abs, double>;
  t.at[NPU_UNARY_EXP] = unary<Exp, double>;
  t.at[NPU_UNARY_EXPM1] = unary<Expm1, double>;
  t.at[NPU_UNARY_LOG] = unary<Log, double>;
  t.at[NPU_UNARY_LOG1P] = unary<Log1p, double>;
  t.at[NPU_UNARY_SQRT] = unary<Sqrt, double>;
  t.at[NPU_UNARY_RSQRT] = unary<Rsqrt, double>;
  t.at[NPU_UNARY_RECIPROCAL] = unary<Reciprocal, double>;
  t.at[NPU_UNARY_SIN] = unary<Sin, double>;
  t.at[NPU_UNARY_COS] = unary<Cos, double>;
  t.at[NPU_UNARY_TANH] = unary<Tanh, double>;
  t.at[NPU_UNARY_ERF] = unary<Erf, double>;
  t.at[NPU_UNARY_FLOOR] = unary<Floor, double>;
  t.at[NPU_UNARY_CEIL] = unary<Ceil, double>;
  t.at[NPU_UNARY_ROUND] = unary<Round, double>;
  t.at[NPU_UNARY_TRUNC] = unary<Trunc, double>;
  t.at[NPU_UNARY_SIGN] = unary<Sign, double>;
  t.at[NPU_UNARY_EXP2] = unary<Exp2, double>;
  t.at[NPU_UNARY_LOG2] = unary<Log2, double>;
  t.at[NPU_UNARY_LOG10] = unary<Log10, double>;
  t.at[NPU_UNARY_TAN] = unary<Tan, double>;
  t.at[NPU_UNARY_ASIN] = unary<Asin, double>;
  t.at[NPU_UNARY_ACOS] = unary<Acos, double>;
  t.at[NPU_UNARY_ATAN] = unary<Atan, double>;
  t.at[NPU_UNARY_SINH] = unary<Sinh, double>;
  t.at[NPU_UNARY_COSH] = unary<Cosh, double>;
  t.at[NPU_UNARY_ASINH] = unary<Asinh, double>;
  t.at[NPU_UNARY_ACOSH] = unary<Acosh, double>;
  t.at[NPU_UNARY_ATANH] = unary<Atanh, double>;
  t.at[NPU_UNARY_ERFC] = unary<Erfc, double>;
  t.at[NPU_UNARY_ERFINV] = unary<Erfinv, double>;
  t.at[NPU_UNARY_LGAMMA] = unary<Lgamma, double>;
  t.at[NPU_UNARY_DIGAMMA] = unary<Digamma, double>;
  t.at[NPU_UNARY_ISNAN] = unary<IsNan, uint8_t>;
  t.at[NPU_UNARY_ISFINITE] = unary<IsFinite, uint8_t>;
  t.at[NPU_UNARY_LOGICAL_NOT] = unary<LogicalNot, uint8_t>;
  return t;
}

Table<NPU_BINARY_ZETA + 1> binary_table() {
  Table<NPU_BINARY_ZETA + 1> t;
  t.at[NPU_BINARY_ADD] = binary<Add, double>;
  t.at[NPU_BINARY_SUB] = binary<Sub, double>;
  t.at[NPU_BINARY_MUL] = binary<Mul, double>;
  t.at[NPU_BINARY_DIV] = binary<Div, double>;
  t.at[NPU_BINARY_MAX] = binary<Max, double>;
  t.at[NPU_BINARY_MIN] = binary<Min, double>;
  t.at[NPU_BINARY_REMAINDER] = binary<Remainder, double>;
  t.at[NPU_BINARY_FMOD] = binary<Fmod, double>;
  t.at[NPU_BINARY_POW] = binary<Pow, double>;
  t.at[NPU_BINARY_ATAN2] = binary<Atan2, double>;
  t.at[NPU_BINARY_COPYSIGN] = binary<Copysign, double>;
  t.at[NPU_BINARY_IGAMMA] = binary<Igamma, double>;
  t.at[NPU_BINARY_IGAMMAC] = binary<Igammac, double>;
  t.at[NPU_BINARY_ZETA] = binary<Zeta, double>;
  t.at[NPU_BINARY_EQ] = binary<Eq, uint8_t>;
  t.at[NPU_BINARY_NE] = binary<Ne, uint8_t>;
  t.at[NPU_BINARY_LT] = binary<Lt, uint8_t>;
  t.at[NPU_BINARY_LE] = binary<Le, uint8_t>;
  t.at[NPU_BINARY_GT] = binary<Gt, uint8_t>;
  t.at[NPU_BINARY_GE] = binary<Ge, uint8_t>;
  return t;
}

}  // namespace

Kernel scalar_unary(int32_t opcode) {
  static const auto table = unary_table();
  return table.at[opcode];
}

Kernel scalar_binary(int32_t opcode) {
  static const auto table = binary_table();
  return table.at[opcode];
}

}  // namespace npu
