// image.cpp: the convolution unit, and the pooling that shares its windows.
//
// A convolution is a product of the filters with the columns of what the window sees. The image is brought once into
// a padded float32 copy, so that a column is a sum of two offsets there, whatever its layout and dtype were.
#include <cinttypes>
#include <cmath>
#include <cstring>
#include <vector>

#include "product.h"
#include "rows.h"

namespace x1 {

namespace {

int64_t extent(int64_t in, const x1_window_t& w, int i) {
  int64_t span = in + 2 * w.padding[i] - w.dilation[i] * (w.kernel[i] - 1) - 1;
  return span < 0 ? 0 : span / w.stride[i] + 1;
}

bool one_of(int64_t v, int64_t a, int64_t b, int64_t c) { return v == a || v == b || v == c; }

// What the real driver does not survive.
int check_window(const char* name, const x1_window_t& w) {
  for (int i = 0; i < 2; i++) {
    if (!one_of(w.stride[i], 1, 2, 4))
      return crash(X1_EUNSUPPORTED, "%s: stride[%d] is %" PRId64 ": the unit steps by 1, 2 or 4", name, i, w.stride[i]);
    if (!one_of(w.padding[i], 0, 1, 2))
      return crash(X1_EUNSUPPORTED, "%s: padding[%d] is %" PRId64 ": the unit pads by 0, 1 or 2", name, i,
                   w.padding[i]);
    if (w.dilation[i] != 1)
      return crash(X1_EUNSUPPORTED, "%s: dilation[%d] is %" PRId64 ": the unit has none", name, i, w.dilation[i]);
  }
  if (!one_of(w.groups, 1, 2, 4))
    return crash(X1_EUNSUPPORTED, "%s: groups is %" PRId64 ": the channels go to 1, 2 or 4 lanes", name, w.groups);
  return X1_OK;
}

int check_shapes(const char* name, const View& x, const View& w, const x1_window_t& window, const View& y) {
  if (x.rank != 4 || w.rank != 4 || y.rank != 4)
    return fail(X1_EVALUE, "%s: ranks %d, %d and %d: expected 4", name, x.rank, w.rank, y.rank);
  int64_t g = window.groups;
  if (x.shape[1] % g || w.shape[0] % g || w.shape[1] != x.shape[1] / g || w.shape[2] != window.kernel[0] ||
      w.shape[3] != window.kernel[1])
    return fail(X1_EVALUE,
                "%s: filters [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "] do not fit %" PRId64
                " channels in %" PRId64 " groups",
                name, w.shape[0], w.shape[1], w.shape[2], w.shape[3], x.shape[1], g);
  if (y.shape[0] != x.shape[0] || y.shape[1] != w.shape[0] || y.shape[2] != extent(x.shape[2], window, 0) ||
      y.shape[3] != extent(x.shape[3], window, 1) || y.shape[2] < 1 || y.shape[3] < 1)
    return fail(X1_EVALUE,
                "%s: the result is [%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                "], the window gives another shape",
                name, y.shape[0], y.shape[1], y.shape[2], y.shape[3]);
  return X1_OK;
}

// One lane: the channels and filters of a group, over one image.
struct Lane {
  const View &x, &w, &bias, &y;
  const x1_window_t& window;
  int64_t image, group;
  int64_t channels = w.shape[1], filters = w.shape[0] / window.groups;
  int64_t height = x.shape[2] + 2 * window.padding[0], width = x.shape[3] + 2 * window.padding[1];
  int64_t taps = w.shape[2] * w.shape[3];
  float* padded = scratch(Scratch::kImage, channels* height* width);

  void bring() {
    std::fill_n(padded, channels * height * width, 0.0f);
    View to;
    to.data = reinterpret_cast<char*>(padded + window.padding[0] * width + window.padding[1]);
    to.dtype = X1_DTYPE_FLOAT32;
    to.rank = 3;
    View from = x;
    from.rank = 3;
    from.data += (image * x.stride[0] + group * channels * x.stride[1]) * item_size(x.dtype);
    const int64_t step[3] = {height * width, width, 1};
    for (int d = 0; d < 3; d++) {
      to.shape[d] = from.shape[d] = d ? x.shape[d + 1] : channels;
      to.stride[d] = step[d];
      from.stride[d] = x.stride[d + 1];
    }
    float buffer[kPiece];
    int64_t whole[kPiece];
    for (Rows r{&from, &to}; r.more(); r.next()) {
      for (int64_t i = 0; i < r.length(); i += kPiece) {
        int64_t n = std::min(kPiece, r.length() - i);
        const char* first = r.at(0) + i * r.stride(0) * item_size(x.dtype);
        float* out = reinterpret_cast<float*>(r.at(1)) + i * r.stride(1);
        if (is_float(x.dtype)) {
          store(to, load(x, first, r.stride(0), n, buffer), reinterpret_cast<char*>(out), r.stride(1), n);
        } else {
          const int64_t* from_whole = load(x, first, r.stride(0), n, whole);
          for (int64_t j = 0; j < n; j++) out[j * r.stride(1)] = float(from_whole[j]);
        }
      }
    }
  }

  void pack_filters(int64_t first, int64_t count, int64_t l0, int64_t terms, int64_t wide, float* panel) const {
    float buffer;
    int64_t whole;
    if (count < wide) std::fill_n(panel, terms * wide, 0.0f);
    for (int64_t i = 0; i < count; i++) {
      const char* filter = w.data + (group * filters + first + i) * w.stride[0] * item_size(w.dtype);
      int64_t c = l0 / taps, tap = l0 % taps, kh = tap / w.shape[3], kw = tap % w.shape[3];
      for (int64_t l = 0; l < terms; l++) {
        const char* at = filter + (c * w.stride[1] + kh * w.stride[2] + kw * w.stride[3]) * item_size(w.dtype);
        panel[l * wide + i] = is_float(w.dtype) ? *load(w, at, 1, 1, &buffer) : float(*load(w, at, 1, 1, &whole));
        if (++kw == w.shape[3]) kw = 0, ++kh;
        if (kh == w.shape[2]) kh = 0, ++c;
      }
    }
  }

  void pack_columns(int64_t first, int64_t count, int64_t l0, int64_t terms, int64_t wide, float* panel) const {
    struct Run {
      int64_t column, from, length;
    };
    Run runs[64];  // as many as a panel has columns, at most
    int made = 0;
    for (int64_t i = 0, ow = first % y.shape[3], oh = first / y.shape[3]; i < count; ow = 0, oh++) {
      int64_t n = std::min(count - i, y.shape[3] - ow);
      runs[made++] = {i, oh * window.stride[0] * width + ow * window.stride[1], n};
      i += n;
    }
    if (count < wide) std::fill_n(panel, terms * wide, 0.0f);
    int64_t step = window.stride[1];
    int64_t c = l0 / taps, tap = l0 % taps, kh = tap / w.shape[3], kw = tap % w.shape[3];
    for (int64_t l = 0; l < terms; l++, panel += wide) {
      const float* seen = padded + c * height * width + kh * width + kw;
      for (int r = 0; r < made; r++) {
        const float* from = seen + runs[r].from;
        float* to = panel + runs[r].column;
        if (step == 1) {
          for (int64_t i = 0; i < runs[r].length; i++) to[i] = from[i];
        } else {
          for (int64_t i = 0; i < runs[r].length; i++) to[i] = from[i * step];
        }
      }
      if (++kw == w.shape[3]) kw = 0, ++kh;
      if (kh == w.shape[2]) kh = 0, ++c;
    }
  }

  template <class T>
  void finish(int64_t filter, int64_t column, int64_t count, const T* sums) const {
    T shifted[kColumns], one, plus = 0;
    int64_t o = group * filters + filter;
    if (bias) plus = *load(bias, bias.data + o * bias.stride[0] * item_size(bias.dtype), 1, 1, &one);
    for (int64_t j = 0; j < count; j++) shifted[j] = sums[j] + plus;
    for (int64_t i = 0, ow = column % y.shape[3], oh = column / y.shape[3]; i < count; ow = 0, oh++) {
      int64_t n = std::min(count - i, y.shape[3] - ow);
      int64_t at = image * y.stride[0] + o * y.stride[1] + oh * y.stride[2] + ow * y.stride[3];
      store(y, shifted + i, y.data + at * item_size(y.dtype), y.stride[3], n);
      i += n;
    }
  }

  void run() {
    bring();
    product(
        filters, y.shape[2] * y.shape[3], channels * taps, x.dtype == X1_DTYPE_UINT8,
        [&](auto... at) { pack_filters(at...); }, [&](auto... at) { pack_columns(at...); },
        [&](int64_t i, int64_t j, int64_t n, const auto* sums) { finish(i, j, n, sums); });
  }
};

// Windows of one plane of a pool, clipped to the image; f(first row, end, first column, end) for each, in order.
template <class F>
void for_windows(const View& x, const View& y, const x1_window_t& w, const F& f) {
  for (int64_t oh = 0; oh < y.shape[2]; oh++) {
    int64_t h = oh * w.stride[0] - w.padding[0];
    for (int64_t ow = 0; ow < y.shape[3]; ow++) {
      int64_t v = ow * w.stride[1] - w.padding[1];
      f(oh, ow, h, std::min(h + w.kernel[0], x.shape[2] + w.padding[0]), v,
        std::min(v + w.kernel[1], x.shape[3] + w.padding[1]));
    }
  }
}

int check_pool(const char* name, const View& x, const x1_window_t* w, const View& y) {
  if (!w) return fail(X1_EVALUE, "%s: window: NULL", name);
  if (x.rank != 4 || y.rank != 4 || x.shape[0] != y.shape[0] || x.shape[1] != y.shape[1])
    return fail(X1_EVALUE, "%s: the shapes do not fit", name);
  for (int i = 0; i < 2; i++) {
    if (w->kernel[i] < 1 || w->stride[i] < 1 || w->padding[i] < 0 || 2 * w->padding[i] > w->kernel[i])
      return fail(X1_EVALUE, "%s: kernel %" PRId64 ", stride %" PRId64 ", padding %" PRId64, name, w->kernel[i],
                  w->stride[i], w->padding[i]);
    if (w->dilation[i] != 1) return fail(X1_EUNSUPPORTED, "%s: dilation: the unit has none", name);
    if (y.shape[2 + i] < 1 ? false : (y.shape[2 + i] - 1) * w->stride[i] - w->padding[i] >= x.shape[2 + i])
      return fail(X1_EVALUE, "%s: a window lies outside the image", name);
  }
  return X1_OK;
}

// A plane of floating point numbers as float.
const float* plane(const View& x, int64_t n, int64_t c) {
  float* out = scratch(Scratch::kImage, x.shape[2] * x.shape[3]);
  float buffer[kPiece];
  for (int64_t h = 0; h < x.shape[2]; h++) {
    for (int64_t v = 0; v < x.shape[3]; v += kPiece) {
      int64_t some = std::min(kPiece, x.shape[3] - v);
      int64_t at = n * x.stride[0] + c * x.stride[1] + h * x.stride[2] + v * x.stride[3];
      const float* from = load(x, x.data + at * item_size(x.dtype), x.stride[3], some, buffer);
      std::memcpy(out + h * x.shape[3] + v, from, size_t(some) * sizeof(float));
    }
  }
  return out;
}

char* element(const View& y, int64_t n, int64_t c, int64_t h, int64_t v) {
  return y.data + (n * y.stride[0] + c * y.stride[1] + h * y.stride[2] + v * y.stride[3]) * item_size(y.dtype);
}

// x1_tensor_t as a view of rank 4.
x1_view_t view_of(const x1_tensor_t& t) {
  x1_view_t v{};
  v.data = t.data;
  v.dtype = t.dtype ? t.dtype : -1;
  v.rank = 4;
  for (int d = 0; d < 4; d++) v.shape[d] = t.shape[d], v.stride[d] = t.stride[d];
  return v;
}

}  // namespace
}  // namespace x1

using namespace x1;

extern "C" {

X1_API int x1_conv2d_ex(const x1_view_t* x, const x1_view_t* w, const x1_view_t* bias, const x1_window_t* window,
                        const x1_view_t* y) {
  Command command("x1_conv2d_ex");
  View vx, vw, vb, vy;
  if (!window) return fail(X1_EVALUE, "x1_conv2d_ex: window: NULL");
  int status = check_window(command.name(), *window);
  if (status) return status;
  if (!command.look("x", x, kFloats | bit(X1_DTYPE_UINT8), &vx) || !command.look("w", w, bit(vx.dtype), &vw))
    return failed();
  bool exact = vx.dtype == X1_DTYPE_UINT8;
  if (!command.look("bias", bias, exact ? bit(X1_DTYPE_INT32) : bit(vx.dtype), &vb, true) ||
      !command.look("y", y, bit(vx.dtype) | (exact ? bit(X1_DTYPE_INT32) : 0), &vy))
    return failed();
  status = check_shapes(command.name(), vx, vw, *window, vy);
  if (status) return status;
  if (vb && (vb.rank != 1 || vb.shape[0] != vw.shape[0]))
    return fail(X1_EVALUE, "x1_conv2d_ex: bias: expected [%" PRId64 "]", vw.shape[0]);
  for (int64_t n = 0; n < vx.shape[0]; n++)
    for (int64_t g = 0; g < window->groups; g++) Lane{vx, vw, vb, vy, *window, n, g}.run();
  double work = double(vy.elements()) * double(vw.shape[1] * vw.shape[2] * vw.shape[3]);
  double rate = vx.dtype == X1_DTYPE_FLOAT16 ? 6400 : exact ? 12800 : 1600;
  return command.done(work, rate, vx.bytes() + vw.bytes() + vy.bytes());
}

X1_API int x1_conv2d_run(const x1_tensor_t* input, const x1_tensor_t* weight, const x1_tensor_t* bias,
                         const int64_t* stride, const int64_t* padding, const int64_t* dilation, int64_t groups,
                         x1_tensor_t* output) {
  if (!output) return fail(X1_EVALUE, "x1_conv2d_run: output: NULL");
  *output = x1_tensor_t{};
  if (!input || !weight || !stride || !padding || !dilation) return fail(X1_EVALUE, "x1_conv2d_run: NULL");
  x1_window_t window{};
  for (int i = 0; i < 2; i++) {
    window.kernel[i] = weight->shape[2 + i];
    window.stride[i] = stride[i];
    window.padding[i] = padding[i];
    window.dilation[i] = dilation[i];
  }
  window.groups = groups;
  int status = check_window("x1_conv2d_run", window);
  if (status) return status;
  x1_view_t x = view_of(*input), w = view_of(*weight), shift{}, y = x;
  const bool has_bias = bias && bias->data;
  if (has_bias) {  // its elements lie along whichever dimension is not 1
    shift = view_of(*bias);
    int along = 0;
    for (int d = 0; d < 4; d++) along = bias->shape[d] > 1 ? d : along;
    shift.rank = 1;
    shift.shape[0] = bias->shape[along];
    shift.stride[0] = bias->stride[along];
  }
  y.shape[1] = w.shape[0];
  y.dtype = input->dtype == X1_DTYPE_UINT8 ? X1_DTYPE_INT32 : x.dtype;
  for (int i = 0; i < 2; i++) y.shape[2 + i] = extent(x.shape[2 + i], window, i);
  int64_t elements = 1;
  for (int d = 3; d >= 0; d--) y.stride[d] = elements, elements *= y.shape[d];
  y.data = result_memory(size_t(elements * (item_size(y.dtype) ? item_size(y.dtype) : 1)));
  if (!y.data) return X1_EMEMORY;
  status = x1_conv2d_ex(&x, &w, has_bias ? &shift : nullptr, &window, &y);
  if (status) return status;
  output->data = y.data;
  output->dtype = y.dtype;
  for (int d = 0; d < 4; d++) output->shape[d] = y.shape[d], output->stride[d] = y.stride[d];
  return X1_OK;
}

X1_API int x1_max_pool2d_ex(const x1_view_t* x, const x1_window_t* window, const x1_view_t* y, const x1_view_t* at) {
  Command command("x1_max_pool2d_ex");
  View vx, vy, vi;
  if (!command.look("x", x, kFloats, &vx) || !command.look("y", y, bit(vx.dtype), &vy) ||
      !command.look("at", at, bit(X1_DTYPE_INT64), &vi, true))
    return failed();
  int status = check_pool(command.name(), vx, window, vy);
  if (status) return status;
  if (vi && !command.same_shape("at", vi, vy)) return failed();
  for (int64_t n = 0; n < vy.shape[0]; n++) {
    for (int64_t c = 0; c < vy.shape[1]; c++) {
      const float* from = plane(vx, n, c);
      for_windows(vx, vy, *window, [&](int64_t oh, int64_t ow, int64_t h0, int64_t h1, int64_t v0, int64_t v1) {
        int64_t best = std::max<int64_t>(h0, 0) * vx.shape[3] + std::max<int64_t>(v0, 0);
        for (int64_t h = std::max<int64_t>(h0, 0); h < std::min(h1, vx.shape[2]); h++)
          for (int64_t v = std::max<int64_t>(v0, 0); v < std::min(v1, vx.shape[3]); v++) {
            int64_t here = h * vx.shape[3] + v;
            if (from[here] > from[best] || (std::isnan(from[here]) && !std::isnan(from[best]))) best = here;
          }
        store(vy, from + best, element(vy, n, c, oh, ow), 0, 1);
        if (vi) store(vi, &best, element(vi, n, c, oh, ow), 0, 1);
      });
    }
  }
  return command.done(double(vy.elements()) * double(window->kernel[0] * window->kernel[1]), 64,
                      vx.bytes() + vy.bytes());
}

X1_API int x1_avg_pool2d_ex(const x1_view_t* x, const x1_window_t* window, const x1_view_t* y) {
  Command command("x1_avg_pool2d_ex");
  View vx, vy;
  if (!command.look("x", x, kFloats, &vx) || !command.look("y", y, bit(vx.dtype), &vy)) return failed();
  int status = check_pool(command.name(), vx, window, vy);
  if (status) return status;
  for (int64_t n = 0; n < vy.shape[0]; n++) {
    for (int64_t c = 0; c < vy.shape[1]; c++) {
      const float* from = plane(vx, n, c);
      for_windows(vx, vy, *window, [&](int64_t oh, int64_t ow, int64_t h0, int64_t h1, int64_t v0, int64_t v1) {
        double sum = 0, all = double((h1 - h0) * (v1 - v0));
        int64_t h2 = std::max<int64_t>(h0, 0), h3 = std::min(h1, vx.shape[2]);
        int64_t v2 = std::max<int64_t>(v0, 0), v3 = std::min(v1, vx.shape[3]);
        for (int64_t h = h2; h < h3; h++)
          for (int64_t v = v2; v < v3; v++) sum += double(from[h * vx.shape[3] + v]);
        double by = window->divisor         ? double(window->divisor)
                    : window->count_padding ? all
                                            : double((h3 - h2) * (v3 - v2));
        float mean = float(sum / by);
        store(vy, &mean, element(vy, n, c, oh, ow), 0, 1);
      });
    }
  }
  return command.done(double(vy.elements()) * double(window->kernel[0] * window->kernel[1]), 64,
                      vx.bytes() + vy.bytes());
}

}  // extern "C"
