// nn.cpp: products, pooling, normalisation and softmax: reads their calls and launches the kernels of nn.cl. See nn.h.
#include "nn.h"

#include <algorithm>

namespace kit {
namespace {

const char kSource[] =
#include "nn.inc"
    ;

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
}  // namespace
Kernel &kernel(const Call &f, const char *name, int32_t dtype, std::string more) {
  storage_type(f.device, dtype);  // refuses what the device lacks
  if (dtype < UBA_DTYPE_FLOAT16 || dtype > UBA_DTYPE_FLOAT64) refuse("floating point only");
  if (dtype == UBA_DTYPE_FLOAT16) more += " -DHALF";
  if (dtype == UBA_DTYPE_BFLOAT16) more += " -DBF16";
  more = (dtype == UBA_DTYPE_FLOAT64 ? "-DREAL=double -DVW=" : "-DREAL=float -DVW=") +
         std::to_string(lanes(f.device, dtype)) + " -DL=" + std::to_string(sharers(f.device)) + more;
  return kernel_for(f.device, name + (' ' + more), [&] { return Recipe{defined(more) + section(name), name}; });
}

Table table(const Call &f, const std::string &key, const std::function<std::vector<int32_t>()> &make) {
  Tables &tables = f.device.parts->tables;
  std::lock_guard<std::mutex> lock(tables.lock);
  auto found = tables.known.find(key);
  if (found != tables.known.end()) return {{found->second.get(), 0}, found->second};
  std::vector<int32_t> places = make();
  places.resize(std::max<size_t>(places.size(), 1));
  const size_t bytes = places.size() * sizeof(int32_t);
  if (tables.bytes + bytes > size_t(256) << 20) tables.known.clear(), tables.bytes = 0;
  tables.bytes += bytes;
  const std::shared_ptr<void> memory = tables.known[key] = f.device.constant(places.data(), bytes);
  return {{memory.get(), 0}, memory};
}

// ------------------------------------------------------------------------------------------------ products

// A tile fills the registers of a CPU's vector unit: 32 of them if they are 16 wide, else 16. Measured with PoCL on
// AVX-512 (2 cores): 8 rows of 3 vectors do 75 to 300 GFLOP/s.
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
void product(const Call &f, int32_t dtype, Product g, const Tile &tile, int64_t batch, Buffer a, Buffer b, Buffer c,
             Buffer y, Buffer table, const char *flags, double alpha, double beta) {
  g.mtiles = int32_t(ceil_div(g.M, tile.rows)), g.tiles = int32_t(g.mtiles * ceil_div(g.N, tile.width)),
  g.by_rows = f.device.cpu;
  Kernel &k = kernel(f, "product", dtype,
                     " -DMR=" + std::to_string(tile.rows) + " -DNV=" + std::to_string(tile.vectors) + flags);
  const Range range{{size_t(g.tiles), size_t(batch), 1}, {sharers(f.device), 1, 1}};
  in_precision(dtype, [&](auto real) {
    using R = decltype(real);
    launch(f.stream, k, range, g, a, b, c, y, table, R(alpha), R(beta));
  });
}
void pack(const Call &f, int32_t dtype, const Pack &g, int64_t batch, Buffer x, Buffer y, Buffer table,
          const char *flags) {
  const Range range{{size_t(g.width), size_t(g.rows), size_t(g.panels * batch)}, {16, 16, 1}};
  launch(f.stream, kernel(f, "pack", dtype, flags), range, g, x, y, table);
}
std::vector<Buffer> dense(const Call &f, std::initializer_list<const uba_tensor *> tensors, Room *room) {
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
    const Table places = table(f, key, [&] {
      std::vector<int32_t> to(static_cast<size_t>(n));
      for (int64_t i = 0; i < n; i++)
        for (int64_t d = t->rank, left = i; d-- > 1; left /= t->sizes[d])
          to[size_t(i)] += int32_t(left % t->sizes[d] * t->strides[d]);
      return to;
    });
    const Buffer y = (room ? *room : own).take(elements(*t) * item_size(t->dtype));
    pack(f, t->dtype, {t->strides[0], 0, 0, n, 0, 0, int32_t(rows), int32_t(n), int32_t(n), 1}, 1, all.back(), y,
         places, " -DTC -DKEEP");
    all.back() = y;
  }
  return all;
}

namespace {

struct Dots {
  int64_t am, az, bn, bz, ym, yn, yz, cm, cn, cz;
  int32_t M, K;
};
struct Side {  // of a product: sizes and strides of batch, rows, columns
  int64_t size[3] = {1, 1, 1}, step[3] = {0, 0, 0};
};
Side side(const uba_tensor &t, bool column) {  // a vector is a row, or a column
  Side s;
  for (int d = t.rank, at = t.rank == 1 && column ? 1 : 2; d-- > 0; at--)
    s.size[at] = t.sizes[d], s.step[at] = t.strides[d];
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
  if (M <= 8 && (b.step[1] == 1 || K == 1) && (a.step[2] == 1 || K == 1)) {
    const Dots g{a.step[1], a.step[0], b.step[2], b.step[0], y.step[1],  y.step[2],
                 y.step[0], c.step[1], c.step[2], c.step[0], int32_t(M), int32_t(K)};
    const size_t items = sharers(f.device);
    return in_precision(out->dtype, [&](auto number) {
      using R = decltype(number);
      launch(f.stream, kernel(f, "dots", out->dtype),
             Range{{size_t(N) * items, size_t(ceil_div(M, 4)), size_t(Z)}, {items, 1, 1}}, g, at, bt, f.at(added),
             f.at(out), R(alpha), R(beta));
    });
  }
  const Tile tile = tile_for(f.device, out->dtype, M, N);
  Product g{};
  g.am = a.step[1], g.ak = a.step[2], g.az = a.step[0], g.bk = b.step[1], g.bp = tile.width, g.bz = b.step[0];
  g.ym = y.step[1], g.yn = y.step[2], g.yz = y.step[0], g.cm = c.step[1], g.cn = c.step[2], g.cz = c.step[0];
  g.M = int32_t(M), g.N = int32_t(N), g.K = int32_t(K), g.last = int32_t(N - tile.width);
  auto matrix = [](const Buffer &memory, const Side &m) { return Matrix{memory, m.step[0], m.step[1], m.step[2]}; };
  const Matmul vendors{out->dtype,      Z, M, N, K, matrix(at, a), matrix(bt, b), matrix(f.at(out), y), alpha,
                       added ? beta : 0};
  if (f.stream.takes(vendors)) {
    if (added)
      pack(f, out->dtype, {g.cm, g.cn, g.cz, g.ym, 0, g.yz, g.M, g.N, g.N, 1}, Z, f.at(added), f.at(out), {},
           " -DKEEP");
    return f.stream.matmul(vendors);
  }
  const int64_t panels = ceil_div(N, tile.width), za = a.step[0] ? Z : 1, zb = b.step[0] ? Z : 1;
  const int64_t bytes_a = za * M * K * real;
  const bool pack_a = item != real || (a.step[2] != 1 && panels > 2 && K > 1);
  const bool pack_b = item != real || b.step[2] != 1 || N < tile.width || M > 16;
  if (pack_a || pack_b) {
    Room room(f, (pack_a ? Room::round(bytes_a) : 0) + (pack_b ? zb * panels * tile.width * K * real : 0));
    if (pack_a) {
      const Buffer packed = room.take(bytes_a);
      pack(f, out->dtype, {a.step[1], a.step[2], a.step[0], K, 0, M * K, int32_t(M), int32_t(K), int32_t(K), 1}, za, at,
           packed, {}, "");
      at = packed, g.am = K, g.ak = 1, g.az = a.step[0] ? M * K : 0;
    }
    if (pack_b) {
      g.bk = tile.width, g.bp = K * tile.width, g.bz = b.step[0] ? panels * g.bp : 0,
      g.last = int32_t(panels * tile.width);
      pack(f, out->dtype,
           {b.step[1], b.step[2], b.step[0], g.bk, g.bp, g.bz, int32_t(K), int32_t(N), int32_t(tile.width),
            int32_t(panels)},
           zb, bt, room.memory, {}, "");
      bt = room.memory;
    }
  }
  product(f, out->dtype, g, tile, Z, at, bt, f.at(added), f.at(out), {}, "", alpha, beta);
}

// ------------------------------------------------------------------------------------------------ pooling

struct Pool {  // as in nn.cl
  int32_t H, W, OH, OW, kh, kw, sh, sw, ph, pw, dh, dw, count_padding, divisor, adaptive;
};
enum { kMax, kAverage, kAdaptive, kGradient = 4 };
void pool(const Call &f) {
  const bool gradient = f.tag & kGradient;
  const int mode = int(f.tag & 3), first = gradient ? 2 : 1;
  const uba_tensor *x = f.in(gradient ? 1 : 0), *g = f.in(0), *y = f.out(0), *in = gradient ? y : x,
                   *out = gradient ? g : y;
  const uba_tensor *indices = mode != kMax ? nullptr : gradient ? f.in(7) : f.out(1);
  const int r = in->rank;
  Pool p{int32_t(in->sizes[r - 2]),
         int32_t(in->sizes[r - 1]),
         int32_t(out->sizes[r - 2]),
         int32_t(out->sizes[r - 1]),
         0,
         0,
         1,
         1,
         0,
         0,
         1,
         1,
         0,
         0,
         mode == kAdaptive};
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
  const int64_t planes = elements(*in) / std::max<int64_t>(in->sizes[r - 2] * in->sizes[r - 1], 1);
  const Range range{{size_t(y->sizes[r - 1]), size_t(y->sizes[r - 2]), size_t(planes)}, {16, 4, 1}};
  if (!gradient)
    launch(f.stream, kernel(f, "pool", y->dtype), range, p, from[0], f.at(y), f.at(indices));
  else
    launch(f.stream, kernel(f, "pool_grad", y->dtype), range, p, from[0], f.at(indices), f.at(y));
}

// ------------------------------------------------------------------------------------------------ rows and channels

// What a kernel needs to know of parameters and statistics beside tensors of `dtype`.
std::string parameters(int32_t dtype, std::initializer_list<const uba_tensor *> given,
                       std::initializer_list<const uba_tensor *> stats) {
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
  const Buffer from = dense(f, {x})[0], m = training ? f.at(f.out(1)) : Buffer{},
               v = training ? f.at(f.out(2)) : Buffer{};
  in_precision(x->dtype, [&](auto real) {
    using R = decltype(real);
    by_group(f, "norm", x->dtype, more, s.channels, from, f.at(w), f.at(b), f.at(mean), f.at(var), f.at(y), m, v,
             int32_t(s.images), int32_t(s.channels), int64_t(s.size), int32_t(training), layer ? R(0) : R(f.number(6)),
             R(f.number(layer ? 4 : 7)));
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
               layer ? none : f.at(dw), layer ? none : f.at(db), int32_t(s.images), int32_t(s.channels),
               int64_t(s.size), int32_t(training), layer ? real : decltype(real)(f.number(8)));
    });
  if (!layer || (!dw && !db)) return;
  const Range range{{size_t(ceil_div(s.size, lanes(f.device, x->dtype))), 1, 1}, {sharers(f.device), 1, 1}};
  launch(f.stream, kernel(f, "norm_grad_weight", x->dtype), range, from[0], from[1], f.at(mean), f.at(stat), f.at(dw),
         f.at(db), int64_t(s.channels), int32_t(s.size));
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
  if (b)
    by_group(f, "softmax_grad", y->dtype, more, elements(*y) / size, from[0], from[1], f.at(y), int32_t(size));
  else
    by_group(f, "softmax", y->dtype, more, elements(*y) / size, from[0], f.at(y), int32_t(size));
}

template <void (*body)(const Call &)>
uba_status run(void *device, const uba_call *call, int64_t tag) {
  return guard([&] {
    const Turn turn(device, call->stream);
    body({device_of(device), turn.stream, call->args, call->arg_count, call->outputs, tag});
  });
}

}  // namespace

KernelTable nn_kernels() {
  static const uba_kernel kernels[] = {{"matmul", run<matmul>, 0},
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
