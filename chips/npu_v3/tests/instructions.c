/* instructions.c: calls each instruction's kernel as the host does, in every dtype that the descriptor promises.
 *
 *   npu_v3_instructions path/to/libuba_npu_v3.so
 * Exit status 0: all right; 1: a check failed, said on stderr. That the functions are right is for the SDK's own tests;
 * here it is shown that arguments, results, immediates and dims reach them in the order of docs/instructions.md. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "torchfl/uba.h"

#define F16 UBA_DTYPE_FLOAT16
#define F32 UBA_DTYPE_FLOAT32
#define F64 UBA_DTYPE_FLOAT64
#define I32 UBA_DTYPE_INT32
#define I64 UBA_DTYPE_INT64
#define BOOLEAN UBA_DTYPE_BOOL
static const int32_t all[] = {F16,           UBA_DTYPE_BFLOAT16, F32,     F64, UBA_DTYPE_INT8, UBA_DTYPE_UINT8,
                              UBA_DTYPE_INT16, I32,                I64, BOOLEAN};
static const uba_adapter *adapter;
static void *device;
static char said[512];
static int checks;

static void set_error(int64_t code, const char *text) {
  snprintf(said, sizeof(said), "%lld: %s", (long long)code, text);
}
static void log_line(int32_t level, const char *text) { fprintf(stderr, "[%d] %s\n", level, text); }
static const uba_host host = {UBA_HEADER(uba_host), set_error, log_line};
static void fail(const char *what, const char *why) {
  fprintf(stderr, "FAILED: %s: %s (%s)\n", what, why, said);
  exit(1);
}

/* A dense tensor of `dtype`. Values go in and out as float64, which copy_nd converts. Freed by nobody. */
typedef struct tensor {
  uba_tensor view;
  int64_t sizes[6], strides[6], n;
} tensor;
static tensor *empty(int32_t dtype, int32_t rank, const int64_t *sizes) {
  tensor *t = calloc(1, sizeof(*t));
  if (!t) fail("calloc", "no memory");
  t->n = 1;
  for (int32_t d = rank; d-- > 0; t->n *= sizes[d]) t->sizes[d] = sizes[d], t->strides[d] = t->n;
  t->view = (uba_tensor){NULL, 0, t->sizes, t->strides, dtype, rank};
  if (t->n && adapter->device->alloc(device, (uint64_t)t->n * 8, &t->view.data)) fail("alloc", "refused");
  return t;
}
static tensor *make(int32_t dtype, int32_t rank, const int64_t *sizes, const double *values) {
  tensor *t = empty(dtype, rank, sizes), *wide = empty(F64, rank, sizes);
  if (!t->n) return t;
  if (adapter->device->copy(device, NULL, wide->view.data, values, (uint64_t)t->n * 8, UBA_HOST_TO_DEVICE) ||
      adapter->device->copy_nd(device, NULL, &t->view, &wide->view) || adapter->device->synchronize(device, NULL))
    fail("make", "refused");
  return t;
}
static const double *values_of(tensor *t) {
  double *values = calloc((size_t)t->n + 1, sizeof(double));
  tensor *wide = empty(F64, t->view.rank, t->sizes);
  if (t->n && (adapter->device->copy_nd(device, NULL, &wide->view, &t->view) ||
               adapter->device->copy(device, NULL, values, wide->view.data, (uint64_t)t->n * 8, UBA_DEVICE_TO_HOST)))
    fail("values", "refused");
  if (adapter->device->synchronize(device, NULL)) fail("values", "failed");
  return values;
}
static const uba_kernel *find(const char *name) {
  for (int64_t i = 0; i < adapter->kernel_count; i++)
    if (!strcmp(adapter->kernels[i].name + strlen("npu_v3_"), name)) return &adapter->kernels[i];
  fail(name, "no such kernel");
  return NULL;
}
static uba_status call(const char *name, const uba_value *args, int32_t count, tensor *first, tensor *second) {
  uba_tensor outputs[2] = {first->view, second ? second->view : (uba_tensor){.dtype = 0}};
  uba_call c = {UBA_HEADER(uba_call), "uba::test", args, outputs, count, second ? 2 : 1, NULL};
  const uba_kernel *k = find(name);
  return k->run(device, &c, k->tag);
}
static void run(const char *name, const uba_value *args, size_t count, tensor *first, tensor *second) {
  if (call(name, args, (int32_t)count, first, second)) fail(name, "was refused");
}
static void check(const char *name, tensor *t, const double *wanted) {
  const double *got = values_of(t);
  for (int64_t i = 0; i < t->n; i++, checks++)
    if (!(isnan(wanted[i]) ? isnan(got[i]) : fabs(got[i] - wanted[i]) <= 1e-6 * fabs(wanted[i]) || got[i] == wanted[i])) {
      snprintf(said, sizeof(said), "element %d is %g, wanted %g", (int)i, got[i], wanted[i]);
      fail(name, "wrong");
    }
}

#define SIZES(...) ((int64_t[]){__VA_ARGS__})
#define DATA(...) ((double[]){__VA_ARGS__})
#define T(t) {UBA_TENSOR, 1, {.tensor = &(t)->view}}
#define INT(v) {UBA_INT, 1, {.i = v}}
#define REAL(v) {UBA_DOUBLE, 1, {.d = v}}
#define LIST(...) {UBA_INT_LIST, sizeof(SIZES(__VA_ARGS__)) / 8, {.ints = SIZES(__VA_ARGS__)}}
#define NO_DIMS {UBA_INT_LIST, 0, {.ints = NULL}}
#define RUN2(name, first, second, ...) \
  run(name, (uba_value[]){__VA_ARGS__}, sizeof((uba_value[]){__VA_ARGS__}) / sizeof(uba_value), first, second)
#define RUN(name, out, ...) RUN2(name, out, NULL, __VA_ARGS__)

static int real(int32_t dtype) { return dtype <= F64; }

/* Small whole numbers, which every dtype holds. */
static void every_dtype(int32_t d) {
  int truth = d == BOOLEAN;
  tensor *x = make(d, 1, SIZES(3), DATA(truth ? 1 : 4, 1, 0)), *y = make(d, 1, SIZES(3), DATA(1, truth ? 0 : 2, 1));
  tensor *z = empty(d, 1, SIZES(3)), *b = empty(BOOLEAN, 1, SIZES(3)), *m = make(BOOLEAN, 1, SIZES(3), DATA(1, 0, 1));
  tensor *index = make(I64, 1, SIZES(4), DATA(2, 0, 2, 1)), *four = empty(d, 1, SIZES(4)), *row = empty(d, 1, SIZES(3));
  tensor *places = empty(I64, 1, SIZES(3)), *one = empty(d, 0, NULL), *place = empty(I64, 0, NULL);
  double big = truth ? 1 : 4, two = truth ? 0 : 2;
  RUN("veq", b, T(x), T(y)), check("veq", b, DATA(truth, 0, 0));
  RUN("vge", b, T(x), INT(1)), check("vge", b, DATA(1, 1, 0));
  RUN("vlt", b, INT(1), T(y)), check("vlt", b, DATA(0, two > 1, 0));
  RUN("vselect", z, T(m), T(x), T(y)), check("vselect", z, DATA(big, two, 0));
  RUN("vselect", z, T(m), INT(0), T(y)), check("vselect", z, DATA(0, two, 0));
  RUN("vselect", z, T(m), REAL(1), INT(0)), check("vselect", z, DATA(1, 0, 1));
  RUN("copy_nd", z, T(x)), check("copy_nd", z, DATA(big, 1, 0));
  RUN("flip", z, T(x), LIST(-1)), check("flip", z, DATA(0, 1, big));
  RUN("flip", z, T(x), NO_DIMS), check("flip", z, DATA(big, 1, 0));
  RUN("vfill", z, LIST(3), INT(1), INT(d)), check("vfill", z, DATA(1, 1, 1));
  RUN("gather", four, T(x), T(index), INT(-1)), check("gather", four, DATA(0, big, 0, 1));
  tensor *src = make(d, 1, SIZES(4), DATA(1, 0, 0, 1));
  RUN("scatter", row, T(x), T(index), T(src), INT(0)), check("scatter", row, DATA(0, 1, 0));
  RUN("scatter", row, T(x), T(index), INT(1), INT(0)), check("scatter", row, DATA(1, 1, 1));
  RUN2("sort", z, places, T(x), INT(0), INT(0)), check("sort", z, DATA(0, 1, big));
  check("sort", places, truth ? DATA(2, 0, 1) : DATA(2, 1, 0));
  for (size_t to = 0; to < sizeof(all) / sizeof(all[0]); to++) {
    tensor *cast = empty(all[to], 1, SIZES(3));
    RUN("vcast", cast, T(x), INT(all[to])), check("vcast", cast, DATA(all[to] == BOOLEAN ? 1 : big, 1, 0));
  }
  if (truth) {
    RUN("vnot", z, T(x)), check("vnot", z, DATA(0, 0, 1));
    RUN("vxor", z, T(x), T(y)), check("vxor", z, DATA(0, 1, 1));
    RUN("reduce_any", one, T(x), LIST(0), INT(0)), check("reduce_any", one, DATA(1));
    RUN("reduce_all", one, T(x), LIST(0), INT(0)), check("reduce_all", one, DATA(0));
    RUN("reduce_all", z, T(x), NO_DIMS, INT(0)), check("reduce_all", z, DATA(1, 1, 0));
    return;
  }
  RUN("vadd", z, T(x), T(y)), check("vadd", z, DATA(5, 3, 1));
  RUN("vsub", z, INT(5), T(x)), check("vsub", z, DATA(1, 4, 5));
  RUN("vsub", z, T(x), INT(0)), check("vsub", z, DATA(4, 1, 0));
  RUN("vmul", z, T(x), INT(3)), check("vmul", z, DATA(12, 3, 0));
  RUN("vmax", z, T(x), T(y)), check("vmax", z, DATA(4, 2, 1));
  RUN("vmin", z, T(x), INT(2)), check("vmin", z, DATA(2, 1, 0));
  RUN("vpow", z, T(x), T(y)), check("vpow", z, DATA(4, 1, 0));
  RUN("vfmod", z, T(x), INT(3)), check("vfmod", z, DATA(1, 1, 0));
  RUN("vremainder", z, INT(7), T(y)), check("vremainder", z, DATA(0, 1, 0));
  RUN("vneg", z, T(x)), RUN("vneg", z, T(z)), check("vneg", z, DATA(4, 1, 0));
  RUN("vabs", z, T(x)), check("vabs", z, DATA(4, 1, 0));
  RUN("reduce_sum", one, T(x), LIST(0), INT(0)), check("reduce_sum", one, DATA(5));
  RUN("reduce_sum", z, T(x), NO_DIMS, INT(0)), check("reduce_sum", z, DATA(4, 1, 0));
  RUN("reduce_prod", one, T(y), LIST(-1), INT(0)), check("reduce_prod", one, DATA(2));
  RUN("reduce_max", one, T(x), LIST(0), INT(0)), check("reduce_max", one, DATA(4));
  RUN("reduce_min", one, T(x), LIST(0), INT(0)), check("reduce_min", one, DATA(0));
  RUN("argmax", place, T(y), INT(0), INT(0)), check("argmax", place, DATA(1));
  RUN("argmin", place, T(y), INT(-1), INT(0)), check("argmin", place, DATA(0));
  RUN("ramp", four, INT(4), INT(1), INT(2), INT(d)), check("iota", four, DATA(1, 3, 5, 7));
  RUN("cumsum", z, T(x), INT(0)), check("cumsum", z, DATA(4, 5, 5));
  RUN("cumprod", z, T(x), INT(-1)), check("cumprod", z, DATA(4, 4, 0));
  RUN2("cummax", z, places, T(y), INT(0)), check("cummax", z, DATA(1, 2, 2)), check("cummax", places, DATA(0, 1, 1));
  RUN2("cummin", z, places, T(y), INT(0)), check("cummin", z, DATA(1, 1, 1)), check("cummin", places, DATA(0, 0, 2));
  src = make(d, 1, SIZES(4), DATA(1, 2, 3, 5));
  RUN("scatter_add", row, T(x), T(index), T(src), INT(0)), check("scatter_add", row, DATA(6, 6, 4));
  RUN("scatter_mul", row, T(x), T(index), T(src), INT(-1)), check("scatter_mul", row, DATA(8, 5, 0));
  RUN("scatter_max", row, T(x), T(index), T(src), INT(0)), check("scatter_max", row, DATA(4, 5, 3));
  RUN("scatter_min", row, T(x), T(index), INT(1), INT(0)), check("scatter_min", row, DATA(1, 1, 0));
  RUN("scatter_add", x, T(x), T(index), INT(1), INT(0)), check("scatter_add", x, DATA(5, 2, 2)); /* in place */
  tensor *a = make(d, 2, SIZES(2, 3), DATA(1, 2, 3, 4, 5, 6)), *c = make(d, 2, SIZES(3, 2), DATA(1, 0, 0, 1, 1, 1));
  tensor *square = empty(d, 2, SIZES(2, 2));
  RUN("matmul", square, T(a), T(c)), check("matmul", square, DATA(4, 5, 10, 11));
  if (real(d)) return;
  RUN("vidiv", z, T(y), INT(2)), check("vidiv", z, DATA(0, 1, 0));
  RUN("vshl", z, T(y), INT(3)), check("vshl", z, DATA(8, 16, 8));
  RUN("vshr", z, INT(9), T(y)), check("vshr", z, DATA(4, 2, 4));
  RUN("vgcd", z, INT(6), T(y)), check("vgcd", z, DATA(1, 2, 1));
  RUN("vand", z, T(y), INT(1)), check("vand", z, DATA(1, 0, 1));
  RUN("vor", z, T(y), INT(4)), check("vor", z, DATA(5, 6, 5));
}

typedef struct function {
  const char *name;
  double (*f)(double);
} function;
static double rsqrt_(double x) { return 1 / sqrt(x); }
static double exp2_(double x) { return pow(2, x); }
static double half_erfinv(double x) { return x == 0.5 ? 0.47693627620446987338 : NAN; }
static double half_digamma(double x) { return x == 0.5 ? -1.9635100260214234794 : NAN; }
static double one_less_erf(double x) { return erfc(x); }
static double even(double x) { return nearbyint(x); }
static const function functions[] = {
    {"vfloor", floor}, {"vceil", ceil},   {"vtrunc", trunc},  {"vround", even},    {"vsqrt", sqrt},   {"vrsqrt", rsqrt_},
    {"vexp", exp},     {"vexp2", exp2_},  {"vexpm1", expm1},  {"vlog", log},       {"vlog2", log2},   {"vlog10", log10},
    {"vlog1p", log1p}, {"vsin", sin},     {"vcos", cos},      {"vtan", tan},       {"vasin", asin},   {"vacos", acos},
    {"vatan", atan},   {"vsinh", sinh},   {"vcosh", cosh},    {"vtanh", tanh},     {"vasinh", asinh}, {"vatanh", atanh},
    {"verf", erf},     {"verfc", one_less_erf}, {"verfinv", half_erfinv}, {"vlgamma", lgamma}, {"vdigamma", half_digamma}};

static void floats(int32_t d) {
  tensor *x = make(d, 0, NULL, DATA(0.5)), *y = empty(d, 0, NULL), *a = make(d, 1, SIZES(2), DATA(1, -3));
  tensor *z = empty(d, 1, SIZES(2)), *five = empty(d, 1, SIZES(5));
  for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
    RUN(functions[i].name, y, T(x));
    check(functions[i].name, y, DATA(functions[i].f(0.5)));
  }
  x = make(d, 0, NULL, DATA(2)), RUN("vacosh", y, T(x)), check("vacosh", y, DATA(acosh(2)));
  RUN("vdiv", z, T(a), INT(2)), check("vdiv", z, DATA(0.5, -1.5));
  RUN("vatan2", z, T(a), REAL(1)), check("vatan2", z, DATA(atan2(1, 1), atan2(-3, 1)));
  RUN("vcopysign", z, INT(2), T(a)), check("vcopysign", z, DATA(2, -2));
  RUN("vnextafter", z, T(a), T(a)), check("vnextafter", z, DATA(1, -3));
  RUN("vigamma", y, INT(1), T(x)), check("vigamma", y, DATA(1 - exp(-2)));
  RUN("vigammac", y, INT(1), T(x)), check("vigammac", y, DATA(exp(-2)));
  RUN("vzeta", y, T(x), INT(1)), check("vzeta", y, DATA(1.6449340668482264365));
  RUN("logcumsumexp", z, T(a), INT(0)), check("logcumsumexp", z, DATA(1, log(exp(1) + exp(-3))));
  RUN("random_uniform", five, LIST(5), INT(0), INT(0), INT(d)); /* Random123's known answer for 0 and 0 */
  check("random_uniform", five, DATA(0x6627e8p-24, 0xe169c5p-24, 0xbc57acp-24, 0x9b00dbp-24, values_of(five)[4]));
  tensor *bits = empty(I64, 1, SIZES(2)), *high = empty(I64, 1, SIZES(2));
  RUN("random_bits", bits, LIST(2), INT(0), INT(0));
  RUN("vshr", high, T(bits), INT(31)); /* what double holds of 0xe169c58d6627e8d5 >> 1 */
  check("random_bits", high, DATA(0xe169c58dp0, 0x9b00dbd8p0));
  tensor *nan = make(d, 1, SIZES(3), DATA(1, NAN, 2)), *out = empty(d, 1, SIZES(3)), *places = empty(I64, 1, SIZES(3));
  RUN2("sort", out, places, T(nan), INT(0), INT(1)), check("sort", out, DATA(NAN, 2, 1)), check("sort", places, DATA(1, 2, 0));
}

/* An immediate has the dtype of the other operand: 0.1 is 0.0999756 in float16. */
static void immediates(void) {
  tensor *x = make(F16, 1, SIZES(1), DATA(1000)), *b = empty(BOOLEAN, 1, SIZES(1));
  RUN("vmul", x, T(x), REAL(0.1)), check("vmul", x, DATA(100));
  x = make(F16, 1, SIZES(1), DATA(0.1)), RUN("veq", b, REAL(0.1), T(x)), check("veq", b, DATA(1));
  x = make(I32, 1, SIZES(1), DATA(9)), RUN("vmul", x, T(x), REAL(2.9)), check("vmul", x, DATA(18));
}

/* Single numbers have one place along one dimension; results may be views; nothing of nothing. */
static void shapes(void) {
  tensor *x = make(F32, 0, NULL, DATA(7)), *y = empty(F32, 0, NULL), *place = empty(I64, 0, NULL);
  tensor *zero = make(I64, 0, NULL, DATA(0)), *none = empty(F32, 2, SIZES(2, 0)), *places = empty(I64, 2, SIZES(2, 0));
  RUN("cumsum", y, T(x), INT(-1)), check("cumsum", y, DATA(7));
  RUN2("sort", y, place, T(x), INT(-1), INT(1)), check("sort", y, DATA(7)), check("sort", place, DATA(0));
  RUN("gather", y, T(x), T(zero), INT(0)), check("gather", y, DATA(7));
  RUN("scatter_add", y, T(x), T(zero), INT(1), INT(-1)), check("scatter_add", y, DATA(8));
  RUN("argmax", place, T(x), INT(0), INT(0)), check("argmax", place, DATA(0));
  RUN("reduce_sum", y, T(x), NO_DIMS, INT(0)), check("reduce_sum", y, DATA(7));
  RUN2("sort", none, places, T(none), INT(1), INT(0));
  RUN("vadd", none, T(none), INT(1));
  tensor *a = make(F32, 2, SIZES(2, 3), DATA(1, 2, 3, 4, 5, 6)), *row = make(F32, 2, SIZES(2, 3), DATA(1, 1, 1, 2, 2, 2));
  tensor *wide = make(F32, 2, SIZES(3, 4), DATA(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)), view = *wide;
  view.view.sizes = SIZES(2, 3), view.view.strides = SIZES(2, 4); /* columns of `wide` as rows */
  a->view.strides = a->strides, row->view.strides = SIZES(0, 1);  /* broadcast: 1, 1, 1 twice */
  RUN("vadd", &view, T(a), T(row)), check("vadd", wide, DATA(2, 0, 5, 0, 3, 0, 6, 0, 4, 0, 7, 0));
  RUN("scatter_max", &view, T(a), T(make(I64, 2, SIZES(1, 3), DATA(1, 1, 0))), INT(9), INT(0));
  check("scatter_max", wide, DATA(1, 0, 9, 0, 2, 0, 9, 0, 9, 0, 6, 0));
  RUN("reduce_sum", make(F32, 2, SIZES(1, 3), DATA(0, 0, 0)), T(a), LIST(-2), INT(1));
}

/* Absent arguments are refused or do no harm; so does what the chip lacks. */
static void refusals(void) {
  tensor *x = make(F32, 1, SIZES(2), DATA(1, 2)), *i = empty(I64, 1, SIZES(2)), *out = empty(F32, 1, SIZES(2));
  uba_value none[4] = {{.kind = UBA_NONE}};
  int64_t first = find("vneg") - adapter->kernels;
  for (int64_t k = first; k < adapter->kernel_count; k++) {
    const char *name = adapter->kernels[k].name + strlen("npu_v3_");
    uba_status status = call(name, none, 4, out, strstr(name, "cum") || strstr(name, "sort") ? i : NULL);
    int made = strstr(name, "random") || strstr(name, "fill") || strstr(name, "ramp"); /* have no tensor to miss */
    if (!made && status != UBA_NOT_SUPPORTED) fail(name, "took nothing");
    checks++;
  }
  uba_value number[] = {REAL(2)}, pair[] = {T(x), T(i)}, numbers[] = {INT(1), INT(2)};
  if (call("vexp", number, 1, out, NULL) != UBA_NOT_SUPPORTED) fail("vexp", "took a number");
  if (call("vadd", pair, 2, out, NULL) != UBA_NOT_SUPPORTED) fail("vadd", "took two dtypes");
  if (call("vadd", numbers, 2, out, NULL) != UBA_NOT_SUPPORTED) fail("vadd", "took two numbers");
  if (!strstr(said, "both NULL")) fail("vadd", "the SDK's words are lost");
}

int main(int argc, char **argv) {
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
  uba_query_fn query = NULL;
  if (library) *(void **)&query = dlsym(library, "uba_query");
  adapter = query ? query(UBA_ABI_MAJOR << 16 | UBA_ABI_MINOR, &host) : NULL;
  if (!adapter) fail("load", argc > 1 ? argv[1] : "usage: npu_v3_instructions LIBRARY");
  if (adapter->open(0, &device)) fail("open", "refused");
  for (size_t d = 0; d < sizeof(all) / sizeof(all[0]); d++) every_dtype(all[d]);
  floats(F32), floats(F64), immediates(), shapes(), refusals();
  printf("instructions: %d values right\n", checks);
  return adapter->close(device) ? 1 : 0;
}
