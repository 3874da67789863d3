// test_adapter.cpp: what the loader refuses and with which words, that the process goes on, and that an adapter of an
// older minor is served.
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "adapter.h"
#include "check.h"
#include "device.h"

using torchfl::Adapter;
using torchfl::Device;

namespace {

std::string built(const std::string& name) { return TORCHFL_TEST_ADAPTERS "/" + name + ".so"; }

std::string refusal(const std::string& path) { return ERROR_OF(Adapter::load(path)); }

// A file of its own, removed with its directory at the end.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    char name[] = "/tmp/uba_test_XXXXXX";
    path_ = mkdtemp(name);
  }
  ~TemporaryDirectory() {
    for (const std::string& file : files_) std::remove(file.c_str());
    rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name, const std::string& content) {
    files_.push_back(path_ + "/" + name);
    std::ofstream(files_.back(), std::ios::binary) << content;
    chmod(files_.back().c_str(), 0755);
    return files_.back();
  }
  std::string adopt(const std::string& name) {
    files_.push_back(path_ + "/" + name);
    return files_.back();
  }

 private:
  std::string path_;
  std::vector<std::string> files_;
};

std::string content_of(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

std::string with_byte(std::string content, size_t at, int value) {
  content[at] = char(value);
  return content;
}

// A refused library must leave the process as it was: the good one still loads and runs.
void check_good_one_runs() {
  std::shared_ptr<Adapter> adapter = Adapter::load(built("good"));
  CHECK_EQ(adapter->device_count(), 1);
  Device device(adapter, 0, "good:0");
  const int32_t sent[4] = {1, 2, 3, 4};
  int32_t back[4] = {};
  void* in = device.alloc(sizeof(sent));
  void* out = device.alloc(sizeof(sent));
  device.copy(nullptr, in, sent, sizeof(sent), UBA_HOST_TO_DEVICE);
  const int64_t sizes[1] = {4}, strides[1] = {1};
  uba_tensor from = {in, 0, sizes, strides, UBA_DTYPE_INT32, 1};
  uba_tensor to = {out, 0, sizes, strides, UBA_DTYPE_INT32, 1};
  uba_value arg{};
  arg.kind = UBA_TENSOR;
  arg.count = 1;
  arg.v.tensor = &from;
  uba_call call = {UBA_HEADER(uba_call), "aten::foo", &arg, &to, 1, 1, nullptr};
  const uba_kernel* kernel = adapter->find_kernel("add_tag");
  CHECK(kernel != nullptr);
  if (kernel == nullptr) return;
  CHECK_EQ(device.run(kernel->run, call, kernel->tag, kernel->name), UBA_OK);
  device.copy(nullptr, back, out, sizeof(back), UBA_DEVICE_TO_HOST);
  device.synchronize(nullptr);
  CHECK_EQ(back[3], 9);
  device.free(in);
  device.free(out);
}

}  // namespace

TEST(a_good_adapter_tells_what_it_is) {
  std::shared_ptr<Adapter> adapter = Adapter::load(built("good"));
  CHECK_EQ(adapter->name(), "good");
  CHECK_EQ(adapter->version(), "0.1");
  CHECK_EQ(adapter->sdk_version(), "7.0");
  CHECK_EQ(adapter->path(), built("good"));
  CHECK_EQ(adapter->abi(), uint32_t(UBA_ABI_MAJOR) << 16 | UBA_ABI_MINOR);
  CHECK_EQ(adapter->kernel_names().size(), size_t(2));
  CHECK_EQ(adapter->kernel_names()[1], "add_tag");
  CHECK(adapter->find_kernel("nothing") == nullptr);
  CHECK(adapter->device_api().telemetry == nullptr);
  check_good_one_runs();
}

TEST(one_file_is_one_adapter) {
  TemporaryDirectory directory;
  const std::string link = directory.adopt("link.so");
  CHECK_EQ(symlink(built("good").c_str(), link.c_str()), 0);
  CHECK(Adapter::load(built("good")) == Adapter::load(built("good")));
  CHECK(Adapter::load(link) == Adapter::load(built("good")));
}

TEST(an_adapter_of_version_1_0_is_served) {
  std::shared_ptr<Adapter> adapter = Adapter::load(built("old_1_0"));
  CHECK_EQ(adapter->abi(), uint32_t(1) << 16);
  CHECK_EQ(adapter->sdk_version(), "");
  CHECK(adapter->device_api().memory_info == nullptr);
  CHECK(adapter->device_api().telemetry == nullptr);
  Device device(adapter, 0, "old:0");
  CHECK_EQ(std::string(device.properties().name), "old");
  uint64_t free_bytes = 1, total_bytes = 1;
  device.memory_info(&free_bytes, &total_bytes);
  CHECK_EQ(free_bytes + total_bytes, uint64_t(0));
  uba_telemetry telemetry{};
  CHECK(!device.telemetry(&telemetry));
  CHECK(telemetry.power < 0);

  const float sent[2] = {1.5f, -2};
  float back[2] = {};
  void* memory = device.alloc(sizeof(sent));
  device.copy(nullptr, memory, sent, sizeof(sent), UBA_HOST_TO_DEVICE);
  const int64_t sizes[1] = {2}, strides[1] = {1};
  uba_tensor tensor = {memory, 0, sizes, strides, UBA_DTYPE_FLOAT32, 1};
  uba_value arg{};
  arg.kind = UBA_TENSOR;
  arg.count = 1;
  arg.v.tensor = &tensor;
  uba_call call = {UBA_HEADER(uba_call), "aten::neg", &arg, &tensor, 1, 1, nullptr};
  CHECK_EQ(device.run(adapter->find_kernel("negate")->run, call, 0, "negate"), UBA_OK);
  device.copy(nullptr, back, memory, sizeof(back), UBA_DEVICE_TO_HOST);
  CHECK_EQ(back[0], -1.5f);
  device.free(memory);
}

TEST(each_missing_required_field_is_named) {
  const std::pair<const char*, const char*> fields[] = {{"NAME", "name"},
                                                        {"VERSION", "version"},
                                                        {"DEVICE_COUNT", "device_count"},
                                                        {"OPEN", "open"},
                                                        {"DEVICE", "device"},
                                                        {"PROPERTIES", "device->properties"},
                                                        {"ALLOC", "device->alloc"},
                                                        {"FREE", "device->free"},
                                                        {"COPY", "device->copy"},
                                                        {"FILL", "device->fill"},
                                                        {"SYNCHRONIZE", "device->synchronize"}};
  for (const auto& field : fields) {
    const std::string path = built(std::string("without_") + field.first);
    CHECK_EQ(refusal(path), "cannot load adapter " + path + ": required field is not set: " + field.second +
                                "; see [required] in torchfl/uba.h");
    check_good_one_runs();
  }
}

TEST(all_missing_fields_are_listed_at_once) {
  CHECK_CONTAINS(refusal(built("without_ALL")),
                 "required fields are not set: name, version, device_count, open, device->properties, device->alloc, "
                 "device->free, device->copy, device->fill, device->synchronize;");
  check_good_one_runs();
}

TEST(what_the_handshake_refuses) {
  struct Case {
    const char* library;
    std::vector<const char*> parts;
  };
  const Case cases[] = {
      {"bad_MAJOR",
       {"it has ABI 2.0, this host serves 1.0 to 1.3", "upgrade the host (pip install -U flagos-torchfl)"}},
      {"bad_MINOR",
       {"it has ABI 1.9, newer than this host's 1.3", "upgrade the host", "or build the adapter with this"}},
      {"bad_SIZE", {"the header of uba_adapter says 60000 bytes, ABI 1.3 has 80", "UBA_HEADER(uba_adapter)"}},
      {"bad_SIZE_OLDER", {"the header of uba_adapter says 60000 bytes, ABI 1.0 has 80 to 80"}},
      {"bad_SIZE_SMALL", {"the header of uba_adapter says 16 bytes, ABI 1.0 has 80 to 80"}},
      {"bad_NO_HEADER", {"the header of uba_adapter says ABI 0.0: initialise it with UBA_HEADER(uba_adapter)"}},
      {"bad_API_SIZE", {"the header of uba_device_api says 8 bytes, ABI 1.3 has 216"}},
      {"bad_API_HEADER", {"the header of uba_device_api says ABI 0.0", "UBA_HEADER(uba_device_api)"}},
      {"bad_API_NEWER", {"it has ABI 1.4, newer than this host's 1.3"}},
      {"bad_NO_QUERY", {"it does not export uba_query, so it is not an adapter"}},
      {"bad_NULL_QUERY",
       {"uba_query refused this host (ABI 1.3): SDK 2.0 or newer is needed, found 1.9 (SDK code 42)"}},
      {"bad_SILENT_NULL_QUERY", {"uba_query refused this host (ABI 1.3): the adapter gave no reason"}},
      {"bad_KERNEL_TWICE", {"two kernels are named 'copy_in'"}},
      {"bad_KERNEL_NAME", {"kernel 1 has no name"}},
      {"bad_KERNEL_FUNCTION", {"kernel 1 ('add_tag') has no function"}},
      {"bad_KERNELS_NULL", {"kernel_count is 2 but kernels is NULL"}},
      {"bad_KERNEL_COUNT", {"kernel_count is -2, which cannot be"}},
      {"bad_PARTIAL_EVENTS",
       {"device sets event_create but not event_destroy, event_record, event_wait, event_query, event_synchronize, "
        "event_elapsed; set all of them or none"}},
      {"bad_PARTIAL_MAP", {"device sets map_host but not unmap_host"}},
      {"throwing", {"uba_query threw a C++ exception"}},
      {"bad_UNDEFINED_SYMBOL",
       {"undefined symbol vendor_function_of_another_sdk: the SDK found is not the one the adapter was built for"}},
      {"bad_DEPENDENCY", {"it needs libvendor_sdk.so, which was not found", "LD_LIBRARY_PATH", "torchfl sdk-env"}},
  };
  for (const Case& one : cases) {
    const std::string text = refusal(built(one.library));
    CHECK_CONTAINS(text, "cannot load adapter " + built(one.library) + ": ");
    for (const char* part : one.parts) CHECK_CONTAINS(text, part);
    check_good_one_runs();
  }
}

TEST(what_is_wrong_with_the_device_count_is_told_when_it_is_asked) {
  CHECK_CONTAINS(ERROR_OF(Adapter::load(built("bad_COUNT"))->device_count()), "device_count returned -3");
  CHECK_CONTAINS(ERROR_OF(Adapter::load(built("bad_COUNT_STATUS"))->device_count()),
                 "good: device_count failed: the driver is not running (SDK code 9, UBA_FAILED)");
}

TEST(paths_that_name_no_library) {
  TemporaryDirectory directory;
  CHECK_CONTAINS(refusal(""), "the path is not absolute");
  CHECK_CONTAINS(refusal("libuba.so"), "cannot load adapter libuba.so: the path is not absolute");
  CHECK_CONTAINS(refusal("./libuba.so"), "the path is not absolute");
  CHECK_CONTAINS(refusal(directory.path() + "/nothing.so"), "there is no such file");
  CHECK_CONTAINS(refusal(built("good") + "/inside"), "there is no such file");
  CHECK_CONTAINS(refusal(directory.path()), "it is a directory");
  const std::string fifo = directory.adopt("fifo.so");
  CHECK_EQ(mkfifo(fifo.c_str(), 0644), 0);
  CHECK_CONTAINS(refusal(fifo), "not a regular file");
  CHECK_CONTAINS(refusal(directory.file("text.so", "hello, this is text\n")), "not a shared library (no ELF header)");
  CHECK_CONTAINS(refusal(directory.file("empty.so", "")), "not a shared library (no ELF header)");
  check_good_one_runs();
}

TEST(files_that_others_may_write) {
  TemporaryDirectory directory;
  const std::string library = directory.file("open.so", content_of(built("good")));
  chmod(library.c_str(), 0777);
  CHECK_CONTAINS(refusal(library),
                 "everyone may write to this file, and loading it runs its code; run: chmod o-w '" + library + "'");
  chmod(library.c_str(), 0755);
  chmod(directory.path().c_str(), 0777);
  CHECK_CONTAINS(refusal(library), "everyone may replace files in its directory");
  TemporaryDirectory safe;
  const std::string link = safe.adopt("link.so");
  CHECK_EQ(symlink(library.c_str(), link.c_str()), 0);
  CHECK_CONTAINS(refusal(link), "everyone may replace files in its directory");
  chmod(directory.path().c_str(), 01777);  // sticky, as /tmp is: others cannot replace it
  CHECK_EQ(Adapter::load(library)->name(), "good");
  chmod(directory.path().c_str(), 0700);
}

TEST(libraries_of_other_machines_and_damaged_ones) {
  TemporaryDirectory directory;
  const std::string good = content_of(built("good"));
  const bool x86 = good[18] == 62;
  const std::string foreign = x86 ? "it is for aarch64, this process is x86_64" : "it is for x86_64, this process is ";
  CHECK_CONTAINS(refusal(directory.file("arch.so", with_byte(good, 18, x86 ? 183 : 62))), foreign);
  CHECK_CONTAINS(refusal(directory.file("unknown.so", with_byte(good, 19, 0x77))), "machine number ");
  CHECK_CONTAINS(refusal(directory.file("class.so", with_byte(good, 4, 1))),
                 "it is a 32-bit library, this process is 64-bit");
  CHECK_CONTAINS(refusal(directory.file("program.so", with_byte(good, 16, 2))),
                 "not a shared library; link it with -shared");
  CHECK_CONTAINS(refusal(directory.file("cut10.so", good.substr(0, 10))), "not a shared library");
  CHECK_CONTAINS(refusal(directory.file("cut17.so", good.substr(0, 17))), "it is cut off");
  CHECK_CONTAINS(refusal(directory.file("cut40.so", good.substr(0, 40))), "it is cut off");
  CHECK_CONTAINS(refusal(directory.file("cut100.so", good.substr(0, 100))), "it is cut off");
  CHECK_CONTAINS(refusal(directory.file("half.so", good.substr(0, good.size() / 4))), "it is cut off");
  check_good_one_runs();
}

TEST(a_corrected_library_loads_from_the_same_path) {
  TemporaryDirectory directory;
  const std::string path = directory.file("fixed.so", content_of(built("without_ALLOC")));
  CHECK_CONTAINS(refusal(path), "device->alloc");
  std::remove(path.c_str());
  directory.file("fixed.so", content_of(built("good")));
  CHECK_EQ(Adapter::load(path)->name(), "good");
}

TEST(a_table_in_the_process_is_checked_alike) {
  CHECK_CONTAINS(ERROR_OF(Adapter::wrap(nullptr, "here")), "cannot load adapter here: the table is NULL");
  uba_adapter empty{};
  CHECK_CONTAINS(ERROR_OF(Adapter::wrap(&empty, "here")), "UBA_HEADER(uba_adapter)");
}

int main(int argc, char** argv) { return check::run_tests(argc, argv); }
