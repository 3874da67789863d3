// test_reduce_norm.cpp: reductions, batch normalisation and layer normalisation with their gradients, against
// references in double: every opcode and dtype, all sets of dimensions, all kinds of layout, and what must be refused.
#include <algorithm>
#include <functional>

#include "vector_test.h"

namespace {

const double kInf = HUGE_VAL, kNaN = std::nan("");
const int kFloatTypes[] = {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32};

// The output's index of every element of x, and how many there are.
std::vector<int64_t> outputs_of(const Shape& shape, uint32_t dims, Shape* out) {
  *out = shape;
  for (size_t d = 0; d < shape.size(); d++)
    if (dims >> d & 1) (*out)[d] = 1;
  const Shape stride = dense_strides(*out);
  int64_t n = 1;
  for (int64_t s : shape) n *= s;
  std::vector<int64_t> at(n);
  for (int64_t i = 0; i < n; i++) {
    int64_t rest = i;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d])
      if (!(dims >> d & 1)) at[i] += rest % shape[d] * stride[d];
  }
  return at;
}

double step(int opcode, double acc, double x) {
  switch (opcode) {
    case NPU_REDUCE_PROD:
      return acc * x;
    case NPU_REDUCE_MAX:
      return std::isnan(acc) || std::isnan(x) ? kNaN : std::max(acc, x);
    case NPU_REDUCE_MIN:
      return std::isnan(acc) || std::isnan(x) ? kNaN : std::min(acc, x);
    case NPU_REDUCE_ANY:
      return acc != 0 || x != 0;
    case NPU_REDUCE_ALL:
      return acc != 0 && x != 0;
    case NPU_REDUCE_SUM_SQUARES:
      return acc + x * x;
    default:
      return acc + x;
  }
}
double start(int opcode) {
  if (opcode == NPU_REDUCE_PROD || opcode == NPU_REDUCE_ALL) return 1;
  return opcode == NPU_REDUCE_MAX ? -kInf : opcode == NPU_REDUCE_MIN ? kInf : 0;
}

void reduce_case(int dtype, const Shape& shape, const Shape& stride, uint32_t dims, bool nan) {
  Tensor x(dtype, shape, stride);
  Values v(x.n);
  for (int64_t i = 0; i < x.n; i++) {
    // A value for each place in memory, as broadcast elements must agree; near 1, for the products.
    const uint64_t bits = static_cast<uint64_t>(x.offset(i) + 1) * 0x9e3779b97f4a7c15ull;
    const double u = static_cast<double>(bits >> 40) * 0x1p-24;
    const double integer = dtype == NPU_BOOL ? bits >> 63 : double(bits >> 61) - (dtype == NPU_UINT8 ? 0 : 3);
    v[i] = is_float(dtype) ? round_to(dtype, 0.9 + 0.2 * u) : integer;
    if (nan && x.offset(i) == 5) v[i] = kNaN;
  }
  x.set(v);
  Shape out_shape;
  const std::vector<int64_t> at = outputs_of(shape, dims, &out_shape);
  int64_t outputs = 1;
  for (int64_t s : out_shape) outputs *= s;
  const double count = static_cast<double>(x.n) / static_cast<double>(outputs);
  for (int opcode = NPU_REDUCE_SUM; opcode <= NPU_REDUCE_SUM_SQUARES; opcode++) {
    if (opcode == NPU_REDUCE_ARGMAX || opcode == NPU_REDUCE_ARGMIN) continue;
    if (opcode == NPU_REDUCE_MEAN && !is_float(dtype)) continue;
    const bool truth = opcode == NPU_REDUCE_ANY || opcode == NPU_REDUCE_ALL;
    const bool extreme = opcode == NPU_REDUCE_MAX || opcode == NPU_REDUCE_MIN;
    const int wide = truth || extreme || dtype == NPU_FLOAT64 ? 0 : is_float(dtype) ? NPU_FLOAT32 : NPU_INT64;
    for (int to : {truth ? NPU_BOOL : dtype, wide}) {
      if (!to) continue;
      if (opcode == NPU_REDUCE_PROD && !is_float(dtype)) continue;  // below, with integers
      Values expected(outputs, start(opcode));
      for (int64_t i = 0; i < x.n; i++) expected[at[i]] = step(opcode, expected[at[i]], v[i]);
      if (opcode == NPU_REDUCE_MEAN)
        for (double& e : expected) e /= count;
      if (to == NPU_INT8)
        for (double& e : expected) e = static_cast<int8_t>(static_cast<int64_t>(e));
      if (to == NPU_UINT8)
        for (double& e : expected) e = static_cast<uint8_t>(static_cast<int64_t>(e));
      if (to == NPU_BOOL)
        for (double& e : expected) e = e != 0;
      Tensor out(to, out_shape);
      OK(npu_v3_reduce(stream, opcode, x, dims, out));
      if (is_float(to)) {
        near(out, expected, dtype == NPU_FLOAT64 ? 500 : 0.51, "reduce %d over 0x%x of %s", opcode, dims,
             name_of(dtype));
      } else {
        CHECK(out.get() == expected, "reduce %d over 0x%x of %s", opcode, dims, name_of(dtype));
      }
    }
  }
  for (int opcode : {NPU_REDUCE_ARGMAX, NPU_REDUCE_ARGMIN}) {
    const bool one = dims && !(dims & (dims - 1)), all = dims == (1u << shape.size()) - 1 && stride.empty();
    if (!one && !all) continue;
    Shape step_shape;
    Values best(outputs);
    Integers where(outputs, -1), seen(outputs, 0);
    for (int64_t i = 0; i < x.n; i++) {
      const int64_t o = at[i], k = seen[o]++;
      const bool better = opcode == NPU_REDUCE_ARGMAX ? v[i] > best[o] : v[i] < best[o];
      if (where[o] < 0 || (!std::isnan(best[o]) && (better || std::isnan(v[i])))) best[o] = v[i], where[o] = k;
    }
    Tensor out(NPU_INT64, out_shape);
    OK(npu_v3_reduce(stream, opcode, x, dims, out));
    equal(out, where, "reduce %d over 0x%x of %s", opcode, dims, name_of(dtype));
  }
}

void reductions() {
  const Shape shape = {4, 9, 3, 17};
  const Shape strides[] = {
      {}, dense_strides(shape, {3, 2, 1, 0}), dense_strides(shape, {0, 2, 3, 1}), {1500, 160, 52, 3}, {0, 17, 0, 1}};
  for (const Shape& stride : strides)
    for (uint32_t dims = 0; dims < 16; dims++)
      for (int dtype : {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32, NPU_INT8, NPU_UINT8, NPU_INT16, NPU_INT32, NPU_INT64,
                        NPU_FLOAT64, NPU_BOOL})
        for (int nan = 0; nan <= (is_float(dtype) ? 1 : 0); nan++) reduce_case(dtype, shape, stride, dims, nan);
  // Long rows and long columns, cut into pieces.
  for (int dtype : {NPU_FLOAT16, NPU_FLOAT32, NPU_INT32})
    for (uint32_t dims = 1; dims < 4; dims++) {
      reduce_case(dtype, {3, 70001}, {}, dims, false);
      reduce_case(dtype, {9001, 20}, {}, dims, false);
      reduce_case(dtype, {2, 1300}, {}, dims, false);
    }
  reduce_case(NPU_FLOAT16, {}, {}, 0, false);
  // A million tenths: a float32 running sum would be off by a hundred.
  Tensor tenths(NPU_FLOAT32, {1000000}), sum(NPU_FLOAT32, {1}), half_sum(NPU_FLOAT16, {1});
  tenths.set(Values(1000000, 0.1));
  OK(npu_v3_reduce(stream, NPU_REDUCE_SUM, tenths, 1, sum));
  near(sum, {1e6 * static_cast<double>(0.1f)}, 0.51, "a long sum");
  // Integers: products wrap around, sums of BOOL count.
  Tensor i(NPU_INT32, {3}), i64(NPU_INT64, {1}), i32(NPU_INT32, {1}), b(NPU_BOOL, {5});
  i.set(Integers{65536, 65536, 3}), b.set(Integers{1, 0, 1, 1, 0});
  OK(npu_v3_reduce(stream, NPU_REDUCE_PROD, i, 1, i64));
  equal(i64, {int64_t{3} << 32}, "product");
  OK(npu_v3_reduce(stream, NPU_REDUCE_PROD, i, 1, i32));
  equal(i32, {0}, "product");
  OK(npu_v3_reduce(stream, NPU_REDUCE_SUM, b, 1, i64));
  equal(i64, {3}, "count");
  Tensor big(NPU_INT64, {3}), first(NPU_INT64, {1});
  big.set(Integers{(int64_t{1} << 53), (int64_t{1} << 53) + 1, (int64_t{1} << 53) + 1});
  OK(npu_v3_reduce(stream, NPU_REDUCE_ARGMAX, big, 1, first));
  equal(first, {1}, "argmax of int64");
  Tensor infinite(NPU_FLOAT32, {2, 3}), places(NPU_INT64, {2, 1});
  infinite.set(Values{-kInf, -kInf, -kInf, 1, kNaN, kNaN});
  OK(npu_v3_reduce(stream, NPU_REDUCE_ARGMAX, infinite, 2, places));
  equal(places, {0, 1}, "argmax of -inf and NaN");

  // No elements.
  Tensor empty(NPU_FLOAT32, {3, 0}), none(NPU_FLOAT32, {3, 1}), truth(NPU_BOOL, {3, 1}), index(NPU_INT64, {3, 1});
  const struct {
    int opcode;
    double value;
  } neutral[] = {{NPU_REDUCE_SUM, 0}, {NPU_REDUCE_PROD, 1}, {NPU_REDUCE_MEAN, kNaN}, {NPU_REDUCE_SUM_SQUARES, 0}};
  for (const auto& c : neutral) {
    OK(npu_v3_reduce(stream, c.opcode, empty, 2, none));
    near(none, {c.value, c.value, c.value}, 0, "reduce %d of nothing", c.opcode);
  }
  OK(npu_v3_reduce(stream, NPU_REDUCE_ANY, empty, 2, truth));
  equal(truth, {0, 0, 0}, "any of nothing");
  OK(npu_v3_reduce(stream, NPU_REDUCE_ALL, empty, 2, truth));
  equal(truth, {1, 1, 1}, "all of nothing");
  REFUSED(npu_v3_reduce(stream, NPU_REDUCE_MAX, empty, 2, none), NPU_STATUS_INVALID_VALUE, "MAX", "no elements");
  REFUSED(npu_v3_reduce(stream, NPU_REDUCE_ARGMIN, empty, 2, index), NPU_STATUS_INVALID_VALUE, "ARGMIN");
  Tensor no_rows(NPU_FLOAT32, {1, 0});
  OK(npu_v3_reduce(stream, NPU_REDUCE_SUM, empty, 1, no_rows));

  Tensor x(NPU_FLOAT16, {2, 3, 4}), out(NPU_FLOAT16, {2, 1, 4}), wrong(NPU_FLOAT16, {2, 4});
  Tensor whole_(NPU_INT32, {2, 3, 4}), two(NPU_INT64, {2, 1, 1});
  REFUSED(npu_v3_reduce(stream, NPU_REDUCE_SUM, x, 2, wrong), NPU_STATUS_INVALID_VALUE, "out has shape [2, 4]",
          "expected [2, 1, 4]");
  REFUSED(npu_v3_reduce(stream, NPU_REDUCE_SUM, x, 8, out), NPU_STATUS_INVALID_VALUE, "dims 0x8");
  REFUSED(npu_v3_reduce(stream, NPU_REDUCE_ANY, x, 2, out), NPU_STATUS_INVALID_VALUE, "expected bool");
  REFUSED(npu_v3_reduce(stream, NPU_REDUCE_MEAN, whole_, 2, out), NPU_STATUS_NOT_SUPPORTED, "INT32");
  REFUSED(npu_v3_reduce(stream, NPU_REDUCE_ARGMAX, x, 6, two), NPU_STATUS_NOT_SUPPORTED, "one dimension");
  REFUSED(npu_v3_reduce(stream, 11, x, 2, out), NPU_STATUS_INVALID_VALUE, "opcode 11");
}

// ---- batch normalisation
struct Layout {
  Shape shape, stride;
};
// x's reference layout: logical index -> channel
int64_t channel_of(const Shape& shape, int64_t i) {
  int64_t inner = 1;
  for (size_t d = 2; d < shape.size(); d++) inner *= shape[d];
  return i / inner % shape[1];
}

void batch_norm_case(int dtype, int parameter_type, const Layout& layout, bool other_out, bool affine) {
  const Shape& shape = layout.shape;
  const int64_t channels = shape[1];
  Tensor x(dtype, shape, layout.stride), out(dtype, shape, other_out ? Shape{} : layout.stride);
  Tensor g(dtype, shape, layout.stride), gx(dtype, shape, other_out ? Shape{} : layout.stride);
  Tensor w(parameter_type, {channels}), b(parameter_type, {channels}), rm(parameter_type, {channels}),
      rv(parameter_type, {channels}), gw(parameter_type, {channels}), gb(parameter_type, {channels});
  Tensor mean(NPU_FLOAT32, {channels}), invstd(NPU_FLOAT32, {channels});
  const int64_t n = x.n, per = n / channels;
  Values vx = uniforms(n, dtype, 2, 5), vg = uniforms(n, dtype), vw = uniforms(channels, parameter_type, 0.5, 2),
         vb = uniforms(channels, parameter_type), vm = uniforms(channels, parameter_type, 1, 4),
         vv = uniforms(channels, parameter_type, 0.5, 2);
  x.set(vx), g.set(vg), w.set(vw), b.set(vb), rm.set(vm), rv.set(vv);
  if (!affine) vw.assign(channels, 1), vb.assign(channels, 0);
  const npu_tensor_t *pw = affine ? &w.t : nullptr, *pb = affine ? &b.t : nullptr;
  const double eps = 1e-5, momentum = 0.1;
  for (int training = 0; training < 2; training++) {
    Values m(channels), s(channels), var(channels), sum_g(channels), dot(channels);
    if (training) {
      for (int64_t i = 0; i < n; i++) m[channel_of(shape, i)] += vx[i];
      for (double& v : m) v /= static_cast<double>(per);
      for (int64_t i = 0; i < n; i++) var[channel_of(shape, i)] += std::pow(vx[i] - m[channel_of(shape, i)], 2);
      for (int64_t c = 0; c < channels; c++) s[c] = 1 / std::sqrt(var[c] / per + eps);
    } else {
      m = vm;
      for (int64_t c = 0; c < channels; c++) s[c] = 1 / std::sqrt(vv[c] + eps);
    }
    OK(npu_v3_batch_norm(stream, x, pw, pb, rm, rv, training, momentum, eps, out, training ? &mean.t : nullptr,
                         training ? &invstd.t : nullptr));
    Values y(n), dx(n), dw(channels), running_mean(channels), running_var(channels);
    for (int64_t i = 0; i < n; i++) {
      const int64_t c = channel_of(shape, i);
      y[i] = (vx[i] - m[c]) * s[c] * vw[c] + vb[c];
      sum_g[c] += vg[i];
      dot[c] += vg[i] * (vx[i] - m[c]);
    }
    close(out, y, per == 1 && training ? 2e-4 : 4e-6, "batch_norm");
    if (training) {
      close(mean, m, 1e-6, "save_mean");
      for (int64_t c = 0; c < channels; c++) {
        running_mean[c] = 0.9 * vm[c] + 0.1 * m[c];
        running_var[c] = per == 1 ? kNaN : 0.9 * vv[c] + 0.1 * var[c] / static_cast<double>(per - 1);
      }
      if (per > 1) close(invstd, s, 1e-5, "save_invstd");
      close(rm, running_mean, 2e-6, "running_mean");
      close(rv, running_var, 2e-6, "running_var");
    }
    if (training && per == 1) continue;  // nothing is left of the gradient
    OK(npu_v3_batch_norm_grad(stream, g, x, pw, rm, rv, mean, invstd, training, eps, gx, gw, gb));
    for (int64_t c = 0; c < channels; c++) dw[c] = dot[c] * s[c];
    for (int64_t i = 0; i < n; i++) {
      const int64_t c = channel_of(shape, i);
      const double k = static_cast<double>(per);
      dx[i] = (vg[i] - (training ? sum_g[c] / k + (vx[i] - m[c]) * s[c] * dw[c] / k : 0)) * s[c] * vw[c];
    }
    const double scale = std::sqrt(static_cast<double>(per));
    close(gx, dx, 1e-5, "batch_norm grad_x");
    close(gw, dw, 2e-5 * scale, "batch_norm grad_weight");
    close(gb, sum_g, 2e-6 * scale, "batch_norm grad_bias");
    // Each gradient alone.
    Tensor again(parameter_type, {channels});
    OK(npu_v3_batch_norm_grad(stream, g, x, pw, rm, rv, mean, invstd, training, eps, nullptr, nullptr, again));
    CHECK(again.get() == gb.get());
    OK(npu_v3_batch_norm_grad(stream, g, x, pw, rm, rv, mean, invstd, training, eps, gx, nullptr, nullptr));
    close(gx, dx, 1e-5, "batch_norm grad_x");
    // The running statistics were changed by training: restore them for the next round.
    rm.set(vm), rv.set(vv);
  }
}

void batch_norms() {
  const Layout layouts[] = {
      {{4, 10, 7, 7}, {}},                                          // rows
      {{4, 10, 7, 7}, dense_strides({4, 10, 7, 7}, {0, 2, 3, 1})},  // channels last
      {{6, 600, 2, 2}, {}},                                         // small images, several tiles
      {{6, 600, 1, 1}, {}},
      {{4, 3, 40, 41}, dense_strides({4, 3, 40, 41}, {0, 2, 3, 1})},  // few channels
      {{4, 10, 7, 7}, {1000, 100, 14, 2}},                            // gaps
      {{4, 10, 7, 7}, dense_strides({4, 10, 7, 7}, {3, 1, 0, 2})},
      {{50, 33}, {}},
      {{8, 16, 29}, {}},
      {{2, 9, 3, 2, 5}, {}},
      {{64, 24, 40, 30}, dense_strides({64, 24, 40, 30}, {0, 2, 3, 1})},  // many pieces
      {{1, 12, 1, 1}, {}},
  };
  for (const Layout& layout : layouts)
    for (int dtype : kFloatTypes)
      for (int k = 0; k < (layout.shape[0] == 64 ? 1 : 4); k++)
        batch_norm_case(dtype, k & 1 ? dtype : int(NPU_FLOAT32), layout, k & 2, k != 3);
  // A mean that is large beside the deviation.
  const int64_t n = 4096;
  Tensor x(NPU_FLOAT32, {n, 2}), out(NPU_FLOAT32, {n, 2}), mean(NPU_FLOAT32, {2}), invstd(NPU_FLOAT32, {2});
  Values v(2 * n), var(2);
  for (double& e : v) e = round_to(NPU_FLOAT32, uniform(9999, 10001));
  x.set(v);
  OK(npu_v3_batch_norm(stream, x, nullptr, nullptr, nullptr, nullptr, 1, 0.1, 0, out, mean, invstd));
  for (int c = 0; c < 2; c++) {
    double m = 0;
    for (int64_t i = 0; i < n; i++) m += v[2 * i + c] / n;
    for (int64_t i = 0; i < n; i++) var[c] += std::pow(v[2 * i + c] - m, 2) / n;
  }
  close(invstd, {1 / std::sqrt(var[0]), 1 / std::sqrt(var[1])}, 2e-6, "invstd of a small deviation");

  Tensor h(NPU_FLOAT16, {2, 3, 4}), bad(NPU_FLOAT32, {4}), flat(NPU_FLOAT16, {6}), empty(NPU_FLOAT16, {0, 3, 4});
  Tensor three(NPU_FLOAT32, {3});
  REFUSED(npu_v3_batch_norm(stream, h, bad, nullptr, nullptr, nullptr, 1, 0.1, 0, h, three, three),
          NPU_STATUS_INVALID_VALUE, "npu_v3_batch_norm", "weight has shape [4]", "expected [3]");
  REFUSED(npu_v3_batch_norm(stream, flat, nullptr, nullptr, nullptr, nullptr, 1, 0.1, 0, flat, three, three),
          NPU_STATUS_INVALID_VALUE, "rank 1");
  REFUSED(npu_v3_batch_norm(stream, h, nullptr, nullptr, nullptr, nullptr, 0, 0.1, 0, h, nullptr, nullptr),
          NPU_STATUS_INVALID_VALUE, "running_mean");
  REFUSED(npu_v3_batch_norm(stream, h, nullptr, nullptr, nullptr, nullptr, 1, 0.1, 0, h, nullptr, nullptr),
          NPU_STATUS_INVALID_VALUE, "save_mean");
  // Without training save_* are ignored, also as the empty tensors that PyTorch passes.
  Tensor nothing(NPU_FLOAT32, {0}), odd(NPU_INT64, {7}), running(NPU_FLOAT32, {3}), y(NPU_FLOAT16, {2, 3, 4});
  h.set(Values(24, 2)), running.set(Values(3, 1)), three.set(Values(3, 9));
  const npu_tensor_t* const saves[] = {nullptr, nothing, odd, three};
  for (const npu_tensor_t* save : saves) {
    OK(npu_v3_batch_norm(stream, h, nullptr, nullptr, running, running, 0, 0.1, 0, y, save, save));
    near(y, Values(24, 1), 0, "batch_norm without training");
    OK(npu_v3_batch_norm_grad(stream, h, h, nullptr, running, running, save, save, 0, 0, y, nullptr, nullptr));
    near(y, Values(24, 2), 0, "batch_norm_grad without training");
  }
  near(three, Values(3, 9), 0, "save_mean without training");
  OK(npu_v3_batch_norm(stream, empty, nullptr, nullptr, nullptr, nullptr, 1, 0.1, 0, empty, three, three));
}

// ---- layer normalisation
void layer_norms() {
  const struct {
    int64_t rows, columns;
  } sizes[] = {{5, 7}, {40, 768}, {1, 5000}, {300, 64}, {3, 1}};
  for (int dtype : kFloatTypes)
    for (const auto& size : sizes)
      for (int affine = 0; affine < 2; affine++) {
        const int64_t rows = size.rows, columns = size.columns, n = rows * columns;
        Tensor x(dtype, {rows, columns}), out(dtype, {rows, columns}), g(dtype, {rows, columns}),
            gx(dtype, {rows, columns}), w(dtype, {columns}), b(NPU_FLOAT32, {columns}), gw(NPU_FLOAT32, {columns}),
            gb(dtype, {columns}), mean(NPU_FLOAT32, {rows}), rstd(NPU_FLOAT32, {rows});
        Values vx = uniforms(n, dtype), vg = uniforms(n, dtype), vw = uniforms(columns, dtype, 0.5, 1.5),
               vb = uniforms(columns, NPU_FLOAT32);
        x.set(vx), g.set(vg), w.set(vw), b.set(vb);
        if (!affine) vw.assign(columns, 1), vb.assign(columns, 0);
        OK(npu_v3_layer_norm(stream, x, affine ? &w.t : nullptr, affine ? &b.t : nullptr, 1e-5, out, mean, rstd));
        OK(npu_v3_layer_norm_grad(stream, g, x, mean, rstd, affine ? &w.t : nullptr, gx, gw, gb));
        Values y(n), dx(n), dw(columns), db(columns), means(rows), rstds(rows);
        for (int64_t r = 0; r < rows; r++) {
          double m = 0, var = 0, plain = 0, dot = 0;
          for (int64_t c = 0; c < columns; c++) m += vx[r * columns + c] / columns;
          for (int64_t c = 0; c < columns; c++) var += std::pow(vx[r * columns + c] - m, 2) / columns;
          const double s = 1 / std::sqrt(var + 1e-5);
          means[r] = m, rstds[r] = s;
          for (int64_t c = 0; c < columns; c++) {
            const double h = (vx[r * columns + c] - m) * s, gr = vg[r * columns + c];
            y[r * columns + c] = h * vw[c] + vb[c];
            dw[c] += gr * h, db[c] += gr;
            plain += gr * vw[c] / columns, dot += gr * vw[c] * h / columns;
          }
          for (int64_t c = 0; c < columns; c++) {
            const double h = (vx[r * columns + c] - m) * s;
            dx[r * columns + c] = s * (vg[r * columns + c] * vw[c] - plain - h * dot);
          }
        }
        if (columns == 1) continue;
        close(out, y, 4e-6, "layer_norm");
        close(mean, means, 1e-6, "mean");
        close(rstd, rstds, 1e-5, "rstd");
        close(gx, dx, 2e-5, "layer_norm grad_x");
        close(gw, dw, 4e-5, "layer_norm grad_weight");
        close(gb, db, 4e-5, "layer_norm grad_bias");
      }
  Tensor x(NPU_FLOAT16, {4, 6}, {1, 4}), out(NPU_FLOAT16, {4, 6}), mean(NPU_FLOAT32, {4});
  REFUSED(npu_v3_layer_norm(stream, x, nullptr, nullptr, 1e-5, out, mean, mean), NPU_STATUS_NOT_SUPPORTED, "x",
          "dense rows");
}

}  // namespace

int main() {
  open_device();
  reductions();
  batch_norms();
  layer_norms();
  std::printf("test_reduce_norm: ok\n");
}
