// import_slots.h: points one imported function of the loaded torch libraries elsewhere, and back.
//
// Contract: a library calls an imported function through a slot of its import table. `point` finds the slots of a
// function in every loaded library whose file name begins with one of `libraries`, and has them call `function`;
// `restore` puts back what was there. Both are for one thread at a time; calls may run meanwhile, and see the old or
// the new function. ELF only; elsewhere `point` says so. Holds no lock and allocates only here.
#pragma once
#include <string>
#include <vector>

namespace torchfl {

class ImportSlots {
 public:
  // Mangled names that are one function (the complete and the base constructor of a class, say).
  ImportSlots(std::vector<const char*> symbols, std::vector<const char*> libraries)
      : symbols_(std::move(symbols)), libraries_(std::move(libraries)) {}

  // Returns "" or, where it cannot be done, the reason; then nothing has changed. Twice is once.
  std::string point(void* function);
  void restore();
  bool pointed() const { return !slots_.empty(); }

 private:
  struct Slot {
    void** address;
    void* original;
    bool read_only;  // lies in memory that is read-only after relocation
  };
  static bool write(const Slot& slot, void* value);
  template <class Info>
  void visit(const Info* info);

  std::vector<const char*> symbols_, libraries_;
  std::vector<Slot> slots_;
};

}  // namespace torchfl
