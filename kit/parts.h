// parts.h: what the parts of the kit share: how a kernel is found and launched, and dtypes as the kernels see them.
//
// Contract: kernels are found again by a key that holds all that tells one from another; those of a part begin with
// their own name or letter, so that no two parts meet. A kernel is built once a device, by whoever needs it first.
#pragma once
#include <mutex>
#include <shared_mutex>
#include <type_traits>
#include <unordered_map>

#include "kit.h"

namespace kit {

// Lists of places that kernels read, by what they follow from: made on the host once, kept on the device.
struct Tables {
  std::mutex lock;
  std::unordered_map<std::string, std::shared_ptr<void>> known;
  size_t bytes = 0;
};
struct Device::Parts {
  std::unordered_map<std::string, std::unique_ptr<Kernel>> kernels;
  std::shared_mutex kernels_lock;
  Tables tables;
};

inline Device &device_of(void *device) { return *static_cast<Device *>(device); }
inline Stream &stream_of(void *device, void *stream) {
  return stream ? *static_cast<Stream *>(stream) : *device_of(device).stream;
}
// A stream, and the turn on it for as long as the object lives: a whole call.
struct Turn {
  Turn(void *device, void *of) : stream(stream_of(device, of)), held(stream.turn) {}
  Stream &stream;

 private:
  std::lock_guard<std::recursive_mutex> held;
};
inline Buffer buffer_of(Device &device, const uba_tensor &t) {
  return device.at(static_cast<const char *>(t.data) + t.byte_offset);
}

// The kernel of a recipe, found again by `key` alone.
template <class Make>  // Make() -> Recipe
Kernel &kernel_for(Device &device, const std::string &key, Make &&make);
Kernel &build(Device &device, const std::string &key, Recipe recipe);
template <class Make>
Kernel &kernel_for(Device &device, const std::string &key, Make &&make) {
  {
    std::shared_lock<std::shared_mutex> lock(device.parts->kernels_lock);
    auto known = device.parts->kernels.find(key);
    if (known != device.parts->kernels.end()) return *known->second;
  }
  return build(device, key, make());
}

// cache.cpp. Programs of `device` on disk, by their source: what was kept, or "".
std::string read_kept(const Device &device, const std::string &source);
void keep(const Device &device, const std::string &source, const std::string &binary);

// Arguments of a launch: a tensor stands for two, its memory and its offset in elements (long); NULL data is a NULL
// memory. A Buffer is its memory and its offset in bytes. Memory is that alone. Numbers and plain structs are passed as
// they are, and must live until the launch.
int64_t item_size(int32_t dtype);
struct Memory {
  void *handle;
};
struct Bits {  // the first `bytes` of a value
  const void *value;
  size_t bytes;
};
class Arguments {
 public:
  explicit Arguments(Device &device) : device_(device) {}
  void put(const void *value, size_t bytes, bool memory = false) { list_[count_++] = {value, bytes, memory}; }
  void add(const Memory &m) { put(&(handles_[buffers_++] = m.handle), sizeof(void *), true); }
  void add(const Buffer &b, int64_t item = 1) {
    offsets_[buffers_] = int64_t(b.offset) / item;
    const int64_t *offset = &offsets_[buffers_];
    const Memory memory{b.memory};
    add(memory), put(offset, sizeof(*offset));
  }
  void add(const uba_tensor &t) { add(t.data ? buffer_of(device_, t) : Buffer{}, item_size(t.dtype)); }
  void add(const Bits &b) { put(b.value, b.bytes); }
  template <class T>
  std::enable_if_t<std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>> add(const T &value) {
    put(&value, sizeof(value));
  }
  template <class T>
  void add(const T &&) = delete;  // gone before the launch
  // `global` is rounded up to multiples of `local`, so kernels must check their bounds. Zero work is no launch.
  void launch(Stream &stream, Kernel &kernel, Range range) const;
  static constexpr size_t kMost = 32;  // tensors; as many numbers

 private:
  Device &device_;
  size_t count_ = 0, buffers_ = 0;
  Argument list_[2 * kMost];
  void *handles_[kMost];
  int64_t offsets_[kMost];
};
template <class... Args>
void launch(Stream &stream, Kernel &kernel, const Range &range, const Args &...args) {
  static_assert(sizeof...(args) <= Arguments::kMost);
  Arguments all(stream.device);
  (all.add(args), ...);
  all.launch(stream, kernel, range);
}

// The C type in which a dtype is stored ("half", "ushort" for bfloat16, "uchar" for bool); refuses what the device
// lacks.
const char *storage_type(const Device &device, int32_t dtype);

// Defines prefix_T (as stored), prefix_R (in registers: float for float16, bfloat16, float32), prefix_LD(p, i),
// prefix_ST(p, i, x).
std::string type_macros(const Device &device, const std::string &prefix, int32_t dtype);
extern const char vector_prelude[];  // vector.cl: what these need; V must be defined before it

struct KernelTable {
  const uba_kernel *kernels;
  int64_t count;
};
KernelTable vector_kernels();  // vector.cpp
KernelTable data_kernels();    // data.cpp
KernelTable nn_kernels();      // nn.cpp
// vector.cpp
uba_status elementwise(void *device, const uba_call *call, int64_t tag);  // tag: kCopy, kFill or another form
enum { kCopy = 1, kFill = 2 };
int64_t bits_of(const uba_value &number, int32_t dtype);  // as a kernel takes it, in the first bytes
int32_t mover_dtype(int32_t dtype);                       // the integer as which elements are moved as they are
bool is_float(int32_t dtype);                             // float in registers

}  // namespace kit
