// device_names.cpp: see device_names.h.
#include "device_names.h"

#include <ATen/Context.h>
#include <c10/core/Device.h>

#include "runtime.h"

#if defined(__ELF__)
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

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

#if defined(__ELF__)
#if defined(__x86_64__)
constexpr unsigned kJumpSlot = R_X86_64_JUMP_SLOT, kGlobDat = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr unsigned kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobDat = R_AARCH64_GLOB_DAT;
#else
constexpr unsigned kJumpSlot = ~0u, kGlobDat = ~0u;
#endif

const char* const kSymbols[] = {"_ZN3c106DeviceC1ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE",
                                "_ZN3c106DeviceC2ERKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"};

struct Slot {
  void** address;
  void* original;
};
std::vector<Slot> g_slots;

bool write_slot(void** address, void* value) {
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  void* start = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(address) & ~(page - 1));
  // Slots lie in memory that is read-only after relocation.
  if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  *address = value;
  mprotect(start, page, PROT_READ);
  return true;
}

void visit_relocations(ElfW(Addr) base, const ElfW(Rela) * table, size_t bytes, const ElfW(Sym) * symbols,
                       const char* strings) {
  for (size_t i = 0; i < bytes / sizeof(ElfW(Rela)); i++) {
    const unsigned type = unsigned(ELF64_R_TYPE(table[i].r_info));
    if (type != kJumpSlot && type != kGlobDat) continue;
    const char* name = strings + symbols[ELF64_R_SYM(table[i].r_info)].st_name;
    if (std::strcmp(name, kSymbols[0]) != 0 && std::strcmp(name, kSymbols[1]) != 0) continue;
    auto** slot = reinterpret_cast<void**>(base + table[i].r_offset);
    g_slots.push_back({slot, *slot});
  }
}

int visit_library(dl_phdr_info* info, size_t, void*) {
  const char* name = info->dlpi_name != nullptr ? info->dlpi_name : "";
  const char* base_name = std::strrchr(name, '/');
  base_name = base_name != nullptr ? base_name + 1 : name;
  if (std::strncmp(base_name, "libtorch", 8) != 0) return 0;
  const ElfW(Rela)* plt = nullptr;
  const ElfW(Rela)* rela = nullptr;
  size_t plt_bytes = 0, rela_bytes = 0;
  const ElfW(Sym)* symbols = nullptr;
  const char* strings = nullptr;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    if (info->dlpi_phdr[i].p_type != PT_DYNAMIC) continue;
    for (auto* entry = reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
         entry->d_tag != DT_NULL; entry++) {
      switch (entry->d_tag) {
        case DT_JMPREL:
          plt = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
          break;
        case DT_PLTRELSZ:
          plt_bytes = entry->d_un.d_val;
          break;
        case DT_RELA:
          rela = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
          break;
        case DT_RELASZ:
          rela_bytes = entry->d_un.d_val;
          break;
        case DT_SYMTAB:
          symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
          break;
        case DT_STRTAB:
          strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
          break;
        default:
          break;
      }
    }
  }
  if (symbols == nullptr || strings == nullptr) return 0;
  if (plt != nullptr) visit_relocations(info->dlpi_addr, plt, plt_bytes, symbols, strings);
  if (rela != nullptr) visit_relocations(info->dlpi_addr, rela, rela_bytes, symbols, strings);
  return 0;
}

std::string engage() {
  if (!g_slots.empty()) return "";
  dl_iterate_phdr(visit_library, nullptr);
  if (g_slots.empty()) return "this torch build does not import c10::Device(std::string) where it could be translated";
  for (const Slot& slot : g_slots) {
    if (!write_slot(slot.address, reinterpret_cast<void*>(&construct))) {
      disengage();
      return "the system does not let the import table be written (mprotect failed)";
    }
  }
  return "";
}
#else
std::string engage() { return "only ELF systems (Linux) have an import table that can be re-pointed"; }
#endif

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

bool engaged() {
#if defined(__ELF__)
  return !g_slots.empty();
#else
  return false;
#endif
}

void disengage() {
#if defined(__ELF__)
  for (const Slot& slot : g_slots) write_slot(slot.address, slot.original);
  g_slots.clear();
#endif
}

}  // namespace torchfl::device_names
