// device.h: what the commands of the simulated X1 share: errors, memory, operands, the clock.
//
// Contract of a command: make a `Command`, `look` at each operand, compute on the views, return `done(cycles)`. All
// other returns are through `fail`, before anything was written.
#pragma once
#include <cstdint>
#include <mutex>

#include "x1_runtime.h"

namespace x1 {

int fail(int status, const char* format, ...) __attribute__((format(printf, 2, 3)));
int failed();  // the status that the last fail() of this thread returned
// For what brings the real driver down: an error, or in the unforgiving mode the end of the process.
int crash(int status, const char* format, ...) __attribute__((format(printf, 2, 3)));

constexpr uint32_t bit(int32_t dtype) { return 1u << dtype; }
constexpr uint32_t kFloats = bit(X1_DTYPE_FLOAT32) | bit(X1_DTYPE_FLOAT16);
constexpr uint32_t kWhole = bit(X1_DTYPE_UINT8) | bit(X1_DTYPE_INT32) | bit(X1_DTYPE_INT64);
constexpr uint32_t kNumbers = kFloats | kWhole;
constexpr uint32_t kComputed = kNumbers | bit(X1_DTYPE_BOOL);
constexpr uint32_t kMoved = kComputed | bit(X1_DTYPE_INT8) | bit(X1_DTYPE_BITS8) | bit(X1_DTYPE_BITS16) |
                            bit(X1_DTYPE_BITS32) | bit(X1_DTYPE_BITS64);
inline bool is_float(int32_t dtype) { return kFloats & bit(dtype); }
int64_t item_size(int32_t dtype);

// An operand that was found to be the chip's to reach. A number is one element of stride 0.
struct View {
  char* data = nullptr;
  int32_t dtype = 0, rank = 0;
  int64_t shape[X1_MAX_RANK] = {}, stride[X1_MAX_RANK] = {};
  double real = 0;
  int64_t integer = 0;
  bool is_number = false;
  int64_t elements() const;
  int64_t bytes() const { return elements() * item_size(dtype); }
  explicit operator bool() const { return dtype != 0; }
};

// One command: holds the chip.
class Command {
 public:
  explicit Command(const char* name);
  const char* name() const { return name_; }
  // False after fail(). NULL is an absent operand where `optional`.
  bool look(const char* what, const x1_view_t* operand, uint32_t dtypes, View* out, bool optional = false) const;
  // The same for a number, or a tensor of the shape and dtype of `like`.
  bool look_like(const char* what, const x1_view_t* operand, const View& like, View* out) const;
  bool same_shape(const char* what, const View& a, const View& b) const;
  // `work` is in operations of a unit that does `rate` of them a cycle.
  int done(double work, double rate, int64_t bytes) const;

 private:
  std::lock_guard<std::mutex> lock_;
  const char* name_;
};

// Whether the chip reaches `bytes` bytes there; else crash().
bool reachable(const char* command, const char* what, const void* address, uint64_t bytes);

// The memory of x1_conv2d_run for this thread, at least `bytes` large; NULL after fail().
void* result_memory(size_t bytes);

}  // namespace x1
