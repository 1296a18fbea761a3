#include "runtime/worker/TimingBuffers.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "runtime/guard/Inputs.h"

namespace ktune::runtime {

namespace {

constexpr uint64_t kMostColdBytes = uint64_t{512} << 20;
constexpr uint64_t kUnknownCacheBytes = uint64_t{64} << 20;
constexpr size_t kPageBytes = 4096;
// Tensors of one set are at least this aligned, as an engine's allocator would.
constexpr size_t kTensorAlignment = 256;
constexpr size_t kMostSets = size_t{1} << 14;
// Where a round over all sets is the least that can be timed.
constexpr size_t kFewSets = 512;
constexpr size_t kPieceBytes = size_t{1} << 20;

size_t roundUp(size_t n, size_t to) {
  return (n + to - 1) / to * to;
}

// One piece of the generated block.
void generate(op::DType type, uint64_t seed, size_t piece, char* out) {
  constexpr int64_t kChunk = 1024;
  const auto size = static_cast<size_t>(op::dtypeBytes(type));
  const auto elements = static_cast<int64_t>(kPieceBytes / size);
  const uint64_t first = piece * static_cast<uint64_t>(elements);
  if (type == op::DType::kF32) {
    for (int64_t i = 0; i < elements; i += kChunk)
      fillNormal(seed, first + static_cast<uint64_t>(i), kChunk, reinterpret_cast<float*>(out) + i);
    return;
  }
  float values[kChunk];
  double wide[kChunk];
  // Integers: of the size of what a quantised tensor holds.
  const double scale = op::isFloat(type) ? 1 : 40;
  for (int64_t i = 0; i < elements; i += kChunk) {
    const int64_t n = std::min(kChunk, elements - i);
    fillNormal(seed, first + static_cast<uint64_t>(i), n, values);
    for (int64_t e = 0; e < n; ++e) wide[e] = type == op::DType::kBool ? values[e] > 0 : scale * values[e];
    storeElements(type, wide, n, out + static_cast<size_t>(i) * size, 1);
  }
}

}  // namespace

Result<Arena> Arena::reserve(Device& device, size_t bytes) {
  Arena arena;
  arena.device_ = &device;
  KTUNE_ASSIGN(arena.memory_, device.allocate(roundUp(std::max<size_t>(bytes, 1), kPieceBytes)));
  return arena;
}

Status Arena::fill(size_t bytes, op::DType type, uint64_t seed) {
  bytes = roundUp(bytes, kPieceBytes);
  if (bytes <= filled_) return Status::ok();
  // Narrow types are converted one by one, so their block is smaller.
  const size_t generated = type == op::DType::kF32 ? 16 : 4;
  const size_t firstPiece = filled_ / kPieceBytes;
  const size_t pieces = bytes / kPieceBytes;
  const auto run = [&](size_t from, size_t to, const auto& body) {
    if (from >= to) return;
    device_->parallelFor(static_cast<int64_t>(to - from), [&](int64_t begin, int64_t end) {
      for (auto p = from + static_cast<size_t>(begin); p < from + static_cast<size_t>(end); ++p) body(p);
    });
  };
  const auto sourceOf = [&](size_t p) { return data() + (p * 7 + p / generated) % generated * kPieceBytes; };
  const size_t lastGenerated = std::min(pieces, generated);
  const size_t firstCopied = std::max(firstPiece, generated);
  if (device_->sharesHostMemory()) {
    run(firstPiece, lastGenerated, [&](size_t p) { generate(type, seed, p, data() + p * kPieceBytes); });
    run(firstCopied, pieces, [&](size_t p) { std::memcpy(data() + p * kPieceBytes, sourceOf(p), kPieceBytes); });
  } else {
    if (firstPiece < lastGenerated) {
      std::vector<char> block((lastGenerated - firstPiece) * kPieceBytes);
      run(firstPiece, lastGenerated,
          [&](size_t p) { generate(type, seed, p, block.data() + (p - firstPiece) * kPieceBytes); });
      KTUNE_TRY(device_->copyToDevice(data() + firstPiece * kPieceBytes, block.data(), block.size()));
    }
    for (size_t p = firstCopied; p < pieces; ++p)
      KTUNE_TRY(device_->copyOnDevice(data() + p * kPieceBytes, sourceOf(p), kPieceBytes));
  }
  filled_ = bytes;
  return Status::ok();
}

void Arena::touch(size_t bytes) {
  bytes = roundUp(bytes, kPieceBytes);
  if (bytes <= filled_) return;
  if (device_->sharesHostMemory()) {
    device_->parallelFor(static_cast<int64_t>((bytes - filled_) / kPieceBytes), [&](int64_t begin, int64_t end) {
      std::memset(data() + filled_ + static_cast<size_t>(begin) * kPieceBytes, 0,
                  static_cast<size_t>(end - begin) * kPieceBytes);
    });
  }
  filled_ = bytes;
}

/// Where the tensors of a set lie, and how far apart the sets are, per arena.
struct TimingBuffers::Layout {
  struct Part {
    size_t bytes = 0;   ///< Of one set.
    size_t stride = 0;  ///< From one set to the next.
    [[nodiscard]] size_t total(size_t sets) const { return bytes == 0 ? 0 : bytes + (sets - 1) * stride; }
  };
  std::map<op::DType, Part> inputs;
  Part outputs;
  std::vector<size_t> offsets;  ///< Per tensor, in its arena's part of a set.
  size_t sets = 2;
};

TimingBuffers::TimingBuffers(Device& device, uint64_t lastLevelBytes, uint64_t memoryBytes, uint64_t seed,
                             bool manySets)
    : device_(device), memoryBytes_(memoryBytes), coldBytes_(0), seed_(seed), manySets_(manySets) {
  const uint64_t cache = lastLevelBytes == 0 ? kUnknownCacheBytes : lastLevelBytes;
  coldBytes_ = std::min({2 * cache, memoryBytes / 2, kMostColdBytes});
}

uint64_t TimingBuffers::lastLevelBytes(const schedule::Target& target) {
  // The fake device has a virtual clock, and caches in its prior only: gigabytes of buffers would be touched for
  // nothing.
  constexpr uint64_t kFakeCacheBytes = uint64_t{256} << 10;
  if (target.kind == schedule::DeviceKind::kFake) return kFakeCacheBytes;
  return target.kind == schedule::DeviceKind::kCuda ? target.l2Bytes : target.l3Bytes;
}

bool TimingBuffers::mayBorrow(const op::Input& input, const TensorView& view) const {
  constexpr int64_t kCacheLineBytes = 64;
  return input.constant && input.alignmentBytes >= kCacheLineBytes &&
         static_cast<uint64_t>(view.spanBytes()) >= coldBytes_;
}

TimingBuffers::Layout TimingBuffers::layOut(const op::Graph& graph, const std::vector<TensorView>& views,
                                            const std::vector<bool>& borrowed) const {
  Layout layout;
  const auto place = [](Layout::Part& part, const TensorView& view, int64_t alignment) {
    const size_t offset = roundUp(part.bytes, std::max(kTensorAlignment, static_cast<size_t>(alignment)));
    part.bytes = offset + static_cast<size_t>(view.spanBytes());
    return offset;
  };
  size_t setBytes = 0;
  for (size_t i = 0; i < graph.inputs.size(); ++i) {
    const bool elsewhere = i < borrowed.size() && borrowed[i];
    if (elsewhere) setBytes += static_cast<size_t>(views[i].spanBytes());
    layout.offsets.push_back(
        elsewhere ? 0 : place(layout.inputs[views[i].dtype], views[i], graph.inputs[i].alignmentBytes));
  }
  for (size_t o = 0; o < graph.outputs.size(); ++o) {
    const op::Output& output = graph.outputs[o];
    layout.offsets.push_back(output.aliasInput >= 0
                                 ? layout.offsets[static_cast<size_t>(output.aliasInput)]
                                 : place(layout.outputs, views[graph.inputs.size() + o], output.alignmentBytes));
  }
  setBytes += layout.outputs.bytes;
  for (const auto& [type, part] : layout.inputs) setBytes += part.bytes;
  // A set that is larger than what must lie between two uses is cold by itself: its start has left the caches when its
  // end is reached. Two sets that overlap for the most part then keep addresses from repeating at little more than the
  // memory of one.
  const bool overlap = setBytes >= coldBytes_;
  const size_t most = manySets_ || device_.sharesHostMemory() ? kMostSets : kFewSets;
  layout.sets =
      overlap ? 2 : std::clamp<size_t>((coldBytes_ + setBytes - 1) / std::max<size_t>(setBytes, 1) + 1, 2, most);
  const auto spread = [&](Layout::Part& part) {
    part.stride = roundUp(overlap ? part.bytes / 16 + 1 : part.bytes, kPageBytes);
  };
  for (auto& [type, part] : layout.inputs) spread(part);
  spread(layout.outputs);
  return layout;
}

uint64_t TimingBuffers::bytesFor(const op::Graph& graph, const std::vector<TensorView>& views,
                                 const std::vector<bool>& borrowed) const {
  const Layout layout = layOut(graph, views, borrowed);
  uint64_t bytes = roundUp(layout.outputs.total(layout.sets), kPieceBytes);
  for (const auto& [type, part] : layout.inputs) bytes += roundUp(part.total(layout.sets), kPieceBytes);
  return bytes;
}

// Memory of a device's own is taken as a whole, address space of the host's as it is used.
Status TimingBuffers::ensure(Arena& arena, size_t bytes, size_t expected) const {
  if (!arena.isReserved()) {
    const size_t wanted = device_.sharesHostMemory() ? memoryBytes_ : std::max(bytes, expected);
    KTUNE_ASSIGN(arena, Arena::reserve(device_, wanted));
  }
  if (bytes <= arena.bytes()) return Status::ok();
  return internalError("timing buffers of " + std::to_string(bytes) + " bytes where " + std::to_string(arena.bytes()) +
                       " were expected");
}

Status TimingBuffers::expect(const op::Graph& graph, const std::vector<std::vector<TensorView>>& points,
                             const std::vector<bool>& borrowed) {
  for (const std::vector<TensorView>& views : points) {
    const Layout layout = layOut(graph, views, borrowed);
    for (const auto& [type, part] : layout.inputs)
      expectedInputs_[type] = std::max(expectedInputs_[type], part.total(layout.sets));
    expectedOutputs_ = std::max(expectedOutputs_, layout.outputs.total(layout.sets));
  }
  if (device_.sharesHostMemory()) return Status::ok();
  uint64_t bytes = roundUp(expectedOutputs_, kPieceBytes);
  for (const auto& [type, expected] : expectedInputs_) bytes += roundUp(expected, kPieceBytes);
  if (bytes <= memoryBytes_) return Status::ok();
  return resourceExhausted("timing this problem needs " + std::to_string(bytes) + " bytes of buffers; " +
                           std::to_string(memoryBytes_) + " are allowed");
}

Result<BufferRing> TimingBuffers::ring(const op::Graph& graph, const std::vector<TensorView>& views,
                                       const std::vector<void*>& borrowed) {
  std::vector<bool> elsewhere;
  for (void* address : borrowed) elsewhere.push_back(address != nullptr);
  const uint64_t bytes = bytesFor(graph, views, elsewhere);
  if (bytes > memoryBytes_)
    return resourceExhausted("timing this problem needs " + std::to_string(bytes) + " bytes of buffers; " +
                             std::to_string(memoryBytes_) + " are allowed");
  const Layout layout = layOut(graph, views, elsewhere);
  for (const auto& [type, part] : layout.inputs) {
    Arena& arena = inputs_[type];
    KTUNE_TRY(ensure(arena, part.total(layout.sets), expectedInputs_[type]));
    KTUNE_TRY(arena.fill(part.total(layout.sets), type, seed_));
  }
  KTUNE_TRY(ensure(outputs_, layout.outputs.total(layout.sets), expectedOutputs_));
  outputs_.touch(layout.outputs.total(layout.sets));

  BufferRing ring;
  ring.tensorCount_ = views.size();
  ring.addresses_.reserve(layout.sets * views.size());
  const size_t inputCount = graph.inputs.size();
  for (size_t s = 0; s < layout.sets; ++s) {
    for (size_t t = 0; t < views.size(); ++t) {
      if (t < elsewhere.size() && elsewhere[t]) {
        ring.addresses_.push_back(borrowed[t]);
        continue;
      }
      const bool output = t >= inputCount && graph.outputs[t - inputCount].aliasInput < 0;
      char* base = output ? outputs_.data() : inputs_[views[t].dtype].data();
      const size_t stride = output ? layout.outputs.stride : layout.inputs.at(views[t].dtype).stride;
      ring.addresses_.push_back(base + s * stride + layout.offsets[t]);
    }
  }
  return ring;
}

Result<double> TimingBuffers::copyBytesPerSecond(uint64_t bytes) {
  bytes = std::min<uint64_t>(bytes, memoryBytes_ / 4) / kPieceBytes * kPieceBytes;
  if (bytes == 0) return 0.0;
  if (!device_.sharesHostMemory()) {
    // For as long as it takes: the arenas have the size that the problem needs.
    KTUNE_ASSIGN(Arena source, Arena::reserve(device_, bytes));
    KTUNE_ASSIGN(const Arena target, Arena::reserve(device_, bytes));
    KTUNE_TRY(source.fill(bytes, op::DType::kF32, seed_));
    return device_.copyBytesPerSecond(target.data(), source.data(), bytes);
  }
  Arena& source = inputs_[op::DType::kF32];
  KTUNE_TRY(ensure(source, bytes, bytes));
  KTUNE_TRY(ensure(outputs_, bytes, bytes));
  KTUNE_TRY(source.fill(bytes, op::DType::kF32, seed_));
  outputs_.touch(bytes);
  return device_.copyBytesPerSecond(outputs_.data(), source.data(), bytes);
}

Status TimingBuffers::renew(op::DType type, void* data, size_t bytes) {
  // The arena's first megabytes are no good as a source: they are tensors themselves.
  Arena& block = renewal_[type];
  if (!block.isReserved()) {
    KTUNE_ASSIGN(block, Arena::reserve(device_, kPieceBytes));
    KTUNE_TRY(block.fill(kPieceBytes, type, seed_ + 1));
  }
  for (size_t at = 0; at < bytes; at += kPieceBytes)
    KTUNE_TRY(device_.copyOnDevice(static_cast<char*>(data) + at, block.data(), std::min(kPieceBytes, bytes - at)));
  return Status::ok();
}

}  // namespace ktune::runtime
