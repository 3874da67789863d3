// kernels.cpp: from a recipe to a kernel that can be launched: built once a device, or taken from what is kept on disk.
#include <mutex>

#include "parts.h"

namespace kit {

const uba_host *host = nullptr;

uba_status tell(const Failure &failure) {
  if (host) host->set_error(failure.code, failure.text.c_str());
  return failure.status;
}

Device::Device() : parts(std::make_unique<Parts>()) {}
Device::~Device() = default;
void Device::forget() {
  parts->kernels.clear();
  parts->tables.known.clear();
}

Kernel &build(Device &device, const std::string &key, Recipe recipe) {
  std::unique_lock<std::shared_mutex> lock(device.parts->kernels_lock);
  std::unique_ptr<Kernel> &kernel = device.parts->kernels[key];
  if (kernel) return *kernel;
  try {
    recipe.source = device.dialect + (device.fp64 ? "#define FP64\n" : "") + recipe.source;
    std::string binary = read_kept(device, recipe.source);
    if (!binary.empty()) kernel = device.load(binary, recipe.name);
    if (kernel) return *kernel;
    binary.clear();
    kernel = device.build(recipe, &binary);
    if (!binary.empty()) keep(device, recipe.source, binary);
    return *kernel;
  } catch (...) {
    device.parts->kernels.erase(key);
    throw;
  }
}

void Arguments::launch(Stream &stream, Kernel &kernel, Range range) const {
  for (int d = 0; d < 3; d++) {
    if (range.global[d] == 0) return;
    range.global[d] = (range.global[d] + range.local[d] - 1) / range.local[d] * range.local[d];
  }
  stream.launch(kernel, range, list_, count_);
}

int64_t item_size(int32_t dtype) {
  static const int8_t sizes[] = {1, 2, 2, 4, 8, 1, 1, 2, 4, 8, 1, 8, 16, 1, 1, 2, 4, 8, 4};
  return dtype > 0 && dtype < int32_t(sizeof(sizes)) ? sizes[dtype] : 1;
}

const char *storage_type(const Device &device, int32_t dtype) {
  static const char *const names[] = {nullptr, "half",  "ushort", "float", "double", "char",
                                      "uchar", "short", "int",    "long",  "uchar"};
  const char *name = dtype > 0 && dtype <= UBA_DTYPE_BOOL ? names[dtype] : nullptr;
  if (!name) refuse("the kernels take real numbers and bool");
  if (dtype == UBA_DTYPE_FLOAT64 && !device.fp64) refuse(device.name + " has no double precision");
  return name;
}

std::vector<uba_kernel> kernels() {
  std::vector<uba_kernel> all;
  for (const KernelTable &table : {vector_kernels(), data_kernels(), nn_kernels()})
    all.insert(all.end(), table.kernels, table.kernels + table.count);
  return all;
}

}  // namespace kit
