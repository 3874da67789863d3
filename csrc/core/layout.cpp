// layout.cpp: the order of a tensor's dimensions in memory.
//
// Contract: a layout name is a permutation of some of N, C, D, H, W, outermost first in memory; its letters in the
// order NCDHW are the tensor's dimensions. Dimensions of size 1 have no order, so several names can fit one tensor;
// `layout_name` then prefers the contiguous one, then channels last.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "route.h"

namespace torchfl {
namespace {

constexpr const char* kLetters = "NCDHW";

int64_t element_count(const uba_tensor& tensor) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor.rank; ++i) count *= tensor.sizes[i];
  return count;
}

// Whether the tensor is dense with its dimensions in `order`, outermost first.
bool dense_in_order(const uba_tensor& tensor, const int* order) {
  int64_t expected = 1;
  for (int32_t i = tensor.rank; i-- > 0;) {
    const int64_t size = tensor.sizes[order[i]];
    if (size != 1 && tensor.strides[order[i]] != expected) return false;
    expected *= size;
  }
  return true;
}

// The letters of a tensor of `rank` dimensions; "" where there is no convention.
std::string letters_of_rank(int32_t rank) {
  switch (rank) {
    case 2:
      return "NC";
    case 3:
      return "NCW";
    case 4:
      return "NCHW";
    case 5:
      return "NCDHW";
    default:
      return "";
  }
}

}  // namespace

bool is_contiguous(const uba_tensor& tensor) {
  if (element_count(tensor) == 0) return true;
  int64_t expected = 1;
  for (int32_t i = tensor.rank; i-- > 0;) {
    if (tensor.sizes[i] != 1 && tensor.strides[i] != expected) return false;
    expected *= tensor.sizes[i];
  }
  return true;
}

bool layout_matches(const uba_tensor& tensor, const std::string& layout) {
  if (layout.size() != size_t(tensor.rank) || layout.size() > 5) return false;
  if (element_count(tensor) == 0) return true;
  int order[5] = {};
  int dimension = 0;
  for (const char* letter = kLetters; *letter != '\0'; ++letter) {
    const size_t place = layout.find(*letter);
    if (place != std::string::npos) order[place] = dimension++;
  }
  return dimension == tensor.rank && dense_in_order(tensor, order);
}

bool is_logical_order(const std::string& layout) {
  const std::string order = kLetters;
  return std::is_sorted(layout.begin(), layout.end(), [&](char a, char b) { return order.find(a) < order.find(b); });
}

std::vector<int64_t> layout_strides(const std::string& layout, const int64_t* sizes) {
  std::string logical = layout;  // the letters in the order of the dimensions
  const std::string order = kLetters;
  std::sort(logical.begin(), logical.end(), [&](char a, char b) { return order.find(a) < order.find(b); });
  std::vector<int64_t> strides(layout.size());
  int64_t step = 1;
  for (size_t place = layout.size(); place-- > 0;) {
    const size_t dimension = logical.find(layout[place]);
    strides[dimension] = step;
    step *= std::max<int64_t>(sizes[dimension], 1);
  }
  return strides;
}

std::string layout_name(const uba_tensor& tensor) {
  const std::string letters = letters_of_rank(tensor.rank);
  if (is_contiguous(tensor)) return letters.empty() ? "contiguous" : letters;
  if (letters.empty()) return "strided";
  const std::string channels_last = letters.size() < 3 ? letters : "N" + letters.substr(2) + "C";
  if (layout_matches(tensor, channels_last)) return channels_last;
  std::vector<int> order(letters.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return tensor.strides[a] > tensor.strides[b]; });
  if (!dense_in_order(tensor, order.data())) return "strided";
  std::string name;
  for (int dimension : order) name += letters[size_t(dimension)];
  return name;
}

}  // namespace torchfl
