// test_lines.cpp: what works along one dimension: scatter, sort, scan, flip, and the random numbers, against plain
// loops: every dtype, layouts, ties and NaN, sizes of 0, and what must be refused.
#include <algorithm>
#include <functional>

#include "vector_test.h"

namespace {

const double kInf = HUGE_VAL, kNaN = std::nan("");
const int kAllTypes[] = {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32, NPU_FLOAT64, NPU_INT8,
                         NPU_UINT8,   NPU_INT16,    NPU_INT32,   NPU_INT64,   NPU_BOOL};

double wrap(int dtype, double v) {
  if (is_float(dtype)) return round_to(dtype, v);
  const int64_t i = static_cast<int64_t>(v);
  switch (dtype) {
    case NPU_INT8:
      return static_cast<int8_t>(i);
    case NPU_UINT8:
      return static_cast<uint8_t>(i);
    case NPU_INT16:
      return static_cast<int16_t>(i);
    case NPU_INT32:
      return static_cast<int32_t>(i);
    case NPU_BOOL:
      return i != 0;
    default:
      return v;
  }
}
Values small(int64_t n, int dtype, int range = 4) {
  Values v(n);
  for (double& x : v) x = wrap(dtype, double(random_bits() % (2 * range + 1)) - (dtype == NPU_UINT8 ? 0 : range));
  return v;
}
bool same(double a, double b) { return std::isnan(a) ? std::isnan(b) : a == b; }
void equal_values(const Tensor& t, const Values& expected, const char* what, int opcode) {
  const Values got = t.get();
  for (size_t i = 0; i < expected.size(); i++)
    CHECK(same(got[i], expected[i]), "%s %d of %s: element %zu is %g, expected %g", what, opcode, name_of(t.t.dtype), i,
          got[i], expected[i]);
}

// A shape seen as [outer, length, inner] around `dim`.
struct Around {
  int64_t outer = 1, length = 1, inner = 1;
  Around(const Shape& shape, int dim) {
    for (int d = 0; d < static_cast<int>(shape.size()); d++) (d < dim ? outer : d == dim ? length : inner) *= shape[d];
  }
  int64_t at(int64_t o, int64_t k, int64_t i) const { return (o * length + k) * inner + i; }
};

struct Layout {
  Shape shape, stride;
  int dim;
};
const Layout kLayouts[] = {{{7}, {}, 0},
                           {{1}, {}, 0},
                           {{4, 9, 3}, {}, 1},
                           {{4, 9, 3}, {1, 4, 40}, 2},
                           {{4, 9, 3}, {60, 2, 19}, 0},
                           {{2, 700, 2}, {}, 1},
                           {{3, 1, 2, 2, 1, 5}, {}, 5}};

// ---- scan
void scans() {
  for (const Layout& l : kLayouts)
    for (int dtype : kAllTypes) {
      if (dtype == NPU_BOOL) continue;
      Tensor x(dtype, l.shape, l.stride), out(dtype, l.shape), index(NPU_INT64, l.shape, l.stride);
      Values v = small(x.n, dtype, 2);
      if (is_float(dtype))
        for (int64_t i = 0; i < x.n; i++) v[i] = i % 31 == 30 ? kNaN : round_to(dtype, v[i] * 0.25);
      x.set(v);
      const Around a(l.shape, l.dim);
      for (int opcode = NPU_SCAN_SUM; opcode <= NPU_SCAN_MIN; opcode++) {
        if (opcode == NPU_SCAN_LOG_SUM_EXP && !is_float(dtype)) continue;
        const bool extreme = opcode >= NPU_SCAN_MAX;
        Values expected(x.n);
        Integers where(x.n);
        for (int64_t o = 0; o < a.outer; o++)
          for (int64_t i = 0; i < a.inner; i++) {
            double total = opcode == NPU_SCAN_PROD ? 1 : opcode == NPU_SCAN_LOG_SUM_EXP ? -kInf : 0;
            int64_t place = -1;
            for (int64_t k = 0; k < a.length; k++) {
              const double e = v[a.at(o, k, i)];
              if (opcode == NPU_SCAN_SUM) total += e;
              if (opcode == NPU_SCAN_PROD) total = is_float(dtype) ? total * e : wrap(dtype, total * e);
              if (opcode == NPU_SCAN_LOG_SUM_EXP) total = std::log(std::exp(total) + std::exp(e));
              if (extreme) {
                const bool better = opcode == NPU_SCAN_MAX ? e >= total : e <= total;
                if (place < 0 || std::isnan(e) || (!std::isnan(total) && better)) total = e, place = k;
              }
              expected[a.at(o, k, i)] = is_float(dtype) ? total : wrap(dtype, total);
              where[a.at(o, k, i)] = place;
            }
          }
        OK(npu_v3_scan(stream, opcode, x, l.dim, out, extreme ? static_cast<const npu_tensor_t*>(index) : nullptr));
        if (opcode == NPU_SCAN_LOG_SUM_EXP)
          near(out, expected, dtype == NPU_FLOAT64 ? 1e4 : 0.6, "log sum exp");
        else
          equal_values(
              out,
              [&] {
                Values rounded = expected;
                for (double& e : rounded) e = round_to(dtype, e);
                return rounded;
              }(),
              "scan", opcode);
        if (extreme) equal(index, where, "scan %d, places", opcode);
      }
      OK(npu_v3_scan(stream, NPU_SCAN_SUM, x, l.dim, out, nullptr));
      const Values sums = out.get();
      OK(npu_v3_scan(stream, NPU_SCAN_SUM, x, l.dim, x, nullptr));  // in place
      equal_values(x, sums, "scan in place", 0);
    }
  // Far apart, and infinite.
  Tensor x(NPU_FLOAT32, {6}), out(NPU_FLOAT32, {6});
  x.set(Values{-kInf, -kInf, 1000, 1000, kInf, -kInf});
  OK(npu_v3_scan(stream, NPU_SCAN_LOG_SUM_EXP, x, 0, out, nullptr));
  near(out, {-kInf, -kInf, 1000, 1000 + std::log(2.0), kInf, kInf}, 0.6, "log sum exp");
  // A million tenths, accurately.
  Tensor tenths(NPU_FLOAT32, {1000000}), sums(NPU_FLOAT32, {1000000});
  tenths.set(Values(1000000, 0.1f));
  OK(npu_v3_scan(stream, NPU_SCAN_SUM, tenths, 0, sums, nullptr));
  CHECK(sums.get().back() == static_cast<float>(1e6 * 0.1f));
}

// ---- sort
void sorts() {
  for (const Layout& l : kLayouts)
    for (int dtype : kAllTypes)
      for (int descending : {0, 1}) {
        Tensor x(dtype, l.shape, l.stride), values(dtype, l.shape), index(NPU_INT64, l.shape, l.stride);
        Values v = small(x.n, dtype);
        if (is_float(dtype))
          for (int64_t i = 0; i < x.n; i++)
            v[i] = i % 11 == 3 ? kNaN : i % 13 == 1 ? -kInf : i % 13 == 2 ? kInf : v[i] == 0 && i % 2 ? -0.0 : v[i];
        x.set(v);
        const Around a(l.shape, l.dim);
        Values expected(x.n);
        Integers where(x.n);
        for (int64_t o = 0; o < a.outer; o++)
          for (int64_t i = 0; i < a.inner; i++) {
            Integers order(a.length);
            for (int64_t k = 0; k < a.length; k++) order[k] = k;
            auto less = [](double p, double q) { return std::isnan(q) ? !std::isnan(p) : p < q; };
            std::stable_sort(order.begin(), order.end(), [&](int64_t p, int64_t q) {
              const double vp = v[a.at(o, p, i)], vq = v[a.at(o, q, i)];
              return descending ? less(vq, vp) : less(vp, vq);
            });
            for (int64_t k = 0; k < a.length; k++) {
              expected[a.at(o, k, i)] = v[a.at(o, order[k], i)];
              where[a.at(o, k, i)] = order[k];
            }
          }
        OK(npu_v3_sort(stream, x, l.dim, descending, values, index));
        equal_values(values, expected, "sort", descending);
        equal(index, where, "sort of %s, places", name_of(dtype));
      }
  Tensor least(NPU_INT64, {3}), sorted(NPU_INT64, {3}), index(NPU_INT64, {3});
  least.set(Integers{INT64_MAX, INT64_MIN, 0});
  OK(npu_v3_sort(stream, least, 0, 0, sorted, index));
  equal(sorted, {INT64_MIN, 0, INT64_MAX}, "sort");
}

// ---- scatter
double combine(int opcode, double a, double b) {
  switch (opcode) {
    case NPU_SCATTER_ADD:
      return a + b;
    case NPU_SCATTER_MUL:
      return a * b;
    case NPU_SCATTER_MAX:
      return std::isnan(a) || a > b ? a : b;
    case NPU_SCATTER_MIN:
      return std::isnan(a) || a < b ? a : b;
    default:
      return b;
  }
}
void scatters() {
  struct {
    Shape dst, dst_stride, index, index_stride;
    int dim;
  } const cases[] = {{{5}, {}, {40}, {}, 0},
                     {{5, 3, 4}, {}, {2, 11, 3}, {}, 1},
                     {{5, 3, 4}, {1, 40, 6}, {9, 2, 4}, {}, 0},
                     {{5, 3, 4}, {}, {5, 3, 9}, {1, 5, 15}, 2},
                     {{6, 50}, {}, {3000, 50}, {0, 1}, 0},
                     {{1, 1, 4}, {}, {1, 1, 1}, {}, 2}};
  for (const auto& c : cases)
    for (int index_type : {NPU_INT64, NPU_INT32})
      for (int dtype : kAllTypes)
        for (int opcode = NPU_SCATTER_REPLACE; opcode <= NPU_SCATTER_MIN; opcode++) {
          if (dtype == NPU_BOOL && opcode != NPU_SCATTER_REPLACE) continue;
          Tensor dst(dtype, c.dst, c.dst_stride), index(index_type, c.index, c.index_stride), src(dtype, c.index);
          Integers places(index.n);
          for (int64_t i = 0; i < index.n; i++)
            places[i] = (index.offset(i) * 2654435761 >> 5) % c.dst[c.dim];  // broadcast elements agree
          Values d = small(dst.n, dtype, 2), s = small(src.n, dtype, opcode == NPU_SCATTER_MUL ? 1 : 2);
          if (is_float(dtype) && opcode != NPU_SCATTER_ADD) s[0] = kNaN;
          index.set(places);
          for (bool scalar : {false, true}) {
            dst.set(d), src.set(s);
            Values expected = d;
            for (int64_t i = 0; i < src.n; i++) {
              int64_t rest = i, at = 0, step = 1;
              for (size_t k = c.index.size(); k-- > 0; rest /= c.index[k], step *= c.dst[k])
                at += (static_cast<int>(k) == c.dim ? places[i] : rest % c.index[k]) * step;
              const double v = combine(opcode, expected[at], scalar ? 1 : s[i]);
              expected[at] = is_float(dtype) ? v : wrap(dtype, v);
            }
            for (double& v : expected) v = round_to(dtype, v);
            OK(npu_v3_scatter(stream, opcode, dst, c.dim, index,
                              scalar ? nullptr : static_cast<const npu_tensor_t*>(src), number(1)));
            equal_values(dst, expected, "scatter", opcode);
          }
        }
  // float16 is rounded once: 2048 + 1 + 1 + 1 + 1.
  Tensor dst(NPU_FLOAT16, {1}), index(NPU_INT64, {4});
  dst.set(Values{2048}), index.set(Integers{0, 0, 0, 0});
  OK(npu_v3_scatter(stream, NPU_SCATTER_ADD, dst, 0, index, nullptr, number(1)));
  CHECK(dst.get()[0] == 2052);
  index.set(Integers{0, 1, 0, 0});
  OK(npu_v3_scatter(stream, NPU_SCATTER_ADD, dst, 0, index, nullptr, number(1)));
  REFUSED(npu_stream_synchronize(stream), NPU_STATUS_EXECUTION_FAILED, "npu_v3_scatter", "index 1", "size 1");
  CHECK(dst.get()[0] == 2052, "nothing was written");
}

void flips() {
  const Shape shape = {4, 9, 30};
  for (int dtype : kAllTypes)
    for (const Shape& stride : {Shape{}, Shape{1, 4, 36}, Shape{0, 30, 1}})
      for (uint32_t dims = 0; dims < 8; dims++) {
        Tensor x(dtype, shape, stride), out(dtype, shape, dims % 2 ? Shape{} : Shape{1, 4, 40});
        Values v(x.n), expected(x.n);
        for (int64_t i = 0; i < x.n; i++) v[i] = wrap(dtype, double(x.offset(i) % 100));
        x.set(v);
        for (int64_t i = 0; i < x.n; i++) {
          int64_t at[3] = {i / 270, i / 30 % 9, i % 30};
          for (int d = 0; d < 3; d++) at[d] = dims >> d & 1 ? shape[d] - 1 - at[d] : at[d];
          expected[i] = v[at[0] * 270 + at[1] * 30 + at[2]];
        }
        OK(npu_v3_flip(stream, out, x, dims));
        equal_values(out, expected, "flip", int(dims));
      }
  Tensor x(NPU_FLOAT32, {64, 64}), y(NPU_FLOAT32, {64, 64}, {1, 64}), z(NPU_FLOAT32, {64});
  Values v(x.n), turned(x.n);
  for (int64_t i = 0; i < x.n; i++) v[i] = double(i), turned[i] = double(4095 - i);
  x.set(v);
  OK(npu_v3_flip(stream, y, x, 3));
  equal_values(y, turned, "flip of a transposed", 3);
  Tensor zero_dim(NPU_FLOAT32, {}), other(NPU_FLOAT32, {}), empty(NPU_FLOAT32, {0, 3});
  OK(npu_v3_flip(stream, other, zero_dim, 0));
  OK(npu_v3_flip(stream, empty, empty, 1));
  REFUSED(npu_v3_flip(stream, y, x, 4), NPU_STATUS_INVALID_VALUE, "npu_v3_flip", "dims: 0x4", "rank 2");
  REFUSED(npu_v3_flip(stream, z, x, 1), NPU_STATUS_INVALID_VALUE, "npu_v3_flip", "differ in shape");
}

// ---- random
void randoms() {
  // The known answers of the authors' own test (Random123, kat_vectors) have a counter of four words; those of
  // counter 0 and key 0 fit here: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
  Tensor f(NPU_FLOAT64, {4}), wide(NPU_INT64, {2});
  OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, 0, 0, f));
  const uint32_t zero[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
  for (int i = 0; i < 4; i++) CHECK(f.get()[i] == (zero[i] >> 8) * 0x1p-24, "lane %d", i);
  OK(npu_v3_random(stream, NPU_RANDOM_BITS, 0, 0, wide));
  equal(wide, {int64_t((uint64_t(zero[1]) << 32 | zero[0]) >> 1), int64_t((uint64_t(zero[3]) << 32 | zero[2]) >> 1)},
        "random bits");
  // Any part of the sequence, in any layout and dtype, has the same lanes.
  const int64_t n = 3000;
  const uint64_t seed = 0x123456789abcdef0, offset = 0xfffffffe;  // the counter passes 2^32
  Tensor all(NPU_FLOAT64, {n}), bits(NPU_INT64, {n});
  OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, seed, offset, all));
  OK(npu_v3_random(stream, NPU_RANDOM_BITS, seed, offset, bits));
  const Values u = all.get();
  const Integers b = bits.get_i();
  for (int64_t i = 0; i + 8 < n; i += 4) {
    Tensor part(NPU_FLOAT64, {5});
    if (i % 400 == 0) {
      OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, seed, offset + uint64_t(i / 4), part));
      for (int k = 0; k < 5; k++) CHECK(part.get()[k] == u[i + k]);
    }
    CHECK(uint64_t(b[i / 2]) >> 39 == uint64_t(u[i + 1] * 0x1p24), "bits hold lane 1");
  }
  Tensor crooked(NPU_FLOAT32, {30, 100}, {1, 31}), half(NPU_FLOAT16, {n}), brain(NPU_BFLOAT16, {n});
  OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, seed, offset, crooked));
  OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, seed, offset, half));
  OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, seed, offset, brain));
  const Values c = crooked.get(), h = half.get(), g = brain.get();
  double mean = 0;
  for (int64_t i = 0; i < n; i++) {
    CHECK(c[i] == u[i] && h[i] == std::floor(u[i] * 2048) / 2048 && g[i] == std::floor(u[i] * 256) / 256);
    CHECK(u[i] >= 0 && u[i] < 1 && b[i] >= 0);
    mean += u[i] / double(n);
  }
  CHECK(std::fabs(mean - 0.5) < 0.03);
  // Long enough for several threads.
  Tensor big(NPU_FLOAT32, {200003});
  OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, seed, offset, big));
  const Values v = big.get();
  for (int64_t i = 0; i < n; i++) CHECK(v[i] == u[i]);
  Tensor tail(NPU_FLOAT32, {3});
  OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, seed, offset + 50000, tail));
  for (int k = 0; k < 3; k++) CHECK(tail.get()[k] == v[200000 + k]);
  Tensor empty(NPU_FLOAT32, {0}), one(NPU_FLOAT32, {}), twice(NPU_FLOAT32, {3}, {0}), i32(NPU_INT32, {2});
  OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, 1, 1, empty));
  OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, 0, 0, one));
  CHECK(one.get()[0] == (zero[0] >> 8) * 0x1p-24);
  REFUSED(npu_v3_random(stream, 3, 0, 0, one), NPU_STATUS_INVALID_VALUE, "npu_v3_random", "opcode 3");
  REFUSED(npu_v3_random(stream, NPU_RANDOM_UNIFORM, 0, 0, i32), NPU_STATUS_NOT_SUPPORTED, "INT32");
  REFUSED(npu_v3_random(stream, NPU_RANDOM_BITS, 0, 0, i32), NPU_STATUS_NOT_SUPPORTED, "INT32", "INT64");
  REFUSED(npu_v3_random(stream, NPU_RANDOM_UNIFORM, 0, 0, twice), NPU_STATUS_INVALID_VALUE, "stride 0");
}

// As README.md says, on an NPU-V3.
void device_time() {
  auto cost = [](const std::function<void()>& f) {
    uint64_t before = 0, after = 0;
    sync();
    OK(npu_device_cycles(device, &before));
    f();
    sync();
    OK(npu_device_cycles(device, &after));
    return after - before;
  };
  Tensor sum(NPU_FLOAT64, {1, 1}), d(NPU_FLOAT64, {8, 8}), e(NPU_FLOAT64, {8, 8}), f(NPU_FLOAT32, {8, 8}),
      i(NPU_INT64, {8, 8}), k(NPU_INT32, {8, 8});
  i.set(Integers(64, 3));
  CHECK(cost([&] { OK(npu_v3_scan(stream, NPU_SCAN_PROD, d, 0, e, nullptr)); }) == 100 + 64 * 64);
  CHECK(cost([&] { OK(npu_v3_scatter(stream, NPU_SCATTER_ADD, d, 0, i, e, number(0))); }) == 100 + 64 * 64);
  CHECK(cost([&] { OK(npu_v3_sort(stream, d, 0, 0, e, i)); }) == 100 + 64 * 64 * 4);
  CHECK(cost([&] { OK(npu_v3_reduce(stream, NPU_REDUCE_SUM, d, 3, sum)); }) == 100 + 64 * 64);
  CHECK(cost([&] { OK(npu_v3_matmul(stream, d, e, nullptr, 1, 0, d)); }) == 100 + 64 * 512);
  CHECK(cost([&] { OK(npu_v3_matmul(stream, k, k, nullptr, 1, 0, k)); }) == 100 + 2 * 512 / 128 + 3 * 256 / 256);
  CHECK(cost([&] { OK(npu_v3_random(stream, NPU_RANDOM_UNIFORM, 0, 0, f)); }) == 100 + 20 * 64 / 128 + 1);
  CHECK(cost([&] { OK(npu_v3_flip(stream, e, d, 1)); }) == cost([&] { OK(npu_v3_flip(stream, e, d, 3)); }));
  CHECK(cost([&] { OK(npu_v3_flip(stream, e, d, 1)); }) == 100 + 2 * 512 / 256);
}

void refusals() {
  Tensor x(NPU_FLOAT32, {2, 3}), y(NPU_FLOAT32, {3, 2}), h(NPU_FLOAT16, {2, 3}), i(NPU_INT64, {2, 3}),
      point(NPU_FLOAT32, {});
  Tensor i32(NPU_INT32, {2, 3}), truth(NPU_BOOL, {2, 3}), twice(NPU_FLOAT32, {2, 3}, {0, 1}), tall(NPU_INT64, {3, 3});
  Tensor empty(NPU_FLOAT32, {2, 0}), none(NPU_INT64, {2, 0}), flat(NPU_INT64, {3}), odd(NPU_FLOAT32, {2, 3}, {}, 4);
  const int no = NPU_STATUS_NOT_SUPPORTED, bad = NPU_STATUS_INVALID_VALUE, where = NPU_STATUS_INVALID_ADDRESS;
  const npu_scalar_t one = number(1);
  REFUSED(npu_v3_scan(stream, 6, x, 0, x, nullptr), bad, "npu_v3_scan", "opcode 6");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_SUM, x, 2, x, nullptr), bad, "dim is 2", "0 to 1");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_SUM, x, 0, y, nullptr), bad, "out has shape [3, 2]");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_SUM, x, 0, h, nullptr), bad, "out is float16");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_SUM, x, 0, twice, nullptr), bad, "stride 0");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_SUM, x, 0, x, i), bad, "index", "expected NULL");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_MAX, x, 0, x, nullptr), bad, "index", "NULL");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_MAX, x, 0, x, i32), no, "index", "INT32");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_SUM, truth, 0, truth, nullptr), no, "BOOL");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_LOG_SUM_EXP, i, 0, i, nullptr), no, "INT64");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_SUM, odd, 0, x, nullptr), where, "x", "misaligned");
  REFUSED(npu_v3_scan(stream, NPU_SCAN_SUM, point, 0, point, nullptr), bad, "dim is 0");
  REFUSED(npu_v3_sort(stream, x, -1, 0, x, i), bad, "npu_v3_sort", "dim is -1");
  REFUSED(npu_v3_sort(stream, x, 0, 0, h, i), bad, "values is float16");
  REFUSED(npu_v3_sort(stream, x, 0, 0, y, i), bad, "values has shape");
  REFUSED(npu_v3_sort(stream, x, 0, 0, x, i), bad, "values", "memory of x");
  REFUSED(npu_v3_sort(stream, x, 0, 0, twice, i), bad, "stride 0");
  REFUSED(npu_v3_sort(stream, x, 0, 0, x, i32), no, "indices", "INT32");
  REFUSED(npu_v3_sort(stream, x, 0, 0, x, nullptr), bad, "indices", "NULL");
  REFUSED(npu_v3_sort(stream, odd, 0, 0, x, i), where, "x", "misaligned");
  REFUSED(npu_v3_scatter(stream, 0, x, 0, i, x, one), bad, "npu_v3_scatter", "opcode 0");
  REFUSED(npu_v3_scatter(stream, NPU_SCATTER_ADD, truth, 0, i, truth, one), no, "BOOL");
  REFUSED(npu_v3_scatter(stream, NPU_SCATTER_ADD, x, 0, x, x, one), no, "index", "FLOAT32");
  REFUSED(npu_v3_scatter(stream, NPU_SCATTER_ADD, x, 1, tall, y, one), bad, "index has size 3 in dimension 0");
  REFUSED(npu_v3_scatter(stream, NPU_SCATTER_ADD, x, 1, flat, x, one), bad, "index has rank 1");
  REFUSED(npu_v3_scatter(stream, NPU_SCATTER_ADD, x, 1, i, y, one), bad, "src has shape");
  REFUSED(npu_v3_scatter(stream, NPU_SCATTER_ADD, x, 1, i, h, one), bad, "src is float16");
  REFUSED(npu_v3_scatter(stream, NPU_SCATTER_ADD, twice, 1, i, x, one), bad, "dst", "stride 0");
  REFUSED(npu_v3_scatter(stream, NPU_SCATTER_ADD, x, 2, i, x, one), bad, "dim is 2");
  OK(npu_v3_scan(stream, NPU_SCAN_SUM, empty, 1, empty, nullptr));
  OK(npu_v3_sort(stream, empty, 1, 0, empty, none));
  OK(npu_v3_scatter(stream, NPU_SCATTER_ADD, x, 1, none, empty, one));
  OK(npu_v3_scatter(stream, NPU_SCATTER_ADD, empty, 1, none, nullptr, one));
}

}  // namespace

int main() {
  open_device();
  scans();
  sorts();
  scatters();
  flips();
  randoms();
  device_time();
  refusals();
  std::printf("test_lines: ok\n");
}
