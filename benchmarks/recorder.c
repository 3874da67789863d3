/* recorder.c: an adapter around an adapter, which notes the kernel calls that pass and can make them again.
 *
 * Contract: RECORDER_ADAPTER names the real adapter's library. Everything is handed on to it. Between recorder_start
 * and recorder_stop each call of a kernel, copy_nd, fill_nd, fill and copy on the device is also noted, with all that
 * it points to; recorder_replay makes the noted calls again in their order, waits for the device, and returns the first
 * failure. Copies from and to the host are not noted: their memory may be gone. One device, one thread, and no programs
 * (ABI 1.2): the wrapped adapter is used as one that has none. A measuring tool of benchmarks/overhead.py; what it
 * notes is never freed. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "torchfl/uba.h"

enum { KERNEL, COPY_ND, FILL_ND, FILL, COPY };
typedef struct noted {
  int what;
  const uba_kernel *kernel;
  uba_call call;
  uba_tensor tensors[2];
  uba_value value;
  void *stream, *to;
  const void *from;
  uint64_t bytes;
  int32_t number;
} noted;

static const uba_adapter *real;
static uba_adapter adapter;
static uba_device_api api;
static noted *list;
static int64_t count, capacity;
static int recording;
static void *the_device;

static void *copied(const void *from, size_t bytes) { return bytes ? memcpy(malloc(bytes), from, bytes) : NULL; }
static uba_tensor tensor_of(const uba_tensor *t) {
  uba_tensor x = *t;
  x.sizes = copied(t->sizes, sizeof(int64_t) * (size_t)t->rank);
  x.strides = copied(t->strides, sizeof(int64_t) * (size_t)t->rank);
  return x;
}
static uba_tensor *tensors_of(const uba_tensor *t, size_t n) {
  uba_tensor *x = malloc(sizeof(uba_tensor) * (n ? n : 1));
  for (size_t i = 0; i < n; i++) x[i] = t[i].dtype ? tensor_of(&t[i]) : t[i];
  return x;
}
static uba_value value_of(const uba_value *v) {
  uba_value x = *v;
  if (v->kind == UBA_TENSOR || v->kind == UBA_TENSOR_LIST) x.v.tensor = tensors_of(v->v.tensor, v->count);
  if (v->kind == UBA_INT_LIST) x.v.ints = copied(v->v.ints, sizeof(int64_t) * v->count);
  if (v->kind == UBA_DOUBLE_LIST || v->kind == UBA_COMPLEX)
    x.v.doubles = copied(v->v.doubles, sizeof(double) * (v->kind == UBA_COMPLEX ? 2 : v->count));
  if (v->kind == UBA_STRING) x.v.str = copied(v->v.str, strlen(v->v.str) + 1);
  return x;
}
static noted *note(int what, void *device, void *stream) {
  if (count == capacity) list = realloc(list, sizeof(noted) * (size_t)(capacity = capacity * 2 + 256));
  noted *n = &list[count++];
  memset(n, 0, sizeof *n);
  n->what = what, n->stream = stream, the_device = device;
  return n;
}

static uba_status run_kernel(void *device, const uba_call *call, int64_t tag) {
  const uba_kernel *kernel = &real->kernels[tag];
  uba_status status = kernel->run(device, call, kernel->tag);
  if (!recording || status != UBA_OK) return status;
  noted *n = note(KERNEL, device, call->stream);
  n->kernel = kernel, n->call = *call;
  uba_value *args = malloc(sizeof(uba_value) * (size_t)(call->arg_count ? call->arg_count : 1));
  for (int32_t i = 0; i < call->arg_count; i++) args[i] = value_of(&call->args[i]);
  n->call.args = args, n->call.outputs = tensors_of(call->outputs, (size_t)call->output_count);
  return status;
}
static uba_status copy_nd(void *device, void *stream, const uba_tensor *to, const uba_tensor *from) {
  uba_status status = real->device->copy_nd(device, stream, to, from);
  if (!recording || status != UBA_OK) return status;
  noted *n = note(COPY_ND, device, stream);
  n->tensors[0] = tensor_of(to), n->tensors[1] = tensor_of(from);
  return status;
}
static uba_status fill_nd(void *device, void *stream, const uba_tensor *to, const uba_value *value) {
  uba_status status = real->device->fill_nd(device, stream, to, value);
  if (!recording || status != UBA_OK) return status;
  noted *n = note(FILL_ND, device, stream);
  n->tensors[0] = tensor_of(to), n->value = value_of(value);
  return status;
}
static uba_status fill(void *device, void *stream, void *to, uint64_t bytes, int32_t value) {
  uba_status status = real->device->fill(device, stream, to, bytes, value);
  if (!recording || status != UBA_OK) return status;
  noted *n = note(FILL, device, stream);
  n->to = to, n->bytes = bytes, n->number = value;
  return status;
}
static uba_status copy(void *device, void *stream, void *to, const void *from, uint64_t bytes, int32_t direction) {
  uba_status status = real->device->copy(device, stream, to, from, bytes, direction);
  if (!recording || status != UBA_OK || direction != UBA_DEVICE_TO_DEVICE) return status;
  noted *n = note(COPY, device, stream);
  n->to = to, n->from = from, n->bytes = bytes;
  return status;
}

UBA_EXPORT void recorder_start(void);
UBA_EXPORT int64_t recorder_stop(void);
UBA_EXPORT int32_t recorder_replay(void);
void recorder_start(void) { count = 0, recording = 1; }
int64_t recorder_stop(void) { return recording = 0, count; }
int32_t recorder_replay(void) {
  uba_status status = UBA_OK;
  for (int64_t i = 0; i < count && status == UBA_OK; i++) {
    noted *n = &list[i];
    switch (n->what) {
      case KERNEL:
        status = n->kernel->run(the_device, &n->call, n->kernel->tag);
        break;
      case COPY_ND:
        status = real->device->copy_nd(the_device, n->stream, &n->tensors[0], &n->tensors[1]);
        break;
      case FILL_ND:
        status = real->device->fill_nd(the_device, n->stream, &n->tensors[0], &n->value);
        break;
      case FILL:
        status = real->device->fill(the_device, n->stream, n->to, n->bytes, n->number);
        break;
      default:
        status = real->device->copy(the_device, n->stream, n->to, n->from, n->bytes, UBA_DEVICE_TO_DEVICE);
    }
  }
  return status ? status : count ? real->device->synchronize(the_device, list[0].stream) : UBA_OK;
}

const uba_adapter *uba_query(uint32_t host_abi, const uba_host *host) {
  const char *path = getenv("RECORDER_ADAPTER");
  void *library = path ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  void *query = library ? dlsym(library, "uba_query") : NULL;
  if (!query) return host->set_error(0, path ? dlerror() : "RECORDER_ADAPTER names no adapter"), NULL;
  uba_query_fn ask;
  memcpy(&ask, &query, sizeof ask);
  real = ask(host_abi, host);
  if (!real) return NULL;
  memcpy(&adapter, real, real->header.struct_size < sizeof adapter ? real->header.struct_size : sizeof adapter);
  memcpy(&api, real->device,
         real->device->header.struct_size < sizeof api ? real->device->header.struct_size : sizeof api);
  if (api.copy_nd) api.copy_nd = copy_nd;
  if (api.fill_nd) api.fill_nd = fill_nd;
  api.fill = fill, api.copy = copy;
  if (UBA_HAS(real->device, uba_device_api, program_release))
    api.program_compile = NULL, api.program_run = NULL, api.program_release = NULL;
  uba_kernel *kernels = malloc(sizeof(uba_kernel) * (size_t)(real->kernel_count ? real->kernel_count : 1));
  for (int64_t i = 0; i < real->kernel_count; i++)
    kernels[i].name = real->kernels[i].name, kernels[i].run = run_kernel, kernels[i].tag = i;
  adapter.kernels = kernels, adapter.device = &api;
  return &adapter;
}
