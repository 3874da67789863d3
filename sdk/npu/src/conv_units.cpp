// conv_units.cpp: convolution forward and its two gradients as matrix products over image windows.
//
// How: forward is w [O, C*taps] times windows of x [C*taps, N*positions]; the gradient of w is grad [O, N*positions]
// times the same windows transposed. The gradient of x is, for each phase of the stride, a forward convolution of grad
// with the taps that reach that phase, so it needs no scatter and each element is rounded once. Taps that only ever see
// padding (a 3x3 kernel on a 1x1 plane has eight) are left out. Columns of all images form one product.
#include "conv.h"

#include <algorithm>

namespace npu {

namespace {

constexpr int kMaxTaps = 11;

// Taps [first, first + count) of one axis see at least one element; position p, tap first + t reads image row
// p * stride + t * dilation, which is row `lo` + that of the tensor.
struct Window {
  int64_t first = 0, count = 0, lo = 0, size = 0;
};

Window crop(int64_t in, int64_t kernel, int64_t out, int64_t stride, int64_t padding, int64_t dilation) {
  Window window;
  for (int64_t t = 0; t < kernel; t++) {
    int64_t start = t * dilation - padding;
    bool seen = false;
    for (int64_t p = 0; p < out && !seen; p++) seen = start + p * stride >= 0 && start + p * stride < in;
    if (!seen) continue;
    if (!window.count) window.first = t;
    window.count = t - window.first + 1;
  }
  window.lo = window.first * dilation - padding;
  window.size = window.count ? (out - 1) * stride + (window.count - 1) * dilation + 1 : 0;
  return window;
}

struct Windows {
  Window y, x;
  Frame frame;
  int64_t taps;
  explicit Windows(const ConvGeometry& g)
      : y(crop(g.in[0], g.kernel[0], g.out[0], g.stride[0], g.padding[0], g.dilation[0])),
        x(crop(g.in[1], g.kernel[1], g.out[1], g.stride[1], g.padding[1], g.dilation[1])),
        frame{{y.lo, x.lo}, {y.size, x.size}},
        taps(y.count * x.count) {}
};

char* element(const View& v, int64_t offset) { return v.data + offset * int64_t(dtype_size(v.dtype)); }

// For each phase of the stride on one axis of the input: which positions it has and which output each tap gives them.
struct Phase {
  int64_t first = 0, count = 0;  // positions first, first + stride, ...
  int taps = 0;
  int64_t tap[kMaxTaps], output[kMaxTaps];  // position i receives output[t] + i through tap[t]
};

Phase make_phase(int64_t r, int64_t in, int64_t kernel, int64_t out, int64_t stride, int64_t padding,
                 int64_t dilation) {
  Phase phase;
  phase.first = ((r - padding) % stride + stride) % stride;
  phase.count = in > phase.first ? (in - phase.first + stride - 1) / stride : 0;
  for (int64_t t = 0; t < kernel && phase.count; t++) {
    int64_t distance = phase.first + padding - t * dilation;
    if (distance % stride) continue;
    int64_t output = distance / stride;
    if (output >= out || output + phase.count - 1 < 0) continue;
    phase.tap[phase.taps] = t;
    phase.output[phase.taps++] = output;
  }
  return phase;
}

// Writes row segments of a product whose columns are (image, position) pairs to a tensor.
struct ColumnSink {
  const View& to;
  const int64_t* column;  // offset of each column
  int64_t row_step;
  int64_t run;  // columns [0, run), [run, 2 run), ... are dense
  void store(int64_t base, int64_t row, int64_t first, int64_t count, const float* values) const {
    base += row * row_step;
    if (run < 8) return store_floats(values, count, to.data, to.dtype, base, Offsets{column + first, 0});
    for (int64_t done = 0; done < count;) {
      int64_t at = first + done, some = std::min(count - done, run - at % run);
      store_floats(values + done, some, to.data, to.dtype, base + column[at], Offsets{nullptr, 1});
      done += some;
    }
  }
};

// Reads from where a sink would write, in a tensor of the same dtype and strides.
struct ColumnSource {
  const char* data;
  const ColumnSink& like;
  void load(int64_t base, int64_t row, int64_t first, int64_t count, float* values) const {
    base += row * like.row_step;
    for (int64_t done = 0; done < count;) {
      int64_t at = first + done, some = like.run < 8 ? 1 : std::min(count - done, like.run - at % like.run);
      load_floats(data, like.to.dtype, base + like.column[at], 1, some, values + done);
      done += some;
    }
  }
};

bool dense_plane(const View& v) { return v.stride[3] == 1 && (v.stride[2] == v.shape[3] || v.shape[2] == 1); }

}  // namespace

int64_t images_at_once(int64_t n, int64_t floats_per_image, int64_t positions) {
  constexpr int64_t floats = 4 << 20, columns = 1 << 18;
  return std::clamp<int64_t>(
      std::min(floats / std::max<int64_t>(floats_per_image, 1), columns / std::max<int64_t>(positions, 1)), 1, n);
}

int64_t* fill_table(int64_t* table, Axis a, Axis y, Axis x, int64_t first) {
  for (int64_t i = 0; i < a.count; i++) {
    for (int64_t r = 0; r < y.count; r++) {
      for (int64_t c = 0; c < x.count; c++) *table++ = first + i * a.step + r * y.step + c * x.step;
    }
  }
  return table;
}

void load_image(const View& v, int64_t first, int64_t count, const Frame& frame, float* image) {
  int64_t channels = v.shape[1], height = v.shape[2], width = v.shape[3], plane = frame.plane();
  int64_t top = std::max<int64_t>(frame.lo[0], 0), bottom = std::min(frame.lo[0] + frame.size[0], height);
  int64_t left = std::max<int64_t>(frame.lo[1], 0), right = std::min(frame.lo[1] + frame.size[1], width);
  bool whole = frame.lo[0] == 0 && frame.lo[1] == 0 && frame.size[0] == height && frame.size[1] == width;
  int64_t size = channels * plane;
  if (whole && dense_plane(v) && (v.stride[1] == plane || channels == 1) && (v.stride[0] == size || count == 1)) {
    parallel_for(count * size, 1 << 15, [&](int64_t begin, int64_t end, int) {
      load_floats(v.data, v.dtype, first * v.stride[0] + begin, 1, end - begin, image + begin);
    });
    return;
  }
  if (v.stride[1] == 1 && channels > 1) {  // channels last: read pixel by pixel
    parallel_for(count, 1, [&](int64_t begin, int64_t end, int) {
      float pixel[256];
      if (!whole) std::fill(image + begin * size, image + end * size, 0.0f);
      for (int64_t n = begin; n < end; n++) {
        for (int64_t y = top; y < bottom; y++) {
          for (int64_t x = left; x < right; x++) {
            int64_t from = (first + n) * v.stride[0] + y * v.stride[2] + x * v.stride[3];
            float* to = image + n * size + (y - frame.lo[0]) * frame.size[1] + (x - frame.lo[1]);
            for (int64_t c = 0; c < channels; c += 256) {
              int64_t some = std::min<int64_t>(256, channels - c);
              load_floats(v.data, v.dtype, from + c, 1, some, pixel);
              for (int64_t i = 0; i < some; i++) to[(c + i) * plane] = pixel[i];
            }
          }
        }
      }
    });
    return;
  }
  parallel_for(count * channels, (1 << 14) / std::max<int64_t>(plane, 1) + 1, [&](int64_t begin, int64_t end, int) {
    if (!whole) std::fill(image + begin * plane, image + end * plane, 0.0f);
    for (int64_t p = begin; p < end; p++) {
      int64_t from = (first + p / channels) * v.stride[0] + p % channels * v.stride[1];
      for (int64_t y = top; y < bottom && left < right; y++) {
        float* to = image + p * plane + (y - frame.lo[0]) * frame.size[1] + (left - frame.lo[1]);
        load_floats(v.data, v.dtype, from + y * v.stride[2] + left * v.stride[3], v.stride[3], right - left, to);
      }
    }
  });
}

void Conv2dCommand::operator()() {
  Windows win(g);
  int64_t positions = g.out[0] * g.out[1], plane = win.frame.plane(), terms = g.channels() * win.taps;
  int64_t chunk = images_at_once(g.n, g.c * plane, positions);
  auto* image = static_cast<float*>(scratch(0, kImage, size_t(chunk * g.c * plane) * 4));
  TableArena arena(2 * chunk * positions + 2 * terms);
  int64_t *base = arena.take(chunk * positions), *target = arena.take(chunk * positions);
  int64_t *tap = arena.take(terms), *weight = arena.take(terms);
  int64_t width = win.frame.size[1];
  int64_t* end = base;
  for (int64_t n = 0; n < chunk; n++) {
    end = fill_table(end, {1, 0}, {g.out[0], g.stride[0] * width}, {g.out[1], g.stride[1]}, n * g.c * plane);
  }
  fill_table(tap, {g.channels(), plane}, {win.y.count, g.dilation[0] * width}, {win.x.count, g.dilation[1]});
  fill_table(weight, {g.channels(), w.stride[1]}, {win.y.count, w.stride[2]}, {win.x.count, w.stride[3]});
  fill_table(target, {chunk, y.stride[0]}, {g.out[0], y.stride[2]}, {g.out[1], y.stride[3]});
  bool dense_weight = true;
  for (int64_t t = 0; t < terms; t++) dense_weight &= weight[t] == t;
  int64_t corner = win.y.first * w.stride[2] + win.x.first * w.stride[3];
  ColumnSink sink{y, target, y.stride[1], dense_plane(y) ? positions : 1};
  ColumnSource beside{epilogue.residual, sink};

  for (int64_t n0 = 0; n0 < g.n; n0 += chunk) {
    int64_t count = std::min(chunk, g.n - n0), columns = count * positions;
    load_image(x, n0, count, win.frame, image);
    for (int64_t group = 0; group < g.groups; group++) {
      int64_t o0 = group * g.filters(), y0 = n0 * y.stride[0] + o0 * y.stride[1];
      Operand a{element(w, corner + o0 * w.stride[0]),
                w.dtype,
                {nullptr, w.stride[0]},
                dense_weight ? Offsets{nullptr, 1} : Offsets{weight, 0}};
      Operand b{image + group * g.channels() * plane, NPU_FLOAT32, {base, 0, true}, {tap, 0, true}};
      if (x.dtype != NPU_INT8) {
        gemm(g.filters(), columns, terms, a, b, [&](int64_t row, int64_t first, int64_t some, const float* values) {
          if (!bias && !epilogue) return sink.store(y0, row, first, some, values);
          float finished[512], residual[512];
          const float add = bias.get(o0 + row, 0);
          for (int64_t j = 0; j < some; j += 512) {
            int64_t part = std::min<int64_t>(512, some - j);
            if (epilogue.residual) beside.load(y0, row, first + j, part, residual);
            epilogue.apply(o0 + row, add, values + j, epilogue.residual ? residual : nullptr, finished, part);
            sink.store(y0, row, first + j, part, finished);
          }
        });
        continue;
      }
      auto* out = reinterpret_cast<int32_t*>(y.data);
      for (int64_t k0 = 0; k0 == 0 || k0 < terms; k0 += kExactInt8Terms) {
        int64_t add_first = k0 == 0;
        gemm(g.filters(), columns, std::min(kExactInt8Terms, terms - k0), a, b,
             [&](int64_t row, int64_t first, int64_t some, const float* sums) {
               uint32_t start = 0;
               if (bias) start = uint32_t(reinterpret_cast<const int32_t*>(bias.data)[(o0 + row) * bias.stride]);
               for (int64_t j = 0; j < some; j++) {
                 int32_t& total = out[y0 + row * y.stride[1] + target[first + j]];
                 total = int32_t((add_first ? start : uint32_t(total)) + uint32_t(int32_t(sums[j])));
               }
             });
        a.data = static_cast<const int8_t*>(a.data) + (dense_weight ? kExactInt8Terms : 0);
        a.inner = a.inner.from(kExactInt8Terms);
        b.inner = b.inner.from(kExactInt8Terms);
      }
    }
  }
}

void ConvGradInputCommand::operator()() {
  // One frame of grad serves all phases.
  Frame frame{{0, 0}, {0, 0}};
  Phase phase[2][4];
  for (int axis = 0; axis < 2; axis++) {
    int64_t lo = 0, hi = -1;
    for (int64_t r = 0; r < g.stride[axis]; r++) {
      Phase& p = phase[axis][r];
      p = make_phase(r, g.in[axis], g.kernel[axis], g.out[axis], g.stride[axis], g.padding[axis], g.dilation[axis]);
      for (int t = 0; t < p.taps; t++) {
        lo = hi < lo ? p.output[t] : std::min(lo, p.output[t]);
        hi = std::max(hi, p.output[t] + p.count - 1);
      }
    }
    frame.lo[axis] = lo;
    frame.size[axis] = hi - lo + 1;
  }
  int64_t plane = frame.plane(), width = frame.size[1], positions = g.in[0] * g.in[1];
  int64_t chunk = images_at_once(g.n, g.o * plane, positions);
  int64_t taps = g.kernel[0] * g.kernel[1];
  auto* image = static_cast<float*>(scratch(0, kImage, size_t(chunk * g.o * plane) * 4 + 4));
  TableArena arena(2 * chunk * positions + 2 * g.filters() * taps);
  int64_t *base = arena.take(chunk * positions), *target = arena.take(chunk * positions);
  int64_t *reach = arena.take(g.filters() * taps), *weight = arena.take(g.filters() * taps);

  for (int64_t n0 = 0; n0 < g.n; n0 += chunk) {
    int64_t count = std::min(chunk, g.n - n0);
    load_image(grad, n0, count, frame, image);
    for (int64_t r = 0; r < g.stride[0] * g.stride[1]; r++) {
      const Phase &py = phase[0][r / g.stride[1]], &px = phase[1][r % g.stride[1]];
      if (!py.count || !px.count) continue;
      int64_t corner = py.first * grad_x.stride[2] + px.first * grad_x.stride[3];
      fill_table(base, {count, g.o * plane}, {py.count, width}, {px.count, 1}, -frame.lo[0] * width - frame.lo[1]);
      fill_table(target, {count, grad_x.stride[0]}, {py.count, g.stride[0] * grad_x.stride[2]},
                 {px.count, g.stride[1] * grad_x.stride[3]}, corner);
      int64_t terms = 0;
      for (int64_t o = 0; o < g.filters(); o++) {
        for (int ty = 0; ty < py.taps; ty++) {
          for (int tx = 0; tx < px.taps; tx++, terms++) {
            reach[terms] = o * plane + py.output[ty] * width + px.output[tx];
            weight[terms] = o * w.stride[0] + py.tap[ty] * w.stride[2] + px.tap[tx] * w.stride[3];
          }
        }
      }
      bool dense = g.stride[0] == 1 && g.stride[1] == 1 && dense_plane(grad_x);
      ColumnSink sink{grad_x, target, grad_x.stride[1], dense ? positions : 1};
      for (int64_t group = 0; group < g.groups; group++) {
        int64_t c0 = group * g.channels(), o0 = group * g.filters();
        int64_t x0 = n0 * grad_x.stride[0] + c0 * grad_x.stride[1];
        Operand a{element(w, o0 * w.stride[0]), w.dtype, {nullptr, w.stride[1]}, {weight, 0}};
        Operand b{image + o0 * plane, NPU_FLOAT32, {base, 0, true}, {reach, 0}};
        gemm(g.channels(), count * py.count * px.count, terms, a, b,
             [&](int64_t row, int64_t first, int64_t some, const float* values) {
               sink.store(x0, row, first, some, values);
             });
      }
    }
  }
}

void ConvGradWeightCommand::operator()() {
  Windows win(g);
  int64_t positions = g.out[0] * g.out[1], plane = win.frame.plane(), columns = g.channels() * win.taps;
  int64_t chunk = images_at_once(g.n, g.c * plane + g.o * positions, positions);
  auto* image = static_cast<float*>(scratch(0, kImage, size_t(chunk * g.c * plane) * 4));
  auto* grads = static_cast<float*>(scratch(0, kGradImage, size_t(chunk * g.o * positions) * 4));
  auto* sums = static_cast<float*>(scratch(0, kGradWeight, size_t(g.o * columns) * 4 + 4));
  TableArena arena(2 * chunk * positions + 2 * columns);
  int64_t *base = arena.take(chunk * positions), *at = arena.take(chunk * positions);
  int64_t *tap = arena.take(columns), *target = arena.take(columns);
  int64_t width = win.frame.size[1];
  fill_table(base, {chunk, g.c * plane}, {g.out[0], g.stride[0] * width}, {g.out[1], g.stride[1]});
  fill_table(at, {chunk, g.o * positions}, {1, 0}, {positions, 1});
  fill_table(tap, {g.channels(), plane}, {win.y.count, g.dilation[0] * width}, {win.x.count, g.dilation[1]});
  fill_table(target, {g.channels(), grad_w.stride[1]}, {win.y.count, grad_w.stride[2]}, {win.x.count, grad_w.stride[3]},
             win.y.first * grad_w.stride[2] + win.x.first * grad_w.stride[3]);
  Frame output{{0, 0}, {g.out[0], g.out[1]}};
  bool dense = win.taps == g.kernel[0] * g.kernel[1];
  for (int64_t j = 0; j < columns; j++) dense &= target[j] == j;

  if (win.taps < g.kernel[0] * g.kernel[1]) {  // the taps left out have gradient zero
    const float zeros[kMaxTaps] = {};
    for (int64_t i = 0; i < g.o * g.channels() * g.kernel[0]; i++) {
      int64_t ky = i % g.kernel[0], oc = i / g.kernel[0];
      int64_t first =
          oc / g.channels() * grad_w.stride[0] + oc % g.channels() * grad_w.stride[1] + ky * grad_w.stride[2];
      store_floats(zeros, g.kernel[1], grad_w.data, grad_w.dtype, first, Offsets{nullptr, grad_w.stride[3]});
    }
  }
  for (int64_t n0 = 0; n0 < g.n; n0 += chunk) {
    int64_t count = std::min(chunk, g.n - n0);
    bool first_chunk = n0 == 0, last_chunk = n0 + count == g.n;
    load_image(x, n0, count, win.frame, image);
    load_image(grad, n0, count, output, grads);
    for (int64_t group = 0; group < g.groups; group++) {
      int64_t o0 = group * g.filters();
      Operand a{grads + o0 * positions, NPU_FLOAT32, {nullptr, positions}, {at, 0, true}};
      Operand b{image + group * g.channels() * plane, NPU_FLOAT32, {tap, 0, true}, {base, 0, true}};
      gemm(g.filters(), columns, count * positions, a, b,
           [&](int64_t row, int64_t first, int64_t some, const float* values) {
             float* total = sums + (o0 + row) * columns + first;
             if (!first_chunk) {
               for (int64_t j = 0; j < some; j++) total[j] += values[j];
               values = total;
             } else if (!last_chunk) {
               std::memcpy(total, values, size_t(some) * 4);
             }
             if (!last_chunk) return;
             int64_t to = (o0 + row) * grad_w.stride[0];
             store_floats(values, some, grad_w.data, grad_w.dtype, dense ? to + first : to,
                          dense ? Offsets{nullptr, 1} : Offsets{target + first, 0});
           });
    }
  }
}

}  // namespace npu
