// transfer.h: every way in which bytes move: between host and device, between devices, and within one device.
//
// Contract: all functions keep stream order on the current stream of the device concerned and count what crosses
// the host boundary. Tensors given here carry no conj or neg bit (`copy_tensor` alone resolves them).
#pragma once
#include <ATen/ATen.h>

#include "runtime.h"

namespace torchfl {

// Bytes and copies across the host boundary since the process began.
struct TransferCounters {
  std::atomic<uint64_t> to_device_copies{0}, to_device_bytes{0}, to_host_copies{0}, to_host_bytes{0}, peer_copies{0},
      peer_bytes{0};
};
extern TransferCounters g_transfers;
// Bytes that the calling thread has moved across the host boundary: what one operator moves is the difference.
uint64_t bytes_moved();

// Which way a copy went. `host`: on one device, but by the CPU, because the chip has no such copy.
enum class Way { nothing, block, strided, host, to_device, to_host, between };

// A new, uninitialised tensor on device `index`; strides are taken as they are. No dispatcher call.
at::Tensor empty_on(int index, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides);
// The same where the caller knows the size in bytes, and whether the strides are row-major: the call path.
at::Tensor empty_planned(int index, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         size_t bytes, bool contiguous);
at::Tensor empty_contiguous_on(int index, c10::ScalarType dtype, c10::IntArrayRef sizes);

// dst = src, where dst.sizes() may be larger (broadcast); any dtypes, strides, devices; the body of `copy_`.
Way copy_tensor(const at::Tensor& dst, const at::Tensor& src, bool non_blocking);

// dst = src on one device, equal sizes. In strict mode, a copy that the chip has not raises.
Way copy_on_device(const at::Tensor& dst, const at::Tensor& src);

// The tensor's values as a CPU tensor of equal sizes. Strides are kept where that moves few more bytes than there are
// elements. Where the host can read the memory, it is a view. `wait` false: the bytes are there after the next
// synchronise of the current stream only.
at::Tensor to_host(const at::Tensor& tensor, bool wait = true);

// A CPU tensor as a new tensor on device `index`, strides kept when dense. Takes over the host memory: nobody may
// write to it any more (it is read asynchronously, or is the new tensor's memory from now on).
at::Tensor to_device(const at::Tensor& host, int index);

// Plain bytes, on the current stream, counted.
void bytes_to_device(DeviceEntry& entry, void* dst, const void* src, uint64_t bytes);

// Whether a dense bool tensor has bytes other than 0 and 1, as a view of bytes may. To the CPU they are true; an
// adapter is promised that there are none.
bool has_odd_bools(const at::Tensor& host);

// Elements from the first to behind the last one that the tensor can reach in its storage.
int64_t span_of(const at::Tensor& tensor);
bool is_dense(const at::Tensor& tensor);  // non-overlapping and without gaps

void fill_tensor(const at::Tensor& tensor, const c10::Scalar& value);

}  // namespace torchfl
