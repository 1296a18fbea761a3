// The compile workers as the search's Compiler: TBB tasks hand requests to idle children.
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/partitioner.h>
#include <oneapi/tbb/task_arena.h>
#include <signal.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <optional>

#include "base/System.h"
#include "base/ThreadSanitizer.h"
#include "runtime/worker/Child.h"

namespace ktune::runtime {

namespace {

// Compilers leak; a worker is replaced before that matters.
constexpr int kRequestsPerWorker = 256;
// A request that is running when the deadline passes still gets this long: most compiles take less.
constexpr double kGraceSeconds = 1;

struct CompileChild {
  std::unique_ptr<Child> child;
  std::string problem;  ///< The kProblem frame it was sent last.
  int served = 0;
};

class CompilePool final : public search::Compiler {
 public:
  CompilePool(WorkerOptions options, schedule::Target target, int jobs, std::unique_ptr<WorkerFolders> folders)
      : options_(std::move(options)),
        target_(std::move(target)),
        folders_(std::move(folders)),
        concurrency_(tbb::global_control::max_allowed_parallelism,
                     std::max<size_t>(static_cast<size_t>(jobs) + 1,
                                      tbb::global_control::active_value(tbb::global_control::max_allowed_parallelism))),
        jobs_(jobs),
        arena_(jobs) {}

  [[nodiscard]] int parallelism() const override { return jobs_; }
  [[nodiscard]] Result<std::vector<search::CompileOutcome>> compile(const schedule::Problem& problem,
                                                                    std::span<const search::CompileRequest> requests,
                                                                    Deadline deadline) override;

 private:
  const WorkerOptions options_;
  const schedule::Target target_;
  std::unique_ptr<WorkerFolders> folders_;
  // TBB starts as many threads as there are cores; ours mostly wait for children.
  tbb::global_control concurrency_;
  const int jobs_;
  tbb::task_arena arena_;
  std::mutex mutex_;
  std::vector<CompileChild> idle_;  ///< The most recently used one last: it is the warmest.

  Result<CompileChild> acquire();
  void giveBack(CompileChild child);
  Result<search::CompileOutcome> compileOne(CompileChild& child, const std::string& problemFrame,
                                            const search::CompileRequest& request, Deadline deadline);
};

Result<CompileChild> CompilePool::acquire() {
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      CompileChild child = std::move(idle_.back());
      idle_.pop_back();
      return child;
    }
  }
  ProcessLimits limits;
#if !KTUNE_SANITIZED
  limits.addressSpaceBytes = options_.compileMemoryBytes;
#endif
  KTUNE_ASSIGN(std::unique_ptr<Child> child, Child::start(options_, "compile", limits, *folders_));
  return CompileChild{std::move(child), {}, 0};
}

void CompilePool::giveBack(CompileChild child) {
  if (child.child == nullptr || child.served >= kRequestsPerWorker) return;
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(child));
}

// Leaves CHILD empty when it had to be ended.
Result<search::CompileOutcome> CompilePool::compileOne(CompileChild& child, const std::string& problemFrame,
                                                       const search::CompileRequest& request, Deadline deadline) {
  const double start = monotonicSeconds();
  const double seconds = std::min(options_.compileTimeoutSeconds, std::max(deadline.remainingSeconds(), kGraceSeconds));
  const Deadline limit = Deadline::after(seconds);
  search::CompileOutcome outcome;
  outcome.id = request.id;
  ++child.served;

  Status sent;
  FrameChannel& channel = child.child->channel();
  if (child.problem != problemFrame) sent = channel.send(problemFrame, limit);
  if (sent.isOk()) {
    child.problem = problemFrame;
    ByteWriter writer = startFrame(FrameKind::kCompile);
    request.genome.encode(writer);
    sent = channel.send(writer.bytes(), limit);
  }
  Result<Frame> frame = sent.isOk() ? receiveFrame(channel, limit) : Result<Frame>(sent);
  outcome.seconds = monotonicSeconds() - start;

  if (frame && frame->kind == FrameKind::kCompiled) {
    ByteReader reader = frame->fields();
    outcome.seconds = reader.f64();
    const std::string bytes = reader.blob();
    Result<cache::Plan> plan =
        reader.finish().isOk() ? cache::Plan::fromBytes(bytes) : Result<cache::Plan>(reader.status());
    if (plan) {
      outcome.plan = std::move(*plan);
      return outcome;
    }
  } else if (frame && frame->kind == FrameKind::kRejected) {
    if (Result<search::Rejection> rejection = rejectionOf(*frame)) {
      outcome.rejection = std::move(*rejection);
      return outcome;
    }
  } else if (frame && frame->kind == FrameKind::kFailed) {
    return failureOf(*frame).withPrefix("compile worker");
  }

  if (!frame && frame.error().code() == StatusCode::kDeadlineExceeded) {
    child.child->end(false);
    char text[96];
    std::snprintf(text, sizeof text, "the compiler was killed after %.1f seconds", seconds);
    outcome.rejection = search::Rejection{"compile-timeout", text};
  } else if (!frame && frame.error().code() == StatusCode::kUnavailable) {
    const ExitInfo exit = child.child->end(true);
    const std::string errors = child.child->standardError();
    // Our own exit code, the words of LLVM and of std::bad_alloc, or the system's out-of-memory killer.
    const bool memory = (exit.exited && exit.exitCode == kExitOutOfMemory) ||
                        (!exit.exited && exit.signal == SIGKILL) || errors.find("out of memory") != std::string::npos ||
                        errors.find("bad_alloc") != std::string::npos;
    outcome.rejection =
        search::Rejection{memory ? "compile-memory" : "compile-crash", "the compiler " + deathText(exit, errors)};
  } else {
    // Nonsense: what it is made of can't be trusted any more.
    child.child->end(false);
    outcome.rejection = search::Rejection{"compile-crash", "the compile worker sent a malformed answer"};
  }
  child.child.reset();
  return outcome;
}

Result<std::vector<search::CompileOutcome>> CompilePool::compile(const schedule::Problem& problem,
                                                                 std::span<const search::CompileRequest> requests,
                                                                 Deadline deadline) {
  ByteWriter writer = startFrame(FrameKind::kProblem);
  encodeProblem(writer, problem);
  target_.encode(writer);
  const std::string problemFrame = writer.take();

  std::mutex mutex;  // Guards what follows.
  std::vector<std::optional<search::CompileOutcome>> outcomes(requests.size());
  size_t next = 0;
  Status failure;

  // A lane takes one request after the other, so that those begun are a prefix whenever the deadline passes.
  const auto lane = [&](int) {
    while (true) {
      {
        const std::lock_guard lock(mutex);
        if (next >= requests.size() || deadline.passed()) return;
      }
      Result<CompileChild> child = acquire();
      size_t index = 0;
      {
        const std::lock_guard lock(mutex);
        if (!child) {
          failure = child.error();
          return;
        }
        if (next < requests.size() && !deadline.passed())
          index = next++;
        else
          index = requests.size();
      }
      if (index == requests.size()) return giveBack(std::move(*child));
      Result<search::CompileOutcome> outcome = compileOne(*child, problemFrame, requests[index], deadline);
      giveBack(std::move(*child));
      const std::lock_guard lock(mutex);
      if (!outcome) {
        failure = outcome.error();
        next = requests.size();
        return;
      }
      // Killed because the caller's time was over, not its own: nothing is known of it.
      const bool cutShort = outcome->rejection && outcome->rejection->reason == "compile-timeout" &&
                            outcome->seconds < options_.compileTimeoutSeconds && deadline.passed();
      if (!cutShort) outcomes[index] = std::move(*outcome);
    }
  };
  const int lanes = static_cast<int>(std::min<size_t>(static_cast<size_t>(jobs_), requests.size()));
  try {
    arena_.execute([&] { tbb::parallel_for(0, lanes, lane, tbb::simple_partitioner()); });
  } catch (const std::exception& e) {
    return resourceExhausted(std::string("compile pool: ") + e.what());
  }

  const std::lock_guard lock(mutex);
  std::vector<search::CompileOutcome> done;
  done.reserve(requests.size());
  for (std::optional<search::CompileOutcome>& outcome : outcomes) {
    if (!outcome) break;
    done.push_back(std::move(*outcome));
  }
  // Lanes that could start no worker are made up for by the others; without any, or with a broken one, it is an error.
  if (!failure.isOk() && done.size() < requests.size() && !deadline.passed()) return failure;
  return done;
}

}  // namespace

Result<std::unique_ptr<search::Compiler>> makeCompilePool(const WorkerOptions& options,
                                                          const schedule::Target& target) {
  const uint64_t memory = availableMemoryBytes();
  int jobs = options.compileJobs > 0 ? options.compileJobs : usableCores();
  // More jobs than cores only make each slower; more than memory has room for make them fail.
  jobs = std::min(jobs, usableCores());
  if (memory != 0 && options.compileMemoryBytes != 0)
    jobs = static_cast<int>(
        std::min<uint64_t>(static_cast<uint64_t>(jobs), std::max<uint64_t>(1, memory / options.compileMemoryBytes)));
  KTUNE_ASSIGN(std::unique_ptr<WorkerFolders> folders, WorkerFolders::create(options.tempDirectory));
  return std::unique_ptr<search::Compiler>(new CompilePool(options, target, std::max(1, jobs), std::move(folders)));
}

}  // namespace ktune::runtime
