// test_dma.cpp: the DMA engine: strided copies that convert, fills, ramps, rounding, and npu_v3_add.
#include <algorithm>

#include "check.h"

namespace {

bool floating(int32_t dtype) { return dtype <= NPU_FLOAT32 || dtype == NPU_FLOAT64; }

void copies() {
  Bench b;
  const int32_t all[] = {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32, NPU_INT8,    NPU_INT32,
                         NPU_INT64,   NPU_BOOL,     NPU_UINT8,   NPU_FLOAT64, NPU_INT16};
  for (int32_t from : all) {
    for (int32_t to : all) {
      Tensor x(b, from, {3, 35}), y(b, to, {3, 35}, {1, 3});
      x.fill(
          [&](int64_t i) { return from == NPU_BOOL ? double(i % 2) : double(i % 100) * (floating(from) ? 1.25 : 1); });
      OK(npu_v3_copy_nd(b.stream, y, x));
      y.download();
      bool same = true;
      for (int64_t i = 0; i < x.numel(); i++) {
        double v = x.at(i);
        if (to == NPU_BOOL) v = v != 0;
        if (!floating(to)) v = std::trunc(v);
        if (to == NPU_BFLOAT16) v = value_of_bf16(bf16_of(float(v)));
        same &= y.at(i) == v;
      }
      CHECK(same);
    }
  }
  struct Shape {
    std::vector<int64_t> shape, dst, src;
  };
  const Shape shapes[] = {{{}, {}, {}},
                          {{1, 1, 1}, {}, {}},
                          {{2, 3, 4, 5, 6, 7}, {}, {1, 2, 6, 24, 120, 720}},
                          {{200, 130}, {}, {1, 200}},
                          {{200, 130}, {1, 201}, {}},
                          {{70, 90, 80}, {}, {1, 70, 6300}},
                          {{70, 90, 80}, {}, {80, 0, 1}},
                          {{5, 64, 9, 9}, {5184, 1, 576, 64}, {}},
                          {{3, 0, 2}, {}, {}},
                          {{1000, 3}, {7, 2}, {3, 1}}};
  for (int32_t dtype : {NPU_FLOAT16, NPU_INT8, NPU_FLOAT32, NPU_INT64, NPU_FLOAT64}) {
    for (auto& s : shapes) {
      Tensor y(b, dtype, s.shape, s.dst), x(b, dtype, s.shape, s.src);
      std::mt19937 g(3);
      x.random(g, -100, 100);
      OK(npu_v3_copy_nd(b.stream, y, x));
      y.download();
      bool same = true;
      for (int64_t i = 0; i < x.numel(); i++) same &= y.at(i) == x.at(i);
      CHECK(same);
    }
  }
  Tensor x(b, NPU_FLOAT32, {8}), y(b, NPU_INT32, {8}), z(b, NPU_INT64, {8}), w(b, NPU_BOOL, {8});
  const float odd[] = {NAN, INFINITY, -INFINITY, 3e9f, -3e9f, 1e20f, -2.75f, 0.4f};
  x.fill([&](int64_t i) { return odd[i]; });
  OK(npu_v3_copy_nd(b.stream, y, x));
  OK(npu_v3_copy_nd(b.stream, z, x));
  OK(npu_v3_copy_nd(b.stream, w, x));
  y.download();
  z.download();
  w.download();
  CHECK(y.at(0) == INT32_MIN && y.at(3) == INT32_MIN && y.at(6) == -2 && y.at(7) == 0);
  CHECK(z.at(0) == double(INT64_MIN) && z.at(3) == 3e9 && z.at(5) == double(INT64_MIN));
  for (int i = 0; i < 8; i++) CHECK(w.at(i) == 1);
  REFUSED(npu_v3_copy_nd(b.stream, x, Tensor(b, NPU_FLOAT32, {2, 4})), NPU_STATUS_INVALID_VALUE, "differ in shape");
}

void fills() {
  Bench b;
  Tensor x(b, NPU_FLOAT16, {33, 65}, {130, 2});
  OK(npu_v3_fill_nd(b.stream, x, real(1.0 / 3)));
  x.download();
  bool same = true;
  for (int64_t i = 0; i < x.span; i++)
    same &= get(x.host.data(), NPU_FLOAT16, i) == (i % 2 ? 0 : value_of_half(half_of(1.0 / 3)));
  CHECK(same);
  Tensor i64(b, NPU_INT64, {100000}), t(b, NPU_BOOL, {5}), u8(b, NPU_UINT8, {300}), f(b, NPU_FLOAT32, {50});
  OK(npu_v3_fill_nd(b.stream, i64, whole((int64_t(1) << 53) + 1)));
  OK(npu_v3_fill_nd(b.stream, t, real(1e-200)));
  i64.download();
  t.download();
  CHECK(reinterpret_cast<int64_t*>(i64.host.data())[99999] == (int64_t(1) << 53) + 1 && t.at(4) == 1);
  OK(npu_v3_iota(b.stream, i64, whole(INT64_MAX), whole(1)));
  OK(npu_v3_iota(b.stream, u8, whole(0), whole(1)));
  OK(npu_v3_iota(b.stream, f, real(0.5), real(0.1)));
  i64.download();
  u8.download();
  f.download();
  CHECK(reinterpret_cast<int64_t*>(i64.host.data())[1] == INT64_MIN && u8.at(299) == 43);
  CHECK(f.at(49) == float(0.5 + 0.1 * 49));
  REFUSED(npu_v3_iota(b.stream, t, whole(0), whole(1)), NPU_STATUS_NOT_SUPPORTED, "BOOL");
  REFUSED(npu_v3_iota(b.stream, x, whole(0), whole(1)), NPU_STATUS_INVALID_VALUE, "rank 2");
}

// Every half, and for every half the floats at and around the middle to its neighbour.
void conversions() {
  Bench b;
  Tensor half(b, NPU_FLOAT16, {65536}), brain(b, NPU_BFLOAT16, {65536}), wide(b, NPU_FLOAT32, {65536});
  auto* h = reinterpret_cast<uint16_t*>(half.host.data());
  auto* f = reinterpret_cast<float*>(wide.host.data());
  for (int i = 0; i < 65536; i++) h[i] = uint16_t(i);
  half.upload();
  OK(npu_v3_copy_nd(b.stream, wide, half));
  wide.download();
  int bad = 0;
  for (int i = 0; i < 65536; i++) {
    float want = value_of_half(uint16_t(i));
    bad += !(std::isnan(want) ? std::isnan(f[i]) && std::signbit(f[i]) == (i >= 32768)
                              : std::memcmp(&want, &f[i], 4) == 0);
  }
  CHECK(bad == 0);
  std::mt19937 g(5);
  for (int round = 0; round < 6; round++) {
    std::vector<float> in(65536);
    for (int i = 0; i < 65536; i++) {
      uint32_t u = round < 5 ? 0 : g();
      float middle = value_of_half(uint16_t(i)) / 2 + value_of_half(uint16_t(i + 1)) / 2;
      if (round == 0) in[i] = middle;
      if (round == 1) in[i] = std::nextafterf(middle, 1e9f);
      if (round == 2) in[i] = std::nextafterf(middle, -1e9f);
      if (round == 3) in[i] = value_of_half(uint16_t(i)) * (1 + 0x1p-12f);
      if (round == 4) in[i] = value_of_half(uint16_t(i)) * 0x1p-10f;
      if (round == 5) std::memcpy(&in[i], &u, 4);
    }
    std::memcpy(f, in.data(), in.size() * 4);
    wide.upload();
    OK(npu_v3_copy_nd(b.stream, half, wide));
    OK(npu_v3_copy_nd(b.stream, brain, wide));
    half.download();
    brain.download();
    auto* bf = reinterpret_cast<uint16_t*>(brain.host.data());
    bad = 0;
    for (int i = 0; i < 65536; i++) {
      if (std::isnan(in[i])) {
        bad += !std::isnan(value_of_half(h[i])) || !std::isnan(value_of_bf16(bf[i]));
      } else {
        bad += h[i] != half_of(in[i]) || bf[i] != bf16_of(in[i]);
      }
    }
    CHECK(bad == 0);
  }
  // strides take the scalar path, odd lengths the tails
  for (int64_t n : {1, 3, 7, 15, 17, 31}) {
    Tensor x(b, NPU_FLOAT32, {n, 3}, {5, 1}), y(b, NPU_FLOAT16, {n, 3});
    x.random(g, -70000, 70000);
    OK(npu_v3_copy_nd(b.stream, y, x));
    y.download();
    for (int64_t i = 0; i < y.numel(); i++) CHECK(y.at(i) == value_of_half(half_of(x.at(i))));
  }
}

// float64: exact where the other side holds the number, else rounded once, which a detour by float32 would not do.
void doubles() {
  Bench b;
  const int64_t n = 65536;
  Tensor wide(b, NPU_FLOAT64, {n}), half(b, NPU_FLOAT16, {n}), brain(b, NPU_BFLOAT16, {n}), single(b, NPU_FLOAT32, {n});
  auto* d = reinterpret_cast<double*>(wide.host.data());
  auto brain_of = [](double x) {
    const int exponent = std::max(x == 0 ? -126 : std::ilogb(x), -126);
    const double y = std::ldexp(std::nearbyint(std::ldexp(x, 7 - exponent)), exponent - 7);
    return std::fabs(y) > 0x1.fep127 ? std::copysign(HUGE_VAL, x) : y;
  };
  std::mt19937_64 g(7);
  int twice = 0;
  for (int round = 0; round < 8; round++) {
    const bool brains = round >= 3 && round < 6;
    for (int64_t i = 0; i < n; i++) {
      const uint16_t low = uint16_t(i), high = uint16_t(i + 1);
      double middle = brains ? double(value_of_bf16(low)) / 2 + double(value_of_bf16(high)) / 2
                             : double(value_of_half(low)) / 2 + double(value_of_half(high)) / 2;
      const uint64_t bits = g();
      if (round % 3 == 1) middle = std::nextafter(middle, HUGE_VAL);
      if (round % 3 == 2) middle = std::nextafter(middle, -HUGE_VAL);
      if (round == 6) middle *= 0x1p-12;
      if (round == 7) std::memcpy(&middle, &bits, 8);
      d[i] = std::isnan(middle) ? double(i) : middle;
    }
    wide.upload();
    for (const Tensor* to : {&half, &brain, &single}) OK(npu_v3_copy_nd(b.stream, *to, wide));
    half.download(), brain.download(), single.download();
    int bad = 0;
    for (int64_t i = 0; i < n; i++) {
      bad += reinterpret_cast<uint16_t*>(half.host.data())[i] != half_of(d[i]);
      bad += brain.at(i) != brain_of(d[i]) || std::signbit(brain.at(i)) != std::signbit(d[i]);
      bad += single.at(i) != double(float(d[i]));
      twice += half_of(d[i]) != half_of(float(d[i]));
    }
    CHECK(bad == 0);
    OK(npu_v3_copy_nd(b.stream, wide, single));
    wide.download();
    for (int64_t i = 0; i < n; i++) bad += d[i] != single.at(i);
    CHECK(bad == 0);
  }
  CHECK(twice > 1000);  // or the test would not tell one rounding from two
  const double odd[] = {NAN, 1e19, -1e19, -0x1p63, 0x1p62 + 1024, -2.75, 3e9, 1e-300};
  const int64_t whole_odd[] = {INT64_MAX, INT64_MIN, (int64_t(1) << 53) + 1, (int64_t(1) << 53) + 3, -7, 0, 1, 2};
  Tensor x(b, NPU_FLOAT64, {8}), y(b, NPU_FLOAT64, {8}), i64(b, NPU_INT64, {8}), i32(b, NPU_INT32, {8});
  Tensor truth(b, NPU_BOOL, {8}), h(b, NPU_FLOAT16, {1}), r(b, NPU_FLOAT64, {100});
  x.fill([&](int64_t i) { return odd[i]; });
  for (const Tensor* to : {&i64, &i32, &truth}) OK(npu_v3_copy_nd(b.stream, *to, x));
  i64.download(), i32.download(), truth.download();
  auto* v = reinterpret_cast<int64_t*>(i64.host.data());
  for (int i = 0; i < 4; i++) CHECK(v[i] == INT64_MIN);
  CHECK(v[4] == (int64_t(1) << 62) + 1024 && v[5] == -2 && v[6] == 3000000000 && v[7] == 0);
  CHECK(i32.at(5) == -2 && i32.at(6) == INT32_MIN);
  for (int i = 0; i < 8; i++) CHECK(truth.at(i) == 1);
  std::memcpy(v, whole_odd, sizeof(whole_odd));
  i64.upload();
  OK(npu_v3_copy_nd(b.stream, y, i64));
  y.download();
  for (int i = 0; i < 8; i++) CHECK(y.at(i) == double(whole_odd[i]));
  OK(npu_v3_fill_nd(b.stream, x, real(0.1)));
  OK(npu_v3_fill_nd(b.stream, y, whole((int64_t(1) << 53) + 1)));
  OK(npu_v3_fill_nd(b.stream, h, real(1 + 0x1p-11 + 0x1p-40)));
  OK(npu_v3_iota(b.stream, r, real(0.5), real(0.1)));
  x.download(), y.download(), h.download(), r.download();
  CHECK(x.at(7) == 0.1 && y.at(7) == 0x1p53 && h.at(0) == 1 + 0x1p-10 && r.at(99) == 0.5 + 0.1 * 99);
}

void first_function() {
  Bench b;
  Tensor x(b, NPU_FLOAT16, {4, 5}), y(b, NPU_FLOAT16, {4, 5}), z(b, NPU_FLOAT16, {4, 5});
  x.fill([](int64_t i) { return double(i); });
  y.fill([](int64_t i) { return 0.5 * double(i); });
  int64_t stride[] = {5, 1}, shape[] = {4, 5};
  OK(npu_v3_add(x.address, y.address, z.address, 20, stride, shape));
  z.download();
  for (int i = 0; i < 20; i++) CHECK(z.at(i) == 1.5 * i);
  auto* host = static_cast<uint16_t*>(std::aligned_alloc(256, 512));
  for (int i = 0; i < 20; i++) host[i] = half_of(2 * i);
  OK(npu_v3_add(host, x.address, host, 20, stride, shape));
  for (int i = 0; i < 20; i++) CHECK(value_of_half(host[i]) == float(3 * i));
  OK(npu_v3_add(host, host, host, 20, stride, shape));
  CHECK(value_of_half(host[19]) == 114);
  REFUSED(npu_v3_add(host + 1, x.address, z.address, 20, stride, shape), NPU_STATUS_INVALID_ADDRESS, "a: address");
  REFUSED(npu_v3_add(host, x.address, z.address, 21, stride, shape), NPU_STATUS_INVALID_VALUE, "size 21");
  int64_t gaps[] = {10, 1};
  REFUSED(npu_v3_add(host, x.address, z.address, 20, gaps, shape), NPU_STATUS_NOT_SUPPORTED, "dense");
  REFUSED(npu_v3_add(host, x.address, nullptr, 20, stride, shape), NPU_STATUS_INVALID_ADDRESS, "out");
  std::free(host);
}

}  // namespace

int main() {
  copies();
  fills();
  conversions();
  doubles();
  first_function();
  return report("test_dma");
}
