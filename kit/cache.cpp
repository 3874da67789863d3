// cache.cpp: built programs, kept on disk for the next process.
//
// Contract: a file is named by a hash of the source and of what the device says it depends on, is written beside
// its place and then renamed, so that any number of processes may share the folder, and carries a hash of its contents:
// what is torn or foreign is built again. The files that were used last stay, kept_bytes of them.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "parts.h"

namespace kit {
namespace {

namespace fs = std::filesystem;

// Where results are kept for the next process, by the rule of docs/routing.md; empty: nowhere.
fs::path cache_folder(const std::string &name) {
  const char *named = std::getenv("TORCHFL_CACHE_DIR"), *caches = std::getenv("XDG_CACHE_HOME"),
             *home = std::getenv("HOME");
  if (named) return *named ? fs::path(named) / name : fs::path();
  if (caches && *caches) return fs::path(caches) / "torchfl" / name;
  return home && *home ? fs::path(home) / ".cache" / "torchfl" / name : fs::path();
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
// Where the program of a source is kept; empty: nowhere.
fs::path place_of(const Device &device, const std::string &source) {
  const fs::path folder = cache_folder(device.folder);
  if (folder.empty()) return folder;
  const std::string all = source + '\0' + device.name + '\0' + device.versions;
  return folder / (hex(hash(all, kSeed)) + hex(hash(all, ~kSeed)));
}

}  // namespace

std::string read_kept(const Device &device, const std::string &source) {
  const fs::path path = place_of(device, source);
  if (path.empty()) return "";
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.size() < 16 || text.substr(0, 16) != hex(hash(text.substr(16), kSeed))) return "";
  std::error_code ignored;
  fs::last_write_time(path, fs::file_time_type::clock::now(), ignored);  // used last
  return text.substr(16);
}
void keep(const Device &device, const std::string &source, const std::string &binary) {
  const fs::path path = place_of(device, source);
  if (path.empty()) return;
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
  for (size_t i = 0; i < files.size() && bytes > device.kept_bytes; i++) {
    const uint64_t size = fs::file_size(files[i].second, error);
    if (!error && fs::remove(files[i].second, error)) bytes -= size;
  }
}

}  // namespace kit
