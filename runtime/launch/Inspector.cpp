#include "runtime/launch/Inspector.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <string_view>

#include "base/Hash.h"

namespace ktune::runtime {

namespace {

constexpr size_t kPieceBytes = size_t{4} << 20;
// A pattern as a block, so that memcpy and memcmp do the work.
constexpr size_t kBlockBytes = 4096;
using PatternBlock = std::array<unsigned char, kBlockBytes>;

PatternBlock blockOf(BytePair pair) {
  PatternBlock block{};
  for (size_t i = 0; i < kBlockBytes; ++i) block[i] = pair[i & 1];
  return block;
}

void lower(std::atomic<int64_t>& to, int64_t index) {
  int64_t present = to.load();
  while (index < present && !to.compare_exchange_weak(present, index)) {
  }
}

bool isPair(const char* data, size_t offset, size_t bytes, BytePair pair) {
  for (size_t i = 0; i < bytes; ++i) {
    if (static_cast<unsigned char>(data[i]) != pair[(offset + i) & 1]) return false;
  }
  return true;
}

class HostReference final : public KeptReference {
 public:
  explicit HostReference(Expected expected) : expected(std::move(expected)) {}
  [[nodiscard]] uint64_t bytes() const override {
    return (expected.values.size() + expected.bounds.size()) * sizeof(double);
  }
  const Expected expected;
};

class HostInspector final : public Inspector {
 public:
  explicit HostInspector(op::ParallelFor parallelFor) : parallelFor_(std::move(parallelFor)) {}

  Status fill(char* data, size_t bytes, BytePair pair) override {
    const PatternBlock block = blockOf(pair);
    overPieces(bytes, [&](size_t from, size_t to) {
      for (; from < to; from += kBlockBytes)
        std::memcpy(data + from, block.data(), std::min<size_t>(kBlockBytes, to - from));
    });
    return Status::ok();
  }

  Result<std::optional<size_t>> firstOther(const char* data, size_t bytes, BytePair pair) override {
    const PatternBlock block = blockOf(pair);
    std::atomic<int64_t> first{std::numeric_limits<int64_t>::max()};
    overPieces(bytes, [&](size_t from, size_t to) {
      for (; from < to; from += kBlockBytes) {
        const size_t n = std::min<size_t>(kBlockBytes, to - from);
        if (std::memcmp(data + from, block.data(), n) == 0) continue;
        size_t i = 0;
        while (static_cast<unsigned char>(data[from + i]) == block[i]) ++i;
        return lower(first, static_cast<int64_t>(from + i));
      }
    });
    if (first.load() == std::numeric_limits<int64_t>::max()) return std::optional<size_t>();
    return std::optional<size_t>(static_cast<size_t>(first.load()));
  }

  Result<uint64_t> checksum(const char* data, size_t bytes) override {
    std::vector<uint64_t> sums((bytes + kPieceBytes - 1) / kPieceBytes);
    overPieces(bytes, [&](size_t from, size_t to) {
      for (; from < to; from += kPieceBytes)
        sums[from / kPieceBytes] = checksumOf(std::string_view(data + from, std::min(kPieceBytes, to - from)));
    });
    return checksumOf(std::string_view(reinterpret_cast<const char*>(sums.data()), sums.size() * sizeof(uint64_t)));
  }

  Result<RunDifferences> compareRuns(const TensorView& view, const char* first, const char* second,
                                     const BytePair* poison) override {
    const auto size = static_cast<size_t>(op::dtypeBytes(view.dtype));
    const int64_t columns = view.columns();
    const auto rowBytes = static_cast<size_t>((columns - 1) * view.columnStride() + 1) * size;
    std::atomic<int64_t> unwritten{std::numeric_limits<int64_t>::max()};
    std::atomic<int64_t> different{std::numeric_limits<int64_t>::max()};
    parallelFor_(view.rows(), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const auto offset = static_cast<size_t>(view.rowOffset(row)) * size;
        // The patterns differ in every byte, so equal rows were written.
        if (std::memcmp(first + offset, second + offset, rowBytes) == 0) continue;
        for (int64_t col = 0; col < columns; ++col) {
          const size_t at = offset + static_cast<size_t>(col * view.columnStride()) * size;
          if (std::memcmp(first + at, second + at, size) == 0) continue;
          const bool untouched =
              poison != nullptr && isPair(first + at, at, size, poison[0]) && isPair(second + at, at, size, poison[1]);
          lower(untouched ? unwritten : different, row * columns + col);
        }
      }
    });
    const auto found = [](const std::atomic<int64_t>& index) {
      return index.load() == std::numeric_limits<int64_t>::max() ? std::nullopt : std::optional<int64_t>(index.load());
    };
    return RunDifferences{found(unwritten), found(different)};
  }

  Result<std::unique_ptr<KeptReference>> keep(Expected& expected) override {
    return std::unique_ptr<KeptReference>(std::make_unique<HostReference>(std::move(expected)));
  }

  Result<Comparison> compare(const TensorView& got, const KeptReference& kept) override {
    // An inspector's references are its own.
    const Expected& expected = static_cast<const HostReference&>(kept).expected;
    const int64_t columns = got.columns();
    const double allowance = flushAllowance(got.dtype);
    Comparison total;
    std::mutex mutex;
    parallelFor_(got.rows(), [&](int64_t begin, int64_t end) {
      Comparison part;
      std::vector<double> values(static_cast<size_t>(columns));
      for (int64_t row = begin; row < end; ++row) {
        loadElements(got.dtype, got.at(got.rowOffset(row)), got.columnStride(), columns, values.data());
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t i = row * columns + c;
          const double bound = expected.bounds[static_cast<size_t>(i)];
          const double want = expected.values[static_cast<size_t>(i)];
          const double share = errorShare(values[static_cast<size_t>(c)], want, bound, allowance);
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
    return total;
  }

 private:
  const op::ParallelFor parallelFor_;

  // WORK(from, to) over [0, bytes), in multiples of a piece.
  template <typename Work>
  void overPieces(size_t bytes, const Work& work) {
    if (bytes <= kPieceBytes) return work(size_t{0}, bytes);
    parallelFor_(static_cast<int64_t>((bytes + kPieceBytes - 1) / kPieceBytes), [&](int64_t begin, int64_t end) {
      work(static_cast<size_t>(begin) * kPieceBytes, std::min(static_cast<size_t>(end) * kPieceBytes, bytes));
    });
  }
};

}  // namespace

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

double errorShare(double got, double want, double bound, double allowance) {
  constexpr double kWrong = std::numeric_limits<double>::infinity();
  if (std::isinf(bound)) return 0;
  if (std::isnan(want)) return std::isnan(got) ? 0 : kWrong;
  // NaN is no wildcard.
  if (std::isnan(got)) return kWrong;
  if (std::isinf(want)) return got == want ? 0 : kWrong;
  const double error = std::fabs(got - want);
  if (error == 0) return 0;
  const double allowed = bound + allowance;
  return allowed > 0 ? error / allowed : kWrong;
}

std::unique_ptr<Inspector> makeHostInspector(op::ParallelFor parallelFor) {
  return std::make_unique<HostInspector>(std::move(parallelFor));
}

}  // namespace ktune::runtime
