// profiler_python.cpp: recordings of the profiler and the memory history, as torchfl.profiler and torchfl._memory read
// them.
#include <torch/csrc/profiler/combined_traceback.h>

#include "memory_history.h"
#include "module.h"
#include "profiler.h"
#include "runtime.h"

namespace py = pybind11;

namespace torchfl {
namespace {

const char* kind_name(const profiler::Activity& activity) {
  static const char* const kNames[] = {"kernel", "program", "copy", "fill", "synchronize"};
  return kNames[size_t(activity.kind)];
}

// Tuples, since there may be a hundred thousand of them; torchfl/profiler.py names their fields.
py::dict recording_to_python(const profiler::Recording& recording) {
  py::list calls, activities;
  for (const profiler::Call& c : recording.calls) {
    calls.append(py::make_tuple(c.id, c.parent, c.counters->op, c.counters->path, c.counters->target,
                                c.counters->reason, c.counters->device, c.thread, c.entered, c.begin, c.end, c.self,
                                c.observed, c.submitting, c.waiting, c.host_bytes));
  }
  for (const profiler::Activity& a : recording.activities) {
    activities.append(py::make_tuple(kind_name(a), a.name, runtime::label(a.device), a.stream, a.bytes, a.submitted,
                                     a.returned, a.begin, a.duration, profiler::clock_name(a.clock), a.thread, a.call));
  }
  py::dict out;
  out["began"] = recording.began;
  out["ended"] = recording.ended;
  out["calls"] = std::move(calls);
  out["activities"] = std::move(activities);
  return out;
}

// As PyTorch's snapshots have them, innermost first. What autograd asked for has one frame, of its node.
py::list frames_of(const std::vector<const memory_history::Stack*>& stacks) {
  std::vector<torch::CapturedTraceback*> captured;
  for (const memory_history::Stack* stack : stacks) captured.push_back(stack->frames.get());
  const torch::SymbolizedTracebacks symbols = torch::symbolize(captured);
  auto frame_row = [](const std::string& filename, uint64_t line, const std::string& name) {
    py::dict row;
    row["filename"] = filename;
    row["line"] = line;
    row["name"] = name;
    return row;
  };
  std::vector<py::dict> all;  // one object for each frame, however many stacks it is in
  for (const torch::unwind::Frame& frame : symbols.all_frames)
    all.push_back(frame_row(frame.filename, frame.lineno, frame.funcname));
  py::list out;
  for (size_t i = 0; i < stacks.size(); i++) {
    py::list frames;
    for (const uint64_t frame : symbols.tracebacks[i]) frames.append(all[frame]);
    if (frames.empty() && !stacks[i]->node.empty()) frames.append(frame_row("<autograd>", 0, stacks[i]->node));
    out.append(std::move(frames));
  }
  return out;
}

// {address: frames} of the blocks that are held.
py::dict held_frames(int device) {
  std::vector<uint64_t> addresses;
  std::vector<const memory_history::Stack*> stacks;
  const auto held = memory_history::held(device);
  for (const auto& [address, stack] : held) {
    if (!stack.frames) continue;
    addresses.push_back(address);
    stacks.push_back(&stack);
  }
  const py::list frames = frames_of(stacks);
  py::dict out;
  for (size_t i = 0; i < addresses.size(); i++) out[py::int_(addresses[i])] = frames[i];
  return out;
}

py::list trace(int device) {
  using Action = memory_history::Entry::Action;
  const auto entries = memory_history::entries(device);
  std::vector<const memory_history::Stack*> stacks;
  for (const auto& entry : entries) {
    if (entry.stack.frames) stacks.push_back(&entry.stack);
  }
  const py::list frames = frames_of(stacks);
  py::list out;
  size_t next = 0;
  for (const auto& entry : entries) {
    py::dict row;
    row["action"] = memory_history::action_name(entry.action);
    row[entry.action == Action::oom ? "device_free" : "addr"] = entry.address;
    row["size"] = entry.size;
    row["stream"] = entry.stream;
    row["time_us"] = entry.microseconds;
    row["frames"] = entry.stack.frames ? py::object(frames[next++]) : py::object(py::list());
    out.append(std::move(row));
  }
  return out;
}

void record_memory(int device, bool events, bool alloc_stacks, bool free_stacks, bool cpp_stacks, size_t max_entries) {
  memory_history::Settings settings;
  settings.events = events;
  settings.alloc_stacks = alloc_stacks;
  settings.free_stacks = free_stacks;
  settings.cpp_stacks = cpp_stacks;
  settings.max_entries = max_entries;
  memory_history::record(device, settings);
}

}  // namespace

void define_profiler(py::module_& m) {
  py::class_<profiler::Session>(m, "ProfilerSession")
      .def(py::init<>(), py::call_guard<py::gil_scoped_release>())
      .def("stop", [](profiler::Session& session) {
        profiler::Recording recording;
        {
          py::gil_scoped_release nogil;
          recording = session.stop();
          if (recording.failure) guarded([&] { std::rethrow_exception(recording.failure); });
        }
        return recording_to_python(recording);
      });
  m.def("record_memory", &record_memory, py::arg("index"), py::arg("events"), py::arg("alloc_stacks"),
        py::arg("free_stacks"), py::arg("cpp_stacks"), py::arg("max_entries"));
  m.def("stop_recording_memory", &memory_history::stop);
  m.def("records_memory", &memory_history::recording);
  m.def("clear_memory_history", &memory_history::clear);
  m.def("note_memory_snapshot", &memory_history::note_snapshot);
  m.def("memory_trace", &trace);
  m.def("held_memory_frames", &held_frames);
}

}  // namespace torchfl
