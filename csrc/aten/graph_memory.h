// graph_memory.h: planned memory for programs that run again and again (graph_program.h).
//
// Contract: a first run through a Scope without a plan takes its memory from the caching allocator as usual, and writes
// down what was allocated and when each piece was given back. make_plan() places the pieces that were given back within
// the run in one block, so that those alive together do not overlap. A later run through a Scope with that plan takes
// the block once, and its pieces from it. Nothing depends on the later run being like the first: a piece is handed out
// only if its size is the planned one and no piece that shares its bytes is alive, else the caching allocator serves,
// and `matched()` says so. A piece that outlives the run keeps the block. One Scope serves the thread that made it.
#pragma once
#include <ATen/ATen.h>

#include <atomic>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

namespace torchfl::graph_memory {

struct Allocation {  // of the recorded run
  int step = 0;
  uint64_t bytes = 0;
  int64_t taken = 0, given_back = -1;  // order of events; -1: it outlived the run
};

struct Plan {
  struct Piece {
    uint64_t bytes = 0, offset = 0;
    bool planned = false;      // else the caching allocator has it
    std::vector<int> sharing;  // pieces that lie where this one lies, at other times
  };
  std::vector<Piece> pieces;  // in order of steps
  std::vector<int> first_of;  // by step: its first piece; one entry more at the end
  uint64_t bytes = 0;         // of the block
  uint64_t separately = 0;    // what its pieces would take without sharing
};

std::shared_ptr<const Plan> make_plan(std::vector<Allocation> allocations, int steps, uint64_t alignment);

class Arena;

class Scope {
 public:
  Scope(int device, std::shared_ptr<const Plan> plan);
  ~Scope();
  Scope(const Scope&) = delete;
  void at_step(int step);
  bool matched() const { return matched_; }
  std::vector<Allocation> recorded() { return std::move(allocations_); }

  // For the allocator.
  std::optional<c10::DataPtr> take(int device, uint64_t bytes);
  void allocated(int device, const void* block, uint64_t bytes);
  void released(const void* block);

 private:
  int device_;
  void*
      stream_;  // pieces follow each other in its order; what an operator does on another stream has memory of its own
  std::shared_ptr<const Plan> plan_;
  Arena* arena_ = nullptr;
  Scope* outer_;
  int step_ = 0, next_ = 0;
  bool matched_ = true;
  int64_t event_ = 0;
  std::vector<Allocation> allocations_;
  std::unordered_map<const void*, size_t> alive_;  // by block
};

// The calling thread's innermost one, or NULL.
extern thread_local Scope* t_scope;

// What a piece lies in: the block that the caching allocator knows. NULL: the pointer is no piece.
const c10::DataPtr* block_behind(const c10::DataPtr& ptr);

// Another stream uses the pointer: if it is a piece, its bytes serve nobody else as long as the block lives.
void pin(const c10::DataPtr& ptr);

}  // namespace torchfl::graph_memory
