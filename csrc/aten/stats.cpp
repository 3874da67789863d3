// stats.cpp: see stats.h.
#include "stats.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <unordered_map>

namespace torchfl::stats {

std::atomic<uint8_t> g_timing{0};
std::atomic<bool> g_strict{[] {
  const char* value = std::getenv("TORCHFL_STRICT");
  return value != nullptr && *value != '\0' && *value != '0';
}()};

namespace {
std::mutex g_mutex;
std::vector<std::unique_ptr<OpCounters>> g_counters;
std::unordered_map<std::string, OpCounters*> g_index;
std::atomic<Sink> g_sink{nullptr};
std::atomic<Raise> g_raise{nullptr};
std::atomic<int> g_debug{-1};
}  // namespace

void set_raise(Raise raise) { g_raise.store(raise); }

void unsupported(const std::string& text) {
  if (Raise raise = g_raise.load()) raise(text);
  TORCH_CHECK_NOT_IMPLEMENTED(false, text);
}

OpCounters& counters(const std::string& device, const std::string& op, const std::string& path,
                     const std::string& target, const std::string& reason, bool* created) {
  const std::string key = device + '\n' + op + '\n' + path + '\n' + target + '\n' + reason;
  std::lock_guard<std::mutex> lock(g_mutex);
  auto found = g_index.find(key);
  if (created != nullptr) *created = found == g_index.end();
  if (found != g_index.end()) return *found->second;
  auto fresh = std::make_unique<OpCounters>();
  fresh->device = device;
  fresh->op = op;
  fresh->path = path;
  fresh->target = target;
  fresh->reason = reason;
  OpCounters* raw = fresh.get();
  g_counters.push_back(std::move(fresh));
  g_index.emplace(key, raw);
  return *raw;
}

std::vector<Row> snapshot(bool whole, Which which) {
  // A call that its kernel refuses is taken back, which may be after a reset.
  auto since = [whole](const std::atomic<uint64_t>& now, uint64_t before) {
    const uint64_t value = now.load(), base = whole ? 0 : before;
    return value > base ? value - base : 0;
  };
  std::lock_guard<std::mutex> lock(g_mutex);
  std::vector<Row> rows;
  for (const auto& c : g_counters) {
    if (which == Which::off_chip && c->path != "cpu" && c->path != "custom") continue;
    const uint64_t calls = since(c->calls, c->calls_before);
    if (calls > 0)
      rows.push_back({c->device, c->op, c->path, c->target, c->reason, calls,
                      since(c->nanoseconds, c->nanoseconds_before), since(c->host_bytes, c->host_bytes_before),
                      since(c->saved_bytes, c->saved_bytes_before)});
  }
  return rows;
}

void reset() {
  std::lock_guard<std::mutex> lock(g_mutex);
  for (const auto& c : g_counters) {
    c->calls_before = c->calls;
    c->nanoseconds_before = c->nanoseconds;
    c->host_bytes_before = c->host_bytes;
    c->saved_bytes_before = c->saved_bytes;
  }
}

void set_sink(Sink sink) { g_sink = sink; }

void log(int level, const std::string& line) {
  if (Sink sink = g_sink.load()) {
    sink(level, line);
  } else if (level >= 2) {
    std::fprintf(stderr, "[torchfl] %s\n", line.c_str());
  }
}

bool debug_lines() {
  int state = g_debug.load(std::memory_order_relaxed);
  if (state < 0) {
    const char* text = std::getenv("TORCH_FL_DEBUG");
    state = text != nullptr && *text != '\0' && std::string(text) != "0";
    g_debug = state;
  }
  return state != 0;
}
void set_debug_lines(bool on) { g_debug = on ? 1 : 0; }

}  // namespace torchfl::stats
