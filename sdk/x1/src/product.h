// product.h: the matrix unit: blocked products of packed panels.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "register_kernel.h"

namespace x1 {

constexpr int64_t kTerms = 256;    // of one pass of the register kernel; sums of so many 8-bit products are exact
constexpr int64_t kColumns = 256;  // of the result that are computed together

// Memory of this thread for one purpose, kept between commands.
enum class Scratch { kLeft, kRight, kSums, kImage, kCount };
float* scratch(Scratch purpose, int64_t floats);

// sums[i][j] = sum over l of left(i, l) * right(l, j).
//   left(first, count, l0, terms, panel), right(...): panel[l * width + i] = element (first + i, l0 + l), zero for i >=
//   count sink(i, j, n, sums): sums of row i, columns from j on; int64_t where `exact` (the factors are 8-bit numbers),
//   else float
template <class Left, class Right, class Sink>
void product(int64_t m, int64_t n, int64_t k, bool exact, const Left& left, const Right& right, const Sink& sink) {
  const silicon::RegisterKernel& kernel = silicon::register_kernel();
  const int64_t panels = (m + kernel.mr - 1) / kernel.mr, mr = kernel.mr, nr = kernel.nr;
  float* a = scratch(Scratch::kLeft, panels * mr * k);
  for (int64_t l = 0; l < k; l += kTerms) {
    int64_t terms = std::min(kTerms, k - l);
    for (int64_t p = 0; p < panels; p++)
      left(p * mr, std::min(mr, m - p * mr), l, terms, mr, a + l * panels * mr + p * terms * mr);
  }
  const int64_t width = std::min(kColumns, (n + nr - 1) / nr * nr);
  float* b = scratch(Scratch::kRight, width * kTerms);
  float* sums = scratch(Scratch::kSums, panels * mr * width);
  std::vector<int64_t> whole(exact ? size_t(m * width) : 0);
  for (int64_t j0 = 0; j0 < n; j0 += width) {
    int64_t columns = std::min(width, n - j0);
    if (!k) std::fill_n(sums, m * width, 0.0f);
    std::fill(whole.begin(), whole.end(), 0);
    for (int64_t l = 0; l < k; l += kTerms) {
      int64_t terms = std::min(kTerms, k - l);
      for (int64_t j = 0; j < columns; j += nr) {
        right(j0 + j, std::min(nr, columns - j), l, terms, nr, b + j * terms);
        for (int64_t p = 0; p < panels; p++)
          kernel.run(int(std::min(mr, m - p * mr)), int(std::min(nr, columns - j)), terms,
                     a + l * panels * mr + p * terms * mr, b + j * terms, sums + p * mr * width + j, width,
                     l > 0 && !exact);
      }
      for (int64_t i = 0; exact && i < m; i++)
        for (int64_t j = 0; j < columns; j++) whole[size_t(i * width + j)] += int64_t(sums[i * width + j]);
    }
    for (int64_t i = 0; i < m; i++) {
      if (exact)
        sink(i, j0, columns, whole.data() + i * width);
      else
        sink(i, j0, columns, static_cast<const float*>(sums + i * width));
    }
  }
}

}  // namespace x1
