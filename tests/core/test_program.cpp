// test_program.cpp: numbers of a program, and programs bound and run on host memory: aligned copies, temporaries that
// share their place, results, a kernel that refuses.
#include <cmath>
#include <cstring>

#include "check.h"
#include "error.h"
#include "fake_adapter.h"
#include "program.h"

using namespace torchfl;

namespace {

float* at(const uba_tensor& t) { return reinterpret_cast<float*>(static_cast<char*>(t.data) + t.byte_offset); }

// out = a + b, or a * b with a number as b; float32, row-major. Refuses sizes of 13.
uba_status compute(void*, const uba_call* call, int64_t tag) {
  const uba_tensor &a = *call->args[0].v.tensor, &out = call->outputs[0];
  if (out.sizes[0] == 13) return UBA_NOT_SUPPORTED;
  if ((reinterpret_cast<uintptr_t>(a.data) + a.byte_offset) % 64 != 0) return UBA_FAILED;
  for (int64_t i = 0; i < out.sizes[0]; i++) {
    const uba_value& b = call->args[1];
    const double right = b.kind == UBA_TENSOR ? at(*b.v.tensor)[i] : b.kind == UBA_INT ? double(b.v.i) : b.v.d;
    at(out)[i] = tag == 0 ? float(at(a)[i] + right) : float(at(a)[i] * right);
  }
  return UBA_OK;
}

uba_status copy_nd(void*, void*, const uba_tensor* to, const uba_tensor* from) {
  std::memmove(at(*to), at(*from), size_t(to->sizes[0]) * 4);
  return UBA_OK;
}

const uba_kernel kKernels[] = {{"add", &compute, 0}, {"mul", &compute, 1}};

// An adapter that compiles programs: it keeps the steps, and a run puts the blocks' addresses and the numbers in.
struct Compiled {
  struct Step {
    uba_kernel kernel{};
    bool copies = false;
    std::vector<uba_value> values;
    std::vector<std::vector<uba_tensor>> tensors;  // of each value
    std::vector<uba_tensor> outputs;
    std::vector<std::vector<int64_t>> sizes;
  };
  std::vector<Step> steps;
};
struct Compiler {
  size_t longest = 0;  // programs of more steps are refused
  bool copies = true;  // whether programs with copies are taken
  std::vector<size_t> offered, taken;
  int runs = 0, live = 0;
} compiler;

uba_status program_compile(void*, const uba_program* program, void** out) {
  compiler.offered.push_back(size_t(program->step_count));
  if (size_t(program->step_count) > compiler.longest) return UBA_NOT_SUPPORTED;
  auto compiled = std::make_unique<Compiled>();
  for (int64_t i = 0; i < program->step_count; i++) {
    const uba_step& given = program->steps[i];
    Compiled::Step step;
    step.copies = given.kernel == nullptr;
    if (step.copies && !compiler.copies) return UBA_NOT_SUPPORTED;
    if (!step.copies) step.kernel = *given.kernel;
    auto own = [&](uba_tensor tensor) {  // the program's arrays are gone when it runs
      if (uintptr_t(tensor.data) >= uintptr_t(program->block_count)) abort();
      step.sizes.emplace_back(tensor.sizes, tensor.sizes + tensor.rank);
      tensor.sizes = step.sizes.back().data();
      step.sizes.emplace_back(tensor.strides, tensor.strides + tensor.rank);
      tensor.strides = step.sizes.back().data();
      return tensor;
    };
    step.values.assign(given.call->args, given.call->args + given.call->arg_count);
    for (const uba_value& value : step.values) {
      step.tensors.emplace_back();
      if (value.kind == UBA_TENSOR) step.tensors.back().push_back(own(*value.v.tensor));
    }
    for (int32_t o = 0; o < given.call->output_count; o++) step.outputs.push_back(own(given.call->outputs[o]));
    compiled->steps.push_back(std::move(step));
  }
  compiler.taken.push_back(compiled->steps.size());
  compiler.live++;
  *out = compiled.release();
  return UBA_OK;
}

uba_status program_run(void* device, void* handle, const uba_run* run) {
  compiler.runs++;
  for (const Compiled::Step& step : static_cast<Compiled*>(handle)->steps) {
    std::vector<uba_value> values = step.values;
    std::vector<std::vector<uba_tensor>> tensors = step.tensors;
    std::vector<uba_tensor> outputs = step.outputs;
    auto place = [&](uba_tensor& tensor) { tensor.data = run->blocks[uintptr_t(tensor.data)]; };
    for (size_t v = 0; v < values.size(); v++) {
      for (uba_tensor& tensor : tensors[v]) place(tensor);
      if (values[v].kind == UBA_TENSOR) values[v].v.tensor = tensors[v].data();
      if (values[v].kind == UBA_NUMBER) values[v] = run->numbers[values[v].v.i];
    }
    for (uba_tensor& tensor : outputs) place(tensor);
    uba_call call{UBA_HEADER(uba_call), "", values.data(), outputs.data(), int32_t(values.size()), 1, run->stream};
    const uba_status status = step.copies ? copy_nd(device, run->stream, &outputs[0], values[0].v.tensor)
                                          : step.kernel.run(device, &call, step.kernel.tag);
    if (status != UBA_OK) return UBA_FAILED;
  }
  return UBA_OK;
}

uba_status program_release(void*, void* handle) {
  compiler.live--;
  delete static_cast<Compiled*>(handle);
  return UBA_OK;
}

struct Machine {
  fake::Fake fake;
  Chip chip;
  std::unique_ptr<RouteTable> routes;
  std::shared_ptr<Adapter> adapter;
  std::unique_ptr<Device> device;
  OpSchema binary;

  explicit Machine(bool compiles = false) {
    compiler = {};
    if (compiles) {
      fake.api().program_compile = &program_compile;
      fake.api().program_run = &program_run;
      fake.api().program_release = &program_release;
    }
    fake.table().kernels = kKernels;
    fake.table().kernel_count = 2;
    fake.api().copy_nd = &copy_nd;
    adapter = fake.adapter();
    device = fake.device();
    chip.device_type = "npu_v3";
    chip.alignment = 64;
    chip.dtypes = dtype_bit(UBA_DTYPE_FLOAT32);
    for (const char* name : {"add", "mul"}) {
      OpPath row;
      row.op = std::string("uba::v") + name;
      row.kernel = name;
      chip.ops.push_back(row);
    }
    routes = std::make_unique<RouteTable>(chip);
    binary.arg_names = {"a", "b"};
  }

  std::unique_ptr<BoundProgram> bind(const Program& program, const std::vector<bool>& misaligned, std::string* why) {
    BindContext context;
    context.routes = routes.get();
    context.adapter = adapter.get();
    context.alignment = 64;
    context.misaligned = &misaligned;
    context.schema = [this](const std::string& op, const std::string&) -> const OpSchema* {
      binary.name = op;
      return op == "uba::vadd" || op == "uba::vmul" ? &binary : nullptr;
    };
    return BoundProgram::bind(std::make_shared<const Program>(program), context, why);
  }
};

ProgramValue vector_of(int64_t n, int id) {
  ProgramValue value;
  value.dtype = UBA_DTYPE_FLOAT32;
  value.sizes = {n};
  value.strides = {1};
  value.base = id;
  return value;
}

ProgramArg of_value(int id) {
  ProgramArg arg;
  arg.kind = ProgramArg::Kind::value;
  arg.i = id;
  return arg;
}

ProgramArg of_number(int index) {
  ProgramArg arg;
  arg.kind = ProgramArg::Kind::number;
  arg.i = index;
  return arg;
}

// ((x + x) * number + x) * number, in four steps.
Program chain(int64_t n) {
  Program program;
  for (int id = 0; id < 5; id++) program.values.push_back(vector_of(n, id));
  program.inputs = {{0, 0, -1}};
  NumberExpr number;
  number.op = NumberExpr::Op::arg;
  number.args = {1, -1};
  program.numbers = {number};
  program.steps = {{"uba::vadd", "", {of_value(0), of_value(0)}, {1}},
                   {"uba::vmul", "", {of_value(1), of_number(0)}, {2}},
                   {"uba::vadd", "", {of_value(2), of_value(0)}, {3}},
                   {"uba::vmul", "", {of_value(3), of_number(0)}, {4}}};
  program.outputs = {4};
  program.pointwise = true;
  return program;
}

struct Memory {
  alignas(64) float x[64], out[64], scratch[256];
};

bool run(Machine& machine, BoundProgram& bound, Memory& memory, uint64_t byte_offset, double factor) {
  const BoundProgram::Address input{memory.x, byte_offset}, output{memory.out, 0};
  const Number number = Number::of(factor);
  BoundProgram::Run run;
  run.device = machine.device.get();
  run.inputs = &input;
  run.outputs = &output;
  run.scratch = memory.scratch;
  run.numbers = &number;
  return bound.run(run);
}

}  // namespace

TEST(numbers_follow_pythons_rules) {
  Program program;
  auto add = [&](NumberExpr::Op op, std::vector<int> args, Number literal = {}) {
    NumberExpr number;
    number.op = op;
    number.args = std::move(args);
    number.literal = literal;
    program.numbers.push_back(number);
    return int(program.numbers.size()) - 1;
  };
  using Op = NumberExpr::Op;
  const int x = add(Op::arg, {2, -1}), two = add(Op::literal, {}, Number::of(int64_t(2)));
  const int minus = add(Op::neg, {x}), floor = add(Op::floordiv, {minus, two}), rest = add(Op::mod, {minus, two});
  const int half = add(Op::div, {x, two}), power = add(Op::pow, {two, x}), root = add(Op::sqrt, {half});
  std::vector<Number> out;
  evaluate_numbers(program, [](int position, int) { return Number::of(int64_t(position + 5)); }, out);
  CHECK_EQ(out[size_t(minus)].i, int64_t(-7));
  CHECK_EQ(out[size_t(floor)].i, int64_t(-4));
  CHECK_EQ(out[size_t(rest)].i, int64_t(1));
  CHECK(!out[size_t(half)].integer && out[size_t(half)].d == 3.5);
  CHECK_EQ(out[size_t(power)].i, int64_t(128));
  CHECK(std::fabs(out[size_t(root)].d - std::sqrt(3.5)) < 1e-15);
}

TEST(a_program_runs_its_steps_and_its_temporaries_share_their_place) {
  Machine machine;
  std::string why;
  auto bound = machine.bind(chain(8), {false}, &why);
  CHECK(bound != nullptr);
  CHECK_EQ(bound->scratch_bytes(), uint64_t(128));  // two are alive at a time, of three
  CHECK_EQ(bound->outputs().size(), size_t(1));
  Memory memory;
  for (int i = 0; i < 8; i++) memory.x[i] = float(i);
  for (double factor : {3.0, 0.5}) {  // the number is the run's, not the program's
    CHECK(run(machine, *bound, memory, 0, factor));
    for (int i = 0; i < 8; i++) CHECK_EQ(memory.out[i], float((2 * i * factor + i) * factor));
  }
}

TEST(an_adapter_runs_whole_programs_or_runs_of_vector_instructions) {
  for (const bool misaligned : {false, true}) {
    for (const size_t longest : {size_t(100), size_t(4), size_t(1)}) {
      for (const bool copies : {true, false}) {
        Machine machine(true);
        compiler.longest = longest;
        compiler.copies = copies;
        std::string why;
        auto bound = machine.bind(chain(8), {misaligned}, &why);
        CHECK(bound != nullptr);
        const size_t steps = bound->step_count();
        bound->compile(*machine.device);
        CHECK_EQ(compiler.offered[0], steps);  // the best is offered first
        size_t compiled = 0;
        for (size_t count : compiler.taken) compiled += count;
        if (longest == 100 && (copies || !misaligned)) CHECK_EQ(compiled, steps);
        if (longest == 1) CHECK_EQ(compiled, size_t(0));
        if (longest == 4 && !misaligned) CHECK_EQ(compiled, steps);
        Memory memory;
        for (int i = 0; i < 9; i++) memory.x[i] = float(i);
        const int shift = misaligned ? 1 : 0;
        for (double factor : {3.0, 0.5}) {
          CHECK(run(machine, *bound, memory, uint64_t(4 * shift), factor));
          for (int i = 0; i < 8; i++) {
            const double x = i + shift;
            CHECK_EQ(memory.out[i], float((2 * x * factor + x) * factor));
          }
        }
        CHECK_EQ(compiler.runs, int(2 * compiler.taken.size()));
        CHECK_EQ(compiler.live, int(compiler.taken.size()));
        bound.reset();
        CHECK_EQ(compiler.live, 0);
      }
    }
  }
}

TEST(what_is_compiled_stands_together_in_the_list_of_kernels) {
  Machine machine(true);
  compiler.longest = 100;
  compiler.copies = false;
  std::string why;
  auto bound = machine.bind(chain(8), {true}, &why);
  bound->compile(*machine.device);
  const std::vector<std::string> names = bound->kernels();
  CHECK(names.front() == "copy_nd");
  CHECK(names.back() == "[add mul add mul]" || names.back() == "[mul add mul]" || names.back() == "[add mul]");
}

TEST(a_misaligned_input_is_moved_first) {
  Machine machine;
  std::string why;
  auto bound = machine.bind(chain(8), {true}, &why);
  CHECK(bound != nullptr);
  CHECK(bound->step_count() > 4);
  Memory memory;
  for (int i = 0; i < 9; i++) memory.x[i] = float(i);
  CHECK(run(machine, *bound, memory, 4, 1));
  for (int i = 0; i < 8; i++) CHECK_EQ(memory.out[i], float(3 * (i + 1)));
}

TEST(a_pointwise_program_serves_other_sizes) {
  const Program other = resized(chain(8), {{16}});
  for (const ProgramValue& value : other.values) CHECK_EQ(value.sizes[0], int64_t(16));
  Machine machine;
  std::string why;
  auto bound = machine.bind(other, {false}, &why);
  Memory memory;
  for (int i = 0; i < 16; i++) memory.x[i] = float(i);
  CHECK(run(machine, *bound, memory, 0, 1));
  CHECK_EQ(memory.out[15], 45.0f);
}

TEST(a_refusal_stops_the_program) {
  Machine machine;
  std::string why;
  auto bound = machine.bind(chain(13), {false}, &why);
  Memory memory{};
  CHECK(!run(machine, *bound, memory, 0, 1));
}

TEST(a_step_without_a_kernel_is_named) {
  Machine machine;
  Program program = chain(8);
  program.steps[1].op = "uba::vexp";
  std::string why;
  CHECK(machine.bind(program, {false}, &why) == nullptr);
  CHECK_EQ(why, "there is no operator uba::vexp");
  program.steps[1].op = "uba::vmul";
  machine.chip.ops[1].dtypes = {{"*", dtype_bit(UBA_DTYPE_INT32)}};
  CHECK(machine.bind(program, {false}, &why) == nullptr);
  CHECK_EQ(why, "uba::vmul: float32 is not a dtype of mul (int32)");
}

TEST(an_input_that_is_a_result_is_copied) {
  Machine machine;
  Program program = chain(8);
  program.outputs = {4, 0, 4};
  std::string why;
  auto bound = machine.bind(program, {false}, &why);
  CHECK_EQ(bound->outputs().size(), size_t(3));
  CHECK_EQ(bound->step_count(), size_t(6));
  CHECK(!bound->writes_inputs());
}

int main(int argc, char** argv) { return check::run_tests(argc, argv); }
