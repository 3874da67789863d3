// build.cpp: from source text to a kernel that can be launched: built once a device, kept on disk for the next process.
//
// Contract: a file of the cache is named by a hash of source, options, device, driver and platform, is written beside
// its place and then renamed, so that any number of processes may share the folder, and carries a hash of its contents:
// what is torn or foreign is built again. The files that were used last stay, kept_bytes of them.
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "opencl.h"

namespace opencl {
namespace {

namespace fs = std::filesystem;

// Where results are kept for the next process, by the rule of docs/routing.md; empty: nowhere.
fs::path cache_folder() {
  const char *named = std::getenv("TORCHFL_CACHE_DIR"), *caches = std::getenv("XDG_CACHE_HOME"),
             *home = std::getenv("HOME");
  if (named) return *named ? fs::path(named) / "opencl" : fs::path();
  if (caches && *caches) return fs::path(caches) / "torchfl" / "opencl";
  return home && *home ? fs::path(home) / ".cache" / "torchfl" / "opencl" : fs::path();
}
uint64_t kept_bytes() {
  const char *named = std::getenv("TORCHFL_OPENCL_CACHE_MIB");
  return (named ? std::strtoull(named, nullptr, 10) : 256) << 20;
}
uint64_t hash(const std::string &text, uint64_t h) {  // FNV-1a
  for (unsigned char c : text) h = (h ^ c) * 0x100000001b3;
  return h;
}
constexpr uint64_t kSeed = 0xcbf29ce484222325;
std::string hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(value));
  return text;
}

std::string read_kept(const fs::path &path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.size() < 16 || text.substr(0, 16) != hex(hash(text.substr(16), kSeed))) return "";
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // used last
  return text.substr(16);
}
void keep(const fs::path &path, const std::string &binary) {
  static std::atomic<int> turn{0};
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  const fs::path beside = path.parent_path() / (".new" + std::to_string(getpid()) + "." + std::to_string(turn++));
  std::ofstream file(beside, std::ios::binary);
  file << hex(hash(binary, kSeed)) << binary;
  file.close();
  if (file) fs::rename(beside, path, error);
  if (!file || error) fs::remove(beside, error);
  std::vector<std::pair<fs::file_time_type, fs::path>> files;
  uint64_t bytes = 0;
  for (fs::directory_iterator at(path.parent_path(), error), end; !error && at != end; at.increment(error)) {
    const uint64_t size = at->file_size(error);
    if (!error) files.emplace_back(at->last_write_time(error), at->path()), bytes += size;
  }
  std::sort(files.begin(), files.end());
  for (size_t i = 0; i < files.size() && bytes > kept_bytes(); i++) {
    const uint64_t size = fs::file_size(files[i].second, error);
    if (!error && fs::remove(files[i].second, error)) bytes -= size;
  }
}

std::string binary_of(cl_program program) {
  size_t size = 0;
  if (cl::GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, nullptr) != CL_SUCCESS || size == 0)
    return "";
  std::string binary(size, '\0');
  char *place = binary.data();
  return cl::GetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(place), &place, nullptr) == CL_SUCCESS ? binary : "";
}
cl_program from_binary(Device &device, const std::string &binary, const std::string &options) {
  const unsigned char *place = reinterpret_cast<const unsigned char *>(binary.data());
  const size_t size = binary.size();
  cl_int told = CL_SUCCESS, code;
  cl_program program = cl::CreateProgramWithBinary(device.context, 1, &device.id, &size, &place, &told, &code);
  if (code == CL_SUCCESS && told == CL_SUCCESS &&
      cl::BuildProgram(program, 1, &device.id, options.c_str(), nullptr, nullptr) == CL_SUCCESS)
    return program;
  if (code == CL_SUCCESS) cl::ReleaseProgram(program);
  return nullptr;
}

cl_program compile(Device &device, const Recipe &recipe) {
  const std::string options = device.options + recipe.options;
  fs::path path = cache_folder();
  if (!path.empty()) {
    const std::string all = recipe.source + '\0' + options + '\0' + device.name + '\0' + device.versions;
    path /= hex(hash(all, kSeed)) + hex(hash(all, ~kSeed));
    const std::string kept = read_kept(path);
    if (cl_program program = kept.empty() ? nullptr : from_binary(device, kept, options)) return program;
  }
  const char *text = recipe.source.c_str();
  cl_int code;
  cl_program program = cl::CreateProgramWithSource(device.context, 1, &text, nullptr, &code);
  check(code, "clCreateProgramWithSource");
  code = cl::BuildProgram(program, 1, &device.id, options.c_str(), nullptr, nullptr);
  if (code != CL_SUCCESS) {
    size_t length = 0;
    cl::GetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &length);
    std::string log(length, '\0');
    cl::GetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, length, log.data(), nullptr);
    cl::ReleaseProgram(program);
    log.resize(std::strlen(log.c_str()));
    throw Failure{UBA_FAILED, code,
                  "kernel " + recipe.name + " cannot be built for " + device.name + " with '" + options +
                      "'; the compiler says:\n" + log};
  }
  if (!path.empty()) {
    const std::string binary = binary_of(program);
    if (!binary.empty()) keep(path, binary);
  }
  return program;
}

}  // namespace

Kernel &build(Device &device, const std::string &key, const Recipe &recipe) {
  std::unique_lock<std::shared_mutex> lock(device.kernels_lock);
  std::unique_ptr<Kernel> &kernel = device.kernels[key];
  if (kernel) return *kernel;
  auto made = std::make_unique<Kernel>();
  cl_program program = compile(device, recipe);
  cl_int code;
  made->handle = cl::CreateKernel(program, recipe.name.c_str(), &code);
  cl::ReleaseProgram(program);  // the kernel holds it
  check(code, ("kernel " + recipe.name).c_str());
  kernel = std::move(made);
  return *kernel;
}

void enqueue(Stream &stream, Kernel &kernel, const Range &range) {
  size_t global[3];
  for (int d = 0; d < 3; d++) {
    if (range.global[d] == 0) return;
    global[d] = (range.global[d] + range.local[d] - 1) / range.local[d] * range.local[d];
  }
  check(cl::EnqueueNDRangeKernel(stream.queue, kernel.handle, 3, nullptr, global, range.local, 0, nullptr, nullptr),
        "clEnqueueNDRangeKernel");
}

const char *storage_type(const Device &device, int32_t dtype) {
  static const char *const names[] = {nullptr, "half", "ushort", "float", "double", "char", "uchar",
                                      "short", "int",  "long",   "uchar"};
  const char *name = dtype > 0 && dtype <= UBA_DTYPE_BOOL ? names[dtype] : nullptr;
  if (!name) refuse("OpenCL kernels take real numbers and bool");
  if (dtype == UBA_DTYPE_FLOAT64 && !device.fp64) refuse(device.name + " has no double precision (cl_khr_fp64)");
  return name;
}

}  // namespace opencl
