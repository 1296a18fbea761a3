#include "runtime/launch/Device.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "base/Deadline.h"
#include "runtime/launch/Devices.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ktune::runtime {

namespace {

// The kinds of device of this build, best first: one line of cmake/KtuneFolders.cmake each.
constexpr DeviceDriver kDrivers[] = {
#if KTUNE_WITH_CUDA
    cudaDriver(),
#endif
    cpuDriver(),
#if KTUNE_FAKE_DEVICE
    fakeDriver(),
#endif
};

// Between two looks at the clock, which takes some 25 ns.
constexpr double kBatchSeconds = 20e-6;
constexpr int64_t kMostBatch = 1 << 16;

class HostMemory final : public DeviceMemory {
 public:
  HostMemory(void* map, size_t bytes) : data_(static_cast<char*>(map)), bytes_(bytes) {}
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;
  ~HostMemory() override { ::munmap(data_, bytes_); }
  [[nodiscard]] char* data() const override { return data_; }
  [[nodiscard]] size_t bytes() const override { return bytes_; }

 private:
  char* data_;
  size_t bytes_;
};

// Copies past the caches where the machine can: a plain copy reads its target, too.
void streamCopy(char* to, const char* from, size_t bytes) {
  size_t done = 0;
#if defined(__x86_64__)
  for (; done + 64 <= bytes; done += 64) {
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* target = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_load_si128(source), b = _mm_load_si128(source + 1);
    const __m128i c = _mm_load_si128(source + 2), d = _mm_load_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
#endif
  std::memcpy(to + done, from + done, bytes - done);
}

}  // namespace

// Calls that are timed by the host's clock.
class HostTimedCalls final : public TimedCalls {
 public:
  HostTimedCalls(Device& device, LoadedPlan& plan, const std::vector<std::vector<void*>>& sets,
                 std::vector<int64_t> symbolValues, void* workspace)
      : device_(device),
        plan_(plan),
        setCount_(sets.size()),
        tensorCount_(sets.front().size()),
        symbolValues_(std::move(symbolValues)),
        workspace_(workspace) {
    for (const std::vector<void*>& set : sets) addresses_.insert(addresses_.end(), set.begin(), set.end());
  }

  [[nodiscard]] Result<double> nanosecondsPerCall(double seconds) override {
    if (batch_ == 0) {
      KTUNE_TRY(run(1));  // Its code and the branch predictors.
      const double start = monotonicSeconds();
      KTUNE_TRY(run(1));
      const double one = std::max(monotonicSeconds() - start, 1e-9);
      batch_ = std::clamp<int64_t>(static_cast<int64_t>(kBatchSeconds / one), 1, kMostBatch);
    }
    // Between samples the threads have gone to sleep; waking them is no part of a call.
    for (int i = 0; i < 3; ++i) device_.parallelFor(device_.target().cores, [](int64_t, int64_t) {});
    int64_t calls = 0;
    double elapsed = 0;
    const double start = monotonicSeconds();
    do {
      KTUNE_TRY(run(batch_));
      calls += batch_;
      elapsed = monotonicSeconds() - start;
    } while (elapsed < seconds);
    return elapsed / static_cast<double>(calls) * 1e9;
  }

 private:
  Device& device_;
  LoadedPlan& plan_;
  const size_t setCount_, tensorCount_;
  std::vector<void*> addresses_;  ///< Of all sets in one block: a call reads one line of it.
  const std::vector<int64_t> symbolValues_;
  void* const workspace_;
  int64_t batch_ = 0;  ///< Calls between two looks at the clock.

  Status run(int64_t calls) {
    for (int64_t i = 0; i < calls; ++i) {
      void* const* set = addresses_.data() + device_.nextSet_++ % setCount_ * tensorCount_;
      KTUNE_TRY(plan_.run({set, tensorCount_}, symbolValues_, workspace_));
    }
    return device_.synchronize();
  }
};

bool isHeldBack(const std::string& throttle) {
  constexpr const char* kReasons[] = {"thermal", "hardware", "brake"};
  return std::any_of(std::begin(kReasons), std::end(kReasons),
                     [&](const char* reason) { return throttle.find(reason) != std::string::npos; });
}

Result<std::unique_ptr<DeviceMemory>> Device::allocate(size_t bytes) {
  const size_t mapped = std::max<size_t>(bytes, 1);
  void* map = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED) return errnoStatus(errno, "no memory for " + std::to_string(bytes) + " bytes");
  // Best effort: gigabytes of first touches cost seconds in small pages, and address translation is not what is timed.
  (void)::madvise(map, mapped, MADV_HUGEPAGE);
  return std::unique_ptr<DeviceMemory>(new HostMemory(map, mapped));
}

Status Device::copyToDevice(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return Status::ok();
}

Status Device::copyFromDevice(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return Status::ok();
}

Status Device::copyOnDevice(void* to, const void* from, size_t bytes) {
  std::memcpy(to, from, bytes);
  return Status::ok();
}

Result<std::unique_ptr<TimedCalls>> Device::prepareTimedCalls(LoadedPlan& plan, std::vector<std::vector<void*>> sets,
                                                              std::vector<int64_t> symbolValues, void* workspace) {
  if (sets.empty()) return invalidArgument("timed calls need at least one set of tensors");
  return std::unique_ptr<TimedCalls>(new HostTimedCalls(*this, plan, sets, std::move(symbolValues), workspace));
}

Result<double> Device::copyBytesPerSecond(void* to, const void* from, size_t bytes) {
  constexpr int kCopies = 4;
  constexpr size_t kPiece = size_t{1} << 20;
  if (bytes == 0) return 0.0;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < kCopies; ++i) {
    const double start = monotonicSeconds();
    if (sharesHostMemory()) {
      parallelFor(static_cast<int64_t>((bytes + kPiece - 1) / kPiece), [&](int64_t begin, int64_t end) {
        const size_t first = static_cast<size_t>(begin) * kPiece;
        const size_t last = std::min(static_cast<size_t>(end) * kPiece, bytes);
        streamCopy(static_cast<char*>(to) + first, static_cast<const char*>(from) + first, last - first);
      });
    } else {
      KTUNE_TRY(copyOnDevice(to, from, bytes));
    }
    best = std::min(best, monotonicSeconds() - start);
  }
  return 2.0 * static_cast<double>(bytes) / best;
}

// A plan of one tile that does nothing, which runs on the calling thread: no plan can be faster, so that the search may
// call a time below it impossible. (Waking the other threads costs microseconds, and a multiple of that on a busy
// machine; a small kernel of one tile does without.)
Result<double> Device::emptyLaunchNanoseconds() {
  constexpr int kBatches = 15;
  constexpr int kCalls = 200;
  double least = std::numeric_limits<double>::infinity();
  for (int b = 0; b < kBatches; ++b) {
    const double start = monotonicSeconds();
    for (int i = 0; i < kCalls; ++i) parallelFor(1, [](int64_t, int64_t) {});
    least = std::min(least, (monotonicSeconds() - start) / kCalls * 1e9);
  }
  return least;
}

std::string Device::timingMethod() const {
  return std::to_string(target().cores) + " threads";
}

Status checkPreconditions(const cache::Plan& plan, std::span<void* const> tensors,
                          std::span<const int64_t> symbolValues) {
  for (const cache::Precondition& condition : plan.preconditions) {
    const auto index = static_cast<size_t>(condition.index);
    switch (condition.kind) {
      case cache::Precondition::Kind::kAlignment:
        if (index >= tensors.size() || condition.low <= 0 ||
            reinterpret_cast<uintptr_t>(tensors[index]) % static_cast<uintptr_t>(condition.low) != 0)
          return invalidArgument("the plan needs " + condition.describe());
        break;
      case cache::Precondition::Kind::kSymbolRange:
        if (index >= symbolValues.size() || symbolValues[index] < condition.low || symbolValues[index] > condition.high)
          return invalidArgument("the plan needs " + condition.describe());
        break;
    }
  }
  return Status::ok();
}

std::vector<DeviceInfo> listDevices() {
  std::vector<DeviceInfo> devices;
  for (const DeviceDriver& driver : kDrivers) {
    for (DeviceInfo& info : driver.list()) devices.push_back(std::move(info));
  }
  return devices;
}

Result<std::unique_ptr<Device>> openDevice(const std::string& name, const DeviceOptions& options) {
  const std::string kind = name.substr(0, name.find(':'));
  for (const DeviceDriver& driver : kDrivers) {
    if (kind == driver.kind) return driver.open(name, options);
  }
  std::string known;
  for (const DeviceInfo& info : listDevices()) known += (known.empty() ? "" : ", ") + info.name;
  if (kind == "cuda" || kind == "fake")
    return unsupported("this build of ktune has no " + kind + " device; it has: " + known);
  return notFound("there is no device '" + name + "'; there is: " + known);
}

namespace {

size_t bytesOf(const cache::Workspace& workspace, const std::vector<int64_t>& symbolValues) {
  return static_cast<size_t>(std::max<int64_t>(0, workspace.bytes.evaluate(symbolValues)));
}

}  // namespace

size_t layOutWorkspace(const std::vector<cache::Workspace>& workspaces, const std::vector<int64_t>& symbolValues,
                       std::span<size_t> offsets) {
  size_t end = 0;
  for (size_t i = 0; i < workspaces.size(); ++i) {
    const auto alignment = static_cast<size_t>(std::max<int64_t>(1, workspaces[i].alignmentBytes));
    offsets[i] = (end + alignment - 1) / alignment * alignment;
    end = offsets[i] + bytesOf(workspaces[i], symbolValues);
  }
  return end;
}

std::vector<WorkspaceSlot> layOutWorkspace(const std::vector<cache::Workspace>& workspaces,
                                           const std::vector<int64_t>& symbolValues) {
  std::vector<size_t> offsets(workspaces.size());
  layOutWorkspace(workspaces, symbolValues, offsets);
  std::vector<WorkspaceSlot> slots;
  slots.reserve(workspaces.size());
  for (size_t i = 0; i < workspaces.size(); ++i)
    slots.push_back({offsets[i], bytesOf(workspaces[i], symbolValues), workspaces[i].kind});
  return slots;
}

size_t workspaceEnd(std::span<const WorkspaceSlot> slots) {
  size_t end = 0;
  for (const WorkspaceSlot& slot : slots) end = std::max(end, slot.offset + slot.bytes);
  return end;
}

}  // namespace ktune::runtime
