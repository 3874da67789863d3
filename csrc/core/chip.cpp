// chip.cpp: names and sizes of dtypes.
//
// Contract: the names are PyTorch's without "torch."; the order of a printed set is that of the UBA_DTYPE_* codes.
#include "chip.h"

#include <array>

namespace torchfl {
namespace {

struct DtypeInfo {
  const char* name;
  int64_t size;
};

constexpr std::array<DtypeInfo, 19> kDtypes = {{
    {"none", 0},   {"float16", 2},   {"bfloat16", 2},    {"float32", 4},       {"float64", 8},
    {"int8", 1},   {"uint8", 1},     {"int16", 2},       {"int32", 4},         {"int64", 8},
    {"bool", 1},   {"complex64", 8}, {"complex128", 16}, {"float8_e4m3fn", 1}, {"float8_e5m2", 1},
    {"uint16", 2}, {"uint32", 4},    {"uint64", 8},      {"complex32", 4},
}};
static_assert(UBA_DTYPE_COMPLEX32 + 1 == kDtypes.size(), "a new dtype needs its row");

bool known(int32_t dtype) { return dtype > 0 && dtype < int32_t(kDtypes.size()); }

}  // namespace

const char* dtype_name(int32_t dtype) { return known(dtype) ? kDtypes[dtype].name : "unknown dtype"; }

int32_t dtype_from_name(const std::string& name) {
  for (int32_t dtype = 1; dtype < int32_t(kDtypes.size()); ++dtype) {
    if (name == kDtypes[dtype].name) return dtype;
  }
  return 0;
}

int64_t dtype_size(int32_t dtype) { return known(dtype) ? kDtypes[dtype].size : 0; }

std::string dtype_set_text(DtypeSet set) {
  std::string text;
  for (int32_t dtype = 1; dtype < int32_t(kDtypes.size()); ++dtype) {
    if ((set & dtype_bit(dtype)) == 0) continue;
    if (!text.empty()) text += ", ";
    text += kDtypes[dtype].name;
  }
  return text.empty() ? "none" : text;
}

std::vector<std::string> contradictions(const Chip& chip, const uba_properties& device) {
  std::vector<std::string> lines;
  const DtypeSet lacking = device.dtypes == 0 ? 0 : chip.dtypes & ~DtypeSet(device.dtypes);
  if (lacking != 0)
    lines.push_back("the device does not compute in " + dtype_set_text(lacking) + ", which the descriptor lists");
  // Drivers keep a part for themselves.
  if (device.total_memory != 0 && double(device.total_memory) < 0.8 * double(chip.memory_bytes)) {
    lines.push_back("the device has " + std::to_string(device.total_memory >> 20) +
                    " MiB of memory, the descriptor says " + std::to_string(chip.memory_bytes >> 20) + " MiB");
  }
  if (device.max_threads != 0 && chip.max_threads > device.max_threads) {
    lines.push_back("the device takes work-groups of " + std::to_string(device.max_threads) + ", the descriptor says " +
                    std::to_string(chip.max_threads));
  }
  if (device.max_rank != 0 && chip.max_rank > device.max_rank) {
    lines.push_back("the device takes tensors of " + std::to_string(device.max_rank) +
                    " dimensions, the descriptor says " + std::to_string(chip.max_rank));
  }
  const DtypeSet slow = device.product_dtypes == 0 ? 0 : chip.compute_as & ~DtypeSet(device.product_dtypes);
  if (slow != 0)
    lines.push_back("products in " + dtype_set_text(slow) + " are slower than in float32 on this device: they are " +
                    "computed in float32, and the descriptor's tensor.compute_as is left aside");
  return lines;
}

}  // namespace torchfl
