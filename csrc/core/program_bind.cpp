// program_bind.cpp: finds the kernel of every step of a program, adds the copies that alignment and layout ask for, and
// places the temporaries.
#include <algorithm>
#include <numeric>

#include "program.h"

namespace torchfl {

namespace {

// A copy that stays where it is while `arrays` grows.
template <class T>
const T* keep(std::vector<std::unique_ptr<T[]>>& arrays, const std::vector<T>& values) {
  arrays.push_back(std::make_unique<T[]>(std::max<size_t>(values.size(), 1)));
  std::copy(values.begin(), values.end(), arrays.back().get());
  return arrays.back().get();
}

// Whether the strides fill the memory from first to last element without overlap.
bool dense(const ProgramValue& value) {
  int64_t count = 1;
  for (int64_t size : value.sizes) count *= size;
  std::vector<size_t> order(value.sizes.size());
  std::iota(order.begin(), order.end(), size_t(0));
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return value.strides[a] < value.strides[b]; });
  int64_t step = 1;
  for (size_t d : order) {
    if (value.sizes[d] == 1) continue;
    if (value.strides[d] != step) return count == 0;
    step *= value.sizes[d];
  }
  return true;
}

}  // namespace

class Binder {
 public:
  Binder(std::shared_ptr<const Program> program, const BindContext& context)
      : program_(*program), context_(context), bound_(new BoundProgram) {
    bound_->program_ = std::move(program);
  }

  std::unique_ptr<BoundProgram> bind(std::string* why) {
    values_ = program_.values;
    place_values();
    for (const ProgramStep& step : program_.steps) {
      if (!add_step(step, why)) return nullptr;
    }
    for (const auto& [value, input] : program_.writes) {
      add_copy(value, program_.inputs[size_t(input)].value);
      bound_->writes_inputs_ = true;
    }
    for (const auto& [from, to] : result_copies_) add_copy(from, to);
    place_scratch();
    return std::move(bound_);
  }

 private:
  using Storage = BoundProgram::Storage;
  using Step = BoundProgram::Step;

  int add_storage(Storage::Kind kind, int index, uint64_t bytes) {
    Storage storage;
    storage.kind = kind;
    storage.index = index;
    storage.bytes = bytes;
    bound_->storages_.push_back(storage);
    return int(bound_->storages_.size()) - 1;
  }

  // A further temporary like `value`, row-major unless strides are given.
  int add_temporary(const ProgramValue& like, const std::vector<int64_t>* strides = nullptr) {
    ProgramValue value;
    value.dtype = like.dtype;
    value.sizes = like.sizes;
    value.strides = strides != nullptr ? *strides : row_major_strides(like.sizes);
    value.base = int(values_.size());
    values_.push_back(value);
    storage_of_.push_back(
        add_storage(Storage::scratch, 0, uint64_t(value.extent()) * uint64_t(dtype_size(value.dtype))));
    return value.base;
  }

  void place_values() {
    storage_of_.assign(values_.size(), -1);
    for (size_t i = 0; i < program_.inputs.size(); i++)
      storage_of_[size_t(program_.inputs[i].value)] = add_storage(Storage::input, int(i), 0);
    for (size_t i = 0; i < program_.constants.size(); i++)
      storage_of_[size_t(program_.constants[i])] = add_storage(Storage::input, int(program_.inputs.size() + i), 0);
    for (int id : program_.outputs) {
      if (id < 0) {
        bound_->result_of_.push_back(-1);
        continue;
      }
      const ProgramValue& value = values_[size_t(id)];
      const int index = int(bound_->outputs_.size());
      bound_->result_of_.push_back(index);
      const bool is_dense = dense(value);
      bound_->outputs_.push_back({value.dtype, value.sizes, is_dense ? value.strides : row_major_strides(value.sizes)});
      const uint64_t bytes = uint64_t(value.extent()) * uint64_t(dtype_size(value.dtype));
      const ProgramValue& base = values_[size_t(value.base)];
      const bool whole = value.offset == 0 && uint64_t(base.extent()) * uint64_t(dtype_size(base.dtype)) == bytes;
      if (whole && storage_of_[size_t(value.base)] < 0 && is_dense) {
        storage_of_[size_t(value.base)] = add_storage(Storage::output, index, bytes);
        continue;
      }
      // A view, an argument, or the same value twice: the result is a copy.
      ProgramValue copy = value;
      copy.offset = 0;
      copy.strides = bound_->outputs_.back().strides;
      copy.base = int(values_.size());
      values_.push_back(copy);
      storage_of_.push_back(add_storage(Storage::output, index, bytes));
      result_copies_.emplace_back(id, copy.base);
    }
    for (size_t id = 0; id < program_.values.size(); id++) {
      if (values_[id].base == int(id) && storage_of_[id] < 0)
        storage_of_[id] =
            add_storage(Storage::scratch, 0, uint64_t(values_[id].extent()) * uint64_t(dtype_size(values_[id].dtype)));
    }
  }

  int storage_of(int id) const { return storage_of_[size_t(values_[size_t(id)].base)]; }

  // The tensor as a kernel sees it; an address that is not aligned shows in its offset.
  uba_tensor view(int id) const {
    const ProgramValue& value = values_[size_t(id)];
    uba_tensor tensor{};
    tensor.dtype = value.dtype;
    tensor.rank = int32_t(value.sizes.size());
    tensor.sizes = value.sizes.data();
    tensor.strides = value.strides.data();
    tensor.byte_offset = uint64_t(value.offset) * uint64_t(dtype_size(value.dtype));
    const Storage& storage = bound_->storages_[size_t(storage_of(id))];
    if (storage.kind == Storage::input && size_t(storage.index) < program_.inputs.size() &&
        (*context_.misaligned)[size_t(storage.index)]) {
      // By how much is not known here: any view of it counts as not aligned.
      const uint64_t item = uint64_t(dtype_size(value.dtype));
      tensor.byte_offset += (tensor.byte_offset + item) % context_.alignment == 0 ? 2 * item : item;
    }
    return tensor;
  }

  // Puts value `id` into slot `slot` of a step.
  void put(Step& step, int slot, int id) {
    const ProgramValue& value = values_[size_t(id)];
    uba_tensor& tensor = step.tensors[size_t(slot)];
    tensor.dtype = value.dtype;
    tensor.rank = int32_t(value.sizes.size());
    tensor.sizes = keep(step.integers, value.sizes);
    tensor.strides = keep(step.integers, value.strides);
    const int storage = storage_of(id);
    step.places.push_back({slot, storage, uint64_t(value.offset) * uint64_t(dtype_size(value.dtype))});
    Storage& touched = bound_->storages_[size_t(storage)];
    const int here = int(bound_->steps_.size());
    if (touched.first < 0) touched.first = here;
    touched.last = here;
  }

  void add_copy(int from, int to) {
    if (values_[size_t(from)].extent() == 0) return;
    const int64_t most = context_.routes->chip().max_rank;
    if (most > 0 && int64_t(values_[size_t(from)].sizes.size()) > most) {
      add_copies(values_[size_t(from)], values_[size_t(to)], size_t(most));
      return;
    }
    Step step;
    step.op = "uba::copy_nd";
    step.tensors.resize(2);
    put(step, 0, from);
    put(step, 1, to);
    bound_->steps_.push_back(std::move(step));
  }

  // A copy of more dimensions than the chip takes. Neighbours that both tensors walk through evenly become one; of what
  // is left, the shortest dimensions are walked through here, with a copy for each place.
  void add_copies(ProgramValue source, ProgramValue target, size_t most) {
    struct Dimension {
      int64_t size, from, to;
    };
    std::vector<Dimension> inner, outer;
    for (size_t d = 0; d < source.sizes.size(); d++) {
      const Dimension next{source.sizes[d], source.strides[d], target.strides[d]};
      if (next.size == 1) continue;
      if (!inner.empty() && inner.back().from == next.from * next.size && inner.back().to == next.to * next.size) {
        inner.back() = {inner.back().size * next.size, next.from, next.to};
      } else {
        inner.push_back(next);
      }
    }
    while (inner.size() > most) {
      auto shortest = std::min_element(inner.begin(), inner.end(),
                                       [](const Dimension& a, const Dimension& b) { return a.size < b.size; });
      outer.push_back(*shortest);
      inner.erase(shortest);
    }
    for (ProgramValue* view : {&source, &target}) {
      view->sizes.clear();
      view->strides.clear();
      for (const Dimension& d : inner) {
        view->sizes.push_back(d.size);
        view->strides.push_back(view == &source ? d.from : d.to);
      }
    }
    auto add_view = [&](const ProgramValue& value) {
      values_.push_back(value);
      storage_of_.push_back(-1);  // its base has one
      return int(values_.size()) - 1;
    };
    int64_t places = 1;
    for (const Dimension& d : outer) places *= d.size;
    for (int64_t place = 0; place < places; place++) {
      ProgramValue here = source, there = target;
      int64_t rest = place;
      for (const Dimension& d : outer) {
        here.offset += rest % d.size * d.from;
        there.offset += rest % d.size * d.to;
        rest /= d.size;
      }
      const int from = add_view(here), to = add_view(there);
      add_copy(from, to);
    }
  }

  bool add_step(const ProgramStep& step, std::string* why) {
    if (step.op == "uba::copy_nd") {  // the device's own n-dimensional copy
      note_output(step.outs.at(0));
      add_copy(int(step.args.at(0).i), step.outs.at(0));
      return true;
    }
    const bool nothing = std::all_of(step.outs.begin(), step.outs.end(),
                                     [&](int id) { return id < 0 || values_[size_t(id)].extent() == 0; });
    if (nothing) return true;  // kernels need not know tensors without elements
    const OpSchema* schema = context_.schema(step.op, step.overload);
    if (schema == nullptr) {
      *why = "there is no operator " + step.op;
      return false;
    }
    // As the decision sees it: values in the order of the arguments, tensors by id.
    std::vector<int> ids;
    std::vector<std::pair<size_t, size_t>> spans;  // of each argument, in `ids`
    for (const ProgramArg& arg : step.args) {
      spans.emplace_back(ids.size(), 0);
      if (arg.kind == ProgramArg::Kind::value) ids.push_back(int(arg.i));
      if (arg.kind == ProgramArg::Kind::values) {
        for (int64_t id : arg.integers) ids.push_back(int(id));
      }
      spans.back().second = ids.size() - spans.back().first;
    }
    Step made;
    made.op = step.op;
    made.values.resize(step.args.size());
    std::vector<uba_tensor> views;
    views.reserve(ids.size());
    for (int id : ids) views.push_back(id < 0 ? uba_tensor{} : view(id));
    for (size_t i = 0; i < step.args.size(); i++) fill_value(made, int(i), step.args[i], views.data() + spans[i].first);
    std::vector<uba_tensor> outputs;
    for (int id : step.outs) outputs.push_back(id < 0 ? uba_tensor{} : view(id));

    RouteTable::Query query;
    OpSchema own = *schema;
    own.at_default.assign(step.args.size(), true);
    query.call = {&own, made.values.data(), int(made.values.size()), outputs.data(), int(outputs.size())};
    query.available = [](void* adapter, const std::string& kernel) {
      return static_cast<const Adapter*>(adapter)->find_kernel(kernel) != nullptr;
    };
    query.context = const_cast<Adapter*>(context_.adapter);
    query.may_convert = false;
    const Decision decision = context_.routes->decide(query);
    if (decision.path != Path::native) {
      *why = step.op + ": " + decision.reason;
      return false;
    }
    std::vector<std::pair<int, int>> after;
    std::vector<int> outs = step.outs;
    for (int id : outs) {
      if (id >= 0) note_output(id);
    }
    for (const Transform& transform : decision.transforms) {
      int& id = transform.is_output ? outs[size_t(transform.arg)]
                                    : ids[spans[size_t(transform.arg)].first + size_t(transform.element)];
      const int stand_in = add_temporary(values_[size_t(id)], &transform.strides);
      if (transform.is_output) {
        after.emplace_back(stand_in, id);
      } else {
        add_copy(id, stand_in);
      }
      id = stand_in;
    }

    const uba_kernel* kernel = context_.adapter->find_kernel(decision.row->kernel);
    made.kernel = kernel->name;
    made.run = kernel->run;
    made.tag = kernel->tag;
    made.output_count = int(outs.size());
    made.tensors.resize(ids.size() + outs.size());
    for (size_t i = 0; i < ids.size(); i++) {
      if (ids[i] >= 0) put(made, int(i), ids[i]);
    }
    for (size_t i = 0; i < outs.size(); i++) {
      if (outs[i] >= 0) put(made, int(ids.size() + i), outs[i]);
    }
    for (size_t i = 0; i < step.args.size(); i++) {
      if (made.values[i].kind == UBA_TENSOR || made.values[i].kind == UBA_TENSOR_LIST)
        made.values[i].v.tensor = made.tensors.data() + spans[i].first;
    }
    size_t next_text = 0;
    for (uba_value& value : made.values) {
      if (value.kind == UBA_STRING) value.v.str = made.texts[next_text++].c_str();
    }
    bound_->steps_.push_back(std::move(made));
    for (const auto& [from, to] : after) add_copy(from, to);
    return true;
  }

  void note_output(int id) {
    if (bound_->storages_[size_t(storage_of(id))].kind == Storage::input) bound_->writes_inputs_ = true;
  }

  void fill_value(Step& step, int index, const ProgramArg& arg, const uba_tensor* tensors) {
    using Kind = ProgramArg::Kind;
    uba_value& value = step.values[size_t(index)];
    value.count = 1;
    switch (arg.kind) {
      case Kind::none:
        value.kind = UBA_NONE;
        break;
      case Kind::integer:
        value.kind = UBA_INT;
        value.v.i = arg.i;
        break;
      case Kind::real:
        value.kind = UBA_DOUBLE;
        value.v.d = arg.d;
        break;
      case Kind::text:
        step.texts.push_back(arg.text);
        value.kind = UBA_STRING;
        value.v.str = arg.text.c_str();  // the program's, until the step's own is linked
        break;
      case Kind::integers:
        value.kind = UBA_INT_LIST;
        value.count = uint32_t(arg.integers.size());
        value.v.ints = keep(step.integers, arg.integers);
        break;
      case Kind::reals:
        value.kind = UBA_DOUBLE_LIST;
        value.count = uint32_t(arg.reals.size());
        value.v.doubles = keep(step.reals, arg.reals);
        break;
      case Kind::value:
        value.kind = UBA_TENSOR;
        value.v.tensor = tensors;
        break;
      case Kind::values:
        value.kind = UBA_TENSOR_LIST;
        value.count = uint32_t(arg.integers.size());
        value.v.tensor = tensors;
        break;
      case Kind::number:
      case Kind::seed:
      case Kind::counter:
        value.kind = arg.kind == Kind::number ? UBA_DOUBLE : UBA_INT;
        value.v.i = 0;
        step.numbers.push_back({index, arg.kind, arg.i});
        break;
    }
  }

  // First fit, in the order of the steps: a temporary takes the lowest place that no other one needs at the same time.
  void place_scratch() {
    std::vector<Storage*> placed;
    std::vector<Storage*> order;
    for (Storage& storage : bound_->storages_) {
      if (storage.kind == Storage::scratch && storage.first >= 0 && storage.bytes > 0) order.push_back(&storage);
    }
    std::stable_sort(order.begin(), order.end(),
                     [](const Storage* a, const Storage* b) { return a->first < b->first; });
    const uint64_t unit = std::max<uint64_t>(context_.alignment, 64);
    for (Storage* storage : order) {
      const uint64_t bytes = (storage->bytes + unit - 1) / unit * unit;
      std::vector<std::pair<uint64_t, uint64_t>> taken;
      for (const Storage* other : placed) {
        if (other->last >= storage->first && storage->last >= other->first)
          taken.emplace_back(other->offset, other->offset + (other->bytes + unit - 1) / unit * unit);
      }
      std::sort(taken.begin(), taken.end());
      uint64_t at = 0;
      for (const auto& [begin, end] : taken) {
        if (begin >= at + bytes) break;
        at = std::max(at, end);
      }
      storage->offset = at;
      bound_->scratch_bytes_ = std::max(bound_->scratch_bytes_, at + bytes);
      placed.push_back(storage);
    }
  }

  const Program& program_;
  const BindContext& context_;
  std::unique_ptr<BoundProgram> bound_;
  std::vector<ProgramValue> values_;  // the program's, then those added here
  std::vector<int> storage_of_;       // of values that own their memory
  std::vector<std::pair<int, int>> result_copies_;
};

std::unique_ptr<BoundProgram> BoundProgram::bind(std::shared_ptr<const Program> program, const BindContext& context,
                                                 std::string* why) {
  return Binder(std::move(program), context).bind(why);
}

}  // namespace torchfl
