/* nn.cl: matrix products, convolution, pooling, normalisation and softmax in the kernel language.
 *
 * Contract: nn.cpp, which says what each argument means, builds each kernel alone: from what stands before the first
 * marker and the section whose marker names it, with these options.
 *   REAL   what is computed in: float, or double for float64;  VW: elements of a vector of it
 *   HALF, BF16 or neither: how tensors (T) are stored;  PLAIN: parameters (P) are REAL instead; statistics always are
 *   L      items of a work-group that shares one row or channel: 1 on a CPU, where an item has a vector unit to itself
 * An argument p is followed by p0, its offset in bytes, and may be NULL where it is optional. Tensors are contiguous
 * unless strides, in elements, are given. */
#define CAT_(a, b) a##b
#define CAT(a, b) CAT_(a, b)
typedef REAL real;
#ifdef HALF
typedef half T;
#define LD(p, i) vload_half(i, p)
#define ST(v, p, i) vstore_half(v, i, p)
#elif defined(BF16)
typedef ushort T;
inline ushort narrow(float v) { /* to the nearest, ties to even */
  const uint u = as_uint(v);
  return isnan(v) ? 0x7fc0 : (ushort)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
#define LD(p, i) as_float((uint)(p)[i] << 16)
#define ST(v, p, i) ((p)[i] = narrow(v))
#else
typedef REAL T;
#define LD(p, i) (p)[i]
#define ST(v, p, i) ((p)[i] = v)
#endif
#if VW == 1 /* no vectors: not every language has them */
typedef REAL vec;
#define VLOAD(p) (*(p))
#define VSTORE(v, p) (*(p) = (v))
#define LDV(p) LD(p, 0)
#define STV(v, p) ST(v, p, 0)
#else
typedef CAT(REAL, VW) vec;
#define VLOAD(p) CAT(vload, VW)(0, p)
#define VSTORE(v, p) CAT(vstore, VW)(v, 0, p)
#ifdef HALF
#define LDV(p) CAT(vload_half, VW)(0, p)
#define STV(v, p) CAT(vstore_half, VW)(v, 0, p)
#elif defined(BF16)
#define LDV(p) CAT(as_float, VW)(CAT(convert_uint, VW)(VLOAD(p)) << 16)
inline void STV(vec v, GLOBAL ushort *p) {
  float t[VW];
  VSTORE(v, t);
  for (int i = 0; i < VW; i++) p[i] = narrow(t[i]);
}
#else
#define LDV(p) VLOAD(p)
#define STV(v, p) VSTORE(v, p)
#endif
#endif
#ifdef PLAIN
typedef real P;
#define LDP(p, i) (p)[i]
#define STP(v, p, i) ((p)[i] = v)
#else
typedef T P;
#define LDP(p, i) LD(p, i)
#define STP(v, p, i) ST(v, p, i)
#endif
#define ARG(type, p) GLOBAL type *p, long p##0
#define AT(p) (p = (void GLOBAL *)((GLOBAL char *)p + p##0))
#if defined(__has_attribute) && L == 1
#if __has_attribute(min_vector_width) /* or a compiler that prefers half vectors splits them: twice the time */
#define WIDE __attribute__((min_vector_width(VW * sizeof(REAL) * 8)))
#endif
#endif
#ifndef WIDE
#define WIDE
#endif
#define ROW_KERNEL KERNEL WIDE ITEMS(L, 1) void
#define EACH(i, n) _Pragma("unroll") for (int i = 0; i < n; i++)
#define SWEEP(i, n) for (long i = get_local_id(0) * VW; i < (n); i += L * VW)

/* The sum, or the maximum, of the lanes of all items of the work-group. */
#define PLUS(a, b) ((a) + (b))
#define SHARED(name, OP)                                            \
  inline real name(vec v, LOCAL real *room) {                     \
    real t[VW];                                                     \
    VSTORE(v, t);                                                   \
    for (int w = VW / 2; w; w /= 2)                                 \
      for (int i = 0; i < w; i++) t[i] = OP(t[i], t[i + w]);        \
    if (L == 1) return t[0];                                        \
    const int l = get_local_id(0);                                  \
    room[l] = t[0];                                                 \
    BARRIER();                                   \
    for (int w = L / 2; w; w /= 2) {                                \
      if (l < w) room[l] = OP(room[l], room[l + w]);                \
      BARRIER();                                 \
    }                                                               \
    const real all = room[0];                                       \
    BARRIER();                                   \
    return all;                                                     \
  }
SHARED(SUM, PLUS)
SHARED(MAX, fmax)
/* A vector at p, of which n elements exist; the others are `fill`. And the way back. */
inline vec take(const GLOBAL T *p, long n, real fill) {
  if (n >= VW) return LDV(p);
  real t[VW];
  for (int i = 0; i < VW; i++) t[i] = i < n ? LD(p, i) : fill;
  return VLOAD(t);
}
inline void give(vec v, GLOBAL T *p, long n) {
  if (n >= VW) {
    STV(v, p);
  } else {
    real t[VW];
    VSTORE(v, t);
    for (int i = 0; i < n; i++) ST(t[i], p, i);
  }
}

//: product
/* y[z][m][n] = alpha * sum over k of a[z][m][k] * b[z][k][n] + beta * c[z][m][n]. An item computes a tile of MR rows
 * and NV vectors in registers. Rows of b lie in panels of NV * VW columns, `bp` apart. Tables replace strides: TM the
 * place of a row of a; TK that of a row of b; TN that of a result's column, which is not stored where it is < 0. */
typedef struct {
  long am, ak, az, bk, bp, bz, ym, yn, yz, cm, cn, cz;
  int M, N, K, last, mtiles, tiles, by_rows, table_m, table_k, table_n;
} Product;
ROW_KERNEL product(Product g, ARG(const real, a), ARG(const real, b), ARG(const T, c), ARG(T, y), ARG(const int, table),
                   real alpha, real beta) {
  const int tile = get_global_id(0), z = get_global_id(1), ntiles = g.tiles / g.mtiles;
  if (tile >= g.tiles) return;
  const int m0 = (g.by_rows ? tile % g.mtiles : tile / ntiles) * MR;
  const int panel = g.by_rows ? tile / g.mtiles : tile % ntiles;
  const int n0 = min(panel * NV * VW, g.last);
  AT(a), AT(b), AT(c), AT(y), AT(table);
  b += z * g.bz + panel * g.bp + (n0 - panel * NV * VW);
  const GLOBAL real *row[MR];
  vec sum[MR][NV];
  EACH(i, MR) {
    const int m = min(m0 + i, g.M - 1);
#ifdef TM
    row[i] = a + z * g.az + table[g.table_m + m];
#else
    row[i] = a + z * g.az + m * g.am;
#endif
    EACH(j, NV) sum[i][j] = (vec)(0);
  }
  for (int k = 0; k < g.K; k++) {
#ifdef TK
    const GLOBAL real *from = b + table[g.table_k + k];
#else
    const GLOBAL real *from = b + k * g.bk;
#endif
    vec v[NV];
    EACH(j, NV) v[j] = VLOAD(from + j * VW);
    EACH(i, MR) {
      const vec factor = (vec)(row[i][k * g.ak]);
      EACH(j, NV) sum[i][j] = fma(factor, v[j], sum[i][j]);
    }
  }
  y += z * g.yz, c += c ? z * g.cz : 0;
  for (int j = 0; j < NV; j++) {
    const int n = n0 + j * VW, whole = n + VW <= g.N;
#ifdef TN
    const GLOBAL int *to = table + g.table_n + n;
    const int run = whole && to[0] >= 0 && to[VW - 1] - to[0] == VW - 1;
#define TO(l) to[l]
#else
    const int run = whole && g.yn == 1;
#define TO(l) ((n + l) * g.yn)
#endif
    EACH(i, MR) if (m0 + i < g.M) {
      const long ym = (m0 + i) * g.ym, cm = (m0 + i) * g.cm;
      vec v = sum[i][j] * alpha;
      if (run && (!c || g.cn == 0)) {
        if (c) v += (vec)(beta * LD(c, cm));
        STV(v, y + ym + TO(0));
      } else if (run && g.cn == 1) {
        STV(v + beta * LDV(c + cm + n), y + ym + TO(0));
      } else {
        real t[VW];
        VSTORE(v, t);
        for (int l = 0; l < VW && n + l < g.N; l++)
          if (TO(l) >= 0) ST(t[l] + (c ? beta * LD(c, cm + (n + l) * g.cn) : 0), y, ym + TO(l));
      }
    }
  }
}

//: pack
/* y[z][column / width][row][column % width] = x at a row and a column, 0 beyond the last column. With a table, the
 * place of a row (TR) or of a column (TC) is found there; where it is < 0 the value is 0. KEEP: y is stored as x is. */
typedef struct {
  long xr, xc, xz, yr, yp, yz;
  int rows, columns, width, panels;
} Pack;
#ifdef KEEP
#define PACKED T
#else
#define PACKED real
#endif
KERNEL ITEMS(16, 16) void pack(Pack g, ARG(const T, x), ARG(PACKED, y), ARG(const int, table)) {
  const int i = get_global_id(0), r = get_global_id(1), panel = get_global_id(2) % g.panels;
  const int z = get_global_id(2) / g.panels, n = panel * g.width + i;
  if (i >= g.width || r >= g.rows) return;
  AT(x), AT(y), AT(table);
#if defined(TR)
  const long at = n < g.columns && table[r] >= 0 ? table[r] + n * g.xc : -1;
#elif defined(TC)
  const long at = n < g.columns && table[n] >= 0 ? table[n] + r * g.xr : -1;
#else
  const long at = n < g.columns ? n * g.xc + r * g.xr : -1;
#endif
  const real v = at < 0 ? 0 : LD(x, z * g.xz + at);
  y += z * g.yz + panel * g.yp + r * g.yr + i;
#ifdef KEEP
  ST(v, y, 0);
#else
  *y = v;
#endif
}

//: dots
/* y[m][n] = alpha * sum over k of a[m][k] * b[n][k] + beta * c[m][n]: few rows m, k contiguous in both. */
typedef struct {
  long am, az, bn, bz, ym, yn, yz, cm, cn, cz;
  int M, K;
} Dots;
ROW_KERNEL dots(Dots g, ARG(const T, a), ARG(const T, b), ARG(const T, c), ARG(T, y), real alpha, real beta) {
  LOCAL real room[L];
  const int n = get_group_id(0), m0 = get_group_id(1) * 4, z = get_group_id(2);
  AT(a), AT(b), AT(c), AT(y);
  b += z * g.bz + n * g.bn, a += z * g.az;
  vec sum[4];
  for (int i = 0; i < 4; i++) sum[i] = (vec)(0);
  SWEEP(k, g.K) {
    const vec v = take(b + k, g.K - k, 0);
    EACH(i, 4) sum[i] = fma(take(a + min(m0 + i, g.M - 1) * g.am + k, g.K - k, 0), v, sum[i]);
  }
  for (int i = 0; i < 4; i++) {
    const real v = alpha * SUM(sum[i], room);
    const int m = m0 + i;
    if (m < g.M && get_local_id(0) == 0)
      ST(v + (c ? beta * LD(c, z * g.cz + m * g.cm + n * g.cn) : 0), y, z * g.yz + m * g.ym + n * g.yn);
  }
}

//: norm
/* Batch norm of x[images][channels][size], or, with ROWS, layer norm of x[1][rows][size], whose parameters are those of
 * a row's elements. A work-group has a channel. Sums of each image are added up: less is lost to rounding. */
#ifdef ROWS
#define OF(p, i, n) take(p + i, n, 0)
#else
#define OF(p, i, n) (vec)(LDP(p, c))
#endif
ROW_KERNEL norm(ARG(const T, x), ARG(const P, weight), ARG(const P, bias), ARG(P, mean), ARG(P, var), ARG(T, y),
                ARG(real, save_mean), ARG(real, save_invstd), int images, int channels, long size, int training,
                real momentum, real eps) {
  LOCAL real room[L];
  const int c = get_group_id(0);
  const long step = channels * size, count = images * size;
  AT(x), AT(weight), AT(bias), AT(mean), AT(var), AT(y), AT(save_mean), AT(save_invstd);
  x += c * size, y += c * size;
  real m = mean ? LDP(mean, c) : 0, v = var ? LDP(var, c) : 0;
  if (training) {
    vec total = (vec)(0);
    for (int n = 0; n < images; n++) {
      vec sum = (vec)(0);
      SWEEP(i, size) sum += take(x + n * step + i, size - i, 0);
      total += sum;
    }
    const real old_mean = m, old_var = v;
    m = SUM(total, room) / count, total = (vec)(0);
    for (int n = 0; n < images; n++) {
      vec sum = (vec)(0);
      SWEEP(i, size) {
        const vec d = take(x + n * step + i, size - i, m) - m;
        sum = fma(d, d, sum);
      }
      total += sum;
    }
    v = SUM(total, room) / count;
    if (get_local_id(0) == 0) {
      save_mean[c] = m, save_invstd[c] = 1 / sqrt(v + eps);
      if (mean) STP((1 - momentum) * old_mean + momentum * m, mean, c);
      if (var) STP((1 - momentum) * old_var + momentum * v * count / max(count - 1, 1L), var, c);
    }
  }
  const real scale = 1 / sqrt(v + eps);
  for (int n = 0; n < images; n++)
    SWEEP(i, size) {
      vec d = (take(x + n * step + i, size - i, 0) - m) * scale;
      if (weight) d *= OF(weight, i, size - i);
      give(bias ? d + OF(bias, i, size - i) : d, y + n * step + i, size - i);
    }
}

//: norm_grad
/* The gradients; those of the parameters per channel only. Without x: sums of g alone, as the bias of a convolution
 * needs them. `stat` is the inverse deviation, or, without training, the variance. */
#ifdef ROWS
#define OF(p, i, n) take(p + i, n, 0)
#else
#define OF(p, i, n) (vec)(LDP(p, c))
#endif
ROW_KERNEL norm_grad(ARG(const T, g), ARG(const T, x), ARG(const P, weight), ARG(const real, mean),
                     ARG(const real, stat), ARG(T, y), ARG(P, dweight), ARG(P, dbias), int images, int channels,
                     long size, int training, real eps) {
  LOCAL real room[L];
  const int c = get_group_id(0);
  const long step = channels * size, count = images * size;
  AT(g), AT(x), AT(weight), AT(mean), AT(stat), AT(y), AT(dweight), AT(dbias);
  g += c * size, x += x ? c * size : 0;
  const real m = x ? mean[c] : 0, invstd = !x ? 0 : training ? stat[c] : 1 / sqrt(stat[c] + eps);
  vec plain = (vec)(0), product = (vec)(0);
  for (int n = 0; n < images; n++) {
    vec sum = (vec)(0), dot = (vec)(0);
    SWEEP(i, size) {
      vec v = take(g + n * step + i, size - i, 0);
#ifdef ROWS
      if (weight) v *= OF(weight, i, size - i);
#endif
      sum += v;
      if (x) dot = fma(v, (take(x + n * step + i, size - i, m) - m) * invstd, dot);
    }
    plain += sum, product += dot;
  }
  const real a = SUM(plain, room), b = SUM(product, room);
  if (get_local_id(0) == 0) {
    if (dweight) STP(b, dweight, c);
    if (dbias) STP(a, dbias, c);
  }
  if (!y) return;
  y += c * size;
  const real mean_a = training ? a / count : 0, mean_b = training ? b / count * invstd : 0;
  for (int n = 0; n < images; n++)
    SWEEP(i, size) {
      const vec w = weight ? OF(weight, i, size - i) : (vec)(1), d = take(x + n * step + i, size - i, 0) - m;
#ifdef ROWS
      give((take(g + n * step + i, size - i, 0) * w - mean_a - d * mean_b) * invstd, y + n * step + i, size - i);
#else
      give((take(g + n * step + i, size - i, 0) - mean_a - d * mean_b) * w * invstd, y + n * step + i, size - i);
#endif
    }
}

//: norm_grad_weight
/* The gradients of a layer norm's parameters: an item has VW columns. */
ROW_KERNEL norm_grad_weight(ARG(const T, g), ARG(const T, x), ARG(const real, mean), ARG(const real, rstd),
                            ARG(T, dweight), ARG(T, dbias), long rows, int size) {
  const long i = get_global_id(0) * VW, n = size - i;
  if (n <= 0) return;
  AT(g), AT(x), AT(mean), AT(rstd), AT(dweight), AT(dbias);
  vec w = (vec)(0), b = (vec)(0);
  for (long from = 0; from < rows; from += 64) { /* in blocks: less is lost to rounding */
    vec sum = (vec)(0), dot = (vec)(0);
    for (long r = from; r < min(rows, from + 64); r++) {
      const vec v = take(g + r * size + i, n, 0);
      sum += v, dot = fma(v, (take(x + r * size + i, n, 0) - mean[r]) * rstd[r], dot);
    }
    w += dot, b += sum;
  }
  if (dweight) give(w, dweight + i, n);
  if (dbias) give(b, dbias + i, n);
}

//: softmax
/* Of rows; LOG: its logarithm. */
ROW_KERNEL softmax(ARG(const T, x), ARG(T, y), int size) {
  LOCAL real room[L];
  const long r = get_group_id(0);
  AT(x), AT(y);
  x += r * size, y += r * size;
  vec top = (vec)(-INFINITY), sum = (vec)(0);
  SWEEP(i, size) top = fmax(top, take(x + i, size - i, -INFINITY));
  const real m = MAX(top, room);
  SWEEP(i, size) sum += exp(take(x + i, size - i, -INFINITY) - m);
  const real s = SUM(sum, room);
#ifdef LOG
  SWEEP(i, size) give(take(x + i, size - i, 0) - m - log(s), y + i, size - i);
#else
  SWEEP(i, size) give(exp(take(x + i, size - i, 0) - m) / s, y + i, size - i);
#endif
}

//: softmax_grad
/* From the result y. */
ROW_KERNEL softmax_grad(ARG(const T, g), ARG(const T, y), ARG(T, dx), int size) {
  LOCAL real room[L];
  const long r = get_group_id(0);
  AT(g), AT(y), AT(dx);
  g += r * size, y += r * size, dx += r * size;
  vec sum = (vec)(0);
#ifdef LOG
  SWEEP(i, size) sum += take(g + i, size - i, 0);
  const real s = SUM(sum, room);
  SWEEP(i, size) give(take(g + i, size - i, 0) - exp(take(y + i, size - i, 0)) * s, dx + i, size - i);
#else
  SWEEP(i, size) sum = fma(take(g + i, size - i, 0), take(y + i, size - i, 0), sum);
  const real s = SUM(sum, room);
  SWEEP(i, size) give((take(g + i, size - i, 0) - s) * take(y + i, size - i, 0), dx + i, size - i);
#endif
}

//: pool pool_grad
typedef struct {
  int H, W, OH, OW, kh, kw, sh, sw, ph, pw, dh, dw, count_padding, divisor, adaptive;
} Window;
/* Of output o: where its window begins and ends, clipped, in one dimension; the result is its size before clipping. */
inline int window(int adaptive, int o, int in, int out, int k, int s, int p, int *from, int *to) {
  const int start = adaptive ? (int)((long)o * in / out) : o * s - p;
  const int end = adaptive ? (int)(((long)(o + 1) * in + out - 1) / out) : min(start + k, in + p);
  *from = max(start, 0), *to = min(end, in);
  return end - start;
}
inline real share(const Window *g, int oh, int ow, int *h0, int *h1, int *w0, int *w1) {
  const int h = window(g->adaptive, oh, g->H, g->OH, g->kh, g->sh, g->ph, h0, h1);
  const int w = window(g->adaptive, ow, g->W, g->OW, g->kw, g->sw, g->pw, w0, w1);
  return (real)1 / (g->divisor ? g->divisor : g->count_padding ? h * w : (*h1 - *h0) * (*w1 - *w0));
}
/* The maximum, with indices, or the average. */
KERNEL ITEMS(16, 4) void pool(Window g, ARG(const T, x), ARG(T, y), ARG(long, indices)) {
  const int ow = get_global_id(0), oh = get_global_id(1);
  const long plane = get_global_id(2), at = (plane * g.OH + oh) * g.OW + ow;
  if (ow >= g.OW || oh >= g.OH) return;
  AT(x), AT(y), AT(indices);
  x += plane * g.H * g.W;
  if (indices) {
    real best = -INFINITY;
    int h0 = oh * g.sh - g.ph, w0 = ow * g.sw - g.pw, where = -1;
    for (int h = h0; h < h0 + g.kh * g.dh; h += g.dh)
      for (int w = w0; w < w0 + g.kw * g.dw; w += g.dw) {
        if (h < 0 || w < 0 || h >= g.H || w >= g.W) continue;
        const real v = LD(x, h * g.W + w);
        if (v > best || isnan(v) || where < 0) best = v, where = h * g.W + w;
      }
    ST(best, y, at), indices[at] = where;
  } else {
    int h0, h1, w0, w1;
    real sum = 0, part = share(&g, oh, ow, &h0, &h1, &w0, &w1);
    for (int h = h0; h < h1; h++)
      for (int w = w0; w < w1; w++) sum += LD(x, h * g.W + w);
    ST(sum * part, y, at);
  }
}
/* The outputs in whose windows i lies: from *from to *to. */
inline void covers(int adaptive, int i, int in, int out, int k, int s, int p, int d, int *from, int *to) {
  const int first = i + p - (k - 1) * d;
  *from = adaptive ? (int)((long)i * out / in) : first > 0 ? (first + s - 1) / s : 0;
  *to = adaptive ? (int)(((long)(i + 1) * out + in - 1) / in) - 1 : min((i + p) / s, out - 1);
}
KERNEL ITEMS(16, 4) void pool_grad(Window g, ARG(const T, dy), ARG(const long, indices), ARG(T, dx)) {
  const int w = get_global_id(0), h = get_global_id(1);
  const long plane = get_global_id(2);
  if (w >= g.W || h >= g.H) return;
  AT(dy), AT(indices), AT(dx);
  int h0, h1, w0, w1, from[4];
  covers(g.adaptive, h, g.H, g.OH, g.kh, g.sh, g.ph, g.dh, &h0, &h1);
  covers(g.adaptive, w, g.W, g.OW, g.kw, g.sw, g.pw, g.dw, &w0, &w1);
  real sum = 0;
  for (int oh = h0; oh <= h1; oh++)
    for (int ow = w0; ow <= w1; ow++) {
      const long at = (plane * g.OH + oh) * g.OW + ow;
      if (!indices) sum += LD(dy, at) * share(&g, oh, ow, from, from + 1, from + 2, from + 3);
      else if (indices[at] == h * g.W + w) sum += LD(dy, at);
    }
  ST(sum, dx, (plane * g.H + h) * g.W + w);
}
