// convert.cpp: between float32 and the 16-bit formats, in bulk, rounding to nearest even.
//
// Contract: infinities stay, overflow becomes infinity, subnormals are exact, NaNs stay NaN (made quiet, the upper bits
// of their payload kept), the sign of zero stays. Every path gives the same bits; the CPU decides at run time which
// runs.
#include <cstring>

#include "numbers.h"

#if defined(__x86_64__) || defined(__i386__)
#define SILICON_X86 1
#include <immintrin.h>
#endif

namespace silicon {

namespace {

inline uint32_t bits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}
inline float from_bits(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

inline float half_to_float_portable(uint16_t h) {
  uint32_t sign = uint32_t(h & 0x8000) << 16, magnitude = h & 0x7fff;
  if (magnitude >= 0x7c00) {  // infinity or NaN
    uint32_t quiet = magnitude > 0x7c00 ? 0x400000 : 0;
    return from_bits(sign | 0x7f800000 | (magnitude & 0x3ff) << 13 | quiet);
  }
  if (magnitude >= 0x400) return from_bits(sign | ((magnitude << 13) + (112u << 23)));
  float value = float(magnitude) * 0x1p-24f;  // subnormal: exact
  return from_bits(sign | bits(value));
}

inline uint16_t float_to_half_portable(float f) {
  uint32_t u = bits(f), sign = u >> 16 & 0x8000, magnitude = u & 0x7fffffff;
  if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00 | (magnitude >> 13 & 0x3ff));
  if (magnitude >= 0x47800000) return uint16_t(sign | 0x7c00);  // 2^16 and more
  if (magnitude < 0x38800000) {                                 // below 2^-14: the addition rounds at 2^-24
    float shifted = from_bits(magnitude) + 0.5f;
    return uint16_t(sign | (bits(shifted) - bits(0.5f)));
  }
  uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return uint16_t(sign | ((rounded - (112u << 23)) >> 13));  // a carry past the top gives infinity by itself
}

inline uint16_t float_to_bf16_portable(float f) {
  uint32_t u = bits(f);
  uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) >> 16;
  return uint16_t((u & 0x7fffffff) > 0x7f800000 ? (u >> 16) | 0x40 : rounded);
}

struct Converters {
  void (*half_to_float)(const uint16_t*, float*, int64_t);
  void (*float_to_half)(const float*, uint16_t*, int64_t);
  void (*bf16_to_float)(const uint16_t*, float*, int64_t);
  void (*float_to_bf16)(const float*, uint16_t*, int64_t);
};

void half_to_float_base(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = half_to_float_portable(in[i]);
}
void float_to_half_base(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = float_to_half_portable(in[i]);
}
void bf16_to_float_base(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = bf16_to_float1(in[i]);
}
void float_to_bf16_base(const float* in, uint16_t* out, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = float_to_bf16_portable(in[i]);
}

#ifdef SILICON_X86

#define SILICON_AVX2 __attribute__((target("avx2,f16c,fma")))
#define SILICON_AVX512 __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,f16c,fma")))

SILICON_AVX2 void half_to_float_avx2(const uint16_t* in, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i))));
  }
  half_to_float_base(in + i, out + i, n - i);
}

SILICON_AVX2 void float_to_half_avx2(const float* in, uint16_t* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m128i h = _mm256_cvtps_ph(_mm256_loadu_ps(in + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), h);
  }
  float_to_half_base(in + i, out + i, n - i);
}

SILICON_AVX2 void bf16_to_float_avx2(const uint16_t* in, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(in + i)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm256_slli_epi32(wide, 16));
  }
  bf16_to_float_base(in + i, out + i, n - i);
}

SILICON_AVX2 void float_to_bf16_avx2(const float* in, uint16_t* out, int64_t n) {
  int64_t i = 0;
  const __m256i bias = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1), quiet = _mm256_set1_epi32(0x40);
  for (; i + 8 <= n; i += 8) {
    __m256 x = _mm256_loadu_ps(in + i);
    __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(bias, _mm256_and_si256(high, one))), 16);
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i r = _mm256_blendv_epi8(rounded, _mm256_or_si256(high, quiet), nan);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(r, r), 0xd8);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_castsi256_si128(packed));
  }
  float_to_bf16_base(in + i, out + i, n - i);
}

SILICON_AVX512 void half_to_float_avx512(const uint16_t* in, float* out, int64_t n) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm512_storeu_ps(out + i, _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(in + i))));
  }
  if (i < n) {
    __mmask16 rest = __mmask16((1u << (n - i)) - 1);
    _mm512_mask_storeu_ps(out + i, rest, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(rest, in + i)));
  }
}

SILICON_AVX512 void float_to_half_avx512(const float* in, uint16_t* out, int64_t n) {
  constexpr int nearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), _mm512_cvtps_ph(_mm512_loadu_ps(in + i), nearest));
  }
  if (i < n) {
    __mmask16 rest = __mmask16((1u << (n - i)) - 1);
    _mm256_mask_storeu_epi16(out + i, rest, _mm512_cvtps_ph(_mm512_maskz_loadu_ps(rest, in + i), nearest));
  }
}

SILICON_AVX512 void bf16_to_float_avx512(const uint16_t* in, float* out, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    __mmask16 some = n - i >= 16 ? __mmask16(0xffff) : __mmask16((1u << (n - i)) - 1);
    __m512i wide = _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(some, in + i)), 16);
    _mm512_mask_storeu_ps(out + i, some, _mm512_castsi512_ps(wide));
  }
}

SILICON_AVX512 void float_to_bf16_avx512(const float* in, uint16_t* out, int64_t n) {
  const __m512i bias = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1), quiet = _mm512_set1_epi32(0x40);
  for (int64_t i = 0; i < n; i += 16) {
    __mmask16 some = n - i >= 16 ? __mmask16(0xffff) : __mmask16((1u << (n - i)) - 1);
    __m512 x = _mm512_maskz_loadu_ps(some, in + i);
    __m512i u = _mm512_castps_si512(x), high = _mm512_srli_epi32(u, 16);
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(bias, _mm512_and_si512(high, one))), 16);
    __m512i r = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), high, quiet);
    _mm256_mask_storeu_epi16(out + i, some, _mm512_cvtepi32_epi16(r));
  }
}

#endif

const Converters& converters() {
  static const Converters chosen = [] {
#ifdef SILICON_X86
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq")) {
      return Converters{half_to_float_avx512, float_to_half_avx512, bf16_to_float_avx512, float_to_bf16_avx512};
    }
    // Every CPU with AVX2 has F16C.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      return Converters{half_to_float_avx2, float_to_half_avx2, bf16_to_float_avx2, float_to_bf16_avx2};
    }
#endif
    return Converters{half_to_float_base, float_to_half_base, bf16_to_float_base, float_to_bf16_base};
  }();
  return chosen;
}

}  // namespace

void half_to_float(const uint16_t* in, float* out, int64_t n) { converters().half_to_float(in, out, n); }
void float_to_half(const float* in, uint16_t* out, int64_t n) { converters().float_to_half(in, out, n); }
void bf16_to_float(const uint16_t* in, float* out, int64_t n) { converters().bf16_to_float(in, out, n); }
void float_to_bf16(const float* in, uint16_t* out, int64_t n) { converters().float_to_bf16(in, out, n); }
float half_to_float1(uint16_t h) { return half_to_float_portable(h); }
uint16_t float_to_half1(float f) { return float_to_half_portable(f); }
uint16_t float_to_bf161(float f) { return float_to_bf16_portable(f); }

}  // namespace silicon
