// test_special.cpp: the elementary and special functions that came with the instruction set: accuracy in each dtype,
// the awkward values, values known from tables, and what must be refused.
#include <algorithm>
#include <functional>

#include "vector_test.h"

namespace {

const double kInf = HUGE_VAL, kNaN = std::nan("");
const int kFloatTypes[] = {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32};

Values awkward(int dtype, double low, double high, int64_t n = 2000) {
  Values v = {0.0, -0.0, 1, -1, kInf, -kInf, kNaN, 0.5, -0.5, 1.5, 2.5, 1e-7, -1e-7, 1e-42, 0.999, 1.001, 88, -88, 3e4};
  while (static_cast<int64_t>(v.size()) < n) v.push_back(uniform(low, high));
  for (double& x : v) x = round_to(dtype, x);
  return v;
}

struct Case {
  int opcode;
  double (*f)(double);
  double low, high;
};
const Case kElementary[] = {
    {NPU_UNARY_EXP2, [](double x) { return std::exp2(x); }, -30, 15},
    {NPU_UNARY_LOG2, [](double x) { return std::log2(x); }, 0, 9},
    {NPU_UNARY_LOG10, [](double x) { return std::log10(x); }, 0, 9},
    {NPU_UNARY_TAN, [](double x) { return std::tan(x); }, -9, 9},
    {NPU_UNARY_ASIN, [](double x) { return std::asin(x); }, -1.1, 1.1},
    {NPU_UNARY_ACOS, [](double x) { return std::acos(x); }, -1.1, 1.1},
    {NPU_UNARY_ATAN, [](double x) { return std::atan(x); }, -9, 9},
    {NPU_UNARY_SINH, [](double x) { return std::sinh(x); }, -11, 11},
    {NPU_UNARY_COSH, [](double x) { return std::cosh(x); }, -11, 11},
    {NPU_UNARY_ASINH, [](double x) { return std::asinh(x); }, -9, 9},
    {NPU_UNARY_ACOSH, [](double x) { return std::acosh(x); }, -2, 9},
    {NPU_UNARY_ATANH, [](double x) { return std::atanh(x); }, -1.1, 1.1},
    {NPU_UNARY_ERFC, [](double x) { return std::erfc(x); }, -4, 9},
    {NPU_UNARY_LGAMMA, [](double x) { return std::lgamma(x); }, -4, 9},
};

void elementary() {
  for (int dtype : kFloatTypes)
    for (const Case& c : kElementary) {
      const Values x = awkward(dtype, c.low, c.high);
      const int64_t n = static_cast<int64_t>(x.size());
      Tensor tx(dtype, {n}), out(dtype, {n});
      tx.set(x);
      OK(npu_v3_unary(stream, c.opcode, tx, number(0), number(0), out));
      Values expected(n);
      for (int64_t i = 0; i < n; i++) expected[i] = c.f(x[i]);
      near(out, expected, dtype == NPU_FLOAT32 ? 0.6 : 0.501, "unary %d", c.opcode);
      const Values got = out.get();
      for (int64_t i = 0; i < n; i++)
        if (x[i] == 0 && got[i] == 0)
          CHECK(std::signbit(got[i]) == std::signbit(expected[i]), "unary %d of 0", c.opcode);
    }
}

// Inverses undo what the C library does.
void inverse_erf() {
  for (int dtype : {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32, NPU_FLOAT64}) {
    Values y = {0.0, -0.0, 1, -1, 1.5, -2, kNaN, kInf, 1e-30, -1e-6, 0.9995, -0.9995, 0.99999994};
    for (int i = 0; i < 1000; i++) y.push_back(uniform(-1, 1));
    for (double& v : y) v = round_to(dtype, v);
    const int64_t n = static_cast<int64_t>(y.size());
    Tensor ty(dtype, {n}), out(dtype, {n});
    ty.set(y);
    OK(npu_v3_unary(stream, NPU_UNARY_ERFINV, ty, number(0), number(0), out));
    const Values x = out.get();
    for (int64_t i = 0; i < n; i++) {
      if (!(std::fabs(y[i]) < 1)) {
        CHECK(std::fabs(y[i]) == 1 ? x[i] == y[i] * kInf : std::isnan(x[i]), "erfinv of %g is %g", y[i], x[i]);
        continue;
      }
      // x is off by at most some ulps if erf grows past y within them.
      const double slack = dtype == NPU_FLOAT64 ? 16 * ulp(dtype, x[i]) : 0.51 * ulp(dtype, x[i]);
      const double a = std::fabs(x[i]), v = std::fabs(y[i]);
      const bool under = v < 0.5 ? std::erf(a - slack) <= v : std::erfc(a - slack) >= 1 - v;
      const bool over = v < 0.5 ? std::erf(a + slack) >= v : std::erfc(a + slack) <= 1 - v;
      CHECK(under && over && std::signbit(x[i]) == std::signbit(y[i]), "erfinv of %.17g is %.17g", y[i], x[i]);
    }
  }
}

struct Known {
  int opcode;
  double a, b, value;
};
// Values of DLMF and Abramowitz and Stegun, or by closed forms.
const double kEuler = 0.57721566490153286061, kPi = 3.14159265358979323846;
const Known kDigamma[] = {{0, 1, 0, -kEuler},
                          {0, 2, 0, 1 - kEuler},
                          {0, 0.5, 0, -kEuler - 2 * 0.69314718055994530942},
                          {0, 0.25, 0, -kEuler - kPi / 2 - 3 * 0.69314718055994530942},
                          {0, -0.5, 0, -kEuler - 2 * 0.69314718055994530942 + 2},
                          {0, -1.75, 0, -kEuler - kPi / 2 - 3 * 0.69314718055994530942 + 4.0 / 3 + 4.0 / 7},
                          {0, 1e6, 0, 13.81551005796419128},
                          {0, 0.0, 0, -kInf},
                          {0, -0.0, 0, kInf},
                          {0, -3, 0, kNaN},
                          {0, kInf, 0, kInf},
                          {0, -kInf, 0, kNaN},
                          {0, kNaN, 0, kNaN}};
double q_of(int n, double x) {  // Q(n, x) for an integer n
  double term = std::exp(-x), sum = term;
  for (int k = 1; k < n; k++) sum += term *= x / k;
  return sum;
}
const Known kTwo[] = {{NPU_BINARY_IGAMMA, 1, 0.5, -std::expm1(-0.5)},
                      {NPU_BINARY_IGAMMA, 0.5, 0.25, std::erf(0.5)},
                      {NPU_BINARY_IGAMMAC, 0.5, 9, std::erfc(3)},
                      {NPU_BINARY_IGAMMAC, 0.5, 0.0625, std::erfc(0.25)},
                      {NPU_BINARY_IGAMMAC, 3, 7.5, q_of(3, 7.5)},
                      {NPU_BINARY_IGAMMAC, 40, 30, q_of(40, 30)},
                      {NPU_BINARY_IGAMMA, 40, 60, 1 - q_of(40, 60)},
                      {NPU_BINARY_IGAMMAC, 200, 240, q_of(200, 240)},
                      {NPU_BINARY_IGAMMA, 0, 2, 1},
                      {NPU_BINARY_IGAMMAC, 0, 2, 0},
                      {NPU_BINARY_IGAMMA, 2, 0, 0},
                      {NPU_BINARY_IGAMMAC, 2, 0, 1},
                      {NPU_BINARY_IGAMMA, 2, kInf, 1},
                      {NPU_BINARY_IGAMMA, kInf, 2, 0},
                      {NPU_BINARY_IGAMMA, 0, 0, kNaN},
                      {NPU_BINARY_IGAMMA, -1, 2, kNaN},
                      {NPU_BINARY_IGAMMAC, 1, -2, kNaN},
                      {NPU_BINARY_IGAMMA, kNaN, 2, kNaN},
                      {NPU_BINARY_ZETA, 2, 1, kPi* kPi / 6},
                      {NPU_BINARY_ZETA, 4, 1, kPi* kPi* kPi* kPi / 90},
                      {NPU_BINARY_ZETA, 3, 1, 1.2020569031595942854},
                      {NPU_BINARY_ZETA, 1.5, 1, 2.6123753486854883433},
                      {NPU_BINARY_ZETA, 2, 0.5, kPi* kPi / 2},
                      {NPU_BINARY_ZETA, 2, 3, kPi* kPi / 6 - 1.25},
                      {NPU_BINARY_ZETA, 2, -0.5, kPi* kPi / 2 + 4},
                      {NPU_BINARY_ZETA, 3, -1.5, 7 * 1.2020569031595942854 - 8 - 8.0 / 27},
                      {NPU_BINARY_ZETA, 1, 2, kInf},
                      {NPU_BINARY_ZETA, 0.5, 2, kNaN},
                      {NPU_BINARY_ZETA, 2, -3, kInf},
                      {NPU_BINARY_ZETA, 2.5, -0.5, kNaN},
                      {NPU_BINARY_ZETA, kNaN, 1, kNaN},
                      {NPU_BINARY_ZETA, kNaN, -1, kInf},
                      {NPU_BINARY_ZETA, 2, kInf, kNaN},
                      {NPU_BINARY_ZETA, kInf, 0.5, kInf},
                      {NPU_BINARY_ZETA, kInf, 1, 1}};

void known_values() {
  // float64 has the accuracy, float32 the rounding; the 16-bit types lack the arguments.
  for (int dtype : {NPU_FLOAT32, NPU_FLOAT64}) {
    Tensor a(dtype, {1}), b(dtype, {1}), out(dtype, {1});
    for (const Known& k : kDigamma) {
      a.set(Values{k.a});
      OK(npu_v3_unary(stream, NPU_UNARY_DIGAMMA, a, number(0), number(0), out));
      near(out, {k.value}, dtype == NPU_FLOAT64 ? 32 : 0.51, "digamma(%g)", k.a);
    }
    for (const Known& k : kTwo) {
      a.set(Values{k.a}), b.set(Values{k.b});
      OK(npu_v3_binary(stream, k.opcode, a, b, number(0), number(0), out));
      near(out, {k.value}, dtype == NPU_FLOAT64 ? 256 : 0.51, "binary %d of %g and %g", k.opcode, k.a, k.b);
      OK(npu_v3_binary(stream, k.opcode, nullptr, b, number(k.a), number(0), out));
      near(out, {k.value}, dtype == NPU_FLOAT64 ? 256 : 0.51, "binary %d of the number %g and %g", k.opcode, k.a, k.b);
    }
  }
  // Where one way of computing hands over to another: P + Q = 1, and no jump.
  Tensor a(NPU_FLOAT64, {1}), x(NPU_FLOAT64, {1}), p(NPU_FLOAT64, {1}), q(NPU_FLOAT64, {1});
  for (double s : {1e-3, 0.3, 0.999, 5.0, 9.99, 10.0, 100.0, 1e4, 9e6, 2e7, 1e9})
    for (double ratio : {0.5, 0.97, 0.9999, 1.0, 1.0001, 1.03, 2.0}) {
      a.set(Values{s}), x.set(Values{s * ratio});
      OK(npu_v3_binary(stream, NPU_BINARY_IGAMMA, a, x, number(0), number(0), p));
      OK(npu_v3_binary(stream, NPU_BINARY_IGAMMAC, a, x, number(0), number(0), q));
      const double sum = p.get()[0] + q.get()[0];
      CHECK(std::fabs(sum - 1) < 1e-12, "P + Q of %g and %g is %.17g", s, s * ratio, sum);
      const double normal = 0.5 * std::erfc(-(ratio - 1) * std::sqrt(s / 2));  // the limit for large s
      if (s > 1e6) CHECK(std::fabs(p.get()[0] - normal) < 1e-3, "P of %g and %g", s, s * ratio);
    }
}

// Steps, signs and shifts, exactly.
void exact() {
  const int64_t n = 65536;
  for (int dtype : {NPU_FLOAT16, NPU_BFLOAT16}) {  // all values there are, up and down
    Tensor x(dtype, {n}), y(dtype, {n}), back(dtype, {n});
    Values v(n);
    for (int64_t i = 0; i < n; i++) {
      const uint64_t bits = static_cast<uint64_t>(i);
      v[i] = decode(dtype, &bits);
    }
    x.set(v);
    for (double towards : {kInf, -kInf}) {
      OK(npu_v3_binary(stream, NPU_BINARY_NEXTAFTER, x, nullptr, number(towards), number(0), y));
      OK(npu_v3_binary(stream, NPU_BINARY_NEXTAFTER, y, nullptr, number(-towards), number(0), back));
      const Values next = y.get(), same = back.get();
      for (int64_t i = 0; i < n; i++) {
        if (std::isnan(v[i])) {
          CHECK(std::isnan(next[i]));
        } else if (v[i] == towards) {
          CHECK(next[i] == v[i]);
        } else {
          CHECK(towards > 0 ? next[i] > v[i] : next[i] < v[i]);
          CHECK(same[i] == v[i], "%s: up and down from %g", name_of(dtype), v[i]);
        }
      }
    }
  }
  Tensor a(NPU_FLOAT32, {8}), b(NPU_FLOAT32, {8}), out(NPU_FLOAT32, {8});
  const Values va = {1, -0.0, 0.0, kNaN, 1, 3, -1e-45, kInf}, vb = {2, 5, -5, 1, kNaN, 3, 1, 0};
  a.set(va), b.set(vb);
  OK(npu_v3_binary(stream, NPU_BINARY_NEXTAFTER, a, b, number(0), number(0), out));
  const Values got = out.get();
  for (int i = 0; i < 8; i++) {
    const double expected = std::nextafterf(float(va[i]), float(vb[i]));
    CHECK(std::isnan(expected) ? std::isnan(got[i]) : got[i] == expected, "nextafter %d", i);
  }
  for (int dtype : {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32, NPU_FLOAT64}) {
    Tensor c(dtype, {8}), s(dtype, {8}), r(dtype, {8});
    c.set(va), s.set(Values{-1, 1, -0.0, -1, 0.0, -kInf, kInf, -2});
    OK(npu_v3_binary(stream, NPU_BINARY_COPYSIGN, c, s, number(0), number(0), r));
    const Values signs = r.get();
    for (int i = 0; i < 8; i++) CHECK(std::signbit(signs[i]) == (i == 0 || i == 2 || i == 3 || i == 5 || i == 7));
  }
  // A number that is to be converted first: 0.1 is another one in float16, and 300 in uint8 is 44.
  Tensor h(NPU_FLOAT16, {1}), byte(NPU_UINT8, {1}), truth(NPU_BOOL, {1});
  h.set(Values{1000}), byte.set(Values{44});
  OK(npu_v3_binary(stream, NPU_BINARY_MUL, h, nullptr, number(0.1), number(1), h));
  CHECK(h.get()[0] == 100);
  h.set(Values{1000});
  OK(npu_v3_binary(stream, NPU_BINARY_MUL + NPU_BINARY_CONVERT, h, nullptr, number(0.1), number(1), h));
  CHECK(h.get()[0] == round_to(NPU_FLOAT16, 1000 * round_to(NPU_FLOAT16, 0.1)));
  OK(npu_v3_binary(stream, NPU_BINARY_EQ + NPU_BINARY_CONVERT, byte, nullptr, whole(300), number(1), truth));
  CHECK(truth.get()[0] == 1);
}

void select_numbers() {
  for (int dtype : {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32, NPU_FLOAT64, NPU_INT8, NPU_UINT8, NPU_INT16, NPU_INT32,
                    NPU_INT64, NPU_BOOL}) {
    Tensor cond(NPU_BOOL, {2, 3}, {0, 1}), a(dtype, {2, 3}), b(dtype, {2, 3}, {1, 2}), out(dtype, {2, 3}, {1, 7});
    cond.set(Values{1, 0, 1, 1, 0, 1}), a.set(Values{0, 1, 1, 0, 1, 0}), b.set(Values{1, 1, 1, 1, 0, 0});
    OK(npu_v3_select(stream, cond, a, b, number(0), number(0), out));
    CHECK(out.get() == (Values{0, 1, 1, 0, 0, 0}));
    OK(npu_v3_select(stream, cond, nullptr, nullptr, whole(1), number(0), out));
    CHECK(out.get() == (Values{1, 0, 1, 1, 0, 1}));
    OK(npu_v3_select(stream, cond, a, nullptr, whole(7), number(1), out));
    CHECK(out.get() == (Values{0, 1, 1, 0, 1, 0}));
    OK(npu_v3_select(stream, cond, nullptr, b, whole(0), number(7), out));
    CHECK(out.get() == (Values{0, 1, 0, 0, 0, 0}));
  }
  Tensor cond(NPU_BOOL, {2}), a(NPU_FLOAT32, {2}), b(NPU_FLOAT16, {2}), empty(NPU_FLOAT32, {0}), none(NPU_BOOL, {0});
  Tensor other(NPU_FLOAT32, {3});
  const npu_scalar_t zero = number(0);
  REFUSED(npu_v3_select(stream, a, a, a, zero, zero, a), NPU_STATUS_NOT_SUPPORTED, "cond", "FLOAT32");
  REFUSED(npu_v3_select(stream, cond, a, b, zero, zero, a), NPU_STATUS_INVALID_VALUE, "b is float16");
  REFUSED(npu_v3_select(stream, cond, other, a, zero, zero, a), NPU_STATUS_INVALID_VALUE, "a has shape [3]");
  REFUSED(npu_v3_select(stream, cond, a, a, zero, zero, nullptr), NPU_STATUS_INVALID_VALUE, "out", "NULL");
  OK(npu_v3_select(stream, none, empty, nullptr, zero, zero, empty));
}

void refusals() {
  Tensor f(NPU_FLOAT32, {2}), i(NPU_INT32, {2}), d(NPU_FLOAT64, {2}), odd(NPU_FLOAT32, {2}, {}, 4);
  const npu_scalar_t one = number(1);
  const int no = NPU_STATUS_NOT_SUPPORTED, bad = NPU_STATUS_INVALID_VALUE;
  for (int opcode = NPU_UNARY_EXP2; opcode <= NPU_UNARY_DIGAMMA; opcode++) {
    REFUSED(npu_v3_unary(stream, opcode, i, one, one, i), no, "npu_v3_unary", "int32", "x");
    REFUSED(npu_v3_unary(stream, opcode, odd, one, one, f), NPU_STATUS_INVALID_ADDRESS, "x", "misaligned");
  }
  for (int opcode : {NPU_BINARY_COPYSIGN, NPU_BINARY_NEXTAFTER, NPU_BINARY_IGAMMA, NPU_BINARY_ZETA})
    REFUSED(npu_v3_binary(stream, opcode, i, i, one, one, i), no, "npu_v3_binary", "int32");
  for (int opcode : {NPU_BINARY_SHL, NPU_BINARY_SHR, NPU_BINARY_GCD}) {
    REFUSED(npu_v3_binary(stream, opcode, f, f, one, one, f), no, "npu_v3_binary", "float32");
    REFUSED(npu_v3_binary(stream, opcode, d, d, one, one, d), no, "npu_v3_binary", "float64");
  }
  REFUSED(npu_v3_unary(stream, NPU_UNARY_DIGAMMA + 1, f, one, one, f), bad, "opcode 46");
  REFUSED(npu_v3_binary(stream, NPU_BINARY_ADD + 512, f, f, one, one, f), bad, "opcode");
}

}  // namespace

int main() {
  open_device();
  elementary();
  inverse_erf();
  known_values();
  exact();
  select_numbers();
  refusals();
  std::printf("test_special: ok\n");
}
