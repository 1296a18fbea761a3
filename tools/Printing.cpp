#include "tools/Printing.h"

#include <unistd.h>

#include <array>

#include "base/File.h"
#include "base/Subprocess.h"
#include "tools/RecordText.h"

#if KTUNE_WITH_MLIR
#include "ir/emit/cpu/CpuCompiler.h"
#include "ir/emit/cuda/CudaEmitter.h"
#include "ir/schedule/Problem.h"
#endif

namespace ktune::tools {

namespace {

// In the order of emit::Stage; then what cuda devices have beside "tiles".
constexpr std::array<std::string_view, 7> kStageNames = {"linalg", "decomposed", "tiles", "vector",
                                                         "llvm",   "assembly",   "cuda"};
constexpr uint32_t kTilesStage = 2, kCudaStage = 6;

#if KTUNE_WITH_MLIR
constexpr double kPrintTimeoutSeconds = 60;

Result<std::string> printRequest(std::string_view frame, const std::string& tempDirectory) {
  ByteReader reader(frame);
  const uint32_t stage = reader.u32();
  const std::string canonical = reader.blob();
  const int32_t bucketIndex = reader.i32();
  const schedule::PlanGenome genome = schedule::PlanGenome::decode(reader);
  const schedule::Target target = schedule::Target::decode(reader);
  KTUNE_TRY(reader.finish());
  KTUNE_ASSIGN(const op::Graph graph, op::fromCanonicalBytes(canonical));
  const std::vector<op::Bucket> buckets = op::bucketsOf(graph);
  if (stage >= kStageNames.size() || bucketIndex < 0 || static_cast<size_t>(bucketIndex) >= buckets.size())
    return invalidArgument("no such stage or bucket");
  KTUNE_ASSIGN(const schedule::Problem problem,
               schedule::Problem::create(graph, buckets[static_cast<size_t>(bucketIndex)]));
  if (target.kind == schedule::DeviceKind::kCuda) {
    if (stage != kTilesStage && stage != kCudaStage)
      return invalidArgument("kernels for cuda devices have the stages tiles and cuda");
    emit::CudaEmitter emitter;
    return emitter.print(problem, genome, target,
                         stage == kTilesStage ? emit::CudaStage::kTiles : emit::CudaStage::kSource);
  }
  if (stage == kCudaStage) return invalidArgument("kernels for the cpu device have no stage cuda");
  emit::CpuCompiler compiler(tempDirectory);
  return compiler.print(problem, genome, target, static_cast<emit::Stage>(stage));
}

Result<std::string> askPrintWorker(const std::string& program, const std::string& folder, std::string_view request) {
  Subprocess::Options options;
  options.argv = {program, "worker", "print"};
  options.extraEnvironment = {"TMPDIR=" + folder};
  KTUNE_ASSIGN(Subprocess child, Subprocess::spawn(options));
  const Deadline deadline = Deadline::after(kPrintTimeoutSeconds);
  const Status sent = child.channel().send(request, deadline);
  const Result<std::string> answer = sent.isOk() ? child.channel().receive(deadline) : Result<std::string>(sent);
  if (!answer) {
    const ExitInfo end = child.kill();
    return unavailable("the compiler ended while printing: " + end.describe() + ": " + child.standardError());
  }
  ByteReader reader(*answer);
  const auto code = static_cast<StatusCode>(reader.i32());
  std::string text = reader.blob();
  KTUNE_TRY(reader.finish());
  if (code != StatusCode::kOk) return Status(code, std::move(text));
  return text;
}
#endif

}  // namespace

std::string stageNames() {
  std::string names;
  for (std::string_view name : kStageNames) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

Status checkStage(const std::string& stage) {
  for (std::string_view name : kStageNames)
    if (name == stage) return Status::ok();
  return invalidArgument("--stage is \"" + stage + "\"; it must be one of " + stageNames());
}

#if KTUNE_WITH_MLIR

Result<std::string> printStage(const Shell& shell, const cache::Record& record, const schedule::Target& target,
                               const std::string& stage) {
  if (target.kind == schedule::DeviceKind::kFake) return unsupported("the fake device has no stages to show");
  ByteWriter request;
  for (uint32_t i = 0; i < kStageNames.size(); ++i)
    if (kStageNames[i] == stage) request.u32(i);
  request.blob(record.canonical);
  request.i32(record.bucketIndex);
  record.genome.encode(request);
  target.encode(request);

  KTUNE_ASSIGN(const std::string program, currentProgramPath());
  // Named as the workers' folders are: should this process be killed, a later run takes it away with theirs.
  KTUNE_ASSIGN(const std::string folder,
               makeTempDirectory(shell.settings.tempDir, "ktune-" + std::to_string(::getpid())));
  Result<std::string> text = askPrintWorker(program, folder, request.bytes());
  (void)removeTree(folder).isOk();
  return text;
}

int runPrintWorker(FrameChannel channel, const std::string& tempDirectory) {
  const Result<std::string> request = channel.receive();
  if (!request) return 0;
  const Result<std::string> text = printRequest(*request, tempDirectory);
  ByteWriter answer;
  answer.i32(static_cast<int32_t>(text.status().code()));
  answer.blob(text ? *text : text.error().message());
  return channel.send(answer.bytes()).isOk() ? 0 : 1;
}

#else

Result<std::string> printStage(const Shell&, const cache::Record&, const schedule::Target&, const std::string&) {
  return unsupported(
      "this build of ktune has no compiler to show stages with; use a build configured with "
      "KTUNE_WITH_MLIR=ON");
}

int runPrintWorker(FrameChannel, const std::string&) {
  return 1;
}

#endif

}  // namespace ktune::tools
