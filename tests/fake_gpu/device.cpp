// A GPU inside torch's own Kineto: one stream on which each operator of torch launches a kernel of a fixed length.
//
// It behaves as an H200 with CUDA 13.0 did where an agent could be wrong about it (tests/benchmarks/results):
//   - a session gets no kernel at all when one of its kernels still runs at its end;
//   - the first session attaches it to the process, and every later launch takes the host longer, until a session with
//     TEARDOWN_CUPTI=1 has ended;
//   - the host is at most QUEUE launches ahead of the device: then a launch waits.
// What it does is on the real clocks. The list of all kernels is the truth that tests compare the agent with.

#include <ATen/record_function.h>
#include <libkineto.h>
#include <output_base.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace libkineto;

namespace {

constexpr size_t QUEUE = 1024;
constexpr int STREAM = 7;
constexpr int64_t CALL_NS = 1000;

int64_t wall_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

int64_t host_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct Kernel {
  int64_t call_host_ns, call_ns, begin_ns, end_ns, correlation;
};

struct Device {
  std::mutex mutex;
  int64_t kernel_ns = 0, dearer_ns = 0, idle_from_ns = 0, correlation = 0;
  bool is_attached = false, is_recording = false;
  std::deque<int64_t> queue;
  std::vector<Kernel> all, recorded;
  int64_t sessions = 0, sessions_lost = 0, detached = 0;

  void launch() {
    std::unique_lock lock(mutex);
    const int64_t until = host_ns() + (is_attached ? dearer_ns : 0);
    while (host_ns() < until) {
    }
    int64_t now = wall_ns();
    while (!queue.empty() && queue.front() <= now) queue.pop_front();
    if (queue.size() >= QUEUE) {
      std::this_thread::sleep_for(std::chrono::nanoseconds(queue.front() - now));
      now = wall_ns();
    }
    const int64_t begin = std::max(idle_from_ns, now + CALL_NS);
    const Kernel kernel{host_ns(), now, begin, begin + kernel_ns, ++correlation};
    idle_from_ns = kernel.end_ns;
    queue.push_back(kernel.end_ns);
    all.push_back(kernel);
    if (is_recording) recorded.push_back(kernel);
  }
} device;

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction&) {
  device.launch();
  return nullptr;
}

struct Session : IActivityProfilerSession {
  std::unique_ptr<CpuTraceBuffer> buffer = std::make_unique<CpuTraceBuffer>();
  std::vector<Kernel> kernels;
  int64_t begin_ns = 0, end_ns = 0;

  void start() override {
    std::lock_guard lock(device.mutex);
    device.sessions++;
    device.is_attached = device.is_recording = true;
    device.recorded.clear();
    begin_ns = wall_ns();
    status_ = TraceStatus::RECORDING;
  }

  void stop() override {
    std::lock_guard lock(device.mutex);
    end_ns = wall_ns();
    device.is_recording = false;
    if (device.idle_from_ns > end_ns) {
      device.sessions_lost++;
    } else {
      kernels.swap(device.recorded);
    }
    const char* teardown = std::getenv("TEARDOWN_CUPTI");
    if (teardown != nullptr && std::strcmp(teardown, "1") == 0) {
      device.is_attached = false;
      device.detached++;
    }
    status_ = TraceStatus::PROCESSING;
  }

  GenericTraceActivity& add(ActivityType type, const char* name, const Kernel& kernel, int64_t begin, int64_t end) {
    buffer->emplace_activity(buffer->span, type, name);
    auto& activity = *buffer->activities.back();
    activity.startTime = begin;
    activity.endTime = end;
    activity.id = static_cast<int32_t>(kernel.correlation);
    activity.addMetadata("correlation", kernel.correlation);
    return activity;
  }

  void processTrace(ActivityLogger& logger) override {
    buffer->span = TraceSpan(begin_ns, end_ns, "fake GPU");
    buffer->gpuOpCount = static_cast<int>(kernels.size());
    for (const auto& kernel : kernels) {
      auto& call = add(ActivityType::CUDA_RUNTIME, "cudaLaunchKernel", kernel, kernel.call_ns, kernel.call_ns + CALL_NS);
      call.device = libkineto::processId();
      call.resource = call.threadId = libkineto::systemThreadId();
      logger.handleGenericActivity(call);
      auto& run = add(ActivityType::CONCURRENT_KERNEL, "fake_kernel", kernel, kernel.begin_ns, kernel.end_ns);
      run.resource = STREAM;
      run.addMetadata("stream", STREAM);
      logger.handleGenericActivity(run);
    }
  }

  std::vector<std::string> errors() override { return {}; }
  std::unique_ptr<DeviceInfo> getDeviceInfo() override {
    return std::make_unique<DeviceInfo>(DeviceInfo{0, 1, "fake GPU", "GPU 0"});
  }
  std::vector<ResourceInfo> getResourceInfos() override { return {ResourceInfo{STREAM, STREAM, 0, "stream 7"}}; }
  std::unique_ptr<CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer); }
};

struct Profiler : IActivityProfiler {
  const std::string its_name = "fake GPU";
  const std::set<ActivityType> types{ActivityType::CONCURRENT_KERNEL, ActivityType::CUDA_RUNTIME};

  const std::string& name() const override { return its_name; }
  const std::set<ActivityType>& availableActivities() const override { return types; }
  std::unique_ptr<IActivityProfilerSession> configure(const std::set<ActivityType>& wanted, const Config&) override {
    // A session without CUDA is one of the host alone, as torch's ProfilerActivity.CPU.
    return wanted.count(ActivityType::CONCURRENT_KERNEL) ? std::make_unique<Session>() : nullptr;
  }
  std::unique_ptr<IActivityProfilerSession> configure(
      int64_t, int64_t, const std::set<ActivityType>& wanted, const Config& config) override {
    return configure(wanted, config);
  }
};

}  // namespace

extern "C" {

void gpu_install(int64_t kernel_ns, int64_t dearer_ns) {
  device.kernel_ns = kernel_ns;
  device.dearer_ns = dearer_ns;
  api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
  at::addGlobalCallback(at::RecordFunctionCallback(on_operator).scopes({at::RecordScope::FUNCTION}));
}

// When the device will have done all that has been launched, by the wall clock.
int64_t gpu_idle_from_ns() {
  std::lock_guard lock(device.mutex);
  return device.idle_from_ns;
}

int64_t gpu_count(int what) {
  std::lock_guard lock(device.mutex);
  const int64_t counts[] = {device.sessions, device.sessions_lost, device.detached, device.is_attached};
  return counts[what];
}

// One line for each kernel: when the host called it, by the host clock, and its length, ns.
void gpu_write(const char* path) {
  std::lock_guard lock(device.mutex);
  std::ofstream file(path);
  for (const auto& kernel : device.all) file << kernel.call_host_ns << ' ' << kernel.end_ns - kernel.begin_ns << '\n';
}
}
