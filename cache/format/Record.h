// A record: what the cache keeps for one bucket of one key. docs/record.md gives its bytes.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "cache/format/Plan.h"
#include "ir/op/Buckets.h"
#include "ir/op/Canonical.h"
#include "ir/schedule/Genome.h"

namespace ktune::cache {

/// What the record says the engine should do.
enum class Decision : uint8_t {
  kTuned = 0,        ///< The plan won significantly against the default.
  kDefault = 1,      ///< Nothing won significantly: the plan is the default schedule's.
  kUseFallback = 2,  ///< No kernel of ours was proven right (or beat the caller's own): there is no plan.
};
[[nodiscard]] std::string_view decisionName(Decision decision);

/// Which builds made the record; another stamp makes it stale, not lost.
struct Stamp {
  std::string ktune;     ///< Version of the generators and lowering.
  std::string compiler;  ///< "LLVM 22.1.8", "NVRTC 13.0".
  std::string driver;    ///< CUDA driver, or the kernel's name on cpu.
  std::string verifier;  ///< Version of the guard.
  bool operator==(const Stamp&) const = default;
};

/// Timing of one scoring point.
struct PointEvidence {
  std::vector<int64_t> symbolValues;
  double medianNs = 0;         ///< The winner's.
  double defaultMedianNs = 0;  ///< The default schedule's, same rounds.
  int64_t samples = 0;
  double bytes = 0, operations = 0;  ///< op::workOf at this point.
  bool operator==(const PointEvidence&) const = default;
};

/// Why a winner may be believed.
struct Evidence {
  uint64_t seed = 0;
  std::vector<PointEvidence> points;
  double ratio = 1;                    ///< Winner's time / default's, geometric mean over points, from the final duel.
  double ratioLow = 1, ratioHigh = 1;  ///< Bootstrap interval, corrected for the candidates tried.
  double confidence = 0.99;            ///< Of the interval, before correction.
  int64_t candidates = 0;              ///< Compiled or tried to.
  int64_t measured = 0;                ///< Timed at least once.
  std::map<std::string, int64_t> rejections;  ///< Reason class -> count.
  std::vector<std::string> checks;            ///< The guard's checks that the winner passed.
  double worstErrorShare = 0;                 ///< Largest |error| / bound seen, of at most 1.
  Digest planDigest;                          ///< Of the plan as loaded where it was timed.
  double tuningSeconds = 0;
  double copyBytesPerSecond =
      0;                 ///< Device copy rate (reads and writes counted) measured by the same worker; 0 unknown.
  int64_t unixTime = 0;  ///< When it was tuned.
  std::string regime;    ///< "cold, rotating buffers, 2 threads".
  std::string proposer;  ///< Who proposed the winner ("evolution", "default", "prior").
  // What the device said of itself right after the last timing; 0 and empty where it says nothing.
  double clockMhz = 0, powerWatts = 0, temperatureC = 0;
  std::string throttle;  ///< Why its clocks were held down ("power cap").
  bool operator==(const Evidence&) const = default;
};

struct Record {
  op::Key key;
  int32_t bucketIndex = 0;
  op::Bucket bucket;
  std::string canonical;  ///< op::canonicalBytes of the description.
  std::string hardware;   ///< The identity text that the key was made with.
  Stamp stamp;
  Decision decision = Decision::kDefault;
  schedule::PlanGenome genome;
  Plan plan;  ///< Empty when decision is kUseFallback.
  Evidence evidence;
  bool operator==(const Record&) const = default;

  /// Magic, version, payload length, payload, checksum.
  [[nodiscard]] std::string bytes() const;
  /// Reads this version and those before it, whose records lack what was added since: it has its default.
  /// Errors: kCorrupt (short, bad magic, checksum, undecodable); kUnsupported for a newer version.
  [[nodiscard]] static Result<Record> fromBytes(std::string_view bytes);
};

}  // namespace ktune::cache
