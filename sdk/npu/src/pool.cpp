// pool.cpp: max pooling, average pooling, adaptive average pooling, and their gradients.
//
// Contract: the header's. The semantics are PyTorch's: a NaN in the window wins, the first of equal maxima is the
// index, average windows are clipped to the padded input for the divisor and to the input for the sum. A plane of x
// is computed by one thread, so gradients are summed in one order. Gradients are written everywhere, zero where no
// window reached.
//
// Planes are loaded into float32 scratch, a few neighbouring channels at a time where channels lie side by side in
// memory (channels-last), so that every cache line is read once.
#include "vector.h"

namespace npu {
namespace {

constexpr int kInSlot = 0, kOutSlot = 1, kIndexSlot = 2, kRowSlot = 3;
constexpr int64_t kGroup = 32;  // channels loaded together, at most

// Channels [c, c + group) of image n, as `group` dense planes.
template <class T>
void load_planes(const View& v, int64_t n, int64_t c, int64_t group, T* to) {
  const int64_t h = v.shape[2], w = v.shape[3], item = static_cast<int64_t>(dtype_size(v.dtype));
  const char* base = v.data + (n * v.stride[0] + c * v.stride[1]) * item;
  auto load = [&](const char* from, int64_t stride, int64_t count, T* out) {
    if constexpr (std::is_same<T, float>::value) {
      const float* got = load_floats(v.dtype, from, stride, count, out);
      if (got != out) std::memcpy(out, got, static_cast<size_t>(count) * sizeof(float));
    } else {
      for (int64_t i = 0; i < count; i++) out[i] = reinterpret_cast<const T*>(from)[i * stride];
    }
  };
  if (group == 1) {
    if (v.stride[3] == 1 && v.stride[2] == w) return load(base, 1, h * w, to);
    for (int64_t y = 0; y < h; y++) load(base + y * v.stride[2] * item, v.stride[3], w, to + y * w);
    return;
  }
  T pixel[kGroup];
  for (int64_t y = 0; y < h; y++)
    for (int64_t x = 0; x < w; x++) {
      load(base + (y * v.stride[2] + x * v.stride[3]) * item, v.stride[1], group, pixel);
      for (int64_t k = 0; k < group; k++) to[k * h * w + y * w + x] = pixel[k];
    }
}

template <class T>
void store_planes(const View& v, int64_t n, int64_t c, int64_t group, const T* from) {
  const int64_t h = v.shape[2], w = v.shape[3], item = static_cast<int64_t>(dtype_size(v.dtype));
  char* base = v.data + (n * v.stride[0] + c * v.stride[1]) * item;
  auto put = [&](const T* in, char* out, int64_t stride, int64_t count) {
    if constexpr (std::is_same<T, float>::value) {
      store_floats(v.dtype, in, out, stride, count);
    } else {
      for (int64_t i = 0; i < count; i++) reinterpret_cast<int64_t*>(out)[i * stride] = in[i];
    }
  };
  if (group == 1) {
    if (v.stride[3] == 1 && v.stride[2] == w) return put(from, base, 1, h * w);
    for (int64_t y = 0; y < h; y++) put(from + y * w, base + y * v.stride[2] * item, v.stride[3], w);
    return;
  }
  T pixel[kGroup];
  for (int64_t y = 0; y < h; y++)
    for (int64_t x = 0; x < w; x++) {
      for (int64_t k = 0; k < group; k++) pixel[k] = from[k * h * w + y * w + x];
      put(pixel, base + (y * v.stride[2] + x * v.stride[3]) * item, v.stride[1], group);
    }
}

// Runs body(n, c, group, thread) over all planes of x.
template <class F>
void for_planes(const View& x, const F& body) {
  const int64_t channels = x.shape[1], size = x.shape[2] * x.shape[3];
  const bool beside = x.stride[1] < x.stride[3] && channels > 1 && x.shape[3] > 1;
  const int64_t group = beside ? (channels < kGroup ? channels : kGroup) : 1;
  const int64_t groups = (channels + group - 1) / group;
  parallel_for(x.shape[0] * groups, kGrain / (size * group) + 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; i++) {
      const int64_t c = i % groups * group;
      body(i / groups, c, channels - c < group ? channels - c : group, thread);
    }
  });
}
template <class T>
T* plane_scratch(int thread, int slot, int64_t elements) {
  return static_cast<T*>(scratch(thread, slot, static_cast<size_t>(elements) * sizeof(T)));
}

// Outputs [first, last) along dimension d whose window's tap k falls on the input.
void tap_range(const npu_window_t& w, int d, int64_t k, int64_t in, int64_t out, int64_t* first, int64_t* last) {
  const int64_t shift = k * w.dilation[d] - w.padding[d];  // input = output * stride + shift
  *first = shift >= 0 ? 0 : (-shift + w.stride[d] - 1) / w.stride[d];
  const int64_t room = in - 1 - shift;
  *last = room < 0 ? 0 : room / w.stride[d] + 1;
  if (*last > out) *last = out;
}

// ---- max
template <int64_t kStep>
struct MaxTap {  // kStep: distance of the inputs of neighbouring outputs, 0: `step` says it
  NPU_INLINE static void run(const float* in, int64_t step, int64_t n, float* best, int32_t* index, int32_t at) {
    const int64_t by = kStep ? kStep : step;
    NPU_IVDEP for (int64_t i = 0; i < n; i++) {
      const float v = in[i * by];
      const bool take = (v > best[i]) | (v != v);
      best[i] = take ? v : best[i];
      index[i] = take ? at + static_cast<int32_t>(i * by) : index[i];
    }
  }
};

void max_plane(const float* x, int64_t h, int64_t w, const npu_window_t& win, int64_t oh, int64_t ow, float* out,
               int32_t* index) {
  for (int64_t y = 0; y < oh; y++) {
    float* best = out + y * ow;
    int32_t* where = index + y * ow;
    int64_t top = y * win.stride[0] - win.padding[0];
    while (top < 0) top += win.dilation[0];
    for (int64_t i = 0; i < ow; i++) {
      int64_t left = i * win.stride[1] - win.padding[1];
      while (left < 0) left += win.dilation[1];
      best[i] = -__builtin_inff();
      where[i] = static_cast<int32_t>(top * w + left);
    }
    for (int64_t ky = 0; ky < win.kernel[0]; ky++) {
      const int64_t row = y * win.stride[0] - win.padding[0] + ky * win.dilation[0];
      if (row < 0 || row >= h) continue;
      for (int64_t kx = 0; kx < win.kernel[1]; kx++) {
        int64_t first, last;
        tap_range(win, 1, kx, w, ow, &first, &last);
        if (first >= last) continue;
        const int64_t at = row * w + first * win.stride[1] - win.padding[1] + kx * win.dilation[1];
        const int32_t place = static_cast<int32_t>(at);
        if (win.stride[1] == 1)
          simd<MaxTap<1>>(x + at, int64_t{1}, last - first, best + first, where + first, place);
        else if (win.stride[1] == 2)
          simd<MaxTap<2>>(x + at, int64_t{2}, last - first, best + first, where + first, place);
        else
          simd<MaxTap<0>>(x + at, win.stride[1], last - first, best + first, where + first, place);
      }
    }
  }
}

// ---- average
template <int64_t kStep, bool kScatter>
struct AddTap {  // row[i] += plane[i*step], or the other way round
  NPU_INLINE static void run(float* plane, int64_t step, int64_t n, float* row) {
    const int64_t by = kStep ? kStep : step;
    NPU_IVDEP for (int64_t i = 0; i < n; i++) {
      if (kScatter)
        plane[i * by] += row[i];
      else
        row[i] += plane[i * by];
    }
  }
};
template <bool kScatter>
void add_taps(float* x, int64_t h, int64_t w, const npu_window_t& win, int64_t y, int64_t ow, float* row) {
  for (int64_t ky = 0; ky < win.kernel[0]; ky++) {
    const int64_t iy = y * win.stride[0] - win.padding[0] + ky;
    if (iy < 0 || iy >= h) continue;
    for (int64_t kx = 0; kx < win.kernel[1]; kx++) {
      int64_t first, last;
      tap_range(win, 1, kx, w, ow, &first, &last);
      if (first >= last) continue;
      float* at = x + iy * w + first * win.stride[1] - win.padding[1] + kx;
      if (win.stride[1] == 1)
        simd<AddTap<1, kScatter>>(at, int64_t{1}, last - first, row + first);
      else if (win.stride[1] == 2)
        simd<AddTap<2, kScatter>>(at, int64_t{2}, last - first, row + first);
      else
        simd<AddTap<0, kScatter>>(at, win.stride[1], last - first, row + first);
    }
  }
}
// How many positions count along dimension d for output o.
int64_t extent(const npu_window_t& win, int d, int64_t o, int64_t in) {
  int64_t from = o * win.stride[d] - win.padding[d], to = from + win.kernel[d];
  const int64_t padded = in + win.padding[d];
  if (to > padded) to = padded;
  if (!win.count_padding) {
    if (from < 0) from = 0;
    if (to > in) to = in;
  }
  return to > from ? to - from : 0;
}
void divide_row(const npu_window_t& win, int64_t h, int64_t w, int64_t y, int64_t ow, float* row) {
  const int64_t rows = extent(win, 0, y, h);
  for (int64_t i = 0; i < ow; i++) {
    const int64_t divisor = win.divisor ? win.divisor : rows * extent(win, 1, i, w);
    row[i] = divisor ? row[i] / static_cast<float>(divisor) : 0;
  }
}

// ---- adaptive: output o covers [floor(o in / out), ceil((o + 1) in / out))
int64_t cell_begin(int64_t o, int64_t in, int64_t out) { return o * in / out; }
int64_t cell_end(int64_t o, int64_t in, int64_t out) { return ((o + 1) * in + out - 1) / out; }

// ---- checks
npu_status_t check_images(const char* fn, const char* what, const View& v) {
  if (v.rank == 4) return NPU_STATUS_SUCCESS;
  return fail(NPU_STATUS_INVALID_VALUE, "%s: %s has rank %d, expected [N, C, H, W]", fn, what, v.rank);
}

npu_status_t check_window(const char* fn, const npu_window_t* window, bool average, const View& in, const View& out,
                          const char* out_name) {
  if (!window) return fail(NPU_STATUS_INVALID_VALUE, "%s: window is NULL", fn);
  int64_t wanted[kMaxRank] = {in.shape[0], in.shape[1], out.shape[2], out.shape[3]};
  NPU_TRY(expect_shape(fn, out_name, out, 4, wanted));
  for (int d = 0; d < 2; d++) {
    const int64_t k = window->kernel[d], s = window->stride[d], p = window->padding[d], dilation = window->dilation[d];
    if (k < 1 || s < 1 || dilation < 1 || p < 0)
      return fail(NPU_STATUS_INVALID_VALUE,
                  "%s: window has kernel %lld, stride %lld, padding %lld, dilation %lld in dimension %d", fn,
                  static_cast<long long>(k), static_cast<long long>(s), static_cast<long long>(p),
                  static_cast<long long>(dilation), d);
    if (average && dilation != 1)
      return fail(NPU_STATUS_NOT_SUPPORTED, "%s: window has dilation %lld, average pooling expects 1", fn,
                  static_cast<long long>(dilation));
    const int64_t reach = dilation * (k - 1) + 1;
    if (2 * p > reach)
      return fail(NPU_STATUS_INVALID_VALUE, "%s: padding %lld is more than half of the window's %lld", fn,
                  static_cast<long long>(p), static_cast<long long>(reach));
    const int64_t size = in.shape[2 + d], room = size + 2 * p - reach;
    const int64_t least = room < 0 ? 0 : room / s + 1;
    int64_t most = room + s - 1 < 0 ? 0 : (room + s - 1) / s + 1;
    if (most > 0 && (most - 1) * s >= size + p) most--;  // a window may not begin in the padding behind
    const int64_t got = out.shape[2 + d];
    if (got != least && got != most)
      return fail(NPU_STATUS_INVALID_VALUE,
                  "%s: %s has size %lld in dimension %d, expected %lld (or %lld in ceil mode)", fn, out_name,
                  static_cast<long long>(got), 2 + d, static_cast<long long>(least), static_cast<long long>(most));
  }
  return NPU_STATUS_SUCCESS;
}

uint64_t pool_cost(npu_stream_t stream, const View& x, const View& y, double taps, double extra) {
  const Work work{static_cast<double>(y.numel()) * taps, view_bytes(x) + view_bytes(y) + extra, x.dtype};
  return cycles(stream, work);
}

// x and y of every function here: floats of one dtype, [N, C, H, W]; `result` is the one that is written.
npu_status_t resolve_pair(npu_stream_t stream, const char* fn, const npu_tensor_t* x, const char* x_name, View* vx,
                          const npu_tensor_t* y, const char* y_name, View* vy, bool y_is_result) {
  NPU_TRY(resolve(stream, x, kFloats, Engine::compute, false, fn, x_name, vx));
  NPU_TRY(resolve(stream, y, kFloats, Engine::compute, false, fn, y_name, vy));
  NPU_TRY(check_images(fn, x_name, *vx));
  NPU_TRY(check_images(fn, y_name, *vy));
  NPU_TRY(same_dtype(fn, y_name, *vy, vx->dtype));
  return writable(fn, y_is_result ? y_name : x_name, y_is_result ? *vy : *vx);
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_max_pool(npu_stream_t stream, const npu_tensor_t* x, const npu_window_t* window,
                                        const npu_tensor_t* out, const npu_tensor_t* index) {
  static const char fn[] = "npu_v3_max_pool";
  View vx, vo, vi;
  NPU_TRY(resolve_pair(stream, fn, x, "x", &vx, out, "out", &vo, true));
  NPU_TRY(check_window(fn, window, false, vx, vo, "out"));
  NPU_TRY(resolve(stream, index, mask(NPU_INT64), Engine::compute, true, fn, "index", &vi));
  if (vi) {
    NPU_TRY(same_shape(fn, "index", vi, vo));
    NPU_TRY(writable(fn, "index", vi));
  }
  if (vx.shape[2] * vx.shape[3] > INT32_MAX)
    return fail(NPU_STATUS_NOT_SUPPORTED, "%s: a plane of x has more than %d elements", fn, INT32_MAX);
  if (vo.numel() == 0) return NPU_STATUS_SUCCESS;
  const npu_window_t win = *window;
  const uint64_t cost = pool_cost(stream, vx, vo, static_cast<double>(win.kernel[0] * win.kernel[1]), view_bytes(vi));
  return submit(stream, fn, cost, [=] {
    const int64_t h = vx.shape[2], w = vx.shape[3], oh = vo.shape[2], ow = vo.shape[3];
    for_planes(vx, [&](int64_t n, int64_t c, int64_t group, int thread) {
      float* in = plane_scratch<float>(thread, kInSlot, group * h * w);
      float* best = plane_scratch<float>(thread, kOutSlot, group * oh * ow);
      int32_t* where = plane_scratch<int32_t>(thread, kRowSlot, group * oh * ow);
      load_planes(vx, n, c, group, in);
      for (int64_t k = 0; k < group; k++)
        max_plane(in + k * h * w, h, w, win, oh, ow, best + k * oh * ow, where + k * oh * ow);
      store_planes(vo, n, c, group, best);
      if (!vi) return;
      int64_t* places = plane_scratch<int64_t>(thread, kIndexSlot, group * oh * ow);
      for (int64_t i = 0; i < group * oh * ow; i++) places[i] = where[i];
      store_planes(vi, n, c, group, places);
    });
  });
}

extern "C" npu_status_t npu_v3_max_pool_grad(npu_stream_t stream, const npu_tensor_t* grad, const npu_tensor_t* index,
                                             const npu_tensor_t* grad_x) {
  static const char fn[] = "npu_v3_max_pool_grad";
  View vx, vg, vi;
  NPU_TRY(resolve_pair(stream, fn, grad_x, "grad_x", &vx, grad, "grad", &vg, false));
  NPU_TRY(resolve(stream, index, mask(NPU_INT64), Engine::compute, false, fn, "index", &vi));
  NPU_TRY(same_shape(fn, "index", vi, vg));
  const int64_t wanted[4] = {vx.shape[0], vx.shape[1], vg.shape[2], vg.shape[3]};
  NPU_TRY(expect_shape(fn, "grad", vg, 4, wanted));
  if (vx.numel() == 0) return NPU_STATUS_SUCCESS;
  return submit(stream, fn, pool_cost(stream, vx, vg, 1, view_bytes(vi)), [=] {
    const int64_t size = vx.shape[2] * vx.shape[3], outputs = vg.shape[2] * vg.shape[3];
    int32_t bad = 0;
    for_planes(vx, [&](int64_t n, int64_t c, int64_t group, int thread) {
      float* sum = plane_scratch<float>(thread, kInSlot, group * size);
      float* g = plane_scratch<float>(thread, kOutSlot, group * outputs);
      int64_t* places = plane_scratch<int64_t>(thread, kIndexSlot, group * outputs);
      if (outputs) {
        load_planes(vg, n, c, group, g);
        load_planes(vi, n, c, group, places);
      }
      std::memset(sum, 0, static_cast<size_t>(group * size) * sizeof(float));
      for (int64_t k = 0; k < group; k++)
        for (int64_t i = k * outputs; i < (k + 1) * outputs; i++) {
          if (places[i] < 0 || places[i] >= size)
            __atomic_store_n(&bad, 1, __ATOMIC_RELAXED);
          else
            sum[k * size + places[i]] += g[i];
        }
      store_planes(vx, n, c, group, sum);
    });
    if (bad)
      runtime_failure(NPU_STATUS_EXECUTION_FAILED, "npu_v3_max_pool_grad: index has an element outside grad_x's plane");
  });
}

extern "C" npu_status_t npu_v3_avg_pool(npu_stream_t stream, const npu_tensor_t* x, const npu_window_t* window,
                                        const npu_tensor_t* out) {
  static const char fn[] = "npu_v3_avg_pool";
  View vx, vo;
  NPU_TRY(resolve_pair(stream, fn, x, "x", &vx, out, "out", &vo, true));
  NPU_TRY(check_window(fn, window, true, vx, vo, "out"));
  if (vo.numel() == 0) return NPU_STATUS_SUCCESS;
  const npu_window_t win = *window;
  const uint64_t cost = pool_cost(stream, vx, vo, static_cast<double>(win.kernel[0] * win.kernel[1]), 0);
  return submit(stream, fn, cost, [=] {
    const int64_t h = vx.shape[2], w = vx.shape[3], oh = vo.shape[2], ow = vo.shape[3];
    for_planes(vx, [&](int64_t n, int64_t c, int64_t group, int thread) {
      float* in = plane_scratch<float>(thread, kInSlot, group * h * w);
      float* sum = plane_scratch<float>(thread, kOutSlot, group * oh * ow);
      load_planes(vx, n, c, group, in);
      std::memset(sum, 0, static_cast<size_t>(group * oh * ow) * sizeof(float));
      for (int64_t k = 0; k < group; k++)
        for (int64_t y = 0; y < oh; y++) {
          float* row = sum + (k * oh + y) * ow;
          add_taps<false>(in + k * h * w, h, w, win, y, ow, row);
          divide_row(win, h, w, y, ow, row);
        }
      store_planes(vo, n, c, group, sum);
    });
  });
}

extern "C" npu_status_t npu_v3_avg_pool_grad(npu_stream_t stream, const npu_tensor_t* grad, const npu_window_t* window,
                                             const npu_tensor_t* grad_x) {
  static const char fn[] = "npu_v3_avg_pool_grad";
  View vx, vg;
  NPU_TRY(resolve_pair(stream, fn, grad_x, "grad_x", &vx, grad, "grad", &vg, false));
  NPU_TRY(check_window(fn, window, true, vx, vg, "grad"));
  if (vx.numel() == 0) return NPU_STATUS_SUCCESS;
  const npu_window_t win = *window;
  const uint64_t cost = pool_cost(stream, vx, vg, static_cast<double>(win.kernel[0] * win.kernel[1]), 0);
  return submit(stream, fn, cost, [=] {
    const int64_t h = vx.shape[2], w = vx.shape[3], oh = vg.shape[2], ow = vg.shape[3];
    for_planes(vx, [&](int64_t n, int64_t c, int64_t group, int thread) {
      float* sum = plane_scratch<float>(thread, kInSlot, group * h * w);
      float* g = plane_scratch<float>(thread, kOutSlot, group * oh * ow);
      if (oh > 0 && ow > 0) load_planes(vg, n, c, group, g);
      std::memset(sum, 0, static_cast<size_t>(group * h * w) * sizeof(float));
      for (int64_t k = 0; k < group; k++)
        for (int64_t y = 0; y < oh; y++) {
          float* row = g + (k * oh + y) * ow;
          divide_row(win, h, w, y, ow, row);
          add_taps<true>(sum + k * h * w, h, w, win, y, ow, row);
        }
      store_planes(vx, n, c, group, sum);
    });
  });
}

extern "C" npu_status_t npu_v3_adaptive_avg_pool(npu_stream_t stream, const npu_tensor_t* x, const npu_tensor_t* out) {
  static const char fn[] = "npu_v3_adaptive_avg_pool";
  View vx, vo;
  NPU_TRY(resolve_pair(stream, fn, x, "x", &vx, out, "out", &vo, true));
  const int64_t wanted[4] = {vx.shape[0], vx.shape[1], vo.shape[2], vo.shape[3]};
  NPU_TRY(expect_shape(fn, "out", vo, 4, wanted));
  if (vo.numel() == 0) return NPU_STATUS_SUCCESS;
  if (vx.numel() == 0) return fail(NPU_STATUS_INVALID_VALUE, "%s: x has no elements, expected some", fn);
  const double taps = static_cast<double>(vx.numel()) / static_cast<double>(vo.numel()) + 1;
  return submit(stream, fn, pool_cost(stream, vx, vo, taps, 0), [=] {
    const int64_t h = vx.shape[2], w = vx.shape[3], oh = vo.shape[2], ow = vo.shape[3];
    for_planes(vx, [&](int64_t n, int64_t c, int64_t group, int thread) {
      float* in = plane_scratch<float>(thread, kInSlot, group * h * w);
      float* mean = plane_scratch<float>(thread, kOutSlot, group * oh * ow);
      load_planes(vx, n, c, group, in);
      for (int64_t k = 0; k < group; k++)
        for (int64_t y = 0; y < oh; y++)
          for (int64_t i = 0; i < ow; i++) {
            const int64_t top = cell_begin(y, h, oh), bottom = cell_end(y, h, oh);
            const int64_t left = cell_begin(i, w, ow), right = cell_end(i, w, ow);
            double sum = 0;
            for (int64_t a = top; a < bottom; a++)
              for (int64_t b = left; b < right; b++) sum += in[(k * h + a) * w + b];
            mean[(k * oh + y) * ow + i] =
                static_cast<float>(sum / static_cast<double>((bottom - top) * (right - left)));
          }
      store_planes(vo, n, c, group, mean);
    });
  });
}

extern "C" npu_status_t npu_v3_adaptive_avg_pool_grad(npu_stream_t stream, const npu_tensor_t* grad,
                                                      const npu_tensor_t* grad_x) {
  static const char fn[] = "npu_v3_adaptive_avg_pool_grad";
  View vx, vg;
  NPU_TRY(resolve_pair(stream, fn, grad_x, "grad_x", &vx, grad, "grad", &vg, false));
  const int64_t wanted[4] = {vx.shape[0], vx.shape[1], vg.shape[2], vg.shape[3]};
  NPU_TRY(expect_shape(fn, "grad", vg, 4, wanted));
  if (vx.numel() == 0) return NPU_STATUS_SUCCESS;
  return submit(stream, fn, pool_cost(stream, vg, vx, 1, 0), [=] {
    const int64_t h = vx.shape[2], w = vx.shape[3], oh = vg.shape[2], ow = vg.shape[3];
    for_planes(vx, [&](int64_t n, int64_t c, int64_t group, int thread) {
      float* sum = plane_scratch<float>(thread, kInSlot, group * h * w);
      float* g = plane_scratch<float>(thread, kOutSlot, group * oh * ow);
      if (oh > 0 && ow > 0) load_planes(vg, n, c, group, g);
      std::memset(sum, 0, static_cast<size_t>(group * h * w) * sizeof(float));
      for (int64_t k = 0; k < group; k++)
        for (int64_t y = 0; y < oh; y++)
          for (int64_t i = 0; i < ow; i++) {
            const int64_t top = cell_begin(y, h, oh), bottom = cell_end(y, h, oh);
            const int64_t left = cell_begin(i, w, ow), right = cell_end(i, w, ow);
            const float share = g[(k * oh + y) * ow + i] / static_cast<float>((bottom - top) * (right - left));
            for (int64_t a = top; a < bottom; a++)
              for (int64_t b = left; b < right; b++) sum[(k * h + a) * w + b] += share;
          }
      store_planes(vx, n, c, group, sum);
    });
  });
}
