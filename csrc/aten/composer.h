// composer.h: programs for operators that a chip has no kernel for, from the composer in torchfl.compose.
//
// Contract: a program is composed once per signature and process, under the GIL, and then shared by all threads, whose
// plans bind it to memory each for itself. Running one takes no GIL and no lock. The composer sees meta tensors only.
#pragma once
#include <memory>
#include <string>

#include "plan.h"
#include "program.h"

namespace torchfl {

// What the composer said to one call.
struct Composed {
  std::shared_ptr<const Program> program;  // NULL: not composable, see `why`
  std::vector<at::Tensor> constants;       // on the CPU, contiguous
  std::string why;
};

// Asks for the program of `functional` (op's functional form, or op itself if it exists in place only) on `args`, in
// the order of op.kernel_args. `base` and `overload` name the operator.
using ComposeFunction = Composed (*)(const c10::OperatorHandle& functional, const std::vector<c10::IValue>& args,
                                     int device);
void set_compose_function(ComposeFunction function);
bool can_compose();

// Makes `built.plan` a composed one; false and `*why` if there is no program. Fills built.resize or built.again instead
// when the call must be looked at once more.
bool compose_plan(OpState& op, at::ArrayRef<c10::IValue> args, const Signature& signature, BuiltPlan& built,
                  std::string* why);

// Runs a composed plan. False: a kernel refused, and nothing was written.
bool run_composed(const Plan& plan, OpState& op, torch::jit::Stack* stack);

void forget_programs();
size_t program_count();  // how many signatures have a program, or the reason that there is none

}  // namespace torchfl
