// The CUDA C++ that is emitted, kept beside this test (golden/) for people to read and to see changes of.
#include <gtest/gtest.h>

#include "GoldenSection.h"
#include "ir/emit/cuda/CudaEmitter.h"
#include "ir/op/Builder.h"
#include "ir/schedule/Legality.h"
#include "ir/schedule/Vary.h"

namespace ktune {
namespace {

using op::DType;
using schedule::KernelSchedule;
using schedule::Parameter;
using schedule::PlanGenome;

struct Golden {
  std::string name;
  Result<op::Graph> graph;
  /// Parameters that the default genome's first kernel must have (instruction) or is given (splitK); -1: any.
  int32_t instruction = -1, splitK = -1;
};

std::vector<Golden> goldens() {
  const op::Symbol one{"M", 1, 1, {1}}, few{"M", 3, 16, {16}}, many{"M", 17, 4096, {4096}};
  return {
      {"add", op::makeAdd(many, 4096, DType::kBF16)},
      {"rms_norm", op::makeRmsNorm(few, 1, 4096, 1e-6, DType::kBF16)},
      {"linear_dot", op::makeLinear(one, 4096, 4096, DType::kBF16), 0},
      {"linear_simt", op::makeLinear(many, 1024, 1024, DType::kF32), 1, 1},
      {"linear_mma", op::makeLinear(many, 4096, 4096, DType::kBF16), 2, 1},
      {"linear_split", op::makeLinear(few, 1024, 4096, DType::kBF16), 2, 4},
  };
}

TEST(CudaGolden, SourcesAreAsKept) {
  const schedule::Target target = schedule::cudaTarget("sm_90a");
  for (const Golden& golden : goldens()) {
    SCOPED_TRACE(golden.name);
    ASSERT_TRUE(golden.graph.has_value()) << golden.graph.error().message();
    Result<schedule::Problem> problem = schedule::Problem::create(*golden.graph, op::bucketsOf(*golden.graph).at(0));
    ASSERT_TRUE(problem.has_value()) << problem.error().message();
    PlanGenome genome = schedule::defaultGenome(*problem, target);
    KernelSchedule& first = genome.kernels.at(0);
    if (golden.splitK > 0) first.set(Parameter::splitK, golden.splitK);
    if (golden.instruction >= 0) {
      EXPECT_EQ(first.instruction, golden.instruction) << genome.text();
    }
    ASSERT_TRUE(schedule::check(genome, *problem, target).isOk())
        << schedule::check(genome, *problem, target).message();
    Result<emit::CudaSource> source = emit::CudaEmitter().emit(*problem, genome, target);
    ASSERT_TRUE(source.has_value()) << source.error().message();
    test::expectGoldenFile("tests/conformance/golden/" + golden.name + ".cu", source->text);
  }
}

}  // namespace
}  // namespace ktune
