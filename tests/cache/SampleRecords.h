// Records and plans for the cache's tests.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cache/format/Record.h"
#include "ir/op/Builder.h"

namespace ktune::cache::testing {

/// A plan that uses every kind of parameter.
inline Plan samplePlan() {
  Plan plan;
  Artefact artefact;
  artefact.kind = ArtefactKind::kFake;
  artefact.bytes = std::string(
      "\x7f"
      "ELF\0not really",
      15);
  artefact.digest = digestOf(artefact.bytes);
  plan.artefacts = {artefact};
  Launch launch;
  launch.symbol = "ktune_rms_norm_f32_m1_01234567";
  TensorMapParameter map;
  map.tensor = 1;
  map.extents = {{4096, -1, 1}, {1, 0, 1}};
  map.stridesBytes = {{16384, -1, 1}};
  map.box = {64, 8};
  map.swizzle = 3;
  launch.parameters = {PointerParameter{2}, ScalarParameter{std::string("\0\0\x80?", 4)}, SymbolParameter{0},
                       WorkspaceParameter{0}, map};
  launch.grid = {Extent{1, 0, 8}, Extent{4096, -1, 512}, Extent{}};
  launch.block = {128, 1, 1};
  launch.dynamicSharedBytes = 1024;
  launch.attributes = {{"maxRegisters", 128}};
  plan.launches = {launch};
  plan.workspaces = {{WorkspaceKind::kScratch, 256, {16384, 0, 1}}};
  plan.preconditions = {{Precondition::Kind::kAlignment, 0, 64, 0}, {Precondition::Kind::kSymbolRange, 0, 1, 16}};
  plan.tensorCount = 3;
  plan.symbolCount = 1;
  plan.safeWithDependentLaunch = true;
  return plan;
}

inline schedule::PlanGenome sampleGenome() {
  schedule::KernelSchedule row;
  row.generator = schedule::Generator::kRow;
  row.unroll = 4;
  row.tileRows = 8;
  return {{1, 1, 0}, {row, schedule::KernelSchedule()}};
}

inline Evidence sampleEvidence() {
  Evidence e;
  e.seed = 0x1234567890abcdef;
  e.points = {{{1}, 1500.5, 1600.25, 40, 32768, 16384}, {{16}, 9000, 9900, 40, 524288, 262144}};
  e.ratio = 0.92;
  e.ratioLow = 0.90;
  e.ratioHigh = 0.95;
  e.candidates = 31;
  e.measured = 20;
  e.rejections = {{"compile", 3}, {"wrong", 1}};
  e.checks = {"scoring points", "held-out points", "guard pages"};
  e.worstErrorShare = 0.125;
  e.planDigest = {1, 2};
  e.tuningSeconds = 12.5;
  e.copyBytesPerSecond = 1.5e10;
  e.unixTime = 1750000000;
  e.regime = "cold, rotating buffers, 2 threads";
  e.proposer = "evolution";
  e.clockMhz = 1980;
  e.powerWatts = 612.5;
  e.temperatureC = 54;
  e.throttle = "power cap";
  return e;
}

/// The record of one bucket of rms_norm over COLUMNS columns: what a store accepts. PADDING enlarges its artefact.
inline Record sampleRecord(int64_t columns = 4096, int32_t bucketIndex = 1, size_t padding = 0) {
  Result<op::Graph> graph = op::makeRmsNorm({"M", 1, 64, {1, 16, 64}}, 1, columns, 1e-6, op::DType::kF32);
  EXPECT_TRUE(graph.has_value());
  Record record;
  record.hardware = "fake;2 cores";
  record.canonical = op::canonicalBytes(*graph);
  record.key = op::keyOf(*graph, record.hardware);
  record.bucketIndex = bucketIndex;
  record.bucket = op::bucketsOf(*graph).at(static_cast<size_t>(bucketIndex));
  record.stamp = {"0.1.0", "LLVM 22.1.8", "Linux 6.1", "1"};
  record.decision = Decision::kTuned;
  record.genome = sampleGenome();
  record.plan = samplePlan();
  // Not compressible, so that it takes the room it says.
  uint64_t state = 88172645463325252u + static_cast<uint64_t>(columns);
  for (size_t i = 0; i < padding; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    record.plan.artefacts[0].bytes.push_back(static_cast<char>(state));
  }
  record.plan.artefacts[0].digest = digestOf(record.plan.artefacts[0].bytes);
  record.evidence = sampleEvidence();
  return record;
}

}  // namespace ktune::cache::testing
