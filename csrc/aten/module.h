// module.h: the parts that torchfl._C is put together from, each in the file of what it exposes.
#pragma once
#include <torch/extension.h>

#include <memory>
#include <string>

namespace torchfl {

struct AtenHandler;
// A function of a pybind module as a kernel of that name: {"function", "source", "parameters", "takes_tensor"}.
std::shared_ptr<AtenHandler> wrapper_from(const std::string& name, const pybind11::dict& facts);  // custom_python.cpp

void define_composer(pybind11::module_& m);  // composer_python.cpp
void define_custom(pybind11::module_& m);    // custom_python.cpp
void define_graph(pybind11::module_& m);     // graph_python.cpp
void define_profiler(pybind11::module_& m);  // profiler_python.cpp

}  // namespace torchfl
