// graph_memory.cpp: see graph_memory.h.
#include "graph_memory.h"

#include <algorithm>

#include "runtime.h"

namespace torchfl::graph_memory {

thread_local Scope* t_scope = nullptr;

// One run's block. It lives as long as the run or one of its pieces.
class Arena {
 public:
  struct Piece {
    Arena* arena = nullptr;
    std::atomic<bool> alive{false}, pinned{false};
  };
  Arena(c10::DataPtr memory, size_t pieces) : memory_(std::move(memory)), pieces_(pieces) {
    for (Piece& piece : pieces_) piece.arena = this;
  }
  void hold() { holders_.fetch_add(1, std::memory_order_relaxed); }
  void let_go() {
    if (holders_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }
  const c10::DataPtr& memory() const { return memory_; }
  Piece& piece(size_t index) { return pieces_[index]; }

 private:
  c10::DataPtr memory_;
  std::vector<Piece> pieces_;
  std::atomic<int64_t> holders_{1};
};

namespace {

void release_piece(void* context) {
  auto* piece = static_cast<Arena::Piece*>(context);
  if (!piece->pinned.load(std::memory_order_relaxed)) piece->alive.store(false, std::memory_order_release);
  piece->arena->let_go();
}

uint64_t up_to(uint64_t bytes, uint64_t alignment) { return (bytes + alignment - 1) / alignment * alignment; }

bool together(const Allocation& a, const Allocation& b) { return a.taken < b.given_back && b.taken < a.given_back; }

}  // namespace

std::shared_ptr<const Plan> make_plan(std::vector<Allocation> allocations, int steps, uint64_t alignment) {
  auto plan = std::make_shared<Plan>();
  plan->pieces.resize(allocations.size());
  plan->first_of.assign(size_t(steps) + 1, int(allocations.size()));
  for (size_t i = allocations.size(); i-- > 0;) {
    for (int step = allocations[i].step; step >= 0 && plan->first_of[size_t(step)] > int(i); step--)
      plan->first_of[size_t(step)] = int(i);
  }
  // The largest first, each at the lowest place that is free while it is alive.
  std::vector<int> order;
  for (size_t i = 0; i < allocations.size(); i++) {
    plan->pieces[i].bytes = allocations[i].bytes;
    plan->pieces[i].planned = allocations[i].given_back >= 0;
    if (plan->pieces[i].planned) order.push_back(int(i));
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](int a, int b) { return allocations[size_t(a)].bytes > allocations[size_t(b)].bytes; });
  std::vector<int> placed;
  for (int index : order) {
    Plan::Piece& piece = plan->pieces[size_t(index)];
    const uint64_t bytes = up_to(piece.bytes, alignment);
    std::vector<std::pair<uint64_t, uint64_t>> taken;
    for (int other : placed) {
      const Plan::Piece& neighbour = plan->pieces[size_t(other)];
      if (together(allocations[size_t(index)], allocations[size_t(other)]))
        taken.emplace_back(neighbour.offset, neighbour.offset + up_to(neighbour.bytes, alignment));
    }
    std::sort(taken.begin(), taken.end());
    for (const auto& [begin, end] : taken) {
      if (begin >= piece.offset + bytes) break;
      piece.offset = std::max(piece.offset, end);
    }
    plan->bytes = std::max(plan->bytes, piece.offset + bytes);
    plan->separately += bytes;
    placed.push_back(index);
  }
  for (int a : placed) {
    Plan::Piece& piece = plan->pieces[size_t(a)];
    for (int b : placed) {
      const Plan::Piece& other = plan->pieces[size_t(b)];
      if (a != b && piece.offset < other.offset + other.bytes && other.offset < piece.offset + piece.bytes)
        piece.sharing.push_back(b);
    }
  }
  return plan;
}

Scope::Scope(int device, std::shared_ptr<const Plan> plan)
    : device_(device), stream_(runtime::current_stream(device)), plan_(std::move(plan)), outer_(t_scope) {
  if (plan_ != nullptr && plan_->bytes > 0) {
    t_scope = nullptr;  // the block itself is no piece of an outer run's
    const c10::DeviceGuard guard(c10::Device(kDevice, c10::DeviceIndex(device)));
    try {
      arena_ = new Arena(device_allocator()->allocate(plan_->bytes), plan_->pieces.size());
    } catch (const c10::OutOfMemoryError&) {
      matched_ = false;  // pieces one by one may still fit
    } catch (...) {
      t_scope = outer_;
      throw;
    }
  }
  t_scope = this;
}

Scope::~Scope() {
  t_scope = outer_;
  if (arena_ != nullptr) arena_->let_go();
}

void Scope::at_step(int step) {
  step_ = step;
  if (plan_ == nullptr) return;
  matched_ &= step == 0 || next_ == plan_->first_of[size_t(step)];
  next_ = plan_->first_of[size_t(step)];
}

std::optional<c10::DataPtr> Scope::take(int device, uint64_t bytes) {
  if (plan_ == nullptr || device != device_ || runtime::current_stream(device) != stream_) return std::nullopt;
  if (next_ >= plan_->first_of[size_t(step_) + 1]) {
    matched_ = false;
    return std::nullopt;
  }
  const size_t index = size_t(next_++);
  const Plan::Piece& planned = plan_->pieces[index];
  if (planned.bytes != bytes) {
    matched_ = false;
    return std::nullopt;
  }
  if (!planned.planned || arena_ == nullptr) return std::nullopt;
  Arena::Piece& piece = arena_->piece(index);
  bool free = !piece.alive.load(std::memory_order_acquire);
  for (int other : planned.sharing) free = free && !arena_->piece(size_t(other)).alive.load(std::memory_order_acquire);
  if (!free) {
    matched_ = false;
    return std::nullopt;
  }
  piece.alive.store(true, std::memory_order_relaxed);
  arena_->hold();
  return c10::DataPtr(static_cast<char*>(arena_->memory().get()) + planned.offset, &piece, &release_piece,
                      c10::Device(kDevice, c10::DeviceIndex(device)));
}

void Scope::allocated(int device, const void* block, uint64_t bytes) {
  if (plan_ != nullptr || device != device_ || runtime::current_stream(device) != stream_) return;
  alive_[block] = allocations_.size();
  allocations_.push_back({step_, bytes, event_++, -1});
}

void Scope::released(const void* block) {
  auto found = alive_.find(block);
  if (found == alive_.end()) return;
  allocations_[found->second].given_back = event_++;
  alive_.erase(found);
}

void pin(const c10::DataPtr& ptr) {
  if (ptr.get_deleter() == &release_piece) static_cast<Arena::Piece*>(ptr.get_context())->pinned.store(true);
}

const c10::DataPtr* block_behind(const c10::DataPtr& ptr) {
  if (ptr.get_deleter() != &release_piece) return nullptr;
  return &static_cast<Arena::Piece*>(ptr.get_context())->arena->memory();
}

}  // namespace torchfl::graph_memory
