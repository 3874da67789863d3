// register_kernel.h: the innermost loop of a product, which the simulated chips share; the best for this CPU.
#pragma once
#include <cstdint>

namespace silicon {

// c[0..rows)[0..columns) (+)= sum over kc of a[k][i] * b[k][j], a packed `mr` wide, b packed `nr` wide. It writes whole
// vectors: rows of c are `ldc` apart, with room for `nr`.
struct RegisterKernel {
  int mr, nr;
  void (*run)(int rows, int columns, int64_t kc, const float* a, const float* b, float* c, int64_t ldc, bool add);
};
const RegisterKernel& register_kernel();

}  // namespace silicon
