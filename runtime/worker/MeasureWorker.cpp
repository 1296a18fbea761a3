// The child that runs candidates: checks them with the guard, times them over rotating cold buffers.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <memory>

#include "base/System.h"
#include "runtime/guard/Guard.h"
#include "runtime/worker/Protocol.h"
#include "runtime/worker/TimingBuffers.h"
#include "runtime/worker/Workers.h"

namespace ktune::runtime {

namespace {

// Between two looks at the clock, which takes some 25 ns.
constexpr double kBatchSeconds = 20e-6;
constexpr int64_t kMostBatch = 1 << 16;
constexpr uint64_t kCopyBytes = uint64_t{64} << 20;
// The buffers of very small problems still take this much, whatever the cap.
constexpr uint64_t kLeastMemoryBytes = uint64_t{64} << 20;

struct LoadedEntry {
  std::unique_ptr<LoadedPlan> plan;
  std::map<uint32_t, int64_t> batches;  ///< Per point: calls between two looks at the clock.
};

class AlignedBytes {
 public:
  // Zeroed; 0 bytes are fine.
  void ensure(size_t bytes) {
    if (bytes <= bytes_) return;
    block_.assign(bytes + kWorkspaceAlignment, 0);
    bytes_ = bytes;
  }
  [[nodiscard]] char* data() {
    if (block_.empty()) return nullptr;
    const auto address = reinterpret_cast<uintptr_t>(block_.data());
    return block_.data() + (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
  }

 private:
  std::vector<char> block_;
  size_t bytes_ = 0;
};

// One problem being measured.
class Session {
 public:
  Session(schedule::Problem problem, uint64_t seed, Device& device, FrameChannel& channel)
      : problem_(std::move(problem)),
        points_(op::scoringPoints(problem_.bucket)),
        seed_(seed),
        device_(device),
        channel_(channel),
        virtualTime_(device.target().kind == schedule::DeviceKind::kFake) {}

  Status open(uint64_t memoryBytes, bool measureFacts);
  [[nodiscard]] const search::MeasureFacts& facts() const { return facts_; }
  std::string load(int64_t id, const std::string& bytes);
  void drop(int64_t id) { plans_.erase(id); }
  std::string check(int64_t id, search::CheckLevel level);
  std::string sample(int64_t id, uint32_t point, double seconds);

 private:
  const schedule::Problem problem_;
  const std::vector<std::vector<int64_t>> points_;
  const uint64_t seed_;
  Device& device_;
  FrameChannel& channel_;
  const bool virtualTime_;
  search::MeasureFacts facts_;
  std::vector<op::ValueType> types_;
  uint64_t guardBytes_ = 0;
  std::unique_ptr<TimingBuffers> buffers_;
  std::unique_ptr<Guard> guard_;  ///< Made by the first check: a session that only times needs no references.
  std::map<uint32_t, BufferRing> rings_;
  std::map<int64_t, LoadedEntry> plans_;
  AlignedBytes workspace_;
  size_t nextSet_ = 0;

  double emptyLaunchNs();
  Status coverage(const cache::Plan& plan) const;
  Status makeGuard();
  [[nodiscard]] std::vector<bool> weightsToBorrow() const;
  Result<BufferRing*> ringFor(uint32_t point);
};

Status Session::open(uint64_t memoryBytes, bool measureFacts) {
  KTUNE_ASSIGN(types_, op::inferTypes(problem_.source));
  uint64_t cap = memoryBytes != 0 ? memoryBytes : availableMemoryBytes() / 2;
  if (cap == 0) cap = device_.target().memoryBytes;
  cap = std::max(cap, kLeastMemoryBytes);
  const op::ParallelFor parallelFor = [this](int64_t n, const std::function<void(int64_t, int64_t)>& f) {
    device_.parallelFor(n, f);
  };
  if (virtualTime_) {
    guardBytes_ = cap;
    facts_ = {20e9, 100, "virtual time of the fake device"};
    return Status::ok();
  }
  buffers_ = std::make_unique<TimingBuffers>(device_.target().l3Bytes, cap, seed_, parallelFor);
  // Extents grow with the symbols: the high end takes most.
  const uint64_t timing =
      buffers_->bytesFor(problem_.source, tensorViews(problem_.source, types_, points_.back()), weightsToBorrow());
  if (timing > cap)
    return resourceExhausted("measuring this problem needs " + std::to_string(timing) + " bytes of buffers; " +
                             std::to_string(cap) + " are allowed");
  guardBytes_ = cap - timing;
  facts_.regime = "cold, rotating buffers, " + std::to_string(device_.target().cores) + " threads";
  if (!measureFacts) return Status::ok();
  KTUNE_ASSIGN(facts_.copyBytesPerSecond, buffers_->copyBytesPerSecond(kCopyBytes));
  facts_.emptyLaunchNs = emptyLaunchNs();
  return Status::ok();
}

// A plan of one tile that does nothing, which runs on the calling thread: no plan can be faster, so that the search may
// call a time below it impossible. (Waking the other threads costs microseconds, and a multiple of that on a busy
// machine; a small kernel of one tile does without.)
double Session::emptyLaunchNs() {
  constexpr int kBatches = 15;
  constexpr int kCalls = 200;
  double least = std::numeric_limits<double>::infinity();
  for (int b = 0; b < kBatches; ++b) {
    const double start = monotonicSeconds();
    for (int i = 0; i < kCalls; ++i) device_.parallelFor(1, [](int64_t, int64_t) {});
    least = std::min(least, (monotonicSeconds() - start) / kCalls * 1e9);
  }
  return least;
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
  if (!loaded) return rejectedFrame("load-failed", loaded.error().message());
  plans_[id] = LoadedEntry{std::move(*loaded), {}};
  return startFrame(FrameKind::kLoaded).take();
}

Status Session::makeGuard() {
  if (guard_ != nullptr) return Status::ok();
  GuardOptions options;
  options.seed = seed_;
  options.memoryBytes = guardBytes_;
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
  if (Status status = makeGuard(); !status.isOk()) return failedFrame(status);
  LoadedPlan& plan = *found->second.plan;
  const GuardVerdict verdict = level == search::CheckLevel::kScreen ? guard_->screen(plan) : guard_->prove(plan);
  if (!verdict.right) return rejectedFrame(verdict.reason, verdict.detail);
  ByteWriter writer = startFrame(FrameKind::kChecked);
  writer.f64(verdict.worstErrorShare);
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
    if (borrow) KTUNE_TRY(makeGuard());
    borrowed.push_back(borrow ? guard_->keptWeights(borrowed.size()) : nullptr);
  }
  KTUNE_ASSIGN(BufferRing ring,
               buffers_->ring(problem_.source, tensorViews(problem_.source, types_, points_[point]), borrowed));
  return &(rings_[point] = std::move(ring));
}

std::string Session::sample(int64_t id, uint32_t point, double seconds) {
  const auto found = plans_.find(id);
  if (found == plans_.end() || point >= points_.size())
    return failedFrame(internalError("no plan " + std::to_string(id) + " or point " + std::to_string(point)));
  LoadedEntry& entry = found->second;
  LoadedPlan& plan = *entry.plan;
  const std::vector<int64_t>& symbols = points_[point];
  ByteWriter writer = startFrame(FrameKind::kSampled);

  if (virtualTime_) {
    // One real run per point, so that a plan that crashes crashes.
    if (!entry.batches.contains(point)) {
      std::vector<TensorView> views = tensorViews(problem_.source, types_, symbols);
      std::vector<std::vector<char>> blocks;
      std::vector<void*> addresses;
      for (size_t t = 0; t < views.size(); ++t) {
        const op::Graph& graph = problem_.source;
        const bool alias = t >= graph.inputs.size() && graph.outputs[t - graph.inputs.size()].aliasInput >= 0;
        blocks.emplace_back(alias ? 0 : static_cast<size_t>(views[t].spanBytes()) + 64);
        addresses.push_back(alias ? addresses[static_cast<size_t>(graph.outputs[t - graph.inputs.size()].aliasInput)]
                                  : blocks.back().data());
      }
      plan.run(addresses, symbols, nullptr);
      entry.batches[point] = 1;
    }
    writer.f64(plan.virtualNs(symbols).value_or(0));
    return writer.take();
  }

  Result<BufferRing*> ringResult = ringFor(point);
  if (!ringResult) return failedFrame(ringResult.error());
  const BufferRing& ring = **ringResult;
  workspace_.ensure(plan.workspaceBytes(symbols));
  char* workspace = workspace_.data();
  // Other plans have used the workspace since.
  for (const WorkspaceSlot& slot : plan.workspaceSlots(symbols)) {
    if (slot.kind == cache::WorkspaceKind::kZeroed) std::memset(workspace + slot.offset, 0, slot.bytes);
  }
  const op::Graph& graph = problem_.source;
  for (const op::Output& output : graph.outputs) {
    if (output.aliasInput < 0) continue;
    const auto input = static_cast<size_t>(output.aliasInput);
    const TensorView view = tensorViews(graph, types_, symbols)[input];
    for (size_t s = 0; s < ring.count(); ++s)
      buffers_->renew(view.dtype, ring.set(s)[input], static_cast<size_t>(view.spanBytes()));
  }

  const auto runOnce = [&] { plan.run(ring.set(nextSet_++ % ring.count()), symbols, workspace); };
  int64_t& batch = entry.batches[point];
  if (batch == 0) {
    runOnce();  // Its code and the branch predictors.
    const double start = monotonicSeconds();
    runOnce();
    const double one = std::max(monotonicSeconds() - start, 1e-9);
    batch = std::clamp<int64_t>(static_cast<int64_t>(kBatchSeconds / one), 1, kMostBatch);
  }
  // Between samples the threads have gone to sleep; waking them is no part of a call.
  for (int i = 0; i < 3; ++i) device_.parallelFor(device_.target().cores, [](int64_t, int64_t) {});
  int64_t calls = 0;
  double elapsed = 0;
  const double start = monotonicSeconds();
  do {
    for (int64_t i = 0; i < batch; ++i) runOnce();
    calls += batch;
    elapsed = monotonicSeconds() - start;
  } while (elapsed < seconds);
  writer.f64(elapsed / static_cast<double>(calls) * 1e9);
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
      const bool measure = reader.boolean();
      Status status = problem ? reader.finish() : problem.error();
      if (status.isOk()) {
        session = std::make_unique<Session>(std::move(*problem), seed, device, channel);
        status = session->open(memoryBytes, measure);
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
        answer = session->sample(id, point, seconds);
      } else {
        answer = failedFrame(internalError("an unexpected frame"));
      }
    }
    if (!channel.send(answer).isOk()) return 1;
  }
}

}  // namespace ktune::runtime
