// test_gather.cpp: index_select, gather, index_add_rows, and the mixed-precision helpers: dtypes, layouts,
// wrong indices, non-finite gradients, and what must be refused.
#include "vector_test.h"

namespace {

const double kInf = HUGE_VAL, kNaN = std::nan("");
const int kFloatTypes[] = {NPU_FLOAT16, NPU_BFLOAT16, NPU_FLOAT32};

void gathering() {
  for (int dtype : {NPU_FLOAT16, NPU_FLOAT32, NPU_INT64, NPU_UINT8, NPU_FLOAT64})
    for (int index_type : {NPU_INT32, NPU_INT64})
      for (const Shape& stride : {Shape{20, 5, 1}, Shape{1, 15, 3}}) {
        Tensor src(dtype, {3, 4, 5}, stride), index(index_type, {6});
        Integers v(60);
        for (int i = 0; i < 60; i++) v[i] = i;
        src.set(v);
        for (int dim = 0; dim < 3; dim++) {
          const Integers at = {0, 2, 2, 1, 1, 0};
          index.set(at);
          Shape shape = {3, 4, 5};
          const int64_t size = shape[dim];
          shape[dim] = 6;
          Tensor dst(dtype, shape);
          OK(npu_v3_index_select(stream, dst, src, dim, index));
          Tensor where(index_type, shape), picked(dtype, shape);
          Integers expected, places;
          for (int i = 0; i < shape[0]; i++)
            for (int j = 0; j < shape[1]; j++)
              for (int k = 0; k < shape[2]; k++) {
                int64_t p[3] = {i, j, k};
                places.push_back(at[p[dim]]);
                p[dim] = at[p[dim]];
                expected.push_back((p[0] * 4 + p[1]) * 5 + p[2]);
              }
          CHECK(dst.get() == Values(expected.begin(), expected.end()), "index_select along %d", dim);
          where.set(places);
          OK(npu_v3_gather(stream, picked, src, dim, where));
          CHECK(picked.get() == Values(expected.begin(), expected.end()), "gather along %d", dim);
          index.set(Integers{0, 0, size, 0, 0, 0});
          OK(npu_v3_index_select(stream, dst, src, dim, index));
          REFUSED(npu_stream_synchronize(stream), NPU_STATUS_EXECUTION_FAILED, "npu_v3_index_select", "out of range");
          index.set(Integers{0, 0, -1, 0, 0, 0});
          OK(npu_v3_index_select(stream, dst, src, dim, index));
          REFUSED(npu_stream_synchronize(stream), NPU_STATUS_EXECUTION_FAILED, "index -1", "out of range");
        }
      }
  for (int dtype : kFloatTypes) {
    Tensor dst(dtype, {4, 300}), index(NPU_INT64, {6}), src(dtype, {6, 300});
    const Integers at = {2, 0, 2, 3, 2, 0};
    Values d = uniforms(1200, dtype), s = uniforms(1800, dtype);
    dst.set(d), src.set(s), index.set(at);
    OK(npu_v3_index_add_rows(stream, dst, index, src));
    for (int i = 0; i < 6; i++)
      for (int j = 0; j < 300; j++) d[at[i] * 300 + j] += s[i * 300 + j];
    close(dst, d, 1e-6, "index_add_rows");
    index.set(Integers{0, 0, 0, 4, 0, 0});
    OK(npu_v3_index_add_rows(stream, dst, index, src));
    REFUSED(npu_stream_synchronize(stream), NPU_STATUS_EXECUTION_FAILED, "index 4", "size 4");
  }
  Tensor src(NPU_FLOAT16, {3, 4}), dst(NPU_FLOAT16, {2, 4}), index(NPU_INT64, {3}), real(NPU_FLOAT32, {2});
  REFUSED(npu_v3_index_select(stream, dst, src, 0, index), NPU_STATUS_INVALID_VALUE, "dst has shape [2, 4]", "[3, 4]");
  REFUSED(npu_v3_index_select(stream, dst, src, 2, index), NPU_STATUS_INVALID_VALUE, "dim is 2");
  REFUSED(npu_v3_index_select(stream, dst, src, 0, real), NPU_STATUS_NOT_SUPPORTED, "index");
}

void mixed_precision() {
  for (int dtype : kFloatTypes) {
    const int64_t n = 40000;
    Values x = uniforms(n, dtype);
    Tensor t(dtype, {n}), scale(NPU_FLOAT32, {1}), found(NPU_FLOAT32, {1});
    t.set(x), scale.set(Values{0.25}), found.set(Values{0});
    OK(npu_v3_unscale(stream, t, scale, found));
    near(found, {0}, 0, "found_inf");
    Values expected = x;
    for (double& v : expected) v *= 0.25;
    near(t, expected, 0.5, "unscale");
    for (double bad : {kInf, -kInf, kNaN}) {
      x[n - 7] = bad;
      t.set(x), found.set(Values{0});
      OK(npu_v3_unscale(stream, t, scale, found));
      near(found, {1}, 0, "found_inf");
    }
  }
  Tensor scale(NPU_FLOAT32, {1}), tracker(NPU_INT32, {1}), found(NPU_FLOAT32, {});
  scale.set(Values{1024}), tracker.set(Integers{0}), found.set(Values{0});
  for (int i = 0; i < 3; i++) OK(npu_v3_update_scale(stream, scale, tracker, found, 2, 0.5, 3));
  near(scale, {2048}, 0, "grown");
  equal(tracker, {0}, "tracker");
  OK(npu_v3_update_scale(stream, scale, tracker, found, 2, 0.5, 3));
  equal(tracker, {1}, "tracker");
  found.set(Values{1});
  OK(npu_v3_update_scale(stream, scale, tracker, found, 2, 0.5, 3));
  near(scale, {1024}, 0, "backed off");
  equal(tracker, {0}, "tracker");
  scale.set(Values{3e38}), found.set(Values{0});
  OK(npu_v3_update_scale(stream, scale, tracker, found, 2, 0.5, 1));
  near(scale, {3e38}, 0.5, "not beyond the largest number");
}

}  // namespace

int main() {
  open_device();
  gathering();
  mixed_precision();
  std::printf("test_gather: ok\n");
}
