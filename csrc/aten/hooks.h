// hooks.h: registration of the backend's hooks.
#pragma once
#include <c10/core/StorageImpl.h>

namespace torchfl {

void register_hooks();  // once; before any tensor of ours exists
// Gives a storage of ours another size; what fits of its contents is kept.
void resize_storage(c10::StorageImpl* storage, size_t bytes);

}  // namespace torchfl
