// bench_allocator.cpp: nanoseconds for allocate + release, median of several rounds.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "caching_allocator.h"
#include "fake_adapter.h"

using torchfl::CachingAllocator;

namespace {

template <typename Function>
double median_ns(Function function) {
  std::vector<double> rounds;
  for (int round = 0; round < 15; ++round) {
    const int count = 200000;
    auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) function(i);
    auto end = std::chrono::steady_clock::now();
    rounds.push_back(std::chrono::duration<double, std::nano>(end - begin).count() / count);
  }
  std::sort(rounds.begin(), rounds.end());
  return rounds[rounds.size() / 2];
}

}  // namespace

int main() {
  fake::Fake chip;
  auto device = chip.device();
  CachingAllocator memory(device.get(), 256);
  std::vector<CachingAllocator::Block*> held;
  for (int i = 0; i < 2000; ++i) held.push_back(memory.allocate(size_t(512 + i % 64 * 1024), nullptr));
  for (size_t i = 0; i < held.size(); i += 2) memory.release(held[i]);

  std::printf("same small size         %6.1f ns\n",
              median_ns([&](int) { memory.release(memory.allocate(4096, nullptr)); }));
  std::printf("64 small sizes in turn  %6.1f ns\n",
              median_ns([&](int i) { memory.release(memory.allocate(size_t(64 + i % 64 * 512), nullptr)); }));
  std::printf("same large size         %6.1f ns\n",
              median_ns([&](int) { memory.release(memory.allocate(size_t(3) << 20, nullptr)); }));
  std::vector<CachingAllocator::Block*> window(16, nullptr);
  std::printf("16 live, mixed sizes    %6.1f ns\n", median_ns([&](int i) {
                auto& slot = window[size_t(i) % window.size()];
                if (slot != nullptr) memory.release(slot);
                slot = memory.allocate(size_t(1) << (9 + i % 13), nullptr);
              }));
}
