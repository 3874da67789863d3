// graph_fused.h: operators that stand for a chain of PyTorch's, so that one kernel of a chip can serve the whole chain.
//
// Contract: the operator of the chain aten::convolution, aten::native_batch_norm, aten::relu is
// torchfl::convolution__native_batch_norm__relu. Its arguments are those of the first link in schema order, then those
// of each further link without its first tensor argument, which is the result before it; the latter are named
// LINK_ARGUMENT
// ("native_batch_norm_eps"; LINK2_ARGUMENT the second time that an operator takes part). It gives the first result of
// the last link. It is routed, counted and explained like any operator; a call that no row of the chip takes is taken
// apart into its links, which are routed one by one. scaled_dot_product_attention is a chain of one link of its own
// (whole_attention.h).
#pragma once
#include <string>
#include <vector>

#include "shape_rules.h"

namespace torchfl {

constexpr const char* kFusedNamespace = "torchfl::";

// Defines the operator of a chain, unless it is there, and returns its name. Links are named as they reach the backend
// ("aten::relu", "aten::add.Tensor"); without an overload the one without a name is meant, else "Tensor". Raises
// ValueError for a chain that cannot be one.
std::string define_fused(const std::vector<std::string>& chain);

struct FusedLink {
  std::string op, overload;
  size_t arguments, chained;  // of its schema; the position of the result before (of the first link: `arguments`)
};
std::vector<FusedLink> fused_links(const std::string& base);  // empty: there is no such operator

inline bool is_fused(const std::string& base) { return base.compare(0, 9, kFusedNamespace) == 0; }

// What its output looks like; nullopt: PyTorch has no rule for one of the links.
std::optional<std::vector<OutputShape>> fused_outputs(const std::string& base, at::ArrayRef<c10::IValue> args);

}  // namespace torchfl
