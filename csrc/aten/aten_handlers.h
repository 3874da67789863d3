// aten_handlers.h: operators served by functions on ATen tensors, as the engine keeps them: of ATen-style adapters
// (torchfl/uba_aten.h), and of pybind modules (wrapper_route.h).
#pragma once
#include <string>

#include "runtime.h"
#include "torchfl/uba_aten.h"

namespace torchfl {

struct Wrapper;

struct AtenHandler {
  std::string op;  // as registered: "aten::add.Tensor"
  torch::fl::OpHandler function;
  torch::fl::HandlerOptions options;
  std::shared_ptr<Wrapper> wrapper = nullptr;  // a function of a pybind module instead (wrapper_route.h)
};

// What an adapter library registered for one device type, in a process-wide book filled by loading it.
struct AtenAdapter {
  torch::fl::DeviceOptions options;
  std::vector<std::shared_ptr<AtenHandler>> handlers;
};
// Whether the library, which is loaded already, has a `torch_fl_register_<device_type>` beside its uba_query.
bool has_aten_handlers(const std::string& path, const std::string& device_type);
// Runs the library's `torch_fl_register_<device_type>` and returns what it registered. Throws Error(load).
std::shared_ptr<AtenAdapter> load_aten_adapter(const std::string& path, const std::string& device_type);
// Puts one row for each handler of an operator in front of the chip's own. Kernels have theirs in the descriptor.
void add_handler_rows(Chip& chip, const AtenAdapter& adapter);

}  // namespace torchfl
