// The child that compiles: one problem at a time, one genome per request.
#include <unistd.h>

#include <new>

#include "runtime/worker/Protocol.h"
#include "runtime/worker/Workers.h"

namespace ktune::runtime {

namespace {

struct Assignment {
  schedule::Problem problem;
  schedule::Target target;
};

Result<Assignment> decodeAssignment(const Frame& frame) {
  ByteReader reader = frame.fields();
  KTUNE_ASSIGN(schedule::Problem problem, decodeProblem(reader));
  schedule::Target target = schedule::Target::decode(reader);
  KTUNE_TRY(reader.finish());
  return Assignment{std::move(problem), std::move(target)};
}

std::string compileOne(const Frame& frame, const Result<Assignment>& assignment, CompileBackend& backend) {
  if (!assignment) return failedFrame(assignment.error());
  ByteReader reader = frame.fields();
  const schedule::PlanGenome genome = schedule::PlanGenome::decode(reader);
  if (Status status = reader.finish(); !status.isOk()) return failedFrame(status);
  const double start = monotonicSeconds();
  Result<cache::Plan> plan = backend.compile(assignment->problem, genome, assignment->target);
  if (!plan) {
    const bool illegal = plan.error().code() == StatusCode::kInvalidArgument;
    return rejectedFrame(illegal ? "illegal" : "compile-error", plan.error().message());
  }
  ByteWriter writer = startFrame(FrameKind::kCompiled);
  writer.f64(monotonicSeconds() - start);
  writer.blob(plan->bytes());
  return writer.take();
}

}  // namespace

int runCompileWorker(FrameChannel channel, CompileBackend& backend) {
  // Memory that runs out inside a compiler can't be unwound from; the exit code says what happened.
  std::set_new_handler([] { ::_exit(kExitOutOfMemory); });
  if (!channel.send(startFrame(FrameKind::kReady).bytes()).isOk()) return 1;
  Result<Assignment> assignment = internalError("a compile request before any problem");
  for (;;) {
    Result<Frame> frame = receiveFrame(channel);
    // The tuner has closed its end: the normal way to go.
    if (!frame) return frame.error().code() == StatusCode::kUnavailable ? 0 : 1;
    std::string answer;
    switch (frame->kind) {
      case FrameKind::kProblem:
        // Not answered: what is wrong with it is the answer to the first request.
        assignment = decodeAssignment(*frame);
        continue;
      case FrameKind::kCompile:
        answer = compileOne(*frame, assignment, backend);
        break;
      default:
        answer = failedFrame(internalError("an unexpected frame"));
        break;
    }
    if (!channel.send(answer).isOk()) return 1;
  }
}

}  // namespace ktune::runtime
