// epilogue.h: what the matrix and the convolution unit do to a row segment of sums before it is rounded and stored, and
// what the attention unit does to its scores.
//
// Contract: Epilogue is npu_epilogue_t, checked and resolved; trivially copyable. The residual has the strides of the
// result, so one offset finds both. The functions may run on any compute thread.
#pragma once
#include "sim.h"

namespace npu {

// An optional vector with a number for each channel.
struct PerChannel {
  const char* data = nullptr;
  int64_t stride = 0;
  int32_t dtype = 0;
  explicit operator bool() const { return dtype != 0; }
  float get(int64_t channel, float absent) const;
};

struct Epilogue {
  PerChannel mean, variance, weight, bias;
  const char* residual = nullptr;
  float eps = 0;
  int32_t activation = 0;
  explicit operator bool() const { return residual != nullptr || activation != 0 || mean; }
  // values[0..n) of one channel: plus `add`, and what else there is; `from` holds the residual, or is NULL.
  void apply(int64_t channel, float add, const float* values, const float* from, float* out, int64_t n) const;
};

// `channels` < 0: the result has none that could be normalised.
npu_status_t resolve_epilogue(npu_stream_t stream, const char* function, const npu_epilogue_t* epilogue, const View& y,
                              int64_t channels, Epilogue* out);

// Device cycles: arithmetic hides behind the unit's, reading the residual does not.
uint64_t epilogue_cycles(const Epilogue& epilogue, const View& y);

// out[i] = scale * x[i] + m[i]; m may be NULL.
void scale_add(const float* x, const float* m, float* out, int64_t n, float scale);
// x[i] = exp(x[i] - the largest); returns their sum. Nothing but -inf gives zeros, with sum 1.
float exponentials(float* x, int64_t n);

}  // namespace npu
