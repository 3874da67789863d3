// signature.cpp: see signature.h.
#include "signature.h"

namespace torchfl {
namespace {

[[noreturn]] C10_NOINLINE void two_devices(const OpState& op, int first, c10::Device second) {
  const bool ours = second.type() == kDevice;
  const std::string other = ours ? runtime::label(second.index()) : second.str();
  TORCH_CHECK(false, "Expected all tensors to be on the same device, but ", op.display, " got tensors on ",
              runtime::label(first), " and on ", other, ". Move one of them with .to('", runtime::label(first), "').");
}

}  // namespace

void read_signature_tensor(const OpState& op, const at::Tensor& tensor, Signature& out) {
  auto& words = out.words;
  if (!tensor.defined()) {
    words.push_back(kUndefined);
    return;
  }
  const auto* impl = tensor.unsafeGetTensorImpl();
  constexpr c10::DispatchKeySet kLazy(
      {c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor});
  if (C10_UNLIKELY(impl->key_set().has_any(kLazy))) out.lazy = true;
  const uint64_t dtype = uint64_t(tensor.scalar_type());
  const int64_t dim = tensor.dim();
  if (C10_UNLIKELY(tensor.device().type() != kDevice)) {
    if (dim == 0 && tensor.is_cpu()) {
      words.push_back(kNumber | dtype << 8 | uint64_t(impl->is_wrapped_number()) << 16);
      return;
    }
    if (!tensor.is_cpu()) two_devices(op, out.device < 0 ? runtime::current_device() : out.device, tensor.device());
    out.host_tensors = true;
    words.push_back(kHostTensor | dtype << 8 | uint64_t(dim) << 16);
  } else {
    const int index = tensor.device().index();
    if (out.device < 0) {
      out.device = index;
    } else if (C10_UNLIKELY(out.device != index)) {
      two_devices(op, out.device, tensor.device());
    }
    const uint64_t alignment = runtime::g_devices[index].load(std::memory_order_relaxed)->chip->chip.alignment;
    const uint64_t offset = place_of(tensor).offset;
    words.push_back(kTensor | dtype << 8 | uint64_t(dim) << 16 | uint64_t((offset & (alignment - 1)) != 0) << 24 |
                    uint64_t(impl->is_wrapped_number()) << 25 | uint64_t(index) << 32);
  }
  if (C10_UNLIKELY(op.offset_matters)) words.push_back(uint64_t(tensor.storage_offset()));
  const int64_t* sizes = tensor.sizes().data();
  const int64_t* strides = tensor.strides().data();
  const size_t at = words.size();
  words.resize_for_overwrite(at + 2 * size_t(dim));
  std::memcpy(words.data() + at, sizes, size_t(dim) * sizeof(uint64_t));
  std::memcpy(words.data() + at + dim, strides, size_t(dim) * sizeof(uint64_t));
}

namespace {

uint64_t bits(double value) {
  uint64_t word;
  std::memcpy(&word, &value, sizeof(word));
  return word;
}

void read_value(const OpState& op, const c10::IValue& value, Signature& out) {
  auto& words = out.words;
  if (value.isTensor()) {
    read_signature_tensor(op, value.toTensor(), out);
  } else if (value.isNone()) {
    words.push_back(kNone);
  } else if (value.isInt()) {
    words.push_back(kInt);
    words.push_back(uint64_t(value.toInt()));
  } else if (value.isBool()) {
    words.push_back(kBool | uint64_t(value.toBool()) << 8);
  } else if (value.isDouble()) {
    words.push_back(kDouble);
    words.push_back(bits(value.toDouble()));
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    words.push_back(kList | uint64_t(elements.size()) << 8);
    for (const c10::IValue& element : elements) read_value(op, element, out);
  } else if (value.isString()) {
    const std::string& text = value.toStringRef();
    words.push_back(kString | uint64_t(text.size()) << 8);
    for (size_t i = 0; i < text.size(); i += 8) {
      uint64_t word = 0;
      std::memcpy(&word, text.data() + i, std::min<size_t>(8, text.size() - i));
      words.push_back(word);
    }
  } else {
    words.push_back(kOther | uint64_t(value.isDevice() ? 1 : 0) << 8);
  }
}

// Argument `position`, of which only that may be part of the signature which decisions and programs look at.
void read_argument(const OpState& op, size_t position, const c10::IValue& value, Signature& out) {
  if (op.patched[position] == OpState::by_value || value.isTensor()) {
    read_value(op, value, out);
  } else if (op.patched[position] == OpState::by_default && value == op.defaults[position]) {
    out.words.push_back(kDefault);
  } else if (value.isList()) {
    const auto elements = value.toListRef();
    uint64_t kinds = 0;
    for (const c10::IValue& element : elements) kinds |= element.isDouble() ? 1 : element.isInt() ? 2 : 4;
    out.words.push_back(kList | uint64_t(elements.size()) << 8 | kinds << 56);
  } else {
    // Only what kind of number it is matters: promotion looks at that.
    out.words.push_back(value.isDouble() ? kDouble
                        : value.isInt()  ? kInt
                        : value.isBool() ? kBool
                        : value.isNone() ? kNone
                                         : kOther);
  }
}

}  // namespace

void read_signature(const OpState& op, at::ArrayRef<c10::IValue> args, Signature& out) {
  out.words.push_back(signature_head(op));
  for (size_t i = 0; i < args.size(); i++) read_argument(op, i, args[i], out);
}

bool read_generic_signature(const OpState& op, at::ArrayRef<c10::IValue> args, Signature& out) {
  auto& words = out.words;
  words.push_back(signature_head(op));
  for (size_t i = 0; i < args.size(); i++) {
    const c10::IValue& value = args[i];
    if (!value.isTensor() || !value.toTensor().defined()) {
      if (value.isTensorList()) return false;
      read_argument(op, i, value, out);
      continue;
    }
    const at::Tensor& tensor = value.toTensor();
    // A program for nothing says nothing about others.
    if (tensor.device().type() != kDevice || !tensor.is_contiguous() || tensor.dim() > 20 || tensor.numel() == 0)
      return false;
    uint64_t ones = 0;
    for (int64_t d = 0; d < tensor.dim(); d++) ones |= uint64_t(tensor.size(d) == 1) << d;
    words.push_back(kTensor | uint64_t(tensor.scalar_type()) << 8 | uint64_t(tensor.dim()) << 16 | ones << 24 |
                    uint64_t(tensor.unsafeGetTensorImpl()->is_wrapped_number()) << 50 |
                    uint64_t(tensor.device().index()) << 52);
  }
  return true;
}

}  // namespace torchfl
