// test_matrix.cpp: the matrix and convolution units against plain loops in double precision.
//
// Tolerance: half a unit in the last place of the result's dtype for the one rounding, and float32 accumulation.
#include <memory>

#include "check.h"

namespace {

struct Reference {
  double value = 0, magnitude = 0;
  void add(double product) {
    value += product;
    magnitude += std::fabs(product);
  }
};

bool near(double got, const Reference& want, int32_t dtype) {
  if (dtype == NPU_INT32) return got == double(int32_t(uint32_t(int64_t(want.value))));
  if (std::isnan(want.value)) return std::isnan(got);
  double unit = dtype == NPU_FLOAT16 ? 0x1p-11 : dtype == NPU_BFLOAT16 ? 0x1p-8 : 0x1p-24;
  if (dtype == NPU_FLOAT16 && std::fabs(want.value) >= 65520 * (1 + 1e-5))
    return std::isinf(got) && (got > 0) == (want.value > 0);
  return std::fabs(got - want.value) <= std::fabs(want.value) * unit * 1.01 + want.magnitude * 2e-6 + 0x1p-24;
}

using Matmul = npu_status_t (*)(npu_stream_t, const npu_tensor_t*, const npu_tensor_t*, const npu_tensor_t*, double,
                                double, const npu_tensor_t*);

void check_product(const Tensor& a, const Tensor& b, const Tensor* c, double alpha, double beta, Tensor& out,
                   const std::vector<char>* c_before = nullptr) {
  out.download();
  size_t r = out.shape.size();
  int64_t batch = r == 3 ? out.shape[0] : 1, m = out.shape[r - 2], n = out.shape[r - 1], k = a.shape[r - 1];
  int bad = 0;
  for (int64_t i = 0; i < batch; i++) {
    for (int64_t y = 0; y < m; y++) {
      for (int64_t x = 0; x < n; x++) {
        Reference want;
        for (int64_t t = 0; t < k; t++) want.add(alpha * a.at((i * m + y) * k + t) * b.at((i * k + t) * n + x));
        int64_t at = (i * m + y) * n + x;
        if (c && beta != 0) want.add(beta * (c_before ? get(c_before->data(), c->dtype, c->offset(at)) : c->at(at)));
        bad += !near(out.at(at), want, out.dtype);
      }
    }
  }
  CHECK(bad == 0);
  if (bad)
    std::printf("  %d of %ld wrong: batch %ld m %ld n %ld k %ld dtype %d\n", bad, long(batch * m * n), long(batch),
                long(m), long(n), long(k), out.dtype);
}

void products() {
  Bench b;
  std::mt19937 g(7);
  struct Size {
    int64_t batch, m, n, k;
  };
  const Size sizes[] = {{0, 1, 1, 1},     {0, 3, 5, 7},     {0, 14, 32, 256},  {0, 15, 33, 257}, {0, 64, 64, 64},
                        {0, 1, 100, 300}, {0, 100, 1, 300}, {0, 113, 130, 40}, {0, 5, 9, 9000},  {0, 0, 4, 4},
                        {0, 4, 0, 4},     {0, 4, 4, 0},     {3, 17, 19, 23},   {9, 8, 8, 8},     {0, 230, 17, 513}};
  const Matmul entry[] = {npu_v3_matmul, npu_v3_matmul_tiled, npu_v3_matmul_pipelined};
  for (int32_t dtype : {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32, NPU_INT8}) {
    int32_t result = dtype == NPU_INT8 ? NPU_INT32 : dtype;
    double range = dtype == NPU_INT8 ? 127 : 1;
    int which = 0;
    for (auto& s : sizes) {
      for (int layout = 0; layout < 4; layout++) {
        bool at = layout & 1, bt = layout & 2;
        std::vector<int64_t> as{s.m, s.k}, bs{s.k, s.n}, os{s.m, s.n};
        std::vector<int64_t> ast = at ? std::vector<int64_t>{1, s.m + 1} : std::vector<int64_t>{s.k + 2, 1};
        std::vector<int64_t> bst = bt ? std::vector<int64_t>{1, s.k} : std::vector<int64_t>{2 * s.n, 2};
        std::vector<int64_t> ost = layout == 3 ? std::vector<int64_t>{1, s.m} : std::vector<int64_t>{s.n, 1};
        if (s.batch) {
          as.insert(as.begin(), s.batch), bs.insert(bs.begin(), s.batch), os.insert(os.begin(), s.batch);
          ast.insert(ast.begin(), (s.m + 1) * (s.k + 2));
          bst.insert(bst.begin(), layout == 1 ? 0 : 2 * s.n * s.k);  // one b for all
          ost.insert(ost.begin(), s.m * s.n);
        }
        Tensor a(b, dtype, as, ast), x(b, dtype, bs, bst), out(b, result, os, ost);
        a.random(g, -range, range);
        x.random(g, -range, range);
        OK(entry[which++ % 3](b.stream, a, x, nullptr, 1, 0, out));
        check_product(a, x, nullptr, 1, 0, out);
      }
    }
  }
}

void scaling() {
  Bench b;
  std::mt19937 g(8);
  for (int32_t dtype : {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32}) {
    Tensor a(b, dtype, {20, 30}), x(b, dtype, {30, 40}), c(b, dtype, {20, 40}), row(b, dtype, {20, 40}, {0, 1}),
        column(b, dtype, {20, 40}, {1, 0}), out(b, dtype, {20, 40});
    for (Tensor* t : {&a, &x, &c, &row, &column}) t->random(g);
    for (Tensor* t : {&c, &row, &column}) {
      OK(npu_v3_matmul(b.stream, a, x, *t, -0.5, 2, out));
      check_product(a, x, t, -0.5, 2, out);
    }
    std::vector<char> before = c.host;  // in place
    OK(npu_v3_matmul(b.stream, a, x, c, 1, 0.25, c));
    check_product(a, x, &c, 1, 0.25, c, &before);
    c.fill([](int64_t) { return NAN; });
    OK(npu_v3_matmul(b.stream, a, x, c, 1, 0, out));  // beta 0: c does not count
    check_product(a, x, nullptr, 1, 0, out);
    row.random(g);
    Tensor none(b, dtype, {20, 0}), less(b, dtype, {0, 40});
    OK(npu_v3_matmul(b.stream, none, less, row, 3, 0.5, out));
    check_product(none, less, &row, 3, 0.5, out);
    OK(npu_v3_matmul(b.stream, none, less, nullptr, 1, 1, out));
    check_product(none, less, nullptr, 1, 0, out);
  }
  // overflow gives infinity, NaN spreads, tiny results are subnormal
  Tensor a(b, NPU_FLOAT16, {3, 2}), x(b, NPU_FLOAT16, {2, 1}), out(b, NPU_FLOAT16, {3, 1});
  const double av[] = {60000, 60000, 0x1p-20, 0, NAN, 1};
  a.fill([&](int64_t i) { return av[i]; });
  x.fill([](int64_t i) { return i ? 1 : 0.25; });
  OK(npu_v3_matmul(b.stream, a, x, nullptr, 1, 0, out));
  out.download();
  CHECK(std::isinf(out.at(0)) && out.at(1) == 0x1p-22 && std::isnan(out.at(2)));
  // int8: sums that float32 could not hold exactly
  Tensor p(b, NPU_INT8, {2, 5000}), q(b, NPU_INT8, {5000, 3}), r(b, NPU_INT32, {2, 3});
  p.fill([](int64_t i) { return i == 4999 ? 1 : -128; });
  q.fill([](int64_t i) { return i >= 4999 * 3 ? 1 : -128; });
  OK(npu_v3_matmul(b.stream, p, q, nullptr, 1, 0, r));
  check_product(p, q, nullptr, 1, 0, r);
  CHECK(r.at(0) == 4999.0 * 16384 + 1);
}

void refusals() {
  Bench b;
  Tensor a(b, NPU_FLOAT16, {4, 5}), x(b, NPU_FLOAT16, {5, 6}), out(b, NPU_FLOAT16, {4, 6}), f(b, NPU_FLOAT32, {5, 6}),
      i8(b, NPU_INT8, {4, 5}), j8(b, NPU_INT8, {5, 6}), o8(b, NPU_INT32, {4, 6}), v(b, NPU_FLOAT16, {5});
  REFUSED(npu_v3_matmul(b.stream, x, a, nullptr, 1, 0, out), NPU_STATUS_INVALID_VALUE, "does not give out");
  REFUSED(npu_v3_matmul(b.stream, a, f, nullptr, 1, 0, out), NPU_STATUS_INVALID_VALUE, "dtypes");
  REFUSED(npu_v3_matmul(b.stream, a, v, nullptr, 1, 0, out), NPU_STATUS_INVALID_VALUE, "ranks");
  REFUSED(npu_v3_matmul(b.stream, i8, j8, nullptr, 2, 0, o8), NPU_STATUS_NOT_SUPPORTED, "INT8");
  REFUSED(npu_v3_matmul(b.stream, a, x, a, 1, 1, out), NPU_STATUS_INVALID_VALUE, "c has another shape");
  REFUSED(npu_v3_matmul(b.stream, o8, x, nullptr, 1, 0, out), NPU_STATUS_INVALID_VALUE, "npu_v3_matmul: dtypes 5, 1");
  REFUSED(npu_v3_matmul_tiled(b.stream, a, nullptr, nullptr, 1, 0, out), NPU_STATUS_INVALID_VALUE,
          "npu_v3_matmul_tiled: b: NULL");
  npu_window_t w = {{3, 3}, {1, 1}, {0, 0}, {1, 1}, 1, 0, 0, 0};
  Tensor im(b, NPU_FLOAT16, {1, 2, 5, 5}), k(b, NPU_FLOAT16, {2, 2, 3, 3}), y(b, NPU_FLOAT16, {1, 2, 3, 3});
  OK(npu_v3_conv2d(b.stream, im, k, nullptr, &w, y));
  auto with = [&](auto change) {
    npu_window_t other = w;
    change(other);
    return npu_v3_conv2d(b.stream, im, k, nullptr, &other, y);
  };
  REFUSED(with([](npu_window_t& o) { o.stride[1] = 3; }), NPU_STATUS_NOT_SUPPORTED, "stride[1] is 3");
  REFUSED(with([](npu_window_t& o) { o.dilation[0] = 3; }), NPU_STATUS_NOT_SUPPORTED, "dilation[0] is 3");
  REFUSED(with([](npu_window_t& o) { o.groups = 3; }), NPU_STATUS_NOT_SUPPORTED, "groups is 3");
  REFUSED(with([](npu_window_t& o) { o.groups = 2; }), NPU_STATUS_INVALID_VALUE, "groups");
  REFUSED(with([](npu_window_t& o) { o.kernel[0] = 12; }), NPU_STATUS_NOT_SUPPORTED, "kernel[0] is 12");
  REFUSED(with([](npu_window_t& o) { o.padding[0] = 1; }), NPU_STATUS_INVALID_VALUE, "the window gives 5");
  REFUSED(npu_v3_conv2d(b.stream, im, k, nullptr, nullptr, y), NPU_STATUS_INVALID_VALUE, "window: NULL");
}

struct Conv {
  int64_t n, c, h, w, o, k[2], s[2], p[2], d[2], groups;
};

std::vector<int64_t> channels_last(const std::vector<int64_t>& s) { return {s[1] * s[2] * s[3], 1, s[1] * s[3], s[1]}; }

void convolution(const Bench& b, const Conv& v, int32_t dtype, bool last, bool with_bias, std::mt19937& g) {
  int64_t out[2];
  for (int i = 0; i < 2; i++) out[i] = ((i ? v.w : v.h) + 2 * v.p[i] - v.d[i] * (v.k[i] - 1) - 1) / v.s[i] + 1;
  npu_window_t window = {{v.k[0], v.k[1]}, {v.s[0], v.s[1]}, {v.p[0], v.p[1]}, {v.d[0], v.d[1]}, v.groups, 0, 0, 0};
  bool integer = dtype == NPU_INT8;
  int32_t result = integer ? NPU_INT32 : dtype;
  double range = integer ? 127 : 1;
  std::vector<int64_t> xs{v.n, v.c, v.h, v.w}, ws{v.o, v.c / v.groups, v.k[0], v.k[1]}, ys{v.n, v.o, out[0], out[1]};
  auto stride = [&](const std::vector<int64_t>& s) { return last ? channels_last(s) : std::vector<int64_t>{}; };
  Tensor x(b, dtype, xs, stride(xs)), w(b, dtype, ws, stride(ws)), y(b, result, ys, stride(ys)), bias(b, result, {v.o});
  x.random(g, -range, range);
  w.random(g, -range, range);
  bias.random(g, -range, range);
  OK(npu_v3_conv2d(b.stream, x, w, with_bias ? bias : static_cast<const npu_tensor_t*>(nullptr), &window, y));
  y.download();

  std::vector<Reference> wy(size_t(y.numel())), gx(size_t(x.numel())), gw(size_t(w.numel()));
  Tensor grad(b, result, ys, stride(ys)), grad_x(b, dtype, xs, stride(xs)), grad_w(b, dtype, ws, stride(ws));
  grad.random(g, -1, 1);
  int64_t filters = v.o / v.groups, channels = v.c / v.groups;
  for (int64_t n = 0; n < v.n; n++)
    for (int64_t o = 0; o < v.o; o++)
      for (int64_t oy = 0; oy < out[0]; oy++)
        for (int64_t ox = 0; ox < out[1]; ox++) {
          int64_t at = ((n * v.o + o) * out[0] + oy) * out[1] + ox;
          if (with_bias) wy[size_t(at)].add(bias.at(o));
          for (int64_t c = 0; c < channels; c++)
            for (int64_t ky = 0; ky < v.k[0]; ky++)
              for (int64_t kx = 0; kx < v.k[1]; kx++) {
                int64_t iy = oy * v.s[0] + ky * v.d[0] - v.p[0], ix = ox * v.s[1] + kx * v.d[1] - v.p[1];
                if (iy < 0 || iy >= v.h || ix < 0 || ix >= v.w) continue;
                int64_t xi = ((n * v.c + o / filters * channels + c) * v.h + iy) * v.w + ix;
                int64_t wi = ((o * channels + c) * v.k[0] + ky) * v.k[1] + kx;
                wy[size_t(at)].add(x.at(xi) * w.at(wi));
                gx[size_t(xi)].add(grad.at(at) * w.at(wi));
                gw[size_t(wi)].add(grad.at(at) * x.at(xi));
              }
        }
  auto compare = [&](const Tensor& t, const std::vector<Reference>& want, const char* what) {
    int64_t bad = 0;
    for (int64_t i = 0; i < t.numel(); i++) bad += !near(t.at(i), want[size_t(i)], t.dtype);
    CHECK(bad == 0);
    if (bad)
      std::printf("  %s: %ld of %ld wrong, dtype %d last %d: n%ld c%ld %ldx%ld o%ld k%ldx%ld s%ld p%ld d%ld g%ld\n",
                  what, long(bad), long(t.numel()), dtype, last, long(v.n), long(v.c), long(v.h), long(v.w), long(v.o),
                  long(v.k[0]), long(v.k[1]), long(v.s[0]), long(v.p[0]), long(v.d[0]), long(v.groups));
  };
  compare(y, wy, "forward");
  if (integer) return;
  grad_x.fill([](int64_t) { return 99; });
  grad_w.fill([](int64_t) { return 99; });
  OK(npu_v3_conv2d_grad_input(b.stream, grad, w, &window, grad_x));
  OK(npu_v3_conv2d_grad_weight(b.stream, grad, x, &window, grad_w));
  compare(grad_x.download(), gx, "grad_input");
  compare(grad_w.download(), gw, "grad_weight");
}

void convolutions() {
  Bench b;
  std::mt19937 g(11);
  const Conv cases[] = {{2, 3, 8, 8, 5, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},  // the common one
                        {3, 4, 7, 9, 6, {1, 1}, {1, 1}, {0, 0}, {1, 1}, 1},  // pointwise
                        {3, 4, 8, 7, 6, {1, 1}, {2, 2}, {0, 0}, {1, 1}, 1},  // pointwise, strided: phases without taps
                        {2, 4, 9, 8, 8, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 2},
                        {2, 4, 11, 13, 4, {5, 3}, {4, 2}, {2, 1}, {1, 2}, 4},
                        {1, 3, 23, 21, 4, {11, 11}, {4, 4}, {2, 2}, {1, 1}, 1},
                        {5, 16, 1, 1, 16, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},  // only the centre tap sees anything
                        {4, 8, 2, 2, 8, {3, 3}, {2, 2}, {1, 1}, {1, 1}, 1},
                        {2, 2, 5, 5, 3, {3, 3}, {1, 1}, {2, 2}, {2, 2}, 1},
                        {2, 2, 4, 4, 3, {1, 1}, {1, 1}, {2, 2}, {1, 1}, 1},  // outputs that see padding only
                        {1, 2, 3, 40, 3, {2, 4}, {1, 4}, {0, 3}, {1, 1}, 1},
                        {1, 1, 6, 6, 1, {6, 6}, {1, 1}, {0, 0}, {1, 1}, 1},
                        {2, 2, 6, 6, 3, {2, 2}, {1, 1}, {0, 0}, {1, 1}, 1},
                        {0, 3, 8, 8, 5, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1},  // no images
                        {4, 300, 3, 3, 6, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}};
  int i = 0;
  for (auto& c : cases) {
    for (int32_t dtype : {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32, NPU_INT8}) {
      convolution(b, c, dtype, false, i++ % 2, g);
      convolution(b, c, dtype, true, i % 3, g);
    }
  }
  // more pixels than are treated at once: sums carried from chunk to chunk
  convolution(b, {3, 1, 370, 360, 1, {3, 3}, {1, 1}, {1, 1}, {1, 1}, 1}, NPU_FLOAT32, false, false, g);
}

// Integers wrap around, and float64 is double's: dense, transposed, broadcast, with gaps, wider than one chunk.
void exact_products() {
  Bench b;
  std::mt19937 g(5);
  struct {
    int64_t batch, m, n, k;
  } const sizes[] = {{0, 3, 4, 5}, {1, 1, 1, 1}, {0, 7, 600, 9}, {3, 4, 5, 130}, {2, 3, 4, 0}, {2, 0, 4, 3}};
  for (auto& s : sizes)
    for (int32_t dtype : {NPU_INT8, NPU_UINT8, NPU_INT16, NPU_INT32, NPU_INT64, NPU_FLOAT64})
      for (int layout = 0; layout < 4; layout++) {
        auto make = [&](int64_t rows, int64_t columns, int how) {
          std::vector<int64_t> shape = {rows, columns}, stride = {columns, 1};
          if (how == 1) stride = {1, rows};
          if (how == 2) stride = {2 * columns + 3, 2};
          if (s.batch)
            shape.insert(shape.begin(), s.batch), stride.insert(stride.begin(), how == 3 ? 0 : 5 * rows * columns + 9);
          return new Tensor(b, dtype, shape, stride);
        };
        std::unique_ptr<Tensor> x(make(s.m, s.k, layout)), y(make(s.k, s.n, layout)), out(make(s.m, s.n, layout % 3));
        x->random(g, dtype == NPU_UINT8 ? 0 : -100, 100), y->random(g, dtype == NPU_UINT8 ? 0 : -100, 100);
        OK(npu_v3_matmul(b.stream, *x, *y, nullptr, 1, 0, *out));
        out->download();
        bool same = true;
        for (int64_t at = 0; at < out->numel(); at++) {
          const int64_t column = at % s.n, row = at / s.n % s.m, batch = at / s.n / s.m;
          double sum = 0;
          for (int64_t k = 0; k < s.k; k++)
            sum += x->at((batch * s.m + row) * s.k + k) * y->at((batch * s.k + k) * s.n + column);
          char wrapped[8];
          if (dtype != NPU_FLOAT64) {
            const int64_t whole_sum = int64_t(sum);
            std::memcpy(wrapped, &whole_sum, 8);
          } else {
            std::memcpy(wrapped, &sum, 8);
          }
          same &= out->at(at) == get(wrapped, dtype, 0);
        }
        CHECK(same);
      }
  Tensor i(b, NPU_INT32, {4, 4}), l(b, NPU_INT64, {4, 4}), d(b, NPU_FLOAT64, {4, 4}), truth(b, NPU_BOOL, {4, 4});
  REFUSED(npu_v3_matmul(b.stream, i, i, i, 1, 1, i), NPU_STATUS_NOT_SUPPORTED, "c: dtype INT32");
  REFUSED(npu_v3_matmul(b.stream, d, d, nullptr, 2, 0, d), NPU_STATUS_NOT_SUPPORTED, "alpha");
  REFUSED(npu_v3_matmul_tiled(b.stream, i, i, nullptr, 1, 0, l), NPU_STATUS_INVALID_VALUE, "dtypes");
  REFUSED(npu_v3_matmul(b.stream, i, l, nullptr, 1, 0, l), NPU_STATUS_INVALID_VALUE, "dtypes");
  REFUSED(npu_v3_matmul(b.stream, truth, truth, nullptr, 1, 0, truth), NPU_STATUS_NOT_SUPPORTED, "BOOL");
}

// Each matmul entry point is the cheapest somewhere, as the header says.
void device_time() {
  Bench b;
  auto cycles = [&](Matmul f, std::vector<int64_t> as, std::vector<int64_t> bs) {
    size_t r = as.size();
    std::vector<int64_t> os = as;
    os[r - 1] = bs[r - 1];
    Tensor a(b, NPU_FLOAT16, as), x(b, NPU_FLOAT16, bs), out(b, NPU_FLOAT16, os);
    uint64_t before, after;
    OK(npu_device_cycles(b.device, &before));
    OK(f(b.stream, a, x, nullptr, 1, 0, out));
    OK(npu_stream_synchronize(b.stream));
    OK(npu_device_cycles(b.device, &after));
    return after - before;
  };
  auto cheapest = [&](std::vector<int64_t> as, std::vector<int64_t> bs) {
    uint64_t g = cycles(npu_v3_matmul, as, bs), t = cycles(npu_v3_matmul_tiled, as, bs),
             p = cycles(npu_v3_matmul_pipelined, as, bs);
    return g <= t && g <= p ? 'g' : t <= p ? 't' : 'p';
  };
  CHECK(cheapest({32, 32}, {32, 32}) == 'g');
  CHECK(cheapest({4, 768}, {768, 768}) == 'g');
  CHECK(cheapest({1024, 768}, {768, 1024}) == 't');
  CHECK(cheapest({1, 1024, 768}, {1, 768, 1024}) == 't');
  CHECK(cheapest({4, 1024, 768}, {4, 768, 1024}) == 'p');
}

}  // namespace

int main() {
  products();
  scaling();
  refusals();
  exact_products();
  convolutions();
  device_time();
  return report("test_matrix");
}
