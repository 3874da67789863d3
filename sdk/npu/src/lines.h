// lines.h: what functions along one dimension share (gather, scatter, sort, scan): its lines, and checks of indices.
//
// Contract. The lines of a tensor along `dim` are the one-dimensional tensors that its other dimensions tell apart.
// `make_lines` takes tensors that agree in all dimensions but `dim`; their lines may differ in length.
#pragma once
#include "vector.h"

namespace npu {

constexpr uint32_t kIndexTypes = (1u << NPU_INT32) | (1u << NPU_INT64);

inline int64_t read_index(const View& index, int64_t offset) {
  if (index.dtype == NPU_INT32) return reinterpret_cast<const int32_t*>(index.data)[offset];
  return reinterpret_cast<const int64_t*>(index.data)[offset];
}
npu_status_t check_dim(const char* function, int32_t dim, const View& view);
// True when all of `index` lies in [0, size); else tells the stream. In commands only.
bool in_range(const char* function, const View& index, int64_t size);
// An index may be shorter than the tensor it indexes, but in `dim`, where it may be longer.
npu_status_t fits_but_dim(const char* function, const char* what, const View& view, const char* of, const View& whole,
                          int32_t dim);

template <int kCount>
struct Lines {
  Loop outer;             // over the lines
  Operand first[kCount];  // where the lines begin
  int64_t length[kCount], step[kCount];

  // Line number `k` of tensor `t`, as an operand of a loop over one dimension.
  Operand line(int t, int64_t k) const {
    Operand o = first[t];
    o.data += offset_of(outer, first[t], k) * o.size;
    o.stride[0] = step[t];
    o.dense = step[t] == 1 || length[t] == 1;
    return o;
  }
  Loop loop(int t) const {
    Loop l;
    l.n = l.shape[0] = length[t];
    l.rank = 1;
    return l;
  }
};
template <int kCount>
Lines<kCount> make_lines(const View* const (&views)[kCount], int dim) {
  Lines<kCount> lines;
  collapse(views, kCount, true, ~(1u << dim), &lines.outer, lines.first);
  for (int k = 0; k < kCount; k++) {
    lines.length[k] = views[k]->shape[dim];
    lines.step[k] = views[k]->stride[dim];
  }
  return lines;
}

}  // namespace npu
