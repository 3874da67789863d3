// cpu_route.cpp: the path that always exists: run the operator on the CPU and bring the result back.
//
// Contract: alias-safe. Arguments that share memory on the device share it on the host, what the operator writes is
// written back, and a returned argument is the caller's own tensor. Views never come here. Half precision is computed
// in float32 where the CPU has no fast kernel (or none at all) and rounded once. Random numbers come from the
// device's generator.
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>

#include <unordered_set>

#include "generator.h"
#include "kept.h"
#include "router.h"
#include "transfer.h"
#include "values.h"

namespace torchfl {
namespace {

// Operators whose half-precision CPU kernel is an order of magnitude slower than float32's.
bool slow_in_half(const std::string& base) {
  static const std::unordered_set<std::string> names = {"aten::convolution_overrideable",
                                                        "aten::convolution_backward_overrideable",
                                                        "aten::mm",
                                                        "aten::bmm",
                                                        "aten::addmm",
                                                        "aten::baddbmm",
                                                        "aten::addbmm",
                                                        "aten::mv",
                                                        "aten::addmv",
                                                        "aten::dot",
                                                        "aten::addr"};
  return names.count(base) != 0;
}

// Operators that out-of-tree backends have and the CPU has not, by their equal.
void call_equal(OpState& op, torch::jit::Stack& stack) {
  if (op.schema.name == "aten::convolution_overrideable") {
    static const auto equal = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
    equal.callBoxed(stack);
    return;
  }
  if (op.schema.name == "aten::convolution_backward_overrideable") {
    static const auto equal = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
    const bool transposed = stack[6].toBool();
    const at::Tensor& weight = stack[2].toTensor();
    const int64_t channels = transposed ? weight.size(1) * stack[8].toInt() : weight.size(0);
    stack.insert(stack.begin() + 3, c10::IValue(std::vector<int64_t>{channels}));
    equal.callBoxed(stack);
    return;
  }
  op.handle.callBoxed(stack);
}

// One call's tensors on the host.
class HostCall {
 public:
  HostCall(OpState& op, int device, bool widen) : op_(op), device_(device), widen_(widen) {}
  HostCall(const HostCall&) = delete;
  // Given up half-way, the host memory must outlive the copies into it, and nothing was drawn.
  ~HostCall() {
    if (draw_.has_value() && !ran) draw_->give_back();
    if (arriving_.empty()) return;
    try {
      runtime::device(device_).synchronize(runtime::current_stream(device_));
    } catch (...) {  // the failure on its way is the one to report
    }
  }

  c10::IValue bring(const c10::IValue& value, int position) {
    if (value.isDevice()) return c10::Device(c10::kCPU);
    if (value.isGenerator()) return draw(value.toGenerator());
    return map_tensors(value, [&](const at::Tensor& tensor) { return bring_tensor(tensor, position); });
  }

  at::Generator draw(const std::optional<at::Generator>& given) {
    draw_.emplace(generator_of_call(given, device_));
    return draw_->host();
  }

  // Tensors that share storage with a written one share a host buffer; looked up before anything is brought.
  void note(const c10::IValue& value, int position) {
    auto note_tensor = [&](const at::Tensor& tensor) {
      if (!tensor.defined() || tensor.device().type() != kDevice) return;
      Shared& shared = shared_[tensor.storage().unsafeGetStorageImpl()];
      shared.users++;
      shared.written |= op_.writes(position);
    };
    if (value.isTensor()) {
      note_tensor(value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (element.isTensor()) note_tensor(element.toTensor());
      }
    }
  }

  // All bytes asked for so far are on their way; wait for them once.
  void wait() {
    if (!arriving_.empty()) runtime::device(device_).synchronize(runtime::current_stream(device_));
    arriving_.clear();
    for (auto& [tensor, target] : late_) target.copy_(tensor);
  }

  void write_back() {
    for (const auto& [ours, host] : written_) {
      note_written(ours);
      if (host.sizes() != ours.sizes()) {
        ours.resize_(host.sizes());  // an out= that the operator resized
      }
      if (at_same_place(host, ours)) continue;
      copy_tensor(ours, host, true);
    }
  }

  c10::IValue give_back(const c10::IValue& value, const c10::IValue& like) {
    if (value.isTensor()) return give_back_tensor(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& element : value.toListRef()) list.push_back(give_back_tensor(element.toTensor()));
      return list;
    }
    (void)like;
    return value;
  }

  std::optional<c10::ScalarType> widened;  // what float32 results are narrowed to
  bool ran = false;

 private:
  struct Shared {
    int users = 0;
    bool written = false;
    at::Tensor host;  // the whole storage, as bytes
  };

  bool accessible() const { return runtime::device(device_).device->host_accessible(); }
  bool at_same_place(const at::Tensor& host, const at::Tensor& ours) {
    if (!accessible() && !unified::lies_on_host(ours.storage().data_ptr())) return false;
    return host.scalar_type() == ours.scalar_type() && host.const_data_ptr() == to_host(ours).const_data_ptr();
  }

  at::Tensor bring_tensor(const at::Tensor& tensor, int position) {
    if (!tensor.defined() || tensor.device().type() != kDevice) return tensor;
    at::Tensor host;
    Shared& shared = shared_[tensor.storage().unsafeGetStorageImpl()];
    if (shared.users > 1 && shared.written && !accessible()) {
      if (!shared.host.defined()) {
        const at::Tensor bytes = at::empty({0}, tensor.options().dtype(c10::kByte)).set_(tensor.storage());
        shared.host = to_host(bytes, /*wait=*/false);
        arriving_.push_back(shared.host);
      }
      host = at::empty({0}, at::TensorOptions().dtype(tensor.scalar_type()))
                 .set_(shared.host.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides());
    } else {
      host = to_host(tensor, /*wait=*/false);
      arriving_.push_back(host);
    }
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) host.unsafeGetTensorImpl()->set_wrapped_number(true);
    if (widen_ && c10::isReducedFloatingType(tensor.scalar_type())) {
      if (!widened.has_value()) widened = tensor.scalar_type();
      // Each element once: what is expanded is expanded again.
      std::vector<int64_t> sizes = host.sizes().vec();
      for (size_t d = 0; d < sizes.size(); d++) {
        if (host.stride(int64_t(d)) == 0) sizes[d] = std::min<int64_t>(sizes[d], 1);
      }
      const at::Tensor once = host.as_strided(sizes, host.strides());
      const auto options = host.options().dtype(c10::kFloat);
      const bool overlaps = at::has_internal_overlap(once) != at::MemOverlap::No;
      at::Tensor wide = overlaps ? at::empty(sizes, options) : at::empty_strided(sizes, host.strides(), options);
      late_.emplace_back(once, wide);  // the bytes are not there yet
      host = wide.expand(host.sizes());
    }
    if (op_.writes(position)) written_.emplace_back(tensor, host);
    return host;
  }

  at::Tensor give_back_tensor(const at::Tensor& host) {
    if (!host.defined() || host.device().type() == kDevice) return host;
    for (const auto& [ours, brought] : written_) {
      if (host.is_same(brought)) return ours;
    }
    TORCH_CHECK_NOT_IMPLEMENTED(host.layout() == c10::Layout::Strided, op_.display, ": its result is ", host.layout(),
                                ", and ", runtime::label(device_), " holds strided tensors only. Call it on the CPU.");
    TORCH_CHECK_NOT_IMPLEMENTED(!host.is_quantized(), op_.display, ": ", kNoQuantizedTensors);
    at::Tensor result = host;
    if (host._is_zerotensor()) result = at::zeros(host.sizes(), host.options());  // it has no memory to copy from
    if (widened.has_value() && host.scalar_type() == c10::kFloat) result = host.to(*widened);
    return to_device(result, device_);
  }

  OpState& op_;
  int device_;
  bool widen_;
  std::optional<Draw> draw_;
  c10::SmallVector<at::Tensor, 4> arriving_;  // being written by the device until it is waited for
  std::unordered_map<c10::StorageImpl*, Shared> shared_;
  std::vector<std::pair<at::Tensor, at::Tensor>> written_;  // ours, on the host
  std::vector<std::pair<at::Tensor, at::Tensor>> late_;     // as it arrives, as it is used
};

void run_once(OpState& op, torch::jit::Stack* stack, int device, bool widen) {
  const auto& schema_args = op.handle.schema().arguments();
  const size_t base = stack->size() - schema_args.size();
  HostCall call(op, device, widen);
  for (size_t i = 0; i < schema_args.size(); i++) call.note((*stack)[base + i], int(i));
  torch::jit::Stack host_stack;
  host_stack.reserve(schema_args.size());
  for (size_t i = 0; i < schema_args.size(); i++) {
    c10::IValue value = call.bring((*stack)[base + i], int(i));
    if (value.isNone() && schema_args[i].type()->isSubtypeOf(*c10::OptionalType::create(c10::GeneratorType::get())) &&
        schema_args[i].name() == "generator") {
      value = call.draw(std::nullopt);
    }
    host_stack.push_back(std::move(value));
  }
  call.wait();
  call_equal(op, host_stack);
  call.ran = true;
  call.write_back();
  torch::jit::Stack results;
  for (size_t i = 0; i < host_stack.size(); i++) {
    const int source = i < op.returns.size() ? op.returns[i] : -1;
    // By the schema a written argument comes back as itself, whatever object the CPU kernel returned.
    results.push_back(source >= 0 ? (*stack)[base + size_t(source)] : call.give_back(host_stack[i], {}));
  }
  torch::jit::drop(*stack, schema_args.size());
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

bool has_half(at::ArrayRef<c10::IValue> args) {
  auto half = [](const c10::IValue& value) {
    return value.isTensor() && value.toTensor().defined() && value.toTensor().device().type() == kDevice &&
           c10::isReducedFloatingType(value.toTensor().scalar_type());
  };
  for (const c10::IValue& value : args) {
    if (half(value)) return true;
    if (value.isTensorList()) {
      for (const c10::IValue& element : value.toListRef()) {
        if (half(element)) return true;
      }
    }
  }
  return false;
}

}  // namespace

void run_on_cpu(OpState& op, torch::jit::Stack* stack, OpCounters& counters, int device) {
  Timer timer(counters, device);
  const uint64_t before = bytes_moved();
  const at::ArrayRef<c10::IValue> args = torch::jit::last(*stack, op.handle.schema().arguments().size());
  const bool half = has_half(args);
  if (half && slow_in_half(op.schema.name)) {
    run_once(op, stack, device, true);
  } else if (half) {
    try {
      run_once(op, stack, device, false);
    } catch (const c10::Error& error) {
      // The CPU has no half-precision kernel of this operator. Nothing was written: such a kernel fails at its
      // dispatch.
      const std::string text = error.what_without_backtrace();
      // Norms: the chip's statistics are float32 where the CPU's own would be half.
      const bool statistics =
          text.find("expected scalar type") != std::string::npos && op.schema.name.find("_norm") != std::string::npos;
      if (text.find("not implemented for") == std::string::npos && text.find("mixed dtype") == std::string::npos &&
          !statistics) {
        throw;
      }
      run_once(op, stack, device, true);
    }
  } else {
    run_once(op, stack, device, false);
  }
  counters.host_bytes.fetch_add(bytes_moved() - before, std::memory_order_relaxed);
}

}  // namespace torchfl
