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
#include <ATen/EmptyTensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <torch/version.h>

#include <array>
#include <functional>
#include <string>
#include <vector>

#include "torchfl/uba.h"

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

// PyTorch's dtypes by UBA_DTYPE_*; that of 0 is undefined.
constexpr c10::ScalarType kScalarTypes[] = {
    c10::ScalarType::Undefined,     c10::ScalarType::Half,          c10::ScalarType::BFloat16,
    c10::ScalarType::Float,         c10::ScalarType::Double,        c10::ScalarType::Char,
    c10::ScalarType::Byte,          c10::ScalarType::Short,         c10::ScalarType::Int,
    c10::ScalarType::Long,          c10::ScalarType::Bool,          c10::ScalarType::ComplexFloat,
    c10::ScalarType::ComplexDouble, c10::ScalarType::Float8_e4m3fn, c10::ScalarType::Float8_e5m2,
    c10::ScalarType::UInt16,        c10::ScalarType::UInt32,        c10::ScalarType::UInt64,
    c10::ScalarType::ComplexHalf};
static_assert(kScalarTypes[UBA_DTYPE_BOOL] == c10::kBool &&
              kScalarTypes[UBA_DTYPE_COMPLEX32] == c10::ScalarType::ComplexHalf);
inline c10::ScalarType scalar_type(int64_t dtype) {
  return kScalarTypes[dtype > 0 && size_t(dtype) < std::size(kScalarTypes) ? dtype : 0];
}

// A CPU tensor over memory that the CPU can reach, to be let go when the call is over. Making one costs as much as a
// small operator does: each thread makes a few, and hands out again what nobody holds any more.
inline at::Tensor on_cpu(void* data, c10::IntArrayRef sizes, c10::IntArrayRef strides, c10::ScalarType dtype) {
  static thread_local std::array<at::Tensor, 16> made;
  static thread_local size_t next = 0;
  at::Tensor& tensor = made[next++ % made.size()];
  if (!tensor.defined() || tensor.use_count() != 1 || tensor.storage().use_count() != 1) {
    c10::InferenceMode off(false);  // a tensor of inference mode could not be written outside of it
    return tensor = at::from_blob(data, sizes, strides, at::dtype(dtype));
  }
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  const auto type = caffe2::TypeMeta::fromScalarType(dtype);
  if (impl->dtype() != type) impl->set_storage_and_dtype(c10::Storage(impl->storage()), type);
  c10::StorageImpl* storage = impl->unsafe_storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap({data, c10::kCPU});
  storage->set_nbytes(at::detail::computeStorageNbytes(sizes, strides, type.itemsize()));
  impl->set_sizes_and_strides(sizes, strides, 0);
  return tensor;
}
// The same of a tensor of a kernel's call.
inline at::Tensor on_cpu(const uba_tensor& t) {
  const size_t rank = size_t(t.rank);
  return on_cpu(static_cast<char*>(t.data) + t.byte_offset, {t.sizes, rank}, {t.strides, rank}, scalar_type(t.dtype));
}

}  // namespace torch::fl
