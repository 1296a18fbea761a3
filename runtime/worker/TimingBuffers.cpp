#include "runtime/worker/TimingBuffers.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "base/Deadline.h"
#include "runtime/guard/Inputs.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ktune::runtime {

namespace {

constexpr uint64_t kMostColdBytes = uint64_t{512} << 20;
constexpr uint64_t kUnknownCacheBytes = uint64_t{64} << 20;
constexpr size_t kPageBytes = 4096;
// Tensors of one set are at least this aligned, as an engine's allocator would.
constexpr size_t kTensorAlignment = 256;
constexpr size_t kMostSets = size_t{1} << 14;
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

// Copies past the caches where the machine can: a plain copy reads its target, too.
void streamCopy(char* to, const char* from, size_t bytes) {
#if defined(__x86_64__)
  for (size_t i = 0; i + 64 <= bytes; i += 64) {
    const auto* source = reinterpret_cast<const __m128i*>(from + i);
    auto* target = reinterpret_cast<__m128i*>(to + i);
    const __m128i a = _mm_load_si128(source), b = _mm_load_si128(source + 1);
    const __m128i c = _mm_load_si128(source + 2), d = _mm_load_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  _mm_sfence();
#else
  std::memcpy(to, from, bytes);
#endif
}

}  // namespace

Arena::Arena(Arena&& o) noexcept
    : data_(std::exchange(o.data_, nullptr)),
      reserved_(std::exchange(o.reserved_, 0)),
      filled_(std::exchange(o.filled_, 0)) {}

Arena& Arena::operator=(Arena&& o) noexcept {
  std::swap(data_, o.data_);
  std::swap(reserved_, o.reserved_);
  std::swap(filled_, o.filled_);
  return *this;
}

Arena::~Arena() {
  if (data_ != nullptr) ::munmap(data_, reserved_);
}

Result<Arena> Arena::reserve(size_t bytes) {
  Arena arena;
  arena.reserved_ = roundUp(std::max<size_t>(bytes, 1), kPieceBytes);
  void* map =
      ::mmap(nullptr, arena.reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (map == MAP_FAILED)
    return errnoStatus(errno, "no memory for timing buffers of " + std::to_string(bytes) + " bytes");
  arena.data_ = static_cast<char*>(map);
  // Best effort: gigabytes of first touches cost seconds in small pages, and address translation is not what is timed.
  (void)::madvise(map, arena.reserved_, MADV_HUGEPAGE);
  return arena;
}

void Arena::fill(size_t bytes, op::DType type, uint64_t seed, const op::ParallelFor& parallelFor) {
  bytes = roundUp(bytes, kPieceBytes);
  if (bytes <= filled_) return;
  // Narrow types are converted one by one, so their block is smaller.
  const size_t generated = type == op::DType::kF32 ? 16 : 4;
  const size_t firstPiece = filled_ / kPieceBytes;
  const size_t pieces = bytes / kPieceBytes;
  const auto run = [&](size_t from, size_t to, const auto& body) {
    if (from >= to) return;
    parallelFor(static_cast<int64_t>(to - from), [&](int64_t begin, int64_t end) {
      for (auto p = from + static_cast<size_t>(begin); p < from + static_cast<size_t>(end); ++p) body(p);
    });
  };
  run(firstPiece, std::min(pieces, generated), [&](size_t p) { generate(type, seed, p, data_ + p * kPieceBytes); });
  run(std::max(firstPiece, generated), pieces, [&](size_t p) {
    std::memcpy(data_ + p * kPieceBytes, data_ + (p * 7 + p / generated) % generated * kPieceBytes, kPieceBytes);
  });
  filled_ = bytes;
}

void Arena::touch(size_t bytes, const op::ParallelFor& parallelFor) {
  bytes = roundUp(bytes, kPieceBytes);
  if (bytes <= filled_) return;
  parallelFor(static_cast<int64_t>((bytes - filled_) / kPieceBytes), [&](int64_t begin, int64_t end) {
    std::memset(data_ + filled_ + static_cast<size_t>(begin) * kPieceBytes, 0,
                static_cast<size_t>(end - begin) * kPieceBytes);
  });
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

TimingBuffers::TimingBuffers(uint64_t lastLevelBytes, uint64_t memoryBytes, uint64_t seed, op::ParallelFor parallelFor)
    : memoryBytes_(memoryBytes), coldBytes_(0), seed_(seed), parallelFor_(std::move(parallelFor)) {
  const uint64_t cache = lastLevelBytes == 0 ? kUnknownCacheBytes : lastLevelBytes;
  coldBytes_ = std::min({2 * cache, memoryBytes / 2, kMostColdBytes});
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
  layout.sets =
      overlap ? 2 : std::clamp<size_t>((coldBytes_ + setBytes - 1) / std::max<size_t>(setBytes, 1) + 1, 2, kMostSets);
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

Result<Arena*> TimingBuffers::arenaFor(op::DType type) {
  Arena& arena = inputs_[type];
  if (arena.data() == nullptr) {
    KTUNE_ASSIGN(arena, Arena::reserve(memoryBytes_));
  }
  return &arena;
}

Status TimingBuffers::reserveOutputs() {
  if (outputs_.data() != nullptr) return Status::ok();
  KTUNE_ASSIGN(outputs_, Arena::reserve(memoryBytes_));
  return Status::ok();
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
    KTUNE_ASSIGN(Arena * arena, arenaFor(type));
    arena->fill(part.total(layout.sets), type, seed_, parallelFor_);
  }
  KTUNE_TRY(reserveOutputs());
  outputs_.touch(layout.outputs.total(layout.sets), parallelFor_);

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
  KTUNE_ASSIGN(Arena * source, arenaFor(op::DType::kF32));
  KTUNE_TRY(reserveOutputs());
  source->fill(bytes, op::DType::kF32, seed_, parallelFor_);
  outputs_.touch(bytes, parallelFor_);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 4; ++i) {
    const double start = monotonicSeconds();
    parallelFor_(static_cast<int64_t>(bytes / kPieceBytes), [&](int64_t begin, int64_t end) {
      const auto from = static_cast<size_t>(begin) * kPieceBytes;
      streamCopy(outputs_.data() + from, source->data() + from, static_cast<size_t>(end - begin) * kPieceBytes);
    });
    best = std::min(best, monotonicSeconds() - start);
  }
  return 2.0 * static_cast<double>(bytes) / best;
}

void TimingBuffers::renew(op::DType type, void* data, size_t bytes) {
  // The arena's first megabytes are no good as a source: they are tensors themselves.
  std::vector<char>& block = renewal_[type];
  if (block.empty()) {
    block.resize(kPieceBytes);
    generate(type, seed_ + 1, 0, block.data());
  }
  for (size_t at = 0; at < bytes; at += kPieceBytes)
    std::memcpy(static_cast<char*>(data) + at, block.data(), std::min(kPieceBytes, bytes - at));
}

}  // namespace ktune::runtime
