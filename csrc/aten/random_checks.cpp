// random_checks.cpp: see random_checks.h.
//
// PyTorch checks these numbers in templates that it shares between its backends, each of which gives a kernel. Ours
// does nothing: what is left of the template is the checks, and the one that no element is written twice.
#include "random_checks.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/DistributionTemplates.h>
#include <ATen/native/TensorFactories.h>

#include "router.h"

namespace torchfl {
namespace {

namespace templates = at::native::templates;
using Args = at::ArrayRef<c10::IValue>;

template <typename>
struct NoKernel {
  template <class... Anything>
  void operator()(Anything&&...) const {}
};

// What the numbers are for: the tensor that is written in place. The other forms write to a new tensor (or to an out=
// that is resized first), so one without elements stands for it.
at::Tensor target_of(const OpState& op, Args args) {
  const at::Tensor& self = args[0].toTensor();
  if (!op.written.empty() && op.written[0] == 0) return self;
  const at::Tensor& like = op.written.empty() ? self : args[size_t(op.written[0])].toTensor();
  return at::empty({0}, at::TensorOptions().dtype(like.scalar_type()).device(c10::kMeta));
}

void uniform(const OpState& op, Args args) {
  at::Tensor target = target_of(op, args);
  templates::uniform_impl_<NoKernel, void>(target, args[1].toDouble(), args[2].toDouble(), {});
}

// (self, mean, std), or what makes a new tensor: (mean, std), of which either is a tensor or a number.
void normal(const OpState& op, Args args) {
  const bool fills = args[0].isTensor() && args[1].isDouble() && args[2].isDouble();
  const c10::IValue& std = args[fills ? 2 : 1];
  if (!std.isDouble()) return;
  CHECK_NORMAL_STD(std.toDouble());
  if (fills) at::assert_no_internal_overlap(target_of(op, args));
}

void bernoulli(const OpState& op, Args args) {
  at::Tensor target = target_of(op, args);
  if (args.size() > 1 && args[1].isDouble()) {
    templates::bernoulli_impl_<NoKernel, void>(target, args[1].toDouble(), {});
  } else {
    templates::bernoulli_impl_<NoKernel, void>(target, target, {});
  }
}

void exponential(const OpState& op, Args args) {
  at::Tensor target = target_of(op, args);
  templates::exponential_impl_<NoKernel, void>(target, args[1].toDouble(), {});
}

void geometric(const OpState& op, Args args) {
  at::Tensor target = target_of(op, args);
  templates::geometric_impl_<NoKernel, void>(target, args[1].toDouble(), {});
}

void cauchy(const OpState& op, Args args) {
  at::Tensor target = target_of(op, args);
  templates::cauchy_impl_<NoKernel, void>(target, args[1].toDouble(), args[2].toDouble(), {});
}

void log_normal(const OpState& op, Args args) {
  at::Tensor target = target_of(op, args);
  templates::log_normal_impl_<NoKernel, void>(target, args[1].toDouble(), args[2].toDouble(), {});
}

void random(const OpState& op, Args args) {
  at::Tensor target = target_of(op, args);
  const std::string& bound = op.schema.arg_names[1];
  if (bound == "from") {
    std::optional<int64_t> to;
    if (args[2].isInt()) to = args[2].toInt();
    templates::random_from_to_impl<NoKernel, void>(target, args[1].toInt(), to, {});
  } else if (bound == "to") {
    templates::random_from_to_impl<NoKernel, void>(target, 0, args[1].toInt(), {});
  } else {
    templates::random_impl<NoKernel, void>(target, {});
  }
}

void randperm(const OpState& op, Args args) {
  if (op.written.empty()) return;  // the factory is an empty tensor and the form that writes to it
  const c10::ScalarType dtype = args[size_t(op.written[0])].toTensor().scalar_type();
  TORCH_CHECK_NOT_IMPLEMENTED(dtype != c10::kBool, "\"randperm\" not implemented for 'Bool'");
  if (args[0].toInt() < 0) return;  // refused as a size
  at::native::check_supported_max_int_with_precision(args[0].toInt(), at::empty({0}, dtype));
}

void multinomial(const OpState&, Args args) {
  const at::Tensor& weights = args[0].toTensor();
  const int64_t samples = args[1].toInt();
  TORCH_CHECK(weights.dim() > 0 && weights.dim() <= 2, "prob_dist must be 1 or 2 dim");
  TORCH_CHECK(at::isFloatingType(weights.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", weights.scalar_type());
  TORCH_CHECK(samples > 0, "cannot sample n_sample <= 0 samples");
  TORCH_CHECK(args[2].toBool() || samples <= weights.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement");
}

// Its mask is drawn by bernoulli_, which is who complains on the CPU.
void native_dropout(const OpState&, Args args) {
  if (args[0].toTensor().numel() == 0 || (args[2].isBool() && !args[2].toBool())) return;
  at::Tensor mask = at::empty({0}, at::TensorOptions().device(c10::kMeta));
  templates::bernoulli_impl_<NoKernel, void>(mask, 1 - args[1].toDouble(), {});
}

void check_generator(const at::Generator& generator, Args args) {
  std::optional<c10::DeviceType> expected;
  for (const c10::IValue& value : args) {
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    const c10::DeviceType type = value.toTensor().device().type();
    if (!expected.has_value() || type == kDevice) expected = type;
  }
  TORCH_CHECK(!expected.has_value() || *expected == generator.device().type(), "Expected a '", *expected,
              "' device type for generator but found '", generator.device().type(), "'");
}

}  // namespace

RandomCheck random_check(const std::string& name) {
  static const std::unordered_map<std::string, RandomCheck> checks = {
      {"aten::bernoulli", &bernoulli},
      {"aten::cauchy", &cauchy},
      {"aten::exponential", &exponential},
      {"aten::geometric", &geometric},
      {"aten::log_normal", &log_normal},
      {"aten::multinomial", &multinomial},
      {"aten::native_dropout", &native_dropout},
      {"aten::normal", &normal},
      {"aten::normal_functional", &normal},
      {"aten::random", &random},
      {"aten::randperm", &randperm},
      {"aten::uniform", &uniform},
  };
  const auto found = checks.find(name.back() == '_' ? name.substr(0, name.size() - 1) : name);
  return found == checks.end() ? nullptr : found->second;
}

void check_random_call(const OpState& op, Args args) {
  if (op.generator >= 0 && args[size_t(op.generator)].isGenerator()) {
    const at::Generator generator = args[size_t(op.generator)].toGenerator();
    if (generator.defined()) check_generator(generator, args);
  }
  if (op.random_check != nullptr) op.random_check(op, args);
}

}  // namespace torchfl
