// autograd_threads.cpp: see autograd_threads.h.
//
// What is done here is what Engine::start_device_threads does for the devices that are there at its time, by the
// members that it gives to classes derived from it. They are PyTorch 2.13's, for which this library is compiled.
#include "autograd_threads.h"

#include <torch/csrc/autograd/engine.h>

#include <thread>

#include "runtime.h"

namespace torchfl {
namespace {

struct EngineMembers : torch::autograd::Engine {
  static auto pool() { return &EngineMembers::thread_pool_shared_; }
  static auto queues() { return &EngineMembers::device_ready_queues_; }
};

}  // namespace

void give_devices_autograd_threads() {
  torch::autograd::Engine& engine = torch::autograd::Engine::get_default_engine();
  if (engine.*EngineMembers::pool() == nullptr) return;  // it has not counted yet
  auto& queues = engine.*EngineMembers::queues();
  for (auto index = int(queues.size()); index < runtime::device_count(); index++) {
    queues.push_back(std::make_shared<torch::autograd::ReadyQueue>());
    // The engine's destructor ends it, as it does its own.
    std::thread([&engine, index, queue = queues.back()] {
      engine.thread_init(index, queue, /*should_increment=*/true);
    }).detach();
  }
}

}  // namespace torchfl
