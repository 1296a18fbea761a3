#include <gtest/gtest.h>

#include "base/File.h"
#include "ir/emit/cpu/CpuCompiler.h"
#include "ir/op/Builder.h"
#include "ir/schedule/Vary.h"
#include "runtime/launch/Device.h"

namespace ktune {
namespace {

schedule::Problem sample() {
  op::Symbol tokens{"M", 1, 16, {1, 16}};
  op::Graph graph = *op::makeLinear(tokens, 64, 128, op::DType::kF32);
  return *schedule::Problem::create(graph, op::bucketsOf(graph)[1]);
}

class CpuCompilerTest : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::string> folder = makeTempDirectory("/tmp", "ktune-compiler-test");
    ASSERT_TRUE(folder.has_value());
    temp_ = *folder;
  }
  void TearDown() override { EXPECT_TRUE(removeTree(temp_).isOk()); }
  schedule::Target target_ = (*runtime::openDevice("cpu"))->target();
  std::string temp_;
};

TEST_F(CpuCompilerTest, CompilingTwiceGivesEqualBytes) {
  schedule::Problem problem = sample();
  schedule::PlanGenome genome = schedule::defaultGenome(problem, target_);
  emit::CpuCompiler first(temp_), second(temp_);
  Result<cache::Plan> a = first.compile(problem, genome, target_), again = first.compile(problem, genome, target_),
                      b = second.compile(problem, genome, target_);
  ASSERT_TRUE(a && again && b);
  EXPECT_EQ(a->bytes(), again->bytes());
  EXPECT_EQ(a->bytes(), b->bytes());
}

TEST_F(CpuCompilerTest, TheSymbolNamesOperatorTypeBucketAndKey) {
  schedule::Problem problem = sample();
  emit::CpuCompiler compiler(temp_);
  Result<cache::Plan> plan = compiler.compile(problem, schedule::defaultGenome(problem, target_), target_);
  ASSERT_TRUE(plan.has_value());
  ASSERT_EQ(plan->launches.size(), 1u);
  EXPECT_EQ(plan->launches[0].symbol.rfind("ktune_linear_f32_M_2__16_", 0), 0u) << plan->launches[0].symbol;
}

TEST_F(CpuCompilerTest, IllegalGenomesAreRefusedWithTheReason) {
  schedule::Problem problem = sample();
  schedule::PlanGenome genome = schedule::defaultGenome(problem, target_);
  genome.kernels[0].registerRows = 8;
  genome.kernels[0].registerColumns = 12;
  emit::CpuCompiler compiler(temp_);
  Result<cache::Plan> plan = compiler.compile(problem, genome, target_);
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(plan.error().message().find("registers"), std::string::npos) << plan.error().message();
}

TEST_F(CpuCompilerTest, OtherElementTypesAreUnsupported) {
  op::Graph graph = *op::makeRmsNorm(op::Symbol{"M", 1, 1, {1}}, 1, 64, 1e-6, op::DType::kBF16);
  schedule::Problem problem = *schedule::Problem::create(graph, op::bucketsOf(graph)[0]);
  emit::CpuCompiler compiler(temp_);
  Result<cache::Plan> plan = compiler.compile(problem, schedule::defaultGenome(problem, target_), target_);
  ASSERT_FALSE(plan.has_value());
  EXPECT_EQ(plan.error().code(), StatusCode::kUnsupported);
  EXPECT_NE(plan.error().message().find("bf16"), std::string::npos) << plan.error().message();
}

TEST_F(CpuCompilerTest, AFullTemporaryFolderIsAClearError) {
  schedule::Problem problem = sample();
  emit::CpuCompiler compiler("/proc/no-such-folder");
  Result<cache::Plan> plan = compiler.compile(problem, schedule::defaultGenome(problem, target_), target_);
  ASSERT_FALSE(plan.has_value());
  EXPECT_NE(plan.error().message().find("/proc/no-such-folder"), std::string::npos) << plan.error().message();
}

TEST_F(CpuCompilerTest, EveryStagePrints) {
  schedule::Problem problem = sample();
  schedule::PlanGenome genome = schedule::defaultGenome(problem, target_);
  emit::CpuCompiler compiler(temp_);
  const std::pair<emit::Stage, const char*> expected[] = {{emit::Stage::kLinalg, "ktune.operator \"linear\""},
                                                          {emit::Stage::kDecomposed, "linalg.generic"},
                                                          {emit::Stage::kTiles, "ktune.mma"},
                                                          {emit::Stage::kVector, "vector.fma"},
                                                          {emit::Stage::kLlvm, "define void @ktune_linear"},
                                                          {emit::Stage::kAssembly, ".globl\tktune_linear"}};
  for (const auto& [stage, fragment] : expected) {
    Result<std::string> text = compiler.print(problem, genome, target_, stage);
    ASSERT_TRUE(text.has_value()) << text.error().message();
    EXPECT_NE(text->find(fragment), std::string::npos) << fragment << " not in\n" << text->substr(0, 2000);
  }
}

TEST_F(CpuCompilerTest, TheScheduleDecidesTheVectorWidth) {
  schedule::Problem problem = sample();
  schedule::PlanGenome genome = schedule::defaultGenome(problem, target_);
  emit::CpuCompiler compiler(temp_);
  for (int lanes : {4, 8}) {
    genome.kernels[0].vector = lanes;
    Result<std::string> text = compiler.print(problem, genome, target_, emit::Stage::kLlvm);
    ASSERT_TRUE(text.has_value()) << text.error().message();
    std::string type = "<" + std::to_string(lanes) + " x float>";
    EXPECT_NE(text->find("@llvm.fmuladd.v" + std::to_string(lanes) + "f32"), std::string::npos) << type;
  }
}

}  // namespace
}  // namespace ktune
