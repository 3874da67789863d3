// program.cpp: see program.h. Numbers, and programs for other sizes.
#include "program.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "error.h"

namespace torchfl {

int64_t ProgramValue::extent() const {
  int64_t last = 0;
  for (size_t d = 0; d < sizes.size(); d++) {
    if (sizes[d] == 0) return 0;
    last += (sizes[d] - 1) * strides[d];
  }
  return last + 1;
}

std::optional<NumberExpr::Op> NumberExpr::op_from_name(const std::string& name) {
  static const std::unordered_map<std::string, Op> names = {
      {"arg", Op::arg}, {"literal", Op::literal}, {"add", Op::add},           {"sub", Op::sub},
      {"mul", Op::mul}, {"div", Op::div},         {"floordiv", Op::floordiv}, {"mod", Op::mod},
      {"pow", Op::pow}, {"neg", Op::neg},         {"abs", Op::abs},           {"max", Op::max},
      {"min", Op::min}, {"sqrt", Op::sqrt},       {"exp", Op::exp},           {"log", Op::log}};
  auto found = names.find(name);
  return found == names.end() ? std::nullopt : std::optional<Op>(found->second);
}

Number combine(NumberExpr::Op op, const Number& a, const Number& b) {
  using Op = NumberExpr::Op;
  const bool whole = a.integer && b.integer;
  auto wrapped = [](uint64_t value) { return Number::of(int64_t(value)); };
  switch (op) {
    case Op::add:
      return whole ? wrapped(uint64_t(a.i) + uint64_t(b.i)) : Number::of(a.real() + b.real());
    case Op::sub:
      return whole ? wrapped(uint64_t(a.i) - uint64_t(b.i)) : Number::of(a.real() - b.real());
    case Op::mul:
      return whole ? wrapped(uint64_t(a.i) * uint64_t(b.i)) : Number::of(a.real() * b.real());
    case Op::div:
      return Number::of(a.real() / b.real());
    case Op::floordiv:
      if (whole && b.i != 0 && b.i != -1) return Number::of(a.i / b.i - (a.i % b.i != 0 && (a.i < 0) != (b.i < 0)));
      if (whole && b.i == -1) return wrapped(0 - uint64_t(a.i));
      return Number::of(std::floor(a.real() / b.real()));
    case Op::mod: {
      if (whole && b.i != 0) {
        const int64_t rest = b.i == -1 ? 0 : a.i % b.i;
        return Number::of(rest != 0 && (rest < 0) != (b.i < 0) ? rest + b.i : rest);
      }
      const double rest = std::fmod(a.real(), b.real());
      return Number::of(rest != 0 && (rest < 0) != (b.real() < 0) ? rest + b.real() : rest);
    }
    case Op::pow:
      if (whole && b.i >= 0) {
        uint64_t result = 1, base = uint64_t(a.i);
        for (uint64_t n = uint64_t(b.i); n != 0; n >>= 1, base *= base) result *= n & 1 ? base : 1;
        return wrapped(result);
      }
      return Number::of(std::pow(a.real(), b.real()));
    case Op::max:
      return b.real() > a.real() ? b : a;
    case Op::min:
      return b.real() < a.real() ? b : a;
    case Op::neg:
      return a.integer ? wrapped(0 - uint64_t(a.i)) : Number::of(-a.d);
    case Op::abs:
      return a.integer ? (a.i < 0 ? wrapped(0 - uint64_t(a.i)) : a) : Number::of(std::fabs(a.d));
    case Op::sqrt:
      return Number::of(std::sqrt(a.real()));
    case Op::exp:
      return Number::of(std::exp(a.real()));
    case Op::log:
      return Number::of(std::log(a.real()));
    case Op::to_int:
      return a.integer ? a : Number::of(int64_t(a.d));
    case Op::to_float:
      return Number::of(a.real());
    case Op::arg:
    case Op::literal:
      break;
  }
  return a;
}

void evaluate_numbers(const Program& program, const std::function<Number(int, int)>& argument,
                      std::vector<Number>& out) {
  out.clear();
  out.reserve(program.numbers.size());
  for (const NumberExpr& n : program.numbers) {
    if (n.op == NumberExpr::Op::arg) {
      out.push_back(argument(n.args[0], n.args[1]));
    } else if (n.op == NumberExpr::Op::literal) {
      out.push_back(n.literal);
    } else {
      const Number& a = out[size_t(n.args[0])];
      out.push_back(combine(n.op, a, n.args.size() > 1 ? out[size_t(n.args[1])] : a));
    }
  }
}

std::vector<int64_t> row_major_strides(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0; step *= std::max<int64_t>(sizes[d], 1)) strides[d] = step;
  return strides;
}

Program resized(const Program& program, const std::vector<std::vector<int64_t>>& input_sizes) {
  std::vector<int64_t> common;
  for (const std::vector<int64_t>& sizes : input_sizes) {
    if (sizes.size() > common.size()) common.insert(common.begin(), sizes.size() - common.size(), 1);
    for (size_t d = 0; d < sizes.size(); d++) {
      int64_t& size = common[common.size() - sizes.size() + d];
      if (sizes[d] != 1) size = sizes[d];
    }
  }
  Program made = program;
  for (ProgramValue& value : made.values) {
    value.sizes = common;
    value.strides = row_major_strides(common);
  }
  for (size_t i = 0; i < program.inputs.size(); i++) {
    ProgramValue& input = made.values[size_t(program.inputs[i].value)];
    input.sizes = input_sizes[i];
    input.strides = row_major_strides(input.sizes);
  }
  for (ProgramValue& value : made.values) {
    const ProgramValue& base = made.values[size_t(value.base)];
    if (&base == &value || base.sizes == common) continue;
    // An input that is broadcast: aligned at the last dimension.
    const size_t missing = common.size() - base.sizes.size();
    for (size_t d = 0; d < common.size(); d++) {
      const bool repeated = d < missing || (base.sizes[d - missing] == 1 && common[d] != 1);
      value.strides[d] = repeated ? 0 : base.strides[d - missing];
    }
  }
  return made;
}

}  // namespace torchfl
