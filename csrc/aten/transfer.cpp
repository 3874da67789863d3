// transfer.cpp: see transfer.h.
#include "transfer.h"

#include <ATen/EmptyTensor.h>
#include <ATen/MemoryOverlap.h>
#include <c10/util/safe_numerics.h>

#include "kept.h"
#include "stats.h"

namespace torchfl {

TransferCounters g_transfers;

namespace {

thread_local uint64_t t_bytes_moved = 0;

void count(std::atomic<uint64_t>& copies, std::atomic<uint64_t>& bytes, uint64_t moved) {
  copies.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(moved, std::memory_order_relaxed);
}

void bytes_to_host(DeviceEntry& entry, void* dst, const void* src, uint64_t bytes) {
  guarded([&] { entry.device->copy(runtime::current_stream(entry.index), dst, src, bytes, UBA_DEVICE_TO_HOST); });
  count(g_transfers.to_host_copies, g_transfers.to_host_bytes, bytes);
  t_bytes_moved += bytes;
}

char* address(const at::Tensor& tensor) {
  const Place place = place_of(tensor);
  return static_cast<char*>(place.data) + place.offset;
}

// A pair of views with neighbouring dimensions merged wherever both allow it: chips bound the rank, and fewer, longer
// runs move faster.
struct Merged {
  c10::SmallVector<int64_t, 8> sizes, dst, src;
};
Merged merge_dims(const at::Tensor& dst, const at::Tensor& src) {
  Merged out;
  for (int64_t d = 0; d < dst.dim(); d++) {
    const int64_t size = dst.size(d);
    if (size == 1) continue;
    if (!out.sizes.empty() && out.dst.back() == dst.stride(d) * size && out.src.back() == src.stride(d) * size) {
      out.sizes.back() *= size;
      out.dst.back() = dst.stride(d);
      out.src.back() = src.stride(d);
    } else {
      out.sizes.push_back(size);
      out.dst.push_back(dst.stride(d));
      out.src.push_back(src.stride(d));
    }
  }
  return out;
}

// The chip's own strided copy. False when it has none for this case.
bool chip_copies(DeviceEntry& entry, const at::Tensor& dst, const at::Tensor& src) {
  uba_tensor to = view_of(dst), from = view_of(src);
  if (to.dtype == 0 || from.dtype == 0) return false;
  const Merged merged = merge_dims(dst, src);
  to.rank = from.rank = int32_t(merged.sizes.size());
  to.sizes = from.sizes = merged.sizes.data();
  to.strides = merged.dst.data();
  from.strides = merged.src.data();
  return guarded([&] { return entry.device->copy_nd(runtime::current_stream(entry.index), to, from); });
}

bool same_strides(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t d = 0; d < a.dim(); d++) {
    if (a.size(d) != 1 && a.stride(d) != b.stride(d)) return false;
  }
  return true;
}

// `stable`: the source will not be written until the stream has passed (pinned memory that the user promised, or a
// temporary of ours), so it may be read asynchronously.
// Whether to_host() of the tensor is a view of its memory, not a copy.
bool lies_in_reach(const at::Tensor& tensor) {
  return runtime::device(tensor.device().index()).device->host_accessible() ||
         unified::lies_on_host(tensor.storage().data_ptr());
}

void host_to_device(const at::Tensor& dst, const at::Tensor& src, bool stable) {
  DeviceEntry& entry = runtime::device(dst.device().index());
  if (!is_dense(dst)) {
    at::Tensor packed = empty_contiguous_on(entry.index, dst.scalar_type(), dst.sizes());
    host_to_device(packed, src, stable);
    copy_on_device(dst, packed);
    return;
  }
  at::Tensor staged = src;
  const bool as_is = src.scalar_type() == dst.scalar_type() && same_strides(src, dst);
  if (!as_is) {
    // Conversion happens on the host: a chip need not know every dtype that it stores.
    staged = at::empty_strided(dst.sizes(), dst.strides(), src.options().dtype(dst.scalar_type()));
    staged.copy_(src);
  }
  if (dst.scalar_type() == c10::kBool && has_odd_bools(staged)) staged = staged.view(c10::kByte).ne(0);
  const uint64_t bytes = uint64_t(dst.numel()) * dst.itemsize();
  constexpr uint64_t kStageBelow = 1 << 18;  // copying so little is cheaper than waiting for the queue
  if (staged.is_same(src) && !stable && bytes <= kStageBelow) {
    staged = at::empty_strided(dst.sizes(), dst.strides(), src.options());
    std::memcpy(staged.mutable_data_ptr(), src.const_data_ptr(), bytes);
  }
  bytes_to_device(entry, address(dst), staged.const_data_ptr(), bytes);
  void* stream = runtime::current_stream(entry.index);
  if (staged.is_same(src) && !stable) {
    entry.synchronize(stream);  // the user may change the source as soon as we return
  } else {
    entry.keep_until_passed(stream, std::move(staged));
  }
}

void device_to_host(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  DeviceEntry& entry = runtime::device(src.device().index());
  if (lies_in_reach(src)) {
    dst.copy_(to_host(src));
    return;
  }
  void* stream = runtime::current_stream(entry.index);
  const bool direct = is_dense(src) && src.scalar_type() == dst.scalar_type() && same_strides(src, dst);
  if (direct) {
    bytes_to_host(entry, dst.mutable_data_ptr(), address(src), uint64_t(src.numel()) * src.itemsize());
    // Only pinned memory may be written behind the caller's back, as users of torch.cuda expect.
    if (non_blocking && dst.is_pinned()) {
      entry.keep_until_passed(stream, dst);
    } else {
      entry.synchronize(stream);
    }
    return;
  }
  dst.copy_(to_host(src));
}

void device_to_device(const at::Tensor& dst, const at::Tensor& src) {
  DeviceEntry &to = runtime::device(dst.device().index()), &from = runtime::device(src.device().index());
  // Order: everything enqueued on the source's stream happens before the copy, and the copy before what follows on
  // either side. Waiting on the host is right for any pair of chips.
  at::Tensor packed = src;
  if (!is_dense(src)) {
    packed = empty_contiguous_on(from.index, src.scalar_type(), src.sizes());
    copy_on_device(packed, src);
  }
  if (to.device->adapter() == from.device->adapter() && packed.scalar_type() == dst.scalar_type() && is_dense(dst) &&
      same_strides(dst, packed)) {
    const uint64_t bytes = uint64_t(dst.numel()) * dst.itemsize();
    from.synchronize(runtime::current_stream(from.index));
    void* stream = runtime::current_stream(to.index);
    const bool peer =
        guarded([&] { return to.device->peer_copy(stream, address(dst), *from.device, address(packed), bytes); });
    if (peer) {
      count(g_transfers.peer_copies, g_transfers.peer_bytes, bytes);
      to.synchronize(stream);
      return;
    }
  }
  host_to_device(dst, to_host(packed), /*stable=*/!lies_in_reach(packed));
}

// Strict mode: nothing that the CPU does to a device's memory goes unseen.
void refuse_if_strict(const DeviceEntry& entry, const at::Tensor& dst, const at::Tensor& src) {
  if (C10_LIKELY(!stats::g_strict.load(std::memory_order_relaxed))) return;
  stats::unsupported(
      c10::str("Op 'aten::copy_' not supported on device '", entry.label, "' from ", src.scalar_type(),
               " with strides ", src.strides(), " to ", dst.scalar_type(), " with strides ", dst.strides(),
               ": its adapter has no such copy (copy_nd). It would run on the CPU, which ", "strict mode forbids."));
}

}  // namespace

uint64_t bytes_moved() { return t_bytes_moved; }

void bytes_to_device(DeviceEntry& entry, void* dst, const void* src, uint64_t bytes) {
  guarded([&] { entry.device->copy(runtime::current_stream(entry.index), dst, src, bytes, UBA_HOST_TO_DEVICE); });
  count(g_transfers.to_device_copies, g_transfers.to_device_bytes, bytes);
  t_bytes_moved += bytes;
}

bool has_odd_bools(const at::Tensor& host) {
  const auto* bytes = static_cast<const uint8_t*>(host.const_data_ptr());
  uint8_t all = 0;
  for (int64_t i = 0; i < host.numel(); i++) all |= bytes[i];
  return all > 1;
}

bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

int64_t span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return 0;
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); d++) last += (tensor.size(d) - 1) * tensor.stride(d);
  return last + 1;
}

at::Tensor empty_planned(int index, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                         size_t bytes, bool contiguous) {
  // The allocator follows the current device; tensors of another device are rare, so the switch is not.
  c10::DataPtr data;
  if (C10_LIKELY(index == runtime::current_device())) {
    data = device_allocator()->allocate(bytes);
  } else {
    c10::DeviceGuard on_device(c10::Device(kDevice, c10::DeviceIndex(index)));
    data = device_allocator()->allocate(bytes);
  }
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(data),
                                                       device_allocator(), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  if (contiguous) {
    tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  } else {
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  }
  return tensor;
}

at::Tensor empty_on(int index, c10::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides) {
  const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, c10::elementSize(dtype));  // refuses overflow
  return empty_planned(index, dtype, sizes, strides, bytes, false);
}

at::Tensor empty_contiguous_on(int index, c10::ScalarType dtype, c10::IntArrayRef sizes) {
  int64_t strides[64];  // PyTorch's own limit of dimensions
  TORCH_CHECK(sizes.size() <= 64, "a tensor of ", sizes.size(), " dimensions: 64 is the limit");
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  return empty_on(index, dtype, sizes, c10::IntArrayRef(strides, sizes.size()));
}

at::Tensor to_host(const at::Tensor& tensor, bool wait) {
  DeviceEntry& entry = runtime::device(tensor.device().index());
  if (C10_UNLIKELY(unified::lies_on_host(tensor.storage().data_ptr()))) return unified::host_view(tensor);
  const auto options = at::TensorOptions().dtype(tensor.scalar_type()).device(c10::kCPU);
  if (entry.device->host_accessible()) {
    entry.synchronize(runtime::current_stream(entry.index));
    if (tensor.numel() == 0) return at::empty_strided(tensor.sizes(), tensor.strides(), options);
    return at::from_blob(
        address(tensor), tensor.sizes(), tensor.strides(), [keep = tensor.storage()](void*) {}, options);
  }
  const int64_t span = span_of(tensor);
  at::Tensor source = tensor;
  if (span > 2 * tensor.numel() + 64) {
    // By the chip alone: any other way to pack it would pass through here again.
    at::Tensor packed = empty_contiguous_on(entry.index, tensor.scalar_type(), tensor.sizes());
    if (tensor.numel() > 0 && chip_copies(entry, packed, tensor)) source = packed;
  }
  const int64_t moved = span_of(source);
  at::Tensor host =
      at::detail::empty_strided_cpu(source.sizes(), source.strides(), source.scalar_type(), /*pin_memory=*/false);
  if (moved > 0) {
    bytes_to_host(entry, host.mutable_data_ptr(), address(source), uint64_t(moved) * source.itemsize());
    if (wait) entry.synchronize(runtime::current_stream(entry.index));
  }
  return host;
}

at::Tensor to_device(const at::Tensor& host, int index) {
  const bool dense = is_dense(host);
  at::Tensor source = dense ? host : host.contiguous();
  DeviceEntry& entry = runtime::device(index);
  if (entry.host_memory != HostMemory::copy) {
    std::string why;
    if (at::Tensor shared = unified::share(source, index, &why); shared.defined()) return shared;
  }
  at::Tensor out = empty_on(index, source.scalar_type(), source.sizes(), source.strides());
  if (source.numel() == 0) return out;
  bytes_to_device(entry, address(out), source.const_data_ptr(), uint64_t(source.numel()) * source.itemsize());
  entry.keep_until_passed(runtime::current_stream(index), std::move(source));
  return out;
}

namespace {

bool complex_to_bool(const at::Tensor& dst, const at::Tensor& src) {
  return src.is_complex() && dst.scalar_type() == c10::kBool;  // looks at both parts
}

// Between complex and other numbers, or complex ones of two widths: copies of their parts.
Way copy_parts(const at::Tensor& dst, const at::Tensor& src) {
  if (dst.is_complex() && src.is_complex()) return copy_on_device(at::view_as_real(dst), at::view_as_real(src));
  if (src.is_complex()) return copy_on_device(dst, at::view_as_real(src).select(-1, 0));
  const at::Tensor parts = at::view_as_real(dst);
  fill_tensor(parts.select(-1, 1), 0);
  return copy_on_device(parts.select(-1, 0), src);
}

}  // namespace

Way copy_on_device(const at::Tensor& dst, const at::Tensor& src) {
  if (dst.numel() == 0) return Way::nothing;
  DeviceEntry& entry = runtime::device(dst.device().index());
  if (dst.scalar_type() == src.scalar_type() && same_strides(dst, src)) {
    if (address(dst) == address(src)) return Way::nothing;
    if (is_dense(dst)) {
      guarded([&] {
        entry.device->copy(runtime::current_stream(entry.index), address(dst), address(src),
                           uint64_t(dst.numel()) * dst.itemsize(), UBA_DEVICE_TO_DEVICE);
      });
      return Way::block;
    }
  }
  if (chip_copies(entry, dst, src)) return Way::strided;
  const bool has_parts = dst.is_complex() || src.is_complex();
  if (has_parts && dst.scalar_type() != src.scalar_type() && !complex_to_bool(dst, src)) return copy_parts(dst, src);
  refuse_if_strict(entry, dst, src);
  if (entry.device->host_accessible()) {
    to_host(dst).copy_(to_host(src));
    return Way::host;
  }
  if (is_dense(dst)) {
    host_to_device(dst, to_host(src), /*stable=*/!lies_in_reach(src));
    return Way::host;
  }
  // Neither dense nor something the chip can scatter: change the covered bytes on the host and put them back.
  at::Tensor window = to_host(dst.as_strided({span_of(dst)}, {1}, dst.storage_offset()));
  window.as_strided(dst.sizes(), dst.strides(), 0).copy_(to_host(src));
  host_to_device(dst.as_strided({span_of(dst)}, {1}, dst.storage_offset()), window, /*stable=*/true);
  return Way::host;
}

Way copy_tensor(const at::Tensor& dst, const at::Tensor& src, bool non_blocking) {
  if (dst.numel() == 0) return Way::nothing;
  Way way;
  at::assert_no_internal_overlap(dst);
  if (dst.device().type() == kDevice) note_written(dst);
  at::Tensor to = dst, from = src;
  const bool conjugate = dst.is_conj() != src.is_conj();
  const bool negate = dst.is_neg() != src.is_neg();
  if (to.is_conj()) to = to.conj();
  if (from.is_conj()) from = from.conj();
  if (to.is_neg()) to = at::_neg_view(to);
  if (from.is_neg()) from = at::_neg_view(from);
  if (from.sizes() != to.sizes()) from = from.expand(to.sizes());

  const bool to_ours = to.device().type() == kDevice, from_ours = from.device().type() == kDevice;
  if (to_ours && from_ours && to.device() == from.device()) {
    at::assert_no_partial_overlap(to, from);
    way = copy_on_device(to, from);
  } else if (to_ours && from_ours) {
    way = Way::between;
    device_to_device(to, from);
  } else if (to_ours) {
    TORCH_CHECK(from.is_cpu(), "cannot copy from ", from.device(), " to ", to.device(), ": go through the CPU");
    way = Way::to_device;
    host_to_device(to, from, non_blocking && from.is_pinned());
  } else {
    TORCH_CHECK(to.is_cpu(), "cannot copy from ", from.device(), " to ", to.device(), ": go through the CPU");
    way = Way::to_host;
    device_to_host(to, from, non_blocking && !conjugate && !negate);
  }
  // The imaginary parts change sign where they are: conj_physical_ would need a kernel of its own.
  if (conjugate) at::view_as_real(to).select(-1, 1).neg_();
  if (negate) to.neg_();
  return way;
}

void fill_tensor(const at::Tensor& whole, const c10::Scalar& value) {
  if (whole.numel() == 0) return;
  note_written(whole);
  at::Tensor tensor = whole;
  for (int64_t d = 0; d < whole.dim(); d++) {
    // Elements that share an address need to be written once.
    if (whole.stride(d) == 0 && whole.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  }
  DeviceEntry& entry = runtime::device(tensor.device().index());
  uba_tensor view = view_of(tensor);
  uba_value number{};
  number.count = 1;
  bool expressible = view.dtype != 0 && !value.isComplex();
  if (value.isFloatingPoint()) {
    number.kind = UBA_DOUBLE;
    number.v.d = value.toDouble();
  } else if (expressible) {
    number.kind = UBA_INT;
    number.v.i = whole_number(value);
  }
  const Merged merged = merge_dims(tensor, tensor);
  view.rank = int32_t(merged.sizes.size());
  view.sizes = merged.sizes.data();
  view.strides = merged.dst.data();
  if (expressible &&
      guarded([&] { return entry.device->fill_nd(runtime::current_stream(entry.index), view, number); })) {
    return;
  }
  if (entry.device->host_accessible()) {
    to_host(tensor).fill_(value);
    return;
  }
  at::Tensor host = at::full({}, value, at::TensorOptions().dtype(tensor.scalar_type()));
  copy_tensor(tensor, host, /*non_blocking=*/true);
}

}  // namespace torchfl
