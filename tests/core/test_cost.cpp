// test_cost.cpp: the estimate for matrix products, and when it decides.
#include <algorithm>
#include <cmath>

#include "call_builder.h"
#include "check.h"
#include "route_parts.h"

using namespace testing_calls;
using torchfl::Chip;
using torchfl::OpPath;

namespace {

OpPath row(const std::string& kernel, std::map<std::string, double> cost) {
  OpPath made;
  made.op = "aten::mm";
  made.kernel = kernel;
  made.cost = std::move(cost);
  return made;
}

Chip chip() {
  Chip made;
  made.name = made.device_type = "npu";
  made.dtypes = torchfl::dtype_bit(UBA_DTYPE_FLOAT16);
  made.fallback_default = "cpu";
  return made;
}

bool close_to(const std::optional<torchfl::Estimate>& cost, double expected) {
  return cost && std::fabs(cost->seconds - expected) <= 1e-9 * std::fabs(expected);
}

}  // namespace

TEST(the_estimate_is_launch_plus_compute_plus_memory_less_overlap) {
  const Call call = mm(f16({100, 200}), f16({200, 300}));
  const double compute = 2.0 * 100 * 200 * 300 / 1e9;
  const double memory = 2.0 * (100 * 200 + 200 * 300 + 100 * 300) / 1e8;
  OpPath plain = row("k", {{"launch", 4e-6}, {"peak", 1e9}, {"bandwidth", 1e8}});
  CHECK(close_to(torchfl::estimate(plain, chip(), call.view()), 4e-6 + compute + memory));
  plain.cost["overlap"] = 0.5;
  CHECK(close_to(torchfl::estimate(plain, chip(), call.view()),
                 4e-6 + compute + memory - 0.5 * std::min(compute, memory)));
}

TEST(prefetch_hides_memory_and_efficiency_lowers_the_peak) {
  const Call call = mm(f16({100, 200}), f16({200, 300}));
  const double compute = 2.0 * 100 * 200 * 300 / 5e8;
  const double memory = 2.0 * (100 * 200 + 200 * 300 + 100 * 300) / 1e8;
  OpPath k = row("k", {{"launch", 0}, {"peak", 1e9}, {"efficiency", 0.5}, {"bandwidth", 1e8}, {"prefetch", 1}});
  CHECK(close_to(torchfl::estimate(k, chip(), call.view()), std::max(compute, memory)));
}

TEST(tiles_round_up_and_without_reuse_are_read_again) {
  const Call call = mm(f16({65, 64}), f16({64, 64}));
  OpPath tiled =
      row("k", {{"launch", 0}, {"peak", 1e9}, {"bandwidth", 1e30}, {"tile_m", 64}, {"tile_n", 64}, {"tile_k", 64}});
  CHECK(close_to(torchfl::estimate(tiled, chip(), call.view()), 2.0 * 128 * 64 * 64 / 1e9));
  tiled.cost["peak"] = 1e30;
  tiled.cost["bandwidth"] = 1e9;
  CHECK(close_to(torchfl::estimate(tiled, chip(), call.view()), 2.0 * (128 * 64 + 2 * 64 * 64 + 65 * 64) / 1e9));
  tiled.cost["reuse"] = 1;
  CHECK(close_to(torchfl::estimate(tiled, chip(), call.view()), 2.0 * (65 * 64 + 64 * 64 + 65 * 64) / 1e9));
}

TEST(what_does_not_fit_the_cache_comes_again) {
  const Call call = mm(f16({256, 64}), f16({64, 128}));
  const double left = 2.0 * 256 * 64, right = 2.0 * 64 * 128, out = 2.0 * 256 * 128;
  OpPath k = row("k", {{"launch", 0}, {"peak", 1e30}, {"bandwidth", 1e9}, {"reuse", 1}, {"cache", left + right}});
  CHECK(close_to(torchfl::estimate(k, chip(), call.view()), (left + right + out) / 1e9));
  k.cost["cache"] = left;  // the left factor in two halves, and the right one for each of them
  CHECK(close_to(torchfl::estimate(k, chip(), call.view()), (left + 2 * right + out) / 1e9));
}

TEST(each_tile_of_each_product_has_to_start) {
  const Call call = mm(f16({65, 64}), f16({64, 128}));
  OpPath k = row(
      "k",
      {{"launch", 1e-6}, {"peak", 1e30}, {"bandwidth", 1e30}, {"tile_m", 64}, {"tile_n", 64}, {"tile_start", 1e-3}});
  CHECK(close_to(torchfl::estimate(k, chip(), call.view()), 1e-6 + 4e-3));
}

TEST(a_power_cap_slows_down) {
  const Call call = mm(f16({100, 100}), f16({100, 100}));
  OpPath k = row("k", {{"launch", 0}, {"peak", 1e9}, {"bandwidth", 1e30}, {"energy", 1e-9}});  // one watt at its peak
  Chip npu = chip();
  const double free = 2e6 / 1e9;
  npu.power_cap = 2;
  CHECK(close_to(torchfl::estimate(k, npu, call.view()), free));
  npu.power_cap = 0.25;
  CHECK(close_to(torchfl::estimate(k, npu, call.view()), 4 * free));
}

TEST(unknown_is_unknown) {
  const Call call = mm(f16({4, 4}), f16({4, 4}));
  CHECK(!torchfl::estimate(row("k", {{"launch", 1e-6}}), chip(), call.view()));
  CHECK(!torchfl::estimate(row("k", {{"launch", 1e-6}, {"peak", 1e9}}), chip(), call.view()));
  CHECK(!torchfl::estimate(row("k", {{"peak", 1e9}, {"bandwidth", 1e9}}), chip(), call.view()));
  Chip with_overhead = chip();
  with_overhead.launch_overhead = 1e-6;
  CHECK(bool(torchfl::estimate(row("k", {{"peak", 1e9}, {"bandwidth", 1e9}}), with_overhead, call.view())));
  OpPath known = row("k", {{"launch", 1e-6}, {"peak", 1e9}, {"bandwidth", 1e9}});
  CHECK(!torchfl::estimate(known, chip(), add(f16({4}), f16({4})).view()));
}

TEST(the_cheapest_wins_if_each_cost_is_known) {
  Chip npu = chip();
  npu.ops = {row("tiled", {{"launch", 9e-6}, {"peak", 1e12}, {"bandwidth", 1e11}}),
             row("small", {{"launch", 1e-6}, {"peak", 1e10}, {"bandwidth", 1e11}})};
  torchfl::RouteTable table(npu);
  auto kernel = [&](int64_t n) {
    Call call = mm(f16({n, n}), f16({n, n}));
    return table.decide({call.view(), nullptr, nullptr, nullptr}).row->kernel;
  };
  CHECK_EQ(kernel(8), "small");
  CHECK_EQ(kernel(1024), "tiled");
  Call call = mm(f16({8, 8}), f16({8, 8}));
  torchfl::Decision decision = table.decide({call.view(), nullptr, nullptr, nullptr});
  CHECK_CONTAINS(decision.attempts[0].reason, "takes 9 us, small takes 1.11 us");
  npu.ops[1].cost.erase("peak");
  CHECK_EQ(kernel(8), "tiled");  // one is unknown: the declared order
}

TEST(the_text_names_the_parts_and_what_the_cache_holds) {
  const Call call = mm(f16({128, 64}), f16({64, 32}));  // factors of 16 KiB and 4 KiB
  OpPath k = row("k", {{"launch", 2e-6}, {"peak", 1e12}, {"bandwidth", 1e9}, {"reuse", 1}, {"cache", 32 << 10}});
  CHECK_EQ(torchfl::cost_text(*torchfl::estimate(k, chip(), call.view())),
           "31.2 us = 2 us launch + (0.524 us compute + 28.7 us memory); "
           "both factors (20 KiB) fit in the cache of 32 KiB and are read once");
  k.cost["cache"] = 8 << 10;
  k.cost["overlap"] = 1;
  CHECK_EQ(torchfl::cost_text(*torchfl::estimate(k, chip(), call.view())),
           "43 us = 2 us launch + (0.524 us compute + 41 us memory - 0.524 us overlapped); both factors (20 KiB) are "
           "more than the cache of 8 KiB: with parts of the left one (16 KiB) in half of it, the right one is read 4 "
           "times");
}

TEST(a_tie_goes_to_the_first_declared) {
  Chip npu = chip();
  const std::map<std::string, double> same = {{"launch", 1e-6}, {"peak", 1e9}, {"bandwidth", 1e9}};
  npu.ops = {row("first", same), row("second", same)};
  Call call = mm(f16({8, 8}), f16({8, 8}));
  CHECK_EQ(torchfl::RouteTable(npu).decide({call.view(), nullptr, nullptr, nullptr}).row->kernel, "first");
}

int main(int argc, char** argv) { return check::run_tests(argc, argv); }
