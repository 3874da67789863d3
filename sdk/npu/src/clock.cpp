// clock.cpp: what work costs in cycles of the virtual clock. The formulas are README.md's; keep both the same.
#include <algorithm>
#include <cmath>

#include "device.h"
#include "matrix_clock.h"

namespace npu {

namespace {

constexpr double kLaunch = 100;            // fetching and decoding a command
constexpr double kTileStart = 200;         // filling and draining the array for one 64x64 tile of a product
constexpr double kPipelineStart = 120000;  // programming the prefetch
constexpr double kConvolutionStart = 500;
constexpr double kScalarCycles = 64;  // the scalar core's, to fetch, compute and store one element

double rate(const Chip& chip, const Work& work) {
  if (work.unit == Work::scalar) return 1 / kScalarCycles;
  size_t size = dtype_size(work.dtype);
  if (work.unit == Work::matrix) {
    if (work.dtype == NPU_INT8) return chip.matrix_int8;
    return size == 2 ? chip.matrix_fp16 : chip.matrix_fp32;
  }
  if (size >= 8) return chip.vector_16bit / 4;
  return size == 4 ? chip.vector_16bit / 2 : chip.vector_16bit;
}

double round_up(int64_t n, int64_t to) { return double((n + to - 1) / to * to); }

uint64_t total(double cycles) { return uint64_t(std::ceil(kLaunch + cycles)); }

}  // namespace

uint64_t cycles(npu_stream_t, const Work& work) {
  const Chip& chip = config().chip;
  double compute = work.unit == Work::dma ? 0 : work.flops / rate(chip, work);
  double bandwidth = work.bytes <= double(chip.cache_bytes) ? chip.cache_bandwidth : chip.memory_bandwidth;
  double memory = work.bytes / bandwidth;
  double hidden = work.overlap * std::min(compute, memory);
  return total(double(work.fixed) + compute + memory - hidden);
}

uint64_t matmul_cycles(MatmulPath path, int64_t batch, int64_t m, int64_t n, int64_t k, int32_t dtype,
                       int32_t out_dtype, bool with_c) {
  const Chip& chip = config().chip;
  Work work;
  work.unit = Work::matrix;
  work.dtype = dtype;
  double speed = rate(chip, work), size = double(dtype_size(dtype));
  double out_bytes = double(m) * double(n) * double(dtype_size(out_dtype)) * (with_c ? 2 : 1);
  double a_bytes = double(m) * double(k) * size, b_bytes = double(k) * double(n) * size, times = double(batch);
  if (path == MatmulPath::generic) {
    double rows = round_up(m, 16);
    double compute = 2 * rows * double(n) * double(k) / speed;
    double bytes = rows * double(k) * size + rows / 16 * b_bytes + out_bytes;
    return total(times * (compute + bytes / chip.memory_bandwidth));
  }
  double rows = round_up(m, 64), columns = round_up(n, 64), depth = round_up(k, 64);
  double compute = 2 * rows * columns * depth / speed;
  // What of a does not fit half of the cache makes b come again.
  double passes = std::max(1.0, std::ceil(a_bytes / (double(chip.cache_bytes) / 2)));
  if (a_bytes + b_bytes <= double(chip.cache_bytes)) passes = 1;
  double memory = (a_bytes + passes * b_bytes + out_bytes) / chip.memory_bandwidth;
  if (path == MatmulPath::tiled) {
    double tiles = rows / 64 * (columns / 64);
    return total(times * (kTileStart * tiles + compute + memory));
  }
  return total(kPipelineStart + times * std::max(compute, memory));
}

uint64_t convolution_cycles(double flops, double bytes, int32_t dtype) {
  Work work;
  work.unit = Work::matrix;
  work.dtype = dtype;
  return total(kConvolutionStart + std::max(flops / rate(config().chip, work), bytes / config().chip.memory_bandwidth));
}

uint64_t attention_cycles(int64_t heads, int64_t rows, int64_t keys, int64_t depth, int64_t width, int32_t dtype,
                          double mask_bytes) {
  const Chip& chip = config().chip;
  Work work;
  work.dtype = dtype;
  const double vector = rate(chip, work), size = double(dtype_size(dtype));
  work.unit = Work::matrix;
  const double m = round_up(rows, 64), t = round_up(keys, 64), columns = round_up(depth, 64) + round_up(width, 64);
  const double tiles = m / 64 * (t / 64 + round_up(width, 64) / 64);
  const double compute = 2 * m * t * columns / rate(chip, work), scores = 5 * double(rows) * double(keys) / vector;
  const double bytes = double(rows + keys) * double(depth + width) * size;
  return total(double(heads) * (kTileStart * tiles + compute + scores + bytes / chip.memory_bandwidth) +
               mask_bytes / chip.memory_bandwidth);
}

}  // namespace npu
