/* layout.c: freezes the layout of every struct of the C ABI and the value of every constant.
 *
 * A failure here means that adapters in the field would break: append fields at a struct's end and raise the minor, or
 * raise the major; never change these numbers. Compiled as pedantic C99, as C++ (layout.cpp), and against the header
 * of version 1.0 (UBA_TEST_1_0), which proves that later minors are 1.0 with fields appended. Compiling is the test.
 */
#ifdef UBA_TEST_1_0
#include "uba_1_0.h"
#else
#include "torchfl/uba.h"
#endif

#ifdef __cplusplus
#define REQUIRE(name, condition) static_assert(condition, #name)
#else /* C99 has no _Static_assert: an array of negative size does not compile */
#define REQUIRE(name, condition) typedef char require_##name[(condition) ? 1 : -1]
#endif
#define SIZE(type, bytes) REQUIRE(size_of_##type, sizeof(type) == (bytes))
#define FIELD(type, member, offset, bytes) \
  REQUIRE(type##_##member, offsetof(type, member) == (offset) && sizeof(((type *)0)->member) == (bytes))
#define CONSTANT(name, value) REQUIRE(value_of_##name, (name) == (value))

CONSTANT(UBA_ABI_MAJOR, 1);
#ifdef UBA_TEST_1_0
CONSTANT(UBA_ABI_MINOR, 0);
#else
CONSTANT(UBA_ABI_MINOR, 3);
#endif

CONSTANT(UBA_OK, 0);
CONSTANT(UBA_NOT_SUPPORTED, 1);
CONSTANT(UBA_OUT_OF_MEMORY, 2);
CONSTANT(UBA_INVALID_VALUE, 3);
CONSTANT(UBA_FAILED, 4);
CONSTANT(UBA_DEVICE_LOST, 5);
CONSTANT(UBA_NOT_READY, 6);
CONSTANT(UBA_DTYPE_FLOAT16, 1);
CONSTANT(UBA_DTYPE_BFLOAT16, 2);
CONSTANT(UBA_DTYPE_FLOAT32, 3);
CONSTANT(UBA_DTYPE_FLOAT64, 4);
CONSTANT(UBA_DTYPE_INT8, 5);
CONSTANT(UBA_DTYPE_UINT8, 6);
CONSTANT(UBA_DTYPE_INT16, 7);
CONSTANT(UBA_DTYPE_INT32, 8);
CONSTANT(UBA_DTYPE_INT64, 9);
CONSTANT(UBA_DTYPE_BOOL, 10);
CONSTANT(UBA_DTYPE_COMPLEX64, 11);
CONSTANT(UBA_DTYPE_COMPLEX128, 12);
CONSTANT(UBA_DTYPE_FLOAT8_E4M3FN, 13);
CONSTANT(UBA_DTYPE_FLOAT8_E5M2, 14);
CONSTANT(UBA_DTYPE_UINT16, 15);
CONSTANT(UBA_DTYPE_UINT32, 16);
CONSTANT(UBA_DTYPE_UINT64, 17);
CONSTANT(UBA_DTYPE_COMPLEX32, 18);
CONSTANT(UBA_NONE, 0);
CONSTANT(UBA_TENSOR, 1);
CONSTANT(UBA_TENSOR_LIST, 2);
CONSTANT(UBA_INT, 3);
CONSTANT(UBA_DOUBLE, 4);
CONSTANT(UBA_INT_LIST, 5);
CONSTANT(UBA_DOUBLE_LIST, 6);
CONSTANT(UBA_STRING, 7);
CONSTANT(UBA_COMPLEX, 8);
CONSTANT(UBA_HOST_TO_DEVICE, 1);
CONSTANT(UBA_DEVICE_TO_HOST, 2);
CONSTANT(UBA_DEVICE_TO_DEVICE, 3);

/* Structs: sizes, and offset and size of each field, on machines with 64-bit pointers. */
#if UINTPTR_MAX == 0xffffffffffffffffu

SIZE(uba_header, 8);
FIELD(uba_header, struct_size, 0, 2);
FIELD(uba_header, major, 2, 2);
FIELD(uba_header, minor, 4, 2);
FIELD(uba_header, reserved, 6, 2);

SIZE(uba_tensor, 40);
FIELD(uba_tensor, data, 0, 8);
FIELD(uba_tensor, byte_offset, 8, 8);
FIELD(uba_tensor, sizes, 16, 8);
FIELD(uba_tensor, strides, 24, 8);
FIELD(uba_tensor, dtype, 32, 4);
FIELD(uba_tensor, rank, 36, 4);

SIZE(uba_value, 16);
FIELD(uba_value, kind, 0, 4);
FIELD(uba_value, count, 4, 4);
FIELD(uba_value, v, 8, 8);

SIZE(uba_call, 48);
FIELD(uba_call, header, 0, 8);
FIELD(uba_call, op, 8, 8);
FIELD(uba_call, args, 16, 8);
FIELD(uba_call, outputs, 24, 8);
FIELD(uba_call, arg_count, 32, 4);
FIELD(uba_call, output_count, 36, 4);
FIELD(uba_call, stream, 40, 8);

SIZE(uba_kernel, 24);
FIELD(uba_kernel, name, 0, 8);
FIELD(uba_kernel, run, 8, 8);
FIELD(uba_kernel, tag, 16, 8);

#ifdef UBA_TEST_1_0
SIZE(uba_properties, 176);
#else
SIZE(uba_properties, 200);
FIELD(uba_properties, dtypes, 176, 8);
FIELD(uba_properties, max_threads, 184, 4);
FIELD(uba_properties, reserved, 188, 4);
FIELD(uba_properties, product_dtypes, 192, 8);
#endif
FIELD(uba_properties, header, 0, 8);
FIELD(uba_properties, name, 8, 64);
FIELD(uba_properties, serial, 72, 64);
FIELD(uba_properties, total_memory, 136, 8);
FIELD(uba_properties, alignment, 144, 8);
FIELD(uba_properties, max_allocation, 152, 8);
FIELD(uba_properties, max_rank, 160, 4);
FIELD(uba_properties, compute_units, 164, 4);
FIELD(uba_properties, clock_mhz, 168, 4);
FIELD(uba_properties, host_accessible, 172, 4);

SIZE(uba_telemetry, 40);
FIELD(uba_telemetry, header, 0, 8);
FIELD(uba_telemetry, utilization, 8, 8);
FIELD(uba_telemetry, power, 16, 8);
FIELD(uba_telemetry, temperature, 24, 8);
FIELD(uba_telemetry, busy_time, 32, 8);

#ifdef UBA_TEST_1_0
SIZE(uba_device_api, 176);
#else
SIZE(uba_device_api, 216);
#endif
FIELD(uba_device_api, header, 0, 8);
FIELD(uba_device_api, properties, 8, 8);
FIELD(uba_device_api, alloc, 16, 8);
FIELD(uba_device_api, free, 24, 8);
FIELD(uba_device_api, copy, 32, 8);
FIELD(uba_device_api, fill, 40, 8);
FIELD(uba_device_api, synchronize, 48, 8);
FIELD(uba_device_api, copy_nd, 56, 8);
FIELD(uba_device_api, fill_nd, 64, 8);
FIELD(uba_device_api, stream_create, 72, 8);
FIELD(uba_device_api, stream_destroy, 80, 8);
FIELD(uba_device_api, stream_query, 88, 8);
FIELD(uba_device_api, event_create, 96, 8);
FIELD(uba_device_api, event_destroy, 104, 8);
FIELD(uba_device_api, event_record, 112, 8);
FIELD(uba_device_api, event_wait, 120, 8);
FIELD(uba_device_api, event_query, 128, 8);
FIELD(uba_device_api, event_synchronize, 136, 8);
FIELD(uba_device_api, event_elapsed, 144, 8);
FIELD(uba_device_api, map_host, 152, 8);
FIELD(uba_device_api, unmap_host, 160, 8);
FIELD(uba_device_api, peer_copy, 168, 8);
#ifndef UBA_TEST_1_0 /* since 1.1 */
FIELD(uba_device_api, memory_info, 176, 8);
FIELD(uba_device_api, telemetry, 184, 8);
/* since 1.2 */
FIELD(uba_device_api, program_compile, 192, 8);
FIELD(uba_device_api, program_run, 200, 8);
FIELD(uba_device_api, program_release, 208, 8);

CONSTANT(UBA_NUMBER, 9);
SIZE(uba_step, 16);
FIELD(uba_step, kernel, 0, 8);
FIELD(uba_step, call, 8, 8);
SIZE(uba_program, 56);
FIELD(uba_program, header, 0, 8);
FIELD(uba_program, op, 8, 8);
FIELD(uba_program, steps, 16, 8);
FIELD(uba_program, step_count, 24, 8);
FIELD(uba_program, block_count, 32, 4);
FIELD(uba_program, number_count, 36, 4);
FIELD(uba_program, places, 40, 8);
FIELD(uba_program, dead, 48, 8);
SIZE(uba_run, 32);
FIELD(uba_run, header, 0, 8);
FIELD(uba_run, stream, 8, 8);
FIELD(uba_run, blocks, 16, 8);
FIELD(uba_run, numbers, 24, 8);
#endif

SIZE(uba_host, 24);
FIELD(uba_host, header, 0, 8);
FIELD(uba_host, set_error, 8, 8);
FIELD(uba_host, log, 16, 8);

SIZE(uba_adapter, 80);
FIELD(uba_adapter, header, 0, 8);
FIELD(uba_adapter, name, 8, 8);
FIELD(uba_adapter, version, 16, 8);
FIELD(uba_adapter, sdk_version, 24, 8);
FIELD(uba_adapter, device_count, 32, 8);
FIELD(uba_adapter, open, 40, 8);
FIELD(uba_adapter, close, 48, 8);
FIELD(uba_adapter, device, 56, 8);
FIELD(uba_adapter, kernels, 64, 8);
FIELD(uba_adapter, kernel_count, 72, 8);

#endif

/* The macros, used the way adapters use them. */
uba_status layout_use_of_macros(const uba_device_api *api) {
  static const uba_host host = {UBA_HEADER(uba_host), 0, 0};
  if (host.header.struct_size != sizeof(uba_host) || host.header.major != UBA_ABI_MAJOR) return UBA_FAILED;
  return UBA_HAS(api, uba_device_api, synchronize) ? UBA_OK : UBA_NOT_SUPPORTED;
}
