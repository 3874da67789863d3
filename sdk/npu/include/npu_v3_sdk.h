/* npu_v3_sdk.h: the NPU-V2/NPU-V3 software development kit, version 1.2.
 *
 * The vendor's C interface to the NPU. Link with -lnpu. All functions are thread-safe; work enqueued on one stream
 * runs in order, work on different streams does not wait for each other unless an event says so.
 *
 * Memory. Device memory is opaque: the host must never dereference a device address (it faults). Every tensor that a
 * compute function gets must start at an address that is a multiple of npu_props_t.alignment (256 bytes with SDK
 * 1.2.0, 512 with 1.2.1), else NPU_STATUS_INVALID_ADDRESS. The DMA engine (npu_memcpy*, npu_memset_async,
 * npu_v3_copy_nd, npu_v3_fill_nd) takes any element address.
 *
 * Errors. Arguments are checked when a function is called: a refused call enqueues nothing. What goes wrong later is
 * returned once by the next synchronise of that stream. npu_last_error_text() explains the last failure of the
 * calling thread. After NPU_STATUS_DEVICE_LOST every call on that device fails with it.
 *
 * Environment of the simulation: NPU_SIM_DEVICES (number of devices, 1), NPU_SIM_CHIP (v2 or v3: v3), NPU_SIM_MEMORY
 * (MiB per device, 4096), NPU_SIM_SDK_VERSION (1.2.0 or 1.2.1), NPU_SIM_THREADS (CPU threads that compute),
 * NPU_SIM_FAULT (see README.md).
 */
#ifndef NPU_V3_SDK_H
#define NPU_V3_SDK_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define NPU_API __attribute__((visibility("default")))

/* ---------------------------------------------------------------- status */
typedef int32_t npu_status_t;
#define NPU_STATUS_SUCCESS 0
#define NPU_STATUS_INVALID_VALUE 1
#define NPU_STATUS_INVALID_ADDRESS 2
#define NPU_STATUS_OUT_OF_MEMORY 3
#define NPU_STATUS_NOT_SUPPORTED 4
#define NPU_STATUS_NOT_READY 5
#define NPU_STATUS_EXECUTION_FAILED 6
#define NPU_STATUS_TIMEOUT 7
#define NPU_STATUS_DEVICE_LOST 8
#define NPU_STATUS_NO_DEVICE 9

NPU_API const char *npu_status_name(npu_status_t status);
NPU_API const char *npu_last_error_text(void);
NPU_API const char *npu_sdk_version(void);

/* ---------------------------------------------------------------- devices */
typedef struct npu_device *npu_device_t;
typedef struct npu_stream *npu_stream_t;
typedef struct npu_event *npu_event_t;

typedef struct npu_props {
  char name[64]; /* "NPU-V3" */
  char serial[64];
  uint64_t memory_bytes;
  uint64_t alignment;
  uint64_t on_chip_cache_bytes;
  int32_t max_rank; /* 6 (V3), 5 (V2) */
  int32_t fp16_units;
  int32_t int8_units;
  int32_t clock_mhz;
} npu_props_t;

NPU_API npu_status_t npu_device_count(int32_t *count); /* starts nothing */
NPU_API npu_status_t npu_device_open(int32_t index, npu_device_t *device);
NPU_API npu_status_t npu_device_close(npu_device_t device);
NPU_API npu_status_t npu_device_properties(npu_device_t device, npu_props_t *props);
NPU_API npu_status_t npu_device_telemetry(npu_device_t device, double *utilization, double *watts, double *celsius,
                                          double *busy_seconds);
/* Device time: cycles of the virtual clock spent on this device by all streams. */
NPU_API npu_status_t npu_device_cycles(npu_device_t device, uint64_t *cycles);

/* ---------------------------------------------------------------- memory */
NPU_API npu_status_t npu_malloc(npu_device_t device, uint64_t bytes, void **address);
NPU_API npu_status_t npu_free(npu_device_t device, void *address);
NPU_API npu_status_t npu_mem_info(npu_device_t device, uint64_t *free_bytes, uint64_t *total_bytes);

#define NPU_COPY_TO_DEVICE 1
#define NPU_COPY_TO_HOST 2
#define NPU_COPY_ON_DEVICE 3
/* Host memory must stay valid and unchanged until the stream has passed the copy. */
NPU_API npu_status_t npu_memcpy_async(npu_stream_t stream, void *dst, const void *src, uint64_t bytes, int32_t kind);
NPU_API npu_status_t npu_memcpy_peer_async(npu_stream_t stream, void *dst, npu_device_t src_device, const void *src,
                                           uint64_t bytes);
NPU_API npu_status_t npu_memset_async(npu_stream_t stream, void *dst, int32_t value, uint64_t bytes);

/* ---------------------------------------------------------------- streams and events */
NPU_API npu_status_t npu_default_stream(npu_device_t device, npu_stream_t *stream);
NPU_API npu_status_t npu_stream_create(npu_device_t device, int32_t priority, npu_stream_t *stream);
NPU_API npu_status_t npu_stream_destroy(npu_stream_t stream);
NPU_API npu_status_t npu_stream_synchronize(npu_stream_t stream);
NPU_API npu_status_t npu_stream_query(npu_stream_t stream);
NPU_API npu_status_t npu_event_create(npu_device_t device, npu_event_t *event);
NPU_API npu_status_t npu_event_destroy(npu_event_t event);
NPU_API npu_status_t npu_event_record(npu_event_t event, npu_stream_t stream);
NPU_API npu_status_t npu_event_wait(npu_event_t event, npu_stream_t stream);
NPU_API npu_status_t npu_event_query(npu_event_t event);
NPU_API npu_status_t npu_event_synchronize(npu_event_t event);
/* Milliseconds of device time (virtual clock) between two recorded events of one device. */
NPU_API npu_status_t npu_event_elapsed(npu_event_t start, npu_event_t end, double *milliseconds);

/* ---------------------------------------------------------------- tensors */
#define NPU_FLOAT16 1
#define NPU_BFLOAT16 2
#define NPU_FLOAT32 3
#define NPU_INT8 4
#define NPU_INT32 5
#define NPU_INT64 6
#define NPU_BOOL 7
#define NPU_UINT8 8
#define NPU_FLOAT64 9 /* DMA engine, and the scalar core's share of the vector unit's functions */
#define NPU_INT16 10
#define NPU_MAX_RANK 6

/* `shape` and `stride` (in elements, 0 = broadcast, never negative) are read during the call only. */
typedef struct npu_tensor {
  void *address; /* of the first element */
  const int64_t *shape;
  const int64_t *stride;
  int32_t dtype;
  int32_t rank;
} npu_tensor_t;

/* A number as an operand. */
typedef struct npu_scalar {
  int32_t is_integer; /* 1: i holds it, 0: d holds it */
  int32_t reserved;
  double d;
  int64_t i;
} npu_scalar_t;

/* ---------------------------------------------------------------- DMA engine */
/* Same shape on both sides, any strides. Converts between all dtypes as C does (to bool: != 0). FLOAT64 is rounded
 * once to a 16-bit type, integers by way of FLOAT32. A real number as `value` is a FLOAT64. */
NPU_API npu_status_t npu_v3_copy_nd(npu_stream_t stream, const npu_tensor_t *dst, const npu_tensor_t *src);
/* The same, with src read backwards along the dimensions of the bit mask `dims`; dst does not overlap src. */
NPU_API npu_status_t npu_v3_flip(npu_stream_t stream, const npu_tensor_t *dst, const npu_tensor_t *src, uint32_t dims);
NPU_API npu_status_t npu_v3_fill_nd(npu_stream_t stream, const npu_tensor_t *dst, npu_scalar_t value);
/* dst[i] = start + i*step, in double or, if both are integers, in int64; for a 1-D dst of any numeric dtype. */
NPU_API npu_status_t npu_v3_iota(npu_stream_t stream, const npu_tensor_t *dst, npu_scalar_t start, npu_scalar_t step);
/* dst = src rows taken along `dim` by a 1-D int32/int64 index tensor (0 to the size less one; out of range, as a
 * negative one is, means NPU_STATUS_EXECUTION_FAILED at the next synchronise). */
NPU_API npu_status_t npu_v3_index_select(npu_stream_t stream, const npu_tensor_t *dst, const npu_tensor_t *src,
                                         int32_t dim, const npu_tensor_t *index);
/* dst[i][j] = src[index[i][j]][j] for dim 0, and so on; dst and index have one shape. */
NPU_API npu_status_t npu_v3_gather(npu_stream_t stream, const npu_tensor_t *dst, const npu_tensor_t *src, int32_t dim,
                                   const npu_tensor_t *index);
/* For each element of src, at its place but at index along `dim`: dst[index[i][j]][j] = src[i][j] for dim 0, and so on;
 * src and index have one shape; a src that is NULL is the scalar s. One after the other in row-major order of src. */
#define NPU_SCATTER_REPLACE 1
#define NPU_SCATTER_ADD 2 /* numbers; float16 and bfloat16 are combined in float32 */
#define NPU_SCATTER_MUL 3
#define NPU_SCATTER_MAX 4 /* NaN wins */
#define NPU_SCATTER_MIN 5
NPU_API npu_status_t npu_v3_scatter(npu_stream_t stream, int32_t opcode, const npu_tensor_t *dst, int32_t dim,
                                    const npu_tensor_t *index, const npu_tensor_t *src, npu_scalar_t s);
/* dst rows along dim 0 of a 2-D dst += rows of src (deterministic: in order of the index); floating dtypes. */
NPU_API npu_status_t npu_v3_index_add_rows(npu_stream_t stream, const npu_tensor_t *dst, const npu_tensor_t *index,
                                           const npu_tensor_t *src);

/* ---------------------------------------------------------------- vector unit
 * Shapes: every operand has the rank and shape of `out` (express broadcasting by stride 0). `out` may be the same
 * memory as an operand if strides are equal. Float math is done in float32 and rounded once to nearest even. Integers
 * wrap around.
 * Operands share one dtype unless said otherwise, `out` has it too; comparisons and logical functions write BOOL.
 *
 * FLOAT64 is not the vector unit's: the scalar core computes it, in double, one element after the other and 64 cycles
 * for each; it is meant for single numbers. It knows all opcodes but the unary SIGMOID RELU GELU GELU_TANH SILU
 * LEAKY_RELU CLAMP and BITWISE_NOT, and the binary DIV_TRUNC, DIV_FLOOR, logical, bitwise and gradients. */
#define NPU_UNARY_NEG 1
#define NPU_UNARY_ABS 2
#define NPU_UNARY_EXP 3
#define NPU_UNARY_EXPM1 4
#define NPU_UNARY_LOG 5
#define NPU_UNARY_LOG1P 6
#define NPU_UNARY_SQRT 7
#define NPU_UNARY_RSQRT 8
#define NPU_UNARY_RECIPROCAL 9
#define NPU_UNARY_SIN 10
#define NPU_UNARY_COS 11
#define NPU_UNARY_TANH 12
#define NPU_UNARY_ERF 13
#define NPU_UNARY_SIGMOID 14
#define NPU_UNARY_RELU 15
#define NPU_UNARY_GELU 16 /* exact, by erf */
#define NPU_UNARY_GELU_TANH 17
#define NPU_UNARY_SILU 18
#define NPU_UNARY_FLOOR 19
#define NPU_UNARY_CEIL 20
#define NPU_UNARY_ROUND 21 /* half to even */
#define NPU_UNARY_TRUNC 22
#define NPU_UNARY_SIGN 23        /* NaN stays NaN-> 0 as PyTorch's sgn of NaN: NaN */
#define NPU_UNARY_ISNAN 24       /* -> BOOL */
#define NPU_UNARY_LOGICAL_NOT 25 /* any dtype -> BOOL */
#define NPU_UNARY_BITWISE_NOT 26 /* integers and BOOL */
#define NPU_UNARY_LEAKY_RELU 27  /* p0 = negative slope */
#define NPU_UNARY_CLAMP 28       /* p0 = low, p1 = high; NaN in x or in a bound gives NaN */
#define NPU_UNARY_ISFINITE 29    /* -> BOOL */
#define NPU_UNARY_EXP2 30
#define NPU_UNARY_LOG2 31
#define NPU_UNARY_LOG10 32
#define NPU_UNARY_TAN 33
#define NPU_UNARY_ASIN 34
#define NPU_UNARY_ACOS 35
#define NPU_UNARY_ATAN 36
#define NPU_UNARY_SINH 37
#define NPU_UNARY_COSH 38
#define NPU_UNARY_ASINH 39
#define NPU_UNARY_ACOSH 40
#define NPU_UNARY_ATANH 41
#define NPU_UNARY_ERFC 42
#define NPU_UNARY_ERFINV 43
#define NPU_UNARY_LGAMMA 44  /* log |gamma(x)| */
#define NPU_UNARY_DIGAMMA 45 /* -inf for 0, inf for -0, NaN for the other poles */
NPU_API npu_status_t npu_v3_unary(npu_stream_t stream, int32_t opcode, const npu_tensor_t *x, npu_scalar_t p0,
                                  npu_scalar_t p1, const npu_tensor_t *out);

/* out = a OP b. Either operand may be NULL and is then the scalar `s` (both NULL is invalid). */
#define NPU_BINARY_ADD 1 /* a + alpha*b */
#define NPU_BINARY_SUB 2 /* a - alpha*b */
#define NPU_BINARY_MUL 3
#define NPU_BINARY_DIV 4 /* floats only */
#define NPU_BINARY_DIV_TRUNC 5
#define NPU_BINARY_DIV_FLOOR 6
#define NPU_BINARY_REMAINDER 7 /* sign of the divisor, as Python */
#define NPU_BINARY_FMOD 8      /* sign of the dividend, as C */
#define NPU_BINARY_MAX 9       /* NaN wins */
#define NPU_BINARY_MIN 10
#define NPU_BINARY_POW 11
#define NPU_BINARY_EQ 12 /* -> BOOL */
#define NPU_BINARY_NE 13
#define NPU_BINARY_LT 14
#define NPU_BINARY_LE 15
#define NPU_BINARY_GT 16
#define NPU_BINARY_GE 17
#define NPU_BINARY_LOGICAL_AND 18 /* any dtype -> BOOL */
#define NPU_BINARY_LOGICAL_OR 19
#define NPU_BINARY_LOGICAL_XOR 20
#define NPU_BINARY_BITWISE_AND 21
#define NPU_BINARY_BITWISE_OR 22
#define NPU_BINARY_BITWISE_XOR 23
#define NPU_BINARY_ATAN2 24
#define NPU_BINARY_COPYSIGN 25
#define NPU_BINARY_NEXTAFTER 26 /* in the operands' own dtype */
#define NPU_BINARY_SHL 27       /* integers; 0 if b is negative or the width of a, or more */
#define NPU_BINARY_SHR 28       /* integers; copies the sign, and nothing but it if b is negative or too large */
#define NPU_BINARY_GCD 29       /* integers; of the magnitudes */
#define NPU_BINARY_IGAMMA 30    /* regularised lower incomplete gamma function P(a, b) */
#define NPU_BINARY_IGAMMAC 31   /* upper, 1 - P(a, b) */
/* gradients: a = gradient of the output, b = the saved tensor named here */
#define NPU_BINARY_RELU_GRAD 32    /* b = input or result; b > s ? a : 0 (s is the threshold; b must be a tensor) */
#define NPU_BINARY_SIGMOID_GRAD 33 /* b = result */
#define NPU_BINARY_TANH_GRAD 34    /* b = result */
#define NPU_BINARY_GELU_GRAD 35    /* b = input */
#define NPU_BINARY_GELU_TANH_GRAD 36
#define NPU_BINARY_SILU_GRAD 37       /* b = input */
#define NPU_BINARY_LEAKY_RELU_GRAD 38 /* b = input, s = slope */
#define NPU_BINARY_ZETA 39            /* Hurwitz: sum of (b + k)^-a for k >= 0 */
#define NPU_BINARY_CONVERT 256        /* added to an opcode: s is first converted to the dtype of the operands */
NPU_API npu_status_t npu_v3_binary(npu_stream_t stream, int32_t opcode, const npu_tensor_t *a, const npu_tensor_t *b,
                                   npu_scalar_t s, npu_scalar_t alpha, const npu_tensor_t *out);

#define NPU_TERNARY_SELECT 1  /* a (BOOL) ? b : c */
#define NPU_TERNARY_LERP 2    /* a + s*(b-a), c NULL; or with c as the weight. Symmetric form for weights >= 0.5 */
#define NPU_TERNARY_ADDCMUL 3 /* a + s*b*c */
#define NPU_TERNARY_ADDCDIV 4 /* a + s*b/c */
#define NPU_TERNARY_CLAMP 5   /* a clamped to [b, c]; b or c may be NULL */
/* SELECT: b or c may be NULL and is then the scalar s; both NULL is invalid. It takes FLOAT64 too. */
NPU_API npu_status_t npu_v3_ternary(npu_stream_t stream, int32_t opcode, const npu_tensor_t *a, const npu_tensor_t *b,
                                    const npu_tensor_t *c, npu_scalar_t s, const npu_tensor_t *out);

/* out = cond (BOOL) ? a : b, of any dtype; an a or b that is NULL is the scalar s_a or s_b. */
NPU_API npu_status_t npu_v3_select(npu_stream_t stream, const npu_tensor_t *cond, const npu_tensor_t *a,
                                   const npu_tensor_t *b, npu_scalar_t s_a, npu_scalar_t s_b, const npu_tensor_t *out);

/* The first functions this SDK ever had: float16, dense operands of equal strides, `size` = number of elements;
 * strides and shape (as many entries as are needed for `size` elements) describe all three. Addresses may be device
 * memory, or host memory of the same alignment, which is fetched by DMA; blocking. */
NPU_API npu_status_t npu_v3_add(const void *a, const void *b, void *out, int64_t size, const int64_t *strides,
                                const int64_t *shape);

/* ---------------------------------------------------------------- reductions
 * `dims` is a bit mask of the reduced dimensions of x. `out` has x's rank, 1 in the reduced dimensions (strides of
 * those are ignored). float32 accumulation (pairwise or better); integers accumulate in int64. */
#define NPU_REDUCE_SUM 1 /* out: x's dtype, or FLOAT32, or INT64 for integers and BOOL */
#define NPU_REDUCE_MEAN 2
#define NPU_REDUCE_MAX 3 /* NaN wins */
#define NPU_REDUCE_MIN 4
#define NPU_REDUCE_PROD 5
#define NPU_REDUCE_ANY 6 /* -> BOOL */
#define NPU_REDUCE_ALL 7
#define NPU_REDUCE_ARGMAX 8 /* -> INT64, one dimension, or all of a contiguous x; first of equals; NaN wins */
#define NPU_REDUCE_ARGMIN 9
#define NPU_REDUCE_SUM_SQUARES 10
NPU_API npu_status_t npu_v3_reduce(npu_stream_t stream, int32_t opcode, const npu_tensor_t *x, uint32_t dims,
                                   const npu_tensor_t *out);

/* ---------------------------------------------------------------- sorting and scanning, along `dim`
 * Stable; NaN is the greatest. indices INT64: where in x each value was. x is not overlapped by either result. */
NPU_API npu_status_t npu_v3_sort(npu_stream_t stream, const npu_tensor_t *x, int32_t dim, int32_t descending,
                                 const npu_tensor_t *values, const npu_tensor_t *indices);
#define NPU_SCAN_SUM 1 /* of the elements up to here; float64 accumulation, integers wrap around */
#define NPU_SCAN_PROD 2
#define NPU_SCAN_LOG_SUM_EXP 3 /* floats */
#define NPU_SCAN_MAX 4         /* index INT64: of its last occurrence; NaN wins */
#define NPU_SCAN_MIN 5
/* out of x's shape and dtype, may be x; index NULL but for MAX and MIN. */
NPU_API npu_status_t npu_v3_scan(npu_stream_t stream, int32_t opcode, const npu_tensor_t *x, int32_t dim,
                                 const npu_tensor_t *out, const npu_tensor_t *index);

/* ---------------------------------------------------------------- random numbers
 * Philox 4x32-10: key = seed, counter = offset + i / n for element i in row-major order. */
#define NPU_RANDOM_UNIFORM \
  1 /* n = 4; floats: (lane i % 4 >> 8) * 2^-24; float16 keeps 11 bits of the lane, bfloat16 8 */
#define NPU_RANDOM_BITS                                                                         \
  2 /* n = 2; INT64: lanes 2 * (i % 2) (low) and the next (high) as 64 bits, shifted right by 1 \
     */
NPU_API npu_status_t npu_v3_random(npu_stream_t stream, int32_t opcode, uint64_t seed, uint64_t offset,
                                   const npu_tensor_t *out);

/* ---------------------------------------------------------------- softmax and loss */
NPU_API npu_status_t npu_v3_softmax(npu_stream_t stream, const npu_tensor_t *x, int32_t dim, int32_t logarithm,
                                    const npu_tensor_t *out);
NPU_API npu_status_t npu_v3_softmax_grad(npu_stream_t stream, const npu_tensor_t *grad, const npu_tensor_t *out,
                                         int32_t dim, int32_t logarithm, const npu_tensor_t *grad_x);
#define NPU_LOSS_NONE 0
#define NPU_LOSS_MEAN 1
#define NPU_LOSS_SUM 2
/* log_probability [N, C] or [C]; target INT64 [N] or []; weight [C] or NULL; loss [N] (NONE) or []; total_weight [] */
NPU_API npu_status_t npu_v3_nll_loss(npu_stream_t stream, const npu_tensor_t *log_probability,
                                     const npu_tensor_t *target, const npu_tensor_t *weight, int32_t reduction,
                                     int64_t ignore_index, const npu_tensor_t *loss, const npu_tensor_t *total_weight);
NPU_API npu_status_t npu_v3_nll_loss_grad(npu_stream_t stream, const npu_tensor_t *grad, const npu_tensor_t *target,
                                          const npu_tensor_t *weight, int32_t reduction, int64_t ignore_index,
                                          const npu_tensor_t *total_weight, const npu_tensor_t *grad_x);

/* ---------------------------------------------------------------- normalisation
 * x [N, C, ...] with any strides, float16/bfloat16/float32; the per-channel tensors [C] are float32 or x's dtype, or
 * NULL where PyTorch allows None. training: save_mean and save_invstd (float32 [C]) are written, running statistics
 * updated with `momentum` (unbiased variance). Not training: running statistics are used, save_* are ignored, whatever
 * they are. */
NPU_API npu_status_t npu_v3_batch_norm(npu_stream_t stream, const npu_tensor_t *x, const npu_tensor_t *weight,
                                       const npu_tensor_t *bias, const npu_tensor_t *running_mean,
                                       const npu_tensor_t *running_var, int32_t training, double momentum, double eps,
                                       const npu_tensor_t *out, const npu_tensor_t *save_mean,
                                       const npu_tensor_t *save_invstd);
/* Each of grad_x, grad_weight, grad_bias may be NULL. Not training: save_* are ignored, as above. */
NPU_API npu_status_t npu_v3_batch_norm_grad(npu_stream_t stream, const npu_tensor_t *grad, const npu_tensor_t *x,
                                            const npu_tensor_t *weight, const npu_tensor_t *running_mean,
                                            const npu_tensor_t *running_var, const npu_tensor_t *save_mean,
                                            const npu_tensor_t *save_invstd, int32_t training, double eps,
                                            const npu_tensor_t *grad_x, const npu_tensor_t *grad_weight,
                                            const npu_tensor_t *grad_bias);
/* x is [rows, columns] dense; weight, bias [columns] or NULL; mean, rstd [rows] float32 or NULL. */
NPU_API npu_status_t npu_v3_layer_norm(npu_stream_t stream, const npu_tensor_t *x, const npu_tensor_t *weight,
                                       const npu_tensor_t *bias, double eps, const npu_tensor_t *out,
                                       const npu_tensor_t *mean, const npu_tensor_t *rstd);
/* The same of x + residual, which has x's shape and strides. */
NPU_API npu_status_t npu_v3_layer_norm_residual(npu_stream_t stream, const npu_tensor_t *x,
                                                const npu_tensor_t *residual, const npu_tensor_t *weight,
                                                const npu_tensor_t *bias, double eps, const npu_tensor_t *out);
NPU_API npu_status_t npu_v3_layer_norm_grad(npu_stream_t stream, const npu_tensor_t *grad, const npu_tensor_t *x,
                                            const npu_tensor_t *mean, const npu_tensor_t *rstd,
                                            const npu_tensor_t *weight, const npu_tensor_t *grad_x,
                                            const npu_tensor_t *grad_weight, const npu_tensor_t *grad_bias);

/* ---------------------------------------------------------------- pooling: x [N, C, H, W], any strides */
typedef struct npu_window {
  int64_t kernel[2], stride[2], padding[2], dilation[2];
  int64_t groups;        /* convolution only */
  int32_t count_padding; /* average pooling: padding counts in the divisor */
  int32_t reserved;
  int64_t divisor; /* average pooling: 0 = computed */
} npu_window_t;
/* `index` INT64: position in the H*W plane of x. The output size is that of `out` (so ceil mode needs no flag). */
NPU_API npu_status_t npu_v3_max_pool(npu_stream_t stream, const npu_tensor_t *x, const npu_window_t *window,
                                     const npu_tensor_t *out, const npu_tensor_t *index);
NPU_API npu_status_t npu_v3_max_pool_grad(npu_stream_t stream, const npu_tensor_t *grad, const npu_tensor_t *index,
                                          const npu_tensor_t *grad_x);
NPU_API npu_status_t npu_v3_avg_pool(npu_stream_t stream, const npu_tensor_t *x, const npu_window_t *window,
                                     const npu_tensor_t *out);
NPU_API npu_status_t npu_v3_avg_pool_grad(npu_stream_t stream, const npu_tensor_t *grad, const npu_window_t *window,
                                          const npu_tensor_t *grad_x);
/* Adaptive average pooling to the size of `out`. */
NPU_API npu_status_t npu_v3_adaptive_avg_pool(npu_stream_t stream, const npu_tensor_t *x, const npu_tensor_t *out);
NPU_API npu_status_t npu_v3_adaptive_avg_pool_grad(npu_stream_t stream, const npu_tensor_t *grad,
                                                   const npu_tensor_t *grad_x);

/* ---------------------------------------------------------------- matrix unit
 * out[..., M, N] = alpha * (a[..., M, K] @ b[..., K, N]) + beta * c; c NULL or of out's shape (stride 0 = broadcast).
 * rank 2 or 3 (a batch), any strides, one dtype: float16, bfloat16, float32 (float32 accumulation, one rounding), or,
 * with c NULL and alpha 1, int8 with an INT32 out, any integer dtype (wraps around; the vector unit's) or float64 (the
 * scalar core's). The three entry points give the same numbers; the matrix unit's differ in device time:
 *   generic    streams both operands from memory for every 16-row block;
 *   tiled      64x64x64 tiles held in the on-chip cache: fewest bytes, a start-up cost for each tile of the output;
 *   pipelined  DMA prefetch hides memory behind compute: best for many or large products, highest start-up cost. */
NPU_API npu_status_t npu_v3_matmul(npu_stream_t stream, const npu_tensor_t *a, const npu_tensor_t *b,
                                   const npu_tensor_t *c, double alpha, double beta, const npu_tensor_t *out);
NPU_API npu_status_t npu_v3_matmul_tiled(npu_stream_t stream, const npu_tensor_t *a, const npu_tensor_t *b,
                                         const npu_tensor_t *c, double alpha, double beta, const npu_tensor_t *out);
NPU_API npu_status_t npu_v3_matmul_pipelined(npu_stream_t stream, const npu_tensor_t *a, const npu_tensor_t *b,
                                             const npu_tensor_t *c, double alpha, double beta, const npu_tensor_t *out);

/* What a unit does to its sums before they are rounded and stored, in this order:
 *   y = (y - mean) / sqrt(variance + eps) * weight + bias, for each filter of a convolution: float32 or y's dtype;
 *   y += residual;
 *   y = activation(y), by float32 polynomials, within 8 units in the last place of the larger of 1 and y.
 * What is NULL or 0 is left out. In device time it costs what the residual takes to read. */
typedef struct npu_epilogue {
  const npu_tensor_t *mean, *variance, *weight, *bias;
  double eps;
  const npu_tensor_t *residual; /* of y's dtype, shape and strides */
  int32_t activation;           /* 0, NPU_UNARY_RELU, NPU_UNARY_GELU or NPU_UNARY_GELU_TANH */
  int32_t reserved;
} npu_epilogue_t;

/* The tiled product, of floating dtypes, with an epilogue (without normalisation). */
NPU_API npu_status_t npu_v3_matmul_epilogue(npu_stream_t stream, const npu_tensor_t *a, const npu_tensor_t *b,
                                            const npu_tensor_t *c, double alpha, double beta,
                                            const npu_epilogue_t *epilogue, const npu_tensor_t *out);

/* out = softmax(scale * q @ k + mask) @ v, for each of N heads: q [N, S, D], k [N, D, T], v [N, T, E], out [N, S, E],
 * any strides, one floating dtype, float32 scores that never leave the unit. mask NULL, or [samples, heads, S, T] of
 * any floating dtype with samples * heads = N (stride 0 = broadcast). A row of scores that are all -inf gives
 * zeros. */
NPU_API npu_status_t npu_v3_attention(npu_stream_t stream, const npu_tensor_t *q, const npu_tensor_t *k,
                                      const npu_tensor_t *v, const npu_tensor_t *mask, double scale,
                                      const npu_tensor_t *out);

/* ---------------------------------------------------------------- convolution unit
 * x [N, C, H, W], w [O, C/groups, kH, kW], y [N, O, oH, oW], any strides; float16, bfloat16, float32, or int8 with an
 * INT32 y. Stride 1, 2 or 4, groups 1, 2 or 4, kernel up to 11, dilation 1 or 2; else NPU_STATUS_NOT_SUPPORTED. */
NPU_API npu_status_t npu_v3_conv2d(npu_stream_t stream, const npu_tensor_t *x, const npu_tensor_t *w,
                                   const npu_tensor_t *bias, const npu_window_t *window, const npu_tensor_t *y);
/* With an epilogue, of floating dtypes. */
NPU_API npu_status_t npu_v3_conv2d_epilogue(npu_stream_t stream, const npu_tensor_t *x, const npu_tensor_t *w,
                                            const npu_tensor_t *bias, const npu_window_t *window,
                                            const npu_epilogue_t *epilogue, const npu_tensor_t *y);
NPU_API npu_status_t npu_v3_conv2d_grad_input(npu_stream_t stream, const npu_tensor_t *grad, const npu_tensor_t *w,
                                              const npu_window_t *window, const npu_tensor_t *grad_x);
NPU_API npu_status_t npu_v3_conv2d_grad_weight(npu_stream_t stream, const npu_tensor_t *grad, const npu_tensor_t *x,
                                               const npu_window_t *window, const npu_tensor_t *grad_w);

/* ---------------------------------------------------------------- mixed-precision helpers
 * x *= scale[0]; found_inf[0] = 1.0 if any element of x was not finite (else unchanged). scale, found_inf: float32. */
NPU_API npu_status_t npu_v3_unscale(npu_stream_t stream, const npu_tensor_t *x, const npu_tensor_t *scale,
                                    const npu_tensor_t *found_inf);
/* The loss-scale update: found_inf != 0 -> scale *= backoff, tracker = 0; else tracker += 1, and at `interval`
 * scale *= growth (when finite), tracker = 0. scale float32, tracker INT32. */
NPU_API npu_status_t npu_v3_update_scale(npu_stream_t stream, const npu_tensor_t *scale, const npu_tensor_t *tracker,
                                         const npu_tensor_t *found_inf, double growth, double backoff,
                                         int32_t interval);

#ifdef __cplusplus
}
#endif
#endif
