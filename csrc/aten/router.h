// router.h: the generic route: one boxed kernel that serves every routed operator of every chip.
//
// Contract: a call is decided once for each signature (operator, device, dtypes, sizes, strides, alignment, and the
// plain arguments that shape it) and the decision is kept for the calling thread; numbers that only scale the values
// (`alpha`, the 2 of `x * 2`) are not part of a signature. A hit does no string work, takes no lock and allocates
// nothing but the result.
#pragma once
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <string>
#include <vector>

#include "profiler.h"
#include "random_checks.h"
#include "runtime.h"
#include "stats.h"

namespace torchfl {

// What is known of an operator once and for all.
struct OpState {
  explicit OpState(const c10::OperatorHandle& op);
  c10::OperatorHandle handle;
  size_t arg_count;                // of the schema
  std::string display;             // "aten::add_.Tensor"
  OpSchema schema;                 // of the functional form: base name, overload, argument names
  std::vector<int> kernel_args;    // positions in the schema of what a kernel gets: all but out arguments
  std::vector<int> written;        // positions of the arguments that the schema says are written
  std::vector<int> hidden_writes;  // written too, though the schema is silent (batch norm's running statistics)
  std::vector<int> returns;        // for each return: the written argument it is, or -1 for a new value
  std::vector<uint8_t> scales;     // by position: a number that only scales values, whatever it is
  enum : uint8_t { by_value = 0, by_kind = 1, by_default = 2 };
  // ... and what of it a signature holds: all, where a descriptor's condition or a program depends on it; its kind; its
  // kind, and whether it is the default.
  std::vector<uint8_t> patched;
  std::vector<uint8_t> baked;  // by position: a program depends on the number: 1, on its value; 2, if it is default
  std::vector<c10::IValue> defaults;              // by position
  std::vector<bool> is_out;                       // by position
  bool offset_matters = false;                    // a descriptor's condition looks at storage offsets
  std::optional<c10::OperatorHandle> functional;  // the form without written arguments, itself if it is that
  // For the out form of a factory (randperm, linspace), which has no such form: what makes its result, given the dtype.
  std::optional<c10::OperatorHandle> factory;
  bool pointwise = false;
  bool is_view = false;
  bool draws = false;                  // random numbers: check_random_call has a look at each call
  int generator = -1;                  // the position of its generator, or -1
  RandomCheck random_check = nullptr;  // of its numbers
  bool writes(int position) const;
  std::optional<c10::DispatchKey> composite;           // where a composite kernel of PyTorch's lives
  const c10::KernelFunction* own_composite = nullptr;  // or ours, which goes first
};

OpState& op_state(const c10::OperatorHandle& op);
// Brings `patched` up to date with the chips' conditions. Called while no operator runs (loading a chip).
void refresh_patched(OpState& op);

// Makes the operators that the loaded chips map reach the route (and, once, the generic fallback and all operators
// whose structured form would otherwise be taken apart first). Call after each chip that was added.
void register_routes();

// Whether it has a kernel of ours that is no route: it never gets there.
bool has_own_kernel(const c10::OperatorHandle& op);

// The body of the boxed kernel.
void route(OpState& op, torch::jit::Stack* stack);

// Runs the operator on the CPU, alias-safe, and leaves its results on the stack (cpu_route.cpp).
void run_on_cpu(OpState& op, torch::jit::Stack* stack, OpCounters& counters, int device_index);

// Decides without running. Tensors may live on "meta": they are taken as being on device `index`.
struct Explanation {
  std::string op, path, target, reason, device;
  std::vector<Attempt> attempts;
  std::vector<std::string> transforms;
  std::vector<std::string> steps;  // of a program: kernels
};
Explanation explain(OpState& op, torch::jit::Stack stack, int index);

void forget_plans();  // every thread's, at its next call

// Counts (and, while somebody looks, times) a call that needs no decision.
OpCounters& begin_builtin(std::atomic<OpCounters*>* cache, int index, const char* op, const char* target);
class Timer {
 public:
  Timer(OpCounters& counters, int index) : Timer(index) { count(counters); }
  // What the call is to be counted as shows only afterwards: `count` tells. A call that raises before is not counted.
  explicit Timer(int index) : index_(index) {
    if (C10_UNLIKELY(stats::g_timing.load(std::memory_order_relaxed) != 0)) start();
  }
  void count(OpCounters& counters) {
    counters_ = &counters;
    counters.calls.fetch_add(1, std::memory_order_relaxed);
  }
  // The call came to nothing: a kernel refused it.
  void take_back() {
    counters_->calls.fetch_sub(1, std::memory_order_relaxed);
    counters_ = nullptr;
  }
  ~Timer() {
    if (C10_UNLIKELY(observed_ != 0)) stop();
  }
  Timer(const Timer&) = delete;

 private:
  void start();
  void stop() noexcept;
  OpCounters* counters_ = nullptr;
  int index_;
  uint8_t observed_ = 0;  // stats::kTimed, stats::kProfiled
  uint64_t began_ = 0;
};
template <class F>
void builtin_call(const at::Tensor& self, const char* op, const char* target, F&& body) {
  static std::atomic<OpCounters*> cache[kMaxDevices];  // one for each call site: the lambda's type is its own
  const int index = self.device().index();
  Timer timer(begin_builtin(cache, index, op, target), index);
  body();
}

}  // namespace torchfl
