// nn.h: what the parts of the compute kernels share: the arguments of a call, and the kernels of nn.cl that serve
// several.
//
// Contract: what a kernel needs contiguous is copied first; results with other strides are refused, and composed.
#pragma once
#include <functional>
#include <numeric>

#include "parts.h"

namespace kit {

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
inline int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t elements(const uba_tensor &t) {
  return std::accumulate(t.sizes, t.sizes + t.rank, int64_t(1), std::multiplies<int64_t>());
}
inline bool contiguous(const uba_tensor *t) {
  int64_t step = 1;
  for (int d = t ? t->rank : 0; d-- > 0; step *= t->sizes[d])
    if (t->sizes[d] != 1 && t->strides[d] != step && elements(*t)) return false;
  return true;
}
inline void need_contiguous(std::initializer_list<const uba_tensor *> tensors) {
  for (const uba_tensor *t : tensors)
    if (!contiguous(t)) refuse("its result must be contiguous");
}
// Elements of a vector. Items of a work-group that share a row: nn.cl.
inline int64_t lanes(const Device &device, int32_t dtype) {
  return device.cpu && dtype == UBA_DTYPE_FLOAT64 ? std::max<int64_t>(device.lanes / 2, 1) : device.lanes;
}
inline size_t sharers(const Device &device) { return device.cpu ? 1 : 64; }
// The kernel `name` of nn.cl for tensors of `dtype`, with further options.
Kernel &kernel(const Call &f, const char *name, int32_t dtype, std::string more = "");
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

// Lists of places, by what they follow from: made on the host once and kept on the device, some of them. Who holds one
// may enqueue work with it.
struct Table : Buffer {
  std::shared_ptr<void> held;
};
Table table(const Call &f, const std::string &key, const std::function<std::vector<int32_t>()> &make);
template <class... Plain>
std::string key_of(char kind, const Plain &...parts) {
  std::string key(1, kind);
  (key.append(reinterpret_cast<const char *>(&parts), sizeof(parts)), ...);
  return key;
}

struct Product {  // as in nn.cl
  int64_t am, ak, az, bk, bp, bz, ym, yn, yz, cm, cn, cz;
  int32_t M, N, K, last, mtiles, tiles, by_rows, table_m, table_k, table_n;
};
struct Pack {
  int64_t xr, xc, xz, yr, yp, yz;
  int32_t rows, columns, width, panels;
};
struct Tile {
  int64_t rows, vectors, width;  // width: of its vectors together
};
Tile tile_for(const Device &device, int32_t dtype, int64_t M, int64_t N);
void product(const Call &f, int32_t dtype, Product g, const Tile &tile, int64_t batch, Buffer a, Buffer b, Buffer c,
             Buffer y, Buffer table, const char *flags, double alpha, double beta);
void pack(const Call &f, int32_t dtype, const Pack &g, int64_t batch, Buffer x, Buffer y, Buffer table,
          const char *flags);
// Contiguous tensors as they are, others copied, into `room` if there is one; an absent one stays so.
std::vector<Buffer> dense(const Call &f, std::initializer_list<const uba_tensor *> tensors, Room *room = nullptr);

// One work-group a row or channel.
template <class... Args>
void by_group(const Call &f, const char *name, int32_t dtype, const std::string &more, int64_t groups,
              const Args &...args) {
  const size_t items = sharers(f.device);
  launch(f.stream, kernel(f, name, dtype, more), Range{{size_t(groups) * items, 1, 1}, {items, 1, 1}}, args...);
}
struct Shape {
  int64_t images, channels, size;
};
inline Shape shape(const Call &f, const uba_tensor &x,
                   int normalised) {  // normalised: the argument that lists the last sizes; 0: none
  const int64_t n = elements(x);
  if (!normalised) return {x.sizes[0], x.sizes[1], n / std::max<int64_t>(x.sizes[0] * x.sizes[1], 1)};
  const int64_t *sizes = f.args[normalised].v.ints;
  const int64_t size = std::accumulate(sizes, sizes + f.args[normalised].count, int64_t(1), std::multiplies<int64_t>());
  return {1, n / std::max<int64_t>(size, 1), size};
}

void convolution(const Call &f);  // convolution.cpp
void convolution_grad(const Call &f);

}  // namespace kit
