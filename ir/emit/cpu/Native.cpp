// The cpu compiler's pipeline: tile functions -> vector and scf -> LLVM IR -> object -> shared object.
#include "base/File.h"
#include "ir/dialect/Diagnostics.h"
#include "ir/emit/cpu/CpuCompiler.h"
#include "ir/emit/cpu/TileToVector.h"
#include "ir/lower/Lower.h"
#include "ir/lower/PlanLayout.h"
#include "ir/schedule/Legality.h"
#include "lld/Common/Driver.h"
#include "llvm/Config/llvm-config.h"
#include "llvm/IR/LegacyPassManager.h"
#include "llvm/IR/Module.h"
#include "llvm/MC/TargetRegistry.h"
#include "llvm/Passes/PassBuilder.h"
#include "llvm/Support/TargetSelect.h"
#include "llvm/Target/TargetMachine.h"
#include "llvm/TargetParser/Host.h"
#include "mlir/Conversion/ArithToLLVM/ArithToLLVM.h"
#include "mlir/Conversion/ControlFlowToLLVM/ControlFlowToLLVM.h"
#include "mlir/Conversion/FuncToLLVM/ConvertFuncToLLVMPass.h"
#include "mlir/Conversion/MathToLLVM/MathToLLVM.h"
#include "mlir/Conversion/ReconcileUnrealizedCasts/ReconcileUnrealizedCasts.h"
#include "mlir/Conversion/SCFToControlFlow/SCFToControlFlow.h"
#include "mlir/Conversion/VectorToLLVM/ConvertVectorToLLVMPass.h"
#include "mlir/Target/LLVMIR/Dialect/Builtin/BuiltinToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Dialect/LLVMIR/LLVMToLLVMIRTranslation.h"
#include "mlir/Target/LLVMIR/Export.h"

LLD_HAS_DRIVER(elf)

namespace ktune::emit {

using namespace mlir;

namespace {

/// Width, unrolling and order of the loops are the schedule's; LLVM only cleans up. Its default pipelines cost twice
/// the time, and they reorder the loads and products of a register block until the accumulators spill.
constexpr llvm::StringLiteral kPipeline =
    "function(early-cse<memssa>,instcombine,simplifycfg,loop-mssa(loop-rotate,licm),early-cse,instcombine,simplifycfg)";

std::string printed(Operation* op) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  op->print(stream);
  stream << "\n";
  return text;
}

std::unique_ptr<llvm::TargetMachine> hostMachine() {
  llvm::InitializeNativeTarget();
  llvm::InitializeNativeTargetAsmPrinter();
  llvm::Triple triple(llvm::sys::getDefaultTargetTriple());
  std::string error;
  const llvm::Target* target = llvm::TargetRegistry::lookupTarget(triple, error);
  if (!target) return nullptr;
  // A virtual machine may show a model number that LLVM takes for an older processor: the features decide.
  std::vector<std::string> features;
  for (const auto& feature : llvm::sys::getHostCPUFeatures())
    features.push_back((feature.getValue() ? "+" : "-") + feature.getKey().str());
  llvm::sort(features);
  llvm::TargetOptions options;
  return std::unique_ptr<llvm::TargetMachine>(
      target->createTargetMachine(triple, llvm::sys::getHostCPUName(), llvm::join(features, ","), options,
                                  llvm::Reloc::PIC_, std::nullopt, llvm::CodeGenOptLevel::Default));
}

}  // namespace

struct CpuCompiler::State {
  std::string tempDirectory;
  MLIRContext context{MLIRContext::Threading::DISABLED};
  std::unique_ptr<llvm::TargetMachine> machine = hostMachine();
  int serial = 0;
  bool linkerBroken = false;

  explicit State(std::string temp) : tempDirectory(std::move(temp)) {
    ir::loadDialects(context);
    registerBuiltinDialectTranslation(context);
    registerLLVMDialectTranslation(context);
  }

  /// The module after every step up to STAGE's (kLlvm and kAssembly: the LLVM dialect).
  ktune::Result<OwningOpRef<ModuleOp>> lower(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                             Stage stage) {
    ir::ErrorCollector errors(&context);
    KTUNE_ASSIGN(OwningOpRef<ModuleOp> module, ir::importProblem(context, problem));
    (*module)->setAttr(ir::kGenomeAttr, ir::genomeAttr(&context, genome));
    PassManager passes(&context);
    if (stage >= Stage::kDecomposed) passes.addPass(ir::createDecomposePass());
    if (stage >= Stage::kTiles) passes.addPass(ir::createGeneratePass());
    if (stage >= Stage::kVector) {
      passes.addPass(createTileToVectorPass());
      passes.addPass(createMathPass());
    }
    if (stage >= Stage::kLlvm) {
      passes.addPass(createSCFToControlFlowPass());
      passes.addPass(createConvertVectorToLLVMPass());
      passes.addPass(createConvertMathToLLVMPass());
      passes.addPass(createArithToLLVMConversionPass());
      passes.addPass(createConvertControlFlowToLLVMPass());
      passes.addPass(createConvertFuncToLLVMPass());
      passes.addPass(createReconcileUnrealizedCastsPass());
    }
    if (mlir::failed(passes.run(*module))) return errors.error("lowering");
    return module;
  }

  ktune::Result<std::unique_ptr<llvm::Module>> optimise(ModuleOp module, llvm::LLVMContext& llvmContext,
                                                        const schedule::Target& target) {
    if (!machine) return unsupported("LLVM was built without this machine's target");
    ir::ErrorCollector errors(&context);
    std::unique_ptr<llvm::Module> result = translateModuleToLLVMIR(module, llvmContext);
    if (!result) return errors.error("translation to LLVM IR");
    result->setDataLayout(machine->createDataLayout());
    result->setTargetTriple(machine->getTargetTriple());
    for (llvm::Function& function : *result) {
      if (function.isDeclaration()) continue;
      function.addFnAttr("target-cpu", machine->getTargetCPU());
      function.addFnAttr("target-features", machine->getTargetFeatureString());
      function.addFnAttr("prefer-vector-width", std::to_string(target.vectorBytes * 8));
      function.addFnAttr(llvm::Attribute::NoUnwind);
      function.addFnAttr("no-builtins");  // No memset or memcpy in place of a loop: the artefact links to nothing.
    }
    llvm::LoopAnalysisManager loops;
    llvm::FunctionAnalysisManager functions;
    llvm::CGSCCAnalysisManager sccs;
    llvm::ModuleAnalysisManager modules;
    llvm::PassBuilder builder(machine.get());
    builder.registerModuleAnalyses(modules);
    builder.registerCGSCCAnalyses(sccs);
    builder.registerFunctionAnalyses(functions);
    builder.registerLoopAnalyses(loops);
    builder.crossRegisterProxies(loops, functions, sccs, modules);
    llvm::ModulePassManager passes;
    if (llvm::Error failure = builder.parsePassPipeline(passes, kPipeline))
      return internalError("LLVM's pass pipeline: " + llvm::toString(std::move(failure)));
    passes.run(*result, modules);
    return result;
  }

  ktune::Result<std::string> generateCode(llvm::Module& module, llvm::CodeGenFileType type) {
    llvm::SmallVector<char, 0> bytes;
    llvm::raw_svector_ostream stream(bytes);
    llvm::legacy::PassManager passes;
    if (machine->addPassesToEmitFile(passes, stream, nullptr, type)) return internalError("LLVM cannot emit this file");
    passes.run(module);
    return std::string(bytes.begin(), bytes.end());
  }

  /// A shared object that needs nothing: every symbol must be defined in it.
  ktune::Result<std::string> link(const std::string& object) {
    if (linkerBroken) return unavailable("the linker failed earlier in this process and cannot run again");
    std::string stem = tempDirectory + "/candidate-" + std::to_string(serial++);
    std::string objectPath = stem + ".o", sharedPath = stem + ".so";
    KTUNE_TRY(writeFileAtomically(objectPath, object));
    std::vector<const char*> arguments = {
        "ld.lld",           "-shared", "--no-undefined",   "--build-id=none", "--threads=1",
        "--hash-style=gnu", "-o",      sharedPath.c_str(), objectPath.c_str()};
    std::string messages;
    llvm::raw_string_ostream out(messages);
    lld::Result linked = lld::lldMain(arguments, out, out, {{lld::Gnu, &lld::elf::link}});
    linkerBroken = !linked.canRunAgain;
    ktune::Result<std::string> shared =
        linked.retCode == 0 ? readFile(sharedPath) : ktune::Result<std::string>(internalError("linking: " + messages));
    (void)::remove(objectPath.c_str());
    (void)::remove(sharedPath.c_str());
    return shared;
  }
};

CpuCompiler::CpuCompiler(std::string tempDirectory) : state_(std::make_unique<State>(std::move(tempDirectory))) {}
CpuCompiler::~CpuCompiler() = default;

std::string CpuCompiler::version() {
  return "LLVM " LLVM_VERSION_STRING;
}

ktune::Result<cache::Plan> CpuCompiler::compile(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                                const schedule::Target& target) {
  KTUNE_TRY(schedule::check(genome, problem, target));
  KTUNE_ASSIGN(cache::Plan plan, ir::layoutPlan(problem, genome));
  KTUNE_ASSIGN(OwningOpRef<ModuleOp> module, state_->lower(problem, genome, Stage::kLlvm));
  llvm::LLVMContext llvmContext;
  KTUNE_ASSIGN(std::unique_ptr<llvm::Module> native, state_->optimise(*module, llvmContext, target));
  KTUNE_ASSIGN(std::string object, state_->generateCode(*native, llvm::CodeGenFileType::ObjectFile));
  KTUNE_ASSIGN(std::string shared, state_->link(object));
  cache::Artefact artefact{cache::ArtefactKind::kElfSharedObject, std::move(shared), {}};
  artefact.digest = digestOf(artefact.bytes);
  plan.artefacts.push_back(std::move(artefact));
  KTUNE_TRY(plan.validate());
  return plan;
}

ktune::Result<std::string> CpuCompiler::print(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                              const schedule::Target& target, Stage stage) {
  KTUNE_TRY(schedule::check(genome, problem, target));
  KTUNE_ASSIGN(OwningOpRef<ModuleOp> module, state_->lower(problem, genome, stage));
  if (stage < Stage::kLlvm) return printed(*module);
  llvm::LLVMContext llvmContext;
  KTUNE_ASSIGN(std::unique_ptr<llvm::Module> native, state_->optimise(*module, llvmContext, target));
  if (stage == Stage::kAssembly) return state_->generateCode(*native, llvm::CodeGenFileType::AssemblyFile);
  std::string text;
  llvm::raw_string_ostream stream(text);
  native->print(stream, nullptr);
  return text;
}

}  // namespace ktune::emit
