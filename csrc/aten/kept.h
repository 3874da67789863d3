// kept.h: stand-ins of tensors that outlive the call they were made for: a weight is converted once, not at every step,
// and consecutive users of one tensor share its stand-in.
//
// Contract: find_kept() gives a stand-in only if the tensor's storage is the very one it was made of and nothing has
// been written to it since. Two things watch over that: PyTorch's version counter, and note_written(), which every
// write of this backend passes (`x.data` has a version counter of its own). What is kept is bounded for each device
// (an eighth of its memory, 256 MiB at most, the least recently used go first), and given up when memory runs out, by
// empty_cache(), and when the tensor's storage is gone. All functions are safe from any thread.
#pragma once
#include <ATen/ATen.h>

#include <atomic>
#include <functional>

namespace torchfl {

// dtype, sizes and strides of the stand-in.
struct StandInForm {
  c10::ScalarType dtype;
  c10::IntArrayRef sizes, strides;
};

at::Tensor find_kept(const at::Tensor& tensor, const StandInForm& form, void* stream);  // undefined: none
void keep(const at::Tensor& tensor, const StandInForm& form, void* stream, const at::Tensor& stand_in);

// What `make` derives from several tensors of one device, in whatever form (torch::fl::kept in uba_aten.h): kept under
// the first one's name, and given up with any of them. Made anew each time where one of them cannot be watched.
at::Tensor kept_or_made(at::ArrayRef<at::Tensor> sources, int64_t key, const std::function<at::Tensor()>& make);

// Gives up all of a device. Returns whether there was anything.
bool drop_kept(int device);

namespace kept {
extern std::atomic<int> g_count;  // of all devices
void forget(const c10::StorageImpl* storage);
}  // namespace kept

// To be called before a kernel, a program, a copy or a fill writes to the tensor, and before its address is asked for:
// one that shares its memory (unified.h) gets memory of its own.
inline void note_written(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  if (C10_UNLIKELY(storage->has_materializer())) storage->mutable_data();
  if (C10_UNLIKELY(kept::g_count.load(std::memory_order_relaxed) != 0)) kept::forget(storage);
}

}  // namespace torchfl
