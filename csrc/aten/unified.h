// unified.h: tensors of ours that lie in memory of the host, and share it with CPU tensors copy-on-write.
//
// Contract: `share` makes a device tensor of a CPU tensor without moving a byte, `share_back` the reverse. Either side
// that is written to first gets memory of its own, so that nobody ever sees the other's writes: PyTorch's mutable
// accesses and note_written() (kept.h) call the storage's materializer, which is ours. Memory that somebody outside of
// PyTorch may write to (numpy, DLPack, shared memory, files) is never shared. On a chip that can map host memory
// (HostMemory::map) a shared tensor is used where it lies; on one with memory of its own (HostMemory::lazy) it moves
// there when it is first used, once. Host memory that enqueued work still reads is kept until the stream has passed;
// as with the caching allocator, use on another stream than the current one is told by record_stream.
// All functions are safe from any thread.
#pragma once
#include <ATen/ATen.h>

#include <atomic>
#include <string>

namespace torchfl {

struct DeviceEntry;

// How tensors of the host reach a device.
enum class HostMemory : uint8_t {
  copy,  // at once
  lazy,  // when they are first used there
  map,   // not at all
};

namespace unified {

// Bytes that did not have to move, since the process began, and what was copied after all for a write.
struct Counters {
  std::atomic<uint64_t> shares{0}, shared_bytes{0}, separations{0}, separated_bytes{0};
};
extern Counters g_counters;

// Device storages that lie in memory of the host, of all devices: 0 spares every look.
extern std::atomic<int> g_storages;

// What the descriptor says (auto, copy, lazy, map), or TORCHFL_HOST_MEMORY, for a device that can map or cannot.
HostMemory strategy(const std::string& declared, bool can_map, const std::string& label);

// `host` as a tensor on device `index`. Undefined, if it cannot be shared; then `why` says the reason for users.
at::Tensor share(const at::Tensor& host, int index, std::string* why);
// A tensor of ours that lies in memory of the host as a CPU tensor. Undefined, if it does not.
at::Tensor share_back(const at::Tensor& ours);

bool lies_on_host(const c10::DataPtr& ptr);
// The memory of a tensor for which lies_on_host() holds, as a CPU tensor of the same elements: a borrowed view, which
// keeps the memory alive. Written through, it is the device's tensor that changes.
at::Tensor host_view(const at::Tensor& ours);
// Makes sure that a tensor that waits for its first use is on its device.
void arrive(const at::Tensor& ours);
// The same tensor for code that only reads it but asks PyTorch for a mutable address: as it is shared, it stays so.
at::Tensor read_only(const at::Tensor& ours);
// Whether the caller's one reference is all that holds the tensor, its storage, and host memory that it lies in.
bool is_spare(const at::Tensor& ours);
// Another stream uses the memory.
void record_stream(const c10::DataPtr& ptr, void* stream);
// The tensor was made a moment ago, and its memory was not handed out to anybody: where PyTorch leaves that open
// (torch.load, pin_memory), its storage gets the marks that tensors have otherwise.
void fresh(const at::Tensor& host);
// The tensor's memory was handed out to code outside of PyTorch: it is shared no more.
void exported(const at::Tensor& host);

// The kernel of `_to_copy`, which is what `.to(device)` ends in: it shares where that can be.
at::Tensor to_copy(const at::Tensor& self, std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                   std::optional<c10::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<c10::MemoryFormat> format);

}  // namespace unified
}  // namespace torchfl
