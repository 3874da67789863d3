// plan.h: a decided call, ready to be repeated.
//
// Contract: immutable once built, owned by one thread's cache. Template arguments point into the plan's own arrays;
// a run copies them to its stack, puts in addresses and numbers, and calls the kernel.
#pragma once
#include <memory>

#include "program.h"
#include "shape_rules.h"
#include "signature.h"

namespace torchfl {

struct AtenHandler;
struct AuthorsForm;

struct Plan {
  enum class Kind { kernel, handler, composed, custom, cpu, composite, error };
  Kind kind = Kind::cpu;
  c10::SmallVector<uint64_t, 48> key;
  int device = 0;
  DeviceEntry* entry = nullptr;
  OpCounters* counters = nullptr;

  // kernel
  uba_kernel_fn run = nullptr;
  int64_t tag = 0;
  const char* kernel_name = "";
  std::shared_ptr<AtenHandler> handler;
  std::shared_ptr<const AuthorsForm> form;  // for a handler that is a wrapper: what it is given (wrapper_route.h)
  std::string functional_name;              // "aten::add"
  std::vector<uba_value> values;
  std::vector<uba_tensor> tensors;
  std::vector<std::unique_ptr<int64_t[]>> int_arrays;
  std::vector<std::unique_ptr<double[]>> double_arrays;
  std::vector<std::string> strings;

  // Where addresses and numbers come from.
  struct Patch {
    int16_t arg;      // position on the stack
    int16_t element;  // in a list, or -1
    int16_t value;    // index in `values` (numbers)
    int32_t tensor;   // index in `tensors` (tensors)
    enum Source : uint8_t { tensor_address, prepared_tensor, number, host_number } source;
    bool floating;          // numbers: as UBA_DOUBLE, else UBA_INT
    bool padded;            // prepared: larger than the tensor, with zeros at the end of its dimensions
    c10::ScalarType dtype;  // prepared: what it is converted to
  };
  std::vector<Patch> patches;

  struct Output {
    OutputShape shape;   // of what the kernel writes
    OutputShape result;  // of what the caller gets, where that is another tensor; else its dtype is Undefined
    size_t bytes = 0;
    bool contiguous = false;
    int written_arg = -1;            // >= 0: the argument (in place or out=) that receives it
    bool through_temporary = false;  // the kernel cannot write there directly: a copy follows
  };
  std::vector<Output> outputs;
  int prepared = 0;                       // number of prepared_tensor patches
  bool packed = false;                    // every tensor was made contiguous, after the kernel refused it as it was
  bool may_overlap = false;               // written and read arguments may share memory: look before running
  std::string error;                      // for Kind::error
  bool firewall = false;                  // for Kind::error: a hard limit, in PyTorch's own exception
  std::string function;                   // for Kind::custom: which one; `outputs` is what it is to return
  bool shapes_known = false;              // for Kind::custom, and wrappers: `outputs` holds them
  std::unique_ptr<BoundProgram> program;  // for Kind::composed
  std::vector<at::Tensor> constants;      // of the program, on the device
  bool fast = false;                      // may run without boxing: see fast_route.cpp
  int32_t output_dtype = 0;               // of outputs[0], as the ABI names it
};

// Builds the plan of a call (the slow, once-per-signature part). `refused`: rows whose kernel refused at run time; NULL
// in the place of a row stands for the custom function. `no_program`: why it is not to be composed, "" if it may be.
using Refused = std::vector<std::pair<const OpPath*, std::string>>;
struct BuiltPlan {
  std::unique_ptr<Plan> plan;
  const OpPath* row = nullptr;
  Decision decision;
  // out= arguments that must be resized before the call can be decided: position and size. `plan` is empty then.
  std::vector<std::pair<int, c10::SmallVector<int64_t, 6>>> resize;
  bool again = false;  // the operator's signature has grown (OpState::baked): read it again
};
BuiltPlan build_plan(OpState& op, at::ArrayRef<c10::IValue> args, const Signature& signature, int device,
                     const Refused& refused, bool announce, bool pack = false, const std::string& no_program = "");

// What PyTorch refuses to write to argument `position`: raises, if a result of `result` cannot become `target`.
void check_written_dtype(const OpState& op, int position, c10::ScalarType result, c10::ScalarType target);

// note_written() of kept.h for every argument that this call writes.
void note_written_arguments(const OpState& op, const torch::jit::Stack& stack, size_t base);

// The calling thread's plan for a signature, or NULL. It stays valid until the thread makes another call.
const Plan* find_plan(const Signature& signature);

// How many plans the calling thread keeps.
size_t plan_count();

// Allocates, fills in and runs. False: the kernel said "not supported" (its reason is in take_sdk_message()).
bool run_plan(const Plan& plan, OpState& op, torch::jit::Stack* stack);

}  // namespace torchfl
