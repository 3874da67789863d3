// register_kernel.inl: the register kernel, included once for each instruction set with these macros defined:
//   SILICON_TARGET   the function attribute         SILICON_MR       rows of the register tile
//   SILICON_LANES    floats of a vector             vec          its type
//   vec_load, vec_store, vec_set1, vec_fma      its operations
// The tile is SILICON_MR rows by two vectors. `rows` and `vectors` are constants wherever `tile` is called, so that all
// accumulators live in registers.

SILICON_TARGET static inline __attribute__((always_inline)) void tile(const int rows, const int vectors, int64_t kc,
                                                                      const float* __restrict a,
                                                                      const float* __restrict b, float* __restrict c,
                                                                      int64_t ldc, bool add) {
  vec sum[SILICON_MR][2];
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++) {
    sum[i][0] = vec_set1(0.0f);
    if (vectors == 2) sum[i][1] = vec_set1(0.0f);
  }
  for (int64_t k = 0; k < kc; k++) {
    vec b0 = vec_load(b), b1 = vectors == 2 ? vec_load(b + SILICON_LANES) : b0;
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
      vec x = vec_set1(a[i]);
      sum[i][0] = vec_fma(x, b0, sum[i][0]);
      if (vectors == 2) sum[i][1] = vec_fma(x, b1, sum[i][1]);
    }
    a += SILICON_MR;
    b += 2 * SILICON_LANES;
  }
#pragma GCC unroll 16
  for (int i = 0; i < rows; i++) {
    float* row = c + i * ldc;
    if (add) {
      sum[i][0] = sum[i][0] + vec_load(row);
      if (vectors == 2) sum[i][1] = sum[i][1] + vec_load(row + SILICON_LANES);
    }
    vec_store(row, sum[i][0]);
    if (vectors == 2) vec_store(row + SILICON_LANES, sum[i][1]);
  }
}

SILICON_TARGET static void run(int rows, int columns, int64_t kc, const float* a, const float* b, float* c, int64_t ldc,
                               bool add) {
#define SILICON_ROWS(n)                                       \
  case n:                                                     \
    if (n > SILICON_MR) break;                                \
    if (columns > SILICON_LANES) {                            \
      tile(n > SILICON_MR ? 1 : n, 2, kc, a, b, c, ldc, add); \
    } else {                                                  \
      tile(n > SILICON_MR ? 1 : n, 1, kc, a, b, c, ldc, add); \
    }                                                         \
    break;
  switch (rows) {
    SILICON_ROWS(1)
    SILICON_ROWS(2)
    SILICON_ROWS(3)
    SILICON_ROWS(4)
    SILICON_ROWS(5)
    SILICON_ROWS(6)
    SILICON_ROWS(7)
    SILICON_ROWS(8)
    SILICON_ROWS(9)
    SILICON_ROWS(10)
    SILICON_ROWS(11)
    SILICON_ROWS(12)
    SILICON_ROWS(13)
    SILICON_ROWS(14)
  }
#undef SILICON_ROWS
}

#undef SILICON_TARGET
#undef SILICON_MR
#undef SILICON_LANES
#undef vec
#undef vec_load
#undef vec_store
#undef vec_set1
#undef vec_fma
