/* adapter_source.c: a complete adapter over host memory, from which every refused one is made by one define.
 *
 *   WITHOUT_<field>       a required field is left out (WITHOUT_ALL: all of them)
 *   BAD_<what>            something else is wrong; see below
 * Without a define it is a good adapter with one device and the kernels "copy_in" and "add_tag".
 */
#include <stdlib.h>
#include <string.h>

#include "torchfl/uba.h"

#ifdef WITHOUT_ALL
#define WITHOUT_NAME
#define WITHOUT_VERSION
#define WITHOUT_DEVICE_COUNT
#define WITHOUT_OPEN
#define WITHOUT_PROPERTIES
#define WITHOUT_ALLOC
#define WITHOUT_FREE
#define WITHOUT_COPY
#define WITHOUT_FILL
#define WITHOUT_SYNCHRONIZE
#endif

static const uba_host *g_host;
static int g_device;

#ifdef BAD_UNDEFINED_SYMBOL
int vendor_function_of_another_sdk(void);
int use_of_it(void) { return vendor_function_of_another_sdk(); }
#endif
#ifdef BAD_DEPENDENCY
int vendor_sdk_function(void);
int use_of_it(void) { return vendor_sdk_function(); }
#endif

static uba_status device_count(int32_t *count) {
#ifdef BAD_COUNT
  *count = -3;
  return UBA_OK;
#elif defined(BAD_COUNT_STATUS)
  (void)count;
  g_host->set_error(9, "the driver is not running");
  return UBA_FAILED;
#else
  *count = 1;
  return UBA_OK;
#endif
}

static uba_status open_device(int32_t index, void **device) {
  if (index != 0) {
    g_host->set_error(9, "no such device");
    return UBA_INVALID_VALUE;
  }
  *device = &g_device;
  return UBA_OK;
}

static uba_status close_device(void *device) {
  (void)device;
  return UBA_OK;
}

static uba_status properties(void *device, uba_properties *out) {
  (void)device;
  strcpy(out->name, "host memory");
  out->alignment = 64;
  out->host_accessible = 1;
  return UBA_OK;
}

static uba_status alloc_memory(void *device, uint64_t bytes, void **ptr) {
  (void)device;
  *ptr = aligned_alloc(64, (bytes + 63) / 64 * 64);
  return *ptr != NULL ? UBA_OK : UBA_OUT_OF_MEMORY;
}

static uba_status free_memory(void *device, void *ptr) {
  (void)device;
  free(ptr);
  return UBA_OK;
}

static uba_status copy(void *device, void *stream, void *dst, const void *src, uint64_t bytes, int32_t direction) {
  (void)device;
  (void)stream;
  (void)direction;
  memcpy(dst, src, bytes);
  return UBA_OK;
}

static uba_status fill(void *device, void *stream, void *dst, uint64_t bytes, int32_t value) {
  (void)device;
  (void)stream;
  memset(dst, value, bytes);
  return UBA_OK;
}

static uba_status synchronize(void *device, void *stream) {
  (void)device;
  (void)stream;
  return UBA_OK;
}

/* The first output becomes the first argument plus the tag, int32, contiguous. */
static uba_status add_tag(void *device, const uba_call *call, int64_t tag) {
  const uba_tensor *in = call->args[0].v.tensor;
  const int32_t *from = (const int32_t *)((const char *)in->data + in->byte_offset);
  int32_t *to = (int32_t *)((char *)call->outputs[0].data + call->outputs[0].byte_offset);
  (void)device;
  if (in->dtype != UBA_DTYPE_INT32) return UBA_NOT_SUPPORTED;
  for (int64_t i = 0; i < in->sizes[0]; ++i) to[i] = from[i] + (int32_t)tag;
  return UBA_OK;
}

static const uba_kernel kernels[] = {
    {"copy_in", add_tag, 0},
#ifdef BAD_KERNEL_TWICE
    {"copy_in", add_tag, 1},
#elif defined(BAD_KERNEL_NAME)
    {NULL, add_tag, 1},
#elif defined(BAD_KERNEL_FUNCTION)
    {"add_tag", NULL, 1},
#else
    {"add_tag", add_tag, 5},
#endif
};

#if defined(BAD_PARTIAL_EVENTS)
static uba_status event_create(void *device, void **event) {
  (void)device;
  *event = &g_device;
  return UBA_OK;
}
#endif
#if defined(BAD_PARTIAL_MAP)
static uba_status map_host(void *device, void *host, uint64_t bytes, void **ptr) {
  (void)device;
  (void)bytes;
  *ptr = host;
  return UBA_OK;
}
#endif

static uba_device_api api = {
#ifdef BAD_API_SIZE
    .header = {8, UBA_ABI_MAJOR, UBA_ABI_MINOR, 0},
#elif defined(BAD_API_HEADER)
    .header = {0, 0, 0, 0},
#elif defined(BAD_API_NEWER)
    .header = {(uint16_t)sizeof(uba_device_api), UBA_ABI_MAJOR, UBA_ABI_MINOR + 1, 0},
#else
    .header = UBA_HEADER(uba_device_api),
#endif
#ifndef WITHOUT_PROPERTIES
    .properties = properties,
#endif
#ifndef WITHOUT_ALLOC
    .alloc = alloc_memory,
#endif
#ifndef WITHOUT_FREE
    .free = free_memory,
#endif
#ifndef WITHOUT_COPY
    .copy = copy,
#endif
#ifndef WITHOUT_FILL
    .fill = fill,
#endif
#ifndef WITHOUT_SYNCHRONIZE
    .synchronize = synchronize,
#endif
#ifdef BAD_PARTIAL_EVENTS
    .event_create = event_create,
#endif
#ifdef BAD_PARTIAL_MAP
    .map_host = map_host,
#endif
};

static uba_adapter adapter = {
#ifdef BAD_MAJOR
    .header = {(uint16_t)sizeof(uba_adapter), UBA_ABI_MAJOR + 1, 0, 0},
#elif defined(BAD_MINOR)
    .header = {(uint16_t)(sizeof(uba_adapter) + 8), UBA_ABI_MAJOR, UBA_ABI_MINOR + 6, 0},
#elif defined(BAD_SIZE)
    .header = {60000, UBA_ABI_MAJOR, UBA_ABI_MINOR, 0},
#elif defined(BAD_SIZE_OLDER)
    .header = {60000, UBA_ABI_MAJOR, 0, 0},
#elif defined(BAD_SIZE_SMALL)
    .header = {16, UBA_ABI_MAJOR, 0, 0},
#elif defined(BAD_NO_HEADER)
    .header = {0, 0, 0, 0},
#else
    .header = UBA_HEADER(uba_adapter),
#endif
#ifndef WITHOUT_NAME
    .name = "good",
#endif
#ifndef WITHOUT_VERSION
    .version = "0.1",
#endif
    .sdk_version = "7.0",
#ifndef WITHOUT_DEVICE_COUNT
    .device_count = device_count,
#endif
#ifndef WITHOUT_OPEN
    .open = open_device,
#endif
    .close = close_device,
#ifndef WITHOUT_DEVICE
    .device = &api,
#endif
#ifdef BAD_KERNELS_NULL
    .kernels = NULL,
#else
    .kernels = kernels,
#endif
#ifdef BAD_KERNEL_COUNT
    .kernel_count = -2,
#else
    .kernel_count = 2,
#endif
};

#ifndef BAD_NO_QUERY
UBA_EXPORT const uba_adapter *uba_query(uint32_t host_abi, const uba_host *host) {
  (void)host_abi;
  g_host = host;
  /* Some variants leave functions without a user; that is their point. */
  (void)device_count, (void)open_device, (void)close_device, (void)properties, (void)alloc_memory, (void)free_memory;
  (void)copy, (void)fill, (void)synchronize, (void)kernels, (void)api, (void)adapter;
#ifdef BAD_NULL_QUERY
  host->set_error(42, "SDK 2.0 or newer is needed, found 1.9");
  return NULL;
#elif defined(BAD_SILENT_NULL_QUERY)
  return NULL;
#else
  return &adapter;
#endif
}
#else
const uba_adapter *an_export_of_another_name(void) { return &adapter; }
#endif
