// torchfl/uba_aten.h: adapters written against ATen tensors instead of the C interface (torchfl/uba.h).
//
// Contract: the library exports `extern "C" void torch_fl_register_<device_type>()`, which calls register_device and
// then register_op_handler for each operator. It is found by `torchfl.load_uba("<device_type>")`, and, since it
// uses ATen, must be rebuilt for each PyTorch minor version (adapters on uba.h need not). The header is all there is:
// nothing of Torch-FL is linked.
//
// A handler that says nothing about itself is only given calls in canonical form: every tensor of one dtype, one shape
// and equal dense strides, at aligned addresses, and every other argument at its schema default (alpha = 1). So a
// handler that ignores alpha or broadcasting cannot give a wrong number; those calls take the next path and the log
// says why. HandlerOptions lifts that. Throwing c10::NotImplementedError means "not this call": the next path is taken.
// Every other exception reaches the user.
//
// A library may offer both ways in: uba_query for memory and kernels that write where they are told, and this function
// beside it for kernels that make their own results. register_kernel gives such a kernel the name by which rows of the
// descriptor (`ops`, `fusions`) call for it; the conditions of the row are the kernel's, strides may be any.
#pragma once
#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <torch/version.h>

#include <functional>
#include <string>
#include <vector>

namespace torch::fl {

// One operator call. `tensor_args` holds the tensors in schema order; `args` every argument of the functional form.
struct OpRequest {
  std::string op;                       // "aten::add.Tensor"
  std::vector<at::Tensor> tensor_args;  // to be read; absent ones are not in it
  std::vector<c10::IValue> args;        // as the caller gave them
  std::vector<bool> spare;  // of each: a tensor that nobody else will read; it may be written, and be the result
  c10::ScalarType dtype = c10::ScalarType::Undefined;  // that the call computes in
  c10::Device device = c10::Device(c10::kCPU);
  std::string layout;  // of the first tensor: "NCHW", "NHWC", ..., "strided"
};

// Returns the result. It may be on the CPU: then it is taken over as device memory.
using OpHandler = std::function<at::Tensor(const OpRequest&)>;

struct DeviceOptions {
  int device_count = 1;
};

struct HandlerOptions {
  bool any_arguments = false;           // the handler reads alpha and all other plain arguments
  bool any_strides = false;             // the handler honours strides, shapes that differ, and broadcasting
  std::vector<c10::ScalarType> dtypes;  // empty: those of the descriptor
};

namespace detail {
using Make = std::function<at::Tensor()>;
// The host's side; its layout changes with Torch-FL's version only together with `abi`.
struct Registry {
  int abi;
  void (*device)(void* book, const char* type, const DeviceOptions& options);
  void (*handler)(void* book, const char* op, OpHandler handler, const HandlerOptions& options);
  void* book;
  at::Tensor (*kept)(at::ArrayRef<at::Tensor> sources, int64_t key, const Make& make);
};
constexpr int kRegistryAbi = 2;
}  // namespace detail
}  // namespace torch::fl

// Set by the host before torch_fl_register_* runs. Weak: one instance for each library, whatever it is made of.
extern "C" {
__attribute__((weak, visibility("default"))) const torch::fl::detail::Registry* torch_fl_registry = nullptr;
__attribute__((weak, visibility("default"))) at::Tensor (*torch_fl_kept)(at::ArrayRef<at::Tensor>, int64_t,
                                                                         const torch::fl::detail::Make&) = nullptr;
__attribute__((weak, visibility("default"))) const char* torch_fl_built_for() { return TORCH_VERSION; }
}

namespace torch::fl {

inline void register_device(const std::string& type, const DeviceOptions& options = {}) {
  TORCH_CHECK(torch_fl_registry != nullptr && torch_fl_registry->abi == detail::kRegistryAbi, "torch_fl_register_",
              type, " was not called by a matching Torch-FL: load it with torchfl.load_uba()");
  torch_fl_registry->device(torch_fl_registry->book, type.c_str(), options);
}

// `op` is an operator with overload ("aten::add.Tensor"); the handler serves its functional, in-place and out forms.
inline void register_op_handler(const std::string& op, OpHandler handler, const HandlerOptions& options = {}) {
  TORCH_CHECK(torch_fl_registry != nullptr && torch_fl_registry->abi == detail::kRegistryAbi, "the handler of ", op,
              " was registered outside torch_fl_register_<device_type>()");
  torch_fl_registry->handler(torch_fl_registry->book, op.c_str(), std::move(handler), options);
  torch_fl_kept = torch_fl_registry->kept;
}

// `name` is what `kernel` of a descriptor's row says; not one of the adapter's own kernel table.
inline void register_kernel(const std::string& name, OpHandler kernel) {
  TORCH_CHECK(name.find("::") == std::string::npos, "register_kernel: ", name,
              " is an operator's name; a kernel has one of its own");
  register_op_handler(name, std::move(kernel), {true, true, {}});
}

// What `make` derives from `sources` (a weight in the chip's own packing), kept from call to call until one of them is
// written to, is gone, or memory is short. `sources` are tensors of the device out of OpRequest::args; `key` tells
// apart what is derived from the same ones.
inline at::Tensor kept(at::ArrayRef<at::Tensor> sources, int64_t key, const std::function<at::Tensor()>& make) {
  return torch_fl_kept(sources, key, make);
}

}  // namespace torch::fl
