// device.cpp: the chip itself: errors, mapped and allocated memory, the clock.
#include "device.h"

#include <atomic>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <shared_mutex>

namespace x1 {

namespace {

struct Range {
  uint64_t bytes;
  int64_t count;  // times mapped; 0: allocated
};

struct Chip {
  std::mutex command;
  std::shared_mutex memory;
  std::map<uintptr_t, Range> ranges;  // disjoint, by address
  uint64_t total, mapped = 0, allocated = 0;
  std::atomic<uint64_t> copied{0}, commands{0}, cycles{0};
  bool unforgiving;
  Chip() {
    const char* mib = std::getenv("X1_SIM_MEMORY");
    const char* strict = std::getenv("X1_SIM_UNFORGIVING");
    total = (mib && *mib ? std::strtoull(mib, nullptr, 10) : 4096) << 20;
    unforgiving = strict && *strict && std::strcmp(strict, "0") != 0;
  }
};

// Never destroyed: threads may end after main() has.
Chip& chip() {
  static Chip* const the = new Chip;
  return *the;
}

thread_local char error_text[320];
thread_local int error_status;

// The range that holds `address`, or ranges.end().
std::map<uintptr_t, Range>::iterator holder(uintptr_t address) {
  auto& ranges = chip().ranges;
  auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) return ranges.end();
  auto found = std::prev(next);
  return address - found->first < found->second.bytes ? found : ranges.end();
}

bool fits(uint64_t bytes) {
  Chip& c = chip();
  if (bytes <= c.total - c.mapped - c.allocated) return true;
  fail(X1_EMEMORY, "%" PRIu64 " bytes wanted, %" PRIu64 " of %" PRIu64 " are free", bytes,
       c.total - c.mapped - c.allocated, c.total);
  return false;
}

struct ResultMemory {
  void* data = nullptr;
  size_t bytes = 0;
  ~ResultMemory() {
    if (data) x1_mem_free(data);
  }
};
thread_local ResultMemory result;

}  // namespace

int fail(int status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error_text, sizeof(error_text), format, arguments);
  va_end(arguments);
  return error_status = status;
}

int failed() { return error_status; }

int crash(int status, const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(error_text, sizeof(error_text), format, arguments);
  va_end(arguments);
  if (!chip().unforgiving) return error_status = status;
  std::fprintf(stderr, "x1_runtime: fatal: %s\n", error_text);
  std::abort();
}

bool reachable(const char* command, const char* what, const void* address, uint64_t bytes) {
  if (!bytes) return true;
  std::shared_lock lock(chip().memory);
  auto found = holder(reinterpret_cast<uintptr_t>(address));
  if (found == chip().ranges.end()) {
    crash(X1_EADDRESS, "%s: %s: %p is neither mapped (x1_mem_map) nor allocated (x1_mem_alloc)", command, what,
          address);
    return false;
  }
  uint64_t left = found->first + found->second.bytes - reinterpret_cast<uintptr_t>(address);
  if (bytes <= left) return true;
  crash(X1_EADDRESS, "%s: %s: %" PRIu64 " bytes from %p on reach beyond what is mapped there, %" PRIu64, command, what,
        bytes, address, left);
  return false;
}

void* result_memory(size_t bytes) {
  if (!bytes) bytes = 1;
  if (result.bytes >= bytes) return result.data;
  if (result.data) x1_mem_free(result.data);
  result.data = x1_mem_alloc(bytes);
  result.bytes = result.data ? bytes : 0;
  return result.data;
}

Command::Command(const char* name) : lock_(chip().command), name_(name) {}

int Command::done(double work, double rate, int64_t bytes) const {
  constexpr double kLaunch = 500, kBytesPerCycle = 64;
  double compute = work / rate, memory = double(bytes) / kBytesPerCycle;
  chip().commands++;
  chip().cycles += uint64_t(kLaunch + (compute > memory ? compute : memory));
  return X1_OK;
}

}  // namespace x1

using namespace x1;

extern "C" {

X1_API const char* x1_last_error(void) { return error_text; }

#ifdef X1_RUNTIME_1_1
X1_API const char* x1_version(void) { return "1.1.0"; }
X1_API int x1_init(void) { return chip(), X1_OK; }
#else
X1_API const char* x1_version(void) { return "1.2.0"; }
X1_API int x1_init_v2(uint32_t flags) {
  if (flags) return fail(X1_EVALUE, "x1_init_v2: flags are %u: expected 0", flags);
  return chip(), X1_OK;
}
#endif

X1_API int x1_get_info(x1_info_t* info) {
  if (!info) return fail(X1_EVALUE, "x1_get_info: info: NULL");
  Chip& c = chip();
  std::shared_lock lock(c.memory);
  *info = x1_info_t{"X1-Edge", "X1-0001", c.total, c.mapped, c.allocated, c.copied, c.commands, c.cycles};
  return X1_OK;
}

X1_API void* x1_mem_map(void* host_ptr, size_t size) {
  if (!host_ptr || !size) return fail(X1_EVALUE, "x1_mem_map: NULL, or no bytes"), nullptr;
  Chip& c = chip();
  auto address = reinterpret_cast<uintptr_t>(host_ptr);
  std::unique_lock lock(c.memory);
  auto same = c.ranges.find(address);
  if (same != c.ranges.end() && same->second.count && same->second.bytes == size) {
    same->second.count++;
    return host_ptr;
  }
  auto next = c.ranges.lower_bound(address);
  bool overlaps = holder(address) != c.ranges.end() || (next != c.ranges.end() && next->first - address < size);
  if (overlaps) {
    fail(X1_EBUSY, "x1_mem_map: %zu bytes at %p overlap memory that is mapped or allocated already", size, host_ptr);
    return nullptr;
  }
  if (!fits(size)) return nullptr;
  c.ranges[address] = {size, 1};
  c.mapped += size;
  return host_ptr;
}

X1_API int x1_mem_unmap(void* ptr) {
  Chip& c = chip();
  std::unique_lock lock(c.memory);
  auto found = c.ranges.find(reinterpret_cast<uintptr_t>(ptr));
  if (found == c.ranges.end() || !found->second.count)
    return fail(X1_EADDRESS, "x1_mem_unmap: %p is not the start of a mapping", ptr);
  if (--found->second.count) return X1_OK;
  c.mapped -= found->second.bytes;
  c.ranges.erase(found);
  return X1_OK;
}

X1_API void* x1_mem_alloc(size_t size) {
  if (!size) return fail(X1_EVALUE, "x1_mem_alloc: no bytes"), nullptr;
  Chip& c = chip();
  std::unique_lock lock(c.memory);
  if (!fits(size)) return nullptr;
  void* p = nullptr;
  if (posix_memalign(&p, 64, size)) return fail(X1_EMEMORY, "x1_mem_alloc: the host has no memory"), nullptr;
  c.ranges[reinterpret_cast<uintptr_t>(p)] = {size, 0};
  c.allocated += size;
  return p;
}

X1_API int x1_mem_free(void* ptr) {
  Chip& c = chip();
  std::unique_lock lock(c.memory);
  auto found = c.ranges.find(reinterpret_cast<uintptr_t>(ptr));
  if (found == c.ranges.end() || found->second.count)
    return fail(X1_EADDRESS, "x1_mem_free: %p is not the start of an allocation", ptr);
  c.allocated -= found->second.bytes;
  c.ranges.erase(found);
  std::free(ptr);
  return X1_OK;
}

X1_API int x1_mem_copy(void* to, const void* from, size_t size) {
  if (size && (!to || !from)) return fail(X1_EVALUE, "x1_mem_copy: NULL");
  Command command("x1_mem_copy");
  if (size) std::memmove(to, from, size);
  chip().copied += size;
  return command.done(0, 1, int64_t(2 * size));
}

X1_API int x1_mem_set(void* to, int byte, size_t size) {
  Command command("x1_mem_set");
  if (!reachable(command.name(), "to", to, size)) return failed();
  if (size) std::memset(to, byte, size);
  return command.done(0, 1, int64_t(size));
}

X1_API int x1_mem_info(uint64_t* free_bytes, uint64_t* total_bytes) {
  Chip& c = chip();
  std::shared_lock lock(c.memory);
  if (free_bytes) *free_bytes = c.total - c.mapped - c.allocated;
  if (total_bytes) *total_bytes = c.total;
  return X1_OK;
}

}  // extern "C"
