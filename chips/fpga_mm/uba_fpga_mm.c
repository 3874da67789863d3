/* uba_fpga_mm.c: the adapter of the FPGA matrix card: says what uba.h asks for in the words of fpga_mm_sdk.h.
 *
 * Contract: a translator only. A kernel hands the arguments of one operator or instruction to one function of the SDK,
 * which refuses what it cannot do before it does anything. The card is synchronous, so there is no stream to mind. */
#include <string.h>

#include "fpga_mm_sdk.h"
#include "torchfl/uba.h"

static const uba_host *host;

/* The host's status for the SDK's, after the SDK's own words. */
static uba_status report(int status) {
  static const uba_status map[] = {UBA_OK,     UBA_INVALID_VALUE, UBA_INVALID_VALUE, UBA_OUT_OF_MEMORY, UBA_NOT_SUPPORTED,
                                   UBA_FAILED, UBA_DEVICE_LOST,   UBA_INVALID_VALUE};
  if (status != FPGA_OK) host->set_error(status, fpga_error_text());
  return status >= 0 && status < (int)(sizeof(map) / sizeof(map[0])) ? map[status] : UBA_FAILED;
}

/* ------------------------------------------------------------------------------------------ arguments */
/* An operand that the card computes with. Only to move it (`raw`), any dtype will do whose elements have a size it knows. */
static fpga_operand_t operand(const uba_tensor *t, int raw) {
  static const int8_t computed[32] = {
      [UBA_DTYPE_FLOAT32] = FPGA_FP32, [UBA_DTYPE_INT64] = FPGA_INT64, [UBA_DTYPE_BOOL] = FPGA_BOOL};
  static const int8_t moved[32] = {
      [UBA_DTYPE_FLOAT16] = FPGA_BITS16, [UBA_DTYPE_BFLOAT16] = FPGA_BITS16, [UBA_DTYPE_FLOAT64] = FPGA_BITS64,
      [UBA_DTYPE_INT8] = FPGA_BITS8,     [UBA_DTYPE_UINT8] = FPGA_BITS8,     [UBA_DTYPE_INT16] = FPGA_BITS16,
      [UBA_DTYPE_INT32] = FPGA_BITS32,   [UBA_DTYPE_COMPLEX64] = FPGA_BITS64};
  int32_t dtype = t->dtype & 31;
  fpga_operand_t x = {.address = (void *)((uintptr_t)t->data + t->byte_offset),
                      .dtype = computed[dtype] || !raw ? computed[dtype] : moved[dtype], .rank = t->rank};
  if (!x.dtype) x.dtype = -1; /* the SDK's to refuse */
  for (int32_t d = 0; d < t->rank && d < FPGA_MAX_RANK; d++) x.size[d] = t->sizes[d], x.stride[d] = t->strides[d];
  return x;
}
static fpga_operand_t number(const uba_value *v) {
  fpga_operand_t x = {.dtype = FPGA_NUMBER};
  if (v->kind == UBA_INT) x.integer = v->v.i, x.real = (double)v->v.i;
  else if (v->kind == UBA_DOUBLE) x.real = v->v.d, x.integer = v->v.d == v->v.d ? (int64_t)v->v.d : 0;
  else x.dtype = -1;
  return x;
}
static fpga_operand_t argument(const uba_call *call, int32_t i) {
  return call->args[i].kind == UBA_TENSOR ? operand(call->args[i].v.tensor, 0) : number(&call->args[i]);
}
#define ARG(i) (&(fpga_operand_t[]){argument(call, i)}[0])
#define RESULT (&(fpga_operand_t[]){operand(&call->outputs[0], 0)}[0])

/* ------------------------------------------------------------------------------------------ kernels */
/* PyTorch has checked the arguments: what the SDK finds senseless is a form that it lacks. */
static uba_status answer(int status) {
  uba_status reported = report(status);
  return status == FPGA_EVALUE ? UBA_NOT_SUPPORTED : reported;
}
#define KERNEL(name, request)                                                    \
  static uba_status name(void *card, const uba_call *call, int64_t tag) {        \
    return (void)tag, answer(request);                                           \
  }
KERNEL(relu, fpga_relu(card, ARG(0), RESULT))
KERNEL(vector, fpga_vector(card, (int32_t)tag, ARG(0), call->arg_count > 1 ? ARG(1) : NULL, RESULT))
KERNEL(choose, fpga_select(card, ARG(0), ARG(1), ARG(2), RESULT))
KERNEL(ramp, fpga_ramp(card, ARG(tag), ARG(2), RESULT)) /* (start, end, step, ...), or (n, start, step, dtype) */
KERNEL(move, fpga_copy_nd(card, ARG(0), RESULT))
KERNEL(set, fpga_fill_nd(card, ARG(1), RESULT))
KERNEL(gather, fpga_gather(card, ARG(0), ARG(1), (int32_t)call->args[2].v.i, RESULT))
KERNEL(matmul, fpga_matmul(card, ARG(0), ARG(1), NULL, RESULT))

static uba_status addmm(void *card, const uba_call *call, int64_t tag) { /* (c, a, b): a row c is that of every row */
  fpga_operand_t c = argument(call, 0), y = operand(&call->outputs[0], 0);
  for (int32_t d = y.rank - 1, from = c.rank - 1; d >= 0 && c.rank <= y.rank; d--, from--) {
    int one = from < 0 || c.size[from] == 1;
    c.stride[d] = one ? 0 : c.stride[from], c.size[d] = one ? y.size[d] : c.size[from];
  }
  c.rank = y.rank;
  return (void)tag, answer(fpga_matmul(card, ARG(1), ARG(2), &c, &y));
}
static uba_status reduce(void *card, const uba_call *call, int64_t tag) { /* (x, dims, keepdim) */
  fpga_operand_t x = argument(call, 0), y = operand(&call->outputs[0], 0);
  uint32_t dims = 0;
  for (uint32_t i = 0; i < call->args[1].count; i++) dims |= 1u << (call->args[1].v.ints[i] & 31);
  for (int32_t d = x.rank - 1, from = y.rank - 1; d >= 0 && x.rank <= FPGA_MAX_RANK && y.rank < x.rank; d--) {
    int gone = dims >> d & 1; /* without keepdim the result lacks it */
    y.size[d] = gone ? 1 : y.size[from], y.stride[d] = gone ? 0 : y.stride[from], from -= !gone;
  }
  y.rank = x.rank;
  return answer(fpga_reduce(card, (int32_t)tag, &x, dims, &y));
}

#define K(name, run, tag) {"fpga_mm_" #name, run, tag}
static const uba_kernel kernels[] = {
    K(relu, relu, 0), K(matmul, matmul, 0), K(addmm, addmm, 0), K(arange, ramp, 0),
    /* instructions; matmul is one too */
    K(vadd, vector, FPGA_ADD), K(vsub, vector, FPGA_SUB), K(vmul, vector, FPGA_MUL), K(vdiv, vector, FPGA_DIV),
    K(vmax, vector, FPGA_MAX), K(veq, vector, FPGA_EQ), K(vlt, vector, FPGA_LT), K(vle, vector, FPGA_LE),
    K(vand, vector, FPGA_AND), K(vexp, vector, FPGA_EXP), K(vsqrt, vector, FPGA_SQRT), K(vselect, choose, 0),
    K(reduce_sum, reduce, FPGA_ADD), K(reduce_max, reduce, FPGA_MAX), K(iota, ramp, 1), K(vcast, move, 0),
    K(copy_nd, move, 0), K(vfill, set, 0), K(gather, gather, 0)};

/* ------------------------------------------------------------------------------------------ device and handshake */
static uba_status properties(void *card, uba_properties *p) {
  fpga_info_t info = {.alignment = 0};
  int status = fpga_get_info(card, &info);
  memcpy(p->name, info.name, sizeof(info.name)), memcpy(p->serial, info.serial, sizeof(info.serial));
  p->total_memory = info.memory_bytes, p->alignment = (uint64_t)info.alignment, p->max_rank = FPGA_MAX_RANK;
  p->clock_mhz = info.clock_mhz;
  return report(status);
}
static uba_status memory_info(void *card, uint64_t *free_bytes, uint64_t *total) {
  fpga_info_t info = {.alignment = 0};
  int status = fpga_get_info(card, &info);
  *free_bytes = info.free_bytes, *total = info.memory_bytes;
  return report(status);
}
static uba_status telemetry(void *card, uba_telemetry *t) {
  fpga_info_t info = {.clock_mhz = 1};
  int status = fpga_get_info(card, &info);
  t->utilization = t->power = t->temperature = -1, t->busy_time = (double)info.cycles / (info.clock_mhz * 1e6);
  return report(status);
}
static uba_status alloc(void *card, uint64_t bytes, void **address) { return report(fpga_alloc(card, bytes, address)); }
static uba_status release(void *card, void *address) { return report(fpga_free(card, address)); }
static uba_status copy(void *card, void *stream, void *to, const void *from, uint64_t bytes, int32_t direction) {
  (void)stream;
  if (direction == UBA_HOST_TO_DEVICE) return report(fpga_write(card, to, from, bytes));
  return report((direction == UBA_DEVICE_TO_HOST ? fpga_read : fpga_move)(card, to, from, bytes));
}
static uba_status fill(void *card, void *stream, void *to, uint64_t bytes, int32_t value) {
  return (void)stream, report(fpga_set(card, to, value, bytes));
}
static uba_status synchronize(void *card, void *stream) { return (void)card, (void)stream, UBA_OK; }
static uba_status copy_strided(void *card, void *stream, const uba_tensor *to, const uba_tensor *from) {
  fpga_operand_t y = operand(to, to->dtype == from->dtype), x = operand(from, to->dtype == from->dtype);
  return (void)stream, answer(x.dtype < 0 || y.dtype < 0 ? FPGA_EUNSUPPORTED : fpga_copy_nd(card, &x, &y));
}
static uba_status fill_strided(void *card, void *stream, const uba_tensor *to, const uba_value *value) {
  fpga_operand_t y = operand(to, 1), x = number(value);
  return (void)stream, answer(x.dtype < 0 || y.dtype < 0 ? FPGA_EUNSUPPORTED : fpga_fill_nd(card, &x, &y));
}
static const uba_device_api device_api = {.header = UBA_HEADER(uba_device_api),
                                          .properties = properties, .alloc = alloc, .free = release, .copy = copy,
                                          .fill = fill, .synchronize = synchronize, .copy_nd = copy_strided,
                                          .fill_nd = fill_strided, .memory_info = memory_info, .telemetry = telemetry};

static uba_status device_count(int32_t *count) { return report(fpga_card_count(count)); }
static uba_status device_open(int32_t index, void **device) { return report(fpga_open(index, (fpga_card_t *)device)); }
static uba_status device_close(void *device) { return report(fpga_close(device)); }
static uba_adapter adapter = {UBA_HEADER(uba_adapter), "fpga_mm", "1.0.0", NULL, device_count, device_open, device_close,
                              &device_api, kernels, sizeof(kernels) / sizeof(kernels[0])};

const uba_adapter *uba_query(uint32_t host_abi, const uba_host *the_host) {
  host = the_host, adapter.sdk_version = fpga_version();
  if (!strncmp(adapter.sdk_version, "2.", 2)) return &adapter;
  host->set_error(FPGA_EUNSUPPORTED, "fpga_mm needs SDK 2, another one was found");
  return (void)host_abi, NULL; /* the host judges the versions of the interface */
}
