// values.h: walks over the tensors of one argument, which may be a tensor, a list of them, or a list with gaps.
//
// Contract: `map_tensors` gives an argument of the same kind in which each tensor, undefined ones too, is what `change`
// makes of it; gaps stay, and what holds no tensor comes back as it is.
#pragma once
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <c10/util/FunctionRef.h>

namespace torchfl {

inline c10::IValue map_tensors(const c10::IValue& value, c10::function_ref<at::Tensor(const at::Tensor&)> change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const c10::IValue& element : value.toListRef()) list.push_back(change(element.toTensor()));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& element : value.toListRef()) {
      list.push_back(element.isNone() ? std::nullopt : std::optional<at::Tensor>(change(element.toTensor())));
    }
    return list;
  }
  return value;
}

}  // namespace torchfl
