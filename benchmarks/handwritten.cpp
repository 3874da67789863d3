// handwritten.cpp: what benchmarks/dispatch.py compares Torch-FL with.
//
// `bench::add` is what an engineer writes who adds one operator to a PrivateUse1 backend by hand: an unboxed C++ kernel
// that checks its arguments, makes the output with at::empty_like and calls the SDK. It shares everything with the
// generic route but the route: PyTorch's dispatcher, the device's allocator, the SDK's function, and the stream.
// `bench::add_lean` leaves out the factory's trip through the dispatcher as well: the floor.
// `loop_*` call an operator n times from C++, below autograd, so that the time of a call is not hidden behind Python's.
#include <ATen/EmptyTensor.h>
#include <ATen/native/CPUFallback.h>
#include <torch/extension.h>
#include <torch/library.h>

#include <chrono>

#include "npu_v3_sdk.h"

namespace {

void check(npu_status_t status) {
  TORCH_CHECK(status == NPU_STATUS_SUCCESS, npu_status_name(status), ": ", npu_last_error_text());
}

// The engine's own stream: a device that is opened twice is one device, with one default stream.
npu_stream_t stream_of(c10::DeviceIndex index) {
  static npu_stream_t streams[64] = {};
  npu_stream_t& stream = streams[index];
  if (stream == nullptr) {
    npu_device_t device = nullptr;
    check(npu_device_open(index, &device));
    check(npu_default_stream(device, &stream));
  }
  return stream;
}

int32_t sdk_dtype(at::ScalarType type) {
  switch (type) {
    case at::kHalf:
      return NPU_FLOAT16;
    case at::kBFloat16:
      return NPU_BFLOAT16;
    case at::kFloat:
      return NPU_FLOAT32;
    case at::kInt:
      return NPU_INT32;
    case at::kLong:
      return NPU_INT64;
    default:
      TORCH_CHECK_NOT_IMPLEMENTED(false, "bench::add takes no ", type);
  }
}

npu_tensor_t view_of(const at::Tensor& tensor) {
  npu_tensor_t view;
  // data_ptr() may not be read on the host, but its value is the device address.
  view.address = tensor.data_ptr();
  view.shape = tensor.sizes().data();
  view.stride = tensor.strides().data();
  view.dtype = sdk_dtype(tensor.scalar_type());
  view.rank = static_cast<int32_t>(tensor.dim());
  return view;
}

at::Tensor& launch(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha, at::Tensor& out) {
  TORCH_CHECK(self.device() == other.device(), "bench::add: tensors on ", self.device(), " and ", other.device());
  TORCH_CHECK(self.scalar_type() == other.scalar_type(), "bench::add: dtypes differ");
  TORCH_CHECK(self.sizes() == other.sizes(), "bench::add: shapes differ");
  npu_scalar_t none{}, factor{};
  if (alpha.isFloatingPoint()) {
    factor.d = alpha.toDouble();
  } else {
    factor.is_integer = 1;
    factor.i = alpha.toLong();
    factor.d = static_cast<double>(factor.i);
  }
  const npu_tensor_t a = view_of(self), b = view_of(other), o = view_of(out);
  check(npu_v3_binary(stream_of(self.device().index()), NPU_BINARY_ADD, &a, &b, none, factor, &o));
  return out;
}

at::Tensor add(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  at::Tensor out = at::empty_like(self);
  return launch(self, other, alpha, out);
}

at::Tensor add_lean(const at::Tensor& self, const at::Tensor& other, const at::Scalar& alpha) {
  static auto* allocator = c10::GetAllocator(c10::DeviceType::PrivateUse1);
  at::Tensor out = at::detail::empty_strided_generic(
      self.sizes(), self.strides(), allocator, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), self.scalar_type());
  return launch(self, other, alpha, out);
}

// ---------------------------------------------------------------------------------------------- the loops

using Clock = std::chrono::steady_clock;

// Microseconds for one call. The caller synchronises: what is timed is the submission.
template <class F>
double per_call(int64_t count, F&& call) {
  pybind11::gil_scoped_release nogil;
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  const auto began = Clock::now();
  for (int64_t i = 0; i < count; i++) call();
  return std::chrono::duration<double, std::micro>(Clock::now() - began).count() / static_cast<double>(count);
}

double loop_aten(const at::Tensor& a, const at::Tensor& b, int64_t count) {
  return per_call(count, [&] { at::add(a, b); });
}

double loop_bench(const std::string& name, const at::Tensor& a, const at::Tensor& b, int64_t count) {
  const auto op = c10::Dispatcher::singleton()
                      .findSchemaOrThrow(("bench::" + name).c_str(), "")
                      .typed<at::Tensor(const at::Tensor&, const at::Tensor&, const at::Scalar&)>();
  const at::Scalar one(1);
  return per_call(count, [&] { op.call(a, b, one); });
}

// PyTorch's own fallback for the same operator and the same tensors.
at::Tensor stock_once(const c10::OperatorHandle& op, const at::Tensor& a, const at::Tensor& b) {
  torch::jit::Stack stack;
  torch::jit::push(stack, a, b, at::Scalar(1));
  at::native::cpu_fallback(op, &stack);
  return torch::jit::pop(stack).toTensor();
}

at::Tensor stock_add(const at::Tensor& a, const at::Tensor& b) {
  at::AutoDispatchBelowADInplaceOrView below_autograd;
  return stock_once(c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor"), a, b);
}

double loop_stock(const at::Tensor& a, const at::Tensor& b, int64_t count) {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::add", "Tensor");
  return per_call(count, [&] { stock_once(op, a, b); });
}

}  // namespace

TORCH_LIBRARY(bench, m) {
  m.def("add(Tensor self, Tensor other, Scalar alpha) -> Tensor");
  m.def("add_lean(Tensor self, Tensor other, Scalar alpha) -> Tensor");
}

TORCH_LIBRARY_IMPL(bench, PrivateUse1, m) {
  m.impl("add", &add);
  m.impl("add_lean", &add_lean);
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("loop_aten", &loop_aten);
  m.def("loop_bench", &loop_bench);
  m.def("loop_stock", &loop_stock);
  m.def("stock_add", &stock_add);
}
