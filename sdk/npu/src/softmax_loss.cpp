// softmax_loss.cpp: softmax and log-softmax with their gradients, negative log likelihood with its gradient.
//
// Contract: the header's. Rows along `dim` are computed in float32, their sums in double. With y the result and sums
// along `dim`: softmax grad_x = y (g - sum g y); log-softmax grad_x = g - exp(y) sum g. A target out of range makes the
// loss (or gradient) fail when it runs, with nothing written; targets equal to ignore_index may be any number.
#include <cmath>
#include <cstdio>

#include "norm.h"
#include "reduce.h"
#include "vector_math.h"

namespace npu {
namespace {

constexpr int kRowSlot = 0;

struct ExpOfDifference {
  NPU_INLINE static void run(const float* x, float* out, int64_t n, float shift) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = static_cast<float>(math::exp(static_cast<double>(x[i]) - shift));
  }
};
struct Scale {
  NPU_INLINE static void run(float* x, int64_t n, double factor) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) x[i] = static_cast<float>(x[i] * factor);
  }
};
struct Subtract {
  NPU_INLINE static void run(const float* x, float* out, int64_t n, double shift) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = static_cast<float>(x[i] - shift);
  }
};
struct SoftmaxGrad {
  NPU_INLINE static void run(const float* g, const float* y, float* out, int64_t n, double sum) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = static_cast<float>((g[i] - sum) * y[i]);
  }
};
struct LogSoftmaxGrad {
  NPU_INLINE static void run(const float* g, const float* y, float* out, int64_t n, double sum) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) out[i] = static_cast<float>(g[i] - math::exp(y[i]) * sum);
  }
};

struct Rows {
  Loop loop;             // of the rows
  Operand operand[3];    // out, then the inputs
  int64_t step[3] = {};  // between elements of a row
  int64_t n = 0;         // of a row
};

npu_status_t lay_out(const char* fn, const View* const* views, int count, int32_t dim, Rows* rows) {
  const View& out = *views[0];
  // A number counts as a row of one.
  if (dim < 0 || dim >= (out.rank ? out.rank : 1))
    return fail(NPU_STATUS_INVALID_VALUE, "%s: dim is %d, expected 0 to %d", fn, dim, out.rank ? out.rank - 1 : 0);
  collapse(views, count, true, ~(1u << dim), &rows->loop, rows->operand);
  for (int k = 0; k < count; k++) rows->step[k] = out.rank ? views[k]->stride[dim] : 1;
  rows->n = out.rank ? out.shape[dim] : 1;
  return NPU_STATUS_SUCCESS;
}

// Calls body(inputs, out, n) for every row, with dense float rows.
template <class F>
void for_rows(const Rows& rows, int inputs, const F& body) {
  const int64_t n = rows.n;
  parallel_for(rows.loop.n, kGrain / (4 * n) + 1, [&](int64_t begin, int64_t end, int thread) {
    float* buffer = static_cast<float*>(scratch(thread, kRowSlot, static_cast<size_t>(3 * n) * sizeof(float)));
    for (int64_t r = begin; r < end; r++) {
      const float* in[2] = {nullptr, nullptr};
      for (int k = 0; k < inputs; k++) {
        const Operand& o = rows.operand[k + 1];
        const char* at = o.data + offset_of(rows.loop, o, r) * o.size;
        in[k] = load_floats(o.dtype, at, rows.step[k + 1], n, buffer + (k + 1) * n);
      }
      body(in[0], in[1], buffer, n);
      const Operand& o = rows.operand[0];
      store_floats(o.dtype, buffer, o.data + offset_of(rows.loop, o, r) * o.size, rows.step[0], n);
    }
  });
}

void softmax(const Rows& rows, bool logarithm) {
  for_rows(rows, 1, [&](const float* x, const float*, float* out, int64_t n) {
    Slot most = empty_slot<NPU_REDUCE_MAX, float>();
    simd<RowBody<NPU_REDUCE_MAX, float>>(x, n, &most, int64_t{0});
    simd<ExpOfDifference>(x, out, n, most.f);
    double sums[2] = {0, 0};
    simd<DotBody>(static_cast<const float*>(out), static_cast<const float*>(out), n, sums);
    if (logarithm)
      simd<Subtract>(x, out, n, most.f + std::log(sums[0]));
    else
      simd<Scale>(out, n, 1 / sums[0]);
  });
}

void softmax_grad(const Rows& rows, bool logarithm) {
  for_rows(rows, 2, [&](const float* g, const float* y, float* out, int64_t n) {
    double sums[2] = {0, 0};
    simd<DotBody>(g, y, n, sums);
    if (logarithm)
      simd<LogSoftmaxGrad>(g, y, out, n, sums[0]);
    else
      simd<SoftmaxGrad>(g, y, out, n, sums[1]);
  });
}

// ---- negative log likelihood
struct Loss {
  View input;                // log probabilities, or grad_x; as [N, C]
  View target, loss, total;  // loss: the gradient, for nll_loss_grad
  Channel weight;
  int32_t reduction = 0;
  int64_t ignore = 0;
};

int64_t target_at(const Loss& l, int64_t i) {
  return reinterpret_cast<const int64_t*>(l.target.data)[l.target.rank ? i * l.target.stride[0] : 0];
}
char* element(const View& v, int64_t offset) { return v.data + offset * static_cast<int64_t>(dtype_size(v.dtype)); }
char* loss_at(const Loss& l, int64_t i) { return element(l.loss, l.loss.rank ? i * l.loss.stride[0] : 0); }

bool targets_in_range(const char* fn, const Loss& l) {
  const int64_t classes = l.input.shape[1];
  for (int64_t i = 0; i < l.input.shape[0]; i++) {
    const int64_t t = target_at(l, i);
    if (t == l.ignore || (t >= 0 && t < classes)) continue;
    char text[160];
    std::snprintf(text, sizeof(text), "%s: target %lld at position %lld is out of range for %lld classes", fn,
                  static_cast<long long>(t), static_cast<long long>(i), static_cast<long long>(classes));
    runtime_failure(NPU_STATUS_EXECUTION_FAILED, text);
    return false;
  }
  return true;
}

void nll_loss(const Loss& l) {
  double sum = 0, total = 0;
  for (int64_t i = 0; i < l.input.shape[0]; i++) {
    const int64_t t = target_at(l, i);
    double value = 0;
    if (t != l.ignore) {
      const double w = l.weight.get(t, 1);
      value = -w * load_float1(l.input.dtype, element(l.input, i * l.input.stride[0] + t * l.input.stride[1]));
      total += w;
    }
    sum += value;
    if (l.reduction == NPU_LOSS_NONE) store_float1(l.loss.dtype, static_cast<float>(value), loss_at(l, i));
  }
  if (l.reduction == NPU_LOSS_NONE) {
    total = 0;  // as PyTorch leaves it
  } else {
    const double result = l.reduction == NPU_LOSS_MEAN ? sum / total : sum;
    store_float1(l.loss.dtype, static_cast<float>(result), l.loss.data);
  }
  if (l.total) store_float1(l.total.dtype, static_cast<float>(total), l.total.data);
}

void nll_loss_grad(const Loss& l) {
  const int64_t classes = l.input.shape[1], size = static_cast<int64_t>(dtype_size(l.input.dtype));
  const double total = l.reduction == NPU_LOSS_MEAN ? load_float1(l.total.dtype, l.total.data) : 1;
  parallel_for(l.input.shape[0], kGrain / classes + 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; i++) {
      char* row = element(l.input, i * l.input.stride[0]);
      if (l.input.stride[1] == 1)
        std::memset(row, 0, static_cast<size_t>(classes * size));
      else
        for (int64_t c = 0; c < classes; c++) store_float1(l.input.dtype, 0, row + c * l.input.stride[1] * size);
      const int64_t t = target_at(l, i);
      if (t == l.ignore) continue;
      const double g = load_float1(l.loss.dtype, loss_at(l, i));
      store_float1(l.input.dtype, static_cast<float>(-l.weight.get(t, 1) * g / total),
                   row + t * l.input.stride[1] * size);
    }
  });
}

// Checks what loss and gradient share: [N, C] or [C], its targets, `loss` [N] or [], and one-element total_weight.
npu_status_t check_loss(const char* fn, const char* input, const char* loss, Loss* l) {
  if (l->reduction < NPU_LOSS_NONE || l->reduction > NPU_LOSS_SUM)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: reduction is %d, expected NONE (0), MEAN (1) or SUM (2)", fn,
                l->reduction);
  View& x = l->input;
  if (x.rank != 1 && x.rank != 2)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: %s has rank %d, expected [N, C] or [C]", fn, input, x.rank);
  const int64_t batch = x.rank == 2 ? x.shape[0] : 1;
  const int of_target = x.rank - 1;
  NPU_TRY(expect_shape(fn, "target", l->target, of_target, &batch));
  NPU_TRY(expect_shape(fn, loss, l->loss, l->reduction == NPU_LOSS_NONE ? of_target : 0, &batch));
  NPU_TRY(same_dtype(fn, loss, l->loss, x.dtype));
  if (l->total) NPU_TRY(expect_shape(fn, "total_weight", l->total, 0, nullptr));
  if (x.rank == 1) {
    x.rank = 2;
    x.shape[1] = x.shape[0];
    x.stride[1] = x.stride[0];
    x.shape[0] = 1;
    x.stride[0] = 0;
  }
  return NPU_STATUS_SUCCESS;
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_softmax(npu_stream_t stream, const npu_tensor_t* x, int32_t dim, int32_t logarithm,
                                       const npu_tensor_t* out) {
  static const char fn[] = "npu_v3_softmax";
  View vx, vo;
  NPU_TRY(resolve(stream, x, kFloats, Engine::compute, false, fn, "x", &vx));
  NPU_TRY(resolve(stream, out, kFloats, Engine::compute, false, fn, "out", &vo));
  if (vo.dtype != vx.dtype && vo.dtype != NPU_FLOAT32) NPU_TRY(same_dtype(fn, "out", vo, vx.dtype));
  NPU_TRY(same_shape(fn, "x", vx, vo));
  NPU_TRY(writable(fn, "out", vo));
  Rows rows;
  const View* views[2] = {&vo, &vx};
  NPU_TRY(lay_out(fn, views, 2, dim, &rows));
  if (vx.numel() == 0) return NPU_STATUS_SUCCESS;
  const Work work{12.0 * static_cast<double>(vx.numel()), view_bytes(vx) + view_bytes(vo), vx.dtype};
  const bool log = logarithm != 0;
  return submit(stream, fn, cycles(stream, work), [rows, log] { softmax(rows, log); });
}

extern "C" npu_status_t npu_v3_softmax_grad(npu_stream_t stream, const npu_tensor_t* grad, const npu_tensor_t* out,
                                            int32_t dim, int32_t logarithm, const npu_tensor_t* grad_x) {
  static const char fn[] = "npu_v3_softmax_grad";
  View vg, vy, vo;
  NPU_TRY(resolve(stream, grad, kFloats, Engine::compute, false, fn, "grad", &vg));
  NPU_TRY(resolve(stream, out, kFloats, Engine::compute, false, fn, "out", &vy));
  NPU_TRY(resolve(stream, grad_x, kFloats, Engine::compute, false, fn, "grad_x", &vo));
  NPU_TRY(same_dtype(fn, "out", vy, vg.dtype));
  if (vo.dtype != vg.dtype && vg.dtype != NPU_FLOAT32) NPU_TRY(same_dtype(fn, "grad_x", vo, vg.dtype));
  NPU_TRY(same_shape(fn, "grad", vg, vo));
  NPU_TRY(same_shape(fn, "out", vy, vo));
  NPU_TRY(writable(fn, "grad_x", vo));
  Rows rows;
  const View* views[3] = {&vo, &vg, &vy};
  NPU_TRY(lay_out(fn, views, 3, dim, &rows));
  if (vo.numel() == 0) return NPU_STATUS_SUCCESS;
  const Work work{6.0 * static_cast<double>(vo.numel()), 2 * view_bytes(vg) + view_bytes(vo), vg.dtype};
  const bool log = logarithm != 0;
  return submit(stream, fn, cycles(stream, work), [rows, log] { softmax_grad(rows, log); });
}

extern "C" npu_status_t npu_v3_nll_loss(npu_stream_t stream, const npu_tensor_t* log_probability,
                                        const npu_tensor_t* target, const npu_tensor_t* weight, int32_t reduction,
                                        int64_t ignore_index, const npu_tensor_t* loss,
                                        const npu_tensor_t* total_weight) {
  static const char fn[] = "npu_v3_nll_loss";
  Loss l;
  l.reduction = reduction;
  l.ignore = ignore_index;
  NPU_TRY(resolve(stream, log_probability, kFloats, Engine::compute, false, fn, "log_probability", &l.input));
  NPU_TRY(resolve(stream, target, mask(NPU_INT64), Engine::compute, false, fn, "target", &l.target));
  NPU_TRY(resolve(stream, loss, kFloats, Engine::compute, false, fn, "loss", &l.loss));
  NPU_TRY(resolve(stream, total_weight, mask(l.input.dtype) | mask(NPU_FLOAT32), Engine::compute, true, fn,
                  "total_weight", &l.total));
  NPU_TRY(check_loss(fn, "log_probability", "loss", &l));
  NPU_TRY(writable(fn, "loss", l.loss));
  NPU_TRY(resolve_channel(stream, weight, l.input.dtype, l.input.shape[1], true, false, fn, "weight", &l.weight));
  const double n = static_cast<double>(l.input.shape[0]);
  return submit(stream, fn, cycles(stream, Work{4 * n, 24 * n + 8, l.input.dtype}), [l] {
    if (targets_in_range(fn, l)) nll_loss(l);
  });
}

extern "C" npu_status_t npu_v3_nll_loss_grad(npu_stream_t stream, const npu_tensor_t* grad, const npu_tensor_t* target,
                                             const npu_tensor_t* weight, int32_t reduction, int64_t ignore_index,
                                             const npu_tensor_t* total_weight, const npu_tensor_t* grad_x) {
  static const char fn[] = "npu_v3_nll_loss_grad";
  Loss l;
  l.reduction = reduction;
  l.ignore = ignore_index;
  NPU_TRY(resolve(stream, grad_x, kFloats, Engine::compute, false, fn, "grad_x", &l.input));
  NPU_TRY(resolve(stream, target, mask(NPU_INT64), Engine::compute, false, fn, "target", &l.target));
  NPU_TRY(resolve(stream, grad, kFloats, Engine::compute, false, fn, "grad", &l.loss));
  NPU_TRY(resolve(stream, total_weight, mask(l.input.dtype) | mask(NPU_FLOAT32), Engine::compute,
                  reduction != NPU_LOSS_MEAN, fn, "total_weight", &l.total));
  NPU_TRY(writable(fn, "grad_x", l.input));
  NPU_TRY(check_loss(fn, "grad_x", "grad", &l));
  NPU_TRY(resolve_channel(stream, weight, l.input.dtype, l.input.shape[1], true, false, fn, "weight", &l.weight));
  if (l.input.numel() == 0) return NPU_STATUS_SUCCESS;
  const Work work{4.0 * static_cast<double>(l.input.shape[0]), view_bytes(l.input), l.input.dtype};
  return submit(stream, fn, cycles(stream, work), [l] {
    if (targets_in_range(fn, l)) nll_loss_grad(l);
  });
}
