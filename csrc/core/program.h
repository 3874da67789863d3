// program.h: a short program of the chip's own kernels and instructions that stands for one operator call.
//
// Contract: a Program is what the composer made: plain data, independent of memory and of the chip's kernel addresses,
// shared by threads. A BoundProgram is a Program whose every step has found its kernel by the chip's own routes, with
// its temporaries placed in one block of scratch memory (those that are not alive together share their place). It
// belongs to one thread, which runs it as often as it likes; a run allocates nothing and takes no lock.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device.h"
#include "route.h"

namespace torchfl {

struct Number {
  bool integer = true;
  int64_t i = 0;
  double d = 0;
  static Number of(int64_t value) { return {true, value, double(value)}; }
  static Number of(double value) { return {false, 0, value}; }
  double real() const { return integer ? double(i) : d; }
};

// A number that is known when the program runs: an argument of the call, or what follows from earlier numbers.
struct NumberExpr {
  enum class Op {
    arg,
    literal,
    to_int,
    to_float,
    add,
    sub,
    mul,
    div,
    floordiv,
    mod,
    pow,
    neg,
    abs,
    max,
    min,
    sqrt,
    exp,
    log
  };
  Op op = Op::literal;
  std::vector<int> args;  // earlier numbers; for `arg`: position in the schema, list element or -1
  Number literal;
  static std::optional<Op> op_from_name(const std::string& name);  // "cast" is to_int or to_float
};

// As Python's operators: integers stay integers, and wrap instead of growing. An operator of one number ignores `b`.
Number combine(NumberExpr::Op op, const Number& a, const Number& b);

struct ProgramValue {
  int32_t dtype = 0;
  std::vector<int64_t> sizes, strides;  // in elements
  int64_t offset = 0;                   // in elements, from the first byte of the base
  int base = 0;                         // the value that owns the memory: itself, or another
  int64_t extent() const;               // elements from the first to behind the last; 0 if it has none
};

struct ProgramArg {
  enum class Kind { none, integer, real, text, integers, reals, value, values, number, seed, counter };
  Kind kind = Kind::none;
  int64_t i = 0;  // integer; value: its id; number: its index; counter: added to the generator's
  double d = 0;
  std::string text;
  std::vector<int64_t> integers;  // values: ids, -1 for an absent one
  std::vector<double> reals;
};

struct ProgramStep {
  std::string op, overload;  // "uba::vadd" or "aten::mm"
  std::vector<ProgramArg> args;
  std::vector<int> outs;  // value ids, -1: not wanted
};

struct Program {
  struct Input {
    int value, arg, element;
  };
  std::string op;
  std::vector<ProgramValue> values;
  std::vector<Input> inputs;   // tensors of the call
  std::vector<int> constants;  // values; their memory is given like an input's, after those
  std::vector<NumberExpr> numbers;
  std::vector<ProgramStep> steps;
  std::vector<int> outputs;                 // value ids, -1: none
  std::vector<std::pair<int, int>> writes;  // value, input: copied there after the last step
  std::vector<std::pair<int, int>> baked;   // argument and list element of numbers that it depends on
  int64_t random = 0;                       // Philox counters that a run consumes
  // All values have the one common shape, or are inputs broadcast to it, and all are row-major.
  bool pointwise = false;
};

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& sizes);

// A pointwise program for inputs of other sizes, with the same ranks and the same dimensions broadcast.
Program resized(const Program& program, const std::vector<std::vector<int64_t>>& input_sizes);

// Evaluates the program's numbers; `argument(position, element)` gives those of the call.
void evaluate_numbers(const Program& program, const std::function<Number(int, int)>& argument,
                      std::vector<Number>& out);

// What binding needs to know.
struct BindContext {
  const RouteTable* routes = nullptr;
  const Adapter* adapter = nullptr;
  uint64_t alignment = 1;
  const std::vector<bool>* misaligned = nullptr;  // by input: its first element is not where the alignment demands
  // The schema of a step's operator (functional form), NULL if there is no such operator. Lives for ever.
  std::function<const OpSchema*(const std::string& op, const std::string& overload)> schema;
};

class BoundProgram {
 public:
  struct Output {
    int32_t dtype = 0;
    std::vector<int64_t> sizes, strides;
  };
  struct Address {
    void* data = nullptr;
    uint64_t byte_offset = 0;
  };
  struct Run {  // one run's memory and numbers
    Device* device = nullptr;
    void* stream = nullptr;
    const Address* inputs = nullptr;   // of the program's inputs, then of its constants
    const Address* outputs = nullptr;  // of `outputs()`
    void* scratch = nullptr;
    const Number* numbers = nullptr;
    uint64_t seed = 0, counter = 0;
  };

  ~BoundProgram();

  // Throws nothing; on failure the result is NULL and `*why` says which step has no way on this chip.
  static std::unique_ptr<BoundProgram> bind(std::shared_ptr<const Program> program, const BindContext& context,
                                            std::string* why);

  const Program& program() const { return *program_; }
  const std::vector<Output>& outputs() const { return outputs_; }   // memory that the caller provides
  const std::vector<int>& result_of() const { return result_of_; }  // program output -> index there, -1 none
  uint64_t scratch_bytes() const { return scratch_bytes_; }
  size_t step_count() const { return steps_.size(); }
  // Names of the kernels of its steps, in order; those that the adapter runs as one stand together: "[vmul vadd]".
  std::vector<std::string> kernels() const;
  // Offers the program to the adapter: whole, else each run of vector instructions. The device must outlive it.
  void compile(Device& device);
  bool writes_inputs() const { return writes_inputs_; }

  // False: a kernel said "not supported"; its reason is in take_sdk_message(). Throws Error on failure.
  bool run(const Run& run);

 private:
  friend class Binder;
  struct Storage {
    enum Kind { input, output, scratch } kind = scratch;
    int index = 0;        // input, output
    uint64_t offset = 0;  // scratch
    uint64_t bytes = 0;
    int first = -1, last = -1;  // steps that touch it
  };
  struct Place {  // tensor `tensor` of a step lies `bytes` into storage `storage`
    int tensor, storage;
    uint64_t bytes;
  };
  struct OpenNumber {
    int value;
    ProgramArg::Kind kind;
    int64_t i;
  };
  struct Step {
    const char* kernel = nullptr;  // name; NULL: a copy, of tensors[0] to tensors[1]
    uba_kernel_fn run = nullptr;
    int64_t tag = 0;
    std::string op;
    std::vector<uba_value> values;
    std::vector<uba_tensor> tensors;  // arguments, then outputs
    int output_count = 0;
    std::vector<Place> places;
    std::vector<OpenNumber> numbers;
    std::vector<std::string> texts;
    std::vector<std::unique_ptr<int64_t[]>> integers;
    std::vector<std::unique_ptr<double[]>> reals;
  };
  struct Part {  // steps that the adapter runs in one go
    size_t first = 0, count = 0;
    void* compiled = nullptr;
    std::vector<int> storages;        // of its blocks
    std::vector<OpenNumber> numbers;  // of its UBA_NUMBERs; `value` is not used
    std::vector<void*> blocks;        // room for one run's
    std::vector<uba_value> values;
  };
  bool compile_part(size_t first, size_t count);
  void run_part(Part& part, const Run& run);
  bool run_step(Step& step, const Run& run);
  Address address_of(const Storage& storage, const Run& run) const;
  static uba_value value_of(const OpenNumber& open, const Run& run);

  std::shared_ptr<const Program> program_;
  std::vector<Step> steps_;
  std::vector<Part> parts_;  // in order; steps outside of them run one by one
  Device* device_ = nullptr;
  std::vector<Storage> storages_;
  std::vector<Output> outputs_;
  std::vector<int> result_of_;
  uint64_t scratch_bytes_ = 0;
  bool writes_inputs_ = false;
};

}  // namespace torchfl
