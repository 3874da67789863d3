// program.cpp: programs of vector instructions: dealt to segments, each of which becomes one kernel.
//
// Contract: results that nobody needs after the program, and no later kernel of it, stay in registers.
#include <algorithm>

#include "segment.h"

namespace kit {
namespace {

struct Program {
  struct Part {
    Segment segment;
    Prepared prepared;
  };
  std::vector<Part> parts;
};

// Deals the steps of a program to segments, in order: a new one begins where the shape changes, or where a step needs
// in memory what another work-item of the same kernel would write.
class Splitter {
 public:
  explicit Splitter(const uba_program &program) : program_(program), stored_(size_t(program.block_count), 1) {
    if (!UBA_HAS(&program, uba_program, dead)) return;
    for (int b = 0; b < program.block_count; b++) stored_[size_t(b)] = !program.dead[b];
  }
  void split(Program &out) {
    do {
      out.parts.clear();
      for (int64_t i = 0; i < program_.step_count; i++) add(out, program_.steps[i]);
    } while (!drop_stores(out));
  }

 private:
  void add(Program &out, const uba_step &step) {
    if (step.kernel && step.kernel->run != elementwise) refuse("not of vector instructions alone");
    const uba_call &call = *step.call;
    const uba_tensor &result = call.outputs[0];
    if (std::find(result.sizes, result.sizes + result.rank, 0) != result.sizes + result.rank) return;
    if (out.parts.empty() || !fits(out.parts.back().segment, call)) {
      out.parts.emplace_back();
      start(out.parts.back().segment, result);
    }
    Segment &s = out.parts.back().segment;
    add_node(s, call, step.kernel ? step.kernel->tag : int64_t(kCopy), true);
  }
  bool fits(const Segment &s, const uba_call &call) const {
    const uba_tensor &result = call.outputs[0];
    if (result.rank != s.rank || !std::equal(s.sizes, s.sizes + s.rank, result.sizes)) return false;
    if (s.nodes.size() + 1 > kNodes || s.leaves.size() + 5 > kLeaves) return false;
    for (int i = 0; i < call.arg_count; i++) {
      if (call.args[i].kind != UBA_TENSOR) continue;
      const Leaf leaf = leaf_of(s, *call.args[i].v.tensor, false);
      if (node_of(s, leaf) < 0 && clash(s, leaf)) return false;
    }
    return !clash(s, leaf_of(s, result, true));
  }
  // Whether `leaf` overlaps one of the segment's, and one of them is written, elsewhere than in the same place.
  bool clash(const Segment &s, const Leaf &leaf) const {
    for (const Leaf &other : s.leaves) {
      if (!(other.written || leaf.written) || same_place(other, leaf)) continue;
      if (other.data == leaf.data) return true;
      if (in_memory(leaf) && in_memory(other) && shares(s, leaf, other)) return true;
    }
    return false;
  }
  static size_t block(const Leaf &leaf) { return reinterpret_cast<uintptr_t>(leaf.data); }
  bool in_memory(const Leaf &leaf) const { return !leaf.written || stored_[block(leaf)]; }
  bool shares(const Segment &s, const Leaf &a, const Leaf &b) const {
    if (!UBA_HAS(&program_, uba_program, dead)) return false;
    int64_t begin[2], end[2], n = 0;
    for (const Leaf *leaf : {&a, &b}) {
      if (program_.places[block(*leaf)] < 0) return false;
      begin[n] = program_.places[block(*leaf)] + int64_t(leaf->offset), end[n] = begin[n] + item_size(leaf->dtype);
      for (int d = 0; d < s.rank; d++) end[n] += (s.sizes[d] - 1) * leaf->strides[d] * item_size(leaf->dtype);
      n++;
    }
    return begin[0] < end[1] && begin[1] < end[0];
  }
  // Results that no later segment reads stay in registers. False: some that were thought to do so cannot; begin again.
  bool drop_stores(Program &out) {
    std::vector<uint8_t> read(stored_.size());
    bool settled = true;
    for (size_t p = out.parts.size(); p-- > 0;) {
      Segment &s = out.parts[p].segment;
      std::vector<Leaf> kept;
      std::vector<int> at;
      for (const Leaf &leaf : s.leaves) {
        const bool keep = !leaf.written || stored_[block(leaf)] || read[block(leaf)];
        if (leaf.written && keep && !stored_[block(leaf)]) stored_[block(leaf)] = 1, settled = false;
        at.push_back(keep ? int(kept.size()) : -1);
        if (keep) kept.push_back(leaf);
      }
      for (Node &node : s.nodes) {
        node.store = int8_t(at[size_t(node.store)]);
        for (Operand &in : node.in)
          if (in.kind == 'l') in.index = uint8_t(at[in.index]);
      }
      s.leaves = std::move(kept);
      for (const Leaf &leaf : s.leaves)
        if (!leaf.written) read[block(leaf)] = 1;
      if (std::none_of(s.leaves.begin(), s.leaves.end(), [](const Leaf &leaf) { return leaf.written; }))
        out.parts.erase(out.parts.begin() + int64_t(p));
    }
    return settled;
  }

  const uba_program &program_;
  std::vector<uint8_t> stored_;  // by block: 0: nobody needs it in memory
};

}  // namespace

uba_status program_compile(void *device, const uba_program *program, void **compiled) {
  return guard([&] {
    auto made = std::make_unique<Program>();
    Splitter(*program).split(*made);
    for (Program::Part &part : made->parts) prepare(device_of(device), part.segment, part.prepared);
    *compiled = made.release();
  });
}
uba_status program_run(void *device, void *compiled, const uba_run *run_of) {
  return guard([&] {
    static thread_local std::vector<uba_value> numbers;
    const Turn turn(device, run_of->stream);
    for (Program::Part &part : static_cast<Program *>(compiled)->parts) {
      numbers = part.segment.numbers;
      for (uba_value &number : numbers)
        if (number.kind == UBA_NUMBER) number = run_of->numbers[number.v.i];
      run(turn.stream, part.segment, part.prepared, numbers.data(), run_of->blocks);
    }
  });
}
uba_status program_release(void *, void *compiled) { return delete static_cast<Program *>(compiled), UBA_OK; }

}  // namespace kit
