// graph_python.cpp: torchfl._C's part for torchfl.compile: building and running programs, defining fused operators.
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/extension.h>

#include "graph_fused.h"
#include "graph_program.h"
#include "module.h"
#include "undisturbed.h"

namespace py = pybind11;

namespace torchfl {
namespace {

struct Slot {  // stands for a value of the program among the arguments of a step
  int index;
};

using GraphArg = GraphProgram::Arg;

bool holds_slot(py::handle value) {
  if (py::isinstance<Slot>(value)) return true;
  if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value)) return false;
  for (py::handle item : value) {
    if (holds_slot(item)) return true;
  }
  return false;
}

bool takes_tensor(const c10::TypePtr& type) {
  if (const auto* optional = type->castRaw<c10::OptionalType>()) return takes_tensor(optional->getElementType());
  return type->kind() == c10::TypeKind::TensorType;
}

GraphArg arg_from(py::handle value, const c10::TypePtr& type) {
  GraphArg arg;
  arg.tensor = takes_tensor(type);
  if (py::isinstance<Slot>(value)) {
    arg.kind = GraphArg::Kind::slot;
    arg.slot = value.cast<Slot>().index;
    return arg;
  }
  if (arg.tensor && !value.is_none() && !THPVariable_Check(value.ptr())) {
    arg.value = GraphProgram::wrapped_number(torch::jit::toIValue(value, c10::NumberType::get()).toScalar());
    return arg;
  }
  if (!holds_slot(value)) {
    arg.value = torch::jit::toIValue(value, type);
    return arg;
  }
  c10::TypePtr list = type;
  if (const auto* optional = list->castRaw<c10::OptionalType>()) list = optional->getElementType();
  const auto* listed = list->castRaw<c10::ListType>();
  TORCH_CHECK_TYPE(listed != nullptr, "a list was given where ", type->repr_str(), " is expected");
  arg.kind = GraphArg::Kind::list;
  arg.element = listed->getElementType();
  for (py::handle item : value) arg.items.push_back(arg_from(item, arg.element));
  return arg;
}

// A number or a value that no schema describes.
GraphArg plain_arg(py::handle value) {
  if (py::isinstance<Slot>(value)) return arg_from(value, c10::AnyType::get());
  GraphArg arg;
  if (THPVariable_Check(value.ptr())) {
    arg.value = THPVariable_Unpack(value.ptr());
  } else if (PyBool_Check(value.ptr())) {
    arg.value = value.cast<bool>();
  } else if (PyLong_Check(value.ptr())) {
    arg.value = value.cast<int64_t>();
  } else if (PyFloat_Check(value.ptr())) {
    arg.value = value.cast<double>();
  } else if (!value.is_none()) {
    throw py::type_error("a program takes tensors, numbers and None, not " +
                         py::str(py::type::of(value)).cast<std::string>());
  }
  return arg;
}

GraphProgram::Compute compute_from(const std::string& name) {
  using C = GraphProgram::Compute;
  static const std::unordered_map<std::string, C> table = {
      {"add", C::add},     {"sub", C::sub},   {"mul", C::mul},     {"truediv", C::div},    {"floordiv", C::floordiv},
      {"mod", C::mod},     {"pow", C::pow},   {"neg", C::neg},     {"sym_min", C::min},    {"sym_max", C::max},
      {"eq", C::eq},       {"ne", C::ne},     {"lt", C::lt},       {"le", C::le},          {"gt", C::gt},
      {"ge", C::ge},       {"and_", C::both}, {"or_", C::either},  {"sym_not", C::no},     {"sym_ite", C::choose},
      {"floor", C::floor}, {"ceil", C::ceil}, {"trunc", C::trunc}, {"sym_int", C::to_int}, {"sym_float", C::to_float}};
  auto found = table.find(name);
  if (found == table.end()) throw py::value_error("no computation of sizes is called " + name);
  return found->second;
}

py::object to_python(const c10::IValue& value) {
  if (value.isTensor() && !value.toTensor().defined()) return py::none();
  return torch::jit::toPyObject(value);
}

std::vector<c10::IValue> run_program(const GraphProgram& program, py::list inputs) {
  std::vector<c10::IValue> values;
  values.reserve(inputs.size());
  for (py::handle input : inputs) values.push_back(plain_arg(input).value);
  if (PyList_SetSlice(inputs.ptr(), 0, PyList_GET_SIZE(inputs.ptr()), nullptr) != 0) throw py::error_already_set();
  py::gil_scoped_release nogil;
  return program.run(std::move(values));
}

}  // namespace

namespace {
// Dynamo's, for ever; NULL as long as nobody has imported Dynamo, which takes seconds.
PyObject* set_eval_frame() {
  static PyObject* set = nullptr;
  if (set != nullptr) return set;
  PyObject* module = PyDict_GetItemString(PyImport_GetModuleDict(), "torch._dynamo.eval_frame");
  if (module == nullptr || !PyObject_HasAttrString(module, "set_eval_frame")) return nullptr;
  set = PyObject_GetAttrString(module, "set_eval_frame");
  return set;
}
}  // namespace

Undisturbed::Undisturbed() {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  PyObject* set = set_eval_frame();
  if (set == nullptr) return;
  PyObject* before = PyObject_CallOneArg(set, Py_None);
  if (before == nullptr) throw py::error_already_set();
  if (before == Py_None) {
    Py_DECREF(before);
  } else {
    before_ = before;
  }
}

Undisturbed::~Undisturbed() {
  if (before_ == nullptr) return;
  py::gil_scoped_acquire gil;
  const py::error_scope pending;  // an exception may be on its way
  const py::object before = py::reinterpret_steal<py::object>(static_cast<PyObject*>(before_));
  try {
    if (PyObject* set = set_eval_frame()) py::reinterpret_borrow<py::object>(set)(before);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("torchfl: giving Dynamo its callback back");
  }
}

void define_graph(py::module_& m) {
  py::class_<Slot>(m, "Slot").def(py::init([](int index) { return Slot{index}; })).def_readonly("index", &Slot::index);
  py::class_<GraphProgram, std::shared_ptr<GraphProgram>>(m, "GraphProgram")
      .def(py::init<std::string, int, int>(), py::arg("name"), py::arg("inputs"), py::arg("slots"))
      .def("call",
           [](GraphProgram& self, const std::string& op, const std::string& overload, const py::list& args,
              std::vector<int> outs, std::vector<int> frees) {
             auto handle = c10::Dispatcher::singleton().findSchema({op, overload});
             TORCH_CHECK_VALUE(handle.has_value(), "no operator ", op, overload.empty() ? "" : ".", overload);
             const auto& wanted = handle->schema().arguments();
             TORCH_CHECK_VALUE(args.size() == wanted.size(), op, " takes ", wanted.size(), " arguments");
             std::vector<GraphArg> given;
             for (size_t i = 0; i < wanted.size(); i++) given.push_back(arg_from(args[i], wanted[i].type()));
             self.add_call(*handle, std::move(given), std::move(outs), std::move(frees));
           })
      .def("compute",
           [](GraphProgram& self, const std::string& what, const py::list& args, int out, std::vector<int> frees) {
             std::vector<GraphArg> given;
             for (py::handle arg : args) given.push_back(plain_arg(arg));
             self.add_compute(compute_from(what), std::move(given), out, std::move(frees));
           })
      .def("item", &GraphProgram::add_item)
      .def("finish",
           [](GraphProgram& self, const py::list& outputs, int device) {
             std::vector<GraphArg> given;
             for (py::handle output : outputs) given.push_back(plain_arg(output));
             self.finish(std::move(given), device);
           })
      // Empties the list of inputs, so that what the caller does not hold is freed as soon as no step needs it.
      .def("run",
           [](const GraphProgram& self, py::list inputs) {
             py::list out;
             for (const c10::IValue& value : run_program(self, std::move(inputs))) out.append(to_python(value));
             return out;
           })
      .def("memory",
           [](const GraphProgram& self) {
             const GraphProgram::Memory memory = self.memory();
             py::dict out;
             out["planned_bytes"] = memory.planned;
             out["separate_bytes"] = memory.separately;
             out["runs"] = memory.runs;
             out["planned_runs"] = memory.planned_runs;
             return out;
           })
      .def_property_readonly("name", &GraphProgram::name)
      .def_property_readonly("step_count", &GraphProgram::step_count);
  m.def("define_fused", &define_fused);
  // (operator, overload, arguments, position of the result before) of each link.
  m.def("fused_links", [](const std::string& name) {
    py::list out;
    for (const FusedLink& link : fused_links(name))
      out.append(py::make_tuple(link.op, link.overload, link.arguments, link.chained));
    return out;
  });
  m.def("schema_of", [](const std::string& op, const std::string& overload) {
    auto handle = c10::Dispatcher::singleton().findSchema({op, overload});
    TORCH_CHECK_VALUE(handle.has_value(), "no operator ", op, overload.empty() ? "" : ".", overload);
    std::vector<std::string> names;
    for (const c10::Argument& arg : handle->schema().arguments()) names.push_back(arg.name());
    return names;
  });
}

}  // namespace torchfl
