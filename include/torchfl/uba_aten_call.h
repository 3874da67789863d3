// torchfl/uba_aten_call.h: calls of the C interface (torchfl/uba.h) done by operators of PyTorch on the CPU.
//
// Contract: for adapters whose memory the CPU can reach. An OutOperator is an operator that writes its results to given
// tensors, such as aten::exp.out; it takes calls of a kernel with the arguments of its schema, in the schema's order.
// The header is all there is; like uba_aten.h it ties the library to a minor version of PyTorch.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <optional>

#include "torchfl/uba_aten.h"

namespace torch::fl {

class OutOperator {
 public:
  // None: there is no such operator, or it makes its own results.
  static std::optional<OutOperator> find(const c10::OperatorName& name) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (!op.has_value()) return std::nullopt;
    OutOperator found(*op);
    for (const c10::Argument& arg : op->schema().arguments())
      if (!arg.is_out()) found.parameters_.emplace_back(arg);
    const size_t written = op->schema().arguments().size() - found.parameters_.size();
    return written > 0 && written == op->schema().returns().size() ? std::optional(found) : std::nullopt;
  }

  // Puts the arguments on the empty stack. False: the call is of another overload.
  bool takes(const uba_call& call, torch::jit::Stack* stack) const {
    const size_t inputs = size_t(call.arg_count), results = size_t(call.output_count);
    if (inputs != parameters_.size() || results != op_.schema().returns().size()) return false;
    for (size_t i = 0; i < results; i++)
      if (call.outputs[i].dtype == 0) return false;
    stack->reserve(inputs + results);
    for (size_t i = 0; i < inputs; i++)
      if (!parameters_[i].convert(call.args[i], &stack->emplace_back())) return stack->clear(), false;
    for (size_t i = 0; i < results; i++) stack->emplace_back(on_cpu(call.outputs[i]));
    return true;
  }

  // Throws what PyTorch throws.
  void run(torch::jit::Stack* stack) const { op_.callBoxed(stack); }

 private:
  using Kind = c10::TypeKind;

  struct Parameter {
    Kind kind, element = Kind::AnyType;  // without Optional; of a list, what is in it
    bool optional = false, optional_element = false, is_dtype = false;

    explicit Parameter(const c10::Argument& arg) {
      const c10::TypePtr type = unwrapped(arg.type(), &optional);
      is_dtype = unwrapped(arg.real_type(), &optional)->kind() == Kind::ScalarTypeType;
      kind = type->kind();
      if (const auto list = type->cast<c10::ListType>())
        element = unwrapped(list->getElementType(), &optional_element)->kind();
    }

    // The argument as the parameter wants it; false: it is of another kind.
    bool convert(const uba_value& a, c10::IValue* to) const {
      const auto tensor = [&](uint32_t i) { return on_cpu(a.v.tensor[i]); };
      const auto optional_tensor = [&](uint32_t i) {
        return a.v.tensor[i].dtype != 0 ? std::optional(tensor(i)) : std::nullopt;
      };
      if (a.kind == UBA_NONE) return optional;
      if (a.kind == UBA_TENSOR) return kind == Kind::TensorType && (*to = tensor(0), true);
      if (a.kind == UBA_STRING) return kind == Kind::StringType && (*to = std::string(a.v.str), true);
      if (a.kind == UBA_DOUBLE) return number(a.v.d, to);
      if (a.kind == UBA_INT && is_dtype) return *to = int64_t(scalar_type(a.v.i)), true;
      if (a.kind == UBA_INT && kind == Kind::IntType) return *to = a.v.i, true;
      if (a.kind == UBA_INT && kind == Kind::BoolType) return *to = a.v.i != 0, true;
      if (a.kind == UBA_INT) return number(a.v.i, to);
      if (a.kind == UBA_TENSOR_LIST && element == Kind::TensorType && optional_element)
        return list<std::optional<at::Tensor>>(a.count, optional_tensor, to);
      if (a.kind == UBA_TENSOR_LIST && element == Kind::TensorType) return list<at::Tensor>(a.count, tensor, to);
      if (a.kind == UBA_INT_LIST && element == Kind::IntType)
        return list<int64_t>(a.count, [&](uint32_t i) { return a.v.ints[i]; }, to);
      if (a.kind == UBA_INT_LIST && element == Kind::BoolType)
        return list<bool>(a.count, [&](uint32_t i) { return a.v.ints[i] != 0; }, to);
      return false;
    }

   private:
    static c10::TypePtr unwrapped(const c10::TypePtr& type, bool* optional) {
      const auto inside = type->cast<c10::OptionalType>();
      *optional = inside != nullptr;
      return inside ? inside->getElementType() : type;
    }
    template <class Element, class From>
    static bool list(uint32_t count, const From& from, c10::IValue* to) {
      c10::List<Element> list;
      for (uint32_t i = 0; i < count; i++) list.push_back(from(i));
      return *to = list, true;
    }
    bool number(const at::Scalar& value, c10::IValue* to) const {
      if (kind == Kind::NumberType) return *to = value, true;
      if (kind == Kind::FloatType && !value.isComplex()) return *to = value.toDouble(), true;
      if (kind != Kind::TensorType || value.isComplex()) return false;
      at::Tensor tensor = at::scalar_tensor(value, value.isIntegral(false) ? c10::kLong : c10::kDouble);
      tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
      return *to = tensor, true;
    }
  };

  explicit OutOperator(const c10::OperatorHandle& op) : op_(op) {}
  c10::OperatorHandle op_;
  std::vector<Parameter> parameters_;
};

}  // namespace torch::fl
