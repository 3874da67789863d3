// gather.cpp: index_select, gather and index_add_rows.
//
// Contract: the header's. Indices are read when the command runs; if any is out of range the command writes nothing,
// and the next synchronise returns NPU_STATUS_EXECUTION_FAILED with a text that names the index and the size.
// index_add_rows adds all rows of one destination in float32, in order of the index, and rounds once.
#include <cstdio>

#include "lines.h"

namespace npu {

npu_status_t check_dim(const char* fn, int32_t dim, const View& view) {
  if (dim >= 0 && dim < view.rank) return NPU_STATUS_SUCCESS;
  return fail(NPU_STATUS_INVALID_VALUE, "%s: dim is %d, expected 0 to %d", fn, dim, view.rank - 1);
}

bool in_range(const char* fn, const View& index, int64_t size) {
  const View* views[1] = {&index};
  Loop loop;
  Operand operand;
  collapse(views, 1, false, ~0u, &loop, &operand);
  Block raw, buffer;
  for (int64_t at = 0; at < loop.n; at += kBlock) {
    const int64_t n = loop.n - at < kBlock ? loop.n - at : kBlock;
    const int64_t* v = static_cast<const int64_t*>(fetch(loop, operand, at, n, Compute::i64, &raw, &buffer));
    for (int64_t i = 0; i < n; i++) {
      if (v[i] >= 0 && v[i] < size) continue;
      char text[160];
      std::snprintf(text, sizeof(text), "%s: index %lld at position %lld is out of range for size %lld", fn,
                    static_cast<long long>(v[i]), static_cast<long long>(at + i), static_cast<long long>(size));
      runtime_failure(NPU_STATUS_EXECUTION_FAILED, text);
      return false;
    }
  }
  return true;
}

npu_status_t fits_but_dim(const char* fn, const char* what, const View& view, const char* of, const View& whole,
                          int32_t dim) {
  if (view.rank != whole.rank)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: %s has rank %d, expected that of %s, %d", fn, what, view.rank, of,
                whole.rank);
  for (int d = 0; d < whole.rank; d++)
    if (d != dim && view.shape[d] > whole.shape[d])
      return fail(NPU_STATUS_INVALID_VALUE, "%s: %s has size %lld in dimension %d, expected at most %s's %lld", fn,
                  what, static_cast<long long>(view.shape[d]), d, of, static_cast<long long>(whole.shape[d]));
  return NPU_STATUS_SUCCESS;
}

namespace {

constexpr int kOrderSlot = 8, kRowSlot = 0;

// One element at dst + d*dst_step from src + i*src_step.
template <class T>
void gather_row(const View& index, int64_t index_at, int64_t index_step, int64_t n, const char* src_, int64_t src_step,
                int64_t src_dim_step, char* dst_, int64_t dst_step) {
  const T* src = reinterpret_cast<const T*>(src_);
  T* dst = reinterpret_cast<T*>(dst_);
  for (int64_t j = 0; j < n; j++) {
    const int64_t i = read_index(index, index_at + j * index_step);
    dst[j * dst_step] = src[j * src_step + i * src_dim_step];
  }
}

void gather(const View& dst, const View& src, const View& index, int dim) {
  // Rows along the last dimension; in dimension `dim` of src the index says where, elsewhere the position does.
  const int last = dst.rank - 1;
  const int64_t row = dst.shape[last], rows = dst.numel() / row;
  const int64_t item = static_cast<int64_t>(dtype_size(dst.dtype));
  parallel_for(rows, kGrain / row + 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; r++) {
      int64_t rest = r, d_at = 0, s_at = 0, i_at = 0;
      for (int d = last - 1; d >= 0; d--) {
        const int64_t k = rest % dst.shape[d];
        rest /= dst.shape[d];
        d_at += k * dst.stride[d];
        i_at += k * index.stride[d];
        if (d != dim) s_at += k * src.stride[d];
      }
      const int64_t s_step = last == dim ? 0 : src.stride[last];
      auto* f = item == 1   ? gather_row<uint8_t>
                : item == 2 ? gather_row<uint16_t>
                : item == 4 ? gather_row<uint32_t>
                            : gather_row<uint64_t>;
      f(index, i_at, index.stride[last], row, src.data + s_at * item, s_step, src.stride[dim], dst.data + d_at * item,
        dst.stride[last]);
    }
  });
}

// The places of the selected slices, without dimension `dim`.
struct Select {
  Loop loop;
  Operand operand[2];  // dst, src
  View index;
  int64_t dst_step, src_step, size;
};

void index_select(const Select& s) {
  const int64_t n = s.index.numel(), step = s.index.rank ? s.index.stride[0] : 0;
  const Operand &dst = s.operand[0], &src = s.operand[1];
  parallel_for(n, kGrain / s.loop.n + 1, [&](int64_t begin, int64_t end, int) {
    Block buffer;
    for (int64_t k = begin; k < end; k++) {
      const int64_t i = read_index(s.index, k * step);
      Operand to = dst, from = src;
      to.data += k * s.dst_step * dst.size;
      from.data += i * s.src_step * src.size;
      if (to.dense && from.dense) {
        std::memcpy(to.data, from.data, static_cast<size_t>(s.loop.n) * dst.size);
        continue;
      }
      for (int64_t at = 0; at < s.loop.n; at += kBlock) {
        const int64_t m = s.loop.n - at < kBlock ? s.loop.n - at : kBlock;
        store(s.loop, to, at, m, Compute::raw, fetch(s.loop, from, at, m, Compute::raw, &buffer, &buffer), &buffer);
      }
    }
  });
}

struct AddRowBody {
  NPU_INLINE static void run(float* acc, const float* x, int64_t n) {
    NPU_IVDEP for (int64_t i = 0; i < n; i++) acc[i] += x[i];
  }
};

void index_add_rows(const View& dst, const View& index, const View& src) {
  const int64_t rows = dst.shape[0], width = dst.shape[1], n = index.shape[0];
  // A stable counting sort: the sources of destination r are order[start[r]] to order[start[r + 1]].
  int64_t* start = static_cast<int64_t*>(scratch(0, kOrderSlot, static_cast<size_t>(rows + 1 + n) * sizeof(int64_t)));
  int64_t* order = start + rows + 1;
  auto row_of = [&](int64_t i) { return read_index(index, i * index.stride[0]); };
  for (int64_t r = 0; r <= rows; r++) start[r] = 0;
  for (int64_t i = 0; i < n; i++) start[row_of(i)]++;
  for (int64_t r = 0, sum = 0; r <= rows; r++) {
    const int64_t here = start[r];
    start[r] = sum;
    sum += here;
  }
  for (int64_t i = 0; i < n; i++) order[start[row_of(i)]++] = i;
  // start[r] is now the end of r
  const int64_t item = static_cast<int64_t>(dtype_size(dst.dtype));
  parallel_for(rows, kGrain / width + 1, [&](int64_t begin, int64_t end, int thread) {
    float* acc = static_cast<float*>(scratch(thread, kRowSlot, static_cast<size_t>(2 * width) * sizeof(float)));
    for (int64_t r = begin; r < end; r++) {
      const int64_t first = r ? start[r - 1] : 0;
      if (first == start[r]) continue;
      char* to = dst.data + r * dst.stride[0] * item;
      const float* held = load_floats(dst.dtype, to, dst.stride[1], width, acc);
      if (held != acc) std::memcpy(acc, held, static_cast<size_t>(width) * sizeof(float));
      for (int64_t k = first; k < start[r]; k++)
        simd<AddRowBody>(
            acc, load_floats(src.dtype, src.data + order[k] * src.stride[0] * item, src.stride[1], width, acc + width),
            width);
      store_floats(dst.dtype, acc, to, dst.stride[1], width);
    }
  });
}

}  // namespace
}  // namespace npu

using namespace npu;

extern "C" npu_status_t npu_v3_index_select(npu_stream_t stream, const npu_tensor_t* dst, const npu_tensor_t* src,
                                            int32_t dim, const npu_tensor_t* index) {
  static const char fn[] = "npu_v3_index_select";
  View vd, vs, vi;
  NPU_TRY(resolve(stream, dst, kAll, Engine::dma, false, fn, "dst", &vd));
  NPU_TRY(resolve(stream, src, kAll, Engine::dma, false, fn, "src", &vs));
  NPU_TRY(resolve(stream, index, kIndexTypes, Engine::dma, false, fn, "index", &vi));
  NPU_TRY(check_dim(fn, dim, vs));
  if (vi.rank != 1) return fail(NPU_STATUS_INVALID_VALUE, "%s: index has rank %d, expected 1", fn, vi.rank);
  int64_t shape[kMaxRank];
  for (int d = 0; d < vs.rank; d++) shape[d] = d == dim ? vi.shape[0] : vs.shape[d];
  NPU_TRY(expect_shape(fn, "dst", vd, vs.rank, shape));
  NPU_TRY(same_dtype(fn, "dst", vd, vs.dtype));
  NPU_TRY(writable(fn, "dst", vd));
  if (vd.numel() == 0) return NPU_STATUS_SUCCESS;
  Select s;
  const View* views[2] = {&vd, &vs};
  collapse(views, 2, true, ~(1u << dim), &s.loop, s.operand);
  s.index = vi;
  s.dst_step = vd.stride[dim];
  s.src_step = vs.stride[dim];
  s.size = vs.shape[dim];
  Work work{0, 2 * view_bytes(vd) + view_bytes(vi), vd.dtype, Work::dma};
  return submit(stream, fn, cycles(stream, work), [s] {
    if (in_range(fn, s.index, s.size)) index_select(s);
  });
}

extern "C" npu_status_t npu_v3_gather(npu_stream_t stream, const npu_tensor_t* dst, const npu_tensor_t* src,
                                      int32_t dim, const npu_tensor_t* index) {
  static const char fn[] = "npu_v3_gather";
  View vd, vs, vi;
  NPU_TRY(resolve(stream, dst, kAll, Engine::dma, false, fn, "dst", &vd));
  NPU_TRY(resolve(stream, src, kAll, Engine::dma, false, fn, "src", &vs));
  NPU_TRY(resolve(stream, index, kIndexTypes, Engine::dma, false, fn, "index", &vi));
  NPU_TRY(check_dim(fn, dim, vs));
  NPU_TRY(same_shape(fn, "index", vi, vd));
  NPU_TRY(same_dtype(fn, "dst", vd, vs.dtype));
  NPU_TRY(writable(fn, "dst", vd));
  NPU_TRY(fits_but_dim(fn, "dst", vd, "src", vs, dim));
  if (vd.numel() == 0) return NPU_STATUS_SUCCESS;
  Work work{0, 2 * view_bytes(vd) + view_bytes(vi), vd.dtype, Work::dma};
  return submit(stream, fn, cycles(stream, work), [vd, vs, vi, dim] {
    if (in_range(fn, vi, vs.shape[dim])) gather(vd, vs, vi, dim);
  });
}

extern "C" npu_status_t npu_v3_index_add_rows(npu_stream_t stream, const npu_tensor_t* dst, const npu_tensor_t* index,
                                              const npu_tensor_t* src) {
  static const char fn[] = "npu_v3_index_add_rows";
  View vd, vs, vi;
  NPU_TRY(resolve(stream, dst, kFloats, Engine::dma, false, fn, "dst", &vd));
  NPU_TRY(resolve(stream, index, kIndexTypes, Engine::dma, false, fn, "index", &vi));
  NPU_TRY(resolve(stream, src, kFloats, Engine::dma, false, fn, "src", &vs));
  if (vd.rank != 2 || vi.rank != 1)
    return fail(NPU_STATUS_INVALID_VALUE, "%s: dst has rank %d and index %d, expected 2 and 1", fn, vd.rank, vi.rank);
  const int64_t shape[2] = {vi.shape[0], vd.shape[1]};
  NPU_TRY(expect_shape(fn, "src", vs, 2, shape));
  NPU_TRY(same_dtype(fn, "src", vs, vd.dtype));
  NPU_TRY(writable(fn, "dst", vd));
  if (vs.numel() == 0) return NPU_STATUS_SUCCESS;
  const Work work{static_cast<double>(vs.numel()), 3 * view_bytes(vs) + view_bytes(vi), vd.dtype};
  return submit(stream, fn, cycles(stream, work), [vd, vi, vs] {
    if (in_range(fn, vi, vd.shape[0])) index_add_rows(vd, vi, vs);
  });
}
