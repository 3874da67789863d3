// rows.cpp: operands: what is acceptable, how they are walked, how their numbers are read and written.
#include "rows.h"

#include <cinttypes>
#include <cstring>

#include "numbers.h"

namespace x1 {

int64_t item_size(int32_t dtype) {
  static const int64_t sizes[] = {0, 4, 2, 1, 4, 8, 1, 1, 1, 2, 4, 8};
  return dtype > 0 && dtype <= X1_DTYPE_BITS64 ? sizes[dtype] : 0;
}

int64_t View::elements() const {
  int64_t n = 1;
  for (int32_t d = 0; d < rank; d++) n *= shape[d];
  return n;
}

namespace {
const char* const dtype_names[] = {"a number", "FLOAT32", "FLOAT16", "UINT8",  "INT32",  "INT64",
                                   "BOOL",     "INT8",    "BITS8",   "BITS16", "BITS32", "BITS64"};
}

bool Command::look(const char* what, const x1_view_t* x, uint32_t dtypes, View* out, bool optional) const {
  *out = View{};
  if (!x && optional) return true;
  if (!x) return fail(X1_EVALUE, "%s: %s: NULL", name_, what), false;
  if (x->dtype < 0 || x->dtype > X1_DTYPE_BITS64)
    return fail(X1_EUNSUPPORTED, "%s: %s: %d is no dtype", name_, what, x->dtype), false;
  if (!(dtypes & bit(x->dtype)))
    return fail(X1_EUNSUPPORTED, "%s: %s: cannot be %s", name_, what, dtype_names[x->dtype]), false;
  if (x->rank < 0 || x->rank > X1_MAX_RANK)
    return fail(X1_EUNSUPPORTED, "%s: %s: rank %d; the chip has %d dimensions", name_, what, x->rank, X1_MAX_RANK),
           false;
  out->data = static_cast<char*>(x->data);
  out->dtype = x->dtype;
  out->rank = x->rank;
  uint64_t last = 0, span = 0;
  bool empty = false, overflow = false;
  for (int32_t d = 0; d < x->rank; d++) {
    if (x->shape[d] < 0 || x->stride[d] < 0)
      return fail(X1_EVALUE, "%s: %s: a negative size or stride", name_, what), false;
    out->shape[d] = x->shape[d];
    out->stride[d] = x->stride[d];
    empty |= !x->shape[d];
    overflow |= x->shape[d] && __builtin_mul_overflow(uint64_t(x->shape[d]) - 1, uint64_t(x->stride[d]), &span);
    overflow |= x->shape[d] && __builtin_add_overflow(last, span, &last);
  }
  if (empty) return true;
  overflow |= __builtin_mul_overflow(last + 1, uint64_t(item_size(x->dtype)), &span);
  if (overflow) return fail(X1_EVALUE, "%s: %s: too large", name_, what), false;
  if (reinterpret_cast<uintptr_t>(x->data) % uint64_t(item_size(x->dtype)))
    return fail(X1_EADDRESS, "%s: %s: %p is no multiple of the element's size", name_, what, x->data), false;
  return reachable(name_, what, x->data, span);
}

bool Command::look_like(const char* what, const x1_view_t* x, const View& like, View* out) const {
  if (x && x->dtype == X1_NUMBER) {
    *out = like;
    for (int64_t& stride : out->stride) stride = 0;
    out->data = nullptr;
    out->is_number = true;
    out->real = x->real;
    out->integer = like.dtype == X1_DTYPE_BOOL ? x->integer != 0 : x->integer;
    return true;
  }
  return look(what, x, bit(like.dtype), out) && same_shape(what, *out, like);
}

bool Command::same_shape(const char* what, const View& a, const View& b) const {
  bool same = a.rank == b.rank;
  for (int32_t d = 0; same && d < a.rank; d++) same = a.shape[d] == b.shape[d];
  return same || (fail(X1_EVALUE, "%s: %s: its shape is not the other operands'", name_, what), false);
}

Rows::Rows(std::initializer_list<const View*> views) {
  const View* const* v = views.begin();
  count_ = int(views.size());
  for (int k = 0; k < count_; k++) p_[k] = v[k]->data;
  for (int32_t d = 0; d < v[0]->rank; d++) {
    int64_t n = v[0]->shape[d];
    if (n == 0) left_ = 0;
    if (n == 1) continue;
    bool join = rank_ > 0;
    for (int k = 0; k < count_; k++) {
      int64_t step = v[k]->is_number ? 0 : v[k]->stride[d] * item_size(v[k]->dtype);
      join = join && step_[k][rank_ - 1] == step * n;
      step_[k][rank_] = step;
    }
    if (join) {
      shape_[rank_ - 1] *= n;
      for (int k = 0; k < count_; k++) step_[k][rank_ - 1] = step_[k][rank_];
    } else {
      shape_[rank_++] = n;
    }
  }
  if (rank_) {
    length_ = shape_[--rank_];
    for (int k = 0; k < count_; k++) stride_[k] = step_[k][rank_] / item_size(v[k]->dtype);
  }
  for (int d = 0; d < rank_; d++) left_ *= shape_[d];
}

void Rows::next() {
  if (--left_ <= 0) return;
  for (int d = rank_; d-- > 0;) {
    for (int k = 0; k < count_; k++) p_[k] += step_[k][d];
    if (++index_[d] < shape_[d]) return;
    index_[d] = 0;
    for (int k = 0; k < count_; k++) p_[k] -= step_[k][d] * shape_[d];
  }
}

namespace {

template <class T>
const T* as(const char* p) {
  return reinterpret_cast<const T*>(p);
}

template <class T, class To>
void widen(const char* first, int64_t stride, int64_t n, To* out, int64_t zero = 0) {
  for (int64_t i = 0; i < n; i++) out[i] = To(as<T>(first)[i * stride]) - To(zero);
}

template <class T>
void narrow(const int64_t* values, char* first, int64_t stride, int64_t n, int64_t zero = 0) {
  for (int64_t i = 0; i < n; i++) reinterpret_cast<T*>(first)[i * stride] = T(values[i] + zero);
}

}  // namespace

const float* load(const View& v, const char* first, int64_t stride, int64_t n, float* buffer) {
  if (v.is_number) {
    for (int64_t i = 0; i < n; i++) buffer[i] = float(v.real);
  } else if (v.dtype == X1_DTYPE_FLOAT32) {
    if (stride == 1) return as<float>(first);
    widen<float>(first, stride, n, buffer);
  } else if (stride == 1) {
    silicon::half_to_float(as<uint16_t>(first), buffer, n);
  } else {
    for (int64_t i = 0; i < n; i++) buffer[i] = silicon::half_to_float1(as<uint16_t>(first)[i * stride]);
  }
  return buffer;
}

const int64_t* load(const View& v, const char* first, int64_t stride, int64_t n, int64_t* buffer) {
  if (v.is_number) {
    for (int64_t i = 0; i < n; i++) buffer[i] = v.integer;
  } else if (v.dtype == X1_DTYPE_INT64) {
    if (stride == 1) return as<int64_t>(first);
    widen<int64_t>(first, stride, n, buffer);
  } else if (v.dtype == X1_DTYPE_INT32) {
    widen<int32_t>(first, stride, n, buffer);
  } else if (v.dtype == X1_DTYPE_INT8) {
    widen<int8_t>(first, stride, n, buffer);
  } else {
    widen<uint8_t>(first, stride, n, buffer, v.dtype == X1_DTYPE_UINT8 ? 128 : 0);
  }
  return buffer;
}

float* place(const View& v, char* first, int64_t stride, float* buffer) {
  return v.dtype == X1_DTYPE_FLOAT32 && stride == 1 ? reinterpret_cast<float*>(first) : buffer;
}
int64_t* place(const View& v, char* first, int64_t stride, int64_t* buffer) {
  return v.dtype == X1_DTYPE_INT64 && stride == 1 ? reinterpret_cast<int64_t*>(first) : buffer;
}

void store(const View& v, const float* values, char* first, int64_t stride, int64_t n) {
  if (place(v, first, stride, static_cast<float*>(nullptr)) == values) return;
  if (v.dtype == X1_DTYPE_FLOAT32) {
    for (int64_t i = 0; i < n; i++) reinterpret_cast<float*>(first)[i * stride] = values[i];
  } else if (stride == 1) {
    silicon::float_to_half(values, reinterpret_cast<uint16_t*>(first), n);
  } else {
    for (int64_t i = 0; i < n; i++) reinterpret_cast<uint16_t*>(first)[i * stride] = silicon::float_to_half1(values[i]);
  }
}

void store(const View& v, const int64_t* values, char* first, int64_t stride, int64_t n) {
  if (place(v, first, stride, static_cast<int64_t*>(nullptr)) == values) return;
  switch (v.dtype) {
    case X1_DTYPE_INT64:
      return narrow<int64_t>(values, first, stride, n);
    case X1_DTYPE_INT32:
      return narrow<int32_t>(values, first, stride, n);
    case X1_DTYPE_UINT8:
      return narrow<uint8_t>(values, first, stride, n, 128);
    case X1_DTYPE_INT8:
      return narrow<int8_t>(values, first, stride, n);
    default:
      for (int64_t i = 0; i < n; i++) reinterpret_cast<uint8_t*>(first)[i * stride] = values[i] != 0;
  }
}

}  // namespace x1
