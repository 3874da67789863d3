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
#include <ATen/cpu/Utils.h>
#include <malloc.h>
#include <torch/version.h>
#include <unistd.h>

#include <deque>
#include <map>

#include "small.h"
#include "torchfl/uba_aten_call.h"

namespace host {
bool rounding_pays();  // handlers.cpp: whether products of bfloat16 are faster than those of float32 here
namespace {

const uba_host* g_host;
using torch::fl::on_cpu;
using torch::fl::OutOperator;

// ------------------------------------------------------------------------------------------ operators of PyTorch

struct Operator {
  std::string kernel;
  std::vector<OutOperator> overloads;
  Loop loop = nullptr;                           // for small calls
  uba_status (*own)(const uba_call&) = nullptr;  // where PyTorch has no form that writes to given memory
};
auto& g_operators = *new std::deque<Operator>;  // by the tags of their kernels

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
  const Operator& op = g_operators[size_t(tag)];
  if (op.loop && op.loop(*call)) return UBA_OK;
  if (op.own) return op.own(*call);
  for (const OutOperator& overload : op.overloads)
    if (torch::jit::Stack stack; overload.takes(*call, &stack)) return guarded([&] { overload.run(&stack); });
  g_host->set_error(0, "PyTorch cannot write the result of such a call to given memory");
  return UBA_NOT_SUPPORTED;
}

// (grad, x, weight, stride, padding, dilation, transposed, output_padding, groups, mask) -> of x, weight and bias
uba_status convolution_backward(const uba_call& call) {
  return guarded([&] {
    const uba_value* a = call.args;
    auto list = [&](int i) { return c10::IntArrayRef(a[i].v.ints, a[i].count); };
    const at::Tensor weight = on_cpu(*a[2].v.tensor);
    const int64_t channels = a[6].v.i != 0 ? weight.size(1) * a[8].v.i : weight.size(0);
    const auto [x, w, bias] = at::convolution_backward(
        on_cpu(*a[0].v.tensor), on_cpu(*a[1].v.tensor), weight, c10::IntArrayRef{channels}, list(3), list(4), list(5), a[6].v.i != 0,
        list(7), a[8].v.i, {a[9].v.ints[0] != 0, a[9].v.ints[1] != 0, a[9].v.ints[2] != 0});
    const at::Tensor* made[] = {&x, &w, &bias};
    for (int i = 0; i < 3; i++)
      if (call.outputs[i].dtype != 0) on_cpu(call.outputs[i]).copy_(*made[i]);
  });
}

uba_status relu(const uba_call& call) {
  at::Tensor y = on_cpu(call.outputs[0]);
  return guarded([&] { at::clamp_min_out(y, on_cpu(*call.args[0].v.tensor), 0); });
}
uba_status mse_loss(const uba_call& call) {  // PyTorch's resizes what it writes to
  const auto of = [&](int i) { return on_cpu(*call.args[i].v.tensor); };
  return guarded([&] { on_cpu(call.outputs[0]).copy_(at::mse_loss(of(0), of(1), call.args[2].v.i)); });
}

// ------------------------------------------------------------------------------------------ device

uint64_t pages(int name) { return uint64_t(sysconf(name)) * uint64_t(sysconf(_SC_PAGESIZE)); }
// What was free when the chip was loaded, less what it handed out: the system counts memory when it is written to.
std::atomic<int64_t> g_free{int64_t(pages(_SC_AVPHYS_PAGES))};
uba_status memory_info(void*, uint64_t* free_bytes, uint64_t* total_bytes) {
  return *free_bytes = uint64_t(std::max<int64_t>(g_free, 0)), *total_bytes = pages(_SC_PHYS_PAGES), UBA_OK;
}
uba_status properties(void*, uba_properties* out) {
  out->product_dtypes = uint64_t(1) << UBA_DTYPE_FLOAT32 | uint64_t(rounding_pays()) << UBA_DTYPE_BFLOAT16;
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
  return guarded([&] { on_cpu(*dst).copy_(on_cpu(*src)); });
}
uba_status fill_nd(void*, void*, const uba_tensor* dst, const uba_value* value) {
  const at::Tensor y = on_cpu(*dst);
  if (value->v.i == 0 && y.is_contiguous()) return std::memset(y.mutable_data_ptr(), 0, y.nbytes()), UBA_OK;  // any zero
  return guarded([&] { y.fill_(value->kind == UBA_INT ? at::Scalar(value->v.i) : at::Scalar(value->v.d)); });
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
  std::map<std::string, std::vector<OutOperator>> found;
  for (const c10::OperatorName& name : c10::Dispatcher::singleton().getAllOpNames())
    if (auto op = OutOperator::find(name); op && name.name.rfind("aten::", 0) == 0) found[name.name.substr(6)].push_back(*op);
  auto cpu = at::cpu::get_cpu_capabilities();  // small.cpp is compiled for these two, where there are such
  const bool has_vectors = !cpu.count("avx2") || (cpu["avx2"].toBool() && cpu["fma3"].toBool());
  std::map<std::string, Loop> loops;
  for (size_t i = 0; has_vectors && i < kSmallLoopCount; i++) loops[kSmallLoops[i].op] = kSmallLoops[i].run;
  std::map<std::string, uba_status (*)(const uba_call&)> own = {
      {"convolution_backward", convolution_backward}, {"mse_loss", mse_loss}, {"relu", relu}};
  std::vector<uba_kernel> kernels;
  for (auto& [name, overloads] : found) {
    g_operators.push_back({"host_" + name, std::move(overloads), loops[name], own[name]});
    kernels.push_back({g_operators.back().kernel.c_str(), run_operator, int64_t(g_operators.size()) - 1});
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
