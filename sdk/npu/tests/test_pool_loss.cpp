// test_pool_loss.cpp: pooling, softmax and the negative log likelihood with their gradients, against references in
// double: dtypes, layouts, paddings, NaN, ignored and wrong targets, and what must be refused.
#include <algorithm>
#include <functional>

#include "vector_test.h"

namespace {

const double kInf = HUGE_VAL, kNaN = std::nan("");
const int kFloatTypes[] = {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32};

struct PoolCase {
  Shape x;
  npu_window_t w;
  bool ceil;
};
npu_window_t window(int64_t k0, int64_t k1, int64_t s0, int64_t s1, int64_t p0, int64_t p1, int64_t d0, int64_t d1) {
  return {{k0, k1}, {s0, s1}, {p0, p1}, {d0, d1}, 1, 1, 0, 0};
}
Shape pooled(const PoolCase& c) {
  Shape out = c.x;
  for (int d = 0; d < 2; d++) {
    const int64_t room = c.x[2 + d] + 2 * c.w.padding[d] - c.w.dilation[d] * (c.w.kernel[d] - 1) - 1;
    int64_t n = (room + (c.ceil ? c.w.stride[d] - 1 : 0)) / c.w.stride[d] + 1;
    if (c.ceil && (n - 1) * c.w.stride[d] >= c.x[2 + d] + c.w.padding[d]) n--;
    out[2 + d] = n;
  }
  return out;
}
std::vector<Shape> layouts_of(const Shape& s) {
  return {dense_strides(s),
          dense_strides(s, {0, 2, 3, 1}),
          dense_strides(s, {1, 3, 2, 0}),
          {s[1] * s[2] * s[3] * 3, s[2] * s[3] * 3, s[3] * 3, 2}};
}
const PoolCase kCases[] = {
    {{2, 5, 9, 11}, window(3, 3, 2, 2, 1, 1, 1, 1), false}, {{2, 37, 8, 8}, window(2, 2, 2, 2, 0, 0, 1, 1), false},
    {{1, 3, 10, 7}, window(3, 2, 1, 3, 1, 0, 1, 1), false}, {{2, 4, 12, 13}, window(3, 3, 2, 1, 1, 2, 2, 2), false},
    {{2, 4, 12, 13}, window(3, 3, 2, 2, 1, 0, 1, 1), true}, {{1, 2, 6, 6}, window(5, 5, 4, 4, 2, 2, 1, 1), true},
    {{1, 40, 1, 1}, window(1, 1, 1, 1, 0, 0, 1, 1), false}, {{3, 2, 30, 64}, window(3, 3, 2, 2, 1, 1, 1, 1), false},
    {{1, 2, 2, 5}, window(3, 3, 2, 2, 0, 0, 1, 1), true},
};

void max_pools() {
  for (const PoolCase& c : kCases)
    for (int dtype : kFloatTypes)
      for (const Shape& sx : layouts_of(c.x)) {
        const Shape os = pooled(c);
        for (const Shape& so : {layouts_of(os)[0], layouts_of(os)[1]}) {
          Tensor x(dtype, c.x, sx), out(dtype, os, so), index(NPU_INT64, os, so), grad(dtype, os, so),
              grad_x(dtype, c.x, sx);
          Values v = uniforms(x.n, dtype);
          for (int64_t i = 0; i < x.n; i += 97) v[i] = i % 2 ? kNaN : -kInf;
          for (int64_t i = 1; i < x.n; i += 3) v[i] = v[i - 1];  // equals
          const Values g = uniforms(out.n, dtype);
          x.set(v), grad.set(g);
          OK(npu_v3_max_pool(stream, x, &c.w, out, index));
          OK(npu_v3_max_pool_grad(stream, grad, index, grad_x));
          Values expected(out.n), dx(x.n);
          Integers where(out.n);
          const int64_t h = c.x[2], w = c.x[3];
          for (int64_t o = 0; o < out.n; o++) {
            const int64_t plane = o / (os[2] * os[3]), oy = o / os[3] % os[2], ox = o % os[3];
            double best = -kInf;
            int64_t at = -1;
            for (int64_t ky = 0; ky < c.w.kernel[0]; ky++)
              for (int64_t kx = 0; kx < c.w.kernel[1]; kx++) {
                const int64_t y = oy * c.w.stride[0] - c.w.padding[0] + ky * c.w.dilation[0];
                const int64_t xx = ox * c.w.stride[1] - c.w.padding[1] + kx * c.w.dilation[1];
                if (y < 0 || y >= h || xx < 0 || xx >= w) continue;
                const double e = v[plane * h * w + y * w + xx];
                if (at < 0 || e > best || std::isnan(e)) best = e, at = y * w + xx;
              }
            expected[o] = best, where[o] = at;
            dx[plane * h * w + at] += g[o];
          }
          near(out, expected, 0, "max_pool");
          equal(index, where, "max_pool index");
          close(grad_x, dx, 1e-6, "max_pool_grad");
        }
      }
  Tensor grad(NPU_FLOAT16, {1, 1, 1, 2}), index(NPU_INT64, {1, 1, 1, 2}), grad_x(NPU_FLOAT16, {1, 1, 2, 2});
  grad.set(Values{1, 2}), index.set(Integers{1, 4});
  OK(npu_v3_max_pool_grad(stream, grad, index, grad_x));
  REFUSED(npu_stream_synchronize(stream), NPU_STATUS_EXECUTION_FAILED, "npu_v3_max_pool_grad", "index");
}

void average_pools() {
  for (const PoolCase& given : kCases)
    for (int mode = 0; mode < 3; mode++)
      for (int dtype : kFloatTypes)
        for (const Shape& sx : layouts_of(given.x)) {
          PoolCase c = given;
          c.w.dilation[0] = c.w.dilation[1] = 1;
          if (c.w.kernel[1] == 3 && c.w.padding[1] == 2) c.w.padding[1] = 1;
          c.w.count_padding = mode == 1;
          c.w.divisor = mode == 2 ? 7 : 0;
          const Shape os = pooled(c), so = layouts_of(os)[mode == 1];
          Tensor x(dtype, c.x, sx), out(dtype, os, so), grad(dtype, os, so), grad_x(dtype, c.x, sx);
          const Values v = uniforms(x.n, dtype), g = uniforms(out.n, dtype);
          x.set(v), grad.set(g);
          OK(npu_v3_avg_pool(stream, x, &c.w, out));
          OK(npu_v3_avg_pool_grad(stream, grad, &c.w, grad_x));
          Values expected(out.n), dx(x.n);
          for (int64_t o = 0; o < out.n; o++) {
            const int64_t plane = o / (os[2] * os[3]), place[2] = {o / os[3] % os[2], o % os[3]};
            int64_t from[2], to[2], padded = 1, inside = 1;
            for (int d = 0; d < 2; d++) {
              from[d] = place[d] * c.w.stride[d] - c.w.padding[d];
              to[d] = std::min(from[d] + c.w.kernel[d], c.x[2 + d] + c.w.padding[d]);
              padded *= to[d] - from[d];
              from[d] = std::max<int64_t>(from[d], 0), to[d] = std::min(to[d], c.x[2 + d]);
              inside *= to[d] - from[d];
            }
            const double divisor = static_cast<double>(mode == 2 ? 7 : mode == 1 ? padded : inside);
            for (int64_t y = from[0]; y < to[0]; y++)
              for (int64_t xx = from[1]; xx < to[1]; xx++) {
                const int64_t at = (plane * c.x[2] + y) * c.x[3] + xx;
                expected[o] += v[at] / divisor, dx[at] += g[o] / divisor;
              }
          }
          close(out, expected, 1e-6, "avg_pool");
          close(grad_x, dx, 1e-6, "avg_pool_grad");
        }
}

void adaptive_pools() {
  const struct {
    Shape x;
    int64_t oh, ow;
  } cases[] = {{{2, 5, 7, 7}, 1, 1}, {{2, 40, 8, 9}, 3, 4}, {{1, 3, 4, 5}, 6, 7}, {{2, 3, 6, 6}, 6, 6}};
  for (const auto& c : cases)
    for (int dtype : kFloatTypes)
      for (const Shape& sx : layouts_of(c.x)) {
        const Shape os = {c.x[0], c.x[1], c.oh, c.ow};
        Tensor x(dtype, c.x, sx), out(dtype, os), grad(dtype, os), grad_x(dtype, c.x, sx);
        const Values v = uniforms(x.n, dtype), g = uniforms(out.n, dtype);
        x.set(v), grad.set(g);
        OK(npu_v3_adaptive_avg_pool(stream, x, out));
        OK(npu_v3_adaptive_avg_pool_grad(stream, grad, grad_x));
        Values expected(out.n), dx(x.n);
        const int64_t h = c.x[2], w = c.x[3];
        for (int64_t o = 0; o < out.n; o++) {
          const int64_t plane = o / (c.oh * c.ow), y = o / c.ow % c.oh, i = o % c.ow;
          const int64_t top = y * h / c.oh, left = i * w / c.ow;
          const int64_t low = ((y + 1) * h + c.oh - 1) / c.oh, right = ((i + 1) * w + c.ow - 1) / c.ow;
          const double n = static_cast<double>((low - top) * (right - left));
          for (int64_t a = top; a < low; a++)
            for (int64_t b = left; b < right; b++) {
              expected[o] += v[(plane * h + a) * w + b] / n;
              dx[(plane * h + a) * w + b] += g[o] / n;
            }
        }
        close(out, expected, 1e-6, "adaptive_avg_pool");
        close(grad_x, dx, 1e-6, "adaptive_avg_pool_grad");
      }
}

void pool_refusals() {
  Tensor x(NPU_FLOAT16, {1, 2, 8, 8}), out(NPU_FLOAT16, {1, 2, 4, 4}), odd(NPU_FLOAT16, {1, 2, 5, 4});
  Tensor index(NPU_INT64, {1, 2, 4, 4}), flat(NPU_FLOAT16, {2, 8, 8}), other(NPU_FLOAT32, {1, 2, 4, 4});
  const npu_window_t w = window(2, 2, 2, 2, 0, 0, 1, 1), wide = window(2, 2, 2, 2, 2, 0, 1, 1);
  const npu_window_t still = window(2, 2, 0, 2, 0, 0, 1, 1), dilated = window(2, 2, 2, 2, 0, 0, 2, 2);
  const int bad = NPU_STATUS_INVALID_VALUE;
  REFUSED(npu_v3_max_pool(stream, x, &w, odd, index), bad, "npu_v3_max_pool", "size 5", "expected 4");
  REFUSED(npu_v3_max_pool(stream, x, nullptr, out, index), bad, "window is NULL");
  REFUSED(npu_v3_max_pool(stream, x, &wide, out, index), bad, "padding 2");
  REFUSED(npu_v3_max_pool(stream, x, &still, out, index), bad, "stride 0");
  REFUSED(npu_v3_max_pool(stream, flat, &w, out, index), bad, "rank 3");
  REFUSED(npu_v3_max_pool(stream, x, &w, other, index), bad, "out is float32");
  REFUSED(npu_v3_max_pool(stream, x, &w, out, out), NPU_STATUS_NOT_SUPPORTED, "index");
  REFUSED(npu_v3_avg_pool(stream, x, &dilated, out), NPU_STATUS_NOT_SUPPORTED, "dilation 2");
  Tensor none(NPU_FLOAT16, {0, 2, 8, 8}), nothing(NPU_FLOAT16, {0, 2, 4, 4}), no_index(NPU_INT64, {0, 2, 4, 4});
  OK(npu_v3_max_pool(stream, none, &w, nothing, no_index));
  OK(npu_v3_max_pool_grad(stream, nothing, no_index, none));
  OK(npu_v3_avg_pool(stream, none, &w, nothing));
  OK(npu_v3_adaptive_avg_pool(stream, none, nothing));
}

// ---- softmax
void softmaxes() {
  const Shape shapes[] = {{6, 1000}, {3, 21, 5, 4}, {7}, {2, 40000}, {}};
  for (const Shape& shape : shapes)
    for (int dtype : kFloatTypes)
      for (int dim = 0; dim < std::max<int>(1, static_cast<int>(shape.size())); dim++)
        for (int logarithm = 0; logarithm < 2; logarithm++)
          for (int turned = 0; turned < 2; turned++) {
            Shape order;
            for (size_t d = shape.size(); d-- > 0;) order.push_back(static_cast<int64_t>(d));
            const Shape stride = turned ? dense_strides(shape, order) : dense_strides(shape);
            Tensor x(dtype, shape, stride), out(dtype, shape), g(dtype, shape, stride), gx(dtype, shape, stride);
            Values v = uniforms(x.n, dtype, -6, 6), vg = uniforms(x.n, dtype);
            if (x.n > 100) v[17] = -kInf;
            x.set(v), g.set(vg);
            OK(npu_v3_softmax(stream, x, dim, logarithm, out));
            const int64_t n = shape.empty() ? 1 : shape[dim];
            int64_t inner = 1;
            for (size_t d = static_cast<size_t>(dim) + 1; d < shape.size(); d++) inner *= shape[d];
            Values y(x.n), dx(x.n);
            for (int64_t row = 0; row < x.n / n; row++) {
              auto at = [&](int64_t k) { return (row / inner * n + k) * inner + row % inner; };
              double most = -kInf, sum = 0;
              for (int64_t k = 0; k < n; k++) most = std::max(most, v[at(k)]);
              for (int64_t k = 0; k < n; k++) sum += std::exp(v[at(k)] - most);
              for (int64_t k = 0; k < n; k++)
                y[at(k)] = logarithm ? v[at(k)] - most - std::log(sum) : std::exp(v[at(k)] - most) / sum;
            }
            Values got = out.get();
            for (size_t i = 0; i < y.size(); i++)
              if (std::isinf(y[i])) {
                CHECK(got[i] == y[i]);
                got[i] = y[i] = 0;
              }
            Tensor finite(dtype, shape);
            finite.set(got);
            close(finite, y, 1e-6, "softmax");
            // The gradient is that of the rounded result.
            OK(npu_v3_softmax_grad(stream, g, finite, dim, logarithm, gx));
            for (int64_t row = 0; row < x.n / n; row++) {
              auto at = [&](int64_t k) { return (row / inner * n + k) * inner + row % inner; };
              double sum = 0;
              for (int64_t k = 0; k < n; k++) sum += logarithm ? vg[at(k)] : vg[at(k)] * got[at(k)];
              for (int64_t k = 0; k < n; k++)
                dx[at(k)] = logarithm ? vg[at(k)] - std::exp(got[at(k)]) * sum : got[at(k)] * (vg[at(k)] - sum);
            }
            double largest = 0;
            for (double e : dx) largest = std::max(largest, std::fabs(e));
            close(gx, dx, 1e-6 * (1 + largest), "softmax_grad");
          }
  Tensor x(NPU_FLOAT32, {2, 3}), out(NPU_FLOAT32, {2, 3}), small(NPU_FLOAT32, {3});
  x.set(Values{1000, 1000, 1000, kNaN, 0, 0});
  OK(npu_v3_softmax(stream, x, 1, 0, out));
  const double third = 1.0 / 3;
  near(out, {third, third, third, kNaN, kNaN, kNaN}, 0.51, "softmax of large numbers and NaN");
  REFUSED(npu_v3_softmax(stream, x, 2, 0, out), NPU_STATUS_INVALID_VALUE, "dim is 2");
  REFUSED(npu_v3_softmax(stream, x, 0, 0, small), NPU_STATUS_INVALID_VALUE, "expected [3]");
}

// ---- loss
void losses() {
  const int64_t n = 50, classes = 9, ignored = -100;
  for (int dtype : kFloatTypes)
    for (int weighted = 0; weighted < 2; weighted++)
      for (int turned = 0; turned < 2; turned++)
        for (int reduction = NPU_LOSS_NONE; reduction <= NPU_LOSS_SUM; reduction++) {
          const Shape stride = turned ? Shape{1, n} : Shape{classes, 1};
          Tensor lp(dtype, {n, classes}, stride), gx(dtype, {n, classes}, stride), target(NPU_INT64, {n}),
              weight(dtype, {classes}), total(dtype, {});
          const Shape loss_shape = reduction == NPU_LOSS_NONE ? Shape{n} : Shape{};
          Tensor loss(dtype, loss_shape), grad(dtype, loss_shape);
          const Values v = uniforms(n * classes, dtype, -4, 0), vw = uniforms(classes, dtype, 0.5, 2),
                       vg = uniforms(loss.n, dtype);
          Integers t(n);
          for (int64_t i = 0; i < n; i++) t[i] = i % 7 == 3 ? ignored : static_cast<int64_t>(random_bits() % classes);
          lp.set(v), weight.set(vw), target.set(t), grad.set(vg);
          const npu_tensor_t* pw = weighted ? &weight.t : nullptr;
          OK(npu_v3_nll_loss(stream, lp, target, pw, reduction, ignored, loss, total));
          double sum = 0, all = 0;
          Values each(n), dx(n * classes);
          for (int64_t i = 0; i < n; i++) {
            if (t[i] == ignored) continue;
            const double w = weighted ? vw[t[i]] : 1;
            each[i] = -w * v[i * classes + t[i]];
            sum += each[i], all += w;
          }
          const double used = total.get()[0];
          for (int64_t i = 0; i < n; i++)
            if (t[i] != ignored)
              dx[i * classes + t[i]] = -(weighted ? vw[t[i]] : 1) * vg[reduction == NPU_LOSS_NONE ? i : 0] /
                                       (reduction == NPU_LOSS_MEAN ? used : 1);
          if (reduction == NPU_LOSS_NONE)
            near(loss, each, 0.51, "nll_loss");
          else
            near(loss, {reduction == NPU_LOSS_MEAN ? sum / all : sum}, 0.51, "nll_loss");
          near(total, {reduction == NPU_LOSS_NONE ? 0 : all}, 0.51, "total_weight");
          OK(npu_v3_nll_loss_grad(stream, grad, target, pw, reduction, ignored, total, gx));
          near(gx, dx, 0.51, "nll_loss_grad");
        }
  Tensor lp(NPU_FLOAT32, {4}), target(NPU_INT64, {}), loss(NPU_FLOAT32, {}), total(NPU_FLOAT32, {});
  lp.set(Values{-1, -2, -3, -4}), target.set(Integers{2});
  OK(npu_v3_nll_loss(stream, lp, target, nullptr, NPU_LOSS_MEAN, -100, loss, total));
  near(loss, {3}, 0, "one sample");
  target.set(Integers{-100});
  OK(npu_v3_nll_loss(stream, lp, target, nullptr, NPU_LOSS_MEAN, -100, loss, total));
  near(loss, {kNaN}, 0, "the mean of nothing");
  OK(npu_v3_nll_loss(stream, lp, target, nullptr, NPU_LOSS_SUM, -100, loss, total));
  near(loss, {0}, 0, "the sum of nothing");
  for (int64_t wrong : {4, -1}) {
    target.set(Integers{wrong}), loss.set(Values{7});
    OK(npu_v3_nll_loss(stream, lp, target, nullptr, NPU_LOSS_MEAN, -100, loss, total));
    REFUSED(npu_stream_synchronize(stream), NPU_STATUS_EXECUTION_FAILED, wrong == 4 ? "target 4" : "target -1",
            "4 classes");
    near(loss, {7}, 0, "nothing is written");
    Tensor gx(NPU_FLOAT32, {4});
    OK(npu_v3_nll_loss_grad(stream, loss, target, nullptr, NPU_LOSS_SUM, -100, total, gx));
    REFUSED(npu_stream_synchronize(stream), NPU_STATUS_EXECUTION_FAILED, "npu_v3_nll_loss_grad", "4 classes");
  }
  Tensor empty(NPU_FLOAT32, {0, 4}), no_target(NPU_INT64, {0}), three(NPU_INT64, {3}), vector(NPU_FLOAT32, {3});
  OK(npu_v3_nll_loss(stream, empty, no_target, nullptr, NPU_LOSS_MEAN, -100, loss, total));
  near(loss, {kNaN}, 0, "the mean of no samples");
  REFUSED(npu_v3_nll_loss(stream, lp, three, nullptr, NPU_LOSS_MEAN, -100, loss, total), NPU_STATUS_INVALID_VALUE,
          "target has shape [3]", "expected []");
  REFUSED(npu_v3_nll_loss(stream, lp, target, vector, NPU_LOSS_MEAN, -100, loss, total), NPU_STATUS_INVALID_VALUE,
          "weight has shape [3]", "expected [4]");
  REFUSED(npu_v3_nll_loss(stream, lp, target, nullptr, 3, -100, loss, total), NPU_STATUS_INVALID_VALUE,
          "reduction is 3");
}

}  // namespace

int main() {
  open_device();
  max_pools();
  average_pools();
  adaptive_pools();
  pool_refusals();
  softmaxes();
  losses();
  std::printf("test_pool_loss: ok\n");
}
