// bench_conv.cpp: time of all convolutions of one ResNet-50 training step on 8x8 images (3x3 stem of stride 1, no
// pooling), batch 64, float16: forward, gradient of the input, gradient of the weight. And of square products.
//
//   bench_conv [batch]
#include <algorithm>
#include <chrono>

#include "check.h"

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

struct Layer {
  int64_t c, o, size, kernel, stride;
  int times;
};

std::vector<Layer> resnet50(int64_t size) {
  std::vector<Layer> layers = {{3, 64, size, 3, 1, 1}};
  int64_t in = 64;
  const int blocks[] = {3, 4, 6, 3};
  for (int stage = 0; stage < 4; stage++) {
    int64_t mid = 64 << stage, out = 4 * mid, stride = stage ? 2 : 1, next = stage ? (size + 1) / 2 : size;
    layers.push_back({in, mid, size, 1, 1, 1});
    layers.push_back({mid, mid, size, 3, stride, 1});
    layers.push_back({in, out, size, 1, stride, 1});
    layers.push_back({mid, out, next, 1, 1, blocks[stage]});
    layers.push_back({out, mid, next, 1, 1, blocks[stage] - 1});
    layers.push_back({mid, mid, next, 3, 1, blocks[stage] - 1});
    in = out;
    size = next;
  }
  return layers;
}

template <class F>
double best(const Bench& b, int tries, const F& f) {
  double least = 1e9;
  for (int i = 0; i < tries; i++) {
    double start = seconds();
    f();
    OK(npu_stream_synchronize(b.stream));
    least = std::min(least, seconds() - start);
  }
  return least;
}

}  // namespace

int main(int argc, char** argv) {
  int64_t n = argc > 1 ? std::atoll(argv[1]) : 64;
  Bench b;
  double total[3] = {};
  std::printf("%5s %5s %5s %2s %2s   forward   grad_x   grad_w ms  (GFLOP)\n", "C", "O", "size", "k", "s");
  for (auto& l : resnet50(8)) {
    int64_t out = (l.size - 1) / l.stride + 1, p = l.kernel / 2;
    npu_window_t w = {{l.kernel, l.kernel}, {l.stride, l.stride}, {p, p}, {1, 1}, 1, 0, 0, 0};
    Tensor x(b, NPU_FLOAT16, {n, l.c, l.size, l.size}), k(b, NPU_FLOAT16, {l.o, l.c, l.kernel, l.kernel}),
        y(b, NPU_FLOAT16, {n, l.o, out, out});
    double t[3] = {best(b, 3, [&] { OK(npu_v3_conv2d(b.stream, x, k, nullptr, &w, y)); }),
                   best(b, 3, [&] { OK(npu_v3_conv2d_grad_input(b.stream, y, k, &w, x)); }),
                   best(b, 3, [&] { OK(npu_v3_conv2d_grad_weight(b.stream, y, x, &w, k)); })};
    double flops = 2.0 * double(n * l.o * out * out) * double(l.c * l.kernel * l.kernel);
    std::printf("%5ld %5ld %5ld %2ld %2ld  %8.3f %8.3f %8.3f     %.3f  x%d\n", long(l.c), long(l.o), long(l.size),
                long(l.kernel), long(l.stride), t[0] * 1e3, t[1] * 1e3, t[2] * 1e3, flops * 1e-9, l.times);
    for (int i = 0; i < 3; i++) total[i] += t[i] * l.times;
  }
  std::printf("all: forward %.1f ms, grad_x %.1f ms, grad_w %.1f ms: %.1f ms\n", total[0] * 1e3, total[1] * 1e3,
              total[2] * 1e3, (total[0] + total[1] + total[2]) * 1e3);
  for (int32_t dtype : {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32}) {
    int64_t m = 1024;
    Tensor x(b, dtype, {m, m}), y(b, dtype, {m, m}), z(b, dtype, {m, m});
    double t = best(b, 8, [&] { OK(npu_v3_matmul(b.stream, x, y, nullptr, 1, 0, z)); });
    std::printf("matmul 1024, dtype %d: %.2f ms, %.0f GFLOP/s\n", dtype, t * 1e3, 2e-9 * double(m * m * m) / t);
  }
  return report("bench_conv");
}
