/* npu-smi: shows the NPUs of this machine.
 *
 *   npu-smi info            a table
 *   npu-smi info --json     the same facts for programs
 *   npu-smi --version
 *
 * Exit code: 0 devices were shown, 1 there is no device or one does not answer, 2 the command line is wrong. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "npu_v3_sdk.h"

typedef struct facts {
  npu_props_t props;
  uint64_t free_bytes, total_bytes;
  double utilization, watts, celsius, busy_seconds;
} facts_t;

static int usage(FILE *to) {
  fprintf(to, "usage: npu-smi info [--json]\n       npu-smi --version\n");
  return to == stdout ? 0 : 2;
}

static npu_status_t read_facts(int32_t index, facts_t *f) {
  npu_device_t device = NULL;
  npu_status_t status = npu_device_open(index, &device);
  if (status) return status;
  status = npu_device_properties(device, &f->props);
  if (!status) status = npu_mem_info(device, &f->free_bytes, &f->total_bytes);
  if (!status) status = npu_device_telemetry(device, &f->utilization, &f->watts, &f->celsius, &f->busy_seconds);
  npu_device_close(device);
  return status;
}

static const char *rule =
    "+-----+----------+--------------------+---------------------+----------+--------+---------+------+\n";

static void print_row(int32_t index, const facts_t *f) {
  const uint64_t mib = 1024 * 1024;
  printf("| %3d | %-8s | %-18s | %6" PRIu64 " / %6" PRIu64 " MiB | %4d MHz | %4.1f C | %5.1f W | %3.0f%% |\n", index,
         f->props.name, f->props.serial, (f->total_bytes - f->free_bytes) / mib, f->total_bytes / mib,
         f->props.clock_mhz, f->celsius, f->watts, 100 * f->utilization);
}

static void print_json(int32_t index, const facts_t *f) {
  printf("%s\n    {\"index\": %d, \"name\": \"%s\", \"serial\": \"%s\", \"memory_total_bytes\": %" PRIu64
         ", \"memory_used_bytes\": %" PRIu64 ", \"alignment_bytes\": %" PRIu64 ", \"on_chip_cache_bytes\": %" PRIu64
         ", \"max_rank\": %d, \"fp16_units\": %d, \"int8_units\": %d, \"clock_mhz\": %d, \"temperature_c\": %.1f"
         ", \"power_w\": %.1f, \"utilization\": %.3f}",
         index ? "," : "", index, f->props.name, f->props.serial, f->total_bytes, f->total_bytes - f->free_bytes,
         f->props.alignment, f->props.on_chip_cache_bytes, f->props.max_rank, f->props.fp16_units, f->props.int8_units,
         f->props.clock_mhz, f->celsius, f->watts, f->utilization);
}

int main(int argc, char **argv) {
  if (argc == 2 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h"))) return usage(stdout);
  if (argc == 2 && !strcmp(argv[1], "--version")) {
    printf("npu-smi, SDK %s\n", npu_sdk_version());
    return 0;
  }
  int json = argc == 3 && !strcmp(argv[2], "--json");
  if (argc < 2 || argc > 3 || strcmp(argv[1], "info") || (argc == 3 && !json)) return usage(stderr);

  int32_t count = 0;
  if (npu_device_count(&count) != NPU_STATUS_SUCCESS || count == 0) {
    if (json) printf("{\"sdk_version\": \"%s\", \"devices\": []}\n", npu_sdk_version());
    fprintf(stderr, "npu-smi: no NPU found\n");
    return 1;
  }
  if (json) {
    printf("{\"sdk_version\": \"%s\", \"devices\": [", npu_sdk_version());
  } else {
    printf("NPU-SMI                                                                             SDK %s\n%s",
           npu_sdk_version(), rule);
    printf("| NPU | Name     | Serial             | Memory              | Clock    | Temp   | Power   | Util |\n%s",
           rule);
  }
  int bad = 0;
  for (int32_t i = 0; i < count; i++) {
    facts_t f;
    if (read_facts(i, &f) != NPU_STATUS_SUCCESS) {
      fprintf(stderr, "npu-smi: device %d: %s\n", i, npu_last_error_text());
      bad = 1;
    } else if (json) {
      print_json(i, &f);
    } else {
      print_row(i, &f);
    }
  }
  printf("%s", json ? "\n  ]\n}\n" : rule);
  return bad;
}
