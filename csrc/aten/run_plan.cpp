// run_plan.cpp: the call path: what happens on every call whose signature is known.
#include <ATen/MemoryOverlap.h>

#include "aten_handlers.h"
#include "conversion.h"
#include "kept.h"
#include "plan.h"
#include "transfer.h"
#include "wrapper_route.h"

namespace torchfl {
namespace {

const at::Tensor& tensor_at(const torch::jit::Stack& stack, size_t base, const Plan::Patch& patch) {
  const c10::IValue& arg = stack[base + size_t(patch.arg)];
  return patch.element < 0 ? arg.toTensor() : arg.toListRef()[size_t(patch.element)].toTensor();
}

c10::Scalar number_at(const torch::jit::Stack& stack, size_t base, const Plan::Patch& patch) {
  const c10::IValue& arg = stack[base + size_t(patch.arg)];
  return patch.source == Plan::Patch::host_number ? arg.toTensor().item() : arg.toScalar();
}

at::Tensor new_output(const Plan& plan, const Plan::Output& output) {
  return empty_planned(plan.device, output.shape.dtype, output.shape.sizes, output.shape.strides, output.bytes,
                       output.contiguous);
}

// A written argument that shares memory with a read one is only safe when both are the very same elements.
bool overlaps(const OpState& op, const Plan& plan, const torch::jit::Stack& stack, size_t base,
              const at::Tensor& written, int written_arg) {
  for (const Plan::Patch& patch : plan.patches) {
    const bool copied = patch.source == Plan::Patch::prepared_tensor;
    if ((patch.source != Plan::Patch::tensor_address && !copied) || patch.arg == written_arg) continue;
    const at::Tensor& read = tensor_at(stack, base, patch);
    if (!read.storage().is_alias_of(written.storage())) continue;
    if (op.pointwise) {
      at::assert_no_partial_overlap(written, read);  // the CPU refuses that too
    } else if (op.schema.name == "aten::index_select" || op.schema.name == "aten::gather") {
      at::assert_no_overlap(written, read);  // and here any at all
    } else if (!copied) {
      return true;
    }
  }
  return false;
}

// What the kernel is given for an argument that it cannot take as it is.
at::Tensor stand_in_for(const at::Tensor& tensor, const Plan& plan, const Plan::Patch& patch, const uba_tensor& slot,
                        bool written) {
  const c10::IntArrayRef sizes(slot.sizes, size_t(slot.rank)), strides(slot.strides, size_t(slot.rank));
  const StandInForm form{patch.dtype, sizes, strides};
  void* stream = runtime::current_stream(plan.device);
  if (!written) {
    at::Tensor kept = find_kept(tensor, form, stream);
    if (kept.defined()) return kept;
  }
  at::Tensor made = empty_on(plan.device, patch.dtype, sizes, strides);
  at::Tensor filled = made;
  if (C10_UNLIKELY(patch.padded)) {
    fill_tensor(made, 0);
    filled = made.as_strided(tensor.sizes(), strides);
  }
  convert_on_device(filled, tensor);
  if (!written) keep(tensor, form, stream, made);
  return made;
}

bool run_handler(const Plan& plan, OpState& op, torch::jit::Stack* stack, size_t base,
                 const std::vector<at::Tensor>& prepared) {
  torch::fl::OpRequest request;
  request.op = plan.handler->op;
  request.device = c10::Device(kDevice, c10::DeviceIndex(plan.device));
  for (int position : op.kernel_args) {
    const c10::IValue& arg = (*stack)[base + size_t(position)];
    request.spare.push_back(arg.isTensor() && unified::is_spare(arg.toTensor()));
  }
  for (int position : op.kernel_args) request.args.push_back((*stack)[base + size_t(position)]);
  size_t next = 0;
  for (const Plan::Patch& patch : plan.patches) {
    if (patch.source == Plan::Patch::tensor_address) {
      request.tensor_args.push_back(unified::read_only(tensor_at(*stack, base, patch)));
    } else if (patch.source == Plan::Patch::prepared_tensor) {
      request.tensor_args.push_back(prepared[next++]);
    }
  }
  if (!request.tensor_args.empty()) {
    request.dtype = request.tensor_args[0].scalar_type();
    request.layout = layout_name(view_of(request.tensor_args[0]));
  }
  at::Tensor result;
  try {
    c10::DeviceGuard on_device(request.device);
    result = plan.handler->function(request);
  } catch (const c10::NotImplementedError& error) {
    host_table()->set_error(0, error.what_without_backtrace());
    return false;
  } catch (const c10::Error& error) {
    // data_ptr<T>() of another dtype: the handler was not written for this one.
    const std::string text = error.what_without_backtrace();
    if (text.find("expected scalar type") == std::string::npos) throw;
    host_table()->set_error(0, text.c_str());
    return false;
  }
  const Plan::Output& output = plan.outputs.at(0);
  TORCH_CHECK(result.defined() && result.scalar_type() == output.shape.dtype &&
                  result.sizes() == c10::IntArrayRef(output.shape.sizes),
              plan.entry->label, ": the handler of ", plan.handler->op, " returned ",
              result.defined() ? c10::str(result.scalar_type(), result.sizes()) : std::string("nothing"), ", expected ",
              output.shape.dtype, c10::IntArrayRef(output.shape.sizes));
  if (result.device().type() != kDevice) {
    result = to_device(result, plan.device);
  } else {
    note_written(result);  // one that was spare, or new
  }
  at::Tensor returned = result;
  if (output.written_arg >= 0) {
    returned = (*stack)[base + size_t(output.written_arg)].toTensor();
    copy_tensor(returned, result, true);
  }
  torch::jit::drop(*stack, op.arg_count);
  stack->emplace_back(std::move(returned));
  return true;
}

}  // namespace

void note_written_arguments(const OpState& op, const torch::jit::Stack& stack, size_t base) {
  if (C10_LIKELY(kept::g_count.load(std::memory_order_relaxed) == 0 &&
                 unified::g_storages.load(std::memory_order_relaxed) == 0))
    return;
  auto note = [&](int position) {
    const c10::IValue& value = stack[base + size_t(position)];
    if (value.isTensor()) note_written(value.toTensor());
    if (!value.isTensorList()) return;
    for (const c10::IValue& element : value.toListRef()) note_written(element.toTensor());
  };
  for (int position : op.written) note(position);
  for (int position : op.hidden_writes) note(position);
}

bool run_plan(const Plan& plan, OpState& op, torch::jit::Stack* stack) {
  const size_t base = stack->size() - op.arg_count;
  DeviceEntry& entry = runtime::device(plan.device);
  Timer timer(*plan.counters, plan.device);

  std::vector<at::Tensor> prepared;
  c10::SmallVector<uba_tensor, 12> tensors(plan.tensors.begin(), plan.tensors.end());
  c10::SmallVector<uba_value, 16> values(plan.values.begin(), plan.values.end());
  for (const Plan::Patch& patch : plan.patches) {
    switch (patch.source) {
      case Plan::Patch::tensor_address: {
        const at::Tensor& tensor = tensor_at(*stack, base, patch);
        uba_tensor& slot = tensors[size_t(patch.tensor)];
        const Place place = place_of(tensor);
        slot.data = place.data;
        slot.byte_offset = place.offset;
        break;
      }
      case Plan::Patch::prepared_tensor: {
        uba_tensor& slot = tensors[size_t(patch.tensor)];
        if (prepared.empty()) prepared.reserve(size_t(plan.prepared));
        prepared.push_back(stand_in_for(tensor_at(*stack, base, patch), plan, patch, slot, op.writes(patch.arg)));
        slot.data = const_cast<void*>(prepared.back().storage().data());
        slot.byte_offset = 0;
        break;
      }
      case Plan::Patch::number:
      case Plan::Patch::host_number: {
        const c10::Scalar number = number_at(*stack, base, patch);
        uba_value& value = values[size_t(patch.value)];
        if (patch.floating) {
          value.v.d = number.toDouble();
        } else {
          value.v.i = whole_number(number);
        }
        break;
      }
    }
  }
  if (C10_UNLIKELY(plan.kind == Plan::Kind::handler)) {
    note_written_arguments(op, *stack, base);
    if (plan.form != nullptr ? run_wrapper(plan, op, stack, prepared) : run_handler(plan, op, stack, base, prepared))
      return true;
    timer.take_back();
    return false;
  }
  for (uba_value& value : values) {
    if (value.kind == UBA_TENSOR || value.kind == UBA_TENSOR_LIST) {
      value.v.tensor = tensors.data() + (value.v.tensor - plan.tensors.data());
    }
  }

  c10::SmallVector<at::Tensor, 4> results;
  c10::SmallVector<uba_tensor, 4> outputs;
  bool copy_back = false, stands_in = false;
  for (const Plan::Output& output : plan.outputs) {
    uba_tensor view{};
    if (output.shape.dtype == c10::ScalarType::Undefined) {
      results.emplace_back();
    } else {
      bool temporary = output.written_arg < 0 || output.through_temporary;
      if (output.written_arg >= 0) {
        const at::Tensor& target = (*stack)[base + size_t(output.written_arg)].toTensor();
        temporary |= plan.may_overlap && overlaps(op, plan, *stack, base, target, output.written_arg);
        if (!temporary) results.push_back(target);
      }
      if (temporary) {
        results.push_back(new_output(plan, output));
        copy_back |= output.written_arg >= 0;
      }
      stands_in |= output.result.dtype != c10::ScalarType::Undefined;
      const at::Tensor& result = results.back();
      const Place place = place_of(result);
      view.data = place.data;
      view.byte_offset = place.offset;
      view.sizes = output.shape.sizes.data();
      view.strides = result.strides().data();
      view.dtype = to_uba_dtype(output.shape.dtype);
      view.rank = int32_t(output.shape.sizes.size());
    }
    outputs.push_back(view);
  }

  uba_call call;
  call.header = UBA_HEADER(uba_call);
  call.op = plan.functional_name.c_str();
  call.args = values.data();
  call.outputs = outputs.data();
  call.arg_count = int32_t(values.size());
  call.output_count = int32_t(outputs.size());
  call.stream = runtime::current_stream(plan.device);
  note_written_arguments(op, *stack, base);
  uba_status status;
  try {
    status = entry.device->run(plan.run, call, plan.tag, plan.kernel_name);
  } catch (const Error& error) {
    if (error.kind != ErrorKind::out_of_memory) rethrow(error);
    // The SDK wants memory of its own, and we may be the ones who hold it.
    status = guarded([&] {
      entry.allocator->empty_cache();
      return entry.device->run(plan.run, call, plan.tag, plan.kernel_name);
    });
  }
  if (C10_UNLIKELY(status == UBA_NOT_SUPPORTED)) {
    timer.take_back();
    return false;
  }

  if (C10_UNLIKELY(copy_back || stands_in)) {
    for (size_t i = 0; i < plan.outputs.size(); i++) {
      const int written = plan.outputs[i].written_arg;
      const OutputShape& wanted = plan.outputs[i].result;
      if (wanted.dtype != c10::ScalarType::Undefined) {
        const at::Tensor result = empty_on(plan.device, wanted.dtype, wanted.sizes, wanted.strides);
        deliver(result, results[i]);
        results[i] = result;
      }
      if (written < 0) continue;
      const at::Tensor& target = (*stack)[base + size_t(written)].toTensor();
      if (!results[i].is_same(target)) deliver(target, results[i]);
      results[i] = target;
    }
  }
  torch::jit::drop(*stack, op.arg_count);
  for (at::Tensor& result : results) stack->emplace_back(std::move(result));
  return true;
}

}  // namespace torchfl
