// error.cpp: the host table, the per-thread SDK message and the log sink.
//
// Contract: set_error copies its text; nothing here throws into an adapter (C callers cannot unwind).
#include "error.h"

#include <atomic>
#include <cstdio>
#include <utility>

namespace torchfl {
namespace {

// Longer texts are cut: an adapter that passes an unterminated or enormous buffer must not take the process with it.
constexpr size_t kMaxText = 4096;

thread_local SdkMessage tls_message;

void log_to_stderr(int32_t level, const char* text) {
  if (level < 2) return;
  std::fprintf(stderr, "[torchfl] %s: %s\n", level == 2 ? "warning" : "error", text);
}

std::atomic<LogSink> g_sink{&log_to_stderr};

void host_set_error(int64_t sdk_code, const char* text) noexcept {
  try {
    tls_message.code = sdk_code;
    tls_message.text.clear();
    if (text == nullptr) return;
    size_t length = 0;
    while (length < kMaxText && text[length] != '\0') ++length;
    tls_message.text.assign(text, length);
    if (length == kMaxText) tls_message.text += "...";
    while (!tls_message.text.empty() && (tls_message.text.back() == '\n' || tls_message.text.back() == ' ')) {
      tls_message.text.pop_back();
    }
  } catch (...) {  // out of host memory: the code alone must do
  }
}

void host_log(int32_t level, const char* text) noexcept {
  if (text == nullptr) return;
  try {
    g_sink.load(std::memory_order_acquire)(level, text);
  } catch (...) {  // a log line is never worth a failure
  }
}

}  // namespace

SdkMessage take_sdk_message() { return std::exchange(tls_message, SdkMessage{}); }

const uba_host* host_table() {
  static const uba_host table = {UBA_HEADER(uba_host), &host_set_error, &host_log};
  return &table;
}

void set_log_sink(LogSink sink) { g_sink.store(sink ? sink : &log_to_stderr, std::memory_order_release); }

const char* status_name(uba_status status) {
  switch (status) {
    case UBA_OK:
      return "UBA_OK";
    case UBA_NOT_SUPPORTED:
      return "UBA_NOT_SUPPORTED";
    case UBA_OUT_OF_MEMORY:
      return "UBA_OUT_OF_MEMORY";
    case UBA_INVALID_VALUE:
      return "UBA_INVALID_VALUE";
    case UBA_FAILED:
      return "UBA_FAILED";
    case UBA_DEVICE_LOST:
      return "UBA_DEVICE_LOST";
    case UBA_NOT_READY:
      return "UBA_NOT_READY";
    default:
      return "an unknown status";
  }
}

}  // namespace torchfl
