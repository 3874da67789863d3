/* uba_null.c: a chip that has every kernel and computes nothing.
 *
 * Contract: every kernel succeeds at once and leaves its results as the memory was; copies of plain bytes are real. What
 * is measured with it is the host, not a chip. With NULL_RECORD=FILE in the environment each kernel call is a line there:
 * kernel, operator, then dtype and sizes of each tensor, results after "->"; a program is one line. Memory is the host's own. The names of
 * the kernels are those of the descriptor's rows, which the build puts into null_names.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "torchfl/uba.h"

static const char names[] = /* separated by single spaces */
#include "null_names.h"
    ;
static const uba_host *host;
static FILE *record;
static uba_kernel kernels[640];
static char kernel_names[sizeof(names) + 640 * sizeof("null_")];

static void tell(const uba_tensor *t) {
  for (int32_t d = (fprintf(record, " %d[", t->dtype), 0); d < t->rank; d++)
    fprintf(record, d ? ",%lld" : "%lld", (long long)t->sizes[d]);
  fputc(']', record);
}
static uba_status run(void *device, const uba_call *call, int64_t tag) {
  if (!record) return UBA_OK;
  fprintf(record, "%s %s", kernels[tag].name, call->op);
  for (int32_t i = 0; i < call->arg_count; i++)
    for (uint32_t k = 0; (call->args[i].kind == UBA_TENSOR || call->args[i].kind == UBA_TENSOR_LIST) && k < call->args[i].count; k++)
      tell(&call->args[i].v.tensor[k]);
  fputs(" ->", record);
  for (int32_t i = 0; i < call->output_count; i++) tell(&call->outputs[i]);
  return (void)device, fputc('\n', record), fflush(record), UBA_OK;
}

static uba_status properties(void *d, uba_properties *p) {
  return strcpy(p->name, "Null"), p->alignment = 64, p->host_accessible = 1, (void)d, UBA_OK;
}
static uba_status alloc(void *d, uint64_t bytes, void **p) {
  return (void)d, (*p = aligned_alloc(64, (bytes + 63) / 64 * 64)) ? UBA_OK : UBA_OUT_OF_MEMORY;
}
static uba_status release(void *d, void *p) { return (void)d, free(p), UBA_OK; }
static uba_status copy(void *d, void *s, void *to, const void *from, uint64_t bytes, int32_t direction) {
  return (void)d, (void)s, (void)direction, memmove(to, from, bytes), UBA_OK;
}
static uba_status fill(void *d, void *s, void *p, uint64_t bytes, int32_t value) {
  return (void)d, (void)s, memset(p, value, bytes), UBA_OK;
}
static uba_status synchronize(void *d, void *s) { return (void)d, (void)s, UBA_OK; }
static uba_status copy_nd(void *d, void *s, const uba_tensor *a, const uba_tensor *b) { return (void)d, (void)s, (void)a, (void)b, UBA_OK; }
static uba_status fill_nd(void *d, void *s, const uba_tensor *a, const uba_value *v) { return (void)d, (void)s, (void)a, (void)v, UBA_OK; }
/* Programs are taken whole, whatever they hold: one line for each run. */
static uba_status program_compile(void *d, const uba_program *program, void **compiled) {
  size_t room = strlen(program->op) + 32;
  if (!(*compiled = malloc(room))) return UBA_OUT_OF_MEMORY;
  return snprintf(*compiled, room, "%s %lld steps", program->op, (long long)program->step_count), (void)d, UBA_OK;
}
static uba_status program_run(void *d, void *compiled, const uba_run *r) {
  if (record) fprintf(record, "program %s\n", (char *)compiled), fflush(record);
  return (void)d, (void)r, UBA_OK;
}
static uba_status program_release(void *d, void *compiled) { return (void)d, free(compiled), UBA_OK; }
static const uba_device_api device_api = {UBA_HEADER(uba_device_api), properties, alloc, release, copy, fill, synchronize,
                                          .copy_nd = copy_nd, .fill_nd = fill_nd, .program_compile = program_compile,
                                          .program_run = program_run, .program_release = program_release};

static uba_status device_count(int32_t *count) { return *count = 1, UBA_OK; }
static uba_status device_open(int32_t index, void **device) {
  const char *path = getenv("NULL_RECORD");
  if (path && *path && !record && !(record = fopen(path, "w"))) return host->set_error(index, "NULL_RECORD: cannot write"), UBA_FAILED;
  return *device = kernels, UBA_OK;
}
static uba_adapter adapter = {UBA_HEADER(uba_adapter), "null", "1.0.0", NULL, device_count, device_open, NULL, &device_api, kernels, 0};

const uba_adapter *uba_query(uint32_t host_abi, const uba_host *the_host) {
  char *to = kernel_names;
  host = the_host;
  for (const char *from = adapter.kernel_count ? "" : names; *from; from += strcspn(from, " ") + 1) {
    kernels[adapter.kernel_count] = (uba_kernel){to, run, adapter.kernel_count};
    to += sprintf(to, "null_%.*s", (int)strcspn(from, " "), from) + 1, adapter.kernel_count++;
  }
  return (void)host_abi, &adapter;
}
