#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <random>

#include "ir/op/Operator.h"
#include "ir/schedule/Legality.h"
#include "ir/schedule/Problem.h"
#include "schedule/SampleProblems.h"

namespace ktune::schedule {
namespace {

using namespace testing;

std::vector<uint8_t> all(const Problem& p, uint8_t bit) {
  return std::vector<uint8_t>(p.edges.size(), bit);
}

std::string reasonOf(const Result<std::vector<Group>>& groups) {
  return groups ? "" : groups.error().message();
}

Result<Problem> create(const op::GraphBuilder& builder) {
  op::Graph graph = built(builder.finish());
  return Problem::create(graph, op::bucketsOf(graph)[0]);
}

TEST(Problem, NormIsOneRowKernelOrSeveral) {
  Problem p = problemOf(built(op::makeRmsNorm({"M", 1, 16, {16}}, 1, 4096, 1e-6, DType::kF32)), 0);
  Result<std::vector<Group>> one = p.groups(all(p, 1));
  ASSERT_TRUE(one.has_value()) << reasonOf(one);
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ((*one)[0].generator, Generator::kRow);
  EXPECT_EQ((*one)[0].inputs, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ((*one)[0].outputs, (std::vector<int32_t>{p.primitives.outputs[0].value}));
  EXPECT_EQ((*one)[0].nodes.size(), p.primitives.nodes.size());

  Result<std::vector<Group>> apart = p.groups(all(p, 0));
  ASSERT_TRUE(apart.has_value()) << reasonOf(apart);
  EXPECT_GT(apart->size(), 4u);
  std::vector<int32_t> known{0, 1};
  for (const Group& g : *apart) {
    for (int32_t v : g.inputs) EXPECT_NE(std::find(known.begin(), known.end(), v), known.end()) << "read before made";
    known.insert(known.end(), g.outputs.begin(), g.outputs.end());
    EXPECT_EQ(g.outputs.size(), 1u);
  }
}

TEST(Problem, ConstantsAreCopiedIntoEveryUser) {
  Problem p = problemOf(diamond(), 0);
  Result<std::vector<Group>> apart = p.groups(all(p, 0));
  ASSERT_TRUE(apart.has_value()) << reasonOf(apart);
  ASSERT_EQ(apart->size(), 4u);
  int copies = 0;
  for (const Group& g : *apart) {
    for (int32_t n : g.nodes) copies += p.primitives.nodes[static_cast<size_t>(n)].op == "constant" ? 1 : 0;
  }
  EXPECT_EQ(copies, 2);
  for (const Edge& e : p.edges) EXPECT_NE(p.primitives.nodes[static_cast<size_t>(e.producer)].op, "constant");
}

TEST(Problem, AConstantOutputHasItsOwnKernel) {
  op::GraphBuilder b;
  b.output(b.node("constant", {}, {{"value", 3.0}}));
  Result<Problem> p = create(b);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  Result<std::vector<Group>> groups = p->groups({});
  ASSERT_TRUE(groups.has_value()) << reasonOf(groups);
  ASSERT_EQ(groups->size(), 1u);
  EXPECT_EQ((*groups)[0].generator, Generator::kMap);
  EXPECT_EQ((*groups)[0].outputs.size(), 1u);
}

TEST(Problem, NonConvexGroupsAreRefused) {
  Problem p = problemOf(diamond(), 0);
  // neg -> add, neg -> sub, add -> mul, sub -> mul: leave sub out.
  std::vector<uint8_t> fuse;
  for (const Edge& e : p.edges) {
    const std::string& from = p.primitives.nodes[static_cast<size_t>(e.producer)].op;
    const std::string& to = p.primitives.nodes[static_cast<size_t>(e.consumer)].op;
    fuse.push_back(from != "sub" && to != "sub" ? 1 : 0);
  }
  Result<std::vector<Group>> groups = p.groups(fuse);
  ASSERT_FALSE(groups.has_value());
  EXPECT_NE(reasonOf(groups).find("group is not convex: node"), std::string::npos) << reasonOf(groups);
  std::vector<uint8_t> legal = p.legalFusion(fuse);
  EXPECT_TRUE(p.groups(legal).has_value());
  EXPECT_EQ(std::count(legal.begin(), legal.end(), 1), 1);
  // Three bits put all four nodes together: the fourth follows.
  fuse = all(p, 1);
  fuse[0] = 0;
  EXPECT_EQ(p.legalFusion(fuse), all(p, 1));
}

TEST(Problem, EpiloguesFuseIntoAContractionAndPrologueDoNot) {
  Problem p = problemOf(linearThenNorm(), 1);
  Result<std::vector<Group>> everything = p.groups(all(p, 1));
  ASSERT_FALSE(everything.has_value());
  EXPECT_EQ(reasonOf(everything), "a contraction and a reduction in one kernel");
  Result<std::vector<Group>> groups = p.groups(p.legalFusion(all(p, 1)));
  ASSERT_TRUE(groups.has_value()) << reasonOf(groups);
  ASSERT_EQ(groups->size(), 2u);
  EXPECT_EQ((*groups)[0].generator, Generator::kContraction);
  EXPECT_EQ((*groups)[0].inputs, (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ((*groups)[1].generator, Generator::kRow);

  op::GraphBuilder b;
  int32_t x = b.input("x", DType::kF32, {Dim::fixed(8), Dim::fixed(64)});
  int32_t w = b.input("w", DType::kF32, {Dim::fixed(64), Dim::fixed(64)});
  int32_t y = b.node("neg", {x});
  b.output(b.node("add", {b.node("matmul", {y, w}), y}));
  Result<Problem> q = create(b);
  ASSERT_TRUE(q.has_value()) << q.error().message();
  EXPECT_EQ(q->edges.size(), 2u) << "neg -> matmul can never be fused";
  Result<std::vector<Group>> prologue = q->groups({1, 1});
  EXPECT_NE(reasonOf(prologue).find("prologue on a contraction operand is not supported on this generator"),
            std::string::npos)
      << reasonOf(prologue);
}

TEST(Problem, TwoContractionsAndTwoRowLengthsAreRefused) {
  op::GraphBuilder b;
  int32_t x = b.input("x", DType::kF32, {Dim::fixed(8), Dim::fixed(64)});
  int32_t w = b.input("w", DType::kF32, {Dim::fixed(32), Dim::fixed(64)});
  b.output(b.node("add", {b.node("matmul", {x, w}), b.node("matmul", {x, w})}));
  Result<Problem> p = create(b);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  EXPECT_EQ(reasonOf(p->groups({1, 1})), "two contractions in one kernel");
  EXPECT_TRUE(p->groups({1, 0}).has_value());

  op::GraphBuilder c;
  int32_t a = c.input("a", DType::kF32, {Dim::fixed(8), Dim::fixed(64)});
  int32_t d = c.input("d", DType::kF32, {Dim::fixed(8), Dim::fixed(32)});
  c.output(c.node("add", {c.node("reduce_sum", {a}), c.node("reduce_sum", {d})}));
  Result<Problem> q = create(c);
  ASSERT_TRUE(q.has_value()) << q.error().message();
  EXPECT_EQ(reasonOf(q->groups({1, 1})), "reduces over different row lengths");
}

TEST(Problem, MatrixViews) {
  op::GraphBuilder b;
  int32_t m = b.symbol("M", 1, 8);
  int32_t x = b.input("x", DType::kF32, {Dim::fixed(2), Dim::symbolic(m, 3), Dim::fixed(5), Dim::fixed(64)});
  int32_t w = b.input("w", DType::kF32, {Dim::fixed(64)});
  int32_t s = b.input("s", DType::kF32, {});
  b.output(b.node("mul", {b.node("mul", {x, w}), s}));
  Result<Problem> p = create(b);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  EXPECT_EQ(p->matrixOf(x).rows, Dim::symbolic(m, 30));
  EXPECT_EQ(p->matrixOf(x).columns, Dim::fixed(64));
  EXPECT_EQ(p->matrixOf(w).rows, Dim::fixed(1));
  EXPECT_EQ(p->matrixOf(w).columns, Dim::fixed(64));
  EXPECT_EQ(p->matrixOf(s).columns, Dim::fixed(1));
}

TEST(Problem, WhatNoGeneratorCanViewIsUnsupported) {
  auto reason = [](auto fill) {
    op::GraphBuilder b;
    fill(b);
    Result<Problem> p = create(b);
    EXPECT_FALSE(p.has_value());
    if (p) return std::string();
    EXPECT_EQ(p.error().code(), StatusCode::kUnsupported);
    return p.error().message();
  };
  std::string middle = reason([](op::GraphBuilder& b) {
    int32_t x = b.input("x", DType::kF32, {Dim::fixed(4), Dim::fixed(3), Dim::fixed(8)});
    int32_t y = b.input("y", DType::kF32, {Dim::fixed(4), Dim::fixed(1), Dim::fixed(8)});
    b.output(b.node("add", {x, y}));
  });
  EXPECT_NE(middle.find("only whole rows are broadcast"), std::string::npos) << middle;
  std::string two = reason([](op::GraphBuilder& b) {
    int32_t m = b.symbol("M", 1, 8), n = b.symbol("N", 1, 8);
    b.output(b.node("neg", {b.input("x", DType::kF32, {Dim::symbolic(m), Dim::symbolic(n), Dim::fixed(8)})}));
  });
  EXPECT_NE(two.find("product of two symbols"), std::string::npos) << two;
  std::string transposed = reason([](op::GraphBuilder& b) {
    int32_t x = b.input("x", DType::kF32, {Dim::fixed(4), Dim::fixed(8)});
    b.graph().inputs[0].strides = {1, 4};
    b.output(b.node("neg", {x}));
  });
  EXPECT_NE(transposed.find("not neighbours"), std::string::npos) << transposed;
  std::string gaps = reason([](op::GraphBuilder& b) {
    int32_t x = b.input("x", DType::kF32, {Dim::fixed(4), Dim::fixed(8), Dim::fixed(8)});
    b.graph().inputs[0].strides = {100, 8, 1};
    b.output(b.node("neg", {x}));
  });
  EXPECT_NE(gaps.find("not rows at one stride"), std::string::npos) << gaps;
}

TEST(Problem, RowsAtAStrideAreAView) {
  op::GraphBuilder b;
  int32_t m = b.symbol("M", 1, 8);
  int32_t x = b.input("x", DType::kF32, {Dim::symbolic(m), Dim::fixed(2), Dim::fixed(8)});
  b.graph().inputs[0].strides = {48, 24, 1};
  b.output(b.node("neg", {x}));
  Result<Problem> p = create(b);
  EXPECT_TRUE(p.has_value()) << p.error().message();
}

TEST(Problem, ABroadcastValueIsNotWrittenByItsUser) {
  op::GraphBuilder b;
  int32_t x = b.input("x", DType::kF32, {Dim::fixed(8), Dim::fixed(64)});
  int32_t w = b.input("w", DType::kF32, {Dim::fixed(64)});
  int32_t n = b.node("neg", {w});
  b.output(n);
  b.output(b.node("mul", {x, n}));
  Result<Problem> p = create(b);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  EXPECT_NE(reasonOf(p->groups({1})).find("is broadcast inside the kernel that writes it"), std::string::npos);
  EXPECT_EQ(p->legalFusion({1}), std::vector<uint8_t>{0});
}

TEST(Problem, AnOverwrittenInputIsReadFirst) {
  // c = a * (a + b) where a + b goes to a's memory: apart, the second kernel would read what the first overwrote.
  op::GraphBuilder b;
  int32_t x = b.input("a", DType::kF32, {Dim::fixed(8), Dim::fixed(64)});
  int32_t y = b.input("b", DType::kF32, {Dim::fixed(8), Dim::fixed(64)});
  int32_t sum = b.node("add", {x, y});
  b.output(sum, x);
  b.output(b.node("mul", {x, sum}));
  Result<Problem> p = create(b);
  ASSERT_TRUE(p.has_value()) << p.error().message();
  EXPECT_FALSE(p->groups({0}).has_value());
  EXPECT_EQ(p->legalFusion({0}), std::vector<uint8_t>{1});

  // Independent kernels are put in the right order.
  op::GraphBuilder c;
  x = c.input("a", DType::kF32, {Dim::fixed(8), Dim::fixed(64)});
  int32_t first = c.node("neg", {x});
  int32_t second = c.node("sqrt", {x});
  c.output(first, x);
  c.output(second);
  Result<Problem> q = create(c);
  ASSERT_TRUE(q.has_value()) << q.error().message();
  Result<std::vector<Group>> groups = q->groups({});
  ASSERT_TRUE(groups.has_value()) << reasonOf(groups);
  EXPECT_EQ((*groups)[0].outputs, std::vector<int32_t>{second});
}

TEST(Problem, ForeignBucketsAndBitCountsAreRefused) {
  op::Graph graph = built(op::makeAdd({"M", 1, 8, {8}}, 16, DType::kF32));
  Result<Problem> p = Problem::create(graph, op::Bucket{{2}, {8}});
  ASSERT_FALSE(p.has_value());
  EXPECT_EQ(p.error().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(problemOf(graph, 0).groups({1}).error().code(), StatusCode::kInvalidArgument);
}

TEST(Problem, EverySampleFusesLegallyWhateverTheBits) {
  std::mt19937_64 random(3);
  for (const Sample& sample : samples()) {
    Problem p = problemOf(sample.graph, 0);
    for (int i = 0; i < 64; ++i) {
      std::vector<uint8_t> fuse;
      for (size_t e = 0; e < p.edges.size(); ++e) fuse.push_back(static_cast<uint8_t>(random() & 1));
      std::vector<uint8_t> legal = p.legalFusion(fuse);
      ASSERT_TRUE(p.groups(legal).has_value()) << sample.name;
      EXPECT_EQ(p.legalFusion(legal), legal) << sample.name;
      if (p.groups(fuse)) {
        for (size_t e = 0; e < fuse.size(); ++e) EXPECT_GE(legal[e], fuse[e]) << sample.name;
      }
    }
  }
}

TEST(Problem, WhatNoKernelIsMadeForIsRefusedWithTheReason) {
  Target cpu;
  cpu.kind = DeviceKind::kCpu;
  const Target cuda = cudaTarget("sm_90a");
  const auto reason = [](const Target& target, const std::function<void(op::GraphBuilder&)>& build) {
    op::GraphBuilder b;
    build(b);
    Result<Problem> problem = create(b);
    EXPECT_TRUE(problem.has_value()) << problem.status().message();
    const Status status = problem ? supported(*problem, target) : problem.status();
    EXPECT_TRUE(status.isOk() || status.code() == StatusCode::kUnsupported);
    return status.message();
  };
  const auto tanhOf = [](DType type) {
    return [type](op::GraphBuilder& b) { b.output(b.node("tanh", {b.input("x", type, {Dim::fixed(8)})})); };
  };
  EXPECT_EQ(reason(cpu, tanhOf(DType::kF32)), "");
  EXPECT_EQ(reason(cuda, tanhOf(DType::kF64)), "");
  EXPECT_NE(reason(cpu, tanhOf(DType::kF64)).find("tanh for f32 only"), std::string::npos);

  const auto summed = [](const char* op, DType type) {
    return [op, type](op::GraphBuilder& b) {
      b.output(b.node(op, {b.input("x", type, {Dim::fixed(8), Dim::fixed(8)})}));
      b.numerics().accumulate = DType::kF64;
    };
  };
  for (const Target& target : {cpu, cuda}) {
    EXPECT_NE(reason(target, summed("reduce_sum", DType::kF32)).find("accumulated in f64"), std::string::npos);
    EXPECT_EQ(reason(target, summed("reduce_max", DType::kF32)), "");
    EXPECT_EQ(reason(target, summed("reduce_sum", DType::kF64)), "");
  }

  const auto aligned = [](int64_t alignment) {
    return [alignment](op::GraphBuilder& b) {
      b.output(b.node("neg", {b.input("x", DType::kF32, {Dim::fixed(8)})}));
      b.graph().inputs[0].alignmentBytes = alignment;
    };
  };
  EXPECT_EQ(reason(cuda, aligned(4)), "");
  EXPECT_EQ(reason(cpu, aligned(2)), "");
  EXPECT_NE(reason(cuda, aligned(2)).find("'x' is f32 and promises an alignment of 2"), std::string::npos);
}

}  // namespace
}  // namespace ktune::schedule
