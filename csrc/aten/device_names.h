// device_names.h: lets chips be called by names that PyTorch's device parser would refuse or take for another backend.
//
// Contract: PyTorch's parser accepts letters and underscore only, and knows "xpu" and its like as backends of its own.
// The import slot of c10::Device(std::string const&) in the loaded torch libraries is pointed at a function that
// translates registered names and hands everything else to the original. No cost for operators. ELF only.
#pragma once
#include <string>

namespace torchfl::device_names {

// Makes `name`, `name:0` ... mean `count` devices from `first_index` on. Engages the translation if it is needed.
// Returns "" or, where it cannot be done, the reason.
std::string add(const std::string& name, int first_index, int count);
bool engaged();
void disengage();  // restores the slots; names stay registered for a later `add`

}  // namespace torchfl::device_names
