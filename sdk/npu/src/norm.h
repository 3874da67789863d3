// norm.h: what the normalisations share: sums of products, of a row or of columns, in double precision.
//
// Why one pass suffices: a product of two float32 numbers is exact in double, and sums in double lose about as many
// bits to cancellation as float32 inputs have to give, so a variance from sum and sum of squares is as good as a
// two-pass one in float32.
#pragma once
#include "vector.h"

namespace npu {

// sums[0] += sum a[i], sums[1] += sum a[i]*b[i]
struct DotBody {
  NPU_INLINE static void run(const float* a, const float* b, int64_t n, double* sums) {
    typedef Lanes<float>::v8 F;
    typedef Lanes<double>::v8 D;
    int64_t i = 0;
    double plain = 0, dot = 0;
    if (n >= 16) {
      D s[2] = {}, d[2] = {};
      for (; i + 16 <= n; i += 16)
        for (int k = 0; k < 2; k++) {
          F fa, fb;
          __builtin_memcpy(&fa, a + i + 8 * k, sizeof(fa));
          __builtin_memcpy(&fb, b + i + 8 * k, sizeof(fb));
          const D da = __builtin_convertvector(fa, D), db = __builtin_convertvector(fb, D);
          s[k] += da;
          d[k] += da * db;
        }
      s[0] += s[1];
      d[0] += d[1];
      for (int j = 0; j < 8; j++) plain += s[0][j], dot += d[0][j];
    }
    for (; i < n; i++) {
      plain += a[i];
      dot += static_cast<double>(a[i]) * b[i];
    }
    sums[0] += plain;
    sums[1] += dot;
  }
};

// sum[j] += a[j], dot[j] += a[j]*b[j]
struct ColumnDotBody {
  NPU_INLINE static void run(const float* a, const float* b, int64_t n, double* sum, double* dot) {
    NPU_IVDEP for (int64_t j = 0; j < n; j++) {
      const double x = a[j];
      sum[j] += x;
      dot[j] += x * b[j];
    }
  }
};

// An optional vector with one number for each channel (or column).
struct Channel {
  char* data = nullptr;
  int64_t stride = 0;
  int32_t dtype = 0;
  explicit operator bool() const { return dtype != 0; }
  float get(int64_t c) const { return load_float1(dtype, data + c * stride * (dtype == NPU_FLOAT32 ? 4 : 2)); }
  float get(int64_t c, float absent) const { return dtype ? get(c) : absent; }
  void set(int64_t c, double v) const {
    if (dtype) store_float1(dtype, static_cast<float>(v), data + c * stride * (dtype == NPU_FLOAT32 ? 4 : 2));
  }
};
// Resolves a per-channel tensor [channels] of float32 or `dtype`. `output` demands distinct elements.
npu_status_t resolve_channel(npu_stream_t stream, const npu_tensor_t* tensor, int32_t dtype, int64_t channels,
                             bool optional, bool output, const char* function, const char* what, Channel* out);

}  // namespace npu
