// memory.cpp: opaque device memory, its allocator, and the check of every tensor that a call brings.
//
// Contract: a device address is an offset into a PROT_NONE range, so the host faults when it touches one; kernels get
// the address translated to the backing pages. Allocations start on 512 bytes. resolve() takes no lock.
#include <sys/mman.h>

#include <algorithm>
#include <cinttypes>

#include "device.h"

#ifndef MAP_NORESERVE
#define MAP_NORESERVE 0
#endif

namespace npu {

namespace {

constexpr uint64_t kGiveBack = uint64_t(1) << 20;  // a freed block of this size returns its pages to the system

void* map_pages(uint64_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : p;
}

const char* dtype_name(int32_t dtype) {
  static const char* const names[] = {"?",     "FLOAT16", "BFLOAT16", "FLOAT32", "INT8", "INT32",
                                      "INT64", "BOOL",    "UINT8",    "FLOAT64", "INT16"};
  return dtype >= 1 && dtype <= NPU_INT16 ? names[dtype] : "?";
}

std::string dtype_list(uint32_t dtypes) {
  std::string text;
  for (int32_t d = 1; d <= NPU_INT16; d++) {
    if (dtypes & mask(d)) text += (text.empty() ? "" : ", ") + std::string(dtype_name(d));
  }
  return text;
}

npu_status_t refuse_address(npu_stream* stream, const void* address, const char* function, const char* what) {
  npu_device* other = owner_of(address);
  if (!other) {
    return fail(NPU_STATUS_INVALID_ADDRESS,
                "%s: %s: address %p is not memory of device %d: expected an address from npu_malloc", function, what,
                address, stream->device->index);
  }
  return fail(NPU_STATUS_INVALID_ADDRESS,
              "%s: %s: address %p belongs to device %d, the stream to device %d: copy it with npu_memcpy_peer_async",
              function, what, address, other->index, stream->device->index);
}

}  // namespace

void FreeList::reset(uint64_t size) {
  by_offset_ = {{0, size}};
  by_size_ = {{size, 0}};
  live_.clear();
  free_ = size;
}

bool FreeList::take(uint64_t bytes, uint64_t* offset) {
  auto best = by_size_.lower_bound({bytes, 0});
  if (best == by_size_.end()) return false;
  auto [size, at] = *best;
  by_size_.erase(best);
  by_offset_.erase(at);
  if (size > bytes) {
    by_offset_[at + bytes] = size - bytes;
    by_size_.insert({size - bytes, at + bytes});
  }
  live_[at] = bytes;
  free_ -= bytes;
  *offset = at;
  return true;
}

uint64_t FreeList::give(uint64_t offset) {
  auto block = live_.find(offset);
  if (block == live_.end()) return 0;
  uint64_t freed = block->second, start = offset, size = freed;
  live_.erase(block);
  free_ += freed;
  auto next = by_offset_.lower_bound(offset);
  if (next != by_offset_.begin()) {
    auto previous = std::prev(next);
    if (previous->first + previous->second == start) {
      start = previous->first;
      size += previous->second;
      by_size_.erase({previous->second, previous->first});
      by_offset_.erase(previous);
    }
  }
  if (next != by_offset_.end() && next->first == offset + freed) {
    size += next->second;
    by_size_.erase({next->second, next->first});
    by_offset_.erase(next);
  }
  by_offset_[start] = size;
  by_size_.insert({size, start});
  return freed;
}

bool Memory::map(uint64_t bytes) {
  bytes = (bytes + kCoarse - 1) / kCoarse * kCoarse;
  void* range = map_pages(bytes, PROT_NONE);
  backing_ = static_cast<char*>(map_pages(bytes, PROT_READ | PROT_WRITE));
  void* fine = map_pages(bytes / kUnit * sizeof(uint32_t), PROT_READ | PROT_WRITE);
  void* coarse = map_pages(bytes / kCoarse * sizeof(uint32_t), PROT_READ | PROT_WRITE);
  if (!range || !backing_ || !fine || !coarse) return false;
  // Fresh anonymous pages are zero, which is a valid std::atomic<uint32_t> holding "no allocation".
  fine_ = static_cast<std::atomic<uint32_t>*>(fine);
  coarse_ = static_cast<std::atomic<uint32_t>*>(coarse);
  bytes_ = bytes;
  base_ = uint64_t(range);
  list_.reset(bytes);
  return true;
}

// Frees every allocation; the addresses stay reserved, so that a stale device pointer still faults.
void Memory::clear() {
  std::lock_guard<std::mutex> lock(mutex_);
  madvise(backing_, bytes_, MADV_DONTNEED);
  madvise(static_cast<void*>(fine_), bytes_ / kUnit * sizeof(uint32_t), MADV_DONTNEED);
  madvise(static_cast<void*>(coarse_), bytes_ / kCoarse * sizeof(uint32_t), MADV_DONTNEED);
  list_.reset(bytes_);
}

void Memory::mark(uint64_t offset, uint64_t bytes, bool live) {
  uint64_t end = offset + bytes;
  uint32_t value = live ? uint32_t(end / kUnit) : 0;
  uint64_t first_coarse = (offset + kCoarse - 1) / kCoarse, last_coarse = end / kCoarse;
  auto fill = [&](uint64_t from, uint64_t to) {
    for (uint64_t u = from / kUnit; u < to / kUnit; u++) fine_[u].store(value, std::memory_order_relaxed);
  };
  if (first_coarse >= last_coarse) return fill(offset, end);
  fill(offset, first_coarse * kCoarse);
  for (uint64_t c = first_coarse; c < last_coarse; c++) coarse_[c].store(value, std::memory_order_relaxed);
  fill(last_coarse * kCoarse, end);
}

uint64_t Memory::extent(const void* address) const {
  uint64_t offset = uint64_t(address) - base_;
  if (offset >= bytes_) return 0;
  uint64_t end = coarse_[offset / kCoarse].load(std::memory_order_relaxed);
  if (!end) end = fine_[offset / kUnit].load(std::memory_order_relaxed);
  return end ? end * kUnit - offset : 0;
}

npu_status_t Memory::allocate(uint64_t bytes, int32_t device, void** address) {
  uint64_t offset = 0, size = (bytes + kUnit - 1) / kUnit * kUnit;
  std::lock_guard<std::mutex> lock(mutex_);
  if (size < bytes || !list_.take(size, &offset)) {
    return fail(NPU_STATUS_OUT_OF_MEMORY,
                "npu_malloc: device %d: %" PRIu64 " bytes wanted; %" PRIu64 " of %" PRIu64
                " are free, the largest block has %" PRIu64,
                device, bytes, list_.free_bytes(), bytes_, list_.largest());
  }
  mark(offset, size, true);
  *address = reinterpret_cast<void*>(base_ + offset);
  return NPU_STATUS_SUCCESS;
}

bool Memory::release(uint64_t offset) {
  std::lock_guard<std::mutex> lock(mutex_);
  uint64_t size = list_.give(offset);
  if (!size) return false;
  mark(offset, size, false);
  if (size >= kGiveBack) {
    constexpr uint64_t page = 4096;
    uint64_t from = (offset + page - 1) / page * page, to = (offset + size) / page * page;
    madvise(backing_ + from, to - from, MADV_DONTNEED);
  }
  return true;
}

void Memory::info(uint64_t* free_bytes, uint64_t* total_bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  *free_bytes = list_.free_bytes();
  *total_bytes = bytes_;
}

npu_status_t resolve(npu_stream_t stream, const npu_tensor_t* tensor, uint32_t dtypes, Engine engine, bool optional,
                     const char* function, const char* what, View* out) {
  if (!tensor) {
    if (optional) {
      *out = View{};
      return NPU_STATUS_SUCCESS;
    }
    return fail(NPU_STATUS_INVALID_VALUE, "%s: %s: NULL: expected a tensor", function, what);
  }
  if (!valid(stream)) return check_stream(stream, function);
  size_t item = dtype_size(tensor->dtype);
  if (!item) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: %s: %d is not a dtype: expected %s", function, what, tensor->dtype,
                dtype_list(dtypes).c_str());
  }
  if (!(dtypes & mask(tensor->dtype))) {
    return fail(NPU_STATUS_NOT_SUPPORTED, "%s: %s: dtype %s is not supported here: expected %s", function, what,
                dtype_name(tensor->dtype), dtype_list(dtypes).c_str());
  }
  const Config& cfg = config();
  int32_t rank = tensor->rank;
  if (rank < 0 || rank > cfg.chip.max_rank) {
    return fail(rank < 0 ? NPU_STATUS_INVALID_VALUE : NPU_STATUS_NOT_SUPPORTED,
                "%s: %s: rank %d: %s supports 0 to %d dimensions", function, what, rank, cfg.chip.name,
                cfg.chip.max_rank);
  }
  if (rank && (!tensor->shape || !tensor->stride)) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: %s: rank %d but shape or stride is NULL", function, what, rank);
  }
  int64_t last = 0;
  bool empty = false, overflow = false;
  for (int32_t i = 0; i < rank; i++) {
    int64_t size = tensor->shape[i], stride = tensor->stride[i], step = 0;
    if ((size | stride) < 0) {
      return fail(NPU_STATUS_INVALID_VALUE,
                  "%s: %s: dimension %d has size %" PRId64 " and stride %" PRId64 ": neither may be negative", function,
                  what, i, size, stride);
    }
    out->shape[i] = size;
    out->stride[i] = stride;
    empty |= size == 0;
    overflow |= __builtin_mul_overflow(size ? size - 1 : 0, stride, &step);
    overflow |= __builtin_add_overflow(last, step, &last);
  }
  for (int32_t i = rank; i < kMaxRank; i++) out->shape[i] = out->stride[i] = 0;
  out->dtype = tensor->dtype;
  out->rank = rank;
  out->data = nullptr;
  if (empty) return NPU_STATUS_SUCCESS;  // nothing will be touched: any address does
  if (!overflow && last >= cfg.index_limit) {
    return fail(NPU_STATUS_NOT_SUPPORTED, "%s: %s: reaches over %" PRId64 " elements: an index holds %" PRId64,
                function, what, last + 1, cfg.index_limit);
  }

  const Memory& memory = stream->device->memory;
  const void* address = tensor->address;
  if (!memory.contains(address)) return refuse_address(stream, address, function, what);
  if (engine == Engine::compute && (uint64_t(address) & (cfg.alignment - 1))) {
    return fail(NPU_STATUS_INVALID_ADDRESS,
                "%s: %s: address %p is misaligned: SDK %s wants a multiple of %" PRIu64 " bytes, this is %" PRIu64
                " past one (npu_v3_copy_nd takes any address)",
                function, what, address, cfg.sdk_version, cfg.alignment, uint64_t(address) & (cfg.alignment - 1));
  }
  if (engine == Engine::dma && (uint64_t(address) & (item - 1))) {
    return fail(NPU_STATUS_INVALID_ADDRESS, "%s: %s: address %p is not the address of an element of %zu bytes",
                function, what, address, item);
  }
  uint64_t available = memory.extent(address);
  if (!available) {
    return fail(NPU_STATUS_INVALID_ADDRESS, "%s: %s: address %p of device %d is not allocated", function, what, address,
                stream->device->index);
  }
  if (overflow || uint64_t(last) >= available / item) {
    return fail(NPU_STATUS_INVALID_ADDRESS,
                "%s: %s: the tensor reaches beyond its allocation: its last element is number %" PRId64
                ", the allocation holds %" PRIu64 " from address %p on",
                function, what, overflow ? INT64_MAX : last, available / item, address);
  }
  out->data = memory.backing(address);
  return NPU_STATUS_SUCCESS;
}

}  // namespace npu

using namespace npu;

extern "C" {

NPU_API npu_status_t npu_malloc(npu_device_t device, uint64_t bytes, void** address) {
  npu_status_t status = check_device(device, "npu_malloc");
  if (status) return status;
  if (!address) return fail(NPU_STATUS_INVALID_VALUE, "npu_malloc: address: NULL: expected where to store the address");
  *address = nullptr;
  if (!bytes) return NPU_STATUS_SUCCESS;
  if (fault_strikes(FaultKind::oom, "npu_malloc", device->index)) {
    return fail(NPU_STATUS_OUT_OF_MEMORY, "npu_malloc: device %d: out of memory (injected by NPU_SIM_FAULT)",
                device->index);
  }
  return device->memory.allocate(bytes, device->index, address);
}

NPU_API npu_status_t npu_free(npu_device_t device, void* address) {
  npu_status_t status = check_device(device, "npu_free");
  if (status) return status;
  if (!address) return NPU_STATUS_SUCCESS;
  if (!device->memory.contains(address)) {
    npu_device* other = owner_of(address);
    return other ? fail(NPU_STATUS_INVALID_ADDRESS, "npu_free: address %p belongs to device %d, not to device %d",
                        address, other->index, device->index)
                 : fail(NPU_STATUS_INVALID_ADDRESS, "npu_free: address %p is not device memory", address);
  }
  drain(device);  // work in flight may still use the block
  if (!device->memory.release(uint64_t(address) - device->memory.base())) {
    return fail(
        NPU_STATUS_INVALID_ADDRESS,
        "npu_free: address %p of device %d is not the start of a live allocation: freed twice, or an inner address",
        address, device->index);
  }
  return NPU_STATUS_SUCCESS;
}

NPU_API npu_status_t npu_mem_info(npu_device_t device, uint64_t* free_bytes, uint64_t* total_bytes) {
  npu_status_t status = check_device(device, "npu_mem_info");
  if (status) return status;
  if (!free_bytes || !total_bytes)
    return fail(NPU_STATUS_INVALID_VALUE, "npu_mem_info: NULL result: expected two addresses");
  device->memory.info(free_bytes, total_bytes);
  return NPU_STATUS_SUCCESS;
}

}  // extern "C"
