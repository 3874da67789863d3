// vector.cl: what generated kernels are made of. The host defines V, the elements that one work-item computes.
//
// In registers float16 and bfloat16 are float, and bool is a mask: for V = 1 an int of 0 or 1, else 0 or -1 in each
// element.
EXACT
#ifdef FP64
typedef double wide;  // for functions that need more than float to be right to its last places
#else
typedef float wide;
#endif
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)

float from_bf16(ushort x) { return as_float((uint)x << 16); }
ushort to_bf16(float x) { return isnan(x) ? 0x7fc0 : (as_uint(x) + 0x7fff + (as_uint(x) >> 16 & 1)) >> 16; }
float from_half(ushort x) { return vload_half(0, (const half *)&x); }
ushort to_half(float x) {
  ushort bits;
  vstore_half_rte(x, 0, (half *)&bits);
  return bits;
}
#define AS_f16(x) from_half(to_half(x))
#define AS_bf16(x) from_bf16(to_bf16(x))

// Elements in memory, by the name of their dtype.
#define LD_f16(p, i) vload_half(i, p)
#define ST_f16(p, i, x) vstore_half_rte(x, i, p)
#define LD_bf16(p, i) from_bf16((p)[i])
#define ST_bf16(p, i, x) ((p)[i] = to_bf16(x))
#define LD_bool(p, i) ((p)[i] != 0)
#define ST_bool(p, i, x) ((p)[i] = (x) != 0)
#define LD_num(p, i) (p)[i]
#define ST_num(p, i, x) ((p)[i] = (x))

#if V == 1
#define SEL(T, c, a, b) ((c) ? (T)(a) : (T)(b))
#define MASK(x) ((x) != 0)
#define FLOAT(m) ((float)(m))
#else
typedef CAT(float, V) floatv;
typedef CAT(int, V) intv;
typedef CAT(uint, V) uintv;
typedef CAT(ushort, V) ushortv;
typedef CAT(uchar, V) ucharv;
#define SEL(T, c, a, b) select((T)(b), (T)(a), (c))
#define MASK(x) ((intv)(-((x) != 0)))
#define FLOAT(m) CAT(convert_float, V)((m) & 1)
#define VLOAD CAT(vload, V)
#define VSTORE CAT(vstore, V)
// `left` elements are there from `i` on; the last work-item may have fewer than V.
#define LOADER(dtype, type, rtype, one, whole)                                     \
  rtype LDV_##dtype(GLOBAL const type *p, long i, long left) {                   \
    if (left >= V) return whole;                                                   \
    CAT(rtype, _e) part[V];                                                        \
    for (int k = 0; k < V; k++) part[k] = k < left ? one : 0;                      \
    return VLOAD(0, part);                                                         \
  }
#define STORER(dtype, type, rtype, whole)                                          \
  void STV_##dtype(GLOBAL type *p, long i, rtype x, long left) {                 \
    if (left >= V) { whole; return; }                                              \
    CAT(rtype, _e) part[V];                                                        \
    VSTORE(x, 0, part);                                                            \
    for (int k = 0; k < left; k++) ST_##dtype(p, i + k, part[k]);                  \
  }
typedef float floatv_e;
typedef int intv_e;
uintv bf16_bits(floatv x) {
  const uintv u = CAT(as_uint, V)(x);
  return select((u + 0x7fffu + (u >> 16 & 1u)) >> 16, (uintv)(0x7fc0), isnan(x));
}
floatv AS_f16v(floatv x) {
  ushort bits[V];
  CAT(CAT(vstore_half, V), _rte)(x, 0, (half *)bits);
  return CAT(vload_half, V)(0, (const half *)bits);
}
#define AS_bf16v(x) CAT(as_float, V)(bf16_bits(x) << 16)
LOADER(num, float, floatv, p[i + k], VLOAD(0, p + i))
LOADER(f16, half, floatv, LD_f16(p, i + k), CAT(vload_half, V)(0, p + i))
LOADER(bf16, ushort, floatv, LD_bf16(p, i + k), CAT(as_float, V)(CAT(convert_uint, V)(VLOAD(0, p + i)) << 16))
LOADER(bool, uchar, intv, -(p[i + k] != 0), -(CAT(convert_int, V)(VLOAD(0, p + i)) & 1))
STORER(num, float, floatv, VSTORE(x, 0, p + i))
STORER(f16, half, floatv, CAT(CAT(vstore_half, V), _rte)(x, 0, p + i))
STORER(bf16, ushort, floatv, VSTORE(CAT(convert_ushort, V)(bf16_bits(x)), 0, p + i))
STORER(bool, uchar, intv, VSTORE(CAT(convert_uchar, V)(x & 1), 0, p + i))
#endif

// ---- formulas that name something twice
#define REM(T, a, b, r) SEL(T, ((r) != 0) & (((r) < 0) != ((b) < 0)), (r) + (b), (r))
#define GELU_INNER(S, x) ((S)0.7978845608028654 * ((x) + (S)0.044715 * (x) * (x) * (x)))
#define GELU_GRAD(S, g, x)                                                                                        \
  ((g) * ((S)0.5 * (1 + erf((x) * (S)0.7071067811865476)) + (x) * exp(-(S)0.5 * (x) * (x)) * (S)0.3989422804014327))
#define GELU_TANH_GRAD(S, g, x)                                                                                     \
  ((g) * (S)0.5 * (1 + tanh(GELU_INNER(S, x)) + (x) * (1 - tanh(GELU_INNER(S, x)) * tanh(GELU_INNER(S, x))) *      \
          (S)0.7978845608028654 * (1 + (S)0.134145 * (x) * (x))))

// ---- integers
#define IDIV(T, U, a, b) ((b) == 0 ? (a) : (b) == (T)-1 && (T)-1 < 0 ? (T)(0 - (U)(a)) : (T)((a) / (b)))
#define IMOD(T, a, b) ((b) == 0 || ((b) == (T)-1 && (T)-1 < 0) ? (T)0 : (T)((a) % (b)))
#define SHL(T, U, a, b) ((b) < 0 || (b) >= (T)(8 * sizeof(T)) ? (T)0 : (T)((U)(a) << (b)))
#define SHR(T, a, b) ((a) >> ((b) < 0 || (b) >= (T)(8 * sizeof(T)) ? (T)(8 * sizeof(T) - ((T)-1 < 0)) : (b)))
long whole_power(long a, long b) {
  if (b < 0) return a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0;
  ulong y = 1, x = a;
  for (; b; b >>= 1, x *= x) y *= b & 1 ? x : 1;
  return y;
}
long gcd(long a, long b) {
  ulong x = a < 0 ? -(ulong)a : a, y = b < 0 ? -(ulong)b : b;
  while (y) {
    const ulong r = x % y;
    x = y, y = r;
  }
  return x;
}

#ifdef SPECIAL  // what few kernels need is not read by all
// ---- special functions
wide erf_inverse(wide y) {  // Winitzki's estimate, then Halley's steps on erfc of the tail, which keeps its digits
  if (!(fabs(y) < 1)) return fabs(y) == 1 ? copysign((wide)INFINITY, y) : NAN;
  const wide tail = 1 - fabs(y), l = log(tail * (1 + fabs(y))), t = 4.330746750799873 + l / 2;
  wide x = sqrt(sqrt(t * t - l / (wide)0.147) - t);
  if (fabs(y) < (wide)1e-4) x = fabs(y) * (wide)0.886226925452758;
  for (int k = 0; k < 3; k++) {
    const wide off = fabs(y) < (wide)0.5 ? erf(x) - fabs(y) : tail - erfc(x);
    const wide step = off / ((wide)1.1283791670955126 * exp(-x * x));
    x -= step / (1 + x * step);
  }
  return copysign(x, y);
}
wide log_gamma(wide x) { return x <= 0 && x == floor(x) ? (wide)INFINITY : lgamma(x); }
wide digamma(wide x) {
  if (x == 0) return copysign((wide)INFINITY, -x);
  wide y = 0;
  if (x < 0) {
    if (x == floor(x)) return NAN;
    y = -(wide)3.141592653589793 / tan((wide)3.141592653589793 * (x - rint(x)));
    x = 1 - x;
  }
  for (; x < 10; x += 1) y -= 1 / x;
  const wide z = 1 / (x * x);
  return y + log(x) - (wide)0.5 / x -
         z * ((wide)1 / 12 - z * ((wide)1 / 120 - z * ((wide)1 / 252 - z * ((wide)1 / 240 - z * ((wide)1 / 132 -
         z * (wide)691 / 32760)))));
}
wide gamma_ratio(wide a, wide x, int upper) {  // Q(a, x), or P: a series below the bend, a continued fraction above it
  if (isnan(a) || isnan(x) || a < 0 || x < 0 || (a == 0 && x == 0) || (isinf(a) && isinf(x))) return NAN;
  if (a == 0 || isinf(x)) return upper ? 0 : 1;
  if (x == 0 || isinf(a)) return upper ? 1 : 0;
  const wide front = exp(a * log(x) - x - lgamma(a)), tiny = (wide)1e-30;
  if (x < a + 1) {
    wide term = 1 / a, sum = term;
    for (wide n = a + 1; fabs(term) > fabs(sum) * (wide)1e-17 && n < a + 5000; n += 1) sum += term *= x / n;
    return upper ? 1 - sum * front : sum * front;
  }
  wide b = x + 1 - a, c = 1 / tiny, d = 1 / b, h = d, change = 0;
  for (int n = 1; n < 5000 && change != 1; n++) {
    const wide an = -n * (n - a);
    b += 2, d = an * d + b, c = b + an / c;
    d = 1 / (fabs(d) < tiny ? tiny : d), c = fabs(c) < tiny ? tiny : c;
    change = d * c, h *= change;
  }
  return upper ? front * h : 1 - front * h;
}
wide hurwitz_zeta(wide s, wide q) {  // Euler and Maclaurin
  if (s == 1) return INFINITY;
  if (s < 1 || isnan(s) || isnan(q)) return NAN;
  if (q <= 0) {
    if (q == floor(q)) return INFINITY;
    if (s != floor(s)) return NAN;
  }
  const wide factor[] = {12, -720, 30240, -1209600, 47900160, -1.8924375803183791606e9, 7.47242496e10,
                         -2.950130727918164224e12, 1.1646782814350067249e14, -4.5979787224074726105e15,
                         1.8152105401943546773e17, -7.1661652561756670113e18};
  wide sum = pow(q, -s), a = q, b = sum;
  for (int i = 0; i < 9 || a <= 9; i++) {
    a += 1, b = pow(a, -s), sum += b;
    if (fabs(b / sum) < (wide)1e-17) return sum;
  }
  sum += b * a / (s - 1) - (wide)0.5 * b;
  wide f = 1, k = 0;
  for (int i = 0; i < 12; i++) {
    f *= s + k, b /= a;
    const wide t = f * b / factor[i];
    sum += t;
    if (fabs(t / sum) < (wide)1e-17) break;
    k += 1, f *= s + k, b /= a, k += 1;
  }
  return sum;
}
#endif
