// test_scalar.cpp: the scalar core: float64 in npu_v3_unary and npu_v3_binary, its device time, and what it refuses.
#include <functional>

#include "vector_test.h"

namespace {

const double kInf = HUGE_VAL, kNaN = std::nan("");
const double kAwkward[] = {0.0,     -0.0,  1,      -1,        0.5,     -0.5,    1.5,   2.5,
                           -2.5,    3,     1e-310, 0x1p-1074, kInf,    -kInf,   kNaN,  0x1p52,
                           -0x1p53, 1e300, -1e300, 65536,     1.0 / 3, 123.456, -0.75, 710};

// Same numbers, NaN for NaN, and the same zeros.
bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b && std::signbit(a) == std::signbit(b); }

struct UnaryCase {
  int opcode;
  double (*f)(double);
  bool truth = false;
};
const UnaryCase kUnary[] = {{NPU_UNARY_NEG, [](double x) { return -x; }},
                            {NPU_UNARY_ABS, [](double x) { return std::fabs(x); }},
                            {NPU_UNARY_EXP, [](double x) { return std::exp(x); }},
                            {NPU_UNARY_EXPM1, [](double x) { return std::expm1(x); }},
                            {NPU_UNARY_LOG, [](double x) { return std::log(x); }},
                            {NPU_UNARY_LOG1P, [](double x) { return std::log1p(x); }},
                            {NPU_UNARY_SQRT, [](double x) { return std::sqrt(x); }},
                            {NPU_UNARY_RSQRT, [](double x) { return 1 / std::sqrt(x); }},
                            {NPU_UNARY_RECIPROCAL, [](double x) { return 1 / x; }},
                            {NPU_UNARY_SIN, [](double x) { return std::sin(x); }},
                            {NPU_UNARY_COS, [](double x) { return std::cos(x); }},
                            {NPU_UNARY_TANH, [](double x) { return std::tanh(x); }},
                            {NPU_UNARY_ERF, [](double x) { return std::erf(x); }},
                            {NPU_UNARY_FLOOR, [](double x) { return std::floor(x); }},
                            {NPU_UNARY_CEIL, [](double x) { return std::ceil(x); }},
                            {NPU_UNARY_ROUND, [](double x) { return std::nearbyint(x); }},
                            {NPU_UNARY_TRUNC, [](double x) { return std::trunc(x); }},
                            {NPU_UNARY_EXP2, [](double x) { return std::exp2(x); }},
                            {NPU_UNARY_LOG2, [](double x) { return std::log2(x); }},
                            {NPU_UNARY_LOG10, [](double x) { return std::log10(x); }},
                            {NPU_UNARY_TAN, [](double x) { return std::tan(x); }},
                            {NPU_UNARY_ASIN, [](double x) { return std::asin(x); }},
                            {NPU_UNARY_ACOS, [](double x) { return std::acos(x); }},
                            {NPU_UNARY_ATAN, [](double x) { return std::atan(x); }},
                            {NPU_UNARY_SINH, [](double x) { return std::sinh(x); }},
                            {NPU_UNARY_COSH, [](double x) { return std::cosh(x); }},
                            {NPU_UNARY_ASINH, [](double x) { return std::asinh(x); }},
                            {NPU_UNARY_ACOSH, [](double x) { return std::acosh(x); }},
                            {NPU_UNARY_ATANH, [](double x) { return std::atanh(x); }},
                            {NPU_UNARY_ERFC, [](double x) { return std::erfc(x); }},
                            {NPU_UNARY_SIGN, [](double x) { return double(x > 0) - double(x < 0); }},
                            {NPU_UNARY_ISNAN, [](double x) { return double(std::isnan(x)); }, true},
                            {NPU_UNARY_LOGICAL_NOT, [](double x) { return double(x == 0); }, true},
                            {NPU_UNARY_ISFINITE, [](double x) { return double(std::isfinite(x)); }, true}};

const double kAlpha = 0.1, kScalar = 1.0 / 3;
struct BinaryCase {
  int opcode;
  double (*f)(double, double);
  bool truth = false;
};
double scaled(double b) {  // rounded before it is added
  volatile double product = kAlpha * b;
  return product;
}
double remainder_of(double a, double b) {
  const double m = std::fmod(a, b);
  return m != 0 && (m < 0) != (b < 0) ? m + b : m;
}
const BinaryCase kBinary[] = {{NPU_BINARY_ADD, [](double a, double b) { return a + scaled(b); }},
                              {NPU_BINARY_SUB, [](double a, double b) { return a - scaled(b); }},
                              {NPU_BINARY_MUL, [](double a, double b) { return a * b; }},
                              {NPU_BINARY_DIV, [](double a, double b) { return a / b; }},
                              {NPU_BINARY_MAX, [](double a, double b) { return std::isnan(a) || a > b ? a : b; }},
                              {NPU_BINARY_MIN, [](double a, double b) { return std::isnan(a) || a < b ? a : b; }},
                              {NPU_BINARY_REMAINDER, remainder_of},
                              {NPU_BINARY_FMOD, [](double a, double b) { return std::fmod(a, b); }},
                              {NPU_BINARY_POW, [](double a, double b) { return std::pow(a, b); }},
                              {NPU_BINARY_ATAN2, [](double a, double b) { return std::atan2(a, b); }},
                              {NPU_BINARY_COPYSIGN, [](double a, double b) { return std::copysign(a, b); }},
                              {NPU_BINARY_NEXTAFTER, [](double a, double b) { return std::nextafter(a, b); }},
                              {NPU_BINARY_EQ, [](double a, double b) { return double(a == b); }, true},
                              {NPU_BINARY_NE, [](double a, double b) { return double(a != b); }, true},
                              {NPU_BINARY_LT, [](double a, double b) { return double(a < b); }, true},
                              {NPU_BINARY_LE, [](double a, double b) { return double(a <= b); }, true},
                              {NPU_BINARY_GT, [](double a, double b) { return double(a > b); }, true},
                              {NPU_BINARY_GE, [](double a, double b) { return double(a >= b); }, true}};

void check(const Tensor& got, const std::function<double(int64_t)>& expected, const char* what, int opcode) {
  const Values v = got.get();
  for (int64_t i = 0; i < got.n; i++)
    CHECK(same(v[i], expected(i)), "%s %d: element %lld is %.17g, expected %.17g", what, opcode,
          static_cast<long long>(i), v[i], expected(i));
}

void arithmetic() {
  const int64_t k = sizeof(kAwkward) / sizeof(kAwkward[0]), n = k * k;
  Values x(n), y(n);
  for (int64_t i = 0; i < n; i++) x[i] = kAwkward[i / k], y[i] = kAwkward[i % k];
  for (int64_t i = 0; i < n; i += 7) x[i] = uniform(-40, 40), y[i] = uniform(-1, 1);
  // Dense, transposed, and with gaps.
  for (const Shape& stride : {Shape{k, 1}, Shape{1, k}, Shape{3 * k, 2}}) {
    Tensor a(NPU_FLOAT64, {k, k}, stride), b(NPU_FLOAT64, {k, k}), out(NPU_FLOAT64, {k, k}, {1, k + 1});
    Tensor truth(NPU_BOOL, {k, k});
    a.set(x), b.set(y);
    for (const UnaryCase& c : kUnary) {
      const Tensor& to = c.truth ? truth : out;
      OK(npu_v3_unary(stream, c.opcode, a, number(0), number(0), to));
      check(to, [&](int64_t i) { return c.f(x[i]); }, "unary", c.opcode);
    }
    for (const BinaryCase& c : kBinary) {
      const Tensor& to = c.truth ? truth : out;
      OK(npu_v3_binary(stream, c.opcode, a, b, number(0), number(kAlpha), to));
      check(to, [&](int64_t i) { return c.f(x[i], y[i]); }, "binary", c.opcode);
      OK(npu_v3_binary(stream, c.opcode, a, nullptr, number(kScalar), number(kAlpha), to));
      check(to, [&](int64_t i) { return c.f(x[i], kScalar); }, "binary with b a number", c.opcode);
      OK(npu_v3_binary(stream, c.opcode, nullptr, b, whole(3), number(kAlpha), to));
      check(to, [&](int64_t i) { return c.f(3, y[i]); }, "binary with a a number", c.opcode);
    }
  }
  // In place, long enough for several threads; a stride of 0.
  const int64_t m = 100000;
  Tensor a(NPU_FLOAT64, {m}), one(NPU_FLOAT64, {m}, {0}), none(NPU_FLOAT64, {0});
  Values v(m);
  for (int64_t i = 0; i < m; i++) v[i] = double(i) + 0.1;
  a.set(v);
  one.set(Values(m, 0x1p-40));
  OK(npu_v3_binary(stream, NPU_BINARY_ADD, a, one, number(0), whole(1), a));
  check(a, [&](int64_t i) { return v[i] + 0x1p-40; }, "in place", 0);
  OK(npu_v3_unary(stream, NPU_UNARY_NEG, none, number(0), number(0), none));
}

// What unscaling does with the factor of a loss scale: double, 1/x, back to float.
void inverse_scale() {
  Tensor scale(NPU_FLOAT32, {1}), wide(NPU_FLOAT64, {1}), inverse(NPU_FLOAT64, {1}), back(NPU_FLOAT32, {1});
  for (float s : {65536.0f, 3.0f, 1e-30f, 12345.678f}) {
    scale.set(Values{s});
    OK(npu_v3_copy_nd(stream, wide, scale));
    OK(npu_v3_unary(stream, NPU_UNARY_RECIPROCAL, wide, number(0), number(0), inverse));
    OK(npu_v3_copy_nd(stream, back, inverse));
    CHECK(inverse.get()[0] == 1 / double(s) && back.get()[0] == double(float(1 / double(s))));
  }
}

void device_time() {
  auto cost = [](const std::function<void()>& f) {
    uint64_t before = 0, after = 0;
    sync();
    OK(npu_device_cycles(device, &before));
    f();
    sync();
    OK(npu_device_cycles(device, &after));
    return after - before;
  };
  Tensor x(NPU_FLOAT64, {10, 10}), y(NPU_FLOAT64, {10, 10}, {1, 10}), one(NPU_FLOAT64, {}), truth(NPU_BOOL, {10, 10});
  CHECK(cost([&] { OK(npu_v3_unary(stream, NPU_UNARY_EXP, x, number(0), number(0), x)); }) == 100 + 64 * 100);
  CHECK(cost([&] { OK(npu_v3_unary(stream, NPU_UNARY_RECIPROCAL, one, number(0), number(0), one)); }) == 164);
  CHECK(cost([&] { OK(npu_v3_binary(stream, NPU_BINARY_LT, x, y, number(0), whole(1), truth)); }) == 100 + 64 * 100);
}

void refusals() {
  Tensor x(NPU_FLOAT64, {4}), y(NPU_FLOAT64, {4}), f(NPU_FLOAT32, {4}), truth(NPU_BOOL, {4});
  Tensor square(NPU_FLOAT64, {2, 2}), index(NPU_INT64, {2}), crooked(NPU_FLOAT64, {4}, {}, 8);
  const npu_scalar_t one = number(1);
  const int no = NPU_STATUS_NOT_SUPPORTED, bad = NPU_STATUS_INVALID_VALUE;
  for (int opcode = NPU_UNARY_NEG; opcode <= NPU_UNARY_ISFINITE; opcode++) {
    bool taken = false;
    for (const UnaryCase& c : kUnary) taken = taken || c.opcode == opcode;
    if (!taken) REFUSED(npu_v3_unary(stream, opcode, x, one, one, y), no, "npu_v3_unary", "float64", "x");
  }
  for (int opcode = NPU_BINARY_ADD; opcode <= NPU_BINARY_LEAKY_RELU_GRAD; opcode++) {
    bool taken = opcode == NPU_BINARY_IGAMMA || opcode == NPU_BINARY_IGAMMAC;  // test_special.cpp has them
    for (const BinaryCase& c : kBinary) taken = taken || c.opcode == opcode;
    if (!taken) REFUSED(npu_v3_binary(stream, opcode, x, y, one, one, y), no, "npu_v3_binary", "float64", "a");
  }
  REFUSED(npu_v3_binary(stream, NPU_BINARY_ADD, x, f, one, one, x), bad, "b is float32", "expected float64");
  REFUSED(npu_v3_binary(stream, NPU_BINARY_ADD, f, x, one, one, f), bad, "b is float64", "expected float32");
  REFUSED(npu_v3_unary(stream, NPU_UNARY_EXP, x, one, one, f), bad, "out is float32", "expected float64");
  REFUSED(npu_v3_unary(stream, NPU_UNARY_EXP, f, one, one, x), bad, "out is float64", "expected float32");
  REFUSED(npu_v3_binary(stream, NPU_BINARY_LT, x, y, one, one, x), bad, "out is float64", "expected bool");
  REFUSED(npu_v3_unary(stream, NPU_UNARY_NEG, crooked, one, one, x), NPU_STATUS_INVALID_ADDRESS, "x", "misaligned");
  REFUSED(npu_v3_ternary(stream, NPU_TERNARY_CLAMP, x, x, y, one, x), no, "FLOAT64");
  REFUSED(npu_v3_reduce(stream, NPU_REDUCE_SUM, x, 1, Tensor(NPU_FLOAT32, {1})), bad, "expected float64");
  REFUSED(npu_v3_softmax(stream, x, 0, 0, y), no, "FLOAT64");
  REFUSED(npu_v3_matmul(stream, square, square, square, 1, 1, square), no, "FLOAT64");
  REFUSED(npu_v3_unscale(stream, x, f, f), no, "FLOAT64");
  REFUSED(npu_v3_index_add_rows(stream, square, index, square), no, "FLOAT64");
}

}  // namespace

int main() {
  open_device();
  arithmetic();
  inverse_scale();
  device_time();
  refusals();
  std::printf("test_scalar: ok\n");
}
