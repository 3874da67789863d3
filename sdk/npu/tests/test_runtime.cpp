// test_runtime.cpp: devices, memory, streams, events, faults, fork and exit.
//
// Cases that need another environment run in a child of this program: `test_runtime CASE` with variables set.
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <atomic>
#include <chrono>
#include <thread>

#include "check.h"

namespace {

double seconds() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Runs f in a forked child; returns its exit code, or minus the signal that ended it.
int in_child(const std::function<int()>& f) {
  std::fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) _exit(f());
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Runs this program again for one case, with `NAME=VALUE` pairs in its environment.
int run_case(const char* name, std::vector<std::string> environment) {
  return in_child([&] {
    for (auto& pair : environment) putenv(&pair[0]);
    execl("/proc/self/exe", "test_runtime", name, nullptr);
    return 99;
  });
}

void statuses() {
  CHECK(std::string(npu_status_name(NPU_STATUS_DEVICE_LOST)) == "NPU_STATUS_DEVICE_LOST");
  CHECK(std::string(npu_status_name(77)) == "NPU_STATUS_UNKNOWN");
  CHECK(std::string(npu_sdk_version()) == "1.2.0");
}

void devices() {
  int32_t count = 0;
  OK(npu_device_count(&count));
  CHECK(count == 2);
  npu_device_t device = nullptr;
  REFUSED(npu_device_open(2, &device), NPU_STATUS_NO_DEVICE, "there are 2 devices");
  REFUSED(npu_device_open(-1, &device), NPU_STATUS_NO_DEVICE, "npu_device_open");
  REFUSED(npu_device_properties(nullptr, nullptr), NPU_STATUS_INVALID_VALUE, "NULL");
  Bench b;
  npu_props_t p;
  OK(npu_device_properties(b.device, &p));
  CHECK(std::string(p.name) == "NPU-V3" && p.alignment == 256 && p.max_rank == 6 && p.fp16_units == 256);
  CHECK(p.int8_units == 512 && p.clock_mhz == 1000 && p.on_chip_cache_bytes == 8u << 20);
  double utilization, watts, celsius, busy;
  OK(npu_device_telemetry(b.device, &utilization, &watts, &celsius, &busy));
  CHECK(utilization >= 0 && utilization <= 1 && watts > 0 && celsius > 20 && celsius < 90);
}

void memory() {
  Bench b;
  uint64_t free_before, total, free_now;
  OK(npu_mem_info(b.device, &free_before, &total));
  CHECK(total == uint64_t(64) << 20 && free_before == total);
  void *a = nullptr, *c = nullptr, *d = nullptr;
  OK(npu_malloc(b.device, 1, &a));
  OK(npu_malloc(b.device, 513, &c));
  OK(npu_malloc(b.device, 512, &d));
  CHECK(uint64_t(a) % 512 == 0 && uint64_t(c) == uint64_t(a) + 512 && uint64_t(d) == uint64_t(c) + 1024);
  OK(npu_mem_info(b.device, &free_now, &total));
  CHECK(free_before - free_now == 2048);
  REFUSED(npu_malloc(b.device, uint64_t(64) << 20, &a), NPU_STATUS_OUT_OF_MEMORY, "the largest block");
  CHECK(a == nullptr);
  REFUSED(npu_malloc(b.device, UINT64_MAX, &a), NPU_STATUS_OUT_OF_MEMORY, "wanted");
  a = static_cast<char*>(c) - 512;
  int host = 0;
  REFUSED(npu_free(b.device, &host), NPU_STATUS_INVALID_ADDRESS, "not device memory");
  REFUSED(npu_free(b.device, static_cast<char*>(c) + 256), NPU_STATUS_INVALID_ADDRESS, "inner address");
  // best fit: the hole of 1024 takes 1024, and freeing everything gives one block again
  OK(npu_free(b.device, c));
  REFUSED(npu_free(b.device, c), NPU_STATUS_INVALID_ADDRESS, "freed twice");
  void* e = nullptr;
  OK(npu_malloc(b.device, 1024, &e));
  CHECK(e == c);
  OK(npu_free(b.device, a));
  OK(npu_free(b.device, d));
  OK(npu_free(b.device, e));
  OK(npu_malloc(b.device, total, &a));
  OK(npu_free(b.device, a));
  OK(npu_free(b.device, nullptr));
  OK(npu_malloc(b.device, 0, &a));
  CHECK(a == nullptr);

  OK(npu_malloc(b.device, 4096, &a));
  CHECK(in_child([&] {
          signal(SIGSEGV, SIG_DFL);
          volatile char* p = static_cast<char*>(a);
          return int(*p);
        }) != 0);
  OK(npu_free(b.device, a));

  // random pattern of blocks, contents kept
  std::mt19937 g(1);
  struct Block {
    void* address;
    uint64_t bytes;
    uint8_t tag;
  };
  std::vector<Block> live;
  for (int i = 0; i < 400; i++) {
    if (live.size() > 20 || (live.size() && g() % 3 == 0)) {
      size_t k = g() % live.size();
      std::vector<uint8_t> back(live[k].bytes);
      OK(npu_memcpy_async(b.stream, back.data(), live[k].address, back.size(), NPU_COPY_TO_HOST));
      OK(npu_stream_synchronize(b.stream));
      bool same = true;
      for (uint8_t x : back) same &= x == live[k].tag;
      CHECK(same);
      OK(npu_free(b.device, live[k].address));
      live.erase(live.begin() + long(k));
    } else {
      Block n{nullptr, 1 + g() % (i % 7 ? 5000 : 3000000), uint8_t(g())};
      OK(npu_malloc(b.device, n.bytes, &n.address));
      OK(npu_memset_async(b.stream, n.address, n.tag, n.bytes));
      live.push_back(n);
    }
  }
  for (auto& n : live) OK(npu_free(b.device, n.address));
  OK(npu_mem_info(b.device, &free_now, &total));
  CHECK(free_now == total);
}

void addresses() {
  Bench b, other(1);
  Tensor x(b, NPU_FLOAT16, {4, 100}), far(other, NPU_FLOAT16, {4, 100});
  auto with = [&](npu_tensor_t t, int64_t bytes) {
    t.address = static_cast<char*>(t.address) + bytes;
    return t;
  };
  npu_tensor_t t = with(x.desc, 2);
  npu_scalar_t zero = real(0);
  // DMA takes any element address, but not one beyond the allocation (1024 bytes for these 800)
  int64_t small[] = {2, 100};
  t.shape = small;
  OK(npu_v3_fill_nd(b.stream, &t, zero));
  t = with(x.desc, 1);
  t.shape = small;
  REFUSED(npu_v3_fill_nd(b.stream, &t, zero), NPU_STATUS_INVALID_ADDRESS, "not the address of an element");
  t = with(x.desc, 512);
  REFUSED(npu_v3_fill_nd(b.stream, &t, zero), NPU_STATUS_INVALID_ADDRESS, "reaches beyond its allocation");
  t = with(x.desc, 1 << 20);
  REFUSED(npu_v3_fill_nd(b.stream, &t, zero), NPU_STATUS_INVALID_ADDRESS, "not allocated");
  REFUSED(npu_v3_fill_nd(b.stream, far, zero), NPU_STATUS_INVALID_ADDRESS, "belongs to device 1");
  t = x.desc;
  t.address = &t;
  REFUSED(npu_v3_fill_nd(b.stream, &t, zero), NPU_STATUS_INVALID_ADDRESS, "not memory of device 0");
  t = x.desc;
  t.rank = 7;
  REFUSED(npu_v3_fill_nd(b.stream, &t, zero), NPU_STATUS_NOT_SUPPORTED, "rank 7");
  t = x.desc;
  t.dtype = 11;
  REFUSED(npu_v3_fill_nd(b.stream, &t, zero), NPU_STATUS_INVALID_VALUE, "11 is not a dtype");
  int64_t huge[] = {INT64_MAX / 2, 8};
  t = x.desc;
  t.shape = huge;
  t.stride = huge;
  REFUSED(npu_v3_fill_nd(b.stream, &t, zero), NPU_STATUS_INVALID_ADDRESS, "reaches beyond");
  int64_t negative[] = {-1, 8};
  t.shape = negative;
  REFUSED(npu_v3_fill_nd(b.stream, &t, zero), NPU_STATUS_INVALID_VALUE, "negative");
  REFUSED(npu_v3_fill_nd(b.stream, nullptr, zero), NPU_STATUS_INVALID_VALUE, "NULL");
  REFUSED(npu_v3_fill_nd(nullptr, x, zero), NPU_STATUS_INVALID_VALUE, "stream");
  // nothing is touched where there are no elements
  int64_t none[] = {0, 100};
  t = {nullptr, none, x.stride.data(), NPU_FLOAT16, 2};
  OK(npu_v3_fill_nd(b.stream, &t, zero));
  // the compute units demand alignment
  int64_t shape[] = {8, 8}, stride[] = {8, 1};
  npu_tensor_t m = {static_cast<char*>(x.address) + 128, shape, stride, NPU_FLOAT16, 2};
  npu_tensor_t ok = {x.address, shape, stride, NPU_FLOAT16, 2};
  REFUSED(npu_v3_matmul(b.stream, &m, &ok, nullptr, 1, 0, &ok), NPU_STATUS_INVALID_ADDRESS, "multiple of 256");
  char host[64];
  REFUSED(npu_memcpy_async(b.stream, host, x.address, 2000, NPU_COPY_TO_HOST), NPU_STATUS_INVALID_ADDRESS,
          "ends after 1024");
  REFUSED(npu_memcpy_async(b.stream, x.address, x.address, 8, NPU_COPY_TO_HOST), NPU_STATUS_INVALID_ADDRESS,
          "expected host memory");
  REFUSED(npu_memcpy_async(b.stream, x.address, host, 8, 9), NPU_STATUS_INVALID_VALUE, "kind");
}

void streams_and_events() {
  Bench b;
  npu_stream_t s1, s2;
  OK(npu_stream_create(b.device, 0, &s1));
  OK(npu_stream_create(b.device, 1, &s2));
  npu_event_t e1, e2;
  OK(npu_event_create(b.device, &e1));
  OK(npu_event_create(b.device, &e2));
  double ms = -1;
  REFUSED(npu_event_elapsed(e1, e2, &ms), NPU_STATUS_INVALID_VALUE, "never recorded");
  OK(npu_event_query(e1));
  OK(npu_event_synchronize(e1));
  OK(npu_event_wait(e1, s1));
  // a chain through two streams: every link must see the one before
  Tensor x(b, NPU_INT32, {1}), big(b, NPU_FLOAT32, {1 << 20});
  std::vector<int32_t> seen(300, -1);
  for (int i = 0; i < 300; i++) {
    npu_stream_t s = i % 2 ? s1 : s2;
    if (i) OK(npu_event_wait(e1, s));
    if (i % 50 == 0) OK(npu_v3_fill_nd(s, big, real(i)));
    OK(npu_memcpy_async(s, &seen[size_t(i)], x.address, 4, NPU_COPY_TO_HOST));
    OK(npu_v3_fill_nd(s, x, whole(i + 1)));
    OK(npu_event_record(e1, s));
  }
  OK(npu_stream_synchronize(s1));
  OK(npu_stream_synchronize(s2));
  CHECK(npu_stream_query(s1) == NPU_STATUS_SUCCESS);
  bool ordered = true;
  for (int i = 0; i < 300; i++) ordered &= seen[size_t(i)] == i;
  CHECK(ordered);
  // the virtual clock: 4 MiB at 256 bytes a cycle, and the 100 of a launch
  uint64_t before, after;
  OK(npu_device_cycles(b.device, &before));
  OK(npu_event_record(e1, s1));
  OK(npu_v3_fill_nd(s1, big, real(1)));
  OK(npu_event_record(e2, s1));
  OK(npu_event_synchronize(e2));
  OK(npu_event_elapsed(e1, e2, &ms));
  OK(npu_device_cycles(b.device, &after));
  CHECK(after - before == 100 + (4 << 20) / 256);
  CHECK(std::fabs(ms - double(after - before) / 1e6) < 1e-9);
  // what the host waited for is in the past of what it submits to another stream
  OK(npu_event_record(e1, s2));
  OK(npu_event_synchronize(e1));
  OK(npu_event_elapsed(e2, e1, &ms));
  CHECK(ms >= 0);
  OK(npu_event_destroy(e2));
  REFUSED(npu_event_query(e2), NPU_STATUS_INVALID_VALUE, "event: ");
  OK(npu_event_record(e1, s1));
  OK(npu_event_destroy(e1));
  OK(npu_stream_destroy(s1));
  REFUSED(npu_stream_synchronize(s1), NPU_STATUS_INVALID_VALUE, "destroyed");
  OK(npu_stream_destroy(s2));
  REFUSED(npu_stream_destroy(b.stream), NPU_STATUS_INVALID_VALUE, "default stream");
}

void two_devices() {
  Bench a(0), b(1);
  Tensor x(a, NPU_FLOAT32, {1000}), y(b, NPU_FLOAT32, {1000});
  x.fill([](int64_t i) { return double(i); });
  OK(npu_memcpy_peer_async(b.stream, y.address, a.device, x.address, 4000));
  y.download();
  CHECK(y.at(999) == 999);
  REFUSED(npu_memcpy_peer_async(b.stream, x.address, a.device, x.address, 4000), NPU_STATUS_INVALID_ADDRESS,
          "device 0");
  REFUSED(npu_free(b.device, x.address), NPU_STATUS_INVALID_ADDRESS, "belongs to device 0");
  npu_event_t e;
  OK(npu_event_create(a.device, &e));
  REFUSED(npu_event_record(e, b.stream), NPU_STATUS_INVALID_VALUE, "device");
  OK(npu_event_record(e, a.stream));
  OK(npu_event_wait(e, b.stream));
  OK(npu_stream_synchronize(b.stream));
  OK(npu_event_destroy(e));
}

void closing() {
  npu_device_t d = nullptr, again = nullptr;
  npu_stream_t s = nullptr;
  OK(npu_device_open(0, &d));
  OK(npu_device_open(0, &again));
  CHECK(d == again);
  OK(npu_stream_create(d, 0, &s));
  OK(npu_device_close(again));
  OK(npu_stream_synchronize(s));
  void* p;
  OK(npu_malloc(d, 1 << 20, &p));
  OK(npu_device_close(d));
  REFUSED(npu_stream_synchronize(s), NPU_STATUS_INVALID_VALUE, "destroyed");
  REFUSED(npu_malloc(d, 16, &p), NPU_STATUS_INVALID_VALUE, "closed");
  REFUSED(npu_device_close(d), NPU_STATUS_INVALID_VALUE, "closed");
  Bench b;
  uint64_t available, total;
  OK(npu_mem_info(b.device, &available, &total));
  CHECK(available == total);
  Tensor x(b, NPU_INT32, {4});
  OK(npu_v3_fill_nd(b.stream, x, whole(4)));
  CHECK(x.download().at(3) == 4);
}

void many_threads() {
  Bench b;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; t++) {
    threads.emplace_back([&, t] {
      npu_stream_t own, s = b.stream;
      if (npu_stream_create(b.device, 0, &own)) wrong++;
      if (t % 2) s = own;
      for (int i = 0; i < 300; i++) {
        void* p = nullptr;
        int32_t value = t * 1000 + i, back[2] = {0, 0};
        int64_t shape[] = {2}, stride[] = {1};
        if (npu_malloc(b.device, 8 + uint64_t(i) * 100, &p)) wrong++;
        npu_tensor_t x = {p, shape, stride, NPU_INT32, 1};
        if (npu_v3_fill_nd(s, &x, whole(value))) wrong++;
        if (npu_memcpy_async(s, back, p, 8, NPU_COPY_TO_HOST)) wrong++;
        if (npu_stream_synchronize(s)) wrong++;
        if (back[1] != value) wrong++;
        if (npu_free(b.device, p)) wrong++;
      }
      if (npu_stream_destroy(own)) wrong++;
    });
  }
  for (auto& t : threads) t.join();
  CHECK(wrong == 0);
}

void forked() {
  Bench b;
  Tensor x(b, NPU_INT32, {4});
  double start = seconds();
  int code = in_child([&] {
    int32_t count = 0;
    npu_device_t d;
    void* p;
    bool ok = npu_device_count(&count) == NPU_STATUS_SUCCESS && count == 2;
    ok &= npu_device_open(0, &d) == NPU_STATUS_NOT_SUPPORTED;
    ok &= std::strstr(npu_last_error_text(), "fork") != nullptr;
    ok &= npu_malloc(b.device, 64, &p) == NPU_STATUS_NOT_SUPPORTED;
    ok &= npu_v3_fill_nd(b.stream, x, whole(1)) == NPU_STATUS_NOT_SUPPORTED;
    ok &= npu_stream_synchronize(b.stream) == NPU_STATUS_NOT_SUPPORTED;
    ok &= npu_v3_add(nullptr, nullptr, nullptr, 1, nullptr, nullptr) == NPU_STATUS_NOT_SUPPORTED;
    return ok ? 0 : 1;
  });
  CHECK(code == 0);
  CHECK(in_child([] {
          std::exit(7);
          return 0;
        }) == 7);  // exit handlers run in a child too
  CHECK(seconds() - start < 2);
}

// ---- cases with an environment of their own

void untouched_before_fork() {
  int32_t count = 0;
  OK(npu_device_count(&count));
  int code = in_child([] {
    Bench b;
    Tensor x(b, NPU_INT32, {4});
    OK(npu_v3_fill_nd(b.stream, x, whole(3)));
    return x.download().at(3) == 3 && g_failures == 0 ? 0 : 1;
  });
  CHECK(code == 0);
}

void older_chip() {
  Bench b;
  npu_props_t p;
  OK(npu_device_properties(b.device, &p));
  CHECK(std::string(p.name) == "NPU-V2" && p.max_rank == 5 && p.alignment == 512 && p.fp16_units == 128);
  CHECK(std::string(npu_sdk_version()) == "1.2.1");
  Tensor x(b, NPU_FLOAT16, {1, 1, 1, 1, 1, 1}), y(b, NPU_FLOAT16, {32, 32});
  REFUSED(npu_v3_fill_nd(b.stream, x, real(0)), NPU_STATUS_NOT_SUPPORTED, "NPU-V2 supports 0 to 5");
  int64_t shape[] = {8, 8}, stride[] = {8, 1};
  npu_tensor_t t = {static_cast<char*>(y.address) + 256, shape, stride, NPU_FLOAT16, 2};
  REFUSED(npu_v3_matmul(b.stream, &t, &t, nullptr, 1, 0, y), NPU_STATUS_INVALID_ADDRESS, "multiple of 512");
}

void no_devices() {
  int32_t count = 9;
  OK(npu_device_count(&count));
  CHECK(count == 0);
  npu_device_t d;
  REFUSED(npu_device_open(0, &d), NPU_STATUS_NO_DEVICE, "there are 0 devices");
}

// NPU_SIM_FAULT=kernel:npu_v3_fill_nd:2,async:npu_v3_fill_nd:4,oom:2
void failing_kernels() {
  Bench b;
  Tensor x(b, NPU_INT32, {4});  // the first npu_malloc
  void* p = nullptr;
  REFUSED(npu_malloc(b.device, 16, &p), NPU_STATUS_OUT_OF_MEMORY, "injected");
  OK(npu_malloc(b.device, 16, &p));
  OK(npu_v3_fill_nd(b.stream, x, whole(1)));
  REFUSED(npu_v3_fill_nd(b.stream, x, whole(2)), NPU_STATUS_EXECUTION_FAILED, "injected");
  CHECK(x.download().at(0) == 1);
  OK(npu_v3_fill_nd(b.stream, x, whole(3)));
  OK(npu_v3_fill_nd(b.stream, x, whole(4)));
  REFUSED(npu_stream_synchronize(b.stream), NPU_STATUS_EXECUTION_FAILED, "npu_v3_fill_nd");
  OK(npu_stream_synchronize(b.stream));
  CHECK(x.download().at(0) == 3);
}

// NPU_SIM_FAULT=hang:npu_v3_fill_nd:1:1 with a time-out of 200 ms
void hanging_stream() {
  Bench a(0);
  npu_device_t lost;
  npu_stream_t s, side;
  npu_event_t e;
  OK(npu_device_open(1, &lost));
  OK(npu_default_stream(lost, &s));
  OK(npu_stream_create(lost, 0, &side));
  OK(npu_event_create(lost, &e));
  void* p;
  OK(npu_malloc(lost, 4096, &p));
  int64_t shape[] = {4}, stride[] = {1};
  npu_tensor_t x = {p, shape, stride, NPU_INT32, 1};
  Tensor y(a, NPU_INT32, {4});
  OK(npu_v3_fill_nd(a.stream, y, whole(5)));
  OK(npu_v3_fill_nd(s, &x, whole(5)));
  OK(npu_event_record(e, s));
  OK(npu_event_wait(e, a.stream));  // the healthy device waits for the one that hangs
  CHECK(npu_stream_query(s) == NPU_STATUS_NOT_READY);
  double start = seconds();
  REFUSED(npu_stream_synchronize(s), NPU_STATUS_TIMEOUT, "no progress for 200 ms");
  CHECK(seconds() - start < 1.0);
  REFUSED(npu_stream_synchronize(side), NPU_STATUS_DEVICE_LOST, "device 1 is lost");
  REFUSED(npu_malloc(lost, 16, &p), NPU_STATUS_DEVICE_LOST, "open it again");
  REFUSED(npu_v3_fill_nd(s, &x, whole(5)), NPU_STATUS_DEVICE_LOST, "npu_v3_fill_nd");
  REFUSED(npu_stream_synchronize(a.stream), NPU_STATUS_EXECUTION_FAILED, "device was lost");
  OK(npu_v3_fill_nd(a.stream, y, whole(6)));
  CHECK(y.download().at(3) == 6);
  OK(npu_device_close(lost));
  Bench fresh(1);
  Tensor z(fresh, NPU_INT32, {4});
  OK(npu_v3_fill_nd(fresh.stream, z, whole(7)));
  CHECK(z.download().at(3) == 7);
}

// NPU_SIM_FAULT=lost:npu_memset_async:1
void lost_device() {
  Bench a(0), b(1);
  Tensor x(a, NPU_INT32, {4}), y(b, NPU_INT32, {4});
  REFUSED(npu_memset_async(a.stream, x.address, 0, 16), NPU_STATUS_DEVICE_LOST, "fell off the bus");
  REFUSED(npu_stream_synchronize(a.stream), NPU_STATUS_DEVICE_LOST, "device 0");
  OK(npu_memset_async(b.stream, y.address, 0, 16));
  OK(npu_stream_synchronize(b.stream));
}

// The process ends with work in flight, without closing anything.
void exit_busy() {
  static auto* b = new Bench;
  static auto* x = new Tensor(*b, NPU_FLOAT32, {1 << 20});
  for (int i = 0; i < 200; i++) OK(npu_v3_fill_nd(b->stream, *x, real(i)));
}

// NPU_SIM_FAULT=hang:npu_v3_fill_nd:1
void exit_hung() {
  static auto* b = new Bench;
  static auto* x = new Tensor(*b, NPU_FLOAT32, {16});
  OK(npu_v3_fill_nd(b->stream, *x, real(0)));
}

}  // namespace

int main(int argc, char** argv) {
  struct Case {
    const char* name;
    void (*run)();
    std::vector<std::string> environment;
  };
  const Case special[] = {
      {"untouched_before_fork", untouched_before_fork, {}},
      {"older_chip", older_chip, {"NPU_SIM_CHIP=v2", "NPU_SIM_SDK_VERSION=1.2.1", "NPU_SIM_DEVICES=1"}},
      {"no_devices", no_devices, {"NPU_SIM_DEVICES=0"}},
      {"failing_kernels", failing_kernels, {"NPU_SIM_FAULT=kernel:npu_v3_fill_nd:2,async:npu_v3_fill_nd:4,oom:2"}},
      {"hanging_stream", hanging_stream, {"NPU_SIM_FAULT=hang:npu_v3_fill_nd:1:1", "NPU_SIM_TIMEOUT_MS=200"}},
      {"lost_device", lost_device, {"NPU_SIM_FAULT=lost:npu_memset_async:1"}},
      {"exit_busy", exit_busy, {}},
      {"exit_hung", exit_hung, {"NPU_SIM_FAULT=hang:npu_v3_fill_nd:1"}},
  };
  if (argc > 1) {
    for (auto& c : special) {
      if (std::strcmp(c.name, argv[1]) == 0) {
        c.run();
        std::exit(report(c.name));
      }
    }
    return 98;
  }
  setenv("NPU_SIM_DEVICES", "2", 1);
  setenv("NPU_SIM_MEMORY", "64", 1);
  statuses();
  for (auto& c : special) CHECK(run_case(c.name, c.environment) == 0);
  devices();
  memory();
  addresses();
  streams_and_events();
  two_devices();
  closing();
  many_threads();
  forked();
  return report("test_runtime");
}
