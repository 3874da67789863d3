// toy_wrapper.cpp: kernels that do what a wrapper's author may do, right and wrong, for test_wrappers.py.
#include <torch/extension.h>

namespace {

using torch::Tensor;

template <class F>
Tensor each(const Tensor& a, const Tensor& b, F&& f) {
  Tensor out = torch::empty_like(a);
  const float *x = a.data_ptr<float>(), *y = b.data_ptr<float>();
  float* z = out.data_ptr<float>();
  for (int64_t i = 0; i < a.numel(); i++) z[i] = f(x[i], y[i]);
  return out;
}

Tensor add(const Tensor& a, const Tensor& b, double alpha) {
  return each(a, b, [&](float x, float y) { return x + static_cast<float>(alpha) * y; });
}
// Knows nothing of alpha.
Tensor sub(const Tensor& a, const Tensor& b) {
  return each(a, b, [](float x, float y) { return x - y; });
}
Tensor mul(const Tensor& a, const Tensor& b) {
  return each(a, b, [](float x, float y) { return x * y; });
}
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  Tensor out = torch::empty_like(a);
  for (int64_t i = 0; i < a.numel(); i++)
    out.data_ptr<float>()[i] = (condition.data_ptr<bool>()[i] ? a : b).data_ptr<float>()[i];
  return out;
}
Tensor on_cpu(const Tensor& x) {
  return torch::from_blob(x.data_ptr<float>(), x.sizes(), x.strides(), torch::kFloat32).clone().exp_();
}
Tensor itself(const Tensor& x) { return x; }
Tensor wrong_shape(const Tensor& x) { return torch::zeros({1, 2}); }
Tensor wrong_dtype(const Tensor& x) { return torch::zeros(x.sizes(), torch::kInt64); }
Tensor nothing(const Tensor& x) { return Tensor(); }
Tensor fails(const Tensor& x) { throw std::runtime_error("SDK error 7: queue full"); }
Tensor fails_in_torch(const Tensor& x) {
  TORCH_CHECK_VALUE(false, "the third number is odd");
  return x;
}
Tensor not_this(const Tensor& x) {
  PyErr_SetString(PyExc_NotImplementedError, "only on Sundays");
  throw pybind11::error_already_set();
}
Tensor for_ever(const Tensor& x) { return torch::neg(x); }
Tensor too_many(const Tensor& x, int64_t more) { return x; }
// values and indices
std::tuple<Tensor, Tensor> max_of(const Tensor& x, int64_t dim, bool keepdim) {
  Tensor host = torch::from_blob(x.data_ptr<float>(), x.sizes(), x.strides(), torch::kFloat32);
  return torch::max(host, dim, keepdim);
}
Tensor one_of_two(const Tensor& x, int64_t dim, bool keepdim) { return x; }
Tensor host(const Tensor& x) { return torch::from_blob(x.data_ptr<float>(), x.sizes(), x.strides(), torch::kFloat32); }
Tensor matmul(const Tensor& a, const Tensor& b) { return torch::matmul(host(a), host(b)); }
Tensor softmax(const Tensor& x, int64_t dim, pybind11::object dtype) {
  if (!dtype.is_none()) throw std::runtime_error("dtype");
  return torch::softmax(host(x), dim);
}
// In the chip's own order of dimensions.
Tensor nhwc(const Tensor& x, const Tensor& w, const std::optional<Tensor>& bias, std::vector<int64_t> stride,
            std::vector<int64_t> padding, std::vector<int64_t> dilation, int64_t groups) {
  if (bias.has_value()) throw std::runtime_error("bias");
  return torch::conv2d(host(x), host(w), {}, stride, padding, dilation, groups).permute({0, 2, 3, 1}).contiguous();
}
Tensor join(std::vector<Tensor> parts, int64_t dim) {
  for (Tensor& part : parts) part = host(part);
  return torch::stack(parts, dim);
}
// Bytes whose zero point is 128.
Tensor relu8(const Tensor& x) {
  if (x.scalar_type() != torch::kUInt8) throw std::runtime_error("not uint8");
  Tensor out = torch::empty_like(x);
  for (int64_t i = 0; i < x.numel(); i++) out.data_ptr<uint8_t>()[i] = std::max<uint8_t>(x.data_ptr<uint8_t>()[i], 128);
  return out;
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("toy_add", &add);
  m.def("toy_sub", &sub);
  m.def("toy_mul", &mul, "With words of its author.");
  m.def("toy_where", &where);
  m.def("toy_exp", &on_cpu);
  m.def("toy_abs", &itself);
  m.def("toy_ceil", &wrong_shape);
  m.def("toy_floor", &wrong_dtype);
  m.def("toy_round", &nothing);
  m.def("toy_sin", &fails);
  m.def("toy_cos", &fails_in_torch);
  m.def("toy_tan", &not_this);
  m.def("toy_neg", &for_ever);
  m.def("toy_erf", &too_many);
  m.def("toy_max", &max_of);
  m.def("toy_min", &one_of_two);
  m.def("toy_matmul", &matmul);
  m.def("toy_softmax", &softmax);
  m.def("toy_conv2d", &nhwc);
  m.def("toy_stack", &join);
  m.def("toy_relu", &relu8);
}
