#include "search/Tuner.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/Log.h"
#include "search/Bandit.h"
#include "search/Budget.h"
#include "search/Evolution.h"
#include "search/Prior.h"
#include "search/Race.h"

namespace ktune::search {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
/// A sample lasts this, or one call where that is longer. Shorter ones measure the timer and the pool's wake-up.
constexpr double kSampleSeconds = 1e-3;
constexpr double kBatchCompileSeconds = 0.4;  ///< Long enough to amortise a phase change, short enough to learn often.
constexpr double kMostPerWorker = 16;         ///< Candidates of one batch: evolution learns by generations.
constexpr int64_t kGenerationZero = 32;       ///< Candidates that come from the prior alone, before anybody has learnt.
constexpr size_t kFinalists = 8;              ///< Kept loaded for the finals.
constexpr int kProofs = 3;                    ///< Finalists that may fail their proof before the default stays.
constexpr int64_t kFallbackAfter = 8;         ///< Candidates to try before a wrong default means "use the fallback".
constexpr int64_t kDefaultId = 0;

std::string secondsText(double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3f", seconds);
  return text;
}

/// What every unit shares.
struct Session {
  const TunerOptions& options;
  Compiler& compiler;
  Measurer& measurer;
  Counters& counters;
  BudgetKeeper& keeper;
  size_t unitCount = 0;
  double secondsPerCompile = 0;  ///< Wall time per candidate, all workers busy; 0 unknown.

  [[nodiscard]] bool cancelled() const { return options.cancellation != nullptr && options.cancellation->raised(); }
};

struct Candidate {
  int64_t id = 0;
  schedule::PlanGenome genome;
  std::string origin;
  int arm = -1;  ///< The proposer, for the bandit; -1 for the incumbent.
  cache::Plan plan;
  Digest planDigest;
  double logScore = kInfinity;
  double lastNs = 0;
};

/// A batch with the compilers.
struct Compilation {
  std::vector<Candidate> batch;
  Deadline deadline;
  struct Outcomes {
    Result<std::vector<CompileOutcome>> list = std::vector<CompileOutcome>();
    double seconds = 0;
  };
  std::future<Outcomes> outcomes;
};

/// One unit on its way: each public function is one pass of tuneUnits(). A pass that runs out of time, or is
/// cancelled, returns ok and sets over_; the next ones then do the least that leaves a truthful record. A Status that
/// is not ok is a failure of the machine's.
class UnitTuner {
 public:
  UnitTuner(Session& session, size_t index, const schedule::Problem& problem, const op::Key& key,
            std::optional<schedule::PlanGenome> incumbent)
      : session_(session),
        options_(session.options),
        index_(index),
        problem_(problem),
        points_(op::scoringPoints(problem.bucket)),
        seed_(mixSeed(session.options.seed, key.digest.low ^ checksumOf(problem.bucket.describe(problem.source)))),
        incumbent_(std::move(incumbent)),
        label_(op::label(problem.source) + " " + problem.bucket.describe(problem.source)) {}

  Status proveDefault();
  Status search();
  Status proveAndDuel();
  /// The record to publish, or nothing when nothing was proven in time.
  [[nodiscard]] std::optional<cache::Record> conclude(const op::Key& key, int32_t bucketIndex);

  void report(const char* phase) const;
  /// The last failure was that no worker can be started: it would repeat for every unit.
  [[nodiscard]] bool hopeless() const { return hopeless_; }
  [[nodiscard]] double seconds() const { return monotonicSeconds() - beganAt_; }

 private:
  Status ended(const Status& status, Deadline deadline, bool starting);
  void reject(const Rejection& rejection);
  [[nodiscard]] Compilation startCompiling(std::vector<Candidate> batch, Deadline deadline);
  Status finishCompiling(Compilation& compilation, std::vector<Feedback>& feedback, bool startedAhead = false);
  Status screen(std::vector<Candidate>& batch, std::vector<Feedback>& feedback, Deadline deadline);
  Status race(std::vector<Candidate>& batch, std::vector<Feedback>& feedback, Deadline deadline);
  Status raceFinalists(int samples, Deadline deadline);
  Status refineUntil(const std::future<Compilation::Outcomes>& outcomes, std::vector<Feedback>& feedback,
                     Deadline deadline);
  void learn(const std::vector<Candidate>& batch, std::span<const Feedback> feedback, double bestBefore);
  Result<bool> loadAndCheck(const Candidate& candidate, bool load, CheckLevel level, Deadline deadline,
                            CheckOutcome& outcome);
  Status open(uint64_t stream, Deadline deadline, bool final = false);
  Status becomeAnchor(Candidate candidate, CheckOutcome proof, Deadline deadline);
  void readConditions(Deadline deadline);
  void loseAnchor(const Rejection& rejection);
  void keepDefault(const Status& why);
  [[nodiscard]] std::vector<Candidate> propose(int n);
  [[nodiscard]] int batchSize(Deadline deadline) const;
  [[nodiscard]] double finishSeconds() const;
  /// Of a fresh worker, until its first sample.
  [[nodiscard]] double preparingSeconds() const { return openSeconds_ + screenSeconds_ + bufferSeconds_; }
  /// Whether MeasureOptions::final changes what is measured.
  [[nodiscard]] bool raceDiffersFromDuel() const { return options_.target.kind == schedule::DeviceKind::kCuda; }
  /// Whether the next batch is compiled while the present one is measured.
  [[nodiscard]] bool compilesAhead() const { return options_.target.kind == schedule::DeviceKind::kCuda; }
  [[nodiscard]] bool stopping(Deadline deadline) {
    if (session_.cancelled() || deadline.passed()) over_ = true;
    return over_;
  }
  [[nodiscard]] const Candidate* best() const {
    return !kept_.empty() && kept_.front().logScore < 0 ? &kept_.front() : nullptr;
  }
  [[nodiscard]] int points() const { return static_cast<int>(points_.size()); }

  Session& session_;
  const TunerOptions& options_;
  size_t index_;
  const schedule::Problem& problem_;
  std::vector<std::vector<int64_t>> points_;
  uint64_t seed_;
  std::optional<schedule::PlanGenome> incumbent_;
  std::string label_;
  double beganAt_ = monotonicSeconds();

  // The anchor is what everything is measured against: the default, or, where that was proven wrong, the first
  // candidate proven right.
  std::optional<Candidate> anchor_;
  CheckOutcome anchorProof_;
  bool defaultWrong_ = false;
  std::vector<std::vector<double>> anchorTimes_;  ///< Per point.
  MeasureFacts facts_;
  Conditions conditions_;
  std::optional<Race> race_;
  std::vector<double> anchorNs_;  ///< Per point; 0 unknown.
  double openSeconds_ = 0;
  double proofSeconds_ = 0;   ///< Of another proof in the same worker.
  double screenSeconds_ = 0;  ///< Of the first screening in a fresh worker.
  double bufferSeconds_ = 0;  ///< Of what comes before the first samples there.

  std::set<Digest> tried_;                               ///< Genomes sent to the compiler.
  std::map<Digest, Feedback> knownPlans_;                ///< What became of each distinct code.
  std::vector<std::pair<Digest, Feedback>> duplicates_;  ///< Of this batch's own plans: they share their fate.
  std::vector<Candidate> kept_;                          ///< The finalists so far, best first.
  std::vector<std::unique_ptr<Proposer>> proposers_;
  std::optional<Bandit> bandit_;
  int64_t nextId_ = kDefaultId + 1;
  int64_t candidates_ = 0, measured_ = 0;
  std::map<std::string, int64_t> rejections_;
  double secondsPerCandidate_ = 0;
  bool over_ = false, exhausted_ = false, hopeless_ = false;

  /// Compilers that are still at work when the search ends: nobody waits for them before the unit's end.
  std::optional<Compilation> abandoned_;

  // The winner, once it was proven and won its duel.
  std::optional<Candidate> winner_;
  CheckOutcome winnerProof_;
  DuelResult duel_;
};

void UnitTuner::report(const char* phase) const {
  if (!options_.onProgress) return;
  Progress progress;
  progress.unit = index_;
  progress.unitCount = session_.unitCount;
  progress.label = label_;
  progress.phase = phase;
  progress.candidates = candidates_;
  progress.bestRatio = best() != nullptr ? std::exp(best()->logScore) : 1;
  progress.bestNs = best() != nullptr ? best()->lastNs : anchorNs_.empty() ? 0 : anchorNs_.back();
  progress.secondsLeft = session_.keeper.total().remainingSeconds();
  options_.onProgress(progress);
}

void UnitTuner::reject(const Rejection& rejection) {
  ++rejections_[rejection.reason];
  logDebug(label_ + ": " + rejection.reason + ": " + rejection.detail);
}

/// Turns a service's failure into the end of the unit where it is one.
Status UnitTuner::ended(const Status& status, Deadline deadline, bool starting) {
  if (session_.cancelled() || endedByCaller(status, deadline)) {
    over_ = true;
    return Status::ok();
  }
  hopeless_ = starting && status.code() == StatusCode::kUnavailable;
  return status;
}

Status UnitTuner::open(uint64_t stream, Deadline deadline, bool final) {
  double before = monotonicSeconds();
  Result<MeasureFacts> facts =
      session_.measurer.open(problem_, {.seed = mixSeed(seed_, stream), .final = final}, deadline);
  openSeconds_ = monotonicSeconds() - before;
  if (!facts) return ended(facts.error(), deadline, /*starting=*/true);
  facts_ = std::move(*facts);
  return Status::ok();
}

/// True when CANDIDATE passed; a rejection is counted. After false, over_ tells whether time ran out instead.
Result<bool> UnitTuner::loadAndCheck(const Candidate& candidate, bool load, CheckLevel level, Deadline deadline,
                                     CheckOutcome& outcome) {
  double before = monotonicSeconds();
  auto spent = [&] { session_.counters.checkSeconds += monotonicSeconds() - before; };
  if (load) {
    Result<std::optional<Rejection>> loaded = session_.measurer.load(candidate.id, candidate.plan, deadline);
    if (!loaded) {
      spent();
      KTUNE_TRY(ended(loaded.error(), deadline, false));
      return false;
    }
    if (*loaded) {
      spent();
      outcome.rejection = **loaded;
      reject(**loaded);
      return false;
    }
  }
  Result<CheckOutcome> checked = session_.measurer.check(candidate.id, level, deadline);
  spent();
  if (!checked) {
    KTUNE_TRY(ended(checked.error(), deadline, false));
    return false;
  }
  ++session_.counters.checks;
  outcome = std::move(*checked);
  session_.counters.preparationSeconds += outcome.preparationSeconds;
  if (!outcome.rejection) return true;
  reject(*outcome.rejection);
  return false;
}

// --- The default -----------------------------------------------------------------------------------------------------

Status UnitTuner::proveDefault() {
  // The proof may use the whole budget's time, not just the unit's share: without it there is nothing to publish.
  Deadline deadline = session_.keeper.total();
  if (stopping(deadline)) return Status::ok();
  std::vector<Candidate> batch(1);
  batch[0].id = kDefaultId;
  batch[0].genome = schedule::defaultGenome(problem_, options_.target);
  batch[0].origin = "default";
  tried_.insert(batch[0].genome.digest());
  report("compile");
  std::vector<Feedback> feedback;
  Compilation compilation = startCompiling(std::move(batch), deadline);
  KTUNE_TRY(finishCompiling(compilation, feedback));
  batch = std::move(compilation.batch);
  defaultWrong_ = !feedback.empty();
  if (stopping(deadline)) return Status::ok();
  KTUNE_TRY(open(1, deadline));
  if (over_) return Status::ok();
  if (!batch.empty()) {
    report("check");
    CheckOutcome proof;
    double before = monotonicSeconds();
    KTUNE_ASSIGN(bool right, loadAndCheck(batch[0], /*load=*/true, CheckLevel::kFull, deadline, proof));
    proofSeconds_ = std::max(0.0, monotonicSeconds() - before - proof.preparationSeconds);
    screenSeconds_ = proof.firstCaseSeconds;
    if (right) {
      KTUNE_TRY(becomeAnchor(std::move(batch[0]), std::move(proof), deadline));
    } else if (proof.rejection) {
      defaultWrong_ = true;
      knownPlans_[batch[0].planDigest] = {batch[0].genome, batch[0].origin, kInfinity, true};
    }
  }
  if (defaultWrong_) logWarning(label_ + ": the default schedule was rejected; looking for another that is right");
  session_.keeper.learn(index_, seconds());
  return Status::ok();
}

/// From here on the unit can be published, and candidates can be raced against CANDIDATE.
Status UnitTuner::becomeAnchor(Candidate candidate, CheckOutcome proof, Deadline deadline) {
  candidate.logScore = 0;
  anchorProof_ = std::move(proof);
  // Enough samples to plan by, and to show in case there is no time for a duel. The first warms up.
  const double before = monotonicSeconds();
  KTUNE_ASSIGN(AloneResult alone,
               timeAlone(session_.measurer, session_.counters, candidate.id, points(), kSampleSeconds,
                         {.minSamples = 4, .maxSamples = 4, .maxRelativeError = 0}, deadline));
  if (alone.rejection) {  // it computes rightly, yet falls out when it is run again and again
    reject(*alone.rejection);
    knownPlans_[candidate.planDigest] = {candidate.genome, candidate.origin, kInfinity, true};
    defaultWrong_ = defaultWrong_ || candidate.id == kDefaultId;
    return Status::ok();
  }
  const double spent = monotonicSeconds() - before;
  readConditions(deadline);
  anchorTimes_ = std::move(alone.ns);
  anchorNs_.clear();
  for (const std::vector<double>& times : anchorTimes_) anchorNs_.push_back(times.empty() ? 0 : median(times));
  double sampling = 0;
  for (size_t point = 0; point < anchorNs_.size(); ++point)
    sampling += static_cast<double>(anchorTimes_[point].size()) * std::max(kSampleSeconds, anchorNs_[point] * 1e-9);
  bufferSeconds_ = std::max(0.0, spent - sampling);
  race_.emplace(session_.measurer, session_.counters,
                RaceOptions{.points = points(),
                            .anchor = candidate.id,
                            .sampleSeconds = kSampleSeconds,
                            .anchorNs = anchorNs_,
                            .shortestNs = shortestBelievableNs(problem_, options_.target, facts_),
                            .seed = mixSeed(seed_, 3),
                            .cancellation = options_.cancellation});
  ++measured_;
  anchor_ = std::move(candidate);
  return Status::ok();
}

/// What the device says right after the samples that the record will show. Without an answer the last one stays.
void UnitTuner::readConditions(Deadline deadline) {
  if (Result<Conditions> conditions = session_.measurer.conditions(deadline)) conditions_ = std::move(*conditions);
}

/// The worker of the final measurement can't be had: what was proven and timed before is true all the same.
void UnitTuner::keepDefault(const Status& why) {
  hopeless_ = false;
  logWarning(label_ + ": no final measurement, so the default stays: " + why.message());
}

/// The proven anchor fell out while running: it cannot be published, and nothing can be compared with it.
void UnitTuner::loseAnchor(const Rejection& rejection) {
  reject(rejection);
  defaultWrong_ = defaultWrong_ || anchor_->id == kDefaultId;
  anchor_.reset();
}

// --- Propose, compile, check, race -----------------------------------------------------------------------------------

/// Proof of the winner, a fresh worker, a screening there, the finals and the least duel.
double UnitTuner::finishSeconds() const {
  double samples = 0;  // one of each point
  for (double ns : anchorNs_) samples += std::max(kSampleSeconds, ns * 1e-9);
  // A sample takes longer than what is timed in it.
  const Counters& counters = session_.counters;
  if (counters.measurements > 0)
    samples = std::max(samples, points() * counters.measureSeconds / static_cast<double>(counters.measurements));
  // Where the race's worker has much to give back, and a race says less than a final measurement, more is set aside.
  const double fresh = (raceDiffersFromDuel() ? 2 : 1.2) * preparingSeconds();
  const double constant = raceDiffersFromDuel() ? 0.25 : 0.02;
  return 1.2 * proofSeconds_ + fresh + samples * (2 * 14 + 3 * static_cast<double>(kept_.size())) + constant;
}

int UnitTuner::batchSize(Deadline deadline) const {
  int parallel = std::max(1, session_.compiler.parallelism());
  double wanted = std::clamp(kBatchCompileSeconds / std::max(1e-6, session_.secondsPerCompile), 2.0 * parallel,
                             kMostPerWorker * parallel);
  // Half of what is left at most, so that the last batch too is raced to its end.
  double affordable = 0.5 * deadline.remainingSeconds() / std::max(1e-6, secondsPerCandidate_);
  double left = static_cast<double>(std::max<int64_t>(1, options_.budget.candidates) - candidates_);
  if (affordable < 1) return 0;
  return static_cast<int>(std::max(0.0, std::min({wanted, std::max<double>(affordable, parallel), left, 256.0})));
}

std::vector<Candidate> UnitTuner::propose(int n) {
  std::vector<Candidate> batch;
  auto add = [&](Proposal proposal, int arm) {
    if (static_cast<int>(batch.size()) >= n || !tried_.insert(proposal.genome.digest()).second) return;
    Candidate candidate;
    candidate.id = nextId_++;
    candidate.genome = std::move(proposal.genome);
    candidate.origin = std::move(proposal.origin);
    candidate.arm = arm;
    batch.push_back(std::move(candidate));
  };
  auto ask = [&](size_t arm, int count) {
    if (count <= 0) return;
    for (Proposal& proposal : proposers_[arm]->propose(count)) add(std::move(proposal), static_cast<int>(arm));
  };
  if (incumbent_) {
    add({schedule::repair(std::move(*incumbent_), problem_, options_.target), "incumbent"}, -1);
    incumbent_.reset();
  }
  auto missing = [&] { return n - static_cast<int>(batch.size()); };
  ask(0, static_cast<int>(std::min<int64_t>(missing(), 1 + kGenerationZero - candidates_)));
  std::vector<int> shares = bandit_->share(missing());
  for (size_t arm = 0; arm < proposers_.size(); ++arm) ask(arm, shares[arm]);
  // What one proposer has run out of, or both thought of, the others make up for.
  for (size_t arm = proposers_.size(); arm-- > 0;) ask(arm, missing());
  return batch;
}

/// Where compilers and kernels share the cores, compiling starts when it is asked for and nothing else happens
/// meanwhile; else it starts at once.
Compilation UnitTuner::startCompiling(std::vector<Candidate> batch, Deadline deadline) {
  Compilation compilation{std::move(batch), deadline, {}};
  std::vector<CompileRequest> requests;
  requests.reserve(compilation.batch.size());
  for (const Candidate& candidate : compilation.batch) requests.push_back({candidate.id, candidate.genome});
  session_.counters.compiles += static_cast<int64_t>(requests.size());
  candidates_ += static_cast<int64_t>(requests.size());
  compilation.outcomes =
      std::async(compilesAhead() ? std::launch::async : std::launch::deferred,
                 [&compiler = session_.compiler, &problem = problem_, requests = std::move(requests), deadline] {
                   const double before = monotonicSeconds();
                   Compilation::Outcomes outcomes;
                   outcomes.list = compiler.compile(problem, requests, deadline);
                   outcomes.seconds = monotonicSeconds() - before;
                   return outcomes;
                 });
  return compilation;
}

/// Waits for the compilers, and leaves in the batch what compiled to code not seen before.
Status UnitTuner::finishCompiling(Compilation& compilation, std::vector<Feedback>& feedback, bool startedAhead) {
  std::vector<Candidate>& batch = compilation.batch;
  const double waitingSince = monotonicSeconds();
  auto [outcomes, spent] = compilation.outcomes.get();
  const double waited = monotonicSeconds() - waitingSince;
  session_.counters.waitSeconds += waited;
  if (startedAhead) session_.counters.starvedSeconds += waited;
  session_.counters.compileSeconds += spent;
  if (!outcomes) {
    batch.clear();
    return ended(outcomes.error(), compilation.deadline, /*starting=*/true);
  }
  if (outcomes->size() > batch.size()) return internalError("the compiler returned more outcomes than requests");
  // Requests not begun in time are no candidates.
  candidates_ -= static_cast<int64_t>(batch.size() - outcomes->size());
  batch.resize(outcomes->size());
  if (!batch.empty()) {
    // One candidate alone keeps one worker busy; its wall time may hold the workers' start as well.
    auto n = static_cast<double>(batch.size());
    double parallel = std::max(1, session_.compiler.parallelism());
    double each = batch.size() == 1 && (*outcomes)[0].seconds > 0 ? (*outcomes)[0].seconds / parallel : spent / n;
    if (batch.size() > 1 || session_.secondsPerCompile == 0) session_.secondsPerCompile = each;
  }

  std::vector<Candidate> fresh;
  std::set<Digest> inBatch;
  for (size_t i = 0; i < batch.size(); ++i) {
    CompileOutcome& outcome = (*outcomes)[i];
    Candidate& candidate = batch[i];
    Feedback told{candidate.genome, candidate.origin, kInfinity, true};
    if (outcome.rejection) {
      reject(*outcome.rejection);
      feedback.push_back(std::move(told));
      continue;
    }
    candidate.plan = std::move(outcome.plan);
    candidate.planDigest = candidate.plan.digest();
    if (auto known = knownPlans_.find(candidate.planDigest); known != knownPlans_.end()) {
      told.score = known->second.score;
      told.rejected = known->second.rejected;
      feedback.push_back(std::move(told));
    } else if (anchor_ && candidate.planDigest == anchor_->planDigest) {
      told.score = 1;
      told.rejected = false;
      feedback.push_back(std::move(told));
    } else if (!inBatch.insert(candidate.planDigest).second) {
      duplicates_.emplace_back(candidate.planDigest, std::move(told));
    } else {
      fresh.push_back(std::move(candidate));
    }
  }
  batch = std::move(fresh);
  return Status::ok();
}

/// Leaves in BATCH what loads and passes the quick check.
Status UnitTuner::screen(std::vector<Candidate>& batch, std::vector<Feedback>& feedback, Deadline deadline) {
  std::vector<Candidate> right;
  for (Candidate& candidate : batch) {
    if (stopping(deadline)) break;
    // With nothing to race against, the first candidate that passes everything is what the others have to beat.
    CheckLevel level = anchor_ ? CheckLevel::kScreen : CheckLevel::kFull;
    CheckOutcome outcome;
    KTUNE_ASSIGN(bool passed, loadAndCheck(candidate, /*load=*/true, level, deadline, outcome));
    if (over_) break;
    if (!passed) {
      session_.measurer.drop(candidate.id);
      Feedback told{std::move(candidate.genome), std::move(candidate.origin), kInfinity, true};
      knownPlans_[candidate.planDigest] = told;
      feedback.push_back(std::move(told));
    } else if (!anchor_) {
      KTUNE_TRY(becomeAnchor(candidate, std::move(outcome), deadline));
      Feedback told{std::move(candidate.genome), std::move(candidate.origin), 1, !anchor_};
      knownPlans_[candidate.planDigest] = told;
      feedback.push_back(std::move(told));
    } else {
      right.push_back(std::move(candidate));
    }
  }
  batch = std::move(right);
  return Status::ok();
}

/// Races the finalists on equal terms: each runs SAMPLES more, and the fresh standings put them in order.
Status UnitTuner::raceFinalists(int samples, Deadline deadline) {
  std::vector<RaceEntry> entries;
  for (const Candidate& candidate : kept_) {
    RaceEntry entry;
    entry.id = candidate.id;
    entries.push_back(std::move(entry));
  }
  KTUNE_TRY(race_->run(entries, std::nullopt, {.samples = samples, .rounds = 1, .keepAll = true}, deadline));
  for (size_t i = 0; i < kept_.size(); ++i) {
    if (entries[i].rejection) {
      reject(*entries[i].rejection);
      knownPlans_[kept_[i].planDigest].rejected = true;
      session_.measurer.drop(kept_[i].id);
      race_->forget(kept_[i].id);
    }
    if (entries[i].rejection || entries[i].samples > 0) kept_[i].logScore = entries[i].logScore;
    if (entries[i].samples > 0) kept_[i].lastNs = entries[i].lastNs;
  }
  std::erase_if(kept_, [](const Candidate& c) { return std::isinf(c.logScore); });
  std::stable_sort(kept_.begin(), kept_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.logScore < b.logScore; });
  return Status::ok();
}

/// While compilers are at work on OUTCOMES the device has nothing new to measure: it measures the finalists again,
/// whose standings decide what is bred from and who gets to the proof.
Status UnitTuner::refineUntil(const std::future<Compilation::Outcomes>& outcomes, std::vector<Feedback>& feedback,
                              Deadline deadline) {
  const double before = monotonicSeconds();
  const auto ready = [&] { return outcomes.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
  bool refined = false;
  while (!ready() && race_ && !race_->anchorRejection() && !kept_.empty() && !stopping(deadline)) {
    const int64_t sampled = session_.counters.measurements;
    KTUNE_TRY(raceFinalists(points(), deadline));
    if (session_.counters.measurements == sampled) break;  // No time for any.
    refined = true;
  }
  session_.counters.refineSeconds += monotonicSeconds() - before;
  if (!refined) return Status::ok();
  for (const Candidate& candidate : kept_)
    feedback.push_back({candidate.genome, candidate.origin, std::exp(candidate.logScore), false});
  return Status::ok();
}

/// Races BATCH, keeps its best among the finalists and drops the others from the worker.
Status UnitTuner::race(std::vector<Candidate>& batch, std::vector<Feedback>& feedback, Deadline deadline) {
  std::vector<RaceEntry> entries;
  for (const Candidate& candidate : batch) {
    RaceEntry entry;
    entry.id = candidate.id;
    entries.push_back(std::move(entry));
  }
  std::optional<int64_t> incumbent;
  if (best() != nullptr) incumbent = best()->id;
  // Kernels that take long are less noisy, and cost more to look at.
  double slowest = *std::max_element(anchorNs_.begin(), anchorNs_.end());
  int samples = slowest < 2e6 ? 3 : slowest < 2e7 ? 2 : 1;
  KTUNE_TRY(race_->run(entries, incumbent, {.samples = samples, .rounds = 3}, deadline));

  if (incumbent) {  // it ran in every round: its standing is firmer now, for better or worse
    RaceEntry standing = race_->standing(*incumbent);
    if (standing.rejection) {
      reject(*standing.rejection);
      knownPlans_[kept_.front().planDigest].rejected = true;
      session_.measurer.drop(*incumbent);
      kept_.erase(kept_.begin());
    } else if (standing.samples > 0) {
      kept_.front().logScore = standing.logScore;
      kept_.front().lastNs = standing.lastNs;
      feedback.push_back({kept_.front().genome, kept_.front().origin, std::exp(standing.logScore), false});
    }
  }
  for (size_t i = 0; i < batch.size(); ++i) {
    Candidate& candidate = batch[i];
    const RaceEntry& entry = entries[i];
    measured_ += entry.samples > 0 ? 1 : 0;
    Feedback told{candidate.genome, candidate.origin, kInfinity, true};
    if (entry.rejection) {
      reject(*entry.rejection);
    } else if (std::isinf(entry.logScore)) {
      continue;  // time ran out before its first sample: nothing is known
    } else {
      told.score = std::exp(entry.logScore);
      told.rejected = false;
      candidate.logScore = entry.logScore;
      candidate.lastNs = entry.lastNs;
      kept_.push_back(candidate);
    }
    knownPlans_[candidate.planDigest] = told;
    feedback.push_back(std::move(told));
  }
  std::stable_sort(kept_.begin(), kept_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.logScore < b.logScore; });
  auto retire = [&](int64_t id) {
    session_.measurer.drop(id);
    race_->forget(id);
  };
  for (const Candidate& candidate : batch)
    if (std::isinf(candidate.logScore)) retire(candidate.id);
  for (; kept_.size() > kFinalists; kept_.pop_back()) retire(kept_.back().id);
  return Status::ok();
}

/// Tells everybody what became of the batch; the bandit, who gained by it.
void UnitTuner::learn(const std::vector<Candidate>& batch, std::span<const Feedback> feedback, double bestBefore) {
  for (const std::unique_ptr<Proposer>& proposer : proposers_) proposer->observe(feedback);
  for (size_t arm = 0; arm < proposers_.size(); ++arm) {
    int proposed = 0;
    double bestOfArm = kInfinity;
    for (const Candidate& candidate : batch) {
      if (candidate.arm != static_cast<int>(arm)) continue;
      ++proposed;
      for (const Candidate& kept : kept_)
        if (kept.id == candidate.id) bestOfArm = std::min(bestOfArm, kept.logScore);
    }
    bandit_->reward(arm, proposed, std::isinf(bestOfArm) ? 0 : std::max(0.0, bestBefore - bestOfArm));
  }
}

Status UnitTuner::search() {
  if (over_) return Status::ok();
  double share = session_.keeper.deadlineOf(index_).remainingSeconds();
  if (options_.budget.candidates <= candidates_ || share <= finishSeconds()) return Status::ok();
  // The pool is built in the unit's own time: a short unit gets a small one.
  int pool = static_cast<int>(std::clamp(300 * share, 100.0, 2000.0));
  proposers_.push_back(
      std::make_unique<PriorProposer>(problem_, options_.target, facts_.copyBytesPerSecond, mixSeed(seed_, 4), pool));
  proposers_.push_back(std::make_unique<EvolutionProposer>(problem_, options_.target, mixSeed(seed_, 5)));
  bandit_.emplace(proposers_.size());
  if (anchor_) {
    Feedback base[] = {{anchor_->genome, anchor_->origin, 1, false}};
    for (const std::unique_ptr<Proposer>& proposer : proposers_) proposer->observe(base);
  }
  secondsPerCandidate_ = session_.secondsPerCompile + proofSeconds_ / 4 + 4 * kSampleSeconds;

  std::optional<Compilation> ahead;
  while (!over_) {
    Deadline deadline = session_.keeper.deadlineOf(index_);
    deadline = Deadline::after(deadline.remainingSeconds() - finishSeconds());
    if (stopping(deadline)) break;
    int size = batchSize(deadline);
    if (size == 0) break;
    double before = monotonicSeconds(), bestBefore = best() != nullptr ? best()->logScore : 0;
    auto start = [&](int n) {
      std::vector<Candidate> next = propose(n);
      if (!next.empty()) ahead = startCompiling(std::move(next), deadline);
    };
    const bool startedAhead = ahead.has_value();
    if (!ahead) start(size);
    if (!ahead) {
      exhausted_ = true;
      break;
    }
    Compilation compilation = std::move(*ahead);
    ahead.reset();
    std::vector<Candidate> proposed = compilation.batch;
    std::vector<Feedback> feedback;
    report("compile");
    if (startedAhead) KTUNE_TRY(refineUntil(compilation.outcomes, feedback, deadline));
    if (race_ && race_->anchorRejection()) {
      ahead = std::move(compilation);
      loseAnchor(*race_->anchorRejection());
      break;
    }
    KTUNE_TRY(finishCompiling(compilation, feedback, startedAhead));
    std::vector<Candidate> batch = std::move(compilation.batch);
    // One generation late: proposers do not know yet what becomes of this batch.
    if (compilesAhead() && anchor_ && !over_) start(batchSize(deadline));
    report("check");
    KTUNE_TRY(screen(batch, feedback, deadline));
    report("race");
    if (anchor_ && !batch.empty()) KTUNE_TRY(race(batch, feedback, deadline));
    for (auto& [digest, told] : duplicates_) {
      auto known = knownPlans_.find(digest);
      if (known == knownPlans_.end()) continue;
      told.score = known->second.score;
      told.rejected = known->second.rejected;
      feedback.push_back(std::move(told));
    }
    duplicates_.clear();
    learn(proposed, feedback, bestBefore);
    secondsPerCandidate_ = (monotonicSeconds() - before) / static_cast<double>(proposed.size());
    if (race_ && race_->anchorRejection()) {
      loseAnchor(*race_->anchorRejection());
      break;
    }
  }
  if (ahead) {  // Nobody has time for these.
    candidates_ -= static_cast<int64_t>(ahead->batch.size());
    session_.counters.compiles -= static_cast<int64_t>(ahead->batch.size());
    abandoned_ = std::move(ahead);
  }
  over_ = session_.cancelled();
  return Status::ok();
}

// --- Prove and duel --------------------------------------------------------------------------------------------------

Status UnitTuner::proveAndDuel() {
  Deadline deadline = session_.keeper.deadlineOf(index_);
  if (over_) return Status::ok();

  // The finals: the scores so far chose these, so they flatter them; fresh samples put them in order.
  if (anchor_ && kept_.size() > 1 && best() != nullptr) {
    KTUNE_TRY(raceFinalists(12, Deadline::after(0.3 * deadline.remainingSeconds())));
    if (race_->anchorRejection()) loseAnchor(*race_->anchorRejection());
  }

  logDebug(label_ + ": " + std::to_string(kept_.size()) + " finalists, the best at " +
           secondsText(best() != nullptr ? std::exp(best()->logScore) : 1) + " of the default, " +
           secondsText(deadline.remainingSeconds()) + " s left");
  bool fresh = false;  // already in the duel's worker
  for (int tried = 0; tried < kProofs && !kept_.empty(); ++tried) {
    if (anchor_ && best() == nullptr) break;
    if (stopping(deadline)) break;
    Candidate candidate = kept_.front();
    kept_.erase(kept_.begin());
    report("check");
    CheckOutcome proof;
    KTUNE_ASSIGN(bool right, loadAndCheck(candidate, /*load=*/fresh, CheckLevel::kFull, deadline, proof));
    if (over_) break;
    if (!right) continue;
    if (!anchor_) {  // it was lost: there is no ratio, and the first finalist that is right is what we have
      winner_ = std::move(candidate);
      winnerProof_ = std::move(proof);
      KTUNE_ASSIGN(AloneResult alone, timeAlone(session_.measurer, session_.counters, winner_->id, points(),
                                                kSampleSeconds, {}, deadline));
      duel_.challengerNs = std::move(alone.ns);
      readConditions(deadline);
      return Status::ok();
    }

    // The duel: a fresh process with fresh inputs, which the finalist must compute rightly too.
    logDebug(label_ + ": proven, " + secondsText(deadline.remainingSeconds()) + " s left for the duel, of which " +
             secondsText(preparingSeconds()) + " are expected to prepare it");
    if (deadline.remainingSeconds() < preparingSeconds()) break;
    report("duel");
    if (Status opened = open(2, deadline, /*final=*/true); !opened.isOk()) {
      keepDefault(opened);
      return Status::ok();
    }
    fresh = true;
    if (stopping(deadline)) break;
    Result<std::optional<Rejection>> loaded = session_.measurer.load(anchor_->id, anchor_->plan, deadline);
    if (!loaded) return ended(loaded.error(), deadline, false);
    if (*loaded) {
      loseAnchor(**loaded);
      winner_ = std::move(candidate);
      winnerProof_ = std::move(proof);
      return Status::ok();
    }
    CheckOutcome again;
    KTUNE_ASSIGN(bool stillRight, loadAndCheck(candidate, /*load=*/true, CheckLevel::kScreen, deadline, again));
    if (over_) break;
    if (!stillRight) continue;
    DuelOptions options;
    options.points = points();
    options.anchor = anchor_->id;
    options.challenger = candidate.id;
    options.sampleSeconds = kSampleSeconds;
    options.anchorNs = anchorNs_;
    options.tried = measured_;
    options.seed = mixSeed(seed_, 6);
    options.shortestNs = shortestBelievableNs(problem_, options_.target, facts_);
    options.cancellation = options_.cancellation;
    logDebug(label_ + ": the duel begins, " + secondsText(deadline.remainingSeconds()) + " s left");
    KTUNE_ASSIGN(duel_, duel(session_.measurer, session_.counters, options, deadline));
    logDebug(label_ + ": " + std::to_string(duel_.rounds) + " rounds, " + secondsText(deadline.remainingSeconds()) +
             " s left");
    readConditions(deadline);
    if (duel_.challengerRejection) {
      reject(*duel_.challengerRejection);
      duel_ = {};
      continue;
    }
    if (duel_.rounds > 0) anchorTimes_ = duel_.anchorNs;
    if (duel_.anchorRejection) loseAnchor(*duel_.anchorRejection);
    if (duel_.significant || !anchor_) {
      winner_ = std::move(candidate);
      winnerProof_ = std::move(proof);
      winnerProof_.worstErrorShare = std::max(winnerProof_.worstErrorShare, again.worstErrorShare);
    }
    return Status::ok();
  }
  if (!anchor_ || over_) return Status::ok();

  // The default stays; its times are what the record has to show, taken as a winner's would be where there is time.
  if (raceDiffersFromDuel() && !fresh && deadline.remainingSeconds() > 1.5 * openSeconds_) {
    if (Status opened = open(2, deadline, /*final=*/true); !opened.isOk()) {
      keepDefault(opened);
      return Status::ok();
    }
    if (over_) return Status::ok();
    Result<std::optional<Rejection>> loaded = session_.measurer.load(anchor_->id, anchor_->plan, deadline);
    if (!loaded) return ended(loaded.error(), deadline, false);
    if (*loaded) {
      loseAnchor(**loaded);
      return Status::ok();
    }
  }
  KTUNE_ASSIGN(AloneResult alone,
               timeAlone(session_.measurer, session_.counters, anchor_->id, points(), kSampleSeconds, {}, deadline));
  readConditions(deadline);
  for (size_t point = 0; point < points_.size(); ++point)
    if (alone.ns[point].size() >= anchorTimes_[point].size()) anchorTimes_[point] = std::move(alone.ns[point]);
  return Status::ok();
}

// --- Publish ---------------------------------------------------------------------------------------------------------

std::optional<cache::Record> UnitTuner::conclude(const op::Key& key, int32_t bucketIndex) {
  cache::Record record;
  cache::Evidence& evidence = record.evidence;
  const Candidate* chosen = winner_ ? &*winner_ : anchor_ ? &*anchor_ : nullptr;
  if (chosen == nullptr) {
    bool searched = exhausted_ || candidates_ >= std::min(kFallbackAfter, options_.budget.candidates);
    if (!defaultWrong_ || !searched) return std::nullopt;
    record.decision = cache::Decision::kUseFallback;
  } else {
    record.decision = winner_ || chosen->id != kDefaultId ? cache::Decision::kTuned : cache::Decision::kDefault;
    record.genome = chosen->genome;
    record.plan = chosen->plan;
    evidence.planDigest = chosen->planDigest;
    evidence.proposer = chosen->origin;
    const CheckOutcome& proof = winner_ ? winnerProof_ : anchorProof_;
    evidence.checks = proof.checks;
    evidence.worstErrorShare = proof.worstErrorShare;
    const auto& times = winner_ ? duel_.challengerNs : anchorTimes_;
    for (size_t point = 0; point < points_.size(); ++point) {
      cache::PointEvidence at;
      op::Work work = op::workOf(problem_.source, points_[point]);
      at.symbolValues = points_[point];
      at.samples = point < times.size() ? static_cast<int64_t>(times[point].size()) : 0;
      at.medianNs = at.samples > 0 ? median(times[point]) : 0;
      // A default that was proven wrong has no time worth comparing with.
      bool hasDefault = anchor_ && anchor_->id == kDefaultId && !anchorTimes_[point].empty();
      at.defaultMedianNs = hasDefault ? median(anchorTimes_[point]) : 0;
      at.bytes = work.bytes;
      at.operations = work.operations;
      evidence.points.push_back(std::move(at));
    }
    if (winner_ && duel_.decided) {
      evidence.ratio = std::exp(duel_.logRatio.estimate);
      evidence.ratioLow = std::exp(duel_.logRatio.low);
      evidence.ratioHigh = std::exp(duel_.logRatio.high);
    }
  }
  record.key = key;
  record.bucketIndex = bucketIndex;
  record.bucket = problem_.bucket;
  record.canonical = op::canonicalBytes(problem_.source);
  record.hardware = options_.target.hardware;
  record.stamp = options_.stamp;
  evidence.seed = options_.seed;
  evidence.candidates = candidates_;
  evidence.measured = measured_;
  evidence.rejections = rejections_;
  evidence.copyBytesPerSecond = facts_.copyBytesPerSecond;
  evidence.regime = facts_.regime;
  evidence.clockMhz = conditions_.clockMhz;
  evidence.powerWatts = conditions_.powerWatts;
  evidence.temperatureC = conditions_.temperatureC;
  evidence.throttle = conditions_.throttle;
  evidence.tuningSeconds = seconds();
  evidence.unixTime = static_cast<int64_t>(std::time(nullptr));
  return record;
}

/// A unit before its turn.
struct Pending {
  op::Key key;
  std::optional<op::Bucket> bucket;  ///< Nothing when the index is out of range.
};

Pending keyUnit(const Unit& unit, const TunerOptions& options) {
  Pending pending;
  pending.key = op::keyOf(unit.graph, options.target.hardware);
  std::vector<op::Bucket> buckets = op::bucketsOf(unit.graph);
  if (unit.bucketIndex >= 0 && static_cast<size_t>(unit.bucketIndex) < buckets.size())
    pending.bucket = buckets[static_cast<size_t>(unit.bucketIndex)];
  return pending;
}

bool isHit(const std::optional<cache::Record>& record, const TunerOptions& options) {
  return record && record->stamp == options.stamp && !options.retune;
}

void reportHit(const TunerOptions& options, const Unit& unit, const Pending& pending, size_t index, size_t count,
               double secondsLeft) {
  if (!options.onProgress) return;
  Progress progress;
  progress.unit = index;
  progress.unitCount = count;
  progress.label = op::label(unit.graph) + " " + pending.bucket->describe(unit.graph);
  progress.phase = "hit";
  progress.secondsLeft = secondsLeft;
  options.onProgress(progress);
}

}  // namespace

Result<std::vector<UnitReport>> tuneUnits(const std::vector<Unit>& units, const TunerOptions& options,
                                          Compiler& compiler, Measurer& measurer, cache::Store& store,
                                          Counters& counters) {
  // Key every unit, and look each up once before the clock is divided: hits need no share of it.
  std::vector<Pending> pending;
  std::vector<BudgetKeeper::Unit> shares;
  for (const Unit& unit : units) {
    pending.push_back(keyUnit(unit, options));
    BudgetKeeper::Unit share{.weight = unit.weight, .work = 1, .settled = true};
    if (pending.back().bucket) {
      op::Work work = op::workOf(unit.graph, op::scoringPoints(*pending.back().bucket).back());
      KTUNE_ASSIGN(std::optional<cache::Record> record, store.get(pending.back().key, unit.bucketIndex));
      share.work = work.bytes + work.operations;
      share.settled = isHit(record, options);
    }
    shares.push_back(share);
  }
  BudgetKeeper keeper(options.budget.seconds, std::move(shares));
  Session session{options, compiler, measurer, counters, keeper, units.size(), 0};

  std::vector<UnitReport> reports;
  for (size_t i = 0; i < units.size(); ++i) {
    const Unit& unit = units[i];
    UnitReport& report = reports.emplace_back();
    double began = monotonicSeconds();
    auto done = [&](UnitOutcome outcome, Status status) {
      report.outcome = outcome;
      report.status = std::move(status);
      report.seconds = monotonicSeconds() - began;
      keeper.finish(i);
      if (options.onUnit) options.onUnit(i, report);
    };
    keeper.begin(i);
    if (!pending[i].bucket) {
      done(UnitOutcome::kFailed,
           invalidArgument("no bucket " + std::to_string(unit.bucketIndex) + " in " + op::label(unit.graph)));
      continue;
    }

    // Look up: the same unit may have been published earlier in this very list.
    KTUNE_ASSIGN(std::optional<cache::Record> cached, store.get(pending[i].key, unit.bucketIndex));
    if (isHit(cached, options)) {
      ++counters.hits;
      report.record = std::move(*cached);
      reportHit(options, unit, pending[i], i, units.size(), keeper.total().remainingSeconds());
      done(UnitOutcome::kHit, Status::ok());
      continue;
    }
    if (session.cancelled() || keeper.total().passed()) {
      done(UnitOutcome::kNotReached, session.cancelled() ? cancelled("cancelled before its turn")
                                                         : deadlineExceeded("the budget ended before its turn"));
      continue;
    }
    Result<schedule::Problem> problem = schedule::Problem::create(unit.graph, *pending[i].bucket);
    if (!problem) {
      done(UnitOutcome::kFailed, problem.error());
      continue;
    }
    if (Status possible = schedule::supported(*problem, options.target); !possible.isOk()) {
      done(UnitOutcome::kFailed, possible);
      continue;
    }
    std::optional<schedule::PlanGenome> incumbent;
    if (cached && cached->decision != cache::Decision::kUseFallback) incumbent = std::move(cached->genome);
    UnitTuner tuner(session, i, *problem, pending[i].key, std::move(incumbent));

    // The default first: once it is proven there is something to publish, whatever happens later.
    Status status = tuner.proveDefault();
    // Propose, compile, check and race until the unit's time or candidates are used up.
    if (status.isOk()) status = tuner.search();
    // The best must be right beyond doubt, and faster beyond doubt.
    if (status.isOk()) status = tuner.proveAndDuel();
    if (!status.isOk()) {
      if (tuner.hopeless()) return status;
      done(UnitOutcome::kFailed, status);
      continue;
    }

    // Publish.
    std::optional<cache::Record> record = tuner.conclude(pending[i].key, unit.bucketIndex);
    if (!record) {
      done(UnitOutcome::kNotReached, session.cancelled()
                                         ? cancelled("cancelled before anything was proven")
                                         : deadlineExceeded("the budget ended before anything was proven"));
      continue;
    }
    KTUNE_TRY(store.put(*record));
    ++counters.tuned;
    report.record = std::move(*record);
    tuner.report("published");
    done(UnitOutcome::kTuned, Status::ok());
  }
  return reports;
}

}  // namespace ktune::search
