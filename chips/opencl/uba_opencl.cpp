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

using kit::host;
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

uba_status open_device(int32_t index, void **device) {
  return guard([&] {
    const std::vector<Found> found = find_devices();
    known_count = int32_t(found.size());
    if (index < 0 || size_t(index) >= found.size())
      throw Failure{UBA_INVALID_VALUE, 0, "there is no OpenCL device " + std::to_string(index) + ": " + kInstall};
    auto made = std::make_unique<Device>();
    Device &d = *made;
    d.platform = found[size_t(index)].platform, d.id = found[size_t(index)].id;
    char version[256] = "";
    cl::GetPlatformInfo(d.platform, CL_PLATFORM_VERSION, sizeof(version) - 1, version, nullptr);
    d.name = device_text(d.id, CL_DEVICE_NAME);
    d.total = device_number<cl_ulong>(d.id, CL_DEVICE_GLOBAL_MEM_SIZE);
    d.largest = device_number<cl_ulong>(d.id, CL_DEVICE_MAX_MEM_ALLOC_SIZE);
    d.parameter_bytes = device_number<size_t>(d.id, CL_DEVICE_MAX_PARAMETER_SIZE);
    d.units = device_number<cl_uint>(d.id, CL_DEVICE_MAX_COMPUTE_UNITS);
    d.cpu = device_number<cl_device_type>(d.id, CL_DEVICE_TYPE) & CL_DEVICE_TYPE_CPU;
    if (d.cpu) d.lanes = std::max<cl_uint>(4, device_number<cl_uint>(d.id, CL_DEVICE_NATIVE_VECTOR_WIDTH_FLOAT));
    d.fp64 = device_number<cl_device_fp_config>(d.id, CL_DEVICE_DOUBLE_FP_CONFIG) != 0;
    if (!d.fp64) d.options = "-cl-single-precision-constant ";
    if (device_number<cl_device_fp_config>(d.id, CL_DEVICE_SINGLE_FP_CONFIG) & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT)
      d.options += "-cl-fp32-correctly-rounded-divide-sqrt ";
    d.options += "-w ";  // warnings are for those who write the kernels, and some compilers print them
    if (const char *more = std::getenv("TORCHFL_OPENCL_OPTIONS")) d.options += std::string(more) + ' ';
    d.versions = device_text(d.id, CL_DRIVER_VERSION) + '\n' + device_text(d.id, CL_DEVICE_VERSION) + '\n' + version +
                 '\n' + d.options;
    d.dialect = dialect, d.folder = "opencl";
    if (const char *kept = std::getenv("TORCHFL_OPENCL_CACHE_MIB"))
      d.kept_bytes = std::strtoull(kept, nullptr, 10) << 20;
    for (size_t slot = Device::slot_count; slot-- > 0;) d.free_slots.push_back(uint32_t(slot));
    cl_int code;
    const cl_context_properties wanted[] = {CL_CONTEXT_PLATFORM, cl_context_properties(d.platform), 0};
    d.context = cl::CreateContext(wanted, 1, &d.id, nullptr, nullptr, &code);
    check(code, "clCreateContext");
    d.queue = std::make_unique<Stream>(d);
    d.stream = d.queue.get();
    *device = static_cast<kit::Device *>(made.release());
  });
}
uba_status close_device(void *device) {
  return delete &device_of(device), UBA_OK;
}

uba_status properties(void *device, uba_properties *p) {
  return guard([&] {
    Device &d = device_of(device);
    std::strncpy(p->name, d.name.c_str(), sizeof(p->name) - 1);
    p->total_memory = d.total, p->max_allocation = d.largest;
    p->max_rank = 8;
    p->compute_units = int32_t(d.units);
    p->clock_mhz = int32_t(device_number<cl_uint>(d.id, CL_DEVICE_MAX_CLOCK_FREQUENCY));
    p->max_threads = int32_t(device_number<size_t>(d.id, CL_DEVICE_MAX_WORK_GROUP_SIZE));
    for (int32_t dtype = UBA_DTYPE_FLOAT16; dtype <= UBA_DTYPE_BOOL; dtype++)
      if (dtype != UBA_DTYPE_FLOAT64 || d.fp64) p->dtypes |= uint64_t(1) << dtype;
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
    code = cl::EnqueueMigrateMemObjects(d.queue->queue, 1, &memory, CL_MIGRATE_MEM_OBJECT_CONTENT_UNDEFINED, 0, nullptr,
                                        nullptr);
    if (code == CL_SUCCESS) code = cl::Finish(d.queue->queue);
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
    Device &d = device_of(device);
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
cl_mem memory_of(const Buffer &buffer) { return static_cast<cl_mem>(buffer.memory); }
size_t slot_of(const void *address) {
  return (reinterpret_cast<uint64_t>(address) & (kTag - 1)) >> kSlotShift;
}
uba_status release(void *device, void *ptr) {
  return guard([&] {
    Device &d = device_of(device);
    const size_t slot = slot_of(ptr);
    const cl_mem memory = memory_of(d.at(ptr));
    std::lock_guard<std::mutex> lock(d.slots_lock);
    d.used -= d.slot_bytes[slot], d.slots[slot] = nullptr;
    d.free_slots.push_back(uint32_t(slot));
    check(cl::ReleaseMemObject(memory), "clReleaseMemObject");
  });
}
uba_status memory_info(void *device, uint64_t *free_bytes, uint64_t *total) {
  Device &d = device_of(device);
  return *total = d.total, *free_bytes = d.total - std::min<uint64_t>(d.used, d.total), UBA_OK;
}

void copy_bytes(cl_command_queue queue, const Buffer &to, const Buffer &from, uint64_t bytes) {
  check(cl::EnqueueCopyBuffer(queue, memory_of(from), memory_of(to), from.offset, to.offset, bytes, 0, nullptr,
                              nullptr),
        "copy");
}
uba_status copy(void *device, void *stream, void *dst, const void *src, uint64_t bytes, int32_t direction) {
  return guard([&] {
    Device &d = device_of(device);
    Stream &s = stream_of(device, stream);
    const std::lock_guard turn(s.turn);  // scratch memory
    if (bytes == 0) return;
    const Buffer to = direction == UBA_DEVICE_TO_HOST ? Buffer{} : d.at(dst);
    const Buffer from = direction == UBA_HOST_TO_DEVICE ? Buffer{} : d.at(src);
    if (direction == UBA_HOST_TO_DEVICE) {
      check(cl::EnqueueWriteBuffer(s.queue, memory_of(to), CL_FALSE, to.offset, bytes, src, 0, nullptr, nullptr),
            "write");
    } else if (direction == UBA_DEVICE_TO_HOST) {
      check(cl::EnqueueReadBuffer(s.queue, memory_of(from), CL_FALSE, from.offset, bytes, dst, 0, nullptr, nullptr),
            "read");
    } else if (to.memory == from.memory && to.offset < from.offset + bytes && from.offset < to.offset + bytes) {
      const Buffer between = s.scratch(bytes);
      copy_bytes(s.queue, between, from, bytes), copy_bytes(s.queue, to, between, bytes);
    } else {
      copy_bytes(s.queue, to, from, bytes);
    }
  });
}
uba_status fill(void *device, void *stream, void *dst, uint64_t bytes, int32_t value) {
  return guard([&] {
    const Buffer to = device_of(device).at(dst);
    const cl_uchar byte = cl_uchar(value);
    Stream &s = stream_of(device, stream);
    check(cl::EnqueueFillBuffer(s.queue, memory_of(to), &byte, 1, to.offset, bytes, 0, nullptr, nullptr),
          "clEnqueueFillBuffer");
  });
}

// ------------------------------------------------------------------------------------------------ streams and events

uba_status synchronize(void *device, void *stream) {
  return guard([&] { stream_of(device, stream).finish(); });
}
uba_status stream_create(void *device, int32_t, void **stream) {
  return guard([&] {
    *stream = static_cast<kit::Stream *>(new Stream(device_of(device)));
  });
}
uba_status stream_destroy(void *, void *stream) {
  return delete static_cast<kit::Stream *>(stream), UBA_OK;
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

Stream::Stream(Device &of) : kit::Stream(of) {
  cl_int code;
  queue = cl::CreateCommandQueue(of.context, of.id, CL_QUEUE_PROFILING_ENABLE, &code);
  check(code, "clCreateCommandQueue");
}
Stream::~Stream() {
  for (cl_mem memory : {room, flag})
    if (memory) cl::ReleaseMemObject(memory);
  static_cast<Device &>(device).used -= room_bytes + (flag ? sizeof(cl_int) : 0);
  if (queue) cl::ReleaseCommandQueue(queue);
}
Buffer Stream::scratch(uint64_t bytes) {
  if (bytes > room_bytes) {
    Device &d = static_cast<Device &>(device);
    const uint64_t wanted = std::max<uint64_t>(bytes + bytes / 2, 1 << 20);
    cl_mem made = allocate(d, wanted);
    if (room) cl::ReleaseMemObject(room), d.used -= room_bytes;  // OpenCL keeps it while it is in use
    room = made, room_bytes = wanted;
  }
  return {room, 0};
}
void *Stream::fault() {
  const cl_int none = 0;
  if (!flag) {
    flag = allocate(static_cast<Device &>(device), sizeof(none));
    check(cl::EnqueueWriteBuffer(queue, flag, CL_TRUE, 0, sizeof(none), &none, 0, nullptr, nullptr), "write");
  }
  return may_fault = true, flag;
}
void Stream::finish() {
  check(cl::Finish(queue), "the work of this stream");
  const std::lock_guard mine(turn);  // not while it waits: other threads may go on
  if (!may_fault) return;
  cl_int fault = 0;
  const cl_int none = 0;
  check(cl::EnqueueReadBuffer(queue, flag, CL_TRUE, 0, sizeof(fault), &fault, 0, nullptr, nullptr), "read");
  may_fault = false;
  if (!fault) return;
  check(cl::EnqueueWriteBuffer(queue, flag, CL_TRUE, 0, sizeof(none), &none, 0, nullptr, nullptr), "write");
  throw kit::fault();
}

Device::~Device() {
  if (queue) cl::Finish(queue->queue);
  forget();
  queue.reset();
  for (size_t slot = 0; slot < slot_count; slot++)
    if (slots[slot]) cl::ReleaseMemObject(slots[slot]);
  if (context) cl::ReleaseContext(context);
}
Buffer Device::at(const void *address) {
  const uint64_t value = reinterpret_cast<uint64_t>(address);
  const size_t slot = slot_of(address);
  if (!(value & kTag) || slot >= slot_count || !slots[slot])
    throw Failure{UBA_INVALID_VALUE, 0, "this is no address of the device's memory"};
  return {slots[slot], value & ((uint64_t(1) << kSlotShift) - 1)};
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
           kernels = kit::kernels();
           api.header = uba_header UBA_HEADER(uba_device_api), api.properties = properties;
           api.alloc = alloc, api.free = release, api.copy = copy, api.fill = fill, api.synchronize = synchronize;
           api.stream_create = stream_create, api.stream_destroy = stream_destroy, api.stream_query = stream_query;
           api.event_create = event_create, api.event_destroy = event_destroy, api.event_record = event_record;
           api.event_wait = event_wait, api.event_query = event_query, api.event_synchronize = event_synchronize;
           api.event_elapsed = event_elapsed, api.memory_info = memory_info;
           api.copy_nd = kit::copy_nd, api.fill_nd = kit::fill_nd;
           api.program_compile = kit::program_compile, api.program_run = kit::program_run;
           api.program_release = kit::program_release;
           adapter = {UBA_HEADER(uba_adapter), "opencl", "1.0.0", "1.2", device_count, open_device, close_device, &api,
                      kernels.data(), int64_t(kernels.size())};
         }) == UBA_OK
             ? &adapter
             : nullptr;
}
