// uba_host.cpp: the CPU itself as a chip: its memory, and kernels on its vector and matrix units.
//
// Contract: the chip's SDK is PyTorch's own CPU library, with the oneDNN in it. The kernel host_<name> is the operator
// aten::<name>, written where the host says, whatever overload the arguments are of; so the table of kernels is PyTorch's
// list of operators that can write to given memory. What PyTorch refuses is not supported here: the next path says why in
// PyTorch's words. Small calls (small.h) are loops instead, since a call into PyTorch costs more than they do. Everything
// is done when a function returns. What makes its own results is in handlers.cpp.
#include <ATen/ATen.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <malloc.h>
#include <torch/version.h>
#include <unistd.h>

#include <deque>
#include <map>

#include "small.h"

namespace host {
namespace {

const uba_host* g_host;
using K = c10::TypeKind;

// ------------------------------------------------------------------------------------------ tensors

c10::ScalarType scalar_type(int64_t dtype) {
  using T = c10::ScalarType;
  static constexpr T kTypes[] = {T::Undefined, T::Half, T::BFloat16, T::Float, T::Double, T::Char, T::Byte,
                                 T::Short, T::Int, T::Long, T::Bool, T::ComplexFloat, T::ComplexDouble};
  return dtype > 0 && size_t(dtype) < std::size(kTypes) ? kTypes[dtype] : T::Undefined;
}

// A CPU tensor over the memory of the call.
at::Tensor lend(const uba_tensor& t) {
  const c10::IntArrayRef sizes(t.sizes, size_t(t.rank)), strides(t.strides, size_t(t.rank));
  return at::from_blob(start<char>(t), sizes, strides, at::dtype(scalar_type(t.dtype)));
}

// ------------------------------------------------------------------------------------------ operators of PyTorch

struct Parameter {
  K kind, element = K::AnyType;  // without Optional; of a list, what is in it
  bool optional = false, optional_element = false, is_dtype = false;
};
struct Overload {
  c10::OperatorHandle op;
  std::vector<Parameter> parameters;  // without those that are written
};
auto& g_operators = *new std::deque<std::pair<std::string, std::vector<Overload>>>;  // by the names of their kernels

c10::TypePtr unwrapped(const c10::TypePtr& type, bool* optional) {
  const auto inside = type->cast<c10::OptionalType>();
  *optional = inside != nullptr;
  return inside ? inside->getElementType() : type;
}
Parameter parameter(const c10::Argument& arg) {
  Parameter p;
  const c10::TypePtr type = unwrapped(arg.type(), &p.optional);
  p.is_dtype = unwrapped(arg.real_type(), &p.optional)->kind() == K::ScalarTypeType;
  p.kind = type->kind();
  if (auto list = type->cast<c10::ListType>()) p.element = unwrapped(list->getElementType(), &p.optional_element)->kind();
  return p;
}

template <class E, class From>
bool list_to(c10::IValue* to, uint32_t count, const From& from) {
  c10::List<E> list;
  for (uint32_t i = 0; i < count; i++) list.push_back(from(i));
  return *to = list, true;
}
bool number_to(c10::IValue* to, K kind, const at::Scalar& number) {
  if (kind == K::NumberType) return *to = number, true;
  if (kind == K::FloatType && !number.isComplex()) return *to = number.toDouble(), true;
  if (kind != K::TensorType || number.isComplex()) return false;
  at::Tensor tensor = at::scalar_tensor(number, number.isIntegral(false) ? c10::kLong : c10::kDouble);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return *to = tensor, true;
}
// The argument as the parameter wants it; false: it is of another kind.
bool convert(const Parameter& p, const uba_value& a, c10::IValue* to) {
  const auto tensor = [&](uint32_t i) { return lend(a.v.tensor[i]); };
  const auto optional = [&](uint32_t i) { return a.v.tensor[i].dtype ? std::optional(tensor(i)) : std::nullopt; };
  if (a.kind == UBA_NONE) return p.optional;
  if (a.kind == UBA_TENSOR) return p.kind == K::TensorType && (*to = tensor(0), true);
  if (a.kind == UBA_STRING) return p.kind == K::StringType && (*to = std::string(a.v.str), true);
  if (a.kind == UBA_DOUBLE) return number_to(to, p.kind, a.v.d);
  if (a.kind == UBA_INT && p.is_dtype) return *to = int64_t(scalar_type(a.v.i)), true;
  if (a.kind == UBA_INT && p.kind == K::IntType) return *to = a.v.i, true;
  if (a.kind == UBA_INT && p.kind == K::BoolType) return *to = a.v.i != 0, true;
  if (a.kind == UBA_INT) return number_to(to, p.kind, a.v.i);
  if (a.kind == UBA_TENSOR_LIST && p.element == K::TensorType && p.optional_element)
    return list_to<std::optional<at::Tensor>>(to, a.count, optional);
  if (a.kind == UBA_TENSOR_LIST && p.element == K::TensorType) return list_to<at::Tensor>(to, a.count, tensor);
  if (a.kind == UBA_INT_LIST && p.element == K::IntType)
    return list_to<int64_t>(to, a.count, [&](uint32_t i) { return a.v.ints[i]; });
  if (a.kind == UBA_INT_LIST && p.element == K::BoolType)
    return list_to<bool>(to, a.count, [&](uint32_t i) { return a.v.ints[i] != 0; });
  return false;
}

// Runs `work` below autograd. What PyTorch does not do is not supported here, either.
template <class Work>
uba_status guarded(const Work& work) {
  try {
    at::AutoDispatchBelowADInplaceOrView below;
    return work(), UBA_OK;
  } catch (const c10::Error& error) {
    g_host->set_error(0, error.what_without_backtrace());
  }
  return UBA_NOT_SUPPORTED;
}

uba_status run_operator(void*, const uba_call* call, int64_t tag) {
  const size_t inputs = size_t(call->arg_count), results = size_t(call->output_count);
  for (const Overload& overload : g_operators[size_t(tag)].second) {
    if (overload.parameters.size() != inputs || overload.op.schema().returns().size() != results) continue;
    torch::jit::Stack stack(inputs);
    bool fits = true;
    for (size_t i = 0; fits && i < inputs; i++) fits = convert(overload.parameters[i], call->args[i], &stack[i]);
    for (size_t i = 0; fits && i < results; i++) fits = call->outputs[i].dtype != 0;
    if (!fits) continue;
    for (size_t i = 0; i < results; i++) stack.emplace_back(lend(call->outputs[i]));
    return guarded([&] { overload.op.callBoxed(stack); });
  }
  g_host->set_error(0, "PyTorch cannot write the result of such a call to given memory");
  return UBA_NOT_SUPPORTED;
}

// (grad, x, weight, stride, padding, dilation, transposed, output_padding, groups, mask) -> of x, weight and bias
uba_status convolution_backward(void*, const uba_call* call, int64_t) {
  return guarded([&] {
    const uba_value* a = call->args;
    auto list = [&](int i) { return c10::IntArrayRef(a[i].v.ints, a[i].count); };
    const at::Tensor weight = lend(*a[2].v.tensor);
    const int64_t channels = a[6].v.i != 0 ? weight.size(1) * a[8].v.i : weight.size(0);
    const auto [x, w, bias] = at::convolution_backward(
        lend(*a[0].v.tensor), lend(*a[1].v.tensor), weight, c10::IntArrayRef{channels}, list(3), list(4), list(5), a[6].v.i != 0,
        list(7), a[8].v.i, {a[9].v.ints[0] != 0, a[9].v.ints[1] != 0, a[9].v.ints[2] != 0});
    const at::Tensor* made[] = {&x, &w, &bias};
    for (int i = 0; i < 3; i++)
      if (call->outputs[i].dtype != 0) lend(call->outputs[i]).copy_(*made[i]);
  });
}

uba_status relu(void*, const uba_call* call, int64_t) {  // PyTorch has none that writes to given memory
  at::Tensor y = lend(call->outputs[0]);
  return guarded([&] { at::clamp_min_out(y, lend(*call->args[0].v.tensor), 0); });
}
uba_status mse_loss(void*, const uba_call* call, int64_t) {  // PyTorch's that writes to given memory resizes it
  return guarded([&] {
    lend(call->outputs[0]).copy_(at::mse_loss(lend(*call->args[0].v.tensor), lend(*call->args[1].v.tensor), call->args[2].v.i));
  });
}
// A kernel that runs `loop` if it takes the call, and PyTorch otherwise.
template <auto loop, auto otherwise = run_operator>
uba_status small_or(void* device, const uba_call* call, int64_t tag) {
  return loop(*call) ? UBA_OK : otherwise(device, call, tag);
}

#define OF(...) small_or<binary<([](float a, float b, [[maybe_unused]] float c) { return __VA_ARGS__; })>>
// clang-format off
const std::map<std::string, uba_kernel_fn> kOwn = {
    {"add", OF(a + c * b)}, {"sub", OF(a - c * b)}, {"mul", OF(a * b)}, {"div", OF(a / b)},
    {"threshold_backward", OF(b <= c ? 0.f : a)}, {"relu", small_or<unary<([](float a) { return a <= 0 ? 0 : a; })>, relu>},
    {"sum", small_or<sum<false>>}, {"mean", small_or<sum<true>>}, {"mm", small_or<matrix_product>},
    {"addmm", small_or<matrix_product>}, {"_softmax", small_or<softmax>}, {"native_layer_norm", small_or<layer_norm>},
    {"convolution_backward", convolution_backward}, {"mse_loss", mse_loss},
};
// clang-format on

// ------------------------------------------------------------------------------------------ device

uint64_t pages(int name) { return uint64_t(sysconf(name)) * uint64_t(sysconf(_SC_PAGESIZE)); }
// What was free when the chip was loaded, less what it handed out: the system counts memory when it is written to.
std::atomic<int64_t> g_free{int64_t(pages(_SC_AVPHYS_PAGES))};
uba_status memory_info(void*, uint64_t* free_bytes, uint64_t* total_bytes) {
  return *free_bytes = uint64_t(std::max<int64_t>(g_free, 0)), *total_bytes = pages(_SC_PHYS_PAGES), UBA_OK;
}
uba_status properties(void*, uba_properties* out) {
  return std::strcpy(out->name, "CPU"), out->total_memory = pages(_SC_PHYS_PAGES), out->host_accessible = 1, UBA_OK;
}
uba_status alloc(void*, uint64_t bytes, void** ptr) {
  return posix_memalign(ptr, 64, bytes) != 0 ? UBA_OUT_OF_MEMORY : (g_free -= malloc_usable_size(*ptr), UBA_OK);
}
uba_status release(void*, void* ptr) { return g_free += int64_t(malloc_usable_size(ptr)), std::free(ptr), UBA_OK; }
uba_status map_host(void*, void* host, uint64_t, void** ptr) { return *ptr = host, UBA_OK; }
uba_status nothing(void*, void*) { return UBA_OK; }

uba_status copy(void*, void*, void* dst, const void* src, uint64_t bytes, int32_t) {
  if (bytes < (1 << 20)) return std::memmove(dst, src, bytes), UBA_OK;
  const auto tensor = [&](const void* p) { return at::from_blob(const_cast<void*>(p), {int64_t(bytes)}, at::kByte); };
  return guarded([&] { tensor(dst).copy_(tensor(src)); });  // by several threads
}
uba_status fill(void*, void*, void* dst, uint64_t bytes, int32_t value) { return std::memset(dst, value, bytes), UBA_OK; }
uba_status copy_nd(void*, void*, const uba_tensor* dst, const uba_tensor* src) {
  return guarded([&] { lend(*dst).copy_(lend(*src)); });
}
uba_status fill_nd(void*, void*, const uba_tensor* dst, const uba_value* value) {
  return guarded([&] { lend(*dst).fill_(value->kind == UBA_INT ? at::Scalar(value->v.i) : at::Scalar(value->v.d)); });
}
uba_status device_count(int32_t* count) { return *count = 1, UBA_OK; }
// What kernels make themselves comes from malloc, some MB at each step, and memory that went back to the system would
// have to be cleared anew: the process keeps up to 1 GiB of it.
uba_status device_open(int32_t, void** device) {
  return mallopt(M_MMAP_THRESHOLD, 32 << 20), mallopt(M_TRIM_THRESHOLD, 1 << 30), *device = &g_host, UBA_OK;
}

// clang-format off
const uba_device_api kDevice = {.header = UBA_HEADER(uba_device_api), .properties = properties, .alloc = alloc,
                                .free = release, .copy = copy, .fill = fill, .synchronize = nothing,
                                .copy_nd = copy_nd, .fill_nd = fill_nd, .map_host = map_host,
                                .unmap_host = nothing, .memory_info = memory_info};
// clang-format on

std::vector<uba_kernel> list_kernels() {
  std::map<std::string, std::vector<Overload>> found;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames()) {
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    if (name.name.rfind("aten::", 0) != 0 || !op.has_value()) continue;
    Overload overload{*op, {}};
    for (const c10::Argument& arg : op->schema().arguments())
      if (!arg.is_out()) overload.parameters.push_back(parameter(arg));
    const size_t written = op->schema().arguments().size() - overload.parameters.size();
    if (written > 0 && written == op->schema().returns().size()) found[name.name.substr(6)].push_back(std::move(overload));
  }
  std::vector<uba_kernel> kernels;
  for (auto& [name, overloads] : found) {
    const auto own = kOwn.find(name);
    g_operators.emplace_back("host_" + name, std::move(overloads));
    kernels.push_back({g_operators.back().first.c_str(), own != kOwn.end() ? own->second : run_operator,
                       int64_t(g_operators.size()) - 1});
  }
  return kernels;
}

}  // namespace
}  // namespace host

const uba_adapter* uba_query(uint32_t, const uba_host* the_host) {
  host::g_host = the_host;
  static const auto* kernels = new std::vector<uba_kernel>(host::list_kernels());
  // clang-format off
  static const uba_adapter adapter = {.header = UBA_HEADER(uba_adapter), .name = "host", .version = "1.0.0",
                                      .sdk_version = TORCH_VERSION, .device_count = host::device_count,
                                      .open = host::device_open, .close = nullptr, .device = &host::kDevice,
                                      .kernels = kernels->data(), .kernel_count = int64_t(kernels->size())};
  // clang-format on
  return &adapter;
}
