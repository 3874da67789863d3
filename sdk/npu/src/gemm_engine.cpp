// gemm_engine.cpp: packs operands to float32 panels, then multiplies tile by tile.
//
// How: the problem is cut into chunks whose panels fit some tens of MiB. All threads pack a chunk's panels of a and b
// (converting as they go, so a 16-bit operand is read once), then each takes tiles of the output and runs the register
// kernel over blocks of kBlock terms: one panel of b stays in the first-level cache, a's panels in the second.
#include "gemm_engine.h"

#include <algorithm>

namespace npu {

namespace {

constexpr int64_t kBlock = kPackTerms;     // terms of one pass of the register kernel
constexpr int64_t kChunkTerms = 8192;      // terms packed at once; beyond, sums are kept between chunks
constexpr int64_t kChunkFloats = 4 << 20;  // of a packed operand: 16 MiB
constexpr int64_t kTileRows = 112, kTileColumns = 512;
constexpr int64_t kSmall = 1 << 15;  // multiply-adds not worth a second thread

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// A chunk of one operand in packed form: for each block of kBlock terms, its panels one after the other.
struct Packed {
  const Operand& op;
  float* data;
  int64_t first, count, width, k0, kc;
  int64_t panels() const { return (count + width - 1) / width; }
  int64_t blocks() const { return (kc + kBlock - 1) / kBlock; }
  float* panel(int64_t block, int64_t p) const {
    int64_t terms = std::min(kBlock, kc - block * kBlock);
    return data + block * kBlock * panels() * width + p * terms * width;
  }
  void pack(int64_t task) const {
    int64_t block = task / panels(), p = task % panels(), at = block * kBlock;
    pack_panel(op, first + p * width, std::min(width, count - p * width), width, k0 + at, std::min(kBlock, kc - at),
               panel(block, p));
  }
};

struct TileGrid {
  int64_t rows, columns;  // of a tile
};

// Tiles as large as the cache likes, but enough of them for all threads.
TileGrid choose_tiles(int64_t m, int64_t n, const silicon::RegisterKernel& kernel) {
  TileGrid t{std::min(round_up(m, kernel.mr), kTileRows / kernel.mr * kernel.mr),
             std::min(round_up(n, kernel.nr), kTileColumns)};
  int64_t wanted = 3 * compute_threads();
  auto tiles = [&] { return (m + t.rows - 1) / t.rows * ((n + t.columns - 1) / t.columns); };
  while (tiles() < wanted && t.columns > kernel.nr) t.columns = round_up(t.columns / 2, kernel.nr);
  while (tiles() < wanted && t.rows > kernel.mr) t.rows = round_up(t.rows / 2, kernel.mr);
  return t;
}

void multiply_tile(const Packed& a, const Packed& b, const silicon::RegisterKernel& kernel, int64_t row, int64_t column,
                   int64_t rows, int64_t columns, float* sums, int64_t ld, bool add) {
  for (int64_t block = 0; block < b.blocks(); block++) {
    int64_t terms = std::min(kBlock, b.kc - block * kBlock);
    for (int64_t j = 0; j < columns; j += kernel.nr) {
      const float* pb = b.panel(block, (column + j) / kernel.nr);
      for (int64_t i = 0; i < rows; i += kernel.mr) {
        kernel.run(int(std::min<int64_t>(kernel.mr, rows - i)), int(std::min<int64_t>(kernel.nr, columns - j)), terms,
                   a.panel(block, (row + i) / kernel.mr), pb, sums + i * ld + j, ld, add || block > 0);
      }
    }
  }
}

}  // namespace

void gemm(int64_t m, int64_t n, int64_t k, const Operand& a, const Operand& b, SinkFn sink, void* context, int thread) {
  if (!m || !n) return;
  const silicon::RegisterKernel& kernel = silicon::register_kernel();
  int64_t chunk_k = std::min(std::max<int64_t>(k, 1), kChunkTerms);
  int64_t chunk_m =
      std::min(round_up(m, kernel.mr), std::max<int64_t>(kChunkFloats / chunk_k / kernel.mr, 8) * kernel.mr);
  int64_t chunk_n =
      std::min(round_up(n, kernel.nr), std::max<int64_t>(kChunkFloats / chunk_k / kernel.nr, 8) * kernel.nr);
  bool one_pass = k <= chunk_k;
  bool small = m * n * std::max<int64_t>(k, 1) <= kSmall;
  auto* packed_a = static_cast<float*>(scratch(thread, kPackedA, size_t(chunk_m * chunk_k) * 4));
  auto* packed_b = static_cast<float*>(scratch(thread, kPackedB, size_t(chunk_n * chunk_k) * 4));
  // Sums of a chunk outlive a pass only if there are several.
  float* kept = one_pass ? nullptr : static_cast<float*>(scratch(thread, kSums, size_t(chunk_m * chunk_n) * 4));

  for (int64_t m0 = 0; m0 < m; m0 += chunk_m) {
    int64_t mc = std::min(chunk_m, m - m0);
    for (int64_t n0 = 0; n0 < n; n0 += chunk_n) {
      int64_t nc = std::min(chunk_n, n - n0);
      for (int64_t k0 = 0; k0 == 0 || k0 < k; k0 += chunk_k) {
        int64_t kc = std::min(chunk_k, k - k0);
        Packed pa{a, packed_a, m0, mc, kernel.mr, k0, kc}, pb{b, packed_b, n0, nc, kernel.nr, k0, kc};
        bool have_a = one_pass && n0 > 0;
        int64_t tasks_a = have_a ? 0 : pa.panels() * pa.blocks(), tasks_b = pb.panels() * pb.blocks();
        parallel_for(tasks_a + tasks_b, small ? INT64_MAX : 2, [&](int64_t begin, int64_t end, int) {
          for (int64_t t = begin; t < end; t++) t < tasks_a ? pa.pack(t) : pb.pack(t - tasks_a);
        });
        TileGrid tile = choose_tiles(mc, nc, kernel);
        int64_t across = (nc + tile.columns - 1) / tile.columns, tiles = (mc + tile.rows - 1) / tile.rows * across;
        bool last = k0 + kc >= k;
        parallel_for(tiles, small ? INT64_MAX : 1, [&](int64_t begin, int64_t end, int worker) {
          for (int64_t t = begin; t < end; t++) {
            int64_t row = t / across * tile.rows, column = t % across * tile.columns;
            int64_t rows = std::min(tile.rows, mc - row), columns = std::min(tile.columns, nc - column);
            int64_t ld = one_pass ? tile.columns : chunk_n;
            float* sums = one_pass ? static_cast<float*>(scratch(worker, kTile, size_t(tile.rows * tile.columns) * 4))
                                   : kept + row * chunk_n + column;
            if (!kc) {
              std::fill_n(sums, rows * ld, 0.0f);
            } else {
              multiply_tile(pa, pb, kernel, row, column, rows, columns, sums, ld, k0 > 0);
            }
            for (int64_t i = 0; last && i < rows; i++) sink(context, m0 + row + i, n0 + column, columns, sums + i * ld);
          }
        });
      }
    }
  }
}

}  // namespace npu
