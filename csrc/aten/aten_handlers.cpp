// aten_handlers.cpp: see aten_handlers.h.
#include "aten_handlers.h"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace torchfl {
namespace {

namespace fl = torch::fl;

void book_device(void* book, const char* type, const fl::DeviceOptions& options) {
  (void)type;
  static_cast<AtenAdapter*>(book)->options = options;
}

void book_handler(void* book, const char* op, fl::OpHandler handler, const fl::HandlerOptions& options) {
  auto entry = std::make_shared<AtenHandler>();
  entry->op = op;
  entry->function = std::move(handler);
  entry->options = options;
  static_cast<AtenAdapter*>(book)->handlers.push_back(std::move(entry));
}

// ------------------------------------------------------------------ memory of chips whose SDK takes host pointers

struct HostMemoryAdapter {
  uba_adapter table{};
  uba_device_api api{};
  std::string name;
  uint64_t alignment = 64;
  int count = 1;
};
// A handle is all that the functions get; it leads to the adapter it belongs to.
struct HostMemoryDevice {
  const HostMemoryAdapter* adapter;
};

uba_status host_properties(void* device, uba_properties* properties) {
  const auto* adapter = static_cast<HostMemoryDevice*>(device)->adapter;
  std::strncpy(properties->name, adapter->name.c_str(), sizeof(properties->name) - 1);
  properties->alignment = adapter->alignment;
  properties->host_accessible = 1;
  return UBA_OK;
}
uba_status host_alloc(void* device, uint64_t bytes, void** ptr) {
  const uint64_t alignment =
      std::max<uint64_t>(static_cast<HostMemoryDevice*>(device)->adapter->alignment, sizeof(void*));
  return posix_memalign(ptr, alignment, bytes) == 0 ? UBA_OK : UBA_OUT_OF_MEMORY;
}
uba_status host_free(void*, void* ptr) {
  std::free(ptr);
  return UBA_OK;
}
uba_status host_copy(void*, void*, void* dst, const void* src, uint64_t bytes, int32_t) {
  std::memmove(dst, src, bytes);
  return UBA_OK;
}
uba_status host_fill(void*, void*, void* dst, uint64_t bytes, int32_t value) {
  std::memset(dst, value, bytes);
  return UBA_OK;
}
uba_status host_synchronize(void*, void*) { return UBA_OK; }

// uba_adapter.device_count has no context: one function for each possible count.
template <int N>
uba_status host_count(int32_t* count) {
  *count = N;
  return UBA_OK;
}
using CountFn = uba_status (*)(int32_t*);
constexpr CountFn kCounts[] = {host_count<0>, host_count<1>, host_count<2>, host_count<3>, host_count<4>,
                               host_count<5>, host_count<6>, host_count<7>, host_count<8>};

// Likewise `open`: its place in the list is all that tells one adapter from another.
std::vector<HostMemoryAdapter*> g_adapters;
template <int N>
uba_status host_open(int32_t, void** device) {
  *device = new HostMemoryDevice{g_adapters[N]};
  return UBA_OK;
}
using OpenFn = uba_status (*)(int32_t, void**);
constexpr OpenFn kOpens[] = {host_open<0>, host_open<1>, host_open<2>, host_open<3>,
                             host_open<4>, host_open<5>, host_open<6>, host_open<7>};

}  // namespace

std::shared_ptr<Adapter> host_memory_adapter(const std::string& name, uint64_t alignment, int count) {
  if (count < 0 || size_t(count) >= std::size(kCounts))
    throw Error(ErrorKind::load, name + ": register_device with " + std::to_string(count) + " devices; at most 8");
  if (g_adapters.size() >= std::size(kOpens))
    throw Error(ErrorKind::load, name + ": at most 8 ATen-style adapters in one process");
  auto* adapter = new HostMemoryAdapter();  // lives as long as the process, as every adapter does
  adapter->name = name;
  adapter->alignment = alignment;
  adapter->count = count;
  auto& api = adapter->api;
  api.header = UBA_HEADER(uba_device_api);
  api.properties = host_properties;
  api.alloc = host_alloc;
  api.free = host_free;
  api.copy = host_copy;
  api.fill = host_fill;
  api.synchronize = host_synchronize;
  auto& table = adapter->table;
  table.header = UBA_HEADER(uba_adapter);
  table.name = adapter->name.c_str();
  table.version = "1.0";
  table.device_count = kCounts[count];
  table.open = kOpens[g_adapters.size()];
  table.device = &api;
  g_adapters.push_back(adapter);
  return Adapter::wrap(&table, name);
}

std::shared_ptr<AtenAdapter> load_aten_adapter(const std::string& path, const std::string& device_type) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(ErrorKind::load, "failed to load the adapter " + path + ": " + dlerror());
  auto* built_for = reinterpret_cast<const char* (*)()>(dlsym(library, "torch_fl_built_for"));
  auto** slot = static_cast<const fl::detail::Registry**>(dlsym(library, "torch_fl_registry"));
  const std::string function = "torch_fl_register_" + device_type;
  auto* enter = reinterpret_cast<void (*)()>(dlsym(library, function.c_str()));
  if (enter == nullptr) {
    throw Error(ErrorKind::load, path + ": no function '" + function + "'. An adapter for device type '" + device_type +
                                     "' exports it with extern \"C\"; is it built for another chip?");
  }
  if (slot == nullptr || built_for == nullptr)
    throw Error(ErrorKind::load, path + ": not built with torchfl/uba_aten.h");
  const std::string theirs = built_for(), ours = TORCH_VERSION;
  auto minor = [](const std::string& version) { return version.substr(0, version.find('.', version.find('.') + 1)); };
  if (minor(theirs) != minor(ours)) {
    throw Error(ErrorKind::load,
                path + ": built for torch " + theirs + ", running torch " + ours + ". Build it again with this torch.");
  }
  auto adapter = std::make_shared<AtenAdapter>();
  const fl::detail::Registry registry{fl::detail::kRegistryAbi, &book_device, &book_handler, adapter.get()};
  *slot = &registry;
  enter();
  *slot = nullptr;
  return adapter;
}

void add_handler_rows(Chip& chip, const AtenAdapter& adapter) {
  std::vector<OpPath> rows;
  for (const auto& handler : adapter.handlers) {
    OpPath row;
    const size_t dot = handler->op.find('.');
    row.op = handler->op.substr(0, dot);
    row.overload = dot == std::string::npos ? "" : handler->op.substr(dot + 1);
    row.declared = row.op;
    row.kernel = handler->op;
    DtypeSet dtypes = 0;
    for (c10::ScalarType type : handler->options.dtypes) dtypes |= dtype_bit(to_uba_dtype(type));
    row.dtypes.emplace_back("*", dtypes != 0 ? dtypes : chip.dtypes);
    row.canonical_only = !(handler->options.any_arguments && handler->options.any_strides);
    rows.push_back(std::move(row));
  }
  chip.ops.insert(chip.ops.begin(), rows.begin(), rows.end());
}

}  // namespace torchfl
