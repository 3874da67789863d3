// gemm_exact.cpp: products that the matrix array does not make: integers, which wrap around, on the vector unit, and
// float64 on the scalar core.
//
// Contract: every element is the sum of its products in order of k; nothing is fused. Rows go to threads.
#include <algorithm>

#include "gemm_exact.h"
#include "vector.h"

namespace npu {
namespace {

constexpr int64_t kColumns = 512;

template <class T, class W>
struct RowTimesBody {
  NPU_INLINE static void run(W factor, const T* b, W* sums, int64_t n) {
    NPU_IVDEP for (int64_t j = 0; j < n; j++) sums[j] += factor * static_cast<W>(b[j]);
  }
};

// W: what T's products are summed in. Unsigned integers wrap around as signed ones would.
template <class T, class W>
void product(const ExactProduct& p) {
  parallel_for(p.batch * p.m, kGrain / (p.n * p.k + 1) + 1, [&](int64_t begin, int64_t end, int) {
    W sums[kColumns];
    for (int64_t row = begin; row < end; row++) {
      const int64_t batch = row / p.m, i = row % p.m;
      const T* a = reinterpret_cast<const T*>(p.a) + batch * p.a_stride[0] + i * p.a_stride[1];
      const T* b = reinterpret_cast<const T*>(p.b) + batch * p.b_stride[0];
      T* out = reinterpret_cast<T*>(p.out) + batch * p.out_stride[0] + i * p.out_stride[1];
      for (int64_t j0 = 0; j0 < p.n; j0 += kColumns) {
        const int64_t n = std::min(kColumns, p.n - j0);
        const T* column = b + j0 * p.b_stride[2];
        std::fill_n(sums, n, W(0));
        if (p.b_stride[2] == 1 && !std::is_floating_point<T>::value) {
          for (int64_t k = 0; k < p.k; k++)
            simd<RowTimesBody<T, W>>(static_cast<W>(a[k * p.a_stride[2]]), column + k * p.b_stride[1],
                                     static_cast<W*>(sums), n);
        } else if (p.b_stride[2] <= p.b_stride[1]) {
          for (int64_t k = 0; k < p.k; k++) {
            const W factor = static_cast<W>(a[k * p.a_stride[2]]);
            const T* line = column + k * p.b_stride[1];
            for (int64_t j = 0; j < n; j++) sums[j] += factor * static_cast<W>(line[j * p.b_stride[2]]);
          }
        } else {
          for (int64_t j = 0; j < n; j++)
            for (int64_t k = 0; k < p.k; k++)
              sums[j] +=
                  static_cast<W>(a[k * p.a_stride[2]]) * static_cast<W>(column[j * p.b_stride[2] + k * p.b_stride[1]]);
        }
        for (int64_t j = 0; j < n; j++) out[(j0 + j) * p.out_stride[2]] = static_cast<T>(sums[j]);
      }
    }
  });
}

void run(const ExactProduct& p) {
  switch (p.dtype) {
    case NPU_INT8:
      return product<int8_t, uint32_t>(p);
    case NPU_UINT8:
      return product<uint8_t, uint32_t>(p);
    case NPU_INT16:
      return product<int16_t, uint32_t>(p);
    case NPU_INT32:
      return product<int32_t, uint32_t>(p);
    case NPU_INT64:
      return product<int64_t, uint64_t>(p);
    default:
      return product<double, double>(p);
  }
}

void strides(const View& v, int64_t to[3]) {
  to[0] = v.rank == 3 ? v.stride[0] : 0;
  to[1] = v.stride[v.rank - 2];
  to[2] = v.stride[v.rank - 1];
}

}  // namespace

npu_status_t submit_exact(npu_stream_t stream, const char* function, const View& a, const View& b, const View& out) {
  const int r = out.rank;
  ExactProduct p{
      a.data,         b.data, out.data, out.dtype, r == 3 ? out.shape[0] : 1, out.shape[r - 2], out.shape[r - 1],
      a.shape[r - 1], {},     {},       {}};
  strides(a, p.a_stride);
  strides(b, p.b_stride);
  strides(out, p.out_stride);
  const double products = static_cast<double>(p.batch * p.m) * static_cast<double>(p.n) * static_cast<double>(p.k);
  const Work work = p.dtype == NPU_FLOAT64
                        ? Work{products, 0, p.dtype, Work::scalar}
                        : Work{2 * products, view_bytes(a) + view_bytes(b) + view_bytes(out), p.dtype};
  return submit(stream, function, cycles(stream, work), [p] { run(p); });
}

}  // namespace npu
