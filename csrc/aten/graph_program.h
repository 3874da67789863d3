// graph_program.h: a captured graph of operators as one object that runs without Python between its steps.
//
// Contract: built once (add_* and finish, under the GIL), then immutable and shared by threads. A run calls each step's
// operator through the dispatcher, below autograd: every step is decided, counted and explained like an eager call, and
// strict mode holds. Values live in slots; a slot is emptied after the last step that reads it. From the second run
// with the same sizes on, what a run allocates and gives back lies in one block (graph_memory.h). Sizes may differ from
// run to run: integers are values like tensors, and steps compute with them.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "graph_memory.h"

namespace torchfl {

class GraphProgram {
 public:
  struct Arg {
    enum class Kind { constant, slot, list };
    Kind kind = Kind::constant;
    c10::IValue value;  // constant
    int slot = -1;
    std::vector<Arg> items;  // of a list in which a slot takes part
    c10::TypePtr element;    // its type
    bool tensor = false;     // the operator takes a tensor here: a number becomes one
  };
  // A number where the schema says Tensor, as eager makes it one: its dtype does not count in promotion.
  static at::Tensor wrapped_number(const c10::Scalar& number);
  enum class Compute {  // with numbers of the host
    add,
    sub,
    mul,
    div,
    floordiv,
    mod,
    pow,
    neg,
    min,
    max,
    eq,
    ne,
    lt,
    le,
    gt,
    ge,
    both,
    either,
    no,
    choose,
    floor,
    ceil,
    trunc,
    to_int,
    to_float
  };

  GraphProgram(std::string name, int inputs, int slots) : name_(std::move(name)), inputs_(inputs), slots_(slots) {}

  // outs: for each result its slot, -1 if nobody reads it. frees: slots that nobody reads after this step.
  void add_call(const c10::OperatorHandle& op, std::vector<Arg> args, std::vector<int> outs, std::vector<int> frees);
  void add_compute(Compute what, std::vector<Arg> args, int out, std::vector<int> frees);
  void add_item(int list, int index, int out, std::vector<int> frees);  // one element of a list result
  void finish(std::vector<Arg> outputs, int device);                    // device: whose memory is planned; -1: none

  // Takes over the inputs. Raises what an operator raises.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) const;

  struct Memory {
    uint64_t planned = 0, separately = 0;  // bytes of the block, and of its pieces
    int64_t runs = 0, planned_runs = 0;
  };
  Memory memory() const;  // of the sizes that were run last
  size_t step_count() const { return steps_.size(); }
  const std::string& name() const { return name_; }

 private:
  struct Step {
    enum class Kind { call, compute, item } kind = Kind::call;
    std::optional<c10::OperatorHandle> op;
    std::vector<int> written;  // arguments that the schema says are written
    Compute compute = Compute::add;
    int index = 0;
    std::vector<Arg> args;
    std::vector<int> outs, frees;
  };
  struct Known {  // one set of sizes
    std::shared_ptr<const graph_memory::Plan> plan;
    int failures = 0;
    uint64_t used = 0;
  };
  void run_step(const Step& step, std::vector<c10::IValue>& slots) const;
  std::vector<c10::IValue> run_in(graph_memory::Scope* scope, std::vector<c10::IValue>& slots) const;

  std::string name_;
  int inputs_, slots_, device_ = -1;
  std::vector<Step> steps_;
  std::vector<Arg> outputs_;

  mutable std::mutex mutex_;
  mutable std::map<uint64_t, Known> known_;  // by a hash of the sizes
  mutable Memory memory_;
  mutable uint64_t clock_ = 0;
};

}  // namespace torchfl
