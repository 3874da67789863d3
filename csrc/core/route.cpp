// route.cpp: walks the rows of an operator and says which fits, or of each why not.
//
// Contract: see route.h. Rows are tried in declared order and the first that fits wins, unless the cost of every
// fitting row is known (cost.cpp). Checks (row_check.cpp) run from the general to the particular, and the reason that
// is reported to the user is that of the row that got furthest, because it is the nearest to what he wanted.
#include "route.h"

#include <algorithm>

#include "attention.h"
#include "route_parts.h"

namespace torchfl {
namespace {

std::string with_why(const std::string& reason, const std::string& why) {
  return why.empty() ? reason : reason + " (" + why + ")";
}

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

// The cheapest fit, with what its transforms cost. Where a cost is unknown: the first declared of those that take the
// call as it is, else the first declared.
size_t cheapest(const std::vector<Fit>& fits, std::vector<Estimate>* costs) {
  costs->clear();
  if (fits.size() < 2) return 0;
  for (const Fit& fit : fits) {
    if (fit.outcome.cost) costs->push_back(*fit.outcome.cost);
  }
  if (costs->size() == fits.size()) {
    auto less = [](const Estimate& a, const Estimate& b) { return a.seconds < b.seconds; };
    return size_t(std::min_element(costs->begin(), costs->end(), less) - costs->begin());
  }
  costs->clear();
  auto as_it_is = std::find_if(fits.begin(), fits.end(), [](const Fit& fit) { return fit.outcome.transforms.empty(); });
  return as_it_is == fits.end() ? 0 : size_t(as_it_is - fits.begin());
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

// What a function or kernel of `fallback.ops` does not serve goes on as the chip's other operators do.
bool RouteTable::may_compose(const OpSchema& schema) const {
  const std::string& choice = fallback_of(schema);
  return instructions_ && (is_path(choice) ? choice : chip_.fallback_default) == "compose";
}

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
    Outcome outcome = check_row(chip_, chip_name, query, *row);
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
    if (!outcome.reason.empty()) decision->reason += "; " + outcome.reason;
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
    Outcome outcome = check_row(chip_, chip_name, query, *row);
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

  std::vector<Estimate> costs;
  const size_t best = cheapest(fits, &costs);
  for (size_t i = 0; i < fits.size(); ++i) {
    Attempt& attempt = decision.attempts[fits[i].attempt];
    attempt.taken = i == best;
    if (!costs.empty()) attempt.cost = cost_text(costs[i]);
    if (i == best) continue;
    attempt.reason = costs.empty() ? fits[best].row->kernel +
                                         (i > best ? " fits and was declared first" : " fits without a conversion")
                                   : "takes " + microseconds(costs[i].seconds) + ", " + fits[best].row->kernel +
                                         " takes " + microseconds(costs[best].seconds);
  }
  decision.path = Path::native;
  decision.row = fits[best].row;
  decision.transforms = std::move(fits[best].outcome.transforms);
  decision.reason = fits[best].outcome.reason;
  return decision;
}

}  // namespace torchfl
