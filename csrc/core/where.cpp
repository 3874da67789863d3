// where.cpp: whether a condition of a descriptor row holds for a call, and in one sentence why not.
//
// Contract: a name is an argument of the operator, else a derived quantity. A list holds if each element does (except
// `equals` with a list of the same length, which compares element by element). Bools are 0 and 1, dtypes their names.
// An optional argument that was not given satisfies every condition on it.
#include <cmath>
#include <cstdio>

#include "route_parts.h"

namespace torchfl {
namespace {

struct Value {
  std::vector<double> numbers;
  std::vector<std::string> strings;
  bool is_list = false;
  bool absent = false;       // an optional argument that was not given
  const char* problem = "";  // why it cannot be compared
};

Value value_of(const Condition& condition, const CallView& call) {
  Value value;
  const int arg = find_arg(call, condition.name);
  if (arg < 0 || arg >= call.arg_count) {
    value.numbers = derived_quantity(call, condition.name);
    value.is_list = value.numbers.size() > 1;
    if (value.numbers.empty()) value.problem = "cannot be told from this call";
    return value;
  }
  const uba_value& given = call.args[arg];
  switch (given.kind) {
    case UBA_NONE:
      value.absent = true;
      break;
    case UBA_INT:
      // An integer that is compared with names is a dtype: the only kind of argument whose names are not strings.
      if (condition.strings.empty()) {
        value.numbers = {double(given.v.i)};
      } else {
        value.strings = {dtype_name(int32_t(given.v.i))};
      }
      break;
    case UBA_DOUBLE:
      value.numbers = {given.v.d};
      break;
    case UBA_INT_LIST:
      value.numbers.assign(given.v.ints, given.v.ints + given.count);
      value.is_list = true;
      break;
    case UBA_DOUBLE_LIST:
      value.numbers.assign(given.v.doubles, given.v.doubles + given.count);
      value.is_list = true;
      break;
    case UBA_STRING:
      value.strings = {given.v.str};
      break;
    case UBA_COMPLEX:
      value.problem = "is a complex number";
      break;
    default:
      value.problem = "is a tensor";
  }
  return value;
}

bool one_of(double value, const std::vector<double>& allowed) {
  for (double candidate : allowed) {
    if (value == candidate) return true;
  }
  return false;
}

bool one_of(const std::string& value, const std::vector<std::string>& allowed) {
  for (const std::string& candidate : allowed) {
    if (value == candidate) return true;
  }
  return false;
}

bool holds(const Condition& condition, double value) {
  const double limit = condition.numbers.empty() ? 0 : condition.numbers[0];
  switch (condition.op) {
    case Condition::Op::in:
    case Condition::Op::equals:
      return one_of(value, condition.numbers);
    case Condition::Op::not_in:
      return !one_of(value, condition.numbers);
    case Condition::Op::min:
      return value >= limit;
    case Condition::Op::max:
      return value <= limit;
    case Condition::Op::multiple_of:
      return limit != 0 && std::fmod(value, limit) == 0;
  }
  return false;
}

bool holds(const Condition& condition, const Value& value) {
  if (condition.op == Condition::Op::equals && value.is_list && condition.numbers.size() > 1) {
    return value.numbers == condition.numbers;
  }
  for (double number : value.numbers) {
    if (!holds(condition, number)) return false;
  }
  for (const std::string& text : value.strings) {
    if (one_of(text, condition.strings) == (condition.op == Condition::Op::not_in)) return false;
  }
  return true;
}

std::string allowed_text(const Condition& condition) {
  std::string values = list_text(condition.numbers);
  for (const std::string& text : condition.strings) values += (values.empty() ? "'" : ", '") + text + "'";
  switch (condition.op) {
    case Condition::Op::in:
      return values;
    case Condition::Op::equals:
      return condition.numbers.size() > 1 ? "only [" + values + "]" : "only " + values;
    case Condition::Op::not_in:
      return "anything but " + values;
    case Condition::Op::min:
      return "at least " + values;
    case Condition::Op::max:
      return "at most " + values;
    case Condition::Op::multiple_of:
      return "multiples of " + values;
  }
  return values;
}

std::string value_text(const Value& value) {
  if (!value.strings.empty()) return "'" + value.strings[0] + "'";
  // Most lists repeat one number (stride=3 arrives as [3, 3]); users wrote it once.
  bool uniform = true;
  for (double number : value.numbers) uniform = uniform && number == value.numbers[0];
  if (uniform && !value.numbers.empty()) return number_text(value.numbers[0]);
  return "[" + list_text(value.numbers) + "]";
}

}  // namespace

std::string number_text(double value) {
  char text[40];
  std::snprintf(text, sizeof(text), std::floor(value) == value && std::fabs(value) < 1e15 ? "%.0f" : "%.6g", value);
  return text;
}

std::string list_text(const std::vector<double>& values) {
  std::string text;
  for (double value : values) text += (text.empty() ? "" : ", ") + number_text(value);
  return text;
}

std::optional<std::string> condition_fails(const Condition& condition, const std::string& kernel,
                                           const CallView& call) {
  const Value value = value_of(condition, call);
  if (value.absent) return std::nullopt;
  if (value.problem[0] != '\0') {
    return condition.name + " " + value.problem + ", " + kernel + " takes " + allowed_text(condition);
  }
  if (holds(condition, value)) return std::nullopt;
  return condition.name + " is " + value_text(value) + ", " + kernel + " takes " + allowed_text(condition);
}

}  // namespace torchfl
