// autocast.h: mixed precision for our devices.
//
// Contract: one boxed kernel casts the floating tensors of an operator by its policy and calls on, as torch.cuda's
// autocast does. Which operator has which policy is data: torch's own lists, as the descriptor changes them.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace torchfl::autocast {

// "lower_precision", "fp32", "fp32_set_opt_dtype", "promote" -> operators ("conv2d", "prod.dim_int"), as torch.cuda has
// them.
std::map<std::string, std::vector<std::string>> default_lists();
// Gives the devices from `first_device` on, those of one chip, their policies.
void install(const std::map<std::string, std::vector<std::string>>& lists, int first_device, int count);

}  // namespace torchfl::autocast
