// host_device.h: a device for the kernel kit without any chip: kernels are C++, compiled by the compiler that built the
// tests and run in this process. It records what is built and launched.
//
// Contract: an address is `kBase + slot * kStep + offset`, no address of this process, so that a kernel can only reach
// what the kit looked up. Work is done when it is enqueued.
#pragma once
#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <mutex>
#include <sstream>

#include "kit/kit.h"

namespace testing_kit {

struct HostKernel final : kit::Kernel {
  std::string name;
  void *library = nullptr;
  void (*run)(const void *const *arguments, const size_t *global) = nullptr;
  ~HostKernel() override {
    if (library) dlclose(library);
  }
};

struct Launch {
  std::string kernel;
  kit::Range range;
  size_t memories = 0;
  std::vector<int64_t> first;  // the first argument, as it was passed
};

class HostStream final : public kit::Stream {
 public:
  using kit::Stream::Stream;
  std::vector<Launch> launches;
  std::vector<kit::Matmul> products;
  bool takes_products = false;
  int32_t flag = 0;
  std::function<void()> in_scratch;

  void launch(kit::Kernel &kernel, const kit::Range &range, const kit::Argument *arguments, size_t count) override {
    const HostKernel &k = static_cast<HostKernel &>(kernel);
    std::lock_guard<std::mutex> lock(recording_);
    launches.push_back({k.name, range, 0, {}});
    std::vector<const void *> values;
    for (size_t i = 0; i < count; i++)
      launches.back().memories += arguments[i].memory, values.push_back(arguments[i].value);
    launches.back().first.resize(arguments[0].bytes / 8);
    std::memcpy(launches.back().first.data(), arguments[0].value, arguments[0].bytes / 8 * 8);
    if (k.run) k.run(values.data(), range.global);
  }
  kit::Buffer scratch(uint64_t bytes) override {
    if (in_scratch) in_scratch();
    std::lock_guard<std::mutex> lock(recording_);
    rooms_.emplace_back(bytes);
    return {rooms_.back().data(), 0};
  }
  void *fault() override { return &flag; }
  bool takes(const kit::Matmul &) const override { return takes_products; }
  void matmul(const kit::Matmul &product) override { products.push_back(product); }

 private:
  std::deque<std::vector<char>> rooms_;
  std::mutex recording_;
};

class HostDevice final : public kit::Device {
 public:
  static constexpr uint64_t kBase = uint64_t(1) << 60, kStep = uint64_t(1) << 32;
  HostStream queue{*this};
  std::vector<std::string> built;  // sources
  int loaded = 0;
  bool compiles = true;  // false: kernels do nothing, and are built at once

  HostDevice() {
    name = "the host", versions = "1", folder = "kit_test", lanes = 1, cpu = true, stream = &queue;
    std::ifstream file(KIT_TEST_DIALECT);
    std::stringstream text;
    text << file.rdbuf();
    dialect = text.str();
  }
  ~HostDevice() override { forget(); }
  void *memory(size_t bytes) {
    slots_.emplace_back(bytes);
    return reinterpret_cast<void *>(kBase + (slots_.size() - 1) * kStep);
  }
  // What lies at an address of this device.
  template <class T>
  T *reach(const void *address) {
    const kit::Buffer b = at(address);
    return reinterpret_cast<T *>(static_cast<char *>(b.memory) + b.offset);
  }

  kit::Buffer at(const void *address) override {
    const uint64_t place = reinterpret_cast<uint64_t>(address) - kBase;
    if (place / kStep >= slots_.size()) throw kit::Failure{UBA_INVALID_VALUE, 0, "no address of this device"};
    return {slots_[place / kStep].data(), place % kStep};
  }
  std::unique_ptr<kit::Kernel> build(const kit::Recipe &recipe, std::string *binary) override {
    built.push_back(recipe.source.substr(dialect.size()));
    if (!compiles) {
      *binary = "nothing " + recipe.name;
      return load(*binary, recipe.name);
    }
    char folder_name[] = "/tmp/kit_test_XXXXXX";
    if (!mkdtemp(folder_name)) throw kit::Failure{UBA_FAILED, 0, "no temporary folder"};
    const std::string at = folder_name, source = at + "/k.cpp", library = at + "/k.so", log = at + "/log";
    std::ofstream(source) << recipe.source << R"(
}
template <class... A, size_t... I>
static void call(void (*f)(A...), const void *const *values, std::index_sequence<I...>) {
  f(*static_cast<const std::remove_cv_t<A> *>(values[I])...);
}
template <class... A>
static void call(void (*f)(A...), const void *const *values) {
  call(f, values, std::index_sequence_for<A...>());
}
extern "C" void run(const void *const *values, const size_t *global) {
  for (item[2] = 0; item[2] < long(global[2]); item[2]++)
    for (item[1] = 0; item[1] < long(global[1]); item[1]++)
      for (item[0] = 0; item[0] < long(global[0]); item[0]++) call(kernel::)"
                          << recipe.name << ", values);\n}\n";
    const std::string command = KIT_TEST_COMPILER " -std=c++17 -O1 -ffp-contract=off -w -fpermissive -shared -fPIC " +
                                source + " -o " + library + " 2> " + log;
    std::string text;
    if (std::system(command.c_str()) == 0) {
      std::ifstream made(library, std::ios::binary);
      binary->assign(std::istreambuf_iterator<char>(made), std::istreambuf_iterator<char>());
    } else {
      std::ifstream said(log);
      text.assign(std::istreambuf_iterator<char>(said), std::istreambuf_iterator<char>());
    }
    for (const std::string &one : {source, library, log}) unlink(one.c_str());
    rmdir(folder_name);
    if (binary->empty()) throw kit::Failure{UBA_FAILED, 7, recipe.name + " cannot be built: " + text};
    return open(*binary, recipe.name);
  }
  std::unique_ptr<kit::Kernel> load(const std::string &binary, const std::string &kernel) override {
    loaded += compiles || built.empty();
    return open(binary, kernel);
  }
  std::shared_ptr<void> constant(const void *contents, size_t bytes) override {
    std::shared_ptr<char[]> made(new char[bytes]);
    std::memcpy(made.get(), contents, bytes);
    return {made, made.get()};
  }

 private:
  std::unique_ptr<kit::Kernel> open(const std::string &binary, const std::string &kernel) {
    auto made = std::make_unique<HostKernel>();
    made->name = kernel;
    if (binary == "nothing " + kernel) return made;
    char name[] = "/tmp/kit_test_XXXXXX";
    const int file = mkstemp(name);
    const bool written = file >= 0 && write(file, binary.data(), binary.size()) == ssize_t(binary.size());
    if (file >= 0) close(file);
    if (written) made->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    unlink(name);
    if (made->library) made->run = reinterpret_cast<decltype(made->run)>(dlsym(made->library, "run"));
    if (!made->run) return nullptr;
    return made;
  }
  std::deque<std::vector<char>> slots_;
};

}  // namespace testing_kit
