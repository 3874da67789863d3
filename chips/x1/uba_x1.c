/* uba_x1.c: the adapter of the X1: says what uba.h asks for in the words of x1_runtime.h.
 *
 * Contract: a translator only. A kernel hands the arguments of one operator or instruction to the runtime, which refuses
 * what it cannot do before it does anything. The runtime is synchronous, so there is no stream to mind. Its units take
 * 8-bit numbers with zero point 128: an int8 operand is turned into memory of the call by the chip's mover, and an int8
 * result back. */
#include <stdlib.h>
#include <string.h>

#include "torchfl/uba.h"
#include "x1_runtime.h"
#define COUNT(array) ((int64_t)(sizeof(array) / sizeof((array)[0])))

static const uba_host *host;

/* The host's status for the runtime's, after its own words. */
static uba_status report(int status) {
  static const uba_status map[] = {UBA_OK, UBA_INVALID_VALUE, UBA_INVALID_VALUE, UBA_OUT_OF_MEMORY, UBA_NOT_SUPPORTED,
                                   UBA_INVALID_VALUE};
  if (status != X1_OK) host->set_error(status, x1_last_error());
  return status >= 0 && status < COUNT(map) ? map[status] : UBA_FAILED;
}
/* The same for a kernel. PyTorch has checked the arguments: what the runtime finds senseless is a form that it lacks. */
static uba_status answer(int status) { return report(status == X1_EVALUE ? X1_EUNSUPPORTED : status); }

/* ------------------------------------------------------------------------------------------ arguments */
enum { COMPUTE, MOVE, BYTES }; /* with the numbers; as numbers or whole bytes; only as bytes */
/* What the mover takes. -1: nothing, for the runtime to refuse. */
static int32_t mover_dtype(int32_t dtype, int use) {
  static const int8_t known[32] = {[UBA_DTYPE_FLOAT32] = X1_DTYPE_FLOAT32, [UBA_DTYPE_FLOAT16] = X1_DTYPE_FLOAT16,
                                   [UBA_DTYPE_INT8] = X1_DTYPE_INT8,       [UBA_DTYPE_INT32] = X1_DTYPE_INT32,
                                   [UBA_DTYPE_INT64] = X1_DTYPE_INT64,     [UBA_DTYPE_BOOL] = X1_DTYPE_BOOL};
  static const int8_t bytes[32] = {[UBA_DTYPE_BFLOAT16] = X1_DTYPE_BITS16, [UBA_DTYPE_FLOAT64] = X1_DTYPE_BITS64,
                                   [UBA_DTYPE_UINT8] = X1_DTYPE_BITS8,     [UBA_DTYPE_INT16] = X1_DTYPE_BITS16,
                                   [UBA_DTYPE_COMPLEX64] = X1_DTYPE_BITS64};
  dtype &= 31;
  return known[dtype] ? known[dtype] : use == BYTES && bytes[dtype] ? bytes[dtype] : -1;
}
static x1_view_t borrowed(const uba_tensor *t, int use) {
  x1_view_t v = {.data = (void *)((uintptr_t)t->data + t->byte_offset), .dtype = mover_dtype(t->dtype, use), .rank = t->rank};
  for (int32_t d = 0; d < t->rank && d < X1_MAX_RANK; d++) v.shape[d] = t->sizes[d], v.stride[d] = t->strides[d];
  return v;
}

typedef struct frame { /* one call */
  const uba_call *call;
  int32_t tag, used, use, status;
  x1_view_t view[10];   /* what the runtime is given */
  x1_view_t origin[10]; /* where a view's numbers have to be brought in the end; rank -1: nowhere */
  void *memory[10];     /* of the call */
} frame;
#define ARG(i) f->call->args[i]
#define RESULT f->call->outputs[0]

static x1_view_t *next(frame *f, x1_view_t v) {
  f->origin[f->used].rank = -1, f->memory[f->used] = NULL;
  return f->view[f->used] = v, &f->view[f->used++];
}
static x1_view_t packed(x1_view_t v, int32_t dtype, void *data) {
  int64_t n = 1;
  for (int32_t d = v.rank; d-- > 0; n *= v.shape[d]) v.stride[d] = n;
  return v.dtype = dtype, v.data = data, v;
}
/* Dense memory of this call in the shape of `like`, for UINT8 or 32 bits; NULL data if there is none, which the runtime refuses. */
static x1_view_t *temporary(frame *f, const x1_view_t *like, int32_t dtype) {
  int64_t n = 1;
  for (int32_t d = 0; d < like->rank; d++) n *= like->shape[d];
  void *memory = x1_mem_alloc((size_t)(n ? n : 1) * (dtype == X1_DTYPE_UINT8 ? 1 : 4));
  x1_view_t *v = next(f, packed(*like, dtype, memory));
  return f->memory[v - f->view] = memory, v;
}
/* A tensor, an absent one as NULL. */
static x1_view_t *tensor(frame *f, const uba_tensor *t, int is_output) {
  if (!t->dtype) return NULL;
  x1_view_t v = borrowed(t, f->use);
  if (v.dtype != X1_DTYPE_INT8 || f->use != COMPUTE || v.rank > X1_MAX_RANK) return next(f, v);
  x1_view_t *turned = temporary(f, &v, X1_DTYPE_UINT8);
  if (is_output) f->origin[turned - f->view] = v;
  else if (!f->status) f->status = x1_copy_ex(&v, turned);
  return turned;
}
/* An argument; a number as such. */
static x1_view_t *in(frame *f, int32_t i) {
  const uba_value *a = &ARG(i);
  x1_view_t v = {.dtype = X1_NUMBER};
  if (a->kind == UBA_TENSOR) return tensor(f, a->v.tensor, 0);
  if (a->kind == UBA_NONE) return NULL;
  if (a->kind == UBA_INT) v.integer = a->v.i, v.real = (double)a->v.i;
  else if (a->kind == UBA_DOUBLE) v.real = a->v.d, v.integer = a->v.d > -9e18 && a->v.d < 9e18 ? (int64_t)a->v.d : 0;
  else v.dtype = -1;
  return next(f, v);
}
/* `v` as it is broadcast to `rank` dimensions of these sizes. */
static x1_view_t *fit(x1_view_t *v, int32_t rank, const int64_t *sizes) {
  if (!v || v->dtype == X1_NUMBER || v->rank > rank || rank > X1_MAX_RANK) return v;
  for (int32_t d = rank, from = v->rank; d-- > 0;) {
    int one = --from < 0 || v->shape[from] == 1;
    v->stride[d] = one ? 0 : v->stride[from], v->shape[d] = one ? sizes[d] : v->shape[from];
  }
  v->rank = rank;
  return v;
}
/* `v` with a dimension of size 1 before dimension `at`, as often as it takes to have `rank` of them. */
static x1_view_t *padded(x1_view_t *v, int32_t at, int32_t rank) {
  while (v && v->rank >= at && v->rank < rank) {
    for (int32_t d = v->rank++; d > at; d--) v->shape[d] = v->shape[d - 1], v->stride[d] = v->stride[d - 1];
    v->shape[at] = 1, v->stride[at] = 1;
  }
  return v;
}
#define IN(i) in(f, i)
#define OUT(i) tensor(f, &f->call->outputs[i], 1)
#define LIKE(i) fit(IN(i), RESULT.rank, RESULT.sizes)
#define INT(n) (ARG(n).kind == UBA_INT ? ARG(n).v.i : 0)
#define REAL(n) (ARG(n).kind == UBA_DOUBLE ? ARG(n).v.d : (double)INT(n))

static int32_t axis(const frame *f, int32_t i) {
  int32_t d = (int32_t)INT(i), rank = ARG(0).kind == UBA_TENSOR ? ARG(0).v.tensor->rank : 0;
  return d < 0 ? d + rank : d;
}
/* Element `d` of a list of one or two, which for one spatial dimension is the second. */
static int64_t element(const uba_value *v, int d, int64_t absent) {
  if (v->kind != UBA_INT_LIST || !v->count) return absent;
  return v->v.ints[v->count > 1 ? d : 0];
}
static x1_window_t window(const frame *f, int32_t i, int has_kernel) { /* [kernel,] stride, padding [, dilation] */
  x1_window_t w = {.groups = 1};
  for (int d = 0; d < 2; d++) {
    if (has_kernel) w.kernel[d] = element(&ARG(i), d, 1);
    w.stride[d] = element(&ARG(i + has_kernel), d, has_kernel ? w.kernel[d] : 1);
    w.padding[d] = element(&ARG(i + 1 + has_kernel), d, 0), w.dilation[d] = 1;
  }
  return w;
}

/* ------------------------------------------------------------------------------------------ kernels */
/* What a call is made of goes when it ends; int8 results are turned back first. */
static uba_status finish(frame *f, int status) {
  for (int32_t i = 0; i < f->used; i++) {
    x1_view_t dense = packed(f->origin[i], X1_DTYPE_UINT8, f->memory[i]); /* the kernel may have looked at it otherwise */
    if (!status && f->origin[i].rank >= 0) status = x1_copy_ex(&dense, &f->origin[i]);
    if (f->memory[i]) x1_mem_free(f->memory[i]);
  }
  return answer(status ? status : f->status);
}
#define KERNEL(name)                                                                                       \
  static int name(frame *f);                                                                               \
  static uba_status run_##name(void *device, const uba_call *call, int64_t tag) {                          \
    frame f;                                                                                               \
    f.call = call, f.tag = (int32_t)tag, f.used = f.use = f.status = 0;                                    \
    return (void)device, finish(&f, name(&f));                                                             \
  }                                                                                                        \
  static int name(frame *f)
#define SDK(name, request) KERNEL(name) { return request; }

SDK(unary, x1_unary_ex(f->tag, IN(0), OUT(0)))
SDK(vector, x1_binary_ex(f->tag, LIKE(0), LIKE(1), OUT(0)))
SDK(relu_grad, x1_binary_ex(X1_RELU_GRAD, IN(0), IN(1), OUT(0)))
SDK(choose, x1_select_ex(LIKE(0), LIKE(1), LIKE(2), OUT(0)))
SDK(ramp, x1_iota_ex(IN(f->tag), IN(2), OUT(0))) /* (start, end, step, ...), or (n, start, step, dtype) */
SDK(cumsum, x1_cumsum_ex(IN(0), axis(f, 1), OUT(0)))
SDK(gather, (f->use = MOVE, x1_gather_ex(IN(0), IN(1), axis(f, 2), OUT(0))))
SDK(move, (f->use = MOVE, x1_copy_ex(IN(0), OUT(0))))
SDK(set, (f->use = MOVE, x1_fill_ex(IN(1), OUT(0))))
KERNEL(scatter) { /* (x, index, src, dim): into a copy of x */
  x1_view_t *x = IN(0), *y = OUT(0);
  int status = x->data == y->data ? X1_OK : x1_copy_ex(x, y);
  return status ? status : x1_scatter_ex(f->tag, IN(2), IN(1), axis(f, 3), y);
}
KERNEL(reduce) { /* (x, dims, keepdim, ...); no dims: all of them */
  x1_view_t *x = IN(0), *y = OUT(0);
  uint32_t dims = 0;
  int32_t listed = f->call->arg_count > 1 && ARG(1).kind == UBA_INT_LIST ? (int32_t)ARG(1).count : 0;
  for (int32_t i = 0; i < listed; i++) dims |= 1u << ((ARG(1).v.ints[i] + (ARG(1).v.ints[i] < 0 ? x->rank : 0)) & 31);
  if (!listed) dims = ~0u;
  for (int32_t d = x->rank - 1, from = y->rank - 1; d >= 0 && x->rank <= X1_MAX_RANK && y->rank < x->rank; d--) {
    int gone = dims >> d & 1; /* without keepdim the result lacks it */
    y->shape[d] = gone ? 1 : y->shape[from], y->stride[d] = gone ? 0 : y->stride[from], from -= !gone;
  }
  y->rank = x->rank;
  return x1_reduce_ex(f->tag, x, dims, y);
}
KERNEL(arg_reduce) { /* (x, dim, keepdim) */
  x1_view_t *x = IN(0), *y = OUT(0);
  return x1_arg_reduce_ex(f->tag, x, axis(f, 1), y->rank < x->rank ? padded(y, axis(f, 1), x->rank) : y);
}
/* (a, b), or (c, a, b, beta, alpha), where a c that is multiplied by 0 is not read: it may be NaN. */
KERNEL(matmul) {
  int plus = f->call->arg_count > 3;
  double alpha = plus ? REAL(4) : 1, beta = plus ? REAL(3) : 0;
  return x1_matmul_ex(IN(plus), IN(plus + 1), beta != 0 ? LIKE(0) : NULL, alpha, beta, OUT(0));
}
/* One spatial dimension is the second of two. An 8-bit bias is added in whole numbers. */
KERNEL(conv) {
  x1_view_t *x = padded(IN(0), 2, 4), *w = padded(IN(1), 2, 4), *bias = IN(2), *y = padded(OUT(0), 2, 4);
  x1_window_t q = window(f, 3, 0);
  q.groups = INT(8);
  for (int d = 0; d < 2; d++) q.kernel[d] = w->shape[2 + d], q.dilation[d] = element(&ARG(5), d, 1);
  if (ARG(0).v.tensor->rank == 3) q.stride[0] = q.dilation[0] = 1, q.padding[0] = 0;
  if (bias && bias->dtype == X1_DTYPE_UINT8) {
    x1_view_t *whole = temporary(f, bias, X1_DTYPE_INT32);
    f->status = x1_copy_ex(bias, whole), bias = whole;
  }
  return x1_conv2d_ex(x, w, bias, &q, y);
}
KERNEL(max_pool) {
  x1_window_t q = window(f, 1, 1);
  return x1_max_pool2d_ex(padded(IN(0), 0, 4), &q, padded(OUT(0), 0, 4), padded(OUT(1), 0, 4));
}
KERNEL(avg_pool) {
  x1_window_t q = window(f, 1, 1);
  q.count_padding = INT(5), q.divisor = INT(6);
  return x1_avg_pool2d_ex(padded(IN(0), 0, 4), &q, padded(OUT(0), 0, 4));
}
/* (x, dim, half_to_float): e^(x - maximum) over its sum, in float32. */
KERNEL(softmax) {
  x1_view_t *x = IN(0), *y = OUT(0), line = *x, *e, *extreme, *sum;
  int32_t d = axis(f, 1);
  if (x->rank < 1 || x->rank > X1_MAX_RANK || !x->shape[d]) return x->rank ? X1_EUNSUPPORTED : x1_fill_ex(&(x1_view_t){.real = 1}, y);
  line.shape[d] = 1;
  e = temporary(f, x, X1_DTYPE_FLOAT32), extreme = temporary(f, &line, X1_DTYPE_FLOAT32);
  sum = temporary(f, &line, X1_DTYPE_FLOAT32);
  int status = x1_copy_ex(x, e);
  if (!status) status = x1_reduce_ex(X1_MAXIMUM, e, 1u << d, extreme);
  if (!status) status = x1_binary_ex(X1_SUB, e, fit(extreme, e->rank, e->shape), e);
  if (!status) status = x1_unary_ex(X1_EXP, e, e);
  if (!status) status = x1_reduce_ex(X1_SUM, e, 1u << d, sum);
  if (!status) status = x1_binary_ex(X1_DIV, e, fit(sum, e->rank, e->shape), e);
  return status ? status : x1_copy_ex(e, y);
}

#define K(name, run, tag) {"x1_" #name, run_##run, tag}
#define U(name, opcode) K(name, unary, X1_##opcode)
#define B(name, opcode) K(name, vector, X1_##opcode)
static const uba_kernel kernels[] = {
    /* operators; also instructions, which begin with v where they compute element by element */
    K(conv2d, conv, 0), K(max_pool2d, max_pool, 0), K(avg_pool2d, avg_pool, 0), K(matmul, matmul, 0), K(arange, ramp, 0),
    K(relu_grad, relu_grad, 0), U(relu, RELU), U(sigmoid, SIGMOID), {"custom_softmax_x1", run_softmax, 0},
    K(sum, reduce, X1_SUM), K(mean, reduce, X1_MEAN), K(amax, reduce, X1_MAXIMUM), K(amin, reduce, X1_MINIMUM),
    B(vadd, ADD), B(vsub, SUB), B(vmul, MUL), B(vdiv, DIV), B(vmax, MAX), B(vmin, MIN), B(vpow, POW), B(vfmod, FMOD),
    B(vidiv, IDIV), B(vand, AND), B(vor, OR), B(vxor, XOR), B(veq, EQ), B(vne, NE), B(vlt, LT), B(vle, LE), B(vgt, GT),
    B(vge, GE), U(vneg, NEG), U(vabs, ABS), U(vnot, NOT), U(vfloor, FLOOR), U(vceil, CEIL), U(vtrunc, TRUNC),
    U(vround, ROUND), U(vsqrt, SQRT), U(vrsqrt, RSQRT), U(vexp, EXP), U(vexpm1, EXPM1), U(vlog, LOG), U(vlog1p, LOG1P),
    U(vsin, SIN), U(vcos, COS), U(vtanh, TANH), U(verf, ERF), K(vselect, choose, 0), K(vcast, move, 0),
    K(copy_nd, move, 0), K(vfill, set, 0), K(iota, ramp, 1), K(reduce_sum, reduce, X1_SUM),
    K(reduce_prod, reduce, X1_PROD), K(reduce_max, reduce, X1_MAXIMUM), K(reduce_min, reduce, X1_MINIMUM),
    K(reduce_any, reduce, X1_MAXIMUM), K(reduce_all, reduce, X1_MINIMUM), K(argmax, arg_reduce, X1_MAXIMUM),
    K(argmin, arg_reduce, X1_MINIMUM), K(gather, gather, 0), K(scatter, scatter, 0), K(scatter_add, scatter, X1_ADD),
    K(cumsum, cumsum, 0)};

/* ------------------------------------------------------------------------------------------ device and handshake */
static uba_status properties(void *device, uba_properties *p) {
  x1_info_t info;
  int status = x1_get_info(&info);
  memcpy(p->name, info.name, sizeof(info.name)), memcpy(p->serial, info.serial, sizeof(info.serial));
  p->total_memory = info.memory_bytes, p->max_rank = X1_MAX_RANK, p->clock_mhz = 1000, p->host_accessible = 1;
  return (void)device, report(status);
}
static uba_status memory_info(void *device, uint64_t *free_bytes, uint64_t *total) {
  return (void)device, report(x1_mem_info(free_bytes, total));
}
static uba_status telemetry(void *device, uba_telemetry *t) {
  x1_info_t info;
  int status = x1_get_info(&info);
  t->utilization = t->power = t->temperature = -1, t->busy_time = (double)info.cycles / 1e9;
  return (void)device, report(status);
}
static uba_status alloc(void *device, uint64_t bytes, void **address) {
  return (void)device, *address = x1_mem_alloc(bytes), *address ? UBA_OK : report(x1_last_status());
}
static uba_status release(void *device, void *address) { return (void)device, report(x1_mem_free(address)); }
static uba_status map_host(void *device, void *memory, uint64_t bytes, void **address) {
  return (void)device, *address = x1_mem_map(memory, bytes), *address ? UBA_OK : report(x1_last_status());
}
static uba_status unmap_host(void *device, void *address) { return (void)device, report(x1_mem_unmap(address)); }
static uba_status copy(void *device, void *stream, void *to, const void *from, uint64_t bytes, int32_t direction) {
  return (void)device, (void)stream, (void)direction, report(x1_mem_copy(to, from, bytes));
}
static uba_status fill(void *device, void *stream, void *to, uint64_t bytes, int32_t value) {
  return (void)device, (void)stream, report(x1_mem_set(to, value, bytes));
}
static uba_status synchronize(void *device, void *stream) { return (void)device, (void)stream, UBA_OK; }
static uba_status copy_strided(void *device, void *stream, const uba_tensor *to, const uba_tensor *from) {
  int use = to->dtype == from->dtype ? BYTES : MOVE;
  x1_view_t y = borrowed(to, use), x = borrowed(from, use);
  return (void)device, (void)stream, answer(x1_copy_ex(&x, &y));
}
static uba_status fill_strided(void *device, void *stream, const uba_tensor *to, const uba_value *value) {
  x1_view_t y = borrowed(to, BYTES), x = {.dtype = value->kind == UBA_INT || value->kind == UBA_DOUBLE ? X1_NUMBER : -1};
  x.real = value->kind == UBA_INT ? (double)value->v.i : value->v.d;
  x.integer = value->kind == UBA_INT ? value->v.i : x.real > -9e18 && x.real < 9e18 ? (int64_t)x.real : 0;
  return (void)device, (void)stream, answer(x1_fill_ex(&x, &y));
}
static const uba_device_api device_api = {.header = UBA_HEADER(uba_device_api), .properties = properties, .alloc = alloc,
                                          .free = release, .copy = copy, .fill = fill, .synchronize = synchronize,
                                          .copy_nd = copy_strided, .fill_nd = fill_strided, .map_host = map_host,
                                          .unmap_host = unmap_host, .memory_info = memory_info, .telemetry = telemetry};

static uba_status device_count(int32_t *count) { return *count = 1, UBA_OK; }
static uba_status device_open(int32_t index, void **device) {
  return *device = (void *)&device_api, index ? UBA_INVALID_VALUE : report(x1_init_v2(0));
}
static uba_status device_close(void *device) { return (void)device, UBA_OK; }
static uba_adapter adapter = {UBA_HEADER(uba_adapter), "x1", "1.0.0", NULL, device_count, device_open, device_close,
                              &device_api, kernels, COUNT(kernels)};

const uba_adapter *uba_query(uint32_t host_abi, const uba_host *the_host) {
  host = the_host, adapter.sdk_version = x1_version();
  if (!strncmp(adapter.sdk_version, "1.2.", 4)) return &adapter;
  host->set_error(X1_EUNSUPPORTED, "x1 needs runtime 1.2, another one was found");
  return (void)host_abi, NULL; /* the host judges the versions of the interface */
}
