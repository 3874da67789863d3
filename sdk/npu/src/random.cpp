// random.cpp: npu_v3_random: the counter-based generator Philox 4x32-10 (Salmon et al., "Parallel random numbers: as
// easy as 1, 2, 3", 2011).
//
// Contract: the header's. An element depends on the seed, the offset and its number in row-major order alone: neither
// strides nor threads show in it.
#include "lines.h"

namespace npu {
namespace {

// The four lanes of `count` counters from `first` on, one counter after the other; the counter's upper half is 0.
struct PhiloxBody {
  NPU_INLINE static void run(uint64_t key, uint64_t first, int64_t count, uint32_t* lanes) {
    NPU_IVDEP for (int64_t i = 0; i < count; i++) {
      const uint64_t counter = first + static_cast<uint64_t>(i);
      uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32), c2 = 0, c3 = 0;
      uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
      for (int round = 0; round < 10; round++) {
        const uint64_t p0 = uint64_t(0xD2511F53) * c0, p1 = uint64_t(0xCD9E8D57) * c2;
        c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
        c1 = static_cast<uint32_t>(p1);
        c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
        c3 = static_cast<uint32_t>(p0);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
      }
      lanes[4 * i] = c0;
      lanes[4 * i + 1] = c1;
      lanes[4 * i + 2] = c2;
      lanes[4 * i + 3] = c3;
    }
  }
};

struct Random {
  uint64_t seed, offset;
  int32_t shift;  // of a lane, to the bits that the dtype keeps
  Loop loop;
  Operand out;
};

// The lanes of elements [at, at + n): `per` elements share a counter. Returns where those of element `at` begin.
template <int kPer>
const uint32_t* lanes_of(const Random& r, int64_t at, int64_t n, uint32_t* lanes) {
  const int64_t first = at / kPer, count = (at + n - 1) / kPer - first + 1;
  simd<PhiloxBody>(r.seed, r.offset + static_cast<uint64_t>(first), count, lanes);
  return lanes + (at - first * kPer) * (4 / kPer);
}

void uniform(const Random& r) {
  const double scale = 1.0 / static_cast<double>(uint64_t(1) << (32 - r.shift));
  parallel_for(r.loop.n, kGrain, [&](int64_t begin, int64_t end, int) {
    Block raw, block;
    uint32_t lanes[kBlock + 8];
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = end - at < kBlock ? end - at : kBlock;
      const uint32_t* lane = lanes_of<4>(r, at, n, lanes);
      if (r.out.dtype == NPU_FLOAT64) {
        double* d = reinterpret_cast<double*>(block.bytes);
        for (int64_t i = 0; i < n; i++) d[i] = static_cast<double>(lane[i] >> r.shift) * scale;
        store(r.loop, r.out, at, n, Compute::f64, d, &raw);
      } else {
        float* f = reinterpret_cast<float*>(block.bytes);
        const float step = static_cast<float>(scale);
        for (int64_t i = 0; i < n; i++) f[i] = static_cast<float>(static_cast<int32_t>(lane[i] >> r.shift)) * step;
        store(r.loop, r.out, at, n, Compute::f32, f, &raw);
      }
    }
  });
}

void bits(const Random& r) {
  parallel_for(r.loop.n, kGrain, [&](int64_t begin, int64_t end, int) {
    Block raw, block;
    uint32_t lanes[2 * kBlock + 8];
    int64_t* v = reinterpret_cast<int64_t*>(block.bytes);
    for (int64_t at = begin; at < end; at += kBlock) {
      const int64_t n = end - at < kBlock ? end - at : kBlock;
      const uint32_t* lane = lanes_of<2>(r, at, n, lanes);
      for (int64_t i = 0; i < n; i++) v[i] = static_cast<int64_t>((uint64_t(lane[2 * i + 1]) << 32 | lane[2 * i]) >> 1);
      store(r.loop, r.out, at, n, Compute::i64, v, &raw);
    }
  });
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_random(npu_stream_t stream, int32_t opcode, uint64_t seed, uint64_t offset,
                                      const npu_tensor_t* out) {
  static const char fn[] = "npu_v3_random";
  if (opcode != NPU_RANDOM_UNIFORM && opcode != NPU_RANDOM_BITS)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: opcode %d is unknown, expected %d or %d", fn, opcode, NPU_RANDOM_UNIFORM,
                NPU_RANDOM_BITS);
  const bool real = opcode == NPU_RANDOM_UNIFORM;
  View vo;
  NPU_TRY(resolve(stream, out, real ? kFloats | mask(NPU_FLOAT64) : mask(NPU_INT64), Engine::compute, false, fn, "out",
                  &vo));
  NPU_TRY(writable(fn, "out", vo));
  if (vo.numel() == 0) return NPU_STATUS_SUCCESS;
  Random command;
  command.seed = seed;
  command.offset = offset;
  command.shift = vo.dtype == NPU_FLOAT16 ? 21 : vo.dtype == NPU_BFLOAT16 ? 24 : 8;
  const View* views[1] = {&vo};
  collapse(views, 1, false, ~0u, &command.loop, &command.out);
  const double n = static_cast<double>(command.loop.n);
  const Work work{n * (real ? 20 : 40), view_bytes(vo), vo.dtype};
  return submit(stream, fn, cycles(stream, work), [command, real] { real ? uniform(command) : bits(command); });
}
