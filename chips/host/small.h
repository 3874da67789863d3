// small.h: loops for small calls on dense tensors, where a call into PyTorch costs more than the work (small.cpp).
#pragma once
#include <cstddef>

#include "torchfl/uba.h"

namespace host {

using Loop = bool (*)(const uba_call&);  // false, before it has written anything: the call is none for it
struct SmallLoop {
  const char* op;  // "add"
  Loop run;
};
extern const SmallLoop kSmallLoops[];
extern const size_t kSmallLoopCount;

}  // namespace host
