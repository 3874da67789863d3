// derived.cpp: quantities that descriptors may name besides an operator's arguments.
//
// Contract: see derived_quantity in route.h. The names and operators are those of torchfl/hcd/opnames.py, which
// refuses a descriptor that names a quantity its operator does not have.
#include <algorithm>

#include "route_parts.h"

namespace torchfl {
namespace {

using Values = std::vector<double>;

const uba_tensor* tensor_arg(const CallView& call, const char* name) {
  int arg = find_arg(call, name);
  if (arg < 0 || arg >= call.arg_count || call.args[arg].kind != UBA_TENSOR) return nullptr;
  return call.args[arg].v.tensor;
}

int64_t int_arg(const CallView& call, const char* name, int64_t otherwise) {
  int arg = find_arg(call, name);
  if (arg < 0 || arg >= call.arg_count || call.args[arg].kind != UBA_INT) return otherwise;
  return call.args[arg].v.i;
}

// Size of dimension `index`, counted from the end if negative; nothing if the tensor has no such dimension.
Values size_at(const uba_tensor* tensor, int index) {
  if (tensor == nullptr) return {};
  if (index < 0) index += tensor->rank;
  if (index < 0 || index >= tensor->rank) return {};
  return {double(tensor->sizes[index])};
}

Values matmul_quantity(const CallView& call, const std::string& name) {
  // The factors go by these names; the first is [batch,] M x K, the second [batch,] K x N.
  const uba_tensor* left = nullptr;
  const uba_tensor* right = nullptr;
  for (const char* candidate : {"mat1", "batch1", "self"}) {
    if (left == nullptr) left = tensor_arg(call, candidate);
  }
  for (const char* candidate : {"mat2", "batch2"}) {
    if (right == nullptr) right = tensor_arg(call, candidate);
  }
  if (name == "M") return size_at(left, -2);
  if (name == "K") return size_at(left, -1);
  if (name == "N") return size_at(right, -1);
  if (name == "batch" && left != nullptr && left->rank == 3) return size_at(left, 0);
  return {};
}

Values convolution_quantity(const CallView& call, const std::string& name) {
  const uba_tensor* input = tensor_arg(call, "input");
  const uba_tensor* weight = tensor_arg(call, "weight");
  if (name == "batch") return size_at(input, 0);
  if (name == "channels" || name == "in_channels") return size_at(input, 1);
  if (weight == nullptr) return {};
  if (name == "out_channels") {
    if (int_arg(call, "transposed", 0) == 0) return size_at(weight, 0);
    Values per_group = size_at(weight, 1);
    if (!per_group.empty()) per_group[0] *= double(int_arg(call, "groups", 1));
    return per_group;
  }
  if (name == "kernel_size") {
    Values sizes;
    for (int32_t i = 2; i < weight->rank; ++i) sizes.push_back(double(weight->sizes[i]));
    return sizes;
  }
  return {};
}

Values pool_quantity(const CallView& call, const std::string& name) {
  const uba_tensor* input = tensor_arg(call, "self");
  if (input == nullptr) return {};
  const size_t digit = call.schema->name.find("_pool") + 5;
  const int32_t spatial = call.schema->name[digit] - '0';
  const bool batched = input->rank == spatial + 2;
  if (name == "batch") return batched ? size_at(input, 0) : Values{1};
  if (name == "channels") return size_at(input, batched ? 1 : 0);
  return {};
}

Values norm_quantity(const CallView& call, const std::string& name) {
  const uba_tensor* input = tensor_arg(call, "input");
  if (name == "batch") return size_at(input, 0);
  if (name == "channels") return size_at(input, 1);
  return {};
}

Values attention_quantity(const CallView& call, const std::string& name) {
  const uba_tensor* query = tensor_arg(call, "query");
  if (query == nullptr || query->rank < 3) return {};
  // Of three dimensions the first is the batch.
  if (name == "batch") return query->rank <= 4 ? size_at(query, 0) : Values{};
  if (name == "heads") return query->rank >= 4 ? size_at(query, -3) : Values{1};
  if (name == "head_dim") return size_at(query, -1);
  if (name == "seq_len") {  // the longer of both sides: either can be what a unit has no room for
    Values length = size_at(query, -2), other = size_at(tensor_arg(call, "key"), -2);
    if (!other.empty() && other[0] > length[0]) return other;
    return length;
  }
  return {};
}

// Of every operator with a tensor. Counts are of the first tensor; properties of strides must hold for each.
Values general_quantity(const CallView& call, const std::string& name) {
  Values values;
  for_each_tensor(call, [&](int, int, const uba_tensor& tensor) {
    if (name == "numel" && values.empty()) values.push_back(double(numel(tensor)));
    if (name == "rank" && values.empty()) values.push_back(double(tensor.rank));
    if (name == "contiguous") values.push_back(is_contiguous(tensor) ? 1 : 0);
    if (name == "zero_dim") values.push_back(tensor.rank == 0 ? 1 : 0);
    if (name == "offset")
      values.push_back(double(tensor.byte_offset) / double(std::max<int64_t>(1, dtype_size(tensor.dtype))));
  });
  return values;
}

bool contains(const std::string& text, const char* part) { return text.find(part) != std::string::npos; }

}  // namespace

int find_arg(const CallView& call, const std::string& name) {
  const std::vector<std::string>& names = call.schema->arg_names;
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return int(i);
  }
  return -1;
}

std::string arg_name(const CallView& call, int arg) {
  const std::vector<std::string>& names = call.schema->arg_names;
  return size_t(arg) < names.size() ? names[size_t(arg)] : "argument " + std::to_string(arg);
}

// A fused operator is of the family of its first link, whose arguments have their own names in it.
Family family_of(const std::string& op) {
  if (op.compare(0, 9, "torchfl::") == 0) return family_of("aten::" + op.substr(9, op.find("__", 10) - 9));
  for (const char* name : {"aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::addbmm", "aten::_int_mm",
                           "aten::_addmm_activation", "aten::_scaled_mm"}) {
    if (op == name) return Family::matmul;
  }
  if (op.compare(0, 17, "aten::convolution") == 0 || op.compare(0, 18, "aten::_convolution") == 0) {
    return Family::convolution;
  }
  const size_t pool = op.find("_pool");
  if (pool != std::string::npos && op.size() > pool + 6 && op[pool + 5] >= '1' && op[pool + 5] <= '3' &&
      op[pool + 6] == 'd') {
    return Family::pool;
  }
  if (contains(op, "batch_norm") || contains(op, "group_norm")) return Family::norm;
  if (contains(op, "scaled_dot_product") || contains(op, "flash_attention") || contains(op, "efficient_attention")) {
    return Family::attention;
  }
  return Family::other;
}

std::vector<double> derived_quantity(const CallView& call, const std::string& name) {
  for (const char* general : {"numel", "rank", "contiguous", "offset", "zero_dim"}) {
    if (name == general) return general_quantity(call, name);
  }
  switch (family_of(call.schema->name)) {
    case Family::matmul:
      return matmul_quantity(call, name);
    case Family::convolution:
      return convolution_quantity(call, name);
    case Family::pool:
      return pool_quantity(call, name);
    case Family::norm:
      return norm_quantity(call, name);
    case Family::attention:
      return attention_quantity(call, name);
    case Family::other:
      return {};
  }
  return {};
}

}  // namespace torchfl
