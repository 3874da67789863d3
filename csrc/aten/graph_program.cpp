// graph_program.cpp: see graph_program.h.
#include "graph_program.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <torch/library.h>

#include <cmath>

#include "program.h"
#include "runtime.h"

namespace torchfl {
namespace {

using Arg = GraphProgram::Arg;
using Compute = GraphProgram::Compute;

constexpr size_t kMostSizes = 32;  // sets of sizes whose memory is planned; the least recently used goes
constexpr int kMostFailures = 4;   // runs that were unlike their plan, after which nothing is planned

// An element of a list as the list wants it.
c10::IValue list_of(const c10::TypePtr& element, std::vector<c10::IValue> items) {
  c10::impl::GenericList list(element);
  list.reserve(items.size());
  for (c10::IValue& item : items) list.push_back(std::move(item));
  switch (element->kind()) {  // those that operators expect in their own kind of list
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType: {
      c10::List<int64_t> typed;
      for (const c10::IValue& item : list) typed.push_back(item.toInt());
      return typed;
    }
    case c10::TypeKind::FloatType: {
      c10::List<double> typed;
      for (const c10::IValue& item : list) typed.push_back(item.isInt() ? double(item.toInt()) : item.toDouble());
      return typed;
    }
    case c10::TypeKind::BoolType: {
      c10::List<bool> typed;
      for (const c10::IValue& item : list) typed.push_back(item.toBool());
      return typed;
    }
    case c10::TypeKind::TensorType: {
      c10::List<at::Tensor> typed;
      for (const c10::IValue& item : list) typed.push_back(item.isNone() ? at::Tensor() : item.toTensor());
      return typed;
    }
    case c10::TypeKind::OptionalType: {
      if (element->castRaw<c10::OptionalType>()->getElementType()->kind() != c10::TypeKind::TensorType) break;
      c10::List<std::optional<at::Tensor>> typed;
      for (const c10::IValue& item : list)
        typed.push_back(item.isNone() ? std::nullopt : std::optional<at::Tensor>(item.toTensor()));
      return typed;
    }
    default:
      break;
  }
  return list;
}

c10::IValue value_of(const Arg& arg, const std::vector<c10::IValue>& slots) {
  switch (arg.kind) {
    case Arg::Kind::slot: {
      const c10::IValue& value = slots[size_t(arg.slot)];
      if (C10_UNLIKELY(arg.tensor && value.isScalar())) return GraphProgram::wrapped_number(value.toScalar());
      return value;
    }
    case Arg::Kind::list: {
      std::vector<c10::IValue> items;
      items.reserve(arg.items.size());
      for (const Arg& item : arg.items) items.push_back(value_of(item, slots));
      return list_of(arg.element, std::move(items));
    }
    default:
      return arg.value;
  }
}

Number number_of(const c10::IValue& value) {
  if (value.isBool()) return Number::of(int64_t(value.toBool()));
  return value.isInt() ? Number::of(value.toInt()) : Number::of(value.toDouble());
}

c10::IValue value_of(const Number& number) { return number.integer ? c10::IValue(number.i) : c10::IValue(number.d); }

// Python's semantics.
c10::IValue computed(Compute what, const std::vector<c10::IValue>& values) {
  using Op = NumberExpr::Op;
  const Number a = number_of(values[0]), b = values.size() > 1 ? number_of(values[1]) : Number{};
  const bool whole = a.integer && b.integer;
  switch (what) {
    case Compute::add:
      return value_of(combine(Op::add, a, b));
    case Compute::sub:
      return value_of(combine(Op::sub, a, b));
    case Compute::mul:
      return value_of(combine(Op::mul, a, b));
    case Compute::div:
      return value_of(combine(Op::div, a, b));
    case Compute::floordiv:
    case Compute::mod:
      TORCH_CHECK(!whole || b.i != 0, "integer division or modulo by zero in a computation of sizes");
      return value_of(combine(what == Compute::mod ? Op::mod : Op::floordiv, a, b));
    case Compute::pow:
      return value_of(combine(Op::pow, a, b));
    case Compute::neg:
      return value_of(combine(Op::neg, a, b));
    case Compute::min:
      return a.real() <= b.real() ? values[0] : values[1];
    case Compute::max:
      return a.real() >= b.real() ? values[0] : values[1];
    case Compute::eq:
      return whole ? a.i == b.i : a.real() == b.real();
    case Compute::ne:
      return whole ? a.i != b.i : a.real() != b.real();
    case Compute::lt:
      return whole ? a.i < b.i : a.real() < b.real();
    case Compute::le:
      return whole ? a.i <= b.i : a.real() <= b.real();
    case Compute::gt:
      return whole ? a.i > b.i : a.real() > b.real();
    case Compute::ge:
      return whole ? a.i >= b.i : a.real() >= b.real();
    case Compute::both:
      return a.real() != 0 && b.real() != 0;
    case Compute::either:
      return a.real() != 0 || b.real() != 0;
    case Compute::no:
      return a.real() == 0;
    case Compute::choose:
      return a.real() != 0 ? values[1] : values[2];
    case Compute::floor:
      return a.integer ? a.i : int64_t(std::floor(a.d));
    case Compute::ceil:
      return a.integer ? a.i : int64_t(std::ceil(a.d));
    case Compute::trunc:
    case Compute::to_int:
      return a.integer ? a.i : int64_t(std::trunc(a.d));
    case Compute::to_float:
      return a.real();
  }
  TORCH_INTERNAL_ASSERT(false);
}

// What the memory of a run follows from: integers, and the forms of the tensors.
uint64_t hash_of(const std::vector<c10::IValue>& inputs) {
  uint64_t h = 0x9e3779b97f4a7c15ull;
  auto mix = [&h](uint64_t word) {
    h = (h ^ word) * 0xff51afd7ed558ccdull;
    h ^= h >> 32;
  };
  for (const c10::IValue& value : inputs) {
    if (value.isInt()) {
      mix(uint64_t(value.toInt()));
    } else if (value.isTensor() && value.toTensor().defined()) {
      const at::Tensor& tensor = value.toTensor();
      mix(uint64_t(tensor.scalar_type()) << 8 | uint64_t(tensor.dim()));
      if (tensor.layout() != c10::kStrided) continue;
      for (int64_t size : tensor.sizes()) mix(uint64_t(size));
      for (int64_t stride : tensor.strides()) mix(uint64_t(stride));
      mix(uint64_t(tensor.storage_offset()));
    } else {
      mix(1);
    }
  }
  return h;
}

}  // namespace

at::Tensor GraphProgram::wrapped_number(const c10::Scalar& number) {
  at::Tensor tensor = at::scalar_to_tensor(number);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

void GraphProgram::add_call(const c10::OperatorHandle& op, std::vector<Arg> args, std::vector<int> outs,
                            std::vector<int> frees) {
  Step step;
  step.op = op;
  const auto& schema = op.schema();
  TORCH_CHECK(args.size() == schema.arguments().size(), name_, ": ", schema.operator_name(), " takes ",
              schema.arguments().size(), " arguments, was given ", args.size());
  TORCH_CHECK(outs.size() == schema.returns().size(), name_, ": ", schema.operator_name(), " gives ",
              schema.returns().size(), " results, ", outs.size(), " are expected");
  for (size_t i = 0; i < schema.arguments().size(); i++) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) step.written.push_back(int(i));
  }
  step.args = std::move(args);
  step.outs = std::move(outs);
  step.frees = std::move(frees);
  steps_.push_back(std::move(step));
}

void GraphProgram::add_compute(Compute what, std::vector<Arg> args, int out, std::vector<int> frees) {
  Step step;
  step.kind = Step::Kind::compute;
  step.compute = what;
  step.args = std::move(args);
  step.outs = {out};
  step.frees = std::move(frees);
  steps_.push_back(std::move(step));
}

void GraphProgram::add_item(int list, int index, int out, std::vector<int> frees) {
  Step step;
  step.kind = Step::Kind::item;
  step.index = index;
  Arg arg;
  arg.kind = Arg::Kind::slot;
  arg.slot = list;
  step.args.push_back(std::move(arg));
  step.outs = {out};
  step.frees = std::move(frees);
  steps_.push_back(std::move(step));
}

void GraphProgram::finish(std::vector<Arg> outputs, int device) {
  outputs_ = std::move(outputs);
  device_ = device;
}

void GraphProgram::run_step(const Step& step, std::vector<c10::IValue>& slots) const {
  if (step.kind == Step::Kind::compute) {
    std::vector<c10::IValue> values;
    for (const Arg& arg : step.args) values.push_back(value_of(arg, slots));
    slots[size_t(step.outs[0])] = computed(step.compute, values);
    return;
  }
  if (step.kind == Step::Kind::item) {
    const c10::IValue& list = slots[size_t(step.args[0].slot)];
    const auto items = list.toListRef();
    const int64_t index = step.index < 0 ? step.index + int64_t(items.size()) : step.index;
    TORCH_CHECK_INDEX(index >= 0 && index < int64_t(items.size()), name_, ": a list of ", items.size(),
                      " results has no element ", step.index);
    c10::IValue item = items[size_t(index)];
    slots[size_t(step.outs[0])] = std::move(item);
    return;
  }
  torch::jit::Stack stack;
  stack.reserve(step.args.size());
  for (const Arg& arg : step.args) stack.push_back(value_of(arg, slots));
  c10::SmallVector<at::Tensor, 4> written;  // below ADInplaceOrView nobody else counts the versions
  for (int position : step.written) {
    const c10::IValue& value = stack[size_t(position)];
    if (value.isTensor()) written.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const c10::IValue& element : value.toListRef()) written.push_back(element.toTensor());
    }
  }
  for (int slot : step.frees) slots[size_t(slot)] = c10::IValue();  // so that a kernel sees what is its alone
  step.op->callBoxed(stack);
  for (const at::Tensor& tensor : written) {
    if (tensor.defined() && !tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }
  for (size_t i = 0; i < step.outs.size(); i++) {
    if (step.outs[i] >= 0) slots[size_t(step.outs[i])] = std::move(stack[i]);
  }
}

std::vector<c10::IValue> GraphProgram::run_in(graph_memory::Scope* scope, std::vector<c10::IValue>& slots) const {
  for (size_t i = 0; i < steps_.size(); i++) {
    const Step& step = steps_[i];
    if (scope != nullptr) scope->at_step(int(i));
    run_step(step, slots);
    for (int slot : step.frees) slots[size_t(slot)] = c10::IValue();
  }
  std::vector<c10::IValue> results;
  results.reserve(outputs_.size());
  for (const Arg& output : outputs_) results.push_back(value_of(output, slots));
  slots.clear();
  return results;
}

std::vector<c10::IValue> GraphProgram::run(std::vector<c10::IValue> inputs) const {
  TORCH_CHECK(int(inputs.size()) == inputs_, name_, " takes ", inputs_, " inputs, was given ", inputs.size());
  const at::AutoDispatchBelowADInplaceOrView below;
  const bool plans = device_ >= 0 && !steps_.empty();
  const uint64_t key = plans ? hash_of(inputs) : 0;
  std::vector<c10::IValue> slots = std::move(inputs);
  slots.resize(size_t(slots_));
  if (!plans) return run_in(nullptr, slots);

  std::shared_ptr<const graph_memory::Plan> plan;
  bool record = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    memory_.runs++;
    if (known_.size() >= kMostSizes && known_.count(key) == 0) {
      auto oldest = std::min_element(known_.begin(), known_.end(),
                                     [](const auto& a, const auto& b) { return a.second.used < b.second.used; });
      known_.erase(oldest);
    }
    Known& known = known_[key];
    // Sizes that never come again (a cache that grows) are not worth a plan: all but the first are noted when they do.
    const bool again = known.used != 0 || known_.size() == 1;
    known.used = ++clock_;
    plan = known.plan;
    record = plan == nullptr && again && known.failures < kMostFailures;
  }
  if (plan == nullptr && !record) return run_in(nullptr, slots);
  graph_memory::Scope scope(device_, plan);
  std::vector<c10::IValue> results = run_in(&scope, slots);
  if (record) {
    plan = graph_memory::make_plan(scope.recorded(), int(steps_.size()), runtime::device(device_).chip->chip.alignment);
    std::lock_guard<std::mutex> lock(mutex_);
    known_[key].plan = plan;
  } else if (!scope.matched()) {
    std::lock_guard<std::mutex> lock(mutex_);
    Known& known = known_[key];
    if (known.plan == plan) known.plan = nullptr, known.failures++;  // the next run is written down anew
  } else {
    std::lock_guard<std::mutex> lock(mutex_);
    memory_.planned_runs++;
    memory_.planned = plan->bytes;
    memory_.separately = plan->separately;
  }
  return results;
}

namespace {

// The state of a device's generator (-1: the CPU's), for what is computed a second time with the same numbers.
at::Generator generator_of(int64_t device) {
  return device < 0 ? at::globalContext().defaultGenerator(c10::kCPU)
                    : at::globalContext().defaultGenerator(c10::Device(kDevice, c10::DeviceIndex(device)));
}
at::Tensor rng_state(int64_t device) {
  at::Generator generator = generator_of(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}
void set_rng_state(int64_t device, const at::Tensor& state) {
  at::Generator generator = generator_of(device);
  std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

TORCH_LIBRARY_FRAGMENT(torchfl, m) {
  m.def("rng_state(int device) -> Tensor", torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &rng_state));
  m.def("set_rng_state(int device, Tensor state) -> ()",
        torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd, &set_rng_state));
}

}  // namespace

GraphProgram::Memory GraphProgram::memory() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return memory_;
}

}  // namespace torchfl
