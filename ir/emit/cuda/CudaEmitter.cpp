#include "ir/emit/cuda/CudaEmitter.h"

#include "ir/dialect/Diagnostics.h"
#include "ir/emit/cuda/TileToCuda.h"
#include "ir/lower/Lower.h"
#include "ir/lower/PlanLayout.h"
#include "ir/op/GraphJson.h"
#include "ir/schedule/Legality.h"

namespace ktune::emit {

using namespace mlir;

struct CudaEmitter::State {
  MLIRContext context{MLIRContext::Threading::DISABLED};

  State() { ir::loadDialects(context); }

  ktune::Result<OwningOpRef<ModuleOp>> lower(const schedule::Problem& problem, const schedule::PlanGenome& genome) {
    ir::ErrorCollector errors(&context);
    KTUNE_ASSIGN(OwningOpRef<ModuleOp> module, ir::importProblem(context, problem));
    (*module)->setAttr(ir::kGenomeAttr, ir::genomeAttr(&context, genome));
    PassManager passes(&context);
    passes.addPass(ir::createDecomposePass());
    passes.addPass(ir::createGeneratePass());
    if (mlir::failed(passes.run(*module))) return errors.error("lowering");
    return module;
  }
};

CudaEmitter::CudaEmitter() : state_(std::make_unique<State>()) {}
CudaEmitter::~CudaEmitter() = default;

namespace {

/// TEXT as the lines of a comment.
std::string comment(const std::string& text) {
  std::string out;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    out += "// " + text.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return out;
}

std::string headOf(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                   const schedule::Target& target) {
  return comment(op::label(problem.source) + ", " + problem.bucket.describe(problem.source) + ", " +
                 target.architecture) +
         comment(op::toJson(problem.source).dump()) + comment(genome.text()) +
         "#include \"ktune/device/contract.h\"\n#include \"ktune/device/tile.h\"\n\n"
         "using namespace ktune::device;\n";
}

}  // namespace

ktune::Result<CudaSource> CudaEmitter::emit(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                            const schedule::Target& target) {
  KTUNE_TRY(schedule::check(genome, problem, target));
  CudaSource source;
  KTUNE_ASSIGN(source.plan, ir::layoutPlan(problem, genome));
  KTUNE_ASSIGN(OwningOpRef<ModuleOp> module, state_->lower(problem, genome));
  source.text = headOf(problem, genome, target);
  for (auto kernel : module->getOps<func::FuncOp>()) {
    KTUNE_ASSIGN(const std::string text, printKernel(kernel));
    source.text += "\n" + text;
  }
  return source;
}

ktune::Result<std::string> CudaEmitter::print(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                              const schedule::Target& target, CudaStage stage) {
  if (stage == CudaStage::kSource) {
    KTUNE_ASSIGN(CudaSource source, emit(problem, genome, target));
    return std::move(source.text);
  }
  KTUNE_TRY(schedule::check(genome, problem, target));
  KTUNE_ASSIGN(OwningOpRef<ModuleOp> module, state_->lower(problem, genome));
  std::string text;
  llvm::raw_string_ostream stream(text);
  module->print(stream);
  stream << "\n";
  return text;
}

}  // namespace ktune::emit
