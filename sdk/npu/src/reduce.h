// reduce.h: accumulators of the reductions: one block of a row, or one row of a tile of columns.
//
// Contract. Sums, products and means of floats accumulate in double, integers in 64 bits that wrap around; MAX and MIN
// keep a NaN once they met one. `Slot` is one accumulator; every opcode uses the member that suits it.
#pragma once
#include "vector.h"

namespace npu {

struct Slot {
  union {
    double d;
    float f;
    int64_t i;
    uint64_t u;
  };
  int64_t index;  // ARGMAX, ARGMIN: -1 before the first element
};

constexpr bool is_arg(int op) { return op == NPU_REDUCE_ARGMAX || op == NPU_REDUCE_ARGMIN; }
constexpr bool is_most(int op) { return op == NPU_REDUCE_MAX || op == NPU_REDUCE_ARGMAX; }
constexpr bool is_extreme(int op) { return is_arg(op) || op == NPU_REDUCE_MAX || op == NPU_REDUCE_MIN; }
constexpr bool is_truth(int op) { return op == NPU_REDUCE_ANY || op == NPU_REDUCE_ALL; }

// The accumulator's type for elements of type E (float, double or int64_t).
template <int kOp, class E>
struct Accumulator {
  using type = typename std::conditional<
      is_extreme(kOp), E,
      typename std::conditional<is_truth(kOp) || !std::is_floating_point<E>::value, uint64_t, double>::type>::type;
};
template <class A>
NPU_INLINE A& slot_value(Slot& s);
template <>
NPU_INLINE double& slot_value<double>(Slot& s) {
  return s.d;
}
template <>
NPU_INLINE float& slot_value<float>(Slot& s) {
  return s.f;
}
template <>
NPU_INLINE int64_t& slot_value<int64_t>(Slot& s) {
  return s.i;
}
template <>
NPU_INLINE uint64_t& slot_value<uint64_t>(Slot& s) {
  return s.u;
}

template <int kOp, class E>
NPU_INLINE Slot empty_slot() {
  using A = typename Accumulator<kOp, E>::type;
  Slot s;
  s.u = 0;
  s.index = -1;
  A& v = slot_value<A>(s);
  if (kOp == NPU_REDUCE_PROD || kOp == NPU_REDUCE_ALL) v = A(1);
  if (is_extreme(kOp)) {
    if (std::is_floating_point<E>::value)
      v = static_cast<A>(is_most(kOp) ? -__builtin_inf() : __builtin_inf());
    else
      v = static_cast<A>(is_most(kOp) ? INT64_MIN : INT64_MAX);
  }
  return s;
}

// One step; T is an element or a small vector of them, already of the accumulator's type.
template <int kOp, class T>
NPU_INLINE void step(T& acc, const T& x) {
  if constexpr (kOp == NPU_REDUCE_PROD) {
    acc *= x;
  } else if constexpr (kOp == NPU_REDUCE_SUM_SQUARES) {
    acc += x * x;
  } else if constexpr (is_extreme(kOp)) {
    if constexpr (is_most(kOp))
      acc = ((x > acc) | (x != x)) ? x : acc;
    else
      acc = ((x < acc) | (x != x)) ? x : acc;
  } else {
    acc += x;
  }
}

// A later partial result into an earlier one.
template <int kOp, class E>
NPU_INLINE void combine(Slot& into, Slot from) {
  using A = typename Accumulator<kOp, E>::type;
  A& acc = slot_value<A>(into);
  const A x = slot_value<A>(from);
  if constexpr (is_arg(kOp)) {
    if (from.index < 0) return;
    const bool better = is_most(kOp) ? x > acc : x < acc;
    if (into.index < 0 || (acc == acc && (better || x != x))) into = from;
  } else if constexpr (kOp == NPU_REDUCE_ANY) {
    acc |= x;
  } else if constexpr (kOp == NPU_REDUCE_ALL) {
    acc &= x;
  } else if constexpr (kOp == NPU_REDUCE_SUM_SQUARES) {
    acc += x;
  } else {
    step<kOp, A>(acc, x);
  }
}

// n consecutive elements of one row, the first of which is element `first` of the row.
template <int kOp, class E>
struct RowBody {
  NPU_INLINE static void run(const E* x, int64_t n, Slot* slot, int64_t first) {
    using A = typename Accumulator<kOp, E>::type;
    if constexpr (is_truth(kOp)) {
      uint32_t any = 0, all = 1;
      for (int64_t i = 0; i < n; i++) {
        const uint32_t truth = x[i] != 0;
        any |= truth;
        all &= truth;
      }
      if (kOp == NPU_REDUCE_ANY) slot->u |= any;
      if (kOp == NPU_REDUCE_ALL) slot->u &= all;
    } else {
      constexpr int kPlain = is_arg(kOp) ? (is_most(kOp) ? NPU_REDUCE_MAX : NPU_REDUCE_MIN) : kOp;
      typedef typename Lanes<E>::v8 VE;
      typedef typename Lanes<A>::v8 VA;
      Slot part = empty_slot<kOp, E>();
      A total = slot_value<A>(part);
      int64_t i = 0;
      if (n >= 32) {
        VA acc[4];
        for (int k = 0; k < 4; k++)
          for (int j = 0; j < 8; j++) acc[k][j] = total;
        for (; i + 32 <= n; i += 32)
          for (int k = 0; k < 4; k++) {
            VE e;
            __builtin_memcpy(&e, x + i + 8 * k, sizeof(e));
            step<kPlain, VA>(acc[k], __builtin_convertvector(e, VA));
          }
        Slot lane;
        lane.index = 0;
        for (int k = 0; k < 4; k++)
          for (int j = 0; j < 8; j++) {
            slot_value<A>(lane) = acc[k][j];
            combine<kPlain, E>(part, lane);
          }
        total = slot_value<A>(part);
      }
      for (; i < n; i++) step<kPlain, A>(total, static_cast<A>(x[i]));
      slot_value<A>(part) = total;
      if constexpr (is_arg(kOp)) {
        // Only a block that improves on what was found is searched for the place.
        A& best = slot_value<A>(*slot);
        const bool better = is_most(kOp) ? total > best : total < best;
        if (slot->index >= 0 && !(best == best && (better || total != total))) return;
        int64_t at = 0;
        while (at < n && !(x[at] == total || (total != total && x[at] != x[at]))) at++;
        best = total;
        slot->index = first + at;
      } else {
        combine<kPlain, E>(*slot, part);
      }
    }
  }
};

// One row of a tile: x[j] into slots' values at acc[j]; index[j] for ARGMAX and ARGMIN.
template <int kOp, class E>
struct ColumnBody {
  using A = typename Accumulator<kOp, E>::type;
  NPU_INLINE static void run(const E* x, int64_t n, A* acc, int64_t* index, int64_t row) {
    if constexpr (is_arg(kOp)) {
      NPU_IVDEP for (int64_t j = 0; j < n; j++) {
        const A v = x[j], best = acc[j];
        const bool better = is_most(kOp) ? v > best : v < best;
        const bool take = (index[j] < 0) | ((best == best) & (better | (v != v)));
        acc[j] = take ? v : best;
        index[j] = take ? row : index[j];
      }
    } else {
      NPU_IVDEP for (int64_t j = 0; j < n; j++) {
        if constexpr (kOp == NPU_REDUCE_ANY) {
          acc[j] |= static_cast<A>(x[j] != 0);
        } else if constexpr (kOp == NPU_REDUCE_ALL) {
          acc[j] &= static_cast<A>(x[j] != 0);
        } else {
          step<kOp, A>(acc[j], static_cast<A>(x[j]));
        }
      }
    }
  }
};

}  // namespace npu
