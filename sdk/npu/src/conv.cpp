// conv.cpp: the convolution unit's entry points: what they accept, and what they cost.
#include "conv.h"

#include <algorithm>
#include <cinttypes>

#include "device.h"
#include "matrix_clock.h"

namespace npu {

namespace {

bool one_of(int64_t value, int64_t a, int64_t b, int64_t c) { return value == a || value == b || value == c; }

npu_status_t check_window(const char* function, const npu_window_t* w) {
  if (!w) return fail(NPU_STATUS_INVALID_VALUE, "%s: window: NULL: expected a npu_window_t", function);
  for (int i = 0; i < 2; i++) {
    if (w->kernel[i] < 1 || w->kernel[i] > 11) {
      return fail(NPU_STATUS_NOT_SUPPORTED, "%s: kernel[%d] is %" PRId64 ": expected 1 to 11", function, i,
                  w->kernel[i]);
    }
    if (!one_of(w->stride[i], 1, 2, 4)) {
      return fail(NPU_STATUS_NOT_SUPPORTED, "%s: stride[%d] is %" PRId64 ": expected 1, 2 or 4", function, i,
                  w->stride[i]);
    }
    if (!one_of(w->dilation[i], 1, 2, 2)) {
      return fail(NPU_STATUS_NOT_SUPPORTED, "%s: dilation[%d] is %" PRId64 ": expected 1 or 2", function, i,
                  w->dilation[i]);
    }
    if (w->padding[i] < 0) {
      return fail(NPU_STATUS_INVALID_VALUE, "%s: padding[%d] is %" PRId64 ": expected 0 or more", function, i,
                  w->padding[i]);
    }
  }
  if (!one_of(w->groups, 1, 2, 4)) {
    return fail(NPU_STATUS_NOT_SUPPORTED, "%s: groups is %" PRId64 ": expected 1, 2 or 4", function, w->groups);
  }
  return NPU_STATUS_SUCCESS;
}

// x, w and y are the tensors in the roles that forward gives them, whichever of them is the result.
npu_status_t make_geometry(const char* function, const View& x, const View& w, const View& y,
                           const npu_window_t* window, ConvGeometry* g) {
  npu_status_t status = check_window(function, window);
  if (status) return status;
  if (x.rank != 4 || w.rank != 4 || y.rank != 4) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: ranks %d, %d and %d of input, weight and output: expected 4", function,
                x.rank, w.rank, y.rank);
  }
  *g = ConvGeometry{};
  g->n = x.shape[0];
  g->c = x.shape[1];
  g->o = w.shape[0];
  g->groups = window->groups;
  if (g->c % g->groups || g->o % g->groups || w.shape[1] != g->c / g->groups) {
    return fail(NPU_STATUS_INVALID_VALUE,
                "%s: %" PRId64 " input channels, %" PRId64 " filters of %" PRId64 " channels, %" PRId64
                " groups: expected filters of input channels / groups",
                function, g->c, g->o, w.shape[1], g->groups);
  }
  if (y.shape[0] != g->n || y.shape[1] != g->o) {
    return fail(NPU_STATUS_INVALID_VALUE,
                "%s: the output is [%" PRId64 ", %" PRId64 ", ...], expected [%" PRId64 ", %" PRId64 ", ...]", function,
                y.shape[0], y.shape[1], g->n, g->o);
  }
  for (int i = 0; i < 2; i++) {
    g->in[i] = x.shape[2 + i];
    g->kernel[i] = window->kernel[i];
    g->out[i] = y.shape[2 + i];
    g->stride[i] = window->stride[i];
    g->padding[i] = window->padding[i];
    g->dilation[i] = window->dilation[i];
    if (w.shape[2 + i] != g->kernel[i]) {
      return fail(NPU_STATUS_INVALID_VALUE, "%s: the weight's size %d is %" PRId64 ", the window's %" PRId64, function,
                  2 + i, w.shape[2 + i], g->kernel[i]);
    }
    int64_t span = g->in[i] + 2 * g->padding[i] - g->dilation[i] * (g->kernel[i] - 1) - 1;
    int64_t expected = span < 0 ? 0 : span / g->stride[i] + 1;
    if (g->out[i] != expected || !expected) {
      return fail(NPU_STATUS_INVALID_VALUE, "%s: the output's size %d is %" PRId64 ", the window gives %" PRId64,
                  function, 2 + i, g->out[i], expected);
    }
  }
  return NPU_STATUS_SUCCESS;
}

uint64_t cost(const ConvGeometry& g, const View& x, const View& w, const View& y, int32_t dtype) {
  double flops = 2.0 * double(y.numel()) * double(g.channels()) * double(g.kernel[0] * g.kernel[1]);
  double bytes = 0;
  for (const View* v : {&x, &w, &y}) bytes += double(v->numel()) * double(dtype_size(v->dtype));
  return convolution_cycles(flops, bytes, dtype);
}

npu_status_t same_dtype(const char* function, const View& a, const View& b, const View& c) {
  if (a.dtype == b.dtype && b.dtype == c.dtype) return NPU_STATUS_SUCCESS;
  return fail(NPU_STATUS_INVALID_VALUE, "%s: dtypes %d, %d and %d: expected one dtype", function, a.dtype, b.dtype,
              c.dtype);
}

// The gradient of no images at all.
void fill_zero(const View& v) {
  int64_t rows = 1;
  for (int i = 0; i < v.rank - 1; i++) rows *= v.shape[i];
  const float zero[1] = {0};
  for (int64_t r = 0; r < rows; r++) {
    int64_t at = 0, rest = r;
    for (int i = v.rank - 2; i >= 0; i--) {
      at += rest % v.shape[i] * v.stride[i];
      rest /= v.shape[i];
    }
    for (int64_t j = 0; j < v.shape[v.rank - 1]; j++) {
      store_floats(zero, 1, v.data, v.dtype, at + j * v.stride[v.rank - 1], Offsets{nullptr, 1});
    }
  }
}

npu_status_t convolution(npu_stream_t stream, const char* function, const npu_tensor_t* x, const npu_tensor_t* w,
                         const npu_tensor_t* bias, const npu_window_t* window, const npu_epilogue_t* epilogue,
                         const npu_tensor_t* y) {
  const uint32_t inputs = kFloats | (epilogue ? 0 : mask(NPU_INT8));
  Conv2dCommand command{};
  npu_status_t status = resolve(stream, x, inputs, Engine::compute, false, function, "x", &command.x);
  if (!status) status = resolve(stream, w, inputs, Engine::compute, false, function, "w", &command.w);
  View shift;
  if (!status)
    status = resolve(stream, bias, kFloats | mask(NPU_INT32), Engine::compute, true, function, "bias", &shift);
  if (!status)
    status = resolve(stream, y, kFloats | mask(NPU_INT32), Engine::compute, false, function, "y", &command.y);
  if (!status) status = make_geometry(function, command.x, command.w, command.y, window, &command.g);
  if (status) return status;
  bool integer = command.x.dtype == NPU_INT8;
  int32_t result = integer ? NPU_INT32 : command.x.dtype;
  if (command.w.dtype != command.x.dtype || command.y.dtype != result) {
    return fail(NPU_STATUS_INVALID_VALUE,
                "%s: dtypes %d, %d and %d of x, w and y: expected one floating dtype, or INT8, INT8 and INT32",
                function, command.x.dtype, command.w.dtype, command.y.dtype);
  }
  if (shift) {
    bool fits = shift.dtype == result || (!integer && shift.dtype == NPU_FLOAT32);
    if (!fits || shift.rank != 1 || shift.shape[0] != command.g.o) {
      return fail(NPU_STATUS_INVALID_VALUE, "%s: bias: expected [%" PRId64 "] of y's dtype%s", function, command.g.o,
                  integer ? "" : " or FLOAT32");
    }
    command.bias = {shift.data, shift.stride[0], shift.dtype};
  }
  status = resolve_epilogue(stream, function, epilogue, command.y, command.g.o, &command.epilogue);
  if (status) return status;
  if (!command.y.numel()) return check_stream(stream, function);
  uint64_t price = cost(command.g, command.x, command.w, command.y, command.x.dtype);
  return submit(stream, function, price + epilogue_cycles(command.epilogue, command.y), command);
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" {

NPU_API npu_status_t npu_v3_conv2d(npu_stream_t stream, const npu_tensor_t* x, const npu_tensor_t* w,
                                   const npu_tensor_t* bias, const npu_window_t* window, const npu_tensor_t* y) {
  return convolution(stream, "npu_v3_conv2d", x, w, bias, window, nullptr, y);
}

NPU_API npu_status_t npu_v3_conv2d_epilogue(npu_stream_t stream, const npu_tensor_t* x, const npu_tensor_t* w,
                                            const npu_tensor_t* bias, const npu_window_t* window,
                                            const npu_epilogue_t* epilogue, const npu_tensor_t* y) {
  return convolution(stream, "npu_v3_conv2d_epilogue", x, w, bias, window, epilogue, y);
}

NPU_API npu_status_t npu_v3_conv2d_grad_input(npu_stream_t stream, const npu_tensor_t* grad, const npu_tensor_t* w,
                                              const npu_window_t* window, const npu_tensor_t* grad_x) {
  const char* function = "npu_v3_conv2d_grad_input";
  ConvGradInputCommand command{};
  npu_status_t status = resolve(stream, grad, kFloats, Engine::compute, false, function, "grad", &command.grad);
  if (!status) status = resolve(stream, w, kFloats, Engine::compute, false, function, "w", &command.w);
  if (!status) status = resolve(stream, grad_x, kFloats, Engine::compute, false, function, "grad_x", &command.grad_x);
  if (!status) status = make_geometry(function, command.grad_x, command.w, command.grad, window, &command.g);
  if (!status) status = same_dtype(function, command.grad, command.w, command.grad_x);
  if (status) return status;
  if (!command.grad_x.numel()) return check_stream(stream, function);
  return submit(stream, function, cost(command.g, command.grad_x, command.w, command.grad, command.w.dtype), command);
}

NPU_API npu_status_t npu_v3_conv2d_grad_weight(npu_stream_t stream, const npu_tensor_t* grad, const npu_tensor_t* x,
                                               const npu_window_t* window, const npu_tensor_t* grad_w) {
  const char* function = "npu_v3_conv2d_grad_weight";
  ConvGradWeightCommand command{};
  npu_status_t status = resolve(stream, grad, kFloats, Engine::compute, false, function, "grad", &command.grad);
  if (!status) status = resolve(stream, x, kFloats, Engine::compute, false, function, "x", &command.x);
  if (!status) status = resolve(stream, grad_w, kFloats, Engine::compute, false, function, "grad_w", &command.grad_w);
  if (!status) status = make_geometry(function, command.x, command.grad_w, command.grad, window, &command.g);
  if (!status) status = same_dtype(function, command.grad, command.x, command.grad_w);
  if (status) return status;
  if (!command.grad_w.numel()) return check_stream(stream, function);
  uint64_t price = cost(command.g, command.x, command.grad_w, command.grad, command.x.dtype);
  if (!command.g.n) {
    View to = command.grad_w;
    return submit(stream, function, price, [=] { fill_zero(to); });
  }
  return submit(stream, function, price, command);
}

}  // extern "C"
