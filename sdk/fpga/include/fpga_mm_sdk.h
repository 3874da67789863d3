/* fpga_mm_sdk.h: software development kit of the FPGA matrix card, version 2.0. Link with -lfpga_mm.
 *
 * The card holds a matrix engine, a vector unit of 16 lanes and a mover, clocked at 250 MHz. It computes in FP32; INT64
 * and BOOL are there for indices and masks. One command runs at a time: each function returns when the card has done
 * it. All functions may be called from any thread.
 *
 * Memory. Card memory is not host memory: a card address faults when the host touches it. Operands of the matrix engine
 * and the vector unit start at a multiple of 64 bytes; the mover (fpga_copy_nd, fpga_fill_nd, fpga_write, fpga_read,
 * fpga_move, fpga_set) takes the address of any element. A tensor lies within one allocation.
 *
 * Errors. Every function returns FPGA_OK or why it did nothing; fpga_error_text() has the details, for each thread. */
#ifndef FPGA_MM_SDK_H
#define FPGA_MM_SDK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define FPGA_API __attribute__((visibility("default")))

#define FPGA_OK 0
#define FPGA_EVALUE 1       /* an argument makes no sense */
#define FPGA_EADDRESS 2     /* not card memory, not allocated, misaligned, or too short */
#define FPGA_EMEMORY 3      /* the card's memory is full */
#define FPGA_EUNSUPPORTED 4 /* the card cannot do this: a dtype, a rank */
#define FPGA_EEXECUTION 5   /* the command failed; the card goes on */
#define FPGA_ELOST 6        /* the card no longer answers; close and open it */
#define FPGA_ECARD 7        /* no such card, or not an open one */

FPGA_API const char *fpga_error_text(void);
FPGA_API const char *fpga_version(void); /* "2.0.1" */

/* ---------------------------------------------------------------- cards */
typedef struct fpga_card *fpga_card_t;

typedef struct fpga_info {
  char name[32];
  char serial[32];
  uint64_t memory_bytes;
  uint64_t free_bytes;
  uint64_t cycles; /* spent since the card was opened */
  int32_t alignment;
  int32_t clock_mhz;
} fpga_info_t;

FPGA_API int fpga_card_count(int32_t *count); /* opens nothing */
FPGA_API int fpga_open(int32_t index, fpga_card_t *card);
FPGA_API int fpga_close(fpga_card_t card); /* frees its memory */
FPGA_API int fpga_get_info(fpga_card_t card, fpga_info_t *info);

/* ---------------------------------------------------------------- memory, plain bytes */
FPGA_API int fpga_alloc(fpga_card_t card, uint64_t bytes, void **address);
FPGA_API int fpga_free(fpga_card_t card, void *address);
FPGA_API int fpga_write(fpga_card_t card, void *to, const void *host, uint64_t bytes);
FPGA_API int fpga_read(fpga_card_t card, void *host, const void *from, uint64_t bytes);
FPGA_API int fpga_move(fpga_card_t card, void *to, const void *from, uint64_t bytes);
FPGA_API int fpga_set(fpga_card_t card, void *to, int32_t byte, uint64_t bytes);

/* ---------------------------------------------------------------- operands */
#define FPGA_MAX_RANK 4
#define FPGA_NUMBER 0 /* not a tensor: `real`, or for an INT64 or BOOL command `integer` */
#define FPGA_FP32 1
#define FPGA_INT64 2
#define FPGA_BOOL 3  /* one byte, 0 or 1 */
#define FPGA_BITS8 4 /* these are moved by fpga_copy_nd and set to 0 by fpga_fill_nd, never computed with */
#define FPGA_BITS16 5
#define FPGA_BITS32 6
#define FPGA_BITS64 7

/* Strides count elements; 0 repeats an element, negative ones there are none. The operands of a command have the
 * result's size. The result of a vector command may be the memory of an operand, with its strides. */
typedef struct fpga_operand {
  void *address; /* of the first element */
  int32_t dtype;
  int32_t rank;
  int64_t size[FPGA_MAX_RANK];
  int64_t stride[FPGA_MAX_RANK];
  double real;
  int64_t integer;
} fpga_operand_t;

/* ---------------------------------------------------------------- matrix engine: FP32 */
/* y = a b + c. Rank 2: (m, k) (k, n); rank 3: a batch of those. c is NULL or has y's size. y overlaps no operand. */
FPGA_API int fpga_matmul(fpga_card_t card, const fpga_operand_t *a, const fpga_operand_t *b, const fpga_operand_t *c,
                         const fpga_operand_t *y);
/* y = x where x > 0 or is NaN, else 0 */
FPGA_API int fpga_relu(fpga_card_t card, const fpga_operand_t *x, const fpga_operand_t *y);

/* ---------------------------------------------------------------- vector unit */
#define FPGA_ADD 1 /* FP32, INT64 (wraps around) */
#define FPGA_SUB 2
#define FPGA_MUL 3
#define FPGA_DIV 4 /* FP32 */
#define FPGA_MAX 5 /* FP32 (NaN wins), INT64 */
#define FPGA_EQ 6  /* FP32, INT64, BOOL -> BOOL */
#define FPGA_LT 7
#define FPGA_LE 8
#define FPGA_AND 9  /* BOOL */
#define FPGA_EXP 10 /* FP32, of a; b is NULL */
#define FPGA_SQRT 11
/* y = a OP b; one of a and b may be a number */
FPGA_API int fpga_vector(fpga_card_t card, int32_t opcode, const fpga_operand_t *a, const fpga_operand_t *b,
                         const fpga_operand_t *y);
/* y = condition (BOOL) ? a : b; each of a and b may be a number */
FPGA_API int fpga_select(fpga_card_t card, const fpga_operand_t *condition, const fpga_operand_t *a,
                         const fpga_operand_t *b, const fpga_operand_t *y);
/* y = FPGA_ADD: sum, FPGA_MAX: maximum of x over the dimensions whose bits are set. y has x's rank and there size 1.
 * FP32, INT64; the maximum of BOOL too. FP32 is summed in double precision. Of nothing, the sum is 0, the maximum of
 * BOOL false, and no other maximum there is. */
FPGA_API int fpga_reduce(fpga_card_t card, int32_t opcode, const fpga_operand_t *x, uint32_t dimensions,
                         const fpga_operand_t *y);
/* y[i] = start + i * step, for y of rank 1; FP32 (by double precision) or INT64 */
FPGA_API int fpga_ramp(fpga_card_t card, const fpga_operand_t *start, const fpga_operand_t *step,
                       const fpga_operand_t *y);

/* ---------------------------------------------------------------- mover */
/* y = x in y's layout. Converts between FP32, INT64 and BOOL (to BOOL: != 0; FP32 to INT64 drops the fraction). */
FPGA_API int fpga_copy_nd(fpga_card_t card, const fpga_operand_t *x, const fpga_operand_t *y);
/* All elements of y = a number */
FPGA_API int fpga_fill_nd(fpga_card_t card, const fpga_operand_t *number, const fpga_operand_t *y);
/* y[i][j] = x[index[i][j]][j] for dimension 0, and so on; index (INT64) has y's size, x is elsewhere at least as long.
 * An index out of range fails the command. x, index and y start at a multiple of 64 bytes. */
FPGA_API int fpga_gather(fpga_card_t card, const fpga_operand_t *x, const fpga_operand_t *index, int32_t dimension,
                         const fpga_operand_t *y);

#ifdef __cplusplus
}
#endif
#endif
