// library_file.h: reads the header of an ELF library before the dynamic loader may touch it.
//
// Contract: `inspect_library` throws Error(load) for what dlopen would report badly (another architecture), or not
// survive (a truncated file is mapped and then faults with SIGBUS). It reads headers only and runs nothing.
#pragma once
#include <string>

namespace torchfl {

// `descriptor` is an open file; `path` is for messages.
void inspect_library(int descriptor, const std::string& path);

}  // namespace torchfl
