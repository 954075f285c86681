// A GPU inside torch's own Kineto. Operators of torch launch work on its streams by rules; it can also replay the work
// of a recorded trace. Everything is on the real clocks, and the list of all work is the truth that tests compare with.
//
// It behaves as an H200 with CUDA 13.0 did where an agent could be wrong about it (bench/results):
//   - a session gets no work at all when some of it still runs at its end;
//   - the first session attaches it to the process, and every later launch takes the host longer, until a session with
//     TEARDOWN_CUPTI=1 has ended;
//   - the host is at most QUEUE launches ahead of the device: then a launch waits.
//
// Streams are independent but for collectives: these run on a stream of their own, begin when the training's stream has
// come to the point of their call, and end on all ranks together (Rendezvous).

#include <ATen/record_function.h>
#include <libkineto.h>
#include <output_base.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

using namespace libkineto;

namespace {

constexpr size_t QUEUE = 1024;
constexpr int STREAM = 7, COMMUNICATION_STREAM = 20;
constexpr int64_t CALL_NS = 1000, NS_PER_S = 1'000'000'000;
constexpr int64_t PATIENCE_NS = 60 * NS_PER_S;  // how long the members of a collective wait for each other
constexpr int64_t COLLECTIVES_MAX = 65'536;
constexpr auto POLL = std::chrono::microseconds(100);

int64_t wall_ns() {
  return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count();
}

int64_t host_ns() {
  return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void sleep_until(int64_t until_wall_ns) {
  const int64_t left = until_wall_ns - wall_ns();
  if (left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
}

enum Kind : int { KERNEL, MEMCPY, MEMSET, BLOCKING_CALL };

// One piece of work, or a call that blocks the host: then `call` is its name, and it has no work.
struct Work {
  Kind kind;
  std::string name, call, metadata;
  int stream;
  int64_t call_host_ns, call_ns, begin_ns, end_ns, correlation;
};

// What an operator launches: `count` pieces of work of `length_ns`, each by a call of this name.
struct Rule {
  Kind kind;
  std::string name, call;
  int stream;
  int64_t length_ns, count;
};

// An operator at which the host waits for the training's stream, at least for that long.
struct Hold {
  std::string call;
  int64_t ns_min;
};

// When each member of each collective was ready, by the wall clock, in a file that all ranks of a host have mapped.
struct Rendezvous {
  std::atomic<int64_t>* ready = nullptr;
  int64_t rank = 0, world = 1;

  bool open(const char* path) {
    const size_t bytes = sizeof(int64_t) * COLLECTIVES_MAX * world;
    const int file = ::open(path, O_RDWR | O_CREAT, 0600);
    if (file < 0 || ::ftruncate(file, bytes) != 0) return false;
    void* found = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    ::close(file);
    ready = found == MAP_FAILED ? nullptr : static_cast<std::atomic<int64_t>*>(found);
    return ready != nullptr;
  }

  void enter(int64_t number, int64_t ready_ns) { ready[number * world + rank] = ready_ns; }

  // When the last member was ready; -1 when one has not come in time.
  int64_t wait(int64_t number) const {
    int64_t last = 0;
    const int64_t until = wall_ns() + PATIENCE_NS;
    for (int64_t member = 0; member < world; ++member) {
      int64_t found = 0;
      while ((found = ready[number * world + member]) == 0) {
        if (wall_ns() > until) return -1;
        std::this_thread::sleep_for(POLL);
      }
      last = std::max(last, found);
    }
    return last;
  }
};

struct Collective {
  int64_t number, ready_ns, transfer_ns;
  Work work;
};

// A piece of a recorded trace, by the time since its first call.
struct Recorded {
  Kind kind;
  int stream;
  int64_t call_at_ns, begin_at_ns, end_at_ns;  // call_at_ns -1: the trace has no call for it
  std::string name, call, metadata;
};

struct Faults {
  double ratio = 1.0, drift_ppm = 0;
  int64_t dearer_ns = 0, latency_ns = 0, drop_calls = 0, drop_work = 0, backwards = 0, malformed = 0, forget = 0,
          at_end = 0;
};

struct Device {
  std::mutex mutex;
  std::map<std::string, Rule> rules;
  std::map<std::string, Hold> holds;
  std::map<std::string, int64_t> bytes;  // of copies, by name
  Faults faults;
  std::map<int, int64_t> idle_from_ns;
  int64_t correlation = 0, installed_ns = wall_ns();
  bool is_attached = false, is_recording = false;
  std::deque<int64_t> queue;
  std::vector<Work> all, recorded;
  std::vector<Recorded> trace;
  Rendezvous rendezvous;
  std::deque<Collective> pending;
  int64_t collectives = 0, communication_idle_ns = 0;
  int64_t sessions = 0, sessions_lost = 0, detached = 0;

  void keep(const Work& work) {
    if (!faults.forget) all.push_back(work);
    if (is_recording) recorded.push_back(work);
  }

  // What a launch takes the host: longer while it is attached, and until there is room in the queue.
  int64_t call() {
    const int64_t until = host_ns() + (is_attached ? faults.dearer_ns : 0);
    while (host_ns() < until) {
    }
    while (!queue.empty() && queue.front() <= wall_ns()) queue.pop_front();
    if (queue.size() >= QUEUE) sleep_until(queue.front());
    return wall_ns();
  }

  void launch(const Rule& rule) {
    for (int64_t index = 0; index < rule.count; ++index) {
      const int64_t now = call();
      int64_t& idle_from = idle_from_ns[rule.stream];
      const int64_t begin = std::max(idle_from, now + CALL_NS + faults.latency_ns);
      const auto length = static_cast<int64_t>(rule.length_ns * (rule.kind == KERNEL ? faults.ratio : 1.0));
      idle_from = begin + length;
      queue.push_back(idle_from);
      keep({rule.kind, rule.name, rule.call, "", rule.stream, host_ns(), now, begin, idle_from, ++correlation});
    }
  }

  void on_operator(const char* name) {
    std::unique_lock lock(mutex);
    const auto found = rules.find(name);
    const auto rule = found != rules.end() ? found : rules.find("*");
    if (rule != rules.end()) launch(rule->second);
    const auto hold = holds.find(name);
    if (hold == holds.end()) return;
    Work call{BLOCKING_CALL, hold->second.call, hold->second.call, name, STREAM, host_ns(), wall_ns(), 0, 0, 0};
    const int64_t until = std::max(idle_from_ns[STREAM], call.call_ns + hold->second.ns_min);
    lock.unlock();
    sleep_until(until);
    lock.lock();
    call.begin_ns = call.call_ns;
    call.end_ns = wall_ns();
    call.correlation = ++correlation;
    keep(call);
  }

  void enter_collective(const std::string& name, const std::string& metadata, int64_t transfer_ns) {
    std::lock_guard lock(mutex);
    const int64_t now = call();
    const int64_t ready = std::max(idle_from_ns[STREAM], now + CALL_NS + faults.latency_ns);
    std::ostringstream told;
    told << metadata << ", \"Seq\": " << collectives + 1;
    Work work{KERNEL, name, "cudaLaunchKernelExC", told.str(), COMMUNICATION_STREAM, host_ns(), now, 0, 0, ++correlation};
    rendezvous.enter(collectives, ready);
    pending.push_back({collectives++, ready, transfer_ns, work});
  }

  // The training's stream waits for all collectives. False when a member has not come.
  bool join() {
    for (;;) {
      std::unique_lock lock(mutex);
      if (pending.empty()) {
        idle_from_ns[STREAM] = std::max(idle_from_ns[STREAM], communication_idle_ns);
        return true;
      }
      Collective next = pending.front();
      lock.unlock();
      const int64_t last = rendezvous.wait(next.number);
      lock.lock();
      if (last < 0) return false;
      pending.pop_front();
      next.work.begin_ns = std::max(next.ready_ns, communication_idle_ns);
      next.work.end_ns = std::max(last, communication_idle_ns) + next.transfer_ns;
      communication_idle_ns = idle_from_ns[COMMUNICATION_STREAM] = next.work.end_ns;
      keep(next.work);
    }
  }

  // The recorded trace once more, from now on. Returns when it will be over, by the wall clock.
  int64_t replay() {
    std::lock_guard lock(mutex);
    int64_t lead = CALL_NS;  // work without a call may begin before the first call: yet not before now
    for (const auto& one : trace) lead = std::max(lead, CALL_NS - one.begin_at_ns);
    const int64_t base = wall_ns() + lead, base_host = host_ns() + lead;
    int64_t end = base;
    for (const auto& one : trace) {
      const bool has_call = one.call_at_ns >= 0;
      keep({one.kind, one.name, has_call ? one.call : "", one.metadata, one.stream, base_host + one.call_at_ns,
            base + one.call_at_ns, base + one.begin_at_ns, base + one.end_at_ns, ++correlation});
      end = std::max({end, base + one.end_at_ns, base + one.call_at_ns + CALL_NS});
      idle_from_ns[one.stream] = std::max(idle_from_ns[one.stream], base + one.end_at_ns);
    }
    return end;
  }

  int64_t idle() const {
    int64_t last = pending.empty() ? 0 : std::numeric_limits<int64_t>::max();
    for (const auto& [stream, until] : idle_from_ns) last = std::max(last, until);
    return last;
  }
} device;

std::unique_ptr<at::ObserverContext> on_operator(const at::RecordFunction& function) {
  if (device.faults.at_end == 0) device.on_operator(function.name());
  return nullptr;
}

// By so much the begin and the end of an operator may be off in a trace: Kineto converts the counter of the processor to
// the time of day, which on a busy machine was wrong by some us.
constexpr int64_t CLOCKS_DIFFER_NS = 100'000;

void spin(int64_t length_ns) {
  const int64_t until = host_ns() + length_ns;
  while (host_ns() < until) {
  }
}

// Kineto's own callbacks come after these: what is launched here is within the operator in a trace.
void on_operator_end(const at::RecordFunction& function, at::ObserverContext*) {
  if (device.faults.at_end == 0) return;
  spin(CLOCKS_DIFFER_NS);
  device.on_operator(function.name());
  spin(CLOCKS_DIFFER_NS);
}

// -- what Kineto sees ---------------------------------------------------------------------------------------------

// What a profiler of a driver has been seen, or could be thought, to deliver: each number one kind.
enum Malformed : int {
  NO_CORRELATION = 1, SAME_CORRELATION, ENDS_BEFORE_BEGIN, TIME_ZERO, TIME_HUGE, NO_NAME, LONG_NAME, NAME_NOT_UTF8,
  METADATA_BROKEN, UNKNOWN_CALL
};

struct Session : IActivityProfilerSession {
  std::unique_ptr<CpuTraceBuffer> buffer = std::make_unique<CpuTraceBuffer>();
  std::vector<Work> found;
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
    if (device.idle() > end_ns) {
      device.sessions_lost++;
    } else {
      found.swap(device.recorded);
    }
    const char* teardown = std::getenv("TEARDOWN_CUPTI");
    if (teardown != nullptr && std::strcmp(teardown, "1") == 0) {
      device.is_attached = false;
      device.detached++;
    }
    status_ = TraceStatus::PROCESSING;
  }

  GenericTraceActivity& add(ActivityType type, const std::string& name, int64_t begin, int64_t end, int64_t number) {
    buffer->emplace_activity(buffer->span, type, name);
    auto& activity = *buffer->activities.back();
    activity.startTime = begin;
    activity.endTime = end;
    activity.id = static_cast<int32_t>(number);
    activity.addMetadata("correlation", number);
    return activity;
  }

  void add_call(const Work& work, std::vector<GenericTraceActivity*>& into) {
    const bool blocks = work.kind == BLOCKING_CALL;
    const auto type = work.call.rfind("cu", 0) == 0 && work.call.rfind("cuda", 0) != 0 ? ActivityType::CUDA_DRIVER
                                                                                      : ActivityType::CUDA_RUNTIME;
    const std::string name = device.faults.malformed == UNKNOWN_CALL ? "cudaFutureLaunch" : work.call;
    auto& call = add(type, name, work.call_ns, blocks ? work.end_ns : work.call_ns + CALL_NS, work.correlation);
    call.device = libkineto::processId();
    call.resource = call.threadId = libkineto::systemThreadId();
    if (blocks && !work.metadata.empty()) {
      call.linked = &add(ActivityType::CPU_OP, work.metadata.c_str(), work.call_ns, work.end_ns, 0);
    }
    into.push_back(&call);
  }

  void add_work(const Work& work, std::vector<GenericTraceActivity*>& into) {
    static const ActivityType types[] = {
        ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET};
    const auto drift = [](int64_t at_ns) {
      return at_ns + static_cast<int64_t>((at_ns - device.installed_ns) * device.faults.drift_ppm / 1e6);
    };
    auto& run = add(types[work.kind], work.name, drift(work.begin_ns), drift(work.end_ns), work.correlation);
    run.resource = work.stream;
    run.addMetadata("stream", work.stream);
    if (const auto size = device.bytes.find(work.name); size != device.bytes.end()) {
      run.addMetadata("bytes", size->second);
    }
    if (!work.metadata.empty()) {
      auto& told = add(ActivityType::CPU_OP, "record_param_comms", work.call_ns, work.call_ns + CALL_NS, 0);
      add_metadata(told, work.metadata);
      run.linked = &told;
    }
    malform(run);
    into.push_back(&run);
  }

  // Each key with its value, as JSON: GenericTraceActivity writes unquoted values as they are.
  static void add_metadata(GenericTraceActivity& told, const std::string& json) {
    const std::string key = json.substr(1, json.find('"', 1) - 1);
    const bool is_broken = device.faults.malformed == METADATA_BROKEN;
    told.addMetadata(key, is_broken ? std::string("\"unclosed") : json.substr(json.find(':') + 2));
  }

  static void malform(GenericTraceActivity& run) {
    switch (device.faults.malformed) {
      case NO_CORRELATION: run.id = 0; break;
      case SAME_CORRELATION: run.id = 1; break;
      case ENDS_BEFORE_BEGIN: run.endTime = run.startTime - 1; break;
      case TIME_ZERO: run.startTime = run.endTime = 0; break;
      case TIME_HUGE: run.endTime = std::numeric_limits<int64_t>::max(); break;
      case NO_NAME: run.activityName.clear(); break;
      case LONG_NAME: run.activityName.assign(1 << 20, 'k'); break;
      case NAME_NOT_UTF8: run.activityName = "kernel \xff\xfe"; break;
      default: break;
    }
  }

  void processTrace(ActivityLogger& logger) override {
    std::lock_guard lock(device.mutex);
    buffer->span = TraceSpan(begin_ns, end_ns, "fake GPU");
    buffer->gpuOpCount = static_cast<int>(found.size());
    std::vector<GenericTraceActivity*> activities;
    int64_t number = 0;
    for (const auto& work : found) {
      number++;
      const auto is_dropped = [&](int64_t every) { return every > 0 && number % every == 0; };
      if (!work.call.empty() && !is_dropped(device.faults.drop_calls)) add_call(work, activities);
      if (work.kind != BLOCKING_CALL && !is_dropped(device.faults.drop_work)) add_work(work, activities);
    }
    if (device.faults.backwards) std::reverse(activities.begin(), activities.end());
    for (const auto* activity : activities) logger.handleGenericActivity(*activity);
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
  const std::set<ActivityType> types{
      ActivityType::CONCURRENT_KERNEL, ActivityType::CUDA_RUNTIME, ActivityType::CUDA_DRIVER,
      ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET};

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

void gpu_install() {
  api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
  at::addGlobalCallback(at::RecordFunctionCallback(on_operator, on_operator_end).scopes({at::RecordScope::FUNCTION}));
}

// Operator "*": every one without a rule of its own.
void gpu_rule(const char* at, int kind, const char* name, const char* call, int stream, int64_t length_ns, int64_t count) {
  std::lock_guard lock(device.mutex);
  device.rules[at] = {static_cast<Kind>(kind), name, call, stream, length_ns, count};
}

void gpu_hold(const char* at, const char* call, int64_t ns_min) {
  std::lock_guard lock(device.mutex);
  device.holds[at] = {call, ns_min};
}

void gpu_bytes(const char* name, int64_t bytes) {
  std::lock_guard lock(device.mutex);
  device.bytes[name] = bytes;
}

int gpu_set(const char* what, double value) {
  std::lock_guard lock(device.mutex);
  auto& faults = device.faults;
  const std::map<std::string, int64_t*> whole{
      {"dearer_ns", &faults.dearer_ns}, {"latency_ns", &faults.latency_ns}, {"drop_calls", &faults.drop_calls},
      {"drop_work", &faults.drop_work}, {"backwards", &faults.backwards}, {"malformed", &faults.malformed},
      {"forget", &faults.forget}, {"at_end", &faults.at_end}};
  const std::map<std::string, double*> real{{"ratio", &faults.ratio}, {"drift_ppm", &faults.drift_ppm}};
  if (const auto found = whole.find(what); found != whole.end()) {
    *found->second = static_cast<int64_t>(value);
  } else if (const auto other = real.find(what); other != real.end()) {
    *other->second = value;
  } else {
    return 0;
  }
  return 1;
}

int gpu_meet(const char* path, int64_t rank, int64_t world) {
  std::lock_guard lock(device.mutex);
  device.rendezvous.rank = rank;
  device.rendezvous.world = world;
  return device.rendezvous.open(path);
}

// `metadata` is the inside of a JSON object: what torch's record_param_comms has of the collective, without Seq.
void gpu_collective(const char* name, const char* metadata, int64_t transfer_ns) {
  device.enter_collective(name, metadata, transfer_ns);
}

int gpu_join() { return device.join(); }

void gpu_record(int kind, int stream, int64_t call_at, int64_t begin_at, int64_t end_at, const char* name,
                const char* call, const char* metadata) {
  device.trace.push_back({static_cast<Kind>(kind), stream, call_at, begin_at, end_at, name, call, metadata});
}

int64_t gpu_replay() { return device.replay(); }

// When the training's stream, or all of them, will have done all that has been launched, by the wall clock.
int64_t gpu_idle_from_ns(int all) {
  std::lock_guard lock(device.mutex);
  return all ? device.idle() : device.idle_from_ns[STREAM];
}

int64_t gpu_count(int what) {
  std::lock_guard lock(device.mutex);
  const int64_t counts[] = {device.sessions, device.sessions_lost, device.detached, device.is_attached,
                            device.is_recording};
  return counts[what];
}

// One line for each piece of work: when the host called it, by the host clock, when it began and ended, by the wall
// clock, its kind, stream and name.
void gpu_write(const char* path) {
  std::lock_guard lock(device.mutex);
  std::ofstream file(path);
  for (const auto& work : device.all) {
    file << work.call_host_ns << ' ' << work.begin_ns << ' ' << work.end_ns << ' ' << work.kind << ' ' << work.stream
         << ' ' << work.name << '\n';
  }
}
}
