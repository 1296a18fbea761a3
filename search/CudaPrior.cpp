#include "search/CudaPrior.h"

#include <algorithm>
#include <cmath>

#include "ir/schedule/Architecture.h"

namespace ktune::search {
namespace {

using schedule::Generator;
using schedule::KernelSchedule;

constexpr double kLaunchNs = 2000;       // launch, fill and drain of one kernel in a graph
constexpr double kCyclesPerNs = 1.6;     // a multiprocessor's clock under load, GHz
constexpr double kBytesInFlight = 36e3;  // per multiprocessor, to keep memory busy: its rate times the latency
constexpr double kL2Factor = 2.5;        // how much faster the second level is than memory
constexpr double kMmaPerCycle = 1024;    // 16-bit multiply-adds of mma.sync per multiprocessor and cycle
constexpr double kFmaPerCycle = 128;     // f32 multiply-adds per multiprocessor and cycle
constexpr double kSharedBytesPerCycle = 128;
constexpr double kBlockCycles = 1200;  // start of a block, and its first loads
constexpr double kStageCycles = 60;    // barrier and addresses of one stage

double ceilDiv(double a, double b) {
  return std::ceil(a / std::max(1.0, b));
}

/// Blocks of THREADS threads with SHAREDBYTES that fit one multiprocessor.
double resident(double threads, double sharedBytes, const schedule::Target& target) {
  const schedule::Architecture* architecture = schedule::findArchitecture(target.architecture);
  const double most = architecture != nullptr ? architecture->threadsPerMultiprocessor : 2048;
  const double shared = architecture != nullptr ? static_cast<double>(architecture->sharedBytes) : 1e5;
  double blocks = std::min(32.0, std::floor(most / threads));
  if (sharedBytes > 0) blocks = std::min(blocks, std::floor(shared / sharedBytes));
  return std::max(1.0, blocks);
}

/// BYTES of memory traffic when every block has INFLIGHT bytes requested at a time.
double memoryNs(double bytes, double blocks, double perMultiprocessor, double inFlight, const schedule::Target& target,
                double copyBytesPerSecond) {
  const double waves = ceilDiv(blocks, perMultiprocessor * target.cores);
  // The last wave may leave multiprocessors idle, and a thin one cannot keep memory busy.
  const double running = std::min(perMultiprocessor, ceilDiv(blocks, target.cores));
  const double busy = std::min(1.0, running * inFlight / kBytesInFlight);
  const double even = waves > 4 ? 1 : blocks / (std::ceil(blocks / target.cores) * target.cores);
  return bytes / (copyBytesPerSecond * std::max(0.02, busy * std::max(even, 0.05))) * 1e9;
}

double streamNs(const KernelSchedule& s, const KernelShape& shape, const schedule::Target& target, double rate) {
  const double tileColumns = double(s.columnThreads) * s.lanes * s.steps;
  const double chunks = ceilDiv(shape.columns, tileColumns);
  const bool row = s.generator == Generator::kRow;
  const double blocks = ceilDiv(shape.rows, s.blockRows) * (row ? 1 : chunks);
  const double elements = double(s.blockRows) * tileColumns;
  const double inFlight =
      std::min(elements, shape.rows * shape.columns) * shape.elementBytes * std::min(shape.inputs, 3.0);
  // A row that the threads do not hold is read once more for every reduction, from the second level.
  const double again = row && chunks > 1 ? shape.reductions * shape.inputBytes / kL2Factor : 0;
  const double access = s.lanes * shape.elementBytes;
  const double narrow = access >= 16 ? 1 : access >= 8 ? 1.05 : access >= 4 ? 1.2 : 1.8;
  const double idle = tileColumns * chunks / std::max(1.0, shape.columns);
  const double perMultiprocessor = resident(s.threads, 0, target);
  const double waves = ceilDiv(blocks, perMultiprocessor * target.cores);
  // Threads beyond a row's end do nothing, and every barrier of a row costs.
  const double blockNs =
      (kBlockCycles + (row ? 80 * std::log2(std::max(2, s.columnThreads)) * chunks : 0)) / kCyclesPerNs;
  return kLaunchNs + waves * blockNs * 0.3 +
         narrow * (1 + 0.05 * (idle - 1)) *
             memoryNs(shape.inputBytes + again + shape.outputBytes, blocks, perMultiprocessor, inFlight, target, rate);
}

double contractionNs(const KernelSchedule& s, const KernelShape& shape, const schedule::Target& target, double rate) {
  const double m = shape.rows, n = shape.columns, k = shape.depth;
  const double tiles = ceilDiv(m, s.blockRows) * ceilDiv(n, s.blockColumns);
  const double other = std::max(0.0, shape.inputBytes - shape.leftBytes - shape.weightBytes) + shape.outputBytes;
  if (s.instruction == 0) {
    const double threads = 32.0 * s.warpColumns * s.warpDepth;
    const double inFlight = threads * s.threadColumns * s.stageDepth * shape.elementBytes;
    const double perMultiprocessor = resident(threads, 0, target);
    const double memory =
        memoryNs(shape.weightBytes + shape.leftBytes + other, tiles, perMultiprocessor, inFlight, target, rate);
    const double arithmetic = m * n * k / (kFmaPerCycle * target.cores) * 2 / kCyclesPerNs;
    return kLaunchNs + std::max(memory, arithmetic) + 0.2 * std::min(memory, arithmetic);
  }
  const double parts = s.splitK, blocks = tiles * parts;
  const bool mma = s.instruction == 2;
  const double threads = mma ? 32.0 * s.warpRows * s.warpColumns
                             : double(s.blockRows) / s.threadRows * (double(s.blockColumns) / s.threadColumns);
  const double stageBytes = (double(s.blockRows) + s.blockColumns) * s.stageDepth * (mma ? 2 : shape.elementBytes);
  const double perMultiprocessor = resident(threads, stageBytes * s.stages, target);
  const double steps = ceilDiv(k / parts, s.stageDepth);
  // One stage: the products, and what the warps read from shared memory for them.
  const double products = double(s.blockRows) * s.blockColumns * s.stageDepth;
  const double compute = products / (mma ? kMmaPerCycle : kFmaPerCycle);
  const double shared = mma ? (double(s.blockRows) * s.warpColumns + double(s.blockColumns) * s.warpRows) *
                                  s.stageDepth * 2 / kSharedBytesPerCycle
                            : products * (1.0 / s.threadRows + 1.0 / s.threadColumns) * 4 / kSharedBytesPerCycle;
  const double together = std::min(perMultiprocessor, ceilDiv(blocks, target.cores));
  const double exposed = kStageCycles / std::max(1.0, together) + (s.stages <= 2 ? 400 / together : 0);
  const double waves = ceilDiv(blocks, target.cores);
  const double computeNs =
      waves * (steps * (std::max(compute, shared) + exposed) + kBlockCycles / together) / kCyclesPerNs;
  // Tiles of one wave share what they read; what the second level does not hold comes from memory again.
  const double rowTiles = ceilDiv(m, s.blockRows), columnTiles = ceilDiv(n, s.blockColumns);
  const double l2 = 0.6 * static_cast<double>(target.l2Bytes);
  const double wPasses = shape.weightBytes > l2 ? std::max(1.0, rowTiles / (8.0 * s.rasterColumns)) : 1;
  const double xPasses = shape.leftBytes > l2 ? std::max(1.0, columnTiles / (8.0 * s.rasterColumns)) : 1;
  const double partials = parts > 1 ? 2 * parts * m * n * 4 : 0;
  const double bytes = shape.weightBytes * wPasses + shape.leftBytes * xPasses + other + partials;
  const double inFlight = stageBytes * std::max(1, s.stages - 1);
  const double memory = memoryNs(bytes, blocks, perMultiprocessor, inFlight, target, rate);
  return kLaunchNs * (parts > 1 ? 1.8 : 1) + std::max(computeNs, memory) + 0.15 * std::min(computeNs, memory);
}

}  // namespace

double cudaKernelNs(const KernelSchedule& s, const KernelShape& shape, const schedule::Target& target,
                    double copyBytesPerSecond) {
  return s.generator == Generator::kContraction ? contractionNs(s, shape, target, copyBytesPerSecond)
                                                : streamNs(s, shape, target, copyBytesPerSecond);
}

}  // namespace ktune::search
