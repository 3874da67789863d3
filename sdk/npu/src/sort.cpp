// sort.cpp: npu_v3_sort: a stable sort along one dimension, and where each value came from.
//
// Contract: the header's. A line's elements become unsigned keys that compare as the elements do, -0 as 0 and every NaN
// as the greatest; with the place as the second criterion any sort is stable. The values are then moved as they are.
#include <algorithm>
#include <cmath>

#include "lines.h"

namespace npu {
namespace {

constexpr int kItemSlot = 0;  // of scratch()

struct Sort {
  bool descending;
  Lines<3> lines;  // x, values, indices
};
struct Item {
  uint64_t key;
  int64_t place;
  bool operator<(const Item& other) const { return key != other.key ? key < other.key : place < other.place; }
};

uint64_t key_of(int64_t x) { return static_cast<uint64_t>(x) ^ (uint64_t(1) << 63); }
uint64_t key_of(double x) {
  if (x != x) return ~uint64_t(0);
  const double plain = x + 0.0;  // -0 becomes 0
  uint64_t bits;
  std::memcpy(&bits, &plain, sizeof(bits));
  return bits >> 63 ? ~bits : bits | uint64_t(1) << 63;
}
uint64_t key_of(float x) { return key_of(static_cast<double>(x)); }

template <class T>
void keys_of(const Loop& loop, const Operand& x, Compute compute, bool descending, Item* items) {
  Block raw, buffer;
  for (int64_t at = 0; at < loop.n; at += kBlock) {
    const int64_t n = loop.n - at < kBlock ? loop.n - at : kBlock;
    const T* values = static_cast<const T*>(fetch(loop, x, at, n, compute, &raw, &buffer));
    for (int64_t i = 0; i < n; i++) {
      const uint64_t key = key_of(values[i]);
      items[at + i] = {descending ? ~key : key, at + i};
    }
  }
}

template <class T>
void move(const Operand& from, const Operand& to, const Item* items, int64_t n) {
  const T* x = reinterpret_cast<const T*>(from.data);
  T* y = reinterpret_cast<T*>(to.data);
  for (int64_t i = 0; i < n; i++) y[i * to.stride[0]] = x[items[i].place * from.stride[0]];
}

void run(const Sort& s) {
  const Loop loop = s.lines.loop(0);
  const int64_t n = loop.n;
  parallel_for(s.lines.outer.n, kGrain / (8 * n) + 1, [&](int64_t begin, int64_t end, int thread) {
    Item* items = static_cast<Item*>(scratch(thread, kItemSlot, static_cast<size_t>(n) * sizeof(Item)));
    for (int64_t k = begin; k < end; k++) {
      const Operand x = s.lines.line(0, k), values = s.lines.line(1, k), index = s.lines.line(2, k);
      const Compute compute = compute_of(x.dtype);
      auto* keys = compute == Compute::f32   ? keys_of<float>
                   : compute == Compute::f64 ? keys_of<double>
                                             : keys_of<int64_t>;
      keys(loop, x, compute, s.descending, items);
      std::sort(items, items + n);
      auto* mover = x.size == 1   ? move<uint8_t>
                    : x.size == 2 ? move<uint16_t>
                    : x.size == 4 ? move<uint32_t>
                                  : move<uint64_t>;
      mover(x, values, items, n);
      int64_t* place = reinterpret_cast<int64_t*>(index.data);
      for (int64_t i = 0; i < n; i++) place[i * index.stride[0]] = items[i].place;
    }
  });
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_sort(npu_stream_t stream, const npu_tensor_t* x, int32_t dim, int32_t descending,
                                    const npu_tensor_t* values, const npu_tensor_t* indices) {
  static const char fn[] = "npu_v3_sort";
  View vx, vv, vi;
  NPU_TRY(resolve(stream, x, kAll, Engine::compute, false, fn, "x", &vx));
  NPU_TRY(resolve(stream, values, kAll, Engine::compute, false, fn, "values", &vv));
  NPU_TRY(resolve(stream, indices, mask(NPU_INT64), Engine::compute, false, fn, "indices", &vi));
  NPU_TRY(check_dim(fn, dim, vx));
  NPU_TRY(same_dtype(fn, "values", vv, vx.dtype));
  NPU_TRY(same_shape(fn, "values", vv, vx));
  NPU_TRY(same_shape(fn, "indices", vi, vx));
  NPU_TRY(writable(fn, "values", vv));
  NPU_TRY(writable(fn, "indices", vi));
  const double n = static_cast<double>(vx.numel());
  if (n == 0) return NPU_STATUS_SUCCESS;
  if (vx.data == vv.data)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: values: is the memory of x, expected another: x is read to the end", fn);
  const Sort command{descending != 0, make_lines({&vx, &vv, &vi}, dim)};
  const double steps = std::ceil(std::log2(static_cast<double>(vx.shape[dim]) + 1));
  const Work work = vx.dtype == NPU_FLOAT64
                        ? Work{n * steps, 0, vx.dtype, Work::scalar}
                        : Work{2 * n * steps, view_bytes(vx) + view_bytes(vv) + view_bytes(vi), vx.dtype};
  return submit(stream, fn, cycles(stream, work), [command] { run(command); });
}
