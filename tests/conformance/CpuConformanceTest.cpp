#include <gtest/gtest.h>

#include "base/File.h"
#include "conformance/Chains.h"
#include "conformance/RandomChains.h"
#include "ir/emit/cpu/CpuCompiler.h"
#include "ir/schedule/Vary.h"
#include "runtime/guard/Guard.h"
#include "runtime/launch/Device.h"

namespace ktune {
namespace {

class CpuConformance : public testing::TestWithParam<test::Chain> {
 protected:
  static void SetUpTestSuite() {
    Result<std::string> folder = makeTempDirectory("/tmp", "ktune-conformance");
    ASSERT_TRUE(folder.has_value()) << folder.error().message();
    temp_ = *folder;
    compiler_ = std::make_unique<emit::CpuCompiler>(temp_);
  }
  static void TearDownTestSuite() {
    compiler_.reset();
    EXPECT_TRUE(removeTree(temp_).isOk());
  }
  static inline std::string temp_;
  static inline std::unique_ptr<emit::CpuCompiler> compiler_;
};

constexpr int kGenomes = 20;

TEST_P(CpuConformance, RandomGenomesAreProvenRight) {
  const op::Graph& graph = GetParam().graph;
  Result<std::unique_ptr<runtime::Device>> device = runtime::openDevice("cpu");
  ASSERT_TRUE(device.has_value()) << device.error().message();
  schedule::Target target = (*device)->target();
  std::vector<op::Bucket> buckets = op::bucketsOf(graph);
  ASSERT_EQ(buckets.size(), 1u);
  Result<schedule::Problem> problem = schedule::Problem::create(graph, buckets[0]);
  ASSERT_TRUE(problem.has_value()) << problem.error().message();
  runtime::GuardOptions options;
  options.seed = 7;
  Result<std::unique_ptr<runtime::Guard>> guard = runtime::Guard::create(*problem, **device, options);
  ASSERT_TRUE(guard.has_value()) << guard.error().message();

  schedule::Random random(11);
  schedule::PlanGenome genome = schedule::defaultGenome(*problem, target);
  for (int i = 0; i < kGenomes; ++i) {
    SCOPED_TRACE(genome.text());
    Result<cache::Plan> plan = compiler_->compile(*problem, genome, target);
    ASSERT_TRUE(plan.has_value()) << plan.error().message();
    Result<std::unique_ptr<runtime::LoadedPlan>> loaded = (*device)->load(*plan);
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
    runtime::GuardVerdict verdict = (*guard)->prove(**loaded);
    EXPECT_TRUE(verdict.right) << verdict.reason << ": " << verdict.detail;
    EXPECT_LE(verdict.worstErrorShare, 1.0);
    genome = schedule::randomGenome(*problem, target, random);
  }
}

/// More than five hundred chains of whatever the table holds: the default, and one random genome, through the whole
/// guard.
TEST(CpuRandomChains, AreProvenRight) {
  Result<std::unique_ptr<runtime::Device>> device = runtime::openDevice("cpu");
  ASSERT_TRUE(device.has_value()) << device.error().message();
  const schedule::Target target = (*device)->target();
  const std::string temp = *makeTempDirectory("/tmp", "ktune-chains");
  {
    emit::CpuCompiler compiler(temp);
    const std::vector<test::RandomChain> chains = test::randomChains(target, test::kRandomChains);
    ASSERT_EQ(chains.size(), test::kRandomChains);
    int proven = 0, unprovable = 0;
    for (const test::RandomChain& chain : chains) {
      SCOPED_TRACE("seed " + std::to_string(chain.seed) + " " + op::label(chain.problem.source));
      Result<std::unique_ptr<runtime::Guard>> guard = runtime::Guard::create(chain.problem, **device, {});
      if (!guard && guard.error().code() == StatusCode::kUnsupported) {
        ++unprovable;  // Zeros would be right: nothing to tell a kernel by.
        continue;
      }
      ASSERT_TRUE(guard.has_value()) << guard.error().message();
      schedule::Random random(chain.seed);
      for (const schedule::PlanGenome& genome :
           {schedule::defaultGenome(chain.problem, target), schedule::randomGenome(chain.problem, target, random)}) {
        Result<cache::Plan> plan = compiler.compile(chain.problem, genome, target);
        ASSERT_TRUE(plan.has_value()) << plan.error().message() << "\n" << genome.text();
        Result<std::unique_ptr<runtime::LoadedPlan>> loaded = (*device)->load(*plan);
        ASSERT_TRUE(loaded.has_value()) << loaded.error().message();
        const runtime::GuardVerdict verdict = (*guard)->prove(**loaded);
        EXPECT_TRUE(verdict.right) << verdict.reason << ": " << verdict.detail << "\n" << genome.text();
      }
      ++proven;
    }
    EXPECT_GE(proven, 500) << unprovable;
    std::printf("%d chains proven, %d without a check\n", proven, unprovable);
  }
  EXPECT_TRUE(removeTree(temp).isOk());
}

INSTANTIATE_TEST_SUITE_P(Chains, CpuConformance, testing::ValuesIn(test::chains()), [](const auto& info) {
  std::string name = info.param.name;
  for (char& c : name)
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
});

}  // namespace
}  // namespace ktune
