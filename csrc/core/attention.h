// attention.h: the limits of a chip's attention unit.
//
// Contract: they are hard. The decision procedure asks here, and so does the call by which PyTorch chooses how to take
// attention apart, which would otherwise go around them.
#pragma once
#include <string>

#include "chip.h"

namespace torchfl {

// Why the unit does not take so many heads, or a sequence of such a length; "" = it does, or the chip has none.
// A negative number is unknown.
std::string beyond_attention(const Chip& chip, int64_t heads, int64_t length);

// Whether a call of this operator has to be looked at for these limits, even if the chip has no kernel for it.
bool limits_attention(const Chip& chip, const std::string& op);

}  // namespace torchfl
