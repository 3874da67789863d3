// uba_host.cpp: the CPU itself as a chip: its memory, and kernels on its vector and matrix units.
//
// Contract: the chip's SDK is PyTorch's own CPU library, with the oneDNN in it. The kernel host_<name> is the operator
// aten::<name>, written where the host says, whatever overload the arguments are of; so the table of kernels is PyTorch's
// list of operators that can write to given memory. What PyTorch refuses is refused here as not supported: the next path
// says why in PyTorch's words. Small calls on dense tensors are loops instead, since a call into PyTorch costs more than
// they do. Everything is done when a function returns. What makes its own results is in handlers.cpp.
#include <ATen/Parallel.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/stack.h>
#include <torch/version.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

#include "host_torch.h"

namespace host {
namespace {

const uba_host* g_host;

}  // namespace

// ------------------------------------------------------------------------------------------ tensors

c10::ScalarType scalar_type(int32_t dtype) {
  using T = c10::ScalarType;
  static constexpr T kTypes[] = {T::Undefined, T::Half, T::BFloat16, T::Float, T::Double, T::Char,         T::Byte,
                                 T::Short,     T::Int,  T::Long,     T::Bool,  T::ComplexFloat, T::ComplexDouble};
  return dtype > 0 && size_t(dtype) < std::size(kTypes) ? kTypes[dtype] : T::Undefined;
}

namespace {

struct Pool {
  std::deque<at::Tensor> tensors;
  size_t used = 0;
};
Pool& pool() {
  static thread_local Pool mine;
  return mine;
}

at::Tensor without_memory() {
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0,
                                                       c10::DataPtr(nullptr, c10::kCPU), nullptr, /*resizable=*/false);
  return at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                  caffe2::TypeMeta::Make<float>());
}

char* start(const uba_tensor& t) { return static_cast<char*>(t.data) + t.byte_offset; }

}  // namespace

Lent::Lent() : first_(pool().used) {}
Lent::~Lent() { pool().used = first_; }

at::Tensor Lent::operator()(const uba_tensor& t) const {
  Pool& mine = pool();
  if (mine.used == mine.tensors.size()) mine.tensors.push_back(without_memory());
  at::Tensor& tensor = mine.tensors[mine.used++];
  if (tensor.use_count() != 1) tensor = without_memory();
  const auto type = c10::scalarTypeToTypeMeta(scalar_type(t.dtype));
  size_t last = 1;
  for (int32_t d = 0; d < t.rank; d++) last = t.sizes[d] == 0 ? 0 : last + size_t((t.sizes[d] - 1) * t.strides[d]);
  c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
  c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr_noswap(c10::DataPtr(start(t), c10::kCPU));
  storage->set_nbytes(last * type.itemsize());
  if (impl->dtype() != type) impl->set_storage_and_dtype(tensor.storage(), type);
  impl->set_sizes_and_strides({t.sizes, size_t(t.rank)}, {t.strides, size_t(t.rank)}, 0);
  return tensor;
}

namespace {

// ------------------------------------------------------------------------------------------ operators of PyTorch

struct Parameter {
  c10::TypeKind kind, element = c10::TypeKind::AnyType;  // without Optional; of a list, what is in it
  bool optional = false, optional_element = false, is_dtype = false;
};
struct Overload {
  c10::OperatorHandle op;
  std::vector<Parameter> parameters;  // without those that are written
};
struct Operator {
  std::string kernel;
  std::vector<Overload> overloads;
};
std::deque<Operator>& operators() {
  static auto* all = new std::deque<Operator>;
  return *all;
}

Parameter parameter(const c10::Argument& arg) {
  Parameter p;
  c10::TypePtr type = arg.type(), real = arg.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType(), p.optional = true;
  if (auto optional = real->cast<c10::OptionalType>()) real = optional->getElementType();
  p.is_dtype = real->kind() == c10::TypeKind::ScalarTypeType;
  p.kind = type->kind();
  if (auto list = type->cast<c10::ListType>()) {
    c10::TypePtr element = list->getElementType();
    if (auto optional = element->cast<c10::OptionalType>()) element = optional->getElementType(), p.optional_element = true;
    p.element = element->kind();
  }
  return p;
}

bool takes(const Parameter& p, const uba_value& value) {
  using K = c10::TypeKind;
  const bool number = p.kind == K::NumberType || p.kind == K::TensorType;
  switch (value.kind) {
    case UBA_NONE:
      return p.optional;
    case UBA_TENSOR:
      return p.kind == K::TensorType;
    case UBA_TENSOR_LIST:
      return p.element == K::TensorType;
    case UBA_INT:
      return number || p.kind == K::IntType || p.kind == K::BoolType || p.kind == K::FloatType;
    case UBA_DOUBLE:
      return number || p.kind == K::FloatType;
    case UBA_COMPLEX:
      return p.kind == K::NumberType;
    case UBA_INT_LIST:
      return p.element == K::IntType || p.element == K::BoolType;
    case UBA_DOUBLE_LIST:
      return p.element == K::FloatType;
    default:
      return p.kind == K::StringType;
  }
}

at::Tensor number_tensor(const c10::Scalar& number) {
  at::Tensor tensor = at::scalar_tensor(number, number.isIntegral(false) ? c10::kLong : c10::kDouble);
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

c10::IValue tensor_list(const Parameter& p, const uba_value& value, const Lent& lend) {
  c10::List<at::Tensor> list;
  c10::List<std::optional<at::Tensor>> optional;
  for (uint32_t i = 0; i < value.count; i++) {
    const uba_tensor& t = value.v.tensor[i];
    if (!p.optional_element) list.push_back(lend(t));
    else optional.push_back(t.dtype != 0 ? std::optional<at::Tensor>(lend(t)) : std::nullopt);
  }
  return p.optional_element ? c10::IValue(optional) : c10::IValue(list);
}

c10::IValue argument(const Parameter& p, const uba_value& value, const Lent& lend) {
  using K = c10::TypeKind;
  switch (value.kind) {
    case UBA_NONE:
      return {};
    case UBA_TENSOR:
      return lend(*value.v.tensor);
    case UBA_TENSOR_LIST:
      return tensor_list(p, value, lend);
    case UBA_INT:
      if (p.is_dtype) return int64_t(scalar_type(int32_t(value.v.i)));
      if (p.kind == K::TensorType) return number_tensor(value.v.i);
      if (p.kind == K::FloatType) return double(value.v.i);
      if (p.kind == K::BoolType) return value.v.i != 0;
      return value.v.i;
    case UBA_DOUBLE:
      if (p.kind == K::TensorType) return number_tensor(value.v.d);
      return value.v.d;
    case UBA_COMPLEX:
      return c10::complex<double>(value.v.doubles[0], value.v.doubles[1]);
    case UBA_INT_LIST:
      if (p.element == K::BoolType) {
        c10::List<bool> flags;
        for (uint32_t i = 0; i < value.count; i++) flags.push_back(value.v.ints[i] != 0);
        return flags;
      }
      return c10::List<int64_t>(c10::ArrayRef<int64_t>(value.v.ints, value.count));
    case UBA_DOUBLE_LIST:
      return c10::List<double>(c10::ArrayRef<double>(value.v.doubles, value.count));
    default:
      return std::string(value.v.str);
  }
}

// Runs `work` below autograd. What PyTorch does not do is not supported here, either.
template <class Work>
uba_status guarded(const Work& work) {
  try {
    at::AutoDispatchBelowADInplaceOrView below;
    work();
    return UBA_OK;
  } catch (const std::bad_alloc&) {
    g_host->set_error(0, "the host has no memory left");
    return UBA_OUT_OF_MEMORY;
  } catch (const c10::Error& error) {
    g_host->set_error(0, error.what_without_backtrace());
  } catch (const std::exception& error) {
    g_host->set_error(0, error.what());
  }
  return UBA_NOT_SUPPORTED;
}

uba_status run_operator(void*, const uba_call* call, int64_t tag) {
  const Operator& op = operators()[size_t(tag)];
  for (const Overload& overload : op.overloads) {
    const auto& parameters = overload.parameters;
    bool fits = parameters.size() == size_t(call->arg_count) &&
                overload.op.schema().returns().size() == size_t(call->output_count);
    for (size_t i = 0; fits && i < parameters.size(); i++) fits = takes(parameters[i], call->args[i]);
    for (int32_t i = 0; fits && i < call->output_count; i++) fits = call->outputs[i].dtype != 0;
    if (!fits) continue;
    return guarded([&] {
      const Lent lend;
      torch::jit::Stack stack;
      stack.reserve(parameters.size() + size_t(call->output_count));
      for (size_t i = 0; i < parameters.size(); i++) stack.push_back(argument(parameters[i], call->args[i], lend));
      for (int32_t i = 0; i < call->output_count; i++) stack.emplace_back(lend(call->outputs[i]));
      overload.op.callBoxed(stack);
    });
  }
  g_host->set_error(0, "PyTorch cannot write the result of such a call to given memory");
  return UBA_NOT_SUPPORTED;
}

// ------------------------------------------------------------------------------------------ small calls

constexpr int64_t kSmall = 8192;     // elements: no more than what one core does in the time of a call into PyTorch
constexpr int64_t kFewSlow = 128;    // of functions that cost some ten instructions each
constexpr int64_t kSmallProduct = 1 << 15;  // multiplications of a matrix product
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_CPU __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_CPU
#endif

template <class T>
constexpr int32_t kDtype = std::is_same_v<T, float> ? UBA_DTYPE_FLOAT32 : std::is_same_v<T, bool> ? UBA_DTYPE_BOOL
                                                                                                   : UBA_DTYPE_INT64;

bool row_major(const uba_tensor& t, int64_t* count) {
  *count = 1;
  for (int32_t d = t.rank; d-- > 0; *count *= t.sizes[d])
    if (t.strides[d] != *count && t.sizes[d] > 1) return false;
  return true;
}
// The elements of a small row-major tensor of this type; -1: it is another.
template <class T>
int64_t small(const uba_tensor& t) {
  int64_t count;
  return t.dtype == kDtype<T> && row_major(t, &count) && count <= kSmall ? count : -1;
}
bool same_sizes(const uba_tensor& a, const uba_tensor& b) {
  return a.rank == b.rank && (a.rank == 0 || std::memcmp(a.sizes, b.sizes, size_t(a.rank) * sizeof(int64_t)) == 0);
}
double number(const uba_value& value) { return value.kind == UBA_INT ? double(value.v.i) : value.v.d; }

// An operand of an elementwise call: as many elements as the result has, or a number.
template <class T>
struct Operand {
  const T* data = nullptr;
  T value = 0;
  bool from(const uba_value& arg, const uba_tensor& like) {
    if (arg.kind == UBA_TENSOR) {
      data = reinterpret_cast<const T*>(start(*arg.v.tensor));
      return same_sizes(*arg.v.tensor, like) && small<T>(*arg.v.tensor) >= 0;
    }
    value = arg.kind == UBA_INT ? T(arg.v.i) : T(arg.v.d);
    return arg.kind == UBA_INT || (arg.kind == UBA_DOUBLE && std::is_same_v<T, float>);
  }
};

// y = f(a, b, c): two operands, and a number where there is a third argument.
template <class T, auto f>
bool elementwise2(const uba_call& call) {
  using R = decltype(f(T(), T(), T()));
  const uba_tensor& out = call.outputs[0];
  const int64_t n = small<R>(out);
  Operand<T> a, b;
  if (n < 0 || call.arg_count < 2 || !a.from(call.args[0], out) || !b.from(call.args[1], out)) return false;
  const T c = call.arg_count > 2 ? T(number(call.args[2])) : T(1);
  R* y = reinterpret_cast<R*>(start(out));
  if (a.data != nullptr && b.data != nullptr) {
    for (int64_t i = 0; i < n; i++) y[i] = f(a.data[i], b.data[i], c);
  } else if (a.data != nullptr) {
    for (int64_t i = 0; i < n; i++) y[i] = f(a.data[i], b.value, c);
  } else {
    for (int64_t i = 0; i < n; i++) y[i] = f(a.value, b.data[i], c);
  }
  return true;
}
template <auto f>
uba_status binary(void* device, const uba_call* call, int64_t tag) {
  const uba_value& a = call->args[0].kind == UBA_TENSOR ? call->args[0] : call->args[1];
  if (a.kind == UBA_TENSOR) {
    if (a.v.tensor->dtype == UBA_DTYPE_FLOAT32 && elementwise2<float, f>(*call)) return UBA_OK;
    if (a.v.tensor->dtype == UBA_DTYPE_INT64 && elementwise2<int64_t, f>(*call)) return UBA_OK;
  }
  return run_operator(device, call, tag);
}
template <auto f, int64_t most = kSmall>
uba_status unary(void* device, const uba_call* call, int64_t tag) {
  const uba_tensor& out = call->outputs[0];
  const int64_t n = small<float>(out);
  Operand<float> x;
  if (n < 0 || n > most || call->arg_count != 1 || !x.from(call->args[0], out)) return run_operator(device, call, tag);
  float* y = reinterpret_cast<float*>(start(out));
  for (int64_t i = 0; i < n; i++) y[i] = f(x.data[i]);
  return UBA_OK;
}

FOR_EACH_CPU float sum_of(const float* x, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += x[i];
  return sum;
}
FOR_EACH_CPU float squares_of(const float* x, float mean, int64_t n) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += (x[i] - mean) * (x[i] - mean);
  return sum;
}
FOR_EACH_CPU void normalize(float* y, const float* x, const float* w, const float* b, float mean, float rstd, int64_t n) {
  for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd;
  if (w != nullptr)
    for (int64_t i = 0; i < n; i++) y[i] *= w[i];
  if (b != nullptr)
    for (int64_t i = 0; i < n; i++) y[i] += b[i];
}
// e^x for x <= 0, to two units in the last place.
inline float exp_of(float x) {
  const float shifted = x * 1.44269504f + 12582912.f, k = shifted - 12582912.f;
  const float r = x - k * 0.693359375f - k * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  for (float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f}) p = p * r + c;
  const int32_t exponent = (std::bit_cast<int32_t>(shifted) - 0x4b400000 + 127) << 23;
  const float y = (p * r * r + r + 1.f) * std::bit_cast<float>(exponent);
  return x < -87.f ? 0.f : y;
}
FOR_EACH_CPU void softmax_row(float* y, const float* x, int64_t n) {
  float most = x[0], sum = 0;
#pragma omp simd reduction(max : most)
  for (int64_t i = 0; i < n; i++) most = x[i] > most ? x[i] : most;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < n; i++) sum += y[i] = exp_of(x[i] - most);
  const float scale = 1 / sum;
  for (int64_t i = 0; i < n; i++) y[i] *= scale;
}
// y (m, n) += a (m, k) b (k, n), where the rows of b, or its columns, lie in one piece.
FOR_EACH_CPU void product(float* y, const float* a, const float* b, int64_t m, int64_t n, int64_t k, int64_t a_row,
                          int64_t a_column, int64_t b_row, int64_t b_column) {
  for (int64_t i = 0; i < m; i++, y += n, a += a_row) {
    if (b_column == 1) {
      for (int64_t l = 0; l < k; l++)
        for (int64_t j = 0; j < n; j++) y[j] += a[l * a_column] * b[l * b_row + j];
    } else {
      for (int64_t j = 0; j < n; j++) {
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t l = 0; l < k; l++) sum += a[l * a_column] * b[l + j * b_column];
        y[j] += sum;
      }
    }
  }
}

// (a, b), or (c, a, b, beta, alpha)
uba_status matrix_product(void* device, const uba_call* call, int64_t tag) {
  const int first = call->arg_count == 5;
  const uba_tensor &out = call->outputs[0], &a = *call->args[first].v.tensor, &b = *call->args[first + 1].v.tensor;
  const bool fits = small<float>(out) >= 0 && out.rank == 2 && a.dtype == UBA_DTYPE_FLOAT32 && b.dtype == a.dtype;
  const int64_t m = fits ? out.sizes[0] : 0, n = fits ? out.sizes[1] : 0, k = fits ? a.sizes[1] : 0;
  bool small_enough = fits && m * n * k <= kSmallProduct && (b.strides[1] == 1 || (b.strides[0] == 1 && a.strides[1] == 1));
  float beta = 0, alpha = 1;
  float* y = reinterpret_cast<float*>(start(out));
  if (small_enough && first != 0) {
    const uba_value& c = call->args[0];
    beta = float(number(call->args[3])), alpha = float(number(call->args[4]));
    small_enough = alpha == 1 && (beta == 0 || beta == 1) && c.kind == UBA_TENSOR && small<float>(*c.v.tensor) >= 0 &&
                   c.v.tensor->rank > 0 && c.v.tensor->sizes[c.v.tensor->rank - 1] == n && start(*c.v.tensor) != start(out);
    if (small_enough && beta != 0) {
      const float* from = reinterpret_cast<const float*>(start(*c.v.tensor));
      const int64_t row = c.v.tensor->rank == 2 && c.v.tensor->sizes[0] == m ? n : 0;
      for (int64_t i = 0; i < m; i++) std::memcpy(y + i * n, from + i * row, size_t(n) * sizeof(float));
    }
  }
  if (!small_enough) return run_operator(device, call, tag);
  if (beta == 0) std::memset(y, 0, size_t(m * n) * sizeof(float));
  product(y, reinterpret_cast<const float*>(start(a)), reinterpret_cast<const float*>(start(b)), m, n, k, a.strides[0],
          a.strides[1], b.strides[0], b.strides[1]);
  return UBA_OK;
}

// How many dimensions at the end are reduced, -1 if others are: (x, dims, keepdim, dtype) or (x, dtype).
int32_t trailing(const uba_call& call, int32_t rank) {
  const uba_value& dims = call.args[1];
  if (call.arg_count == 2 || dims.kind == UBA_NONE || dims.count == 0) return rank;
  if (dims.kind != UBA_INT_LIST || dims.count != 1 || rank == 0) return -1;
  return dims.v.ints[0] == rank - 1 || dims.v.ints[0] == -1 ? 1 : -1;
}
template <bool mean>
uba_status sum(void* device, const uba_call* call, int64_t tag) {
  const uba_tensor &x = *call->args[0].v.tensor, &out = call->outputs[0];
  const int64_t all = small<float>(x), rows = small<float>(out);
  const int32_t count = all > 0 && rows > 0 ? trailing(*call, x.rank) : -1;
  if (count < 0) return run_operator(device, call, tag);
  const int64_t n = all / rows;
  for (int64_t i = 0; i < rows; i++) {
    const float total = sum_of(reinterpret_cast<const float*>(start(x)) + i * n, n);
    reinterpret_cast<float*>(start(out))[i] = mean ? total / float(n) : total;
  }
  return UBA_OK;
}

uba_status softmax(void* device, const uba_call* call, int64_t tag) {
  const uba_tensor &x = *call->args[0].v.tensor, &out = call->outputs[0];
  const int64_t count = small<float>(x), dim = call->args[1].v.i;
  if (count <= 0 || small<float>(out) != count || x.rank == 0 || (dim != x.rank - 1 && dim != -1))
    return run_operator(device, call, tag);
  const int64_t n = x.sizes[x.rank - 1];
  for (int64_t i = 0; i < count; i += n)
    softmax_row(reinterpret_cast<float*>(start(out)) + i, reinterpret_cast<const float*>(start(x)) + i, n);
  return UBA_OK;
}

// (x, normalized_shape, weight, bias, eps) -> y, mean, rstd
uba_status layer_norm(void* device, const uba_call* call, int64_t tag) {
  const uba_tensor& x = *call->args[0].v.tensor;
  const int64_t count = small<float>(x), rows = small<float>(call->outputs[1]);
  bool fits = count > 0 && rows > 0 && small<float>(call->outputs[0]) == count && small<float>(call->outputs[2]) == rows;
  const float* parameters[2] = {nullptr, nullptr};
  for (int i = 0; i < 2 && fits; i++) {
    if (call->args[2 + i].kind == UBA_NONE) continue;
    parameters[i] = reinterpret_cast<const float*>(start(*call->args[2 + i].v.tensor));
    fits = small<float>(*call->args[2 + i].v.tensor) == count / rows;
  }
  if (!fits) return run_operator(device, call, tag);
  const int64_t n = count / rows;
  for (int64_t i = 0; i < rows; i++) {
    const float* from = reinterpret_cast<const float*>(start(x)) + i * n;
    const float mean = sum_of(from, n) / float(n);
    const float rstd = 1 / std::sqrt(squares_of(from, mean, n) / float(n) + float(number(call->args[4])));
    normalize(reinterpret_cast<float*>(start(call->outputs[0])) + i * n, from, parameters[0], parameters[1], mean, rstd, n);
    reinterpret_cast<float*>(start(call->outputs[1]))[i] = mean;
    reinterpret_cast<float*>(start(call->outputs[2]))[i] = rstd;
  }
  return UBA_OK;
}

// (grad, x, weight, stride, padding, dilation, transposed, output_padding, groups, mask) -> of x, weight and bias
uba_status convolution_backward(void*, const uba_call* call, int64_t) {
  return guarded([&] {
    const Lent lend;
    const uba_value* a = call->args;
    auto list = [&](int i) { return c10::IntArrayRef(a[i].v.ints, a[i].count); };
    const at::Tensor grad = lend(*a[0].v.tensor), x = lend(*a[1].v.tensor), weight = lend(*a[2].v.tensor);
    const int64_t channels = a[6].v.i != 0 ? weight.size(1) * a[8].v.i : weight.size(0);
    const auto made = at::convolution_backward(grad, x, weight, c10::IntArrayRef{channels}, list(3), list(4), list(5),
                                               a[6].v.i != 0, list(7), a[8].v.i,
                                               {a[9].v.ints[0] != 0, a[9].v.ints[1] != 0, a[9].v.ints[2] != 0});
    if (call->outputs[0].dtype != 0) lend(call->outputs[0]).copy_(std::get<0>(made));
    if (call->outputs[1].dtype != 0) lend(call->outputs[1]).copy_(std::get<1>(made));
    if (call->outputs[2].dtype != 0) lend(call->outputs[2]).copy_(std::get<2>(made));
  });
}

#define OF(...) ([](auto a, [[maybe_unused]] auto b, [[maybe_unused]] auto c) { return __VA_ARGS__; })
#define ALONE(...) ([](float a) -> float { return __VA_ARGS__; })
const std::map<std::string, uba_kernel_fn> kSmallKernels = {
    {"add", binary<OF(a + c * b)>},
    {"sub", binary<OF(a - c * b)>},
    {"mul", binary<OF(a * b)>},
    {"div", binary<OF(float(a) / float(b))>},
    {"maximum", binary<OF(a != a || a > b ? a : b)>},
    {"minimum", binary<OF(a != a || a < b ? a : b)>},
    {"eq", binary<OF(a == b)>},
    {"ne", binary<OF(a != b)>},
    {"lt", binary<OF(a < b)>},
    {"le", binary<OF(a <= b)>},
    {"gt", binary<OF(a > b)>},
    {"ge", binary<OF(a >= b)>},
    {"threshold_backward", binary<OF(b <= c ? decltype(a)(0) : a)>},
    {"relu", unary<ALONE(a <= 0 ? 0 : a)>},
    {"neg", unary<ALONE(-a)>},
    {"abs", unary<ALONE(std::fabs(a))>},
    {"sqrt", unary<ALONE(std::sqrt(a))>},
    {"reciprocal", unary<ALONE(1 / a)>},
    {"exp", unary<ALONE(std::exp(a)), kFewSlow>},
    {"log", unary<ALONE(std::log(a)), kFewSlow>},
    {"tanh", unary<ALONE(std::tanh(a)), kFewSlow>},
    {"sigmoid", unary<ALONE(1 / (1 + std::exp(-a))), kFewSlow>},
    {"silu", unary<ALONE(a / (1 + std::exp(-a))), kFewSlow>},
    {"sum", sum<false>},
    {"mean", sum<true>},
    {"mm", matrix_product},
    {"addmm", matrix_product},
    {"_softmax", softmax},
    {"native_layer_norm", layer_norm},
    {"convolution_backward", convolution_backward},
};

// ------------------------------------------------------------------------------------------ device

uba_status properties(void*, uba_properties* out) {
  std::strncpy(out->name, "CPU", sizeof(out->name) - 1);
  out->total_memory = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  out->compute_units = at::get_num_threads();
  out->host_accessible = 1;
  return UBA_OK;
}
uba_status memory_info(void*, uint64_t* free_bytes, uint64_t* total_bytes) {
  *free_bytes = uint64_t(sysconf(_SC_AVPHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  *total_bytes = uint64_t(sysconf(_SC_PHYS_PAGES)) * uint64_t(sysconf(_SC_PAGESIZE));
  return UBA_OK;
}
uba_status alloc(void*, uint64_t bytes, void** ptr) {
  return posix_memalign(ptr, 64, bytes) == 0 ? UBA_OK : UBA_OUT_OF_MEMORY;
}
uba_status release(void*, void* ptr) { return std::free(ptr), UBA_OK; }
uba_status map_host(void*, void* host, uint64_t, void** ptr) { return *ptr = host, UBA_OK; }
uba_status unmap_host(void*, void*) { return UBA_OK; }
uba_status synchronize(void*, void*) { return UBA_OK; }

constexpr int64_t kBlock = 1 << 20;  // bytes that one thread moves at least
uba_status copy(void*, void*, void* dst, const void* src, uint64_t bytes, int32_t) {
  if (int64_t(bytes) <= kBlock) return std::memmove(dst, src, bytes), UBA_OK;
  at::parallel_for(0, int64_t(bytes), kBlock, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<char*>(dst) + begin, static_cast<const char*>(src) + begin, size_t(end - begin));
  });
  return UBA_OK;
}
uba_status fill(void*, void*, void* dst, uint64_t bytes, int32_t value) {
  at::parallel_for(0, int64_t(bytes), kBlock, [&](int64_t begin, int64_t end) {
    std::memset(static_cast<char*>(dst) + begin, value, size_t(end - begin));
  });
  return UBA_OK;
}

// Copies a few rows that lie in one piece on both sides.
bool copy_rows(const uba_tensor& dst, const uba_tensor& src, size_t itemsize) {
  const int32_t last = dst.rank - 1;
  if (dst.rank < 1 || dst.rank > 3 || dst.strides[last] != 1 || src.strides[last] != 1) return false;
  const int64_t outer = dst.rank > 2 ? dst.sizes[0] : 1, middle = dst.rank > 1 ? dst.sizes[last - 1] : 1;
  if (outer * middle > 256 || outer * middle * dst.sizes[last] > kSmall) return false;
  auto row = [&](const uba_tensor& t, int64_t i, int64_t j) {
    return start(t) + size_t((t.rank > 2 ? i * t.strides[0] : 0) + (t.rank > 1 ? j * t.strides[last - 1] : 0)) * itemsize;
  };
  for (int64_t i = 0; i < outer; i++)
    for (int64_t j = 0; j < middle; j++) std::memcpy(row(dst, i, j), row(src, i, j), size_t(dst.sizes[last]) * itemsize);
  return true;
}
uba_status copy_nd(void*, void*, const uba_tensor* dst, const uba_tensor* src) {
  if (dst->dtype == src->dtype && copy_rows(*dst, *src, c10::elementSize(scalar_type(dst->dtype)))) return UBA_OK;
  return guarded([&] {
    const Lent lend;
    lend(*dst).copy_(lend(*src));
  });
}
uba_status fill_nd(void*, void*, const uba_tensor* dst, const uba_value* value) {
  return guarded([&] {
    const Lent lend;
    lend(*dst).fill_(value->kind == UBA_INT ? c10::Scalar(value->v.i) : c10::Scalar(value->v.d));
  });
}

const uba_device_api kDevice = {
    .header = UBA_HEADER(uba_device_api),
    .properties = properties,
    .alloc = alloc,
    .free = release,
    .copy = copy,
    .fill = fill,
    .synchronize = synchronize,
    .copy_nd = copy_nd,
    .fill_nd = fill_nd,
    .map_host = map_host,
    .unmap_host = unmap_host,
    .memory_info = memory_info,
};

uba_status device_count(int32_t* count) { return *count = 1, UBA_OK; }
uba_status device_open(int32_t, void** device) {
  static int opened;
  return *device = &opened, UBA_OK;
}

// ------------------------------------------------------------------------------------------ the table of kernels

std::vector<uba_kernel> list_kernels() {
  std::map<std::string, std::vector<Overload>> found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (name.name.rfind("aten::", 0) != 0 || !op.has_value()) continue;
    Overload overload{*op, {}};
    size_t written = 0;
    for (const c10::Argument& arg : op->schema().arguments()) {
      if (arg.is_out()) written++;
      else overload.parameters.push_back(parameter(arg));
    }
    if (written > 0 && written == op->schema().returns().size()) found[name.name.substr(6)].push_back(std::move(overload));
  }
  std::vector<uba_kernel> kernels;
  for (auto& [name, overloads] : found) {
    operators().push_back({"host_" + name, std::move(overloads)});
    const auto own = kSmallKernels.find(name);
    kernels.push_back({operators().back().kernel.c_str(), own != kSmallKernels.end() ? own->second : run_operator,
                       int64_t(operators().size()) - 1});
  }
  return kernels;
}

}  // namespace
}  // namespace host

const uba_adapter* uba_query(uint32_t, const uba_host* the_host) {
  host::g_host = the_host;
  static const auto* kernels = new std::vector<uba_kernel>(host::list_kernels());
  static const uba_adapter adapter = {
      .header = UBA_HEADER(uba_adapter),
      .name = "host",
      .version = "1.0.0",
      .sdk_version = TORCH_VERSION,
      .device_count = host::device_count,
      .open = host::device_open,
      .close = nullptr,
      .device = &host::kDevice,
      .kernels = kernels->data(),
      .kernel_count = int64_t(kernels->size()),
  };
  return &adapter;
}
