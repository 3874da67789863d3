// library_file.cpp: the checks of library_file.h. On systems without ELF they are left to the dynamic loader.
#include "library_file.h"

#include "error.h"

#if defined(__linux__)
#include <elf.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <vector>
#endif

namespace torchfl {

#if defined(__linux__)
namespace {

struct Machine {
  int code;
  int bits;
  const char* name;
};

constexpr int kLoongArch = 258;  // younger than some elf.h
constexpr Machine kMachines[] = {
    {EM_X86_64, 64, "x86_64"}, {EM_AARCH64, 64, "aarch64"}, {EM_RISCV, 64, "riscv64"},       {EM_386, 32, "i386"},
    {EM_ARM, 32, "arm"},       {EM_PPC64, 64, "ppc64"},     {kLoongArch, 64, "loongarch64"}, {EM_S390, 64, "s390x"},
};

#if defined(__x86_64__)
constexpr int kThisMachine = EM_X86_64;
#elif defined(__aarch64__)
constexpr int kThisMachine = EM_AARCH64;
#elif defined(__riscv)
constexpr int kThisMachine = EM_RISCV;
#elif defined(__i386__)
constexpr int kThisMachine = EM_386;
#elif defined(__arm__)
constexpr int kThisMachine = EM_ARM;
#elif defined(__powerpc64__)
constexpr int kThisMachine = EM_PPC64;
#elif defined(__loongarch__)
constexpr int kThisMachine = kLoongArch;
#elif defined(__s390x__)
constexpr int kThisMachine = EM_S390;
#else
constexpr int kThisMachine = EM_NONE;  // unknown: the loader decides
#endif

constexpr int kThisClass = sizeof(void*) == 8 ? ELFCLASS64 : ELFCLASS32;

#if defined(__LP64__)
using Header = Elf64_Ehdr;
using Segment = Elf64_Phdr;
#else
using Header = Elf32_Ehdr;
using Segment = Elf32_Phdr;
#endif

std::string machine_name(int code) {
  for (const Machine& machine : kMachines) {
    if (machine.code == code) return machine.name;
  }
  return "machine number " + std::to_string(code);
}

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::load, "cannot load adapter " + path + ": " + what);
}

bool read_at(int descriptor, void* out, size_t bytes, uint64_t offset) {
  return pread(descriptor, out, bytes, off_t(offset)) == ssize_t(bytes);
}

}  // namespace

void inspect_library(int descriptor, const std::string& path) {
  const std::string rebuild = "; build the adapter for this machine";
  unsigned char ident[EI_NIDENT] = {};
  if (!read_at(descriptor, ident, sizeof(ident), 0) || std::memcmp(ident, ELFMAG, SELFMAG) != 0) {
    refuse(path, "it is not a shared library (no ELF header); 'library' must name the adapter's .so file");
  }
  // e_type and e_machine stand at the same place in both classes; byte order is the file's.
  unsigned char words[4] = {};
  if (!read_at(descriptor, words, sizeof(words), EI_NIDENT)) refuse(path, "it is cut off; build or copy it again");
  bool little = ident[EI_DATA] != ELFDATA2MSB;
  auto word = [&](int i) { return little ? words[i] | words[i + 1] << 8 : words[i] << 8 | words[i + 1]; };
  int type = word(0), machine = word(2);
  if (kThisMachine != EM_NONE && machine != kThisMachine) {
    refuse(path, "it is for " + machine_name(machine) + ", this process is " + machine_name(kThisMachine) + rebuild);
  }
  if (ident[EI_CLASS] != kThisClass) {
    refuse(path, std::string("it is a ") + (ident[EI_CLASS] == ELFCLASS32 ? "32" : "64") +
                     "-bit library, this process is " + (kThisClass == ELFCLASS32 ? "32" : "64") + "-bit" + rebuild);
  }
  const uint16_t probe = 1;
  bool host_little = *reinterpret_cast<const unsigned char*>(&probe) == 1;
  if (little != host_little) {
    refuse(path, std::string("it is ") + (little ? "little" : "big") + "-endian, this process is not" + rebuild);
  }
  if (type != ET_DYN) refuse(path, "it is an ELF file but not a shared library; link it with -shared");

  struct stat info {};
  Header header{};
  if (fstat(descriptor, &info) != 0 || !read_at(descriptor, &header, sizeof(header), 0) ||
      header.e_phentsize != sizeof(Segment)) {
    refuse(path, "it is cut off or damaged; build or copy it again");
  }
  std::vector<Segment> segments(header.e_phnum);
  if (!read_at(descriptor, segments.data(), segments.size() * sizeof(Segment), header.e_phoff)) {
    refuse(path, "it is cut off or damaged; build or copy it again");
  }
  const uint64_t size = uint64_t(info.st_size);
  for (const Segment& segment : segments) {
    if (segment.p_type == PT_LOAD && (segment.p_offset > size || segment.p_filesz > size - segment.p_offset)) {
      refuse(path, "it is cut off (" + std::to_string(size) + " bytes, at least " +
                       std::to_string(segment.p_offset + segment.p_filesz) + " needed); build or copy it again");
    }
  }
}

#else

void inspect_library(int, const std::string&) {}

#endif

}  // namespace torchfl
