// data.cpp: the instructions that are not elementwise: reductions, scans, sorting, gathering, scattering, counting,
// random numbers, and products of integers. Each is a kernel of data.cl, built for the dtypes of the call; sizes and
// strides are arguments.
#include <algorithm>
#include <cstring>

#include "parts.h"

namespace kit {
namespace {

const char kSource[] =
#include "data.inc"
    ;

struct View {  // as in data.cl
  int64_t rank = 1, offset = 0, n[8] = {1, 1, 1, 1, 1, 1, 1, 1}, st[8] = {};
  int64_t count() const {
    int64_t total = 1;
    for (int d = 0; d < rank; d++) total *= n[d];
    return total;
  }
};
struct Frame {  // one call
  Device &device;
  Stream &stream;
  const uba_call &call;
  const uba_tensor &in(int i) const {
    if (call.args[i].kind != UBA_TENSOR) refuse("an argument is no tensor");
    return *call.args[i].v.tensor;
  }
  uba_value number(int i) const {
    const uba_value &v = call.args[i];
    return v.kind == UBA_INT || v.kind == UBA_DOUBLE ? v : uba_value{UBA_INT, 1, {0}};
  }
  Memory memory(const uba_tensor &t) const { return {t.data ? buffer_of(device, t).memory : nullptr}; }
  // The dimensions of `t` that `mask` has (all: ~0), from the first element.
  View view(const uba_tensor &t, uint32_t mask = ~0u) const {
    View v;
    if (t.rank > 8) refuse("more than 8 dimensions");
    v.rank = 0, v.offset = t.data ? int64_t(buffer_of(device, t).offset) / item_size(t.dtype) : 0;
    for (int d = 0; d < t.rank; d++)
      if (mask >> d & 1) v.n[v.rank] = t.sizes[d], v.st[v.rank++] = t.strides[d];
    if (v.rank == 0) v.rank = 1;
    return v;
  }
  int axis(int i) const {
    const int rank = std::max(in(0).rank, 1);
    return int(number(i).v.i < 0 ? number(i).v.i + rank : number(i).v.i);
  }
  // `what`: what tells the kernel from others beside its name and the macros.
  template <class Make>
  Kernel &kernel(const char *name, std::initializer_list<int> what, Make &&macros) const {
    static thread_local std::string key;
    key.assign(name);
    for (int one : what) key += {'\0', char(one)};
    return kernel_for(device, key,
                      [&] { return Recipe{"#define V 1\n" + std::string(vector_prelude) + macros() + kSource, name}; });
  }
};
Range lines(int64_t n, int64_t m = 1) {
  Range range;
  range.global[0] = size_t(n), range.global[1] = size_t(m);
  return range;
}
template <void (*body)(const Frame &, int64_t)>
uba_status run(void *device, const uba_call *call, int64_t tag) {
  return guard([&] {
    const Turn turn(device, call->stream);
    body({device_of(device), turn.stream, *call}, tag);
  });
}
int64_t size_at(const uba_tensor &t, int d) { return t.rank ? t.sizes[d] : 1; }
int64_t stride_at(const uba_tensor &t, int d) { return t.rank ? t.strides[d] : 0; }
int32_t wide_dtype(const Device &d, int32_t dtype) {  // that sums add up in
  const bool real = is_float(dtype) || dtype == UBA_DTYPE_FLOAT64;
  return !real ? UBA_DTYPE_INT64 : d.fp64 ? UBA_DTYPE_FLOAT64 : UBA_DTYPE_FLOAT32;
}
int32_t register_dtype(int32_t dtype) {
  return is_float(dtype) ? UBA_DTYPE_FLOAT32 : dtype == UBA_DTYPE_BOOL ? UBA_DTYPE_INT32 : dtype;
}

enum { kSum, kProduct, kMax, kMin, kListed = 8, kMean = 16 };  // kListed: no dims are none, and not all
void reduce(const Frame &f, int64_t tag) {
  const uba_tensor &x = f.in(0), &y = f.call.outputs[0];
  const uba_value *dims = f.call.arg_count > 1 ? &f.call.args[1] : nullptr;
  uint32_t over = 0;
  if (dims && dims->kind == UBA_INT_LIST)
    for (uint32_t i = 0; i < dims->count; i++) over |= 1u << (dims->v.ints[i] + (dims->v.ints[i] < 0 ? x.rank : 0));
  if (dims && dims->kind == UBA_INT && f.call.arg_count > 2) over = 1u << (dims->v.i + (dims->v.i < 0 ? x.rank : 0));
  if (!over && !(tag & kListed)) over = ~0u;
  const int how = int(tag & 3);
  const int32_t acc =
      how >= kMax ? register_dtype(x.dtype) : wide_dtype(f.device, y.dtype == UBA_DTYPE_BOOL ? x.dtype : y.dtype);
  View keep = f.view(x, ~over), inner = f.view(x, over), out = f.view(y);
  inner.offset = 0;
  if (out.rank != keep.rank || !std::equal(out.n, out.n + out.rank, keep.n)) out = f.view(y, ~over);  // keepdim
  const int64_t results = keep.count(), count = inner.count();
  int64_t parts = std::max<int64_t>(1, std::min(results ? 1024 / results : 1, count / 2048));
  auto launch_one = [&](int32_t from, int32_t to, const View &k, const View &i, Memory a, Memory b, int64_t n,
                        int64_t c, int64_t divisor) {
    Kernel &kernel = f.kernel("reduce", {how, from, to, acc}, [&] {
      return "#define REDUCE " + std::to_string(how) + "\n" + type_macros(f.device, "X", from) +
             type_macros(f.device, "Y", to) + "#define ACC " + storage_type(f.device, acc) + "\n";
    });
    launch(f.stream, kernel, lines(results, n), k, i, out, a, b, n, results, c, divisor);
  };
  const int64_t divisor = tag & kMean ? count : -1;  // none
  if (parts == 1) return launch_one(x.dtype, y.dtype, keep, inner, f.memory(x), f.memory(y), 1, count, divisor);
  const Buffer partial = f.stream.scratch(uint64_t(results * parts * 8));
  launch_one(x.dtype, acc, keep, inner, f.memory(x), {partial.memory}, parts, count, -1);
  View rows, columns;
  rows.n[0] = results, rows.st[0] = parts, columns.n[0] = parts, columns.st[0] = 1;
  launch_one(acc, y.dtype, rows, columns, {partial.memory}, f.memory(y), 1, parts, divisor);
}
void argument(const Frame &f, int64_t tag) {
  const uba_tensor &x = f.in(0), &y = f.call.outputs[0];
  const int axis = f.axis(1);
  const View keep = f.view(x, ~(1u << axis));
  View out = f.view(y);
  if (out.rank != keep.rank || !std::equal(out.n, out.n + out.rank, keep.n)) out = f.view(y, ~(1u << axis));
  Kernel &kernel = f.kernel("argument", {int(tag), x.dtype}, [&] {
    return std::string("#define ARG ") + (tag ? "<" : ">") + "\n" + type_macros(f.device, "X", x.dtype);
  });
  launch(f.stream, kernel, lines(keep.count()), keep, out, f.memory(x), f.memory(y), keep.count(), size_at(x, axis),
         stride_at(x, axis));
}
void scan(const Frame &f, int64_t tag) {
  const uba_tensor &x = f.in(0), &y = f.call.outputs[0], &where = f.call.outputs[f.call.output_count - 1];
  const int axis = f.axis(1);
  const uint32_t others = ~(1u << axis);
  const View from = f.view(x, others);
  const int32_t acc = tag == 2 || tag == 3 ? register_dtype(x.dtype) : wide_dtype(f.device, x.dtype);
  Kernel &kernel = f.kernel("scan", {int(tag), x.dtype}, [&] {
    return "#define SCAN " + std::to_string(tag) + "\n#define ACC " + storage_type(f.device, acc) + "\n" +
           type_macros(f.device, "X", x.dtype);
  });
  launch(f.stream, kernel, lines(from.count()), from, f.view(y, others), f.view(where, others), f.memory(x),
         f.memory(y), f.memory(where), from.count(), size_at(x, axis), stride_at(x, axis), stride_at(y, axis),
         stride_at(where, axis));
}
void sort(const Frame &f, int64_t) {
  const uba_tensor &x = f.in(0), &y = f.call.outputs[0], &where = f.call.outputs[1];
  const int axis = f.axis(1), descending = f.number(2).v.i != 0;
  const uint32_t others = ~(1u << axis);
  const View from = f.view(x, others);
  const int64_t results = from.count(), count = size_at(x, axis), step = stride_at(x, axis),
                bytes = results * count * 4;
  if (count > INT32_MAX) refuse("a line of more than 2^31 elements");
  auto macros = [&] {
    return "#define SORT\n#define DESCENDING " + std::to_string(descending) + "\n" +
           type_macros(f.device, "X", x.dtype) + "typedef " + storage_type(f.device, mover_dtype(x.dtype)) +
           " moved;\n";
  };
  if (results * count == 0) return;
  const Memory memory{f.stream.scratch(uint64_t(bytes) * 2).memory};
  int64_t turn = 0;
  for (int64_t width = 1; width < count; width *= 2, turn ^= 1)
    launch(f.stream, f.kernel("merge", {descending, x.dtype}, macros), lines(count, results), from, f.memory(x), memory,
           memory, (turn ^ 1) * results * count, turn * results * count, results, count, step, width);
  launch(f.stream, f.kernel("sorted", {descending, x.dtype}, macros), lines(count, results), from, f.view(y, others),
         f.view(where, others), f.memory(x), memory, f.memory(y), f.memory(where), (turn ^ 1) * results * count,
         results, count, step, stride_at(y, axis), stride_at(where, axis));
}
void gather(const Frame &f, int64_t) {
  const uba_tensor &x = f.in(0), &index = f.in(1), &y = f.call.outputs[0];
  Kernel &kernel = f.kernel("gather", {x.dtype},
                            [&] { return "#define GATHER\n" + type_macros(f.device, "X", mover_dtype(x.dtype)); });
  const View places = f.view(index);
  const int64_t width = places.n[places.rank - 1], groups = width ? places.count() / width * ((width + 15) / 16) : 0;
  launch(f.stream, kernel, lines(groups), f.view(x), places, f.view(y), f.memory(x), f.memory(index), f.memory(y),
         groups, int64_t(f.axis(2)), Memory{f.stream.fault()});
}
void scatter(const Frame &f, int64_t tag) {
  static const char *const how[] = {"b", "a + b", "a * b", "a != a || a > b ? a : b", "a != a || a < b ? a : b"};
  static const char *const whole[] = {"b", "(long)a + b", "(long)a * b"};
  const uba_tensor &x = f.in(0), &index = f.in(1), &y = f.call.outputs[0];
  const bool number = f.call.args[2].kind != UBA_TENSOR;
  const uba_tensor &src = number ? index : f.in(2);
  if (x.data != y.data || x.byte_offset != y.byte_offset || !std::equal(x.strides, x.strides + x.rank, y.strides)) {
    const uba_status copied = copy_nd(&f.device, f.call.stream, &y, &x);
    if (copied != UBA_OK) throw Failure{copied, 0, "the copy of x"};
  }
  const int axis = f.axis(3);
  const uint32_t others = ~(1u << axis);
  const bool real = is_float(x.dtype) || x.dtype == UBA_DTYPE_FLOAT64;
  Kernel &kernel = f.kernel("scatter", {int(tag), x.dtype}, [&] {
    return std::string("#define SCATTER ") + (real || tag > 2 ? how : whole)[tag] + "\n" +
           type_macros(f.device, "X", x.dtype);
  });
  const View places = f.view(index, others);
  // The number as the registers hold it; what is behind its bytes is not passed.
  const int64_t bits = bits_of(f.number(2), register_dtype(x.dtype));
  launch(f.stream, kernel, lines(places.count()), places, f.view(src, others), f.view(y, others), f.memory(index),
         f.memory(number ? y : src), f.memory(y), places.count(), size_at(index, axis), stride_at(index, axis),
         stride_at(src, axis), stride_at(y, axis), Bits{&bits, size_t(item_size(register_dtype(x.dtype)))},
         int32_t(number), size_at(y, axis), Memory{f.stream.fault()});
}
void iota(const Frame &f, int64_t) {  // (n, start, step, dtype)
  const uba_tensor &y = f.call.outputs[0];
  const int32_t acc = wide_dtype(f.device, y.dtype);
  Kernel &kernel = f.kernel("iota", {y.dtype}, [&] {
    return std::string("#define IOTA\n#define ACC ") + storage_type(f.device, acc) + "\n" +
           type_macros(f.device, "X", y.dtype);
  });
  const View out = f.view(y);
  const int64_t start = bits_of(f.number(1), acc), step = bits_of(f.number(2), acc);
  if (acc == UBA_DTYPE_FLOAT32)
    return launch(f.stream, kernel, lines(out.count()), out, f.memory(y), out.count(), int32_t(start), int32_t(step));
  launch(f.stream, kernel, lines(out.count()), out, f.memory(y), out.count(), start, step);
}
void random(const Frame &f, int64_t lanes) {  // (sizes, seed, offset)
  const uba_tensor &y = f.call.outputs[0];
  const int bits = y.dtype == UBA_DTYPE_FLOAT16 ? 11 : y.dtype == UBA_DTYPE_BFLOAT16 ? 8 : 24;
  Kernel &kernel = f.kernel("random", {y.dtype}, [&] {
    return "#define RANDOM " + std::to_string(lanes) + "\n#define BITS " + std::to_string(bits) + "\n" +
           type_macros(f.device, "X", y.dtype);
  });
  const View out = f.view(y);
  launch(f.stream, kernel, lines((out.count() + lanes - 1) / lanes), out, f.memory(y), out.count(), f.number(1).v.i,
         f.number(2).v.i);
}
void flip(const Frame &f, int64_t) {  // a copy that walks backwards
  uba_tensor x = f.in(0), y = f.call.outputs[0];
  int64_t strides[8];
  if (x.rank > 8) refuse("more than 8 dimensions");
  std::copy(x.strides, x.strides + x.rank, strides);
  uba_value list = f.call.args[1];
  for (uint32_t i = 0; list.kind == UBA_INT_LIST && i < list.count; i++) {
    const int64_t d = list.v.ints[i] + (list.v.ints[i] < 0 ? x.rank : 0);
    if (x.rank == 0 || x.sizes[d] == 0) continue;
    x.byte_offset += uint64_t((x.sizes[d] - 1) * x.strides[d] * item_size(x.dtype));
    strides[d] = -x.strides[d];
  }
  x.strides = strides;
  const uba_status status = copy_nd(&f.device, f.call.stream, &y, &x);
  if (status != UBA_OK) throw Failure{status, 0, "flip"};
}
void product(const Frame &f, int64_t) {
  View v[3];
  const uba_tensor *tensors[] = {&f.in(0), &f.in(1), &f.call.outputs[0]};
  for (int i = 0; i < 3; i++) {
    v[i] = f.view(*tensors[i]);
    if (v[i].rank == 2) v[i] = {3, v[i].offset, {1, v[i].n[0], v[i].n[1]}, {0, v[i].st[0], v[i].st[1]}};
  }
  const int32_t dtype = tensors[2]->dtype;
  Kernel &kernel =
      f.kernel("product", {dtype}, [&] { return "#define PRODUCT\n" + type_macros(f.device, "X", dtype); });
  Range range;
  range.global[0] = size_t(v[2].n[2]), range.global[1] = size_t(v[2].n[1]), range.global[2] = size_t(v[2].n[0]);
  range.local[0] = range.local[1] = 8;
  launch(f.stream, kernel, range, v[0], v[1], v[2], f.memory(*tensors[0]), f.memory(*tensors[1]), f.memory(*tensors[2]),
         v[0].n[2]);
}

const uba_kernel table[] = {{"reduce_sum", run<reduce>, kSum | kListed},
                            {"reduce_prod", run<reduce>, kProduct | kListed},
                            {"reduce_max", run<reduce>, kMax | kListed},
                            {"reduce_min", run<reduce>, kMin | kListed},
                            {"reduce_any", run<reduce>, kSum | kListed},
                            {"reduce_all", run<reduce>, kProduct | kListed},
                            {"sum", run<reduce>, kSum},
                            {"mean", run<reduce>, kSum | kMean},
                            {"prod", run<reduce>, kProduct},
                            {"amax", run<reduce>, kMax},
                            {"amin", run<reduce>, kMin},
                            {"argmax", run<argument>, 0},
                            {"argmin", run<argument>, 1},
                            {"cumsum", run<scan>, 0},
                            {"cumprod", run<scan>, 1},
                            {"cummax", run<scan>, 2},
                            {"cummin", run<scan>, 3},
                            {"logcumsumexp", run<scan>, 4},
                            {"sort", run<sort>, 0},
                            {"gather", run<gather>, 0},
                            {"scatter", run<scatter>, 0},
                            {"scatter_add", run<scatter>, 1},
                            {"scatter_mul", run<scatter>, 2},
                            {"scatter_max", run<scatter>, 3},
                            {"scatter_min", run<scatter>, 4},
                            {"iota", run<iota>, 0},
                            {"random_uniform", run<random>, 4},
                            {"random_bits", run<random>, 2},
                            {"flip", run<flip>, 0},
                            {"product", run<product>, 0}};

}  // namespace

KernelTable data_kernels() { return {table, int64_t(sizeof(table) / sizeof(table[0]))}; }

}  // namespace kit
