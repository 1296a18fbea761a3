// The child that runs candidates: checks them with the guard, times them over rotating cold buffers.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>

#include "base/System.h"
#include "runtime/guard/Guard.h"
#include "runtime/worker/Protocol.h"
#include "runtime/worker/TimingBuffers.h"
#include "runtime/worker/Workers.h"

namespace ktune::runtime {

namespace {

constexpr uint64_t kCopyBytes = uint64_t{64} << 20;
// Of a device with memory of its own: faster, and with caches that 64 MiB may fit.
constexpr uint64_t kDeviceCopyBytes = uint64_t{512} << 20;
// The buffers of very small problems still take this much, whatever the cap.
constexpr uint64_t kLeastMemoryBytes = uint64_t{64} << 20;
// A sample that was taken while heat or the hardware held the clocks down is taken again this often.
constexpr int kRetakes = 3;

struct LoadedEntry {
  std::unique_ptr<LoadedPlan> plan;
  std::map<uint32_t, std::unique_ptr<TimedCalls>> calls;  ///< Per point.
};

// A candidate has made the device fail, which may have any effect on whoever uses it next: this process ends, and its
// last words say why. The tuner takes them for the candidate's rejection.
[[noreturn]] void dieOfDeviceFault(std::string why) {
  std::replace(why.begin(), why.end(), '\n', ' ');
  why += '\n';
  [[maybe_unused]] const ssize_t n = ::write(STDERR_FILENO, why.data(), why.size());
  ::_exit(kExitDeviceFault);
}

// What a status of running a candidate makes of it.
std::string answerForRun(const Status& status) {
  if (status.code() == StatusCode::kUnavailable) dieOfDeviceFault(status.message());
  return rejectedFrame("load-failed", status.message());
}

// One problem being measured.
class Session {
 public:
  Session(schedule::Problem problem, uint64_t seed, Device& device, FrameChannel& channel)
      : problem_(std::move(problem)),
        points_(op::scoringPoints(problem_.bucket)),
        seed_(seed),
        device_(device),
        channel_(channel) {}

  Status open(uint64_t memoryBytes, bool final, bool measureFacts);
  [[nodiscard]] const search::MeasureFacts& facts() const { return facts_; }
  std::string load(int64_t id, const std::string& bytes);
  void drop(int64_t id) { plans_.erase(id); }
  std::string check(int64_t id, search::CheckLevel level);
  // Errors: not the candidate's fault.
  Result<std::string> sample(int64_t id, uint32_t point, double seconds);

 private:
  const schedule::Problem problem_;
  const std::vector<std::vector<int64_t>> points_;
  const uint64_t seed_;
  Device& device_;
  FrameChannel& channel_;
  search::MeasureFacts facts_;
  std::vector<op::ValueType> types_;
  uint64_t guardBytes_ = 0, guardDeviceBytes_ = 0;
  std::unique_ptr<TimingBuffers> buffers_;
  std::unique_ptr<Guard> guard_;  ///< Made by the first check: a session that only times needs no references.
  std::map<uint32_t, BufferRing> rings_;
  std::unique_ptr<DeviceMemory> workspace_;
  std::map<int64_t, LoadedEntry> plans_;  ///< After what their timed calls use.

  Status coverage(const cache::Plan& plan) const;
  Status makeGuard();
  [[nodiscard]] std::vector<bool> weightsToBorrow() const;
  Result<BufferRing*> ringFor(uint32_t point);
  Status writeZeros(char* data, size_t bytes);
  Status ensureWorkspace(size_t bytes);
  Status renew(const LoadedPlan& plan, const std::vector<int64_t>& symbols, const BufferRing& ring);
};

Status Session::open(uint64_t memoryBytes, bool final, bool measureFacts) {
  KTUNE_ASSIGN(types_, op::inferTypes(problem_.source));
  uint64_t cap = memoryBytes != 0 ? memoryBytes : availableMemoryBytes() / 2;
  if (cap == 0) cap = device_.target().memoryBytes;
  cap = std::max(cap, kLeastMemoryBytes);
  // A device with memory of its own has the timing buffers there, and the guard's buffers on both sides.
  const bool shared = device_.sharesHostMemory();
  uint64_t timingCap = cap;
  if (!shared && device_.target().memoryBytes != 0) {
    timingCap = device_.target().memoryBytes;
    if (memoryBytes != 0) timingCap = std::min(timingCap, cap);
  }
  buffers_ = std::make_unique<TimingBuffers>(device_, TimingBuffers::lastLevelBytes(device_.target()), timingCap, seed_,
                                             final);
  // Extents grow with the symbols: the high end takes most.
  const std::vector<bool> borrowed = weightsToBorrow();
  const uint64_t timing =
      buffers_->bytesFor(problem_.source, tensorViews(problem_.source, types_, points_.back()), borrowed);
  if (timing > timingCap)
    return resourceExhausted("measuring this problem needs " + std::to_string(timing) + " bytes of buffers; " +
                             std::to_string(timingCap) + " are allowed");
  std::vector<std::vector<TensorView>> views;
  for (const std::vector<int64_t>& point : points_) views.push_back(tensorViews(problem_.source, types_, point));
  KTUNE_TRY(buffers_->expect(problem_.source, views, borrowed));
  guardBytes_ = shared ? cap - timing : cap;
  guardDeviceBytes_ = timingCap - timing;
  // A race of small problems has fewer sets than it takes to leave the caches cold.
  const bool cold = shared || final;
  facts_.regime = (cold ? "cold, rotating buffers, " : "rotating buffers of a race, ") + device_.timingMethod();
  if (!measureFacts) return Status::ok();
  KTUNE_ASSIGN(
      facts_.copyBytesPerSecond,
      buffers_->copyBytesPerSecond(shared ? std::min(kCopyBytes, 2 * buffers_->coldBytes()) : kDeviceCopyBytes));
  KTUNE_ASSIGN(facts_.emptyLaunchNs, device_.emptyLaunchNanoseconds());
  return Status::ok();
}

// A plan must be right on the whole bucket, with buffers that are aligned as promised and no better.
Status Session::coverage(const cache::Plan& plan) const {
  const op::Graph& graph = problem_.source;
  const size_t tensors = graph.inputs.size() + graph.outputs.size();
  if (static_cast<size_t>(plan.tensorCount) != tensors || static_cast<size_t>(plan.symbolCount) != graph.symbols.size())
    return invalidArgument("the plan has " + std::to_string(plan.tensorCount) + " tensors and " +
                           std::to_string(plan.symbolCount) + " symbols; the description has " +
                           std::to_string(tensors) + " and " + std::to_string(graph.symbols.size()));
  for (const cache::Precondition& condition : plan.preconditions) {
    const auto index = static_cast<size_t>(condition.index);
    bool holds = false;
    if (condition.kind == cache::Precondition::Kind::kAlignment && index < tensors) {
      const int64_t promised = index < graph.inputs.size() ? graph.inputs[index].alignmentBytes
                                                           : graph.outputs[index - graph.inputs.size()].alignmentBytes;
      holds = promised % std::max<int64_t>(1, condition.low) == 0;
    } else if (condition.kind == cache::Precondition::Kind::kSymbolRange && index < graph.symbols.size()) {
      holds = condition.low <= problem_.bucket.low[index] && condition.high >= problem_.bucket.high[index];
    }
    if (!holds)
      return invalidArgument("the bucket does not guarantee the plan's precondition: " + condition.describe());
  }
  return Status::ok();
}

std::string Session::load(int64_t id, const std::string& bytes) {
  Result<cache::Plan> plan = cache::Plan::fromBytes(bytes);
  if (!plan) return rejectedFrame("load-failed", plan.error().message());
  if (Status status = coverage(*plan); !status.isOk()) return rejectedFrame("load-failed", status.message());
  Result<std::unique_ptr<LoadedPlan>> loaded = device_.load(*plan);
  // Loading runs no kernel: a device that is gone is not this one's doing.
  if (!loaded && loaded.error().code() == StatusCode::kUnavailable) return failedFrame(loaded.error());
  if (!loaded) return rejectedFrame("load-failed", loaded.error().message());
  plans_.erase(id);
  plans_[id].plan = std::move(*loaded);
  return startFrame(FrameKind::kLoaded).take();
}

Status Session::makeGuard() {
  if (guard_ != nullptr) return Status::ok();
  GuardOptions options;
  options.seed = seed_;
  options.memoryBytes = guardBytes_;
  options.deviceMemoryBytes = guardDeviceBytes_;
  options.onPhase = [this](GuardPhase phase) {
    ByteWriter writer = startFrame(FrameKind::kPhase);
    writer.u8(static_cast<uint8_t>(phase));
    (void)channel_.send(writer.bytes());  // A tuner that is gone is noticed at the answer.
  };
  KTUNE_ASSIGN(guard_, Guard::create(problem_, device_, options));
  return Status::ok();
}

// Per input: whether timed runs use the guard's copy.
std::vector<bool> Session::weightsToBorrow() const {
  const std::vector<TensorView> views = tensorViews(problem_.source, types_, points_.back());
  std::vector<bool> borrow;
  for (size_t i = 0; i < problem_.source.inputs.size(); ++i) {
    const op::Input& input = problem_.source.inputs[i];
    borrow.push_back(Guard::keepsOneContent(input, views[i]) && buffers_->mayBorrow(input, views[i]));
  }
  return borrow;
}

std::string Session::check(int64_t id, search::CheckLevel level) {
  const auto found = plans_.find(id);
  if (found == plans_.end()) return failedFrame(internalError("plan " + std::to_string(id) + " is not loaded"));
  const double before = monotonicSeconds();
  if (Status status = makeGuard(); !status.isOk()) return failedFrame(status);
  const double making = monotonicSeconds() - before;
  LoadedPlan& plan = *found->second.plan;
  const GuardVerdict verdict = level == search::CheckLevel::kScreen ? guard_->screen(plan) : guard_->prove(plan);
  if (!verdict.device.isOk()) {
    if (verdict.reason.empty()) return failedFrame(verdict.device);
    dieOfDeviceFault(verdict.detail);
  }
  if (!verdict.right) return rejectedFrame(verdict.reason, verdict.detail);
  ByteWriter writer = startFrame(FrameKind::kChecked);
  writer.f64(verdict.worstErrorShare);
  writer.f64(making + verdict.preparationSeconds);
  writer.f64(making + verdict.firstCaseSeconds);
  writer.u32(static_cast<uint32_t>(verdict.checks.size()));
  for (const std::string& name : verdict.checks) writer.text(name);
  return writer.take();
}

Result<BufferRing*> Session::ringFor(uint32_t point) {
  const auto found = rings_.find(point);
  if (found != rings_.end()) return &found->second;
  std::vector<void*> borrowed;
  for (const bool borrow : weightsToBorrow()) {
    // A worker that was restarted in the middle of a race has not checked anything yet.
    void* address = nullptr;
    if (borrow) {
      KTUNE_TRY(makeGuard());
      KTUNE_ASSIGN(address, guard_->keptWeights(borrowed.size()));
    }
    borrowed.push_back(address);
  }
  KTUNE_ASSIGN(BufferRing ring,
               buffers_->ring(problem_.source, tensorViews(problem_.source, types_, points_[point]), borrowed));
  return &(rings_[point] = std::move(ring));
}

Status Session::writeZeros(char* data, size_t bytes) {
  if (device_.sharesHostMemory()) {
    std::memset(data, 0, bytes);
    return Status::ok();
  }
  constexpr size_t kPiece = size_t{1} << 20;
  const std::vector<char> zeros(std::min(kPiece, bytes));
  for (size_t at = 0; at < bytes; at += kPiece)
    KTUNE_TRY(device_.copyToDevice(data + at, zeros.data(), std::min(kPiece, bytes - at)));
  return Status::ok();
}

// Grows the workspace that all plans share; timed calls that were prepared with the smaller one are forgotten.
Status Session::ensureWorkspace(size_t bytes) {
  if (bytes == 0 || (workspace_ != nullptr && bytes <= workspace_->bytes())) return Status::ok();
  for (auto& [id, entry] : plans_) entry.calls.clear();
  workspace_.reset();
  KTUNE_ASSIGN(workspace_, device_.allocate(bytes));
  return writeZeros(workspace_->data(), bytes);
}

// What earlier runs have changed: the workspace, which other plans use too, and inputs that an output overwrites.
Status Session::renew(const LoadedPlan& plan, const std::vector<int64_t>& symbols, const BufferRing& ring) {
  for (const WorkspaceSlot& slot : plan.workspaceSlots(symbols)) {
    if (slot.kind == cache::WorkspaceKind::kZeroed) KTUNE_TRY(writeZeros(workspace_->data() + slot.offset, slot.bytes));
  }
  const op::Graph& graph = problem_.source;
  for (const op::Output& output : graph.outputs) {
    if (output.aliasInput < 0) continue;
    const auto input = static_cast<size_t>(output.aliasInput);
    const TensorView view = tensorViews(graph, types_, symbols)[input];
    for (size_t s = 0; s < ring.count(); ++s)
      KTUNE_TRY(buffers_->renew(view.dtype, ring.set(s)[input], static_cast<size_t>(view.spanBytes())));
  }
  return Status::ok();
}

Result<std::string> Session::sample(int64_t id, uint32_t point, double seconds) {
  const auto found = plans_.find(id);
  if (found == plans_.end() || point >= points_.size())
    return internalError("no plan " + std::to_string(id) + " or point " + std::to_string(point));
  LoadedEntry& entry = found->second;
  LoadedPlan& plan = *entry.plan;
  const std::vector<int64_t>& symbols = points_[point];
  KTUNE_ASSIGN(const BufferRing* const ring, ringFor(point));
  if (Status status = ensureWorkspace(plan.workspaceBytes(symbols)); !status.isOk()) {
    // Too much beside the timing buffers is the candidate's fault; the next one gets a workspace of its own size.
    if (status.code() == StatusCode::kResourceExhausted)
      return rejectedFrame("load-failed", "workspace: " + status.message());
    return status;
  }
  KTUNE_TRY(renew(plan, symbols, *ring));

  std::unique_ptr<TimedCalls>& calls = entry.calls[point];
  if (calls == nullptr) {
    std::vector<std::vector<void*>> sets;
    for (size_t s = 0; s < ring->count(); ++s) sets.emplace_back(ring->set(s).begin(), ring->set(s).end());
    Result<std::unique_ptr<TimedCalls>> prepared =
        device_.prepareTimedCalls(plan, std::move(sets), symbols, workspace_ == nullptr ? nullptr : workspace_->data());
    if (!prepared) return answerForRun(prepared.error());
    calls = std::move(*prepared);
  }
  for (int retakes = 0;; ++retakes) {
    const Result<double> ns = calls->nanosecondsPerCall(seconds);
    // The device's word for a time that can't be true: it goes on working after the last call is said to have ended.
    if (!ns && ns.error().code() == StatusCode::kInternal)
      return rejectedFrame("impossible-time", ns.error().message());
    if (!ns) return answerForRun(ns.error());
    if (retakes < kRetakes && isHeldBack(device_.throttle())) {
      KTUNE_TRY(renew(plan, symbols, *ring));
      continue;
    }
    ByteWriter writer = startFrame(FrameKind::kSampled);
    writer.f64(*ns);
    return writer.take();
  }
}

std::string stateFrame(const DeviceConditions& conditions) {
  ByteWriter writer = startFrame(FrameKind::kState);
  writer.f64(conditions.clockMhz);
  writer.f64(conditions.powerWatts);
  writer.f64(conditions.temperatureC);
  writer.text(conditions.throttle);
  return writer.take();
}

}  // namespace

int runMeasureWorker(FrameChannel channel, Device& device) {
  if (!channel.send(startFrame(FrameKind::kReady).bytes()).isOk()) return 1;
  std::unique_ptr<Session> session;
  for (;;) {
    Result<Frame> frame = receiveFrame(channel);
    if (!frame) return frame.error().code() == StatusCode::kUnavailable ? 0 : 1;
    ByteReader reader = frame->fields();
    std::string answer;
    if (frame->kind == FrameKind::kOpen) {
      Result<schedule::Problem> problem = decodeProblem(reader);
      const uint64_t seed = reader.u64();
      const uint64_t memoryBytes = reader.u64();
      const bool final = reader.boolean();
      const bool measure = reader.boolean();
      Status status = problem ? reader.finish() : problem.error();
      if (status.isOk()) {
        session = std::make_unique<Session>(std::move(*problem), seed, device, channel);
        status = session->open(memoryBytes, final, measure);
      }
      if (status.isOk()) {
        ByteWriter writer = startFrame(FrameKind::kFacts);
        writer.f64(session->facts().copyBytesPerSecond);
        writer.f64(session->facts().emptyLaunchNs);
        writer.text(session->facts().regime);
        answer = writer.take();
      } else {
        session.reset();
        answer = failedFrame(status);
      }
    } else if (frame->kind == FrameKind::kConditions) {
      const Status status = reader.finish();
      answer = status.isOk() ? stateFrame(device.conditions()) : failedFrame(status);
    } else {
      const int64_t id = reader.i64();
      std::string plan;
      uint8_t level = 0;
      uint32_t point = 0;
      double seconds = 0;
      if (frame->kind == FrameKind::kLoad) plan = reader.blob();
      if (frame->kind == FrameKind::kCheck) level = reader.u8();
      if (frame->kind == FrameKind::kSample) {
        point = reader.u32();
        seconds = reader.f64();
      }
      if (frame->kind == FrameKind::kDrop) {
        if (session != nullptr) session->drop(id);
        continue;
      }
      if (Status status = reader.finish(); !status.isOk()) {
        answer = failedFrame(status);
      } else if (session == nullptr) {
        answer = failedFrame(internalError("no problem is open"));
      } else if (frame->kind == FrameKind::kLoad) {
        answer = session->load(id, plan);
      } else if (frame->kind == FrameKind::kCheck) {
        answer = session->check(id, level == 0 ? search::CheckLevel::kScreen : search::CheckLevel::kFull);
      } else if (frame->kind == FrameKind::kSample) {
        Result<std::string> sampled = session->sample(id, point, seconds);
        answer = sampled ? std::move(*sampled) : failedFrame(sampled.error());
      } else {
        answer = failedFrame(internalError("an unexpected frame"));
      }
    }
    if (!channel.send(answer).isOk()) return 1;
  }
}

}  // namespace ktune::runtime
