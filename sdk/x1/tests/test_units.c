/* The units' numbers, against the plainest loops. */
#include <math.h>

#include "check.h"

#define SHAPE(...) ((const int64_t[]){__VA_ARGS__})
static float *floats(int64_t n, int period, int minus) {
  float *p = x1_mem_alloc((size_t)n * 4);
  for (int64_t i = 0; i < n; i++) p[i] = (float)(i % period) - (float)minus;
  return p;
}

/* y of a convolution of NHWC images with any window, computed term by term. */
static double term_by_term(const float *x, const float *w, const int64_t *s, int64_t n, int64_t o, int64_t oh,
                           int64_t ow, int64_t filters, const x1_window_t *window) {
  int64_t c = s[1] / window->groups, first = o / (filters / window->groups) * c;
  double sum = 0;
  for (int64_t l = 0; l < c; l++)
    for (int64_t kh = 0; kh < window->kernel[0]; kh++)
      for (int64_t kw = 0; kw < window->kernel[1]; kw++) {
        int64_t h = oh * window->stride[0] - window->padding[0] + kh,
                v = ow * window->stride[1] - window->padding[1] + kw;
        if (h < 0 || v < 0 || h >= s[2] || v >= s[3]) continue;
        double a = x[((n * s[2] + h) * s[3] + v) * s[1] + first + l];
        sum += a * w[((o * c + l) * window->kernel[0] + kh) * window->kernel[1] + kw];
      }
  return sum;
}

static void convolutions(void) {
  static const x1_window_t windows[] = {{{3, 3}, {1, 1}, {1, 1}, {1, 1}, 1, 0, 0},
                                        {{5, 1}, {4, 2}, {2, 0}, {1, 1}, 2, 0, 0},
                                        {{1, 1}, {2, 2}, {0, 0}, {1, 1}, 4, 0, 0},
                                        {{7, 7}, {2, 1}, {2, 2}, {1, 1}, 1, 0, 0}};
  const int64_t s[4] = {2, 8, 13, 40}, filters = 20;
  float *x = floats(2 * 8 * 13 * 40, 11, 5), *w = floats(20 * 8 * 49, 7, 3), *b = floats(20, 20, 4);
  for (size_t k = 0; k < sizeof(windows) / sizeof(*windows); k++) {
    const x1_window_t *q = &windows[k];
    int64_t oh = (s[2] + 2 * q->padding[0] - q->kernel[0]) / q->stride[0] + 1,
            ow = (s[3] + 2 * q->padding[1] - q->kernel[1]) / q->stride[1] + 1;
    float *y = x1_mem_alloc((size_t)(2 * filters * oh * ow) * 4);
    x1_view_t vx = view(x, X1_DTYPE_FLOAT32, 4, s), vb = view(b, X1_DTYPE_FLOAT32, 1, &filters);
    x1_view_t vw = view(w, X1_DTYPE_FLOAT32, 4, SHAPE(filters, 8 / q->groups, q->kernel[0], q->kernel[1]));
    x1_view_t vy = view(y, X1_DTYPE_FLOAT32, 4, SHAPE(2, filters, oh, ow));
    vx.stride[0] = 8 * 13 * 40, vx.stride[1] = 1, vx.stride[2] = 8 * 40, vx.stride[3] = 8;
    vy.stride[0] = filters * oh * ow, vy.stride[1] = 1, vy.stride[2] = filters * ow, vy.stride[3] = filters;
    CHECK(!x1_conv2d_ex(&vx, &vw, &vb, q, &vy));
    int wrong = 0;
    for (int64_t i = 0; i < 2 * oh * ow * filters; i++) {
      int64_t o = i % filters, c = i / filters % ow, h = i / filters / ow % oh;
      wrong += y[i] != term_by_term(x, w, s, i / filters / ow / oh, o, h, c, filters, q) + b[o];
    }
    CHECK(!wrong);
    vy.shape[2]--;
    CHECK(x1_conv2d_ex(&vx, &vw, &vb, q, &vy) == X1_EVALUE);
    x1_mem_free(y);
  }
  x1_mem_free(x), x1_mem_free(w), x1_mem_free(b);
}

static void eight_bits(void) {
  enum { N = 3000 };
  int8_t *s = x1_mem_alloc(N);
  uint8_t *u = x1_mem_alloc(N), *v = x1_mem_alloc(N);
  int32_t *sum = x1_mem_alloc(4);
  for (int i = 0; i < N; i++) s[i] = (int8_t)-128;
  x1_view_t vs = view(s, X1_DTYPE_INT8, 2, SHAPE(1, N)), vu = view(u, X1_DTYPE_UINT8, 2, SHAPE(1, N));
  x1_view_t vv = view(v, X1_DTYPE_UINT8, 2, SHAPE(N, 1)), one = view(sum, X1_DTYPE_INT32, 2, SHAPE(1, 1));
  CHECK(!x1_copy_ex(&vs, &vu) && u[0] == 0 && u[N - 1] == 0);
  memset(v, 0, N);
  CHECK(!x1_matmul_ex(&vu, &vv, NULL, 1, 0, &one) && *sum == N * 128 * 128); /* beyond what float32 holds exactly */
  s[0] = 100, s[1] = -100, s[2] = 0, s[3] = -1;
  CHECK(!x1_copy_ex(&vs, &vu) && u[0] == 228 && u[1] == 28 && u[2] == 128 && u[3] == 127);
  vv = view(v, X1_DTYPE_UINT8, 2, SHAPE(1, N));
  x1_view_t seven = number(50);
  CHECK(!x1_binary_ex(X1_ADD, &vu, &seven, &vv) && !x1_copy_ex(&vv, &vs));
  CHECK(s[0] == (int8_t)150 && s[1] == -50 && s[2] == 50 && s[3] == 49 && s[4] == -78);
  CHECK(x1_binary_ex(X1_ADD, &vs, &vs, &vs) == X1_EUNSUPPORTED && strstr(x1_last_error(), "INT8"));
  x1_mem_free(s), x1_mem_free(u), x1_mem_free(v), x1_mem_free(sum);
}

static void products(void) {
  enum { M = 37, N = 291, K = 530 };
  float *a = floats(M * K, 13, 6), *b = floats(K * N, 7, 3), *c = floats(N, 5, 2), *y = floats(M * N, 2, 0);
  x1_view_t va = view(a, X1_DTYPE_FLOAT32, 2, SHAPE(M, K)), vb = view(b, X1_DTYPE_FLOAT32, 2, SHAPE(K, N));
  x1_view_t vc = view(c, X1_DTYPE_FLOAT32, 2, SHAPE(M, N)), vy = view(y, X1_DTYPE_FLOAT32, 2, SHAPE(M, N));
  vc.stride[0] = 0;
  CHECK(!x1_matmul_ex(&va, &vb, &vc, 2, 0.5, &vy));
  int wrong = 0;
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++) {
      double sum = 0;
      for (int k = 0; k < K; k++) sum += (double)a[i * K + k] * b[k * N + j];
      wrong += y[i * N + j] != (float)(2 * sum + 0.5 * c[j]);
    }
  CHECK(!wrong && x1_matmul_ex(&vb, &va, NULL, 1, 0, &vy) == X1_EVALUE);
  vb = view(b, X1_DTYPE_FLOAT32, 2, SHAPE(0, N)), va = view(a, X1_DTYPE_FLOAT32, 2, SHAPE(M, 0));
  CHECK(!x1_matmul_ex(&va, &vb, &vc, 2, 1, &vy) && y[N + 1] == c[1]);
  x1_mem_free(a), x1_mem_free(b), x1_mem_free(c), x1_mem_free(y);
}

static void vectors(void) {
  float *x = floats(6, 6, 3), *y = floats(6, 6, 0);
  uint16_t *half = x1_mem_alloc(12);
  int64_t *i = x1_mem_alloc(48);
  uint8_t *t = x1_mem_alloc(6);
  x1_view_t vx = view(x, X1_DTYPE_FLOAT32, 2, SHAPE(2, 3)), vy = view(y, X1_DTYPE_FLOAT32, 2, SHAPE(2, 3));
  x1_view_t vh = view(half, X1_DTYPE_FLOAT16, 2, SHAPE(2, 3)), vt = view(t, X1_DTYPE_BOOL, 2, SHAPE(2, 3));
  x1_view_t vi = view(i, X1_DTYPE_INT64, 2, SHAPE(2, 3)), two = number(2), zero = number(0);
  x[5] = NAN; /* -3 -2 -1 0 1 NaN */
  CHECK(!x1_unary_ex(X1_RELU, &vx, &vy) && y[0] == 0 && y[4] == 1 && isnan(y[5]));
  CHECK(!x1_binary_ex(X1_MAX, &two, &vx, &vy) && y[0] == 2 && isnan(y[5]));
  CHECK(!x1_binary_ex(X1_LT, &vx, &zero, &vt) && t[0] && !t[3] && !t[5]);
  CHECK(!x1_select_ex(&vt, &two, &vx, &vy) && y[0] == 2 && y[4] == 1);
  CHECK(!x1_copy_ex(&vx, &vh) && !x1_binary_ex(X1_MUL, &vh, &two, &vh) && !x1_copy_ex(&vh, &vy) && y[0] == -6 &&
        isnan(y[5]));
  CHECK(!x1_copy_ex(&vx, &vt) && t[0] && !t[3] && t[5] && !x1_copy_ex(&vt, &vi) && i[0] == 1 && i[3] == 0);
  x1_view_t row = view(y, X1_DTYPE_FLOAT32, 2, SHAPE(1, 3)), where = view(i, X1_DTYPE_INT64, 2, SHAPE(1, 3));
  CHECK(!x1_reduce_ex(X1_SUM, &vx, 1, &row) && y[0] == -3 && y[1] == -1 && isnan(y[2]));
  CHECK(!x1_arg_reduce_ex(X1_MAXIMUM, &vx, 0, &where) && i[0] == 1 && i[2] == 1);
  CHECK(!x1_iota_ex(&two, &two,
                    &(x1_view_t){.data = i, .dtype = X1_DTYPE_INT64, .rank = 1, .shape = {3}, .stride = {1}}) &&
        i[2] == 6);
  i[0] = 1, i[1] = 0, i[2] = 1;
  x[5] = 2; /* -3 -2 -1 | 0 1 2 */
  CHECK(!x1_gather_ex(&vx, &where, 0, &row) && y[0] == 0 && y[1] == -2 && y[2] == 2);
  memset(y, 0, 24);
  CHECK(!x1_scatter_ex(X1_ADD, &row, &where, 0, &vx) && x[3] == 0 && !x1_scatter_ex(0, &two, &where, 0, &vx) &&
        x[3] == 2);
  i[0] = 2;
  CHECK(x1_gather_ex(&vx, &where, 0, &row) == X1_EVALUE && strstr(x1_last_error(), "out of range"));
  CHECK(!x1_cumsum_ex(&vx, 1, &vy) && y[5] == x[3] + x[4] + x[5]);
  CHECK(!x1_fill_ex(&two, &vh) && half[5] == 0x4000 && x1_unary_ex(99, &vx, &vy) == X1_EUNSUPPORTED);
  x1_mem_free(x), x1_mem_free(y), x1_mem_free(half), x1_mem_free(i), x1_mem_free(t);
}

static void pools(void) {
  float *x = floats(2 * 25, 50, 0), *y = floats(18, 18, 0);
  int64_t *at = x1_mem_alloc(18 * 8);
  x1_view_t vx = view(x, X1_DTYPE_FLOAT32, 4, SHAPE(1, 2, 5, 5)), vy = view(y, X1_DTYPE_FLOAT32, 4, SHAPE(1, 2, 3, 3));
  x1_view_t vi = view(at, X1_DTYPE_INT64, 4, SHAPE(1, 2, 3, 3));
  x1_window_t w = {{3, 3}, {2, 2}, {1, 1}, {1, 1}, 1, 0, 0};
  CHECK(!x1_max_pool2d_ex(&vx, &w, &vy, &vi) && y[0] == 6 && y[8] == 24 && at[8] == 24 && y[9] == 31 && at[9] == 6);
  CHECK(!x1_avg_pool2d_ex(&vx, &w, &vy) && y[0] == 3);
  w.count_padding = 1;
  CHECK(!x1_avg_pool2d_ex(&vx, &w, &vy) && fabsf(y[0] - 12.0f / 9) < 1e-6f);
  w.padding[0] = 3;
  CHECK(x1_max_pool2d_ex(&vx, &w, &vy, &vi) == X1_EVALUE);
  x1_mem_free(x), x1_mem_free(y), x1_mem_free(at);
}

int main(void) {
  convolutions();
  eight_bits();
  products();
  vectors();
  pools();
  if (!failures) puts("ok");
  return failures != 0;
}
