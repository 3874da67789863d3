// scalar_core.cpp: the scalar core, which computes float64: one plain functor per opcode, on double.
//
// Contract: npu_v3_unary and npu_v3_binary check the arguments and bring the blocks, as for the vector unit; here are
// the functors, and an opcode without one does not take float64. The arithmetic is IEEE double's, nothing is fused, and
// the functions are those of the C library. In SIGN a NaN gives 0, in MAX and MIN it wins, as in the vector unit.
// The core works on one element after the other. That the simulator may spread a long command over its threads shows
// neither in the results nor in device time.
#include <cmath>

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
BINARY_OP(Eq, uint8_t, a == b)
BINARY_OP(Ne, uint8_t, a != b)
BINARY_OP(Lt, uint8_t, a < b)
BINARY_OP(Le, uint8_t, a <= b)
BINARY_OP(Gt, uint8_t, a > b)
BINARY_OP(Ge, uint8_t, a >= b)

}  // namespace

Kernel scalar_unary(int32_t opcode) {
  switch (opcode) {
    case NPU_UNARY_NEG:
      return unary<Neg, double>;
    case NPU_UNARY_ABS:
      return unary<Abs, double>;
    case NPU_UNARY_EXP:
      return unary<Exp, double>;
    case NPU_UNARY_EXPM1:
      return unary<Expm1, double>;
    case NPU_UNARY_LOG:
      return unary<Log, double>;
    case NPU_UNARY_LOG1P:
      return unary<Log1p, double>;
    case NPU_UNARY_SQRT:
      return unary<Sqrt, double>;
    case NPU_UNARY_RSQRT:
      return unary<Rsqrt, double>;
    case NPU_UNARY_RECIPROCAL:
      return unary<Reciprocal, double>;
    case NPU_UNARY_SIN:
      return unary<Sin, double>;
    case NPU_UNARY_COS:
      return unary<Cos, double>;
    case NPU_UNARY_TANH:
      return unary<Tanh, double>;
    case NPU_UNARY_ERF:
      return unary<Erf, double>;
    case NPU_UNARY_FLOOR:
      return unary<Floor, double>;
    case NPU_UNARY_CEIL:
      return unary<Ceil, double>;
    case NPU_UNARY_ROUND:
      return unary<Round, double>;
    case NPU_UNARY_TRUNC:
      return unary<Trunc, double>;
    case NPU_UNARY_SIGN:
      return unary<Sign, double>;
    case NPU_UNARY_ISNAN:
      return unary<IsNan, uint8_t>;
    case NPU_UNARY_ISFINITE:
      return unary<IsFinite, uint8_t>;
    case NPU_UNARY_LOGICAL_NOT:
      return unary<LogicalNot, uint8_t>;
    default:
      return nullptr;
  }
}

Kernel scalar_binary(int32_t opcode) {
  switch (opcode) {
    case NPU_BINARY_ADD:
      return binary<Add, double>;
    case NPU_BINARY_SUB:
      return binary<Sub, double>;
    case NPU_BINARY_MUL:
      return binary<Mul, double>;
    case NPU_BINARY_DIV:
      return binary<Div, double>;
    case NPU_BINARY_MAX:
      return binary<Max, double>;
    case NPU_BINARY_MIN:
      return binary<Min, double>;
    case NPU_BINARY_EQ:
      return binary<Eq, uint8_t>;
    case NPU_BINARY_NE:
      return binary<Ne, uint8_t>;
    case NPU_BINARY_LT:
      return binary<Lt, uint8_t>;
    case NPU_BINARY_LE:
      return binary<Le, uint8_t>;
    case NPU_BINARY_GT:
      return binary<Gt, uint8_t>;
    case NPU_BINARY_GE:
      return binary<Ge, uint8_t>;
    default:
      return nullptr;
  }
}

}  // namespace npu
