/* torchfl/uba.h: the Unified Backend Adapter interface, the only header a chip's adapter needs.
 *
 * Contract
 *   - C99. The adapter never sees PyTorch; one adapter binary serves every PyTorch version.
 *   - An adapter is a shared library that exports ONE symbol, `uba_query`. It returns a table of function
 *     pointers. Functions marked [required] must be set, or the library is refused by name; every other
 *     pointer may be NULL and then gets the host's default.
 *   - Version: UBA_ABI_MAJOR changes when a layout changes; UBA_ABI_MINOR grows when fields are appended. The
 *     host serves every older minor of its major (it reads no field beyond `header.struct_size`) and refuses a
 *     newer one. Never compare versions yourself: fill `UBA_HEADER(type)` and you are done.
 *   - Structs that are passed by pointer start with a header and may grow at their end. Structs that are
 *     elements of arrays (uba_value, uba_tensor, uba_kernel) are frozen for the life of a major version.
 *   - Only fixed-width integers, doubles and pointers: no bool, enum, bit-field or conditional member.
 *   - Strings are UTF-8, NUL-terminated, and live as long as the library unless said otherwise.
 *   - Functions may be called from any thread, and by several at once. Threads of the user that share a stream call on
 *     it concurrently too: what an adapter keeps of a stream, its calls use by turns. The host holds no lock for it.
 *   - A function reports failure by its status, after `host->set_error(sdk_code, text)` has told what the SDK
 *     said. Only UBA_NOT_SUPPORTED means "try the next path"; every other failure reaches the user.
 */
#ifndef TORCHFL_UBA_H
#define TORCHFL_UBA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define UBA_ABI_MAJOR 1
#define UBA_ABI_MINOR 3

/* ------------------------------------------------------------------------------------------ header */

/* First member of every struct that is passed by pointer. The one who fills the struct fills the header. */
typedef struct uba_header {
  uint16_t struct_size; /* sizeof the struct as the filler compiled it */
  uint16_t major;       /* UBA_ABI_MAJOR of the filler */
  uint16_t minor;       /* UBA_ABI_MINOR of the filler */
  uint16_t reserved;    /* 0 */
} uba_header;

/* Initialiser for the header of struct `type`. */
#define UBA_HEADER(type) {(uint16_t)sizeof(type), UBA_ABI_MAJOR, UBA_ABI_MINOR, 0}

/* Whether `ptr->member` is physically there, as its filler compiled it. Ask before you read an appended field. */
#define UBA_HAS(ptr, type, member) ((ptr)->header.struct_size >= offsetof(type, member) + sizeof(((type *)0)->member))

/* ------------------------------------------------------------------------------------------ status */

typedef int32_t uba_status;
#define UBA_OK 0
#define UBA_NOT_SUPPORTED 1 /* this call is not for this kernel: the host takes the next path */
#define UBA_OUT_OF_MEMORY 2 /* the host frees what it caches and tries once more */
#define UBA_INVALID_VALUE 3 /* the caller's fault: an argument the SDK refuses */
#define UBA_FAILED 4        /* this operation failed; the device goes on */
#define UBA_DEVICE_LOST 5   /* hung, reset or gone: the host poisons this device and only this one */
#define UBA_NOT_READY 6     /* from the query functions: work is still under way */

/* ------------------------------------------------------------------------------------------ dtypes */

#define UBA_DTYPE_FLOAT16 1
#define UBA_DTYPE_BFLOAT16 2
#define UBA_DTYPE_FLOAT32 3
#define UBA_DTYPE_FLOAT64 4
#define UBA_DTYPE_INT8 5
#define UBA_DTYPE_UINT8 6
#define UBA_DTYPE_INT16 7
#define UBA_DTYPE_INT32 8
#define UBA_DTYPE_INT64 9
#define UBA_DTYPE_BOOL 10 /* one byte, 0 or 1 */
#define UBA_DTYPE_COMPLEX64 11
#define UBA_DTYPE_COMPLEX128 12
#define UBA_DTYPE_FLOAT8_E4M3FN 13
#define UBA_DTYPE_FLOAT8_E5M2 14
#define UBA_DTYPE_UINT16 15
#define UBA_DTYPE_UINT32 16
#define UBA_DTYPE_UINT64 17
#define UBA_DTYPE_COMPLEX32 18

/* ------------------------------------------------------------------------------------------ values */

/* A borrowed view of a tensor in device memory, valid during the call only: copy what you keep.
 * The first element is at `(char *)data + byte_offset`; in a kernel call that address is a multiple of the
 * alignment that the descriptor demands. Strides are in elements, may be 0 (a broadcast dimension) and are
 * never negative. Frozen for major 1. */
typedef struct uba_tensor {
  void *data;             /* device address as `alloc` returned it; NULL when the tensor has no element */
  uint64_t byte_offset;   /* from `data` to the first element */
  const int64_t *sizes;   /* `rank` entries */
  const int64_t *strides; /* `rank` entries */
  int32_t dtype;          /* UBA_DTYPE_* */
  int32_t rank;           /* 0 for a scalar tensor: one element */
} uba_tensor;

#define UBA_NONE 0        /* an optional argument that was not given */
#define UBA_TENSOR 1      /* tensor: `count` is 1 */
#define UBA_TENSOR_LIST 2 /* tensors: `count` of them; an absent one has dtype 0 */
#define UBA_INT 3         /* i: integer, bool (0 or 1), dtype (UBA_DTYPE_*), memory format */
#define UBA_DOUBLE 4      /* d: floating point scalar */
#define UBA_INT_LIST 5    /* ints: `count` of them (a bool list too) */
#define UBA_DOUBLE_LIST 6 /* doubles: `count` of them */
#define UBA_STRING 7      /* str */
#define UBA_COMPLEX 8     /* doubles: two of them, real and imaginary part */

/* One argument. Where the ATen schema says Tensor, a number or a 0-dim CPU tensor that takes part in a device
 * operation (`x * 2`) comes as UBA_INT or UBA_DOUBLE. Frozen for major 1. */
typedef struct uba_value {
  uint32_t kind;  /* UBA_NONE ... */
  uint32_t count; /* elements of a list; else 1 */
  union {
    int64_t i;
    double d;
    const uba_tensor *tensor;
    const int64_t *ints;
    const double *doubles;
    const char *str;
  } v;
} uba_value;

/* One operator call. The arguments stand in the order of the ATen schema of the functional form, whatever form
 * (functional, in-place, out=) the user called; the host has allocated the outputs. An output may be the very
 * same memory as an argument, with equal strides, when the operation is elementwise. */
typedef struct uba_call {
  uba_header header;
  const char *op;        /* "aten::add": the operator without overload */
  const uba_value *args; /* `arg_count` entries */
  uba_tensor *outputs;   /* `output_count` entries, in the order of the schema's returns */
  int32_t arg_count;
  int32_t output_count;
  void *stream; /* where to enqueue; NULL is the device's default stream */
} uba_call;

/* Runs one kernel: enqueues and returns. `tag` is the kernel's own constant from its table entry. Whatever can
 * be refused is refused here, before anything is enqueued. */
typedef uba_status (*uba_kernel_fn)(void *device, const uba_call *call, int64_t tag);

/* An entry of the kernel table: the descriptor refers to it by name. Frozen for major 1. */
typedef struct uba_kernel {
  const char *name;
  uba_kernel_fn run;
  int64_t tag; /* passed to `run`, so that one function can serve a family of kernels */
} uba_kernel;

/* ------------------------------------------------------------------------------------------ device */

#define UBA_HOST_TO_DEVICE 1
#define UBA_DEVICE_TO_HOST 2
#define UBA_DEVICE_TO_DEVICE 3

/* What the device is. The host fills the header; the adapter fills what it knows and leaves the rest 0. What of it
 * contradicts the descriptor, which was written for every device of the chip, the host's log says at load. */
typedef struct uba_properties {
  uba_header header;
  char name[64];           /* out: as the SDK calls it */
  char serial[64];         /* out: tells one device from its twin; may be empty */
  uint64_t total_memory;   /* out: bytes; 0 = unknown */
  uint64_t alignment;      /* out: bytes, what the SDK demands of every address; 0 = none */
  uint64_t max_allocation; /* out: bytes; 0 = total_memory */
  int32_t max_rank;        /* out: of any tensor in a kernel call; 0 = no limit */
  int32_t compute_units;   /* out: 0 = unknown */
  int32_t clock_mhz;       /* out: 0 = unknown */
  int32_t host_accessible; /* out: 1 = the CPU can read and write device memory at the same address */

  /* Since 1.3 */
  uint64_t dtypes;     /* out: what it computes in, bit 1 << UBA_DTYPE_* each; 0 = what the descriptor says */
  int32_t max_threads; /* out: work-items of one work-group; 0 = unknown */
  int32_t reserved;
  uint64_t product_dtypes; /* out: of what operands products and convolutions are fast, bits as in dtypes; 0 = unknown.
                            * The host follows `compute_as` of the descriptor only to one of them. */
} uba_properties;

/* Programs, since 1.2: a whole operator in one command, where the chip can. */

#define UBA_NUMBER 9 /* in a program only: a number that is known when it runs; i is its index in uba_run.numbers */

/* One step of a program. In its tensors `data` is the number of a memory block, as an integer, whose address uba_run
 * gives; in its call `stream` is NULL. Frozen for major 1. */
typedef struct uba_step {
  const uba_kernel *kernel; /* as in the adapter's table; NULL: copy_nd of args[0] to outputs[0] */
  const uba_call *call;
} uba_step;

/* Steps that stand for an operator, or follow each other in one. Valid during program_compile: copy what you keep. */
typedef struct uba_program {
  uba_header header;
  const char *op;        /* "aten::gelu": the operator */
  const uba_step *steps; /* `step_count` of them; each may read what an earlier one wrote */
  int64_t step_count;
  int32_t block_count;  /* memory blocks that the steps name, from 0 */
  int32_t number_count; /* of UBA_NUMBER */

  /* Since 1.3, `block_count` each */
  const int64_t *places; /* bytes into memory that blocks share which are not needed together; -1: alone */
  const uint8_t *dead;   /* 1 = its contents are of no use after these steps */
} uba_program;

/* One run of a compiled program. */
typedef struct uba_run {
  uba_header header;
  void *stream;
  void *const *blocks;      /* addresses; where a tensor of the program starts there (byte_offset 0), an aligned one */
  const uba_value *numbers; /* UBA_INT or UBA_DOUBLE */
} uba_run;

/* The current state of a device, for `torchfl devices`. Negative = unknown. */
typedef struct uba_telemetry {
  uba_header header;
  double utilization; /* out: 0..1 */
  double power;       /* out: watts */
  double temperature; /* out: degrees Celsius */
  double busy_time;   /* out: seconds of device time spent since `open` */
} uba_telemetry;

/* Functions on an open device. `stream` NULL is the default stream. Work of one stream runs in order. */
typedef struct uba_device_api {
  uba_header header;

  /* [required] */
  uba_status (*properties)(void *device, uba_properties *properties /* out */);
  /* [required] At least `bytes` bytes, aligned as the descriptor says. bytes > 0. */
  uba_status (*alloc)(void *device, uint64_t bytes, void **ptr /* out */);
  /* [required] The host has made sure that no work uses it any more. */
  uba_status (*free)(void *device, void *ptr);
  /* [required] Enqueues a copy of plain bytes, addresses of any alignment. Host memory stays valid and unchanged
   * until the stream has passed; both sides of UBA_DEVICE_TO_DEVICE are on this device. */
  uba_status (*copy)(void *device, void *stream, void *dst, const void *src, uint64_t bytes, int32_t direction);
  /* [required] Enqueues setting bytes. */
  uba_status (*fill)(void *device, void *stream, void *dst, uint64_t bytes, int32_t value);
  /* [required] Waits for one stream, and returns the first failure of work enqueued there since the last call. */
  uba_status (*synchronize)(void *device, void *stream);

  /* Enqueues an n-dimensional copy with any strides, offsets and, where the chip can, a cast of dtype (as C
   * converts). UBA_NOT_SUPPORTED for a pair of dtypes that it cannot. NULL: the host copies through its memory. */
  uba_status (*copy_nd)(void *device, void *stream, const uba_tensor *dst, const uba_tensor *src);
  /* Enqueues setting every element of a strided tensor to a UBA_INT or UBA_DOUBLE. NULL: through host memory. */
  uba_status (*fill_nd)(void *device, void *stream, const uba_tensor *dst, const uba_value *value);

  /* Streams. NULL: the device has one stream. */
  uba_status (*stream_create)(void *device, int32_t priority, void **stream /* out */);
  uba_status (*stream_destroy)(void *device, void *stream);
  uba_status (*stream_query)(void *device, void *stream); /* UBA_OK or UBA_NOT_READY */

  /* Events, all or none. NULL: the host synchronises instead. `event_elapsed` in milliseconds of device time. */
  uba_status (*event_create)(void *device, void **event /* out */);
  uba_status (*event_destroy)(void *device, void *event);
  uba_status (*event_record)(void *device, void *event, void *stream);
  uba_status (*event_wait)(void *device, void *event, void *stream); /* the stream waits, the caller does not */
  uba_status (*event_query)(void *device, void *event);              /* UBA_OK or UBA_NOT_READY */
  uba_status (*event_synchronize)(void *device, void *event);
  uba_status (*event_elapsed)(void *device, void *start, void *end, double *milliseconds /* out */);

  /* Unified memory: makes host pages usable by this device at *ptr, without copying, until `unmap_host`. NULL: no. */
  uba_status (*map_host)(void *device, void *host, uint64_t bytes, void **ptr /* out */);
  uba_status (*unmap_host)(void *device, void *ptr);

  /* Enqueues a copy from another device of this adapter. NULL: the host copies through its memory. */
  uba_status (*peer_copy)(void *device, void *stream, void *dst, void *src_device, const void *src, uint64_t bytes);

  /* Since 1.1 */
  uba_status (*memory_info)(void *device, uint64_t *free_bytes /* out */, uint64_t *total_bytes /* out */);
  uba_status (*telemetry)(void *device, uba_telemetry *telemetry /* out */);

  /* Since 1.2. Programs, all three or none. The host offers the whole program of an operator, then, where that is not
   * supported, each run of two or more vector instructions in it, and runs the other steps itself. Whatever can be
   * refused is refused by program_compile: UBA_NOT_SUPPORTED. A compiled program may run on any stream. */
  uba_status (*program_compile)(void *device, const uba_program *program, void **compiled /* out */);
  uba_status (*program_run)(void *device, void *compiled, const uba_run *run);
  uba_status (*program_release)(void *device, void *compiled); /* no run of it is under way */
} uba_device_api;

/* ------------------------------------------------------------------------------------------ handshake */

/* What the host offers. Lives as long as the library is loaded. */
typedef struct uba_host {
  uba_header header;
  /* Tells what went wrong, before a function returns a failure: the SDK's own code and text. Per thread; the text
   * is copied. */
  void (*set_error)(int64_t sdk_code, const char *text);
  /* A line for the user's log: 0 debug, 1 info, 2 warning, 3 error. */
  void (*log)(int32_t level, const char *text);
} uba_host;

/* What the adapter offers. Lives as long as the library is loaded. */
typedef struct uba_adapter {
  uba_header header;
  const char *name;        /* [required] "npu_v3" */
  const char *version;     /* [required] the adapter's own version */
  const char *sdk_version; /* of the SDK it runs on, as the SDK says; NULL = unknown */
  /* [required] Number of devices. Must not initialise a device: it is called before a fork. */
  uba_status (*device_count)(int32_t *count /* out */);
  /* [required] Opens device `index`; `*device` is passed to every other function. Called once an index. */
  uba_status (*open)(int32_t index, void **device /* out */);
  uba_status (*close)(void *device);
  const uba_device_api *device; /* [required] */
  const uba_kernel *kernels;    /* `kernel_count` entries; NULL = none */
  int64_t kernel_count;
} uba_adapter;

/* The one exported symbol. `host_abi` is UBA_ABI_MAJOR << 16 | UBA_ABI_MINOR of the host. Returns NULL, after
 * host->set_error, if this adapter cannot work with that host or with the SDK it finds. */
#if defined(_WIN32)
#define UBA_EXPORT __declspec(dllexport)
#else
#define UBA_EXPORT __attribute__((visibility("default")))
#endif
UBA_EXPORT const uba_adapter *uba_query(uint32_t host_abi, const uba_host *host);
typedef const uba_adapter *(*uba_query_fn)(uint32_t host_abi, const uba_host *host);

#ifdef __cplusplus
} /* extern "C" */
#endif
#endif /* TORCHFL_UBA_H */
