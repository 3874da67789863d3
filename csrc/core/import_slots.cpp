// import_slots.cpp: see import_slots.h.
#include "import_slots.h"

#include <cstdint>
#include <cstring>

#if defined(__ELF__)
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace torchfl {

#if defined(__ELF__)
namespace {

#if defined(__x86_64__)
constexpr unsigned kJumpSlot = R_X86_64_JUMP_SLOT, kGlobDat = R_X86_64_GLOB_DAT;
#elif defined(__aarch64__)
constexpr unsigned kJumpSlot = R_AARCH64_JUMP_SLOT, kGlobDat = R_AARCH64_GLOB_DAT;
#else
constexpr unsigned kJumpSlot = ~0u, kGlobDat = ~0u;
#endif

// The tables of one library that name what it imports.
struct Imports {
  const ElfW(Rela) * plt = nullptr, *rela = nullptr;
  size_t plt_bytes = 0, rela_bytes = 0;
  const ElfW(Sym) * symbols = nullptr;
  const char* strings = nullptr;
};

Imports imports_of(const ElfW(Dyn) * entry) {
  Imports found;
  for (; entry->d_tag != DT_NULL; entry++) {
    switch (entry->d_tag) {
      case DT_JMPREL:
        found.plt = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
        break;
      case DT_PLTRELSZ:
        found.plt_bytes = entry->d_un.d_val;
        break;
      case DT_RELA:
        found.rela = reinterpret_cast<const ElfW(Rela)*>(entry->d_un.d_ptr);
        break;
      case DT_RELASZ:
        found.rela_bytes = entry->d_un.d_val;
        break;
      case DT_SYMTAB:
        found.symbols = reinterpret_cast<const ElfW(Sym)*>(entry->d_un.d_ptr);
        break;
      case DT_STRTAB:
        found.strings = reinterpret_cast<const char*>(entry->d_un.d_ptr);
        break;
      default:
        break;
    }
  }
  return found;
}

}  // namespace

bool ImportSlots::write(const Slot& slot, void* value) {
  const uintptr_t page = uintptr_t(sysconf(_SC_PAGESIZE));
  void* start = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(slot.address) & ~(page - 1));
  if (mprotect(start, page, PROT_READ | PROT_WRITE) != 0) return false;
  *slot.address = value;
  // Other slots of a page that was writable may still be bound when they are first called.
  if (slot.read_only) mprotect(start, page, PROT_READ);
  return true;
}

template <class Info>
void ImportSlots::visit(const Info* info) {
  const char* path = info->dlpi_name != nullptr ? info->dlpi_name : "";
  const char* slash = std::strrchr(path, '/');
  const char* file = slash != nullptr ? slash + 1 : path;
  bool wanted = false;
  for (const char* library : libraries_) wanted = wanted || std::strncmp(file, library, std::strlen(library)) == 0;
  if (!wanted) return;
  Imports imports;
  uintptr_t relro = 0, relro_end = 0;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const auto& header = info->dlpi_phdr[i];
    if (header.p_type == PT_DYNAMIC) {
      imports = imports_of(reinterpret_cast<const ElfW(Dyn)*>(info->dlpi_addr + header.p_vaddr));
    } else if (header.p_type == PT_GNU_RELRO) {
      relro = info->dlpi_addr + header.p_vaddr;
      relro_end = relro + header.p_memsz;
    }
  }
  if (imports.symbols == nullptr || imports.strings == nullptr) return;
  auto scan = [&](const ElfW(Rela) * table, size_t bytes) {
    if (table == nullptr) return;
    for (size_t i = 0; i < bytes / sizeof(ElfW(Rela)); i++) {
      const unsigned type = unsigned(ELF64_R_TYPE(table[i].r_info));
      if (type != kJumpSlot && type != kGlobDat) continue;
      const char* name = imports.strings + imports.symbols[ELF64_R_SYM(table[i].r_info)].st_name;
      for (const char* symbol : symbols_) {
        if (std::strcmp(name, symbol) != 0) continue;
        const uintptr_t at = info->dlpi_addr + table[i].r_offset;
        auto** slot = reinterpret_cast<void**>(at);
        slots_.push_back({slot, *slot, at >= relro && at < relro_end});
      }
    }
  };
  scan(imports.plt, imports.plt_bytes);
  scan(imports.rela, imports.rela_bytes);
}

std::string ImportSlots::point(void* function) {
  if (pointed()) return "";
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* self) {
        static_cast<ImportSlots*>(self)->visit(info);
        return 0;
      },
      this);
  if (slots_.empty()) return "this torch build does not import the function where it could be translated";
  for (const Slot& slot : slots_) {
    if (write(slot, function)) continue;
    restore();
    return "the system does not let the import table be written (mprotect failed)";
  }
  return "";
}

void ImportSlots::restore() {
  for (const Slot& slot : slots_) write(slot, slot.original);
  slots_.clear();
}
#else
std::string ImportSlots::point(void*) { return "only ELF systems (Linux) have an import table that can be re-pointed"; }
void ImportSlots::restore() {}
#endif

}  // namespace torchfl
