// test_kit.cpp: the kernel kit alone: what it builds and launches, what comes out, and what it keeps on disk.
#include <sys/stat.h>
#include <sys/wait.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <numeric>
#include <thread>

#include "check.h"
#include "host_device.h"

using namespace testing_kit;

namespace {

std::string said;  // by the kit, last
const uba_host the_host = {UBA_HEADER(uba_host), [](int64_t, const char* text) { said = text; },
                           [](int32_t, const char*) {}};

using Ints = std::vector<int64_t>;
struct Tensor {
  uba_tensor view{};
  Ints sizes, strides;
  Tensor(void* data, Ints of, int32_t dtype = UBA_DTYPE_FLOAT32, Ints steps = {}, uint64_t offset = 0)
      : sizes(std::move(of)), strides(std::move(steps)) {
    if (strides.empty() && !sizes.empty()) {
      strides.assign(sizes.size(), 1);
      for (size_t d = sizes.size() - 1; d-- > 0;) strides[d] = strides[d + 1] * sizes[d + 1];
    }
    view = {data, offset, sizes.data(), strides.data(), dtype, int32_t(sizes.size())};
  }
  Tensor(const Tensor&) = delete;
};
uba_value value(const Tensor& t) {
  uba_value v{UBA_TENSOR, 1, {}};
  return v.v.tensor = &t.view, v;
}
uba_value value(int64_t i) { return {UBA_INT, 1, {i}}; }
uba_value value(double d) {
  uba_value v{UBA_DOUBLE, 1, {}};
  return v.v.d = d, v;
}
uba_value value(const Ints& list) {
  uba_value v{UBA_INT_LIST, uint32_t(list.size()), {}};
  return v.v.ints = list.data(), v;
}
uba_value run_time_number(int64_t index) { return {UBA_NUMBER, 1, {index}}; }

const uba_kernel* entry(const std::string& name) {
  static const std::vector<uba_kernel> all = kit::kernels();
  for (const uba_kernel& k : all)
    if (k.name == name) return &k;
  check::fail(__FILE__, __LINE__, "the kit has no " + name);
  return nullptr;
}

struct Bench {  // a device, and tensors of it
  HostDevice device;
  std::deque<Tensor> tensors;
  Bench() { kit::host = &the_host; }
  void* handle() { return static_cast<kit::Device*>(&device); }
  Tensor& tensor(const Ints& sizes, int32_t dtype = UBA_DTYPE_FLOAT32) {
    const int64_t n = std::accumulate(sizes.begin(), sizes.end(), int64_t(1), std::multiplies<int64_t>());
    return tensors.emplace_back(device.memory(size_t(n) * 8), sizes, dtype);
  }
  template <class T>
  T* data(const Tensor& t) {
    return device.reach<T>(static_cast<char*>(t.view.data) + t.view.byte_offset);
  }
  // Counting from `first`.
  Tensor& floats(const Ints& sizes, float first) {
    Tensor& t = tensor(sizes);
    std::iota(data<float>(t), data<float>(t) + std::accumulate(sizes.begin(), sizes.end(), 1, std::multiplies<>()),
              first);
    return t;
  }
  uba_status call(const std::string& name, std::vector<uba_value> args, std::vector<const Tensor*> outputs) {
    std::vector<uba_tensor> views;
    for (const Tensor* t : outputs) views.push_back(t->view);
    const uba_call made = {UBA_HEADER(uba_call), name.c_str(),          args.data(), views.data(),
                           int32_t(args.size()), int32_t(views.size()), nullptr};
    return entry(name)->run(handle(), &made, entry(name)->tag);
  }
};

// A program under construction. `data` of its tensors is the number of a block.
struct Program {
  struct Step {
    std::vector<uba_value> args;
    uba_tensor output;
    uba_call call;
  };
  std::deque<Step> steps;
  std::deque<Tensor> tensors;
  Ints places;
  std::vector<uint8_t> dead;
  std::vector<uba_step> list;
  Tensor& block(const Ints& sizes, bool is_dead = false, int64_t place = -1, Ints strides = {}) {
    places.push_back(place), dead.push_back(is_dead);
    return tensors.emplace_back(reinterpret_cast<void*>(places.size() - 1), sizes, UBA_DTYPE_FLOAT32, strides);
  }
  void step(const std::string& name, std::vector<uba_value> args, const Tensor& out) {
    Step& s = steps.emplace_back(Step{std::move(args), out.view, {}});
    s.call = {UBA_HEADER(uba_call), "step", s.args.data(), &s.output, int32_t(s.args.size()), 1, nullptr};
    list.push_back({entry(name), &s.call});
  }
  uba_status compile(Bench& bench, void** compiled, int32_t numbers = 0) {
    const uba_program p = {UBA_HEADER(uba_program), "aten::thing", list.data(),   int64_t(list.size()),
                           int32_t(places.size()),  numbers,       places.data(), dead.data()};
    return kit::program_compile(bench.handle(), &p, compiled);
  }
};

// The cache of one test, and nothing of the user's.
struct Folder {
  std::filesystem::path path;
  explicit Folder(const std::string& name)
      : path(std::filesystem::temp_directory_path() / (name + std::to_string(getpid()))) {
    std::filesystem::remove_all(path);
    setenv("TORCHFL_CACHE_DIR", path.c_str(), 1);
  }
  ~Folder() {
    std::filesystem::remove_all(path);
    setenv("TORCHFL_CACHE_DIR", "", 1);
  }
  std::vector<std::filesystem::path> files() const {
    std::vector<std::filesystem::path> all;
    std::error_code none;
    for (const auto& at : std::filesystem::directory_iterator(path / "kit_test", none)) all.push_back(at.path());
    return all;
  }
};
bool near(double a, double b) { return std::fabs(a - b) <= 1e-5 * (1 + std::fabs(b)); }

}  // namespace

TEST(a_program_of_three_instructions_is_one_kernel_and_keeps_what_is_dead_in_registers) {
  Bench b;
  const Ints shape{40, 50};
  Program p;
  Tensor &x = p.block(shape), &row = p.block({50}), &t = p.block(shape, true), &u = p.block(shape, true),
         &y = p.block(shape);
  p.step("vmul", {value(x), value(x)}, t);
  p.step("vadd", {value(t), value(row)}, u);
  p.step("vmax", {value(u), run_time_number(0)}, y);
  void* compiled = nullptr;
  CHECK_EQ(p.compile(b, &compiled, 1), UBA_OK);
  CHECK_EQ(b.device.built.size(), 1u);
  const std::string& source = b.device.built[0];
  for (const char* part :
       {"KERNEL void k(const struct P p, GLOBAL float *m0", "r0 = (float)((x0) * (x0))", "((r0) + (x1))"})
    CHECK_CONTAINS(source, part);
  CHECK(source.find("m3") == std::string::npos);  // x, row and y are in memory; t and u are not

  Tensor &in = b.floats(shape, -700), &add = b.floats({50}, 1), &out = b.tensor(shape);
  const uba_value number = value(10.0);
  for (int turn = 0; turn < 2; turn++) {
    void* blocks[] = {in.view.data, add.view.data, nullptr, nullptr, out.view.data};
    const uba_run run = {UBA_HEADER(uba_run), nullptr, blocks, &number};
    CHECK_EQ(kit::program_run(b.handle(), compiled, &run), UBA_OK);
  }
  CHECK_EQ(b.device.built.size(), 1u);
  CHECK_EQ(b.device.queue.launches.size(), 2u);
  const Launch& launch = b.device.queue.launches[0];
  CHECK_EQ(launch.memories, 3u);
  // Sizes, offsets, strides by leaf, the number's bits: the row is broadcast along the first dimension.
  const Ints expected{40, 50, 0, 0, 0, 50, 1, 0, 1, 50, 1, launch.first.back()};
  CHECK(launch.first == expected);
  bool right = true;
  for (int64_t i = 0; i < 2000; i++) {
    const float v = b.data<float>(in)[i];
    right = right && b.data<float>(out)[i] == std::max(v * v + b.data<float>(add)[i % 50], 10.0f);
  }
  CHECK(right);
  CHECK_EQ(kit::program_release(b.handle(), compiled), UBA_OK);
}

TEST(a_step_that_needs_what_other_items_wrote_begins_another_kernel) {
  Bench b;
  const Ints shape{40, 40};
  Program p;
  Tensor &x = p.block(shape), &t = p.block(shape, true), &y = p.block(shape);
  Tensor turned(t.view.data, shape, UBA_DTYPE_FLOAT32, {1, 40});
  p.step("vneg", {value(x)}, t);
  p.step("vadd", {value(x), value(turned)}, y);
  void* compiled = nullptr;
  CHECK_EQ(p.compile(b, &compiled), UBA_OK);
  CHECK_EQ(b.device.built.size(), 2u);
  Tensor &in = b.floats(shape, 0), &room = b.tensor(shape), &out = b.tensor(shape);
  void* blocks[] = {in.view.data, room.view.data, out.view.data};
  const uba_run run = {UBA_HEADER(uba_run), nullptr, blocks, nullptr};
  CHECK_EQ(kit::program_run(b.handle(), compiled, &run), UBA_OK);
  CHECK_EQ(b.data<float>(out)[3 * 40 + 5], 3 * 40 + 5 - (5 * 40 + 3));
  kit::program_release(b.handle(), compiled);

  // Two blocks that share memory: what one kernel would write in the one, it might still have to read in the other.
  Program q;
  Tensor &a = q.block(shape), &c = q.block(shape, true, 0), &d = q.block(shape), &e = q.block(shape, false, 64);
  q.step("vneg", {value(a)}, c);
  q.step("vexp", {value(c)}, d);
  q.step("vabs", {value(d)}, e);
  b.device.built.clear();
  CHECK_EQ(q.compile(b, &compiled), UBA_OK);
  CHECK_EQ(b.device.built.size(), 1u);  // c stays in registers, so nothing overlaps
  kit::program_release(b.handle(), compiled);
  q.dead[1] = 0;
  CHECK_EQ(q.compile(b, &compiled), UBA_OK);
  CHECK_EQ(b.device.built.size(), 3u);
  kit::program_release(b.handle(), compiled);

  Program whole;
  Tensor &g = whole.block(shape), &h = whole.block({40});
  whole.step("reduce_sum", {value(g), value(Ints{1})}, h);
  CHECK_EQ(whole.compile(b, &compiled), UBA_NOT_SUPPORTED);
}

TEST(dimensions_are_joined_and_small_work_shares_one_kernel) {
  Bench b;
  b.device.compiles = false;
  Tensor &x = b.tensor({4, 8, 64}), &y = b.tensor({4, 8, 64});
  CHECK_EQ(b.call("vexp", {value(x)}, {&y}), UBA_OK);
  CHECK_EQ(b.device.queue.launches.back().range.global[0], 2048u);
  CHECK_EQ(b.device.queue.launches.back().first[0], 2048);
  for (const Ints& sizes : {Ints{}, Ints{7}, Ints{3, 4}, Ints{2, 3, 4}}) {
    Tensor &in = b.tensor(sizes), &out = b.tensor(sizes);
    CHECK_EQ(b.call("vlog", {value(in)}, {&out}), UBA_OK);
  }
  CHECK_EQ(b.device.built.size(), 2u);
  Tensor &none = b.tensor({0, 4}), &nothing = b.tensor({0, 4});
  CHECK_EQ(b.call("vsin", {value(none)}, {&nothing}), UBA_OK);
  CHECK_EQ(b.device.queue.launches.size(), 5u);
}

TEST(vectors_are_used_where_the_device_has_them) {
  Bench b;
  b.device.compiles = false, b.device.lanes = 4;
  Tensor &x = b.tensor({1000, 2}), &y = b.tensor({1000, 2}), &whole = b.tensor({1000, 2}, UBA_DTYPE_INT64);
  CHECK_EQ(b.call("vexp", {value(x)}, {&y}), UBA_OK);
  CHECK_CONTAINS(b.device.built.back(), "#define V 4");
  CHECK_CONTAINS(b.device.built.back(), "const float4 x0 = LDV_num(m0, a0, left)");
  CHECK_EQ(b.device.queue.launches.back().range.global[0], 512u);  // 2000 / 4, a multiple of the work-group's 64
  CHECK_EQ(b.call("vneg", {value(whole)}, {&whole}), UBA_OK);
  CHECK_CONTAINS(b.device.built.back(), "#define V 1");
}

TEST(operators_are_right_in_another_language) {
  Bench b;
  Tensor &x = b.floats({6, 5}, -10), &sum = b.tensor({6}), &top = b.tensor({6, 5});
  CHECK_EQ(b.call("reduce_sum", {value(x), value(Ints{1})}, {&sum}), UBA_OK);
  CHECK_EQ(b.data<float>(sum)[0], -40.0f);
  CHECK_EQ(b.data<float>(sum)[5], 85.0f);

  Tensor &w = b.floats({5, 3}, 0), &product = b.tensor({6, 3});
  CHECK_EQ(b.call("matmul", {value(x), value(w)}, {&product}), UBA_OK);
  bool right = true;
  for (int i = 0; i < 6; i++)
    for (int j = 0; j < 3; j++) {
      float expected = 0;
      for (int k = 0; k < 5; k++) expected += b.data<float>(x)[i * 5 + k] * b.data<float>(w)[k * 3 + j];
      right = right && near(b.data<float>(product)[i * 3 + j], expected);
    }
  CHECK(right);

  CHECK_EQ(b.call("softmax", {value(x), value(int64_t(1)), value(int64_t(0))}, {&top}), UBA_OK);
  CHECK(near(b.data<float>(top)[4], 1 / (1 + std::exp(-1) + std::exp(-2) + std::exp(-3) + std::exp(-4))));

  Tensor &image = b.floats({1, 1, 4, 4}, 0), &window = b.floats({1, 1, 3, 3}, 1), &map = b.tensor({1, 1, 2, 2});
  const Ints ones{1, 1}, zeros{0, 0};
  CHECK_EQ(b.call("convolution",
                  {value(image),
                   value(window),
                   {UBA_NONE, 1, {}},
                   value(ones),
                   value(zeros),
                   value(ones),
                   value(int64_t(0)),
                   value(zeros),
                   value(int64_t(1))},
                  {&map}),
           UBA_OK);
  float corner = 0;
  for (int i = 0; i < 9; i++) corner += float(i + 1) * float(i / 3 * 4 + i % 3);
  CHECK_EQ(b.data<float>(map)[0], corner);

  Tensor &mixed = b.tensor({5}), &order = b.tensor({5}, UBA_DTYPE_INT64), &sorted = b.tensor({5});
  const float numbers[] = {3, -1, NAN, 7, 0};
  std::copy(numbers, numbers + 5, b.data<float>(mixed));
  CHECK_EQ(b.call("sort", {value(mixed), value(int64_t(0)), value(int64_t(0))}, {&sorted, &order}), UBA_OK);
  const int64_t expected[] = {1, 4, 0, 3, 2};
  CHECK(std::equal(expected, expected + 5, b.data<int64_t>(order)));
  CHECK_EQ(b.data<float>(sorted)[3], 7.0f);

  // Philox 4x32-10 with counter and key 0: the numbers of its authors.
  Tensor& bits = b.tensor({2}, UBA_DTYPE_INT64);
  CHECK_EQ(b.call("random_bits", {value(Ints{2}), value(int64_t(0)), value(int64_t(0))}, {&bits}), UBA_OK);
  CHECK_EQ(uint64_t(b.data<int64_t>(bits)[0]), 0xe169c58d6627e8d5u >> 1);

  Tensor &halves = b.tensor({3}, UBA_DTYPE_FLOAT16), &wide = b.tensor({3});
  const uint16_t stored[] = {0x3c00, 0xc100, 0x0001};  // 1, -2.5, the smallest
  std::copy(stored, stored + 3, b.data<uint16_t>(halves));
  CHECK_EQ(kit::copy_nd(b.handle(), nullptr, &wide.view, &halves.view), UBA_OK);
  CHECK_EQ(b.data<float>(wide)[1], -2.5f);
  CHECK_EQ(b.data<float>(wide)[2], std::ldexp(1.0f, -24));
  CHECK_EQ(kit::copy_nd(b.handle(), nullptr, &halves.view, &wide.view), UBA_OK);
  CHECK(std::equal(stored, stored + 3, b.data<uint16_t>(halves)));
}

TEST(an_index_out_of_range_sets_the_fault_of_the_stream_and_reads_nothing) {
  Bench b;
  Tensor &x = b.floats({4}, 0), &index = b.tensor({3}, UBA_DTYPE_INT64), &y = b.tensor({3});
  const int64_t places[] = {2, 9, 0};
  std::copy(places, places + 3, b.data<int64_t>(index));
  CHECK_EQ(b.call("gather", {value(x), value(index), value(int64_t(0))}, {&y}), UBA_OK);
  CHECK_EQ(b.device.queue.flag, 1);
  CHECK_EQ(b.data<float>(y)[0], 2.0f);
  CHECK_EQ(b.data<float>(y)[1], 0.0f);
}

TEST(threads_that_share_a_stream_take_turns) {  // or each would write to the scratch memory of the other
  Bench b;
  b.device.compiles = false;
  std::atomic<int> came{0};
  bool met = false;
  b.device.queue.in_scratch = [&] {
    if (came++ > 0) return;
    for (int i = 0; i < 300 && came < 2; i++) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    met = came > 1;
  };
  auto sort = [&](const Tensor& x, const Tensor& y, const Tensor& order) {
    CHECK_EQ(b.call("sort", {value(x), value(int64_t(0)), value(int64_t(0))}, {&y, &order}), UBA_OK);
  };
  Tensor &x = b.tensor({64}), &y = b.tensor({64}), &order = b.tensor({64}, UBA_DTYPE_INT64);
  Tensor &other = b.tensor({64}), &other_order = b.tensor({64}, UBA_DTYPE_INT64);
  std::thread first([&] { sort(x, y, order); }), second([&] { sort(x, other, other_order); });
  first.join(), second.join();
  CHECK_EQ(came.load(), 2);
  CHECK(!met);
}

TEST(a_vendor_may_have_its_own_matrix_product) {
  Bench b;
  b.device.queue.takes_products = true;
  Tensor &x = b.floats({12, 5}, 0), &y = b.tensor({12, 3}), &row = b.floats({3}, 1);
  Tensor& w = b.tensors.emplace_back(b.device.memory(60), Ints{5, 3}, UBA_DTYPE_FLOAT32, Ints{1, 5});
  CHECK_EQ(b.call("matmul", {value(x), value(w)}, {&y}), UBA_OK);
  CHECK_EQ(b.device.built.size(), 0u);
  CHECK_EQ(b.call("matmul", {value(row), value(x), value(w), value(2.0), value(3.0)}, {&y}), UBA_OK);
  CHECK_EQ(b.data<float>(y)[5], 3.0f);  // what is added lies in the result
  CHECK_EQ(b.device.queue.products.size(), 2u);
  const kit::Matmul& p = b.device.queue.products.back();
  CHECK_EQ(p.M, 12), CHECK_EQ(p.N, 3), CHECK_EQ(p.K, 5), CHECK_EQ(p.batch, 1);
  CHECK_EQ(p.b.row, 1), CHECK_EQ(p.b.column, 5);
  CHECK_EQ(p.beta, 2.0), CHECK_EQ(p.alpha, 3.0), CHECK_EQ(b.device.queue.products[0].beta, 0.0);
  CHECK(p.y.at.memory == b.device.at(y.view.data).memory);
}

TEST(what_fails_is_told_and_not_kept) {
  Bench b;
  Tensor &x = b.tensor({4}, UBA_DTYPE_FLOAT64), &z = b.tensor({4}, UBA_DTYPE_COMPLEX64), &y = b.tensor({4});
  CHECK_EQ(b.call("vneg", {value(x)}, {&x}), UBA_NOT_SUPPORTED);
  CHECK_CONTAINS(said, "the host has no double precision");
  CHECK_EQ(b.call("vneg", {value(z)}, {&z}), UBA_NOT_SUPPORTED);
  b.device.dialect += "#error no such luck\n";
  for (int turn = 1; turn <= 2; turn++) {
    CHECK_EQ(b.call("vneg", {value(y)}, {&y}), UBA_FAILED);
    CHECK_CONTAINS(said, "no such luck");
    CHECK_EQ(b.device.built.size(), size_t(turn));
  }
  Bench other;
  Tensor stray(reinterpret_cast<void*>(64), {4});
  CHECK_EQ(other.call("vneg", {value(stray)}, {&stray}), UBA_INVALID_VALUE);
}

TEST(kernels_are_kept_on_disk_by_all_they_depend_on) {
  Folder folder("kit_kept");
  auto add = [&](const std::string& versions, int* loaded) {
    Bench b;
    b.device.versions = versions;
    Tensor &x = b.floats({4}, 0), &y = b.tensor({4});
    CHECK_EQ(b.call("vadd", {value(x), value(x)}, {&y}), UBA_OK);
    CHECK_EQ(b.data<float>(y)[3], 6.0f);
    *loaded = b.device.loaded;
    return b.device.built.size();
  };
  int loaded = 0;
  CHECK_EQ(add("1", &loaded), 1u), CHECK_EQ(loaded, 0);
  CHECK_EQ(add("1", &loaded), 0u), CHECK_EQ(loaded, 1);
  CHECK_EQ(add("2", &loaded), 1u), CHECK_EQ(loaded, 0);
  CHECK_EQ(folder.files().size(), 2u);
  for (const auto& file : folder.files()) std::filesystem::resize_file(file, std::filesystem::file_size(file) / 2);
  CHECK_EQ(add("1", &loaded), 1u), CHECK_EQ(loaded, 0);  // torn: built and kept again
  CHECK_EQ(add("1", &loaded), 0u), CHECK_EQ(loaded, 1);
}

TEST(the_cache_is_shared_by_processes_and_bounded) {
  Folder folder("kit_shared");
  auto build_all = [](uint64_t kept) {
    Bench b;
    b.device.compiles = false, b.device.kept_bytes = kept;
    Tensor &x = b.tensor({4}), &y = b.tensor({4});
    for (const char* name : {"vneg", "vabs", "vexp", "vlog", "vsin", "vcos", "vtanh", "verf"})
      CHECK_EQ(b.call(name, {value(x)}, {&y}), UBA_OK);
    return b.device.built.size();
  };
  std::vector<pid_t> children;
  for (int i = 0; i < 4; i++) {
    const pid_t child = fork();
    if (child == 0) {
      const int before = check::failures();
      build_all(1 << 20);
      _exit(check::failures() == before ? 0 : 1);
    }
    children.push_back(child);
  }
  for (pid_t child : children) {
    int status = 1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
  }
  CHECK_EQ(folder.files().size(), 8u);
  CHECK_EQ(build_all(1 << 20), 0u);
  Bench b;
  b.device.compiles = false, b.device.kept_bytes = 60;
  Tensor &x = b.tensor({4}), &y = b.tensor({4});
  CHECK_EQ(b.call("vfloor", {value(x)}, {&y}), UBA_OK);
  uint64_t bytes = 0;
  for (const auto& file : folder.files()) bytes += std::filesystem::file_size(file);
  CHECK(bytes > 0 && bytes <= 60);
}

int main(int argc, char** argv) {
  setenv("TORCHFL_CACHE_DIR", "", 1);
  return check::run_tests(argc, argv);
}
