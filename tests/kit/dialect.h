// dialect.h: the kit's kernel language as C++: what stands before each kernel on the test's device.
//
// One work-item after the other, so a work-group has one item, and no vectors: Device::cpu and Device::lanes = 1. The
// kernel stands in a namespace; the device closes it, and adds the function that is called (host_device.h).
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

static long item[3];
template <class To, class From>
static To bits_as(From x) {
  To y;
  static_assert(sizeof(x) == sizeof(y));
  return std::memcpy(&y, &x, sizeof(y)), y;
}

namespace kernel {
using namespace std;

#define KERNEL static
#define GLOBAL
#define LOCAL
#define BARRIER()
#define ITEMS(x, y)
#define EXACT
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
struct half {
  ushort bits;
};

static long get_global_id(int d) { return item[d]; }
static long get_group_id(int d) { return item[d]; }
static long get_local_id(int) { return 0; }
static float as_float(int x) { return bits_as<float>(x); }
static int as_int(float x) { return bits_as<int>(x); }
static uint as_uint(float x) { return bits_as<uint>(x); }
static double as_double(long x) { return bits_as<double>(x); }
template <class T>
static T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
static T max(T a, T b) {
  return a < b ? b : a;
}
template <class T>
static T rsqrt(T x) {
  return 1 / sqrt(x);
}
static uint mul_hi(uint a, uint b) { return uint(ulong(a) * b >> 32); }

static float vload_half(long i, const half *p) {
  const uint h = p[i].bits, e = h >> 10 & 31, m = h & 1023;
  const float x = e == 31 ? (m ? NAN : INFINITY) : e ? ldexp(float(m | 1024), int(e) - 25) : ldexp(float(m), -24);
  return h >> 15 ? -x : x;
}
static void vstore_half(float x, long i, half *p) {  // to the nearest, ties to even
  int e;
  const float a = fabs(x);
  frexp(a, &e);
  const int step = e - 11 < -24 ? -24 : e - 11;
  const float m = rint(ldexp(a, -step));  // exact before it is rounded
  const uint h = isnan(x) ? 0x7e00 : a >= 65520 ? 0x7c00 : uint(m) + (uint(step + 24) << 10);
  p[i].bits = ushort(h | (signbit(x) ? 0x8000 : 0));
}
#define vstore_half_rte vstore_half
