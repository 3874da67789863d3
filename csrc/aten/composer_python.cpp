// composer_python.cpp: asks the composer in Python, and reads the program that it hands back
// (torchfl/compose/program.py says what one is made of).
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/extension.h>

#include "composer.h"
#include "module.h"

namespace py = pybind11;

namespace torchfl {
namespace {

py::object* g_composer = nullptr;  // never freed: the interpreter may be gone by then

Number number_from(const py::handle& value) {
  if (py::isinstance<py::bool_>(value)) return Number::of(int64_t(value.cast<bool>()));
  if (py::isinstance<py::int_>(value)) return Number::of(value.cast<int64_t>());
  if (py::isinstance<py::float_>(value)) return Number::of(value.cast<double>());
  // {"float": "inf"}
  const std::string text = py::cast<std::string>(value[py::str("float")]);
  return Number::of(text == "nan" ? std::nan("") : text == "-inf" ? -HUGE_VAL : HUGE_VAL);
}

ProgramArg arg_from(const py::handle& value) {
  using Kind = ProgramArg::Kind;
  ProgramArg arg;
  auto is = [&](const char* key) { return py::isinstance<py::dict>(value) && value.cast<py::dict>().contains(key); };
  if (value.is_none()) return arg;
  if (is("value")) {
    arg.kind = Kind::value;
    arg.i = value["value"].cast<int64_t>();
  } else if (is("values")) {
    arg.kind = Kind::values;
    for (py::handle id : value["values"]) arg.integers.push_back(id.is_none() ? -1 : id.cast<int64_t>());
  } else if (is("number")) {
    arg.kind = Kind::number;
    arg.i = value["number"].cast<int64_t>();
  } else if (is("dtype")) {
    arg.kind = Kind::integer;
    arg.i = dtype_from_name(value["dtype"].cast<std::string>());
  } else if (is("seed")) {
    arg.kind = Kind::seed;
  } else if (is("offset")) {
    arg.kind = Kind::counter;
    arg.i = value["offset"].cast<int64_t>();
  } else if (py::isinstance<py::str>(value)) {
    arg.kind = Kind::text;
    arg.text = value.cast<std::string>();
  } else if (py::isinstance<py::list>(value) || py::isinstance<py::tuple>(value)) {
    bool whole = true;
    for (py::handle item : value) {
      const Number number = number_from(item);
      whole &= number.integer;
      arg.integers.push_back(number.i);
      arg.reals.push_back(number.real());
    }
    arg.kind = whole ? Kind::integers : Kind::reals;
  } else {
    const Number number = number_from(value);
    arg.kind = number.integer ? Kind::integer : Kind::real;
    arg.i = number.i;
    arg.d = number.d;
  }
  return arg;
}

Program program_from(const py::dict& dict) {
  Program program;
  program.op = dict["op"].cast<std::string>();
  for (py::handle row : dict["values"]) {
    const auto fields = row.cast<py::sequence>();
    ProgramValue value;
    value.dtype = dtype_from_name(fields[0].cast<std::string>());
    value.sizes = fields[1].cast<std::vector<int64_t>>();
    value.strides = fields[2].cast<std::vector<int64_t>>();
    value.offset = fields[3].cast<int64_t>();
    value.base = fields[4].cast<int>();
    program.values.push_back(std::move(value));
  }
  for (py::handle row : dict["inputs"]) {
    const auto fields = row.cast<std::vector<int>>();
    program.inputs.push_back({fields[0], fields[1], fields[2]});
  }
  for (py::handle row : dict["numbers"]) {
    const auto fields = row.cast<py::sequence>();
    const std::string name = fields[0].cast<std::string>();
    const auto operands = fields[1].cast<py::sequence>();
    NumberExpr number;
    if (name == "cast") {
      number.op = operands[1].cast<std::string>() == "int" ? NumberExpr::Op::to_int : NumberExpr::Op::to_float;
      number.args = {operands[0].cast<int>()};
    } else {
      const auto op = NumberExpr::op_from_name(name);
      TORCH_CHECK_VALUE(op.has_value(), "a program with the unknown number expression '", name, "'");
      number.op = *op;
      if (number.op == NumberExpr::Op::literal) {
        number.literal = number_from(operands[0]);
      } else {
        for (py::handle operand : operands) number.args.push_back(operand.cast<int>());
      }
    }
    program.numbers.push_back(std::move(number));
  }
  for (py::handle row : dict["steps"]) {
    const auto fields = row.cast<py::sequence>();
    ProgramStep step;
    const std::string name = fields[0].cast<std::string>();
    const size_t dot = name.find('.');
    step.op = name.substr(0, dot);
    step.overload = dot == std::string::npos ? "" : name.substr(dot + 1);
    if (step.overload == "default") step.overload.clear();
    for (py::handle arg : fields[1]) step.args.push_back(arg_from(arg));
    for (py::handle out : fields[2]) step.outs.push_back(out.is_none() ? -1 : out.cast<int>());
    program.steps.push_back(std::move(step));
  }
  for (py::handle out : dict["outputs"]) program.outputs.push_back(out.is_none() ? -1 : out.cast<int>());
  for (py::handle row : dict["writes"]) program.writes.push_back(row.cast<std::pair<int, int>>());
  for (py::handle row : dict["baked"]) program.baked.push_back(row.cast<std::pair<int, int>>());
  program.random = dict["random"].cast<int64_t>();
  program.pointwise = dict["generic"].cast<std::string>() == "pointwise";
  return program;
}

// The composer answers with (program, constants), or with the reason why there is none.
Composed compose(const c10::OperatorHandle& functional, const std::vector<c10::IValue>& args, int device) {
  Composed composed;
  py::gil_scoped_acquire gil;
  try {
    py::list arguments;
    size_t next = 0;
    for (const c10::Argument& declared : functional.schema().arguments()) {
      if (declared.is_out()) continue;
      const c10::IValue& arg = args[next++];
      // The dispatcher carries dtypes as integers.
      const bool dtype = arg.isInt() && declared.real_type()->str().find("ScalarType") != std::string::npos;
      arguments.append(dtype               ? py::cast(c10::ScalarType(arg.toInt()))
                       : arg.isGenerator() ? py::none()
                                           : torch::jit::toPyObject(meta_value(arg)));
    }
    const py::object answer =
        (*g_composer)(functional.schema().name(), functional.schema().overload_name(), arguments, device);
    if (py::isinstance<py::str>(answer)) {
      composed.why = answer.cast<std::string>();
      return composed;
    }
    const auto parts = answer.cast<py::tuple>();
    Program program = program_from(parts[0].cast<py::dict>());
    for (py::handle pair : parts[1]) {
      const auto fields = pair.cast<py::tuple>();
      program.constants.push_back(fields[0].cast<int>());
      composed.constants.push_back(fields[1].cast<at::Tensor>());
    }
    composed.program = std::make_shared<const Program>(std::move(program));
  } catch (py::error_already_set& error) {
    // A fault of the composer must not cost the user the operator: the next path runs, and the reason is on record.
    composed.why = std::string("composing failed: ") + error.what();
    error.restore();
    PyErr_Clear();
  }
  return composed;
}

}  // namespace

void define_composer(py::module_& m) {
  m.def("set_composer", [](py::object function) {
    delete g_composer;
    g_composer = function.is_none() ? nullptr : new py::object(std::move(function));
    set_compose_function(g_composer != nullptr ? &compose : nullptr);
    forget_programs();
    forget_plans();
  });
  // For tools and tests: what is kept of decided calls; plans are the calling thread's.
  m.def("cache_sizes", [] { return py::dict(py::arg("plans") = plan_count(), py::arg("programs") = program_count()); });
}

}  // namespace torchfl
