// convolution.cpp: convolutions of one to three dimensions, transposed ones, and their gradients.
//
// Contract: each is one matrix product. A side is copied once, with its padding and with the positions that share a
// remainder of the stride together, so that what a tap of the window reads is one shifted run of memory, whatever the
// stride and the dilation. Columns of the product that lie between rows or images are computed and not stored.
#include <algorithm>
#include <array>

#include "nn.h"

namespace kit {
namespace {

using Dims = std::array<int64_t, 3>;  // depth, height, width; 1 where there are fewer
struct Plane {
  int64_t image, channel;
  Dims step;
};
// The window slides over the big side; each of its places is an element of the small one. Channels are those of a
// group.
struct Window {
  int64_t images, groups, big, small, taps;
  Dims I, O, k, s, p, d;
  Plane at_big, at_small;
};
int64_t volume(const Dims &a) { return a[0] * a[1] * a[2]; }
int64_t linear(const Dims &at, const Dims &size) { return (at[0] * size[1] + at[1]) * size[2] + at[2]; }
Dims split(int64_t i, const Dims &size) { return {i / (size[1] * size[2]), i / size[2] % size[1], i % size[2]}; }
int64_t place(const Plane &p, int64_t image, const Dims &at) {
  return image * p.image + at[0] * p.step[0] + at[1] * p.step[1] + at[2] * p.step[2];
}
template <class F>
Dims each(F &&f) {
  return {f(0), f(1), f(2)};
}
bool inside(const Dims &at, const Dims &size) {
  return at[0] >= 0 && at[1] >= 0 && at[2] >= 0 && at[0] < size[0] && at[1] < size[1] && at[2] < size[2];
}
Plane plane(const uba_tensor &t) {
  Plane p{t.strides[0], t.strides[1], {0, 0, 0}};
  for (int d = 2; d < t.rank; d++) p.step[size_t(d + 3 - t.rank)] = t.strides[d];
  return p;
}
Window window(const Call &f, const uba_tensor &big, const uba_tensor &small, const uba_tensor &weight, int first,
              int groups) {
  const int n = big.rank - 2;
  if (n < 1 || n > 3) refuse("a convolution has one to three dimensions");
  Window w{big.sizes[0], f.integer(groups), 0, 0, 1, {}, {}, {}, {}, {}, {}, plane(big), plane(small)};
  w.big = big.sizes[1] / w.groups, w.small = small.sizes[1] / w.groups;
  for (int d = 0; d < 3; d++) {
    const int from = d - (3 - n);  // among the dimensions that there are
    w.I[size_t(d)] = from < 0 ? 1 : big.sizes[2 + from], w.O[size_t(d)] = from < 0 ? 1 : small.sizes[2 + from];
    w.k[size_t(d)] = from < 0 ? 1 : weight.sizes[2 + from], w.s[size_t(d)] = from < 0 ? 1 : f.item(first, from, 1);
    w.p[size_t(d)] = from < 0 ? 0 : f.item(first + 1, from, 0),
    w.d[size_t(d)] = from < 0 ? 1 : f.item(first + 2, from, 1);
  }
  w.taps = volume(w.k);
  return w;
}
// One side, copied channel by channel into `cells` places of all images, and the product that reads it.
struct Layout {
  Dims grid, phases;   // places of an image; remainders of the stride
  int64_t cells, row;  // of a channel; row: with what lies behind it
  int64_t N;           // columns, up to the last one that counts
};
Layout layout(const Window &w, bool spread) {
  Layout l;
  for (size_t d = 0; d < 3; d++) {
    const int64_t reach = (w.k[d] - 1) * w.d[d];
    l.grid[d] = reach / w.s[d] + (spread ? (w.I[d] - 1 + w.p[d]) / w.s[d] + 1 : w.O[d]);
    l.phases[d] = spread ? 1 : std::min(w.s[d], reach + 1);
  }
  l.cells = volume(l.phases) * w.images * volume(l.grid);
  l.row = l.cells % 1024 ? l.cells : l.cells + 16;  // rows a page apart would share a set of the cache
  l.N = (w.images - 1) * volume(l.grid) + 1;
  l.N += linear(each([&](size_t d) { return spread ? (w.I[d] - 1 + w.p[d]) / w.s[d] : w.O[d] - 1; }), l.grid);
  if (l.row * std::max(w.big, w.small) >= INT32_MAX) refuse("more elements than the kernel counts");
  return l;
}
// Whether a side can be read where it is: a window of one element, at every place.
bool direct(const Window &w, const uba_tensor &x, int64_t width) {
  bool one = w.taps == 1 && contiguous(&x) && item_size(x.dtype) >= 4 && (w.groups == 1 || w.images == 1);
  for (size_t d = 0; d < 3; d++) one = one && w.s[d] == 1 && w.p[d] == 0;
  return one && volume(w.I) >= (w.images == 1 ? 1 : 4) * width;
}
// The places of the cells, of the rows of both factors, of the columns of the result: one after the other.
std::vector<int32_t> slide_tables(const Window &w, const Layout &l) {
  std::vector<int32_t> t;
  for (int64_t phase = 0; phase < volume(l.phases); phase++)
    for (int64_t image = 0; image < w.images; image++)
      for (int64_t r = 0; r < volume(l.grid); r++) {
        const Dims ph = split(phase, l.phases), at = split(r, l.grid);
        const Dims i = each([&](size_t d) { return at[d] * w.s[d] + ph[d] - w.p[d]; });
        t.push_back(inside(i, w.I) ? int32_t(place(w.at_big, image, i)) : -1);
      }
  for (int64_t c = 0; c < w.big; c++)
    for (int64_t tap = 0; tap < w.taps; tap++) {
      const Dims q = split(tap, w.k), phase = each([&](size_t d) { return q[d] * w.d[d] % w.s[d]; });
      const Dims shift = each([&](size_t d) { return q[d] * w.d[d] / w.s[d]; });
      t.push_back(int32_t(c * l.row + linear(phase, l.phases) * w.images * volume(l.grid) + linear(shift, l.grid)));
    }
  for (int64_t n = 0; n < l.N; n++) {
    const Dims o = split(n % volume(l.grid), l.grid);
    t.push_back(inside(o, w.O) ? int32_t(place(w.at_small, n / volume(l.grid), o)) : -1);
  }
  return t;
}
// The same from the small side to the big one, for the elements of the big one with one remainder; `taps` that reach
// them.
std::vector<int32_t> spread_tables(const Window &w, const Layout &l, const Dims &phase) {
  const Dims reach = each([&](size_t d) { return (w.k[d] - 1) * w.d[d] / w.s[d]; });
  std::vector<int32_t> t, from, factor;
  for (int64_t image = 0; image < w.images; image++)
    for (int64_t r = 0; r < volume(l.grid); r++) {
      const Dims at = split(r, l.grid), o = each([&](size_t d) { return at[d] - reach[d]; });
      t.push_back(inside(o, w.O) ? int32_t(place(w.at_small, image, o)) : -1);
    }
  for (int64_t c = 0; c < w.small; c++)
    for (int64_t tap = 0; tap < w.taps; tap++) {
      const Dims q = split(tap, w.k);
      if (each([&](size_t d) { return q[d] * w.d[d] % w.s[d]; }) != phase) continue;
      const Dims shift = each([&](size_t d) { return reach[d] - q[d] * w.d[d] / w.s[d]; });
      from.push_back(int32_t(c * l.row + linear(shift, l.grid))), factor.push_back(int32_t(c * w.big * w.taps + tap));
    }
  t.insert(t.end(), from.begin(), from.end()), t.insert(t.end(), factor.begin(), factor.end());
  for (int64_t n = 0; n < l.N; n++) {
    const Dims r = split(n % volume(l.grid), l.grid);
    const Dims i = each([&](size_t d) { return r[d] * w.s[d] + phase[d] - w.p[d]; });
    t.push_back(inside(i, w.I) ? int32_t(place(w.at_big, n / volume(l.grid), i)) : -1);
  }
  return t;
}
int64_t real_size(int32_t dtype) { return dtype == UBA_DTYPE_FLOAT64 ? 8 : 4; }

// y = x slid over (a convolution), or x spread out (its gradient, or a transposed one), times the weights, plus bias.
void convolve(const Call &f, Window w, bool spread, const uba_tensor &x, const uba_tensor &weight,
              const uba_tensor *bias, const uba_tensor &y) {
  if (!elements(y)) return;
  const int32_t dtype = y.dtype;
  const int64_t real = real_size(dtype), from = spread ? w.small : w.big, to = spread ? w.big : w.small;
  const Plane &at_x = spread ? w.at_small : w.at_big, &at_y = spread ? w.at_big : w.at_small;
  Layout l = layout(w, spread);
  const Tile tile = tile_for(f.device, dtype, to, l.N);
  int64_t batch = w.groups;
  const bool in_place = direct(w, x, tile.width);
  if (in_place) batch = w.groups * w.images, w.images = 1, l = layout(w, spread), l.row = volume(w.I);
  const int64_t bytes = in_place ? 0 : Room::round((from * w.groups * l.row + tile.width) * real);
  Room room(f, bytes + 2 * Room::round(elements(weight) * real));
  const Buffer b = in_place ? f.at(&x) : room.take(bytes);
  Buffer a = dense(f, {&weight}, &room)[0];
  const Buffer given = a, rows = room.memory;
  const Dims count = spread ? each([&](size_t d) { return std::min(w.s[d], w.I[d] + w.p[d]); }) : Dims{1, 1, 1};
  for (int64_t i = 0; i < volume(count); i++) {
    const Dims phase = split(i, count);
    int64_t K = w.big * w.taps;
    if (spread)
      K = w.small * volume(each([&](size_t d) {
            int64_t n = 0;
            for (int64_t q = 0; q < w.k[d]; q++) n += q * w.d[d] % w.s[d] == phase[d];
            return n;
          }));
    const Table places = table(f, key_of(spread ? 's' : 'w', w, l.row, phase),
                               [&] { return spread ? spread_tables(w, l, phase) : slide_tables(w, l); });
    if (!in_place && i == 0)
      pack(f, dtype, {at_x.channel, 0, 0, l.row, 0, 0, int32_t(from * w.groups), int32_t(l.cells), int32_t(l.cells), 1},
           1, f.at(&x), b, places, " -DTC");
    if (spread || item_size(dtype) < real) {  // rows of the weights for the product
      const Pack rows_of{spread ? w.taps : K, 1, w.small * w.big * w.taps, K, 0, to * K, int32_t(to), int32_t(K),
                         int32_t(K),          1};
      pack(f, dtype, rows_of, w.groups, given, a = rows, {places.memory, (l.cells + K) * sizeof(int32_t)},
           spread ? " -DTC" : "");
    }
    Product g{};
    g.am = K, g.ak = 1, g.az = w.groups > 1 ? to * K : 0, g.bp = tile.width;
    g.bz = w.groups > 1 ? from * l.row : at_x.image, g.ym = at_y.channel;
    g.yz = w.groups > 1 ? to * at_y.channel : at_y.image, g.cm = 1, g.cz = w.groups > 1 ? to : 0;
    g.M = int32_t(to), g.N = int32_t(l.N), g.K = int32_t(K), g.last = in_place ? int32_t(l.N - tile.width) : INT32_MAX;
    g.table_k = int32_t(l.cells), g.table_n = int32_t(l.cells + (spread ? 2 : 1) * K);
    product(f, dtype, g, tile, batch, a, b, f.at(bias), f.at(&y), places, " -DTK -DTN", 1, 1);
  }
}
// The gradient of the weights: the input's rows as above, times the other gradient with the places as rows.
void weigh(const Call &f, const Window &w, const uba_tensor &big, const uba_tensor &small, const uba_tensor &y) {
  need_contiguous({&y});
  const int32_t dtype = y.dtype;
  const int64_t real = real_size(dtype);
  const Layout l = layout(w, false);
  const int64_t K = l.N, n = w.big * w.taps;
  const bool wide = K < w.small;  // then the columns are copied, else the result is written by columns
  const int64_t M = wide ? w.small : n, N = wide ? n : w.small;
  const Tile tile = tile_for(f.device, dtype, M, N);
  const int64_t panels = ceil_div(N, tile.width), bytes = (w.big * w.groups * l.row + tile.width) * real;
  Room room(
      f, Room::round(bytes) + Room::round(w.groups * panels * tile.width * K * real) + w.groups * w.small * K * real);
  Buffer x = room.take(bytes), b = room.take(w.groups * panels * tile.width * K * real), a = wide ? room.memory : x;
  const Table places = table(f, key_of('w', w, l.row, Dims{}), [&] { return slide_tables(w, l); });
  const Buffer to_n{places.memory, uint64_t(l.cells) * sizeof(int32_t)},
      to_k{places.memory, uint64_t(l.cells + n) * sizeof(int32_t)};
  pack(f, dtype,
       {w.at_big.channel, 0, 0, l.row, 0, 0, int32_t(w.big * w.groups), int32_t(l.cells), int32_t(l.cells), 1}, 1,
       f.at(&big), x, places, " -DTC");
  Product g{};
  g.ak = 1, g.bk = tile.width, g.bp = tile.width * K, g.bz = panels * g.bp, g.yz = w.small * n;
  g.am = wide ? K : 0, g.az = wide ? w.small * K : w.big * l.row, g.ym = wide ? n : 1, g.yn = wide ? 1 : n;
  g.cm = g.ym, g.cn = g.yn, g.cz = g.yz;
  g.M = int32_t(M), g.N = int32_t(N), g.last = INT32_MAX, g.table_m = int32_t(l.cells);
  const int32_t width = int32_t(tile.width), count = int32_t(panels);
  if (wide) {
    pack(f, dtype,
         {w.at_small.channel, 0, w.small * w.at_small.channel, K, 0, g.az, int32_t(w.small), int32_t(K), int32_t(K), 1},
         w.groups, f.at(&small), a, to_k, " -DTC");
    pack(f, real == 8 ? dtype : UBA_DTYPE_FLOAT32,
         {1, 0, w.big * l.row, g.bk, g.bp, g.bz, int32_t(K), g.N, width, count}, w.groups, x, b, to_n, " -DTC");
  } else {
    pack(f, dtype,
         {0, w.at_small.channel, w.small * w.at_small.channel, g.bk, g.bp, g.bz, int32_t(K), g.N, width, count},
         w.groups, f.at(&small), b, to_k, " -DTR");
  }
  const int64_t step = item_size(dtype) < 4 ? K : 2048;  // what a cache holds, and less is lost to rounding
  for (int64_t k = 0; k < K; k += step, a.offset += uint64_t(step * real), b.offset += uint64_t(step * g.bk * real)) {
    g.K = int32_t(std::min(step, K - k));
    product(f, dtype, g, tile, w.groups, a, b, k ? f.at(&y) : Buffer{}, f.at(&y), places, wide ? "" : " -DTM", 1, 1);
  }
}
// Sums of g over everything but channels.
void sum_channels(const Call &f, const uba_tensor &g, const uba_tensor &y) {
  const Buffer from = dense(f, {&g})[0], no{};
  const Shape s = shape(f, g, 0);
  in_precision(g.dtype, [&](auto real) {
    by_group(f, "norm_grad", g.dtype, "", s.channels, from, no, no, no, no, no, no, f.at(&y), int32_t(s.images),
             int32_t(s.channels), int64_t(s.size), int32_t(0), real);
  });
}

}  // namespace

// (x, weight, bias, stride, padding, dilation, transposed, output_padding, groups)
void convolution(const Call &f) {
  const uba_tensor *x = f.in(0), *weight = f.in(1), *y = f.out(0);
  const bool spread = f.integer(6) != 0;
  convolve(f, window(f, spread ? *y : *x, spread ? *x : *y, *weight, 3, 8), spread, *x, *weight, f.in(2), *y);
}
// (grad, x, weight, stride, padding, dilation, transposed, output_padding, groups, mask)
void convolution_grad(const Call &f) {
  const uba_tensor *g = f.in(0), *x = f.in(1), *weight = f.in(2);
  const bool transposed = f.integer(6) != 0;
  const uba_tensor *big = transposed ? g : x, *small = transposed ? x : g;
  if (f.out(1)) weigh(f, window(f, *big, *small, *weight, 3, 8), *big, *small, *f.out(1));
  if (f.out(2)) sum_channels(f, *g, *f.out(2));
  if (!f.out(0)) return;
  const Window w = window(f, transposed ? *g : *f.out(0), transposed ? *f.out(0) : *g, *weight, 3, 8);
  convolve(f, w, !transposed, *g, *weight, nullptr, *f.out(0));
}

}  // namespace kit
