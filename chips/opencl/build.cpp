// build.cpp: from source text, or a kept binary, to a kernel, and its launch.
#include <algorithm>
#include <cstring>

#include "opencl.h"

namespace opencl {

// OpenCL C is the kit's language: little is to be said.
const char dialect[] = R"cl(
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define KERNEL __kernel
#define GLOBAL __global
#define LOCAL __local
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE)
#define ITEMS(x, y) __attribute__((reqd_work_group_size(x, y, 1)))
#define EXACT _Pragma("OPENCL FP_CONTRACT OFF")
)cl";

namespace {

std::string binary_of(cl_program program) {
  size_t size = 0;
  if (cl::GetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, sizeof(size), &size, nullptr) != CL_SUCCESS || size == 0)
    return "";
  std::string binary(size, '\0');
  char *place = binary.data();
  return cl::GetProgramInfo(program, CL_PROGRAM_BINARIES, sizeof(place), &place, nullptr) == CL_SUCCESS ? binary : "";
}
std::string log_of(const Device &device, cl_program program) {
  size_t length = 0;
  cl::GetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, 0, nullptr, &length);
  std::string log(length, '\0');
  cl::GetProgramBuildInfo(program, device.id, CL_PROGRAM_BUILD_LOG, length, log.data(), nullptr);
  log.resize(std::strlen(log.c_str()));
  return log;
}
std::unique_ptr<kit::Kernel> kernel_of(cl_program program, const std::string &name) {  // takes the program
  auto made = std::make_unique<Kernel>();
  cl_int code;
  made->handle = cl::CreateKernel(program, name.c_str(), &code);
  cl::ReleaseProgram(program);  // the kernel holds it
  check(code, ("kernel " + name).c_str());
  return made;
}

}  // namespace

std::unique_ptr<kit::Kernel> Device::load(const std::string &binary, const std::string &name) {
  const unsigned char *place = reinterpret_cast<const unsigned char *>(binary.data());
  const size_t size = binary.size();
  cl_int told = CL_SUCCESS, code;
  cl_program program = cl::CreateProgramWithBinary(context, 1, &id, &size, &place, &told, &code);
  if (code == CL_SUCCESS && told == CL_SUCCESS &&
      cl::BuildProgram(program, 1, &id, options.c_str(), nullptr, nullptr) == CL_SUCCESS)
    return kernel_of(program, name);
  if (code == CL_SUCCESS) cl::ReleaseProgram(program);
  return nullptr;
}

std::unique_ptr<kit::Kernel> Device::build(const kit::Recipe &recipe, std::string *binary) {
  const char *text = recipe.source.c_str();
  cl_int code;
  cl_program program = cl::CreateProgramWithSource(context, 1, &text, nullptr, &code);
  check(code, "clCreateProgramWithSource");
  code = cl::BuildProgram(program, 1, &id, options.c_str(), nullptr, nullptr);
  if (code != CL_SUCCESS) {
    const std::string log = log_of(*this, program);
    cl::ReleaseProgram(program);
    throw Failure{UBA_FAILED, code,
                  "kernel " + recipe.name + " cannot be built for " + name + " with '" + options +
                      "'; the compiler says:\n" + log};
  }
  *binary = binary_of(program);
  return kernel_of(program, recipe.name);
}

std::shared_ptr<void> Device::constant(const void *contents, size_t bytes) {
  cl_int code;
  cl_mem memory = cl::CreateBuffer(context, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, bytes,
                                   const_cast<void *>(contents), &code);
  check(code, "clCreateBuffer");
  return {memory, [](cl_mem m) { cl::ReleaseMemObject(m); }};  // OpenCL keeps it while it is in use
}

void Stream::launch(kit::Kernel &kernel, const kit::Range &range, const kit::Argument *arguments, size_t count) {
  Kernel &k = static_cast<Kernel &>(kernel);
  std::lock_guard<std::mutex> lock(k.setting);
  for (size_t i = 0; i < count; i++)  // a handle is passed as any other value
    check(cl::SetKernelArg(k.handle, cl_uint(i), arguments[i].bytes, arguments[i].value), "clSetKernelArg");
  check(cl::EnqueueNDRangeKernel(queue, k.handle, 3, nullptr, range.global, range.local, 0, nullptr, nullptr),
        "clEnqueueNDRangeKernel");
}

}  // namespace opencl
