// test_epilogue.cpp: products and convolutions with an epilogue, attention, and the layer norm of a sum, against plain
// loops in double precision.
//
// Tolerance: a few units in the last place of the result's dtype, of the largest number that takes part.
#include "check.h"

namespace {

double unit(int32_t dtype) { return dtype == NPU_FLOAT16 ? 0x1p-10 : dtype == NPU_BFLOAT16 ? 0x1p-7 : 0x1p-20; }

double activated(double x, int32_t activation) {
  if (activation == NPU_UNARY_RELU) return x < 0 ? 0 : x;
  if (activation == NPU_UNARY_GELU) return 0.5 * x * std::erfc(-x * std::sqrt(0.5));
  if (activation == NPU_UNARY_GELU_TANH)
    return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x)));
  return x;
}

void near(double got, double want, double scale, int32_t dtype, int* bad) {
  *bad += std::isnan(want) ? !std::isnan(got) : !(std::fabs(got - want) <= unit(dtype) * (1 + scale));
}

void products() {
  Bench b;
  std::mt19937 g(3);
  const int64_t sizes[][3] = {{1, 1, 1}, {5, 700, 9}, {70, 33, 40}, {3, 8, 9000}};
  for (int32_t dtype : {NPU_FLOAT32, NPU_FLOAT16, NPU_BFLOAT16}) {
    for (auto& size : sizes) {
      const int64_t m = size[0], n = size[1], k = size[2];
      for (int32_t activation : {0, NPU_UNARY_RELU, NPU_UNARY_GELU, NPU_UNARY_GELU_TANH}) {
        for (int form = 0; form < 4; form++) {
          const bool column_major = form & 1, with_residual = form & 2;
          const std::vector<int64_t> strides =
              column_major ? std::vector<int64_t>{1, m} : std::vector<int64_t>{n + 3, 1};
          Tensor x(b, dtype, {m, k}), y(b, dtype, {k, n}, {1, k}), c(b, dtype, {m, n}, {0, 1});
          Tensor residual(b, dtype, {m, n}, strides), out(b, dtype, {m, n}, strides);
          x.random(g), y.random(g), c.random(g, -4, 4), residual.random(g, -3, 3);
          const npu_epilogue_t epilogue = {
              nullptr, nullptr, nullptr, nullptr, 0, with_residual ? &residual.desc : nullptr, activation, 0};
          OK(npu_v3_matmul_epilogue(b.stream, x, y, c, 0.5, 2, &epilogue, out));
          out.download();
          int bad = 0;
          for (int64_t i = 0; i < m * n; i++) {
            double sum = 2 * c.at(i), magnitude = std::fabs(sum);
            for (int64_t t = 0; t < k; t++) {
              const double product = 0.5 * x.at(i / n * k + t) * y.at(t * n + i % n);
              sum += product, magnitude += std::fabs(product);
            }
            if (with_residual) sum += residual.at(i), magnitude += std::fabs(residual.at(i));
            near(out.at(i), activated(sum, activation), dtype == NPU_FLOAT32 ? magnitude / 8 : std::fabs(sum), dtype,
                 &bad);
          }
          CHECK(bad == 0);
        }
      }
    }
  }
  Tensor x(b, NPU_INT8, {4, 4}), r(b, NPU_INT32, {4, 4});
  const npu_epilogue_t none = {};
  CHECK(npu_v3_matmul_epilogue(b.stream, x, x, nullptr, 1, 0, &none, r) != NPU_STATUS_SUCCESS);
  Tensor f(b, NPU_FLOAT32, {4, 4}), turned(b, NPU_FLOAT32, {4, 4}, {1, 4}), numbers(b, NPU_FLOAT32, {4});
  npu_epilogue_t epilogue = {};
  epilogue.residual = turned;
  REFUSED(npu_v3_matmul_epilogue(b.stream, f, f, nullptr, 1, 0, &epilogue, f), NPU_STATUS_NOT_SUPPORTED, "strides");
  epilogue = npu_epilogue_t{};
  epilogue.activation = NPU_UNARY_SIN;
  REFUSED(npu_v3_matmul_epilogue(b.stream, f, f, nullptr, 1, 0, &epilogue, f), NPU_STATUS_NOT_SUPPORTED, "activation");
  epilogue = npu_epilogue_t{};
  epilogue.mean = numbers;
  REFUSED(npu_v3_matmul_epilogue(b.stream, f, f, nullptr, 1, 0, &epilogue, f), NPU_STATUS_INVALID_VALUE, "mean");
}

// What passes through the polynomials: every float16, and NaN and infinities.
void activations() {
  Bench b;
  const int64_t n = 1 << 16;
  Tensor x(b, NPU_FLOAT32, {n, 1}), one(b, NPU_FLOAT32, {1, 1}), out(b, NPU_FLOAT32, {n, 1});
  x.fill([](int64_t i) { return value_of_half(uint16_t(i)); });
  one.fill([](int64_t) { return 1; });
  for (int32_t activation : {NPU_UNARY_RELU, NPU_UNARY_GELU, NPU_UNARY_GELU_TANH}) {
    npu_epilogue_t epilogue = {};
    epilogue.activation = activation;
    OK(npu_v3_matmul_epilogue(b.stream, x, one, nullptr, 1, 0, &epilogue, out));
    out.download();
    int bad = 0;
    for (int64_t i = 0; i < n; i++) {
      const double at = x.at(i), want = activated(at, activation);
      const bool lost = std::isnan(at) || (std::isinf(at) && at < 0 && activation != NPU_UNARY_RELU);
      if (lost) {
        bad += !std::isnan(out.at(i)) && out.at(i) != 0;  // -inf * 0 may be either
      } else if (std::isinf(want)) {
        bad += out.at(i) != want;
      } else {
        const bool wrong = !(std::fabs(out.at(i) - want) <= 8 * 0x1p-23 * std::fmax(1, std::fabs(want)));
        if (wrong) std::printf("  activation %d of %.9g: %.9g, expected %.9g\n", activation, at, out.at(i), want);
        bad += wrong;
      }
    }
    CHECK(bad == 0);
    if (bad) std::printf("  activation %d: %d wrong\n", activation, bad);
  }
}

void convolutions() {
  Bench b;
  std::mt19937 g(5);
  for (int32_t dtype : {NPU_FLOAT32, NPU_FLOAT16}) {
    for (int form = 0; form < 8; form++) {
      const bool last = form & 1, with_residual = form & 2, with_bias = form & 4;
      const int64_t N = 2, C = 6, O = 10, H = 9, W = 7, oH = 5, oW = 4, groups = form & 1 ? 2 : 1;
      const std::vector<int64_t> layout =
          last ? std::vector<int64_t>{O * oH * oW, 1, oW * O, O} : std::vector<int64_t>{O * oH * oW, oH * oW, oW, 1};
      Tensor x(b, dtype, {N, C, H, W}), w(b, dtype, {O, C / groups, 3, 3}), bias(b, dtype, {O});
      Tensor mean(b, NPU_FLOAT32, {O}), variance(b, NPU_FLOAT32, {O}), weight(b, dtype, {O}), shift(b, dtype, {O});
      Tensor residual(b, dtype, {N, O, oH, oW}, layout), y(b, dtype, {N, O, oH, oW}, layout);
      x.random(g), w.random(g), bias.random(g), mean.random(g), variance.random(g, 0.5, 2), weight.random(g, 0.5, 2);
      shift.random(g), residual.random(g, -2, 2);
      npu_window_t window = {{3, 3}, {2, 2}, {1, 1}, {1, 1}, groups, 0, 0, 0};
      const npu_epilogue_t epilogue = {
          mean, variance, weight, shift, 1e-3, with_residual ? &residual.desc : nullptr, NPU_UNARY_RELU, 0};
      OK(npu_v3_conv2d_epilogue(b.stream, x, w, with_bias ? &bias.desc : nullptr, &window, &epilogue, y));
      y.download();
      int bad = 0;
      for (int64_t i = 0; i < y.numel(); i++) {
        const int64_t q = i % oW, p = i / oW % oH, o = i / (oW * oH) % O, n = i / (oW * oH * O);
        double sum = with_bias ? bias.at(o) : 0, magnitude = 1;
        for (int64_t c = 0; c < C / groups; c++) {
          for (int64_t t = 0; t < 9; t++) {
            const int64_t r = 2 * p - 1 + t / 3, s = 2 * q - 1 + t % 3;
            if (r < 0 || r >= H || s < 0 || s >= W) continue;
            const int64_t channel = o / (O / groups) * (C / groups) + c;
            const double product = x.at(((n * C + channel) * H + r) * W + s) * w.at((o * (C / groups) + c) * 9 + t);
            sum += product, magnitude += std::fabs(product);
          }
        }
        const double slope = weight.at(o) / std::sqrt(variance.at(o) + 1e-3);
        double want = (sum - mean.at(o)) * slope + shift.at(o);
        if (with_residual) want += residual.at(i);
        near(y.at(i), activated(want, NPU_UNARY_RELU),
             dtype == NPU_FLOAT32 ? magnitude * slope / 8 : std::fabs(want) + 1, dtype, &bad);
      }
      CHECK(bad == 0);
    }
  }
}

void attentions() {
  Bench b;
  std::mt19937 g(11);
  const int64_t sizes[][5] = {{1, 1, 1, 1, 1}, {6, 17, 33, 8, 5}, {4, 300, 520, 16, 16}, {2, 1, 40, 64, 64}};
  for (int32_t dtype : {NPU_FLOAT32, NPU_FLOAT16}) {
    for (auto& size : sizes) {
      const int64_t N = size[0], S = size[1], T = size[2], D = size[3], E = size[4];
      for (int masked = 0; masked < 3; masked++) {
        Tensor q(b, dtype, {N, S, D}), k(b, dtype, {N, D, T}, {D * T, 1, D}), v(b, dtype, {N, T, E});
        Tensor out(b, dtype, {N, S, E}, {S * E, 1, S});
        const int64_t samples = N % 2 ? 1 : 2;  // one mask for all heads of a sample
        Tensor mask(b, masked == 2 ? NPU_FLOAT32 : dtype, {samples, N / samples, S, T}, {S * T, 0, T, 1});
        q.random(g, -2, 2), k.random(g, -2, 2), v.random(g);
        for (int64_t i = 0; i < samples * S * T; i++) {
          const int64_t row = i / T % S;
          const bool hidden = row == 0 || (i * 7 % 5 == 0);  // row 0 sees nothing
          put(mask.host.data(), mask.dtype, i, hidden ? -INFINITY : double(i % 3) / 2);
        }
        mask.upload();
        OK(npu_v3_attention(b.stream, q, k, v, masked ? &mask.desc : nullptr, 0.25, out));
        out.download();
        int bad = 0;
        std::vector<double> scores(static_cast<size_t>(T));
        for (int64_t h = 0; h < N; h++) {
          for (int64_t s = 0; s < S; s++) {
            double most = -INFINITY, sum = 0;
            for (int64_t t = 0; t < T; t++) {
              double dot = 0;
              for (int64_t d = 0; d < D; d++) dot += q.at((h * S + s) * D + d) * k.at((h * D + d) * T + t);
              scores[size_t(t)] = 0.25 * dot + (masked ? mask.at((h * S + s) * T + t) : 0);
              most = std::fmax(most, scores[size_t(t)]);
            }
            for (double& score : scores) sum += score = std::isinf(most) ? 0 : std::exp(score - most);
            for (int64_t e = 0; e < E; e++) {
              double want = 0;
              for (int64_t t = 0; t < T; t++) want += scores[size_t(t)] * v.at((h * T + t) * E + e);
              near(out.at((h * S + s) * E + e), sum == 0 ? 0 : want / sum, 2, dtype, &bad);
            }
          }
        }
        CHECK(bad == 0);
        if (bad) std::printf("  N %ld S %ld T %ld masked %d: %d wrong\n", long(N), long(S), long(T), masked, bad);
      }
    }
  }
  Tensor q(b, NPU_FLOAT32, {2, 3, 4}), k(b, NPU_FLOAT32, {2, 4, 5}), v(b, NPU_FLOAT32, {2, 5, 4});
  Tensor out(b, NPU_FLOAT32, {2, 3, 4}), mask(b, NPU_FLOAT32, {1, 1, 3, 5});
  q.fill([](int64_t i) { return i == 0 ? NAN : 1; }), k.random(g), v.random(g);
  OK(npu_v3_attention(b.stream, q, k, v, nullptr, 1, out));
  out.download();
  CHECK(std::isnan(out.at(0)) && !std::isnan(out.at(4)));
  REFUSED(npu_v3_attention(b.stream, q, k, v, mask, 1, out), NPU_STATUS_INVALID_VALUE, "mask");
  REFUSED(npu_v3_attention(b.stream, q, v, v, nullptr, 1, out), NPU_STATUS_INVALID_VALUE, "k: expected");
}

void sums_normalised() {
  Bench b;
  std::mt19937 g(13);
  for (int32_t dtype : {NPU_FLOAT32, NPU_FLOAT16, NPU_BFLOAT16}) {
    const int64_t rows = 37, columns = 130;
    Tensor x(b, dtype, {rows, columns}), r(b, dtype, {rows, columns}), out(b, dtype, {rows, columns});
    Tensor w(b, NPU_FLOAT32, {columns}), shift(b, dtype, {columns});
    x.random(g), r.random(g, 1, 3), w.random(g), shift.random(g);
    OK(npu_v3_layer_norm_residual(b.stream, x, r, w, shift, 1e-5, out));
    out.download();
    int bad = 0;
    for (int64_t i = 0; i < rows; i++) {
      double sum = 0, squares = 0;
      for (int64_t j = 0; j < columns; j++) sum += x.at(i * columns + j) + r.at(i * columns + j);
      const double mean = sum / double(columns);
      for (int64_t j = 0; j < columns; j++) {
        const double from = x.at(i * columns + j) + r.at(i * columns + j) - mean;
        squares += from * from;
      }
      const double inverse = 1 / std::sqrt(squares / double(columns) + 1e-5);
      for (int64_t j = 0; j < columns; j++) {
        const double from = x.at(i * columns + j) + r.at(i * columns + j) - mean;
        near(out.at(i * columns + j), from * inverse * w.at(j) + shift.at(j), 3, dtype, &bad);
      }
    }
    CHECK(bad == 0);
  }
  Tensor x(b, NPU_FLOAT32, {4, 6}), gaps(b, NPU_FLOAT32, {4, 6}, {7, 1});
  REFUSED(npu_v3_layer_norm_residual(b.stream, x, gaps, nullptr, nullptr, 1e-5, x), NPU_STATUS_NOT_SUPPORTED,
          "residual");
}

}  // namespace

int main() {
  products();
  activations();
  convolutions();
  attentions();
  sums_normalised();
  return report("epilogue");
}
