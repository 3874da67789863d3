// row_check.cpp: whether one row of the descriptor serves a call, and what has to be done to the call's tensors for it.
//
// Contract: check_row() is a pure function of the tables and the call. It works on a copy of the call: where a tensor
// is not what the row takes, and something may be done about it, the copy is changed, and the checks that follow see
// the changed one. What differs in the end are the transforms.
//
//   dtype     the chip's `on_unsupported_dtype: cast`, its emulation of bfloat16 in float16, or the row's `int8_as`
//   padding   `multiple_of` on M, N, K of a matrix product, and on the channels of a convolution: zeros at the end
//             change nothing that is kept of the result
//   layout    a copy in an order that the row lists: contiguous if that is one of them, else the first
//   address   a copy at an aligned one
//
// Dtypes. A row's `dtypes` name arguments; "*" stands for every tensor argument without an entry of its own, and is
// the chip's dtypes if the row gives none. Integers that only say where (int32, int64 and bool next to floating
// tensors, or arguments named index, indices, mask, condition, target) are not what a chip computes in: "*" does not
// apply to them. A kernel that is particular about them lists them by name.
#include <algorithm>
#include <cmath>

#include "route_parts.h"
#include "stand_ins.h"

namespace torchfl {
namespace {

// Of the accepted dtypes, the narrowest that holds every value of `dtype`; for floating point, where there is none, the
// widest. 0 if there is none of its kind: integers are never narrowed, and bools and complex numbers never cast.
int32_t nearest_dtype(int32_t dtype, DtypeSet accepted) {
  struct Range {
    int32_t dtype;
    bool floating;
    int low, high;  // bits below and above one: mantissa and exponent, or sign and value
  };
  static constexpr Range kRanges[] = {
      {UBA_DTYPE_FLOAT16, true, 10, 5},  {UBA_DTYPE_BFLOAT16, true, 7, 8}, {UBA_DTYPE_FLOAT32, true, 23, 8},
      {UBA_DTYPE_FLOAT64, true, 52, 11}, {UBA_DTYPE_UINT8, false, 0, 8},   {UBA_DTYPE_INT8, false, 1, 7},
      {UBA_DTYPE_INT16, false, 1, 15},   {UBA_DTYPE_INT32, false, 1, 31},  {UBA_DTYPE_INT64, false, 1, 63},
  };
  const Range* own = nullptr;
  for (const Range& range : kRanges) {
    if (range.dtype == dtype) own = &range;
  }
  if (own == nullptr) return 0;
  int32_t best = 0, widest = 0;
  for (const Range& range : kRanges) {
    if (range.floating != own->floating || (accepted & dtype_bit(range.dtype)) == 0) continue;
    if (widest == 0 || dtype_size(range.dtype) >= dtype_size(widest)) widest = range.dtype;
    const bool holds = range.low >= own->low && range.high >= own->high;
    if (holds && (best == 0 || dtype_size(range.dtype) < dtype_size(best))) best = range.dtype;
  }
  return best != 0 || !own->floating ? best : widest;
}

// One row against one call.
class RowCheck {
 public:
  RowCheck(const Chip& chip, const std::string& chip_name, const RouteTable::Query& query, const OpPath& row)
      : chip_(chip),
        chip_name_(chip_name),
        query_(query),
        stand_ins_(query.call),
        call_(stand_ins_.call()),
        row_(row) {}

  Outcome run() {
    if (overload() && kernel() && dtypes() && canonical() && ranks() && limits() && layouts() && conditions() &&
        not_refused()) {
      align();
      out_.reason = stand_ins_.text();
      out_.transforms = stand_ins_.transforms();
      price();
    }
    return std::move(out_);
  }

 private:
  void price() {
    out_.cost = estimate(row_, chip_, call_);
    const std::optional<double> added = transform_seconds(row_, chip_, query_.call, out_.transforms);
    if (!added) out_.cost.reset();
    if (!out_.cost) return;
    out_.cost->transforms = *added;
    out_.cost->seconds += *added;
  }

  bool fail(Stage stage, std::string reason, std::string why = "") {
    out_.stage = stage;
    out_.reason = std::move(reason);
    out_.why = std::move(why);
    return false;
  }

  bool overload() {
    const std::string& called = call_.schema->overload;
    if (row_.overload.empty() || row_.overload == called || (row_.overload == "default" && called.empty())) return true;
    return fail(kOverload, row_.kernel + " serves the overload " + row_.overload + ", called was " +
                               (called.empty() ? "default" : called));
  }

  bool kernel() {
    if (query_.available == nullptr || query_.available(query_.context, row_.kernel)) return true;
    return fail(kKernel, "the adapter has no kernel " + row_.kernel);
  }

  const DtypeSet* named_dtypes(const std::string& name) const {
    for (const auto& entry : row_.dtypes) {
      if (entry.first == name) return &entry.second;
    }
    return nullptr;
  }

  bool dtypes() {
    const DtypeSet* star = named_dtypes("*");
    const DtypeSet general = star != nullptr ? *star : chip_.dtypes;
    bool any_floating = false;
    for_each_tensor(call_, [&](int, int, const uba_tensor& tensor) {
      any_floating = any_floating || (dtype_bit(tensor.dtype) & kFloatingDtypes) != 0;
    });
    bool good = true;
    for_each_tensor(call_, [&](int arg, int, const uba_tensor& tensor) {
      if (!good) return;
      const std::string name = arg_name(call_, arg);
      const DtypeSet bit = dtype_bit(tensor.dtype);
      if (const DtypeSet* own = named_dtypes(name)) {
        if ((bit & *own) != 0 || negotiated(tensor, *own)) return;
        good = fail(kDtype, "argument " + name + " is " + dtype_name(tensor.dtype) + ", " + row_.kernel + " takes " +
                                dtype_set_text(*own) + " there");
        return;
      }
      if ((bit & general) != 0 || ((bit & kIndexDtypes) != 0 && (any_floating || says_where(name)))) return;
      if (negotiated(tensor, general)) return;
      good = fail(kDtype, std::string(dtype_name(tensor.dtype)) + " is not a dtype of " + row_.kernel + " (" +
                              dtype_set_text(general) + ")" +
                              (shifts(tensor) ? ", and a number that it is computed with has no zero point" : ""));
    });
    if (good) stand_ins_.cast_outputs();
    return good;
  }

  // Has the tensor cast to one of the accepted dtypes, if the descriptor allows that and there is one to take.
  bool negotiated(const uba_tensor& tensor, DtypeSet accepted) {
    if (!query_.may_convert) return false;
    int32_t dtype = 0;
    if (shifts(tensor) && (accepted & dtype_bit(UBA_DTYPE_UINT8)) != 0) {
      if (has_number()) return false;
      dtype = UBA_DTYPE_UINT8;
    } else if (chip_.bfloat16_emulation && tensor.dtype == UBA_DTYPE_BFLOAT16 &&
               (accepted & dtype_bit(UBA_DTYPE_FLOAT16)) != 0) {
      dtype = UBA_DTYPE_FLOAT16;
    } else if (chip_.on_unsupported_dtype == "cast") {
      dtype = nearest_dtype(tensor.dtype, accepted);
    }
    if (dtype == 0) return false;
    stand_ins_.cast(tensor, dtype);
    return true;
  }

  bool shifts(const uba_tensor& tensor) const { return row_.int8_as_uint8 && tensor.dtype == UBA_DTYPE_INT8; }

  bool has_number() const {
    const std::vector<bool>& numbers = call_.schema->numbers;
    for (int arg = 0; arg < call_.arg_count; ++arg) {
      const uint32_t kind = call_.args[arg].kind;
      if (size_t(arg) < numbers.size() && numbers[size_t(arg)] && kind != UBA_TENSOR && kind != UBA_NONE) return true;
    }
    return false;
  }

  static bool says_where(const std::string& name) {
    return name == "index" || name == "indices" || name == "mask" || name == "condition" || name == "target";
  }

  bool canonical() {
    if (!row_.canonical_only) return true;
    const std::string tail = ", and " + row_.kernel + " has declared nothing but calls in canonical form";
    const uba_tensor* first = nullptr;
    bool good = true;
    auto same = [&](const uba_tensor& tensor) {
      if (!good) return;
      if (first == nullptr) {
        first = &tensor;
        return;
      }
      const bool shape =
          first->rank == tensor.rank && std::equal(tensor.sizes, tensor.sizes + tensor.rank, first->sizes);
      if (!shape) {
        good = fail(kWhere, "the tensors differ in shape" + tail);
      } else if (!std::equal(tensor.strides, tensor.strides + tensor.rank, first->strides)) {
        good = fail(kWhere, "the tensors differ in strides" + tail);
      } else if (first->dtype != tensor.dtype) {
        good = fail(kWhere, "the tensors differ in dtype" + tail);
      }
    };
    for_each_tensor(call_, [&](int, int, const uba_tensor& tensor) { same(tensor); });
    for (int i = 0; i < call_.output_count; ++i) same(call_.outputs[i]);
    const std::vector<bool>& at_default = call_.schema->at_default;
    for (int arg = 0; good && arg < call_.arg_count; ++arg) {
      const uint32_t kind = call_.args[arg].kind;
      if (kind == UBA_TENSOR || kind == UBA_TENSOR_LIST || kind == UBA_NONE) continue;
      if (size_t(arg) >= at_default.size() || !at_default[size_t(arg)]) {
        good = fail(kWhere, "argument " + arg_name(call_, arg) + " is not at its default" + tail);
      }
    }
    return good;
  }

  bool ranks() {
    if (chip_.max_rank <= 0) return true;
    int64_t highest = 0;
    for_each_tensor(call_,
                    [&](int, int, const uba_tensor& tensor) { highest = std::max<int64_t>(highest, tensor.rank); });
    for (int i = 0; i < call_.output_count; ++i) highest = std::max<int64_t>(highest, call_.outputs[i].rank);
    if (highest <= chip_.max_rank) return true;
    return fail(kRank, "rank " + std::to_string(highest) + " is more than " + chip_name_ + " takes (" +
                           std::to_string(chip_.max_rank) + ")");
  }

  bool limits() {
    const Family family = family_of(call_.schema->name);
    // The batch of a matrix product is a number of matrices (heads times samples), not of samples.
    if (chip_.max_batch > 0 && family != Family::matmul && !below("batch", "batch size", chip_.max_batch)) return false;
    return chip_.max_sequence <= 0 || below("seq_len", "sequence length", chip_.max_sequence);
  }

  bool below(const char* quantity, const char* words, int64_t limit) {
    for (double value : derived_quantity(call_, quantity)) {
      if (value > double(limit)) {
        return fail(kLimit, std::string(words) + " " + number_text(value) + " is more than " + chip_name_ + " takes (" +
                                std::to_string(limit) + ")");
      }
    }
    return true;
  }

  bool layouts() {
    if (row_.layouts.empty()) return true;
    for_each_tensor(call_, [&](int arg, int, const uba_tensor& tensor) {
      // Layouts are stated for what flows through the operator; a weight is as good contiguous.
      const bool weight = arg_name(call_, arg) == "weight";
      if (!weight || !is_contiguous(tensor)) match_layout(tensor, weight);
    });
    for (int i = 0; i < call_.output_count; ++i) {
      if (call_.outputs[i].dtype != 0) match_layout(call_.outputs[i], false);
    }
    return true;
  }

  void match_layout(const uba_tensor& tensor, bool weight) {
    if (numel(tensor) == 0) return;
    const std::string* first = nullptr;  // of this rank
    bool contiguous_listed = weight;
    for (const std::string& layout : row_.layouts) {
      if (layout.size() != size_t(tensor.rank)) continue;
      if (layout_matches(tensor, layout)) return;
      contiguous_listed = contiguous_listed || is_logical_order(layout);
      if (first == nullptr) first = &layout;
    }
    if (first == nullptr) return;  // layouts of other ranks do not bind
    if (contiguous_listed) {
      stand_ins_.relay_contiguous(tensor);
    } else {
      stand_ins_.relay(tensor, *first);
    }
  }

  bool conditions() {
    // Padding for one condition changes what others look at: they are checked again on what came of it.
    for (bool again = true; again;) {
      again = false;
      for (const Condition& condition : row_.where) {
        const std::optional<std::string> reason = condition_fails(condition, row_.kernel, call_);
        if (!reason) continue;
        if (query_.may_convert && condition.op == Condition::Op::multiple_of && condition.numbers.size() == 1 &&
            stand_ins_.pad(condition.name, int64_t(condition.numbers[0]))) {
          again = true;
          continue;
        }
        return fail(kWhere, *reason, condition.why.empty() ? row_.why : condition.why);
      }
    }
    return true;
  }

  bool not_refused() {
    if (query_.refused == nullptr) return true;
    for (const auto& entry : *query_.refused) {
      if (entry.first == &row_) return fail(kRefused, entry.second);
    }
    return true;
  }

  // Allocations are aligned, so an address is if its offset is.
  void align() {
    if (chip_.alignment <= 1) return;
    auto align_one = [&](const uba_tensor& tensor) {
      if (tensor.byte_offset % chip_.alignment != 0 && numel(tensor) != 0) stand_ins_.realign(tensor);
    };
    for_each_tensor(call_, [&](int, int, const uba_tensor& tensor) { align_one(tensor); });
    for (int i = 0; i < call_.output_count; ++i) {
      if (call_.outputs[i].dtype != 0) align_one(call_.outputs[i]);
    }
  }

  const Chip& chip_;
  const std::string& chip_name_;
  const RouteTable::Query& query_;
  StandIns stand_ins_;
  const CallView& call_;  // the stand-ins': what the kernel will see
  const OpPath& row_;
  Outcome out_;
};

}  // namespace

Outcome check_row(const Chip& chip, const std::string& chip_name, const RouteTable::Query& query, const OpPath& row) {
  return RowCheck(chip, chip_name, query, row).run();
}

}  // namespace torchfl
