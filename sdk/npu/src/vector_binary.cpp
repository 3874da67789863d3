// vector_binary.cpp: npu_v3_binary: arithmetic, comparisons, logic and the gradients of activations, one functor per
// opcode, on float32 and/or int64, over the loops of vector.h. The functors on float64 are the scalar core's.
//
// Contract: the header's, and: a scalar operand is rounded to the operation's own type: float32 (for comparisons, MAX
// and MIN to the tensors' dtype, as PyTorch does), float64, and for integers and BOOL to the tensors' dtype, where it
// wraps around. Integer division by zero gives NPU_STATUS_EXECUTION_FAILED at the next synchronise and writes 0; the
// least integer divided by -1 wraps around. BOOL: ADD is or, MUL is and; SUB and the divisions refuse it.
#include "special.h"
#include "vector_math.h"

namespace npu {
namespace {

template <class Op, class T, class R>
struct BinaryBody {
  NPU_INLINE static void run(const void* a_, const void* b_, const void*, void* o_, int64_t n, const Params* params) {
    const T* a = static_cast<const T*>(a_);
    const T* b = static_cast<const T*>(b_);
    R* o = static_cast<R*>(o_);
    const Params p = *params;
    NPU_IVDEP for (int64_t i = 0; i < n; i++) o[i] = static_cast<R>(Op::f(a[i], b[i], p));
  }
};
// Divisions of integers: the CPU would trap on what the device reports.
template <class Op>
struct DivisionBody {
  NPU_INLINE static void run(const void* a_, const void* b_, const void*, void* o_, int64_t n, const Params* params) {
    const int64_t* a = static_cast<const int64_t*>(a_);
    const int64_t* b = static_cast<const int64_t*>(b_);
    int64_t* o = static_cast<int64_t*>(o_);
    bool zero = false;
    for (int64_t i = 0; i < n; i++) {
      const int64_t x = a[i], y = b[i];
      zero |= y == 0;
      // x / -1 and x % -1 without the division that overflows for the least integer
      o[i] = y == 0 ? 0 : y == -1 ? Op::minus_one(x) : Op::f(x, y);
    }
    if (zero) __atomic_store_n(params->flag, 1, __ATOMIC_RELAXED);
  }
};

#define BINARY_OP(Name, T, Result, expression)              \
  struct Name {                                             \
    NPU_INLINE static Result f(T a, T b, const Params& p) { \
      (void)b;                                              \
      (void)p;                                              \
      return static_cast<Result>(expression);               \
    }                                                       \
  };
#define ANY_OP(Name, Result, expression)                    \
  struct Name {                                             \
    template <class T>                                      \
    NPU_INLINE static Result f(T a, T b, const Params& p) { \
      (void)p;                                              \
      return static_cast<Result>(expression);               \
    }                                                       \
  };
#define DIVISION_OP(Name, expression, by_minus_one)                          \
  struct Name {                                                              \
    NPU_INLINE static int64_t f(int64_t a, int64_t b) { return expression; } \
    NPU_INLINE static int64_t minus_one(int64_t a) {                         \
      (void)a;                                                               \
      return by_minus_one;                                                   \
    }                                                                        \
  };

NPU_INLINE uint64_t u(int64_t x) { return static_cast<uint64_t>(x); }
NPU_INLINE float python_remainder(float a, float b) {
  const float m = __builtin_fmodf(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
// The floor of the exact quotient, as Python: from the remainder, because a/b itself may round up to an integer.
NPU_INLINE float floor_quotient(float a, float b) {
  if (b == 0) return a / b;
  const float m = __builtin_fmodf(a, b);
  float q = (a - m) / b;
  if (m != 0 && (b < 0) != (m < 0)) q -= 1;
  if (q == 0) return __builtin_copysignf(0.0f, a / b);
  const float whole = __builtin_floorf(q);
  return q - whole > 0.5f ? whole + 1 : whole;
}
NPU_INLINE int64_t int_power(int64_t base, int64_t exponent) {
  if (exponent < 0) return base == 1 ? 1 : base == -1 ? (exponent & 1 ? -1 : 1) : 0;
  uint64_t result = 1, square = u(base);
  for (; exponent; exponent >>= 1, square *= square)
    if (exponent & 1) result *= square;
  return static_cast<int64_t>(result);
}

NPU_INLINE int64_t int_gcd(int64_t a, int64_t b) {
  uint64_t x = a < 0 ? 0 - u(a) : u(a), y = b < 0 ? 0 - u(b) : u(b);
  while (y) {
    const uint64_t rest = x % y;
    x = y;
    y = rest;
  }
  return static_cast<int64_t>(x);
}
// The neighbour of `a` towards `b`, on the bits of a floating format whose infinity has the bits kInf: magnitudes are
// ordered as their bits are.
template <class U, U kInf>
struct NextAfterBody {
  NPU_INLINE static void run(const void* a_, const void* b_, const void*, void* o_, int64_t n, const Params*) {
    constexpr U kSign = static_cast<U>(U(1) << (8 * sizeof(U) - 1)), kQuiet = kInf | (kInf >> 1);
    const U* a = static_cast<const U*>(a_);
    const U* b = static_cast<const U*>(b_);
    U* o = static_cast<U*>(o_);
    NPU_IVDEP for (int64_t i = 0; i < n; i++) {
      const U x = a[i], y = b[i], p = x & static_cast<U>(~kSign), q = y & static_cast<U>(~kSign);
      const bool nan = p > kInf || q > kInf, same = x == y || (p | q) == 0;
      // Away from zero if b has the same sign and is farther out.
      const bool outwards = (x & kSign) == (y & kSign) && q > p;
      const U step = static_cast<U>(outwards ? x + 1 : x - 1);
      const U least = static_cast<U>((y & kSign) | 1);
      o[i] = nan ? kQuiet : same ? y : p == 0 ? least : step;
    }
  }
};

BINARY_OP(AddF, float, float, a + p.f0 * b)
BINARY_OP(AddI, int64_t, int64_t, u(a) + u(p.i0) * u(b))
BINARY_OP(SubF, float, float, a - p.f0 * b)
BINARY_OP(SubI, int64_t, int64_t, u(a) - u(p.i0) * u(b))
BINARY_OP(MulF, float, float, a* b)
BINARY_OP(MulI, int64_t, int64_t, u(a) * u(b))
BINARY_OP(DivF, float, float, a / b)
BINARY_OP(DivTruncF, float, float, __builtin_truncf(a / b))
BINARY_OP(DivFloorF, float, float, floor_quotient(a, b))
BINARY_OP(RemainderF, float, float, python_remainder(a, b))
BINARY_OP(FmodF, float, float, __builtin_fmodf(a, b))
DIVISION_OP(DivTruncI, a / b, static_cast<int64_t>(0 - u(a)))
DIVISION_OP(DivFloorI, a / b - (a % b != 0 && (a < 0) != (b < 0)), static_cast<int64_t>(0 - u(a)))
DIVISION_OP(RemainderI, a % b + ((a % b != 0 && (a < 0) != (b < 0)) ? b : 0), 0)
DIVISION_OP(FmodI, a % b, 0)
ANY_OP(Max, T, ((a > b) | (a != a)) ? a : b)
ANY_OP(Min, T, ((a < b) | (a != a)) ? a : b)
BINARY_OP(PowF, float, float, __builtin_powf(a, b))
BINARY_OP(SquareF, float, float, a* a)
BINARY_OP(PowI, int64_t, int64_t, int_power(a, b))
ANY_OP(Eq, uint8_t, a == b)
ANY_OP(Ne, uint8_t, a != b)
ANY_OP(Lt, uint8_t, a < b)
ANY_OP(Le, uint8_t, a <= b)
ANY_OP(Gt, uint8_t, a > b)
ANY_OP(Ge, uint8_t, a >= b)
ANY_OP(LogicalAnd, uint8_t, (a != 0) & (b != 0))
ANY_OP(LogicalOr, uint8_t, (a != 0) | (b != 0))
ANY_OP(LogicalXor, uint8_t, (a != 0) ^ (b != 0))
BINARY_OP(BitwiseAnd, int64_t, int64_t, a& b)
BINARY_OP(BitwiseOr, int64_t, int64_t, a | b)
BINARY_OP(BitwiseXor, int64_t, int64_t, a ^ b)
BINARY_OP(Atan2, float, float, __builtin_atan2f(a, b))
BINARY_OP(CopysignF, float, float, __builtin_copysignf(a, b))
BINARY_OP(ShlI, int64_t, int64_t, u(b) < u(p.i1) ? u(a) << (b & 63) : 0)
BINARY_OP(ShrI, int64_t, int64_t, a >> (u(b) < u(p.i1) ? b & 63 : 63))
BINARY_OP(GcdI, int64_t, int64_t, int_gcd(a, b))
BINARY_OP(IgammaF, float, float, math::igamma(a, b))
BINARY_OP(IgammacF, float, float, math::igammac(a, b))
BINARY_OP(ZetaF, float, float, math::zeta(a, b))
// NaN in the saved tensor lets the gradient through, as PyTorch's threshold does.
BINARY_OP(ReluGrad, float, float, b <= p.f1 ? 0.0f : a)
BINARY_OP(SigmoidGrad, float, float, a * (1 - b) * b)
BINARY_OP(TanhGrad, float, float, a * (1 - b * b))
BINARY_OP(GeluGrad, float, float, a* math::gelu_derivative(b))
BINARY_OP(GeluTanhGrad, float, float, a* math::gelu_tanh_derivative(b))
BINARY_OP(SiluGrad, float, float, a* math::silu_derivative(b))
BINARY_OP(LeakyReluGrad, float, float, b > 0 ? a : a * p.f1)

struct Entry {
  Kernel on_float = nullptr, on_int = nullptr;
  uint32_t dtypes = 0;
  bool to_bool = false;
  bool storage_scalar = false;  // the scalar is rounded to the tensors' dtype first
  double flops = 1;
  const char* name = nullptr;
};

template <class F>
Entry float_entry(const char* name, double flops) {
  return {kernel<BinaryBody<F, float, float>>(), nullptr, kFloats, false, false, flops, name};
}
template <class F, class I>
Entry numeric_entry(const char* name, uint32_t dtypes, double flops = 1) {
  return {kernel<BinaryBody<F, float, float>>(),
          kernel<BinaryBody<I, int64_t, int64_t>>(),
          dtypes,
          false,
          false,
          flops,
          name};
}
template <class F, class I>
Entry division_entry(const char* name) {
  return {kernel<BinaryBody<F, float, float>>(), kernel<DivisionBody<I>>(), kFloats | kInts, false, false, 8, name};
}
template <class Op>
Entry truth_entry(const char* name) {
  return {kernel<BinaryBody<Op, float, uint8_t>>(),
          kernel<BinaryBody<Op, int64_t, uint8_t>>(),
          kAnyCompute,
          true,
          true,
          1,
          name};
}
template <class Op>
Entry bit_entry(const char* name) {
  return {nullptr, kernel<BinaryBody<Op, int64_t, int64_t>>(), kInts | mask(NPU_BOOL), false, false, 1, name};
}

template <class Op>
Entry integer_entry(const char* name, double flops) {
  return {nullptr, kernel<BinaryBody<Op, int64_t, int64_t>>(), kInts, false, false, flops, name};
}

Kernel next_after(int32_t dtype) {
  switch (dtype) {
    case NPU_FLOAT16:
      return kernel<NextAfterBody<uint16_t, 0x7c00>>();
    case NPU_BFLOAT16:
      return kernel<NextAfterBody<uint16_t, 0x7f80>>();
    case NPU_FLOAT32:
      return kernel<NextAfterBody<uint32_t, 0x7f800000>>();
    default:
      return kernel<NextAfterBody<uint64_t, 0x7ff0000000000000>>();
  }
}

struct Table {
  Entry at[NPU_BINARY_ZETA + 1];
  Kernel square = kernel<BinaryBody<SquareF, float, float>>();
  Table() {
    constexpr uint32_t kNumbers = kFloats | kInts;
    at[NPU_BINARY_ADD] = numeric_entry<AddF, AddI>("ADD", kAnyCompute);
    at[NPU_BINARY_SUB] = numeric_entry<SubF, SubI>("SUB", kNumbers);
    at[NPU_BINARY_MUL] = numeric_entry<MulF, MulI>("MUL", kAnyCompute);
    at[NPU_BINARY_DIV] = float_entry<DivF>("DIV", 4);
    at[NPU_BINARY_DIV_TRUNC] = division_entry<DivTruncF, DivTruncI>("DIV_TRUNC");
    at[NPU_BINARY_DIV_FLOOR] = division_entry<DivFloorF, DivFloorI>("DIV_FLOOR");
    at[NPU_BINARY_REMAINDER] = division_entry<RemainderF, RemainderI>("REMAINDER");
    at[NPU_BINARY_FMOD] = division_entry<FmodF, FmodI>("FMOD");
    at[NPU_BINARY_MAX] = numeric_entry<Max, Max>("MAX", kAnyCompute);
    at[NPU_BINARY_MIN] = numeric_entry<Min, Min>("MIN", kAnyCompute);
    at[NPU_BINARY_MAX].storage_scalar = at[NPU_BINARY_MIN].storage_scalar = true;
    at[NPU_BINARY_POW] = numeric_entry<PowF, PowI>("POW", kNumbers, 16);
    at[NPU_BINARY_EQ] = truth_entry<Eq>("EQ");
    at[NPU_BINARY_NE] = truth_entry<Ne>("NE");
    at[NPU_BINARY_LT] = truth_entry<Lt>("LT");
    at[NPU_BINARY_LE] = truth_entry<Le>("LE");
    at[NPU_BINARY_GT] = truth_entry<Gt>("GT");
    at[NPU_BINARY_GE] = truth_entry<Ge>("GE");
    at[NPU_BINARY_LOGICAL_AND] = truth_entry<LogicalAnd>("LOGICAL_AND");
    at[NPU_BINARY_LOGICAL_OR] = truth_entry<LogicalOr>("LOGICAL_OR");
    at[NPU_BINARY_LOGICAL_XOR] = truth_entry<LogicalXor>("LOGICAL_XOR");
    at[NPU_BINARY_BITWISE_AND] = bit_entry<BitwiseAnd>("BITWISE_AND");
    at[NPU_BINARY_BITWISE_OR] = bit_entry<BitwiseOr>("BITWISE_OR");
    at[NPU_BINARY_BITWISE_XOR] = bit_entry<BitwiseXor>("BITWISE_XOR");
    at[NPU_BINARY_ATAN2] = float_entry<Atan2>("ATAN2", 16);
    at[NPU_BINARY_COPYSIGN] = float_entry<CopysignF>("COPYSIGN", 1);
    at[NPU_BINARY_NEXTAFTER] = {nullptr, nullptr, kFloats | mask(NPU_FLOAT64), false, false, 2, "NEXTAFTER"};
    at[NPU_BINARY_SHL] = integer_entry<ShlI>("SHL", 1);
    at[NPU_BINARY_SHR] = integer_entry<ShrI>("SHR", 1);
    at[NPU_BINARY_GCD] = integer_entry<GcdI>("GCD", 40);
    at[NPU_BINARY_IGAMMA] = float_entry<IgammaF>("IGAMMA", 80);
    at[NPU_BINARY_IGAMMAC] = float_entry<IgammacF>("IGAMMAC", 80);
    at[NPU_BINARY_ZETA] = float_entry<ZetaF>("ZETA", 80);
    at[NPU_BINARY_RELU_GRAD] = float_entry<ReluGrad>("RELU_GRAD", 1);
    at[NPU_BINARY_SIGMOID_GRAD] = float_entry<SigmoidGrad>("SIGMOID_GRAD", 3);
    at[NPU_BINARY_TANH_GRAD] = float_entry<TanhGrad>("TANH_GRAD", 3);
    at[NPU_BINARY_GELU_GRAD] = float_entry<GeluGrad>("GELU_GRAD", 24);
    at[NPU_BINARY_GELU_TANH_GRAD] = float_entry<GeluTanhGrad>("GELU_TANH_GRAD", 24);
    at[NPU_BINARY_SILU_GRAD] = float_entry<SiluGrad>("SILU_GRAD", 16);
    at[NPU_BINARY_LEAKY_RELU_GRAD] = float_entry<LeakyReluGrad>("LEAKY_RELU_GRAD", 2);
  }
};
const Table& table() {
  static const Table t;
  return t;
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_binary(npu_stream_t stream, int32_t opcode, const npu_tensor_t* a, const npu_tensor_t* b,
                                      npu_scalar_t s, npu_scalar_t alpha, const npu_tensor_t* out) {
  static const char fn[] = "npu_v3_binary";
  const bool convert = opcode >= 0 && opcode & NPU_BINARY_CONVERT;
  if (convert) opcode -= NPU_BINARY_CONVERT;
  if (opcode < NPU_BINARY_ADD || opcode > NPU_BINARY_ZETA)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: opcode %d is unknown, expected %d to %d", fn, opcode, NPU_BINARY_ADD,
                NPU_BINARY_ZETA);
  const Entry& entry = table().at[opcode];
  if (!a && !b)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: NPU_BINARY_%s: a and b are both NULL, expected a tensor in one of them",
                fn, entry.name);
  if (!b && opcode >= NPU_BINARY_RELU_GRAD && opcode <= NPU_BINARY_LEAKY_RELU_GRAD)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: NPU_BINARY_%s: b is NULL, expected the saved tensor", fn, entry.name);
  Unset room[3];
  View &va = room[0].view, &vb = room[1].view, &vo = room[2].view;
  NPU_TRY(resolve(stream, a, kAll, Engine::compute, true, fn, "a", &va));
  NPU_TRY(resolve(stream, b, kAll, Engine::compute, true, fn, "b", &vb));
  NPU_TRY(resolve(stream, out, kAll, Engine::compute, false, fn, "out", &vo));
  const int32_t dtype = va ? va.dtype : vb.dtype;
  const Kernel on_double = dtype == NPU_FLOAT64 ? scalar_binary(opcode) : nullptr;
  if (!(entry.dtypes & mask(dtype)) && !on_double)
    return fail(NPU_STATUS_NOT_SUPPORTED, "%s: NPU_BINARY_%s does not take %s for %s", fn, entry.name,
                dtype_text(dtype), va ? "a" : "b");
  NPU_TRY(same_dtype(fn, "out", vo, entry.to_bool ? NPU_BOOL : dtype));
  NPU_TRY(writable(fn, "out", vo));
  const View* views[3] = {&vo};
  int count = 1;
  if (va) {
    NPU_TRY(same_shape(fn, "a", va, vo));
    views[count++] = &va;
  }
  if (vb) {
    NPU_TRY(same_dtype(fn, "b", vb, dtype));
    NPU_TRY(same_shape(fn, "b", vb, vo));
    views[count++] = &vb;
  }

  Program program;
  collapse(views, count, true, ~0u, &program.loop, program.operand);
  if (program.loop.n == 0) return NPU_STATUS_SUCCESS;
  if (!va) {  // the tensor is b: a is the scalar
    program.operand[2] = program.operand[1];
    program.operand[1] = Operand{};
  }
  program.inputs = 2;
  program.in = compute_of(dtype);
  program.out = entry.to_bool ? Compute::raw : program.in;
  program.run = on_double ? on_double : program.in == Compute::f32 ? entry.on_float : entry.on_int;
  if (convert || entry.storage_scalar || compute_of(dtype) == Compute::i64) s = converted(s, dtype);
  const double value = scalar_double(s);
  program.scalar_f = value;
  program.scalar_i = dtype == NPU_BOOL ? (s.is_integer ? s.i != 0 : s.d != 0) : scalar_int(s);
  program.params.f0 = static_cast<float>(scalar_double(alpha));
  program.params.i0 = on_double ? static_cast<int64_t>(math::as_bits(scalar_double(alpha))) : scalar_int(alpha);
  program.params.f1 = static_cast<float>(value);
  program.params.i1 = 8 * static_cast<int64_t>(dtype_size(dtype));
  if (opcode == NPU_BINARY_NEXTAFTER) {
    program.run = next_after(dtype);
    program.in = program.out = Compute::raw;
    program.scalar_i = element_bits(s, dtype);
  }
  if (opcode == NPU_BINARY_POW && !vb && value == 2 && program.in == Compute::f32) program.run = table().square;
  const double n = static_cast<double>(program.loop.n);
  const double bytes = n * (count - 1) * dtype_size(dtype) + n * program.operand[0].size;
  const Work work = dtype == NPU_FLOAT64 ? Work{n, 0, dtype, Work::scalar} : Work{n * entry.flops, bytes, dtype};
  const uint64_t cost = cycles(stream, work);
  const bool divides = program.in == Compute::i64 && opcode >= NPU_BINARY_DIV_TRUNC && opcode <= NPU_BINARY_FMOD;
  if (!divides) return submit_program(stream, fn, cost, program, [](int32_t) {});
  return submit_program(stream, fn, cost, program, [](int32_t zero) {
    if (zero)
      runtime_failure(NPU_STATUS_EXECUTION_FAILED, "npu_v3_binary: ZeroDivisionError: integer division by zero in b");
  });
}
