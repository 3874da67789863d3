// route_parts.h: what route.cpp is put together from. Private to the core.
//
// Contract: pure functions, like route.h.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "route.h"

namespace torchfl {

inline constexpr DtypeSet kFloatingDtypes =
    DtypeSet(1) << UBA_DTYPE_FLOAT16 | DtypeSet(1) << UBA_DTYPE_BFLOAT16 | DtypeSet(1) << UBA_DTYPE_FLOAT32 |
    DtypeSet(1) << UBA_DTYPE_FLOAT64 | DtypeSet(1) << UBA_DTYPE_COMPLEX32 | DtypeSet(1) << UBA_DTYPE_COMPLEX64 |
    DtypeSet(1) << UBA_DTYPE_COMPLEX128 | DtypeSet(1) << UBA_DTYPE_FLOAT8_E4M3FN | DtypeSet(1) << UBA_DTYPE_FLOAT8_E5M2;
inline constexpr DtypeSet kIndexDtypes =
    DtypeSet(1) << UBA_DTYPE_INT32 | DtypeSet(1) << UBA_DTYPE_INT64 | DtypeSet(1) << UBA_DTYPE_BOOL;

inline int64_t numel(const uba_tensor& tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor.rank; ++i) count *= tensor.sizes[i];
  return count;
}

// Calls `function(arg, element, tensor)` for every tensor argument that is there.
template <typename Function>
void for_each_tensor(const CallView& call, Function function) {
  for (int arg = 0; arg < call.arg_count; ++arg) {
    const uba_value& value = call.args[arg];
    if (value.kind != UBA_TENSOR && value.kind != UBA_TENSOR_LIST) continue;
    const int count = value.kind == UBA_TENSOR ? 1 : int(value.count);
    for (int element = 0; element < count; ++element) {
      if (value.v.tensor[element].dtype != 0) function(arg, element, value.v.tensor[element]);
    }
  }
}

// Position of an argument in the schema, -1 if there is none of that name.
int find_arg(const CallView& call, const std::string& name);
std::string arg_name(const CallView& call, int arg);

// Families of operators that share derived quantities and hard limits.
enum class Family { other, matmul, convolution, pool, norm, attention };
Family family_of(const std::string& op);

std::string number_text(double value);              // "3", "0.5"
std::string list_text(const std::vector<double>&);  // "1, 2, 4"

// Why `condition` does not hold, without the author's sentence; nullopt if it holds.
std::optional<std::string> condition_fails(const Condition& condition, const std::string& kernel, const CallView& call);

// What a row is estimated to take for a call, and the parts of it; see cost.cpp.
struct Estimate {
  double seconds = 0;
  double launch = 0, batch = 1, starts = 0, compute = 0, memory = 0, hidden = 0;  // s, but `batch`
  bool reuse = false, capped = false;
  double left = 0, right = 0, cache = 0;   // bytes of the factors, and of the cache that keeps them
  double left_reads = 1, right_reads = 1;  // how often each is fetched
  double transforms = 0;                   // s: preparing arguments, and putting results in their place
};
// nullopt = unknown.
std::optional<Estimate> estimate(const OpPath& row, const Chip& chip, const CallView& call);
std::string cost_text(const Estimate& cost);  // one line for the user
std::string microseconds(double seconds);     // "12.3 us"
// Seconds that the transforms add; nullopt = unknown, 0 without any.
std::optional<double> transform_seconds(const OpPath& row, const Chip& chip, const CallView& call,
                                        const std::vector<Transform>& transforms);

// How far a row got; the order of the checks.
enum Stage { kOverload, kKernel, kDtype, kRank, kLimit, kLayout, kWhere, kRefused, kFits };

struct Outcome {
  Stage stage = kFits;
  std::string reason;  // why it does not fit; if it does, what the transforms do
  std::string why;     // the descriptor author's sentence
  std::vector<Transform> transforms;
  std::optional<Estimate> cost;  // of the kernel on what it will be given, and of the transforms
};
// One row against one call (row_check.cpp).
Outcome check_row(const Chip& chip, const std::string& chip_name, const RouteTable::Query& query, const OpPath& row);

}  // namespace torchfl
