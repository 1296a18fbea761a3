// The tuner's side of the measure worker: watchdogs, restarts, and who is to blame.
#include <signal.h>

#include <algorithm>
#include <map>

#include "runtime/worker/Child.h"

namespace ktune::runtime {

namespace {

// References of large problems, first touches of gigabytes of buffers: our own code, which is trusted to end.
constexpr double kTrustedSeconds = 600;
// A request whose deadline is about to pass still gets this long, so that a worker with warm buffers is not thrown
// away for milliseconds.
constexpr double kGraceSeconds = 1;

class MeasureClient final : public search::Measurer {
 public:
  MeasureClient(WorkerOptions options, std::unique_ptr<WorkerFolders> folders)
      : options_(std::move(options)), folders_(std::move(folders)) {}

  [[nodiscard]] Result<search::MeasureFacts> open(const schedule::Problem& problem,
                                                  const search::MeasureOptions& options, Deadline deadline) override;
  [[nodiscard]] Result<std::optional<search::Rejection>> load(int64_t id, const cache::Plan& plan,
                                                              Deadline deadline) override;
  void drop(int64_t id) override;
  [[nodiscard]] Result<search::CheckOutcome> check(int64_t id, search::CheckLevel level, Deadline deadline) override;
  [[nodiscard]] Result<std::vector<search::Sample>> sample(std::span<const int64_t> ids, int point,
                                                           double sampleSeconds, Deadline deadline) override;
  [[nodiscard]] Result<search::Conditions> conditions(Deadline deadline) override;

 private:
  struct Entry {
    std::string plan;
    bool loaded = false;      ///< In the present child.
    bool everLoaded = false;  ///< In this or an earlier one.
    std::optional<search::Rejection> rejection;
  };
  /// What came of a request: an answer, or a rejection because the child died or hung over it.
  struct Answer {
    std::optional<Frame> frame;
    search::Rejection fault;
    bool fromOutside = false;  ///< Killed by SIGKILL, which no kernel sends: the out-of-memory killer, or a person.
  };

  const WorkerOptions options_;
  std::unique_ptr<WorkerFolders> folders_;
  std::unique_ptr<Child> child_;
  std::string problem_;  ///< Encoded; empty before open().
  bool final_ = false;
  uint64_t seed_ = 1;
  std::map<int64_t, Entry> plans_;

  Result<search::MeasureFacts> start(bool measureFacts, Deadline deadline);
  Result<Answer> ask(const std::string& request, bool candidateRuns, double seconds, Deadline deadline);
  void forgetChild();
  Result<Entry*> entryFor(int64_t id);
  Result<std::optional<search::Rejection>> ensureLoaded(int64_t id, Entry& entry, Deadline deadline);
  Result<Answer> askFor(int64_t id, Entry& entry, const std::string& request, bool candidateRuns, double seconds,
                        Deadline deadline);
};

void MeasureClient::forgetChild() {
  child_.reset();
  for (auto& [id, entry] : plans_) entry.loaded = false;
}

// Sends a request and follows its phases. CANDIDATERUNS: a candidate may be running from the start, for at most
// SECONDS. Errors: kDeadlineExceeded (the caller's deadline; the child is ended, nobody is blamed), kCorrupt.
Result<MeasureClient::Answer> MeasureClient::ask(const std::string& request, bool candidateRuns, double seconds,
                                                 Deadline deadline) {
  const Deadline patience = Deadline::after(std::max(deadline.remainingSeconds(), kGraceSeconds));
  Deadline limit = Deadline::after(candidateRuns ? seconds : kTrustedSeconds);
  FrameChannel& channel = child_->channel();
  Status sent = channel.send(request, limit.earlierOf(patience));
  for (;;) {
    Result<Frame> frame = sent.isOk() ? receiveFrame(channel, limit.earlierOf(patience)) : Result<Frame>(sent);
    if (frame && frame->kind == FrameKind::kPhase) {
      ByteReader reader = frame->fields();
      candidateRuns = reader.u8() != 0;
      limit = Deadline::after(candidateRuns ? seconds : kTrustedSeconds);
      continue;
    }
    if (frame) return Answer{std::move(*frame), {}, false};

    if (frame.error().code() == StatusCode::kDeadlineExceeded) {
      child_->end(false);
      forgetChild();
      if (!limit.passed()) return deadlineExceeded("the time for measuring is over");
      if (!candidateRuns)
        return deadlineExceeded("the measure worker took more than " +
                                std::to_string(static_cast<int>(kTrustedSeconds)) +
                                " seconds for inputs and references");
      char text[80];
      std::snprintf(text, sizeof text, "the kernel was killed after %.1f seconds", seconds);
      return Answer{std::nullopt, {"run-timeout", text}, false};
    }
    if (frame.error().code() == StatusCode::kUnavailable) {
      const ExitInfo exit = child_->end(true);
      search::Rejection fault{"run-crash", "the measure worker " + deathText(exit, child_->standardError())};
      forgetChild();
      return Answer{std::nullopt, std::move(fault), !exit.exited && exit.signal == SIGKILL};
    }
    // A kernel that wrote over the worker's memory may make it send anything.
    const std::string why = frame.error().message();
    child_->end(false);
    forgetChild();
    return Answer{std::nullopt, {"run-crash", "the measure worker sent a malformed answer: " + why}, false};
  }
}

// Starts a child and opens the problem in it. No candidate is involved, so a child that dies is tried once more.
Result<search::MeasureFacts> MeasureClient::start(bool measureFacts, Deadline deadline) {
  std::string why;
  for (int attempt = 0; attempt < 2; ++attempt) {
    forgetChild();
    KTUNE_ASSIGN(child_, Child::start(options_, "measure", {}, *folders_));
    ByteWriter writer = startFrame(FrameKind::kOpen);
    writer.raw(problem_);
    writer.u64(seed_);
    writer.u64(options_.measureMemoryBytes);
    writer.boolean(final_);
    writer.boolean(measureFacts);
    KTUNE_ASSIGN(const Answer answer, ask(writer.bytes(), false, 0, deadline));
    if (!answer.frame) {
      why = answer.fault.detail;
      continue;
    }
    if (answer.frame->kind == FrameKind::kFailed) return failureOf(*answer.frame);
    ByteReader reader = answer.frame->fields();
    search::MeasureFacts facts;
    facts.copyBytesPerSecond = reader.f64();
    facts.emptyLaunchNs = reader.f64();
    facts.regime = reader.text();
    if (answer.frame->kind != FrameKind::kFacts || !reader.finish().isOk())
      return internalError("the measure worker gave an unexpected answer");
    return facts;
  }
  return unavailable("the measure worker dies before any candidate runs: " + why);
}

Result<search::MeasureFacts> MeasureClient::open(const schedule::Problem& problem,
                                                 const search::MeasureOptions& options, Deadline deadline) {
  forgetChild();
  plans_.clear();
  ByteWriter writer;
  encodeProblem(writer, problem);
  problem_ = writer.take();
  seed_ = options.seed;
  final_ = options.final;
  Result<search::MeasureFacts> facts = start(true, deadline);
  if (!facts) {
    forgetChild();
    problem_.clear();
  }
  return facts;
}

Result<MeasureClient::Entry*> MeasureClient::entryFor(int64_t id) {
  const auto found = plans_.find(id);
  if (found == plans_.end()) return invalidArgument("plan " + std::to_string(id) + " was not loaded");
  return &found->second;
}

// Sees to it that a child runs and has the plan.
Result<std::optional<search::Rejection>> MeasureClient::ensureLoaded(int64_t id, Entry& entry, Deadline deadline) {
  if (entry.rejection) return entry.rejection;
  if (child_ == nullptr) KTUNE_TRY(start(false, deadline).status());
  if (entry.loaded) return std::optional<search::Rejection>();
  ByteWriter writer = startFrame(FrameKind::kLoad);
  writer.i64(id);
  writer.blob(entry.plan);
  KTUNE_ASSIGN(const Answer answer, ask(writer.bytes(), true, options_.measureTimeoutSeconds, deadline));
  if (answer.frame && answer.frame->kind == FrameKind::kLoaded) {
    entry.loaded = entry.everLoaded = true;
    return std::optional<search::Rejection>();
  }
  if (answer.frame && answer.frame->kind == FrameKind::kFailed) return failureOf(*answer.frame);
  search::Rejection rejection = answer.fault;
  if (answer.frame) {
    if (answer.frame->kind != FrameKind::kRejected)
      return internalError("the measure worker gave an unexpected answer");
    KTUNE_ASSIGN(rejection, rejectionOf(*answer.frame));
  } else if (entry.everLoaded || answer.fromOutside) {
    // Loading runs no kernel. A plan that was loaded before is not at fault, nor is any for a kill from outside.
    return unavailable("the measure worker died while it loaded a plan: " + rejection.detail);
  }
  entry.rejection = std::move(rejection);
  return entry.rejection;
}

// A request about a plan, in a child that has it. When the entry holds a rejection afterwards, that is the answer.
Result<MeasureClient::Answer> MeasureClient::askFor(int64_t id, Entry& entry, const std::string& request,
                                                    bool candidateRuns, double seconds, Deadline deadline) {
  std::string why;
  for (int attempt = 0; attempt < 2; ++attempt) {
    KTUNE_ASSIGN(const std::optional<search::Rejection> rejection, ensureLoaded(id, entry, deadline));
    if (rejection) return Answer{std::nullopt, *rejection, false};
    KTUNE_ASSIGN(Answer answer, ask(request, candidateRuns, seconds, deadline));
    if (answer.frame && answer.frame->kind == FrameKind::kFailed) return failureOf(*answer.frame);
    if (!answer.fromOutside) {
      if (!answer.frame) entry.rejection = answer.fault;
      return answer;
    }
    why = answer.fault.detail;
  }
  return unavailable("the measure worker was killed from outside twice (is memory short?): " + why);
}

Result<std::optional<search::Rejection>> MeasureClient::load(int64_t id, const cache::Plan& plan, Deadline deadline) {
  if (problem_.empty()) return invalidArgument("no problem is open");
  drop(id);
  Entry& entry = plans_[id];
  entry.plan = plan.bytes();
  return ensureLoaded(id, entry, deadline);
}

void MeasureClient::drop(int64_t id) {
  const auto found = plans_.find(id);
  if (found == plans_.end()) return;
  if (found->second.loaded && child_ != nullptr) {
    ByteWriter writer = startFrame(FrameKind::kDrop);
    writer.i64(id);
    // A child that is gone has dropped everything; the next request notices.
    (void)child_->channel().send(writer.bytes(), Deadline::after(kGraceSeconds));
  }
  plans_.erase(found);
}

Result<search::CheckOutcome> MeasureClient::check(int64_t id, search::CheckLevel level, Deadline deadline) {
  KTUNE_ASSIGN(Entry* const entry, entryFor(id));
  ByteWriter writer = startFrame(FrameKind::kCheck);
  writer.i64(id);
  writer.u8(static_cast<uint8_t>(level));
  KTUNE_ASSIGN(const Answer answer,
               askFor(id, *entry, writer.bytes(), false, options_.measureTimeoutSeconds, deadline));
  search::CheckOutcome outcome;
  if (answer.frame && answer.frame->kind == FrameKind::kChecked) {
    ByteReader reader = answer.frame->fields();
    outcome.worstErrorShare = reader.f64();
    outcome.preparationSeconds = reader.f64();
    outcome.firstCaseSeconds = reader.f64();
    const uint32_t count = reader.count(4);
    for (uint32_t i = 0; i < count; ++i) outcome.checks.push_back(reader.text());
    KTUNE_TRY(reader.finish());
    return outcome;
  }
  if (answer.frame) {
    if (answer.frame->kind != FrameKind::kRejected)
      return internalError("the measure worker gave an unexpected answer");
    KTUNE_ASSIGN(entry->rejection, rejectionOf(*answer.frame));
  }
  outcome.rejection = entry->rejection;
  return outcome;
}

Result<std::vector<search::Sample>> MeasureClient::sample(std::span<const int64_t> ids, int point, double sampleSeconds,
                                                          Deadline deadline) {
  std::vector<search::Sample> samples;
  samples.reserve(ids.size());
  // One request each: who runs when the worker dies is then never a question.
  for (const int64_t id : ids) {
    KTUNE_ASSIGN(Entry* const entry, entryFor(id));
    ByteWriter writer = startFrame(FrameKind::kSample);
    writer.i64(id);
    writer.u32(static_cast<uint32_t>(point));
    writer.f64(sampleSeconds);
    KTUNE_ASSIGN(const Answer answer,
                 askFor(id, *entry, writer.bytes(), true, options_.measureTimeoutSeconds + sampleSeconds, deadline));
    search::Sample sample;
    if (answer.frame && answer.frame->kind == FrameKind::kRejected) {
      KTUNE_ASSIGN(entry->rejection, rejectionOf(*answer.frame));
      sample.rejection = entry->rejection;
    } else if (answer.frame) {
      ByteReader reader = answer.frame->fields();
      sample.ns = reader.f64();
      if (answer.frame->kind != FrameKind::kSampled || !reader.finish().isOk())
        return internalError("the measure worker gave an unexpected answer");
    } else {
      sample.rejection = entry->rejection;
    }
    samples.push_back(std::move(sample));
  }
  return samples;
}

// No candidate is involved, and nothing depends on the answer: a child that is gone or dies over it has none.
Result<search::Conditions> MeasureClient::conditions(Deadline deadline) {
  if (child_ == nullptr) return search::Conditions{};
  KTUNE_ASSIGN(const Answer answer, ask(startFrame(FrameKind::kConditions).bytes(), false, 0, deadline));
  if (!answer.frame) return search::Conditions{};
  ByteReader reader = answer.frame->fields();
  search::Conditions conditions;
  conditions.clockMhz = reader.f64();
  conditions.powerWatts = reader.f64();
  conditions.temperatureC = reader.f64();
  conditions.throttle = reader.text();
  if (answer.frame->kind != FrameKind::kState || !reader.finish().isOk())
    return internalError("the measure worker gave an unexpected answer");
  return conditions;
}

}  // namespace

Result<std::unique_ptr<search::Measurer>> makeMeasureClient(const WorkerOptions& options,
                                                            const schedule::Target& target) {
  (void)target;  // The worker opens the device itself and knows it better.
  KTUNE_ASSIGN(std::unique_ptr<WorkerFolders> folders, WorkerFolders::create(options.tempDirectory));
  return std::unique_ptr<search::Measurer>(new MeasureClient(options, std::move(folders)));
}

}  // namespace ktune::runtime
