// gemm_kernel.inl: the register kernel, included once for each instruction set with these macros defined:
//   NPU_TARGET   the function attribute         NPU_MR       rows of the register tile
//   NPU_LANES    floats of a vector             vec          its type
//   vec_load, vec_store, vec_set1, vec_fma      its operations
// The tile is NPU_MR rows by two vectors. `rows` and `vectors` are constants wherever `tile` is called, so that all
// accumulators live in registers.

NPU_TARGET static inline __attribute__((always_inline)) void tile(const int rows, const int vectors, int64_t kc,
                                                                  const float* __restrict a, const float* __restrict b,
                                                                  float* __restrict c, int64_t ldc, bool add) {
  vec sum[NPU_MR][2];
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++) {
    sum[i][0] = vec_set1(0.0f);
    if (vectors == 2) sum[i][1] = vec_set1(0.0f);
  }
  for (int64_t k = 0; k < kc; k++) {
    vec b0 = vec_load(b), b1 = vectors == 2 ? vec_load(b + NPU_LANES) : b0;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
      vec x = vec_set1(a[i]);
      sum[i][0] = vec_fma(x, b0, sum[i][0]);
      if (vectors == 2) sum[i][1] = vec_fma(x, b1, sum[i][1]);
    }
    a += NPU_MR;
    b += 2 * NPU_LANES;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++) {
    float* row = c + i * ldc;
    if (add) {
      sum[i][0] = sum[i][0] + vec_load(row);
      if (vectors == 2) sum[i][1] = sum[i][1] + vec_load(row + NPU_LANES);
    }
    vec_store(row, sum[i][0]);
    if (vectors == 2) vec_store(row + NPU_LANES, sum[i][1]);
  }
}

NPU_TARGET static void run(int rows, int columns, int64_t kc, const float* a, const float* b, float* c, int64_t ldc,
                           bool add) {
#define NPU_ROWS(n)                                       \
  case n:                                                 \
    if (n > NPU_MR) break;                                \
    if (columns > NPU_LANES) {                            \
      tile(n > NPU_MR ? 1 : n, 2, kc, a, b, c, ldc, add); \
    } else {                                              \
      tile(n > NPU_MR ? 1 : n, 1, kc, a, b, c, ldc, add); \
    }                                                     \
    break;
  switch (rows) {
    NPU_ROWS(1)
    NPU_ROWS(2)
    NPU_ROWS(3)
    NPU_ROWS(4)
    NPU_ROWS(5)
    NPU_ROWS(6)
    NPU_ROWS(7)
    NPU_ROWS(8)
    NPU_ROWS(9)
    NPU_ROWS(10)
    NPU_ROWS(11)
    NPU_ROWS(12)
    NPU_ROWS(13)
    NPU_ROWS(14)
  }
#undef NPU_ROWS
}

#undef NPU_TARGET
#undef NPU_MR
#undef NPU_LANES
#undef vec
#undef vec_load
#undef vec_store
#undef vec_set1
#undef vec_fma
