// mover.c: the mover: copies with any strides, conversions, fills, gathers. 64 bytes a cycle.
#include "card.h"

#define CYCLES(v) ((uint64_t)(64 + elements(v) * (int64_t)item_size((v)->dtype) / 64))

#define MOVE(X, Y, value)                                             \
  {                                                                   \
    const X *x = (const X *)r->p[0];                                  \
    Y *y = (Y *)r->p[1];                                              \
    int64_t n = r->length, s = r->stride[0], t = r->stride[1];        \
    if (s == 1 && t == 1)                                             \
      for (int64_t i = 0; i < n; i++) y[i] = (Y)(x[i] value);         \
    else                                                              \
      for (int64_t i = 0; i < n; i++) y[i * t] = (Y)(x[i * s] value); \
    return;                                                           \
  }

static void row(int32_t from, int32_t to, const rows *r) {
  if (from == to) {
    switch (item_size(from)) {
      case 1:
        MOVE(uint8_t, uint8_t, )
      case 2:
        MOVE(uint16_t, uint16_t, )
      case 4:
        MOVE(uint32_t, uint32_t, )
      default:
        MOVE(uint64_t, uint64_t, )
    }
  }
  if (from == FPGA_FP32 && to == FPGA_INT64) MOVE(float, int64_t, )
  if (from == FPGA_FP32) MOVE(float, uint8_t, != 0)
  if (from == FPGA_INT64 && to == FPGA_FP32) MOVE(int64_t, float, )
  if (from == FPGA_INT64) MOVE(int64_t, uint8_t, != 0)
  if (to == FPGA_FP32) MOVE(uint8_t, float, )
  MOVE(uint8_t, int64_t, )
}

int fpga_copy_nd(fpga_card_t card, const fpga_operand_t *x, const fpga_operand_t *y) {
  view vx, vy;
  int status = begin(card, "fpga_copy_nd");
  if (status) return status;
  status = look(card, "x", x, MOVED, 0, &vx);
  if (!status) status = look(card, "y", y, MOVED, 0, &vy);
  if (!status) status = same_size("fpga_copy_nd: x", &vx, &vy);
  if (!status && vx.dtype != vy.dtype && (BIT(vx.dtype) | BIT(vy.dtype)) & ~COMPUTED)
    status = fail(FPGA_EUNSUPPORTED, "fpga_copy_nd: no conversion between these dtypes");
  if (status) return end(card, status, 0);
  FOR_ROWS(r, &vx, &vy) row(vx.dtype, vy.dtype, &r);
  return end(card, FPGA_OK, CYCLES(&vx));
}

int fpga_fill_nd(fpga_card_t card, const fpga_operand_t *number, const fpga_operand_t *y) {
  view vx, vy;
  if (!number || number->dtype != FPGA_NUMBER) return fail(FPGA_EVALUE, "fpga_fill_nd: number: not a number");
  int status = begin(card, "fpga_fill_nd");
  if (status) return status;
  status = look(card, "y", y, MOVED, 0, &vy);
  if (!status && BIT(vy.dtype) & ~COMPUTED && (number->integer || number->real != 0))
    status = fail(FPGA_EUNSUPPORTED, "fpga_fill_nd: only 0 is the same in every dtype of this size");
  if (!status) status = look_like(card, "number", number, &vy, 0, &vx);
  if (status) return end(card, status, 0);
  FOR_ROWS(r, &vx, &vy) row(vy.dtype, vy.dtype, &r);
  return end(card, FPGA_OK, CYCLES(&vy));
}

#define TAKE(T)                          \
  for (int64_t i = 0; i < r.length; i++) \
    ((T *)r.p[2])[i * r.stride[2]] =     \
        ((const T *)r.p[0])[i * r.stride[0] + ((const int64_t *)r.p[1])[i * r.stride[1]] * step];

int fpga_gather(fpga_card_t card, const fpga_operand_t *x, const fpga_operand_t *index, int32_t dimension,
                const fpga_operand_t *y) {
  view vx, vi, vy;
  int status = begin(card, "fpga_gather");
  if (status) return status;
  status = look(card, "x", x, COMPUTED, 1, &vx);
  if (!status) status = look(card, "index", index, BIT(FPGA_INT64), 1, &vi);
  if (!status) status = look(card, "y", y, BIT(vx.dtype), 1, &vy);
  if (!status) status = same_size("fpga_gather: index", &vi, &vy);
  if (!status && (vx.rank != vy.rank || dimension < 0 || dimension >= vx.rank))
    status = fail(FPGA_EVALUE, "fpga_gather: dimension %d of ranks %d and %d", dimension, vx.rank, vy.rank);
  for (int32_t d = 0; !status && d < vx.rank; d++)
    if (d != dimension && vx.size[d] < vy.size[d])
      status = fail(FPGA_EVALUE, "fpga_gather: x is too short in dimension %d", d);
  if (status) return end(card, status, 0);
  int64_t size = vx.size[dimension], step = vx.stride[dimension];
  FOR_ROWS(r, &vi)
  for (int64_t i = 0; i < r.length; i++) {
    int64_t at = ((const int64_t *)r.p[0])[i * r.stride[0]];
    if (at < 0 || at >= size)
      return end(
          card,
          fail(FPGA_EEXECUTION, "fpga_gather: index %lld is out of range: x has %lld", (long long)at, (long long)size),
          0);
  }
  view from = vx; /* y's elements before the index moves them */
  for (int32_t d = 0; d < vy.rank; d++) from.size[d] = vy.size[d];
  from.stride[dimension] = 0;
  FOR_ROWS(r, &from, &vi, &vy) {
    if (item_size(vx.dtype) == 4)
      TAKE(uint32_t)
    else if (item_size(vx.dtype) == 8)
      TAKE(uint64_t)
    else
      TAKE(uint8_t)
  }
  return end(card, FPGA_OK, CYCLES(&vy));
}
