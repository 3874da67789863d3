// The header as a C++ wrapper uses it: braces for shapes, indices, an absent tensor from `{nullptr}`.
#include <vector>

#include "check.h"

static x1_tensor_t image(float* data, int64_t n, int64_t c, int64_t h, int64_t w) {
  x1_tensor_t t;
  t.data = data;
  t.shape = {n, c, h, w};
  t.stride = {c * h * w, h * w, w, 1};
  t.dtype = X1_DTYPE_FLOAT32;
  return t;
}

int main() {
  static_assert(sizeof(x1_tensor_t) == 80, "one layout in C and C++");
  auto* x = static_cast<float*>(x1_mem_alloc(36 * sizeof(float)));
  auto* w = static_cast<float*>(x1_mem_alloc(8 * sizeof(float)));
  for (int i = 0; i < 36; i++) x[i] = float(i);
  for (int i = 0; i < 8; i++) w[i] = i < 4 ? 1.0f : -1.0f;
  auto input = image(x, 1, 1, 6, 6), weight = image(w, 2, 1, 2, 2), bias = image(w, 1, 2, 1, 1);
  std::vector<int64_t> stride = {2, 2}, padding = {0, 0}, dilation = {1, 1};
  x1_tensor_t output, none = x1_tensor_t{nullptr};
  CHECK(x1_conv2d_run(&input, &weight, &bias, stride.data(), padding.data(), dilation.data(), 1, &output) == X1_OK);
  auto* y = static_cast<float*>(output.data);
  CHECK(output.shape[1] == 2 && output.shape[2] == 3 && output.shape[3] == 3);
  CHECK(y[0] == 0 + 1 + 6 + 7 + 1 && y[1] == 2 + 3 + 8 + 9 + 1 && y[9] == -14 + 1);
  CHECK(x1_conv2d_run(&input, &weight, &none, stride.data(), padding.data(), dilation.data(), 1, &output) == X1_OK);
  CHECK(static_cast<float*>(output.data)[0] == 14);
  CHECK(!x1_mem_free(x) && !x1_mem_free(w));
  if (!failures) puts("ok");
  return failures != 0;
}
