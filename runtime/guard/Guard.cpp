#include "runtime/guard/Guard.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "base/Deadline.h"
#include "base/System.h"
#include "runtime/guard/GuardedBuffer.h"
#include "runtime/guard/Inputs.h"
#include "runtime/guard/References.h"
#include "runtime/launch/Inspector.h"

namespace ktune::runtime {

namespace {

// Reference operations and bytes that the optional cases of one problem may cost together: about a second on two cores.
constexpr double kOptionalWork = 5e9;
// On a device with memory of its own everything is made, moved and compared on the host, while the device waits.
constexpr double kOptionalRemoteWork = 1.5e9;
// A problem of more work at its high end is checked there once; its hostile and least-aligned cases move to the low
// end.
constexpr double kHeavyWork = 1e10;
// Where the device has an engine for dot products an operation counts this much less.
constexpr double kEngineShare = 20;
constexpr int kHeldOutPoints = 3;
// Weights of more bytes are made once: mixed-sign values at the least promised alignment, for every case. The other
// inputs still change from case to case, and a kernel cannot tell its cases apart by its weights.
constexpr uint64_t kHeavyConstantBytes = uint64_t{64} << 20;
// Working memory of one block of a reference: large enough to share among threads, small enough to stay in caches.
constexpr uint64_t kMostWorkingBytes = uint64_t{64} << 20;
constexpr uint64_t kLeastWorkingBytes = uint64_t{16} << 20;
// An engine is worth its transfers on large pieces only.
constexpr uint64_t kMostEngineBytes = uint64_t{512} << 20;

std::string number(double v) {
  char text[40];
  std::snprintf(text, sizeof text, "%.9g", v);
  return text;
}

std::string positionText(int64_t index, const std::vector<int64_t>& extents) {
  std::string text;
  for (size_t d = extents.size(); d-- > 0;) {
    text = std::to_string(index % extents[d]) + (text.empty() ? "" : ", ") + text;
    index /= extents[d];
  }
  return "[" + text + "]";
}

// ------------------------------------------------------------------------------------------------------------ cases

struct Case {
  Distribution distribution = Distribution::kNormal;
  std::vector<int64_t> point;
  bool shifted = false;
  int64_t variant = 0;
  int64_t firstRow = 0;  ///< In units of the symbol.
  bool operator==(const Case&) const = default;
};

// What a reference depends on; buffers' addresses are no part of it.
using ReferenceKey = std::tuple<int, std::vector<int64_t>, int64_t>;
ReferenceKey referenceKey(const Case& c) {
  return {static_cast<int>(c.distribution), c.point, c.variant};
}

// What an input buffer holds.
struct Content {
  bool valid = false;
  Distribution distribution = Distribution::kNormal;
  int64_t variant = 0, firstRow = 0;
  bool shifted = false;
  std::vector<int64_t> extents;
  bool operator==(const Content&) const = default;
};

class GuardImpl final : public Guard {
 public:
  GuardImpl(const schedule::Problem& problem, Device& device, const GuardOptions& options)
      : problem_(problem),
        options_(options),
        device_(device),
        workFactor_(device.dotEngine() != nullptr ? kEngineShare : 1),
        remote_(!device.sharesHostMemory()),
        parallelFor_(
            [&device](int64_t n, const std::function<void(int64_t, int64_t)>& f) { device.parallelFor(n, f); }),
        hostInspector_(makeHostInspector(parallelFor_)) {}

  Status prepare();
  GuardVerdict screen(LoadedPlan& plan) override;
  GuardVerdict prove(LoadedPlan& plan) override;
  Result<void*> keptWeights(size_t input) override;

 private:
  const schedule::Problem problem_;
  const GuardOptions options_;
  Device& device_;
  const double workFactor_;  ///< How much more an operation costs on the host than where large references are made.
  const bool remote_;
  const op::ParallelFor parallelFor_;
  std::vector<op::ValueType> types_;
  std::unique_ptr<ReferenceEvaluator> evaluator_;
  const std::unique_ptr<Inspector> hostInspector_;
  GuardedMemory memory_;              ///< With the device's inspector where it has one that fits in its memory.
  uint64_t referenceCacheBytes_ = 0;  ///< In the inspector's memory.
  uint64_t snapshotCacheBytes_ = 0;

  /// An input's content as the device had it, with its bands.
  struct Snapshot {
    Content content;
    std::unique_ptr<DeviceMemory> memory;
    uint64_t checksum = 0;
  };
  using References = std::vector<std::unique_ptr<KeptReference>>;  ///< One per output.

  std::vector<Case> cases_;             ///< In the order of prove(); the first is screen()'s.
  std::vector<TensorView> inputViews_;  ///< At the bucket's high end, without addresses.
  std::vector<GuardedBuffer> inputs_;
  /// One set for each of two runs; of an output that aliases an input, what it was after the run.
  std::vector<GuardedBuffer> outputs_[2];
  GuardedBuffer workspace_;
  size_t workspaceCapacity_ = 0;
  std::vector<Content> contents_;    ///< Per input, on the host.
  std::vector<Content> present_;     ///< Per input, where candidates find it.
  std::vector<uint64_t> checksums_;  ///< Per input, of what is present.
  std::vector<std::vector<Snapshot>> snapshots_;
  uint64_t snapshotBytes_ = 0;
  std::map<ReferenceKey, References> references_;
  uint64_t cachedBytes_ = 0;
  double preparationSeconds_ = 0;   ///< So far.
  std::vector<Expected> expected_;  ///< The reference evaluated last, and its memory for the next.

  [[nodiscard]] size_t inputCount() const { return problem_.source.inputs.size(); }
  [[nodiscard]] std::vector<TensorView> viewsAt(const std::vector<int64_t>& point) const {
    return tensorViews(problem_.source, types_, point);
  }
  [[nodiscard]] bool isAliased(size_t input) const {
    return std::any_of(problem_.source.outputs.begin(), problem_.source.outputs.end(),
                       [&](const op::Output& o) { return o.aliasInput == static_cast<int32_t>(input); });
  }
  [[nodiscard]] bool isHeavy(size_t input, const TensorView& view) const {
    return keepsOneContent(problem_.source.inputs[input], view);
  }
  [[nodiscard]] std::string caseName(const Case& c) const;
  [[nodiscard]] double workOf(const std::vector<int64_t>& point) const;
  void chooseCases();
  Status refuseTrivialOutputs();
  [[nodiscard]] Inspector& inspector() const {
    return memory_.deviceInspector != nullptr ? *memory_.deviceInspector : *memory_.host;
  }
  [[nodiscard]] int64_t firstRowOf(const Case& c, size_t input, const TensorView& view) const;
  [[nodiscard]] Content contentOf(const Case& c, size_t input, const TensorView& view) const;
  void placeInput(size_t input, const Content& content, const TensorView& view);
  void makeInput(const Case& c, size_t input, const TensorView& view);
  void fillHeavy(const InputStream& spec, const TensorView& view);
  Status bringInput(const Case& c, size_t input, const TensorView& view);
  Result<bool> restoreInput(size_t input, const Content& content);
  Result<bool> keepSnapshot(size_t input);
  void spoilInput(size_t input);
  void releaseSpareMemory();
  Status evaluate(const Case& c);
  Result<const References*> keepReference(const ReferenceKey& key);
  Result<const References*> reference(const Case& c);
  void phase(GuardPhase p) const {
    if (options_.onPhase) options_.onPhase(p);
  }
  struct Failure {
    std::string reason, detail;
    Status device;  ///< As in GuardVerdict.
  };
  [[nodiscard]] static Failure candidateFault(const Status& status) { return {"run-crash", status.message(), status}; }
  [[nodiscard]] static Failure trustedFault(const Status& status) { return {"", status.message(), status}; }
  Status prepareRun(int which, const std::vector<WorkspaceSlot>& slots);
  Status bringBackResults(int which);
  Result<std::optional<Failure>> inspectRun(int which, const std::vector<WorkspaceSlot>& slots);
  [[nodiscard]] static GuardVerdict rejected(GuardVerdict verdict, Failure failure);
  std::optional<Failure> runOnce(LoadedPlan& plan, const Case& c, int which, std::vector<TensorView>& views);
  Result<std::optional<Failure>> inspectInputs(const std::vector<TensorView>& views, bool heavy);
  Result<std::optional<Failure>> compareRuns(const std::vector<TensorView>& views) const;
  Result<std::optional<Failure>> compareWithReference(const Case& c, const std::vector<TensorView>& views,
                                                      double& worstShare, bool& judged);
  /// LAST: of this verdict, when heavy weights are looked at again, too.
  std::optional<Failure> checkCase(LoadedPlan& plan, const Case& c, bool last, double& worstShare, bool& judged,
                                   std::vector<std::string>* rowsOut);
  std::optional<Failure> checkBatchInvariance(LoadedPlan& plan, std::map<std::string, std::vector<std::string>>& rows);
};

std::string GuardImpl::caseName(const Case& c) const {
  std::string text(distributionName(c.distribution));
  for (size_t s = 0; s < c.point.size(); ++s)
    text += " " + problem_.source.symbols[s].name + "=" + std::to_string(c.point[s]);
  if (c.variant != 0) text += " variant " + std::to_string(c.variant);
  if (c.firstRow != 0) text += " from row " + std::to_string(c.firstRow);
  if (c.shifted) text += " shifted";
  return text;
}

double GuardImpl::workOf(const std::vector<int64_t>& point) const {
  const op::Work work = op::workOf(problem_.source, point);
  return work.operations / workFactor_ + work.bytes;
}

void GuardImpl::chooseCases() {
  using enum Distribution;
  const std::vector<std::vector<int64_t>> points = op::scoringPoints(problem_.bucket);
  const std::vector<int64_t>& low = points.front();
  const std::vector<int64_t>& high = points.back();
  const auto add = [&](const Case& c) {
    if (std::find(cases_.begin(), cases_.end(), c) == cases_.end()) cases_.push_back(c);
  };
  // Always: both ends, the first hostile distribution at the high end, and buffers that are no better aligned than
  // promised (the same values, so no further reference).
  add({kNormal, high});
  const bool heavy = workOf(high) > kHeavyWork;
  if (heavy) {
    add({kUniformPositive, low});
    add({kNormal, low, true});
  } else {
    add({kUniformPositive, high});
    add({kNormal, high, true});
    add({kNormal, low});
    add({kNormal, low, true});
  }

  // As far as the work goes, in the order of what they find.
  double left = remote_ ? kOptionalRemoteWork : kOptionalWork;
  const auto addIfCheap = [&](const Case& c) {
    const double work = workOf(c.point);
    if (work > left) return false;
    left -= work;
    add(c);
    return true;
  };
  // Denormals slow honest kernels many times over: where a run takes a good part of a second they come last.
  std::vector<Distribution> others = {kSpecialValues, kCancellation, kMixedMagnitudes};
  if (heavy) std::rotate(others.begin(), others.begin() + 1, others.end());
  for (Distribution d : others) {
    if (!addIfCheap({d, high})) addIfCheap({d, low});
  }
  // Few rows see few kinds of special rows: the kinds take turns.
  int64_t rows = std::numeric_limits<int64_t>::max();
  for (const TensorView& view : viewsAt(high)) {
    if (!view.extents.empty()) rows = std::min(rows, view.rows());
  }
  for (int64_t variant = std::max<int64_t>(1, rows); variant < 4; variant += std::max<int64_t>(1, rows))
    if (!addIfCheap({kSpecialValues, high, false, variant})) addIfCheap({kSpecialValues, low, false, variant});
  int i = 0;
  for (const std::vector<int64_t>& point : op::heldOutPoints(problem_.bucket, kHeldOutPoints, options_.seed)) {
    constexpr Distribution kTurns[] = {kNormal, kMixedMagnitudes, kCancellation};
    addIfCheap({kTurns[i % 3], point, i % 2 == 1});
    ++i;
  }
  for (size_t p = 1; p + 1 < points.size(); ++p) addIfCheap({kNormal, points[p]});
  addIfCheap({kUniformPositive, low});
  // Weights are made once per distribution: equal ones follow each other, the screening case first.
  std::stable_sort(cases_.begin() + 1, cases_.end(), [](const Case& a, const Case& b) {
    return std::tuple(a.distribution, a.variant, a.shifted) < std::tuple(b.distribution, b.variant, b.shifted);
  });
}

Status GuardImpl::prepare() {
  KTUNE_ASSIGN(types_, op::inferTypes(problem_.source));
  const std::vector<std::vector<int64_t>> points = op::scoringPoints(problem_.bucket);
  const std::vector<int64_t>& high = points.back();
  for (size_t o = 0; o < problem_.source.outputs.size(); ++o)
    KTUNE_TRY(op::elementCount(types_[static_cast<size_t>(problem_.source.outputs[o].value)].shape, high).status());

  const uint64_t available = availableMemoryBytes();
  uint64_t cap = options_.memoryBytes != 0 ? options_.memoryBytes : available / 3;
  if (cap == 0) cap = std::numeric_limits<uint64_t>::max();  // Unknown.
  op::DotEngine* engine = device_.dotEngine();
  evaluator_ = std::make_unique<ReferenceEvaluator>(
      problem_, std::clamp(cap / 8, kLeastWorkingBytes, engine != nullptr ? kMostEngineBytes : kMostWorkingBytes),
      engine);

  // Extents grow with the symbols, so the high end is the largest.
  const std::vector<TensorView> views = viewsAt(high);
  inputViews_.assign(views.begin(), views.begin() + static_cast<std::ptrdiff_t>(inputCount()));
  uint64_t needed = evaluator_->workingBytes(high);
  uint64_t expectedBytes = 0;
  uint64_t twins = 0, aliasTwins = 0;
  const auto alignmentOf = [&](size_t tensor) {
    const int64_t a = tensor < inputCount() ? problem_.source.inputs[tensor].alignmentBytes
                                            : problem_.source.outputs[tensor - inputCount()].alignmentBytes;
    return static_cast<size_t>(std::max<int64_t>(1, a));
  };
  const auto isAlias = [&](size_t tensor) { return problem_.source.outputs[tensor - inputCount()].aliasInput >= 0; };
  for (size_t t = 0; t < views.size(); ++t) {
    const auto bytes = static_cast<size_t>(views[t].spanBytes());
    const uint64_t twin = GuardedBuffer::twinBytes(bytes, alignmentOf(t));
    if (t < inputCount()) {
      needed += GuardedBuffer::totalBytes(bytes, alignmentOf(t));
      twins += twin;
      continue;
    }
    // Two runs' results, and the reference's.
    needed += 2 * GuardedBuffer::totalBytes(bytes, alignmentOf(t));
    (isAlias(t) ? aliasTwins : twins) += 2 * twin;
    expectedBytes += static_cast<uint64_t>(views[t].rows() * views[t].columns()) * 2 * sizeof(double);
  }
  needed += expectedBytes;
  if (needed > cap)
    return resourceExhausted("checking this problem needs " + std::to_string(needed) +
                             " bytes for inputs, outputs and references; " + std::to_string(cap) + " are allowed");
  const uint64_t deviceCap = options_.deviceMemoryBytes;
  if (remote_ && deviceCap != 0 && twins > deviceCap)
    return resourceExhausted("checking this problem needs " + std::to_string(twins) +
                             " bytes of the device's memory for inputs and outputs; " + std::to_string(deviceCap) +
                             " are allowed");
  const uint64_t inspected = twins + aliasTwins + expectedBytes;
  memory_ = {&device_, nullptr, hostInspector_.get()};
  if (remote_ && (deviceCap == 0 || inspected <= deviceCap)) memory_.deviceInspector = device_.inspector();
  if (memory_.deviceInspector != nullptr) {
    // Half of what is left stays for candidates' workspaces.
    const uint64_t spare = deviceCap != 0 ? deviceCap - inspected : device_.target().memoryBytes / 4;
    referenceCacheBytes_ = expectedBytes + spare / 4;
    snapshotCacheBytes_ = spare / 4;
  } else {
    referenceCacheBytes_ = std::max(expectedBytes, std::min((cap - needed) / 2, cap / 4) + expectedBytes);
  }

  for (size_t t = 0; t < views.size(); ++t) {
    const auto bytes = static_cast<size_t>(views[t].spanBytes());
    if (t < inputCount()) {
      KTUNE_ASSIGN(GuardedBuffer buffer, GuardedBuffer::create(bytes, alignmentOf(t), memory_));
      inputs_.push_back(std::move(buffer));
      continue;
    }
    // No candidate ever sees the copy of an aliased input: it lies where it is looked at.
    GuardedMemory memory = memory_;
    if (isAlias(t) && memory.deviceInspector == nullptr) memory.device = nullptr;
    for (auto& set : outputs_) {
      KTUNE_ASSIGN(GuardedBuffer buffer, GuardedBuffer::create(bytes, alignmentOf(t), memory));
      set.push_back(std::move(buffer));
    }
  }
  contents_.resize(inputCount());
  present_.resize(inputCount());
  checksums_.resize(inputCount());
  snapshots_.resize(inputCount());
  chooseCases();
  return refuseTrivialOutputs();
}

Status GuardImpl::refuseTrivialOutputs() {
  using enum Distribution;
  // Where zeros or a constant are right, a kernel that does nothing would be, too (measuring.md, 2). The low end is
  // cheap, and its reference is needed anyway.
  const std::vector<int64_t> low = op::scoringPoints(problem_.bucket).front();
  std::string passing;
  for (Distribution d : {kNormal, kUniformPositive, kMixedMagnitudes, kSpecialValues}) {
    const std::vector<TensorView> views = viewsAt(low);
    const Case c{d, low};
    KTUNE_TRY(evaluate(c));
    passing.clear();
    for (size_t o = 0; o < expected_.size(); ++o) {
      const op::DType type = views[inputCount() + o].dtype;
      const Expected& e = expected_[o];
      if (e.values.empty()) continue;
      double sum = 0;
      for (double v : e.values) sum += v;
      for (const double constant : {0.0, op::roundTo(type, sum / static_cast<double>(e.values.size()))}) {
        // One number is its own mean: only zero says anything of it.
        if (constant != 0 && e.values.size() == 1) continue;
        size_t i = 0;
        while (i < e.values.size() && errorShare(constant, e.values[i], e.bounds[i], flushAllowance(type)) <= 1) ++i;
        if (i == e.values.size()) passing = "output " + std::to_string(o) + " filled with " + number(constant);
      }
    }
    KTUNE_TRY(keepReference(referenceKey(c)).status());
    if (passing.empty()) return Status::ok();
  }
  return unsupported("no check can tell a right kernel from one that does nothing: " + passing +
                     " is within the error bounds on every distribution of inputs");
}

// Fills dense weights from a block of generated rows: generating gigabytes would take longer than everything else. The
// period has no factor in common with a row, so that equal rows lie as far apart as can be.
void GuardImpl::fillHeavy(const InputStream& spec, const TensorView& view) {
  const auto size = static_cast<int64_t>(op::dtypeBytes(view.dtype));
  const int64_t outer = view.extents.front();
  const int64_t rowElements = view.rows() / outer * view.columns();
  TensorView block = view;
  block.extents.front() = std::min(outer, (int64_t{1} << 23) / std::max<int64_t>(1, rowElements) + 2);
  fillInput(spec, block, parallelFor_);
  const int64_t filled = block.extents.front() * rowElements;
  int64_t period = filled - std::max<int64_t>(1, rowElements / 3);
  while (period > 1 && std::gcd(period, rowElements) != 1) --period;
  auto* bytes = static_cast<char*>(view.data);
  const int64_t periods = (outer * rowElements + period - 1) / period;
  parallelFor_(periods - 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin + 1; p <= end; ++p) {
      const int64_t first = p == 1 ? filled : p * period;  // The block itself reaches into the second period.
      const int64_t last = std::min((p + 1) * period, outer * rowElements);
      if (first < last)
        std::memcpy(bytes + first * size, bytes + (first - p * period) * size,
                    static_cast<size_t>((last - first) * size));
    }
  });
}

// Rows that count the symbol start elsewhere; weights stay.
int64_t GuardImpl::firstRowOf(const Case& c, size_t input, const TensorView& view) const {
  const op::Shape& shape = problem_.source.inputs[input].type.shape;
  if (c.firstRow == 0 || shape.size() < 2 || shape[0].isStatic()) return 0;
  int64_t firstRow = c.firstRow * shape[0].factor;
  for (size_t d = 1; d + 1 < shape.size(); ++d) firstRow *= view.extents[d];
  return firstRow;
}

Content GuardImpl::contentOf(const Case& c, size_t input, const TensorView& view) const {
  const bool heavy = isHeavy(input, view);
  return {true,
          heavy ? Distribution::kNormal : c.distribution,
          heavy ? 0 : c.variant,
          firstRowOf(c, input, view),
          heavy || c.shifted,
          view.extents};
}

// Room for CONTENT: what lay elsewhere is gone.
void GuardImpl::placeInput(size_t input, const Content& content, const TensorView& view) {
  const auto liesThere = [&](const Content& old) {
    return old.valid && old.extents == content.extents && old.shifted == content.shifted;
  };
  if (!liesThere(contents_[input])) contents_[input].valid = false;
  if (!liesThere(present_[input])) present_[input].valid = false;
  inputs_[input].place(static_cast<size_t>(view.spanBytes()),
                       static_cast<size_t>(problem_.source.inputs[input].alignmentBytes), content.shifted);
}

// Sees to it that the host's block holds what the case says.
void GuardImpl::makeInput(const Case& c, size_t input, const TensorView& view) {
  const Content wanted = contentOf(c, input, view);
  if (contents_[input] == wanted) return;
  placeInput(input, wanted, view);
  GuardedBuffer& buffer = inputs_[input];
  TensorView block = view;
  block.data = buffer.data();
  const bool dense = view.rows() * view.columns() * op::dtypeBytes(view.dtype) == view.spanBytes();
  // The gaps are guard bands, too. On the host nothing can fail.
  if (!dense) (void)hostInspector_->fill(buffer.data(), buffer.bytes(), kPoison[0]);
  const InputStream spec{
      wanted.distribution, options_.seed,  static_cast<int32_t>(input), problem_.source.inputs[input].constant,
      wanted.variant,      wanted.firstRow};
  if (isHeavy(input, view) && dense && view.extents.size() > 1)
    fillHeavy(spec, block);
  else
    fillInput(spec, block, parallelFor_);
  contents_[input] = wanted;
  if (memory_.deviceInspector == nullptr) present_[input].valid = false;
}

// Sees to it that candidates find what the case says.
Status GuardImpl::bringInput(const Case& c, size_t input, const TensorView& view) {
  const Content wanted = contentOf(c, input, view);
  if (present_[input] == wanted) return Status::ok();
  placeInput(input, wanted, view);
  KTUNE_ASSIGN(const bool restored, restoreInput(input, wanted));
  if (restored) return Status::ok();
  const double before = monotonicSeconds();
  makeInput(c, input, view);
  const GuardedBuffer& buffer = inputs_[input];
  KTUNE_TRY(buffer.upload());
  KTUNE_ASSIGN(checksums_[input], inspector().checksum(buffer.inspectedData(), buffer.bytes()));
  present_[input] = wanted;
  // Heavy weights have one content only.
  const bool heavy = isHeavy(input, view);
  KTUNE_ASSIGN(const bool kept, heavy ? Result<bool>(true) : keepSnapshot(input));
  if (kept) preparationSeconds_ += monotonicSeconds() - before;
  return Status::ok();
}

// Whether the device still had it: making an input and bringing it there takes longer than everything else of a case.
Result<bool> GuardImpl::restoreInput(size_t input, const Content& content) {
  std::vector<Snapshot>& kept = snapshots_[input];
  const auto found = std::find_if(kept.begin(), kept.end(), [&](const Snapshot& s) { return s.content == content; });
  if (found == kept.end()) return false;
  const GuardedBuffer& buffer = inputs_[input];
  KTUNE_TRY(device_.copyOnDevice(buffer.candidateData() - GuardedBuffer::kBandBytes, found->memory->data(),
                                 buffer.bytes() + 2 * GuardedBuffer::kBandBytes));
  KTUNE_ASSIGN(const uint64_t checksum, inspector().checksum(buffer.inspectedData(), buffer.bytes()));
  KTUNE_ASSIGN(const std::optional<int64_t> damage, buffer.damage());
  if (checksum != found->checksum || damage) {
    // A stray write of some candidate's; nobody knows whose.
    snapshotBytes_ -= found->memory->bytes();
    kept.erase(found);
    return false;
  }
  checksums_[input] = checksum;
  present_[input] = content;
  return true;
}

// Whether the input is there for the next time.
Result<bool> GuardImpl::keepSnapshot(size_t input) {
  if (memory_.deviceInspector == nullptr) return false;
  const GuardedBuffer& buffer = inputs_[input];
  const size_t bytes = buffer.bytes() + 2 * GuardedBuffer::kBandBytes;
  if (bytes > snapshotCacheBytes_ || snapshotBytes_ > snapshotCacheBytes_ - bytes) return false;
  Result<std::unique_ptr<DeviceMemory>> memory = device_.allocate(bytes);
  if (!memory && memory.error().code() == StatusCode::kResourceExhausted) return false;
  if (!memory) return memory.error();
  KTUNE_TRY(device_.copyOnDevice((*memory)->data(), buffer.candidateData() - GuardedBuffer::kBandBytes, bytes));
  snapshotBytes_ += bytes;
  snapshots_[input].push_back({present_[input], std::move(*memory), checksums_[input]});
  return true;
}

// A candidate has written where it must not: the input is made anew for the next one.
void GuardImpl::spoilInput(size_t input) {
  present_[input].valid = false;
  if (memory_.deviceInspector == nullptr) contents_[input].valid = false;
}

// What is kept to save time, of the device's memory.
void GuardImpl::releaseSpareMemory() {
  for (std::vector<Snapshot>& kept : snapshots_) kept.clear();
  snapshotBytes_ = 0;
  if (memory_.deviceInspector == nullptr) return;
  references_.clear();
  cachedBytes_ = 0;
}

Result<void*> GuardImpl::keptWeights(size_t input) {
  if (!keepsOneContent(problem_.source.inputs[input], inputViews_[input])) return static_cast<void*>(nullptr);
  KTUNE_TRY(bringInput(cases_.front(), input, inputViews_[input]));
  return static_cast<void*>(inputs_[input].candidateData());
}

// Into expected_.
Status GuardImpl::evaluate(const Case& c) {
  std::vector<TensorView> inputs = viewsAt(c.point);
  inputs.resize(inputCount());
  for (size_t i = 0; i < inputCount(); ++i) {
    makeInput(c, i, inputs[i]);
    inputs[i].data = inputs_[i].data();
  }
  return evaluator_->evaluate(c.point, inputs, parallelFor_, expected_);
}

// From expected_.
Result<const GuardImpl::References*> GuardImpl::keepReference(const ReferenceKey& key) {
  uint64_t bytes = 0;
  for (const Expected& e : expected_) bytes += e.values.size() * 2 * sizeof(double);
  if (cachedBytes_ + bytes > referenceCacheBytes_) {
    // Screening happens most often, so its reference stays.
    for (auto it = references_.begin(); it != references_.end();)
      it = it->first == referenceKey(cases_.front()) ? std::next(it) : references_.erase(it);
    cachedBytes_ = 0;
    for (const auto& [k, kept] : references_)
      for (const auto& e : kept) cachedBytes_ += e->bytes();
    if (cachedBytes_ + bytes > referenceCacheBytes_) {
      references_.clear();
      cachedBytes_ = 0;
    }
  }
  References references;
  for (Expected& e : expected_) {
    KTUNE_ASSIGN(std::unique_ptr<KeptReference> kept, inspector().keep(e));
    cachedBytes_ += kept->bytes();
    references.push_back(std::move(kept));
  }
  return &(references_[key] = std::move(references));
}

Result<const GuardImpl::References*> GuardImpl::reference(const Case& c) {
  const ReferenceKey key = referenceKey(c);
  if (const auto found = references_.find(key); found != references_.end()) return &found->second;
  const double before = monotonicSeconds();
  KTUNE_TRY(evaluate(c));
  Result<const References*> kept = keepReference(key);
  preparationSeconds_ += monotonicSeconds() - before;
  return kept;
}

// Poison, bands and zeros, to where the candidate finds them.
Status GuardImpl::prepareRun(int which, const std::vector<WorkspaceSlot>& slots) {
  for (size_t o = 0; o < problem_.source.outputs.size(); ++o) {
    if (problem_.source.outputs[o].aliasInput >= 0) continue;
    KTUNE_TRY(outputs_[which][o].poison(which));
    KTUNE_TRY(outputs_[which][o].prepare());
  }
  KTUNE_TRY(workspace_.poison(which));
  for (const WorkspaceSlot& slot : slots) {
    if (slot.kind == cache::WorkspaceKind::kZeroed)
      KTUNE_TRY(inspector().fill(workspace_.inspectedData() + slot.offset, slot.bytes, {0, 0}));
  }
  return workspace_.prepare();
}

// What a run has left, to where it is looked at. Of inputs that nothing may write the bands only: inspectInputs() looks
// at the rest.
Status GuardImpl::bringBackResults(int which) {
  const op::Graph& graph = problem_.source;
  for (size_t i = 0; i < inputCount(); ++i)
    KTUNE_TRY(isAliased(i) ? inputs_[i].bringBack() : inputs_[i].bringBackBands());
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    const GuardedBuffer& output = outputs_[which][o];
    if (graph.outputs[o].aliasInput < 0) {
      KTUNE_TRY(output.bringBack());
      continue;
    }
    const GuardedBuffer& input = inputs_[static_cast<size_t>(graph.outputs[o].aliasInput)];
    if (output.inspectedOnDevice())
      KTUNE_TRY(device_.copyOnDevice(output.inspectedData(), input.inspectedData(), output.bytes()));
    else
      std::memcpy(output.data(), input.data(), output.bytes());
  }
  return workspace_.bringBack();
}

// What lies round everything that the run was given, and what it has left in the workspace.
Result<std::optional<GuardImpl::Failure>> GuardImpl::inspectRun(int which, const std::vector<WorkspaceSlot>& slots) {
  const op::Graph& graph = problem_.source;
  const auto inspect = [&](const GuardedBuffer& buffer, const std::string& what) -> Result<std::optional<Failure>> {
    KTUNE_ASSIGN(const std::optional<int64_t> at, buffer.damage());
    if (!at) return std::optional<Failure>();
    return std::optional<Failure>(Failure{"guard-band",
                                          *at < 0 ? "wrote " + std::to_string(-*at) + " bytes before " + what
                                                  : "wrote " + std::to_string(*at) + " bytes past the end of " + what,
                                          {}});
  };
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    if (graph.outputs[o].aliasInput >= 0) continue;
    KTUNE_ASSIGN(std::optional<Failure> failure,
                 inspect(outputs_[which][o], "output '" + graph.valueName(graph.outputs[o].value) + "'"));
    if (failure) return failure;
  }
  for (size_t i = 0; i < inputCount(); ++i) {
    KTUNE_ASSIGN(std::optional<Failure> failure, inspect(inputs_[i], "input '" + graph.inputs[i].name + "'"));
    if (!failure) continue;
    spoilInput(i);
    return failure;
  }
  KTUNE_ASSIGN(std::optional<Failure> failure, inspect(workspace_, "the workspace"));
  if (failure) return failure;
  const char* const workspace = workspace_.inspectedData();
  const BytePair poison = kPoison[which];
  size_t end = 0;
  for (const WorkspaceSlot& slot : slots) {
    const BytePair fromHere = end % 2 == 0 ? poison : BytePair{poison[1], poison[0]};
    KTUNE_ASSIGN(std::optional<size_t> at, inspector().firstOther(workspace + end, slot.offset - end, fromHere));
    if (at) return std::optional<Failure>(Failure{"guard-band", "wrote between two workspace slots", {}});
    end = slot.offset + slot.bytes;
    if (slot.kind != cache::WorkspaceKind::kZeroed) continue;
    KTUNE_ASSIGN(at, inspector().firstOther(workspace + slot.offset, slot.bytes, {0, 0}));
    if (at)
      return std::optional<Failure>(Failure{"wrong-result", "a workspace slot that must be left zero was not", {}});
  }
  return std::optional<Failure>();
}

// Runs the plan on poisoned outputs (set WHICH) and looks at everything round its buffers. VIEWS: get the addresses of
// the outputs for the inspector.
std::optional<GuardImpl::Failure> GuardImpl::runOnce(LoadedPlan& plan, const Case& c, int which,
                                                     std::vector<TensorView>& views) {
  const op::Graph& graph = problem_.source;
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    GuardedBuffer& buffer = outputs_[which][o];
    buffer.place(static_cast<size_t>(views[inputCount() + o].spanBytes()),
                 static_cast<size_t>(graph.outputs[o].alignmentBytes), c.shifted);
    views[inputCount() + o].data = buffer.inspectedData();
  }
  const size_t workspaceBytes = plan.workspaceBytes(c.point);
  if (workspaceBytes > workspaceCapacity_ || workspace_.data() == nullptr) {
    Result<GuardedBuffer> buffer = GuardedBuffer::create(workspaceBytes, kWorkspaceAlignment, memory_);
    if (!buffer && buffer.error().code() == StatusCode::kResourceExhausted) {
      releaseSpareMemory();
      buffer = GuardedBuffer::create(workspaceBytes, kWorkspaceAlignment, memory_);
    }
    if (!buffer && buffer.error().code() == StatusCode::kUnavailable) return trustedFault(buffer.error());
    if (!buffer) return Failure{"load-failed", "workspace: " + buffer.error().message(), {}};
    workspace_ = std::move(*buffer);
    workspaceCapacity_ = workspaceBytes;
  }
  workspace_.place(workspaceBytes, kWorkspaceAlignment, false);
  const std::vector<WorkspaceSlot> slots = plan.workspaceSlots(c.point);

  std::vector<void*> addresses;
  for (size_t i = 0; i < inputCount(); ++i) {
    if (Status status = bringInput(c, i, views[i]); !status.isOk()) return trustedFault(status);
    addresses.push_back(inputs_[i].candidateData());
  }
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    const int32_t alias = graph.outputs[o].aliasInput;
    addresses.push_back(alias >= 0 ? addresses[static_cast<size_t>(alias)] : outputs_[which][o].candidateData());
  }
  if (Status status = prepareRun(which, slots); !status.isOk()) return trustedFault(status);
  // What was only queued is the guard's, not the candidate's.
  if (Status status = device_.synchronize(); !status.isOk()) return trustedFault(status);
  for (size_t i = 0; i < inputCount(); ++i)
    if (isAliased(i)) spoilInput(i);
  phase(GuardPhase::kCandidate);
  const Status ran = plan.run(addresses, c.point, workspace_.candidateData());
  const Status ended = device_.synchronize();
  phase(GuardPhase::kTrusted);
  if (ran.code() == StatusCode::kUnavailable) return candidateFault(ran);
  if (!ended.isOk()) return candidateFault(ended);
  if (!ran.isOk()) return Failure{"load-failed", ran.message(), {}};
  // Only the device can fail here, and nothing but the candidate has run on it.
  if (Status status = bringBackResults(which); !status.isOk()) return candidateFault(status);
  Result<std::optional<Failure>> inspected = inspectRun(which, slots);
  return inspected ? std::move(*inspected) : candidateFault(inspected.error());
}

// Inputs must be what they were. HEAVY: also those that are not cheap to look at.
Result<std::optional<GuardImpl::Failure>> GuardImpl::inspectInputs(const std::vector<TensorView>& views, bool heavy) {
  std::optional<Failure> failure;
  for (size_t i = 0; i < inputCount(); ++i) {
    // What is not there no candidate can have changed.
    if (!present_[i].valid || (isHeavy(i, views[i]) && !heavy)) continue;
    const GuardedBuffer& buffer = inputs_[i];
    KTUNE_TRY(buffer.bringBack());
    KTUNE_ASSIGN(const uint64_t checksum, inspector().checksum(buffer.inspectedData(), buffer.bytes()));
    if (checksum == checksums_[i]) continue;
    spoilInput(i);
    failure = Failure{"input-overwritten", "input '" + problem_.source.inputs[i].name + "' was changed", {}};
  }
  return failure;
}

// Two runs on equal inputs: elements that neither wrote, and, where the contract asks for determinism, any difference.
Result<std::optional<GuardImpl::Failure>> GuardImpl::compareRuns(const std::vector<TensorView>& views) const {
  const op::Graph& graph = problem_.source;
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    const TensorView& view = views[inputCount() + o];
    const bool alias = graph.outputs[o].aliasInput >= 0;
    KTUNE_ASSIGN(const RunDifferences found,
                 inspector().compareRuns(view, outputs_[0][o].inspectedData(), outputs_[1][o].inspectedData(),
                                         alias ? nullptr : kPoison));
    const std::string name = "output '" + graph.valueName(graph.outputs[o].value) + "'";
    if (found.unwritten)
      return std::optional<Failure>(
          Failure{"unwritten-output", name + positionText(*found.unwritten, view.extents) + " was not written", {}});
    if (graph.numerics.deterministic && found.different)
      return std::optional<Failure>(
          Failure{"nondeterministic",
                  name + positionText(*found.different, view.extents) + " differs between two runs on equal inputs",
                  {}});
  }
  return std::optional<Failure>();
}

// Every element of every output, of both runs unless they are known to be equal.
Result<std::optional<GuardImpl::Failure>> GuardImpl::compareWithReference(const Case& c,
                                                                          const std::vector<TensorView>& views,
                                                                          double& worstShare, bool& judged) {
  const op::Graph& graph = problem_.source;
  Result<const References*> expected = reference(c);
  if (!expected && expected.error().code() == StatusCode::kResourceExhausted) {
    releaseSpareMemory();
    expected = reference(c);
  }
  if (!expected && expected.error().code() == StatusCode::kUnavailable) return expected.error();
  if (!expected)
    return std::optional<Failure>(Failure{"load-failed", "no reference: " + expected.error().toString(), {}});
  for (int k = 0; k < (graph.numerics.deterministic ? 1 : 2); ++k) {
    for (size_t o = 0; o < graph.outputs.size(); ++o) {
      TensorView view = views[inputCount() + o];
      view.data = outputs_[k][o].inspectedData();
      Result<Comparison> compared = inspector().compare(view, *(**expected)[o]);
      if (!compared && compared.error().code() == StatusCode::kCorrupt) {
        // A stray write of some candidate's; nobody knows whose.
        releaseSpareMemory();
        expected = reference(c);
        if (!expected) return expected.error();
        compared = inspector().compare(view, *(**expected)[o]);
      }
      KTUNE_ASSIGN(const Comparison comparison, std::move(compared));
      if (comparison.judged > 0) judged = true;
      if (!comparison.right())
        return std::optional<Failure>(Failure{"wrong-result",
                                              "output '" + graph.valueName(graph.outputs[o].value) + "'" +
                                                  positionText(comparison.worstIndex, view.extents) + " is " +
                                                  number(comparison.got) + ", the reference says " +
                                                  number(comparison.want) + ", " + number(comparison.worstShare) +
                                                  " times the error bound",
                                              {}});
      worstShare = std::max(worstShare, comparison.worstShare);
    }
  }
  return std::optional<Failure>();
}

std::optional<GuardImpl::Failure> GuardImpl::checkCase(LoadedPlan& plan, const Case& c, bool last, double& worstShare,
                                                       bool& judged, std::vector<std::string>* rowsOut) {
  std::vector<TensorView> views = viewsAt(c.point);
  const auto named = [&](Failure failure) {
    failure.detail += " (" + caseName(c) + ")";
    return failure;
  };
  // The candidate runs before the reference of its case is looked at, on outputs that no reference was ever in.
  std::optional<Failure> failure;
  for (int k = 0; k < 2 && !failure; ++k) {
    failure = runOnce(plan, c, k, views);
    if (failure && !failure->device.isOk()) return named(*failure);
  }
  // Whatever else is wrong, damaged inputs are made anew for the next candidate.
  Result<std::optional<Failure>> found =
      inspectInputs(views, last || failure.has_value() || memory_.deviceInspector != nullptr);
  const auto firstOf = [&](Result<std::optional<Failure>>& result) {
    if (!result)
      failure = candidateFault(result.error());
    else if (!failure)
      failure = std::move(*result);
    return failure.has_value();
  };
  if (firstOf(found)) return named(*failure);
  found = compareRuns(views);
  if (firstOf(found)) return named(*failure);
  if (c.firstRow == 0) {
    found = compareWithReference(c, views, worstShare, judged);
    if (firstOf(found)) return named(*failure);
  }
  if (rowsOut != nullptr) {
    rowsOut->clear();
    for (const GuardedBuffer& output : outputs_[0]) {
      // What was inspected on the host is there.
      const Status status = output.inspectedOnDevice() ? output.download() : Status::ok();
      if (!status.isOk()) return named(candidateFault(status));
      rowsOut->emplace_back(output.data(), output.bytes());
    }
  }
  return std::nullopt;
}

// A row's bits must not depend on how many rows there are or on where it stands (contract `batch_invariant`). Inputs
// are made so that a row has the same values at every size: rows of the low and middle points, and rows of a case that
// starts one row later, are compared with those of the high end.
std::optional<GuardImpl::Failure> GuardImpl::checkBatchInvariance(
    LoadedPlan& plan, std::map<std::string, std::vector<std::string>>& rows) {
  const std::vector<std::vector<int64_t>> points = op::scoringPoints(problem_.bucket);
  const std::vector<int64_t>& high = points.back();
  std::vector<Case> others;
  for (size_t p = 0; p + 1 < points.size(); ++p) others.push_back({Distribution::kNormal, points[p]});
  if (high[0] > 1) others.push_back({Distribution::kNormal, high, false, 0, 1});
  const auto outputsOf = [&](const Case& c, std::vector<std::string>& out) -> std::optional<Failure> {
    if (const auto found = rows.find(caseName(c)); found != rows.end()) {
      out = found->second;
      return std::nullopt;
    }
    double share = 0;
    bool judged = false;
    return checkCase(plan, c, /*last=*/true, share, judged, &out);
  };
  std::vector<std::string> whole;
  if (auto failure = outputsOf({Distribution::kNormal, high}, whole)) return failure;
  for (const Case& c : others) {
    std::vector<std::string> part;
    if (auto failure = outputsOf(c, part)) return failure;
    const std::vector<TensorView> views = viewsAt(c.point);
    for (size_t o = 0; o < part.size(); ++o) {
      const TensorView& view = views[inputCount() + o];
      const op::Shape& shape = types_[static_cast<size_t>(problem_.source.outputs[o].value)].shape;
      const int64_t unitBytes = shape[0].factor * view.strides[0] * op::dtypeBytes(view.dtype);
      const auto skip = static_cast<size_t>(c.firstRow * unitBytes);
      const size_t bytes = std::min(part[o].size(), whole[o].size() - skip);
      if (std::memcmp(part[o].data(), whole[o].data() + skip, bytes) != 0)
        return Failure{"nondeterministic",
                       "a row's bits depend on the number of rows or its position: " + caseName(c) + " against " +
                           caseName({Distribution::kNormal, high}),
                       {}};
    }
  }
  return std::nullopt;
}

GuardVerdict GuardImpl::rejected(GuardVerdict verdict, Failure failure) {
  verdict.reason = std::move(failure.reason);
  verdict.detail = std::move(failure.detail);
  verdict.device = std::move(failure.device);
  return verdict;
}

GuardVerdict GuardImpl::screen(LoadedPlan& plan) {
  GuardVerdict verdict;
  bool judged = false;
  const double began = monotonicSeconds(), preparedBefore = preparationSeconds_;
  auto failure = checkCase(plan, cases_.front(), /*last=*/true, verdict.worstErrorShare, judged, nullptr);
  verdict.firstCaseSeconds = monotonicSeconds() - began;
  verdict.preparationSeconds = preparationSeconds_ - preparedBefore;
  if (failure) return rejected(std::move(verdict), std::move(*failure));
  verdict.right = true;
  verdict.checks.push_back(caseName(cases_.front()));
  return verdict;
}

GuardVerdict GuardImpl::prove(LoadedPlan& plan) {
  GuardVerdict verdict;
  const bool batchInvariant = problem_.source.numerics.batchInvariant && evaluator_->rowsAreIndependent();
  std::map<std::string, std::vector<std::string>> rows;
  bool shifted = false;
  const double began = monotonicSeconds(), preparedBefore = preparationSeconds_;
  for (const Case& c : cases_) {
    bool judged = false;
    const bool keep = batchInvariant && c.distribution == Distribution::kNormal && !c.shifted;
    std::vector<std::string> outputs;
    auto failure = checkCase(plan, c, &c == &cases_.back(), verdict.worstErrorShare, judged, keep ? &outputs : nullptr);
    if (&c == &cases_.front()) verdict.firstCaseSeconds = monotonicSeconds() - began;
    verdict.preparationSeconds = preparationSeconds_ - preparedBefore;
    if (failure) return rejected(std::move(verdict), std::move(*failure));
    if (keep) rows[caseName(c)] = std::move(outputs);
    if (judged) verdict.checks.push_back(caseName(c));
    shifted = shifted || c.shifted;
  }
  if (batchInvariant) {
    if (auto failure = checkBatchInvariance(plan, rows)) return rejected(std::move(verdict), std::move(*failure));
    verdict.preparationSeconds = preparationSeconds_ - preparedBefore;
    verdict.checks.emplace_back("batch-invariant");
  }
  verdict.checks.emplace_back("every-element");
  verdict.checks.emplace_back("poisoned-outputs");
  verdict.checks.emplace_back("guard-bands");
  verdict.checks.emplace_back("inputs-unchanged");
  if (problem_.source.numerics.deterministic) verdict.checks.emplace_back("repeats-equal-bits");
  if (shifted) verdict.checks.emplace_back("least-alignment");
  verdict.right = true;
  return verdict;
}

}  // namespace

bool Guard::keepsOneContent(const op::Input& input, const TensorView& view) {
  const bool fixed =
      std::all_of(input.type.shape.begin(), input.type.shape.end(), [](const op::Dim& dim) { return dim.isStatic(); });
  return input.constant && fixed && static_cast<uint64_t>(view.spanBytes()) > kHeavyConstantBytes;
}

Result<std::unique_ptr<Guard>> Guard::create(const schedule::Problem& problem, Device& device,
                                             const GuardOptions& options) {
  auto guard = std::make_unique<GuardImpl>(problem, device, options);
  KTUNE_TRY(guard->prepare());
  return std::unique_ptr<Guard>(std::move(guard));
}

}  // namespace ktune::runtime
