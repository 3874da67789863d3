// native_ops.cpp: the operators that every backend must have of its own: creation, views, resizing, copies, fills.
//
// Contract: no view is ever made by copying (a fallback that copies breaks aliasing silently). None of these depends
// on the descriptor.
#include <ATen/EmptyTensor.h>
#include <ATen/InferSize.h>
#include <ATen/native/Resize.h>
#include <ATen/native/ResizeCommon.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/copy_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include "hooks.h"
#include "router.h"
#include "transfer.h"

namespace torchfl {
namespace {

int index_from(std::optional<c10::Device> device) {
  return device.has_value() && device->has_index() ? device->index() : runtime::current_device();
}

c10::ScalarType dtype_from(std::optional<c10::ScalarType> dtype) {
  return dtype.has_value() ? *dtype : c10::typeMetaToScalarType(c10::get_default_dtype());
}

bool fills_uninitialized() {
  const auto& context = at::globalContext();
  return C10_UNLIKELY(context.deterministicAlgorithms()) && context.deterministicFillUninitializedMemory();
}

// In deterministic mode PyTorch gives nobody what happened to be in memory.
at::Tensor uninitialized(at::Tensor out) {
  if (fills_uninitialized() && out.numel() > 0) at::native::fill_empty_deterministic_(out);
  return out;
}

// A layout that somebody asks for in so many words is not replaced by another: he may have planned with its speed.
void check_layout(const Chip& chip, int64_t rank, c10::MemoryFormat format) {
  const bool planes = format == c10::MemoryFormat::ChannelsLast;
  if (!planes && format != c10::MemoryFormat::ChannelsLast3d) return;
  std::string listed;
  for (const std::string& layout : chip.layouts) {
    if (layout == (planes ? "NHWC" : "NDHWC")) return;
    if (int64_t(layout.size()) == rank) listed += (listed.empty() ? "" : ", ") + layout;
  }
  TORCH_CHECK(listed.empty(), "Layout ", planes ? "channels_last" : "channels_last_3d", " not supported on ", chip.name,
              " (supported: ", listed, ")");
}

at::Tensor empty_memory_format(c10::SymIntArrayRef sym_sizes, std::optional<c10::ScalarType> dtype,
                               std::optional<c10::Layout> layout, std::optional<c10::Device> device,
                               std::optional<bool> pin_memory, std::optional<c10::MemoryFormat> format) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(layout.value_or(c10::Layout::Strided) == c10::Layout::Strided, "torch.empty on ",
              runtime::label(index_from(device)), ": only strided tensors can be created, not ", *layout);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(sym_sizes);
  at::detail::check_size_nonnegative(sizes);
  const int index = index_from(device);
  const Chip& chip = runtime::device_unopened(index).chip->chip;
  if (!format.has_value() && chip.default_layout.size() == sizes.size() && !is_logical_order(chip.default_layout))
    return uninitialized(empty_on(index, dtype_from(dtype), sizes, layout_strides(chip.default_layout, sizes.data())));
  at::Tensor out = empty_contiguous_on(index, dtype_from(dtype), sizes);
  if (format.has_value() && *format != c10::MemoryFormat::Contiguous) {
    check_layout(chip, out.dim(), *format);
    out.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  }
  return uninitialized(std::move(out));
}

at::Tensor empty_strided(c10::SymIntArrayRef sym_sizes, c10::SymIntArrayRef sym_strides,
                         std::optional<c10::ScalarType> dtype, std::optional<c10::Layout> layout,
                         std::optional<c10::Device> device, std::optional<bool> pin_memory) {
  TORCH_CHECK(!pin_memory.value_or(false), "Only dense CPU tensors can be pinned");
  TORCH_CHECK(layout.value_or(c10::Layout::Strided) == c10::Layout::Strided,
              "only strided tensors can be created, not ", *layout);
  const auto sizes = C10_AS_INTARRAYREF_SLOW(sym_sizes), strides = C10_AS_INTARRAYREF_SLOW(sym_strides);
  TORCH_CHECK(sizes.size() == strides.size(), "empty_strided: ", sizes.size(), " sizes but ", strides.size(),
              " strides");
  at::detail::check_size_nonnegative(sizes);
  for (int64_t stride : strides) TORCH_CHECK(stride >= 0, "empty_strided: negative stride ", stride);
  return uninitialized(empty_on(index_from(device), dtype_from(dtype), sizes, strides));
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(
      self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
      offset.has_value() ? std::optional<int64_t>(offset->guard_int(__FILE__, __LINE__)) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef sizes) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(sizes));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
}

// Bytes of storage that the tensor's shape asks for. Raises where no storage could hold them.
size_t bytes_reached(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.itemsize(),
                                          size_t(tensor.storage_offset()));
}

// Grows the storage when the new shape needs it, as at::native::resize_ does for the CPU.
void resize_geometry(const at::Tensor& self, c10::IntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() != sizes) {
    at::detail::check_size_nonnegative(sizes);
    impl->set_sizes_contiguous(sizes);
  }
  if (format.has_value() && *format != c10::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  const size_t bytes = bytes_reached(self);
  if (bytes > self.storage().nbytes()) resize_storage(self.storage().unsafeGetStorageImpl(), bytes);
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef sizes, std::optional<c10::MemoryFormat> format) {
  const auto before = int64_t(self.storage().nbytes());
  resize_geometry(self, C10_AS_INTARRAYREF_SLOW(sizes), format);
  if (fills_uninitialized()) at::native::fill_resize_deterministic_(self, before);
  return self;
}

at::Tensor& set_storage_offset(at::Tensor& self, c10::Storage source, c10::SymInt offset, c10::SymIntArrayRef sizes,
                               c10::SymIntArrayRef strides) {
  TORCH_CHECK(source.device().type() == kDevice, "set_: the storage is on ", source.device(), ", the tensor on ",
              self.device());
  const auto size_list = C10_AS_INTARRAYREF_SLOW(sizes), stride_list = C10_AS_INTARRAYREF_SLOW(strides);
  at::native::checkSetStorage(self, source, offset.guard_int(__FILE__, __LINE__), size_list, stride_list);
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_offset(offset.guard_int(__FILE__, __LINE__));
  if (stride_list.data() == nullptr) {
    impl->set_sizes_contiguous(size_list);
  } else {
    impl->set_sizes_and_strides(size_list, stride_list);
  }
  const size_t bytes = bytes_reached(self);
  if (bytes > self.storage().nbytes()) resize_storage(self.storage().unsafeGetStorageImpl(), bytes);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, c10::Storage source) {
  const auto count = int64_t(source.nbytes() / self.itemsize());
  return set_storage_offset(self, std::move(source), 0, {c10::SymInt(count)}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  if (self.is_same(source)) return self;
  return set_storage_offset(self, source.storage(), source.sym_storage_offset(), source.sym_sizes(),
                            source.sym_strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  c10::DeviceGuard on_device(self.device());
  c10::Storage storage(c10::Storage::use_byte_size_t(), 0, device_allocator(), /*resizable=*/true);
  return set_storage_offset(self, std::move(storage), 0, {c10::SymInt(0)}, {});
}

// The row of a copy, by the way it went. What the chip could not do is told once, as every fallback is.
OpCounters& copy_counters(std::atomic<OpCounters*>* cache, int index, const char* op, Way way) {
  OpCounters* known = cache[index].load(std::memory_order_acquire);
  if (C10_LIKELY(known != nullptr)) return *known;
  const std::string label = runtime::label(index);
  bool created = false;
  auto row = [&](const char* path, const char* target, const std::string& reason = "") {
    return &stats::counters(label, op, path, target, reason, &created);
  };
  switch (way) {
    case Way::nothing:  // is not counted
    case Way::block:
      known = row("native", "copy");
      break;
    case Way::strided:
      known = row("native", "copy_nd");
      break;
    case Way::host:
      known = row("cpu", "cpu", "its adapter has no copy of these dtypes or strides (copy_nd)");
      if (created) stats::log(2, std::string(op) + " on " + label + " runs on the CPU: " + known->reason);
      break;
    case Way::to_device:
      known = row("transfer", "host to device");
      break;
    case Way::to_host:
      known = row("transfer", "device to host");
      break;
    case Way::between:
      known = row("transfer", "device to device");
      break;
  }
  cache[index].store(known, std::memory_order_release);
  return *known;
}

// Runs a copy between `ours` and whatever else, and counts it. `copy` returns the way it went.
template <class Copy>
void counted_copy(const at::Tensor& ours, const char* op, Copy&& copy) {
  // One for each call site: the lambda's type is its own.
  static std::atomic<OpCounters*> cache[size_t(Way::between) + 1][kMaxDevices];
  const int index = ours.device().index();
  const uint64_t before = bytes_moved();
  Timer timer(index);
  const Way way = copy();
  if (way == Way::nothing) return;
  OpCounters& counters = copy_counters(cache[size_t(way)], index, op, way);
  timer.count(counters);
  if (const uint64_t moved = bytes_moved() - before; moved > 0)
    counters.host_bytes.fetch_add(moved, std::memory_order_relaxed);
}

const at::Tensor& of_ours(const at::Tensor& dst, const at::Tensor& src) {
  return dst.device().type() == kDevice ? dst : src;
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  TORCH_CHECK(self.numel() == 1, "a Tensor with ", self.numel(), " elements cannot be converted to Scalar");
  at::Scalar number;
  counted_copy(self, "aten::_local_scalar_dense", [&] {
    number = at::_local_scalar_dense(to_host(self));
    return Way::to_host;
  });
  return number;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  counted_copy(of_ours(dst, self), "aten::copy_", [&] { return copy_tensor(dst, self, non_blocking); });
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (dst.sizes() != self.sizes()) {
    if (dst.device().type() == kDevice) {
      resize_geometry(dst, self.sizes(), std::nullopt);
    } else {
      dst.resize_(self.sizes());
    }
  }
  counted_copy(of_ours(dst, self), "aten::copy_", [&] { return copy_tensor(dst, self, false); });
  return dst;
}

at::Tensor& fill_scalar(at::Tensor& self, const at::Scalar& value) {
  builtin_call(self, "aten::fill_", "fill_nd", [&] { fill_tensor(self, value); });
  return self;
}

at::Tensor& fill_from_tensor(at::Tensor& self, const at::Tensor& value) {
  TORCH_CHECK(value.dim() == 0, "fill_ only supports 0-dimension value tensor but got tensor with ", value.dim(),
              " dimensions.");
  if (value.is_cpu()) return fill_scalar(self, value.item());
  // Broadcasts on the device: no element needs to visit the host.
  counted_copy(self, "aten::fill_", [&] { return copy_tensor(self, value, false); });
  return self;
}

at::Tensor& zero_(at::Tensor& self) { return fill_scalar(self, 0); }

void record_stream(at::Tensor& self, c10::Stream stream) {
  static_cast<c10::DeviceAllocator*>(device_allocator())->recordStream(self.storage().data_ptr(), stream);
}

// Of row-major tensors of one dtype and rank, as most are. Undefined: it is another call, and PyTorch has to tell what
// the result is like, which takes a hundred times as long.
at::Tensor plain_cat(at::ArrayRef<std::reference_wrapper<const at::Tensor>> pieces, int64_t dim) {
  const at::Tensor& first = pieces[0];
  if (first.dim() == 0 || dim < -first.dim() || dim >= first.dim()) return {};
  const size_t axis = size_t(c10::maybe_wrap_dim(dim, first.dim()));
  at::DimVector sizes(first.sizes());
  for (const at::Tensor& piece : pieces) {
    if (piece.dim() != first.dim() || piece.scalar_type() != first.scalar_type() || piece.numel() == 0 ||
        piece.is_conj() || piece.is_neg() || !piece.is_contiguous() ||
        piece.suggest_memory_format() != c10::MemoryFormat::Contiguous)
      return {};
    for (size_t d = 0; d < sizes.size(); d++) {
      if (d != axis && piece.sizes()[d] != first.sizes()[d]) return {};
    }
    sizes[axis] += piece.sizes()[axis];
  }
  sizes[axis] -= first.sizes()[axis];
  at::Tensor out = empty_contiguous_on(first.device().index(), first.scalar_type(), sizes);
  builtin_call(out, "aten::cat", "copy_nd", [&] {
    // What narrow() gives for each of them, without calls through the dispatcher.
    const at::Tensor part =
        at::detail::make_tensor<c10::TensorImpl>(c10::Storage(out.storage()), out.key_set(), out.dtype());
    int64_t start = 0;
    for (const at::Tensor& piece : pieces) {
      part.unsafeGetTensorImpl()->set_sizes_and_strides(piece.sizes(), out.strides(), start);
      copy_on_device(part, piece);
      start += piece.sizes()[axis] * out.strides()[axis];
    }
  });
  return out;
}

// Concatenation is data movement: one strided copy for each piece, on the chip.
at::Tensor& cat_out(const at::ITensorListRef& tensors, int64_t dim, at::Tensor& out) {
  const auto pieces = tensors.materialize();
  const c10::Device home = out.defined() ? out.device() : pieces[0].get().device();
  for (const at::Tensor& piece : pieces) {
    auto name = [](c10::Device device) {
      return device.type() == kDevice ? runtime::label(device.index()) : device.str();
    };
    TORCH_CHECK(piece.device() == home, "Expected all tensors to be on the same device, but aten::cat got tensors on ",
                name(home), " and on ", name(piece.device()), ".");
  }
  if (!out.defined()) {
    out = plain_cat(pieces, dim);
    if (out.defined()) return out;
  }
  std::vector<at::Tensor> shapes;
  for (const at::Tensor& piece : pieces) {
    shapes.push_back(at::empty_strided(piece.sizes(), piece.strides(), piece.options().device(c10::kMeta)));
  }
  const at::Tensor like = at::cat(shapes, dim);  // sizes, dtype and memory format
  if (!out.defined()) {
    out = empty_on(home.index(), like.scalar_type(), like.sizes(), like.strides());
  } else {
    TORCH_CHECK(c10::canCast(like.scalar_type(), out.scalar_type()), "torch.cat(): result type ", like.scalar_type(),
                " can't be cast to the desired output type ", out.scalar_type());
    at::assert_no_internal_overlap(out);
    for (const at::Tensor& piece : pieces) at::assert_no_overlap(out, piece);
    if (out.sizes() != like.sizes()) resize_geometry(out, like.sizes(), like.suggest_memory_format());
  }
  builtin_call(out, "aten::cat", "copy_nd", [&] {
    const int64_t axis = like.dim() == 0 ? 0 : c10::maybe_wrap_dim(dim, like.dim());
    int64_t start = 0;
    for (const at::Tensor& piece : pieces) {
      if (piece.dim() == 1 && piece.size(0) == 0 && like.dim() != 1) continue;  // torch's legacy empty tensor
      const int64_t size = piece.size(axis);
      copy_tensor(out.narrow(axis, start, size), piece, true);
      start += size;
    }
  });
  return out;
}

at::Tensor cat(const at::ITensorListRef& tensors, int64_t dim) {
  at::Tensor out;
  return cat_out(tensors, dim, out);
}

// An adapter is promised bools of 0 and 1.
at::Tensor view_dtype(const at::Tensor& self, c10::ScalarType dtype) {
  if (dtype == c10::kBool && self.scalar_type() != c10::kBool && self.itemsize() == 1 && self.numel() > 0) {
    const at::Tensor bytes = at::native::view_dtype(self, c10::kByte);
    TORCH_CHECK(!bytes.gt(1).any().item<bool>(), "view(torch.bool): on ", runtime::label(self.device().index()),
                " a bool is a byte of 0 or 1, and this ", self.scalar_type(),
                " tensor has others: use .ne(0), which makes a tensor of its own, or view it on the CPU");
  }
  return at::native::view_dtype(self, dtype);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty_memory_format);
  m.impl("empty_strided", &empty_strided);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("view.dtype", &view_dtype);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("unfold", &at::native::unfold);
  m.impl("view_as_real", &at::native::view_as_real);
  m.impl("view_as_complex", &at::native::view_as_complex);
  m.impl("resize_", &resize_);
  m.impl("set_.source_Storage_storage_offset", &set_storage_offset);
  m.impl("set_.source_Storage", &set_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_nothing);
  m.impl("_local_scalar_dense", &local_scalar_dense);
  // PyTorch's own, which end in `_copy_from`. As kernels of ours: data moves in one way, whatever is registered.
  m.impl("copy_", &at::native::copy_);
  m.impl("_to_copy", &unified::to_copy);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("fill_.Scalar", &fill_scalar);
  m.impl("fill_.Tensor", &fill_from_tensor);
  m.impl("zero_", &zero_);
  m.impl("record_stream", &record_stream);
  m.impl("cat", &cat);
  m.impl("cat.out", &cat_out);
}

// The conj and neg fallbacks materialise their arguments by `clone`, which copies by `_copy_from`, which they would
// catch again, without end. copy_tensor resolves the bits itself.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
  m.impl("_copy_from_and_resize", torch::CppFunction::makeFallthrough());
}

}  // namespace torchfl
