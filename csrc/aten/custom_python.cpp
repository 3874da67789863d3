// custom_python.cpp: calls the functions of custom fallbacks (torchfl/_fallbacks.py finds them).
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/extension.h>

#include "custom_route.h"
#include "module.h"
#include "undisturbed.h"

namespace py = pybind11;

namespace torchfl {
namespace {

py::object* g_call = nullptr;  // never freed: the interpreter may be gone by then

// The dispatcher carries these as integers.
py::object to_python(const c10::IValue& value, const c10::Argument& declared) {
  if (value.isInt()) {
    const std::string type = declared.real_type()->str();
    if (type.find("ScalarType") != std::string::npos) return py::cast(c10::ScalarType(value.toInt()));
    if (type.find("Layout") != std::string::npos) return py::cast(c10::Layout(value.toInt()));
    if (type.find("MemoryFormat") != std::string::npos) return py::cast(c10::MemoryFormat(value.toInt()));
  }
  return torch::jit::toPyObject(value);
}

c10::IValue from_python(const py::handle& value, const c10::Argument& declared, const std::string& who) {
  try {
    return torch::jit::toIValue(value, declared.type());
  } catch (const std::exception&) {
    throw py::type_error(who + " returned " + std::string(py::str(py::type::of(value))) + ", expected " +
                         declared.type()->str());
  }
}

void read_results(const py::object& answer, const c10::OperatorHandle& form, const std::string& who,
                  std::vector<c10::IValue>* results) {
  const auto& returns = form.schema().returns();
  if (returns.empty() || (answer.is_none() && form.schema().is_mutable())) return;
  if (returns.size() == 1) {
    results->push_back(from_python(answer, returns[0], who));
    return;
  }
  if (!py::isinstance<py::tuple>(answer) && !py::isinstance<py::list>(answer))
    throw py::type_error(who + " returned " + std::string(py::str(py::type::of(answer))) + ", expected a tuple of " +
                         std::to_string(returns.size()));
  const auto values = answer.cast<py::sequence>();
  if (values.size() != returns.size())
    throw py::type_error(who + " returned " + std::to_string(values.size()) + " values, expected " +
                         std::to_string(returns.size()));
  for (size_t i = 0; i < returns.size(); i++) results->push_back(from_python(py::object(values[i]), returns[i], who));
}

bool call_python(const std::string& function, const c10::OperatorHandle& form, const std::vector<c10::IValue>& args,
                 int device, std::vector<c10::IValue>* results) {
  const Undisturbed undisturbed;
  py::gil_scoped_acquire gil;
  try {
    TORCH_CHECK(g_call != nullptr, "no way to call ", function);
    py::list values;
    size_t next = 0;
    for (const c10::Argument& declared : form.schema().arguments()) {
      if (!declared.is_out()) values.append(to_python(args[next++], declared));
    }
    const std::string name = form.schema().name(), overload = form.schema().overload_name();
    const py::object answer = (*g_call)(function, name, overload, values, device);
    if (answer.ptr() == Py_NotImplemented) return false;
    read_results(answer, form, name + " on " + runtime::label(device) + ": its fallback " + function, results);
    return true;
  } catch (py::error_already_set& raised) {
    raised.restore();
  } catch (const py::builtin_exception& raised) {
    raised.set_error();
  }
  // As an exception that carries its Python type across threads: backward may raise it in one of autograd's.
  python_error error;
  error.persist();
  throw error;
}

}  // namespace

void define_custom(py::module_& m) {
  m.def("set_call_custom", [](py::object function) {
    delete g_call;
    g_call = new py::object(std::move(function));
    set_call_custom(&call_python);
  });
  m.def("register_custom", &register_custom, py::arg("op"), py::arg("device"), py::arg("function"));
}

}  // namespace torchfl
