// custom_python.cpp: calls the functions of custom fallbacks (torchfl/_fallbacks.py finds them) and the wrappers of
// kernels (torchfl/_wrappers.py).
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/extension.h>

#include "aten_handlers.h"
#include "custom_route.h"
#include "module.h"
#include "undisturbed.h"
#include "wrapper_route.h"

namespace py = pybind11;

namespace torchfl {
namespace {

py::object* g_call = nullptr;  // never freed: the interpreter may be gone by then
py::object* g_told = nullptr;  // what the exception of a wrapper becomes

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

void read_results(const py::object& answer, const c10::FunctionSchema& form, const std::string& who,
                  std::vector<c10::IValue>* results) {
  const auto& returns = form.returns();
  if (returns.empty() || (answer.is_none() && form.is_mutable())) return;
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

// The error that is set, as an exception that carries its Python type across threads: backward may raise it in one of
// autograd's.
[[noreturn]] void raise_here() {
  python_error error;
  error.persist();
  throw error;
}

// Runs `body` under the GIL, with what is switched on for the caller out of its way.
template <class Body>
bool under_the_gil(Body&& body) {
  const Undisturbed undisturbed;
  py::gil_scoped_acquire gil;
  try {
    return body();
  } catch (py::error_already_set& raised) {
    raised.restore();
  } catch (const py::builtin_exception& raised) {
    raised.set_error();
  }
  raise_here();
}

bool call_python(const std::string& function, const c10::OperatorHandle& form, const std::vector<c10::IValue>& args,
                 int device, std::vector<c10::IValue>* results) {
  return under_the_gil([&] {
    TORCH_CHECK(g_call != nullptr, "no way to call ", function);
    py::list values;
    size_t next = 0;
    for (const c10::Argument& declared : form.schema().arguments()) {
      if (!declared.is_out()) values.append(to_python(args[next++], declared));
    }
    const std::string name = form.schema().name(), overload = form.schema().overload_name();
    const py::object answer = (*g_call)(function, name, overload, values, device);
    if (answer.ptr() == Py_NotImplemented) return false;
    read_results(answer, form.schema(), name + " on " + runtime::label(device) + ": its fallback " + function, results);
    return true;
  });
}

// What pybind's caster takes for a tensor that is not given; None it does not take.
PyObject* undefined_tensor() {
  static PyObject* const object = [] {
    auto* type = reinterpret_cast<PyTypeObject*>(THPVariableClass);
    PyObject* made = type->tp_alloc(type, 0);
    if (made == nullptr) throw py::error_already_set();
    PyObject_GC_UnTrack(made);  // stays for ever, and nobody looks inside
    new (&reinterpret_cast<THPVariable*>(made)->cdata) at::Tensor();
    return made;
  }();
  return object;
}

bool call_wrapper(const Wrapper& wrapper, const Callee& callee, const c10::FunctionSchema& schema,
                  const std::vector<c10::IValue>& args, const c10::FunctionSchema& returns,
                  std::vector<c10::IValue>* results) {
  return under_the_gil([&] {
    py::tuple values(args.size());
    for (size_t i = 0; i < args.size(); i++) {
      py::object value = to_python(args[i], schema.arguments()[i]);
      if (value.is_none() && i < wrapper.takes_tensor.size() && wrapper.takes_tensor[i])
        value = py::reinterpret_borrow<py::object>(undefined_tensor());
      values[i] = std::move(value);
    }
    py::object answer =
        py::reinterpret_steal<py::object>(PyObject_CallObject(static_cast<PyObject*>(wrapper.callable), values.ptr()));
    if (!answer) {
      py::error_already_set raised;
      if (raised.matches(PyExc_NotImplementedError)) {
        const std::string why = py::str(raised.value());
        host_table()->set_error(0, why.c_str());
        return false;
      }
      if (g_told == nullptr) throw raised;
      py::object told = (*g_told)(raised.value(), callee.op, callee.plan.entry->label,
                                  callee.plan.entry->chip->chip.name, wrapper.name, wrapper.source, values);
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(told.ptr())), told.ptr());
      throw py::error_already_set();
    }
    if (answer.ptr() == Py_NotImplemented) {
      host_table()->set_error(0, (wrapper.name + " returned NotImplemented").c_str());
      return false;
    }
    read_results(answer, returns, callee.text(), results);
    return true;
  });
}

}  // namespace

std::shared_ptr<AtenHandler> wrapper_from(const std::string& name, const py::dict& facts) {
  auto wrapper = std::make_shared<Wrapper>();
  wrapper->name = name;
  wrapper->source = facts["source"].cast<std::string>();
  wrapper->callable = py::object(facts["function"]).release().ptr();
  wrapper->parameters = facts["parameters"].cast<int>();
  wrapper->takes_tensor = facts["takes_tensor"].cast<std::vector<bool>>();
  wrapper->stands_for = facts["stands_for"].cast<std::map<std::string, std::string>>();
  auto handler = std::make_shared<AtenHandler>();
  handler->op = name;
  handler->wrapper = std::move(wrapper);
  return handler;
}

void define_custom(py::module_& m) {
  m.def("set_call_custom", [](py::object function) {
    delete g_call;
    g_call = new py::object(std::move(function));
    set_call_custom(&call_python);
  });
  m.def("set_wrapper_errors", [](py::object function) {
    delete g_told;
    g_told = new py::object(std::move(function));
    set_call_wrapper(&call_wrapper);
  });
  m.def("register_custom", &register_custom, py::arg("op"), py::arg("device"), py::arg("function"));
}

}  // namespace torchfl
