// register_kernel.cpp: the register kernel for each instruction set, and the choice at run time.
#include "register_kernel.h"

#if defined(__x86_64__)
#define SILICON_X86_64 1
#include <immintrin.h>
#endif

namespace silicon {

namespace {

typedef float float4 __attribute__((vector_size(16)));
typedef float float4_unaligned __attribute__((vector_size(16), aligned(4), may_alias));

namespace portable {
#define SILICON_TARGET
#define SILICON_MR 6
#define SILICON_LANES 4
#define vec float4
#define vec_load(p) (float4(*reinterpret_cast<const float4_unaligned*>(p)))
#define vec_store(p, v) (*reinterpret_cast<float4_unaligned*>(p) = (v))
#define vec_set1(x) (float4{(x), (x), (x), (x)})
#define vec_fma(x, y, z) ((x) * (y) + (z))
#include "register_kernel.inl"
}  // namespace portable

#ifdef SILICON_X86_64
namespace avx2 {
#define SILICON_TARGET __attribute__((target("avx2,fma")))
#define SILICON_MR 6
#define SILICON_LANES 8
#define vec __m256
#define vec_load(p) _mm256_loadu_ps(p)
#define vec_store(p, v) _mm256_storeu_ps(p, v)
#define vec_set1(x) _mm256_set1_ps(x)
#define vec_fma(x, y, z) _mm256_fmadd_ps(x, y, z)
#include "register_kernel.inl"
}  // namespace avx2

namespace avx512 {
#define SILICON_TARGET __attribute__((target("avx512f,avx2,fma")))
#define SILICON_MR 14
#define SILICON_LANES 16
#define vec __m512
#define vec_load(p) _mm512_loadu_ps(p)
#define vec_store(p, v) _mm512_storeu_ps(p, v)
#define vec_set1(x) _mm512_set1_ps(x)
#define vec_fma(x, y, z) _mm512_fmadd_ps(x, y, z)
#include "register_kernel.inl"
}  // namespace avx512
#endif

}  // namespace

const RegisterKernel& register_kernel() {
  static const RegisterKernel chosen = [] {
#ifdef SILICON_X86_64
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f")) return RegisterKernel{14, 32, avx512::run};
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return RegisterKernel{6, 16, avx2::run};
#endif
    return RegisterKernel{6, 8, portable::run};
  }();
  return chosen;
}

}  // namespace silicon
