// Every operator, and chains that nobody wrote a kernel for, x random legal genomes, on cuda without a GPU: the
// generated source is run on the CPU and proven by the guard (what that covers: emulation/cuda_emulation.h), and
// compiled by NVRTC for every architecture.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "base/File.h"
#include "base/System.h"
#include "conformance/Chains.h"
#include "conformance/emulation/EmulatedCuda.h"
#include "ir/emit/cuda/CudaEmitter.h"
#include "ir/schedule/Architecture.h"
#include "ir/schedule/Vary.h"
#include "runtime/guard/Guard.h"
#if KTUNE_WITH_CUDA
#include "runtime/nvrtc/KernelCompiler.h"
#endif

namespace ktune {
namespace {

using schedule::PlanGenome;
using schedule::Problem;

Problem problemOf(const op::Graph& graph) {
  Result<Problem> problem = Problem::create(graph, op::bucketsOf(graph).at(0));
  EXPECT_TRUE(problem.has_value()) << problem.status().toString();
  return problem ? *problem : Problem();
}

/// GENOME, then the default, then random ones; for a contraction every instruction that is legal comes up.
std::vector<PlanGenome> genomesOf(const Problem& problem, const schedule::Target& target, int count, uint64_t seed,
                                  bool everyInstruction = true) {
  schedule::Random random(seed);
  std::vector<PlanGenome> genomes = {schedule::defaultGenome(problem, target)};
  for (int32_t instruction : {0, 1, 2}) {
    if (!everyInstruction) break;
    PlanGenome genome = genomes[0];
    bool changed = false;
    for (schedule::KernelSchedule& kernel : genome.kernels) {
      if (kernel.generator != schedule::Generator::kContraction || kernel.instruction == instruction) continue;
      kernel.instruction = instruction;
      changed = true;
    }
    genome = schedule::repair(std::move(genome), problem, target);
    if (changed && !(genome == genomes[0])) genomes.push_back(std::move(genome));
  }
  for (int i = 0; i < count; ++i) genomes.push_back(schedule::randomGenome(problem, target, random));
  return genomes;
}

class CudaConformance : public testing::TestWithParam<test::Chain> {
 protected:
  static void SetUpTestSuite() {
    Result<std::string> folder = makeTempDirectory("/tmp", "ktune-cuda-conformance");
    ASSERT_TRUE(folder.has_value()) << folder.error().message();
    temp_ = *folder;
  }
  static void TearDownTestSuite() { EXPECT_TRUE(removeTree(temp_).isOk()); }
  static inline std::string temp_;
  emit::CudaEmitter emitter_;
};

TEST_P(CudaConformance, RandomGenomesAreProvenRightOnTheCpu) {
  Result<std::unique_ptr<runtime::Device>> device = test::makeEmulatedCuda("sm_90a", temp_);
  if (!device) GTEST_SKIP() << device.error().message();
  const Problem problem = problemOf(GetParam().graph);
  const schedule::Target& target = (*device)->target();
  runtime::GuardOptions options;
  options.seed = 7;
  Result<std::unique_ptr<runtime::Guard>> guard = runtime::Guard::create(problem, **device, options);
  ASSERT_TRUE(guard.has_value()) << guard.error().message();
  bool first = true;
  for (const PlanGenome& genome : genomesOf(problem, target, 3, 11)) {
    SCOPED_TRACE(genome.text());
    Result<emit::CudaSource> source = emitter_.emit(problem, genome, target);
    ASSERT_TRUE(source.has_value()) << source.error().message();
    Result<std::unique_ptr<runtime::LoadedPlan>> loaded = (*device)->load(test::withSource(source->plan, source->text));
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message() << "\n" << source->text;
    // The default goes through everything that the guard knows; the others through one case each.
    const runtime::GuardVerdict verdict = first ? (*guard)->prove(**loaded) : (*guard)->screen(**loaded);
    first = false;
    EXPECT_TRUE(verdict.right) << verdict.reason << ": " << verdict.detail << "\n" << source->text;
  }
}

#if KTUNE_WITH_CUDA
TEST_P(CudaConformance, RandomGenomesCompileForEveryArchitecture) {
  Result<const nvrtc::Nvrtc*> nvrtc = nvrtc::Nvrtc::load();
  if (!nvrtc) GTEST_SKIP() << nvrtc.error().message();
  const Problem problem = problemOf(GetParam().graph);
  const auto compileFor = [&](const schedule::Architecture& architecture, uint64_t seed) {
    const schedule::Target target = schedule::cudaTarget(std::string(architecture.name));
    SCOPED_TRACE(target.architecture);
    emit::CudaEmitter emitter;
    // Instructions differ where capabilities do; elsewhere the default and a random genome are enough.
    const bool everyInstruction = architecture.capability == 80 || architecture.capability == 90;
    for (const PlanGenome& genome : genomesOf(problem, target, 1, seed, everyInstruction)) {
      SCOPED_TRACE(genome.text());
      const Result<emit::CudaSource> source = emitter.emit(problem, genome, target);
      ASSERT_TRUE(source.has_value()) << source.error().message();
      const Result<std::string> cubin =
          nvrtc::compileKernels(**nvrtc, {"kernel", source->text, target.architecture, emit::deviceLibrary()});
      // What spills is refused, and that is no mistake of the source.
      if (!cubin && cubin.error().code() == StatusCode::kUnsupported) continue;
      ASSERT_TRUE(cubin.has_value()) << cubin.error().message() << "\n" << source->text;
      for (const cache::Launch& launch : source->plan.launches)
        EXPECT_NE(cubin->find(launch.symbol), std::string::npos) << launch.symbol;
    }
  };
  // NVRTC has no lock of its own: every core compiles.
  const std::span<const schedule::Architecture> all = schedule::architectures();
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < std::max(1, usableCores()); ++t)
    threads.emplace_back([&] {
      for (size_t i = next++; i < all.size(); i = next++) compileFor(all[i], i + 1);
    });
  for (std::thread& thread : threads) thread.join();
}
#endif

INSTANTIATE_TEST_SUITE_P(Chains, CudaConformance, testing::ValuesIn(test::cudaChains()), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name)
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace ktune
