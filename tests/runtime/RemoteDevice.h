// A device whose memory the host can't address, on top of the fake one: what a GPU is to the guard and the workers.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/launch/devices/fake/FakeDevice.h"

namespace ktune::runtime::testing {

/// Device addresses are host addresses plus this: reading or writing one on the host is a SIGSEGV.
inline constexpr uintptr_t kRemoteOffset = uintptr_t{1} << 62;

inline void* toRemote(void* host) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(host) + kRemoteOffset);
}
inline void* toHost(const void* remote) {
  return reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(remote) - kRemoteOffset);
}

/// Looks at device addresses as the device would.
class RemoteInspector final : public Inspector {
 public:
  uint64_t looks = 0;  ///< Bytes of memory looked at.
  Status fill(char* data, size_t bytes, BytePair pair) override { return inner_->fill(hostOf(data), bytes, pair); }
  Result<std::optional<size_t>> firstOther(const char* data, size_t bytes, BytePair pair) override {
    looks += bytes;
    return inner_->firstOther(hostOf(data), bytes, pair);
  }
  Result<uint64_t> checksum(const char* data, size_t bytes) override {
    looks += bytes;
    return inner_->checksum(hostOf(data), bytes);
  }
  Result<RunDifferences> compareRuns(const TensorView& view, const char* first, const char* second,
                                     const BytePair* poison) override {
    return inner_->compareRuns(view, hostOf(first), hostOf(second), poison);
  }
  Result<std::unique_ptr<KeptReference>> keep(Expected& expected) override { return inner_->keep(expected); }
  int overwritten = 0;  ///< So many comparisons find their reference written over.
  Result<Comparison> compare(const TensorView& got, const KeptReference& expected) override {
    if (overwritten > 0 && overwritten-- > 0) return corrupt("a kept reference was written over");
    TensorView view = got;
    view.data = toHost(got.data);
    return inner_->compare(view, expected);
  }

 private:
  static char* hostOf(const char* address) { return static_cast<char*>(toHost(address)); }
  const std::unique_ptr<Inspector> inner_ = makeHostInspector(op::serialFor());
};

class RemoteDevice final : public Device {
 public:
  explicit RemoteDevice(FakeFaults faults, uint64_t memoryBytes = uint64_t{1} << 30)
      : inner_(makeFakeDevice(std::move(faults))), target_(inner_->target()) {
    target_.memoryBytes = memoryBytes;
  }

  // For tests.
  uint64_t allocated = 0;    ///< Bytes of memory in use.
  uint64_t transferred = 0;  ///< Bytes copied to and from the device.
  int timings = 0;           ///< Samples taken.
  int hotTimings = 0;        ///< Hot until as many samples were taken.
  op::DotEngine* engine = nullptr;
  std::unique_ptr<RemoteInspector> inspects;  ///< Given one, memory is looked at on the device.
  /// What plans ask for beyond the fake one's, and do with it at the end of a run (given the host's address).
  std::vector<WorkspaceSlot> slots;
  std::function<void(char* workspace)> useWorkspace;
  /// Writes a byte into the middle of each block of memory.
  void stray() {
    for (const auto& [address, bytes] : live_) {
      auto* const byte = static_cast<char*>(toHost(reinterpret_cast<void*>(address + bytes / 2)));
      *byte = static_cast<char>(*byte ^ 1);
    }
  }
  /// From here on nothing works.
  void fail(const std::string& why) {
    if (fault_.isOk()) fault_ = unavailable(why);
  }

  [[nodiscard]] const schedule::Target& target() const override { return target_; }
  [[nodiscard]] const std::string& name() const override { return name_; }
  [[nodiscard]] std::string description() const override { return "remote " + inner_->description(); }
  [[nodiscard]] std::string driver() const override { return inner_->driver(); }
  [[nodiscard]] Result<std::unique_ptr<LoadedPlan>> load(const cache::Plan& plan) override {
    KTUNE_ASSIGN(std::unique_ptr<LoadedPlan> inner, inner_->load(plan));
    return std::unique_ptr<LoadedPlan>(new RemotePlan(*this, std::move(inner)));
  }
  void parallelFor(int64_t count, const std::function<void(int64_t, int64_t)>& body) override {
    inner_->parallelFor(count, body);
  }

  [[nodiscard]] bool sharesHostMemory() const override { return false; }
  [[nodiscard]] Result<std::unique_ptr<DeviceMemory>> allocate(size_t bytes) override {
    KTUNE_TRY(fault_);
    if (allocated + bytes > target_.memoryBytes)
      return resourceExhausted("the remote device has no " + std::to_string(bytes) + " bytes");
    return std::unique_ptr<DeviceMemory>(new Memory(*this, bytes));
  }
  [[nodiscard]] Status copyToDevice(void* to, const void* from, size_t bytes) override {
    KTUNE_TRY(usable(to, bytes));
    transferred += bytes;
    std::memcpy(toHost(to), from, bytes);
    return Status::ok();
  }
  [[nodiscard]] Status copyFromDevice(void* to, const void* from, size_t bytes) override {
    KTUNE_TRY(usable(from, bytes));
    transferred += bytes;
    std::memcpy(to, toHost(from), bytes);
    return Status::ok();
  }
  [[nodiscard]] Status copyOnDevice(void* to, const void* from, size_t bytes) override {
    KTUNE_TRY(usable(to, bytes));
    KTUNE_TRY(usable(from, bytes));
    std::memcpy(toHost(to), toHost(from), bytes);
    return Status::ok();
  }
  [[nodiscard]] Status synchronize() override { return fault_; }
  [[nodiscard]] Result<std::unique_ptr<TimedCalls>> prepareTimedCalls(LoadedPlan& plan,
                                                                      std::vector<std::vector<void*>> sets,
                                                                      std::vector<int64_t> symbolValues,
                                                                      void*) override {
    KTUNE_TRY(fault_);
    for (std::vector<void*>& set : sets) {
      for (void*& address : set) {
        KTUNE_TRY(usable(address, 1));
        address = toHost(address);
      }
    }
    KTUNE_ASSIGN(std::unique_ptr<TimedCalls> inner,
                 inner_->prepareTimedCalls(*static_cast<RemotePlan&>(plan).inner, std::move(sets),
                                           std::move(symbolValues), nullptr));
    return std::unique_ptr<TimedCalls>(new RemoteCalls(*this, std::move(inner)));
  }
  [[nodiscard]] Result<double> emptyLaunchNanoseconds() override { return inner_->emptyLaunchNanoseconds(); }
  [[nodiscard]] std::string timingMethod() const override { return "remote, " + inner_->timingMethod(); }
  /// The watts are the samples so far: how a test learns of them through a worker.
  [[nodiscard]] DeviceConditions conditions() override {
    return {1500, static_cast<double>(timings), 50, timings < hotTimings ? "power cap, thermal" : "power cap"};
  }
  [[nodiscard]] Inspector* inspector() override { return inspects.get(); }
  [[nodiscard]] op::DotEngine* dotEngine() override { return engine; }

 private:
  class Memory final : public DeviceMemory {
   public:
    Memory(RemoteDevice& device, size_t bytes)
        : device_(device), block_(bytes + 2 * kWorkspaceAlignment), bytes_(bytes) {
      const auto address = reinterpret_cast<uintptr_t>(block_.data());
      data_ = static_cast<char*>(
          toRemote(block_.data() + (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment));
      device_.allocated += bytes_;
      device_.live_[reinterpret_cast<uintptr_t>(data_)] = bytes_;
    }
    ~Memory() override {
      device_.allocated -= bytes_;
      device_.live_.erase(reinterpret_cast<uintptr_t>(data_));
    }
    [[nodiscard]] char* data() const override { return data_; }
    [[nodiscard]] size_t bytes() const override { return bytes_; }

   private:
    RemoteDevice& device_;
    std::vector<char> block_;
    size_t bytes_;
    char* data_ = nullptr;
  };

  // As on a GPU a launch that goes wrong is noticed by whoever waits for it.
  class RemotePlan final : public LoadedPlan {
   public:
    RemotePlan(RemoteDevice& device, std::unique_ptr<LoadedPlan> plan) : inner(std::move(plan)), device_(device) {}
    [[nodiscard]] size_t workspaceBytes(const std::vector<int64_t>&) const override {
      return workspaceEnd(device_.slots);
    }
    [[nodiscard]] std::vector<WorkspaceSlot> workspaceSlots(const std::vector<int64_t>&) const override {
      return device_.slots;
    }
    Status run(std::span<void* const> tensors, std::span<const int64_t> symbolValues, void* workspace) override {
      KTUNE_TRY(device_.usable(workspace, workspaceEnd(device_.slots)));
      std::vector<void*> addresses;
      for (void* tensor : tensors) {
        KTUNE_TRY(device_.usable(tensor, 1));
        addresses.push_back(toHost(tensor));
      }
      const Status status = inner->run(addresses, symbolValues, nullptr);
      if (device_.useWorkspace) device_.useWorkspace(static_cast<char*>(toHost(workspace)));
      if (status.code() != StatusCode::kUnavailable) return status;
      device_.fail(status.message());
      return Status::ok();
    }
    const std::unique_ptr<LoadedPlan> inner;

   private:
    RemoteDevice& device_;
  };

  class RemoteCalls final : public TimedCalls {
   public:
    RemoteCalls(RemoteDevice& device, std::unique_ptr<TimedCalls> inner) : device_(device), inner_(std::move(inner)) {}
    [[nodiscard]] Result<double> nanosecondsPerCall(double seconds) override {
      KTUNE_TRY(device_.fault_);
      ++device_.timings;
      Result<double> ns = inner_->nanosecondsPerCall(seconds);
      if (!ns && ns.error().code() == StatusCode::kUnavailable) device_.fail(ns.error().message());
      return ns;
    }

   private:
    RemoteDevice& device_;
    std::unique_ptr<TimedCalls> inner_;
  };

  std::string name_ = "remote";
  std::unique_ptr<Device> inner_;
  schedule::Target target_;
  Status fault_;
  std::map<uintptr_t, size_t> live_;

  // Whether the device works and the bytes lie in its memory.
  [[nodiscard]] Status usable(const void* address, size_t bytes) const {
    KTUNE_TRY(fault_);
    const auto at = reinterpret_cast<uintptr_t>(address);
    const auto after = live_.upper_bound(at);
    if (after != live_.begin()) {
      const auto& [begin, size] = *std::prev(after);
      if (at - begin + bytes <= size) return Status::ok();
    }
    return unavailable("the remote device has no memory at this address");
  }
};

}  // namespace ktune::runtime::testing
