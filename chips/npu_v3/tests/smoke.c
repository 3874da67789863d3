/* smoke.c: loads the adapter as the host does, and checks a few kernels through the C interface alone.
 *
 *   npu_v3_smoke path/to/libuba_npu_v3.so
 * Exit status 0: all right; 1: a check failed, said on stderr. Not a conformance test: it shows a chip maker how a call
 * looks from the other side, and that the SDK, the adapter and the interface fit together. */
#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "torchfl/uba.h"

static const uba_adapter *adapter;
static void *device;
static char said[512];

static void set_error(int64_t code, const char *text) {
  snprintf(said, sizeof(said), "%lld: %s", (long long)code, text);
}
static void log_line(int32_t level, const char *text) { fprintf(stderr, "[%d] %s\n", level, text); }
static const uba_host host = {UBA_HEADER(uba_host), set_error, log_line};

static void fail(const char *what) {
  fprintf(stderr, "FAILED: %s (%s)\n", what, said);
  exit(1);
}
static void expect(uba_status status, uba_status wanted, const char *what) {
  if (status != wanted) fail(what);
}

/* A dense float32 tensor on the device, `values` copied in; freed by nobody: the process ends soon. */
typedef struct tensor {
  uba_tensor view;
  int64_t sizes[4], strides[4];
  uint64_t bytes;
} tensor;

static tensor *make(int32_t rank, const int64_t *sizes, const float *values) {
  tensor *t = calloc(1, sizeof(*t));
  if (!t) fail("calloc");
  int64_t n = 1;
  for (int32_t d = rank; d-- > 0; n *= sizes[d]) t->sizes[d] = sizes[d], t->strides[d] = n;
  t->bytes = (uint64_t)n * sizeof(float);
  expect(adapter->device->alloc(device, t->bytes, &t->view.data), UBA_OK, "alloc");
  t->view.sizes = t->sizes, t->view.strides = t->strides;
  t->view.dtype = UBA_DTYPE_FLOAT32, t->view.rank = rank;
  if (values) {
    expect(adapter->device->copy(device, NULL, t->view.data, values, t->bytes, UBA_HOST_TO_DEVICE), UBA_OK, "copy in");
    expect(adapter->device->synchronize(device, NULL), UBA_OK, "synchronize");
  }
  return t;
}

static uba_status call(const char *kernel, const uba_value *args, int32_t arg_count, tensor *result) {
  uba_call c = {UBA_HEADER(uba_call), "aten::smoke", args, &result->view, arg_count, 1, NULL};
  for (int64_t i = 0; i < adapter->kernel_count; i++)
    if (!strcmp(strchr(adapter->kernels[i].name, 'v') + 3, kernel))
      return adapter->kernels[i].run(device, &c, adapter->kernels[i].tag);
  fail(kernel);
  return UBA_FAILED;
}

static void check(const char *what, const tensor *t, const float *wanted) {
  float got[64];
  expect(adapter->device->copy(device, NULL, got, t->view.data, t->bytes, UBA_DEVICE_TO_HOST), UBA_OK, "copy out");
  expect(adapter->device->synchronize(device, NULL), UBA_OK, what);
  for (uint64_t i = 0; i < t->bytes / sizeof(float); i++)
    if (!(fabsf(got[i] - wanted[i]) < 1e-5f)) {
      snprintf(said, sizeof(said), "element %d is %g, wanted %g", (int)i, (double)got[i], (double)wanted[i]);
      fail(what);
    }
  printf("%s: right\n", what);
}

#define TENSOR(t) {UBA_TENSOR, 1, {.tensor = &(t)->view}}
#define INT(n) {UBA_INT, 1, {.i = (n)}}
#define LIST(...) {UBA_INT_LIST, sizeof((int64_t[]){__VA_ARGS__}) / 8, {.ints = (int64_t[]){__VA_ARGS__}}}
#define NONE {UBA_NONE, 1, {.i = 0}}
#define SIZES(...) (int64_t[]){__VA_ARGS__}
#define DATA(...) (float[]){__VA_ARGS__}
#define RUN(kernel, result, ...)                                                                                  \
  do {                                                                                                            \
    uba_value args[] = {__VA_ARGS__};                                                                             \
    expect(call(kernel, args, (int32_t)(sizeof(args) / sizeof(args[0])), result), UBA_OK, kernel);                \
  } while (0)

int main(int argc, char **argv) {
  void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  if (!library) return fprintf(stderr, "usage: npu_v3_smoke LIBRARY (%s)\n", argc > 1 ? dlerror() : "none given"), 1;
  uba_query_fn query;
  *(void **)&query = dlsym(library, "uba_query"); /* POSIX's own idiom for a function's address */
  adapter = query ? query(UBA_ABI_MAJOR << 16 | UBA_ABI_MINOR, &host) : NULL;
  if (!adapter) fail("uba_query");
  expect(adapter->open(0, &device), UBA_OK, "open");
  uba_properties p = {.header = UBA_HEADER(uba_properties)};
  expect(adapter->device->properties(device, &p), UBA_OK, "properties");
  printf("%s, SDK %s, %d units, alignment %d\n", p.name, adapter->sdk_version, p.compute_units, (int)p.alignment);

  tensor *a = make(2, SIZES(2, 3), DATA(1, 2, 3, 4, 5, 6)), *row = make(1, SIZES(3), DATA(10, 20, 30));
  tensor *y = make(2, SIZES(2, 3), NULL), *square = make(2, SIZES(2, 2), NULL);
  RUN("add", y, TENSOR(a), TENSOR(row), INT(2)); /* broadcast, alpha */
  check("add", y, DATA(21, 42, 63, 24, 45, 66));
  RUN("rsub", y, TENSOR(a), INT(1), INT(1));
  check("rsub", y, DATA(0, -1, -2, -3, -4, -5));
  RUN("clamp", y, TENSOR(a), NONE, INT(3));
  check("clamp", y, DATA(1, 2, 3, 3, 3, 3));

  tensor *b = make(2, SIZES(3, 2), DATA(1, 0, 0, 1, 1, 1)), *bias = make(1, SIZES(2), DATA(100, 200));
  const char *paths[] = {"matmul", "matmul_tiled", "matmul_pipelined"};
  for (int i = 0; i < 3; i++) {
    RUN(paths[i], square, TENSOR(a), TENSOR(b));
    check(paths[i], square, DATA(4, 5, 10, 11));
  }
  RUN("matmul", square, TENSOR(bias), TENSOR(a), TENSOR(b), INT(1), INT(2)); /* addmm: beta 1, alpha 2 */
  check("addmm", square, DATA(108, 210, 120, 222));
  tensor *sum = make(1, SIZES(3), NULL);
  RUN("sum", sum, TENSOR(a), LIST(0), INT(0), NONE);
  check("sum", sum, DATA(5, 7, 9));
  RUN("softmax", y, TENSOR(a), INT(-1), INT(0));
  check("softmax", y, DATA(0.0900306f, 0.2447285f, 0.6652410f, 0.0900306f, 0.2447285f, 0.6652410f));

  tensor *image = make(4, SIZES(1, 1, 3, 3), DATA(1, 2, 3, 4, 5, 6, 7, 8, 9));
  tensor *weight = make(4, SIZES(1, 1, 2, 2), DATA(1, 0, 0, 1)), *out = make(4, SIZES(1, 1, 2, 2), NULL);
  RUN("conv2d", out, TENSOR(image), TENSOR(weight), NONE, LIST(1, 1), LIST(0, 0), LIST(1, 1), INT(0), LIST(0, 0),
      INT(1));
  check("conv2d", out, DATA(6, 8, 12, 14));
  uba_value stride3[] = {TENSOR(image), TENSOR(weight), NONE, LIST(3, 3), LIST(0, 0), LIST(1, 1), INT(0), LIST(0, 0),
                         INT(1)};
  expect(call("conv2d", stride3, 9, out), UBA_NOT_SUPPORTED, "a convolution of stride 3 is left to the host");
  printf("refused, as it should be: %s\n", said);
  expect(adapter->close(device), UBA_OK, "close");
  return 0;
}
