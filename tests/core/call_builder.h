// call_builder.h: operator calls written in one line, for the tests of decisions.
//
// Contract: a Call owns its sizes, strides and values; `view()` borrows them. Tensors are contiguous unless strides are
// given. Non-tensor arguments are at their default unless `.changed()` follows them.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "route.h"

namespace testing_calls {

struct TensorSpec {
  int32_t dtype = 0;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;  // empty = contiguous
  uint64_t byte_offset = 0;
};

inline TensorSpec tensor(int32_t dtype, std::vector<int64_t> sizes) { return {dtype, std::move(sizes), {}, 0}; }
inline TensorSpec f16(std::vector<int64_t> sizes) { return tensor(UBA_DTYPE_FLOAT16, std::move(sizes)); }
inline TensorSpec f32(std::vector<int64_t> sizes) { return tensor(UBA_DTYPE_FLOAT32, std::move(sizes)); }
inline TensorSpec i64(std::vector<int64_t> sizes) { return tensor(UBA_DTYPE_INT64, std::move(sizes)); }
inline TensorSpec strided(TensorSpec spec, std::vector<int64_t> strides) {
  spec.strides = std::move(strides);
  return spec;
}
inline TensorSpec offset(TensorSpec spec, uint64_t bytes) {
  spec.byte_offset = bytes;
  return spec;
}
// Dimensions in memory as in `layout`, e.g. "NHWC", for sizes given in the order NCHW.
inline TensorSpec in_layout(TensorSpec spec, const std::string& layout) {
  const std::string letters = layout.size() == 5 ? "NCDHW" : "NCHW";
  spec.strides.assign(layout.size(), 0);
  int64_t stride = 1;
  for (size_t i = layout.size(); i-- > 0;) {
    const size_t dimension = letters.find(layout[i]);
    spec.strides[dimension] = stride;
    stride *= spec.sizes[dimension];
  }
  return spec;
}

class Call {
 public:
  explicit Call(const std::string& op, const std::string& overload = "") {
    schema_.name = op;
    schema_.overload = overload;
  }

  Call& arg(const std::string& name, const TensorSpec& spec) {
    uba_value value{};
    value.kind = UBA_TENSOR;
    value.count = 1;
    value.v.tensor = &keep(spec);
    return push(name, value);
  }
  Call& list(const std::string& name, const std::vector<TensorSpec>& specs) {
    lists_.emplace_back();
    for (const TensorSpec& spec : specs) lists_.back().push_back(keep(spec));
    uba_value value{};
    value.kind = UBA_TENSOR_LIST;
    value.count = uint32_t(specs.size());
    value.v.tensor = lists_.back().data();
    return push(name, value);
  }
  Call& none(const std::string& name) { return push(name, uba_value{}); }
  Call& integer(const std::string& name, int64_t i) {
    uba_value value{};
    value.kind = UBA_INT;
    value.count = 1;
    value.v.i = i;
    return push(name, value);
  }
  Call& number(const std::string& name, double d) {
    uba_value value{};
    value.kind = UBA_DOUBLE;
    value.count = 1;
    value.v.d = d;
    return push(name, value);
  }
  Call& ints(const std::string& name, std::vector<int64_t> numbers) {
    ints_.push_back(std::move(numbers));
    uba_value value{};
    value.kind = UBA_INT_LIST;
    value.count = uint32_t(ints_.back().size());
    value.v.ints = ints_.back().data();
    return push(name, value);
  }
  Call& text(const std::string& name, const std::string& words) {
    texts_.push_back(words);
    uba_value value{};
    value.kind = UBA_STRING;
    value.count = 1;
    value.v.str = texts_.back().c_str();
    return push(name, value);
  }
  Call& complex(const std::string& name) {
    static const double zero[2] = {0, 0};
    uba_value value{};
    value.kind = UBA_COMPLEX;
    value.count = 1;
    value.v.doubles = zero;
    return push(name, value);
  }
  Call& changed() {
    schema_.at_default.back() = false;
    return *this;
  }
  Call& out(const TensorSpec& spec) {
    outputs_.push_back(keep(spec));
    return *this;
  }

  torchfl::CallView view() const {
    return {&schema_, args_.data(), int(args_.size()), outputs_.data(), int(outputs_.size())};
  }

 private:
  Call& push(const std::string& name, const uba_value& value) {
    schema_.arg_names.push_back(name);
    schema_.at_default.push_back(true);
    args_.push_back(value);
    return *this;
  }
  const uba_tensor& keep(const TensorSpec& spec) {
    specs_.push_back(spec);
    TensorSpec& kept = specs_.back();
    if (kept.strides.empty()) {
      kept.strides.assign(kept.sizes.size(), 1);
      for (size_t i = kept.sizes.size(); i-- > 1;) kept.strides[i - 1] = kept.strides[i] * kept.sizes[i];
    }
    tensors_.push_back(
        {nullptr, kept.byte_offset, kept.sizes.data(), kept.strides.data(), kept.dtype, int32_t(kept.sizes.size())});
    return tensors_.back();
  }

  torchfl::OpSchema schema_;
  std::vector<uba_value> args_;
  std::vector<uba_tensor> outputs_;
  std::deque<TensorSpec> specs_;
  std::deque<uba_tensor> tensors_;
  std::deque<std::vector<uba_tensor>> lists_;
  std::deque<std::vector<int64_t>> ints_;
  std::deque<std::string> texts_;
};

// A convolution as it reaches a backend.
inline Call convolution(const TensorSpec& input, const TensorSpec& weight, std::vector<int64_t> stride = {1, 1},
                        int64_t groups = 1, int64_t transposed = 0) {
  Call call("aten::convolution_overrideable");
  call.arg("input", input).arg("weight", weight).none("bias").ints("stride", std::move(stride)).ints("padding", {1, 1});
  call.ints("dilation", {1, 1})
      .integer("transposed", transposed)
      .ints("output_padding", {0, 0})
      .integer("groups", groups);
  return call;
}

inline Call add(const TensorSpec& self, const TensorSpec& other) {
  Call call("aten::add", "Tensor");
  call.arg("self", self).arg("other", other).integer("alpha", 1);
  return call;
}

inline Call mm(const TensorSpec& self, const TensorSpec& mat2) {
  Call call("aten::mm");
  call.arg("self", self).arg("mat2", mat2);
  return call;
}

inline Call attention(const TensorSpec& query, const TensorSpec& key) {
  Call call("aten::_scaled_dot_product_fused_attention_overrideable");
  call.arg("query", query).arg("key", key).arg("value", key).none("attn_bias").number("dropout_p", 0);
  return call;
}

}  // namespace testing_calls
