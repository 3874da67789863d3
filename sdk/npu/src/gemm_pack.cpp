// gemm_pack.cpp: brings operands of any dtype and layout into the float32 panels that the register kernel reads.
//
// Contract: see gemm_engine.h. Elements are converted exactly once for each time they are packed.
#include <algorithm>

#include "gemm_engine.h"

#if defined(__x86_64__)
#define NPU_X86_64 1
#include <immintrin.h>
#endif

namespace npu {

namespace {

constexpr int kRows = 8;  // rows transposed together

void convert(const void* data, int32_t dtype, int64_t first, int64_t n, float* out) {
  switch (dtype) {
    case NPU_FLOAT16:
      return half_to_float(static_cast<const uint16_t*>(data) + first, out, n);
    case NPU_BFLOAT16:
      return bf16_to_float(static_cast<const uint16_t*>(data) + first, out, n);
    case NPU_INT8: {
      auto* p = static_cast<const int8_t*>(data) + first;
      for (int64_t i = 0; i < n; i++) out[i] = float(p[i]);
      return;
    }
    default:
      std::memcpy(out, static_cast<const float*>(data) + first, size_t(n) * 4);
  }
}

// data[first + at[0..n)] to float32: collected as they are, then converted in bulk.
template <class T>
void collect(const void* data, int64_t first, const Offsets& at, int64_t n, T* to) {
  auto* from = static_cast<const T*>(data) + first;
  if (at.table) {
    int64_t i = 0;
    for (; at.rising && i + 8 <= n; i += 8) {  // windows of an image are mostly runs
      if (at.table[i + 7] - at.table[i] == 7) {
        std::memcpy(to + i, from + at.table[i], 8 * sizeof(T));
      } else {
        for (int64_t j = i; j < i + 8; j++) to[j] = from[at.table[j]];
      }
    }
    for (; i < n; i++) to[i] = from[at.table[i]];
  } else {
    for (int64_t i = 0; i < n; i++) to[i] = from[i * at.step];
  }
}

void load_indexed(const void* data, int32_t dtype, int64_t first, const Offsets& at, int64_t n, float* out) {
  if (!at.table && at.step == 1) return convert(data, dtype, first, n, out);
  if (dtype == NPU_FLOAT32) return collect(data, first, at, n, out);
  union {
    uint16_t half[kPackTerms];
    int8_t byte[kPackTerms];
  } raw;
  for (int64_t i = 0; i < n; i += kPackTerms) {
    int64_t some = std::min(kPackTerms, n - i);
    Offsets here = at.from(i);
    int64_t base = at.table ? first : first + i * at.step;
    if (dtype == NPU_INT8) {
      collect(data, base, here, some, raw.byte);
    } else {
      collect(data, base, here, some, raw.half);
    }
    convert(&raw, dtype, 0, some, out + i);
  }
}

// Offsets [0, n) are known to come in dense groups of eight.
bool in_runs(const Offsets& at, int64_t n) {
  if (!at.table) return at.step == 1;
  if (!at.rising) return false;
  for (int64_t i = 0; i + 8 <= n; i += 8) {
    if (at.table[i + 7] - at.table[i] != 7) return false;
  }
  return true;
}

// panel[k * width + i] = row[i][k] for eight rows.
void transpose_portable(const float* const row[kRows], int64_t first, int64_t n, float* panel, int64_t width) {
  for (int64_t k = first; k < n; k++) {
    for (int i = 0; i < kRows; i++) panel[k * width + i] = row[i][k];
  }
}

#ifdef NPU_X86_64
__attribute__((target("avx2"))) void transpose_avx2(const float* const row[kRows], int64_t n, float* panel,
                                                    int64_t width) {
  int64_t k = 0;
  for (; k + 8 <= n; k += 8, panel += 8 * width) {
    __m256 r[8], pair[8], quad[8];
    // Halves of rows i and i + 4 side by side, so that no lane has to cross later.
    for (int i = 0; i < 4; i++) {
      for (int half = 0; half < 2; half++) {
        __m256 low = _mm256_castps128_ps256(_mm_loadu_ps(row[i] + k + 4 * half));
        r[i + 4 * half] = _mm256_insertf128_ps(low, _mm_loadu_ps(row[i + 4] + k + 4 * half), 1);
      }
    }
    for (int h = 0; h < 8; h += 4) {
      pair[h + 0] = _mm256_unpacklo_ps(r[h + 0], r[h + 1]);
      pair[h + 1] = _mm256_unpackhi_ps(r[h + 0], r[h + 1]);
      pair[h + 2] = _mm256_unpacklo_ps(r[h + 2], r[h + 3]);
      pair[h + 3] = _mm256_unpackhi_ps(r[h + 2], r[h + 3]);
      quad[h + 0] = _mm256_shuffle_ps(pair[h + 0], pair[h + 2], 0x44);
      quad[h + 1] = _mm256_shuffle_ps(pair[h + 0], pair[h + 2], 0xee);
      quad[h + 2] = _mm256_shuffle_ps(pair[h + 1], pair[h + 3], 0x44);
      quad[h + 3] = _mm256_shuffle_ps(pair[h + 1], pair[h + 3], 0xee);
    }
    for (int i = 0; i < 8; i++) _mm256_storeu_ps(panel + i * width, quad[i]);
  }
  transpose_portable(row, k, n, panel - k * width, width);
}
#endif

void transpose(const float* const row[kRows], int64_t n, float* panel, int64_t width) {
#ifdef NPU_X86_64
  static const bool avx2 = __builtin_cpu_supports("avx2");
  if (avx2) return transpose_avx2(row, n, panel, width);
#endif
  transpose_portable(row, 0, n, panel, width);
}

// Columns of windows: for each term, what the `count` columns see.
void pack_columns(const float* data, const int64_t* column, int64_t count, const Offsets& inner, int64_t kc,
                  float* panel, int64_t width, bool runs) {
  for (int64_t k = 0; k < kc; k++) {
    const float* from = data + inner[k];
    float* to = panel + k * width;
    int64_t i = 0;
    if (runs) {
      for (; i + 8 <= count; i += 8) std::memcpy(to + i, from + column[i], 8 * sizeof(float));
    }
    for (; i < count; i++) to[i] = from[column[i]];
  }
}

}  // namespace

void pack_panel(const Operand& op, int64_t first, int64_t count, int64_t width, int64_t k0, int64_t kc, float* panel) {
  if (count < width) std::fill_n(panel, kc * width, 0.0f);
  Offsets outer = op.outer.from(first), inner = op.inner.from(k0);
  int64_t base = (op.outer.table ? 0 : first * op.outer.step) + (op.inner.table ? 0 : k0 * op.inner.step);
  if (!outer.table && outer.step == 1) {
    for (int64_t k = 0; k < kc; k++) convert(op.data, op.dtype, base + inner[k], count, panel + k * width);
    return;
  }
  if (op.dtype == NPU_FLOAT32 && outer.table) {
    bool runs = in_runs(outer, count);
    if (runs || !in_runs(inner, kc)) {
      return pack_columns(static_cast<const float*>(op.data) + base, outer.table, count, inner, kc, panel, width, runs);
    }
  }
  alignas(64) float buffer[kRows][kPackTerms];
  bool in_place = op.dtype == NPU_FLOAT32 && !inner.table && inner.step == 1;
  for (int64_t i = 0; i < count; i += kRows) {
    const float* row[kRows];
    int rows = int(std::min<int64_t>(kRows, count - i));
    for (int r = 0; r < rows; r++) {
      if (in_place) {
        row[r] = static_cast<const float*>(op.data) + base + outer[i + r];
      } else {
        load_indexed(op.data, op.dtype, base + outer[i + r], inner, kc, buffer[r]);
        row[r] = buffer[r];
      }
    }
    if (rows == kRows) {
      transpose(row, kc, panel + i, width);
    } else {
      for (int r = 0; r < rows; r++) {
        for (int64_t k = 0; k < kc; k++) panel[k * width + i + r] = row[r][k];
      }
    }
  }
}

void load_floats(const void* data, int32_t dtype, int64_t first, int64_t step, int64_t n, float* out) {
  load_indexed(data, dtype, first, {nullptr, step}, n, out);
}

void store_floats(const float* values, int64_t n, void* data, int32_t dtype, int64_t first, const Offsets& at) {
  bool dense = !at.table && at.step == 1;
  if (dtype == NPU_FLOAT32) {
    auto* out = static_cast<float*>(data) + first;
    if (dense) {
      std::memcpy(out, values, size_t(n) * 4);
    } else {
      for (int64_t i = 0; i < n; i++) out[at[i]] = values[i];
    }
    return;
  }
  auto* out = static_cast<uint16_t*>(data) + first;
  auto round = dtype == NPU_FLOAT16 ? float_to_half : float_to_bf16;
  if (dense) return round(values, out, n);
  uint16_t rounded[kPackTerms];
  for (int64_t i = 0; i < n; i += kPackTerms) {
    int64_t some = std::min(kPackTerms, n - i);
    round(values + i, rounded, some);
    for (int64_t j = 0; j < some; j++) out[at[i + j]] = rounded[j];
  }
}

}  // namespace npu
