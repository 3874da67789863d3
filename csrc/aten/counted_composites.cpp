// counted_composites.cpp: operators with as many results as the data says: nonzero, and what follows from it.
//
// Contract: one number travels to the host, the count. All else is made of operators that are routed one by one, on
// chips that can sort: the places that count come first in a stable order.
#include <ATen/ATen.h>
#include <ATen/native/IndexingUtils.h>

#include <unordered_map>

#include "own_composites.h"

namespace torchfl {
namespace {

// Of a mask of one dimension: where it is true, in ascending order.
at::Tensor places(const at::Tensor& mask) {
  const int64_t count = mask.numel() == 0 ? 0 : mask.sum().item<int64_t>();
  if (count == mask.numel()) return at::arange(count, mask.options().dtype(at::kLong));
  return std::get<1>(at::sort(mask, /*stable=*/true, /*dim=*/0, /*descending=*/true)).narrow(0, 0, count).clone();
}

at::Tensor nonzero(const at::Tensor& self) {
  at::Tensor rest = places((self.scalar_type() == at::kBool ? self : self.ne(0)).reshape(-1));
  if (self.dim() == 0) return rest.unsqueeze(1).narrow(1, 0, 0);
  std::vector<at::Tensor> columns(size_t(self.dim()));
  for (int64_t d = self.dim() - 1; d > 0; d--) {
    const int64_t size = std::max<int64_t>(self.size(d), 1);
    columns[size_t(d)] = rest.remainder(size);
    rest = rest.floor_divide(at::Scalar(size));
  }
  columns[0] = rest;
  return at::stack(columns, 1);
}

at::Tensor masked_select(const at::Tensor& self, const at::Tensor& mask) {
  TORCH_CHECK(mask.scalar_type() == at::kBool, "masked_select: expected BoolTensor for mask");
  const auto both = at::broadcast_tensors({self, mask});
  return both[0].reshape(-1).index_select(0, places(both[1].reshape(-1)));
}

using Indices = c10::List<std::optional<at::Tensor>>;

Indices without_masks(const at::Tensor& self, const Indices& indices) {
  Indices plain;
  for (at::Tensor& one : at::native::expandTensors(self, indices)) {
    plain.push_back(one.defined() ? std::optional<at::Tensor>(std::move(one)) : std::nullopt);
  }
  return plain;
}

at::Tensor index(const at::Tensor& self, const Indices& indices) {
  return at::index(self, without_masks(self, indices));
}

at::Tensor& index_put(at::Tensor& self, const Indices& indices, const at::Tensor& values, bool accumulate,
                      bool unsafe) {
  return at::_index_put_impl_(self, without_masks(self, indices), values, accumulate, unsafe);
}

using Distinct = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// Of equal neighbours along dimension 0 the first; which of them each is; and how many there are.
Distinct first_of_equals(const at::Tensor& values, bool inverse, bool counts) {
  const int64_t n = values.size(0);
  const auto whole = values.options().dtype(at::kLong);
  at::Tensor fresh = at::ones({n}, values.options().dtype(at::kBool));
  if (n > 1) {
    at::Tensor differs = values.narrow(0, 1, n - 1).ne(values.narrow(0, 0, n - 1));
    if (values.dim() > 1) differs = differs.reshape({n - 1, -1}).any(1);
    fresh.narrow(0, 1, n - 1).copy_(differs);
  }
  const at::Tensor starts = places(fresh);
  at::Tensor which = at::empty({0}, whole), many = at::empty({0}, whole);
  if (inverse) which = fresh.cumsum(0, at::kLong).sub_(1);
  if (counts) many = at::cat({starts, at::full({1}, n, whole)}).diff();
  return {values.index_select(0, starts), which, many};
}

Distinct unique_counted(const at::Tensor& self, bool, bool inverse, bool counts) {
  const at::Tensor flat = self.reshape(-1);
  const auto [sorted, order] = at::sort(flat, /*stable=*/true, 0, /*descending=*/false);
  auto [values, which, many] = first_of_equals(sorted, inverse, counts);
  if (inverse) which = at::empty_like(which).scatter_(0, order, which).view(self.sizes());
  return {values, which, many};
}

std::tuple<at::Tensor, at::Tensor> unique(const at::Tensor& self, bool sorted, bool inverse) {
  auto [values, which, many] = unique_counted(self, sorted, inverse, false);
  return {values, which};
}

Distinct unique_consecutive(const at::Tensor& self, bool inverse, bool counts, std::optional<int64_t> dim) {
  if (!dim.has_value()) {
    auto [values, which, many] = first_of_equals(self.reshape(-1), inverse, counts);
    return {values, inverse ? which.view(self.sizes()) : which, many};
  }
  auto [values, which, many] = first_of_equals(self.movedim(*dim, 0), inverse, counts);
  return {values.movedim(0, *dim).contiguous(), which, many};
}

template <class F>
c10::KernelFunction boxed(F* kernel) {
  return c10::KernelFunction::makeFromUnboxedRuntimeFunction(kernel);
}

}  // namespace

const c10::KernelFunction* counted_composite(const std::string& name) {
  static const auto* table = new std::unordered_map<std::string, c10::KernelFunction>{
      {"aten::nonzero", boxed(&nonzero)},
      {"aten::masked_select", boxed(&masked_select)},
      {"aten::index", boxed(&index)},
      {"aten::_index_put_impl_", boxed(&index_put)},
      {"aten::_unique", boxed(&unique)},
      {"aten::_unique2", boxed(&unique_counted)},
      {"aten::unique_consecutive", boxed(&unique_consecutive)},
  };
  auto found = table->find(name);
  return found == table->end() ? nullptr : &found->second;
}

bool own_composite_serves(const std::string& name, at::ArrayRef<c10::IValue> args, const RouteTable& routes) {
  if (counted_composite(name) == nullptr) return true;
  if (!routes.has("uba::sort") && !routes.has("aten::sort")) return false;
  const at::Tensor& self = args[0].toTensor();
  if (name == "aten::unique_consecutive" || name == "aten::_unique" || name == "aten::_unique2")
    return !self.is_complex();
  if (name != "aten::index" && name != "aten::_index_put_impl_") return true;
  for (const c10::IValue& one : args[1].toListRef()) {  // without a mask there is nothing to count
    if (!one.isTensor() || !one.toTensor().defined()) continue;
    if (one.toTensor().device() != self.device()) return false;
    if (one.toTensor().scalar_type() == at::kBool) return true;
  }
  return false;
}

}  // namespace torchfl
