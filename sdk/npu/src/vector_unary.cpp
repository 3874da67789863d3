// vector_unary.cpp: npu_v3_unary: one functor per opcode, on float32 and/or int64, over the loops of vector.h.
//
// Contract: the header's. An opcode without an integer functor refuses integers with NPU_STATUS_NOT_SUPPORTED; the
// functors on float64 are the scalar core's.
// BOOL takes part as 0 and 1, where the result of the opcode on them is a truth value or the value itself.
#include "special.h"
#include "vector_math.h"

namespace npu {
namespace {

// An element type R for results on elements of type T; params are copied so that stores cannot alias them.
template <class Op, class T, class R>
struct UnaryBody {
  NPU_INLINE static void run(const void* a_, const void*, const void*, void* o_, int64_t n, const Params* params) {
    const T* a = static_cast<const T*>(a_);
    R* o = static_cast<R*>(o_);
    const Params p = *params;
    NPU_IVDEP for (int64_t i = 0; i < n; i++) o[i] = static_cast<R>(Op::f(a[i], p));
  }
};

#define FLOAT_OP(Name, expression)                        \
  struct Name {                                           \
    NPU_INLINE static float f(float x, const Params& p) { \
      (void)p;                                            \
      return static_cast<float>(expression);              \
    }                                                     \
  };
#define ANY_OP(Name, Result, expression)               \
  struct Name {                                        \
    template <class T>                                 \
    NPU_INLINE static Result f(T x, const Params& p) { \
      (void)p;                                         \
      (void)x;                                         \
      return static_cast<Result>(expression);          \
    }                                                  \
  };

NPU_INLINE float negated(float x) { return -x; }
NPU_INLINE int64_t negated(int64_t x) { return static_cast<int64_t>(0 - static_cast<uint64_t>(x)); }
NPU_INLINE float magnitude(float x) { return __builtin_fabsf(x); }
NPU_INLINE int64_t magnitude(int64_t x) { return x < 0 ? negated(x) : x; }
NPU_INLINE bool finite(float x) { return __builtin_fabsf(x) < __builtin_inff(); }
NPU_INLINE bool finite(int64_t) { return true; }
NPU_INLINE float low(float, const Params& p) { return p.f0; }
NPU_INLINE float high(float, const Params& p) { return p.f1; }
NPU_INLINE int64_t low(int64_t, const Params& p) { return p.i0; }
NPU_INLINE int64_t high(int64_t, const Params& p) { return p.i1; }
// A comparison with NaN is false, so a NaN in x stays.
template <class T>
NPU_INLINE T clamped(T x, T least, T most) {
  const T raised = ((x < least) | (least != least)) ? least : x;
  return ((raised > most) | (most != most)) ? most : raised;
}

ANY_OP(Neg, T, negated(x))
ANY_OP(Abs, T, magnitude(x))
ANY_OP(Relu, T, x < 0 ? T(0) : x)
ANY_OP(Sign, T, T(x > 0) - T(x < 0))
ANY_OP(Same, T, x)
ANY_OP(Clamp, T, clamped(x, low(x, p), high(x, p)))
ANY_OP(IsNan, uint8_t, x != x)
ANY_OP(IsFinite, uint8_t, finite(x))
ANY_OP(LogicalNot, uint8_t, x == 0)
struct BitwiseNot {
  NPU_INLINE static int64_t f(int64_t x, const Params&) { return ~x; }
};
FLOAT_OP(Exp, math::exp(x))
FLOAT_OP(Expm1, math::expm1(x))
FLOAT_OP(Log, math::log(x))
FLOAT_OP(Log1p, math::log1p(x))
FLOAT_OP(Sqrt, __builtin_sqrtf(x))
FLOAT_OP(Rsqrt, 1.0 / __builtin_sqrt(static_cast<double>(x)))
FLOAT_OP(Reciprocal, 1.0f / x)
FLOAT_OP(Sin, __builtin_sinf(x))
FLOAT_OP(Cos, __builtin_cosf(x))
FLOAT_OP(Tanh, math::tanh(x))
FLOAT_OP(Erf, math::erf(x))
FLOAT_OP(Sigmoid, math::sigmoid(x))
FLOAT_OP(Gelu, math::gelu(x))
FLOAT_OP(GeluTanh, math::gelu_tanh(x))
FLOAT_OP(Silu, math::silu(x))
FLOAT_OP(Floor, __builtin_floorf(x))
FLOAT_OP(Ceil, __builtin_ceilf(x))
FLOAT_OP(Round, __builtin_rintf(x))
FLOAT_OP(Trunc, __builtin_truncf(x))
FLOAT_OP(Exp2, math::exp(x * 0.693147180559945309417))
FLOAT_OP(Log2, math::log(x) * 1.44269504088896340736)
FLOAT_OP(Log10, math::log(x) * 0.434294481903251827651)
FLOAT_OP(Tan, __builtin_tan(x))
FLOAT_OP(Asin, __builtin_asin(x))
FLOAT_OP(Acos, __builtin_acos(x))
FLOAT_OP(Atan, __builtin_atan(x))
FLOAT_OP(Sinh, math::sinh(x))
FLOAT_OP(Cosh, math::cosh(x))
FLOAT_OP(Asinh, math::asinh(x))
FLOAT_OP(Acosh, math::acosh(x))
FLOAT_OP(Atanh, math::atanh(x))
FLOAT_OP(Erfc, math::erfc(x))
FLOAT_OP(Erfinv, math::erfinv(x))
FLOAT_OP(Lgamma, math::lgamma(x))
FLOAT_OP(Digamma, math::digamma(x))
FLOAT_OP(LeakyRelu, x > 0 ? x : x * p.f0)

struct Entry {
  Kernel on_float = nullptr, on_int = nullptr;
  uint32_t dtypes = 0;  // of x
  bool to_bool = false;
  double flops = 1;  // for the clock
  const char* name = nullptr;
};

template <class Op>
Entry float_entry(const char* name, double flops) {
  return {kernel<UnaryBody<Op, float, float>>(), nullptr, kFloats, false, flops, name};
}
template <class Op, class IntOp = Op>
Entry numeric_entry(const char* name, uint32_t dtypes) {
  return {kernel<UnaryBody<Op, float, float>>(), kernel<UnaryBody<IntOp, int64_t, int64_t>>(), dtypes, false, 1, name};
}
template <class Op>
Entry truth_entry(const char* name) {
  return {
      kernel<UnaryBody<Op, float, uint8_t>>(), kernel<UnaryBody<Op, int64_t, uint8_t>>(), kAnyCompute, true, 1, name};
}

struct Table {
  Entry at[NPU_UNARY_DIGAMMA + 1];
  Table() {
    constexpr uint32_t kNumbers = kFloats | kInts;
    at[NPU_UNARY_NEG] = numeric_entry<Neg>("NEG", kNumbers);
    at[NPU_UNARY_ABS] = numeric_entry<Abs>("ABS", kAnyCompute);
    at[NPU_UNARY_EXP] = float_entry<Exp>("EXP", 8);
    at[NPU_UNARY_EXPM1] = float_entry<Expm1>("EXPM1", 8);
    at[NPU_UNARY_LOG] = float_entry<Log>("LOG", 8);
    at[NPU_UNARY_LOG1P] = float_entry<Log1p>("LOG1P", 8);
    at[NPU_UNARY_SQRT] = float_entry<Sqrt>("SQRT", 4);
    at[NPU_UNARY_RSQRT] = float_entry<Rsqrt>("RSQRT", 4);
    at[NPU_UNARY_RECIPROCAL] = float_entry<Reciprocal>("RECIPROCAL", 4);
    at[NPU_UNARY_SIN] = float_entry<Sin>("SIN", 12);
    at[NPU_UNARY_COS] = float_entry<Cos>("COS", 12);
    at[NPU_UNARY_TANH] = float_entry<Tanh>("TANH", 10);
    at[NPU_UNARY_ERF] = float_entry<Erf>("ERF", 14);
    at[NPU_UNARY_SIGMOID] = float_entry<Sigmoid>("SIGMOID", 10);
    at[NPU_UNARY_RELU] = numeric_entry<Relu>("RELU", kNumbers);
    at[NPU_UNARY_GELU] = float_entry<Gelu>("GELU", 16);
    at[NPU_UNARY_GELU_TANH] = float_entry<GeluTanh>("GELU_TANH", 16);
    at[NPU_UNARY_SILU] = float_entry<Silu>("SILU", 10);
    at[NPU_UNARY_FLOOR] = numeric_entry<Floor, Same>("FLOOR", kNumbers);
    at[NPU_UNARY_CEIL] = numeric_entry<Ceil, Same>("CEIL", kNumbers);
    at[NPU_UNARY_ROUND] = numeric_entry<Round, Same>("ROUND", kNumbers);
    at[NPU_UNARY_TRUNC] = numeric_entry<Trunc, Same>("TRUNC", kNumbers);
    at[NPU_UNARY_SIGN] = numeric_entry<Sign>("SIGN", kAnyCompute);
    at[NPU_UNARY_ISNAN] = truth_entry<IsNan>("ISNAN");
    at[NPU_UNARY_LOGICAL_NOT] = truth_entry<LogicalNot>("LOGICAL_NOT");
    at[NPU_UNARY_BITWISE_NOT] = {
        nullptr, kernel<UnaryBody<BitwiseNot, int64_t, int64_t>>(), kInts | mask(NPU_BOOL), false, 1, "BITWISE_NOT"};
    at[NPU_UNARY_LEAKY_RELU] = float_entry<LeakyRelu>("LEAKY_RELU", 2);
    at[NPU_UNARY_CLAMP] = numeric_entry<Clamp>("CLAMP", kNumbers);
    at[NPU_UNARY_ISFINITE] = truth_entry<IsFinite>("ISFINITE");
    at[NPU_UNARY_EXP2] = float_entry<Exp2>("EXP2", 8);
    at[NPU_UNARY_LOG2] = float_entry<Log2>("LOG2", 8);
    at[NPU_UNARY_LOG10] = float_entry<Log10>("LOG10", 8);
    at[NPU_UNARY_TAN] = float_entry<Tan>("TAN", 16);
    at[NPU_UNARY_ASIN] = float_entry<Asin>("ASIN", 12);
    at[NPU_UNARY_ACOS] = float_entry<Acos>("ACOS", 12);
    at[NPU_UNARY_ATAN] = float_entry<Atan>("ATAN", 12);
    at[NPU_UNARY_SINH] = float_entry<Sinh>("SINH", 12);
    at[NPU_UNARY_COSH] = float_entry<Cosh>("COSH", 12);
    at[NPU_UNARY_ASINH] = float_entry<Asinh>("ASINH", 14);
    at[NPU_UNARY_ACOSH] = float_entry<Acosh>("ACOSH", 14);
    at[NPU_UNARY_ATANH] = float_entry<Atanh>("ATANH", 14);
    at[NPU_UNARY_ERFC] = float_entry<Erfc>("ERFC", 14);
    at[NPU_UNARY_ERFINV] = float_entry<Erfinv>("ERFINV", 20);
    at[NPU_UNARY_LGAMMA] = float_entry<Lgamma>("LGAMMA", 20);
    at[NPU_UNARY_DIGAMMA] = float_entry<Digamma>("DIGAMMA", 20);
  }
};
const Table& table() {
  static const Table t;
  return t;
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_unary(npu_stream_t stream, int32_t opcode, const npu_tensor_t* x, npu_scalar_t p0,
                                     npu_scalar_t p1, const npu_tensor_t* out) {
  static const char fn[] = "npu_v3_unary";
  if (opcode < 1 || opcode > NPU_UNARY_DIGAMMA)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: opcode %d is unknown, expected NPU_UNARY_NEG (%d) to DIGAMMA (%d)", fn,
                opcode, NPU_UNARY_NEG, NPU_UNARY_DIGAMMA);
  const Entry& entry = table().at[opcode];
  Unset room[2];
  View &vx = room[0].view, &vo = room[1].view;
  NPU_TRY(resolve(stream, x, kAll, Engine::compute, false, fn, "x", &vx));
  const Kernel on_double = vx.dtype == NPU_FLOAT64 ? scalar_unary(opcode) : nullptr;
  if (!(entry.dtypes & mask(vx.dtype)) && !on_double)
    return fail(NPU_STATUS_NOT_SUPPORTED, "%s: NPU_UNARY_%s does not take %s for x", fn, entry.name,
                dtype_text(vx.dtype));
  NPU_TRY(resolve(stream, out, kAll, Engine::compute, false, fn, "out", &vo));
  NPU_TRY(same_dtype(fn, "out", vo, entry.to_bool ? NPU_BOOL : vx.dtype));
  NPU_TRY(same_shape(fn, "x", vx, vo));
  NPU_TRY(writable(fn, "out", vo));

  Program program;
  const View* views[2] = {&vo, &vx};
  collapse(views, 2, true, ~0u, &program.loop, program.operand);
  const double n = static_cast<double>(program.loop.n);
  if (program.loop.n == 0) return NPU_STATUS_SUCCESS;
  program.inputs = 1;
  program.in = compute_of(vx.dtype);
  program.out = entry.to_bool ? Compute::raw : program.in;
  program.run = on_double ? on_double : program.in == Compute::f32 ? entry.on_float : entry.on_int;
  // ~1 is -2, which is true: on BOOL the bits to invert are those of a truth value.
  if (opcode == NPU_UNARY_BITWISE_NOT && vx.dtype == NPU_BOOL) {
    program.run = table().at[NPU_UNARY_LOGICAL_NOT].on_int;
    program.out = Compute::raw;
  }
  program.params.f0 = static_cast<float>(scalar_double(p0));
  program.params.f1 = static_cast<float>(scalar_double(p1));
  program.params.i0 = scalar_int(p0);
  program.params.i1 = scalar_int(p1);
  const double bytes = n * (program.operand[0].size + program.operand[1].size);
  const Work work = on_double ? Work{n, 0, vx.dtype, Work::scalar} : Work{n * entry.flops, bytes, vx.dtype};
  return submit_program(stream, fn, cycles(stream, work), program, [](int32_t) {});
}
