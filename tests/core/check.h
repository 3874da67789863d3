// check.h: the few macros that the core's test programs need; no framework.
//
// Contract: TEST(name) { ... } registers a test; run_tests() runs all of them (or those whose name contains the first
// command-line argument), goes on after a failed CHECK, and returns the process's exit status.
#pragma once
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <vector>

namespace check {

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}

inline int& failures() {
  static int count = 0;
  return count;
}

struct Registration {
  Registration(const char* name, void (*run)()) { tests().push_back({name, run}); }
};

inline void fail(const char* file, int line, const std::string& what) {
  ++failures();
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
}

template <typename A, typename B>
void equal(const char* file, int line, const char* text, const A& a, const B& b) {
  if (a == b) return;
  std::ostringstream what;
  what << text << ": " << a << " is not " << b;
  fail(file, line, what.str());
}

inline void contains(const char* file, int line, const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) fail(file, line, "\"" + text + "\" does not contain \"" + part + "\"");
}

// The message of what `function` throws; "" (and a failure) if it throws nothing.
template <typename Error, typename Function>
std::string message_of(const char* file, int line, Function function) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  fail(file, line, "nothing was thrown");
  return "";
}

inline int run_tests(int argc, char** argv) {
  int run = 0;
  for (const Test& test : tests()) {
    if (argc > 1 && std::string(test.name).find(argv[1]) == std::string::npos) continue;
    const int before = failures();
    try {
      test.run();
    } catch (const std::exception& error) {
      fail(__FILE__, __LINE__, std::string("unexpected exception: ") + error.what());
    }
    std::printf("%-6s %s\n", failures() == before ? "ok" : "FAILED", test.name);
    ++run;
  }
  std::printf("%d tests, %d failed checks\n", run, failures());
  return failures() == 0 && run > 0 ? 0 : 1;
}

}  // namespace check

#define TEST(name)                                             \
  static void name();                                          \
  static check::Registration registration_##name(#name, name); \
  static void name()
#define CHECK(condition) ((condition) ? (void)0 : check::fail(__FILE__, __LINE__, "not true: " #condition))
#define CHECK_EQ(a, b) check::equal(__FILE__, __LINE__, #a " == " #b, a, b)
#define CHECK_CONTAINS(text, part) check::contains(__FILE__, __LINE__, text, part)
// The message of the torchfl::Error that the expression throws.
#define ERROR_OF(...) check::message_of<torchfl::Error>(__FILE__, __LINE__, [&] { __VA_ARGS__; })
