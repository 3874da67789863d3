// plan.cpp: see plan.h. The once-per-signature part: shapes, promotion, the decision, and the template of the call.
#include "plan.h"

#include <cmath>
#include <cstring>

#include "aten_handlers.h"
#include "attention_limits.h"
#include "composer.h"
#include "custom_route.h"
#include "graph_fused.h"
#include "own_composites.h"
#include "transfer.h"
#include "undisturbed.h"
#include "unsupported.h"
#include "wrapper_route.h"

namespace torchfl {
namespace {

// Row-major strides, or the tensor's own when it is dense (its memory format is worth keeping).
c10::SmallVector<int64_t, 6> packed_strides(c10::IntArrayRef sizes, c10::IntArrayRef strides, bool keep_dense) {
  c10::SmallVector<int64_t, 6> out(sizes.size(), 0);
  if (keep_dense) {
    std::vector<size_t> order(sizes.size());
    for (size_t i = 0; i < order.size(); i++) order[i] = i;
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return strides[a] > strides[b]; });
    int64_t step = 1;
    bool dense = true;
    for (size_t i = order.size(); i-- > 0;) {
      const size_t d = order[i];
      if (sizes[d] != 1 && strides[d] != step) dense = false;
      out[d] = step;
      step *= std::max<int64_t>(sizes[d], 1);
    }
    if (dense) return out;
  }
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    out[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  return out;
}

// Builds the argument templates of one plan.
class Template {
 public:
  explicit Template(Plan& plan) : plan_(plan) {}

  const int64_t* keep(c10::IntArrayRef values) {
    auto array = std::make_unique<int64_t[]>(std::max<size_t>(values.size(), 1));
    std::copy(values.begin(), values.end(), array.get());
    plan_.int_arrays.push_back(std::move(array));
    return plan_.int_arrays.back().get();
  }
  const double* keep(const std::vector<double>& values) {
    auto array = std::make_unique<double[]>(std::max<size_t>(values.size(), 1));
    std::copy(values.begin(), values.end(), array.get());
    plan_.double_arrays.push_back(std::move(array));
    return plan_.double_arrays.back().get();
  }

  // Adds a tensor slot; `convert` is the dtype the kernel shall see. The value entries that refer to slots are linked
  // by `link` at the end, since the slot array moves while it grows.
  int add_tensor(const at::Tensor& tensor, c10::ScalarType convert, int arg, int element) {
    uba_tensor slot{};
    Plan::Patch patch{};
    patch.arg = int16_t(arg);
    patch.element = int16_t(element);
    patch.tensor = int32_t(plan_.tensors.size());
    patch.dtype = convert;
    const bool converted = convert != tensor.scalar_type();
    patch.source = converted ? Plan::Patch::prepared_tensor : Plan::Patch::tensor_address;
    slot.dtype = to_uba_dtype(convert);
    slot.rank = int32_t(tensor.dim());
    slot.sizes = keep(tensor.sizes());
    slot.strides = converted ? keep(packed_strides(tensor.sizes(), tensor.strides(), true)) : keep(tensor.strides());
    if (!converted && tensor.device().type() == kDevice) slot.byte_offset = place_of(tensor).offset;
    plan_.tensors.push_back(slot);
    plan_.patches.push_back(patch);
    return patch.tensor;
  }

  void add_number(uba_value& value, int index, const c10::Scalar& number, int arg, Plan::Patch::Source source,
                  bool floating) {
    value.count = 1;
    if (floating) {
      value.kind = UBA_DOUBLE;
      value.v.d = number.isComplex() ? std::nan("") : number.toDouble();
    } else {
      value.kind = UBA_INT;
      value.v.i = whole_number(number);
    }
    Plan::Patch patch{};
    patch.arg = int16_t(arg);
    patch.element = -1;
    patch.value = int16_t(index);
    patch.source = source;
    patch.floating = floating;
    plan_.patches.push_back(patch);
  }

  // value index -> first slot, count
  void refer(int value, int slot, int count, bool list) { references_.push_back({value, slot, count, list}); }
  void link() {
    for (const auto& reference : references_) {
      uba_value& value = plan_.values[size_t(reference.value)];
      value.kind = reference.list ? UBA_TENSOR_LIST : UBA_TENSOR;
      value.count = uint32_t(reference.count);
      value.v.tensor = plan_.tensors.data() + reference.slot;
    }
  }

 private:
  struct Reference {
    int value, slot, count;
    bool list;
  };
  Plan& plan_;
  std::vector<Reference> references_;
};

struct Unroutable {  // why a call cannot be expressed for a kernel at all
  std::string reason;
};

// Turns the arguments into templates. Throws Unroutable.
void fill_arguments(OpState& op, at::ArrayRef<c10::IValue> args, c10::ScalarType compute, Plan& plan, Template& build) {
  const auto& schema_args = op.handle.schema().arguments();
  plan.values.assign(op.kernel_args.size(), uba_value{});
  const bool compute_floats = compute == c10::ScalarType::Undefined || c10::isFloatingType(compute);
  auto add = [&](const at::Tensor& tensor, int position, int element) {
    if (to_uba_dtype(tensor.scalar_type()) == 0)
      throw Unroutable{std::string(c10::toString(tensor.scalar_type())) + " has no meaning for an adapter"};
    const c10::ScalarType convert =
        follows_compute_dtype(op, position, tensor, compute) ? compute : tensor.scalar_type();
    return build.add_tensor(tensor, convert, position, element);
  };
  for (size_t k = 0; k < op.kernel_args.size(); k++) {
    const int position = op.kernel_args[k];
    const c10::IValue& arg = args[size_t(position)];
    uba_value& value = plan.values[k];
    const std::string& name = schema_args[size_t(position)].name();
    if (arg.isNone() || (arg.isTensor() && !arg.toTensor().defined())) {
      value.kind = UBA_NONE;
    } else if (arg.isTensor()) {
      const at::Tensor& tensor = arg.toTensor();
      if (tensor.device().type() != kDevice) {
        if (tensor.dim() != 0) throw Unroutable{"'" + name + "' is a CPU tensor"};
        if (c10::isComplexType(tensor.scalar_type())) throw Unroutable{"'" + name + "' is a complex number"};
        build.add_number(value, int(k), tensor.item(), position, Plan::Patch::host_number,
                         c10::isFloatingType(tensor.scalar_type()) || (op.pointwise && c10::isFloatingType(compute)));
      } else {
        build.refer(int(k), add(tensor, position, -1), 1, false);
      }
    } else if (arg.isTensorList()) {
      const auto list = arg.toListRef();
      const int first = int(plan.tensors.size());
      for (size_t e = 0; e < list.size(); e++) {
        const at::Tensor& tensor = list[e].toTensor();
        if (!tensor.defined() || tensor.device().type() != kDevice)
          throw Unroutable{"'" + name + "' holds a tensor that is not on the device"};
        add(tensor, position, int(e));
      }
      build.refer(int(k), first, int(list.size()), true);
    } else if (arg.isInt() || arg.isDouble() || arg.isBool()) {
      const bool scales = op.scales[size_t(position)];
      const bool floating =
          arg.isDouble() || (scales && op.pointwise && compute_floats && compute != c10::ScalarType::Undefined);
      build.add_number(value, int(k), arg.toScalar(), position, Plan::Patch::number, floating);
      if (!op.patched[size_t(position)])
        plan.patches.pop_back();  // part of the signature: the template's value is right for ever
      if (!scales && arg.isInt() && schema_args[size_t(position)].type()->str() == "ScalarType") {
        value.v.i = to_uba_dtype(c10::ScalarType(arg.toInt()));
      }
    } else if (arg.isIntList() || arg.isBoolList()) {
      std::vector<int64_t> values;
      for (const c10::IValue& element : arg.toListRef())
        values.push_back(element.isBool() ? int64_t(element.toBool()) : element.toInt());
      value.kind = UBA_INT_LIST;
      value.count = uint32_t(values.size());
      value.v.ints = build.keep(values);
    } else if (arg.isDoubleList()) {
      const std::vector<double> values = arg.toDoubleVector();
      value.kind = UBA_DOUBLE_LIST;
      value.count = uint32_t(values.size());
      value.v.doubles = build.keep(values);
    } else if (arg.isString()) {
      plan.strings.push_back(arg.toStringRef());
      value.kind = UBA_STRING;
      value.count = 1;
    } else {
      throw Unroutable{"argument '" + name + "' is a " + arg.tagKind() + ", which no kernel takes"};
    }
  }
  size_t next_string = 0;  // linked last: the vector moved while it grew
  for (auto& value : plan.values) {
    if (value.kind == UBA_STRING) value.v.str = plan.strings[next_string++].c_str();
  }
}

std::string mapping_line(const OpPath& row, const Plan& plan) {
  std::string layout = "scalar", dtype;
  for (const uba_tensor& tensor : plan.tensors) {
    layout = tensor.rank == 4        ? layout_name(tensor)
             : tensor.rank == 0      ? "scalar"
             : is_contiguous(tensor) ? "contiguous"
                                     : "strided";
    dtype = dtype_name(tensor.dtype);
    break;
  }
  static const std::pair<const char*, const char*> kShort[] = {
      {"float16", "fp16"}, {"bfloat16", "bf16"}, {"float32", "fp32"}, {"float64", "fp64"}};
  for (const auto& [name, text] : kShort) {
    if (dtype == name) dtype = text;
  }
  return "[SME] Mapping " + row.declared + " -> " + row.kernel + " (layout=" + layout + ", dtype=" + dtype + ")";
}

// What a kernel wants in another order of memory than it comes in; "" if nothing.
std::string layout_line(const OpState& op, at::ArrayRef<c10::IValue> args, const Plan& plan, const Decision& decision) {
  for (const Transform& transform : decision.transforms) {
    if (transform.is_output || (transform.why & Transform::relaid) == 0 || transform.sizes.size() != 4) continue;
    const int position = op.kernel_args[size_t(transform.arg)];
    if (!args[size_t(position)].isTensor()) continue;
    uba_tensor wanted{};
    wanted.dtype = transform.dtype;
    wanted.rank = 4;
    wanted.sizes = transform.sizes.data();
    wanted.strides = transform.strides.data();
    return "Tensor layout mismatch: expected " + layout_name(wanted) + ", got " +
           layout_name(view_of(args[size_t(position)].toTensor())) + ": '" +
           op.handle.schema().arguments()[size_t(position)].name() + "' of " + op.display + " on " + plan.entry->label +
           " is put in that order for " + decision.row->kernel +
           ". Keep it so (memory_format=torch.channels_last, or tensor.default_layout of the descriptor) to spare "
           "that, "
           "or list the other order under layouts of the row if the kernel takes both";
  }
  return "";
}

// What running this call elsewhere looks like to the user, said once.
void announce_elsewhere(const OpState& op, Plan& plan, const std::string& path, const std::string& reason, bool first) {
  if (first && !(plan.kind == Plan::Kind::cpu && stats::g_strict.load())) {
    const bool composite = plan.kind == Plan::Kind::composite;
    stats::log(composite ? 0 : 2, op.display + " on " + plan.entry->label +
                                      (composite ? " is taken apart by PyTorch: " : " runs on the CPU: ") + reason);
  }
  if (stats::debug_lines()) {
    std::fprintf(stderr, "[SME] Fallback to %s: %s (%s)\n", path == "cpu" ? "CPU" : path.c_str(), op.display.c_str(),
                 reason.c_str());
  }
}

void go_elsewhere(OpState& op, at::ArrayRef<c10::IValue> args, Plan& plan, const std::string& reason, bool announce) {
  const bool own =
      op.own_composite != nullptr && own_composite_serves(op.handle.schema().name(), args, plan.entry->chip->routes);
  plan.kind = own || op.composite.has_value() ? Plan::Kind::composite : Plan::Kind::cpu;
  const std::string path = plan.kind == Plan::Kind::composite ? "composite" : "cpu";
  bool created = false;
  plan.counters = &stats::counters(plan.entry->label, op.display, path, path, reason, &created);
  if (announce) announce_elsewhere(op, plan, path, reason, created);
}

// A program in the place of the kernel that is missing. Its attempt stands before those of the paths behind it.
bool compose_here(OpState& op, at::ArrayRef<c10::IValue> args, const Signature& signature, const std::string& reason,
                  bool announce, BuiltPlan& built, std::string* why) {
  Plan& plan = *built.plan;
  Decision& decision = built.decision;
  // Without a tensor of ours it is a factory, which PyTorch makes of `empty` and an operator that has one.
  if (!can_compose() || is_fused(op.schema.name) || signature.host_tensors || signature.device < 0 ||
      !plan.entry->chip->routes.may_compose(op.schema))
    return false;
  const bool composed = compose_plan(op, args, signature, built, why);
  auto behind = std::find_if(decision.attempts.begin(), decision.attempts.end(),
                             [](const Attempt& attempt) { return attempt.path > Path::composed; });
  if (composed) behind = decision.attempts.erase(behind, decision.attempts.end());
  decision.attempts.insert(behind, {Path::composed, "program", composed, *why, "", 0});
  if (!composed || !built.resize.empty() || built.again) return composed;
  decision.path = Path::composed;
  bool created = false;
  plan.counters = &stats::counters(plan.entry->label, op.display, "composed", "program", reason, &created);
  if (announce) {
    if (created) stats::log(0, op.display + " on " + plan.entry->label + " is composed: " + reason);
    if (stats::debug_lines()) {
      std::fprintf(stderr, "[SME] Composing %s of %zu steps (%s)\n", op.display.c_str(), plan.program->step_count(),
                   reason.c_str());
    }
  }
  return true;
}

// Has every tensor that is only read copied into row-major order, and every result written in it.
template <class Prepare>
void pack_tensors(const OpState& op, Plan& plan, const Prepare& prepare_at) {
  for (size_t i = 0; i < plan.patches.size(); i++) {
    const Plan::Patch patch = plan.patches[i];
    if (patch.source != Plan::Patch::tensor_address && patch.source != Plan::Patch::prepared_tensor) continue;
    if (op.writes(patch.arg) || is_contiguous(plan.tensors[size_t(patch.tensor)])) continue;
    prepare_at(patch.arg, patch.element, /*keep_dense=*/false);
    plan.packed = true;
  }
  for (Plan::Output& output : plan.outputs) {
    const auto packed = packed_strides(output.shape.sizes, output.shape.strides, false);
    if (output.shape.dtype == c10::ScalarType::Undefined || packed == output.shape.strides) continue;
    output.shape.strides = packed;
    output.through_temporary = output.written_arg >= 0;
    plan.packed = true;
  }
}

// Operators whose CPU arguments only say where, or how long: PyTorch's other devices take those as well.
bool takes_host_tensors(const std::string& base) {
  for (const char* prefix : {"aten::index", "aten::_index_put", "aten::_unsafe_index", "aten::_unsafe_masked_index",
                             "aten::_pack_padded", "aten::tensor_split", "aten::repeat_interleave", "aten::ctc_loss",
                             "aten::_ctc_loss", "aten::segment_reduce", "aten::_segment_reduce", "aten::_foreach",
                             "aten::_fused", "aten::set_", "aten::histogram", "aten::_histogramdd"}) {
    if (base.compare(0, std::strlen(prefix), prefix) == 0) {
      return base != "aten::index_select" && base != "aten::index_add" && base != "aten::index_copy" &&
             base != "aten::index_fill" && base != "aten::index_reduce";
    }
  }
  return false;
}

bool shares_memory_kind(const OpState& op, at::ArrayRef<c10::IValue> args) {
  // Whether any read argument could share storage with a written one: decided by looking at run time.
  return !op.written.empty() && args.size() > 1;
}

}  // namespace

void check_written_dtype(const OpState& op, int position, c10::ScalarType result, c10::ScalarType target) {
  if (result == target) return;
  // Out forms that PyTorch generates copy into their argument and want its dtype; others convert.
  TORCH_CHECK(!op.is_out[size_t(position)] || !op.handle.hasTag(at::Tag::generated),
              "Expected out tensor to have dtype ", result, ", but got ", target, " instead");
  TORCH_CHECK(c10::canCast(result, target), "result type ", result, " can't be cast to the desired output type ",
              target);
}

BuiltPlan build_plan(OpState& op, at::ArrayRef<c10::IValue> args, const Signature& signature, int device,
                     const Refused& refused, bool announce, bool pack, const std::string& no_program) {
  const Undisturbed undisturbed;
  BuiltPlan built;
  built.plan = std::make_unique<Plan>();
  Plan& plan = *built.plan;
  plan.key.assign(signature.words.begin(), signature.words.end());
  plan.device = device;
  plan.entry = &runtime::device_unopened(device);
  const ChipEntry& chip = *plan.entry->chip;
  Decision& decision = built.decision;

  auto elsewhere = [&](const std::string& reason) {
    if (decision.attempts.empty()) decision.attempts.push_back({Path::native, chip.chip.name, false, reason, "", 0});
    std::string unserved;
    if (custom_plan(op, args, refused, reason, announce, built, &unserved)) return std::move(built);
    decision.path = Path::cpu;
    decision.reason = unserved.empty() ? reason : reason + "; " + unserved;
    std::string uncomposed = no_program;
    if (no_program.empty() && compose_here(op, args, signature, decision.reason, announce, built, &uncomposed))
      return std::move(built);
    if (!uncomposed.empty()) decision.reason += "; no program: " + uncomposed;
    go_elsewhere(op, args, plan, decision.reason, announce);
    return std::move(built);
  };

  if (signature.host_tensors && !takes_host_tensors(op.schema.name)) {
    TORCH_CHECK(false, "Expected all tensors to be on the same device, but ", op.display, " got tensors on ",
                plan.entry->label, " and on cpu. Move one of them with .to('", plan.entry->label, "').");
  }
  if (std::string beyond = beyond_attention_unit(op, args, chip.chip); !beyond.empty()) {
    refuse_call(plan, decision, "attention unit", std::move(beyond));
    return built;
  }
  const bool mapped = chip.routes.has(op.schema.name);
  if (!mapped) {
    decision = chip.routes.decide({CallView{&op.schema, nullptr, 0, nullptr, 0}});
    if (decision.path == Path::error) {
      if (!custom_function(op, device).empty()) return elsewhere(decision.reason);
      plan.kind = Plan::Kind::error;
      plan.error = unsupported_text(op, args, plan, decision.reason);
      return built;
    }
    return elsewhere(decision.reason);
  }
  if (signature.host_tensors) return elsewhere("a CPU tensor takes part");

  // Shapes: the call's own form (which also checks it), and the functional one for the dtype of the result.
  std::optional<std::vector<OutputShape>> own;
  if (!op.returns.empty()) own = infer_outputs(op.handle, op.schema.name, args);
  if (!own.has_value() && std::find(op.returns.begin(), op.returns.end(), -1) != op.returns.end()) {
    return elsewhere("PyTorch cannot tell the shape of its result beforehand");
  }
  std::vector<OutputShape> functional;
  if (op.written.empty()) {
    if (own.has_value()) functional = *own;
  } else if (op.functional.has_value() && !op.returns.empty()) {
    std::vector<c10::IValue> functional_args;
    for (int position : op.kernel_args) functional_args.push_back(args[size_t(position)]);
    if (auto inferred = infer_outputs(*op.functional, op.schema.name, functional_args))
      functional = std::move(*inferred);
  }

  Template build(plan);
  try {
    const c10::ScalarType compute =
        compute_dtype(op, args, functional.empty() ? c10::ScalarType::Undefined : functional[0].dtype);
    fill_arguments(op, args, compute, plan, build);
  } catch (const Unroutable& why) {
    plan.patches.clear();
    return elsewhere(why.reason);
  }

  // Outputs: what the kernel writes.
  std::vector<uba_tensor> output_views;
  if (op.written.empty()) {
    for (const OutputShape& shape : functional) {
      Plan::Output output;
      output.shape = shape;
      plan.outputs.push_back(std::move(output));
    }
  } else {
    for (size_t i = 0; i < op.returns.size(); i++) {
      const int written = op.returns[i];
      if (written < 0 || !args[size_t(written)].isTensor())
        return elsewhere("this form writes its arguments and returns something else");
      const at::Tensor& target = args[size_t(written)].toTensor();
      Plan::Output output;
      output.written_arg = written;
      output.shape.dtype = target.scalar_type();
      output.shape.sizes.assign(target.sizes().begin(), target.sizes().end());
      output.shape.strides.assign(target.strides().begin(), target.strides().end());
      // The shape check of this very form has resized its stand-in for `out`, if that is what PyTorch does.
      if (op.is_out[size_t(written)] && own.has_value() && i < own->size() && (*own)[i].sizes != output.shape.sizes) {
        built.resize.emplace_back(written, (*own)[i].sizes);
        continue;
      }
      if (i < functional.size()) {
        if (functional[i].sizes != output.shape.sizes) {
          return elsewhere("the result has another shape than the tensor it is written to");
        }
        if (functional[i].dtype != output.shape.dtype) {
          check_written_dtype(op, written, functional[i].dtype, output.shape.dtype);
          output.shape.dtype = functional[i].dtype;
          output.through_temporary = true;
        }
      }
      // A target without a one-to-one layout (expanded, or with gaps that a kernel may not expect) gets a copy.
      plan.outputs.push_back(std::move(output));
    }
  }
  if (!built.resize.empty()) {
    built.plan.reset();
    return built;
  }
  auto make_views = [&] {
    output_views.clear();
    for (Plan::Output& output : plan.outputs) {
      uba_tensor view{};
      if (output.shape.dtype != c10::ScalarType::Undefined) {
        if (output.through_temporary) {
          const auto packed = packed_strides(output.shape.sizes, output.shape.strides, true);
          output.shape.strides.assign(packed.begin(), packed.end());
        }
        view.dtype = to_uba_dtype(output.shape.dtype);
        view.rank = int32_t(output.shape.sizes.size());
        view.sizes = output.shape.sizes.data();
        view.strides = output.shape.strides.data();
        if (output.written_arg >= 0 && !output.through_temporary) {
          const at::Tensor& target = args[size_t(output.written_arg)].toTensor();
          view.byte_offset = place_of(target).offset;
        }
      }
      output_views.push_back(view);
    }
  };
  make_views();
  for (const uba_tensor& view : output_views) {
    if (view.dtype == 0 && view.rank > 0) return elsewhere("its result has a dtype that no adapter knows");
  }

  build.link();
  OpSchema schema = op.schema;  // a copy: the operator is shared by all threads
  schema.at_default.assign(op.kernel_args.size(), true);
  schema.numbers.assign(op.kernel_args.size(), false);
  for (size_t k = 0; k < op.kernel_args.size(); k++) {
    const auto& arg = op.handle.schema().arguments()[size_t(op.kernel_args[k])];
    const c10::IValue& given = args[size_t(op.kernel_args[k])];
    const bool tensor = given.isTensor() && given.toTensor().defined() && given.toTensor().device().type() == kDevice;
    // A number where the schema says Tensor (`x + 2`), or an argument without a default, is no default either.
    schema.at_default[k] =
        tensor || (arg.default_value().has_value() && !given.isTensor() && given == *arg.default_value());
    const bool in_place_of_tensor = !tensor && given.isTensor() && given.toTensor().defined();
    schema.numbers[k] = in_place_of_tensor || (op.scales[size_t(op.kernel_args[k])] && !given.isNone());
  }
  RouteTable::Query query;
  query.call = {&schema, plan.values.data(), int(plan.values.size()), output_views.data(), int(output_views.size())};
  struct Context {
    const ChipEntry& chip;
  } context{chip};
  query.available = [](void* opaque, const std::string& kernel) {
    const ChipEntry& entry = static_cast<Context*>(opaque)->chip;
    return entry.handlers.count(kernel) != 0 || entry.adapter->find_kernel(kernel) != nullptr;
  };
  query.context = &context;
  query.refused = &refused;
  decision = chip.routes.decide(query);
  if (decision.path == Path::error) {
    if (!custom_function(op, device).empty()) return elsewhere(decision.reason);
    plan.kind = Plan::Kind::error;
    plan.error = unsupported_text(op, args, plan, decision.reason);
    return built;
  }
  if (decision.row == nullptr) {
    plan.patches.clear();
    return elsewhere(decision.reason);
  }

  built.row = decision.row;
  // A conversion from a dtype that the chip does not have would pass through the host: then the whole call may as well,
  // unless the descriptor asks for the cast.
  for (const Plan::Patch& patch : plan.patches) {
    if (patch.source != Plan::Patch::prepared_tensor || chip.chip.on_unsupported_dtype == "cast") continue;
    const c10::IValue& arg = args[size_t(patch.arg)];
    const at::Tensor& tensor = patch.element < 0 ? arg.toTensor() : arg.toListRef()[size_t(patch.element)].toTensor();
    if ((chip.chip.dtypes & dtype_bit(to_uba_dtype(tensor.scalar_type()))) == 0) {
      const std::string reason = std::string(dtype_name(to_uba_dtype(tensor.scalar_type()))) + " is no dtype of " +
                                 chip.chip.name + " (" + dtype_set_text(chip.chip.dtypes) + ")";
      plan.patches.clear();
      decision.attempts.clear();
      built.row = nullptr;
      return elsewhere(reason);
    }
  }
  auto prepare_at = [&](int position, int element, bool keep_dense) {
    for (Plan::Patch& patch : plan.patches) {
      if (patch.arg != position || (patch.element >= 0 && patch.element != element)) continue;
      if (patch.source != Plan::Patch::tensor_address && patch.source != Plan::Patch::prepared_tensor) continue;
      uba_tensor& slot = plan.tensors[size_t(patch.tensor)];
      const c10::IntArrayRef sizes(slot.sizes, size_t(slot.rank)), strides(slot.strides, size_t(slot.rank));
      slot.strides = build.keep(packed_strides(sizes, strides, keep_dense));
      slot.byte_offset = 0;
      if (std::find(op.written.begin(), op.written.end(), position) != op.written.end()) {
        for (Plan::Output& output : plan.outputs) {
          if (output.written_arg == position) output.through_temporary = true;
        }
      }
      patch.source = Plan::Patch::prepared_tensor;
    }
  };
  for (const Transform& transform : decision.transforms) {
    if (transform.is_output) {
      Plan::Output& output = plan.outputs[size_t(transform.arg)];
      if (output.written_arg < 0) output.result = output.shape;
      output.through_temporary = output.written_arg >= 0;
      output.shape.dtype = *from_uba_dtype(transform.dtype);
      output.shape.sizes.assign(transform.sizes.begin(), transform.sizes.end());
      output.shape.strides.assign(transform.strides.begin(), transform.strides.end());
      continue;
    }
    const int position = op.kernel_args[size_t(transform.arg)];
    prepare_at(position, transform.element, true);
    for (Plan::Patch& patch : plan.patches) {
      if (patch.source != Plan::Patch::prepared_tensor || patch.arg != position) continue;
      if (patch.element >= 0 && patch.element != transform.element) continue;
      uba_tensor& slot = plan.tensors[size_t(patch.tensor)];
      patch.dtype = *from_uba_dtype(transform.dtype);
      patch.padded = (transform.why & Transform::padded) != 0;
      slot.dtype = transform.dtype;
      slot.sizes = build.keep(transform.sizes);
      slot.strides = build.keep(transform.strides);
    }
  }
  if (pack) pack_tensors(op, plan, prepare_at);
  for (Plan::Output& output : plan.outputs) {
    // Overlapping targets cannot be written in parallel; PyTorch's shape check has refused the in-place ones.
    if (output.written_arg >= 0 && !output.through_temporary &&
        !is_dense(args[size_t(output.written_arg)].toTensor()) && !op.pointwise) {
      output.through_temporary = true;
    }
  }
  make_views();
  // What is written through a stand-in must be copied back, and only outputs are.
  for (const Plan::Patch& patch : plan.patches) {
    if (patch.source != Plan::Patch::prepared_tensor || !op.writes(patch.arg)) continue;
    const bool copied_back = std::any_of(plan.outputs.begin(), plan.outputs.end(), [&](const Plan::Output& output) {
      return output.written_arg == patch.arg && output.through_temporary;
    });
    if (!copied_back) {
      plan.patches.clear();
      built.row = nullptr;
      return elsewhere("an argument that it updates has a dtype, layout or alignment that the kernel cannot write");
    }
  }
  for (Plan::Output& output : plan.outputs) {
    if (output.shape.dtype == c10::ScalarType::Undefined) continue;
    int64_t last = 0;
    bool empty = false;
    for (size_t d = 0; d < output.shape.sizes.size(); d++) {
      empty |= output.shape.sizes[d] == 0;
      last += (output.shape.sizes[d] - 1) * output.shape.strides[d];
    }
    output.contiguous = packed_strides(output.shape.sizes, output.shape.strides, false) == output.shape.strides;
    output.bytes = empty ? 0 : size_t(last + 1) * c10::elementSize(output.shape.dtype);
  }
  for (const Plan::Patch& patch : plan.patches) plan.prepared += patch.source == Plan::Patch::prepared_tensor;
  plan.may_overlap = shares_memory_kind(op, args);
  plan.functional_name = op.schema.name;

  const OpPath& row = *decision.row;
  auto handler = chip.handlers.find(row.kernel);
  if (handler != chip.handlers.end()) {
    plan.kind = Plan::Kind::handler;
    plan.handler = handler->second;
    if (plan.handler->wrapper) {
      const auto& fallbacks = plan.handler->wrapper->stands_for;
      const auto fallback = row.custom ? fallbacks.find(op.schema.name) : fallbacks.end();
      plan.form = authors_form(fallback == fallbacks.end() ? row.declared : fallback->second, op);
      plan.shapes_known = true;
    }
  } else {
    const uba_kernel* kernel = chip.adapter->find_kernel(row.kernel);
    plan.kind = Plan::Kind::kernel;
    plan.run = kernel->run;
    plan.tag = kernel->tag;
  }
  plan.kernel_name = row.kernel.c_str();
  if (plan.outputs.size() == 1) {
    const Plan::Output& output = plan.outputs[0];
    plan.output_dtype = to_uba_dtype(output.shape.dtype);
    plan.fast = plan.kind == Plan::Kind::kernel && plan.output_dtype != 0 && !output.through_temporary &&
                output.result.dtype == c10::ScalarType::Undefined && plan.prepared == 0 && plan.tensors.size() <= 3 &&
                plan.values.size() <= 4;
    for (const Plan::Patch& patch : plan.patches) {
      plan.fast &= patch.element < 0 && patch.source != Plan::Patch::host_number;
    }
    // A number that conditions look at is part of the boxed signature only.
    for (size_t i = 0; i < op.arg_count; i++) plan.fast &= op.scales[i] == op.patched[i];
  }
  bool created = false;
  plan.counters =
      &stats::counters(plan.entry->label, op.display, path_name(decision.path), row.kernel, decision.reason, &created);
  if (announce && created && decision.path == Path::native && !decision.reason.empty())
    stats::log(0, op.display + " on " + plan.entry->label + " runs on the chip after a conversion: " + decision.reason);
  if (announce && created && !decision.transforms.empty()) {
    if (const std::string line = layout_line(op, args, plan, decision); !line.empty()) stats::log(1, line);
  }
  if (announce && stats::debug_lines()) std::fprintf(stderr, "%s\n", mapping_line(row, plan).c_str());
  return built;
}

}  // namespace torchfl
