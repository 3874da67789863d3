// router.cpp: see router.h.
#include "router.h"

#include <chrono>

#include <ATen/native/Resize.h>
#include <torch/library.h>

#include "composer.h"
#include "custom_route.h"
#include "fast_route.h"
#include "own_composites.h"
#include "plan.h"
#include "transfer.h"
#include "unsupported.h"
#include "values.h"

namespace torchfl {

namespace {

// PyTorch gives the operators that only out-of-tree backends have a composite kernel which says that one is missing.
// That of kaiser_window asks for a kernel where nobody can register one.
bool is_stub(const std::string& base) {
  return base.find("_overrideable") != std::string::npos || base == "aten::kaiser_window";
}

// Its functional form has a kernel that asks the backend for the out form. Others with a kernel of that name have no
// kernel on the CPU either: they are taken apart for every backend.
bool is_structured(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional) &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CPU);
}

bool ends_with(const std::string& text, char c) { return !text.empty() && text.back() == c; }

// Where the arguments of a factory stop that tell of its result alone: dtype, layout, device, pin_memory.
constexpr const char* kTensorOptions[] = {"dtype", "layout", "device", "pin_memory"};
bool takes_options(const std::vector<const c10::Argument*>& args) {
  const size_t first = args.size() - std::min<size_t>(args.size(), 4);
  for (size_t i = 0; i < 4; i++) {
    if (first + i >= args.size() || args[first + i]->name() != kTensorOptions[i]) return false;
  }
  return true;
}

// The functional form of an in-place or out= operator: same base name, same arguments less the out ones. `factory`: and
// more those of a tensor's options.
std::optional<c10::OperatorHandle> find_functional(const c10::FunctionSchema& schema, const std::string& base,
                                                   bool factory = false) {
  static const auto* by_name = [] {
    auto* index = new std::unordered_multimap<std::string, std::string>();
    for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
      index->emplace(name.name, name.overload_name);
    return index;
  }();
  auto inputs = [](const c10::FunctionSchema& s) {
    std::vector<const c10::Argument*> out;
    for (const c10::Argument& arg : s.arguments()) {
      if (!arg.is_out()) out.push_back(&arg);
    }
    return out;
  };
  const auto wanted = inputs(schema);
  auto [begin, end] = by_name->equal_range(base);
  for (auto it = begin; it != end; ++it) {
    auto candidate = c10::Dispatcher::singleton().findSchema({base, it->second});
    if (!candidate.has_value() || candidate->schema().is_mutable()) continue;
    auto have = inputs(candidate->schema());
    if (factory) {
      if (!takes_options(have)) continue;
      have.resize(have.size() - 4);
    }
    if (have.size() != wanted.size()) continue;
    bool equal = true;
    for (size_t i = 0; i < have.size() && equal; i++) {
      equal = have[i]->name() == wanted[i]->name() && *have[i]->type() == *wanted[i]->type();
    }
    if (equal) return candidate;
  }
  return std::nullopt;
}

bool is_list_operator(const std::string& base) {
  return base.compare(0, 14, "aten::_foreach") == 0 || base.compare(0, 12, "aten::_fused") == 0;
}

bool is_number_list(const c10::Argument& arg) {
  const auto* list = arg.type()->castRaw<c10::ListType>();
  return list != nullptr && list->getElementType()->kind() == c10::TypeKind::NumberType;
}

std::atomic<int64_t> g_version{0};  // grows with each chip, and when plans are to be forgotten

}  // namespace

OpState::OpState(const c10::OperatorHandle& op) : handle(op), arg_count(op.schema().arguments().size()) {
  const c10::FunctionSchema& s = op.schema();
  display = s.overload_name().empty() ? s.name() : s.name() + "." + s.overload_name();
  // Users know these by the names without the suffix, which only out-of-tree backends meet.
  if (const size_t suffix = display.find("_overrideable"); suffix != std::string::npos) display.erase(suffix);
  std::string base = s.name();
  const bool mutable_form = s.is_mutable();
  bool in_place = mutable_form && ends_with(base, '_') && !s.arguments().empty() &&
                  s.arguments()[0].alias_info() != nullptr && s.arguments()[0].alias_info()->isWrite();
  if (in_place) base.pop_back();
  for (size_t i = 0; i < s.arguments().size(); i++) {
    const c10::Argument& arg = s.arguments()[i];
    is_out.push_back(arg.is_out());
    if (!arg.is_out()) {
      kernel_args.push_back(int(i));
      schema.arg_names.push_back(arg.name());
    }
    if (arg.alias_info() != nullptr && arg.alias_info()->isWrite()) written.push_back(int(i));
  }
  for (const c10::Argument& result : s.returns()) {
    int source = -1;
    if (result.alias_info() != nullptr) {
      for (size_t i = 0; i < s.arguments().size(); i++) {
        const auto* alias = s.arguments()[i].alias_info();
        if (alias == nullptr || alias->beforeSets() != result.alias_info()->beforeSets()) continue;
        if (alias->isWrite()) source = int(i);
        if (!alias->isWrite()) is_view = true;
      }
    }
    returns.push_back(source);
  }
  if (mutable_form) {
    functional = find_functional(s, base);
    if (!functional.has_value() && written.size() == 1 && is_out[size_t(written[0])])
      factory = find_functional(s, base, /*factory=*/true);
  } else {
    functional = op;
  }
  if (in_place && !functional.has_value()) base = s.name();  // an operator that exists in place only keeps its name
  schema.name = base;
  schema.overload = functional.has_value() ? functional->schema().overload_name() : s.overload_name();
  if (schema.overload.empty()) schema.overload = "default";  // "" in a descriptor's row means every overload
  if (base == "aten::native_batch_norm") hidden_writes = {3, 4};
  if (base == "aten::_native_batch_norm_legit" && !written.empty() && !returns.empty() && returns[0] < 0 &&
      !s.arguments().back().is_out()) {
    // It returns new values and updates its statistics by the way: to a kernel it is the same as the one above.
    hidden_writes = std::exchange(written, {});
    functional = op;
    schema.overload = "default";
  }

  pointwise = op.hasTag(at::Tag::pointwise) || (functional.has_value() && functional->hasTag(at::Tag::pointwise)) ||
              base == "aten::rsub";  // which PyTorch has forgotten to tag
  static const std::unordered_map<std::string, bool> kScaled = {{"aten::addmm", true},
                                                                {"aten::baddbmm", true},
                                                                {"aten::addmv", true},
                                                                {"aten::addbmm", true},
                                                                {"aten::addr", true}};
  for (const c10::Argument& arg : s.arguments()) {
    const auto kind = arg.type()->kind();
    const bool number = kind == c10::TypeKind::NumberType;
    // Operators on lists of tensors: a step of an optimizer differs from the last one in such numbers alone.
    const bool of_list = is_list_operator(base) && (number || kind == c10::TypeKind::FloatType || is_number_list(arg));
    scales.push_back((number && (pointwise || kScaled.count(base) != 0)) || of_list);
    defaults.push_back(arg.default_value().value_or(c10::IValue()));
  }
  baked.assign(scales.size(), 0);
  for (size_t i = 0; i < s.arguments().size(); i++) {
    if (s.arguments()[i].name() == "generator") generator = int(i);
  }
  random_check = torchfl::random_check(s.name());
  draws = generator >= 0 || random_check != nullptr;
  refresh_patched(*this);
  if (written.empty() || in_place) own_composite = torchfl::own_composite(s.name());
  for (c10::DispatchKey key : {c10::DispatchKey::CompositeExplicitAutograd, c10::DispatchKey::CompositeImplicitAutograd,
                               c10::DispatchKey::CompositeExplicitAutogradNonFunctional}) {
    if (key == c10::DispatchKey::CompositeExplicitAutogradNonFunctional && is_structured(op)) continue;
    if (!is_stub(base) && op.hasKernelForDispatchKey(key)) {
      composite = key;
      break;
    }
  }
}

void refresh_patched(OpState& op) {
  op.patched = op.scales;
  for (size_t i = 0; i < op.baked.size(); i++) {
    if (op.baked[i] != 0 && op.patched[i] != 0)
      op.patched[i] = uint8_t(op.baked[i] == 1 ? OpState::by_value : OpState::by_default);
  }
  op.offset_matters = false;
  for (const auto& chip : runtime::chips()) op.offset_matters |= chip->routes.depends_on(op.schema.name, "offset");
  // Whether an exponent is allowed depends on its sign.
  if (op.schema.name == "aten::pow") std::fill(op.patched.begin(), op.patched.end(), uint8_t(0));
  const auto& args = op.handle.schema().arguments();
  for (size_t i = 0; i < args.size(); i++) {
    if (!op.scales[i]) continue;
    for (const auto& chip : runtime::chips()) {
      // A kernel gets the list that its plan was made for.
      if (is_number_list(args[i]) && chip->routes.has(op.schema.name)) op.patched[i] = OpState::by_value;
      if (chip->routes.depends_on(op.schema.name, args[i].name())) op.patched[i] = 0;
    }
  }
}

bool OpState::writes(int position) const {
  auto in = [position](const std::vector<int>& list) {
    return std::find(list.begin(), list.end(), position) != list.end();
  };
  return in(written) || in(hidden_writes);
}

namespace {
std::mutex g_states_mutex;
auto* g_states = new std::unordered_map<const c10::FunctionSchema*, std::unique_ptr<OpState>>();
}  // namespace

OpState& op_state(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<const c10::FunctionSchema*, OpState*> known;
  const c10::FunctionSchema* key = &op.schema();
  auto found = known.find(key);
  if (found != known.end()) return *found->second;
  std::lock_guard<std::mutex> lock(g_states_mutex);
  auto& state = (*g_states)[key];
  if (!state) state = std::make_unique<OpState>(op);
  known.emplace(key, state.get());
  return *state;
}

// ------------------------------------------------------------------------------------------------ the plan cache

namespace {

// Open addressing by the signature's hash; one per thread, so that a lookup needs no lock. When it is full everything
// goes: dynamic shapes must not grow it without bound. Plans in use by an outer call outlive that in `retired`.
class PlanCache {
 public:
  Plan* find(uint64_t hash, const Signature& signature) {
    refresh();
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      Slot& slot = slots_[i];
      if (slot.plan == nullptr) return nullptr;
      if (slot.hash == hash && slot.plan->key.size() == signature.words.size() &&
          std::memcmp(slot.plan->key.data(), signature.words.data(), signature.words.size() * sizeof(uint64_t)) == 0) {
        return slot.plan.get();
      }
    }
  }
  Plan* put(uint64_t hash, std::unique_ptr<Plan> plan) {
    if (count_ * 2 >= slots_.size()) grow();
    for (size_t i = hash & mask_;; i = (i + 1) & mask_) {
      Slot& slot = slots_[i];
      const bool same = slot.plan != nullptr && slot.hash == hash && slot.plan->key == plan->key;
      if (slot.plan != nullptr && !same) continue;
      if (same) {
        retire(std::move(slot.plan));
      } else {
        count_++;
      }
      slot.hash = hash;
      slot.plan = std::move(plan);
      return slot.plan.get();
    }
  }
  size_t count() const { return count_; }
  int depth = 0;
  void leave() {
    if (--depth == 0 && !retired_.empty()) retired_.clear();
  }

 private:
  struct Slot {
    uint64_t hash = 0;
    std::unique_ptr<Plan> plan;
  };
  void retire(std::unique_ptr<Plan> plan) {
    if (plan) retired_.push_back(std::move(plan));
  }
  void refresh() {
    const int64_t version = g_version.load(std::memory_order_relaxed);
    if (C10_LIKELY(version == version_)) return;
    version_ = version;
    clear(1024);
  }
  void clear(size_t size) {
    for (Slot& slot : slots_) retire(std::move(slot.plan));
    slots_.clear();
    slots_.resize(size);
    mask_ = size - 1;
    count_ = 0;
  }
  void grow() {
    constexpr size_t kMost = size_t(1) << 13;  // half of them plans, of a few KiB each
    if (slots_.size() >= kMost) {
      clear(1024);
      return;
    }
    std::vector<Slot> old = std::move(slots_);
    slots_.clear();
    slots_.resize(old.size() * 2);
    mask_ = slots_.size() - 1;
    for (Slot& slot : old) {
      if (!slot.plan) continue;
      size_t i = slot.hash & mask_;
      while (slots_[i].plan) i = (i + 1) & mask_;
      slots_[i] = std::move(slot);
    }
  }
  std::vector<Slot> slots_;
  size_t mask_ = 0, count_ = 0;
  int64_t version_ = -1;
  std::vector<std::unique_ptr<Plan>> retired_;
};
thread_local PlanCache t_plans;

struct Depth {
  Depth() { t_plans.depth++; }
  ~Depth() { t_plans.leave(); }
};

[[noreturn]] void forbid_leaving(const Plan& plan, OpState& op, torch::jit::Stack& stack, const std::string& where) {
  stats::unsupported(unsupported_text(op, torch::jit::last(stack, op.arg_count), plan, plan.counters->reason) +
                     " It would run " + where + ", which strict mode forbids.");
}

void run_elsewhere(const Plan& plan, OpState& op, torch::jit::Stack* stack) {
  if (C10_UNLIKELY(plan.kind == Plan::Kind::error)) raise_refusal(plan);
  if (C10_UNLIKELY(plan.kind == Plan::Kind::cpu && stats::g_strict.load(std::memory_order_relaxed)))
    forbid_leaving(plan, op, *stack, "on the CPU");
  if (plan.kind == Plan::Kind::composite) {
    plan.counters->calls.fetch_add(1, std::memory_order_relaxed);
    if (C10_UNLIKELY(stats::g_timing.load(std::memory_order_relaxed) != 0)) profiler::taken_apart();
    if (op.own_composite != nullptr) {
      op.own_composite->callBoxed(op.handle, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), stack);
    } else {
      op.handle.callBoxedForDispatchKey(*op.composite, *stack);
    }
    return;
  }
  run_on_cpu(op, stack, *plan.counters, plan.device);
}

}  // namespace

const Plan* find_plan(const Signature& signature) { return t_plans.find(signature.hash(), signature); }

size_t plan_count() { return t_plans.count(); }

void forget_plans() { g_version.fetch_add(1); }

namespace {
// Runs a program, or a function: what neither refuses needs no second look. False: it refused this very call.
bool run_substitute(const Plan& plan, OpState& op, torch::jit::Stack* stack) {
  if (plan.kind == Plan::Kind::composed) return run_composed(plan, op, stack);
  if (C10_UNLIKELY(stats::g_strict.load(std::memory_order_relaxed)))
    forbid_leaving(plan, op, *stack, "in its fallback " + plan.function);
  return run_custom(plan, op, stack);
}

// This program, or function, refused a call: it is not to be looked for again.
void give_up(const Plan& plan, const OpState& op, Refused& refused, std::string& no_program) {
  if (plan.kind == Plan::Kind::custom) {
    refused.emplace_back(nullptr, plan.function + " does not serve this call");
    return;
  }
  const std::string refusal = take_sdk_message().text;
  stats::log(1, op.display + " on " + runtime::label(plan.device) + ": a kernel of its program refused: " + refusal);
  no_program = "a kernel of it refused: " + refusal;
}

bool is_substitute(const Plan& plan) { return plan.kind == Plan::Kind::composed || plan.kind == Plan::Kind::custom; }

at::Tensor resolved(const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  if (tensor._is_zerotensor()) return at::zeros(tensor.sizes(), tensor.options());
  return tensor.resolve_conj().resolve_neg();
}

// PyTorch hands the conj bit of a matrix on to linear algebra, which may have a use for it: no chip of ours has. What
// an operator writes stays what it is. False: there was nothing to resolve.
bool resolve(const OpState& op, torch::jit::Stack* stack) {
  bool changed = false;
  auto one = [&](const at::Tensor& tensor) {
    at::Tensor made = resolved(tensor);
    changed |= !made.is_same(tensor);
    return made;
  };
  const size_t base = stack->size() - op.arg_count;
  for (size_t i = 0; i < op.arg_count; i++) {
    c10::IValue& value = (*stack)[base + i];
    if (op.writes(int(i))) continue;
    value = map_tensors(value, one);
  }
  return changed;
}

}  // namespace

namespace {

// What has no plan yet, whose plan is no kernel, or whose kernel has just refused it.
void decide_and_run(OpState& op, torch::jit::Stack* stack, at::ArrayRef<c10::IValue> args, const Signature& signature,
                    uint64_t hash, int device, Plan* plan) {
  Refused refused;
  std::string no_program;
  if (plan != nullptr && is_substitute(*plan)) {
    if (run_substitute(*plan, op, stack)) return;
    give_up(*plan, op, refused, no_program);
    plan = nullptr;
  } else if (plan != nullptr && plan->run == nullptr && plan->kind != Plan::Kind::handler) {
    run_elsewhere(*plan, op, stack);
    return;
  } else if (plan != nullptr && plan->run == nullptr && run_plan(*plan, op, stack)) {
    return;
  }
  // Decide; and decide again without the rows whose kernel refuses, and without a program or function that does.
  std::string refusal = plan != nullptr ? take_sdk_message().text : "";
  bool was_refused = plan != nullptr;
  bool packed = plan != nullptr && plan->packed;
  for (;;) {
    if (was_refused && !packed) {
      // Kernels that want dense rows say so when they run. Contiguous copies on the chip are better than another path.
      packed = true;
      BuiltPlan dense = build_plan(op, args, signature, device, refused, false, /*pack=*/true);
      if (dense.plan && dense.plan->packed) {
        plan = t_plans.put(hash, std::move(dense.plan));
        if (run_plan(*plan, op, stack)) return;
        refusal = take_sdk_message().text;
      }
    }
    if (was_refused) {
      BuiltPlan again = build_plan(op, args, signature, device, refused, false);
      if (again.row == nullptr) break;
      refused.emplace_back(again.row, refusal.empty() ? "the kernel said that it does not support this call" : refusal);
    }
    BuiltPlan built = build_plan(op, args, signature, device, refused, true, /*pack=*/false, no_program);
    if (built.again) {
      forget_plans();
      route(op, stack);
      return;
    }
    if (!built.resize.empty()) {
      for (const auto& [position, sizes] : built.resize) {
        at::native::resize_output(args[size_t(position)].toTensor(), sizes);  // warns as PyTorch does
      }
      route(op, stack);
      return;
    }
    plan = t_plans.put(hash, std::move(built.plan));
    if (is_substitute(*plan)) {
      if (run_substitute(*plan, op, stack)) return;
      give_up(*plan, op, refused, no_program);
      was_refused = false;
      continue;
    }
    if (plan->kind != Plan::Kind::kernel && plan->kind != Plan::Kind::handler) break;
    if (run_plan(*plan, op, stack)) return;
    refusal = take_sdk_message().text;
    was_refused = true;
    packed = false;
  }
  run_elsewhere(*plan, op, stack);
}

}  // namespace

void route(OpState& op, torch::jit::Stack* stack) {
  const profiler::Entry entry;
  const at::ArrayRef<c10::IValue> args = torch::jit::last(*stack, op.arg_count);
  if (C10_UNLIKELY(op.draws)) check_random_call(op, args);
  // What shares its memory and is to be written moves first: the signature has its address.
  if (C10_UNLIKELY(unified::g_storages.load(std::memory_order_relaxed) != 0))
    note_written_arguments(op, *stack, stack->size() - op.arg_count);
  Signature signature;
  read_signature(op, args, signature);
  if (C10_UNLIKELY(signature.lazy) && resolve(op, stack)) {
    route(op, stack);
    return;
  }
  // No tensor of ours: a factory (device=...) or a list that is empty.
  const int device = signature.device >= 0 ? signature.device : runtime::current_device();
  if (C10_UNLIKELY(op.is_view)) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, op.display, " is a view and has no kernel on ", runtime::label(device),
                                ": a copy would break its aliasing. Call it on the CPU, or report this operator.");
  }
  const uint64_t hash = signature.hash();
  Depth depth;
  Plan* plan = t_plans.find(hash, signature);
  if (C10_LIKELY(plan != nullptr && plan->run != nullptr)) {
    if (C10_LIKELY(run_plan(*plan, op, stack))) return;
  }
  decide_and_run(op, stack, args, signature, hash, device, plan);
}

namespace {

// A tensor that is like `meta` but on device `index`, with no memory behind it: enough to decide on.
at::Tensor stand_in(const at::Tensor& meta, int index) {
  const c10::Device device(kDevice, c10::DeviceIndex(index));
  auto storage = c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), 0, c10::DataPtr(nullptr, device), device_allocator(), /*resizable=*/true);
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), meta.dtype());
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(meta.sizes(), meta.strides(), meta.storage_offset());
  return tensor;
}

c10::IValue stand_in(const c10::IValue& value, int index) {
  return map_tensors(value, [index](const at::Tensor& tensor) {
    return tensor.defined() && tensor.is_meta() ? stand_in(tensor, index) : tensor;
  });
}

}  // namespace

Explanation explain(OpState& op, torch::jit::Stack stack, int index) {
  for (c10::IValue& value : stack) value = stand_in(value, index);
  Signature signature;
  read_signature(op, stack, signature);
  BuiltPlan built = build_plan(op, stack, signature, index, {}, false);
  if (built.again) return explain(op, std::move(stack), index);
  TORCH_CHECK_VALUE(built.resize.empty(), op.display,
                    ": out= has another shape than the result; explain it with one that fits");
  Explanation out;
  out.op = op.display;
  out.device = runtime::label(index);
  out.path = built.plan->kind == Plan::Kind::composite ? "composite" : path_name(built.decision.path);
  const bool by_kernel = built.decision.path == Path::native || built.decision.path == Path::custom;
  out.target = built.plan->kind == Plan::Kind::custom       ? built.plan->function
               : built.decision.row != nullptr && by_kernel ? built.decision.row->kernel
                                                            : out.path;
  if (built.plan->kind == Plan::Kind::composed) {
    out.target = "program";
    out.steps = built.plan->program->kernels();
  }
  out.reason = built.decision.reason;
  out.attempts = built.decision.attempts;
  for (const Plan::Patch& patch : built.plan->patches) {
    if (patch.source != Plan::Patch::prepared_tensor) continue;
    const uba_tensor& slot = built.plan->tensors[size_t(patch.tensor)];
    out.transforms.push_back(op.handle.schema().arguments()[size_t(patch.arg)].name() + " as " +
                             dtype_name(slot.dtype) + ", " + layout_name(slot));
  }
  return out;
}

// ------------------------------------------------------------------------------------------------ timing, builtins

OpCounters& begin_builtin(std::atomic<OpCounters*>* cache, int index, const char* op, const char* target) {
  OpCounters* counters = cache[index].load(std::memory_order_acquire);
  if (C10_UNLIKELY(counters == nullptr)) {
    counters = &stats::counters(runtime::label(index), op, "native", target, "");
    cache[index].store(counters, std::memory_order_release);
  }
  return *counters;
}

namespace {
uint64_t now() {
  return uint64_t(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}
}  // namespace

void Timer::start() {
  observed_ = stats::g_timing.load(std::memory_order_relaxed);
  if ((observed_ & stats::kTimed) != 0) {
    runtime::device(index_).synchronize(runtime::current_stream(index_));
    began_ = now();
  }
  if ((observed_ & stats::kProfiled) != 0) profiler::begin_call(index_);
}

void Timer::stop() noexcept {
  if ((observed_ & stats::kProfiled) != 0) profiler::end_call(counters_);
  if (counters_ == nullptr || (observed_ & stats::kTimed) == 0) return;
  try {
    runtime::device(index_).synchronize(runtime::current_stream(index_));
  } catch (...) {
    return;  // the failure surfaces at the user's own synchronise
  }
  counters_->nanoseconds.fetch_add(now() - began_, std::memory_order_relaxed);
}

// ------------------------------------------------------------------------------------------------ registration

namespace {

struct RoutedKernel final : c10::OperatorKernel {
  explicit RoutedKernel(OpState* op_state) : state(op_state) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) { route(*state, stack); }
  OpState* state;
};

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) { route(op_state(op), stack); }

void refuse_quantized(const c10::OperatorHandle& op, torch::jit::Stack*) {
  TORCH_CHECK_NOT_IMPLEMENTED(false, op.schema().name(), ": ", kNoQuantizedTensors);
}

}  // namespace

namespace {
auto* g_routed = new std::unordered_map<std::string, bool>();  // operators by full name
}

bool has_own_kernel(const c10::OperatorHandle& op) {
  const std::string name = op.schema().name(), overload = op.schema().overload_name();
  return op.hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1) &&
         g_routed->count(overload.empty() ? name : name + "." + overload) == 0;
}

void register_routes() {
  static auto* library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto* const registered = g_routed;
  auto& dispatcher = c10::Dispatcher::singleton();
  g_version.fetch_add(1);
  {
    std::lock_guard<std::mutex> lock(g_states_mutex);
    for (auto& [key, state] : *g_states) refresh_patched(*state);
  }
  bool composes = false;
  for (const auto& chip : runtime::chips()) composes |= chip->routes.has_instructions();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.compare(0, 6, "aten::") != 0) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    if (registered->count(full) != 0) continue;
    auto handle = dispatcher.findSchema(name);
    if (!handle.has_value() || handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1)) continue;
    const bool implicit = handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    const bool structured = is_structured(*handle);
    std::string base = name.name;
    bool mapped = false;
    for (const auto& chip : runtime::chips()) {
      auto routed = [&](const std::string& name) { return chip->routes.has(name) || chip->routes.has_function(name); };
      mapped |= routed(base) || (ends_with(base, '_') && routed(base.substr(0, base.size() - 1)));
    }
    mapped |= is_custom(base);
    // Structured operators have a kernel that asks the backend for the out form: one detour less for every path.
    const bool own = own_composite(base) != nullptr;
    // PyTorch's own loop over the tensors of a list, where one program could do.
    const bool list = composes && is_list_operator(base);
    if (implicit || !(structured || mapped || own || list || is_stub(base))) continue;
    OpState& state = op_state(*handle);
    if (state.is_view) continue;
    auto unboxed = fast_kernel(state);
    library->impl(full.c_str(), unboxed.has_value()
                                    ? std::move(*unboxed)
                                    : torch::CppFunction::makeFromBoxedFunctor(std::make_unique<RoutedKernel>(&state)));
    registered->emplace(full, true);
  }
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>()); }
TORCH_LIBRARY_IMPL(_, QuantizedPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&refuse_quantized>());
}

}  // namespace torchfl
