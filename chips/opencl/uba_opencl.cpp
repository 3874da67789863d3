// uba_opencl.cpp: the adapter's frame: the OpenCL library, devices, memory, streams, events, and the handshake.
//
// Contract: see opencl.h. Devices are those of all platforms in the order in which OpenCL lists them. Counting them
// starts threads in some drivers, and the host counts before it forks: so a child process counts, unless OpenCL is at
// work here already.
#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "opencl.h"

namespace opencl {
namespace {

const uba_host *host;
constexpr uint64_t kTag = uint64_t(1) << 62,
                   kSlotShift = 40;  // no CPU can use such an address: a mistake shows at once
constexpr char kInstall[] =
    "install the OpenCL loader and a driver for your device (Debian: apt install ocl-icd-libopencl1, and "
    "pocl-opencl-icd "
    "to use the CPU; for a GPU or FPGA its vendor's), and see `clinfo -l`";

std::atomic<int32_t> known_count{-1};

void load_library() {
  static const bool loaded = [] {
    const char *named = std::getenv("TORCHFL_OPENCL_LIBRARY"), *name = named ? named : "libOpenCL.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    if (!library) throw Failure{UBA_FAILED, 0, std::string("there is no ") + name + ": " + kInstall};
#define CL_FIND(name)                                                                        \
  if (!(cl::name = reinterpret_cast<decltype(cl::name)>(dlsym(library, "cl" #name))))        \
    throw Failure{UBA_FAILED, 0, "the OpenCL library lacks cl" #name ": it must be of version 1.2 or newer"};
    CL_FUNCTIONS(CL_FIND)
    return true;
  }();
  (void)loaded;
}

struct Found {
  cl_platform_id platform;
  cl_device_id id;
};
std::vector<Found> find_devices() {
  load_library();
  cl_uint count = 0;
  std::vector<Found> found;
  if (cl::GetPlatformIDs(0, nullptr, &count) != CL_SUCCESS) return found;  // no platform is an error of the loader
  std::vector<cl_platform_id> platforms(count);
  check(cl::GetPlatformIDs(count, platforms.data(), nullptr), "clGetPlatformIDs");
  for (cl_platform_id platform : platforms) {
    if (cl::GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 0, nullptr, &count) != CL_SUCCESS) continue;
    std::vector<cl_device_id> ids(count);
    check(cl::GetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, count, ids.data(), nullptr), "clGetDeviceIDs");
    for (cl_device_id id : ids) found.push_back({platform, id});
  }
  return found;
}

int32_t count_in_child() {
  int ends[2];
  int32_t count = -1;
  if (pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    guard([&] { count = int32_t(find_devices().size()); });
    _exit(write(ends[1], &count, sizeof(count)) == ssize_t(sizeof(count)) ? 0 : 1);
  }
  close(ends[1]);
  pollfd told = {ends[0], POLLIN, 0};
  if (child > 0 && poll(&told, 1, 30000) == 0) kill(child, SIGKILL);  // a driver that hangs in a child: count here
  if (child < 0 || read(ends[0], &count, sizeof(count)) != ssize_t(sizeof(count))) count = -1;
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  return count;
}

uba_status device_count(int32_t *count) {
  return guard([&] {
    static std::mutex once;
    std::lock_guard<std::mutex> lock(once);
    if (known_count < 0) {
      load_library();
      known_count = count_in_child();
      if (known_count < 0) known_count = int32_t(find_devices().size());
      if (known_count == 0) host->log(2, (std::string("no OpenCL device was found: ") + kInstall).c_str());
    }
    *count = known_count;
  });
}

std::string device_text(cl_device_id id, cl_device_info what) {
  char text[512] = "";
  cl::GetDeviceInfo(id, what, sizeof(text) - 1, text, nullptr);
  return text;
}
template <class T>
T device_number(cl_device_id id, cl_device_info what) {
  T value{};
  check(cl::GetDeviceInfo(id, what, sizeof(value), &value, nullptr), "clGetDeviceInfo");
  return value;
}

void open_queue(Device &device, Stream &stream) {
  cl_int code;
  stream.device = &device;
  stream.queue = cl::CreateCommandQueue(device.context, device.id, CL_QUEUE_PROFILING_ENABLE, &code);
  check(code, "clCreateCommandQueue");
}
void close_queue(Stream &stream) {
  for (cl_mem memory : {stream.scratch, stream.fault})
    if (memory) cl::ReleaseMemObject(memory);
  if (stream.queue) cl::ReleaseCommandQueue(stream.queue);
}

uba_status open_device(int32_t index, void **device) {
  return guard([&] {
    const std::vector<Found> found = find_devices();
    known_count = int32_t(found.size());
    if (index < 0 || size_t(index) >= found.size())
      throw Failure{UBA_INVALID_VALUE, 0, "there is no OpenCL device " + std::to_string(index) + ": " + kInstall};
    auto made = std::make_unique<Device>();
    made->platform = found[size_t(index)].platform, made->id = found[size_t(index)].id;
    const cl_device_id id = made->id;
    char version[256] = "";
    cl::GetPlatformInfo(made->platform, CL_PLATFORM_VERSION, sizeof(version) - 1, version, nullptr);
    made->name = device_text(id, CL_DEVICE_NAME);
    made->versions = device_text(id, CL_DRIVER_VERSION) + '\n' + device_text(id, CL_DEVICE_VERSION) + '\n' + version;
    made->total = device_number<cl_ulong>(id, CL_DEVICE_GLOBAL_MEM_SIZE);
    made->largest = device_number<cl_ulong>(id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    made->parameters = device_number<size_t>(id, CL_DEVICE_MAX_PARAMETER_SIZE);
    made->units = device_number<cl_uint>(id, CL_DEVICE_MAX_COMPUTE_UNITS);
    made->width = device_number<cl_uint>(id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT);
    made->cpu = device_number<cl_device_type>(id, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU;
    made->fp64 = device_number<cl_device_fp_config>(id, CL_DEVICE_DOUBLE_FP_CONFIG) != 0;
    if (!made->fp64) made->options = "-cl-single-precision-constant ";
    if (device_number<cl_device_fp_config>(id, CL_DEVICE_SINGLE_FP_CONFIG) & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT)
      made->options += "-cl-fp32-correctly-rounded-divide-sqrt ";
    made->options += "-w ";  // warnings are for those who write the kernels, and some compilers print them
    if (const char *more = std::getenv("TORCHFL_OPENCL_OPTIONS")) made->options += std::string(more) + ' ';
    made->slots.reset(new cl_mem[Device::slot_count]());
    made->slot_bytes.reset(new uint64_t[Device::slot_count]());
    for (size_t slot = Device::slot_count; slot-- > 0;) made->free_slots.push_back(uint32_t(slot));
    cl_int code;
    const cl_context_properties wanted[] = {CL_CONTEXT_PLATFORM, cl_context_properties(made->platform), 0};
    made->context = cl::CreateContext(wanted, 1, &id, nullptr, nullptr, &code);
    check(code, "clCreateContext");
    open_queue(*made, made->queue);
    *device = made.release();
  });
}
uba_status close_device(void *device) {
  return guard([&] {
    Device *d = static_cast<Device *>(device);
    cl::Finish(d->queue.queue);
    for (auto &[key, kernel] : d->kernels) cl::ReleaseKernel(kernel->handle);
    for (size_t slot = 0; slot < Device::slot_count; slot++)
      if (d->slots[slot]) cl::ReleaseMemObject(d->slots[slot]);
    d->tables.reset();
    close_queue(d->queue);
    cl::ReleaseContext(d->context);
    delete d;
  });
}

uba_status properties(void *device, uba_properties *p) {
  return guard([&] {
    Device &d = *static_cast<Device *>(device);
    std::strncpy(p->name, d.name.c_str(), sizeof(p->name) - 1);
    p->total_memory = d.total, p->max_allocation = d.largest;
    p->max_rank = 8;
    p->compute_units = int32_t(d.units);
    p->clock_mhz = int32_t(device_number<cl_uint>(d.id, CL_DEVICE_MAX_CLOCK_FREQUENCY));
  });
}

// ------------------------------------------------------------------------------------------------ memory

// Drivers hand out memory that they do not have and fail when it is first used: so it is used here.
cl_mem allocate(Device &d, uint64_t bytes) {
  auto full = [&](cl_int code) {
    return Failure{UBA_OUT_OF_MEMORY, code,
                   "OpenCL has no " + std::to_string(bytes) + " bytes for a buffer: " + std::to_string(d.used) +
                       " of " + std::to_string(d.total) + " are in use, and one buffer has at most " +
                       std::to_string(d.largest)};
  };
  if (bytes > d.largest || d.used + bytes > d.total) throw full(CL_MEM_OBJECT_ALLOCATION_FAILURE);
  cl_int code;
  cl_mem memory = cl::CreateBuffer(d.context, CL_MEM_READ_WRITE, bytes, nullptr, &code);
  if (memory && code == CL_SUCCESS) {
    code = cl::EnqueueMigrateMemObjects(d.queue.queue, 1, &memory, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, 0, nullptr,
                                        nullptr);
    if (code == CL_SUCCESS) code = cl::Finish(d.queue.queue);
    if (code != CL_SUCCESS) cl::ReleaseMemObject(memory);
  }
  if (code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_RESOURCES || code == CL_OUT_OF_HOST_MEMORY ||
      code == CL_INVALID_BUFFER_SIZE)
    throw full(code);
  check(code, "clCreateBuffer");
  d.used += bytes;
  return memory;
}

uba_status alloc(void *device, uint64_t bytes, void **ptr) {
  return guard([&] {
    Device &d = *static_cast<Device *>(device);
    cl_mem memory = allocate(d, bytes);
    std::lock_guard<std::mutex> lock(d.slots_lock);
    if (d.free_slots.empty()) {
      cl::ReleaseMemObject(memory), d.used -= bytes;
      throw Failure{UBA_OUT_OF_MEMORY, 0, "all " + std::to_string(Device::slot_count) + " buffers are in use"};
    }
    const uint32_t slot = d.free_slots.back();
    d.free_slots.pop_back();
    d.slots[slot] = memory, d.slot_bytes[slot] = bytes;
    *ptr = reinterpret_cast<void *>(kTag | uint64_t(slot) << kSlotShift);
  });
}
size_t slot_of(const void *address) {
  return (reinterpret_cast<uint64_t>(address) & (kTag - 1)) >> kSlotShift;
}
uba_status release(void *device, void *ptr) {
  return guard([&] {
    Device &d = *static_cast<Device *>(device);
    const size_t slot = slot_of(ptr);
    const cl_mem memory = buffer_at(d, ptr).memory;
    std::lock_guard<std::mutex> lock(d.slots_lock);
    d.used -= d.slot_bytes[slot], d.slots[slot] = nullptr;
    d.free_slots.push_back(uint32_t(slot));
    check(cl::ReleaseMemObject(memory), "clReleaseMemObject");
  });
}
uba_status memory_info(void *device, uint64_t *free_bytes, uint64_t *total) {
  Device &d = *static_cast<Device *>(device);
  return *total = d.total, *free_bytes = d.total - std::min<uint64_t>(d.used, d.total), UBA_OK;
}

uba_status copy(void *device, void *stream, void *dst, const void *src, uint64_t bytes, int32_t direction) {
  return guard([&] {
    Device &d = *static_cast<Device *>(device);
    Stream &s = stream_of(device, stream);
    if (bytes == 0) return;
    const Buffer to = direction == UBA_DEVICE_TO_HOST ? Buffer{} : buffer_at(d, dst);
    const Buffer from = direction == UBA_HOST_TO_DEVICE ? Buffer{} : buffer_at(d, src);
    if (direction == UBA_HOST_TO_DEVICE) {
      check(cl::EnqueueWriteBuffer(s.queue, to.memory, CL_FALSE, to.offset, bytes, src, 0, nullptr, nullptr), "write");
    } else if (direction == UBA_DEVICE_TO_HOST) {
      check(cl::EnqueueReadBuffer(s.queue, from.memory, CL_FALSE, from.offset, bytes, dst, 0, nullptr, nullptr),
            "read");
    } else if (to.memory == from.memory && to.offset < from.offset + bytes && from.offset < to.offset + bytes) {
      const Buffer between = scratch(s, bytes);
      check(cl::EnqueueCopyBuffer(s.queue, from.memory, between.memory, from.offset, 0, bytes, 0, nullptr, nullptr),
            "copy");
      check(cl::EnqueueCopyBuffer(s.queue, between.memory, to.memory, 0, to.offset, bytes, 0, nullptr, nullptr),
            "copy");
    } else {
      check(cl::EnqueueCopyBuffer(s.queue, from.memory, to.memory, from.offset, to.offset, bytes, 0, nullptr, nullptr),
            "copy");
    }
  });
}
uba_status fill(void *device, void *stream, void *dst, uint64_t bytes, int32_t value) {
  return guard([&] {
    const Buffer to = buffer_at(*static_cast<Device *>(device), dst);
    const cl_uchar byte = cl_uchar(value);
    Stream &s = stream_of(device, stream);
    check(cl::EnqueueFillBuffer(s.queue, to.memory, &byte, 1, to.offset, bytes, 0, nullptr, nullptr),
          "clEnqueueFillBuffer");
  });
}

// ------------------------------------------------------------------------------------------------ streams and events

uba_status synchronize(void *device, void *stream) {
  return guard([&] {
    Stream &s = stream_of(device, stream);
    check(cl::Finish(s.queue), "the work of this stream");
    if (!s.may_fault) return;
    cl_int fault = 0;
    const cl_int none = 0;
    check(cl::EnqueueReadBuffer(s.queue, s.fault, CL_TRUE, 0, sizeof(fault), &fault, 0, nullptr, nullptr), "read");
    s.may_fault = false;
    if (!fault) return;
    check(cl::EnqueueWriteBuffer(s.queue, s.fault, CL_TRUE, 0, sizeof(none), &none, 0, nullptr, nullptr), "write");
    throw Failure{UBA_INVALID_VALUE, 0, "an index is out of range: what was read or written there is left out"};
  });
}
uba_status stream_create(void *device, int32_t, void **stream) {
  return guard([&] {
    auto made = std::make_unique<Stream>();
    open_queue(*static_cast<Device *>(device), *made);
    *stream = made.release();
  });
}
uba_status stream_destroy(void *, void *stream) {
  Stream *s = static_cast<Stream *>(stream);
  return close_queue(*s), delete s, UBA_OK;
}

struct Event {
  cl_event mark = nullptr;  // none: nothing was recorded
  ~Event() { set(nullptr); }
  void set(cl_event next) {
    if (mark) cl::ReleaseEvent(mark);
    mark = next;
  }
};
void mark(Stream &stream, Event &event) {
  cl_event made;
  check(cl::EnqueueMarkerWithWaitList(stream.queue, 0, nullptr, &made), "clEnqueueMarkerWithWaitList");
  event.set(made);
  check(cl::Flush(stream.queue), "clFlush");  // another queue may wait for it
}
uba_status query(const Event &event) {
  cl_int state = CL_COMPLETE;
  const uba_status told = guard([&] {
    if (event.mark)
      check(cl::GetEventInfo(event.mark, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(state), &state, nullptr), "event");
    if (state < 0) check(state, "the work before this event");
  });
  return told != UBA_OK || state == CL_COMPLETE ? told : UBA_NOT_READY;
}
Event &event_of(void *event) { return *static_cast<Event *>(event); }
uba_status stream_query(void *device, void *stream) {
  Event event;
  const uba_status told = guard([&] { mark(stream_of(device, stream), event); });
  return told == UBA_OK ? query(event) : told;
}
uba_status event_create(void *, void **event) {
  return guard([&] { *event = new Event; });
}
uba_status event_destroy(void *, void *event) { return delete &event_of(event), UBA_OK; }
uba_status event_record(void *device, void *event, void *stream) {
  return guard([&] { mark(stream_of(device, stream), event_of(event)); });
}
uba_status event_wait(void *device, void *event, void *stream) {
  return guard([&] {
    cl_event &mark = event_of(event).mark;
    if (mark) check(cl::EnqueueBarrierWithWaitList(stream_of(device, stream).queue, 1, &mark, nullptr), "barrier");
  });
}
uba_status event_query(void *, void *event) { return query(event_of(event)); }
uba_status event_synchronize(void *, void *event) {
  return guard([&] {
    if (event_of(event).mark) check(cl::WaitForEvents(1, &event_of(event).mark), "the work before this event");
  });
}
uba_status event_elapsed(void *, void *start, void *end, double *milliseconds) {
  return guard([&] {
    cl_ulong at[2] = {0, 0};
    Event *events[] = {&event_of(start), &event_of(end)};
    for (int i = 0; i < 2; i++)
      if (events[i]->mark)
        check(cl::GetEventProfilingInfo(events[i]->mark, CL_PROFILING_COMMAND_END, sizeof(at[i]), &at[i], nullptr),
              "clGetEventProfilingInfo");
    *milliseconds = double(int64_t(at[1] - at[0])) / 1e6;
  });
}

}  // namespace

void check(cl_int code, const char *what) {
  if (code == CL_SUCCESS) return;
  uba_status status = UBA_FAILED;
  if (code == CL_DEVICE_NOT_AVAILABLE || code == CL_INVALID_DEVICE || code == CL_INVALID_CONTEXT ||
      code == CL_INVALID_COMMAND_QUEUE)
    status = UBA_DEVICE_LOST;
  if (code == CL_MEM_OBJECT_ALLOCATION_FAILURE || code == CL_OUT_OF_HOST_MEMORY || code == CL_OUT_OF_RESOURCES)
    status = UBA_OUT_OF_MEMORY;
  throw Failure{status, code, std::string("OpenCL error ") + std::to_string(code) + " from " + what};
}
uba_status tell(const Failure &failure) {
  if (host) host->set_error(failure.code, failure.text.c_str());
  return failure.status;
}

Buffer buffer_at(Device &device, const void *address) {
  const uint64_t value = reinterpret_cast<uint64_t>(address);
  const size_t slot = slot_of(address);
  if (!(value & kTag) || slot >= Device::slot_count || !device.slots[slot])
    throw Failure{UBA_INVALID_VALUE, 0, "this is no address of the device's memory"};
  return {device.slots[slot], value & ((uint64_t(1) << kSlotShift) - 1)};
}
Buffer scratch(Stream &stream, uint64_t bytes) {
  if (bytes > stream.scratch_bytes) {
    const uint64_t wanted = std::max<uint64_t>(bytes + bytes / 2, 1 << 20);
    cl_mem made = allocate(*stream.device, wanted);
    // OpenCL keeps the old one until the work that uses it has passed.
    if (stream.scratch) cl::ReleaseMemObject(stream.scratch), stream.device->used -= stream.scratch_bytes;
    stream.scratch = made, stream.scratch_bytes = wanted;
  }
  return {stream.scratch, 0};
}
cl_mem fault_of(Stream &stream) {
  const cl_int none = 0;
  if (!stream.fault) {
    stream.fault = allocate(*stream.device, sizeof(none));
    check(cl::EnqueueWriteBuffer(stream.queue, stream.fault, CL_TRUE, 0, sizeof(none), &none, 0, nullptr, nullptr),
          "write");
  }
  return stream.may_fault = true, stream.fault;
}
int64_t item_size(int32_t dtype) {
  static const int8_t sizes[] = {1, 2, 2, 4, 8, 1, 1, 2, 4, 8, 1, 8, 16, 1, 1, 2, 4, 8, 4};
  return dtype > 0 && dtype < int32_t(sizeof(sizes)) ? sizes[dtype] : 1;
}

}  // namespace opencl

using namespace opencl;

const uba_adapter *uba_query(uint32_t host_abi, const uba_host *the_host) {
  host = the_host;
  static std::vector<uba_kernel> kernels;
  static uba_device_api api{};
  static uba_adapter adapter{};
  (void)host_abi;
  return guard([&] {
           if (!kernels.empty()) return;
           for (const KernelTable &table : {vector_kernels(), data_kernels(), nn_kernels()})
             kernels.insert(kernels.end(), table.kernels, table.kernels + table.count);
           api.header = uba_header UBA_HEADER(uba_device_api), api.properties = properties;
           api.alloc = alloc, api.free = release, api.copy = copy, api.fill = fill, api.synchronize = synchronize;
           api.stream_create = stream_create, api.stream_destroy = stream_destroy, api.stream_query = stream_query;
           api.event_create = event_create, api.event_destroy = event_destroy, api.event_record = event_record;
           api.event_wait = event_wait, api.event_query = event_query, api.event_synchronize = event_synchronize;
           api.event_elapsed = event_elapsed, api.memory_info = memory_info;
           api.copy_nd = copy_nd, api.fill_nd = fill_nd;
           api.program_compile = program_compile, api.program_run = program_run, api.program_release = program_release;
           adapter = {UBA_HEADER(uba_adapter), "opencl", "1.0.0", "1.2", device_count, open_device, close_device, &api,
                      kernels.data(), int64_t(kernels.size())};
         }) == UBA_OK
             ? &adapter
             : nullptr;
}
