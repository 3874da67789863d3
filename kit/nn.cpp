// nn.cpp: products, convolution, pooling, normalisation and softmax: reads their calls and launches the kernels of nn.cl.
//
// Contract: what a kernel needs contiguous is copied first; results with other strides are refused, and composed. A convolution
// is one matrix product: its input is copied once, with its padding and with the positions that share a remainder of
// the stride together, so that the input of every tap of the window is one shifted run of memory, whatever the stride and
// the dilation. Columns of the product that lie between rows or images are computed and not stored.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>

#include "parts.h"

namespace kit {
namespace {

const char kSource[] =
#include "nn.inc"
    ;

struct Call {
  Device &device;
  Stream &stream;
  const uba_value *args;
  int count;
  uba_tensor *outputs;
  int64_t tag;
  const uba_tensor *in(int i) const { return i < count && args[i].kind == UBA_TENSOR ? args[i].v.tensor : nullptr; }
  const uba_tensor *out(int i) const { return outputs[i].dtype ? &outputs[i] : nullptr; }
  int64_t integer(int i) const { return i < count && args[i].kind == UBA_INT ? args[i].v.i : 0; }
  double number(int i) const { return args[i].kind == UBA_DOUBLE ? args[i].v.d : double(integer(i)); }
  int64_t item(int i, int d, int64_t none) const {  // of a list, which may have one number for all dimensions
    const uba_value &v = args[i];
    return v.kind == UBA_INT_LIST && v.count ? v.v.ints[v.count > 1 ? d : 0] : none;
  }
  Buffer at(const uba_tensor *t) const { return t && t->data ? buffer_of(device, *t) : Buffer{}; }
};
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
int64_t elements(const uba_tensor &t) {
  return std::accumulate(t.sizes, t.sizes + t.rank, int64_t(1), std::multiplies<int64_t>());
}
bool contiguous(const uba_tensor *t) {
  int64_t step = 1;
  for (int d = t ? t->rank : 0; d-- > 0; step *= t->sizes[d])
    if (t->sizes[d] != 1 && t->strides[d] != step && elements(*t)) return false;
  return true;
}
void need_contiguous(std::initializer_list<const uba_tensor *> tensors) {
  for (const uba_tensor *t : tensors)
    if (!contiguous(t)) refuse("its result must be contiguous");
}
// Elements of a vector. Items of a work-group that share a row: nn.cl.
int64_t lanes(const Device &device, int32_t dtype) {
  return device.cpu && dtype == UBA_DTYPE_FLOAT64 ? std::max<int64_t>(device.lanes / 2, 1) : device.lanes;
}
size_t sharers(const Device &device) { return device.cpu ? 1 : 64; }
std::string section(const std::string &name) {  // of the source: see nn.cl
  const std::string all = kSource;
  size_t at = all.find("//:"), end = at;
  std::string text = all.substr(0, at);
  for (; at != std::string::npos; at = end) {
    end = all.find("//:", at + 3);
    const std::string part = all.substr(at, end - at), line = part.substr(3, part.find('\n') - 3) + ' ';
    if (line.find(' ' + name + ' ') != std::string::npos) text += part;
  }
  return text;
}
std::string defined(const std::string &flags) {  // "-DX=1 -DY", as text
  std::string text;
  for (size_t at = 0, end; at < flags.size(); at = end + 1) {
    end = std::min(flags.find(' ', at), flags.size());
    const std::string flag = flags.substr(at, end - at);
    const size_t is = flag.find('=');
    text += "#define " + flag.substr(2, is - 2) + (is < flag.size() ? ' ' + flag.substr(is + 1) : " 1") + '\n';
  }
  return text;
}
Kernel &kernel(const Call &f, const char *name, int32_t dtype, std::string more = "") {
  storage_type(f.device, dtype);  // refuses what the device lacks
  if (dtype < UBA_DTYPE_FLOAT16 || dtype > UBA_DTYPE_FLOAT64) refuse("floating point only");
  if (dtype == UBA_DTYPE_FLOAT16) more += " -DHALF";
  if (dtype == UBA_DTYPE_BFLOAT16) more += " -DBF16";
  more = (dtype == UBA_DTYPE_FLOAT64 ? "-DREAL=double -DVW=" : "-DREAL=float -DVW=") +
         std::to_string(lanes(f.device, dtype)) + " -DL=" + std::to_string(sharers(f.device)) + more;
  return kernel_for(f.device, name + (' ' + more), [&] { return Recipe{defined(more) + section(name), name}; });
}
// What a kernel needs to know of parameters and statistics beside tensors of `dtype`.
std::string parameters(int32_t dtype, std::initializer_list<const uba_tensor *> given, std::initializer_list<const uba_tensor *> stats) {
  const int32_t real = dtype == UBA_DTYPE_FLOAT64 ? dtype : UBA_DTYPE_FLOAT32;
  int32_t seen = 0;
  for (const uba_tensor *t : given) {
    if (t && ((seen && t->dtype != seen) || (t->dtype != dtype && t->dtype != real)))
      refuse("its parameters must have one dtype: the input's, or float32");
    if (t) seen = t->dtype;
  }
  for (const uba_tensor *t : stats)
    if (t && t->dtype != real) refuse("its statistics must be float32, or float64 for float64");
  need_contiguous(given), need_contiguous(stats);
  return seen && seen != dtype ? " -DPLAIN" : "";
}
template <class F>
void in_precision(int32_t dtype, F &&body) {  // numbers go to a kernel in the type that it computes in
  dtype == UBA_DTYPE_FLOAT64 ? body(double()) : body(float());
}

// Scratch memory of a call, shared out.
struct Room {
  Buffer memory;
  explicit Room(const Call &f, int64_t bytes) : memory(f.stream.scratch(uint64_t(bytes + 256))) {}
  static int64_t round(int64_t bytes) { return (bytes + 255) / 256 * 256; }
  Buffer take(int64_t bytes) {
    const Buffer taken = memory;
    return memory.offset += uint64_t(round(bytes)), taken;
  }
};

Buffer table(const Call &f, const std::string &key, const std::function<std::vector<int32_t>()> &make) {
  Tables &tables = f.device.parts->tables;
  std::lock_guard<std::mutex> lock(tables.lock);
  auto found = tables.known.find(key);
  if (found != tables.known.end()) return {found->second.get(), 0};
  if (tables.known.size() >= 256) tables.before = std::move(tables.known), tables.known.clear();
  std::shared_ptr<void> &memory = tables.known[key];
  if (auto old = tables.before.find(key); old != tables.before.end()) {
    memory = old->second;
  } else {
    std::vector<int32_t> places = make();
    places.resize(std::max<size_t>(places.size(), 1));
    memory = f.device.constant(places.data(), places.size() * sizeof(int32_t));
  }
  return {memory.get(), 0};
}
template <class... Plain>
std::string key_of(char kind, const Plain &...parts) {
  std::string key(1, kind);
  (key.append(reinterpret_cast<const char *>(&parts), sizeof(parts)), ...);
  return key;
}

// ------------------------------------------------------------------------------------------------ products

struct Product {  // as in nn.cl
  int64_t am, ak, az, bk, bp, bz, ym, yn, yz, cm, cn, cz;
  int32_t M, N, K, last, mtiles, tiles, by_rows, table_m, table_k, table_n;
};
struct Pack {
  int64_t xr, xc, xz, yr, yp, yz;
  int32_t rows, columns, width, panels;
};
struct Dots {
  int64_t am, az, bn, bz, ym, yn, yz, cm, cn, cz;
  int32_t M, K;
};
struct Tile {
  int64_t rows, vectors, width;  // width: of its vectors together
};
// A tile fills the registers of a CPU's vector unit: 32 of them if they are 16 wide, else 16. Measured with PoCL on AVX-512
// (2 cores): 8 rows of 3 vectors do 200 to 300 GFLOP/s, CLBlast 1.5.3 (its parameters for CPUs) some 10.
Tile tile_for(const Device &device, int32_t dtype, int64_t M, int64_t N) {
  const int64_t lane = lanes(device, dtype);
  static const Tile wide[] = {{8, 3, 0}, {6, 4, 0}, {12, 2, 0}}, narrow[] = {{4, 3, 0}, {6, 2, 0}}, gpu[] = {{8, 1, 0}};
  const Tile *all = !device.cpu ? gpu : device.lanes >= 16 ? wide : narrow;
  const int count = !device.cpu ? 1 : device.lanes >= 16 ? 3 : 2;
  Tile best{};
  int64_t least = 0;
  for (int i = 0; i < count; i++) {
    const Tile t{all[i].rows, all[i].vectors, all[i].vectors * lane};
    const int64_t work = ceil_div(M, t.rows) * t.rows * ceil_div(N, t.width) * t.width;
    if (!i || work < least) best = t, least = work;
  }
  return best;
}
void product(const Call &f, int32_t dtype, Product g, const Tile &tile, int64_t batch, Buffer a, Buffer b, Buffer c, Buffer y,
             Buffer table, const char *flags, double alpha, double beta) {
  g.mtiles = int32_t(ceil_div(g.M, tile.rows)), g.tiles = int32_t(g.mtiles * ceil_div(g.N, tile.width)), g.by_rows = f.device.cpu;
  Kernel &k = kernel(f, "product", dtype,
                     " -DMR=" + std::to_string(tile.rows) + " -DNV=" + std::to_string(tile.vectors) + flags);
  const Range range{{size_t(g.tiles), size_t(batch), 1}, {sharers(f.device), 1, 1}};
  in_precision(dtype, [&](auto real) {
    using R = decltype(real);
    launch(f.stream, k, range, g, a, b, c, y, table, R(alpha), R(beta));
  });
}
void pack(const Call &f, int32_t dtype, const Pack &g, int64_t batch, Buffer x, Buffer y, Buffer table, const char *flags) {
  const Range range{{size_t(g.width), size_t(g.rows), size_t(g.panels * batch)}, {16, 16, 1}};
  launch(f.stream, kernel(f, "pack", dtype, flags), range, g, x, y, table);
}
// Contiguous tensors as they are, others copied; an absent one stays so.
std::vector<Buffer> dense(const Call &f, std::initializer_list<const uba_tensor *> tensors, Room *room = nullptr) {
  int64_t bytes = 0;
  for (const uba_tensor *t : tensors)
    if (!contiguous(t)) bytes += Room::round(elements(*t) * item_size(t->dtype));
  Room own = room || !bytes ? Room{f, 0} : Room(f, bytes);
  std::vector<Buffer> all;
  for (const uba_tensor *t : tensors) {
    all.push_back(f.at(t));
    if (contiguous(t)) continue;
    const int64_t rows = t->sizes[0], n = elements(*t) / rows;
    std::string key = "d";
    key.append(reinterpret_cast<const char *>(t->sizes + 1), size_t(t->rank - 1) * 8);
    key.append(reinterpret_cast<const char *>(t->strides + 1), size_t(t->rank - 1) * 8);
    const Buffer places = table(f, key, [&] {
      std::vector<int32_t> to(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; i++)
        for (int64_t d = t->rank, left = i; d-- > 1; left /= t->sizes[d])
          to[size_t(i)] += int32_t(left % t->sizes[d] * t->strides[d]);
      return to;
    });
    const Buffer y = (room ? *room : own).take(elements(*t) * item_size(t->dtype));
    pack(f, t->dtype, {t->strides[0], 0, 0, n, 0, 0, int32_t(rows), int32_t(n), int32_t(n), 1}, 1, all.back(), y, places,
         " -DTC -DKEEP");
    all.back() = y;
  }
  return all;
}

// One work-group a row or channel.
template <class... Args>
void by_group(const Call &f, const char *name, int32_t dtype, const std::string &more, int64_t groups, const Args &...args) {
  const size_t items = sharers(f.device);
  launch(f.stream, kernel(f, name, dtype, more), Range{{size_t(groups) * items, 1, 1}, {items, 1, 1}}, args...);
}
struct Shape {
  int64_t images, channels, size;
};
Shape shape(const Call &f, const uba_tensor &x, int normalised) {  // normalised: the argument that lists the last sizes; 0: none
  const int64_t n = elements(x);
  if (!normalised) return {x.sizes[0], x.sizes[1], n / std::max<int64_t>(x.sizes[0] * x.sizes[1], 1)};
  const int64_t *sizes = f.args[normalised].v.ints;
  const int64_t size = std::accumulate(sizes, sizes + f.args[normalised].count, int64_t(1), std::multiplies<int64_t>());
  return {1, n / std::max<int64_t>(size, 1), size};
}

struct Side {  // of a product: sizes and strides of batch, rows, columns
  int64_t size[3] = {1, 1, 1}, step[3] = {0, 0, 0};
};
Side side(const uba_tensor &t, bool column) {  // a vector is a row, or a column
  Side s;
  for (int d = t.rank, at = t.rank == 1 && column ? 1 : 2; d-- > 0; at--) s.size[at] = t.sizes[d], s.step[at] = t.strides[d];
  return s;
}
Side transposed(Side s) { return std::swap(s.size[1], s.size[2]), std::swap(s.step[1], s.step[2]), s; }

// (a, b) or (c, a, b, beta, alpha): mm, bmm, addmm, baddbmm, mv, addmv, dot.
void matmul(const Call &f) {
  const int plus = f.count > 2;
  const uba_tensor *out = f.out(0);
  const double beta = plus ? f.number(3) : 0, alpha = plus ? f.number(4) : 1;
  const uba_tensor *left = f.in(plus), *right = f.in(plus + 1), *added = beta != 0 ? f.in(0) : nullptr;
  if (!left || !right || (plus && !f.in(0))) refuse("its factors must be on the device");
  Side a = side(*left, false), b = side(*right, true), y = side(*out, right->rank == 1), c;
  if (added) c = side(*added, right->rank == 1);
  Buffer at = f.at(left), bt = f.at(right);
  const int64_t K = a.size[2], item = item_size(out->dtype), real = out->dtype == UBA_DTYPE_FLOAT64 ? 8 : 4;
  if (b.size[2] == 1 && a.size[1] > 1) {  // a column is a row of the product of the transposed factors
    std::swap(at, bt), std::swap(a, b), a = transposed(a), b = transposed(b), y = transposed(y), c = transposed(c);
  }
  const int64_t Z = y.size[0], M = y.size[1], N = y.size[2];
  if (!Z || !M || !N) return;
  for (int d = 0; d < 3; d++)
    if (c.size[d] == 1) c.step[d] = 0;
  for (Side *s : {&a, &b})
    if (s->size[0] == 1) s->step[0] = 0;
  auto matrix = [](const Buffer &memory, const Side &m) { return Matrix{memory, m.step[0], m.step[1], m.step[2]}; };
  if (f.stream.matmul({out->dtype, Z, M, N, K, matrix(at, a), matrix(bt, b), matrix(f.at(added), c),
                       matrix(f.at(out), y), alpha, beta}))
    return;
  if (M <= 8 && (b.step[1] == 1 || K == 1) && (a.step[2] == 1 || K == 1)) {
    const Dots g{a.step[1], a.step[0], b.step[2], b.step[0], y.step[1], y.step[2], y.step[0],
                 c.step[1], c.step[2], c.step[0], int32_t(M), int32_t(K)};
    const size_t items = sharers(f.device);
    return in_precision(out->dtype, [&](auto number) {
      using R = decltype(number);
      launch(f.stream, kernel(f, "dots", out->dtype), Range{{size_t(N) * items, size_t(ceil_div(M, 4)), size_t(Z)}, {items, 1, 1}},
             g, at, bt, f.at(added), f.at(out), R(alpha), R(beta));
    });
  }
  const Tile tile = tile_for(f.device, out->dtype, M, N);
  const int64_t panels = ceil_div(N, tile.width);
  const bool pack_a = item != real || (a.step[2] != 1 && panels > 2 && K > 1);
  const bool pack_b = item != real || b.step[2] != 1 || N < tile.width || M > 16;
  const int64_t za = a.step[0] ? Z : 1, zb = b.step[0] ? Z : 1, bytes_a = za * M * K * real;
  Product g{a.step[1], a.step[2], a.step[0], b.step[1], tile.width, b.step[0], y.step[1], y.step[2], y.step[0],
            c.step[1], c.step[2], c.step[0], int32_t(M), int32_t(N), int32_t(K), int32_t(N - tile.width), 0, 0, 0, 0, 0, 0};
  if (pack_a || pack_b) {
    Room room(f, (pack_a ? Room::round(bytes_a) : 0) + (pack_b ? zb * panels * tile.width * K * real : 0));
    if (pack_a) {
      const Buffer packed = room.take(bytes_a);
      pack(f, out->dtype, {a.step[1], a.step[2], a.step[0], K, 0, M * K, int32_t(M), int32_t(K), int32_t(K), 1}, za, at, packed, {}, "");
      at = packed, g.am = K, g.ak = 1, g.az = a.step[0] ? M * K : 0;
    }
    if (pack_b) {
      g.bk = tile.width, g.bp = K * tile.width, g.bz = b.step[0] ? panels * g.bp : 0, g.last = int32_t(panels * tile.width);
      pack(f, out->dtype, {b.step[1], b.step[2], b.step[0], g.bk, g.bp, g.bz, int32_t(K), int32_t(N), int32_t(tile.width), int32_t(panels)},
           zb, bt, room.memory, {}, "");
      bt = room.memory;
    }
  }
  product(f, out->dtype, g, tile, Z, at, bt, f.at(added), f.at(out), {}, "", alpha, beta);
}

// ------------------------------------------------------------------------------------------------ convolution

using Dims = std::array<int64_t, 3>;  // depth, height, width; 1 where there are fewer
struct Plane {
  int64_t image, channel;
  Dims step;
};
// The window slides over the big side; each of its places is an element of the small one. Channels are those of a group.
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
Window window(const Call &f, const uba_tensor &big, const uba_tensor &small, const uba_tensor &weight, int first, int groups) {
  const int n = big.rank - 2;
  if (n < 1 || n > 3) refuse("a convolution has one to three dimensions");
  Window w{big.sizes[0], f.integer(groups), 0, 0, 1, {}, {}, {}, {}, {}, {}, plane(big), plane(small)};
  w.big = big.sizes[1] / w.groups, w.small = small.sizes[1] / w.groups;
  for (int d = 0; d < 3; d++) {
    const int from = d - (3 - n);  // among the dimensions that there are
    w.I[size_t(d)] = from < 0 ? 1 : big.sizes[2 + from], w.O[size_t(d)] = from < 0 ? 1 : small.sizes[2 + from];
    w.k[size_t(d)] = from < 0 ? 1 : weight.sizes[2 + from], w.s[size_t(d)] = from < 0 ? 1 : f.item(first, from, 1);
    w.p[size_t(d)] = from < 0 ? 0 : f.item(first + 1, from, 0), w.d[size_t(d)] = from < 0 ? 1 : f.item(first + 2, from, 1);
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
// The same from the small side to the big one, for the elements of the big one with one remainder; `taps` that reach them.
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
void convolve(const Call &f, Window w, bool spread, const uba_tensor &x, const uba_tensor &weight, const uba_tensor *bias,
              const uba_tensor &y) {
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
    const Buffer places = table(f, key_of(spread ? 's' : 'w', w, l.row, phase),
                                [&] { return spread ? spread_tables(w, l, phase) : slide_tables(w, l); });
    if (!in_place && i == 0)
      pack(f, dtype, {at_x.channel, 0, 0, l.row, 0, 0, int32_t(from * w.groups), int32_t(l.cells), int32_t(l.cells), 1}, 1, f.at(&x), b,
           places, " -DTC");
    if (spread || item_size(dtype) < real) {  // rows of the weights for the product
      const Pack rows_of{spread ? w.taps : K, 1, w.small * w.big * w.taps, K, 0, to * K, int32_t(to), int32_t(K), int32_t(K), 1};
      pack(f, dtype, rows_of, w.groups, given, a = rows, {places.memory, (l.cells + K) * sizeof(int32_t)}, spread ? " -DTC" : "");
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
  Room room(f, Room::round(bytes) + Room::round(w.groups * panels * tile.width * K * real) + w.groups * w.small * K * real);
  Buffer x = room.take(bytes), b = room.take(w.groups * panels * tile.width * K * real), a = wide ? room.memory : x;
  const Buffer places = table(f, key_of('w', w, l.row, Dims{}), [&] { return slide_tables(w, l); });
  const Buffer to_n{places.memory, uint64_t(l.cells) * sizeof(int32_t)}, to_k{places.memory, uint64_t(l.cells + n) * sizeof(int32_t)};
  pack(f, dtype, {w.at_big.channel, 0, 0, l.row, 0, 0, int32_t(w.big * w.groups), int32_t(l.cells), int32_t(l.cells), 1}, 1, f.at(&big), x,
       places, " -DTC");
  Product g{};
  g.ak = 1, g.bk = tile.width, g.bp = tile.width * K, g.bz = panels * g.bp, g.yz = w.small * n;
  g.am = wide ? K : 0, g.az = wide ? w.small * K : w.big * l.row, g.ym = wide ? n : 1, g.yn = wide ? 1 : n;
  g.cm = g.ym, g.cn = g.yn, g.cz = g.yz;
  g.M = int32_t(M), g.N = int32_t(N), g.last = INT32_MAX, g.table_m = int32_t(l.cells);
  const int32_t width = int32_t(tile.width), count = int32_t(panels);
  if (wide) {
    pack(f, dtype, {w.at_small.channel, 0, w.small * w.at_small.channel, K, 0, g.az, int32_t(w.small), int32_t(K), int32_t(K), 1}, w.groups,
         f.at(&small), a, to_k, " -DTC");
    pack(f, real == 8 ? dtype : UBA_DTYPE_FLOAT32, {1, 0, w.big * l.row, g.bk, g.bp, g.bz, int32_t(K), g.N, width, count}, w.groups, x, b,
         to_n, " -DTC");
  } else {
    pack(f, dtype, {0, w.at_small.channel, w.small * w.at_small.channel, g.bk, g.bp, g.bz, int32_t(K), g.N, width, count}, w.groups,
         f.at(&small), b, to_k, " -DTR");
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
    by_group(f, "norm_grad", g.dtype, "", s.channels, from, no, no, no, no, no, no, f.at(&y), int32_t(s.images), int32_t(s.channels),
             int64_t(s.size), int32_t(0), real);
  });
}

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

// ------------------------------------------------------------------------------------------------ pooling

struct Pool {  // as in nn.cl
  int32_t H, W, OH, OW, kh, kw, sh, sw, ph, pw, dh, dw, count_padding, divisor, adaptive;
};
enum { kMax, kAverage, kAdaptive, kGradient = 4 };
void pool(const Call &f) {
  const bool gradient = f.tag & kGradient;
  const int mode = int(f.tag & 3), first = gradient ? 2 : 1;
  const uba_tensor *x = f.in(gradient ? 1 : 0), *g = f.in(0), *y = f.out(0), *in = gradient ? y : x, *out = gradient ? g : y;
  const uba_tensor *indices = mode != kMax ? nullptr : gradient ? f.in(7) : f.out(1);
  const int r = in->rank;
  Pool p{int32_t(in->sizes[r - 2]), int32_t(in->sizes[r - 1]), int32_t(out->sizes[r - 2]), int32_t(out->sizes[r - 1]),
         0, 0, 1, 1, 0, 0, 1, 1, 0, 0, mode == kAdaptive};
  if (mode != kAdaptive) {
    p.kh = int32_t(f.item(first, 0, 1)), p.kw = int32_t(f.item(first, 1, 1));
    p.sh = int32_t(f.item(first + 1, 0, p.kh)), p.sw = int32_t(f.item(first + 1, 1, p.kw));
    p.ph = int32_t(f.item(first + 2, 0, 0)), p.pw = int32_t(f.item(first + 2, 1, 0));
  }
  if (mode == kMax) p.dh = int32_t(f.item(first + 3, 0, 1)), p.dw = int32_t(f.item(first + 3, 1, 1));
  if (mode == kAverage) p.count_padding = f.integer(first + 4) != 0, p.divisor = int32_t(f.integer(first + 5));
  need_contiguous({y, gradient ? nullptr : indices});
  const std::vector<Buffer> from = dense(f, {gradient ? g : x});
  if (gradient && !contiguous(indices)) refuse("its indices must be contiguous");
  const Dims size{elements(*in) / std::max<int64_t>(in->sizes[r - 2] * in->sizes[r - 1], 1), y->sizes[r - 2], y->sizes[r - 1]};
  const Range range{{size_t(size[2]), size_t(size[1]), size_t(size[0])}, {16, 4, 1}};
  if (!gradient) launch(f.stream, kernel(f, "pool", y->dtype), range, p, from[0], f.at(y), f.at(indices));
  else launch(f.stream, kernel(f, "pool_grad", y->dtype), range, p, from[0], f.at(indices), f.at(y));
}

// ------------------------------------------------------------------------------------------------ rows and channels

// Batch norm: (x, weight, bias, mean, var, training, momentum, eps). Layer norm: (x, shape, weight, bias, eps).
enum { kBatch, kLayer };
void norm(const Call &f) {
  const bool layer = f.tag == kLayer, training = layer || f.integer(5) != 0;
  const uba_tensor *x = f.in(0), *w = f.in(1 + layer), *b = f.in(2 + layer), *y = f.out(0);
  const uba_tensor *mean = layer ? nullptr : f.in(3), *var = layer ? nullptr : f.in(4);
  if (!elements(*x)) refuse("nothing to normalise");
  const std::string more = parameters(x->dtype, {w, b, mean, var}, {f.out(1), f.out(2)}) + (layer ? " -DROWS" : "");
  if (layer && more != " -DROWS") refuse("its parameters must have its dtype");
  need_contiguous({y});
  const Shape s = shape(f, *x, layer ? 1 : 0);
  const Buffer from = dense(f, {x})[0], m = training ? f.at(f.out(1)) : Buffer{}, v = training ? f.at(f.out(2)) : Buffer{};
  in_precision(x->dtype, [&](auto real) {
    using R = decltype(real);
    by_group(f, "norm", x->dtype, more, s.channels, from, f.at(w), f.at(b), f.at(mean), f.at(var), f.at(y), m, v, int32_t(s.images),
             int32_t(s.channels), int64_t(s.size), int32_t(training), layer ? R(0) : R(f.number(6)), R(f.number(layer ? 4 : 7)));
  });
}
// Batch norm: (grad, x, weight, running mean and var, saved mean and inverse deviation, training, eps, mask).
// Layer norm: (grad, x, shape, mean, inverse deviation, weight, bias, mask).
void norm_grad(const Call &f) {
  const bool layer = f.tag == kLayer, training = layer || f.integer(7) != 0;
  const uba_tensor *x = f.in(1), *w = f.in(layer ? 5 : 2), *y = f.out(0), *dw = f.out(1), *db = f.out(2);
  const uba_tensor *mean = f.in(layer ? 3 : training ? 5 : 3), *stat = f.in(layer ? 4 : training ? 6 : 4);
  if (!mean || !stat || !elements(*x)) refuse("it needs its statistics");
  const std::string more = parameters(x->dtype, {w, dw, db}, {mean, stat}) + (layer ? " -DROWS" : "");
  if (layer && more != " -DROWS") refuse("its parameters must have its dtype");
  need_contiguous({y});
  const Shape s = shape(f, *x, layer ? 2 : 0);
  const std::vector<Buffer> from = dense(f, {f.in(0), x});
  const Buffer none{};
  if (y || !layer)
    in_precision(x->dtype, [&](auto real) {
      by_group(f, "norm_grad", x->dtype, more, s.channels, from[0], from[1], f.at(w), f.at(mean), f.at(stat), f.at(y),
               layer ? none : f.at(dw), layer ? none : f.at(db), int32_t(s.images), int32_t(s.channels), int64_t(s.size),
               int32_t(training), layer ? real : decltype(real)(f.number(8)));
    });
  if (!layer || (!dw && !db)) return;
  const Range range{{size_t(ceil_div(s.size, lanes(f.device, x->dtype))), 1, 1}, {sharers(f.device), 1, 1}};
  launch(f.stream, kernel(f, "norm_grad_weight", x->dtype), range, from[0], from[1], f.at(mean), f.at(stat), f.at(dw), f.at(db),
         int64_t(s.channels), int32_t(s.size));
}
// (x, dim, ...), or (grad, y, dim, ...)
void softmax(const Call &f) {
  const uba_tensor *a = f.in(0), *b = f.in(1), *y = f.out(0);
  const int64_t dim = f.integer(b ? 2 : 1), rank = std::max(a->rank, 1), at = dim < 0 ? dim + rank : dim;
  if (at != rank - 1 || a->dtype != y->dtype) refuse("the kernel takes the last dimension, in the dtype of the result");
  need_contiguous({y});
  const int64_t size = a->rank ? a->sizes[at] : 1;
  if (!elements(*y)) return;
  const std::string more = f.tag ? " -DLOG" : "";
  const std::vector<Buffer> from = dense(f, {a, b});
  if (b) by_group(f, "softmax_grad", y->dtype, more, elements(*y) / size, from[0], from[1], f.at(y), int32_t(size));
  else by_group(f, "softmax", y->dtype, more, elements(*y) / size, from[0], f.at(y), int32_t(size));
}

template <void (*body)(const Call &)>
uba_status run(void *device, const uba_call *call, int64_t tag) {
  return guard([&] {
    body({device_of(device), stream_of(device, call->stream), call->args, call->arg_count, call->outputs, tag});
  });
}

}  // namespace

KernelTable nn_kernels() {
  static const uba_kernel kernels[] = {
      {"matmul", run<matmul>, 0},
      {"convolution", run<convolution>, 0},
      {"convolution_grad", run<convolution_grad>, 0},
      {"max_pool", run<pool>, kMax},
      {"max_pool_grad", run<pool>, kMax | kGradient},
      {"avg_pool", run<pool>, kAverage},
      {"avg_pool_grad", run<pool>, kAverage | kGradient},
      {"adaptive_avg_pool", run<pool>, kAdaptive},
      {"adaptive_avg_pool_grad", run<pool>, kAdaptive | kGradient},
      {"batch_norm", run<norm>, kBatch},
      {"batch_norm_grad", run<norm_grad>, kBatch},
      {"layer_norm", run<norm>, kLayer},
      {"layer_norm_grad", run<norm_grad>, kLayer},
      {"softmax", run<softmax>, 0},
      {"log_softmax", run<softmax>, 1}};
  return {kernels, int64_t(sizeof(kernels) / sizeof(kernels[0]))};
}

}  // namespace kit
