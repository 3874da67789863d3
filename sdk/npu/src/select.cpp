// select.cpp: npu_v3_select, which npu_v3_ternary's SELECT is too: one of two elements, as a truth value says.
//
// Contract: the header's. Elements of any dtype are moved without being looked at: a NaN's bits stay, and float64 costs
// what its bytes do.
#include "select.h"

#include <initializer_list>

#include "vector.h"

namespace npu {
namespace {

// Tensors b and c, either of which may be absent: a scalar's bits are then in params.i0 and i1.
template <class T, bool kHasB, bool kHasC>
struct SelectBody {
  NPU_INLINE static void run(const void* a_, const void* b_, const void* c_, void* o_, int64_t n,
                             const Params* params) {
    const uint8_t* a = static_cast<const uint8_t*>(a_);
    const T* b = static_cast<const T*>(b_);
    const T* c = static_cast<const T*>(kHasB ? c_ : b_);
    T* o = static_cast<T*>(o_);
    const T s0 = static_cast<T>(params->i0), s1 = static_cast<T>(params->i1);
    NPU_IVDEP for (int64_t i = 0; i < n; i++) {
      const T yes = kHasB ? b[i] : s0, no = kHasC ? c[i] : s1;
      o[i] = a[i] ? yes : no;
    }
  }
};
template <class T>
Kernel choose(bool b, bool c) {
  if (b) return c ? kernel<SelectBody<T, true, true>>() : kernel<SelectBody<T, true, false>>();
  return c ? kernel<SelectBody<T, false, true>>() : kernel<SelectBody<T, false, false>>();
}

}  // namespace

npu_status_t select(npu_stream_t stream, const char* fn, const char* const names[3], const npu_tensor_t* cond,
                    const npu_tensor_t* b, const npu_tensor_t* c, npu_scalar_t s_b, npu_scalar_t s_c,
                    const npu_tensor_t* out) {
  View vo, va, vb, vc;
  NPU_TRY(resolve(stream, out, kAll, Engine::compute, false, fn, "out", &vo));
  NPU_TRY(resolve(stream, cond, mask(NPU_BOOL), Engine::compute, false, fn, names[0], &va));
  NPU_TRY(resolve(stream, b, kAll, Engine::compute, true, fn, names[1], &vb));
  NPU_TRY(resolve(stream, c, kAll, Engine::compute, true, fn, names[2], &vc));
  NPU_TRY(same_shape(fn, names[0], va, vo));
  NPU_TRY(writable(fn, "out", vo));
  Program program;
  const View* views[4] = {&vo, &va};
  int count = 2;
  for (const View* v : {&vb, &vc}) {
    if (!*v) continue;
    NPU_TRY(same_dtype(fn, names[v == &vb ? 1 : 2], *v, vo.dtype));
    NPU_TRY(same_shape(fn, names[v == &vb ? 1 : 2], *v, vo));
    views[count++] = v;
  }
  collapse(views, count, true, ~0u, &program.loop, program.operand);
  if (program.loop.n == 0) return NPU_STATUS_SUCCESS;
  program.inputs = count - 1;
  program.in = program.out = Compute::raw;
  const size_t size = dtype_size(vo.dtype);
  const bool has_b = bool(vb), has_c = bool(vc);
  program.run = size == 1   ? choose<uint8_t>(has_b, has_c)
                : size == 2 ? choose<uint16_t>(has_b, has_c)
                : size == 4 ? choose<uint32_t>(has_b, has_c)
                            : choose<uint64_t>(has_b, has_c);
  program.params.i0 = element_bits(s_b, vo.dtype);
  program.params.i1 = element_bits(s_c, vo.dtype);
  const double n = static_cast<double>(program.loop.n);
  const Work work{n * 3, n * count * static_cast<double>(size), vo.dtype};
  return submit_program(stream, fn, cycles(stream, work), program, [](int32_t) {});
}

}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_select(npu_stream_t stream, const npu_tensor_t* cond, const npu_tensor_t* a,
                                      const npu_tensor_t* b, npu_scalar_t s_a, npu_scalar_t s_b,
                                      const npu_tensor_t* out) {
  static const char* const names[] = {"cond", "a", "b"};
  return select(stream, "npu_v3_select", names, cond, a, b, s_a, s_b, out);
}
