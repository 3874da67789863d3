// matrix_clock.h: device time of the matrix and convolution units. The formulas are README.md's; keep both the same.
#pragma once
#include <cstdint>

namespace npu {

enum class MatmulPath { generic, tiled, pipelined };

uint64_t matmul_cycles(MatmulPath path, int64_t batch, int64_t m, int64_t n, int64_t k, int32_t dtype,
                       int32_t out_dtype, bool with_c);
// A convolution, or one of its gradients: `flops` of arithmetic on `bytes` of tensors, each moved once.
uint64_t convolution_cycles(double flops, double bytes, int32_t dtype);
// Attention of `heads` heads; `mask_bytes` as it lies in memory.
uint64_t attention_cycles(int64_t heads, int64_t rows, int64_t keys, int64_t depth, int64_t width, int32_t dtype,
                          double mask_bytes);

}  // namespace npu
