// conversion.cpp: see conversion.h.
#include "conversion.h"

#include "transfer.h"

namespace torchfl {
namespace {

at::Tensor alias_of(const at::Tensor& tensor, c10::ScalarType dtype) {
  at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()),
                                                              c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                                              c10::scalarTypeToTypeMeta(dtype));
  alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return alias;
}

// A bfloat16 is the upper half of the float32 of equal value: the upper halves of `wide`'s elements, in place.
at::Tensor upper_halves(const at::Tensor& wide) {
  at::Tensor halves = alias_of(wide, c10::kBFloat16);
  c10::SmallVector<int64_t, 6> strides;
  for (int64_t stride : wide.strides()) strides.push_back(2 * stride);
  halves.unsafeGetTensorImpl()->set_sizes_and_strides(wide.sizes(), strides, 2 * wide.storage_offset() + 1);
  return halves;
}

}  // namespace

void convert_on_device(const at::Tensor& dst, const at::Tensor& src) {
  const c10::ScalarType to = dst.scalar_type(), from = src.scalar_type();
  const bool widens = from == c10::kBFloat16 && to == c10::kHalf, narrows = from == c10::kHalf && to == c10::kBFloat16;
  const int index = dst.device().index();
  if ((widens || narrows) && runtime::device(index).chip->chip.bfloat16_emulation) {
    const at::Tensor wide = empty_contiguous_on(index, c10::kFloat, src.sizes());
    if (widens) {
      fill_tensor(wide, 0);
      copy_tensor(upper_halves(wide), src, true);
      copy_tensor(dst, wide, true);
    } else {
      copy_tensor(wide, src, true);
      copy_tensor(dst, upper_halves(wide), true);
    }
    return;
  }
  if ((from == c10::kChar && to == c10::kByte) || (from == c10::kByte && to == c10::kChar)) {
    // Adding 128 to eight bits turns the highest of them over, in either direction.
    copy_tensor(alias_of(dst, c10::kByte), at::bitwise_xor(alias_of(src, c10::kByte), 128), true);
    return;
  }
  copy_tensor(dst, src, true);
}

void deliver(const at::Tensor& target, const at::Tensor& written) {
  const bool longer = written.sizes() != target.sizes();
  convert_on_device(target, longer ? written.as_strided(target.sizes(), written.strides()) : written);
}

}  // namespace torchfl
