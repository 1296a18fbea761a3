#include "runtime/guard/Guard.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <numeric>

#include "base/Hash.h"
#include "base/System.h"
#include "runtime/guard/GuardedBuffer.h"
#include "runtime/guard/Inputs.h"
#include "runtime/guard/References.h"

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

// ----------------------------------------------------------------------------------------------------- one element

// Results that are too small for a normal number may be flushed to zero, as vector units and most exp() do; f16 and
// narrower have so few exponents that their subnormals matter.
double flushAllowance(op::DType type) {
  switch (type) {
    case op::DType::kF64:
      return std::numeric_limits<double>::min();
    case op::DType::kF32:
    case op::DType::kBF16:
      return static_cast<double>(std::numeric_limits<float>::min());
    default:
      return 0;
  }
}

// |got - want| as a share of what is allowed: at most 1 when right, 0 where the reference can't judge.
double errorShare(double got, double want, double bound, op::DType type) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isinf(bound)) return 0;
  if (std::isnan(want)) return std::isnan(got) ? 0 : kWrong;
  // NaN is no wildcard.
  if (std::isnan(got)) return kWrong;
  if (std::isinf(want)) return got == want ? 0 : kWrong;
  const double error = std::fabs(got - want);
  if (error == 0) return 0;
  const double allowed = bound + flushAllowance(type);
  return allowed > 0 ? error / allowed : kWrong;
}

struct Comparison {
  bool right = true;
  double worstShare = 0;
  int64_t worstIndex = 0;  ///< Row-major position.
  double got = 0, want = 0;
  int64_t judged = 0;  ///< Elements whose bound is finite.
};

// Compares rows of columns; ROWVALUES(row, out) gives a row of what is to be judged.
template <typename RowValues>
Comparison compareRows(const Expected& expected, int64_t rows, int64_t columns, op::DType type,
                       const op::ParallelFor& parallelFor, const RowValues& rowValues) {
  Comparison total;
  std::mutex mutex;
  parallelFor(rows, [&](int64_t begin, int64_t end) {
    Comparison part;
    std::vector<double> values(static_cast<size_t>(columns));
    for (int64_t row = begin; row < end; ++row) {
      rowValues(row, values.data());
      for (int64_t c = 0; c < columns; ++c) {
        const int64_t i = row * columns + c;
        const double bound = expected.bounds[static_cast<size_t>(i)];
        const double want = expected.values[static_cast<size_t>(i)];
        const double share = errorShare(values[static_cast<size_t>(c)], want, bound, type);
        if (!std::isinf(bound)) ++part.judged;
        if (share > part.worstShare) {
          part.worstShare = share;
          part.worstIndex = i;
          part.got = values[static_cast<size_t>(c)];
          part.want = want;
        }
      }
    }
    const std::lock_guard lock(mutex);
    const int64_t judged = total.judged + part.judged;
    // The lower index wins a tie, so that the message does not depend on threads.
    if (part.worstShare > total.worstShare ||
        (part.worstShare == total.worstShare && part.worstShare > 0 && part.worstIndex < total.worstIndex))
      total = part;
    total.judged = judged;
  });
  total.right = total.worstShare <= 1;
  return total;
}

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
            [&device](int64_t n, const std::function<void(int64_t, int64_t)>& f) { device.parallelFor(n, f); }) {}

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
  uint64_t referenceCacheBytes_ = 0;

  std::vector<Case> cases_;             ///< In the order of prove(); the first is screen()'s.
  std::vector<TensorView> inputViews_;  ///< At the bucket's high end, without addresses.
  std::vector<GuardedBuffer> inputs_;
  std::vector<GuardedBuffer> outputs_[2];  ///< One set for each of two runs; empty buffers for aliases.
  GuardedBuffer workspace_;
  size_t workspaceCapacity_ = 0;
  std::vector<Content> contents_;
  std::vector<bool> uploaded_;                    ///< Per input, whether the device has its content.
  std::vector<std::vector<uint64_t>> checksums_;  ///< Per input, of its pieces.
  std::map<ReferenceKey, std::vector<Expected>> references_;
  uint64_t cachedBytes_ = 0;

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
  [[nodiscard]] std::vector<uint64_t> checksum(const GuardedBuffer& buffer) const;
  void fill(const Case& c, std::vector<TensorView>& views);
  void fillHeavy(const InputStream& spec, const TensorView& view);
  Status uploadInput(size_t input);
  Result<const std::vector<Expected>*> reference(const Case& c, const std::vector<TensorView>& views);
  void phase(GuardPhase p) const {
    if (options_.onPhase) options_.onPhase(p);
  }
  struct Failure {
    std::string reason, detail;
    Status device;  ///< As in GuardVerdict.
  };
  [[nodiscard]] static Failure candidateFault(const Status& status) { return {"run-crash", status.message(), status}; }
  [[nodiscard]] static Failure trustedFault(const Status& status) { return {"", status.message(), status}; }
  Status uploadOutputs(int which) const;
  Status downloadResults(int which);
  [[nodiscard]] static GuardVerdict rejected(GuardVerdict verdict, Failure failure);
  std::optional<Failure> runOnce(LoadedPlan& plan, const Case& c, int which, std::vector<TensorView>& views);
  std::optional<Failure> compareRuns(const std::vector<TensorView>& views,
                                     const std::vector<std::string> (&kept)[2]) const;
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
  uint64_t twins = 0;
  const auto alignmentOf = [&](size_t tensor) {
    const int64_t a = tensor < inputCount() ? problem_.source.inputs[tensor].alignmentBytes
                                            : problem_.source.outputs[tensor - inputCount()].alignmentBytes;
    return static_cast<size_t>(std::max<int64_t>(1, a));
  };
  for (size_t t = 0; t < views.size(); ++t) {
    const auto bytes = static_cast<size_t>(views[t].spanBytes());
    if (t < inputCount()) {
      needed += GuardedBuffer::totalBytes(bytes, alignmentOf(t));
      twins += GuardedBuffer::twinBytes(bytes, alignmentOf(t));
      continue;
    }
    // Two runs' results, and the reference's.
    needed += 2 * GuardedBuffer::totalBytes(bytes, alignmentOf(t));
    if (problem_.source.outputs[t - inputCount()].aliasInput < 0)
      twins += 2 * GuardedBuffer::twinBytes(bytes, alignmentOf(t));
    expectedBytes += static_cast<uint64_t>(views[t].rows() * views[t].columns()) * 2 * sizeof(double);
  }
  needed += expectedBytes;
  if (needed > cap)
    return resourceExhausted("checking this problem needs " + std::to_string(needed) +
                             " bytes for inputs, outputs and references; " + std::to_string(cap) + " are allowed");
  if (!device_.sharesHostMemory() && options_.deviceMemoryBytes != 0 && twins > options_.deviceMemoryBytes)
    return resourceExhausted("checking this problem needs " + std::to_string(twins) +
                             " bytes of the device's memory for inputs and outputs; " +
                             std::to_string(options_.deviceMemoryBytes) + " are allowed");
  referenceCacheBytes_ = std::max(expectedBytes, std::min((cap - needed) / 2, cap / 4) + expectedBytes);

  for (size_t t = 0; t < views.size(); ++t) {
    const auto bytes = static_cast<size_t>(views[t].spanBytes());
    if (t < inputCount()) {
      KTUNE_ASSIGN(GuardedBuffer buffer, GuardedBuffer::create(bytes, alignmentOf(t), &device_));
      inputs_.push_back(std::move(buffer));
      continue;
    }
    for (auto& set : outputs_) {
      const bool alias = problem_.source.outputs[t - inputCount()].aliasInput >= 0;
      KTUNE_ASSIGN(GuardedBuffer buffer,
                   GuardedBuffer::create(alias ? 0 : bytes, alignmentOf(t), alias ? nullptr : &device_));
      set.push_back(std::move(buffer));
    }
  }
  contents_.resize(inputCount());
  uploaded_.resize(inputCount());
  checksums_.resize(inputCount());
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
    std::vector<TensorView> views = viewsAt(low);
    const Case c{d, low};
    fill(c, views);
    KTUNE_ASSIGN(const std::vector<Expected>* expected, reference(c, views));
    passing.clear();
    for (size_t o = 0; o < expected->size(); ++o) {
      const TensorView& view = views[inputCount() + o];
      const Expected& e = (*expected)[o];
      if (e.values.empty()) continue;
      double sum = 0;
      for (double v : e.values) sum += v;
      for (const double constant : {0.0, op::roundTo(view.dtype, sum / static_cast<double>(e.values.size()))}) {
        // One number is its own mean: only zero says anything of it.
        if (constant != 0 && e.values.size() == 1) continue;
        const Comparison comparison =
            compareRows(e, view.rows(), view.columns(), view.dtype, parallelFor_,
                        [&](int64_t, double* out) { std::fill_n(out, view.columns(), constant); });
        if (comparison.right) passing = "output " + std::to_string(o) + " filled with " + number(constant);
      }
    }
    if (passing.empty()) return Status::ok();
  }
  return unsupported("no check can tell a right kernel from one that does nothing: " + passing +
                     " is within the error bounds on every distribution of inputs");
}

std::vector<uint64_t> GuardImpl::checksum(const GuardedBuffer& buffer) const {
  constexpr size_t kPiece = size_t{4} << 20;
  const size_t pieces = (buffer.bytes() + kPiece - 1) / kPiece;
  std::vector<uint64_t> sums(pieces);
  parallelFor_(static_cast<int64_t>(pieces), [&](int64_t begin, int64_t end) {
    for (auto p = static_cast<size_t>(begin); p < static_cast<size_t>(end); ++p)
      sums[p] = checksumOf(std::string_view(buffer.data() + p * kPiece, std::min(kPiece, buffer.bytes() - p * kPiece)));
  });
  return sums;
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

// Sees to it that the input buffers hold what the case says; gives VIEWS the inputs' addresses.
void GuardImpl::fill(const Case& c, std::vector<TensorView>& views) {
  for (size_t i = 0; i < inputCount(); ++i) {
    const op::Input& input = problem_.source.inputs[i];
    TensorView& view = views[i];
    // Rows that count the symbol start elsewhere; weights stay.
    const op::Shape& shape = input.type.shape;
    int64_t firstRow = 0;
    if (c.firstRow != 0 && shape.size() > 1 && !shape[0].isStatic()) {
      firstRow = c.firstRow * shape[0].factor;
      for (size_t d = 1; d + 1 < shape.size(); ++d) firstRow *= view.extents[d];
    }
    const bool heavy = isHeavy(i, view);
    const Distribution distribution = heavy ? Distribution::kNormal : c.distribution;
    const int64_t variant = heavy ? 0 : c.variant;
    const bool shifted = heavy || c.shifted;
    const Content wanted{true, distribution, variant, firstRow, shifted, view.extents};
    if (!(contents_[i] == wanted)) {
      GuardedBuffer& buffer = inputs_[i];
      view.data =
          buffer.place(static_cast<size_t>(view.spanBytes()), static_cast<size_t>(input.alignmentBytes), shifted);
      const bool dense = view.rows() * view.columns() * op::dtypeBytes(view.dtype) == view.spanBytes();
      if (!dense) buffer.poison(0, parallelFor_);  // The gaps are guard bands, too.
      const InputStream spec{distribution, options_.seed, static_cast<int32_t>(i), input.constant, variant, firstRow};
      if (heavy && dense && view.extents.size() > 1)
        fillHeavy(spec, view);
      else
        fillInput(spec, view, parallelFor_);
      contents_[i] = wanted;
      uploaded_[i] = false;
      checksums_[i] = checksum(buffer);
    }
    view.data = inputs_[i].data();
  }
}

Status GuardImpl::uploadInput(size_t input) {
  if (uploaded_[input]) return Status::ok();
  KTUNE_TRY(inputs_[input].upload());
  uploaded_[input] = true;
  return Status::ok();
}

Result<void*> GuardImpl::keptWeights(size_t input) {
  if (!contents_[input].valid || !keepsOneContent(problem_.source.inputs[input], inputViews_[input]))
    return static_cast<void*>(nullptr);
  KTUNE_TRY(uploadInput(input));
  return static_cast<void*>(inputs_[input].deviceData());
}

// What a run must find on the device: inputs whose content is new, poison and bands.
Status GuardImpl::uploadOutputs(int which) const {
  const op::Graph& graph = problem_.source;
  for (size_t o = 0; o < graph.outputs.size(); ++o)
    if (graph.outputs[o].aliasInput < 0) KTUNE_TRY(outputs_[which][o].upload());
  return workspace_.upload();
}

// What a run has left there. Of inputs that nothing may write the bands only: checkCase() looks at the rest.
Status GuardImpl::downloadResults(int which) {
  const op::Graph& graph = problem_.source;
  for (size_t o = 0; o < graph.outputs.size(); ++o)
    if (graph.outputs[o].aliasInput < 0) KTUNE_TRY(outputs_[which][o].download());
  for (size_t i = 0; i < inputCount(); ++i)
    KTUNE_TRY(isAliased(i) ? inputs_[i].download() : inputs_[i].downloadBands());
  return workspace_.download();
}

Result<const std::vector<Expected>*> GuardImpl::reference(const Case& c, const std::vector<TensorView>& views) {
  const ReferenceKey key = referenceKey(c);
  if (const auto found = references_.find(key); found != references_.end()) return &found->second;
  std::vector<TensorView> inputs(views.begin(), views.begin() + static_cast<std::ptrdiff_t>(inputCount()));
  KTUNE_ASSIGN(std::vector<Expected> expected, evaluator_->evaluate(c.point, inputs, parallelFor_));
  uint64_t bytes = 0;
  for (const Expected& e : expected) bytes += e.values.size() * 2 * sizeof(double);
  if (cachedBytes_ + bytes > referenceCacheBytes_) {
    // Screening happens most often, so its reference stays.
    for (auto it = references_.begin(); it != references_.end();)
      it = it->first == referenceKey(cases_.front()) ? std::next(it) : references_.erase(it);
    cachedBytes_ = 0;
    for (const auto& [k, kept] : references_)
      for (const Expected& e : kept) cachedBytes_ += e.values.size() * 2 * sizeof(double);
  }
  cachedBytes_ += bytes;
  return &(references_[key] = std::move(expected));
}

// Runs the plan on poisoned outputs (set WHICH) and looks at everything round its buffers.
std::optional<GuardImpl::Failure> GuardImpl::runOnce(LoadedPlan& plan, const Case& c, int which,
                                                     std::vector<TensorView>& views) {
  fill(c, views);
  const op::Graph& graph = problem_.source;
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    TensorView& view = views[inputCount() + o];
    if (graph.outputs[o].aliasInput >= 0) {
      view.data = views[static_cast<size_t>(graph.outputs[o].aliasInput)].data;
      continue;
    }
    GuardedBuffer& buffer = outputs_[which][o];
    view.data = buffer.place(static_cast<size_t>(view.spanBytes()),
                             static_cast<size_t>(graph.outputs[o].alignmentBytes), c.shifted);
    buffer.poison(which, parallelFor_);
  }
  const size_t workspaceBytes = plan.workspaceBytes(c.point);
  if (workspaceBytes > workspaceCapacity_ || workspace_.data() == nullptr) {
    Result<GuardedBuffer> buffer = GuardedBuffer::create(workspaceBytes, kWorkspaceAlignment, &device_);
    if (!buffer && buffer.error().code() == StatusCode::kUnavailable) return trustedFault(buffer.error());
    if (!buffer) return Failure{"load-failed", "workspace: " + buffer.error().message(), {}};
    workspace_ = std::move(*buffer);
    workspaceCapacity_ = workspaceBytes;
  }
  workspace_.place(workspaceBytes, kWorkspaceAlignment, false);
  workspace_.poison(which, parallelFor_);
  const std::vector<WorkspaceSlot> slots = plan.workspaceSlots(c.point);
  for (const WorkspaceSlot& slot : slots) {
    if (slot.kind == cache::WorkspaceKind::kZeroed) std::memset(workspace_.data() + slot.offset, 0, slot.bytes);
  }

  std::vector<void*> addresses;
  for (size_t i = 0; i < inputCount(); ++i) {
    if (Status status = uploadInput(i); !status.isOk()) return trustedFault(status);
    addresses.push_back(inputs_[i].deviceData());
  }
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    const int32_t alias = graph.outputs[o].aliasInput;
    addresses.push_back(alias >= 0 ? addresses[static_cast<size_t>(alias)] : outputs_[which][o].deviceData());
  }
  if (Status status = uploadOutputs(which); !status.isOk()) return trustedFault(status);
  for (size_t i = 0; i < inputCount(); ++i)
    if (isAliased(i)) contents_[i].valid = false;
  phase(GuardPhase::kCandidate);
  const Status ran = plan.run(addresses, c.point, workspace_.deviceData());
  const Status ended = device_.synchronize();
  phase(GuardPhase::kTrusted);
  if (ran.code() == StatusCode::kUnavailable) return candidateFault(ran);
  if (!ended.isOk()) return candidateFault(ended);
  if (!ran.isOk()) return Failure{"load-failed", ran.message(), {}};
  // Only the device can fail here, and nothing but the candidate has run on it.
  if (Status status = downloadResults(which); !status.isOk()) return candidateFault(status);

  const auto inspect = [&](const GuardedBuffer& buffer, const std::string& what) -> std::optional<Failure> {
    const std::optional<int64_t> at = buffer.damage();
    if (!at) return std::nullopt;
    return Failure{"guard-band",
                   *at < 0 ? "wrote " + std::to_string(-*at) + " bytes before " + what
                           : "wrote " + std::to_string(*at) + " bytes past the end of " + what,
                   {}};
  };
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    if (graph.outputs[o].aliasInput >= 0) continue;
    if (auto failure = inspect(outputs_[which][o], "output '" + graph.valueName(graph.outputs[o].value) + "'"))
      return failure;
  }
  for (size_t i = 0; i < inputCount(); ++i) {
    if (auto failure = inspect(inputs_[i], "input '" + graph.inputs[i].name + "'")) {
      contents_[i].valid = false;
      return failure;
    }
  }
  if (auto failure = inspect(workspace_, "the workspace")) return failure;
  size_t end = 0;
  for (const WorkspaceSlot& slot : slots) {
    if (!GuardedBuffer::isPoison(workspace_.data() + end, end, slot.offset - end, which))
      return Failure{"guard-band", "wrote between two workspace slots", {}};
    end = slot.offset + slot.bytes;
    const char* bytes = workspace_.data() + slot.offset;
    if (slot.kind == cache::WorkspaceKind::kZeroed &&
        std::any_of(bytes, bytes + slot.bytes, [](char b) { return b != 0; }))
      return Failure{"wrong-result", "a workspace slot that must be left zero was not", {}};
  }
  return std::nullopt;
}

// Two runs on equal inputs: elements that neither wrote, and, where the contract asks for determinism, any difference.
// KEPT: each run's outputs that alias an input.
std::optional<GuardImpl::Failure> GuardImpl::compareRuns(const std::vector<TensorView>& views,
                                                         const std::vector<std::string> (&kept)[2]) const {
  const op::Graph& graph = problem_.source;
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    const TensorView& view = views[inputCount() + o];
    const bool alias = graph.outputs[o].aliasInput >= 0;
    const char* runs[2];
    for (int k = 0; k < 2; ++k) runs[k] = alias ? kept[k][o].data() : outputs_[k][o].data();
    const auto size = static_cast<size_t>(op::dtypeBytes(view.dtype));
    const int64_t columns = view.columns();
    const auto rowBytes = static_cast<size_t>((columns - 1) * view.columnStride() + 1) * size;
    std::atomic<int64_t> unwritten{std::numeric_limits<int64_t>::max()};
    std::atomic<int64_t> different{std::numeric_limits<int64_t>::max()};
    const auto lower = [](std::atomic<int64_t>& to, int64_t index) {
      int64_t present = to.load();
      while (index < present && !to.compare_exchange_weak(present, index)) {
      }
    };
    parallelFor_(view.rows(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const auto offset = static_cast<size_t>(view.rowOffset(row)) * size;
        // The patterns differ in every byte, so equal rows were written.
        if (std::memcmp(runs[0] + offset, runs[1] + offset, rowBytes) == 0) continue;
        for (int64_t col = 0; col < columns; ++col) {
          const size_t at = offset + static_cast<size_t>(col * view.columnStride()) * size;
          if (std::memcmp(runs[0] + at, runs[1] + at, size) == 0) continue;
          if (!alias && GuardedBuffer::isPoison(runs[0] + at, at, size, 0) &&
              GuardedBuffer::isPoison(runs[1] + at, at, size, 1))
            lower(unwritten, row * columns + col);
          else
            lower(different, row * columns + col);
        }
      }
    });
    const std::string name = "output '" + graph.valueName(graph.outputs[o].value) + "'";
    if (unwritten.load() != std::numeric_limits<int64_t>::max())
      return Failure{"unwritten-output", name + positionText(unwritten.load(), view.extents) + " was not written", {}};
    if (graph.numerics.deterministic && different.load() != std::numeric_limits<int64_t>::max())
      return Failure{"nondeterministic",
                     name + positionText(different.load(), view.extents) + " differs between two runs on equal inputs",
                     {}};
  }
  return std::nullopt;
}

std::optional<GuardImpl::Failure> GuardImpl::checkCase(LoadedPlan& plan, const Case& c, bool last, double& worstShare,
                                                       bool& judged, std::vector<std::string>* rowsOut) {
  const op::Graph& graph = problem_.source;
  std::vector<TensorView> views = viewsAt(c.point);
  std::vector<std::string> kept[2];
  const auto named = [&](Failure failure) {
    failure.detail += " (" + caseName(c) + ")";
    return failure;
  };
  // The candidate runs before the reference of its case is looked at, on outputs that no reference was ever in.
  std::optional<Failure> failure;
  for (int k = 0; k < 2 && !failure; ++k) {
    failure = runOnce(plan, c, k, views);
    if (failure && !failure->device.isOk()) return named(*failure);
    kept[k].resize(graph.outputs.size());
    for (size_t o = 0; o < graph.outputs.size(); ++o) {
      const TensorView& view = views[inputCount() + o];
      if (graph.outputs[o].aliasInput >= 0)
        kept[k][o].assign(static_cast<const char*>(view.data), static_cast<size_t>(view.spanBytes()));
    }
  }
  // Whatever else is wrong, damaged inputs are made anew for the next candidate.
  for (size_t i = 0; i < inputCount(); ++i) {
    // What the device has not got yet no candidate can have changed.
    if (!contents_[i].valid || !uploaded_[i] || (isHeavy(i, views[i]) && !last && !failure)) continue;
    if (Status status = inputs_[i].download(); !status.isOk()) return named(candidateFault(status));
    if (checksum(inputs_[i]) == checksums_[i]) continue;
    contents_[i].valid = false;
    if (!failure) failure = Failure{"input-overwritten", "input '" + graph.inputs[i].name + "' was changed", {}};
  }
  if (!failure) failure = compareRuns(views, kept);
  if (failure) return named(*failure);

  if (c.firstRow == 0) {
    // Aliased inputs come back first: the reference reads them.
    std::vector<TensorView> inputs = viewsAt(c.point);
    fill(c, inputs);
    Result<const std::vector<Expected>*> expected = reference(c, inputs);
    if (!expected) return named({"load-failed", "no reference: " + expected.error().toString(), {}});
    for (int k = 0; k < (graph.numerics.deterministic ? 1 : 2); ++k) {
      for (size_t o = 0; o < graph.outputs.size(); ++o) {
        TensorView view = views[inputCount() + o];
        view.data = graph.outputs[o].aliasInput >= 0 ? kept[k][o].data() : outputs_[k][o].data();
        const Comparison comparison = compareRows(
            (**expected)[o], view.rows(), view.columns(), view.dtype, parallelFor_, [&](int64_t row, double* out) {
              loadElements(view.dtype, view.at(view.rowOffset(row)), view.columnStride(), view.columns(), out);
            });
        if (comparison.judged > 0) judged = true;
        if (!comparison.right)
          return named({"wrong-result",
                        "output '" + graph.valueName(graph.outputs[o].value) + "'" +
                            positionText(comparison.worstIndex, view.extents) + " is " + number(comparison.got) +
                            ", the reference says " + number(comparison.want) + ", " + number(comparison.worstShare) +
                            " times the error bound",
                        {}});
        worstShare = std::max(worstShare, comparison.worstShare);
      }
    }
  }
  if (rowsOut != nullptr) {
    rowsOut->clear();
    for (size_t o = 0; o < graph.outputs.size(); ++o) {
      const bool alias = graph.outputs[o].aliasInput >= 0;
      const TensorView& view = views[inputCount() + o];
      rowsOut->push_back(alias ? kept[0][o]
                               : std::string(outputs_[0][o].data(), static_cast<size_t>(view.spanBytes())));
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
  if (auto failure = checkCase(plan, cases_.front(), /*last=*/true, verdict.worstErrorShare, judged, nullptr))
    return rejected(std::move(verdict), std::move(*failure));
  verdict.right = true;
  verdict.checks.push_back(caseName(cases_.front()));
  return verdict;
}

GuardVerdict GuardImpl::prove(LoadedPlan& plan) {
  GuardVerdict verdict;
  const bool batchInvariant = problem_.source.numerics.batchInvariant && evaluator_->rowsAreIndependent();
  std::map<std::string, std::vector<std::string>> rows;
  bool shifted = false;
  for (const Case& c : cases_) {
    bool judged = false;
    const bool keep = batchInvariant && c.distribution == Distribution::kNormal && !c.shifted;
    std::vector<std::string> outputs;
    if (auto failure =
            checkCase(plan, c, &c == &cases_.back(), verdict.worstErrorShare, judged, keep ? &outputs : nullptr))
      return rejected(std::move(verdict), std::move(*failure));
    if (keep) rows[caseName(c)] = std::move(outputs);
    if (judged) verdict.checks.push_back(caseName(c));
    shifted = shifted || c.shifted;
  }
  if (batchInvariant) {
    if (auto failure = checkBatchInvariance(plan, rows)) return rejected(std::move(verdict), std::move(*failure));
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
