// runtime_parallel.cpp: the compute threads that all streams share, and their scratch memory.
//
// Contract: one parallel region at a time; a stream that finds the threads taken computes alone rather than wait. A
// region's caller takes part in it. Scratch memory belongs to the stream whose kernel runs, so streams never share it.
#include <sys/mman.h>

#include <algorithm>
#include <cfenv>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "device.h"

namespace npu {

constexpr int kScratchSlots = 16;

struct ScratchSet {
  struct Block {
    void* data = nullptr;
    size_t bytes = 0;
  };
  std::vector<Block> blocks;  // threads x slots
};

namespace {

thread_local ScratchSet* t_scratch = nullptr;
thread_local int t_thread = -1;  // the number of this thread in the region it is in

struct Region {
  void (*body)(void*, int64_t, int64_t, int);
  void* context;
  int64_t n, chunk;
  ScratchSet* scratch;
  std::atomic<int64_t> next{0};
};

class Pool {
 public:
  explicit Pool(int threads) : threads_(threads) {
    for (int i = 1; i < threads; i++) std::thread([this, i] { help(i); }).detach();
  }
  int threads() const { return threads_; }

  bool run(Region* region) {
    if (!mutex_.try_lock()) return false;
    std::lock_guard<std::mutex> lock(mutex_, std::adopt_lock);
    region_.store(region);
    if (sleepers_.load() > 0) {
      std::lock_guard<std::mutex> wake(sleep_mutex_);
      wake_.notify_all();
    }
    work(region, 0);
    // Closed to newcomers first, then wait for those inside.
    region_.store(nullptr);
    for (Spinner spinner; entered_.load() > 0;) {
      if (!spinner.again()) std::this_thread::yield();
    }
    return true;
  }

 private:
  static void work(Region* r, int thread) {
    t_thread = thread;
    for (;;) {
      int64_t begin = r->next.fetch_add(r->chunk);
      if (begin >= r->n) break;
      r->body(r->context, begin, std::min(begin + r->chunk, r->n), thread);
    }
    t_thread = -1;
  }

  void help(int thread) {
    std::fesetenv(FE_DFL_ENV);
    for (;;) {
      // Announce first, then look again: run() clears region_ before it reads entered_.
      if (region_.load(std::memory_order_relaxed)) {
        entered_.fetch_add(1);
        Region* r = region_.load();
        if (r && r->next.load(std::memory_order_relaxed) < r->n) {
          t_scratch = r->scratch;
          work(r, thread);
        } else {
          cpu_relax();
        }
        entered_.fetch_sub(1);
        if (r) await_change(r);
        continue;
      }
      await_region();
    }
  }

  // The region just left has no work: do not hammer its counter until it closes.
  void await_change(Region* r) {
    // Not for ever: a region of the same address may have opened meanwhile.
    for (Spinner spinner; region_.load(std::memory_order_relaxed) == r && spinner.again();) {
    }
  }

  void await_region() {
    for (Spinner spinner; spinner.again();) {
      if (region_.load(std::memory_order_relaxed)) return;
    }
    std::unique_lock<std::mutex> lock(sleep_mutex_);
    sleepers_.fetch_add(1);
    wake_.wait(lock, [&] { return region_.load() != nullptr; });
    sleepers_.fetch_sub(1);
  }

  int threads_;
  std::mutex mutex_;
  alignas(64) std::atomic<Region*> region_{nullptr};
  alignas(64) std::atomic<int> entered_{0};
  std::atomic<int> sleepers_{0};
  std::mutex sleep_mutex_;
  std::condition_variable wake_;
};

// Made by the first parallel loop, never destroyed: its threads outlive main().
Pool& pool() {
  static auto* p = new Pool(config().threads);
  return *p;
}

}  // namespace

int compute_threads() { return config().threads; }

void parallel_chunks(int64_t n, int64_t grain, void (*body)(void* context, int64_t begin, int64_t end, int thread),
                     void* context) {
  if (n <= 0) return;
  int threads = config().threads;
  grain = std::max<int64_t>(grain, 1);
  if (t_thread >= 0) return body(context, 0, n, t_thread);  // nested: the threads are taken
  if (n <= grain || threads == 1) return body(context, 0, n, 0);
  Region region;
  region.body = body;
  region.context = context;
  region.n = n;
  region.chunk = std::max(grain, (n + 16 * threads - 1) / (16 * threads));
  region.scratch = t_scratch;
  if (!pool().run(&region)) body(context, 0, n, 0);
}

ScratchSet* new_scratch_set() {
  auto* set = new ScratchSet;
  set->blocks.resize(size_t(config().threads) * kScratchSlots);
  return set;
}

void bind_scratch(ScratchSet* set) { t_scratch = set; }

void* scratch(int thread, int slot, size_t bytes) {
  if (!t_scratch) t_scratch = new_scratch_set();
  if (thread < 0 || thread >= config().threads || slot < 0 || slot >= kScratchSlots) {
    std::fprintf(stderr, "npu: scratch(%d, %d): expected a thread below %d and a slot below %d\n", thread, slot,
                 config().threads, kScratchSlots);
    std::abort();
  }
  ScratchSet::Block& block = t_scratch->blocks[size_t(thread) * kScratchSlots + slot];
  if (block.bytes < bytes) {
    std::free(block.data);
    block.bytes = (bytes + bytes / 8 + 4095) / 4096 * 4096;
    block.data = std::aligned_alloc(4096, block.bytes);
    if (!block.data) {
      std::fprintf(stderr, "npu: no host memory for %zu bytes of scratch\n", block.bytes);
      std::abort();
    }
  }
  return block.data;
}

}  // namespace npu
