// caching_allocator.h: stream-ordered caching allocator over one Device, torch-free.
//
// Contract: a block freed on its own stream is handed out again on that stream at once (work is in order there);
// a block that other streams used (record_stream) is handed out again only after events on those streams have
// passed. When the device is out of memory, cached blocks are freed (after a synchronise) and the allocation is
// retried; only then Error(out_of_memory) is thrown, whose text gives requested, allocated, cached, free and total
// bytes and a hint. Zero bytes give no block. Addresses are multiples of `alignment`. Blocks are rounded up to 512
// bytes; requests below 1 MiB come from 2 MiB segments, others from segments rounded up to 2 MiB (20 MiB for up to 10
// MiB), split and coalesced within a segment. Thread-safe; one short critical section per call (a spin lock), no call
// into the device while it is held on the hit path.
#pragma once
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "device.h"

namespace torchfl {

struct Counter {  // as torch.cuda.memory_stats names them
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
};

struct MemoryStats {
  Counter allocation, segment, active, inactive_split;  // counts
  Counter allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  int64_t num_alloc_retries = 0, num_ooms = 0, num_device_alloc = 0, num_device_free = 0, num_sync_all_streams = 0;
};

// What happened to memory, in an order in which it can be replayed for each address.
struct MemoryEvent {
  enum class Action : uint8_t {
    alloc,           // a block, for a tensor
    free_requested,  // the tensor is gone; other streams may still use the block
    free_completed,  // the block can be handed out again
    segment_alloc,   // memory from the device
    segment_free,    // and back
  };
  Action action = Action::alloc;
  void* ptr = nullptr;
  size_t size = 0;       // rounded, as the statistics count it
  size_t requested = 0;  // alloc: as asked
  void* stream = nullptr;
};

// Is told of every MemoryEvent, on the thread that caused it. Of segments it is told while a lock of the allocator is
// held: it must not call back then. `alloc` comes before the caller has the block, the others before anybody else can.
class MemoryListener {
 public:
  virtual ~MemoryListener() = default;
  virtual void happened(const MemoryEvent& event) noexcept = 0;
};

class CachingAllocator {
 public:
  struct Block {
    void* ptr = nullptr;
    size_t size = 0;       // rounded
    size_t requested = 0;  // as asked
    void* stream = nullptr;
    void* owner = nullptr;  // free for whoever allocated the block; the allocator never looks at it
    // private to the allocator from here on
    struct Segment* segment = nullptr;
    Block *prev = nullptr, *next = nullptr;            // neighbours in the segment, by address
    Block *free_prev = nullptr, *free_next = nullptr;  // in the list of free blocks of its size
    bool in_use = false;
    int pending_events = 0;
    std::vector<void*> used_by;  // other streams
  };
  struct SnapshotBlock {
    uint64_t address, size, requested;
    std::string state;  // active_allocated, active_pending_free, inactive
  };
  struct SnapshotSegment {
    uint64_t address, total_size, stream;
    std::string type;  // small, large
    std::vector<SnapshotBlock> blocks;
  };

  CachingAllocator(Device* device, size_t alignment);
  ~CachingAllocator();

  Block* allocate(size_t bytes, void* stream);  // bytes > 0; throws Error
  void release(Block* block) noexcept;          // never throws, also on a lost device
  void record_stream(Block* block, void* stream);
  void empty_cache();              // synchronises, then frees every segment that is wholly free
  void set_limit(uint64_t bytes);  // 0 = no limit (memory fraction)
  size_t alignment() const { return alignment_; }
  // NULL: nobody listens, which costs each call one load. A listener lives as long as the process.
  void set_listener(MemoryListener* listener);

  MemoryStats stats() const;
  void reset_peak();
  void reset_accumulated();
  std::vector<SnapshotSegment> snapshot() const;
  std::string summary_line() const;  // "1.5 GiB allocated, 0.2 GiB cached, ..."

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  Device* device_;
  size_t alignment_;
};

}  // namespace torchfl
