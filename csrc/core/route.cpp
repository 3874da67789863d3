// route.cpp: walks the rows of an operator and says which fits, or of each why not.
//
// Contract: see route.h. Rows are tried in declared order and the first that fits wins, unless the cost of every
// fitting row is known (cost.cpp). Checks run from the general to the particular, and the reason that is reported to
// the user is that of the row that got furthest, because it is the nearest to what he wanted.
//
// Dtypes. A row's `dtypes` name arguments; "*" stands for every tensor argument without an entry of its own, and is
// the chip's dtypes if the row gives none. Integers that only say where (int32, int64 and bool next to floating
// tensors, or arguments named index, indices, mask, condition, target) are not what a chip computes in: "*" does not
// apply to them. A kernel that is particular about them lists them by name.
#include "route.h"

#include <algorithm>
#include <cstdio>

#include "attention.h"
#include "route_parts.h"

namespace torchfl {
namespace {

// How far a row got; the order of the checks.
enum Stage { kOverload, kKernel, kDtype, kRank, kLimit, kLayout, kWhere, kRefused, kFits };

struct Outcome {
  Stage stage = kFits;
  std::string reason;
  std::string why;
  std::vector<Transform> transforms;
  bool realign_outputs = false;
};

// One row against one call.
class RowCheck {
 public:
  RowCheck(const Chip& chip, const std::string& chip_name, const RouteTable::Query& query, const OpPath& row)
      : chip_(chip), chip_name_(chip_name), query_(query), call_(query.call), row_(row) {}

  Outcome run() {
    if (overload() && kernel() && dtypes() && canonical() && ranks() && limits() && layouts() && conditions() &&
        not_refused()) {
      align();
    }
    return std::move(out_);
  }

 private:
  bool fail(Stage stage, std::string reason, std::string why = "") {
    out_.stage = stage;
    out_.reason = std::move(reason);
    out_.why = std::move(why);
    out_.transforms.clear();
    return false;
  }

  bool overload() {
    const std::string& called = call_.schema->overload;
    if (row_.overload.empty() || row_.overload == called || (row_.overload == "default" && called.empty())) return true;
    return fail(kOverload, row_.kernel + " serves the overload " + row_.overload + ", called was " +
                               (called.empty() ? "default" : called));
  }

  bool kernel() {
    if (query_.available == nullptr || query_.available(query_.context, row_.kernel)) return true;
    return fail(kKernel, "the adapter has no kernel " + row_.kernel);
  }

  const DtypeSet* named_dtypes(const std::string& name) const {
    for (const auto& entry : row_.dtypes) {
      if (entry.first == name) return &entry.second;
    }
    return nullptr;
  }

  bool dtypes() {
    const DtypeSet* star = named_dtypes("*");
    const DtypeSet general = star != nullptr ? *star : chip_.dtypes;
    bool any_floating = false;
    for_each_tensor(call_, [&](int, int, const uba_tensor& tensor) {
      any_floating = any_floating || (dtype_bit(tensor.dtype) & kFloatingDtypes) != 0;
    });
    bool good = true;
    for_each_tensor(call_, [&](int arg, int, const uba_tensor& tensor) {
      if (!good) return;
      const std::string name = arg_name(call_, arg);
      const DtypeSet bit = dtype_bit(tensor.dtype);
      if (const DtypeSet* own = named_dtypes(name)) {
        if ((bit & *own) != 0) return;
        good = fail(kDtype, "argument " + name + " is " + dtype_name(tensor.dtype) + ", " + row_.kernel + " takes " +
                                dtype_set_text(*own) + " there");
        return;
      }
      if ((bit & general) != 0 || ((bit & kIndexDtypes) != 0 && (any_floating || says_where(name)))) return;
      good = fail(kDtype, std::string(dtype_name(tensor.dtype)) + " is not a dtype of " + row_.kernel + " (" +
                              dtype_set_text(general) + ")");
    });
    return good;
  }

  static bool says_where(const std::string& name) {
    return name == "index" || name == "indices" || name == "mask" || name == "condition" || name == "target";
  }

  bool canonical() {
    if (!row_.canonical_only) return true;
    const std::string tail = ", and " + row_.kernel + " has declared nothing but calls in canonical form";
    const uba_tensor* first = nullptr;
    bool good = true;
    auto same = [&](const uba_tensor& tensor) {
      if (!good) return;
      if (first == nullptr) {
        first = &tensor;
        return;
      }
      const bool shape =
          first->rank == tensor.rank && std::equal(tensor.sizes, tensor.sizes + tensor.rank, first->sizes);
      if (!shape) {
        good = fail(kWhere, "the tensors differ in shape" + tail);
      } else if (!std::equal(tensor.strides, tensor.strides + tensor.rank, first->strides)) {
        good = fail(kWhere, "the tensors differ in strides" + tail);
      } else if (first->dtype != tensor.dtype) {
        good = fail(kWhere, "the tensors differ in dtype" + tail);
      }
    };
    for_each_tensor(call_, [&](int, int, const uba_tensor& tensor) { same(tensor); });
    for (int i = 0; i < call_.output_count; ++i) same(call_.outputs[i]);
    const std::vector<bool>& at_default = call_.schema->at_default;
    for (int arg = 0; good && arg < call_.arg_count; ++arg) {
      const uint32_t kind = call_.args[arg].kind;
      if (kind == UBA_TENSOR || kind == UBA_TENSOR_LIST || kind == UBA_NONE) continue;
      if (size_t(arg) >= at_default.size() || !at_default[size_t(arg)]) {
        good = fail(kWhere, "argument " + arg_name(call_, arg) + " is not at its default" + tail);
      }
    }
    return good;
  }

  bool ranks() {
    if (chip_.max_rank <= 0) return true;
    int64_t highest = 0;
    for_each_tensor(call_,
                    [&](int, int, const uba_tensor& tensor) { highest = std::max<int64_t>(highest, tensor.rank); });
    for (int i = 0; i < call_.output_count; ++i) highest = std::max<int64_t>(highest, call_.outputs[i].rank);
    if (highest <= chip_.max_rank) return true;
    return fail(kRank, "rank " + std::to_string(highest) + " is more than " + chip_name_ + " takes (" +
                           std::to_string(chip_.max_rank) + ")");
  }

  bool limits() {
    const Family family = family_of(call_.schema->name);
    // The batch of a matrix product is a number of matrices (heads times samples), not of samples.
    if (chip_.max_batch > 0 && family != Family::matmul && !below("batch", "batch size", chip_.max_batch)) return false;
    return chip_.max_sequence <= 0 || below("seq_len", "sequence length", chip_.max_sequence);
  }

  bool below(const char* quantity, const char* words, int64_t limit) {
    for (double value : derived_quantity(call_, quantity)) {
      if (value > double(limit)) {
        return fail(kLimit, std::string(words) + " " + number_text(value) + " is more than " + chip_name_ + " takes (" +
                                std::to_string(limit) + ")");
      }
    }
    return true;
  }

  bool layouts() {
    if (row_.layouts.empty()) return true;
    bool good = true;
    for_each_tensor(call_, [&](int arg, int element, const uba_tensor& tensor) {
      if (!good || numel(tensor) == 0) return;
      std::string contiguous_name, listed;
      bool matches = false, contiguous_listed = false;
      for (const std::string& layout : row_.layouts) {
        if (layout.size() != size_t(tensor.rank)) continue;
        matches = matches || layout_matches(tensor, layout);
        contiguous_listed = contiguous_listed || is_logical_order(layout);
        listed += (listed.empty() ? "" : ", ") + layout;
      }
      if (matches || listed.empty()) return;
      const std::string name = arg_name(call_, arg);
      // Layouts are stated for what flows through the operator; a weight is as good contiguous.
      const bool weight = name == "weight";
      if (weight && is_contiguous(tensor)) return;
      if (weight || contiguous_listed) {
        out_.transforms.push_back({arg, element, Transform::contiguous});
        return;
      }
      good = fail(kLayout, name + " has layout " + layout_name(tensor) + ", " + row_.kernel + " takes " + listed);
    });
    return good;
  }

  // Whether the layout is the one of a contiguous tensor: its letters in the order of the dimensions.
  static bool is_logical_order(const std::string& layout) {
    const std::string order = "NCDHW";
    return std::is_sorted(layout.begin(), layout.end(), [&](char a, char b) { return order.find(a) < order.find(b); });
  }

  bool conditions() {
    for (const Condition& condition : row_.where) {
      if (std::optional<std::string> reason = condition_fails(condition, row_.kernel, call_)) {
        return fail(kWhere, *reason, condition.why.empty() ? row_.why : condition.why);
      }
    }
    return true;
  }

  bool not_refused() {
    if (query_.refused == nullptr) return true;
    for (const auto& entry : *query_.refused) {
      if (entry.first == &row_) return fail(kRefused, entry.second);
    }
    return true;
  }

  // Allocations are aligned, so an address is if its offset is.
  void align() {
    if (chip_.alignment <= 1) return;
    auto misaligned = [&](const uba_tensor& tensor) {
      return tensor.byte_offset % chip_.alignment != 0 && numel(tensor) != 0;
    };
    for_each_tensor(call_, [&](int arg, int element, const uba_tensor& tensor) {
      if (!misaligned(tensor)) return;
      for (const Transform& known : out_.transforms) {
        if (known.arg == arg && known.element == element) return;  // the contiguous copy is aligned already
      }
      out_.transforms.push_back({arg, element, Transform::realign});
    });
    for (int i = 0; i < call_.output_count; ++i) {
      out_.realign_outputs = out_.realign_outputs || misaligned(call_.outputs[i]);
    }
  }

  const Chip& chip_;
  const std::string& chip_name_;
  const RouteTable::Query& query_;
  const CallView& call_;
  const OpPath& row_;
  Outcome out_;
};

std::string microseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g us", seconds * 1e6);
  return text;
}

std::string with_why(const std::string& reason, const std::string& why) {
  return why.empty() ? reason : reason + " (" + why + ")";
}

// Limits of the attention unit are hard: nothing is tried beyond them.
std::string beyond_attention(const Chip& chip, const CallView& call) {
  if (family_of(call.schema->name) != Family::attention) return "";
  AttentionCall asked;
  asked.what = "scaled_dot_product_attention";
  auto quantity = [&](const char* name) {
    const std::vector<double> values = derived_quantity(call, name);
    return values.empty() ? int64_t(0) : int64_t(values[0]);
  };
  asked.heads = quantity("heads");
  asked.batch = quantity("batch");
  asked.length = quantity("seq_len");
  return beyond_attention(chip, asked);
}

struct Fit {
  const OpPath* row;
  Outcome outcome;
  size_t attempt;  // in Decision::attempts
};

// Index of the cheapest fit; 0 (the first declared) unless the cost of each is known.
size_t cheapest(const std::vector<Fit>& fits, const Chip& chip, const CallView& call, std::vector<double>* costs) {
  costs->clear();
  for (const Fit& fit : fits) {
    std::optional<double> cost = estimate_seconds(*fit.row, chip, call);
    if (!cost) {
      costs->clear();
      return 0;
    }
    costs->push_back(*cost);
  }
  return size_t(std::min_element(costs->begin(), costs->end()) - costs->begin());
}

void take(Decision* decision, Path path, const std::string& target) {
  decision->path = path;
  decision->attempts.push_back({path, target, true, "", "", 0});
}

// A choice of `fallback.ops` is a path, a function (package.module:function, or the bridge), or an adapter's kernel.
bool is_path(const std::string& choice) {
  return choice.empty() || choice == "compose" || choice == "cpu" || choice == "error";
}
bool is_function(const std::string& choice) { return choice == "onnxruntime" || choice.find(':') != std::string::npos; }

// What runs instead, once no kernel of the chip does (a program may come first: that is the caller's to try).
void fall_back(const Chip& chip, const std::string& choice, bool has_own, bool unsupported_dtype, Decision* decision) {
  if (is_function(choice)) return take(decision, Path::custom, choice);
  const std::string& next = is_path(choice) ? choice : chip.fallback_default;
  if (next == "error" || (!has_own && unsupported_dtype && chip.on_unsupported_dtype == "error")) {
    return take(decision, Path::error, "error");
  }
  take(decision, Path::cpu, "cpu");
}

}  // namespace

const char* path_name(Path path) {
  switch (path) {
    case Path::native:
      return "native";
    case Path::composed:
      return "composed";
    case Path::custom:
      return "custom";
    case Path::cpu:
      return "cpu";
    case Path::error:
      return "error";
  }
  return "unknown";
}

RouteTable::RouteTable(const Chip& chip) : chip_(chip) {
  for (const OpPath& row : chip.ops) {
    rows_[row.op].push_back(&row);
    instructions_ |= row.op.compare(0, 5, "uba::") == 0;
  }
  for (const auto& [op, choice] : chip.fallback_ops) {
    if (is_path(choice)) continue;
    const size_t dot = op.find('.');
    const std::string base = op.substr(0, dot);
    if (is_function(choice)) {
      functions_.insert(base);
      continue;
    }
    OpPath row;
    row.op = row.declared = base;
    row.overload = dot == std::string::npos ? "" : op.substr(dot + 1);
    row.kernel = choice;
    row.dtypes.emplace_back("*", ~DtypeSet(0));
    row.custom = true;
    custom_rows_.push_back(std::move(row));
    rows_[base].push_back(&custom_rows_.back());
  }
}

const std::string& RouteTable::fallback_of(const OpSchema& schema) const {
  auto own = chip_.fallback_ops.find(schema.name + "." + schema.overload);
  if (own == chip_.fallback_ops.end()) own = chip_.fallback_ops.find(schema.name);
  return own == chip_.fallback_ops.end() ? chip_.fallback_default : own->second;
}

bool RouteTable::may_compose(const OpSchema& schema) const { return instructions_ && fallback_of(schema) == "compose"; }

const std::string& RouteTable::function_of(const OpSchema& schema) const {
  static const std::string none;
  if (functions_.count(schema.name) == 0) return none;
  const std::string& choice = fallback_of(schema);
  return is_function(choice) ? choice : none;
}

// The adapter's kernel that `fallback.ops` names, if the call is one that it may be given.
bool RouteTable::take_custom(const std::vector<const OpPath*>& rows, const Query& query, Decision* decision) const {
  const std::string& chip_name = chip_.device_type.empty() ? chip_.name : chip_.device_type;
  for (const OpPath* row : rows) {
    if (!row->custom) continue;
    Outcome outcome = RowCheck(chip_, chip_name, query, *row).run();
    if (outcome.stage == kOverload) continue;
    decision->attempts.push_back({Path::custom, row->kernel, outcome.stage == kFits, outcome.reason, "", 0});
    if (outcome.stage == kKernel) {
      decision->reason = "fallback.ops names " + row->kernel + " for " + row->op + ", and the adapter of " + chip_name +
                         " has no kernel of that name. Correct it, write package.module:function, or give a function "
                         "with torchfl.register_fallback";
      take(decision, Path::error, "error");
      return true;
    }
    if (outcome.stage != kFits) {
      decision->reason += "; " + outcome.reason;
      continue;
    }
    decision->path = Path::custom;
    decision->row = row;
    decision->transforms = std::move(outcome.transforms);
    decision->realign_outputs = outcome.realign_outputs;
    return true;
  }
  return false;
}

bool RouteTable::depends_on(const std::string& op, const std::string& arg_name) const {
  auto found = rows_.find(op);
  if (found == rows_.end()) return false;
  for (const OpPath* row : found->second) {
    if (row->canonical_only) return true;  // any argument may leave its default
    for (const Condition& condition : row->where) {
      if (condition.name == arg_name) return true;
    }
  }
  // The out channels of a transposed convolution are counted per group.
  return family_of(op) == Family::convolution && (arg_name == "transposed" || arg_name == "groups");
}

Decision RouteTable::decide(const Query& query) const {
  const CallView& call = query.call;
  const std::string& chip_name = chip_.device_type.empty() ? chip_.name : chip_.device_type;
  const std::string& choice = fallback_of(*call.schema);
  const bool own_choice = &choice != &chip_.fallback_default;
  Decision decision;
  const std::string beyond = beyond_attention(chip_, call);
  if (!beyond.empty()) {
    decision.reason = beyond;
    decision.attempts.push_back({Path::native, "attention unit", false, beyond, "", 0});
    if (chip_.attention->beyond_is_error) {
      take(&decision, Path::error, "error");
    } else {
      fall_back(chip_, choice, own_choice, false, &decision);
    }
    return decision;
  }

  auto rows = rows_.find(call.schema->name);
  if (rows == rows_.end()) {
    decision.reason = chip_name + " has no kernel for " + call.schema->name;
    decision.attempts.push_back({Path::native, chip_name, false, decision.reason, "", 0});
    fall_back(chip_, choice, own_choice, false, &decision);
    return decision;
  }

  std::vector<Fit> fits;
  int furthest = -1;
  for (const OpPath* row : rows->second) {
    if (row->custom) continue;
    Outcome outcome = RowCheck(chip_, chip_name, query, *row).run();
    decision.attempts.push_back({Path::native, row->kernel, false, outcome.reason, outcome.why, row->line});
    if (outcome.stage == kFits) {
      fits.push_back({row, std::move(outcome), decision.attempts.size() - 1});
    } else if (outcome.stage > furthest) {
      furthest = outcome.stage;
      decision.reason = with_why(outcome.reason, outcome.why);
    }
  }
  if (fits.empty()) {
    if (decision.attempts.empty()) {
      decision.reason = chip_name + " has no kernel for " + call.schema->name;
      decision.attempts.push_back({Path::native, chip_name, false, decision.reason, "", 0});
    }
    if (take_custom(rows->second, query, &decision)) return decision;
    fall_back(chip_, choice, own_choice, furthest == kDtype, &decision);
    return decision;
  }

  std::vector<double> costs;
  const size_t best = cheapest(fits, chip_, call, &costs);
  for (size_t i = 0; i < fits.size(); ++i) {
    Attempt& attempt = decision.attempts[fits[i].attempt];
    attempt.taken = i == best;
    if (i == best) continue;
    attempt.reason = costs.empty() ? fits[best].row->kernel + " fits and was declared first"
                                   : "takes " + microseconds(costs[i]) + ", " + fits[best].row->kernel + " takes " +
                                         microseconds(costs[best]);
  }
  decision.path = Path::native;
  decision.row = fits[best].row;
  decision.transforms = std::move(fits[best].outcome.transforms);
  decision.realign_outputs = fits[best].outcome.realign_outputs;
  decision.reason.clear();
  return decision;
}

}  // namespace torchfl
