// vector.c: the vector unit. Each loop is written for dense rows, rows against one number, and any strides.
#include <math.h>

#include "card.h"

#define CYCLES(v) ((uint64_t)(64 + elements(v) / 16))

// y[i] = value, in terms of p = a[i] and q = b[i].
#define LOOP(A, Y, value)                                                        \
  {                                                                              \
    const A *a = (const A *)r->p[0], *b = (const A *)r->p[1];                    \
    Y *y = (Y *)r->p[2];                                                         \
    int64_t n = r->length, s = r->stride[0], t = r->stride[1], u = r->stride[2]; \
    if (s == 1 && t == 1 && u == 1) {                                            \
      for (int64_t i = 0; i < n; i++) {                                          \
        A p = a[i], q = b[i];                                                    \
        (void)q, y[i] = (Y)(value);                                              \
      }                                                                          \
    } else if (s == 1 && t == 0 && u == 1) {                                     \
      A q = *b;                                                                  \
      for (int64_t i = 0; i < n; i++) {                                          \
        A p = a[i];                                                              \
        (void)q, y[i] = (Y)(value);                                              \
      }                                                                          \
    } else {                                                                     \
      for (int64_t i = 0; i < n; i++) {                                          \
        A p = a[i * s], q = b[i * t];                                            \
        (void)q, y[i * u] = (Y)(value);                                          \
      }                                                                          \
    }                                                                            \
    return;                                                                      \
  }

static void row_fp32(int32_t opcode, const rows *r) {
  switch (opcode) {
    case FPGA_ADD:
      LOOP(float, float, p + q)
    case FPGA_SUB:
      LOOP(float, float, p - q)
    case FPGA_MUL:
      LOOP(float, float, p *q)
    case FPGA_DIV:
      LOOP(float, float, p / q)
    case FPGA_MAX:
      LOOP(float, float, p > q || p != p ? p : q)
    case FPGA_EQ:
      LOOP(float, uint8_t, p == q)
    case FPGA_LT:
      LOOP(float, uint8_t, p < q)
    case FPGA_LE:
      LOOP(float, uint8_t, p <= q)
    case FPGA_EXP:
      LOOP(float, float, expf(p))
    case FPGA_SQRT:
      LOOP(float, float, sqrtf(p))
    default:
      return;
  }
}

// Sums and products wrap around: computed without sign.
static void row_int64(int32_t opcode, const rows *r) {
  switch (opcode) {
    case FPGA_ADD:
      LOOP(uint64_t, uint64_t, p + q)
    case FPGA_SUB:
      LOOP(uint64_t, uint64_t, p - q)
    case FPGA_MUL:
      LOOP(uint64_t, uint64_t, p * q)
    case FPGA_MAX:
      LOOP(int64_t, int64_t, p > q ? p : q)
    case FPGA_EQ:
      LOOP(int64_t, uint8_t, p == q)
    case FPGA_LT:
      LOOP(int64_t, uint8_t, p < q)
    case FPGA_LE:
      LOOP(int64_t, uint8_t, p <= q)
    default:
      return;
  }
}

static void row_bool(int32_t opcode, const rows *r) {
  switch (opcode) {
    case FPGA_EQ:
      LOOP(uint8_t, uint8_t, p == q)
    case FPGA_LT:
      LOOP(uint8_t, uint8_t, p < q)
    case FPGA_LE:
      LOOP(uint8_t, uint8_t, p <= q)
    case FPGA_AND:
      LOOP(uint8_t, uint8_t, p & q)
    default:
      return;
  }
}

int fpga_vector(fpga_card_t card, int32_t opcode, const fpga_operand_t *a, const fpga_operand_t *b,
                const fpga_operand_t *y) {
  static const uint32_t takes[] = {[FPGA_ADD] = BIT(FPGA_FP32) | BIT(FPGA_INT64),
                                   [FPGA_SUB] = BIT(FPGA_FP32) | BIT(FPGA_INT64),
                                   [FPGA_MUL] = BIT(FPGA_FP32) | BIT(FPGA_INT64),
                                   [FPGA_DIV] = BIT(FPGA_FP32),
                                   [FPGA_MAX] = BIT(FPGA_FP32) | BIT(FPGA_INT64),
                                   [FPGA_EQ] = COMPUTED,
                                   [FPGA_LT] = COMPUTED,
                                   [FPGA_LE] = COMPUTED,
                                   [FPGA_AND] = BIT(FPGA_BOOL),
                                   [FPGA_EXP] = BIT(FPGA_FP32),
                                   [FPGA_SQRT] = BIT(FPGA_FP32)};
  int unary = opcode >= FPGA_EXP, compares = opcode >= FPGA_EQ && opcode <= FPGA_LE;
  if (opcode < FPGA_ADD || opcode > FPGA_SQRT) return fail(FPGA_EVALUE, "fpga_vector: there is no opcode %d", opcode);
  if (!a || (b == NULL) != unary)
    return fail(FPGA_EVALUE, "fpga_vector: opcode %d has %d operands", opcode, unary ? 1 : 2);
  view va, vb, vy, like;
  int status = begin(card, "fpga_vector");
  if (status) return status;
  const fpga_operand_t *tensor = a->dtype == FPGA_NUMBER && b ? b : a;
  status = look(card, "y", y, takes[opcode] | (compares ? BIT(FPGA_BOOL) : 0), 1, &vy);
  if (!status && compares && vy.dtype != FPGA_BOOL)
    status = fail(FPGA_EUNSUPPORTED, "fpga_vector: a comparison gives BOOL");
  if (!status) status = look(card, tensor == a ? "a" : "b", tensor, compares ? takes[opcode] : BIT(vy.dtype), 1, &like);
  if (!status) status = same_size("fpga_vector: an operand", &like, &vy);
  if (!status) status = look_like(card, "a", a, &like, 1, &va);
  if (!status) status = b ? look_like(card, "b", b, &like, 1, &vb) : FPGA_OK;
  if (status) return end(card, status, 0);
  if (unary) vb = va;
  FOR_ROWS(r, &va, &vb, &vy) {
    if (va.dtype == FPGA_FP32)
      row_fp32(opcode, &r);
    else if (va.dtype == FPGA_INT64)
      row_int64(opcode, &r);
    else
      row_bool(opcode, &r);
  }
  return end(card, FPGA_OK, CYCLES(&vy));
}

#define CHOOSE(T)                                                     \
  for (int64_t i = 0; i < r.length; i++) {                            \
    int yes = ((const uint8_t *)r.p[0])[i * r.stride[0]] != 0;        \
    const T *from = (const T *)r.p[yes ? 1 : 2];                      \
    ((T *)r.p[3])[i * r.stride[3]] = from[i * r.stride[yes ? 1 : 2]]; \
  }

int fpga_select(fpga_card_t card, const fpga_operand_t *condition, const fpga_operand_t *a, const fpga_operand_t *b,
                const fpga_operand_t *y) {
  view vc, va, vb, vy;
  int status = begin(card, "fpga_select");
  if (status) return status;
  status = look(card, "y", y, COMPUTED, 1, &vy);
  if (!status) status = look(card, "condition", condition, BIT(FPGA_BOOL), 1, &vc);
  if (!status) status = same_size("fpga_select: condition", &vc, &vy);
  if (!status) status = look_like(card, "a", a, &vy, 1, &va);
  if (!status) status = look_like(card, "b", b, &vy, 1, &vb);
  if (status) return end(card, status, 0);
  FOR_ROWS(r, &vc, &va, &vb, &vy) {
    if (vy.dtype == FPGA_FP32)
      CHOOSE(float)
    else if (vy.dtype == FPGA_INT64)
      CHOOSE(int64_t)
    else
      CHOOSE(uint8_t)
  }
  return end(card, FPGA_OK, CYCLES(&vy));
}

static double sum_fp32(const rows *r, double sum) {
  const float *x = (const float *)r->p[0];
  for (int64_t i = 0; i < r->length; i++) sum += x[i * r->stride[0]];
  return sum;
}

static void reduce_fp32(int32_t opcode, const view *inner, float *y) {
  double sum = 0;
  float most = -INFINITY;
  FOR_ROWS(r, inner) {
    const float *x = (const float *)r.p[0];
    if (opcode == FPGA_ADD)
      sum = sum_fp32(&r, sum);
    else
      for (int64_t i = 0; i < r.length; i++) {
        float v = x[i * r.stride[0]];
        most = v > most || v != v ? v : most; /* a NaN stays: nothing is greater than it */
      }
  }
  *y = opcode == FPGA_ADD ? (float)sum : most;
}

static void reduce_int64(int32_t opcode, const view *inner, int64_t *y) {
  uint64_t sum = 0;
  int64_t most = INT64_MIN;
  FOR_ROWS(r, inner) {
    const int64_t *x = (const int64_t *)r.p[0];
    for (int64_t i = 0; i < r.length; i++) {
      int64_t v = x[i * r.stride[0]];
      sum += (uint64_t)v;
      most = v > most ? v : most;
    }
  }
  *y = opcode == FPGA_ADD ? (int64_t)sum : most;
}

static void reduce_bool(const view *inner, uint8_t *y) {
  uint8_t any = 0;
  FOR_ROWS(r, inner) {
    for (int64_t i = 0; i < r.length; i++) any |= ((const uint8_t *)r.p[0])[i * r.stride[0]];
  }
  *y = any;
}

int fpga_reduce(fpga_card_t card, int32_t opcode, const fpga_operand_t *x, uint32_t dimensions,
                const fpga_operand_t *y) {
  view vx, vy;
  if (opcode != FPGA_ADD && opcode != FPGA_MAX) return fail(FPGA_EVALUE, "fpga_reduce: there is no opcode %d", opcode);
  int status = begin(card, "fpga_reduce");
  if (status) return status;
  status = look(card, "x", x, opcode == FPGA_MAX ? COMPUTED : BIT(FPGA_FP32) | BIT(FPGA_INT64), 1, &vx);
  if (!status) status = look(card, "y", y, BIT(vx.dtype), 1, &vy);
  if (!status && vx.rank != vy.rank) status = fail(FPGA_EVALUE, "fpga_reduce: ranks %d and %d", vx.rank, vy.rank);
  /* x as the result's elements, each of which is the first of `inner` */
  view outer = vx, inner = vx;
  for (int32_t d = 0; !status && d < vx.rank; d++) {
    int reduced = dimensions >> d & 1;
    (reduced ? &outer : &inner)->size[d] = 1;
    if (vy.size[d] != (reduced ? 1 : vx.size[d]))
      status = fail(FPGA_EVALUE, "fpga_reduce: size of y in dimension %d", d);
  }
  if (!status && opcode == FPGA_MAX && vx.dtype != FPGA_BOOL && elements(&vy) && !elements(&vx))
    status = fail(FPGA_EVALUE, "fpga_reduce: the maximum of nothing");
  if (status) return end(card, status, 0);
  FOR_ROWS(r, &outer, &vy) {
    for (int64_t i = 0; i < r.length; i++) {
      inner.data = r.p[0] + i * r.stride[0] * (int64_t)item_size(vx.dtype);
      if (vx.dtype == FPGA_FP32)
        reduce_fp32(opcode, &inner, (float *)r.p[1] + i * r.stride[1]);
      else if (vx.dtype == FPGA_INT64)
        reduce_int64(opcode, &inner, (int64_t *)r.p[1] + i * r.stride[1]);
      else
        reduce_bool(&inner, (uint8_t *)r.p[1] + i * r.stride[1]);
    }
  }
  return end(card, FPGA_OK, CYCLES(&vx));
}

int fpga_ramp(fpga_card_t card, const fpga_operand_t *start, const fpga_operand_t *step, const fpga_operand_t *y) {
  view vy;
  if (!start || !step || start->dtype != FPGA_NUMBER || step->dtype != FPGA_NUMBER)
    return fail(FPGA_EVALUE, "fpga_ramp: start and step are numbers");
  int status = begin(card, "fpga_ramp");
  if (status) return status;
  status = look(card, "y", y, BIT(FPGA_FP32) | BIT(FPGA_INT64), 1, &vy);
  if (!status && vy.rank != 1) status = fail(FPGA_EUNSUPPORTED, "fpga_ramp: y: rank %d", vy.rank);
  if (status) return end(card, status, 0);
  for (int64_t i = 0; i < vy.size[0]; i++) {
    if (vy.dtype == FPGA_FP32)
      ((float *)vy.data)[i * vy.stride[0]] = (float)(start->real + (double)i * step->real);
    else
      ((uint64_t *)vy.data)[i * vy.stride[0]] = (uint64_t)start->integer + (uint64_t)i * (uint64_t)step->integer;
  }
  return end(card, FPGA_OK, CYCLES(&vy));
}
