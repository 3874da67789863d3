// segment.h: elementwise work that becomes one kernel: what vector.cpp makes of calls, and program.cpp of programs.
//
// Contract: a Segment is a list of nodes over tensors (leaves) of one common shape. Its kernel is known by what tells
// it from others: the nodes, dtypes, the rank after dimensions were joined, and which leaves are walked through
// contiguously; sizes, strides, offsets and numbers are arguments. Each work-item loads what it needs, computes all
// nodes and stores: so a leaf may be written where it was read, at the same place, and nothing else may overlap.
#pragma once
#include "parts.h"

namespace kit {

constexpr int kRank = 8, kLeaves = 24, kNodes = 64;
struct Leaf {
  const void *data;  // an address, or in a program the number of a block
  uint64_t offset;
  int64_t strides[kRank];
  int32_t dtype;
  bool written;
};
struct Operand {
  uint8_t kind = 0, index = 0;  // 'r': result of a node, 'l': leaf, 'n': number
};
struct Node {
  uint8_t form, dtype, result, rounds;  // rounds: numbers have the precision of the dtype
  Operand in[4];
  int8_t store;  // leaf, or -1
};
struct Segment {
  int32_t rank = 0;
  int64_t sizes[kRank];
  std::vector<Leaf> leaves;
  std::vector<Node> nodes;
  std::vector<uba_value> numbers;
  std::vector<uint8_t> number_dtypes;
  int64_t count() const {
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= sizes[d];
    return n;
  }
};

void start(Segment &s, const uba_tensor &like);  // empties it
// The leaf of `t` broadcast to the segment's sizes.
Leaf leaf_of(const Segment &s, const uba_tensor &t, bool written);
bool same_place(const Leaf &a, const Leaf &b);
int node_of(const Segment &s, const Leaf &leaf);  // the node whose result lies in that place, or -1
// Adds the node of one call. In a program, an operand may be the result of a node.
void add_node(Segment &s, const uba_call &call, int64_t tag, bool in_program);

// A segment, ready to be run: its kernel and arguments without addresses and numbers.
struct Prepared {
  Kernel *kernel = nullptr;  // none: nothing to do
  Range range;
  std::vector<int64_t> parameters;
  int rank = 0;
};
void prepare(Device &device, const Segment &s, Prepared &out);
// `blocks`: of a program, NULL else. `numbers`: as in the segment.
void run(Stream &stream, const Segment &s, const Prepared &p, const uba_value *numbers, void *const *blocks);

}  // namespace kit
