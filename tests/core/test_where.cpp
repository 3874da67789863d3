// test_where.cpp: conditions, derived quantities, layouts and dtype names.
#include <sstream>

#include "call_builder.h"
#include "check.h"
#include "route_parts.h"

using namespace testing_calls;
using torchfl::Condition;
using Op = torchfl::Condition::Op;

namespace {

Condition condition(const std::string& name, Op op, std::vector<double> numbers,
                    std::vector<std::string> strings = {}) {
  Condition made;
  made.name = name;
  made.op = op;
  made.numbers = std::move(numbers);
  made.strings = std::move(strings);
  return made;
}

// "" if it holds.
std::string reason(const Condition& wanted, const Call& call) {
  return torchfl::condition_fails(wanted, "k", call.view()).value_or("");
}

std::string derived(const Call& call, const std::string& name) {
  return torchfl::list_text(torchfl::derived_quantity(call.view(), name));
}

uba_tensor raw(const TensorSpec& spec) {
  return {nullptr, spec.byte_offset, spec.sizes.data(), spec.strides.data(), spec.dtype, int32_t(spec.sizes.size())};
}

}  // namespace

TEST(numeric_conditions) {
  Call call("aten::foo");
  call.integer("n", 12).number("x", 0.5);
  CHECK_EQ(reason(condition("n", Op::in, {1, 12}), call), "");
  CHECK_EQ(reason(condition("n", Op::in, {1, 2, 4}), call), "n is 12, k takes 1, 2, 4");
  CHECK_EQ(reason(condition("n", Op::min, {12}), call), "");
  CHECK_EQ(reason(condition("n", Op::min, {13}), call), "n is 12, k takes at least 13");
  CHECK_EQ(reason(condition("n", Op::max, {12}), call), "");
  CHECK_EQ(reason(condition("n", Op::max, {11}), call), "n is 12, k takes at most 11");
  CHECK_EQ(reason(condition("n", Op::multiple_of, {4}), call), "");
  CHECK_EQ(reason(condition("n", Op::multiple_of, {16}), call), "n is 12, k takes multiples of 16");
  CHECK_EQ(reason(condition("n", Op::equals, {12}), call), "");
  CHECK_EQ(reason(condition("n", Op::equals, {1}), call), "n is 12, k takes only 1");
  CHECK_EQ(reason(condition("n", Op::not_in, {1, 2}), call), "");
  CHECK_EQ(reason(condition("n", Op::not_in, {12, 13}), call), "n is 12, k takes anything but 12, 13");
  CHECK_EQ(reason(condition("x", Op::max, {0.25}), call), "x is 0.5, k takes at most 0.25");
}

TEST(lists_hold_if_each_element_does) {
  Call call("aten::foo");
  call.ints("stride", {2, 2}).ints("pad", {1, 3}).ints("empty", {});
  CHECK_EQ(reason(condition("stride", Op::in, {1, 2}), call), "");
  CHECK_EQ(reason(condition("stride", Op::in, {1, 3}), call), "stride is 2, k takes 1, 3");
  CHECK_EQ(reason(condition("pad", Op::max, {2}), call), "pad is [1, 3], k takes at most 2");
  CHECK_EQ(reason(condition("pad", Op::equals, {1, 3}), call), "");
  CHECK_EQ(reason(condition("pad", Op::equals, {3, 1}), call), "pad is [1, 3], k takes only [3, 1]");
  CHECK_EQ(reason(condition("stride", Op::equals, {2}), call), "");
  CHECK_EQ(reason(condition("empty", Op::equals, {2}), call), "");
}

TEST(strings_bools_dtypes_and_what_is_absent) {
  Call call("aten::foo");
  call.text("mode", "bilinear").integer("flag", 1).integer("dtype", UBA_DTYPE_FLOAT16).none("scale");
  CHECK_EQ(reason(condition("mode", Op::in, {}, {"nearest", "bilinear"}), call), "");
  CHECK_EQ(reason(condition("mode", Op::in, {}, {"nearest"}), call), "mode is 'bilinear', k takes 'nearest'");
  CHECK_EQ(reason(condition("mode", Op::not_in, {}, {"nearest"}), call), "");
  CHECK_EQ(reason(condition("flag", Op::equals, {0}), call), "flag is 1, k takes only 0");
  CHECK_EQ(reason(condition("dtype", Op::in, {}, {"float16"}), call), "");
  CHECK_EQ(reason(condition("dtype", Op::in, {}, {"float32"}), call), "dtype is 'float16', k takes 'float32'");
  CHECK_EQ(reason(condition("scale", Op::equals, {3}), call), "");
}

TEST(what_cannot_be_compared_does_not_hold) {
  Call call("aten::foo");
  call.arg("self", f32({2})).complex("z");
  CHECK_EQ(reason(condition("self", Op::max, {3}), call), "self is a tensor, k takes at most 3");
  CHECK_EQ(reason(condition("z", Op::max, {3}), call), "z is a complex number, k takes at most 3");
  CHECK_EQ(reason(condition("K", Op::max, {3}), call), "K cannot be told from this call, k takes at most 3");
}

TEST(quantities_of_matrix_products) {
  Call plain = mm(f16({3, 5}), f16({5, 7}));
  CHECK_EQ(derived(plain, "M") + " " + derived(plain, "N") + " " + derived(plain, "K"), "3 7 5");
  CHECK_EQ(derived(plain, "batch"), "");
  CHECK_EQ(derived(plain, "heads"), "");
  Call with_bias("aten::addmm");
  with_bias.arg("self", f16({7})).arg("mat1", f16({3, 5})).arg("mat2", f16({5, 7}));
  CHECK_EQ(derived(with_bias, "M") + " " + derived(with_bias, "N") + " " + derived(with_bias, "K"), "3 7 5");
  Call batched("aten::baddbmm");
  batched.arg("self", f16({2, 3, 7})).arg("batch1", f16({2, 3, 5})).arg("batch2", f16({2, 5, 7}));
  CHECK_EQ(derived(batched, "batch") + " " + derived(batched, "M") + " " + derived(batched, "K"), "2 3 5");
  Call bmm("aten::bmm");
  bmm.arg("self", f16({4, 3, 5})).arg("mat2", f16({4, 5, 7}));
  CHECK_EQ(derived(bmm, "batch") + " " + derived(bmm, "N"), "4 7");
}

TEST(quantities_of_convolutions) {
  Call call = convolution(f16({8, 6, 32, 32}), f16({12, 3, 3, 5}), {1, 1}, 2);
  CHECK_EQ(derived(call, "batch"), "8");
  CHECK_EQ(derived(call, "channels") + derived(call, "in_channels"), "66");
  CHECK_EQ(derived(call, "out_channels"), "12");
  CHECK_EQ(derived(call, "kernel_size"), "3, 5");
  Call transposed = convolution(f16({8, 6, 32, 32}), f16({6, 4, 3, 3}), {1, 1}, 2, 1);
  CHECK_EQ(derived(transposed, "out_channels"), "8");
  Call backward("aten::convolution_backward_overrideable");
  backward.arg("grad_output", f16({8, 12, 32, 32})).arg("input", f16({8, 6, 32, 32})).arg("weight", f16({12, 6, 3, 3}));
  CHECK_EQ(derived(backward, "in_channels") + " " + derived(backward, "out_channels"), "6 12");
}

TEST(quantities_of_pools_norms_and_attention) {
  Call pool("aten::max_pool2d_with_indices");
  pool.arg("self", f16({8, 6, 32, 32}));
  CHECK_EQ(derived(pool, "batch") + " " + derived(pool, "channels"), "8 6");
  Call single("aten::avg_pool2d");
  single.arg("self", f16({6, 32, 32}));
  CHECK_EQ(derived(single, "batch") + " " + derived(single, "channels"), "1 6");
  Call pool_backward("aten::_adaptive_avg_pool2d_backward");
  pool_backward.arg("grad_output", f16({8, 6, 1, 1})).arg("self", f16({8, 6, 4, 4}));
  CHECK_EQ(derived(pool_backward, "batch"), "8");
  Call norm("aten::native_batch_norm");
  norm.arg("input", f16({8, 6, 32, 32})).arg("weight", f32({6}));
  CHECK_EQ(derived(norm, "batch") + " " + derived(norm, "channels"), "8 6");
  Call sdpa = attention(f16({2, 8, 100, 64}), f16({2, 8, 120, 64}));
  CHECK_EQ(derived(sdpa, "batch") + " " + derived(sdpa, "heads"), "2 8");
  CHECK_EQ(derived(sdpa, "seq_len") + " " + derived(sdpa, "head_dim"), "120 64");
}

TEST(quantities_of_any_operator) {
  Call call = add(f16({3, 4}), offset(strided(f16({3, 4}), {1, 3}), 8));
  CHECK_EQ(derived(call, "numel") + " " + derived(call, "rank"), "12 2");
  CHECK_EQ(derived(call, "contiguous"), "1, 0");
  CHECK_EQ(derived(call, "offset"), "0, 4");
  CHECK_EQ(derived(call, "zero_dim"), "0, 0");
  Call none("aten::rand");
  none.ints("size", {3});
  CHECK_EQ(derived(none, "numel"), "");
  Call list("aten::cat");
  list.list("tensors", {f16({2}), f16({3})});
  CHECK_EQ(derived(list, "contiguous"), "1, 1");
}

TEST(layout_names) {
  auto name = [](TensorSpec spec) {
    const uba_tensor tensor = raw(spec);
    return torchfl::layout_name(tensor);
  };
  for (const char* layout : {"NCHW", "NHWC", "NHCW", "CNHW", "WHCN"}) {
    TensorSpec spec = in_layout(f16({2, 3, 4, 5}), layout);
    const uba_tensor tensor = raw(spec);
    CHECK_EQ(torchfl::layout_name(tensor), layout);
    CHECK(torchfl::layout_matches(tensor, layout));
    CHECK_EQ(torchfl::is_contiguous(tensor), std::string(layout) == "NCHW");
    CHECK(!torchfl::layout_matches(tensor, "NCH"));
    CHECK(!torchfl::layout_matches(tensor, "NCHX"));
  }
  CHECK_EQ(name(in_layout(f16({2, 3, 4, 5, 6}), "NDHWC")), "NDHWC");
  CHECK_EQ(name(strided(f16({2, 3, 4, 5}), {120, 40, 10, 2})), "strided");
  CHECK_EQ(name(strided(f16({2, 3, 4, 5}), {0, 20, 5, 1})), "strided");
  CHECK_EQ(name(strided(f16({7}), {1})), "contiguous");
  CHECK_EQ(name(strided(f16({7}), {2})), "strided");
  CHECK_EQ(name(strided(f16({}), {})), "contiguous");
  CHECK_EQ(name(strided(f16({2, 3, 4}), {12, 1, 3})), "NWC");
  CHECK_EQ(name(strided(f16({2, 3}), {1, 2})), "CN");
}

TEST(dimensions_of_size_one_have_no_order) {
  TensorSpec spec = strided(f16({2, 3, 1, 1}), {3, 1, 3, 3});
  const uba_tensor tensor = raw(spec);
  CHECK(torchfl::layout_matches(tensor, "NCHW"));
  CHECK(torchfl::layout_matches(tensor, "NHWC"));
  CHECK(torchfl::is_contiguous(tensor));
  TensorSpec empty = strided(f16({0, 3, 4, 5}), {9, 9, 9, 9});
  CHECK(torchfl::layout_matches(raw(empty), "NHWC"));
}

TEST(dtype_names_round_trip) {
  for (int32_t dtype = 1; dtype <= UBA_DTYPE_COMPLEX32; ++dtype) {
    CHECK_EQ(torchfl::dtype_from_name(torchfl::dtype_name(dtype)), dtype);
    CHECK(torchfl::dtype_size(dtype) > 0);
  }
  CHECK_EQ(torchfl::dtype_from_name("fp16"), 0);
  CHECK_EQ(std::string(torchfl::dtype_name(99)), "unknown dtype");
  CHECK_EQ(torchfl::dtype_size(0), int64_t(0));
  CHECK_EQ(torchfl::dtype_set_text(torchfl::dtype_bit(UBA_DTYPE_INT8) | torchfl::dtype_bit(UBA_DTYPE_FLOAT16)),
           "float16, int8");
}

int main(int argc, char** argv) { return check::run_tests(argc, argv); }
