// aten_handlers.cpp: see aten_handlers.h.
#include "aten_handlers.h"

#include <dlfcn.h>

#include "kept.h"

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

std::string entry_name(const std::string& device_type) { return "torch_fl_register_" + device_type; }

}  // namespace

bool has_aten_handlers(const std::string& path, const std::string& device_type) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const bool has = dlsym(library, entry_name(device_type).c_str()) != nullptr;
  dlclose(library);
  return has;
}

std::shared_ptr<AtenAdapter> load_aten_adapter(const std::string& path, const std::string& device_type) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) throw Error(ErrorKind::load, "failed to load the adapter " + path + ": " + dlerror());
  auto* built_for = reinterpret_cast<const char* (*)()>(dlsym(library, "torch_fl_built_for"));
  auto** slot = static_cast<const fl::detail::Registry**>(dlsym(library, "torch_fl_registry"));
  const std::string function = entry_name(device_type);
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
  const fl::detail::Registry registry{fl::detail::kRegistryAbi, &book_device, &book_handler, adapter.get(),
                                      &kept_or_made};
  *slot = &registry;
  enter();
  *slot = nullptr;
  return adapter;
}

void add_handler_rows(Chip& chip, const AtenAdapter& adapter) {
  std::vector<OpPath> rows;
  for (const auto& handler : adapter.handlers) {
    if (handler->op.find("::") == std::string::npos) continue;
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
