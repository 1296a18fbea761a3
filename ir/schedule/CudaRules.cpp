// What is allowed on cuda, and the schedule that a careful programmer would write there without measuring.
#include <algorithm>
#include <bit>
#include <string>

#include "ir/schedule/Architecture.h"
#include "ir/schedule/KernelFacts.h"

namespace ktune::schedule {

namespace {

constexpr int32_t kDot = 0, kSimt = 1, kMma = 2;  // KernelSchedule::instruction
constexpr int32_t kWarp = 32;
constexpr int32_t kMostTileRegisters = 160;  // Of 255; addresses and temporaries need the others.
constexpr int32_t kMostAccumulators = 128;
constexpr int64_t kPlainSharedBytes = 48128;  // What a block gets without asking for more, less what padding takes.
constexpr int32_t kMostDotRows = 16;

std::string number(int64_t n) {
  return std::to_string(n);
}

std::span<const int32_t> valuesOf(Parameter p) {
  return parameterTable()[static_cast<size_t>(p)].values;
}

/// The smallest listed value that covers EXTENT, else the largest: beyond it threads are idle.
int32_t covering(Parameter p, int64_t extent) {
  const std::span<const int32_t> values = valuesOf(p);
  for (int32_t v : values) {
    if (v >= extent) return v;
  }
  return values.back();
}

int32_t wordsOf(const KernelFacts& f) {
  return f.elementBytes > 4 ? 2 : 1;
}

std::string only(int32_t value, int32_t wanted, const char* why) {
  return value == wanted ? "" : "must be " + number(wanted) + ": " + why;
}

// --- map and row -----------------------------------------------------------------------------------------------------

/// Registers of one thread's part of a tile: every input and the result.
int64_t tileRegisters(int64_t elements, const KernelFacts& f) {
  return elements * (f.inputs + 1) * wordsOf(f);
}

std::string columnThreadsRule(const KernelSchedule& s, const KernelFacts& f) {
  if (s.columnThreads > s.threads) return "exceeds threads = " + number(s.threads);
  if (s.columnThreads * 256 < s.threads) return "leaves more than 256 rows to one block";
  if (f.generator == Generator::kMap && f.rows == 1) return only(s.columnThreads, s.threads, "there is one row");
  const int32_t most = std::max({covering(Parameter::columnThreads, f.columns), s.threads / 256, 1});
  return s.columnThreads > most ? "exceeds the " + number(f.columns) + " columns" : "";
}

std::string lanesRule(const KernelSchedule& s, const KernelFacts& f) {
  if (f.generator == Generator::kContraction) {
    if (s.instruction == kMma) return only(s.lanes, 16 / f.operandBytes, "stages are filled 16 bytes at a time");
    if (s.lanes == 1) return {};
    if (f.depth % s.lanes != 0) return "does not divide the reduced extent " + number(f.depth);
    return s.lanes * f.operandBytes > 16 ? "is more than 16 bytes" : "";
  }
  if (s.lanes == 1) return {};
  if (f.laneColumns % s.lanes != 0) return "does not divide rows of " + number(f.laneColumns) + " elements";
  if (s.lanes * f.memoryBytes > 32)
    return "takes " + number(int64_t{s.lanes} * f.memoryBytes) + " bytes; the most is 32";
  if (int64_t{s.columnThreads} * s.lanes / 2 >= f.columns) return "leaves half of the threads idle";
  return tileRegisters(s.lanes, f) > kMostTileRegisters ? "needs too many registers" : "";
}

std::string stepsRule(const KernelSchedule& s, const KernelFacts& f) {
  if (s.steps == 1) return {};
  const int64_t chunk = int64_t{s.columnThreads} * s.lanes * s.steps;
  if (chunk / 2 >= f.columns)
    return "times lanes and columnThreads = " + number(chunk) + " exceeds the " + number(f.columns) + " columns";
  const int64_t registers = tileRegisters(int64_t{s.lanes} * s.steps, f);
  return registers > kMostTileRegisters
             ? "needs " + number(registers) + " registers; the limit is " + number(kMostTileRegisters)
             : "";
}

std::string tileRowsRule(const KernelSchedule& s, const KernelFacts& f) {
  const int32_t rowThreads = s.threads / std::max(1, s.columnThreads);
  if (rowThreads < 1 || s.blockRows % rowThreads != 0)
    return "is no multiple of the " + number(rowThreads) + " rows that the threads take";
  if (s.blockRows == rowThreads) return {};
  if (s.blockRows / 2 >= f.rows) return "exceeds the " + number(f.rows) + " rows";
  const int64_t registers = tileRegisters(int64_t{s.blockRows} / rowThreads * s.lanes * s.steps, f);
  return registers > kMostTileRegisters
             ? "needs " + number(registers) + " registers; the limit is " + number(kMostTileRegisters)
             : "";
}

// --- contraction -----------------------------------------------------------------------------------------------------

int64_t sharedBytes(const KernelSchedule& s, const KernelFacts& f, int32_t stages) {
  const int64_t element = s.instruction == kMma ? f.operandBytes : f.elementBytes;
  return (int64_t{s.blockRows} + s.blockColumns) * s.stageDepth * element * stages;
}
int64_t sharedLimit(const Target& t) {
  const Architecture* architecture = findArchitecture(t.architecture);
  return architecture != nullptr ? architecture->sharedBytes : kPlainSharedBytes;
}

bool mmaWarpsFit(int32_t rows, int32_t columns, int32_t warpRows, int32_t warpColumns) {
  const int32_t warps = warpRows * warpColumns;
  return rows % (16 * warpRows) == 0 && columns % (16 * warpColumns) == 0 && warps <= 16 &&
         rows * columns / (kWarp * warps) <= kMostAccumulators;
}
bool anyWarpColumns(int32_t rows, int32_t columns, int32_t warpRows) {
  const std::span<const int32_t> all = valuesOf(Parameter::warpColumns);
  return std::any_of(all.begin(), all.end(), [&](int32_t w) { return mmaWarpsFit(rows, columns, warpRows, w); });
}
bool anyWarps(int32_t rows, int32_t columns) {
  const std::span<const int32_t> all = valuesOf(Parameter::warpRows);
  return std::any_of(all.begin(), all.end(), [&](int32_t w) { return anyWarpColumns(rows, columns, w); });
}

bool simtThreadsFit(int32_t rows, int32_t columns, int32_t threadRows, int32_t threadColumns) {
  if (rows % threadRows != 0 || columns % threadColumns != 0) return false;
  const int32_t threads = rows / threadRows * (columns / threadColumns);
  return threads % kWarp == 0 && threads >= 64 && threads <= 512;
}
bool anyThreadColumns(int32_t rows, int32_t columns, int32_t threadRows) {
  const std::span<const int32_t> all = valuesOf(Parameter::threadColumns);
  return std::any_of(all.begin(), all.end(), [&](int32_t c) { return simtThreadsFit(rows, columns, threadRows, c); });
}
bool anyThreads(int32_t rows, int32_t columns) {
  const std::span<const int32_t> all = valuesOf(Parameter::threadRows);
  return std::any_of(all.begin(), all.end(), [&](int32_t r) { return anyThreadColumns(rows, columns, r); });
}

/// Columns that one warp of kDot may hold: partial sums of every row and column live in registers.
int32_t mostDotColumns(const KernelSchedule& s, const KernelFacts& f) {
  return std::clamp(32 / (std::max(1, s.blockRows) * wordsOf(f)), 1, 8);
}

std::string instructionRule(const KernelSchedule& s, const KernelFacts& f) {
  if (f.batchInvariant)
    return only(s.instruction, f.tensorCores ? kMma : kSimt, "the description asks for batch_invariant");
  if (s.instruction == kDot && f.rows > kMostDotRows) return "0 is for at most " + number(kMostDotRows) + " rows";
  if (s.instruction == kMma) {
    if (!f.tensorCores) return "2 needs operands of f16 or bf16 that are accumulated in f32";
    if (f.operandAlignment % 16 != 0 || f.depth % 8 != 0) return "2 needs rows of operands aligned to 16 bytes";
    if (f.laneColumns % 2 != 0) return "2 needs an even number of columns";
  }
  return {};
}

/// Under batch_invariant tensor cores may be asked for where they cannot be used.
bool mmaPossible(const KernelFacts& f) {
  return f.tensorCores && f.operandAlignment % 16 == 0 && f.depth % 8 == 0 && f.laneColumns % 2 == 0;
}

std::string blockRowsRule(const KernelSchedule& s, const KernelFacts& f) {
  if (s.instruction == kDot)
    return only(s.blockRows, covering(Parameter::blockRows, f.rows), "every block takes all rows");
  const int32_t least = s.instruction == kMma ? 16 : 8, most = s.instruction == kMma ? 256 : 128;
  if (s.blockRows < least || s.blockRows > most) return "must be from " + number(least) + " to " + number(most);
  return s.blockRows > least && s.blockRows / 2 >= f.rows ? "exceeds the " + number(f.rows) + " rows" : "";
}

std::string blockColumnsRule(const KernelSchedule& s, const KernelFacts& f) {
  if (s.instruction == kDot) {
    const int32_t most = 8 * mostDotColumns(s, f);
    if (s.blockColumns > most || s.blockColumns == 96 || s.blockColumns == 192)
      return "must be a power of two of at most " + number(most);
    return s.blockColumns > 1 && s.blockColumns / 2 >= f.columns ? "exceeds the " + number(f.columns) + " columns" : "";
  }
  const bool mma = s.instruction == kMma;
  const int32_t least = mma ? 16 : 32;
  if (s.blockColumns < least) return "must be at least " + number(least);
  if (mma ? !anyWarps(s.blockRows, s.blockColumns) : !anyThreads(s.blockRows, s.blockColumns))
    return "makes a tile that no number of threads fits";
  return s.blockColumns > least && s.blockColumns / 2 >= f.columns ? "exceeds the " + number(f.columns) + " columns"
                                                                   : "";
}

std::string warpRowsRule(const KernelSchedule& s) {
  if (s.instruction != kMma) return only(s.warpRows, 1, "only instruction 2 has warps along rows");
  return anyWarpColumns(s.blockRows, s.blockColumns, s.warpRows)
             ? ""
             : "does not fit a tile of " + number(s.blockRows) + " rows";
}

std::string warpColumnsRule(const KernelSchedule& s, const KernelFacts& f) {
  if (s.instruction == kSimt) return only(s.warpColumns, 1, "instruction 1 has no warps along columns");
  if (s.instruction == kMma)
    return mmaWarpsFit(s.blockRows, s.blockColumns, s.warpRows, s.warpColumns)
               ? ""
               : "does not fit a tile of " + number(s.blockRows) + " x " + number(s.blockColumns);
  if (s.warpColumns > s.blockColumns || s.blockColumns % s.warpColumns != 0)
    return "does not divide blockColumns = " + number(s.blockColumns);
  return s.blockColumns / s.warpColumns > mostDotColumns(s, f) ? "leaves too many columns to one warp" : "";
}

std::string warpDepthRule(const KernelSchedule& s, const KernelFacts& f) {
  if (s.instruction != kDot) return only(s.warpDepth, 1, "only instruction 0 has warps along the reduced dim");
  if (s.warpDepth == 1) return {};
  if (s.warpDepth * s.warpColumns > 32) return "makes more than 32 warps";
  return int64_t{s.warpDepth} * kWarp > f.depth ? "exceeds the reduced extent " + number(f.depth) : "";
}

std::string threadRowsRule(const KernelSchedule& s) {
  if (s.instruction != kSimt) return only(s.threadRows, 1, "only instruction 1 has register blocks of rows");
  return anyThreadColumns(s.blockRows, s.blockColumns, s.threadRows)
             ? ""
             : "does not fit a tile of " + number(s.blockRows) + " rows";
}

std::string threadColumnsRule(const KernelSchedule& s) {
  if (s.instruction == kMma) return only(s.threadColumns, 1, "instruction 2 has its own register blocks");
  if (s.instruction == kDot)
    return only(s.threadColumns, s.blockColumns / std::max(1, s.warpColumns), "a warp holds its share of blockColumns");
  return simtThreadsFit(s.blockRows, s.blockColumns, s.threadRows, s.threadColumns)
             ? ""
             : "does not fit a tile of " + number(s.blockRows) + " x " + number(s.blockColumns);
}

std::string stageDepthRule(const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  if (s.instruction == kDot) {
    // Loads in flight per lane: the columns times the groups of lanes.
    if (s.stageDepth % s.lanes != 0) return "is no multiple of lanes = " + number(s.lanes);
    if (s.stageDepth == std::max(8, s.lanes)) return {};
    const int32_t groups = s.stageDepth / s.lanes;
    if (groups > 8 || groups * (s.threadColumns + s.blockRows) > 24) return "needs too many registers";
    return int64_t{s.stageDepth} * kWarp * s.warpDepth > f.depth ? "exceeds the reduced extent " + number(f.depth) : "";
  }
  const bool mma = s.instruction == kMma;
  const int32_t least = mma ? 16 : 8;
  if (s.stageDepth < least) return "must be at least " + number(least);
  if (s.stageDepth == least) return {};
  if (!mma && s.stageDepth > 32) return "must be at most 32";
  // Every copy is an instruction of its own: a warp that fills a wide tile alone issues little else, and its kernel
  // takes the compiler seconds.
  constexpr int32_t kMostCopies = 16;
  const int32_t copies = (s.blockRows + s.blockColumns) * s.stageDepth / (8 * kWarp * s.warpRows * s.warpColumns);
  if (mma && copies > kMostCopies)
    return "leaves " + number(copies) + " copies of a stage to each thread; the limit is " + number(kMostCopies);
  const int64_t limit = mma ? sharedLimit(t) : kPlainSharedBytes;
  if (sharedBytes(s, f, mma ? 2 : 1) > limit)
    return "needs " + number(sharedBytes(s, f, mma ? 2 : 1)) + " bytes of shared memory; the limit is " + number(limit);
  return s.stageDepth / 2 >= f.depth ? "exceeds the reduced extent " + number(f.depth) : "";
}

std::string stagesRule(const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  if (s.instruction != kMma) return only(s.stages, 1, "only instruction 2 fills stages ahead");
  if (s.stages < 2) return "must be at least 2";
  if (s.stages == 2) return {};
  if (sharedBytes(s, f, s.stages) > sharedLimit(t))
    return "needs " + number(sharedBytes(s, f, s.stages)) + " bytes of shared memory; the limit is " +
           number(sharedLimit(t));
  return int64_t{s.stages - 1} * s.stageDepth >= f.depth ? "exceeds the reduced extent " + number(f.depth) : "";
}

std::string splitKRule(const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  if (s.splitK == 1) return {};
  if (f.batchInvariant) return "must be 1: the description asks for batch_invariant";
  if (s.instruction == kDot) return "must be 1: instruction 0 shares the reduced dim inside a block";
  if (int64_t{s.splitK} * s.stageDepth * 2 > f.depth) return "leaves less than two stages to a part";
  const int64_t tiles = (f.rows + s.blockRows - 1) / s.blockRows * ((f.columns + s.blockColumns - 1) / s.blockColumns);
  return tiles * s.splitK > int64_t{8} * t.cores ? "adds blocks where there are enough" : "";
}

std::string rasterColumnsRule(const KernelSchedule& s, const KernelFacts& f) {
  if (s.rasterColumns == 1) return {};
  if (s.instruction == kDot) return "must be 1: there is one row of tiles";
  if (f.rows <= s.blockRows) return "must be 1: there is one row of tiles";
  return int64_t{s.rasterColumns} * s.blockColumns > f.columns ? "exceeds the " + number(f.columns) + " columns" : "";
}

/// Under batch_invariant the order of a row's sums must not depend on the bucket: everything that a careful programmer
/// would choose by the columns alone.
KernelSchedule invariantRow(const KernelFacts& f, const Target& t) {
  KernelFacts free = f;
  free.batchInvariant = false;
  free.rows = free.typicalRows = int64_t{1} << 20;
  return defaultCudaSchedule(free, t);
}

}  // namespace

std::string cudaObjection(Parameter p, const KernelSchedule& s, const KernelFacts& f, const Target& t) {
  if (f.batchInvariant && f.generator == Generator::kRow &&
      (p == Parameter::threads || p == Parameter::columnThreads || p == Parameter::lanes || p == Parameter::steps))
    return only(s.get(p), invariantRow(f, t).get(p), "the description asks for batch_invariant");
  if (f.batchInvariant && f.generator == Generator::kContraction) {
    if (p == Parameter::instruction)
      return only(s.instruction, mmaPossible(f) ? kMma : kSimt, "the description asks for batch_invariant");
    // Sums run along the reduced dim in steps of 16 (2) or one by one (1), whatever the stages are.
  }
  switch (p) {
    case Parameter::columnThreads:
      return columnThreadsRule(s, f);
    case Parameter::lanes:
      return lanesRule(s, f);
    case Parameter::steps:
      return stepsRule(s, f);
    case Parameter::instruction:
      return instructionRule(s, f);
    case Parameter::blockRows:
      return f.generator == Generator::kContraction ? blockRowsRule(s, f) : tileRowsRule(s, f);
    case Parameter::blockColumns:
      return blockColumnsRule(s, f);
    case Parameter::warpRows:
      return warpRowsRule(s);
    case Parameter::warpColumns:
      return warpColumnsRule(s, f);
    case Parameter::warpDepth:
      return warpDepthRule(s, f);
    case Parameter::threadRows:
      return threadRowsRule(s);
    case Parameter::threadColumns:
      return threadColumnsRule(s);
    case Parameter::stageDepth:
      return stageDepthRule(s, f, t);
    case Parameter::stages:
      return stagesRule(s, f, t);
    case Parameter::splitK:
      return splitKRule(s, f, t);
    case Parameter::rasterColumns:
      return rasterColumnsRule(s, f);
    default:
      return {};
  }
}

KernelSchedule defaultCudaSchedule(const KernelFacts& f, const Target& t) {
  KernelSchedule s;
  s.generator = f.generator;
  s.family = DeviceFamily::kCuda;
  // Sixteen bytes an access, as wide as one row allows.
  s.lanes = 16 / std::clamp(f.generator == Generator::kContraction ? f.operandBytes : f.memoryBytes, 1, 16);
  if (f.generator != Generator::kContraction) {
    while (s.lanes > 1 && f.laneColumns % s.lanes != 0) s.lanes /= 2;
    const int64_t vectors = (f.columns + s.lanes - 1) / s.lanes;
    // Rows of a row kernel are held whole where registers allow; a map needs enough blocks for every multiprocessor.
    const bool row = f.generator == Generator::kRow;
    s.threads = !row && f.rows * vectors < int64_t{256} * t.cores ? 128 : 256;
    if (row && vectors > 1024) s.threads = vectors > 4096 ? 1024 : 512;
    s.columnThreads = f.rows == 1 && !row ? s.threads
                                          : std::clamp(covering(Parameter::columnThreads, vectors),
                                                       std::max(1, s.threads / 256), s.threads);
    if (row) {
      for (int32_t steps : valuesOf(Parameter::steps)) {
        s.steps = steps;
        if (int64_t{s.columnThreads} * s.lanes * steps >= f.columns) break;
      }
    } else {
      s.steps = f.rows * vectors >= int64_t{512} * 8 * t.cores ? 2 : 1;
    }
    s.blockRows = s.threads / s.columnThreads;
    s.streamStores = s.streamLoads = 0;
    // Few rows wait for memory, many keep it busy.
    s.loadFirst = f.typicalRows <= int64_t{4} * t.cores ? 1 : 0;
    return settle(s, f, t);
  }
  const bool mma =
      f.batchInvariant ? mmaPossible(f) : instructionRule({.generator = f.generator, .instruction = kMma}, f).empty();
  s.instruction = !f.batchInvariant && f.rows <= 2 ? kDot : mma ? kMma : kSimt;
  if (s.instruction == kDot) {
    s.blockRows = covering(Parameter::blockRows, f.rows);
    s.blockColumns = 4;
    s.warpColumns = 2;
    s.threadColumns = 2;
    s.warpDepth = 2;
    s.stageDepth = 4 * s.lanes;
    s.stages = 1;
    return settle(s, f, t);
  }
  s.blockRows = std::min(covering(Parameter::blockRows, f.typicalRows), 128);
  s.blockColumns = mma ? 128 : 64;
  // Narrower tiles until every multiprocessor has one.
  auto tiles = [&] {
    return (f.typicalRows + s.blockRows - 1) / s.blockRows * ((f.columns + s.blockColumns - 1) / s.blockColumns);
  };
  while (s.blockColumns > 32 && tiles() < t.cores) s.blockColumns /= 2;
  if (mma) {
    s.warpRows = s.blockRows >= 64 ? 2 : 1;
    s.warpColumns = s.blockColumns >= 64 ? 4 : 2;
    s.stageDepth = 64;
    s.stages = 4;
  } else {
    s.threadRows = s.blockRows >= 64 ? 8 : s.blockRows >= 32 ? 4 : 2;
    s.threadColumns = s.blockColumns >= 64 ? 4 : 2;
    s.stageDepth = 16;
    s.stages = 1;
  }
  s.rasterColumns = tiles() > 4 * t.cores ? 8 : 1;
  while (s.splitK < 16 && tiles() * s.splitK * 2 <= t.cores) s.splitK *= 2;
  return settle(s, f, t);
}

}  // namespace ktune::schedule
