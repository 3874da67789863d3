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
  at::Tensor stand_in;  // undefined: the entry of one more source of what another entry holds
  int device;
  uint64_t bytes;
  uint64_t last_used;
  uint64_t group = 0;  // equal for the sources of one derived tensor
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

void append_list(Words& words, c10::IntArrayRef values) {
  words.push_back(int64_t(values.size()));
  words.append(values.begin(), values.end());
}

// Begins with the address and the version.
Words words_of(const at::Tensor& tensor, int64_t form, void* stream) {
  Words words;
  words.push_back(int64_t(reinterpret_cast<intptr_t>(tensor.storage().data())));
  words.push_back(tensor.is_inference() ? -1 : int64_t(tensor._version()));
  words.push_back(tensor.storage_offset());
  words.push_back(int64_t(tensor.scalar_type()));
  words.push_back(form);
  words.push_back(int64_t(reinterpret_cast<intptr_t>(stream)));
  append_list(words, tensor.sizes());
  append_list(words, tensor.strides());
  return words;
}

Words words_of(const at::Tensor& tensor, const StandInForm& form, void* stream) {
  Words words = words_of(tensor, int64_t(form.dtype), stream);
  append_list(words, form.sizes);
  append_list(words, form.strides);
  return words;
}

// Whether every write to its memory comes to our notice.
bool can_be_watched(const at::Tensor& tensor) {
  if (tensor.is_inference()) return false;  // it has no version counter
  const c10::DataPtr& memory = tensor.storage().data_ptr();
  return block_of(memory) != nullptr || unified::lies_on_host(memory);  // else another storage may write to it
}

const c10::StorageImpl* storage_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

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
    s.bytes[list[i].device] -= list[i].bytes;
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
  auto found = s.entries.find(storage_of(tensor));
  if (found == s.entries.end()) return {};
  for (Entry& entry : found->second) {
    if (entry.words != words || entry.storage.expired()) continue;
    entry.last_used = ++s.clock;
    return entry.stand_in;
  }
  return {};
}

namespace {

// Under the lock, for an entry whose bytes are within the limit.
void add_entry(Store& s, Freed& freed, const at::Tensor& tensor, Entry entry) {
  std::vector<Entry>& own = s.entries[storage_of(tensor)];
  remove_if(s, own, freed, [&](const Entry& other) { return other.words[1] != entry.words[1]; });
  s.bytes[entry.device] += entry.bytes;
  own.push_back(std::move(entry));
  kept::g_count.fetch_add(1, std::memory_order_relaxed);
}

void forget_gone(Store& s, Freed& freed) {
  remove_everywhere(s, freed, [](const Entry& entry) { return entry.storage.expired(); });
}

void keep_to_limit(Store& s, Freed& freed, int device) {
  const uint64_t limit = limit_of(s, device);
  while (s.bytes[device] > limit) {
    uint64_t oldest = s.clock;
    for (const auto& [storage, list] : s.entries) {
      for (const Entry& entry : list) {
        if (entry.device == device) oldest = std::min(oldest, entry.last_used);
      }
    }
    remove_everywhere(s, freed, [&](const Entry& entry) { return entry.last_used == oldest; });
  }
}

c10::weak_intrusive_ptr<c10::StorageImpl> weakly(const at::Tensor& tensor) {
  return c10::weak_intrusive_ptr<c10::StorageImpl>(tensor.storage().getWeakStorageImpl());
}

}  // namespace

void keep(const at::Tensor& tensor, const StandInForm& form, void* stream, const at::Tensor& stand_in) {
  const int device = stand_in.device().index();
  if (!can_be_watched(tensor)) return;
  Words words = words_of(tensor, form, stream);
  Freed freed;
  Store& s = store();
  std::lock_guard<std::mutex> lock(s.mutex);
  const uint64_t bytes = stand_in.storage().nbytes();
  if (bytes > limit_of(s, device)) return;
  forget_gone(s, freed);
  add_entry(s, freed, tensor, {std::move(words), weakly(tensor), stand_in, device, bytes, ++s.clock});
  keep_to_limit(s, freed, device);
}

at::Tensor kept_or_made(at::ArrayRef<at::Tensor> sources, int64_t key, const std::function<at::Tensor()>& make) {
  TORCH_CHECK_VALUE(!sources.empty(), "kept: a tensor is derived from one source or more");
  for (const at::Tensor& source : sources) {
    TORCH_CHECK_VALUE(source.defined() && source.device().type() == kDevice && source.device() == sources[0].device(),
                      "kept: the sources of a derived tensor are tensors of one device");
    if (!can_be_watched(source)) return make();
  }
  // No dtype has this number, so a stand-in is never taken for a derived tensor. One stream after the other may use it:
  // what is derived is the maker's, who has to have finished it.
  const int64_t form = int64_t(c10::ScalarType::NumOptions) + 1;
  auto words_with_key = [&](size_t i) {
    Words words = words_of(sources[i], form, nullptr);
    words.push_back(key);
    words.push_back(int64_t(i) << 32 | int64_t(sources.size()));
    return words;
  };
  c10::SmallVector<Words, 8> words;
  for (size_t i = 0; i < sources.size(); i++) words.push_back(words_with_key(i));
  // The entry of source i, of a group if it is given.
  auto find = [&](Store& s, size_t i, uint64_t group) -> Entry* {
    auto found = s.entries.find(storage_of(sources[i]));
    if (found == s.entries.end()) return nullptr;
    for (Entry& entry : found->second) {
      if (entry.words == words[i] && !entry.storage.expired() && (group == 0 || entry.group == group)) return &entry;
    }
    return nullptr;
  };
  Store& s = store();
  {
    std::lock_guard<std::mutex> lock(s.mutex);
    if (Entry* first = find(s, 0, 0)) {
      c10::SmallVector<Entry*, 8> entries{first};
      while (entries.size() < sources.size() && entries.back() != nullptr)
        entries.push_back(find(s, entries.size(), first->group));
      if (entries.back() != nullptr) {
        s.clock++;
        for (Entry* entry : entries) entry->last_used = s.clock;
        return first->stand_in;
      }
    }
  }
  at::Tensor made = make();
  const int device = sources[0].device().index();
  const uint64_t bytes = uint64_t(made.numel()) * made.itemsize();
  Freed freed;
  std::lock_guard<std::mutex> lock(s.mutex);
  if (bytes > limit_of(s, device)) return made;
  forget_gone(s, freed);
  const uint64_t group = ++s.clock;
  if (Entry* stale = find(s, 0, 0)) {  // one of the other sources has changed since
    const uint64_t gone = stale->group;
    remove_everywhere(s, freed, [&](const Entry& entry) { return entry.group == gone; });
  }
  for (size_t i = 0; i < sources.size(); i++) {
    add_entry(s, freed, sources[i],
              {words[i], weakly(sources[i]), i == 0 ? made : at::Tensor(), device, i == 0 ? bytes : 0, group, group});
  }
  keep_to_limit(s, freed, device);
  return made;
}

bool drop_kept(int device) {
  if (kept::g_count.load(std::memory_order_relaxed) == 0) return false;
  Freed freed;
  {
    Store& s = store();
    std::lock_guard<std::mutex> lock(s.mutex);
    remove_everywhere(s, freed, [&](const Entry& entry) { return entry.device == device; });
  }
  return !freed.empty();
}

}  // namespace torchfl
