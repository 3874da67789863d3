// conv.h: the geometry of a 2-D convolution and the float32 images its products are read from.
//
// Contract: an image is a run of planes [n][c][rows][columns] of float32, each holding the rows and columns lo..hi of a
// tensor's plane, zero where the tensor has none. So a window needs no bounds checks: element (output position, tap) of
// a plane is at base(position) + offset(tap), which is how gemm_engine reads it.
#pragma once
#include <cstdint>

#include "epilogue.h"
#include "gemm_engine.h"
#include "sim.h"

namespace npu {

struct ConvGeometry {
  int64_t n, c, o, groups;
  int64_t in[2], kernel[2], out[2];  // height and width
  int64_t stride[2], padding[2], dilation[2];
  int64_t channels() const { return c / groups; }
  int64_t filters() const { return o / groups; }
};

// What part of a plane an image holds.
struct Frame {
  int64_t lo[2], size[2];
  int64_t plane() const { return size[0] * size[1]; }
};

// Images [first, first + count) of a 4-D tensor, all channels.
void load_image(const View& tensor, int64_t first, int64_t count, const Frame& frame, float* image);

// Images to treat at once, so that the float32 images and tables stay within some tens of MiB.
int64_t images_at_once(int64_t n, int64_t floats_per_image, int64_t positions);

// Hands out pieces of one scratch block for offset tables.
class TableArena {
 public:
  explicit TableArena(int64_t entries)
      : next_(static_cast<int64_t*>(scratch(0, kTables, size_t(entries) * sizeof(int64_t)))) {}
  int64_t* take(int64_t n) {
    int64_t* table = next_;
    next_ += n;
    return table;
  }

 private:
  int64_t* next_;
};

// table[(a, y, x)] = a * step_a + (first_y + y) * step_y + (first_x + x) * step_x; returns the end.
struct Axis {
  int64_t count, step;
};
int64_t* fill_table(int64_t* table, Axis a, Axis y, Axis x, int64_t first = 0);

struct Conv2dCommand {
  ConvGeometry g;
  View x, w, y;
  PerChannel bias;
  Epilogue epilogue;
  void operator()();
};
struct ConvGradInputCommand {
  ConvGeometry g;
  View grad, w, grad_x;
  void operator()();
};
struct ConvGradWeightCommand {
  ConvGeometry g;
  View grad, x, grad_w;
  void operator()();
};

}  // namespace npu
