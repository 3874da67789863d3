// stand_ins.cpp: see stand_ins.h.
#include "stand_ins.h"

#include <algorithm>
#include <numeric>

#include "program.h"

namespace torchfl {
namespace {

using Ints = std::vector<int64_t>;

// Dense strides with the dimensions in the order that they have in memory.
Ints strides_in_order(const Ints& sizes, const Ints& strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
  Ints out(sizes.size());
  int64_t step = 1;
  for (size_t i = order.size(); i-- > 0;) {
    out[order[i]] = step;
    step *= std::max<int64_t>(sizes[order[i]], 1);
  }
  return out;
}

// The tensor's own strides if it is dense, whatever its order; else row-major.
Ints packed(const Ints& sizes, const Ints& strides) {
  const Ints dense = strides_in_order(sizes, strides);
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && dense[d] != strides[d]) return row_major_strides(sizes);
  }
  return dense;
}

}  // namespace

StandIns::StandIns(const CallView& original) : call_(original) {
  values_.assign(original.args, original.args + original.arg_count);
  size_t count = size_t(original.output_count);
  auto listed = [](const uba_value& value) {
    return value.kind == UBA_TENSOR ? size_t(1) : value.kind == UBA_TENSOR_LIST ? size_t(value.count) : size_t(0);
  };
  for (const uba_value& value : values_) count += listed(value);
  tensors_.reserve(count);
  slots_.reserve(count);
  auto add = [&](const uba_tensor& tensor, int arg, int element, bool is_output) {
    Slot slot;
    slot.original = &tensor;
    slot.transform.arg = arg;
    slot.transform.element = element;
    slot.transform.is_output = is_output;
    slot.transform.dtype = tensor.dtype;
    if (tensor.dtype != 0) {
      slot.transform.sizes.assign(tensor.sizes, tensor.sizes + tensor.rank);
      slot.transform.strides.assign(tensor.strides, tensor.strides + tensor.rank);
    }
    tensors_.push_back(tensor);
    slots_.push_back(std::move(slot));
  };
  for (size_t arg = 0; arg < values_.size(); ++arg) {
    uba_value& value = values_[arg];
    const size_t elements = listed(value);
    if (elements == 0) continue;
    const uba_tensor* own = tensors_.data() + tensors_.size();
    for (size_t element = 0; element < elements; ++element) add(value.v.tensor[element], int(arg), int(element), false);
    value.v.tensor = own;
  }
  first_output_ = tensors_.size();
  for (int i = 0; i < original.output_count; ++i) add(original.outputs[i], i, 0, true);
  call_.args = values_.data();
  call_.outputs = tensors_.data() + first_output_;
}

size_t StandIns::index_of(const uba_tensor& tensor) const { return size_t(&tensor - tensors_.data()); }

StandIns::Slot& StandIns::stand_in(const uba_tensor& tensor, Transform::Why why) {
  const size_t index = index_of(tensor);
  Slot& slot = slots_[index];
  slot.transform.why |= why;
  uba_tensor& view = tensors_[index];
  view.sizes = slot.transform.sizes.data();
  view.strides = slot.transform.strides.data();
  view.byte_offset = 0;
  return slot;
}

// In place: the view that the call has of the tensor points to them.
void StandIns::restride(Slot& slot, const Ints& strides) {
  std::copy(strides.begin(), strides.end(), slot.transform.strides.begin());
}

std::string StandIns::name_of(const Slot& slot) const {
  return slot.transform.is_output ? "the result" : arg_name(call_, slot.transform.arg);
}

void StandIns::note(const std::string& text) {
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
}

void StandIns::cast(const uba_tensor& tensor, int32_t dtype) {
  Slot& slot = stand_in(tensor, Transform::cast);
  const std::pair<int32_t, int32_t> both{slot.transform.dtype, dtype};
  if (std::find(casts_.begin(), casts_.end(), both) == casts_.end()) casts_.push_back(both);
  const bool shifted = both.first == UBA_DTYPE_INT8 && dtype == UBA_DTYPE_UINT8;
  note(shifted ? "int8 as uint8 with zero point 128"
               : std::string(dtype_name(both.first)) + " computed in " + dtype_name(dtype));
  slot.transform.dtype = dtype;
  restride(slot, packed(slot.transform.sizes, slot.transform.strides));
  tensors_[index_of(tensor)].dtype = dtype;
}

void StandIns::cast_outputs() {
  for (size_t i = first_output_; i < tensors_.size(); ++i) {
    for (const auto& [from, to] : casts_) {
      if (tensors_[i].dtype != from) continue;
      cast(tensors_[i], to);
      break;
    }
  }
}

void StandIns::relay(const uba_tensor& tensor, const std::string& layout) {
  Slot& slot = stand_in(tensor, Transform::relaid);
  restride(slot, layout_strides(layout, slot.transform.sizes.data()));
  note(name_of(slot) + " laid out as " + layout);
}

void StandIns::relay_contiguous(const uba_tensor& tensor) {
  Slot& slot = stand_in(tensor, Transform::relaid);
  restride(slot, row_major_strides(slot.transform.sizes));
  note(name_of(slot) + " made contiguous");
}

void StandIns::realign(const uba_tensor& tensor) {
  Slot& slot = stand_in(tensor, Transform::realigned);
  restride(slot, packed(slot.transform.sizes, slot.transform.strides));
  note(name_of(slot) + " at an aligned address");
}

uba_tensor* StandIns::tensor_named(const char* name) {
  const int arg = find_arg(call_, name);
  if (arg < 0 || arg >= call_.arg_count || values_[size_t(arg)].kind != UBA_TENSOR) return nullptr;
  return &tensors_[index_of(*values_[size_t(arg)].v.tensor)];
}

void StandIns::grow(const uba_tensor* tensor, int dimension, int64_t size) {
  if (tensor->sizes[dimension] == size) return;
  Slot& slot = stand_in(*tensor, Transform::padded);
  slot.transform.sizes[size_t(dimension)] = size;
  restride(slot, strides_in_order(slot.transform.sizes, slot.transform.strides));
}

bool StandIns::pad(const std::string& quantity, int64_t multiple) {
  const std::vector<double> now = derived_quantity(call_, quantity);
  if (multiple < 1 || now.size() != 1 || now[0] < 1 || call_.output_count != 1) return false;
  const int64_t size = int64_t(now[0]), padded = (size + multiple - 1) / multiple * multiple;
  uba_tensor* result = &tensors_[first_output_];

  // (tensor, dimension counted from the end) for each place where the quantity is a size.
  std::vector<std::pair<uba_tensor*, int>> places;
  const Family family = family_of(call_.schema->name);
  if (family == Family::matmul) {
    uba_tensor *left = nullptr, *right = nullptr;
    for (const char* name : {"mat1", "batch1", "self"}) {
      if (left == nullptr) left = tensor_named(name);
    }
    for (const char* name : {"mat2", "batch2"}) {
      if (right == nullptr) right = tensor_named(name);
    }
    if (left == nullptr || right == nullptr) return false;
    uba_tensor* addend = tensor_named("self") == left ? nullptr : tensor_named("self");
    const int side = quantity == "M" ? 2 : 1;
    if (quantity == "M") {
      places = {{left, 2}, {result, 2}};
    } else if (quantity == "N") {
      places = {{right, 1}, {result, 1}};
    } else if (quantity == "K") {
      places = {{left, 1}, {right, 2}};
    } else {
      return false;
    }
    // What is added is broadcast where it has one row or column.
    if (quantity != "K" && addend != nullptr && addend->rank >= side && addend->sizes[addend->rank - side] > 1)
      places.push_back({addend, side});
  } else if (family == Family::convolution) {
    uba_tensor *input = tensor_named("input"), *weight = tensor_named("weight"), *bias = tensor_named("bias");
    auto integer = [&](const char* name) {
      const int arg = find_arg(call_, name);
      return arg >= 0 && arg < call_.arg_count && values_[size_t(arg)].kind == UBA_INT ? values_[size_t(arg)].v.i : -1;
    };
    const bool forward = call_.schema->name.find("backward") == std::string::npos;
    if (!forward || input == nullptr || weight == nullptr || integer("transposed") != 0 || integer("groups") != 1)
      return false;
    if (quantity == "channels" || quantity == "in_channels") {
      places = {{input, input->rank - 1}, {weight, weight->rank - 1}};
    } else if (quantity == "out_channels") {
      places = {{weight, weight->rank}, {result, result->rank - 1}};
      if (bias != nullptr) places.push_back({bias, 1});
    } else {
      return false;
    }
  } else {
    return false;
  }
  for (const auto& [tensor, from_end] : places) {
    if (tensor->rank < from_end || tensor->sizes[tensor->rank - from_end] != size) return false;
  }
  for (const auto& [tensor, from_end] : places) grow(tensor, tensor->rank - from_end, padded);
  note(quantity + " padded from " + std::to_string(size) + " to " + std::to_string(padded));
  return true;
}

std::vector<Transform> StandIns::transforms() const {
  std::vector<Transform> out;
  for (const Slot& slot : slots_) {
    if (slot.transform.why != 0) out.push_back(slot.transform);
  }
  return out;
}

std::string StandIns::text() const {
  std::string all;
  for (const std::string& each : notes_) all += (all.empty() ? "" : "; ") + each;
  return all;
}

}  // namespace torchfl
