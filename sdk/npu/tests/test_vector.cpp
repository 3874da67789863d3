// test_vector.cpp: unary, binary and ternary functions, against references in double: every opcode and dtype, awkward
// values, every kind of layout, aliasing, and what must be refused.
#include <algorithm>
#include <functional>

#include "vector_test.h"

namespace {

const double kInf = HUGE_VAL, kNaN = std::nan("");
const int kFloatTypes[] = {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32};
const int kIntTypes[] = {NPU_INT8, NPU_UINT8, NPU_INT16, NPU_INT32, NPU_INT64};

Values awkward(int dtype, int64_t n = 1500) {
  Values v = {0.0,   -0.0,   1,     -1,     kInf,  -kInf, kNaN,  0.5,  -0.5,  1.5,  2.5,   -2.5,
              1e-7,  -1e-7,  3e-8,  88.6,   -88,   104,   -104,  19.9, -20.5, 1e30, -1e30, 1e-38,
              1e-42, -1e-42, 65504, -65504, 0.999, 1.001, 0.707, 5.9,  -5.9,  1e4,  3};
  while (static_cast<int64_t>(v.size()) < n) {
    const double magnitude = std::exp2(uniform(-20, 7));
    v.push_back(random_bits() & 1 ? magnitude : -magnitude);
  }
  for (double& x : v) x = round_to(dtype, x);
  return v;
}

// ---- unary
struct UnaryCase {
  int opcode;
  double (*reference)(double);
  double ulps;  // in float32, beyond the rounding to the tensor's type
};
double relu(double x) { return x < 0 ? 0 : x; }
double sign(double x) { return (x > 0) - (x < 0); }
double gelu(double x) { return 0.5 * x * std::erfc(-x * M_SQRT1_2); }
// (1 + tanh u)/2 without its cancellation
double gate(double x) { return 1 / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
double gelu_tanh(double x) { return x * gate(x); }
const UnaryCase kUnary[] = {
    {NPU_UNARY_NEG, [](double x) { return -x; }, 0},
    {NPU_UNARY_ABS, [](double x) { return std::fabs(x); }, 0},
    {NPU_UNARY_EXP, [](double x) { return std::exp(x); }, 0.1},
    {NPU_UNARY_EXPM1, [](double x) { return std::expm1(x); }, 0.1},
    {NPU_UNARY_LOG, [](double x) { return std::log(x); }, 0.1},
    {NPU_UNARY_LOG1P, [](double x) { return std::log1p(x); }, 0.1},
    {NPU_UNARY_SQRT, [](double x) { return std::sqrt(x); }, 0},
    {NPU_UNARY_RSQRT, [](double x) { return 1 / std::sqrt(x); }, 0.1},
    {NPU_UNARY_RECIPROCAL, [](double x) { return 1 / x; }, 0},
    {NPU_UNARY_SIN, [](double x) { return std::sin(x); }, 1},
    {NPU_UNARY_COS, [](double x) { return std::cos(x); }, 1},
    {NPU_UNARY_TANH, [](double x) { return std::tanh(x); }, 0.1},
    {NPU_UNARY_ERF, [](double x) { return std::erf(x); }, 0.1},
    {NPU_UNARY_SIGMOID, [](double x) { return 1 / (1 + std::exp(-x)); }, 0.1},
    {NPU_UNARY_RELU, relu, 0},
    {NPU_UNARY_GELU, gelu, 0.1},
    {NPU_UNARY_GELU_TANH, gelu_tanh, 0.1},
    {NPU_UNARY_SILU, [](double x) { return x / (1 + std::exp(-x)); }, 0.1},
    {NPU_UNARY_FLOOR, [](double x) { return std::floor(x); }, 0},
    {NPU_UNARY_CEIL, [](double x) { return std::ceil(x); }, 0},
    {NPU_UNARY_ROUND, [](double x) { return std::nearbyint(x); }, 0},
    {NPU_UNARY_TRUNC, [](double x) { return std::trunc(x); }, 0},
    {NPU_UNARY_SIGN, sign, 0},
    {NPU_UNARY_LEAKY_RELU, [](double x) { return x > 0 ? x : x * static_cast<double>(0.01f); }, 0},
    {NPU_UNARY_CLAMP, [](double x) { return x < 0.01f ? double(0.01f)
                                            : x > 3   ? 3
                                                      : x; }, 0},
};

void unary_floats() {
  const npu_scalar_t p0 = number(0.01), p1 = number(3);
  for (int dtype : kFloatTypes) {
    const Values x = awkward(dtype);
    const int64_t n = static_cast<int64_t>(x.size());
    Tensor tx(dtype, {n}), out(dtype, {n}), truth(NPU_BOOL, {n});
    tx.set(x);
    for (const UnaryCase& c : kUnary) {
      OK(npu_v3_unary(stream, c.opcode, tx, p0, p1, out));
      Values expected(n);
      for (int64_t i = 0; i < n; i++) expected[i] = c.reference(x[i]);
      // What float32 adds to the rounding of a narrower type is a tie broken otherwise, at worst.
      near(out, expected, 0.5001 + (dtype == NPU_FLOAT32 ? c.ulps : 0.001), "unary %d", c.opcode);
      const Values got = out.get();
      for (int64_t i = 0; i < n; i++)
        if (expected[i] == 0 && got[i] == 0 && x[i] == 0 && c.opcode != NPU_UNARY_SIGN)
          CHECK(std::signbit(got[i]) == std::signbit(expected[i]), "unary %d loses the sign of zero", c.opcode);
    }
    const struct {
      int opcode;
      bool (*reference)(double);
    } truths[] = {{NPU_UNARY_ISNAN, [](double v) { return std::isnan(v); }},
                  {NPU_UNARY_ISFINITE, [](double v) { return std::isfinite(v); }},
                  {NPU_UNARY_LOGICAL_NOT, [](double v) { return v == 0; }}};
    for (const auto& c : truths) {
      OK(npu_v3_unary(stream, c.opcode, tx, p0, p1, truth));
      Integers expected(n);
      for (int64_t i = 0; i < n; i++) expected[i] = c.reference(x[i]);
      equal(truth, expected, "unary %d of %s", c.opcode, name_of(dtype));
    }
  }
}

int64_t least(int dtype) {
  return dtype == NPU_UINT8 ? 0
                            : -(int64_t{1} << (8 * item_size(dtype) - 2)) - (int64_t{1} << (8 * item_size(dtype) - 2));
}
int64_t most(int dtype) { return dtype == NPU_UINT8 ? UINT8_MAX : -1 - least(dtype); }
int64_t wrap(int dtype, uint64_t v) {
  if (dtype == NPU_INT8) return static_cast<int8_t>(v);
  if (dtype == NPU_UINT8) return static_cast<uint8_t>(v);
  if (dtype == NPU_INT16) return static_cast<int16_t>(v);
  if (dtype == NPU_INT32) return static_cast<int32_t>(v);
  if (dtype == NPU_BOOL) return v != 0;
  return static_cast<int64_t>(v);
}
Integers awkward_integers(int dtype) {
  Integers v;
  const int64_t base[] = {0, 1, -1, 2, -2, 3, 7, -7, 100, -100, least(dtype), most(dtype), least(dtype) + 1};
  for (int64_t a : base) v.push_back(wrap(dtype, uint64_t(a)));
  for (int i = 0; i < 600; i++) v.push_back(wrap(dtype, random_bits() >> (random_bits() % 64)));
  if (dtype == NPU_INT64) v.insert(v.end(), {int64_t{1} << 53, (int64_t{1} << 53) + 1, -(int64_t{1} << 53) - 1});
  return v;
}

void unary_integers() {
  for (int dtype : kIntTypes) {
    const Integers x = awkward_integers(dtype);
    const int64_t n = static_cast<int64_t>(x.size());
    Tensor tx(dtype, {n}), out(dtype, {n}), truth(NPU_BOOL, {n});
    tx.set(x);
    auto check = [&](int opcode, const Tensor& to, const std::function<uint64_t(int64_t)>& f) {
      OK(npu_v3_unary(stream, opcode, tx, whole(-3), whole(50), to));
      Integers expected(n);
      for (int64_t i = 0; i < n; i++) expected[i] = wrap(to.t.dtype, f(x[i]));
      equal(to, expected, "unary %d of %s", opcode, name_of(dtype));
    };
    using I = int64_t;
    check(NPU_UNARY_NEG, out, [](I v) { return 0 - uint64_t(v); });
    check(NPU_UNARY_ABS, out, [](I v) { return v < 0 ? 0 - uint64_t(v) : uint64_t(v); });
    check(NPU_UNARY_SIGN, out, [](I v) { return uint64_t((v > 0) - (v < 0)); });
    check(NPU_UNARY_RELU, out, [](I v) { return v < 0 ? 0 : uint64_t(v); });
    check(NPU_UNARY_FLOOR, out, [](I v) { return uint64_t(v); });
    check(NPU_UNARY_CLAMP, out, [](I v) { return uint64_t(v < -3 ? -3 : v > 50 ? 50 : v); });
    check(NPU_UNARY_BITWISE_NOT, out, [](I v) { return ~uint64_t(v); });
    check(NPU_UNARY_LOGICAL_NOT, truth, [](I v) { return uint64_t(v == 0); });
    check(NPU_UNARY_ISNAN, truth, [](I) { return uint64_t(0); });
    check(NPU_UNARY_ISFINITE, truth, [](I) { return uint64_t(1); });
    REFUSED(npu_v3_unary(stream, NPU_UNARY_EXP, tx, whole(0), whole(0), out), NPU_STATUS_NOT_SUPPORTED, "npu_v3_unary",
            "EXP", name_of(dtype));
  }
  Tensor b(NPU_BOOL, {3}), out(NPU_BOOL, {3});
  b.set(Integers{0, 1, 1});
  OK(npu_v3_unary(stream, NPU_UNARY_BITWISE_NOT, b, whole(0), whole(0), out));
  equal(out, {1, 0, 0}, "bitwise not");
  OK(npu_v3_unary(stream, NPU_UNARY_LOGICAL_NOT, b, whole(0), whole(0), out));
  equal(out, {1, 0, 0}, "logical not");
}

// A bound that is not a number makes everything so, as in PyTorch.
void clamp_to_nan() {
  for (int dtype : kFloatTypes) {
    Tensor x(dtype, {3}), out(dtype, {3});
    x.set(Values{-1, 0.5, 7});
    for (auto [low, high] : {std::pair<double, double>{NAN, 2}, {0, NAN}, {NAN, HUGE_VAL}, {-HUGE_VAL, NAN}}) {
      OK(npu_v3_unary(stream, NPU_UNARY_CLAMP, x, number(low), number(high), out));
      near(out, {NAN, NAN, NAN}, 0, "clamp to NaN");
    }
  }
}

// ---- binary
double f32(double v) { return static_cast<float>(v); }
bool unordered(double a, double b) { return std::isnan(a) || std::isnan(b); }
double remainder_of(double a, double b) {
  const double m = std::fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
double gelu_slope(double x) {
  return 0.5 * std::erfc(-x * M_SQRT1_2) + x * std::exp(-0.5 * x * x) / std::sqrt(2 * M_PI);
}
double gelu_tanh_slope(double x) {
  const double k = std::sqrt(2 / M_PI), s = gate(x);
  return s + 2 * x * s * (1 - s) * k * (1 + 3 * 0.044715 * x * x);
}
double silu_slope(double x) {
  const double s = 1 / (1 + std::exp(-x));
  return s * (1 + x * (1 - s));
}
struct BinaryCase {
  int opcode;
  double (*reference)(double, double);
  double ulps;
  double low, high;  // of the operands
};
const double kAlpha = 0.75, kScalar = 0.25;
const BinaryCase kBinary[] = {
    {NPU_BINARY_ADD, [](double a, double b) { return a + kAlpha * b; }, 0, -9, 9},
    {NPU_BINARY_SUB, [](double a, double b) { return a - kAlpha * b; }, 0, -9, 9},
    {NPU_BINARY_MUL, [](double a, double b) { return a * b; }, 0, -9, 9},
    {NPU_BINARY_DIV, [](double a, double b) { return a / b; }, 0, -9, 9},
    {NPU_BINARY_DIV_TRUNC, [](double a, double b) { return std::trunc(f32(a / b)); }, 0, -9, 9},
    {NPU_BINARY_DIV_FLOOR, [](double a, double b) { return b == 0 ? a / b : std::floor(a / b); }, 0, -9, 9},
    {NPU_BINARY_REMAINDER, remainder_of, 0.5, -9, 9},
    {NPU_BINARY_FMOD, [](double a, double b) { return std::fmod(a, b); }, 0, -9, 9},
    {NPU_BINARY_MAX, [](double a, double b) { return unordered(a, b) ? kNaN : std::max(a, b); }, 0, -9, 9},
    {NPU_BINARY_MIN, [](double a, double b) { return unordered(a, b) ? kNaN : std::min(a, b); }, 0, -9, 9},
    {NPU_BINARY_POW, [](double a, double b) { return std::pow(a, b); }, 1, 0.1, 9},
    {NPU_BINARY_ATAN2, [](double a, double b) { return std::atan2(a, b); }, 1, -9, 9},
    {NPU_BINARY_RELU_GRAD, [](double a, double b) { return b <= kScalar ? 0 : a; }, 0, -2, 2},
    {NPU_BINARY_SIGMOID_GRAD, [](double a, double b) { return a * (1 - b) * b; }, 2, 0.1, 0.9},
    {NPU_BINARY_TANH_GRAD, [](double a, double b) { return a * (1 - b * b); }, 8, -0.9, 0.9},
    {NPU_BINARY_GELU_GRAD, [](double a, double b) { return a * gelu_slope(b); }, 0.1, -4, 4},
    {NPU_BINARY_GELU_TANH_GRAD, [](double a, double b) { return a * gelu_tanh_slope(b); }, 0.1, -4, 4},
    {NPU_BINARY_SILU_GRAD, [](double a, double b) { return a * silu_slope(b); }, 0.1, -6, 6},
    {NPU_BINARY_LEAKY_RELU_GRAD, [](double a, double b) { return b > 0 ? a : a * kScalar; }, 0, -2, 2},
};
const struct {
  int opcode;
  bool (*f)(double, double);
} kTruths[] = {{NPU_BINARY_EQ, [](double a, double b) { return a == b; }},
               {NPU_BINARY_NE, [](double a, double b) { return a != b; }},
               {NPU_BINARY_LT, [](double a, double b) { return a < b; }},
               {NPU_BINARY_LE, [](double a, double b) { return a <= b; }},
               {NPU_BINARY_GT, [](double a, double b) { return a > b; }},
               {NPU_BINARY_GE, [](double a, double b) { return a >= b; }},
               {NPU_BINARY_LOGICAL_AND, [](double a, double b) { return a != 0 && b != 0; }},
               {NPU_BINARY_LOGICAL_OR, [](double a, double b) { return a != 0 || b != 0; }},
               {NPU_BINARY_LOGICAL_XOR, [](double a, double b) { return (a != 0) != (b != 0); }}};

void binary_floats() {
  for (int dtype : kFloatTypes)
    for (const BinaryCase& c : kBinary) {
      const int64_t n = 1200;
      Values a = uniforms(n, dtype, c.low, c.high), b = uniforms(n, dtype, c.low, c.high);
      if (c.opcode >= NPU_BINARY_MAX && c.opcode <= NPU_BINARY_MIN) a[3] = kNaN, b[4] = kNaN;
      if (c.opcode == NPU_BINARY_DIV) b[0] = 0, a[1] = kInf, b[2] = kNaN;
      Tensor ta(dtype, {n}), tb(dtype, {n}), out(dtype, {n});
      ta.set(a);
      tb.set(b);
      const double slack = 0.5001 + (dtype == NPU_FLOAT32 ? c.ulps : c.ulps * 0.02);
      auto run = [&](const npu_tensor_t* x, const npu_tensor_t* y) {
        OK(npu_v3_binary(stream, c.opcode, x, y, number(kScalar), number(kAlpha), out));
        Values expected(n);
        for (int64_t i = 0; i < n; i++) expected[i] = c.reference(x ? a[i] : kScalar, y ? b[i] : kScalar);
        if (c.opcode <= NPU_BINARY_SUB)  // alpha*b may be rounded before the sum, which may cancel
          close(out, expected, 1e-6, "binary add or sub");
        else
          near(out, expected, slack, "binary %d", c.opcode);
      };
      run(ta, tb);
      if (c.opcode < NPU_BINARY_RELU_GRAD)
        run(ta, nullptr), run(nullptr, tb);
      else
        REFUSED(npu_v3_binary(stream, c.opcode, ta, nullptr, number(1), number(1), out), NPU_STATUS_INVALID_VALUE,
                "b is NULL");
    }
  for (int dtype : kFloatTypes) {
    Values a = awkward(dtype, 900), b = a;
    for (size_t i = 0; i < b.size(); i++)
      if (i % 3) b[i] = a[random_bits() % a.size()];
    const int64_t n = static_cast<int64_t>(a.size());
    Tensor ta(dtype, {n}), tb(dtype, {n}), out(NPU_BOOL, {n});
    ta.set(a);
    tb.set(b);
    for (const auto& c : kTruths) {
      OK(npu_v3_binary(stream, c.opcode, ta, tb, number(0), number(1), out));
      Integers expected(n);
      for (int64_t i = 0; i < n; i++) expected[i] = c.f(a[i], b[i]);
      equal(out, expected, "binary %d of %s", c.opcode, name_of(dtype));
    }
    // A scalar is compared as a number of the tensor's type.
    Tensor tenth(dtype, {1}), one(NPU_BOOL, {1});
    tenth.set(Values{0.1});
    OK(npu_v3_binary(stream, NPU_BINARY_EQ, tenth, nullptr, number(0.1), number(1), one));
    equal(one, {1}, "equal to a rounded scalar");
  }
  // Infinities and zeros in the quotients and remainders.
  Tensor a(NPU_FLOAT32, {6}), b(NPU_FLOAT32, {6}), out(NPU_FLOAT32, {6});
  a.set(Values{1, -1, 0, 5, -5, kInf});
  b.set(Values{0, 0, 0, kInf, kInf, 2});
  OK(npu_v3_binary(stream, NPU_BINARY_DIV_FLOOR, a, b, number(0), number(1), out));
  near(out, {kInf, -kInf, kNaN, 0, -1, kNaN}, 0, "floor division");
  OK(npu_v3_binary(stream, NPU_BINARY_REMAINDER, a, b, number(0), number(1), out));
  near(out, {kNaN, kNaN, kNaN, 5, kInf, kNaN}, 0, "remainder");
  OK(npu_v3_binary(stream, NPU_BINARY_POW, a, nullptr, number(2), number(1), out));
  near(out, {1, 1, 0, 25, 25, kInf}, 0, "square");
}

void binary_integers() {
  for (int dtype : kIntTypes) {
    Integers a = awkward_integers(dtype), b = a;
    for (size_t i = 0; i < b.size(); i++) b[i] = a[random_bits() % a.size()];
    const size_t start = a.size();
    a.insert(a.end(), {least(dtype), least(dtype), most(dtype), 7, -7, 7, -7});
    b.insert(b.end(), {-1, 1, -1, 2, 2, -2, -2});
    for (Integers* v : {&a, &b})
      for (int64_t& x : *v) x = wrap(dtype, uint64_t(x));
    const int64_t n = static_cast<int64_t>(a.size());
    Tensor ta(dtype, {n}), tb(dtype, {n}), out(dtype, {n}), truth(NPU_BOOL, {n});
    ta.set(a);
    using I = int64_t;
    auto check = [&](int opcode, const Tensor& to, const std::function<uint64_t(I, I)>& f) {
      tb.set(b);
      OK(npu_v3_binary(stream, opcode, ta, tb, whole(0), whole(3), to));
      Integers expected(n);
      for (int64_t i = 0; i < n; i++) expected[i] = wrap(to.t.dtype, f(a[i], b[i]));
      equal(to, expected, "binary %d of %s", opcode, name_of(dtype));
    };
    check(NPU_BINARY_ADD, out, [](I x, I y) { return uint64_t(x) + 3 * uint64_t(y); });
    check(NPU_BINARY_SUB, out, [](I x, I y) { return uint64_t(x) - 3 * uint64_t(y); });
    check(NPU_BINARY_MUL, out, [](I x, I y) { return uint64_t(x) * uint64_t(y); });
    check(NPU_BINARY_MAX, out, [](I x, I y) { return uint64_t(std::max(x, y)); });
    check(NPU_BINARY_MIN, out, [](I x, I y) { return uint64_t(std::min(x, y)); });
    check(NPU_BINARY_BITWISE_AND, out, [](I x, I y) { return uint64_t(x & y); });
    check(NPU_BINARY_BITWISE_OR, out, [](I x, I y) { return uint64_t(x | y); });
    check(NPU_BINARY_BITWISE_XOR, out, [](I x, I y) { return uint64_t(x ^ y); });
    const int64_t width = 8 * item_size(dtype);
    check(NPU_BINARY_SHL, out, [&](I x, I y) { return y < 0 || y >= width ? 0 : uint64_t(x) << y; });
    check(NPU_BINARY_SHR, out, [&](I x, I y) { return uint64_t(y < 0 || y >= width ? (x < 0 ? -1 : 0) : x >> y); });
    check(NPU_BINARY_GCD, out, [](I x, I y) {
      uint64_t p = x < 0 ? 0 - uint64_t(x) : uint64_t(x), q = y < 0 ? 0 - uint64_t(y) : uint64_t(y);
      while (q) std::swap(p %= q, q);
      return p;
    });
    check(NPU_BINARY_EQ, truth, [](I x, I y) { return uint64_t(x == y); });
    check(NPU_BINARY_NE, truth, [](I x, I y) { return uint64_t(x != y); });
    check(NPU_BINARY_LT, truth, [](I x, I y) { return uint64_t(x < y); });
    check(NPU_BINARY_LE, truth, [](I x, I y) { return uint64_t(x <= y); });
    check(NPU_BINARY_GT, truth, [](I x, I y) { return uint64_t(x > y); });
    check(NPU_BINARY_GE, truth, [](I x, I y) { return uint64_t(x >= y); });
    check(NPU_BINARY_LOGICAL_XOR, truth, [](I x, I y) { return uint64_t((x != 0) != (y != 0)); });
    for (I& y : b)
      if (y == 0) y = 5;
    const auto minus = [](I x) { return 0 - uint64_t(x); };
    check(NPU_BINARY_DIV_TRUNC, out, [&](I x, I y) { return y == -1 ? minus(x) : uint64_t(x / y); });
    check(NPU_BINARY_FMOD, out, [&](I x, I y) { return y == -1 ? 0 : uint64_t(x % y); });
    check(NPU_BINARY_DIV_FLOOR, out,
          [&](I x, I y) { return y == -1 ? minus(x) : uint64_t(x / y - ((x % y != 0) && ((x < 0) != (y < 0)))); });
    check(NPU_BINARY_REMAINDER, out, [&](I x, I y) {
      const I m = y == -1 ? 0 : x % y;
      return uint64_t(m != 0 && (m < 0) != (y < 0) ? m + y : m);
    });
    const Values quotients = out.get();
    const bool has_signs = least(dtype) < 0;
    CHECK(!has_signs || (quotients[start + 4] == 1 && quotients[start + 5] == -1), "Python's remainder");
    for (int opcode : {NPU_BINARY_DIV_TRUNC, NPU_BINARY_DIV_FLOOR, NPU_BINARY_REMAINDER, NPU_BINARY_FMOD}) {
      b[9] = 0;
      tb.set(b);
      OK(npu_v3_binary(stream, opcode, ta, tb, whole(0), whole(1), out));
      REFUSED(npu_stream_synchronize(stream), NPU_STATUS_EXECUTION_FAILED, "ZeroDivisionError");
      sync();
      OK(npu_v3_binary(stream, opcode, ta, nullptr, whole(0), whole(1), out));
      REFUSED(npu_stream_synchronize(stream), NPU_STATUS_EXECUTION_FAILED, "ZeroDivisionError");
    }
    Tensor base(dtype, {8}), power(dtype, {8}), raised(dtype, {8});
    base.set(Integers{0, 1, -1, 2, -1, 3, -2, 0});
    power.set(Integers{-1, -3, -3, -1, -2, 4, 3, 0});
    OK(npu_v3_binary(stream, NPU_BINARY_POW, base, power, whole(0), whole(1), raised));
    if (has_signs) equal(raised, {0, 1, -1, 0, 1, 81, -8, 1}, "integer power");
    REFUSED(npu_v3_binary(stream, NPU_BINARY_DIV, ta, tb, whole(0), whole(1), out), NPU_STATUS_NOT_SUPPORTED, "DIV",
            name_of(dtype));
  }
  Tensor a(NPU_BOOL, {4}), b(NPU_BOOL, {4}), out(NPU_BOOL, {4});
  a.set(Integers{0, 0, 1, 1});
  b.set(Integers{0, 1, 0, 1});
  const struct {
    int opcode;
    Integers expected;
  } cases[] = {{NPU_BINARY_ADD, {0, 1, 1, 1}}, {NPU_BINARY_MUL, {0, 0, 0, 1}},
               {NPU_BINARY_MAX, {0, 1, 1, 1}}, {NPU_BINARY_BITWISE_XOR, {0, 1, 1, 0}},
               {NPU_BINARY_EQ, {1, 0, 0, 1}},  {NPU_BINARY_LOGICAL_OR, {0, 1, 1, 1}}};
  for (const auto& c : cases) {
    OK(npu_v3_binary(stream, c.opcode, a, b, whole(0), whole(1), out));
    equal(out, c.expected, "binary %d of bool", c.opcode);
  }
  REFUSED(npu_v3_binary(stream, NPU_BINARY_SUB, a, b, whole(0), whole(1), out), NPU_STATUS_NOT_SUPPORTED, "SUB",
          "bool");
}

// ---- ternary
void ternaries() {
  const int64_t n = 700;
  for (int dtype : {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32, NPU_INT8, NPU_UINT8, NPU_INT16, NPU_INT32, NPU_INT64,
                    NPU_FLOAT64, NPU_BOOL}) {
    Integers which(n), yes(n), no(n), mixed(n), scalar(n);
    for (int64_t i = 0; i < n; i++) {
      which[i] = random_bits() & 1, yes[i] = random_bits() % 100, no[i] = random_bits() % 2;
      if (dtype == NPU_BOOL) yes[i] &= 1;
      mixed[i] = which[i] ? yes[i] : no[i], scalar[i] = which[i] ? 1 : no[i];
    }
    Tensor a(NPU_BOOL, {n}), b(dtype, {n}), c(dtype, {n}), out(dtype, {n});
    a.set(which), b.set(yes), c.set(no);
    OK(npu_v3_ternary(stream, NPU_TERNARY_SELECT, a, b, c, number(0), out));
    CHECK(out.get() == Values(mixed.begin(), mixed.end()), "select %s", name_of(dtype));
    OK(npu_v3_ternary(stream, NPU_TERNARY_SELECT, a, nullptr, c, number(1), out));
    CHECK(out.get() == Values(scalar.begin(), scalar.end()), "select a scalar, %s", name_of(dtype));
    REFUSED(npu_v3_ternary(stream, NPU_TERNARY_SELECT, a, nullptr, nullptr, number(1), out), NPU_STATUS_INVALID_VALUE,
            "both NULL");
  }
  for (int dtype : kFloatTypes) {
    const Values x = uniforms(n, dtype), y = uniforms(n, dtype, 0.5, 2), z = uniforms(n, dtype, 0.5, 1.5);
    Tensor a(dtype, {n}), b(dtype, {n}), c(dtype, {n}), out(dtype, {n});
    a.set(x), b.set(y), c.set(z);
    auto check = [&](int opcode, const npu_tensor_t* third, double s, const std::function<double(int64_t)>& f) {
      OK(npu_v3_ternary(stream, opcode, a, b, third, number(s), out));
      Values expected(n);
      for (int64_t i = 0; i < n; i++) expected[i] = f(i);
      close(out, expected, 4e-7, "ternary");
    };
    for (double s : {0.3, 0.5, 0.9, 1.0})
      check(NPU_TERNARY_LERP, nullptr, s, [&](int64_t i) { return x[i] + s * (y[i] - x[i]); });
    check(NPU_TERNARY_LERP, c, 0, [&](int64_t i) { return x[i] + z[i] * (y[i] - x[i]); });
    check(NPU_TERNARY_ADDCMUL, c, 0.5, [&](int64_t i) { return x[i] + 0.5 * y[i] * z[i]; });
    check(NPU_TERNARY_ADDCDIV, c, 0.5, [&](int64_t i) { return x[i] + 0.5 * y[i] / z[i]; });
    check(NPU_TERNARY_CLAMP, c, 0, [&](int64_t i) { return std::min(std::max(x[i], y[i]), z[i]); });
    check(NPU_TERNARY_CLAMP, nullptr, 0, [&](int64_t i) { return std::max(x[i], y[i]); });
    OK(npu_v3_ternary(stream, NPU_TERNARY_CLAMP, a, nullptr, c, number(0), out));
    Values expected(n);
    for (int64_t i = 0; i < n; i++) expected[i] = std::min(x[i], z[i]);
    near(out, expected, 0, "clamp from above");
  }
  Tensor a(NPU_INT32, {2}), b(NPU_INT32, {2}), c(NPU_INT32, {2}), out(NPU_INT32, {2});
  a.set(Integers{1, INT32_MAX}), b.set(Integers{2, 1}), c.set(Integers{3, 1});
  OK(npu_v3_ternary(stream, NPU_TERNARY_ADDCMUL, a, b, c, whole(2), out));
  equal(out, {13, INT32_MIN + 1}, "integer addcmul");
  REFUSED(npu_v3_ternary(stream, NPU_TERNARY_LERP, a, b, c, number(1), out), NPU_STATUS_NOT_SUPPORTED, "INT32");
}

// ---- layouts
void layouts() {
  const Shape shape = {3, 5, 2, 70};
  const int64_t n = 3 * 5 * 2 * 70;
  const Shape strides[] = {dense_strides(shape),
                           dense_strides(shape, {3, 2, 1, 0}),
                           dense_strides(shape, {0, 2, 3, 1}),
                           {2000, 390, 160, 2},
                           {0, 0, 0, 0},
                           {0, 1, 0, 5},
                           {1, 3, 0, 0}};
  for (const Shape& sa : strides)
    for (const Shape& sb : strides)
      for (int k = 0; k < 4; k++)
        for (int dtype : {NPU_FLOAT16, NPU_FLOAT32, NPU_INT8, NPU_INT64}) {
          Tensor a(dtype, shape, sa, 1024), b(dtype, shape, sb), out(dtype, shape, strides[k], 512);
          // Broadcast elements must agree: a value for each place in memory.
          Integers va(n), vb(n), sum(n);
          for (int64_t i = 0; i < n; i++) va[i] = a.offset(i) % 61, vb[i] = -(b.offset(i) % 53), sum[i] = va[i] + vb[i];
          a.set(va), b.set(vb);
          const std::vector<char> before = out.raw();
          OK(npu_v3_binary(stream, NPU_BINARY_ADD, a, b, whole(0), whole(1), out));
          CHECK(out.get() == Values(sum.begin(), sum.end()), "layout %d, %s", k, name_of(dtype));
          if (k != 3) continue;
          const std::vector<char> after = out.raw();  // the gaps between elements stay
          for (int64_t i = 1; i < 139; i += 2) CHECK(after[i * item_size(dtype)] == before[i * item_size(dtype)]);
        }
  // Long enough for several threads, transposed and in place.
  const int64_t m = 300;
  for (int dtype : {NPU_FLOAT16, NPU_FLOAT32, NPU_INT32}) {
    Tensor a(dtype, {m, m}), b(dtype, {m, m}, {1, m});
    Integers va(m * m), vb(m * m), sum(m * m);
    for (int64_t i = 0; i < m * m; i++) va[i] = i % 1000, vb[i] = i % 777, sum[i] = va[i] - vb[i];
    a.set(va), b.set(vb);
    OK(npu_v3_binary(stream, NPU_BINARY_SUB, a, b, whole(0), whole(1), a));
    CHECK(a.get() == Values(sum.begin(), sum.end()), "in place, %s", name_of(dtype));
    OK(npu_v3_unary(stream, NPU_UNARY_NEG, a, whole(0), whole(0), a));
    for (int64_t& v : sum) v = -v;
    Values expected(sum.begin(), sum.end());
    CHECK(a.get() == expected, "in place, %s", name_of(dtype));
  }
  // A number, and nothing at all.
  Tensor zero_dim(NPU_FLOAT16, {}), empty(NPU_FLOAT16, {4, 0, 3}), also(NPU_FLOAT16, {4, 0, 3});
  zero_dim.set(Values{3});
  OK(npu_v3_binary(stream, NPU_BINARY_MUL, zero_dim, zero_dim, number(0), number(1), zero_dim));
  near(zero_dim, {9}, 0, "0-dim");
  uint64_t before = 0, after = 0;
  sync();
  OK(npu_device_cycles(device, &before));
  OK(npu_v3_binary(stream, NPU_BINARY_MUL, empty, empty, number(0), number(1), also));
  OK(npu_v3_unary(stream, NPU_UNARY_EXP, empty, number(0), number(1), also));
  sync();
  OK(npu_device_cycles(device, &after));
  CHECK(before == after, "an empty call costs nothing");
}

void refusals() {
  Tensor a(NPU_FLOAT16, {2, 3}), b(NPU_FLOAT16, {3, 2}), f(NPU_FLOAT32, {2, 3}), truth(NPU_BOOL, {2, 3});
  Tensor byte(NPU_UINT8, {2, 3}), wide(NPU_FLOAT16, {2, 3}, {0, 1});
  const npu_scalar_t one = number(1);
  const int bad = NPU_STATUS_INVALID_VALUE;
  REFUSED(npu_v3_binary(stream, NPU_BINARY_ADD, a, b, one, one, a), bad, "npu_v3_binary", "b has shape [3, 2]",
          "expected [2, 3]");
  REFUSED(npu_v3_binary(stream, NPU_BINARY_ADD, a, f, one, one, a), bad, "b is float32", "expected float16");
  REFUSED(npu_v3_binary(stream, NPU_BINARY_ADD, a, a, one, one, f), bad, "out is float32", "expected float16");
  REFUSED(npu_v3_binary(stream, NPU_BINARY_LT, a, a, one, one, a), bad, "out is float16", "expected bool");
  REFUSED(npu_v3_binary(stream, NPU_BINARY_ADD, a, a, one, one, wide), bad, "out", "stride 0");
  REFUSED(npu_v3_binary(stream, NPU_BINARY_ADD, nullptr, nullptr, one, one, a), bad, "both NULL");
  REFUSED(npu_v3_binary(stream, 40, a, a, one, one, a), bad, "opcode 40");
  REFUSED(npu_v3_binary(stream, -1, a, a, one, one, a), bad, "opcode -1");
  REFUSED(npu_v3_binary(stream, NPU_BINARY_DIV, byte, byte, one, one, byte), NPU_STATUS_NOT_SUPPORTED, "DIV", "uint8");
  REFUSED(npu_v3_unary(stream, 0, a, one, one, a), bad, "opcode 0");
  REFUSED(npu_v3_unary(stream, NPU_UNARY_EXP, a, one, one, b), bad, "x has shape [2, 3]", "expected [3, 2]");
  REFUSED(npu_v3_unary(stream, NPU_UNARY_ISNAN, a, one, one, a), bad, "expected bool");
  REFUSED(npu_v3_unary(stream, NPU_UNARY_EXP, a, one, one, nullptr), bad, "out");
  REFUSED(npu_v3_ternary(stream, NPU_TERNARY_SELECT, a, a, a, one, a), NPU_STATUS_NOT_SUPPORTED, "npu_v3_ternary", "a");
  REFUSED(npu_v3_ternary(stream, NPU_TERNARY_SELECT, truth, a, f, one, a), bad, "c is float32");
  REFUSED(npu_v3_ternary(stream, 9, a, a, a, one, a), bad, "opcode 9");
  npu_tensor_t odd = a.t;
  odd.address = static_cast<char*>(odd.address) + 2;
  REFUSED(npu_v3_unary(stream, NPU_UNARY_EXP, &odd, one, one, a), NPU_STATUS_INVALID_ADDRESS, "npu_v3_unary", "x");
}

}  // namespace

int main() {
  open_device();
  unary_floats();
  unary_integers();
  clamp_to_nan();
  binary_floats();
  binary_integers();
  ternaries();
  layouts();
  refusals();
  std::printf("test_vector: ok\n");
}
