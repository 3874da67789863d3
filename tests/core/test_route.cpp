// test_route.cpp: which path a call takes on a null chip, what must be done to its tensors, and why not the others.
#include <deque>
#include <set>

#include "call_builder.h"
#include "check.h"
#include "route.h"

using namespace testing_calls;
using torchfl::Chip;
using torchfl::Condition;
using torchfl::Decision;
using torchfl::dtype_bit;
using torchfl::OpPath;
using torchfl::Path;
using torchfl::RouteTable;
using torchfl::Transform;

namespace {

constexpr auto F16 = torchfl::DtypeSet(1) << UBA_DTYPE_FLOAT16;
constexpr auto F32 = torchfl::DtypeSet(1) << UBA_DTYPE_FLOAT32;
constexpr auto I64 = torchfl::DtypeSet(1) << UBA_DTYPE_INT64;

OpPath row(const std::string& op, const std::string& kernel) {
  OpPath made;
  made.op = made.declared = op;
  made.kernel = kernel;
  return made;
}

Condition where(const std::string& name, Condition::Op op, std::vector<double> numbers, const std::string& why = "") {
  Condition made;
  made.name = name;
  made.op = op;
  made.numbers = std::move(numbers);
  made.why = why;
  return made;
}

Chip chip() {
  Chip made;
  made.name = "NPU-V3";
  made.device_type = "npu_v3";
  made.alignment = 256;
  made.max_rank = 6;
  made.dtypes = F16;
  made.fallback_default = "cpu";
  return made;
}

OpPath conv_row() {
  OpPath made = row("aten::convolution_overrideable", "npu_v3_conv2d");
  made.layouts = {"NCHW", "NHWC"};
  made.where = {where("stride", Condition::Op::in, {1, 2, 4}), where("kernel_size", Condition::Op::max, {11})};
  made.why = "the convolution unit steps by 1, 2 or 4";
  made.line = 21;
  return made;
}

Decision decide(const Chip& chip, const Call& call) {
  static std::deque<RouteTable> tables;  // a decision's row may be the table's own
  return tables.emplace_back(chip).decide({call.view(), nullptr, nullptr, nullptr});
}

}  // namespace

TEST(a_call_that_fits_runs_natively) {
  Chip npu = chip();
  npu.ops = {row("aten::add", "npu_v3_add")};
  Call call = add(f16({4, 4}), f16({4, 4}));
  call.out(f16({4, 4}));
  Decision decision = decide(npu, call);
  CHECK(decision.path == Path::native);
  CHECK(decision.row == &npu.ops[0]);
  CHECK_EQ(decision.reason, "");
  CHECK(decision.transforms.empty());
  CHECK_EQ(decision.attempts.size(), size_t(1));
  CHECK(decision.attempts[0].taken);
  CHECK_EQ(decision.attempts[0].target, "npu_v3_add");
}

TEST(an_operator_without_a_row_goes_to_the_cpu) {
  Decision decision = decide(chip(), add(f16({4}), f16({4})));
  CHECK(decision.path == Path::cpu);
  CHECK_EQ(decision.reason, "npu_v3 has no kernel for aten::add");
  CHECK_EQ(decision.attempts.size(), size_t(2));
  CHECK(!decision.attempts[0].taken && decision.attempts[0].path == Path::native);
  CHECK(decision.attempts[1].taken && decision.attempts[1].path == Path::cpu);
}

TEST(dtypes_of_the_chip_apply_to_a_row_without_its_own) {
  Chip npu = chip();
  npu.ops = {row("aten::add", "npu_v3_add")};
  Decision decision = decide(npu, add(f32({4}), f32({4})));
  CHECK(decision.path == Path::cpu);
  CHECK_EQ(decision.reason, "float32 is not a dtype of npu_v3_add (float16)");
}

TEST(dtypes_of_the_row_win_over_the_chips) {
  Chip npu = chip();
  npu.ops = {row("aten::add", "npu_v3_add")};
  npu.ops[0].dtypes = {{"*", F32 | F16}};
  CHECK(decide(npu, add(f32({4}), f32({4}))).path == Path::native);
  CHECK(decide(npu, add(f32({4}), f16({4}))).path == Path::native);
  CHECK_EQ(decide(npu, add(tensor(UBA_DTYPE_FLOAT64, {4}), f32({4}))).reason,
           "float64 is not a dtype of npu_v3_add (float16, float32)");
}

TEST(dtypes_by_argument) {
  Chip npu = chip();
  npu.ops = {row("aten::embedding", "npu_v3_gather")};
  npu.ops[0].dtypes = {{"weight", F16}, {"indices", I64}};
  auto embedding = [](TensorSpec weight, TensorSpec indices) {
    Call call("aten::embedding");
    call.arg("weight", weight).arg("indices", indices).integer("padding_idx", -1);
    return call;
  };
  CHECK(decide(npu, embedding(f16({9, 4}), i64({3}))).path == Path::native);
  CHECK_EQ(decide(npu, embedding(f16({9, 4}), tensor(UBA_DTYPE_INT32, {3}))).reason,
           "argument indices is int32, npu_v3_gather takes int64 there");
}

TEST(integers_that_say_where_are_not_computed_in) {
  Chip npu = chip();
  npu.ops = {row("aten::where", "npu_v3_select"), row("aten::add", "npu_v3_add"), row("aten::gather", "npu_v3_gather")};
  Call select("aten::where", "self");
  select.arg("condition", tensor(UBA_DTYPE_BOOL, {4})).arg("self", f16({4})).arg("other", f16({4}));
  CHECK(decide(npu, select).path == Path::native);
  CHECK_EQ(decide(npu, add(i64({4}), i64({4}))).reason, "int64 is not a dtype of npu_v3_add (float16)");
  Call gather("aten::gather");
  gather.arg("self", tensor(UBA_DTYPE_INT8, {4})).integer("dim", 0).arg("index", i64({4}));
  CHECK_EQ(decide(npu, gather).reason, "int8 is not a dtype of npu_v3_gather (float16)");
  npu.ops[2].dtypes = {{"*", dtype_bit(UBA_DTYPE_INT8)}};
  CHECK(decide(npu, gather).path == Path::native);
}

TEST(a_number_or_an_absent_tensor_has_no_dtype) {
  Chip npu = chip();
  npu.ops = {row("aten::mul", "npu_v3_mul")};
  Call call("aten::mul", "Tensor");
  call.arg("self", f16({4})).number("other", 2.5).none("maybe");
  CHECK(decide(npu, call).path == Path::native);
}

TEST(overloads) {
  Chip npu = chip();
  npu.ops = {row("aten::add", "npu_v3_add_scalar"), row("aten::add", "npu_v3_add")};
  npu.ops[0].overload = "Scalar";
  npu.ops[1].overload = "Tensor";
  Decision decision = decide(npu, add(f16({4}), f16({4})));
  CHECK_EQ(decision.row->kernel, "npu_v3_add");
  CHECK_EQ(decision.attempts[0].reason, "npu_v3_add_scalar serves the overload Scalar, called was Tensor");
  npu.ops.pop_back();
  CHECK_EQ(decide(npu, add(f16({4}), f16({4}))).reason,
           "npu_v3_add_scalar serves the overload Scalar, called was Tensor");
  npu.ops[0].op = "aten::mm";
  npu.ops[0].overload = "default";
  CHECK(decide(npu, mm(f16({2, 2}), f16({2, 2}))).path == Path::native);
}

TEST(a_kernel_that_the_adapter_lacks) {
  Chip npu = chip();
  npu.ops = {row("aten::add", "npu_v3_add"), row("aten::add", "npu_v3_add_slow")};
  Call call = add(f16({4}), f16({4}));
  std::set<std::string> have = {"npu_v3_add_slow"};
  RouteTable table(npu);
  RouteTable::Query query{call.view(),
                          [](void* context, const std::string& name) {
                            return static_cast<std::set<std::string>*>(context)->count(name) != 0;
                          },
                          &have, nullptr};
  Decision decision = table.decide(query);
  CHECK_EQ(decision.row->kernel, "npu_v3_add_slow");
  CHECK_EQ(decision.attempts[0].reason, "the adapter has no kernel npu_v3_add");
  have.clear();
  decision = table.decide(query);
  CHECK(decision.path == Path::cpu);
  CHECK_EQ(decision.reason, "the adapter has no kernel npu_v3_add");
}

TEST(rows_that_refused_at_run_time_are_passed_over) {
  Chip npu = chip();
  npu.ops = {row("aten::add", "first"), row("aten::add", "second")};
  Call call = add(f16({4}), f16({4}));
  std::vector<std::pair<const OpPath*, std::string>> refused = {{&npu.ops[0], "first refused: too odd"}};
  Decision decision = RouteTable(npu).decide({call.view(), nullptr, nullptr, &refused});
  CHECK_EQ(decision.row->kernel, "second");
  refused.push_back({&npu.ops[1], "second refused: too even"});
  decision = RouteTable(npu).decide({call.view(), nullptr, nullptr, &refused});
  CHECK(decision.path == Path::cpu);
  CHECK_EQ(decision.reason, "first refused: too odd");
}

TEST(the_rank_limit_counts_outputs_too) {
  Chip npu = chip();
  npu.max_rank = 2;
  npu.ops = {row("aten::add", "npu_v3_add")};
  CHECK_EQ(decide(npu, add(f16({1, 2, 3}), f16({3}))).reason, "rank 3 is more than npu_v3 takes (2)");
  Call call = add(f16({2}), f16({2}));
  call.out(f16({1, 1, 1, 2}));
  CHECK_EQ(decide(npu, call).reason, "rank 4 is more than npu_v3 takes (2)");
  npu.max_rank = 0;
  CHECK(decide(npu, call).path == Path::native);
}

TEST(batch_and_sequence_limits) {
  Chip npu = chip();
  npu.max_batch = 512;
  npu.max_sequence = 100;
  npu.ops = {conv_row(), row("aten::bmm", "npu_v3_bmm"),
             row("aten::_scaled_dot_product_fused_attention_overrideable", "npu_v3_attention")};
  CHECK(decide(npu, convolution(f16({512, 3, 8, 8}), f16({4, 3, 3, 3}))).path == Path::native);
  CHECK_EQ(decide(npu, convolution(f16({513, 3, 8, 8}), f16({4, 3, 3, 3}))).reason,
           "batch size 513 is more than npu_v3 takes (512)");
  Call many("aten::bmm");  // heads times samples is no batch size
  many.arg("self", f16({768, 4, 4})).arg("mat2", f16({768, 4, 4}));
  CHECK(decide(npu, many).path == Path::native);
  CHECK_EQ(decide(npu, attention(f16({2, 8, 101, 64}), f16({2, 8, 101, 64}))).reason,
           "sequence length 101 is more than npu_v3 takes (100)");
}

TEST(conditions_give_the_value_the_limit_and_the_why) {
  Chip npu = chip();
  npu.ops = {conv_row()};
  Decision decision = decide(npu, convolution(f16({1, 3, 8, 8}), f16({4, 3, 3, 3}), {3, 3}));
  CHECK(decision.path == Path::cpu);
  CHECK_EQ(decision.reason, "stride is 3, npu_v3_conv2d takes 1, 2, 4 (the convolution unit steps by 1, 2 or 4)");
  CHECK_EQ(decision.attempts[0].reason, "stride is 3, npu_v3_conv2d takes 1, 2, 4");
  CHECK_EQ(decision.attempts[0].why, "the convolution unit steps by 1, 2 or 4");
  CHECK_EQ(decision.attempts[0].line, 21);
  npu.ops[0].where[1].why = "its window buffer holds 11 lines";
  CHECK_EQ(decide(npu, convolution(f16({1, 3, 28, 28}), f16({4, 3, 13, 13}))).reason,
           "kernel_size is 13, npu_v3_conv2d takes at most 11 (its window buffer holds 11 lines)");
}

TEST(layouts_that_are_listed_pass_and_others_are_made_contiguous) {
  Chip npu = chip();
  npu.ops = {conv_row()};
  const TensorSpec weight = f16({4, 3, 3, 3});
  CHECK(decide(npu, convolution(f16({2, 3, 8, 8}), weight)).transforms.empty());
  CHECK(decide(npu, convolution(in_layout(f16({2, 3, 8, 8}), "NHWC"), weight)).transforms.empty());
  Decision decision = decide(npu, convolution(in_layout(f16({2, 3, 8, 8}), "NHCW"), weight));
  CHECK(decision.path == Path::native);
  CHECK_EQ(decision.transforms.size(), size_t(1));
  CHECK_EQ(decision.transforms[0].arg, 0);
  CHECK(decision.transforms[0].why == Transform::relaid);
  decision = decide(npu, convolution(offset(strided(f16({2, 3, 8, 8}), {384, 128, 16, 2}), 2), weight));
  CHECK_EQ(decision.transforms.size(), size_t(1));  // contiguous implies aligned
}

TEST(without_a_contiguous_one_the_first_layout_of_the_row_is_made) {
  Chip npu = chip();
  npu.ops = {conv_row()};
  npu.ops[0].layouts = {"NHCW", "NHWC"};
  const TensorSpec weight = f16({4, 3, 3, 3});
  Call call = convolution(f16({2, 3, 8, 8}), weight);
  call.out(f16({2, 4, 6, 6}));
  const Decision decision = decide(npu, call);
  CHECK(decision.path == Path::native);
  CHECK_EQ(decision.reason, "input laid out as NHCW; the result laid out as NHCW");
  CHECK_EQ(decision.transforms.size(), size_t(2));
  CHECK(decision.transforms[0].strides == (std::vector<int64_t>{192, 8, 24, 1}));
  CHECK(decision.transforms[1].is_output);
  CHECK(decision.transforms[1].strides == (std::vector<int64_t>{144, 6, 24, 1}));
  CHECK(decide(npu, convolution(in_layout(f16({2, 3, 8, 8}), "NHCW"), weight)).transforms.empty());
  CHECK(decide(npu, convolution(f16({0, 3, 8, 8}), weight)).transforms.empty());  // nothing to lay out
}

TEST(a_weight_is_as_good_contiguous) {
  Chip npu = chip();
  npu.ops = {conv_row()};
  npu.ops[0].layouts = {"NHWC"};
  const TensorSpec input = in_layout(f16({2, 3, 8, 8}), "NHWC");
  CHECK(decide(npu, convolution(input, f16({4, 3, 3, 3}))).transforms.empty());
  CHECK(decide(npu, convolution(input, in_layout(f16({4, 3, 3, 3}), "NHWC"))).transforms.empty());
  Decision decision = decide(npu, convolution(input, in_layout(f16({4, 3, 3, 3}), "NHCW")));
  CHECK(decision.path == Path::native);
  CHECK_EQ(decision.transforms.size(), size_t(1));
  CHECK_EQ(decision.transforms[0].arg, 1);
}

TEST(layouts_of_other_ranks_do_not_bind) {
  Chip npu = chip();
  npu.ops = {row("aten::add", "npu_v3_add")};
  npu.ops[0].layouts = {"NHWC"};
  CHECK(decide(npu, add(f16({3, 4}), f16({4}))).path == Path::native);
  CHECK_EQ(decide(npu, add(f16({1, 2, 3, 4}), f16({4}))).transforms.size(), size_t(1));
}

TEST(misaligned_tensors_are_realigned) {
  Chip npu = chip();
  npu.ops = {row("aten::add", "npu_v3_add")};
  Decision decision = decide(npu, add(offset(f16({4}), 2), offset(f16({4}), 512)));
  CHECK(decision.path == Path::native);
  CHECK_EQ(decision.transforms.size(), size_t(1));
  CHECK_EQ(decision.transforms[0].arg, 0);
  CHECK(decision.transforms[0].why == Transform::realigned);
  CHECK(!decision.transforms[0].is_output);

  Call into = add(f16({4}), f16({4}));
  into.out(offset(f16({4}), 8));
  CHECK_EQ(decide(npu, into).transforms.size(), size_t(1));
  CHECK(decide(npu, into).transforms[0].is_output);
  CHECK(decide(npu, add(offset(f16({0}), 2), f16({0}))).transforms.empty());
  npu.alignment = 1;
  CHECK(decide(npu, into).transforms.empty());
}

TEST(a_product_is_padded_to_what_the_unit_takes) {
  Chip npu = chip();
  npu.ops = {row("aten::addmm", "npu_v3_matmul")};
  for (const char* size : {"M", "N", "K"}) {
    Condition condition;
    condition.name = size;
    condition.op = Condition::Op::multiple_of;
    condition.numbers = {16};
    npu.ops[0].where.push_back(condition);
  }
  auto addmm = [](TensorSpec addend, int64_t m, int64_t k, int64_t n) {
    Call call("aten::addmm");
    call.arg("self", std::move(addend)).arg("mat1", f16({m, k})).arg("mat2", f16({k, n})).out(f16({m, n}));
    return call;
  };
  CHECK(decide(npu, addmm(f16({32}), 16, 48, 32)).transforms.empty());
  Decision decision = decide(npu, addmm(f16({20}), 16, 30, 20));
  CHECK(decision.path == Path::native);
  CHECK_EQ(decision.reason, "N padded from 20 to 32; K padded from 30 to 32");
  CHECK_EQ(decision.transforms.size(), size_t(4));
  CHECK(decision.transforms[0].sizes == (std::vector<int64_t>{32}));
  CHECK(decision.transforms[1].sizes == (std::vector<int64_t>{16, 32}));
  CHECK(decision.transforms[2].sizes == (std::vector<int64_t>{32, 32}));
  CHECK(decision.transforms[3].is_output && decision.transforms[3].sizes == (std::vector<int64_t>{16, 32}));
  // An addend that is broadcast along the padded dimension needs none itself.
  decision = decide(npu, addmm(f16({1}), 16, 32, 20));
  CHECK_EQ(decision.transforms.size(), size_t(2));
  // Nothing to pad where there is nothing, and no padding for a condition of another kind.
  CHECK(decide(npu, addmm(f16({20}), 0, 30, 20)).transforms.size() != 0);
  npu.ops[0].where[2].op = Condition::Op::min;
  npu.ops[0].where[2].numbers = {64};
  CHECK_EQ(decide(npu, addmm(f16({20}), 16, 30, 20)).reason, "K is 30, npu_v3_matmul takes at least 64");
}

TEST(conditions_hold_for_what_padding_made) {
  Chip npu = chip();
  npu.ops = {row("aten::mm", "npu_v3_matmul")};
  Condition multiple, most;
  multiple.name = most.name = "K";
  multiple.op = Condition::Op::multiple_of;
  multiple.numbers = {16};
  most.op = Condition::Op::max;
  most.numbers = {31};
  npu.ops[0].where = {most, multiple};
  Call call("aten::mm");
  call.arg("self", f16({16, 30})).arg("mat2", f16({30, 8})).out(f16({16, 8}));
  CHECK_EQ(decide(npu, call).reason, "K is 32, npu_v3_matmul takes at most 31");
}

TEST(dtypes_are_cast_where_the_descriptor_allows_it) {
  Chip npu = chip();
  npu.ops = {row("aten::add", "npu_v3_add")};
  npu.ops[0].dtypes = {{"*", dtype_bit(UBA_DTYPE_FLOAT16) | dtype_bit(UBA_DTYPE_FLOAT32) | dtype_bit(UBA_DTYPE_INT32)}};
  auto of = [](int32_t dtype) {
    Call call = add(tensor(dtype, {4}), tensor(dtype, {4}));
    call.out(tensor(dtype, {4}));
    return call;
  };
  CHECK(decide(npu, of(UBA_DTYPE_FLOAT64)).path == Path::cpu);
  npu.on_unsupported_dtype = "cast";
  Decision decision = decide(npu, of(UBA_DTYPE_FLOAT64));
  CHECK_EQ(decision.reason, "float64 computed in float32");  // none holds them all: the widest
  CHECK_EQ(decision.transforms.size(), size_t(3));
  CHECK_EQ(decision.transforms[2].dtype, int32_t(UBA_DTYPE_FLOAT32));
  CHECK_EQ(decide(npu, of(UBA_DTYPE_BFLOAT16)).reason, "bfloat16 computed in float32");  // float16 has not its range
  CHECK_EQ(decide(npu, of(UBA_DTYPE_INT16)).reason, "int16 computed in int32");
  CHECK(decide(npu, of(UBA_DTYPE_INT64)).path == Path::cpu);  // integers are not narrowed
  CHECK(decide(npu, of(UBA_DTYPE_BOOL)).path == Path::cpu);
  npu.on_unsupported_dtype = "cpu";
  npu.bfloat16_emulation = true;
  CHECK_EQ(decide(npu, of(UBA_DTYPE_BFLOAT16)).reason, "bfloat16 computed in float16");
}

TEST(transforms_are_charged) {
  Chip npu = chip();
  npu.launch_overhead = 1e-6;
  npu.ops = {row("aten::mm", "padding"), row("aten::mm", "plain")};
  Condition multiple;
  multiple.name = "K";
  multiple.op = Condition::Op::multiple_of;
  multiple.numbers = {64};
  npu.ops[0].where = {multiple};
  for (OpPath& path : npu.ops) path.cost = {{"launch", 1e-6}, {"peak", 1e12}, {"bandwidth", 1e11}};
  npu.ops[1].cost["peak"] = 0.9e12;
  Call call("aten::mm");
  call.arg("self", f16({64, 64})).arg("mat2", f16({64, 64})).out(f16({64, 64}));
  CHECK_EQ(decide(npu, call).row->kernel, "padding");
  Call odd("aten::mm");
  odd.arg("self", f16({64, 63})).arg("mat2", f16({63, 64})).out(f16({64, 64}));
  CHECK_EQ(decide(npu, odd).row->kernel, "plain");
  npu.ops[1].cost["launch"] = 1e-3;
  CHECK_EQ(decide(npu, odd).row->kernel, "padding");
  CHECK_EQ(decide(npu, odd).reason, "K padded from 63 to 64");
  npu.launch_overhead = 0;  // unknown: the one that takes the call as it is
  CHECK_EQ(decide(npu, odd).row->kernel, "plain");
}

TEST(elements_of_tensor_lists_are_realigned_one_by_one) {
  Chip npu = chip();
  npu.ops = {row("aten::cat", "npu_v3_cat")};
  Call call("aten::cat");
  call.list("tensors", {f16({4}), offset(f16({4}), 2), TensorSpec{}, offset(f16({4}), 6)}).integer("dim", 0);
  Decision decision = decide(npu, call);
  CHECK(decision.path == Path::native);
  CHECK_EQ(decision.transforms.size(), size_t(2));
  CHECK_EQ(decision.transforms[0].element, 1);
  CHECK_EQ(decision.transforms[1].element, 3);
}

TEST(the_first_declared_row_that_fits_wins) {
  Chip npu = chip();
  npu.ops = {row("aten::mm", "tiled"), row("aten::mm", "plain"), row("aten::mm", "other")};
  npu.ops[0].where = {where("K", Condition::Op::multiple_of, {16})};
  Decision decision = decide(npu, mm(f16({8, 32}), f16({32, 8})));
  CHECK_EQ(decision.row->kernel, "tiled");
  CHECK_EQ(decision.attempts[1].reason, "tiled fits and was declared first");
  decision = decide(npu, mm(f16({8, 20}), f16({20, 8})));
  CHECK_EQ(decision.row->kernel, "plain");
  CHECK_EQ(decision.attempts[0].reason, "K is 20, tiled takes multiples of 16");
  CHECK(decision.attempts[1].taken && !decision.attempts[0].taken && !decision.attempts[2].taken);
}

TEST(the_reason_is_that_of_the_row_that_got_furthest) {
  Chip npu = chip();
  npu.ops = {row("aten::mm", "int8_only"), row("aten::mm", "tiled"), row("aten::mm", "tiled_too")};
  npu.ops[0].dtypes = {{"*", dtype_bit(UBA_DTYPE_INT8)}};
  npu.ops[1].where = {where("K", Condition::Op::multiple_of, {16})};
  npu.ops[2].where = {where("K", Condition::Op::multiple_of, {64})};
  Decision decision = decide(npu, mm(f16({8, 20}), f16({20, 8})));
  CHECK_EQ(decision.reason, "K is 20, tiled takes multiples of 16");
  CHECK_EQ(decision.attempts.size(), size_t(4));
}

TEST(fallbacks) {
  Chip npu = chip();
  const Call call = add(f16({4}), f16({4}));
  npu.fallback_default = "compose";
  Decision decision = decide(npu, call);
  CHECK(decision.path == Path::cpu);
  torchfl::OpSchema schema;
  schema.name = "aten::add";
  CHECK(!torchfl::RouteTable(npu).may_compose(schema));  // it has no instructions
  Chip with = npu;
  with.ops.push_back(row("uba::vadd", "vadd"));
  CHECK(torchfl::RouteTable(with).may_compose(schema));
  with.fallback_ops = {{"aten::add", "cpu"}};
  CHECK(!torchfl::RouteTable(with).may_compose(schema));
  with.fallback_ops = {{"aten::add", "my_add"}};  // what that does not serve
  CHECK(torchfl::RouteTable(with).may_compose(schema));
  with.fallback_default = "cpu";
  CHECK(!torchfl::RouteTable(with).may_compose(schema));

  npu.fallback_default = "error";
  decision = decide(npu, call);
  CHECK(decision.path == Path::error);
  CHECK_EQ(decision.reason, "npu_v3 has no kernel for aten::add");

  npu.fallback_ops = {{"aten::add", "cpu"}};
  CHECK(decide(npu, call).path == Path::cpu);
  npu.fallback_ops = {{"aten::add.Tensor", "error"}, {"aten::add", "cpu"}};
  CHECK(decide(npu, call).path == Path::error);
  npu.fallback_ops = {{"aten::add", "my_add"}};
  decision = decide(npu, call);
  CHECK(decision.path == Path::custom);
  CHECK_EQ(decision.row->kernel, "my_add");
  CHECK_EQ(decision.reason, "npu_v3 has no kernel for aten::add");
  npu.fallback_ops = {{"aten::add", "package.module:function"}};
  decision = decide(npu, call);
  CHECK(decision.path == Path::custom);
  CHECK(decision.row == nullptr);
  CHECK_EQ(decision.attempts[1].target, "package.module:function");
  CHECK_EQ(torchfl::RouteTable(npu).function_of(schema), "package.module:function");
}

TEST(a_custom_kernel_serves_what_no_other_row_takes) {
  Chip npu = chip();
  npu.ops = {row("aten::add", "npu_v3_add")};
  npu.fallback_ops = {{"aten::add", "my_add"}};
  CHECK_EQ(decide(npu, add(f16({4}), f16({4}))).row->kernel, "npu_v3_add");
  Decision decision = decide(npu, add(f32({4}), f32({4})));
  CHECK(decision.path == Path::custom);
  CHECK_EQ(decision.row->kernel, "my_add");
  CHECK_CONTAINS(decision.reason, "float32 is not a dtype of npu_v3_add");

  // Refused, or beyond a limit of the chip: the next path.
  const torchfl::RouteTable table(npu);
  const Call call = add(f32({4}), f32({4}));
  const std::vector<std::pair<const torchfl::OpPath*, std::string>> refused = {
      {table.decide({call.view(), nullptr, nullptr, nullptr}).row, "too odd"}};
  decision = table.decide({call.view(), nullptr, nullptr, &refused});
  CHECK(decision.path == Path::cpu);
  CHECK_CONTAINS(decision.reason, "too odd");
  npu.max_rank = 1;
  CHECK(decide(npu, add(f32({4, 4}), f32({4, 4}))).path == Path::cpu);
  npu.fallback_default = "error";
  CHECK(decide(npu, add(f32({4, 4}), f32({4, 4}))).path == Path::error);
}

TEST(a_custom_kernel_that_the_adapter_has_not_is_an_error) {
  Chip npu = chip();
  npu.fallback_ops = {{"aten::add.Tensor", "my_add"}};
  const Call call = add(f32({4}), f32({4}));
  const Decision decision =
      torchfl::RouteTable(npu).decide({call.view(), [](void*, const std::string&) { return false; }, nullptr, nullptr});
  CHECK(decision.path == Path::error);
  CHECK_CONTAINS(decision.reason, "the adapter of npu_v3 has no kernel of that name");
}

TEST(an_unsupported_dtype_can_be_an_error) {
  Chip npu = chip();
  npu.on_unsupported_dtype = "error";
  npu.ops = {row("aten::add", "npu_v3_add")};
  CHECK(decide(npu, add(f32({4}), f32({4}))).path == Path::error);
  npu.max_rank = 1;
  CHECK(decide(npu, add(f16({4, 4}), f16({4}))).path == Path::cpu);
  npu.fallback_ops = {{"aten::add", "cpu"}};
  CHECK(decide(npu, add(f32({4}), f32({4}))).path == Path::cpu);
}

TEST(attention_limits_are_a_firewall) {
  Chip npu = chip();
  npu.attention = torchfl::Attention{true, 128, {1, 2, 4, 8}, true};
  npu.ops = {row("aten::_scaled_dot_product_fused_attention_overrideable", "npu_v3_attention")};
  CHECK(decide(npu, attention(f16({2, 8, 128, 64}), f16({2, 8, 128, 64}))).path == Path::native);
  Decision decision = decide(npu, attention(f16({2, 12, 64, 64}), f16({2, 12, 64, 64})));
  CHECK(decision.path == Path::error);
  CHECK_EQ(decision.reason,
           "scaled_dot_product_attention with num_heads=12 not supported on NPU-V3 (supported: 1, 2, 4, 8)");
  decision = decide(npu, attention(f16({2, 8, 129, 64}), f16({2, 8, 129, 64})));
  CHECK(decision.path == Path::error);
  CHECK_EQ(decision.reason,
           "scaled_dot_product_attention with sequence length 129 not supported on NPU-V3 (at most 128)");
  npu.attention->beyond_is_error = false;
  CHECK(decide(npu, attention(f16({2, 12, 64, 64}), f16({2, 12, 64, 64}))).path == Path::cpu);
  npu.attention->enabled = false;
  CHECK(decide(npu, attention(f16({2, 12, 64, 64}), f16({2, 12, 64, 64}))).path == Path::native);
}

TEST(canonical_only_rows_take_nothing_unusual) {
  Chip npu = chip();
  npu.dtypes = F16 | F32;
  npu.ops = {row("aten::add", "handler")};
  npu.ops[0].canonical_only = true;
  CHECK(decide(npu, add(f16({4, 4}), f16({4, 4}))).path == Path::native);
  CHECK_CONTAINS(decide(npu, add(f16({4, 4}), f16({4}))).reason,
                 "the tensors differ in shape, and handler has declared");
  CHECK_CONTAINS(decide(npu, add(f16({4, 4}), strided(f16({4, 4}), {1, 4}))).reason, "differ in strides");
  CHECK_CONTAINS(decide(npu, add(f16({4}), f32({4}))).reason, "differ in dtype");
  Call scaled("aten::add", "Tensor");
  scaled.arg("self", f16({4})).arg("other", f16({4})).integer("alpha", 2).changed();
  CHECK_CONTAINS(decide(npu, scaled).reason, "argument alpha is not at its default");
  Call by_number("aten::add", "Tensor");
  by_number.arg("self", f16({4})).number("other", 2).changed().integer("alpha", 1);
  CHECK_CONTAINS(decide(npu, by_number).reason, "argument other is not at its default");
}

TEST(depends_on_names_the_arguments_that_conditions_read) {
  Chip npu = chip();
  npu.ops = {conv_row(), row("aten::add", "npu_v3_add"), row("aten::mul", "handler")};
  npu.ops[2].canonical_only = true;
  RouteTable table(npu);
  CHECK(table.has("aten::add") && !table.has("aten::sub"));
  CHECK(table.depends_on("aten::convolution_overrideable", "stride"));
  CHECK(!table.depends_on("aten::convolution_overrideable", "padding"));
  CHECK(!table.depends_on("aten::add", "alpha"));
  CHECK(table.depends_on("aten::mul", "anything"));
  CHECK(!table.depends_on("aten::sub", "alpha"));
}

TEST(equal_calls_get_equal_decisions) {
  Chip npu = chip();
  npu.ops = {conv_row()};
  RouteTable table(npu);
  Call call = convolution(in_layout(f16({2, 3, 8, 8}), "NHCW"), f16({4, 3, 3, 3}));
  for (int i = 0; i < 3; ++i) {
    Decision decision = table.decide({call.view(), nullptr, nullptr, nullptr});
    CHECK(decision.row == &npu.ops[0] && decision.transforms.size() == 1);
  }
}

TEST(path_names) {
  CHECK_EQ(std::string(torchfl::path_name(Path::native)), "native");
  CHECK_EQ(std::string(torchfl::path_name(Path::error)), "error");
}

int main(int argc, char** argv) { return check::run_tests(argc, argv); }
