// test_device.cpp: statuses become errors, a lost device stays lost, a forked child is refused, defaults work.
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "chip.h"
#include "device.h"
#include "fake_adapter.h"

using fake::Fake;
using torchfl::Device;
using torchfl::Error;
using torchfl::ErrorKind;

namespace {

ErrorKind kind_of(void (*function)(Device&), Device& device) {
  try {
    function(device);
  } catch (const Error& error) {
    return error.kind;
  }
  return ErrorKind::load;  // never thrown by a device
}

uba_status fail_with(void*, const uba_call*, int64_t tag) {
  if (tag != UBA_NOT_SUPPORTED) torchfl::host_table()->set_error(6, "injected fault");
  return uba_status(tag);
}

}  // namespace

TEST(a_kernel_failure_names_device_kernel_text_and_code) {
  Fake chip;
  auto device = chip.device();
  uba_call call{};
  std::string text = ERROR_OF(device->run(&fail_with, call, UBA_FAILED, "npu_v3_add"));
  CHECK_EQ(text, "npu_v3:0: kernel npu_v3_add failed: injected fault (SDK code 6, UBA_FAILED)");
  CHECK_EQ(device->run(&fail_with, call, UBA_OK, "npu_v3_add"), UBA_OK);  // the device goes on
}

TEST(not_supported_is_returned_and_not_an_error) {
  Fake chip;
  auto device = chip.device();
  uba_call call{};
  CHECK_EQ(device->run(&fail_with, call, UBA_NOT_SUPPORTED, "k"), UBA_NOT_SUPPORTED);
}

TEST(each_status_has_its_kind) {
  Fake chip;
  auto device = chip.device();
  chip.script("copy", UBA_INVALID_VALUE, 1, "odd");
  chip.script("copy", UBA_FAILED, 2, "broke");
  chip.script("copy", UBA_OUT_OF_MEMORY, 3, "full");
  chip.script("copy", UBA_NOT_READY);
  chip.script("copy", 77);
  chip.script("copy", -1);
  auto copy = [](Device& d) { d.copy(nullptr, nullptr, nullptr, 4, UBA_HOST_TO_DEVICE); };
  CHECK(kind_of(copy, *device) == ErrorKind::invalid_value);
  CHECK(kind_of(copy, *device) == ErrorKind::failed);
  CHECK(kind_of(copy, *device) == ErrorKind::out_of_memory);
  CHECK(kind_of(copy, *device) == ErrorKind::internal);
  CHECK(kind_of(copy, *device) == ErrorKind::internal);
  CHECK(kind_of(copy, *device) == ErrorKind::internal);
  copy(*device);
}

TEST(unknown_and_negative_statuses_of_kernels_are_errors) {
  Fake chip;
  auto device = chip.device();
  uba_call call{};
  CHECK_CONTAINS(ERROR_OF(device->run(&fail_with, call, 99, "k")), "status 99");
  CHECK_CONTAINS(ERROR_OF(device->run(&fail_with, call, -5, "k")), "status -5");
}

TEST(a_failure_without_a_message_says_so) {
  Fake chip;
  auto device = chip.device();
  chip.script("fill", UBA_FAILED);
  CHECK_CONTAINS(ERROR_OF(device->fill(nullptr, nullptr, 8, 0)),
                 "npu_v3:0: fill failed: UBA_FAILED (the adapter gave no");
}

TEST(a_message_is_used_once) {
  Fake chip;
  auto device = chip.device();
  chip.script("fill", UBA_FAILED, 5, "first");
  chip.script("fill", UBA_FAILED);
  CHECK_CONTAINS(ERROR_OF(device->fill(nullptr, nullptr, 8, 0)), "first (SDK code 5");
  CHECK_CONTAINS(ERROR_OF(device->fill(nullptr, nullptr, 8, 0)), "gave no reason");
}

TEST(a_lost_device_stays_lost_and_reaches_the_adapter_no_more) {
  Fake chip;
  auto device = chip.device();
  Device other(chip.adapter(), 1, "npu_v3:1");
  uba_call call{};
  CHECK(!device->lost());
  std::string first = ERROR_OF(device->run(&fail_with, call, UBA_DEVICE_LOST, "npu_v3_conv2d"));
  CHECK_CONTAINS(first, "npu_v3:0: the device is lost: kernel npu_v3_conv2d: injected fault (SDK code 6");
  CHECK(device->lost());

  const int before = chip.calls("copy");
  std::string later = ERROR_OF(device->copy(nullptr, nullptr, nullptr, 4, UBA_HOST_TO_DEVICE));
  CHECK_CONTAINS(later, "npu_v3:0: the device was lost earlier, at kernel npu_v3_conv2d: injected fault");
  CHECK_CONTAINS(later, "create a new process");
  CHECK_CONTAINS(later, "other devices of this process are unaffected");
  CHECK_EQ(chip.calls("copy"), before);
  CHECK(kind_of([](Device& d) { d.synchronize(nullptr); }, *device) == ErrorKind::device_lost);

  other.copy(nullptr, nullptr, nullptr, 4, UBA_HOST_TO_DEVICE);
  CHECK(!other.lost());
}

TEST(the_first_cause_is_kept) {
  Fake chip;
  auto device = chip.device();
  chip.script("synchronize", UBA_DEVICE_LOST, 8, "watchdog");
  ERROR_OF(device->synchronize(nullptr));
  ERROR_OF(device->raise(UBA_DEVICE_LOST, "late"));
  CHECK_CONTAINS(device->lost_reason(), "synchronize: watchdog (SDK code 8");
}

TEST(a_lost_device_is_not_closed) {
  Fake chip;
  {
    auto device = chip.device();
    chip.script("synchronize", UBA_DEVICE_LOST);
    ERROR_OF(device->synchronize(nullptr));
  }
  CHECK_EQ(chip.calls("close"), 0);
  chip.device();
  CHECK_EQ(chip.calls("close"), 1);
}

TEST(a_forked_child_is_refused) {
  Fake chip;
  auto device = chip.device();
  device->mark_forked();
  std::string text = ERROR_OF(device->alloc(4));
  CHECK_CONTAINS(text, "npu_v3:0: this process was forked");
  CHECK_CONTAINS(text, "spawn");
  CHECK(!device->lost());
  uba_call call{};
  CHECK_CONTAINS(ERROR_OF(device->run(&fail_with, call, UBA_OK, "k")), "forked");
  device.reset();
  CHECK_EQ(chip.calls("close"), 0);
}

TEST(a_real_fork_refuses_in_the_child_and_not_in_the_parent) {
  Fake chip;
  auto device = chip.device();
  std::fflush(stdout);  // so that the child has nothing to print twice
  const pid_t child = fork();
  if (child == 0) {
    device->mark_forked();
    int exit_code = 1;
    try {
      device->synchronize(nullptr);
    } catch (const Error& error) {
      exit_code = error.kind == ErrorKind::failed ? 0 : 2;
    }
    _exit(exit_code);
  }
  int status = -1;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  device->synchronize(nullptr);
}

TEST(an_open_that_fails_throws_and_properties_that_fail_close) {
  Fake chip;
  chip.script("open", UBA_FAILED, 9, "no such device");
  CHECK_CONTAINS(ERROR_OF(chip.device()), "npu_v3:0: open failed: no such device (SDK code 9");
  CHECK_EQ(chip.calls("close"), 0);
  chip.script("properties", UBA_FAILED, 9, "x");
  ERROR_OF(chip.device());
  CHECK_EQ(chip.calls("close"), 1);
}

TEST(alloc_answers_out_of_memory_with_null) {
  Fake chip;
  auto device = chip.device();
  chip.script("alloc", UBA_OUT_OF_MEMORY, 3, "full");
  CHECK(device->alloc(8) == nullptr);
  CHECK_EQ(torchfl::take_sdk_message().text, "full");
  chip.script("alloc", UBA_OK);  // UBA_OK without an address
  CHECK_CONTAINS(ERROR_OF(device->alloc(8)), "no address");
}

TEST(functions_that_are_not_there_have_defaults) {
  Fake chip;
  chip.without_events();
  chip.without_streams();
  chip.api().memory_info = nullptr;
  auto device = chip.device();
  uba_tensor tensor{};
  uba_value value{};
  CHECK(!device->copy_nd(nullptr, tensor, tensor));
  CHECK(!device->fill_nd(nullptr, tensor, value));
  CHECK(!device->peer_copy(nullptr, nullptr, *device, nullptr, 4));
  CHECK(device->stream_create(0) == nullptr);
  device->stream_destroy(nullptr);
  CHECK(!device->has_events());
  CHECK(device->event_create() == nullptr);
  int before = chip.calls("synchronize");
  device->event_record(nullptr, nullptr);
  CHECK_EQ(chip.calls("synchronize"), before + 1);
  CHECK(device->stream_query(nullptr));
  CHECK_EQ(chip.calls("synchronize"), before + 2);
  device->event_wait(nullptr, nullptr);
  CHECK(device->event_query(nullptr));
  device->event_synchronize(nullptr);
  CHECK_CONTAINS(ERROR_OF(device->event_elapsed(nullptr, nullptr)), "no events");
  CHECK(!device->can_map_host());
  CHECK_CONTAINS(ERROR_OF(device->map_host(nullptr, 4)), "cannot map host memory");
  uint64_t free_bytes = 1, total_bytes = 1;
  device->memory_info(&free_bytes, &total_bytes);
  CHECK_EQ(free_bytes + total_bytes, uint64_t(0));
  uba_telemetry telemetry{};
  CHECK(!device->telemetry(&telemetry));
}

TEST(queries_tell_ready_from_not_ready) {
  Fake chip;
  auto device = chip.device();
  void* stream = device->stream_create(0);
  void* event = device->event_create();
  device->fill(stream, nullptr, 4, 0);
  device->event_record(event, stream);
  CHECK(!device->stream_query(stream));
  CHECK(!device->event_query(event));
  chip.finish(stream);
  CHECK(device->stream_query(stream));
  CHECK(device->event_query(event));
  CHECK_EQ(device->event_elapsed(event, event), 1.5);
  device->event_destroy(event);
  CHECK_EQ(chip.misuse, 0);
}

TEST(nothing_to_do_reaches_nothing) {
  Fake chip;
  auto device = chip.device();
  device->copy(nullptr, nullptr, nullptr, 0, UBA_HOST_TO_DEVICE);
  device->fill(nullptr, nullptr, 0, 0);
  device->free(nullptr);
  CHECK_EQ(chip.calls("copy") + chip.calls("fill") + chip.calls("free"), 0);
}

TEST(the_host_table_survives_bad_texts) {
  const uba_host* host = torchfl::host_table();
  host->set_error(3, nullptr);
  torchfl::SdkMessage message = torchfl::take_sdk_message();
  CHECK_EQ(message.code, int64_t(3));
  CHECK_EQ(message.text, "");
  host->set_error(4, std::string(100000, 'x').c_str());
  CHECK(torchfl::take_sdk_message().text.size() < 5000);
  host->set_error(5, "line\n");
  CHECK_EQ(torchfl::take_sdk_message().text, "line");
  CHECK_EQ(torchfl::take_sdk_message().code, int64_t(0));
  host->log(0, nullptr);
}

TEST(log_lines_reach_the_sink) {
  static std::string seen;
  torchfl::set_log_sink([](int32_t level, const char* text) { seen = std::to_string(level) + text; });
  torchfl::host_table()->log(1, " hello");
  torchfl::set_log_sink(nullptr);
  CHECK_EQ(seen, "1 hello");
}

int main(int argc, char** argv) { return check::run_tests(argc, argv); }

TEST(what_a_device_says_against_its_descriptor_is_told) {
  torchfl::Chip chip;
  chip.dtypes = torchfl::dtype_bit(UBA_DTYPE_FLOAT32) | torchfl::dtype_bit(UBA_DTYPE_FLOAT64);
  chip.memory_bytes = uint64_t(1) << 32;
  chip.max_threads = 1024;
  chip.max_rank = 6;
  uba_properties device{};
  CHECK(torchfl::contradictions(chip, device).empty());  // an adapter that knows nothing contradicts nothing
  device.dtypes = torchfl::dtype_bit(UBA_DTYPE_FLOAT32);
  device.total_memory = uint64_t(1) << 31;
  device.max_threads = 256;
  device.max_rank = 5;
  chip.compute_as = torchfl::dtype_bit(UBA_DTYPE_BFLOAT16);
  device.product_dtypes = torchfl::dtype_bit(UBA_DTYPE_FLOAT32);
  const std::vector<std::string> lines = torchfl::contradictions(chip, device);
  CHECK_EQ(lines.size(), size_t(5));
  CHECK(lines[0].find("does not compute in float64") != std::string::npos);
  CHECK(lines[1].find("2048 MiB of memory, the descriptor says 4096 MiB") != std::string::npos);
  CHECK(lines[2].find("work-groups of 256, the descriptor says 1024") != std::string::npos);
  CHECK(lines[3].find("5 dimensions, the descriptor says 6") != std::string::npos);
  CHECK(lines[4].find("products in bfloat16 are slower than in float32") != std::string::npos);
}
