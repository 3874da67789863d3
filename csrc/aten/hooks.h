// hooks.h: registration of the backend's hooks, and access to the generators behind them.
#pragma once
#include <ATen/core/Generator.h>
#include <c10/core/StorageImpl.h>

namespace torchfl {

void register_hooks();  // once; before any tensor of ours exists
// The CPU generator inside a generator of ours (any other generator is returned as it is).
at::Generator host_generator(const at::Generator& device_generator);
at::Generator default_host_generator(int index);
// Gives a storage of ours another size; what fits of its contents is kept.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

}  // namespace torchfl
