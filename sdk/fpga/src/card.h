/* card.h: what the commands see of a card.
 *
 * Contract of a command: `begin`, then `look` at each operand, then compute on the views, then `end` with the status.
 */
#ifndef FPGA_CARD_H
#define FPGA_CARD_H

#include <stddef.h>

#include "fpga_mm_sdk.h"

#define BIT(dtype) (1u << (dtype))
#define COMPUTED (BIT(FPGA_FP32) | BIT(FPGA_INT64) | BIT(FPGA_BOOL))
#define MOVED (COMPUTED | BIT(FPGA_BITS8) | BIT(FPGA_BITS16) | BIT(FPGA_BITS32) | BIT(FPGA_BITS64))

/* An operand whose memory the simulation can reach. A number is one element of stride 0 in `held`. */
typedef struct view {
  char *data;
  int32_t dtype, rank;
  int64_t size[FPGA_MAX_RANK], stride[FPGA_MAX_RANK];
  union {
    float real;
    int64_t integer;
    uint8_t truth;
  } held;
} view;

int fail(int status, const char *format, ...) __attribute__((format(printf, 2, 3)));
int begin(fpga_card_t card, const char *command);       /* takes the card, for this thread */
int end(fpga_card_t card, int status, uint64_t cycles); /* gives it back; returns `status` */
int look(fpga_card_t card, const char *what, const fpga_operand_t *operand, uint32_t dtypes, int aligned, view *out);
/* The same for a number, or a tensor with the size and dtype of `like`. */
int look_like(fpga_card_t card, const char *what, const fpga_operand_t *operand, const view *like, int aligned,
              view *out);
int same_size(const char *what, const view *a, const view *b);
size_t item_size(int32_t dtype);
int64_t elements(const view *v);

/* Walks up to four views of one size row by row; dimensions that can be joined are. */
#define ROWS_MAX 4
typedef struct rows {
  int32_t count, rank;
  int64_t left, length;                                                          /* rows to come; elements of a row */
  int64_t size[FPGA_MAX_RANK], at[FPGA_MAX_RANK], step[ROWS_MAX][FPGA_MAX_RANK]; /* in bytes */
  char *p[ROWS_MAX];                                                             /* the row's first elements */
  int64_t stride[ROWS_MAX];                                                      /* within a row, in elements */
} rows;
rows rows_of(int32_t count, const view *const *views);
void rows_next(rows *r);
#define FOR_ROWS(r, ...)                                                                                        \
  for (rows r = rows_of(sizeof((const view *[]){__VA_ARGS__}) / sizeof(view *), (const view *[]){__VA_ARGS__}); \
       r.left > 0; rows_next(&r))

#endif
