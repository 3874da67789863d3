// chip.h: a descriptor as the engine sees it: plain tables, resolved names, SI integers.
//
// Contract: built once from the lowered descriptor and never changed afterwards, so it is read without locks. The
// descriptor reader has checked it; the engine does not check again. "Unknown" is std::nullopt or 0 where said.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "torchfl/uba.h"

namespace torchfl {

using DtypeSet = uint32_t;  // bit UBA_DTYPE_* set
inline DtypeSet dtype_bit(int32_t dtype) { return DtypeSet(1) << dtype; }
const char* dtype_name(int32_t dtype);             // "float16"
int32_t dtype_from_name(const std::string& name);  // 0 if there is no such dtype
int64_t dtype_size(int32_t dtype);                 // bytes
std::string dtype_set_text(DtypeSet set);          // "float16, int8"

struct Condition {
  enum class Op { in, min, max, multiple_of, equals, not_in };
  std::string name;  // an argument of the operator, or a derived quantity
  Op op = Op::equals;
  std::vector<double> numbers;
  std::vector<std::string> strings;  // for string arguments
  std::string why;                   // the descriptor author's sentence; may be empty
};

// One way to run one operator: a row of the descriptor's `ops`.
struct OpPath {
  std::string op;                                        // "aten::mm", as it reaches the backend
  std::string overload;                                  // "" = every overload
  std::string declared;                                  // as the descriptor's author wrote it: "aten::matmul"
  std::string kernel;                                    // name in the adapter's table, or of an ATen-style handler
  std::vector<std::pair<std::string, DtypeSet>> dtypes;  // by argument name; "*" = every other tensor argument
  bool int8_as_uint8 = false;                            // int8 is handed over as uint8 with zero point 128
  std::vector<std::string> layouts;                      // empty = any strides
  std::vector<Condition> where;
  std::string why;
  std::map<std::string, double> cost;  // SI: launch (s), tile_m, tile_n, tile_k ...
  int line = 0;
  // An ATen-style handler that declared nothing: it is given only calls in canonical form (equal shapes and strides of
  // all tensors, one dtype, every non-tensor argument at its schema default).
  bool canonical_only = false;
  bool custom = false;  // named by `fallback.ops`: for what no other row takes
};

struct Attention {
  bool enabled = false;
  int64_t max_sequence_length = 0;
  std::vector<int64_t> supported_heads;
  bool beyond_is_error = true;
};

struct Chip {
  std::string name, vendor, version, device_type, source;  // source: the descriptor's file
  std::string variant;                                     // "x1" of a chip that is declared as "xpu:x1"
  uint64_t alignment = 1;
  int64_t max_rank = 0, max_batch = 0, max_sequence = 0;  // 0 = no limit
  bool unified = false;
  std::string host_memory = "copy";  // how tensors of the host come here: copy, lazy, map; auto: map where it can be
  DtypeSet dtypes = 0;               // what it computes in
  std::vector<std::string> layouts;  // that some unit computes in; empty = the descriptor does not say
  std::string default_layout;        // of new tensors of its rank
  uint64_t memory_bytes = 0;         // of each device; 0 = not said
  int64_t max_threads = 0;           // of a work-group; 0 = not said
  bool whole_attention = false;      // it has a row for scaled_dot_product_attention
  DtypeSet compute_as = 0;           // what products round operands of float32 to
  bool bfloat16_emulation = false;   // bfloat16 is computed in float16 and truncated
  std::string on_unsupported_dtype;  // cpu, cast, error
  std::optional<Attention> attention;
  std::vector<OpPath> ops;       // declared order
  std::string fallback_default;  // compose, cpu, error
  std::map<std::string, std::string> fallback_ops;
  double launch_overhead = 0;  // seconds; 0 = unknown
  double power_cap = 0;        // watts; 0 = none
};

// What a device says of itself against the descriptor, which was written for every device of the chip: a line each, for
// the user. It demands nothing: a call that the device cannot do is refused by its adapter, and takes another path.
std::vector<std::string> contradictions(const Chip& chip, const uba_properties& device);

}  // namespace torchfl
