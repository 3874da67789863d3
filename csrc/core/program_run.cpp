// program_run.cpp: runs a bound program: what the adapter has compiled in one go, everything else step by step.
//
// Contract: compile() is for once, after binding; without it, or with an adapter that compiles nothing, each step is a
// kernel call. Either way the same kernels see the same tensors in the same order.
#include <algorithm>
#include <deque>

#include "error.h"
#include "program.h"

namespace torchfl {

BoundProgram::~BoundProgram() {
  for (Part& part : parts_) device_->program_release(part.compiled);
}

std::vector<std::string> BoundProgram::kernels() const {
  std::vector<std::string> names;
  auto part = parts_.begin();
  for (size_t i = 0; i < steps_.size(); ++i) {
    std::string name = steps_[i].kernel != nullptr ? steps_[i].kernel : "copy_nd";
    if (part == parts_.end() || i < part->first) {
      names.push_back(std::move(name));
      continue;
    }
    if (i == part->first) {
      names.push_back("[" + name);
    } else {
      names.back() += " " + name;
    }
    if (i + 1 == part->first + part->count) {
      names.back() += "]";
      ++part;
    }
  }
  return names;
}

// ------------------------------------------------------------------------------------------------ compiling

void BoundProgram::compile(Device& device) {
  if (!device.has_programs() || !parts_.empty() || steps_.size() < 2) return;
  device_ = &device;
  if (compile_part(0, steps_.size())) return;
  auto is_vector = [](const Step& step) { return step.op.compare(0, 6, "uba::v") == 0; };
  for (size_t first = 0; first < steps_.size();) {
    size_t end = first;
    while (end < steps_.size() && is_vector(steps_[end])) ++end;
    if (end - first >= 2 && end - first < steps_.size()) compile_part(first, end - first);
    first = std::max(end, first + 1);
  }
}

bool BoundProgram::compile_part(size_t first, size_t count) {
  Part part;
  part.first = first;
  part.count = count;
  // Copies of the steps' values and tensors, with block numbers for addresses. Deques, because calls point into them.
  std::deque<std::vector<uba_value>> values;
  std::deque<std::vector<uba_tensor>> tensors;
  std::deque<uba_kernel> kernels;
  std::deque<uba_call> calls;
  std::vector<uba_step> steps;
  auto block_of = [&](int storage) {
    auto known = std::find(part.storages.begin(), part.storages.end(), storage);
    if (known == part.storages.end()) known = part.storages.insert(part.storages.end(), storage);
    return known - part.storages.begin();
  };
  for (size_t i = first; i < first + count; ++i) {
    const Step& step = steps_[i];
    std::vector<uba_tensor>& views = tensors.emplace_back(step.tensors);
    std::vector<uba_value>& args = values.emplace_back(step.values);
    for (const Place& place : step.places) {
      uba_tensor& view = views[size_t(place.tensor)];
      view.data = reinterpret_cast<void*>(uintptr_t(block_of(place.storage)));
      view.byte_offset = place.bytes;
    }
    for (uba_value& value : args) {
      if (value.kind == UBA_TENSOR || value.kind == UBA_TENSOR_LIST)
        value.v.tensor = views.data() + (value.v.tensor - step.tensors.data());
    }
    for (const OpenNumber& open : step.numbers) {
      args[size_t(open.value)].kind = UBA_NUMBER;
      args[size_t(open.value)].v.i = int64_t(part.numbers.size());
      part.numbers.push_back(open);
    }
    const size_t outputs = step.kernel != nullptr ? size_t(step.output_count) : 1;
    if (step.kernel == nullptr) {  // a copy has no values of its own
      args.assign(1, uba_value{});
      args[0].kind = UBA_TENSOR;
      args[0].count = 1;
      args[0].v.tensor = views.data();
    } else {
      kernels.push_back({step.kernel, step.run, step.tag});
    }
    uba_call& call = calls.emplace_back();
    call.header = UBA_HEADER(uba_call);
    call.op = step.kernel != nullptr ? step.op.c_str() : "copy_nd";
    call.args = args.data();
    call.outputs = views.data() + (views.size() - outputs);
    call.arg_count = int32_t(args.size());
    call.output_count = int32_t(outputs);
    call.stream = nullptr;
    steps.push_back({step.kernel != nullptr ? &kernels.back() : nullptr, &call});
  }
  uba_program program;
  program.header = UBA_HEADER(uba_program);
  program.op = program_->op.c_str();
  program.steps = steps.data();
  program.step_count = int64_t(steps.size());
  program.block_count = int32_t(part.storages.size());
  program.number_count = int32_t(part.numbers.size());
  std::vector<int64_t> places;
  std::vector<uint8_t> dead;
  for (int index : part.storages) {
    const Storage& storage = storages_[size_t(index)];
    places.push_back(storage.kind == Storage::scratch ? int64_t(storage.offset) : -1);
    dead.push_back(storage.kind == Storage::scratch && size_t(storage.last) < first + count);
  }
  program.places = places.data();
  program.dead = dead.data();
  part.compiled = device_->program_compile(program);
  if (part.compiled == nullptr) return false;
  part.blocks.resize(part.storages.size());
  part.values.resize(part.numbers.size());
  parts_.push_back(std::move(part));
  return true;
}

// ------------------------------------------------------------------------------------------------ running

BoundProgram::Address BoundProgram::address_of(const Storage& storage, const Run& run) const {
  if (storage.kind == Storage::scratch) return {run.scratch, storage.offset};
  return (storage.kind == Storage::input ? run.inputs : run.outputs)[size_t(storage.index)];
}

uba_value BoundProgram::value_of(const OpenNumber& open, const Run& run) {
  uba_value value{};
  value.count = 1;
  value.kind = UBA_INT;
  if (open.kind == ProgramArg::Kind::seed) {
    value.v.i = int64_t(run.seed);
  } else if (open.kind == ProgramArg::Kind::counter) {
    value.v.i = int64_t(run.counter + uint64_t(open.i));
  } else if (const Number& number = run.numbers[size_t(open.i)]; number.integer) {
    value.v.i = number.i;
  } else {
    value.kind = UBA_DOUBLE;
    value.v.d = number.d;
  }
  return value;
}

bool BoundProgram::run_step(Step& step, const Run& run) {
  for (const Place& place : step.places) {
    const Address address = address_of(storages_[size_t(place.storage)], run);
    uba_tensor& tensor = step.tensors[size_t(place.tensor)];
    tensor.data = address.data;
    tensor.byte_offset = address.byte_offset + place.bytes;
  }
  for (const OpenNumber& open : step.numbers) step.values[size_t(open.value)] = value_of(open, run);
  if (step.kernel == nullptr) return run.device->copy_nd(run.stream, step.tensors[1], step.tensors[0]);
  uba_call call;
  call.header = UBA_HEADER(uba_call);
  call.op = step.op.c_str();
  call.args = step.values.data();
  call.outputs = step.tensors.data() + (step.tensors.size() - size_t(step.output_count));
  call.arg_count = int32_t(step.values.size());
  call.output_count = step.output_count;
  call.stream = run.stream;
  return run.device->run(step.run, call, step.tag, step.kernel) == UBA_OK;
}

void BoundProgram::run_part(Part& part, const Run& run) {
  for (size_t i = 0; i < part.blocks.size(); ++i) {
    const Address address = address_of(storages_[size_t(part.storages[i])], run);
    part.blocks[i] = static_cast<char*>(address.data) + address.byte_offset;
  }
  for (size_t i = 0; i < part.values.size(); ++i) part.values[i] = value_of(part.numbers[i], run);
  uba_run compiled;
  compiled.header = UBA_HEADER(uba_run);
  compiled.stream = run.stream;
  compiled.blocks = part.blocks.data();
  compiled.numbers = part.values.data();
  run.device->program_run(part.compiled, compiled, program_->op.c_str());
}

bool BoundProgram::run(const Run& run) {
  auto part = parts_.begin();
  for (size_t i = 0; i < steps_.size();) {
    if (part != parts_.end() && part->first == i) {
      run_part(*part, run);
      i += part->count;
      ++part;
    } else if (!run_step(steps_[i++], run)) {
      return false;
    }
  }
  return true;
}

}  // namespace torchfl
