// build.cpp: from source text to a kernel that can be launched: built once a device, kept on disk for the next process.
#include <cstring>

#include "opencl.h"

namespace opencl {
namespace {

cl_program compile(Device &device, const Recipe &recipe) {
  const char *text = recipe.source.c_str();
  cl_int code;
  cl_program program = cl::CreateProgramWithSource(device.context, 1, &text, nullptr, &code);
  check(code, "clCreateProgramWithSource");
  code = cl::BuildProgram(program, 1, &device.id, recipe.options.c_str(), nullptr, nullptr);
  if (code == CL_SUCCESS) return program;
  size_t length = 0;
  cl::GetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &length);
  std::string log(length, '\0');
  cl::GetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, length, log.data(), nullptr);
  cl::ReleaseProgram(program);
  log.resize(std::strlen(log.c_str()));
  throw Failure{UBA_FAILED, code, "kernel " + recipe.name + " (" + recipe.options + ") cannot be built for " + device.name +
                                      "; the compiler says:\n" + log};
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
