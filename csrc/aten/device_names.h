// device_names.h: lets chips be called by names that PyTorch's device parser would refuse or take for another backend.
//
// Contract: PyTorch's parser accepts letters and underscore only, and knows "xpu" and its like as backends of its own.
// The import slot of c10::Device(std::string const&) in the loaded torch libraries is pointed at a function that
// translates registered names and hands everything else to the original. No cost for operators. ELF only.
// The same way the device type can be printed by another name than PyTorch knows it by; that must be a name that
// parses.
#pragma once
#include <cstdint>
#include <string>

namespace torchfl::device_names {

// Makes `name`, `name:0` ... mean `count` devices from `first_index` on. Engages the translation if it is needed.
// Returns "" or, where it cannot be done, the reason.
std::string add(const std::string& name, int first_index, int count);
void remove(const std::string& name);
// Has PyTorch print and report the device type as `name` ("" takes it back). Returns "" or why it cannot be done.
std::string show(const std::string& name);
std::string shown();  // "" if the true name is printed in this thread
// Nested: while it is on, this thread sees the true name. For code that chooses by the name what it makes for a device.
void true_names(bool on);
uintptr_t parser();  // address of the function that stands in for c10::Device(std::string const&)
bool engaged();
void disengage();  // restores all slots and forgets all names

}  // namespace torchfl::device_names
