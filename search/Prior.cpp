#include "search/Prior.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/op/Operator.h"
#include "search/Archive.h"
#include "search/CudaPrior.h"

namespace ktune::search {
namespace {

using schedule::Generator;
using schedule::KernelSchedule;

// The machine the formula has in mind: a wide out-of-order core of the last ten years. Only ratios matter.
constexpr double kGhz = 2.8;  // cycles per nanosecond
constexpr double kFmaPerCycle = 2;
constexpr double kLoadsPerCycle = 2;
constexpr double kStoresPerCycle = 1;
constexpr double kFmaLatency = 4;    // cycles
constexpr double kLoopCycles = 1.5;  // counter, compare, addresses of one loop step
constexpr double kTileCycles = 120;  // handing one tile to a thread and its prologue
constexpr double kLaunchNs = 2000;   // waking the pool, once a kernel
constexpr double kL2BytesPerCycle = 32;
constexpr double kBytesPerSecondPerCore = 6e9;
constexpr double kCudaBytesPerSecondPerCore = 2.5e10;
constexpr double kLastLevelFactor = 4;   // how much faster the last level is than memory
constexpr double kOverlap = 0.25;        // part of the shorter of compute and memory that is not hidden
constexpr double kPrefetchCycles = 0.5;  // one prefetch instruction
constexpr double kLineBytes = 64;

double ceilDiv(double a, double b) {
  return std::ceil(a / std::max(1.0, b));
}
double overlapped(double a, double b) {
  return std::max(a, b) + kOverlap * std::min(a, b);
}
double lanesLog2(const KernelSchedule& s) {
  return std::log2(std::max(2.0, static_cast<double>(s.vector)));
}

}  // namespace

Prior::Prior(const schedule::Problem& problem, const schedule::Target& target, double copyBytesPerSecond)
    : problem_(problem),
      target_(target),
      copyBytesPerSecond_(copyBytesPerSecond > 0 ? copyBytesPerSecond
                          : target.kind == schedule::DeviceKind::kCuda
                              ? kCudaBytesPerSecondPerCore * std::max(1, target.cores)
                              : kBytesPerSecondPerCore * std::max(1, target.cores)),
      points_(op::scoringPoints(problem.bucket)) {
  target_.cores = std::max(1, target_.cores);
}

KernelShape Prior::shapeOf(const schedule::Group& group, const std::vector<int64_t>& symbolValues) const {
  KernelShape shape;
  auto extents = [&](int32_t value) {
    schedule::Problem::Matrix matrix = problem_.matrixOf(value);
    return std::pair(static_cast<double>(matrix.rows.extent(symbolValues)),
                     static_cast<double>(matrix.columns.extent(symbolValues)));
  };
  auto bytesOf = [&](int32_t value) {
    auto [rows, columns] = extents(value);
    return rows * columns * op::dtypeBytes(problem_.types[static_cast<size_t>(value)].dtype);
  };
  shape.inputs = static_cast<double>(group.inputs.size());
  shape.outputs = static_cast<double>(group.outputs.size());
  for (int32_t value : group.inputs) shape.inputBytes += bytesOf(value);
  for (int32_t value : group.outputs) {
    shape.outputBytes += bytesOf(value);
    auto [rows, columns] = extents(value);
    shape.rows = std::max(shape.rows, rows);
    shape.columns = std::max(shape.columns, columns);
    shape.elementBytes = op::dtypeBytes(problem_.types[static_cast<size_t>(value)].dtype);
  }
  for (int32_t index : group.nodes) {
    const op::Node& node = problem_.primitives.nodes[static_cast<size_t>(index)];
    const op::OperatorDef* def = op::findOperator(node.op);
    if (def == nullptr || def->kind == op::OperatorKind::kConstant) continue;
    if (def->kind == op::OperatorKind::kContraction) {
      auto [n, k] = extents(node.operands[1]);
      shape.columns = n;
      shape.depth = k;
      shape.leftBytes = bytesOf(node.operands[0]);
      shape.weightBytes = bytesOf(node.operands[1]);
      continue;
    }
    shape.arithmetic += 1;
    if (def->kind == op::OperatorKind::kReduction) {
      shape.reductions += 1;
      auto [rows, columns] = extents(node.operands[0]);
      shape.rows = std::max(shape.rows, rows);
      shape.columns = std::max(shape.columns, columns);
    }
  }
  return shape;
}

double Prior::waves(double tiles) const {
  return ceilDiv(tiles, target_.cores);
}

/// Tiles are handed out whole: with fewer tiles than cores, or a last wave half empty, part of the machine's bandwidth
/// lies idle (one core draws at most its share and a half).
double Prior::memoryNs(double bytes, double tiles) const {
  double busy = tiles / (waves(tiles) * target_.cores);
  double share = std::min(1.0, 1.5 * busy);
  return bytes / (copyBytesPerSecond_ * share) * 1e9;
}

double Prior::mapNs(const KernelSchedule& s, const KernelShape& shape) const {
  double tileRows = std::min<double>(s.tileRows, shape.rows),
         tileColumns = std::min<double>(s.tileColumns, shape.columns);
  double tiles = ceilDiv(shape.rows, tileRows) * ceilDiv(shape.columns, tileColumns);
  // A tail narrower than a vector costs as much as a whole one, a tail narrower than the unrolled step a step of its
  // own.
  double vectors = ceilDiv(tileColumns, s.vector), steps = ceilDiv(vectors, s.unroll);
  double perVector =
      std::max({shape.inputs / kLoadsPerCycle, shape.arithmetic / kFmaPerCycle, shape.outputs / kStoresPerCycle});
  double live = s.unroll * (shape.inputs + 1);
  double spill = live > target_.vectorRegisters ? 1 + 0.5 * (live / target_.vectorRegisters - 1) : 1;
  double lines = s.prefetch > 0 ? tileColumns * shape.elementBytes / kLineBytes * shape.inputs : 0;
  double tileCycles =
      kTileCycles + tileRows * (vectors * perVector * spill + steps * kLoopCycles + lines * kPrefetchCycles + 4);
  double computeNs = waves(tiles) * tileCycles / kGhz;
  // A plain store reads the line it writes; a streaming store does not, but sends the line out to memory even where the
  // caches could have kept it for the next kernel.
  double caches = static_cast<double>(target_.l2Bytes) * target_.cores + static_cast<double>(target_.l3Bytes);
  bool large = shape.inputBytes + shape.outputBytes > caches;
  double stored = shape.outputBytes * (s.streamStores != 0 ? (large ? 1.0 : 1.5) : (large ? 2.0 : 1.0));
  return kLaunchNs + overlapped(computeNs, memoryNs(shape.inputBytes + stored, tiles));
}

double Prior::rowNs(const KernelSchedule& s, const KernelShape& shape) const {
  double tileRows = std::min<double>(s.tileRows, shape.rows);
  double tiles = ceilDiv(shape.rows, tileRows);
  double together = std::min<double>(s.registerRows, tileRows);
  double groups = ceilDiv(tileRows, together);
  double vectors = ceilDiv(shape.columns, s.vector), steps = ceilDiv(vectors, s.unroll);
  double passes = shape.reductions + (shape.outputBytes > 0 ? 1 : 0);
  double arithmetic = shape.arithmetic / std::max(1.0, passes);
  // One pass over `together` rows: operands shared by the rows (weights) are loaded once for all of them.
  double loads = (together + 0.5 * std::max(0.0, shape.inputs - 1)) / kLoadsPerCycle;
  double perStep = std::max(
      {s.unroll * loads, s.unroll * together * arithmetic / kFmaPerCycle, shape.reductions > 0 ? kFmaLatency : 0.0});
  double live = s.unroll * (together + shape.inputs);
  double spill = live > target_.vectorRegisters ? 1 + 0.5 * (live / target_.vectorRegisters - 1) : 1;
  double lines = s.prefetch > 0 ? shape.columns * shape.elementBytes / kLineBytes * together : 0;
  double passCycles = steps * (perStep * spill + kLoopCycles) + lines * kPrefetchCycles;
  double folds = shape.reductions * together * lanesLog2(s) * 3 + together * (s.unroll - 1) / kFmaPerCycle;
  // Passes after the first find the rows in L1, or fetch them from L2 again.
  double rowBytes = together * shape.columns * shape.elementBytes;
  double again =
      rowBytes > 0.75 * static_cast<double>(target_.l1Bytes) ? (passes - 1) * rowBytes / kL2BytesPerCycle : 0;
  double tileCycles = kTileCycles + groups * (passes * passCycles + folds + again);
  double caches = static_cast<double>(target_.l2Bytes) * target_.cores + static_cast<double>(target_.l3Bytes);
  bool large = shape.inputBytes + shape.outputBytes > caches;
  double stored = shape.outputBytes * (s.streamStores != 0 ? (large ? 1.0 : 1.5) : (large ? 2.0 : 1.0));
  return kLaunchNs + overlapped(waves(tiles) * tileCycles / kGhz, memoryNs(shape.inputBytes + stored, tiles));
}

double Prior::contractionNs(const KernelSchedule& s, const KernelShape& shape) const {
  double m = shape.rows, n = shape.columns, k = shape.depth;
  double tileRows = std::min<double>(s.tileRows, m), tileColumns = std::min<double>(s.tileColumns, n);
  double rowTiles = ceilDiv(m, tileRows), columnTiles = ceilDiv(n, tileColumns), tiles = rowTiles * columnTiles;
  double rr = s.registerRows, rc = s.registerColumns;
  double rowBlocks = ceilDiv(tileRows, rr), columnBlocks = ceilDiv(tileColumns, rc);
  double blockK = s.blockK > 0 ? std::min<double>(s.blockK, k) : k, depthBlocks = ceilDiv(k, blockK);

  // One vector step along K of one register block: rr * rc multiply-adds, rr + rc loads, and the chain through each
  // accumulator (unroll of them per output). Rows past the end of a block are computed by nobody.
  double usedRows = tileRows / rowBlocks, usedColumns = tileColumns / columnBlocks;
  double outputs = usedRows * usedColumns;
  double step = std::max({outputs / kFmaPerCycle, (usedRows + usedColumns) / kLoadsPerCycle, kFmaLatency / s.unroll});
  double live = rr * rc * s.unroll + rr + 1;
  double spill = live > target_.vectorRegisters ? live / target_.vectorRegisters : 1;
  double steps = ceilDiv(blockK, s.vector);
  double loops = ceilDiv(blockK, static_cast<double>(s.vector) * s.unroll);
  double prefetches = s.prefetch > 0 ? blockK * shape.elementBytes / kLineBytes * usedColumns * kPrefetchCycles : 0;
  // Folding the lanes of every accumulator at the end of a block of K, and the partial sums that wait in memory.
  double fold =
      outputs * (lanesLog2(s) * 1.5 + (s.unroll - 1) / kFmaPerCycle) + (depthBlocks > 1 ? outputs * 2 : 0) + 10;
  double compute =
      rowBlocks * columnBlocks * depthBlocks * (steps * step * spill + loops * kLoopCycles + prefetches + fold);
  compute += tileRows * tileColumns / s.vector * shape.arithmetic / kFmaPerCycle;  // the epilogue

  // Inside a tile one operand is streamed again for each block of the other: from L1 or L2 where its part of this
  // block of K fits, else from memory.
  double aStrip = tileRows * blockK * shape.elementBytes, wStrip = tileColumns * blockK * shape.elementBytes;
  double l1 = 0.75 * static_cast<double>(target_.l1Bytes), l2 = 0.75 * static_cast<double>(target_.l2Bytes);
  double again =
      s.rowsOutside != 0 ? (rowBlocks - 1) * wStrip * depthBlocks : (columnBlocks - 1) * aStrip * depthBlocks;
  double strip = s.rowsOutside != 0 ? wStrip : aStrip;
  double l2Cycles = strip > l1 ? again / kL2BytesPerCycle : 0;
  double spilledBytes = strip > l2 ? again * tiles : 0;

  // Every tile reads its rows of A and its columns of W; what the last level holds comes from memory only once,
  // and faster after that.
  double l3 = 0.75 * static_cast<double>(target_.l3Bytes);
  double wPasses = shape.weightBytes > l3 ? rowTiles : 1 + (rowTiles - 1) / kLastLevelFactor;
  double aPasses = shape.leftBytes > l3 ? columnTiles : 1 + (columnTiles - 1) / kLastLevelFactor;
  double other = std::max(0.0, shape.inputBytes - shape.leftBytes - shape.weightBytes) + shape.outputBytes;
  double bytes = shape.weightBytes * wPasses + shape.leftBytes * aPasses + other + spilledBytes;
  double tileNs = (kTileCycles + compute + l2Cycles) / kGhz;
  return kLaunchNs + overlapped(waves(tiles) * tileNs, memoryNs(bytes, tiles));
}

double Prior::predictNs(const schedule::PlanGenome& genome, const std::vector<int64_t>& symbolValues) const {
  Result<std::vector<schedule::Group>> groups = problem_.groups(genome.fuse);
  if (!groups || groups->size() != genome.kernels.size()) return std::numeric_limits<double>::infinity();
  double ns = 0;
  for (size_t i = 0; i < groups->size(); ++i) {
    const KernelSchedule& kernel = genome.kernels[i];
    KernelShape shape = shapeOf((*groups)[i], symbolValues);
    if (kernel.family == schedule::DeviceFamily::kCuda) {
      ns += cudaKernelNs(kernel, shape, target_, copyBytesPerSecond_);
      continue;
    }
    switch ((*groups)[i].generator) {
      case Generator::kMap:
        ns += mapNs(kernel, shape);
        break;
      case Generator::kRow:
        ns += rowNs(kernel, shape);
        break;
      case Generator::kContraction:
        ns += contractionNs(kernel, shape);
        break;
    }
  }
  return ns;
}

double Prior::score(const schedule::PlanGenome& genome) const {
  double logs = 0;
  for (const std::vector<int64_t>& point : points_) logs += std::log(predictNs(genome, point));
  return std::exp(logs / static_cast<double>(points_.size()));
}

PriorProposer::PriorProposer(const schedule::Problem& problem, const schedule::Target& target,
                             double copyBytesPerSecond, uint64_t seed, int pool) {
  Prior prior(problem, target, copyBytesPerSecond);
  std::set<Digest> drawn;
  auto add = [&](schedule::PlanGenome genome) {
    Digest digest = genome.digest();
    if (!drawn.insert(digest).second) return;
    double ns = prior.score(genome);
    ranked_.push_back({std::move(genome), digest, ns});
  };
  schedule::PlanGenome base = schedule::defaultGenome(problem, target);
  seen_.insert(base.digest());
  drawn.insert(base.digest());
  for (size_t bit = 0; bit < base.fuse.size(); ++bit) {
    schedule::PlanGenome neighbour = base;
    neighbour.fuse[bit] ^= 1;
    add(schedule::repair(std::move(neighbour), problem, target));
  }
  for (size_t kernel = 0; kernel < base.kernels.size(); ++kernel) {
    for (const schedule::ParameterDef& def : schedule::parameterTable()) {
      if (!def.activeFor(base.kernels[kernel])) continue;
      for (int32_t value : def.values) {
        schedule::PlanGenome neighbour = base;
        neighbour.kernels[kernel].set(def.id, value);
        add(schedule::repair(std::move(neighbour), problem, target));
      }
    }
  }
  Random random(seed);
  for (int i = 0; i < pool; ++i) add(schedule::randomGenome(problem, target, random));
  std::stable_sort(ranked_.begin(), ranked_.end(), [](const Ranked& a, const Ranked& b) { return a.ns < b.ns; });
}

std::vector<Proposal> PriorProposer::propose(int n) {
  // Two genomes one step apart mostly cost the same: a batch of those would tell little. The best of each niche goes
  // first; when niches run out the rest follow in their order.
  std::vector<Proposal> proposals;
  std::vector<Ranked> left;
  auto differs = [&](const schedule::PlanGenome& genome) {
    return std::all_of(proposals.begin(), proposals.end(),
                       [&](const Proposal& p) { return distance(p.genome, genome) > Archive::kNicheRadius; });
  };
  auto take = [&](auto&& accept) {
    left.clear();
    left.reserve(ranked_.size());
    for (Ranked& r : ranked_) {
      if (seen_.contains(r.digest)) continue;
      if (static_cast<int>(proposals.size()) < n && accept(r.genome)) {
        seen_.insert(r.digest);
        proposals.push_back({std::move(r.genome), "prior"});
      } else {
        left.push_back(std::move(r));
      }
    }
    ranked_.swap(left);
  };
  take(differs);
  if (static_cast<int>(proposals.size()) < n) take([](const schedule::PlanGenome&) { return true; });
  return proposals;
}

void PriorProposer::observe(std::span<const Feedback> feedback) {
  for (const Feedback& f : feedback) seen_.insert(f.genome.digest());
}

}  // namespace ktune::search
