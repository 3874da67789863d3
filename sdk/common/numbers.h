// numbers.h: between float32 and the 16-bit formats, rounding to nearest even. Contract: see convert.cpp.
#pragma once
#include <cstdint>
#include <cstring>

namespace silicon {

void half_to_float(const uint16_t* in, float* out, int64_t n);
void float_to_half(const float* in, uint16_t* out, int64_t n);
void bf16_to_float(const uint16_t* in, float* out, int64_t n);
void float_to_bf16(const float* in, uint16_t* out, int64_t n);
float half_to_float1(uint16_t h);
uint16_t float_to_half1(float f);
inline float bf16_to_float1(uint16_t b) {
  uint32_t u = uint32_t(b) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
uint16_t float_to_bf161(float f);

}  // namespace silicon
