/* old_1_0.c: an adapter as it was written and compiled for version 1.0 of the ABI. It must load and run for the life of
 * major 1. The bytes after its table are poison: a host that reads past `struct_size` calls them.
 */
#include <stdlib.h>
#include <string.h>

#include "uba_1_0.h"

static int g_device;

static uba_status device_count(int32_t *count) {
  *count = 1;
  return UBA_OK;
}
static uba_status open_device(int32_t index, void **device) {
  *device = &g_device;
  return index == 0 ? UBA_OK : UBA_INVALID_VALUE;
}
static uba_status properties(void *device, uba_properties *out) {
  (void)device;
  strcpy(out->name, "old");
  return UBA_OK;
}
static uba_status alloc_memory(void *device, uint64_t bytes, void **ptr) {
  (void)device;
  *ptr = malloc(bytes);
  return *ptr != NULL ? UBA_OK : UBA_OUT_OF_MEMORY;
}
static uba_status free_memory(void *device, void *ptr) {
  (void)device;
  free(ptr);
  return UBA_OK;
}
static uba_status copy(void *device, void *stream, void *dst, const void *src, uint64_t bytes, int32_t direction) {
  (void)device, (void)stream, (void)direction;
  memcpy(dst, src, bytes);
  return UBA_OK;
}
static uba_status fill(void *device, void *stream, void *dst, uint64_t bytes, int32_t value) {
  (void)device, (void)stream;
  memset(dst, value, bytes);
  return UBA_OK;
}
static uba_status synchronize(void *device, void *stream) {
  (void)device, (void)stream;
  return UBA_OK;
}
static uba_status negate(void *device, const uba_call *call, int64_t tag) {
  const uba_tensor *in = call->args[0].v.tensor;
  (void)device, (void)tag;
  for (int64_t i = 0; i < in->sizes[0]; ++i) ((float *)call->outputs[0].data)[i] = -((const float *)in->data)[i];
  return UBA_OK;
}

static const uba_kernel kernels[] = {{"negate", negate, 0}};
static struct {
  uba_device_api api;
  uintptr_t poison[8];
} table = {.poison = {1, 2, 3, 4, 5, 6, 7, 8}};
static uba_adapter adapter;

UBA_EXPORT const uba_adapter *uba_query(uint32_t host_abi, const uba_host *host) {
  const uba_device_api api = {.header = UBA_HEADER(uba_device_api),
                              .properties = properties,
                              .alloc = alloc_memory,
                              .free = free_memory,
                              .copy = copy,
                              .fill = fill,
                              .synchronize = synchronize};
  uba_adapter filled = {UBA_HEADER(uba_adapter), "old", "1", 0, device_count, open_device, 0, &table.api, kernels, 1};
  if (host_abi >> 16 != UBA_ABI_MAJOR || !UBA_HAS(host, uba_host, set_error)) return 0;
  table.api = api;
  adapter = filled;
  return &adapter;
}
