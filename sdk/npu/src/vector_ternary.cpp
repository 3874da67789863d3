// vector_ternary.cpp: npu_v3_ternary: select, lerp, addcmul, addcdiv and clamp.
//
// Contract: the header's. SELECT is select.cpp's; the others compute in float32, ADDCMUL and CLAMP also on integers. In
// CLAMP a NaN in x or in a bound gives NaN.
#include "select.h"
#include "vector.h"

namespace npu {
namespace {

template <class Op, class T>
struct TernaryBody {
  NPU_INLINE static void run(const void* a_, const void* b_, const void* c_, void* o_, int64_t n,
                             const Params* params) {
    const T* a = static_cast<const T*>(a_);
    const T* b = static_cast<const T*>(b_);
    const T* c = static_cast<const T*>(c_);
    T* o = static_cast<T*>(o_);
    const Params p = *params;
    NPU_IVDEP for (int64_t i = 0; i < n; i++) o[i] = Op::f(a[i], b[i], c[i], p);
  }
};
struct Lerp {  // from the nearer end, so that weight 1 gives b exactly
  NPU_INLINE static float f(float a, float b, float weight, const Params&) {
    const float d = b - a;
    const float from_a = a + weight * d;
    const float from_b = b - d * (1 - weight);
    return __builtin_fabsf(weight) < 0.5f ? from_a : from_b;
  }
};
struct Addcmul {
  NPU_INLINE static float f(float a, float b, float c, const Params& p) { return a + p.f0 * b * c; }
  NPU_INLINE static int64_t f(int64_t a, int64_t b, int64_t c, const Params& p) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) +
                                static_cast<uint64_t>(p.i0) * static_cast<uint64_t>(b) * static_cast<uint64_t>(c));
  }
};
struct Addcdiv {
  NPU_INLINE static float f(float a, float b, float c, const Params& p) { return a + p.f0 * b / c; }
};
struct ClampBoth {
  template <class T>
  NPU_INLINE static T f(T x, T least, T most, const Params&) {
    const T raised = ((x < least) | (least != least)) ? least : x;
    const T result = ((raised > most) | (most != most)) ? most : raised;
    return x != x ? x : result;
  }
};

struct Table {
  Kernel lerp = kernel<TernaryBody<Lerp, float>>();
  Kernel addcmul = kernel<TernaryBody<Addcmul, float>>(), addcmul_int = kernel<TernaryBody<Addcmul, int64_t>>();
  Kernel addcdiv = kernel<TernaryBody<Addcdiv, float>>();
  Kernel clamp = kernel<TernaryBody<ClampBoth, float>>(), clamp_int = kernel<TernaryBody<ClampBoth, int64_t>>();
};
const Table& table() {
  static const Table t;
  return t;
}

const char* const kNames[] = {"", "SELECT", "LERP", "ADDCMUL", "ADDCDIV", "CLAMP"};

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_ternary(npu_stream_t stream, int32_t opcode, const npu_tensor_t* a,
                                       const npu_tensor_t* b, const npu_tensor_t* c, npu_scalar_t s,
                                       const npu_tensor_t* out) {
  static const char fn[] = "npu_v3_ternary";
  if (opcode < NPU_TERNARY_SELECT || opcode > NPU_TERNARY_CLAMP)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: opcode %d is unknown, expected %d to %d", fn, opcode, NPU_TERNARY_SELECT,
                NPU_TERNARY_CLAMP);
  const char* name = kNames[opcode];
  const bool select = opcode == NPU_TERNARY_SELECT;
  if (select && (b || c)) {
    static const char* const names[] = {"a", "b", "c"};
    return npu::select(stream, fn, names, a, b, c, s, s, out);
  }
  const bool integers = opcode == NPU_TERNARY_ADDCMUL || opcode == NPU_TERNARY_CLAMP;
  const bool b_optional = select || opcode == NPU_TERNARY_CLAMP;
  const bool c_optional = b_optional || opcode == NPU_TERNARY_LERP;
  View va, vb, vc, vo;
  const uint32_t dtypes = select ? kAll : integers ? kFloats | kInts : kFloats;
  NPU_TRY(resolve(stream, out, dtypes, Engine::compute, false, fn, "out", &vo));
  NPU_TRY(resolve(stream, a, select ? mask(NPU_BOOL) : dtypes, Engine::compute, false, fn, "a", &va));
  NPU_TRY(resolve(stream, b, dtypes, Engine::compute, b_optional, fn, "b", &vb));
  NPU_TRY(resolve(stream, c, dtypes, Engine::compute, c_optional, fn, "c", &vc));
  if (b_optional && !vb && !vc)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: NPU_TERNARY_%s: b and c are both NULL, expected a tensor in one of them",
                fn, name);
  NPU_TRY(same_dtype(fn, "a", va, vo.dtype));
  NPU_TRY(same_shape(fn, "a", va, vo));
  if (vb) {
    NPU_TRY(same_dtype(fn, "b", vb, vo.dtype));
    NPU_TRY(same_shape(fn, "b", vb, vo));
  }
  if (vc) {
    NPU_TRY(same_dtype(fn, "c", vc, vo.dtype));
    NPU_TRY(same_shape(fn, "c", vc, vo));
  }
  NPU_TRY(writable(fn, "out", vo));

  Program program;
  const View* views[4] = {&vo, &va};
  int place[4] = {0, 1}, count = 2;
  if (vb) place[count] = 2, views[count++] = &vb;
  if (vc) place[count] = 3, views[count++] = &vc;
  Operand operands[4];
  collapse(views, count, true, ~0u, &program.loop, operands);
  if (program.loop.n == 0) return NPU_STATUS_SUCCESS;
  for (int k = 0; k < count; k++) program.operand[place[k]] = operands[k];

  const Table& t = table();
  program.inputs = 3;
  program.in = program.out = compute_of(vo.dtype);
  const bool floats = program.in == Compute::f32;
  program.params.f0 = static_cast<float>(scalar_double(s));
  program.params.i0 = scalar_int(s);
  program.scalar_f = scalar_double(s);
  program.scalar_i = scalar_int(s);
  switch (opcode) {
    case NPU_TERNARY_LERP:
      program.run = t.lerp;
      break;
    case NPU_TERNARY_ADDCMUL:
      program.run = floats ? t.addcmul : t.addcmul_int;
      break;
    case NPU_TERNARY_ADDCDIV:
      program.run = t.addcdiv;
      break;
    default:
      program.run = floats ? t.clamp : t.clamp_int;
      // The absent bound is one that nothing passes.
      program.scalar_f = vb ? __builtin_inf() : -__builtin_inf();
      program.scalar_i = vb ? INT64_MAX : INT64_MIN;
  }
  const double n = static_cast<double>(program.loop.n);
  const Work work{n * (opcode == NPU_TERNARY_ADDCDIV ? 6 : 3), n * count * dtype_size(vo.dtype), vo.dtype};
  return submit_program(stream, fn, cycles(stream, work), program, [](int32_t) {});
}
