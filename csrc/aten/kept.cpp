// kept.cpp: see kept.h.
#include "kept.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "transfer.h"

namespace torchfl {
namespace {

using Words = c10::SmallVector<int64_t, 24>;

struct Entry {
  Words words;
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  at::Tensor stand_in;
  uint64_t last_used;
};

// Never destroyed: tensors must not be freed after the device has gone.
struct Store {
  std::mutex mutex;
  std::unordered_map<const c10::StorageImpl*, std::vector<Entry>> entries;
  std::unordered_map<int, uint64_t> bytes, limits;  // by device
  uint64_t clock = 0;
};
Store& store() {
  static Store* only = new Store;
  return *only;
}

Words words_of(const at::Tensor& tensor, const StandInForm& form, void* stream) {
  Words words;
  auto list = [&](c10::IntArrayRef values) {
    words.push_back(int64_t(values.size()));
    words.append(values.begin(), values.end());
  };
  words.push_back(int64_t(reinterpret_cast<intptr_t>(tensor.storage().data())));
  words.push_back(tensor.is_inference() ? -1 : int64_t(tensor._version()));
  words.push_back(tensor.storage_offset());
  words.push_back(int64_t(tensor.scalar_type()) << 8 | int64_t(form.dtype));
  words.push_back(int64_t(reinterpret_cast<intptr_t>(stream)));
  list(tensor.sizes());
  list(tensor.strides());
  list(form.sizes);
  list(form.strides);
  return words;
}

uint64_t bytes_of(const at::Tensor& tensor) { return tensor.storage().nbytes(); }

uint64_t limit_of(Store& s, int device) {
  auto known = s.limits.find(device);
  if (known != s.limits.end()) return known->second;
  uint64_t free_bytes = 0, total = 0;
  runtime::device(device).device->memory_info(&free_bytes, &total);
  return s.limits[device] = std::min<uint64_t>(total / 8, uint64_t(256) << 20);
}

// The stand-ins that are given up, so that the caller frees them after it has let go of the lock.
using Freed = std::vector<at::Tensor>;

template <class Gone>
void remove_if(Store& s, std::vector<Entry>& list, Freed& freed, Gone gone) {
  for (size_t i = list.size(); i-- > 0;) {
    if (!gone(list[i])) continue;
    s.bytes[list[i].stand_in.device().index()] -= bytes_of(list[i].stand_in);
    freed.push_back(std::move(list[i].stand_in));
    list.erase(list.begin() + ptrdiff_t(i));
    kept::g_count.fetch_sub(1, std::memory_order_relaxed);
  }
}

template <class Gone>
void remove_everywhere(Store& s, Freed& freed, Gone gone) {
  for (auto at = s.entries.begin(); at != s.entries.end();) {
    remove_if(s, at->second, freed, gone);
    at = at->second.empty() ? s.entries.erase(at) : std::next(at);
  }
}

}  // namespace

namespace kept {

std::atomic<int> g_count{0};

void forget(const c10::StorageImpl* storage) {
  Freed freed;
  Store& s = store();
  std::lock_guard<std::mutex> lock(s.mutex);
  if (block_of(storage->data_ptr()) == nullptr && !unified::lies_on_host(storage->data_ptr())) {
    // Memory of another storage, which came back by DLPack.
    const auto start = reinterpret_cast<intptr_t>(storage->data()), end = start + intptr_t(storage->nbytes());
    remove_everywhere(s, freed, [&](const Entry& entry) {
      const c10::intrusive_ptr<c10::StorageImpl> owner = entry.storage.lock();
      return !owner || (entry.words[0] < end && entry.words[0] + intptr_t(owner->nbytes()) > start);
    });
    return;
  }
  auto found = s.entries.find(storage);
  if (found == s.entries.end()) return;
  remove_if(s, found->second, freed, [](const Entry&) { return true; });
  s.entries.erase(found);
}

}  // namespace kept

at::Tensor find_kept(const at::Tensor& tensor, const StandInForm& form, void* stream) {
  if (kept::g_count.load(std::memory_order_relaxed) == 0) return {};
  const Words words = words_of(tensor, form, stream);
  Store& s = store();
  std::lock_guard<std::mutex> lock(s.mutex);
  auto found = s.entries.find(tensor.storage().unsafeGetStorageImpl());
  if (found == s.entries.end()) return {};
  for (Entry& entry : found->second) {
    if (entry.words != words || entry.storage.expired()) continue;
    entry.last_used = ++s.clock;
    return entry.stand_in;
  }
  return {};
}

void keep(const at::Tensor& tensor, const StandInForm& form, void* stream, const at::Tensor& stand_in) {
  const int device = stand_in.device().index();
  if (tensor.is_inference()) return;  // it has no version counter
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  if (block_of(memory) == nullptr && !unified::lies_on_host(memory)) return;  // another storage may write to it
  Words words = words_of(tensor, form, stream);
  Freed freed;
  Store& s = store();
  std::lock_guard<std::mutex> lock(s.mutex);
  const uint64_t bytes = bytes_of(stand_in), limit = limit_of(s, device);
  if (bytes > limit) return;
  // What belongs to tensors that are gone, or have changed since.
  remove_everywhere(s, freed, [](const Entry& entry) { return entry.storage.expired(); });
  std::vector<Entry>& own = s.entries[tensor.storage().unsafeGetStorageImpl()];
  remove_if(s, own, freed, [&](const Entry& entry) { return entry.words[1] != words[1]; });
  own.push_back({std::move(words), c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl()),
                 stand_in, ++s.clock});
  s.bytes[device] += bytes;
  kept::g_count.fetch_add(1, std::memory_order_relaxed);
  while (s.bytes[device] > limit) {
    uint64_t oldest = s.clock;
    for (const auto& [storage, list] : s.entries) {
      for (const Entry& entry : list) {
        if (entry.stand_in.device().index() == device) oldest = std::min(oldest, entry.last_used);
      }
    }
    remove_everywhere(s, freed, [&](const Entry& entry) { return entry.last_used == oldest; });
  }
}

bool drop_kept(int device) {
  if (kept::g_count.load(std::memory_order_relaxed) == 0) return false;
  Freed freed;
  {
    Store& s = store();
    std::lock_guard<std::mutex> lock(s.mutex);
    remove_everywhere(s, freed, [&](const Entry& entry) { return entry.stand_in.device().index() == device; });
  }
  return !freed.empty();
}

}  // namespace torchfl
