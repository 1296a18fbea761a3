// ktune-opt: runs ktune's passes (and MLIR's general ones) on MLIR text, for tests and for people.
//
//   ktune-opt import DESCRIPTION.json [--bucket N] [--genome '#ktune.genome<...>']   prints the imported module
//   ktune-opt [passes as in mlir-opt] FILE.mlir
#include <cstdio>
#include <cstring>

#include "base/File.h"
#include "ir/emit/cpu/TileToVector.h"
#include "ir/lower/Lower.h"
#include "ir/op/GraphJson.h"
#include "ir/schedule/Vary.h"
#include "mlir/Tools/mlir-opt/MlirOptMain.h"
#include "mlir/Transforms/Passes.h"

namespace ktune {
namespace {

/// A fixed target, so that the printed default genome does not depend on the machine.
schedule::Target textTarget() {
  return schedule::fakeTarget();
}

Status importToStdout(int argc, char** argv) {
  std::string path, genomeText;
  size_t bucket = 0;
  for (int i = 2; i < argc; ++i) {
    bool hasValue = i + 1 < argc;
    if (!std::strcmp(argv[i], "--bucket") && hasValue) {
      bucket = std::strtoul(argv[++i], nullptr, 10);
    } else if (!std::strcmp(argv[i], "--genome") && hasValue) {
      genomeText = argv[++i];
    } else if (path.empty() && argv[i][0] != '-') {
      path = argv[i];
    } else {
      return invalidArgument("usage: ktune-opt import DESCRIPTION.json [--bucket N] [--genome TEXT]");
    }
  }
  if (path.empty()) return invalidArgument("usage: ktune-opt import DESCRIPTION.json [--bucket N] [--genome TEXT]");
  KTUNE_ASSIGN(std::string text, readFile(path));
  KTUNE_ASSIGN(Json json, parseJson(text, path));
  KTUNE_ASSIGN(op::Graph graph, op::fromJson(json, path));
  std::vector<op::Bucket> buckets = op::bucketsOf(graph);
  if (bucket >= buckets.size())
    return invalidArgument("--bucket " + std::to_string(bucket) + ": the description has " +
                           std::to_string(buckets.size()) + " buckets");
  KTUNE_ASSIGN(schedule::Problem problem, schedule::Problem::create(graph, buckets[bucket]));
  schedule::PlanGenome genome = schedule::defaultGenome(problem, textTarget());
  if (!genomeText.empty()) {
    KTUNE_ASSIGN(genome, schedule::PlanGenome::parse(genomeText));
  }
  mlir::MLIRContext context;
  ir::loadDialects(context);
  KTUNE_ASSIGN(mlir::OwningOpRef<mlir::ModuleOp> module, ir::importProblem(context, problem));
  (*module)->setAttr(ir::kGenomeAttr, ir::genomeAttr(&context, genome));
  module->print(llvm::outs());
  llvm::outs() << "\n";
  return Status::ok();
}

}  // namespace
}  // namespace ktune

int main(int argc, char** argv) {
  if (argc > 1 && !std::strcmp(argv[1], "import")) {
    ktune::Status status = ktune::importToStdout(argc, argv);
    if (!status.isOk()) std::fprintf(stderr, "ktune-opt: error: %s\n", status.message().c_str());
    return status.isOk() ? 0 : 2;
  }
  ktune::ir::registerLowerPasses();
  ktune::emit::registerCpuPasses();
  mlir::registerTransformsPasses();
  mlir::DialectRegistry registry;
  ktune::ir::registerDialects(registry);
  return mlir::asMainReturnCode(mlir::MlirOptMain(argc, argv, "ktune's IR passes\n", registry));
}
