// runtime_config.cpp: what the environment says (chip, sizes, version, faults) and the texts of errors.
//
// Contract: everything here is read once, at the first SDK call, and starts no thread.
#include <cerrno>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>

#include "device.h"

namespace npu {

namespace {

constexpr uint64_t kMiB = uint64_t(1) << 20;

constexpr Chip kV3 = {"NPU-V3", 6, 256, 512, 1000, 8 * kMiB, 25600, 51200, 6400, 256, 256, 128};
constexpr Chip kV2 = {"NPU-V2", 5, 128, 256, 1000, 4 * kMiB, 12800, 25600, 3200, 128, 128, 64};

int64_t env_int(const char* name, int64_t fallback, int64_t low, int64_t high) {
  const char* text = std::getenv(name);
  if (!text || !*text) return fallback;
  char* end = nullptr;
  errno = 0;
  long long value = std::strtoll(text, &end, 10);
  if (errno || *end || value < low || value > high) {
    std::fprintf(stderr, "npu: %s=%s is ignored: expected an integer from %lld to %lld\n", name, text,
                 static_cast<long long>(low), static_cast<long long>(high));
    return fallback;
  }
  return value;
}

bool env_is(const char* name, const char* value) {
  const char* text = std::getenv(name);
  return text && std::strcmp(text, value) == 0;
}

Config read_config() {
  Config c{};
  c.devices = int32_t(env_int("NPU_SIM_DEVICES", 1, 0, 64));
  c.chip = env_is("NPU_SIM_CHIP", "v2") || env_is("NPU_SIM_CHIP", "V2") ? kV2 : kV3;
  c.memory_bytes = uint64_t(env_int("NPU_SIM_MEMORY", 4096, 1, 1 << 20)) * kMiB;
  bool newer = env_is("NPU_SIM_SDK_VERSION", "1.2.1");
  c.sdk_version = newer ? "1.2.1" : "1.2.0";
  c.alignment = newer ? 512 : 256;
  unsigned cores = std::thread::hardware_concurrency();
  c.threads = int(env_int("NPU_SIM_THREADS", cores ? cores : 1, 1, 256));
  c.log = env_is("NPU_SIM_LOG", "1");
  c.timeout_ms = env_int("NPU_SIM_TIMEOUT_MS", 2000, 1, 3600 * 1000);
  c.index_limit = env_int("NPU_SIM_INDEX_LIMIT", int64_t(1) << 40, 1, int64_t(1) << 40);
  return c;
}

// kind:NAME:n[:device], or oom:n; several are separated by commas.
std::deque<Fault> read_faults() {
  std::deque<Fault> faults;
  const char* text = std::getenv("NPU_SIM_FAULT");
  if (!text) return faults;
  std::string all = text;
  for (size_t at = 0; at < all.size();) {
    size_t comma = all.find(',', at);
    if (comma == std::string::npos) comma = all.size();
    std::string item = all.substr(at, comma - at);
    at = comma + 1;
    std::vector<std::string> part(1);
    for (char ch : item) {
      if (ch == ':') {
        part.emplace_back();
      } else {
        part.back() += ch;
      }
    }
    static const std::map<std::string, FaultKind> kinds = {{"kernel", FaultKind::kernel},
                                                           {"async", FaultKind::async},
                                                           {"hang", FaultKind::hang},
                                                           {"lost", FaultKind::lost},
                                                           {"oom", FaultKind::oom}};
    auto kind = kinds.find(part[0]);
    bool oom = kind != kinds.end() && kind->second == FaultKind::oom;
    size_t number = oom ? 1 : 2;
    if (kind == kinds.end() || part.size() <= number || part.size() > number + 2 ||
        std::atoll(part[number].c_str()) < 1) {
      std::fprintf(
          stderr, "npu: NPU_SIM_FAULT: '%s' is ignored: expected kernel|async|hang|lost:FUNCTION:n[:device] or oom:n\n",
          item.c_str());
      continue;
    }
    Fault& fault = faults.emplace_back();
    fault.kind = kind->second;
    fault.name = oom ? "npu_malloc" : part[1];
    fault.call = std::atoll(part[number].c_str());
    fault.device = part.size() > number + 1 ? std::atoi(part[number + 1].c_str()) : -1;
  }
  return faults;
}

std::deque<Fault>& faults() {
  static auto* list = new std::deque<Fault>(read_faults());
  return *list;
}

thread_local char t_error[768] = "";

}  // namespace

const Config& config() {
  static const Config* c = new Config(read_config());
  return *c;
}

bool faults_configured() {
  static const bool any = !faults().empty();
  return any;
}

bool fault_strikes(FaultKind kind, const char* function, int32_t device) {
  if (!faults_configured()) return false;
  for (Fault& fault : faults()) {
    if (fault.kind != kind || fault.name != function) continue;
    if (fault.device >= 0 && fault.device != device) continue;
    if (fault.seen.fetch_add(1) + 1 == fault.call) return true;
  }
  return false;
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void cpu_relax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool Spinner::again() {
  constexpr int spins = 48, yields = 64;
  if (++rounds_ > spins + yields) return false;
  if (rounds_ <= spins) {
    cpu_relax();
  } else {
    std::this_thread::yield();
  }
  return true;
}

npu_status_t fail(npu_status_t status, const char* format, ...) {
  va_list args;
  va_start(args, format);
  std::vsnprintf(t_error, sizeof(t_error), format, args);
  va_end(args);
  if (config().log) std::fprintf(stderr, "npu: %s: %s\n", npu_status_name(status), t_error);
  return status;
}

size_t dtype_size(int32_t dtype) {
  switch (dtype) {
    case NPU_FLOAT16:
    case NPU_BFLOAT16:
    case NPU_INT16:
      return 2;
    case NPU_FLOAT32:
    case NPU_INT32:
      return 4;
    case NPU_INT64:
    case NPU_FLOAT64:
      return 8;
    case NPU_INT8:
    case NPU_BOOL:
    case NPU_UINT8:
      return 1;
    default:
      return 0;
  }
}

}  // namespace npu

extern "C" {

NPU_API const char* npu_status_name(npu_status_t status) {
  static const char* const names[] = {
      "NPU_STATUS_SUCCESS",       "NPU_STATUS_INVALID_VALUE", "NPU_STATUS_INVALID_ADDRESS",  "NPU_STATUS_OUT_OF_MEMORY",
      "NPU_STATUS_NOT_SUPPORTED", "NPU_STATUS_NOT_READY",     "NPU_STATUS_EXECUTION_FAILED", "NPU_STATUS_TIMEOUT",
      "NPU_STATUS_DEVICE_LOST",   "NPU_STATUS_NO_DEVICE"};
  return status >= 0 && status < int32_t(sizeof(names) / sizeof(*names)) ? names[status] : "NPU_STATUS_UNKNOWN";
}

NPU_API const char* npu_last_error_text(void) { return npu::t_error; }

NPU_API const char* npu_sdk_version(void) { return npu::config().sdk_version; }

}  // extern "C"
