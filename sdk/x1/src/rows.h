// rows.h: walks operands of one shape row by row, and brings pieces of rows into the units' own numbers.
#pragma once
#include <initializer_list>

#include "device.h"

namespace x1 {

constexpr int64_t kPiece = 512;  // elements that a unit holds at a time

// Up to five views of one shape; dimensions that can be joined are.
class Rows {
 public:
  Rows(std::initializer_list<const View*> views);
  bool more() const { return left_ > 0; }
  void next();
  int64_t length() const { return length_; }
  char* at(int view) const { return p_[view]; }
  int64_t stride(int view) const { return stride_[view]; }  // in elements

 private:
  static constexpr int kMost = 5;
  int count_ = 0, rank_ = 0;
  int64_t left_ = 1, length_ = 1;
  int64_t shape_[X1_MAX_RANK] = {}, index_[X1_MAX_RANK] = {}, step_[kMost][X1_MAX_RANK] = {};  // in bytes
  char* p_[kMost] = {};
  int64_t stride_[kMost] = {};
};

// `n` elements, at most kPiece, as the unit computes with them: float for floating point, int64_t for the others.
// They lie in `buffer`, or where they are if they are that already.
const float* load(const View& v, const char* first, int64_t stride, int64_t n, float* buffer);
const int64_t* load(const View& v, const char* first, int64_t stride, int64_t n, int64_t* buffer);
// Where to compute `n` results: their place, or `buffer`, which `store` then brings there.
float* place(const View& v, char* first, int64_t stride, float* buffer);
int64_t* place(const View& v, char* first, int64_t stride, int64_t* buffer);
void store(const View& v, const float* values, char* first, int64_t stride, int64_t n);
void store(const View& v, const int64_t* values, char* first, int64_t stride, int64_t n);

}  // namespace x1
