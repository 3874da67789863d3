// unified.cpp: see unified.h.
//
// A HostBuffer is memory of the host with all who use it. A storage that uses it has a Holder as the context of its
// DataPtr, and `separate` as its materializer. Whoever is the last user takes the memory over as it is.
#include "unified.h"

#include <ATen/ops/_to_copy_native.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kept.h"
#include "pinned.h"
#include "stats.h"
#include "transfer.h"

namespace torchfl::unified {

Counters g_counters;
std::atomic<int> g_storages{0};

namespace {

struct HostBuffer;

// A range of host memory in a device's address space.
struct Mapping {
  Mapping(DeviceEntry& device, HostBuffer& buffer);
  Mapping(const Mapping&) = delete;
  ~Mapping() {
    entry.mapped_bytes.fetch_sub(bytes, std::memory_order_relaxed);
    try {
      entry.device->unmap_host(address);
    } catch (const Error&) {  // the device is lost, or another process's: there is nothing to unmap
    }
  }
  DeviceEntry& entry;
  const uint64_t bytes;
  void* const address;
};

struct HostBuffer {
  c10::DataPtr memory;
  size_t bytes = 0;
  std::mutex mutex;  // guards what follows, and that nobody takes the memory over while it is copied
  std::unordered_map<int, std::weak_ptr<Mapping>> mappings;  // by device
};

Mapping::Mapping(DeviceEntry& device, HostBuffer& buffer)
    : entry(device), bytes(buffer.bytes), address(device.device->map_host(buffer.memory.mutable_get(), bytes)) {
  entry.mapped_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

struct Holder {
  std::shared_ptr<HostBuffer> buffer;
  DeviceEntry* entry = nullptr;      // NULL: a CPU storage
  std::shared_ptr<Mapping> mapping;  // NULL: a CPU storage, or a device's that waits for its first use
  std::vector<void*> streams;        // whose work may read it
  bool waits() const { return entry != nullptr && mapping == nullptr; }
};

// Taken where CPU storages begin to share: two threads may do that with one of them at a time, as both only read.
std::mutex& sharing() {
  static auto* mutex = new std::mutex;
  return *mutex;
}

// The host's memory stays, and mapped, until the stream has passed.
void keep_until_passed(const Holder& holder, void* stream) {
  const HostBuffer& buffer = *holder.buffer;
  holder.entry->keep_until_passed(
      stream, at::from_blob(
                  const_cast<void*>(buffer.memory.get()), {int64_t(buffer.bytes)},
                  [buffer = holder.buffer, mapping = holder.mapping](void*) {}, at::TensorOptions().dtype(c10::kByte)));
}

void release_on_host(void* context) { delete static_cast<Holder*>(context); }

void release_on_device(void* context) {
  auto* holder = static_cast<Holder*>(context);
  g_storages.fetch_sub(1, std::memory_order_relaxed);
  if (holder->mapping != nullptr) {
    for (void* stream : holder->streams) {
      try {
        keep_until_passed(*holder, stream);
      } catch (const std::exception&) {  // it failed, or is lost: whoever waits for it is told
      }
    }
  }
  delete holder;
}

Holder* holder_of(const c10::DataPtr& ptr) {
  const c10::DeleterFnPtr deleter = ptr.get_deleter();
  return deleter == &release_on_device || deleter == &release_on_host ? static_cast<Holder*>(ptr.get_context())
                                                                      : nullptr;
}

// Whether nobody but `held` and the caller's copy of it uses the buffer. Nobody else can begin to: that takes a storage
// that does, and the only one is being written.
bool is_last(const std::shared_ptr<HostBuffer>& held) {
  if (held.use_count() != 2) return false;
  std::atomic_thread_fence(std::memory_order_acquire);  // what others did before they let go
  return true;
}

void count_separation(uint64_t bytes) {
  g_counters.separations.fetch_add(1, std::memory_order_relaxed);
  g_counters.separated_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

c10::DataPtr device_memory(const DeviceEntry& entry, size_t bytes) {
  const c10::DeviceGuard guard(c10::Device(kDevice, c10::DeviceIndex(entry.index)));
  return device_allocator()->allocate(bytes);
}

// The bytes in memory of the device's own.
c10::DataPtr moved(Holder& holder) {
  DeviceEntry& entry = *holder.entry;
  HostBuffer& buffer = *holder.buffer;
  c10::DataPtr fresh = device_memory(entry, buffer.bytes);
  void* stream = runtime::current_stream(entry.index);
  if (holder.waits()) {
    bytes_to_device(entry, fresh.mutable_get(), buffer.memory.get(), buffer.bytes);
    entry.synchronize(stream);  // only when they have arrived is the host's memory given up
    return fresh;
  }
  guarded([&] {
    entry.device->copy(stream, fresh.mutable_get(), holder.mapping->address, buffer.bytes, UBA_DEVICE_TO_DEVICE);
  });
  keep_until_passed(holder, stream);
  return fresh;
}

// The materializer of every storage that shares.
void separate(c10::StorageImpl* storage) {
  Holder* holder = holder_of(storage->data_ptr());
  if (holder == nullptr) return;  // the storage was given other memory since
  const std::shared_ptr<HostBuffer> buffer = holder->buffer;
  c10::DataPtr fresh;
  {
    std::lock_guard<std::mutex> lock(buffer->mutex);
    const bool last = is_last(holder->buffer);
    if (holder->entry == nullptr) {
      if (last) {
        fresh = std::move(buffer->memory);
      } else {
        c10::Allocator* allocator = storage->allocator() != nullptr ? storage->allocator() : c10::GetCPUAllocator();
        fresh = allocator->allocate(buffer->bytes);
        std::memcpy(fresh.mutable_get(), buffer->memory.get(), buffer->bytes);
        count_separation(buffer->bytes);
      }
    } else {
      kept::forget(storage);
      if (last && !holder->waits()) return;  // it goes on lying there, its own from now on
      fresh = moved(*holder);
      if (!holder->waits()) count_separation(buffer->bytes);
    }
  }
  storage->set_data_ptr_noswap(std::move(fresh));
}

// ------------------------------------------------------------------------------------------- who may share

struct Exports {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, c10::weak_intrusive_ptr<c10::StorageImpl>> storages;
  size_t prune_at = 64;
};
Exports& exports() {
  static auto* all = new Exports;
  return *all;
}

bool was_exported(const c10::StorageImpl* storage) {
  Exports& all = exports();
  std::lock_guard<std::mutex> lock(all.mutex);
  auto found = all.storages.find(storage);
  return found != all.storages.end() && !found->second.expired();
}

// Whether the memory came from PyTorch's allocator for the CPU, and nobody else's.
bool is_plain(const c10::DataPtr& ptr) {
  return ptr.get_context() == ptr.get() && ptr.get_deleter() == c10::GetCPUAllocator()->raw_deleter();
}

// Why a CPU tensor's memory cannot be shared, or NULL.
const char* cannot_share(const at::Tensor& host) {
  if (host.layout() != c10::Layout::Strided || !host.has_storage()) return "it is not strided";
  const c10::StorageImpl* storage = host.storage().unsafeGetStorageImpl();
  if (!is_dense(host) || host.storage_offset() != 0 || host.nbytes() != storage->nbytes())
    return "it is a part of a larger tensor";
  if (host.is_conj() || host.is_neg()) return "it is a conjugate or negative view";
  if (to_uba_dtype(host.scalar_type()) == 0) return "its dtype has no place in an adapter";
  if (was_exported(storage) || (!storage->resizable() && storage->allocator() != nullptr))
    return "its memory was handed out, to numpy or by DLPack, and may be written there";
  if (!storage->resizable())  // as torch.load makes them, and numpy leaves them
    return "its memory may have been handed out before the chip was loaded, to numpy, and be written there";
  const c10::DataPtr& ptr = storage->data_ptr();
  if (holder_of(ptr) != nullptr) return nullptr;
  if (storage->has_materializer()) return "it shares its memory with another CPU tensor";
  if (!is_plain(ptr) && !is_pinned(ptr.get()))
    return "its memory is not PyTorch's own (numpy, a file, memory shared between processes)";
  if (host.scalar_type() == c10::kBool && has_odd_bools(host)) return "it has bools other than 0 and 1";
  return nullptr;
}

// The storage's memory as a buffer, which the storage itself uses from now on. Under the lock of sharing().
Holder* begin_to_share(c10::StorageImpl* storage) {
  if (Holder* holder = holder_of(storage->data_ptr())) return holder;
  auto* holder = new Holder{std::make_shared<HostBuffer>(), nullptr, nullptr, {}};
  HostBuffer& buffer = *holder->buffer;
  buffer.bytes = storage->nbytes();
  void* address = storage->_mutable_data_ptr_no_checks().mutable_get();
  // The address stays in place all the while: other threads may be reading the tensor.
  buffer.memory = std::move(storage->_mutable_data_ptr_no_checks());
  storage->set_data_ptr_noswap(c10::DataPtr(address, holder, &release_on_host, c10::Device(c10::kCPU)));
  storage->set_materializer(&separate);
  return holder;
}

std::shared_ptr<Mapping> mapped(HostBuffer& buffer, DeviceEntry& entry) {
  std::weak_ptr<Mapping>& known = buffer.mappings[entry.index];
  if (std::shared_ptr<Mapping> mapping = known.lock()) return mapping;
  std::shared_ptr<Mapping> mapping;
  try {
    mapping = std::make_shared<Mapping>(entry, buffer);
  } catch (const Error& error) {
    if (error.kind == ErrorKind::device_lost) throw;
    // What was dropped may only wait for its stream, and the cache for its next use.
    entry.synchronize_all();
    entry.allocator->empty_cache();
    mapping = std::make_shared<Mapping>(entry, buffer);
  }
  known = mapping;
  return mapping;
}

at::Tensor tensor_over(c10::DataPtr memory, size_t bytes, c10::Allocator* allocator, c10::DispatchKey key,
                       const at::Tensor& like) {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(memory),
                                                       allocator, /*resizable=*/true);
  at::Tensor tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return tensor;
}

void count_share(uint64_t bytes) {
  g_counters.shares.fetch_add(1, std::memory_order_relaxed);
  g_counters.shared_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

}  // namespace

HostMemory strategy(const std::string& declared, bool can_map, const std::string& label) {
  const char* given = std::getenv("TORCHFL_HOST_MEMORY");
  const std::string wanted = given != nullptr && *given != '\0' ? given : declared;
  if (wanted == "copy") return HostMemory::copy;
  if (wanted == "lazy") return HostMemory::lazy;
  TORCH_CHECK_VALUE(wanted == "map" || wanted == "auto", "TORCHFL_HOST_MEMORY is '", wanted,
                    "': it may be map (use host memory where it lies), lazy (copy at the first use) or copy (at once)");
  if (can_map) return HostMemory::map;
  if (wanted == "map")
    stats::log(2, label + ": its adapter cannot map host memory (map_host), so tensors are copied at their first use");
  return HostMemory::lazy;
}

at::Tensor share(const at::Tensor& host, int index, std::string* why) {
  if (host.numel() == 0) {
    *why = "it has no elements";
    return {};
  }
  DeviceEntry& entry = runtime::device(index);
  c10::StorageImpl* storage = host.storage().unsafeGetStorageImpl();
  std::lock_guard<std::mutex> lock(sharing());
  if (const char* reason = cannot_share(host)) {
    *why = reason;
    return {};
  }
  const auto misaligned = [&](const void* address) {
    return reinterpret_cast<uintptr_t>(address) % entry.chip->chip.alignment != 0;
  };
  const bool maps = entry.host_memory == HostMemory::map;
  if (maps && misaligned(storage->data())) {
    *why = c10::str("it is not aligned to ", entry.chip->chip.alignment, " bytes, as the chip demands");
    return {};
  }
  Holder* theirs = begin_to_share(storage);
  HostBuffer& buffer = *theirs->buffer;
  std::lock_guard<std::mutex> buffer_lock(buffer.mutex);
  auto ours = std::make_unique<Holder>(Holder{theirs->buffer, &entry, nullptr, {runtime::current_stream(index)}});
  void* address = buffer.memory.mutable_get();
  if (maps) {
    try {
      ours->mapping = mapped(buffer, entry);
      address = ours->mapping->address;
      if (misaligned(address)) *why = "the chip maps it to an address that is not aligned as it demands";
    } catch (const Error& error) {
      if (error.kind == ErrorKind::device_lost) rethrow(error);
      *why = std::string("the chip cannot map it: ") + error.what();
    }
    if (!why->empty()) return {};
  }
  const c10::Device device(kDevice, c10::DeviceIndex(index));
  at::Tensor out = tensor_over(c10::DataPtr(address, ours.release(), &release_on_device, device), buffer.bytes,
                               device_allocator(), c10::DispatchKey::PrivateUse1, host);
  g_storages.fetch_add(1, std::memory_order_relaxed);
  out.storage().unsafeGetStorageImpl()->set_materializer(&separate);
  count_share(buffer.bytes);
  return out;
}

at::Tensor share_back(const at::Tensor& ours) {
  c10::StorageImpl* storage = ours.storage().unsafeGetStorageImpl();
  std::lock_guard<std::mutex> lock(sharing());
  Holder* holder = holder_of(storage->data_ptr());
  // Without the materializer somebody has its address to write to.
  if (holder == nullptr || !storage->has_materializer()) return {};
  if (holder->mapping != nullptr) {
    for (void* stream : holder->streams) holder->entry->synchronize(stream);  // it may have been written where it lies
  }
  std::lock_guard<std::mutex> buffer_lock(holder->buffer->mutex);
  const std::shared_ptr<HostBuffer>& buffer = holder->buffer;
  auto* theirs = new Holder{buffer, nullptr, nullptr, {}};
  at::Tensor out =
      tensor_over(c10::DataPtr(buffer->memory.mutable_get(), theirs, &release_on_host, c10::Device(c10::kCPU)),
                  buffer->bytes, c10::GetCPUAllocator(), c10::DispatchKey::CPU, ours);
  out.storage().unsafeGetStorageImpl()->set_materializer(&separate);
  count_share(buffer->bytes);
  return out;
}

bool lies_on_host(const c10::DataPtr& ptr) { return ptr.get_deleter() == &release_on_device; }

at::Tensor host_view(const at::Tensor& ours) {
  const Holder* holder = holder_of(ours.storage().data_ptr());
  if (holder->mapping != nullptr) holder->entry->synchronize(runtime::current_stream(holder->entry->index));
  const auto options = at::TensorOptions().dtype(ours.scalar_type());
  if (ours.numel() == 0) return at::empty_strided(ours.sizes(), ours.strides(), options);
  char* start = static_cast<char*>(holder->buffer->memory.mutable_get()) + ours.storage_offset() * ours.itemsize();
  return at::from_blob(
      start, ours.sizes(), ours.strides(), [keep = ours.storage(), buffer = holder->buffer](void*) {}, options);
}

void arrive(const at::Tensor& ours) {
  c10::StorageImpl* storage = ours.storage().unsafeGetStorageImpl();
  if (!lies_on_host(storage->data_ptr())) return;
  // Two threads may use it for the first time at once.
  std::lock_guard<std::mutex> lock(sharing());
  Holder* holder = holder_of(storage->data_ptr());
  if (holder == nullptr || !holder->waits()) return;
  c10::DataPtr fresh = moved(*holder);  // throws: it goes on waiting, and sharing
  storage->clear_materializer();
  storage->set_data_ptr_noswap(std::move(fresh));
}

at::Tensor read_only(const at::Tensor& ours) {
  if (!ours.defined() || !ours.has_storage()) return ours;
  const c10::StorageImpl* storage = ours.storage().unsafeGetStorageImpl();
  if (!storage->has_materializer()) return ours;
  arrive(ours);
  auto* keep = new c10::Storage(ours.storage());
  c10::DataPtr alias(
      const_cast<void*>(storage->data()), keep, [](void* context) { delete static_cast<c10::Storage*>(context); },
      ours.device());
  return tensor_over(std::move(alias), storage->nbytes(), device_allocator(), c10::DispatchKey::PrivateUse1, ours);
}

bool is_spare(const at::Tensor& ours) {
  if (!ours.defined() || ours.use_count() != 1 || !ours.has_storage() || ours.storage().use_count() != 1) return false;
  const c10::DataPtr& memory = ours.storage().data_ptr();
  const Holder* holder = holder_of(memory);
  return holder != nullptr ? !holder->waits() && holder->buffer.use_count() == 1 : block_of(memory) != nullptr;
}

void record_stream(const c10::DataPtr& ptr, void* stream) {
  Holder* holder = holder_of(ptr);
  if (holder == nullptr) return;
  std::lock_guard<std::mutex> lock(sharing());
  if (std::find(holder->streams.begin(), holder->streams.end(), stream) == holder->streams.end())
    holder->streams.push_back(stream);
}

void fresh(const at::Tensor& host) {
  if (!host.is_cpu() || !host.has_storage()) return;
  c10::StorageImpl* storage = host.storage().unsafeGetStorageImpl();
  if (storage->resizable() || was_exported(storage)) return;
  const c10::DataPtr& ptr = storage->data_ptr();
  const bool pinned = is_pinned(ptr.get());
  if (!pinned && !is_plain(ptr)) return;
  storage->set_allocator(pinned ? pinned_allocator() : c10::GetCPUAllocator());
  storage->set_resizable(true);
}

void exported(const at::Tensor& host) {
  if (!host.is_cpu() || !host.has_storage()) return;
  Exports& all = exports();
  std::lock_guard<std::mutex> lock(all.mutex);
  if (all.storages.size() >= all.prune_at) {
    for (auto at = all.storages.begin(); at != all.storages.end();)
      at = at->second.expired() ? all.storages.erase(at) : std::next(at);
    all.prune_at = std::max<size_t>(64, 2 * all.storages.size());
  }
  all.storages.insert_or_assign(host.storage().unsafeGetStorageImpl(), host.storage().getWeakStorageImpl());
}

namespace {

using OptionalDtype = std::optional<c10::ScalarType>;
using OptionalFormat = std::optional<c10::MemoryFormat>;

bool keeps_strides(const at::Tensor& tensor, OptionalFormat format) {
  return !format.has_value() || *format == c10::MemoryFormat::Preserve || tensor.is_contiguous(*format);
}

OpCounters& row(int index, const char* target, const std::string& reason) {
  return stats::counters(runtime::label(index), "aten::_to_copy", "transfer", target, reason);
}

// What did not move; its rows are known after the first.
enum Shared { mapped_there, at_first_use, with_the_host };
void count_saved(int index, Shared how, uint64_t bytes) {
  static constexpr const char* kTargets[] = {"mapped", "at first use", "shared with the host"};
  static std::atomic<OpCounters*> known[std::size(kTargets)][kMaxDevices];
  OpCounters* counters = known[how][index].load(std::memory_order_acquire);
  if (counters == nullptr)
    known[how][index].store(counters = &row(index, kTargets[how], ""), std::memory_order_release);
  counters->calls.fetch_add(1, std::memory_order_relaxed);
  counters->saved_bytes.fetch_add(bytes, std::memory_order_relaxed);
}

// `.to(device)` of a CPU tensor. Undefined: it goes PyTorch's way.
at::Tensor to_device_shared(const at::Tensor& self, int index, OptionalDtype dtype, bool non_blocking,
                            OptionalFormat format) {
  DeviceEntry& entry = runtime::device(index);
  if (entry.host_memory == HostMemory::copy || self.layout() != c10::Layout::Strided) return {};
  at::Tensor source = self;
  if (dtype.has_value() && *dtype != self.scalar_type()) source = source.to(*dtype);
  if (!keeps_strides(source, format)) source = source.contiguous(*format);
  std::string why;
  if (at::Tensor shared = share(source, index, &why); shared.defined()) {
    count_saved(index, entry.host_memory == HostMemory::map ? mapped_there : at_first_use, source.nbytes());
    return shared;
  }
  if (!is_dense(source)) return {};
  at::Tensor out = empty_on(index, source.scalar_type(), source.sizes(), source.strides());
  if (source.numel() == 0) return out;
  const uint64_t before = bytes_moved();
  copy_tensor(out, source, non_blocking);
  OpCounters& counters = row(index, "host to device", why);
  counters.calls.fetch_add(1, std::memory_order_relaxed);
  counters.host_bytes.fetch_add(bytes_moved() - before, std::memory_order_relaxed);
  return out;
}

// The reverse. Undefined: it goes PyTorch's way.
at::Tensor to_host_shared(const at::Tensor& self, OptionalDtype dtype, OptionalFormat format) {
  if (C10_LIKELY(g_storages.load(std::memory_order_relaxed) == 0) || self.numel() == 0) return {};
  if (dtype.value_or(self.scalar_type()) != self.scalar_type() || !lies_on_host(self.storage().data_ptr()) ||
      !is_dense(self) || self.nbytes() != self.storage().nbytes() || self.is_conj() || self.is_neg() ||
      self.scalar_type() == c10::kBool ||  // written as bytes it may hold others than 0 and 1
      !keeps_strides(self, format)) {
    return {};
  }
  at::Tensor out = share_back(self);
  if (out.defined()) count_saved(self.device().index(), with_the_host, self.nbytes());
  return out;
}

}  // namespace

// PyTorch selects the backend by the device that is asked for, or the tensor's: both directions come here.
at::Tensor to_copy(const at::Tensor& self, OptionalDtype dtype, std::optional<c10::Layout> layout,
                   std::optional<c10::Device> device, std::optional<bool> pin_memory, bool non_blocking,
                   OptionalFormat format) {
  if (device.has_value() && !pin_memory.value_or(false) &&
      layout.value_or(c10::Layout::Strided) == c10::Layout::Strided) {
    at::Tensor out;
    if (device->type() == kDevice && self.is_cpu()) {
      const int index = device->has_index() ? device->index() : runtime::current_device();
      out = to_device_shared(self, index, dtype, non_blocking, format);
    } else if (device->is_cpu() && self.device().type() == kDevice) {
      out = to_host_shared(self, dtype, format);
    }
    if (out.defined()) return out;
  }
  return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format);
}

}  // namespace torchfl::unified
