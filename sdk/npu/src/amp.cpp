// amp.cpp: the mixed-precision helpers: unscaling gradients with a check for non-finite ones, and the scale's update.
//
// Contract: the header's. `scale` and `found_inf` are read when the command runs, so no host round trip is needed.
#include <cmath>

#include "vector.h"

namespace npu {
namespace {

struct UnscaleBody {
  NPU_INLINE static void run(const void* a_, const void*, const void*, void* o_, int64_t n, const Params* params) {
    const float* a = static_cast<const float*>(a_);
    float* o = static_cast<float*>(o_);
    const float scale = *params->device;
    uint32_t bad = 0;
    NPU_IVDEP for (int64_t i = 0; i < n; i++) {
      const float x = a[i];
      bad |= !(__builtin_fabsf(x) < __builtin_inff());
      o[i] = x * scale;
    }
    if (bad) __atomic_store_n(params->flag, 1, __ATOMIC_RELAXED);
  }
};

// A single number, of rank 0 or shape [1].
npu_status_t resolve_number(npu_stream_t stream, const npu_tensor_t* tensor, int32_t dtype, const char* fn,
                            const char* what, View* out) {
  NPU_TRY(resolve(stream, tensor, mask(dtype), Engine::compute, false, fn, what, out));
  if (out->numel() == 1) return NPU_STATUS_SUCCESS;
  return fail(NPU_STATUS_INVALID_VALUE, "%s: %s has %lld elements, expected 1", fn, what,
              static_cast<long long>(out->numel()));
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_unscale(npu_stream_t stream, const npu_tensor_t* x, const npu_tensor_t* scale,
                                       const npu_tensor_t* found_inf) {
  static const char fn[] = "npu_v3_unscale";
  View vx, vs, vf;
  NPU_TRY(resolve(stream, x, kFloats, Engine::compute, false, fn, "x", &vx));
  NPU_TRY(resolve_number(stream, scale, NPU_FLOAT32, fn, "scale", &vs));
  NPU_TRY(resolve_number(stream, found_inf, NPU_FLOAT32, fn, "found_inf", &vf));
  NPU_TRY(writable(fn, "x", vx));
  Program program;
  const View* views[2] = {&vx, &vx};
  collapse(views, 2, true, ~0u, &program.loop, program.operand);
  if (program.loop.n == 0) return NPU_STATUS_SUCCESS;
  program.run = kernel<UnscaleBody>();
  program.inputs = 1;
  program.params.device = reinterpret_cast<const float*>(vs.data);
  float* found = reinterpret_cast<float*>(vf.data);
  const Work work{2.0 * static_cast<double>(program.loop.n), 2 * view_bytes(vx), vx.dtype};
  return submit_program(stream, fn, cycles(stream, work), program, [found](int32_t bad) {
    if (bad) *found = 1;
  });
}

extern "C" npu_status_t npu_v3_update_scale(npu_stream_t stream, const npu_tensor_t* scale, const npu_tensor_t* tracker,
                                            const npu_tensor_t* found_inf, double growth, double backoff,
                                            int32_t interval) {
  static const char fn[] = "npu_v3_update_scale";
  View vs, vt, vf;
  NPU_TRY(resolve_number(stream, scale, NPU_FLOAT32, fn, "scale", &vs));
  NPU_TRY(resolve_number(stream, tracker, NPU_INT32, fn, "tracker", &vt));
  NPU_TRY(resolve_number(stream, found_inf, NPU_FLOAT32, fn, "found_inf", &vf));
  float* s = reinterpret_cast<float*>(vs.data);
  int32_t* t = reinterpret_cast<int32_t*>(vt.data);
  const float* found = reinterpret_cast<const float*>(vf.data);
  return submit(stream, fn, cycles(stream, Work{4, 12, NPU_FLOAT32}), [=] {
    if (*found != 0) {
      *s = static_cast<float>(*s * backoff);
      *t = 0;
    } else if (*t + 1 == interval) {
      const float grown = static_cast<float>(*s * growth);
      if (std::fabs(grown) < __builtin_inff()) *s = grown;
      *t = 0;
    } else {
      *t += 1;
    }
  });
}
