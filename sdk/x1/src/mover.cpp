// mover.cpp: copies with any strides, conversions, fills, gathers and scatters; 64 bytes a cycle.
#include <cmath>
#include <cstring>

#include "rows.h"

namespace x1 {

namespace {

template <class T>
void move_row(const Rows& r) {
  const T* from = reinterpret_cast<const T*>(r.at(0));
  T* to = reinterpret_cast<T*>(r.at(1));
  const int64_t n = r.length(), s = r.stride(0), t = r.stride(1);
  if (s == 1 && t == 1) {
    std::memmove(to, from, size_t(n) * sizeof(T));
  } else if (t == 1) {
    for (int64_t i = 0; i < n; i++) to[i] = from[i * s];
  } else {
    for (int64_t i = 0; i < n; i++) to[i * t] = from[i * s];
  }
}

// Calls f with a value of the unsigned type of `bytes` bytes.
template <class F>
void of_size(int64_t bytes, const F& f) {
  switch (bytes) {
    case 1:
      return f(uint8_t());
    case 2:
      return f(uint16_t());
    case 4:
      return f(uint32_t());
    default:
      return f(uint64_t());
  }
}

void convert_rows(const View& x, const View& y) {
  float real[kPiece], real_out[kPiece];
  int64_t whole[kPiece], whole_out[kPiece];
  for (Rows r{&x, &y}; r.more(); r.next()) {
    for (int64_t i = 0; i < r.length(); i += kPiece) {
      const int64_t n = std::min(kPiece, r.length() - i);
      const char* from = r.at(0) + i * r.stride(0) * item_size(x.dtype);
      char* to = r.at(1) + i * r.stride(1) * item_size(y.dtype);
      if (is_float(x.dtype)) {
        const float* p = load(x, from, r.stride(0), n, real);
        if (is_float(y.dtype)) {
          store(y, p, to, r.stride(1), n);
        } else {
          const bool truth = y.dtype == X1_DTYPE_BOOL;
          for (int64_t j = 0; j < n; j++)
            whole_out[j] = truth ? p[j] != 0 : std::fabs(p[j]) < 0x1p63f ? int64_t(p[j]) : INT64_MIN;
          store(y, whole_out, to, r.stride(1), n);
        }
      } else {
        const int64_t* p = load(x, from, r.stride(0), n, whole);
        if (is_float(y.dtype)) {
          for (int64_t j = 0; j < n; j++) real_out[j] = float(p[j]);
          store(y, real_out, to, r.stride(1), n);
        } else {
          store(y, p, to, r.stride(1), n);
        }
      }
    }
  }
}

constexpr uint32_t kConverted = kComputed | bit(X1_DTYPE_INT8);

// `index` along `dimension` is below `size`, everywhere.
bool in_range(const Command& command, const View& index, int64_t size) {
  for (Rows r{&index}; r.more(); r.next()) {
    for (int64_t i = 0; i < r.length(); i++) {
      int64_t at = reinterpret_cast<const int64_t*>(r.at(0))[i * r.stride(0)];
      if (at < 0 || at >= size)
        return fail(X1_EVALUE, "%s: index %lld is out of range: there are %lld", command.name(), (long long)at,
                    (long long)size),
               false;
    }
  }
  return true;
}

// `whole` is at least as long as `part`, except in `dimension`.
bool covers(const Command& command, const View& whole, const View& part, int32_t dimension) {
  bool fits = whole.rank == part.rank && dimension >= 0 && dimension < whole.rank;
  for (int32_t d = 0; fits && d < whole.rank; d++) fits = d == dimension || whole.shape[d] >= part.shape[d];
  return fits || (fail(X1_EVALUE, "%s: dimension %d, and the shapes do not fit", command.name(), dimension), false);
}

// `v` in the shape of `index`: element 0 along `dimension`, to be moved by the index.
View under(const View& v, const View& index, int32_t dimension) {
  View base = v;
  for (int32_t d = 0; d < v.rank; d++) base.shape[d] = index.shape[d];
  base.stride[dimension] = 0;
  return base;
}

}  // namespace
}  // namespace x1

using namespace x1;

extern "C" {

X1_API int x1_copy_ex(const x1_view_t* x, const x1_view_t* y) {
  Command command("x1_copy_ex");
  View vx, vy;
  if (!command.look("x", x, kMoved, &vx) || !command.look("y", y, kMoved, &vy) || !command.same_shape("x", vx, vy))
    return failed();
  if (vx.dtype == vy.dtype) {
    of_size(item_size(vx.dtype), [&](auto unit) {
      for (Rows r{&vx, &vy}; r.more(); r.next()) move_row<decltype(unit)>(r);
    });
  } else if ((bit(vx.dtype) | bit(vy.dtype)) & ~kConverted) {
    return fail(X1_EUNSUPPORTED, "x1_copy_ex: no conversion between these dtypes");
  } else {
    convert_rows(vx, vy);
  }
  return command.done(0, 1, vx.bytes() + vy.bytes());
}

X1_API int x1_fill_ex(const x1_view_t* number, const x1_view_t* y) {
  Command command("x1_fill_ex");
  View vx, vy;
  if (!number || number->dtype != X1_NUMBER) return fail(X1_EVALUE, "x1_fill_ex: number: not a number");
  if (!command.look("y", y, kMoved, &vy) || !command.look_like("number", number, vy, &vx)) return failed();
  if (bit(vy.dtype) & ~kConverted && (number->integer || number->real != 0))
    return fail(X1_EUNSUPPORTED, "x1_fill_ex: only 0 is the same in every dtype of this size");
  // One element, which the mover then repeats.
  alignas(8) char one[8] = {};
  float real = float(number->real);
  if (is_float(vy.dtype))
    store(vy, &real, one, 0, 1);
  else if (bit(vy.dtype) & kConverted)
    store(vy, &vx.integer, one, 0, 1);
  vx.is_number = false;
  vx.data = one;
  of_size(item_size(vy.dtype), [&](auto unit) {
    for (Rows r{&vx, &vy}; r.more(); r.next()) move_row<decltype(unit)>(r);
  });
  return command.done(0, 1, vy.bytes());
}

X1_API int x1_gather_ex(const x1_view_t* x, const x1_view_t* index, int32_t dimension, const x1_view_t* y) {
  Command command("x1_gather_ex");
  View vx, vi, vy;
  if (!command.look("x", x, kMoved, &vx) || !command.look("index", index, bit(X1_DTYPE_INT64), &vi) ||
      !command.look("y", y, bit(vx.dtype), &vy) || !command.same_shape("index", vi, vy) ||
      !covers(command, vx, vi, dimension) || !in_range(command, vi, vx.shape[dimension]))
    return failed();
  View base = under(vx, vi, dimension);
  const int64_t step = vx.stride[dimension];
  of_size(item_size(vx.dtype), [&](auto unit) {
    using T = decltype(unit);
    for (Rows r{&base, &vi, &vy}; r.more(); r.next())
      for (int64_t i = 0; i < r.length(); i++)
        reinterpret_cast<T*>(r.at(2))[i * r.stride(2)] = reinterpret_cast<const T*>(
            r.at(0))[i * r.stride(0) + reinterpret_cast<const int64_t*>(r.at(1))[i * r.stride(1)] * step];
  });
  return command.done(double(vy.elements()), 8, 2 * vy.bytes());
}

X1_API int x1_scatter_ex(int32_t opcode, const x1_view_t* x, const x1_view_t* index, int32_t dimension,
                         const x1_view_t* y) {
  Command command("x1_scatter_ex");
  View vx, vi, vy;
  if (opcode != 0 && opcode != X1_ADD) return fail(X1_EVALUE, "x1_scatter_ex: there is no opcode %d", opcode);
  if (!command.look("y", y, opcode ? kNumbers : kComputed, &vy) ||
      !command.look("index", index, bit(X1_DTYPE_INT64), &vi) || !covers(command, vy, vi, dimension) ||
      !in_range(command, vi, vy.shape[dimension]))
    return failed();
  View like = vi;
  like.dtype = vy.dtype;
  if (!command.look_like("x", x, like, &vx)) return failed();
  View base = under(vy, vi, dimension);
  const int64_t step = vy.stride[dimension];
  auto run = [&](auto zero) {
    using T = decltype(zero);
    for (Rows r{&vx, &vi, &base}; r.more(); r.next()) {
      for (int64_t i = 0; i < r.length(); i++) {
        T a, b, sum;
        const int64_t at = reinterpret_cast<const int64_t*>(r.at(1))[i * r.stride(1)] * step + i * r.stride(2);
        char* to = r.at(2) + at * item_size(vy.dtype);
        sum = *load(vx, r.at(0) + i * r.stride(0) * item_size(vx.dtype), 0, 1, &a);
        if (opcode) sum = T(sum + *load(vy, to, 0, 1, &b));
        store(vy, &sum, to, 0, 1);
      }
    }
  };
  is_float(vy.dtype) ? run(float()) : run(int64_t());
  return command.done(double(vi.elements()), 1, 2 * vx.bytes());
}

}  // extern "C"
