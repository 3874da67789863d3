// route.h: the decision procedure: which path runs a call, and why not each better one.
//
// Contract: pure functions of the chip's tables and the call's signature: equal inputs give equal decisions, no
// state, no I/O, safe from any thread. The same code serves eager calls, `explain` and planning tools. Data pointers
// in the call are never read; only dtypes, sizes, strides, byte offsets and plain values.
#pragma once
#include <deque>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "chip.h"

namespace torchfl {

enum class Path { native, composed, custom, cpu, error };
const char* path_name(Path path);

// What the engine must know of an operator's schema: the functional form, without out arguments.
struct OpSchema {
  std::string name;                    // "aten::add"
  std::string overload;                // "Tensor"
  std::vector<std::string> arg_names;  // in schema order
  std::vector<bool> at_default;        // filled per call: non-tensor argument i has its schema default
  std::vector<bool> numbers;           // filled per call: argument i is a number to compute with; empty = not known
};

// A call as the kernel would see it: dtypes after promotion, arguments in schema order.
struct CallView {
  const OpSchema* schema = nullptr;
  const uba_value* args = nullptr;
  int arg_count = 0;
  const uba_tensor* outputs = nullptr;
  int output_count = 0;
};

// What the kernel is given in the place of a tensor of the call: a copy of an argument, or room for a result, that is
// copied to where it belongs afterwards. Stand-ins start at an aligned address.
struct Transform {
  int arg = 0;      // position among the arguments, or among the outputs
  int element = 0;  // of a tensor list
  bool is_output = false;
  enum Why : uint8_t { relaid = 1, realigned = 2, padded = 4, cast = 8 };  // a set of them
  uint8_t why = 0;
  int32_t dtype = 0;
  std::vector<int64_t> sizes, strides;  // longer than the tensor's where it is padded with zeros at the end
};

struct Attempt {  // one path that was looked at, in order
  Path path;
  std::string target;  // kernel name, or "cpu"
  bool taken = false;
  std::string reason;     // why not; "" when taken
  std::string why;        // the descriptor author's own sentence, if there is one
  int line = 0;           // in the descriptor; 0 = none
  std::string cost = {};  // what it was estimated to take, and of what that is made; "" = unknown, or nothing to choose
};

struct Decision {
  Path path = Path::cpu;
  const OpPath* row = nullptr;        // for native, and for custom if that is a kernel of the adapter
  std::vector<Transform> transforms;  // for the row: arguments first
  // For non-native, one line: "float64 is not a dtype of npu_v3_add (float16, float32)". For native, what the
  // transforms do: "K padded from 30 to 32; self cast from float64 to float32"; else "".
  std::string reason;
  std::vector<Attempt> attempts;
};

// The rows of a chip by operator, built once per chip.
class RouteTable {
 public:
  explicit RouteTable(const Chip& chip);  // keeps a reference
  const Chip& chip() const { return chip_; }
  bool has(const std::string& op) const { return rows_.count(op) != 0; }
  // Names of scalar arguments whose VALUE decisions of this operator depend on (conditions name them).
  bool depends_on(const std::string& op, const std::string& arg_name) const;
  // Whether a call of this operator without a kernel may be composed: the descriptor says so, and has instructions.
  bool may_compose(const OpSchema& schema) const;
  bool has_instructions() const { return instructions_; }
  // The function (not a kernel) that `fallback.ops` names for the operator: "package.module:function" or a bridge's
  // name. "" = none.
  const std::string& function_of(const OpSchema& schema) const;
  bool has_function(const std::string& op) const { return functions_.count(op) != 0; }
  // `available(kernel)` tells whether the adapter has it. `skip` rows (that refused at run time) are passed over,
  // with `skip_reason` as reason.
  struct Query {
    CallView call;
    bool (*available)(void* context, const std::string& kernel) = nullptr;
    void* context = nullptr;
    const std::vector<std::pair<const OpPath*, std::string>>* refused = nullptr;
    bool may_convert = true;  // transforms may change dtypes and sizes, not only strides and addresses
  };
  Decision decide(const Query& query) const;

 private:
  const Chip& chip_;
  const std::string& fallback_of(const OpSchema& schema) const;
  bool take_custom(const std::vector<const OpPath*>& rows, const Query& query, Decision* decision) const;
  std::unordered_map<std::string, std::vector<const OpPath*>> rows_;
  std::unordered_set<std::string> functions_;  // operators, by base name
  std::deque<OpPath> custom_rows_;
  bool instructions_ = false;
};

// Derived quantities that conditions may name (M, N, K, batch, kernel_size, channels, in_channels, out_channels, heads,
// seq_len, head_dim, numel, rank, contiguous, offset, zero_dim). Empty = this operator has no such quantity.
std::vector<double> derived_quantity(const CallView& call, const std::string& name);

// The order of dimensions in memory, e.g. "NHWC" of a rank-4 channels-last tensor; "strided" when it is not dense.
// With dimensions of size 1 several names fit: `layout_matches` answers that.
std::string layout_name(const uba_tensor& tensor);
bool layout_matches(const uba_tensor& tensor, const std::string& layout);
bool is_contiguous(const uba_tensor& tensor);
// Strides of a dense tensor in that layout, which has a letter for each dimension.
std::vector<int64_t> layout_strides(const std::string& layout, const int64_t* sizes);
// Whether the layout is the one of a contiguous tensor: its letters in the order of the dimensions.
bool is_logical_order(const std::string& layout);

}  // namespace torchfl
