// dma_linear.cpp: plain byte copies (host, device, peer), memset, and npu_v3_add, which fetches its operands by DMA.
//
// Contract: device addresses are checked when the call is made; host memory is read or written when the stream gets
// there, by the worker, so it must stay valid until then.
#include <algorithm>
#include <cinttypes>

#include "device.h"

namespace npu {

namespace {

constexpr double kHostLink = 16;       // bytes a cycle between host and device, and between devices
constexpr uint64_t kHostStart = 1000;  // cycles to set up a transfer over it
constexpr int64_t kSlice = 1 << 18;    // bytes that are worth a second thread

npu_status_t device_range(npu_device* device, const void* address, uint64_t bytes, const char* function,
                          const char* what, char** backing) {
  if (!device->memory.contains(address)) {
    npu_device* other = owner_of(address);
    if (other) {
      return fail(NPU_STATUS_INVALID_ADDRESS, "%s: %s: address %p belongs to device %d, expected memory of device %d",
                  function, what, address, other->index, device->index);
    }
    return fail(NPU_STATUS_INVALID_ADDRESS, "%s: %s: address %p is host memory, expected memory of device %d", function,
                what, address, device->index);
  }
  uint64_t extent = device->memory.extent(address);
  if (bytes > extent) {
    return fail(NPU_STATUS_INVALID_ADDRESS, "%s: %s: %" PRIu64 " bytes from %p on: %s %" PRIu64 " bytes", function,
                what, bytes, address, extent ? "the allocation ends after" : "not allocated, there are", extent);
  }
  *backing = device->memory.backing(address);
  return NPU_STATUS_SUCCESS;
}

npu_status_t host_range(const void* address, const char* function, const char* what, char** backing) {
  if (!address) return fail(NPU_STATUS_INVALID_ADDRESS, "%s: %s: NULL: expected host memory", function, what);
  if (npu_device* device = owner_of(address)) {
    return fail(NPU_STATUS_INVALID_ADDRESS, "%s: %s: address %p is memory of device %d, expected host memory", function,
                what, address, device->index);
  }
  *backing = static_cast<char*>(const_cast<void*>(address));
  return NPU_STATUS_SUCCESS;
}

npu_status_t submit_copy(npu_stream* stream, const char* function, char* dst, const char* src, uint64_t bytes,
                         uint64_t cost) {
  return submit(stream, function, cost, [=] {
    parallel_for(int64_t(bytes), kSlice,
                 [&](int64_t begin, int64_t end, int) { std::memmove(dst + begin, src + begin, size_t(end - begin)); });
  });
}

uint64_t link_cycles(uint64_t bytes) { return kHostStart + uint64_t(double(bytes) / kHostLink + 1); }

void add_half(const uint16_t* a, const uint16_t* b, uint16_t* out, int64_t n) {
  constexpr int64_t block = 512;
  float x[block], y[block];
  for (int64_t i = 0; i < n; i += block) {
    int64_t count = std::min(block, n - i);
    half_to_float(a + i, x, count);
    half_to_float(b + i, y, count);
    for (int64_t k = 0; k < count; k++) x[k] += y[k];
    float_to_half(x, out + i, count);
  }
}

// `size` elements without gaps: in some order of the dimensions each stride is the product of the sizes before it.
npu_status_t check_dense(int64_t size, const int64_t* strides, const int64_t* shape) {
  int64_t numel = 1, span = 1;
  // The rank is not told: stop at the first sizes that cannot lead to `size`, before reading beyond the arrays.
  for (int i = 0; numel != size && i < config().chip.max_rank; i++) {
    if (shape[i] < 1 || strides[i] < 0 || size / numel % shape[i]) break;
    numel *= shape[i];
    span += (shape[i] - 1) * strides[i];
  }
  if (numel != size) {
    return fail(NPU_STATUS_INVALID_VALUE, "npu_v3_add: shape: up to %d sizes do not multiply to size %" PRId64,
                config().chip.max_rank, size);
  }
  if (span != size) {
    return fail(NPU_STATUS_NOT_SUPPORTED,
                "npu_v3_add: strides: the operands span %" PRId64 " elements, expected a dense %" PRId64, span, size);
  }
  return NPU_STATUS_SUCCESS;
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" {

NPU_API npu_status_t npu_memcpy_async(npu_stream_t stream, void* dst, const void* src, uint64_t bytes, int32_t kind) {
  const char* function = "npu_memcpy_async";
  npu_status_t status = check_stream(stream, function);
  if (status) return status;
  if (kind != NPU_COPY_TO_DEVICE && kind != NPU_COPY_TO_HOST && kind != NPU_COPY_ON_DEVICE) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: kind: %d: expected NPU_COPY_TO_DEVICE, _TO_HOST or _ON_DEVICE", function,
                kind);
  }
  if (!bytes) return NPU_STATUS_SUCCESS;
  char *to = nullptr, *from = nullptr;
  npu_device* device = stream->device;
  status = kind == NPU_COPY_TO_HOST ? host_range(dst, function, "dst", &to)
                                    : device_range(device, dst, bytes, function, "dst", &to);
  if (status) return status;
  status = kind == NPU_COPY_TO_DEVICE ? host_range(src, function, "src", &from)
                                      : device_range(device, src, bytes, function, "src", &from);
  if (status) return status;
  Work work;
  work.unit = Work::dma;
  work.bytes = 2.0 * double(bytes);
  return submit_copy(stream, function, to, from, bytes,
                     kind == NPU_COPY_ON_DEVICE ? cycles(stream, work) : link_cycles(bytes));
}

NPU_API npu_status_t npu_memcpy_peer_async(npu_stream_t stream, void* dst, npu_device_t src_device, const void* src,
                                           uint64_t bytes) {
  const char* function = "npu_memcpy_peer_async";
  npu_status_t status = check_stream(stream, function);
  if (!status) status = check_device(src_device, function);
  if (status || !bytes) return status;
  char *to = nullptr, *from = nullptr;
  status = device_range(stream->device, dst, bytes, function, "dst", &to);
  if (!status) status = device_range(src_device, src, bytes, function, "src", &from);
  if (status) return status;
  return submit_copy(stream, function, to, from, bytes, link_cycles(bytes));
}

NPU_API npu_status_t npu_memset_async(npu_stream_t stream, void* dst, int32_t value, uint64_t bytes) {
  const char* function = "npu_memset_async";
  npu_status_t status = check_stream(stream, function);
  if (status || !bytes) return status;
  char* to = nullptr;
  status = device_range(stream->device, dst, bytes, function, "dst", &to);
  if (status) return status;
  Work work;
  work.unit = Work::dma;
  work.bytes = double(bytes);
  return submit(stream, function, cycles(stream, work), [=] {
    parallel_for(int64_t(bytes), kSlice,
                 [&](int64_t begin, int64_t end, int) { std::memset(to + begin, value, size_t(end - begin)); });
  });
}

NPU_API npu_status_t npu_v3_add(const void* a, const void* b, void* out, int64_t size, const int64_t* strides,
                                const int64_t* shape) {
  const char* function = "npu_v3_add";
  if (forked_child()) return fail_forked(function);
  if (size < 0) return fail(NPU_STATUS_INVALID_VALUE, "%s: size: %" PRId64 ": expected 0 or more", function, size);
  if (!size) return NPU_STATUS_SUCCESS;
  if (size > 1 && (!strides || !shape)) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: strides or shape: NULL with size %" PRId64, function, size);
  }
  npu_status_t status = check_dense(size, strides, shape);
  if (status) return status;

  const void* address[3] = {a, b, out};
  const char* what[3] = {"a", "b", "out"};
  npu_device* device = nullptr;
  for (int i = 0; i < 3 && !device; i++) device = owner_of(address[i]);
  if (!device) device = opened_device(0);
  // A caller with host memory only has no handle yet; the device then stays open for the life of the process.
  if (!device || !valid(device)) status = open_device(0, &device);
  if (!status) status = check_device(device, function);
  if (status) return status;

  char* data[3];
  double moved = 0;
  for (int i = 0; i < 3; i++) {
    uint64_t alignment = config().alignment;
    if (uint64_t(address[i]) % alignment) {
      return fail(NPU_STATUS_INVALID_ADDRESS,
                  "%s: %s: address %p is misaligned: SDK %s wants a multiple of %" PRIu64 " bytes", function, what[i],
                  address[i], config().sdk_version, alignment);
    }
    bool host = address[i] && !owner_of(address[i]);
    status = host ? host_range(address[i], function, what[i], &data[i])
                  : device_range(device, address[i], uint64_t(size) * 2, function, what[i], &data[i]);
    if (status) return status;
    if (host) moved += double(size) * 2;
  }
  Work work;
  work.flops = double(size);
  work.bytes = double(size) * 6;
  work.dtype = NPU_FLOAT16;
  uint64_t cost = cycles(device->default_stream, work) + (moved > 0 ? link_cycles(uint64_t(moved)) : 0);
  char *x = data[0], *y = data[1], *z = data[2];
  status = submit(device->default_stream, function, cost, [=] {
    parallel_for(size, 1 << 15, [&](int64_t begin, int64_t end, int) {
      add_half(reinterpret_cast<const uint16_t*>(x) + begin, reinterpret_cast<const uint16_t*>(y) + begin,
               reinterpret_cast<uint16_t*>(z) + begin, end - begin);
    });
  });
  return status ? status : synchronize(device->default_stream, function);
}

}  // extern "C"
