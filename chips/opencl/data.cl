// data.cl: reductions, scans, sorting, gathering, scattering, counting and random numbers. Built behind vector.cl, V 1.
//
// The host defines for each dtype X that takes part X_T (as stored), X_R (in registers), X_LD(p, i) and X_ST(p, i, x).
// A View is how a tensor lies: `rank` dimensions with sizes and strides; elements are numbered in row-major order.
typedef struct { long rank, offset, n[8], st[8]; } View;
// Where element `number` lies.
long at(const View *v, long number) {
  long place = v->offset;
  for (int d = (int)v->rank - 1; d > 0; d--) place += number % v->n[d] * v->st[d], number /= v->n[d];
  return place + number * v->st[0];
}

#if defined(REDUCE)
// Result o is over all elements of `over` from the place that `keep` gives it, in `parts` equal parts, one a work-item.
#define FIRST(x) ((x) != (x))  // a NaN goes before everything
#if REDUCE == 0
#define JOIN(a, b) ((a) + (b))
#define START 0
#elif REDUCE == 1
#define JOIN(a, b) ((a) * (b))
#define START 1
#elif REDUCE == 2
#define JOIN(a, b) (FIRST(a) || (a) > (b) ? (a) : (b))
#else
#define JOIN(a, b) (FIRST(a) || (a) < (b) ? (a) : (b))
#endif
__kernel void reduce(const View keep, const View over, const View out, __global const X_T *x, __global Y_T *y,
                     const long parts, const long results, const long count, const long divisor) {
  const long o = get_global_id(0), part = get_global_id(1);
  if (o >= results) return;
  const long size = (count + parts - 1) / parts, begin = part * size, end = min(begin + size, count);
  const long base = at(&keep, o), step = over.st[over.rank - 1], inner = over.n[over.rank - 1];
#ifdef START
  ACC a = START;
#else
  ACC a = 0;
  if (begin < end) a = X_LD(x, base + at(&over, begin));
#endif
  for (long i = begin; i < end;) {
    long left = min(inner - i % inner, end - i), p = base + at(&over, i);
    i += left;
#if REDUCE == 0
    if (step == 1) {
      ACC b[8] = {0};
      for (; left >= 8; left -= 8, p += 8)
        for (int k = 0; k < 8; k++) b[k] += X_LD(x, p + k);
      for (int k = 0; k < 8; k++) a += b[k];
    }
#endif
    for (; left > 0; left--, p += step) {
      const ACC b = X_LD(x, p);
      a = JOIN(a, b);
    }
  }
  Y_ST(y, parts > 1 ? o * parts + part : at(&out, o), divisor >= 0 ? a / divisor : a);
}
#elif defined(ARG)
#define BEFORE(a, b) ((a) != (a) ? (b) == (b) : (b) == (b) && ((a) ARG (b)))
__kernel void argument(const View keep, const View out, __global const X_T *x, __global long *y, const long results,
                       const long count, const long step) {
  const long o = get_global_id(0);
  if (o >= results) return;
  const long base = at(&keep, o);
  long best = 0;
  X_R a = X_LD(x, base);
  for (long i = 1; i < count; i++) {
    const X_R b = X_LD(x, base + i * step);
    if (BEFORE(b, a)) a = b, best = i;
  }
  y[at(&out, o)] = best;
}
#elif defined(SCAN)
__kernel void scan(const View lines, const View out, const View places, __global const X_T *x, __global X_T *y,
                   __global long *indices, const long results, const long count, const long step, const long out_step,
                   const long place_step) {
  const long o = get_global_id(0);
  if (o >= results) return;
  const long from = at(&lines, o), to = at(&out, o), where = at(&places, o);
  ACC a = SCAN == 1;
  long best = 0;
  for (long i = 0; i < count; i++) {
    const ACC b = X_LD(x, from + i * step);
#if SCAN == 0
    a += b;
#elif SCAN == 1
    a *= b;
#elif SCAN == 4  // log of the sum of e^x
    const ACC high = a != a || b != b ? a + b : fmax(a, b);
    a = i == 0 ? b : isinf(high) || high != high ? high : high + log1p(exp(-fabs(a - b)));
#else
    if (i == 0 || b != b || (a == a && (SCAN == 2 ? b >= a : b <= a))) a = b, best = i;
    indices[where + i * place_step] = best;
#endif
    X_ST(y, to + i * out_step, a);
  }
}
#elif defined(SORT)
// One merging of sorted runs of `width`: an element's new place is its own in its run and its rank in the neighbour.
// NaN is the greatest. Lines of `count` lie one behind the other in `old` and `new`: where elements came from.
#define LESS(a, b) (DESCENDING ? ((a) != (a) ? (b) == (b) : (a) > (b)) : ((b) != (b) ? (a) == (a) : (a) < (b)))
__kernel void merge(const View lines, __global const X_T *x, __global const int *old, __global int *new,
                    const long old_at, const long new_at, const long results, const long count, const long step,
                    const long width) {
  const long i = get_global_id(0), o = get_global_id(1);
  if (i >= count || o >= results) return;
  const long base = at(&lines, o), run = i / width, other = (run ^ 1) * width, end = min(other + width, count);
  old += old_at + o * count, new += new_at + o * count;
  const int mine = width == 1 ? (int)i : old[i];
  const X_R a = X_LD(x, base + mine * step);
  long low = other, high = max(end, other);
  while (low < high) {
    const long middle = (low + high) / 2;
    const X_R b = X_LD(x, base + (width == 1 ? middle : old[middle]) * step);
    if (run & 1 ? !LESS(a, b) : LESS(b, a)) low = middle + 1;
    else high = middle;
  }
  new[other < count ? min(run, run ^ 1) * width + (i - run * width) + (low - other) : i] = mine;
}
__kernel void sorted(const View lines, const View out, const View places, __global const moved *x,
                     __global const int *order, __global moved *y, __global long *indices, const long order_at,
                     const long results, const long count, const long step, const long out_step,
                     const long place_step) {
  const long i = get_global_id(0), o = get_global_id(1);
  if (i >= count || o >= results) return;
  const long from = count > 1 ? order[order_at + o * count + i] : 0;
  y[at(&out, o) + i * out_step] = x[at(&lines, o) + from * step];
  indices[at(&places, o) + i * place_step] = from;
}
#elif defined(GATHER)
// A work-item takes up to 16 neighbours in the last dimension, so that finding the place of the first pays.
__kernel void gather(const View in, const View index, const View out, __global const X_T *x,
                     __global const long *places, __global X_T *y, const long groups, const long dim,
                     __global int *fault) {
  const long i = get_global_id(0), last = index.rank - 1, width = index.n[last], parts = (width + 15) / 16;
  if (i >= groups) return;
  const long first = i % parts * 16, end = min(first + 16, width);
  long number = i / parts * width + first, p = at(&index, number), q = at(&out, number), from = in.offset;
  number = i / parts;
  for (int d = (int)last - 1; d >= 0; number /= index.n[d], d--) from += d == dim ? 0 : number % index.n[d] * in.st[d];
  for (long k = first; k < end; k++, p += index.st[last], q += out.st[last]) {
    const long place = places[p];
    if (place < 0 || place >= in.n[dim]) *fault = 1;
    else y[q] = x[from + place * in.st[dim] + (dim == last ? 0 : k * in.st[last])];
  }
}
#elif defined(SCATTER)
// One work-item a line along the dimension, and there one element after the other: the last one wins.
__kernel void scatter(const View index, const View src, const View out, __global const long *places,
                      __global const X_T *x, __global X_T *y, const long results, const long count, const long step,
                      const long src_step, const long out_step, const X_R number, const int numbers,
                      const long longest, __global int *fault) {
  const long o = get_global_id(0);
  if (o >= results) return;
  const long p = at(&index, o), from = at(&src, o), to = at(&out, o);
  for (long i = 0; i < count; i++) {
    const long place = places[p + i * step], here = to + place * out_step;
    if (place < 0 || place >= longest) {
      *fault = 1;
      continue;
    }
    const X_R a = X_LD(y, here), b = numbers ? number : X_LD(x, from + i * src_step);
    X_ST(y, here, SCATTER);
  }
}
#elif defined(IOTA)
__kernel void iota(const View out, __global X_T *y, const long count, const ACC start, const ACC step) {
  const long i = get_global_id(0);
  if (i < count) X_ST(y, at(&out, i), start + (ACC)i * step);
}
#elif defined(RANDOM)
uint4 philox(ulong counter, ulong key) {
  uint4 c = (uint4)((uint)counter, (uint)(counter >> 32), 0, 0);
  uint2 k = (uint2)((uint)key, (uint)(key >> 32));
  for (int i = 0; i < 10; i++, k += (uint2)(0x9E3779B9u, 0xBB67AE85u))
    c = (uint4)(mul_hi(0xCD9E8D57u, c.z) ^ c.y ^ k.x, 0xCD9E8D57u * c.z, mul_hi(0xD2511F53u, c.x) ^ c.w ^ k.y,
                0xD2511F53u * c.x);
  return c;
}
__kernel void random(const View out, __global X_T *y, const long count, const ulong seed, const ulong offset) {
  const long i = get_global_id(0), first = i * RANDOM;
  if (first >= count) return;
  const uint4 c = philox(offset + i, seed);
  const uint lanes[4] = {c.x, c.y, c.z, c.w};
  for (int k = 0; k < RANDOM && first + k < count; k++)
#if RANDOM == 4
    X_ST(y, at(&out, first + k), (lanes[k] >> (32 - BITS)) * (1.0f / (1 << BITS)));
#else
    X_ST(y, at(&out, first + k), (long)(((ulong)lanes[2 * k + 1] << 32 | lanes[2 * k]) >> 1));
#endif
}
#elif defined(PRODUCT)
__kernel void product(const View a, const View b, const View out, __global const X_T *x, __global const X_T *y,
                      __global X_T *z, const long depth) {
  const long column = get_global_id(0), row = get_global_id(1), batch = get_global_id(2);
  if (column >= out.n[2] || row >= out.n[1] || batch >= out.n[0]) return;
  ulong sum = 0;
  long p = a.offset + batch * a.st[0] + row * a.st[1], q = b.offset + batch * b.st[0] + column * b.st[2];
  for (long k = 0; k < depth; k++, p += a.st[2], q += b.st[1]) sum += (ulong)x[p] * (ulong)y[q];
  z[out.offset + batch * out.st[0] + row * out.st[1] + column * out.st[2]] = (X_T)sum;
}
#endif
