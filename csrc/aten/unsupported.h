// unsupported.h: what a user is told when no path that is allowed can run a call.
//
// Contract: the text names operator, device, dtype, what would be accepted, and a change that was tried out on the
// descriptor before it is suggested. Nothing runs, and nothing here is on the call path.
#pragma once
#include <string>

#include "plan.h"

namespace torchfl {

// "Op 'aten::bmm' not supported on device 'xpu:x1' with dtype 'float32'. Available dtypes: ['float16']. Suggested fix:
// cast input to torch.float16."
std::string unsupported_text(OpState& op, at::ArrayRef<c10::IValue> args, const Plan& plan, const std::string& reason);

// Makes it a plan that raises `sentence` as a plain NotImplementedError: a hard limit of `unit`, which says all itself.
void refuse_call(Plan& plan, Decision& decision, const char* unit, std::string sentence);

// Raises what an error plan has to say.
[[noreturn]] void raise_refusal(const Plan& plan);

}  // namespace torchfl
