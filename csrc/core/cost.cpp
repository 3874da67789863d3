// cost.cpp: how long one kernel takes for one matrix product, from the constants of its descriptor row.
//
// Contract: t = launch + compute + memory - overlap * min(compute, memory), in seconds. What is not stated is unknown,
// never 0: without `peak` and `bandwidth` there is no estimate and the declared order decides. Keys of OpPath::cost,
// all SI: launch (s), peak or peak_<dtype> (op/s, a multiply-add is two; of the first factor's dtype if given),
// efficiency (0..1, of the peak: 1), bandwidth (byte/s),
// tile_m, tile_n, tile_k (elements), overlap (0..1: the share of the shorter part that hides behind the longer: 1 with
// prefetch, else 0), reuse (1: a tile once read stays on the chip, else it is read again for each tile of the other
// factor).
#include <algorithm>
#include <cmath>

#include "route_parts.h"

namespace torchfl {
namespace {

double term(const OpPath& row, const char* key, double otherwise) {
  auto found = row.cost.find(key);
  return found == row.cost.end() ? otherwise : found->second;
}

double tiles(double size, double tile) { return tile > 0 ? std::ceil(size / tile) : 1; }

double padded(double size, double tile) { return tile > 0 ? std::ceil(size / tile) * tile : size; }

int32_t element_dtype(const CallView& call) {
  int32_t dtype = 0;
  for_each_tensor(call, [&](int, int, const uba_tensor& tensor) {
    if (dtype == 0) dtype = tensor.dtype;
  });
  return dtype;
}

}  // namespace

std::optional<double> estimate_seconds(const OpPath& row, const Chip& chip, const CallView& call) {
  if (family_of(call.schema->name) != Family::matmul) return std::nullopt;
  const std::vector<double> m = derived_quantity(call, "M"), n = derived_quantity(call, "N"),
                            k = derived_quantity(call, "K"), batch = derived_quantity(call, "batch");
  const int32_t dtype = element_dtype(call);
  const std::string own_peak = std::string("peak_") + dtype_name(dtype);
  const double peak = term(row, own_peak.c_str(), term(row, "peak", 0)) * term(row, "efficiency", 1);
  const double bandwidth = term(row, "bandwidth", 0);
  const double launch = term(row, "launch", chip.launch_overhead > 0 ? chip.launch_overhead : -1);
  if (m.empty() || n.empty() || k.empty() || peak <= 0 || bandwidth <= 0 || launch < 0) return std::nullopt;

  const double count = batch.empty() ? 1 : batch[0];
  const double tile_m = term(row, "tile_m", 0), tile_n = term(row, "tile_n", 0), tile_k = term(row, "tile_k", 0);
  const double operations = 2 * count * padded(m[0], tile_m) * padded(n[0], tile_n) * padded(k[0], tile_k);
  const bool reuse = term(row, "reuse", 0) > 0;
  const double left = m[0] * k[0] * (reuse ? 1 : tiles(n[0], tile_n));
  const double right = k[0] * n[0] * (reuse ? 1 : tiles(m[0], tile_m));
  const double bytes = count * double(dtype_size(dtype)) * (left + right + m[0] * n[0]);
  const double compute = operations / peak, memory = bytes / bandwidth;
  const double overlap = term(row, "overlap", term(row, "prefetch", 0) > 0 ? 1 : 0);
  return launch + compute + memory - overlap * std::min(compute, memory);
}

}  // namespace torchfl
