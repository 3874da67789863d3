// attention.h: the limits of a chip's attention unit, and the one sentence for each that a call beyond it gets.
//
// Contract: pure functions of the chip's tables. A descriptor without an enabled unit has no such limits.
#pragma once
#include <cstdint>
#include <string>

#include "chip.h"

namespace torchfl {

// What a call asks of the unit; 0 where that is not known.
struct AttentionCall {
  std::string what;  // as users know it: "MultiheadAttention"
  int64_t heads = 0, batch = 0, length = 0, rank = 0;
};

// Beyond its unit, the chip refuses: nothing else is tried.
bool attention_is_firewalled(const Chip& chip);

// The longest sequence: the unit's limit, or that of the whole chip if it is lower. 0 = no limit.
int64_t attention_length_limit(const Chip& chip);

// "MultiheadAttention with num_heads=12 not supported on NPU-V2 (supported: 1, 2, 4, 8)"; "" if the unit has room.
std::string beyond_attention(const Chip& chip, const AttentionCall& call);

}  // namespace torchfl
