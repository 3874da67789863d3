// norm.cpp: npu_v3_batch_norm and its gradient.
//
// Contract: the header's. Statistics are accumulated in double and do not depend on the number of threads; the
// variance that normalises is biased, the one that goes into running_var unbiased (NaN for one element a channel, as
// in PyTorch). With weight w, inverse deviation s, n elements a channel and sums over a channel:
//   grad_bias = sum g;  grad_weight = s * sum g (x - mean);
//   grad_x = s w (g - grad_bias / n - (x - mean) s grad_weight / n), or s w g when not training.
//
// Two ways through memory. Rows: one channel after the other, in blocks gathered over batch and space. Columns:
// where channels lie side by side (channels-last, or images of a few pixels), memory is a matrix whose columns are
// (channel, pixel); rows are summed column by column, and only then the columns of a channel.
#include <cmath>

#include "norm.h"

namespace npu {

npu_status_t resolve_channel(npu_stream_t stream, const npu_tensor_t* tensor, int32_t dtype, int64_t channels,
                             bool optional, bool output, const char* function, const char* what, Channel* out) {
  View v;
  NPU_TRY(resolve(stream, tensor, mask(NPU_FLOAT32) | mask(dtype), Engine::compute, optional, function, what, &v));
  if (!v) return NPU_STATUS_SUCCESS;
  NPU_TRY(expect_shape(function, what, v, 1, &channels));
  if (output) NPU_TRY(writable(function, what, v));
  *out = {v.data, v.stride[0], v.dtype};
  return NPU_STATUS_SUCCESS;
}

namespace {

constexpr int64_t kSmallImage = 32;                 // pixels below which columns beat rows
constexpr int kSumsSlot = 8, kCoefficientSlot = 9;  // of scratch(): shared by the command's threads

// x [, g], out: `first` is what statistics are taken of.
struct Norm {
  bool columns = false;
  int32_t count = 0;  // operands: out, x (, grad)
  int64_t channels = 0, pixels = 1;
  double n = 0;  // elements of a channel
  Loop loop;     // rows: elements of a channel; columns: the matrix's rows
  Operand operand[3];
  int64_t channel_stride[3] = {};
};

void lay_out(const View* const* views, int count, Norm* norm) {
  const View& x = *views[1];
  norm->count = count;
  norm->channels = x.shape[1];
  norm->n = static_cast<double>(x.numel()) / static_cast<double>(x.shape[1]);
  int64_t pixels = 1;
  bool packed = true;
  for (int d = x.rank - 1; d >= 2; d--) {
    packed = packed && (x.shape[d] == 1 || x.stride[d] == pixels);
    pixels *= x.shape[d];
  }
  const bool small = packed && x.stride[1] == pixels && pixels < kSmallImage;
  norm->columns = x.shape[1] >= 8 && (small || x.stride[1] == 1);
  for (int k = 0; k < count; k++)
    for (int d = 0; norm->columns && d < x.rank; d++)
      norm->columns = x.shape[d] == 1 || views[k]->stride[d] == x.stride[d];
  uint32_t dims = ~2u;
  if (norm->columns && small) {
    norm->pixels = pixels;
    dims = 1;
  }
  collapse(views, count, true, dims, &norm->loop, norm->operand);
  for (int k = 0; k < count; k++) norm->channel_stride[k] = views[k]->stride[1];
}

Operand at_channel(const Norm& norm, int k, int64_t channel) {
  Operand o = norm.operand[k];
  o.data += channel * norm.channel_stride[k] * o.size;
  return o;
}

// Sums over one channel: of operand `a`, and of a*b.
void channel_sums(const Norm& norm, int a, int b, int64_t channel, double* sums) {
  Block raw_a, raw_b, buffer_a, buffer_b;
  const Operand first = at_channel(norm, a, channel), second = at_channel(norm, b, channel);
  sums[0] = sums[1] = 0;
  for (int64_t at = 0; at < norm.loop.n; at += kBlock) {
    const int64_t n = norm.loop.n - at < kBlock ? norm.loop.n - at : kBlock;
    const float* fa = fetch_float(norm.loop, first, at, n, &raw_a, &buffer_a);
    const float* fb = a == b ? fa : fetch_float(norm.loop, second, at, n, &raw_b, &buffer_b);
    simd<DotBody>(fa, fb, n, sums);
  }
}

// The same by columns, for all channels: sums[0..C) of a, sums[C..2C) of a*b. The result is in scratch.
const double* column_sums(const Norm& norm, int a, int b) {
  const int64_t width = norm.channels * norm.pixels, rows = norm.loop.n;
  int64_t piece = 2 * kGrain / width + 1;
  if (piece * 64 < rows) piece = (rows + 63) / 64;
  const int64_t pieces = (rows + piece - 1) / piece;
  double* sums = static_cast<double*>(
      scratch(0, kSumsSlot, static_cast<size_t>(pieces * 2 * width + 2 * norm.channels) * sizeof(double)));
  parallel_for(pieces, 1, [&](int64_t begin, int64_t end, int) {
    float buffer_a[kBlock], buffer_b[kBlock];
    for (int64_t p = begin; p < end; p++) {
      double* sum = sums + p * 2 * width;
      for (int64_t j = 0; j < 2 * width; j++) sum[j] = 0;
      const int64_t last = p * piece + piece < rows ? p * piece + piece : rows;
      for (int64_t row = p * piece; row < last; row++) {
        const Operand &oa = norm.operand[a], &ob = norm.operand[b];
        const char* pa = oa.data + offset_of(norm.loop, oa, row) * oa.size;
        const char* pb = ob.data + offset_of(norm.loop, ob, row) * ob.size;
        for (int64_t j = 0; j < width; j += kBlock) {
          const int64_t n = width - j < kBlock ? width - j : kBlock;
          const float* fa = load_floats(oa.dtype, pa + j * oa.size, 1, n, buffer_a);
          const float* fb = a == b ? fa : load_floats(ob.dtype, pb + j * ob.size, 1, n, buffer_b);
          simd<ColumnDotBody>(fa, fb, n, sum + j, sum + width + j);
        }
      }
    }
  });
  double* total = sums + pieces * 2 * width;
  for (int64_t half = 0; half < 2; half++)
    for (int64_t c = 0; c < norm.channels; c++) {
      double t = 0;
      for (int64_t p = 0; p < pieces; p++)
        for (int64_t k = 0; k < norm.pixels; k++) t += sums[(p * 2 + half) * width + c * norm.pixels + k];
      total[half * norm.channels + c] = t;
    }
  return total;
}

// out = grad*g + slope*(x - mean) + bias; for one channel (coefficients equal) or a row of columns.
struct Coefficients {
  float mean, slope, bias, grad;
};
struct ApplyBody {
  NPU_INLINE static void run(const float* x, const float* g, float* out, int64_t n, const Coefficients* all) {
    const Coefficients c = *all;
    if (g) {
      NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = c.grad * g[i] + (c.slope * (x[i] - c.mean) + c.bias);
    } else {
      NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = c.slope * (x[i] - c.mean) + c.bias;
    }
  }
};
struct ApplyColumnsBody {
  NPU_INLINE static void run(const float* x, const float* g, float* out, int64_t n, const float* mean,
                             const float* slope, const float* bias, const float* grad) {
    if (g) {
      NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = grad[i] * g[i] + (slope[i] * (x[i] - mean[i]) + bias[i]);
    } else {
      NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = slope[i] * (x[i] - mean[i]) + bias[i];
    }
  }
};

void apply_channel(const Norm& norm, int64_t channel, const Coefficients& coefficients) {
  Block raw[3], buffer[3];
  Operand o[3];
  for (int k = 0; k < norm.count; k++) o[k] = at_channel(norm, k, channel);
  for (int64_t at = 0; at < norm.loop.n; at += kBlock) {
    const int64_t n = norm.loop.n - at < kBlock ? norm.loop.n - at : kBlock;
    const float* x = fetch_float(norm.loop, o[1], at, n, &raw[1], &buffer[1]);
    const float* g = norm.count == 3 ? fetch_float(norm.loop, o[2], at, n, &raw[2], &buffer[2]) : nullptr;
    float* out = static_cast<float*>(store_target(o[0], at, Compute::f32, &buffer[0]));
    simd<ApplyBody>(x, g, out, n, &coefficients);
    store(norm.loop, o[0], at, n, Compute::f32, out, &raw[0]);
  }
}

void apply_columns(const Norm& norm, const float* coefficients) {
  const int64_t width = norm.channels * norm.pixels;
  parallel_for(norm.loop.n, kGrain / width + 1, [&](int64_t begin, int64_t end, int) {
    float buffer[3][kBlock];
    for (int64_t row = begin; row < end; row++) {
      char* p[3] = {};
      for (int k = 0; k < norm.count; k++)
        p[k] = norm.operand[k].data + offset_of(norm.loop, norm.operand[k], row) * norm.operand[k].size;
      const int32_t dtype = norm.operand[0].dtype;
      for (int64_t j = 0; j < width; j += kBlock) {
        const int64_t n = width - j < kBlock ? width - j : kBlock, at = j * norm.operand[0].size;
        const float* x = load_floats(dtype, p[1] + at, 1, n, buffer[1]);
        const float* g = norm.count == 3 ? load_floats(dtype, p[2] + at, 1, n, buffer[2]) : nullptr;
        float* out = dtype == NPU_FLOAT32 ? reinterpret_cast<float*>(p[0] + at) : buffer[0];
        const float* c = coefficients + j;
        simd<ApplyColumnsBody>(x, g, out, n, c, c + width, c + 2 * width, c + 3 * width);
        store_floats(dtype, out, p[0] + at, 1, n);
      }
    }
  });
}

// Runs `channel(c, sums)`, which gives the coefficients of channel c (sums: those of a and a*b, if `a` >= 0), and
// applies them if `apply`.
template <class F>
void run_norm(const Norm& norm, int a, int b, bool apply, const F& channel) {
  if (!norm.columns) {
    parallel_for(norm.channels, static_cast<int64_t>(kGrain / norm.n) + 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t c = begin; c < end; c++) {
        double sums[2] = {0, 0};
        if (a >= 0) channel_sums(norm, a, b, c, sums);
        const Coefficients coefficients = channel(c, sums[0], sums[1]);
        if (apply) apply_channel(norm, c, coefficients);
      }
    });
    return;
  }
  const double* sums = a >= 0 ? column_sums(norm, a, b) : nullptr;
  const int64_t width = norm.channels * norm.pixels;
  float* table = static_cast<float*>(scratch(0, kCoefficientSlot, static_cast<size_t>(4 * width) * sizeof(float)));
  for (int64_t c = 0; c < norm.channels; c++) {
    const Coefficients k = channel(c, sums ? sums[c] : 0, sums ? sums[norm.channels + c] : 0);
    for (int64_t j = c * norm.pixels; j < (c + 1) * norm.pixels; j++) {
      table[j] = k.mean;
      table[width + j] = k.slope;
      table[2 * width + j] = k.bias;
      table[3 * width + j] = k.grad;
    }
  }
  if (apply) apply_columns(norm, table);
}

npu_status_t check_x(const char* fn, const View& x) {
  if (x.rank >= 2) return NPU_STATUS_SUCCESS;
  return fail(NPU_STATUS_INVALID_VALUE, "%s: x has rank %d, expected [N, C, ...]", fn, x.rank);
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_batch_norm(npu_stream_t stream, const npu_tensor_t* x, const npu_tensor_t* weight,
                                          const npu_tensor_t* bias, const npu_tensor_t* running_mean,
                                          const npu_tensor_t* running_var, int32_t training, double momentum,
                                          double eps, const npu_tensor_t* out, const npu_tensor_t* save_mean,
                                          const npu_tensor_t* save_invstd) {
  static const char fn[] = "npu_v3_batch_norm";
  View vx, vo;
  NPU_TRY(resolve(stream, x, kFloats, Engine::compute, false, fn, "x", &vx));
  NPU_TRY(resolve(stream, out, kFloats, Engine::compute, false, fn, "out", &vo));
  NPU_TRY(check_x(fn, vx));
  NPU_TRY(same_dtype(fn, "out", vo, vx.dtype));
  NPU_TRY(same_shape(fn, "x", vx, vo));
  NPU_TRY(writable(fn, "out", vo));
  Channel w, b, mean_r, var_r, mean_s, invstd_s;
  const int64_t channels = vx.shape[1];
  const bool train = training != 0;
  NPU_TRY(resolve_channel(stream, weight, vx.dtype, channels, true, false, fn, "weight", &w));
  NPU_TRY(resolve_channel(stream, bias, vx.dtype, channels, true, false, fn, "bias", &b));
  NPU_TRY(resolve_channel(stream, running_mean, vx.dtype, channels, train, train, fn, "running_mean", &mean_r));
  NPU_TRY(resolve_channel(stream, running_var, vx.dtype, channels, train, train, fn, "running_var", &var_r));
  if (train) {
    NPU_TRY(resolve_channel(stream, save_mean, NPU_FLOAT32, channels, false, true, fn, "save_mean", &mean_s));
    NPU_TRY(resolve_channel(stream, save_invstd, NPU_FLOAT32, channels, false, true, fn, "save_invstd", &invstd_s));
  }
  if (vx.numel() == 0) return NPU_STATUS_SUCCESS;
  Norm norm;
  const View* views[2] = {&vo, &vx};
  lay_out(views, 2, &norm);
  const Work work{8.0 * static_cast<double>(vx.numel()), (train ? 3 : 2) * view_bytes(vx), vx.dtype};
  return submit(stream, fn, cycles(stream, work), [=] {
    run_norm(norm, train ? 1 : -1, 1, true, [&](int64_t c, double sum, double squares) {
      double mean, invstd;
      if (train) {
        mean = sum / norm.n;
        const double spread = squares - sum * mean, total = spread > 0 || spread != spread ? spread : 0;
        invstd = 1 / std::sqrt(total / norm.n + eps);
        mean_s.set(c, mean);
        invstd_s.set(c, invstd);
        if (mean_r) mean_r.set(c, (1 - momentum) * mean_r.get(c) + momentum * mean);
        if (var_r) var_r.set(c, (1 - momentum) * var_r.get(c) + momentum * (total / (norm.n - 1)));
      } else {
        mean = mean_r.get(c);
        invstd = 1 / std::sqrt(var_r.get(c) + eps);
      }
      return Coefficients{static_cast<float>(mean), static_cast<float>(invstd * w.get(c, 1)), b.get(c, 0), 0};
    });
  });
}

extern "C" npu_status_t npu_v3_batch_norm_grad(npu_stream_t stream, const npu_tensor_t* grad, const npu_tensor_t* x,
                                               const npu_tensor_t* weight, const npu_tensor_t* running_mean,
                                               const npu_tensor_t* running_var, const npu_tensor_t* save_mean,
                                               const npu_tensor_t* save_invstd, int32_t training, double eps,
                                               const npu_tensor_t* grad_x, const npu_tensor_t* grad_weight,
                                               const npu_tensor_t* grad_bias) {
  static const char fn[] = "npu_v3_batch_norm_grad";
  View vg, vx, vo;
  NPU_TRY(resolve(stream, x, kFloats, Engine::compute, false, fn, "x", &vx));
  NPU_TRY(resolve(stream, grad, kFloats, Engine::compute, false, fn, "grad", &vg));
  NPU_TRY(resolve(stream, grad_x, kFloats, Engine::compute, true, fn, "grad_x", &vo));
  NPU_TRY(check_x(fn, vx));
  NPU_TRY(same_dtype(fn, "grad", vg, vx.dtype));
  NPU_TRY(same_shape(fn, "grad", vg, vx));
  if (vo) {
    NPU_TRY(same_dtype(fn, "grad_x", vo, vx.dtype));
    NPU_TRY(same_shape(fn, "grad_x", vo, vx));
    NPU_TRY(writable(fn, "grad_x", vo));
  }
  Channel w, mean_r, var_r, mean_s, invstd_s, grad_w, grad_b;
  const int64_t channels = vx.shape[1];
  const bool train = training != 0;
  NPU_TRY(resolve_channel(stream, weight, vx.dtype, channels, true, false, fn, "weight", &w));
  NPU_TRY(resolve_channel(stream, running_mean, vx.dtype, channels, train, false, fn, "running_mean", &mean_r));
  NPU_TRY(resolve_channel(stream, running_var, vx.dtype, channels, train, false, fn, "running_var", &var_r));
  if (train) {
    NPU_TRY(resolve_channel(stream, save_mean, NPU_FLOAT32, channels, false, false, fn, "save_mean", &mean_s));
    NPU_TRY(resolve_channel(stream, save_invstd, NPU_FLOAT32, channels, false, false, fn, "save_invstd", &invstd_s));
  }
  NPU_TRY(resolve_channel(stream, grad_weight, vx.dtype, channels, true, true, fn, "grad_weight", &grad_w));
  NPU_TRY(resolve_channel(stream, grad_bias, vx.dtype, channels, true, true, fn, "grad_bias", &grad_b));
  if (vx.numel() == 0 || (!vo && !grad_w && !grad_b)) return NPU_STATUS_SUCCESS;
  Norm norm;
  const View* views[3] = {vo ? &vo : &vx, &vx, &vg};
  lay_out(views, 3, &norm);
  const bool apply = static_cast<bool>(vo), sums = train || grad_w || grad_b;
  const Work work{12.0 * static_cast<double>(vx.numel()), (2.0 * sums + 3.0 * apply) * view_bytes(vx), vx.dtype};
  return submit(stream, fn, cycles(stream, work), [=] {
    run_norm(norm, sums ? 2 : -1, 1, apply, [&](int64_t c, double sum, double products) {
      const double mean = train ? mean_s.get(c) : mean_r.get(c);
      const double invstd = train ? invstd_s.get(c) : 1 / std::sqrt(var_r.get(c) + eps);
      const double dot = products - mean * sum, scale = invstd * w.get(c, 1);
      grad_w.set(c, dot * invstd);
      grad_b.set(c, sum);
      Coefficients k{static_cast<float>(mean), 0, 0, static_cast<float>(scale)};
      if (train) {
        k.slope = static_cast<float>(-scale * invstd * invstd * dot / norm.n);
        k.bias = static_cast<float>(-scale * sum / norm.n);
      }
      return k;
    });
  });
}
