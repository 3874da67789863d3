// gemm.cpp: the matrix unit: npu_v3_matmul and its two variants, which differ in device time only.
//
// Contract: see the header. Sums are float32 (int8: exact int32) and rounded once, after alpha and beta*c.
#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "device.h"
#include "epilogue.h"
#include "gemm_engine.h"
#include "gemm_exact.h"
#include "matrix_clock.h"

namespace npu {

namespace {

struct Matrix {
  char* data;
  int32_t dtype;
  int64_t batch, row, column;  // strides in elements
};

Matrix matrix(const View& v) {
  int r = v.rank;
  return {v.data, v.dtype, r == 3 ? v.stride[0] : 0, v.stride[r - 2], v.stride[r - 1]};
}
Matrix transposed(Matrix x) {
  std::swap(x.row, x.column);
  return x;
}

struct MatmulCommand {
  Matrix a, b, c, out;
  int64_t batch, m, n, k;
  float alpha, beta;
  Epilogue epilogue;

  void operator()() {
    constexpr int64_t small = 1 << 21;  // multiply-adds
    if (batch >= 2 * compute_threads() && m * n * k <= small) {
      parallel_for(batch, 1, [&](int64_t begin, int64_t end, int thread) {
        for (int64_t i = begin; i < end; i++) one(i, thread);
      });
    } else {
      for (int64_t i = 0; i < batch; i++) one(i, 0);
    }
  }

  void one(int64_t i, int thread) {
    size_t size = dtype_size(a.dtype);
    Operand x{a.data + a.batch * i * int64_t(size), a.dtype, {nullptr, a.row}, {nullptr, a.column}};
    Operand y{b.data + b.batch * i * int64_t(size), b.dtype, {nullptr, b.column}, {nullptr, b.row}};
    if (a.dtype == NPU_INT8) return exact(x, y, reinterpret_cast<int32_t*>(out.data) + out.batch * i, thread);
    gemm(
        m, n, k, x, y,
        [&](int64_t row, int64_t column, int64_t count, const float* sums) { finish(i, row, column, count, sums); },
        thread);
  }

  void finish(int64_t i, int64_t row, int64_t column, int64_t count, const float* sums) const {
    int64_t at = out.batch * i + row * out.row + column * out.column;
    if (alpha == 1 && beta == 0 && !epilogue)
      return store_floats(sums, count, out.data, out.dtype, at, {nullptr, out.column});
    float scaled[512], addend[512];
    for (int64_t done = 0; done < count; done += 512) {
      int64_t some = std::min<int64_t>(512, count - done);
      for (int64_t j = 0; j < some; j++) scaled[j] = alpha * sums[done + j];
      if (beta != 0) {
        load_floats(c.data, c.dtype, c.batch * i + row * c.row + (column + done) * c.column, c.column, some, addend);
        for (int64_t j = 0; j < some; j++) scaled[j] += beta * addend[j];
      }
      if (epilogue) {
        if (epilogue.residual)
          load_floats(epilogue.residual, out.dtype, at + done * out.column, out.column, some, addend);
        epilogue.apply(0, 0, scaled, epilogue.residual ? addend : nullptr, scaled, some);
      }
      store_floats(scaled, some, out.data, out.dtype, at + done * out.column, {nullptr, out.column});
    }
  }

  // Sums of up to kExactInt8Terms products are exact in float32; the sums of those are added as integers.
  void exact(Operand x, Operand y, int32_t* to, int thread) const {
    for (int64_t k0 = 0; k0 == 0 || k0 < k; k0 += kExactInt8Terms) {
      gemm(
          m, n, std::min(kExactInt8Terms, k - k0), x, y,
          [&](int64_t row, int64_t column, int64_t count, const float* sums) {
            int32_t* p = to + row * out.row + column * out.column;
            for (int64_t j = 0; j < count; j++) {
              int32_t& total = p[j * out.column];
              total = int32_t(uint32_t(k0 ? total : 0) + uint32_t(int32_t(sums[j])));
            }
          },
          thread);
      x.data = static_cast<const int8_t*>(x.data) + kExactInt8Terms * a.column;
      y.data = static_cast<const int8_t*>(y.data) + kExactInt8Terms * b.row;
    }
  }

  // A batch that shares b, and whose rows follow one another, is one taller product.
  void fold_batch() {
    if (batch > 1 && b.batch == 0 && a.batch == m * a.row && out.batch == m * out.row &&
        (!c.data || c.batch == m * c.row)) {
      m *= batch;
      batch = 1;
    }
  }

  // Results are written along rows: have the rows be what lies side by side.
  void face_output() {
    if (out.column != 1 && out.row == 1) {
      std::swap(a, b);
      a = transposed(a);
      b = transposed(b);
      c = transposed(c);
      out = transposed(out);
      std::swap(m, n);
    }
  }
};

npu_status_t matmul(npu_stream_t stream, const char* function, MatmulPath path, const npu_tensor_t* a,
                    const npu_tensor_t* b, const npu_tensor_t* c, double alpha, double beta, const npu_tensor_t* out,
                    const npu_epilogue_t* epilogue = nullptr) {
  const uint32_t inputs = kFloats | (epilogue ? 0 : kExactProducts);
  View va, vb, vc, vo;
  npu_status_t status = resolve(stream, a, inputs, Engine::compute, false, function, "a", &va);
  if (!status) status = resolve(stream, b, inputs, Engine::compute, false, function, "b", &vb);
  if (!status) status = resolve(stream, c, kFloats, Engine::compute, true, function, "c", &vc);
  if (!status) status = resolve(stream, out, inputs, Engine::compute, false, function, "out", &vo);
  if (status) return status;
  int r = vo.rank;
  if (r < 2 || r > 3 || va.rank != r || vb.rank != r || (vc && vc.rank != r)) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: ranks %d, %d and %d of a, b and out: expected all 2 or all 3", function,
                va.rank, vb.rank, r);
  }
  bool exact = kExactProducts & mask(va.dtype), widens = va.dtype == NPU_INT8 && vo.dtype == NPU_INT32;
  if (vb.dtype != va.dtype || (vo.dtype != va.dtype && !widens) || (vc && vc.dtype != va.dtype)) {
    return fail(NPU_STATUS_INVALID_VALUE,
                "%s: dtypes %d, %d and %d of a, b and out: expected one dtype, or INT8, INT8 and INT32", function,
                va.dtype, vb.dtype, vo.dtype);
  }
  if (exact && (vc || alpha != 1)) {
    return fail(NPU_STATUS_NOT_SUPPORTED,
                "%s: integers (INT8 and others) and FLOAT64 take neither c nor an alpha but 1", function);
  }
  MatmulCommand command{matrix(va),
                        matrix(vb),
                        vc ? matrix(vc) : Matrix{},
                        matrix(vo),
                        r == 3 ? vo.shape[0] : 1,
                        vo.shape[r - 2],
                        vo.shape[r - 1],
                        va.shape[r - 1],
                        float(alpha),
                        vc ? float(beta) : 0.0f,
                        {}};
  bool same_batch = r == 2 || (va.shape[0] == vo.shape[0] && vb.shape[0] == vo.shape[0]);
  if (va.shape[r - 2] != command.m || vb.shape[r - 1] != command.n || vb.shape[r - 2] != command.k || !same_batch) {
    return fail(NPU_STATUS_INVALID_VALUE,
                "%s: a [%" PRId64 ", %" PRId64 "] @ b [%" PRId64 ", %" PRId64 "] does not give out [%" PRId64
                ", %" PRId64 "]%s",
                function, va.shape[r - 2], va.shape[r - 1], vb.shape[r - 2], vb.shape[r - 1], command.m, command.n,
                same_batch ? "" : ": the batches differ");
  }
  if (vc && !std::equal(vc.shape, vc.shape + r, vo.shape)) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: c has another shape than out: express broadcasting by stride 0",
                function);
  }
  status = resolve_epilogue(stream, function, epilogue, vo, -1, &command.epilogue);
  if (status) return status;
  if (!vo.numel()) return check_stream(stream, function);
  if (exact && !widens) return submit_exact(stream, function, va, vb, vo);
  uint64_t cost = matmul_cycles(path, command.batch, command.m, command.n, command.k, va.dtype, vo.dtype, bool(vc)) +
                  epilogue_cycles(command.epilogue, vo);
  command.fold_batch();
  command.face_output();
  return submit(stream, function, cost, command);
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" {

NPU_API npu_status_t npu_v3_matmul(npu_stream_t stream, const npu_tensor_t* a, const npu_tensor_t* b,
                                   const npu_tensor_t* c, double alpha, double beta, const npu_tensor_t* out) {
  return matmul(stream, "npu_v3_matmul", MatmulPath::generic, a, b, c, alpha, beta, out);
}

NPU_API npu_status_t npu_v3_matmul_tiled(npu_stream_t stream, const npu_tensor_t* a, const npu_tensor_t* b,
                                         const npu_tensor_t* c, double alpha, double beta, const npu_tensor_t* out) {
  return matmul(stream, "npu_v3_matmul_tiled", MatmulPath::tiled, a, b, c, alpha, beta, out);
}

NPU_API npu_status_t npu_v3_matmul_pipelined(npu_stream_t stream, const npu_tensor_t* a, const npu_tensor_t* b,
                                             const npu_tensor_t* c, double alpha, double beta,
                                             const npu_tensor_t* out) {
  return matmul(stream, "npu_v3_matmul_pipelined", MatmulPath::pipelined, a, b, c, alpha, beta, out);
}

NPU_API npu_status_t npu_v3_matmul_epilogue(npu_stream_t stream, const npu_tensor_t* a, const npu_tensor_t* b,
                                            const npu_tensor_t* c, double alpha, double beta,
                                            const npu_epilogue_t* epilogue, const npu_tensor_t* out) {
  return matmul(stream, "npu_v3_matmul_epilogue", MatmulPath::tiled, a, b, c, alpha, beta, out, epilogue);
}

}  // extern "C"
