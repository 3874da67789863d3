// cost.cpp: how long one kernel takes for one matrix product, from the constants of its descriptor row.
//
// Contract: t = launch + batch * (starts + compute + memory - overlap * min(compute, memory)), in seconds. What is not
// stated is unknown, never 0: without `peak` and `bandwidth` there is no estimate and the declared order decides.
//   starts   tile_start (s) for each tile of the result: filling and draining the unit
//   compute  operations (a multiply-add is two), with M, N, K rounded up to tiles, at efficiency * peak
//   memory   bytes at `bandwidth`. Without `reuse`, each factor is read again for each row or column of tiles of the
//            result. With it, what was read stays in the cache: the right factor comes once for each part of the left
//            one that fits in half of the cache, and once if both fit.
//   power    where the descriptor has a cap, and the row or its unit an energy, t is at least energy / cap: the chip
//            slows down until it holds.
// Keys of OpPath::cost, all SI: launch (s), tile_start (s), peak or peak_<dtype> (op/s; of the first factor's dtype),
// energy or energy_<dtype> (J/op), energy_byte (J/byte), efficiency (0..1, of the peak: 1), bandwidth (byte/s), cache
// (bytes), tile_m, tile_n, tile_k (elements), overlap (0..1: the share of the shorter part that hides behind the
// longer: 1 with prefetch, else 0), reuse (1: as above).
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "route_parts.h"

namespace torchfl {
namespace {

double term(const OpPath& row, const std::string& key, double otherwise) {
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

// How often the right factor is read when parts of the left one are kept in the cache.
double passes(double left, double right, double cache) {
  if (cache <= 0 || left + right <= cache) return 1;
  return std::max(1.0, std::ceil(left / (cache / 2)));
}

std::string amount(double bytes) {
  static const std::pair<const char*, double> kUnits[] = {{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}};
  char text[32];
  for (const auto& [unit, factor] : kUnits) {
    if (bytes < factor) continue;
    std::snprintf(text, sizeof(text), "%.4g %s", bytes / factor, unit);
    return text;
  }
  std::snprintf(text, sizeof(text), "%.0f B", bytes);
  return text;
}

std::string times(double count) { return count == 1 ? "once" : number_text(count) + " times"; }

// Which of the three cases of the memory term it was.
std::string cache_text(const Estimate& cost) {
  if (!cost.reuse)
    return "nothing is kept: the left factor is read " + times(cost.left_reads) + ", the right one " +
           times(cost.right_reads);
  if (cost.cache <= 0) return "the cache's size is not stated: each factor is taken to be read once";
  if (cost.left + cost.right <= cost.cache)
    return "both factors (" + amount(cost.left + cost.right) + ") fit in the cache of " + amount(cost.cache) +
           " and are read once";
  return "both factors (" + amount(cost.left + cost.right) + ") are more than the cache of " + amount(cost.cache) +
         ": with parts of the left one (" + amount(cost.left) + ") in half of it, the right one is read " +
         times(cost.right_reads);
}

}  // namespace

std::string microseconds(double seconds) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.3g us", seconds * 1e6);
  return text;
}

std::string cost_text(const Estimate& cost) {
  std::string text = microseconds(cost.seconds) + " = " + microseconds(cost.launch) + " launch + ";
  if (cost.batch != 1) text += number_text(cost.batch) + " x ";
  text += "(";
  if (cost.starts > 0) text += microseconds(cost.starts) + " tile starts + ";
  text += microseconds(cost.compute) + " compute + " + microseconds(cost.memory) + " memory";
  if (cost.hidden > 0) text += " - " + microseconds(cost.hidden) + " overlapped";
  text += ")";
  if (cost.transforms > 0) text += " + " + microseconds(cost.transforms) + " conversions";
  return text + (cost.capped ? ", held back by the power cap" : "") + "; " + cache_text(cost);
}

std::optional<Estimate> estimate(const OpPath& row, const Chip& chip, const CallView& call) {
  if (family_of(call.schema->name) != Family::matmul) return std::nullopt;
  const std::vector<double> of_m = derived_quantity(call, "M"), of_n = derived_quantity(call, "N"),
                            of_k = derived_quantity(call, "K"), of_batch = derived_quantity(call, "batch");
  const int32_t dtype = element_dtype(call);
  const std::string suffix = std::string("_") + dtype_name(dtype);
  const double peak = term(row, "peak" + suffix, term(row, "peak", 0)) * term(row, "efficiency", 1);
  const double bandwidth = term(row, "bandwidth", 0);
  const double launch = term(row, "launch", chip.launch_overhead > 0 ? chip.launch_overhead : -1);
  if (of_m.empty() || of_n.empty() || of_k.empty() || peak <= 0 || bandwidth <= 0 || launch < 0) return std::nullopt;

  const double m = of_m[0], n = of_n[0], k = of_k[0], batch = of_batch.empty() ? 1 : of_batch[0];
  const double size = double(dtype_size(dtype));
  const double tile_m = term(row, "tile_m", 0), tile_n = term(row, "tile_n", 0), tile_k = term(row, "tile_k", 0);
  const double operations = 2 * padded(m, tile_m) * padded(n, tile_n) * padded(k, tile_k);
  Estimate out;
  out.reuse = term(row, "reuse", 0) > 0;
  out.cache = term(row, "cache", 0);
  out.left = (out.reuse ? m : padded(m, tile_m)) * k * size;
  out.right = k * (out.reuse ? n : padded(n, tile_n)) * size;
  out.left_reads = out.reuse ? 1 : tiles(n, tile_n);
  out.right_reads = out.reuse ? passes(out.left, out.right, out.cache) : tiles(m, tile_m);
  const double bytes = m * n * size + out.left * out.left_reads + out.right * out.right_reads;
  const double overlap = term(row, "overlap", term(row, "prefetch", 0) > 0 ? 1 : 0);
  out.launch = launch;
  out.batch = batch;
  out.compute = operations / peak;
  out.memory = bytes / bandwidth;
  out.starts = term(row, "tile_start", 0) * tiles(m, tile_m) * tiles(n, tile_n);
  out.hidden = overlap * std::min(out.compute, out.memory);
  out.seconds = launch + batch * (out.starts + out.compute + out.memory - out.hidden);

  const double each = term(row, "energy", term(row, "energy" + suffix, 0));
  const double energy = batch * (operations * each + bytes * term(row, "energy_byte", 0));
  out.capped = chip.power_cap > 0 && energy / chip.power_cap > out.seconds;
  if (out.capped) out.seconds = energy / chip.power_cap;
  return out;
}

std::optional<double> transform_seconds(const OpPath& row, const Chip& chip, const CallView& call,
                                        const std::vector<Transform>& transforms) {
  double seconds = 0;
  const double bandwidth = term(row, "bandwidth", 0);
  for (const Transform& transform : transforms) {
    if (bandwidth <= 0 || chip.launch_overhead <= 0) return std::nullopt;
    // A weight is transformed once, and its stand-in kept until it changes.
    if (!transform.is_output && arg_name(call, transform.arg) == "weight") continue;
    const uba_tensor& tensor =
        transform.is_output ? call.outputs[transform.arg] : call.args[transform.arg].v.tensor[transform.element];
    double elements = 1;
    for (int64_t size : transform.sizes) elements *= double(size);
    const double bytes =
        double(numel(tensor)) * double(dtype_size(tensor.dtype)) + elements * double(dtype_size(transform.dtype));
    const int commands = (transform.why & Transform::padded) != 0 ? 2 : 1;
    seconds += commands * chip.launch_overhead + bytes / bandwidth;
  }
  return seconds;
}

}  // namespace torchfl
