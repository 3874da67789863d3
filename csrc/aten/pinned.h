// pinned.h: host memory for copies that do not wait.
#pragma once
#include <ATen/core/CachingHostAllocator.h>

namespace torchfl {

at::HostAllocator* pinned_allocator();
bool is_pinned(const void* data);

}  // namespace torchfl
