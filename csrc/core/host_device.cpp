// host_device.cpp: see host_device.h.
//
// The table's functions get no context but a device handle, and `device_count` and `open` not even that: each adapter
// has a place in a fixed array, and functions of its own for these two.
#include "host_device.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace torchfl {
namespace {

constexpr size_t kMostAdapters = 8;
constexpr int kMostDevices = 8;

// The vendor's functions; each pair is there or not.
struct RuntimeFunctions {
  void* (*alloc)(size_t bytes) = nullptr;
  int (*free)(void* ptr) = nullptr;
  void* (*map)(void* host, size_t bytes) = nullptr;
  int (*unmap)(void* ptr) = nullptr;
  std::string prefix;
};

struct HostAdapter {
  uba_adapter table{};
  uba_device_api api{};
  HostDeviceOptions options;
  RuntimeFunctions runtime;
};

struct HostDevice {
  const HostAdapter* adapter;
  std::mutex mutex;
  std::unordered_map<void*, uint64_t> sizes;  // of what is allocated
  uint64_t allocated = 0;
};

HostDevice& self(void* device) { return *static_cast<HostDevice*>(device); }

uba_status failed(uba_status status, const std::string& text) {
  host_table()->set_error(0, text.c_str());
  return status;
}

uba_status properties(void* device, uba_properties* out) {
  const HostDeviceOptions& options = self(device).adapter->options;
  std::strncpy(out->name, options.name.c_str(), sizeof(out->name) - 1);
  out->alignment = options.alignment;
  out->total_memory = options.total_memory;
  out->host_accessible = 1;
  return UBA_OK;
}

uba_status alloc(void* device, uint64_t bytes, void** ptr) {
  HostDevice& d = self(device);
  const HostDeviceOptions& options = d.adapter->options;
  std::lock_guard<std::mutex> lock(d.mutex);
  if (options.total_memory != 0 && bytes > options.total_memory - d.allocated) return UBA_OUT_OF_MEMORY;
  if (d.adapter->runtime.alloc != nullptr) {
    *ptr = d.adapter->runtime.alloc(bytes);
    if (*ptr == nullptr) return UBA_OUT_OF_MEMORY;
  } else {
    const uint64_t alignment = std::max<uint64_t>(options.alignment, sizeof(void*));
    if (posix_memalign(ptr, alignment, bytes) != 0) return UBA_OUT_OF_MEMORY;
    if (d.adapter->runtime.map != nullptr && d.adapter->runtime.map(*ptr, bytes) != *ptr) {
      std::free(*ptr);
      return failed(UBA_FAILED, d.adapter->runtime.prefix + "_mem_map refused memory of the host");
    }
  }
  d.sizes.emplace(*ptr, bytes);
  d.allocated += bytes;
  return UBA_OK;
}

uba_status release(void* device, void* ptr) {
  HostDevice& d = self(device);
  std::lock_guard<std::mutex> lock(d.mutex);
  auto found = d.sizes.find(ptr);
  if (found == d.sizes.end()) return failed(UBA_INVALID_VALUE, "free of memory that was not allocated here");
  d.allocated -= found->second;
  d.sizes.erase(found);
  const RuntimeFunctions& runtime = d.adapter->runtime;
  if (runtime.alloc != nullptr) {
    const int code = runtime.free(ptr);
    return code == 0 ? UBA_OK : failed(UBA_FAILED, runtime.prefix + "_mem_free returned " + std::to_string(code));
  }
  if (runtime.unmap != nullptr) (void)runtime.unmap(ptr);
  std::free(ptr);
  return UBA_OK;
}

uba_status copy(void*, void*, void* dst, const void* src, uint64_t bytes, int32_t) {
  std::memmove(dst, src, bytes);
  return UBA_OK;
}

uba_status fill(void*, void*, void* dst, uint64_t bytes, int32_t value) {
  std::memset(dst, value, bytes);
  return UBA_OK;
}

uba_status synchronize(void*, void*) { return UBA_OK; }

uba_status map_host(void* device, void* host, uint64_t bytes, void** ptr) {
  const RuntimeFunctions& runtime = self(device).adapter->runtime;
  *ptr = runtime.map(host, bytes);
  return *ptr != nullptr ? UBA_OK : failed(UBA_FAILED, runtime.prefix + "_mem_map returned NULL");
}

uba_status unmap_host(void* device, void* ptr) {
  const RuntimeFunctions& runtime = self(device).adapter->runtime;
  const int code = runtime.unmap(ptr);
  return code == 0 ? UBA_OK : failed(UBA_FAILED, runtime.prefix + "_mem_unmap returned " + std::to_string(code));
}

uba_status memory_info(void* device, uint64_t* free_bytes, uint64_t* total_bytes) {
  HostDevice& d = self(device);
  std::lock_guard<std::mutex> lock(d.mutex);
  *total_bytes = d.adapter->options.total_memory;
  *free_bytes = *total_bytes > d.allocated ? *total_bytes - d.allocated : 0;
  return UBA_OK;
}

HostAdapter* g_adapters[kMostAdapters];
std::atomic<size_t> g_count{0};

template <size_t N>
uba_status device_count(int32_t* count) {
  *count = g_adapters[N]->options.count;
  return UBA_OK;
}
template <size_t N>
uba_status open(int32_t, void** device) {
  *device = new HostDevice{g_adapters[N], {}, {}, 0};
  return UBA_OK;
}
struct Entrances {
  uba_status (*device_count)(int32_t*);
  uba_status (*open)(int32_t, void**);
};
template <size_t... N>
constexpr std::array<Entrances, sizeof...(N)> entrances(std::index_sequence<N...>) {
  return {{{device_count<N>, open<N>}...}};
}
constexpr auto kEntrances = entrances(std::make_index_sequence<kMostAdapters>());

RuntimeFunctions find_functions(const HostDeviceOptions& options) {
  RuntimeFunctions found;
  if (options.runtime_library.empty()) return found;
  void* library = dlopen(options.runtime_library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* said = dlerror();
    throw Error(ErrorKind::load, "cannot load the runtime library of " + options.name + ": " +
                                     (said != nullptr ? said : "the dynamic loader gave no reason"));
  }
  for (const std::string& prefix : options.prefixes) {
    auto function = [&](const char* suffix) { return dlsym(library, (prefix + suffix).c_str()); };
    auto* map = function("_mem_map");
    auto* unmap = function("_mem_unmap");
    auto* allocate = function("_mem_alloc");
    auto* free = function("_mem_free");
    if (map == nullptr && allocate == nullptr) continue;
    found.prefix = prefix;
    if ((map == nullptr) != (unmap == nullptr) || (allocate == nullptr) != (free == nullptr)) {
      const std::string pair = (map == nullptr) != (unmap == nullptr) ? "_mem_map and " + prefix + "_mem_unmap"
                                                                      : "_mem_alloc and " + prefix + "_mem_free";
      throw Error(ErrorKind::load, "the runtime library " + options.runtime_library + " has only one of " + prefix +
                                       pair + ", which are of use only together");
    }
    found.map = reinterpret_cast<void* (*)(void*, size_t)>(map);
    found.unmap = reinterpret_cast<int (*)(void*)>(unmap);
    found.alloc = reinterpret_cast<void* (*)(size_t)>(allocate);
    found.free = reinterpret_cast<int (*)(void*)>(free);
    break;
  }
  return found;
}

}  // namespace

std::shared_ptr<Adapter> host_device_adapter(HostDeviceOptions options) {
  static std::mutex& mutex = *new std::mutex;
  std::lock_guard<std::mutex> lock(mutex);
  const size_t place = g_count.load();
  if (options.count < 0 || options.count > kMostDevices) {
    throw Error(ErrorKind::load, options.name + ": " + std::to_string(options.count) + " devices; at most " +
                                     std::to_string(kMostDevices));
  }
  if (place >= kMostAdapters) {
    throw Error(ErrorKind::load, options.name + ": at most " + std::to_string(kMostAdapters) +
                                     " chips without an adapter library in one process");
  }
  RuntimeFunctions runtime = find_functions(options);
  auto* adapter = new HostAdapter();  // lives as long as the process, as every adapter does
  adapter->options = std::move(options);
  adapter->runtime = std::move(runtime);
  uba_device_api& api = adapter->api;
  api.header = UBA_HEADER(uba_device_api);
  api.properties = properties;
  api.alloc = alloc;
  api.free = release;
  api.copy = copy;
  api.fill = fill;
  api.synchronize = synchronize;
  if (adapter->runtime.map != nullptr) {
    api.map_host = map_host;
    api.unmap_host = unmap_host;
  }
  if (adapter->options.total_memory != 0) api.memory_info = memory_info;
  uba_adapter& table = adapter->table;
  table.header = UBA_HEADER(uba_adapter);
  table.name = adapter->options.name.c_str();
  table.version = "1.0";
  table.device_count = kEntrances[place].device_count;
  table.open = kEntrances[place].open;
  table.device = &api;
  g_adapters[place] = adapter;
  std::shared_ptr<Adapter> wrapped = Adapter::wrap(
      &table, adapter->options.runtime_library.empty() ? adapter->options.name : adapter->options.runtime_library);
  g_count.store(place + 1);
  return wrapped;
}

}  // namespace torchfl
