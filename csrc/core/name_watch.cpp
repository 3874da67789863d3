// name_watch.cpp: torchfl/_names.so, which tells Python that a chip's device is asked for before the engine is loaded.
//
// Contract: `torchfl_watch_names` points the import slot of c10::Device(std::string const&) at a function that looks
// for the names in `names` (each followed by a newline) and calls `resolve` with the one it finds. `resolve` loads the
// engine, which points the slots at itself; it may fail, and must not throw. Then the text is parsed, by whoever now
// stands in c10's place. All other texts cost a look at their first letters. Knows of c10::Device only that its
// constructor takes memory and a text. Torch must be in the process.
#include <dlfcn.h>

#include <cstring>
#include <string>

#include "import_slots.h"

namespace torchfl {
namespace {

constexpr const char* kConstructor = "_ZN3c106DeviceC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
constexpr const char* kBaseConstructor = "_ZN3c106DeviceC2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";

using Construct = void (*)(void* device, const std::string& text);
using Resolve = Construct (*)(const char* name);

ImportSlots g_slots({kConstructor, kBaseConstructor}, {"libtorch"});
std::string* g_names = nullptr;  // "\nnpu\nnpu_v3\n"; never freed, as a parse may be reading it
Resolve g_resolve = nullptr;
Construct g_original = nullptr;

bool watched(const std::string& text) {
  if (g_names == nullptr || text.empty() || text.find('\n') != std::string::npos) return false;
  return g_names->find("\n" + text.substr(0, text.find(':')) + "\n") != std::string::npos;
}

void construct(void* device, const std::string& text) {
  Construct parse = g_original;
  if (watched(text)) {
    if (Construct loaded = g_resolve(text.c_str())) parse = loaded;
  }
  parse(device, text);
}

}  // namespace
}  // namespace torchfl

extern "C" {

// Returns "" or why the names cannot be watched. `resolve` gets the text and returns the engine's own parser
// (`_C.device_parser`), or null for PyTorch's.
__attribute__((visibility("default"))) const char* torchfl_watch_names(const char* names, void* resolve) {
  using namespace torchfl;
  static std::string reason;
  g_names = new std::string(std::string("\n") + names);
  g_resolve = reinterpret_cast<Resolve>(resolve);
  g_original = reinterpret_cast<Construct>(dlsym(RTLD_DEFAULT, kConstructor));
  if (g_original == nullptr) {
    // Python loads torch's libraries without making their symbols global.
    void* c10 = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    if (c10 != nullptr) g_original = reinterpret_cast<Construct>(dlsym(c10, kConstructor));
  }
  if (g_original == nullptr) return "libc10.so, or the constructor of c10::Device in it, was not found";
  reason = g_slots.point(reinterpret_cast<void*>(&construct));
  return reason.c_str();
}

__attribute__((visibility("default"))) void torchfl_unwatch_names() { torchfl::g_slots.restore(); }

}  // extern "C"
