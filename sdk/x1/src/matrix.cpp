// matrix.cpp: products. 16-bit factors are multiplied in float32, 8-bit ones exactly; 12.8 TFLOP/s in FLOAT16.
#include <cstring>
#include <memory>

#include "product.h"
#include "rows.h"

namespace x1 {

float* scratch(Scratch purpose, int64_t floats) {
  struct Buffer {
    std::unique_ptr<float[]> data;
    int64_t size = 0;
  };
  static thread_local Buffer buffers[int(Scratch::kCount)];
  Buffer& buffer = buffers[int(purpose)];
  if (buffer.size < floats) {
    buffer.data.reset(new float[size_t(floats)]);
    buffer.size = floats;
  }
  return buffer.data.get();
}

namespace {

struct Matrix {
  const View& v;
  char* first;
  int64_t row, column;  // strides
  char* at(int64_t i, int64_t j) const { return first + (i * row + j * column) * item_size(v.dtype); }
  Matrix turned() const { return {v, first, column, row}; }
};

Matrix plane(const View& v, int64_t batch) {
  int32_t d = v.rank - 2;
  int64_t offset = d ? batch * v.stride[0] * item_size(v.dtype) : 0;
  return {v, v.data + offset, v.stride[d], v.stride[d + 1]};
}

// `n` elements of whichever kind as float.
void load_floats(const View& v, const char* first, int64_t stride, int64_t n, float* out) {
  if (is_float(v.dtype)) {
    const float* from = load(v, first, stride, n, out);
    if (from != out) std::memcpy(out, from, size_t(n) * sizeof(float));
  } else {
    int64_t buffer[kPiece];
    const int64_t* from = load(v, first, stride, n, buffer);
    for (int64_t i = 0; i < n; i++) out[i] = float(from[i]);
  }
}

// Panels of the rows of a matrix: along the rows where these are dense, else across them.
void pack_rows(const Matrix& m, int64_t first, int64_t count, int64_t l0, int64_t terms, int64_t width, float* panel) {
  float line[kTerms];
  if (count < width) std::fill_n(panel, terms * width, 0.0f);
  if (m.row == 1) {
    for (int64_t l = 0; l < terms; l++) load_floats(m.v, m.at(first, l0 + l), 1, count, panel + l * width);
    return;
  }
  for (int64_t i = 0; i < count; i++) {
    load_floats(m.v, m.at(first + i, l0), m.column, terms, line);
    for (int64_t l = 0; l < terms; l++) panel[l * width + i] = line[l];
  }
}

template <class T>
void finish(const T* sums, int64_t n, double alpha, double beta, const View& c, const char* pc, int64_t sc,
            const View& y, char* py, int64_t sy) {
  T out[kColumns], buffer[kColumns];
  for (int64_t j = 0; j < n; j++) out[j] = T(double(sums[j]) * alpha);
  if (c) {
    const T* plus = load(c, pc, sc, n, buffer);
    for (int64_t j = 0; j < n; j++) out[j] += T(double(plus[j]) * beta);
  }
  store(y, out, py, sy, n);
}

// Whole numbers that are no 8-bit ones: indices and counts, a few at a time.
void multiply_whole(const Matrix& a, const Matrix& b, const Matrix& y, int64_t m, int64_t n, int64_t k) {
  for (int64_t i = 0; i < m; i++) {
    for (int64_t j = 0; j < n; j++) {
      int64_t p, q, sum = 0;
      for (int64_t l = 0; l < k; l++) {
        uint64_t x = uint64_t(*load(a.v, a.at(i, l), 0, 1, &p)), z = uint64_t(*load(b.v, b.at(l, j), 0, 1, &q));
        sum = int64_t(uint64_t(sum) + x * z);
      }
      store(y.v, &sum, y.at(i, j), 0, 1);
    }
  }
}

}  // namespace
}  // namespace x1

using namespace x1;

extern "C" X1_API int x1_matmul_ex(const x1_view_t* a, const x1_view_t* b, const x1_view_t* c, double alpha,
                                   double beta, const x1_view_t* y) {
  Command command("x1_matmul_ex");
  View va, vb, vc, vy;
  if (!command.look("a", a, kNumbers, &va) || !command.look("b", b, bit(va.dtype), &vb)) return failed();
  bool exact = va.dtype == X1_DTYPE_UINT8, whole = !exact && !is_float(va.dtype);
  if (!command.look("y", y, bit(va.dtype) | (exact ? bit(X1_DTYPE_INT32) : 0), &vy) ||
      !command.look("c", c, bit(vy.dtype), &vc, true))
    return failed();
  if (whole && (vc || alpha != 1))
    return fail(X1_EUNSUPPORTED, "x1_matmul_ex: whole numbers have neither a factor nor a sum");
  int32_t d = vy.rank - 2;
  if (d < 0 || d > 1 || va.rank != vy.rank || vb.rank != vy.rank)
    return fail(X1_EUNSUPPORTED, "x1_matmul_ex: ranks %d, %d and %d: the unit takes 2 or 3", va.rank, vb.rank, vy.rank);
  if (va.shape[d] != vy.shape[d] || vb.shape[d + 1] != vy.shape[d + 1] || va.shape[d + 1] != vb.shape[d] ||
      (d && (va.shape[0] != vy.shape[0] || vb.shape[0] != vy.shape[0])))
    return fail(X1_EVALUE, "x1_matmul_ex: the shapes do not fit");
  if (vc && !command.same_shape("c", vc, vy)) return failed();
  if (!vy.elements()) return command.done(0, 1, 0);
  int64_t m = vy.shape[d], n = vy.shape[d + 1], k = va.shape[d + 1], batch = d ? vy.shape[0] : 1;
  for (int64_t i = 0; i < batch; i++) {
    Matrix pa = plane(va, i), pb = plane(vb, i), py = plane(vy, i);
    if (whole) {
      multiply_whole(pa, pb, py, m, n, k);
      continue;
    }
    Matrix columns = pb.turned(), pc = vc ? plane(vc, i) : Matrix{vc, nullptr, 0, 0};
    product(
        m, n, k, exact, [&](auto... at) { pack_rows(pa, at...); }, [&](auto... at) { pack_rows(columns, at...); },
        [&](int64_t row, int64_t column, int64_t count, const auto* sums) {
          finish(sums, count, alpha, beta, vc, vc ? pc.at(row, column) : nullptr, pc.column, vy, py.at(row, column),
                 py.column);
        });
  }
  double rate = va.dtype == X1_DTYPE_FLOAT16 ? 6400 : exact ? 12800 : 1600;
  return command.done(double(vy.elements()) * double(k), rate, va.bytes() + vb.bytes() + vy.bytes());
}
