// product.cpp: matrix products by CLBlast, which has measured parameters for many GPUs, where its library is installed.
#include <dlfcn.h>

#include <cstdlib>

#include "opencl.h"

namespace opencl {
namespace {

// CLBlast's strided batched product.
template <class R>
using Gemm = int (*)(int, int, int, size_t, size_t, size_t, R, cl_mem, size_t, size_t, size_t, cl_mem, size_t, size_t,
                     size_t, R, cl_mem, size_t, size_t, size_t, size_t, cl_command_queue *, cl_event *);
template <class R>
Gemm<R> gemm() {  // NULL: there is none
  static void *library = dlopen("libclblast.so.1", RTLD_NOW | RTLD_LOCAL);
  const char *name = sizeof(R) == 8 ? "CLBlastDgemmStridedBatched" : "CLBlastSgemmStridedBatched";
  return library ? reinterpret_cast<Gemm<R>>(dlsym(library, name)) : nullptr;
}

template <class R>
void run(cl_command_queue queue, const kit::Matmul &m) {
  const bool turn_a = m.a.column != 1, turn_b = m.b.column != 1;
  const auto stride = [&](int64_t step) { return size_t(m.batch > 1 ? step : 1); };  // it takes no 0
  const auto memory = [](const kit::Matrix &x) { return static_cast<cl_mem>(x.at.memory); };
  const auto offset = [](const kit::Matrix &x) { return size_t(x.at.offset / sizeof(R)); };
  const int code =
      gemm<R>()(101, turn_a ? 112 : 111, turn_b ? 112 : 111, size_t(m.M), size_t(m.N), size_t(m.K), R(m.alpha),
                memory(m.a), offset(m.a), size_t(turn_a ? m.a.column : m.a.row), stride(m.a.batch), memory(m.b),
                offset(m.b), size_t(turn_b ? m.b.column : m.b.row), stride(m.b.batch), R(m.beta), memory(m.y),
                offset(m.y), size_t(m.y.row), stride(m.y.batch), size_t(m.batch), &queue, nullptr);
  check(code, "CLBlast");
}

}  // namespace

bool Stream::takes(const kit::Matmul &m) const {
  const char *wanted = std::getenv("TORCHFL_OPENCL_CLBLAST");  // 1 or 0, against the rule for the kind of device
  if (!(wanted && *wanted ? *wanted == '1' : !device.cpu) || !m.K) return false;
  if (m.dtype != UBA_DTYPE_FLOAT32 && m.dtype != UBA_DTYPE_FLOAT64) return false;
  const auto fits = [](const kit::Matrix &x, int64_t rows, int64_t columns) {
    return x.column == 1 ? x.row >= columns : x.row == 1 && x.column >= rows;
  };
  if (!fits(m.a, m.M, m.K) || !fits(m.b, m.K, m.N) || m.y.column != 1 || m.y.row < m.N) return false;
  if (m.batch > 1 && (!m.a.batch || !m.b.batch)) return false;
  return m.dtype == UBA_DTYPE_FLOAT64 ? gemm<double>() != nullptr : gemm<float>() != nullptr;
}
void Stream::matmul(const kit::Matmul &m) {
  m.dtype == UBA_DTYPE_FLOAT64 ? run<double>(queue, m) : run<float>(queue, m);
}

}  // namespace opencl
