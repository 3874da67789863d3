// composer.cpp: see composer.h.
#include "composer.h"

#include <ATen/ExpandUtils.h>
#include <ATen/MemoryOverlap.h>

#include <mutex>

#include "generator.h"
#include "transfer.h"

namespace torchfl {
namespace {

ComposeFunction g_compose = nullptr;

// Programs by signature. When it is full everything goes: dynamic shapes must not grow it without bound.
class ProgramCache {
 public:
  std::shared_ptr<const Composed> find(const std::string& key) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = programs_.find(key);
    return found == programs_.end() ? nullptr : found->second;
  }
  void put(const std::string& key, std::shared_ptr<const Composed> composed) {
    constexpr size_t kMost = 8192;
    std::lock_guard<std::mutex> lock(mutex_);
    if (programs_.size() >= kMost) programs_.clear();
    programs_[key] = std::move(composed);
  }
  void clear() {
    std::lock_guard<std::mutex> lock(mutex_);
    programs_.clear();
  }
  size_t count() {
    std::lock_guard<std::mutex> lock(mutex_);
    return programs_.size();
  }

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Composed>> programs_;
};

ProgramCache& cache() {
  static auto* programs = new ProgramCache();
  return *programs;
}

const at::Tensor& tensor_of(const c10::IValue& value, int element) {
  return element < 0 ? value.toTensor() : value.toListRef()[size_t(element)].toTensor();
}

const OpSchema* schema_of(const std::string& op, const std::string& overload) {
  auto handle = c10::Dispatcher::singleton().findSchema({op, overload});
  return handle.has_value() ? &op_state(*handle).schema : nullptr;
}

std::unique_ptr<BoundProgram> bind_here(const Composed& composed, const OpState& op, at::ArrayRef<c10::IValue> args,
                                        const Plan& plan, std::string* why) {
  const ChipEntry& chip = *plan.entry->chip;
  std::vector<bool> misaligned;
  for (const Program::Input& input : composed.program->inputs) {
    const at::Tensor& tensor = tensor_of(args[size_t(op.kernel_args[size_t(input.arg)])], input.element);
    const bool ours = tensor.device().type() == kDevice;
    misaligned.push_back(ours && place_of(tensor).offset % chip.chip.alignment != 0);
  }
  BindContext context;
  context.routes = &chip.routes;
  context.adapter = chip.adapter.get();
  context.alignment = chip.chip.alignment;
  context.misaligned = &misaligned;
  context.schema = &schema_of;
  auto bound = BoundProgram::bind(composed.program, context, why);
  // Explaining a call does not open a device for it.
  if (bound != nullptr && plan.entry->opened) guarded([&] { bound->compile(*plan.entry->device); });
  return bound;
}

std::string key_of(const Signature& signature, int device, char kind) {
  std::string key(reinterpret_cast<const char*>(signature.words.data()),
                  signature.words.size() * sizeof(signature.words[0]));
  key += kind;
  key += char(device);
  return key;
}

std::shared_ptr<const Composed> for_these_sizes(const Composed& known, const OpState& op,
                                                at::ArrayRef<c10::IValue> args) {
  std::vector<std::vector<int64_t>> sizes;
  for (const Program::Input& input : known.program->inputs)
    sizes.push_back(tensor_of(args[size_t(op.kernel_args[size_t(input.arg)])], input.element).sizes().vec());
  std::vector<int64_t> common;
  for (const auto& one : sizes) common = at::infer_size(common, one);  // throws where they do not fit together
  auto made = std::make_shared<Composed>();
  made->program = std::make_shared<const Program>(resized(*known.program, sizes));
  return made;
}

// Results behind the first go to the backward only, and PyTorch's shape function has them otherwise than its CPU.
bool has_workspace(const std::string& base) {
  return base == "aten::native_batch_norm" || base == "aten::_native_batch_norm_legit" ||
         base == "aten::_embedding_bag" || base == "aten::_embedding_bag_forward_only";
}

// Whether integers alone come in and go out, and something between them is computed in floating point. PyTorch has no
// such operators: what it has for integers it computes in integers, and the rest (softmax, mish) it refuses.
bool truncates(const Program& program) {
  auto is = [&](int value, bool (*kind)(c10::ScalarType)) {
    const auto dtype = from_uba_dtype(program.values[size_t(value)].dtype);
    return dtype.has_value() && kind(*dtype);
  };
  auto integer = [](c10::ScalarType dtype) { return c10::isIntegralType(dtype, /*includeBool=*/false); };
  auto inexact = [](c10::ScalarType dtype) { return c10::isFloatingType(dtype) || c10::isComplexType(dtype); };
  if (program.random > 0 || program.inputs.empty()) return false;
  for (const Program::Input& input : program.inputs) {
    if (is(input.value, inexact)) return false;
  }
  bool gives_integers = false;
  for (int output : program.outputs) {
    if (output >= 0 && is(output, inexact)) return false;
    gives_integers |= output >= 0 && is(output, integer);
  }
  if (!gives_integers) return false;
  for (size_t value = 0; value < program.values.size(); value++) {
    if (is(int(value), inexact)) return true;
  }
  return false;
}

// PyTorch's own shape function of the functional form: it refuses what the operator refuses, and a program whose
// results are of another shape or dtype is no program for it.
bool agrees_with_pytorch(const OpState& op, at::ArrayRef<c10::IValue> args, const Program& program, std::string* why) {
  if (wants_one_dtype(op.schema.name)) {
    for (const Program::Input& input : program.inputs) {
      if (program.values[size_t(input.value)].dtype == program.values[size_t(program.inputs[0].value)].dtype) continue;
      *why = "its tensors differ in dtype";
      return false;
    }
  }
  if (!op.functional.has_value() || !op.functional->hasComputedKernelForDispatchKey(c10::DispatchKey::Meta))
    return true;
  torch::jit::Stack stack;
  for (int position : op.kernel_args) stack.push_back(meta_value(args[size_t(position)]));
  try {
    op.functional->callBoxed(stack);
  } catch (const c10::NotImplementedError&) {
    return true;  // it has none after all
  } catch (const c10::Error& error) {
    *why = error.what_without_backtrace();
    *why = why->substr(0, why->find('\n'));
    return false;
  } catch (const std::exception& error) {  // of a shape function in Python
    *why = "PyTorch's shape function fails";
    return false;
  }
  std::vector<at::Tensor> results;
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) results.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
    }
  }
  if (program.outputs.empty() || results.size() != program.outputs.size()) return true;  // it writes to its arguments
  const size_t compared = has_workspace(op.schema.name) ? 1 : results.size();
  for (size_t i = 0; i < compared; i++) {
    if (!results[i].defined() || program.outputs[i] < 0) continue;
    const ProgramValue& value = program.values[size_t(program.outputs[i])];
    if (results[i].sizes() == c10::IntArrayRef(value.sizes) && to_uba_dtype(results[i].scalar_type()) == value.dtype)
      continue;
    *why = c10::str("its program gives ", dtype_name(value.dtype), c10::IntArrayRef(value.sizes), ", PyTorch says ",
                    results[i].scalar_type(), results[i].sizes());
    return false;
  }
  return true;
}

// What PyTorch checks before it writes to an argument. An `out` of another shape must be resized first.
void check_written(const OpState& op, at::ArrayRef<c10::IValue> args, int position, const BoundProgram::Output& result,
                   BuiltPlan& built) {
  const at::Tensor& target = args[size_t(position)].toTensor();
  const c10::IntArrayRef sizes(result.sizes);
  if (target.sizes() != sizes) {
    TORCH_CHECK(op.is_out[size_t(position)], "output with shape ", target.sizes(),
                " doesn't match the broadcast shape ", sizes);
    built.resize.emplace_back(position, c10::SmallVector<int64_t, 6>(sizes.begin(), sizes.end()));
    return;
  }
  check_written_dtype(op, position, *from_uba_dtype(result.dtype), target.scalar_type());
  at::assert_no_internal_overlap(target);
}

}  // namespace

void set_compose_function(ComposeFunction function) { g_compose = function; }
bool can_compose() { return g_compose != nullptr; }
void forget_programs() { cache().clear(); }
size_t program_count() { return cache().count(); }

bool compose_plan(OpState& op, at::ArrayRef<c10::IValue> args, const Signature& signature, BuiltPlan& built,
                  std::string* why) {
  // What writes to lists of tensors returns nothing: its own program writes to them.
  const bool makes = op.functional.has_value() || op.factory.has_value();
  const bool functional = makes && !(op.returns.empty() && !op.written.empty());
  if (!functional && std::any_of(op.is_out.begin(), op.is_out.end(), [](bool out) { return out; })) {
    *why = "it has no functional form";
    return false;
  }
  Plan& plan = *built.plan;
  const std::string key = key_of(signature, plan.device, 'e');
  std::shared_ptr<const Composed> composed = cache().find(key);
  Signature generic;
  std::string generic_key;
  if (composed == nullptr && read_generic_signature(op, args, generic)) {
    generic_key = key_of(generic, plan.device, 'g');
    if (auto known = cache().find(generic_key)) composed = for_these_sizes(*known, op, args);
  }
  // Other sizes may be beyond what a kernel of that program takes: then it is composed anew.
  const bool reused = composed != nullptr && !generic_key.empty();
  auto bound = reused ? bind_here(*composed, op, args, plan, why) : nullptr;
  if (composed == nullptr || (reused && bound == nullptr)) {
    std::vector<c10::IValue> functional_args;
    for (int position : op.kernel_args) functional_args.push_back(args[size_t(position)]);
    if (op.factory.has_value()) {
      const c10::ScalarType dtype = args[size_t(op.written[0])].toTensor().scalar_type();
      for (c10::IValue option :
           {c10::IValue(int64_t(dtype)), c10::IValue(), c10::IValue(c10::Device("meta")), c10::IValue()})
        functional_args.push_back(std::move(option));
    }
    const c10::OperatorHandle& form = !functional ? op.handle : op.factory.has_value() ? *op.factory : *op.functional;
    composed = std::make_shared<const Composed>(g_compose(form, functional_args, plan.device));
    cache().put(key, composed);
    if (composed->program != nullptr && composed->program->pointwise && composed->program->baked.empty() &&
        composed->constants.empty() && !generic_key.empty()) {
      cache().put(generic_key, composed);
    }
  }
  if (composed->program == nullptr) {
    *why = composed->why;
    return false;
  }
  if (!reused && !agrees_with_pytorch(op, args, *composed->program, why)) return false;
  if (!reused && truncates(*composed->program)) {
    *why = "it would compute an integer result in floating point";
    return false;
  }
  const Program& program = *composed->program;
  for (const auto& [k, element] : program.baked) {
    const size_t position = size_t(op.kernel_args[size_t(k)]);
    if (op.patched[position] == OpState::by_value) continue;
    const bool at_default = element < 0 && args[position] == op.defaults[position];
    if (at_default && op.patched[position] == OpState::by_default) continue;
    // From now on this number is part of the signature.
    op.baked[position] = at_default ? 2 : 1;
    op.patched[position] = uint8_t(at_default ? OpState::by_default : OpState::by_value);
    built.again = true;
  }
  if (built.again) return true;

  if (bound == nullptr) bound = bind_here(*composed, op, args, plan, why);
  if (bound == nullptr) return false;

  const auto& returns = op.handle.schema().returns();
  const size_t tensors = returns.size();
  const bool list = std::any_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return result.type()->kind() == c10::TypeKind::ListType;
  });
  // Without a functional form, what it returns is what it wrote to.
  if (functional && !list && !op.returns.empty() && bound->result_of().size() != tensors) {
    *why = "its program gives " + std::to_string(bound->result_of().size()) + " results, the operator " +
           std::to_string(tensors);
    return false;
  }
  if (!op.written.empty() && makes) {
    for (size_t i = 0; i < op.returns.size(); i++) {
      if (op.returns[i] < 0 || bound->result_of()[i] < 0) continue;
      check_written(op, args, op.returns[i], bound->outputs()[size_t(bound->result_of()[i])], built);
    }
    if (!built.resize.empty()) return true;
  }
  for (const at::Tensor& constant : composed->constants)
    plan.constants.push_back(constant.numel() == 0 ? constant : to_device(constant.clone(), plan.device));
  plan.kind = Plan::Kind::composed;
  plan.program = std::move(bound);
  return true;
}

bool run_composed(const Plan& plan, OpState& op, torch::jit::Stack* stack) {
  const size_t base = stack->size() - op.arg_count;
  DeviceEntry& entry = runtime::device(plan.device);
  Timer timer(*plan.counters, plan.device);
  BoundProgram& bound = *plan.program;
  const Program& program = bound.program();
  auto arg = [&](int k) -> const c10::IValue& { return (*stack)[base + size_t(op.kernel_args[size_t(k)])]; };

  c10::SmallVector<BoundProgram::Address, 16> inputs;
  std::vector<at::Tensor> brought;  // numbers that came as CPU tensors
  auto add_input = [&](const at::Tensor& tensor) {
    const Place place = place_of(tensor);
    inputs.push_back({place.data, place.offset});
  };
  for (const Program::Input& input : program.inputs) {
    const at::Tensor& tensor = tensor_of(arg(input.arg), input.element);
    if (C10_LIKELY(tensor.device().type() == kDevice)) {
      add_input(tensor);
    } else {
      brought.push_back(to_device(tensor.clone(), plan.device));
      add_input(brought.back());
    }
  }
  for (const at::Tensor& constant : plan.constants) {
    if (constant.device().type() == kDevice) {
      add_input(constant);
    } else {
      inputs.push_back({});
    }
  }
  if (op.pointwise) {
    for (int written : op.written) {
      const c10::IValue& target = (*stack)[base + size_t(written)];
      if (!target.isTensor()) continue;
      for (const Program::Input& input : program.inputs) {
        if (op.kernel_args[size_t(input.arg)] == written || input.element >= 0) continue;
        const at::Tensor& read = arg(input.arg).toTensor();
        if (read.device().type() == kDevice) at::assert_no_partial_overlap(target.toTensor(), read);
      }
    }
  }

  c10::SmallVector<at::Tensor, 4> results;
  c10::SmallVector<BoundProgram::Address, 4> outputs;
  for (const BoundProgram::Output& output : bound.outputs()) {
    results.push_back(empty_on(plan.device, *from_uba_dtype(output.dtype), output.sizes, output.strides));
    outputs.push_back({const_cast<void*>(results.back().storage().data()), 0});
  }
  at::Tensor scratch;
  if (bound.scratch_bytes() > 0)
    scratch = empty_contiguous_on(plan.device, c10::kByte, {int64_t(bound.scratch_bytes())});

  thread_local std::vector<Number> numbers;
  if (!program.numbers.empty()) {
    evaluate_numbers(
        program,
        [&](int k, int element) {
          const c10::IValue value = element < 0 ? arg(k) : arg(k).toListRef()[size_t(element)];
          const c10::Scalar number = value.isTensor() ? value.toTensor().item() : value.toScalar();
          return number.isFloatingPoint() ? Number::of(number.toDouble()) : Number::of(whole_number(number));
        },
        numbers);
  }
  BoundProgram::Run run;
  run.device = entry.device.get();
  run.stream = runtime::current_stream(plan.device);
  run.inputs = inputs.data();
  run.outputs = outputs.data();
  run.scratch = scratch.defined() ? const_cast<void*>(scratch.storage().data()) : nullptr;
  run.numbers = numbers.data();
  std::optional<Draw> draw;
  if (program.random > 0) {
    std::optional<at::Generator> given;
    for (size_t i = 0; i < op.arg_count; i++) {
      if ((*stack)[base + i].isGenerator()) given = (*stack)[base + i].toGenerator();
    }
    draw.emplace(generator_of_call(given, plan.device));
    run.seed = draw->seed();
  }
  note_written_arguments(op, *stack, base);
  if (!guarded([&] { return bound.run(run); })) {
    if (draw.has_value()) draw->give_back();
    TORCH_CHECK(!bound.writes_inputs(), op.display, " on ", entry.label,
                ": a kernel refused in the middle of a program "
                "that changes its arguments: ",
                take_sdk_message().text);
    plan.counters->calls.fetch_sub(1, std::memory_order_relaxed);
    return false;
  }

  torch::jit::Stack returned;
  const auto& returns = op.handle.schema().returns();
  if (returns.size() == 1 && returns[0].type()->kind() == c10::TypeKind::ListType) {
    c10::List<at::Tensor> list;
    for (int index : bound.result_of()) list.push_back(index < 0 ? at::Tensor() : results[size_t(index)]);
    returned.emplace_back(std::move(list));
  } else {
    for (size_t i = 0; i < op.returns.size(); i++) {
      const int index = i < bound.result_of().size() ? bound.result_of()[i] : -1;
      if (op.returns[i] < 0 && returns[i].type()->kind() == c10::TypeKind::BoolType) {
        returned.emplace_back(
            results.at(size_t(index)).item().toBool());  // an answer, such as that of `equal`, is no tensor
        continue;
      }
      if (op.returns[i] < 0) {
        returned.emplace_back(index < 0 ? at::Tensor() : results[size_t(index)]);
        continue;
      }
      const at::Tensor target = (*stack)[base + size_t(op.returns[i])].toTensor();
      if (index >= 0 && (op.functional.has_value() || op.factory.has_value()))
        copy_tensor(target, results[size_t(index)], true);
      returned.emplace_back(target);
    }
  }
  torch::jit::drop(*stack, op.arg_count);
  for (c10::IValue& value : returned) stack->push_back(std::move(value));
  return true;
}

}  // namespace torchfl
