// autograd_threads.h: threads of PyTorch's autograd for devices that come late.
#pragma once

namespace torchfl {

// PyTorch's autograd counts the devices once, at the first backward of a process, and starts a thread for each; a
// backward on a device that came later would fail by an internal assertion. If that count has been made, this gives
// every further device its thread; else it does nothing. To be called when devices have been added, while no backward
// is under way.
void give_devices_autograd_threads();

}  // namespace torchfl
