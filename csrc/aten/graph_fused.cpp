// graph_fused.cpp: see graph_fused.h.
#include "graph_fused.h"

#include <torch/library.h>

#include <mutex>

#include "whole_attention.h"

namespace torchfl {
namespace {

struct Link {
  c10::OperatorHandle op;
  std::string base;  // with its namespace
  size_t count;      // of its arguments
  size_t chained;    // position of the argument that is the result before; `count` in the first link
};

struct FusedOp {
  std::vector<Link> links;
};

std::mutex g_mutex;
auto* g_fused = new std::unordered_map<std::string, std::unique_ptr<FusedOp>>();

const FusedOp* find_fused(const std::string& base) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto found = g_fused->find(base);
  return found == g_fused->end() ? nullptr : found->second.get();
}

// The arguments of one link; `next` walks over those of the chain.
torch::jit::Stack arguments_of(const Link& link, at::ArrayRef<c10::IValue> args, size_t* next, c10::IValue before) {
  torch::jit::Stack stack;
  stack.reserve(link.count);
  for (size_t i = 0; i < link.count; i++) stack.push_back(i == link.chained ? std::move(before) : args[(*next)++]);
  return stack;
}

struct TakenApart final : c10::OperatorKernel {
  explicit TakenApart(const FusedOp* fused_op) : fused(fused_op) {}
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    const size_t count = op.schema().arguments().size();
    const std::vector<c10::IValue> args(stack->end() - int64_t(count), stack->end());
    torch::jit::drop(*stack, count);
    c10::IValue value;
    size_t next = 0;
    for (const Link& link : fused->links) {
      torch::jit::Stack part = arguments_of(link, args, &next, std::move(value));
      if (link.base == kWholeAttention) {  // which would ask for the whole again
        value = attention_apart(part);
        continue;
      }
      link.op.callBoxed(part);
      value = std::move(part[0]);
    }
    stack->push_back(std::move(value));
  }
  const FusedOp* fused;
};

struct Routed final : c10::OperatorKernel {
  void operator()(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
    route(op_state(op), stack);
  }
};

// "aten::convolution_overrideable" -> "convolution": users know it by that name.
std::string short_name(const std::string& base) {
  std::string name = base.substr(base.find("::") + 2);
  if (const size_t suffix = name.find("_overrideable"); suffix != std::string::npos) name.erase(suffix);
  return name;
}

}  // namespace

std::string define_fused(const std::vector<std::string>& chain) {
  const bool alone = chain.size() == 1 && chain[0] == kWholeAttention;
  TORCH_CHECK_VALUE(chain.size() >= 2 || alone, "a fusion has two operators or more, this one has ", chain.size());
  auto fused = std::make_unique<FusedOp>();
  std::string name = kFusedNamespace;
  std::vector<c10::Argument> arguments;
  std::unordered_map<std::string, int> times;
  for (const std::string& full : chain) {
    const size_t dot = full.find('.');
    const std::string base = full.substr(0, dot);
    auto op = c10::Dispatcher::singleton().findSchema({base, dot == std::string::npos ? "" : full.substr(dot + 1)});
    if (!op.has_value() && dot == std::string::npos) op = c10::Dispatcher::singleton().findSchema({base, "Tensor"});
    TORCH_CHECK_VALUE(op.has_value(), "PyTorch has no operator ", full);
    const c10::FunctionSchema& schema = op->schema();
    TORCH_CHECK_VALUE(!schema.is_mutable() && !schema.returns().empty() &&
                          schema.returns()[0].type()->kind() == c10::TypeKind::TensorType,
                      full, " cannot take part in a fusion: it does not simply give a new tensor");
    const bool first = fused->links.empty();
    const std::string part = short_name(base);
    const int time = ++times[part];
    Link link{*op, base, schema.arguments().size(), schema.arguments().size()};
    for (size_t i = 0; i < schema.arguments().size(); i++) {
      const c10::Argument& arg = schema.arguments()[i];
      if (!first && link.chained == link.count && arg.type()->kind() == c10::TypeKind::TensorType) {
        link.chained = i;
        continue;
      }
      std::string arg_name = arg.name();
      if (!first) arg_name = part + (time > 1 ? std::to_string(time) : "") + "_" + arg_name;
      arguments.emplace_back(arg_name, arg.type(), arg.real_type(), arg.N(), std::nullopt, /*kwarg_only=*/false);
    }
    TORCH_CHECK_VALUE(first || link.chained < link.count, full, " takes no tensor, so nothing can come before it");
    name += (first ? "" : "__") + part;
    fused->links.push_back(std::move(link));
  }
  std::lock_guard<std::mutex> lock(g_mutex);
  if (g_fused->count(name) != 0) return name;
  static auto* library = new torch::Library(torch::Library::FRAGMENT, "torchfl", std::nullopt, __FILE__, __LINE__);
  library->def(c10::FunctionSchema(name, "", std::move(arguments),
                                   {c10::Argument("", c10::TensorType::get(), std::nullopt, std::nullopt)}));
  library->impl(name.c_str(),
                torch::dispatch(c10::DispatchKey::CompositeExplicitAutograd,
                                torch::CppFunction::makeFromBoxedFunctor(std::make_unique<TakenApart>(fused.get()))));
  library->impl(name.c_str(), torch::dispatch(c10::DispatchKey::PrivateUse1,
                                              torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Routed>())));
  g_fused->emplace(name, std::move(fused));
  return name;
}

std::vector<FusedLink> fused_links(const std::string& base) {
  std::vector<FusedLink> links;
  if (const FusedOp* fused = find_fused(base)) {
    for (const Link& link : fused->links)
      links.push_back({link.base, link.op.schema().overload_name(), link.count, link.chained});
  }
  return links;
}

std::optional<std::vector<OutputShape>> fused_outputs(const std::string& base, at::ArrayRef<c10::IValue> args) {
  const FusedOp* fused = find_fused(base);
  if (fused == nullptr) return std::nullopt;
  c10::IValue value;
  size_t next = 0;
  std::vector<OutputShape> shapes;
  for (const Link& link : fused->links) {
    const torch::jit::Stack part = arguments_of(link, args, &next, std::move(value));
    auto inferred = infer_outputs(link.op, link.base, part);
    if (!inferred.has_value() || inferred->empty()) return std::nullopt;
    shapes.assign(1, (*inferred)[0]);
    value = at::empty_strided(shapes[0].sizes, shapes[0].strides,
                              at::TensorOptions().dtype(shapes[0].dtype).device(c10::kMeta));
  }
  return shapes;
}

}  // namespace torchfl
