// adapter.cpp: from a path to a checked adapter table.
//
// Contract: see adapter.h. Checks run from the outside in (file, ELF header, dynamic loader, symbol, handshake, table)
// so that each failure is reported by the first check that can name it. Nothing of the table is read before its
// header has shown that it is there.
#include "adapter.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "library_file.h"

namespace torchfl {
namespace {

// What version 1.0 had: the least that may be there. (uba_adapter has not grown since.)
constexpr size_t kAdapterSize_1_0 = offsetof(uba_adapter, kernel_count) + sizeof(int64_t);
constexpr size_t kDeviceApiSize_1_0 = offsetof(uba_device_api, memory_info);
constexpr uint32_t kHostAbi = uint32_t(UBA_ABI_MAJOR) << 16 | UBA_ABI_MINOR;
constexpr int64_t kMaxKernels = 1 << 20;

[[noreturn]] void refuse(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::load, "cannot load adapter " + where + ": " + what);
}

std::string version_text(unsigned major, unsigned minor) { return std::to_string(major) + "." + std::to_string(minor); }

std::string sdk_says() {
  SdkMessage message = take_sdk_message();
  if (message.text.empty() && message.code == 0) return "";
  return (message.text.empty() ? "no text" : message.text) + " (SDK code " + std::to_string(message.code) + ")";
}

// ---------------------------------------------------------------------------------------------- the file

std::string directory_of(const std::string& path) {
  size_t slash = path.rfind('/');
  return slash == 0 ? "/" : path.substr(0, slash);
}

// Loading runs the file's code with the user's rights, so nobody else may be able to put his own there.
void refuse_if_others_can_write(const std::string& path, const struct stat& file, const std::string& real_path) {
  if ((file.st_mode & S_IWOTH) != 0) {
    refuse(path, "everyone may write to this file, and loading it runs its code; run: chmod o-w '" + real_path + "'");
  }
  for (const std::string& directory : {directory_of(path), directory_of(real_path)}) {
    struct stat info {};
    if (stat(directory.c_str(), &info) == 0 && (info.st_mode & S_IWOTH) != 0 && (info.st_mode & S_ISVTX) == 0) {
      refuse(path, "everyone may replace files in its directory, and loading it runs its code; run: chmod o-w '" +
                       directory + "'");
    }
  }
}

struct FileId {
  dev_t device;
  ino_t inode;
  bool operator<(const FileId& other) const {
    return device != other.device ? device < other.device : inode < other.inode;
  }
};

FileId check_file(const std::string& path) {
  if (path.empty() || path[0] != '/') {
    refuse(path.empty() ? "''" : path,
           "the path is not absolute; give the full path, so that the working directory cannot decide which code runs");
  }
  // O_NONBLOCK: opening a FIFO must not wait for a writer.
  int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) {
    int error = errno;
    if (error == ENOENT || error == ENOTDIR) {
      refuse(path, "there is no such file; build the adapter, or correct 'library' in the descriptor");
    }
    refuse(path, std::string("it cannot be read: ") + std::strerror(error));
  }
  struct Closer {
    int descriptor;
    ~Closer() { close(descriptor); }
  } closer{descriptor};
  struct stat info {};
  if (fstat(descriptor, &info) != 0) refuse(path, std::string("it cannot be read: ") + std::strerror(errno));
  if (!S_ISREG(info.st_mode)) {
    refuse(path, std::string("it is ") + (S_ISDIR(info.st_mode) ? "a directory" : "not a regular file") +
                     "; 'library' must name the adapter's .so file");
  }
  char* resolved = realpath(path.c_str(), nullptr);
  std::string real_path = resolved != nullptr ? resolved : path;
  std::free(resolved);
  refuse_if_others_can_write(path, info, real_path);
  inspect_library(descriptor, path);
  return {info.st_dev, info.st_ino};
}

// ---------------------------------------------------------------------------------------------- dynamic loader

// The word after `marker`, up to white space or one of ",:;)".
std::string word_after(const std::string& text, const std::string& marker) {
  size_t begin = text.find(marker);
  if (begin == std::string::npos) return "";
  begin += marker.size();
  return text.substr(begin, text.find_first_of(" \t\n,:;)", begin) - begin);
}

[[noreturn]] void refuse_dlopen(const std::string& path, const char* error) {
  std::string said = error != nullptr ? error : "the dynamic loader gave no reason";
  std::string symbol = word_after(said, "undefined symbol: ");
  if (!symbol.empty()) {
    refuse(path, "undefined symbol " + symbol +
                     ": the SDK found is not the one the adapter was built for; check which SDK LD_LIBRARY_PATH finds, "
                     "or rebuild the adapter (the loader says: " +
                     said + ")");
  }
  size_t version = said.find("version `");
  if (version != std::string::npos && said.find("not found") != std::string::npos) {
    refuse(path,
           "a library it needs is there in another version than the one the adapter was built for; rebuild the "
           "adapter, or install that version (the loader says: " +
               said + ")");
  }
  size_t missing = said.find(": cannot open shared object file");
  if (missing != std::string::npos && said.compare(0, path.size(), path) != 0) {
    refuse(path,
           "it needs " + said.substr(0, missing) +
               ", which was not found; put its folder on LD_LIBRARY_PATH (`torchfl sdk-env` prints the line for a "
               "simulated SDK) (the loader says: " +
               said + ")");
  }
  refuse(path, "the dynamic loader refuses it: " + said);
}

// ---------------------------------------------------------------------------------------------- the table

// Checks the header of one struct and returns how many of its bytes are there for us.
size_t check_header(const uba_header& header, const char* name, size_t least, size_t ours, const std::string& where) {
  const std::string theirs = version_text(header.major, header.minor);
  const std::string host = version_text(UBA_ABI_MAJOR, UBA_ABI_MINOR);
  if (header.major != UBA_ABI_MAJOR) {
    // A zeroed or garbage header is a forgotten UBA_HEADER far more often than a version nobody has released.
    if (header.major == 0 || header.major > 1000) {
      refuse(where, std::string("the header of ") + name + " says ABI " + theirs + ": initialise it with UBA_HEADER(" +
                        name + ")");
    }
    refuse(where, "it has ABI " + theirs + ", this host serves " + version_text(UBA_ABI_MAJOR, 0) + " to " + host +
                      "; layouts differ between majors: " +
                      (header.major > UBA_ABI_MAJOR
                           ? "upgrade the host (pip install -U flagos-torchfl), or build the adapter with this host's "
                             "torchfl/uba.h"
                           : "build the adapter with this host's torchfl/uba.h"));
  }
  if (header.minor > UBA_ABI_MINOR) {
    refuse(where, "it has ABI " + theirs + ", newer than this host's " + host +
                      "; upgrade the host (pip install -U flagos-torchfl), or build the adapter with this host's "
                      "torchfl/uba.h");
  }
  const size_t size = header.struct_size;
  // Equal versions mean equal sizes; an older minor is never the larger one.
  if (size < least || size > ours || (header.minor == UBA_ABI_MINOR && size != ours)) {
    refuse(where, std::string("the header of ") + name + " says " + std::to_string(size) + " bytes, ABI " + theirs +
                      " has " +
                      (header.minor == UBA_ABI_MINOR ? std::to_string(ours)
                                                     : std::to_string(least) + " to " + std::to_string(ours)) +
                      ": initialise it with UBA_HEADER(" + name + ") and change nothing in torchfl/uba.h");
  }
  return size;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void check_required(const uba_adapter& table, const uba_device_api* device, const std::string& where) {
  std::vector<std::string> missing;
  auto need = [&](bool there, const char* name) {
    if (!there) missing.push_back(name);
  };
  need(table.name != nullptr && table.name[0] != '\0', "name");
  need(table.version != nullptr && table.version[0] != '\0', "version");
  need(table.device_count != nullptr, "device_count");
  need(table.open != nullptr, "open");
  need(table.device != nullptr, "device");
  if (device != nullptr) {
    need(device->properties != nullptr, "device->properties");
    need(device->alloc != nullptr, "device->alloc");
    need(device->free != nullptr, "device->free");
    need(device->copy != nullptr, "device->copy");
    need(device->fill != nullptr, "device->fill");
    need(device->synchronize != nullptr, "device->synchronize");
  }
  if (!missing.empty()) {
    refuse(where, std::string("required ") + (missing.size() == 1 ? "field is" : "fields are") +
                      " not set: " + joined(missing) + "; see [required] in torchfl/uba.h");
  }
}

// Optional functions that are of use only together.
void check_groups(const uba_device_api& api, const std::string& where) {
  using Member = std::pair<const char*, bool>;
  const std::vector<Member> groups[] = {
      {{"stream_create", api.stream_create != nullptr}, {"stream_destroy", api.stream_destroy != nullptr}},
      {{"event_create", api.event_create != nullptr},
       {"event_destroy", api.event_destroy != nullptr},
       {"event_record", api.event_record != nullptr},
       {"event_wait", api.event_wait != nullptr},
       {"event_query", api.event_query != nullptr},
       {"event_synchronize", api.event_synchronize != nullptr},
       {"event_elapsed", api.event_elapsed != nullptr}},
      {{"map_host", api.map_host != nullptr}, {"unmap_host", api.unmap_host != nullptr}},
      {{"program_compile", api.program_compile != nullptr},
       {"program_run", api.program_run != nullptr},
       {"program_release", api.program_release != nullptr}},
  };
  for (const std::vector<Member>& group : groups) {
    std::vector<std::string> set, unset;
    for (const Member& member : group) (member.second ? set : unset).push_back(member.first);
    if (!set.empty() && !unset.empty()) {
      refuse(where, "device sets " + joined(set) + " but not " + joined(unset) + "; set all of them or none");
    }
  }
}

std::unordered_map<std::string, uba_kernel> read_kernels(const uba_adapter& table, const std::string& where) {
  std::unordered_map<std::string, uba_kernel> kernels;
  if (table.kernel_count < 0 || table.kernel_count > kMaxKernels) {
    refuse(where, "kernel_count is " + std::to_string(table.kernel_count) + ", which cannot be");
  }
  if (table.kernel_count > 0 && table.kernels == nullptr) {
    refuse(where, "kernel_count is " + std::to_string(table.kernel_count) + " but kernels is NULL");
  }
  kernels.reserve(size_t(table.kernel_count));
  for (int64_t i = 0; i < table.kernel_count; ++i) {
    const uba_kernel& kernel = table.kernels[i];
    if (kernel.name == nullptr || kernel.name[0] == '\0') {
      refuse(where, "kernel " + std::to_string(i) + " has no name");
    }
    if (kernel.run == nullptr) {
      refuse(where, "kernel " + std::to_string(i) + " ('" + kernel.name + "') has no function");
    }
    if (!kernels.emplace(kernel.name, kernel).second) {
      refuse(where,
             std::string("two kernels are named '") + kernel.name + "'; the descriptor could not tell them apart");
    }
  }
  return kernels;
}

struct LibraryHandle {
  void* handle;
  ~LibraryHandle() {
    if (handle != nullptr) dlclose(handle);
  }
};

}  // namespace

std::shared_ptr<Adapter> Adapter::load(const std::string& path) {
  // Never destroyed: libraries stay loaded for the process's life, also while other static objects go.
  static std::mutex& mutex = *new std::mutex;
  static auto& loaded = *new std::map<FileId, std::shared_ptr<Adapter>>;
  std::lock_guard<std::mutex> lock(mutex);

  FileId id = check_file(path);
  auto known = loaded.find(id);
  if (known != loaded.end()) return known->second;

  // A refused library is closed again, so that a corrected one can be loaded from the same path.
  LibraryHandle library{dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)};
  if (library.handle == nullptr) refuse_dlopen(path, dlerror());
  auto query = reinterpret_cast<uba_query_fn>(dlsym(library.handle, "uba_query"));
  if (query == nullptr) {
    refuse(path,
           "it does not export uba_query, so it is not an adapter; define it with UBA_EXPORT, in C++ within "
           "extern \"C\"");
  }
  take_sdk_message();
  const uba_adapter* table = nullptr;
  try {
    table = query(kHostAbi, host_table());
  } catch (...) {
    refuse(path, "uba_query threw a C++ exception; it must return NULL after host->set_error instead");
  }
  if (table == nullptr) {
    std::string said = sdk_says();
    refuse(path, "uba_query refused this host (ABI " + version_text(UBA_ABI_MAJOR, UBA_ABI_MINOR) +
                     "): " + (said.empty() ? "the adapter gave no reason" : said));
  }
  std::shared_ptr<Adapter> adapter = wrap(table, path);
  library.handle = nullptr;  // stays loaded
  loaded.emplace(id, adapter);
  return adapter;
}

std::shared_ptr<Adapter> Adapter::wrap(const uba_adapter* table, const std::string& where) {
  if (table == nullptr) refuse(where, "the table is NULL");
  check_header(table->header, "uba_adapter", kAdapterSize_1_0, sizeof(uba_adapter), where);
  size_t device_size = 0;
  if (table->device != nullptr) {
    device_size =
        check_header(table->device->header, "uba_device_api", kDeviceApiSize_1_0, sizeof(uba_device_api), where);
  }
  check_required(*table, table->device, where);
  check_groups(*table->device, where);

  std::shared_ptr<Adapter> adapter(new Adapter);
  adapter->path_ = where;
  adapter->table_ = table;
  // What an older adapter lacks stays zero, which is how an optional function says that it is not there.
  std::memcpy(&adapter->device_api_, table->device, device_size);
  adapter->kernels_ = read_kernels(*table, where);
  return adapter;
}

std::string Adapter::sdk_version() const { return table_->sdk_version != nullptr ? table_->sdk_version : ""; }

int32_t Adapter::device_count() const {
  int32_t count = 0;
  uba_status status = table_->device_count(&count);
  if (status != UBA_OK) {
    SdkMessage message = take_sdk_message();
    throw Error(ErrorKind::failed,
                name() + ": device_count failed: " + (message.text.empty() ? "no text" : message.text) + " (SDK code " +
                    std::to_string(message.code) + ", " + status_name(status) + ")",
                message.code);
  }
  if (count < 0) {
    throw Error(ErrorKind::internal, name() + ": device_count returned " + std::to_string(count) +
                                         ": this is a bug of the adapter " + path_);
  }
  return count;
}

const uba_kernel* Adapter::find_kernel(const std::string& name) const {
  auto found = kernels_.find(name);
  return found == kernels_.end() ? nullptr : &found->second;
}

std::vector<std::string> Adapter::kernel_names() const {
  std::vector<std::string> names;
  for (int64_t i = 0; i < table_->kernel_count; ++i) names.emplace_back(table_->kernels[i].name);
  return names;
}

}  // namespace torchfl
