// adapter.h: loads an adapter library and checks everything that can be checked before its first call.
//
// Contract: `load` either returns a usable adapter or throws Error(load) with one message that names the file, what
// is wrong (missing function by name, ABI versions of both sides, architecture, permissions, undefined symbol) and
// what to do. Nothing of the process is changed by a refused library. Libraries stay loaded for the process's life.
#pragma once
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "error.h"
#include "torchfl/uba.h"

namespace torchfl {

class Adapter {
 public:
  // `path` must be absolute. Opens with RTLD_NOW | RTLD_LOCAL. Loading one file twice returns the same adapter.
  static std::shared_ptr<Adapter> load(const std::string& path);
  // Wraps a table that is already in the process (tests, ATen-style adapters); the same checks.
  static std::shared_ptr<Adapter> wrap(const uba_adapter* table, const std::string& where);

  const std::string& path() const { return path_; }
  std::string name() const { return table_->name; }
  std::string version() const { return table_->version; }
  std::string sdk_version() const;  // "" = unknown
  uint32_t abi() const { return uint32_t(table_->header.major) << 16 | table_->header.minor; }

  int32_t device_count() const;  // throws Error
  const uba_adapter* table() const { return table_; }
  // A full table of the current minor: fields that an older adapter lacks are NULL.
  const uba_device_api& device_api() const { return device_api_; }

  const uba_kernel* find_kernel(const std::string& name) const;  // NULL if absent
  std::vector<std::string> kernel_names() const;

 private:
  Adapter() = default;
  std::string path_;
  const uba_adapter* table_ = nullptr;
  uba_device_api device_api_{};
  std::unordered_map<std::string, uba_kernel> kernels_;
};

}  // namespace torchfl
