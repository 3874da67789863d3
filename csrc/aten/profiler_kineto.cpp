// profiler_kineto.cpp: `torch.profiler` sees our devices: Kineto asks this for the activities of a trace.
//
// Contract: Kineto makes one session for each trace, of whatever activities. Rows of the result: each device is a
// process of the trace, each of its streams a thread; the engine's calls (path and kernel) stand on the host's threads,
// between PyTorch's operator and the work that it caused, and arrows lead from them to it. Pointers that the logger is
// given stay valid because the buffer that owns them is handed over (getTraceBuffer).
#define USE_KINETO
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>
#include <torch/csrc/profiler/stubs/base.h>

#include <set>

#include "memory_history.h"
#include "profiler.h"
#include "runtime.h"

namespace torchfl {
namespace {

using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

ActivityType type_of(const profiler::Activity& activity) {
  switch (activity.kind) {
    case Work::Kind::copy:
      return ActivityType::GPU_MEMCPY;
    case Work::Kind::fill:
      return ActivityType::GPU_MEMSET;
    case Work::Kind::synchronize:
      return ActivityType::PRIVATEUSE1_RUNTIME;
    case Work::Kind::kernel:
    case Work::Kind::program:
      break;
  }
  return ActivityType::CONCURRENT_KERNEL;
}

std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) out += c;
  }
  return out;
}

// "npu_v3_add", or where there is no kernel of that name, the path: "composed program", "cpu".
std::string name_of(const OpCounters& counters) {
  if (counters.target.empty() || counters.target == counters.path) return counters.path + " " + counters.op;
  return counters.path + " " + counters.target;
}

class KinetoSession final : public libkineto::IActivityProfilerSession {
 public:
  KinetoSession(bool device, std::set<ActivityType> wanted) : device_(device), wanted_(std::move(wanted)) {}
  ~KinetoSession() override {
    if (reporting_) memory_history::report_to_pytorch(false);
  }

  void start() override {
    status_ = libkineto::TraceStatus::RECORDING;
    memory_history::report_to_pytorch(true);
    reporting_ = true;
    if (device_) session_ = std::make_unique<profiler::Session>();
  }

  void stop() override {
    if (session_) recording_ = session_->stop();
    session_.reset();
    try {  // Kineto's callers cannot be told, so the user's log is
      if (recording_.failure) std::rethrow_exception(recording_.failure);
    } catch (const std::exception& error) {
      stats::log(3, std::string("while a profile was recorded, work of a device failed: ") + error.what());
    }
    if (reporting_) memory_history::report_to_pytorch(false);
    reporting_ = false;
    status_ = libkineto::TraceStatus::PROCESSING;
  }

  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override { process(logger, {}); }
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t,
                    int64_t) override {
    process(logger, linked);
  }

  // `process` tells of each device, since here is room for one. What is said here instead is what Kineto says of the
  // host anyway: if no session had a device to tell of, it would add sixteen GPUs of its own.
  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    const int32_t process = libkineto::processId();
    return std::make_unique<libkineto::DeviceInfo>(
        libkineto::DeviceInfo{process, process, libkineto::processName(process), "CPU"});
  }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { profiler::push_correlation(int64_t(id)); }
  void popCorrelationId() override { profiler::pop_correlation(); }

 private:
  GenericTraceActivity& add(ActivityType type, const std::string& name) {
    buffer_->emplace_activity(buffer_->span, type, name);
    return *buffer_->activities.back();
  }

  void process(libkineto::ActivityLogger& logger, const libkineto::getLinkedActivityCallback& linked) {
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(recording_.began, recording_.ended, "torchfl");
    buffer_->gpuOpCount = int(recording_.activities.size());
    if (!device_) return;
    std::map<uint64_t, int64_t> correlations;  // of calls: that of the work that they gave
    for (const profiler::Activity& activity : recording_.activities) {
      if (activity.correlation != 0) correlations.emplace(activity.call, activity.correlation);
    }
    const int32_t process = libkineto::processId();
    for (const profiler::Call& call : recording_.calls) {
      if (wanted_.count(ActivityType::PRIVATEUSE1_RUNTIME) == 0) break;
      GenericTraceActivity& out = add(ActivityType::PRIVATEUSE1_RUNTIME, name_of(*call.counters));
      out.startTime = call.begin;
      out.endTime = call.end;
      out.id = int32_t(call.id);
      out.device = process;
      out.resource = out.threadId = call.thread;
      out.flow.id = uint32_t(call.id);
      out.flow.type = libkineto::kLinkAsyncCpuGpu;
      out.flow.start = true;
      out.addMetadataQuoted("device", quoted(call.counters->device));
      out.addMetadataQuoted("op", quoted(call.counters->op));
      out.addMetadataQuoted("path", quoted(call.counters->path));
      if (!call.counters->reason.empty()) out.addMetadataQuoted("reason", quoted(call.counters->reason));
      if (call.host_bytes != 0) out.addMetadataQuoted("host bytes", std::to_string(call.host_bytes));
      if (linked && correlations.count(call.id) != 0) out.linked = linked(int32_t(correlations[call.id]));
      logger.handleGenericActivity(out);
    }
    std::map<int, std::set<int64_t>> streams;
    for (const profiler::Activity& activity : recording_.activities) {
      const ActivityType type = type_of(activity);
      if (wanted_.count(type) == 0) continue;
      const bool waits = activity.kind == Work::Kind::synchronize;
      if (activity.duration < 0 && !waits) continue;
      GenericTraceActivity& out = add(type, waits ? "synchronize " + runtime::label(activity.device) : activity.name);
      out.startTime = waits ? activity.submitted : activity.begin;
      out.endTime = waits ? activity.returned : activity.begin + activity.duration;
      out.id = int32_t(activity.call);
      out.threadId = activity.thread;
      out.device = waits ? process : activity.device;
      out.resource = waits ? activity.thread : int32_t(activity.stream);
      out.addMetadataQuoted("stream", std::to_string(activity.stream));
      if (linked && activity.correlation != 0) out.linked = linked(int32_t(activity.correlation));
      if (!waits) {
        streams[activity.device].insert(activity.stream);
        out.flow.id = uint32_t(activity.call);
        out.flow.type = libkineto::kLinkAsyncCpuGpu;
        out.flow.start = false;
        out.addMetadataQuoted("clock", profiler::clock_name(activity.clock));
        if (activity.bytes != 0) out.addMetadataQuoted("bytes", std::to_string(activity.bytes));
      }
      logger.handleGenericActivity(out);
    }
    for (const auto& [device, ids] : streams) {
      const std::string& label = runtime::label(device);
      logger.handleDeviceInfo({device, device + libkineto::kExceedMaxPid, label, label}, recording_.began);
      for (const int64_t id : ids)
        logger.handleResourceInfo({id, id, device, "stream " + std::to_string(id)}, recording_.began);
    }
  }

  const bool device_;
  const std::set<ActivityType> wanted_;
  bool reporting_ = false;
  std::unique_ptr<profiler::Session> session_;
  profiler::Recording recording_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
};

class TorchFLProfiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return available_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    // A trace of the CPU alone wants no work of devices, but the memory of our tensors, if it wants memory.
    return std::make_unique<KinetoSession>(types.count(ActivityType::CONCURRENT_KERNEL) != 0, types);
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }

 private:
  const std::string name_ = "torchfl";
  const std::set<ActivityType> available_{ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET,
                                          ActivityType::CONCURRENT_KERNEL, ActivityType::PRIVATEUSE1_RUNTIME};
};

REGISTER_PRIVATEUSE1_PROFILER(TorchFLProfiler);

// ------------------------------------------------------------------------------------- without Kineto's activities

// torch.autograd.profiler.profile(use_device=...) puts a mark in the current stream before and after each operator.
struct Mark {
  DeviceEntry* entry;
  void* event;  // NULL on a chip without events: then the host's time, after the stream was waited for
  int64_t time;
};

struct Marks final : torch::profiler::impl::ProfilerStubs {
  using Event = torch::profiler::impl::ProfilerVoidEventStub;
  bool enabled() const override { return true; }
  void record(c10::DeviceIndex* device, Event* event, int64_t* cpu_ns) const override {
    const int index = runtime::current_device();
    DeviceEntry& entry = runtime::device(index);
    if (device != nullptr) *device = c10::DeviceIndex(index);
    guarded([&] {
      auto mark = std::shared_ptr<Mark>(new Mark{&entry, entry.device->event_create(), 0}, [](Mark* gone) {
        gone->entry->device->event_destroy(gone->event);
        delete gone;
      });
      entry.device->event_record(mark->event, runtime::current_stream(index));
      mark->time = profiler::now();
      *event = std::move(mark);
    });
    if (cpu_ns != nullptr) *cpu_ns = profiler::now();
  }
  float elapsed(const Event* begin, const Event* end) const override {  // microseconds
    const auto &from = *static_cast<const Mark*>(begin->get()), &to = *static_cast<const Mark*>(end->get());
    if (from.event == nullptr || to.event == nullptr) return float(double(to.time - from.time) * 1e-3);
    return guarded([&] {
      to.entry->device->event_synchronize(from.event);
      to.entry->device->event_synchronize(to.event);
      return float(to.entry->device->event_elapsed(from.event, to.event) * 1e3);
    });
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  void onEachDevice(std::function<void(int)> body) const override {
    const int before = runtime::current_device();
    for (int i = 0; i < runtime::device_count(); i++) {
      if (!runtime::device_unopened(i).opened.load()) continue;
      runtime::set_current_device(i);
      body(i);
    }
    runtime::set_current_device(before);
  }
  void synchronize() const override {
    DeviceEntry& entry = runtime::device_unopened(runtime::current_device());
    if (entry.opened.load()) entry.synchronize_all();
  }
};
Marks g_marks;
struct RegisterMarks {
  RegisterMarks() { torch::profiler::impl::registerPrivateUse1Methods(&g_marks); }
} g_register_marks;

}  // namespace
}  // namespace torchfl
