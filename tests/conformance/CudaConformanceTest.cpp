// Every operator, and chains that nobody wrote a kernel for, x random legal genomes, on cuda without a GPU: the
// generated source is run on the CPU and proven by the guard (what that covers: emulation/cuda_emulation.h), and
// compiled by NVRTC for every architecture.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <functional>
#include <optional>
#include <thread>

#include "base/File.h"
#include "base/System.h"
#include "conformance/Chains.h"
#include "conformance/RandomChains.h"
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

#if KTUNE_WITH_CUDA
/// Every core compiles what WORK(i) is for each i < COUNT; NVRTC has no lock of its own.
void onEveryCore(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < std::max(1, usableCores()); ++t)
    threads.emplace_back([&] {
      for (size_t i = next++; i < count; i = next++) work(i);
    });
  for (std::thread& thread : threads) thread.join();
}
#endif

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
  const std::span<const schedule::Architecture> all = schedule::architectures();
  onEveryCore(all.size(), [&](size_t i) { compileFor(all[i], i + 1); });
}
#endif

/// Some of the random chains, executed on the CPU: what a GPU runs for all of them (GpuRandomChains).
TEST(CudaRandomChains, SomeAreProvenRightOnTheCpu) {
  const std::string temp = *makeTempDirectory("/tmp", "ktune-cuda-chains");
  Result<std::unique_ptr<runtime::Device>> device = test::makeEmulatedCuda("sm_90a", temp);
  if (!device) {
    EXPECT_TRUE(removeTree(temp).isOk());
    GTEST_SKIP() << device.error().message();
  }
  const schedule::Target& target = (*device)->target();
  emit::CudaEmitter emitter;
  int proven = 0;
  for (const std::vector<op::DType>& dtypes : {std::vector{op::DType::kF32}, {op::DType::kBF16, op::DType::kF16}}) {
    for (const test::RandomChain& chain : test::randomChains(target, 25, dtypes)) {
      SCOPED_TRACE("seed " + std::to_string(chain.seed) + " " + op::label(chain.problem.source));
      Result<std::unique_ptr<runtime::Guard>> guard = runtime::Guard::create(chain.problem, **device, {});
      if (!guard && guard.error().code() == StatusCode::kUnsupported) continue;
      ASSERT_TRUE(guard.has_value()) << guard.error().message();
      schedule::Random random(chain.seed);
      const PlanGenome genome = schedule::randomGenome(chain.problem, target, random);
      Result<emit::CudaSource> source = emitter.emit(chain.problem, genome, target);
      ASSERT_TRUE(source.has_value()) << source.error().message() << "\n" << genome.text();
      Result<std::unique_ptr<runtime::LoadedPlan>> loaded =
          (*device)->load(test::withSource(source->plan, source->text));
      ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
      const runtime::GuardVerdict verdict = (*guard)->prove(**loaded);
      EXPECT_TRUE(verdict.right) << verdict.reason << ": " << verdict.detail << "\n" << genome.text();
      ++proven;
    }
  }
  EXPECT_GE(proven, 40);
  EXPECT_TRUE(removeTree(temp).isOk());
}

#if KTUNE_WITH_CUDA
/// A plan with a cubin of a genome's source; what spills too much has none, and is no mistake of the source.
Result<std::optional<cache::Plan>> compiled(const nvrtc::Nvrtc& nvrtc, const Problem& problem, const PlanGenome& genome,
                                            const schedule::Target& target) {
  emit::CudaEmitter emitter;
  KTUNE_ASSIGN(emit::CudaSource source, emitter.emit(problem, genome, target));
  Result<std::string> cubin =
      nvrtc::compileKernels(nvrtc, {"kernel", source.text, target.architecture, emit::deviceLibrary()});
  if (!cubin && cubin.error().code() == StatusCode::kUnsupported) return std::optional<cache::Plan>();
  if (!cubin) return cubin.error().withPrefix(source.text);
  cache::Artefact artefact{cache::ArtefactKind::kCubin, std::move(*cubin), {}};
  artefact.digest = digestOf(artefact.bytes);
  source.plan.artefacts.push_back(std::move(artefact));
  return std::optional<cache::Plan>(std::move(source.plan));
}

/// Values may have any name: words of C++ and CUDA, and what the device library calls its own.
TEST(CudaNames, MayBeWordsOfTheLanguage) {
  Result<const nvrtc::Nvrtc*> nvrtc = nvrtc::Nvrtc::load();
  if (!nvrtc) GTEST_SKIP() << nvrtc.error().message();
  const auto named = [](const std::array<std::string, 2>& names) {
    const op::Symbol tokens{"M", 17, 64, {64}};
    Result<op::Graph> graph = op::makeLinear(tokens, 64, 64, op::DType::kBF16);
    EXPECT_TRUE(graph.has_value()) << graph.error().message();
    for (size_t i = 0; i < graph->inputs.size(); ++i) graph->inputs[i].name = names[i];
    return *graph;
  };
  const std::array<std::string, 2> words[] = {
      {"while", "class"},        {"return", "new"},    {"threadIdx", "blockIdx"}, {"contractMma", "MmaLayout"},
      {"rasterise", "template"}, {"ktune", "nullptr"}, {"contractDot", "union"},
  };
  onEveryCore(std::size(words), [&](size_t i) {
    const Problem problem = problemOf(named(words[i]));
    const schedule::Target target = schedule::cudaTarget("sm_90a");
    const Result<std::optional<cache::Plan>> plan =
        compiled(**nvrtc, problem, schedule::defaultGenome(problem, target), target);
    EXPECT_TRUE(plan.has_value()) << words[i][0] << ", " << words[i][1] << ": " << plan.status().message();
  });
}

/// The chains of cpu_conformance_test and as many in 16 bits, each for an architecture of its own.
TEST(CudaRandomChains, CompileForSomeArchitecture) {
  Result<const nvrtc::Nvrtc*> nvrtc = nvrtc::Nvrtc::load();
  if (!nvrtc) GTEST_SKIP() << nvrtc.error().message();
  const std::span<const schedule::Architecture> all = schedule::architectures();
  for (const std::vector<op::DType>& dtypes : {std::vector{op::DType::kF32}, {op::DType::kBF16, op::DType::kF16}}) {
    const std::vector<test::RandomChain> chains =
        test::randomChains(schedule::cudaTarget("sm_90a"), test::kRandomChains / 2, dtypes);
    ASSERT_EQ(chains.size(), test::kRandomChains / 2);
    onEveryCore(chains.size(), [&](size_t i) {
      const schedule::Target target = schedule::cudaTarget(std::string(all[i % all.size()].name));
      schedule::Random random(chains[i].seed);
      const Result<std::optional<cache::Plan>> plan =
          compiled(**nvrtc, chains[i].problem, schedule::randomGenome(chains[i].problem, target, random), target);
      EXPECT_TRUE(plan.has_value()) << "seed " << chains[i].seed << " " << target.architecture << ": "
                                    << plan.status().message();
    });
  }
}

/// The same seeds as on the cpu, and as many in 16 bits, on a GPU: the default and a random genome, through the guard.
TEST(GpuRandomChains, AreProvenRight) {
  runtime::DeviceOptions options;
  options.compileKernel = [](const std::string& source, const std::string& architecture) -> Result<std::string> {
    KTUNE_ASSIGN(const nvrtc::Nvrtc* const nvrtc, nvrtc::Nvrtc::load());
    return nvrtc::compileKernels(*nvrtc, {"device_kernel", source, architecture, {}});
  };
  Result<std::unique_ptr<runtime::Device>> device = runtime::openDevice("cuda:0", options);
  if (!device) GTEST_SKIP() << "needs a GPU: " << device.error().message();
  Result<const nvrtc::Nvrtc*> nvrtc = nvrtc::Nvrtc::load();
  if (!nvrtc) GTEST_SKIP() << nvrtc.error().message();
  const schedule::Target target = (*device)->target();
  int proven = 0, unprovable = 0, plans = 0, spilled = 0;
  for (const std::vector<op::DType>& dtypes : {std::vector{op::DType::kF32}, {op::DType::kBF16, op::DType::kF16}}) {
    const std::vector<test::RandomChain> chains = test::randomChains(target, test::kRandomChains, dtypes);
    struct Candidate {
      PlanGenome genome;
      Result<std::optional<cache::Plan>> plan = std::optional<cache::Plan>();
    };
    std::vector<std::array<Candidate, 2>> candidates(chains.size());
    onEveryCore(chains.size(), [&](size_t i) {
      schedule::Random random(chains[i].seed);
      candidates[i][0].genome = schedule::defaultGenome(chains[i].problem, target);
      candidates[i][1].genome = schedule::randomGenome(chains[i].problem, target, random);
      for (Candidate& c : candidates[i]) c.plan = compiled(**nvrtc, chains[i].problem, c.genome, target);
    });
    for (size_t i = 0; i < chains.size(); ++i) {
      SCOPED_TRACE("seed " + std::to_string(chains[i].seed) + " " + op::label(chains[i].problem.source));
      Result<std::unique_ptr<runtime::Guard>> guard = runtime::Guard::create(chains[i].problem, **device, {});
      if (!guard && guard.error().code() == StatusCode::kUnsupported) {
        ++unprovable;
        continue;
      }
      ASSERT_TRUE(guard.has_value()) << guard.error().message();
      for (const Candidate& c : candidates[i]) {
        ASSERT_TRUE(c.plan.has_value()) << c.plan.error().message();
        if (!*c.plan) {
          ++spilled;
          continue;
        }
        Result<std::unique_ptr<runtime::LoadedPlan>> loaded = (*device)->load(**c.plan);
        ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
        const runtime::GuardVerdict verdict = (*guard)->prove(**loaded);
        EXPECT_TRUE(verdict.right) << verdict.reason << ": " << verdict.detail << "\n" << c.genome.text();
        ASSERT_TRUE(verdict.device.isOk()) << verdict.device.toString();
        ++plans;
      }
      ++proven;
    }
  }
  EXPECT_GE(proven, 1000) << unprovable;
  std::printf("%d chains and %d plans proven, %d without a check, %d spill\n", proven, plans, unprovable, spilled);
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
