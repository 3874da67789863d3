// module.cpp: torchfl._C, what the Python package needs of the engine.
//
// Contract: thin. Every function converts, calls one thing, and lets errors through as Python exceptions
// (torchfl.LoadError for what a library or chip was refused for). Nothing here is on the call path.
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/extension.h>

#include "aten_handlers.h"
#include "autocast.h"
#include "autograd_threads.h"
#include "device_names.h"
#include "graph_fused.h"
#include "hooks.h"
#include "host_device.h"
#include "kept.h"
#include "module.h"
#include "pinned.h"
#include "router.h"
#include "transfer.h"
#include "whole_attention.h"

namespace py = pybind11;

namespace torchfl {
namespace {

template <class T>
T get(const py::dict& dict, const char* key, T fallback) {
  if (!dict.contains(key) || dict[key].is_none()) return fallback;
  return dict[key].cast<T>();
}

DtypeSet dtype_set(const std::vector<std::string>& names) {
  DtypeSet set = 0;
  for (const std::string& name : names) {
    const int32_t dtype = dtype_from_name(name);
    if (dtype != 0) set |= dtype_bit(dtype);
  }
  return set;
}

Condition condition_from(const py::dict& row) {
  static const std::map<std::string, Condition::Op> kOps = {
      {"in", Condition::Op::in},         {"min", Condition::Op::min},
      {"max", Condition::Op::max},       {"multiple_of", Condition::Op::multiple_of},
      {"equals", Condition::Op::equals}, {"not", Condition::Op::not_in}};
  Condition condition;
  condition.name = row["name"].cast<std::string>();
  condition.op = kOps.at(row["op"].cast<std::string>());
  for (py::handle value : row["values"].cast<py::list>()) {
    if (py::isinstance<py::str>(value)) {
      condition.strings.push_back(value.cast<std::string>());
    } else {
      condition.numbers.push_back(value.cast<double>());
    }
  }
  condition.why = get<std::string>(row, "why", "");
  return condition;
}

constexpr double kPicosecond = 1e-12, kFemtojoule = 1e-15;

OpPath op_path_from(const py::dict& row) {
  OpPath path;
  path.op = get<std::string>(row, "op", "");
  if (!row["overload"].is_none()) {
    path.overload = row["overload"].cast<std::string>();
    if (path.overload.empty()) path.overload = "default";  // as OpSchema names the overload without a name
  }
  path.declared = row["declared"].cast<std::string>();
  path.kernel = row["kernel"].cast<std::string>();
  for (auto item : row["dtypes"].cast<py::dict>()) {
    path.dtypes.emplace_back(item.first.cast<std::string>(), dtype_set(item.second.cast<std::vector<std::string>>()));
  }
  path.int8_as_uint8 = get<std::string>(row, "int8_as", "") == "uint8";
  path.layouts = get<std::vector<std::string>>(row, "layouts", {});
  for (py::handle condition : row["where"].cast<py::list>())
    path.where.push_back(condition_from(condition.cast<py::dict>()));
  path.why = get<std::string>(row, "why", "");
  path.line = get<int>(row, "line", 0);
  for (auto item : row["cost"].cast<py::dict>()) {
    const std::string key = item.first.cast<std::string>();
    const std::string unit = key.size() > 3 ? key.substr(key.size() - 3) : "";
    if (unit == "_ps" || unit == "_fj") {
      path.cost[key.substr(0, key.size() - 3)] =
          item.second.cast<double>() * (unit == "_ps" ? kPicosecond : kFemtojoule);
    } else if (py::isinstance<py::float_>(item.second) || py::isinstance<py::int_>(item.second)) {
      path.cost[key] = item.second.cast<double>();
    } else if (py::isinstance<py::list>(item.second)) {
      const auto values = item.second.cast<std::vector<double>>();
      static const char* const kAxis[] = {"_m", "_n", "_k"};
      for (size_t i = 0; i < values.size() && i < 3; i++) path.cost[key + kAxis[i]] = values[i];
    } else if (py::isinstance<py::str>(item.second)) {
      path.cost[key] = 1;  // a quality by name: reuse: on_chip_cache, prefetch: dma
    }
  }
  return path;
}

// A row's cost terms that follow from the chip as a whole: the rate of the unit that serves its dtype, and the
// bandwidth of the memory that it works from. What the descriptor does not say stays unknown.
void price_rows(Chip& chip, const py::dict& lowered) {
  const auto units = lowered["compute_units"].cast<py::dict>();
  const auto memory = lowered["memory"].cast<py::dict>();
  auto of_level = [&](const char* level, const char* key) {
    return memory.contains(level) ? get<double>(memory[level].cast<py::dict>(), key, 0.0) : 0.0;
  };
  for (OpPath& row : chip.ops) {
    if (row.cost.empty()) continue;
    for (const auto& [name, set] : row.dtypes) {
      if (name != "*" || row.cost.count("peak") != 0) continue;
      for (int32_t dtype = 1; dtype < 32; dtype++) {
        if ((set & dtype_bit(dtype)) == 0 || !units.contains(dtype_name(dtype))) continue;
        const auto unit = units[dtype_name(dtype)].cast<py::dict>();
        const double peak = get<double>(unit, "peak", 0.0), energy = get<double>(unit, "energy_fj", 0.0) * kFemtojoule;
        if (peak > 0) row.cost.emplace(std::string("peak_") + dtype_name(dtype), peak);
        if (energy > 0) row.cost.emplace(std::string("energy_") + dtype_name(dtype), energy);
      }
    }
    // `reuse` says how often an operand is fetched, not from where.
    const double rate = of_level("off_chip_memory", "bandwidth"), cache = of_level("on_chip_cache", "size");
    if (rate > 0) row.cost.emplace("bandwidth", rate);
    if (cache > 0) row.cost.emplace("cache", cache);
    const double energy = of_level("off_chip_memory", "energy_per_byte_fj") * kFemtojoule;
    if (energy > 0) row.cost.emplace("energy_byte", energy);
  }
}

Chip chip_from(const py::dict& lowered) {
  Chip chip;
  chip.name = lowered["name"].cast<std::string>();
  chip.vendor = get<std::string>(lowered, "vendor", "");
  chip.version = get<std::string>(lowered, "version", "");
  chip.device_type = lowered["device_type"].cast<std::string>();
  chip.variant = get<std::string>(lowered, "variant", "");
  chip.source = get<std::string>(lowered, "descriptor", "");
  chip.alignment = get<uint64_t>(lowered, "alignment", 64);
  chip.max_rank = get<int64_t>(lowered, "max_rank", 0);
  chip.max_batch = get<int64_t>(lowered, "max_batch", 0);
  chip.max_sequence = get<int64_t>(lowered, "max_seq", 0);
  chip.unified = get<bool>(lowered, "unified", false);
  chip.host_memory = get<std::string>(lowered, "host_memory", "copy");
  chip.dtypes = dtype_set(lowered["dtypes"].cast<std::vector<std::string>>());
  chip.layouts = get<std::vector<std::string>>(lowered, "layouts", {});
  chip.default_layout = get<std::string>(lowered, "default_layout", "NCHW");
  chip.memory_bytes = get<uint64_t>(lowered, "memory_bytes", 0);
  chip.max_threads = get<int64_t>(lowered, "max_threads", 0);
  for (const auto& [from, to] : get<std::map<std::string, std::string>>(lowered, "compute_as", {}))
    chip.compute_as |= dtype_set({to});
  chip.bfloat16_emulation = get<bool>(lowered, "bfloat16_emulation", false);
  chip.on_unsupported_dtype = get<std::string>(lowered, "on_unsupported_dtype", "cpu");
  if (lowered.contains("attention") && !lowered["attention"].is_none()) {
    const auto row = lowered["attention"].cast<py::dict>();
    Attention attention;
    attention.enabled = get<bool>(row, "enabled", false);
    attention.max_sequence_length = get<int64_t>(row, "max_sequence_length", 0);
    attention.supported_heads = get<std::vector<int64_t>>(row, "supported_heads", {});
    attention.beyond_is_error = get<std::string>(row, "beyond", "error") == "error";
    chip.attention = attention;
  }
  for (const char* section : {"ops", "instructions"}) {
    for (py::handle row : lowered[section].cast<py::list>()) chip.ops.push_back(op_path_from(row.cast<py::dict>()));
  }
  const std::string attention = define_fused({kWholeAttention});
  for (OpPath& row : chip.ops) {
    if (row.op != kWholeAttention) continue;
    row.op = attention;
    chip.whole_attention = true;
  }
  for (py::handle item : lowered["fusions"].cast<py::list>()) {
    OpPath row = op_path_from(item.cast<py::dict>());
    row.op = define_fused(item["chain"].cast<std::vector<std::string>>());
    chip.ops.push_back(std::move(row));
  }
  const auto fallback = lowered["fallback"].cast<py::dict>();
  chip.fallback_default = get<std::string>(fallback, "default", "compose");
  chip.fallback_ops = get<std::map<std::string, std::string>>(fallback, "ops", {});
  chip.launch_overhead = get<double>(lowered["overheads"].cast<py::dict>(), "launch_ps", 0.0) * kPicosecond;
  chip.power_cap = get<double>(lowered["power"].cast<py::dict>(), "cap_mw", 0.0) * 1e-3;
  price_rows(chip, lowered);
  return chip;
}

py::dict chip_info(const ChipEntry& entry) {
  py::dict info;
  info["name"] = entry.chip.name;
  info["vendor"] = entry.chip.vendor;
  info["device_type"] = entry.chip.device_type;
  info["first_index"] = entry.first_index;
  info["count"] = entry.count;
  info["adapter"] = entry.adapter->path();
  info["adapter_version"] = entry.adapter->version();
  info["sdk_version"] = entry.adapter->sdk_version();
  info["abi"] = std::to_string(entry.adapter->abi() >> 16) + "." + std::to_string(entry.adapter->abi() & 0xffff);
  info["source"] = entry.chip.source;
  std::vector<std::string> missing;
  for (const OpPath& row : entry.chip.ops) {
    if (entry.handlers.count(row.kernel) == 0 && entry.adapter->find_kernel(row.kernel) == nullptr)
      missing.push_back(row.kernel);
  }
  info["missing_kernels"] = missing;
  return info;
}

// What the functions of a vendor's runtime library may begin with: "x1" for x1_runtime.so, and for the chip's own
// names.
std::vector<std::string> runtime_prefixes(const Chip& chip, const std::string& library) {
  std::string name = library.substr(library.rfind('/') + 1);
  name = name.substr(0, name.find('.'));
  if (name.rfind("lib", 0) == 0) name.erase(0, 3);
  if (const size_t suffix = name.rfind("_runtime"); suffix != std::string::npos) name.erase(suffix);
  std::vector<std::string> prefixes{name, chip.device_type};
  if (!chip.variant.empty()) prefixes.insert(prefixes.begin() + 1, chip.variant);
  return prefixes;
}

py::dict add_chip(const py::dict& lowered, const std::string& library, const std::string& style,
                  const py::dict& wrappers) {
  Chip chip = chip_from(lowered);
  std::shared_ptr<Adapter> adapter;
  std::shared_ptr<AtenAdapter> handlers;
  if (style == "aten") {
    handlers = load_aten_adapter(library, chip.device_type);
    add_handler_rows(chip, *handlers);
    HostDeviceOptions options;
    options.name = chip.name;
    options.alignment = chip.alignment;
    options.count = handlers->options.device_count;
    adapter = host_device_adapter(std::move(options));
  } else if (style == "pybind") {
    HostDeviceOptions options;
    options.name = chip.name;
    options.alignment = chip.alignment;
    options.total_memory = chip.memory_bytes;
    options.runtime_library = library;
    options.prefixes = runtime_prefixes(chip, library);
    adapter = host_device_adapter(std::move(options));
  } else {
    adapter = Adapter::load(library);
    if (has_aten_handlers(library, chip.device_type)) {
      handlers = load_aten_adapter(library, chip.device_type);
      add_handler_rows(chip, *handlers);
    }
  }
  ChipEntry& entry = runtime::add_chip(std::move(chip), std::move(adapter));
  if (handlers) {
    for (const auto& handler : handlers->handlers) entry.handlers[handler->op] = handler;
  }
  for (auto item : wrappers) {
    const auto name = item.first.cast<std::string>();
    entry.handlers[name] = wrapper_from(name, item.second.cast<py::dict>());
  }
  register_hooks();
  register_routes();
  give_devices_autograd_threads();
  return chip_info(entry);
}

py::dict properties(int index) {
  DeviceEntry& entry = runtime::device(index);
  const uba_properties& p = entry.device->properties();
  py::dict out;
  out["name"] = std::string(p.name);
  out["serial"] = std::string(p.serial);
  out["total_memory"] = p.total_memory;
  out["alignment"] = entry.chip->chip.alignment;
  out["max_rank"] = p.max_rank;
  const auto listed = [](uint64_t dtypes) {  // none: what the descriptor says
    py::list names;
    for (int32_t dtype = 1; dtype < 64; dtype++) {
      if ((dtypes >> dtype & 1) != 0) names.append(dtype_name(dtype));
    }
    return names;
  };
  out["dtypes"] = listed(p.dtypes);
  out["product_dtypes"] = listed(p.product_dtypes);
  out["max_threads"] = p.max_threads;
  out["compute_units"] = p.compute_units;
  out["clock_mhz"] = p.clock_mhz;
  out["host_accessible"] = p.host_accessible != 0;
  out["label"] = entry.label;
  out["chip"] = entry.chip->chip.name;
  uba_telemetry t{};
  if (guarded([&] { return entry.device->telemetry(&t); })) {
    py::dict telemetry;
    telemetry["utilization"] = t.utilization;
    telemetry["power"] = t.power;
    telemetry["temperature"] = t.temperature;
    telemetry["busy_time"] = t.busy_time;
    out["telemetry"] = telemetry;
  }
  return out;
}

py::list stats_rows(bool whole, bool off_chip) {
  py::list rows;
  for (const auto& row : stats::snapshot(whole, off_chip ? stats::Which::off_chip : stats::Which::all)) {
    py::dict out;
    out["device"] = row.device;
    out["op"] = row.op;
    out["path"] = row.path;
    out["target"] = row.target;
    out["reason"] = row.reason;
    out["calls"] = row.calls;
    out["seconds"] = double(row.nanoseconds) * 1e-9;
    out["host_bytes"] = row.host_bytes;
    out["saved_bytes"] = row.saved_bytes;
    rows.append(out);
  }
  return rows;
}

py::dict transfers() {
  py::dict out;
  out["to_device_copies"] = g_transfers.to_device_copies.load();
  out["to_device_bytes"] = g_transfers.to_device_bytes.load();
  out["to_host_copies"] = g_transfers.to_host_copies.load();
  out["to_host_bytes"] = g_transfers.to_host_bytes.load();
  out["peer_copies"] = g_transfers.peer_copies.load();
  out["peer_bytes"] = g_transfers.peer_bytes.load();
  out["shares"] = unified::g_counters.shares.load();
  out["shared_bytes"] = unified::g_counters.shared_bytes.load();
  out["separations"] = unified::g_counters.separations.load();
  out["separated_bytes"] = unified::g_counters.separated_bytes.load();
  return out;
}

py::dict explain_call(const std::string& op_name, const std::string& overload, const py::tuple& args,
                      const py::dict& kwargs, int index) {
  auto handle = c10::Dispatcher::singleton().findSchema({op_name.c_str(), overload.c_str()});
  TORCH_CHECK_VALUE(handle.has_value(), "no operator ", op_name, overload.empty() ? "" : ".", overload);
  torch::jit::Stack stack = torch::jit::createStackForSchema(handle->schema(), torch::jit::tuple_slice(args),
                                                             py::reinterpret_borrow<py::kwargs>(kwargs), std::nullopt);
  const Explanation why = explain(op_state(*handle), std::move(stack), index);
  py::dict out;
  out["op"] = why.op;
  out["device"] = why.device;
  out["path"] = why.path;
  out["target"] = why.target;
  out["reason"] = why.reason;
  out["transforms"] = why.transforms;
  out["steps"] = why.steps;
  py::list attempts;
  for (const Attempt& attempt : why.attempts) {
    py::dict row;
    row["path"] = path_name(attempt.path);
    row["target"] = attempt.target;
    row["taken"] = attempt.taken;
    row["reason"] = attempt.reason;
    row["why"] = attempt.why;
    row["line"] = attempt.line;
    row["cost"] = attempt.cost;
    attempts.append(row);
  }
  out["attempts"] = attempts;
  return out;
}

// Lines may come from any thread, with or without the GIL; a lost interpreter loses them.
py::object* g_log = nullptr;
void log_to_python(int level, const std::string& line) {
  if (!Py_IsInitialized()) return;
  py::gil_scoped_acquire gil;
  if (g_log == nullptr) return;
  try {
    (*g_log)(level, line);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("torchfl's log");
  }
}

py::list memory_snapshot(int index) {
  py::list out;
  DeviceEntry& entry = runtime::device_unopened(index);
  if (!entry.opened) return out;
  for (const auto& segment : entry.allocator->snapshot()) {
    py::dict row;
    row["device"] = index;
    row["address"] = segment.address;
    row["total_size"] = segment.total_size;
    row["stream"] = segment.stream;
    row["segment_type"] = segment.type;
    py::list blocks;
    for (const auto& block : segment.blocks) {
      py::dict b;
      b["address"] = block.address;
      b["size"] = block.size;
      b["requested_size"] = block.requested;
      b["state"] = block.state;
      blocks.append(b);
    }
    row["blocks"] = blocks;
    out.append(row);
  }
  return out;
}

// Of pinned memory, as a nested dict with the names of torch.cuda.host_memory_stats.
py::dict host_memory_stats() {
  const at::HostStats stats = pinned_allocator()->get_stats();
  auto counter = [](const auto& stat) {
    py::dict out;
    out["current"] = stat.current;
    out["peak"] = stat.peak;
    out["allocated"] = stat.allocated;
    out["freed"] = stat.freed;
    return out;
  };
  auto duration = [](const auto& stat) {
    py::dict out;
    out["total"] = stat.total;
    out["max"] = stat.max;
    out["min"] = stat.min;
    out["count"] = stat.count;
    out["avg"] = stat.count > 0 ? double(stat.total) / double(stat.count) : 0.0;
    return out;
  };
  py::dict out;
  out["active_bytes"] = counter(stats.active_bytes);
  out["active_requests"] = counter(stats.active_requests);
  out["allocated_bytes"] = counter(stats.allocated_bytes);
  out["allocations"] = counter(stats.allocations);
  out["host_alloc_time"] = duration(stats.host_alloc_time);
  out["host_free_time"] = duration(stats.host_free_time);
  out["num_host_alloc"] = stats.num_host_alloc;
  out["num_host_free"] = stats.num_host_free;
  return out;
}

// Waits until autograd's thread of each device has let go of the last backward. It does so after `backward` has
// returned, and would die of asking for the GIL of an interpreter that has ended meanwhile: a thread takes its tasks
// one after the other, so a backward of tensors without Python objects ends behind it.
void finish_autograd() {
  for (int index = 0; index < runtime::device_count(); index++) {
    DeviceEntry* entry = runtime::g_devices[index].load();
    if (entry == nullptr || !entry->opened.load() || entry->device->lost() || entry->device->forked()) continue;
    try {
      at::AutoGradMode grad(true);
      at::Tensor x = empty_contiguous_on(index, c10::kFloat, {1});
      x.requires_grad_();
      torch::autograd::backward({x.view({1, 1})}, {empty_contiguous_on(index, c10::kFloat, {1, 1})});
    } catch (...) {  // then there is nothing to wait for
    }
  }
}

// As an exception that carries its Python type across threads: backward may raise it in one of autograd's.
void raise_unsupported(const std::string& text) {
  py::gil_scoped_acquire gil;
  const py::object type = py::module_::import("torchfl.errors").attr("UnsupportedOpError");
  PyErr_SetString(type.ptr(), text.c_str());
  python_error error;
  error.persist();
  throw error;
}

}  // namespace

PYBIND11_MODULE(_C, m) {
  define_composer(m);
  define_custom(m);
  define_profiler(m);
  define_graph(m);
  stats::set_raise(&raise_unsupported);
  m.def("kernel_names", [](int index) { return runtime::device_unopened(index).chip->adapter->kernel_names(); });
  m.def("finish_autograd", &finish_autograd, py::call_guard<py::gil_scoped_release>());
  m.def("is_strict", [] { return stats::g_strict.load(); });
  m.def("set_strict", [](bool on) { return stats::g_strict.exchange(on); });
  static auto* load_error = new py::exception<Error>(m, "LoadError", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      py::set_error(*load_error, error.what());
    }
  });

  m.attr("abi") = std::to_string(UBA_ABI_MAJOR) + "." + std::to_string(UBA_ABI_MINOR);
  m.def("add_chip", &add_chip, py::arg("lowered"), py::arg("library"), py::arg("style"),
        py::arg("wrappers") = py::dict());
  m.def("chips", [] {
    py::list out;
    for (const auto& chip : runtime::chips()) out.append(chip_info(*chip));
    return out;
  });
  m.def("device_count", &runtime::device_count);
  m.def("current_device", &runtime::current_device);
  m.def("set_device", &runtime::set_current_device);
  m.def("exchange_device", [](int index) {
    const int previous = runtime::current_device();
    if (index >= 0) runtime::set_current_device(index);
    return previous;
  });
  m.def("is_opened", [](int index) { return runtime::device_unopened(index).opened.load(); });
  m.def("any_opened", &runtime::any_opened);
  m.def("forked_after_use", &runtime::forked_after_use);
  m.def("label", [](int index) { return runtime::label(index); });
  m.def("synchronize", [](int index) {
    py::gil_scoped_release nogil;
    DeviceEntry& entry = runtime::device_unopened(index);
    if (entry.opened) entry.synchronize_all();
  });
  m.def("properties", &properties);
  m.def("default_generator",
        [](int index) { return at::globalContext().defaultGenerator(c10::Device(kDevice, c10::DeviceIndex(index))); });
  m.def("memory_snapshot", &memory_snapshot);
  m.def("host_memory_stats", &host_memory_stats);
  m.def("reset_accumulated_host_memory_stats", [] { pinned_allocator()->reset_accumulated_stats(); });
  m.def("reset_peak_host_memory_stats", [] { pinned_allocator()->reset_peak_stats(); });
  m.def("set_memory_limit", [](int index, uint64_t bytes) { runtime::device(index).allocator->set_limit(bytes); });
  m.def("empty_cache", [](int index) {
    py::gil_scoped_release nogil;
    drop_kept(index);
    DeviceEntry& entry = runtime::device_unopened(index);
    // A lost device takes nothing back; that is no reason to fail for the others.
    if (entry.opened && !entry.device->lost()) guarded([&] { entry.allocator->empty_cache(); });
  });

  m.def("stats", &stats_rows, py::arg("whole") = false, py::arg("off_chip") = false);
  m.def("reset_stats", &stats::reset);
  m.def("set_timing", [](bool on) {
    const uint8_t before =
        on ? stats::g_timing.fetch_or(stats::kTimed) : stats::g_timing.fetch_and(uint8_t(~stats::kTimed));
    return (before & stats::kTimed) != 0;
  });
  m.def("transfers", &transfers);
  m.def("set_debug_lines", &stats::set_debug_lines);
  m.def("set_log", [](py::object callback) {
    g_log = new py::object(std::move(callback));  // never destroyed: the interpreter may be gone by then
    stats::set_sink(&log_to_python);
    set_log_sink([](int32_t level, const char* text) { stats::log(level, text); });
  });
  m.def("explain", &explain_call, py::arg("op"), py::arg("overload"), py::arg("args"), py::arg("kwargs"),
        py::arg("index"));
  m.def("forget_plans", &forget_plans);
  m.def("stream_handle",
        [](int index, int64_t id) { return reinterpret_cast<uintptr_t>(runtime::device(index).stream_handle(id)); });
  m.def("note_exported", &unified::exported);
  m.def("note_fresh", &unified::fresh);
  // For tools and tests that ask the SDK about a tensor's memory. The address is the device's, not the host's.
  m.def("data_address", [](const at::Tensor& tensor) {
    return reinterpret_cast<uintptr_t>(tensor.storage().data()) +
           uintptr_t(tensor.storage_offset()) * tensor.itemsize();
  });

  m.def("add_device_name", &device_names::add);
  m.def("remove_device_name", &device_names::remove);
  m.def("show_device_name", &device_names::show);
  m.def("shown_device_name", &device_names::shown);
  m.def("true_device_names", &device_names::true_names);
  m.def("device_parser", &device_names::parser);
  m.def("names_engaged", &device_names::engaged);
  m.def("disengage_names", &device_names::disengage);
  m.def("default_autocast_lists", &autocast::default_lists);
  m.def("install_autocast", &autocast::install);
}

}  // namespace torchfl
