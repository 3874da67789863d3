// vector.cpp: the vector unit: 64 lanes of float32 or whole numbers. Operands of other dtypes are widened on their way
// in and narrowed on their way out; rows are taken a piece at a time.
#include <cmath>
#include <limits>
#include <type_traits>

#include "rows.h"

namespace x1 {

namespace {

constexpr double kLanes = 64;

// Calls f with a function object for `opcode` of one operand; false if T has no such operation.
template <class T, class F>
bool unary_of(int32_t opcode, const View& x, const F& f) {
  switch (opcode) {
    case X1_ABS:
      return f([](T a) { return std::is_same_v<T, float> ? T(std::fabs(float(a)))
                                : a < 0                  ? T(0 - uint64_t(a))
                                                         : a; }),
             true;
    case X1_RELU:
      return f([](T a) { return a > 0 || a != a ? a : T(0); }), true;
    default:
      break;
  }
  if constexpr (std::is_same_v<T, int64_t>) {
    switch (opcode) {
      case X1_NEG:
        return f([](T a) { return T(0 - uint64_t(a)); }), true;
      case X1_NOT:
        if (x.dtype == X1_DTYPE_BOOL) return f([](T a) { return T(!a); }), true;
        return f([](T a) { return ~a; }), true;
      default:
        return false;
    }
  } else {
    switch (opcode) {
      case X1_NEG:
        return f([](T a) { return -a; }), true;
      case X1_FLOOR:
        return f([](T a) { return std::floor(a); }), true;
      case X1_CEIL:
        return f([](T a) { return std::ceil(a); }), true;
      case X1_TRUNC:
        return f([](T a) { return std::trunc(a); }), true;
      case X1_ROUND:
        return f([](T a) { return std::nearbyint(a); }), true;
      case X1_SQRT:
        return f([](T a) { return std::sqrt(a); }), true;
      case X1_RSQRT:
        return f([](T a) { return 1.0f / std::sqrt(a); }), true;
      case X1_EXP:
        return f([](T a) { return std::exp(a); }), true;
      case X1_EXPM1:
        return f([](T a) { return std::expm1(a); }), true;
      case X1_LOG:
        return f([](T a) { return std::log(a); }), true;
      case X1_LOG1P:
        return f([](T a) { return std::log1p(a); }), true;
      case X1_SIN:
        return f([](T a) { return std::sin(a); }), true;
      case X1_COS:
        return f([](T a) { return std::cos(a); }), true;
      case X1_TANH:
        return f([](T a) { return std::tanh(a); }), true;
      case X1_ERF:
        return f([](T a) { return std::erf(a); }), true;
      case X1_SIGMOID:
        return f([](T a) { return 1.0f / (1.0f + std::exp(-a)); }), true;
      default:
        return false;
    }
  }
}

template <class T, class F>
bool binary_of(int32_t opcode, const F& f) {
  constexpr bool real = std::is_same_v<T, float>;
  using U = std::conditional_t<real, float, uint64_t>;  // whole numbers wrap around
  switch (opcode) {
    case X1_ADD:
      return f([](T a, T b) { return T(U(a) + U(b)); }), true;
    case X1_SUB:
      return f([](T a, T b) { return T(U(a) - U(b)); }), true;
    case X1_MUL:
      return f([](T a, T b) { return T(U(a) * U(b)); }), true;
    case X1_MAX:
      return f([](T a, T b) { return a > b || a != a ? a : b; }), true;
    case X1_MIN:
      return f([](T a, T b) { return a < b || a != a ? a : b; }), true;
    case X1_RELU_GRAD:
      return f([](T a, T b) { return b > 0 ? a : T(0); }), true;
    default:
      break;
  }
  if constexpr (real) {
    switch (opcode) {
      case X1_DIV:
        return f([](T a, T b) { return a / b; }), true;
      case X1_POW:
        return f([](T a, T b) { return std::pow(a, b); }), true;
      case X1_FMOD:
        return f([](T a, T b) { return std::fmod(a, b); }), true;
      default:
        return false;
    }
  } else {
    switch (opcode) {
      case X1_IDIV:
        return f([](T a, T b) { return b == 0 ? 0 : b == -1 ? T(0 - uint64_t(a)) : a / b; }), true;
      case X1_AND:
        return f([](T a, T b) { return a & b; }), true;
      case X1_OR:
        return f([](T a, T b) { return a | b; }), true;
      case X1_XOR:
        return f([](T a, T b) { return a ^ b; }), true;
      default:
        return false;
    }
  }
}

template <class T, class F>
bool compare_of(int32_t opcode, const F& f) {
  switch (opcode) {
    case X1_EQ:
      return f([](T a, T b) { return int64_t(a == b); }), true;
    case X1_NE:
      return f([](T a, T b) { return int64_t(a != b); }), true;
    case X1_LT:
      return f([](T a, T b) { return int64_t(a < b); }), true;
    case X1_LE:
      return f([](T a, T b) { return int64_t(a <= b); }), true;
    case X1_GT:
      return f([](T a, T b) { return int64_t(a > b); }), true;
    case X1_GE:
      return f([](T a, T b) { return int64_t(a >= b); }), true;
    default:
      return false;
  }
}

// y[i] = f(a[i]) or f(a[i], b[i]): operands as T, results as R.
template <class T, class R, class F>
void apply(const View& a, const View* b, const View& y, const F& f) {
  T left[kPiece], right[kPiece];
  R result[kPiece];
  for (Rows r{&a, b ? b : &a, &y}; r.more(); r.next()) {
    for (int64_t i = 0; i < r.length(); i += kPiece) {
      int64_t n = std::min(kPiece, r.length() - i);
      auto at = [&](int k, const View& v) { return r.at(k) + i * r.stride(k) * item_size(v.dtype); };
      const T* p = load(a, at(0, a), r.stride(0), n, left);
      R* out = place(y, at(2, y), r.stride(2), result);
      if constexpr (std::is_invocable_v<F, T>) {
        for (int64_t j = 0; j < n; j++) out[j] = f(p[j]);
      } else {
        const T* q = load(*b, at(1, *b), r.stride(1), n, right);
        for (int64_t j = 0; j < n; j++) out[j] = f(p[j], q[j]);
      }
      store(y, out, at(2, y), r.stride(2), n);
    }
  }
}

int no_opcode(const Command& command, int32_t opcode) {
  return fail(X1_EUNSUPPORTED, "%s: opcode %d is not there for this dtype", command.name(), opcode);
}

// x with its reduced dimensions of size 1, and what each element of it stands for.
struct Split {
  View outer, inner;
  Split(const View& x, uint32_t dimensions) : outer(x), inner(x) {
    for (int32_t d = 0; d < x.rank; d++) (dimensions >> d & 1 ? outer : inner).shape[d] = 1;
  }
};

template <class T>
T least() {
  return std::is_same_v<T, float> ? T(-std::numeric_limits<float>::infinity()) : std::numeric_limits<T>::min();
}
template <class T>
T most() {
  return std::is_same_v<T, float> ? T(std::numeric_limits<float>::infinity()) : std::numeric_limits<T>::max();
}

// Sums of floats are kept in double, of whole numbers modulo 2^64.
template <class T>
T reduce_one(int32_t opcode, const View& x) {
  using Sum = std::conditional_t<std::is_same_v<T, float>, double, uint64_t>;
  T buffer[kPiece], extreme = opcode == X1_MAXIMUM ? least<T>() : most<T>();
  Sum sum = opcode == X1_PROD ? 1 : 0;
  int64_t count = 0;
  for (Rows r{&x}; r.more(); r.next()) {
    for (int64_t i = 0; i < r.length(); i += kPiece) {
      int64_t n = std::min(kPiece, r.length() - i);
      const T* p = load(x, r.at(0) + i * r.stride(0) * item_size(x.dtype), r.stride(0), n, buffer);
      count += n;
      if (opcode == X1_SUM || opcode == X1_MEAN)
        for (int64_t j = 0; j < n; j++) sum += Sum(p[j]);
      else if (opcode == X1_PROD)
        for (int64_t j = 0; j < n; j++) sum *= Sum(p[j]);
      else if (opcode == X1_MAXIMUM)
        for (int64_t j = 0; j < n; j++) extreme = p[j] > extreme || p[j] != p[j] ? p[j] : extreme;
      else
        for (int64_t j = 0; j < n; j++) extreme = p[j] < extreme || p[j] != p[j] ? p[j] : extreme;
    }
  }
  if (opcode == X1_MAXIMUM || opcode == X1_MINIMUM) return extreme;
  return opcode == X1_MEAN ? T(double(sum) / double(count)) : T(sum);
}

template <class T>
void reduce(int32_t opcode, const View& x, uint32_t dimensions, const View& y) {
  Split s(x, dimensions);
  for (Rows r{&s.outer, &y}; r.more(); r.next()) {
    for (int64_t i = 0; i < r.length(); i++) {
      s.inner.data = r.at(0) + i * r.stride(0) * item_size(x.dtype);
      T value = reduce_one<T>(opcode, s.inner);
      store(y, &value, r.at(1) + i * r.stride(1) * item_size(y.dtype), 0, 1);
    }
  }
}

template <class T>
int64_t first_extreme(bool maximum, const View& x, const char* first, int64_t stride, int64_t n) {
  T best{}, v;
  int64_t at = 0;
  for (int64_t i = 0; i < n; i++) {
    T here = *load(x, first + i * stride * item_size(x.dtype), 0, 1, &v);
    if (i == 0 || (maximum ? here > best : here < best) || (here != here && best == best)) best = here, at = i;
    if (best != best) break;
  }
  return at;
}

// Along one dimension: a view without it, and how far its elements are apart.
View without(const View& v, int32_t dimension) {
  View line = v;
  line.shape[dimension] = 1;
  return line;
}

}  // namespace
}  // namespace x1

using namespace x1;

extern "C" {

X1_API int x1_unary_ex(int32_t opcode, const x1_view_t* x, const x1_view_t* y) {
  Command command("x1_unary_ex");
  View vx, vy;
  uint32_t dtypes = opcode == X1_NOT ? kComputed & ~kFloats : opcode >= X1_FLOOR ? kFloats : kNumbers;
  if (!command.look("x", x, dtypes, &vx) || !command.look("y", y, bit(vx.dtype), &vy) ||
      !command.same_shape("x", vx, vy))
    return failed();
  bool known = is_float(vx.dtype)
                   ? unary_of<float>(opcode, vx, [&](auto f) { apply<float, float>(vx, nullptr, vy, f); })
                   : unary_of<int64_t>(opcode, vx, [&](auto f) { apply<int64_t, int64_t>(vx, nullptr, vy, f); });
  if (!known) return no_opcode(command, opcode);
  return command.done(double(vy.elements()), kLanes, vx.bytes() + vy.bytes());
}

X1_API int x1_binary_ex(int32_t opcode, const x1_view_t* a, const x1_view_t* b, const x1_view_t* y) {
  Command command("x1_binary_ex");
  View va, vb, vy, like;
  const bool compares = opcode >= X1_EQ && opcode <= X1_GE;
  const bool bits = opcode >= X1_AND && opcode <= X1_XOR;
  const uint32_t dtypes = compares                                ? kComputed
                          : bits                                  ? kComputed & ~kFloats
                          : opcode >= X1_DIV && opcode <= X1_FMOD ? kFloats
                          : opcode == X1_IDIV                     ? kWhole
                                                                  : kNumbers;
  if (!a || !b) return fail(X1_EVALUE, "x1_binary_ex: NULL");
  const bool right = a->dtype == X1_NUMBER;
  if (!command.look(right ? "b" : "a", right ? b : a, dtypes, &like) ||
      !command.look("y", y, compares ? bit(X1_DTYPE_BOOL) : bit(like.dtype), &vy) ||
      !command.same_shape("y", vy, like) || !command.look_like("a", a, like, &va) ||
      !command.look_like("b", b, like, &vb))
    return failed();
  bool known;
  if (compares)
    known = is_float(like.dtype)
                ? compare_of<float>(opcode, [&](auto f) { apply<float, int64_t>(va, &vb, vy, f); })
                : compare_of<int64_t>(opcode, [&](auto f) { apply<int64_t, int64_t>(va, &vb, vy, f); });
  else
    known = is_float(like.dtype) ? binary_of<float>(opcode, [&](auto f) { apply<float, float>(va, &vb, vy, f); })
                                 : binary_of<int64_t>(opcode, [&](auto f) { apply<int64_t, int64_t>(va, &vb, vy, f); });
  if (!known) return no_opcode(command, opcode);
  return command.done(double(vy.elements()), kLanes, va.bytes() + vb.bytes() + vy.bytes());
}

static int binary_line(int32_t opcode, const float* a, const float* b, float* c, int n) {
  x1_view_t line{};
  line.dtype = X1_DTYPE_FLOAT32;
  line.rank = 1;
  line.shape[0] = n;
  line.stride[0] = 1;
  x1_view_t va = line, vb = line, vc = line;
  va.data = const_cast<float*>(a);
  vb.data = const_cast<float*>(b);
  vc.data = c;
  return x1_binary_ex(opcode, &va, &vb, &vc);
}
X1_API int x1_add(const float* a, const float* b, float* c, int n) { return binary_line(X1_ADD, a, b, c, n); }
X1_API int x1_mul(const float* a, const float* b, float* c, int n) { return binary_line(X1_MUL, a, b, c, n); }

X1_API int x1_select_ex(const x1_view_t* condition, const x1_view_t* a, const x1_view_t* b, const x1_view_t* y) {
  Command command("x1_select_ex");
  View vc, va, vb, vy;
  if (!command.look("y", y, kComputed, &vy) || !command.look("condition", condition, bit(X1_DTYPE_BOOL), &vc) ||
      !command.same_shape("condition", vc, vy) || !command.look_like("a", a, vy, &va) ||
      !command.look_like("b", b, vy, &vb))
    return failed();
  auto choose = [&](auto zero) {
    using T = decltype(zero);
    T left[kPiece], right[kPiece], result[kPiece];
    for (Rows r{&vc, &va, &vb, &vy}; r.more(); r.next()) {
      for (int64_t i = 0; i < r.length(); i += kPiece) {
        int64_t n = std::min(kPiece, r.length() - i);
        auto at = [&](int k, const View& v) { return r.at(k) + i * r.stride(k) * item_size(v.dtype); };
        const T *p = load(va, at(1, va), r.stride(1), n, left), *q = load(vb, at(2, vb), r.stride(2), n, right);
        const char* yes = at(0, vc);
        T* out = place(vy, at(3, vy), r.stride(3), result);
        for (int64_t j = 0; j < n; j++) out[j] = yes[j * r.stride(0)] ? p[j] : q[j];
        store(vy, out, at(3, vy), r.stride(3), n);
      }
    }
  };
  is_float(vy.dtype) ? choose(float()) : choose(int64_t());
  return command.done(double(vy.elements()), kLanes, va.bytes() + vb.bytes() + vy.bytes());
}

X1_API int x1_reduce_ex(int32_t opcode, const x1_view_t* x, uint32_t dimensions, const x1_view_t* y) {
  Command command("x1_reduce_ex");
  View vx, vy;
  if (opcode < X1_SUM || opcode > X1_MEAN) return no_opcode(command, opcode);
  const bool extreme = opcode == X1_MAXIMUM || opcode == X1_MINIMUM;
  if (!command.look("x", x, extreme ? kComputed : opcode == X1_MEAN ? kFloats : kNumbers, &vx)) return failed();
  const bool wider = vx.dtype == X1_DTYPE_UINT8 && !extreme;
  if (!command.look("y", y, bit(vx.dtype) | (wider ? bit(X1_DTYPE_INT32) : 0), &vy)) return failed();
  if (vx.rank != vy.rank) return fail(X1_EVALUE, "x1_reduce_ex: ranks %d and %d", vx.rank, vy.rank);
  for (int32_t d = 0; d < vx.rank; d++)
    if (vy.shape[d] != (dimensions >> d & 1 ? 1 : vx.shape[d]))
      return fail(X1_EVALUE, "x1_reduce_ex: size of y in dimension %d", d);
  if (extreme && vx.dtype != X1_DTYPE_BOOL && vy.elements() && !vx.elements())
    return fail(X1_EVALUE, "x1_reduce_ex: an extreme of nothing");
  if (vx.dtype == X1_DTYPE_BOOL && !vx.elements()) {  // any of nothing is false, all of nothing true
    const int64_t value = opcode == X1_MINIMUM;
    for (Rows r{&vy}; r.more(); r.next())
      for (int64_t i = 0; i < r.length(); i++) store(vy, &value, r.at(0) + i * r.stride(0), 0, 1);
  } else if (is_float(vx.dtype)) {
    reduce<float>(opcode, vx, dimensions, vy);
  } else {
    reduce<int64_t>(opcode, vx, dimensions, vy);
  }
  return command.done(double(vx.elements()), kLanes, vx.bytes() + vy.bytes());
}

X1_API int x1_arg_reduce_ex(int32_t opcode, const x1_view_t* x, int32_t dimension, const x1_view_t* y) {
  Command command("x1_arg_reduce_ex");
  View vx, vy;
  if (opcode != X1_MAXIMUM && opcode != X1_MINIMUM) return no_opcode(command, opcode);
  if (!command.look("x", x, kNumbers, &vx) || !command.look("y", y, bit(X1_DTYPE_INT64), &vy)) return failed();
  if (dimension < 0 || dimension >= vx.rank) return fail(X1_EVALUE, "x1_arg_reduce_ex: dimension %d", dimension);
  View lines = without(vx, dimension);
  if (!command.same_shape("y", lines, vy)) return failed();
  if (vy.elements() && !vx.shape[dimension]) return fail(X1_EVALUE, "x1_arg_reduce_ex: an extreme of nothing");
  for (Rows r{&lines, &vy}; r.more(); r.next()) {
    for (int64_t i = 0; i < r.length(); i++) {
      const char* first = r.at(0) + i * r.stride(0) * item_size(vx.dtype);
      const bool maximum = opcode == X1_MAXIMUM;
      int64_t n = vx.shape[dimension], stride = vx.stride[dimension];
      int64_t at = is_float(vx.dtype) ? first_extreme<float>(maximum, vx, first, stride, n)
                                      : first_extreme<int64_t>(maximum, vx, first, stride, n);
      store(vy, &at, r.at(1) + i * r.stride(1) * 8, 0, 1);
    }
  }
  return command.done(double(vx.elements()), kLanes, vx.bytes() + vy.bytes());
}

X1_API int x1_cumsum_ex(const x1_view_t* x, int32_t dimension, const x1_view_t* y) {
  Command command("x1_cumsum_ex");
  View vx, vy;
  if (!command.look("x", x, kNumbers, &vx) || !command.look("y", y, bit(vx.dtype), &vy) ||
      !command.same_shape("x", vx, vy))
    return failed();
  if (dimension < 0 || dimension >= vx.rank) return fail(X1_EVALUE, "x1_cumsum_ex: dimension %d", dimension);
  View from = without(vx, dimension), to = without(vy, dimension);
  auto run = [&](auto zero, auto sum0) {
    using T = decltype(zero);
    for (Rows r{&from, &to}; r.more(); r.next()) {
      for (int64_t i = 0; i < r.length(); i++) {
        auto sum = sum0;
        for (int64_t j = 0; j < vx.shape[dimension]; j++) {
          T v, total;
          sum += decltype(sum0)(
              *load(vx, r.at(0) + (i * r.stride(0) + j * vx.stride[dimension]) * item_size(vx.dtype), 0, 1, &v));
          total = T(sum);
          store(vy, &total, r.at(1) + (i * r.stride(1) + j * vy.stride[dimension]) * item_size(vy.dtype), 0, 1);
        }
      }
    }
  };
  is_float(vx.dtype) ? run(float(), double()) : run(int64_t(), uint64_t());
  return command.done(double(vx.elements()), 1, vx.bytes() + vy.bytes());
}

X1_API int x1_iota_ex(const x1_view_t* start, const x1_view_t* step, const x1_view_t* y) {
  Command command("x1_iota_ex");
  View vy;
  if (!start || !step || start->dtype != X1_NUMBER || step->dtype != X1_NUMBER)
    return fail(X1_EVALUE, "x1_iota_ex: start and step are numbers");
  if (!command.look("y", y, kNumbers, &vy)) return failed();
  if (vy.rank != 1) return fail(X1_EUNSUPPORTED, "x1_iota_ex: y: rank %d", vy.rank);
  for (int64_t i = 0; i < vy.shape[0]; i++) {
    char* at = vy.data + i * vy.stride[0] * item_size(vy.dtype);
    float real = float(start->real + double(i) * step->real);
    int64_t whole = int64_t(uint64_t(start->integer) + uint64_t(i) * uint64_t(step->integer));
    is_float(vy.dtype) ? store(vy, &real, at, 0, 1) : store(vy, &whole, at, 0, 1);
  }
  return command.done(double(vy.elements()), kLanes, vy.bytes());
}

}  // extern "C"
