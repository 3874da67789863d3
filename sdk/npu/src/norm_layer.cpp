// norm_layer.cpp: npu_v3_layer_norm and its gradient, on dense rows.
//
// Contract: the header's. With h = (x - mean) rstd and sums over a row of n columns:
//   grad_x = rstd (g w - (sum g w + h sum g w h) / n); grad_weight = sum over rows of g h; grad_bias = sum of g.
// The sums over rows are taken in fixed pieces of rows, so they do not depend on the number of threads.
#include <cmath>

#include "norm.h"

namespace npu {
namespace {

constexpr int kRowSlot = 0;                    // of each thread: a row of x, of grad and of the result
constexpr int kSumsSlot = 8, kWeightSlot = 9;  // shared by the command's threads

npu_status_t check_rows(const char* fn, const char* what, const View& v) {
  if (v.rank != 2)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: %s has rank %d, expected [rows, columns]", fn, what, v.rank);
  if (v.numel() && ((v.shape[1] > 1 && v.stride[1] != 1) || (v.shape[0] > 1 && v.stride[0] != v.shape[1])))
    return fail(NPU_STATUS_NOT_SUPPORTED, "%s: %s has strides [%lld, %lld], expected dense rows [%lld, 1]", fn, what,
                static_cast<long long>(v.stride[0]), static_cast<long long>(v.stride[1]),
                static_cast<long long>(v.shape[1]));
  return NPU_STATUS_SUCCESS;
}

struct NormaliseBody {
  NPU_INLINE static void run(const float* x, const float* w, const float* b, float* out, int64_t n, float mean,
                             float rstd) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = (x[i] - mean) * rstd * w[i] + b[i];
  }
};
struct SumBody {
  NPU_INLINE static void run(const float* x, const float* r, float* out, int64_t n) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = x[i] + r[i];
  }
};
// sums: of g w, and of g w h
struct RowGradSums {
  NPU_INLINE static void run(const float* x, const float* g, const float* w, float* h, float* gw, int64_t n, float mean,
                             float rstd) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) {
      h[i] = (x[i] - mean) * rstd;
      gw[i] = g[i] * w[i];
    }
  }
};
struct RowGradBody {
  NPU_INLINE static void run(const float* h, const float* gw, float* out, int64_t n, float rstd, float plain,
                             float dot) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = rstd * (gw[i] - (plain + h[i] * dot));
  }
};

// An optional parameter as dense floats, `absent` where there is none.
const float* parameter(const Channel& c, int64_t n, float absent, float* buffer) {
  for (int64_t i = 0; i < n; i++) buffer[i] = c.get(i, absent);
  return buffer;
}

npu_status_t layer_norm(npu_stream_t stream, const char* fn, const npu_tensor_t* x, const npu_tensor_t* residual,
                        const npu_tensor_t* weight, const npu_tensor_t* bias, double eps, const npu_tensor_t* out,
                        const npu_tensor_t* mean, const npu_tensor_t* rstd) {
  View vx, vr, vo;
  NPU_TRY(resolve(stream, x, kFloats, Engine::compute, false, fn, "x", &vx));
  NPU_TRY(resolve(stream, out, kFloats, Engine::compute, false, fn, "out", &vo));
  NPU_TRY(check_rows(fn, "x", vx));
  NPU_TRY(check_rows(fn, "out", vo));
  NPU_TRY(same_dtype(fn, "out", vo, vx.dtype));
  NPU_TRY(same_shape(fn, "x", vx, vo));
  NPU_TRY(resolve(stream, residual, mask(vx.dtype), Engine::compute, true, fn, "residual", &vr));
  if (vr) NPU_TRY(check_rows(fn, "residual", vr));
  if (vr) NPU_TRY(same_shape(fn, "residual", vr, vo));
  const int64_t rows = vx.shape[0], columns = vx.shape[1];
  Channel w, b, means, rstds;
  NPU_TRY(resolve_channel(stream, weight, vx.dtype, columns, true, false, fn, "weight", &w));
  NPU_TRY(resolve_channel(stream, bias, vx.dtype, columns, true, false, fn, "bias", &b));
  NPU_TRY(resolve_channel(stream, mean, NPU_FLOAT32, rows, true, true, fn, "mean", &means));
  NPU_TRY(resolve_channel(stream, rstd, NPU_FLOAT32, rows, true, true, fn, "rstd", &rstds));
  if (vx.numel() == 0) return NPU_STATUS_SUCCESS;
  const Work work{8.0 * static_cast<double>(vx.numel()), 2 * view_bytes(vx) + view_bytes(vr), vx.dtype};
  const char* beside = vr.data;
  return submit(stream, fn, cycles(stream, work), [=] {
    const size_t row_bytes = static_cast<size_t>(columns) * sizeof(float);
    float* parameters = static_cast<float*>(scratch(0, kWeightSlot, 2 * row_bytes));
    const float* fw = parameter(w, columns, 1, parameters);
    const float* fb = parameter(b, columns, 0, parameters + columns);
    const int64_t size = static_cast<int64_t>(dtype_size(vx.dtype));
    parallel_for(rows, kGrain / columns + 1, [&](int64_t begin, int64_t end, int thread) {
      float* buffer = static_cast<float*>(scratch(thread, kRowSlot, 3 * row_bytes));
      for (int64_t r = begin; r < end; r++) {
        const float* fx = load_floats(vx.dtype, vx.data + r * columns * size, 1, columns, buffer);
        if (beside) {
          float* sum = buffer + 2 * columns;
          const float* fr = load_floats(vx.dtype, beside + r * columns * size, 1, columns, buffer + columns);
          simd<SumBody>(fx, fr, sum, columns);
          fx = sum;
        }
        double sums[2] = {0, 0};
        simd<DotBody>(fx, fx, columns, sums);
        const double m = sums[0] / static_cast<double>(columns);
        const double spread = sums[1] - sums[0] * m, total = spread > 0 || spread != spread ? spread : 0;
        const double s = 1 / std::sqrt(total / static_cast<double>(columns) + eps);
        means.set(r, m);
        rstds.set(r, s);
        simd<NormaliseBody>(fx, fw, fb, buffer + columns, columns, static_cast<float>(m), static_cast<float>(s));
        store_floats(vo.dtype, buffer + columns, vo.data + r * columns * size, 1, columns);
      }
    });
  });
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_layer_norm(npu_stream_t stream, const npu_tensor_t* x, const npu_tensor_t* weight,
                                          const npu_tensor_t* bias, double eps, const npu_tensor_t* out,
                                          const npu_tensor_t* mean, const npu_tensor_t* rstd) {
  return layer_norm(stream, "npu_v3_layer_norm", x, nullptr, weight, bias, eps, out, mean, rstd);
}

extern "C" npu_status_t npu_v3_layer_norm_residual(npu_stream_t stream, const npu_tensor_t* x,
                                                   const npu_tensor_t* residual, const npu_tensor_t* weight,
                                                   const npu_tensor_t* bias, double eps, const npu_tensor_t* out) {
  return layer_norm(stream, "npu_v3_layer_norm_residual", x, residual, weight, bias, eps, out, nullptr, nullptr);
}

extern "C" npu_status_t npu_v3_layer_norm_grad(npu_stream_t stream, const npu_tensor_t* grad, const npu_tensor_t* x,
                                               const npu_tensor_t* mean, const npu_tensor_t* rstd,
                                               const npu_tensor_t* weight, const npu_tensor_t* grad_x,
                                               const npu_tensor_t* grad_weight, const npu_tensor_t* grad_bias) {
  static const char fn[] = "npu_v3_layer_norm_grad";
  View vg, vx, vo;
  NPU_TRY(resolve(stream, x, kFloats, Engine::compute, false, fn, "x", &vx));
  NPU_TRY(resolve(stream, grad, kFloats, Engine::compute, false, fn, "grad", &vg));
  NPU_TRY(resolve(stream, grad_x, kFloats, Engine::compute, true, fn, "grad_x", &vo));
  NPU_TRY(check_rows(fn, "x", vx));
  NPU_TRY(check_rows(fn, "grad", vg));
  NPU_TRY(same_dtype(fn, "grad", vg, vx.dtype));
  NPU_TRY(same_shape(fn, "grad", vg, vx));
  if (vo) {
    NPU_TRY(check_rows(fn, "grad_x", vo));
    NPU_TRY(same_dtype(fn, "grad_x", vo, vx.dtype));
    NPU_TRY(same_shape(fn, "grad_x", vo, vx));
  }
  const int64_t rows = vx.shape[0], columns = vx.shape[1];
  Channel w, means, rstds, grad_w, grad_b;
  NPU_TRY(resolve_channel(stream, weight, vx.dtype, columns, true, false, fn, "weight", &w));
  NPU_TRY(resolve_channel(stream, mean, NPU_FLOAT32, rows, false, false, fn, "mean", &means));
  NPU_TRY(resolve_channel(stream, rstd, NPU_FLOAT32, rows, false, false, fn, "rstd", &rstds));
  NPU_TRY(resolve_channel(stream, grad_weight, vx.dtype, columns, true, true, fn, "grad_weight", &grad_w));
  NPU_TRY(resolve_channel(stream, grad_bias, vx.dtype, columns, true, true, fn, "grad_bias", &grad_b));
  if (vx.numel() == 0) return NPU_STATUS_SUCCESS;
  const Work work{14.0 * static_cast<double>(vx.numel()), 3 * view_bytes(vx), vx.dtype};
  return submit(stream, fn, cycles(stream, work), [=] {
    const size_t row_bytes = static_cast<size_t>(columns) * sizeof(float);
    const float* fw = parameter(w, columns, 1, static_cast<float*>(scratch(0, kWeightSlot, row_bytes)));
    int64_t piece = kGrain / columns + 1;
    if (piece * 64 < rows) piece = (rows + 63) / 64;
    const int64_t pieces = (rows + piece - 1) / piece;
    double* sums =
        static_cast<double*>(scratch(0, kSumsSlot, static_cast<size_t>(pieces * 2 * columns) * sizeof(double)));
    const int64_t size = static_cast<int64_t>(dtype_size(vx.dtype));
    parallel_for(pieces, 1, [&](int64_t begin, int64_t end, int thread) {
      float* buffer = static_cast<float*>(scratch(thread, kRowSlot, 5 * row_bytes));
      float *h = buffer + 2 * columns, *gw = buffer + 3 * columns, *result = buffer + 4 * columns;
      for (int64_t p = begin; p < end; p++) {
        double* sum = sums + p * 2 * columns;
        for (int64_t j = 0; j < 2 * columns; j++) sum[j] = 0;
        const int64_t last = p * piece + piece < rows ? p * piece + piece : rows;
        for (int64_t r = p * piece; r < last; r++) {
          const int64_t at = r * columns * size;
          const float* fx = load_floats(vx.dtype, vx.data + at, 1, columns, buffer);
          const float* fg = load_floats(vg.dtype, vg.data + at, 1, columns, buffer + columns);
          const float s = rstds.get(r);
          simd<RowGradSums>(fx, fg, fw, h, gw, columns, means.get(r), s);
          if (grad_w || grad_b) simd<ColumnDotBody>(fg, static_cast<const float*>(h), columns, sum, sum + columns);
          if (!vo) continue;
          double of_row[2] = {0, 0};
          simd<DotBody>(static_cast<const float*>(gw), static_cast<const float*>(h), columns, of_row);
          const double n = static_cast<double>(columns);
          simd<RowGradBody>(static_cast<const float*>(h), static_cast<const float*>(gw), result, columns, s,
                            static_cast<float>(of_row[0] / n), static_cast<float>(of_row[1] / n));
          store_floats(vo.dtype, result, vo.data + at, 1, columns);
        }
      }
    });
    if (!grad_w && !grad_b) return;
    for (int64_t j = 0; j < columns; j++) {
      double bias_sum = 0, weight_sum = 0;
      for (int64_t p = 0; p < pieces; p++) {
        bias_sum += sums[p * 2 * columns + j];
        weight_sum += sums[(p * 2 + 1) * columns + j];
      }
      grad_b.set(j, bias_sum);
      grad_w.set(j, weight_sum);
    }
  });
}
