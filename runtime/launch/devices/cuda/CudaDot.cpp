#include "runtime/launch/devices/cuda/CudaDot.h"

#include <algorithm>
#include <vector>

#include "runtime/launch/devices/cuda/CudaKernels.h"

namespace ktune::runtime::cuda {

// A block of 512 threads makes 32 x 32 outputs. Eight neighbouring threads are the eight lanes of 4 x 4 outputs: thread
// l adds the products of terms l, l + 8, ..., so that its sixteen running sums and their reaches stay in registers.
const char* const kDotSource = R"(
enum {
  kTile = 32,    // Outputs of a block in each direction.
  kTerms = 32,   // Of a step.
  kStride = 40,  // Of a row in shared memory: neighbouring rows lie half the banks apart.
  kThreads = 512,
  kEach = 4,  // Outputs of a thread in each direction.
  kStepsToLook = 128 / kTerms
};

extern "C" __global__ void __launch_bounds__(kThreads) ktune_reference_dots(
    const double* __restrict__ x, const double* __restrict__ w, double* __restrict__ sums,
    double* __restrict__ reaches, long long rows, long long columns, long long k) {
  __shared__ double xs[kTile * kStride];
  __shared__ double ws[kTile * kStride];
  const int thread = threadIdx.x;
  const int lane = thread & 7;
  const int group = thread >> 3;
  // The four groups of a warp are a square.
  const int groupRow = (group >> 4) * 2 + ((group >> 1) & 1);
  const int groupColumn = ((group >> 2) & 3) * 2 + (group & 1);
  const long long row0 = (long long)blockIdx.y * kTile;
  const long long column0 = (long long)blockIdx.x * kTile;

  // Every thread brings two elements of x and two of w a step.
  const int loadTerm = thread & 31;
  const int loadRow = thread >> 5;
  double nextX[2], nextW[2];
  const auto load = [&](long long begin) {
    const long long term = begin + loadTerm;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const long long row = row0 + loadRow + 16 * i, column = column0 + loadRow + 16 * i;
      nextX[i] = term < k && row < rows ? x[row * k + term] : 0.0;
      nextW[i] = term < k && column < columns ? w[column * k + term] : 0.0;
    }
  };

  double partial[kEach][kEach], reach[kEach][kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) partial[i][j] = reach[i][j] = 0.0;

  load(0);
  int step = 0;
  for (long long begin = 0; begin < k; begin += kTerms) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      xs[(loadRow + 16 * i) * kStride + loadTerm] = nextX[i];
      ws[(loadRow + 16 * i) * kStride + loadTerm] = nextW[i];
    }
    __syncthreads();
    if (begin + kTerms < k) load(begin + kTerms);
#pragma unroll
    for (int t = 0; t < kTerms; t += 8) {
      double a[kEach], b[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        a[i] = xs[(groupRow + 8 * i) * kStride + t + lane];
        b[i] = ws[(groupColumn + 8 * i) * kStride + t + lane];
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) partial[i][j] = fma(a[i], b[j], partial[i][j]);
    }
    ++step;
    if (step == kStepsToLook || begin + kTerms >= k) {
      step = 0;
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          const double magnitude = fabs(partial[i][j]);
          reach[i][j] = magnitude > reach[i][j] ? magnitude : reach[i][j];
        }
    }
  }

#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      double sum = 0.0, most = 0.0;
#pragma unroll
      for (int l = 0; l < 8; ++l) {
        sum += __shfl_sync(0xffffffffu, partial[i][j], l, 8);
        most += __shfl_sync(0xffffffffu, reach[i][j], l, 8);
      }
      const long long row = row0 + groupRow + 8 * i, column = column0 + groupColumn + 8 * j;
      if (lane == ((i * kEach + j) & 7) && row < rows && column < columns) {
        sums[row * columns + column] = sum;
        reaches[row * columns + column] = most;
      }
    }
}
)";

namespace {

constexpr const char* kName = "ktune_reference_dots";
constexpr int64_t kTile = 32;
constexpr unsigned kThreads = 512;
constexpr double kShareOfFree = 0.5;  // Of the free memory, at most.
constexpr int64_t kMostGridRows = 65535;

class CudaDotEngine final : public op::DotEngine {
 public:
  explicit CudaDotEngine(std::unique_ptr<CudaKernels> kernels)
      : kernels_(std::move(kernels)), context_(kernels_->context()) {}

  Status dots(const double* x, int64_t rows, const double* w, int64_t columns, int64_t k, double* sums,
              double* reaches) override {
    if (rows <= 0 || columns <= 0) return Status::ok();
    Current current(*context_);
    KTUNE_TRY(current.status());
    size_t freeBytes = 0, totalBytes = 0;
    KTUNE_TRY(context_->check(context_->driver().memGetInfo(&freeBytes, &totalBytes), "cuMemGetInfo"));
    const double budget = kShareOfFree * static_cast<double>(freeBytes) / sizeof(double);
    // All of w if it leaves room, then as many rows of x, with their outputs, as fit; whole tiles of both.
    const auto fits = [&](int64_t chunkRows, int64_t chunkColumns) {
      const double r = static_cast<double>(chunkRows), c = static_cast<double>(chunkColumns);
      return (r + c) * static_cast<double>(std::max<int64_t>(k, 1)) + 2 * r * c <= budget;
    };
    const auto halve = [](int64_t n) { return (n / 2 + kTile - 1) / kTile * kTile; };
    int64_t chunkRows = std::min(rows, kMostGridRows * kTile), chunkColumns = columns;
    while (!fits(chunkRows, chunkColumns)) {
      int64_t& larger = chunkRows >= chunkColumns ? chunkRows : chunkColumns;
      if (larger <= kTile) return resourceExhausted("a reference's rows do not fit in the device's free memory");
      larger = std::max(kTile, halve(larger));
    }
    const auto bytes = [](int64_t a, int64_t b) {
      return static_cast<size_t>(a) * static_cast<size_t>(b) * sizeof(double);
    };
    KTUNE_ASSIGN(const std::unique_ptr<CudaMemory> onX, CudaMemory::make(context_, bytes(chunkRows, k)));
    KTUNE_ASSIGN(const std::unique_ptr<CudaMemory> onW, CudaMemory::make(context_, bytes(chunkColumns, k)));
    KTUNE_ASSIGN(const std::unique_ptr<CudaMemory> onSums, CudaMemory::make(context_, bytes(chunkRows, chunkColumns)));
    KTUNE_ASSIGN(const std::unique_ptr<CudaMemory> onReaches,
                 CudaMemory::make(context_, bytes(chunkRows, chunkColumns)));
    for (int64_t column = 0; column < columns; column += chunkColumns) {
      const int64_t someColumns = std::min(chunkColumns, columns - column);
      KTUNE_TRY(context_->toDevice(onW->address(), w + column * k, bytes(someColumns, k)));
      for (int64_t row = 0; row < rows; row += chunkRows) {
        const int64_t someRows = std::min(chunkRows, rows - row);
        KTUNE_TRY(context_->toDevice(onX->address(), x + row * k, bytes(someRows, k)));
        KTUNE_TRY(launch(*onX, *onW, *onSums, *onReaches, someRows, someColumns, k));
        KTUNE_TRY(fetch(*onSums, someRows, someColumns, sums + row * columns + column, columns));
        KTUNE_TRY(fetch(*onReaches, someRows, someColumns, reaches + row * columns + column, columns));
      }
    }
    return Status::ok();
  }

 private:
  Status launch(const CudaMemory& x, const CudaMemory& w, const CudaMemory& sums, const CudaMemory& reaches,
                int64_t rows, int64_t columns, int64_t k) {
    const uint64_t arguments[] = {x.address(),
                                  w.address(),
                                  sums.address(),
                                  reaches.address(),
                                  static_cast<uint64_t>(rows),
                                  static_cast<uint64_t>(columns),
                                  static_cast<uint64_t>(k)};
    return kernels_->launch(kName, static_cast<unsigned>((columns + kTile - 1) / kTile),
                            static_cast<unsigned>((rows + kTile - 1) / kTile), kThreads, arguments);
  }

  // ROWS x COLUMNS, dense on the device, into rows STRIDE apart.
  Status fetch(const CudaMemory& from, int64_t rows, int64_t columns, double* to, int64_t stride) {
    const size_t rowBytes = static_cast<size_t>(columns) * sizeof(double);
    if (columns == stride) return context_->fromDevice(to, from.address(), static_cast<size_t>(rows) * rowBytes);
    block_.resize(static_cast<size_t>(rows) * static_cast<size_t>(columns));
    KTUNE_TRY(context_->fromDevice(block_.data(), from.address(), block_.size() * sizeof(double)));
    for (int64_t i = 0; i < rows; ++i) std::copy_n(block_.data() + i * columns, columns, to + i * stride);
    return Status::ok();
  }

  std::unique_ptr<CudaKernels> kernels_;
  std::shared_ptr<CudaContext> context_;
  std::vector<double> block_;
};

}  // namespace

Result<std::unique_ptr<op::DotEngine>> makeCudaDotEngine(std::shared_ptr<CudaContext> context,
                                                         const std::string& cubin) {
  KTUNE_ASSIGN(std::unique_ptr<CudaKernels> kernels,
               CudaKernels::load(std::move(context), cubin, "the reference's kernel", {&kName, 1}));
  return std::unique_ptr<op::DotEngine>(std::make_unique<CudaDotEngine>(std::move(kernels)));
}

}  // namespace ktune::runtime::cuda
