// conversion.h: how stand-ins of tensors are filled, and results taken out of them.
//
// Contract: `dst = src`, equal sizes, one device, stream order, like copy_tensor; and where the chip emulates bfloat16
// (`constraints.bfloat16_emulation`), between bfloat16 and float16 as the emulation defines it: to float16 exactly or
// to infinity, back by truncation. Both are made of strided copies and a conversion between float16 and float32,
// because such a chip converts no bfloat16 itself. Between int8 and uint8 a stand-in has zero point 128 (`int8_as:
// uint8`): the uint8 is the int8 plus 128.
#pragma once
#include <ATen/ATen.h>

namespace torchfl {

void convert_on_device(const at::Tensor& dst, const at::Tensor& src);

// Puts what a kernel wrote where it belongs: `written` may be longer, in another order, and of another dtype.
void deliver(const at::Tensor& target, const at::Tensor& written);

}  // namespace torchfl
