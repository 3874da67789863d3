// gemm_exact.h: products of integers and of float64, whose result has the dtype of the factors.
#pragma once
#include "sim.h"

namespace npu {

constexpr uint32_t kExactProducts = kInts | (1u << NPU_FLOAT64);

struct ExactProduct {
  const char *a, *b;
  char* out;
  int32_t dtype;
  int64_t batch, m, n, k;
  int64_t a_stride[3], b_stride[3], out_stride[3];  // of batch, row, column, in elements
};
// Enqueues out = a @ b for views of rank 2 or 3 whose shapes have been checked.
npu_status_t submit_exact(npu_stream_t stream, const char* function, const View& a, const View& b, const View& out);

}  // namespace npu
