// check, repair, and the makers of genomes, over every sample problem and target.
#include <gtest/gtest.h>

#include <set>

#include "ir/schedule/Legality.h"
#include "ir/schedule/Vary.h"
#include "schedule/SampleProblems.h"

namespace ktune::schedule {
namespace {

using namespace testing;

/// Calls BODY(problem, target, name) for every sample, bucket and target.
template <typename Body>
void everywhere(Body body) {
  for (const Sample& sample : samples()) {
    for (size_t bucket = 0; bucket < op::bucketsOf(sample.graph).size(); ++bucket) {
      Problem problem = problemOf(sample.graph, bucket);
      for (const Target& target : targets()) {
        if (supported(problem, target).isOk())
          body(problem, target, sample.name + " " + problem.bucket.describe(sample.graph));
      }
    }
  }
}

/// Anything at all: wrong counts, wrong generators, unlisted values.
PlanGenome garbage(const Problem& problem, Random& random) {
  PlanGenome g;
  size_t bits = random() % 8 ? problem.edges.size() : random() % 20;
  for (size_t i = 0; i < bits; ++i) g.fuse.push_back(static_cast<uint8_t>(random() % 8 ? random() % 2 : random()));
  size_t kernels = random() % 10;
  for (size_t k = 0; k < kernels; ++k) {
    KernelSchedule s;
    s.generator = static_cast<Generator>(random() % kGeneratorCount);
    for (const ParameterDef& def : parameterTable()) {
      bool listed = random() % 4 != 0;
      s.set(def.id, listed ? def.values[random() % def.values.size()] : static_cast<int32_t>(random()));
    }
    g.kernels.push_back(s);
  }
  return g;
}

TEST(Legality, RepairMakesAnythingLegalAndIsIdempotent) {
  Random random(1);
  everywhere([&](const Problem& p, const Target& t, const std::string& name) {
    for (int i = 0; i < 60; ++i) {
      PlanGenome repaired = repair(garbage(p, random), p, t);
      Status status = check(repaired, p, t);
      ASSERT_TRUE(status.isOk()) << name << ": " << status.message() << "\n" << repaired.text();
      EXPECT_EQ(repair(repaired, p, t), repaired) << name;
    }
  });
}

TEST(Legality, LegalGenomesAreLeftAlone) {
  Random random(2);
  everywhere([&](const Problem& p, const Target& t, const std::string& name) {
    for (int i = 0; i < 20; ++i) {
      PlanGenome g = randomGenome(p, t, random);
      ASSERT_TRUE(check(g, p, t).isOk()) << name << ": " << check(g, p, t).message();
      EXPECT_EQ(repair(g, p, t), g) << name;
    }
  });
}

struct Refusal {
  Parameter parameter;
  int32_t value;
  const char* why;
};

void expectRefusals(const Problem& p, const Target& t, std::vector<Refusal> refusals) {
  PlanGenome good = defaultGenome(p, t);
  ASSERT_TRUE(check(good, p, t).isOk());
  for (const Refusal& r : refusals) {
    PlanGenome bad = good;
    bad.kernels[0].set(r.parameter, r.value);
    Status status = check(bad, p, t);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << r.why;
    EXPECT_NE(status.message().find(r.why), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("kernel 0: "), std::string::npos) << status.message();
    EXPECT_TRUE(check(repair(bad, p, t), p, t).isOk());
  }
}

TEST(Legality, SaysWhyNot) {
  Target wide = targets()[0], avx2 = targets()[2];
  Problem linear = problemOf(built(op::makeLinear({"M", 1, 16, {16}}, 4096, 4096, DType::kF32)), 0);
  expectRefusals(linear, wide,
                 {{Parameter::vector, 5, "vector = 5 is none of 4, 8, 16"},
                  {Parameter::registerRows, 8, "registerColumns = 6 with registerRows = 8 needs 55 vector registers"},
                  {Parameter::tileRows, 6, "tileRows = 6 is no multiple of registerRows = 4"},
                  {Parameter::tileRows, 64, "exceeds the 16 rows"},
                  {Parameter::tileColumns, 64, "is no multiple of registerColumns = 6"},
                  {Parameter::blockK, 4096, "blockK = 4096 is not less than the reduced extent 4096"}});
  expectRefusals(linear, avx2, {{Parameter::vector, 16, "needs 64-byte registers; the target has 32-byte ones"}});
  Problem narrow = problemOf(built(op::makeLinear({"M", 1, 1, {1}}, 4096, 64, DType::kF32)), 0);
  expectRefusals(narrow, wide,
                 {{Parameter::unroll, 8, "vector = 128 exceeds the reduced extent 64"},
                  {Parameter::registerRows, 2, "exceeds the 1 rows"}});
  Problem norm = problemOf(built(op::makeRmsNorm({"M", 1, 16, {16}}, 1, 4096, 1e-6, DType::kF32)), 0);
  expectRefusals(norm, wide, {{Parameter::registerRows, 8, "needs 34 vector registers; the target has 32"}});
  Problem odd = problemOf(built(op::makeAdd({"M", 1, 16, {16}}, 100, DType::kF32)), 0);
  expectRefusals(odd, wide,
                 {{Parameter::streamStores, 1, "aligned to 64 bytes"},
                  {Parameter::tileColumns, 16, "is less than vector * unroll"}});
  Problem add = problemOf(built(op::makeAdd({"M", 1, 16, {16}}, 4096, DType::kF32)), 0);
  PlanGenome streaming = defaultGenome(add, wide);
  streaming.kernels[0].streamStores = 1;
  EXPECT_TRUE(check(streaming, add, wide).isOk());
  streaming.kernels[0].vector = 8;
  EXPECT_NE(check(streaming, add, wide).message().find("full register"), std::string::npos);
}

TEST(Legality, PartialSumsFitTheCache) {
  Target t = fakeTarget();
  Problem p = problemOf(built(op::makeLinear({"M", 1, 512, {512}}, 4096, 8192, DType::kF32)), 0);
  PlanGenome g = defaultGenome(p, t);
  g.kernels[0].registerColumns = 4;
  g.kernels[0].tileRows = 256;
  g.kernels[0].tileColumns = 4096;
  g.kernels[0].blockK = 1024;
  EXPECT_NE(check(g, p, t).message().find("half of the L2"), std::string::npos) << check(g, p, t).message();
  EXPECT_EQ(repair(g, p, t).kernels[0].blockK, 0);
  g.kernels[0].tileRows = 64;
  EXPECT_TRUE(check(g, p, t).isOk()) << check(g, p, t).message();
}

TEST(Legality, StructureIsChecked) {
  Target t = fakeTarget();
  Problem p = problemOf(diamond(), 0);
  PlanGenome g = defaultGenome(p, t);
  ASSERT_EQ(g.kernels.size(), 1u);
  PlanGenome bad = g;
  bad.fuse[0] = 0;
  EXPECT_NE(check(bad, p, t).message().find("other bits put both its nodes into one kernel"), std::string::npos);
  bad = g;
  bad.fuse[0] = 7;
  EXPECT_NE(check(bad, p, t).message().find("neither 0 nor 1"), std::string::npos);
  bad = g;
  bad.kernels.push_back(bad.kernels[0]);
  EXPECT_NE(check(bad, p, t).message().find("2 schedules for 1 kernels"), std::string::npos);
  bad = g;
  bad.kernels[0].generator = Generator::kRow;
  EXPECT_NE(check(bad, p, t).message().find("generator is row; its nodes need map"), std::string::npos);
  bad = g;
  bad.fuse.clear();
  EXPECT_EQ(check(bad, p, t).code(), StatusCode::kInvalidArgument);
  Target cuda = t;
  cuda.kind = DeviceKind::kCuda;
  EXPECT_EQ(check(g, p, cuda).code(), StatusCode::kUnsupported);
}

TEST(Legality, BatchInvariantSumsHaveOneOrder) {
  // Whatever the bucket and the genome, what fixes a sum's order is the same.
  Random random(5);
  for (const Target& t : targets()) {
    for (const char* name : {"batch-invariant norm", "batch-invariant linear"}) {
      std::set<std::string> orders;
      for (const Sample& sample : samples()) {
        if (sample.name != name) continue;
        for (size_t b = 0; b < op::bucketsOf(sample.graph).size(); ++b) {
          Problem p = problemOf(sample.graph, b);
          for (int i = 0; i < 20; ++i) {
            PlanGenome g = randomGenome(p, t, random);
            std::string order;
            for (uint8_t bit : g.fuse) order += std::to_string(bit);
            for (const KernelSchedule& k : g.kernels) {
              if (k.generator == Generator::kMap) continue;
              for (int32_t v : {k.vector, k.unroll, k.generator == Generator::kContraction ? k.blockK : 0}) {
                order += " " + std::to_string(v);
              }
            }
            orders.insert(order);
          }
        }
      }
      EXPECT_EQ(orders.size(), 1u) << name;
    }
  }
}

TEST(Vary, DefaultGenomesAreLegalAndFeedEveryCore) {
  everywhere([](const Problem& p, const Target& t, const std::string& name) {
    PlanGenome g = defaultGenome(p, t);
    ASSERT_TRUE(check(g, p, t).isOk()) << name << ": " << check(g, p, t).message();
    EXPECT_EQ(g, defaultGenome(p, t));
  });
  Target t = fakeTarget();
  auto kernel = [&](const op::Graph& graph) { return defaultGenome(problemOf(graph, 0), t).kernels.at(0).text(); };
  EXPECT_EQ(kernel(built(op::makeLinear({"M", 1, 1, {1}}, 4096, 4096, DType::kF32))),
            "#ktune.schedule<generator = contraction, vector = 16, unroll = 2, tileRows = 1, tileColumns = 384, "
            "registerRows = 1, registerColumns = 4, blockK = 0, rowsOutside = 0, prefetch = 0>");
  EXPECT_EQ(kernel(built(op::makeLinear({"M", 512, 512, {512}}, 4096, 4096, DType::kF32))),
            "#ktune.schedule<generator = contraction, vector = 16, unroll = 2, tileRows = 64, tileColumns = 384, "
            "registerRows = 4, registerColumns = 6, blockK = 0, rowsOutside = 0, prefetch = 0>");
  EXPECT_EQ(kernel(built(op::makeRmsNorm({"M", 64, 64, {64}}, 1, 4096, 1e-6, DType::kF32))),
            "#ktune.schedule<generator = row, vector = 16, unroll = 4, tileRows = 8, registerRows = 1, "
            "streamStores = 0, prefetch = 0>");
  EXPECT_EQ(kernel(built(op::makeAdd({"M", 512, 512, {512}}, 4096, DType::kF32))),
            "#ktune.schedule<generator = map, vector = 16, unroll = 4, tileRows = 8, tileColumns = 4096, "
            "streamStores = 1, prefetch = 0>");
  EXPECT_EQ(kernel(built(op::makeAdd({"M", 1, 1, {1}}, 16384, DType::kF32))),
            "#ktune.schedule<generator = map, vector = 16, unroll = 4, tileRows = 1, tileColumns = 2048, "
            "streamStores = 0, prefetch = 0>");
}

TEST(Vary, DefaultsStreamWhatTheCachesCannotHold) {
  // fakeTarget(): 2 cores with 2 MiB each.
  auto streams = [](int64_t rows) {
    const op::Graph graph = built(op::makeAdd({"M", rows, rows, {rows}}, 4096, DType::kF32));
    return defaultGenome(problemOf(graph, 0), fakeTarget()).kernels.at(0).streamStores;
  };
  EXPECT_EQ(streams(256), 0);  // 4 MiB
  EXPECT_EQ(streams(257), 1);
}

TEST(Vary, MutationsAreLegalAndDifferent) {
  Random random(6);
  everywhere([&](const Problem& p, const Target& t, const std::string& name) {
    PlanGenome g = defaultGenome(p, t);
    for (int i = 0; i < 40; ++i) {
      PlanGenome next = mutate(g, p, t, 1 + i % 4, random);
      ASSERT_TRUE(check(next, p, t).isOk()) << name << ": " << check(next, p, t).message();
      EXPECT_FALSE(next == g) << name << ": " << g.text();
      g = next;
    }
  });
}

TEST(Vary, MutationReachesEveryFusion) {
  Random random(8);
  Problem p = problemOf(diamond(), 0);
  std::set<std::vector<uint8_t>> seen;
  PlanGenome g = defaultGenome(p, fakeTarget());
  for (int i = 0; i < 3000; ++i) {
    g = mutate(g, p, fakeTarget(), 1, random);
    seen.insert(g.fuse);
  }
  std::set<std::vector<uint8_t>> legal;
  for (unsigned bits = 0; bits < 1u << p.edges.size(); ++bits) {
    std::vector<uint8_t> fuse;
    for (size_t e = 0; e < p.edges.size(); ++e) fuse.push_back((bits >> e) & 1);
    if (p.groups(fuse)) legal.insert(p.legalFusion(fuse));
  }
  EXPECT_EQ(seen, legal);
}

TEST(Vary, CrossoverTakesFromTheParents) {
  Random random(9);
  everywhere([&](const Problem& p, const Target& t, const std::string& name) {
    for (int i = 0; i < 20; ++i) {
      PlanGenome a = randomGenome(p, t, random), b = randomGenome(p, t, random);
      PlanGenome child = crossover(a, b, p, t, random);
      ASSERT_TRUE(check(child, p, t).isOk()) << name << ": " << check(child, p, t).message();
      EXPECT_EQ(crossover(a, a, p, t, random), a) << name;
      if (a.fuse != b.fuse) continue;
      // The parents' parameters, or what repair makes of a mixture of them.
      ASSERT_EQ(child.fuse, a.fuse) << name;
      for (size_t k = 0; k < child.kernels.size(); ++k) {
        size_t foreign = 0, active = 0;
        for (const ParameterDef& def : parameterTable()) {
          if (!def.activeFor(child.kernels[k])) continue;
          ++active;
          int32_t v = child.kernels[k].get(def.id);
          foreign += v != a.kernels[k].get(def.id) && v != b.kernels[k].get(def.id) ? 1 : 0;
        }
        EXPECT_LT(foreign, active) << name;
        KernelSchedule start = child.kernels[k];
        EXPECT_TRUE(start.vector == a.kernels[k].vector || start.vector == b.kernels[k].vector)
            << "the parameter settled first is never repaired";
      }
    }
  });
}

TEST(Vary, EqualSeedsGiveEqualGenomes) {
  Problem p = problemOf(linearThenNorm(), 1);
  std::string texts[2];
  for (std::string& text : texts) {
    Random random(1234);
    PlanGenome g = randomGenome(p, fakeTarget(), random);
    for (int i = 0; i < 50; ++i) {
      PlanGenome other = randomGenome(p, fakeTarget(), random);
      g = crossover(mutate(g, p, fakeTarget(), 2, random), other, p, fakeTarget(), random);
    }
    text = g.text();
  }
  EXPECT_EQ(texts[0], texts[1]);
}

}  // namespace
}  // namespace ktune::schedule
