// gemm_engine.h: one blocked matrix product in float32 that the matrix unit and the convolution unit share.
//
// Contract: sums over k of a(i, k) * b(j, k) for all i < m, j < n are handed, row segment by row segment, to a sink,
// each exactly once, from several threads at a time. Elements are found by offsets: one that depends on the outer index
// (i or j) plus one that depends on k, each a table or a constant step. So transposed, broadcast and strided matrices,
// and the windows of a convolution, are all read in place. Runs inside a closure.
#pragma once
#include <cstdint>

#include "register_kernel.h"
#include "sim.h"

namespace npu {

// offset(i) = table ? table[i] : i * step, in elements. `rising` vouches that each entry of the table is larger than
// the one before, so that two entries tell whether those between them are dense.
struct Offsets {
  const int64_t* table = nullptr;
  int64_t step = 0;
  bool rising = false;
  int64_t operator[](int64_t i) const { return table ? table[i] : i * step; }
  Offsets from(int64_t first) const { return table ? Offsets{table + first, 0, rising} : *this; }
};

struct Operand {
  const void* data;
  int32_t dtype;
  Offsets outer, inner;
};

// values[0..count) are the sums of row `row`, columns from `column` on.
using SinkFn = void (*)(void* context, int64_t row, int64_t column, int64_t count, const float* values);

void gemm(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, SinkFn sink, void* context,
          int thread = 0);

template <class F>
void gemm(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, const F& f, int thread = 0) {
  gemm(
      m, n, k, a, b,
      [](void* context, int64_t row, int64_t column, int64_t count, const float* values) {
        (*static_cast<const F*>(context))(row, column, count, values);
      },
      const_cast<F*>(&f), thread);
}

// Products of int8 are exact in float32 for so many terms: 128 * 128 * 1024 = 2^24.
constexpr int64_t kExactInt8Terms = 1024;

// n values of any floating dtype or int8, `step` elements apart, to float32.
void load_floats(const void* data, int32_t dtype, int64_t first, int64_t step, int64_t n, float* out);
// n floats to elements first + at[0..n) of a floating dtype, rounded once.
void store_floats(const float* values, int64_t n, void* data, int32_t dtype, int64_t first, const Offsets& at);

// panel[k * width + i] = element (first + i, k0 + k) for i < count, k < kc <= kPackTerms; zero for i >= count.
constexpr int64_t kPackTerms = 256;
void pack_panel(const Operand& operand, int64_t first, int64_t count, int64_t width, int64_t k0, int64_t kc,
                float* panel);

// Scratch slots of the units in this folder; the engine's own come first.
enum ScratchSlot { kPackedA, kPackedB, kSums, kTile, kImage, kGradImage, kGradWeight, kTables };

}  // namespace npu
