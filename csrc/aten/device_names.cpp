// device_names.cpp: see device_names.h.
#include "device_names.h"

#include <ATen/Context.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "import_slots.h"
#include "runtime.h"

namespace torchfl::device_names {
namespace {

struct Range {
  int first, count;
};
// Read by every parse, written by `add` only, which replaces the whole map.
std::atomic<const std::map<std::string, Range>*> g_names{new std::map<std::string, Range>()};
std::mutex g_mutex;

using Constructor = void (*)(c10::Device*, const std::string&);
void construct_original(c10::Device* self, const std::string& text) { new (self) c10::Device(text); }

void construct(c10::Device* self, const std::string& text) {
  const auto& names = *g_names.load(std::memory_order_acquire);
  const size_t colon = text.find(':');
  auto found = names.find(text.substr(0, colon));
  if (found == names.end()) {
    construct_original(self, text);
    return;
  }
  const Range range = found->second;
  int index = -1;
  if (colon != std::string::npos) {
    const std::string digits = text.substr(colon + 1);
    const bool valid = !digits.empty() && digits.size() <= 4 &&
                       digits.find_first_not_of("0123456789") == std::string::npos &&
                       (digits.size() == 1 || digits[0] != '0');
    TORCH_CHECK(valid, "Invalid device string: '", text, "'");
    const int local = std::stoi(digits);
    // Under the first chip's name PyTorch prints the devices of all chips, so it must read them too.
    const int known = range.first == 0 ? runtime::device_count() : range.count;
    TORCH_CHECK(local < std::max(known, range.count), "Invalid device string: '", text, "': there ",
                range.count == 1 ? "is " : "are ", range.count, " device(s) of this chip");
    index = range.first + local;
  } else if (range.first != 0) {
    // Without an index: the current device if it is of this chip, else the chip's first. (The first chip keeps
    // PyTorch's own meaning of a missing index.)
    const int current = runtime::current_device();
    index = current >= range.first && current < range.first + range.count ? current : range.first;
  }
  new (self) c10::Device(kDevice, c10::DeviceIndex(index));
}

ImportSlots g_parser({"_ZN3c106DeviceC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
                      "_ZN3c106DeviceC2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"},
                     {"libtorch"});

std::string engage() { return g_parser.point(reinterpret_cast<void*>(&construct)); }

// The printed name. It is replaced where c10 and torch ask for the backend's name; this library asks c10 itself, so
// what the engine says and compares stays true.
std::atomic<const std::string*> g_shown{nullptr};
thread_local int t_true_names = 0;
ImportSlots g_printer({"_ZN3c1023get_privateuse1_backendB5cxx11Eb"}, {"libtorch", "libc10"});

std::string shown_name(bool lower_case) {
  const std::string* shown = g_shown.load(std::memory_order_acquire);
  if (shown == nullptr || t_true_names > 0) return c10::get_privateuse1_backend(lower_case);
  std::string name = *shown;
  if (!lower_case) std::transform(name.begin(), name.end(), name.begin(), ::toupper);
  return name;
}

// What stock PyTorch parses as the backend itself.
bool stock_parses(const std::string& name) {
  if (name != c10::get_privateuse1_backend()) return false;
  return name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_") == std::string::npos;
}

}  // namespace

std::string add(const std::string& name, int first_index, int count) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (name == "xpu" && at::globalContext().hasXPU()) return "this torch build has an XPU backend of its own";
  auto* names = new std::map<std::string, Range>(*g_names.load());  // the old map may be in use: it is not freed
  (*names)[name] = {first_index, count};
  g_names.store(names, std::memory_order_release);
  if (first_index == 0 && stock_parses(name)) return "";
  return engage();
}

void remove(const std::string& name) {
  std::lock_guard<std::mutex> lock(g_mutex);
  auto* names = new std::map<std::string, Range>(*g_names.load());
  names->erase(name);
  g_names.store(names, std::memory_order_release);
}

std::string show(const std::string& name) {
  std::lock_guard<std::mutex> lock(g_mutex);
  if (name.empty()) {
    g_printer.restore();
    g_shown.store(nullptr, std::memory_order_release);
    return "";
  }
  g_shown.store(new std::string(name), std::memory_order_release);  // the old one may be in use: it is not freed
  return g_printer.point(reinterpret_cast<void*>(&shown_name));
}

std::string shown() {
  const std::string* name = g_shown.load(std::memory_order_acquire);
  return name != nullptr && t_true_names == 0 ? *name : "";
}

void true_names(bool on) { t_true_names += on ? 1 : -1; }

uintptr_t parser() { return reinterpret_cast<uintptr_t>(&construct); }

bool engaged() { return g_parser.pointed(); }

void disengage() {
  show("");
  std::lock_guard<std::mutex> lock(g_mutex);
  g_parser.restore();
  g_names.store(new std::map<std::string, Range>(), std::memory_order_release);
}

}  // namespace torchfl::device_names
