// reduce.cpp: npu_v3_reduce: any set of dimensions, any strides.
//
// Contract: the header's, and: a reduction of no elements gives 0 (SUM, SUM_SQUARES, ANY), 1 (PROD, ALL) or NaN
// (MEAN), and is refused for MAX, MIN and ARG*. The result does not depend on the number of threads: long reductions
// are cut into pieces of kPiece elements whose partial results are combined in order.
//
// Two ways through memory. Rows: the reduced dimensions hold the smallest stride; each output is one row, read in
// blocks. Columns: a kept dimension holds it; a tile of up to kBlock columns is read row by row.
#include "reduce.h"

namespace npu {
namespace {

constexpr int64_t kPiece = 65536;
constexpr int kPartialSlot = 8;  // of scratch(): shared by the command's threads

struct Reduction {
  int32_t opcode, x_dtype;
  bool columns;
  Loop kept, reduced;  // kept: operands x (offsets only) and out; reduced: x
  Operand kept_x, kept_out, reduced_x;
};

template <class E>
constexpr Compute compute_for() {
  return std::is_same<E, float>::value ? Compute::f32 : std::is_same<E, double>::value ? Compute::f64 : Compute::i64;
}

template <int kOp, class E>
void finish(const Reduction& r, Slot slot, int64_t out_index) {
  using A = typename Accumulator<kOp, E>::type;
  const Operand& o = r.kept_out;
  char* at = o.data + offset_of(r.kept, o, out_index) * o.size;
  if (is_arg(kOp)) {
    *reinterpret_cast<int64_t*>(at) = slot.index;
    return;
  }
  const A value = slot_value<A>(slot);
  if (std::is_floating_point<E>::value && !is_truth(kOp)) {
    double result = static_cast<double>(value);
    if (kOp == NPU_REDUCE_MEAN) result /= static_cast<double>(r.reduced.n);
    if (std::is_same<E, double>::value)
      *reinterpret_cast<double*>(at) = result;
    else
      store_float1(o.dtype, static_cast<float>(result), at);
  } else {
    const int64_t result = static_cast<int64_t>(value);
    from_int(o.dtype, &result, at, 1);
  }
}

template <int kOp, class E>
void reduce_row(const Reduction& r, const char* base, int64_t begin, int64_t end, Slot* slot) {
  Operand x = r.reduced_x;
  x.data = const_cast<char*>(base);
  constexpr Compute compute = compute_for<E>();
  Block raw, buffer;
  for (int64_t at = begin; at < end; at += kBlock) {
    const int64_t n = end - at < kBlock ? end - at : kBlock;
    const E* values = static_cast<const E*>(fetch(r.reduced, x, at, n, compute, &raw, &buffer));
    simd<RowBody<kOp, E>>(values, n, slot, at);
  }
}

template <int kOp, class E>
void reduce_rows(const Reduction& r) {
  const int64_t pieces = r.reduced.n > kPiece ? (r.reduced.n + kPiece - 1) / kPiece : 1;
  Slot* partial = nullptr;
  if (pieces > 1)
    partial = static_cast<Slot*>(scratch(0, kPartialSlot, static_cast<size_t>(r.kept.n * pieces) * sizeof(Slot)));
  const int64_t size = r.reduced.n / pieces + 1;
  const int64_t grain = kGrain / size + 1;
  parallel_for(r.kept.n * pieces, grain, [&](int64_t begin, int64_t end, int) {
    for (int64_t item = begin; item < end; item++) {
      const int64_t out = item / pieces, from = item % pieces * kPiece;
      const int64_t to = pieces == 1 || r.reduced.n - from < kPiece ? r.reduced.n : from + kPiece;
      Slot slot = empty_slot<kOp, E>();
      const char* base = r.kept_x.data + offset_of(r.kept, r.kept_x, out) * r.kept_x.size;
      reduce_row<kOp, E>(r, base, from, to, &slot);
      if (partial)
        partial[item] = slot;
      else
        finish<kOp, E>(r, slot, out);
    }
  });
  if (!partial) return;
  for (int64_t out = 0; out < r.kept.n; out++) {
    Slot total = partial[out * pieces];
    for (int64_t p = 1; p < pieces; p++) combine<kOp, E>(total, partial[out * pieces + p]);
    finish<kOp, E>(r, total, out);
  }
}

// Steps through a loop one element at a time, keeping an operand's offset.
struct Walk {
  const Loop& loop;
  const Operand& operand;
  int64_t index[kMaxRank] = {};
  int64_t offset = 0;
  Walk(const Loop& l, const Operand& o, int64_t begin) : loop(l), operand(o) {
    for (int d = loop.rank - 1; d >= 0; d--) {
      index[d] = begin % loop.shape[d];
      begin /= loop.shape[d];
      offset += index[d] * operand.stride[d];
    }
  }
  void next() {
    for (int d = loop.rank - 1; d >= 0; d--) {
      offset += operand.stride[d];
      if (++index[d] < loop.shape[d]) return;
      offset -= loop.shape[d] * operand.stride[d];
      index[d] = 0;
    }
  }
};

template <int kOp, class E>
void reduce_columns(const Reduction& r) {
  using A = typename Accumulator<kOp, E>::type;
  const int last = r.kept.rank - 1;
  const int64_t width = r.kept.shape[last];
  const int64_t tiles = (width + kBlock - 1) / kBlock, tile_width = width < kBlock ? width : kBlock;
  const int64_t outer = r.kept.n / width, rows = r.reduced.n;
  // Pieces of rows only where there are too few tiles to go round and many rows.
  const int64_t piece_rows = kPiece / tile_width;
  const int64_t pieces = outer * tiles < 16 && rows > 2 * piece_rows ? (rows + piece_rows - 1) / piece_rows : 1;
  const int64_t items = outer * tiles * pieces;
  Slot* partial = nullptr;
  if (pieces > 1)
    partial = static_cast<Slot*>(scratch(0, kPartialSlot, static_cast<size_t>(items * kBlock) * sizeof(Slot)));
  constexpr Compute compute = compute_for<E>();
  parallel_for(items, kGrain / (tile_width * (rows / pieces + 1)) + 1, [&](int64_t begin, int64_t end, int) {
    Block raw, buffer, accumulators, indices;
    A* acc = reinterpret_cast<A*>(accumulators.bytes);
    int64_t* index = reinterpret_cast<int64_t*>(indices.bytes);
    for (int64_t item = begin; item < end; item++) {
      const int64_t piece = item % pieces, tile = item / pieces % tiles, first = item / pieces / tiles * width;
      const int64_t column = tile * kBlock, n = width - column < kBlock ? width - column : kBlock;
      const int64_t from = piece * piece_rows;
      const int64_t to = pieces == 1 || rows - from < piece_rows ? rows : from + piece_rows;
      Slot empty = empty_slot<kOp, E>();
      for (int64_t j = 0; j < n; j++) acc[j] = slot_value<A>(empty), index[j] = -1;
      Loop row;
      row.n = row.shape[0] = n;
      row.rank = 1;
      Operand x = r.kept_x;
      x.stride[0] = r.kept_x.stride[last];
      x.dense = x.stride[0] == 1;
      const char* base = r.kept_x.data + offset_of(r.kept, r.kept_x, first + column) * x.size;
      Walk walk(r.reduced, r.reduced_x, from);
      for (int64_t at = from; at < to; at++, walk.next()) {
        x.data = const_cast<char*>(base) + walk.offset * x.size;
        const E* values = static_cast<const E*>(fetch(row, x, 0, n, compute, &raw, &buffer));
        simd<ColumnBody<kOp, E>>(values, n, acc, index, at);
      }
      for (int64_t j = 0; j < n; j++) {
        Slot slot = empty;
        slot_value<A>(slot) = acc[j];
        slot.index = index[j];
        if (partial)
          partial[item * kBlock + j] = slot;
        else
          finish<kOp, E>(r, slot, first + column + j);
      }
    }
  });
  if (!partial) return;
  for (int64_t out = 0; out < r.kept.n; out++) {
    const int64_t column = out % width;
    const Slot* p = partial + ((out / width * tiles + column / kBlock) * pieces) * kBlock + column % kBlock;
    Slot total = p[0];
    for (int64_t k = 1; k < pieces; k++) combine<kOp, E>(total, p[k * kBlock]);
    finish<kOp, E>(r, total, out);
  }
}

template <int kOp>
void reduce_op(const Reduction& r) {
  switch (compute_of(r.x_dtype)) {
    case Compute::f32:
      return r.columns ? reduce_columns<kOp, float>(r) : reduce_rows<kOp, float>(r);
    case Compute::f64:
      return r.columns ? reduce_columns<kOp, double>(r) : reduce_rows<kOp, double>(r);
    default:
      return r.columns ? reduce_columns<kOp, int64_t>(r) : reduce_rows<kOp, int64_t>(r);
  }
}

void reduce(const Reduction& r) {
  switch (r.opcode) {
    case NPU_REDUCE_SUM:
      return reduce_op<NPU_REDUCE_SUM>(r);
    case NPU_REDUCE_MEAN:
      return reduce_op<NPU_REDUCE_MEAN>(r);
    case NPU_REDUCE_MAX:
      return reduce_op<NPU_REDUCE_MAX>(r);
    case NPU_REDUCE_MIN:
      return reduce_op<NPU_REDUCE_MIN>(r);
    case NPU_REDUCE_PROD:
      return reduce_op<NPU_REDUCE_PROD>(r);
    case NPU_REDUCE_ANY:
      return reduce_op<NPU_REDUCE_ANY>(r);
    case NPU_REDUCE_ALL:
      return reduce_op<NPU_REDUCE_ALL>(r);
    case NPU_REDUCE_ARGMAX:
      return reduce_op<NPU_REDUCE_ARGMAX>(r);
    case NPU_REDUCE_ARGMIN:
      return reduce_op<NPU_REDUCE_ARGMIN>(r);
    default:
      return reduce_op<NPU_REDUCE_SUM_SQUARES>(r);
  }
}

bool row_major(const View& v) {
  int64_t expected = 1;
  for (int d = v.rank - 1; d >= 0; d--) {
    if (v.shape[d] != 1 && v.stride[d] != expected) return false;
    expected *= v.shape[d];
  }
  return true;
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_reduce(npu_stream_t stream, int32_t opcode, const npu_tensor_t* x, uint32_t dims,
                                      const npu_tensor_t* out) {
  static const char fn[] = "npu_v3_reduce";
  static const char* const names[] = {"",    "SUM", "MEAN",   "MAX",    "MIN",        "PROD",
                                      "ANY", "ALL", "ARGMAX", "ARGMIN", "SUM_SQUARES"};
  if (opcode < NPU_REDUCE_SUM || opcode > NPU_REDUCE_SUM_SQUARES)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: opcode %d is unknown, expected %d to %d", fn, opcode, NPU_REDUCE_SUM,
                NPU_REDUCE_SUM_SQUARES);
  View vx, vo;
  NPU_TRY(resolve(stream, x, opcode == NPU_REDUCE_MEAN ? kAll & ~kInts & ~mask(NPU_BOOL) : kAll, Engine::compute, false,
                  fn, "x", &vx));
  NPU_TRY(resolve(stream, out, kAll, Engine::compute, false, fn, "out", &vo));
  if (dims >> vx.rank)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: dims 0x%x names dimensions x does not have (its rank is %d)", fn, dims,
                vx.rank);
  const bool floats = mask(vx.dtype) & kFloats;
  if (is_truth(opcode)) {
    NPU_TRY(same_dtype(fn, "out", vo, NPU_BOOL));
  } else if (is_arg(opcode)) {
    NPU_TRY(same_dtype(fn, "out", vo, NPU_INT64));
  } else if (is_extreme(opcode)) {
    NPU_TRY(same_dtype(fn, "out", vo, vx.dtype));
  } else if (vx.dtype == NPU_FLOAT64) {
    NPU_TRY(same_dtype(fn, "out", vo, NPU_FLOAT64));
  } else if (vo.dtype != vx.dtype && vo.dtype != (floats ? NPU_FLOAT32 : NPU_INT64)) {
    return fail(NPU_STATUS_INVALID_VALUE, "%s: out is %s, expected %s or %s", fn, dtype_text(vo.dtype),
                dtype_text(vx.dtype), floats ? "float32" : "int64");
  }
  int64_t shape[kMaxRank];
  int64_t count = 1;
  for (int d = 0; d < vx.rank; d++) {
    const bool reduced = dims >> d & 1;
    shape[d] = reduced ? 1 : vx.shape[d];
    if (reduced) count *= vx.shape[d];
  }
  NPU_TRY(expect_shape(fn, "out", vo, vx.rank, shape));
  NPU_TRY(writable(fn, "out", vo));
  if (vo.numel() == 0) return NPU_STATUS_SUCCESS;
  if (count == 0 && is_extreme(opcode))
    return fail(NPU_STATUS_INVALID_VALUE, "%s: NPU_REDUCE_%s of no elements has no value, expected a non-empty x", fn,
                names[opcode]);
  const uint32_t all = (1u << vx.rank) - 1;
  if (is_arg(opcode) && (dims & (dims - 1)) && !(dims == all && row_major(vx)))
    return fail(NPU_STATUS_NOT_SUPPORTED,
                "%s: NPU_REDUCE_%s takes one dimension, or all of a contiguous x; dims is 0x%x", fn, names[opcode],
                dims);

  Reduction r;
  r.opcode = opcode;
  r.x_dtype = vx.dtype;
  // Kept dimensions in the order of x's memory; out follows. Its sizes agree with x's there.
  const View* kept[2] = {&vx, &vo};
  Operand operands[2];
  collapse(kept, 2, true, ~dims, &r.kept, operands);
  r.kept_x = operands[0];
  r.kept_out = operands[1];
  const View* reduced[1] = {&vx};
  collapse(reduced, 1, !is_arg(opcode), dims, &r.reduced, &r.reduced_x);
  const int64_t kept_step = r.kept.rank ? r.kept_x.stride[r.kept.rank - 1] : INT64_MAX;
  const int64_t reduced_step = r.reduced.rank ? r.reduced_x.stride[r.reduced.rank - 1] : INT64_MAX;
  r.columns = r.kept.rank > 0 && kept_step < reduced_step && r.kept.shape[r.kept.rank - 1] >= 8;
  const double n = static_cast<double>(vx.numel());
  const Work work = vx.dtype == NPU_FLOAT64 ? Work{n, 0, vx.dtype, Work::scalar}
                                            : Work{n * (opcode == NPU_REDUCE_SUM_SQUARES ? 2 : 1),
                                                   view_bytes(vx) + view_bytes(vo), vx.dtype};
  return submit(stream, fn, cycles(stream, work), [r] { reduce(r); });
}
