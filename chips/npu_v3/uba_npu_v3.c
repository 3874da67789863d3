/* uba_npu_v3.c: the adapter of the NPU-V3 family: says what uba.h asks for in the words of npu_v3_sdk.h.
 *
 * Contract: a translator only, without arithmetic, queues or caches of its own. A kernel hands the arguments of one
 * operator, or of one instruction (their kernels' names begin with v where an operator has the plain one), to the SDK; which calls may come here is the descriptor's to say, and what is left to refuse is the SDK's.
 * The tensors of a call are described in a `frame` on the stack, for the SDK reads them during the call only. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "npu_v3_sdk.h"
#include "torchfl/uba.h"
#ifndef CHIP
#define CHIP "npu_v3" /* the adapter's name and its kernels' prefix; another member of the family builds with its own */
#endif
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

static const uba_host *host;
/* The host's status for an SDK's, after the SDK's own words. A queue that hangs never recovers: as good as lost. */
static uba_status report(npu_status_t status) {
  static const uba_status map[] = {/* by NPU_STATUS_*, which the SDK numbers in this order */
      UBA_OK, UBA_INVALID_VALUE, UBA_INVALID_VALUE, UBA_OUT_OF_MEMORY, UBA_NOT_SUPPORTED,
      UBA_NOT_READY, UBA_FAILED, UBA_DEVICE_LOST, UBA_DEVICE_LOST, UBA_INVALID_VALUE};
  if (status != NPU_STATUS_SUCCESS && status != NPU_STATUS_NOT_READY) host->set_error(status, npu_last_error_text());
  return status >= 0 && status < COUNT(map) ? map[status] : UBA_FAILED;
}
/* The same for a kernel. PyTorch has checked the arguments: what the SDK finds invalid is a form it lacks. */
static uba_status answer(npu_status_t status) {
  return report(status == NPU_STATUS_INVALID_VALUE ? NPU_STATUS_NOT_SUPPORTED : status);
}

/* The SDK's dtype; negative: another one of the same size, which serves to move elements as they are; 0: none. */
static int32_t sdk_dtype(int32_t dtype) {
  static const int8_t map[] = {
      [UBA_DTYPE_FLOAT16] = NPU_FLOAT16, [UBA_DTYPE_BFLOAT16] = NPU_BFLOAT16, [UBA_DTYPE_FLOAT32] = NPU_FLOAT32,
      [UBA_DTYPE_INT8] = NPU_INT8,       [UBA_DTYPE_INT32] = NPU_INT32,       [UBA_DTYPE_INT64] = NPU_INT64,
      [UBA_DTYPE_BOOL] = NPU_BOOL,       [UBA_DTYPE_UINT8] = NPU_UINT8,       [UBA_DTYPE_INT16] = NPU_INT16,
      [UBA_DTYPE_FLOAT64] = NPU_FLOAT64, [UBA_DTYPE_COMPLEX64] = -NPU_INT64};
  return dtype > 0 && dtype < COUNT(map) ? map[dtype] : 0;
}

typedef struct chip {
  npu_device_t npu;
  npu_stream_t stream; /* the default one */
} chip;
static npu_device_t npu(void *device) { return ((chip *)device)->npu; }
static npu_stream_t queue(void *device, void *stream) { return stream ? stream : ((chip *)device)->stream; }

/* ------------------------------------------------------------------------------------------ arguments */
typedef struct frame {
  const uba_call *call;
  npu_stream_t stream;
  int32_t tag, used, raw; /* the kernel's; tensors described; 1: their elements are only moved */
  npu_window_t window;
  npu_tensor_t tensor[12];                                   /* batch_norm_grad takes 10 */
  int64_t shape[12][NPU_MAX_RANK], stride[12][NPU_MAX_RANK]; /* for a tensor that is seen in another shape */
} frame;
#define ARG(i) f->call->args[i]
#define RESULT f->call->outputs[0]

/* NULL if `t` is absent, which means the same to the SDK. It refuses 0, which stands for a dtype that it lacks. */
static npu_tensor_t *describe(frame *f, const uba_tensor *t) {
  if (!t->dtype) return NULL;
  npu_tensor_t *x = &f->tensor[f->used++];
  int32_t dtype = f->raw ? abs(sdk_dtype(t->dtype)) : sdk_dtype(t->dtype);
  *x = (npu_tensor_t){(void *)((uintptr_t)t->data + t->byte_offset), t->sizes, t->strides, dtype, t->rank};
  return x;
}
/* `x` with `rank` dimensions, new ones of size 1 in front or where `ones` has a bit; broadcast to `sizes` if given. */
static npu_tensor_t *fit(frame *f, npu_tensor_t *x, int32_t rank, uint32_t ones, const int64_t *sizes) {
  if (!x || x->rank > rank || rank > NPU_MAX_RANK || (x->rank == rank && !sizes)) return x;
  int64_t *shape = f->shape[x - f->tensor], *stride = f->stride[x - f->tensor];
  for (int32_t d = rank, from = x->rank; d-- > 0;) { /* from the back: `stride` may be what x->stride is */
    int one = ones >> d & 1 || !from;
    int64_t size = one ? 1 : x->shape[--from];
    shape[d] = sizes ? sizes[d] : size;
    stride[d] = shape[d] != size ? 0 : one ? 1 : x->stride[from];
  }
  x->shape = shape, x->stride = stride, x->rank = rank;
  return x;
}
/* A contiguous `x` with its last `tail` dimensions made one, and those before it another. */
static npu_tensor_t *flat(frame *f, npu_tensor_t *x, int32_t tail) {
  if (!x) return x;
  int64_t n = 1, columns = 1, *shape = f->shape[x - f->tensor], *stride = f->stride[x - f->tensor];
  for (int32_t d = x->rank; d-- > 0; n *= x->shape[d]) {
    if (x->shape[d] != 1 && x->stride[d] != n) return x; /* the SDK's to refuse */
    if (d >= x->rank - tail) columns *= x->shape[d];
  }
  shape[0] = columns ? n / columns : 0, shape[1] = columns, stride[0] = columns, stride[1] = 1;
  x->shape = shape, x->stride = stride, x->rank = tail ? 2 : 1;
  return x;
}
/* The first number among the arguments from `i` on; 1 if there is none. */
static npu_scalar_t number(const frame *f, int32_t i) {
  const uba_value *v = &ARG(i), *end = f->call->args + f->call->arg_count;
  while (v < end && v->kind != UBA_INT && v->kind != UBA_DOUBLE) v++;
  if (v >= end) return (npu_scalar_t){1, 0, 1, 1};
  return v->kind == UBA_INT ? (npu_scalar_t){1, 0, (double)v->v.i, v->v.i} : (npu_scalar_t){0, 0, v->v.d, 0};
}
/* Dimension `d` of the first argument, from the back if negative. */
static int32_t axis(const frame *f, int32_t d) {
  int32_t rank = ARG(0).kind == UBA_TENSOR ? ARG(0).v.tensor->rank : 0;
  return d < 0 ? d + (rank ? rank : 1) : d;
}
/* What the word in argument `i` adds to an opcode: the SDK numbers the variants of a function one after the other. */
static int32_t variant(const frame *f, int32_t i) {
  const char *word = i < f->call->arg_count && ARG(i).kind == UBA_STRING ? ARG(i).v.str : "none";
  return !strcmp(word, "tanh") || !strcmp(word, "trunc") ? 1 : !strcmp(word, "floor") ? 2 : 0;
}
/* The window in the arguments from `i` on. No stride: the kernel's size. The last one: an average pool's divisor. */
static npu_window_t *window(frame *f, int32_t i) {
  npu_window_t *w = &f->window;
  const uba_value *v = &ARG(i), *last = &ARG(f->call->arg_count - 1);
  int64_t *parts[] = {w->kernel, w->stride, w->padding, w->dilation};
  for (int32_t k = 0; k < 8; k++, v += k % 2 == 0) {
    int64_t absent = k / 2 == 1 ? w->kernel[k % 2] : 1;
    parts[k / 2][k % 2] = v->kind == UBA_INT_LIST && v->count ? v->v.ints[v->count > 1 ? k % 2 : 0] : absent;
  }
  w->groups = 1, w->count_padding = number(f, i + 4).i != 0, w->divisor = last->kind == UBA_INT ? last->v.i : 0;
  return w;
}

/* ------------------------------------------------------------------------------------------ kernels */
#define OUT(i) describe(f, &f->call->outputs[i])
#define IN(i) describe(f, ARG(i).kind == UBA_TENSOR ? ARG(i).v.tensor : &(uba_tensor){.dtype = ARG(i).kind ? -1 : 0})
#define LIKE(x) fit(f, x, RESULT.rank, 0, RESULT.sizes) /* in the shape of the result */
#define TERM(i) (ARG(i).kind == UBA_TENSOR ? LIKE(IN(i)) : NULL) /* NULL for a number; IN has the SDK refuse one */
#define INT(n) ((int32_t)number(f, n).i)
#define REAL(n) number(f, n).d
#define NCHW(x) fit(f, x, 4, 1, NULL)
#define ROWS(x, shape) flat(f, x, ARG(shape).count)
#define ROW(x) flat(f, x, 0)
#define AXIS(i) axis(f, INT(i))
#define LINE(x) fit(f, x, 1, 1, NULL) /* a single number as a line of one */
/* KERNEL defines a kernel by its body, which gives the SDK's answer; SDK one that is a single function of the SDK. */
#define KERNEL(name)                                                                                            \
  static npu_status_t name(frame *f);                                                                           \
  static uba_status run_##name(void *device, const uba_call *call, int64_t tag) {                               \
    frame f;                                                                                                    \
    f.call = call, f.stream = queue(device, call->stream), f.tag = (int32_t)tag, f.used = f.raw = 0;            \
    return answer(name(&f));                                                                                    \
  }                                                                                                             \
  static npu_status_t name(frame *f)
#define SDK(name, ...) KERNEL(name) { return npu_v3_##name(f->stream, __VA_ARGS__); }
SDK(unary, f->tag + variant(f, 1), LIKE(IN(0)), number(f, 1), number(f, 1), OUT(0))
SDK(binary, abs(f->tag) + variant(f, 2), TERM(f->tag < 0), TERM(f->tag > 0), number(f, 0), number(f, 2), OUT(0))
SDK(ternary, f->tag, TERM(0), TERM(1), TERM(2), number(f, 0), OUT(0))
KERNEL(masked_fill) { return npu_v3_ternary(f->stream, f->tag, TERM(1), TERM(2), TERM(0), number(f, 2), OUT(0)); }
KERNEL(clamp) {
  if (ARG(1).kind == UBA_TENSOR || ARG(2).kind == UBA_TENSOR)
    return npu_v3_ternary(f->stream, NPU_TERNARY_CLAMP, LIKE(IN(0)), LIKE(IN(1)), LIKE(IN(2)), number(f, 3), OUT(0));
  npu_scalar_t low = ARG(1).kind == UBA_NONE ? (npu_scalar_t){.d = -INFINITY} : number(f, 1);
  npu_scalar_t high = ARG(2).kind == UBA_NONE ? (npu_scalar_t){.d = INFINITY} : number(f, 2);
  return npu_v3_unary(f->stream, NPU_UNARY_CLAMP, LIKE(IN(0)), low, high, OUT(0));
}
/* A bit for each dimension of `x` that argument `i` lists; `none` if it lists none. */
static uint32_t dimensions(const frame *f, const npu_tensor_t *x, int32_t i, uint32_t none) {
  const uba_value *v = &ARG(i);
  const int64_t *list = v->kind == UBA_INT ? &v->v.i : v->v.ints;
  uint32_t n = v->kind == UBA_INT || v->kind == UBA_INT_LIST ? v->count : 0, dims = n ? 0 : none;
  for (uint32_t k = 0; x && k < n; k++) dims |= 1u << ((list[k] < 0 ? list[k] + x->rank : list[k]) & 31);
  return dims;
}
/* (x, dims, keepdim, ...), or, without dims, (x) or (x, dtype). To an operator no dims are all of them, to an instruction
 * (tag + LISTED) none. A second result tells where the first one was found. */
#define LISTED 64
KERNEL(reduce) {
  npu_tensor_t *x = LINE(IN(0));
  uint32_t all = x && f->tag < LISTED ? (1u << (x->rank & 31)) - 1 : 0;
  uint32_t dims = dimensions(f, x, f->call->arg_count > 2, all);
  f->tag &= LISTED - 1;
  if (!x) return npu_v3_reduce(f->stream, f->tag, x, dims, OUT(0)); /* refused, in the SDK's words */
  npu_status_t status = npu_v3_reduce(f->stream, f->tag, x, dims, fit(f, OUT(0), x->rank, dims, NULL));
  if (status || f->call->output_count < 2) return status;
  f->tag += NPU_REDUCE_ARGMAX - NPU_REDUCE_MAX;
  return npu_v3_reduce(f->stream, f->tag, x, dims, fit(f, OUT(1), x->rank, dims, NULL));
}
/* (a, b) or (c, a, b, ..., beta, alpha). A vector is a row on the left, a column on the right. */
KERNEL(matmul) {
  int32_t n = f->call->arg_count, plus = n > 3, rank = RESULT.rank < 2 ? 2 : RESULT.rank, ones = RESULT.rank ? 2 : 3;
  double alpha = plus ? REAL(n - 1) : 1, beta = plus ? REAL(n - 2) : 0; /* with 0, c must not be read: it may be NaN */
  npu_tensor_t *c = beta != 0 ? fit(f, LIKE(IN(0)), rank, ones, NULL) : NULL, *y = fit(f, OUT(0), rank, ones, NULL);
  npu_tensor_t *a = fit(f, IN(plus), rank, 1, NULL), *b = fit(f, IN(plus + 1), rank, 2, NULL);
  if (f->tag == 0) return npu_v3_matmul(f->stream, a, b, c, alpha, beta, y);
  return (f->tag == 1 ? npu_v3_matmul_tiled : npu_v3_matmul_pipelined)(f->stream, a, b, c, alpha, beta, y);
}
/* (x, weight, bias, ...) -> y; as a gradient, (grad, x, weight, ...) -> (grad_x, grad_weight, grad_bias). */
KERNEL(conv2d) {
  npu_tensor_t *a = IN(0), *b = IN(1), *c = IN(2), *weight = f->tag ? c : b, *y = OUT(0);
  npu_window_t *w = window(f, 2);
  w->kernel[0] = weight->shape[2], w->kernel[1] = weight->shape[3], w->groups = INT(8);
  if (!f->tag) return npu_v3_conv2d(f->stream, a, b, c, w, y);
  npu_tensor_t *dw = OUT(1), *db = OUT(2);
  npu_status_t status = y ? npu_v3_conv2d_grad_input(f->stream, a, c, w, y) : NPU_STATUS_SUCCESS;
  if (!status && dw) status = npu_v3_conv2d_grad_weight(f->stream, a, b, w, dw);
  if (!status && db) status = npu_v3_reduce(f->stream, NPU_REDUCE_SUM, a, 0xd, fit(f, db, 4, 0xd, NULL));
  return status;
}
/* ---- chains of operators (docs/descriptor.md says how their arguments are laid out)
 * A convolution's nine; weight, bias, mean, variance, training, momentum, eps of the norm; then the residual. */
KERNEL(conv2d_chain) {
  npu_tensor_t *weight = IN(1), *residual = f->call->arg_count > 16 ? LIKE(IN(16)) : NULL;
  npu_epilogue_t e = {IN(11), IN(12), IN(9), IN(10), REAL(15), residual, f->tag, 0};
  npu_window_t *w = window(f, 2);
  w->kernel[0] = weight->shape[2], w->kernel[1] = weight->shape[3], w->groups = INT(8);
  return npu_v3_conv2d_epilogue(f->stream, IN(0), weight, IN(2), w, &e, OUT(0));
}
/* (c, a, b, beta, alpha), then gelu's word, or the residual. */
KERNEL(linear_chain) {
  npu_tensor_t *residual = f->tag ? NULL : LIKE(IN(5)), *c = REAL(3) != 0 ? LIKE(IN(0)) : NULL;
  npu_epilogue_t e = {.residual = residual, .activation = f->tag ? f->tag + variant(f, 5) : 0};
  return npu_v3_matmul_epilogue(f->stream, IN(1), IN(2), c, REAL(4), REAL(3), &e, OUT(0));
}
/* (q, k) of a product, the shape of the scores, [mask, alpha,] (dim, dtype) of the softmax, a shape, v. */
KERNEL(attention) {
  const uba_value *shape = &ARG(2), *v = &ARG(f->call->arg_count - 1);
  npu_tensor_t *q = IN(0), *k = IN(1), *mask = f->tag ? fit(f, IN(3), shape->count, 0, shape->v.ints) : NULL;
  if (v[-2].kind != UBA_NONE || shape->v.ints[shape->count - 1] != k->shape[2]) return NPU_STATUS_NOT_SUPPORTED;
  return npu_v3_attention(f->stream, q, k, describe(f, v->v.tensor), mask, 1, OUT(0));
}
SDK(layer_norm_residual, ROWS(LIKE(IN(0)), 3), ROWS(LIKE(IN(1)), 3), ROW(IN(4)), ROW(IN(5)), REAL(6), ROWS(OUT(0), 3))
SDK(batch_norm, IN(0), IN(1), IN(2), IN(3), IN(4), INT(5), REAL(6), REAL(7), OUT(0), OUT(1), OUT(2))
SDK(batch_norm_grad, IN(0), IN(1), IN(2), IN(3), IN(4), IN(5), IN(6), INT(7), REAL(8), OUT(0), OUT(1), OUT(2))
SDK(layer_norm, ROWS(IN(0), 1), ROW(IN(2)), ROW(IN(3)), REAL(4), ROWS(OUT(0), 1), ROW(OUT(1)), ROW(OUT(2)))
SDK(layer_norm_grad, ROWS(IN(0), 2), ROWS(IN(1), 2), ROW(IN(3)), ROW(IN(4)), ROW(IN(5)), ROWS(OUT(0), 2), ROW(OUT(1)),
    ROW(OUT(2)))
SDK(max_pool, NCHW(IN(0)), window(f, 1), NCHW(OUT(0)), NCHW(OUT(1)))
SDK(max_pool_grad, NCHW(IN(0)), NCHW(IN(7)), NCHW(OUT(0)))
SDK(avg_pool, NCHW(IN(0)), window(f, 1), NCHW(OUT(0)))
SDK(avg_pool_grad, NCHW(IN(0)), window(f, 2), NCHW(OUT(0)))
SDK(adaptive_avg_pool, NCHW(IN(0)), NCHW(OUT(0)))
SDK(adaptive_avg_pool_grad, NCHW(IN(0)), NCHW(OUT(0)))
SDK(softmax, IN(0), AXIS(1), f->tag, OUT(0))
SDK(softmax_grad, IN(0), IN(1), AXIS(2), f->tag, OUT(0))
SDK(nll_loss, IN(0), IN(1), IN(2), INT(3), number(f, 4).i, OUT(0), OUT(1))
SDK(nll_loss_grad, IN(0), IN(2), IN(3), INT(4), number(f, 5).i, IN(6), OUT(0))
SDK(index_select, OUT(0), IN(0), AXIS(1), ROW(IN(2)))
SDK(gather, LINE(OUT(0)), LINE(IN(0)), AXIS(1), LINE(IN(ARG(1).kind == UBA_TENSOR ? 1 : 2))) /* dim and index, or turned */
SDK(iota, OUT(0), number(f, f->tag), number(f, 2)) /* (start, end, step, ...), or with tag 1 (n, start, step, dtype) */
SDK(update_scale, IN(0), IN(1), IN(2), REAL(3), REAL(4), INT(5))
KERNEL(unscale) { /* a list of gradients, in place */
  npu_status_t status = NPU_STATUS_SUCCESS;
  for (uint32_t i = 0; i < ARG(0).count && !status; i++, f->used = 0)
    status = npu_v3_unscale(f->stream, describe(f, &ARG(0).v.tensor[i]), IN(2), IN(1));
  return status;
}
KERNEL(embedding_grad) {
  npu_status_t status = npu_v3_fill_nd(f->stream, OUT(0), (npu_scalar_t){.is_integer = 1});
  return status ? status : npu_v3_index_add_rows(f->stream, OUT(0), ROW(IN(1)), flat(f, IN(0), 1));
}
/* ---- for instructions alone */
SDK(select, LIKE(IN(0)), TERM(1), TERM(2), number(f, 1), number(f, 2), OUT(0))
SDK(copy_nd, OUT(0), LIKE(IN(0)))
SDK(fill_nd, OUT(0), number(f, 1))
SDK(sort, LINE(IN(0)), AXIS(1), INT(2), LINE(OUT(0)), LINE(OUT(1)))
SDK(scan, f->tag, LINE(IN(0)), AXIS(1), LINE(OUT(0)), f->call->output_count > 1 ? LINE(OUT(1)) : NULL)
SDK(random, f->tag, (uint64_t)number(f, 1).i, (uint64_t)number(f, 2).i, OUT(0)) /* (sizes, seed, offset, ...) */
KERNEL(flip) {
  npu_tensor_t *x = IN(0);
  return npu_v3_flip(f->stream, OUT(0), x, dimensions(f, x, 1, 0));
}
KERNEL(scatter) { /* (x, index, src, dim): into a copy of x */
  npu_tensor_t *x = LINE(IN(0)), *y = LINE(OUT(0)), *src = ARG(2).kind == UBA_TENSOR ? LINE(IN(2)) : NULL;
  npu_status_t status = x && x->address == y->address ? NPU_STATUS_SUCCESS : npu_v3_copy_nd(f->stream, y, x);
  return status ? status : npu_v3_scatter(f->stream, f->tag, y, AXIS(3), LINE(IN(1)), src, number(f, 2));
}

/* What the names mean to PyTorch stands in the descriptor. */
#define K(name, run, tag) {CHIP "_" #name, run_##run, tag}
#define S(name) K(name, name, 0)
#define U(name, opcode) K(name, unary, NPU_UNARY_##opcode)
#define B(name, opcode) K(name, binary, NPU_BINARY_##opcode)
#define R(name, opcode) K(name, reduce, NPU_REDUCE_##opcode)
#define X(name, opcode) K(name, scatter, NPU_SCATTER_##opcode)
#define C(name, opcode) K(cum##name, scan, NPU_SCAN_##opcode)
#define VU(name, opcode) K(v##name, unary, NPU_UNARY_##opcode)
#define VB(name, opcode) K(v##name, binary, NPU_BINARY_##opcode + NPU_BINARY_CONVERT)
#define VR(name, opcode) K(reduce_##name, reduce, NPU_REDUCE_##opcode + LISTED)
static const uba_kernel kernels[] = {
    U(neg, NEG), U(abs, ABS), U(exp, EXP), U(expm1, EXPM1), U(log, LOG), U(log1p, LOG1P), U(sqrt, SQRT), U(sin, SIN),
    U(rsqrt, RSQRT), U(reciprocal, RECIPROCAL), U(cos, COS), U(tanh, TANH), U(erf, ERF), U(sigmoid, SIGMOID),
    U(relu, RELU), U(gelu, GELU), U(silu, SILU), U(floor, FLOOR), U(ceil, CEIL), U(round, ROUND), U(trunc, TRUNC),
    U(sign, SIGN), U(isnan, ISNAN), U(logical_not, LOGICAL_NOT), U(bitwise_not, BITWISE_NOT), B(add, ADD),
    U(leaky_relu, LEAKY_RELU), B(sub, SUB), B(mul, MUL), B(div, DIV), B(floor_divide, DIV_FLOOR), B(fmod, FMOD),
    B(remainder, REMAINDER), B(maximum, MAX), B(minimum, MIN), B(pow, POW), B(clamp_min, MAX), B(clamp_max, MIN),
    B(atan2, ATAN2), B(eq, EQ), B(ne, NE), B(lt, LT), B(le, LE), B(gt, GT), B(ge, GE), B(logical_and, LOGICAL_AND),
    B(logical_or, LOGICAL_OR), B(logical_xor, LOGICAL_XOR), B(bitwise_and, BITWISE_AND), B(bitwise_or, BITWISE_OR),
    B(bitwise_xor, BITWISE_XOR), B(relu_grad, RELU_GRAD), B(sigmoid_grad, SIGMOID_GRAD), B(tanh_grad, TANH_GRAD),
    B(gelu_grad, GELU_GRAD), B(silu_grad, SILU_GRAD), B(leaky_relu_grad, LEAKY_RELU_GRAD), R(sum, SUM), R(mean, MEAN),
    R(max, MAX), R(min, MIN), R(prod, PROD), R(any, ANY), R(all, ALL), R(argmax, ARGMAX), R(argmin, ARGMIN),
    K(rsub, binary, -NPU_BINARY_SUB), K(where, ternary, NPU_TERNARY_SELECT), K(lerp, ternary, NPU_TERNARY_LERP),
    K(addcmul, ternary, NPU_TERNARY_ADDCMUL), K(addcdiv, ternary, NPU_TERNARY_ADDCDIV), S(clamp), S(matmul),
    K(masked_fill, masked_fill, NPU_TERNARY_SELECT), K(matmul_tiled, matmul, 1), K(matmul_pipelined, matmul, 2),
    S(conv2d), K(conv2d_grad, conv2d, 1), S(batch_norm), S(batch_norm_grad), S(layer_norm), S(layer_norm_grad),
    S(max_pool), S(max_pool_grad), S(avg_pool), S(avg_pool_grad), S(adaptive_avg_pool), S(adaptive_avg_pool_grad),
    S(softmax), K(log_softmax, softmax, 1), S(softmax_grad), K(log_softmax_grad, softmax_grad, 1), S(nll_loss),
    K(conv2d_norm, conv2d_chain, 0), K(conv2d_norm_relu, conv2d_chain, NPU_UNARY_RELU), S(attention),
    K(conv2d_norm_add, conv2d_chain, 0), K(conv2d_norm_add_relu, conv2d_chain, NPU_UNARY_RELU), S(layer_norm_residual),
    K(linear_add, linear_chain, 0), K(linear_relu, linear_chain, NPU_UNARY_RELU), K(attention_masked, attention, 1),
    K(linear_gelu, linear_chain, NPU_UNARY_GELU), S(nll_loss_grad), S(index_select), S(gather), S(iota), S(embedding_grad), S(unscale), S(update_scale),
    /* Instructions; matmul, gather, argmax and argmin are those from above. */
    VU(neg, NEG), VU(abs, ABS), VU(not, BITWISE_NOT), VU(floor, FLOOR), VU(ceil, CEIL), VU(trunc, TRUNC),
    VU(round, ROUND), VU(sqrt, SQRT), VU(rsqrt, RSQRT), VU(exp, EXP), VU(exp2, EXP2), VU(expm1, EXPM1), VU(log, LOG),
    VU(log2, LOG2), VU(log10, LOG10), VU(log1p, LOG1P), VU(sin, SIN), VU(cos, COS), VU(tan, TAN), VU(asin, ASIN),
    VU(acos, ACOS), VU(atan, ATAN), VU(sinh, SINH), VU(cosh, COSH), VU(tanh, TANH), VU(asinh, ASINH), VU(acosh, ACOSH),
    VU(atanh, ATANH), VU(erf, ERF), VU(erfc, ERFC), VU(erfinv, ERFINV), VU(lgamma, LGAMMA), VU(digamma, DIGAMMA),
    VB(add, ADD), VB(sub, SUB), VB(mul, MUL), VB(div, DIV), VB(idiv, DIV_TRUNC), VB(max, MAX), VB(min, MIN), VB(pow, POW),
    VB(fmod, FMOD), VB(remainder, REMAINDER), VB(atan2, ATAN2), VB(copysign, COPYSIGN), VB(nextafter, NEXTAFTER),
    VB(and, BITWISE_AND), VB(or, BITWISE_OR), VB(xor, BITWISE_XOR), VB(shl, SHL), VB(shr, SHR), VB(gcd, GCD),
    VB(igamma, IGAMMA), VB(igammac, IGAMMAC), VB(zeta, ZETA), VB(eq, EQ), VB(ne, NE), VB(lt, LT), VB(le, LE), VB(gt, GT),
    VB(ge, GE), K(vselect, select, 0), K(vcast, copy_nd, 0), S(copy_nd), K(vfill, fill_nd, 0), K(ramp, iota, 1),
    VR(sum, SUM), VR(prod, PROD), VR(max, MAX), VR(min, MIN), VR(any, ANY), VR(all, ALL), S(flip), S(sort),
    X(scatter, REPLACE), X(scatter_add, ADD), X(scatter_mul, MUL), X(scatter_max, MAX), X(scatter_min, MIN), C(sum, SUM),
    C(prod, PROD), C(max, MAX), C(min, MIN), K(logcumsumexp, scan, NPU_SCAN_LOG_SUM_EXP),
    K(random_uniform, random, NPU_RANDOM_UNIFORM), K(random_bits, random, NPU_RANDOM_BITS)};

/* ------------------------------------------------------------------------------------------ device and handshake */
#define API(name, request, ...) static uba_status name(void *d, __VA_ARGS__) { return (void)d, report(request); }
API(alloc, npu_malloc(npu(d), bytes, p), uint64_t bytes, void **p)
API(release, npu_free(npu(d), p), void *p)
API(copy, npu_memcpy_async(queue(d, s), to, from, n, way), void *s, void *to, const void *from, uint64_t n, int32_t way)
API(fill, npu_memset_async(queue(d, s), p, value, bytes), void *s, void *p, uint64_t bytes, int32_t value)
API(synchronize, npu_stream_synchronize(queue(d, s)), void *s)
API(stream_create, npu_stream_create(npu(d), priority, (npu_stream_t *)s), int32_t priority, void **s)
API(stream_destroy, npu_stream_destroy(s), void *s)
API(stream_query, npu_stream_query(queue(d, s)), void *s)
API(event_create, npu_event_create(npu(d), (npu_event_t *)e), void **e)
API(event_destroy, npu_event_destroy(e), void *e)
API(event_record, npu_event_record(e, queue(d, s)), void *e, void *s)
API(event_wait, npu_event_wait(e, queue(d, s)), void *e, void *s)
API(event_query, npu_event_query(e), void *e)
API(event_synchronize, npu_event_synchronize(e), void *e)
API(event_elapsed, npu_event_elapsed(start, end, ms), void *start, void *end, double *ms)
API(peer, npu_memcpy_peer_async(queue(d, s), to, npu(d2), p, n), void *s, void *to, void *d2, const void *p, uint64_t n)
API(memory_info, npu_mem_info(npu(d), free_bytes, total), uint64_t *free_bytes, uint64_t *total)
API(state, npu_device_telemetry(npu(d), &t->utilization, &t->power, &t->temperature, &t->busy_time), uba_telemetry *t)
static uba_status properties(void *d, uba_properties *p) {
  npu_props_t props = {.max_rank = 0}; /* stays so if the device is lost */
  npu_status_t status = npu_device_properties(npu(d), &props);
  memcpy(p->name, props.name, sizeof(p->name)), memcpy(p->serial, props.serial, sizeof(p->serial));
  p->total_memory = props.memory_bytes, p->alignment = props.alignment, p->max_rank = props.max_rank;
  p->compute_units = props.fp16_units, p->clock_mhz = props.clock_mhz;
  return report(status);
}
static uba_status copy_strided(void *d, void *s, const uba_tensor *to, const uba_tensor *from) {
  frame f = {.raw = to->dtype == from->dtype};
  return answer(npu_v3_copy_nd(queue(d, s), describe(&f, to), describe(&f, from)));
}
static uba_status fill_strided(void *d, void *s, const uba_tensor *to, const uba_value *value) {
  frame f = {.call = &(uba_call){.args = value, .arg_count = 1}, .raw = value->kind == UBA_INT && value->v.i == 0};
  return answer(npu_v3_fill_nd(queue(d, s), describe(&f, to), number(&f, 0))); /* 0: the same bits in all dtypes */
}
static const uba_device_api device_api = {
    UBA_HEADER(uba_device_api), properties, alloc, release, copy, fill, synchronize, copy_strided, fill_strided, stream_create,
    stream_destroy, stream_query, event_create, event_destroy, event_record, event_wait, event_query,
    event_synchronize, event_elapsed, .peer_copy = peer, .memory_info = memory_info, .telemetry = state};

static uba_status device_count(int32_t *count) { return report(npu_device_count(count)); }
static uba_status device_open(int32_t index, void **device) {
  chip *c = *device = calloc(1, sizeof(*c));
  npu_status_t status = c ? npu_device_open(index, &c->npu) : NPU_STATUS_OUT_OF_MEMORY;
  if (!status) status = npu_default_stream(c->npu, &c->stream);
  if (status) free(c);
  return report(status);
}
static uba_status device_close(void *device) {
  npu_device_t closed = npu(device);
  return free(device), report(npu_device_close(closed));
}
static uba_adapter adapter = {UBA_HEADER(uba_adapter), CHIP, "1.0.0", NULL, device_count, device_open, device_close,
                              &device_api, kernels, COUNT(kernels)};

const uba_adapter *uba_query(uint32_t host_abi, const uba_host *the_host) {
  host = the_host, adapter.sdk_version = npu_sdk_version();
  if (!strncmp(adapter.sdk_version, "1.2.", 4)) return &adapter;
  host->set_error(NPU_STATUS_NOT_SUPPORTED, CHIP " needs SDK 1.2, another one was found");
  return (void)host_abi, NULL; /* the host judges the versions of the interface */
}
