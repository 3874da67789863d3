// attention.cpp: npu_v3_attention: scores, softmax and the weighted sum of the values, block by block in the cache.
//
// Contract: the header's. A block of rows of one head is multiplied with all keys; its scores stay in scratch memory in
// float32, are turned into exponentials there, and multiplied with the values; what is stored is divided by their sum.
#include <algorithm>
#include <cinttypes>
#include <cmath>

#include "device.h"
#include "epilogue.h"
#include "gemm_engine.h"
#include "matrix_clock.h"

#define TRY(expression)                           \
  do {                                            \
    const npu_status_t try_status = (expression); \
    if (try_status) return try_status;            \
  } while (0)

namespace npu {
namespace {

constexpr int64_t kScores = 1 << 15;  // of a block: 128 KiB

// Calls body(begin, count, buffer of `count` floats) for all of `n` elements.
template <class F>
void in_pieces(int64_t n, F&& body) {
  constexpr int64_t kPiece = 512;
  float buffer[kPiece];
  for (int64_t done = 0; done < n; done += kPiece) body(done, std::min(kPiece, n - done), buffer);
}

struct Sheet {  // [heads, rows, columns]
  char* data = nullptr;
  int32_t dtype = 0;
  int64_t batch = 0, row = 0, column = 0;
  char* head(int64_t i) const { return data + batch * i * int64_t(dtype_size(dtype)); }
};
Sheet sheet(const View& v) { return {v.data, v.dtype, v.stride[0], v.stride[1], v.stride[2]}; }

struct AttentionCommand {
  Sheet q, k, v, out;
  Sheet mask;             // `batch` counts samples
  int64_t mask_head = 0;  // and this the heads of one
  int64_t heads, per_sample, rows, keys, depth, width;
  float scale;

  void operator()() const {
    const int64_t block = std::clamp<int64_t>(kScores / keys, 1, rows), blocks = (rows + block - 1) / block;
    parallel_for(heads * blocks, 1, [&](int64_t begin, int64_t end, int thread) {
      for (int64_t i = begin; i < end; i++)
        one(i / blocks, i % blocks * block, std::min(block, rows - i % blocks * block), thread);
    });
  }

  void one(int64_t head, int64_t first, int64_t count, int thread) const {
    auto* scores = static_cast<float*>(scratch(thread, kImage, size_t(count * keys + count) * 4));
    float* sums = scores + count * keys;
    const int64_t size = int64_t(dtype_size(q.dtype));
    Operand a{q.head(head) + first * q.row * size, q.dtype, {nullptr, q.row}, {nullptr, q.column}};
    Operand b{k.head(head), k.dtype, {nullptr, k.column}, {nullptr, k.row}};
    gemm(
        count, keys, depth, a, b,
        [&](int64_t row, int64_t column, int64_t n, const float* values) {
          in_pieces(n, [&](int64_t done, int64_t some, float* buffer) {
            if (mask.dtype) {
              const int64_t at = head / per_sample * mask.batch + head % per_sample * mask_head +
                                 (first + row) * mask.row + (column + done) * mask.column;
              load_floats(mask.data, mask.dtype, at, mask.column, some, buffer);
            }
            scale_add(values + done, mask.dtype ? buffer : nullptr, scores + row * keys + column + done, some, scale);
          });
        },
        thread);
    for (int64_t row = 0; row < count; row++) sums[row] = exponentials(scores + row * keys, keys);
    Operand c{scores, NPU_FLOAT32, {nullptr, keys}, {nullptr, 1}};
    Operand d{v.head(head), v.dtype, {nullptr, v.column}, {nullptr, v.row}};
    gemm(
        count, width, keys, c, d,
        [&](int64_t row, int64_t column, int64_t n, const float* values) {
          in_pieces(n, [&](int64_t done, int64_t some, float* buffer) {
            const int64_t at = out.batch * head + (first + row) * out.row + (column + done) * out.column;
            scale_add(values + done, nullptr, buffer, some, 1 / sums[row]);
            store_floats(buffer, some, out.data, out.dtype, at, {nullptr, out.column});
          });
        },
        thread);
  }
};

npu_status_t expect(const char* function, const char* what, const View& v, const int64_t* shape) {
  if (v.rank == 3 && std::equal(shape, shape + 3, v.shape)) return NPU_STATUS_SUCCESS;
  return fail(NPU_STATUS_INVALID_VALUE, "%s: %s: expected [%" PRId64 ", %" PRId64 ", %" PRId64 "]", function, what,
              shape[0], shape[1], shape[2]);
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" NPU_API npu_status_t npu_v3_attention(npu_stream_t stream, const npu_tensor_t* q, const npu_tensor_t* k,
                                                 const npu_tensor_t* v, const npu_tensor_t* mask, double scale,
                                                 const npu_tensor_t* out) {
  static const char fn[] = "npu_v3_attention";
  View vq, vk, vv, vm, vo;
  TRY(resolve(stream, q, kFloats, Engine::compute, false, fn, "q", &vq));
  TRY(resolve(stream, k, npu::mask(vq.dtype), Engine::compute, false, fn, "k", &vk));
  TRY(resolve(stream, v, npu::mask(vq.dtype), Engine::compute, false, fn, "v", &vv));
  TRY(resolve(stream, mask, kFloats, Engine::compute, true, fn, "mask", &vm));
  TRY(resolve(stream, out, npu::mask(vq.dtype), Engine::compute, false, fn, "out", &vo));
  if (vq.rank != 3 || vk.rank != 3 || vv.rank != 3)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: ranks %d, %d and %d of q, k and v: expected 3", fn, vq.rank, vk.rank,
                vv.rank);
  const int64_t heads = vq.shape[0], rows = vq.shape[1], depth = vq.shape[2], keys = vk.shape[2], width = vv.shape[2];
  const int64_t k_shape[] = {heads, depth, keys}, v_shape[] = {heads, keys, width}, o_shape[] = {heads, rows, width};
  TRY(expect(fn, "k", vk, k_shape));
  TRY(expect(fn, "v", vv, v_shape));
  TRY(expect(fn, "out", vo, o_shape));
  if (keys == 0) return fail(NPU_STATUS_NOT_SUPPORTED, "%s: no keys", fn);
  AttentionCommand command{sheet(vq), sheet(vk), sheet(vv), sheet(vo), {},    0,           heads,
                           1,         rows,      keys,      depth,     width, float(scale)};
  if (vm) {
    if (vm.rank != 4 || vm.shape[0] * vm.shape[1] != heads || vm.shape[2] != rows || vm.shape[3] != keys)
      return fail(NPU_STATUS_INVALID_VALUE,
                  "%s: mask: expected [samples, heads, %" PRId64 ", %" PRId64 "] with %" PRId64 " heads in all", fn,
                  rows, keys, heads);
    command.mask = {vm.data, vm.dtype, vm.stride[0], vm.stride[2], vm.stride[3]};
    command.mask_head = vm.stride[1];
    command.per_sample = vm.shape[1];
  }
  if (!vo.numel()) return check_stream(stream, fn);
  double mask_bytes = vm ? double(dtype_size(vm.dtype)) : 0;
  for (int i = 0; vm && i < 4; i++) mask_bytes *= vm.stride[i] ? double(vm.shape[i]) : 1;
  const uint64_t cost = attention_cycles(heads, rows, keys, depth, width, vq.dtype, mask_bytes);
  return submit(stream, fn, cost, command);
}
