/* x1_runtime.h: runtime of the X1-Edge, a system on chip with unified memory. Version 1.2; link with x1_runtime.so.
 *
 * The chip computes in FLOAT32 and FLOAT16 (FLOAT32 accumulation, rounded once), in quantised 8-bit numbers, and in
 * INT32, INT64 and BOOL for indices and masks. One command runs at a time: each function returns when the chip has done
 * it. All functions may be called from any thread. C and C++.
 *
 * 8-bit numbers. The units take them as X1_DTYPE_UINT8 with zero point 128: the byte b means b - 128. Results wrap
 * around at the ends of [-128, 127]. Two's complement (X1_DTYPE_INT8) is known to x1_copy_ex only, which converts.
 *
 * Memory. The chip sees no memory of the host but what was mapped (x1_mem_map) or comes from its own share of it
 * (x1_mem_alloc); both are 4 GB together, and the host uses the same addresses. An operand elsewhere is refused; with
 * X1_SIM_UNFORGIVING=1 in the environment the process aborts, as with the real driver. So do convolutions
 * that the unit cannot do: strides other than 1, 2, 4, paddings above 2, groups other than 1, 2, 4, dilations above 1.
 *
 * Errors. Functions return X1_OK or why they did nothing; x1_last_error() has the words, for each thread. */
#ifndef X1_RUNTIME_H
#define X1_RUNTIME_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define X1_API __attribute__((visibility("default")))

#define X1_OK 0
#define X1_EVALUE 1       /* an argument makes no sense */
#define X1_EADDRESS 2     /* neither mapped nor allocated, or too short */
#define X1_EMEMORY 3      /* the chip's 4 GB are in use */
#define X1_EUNSUPPORTED 4 /* the chip cannot do this: a dtype, a rank, a stride */
#define X1_EBUSY 5        /* memory that is mapped already in another way */

X1_API const char *x1_last_error(void);
X1_API const char *x1_version(void); /* "1.2.0" */
/* Starts the chip; `flags` is 0. The first command does it, too. Version 1.1 had `int x1_init(void)` in its place. */
X1_API int x1_init_v2(uint32_t flags);

typedef struct x1_info {
  char name[32];
  char serial[32];
  uint64_t memory_bytes;
  uint64_t mapped_bytes; /* now: each byte once, however often it was mapped */
  uint64_t allocated_bytes;
  uint64_t copied_bytes; /* by x1_mem_copy, since the start */
  uint64_t commands;
  uint64_t cycles; /* at 1 GHz */
} x1_info_t;
X1_API int x1_get_info(x1_info_t *info);

/* ---------------------------------------------------------------- memory */
/* Gives the chip the use of host memory, which stays where it is: returns its address there, which is `host_ptr`
 * (shared virtual addresses), or NULL. Mappings count: the same pointer and size may be mapped again, and stays until
 * it was unmapped as often. Memory that overlaps a mapping otherwise is refused (X1_EBUSY). Unmap before you free. */
X1_API void *x1_mem_map(void *host_ptr, size_t size);
X1_API int x1_mem_unmap(void *ptr);
/* Memory of the chip's own share, aligned to 64 bytes; NULL when it is used up. */
X1_API void *x1_mem_alloc(size_t size);
X1_API int x1_mem_free(void *ptr);
/* By the chip's mover; either side may be any memory of the host. */
X1_API int x1_mem_copy(void *to, const void *from, size_t size);
X1_API int x1_mem_set(void *to, int byte, size_t size);
X1_API int x1_mem_info(uint64_t *free_bytes, uint64_t *total_bytes);

/* ---------------------------------------------------------------- tensors */
#define X1_NUMBER 0 /* not a tensor: `real`, or for whole numbers `integer` */
#define X1_DTYPE_FLOAT32 1
#define X1_DTYPE_FLOAT16 2
#define X1_DTYPE_UINT8 3 /* b means b - 128 */
#define X1_DTYPE_INT32 4
#define X1_DTYPE_INT64 5
#define X1_DTYPE_BOOL 6 /* one byte, 0 or 1 */
#define X1_DTYPE_INT8 7 /* this and the following: for x1_copy_ex, and x1_fill_ex with 0 */
#define X1_DTYPE_BITS8 8
#define X1_DTYPE_BITS16 9
#define X1_DTYPE_BITS32 10
#define X1_DTYPE_BITS64 11

typedef struct x1_dims {
  int64_t d[4];
#ifdef __cplusplus
  int64_t &operator[](int i) { return d[i]; }
  const int64_t &operator[](int i) const { return d[i]; }
#endif
} x1_dims_t;

/* An image, or the filters of a convolution: N, C, H, W in this order, whatever the order in memory. Strides count
 * elements. The chip is fastest with NHWC in memory, and takes any. data NULL: absent. */
typedef struct x1_tensor {
  void *data;
  x1_dims_t shape;
  x1_dims_t stride;
  int32_t dtype;
} x1_tensor_t;

/* y = the convolution of x with w, plus bias (of w.shape[0] elements). stride, padding and dilation have two elements.
 * The result, dense in the order N, C, H, W, is memory of the chip that stays valid until this thread calls
 * x1_conv2d_run again, or ends. After an error, output.data is NULL and its shape 0. */
X1_API int x1_conv2d_run(const x1_tensor_t *input, const x1_tensor_t *weight, const x1_tensor_t *bias,
                         const int64_t *stride, const int64_t *padding, const int64_t *dilation, int64_t groups,
                         x1_tensor_t *output);
/* c[i] = a[i] + b[i]; a[i] * b[i] */
X1_API int x1_add(const float *a, const float *b, float *c, int n);
X1_API int x1_mul(const float *a, const float *b, float *c, int n);

/* ---------------------------------------------------------------- tensors of any rank, results where the caller says
 */
#define X1_MAX_RANK 6

/* Functions on these end in _ex. Strides count elements; 0 repeats one, negative ones there are none. The result of a
 * vector command may be the memory of an operand, with its strides. */
typedef struct x1_view {
  void *data; /* the first element */
  int32_t dtype;
  int32_t rank;
  int64_t shape[X1_MAX_RANK];
  int64_t stride[X1_MAX_RANK];
  double real;
  int64_t integer;
} x1_view_t;

typedef struct x1_window {
  int64_t kernel[2];
  int64_t stride[2];
  int64_t padding[2];
  int64_t dilation[2];
  int64_t groups;        /* of a convolution */
  int64_t count_padding; /* of an average: whether the padding counts, */
  int64_t divisor;       /* or by what to divide instead; 0: by the number of elements */
} x1_window_t;

/* x, w, y of rank 4; bias NULL or of rank 1. One dtype; for UINT8 y may be INT32, and bias is INT32. */
X1_API int x1_conv2d_ex(const x1_view_t *x, const x1_view_t *w, const x1_view_t *bias, const x1_window_t *window,
                        const x1_view_t *y);
/* y = alpha a b + beta c. Rank 2: (m, k) (k, n); rank 3: a batch of those. c is NULL or has y's shape. FLOAT32,
 * FLOAT16; UINT8, of which y may be INT32; INT32 and INT64 (alpha 1, no c). y overlaps no operand. */
X1_API int x1_matmul_ex(const x1_view_t *a, const x1_view_t *b, const x1_view_t *c, double alpha, double beta,
                        const x1_view_t *y);
/* Of x of rank 4, floating point. at (INT64): the place of each maximum in its image, h * W + w; or NULL. Padding below
 * half of the kernel, dilation of a maximum 1. */
X1_API int x1_max_pool2d_ex(const x1_view_t *x, const x1_window_t *window, const x1_view_t *y, const x1_view_t *at);
X1_API int x1_avg_pool2d_ex(const x1_view_t *x, const x1_window_t *window, const x1_view_t *y);

#define X1_NEG 1 /* FLOAT32, FLOAT16, UINT8, INT32, INT64 */
#define X1_ABS 2
#define X1_RELU 3
#define X1_NOT 4   /* UINT8, INT32, INT64: bits; BOOL */
#define X1_FLOOR 5 /* this and the following: FLOAT32, FLOAT16 */
#define X1_CEIL 6
#define X1_TRUNC 7
#define X1_ROUND 8 /* to even */
#define X1_SQRT 9
#define X1_RSQRT 10
#define X1_EXP 11
#define X1_EXPM1 12
#define X1_LOG 13
#define X1_LOG1P 14
#define X1_SIN 15
#define X1_COS 16
#define X1_TANH 17
#define X1_ERF 18
#define X1_SIGMOID 19
X1_API int x1_unary_ex(int32_t opcode, const x1_view_t *x, const x1_view_t *y);

#define X1_ADD 1 /* FLOAT32, FLOAT16, UINT8, INT32, INT64; whole numbers wrap around */
#define X1_SUB 2
#define X1_MUL 3
#define X1_MAX 4 /* NaN wins */
#define X1_MIN 5
#define X1_DIV 6 /* FLOAT32, FLOAT16 */
#define X1_POW 7
#define X1_FMOD 8
#define X1_RELU_GRAD 9 /* a where b > 0, else 0 */
#define X1_IDIV 10     /* whole numbers: without fraction; by 0 is 0 */
#define X1_AND 11      /* UINT8, INT32, INT64: bits; BOOL */
#define X1_OR 12
#define X1_XOR 13
#define X1_EQ 14 /* this and the following: -> BOOL */
#define X1_NE 15
#define X1_LT 16
#define X1_LE 17
#define X1_GT 18
#define X1_GE 19
/* y = a OP b; one of a and b may be a number */
X1_API int x1_binary_ex(int32_t opcode, const x1_view_t *a, const x1_view_t *b, const x1_view_t *y);
/* y = condition (BOOL) ? a : b; each of a and b may be a number */
X1_API int x1_select_ex(const x1_view_t *condition, const x1_view_t *a, const x1_view_t *b, const x1_view_t *y);

#define X1_SUM 1 /* floating point is summed in double precision; UINT8 may give INT32 */
#define X1_PROD 2
#define X1_MAXIMUM 3 /* NaN wins; of nothing there is none. BOOL: any */
#define X1_MINIMUM 4 /* BOOL: all */
#define X1_MEAN 5    /* FLOAT32, FLOAT16 */
/* Over the dimensions whose bits are set; y has x's rank, and there size 1. */
X1_API int x1_reduce_ex(int32_t opcode, const x1_view_t *x, uint32_t dimensions, const x1_view_t *y);
/* y (INT64) = where along the dimension the first X1_MAXIMUM or X1_MINIMUM is; the first NaN, if there is one. */
X1_API int x1_arg_reduce_ex(int32_t opcode, const x1_view_t *x, int32_t dimension, const x1_view_t *y);
/* y = the sum of x up to each place along the dimension */
X1_API int x1_cumsum_ex(const x1_view_t *x, int32_t dimension, const x1_view_t *y);
/* y[i] = start + i * step, of rank 1 */
X1_API int x1_iota_ex(const x1_view_t *start, const x1_view_t *step, const x1_view_t *y);

/* ---------------------------------------------------------------- mover */
/* y = x in y's layout and dtype: to BOOL is != 0, to whole numbers drops the fraction, whole numbers wrap around. */
X1_API int x1_copy_ex(const x1_view_t *x, const x1_view_t *y);
X1_API int x1_fill_ex(const x1_view_t *number, const x1_view_t *y);
/* y[i][j] = x[index[i][j]][j] for dimension 0, and so on; index (INT64) has y's shape, x is elsewhere at least as long.
 */
X1_API int x1_gather_ex(const x1_view_t *x, const x1_view_t *index, int32_t dimension, const x1_view_t *y);
/* y[index[i][j]][j] = x[i][j] (opcode 0), or += (X1_ADD); index has x's shape. In row-major order, the last one wins.
 */
X1_API int x1_scatter_ex(int32_t opcode, const x1_view_t *x, const x1_view_t *index, int32_t dimension,
                         const x1_view_t *y);

#ifdef __cplusplus
}
#endif
#endif
