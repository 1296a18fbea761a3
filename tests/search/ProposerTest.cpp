// Evolution and the prior as proposers.
#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "search/Evolution.h"
#include "search/Prior.h"
#include "search/SearchProblems.h"

namespace ktune::search {
namespace {

using schedule::PlanGenome;
using schedule::Problem;
using schedule::Target;
using testing::linearGraph;
using testing::problemOf;

/// Runs PROPOSER for GENERATIONS of 20 against a bowl round OPTIMUM; returns everything proposed.
std::vector<PlanGenome> evolve(Proposer& proposer, const PlanGenome& optimum, int generations) {
  std::vector<PlanGenome> all;
  for (int g = 0; g < generations; ++g) {
    std::vector<Feedback> feedback;
    for (Proposal& p : proposer.propose(20)) {
      feedback.push_back({p.genome, p.origin, testing::bowlNs(p.genome, optimum, 1, 0.1), false});
      all.push_back(std::move(p.genome));
    }
    proposer.observe(feedback);
  }
  return all;
}

double bestOf(const std::vector<PlanGenome>& genomes, const PlanGenome& optimum) {
  double best = 1e9;
  for (const PlanGenome& g : genomes) best = std::min(best, testing::bowlNs(g, optimum, 1, 0.1));
  return best;
}

TEST(Evolution, SameSeedSameProposals) {
  Problem problem = problemOf(linearGraph());
  Target target = schedule::fakeTarget();
  Random random(5);
  PlanGenome optimum = schedule::randomGenome(problem, target, random);
  EvolutionProposer a(problem, target, 42), b(problem, target, 42), c(problem, target, 43);
  std::vector<PlanGenome> fromA = evolve(a, optimum, 12);
  EXPECT_EQ(fromA, evolve(b, optimum, 12));
  EXPECT_NE(fromA, evolve(c, optimum, 12));
}

TEST(Evolution, ProposesLegalAndNew) {
  for (const op::Graph& graph : {linearGraph(), testing::normGraph(), testing::addGraph()}) {
    Problem problem = problemOf(graph);
    Target target = schedule::fakeTarget();
    EvolutionProposer proposer(problem, target, 3);
    PlanGenome base = schedule::defaultGenome(problem, target);
    Feedback told[] = {{base, "default", 1, false}};
    proposer.observe(told);
    std::set<Digest> seen{base.digest()};
    for (const PlanGenome& genome : evolve(proposer, base, 10)) {
      EXPECT_TRUE(schedule::check(genome, problem, target).isOk());
      EXPECT_TRUE(seen.insert(genome.digest()).second);
    }
  }
}

TEST(Evolution, BeatsRandomSearch) {
  Problem problem = problemOf(linearGraph());
  Target target = schedule::fakeTarget();
  double evolved = 0, random = 0;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Random draws(100 + seed);
    PlanGenome optimum = schedule::randomGenome(problem, target, draws);
    EvolutionProposer proposer(problem, target, seed);
    evolved += std::log(bestOf(evolve(proposer, optimum, 15), optimum));
    std::vector<PlanGenome> pool;
    for (int i = 0; i < 300; ++i) pool.push_back(schedule::randomGenome(problem, target, draws));
    random += std::log(bestOf(pool, optimum));
  }
  EXPECT_LT(evolved / 5, 0.25);
  EXPECT_LT(evolved, 0.5 * random);
}

TEST(Evolution, RejectedGenomesAreNotParents) {
  Problem problem = problemOf(linearGraph());
  Target target = schedule::fakeTarget();
  EvolutionProposer proposer(problem, target, 3);
  std::vector<Feedback> feedback;
  for (Proposal& p : proposer.propose(12)) feedback.push_back({p.genome, p.origin, 0.001, true});
  proposer.observe(feedback);
  for (size_t i = 0; i < 3; ++i) EXPECT_TRUE(proposer.island(i).empty());
}

TEST(Evolution, IslandsShareByMigration) {
  Problem problem = problemOf(linearGraph());
  Target target = schedule::fakeTarget();
  EvolutionOptions options;
  options.migrateEvery = 2;
  EvolutionProposer proposer(problem, target, 3, options);
  std::vector<Feedback> feedback;
  double score = 2;
  for (Proposal& p : proposer.propose(9)) feedback.push_back({p.genome, p.origin, score += 1, false});
  feedback[4].score = 0.5;  // the second island's
  proposer.observe(feedback);
  EXPECT_TRUE(proposer.island(1).contains(feedback[4].genome));
  EXPECT_FALSE(proposer.island(2).contains(feedback[4].genome));
  proposer.observe({});
  EXPECT_TRUE(proposer.island(2).contains(feedback[4].genome));
}

TEST(PriorProposer, RanksDiversifiesAndRepeats) {
  Problem problem = problemOf(linearGraph());
  Target target = schedule::fakeTarget();
  PriorProposer a(problem, target, 2e10, 7, 400), b(problem, target, 2e10, 7, 400);
  Prior prior(problem, target, 2e10);
  std::vector<Proposal> first = a.propose(24), same = b.propose(24);
  ASSERT_EQ(first.size(), 24u);
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i].genome, same[i].genome);
    EXPECT_EQ(first[i].origin, "prior");
    EXPECT_TRUE(schedule::check(first[i].genome, problem, target).isOk());
    for (size_t j = 0; j < i; ++j) EXPECT_GT(distance(first[i].genome, first[j].genome), 1);
    if (i > 0) {
      EXPECT_LE(prior.score(first[i - 1].genome), prior.score(first[i].genome));
    }
  }
  // Far better than a random draw, by its own measure.
  Random random(9);
  std::vector<double> drawn;
  for (int i = 0; i < 100; ++i) drawn.push_back(prior.score(schedule::randomGenome(problem, target, random)));
  EXPECT_LT(prior.score(first.back().genome), median(drawn));
  // Runs dry without repeating itself.
  std::set<Digest> seen;
  for (const Proposal& p : first) EXPECT_TRUE(seen.insert(p.genome.digest()).second);
  for (;;) {
    std::vector<Proposal> more = a.propose(100);
    if (more.empty()) break;
    for (const Proposal& p : more) EXPECT_TRUE(seen.insert(p.genome.digest()).second);
  }
  EXPECT_EQ(a.left(), 0u);
  EXPECT_GT(seen.size(), 300u);
}

// What the formula models, one comparison a row: the first schedule must be predicted faster than the second.
struct Comparison {
  const char* why;
  std::function<void(schedule::KernelSchedule&)> better, worse;
};

void compare(const op::Graph& graph, const std::vector<Comparison>& rows) {
  Problem problem = problemOf(graph);
  Target target = schedule::fakeTarget();
  target.cores = 4;
  Prior prior(problem, target, 2e10);
  PlanGenome base = schedule::defaultGenome(problem, target);
  ASSERT_EQ(base.kernels.size(), 1u);
  for (const Comparison& row : rows) {
    PlanGenome better = base, worse = base;
    row.better(better.kernels[0]);
    row.worse(worse.kernels[0]);
    EXPECT_LT(prior.score(better), prior.score(worse)) << row.why << "\n" << better.text() << "\n" << worse.text();
  }
}

TEST(Prior, MapSanity) {
  using S = schedule::KernelSchedule;
  compare(testing::addGraph(),
          {
              {"one tile leaves three cores idle", [](S& s) { s.tileRows = 16, s.tileColumns = 4096; },
               [](S& s) { s.tileRows = 256, s.tileColumns = 4096; }},
              {"tiny tiles are all overhead", [](S& s) { s.tileRows = 4, s.tileColumns = 4096; },
               [](S& s) { s.tileRows = 1, s.tileColumns = 8; }},
              {"wider vectors", [](S& s) { s.tileColumns = 256, s.vector = 16; },
               [](S& s) { s.tileColumns = 256, s.vector = 4; }},
              {"streaming small outputs past the caches", [](S& s) { s.streamStores = 0; },
               [](S& s) { s.streamStores = 1; }},
          });
  // 256 MB: larger than any cache, so that a plain store reads what it overwrites.
  compare(testing::addGraph(16384, 16384),
          {
              {"streaming large outputs", [](S& s) { s.streamStores = 1; }, [](S& s) { s.streamStores = 0; }},
          });
}

TEST(Prior, RowSanity) {
  using S = schedule::KernelSchedule;
  compare(
      testing::normGraph(64, 64),
      {
          {"load balance: 64 rows on 4 cores", [](S& s) { s.tileRows = 16; }, [](S& s) { s.tileRows = 48; }},
          {"one tile leaves three cores idle", [](S& s) { s.tileRows = 16; }, [](S& s) { s.tileRows = 64; }},
          {"wider vectors", [](S& s) { s.tileRows = 16, s.vector = 16; }, [](S& s) { s.tileRows = 16, s.vector = 4; }},
          {"several accumulators hide the latency of a sum", [](S& s) { s.unroll = 4; }, [](S& s) { s.unroll = 1; }},
      });
}

TEST(Prior, ContractionSanity) {
  using S = schedule::KernelSchedule;
  auto base = [](S& s) {
    s.vector = 16, s.unroll = 1, s.tileRows = 64, s.tileColumns = 64, s.registerRows = 4, s.registerColumns = 4;
    s.blockK = 0, s.rowsOutside = 0, s.prefetch = 0;
  };
  auto with = [&](auto change) {
    return [=](S& s) {
      base(s);
      change(s);
    };
  };
  compare(linearGraph(64, 64),
          {
              {"register blocking saves loads", base, with([](S& s) { s.registerRows = 1, s.registerColumns = 1; })},
              {"wider vectors", base, with([](S& s) { s.vector = 4; })},
              {"load balance: 1024 columns on 4 cores", base, with([](S& s) { s.tileColumns = 1024; })},
              {"small row tiles fetch the weights again and again", base, with([](S& s) { s.tileRows = 4; })},
              {"one accumulator waits for itself",
               with([](S& s) { s.registerRows = 1, s.registerColumns = 2, s.unroll = 4; }),
               with([](S& s) { s.registerRows = 1, s.registerColumns = 2, s.unroll = 1; })},
              {"short blocks of K fold too often", base, with([](S& s) { s.blockK = 256, s.registerRows = 1; })},
          });
}

TEST(Prior, GrowsWithTheProblem) {
  Target target = schedule::fakeTarget();
  for (auto make : {+[](int64_t m) { return linearGraph(m, m); }, +[](int64_t m) { return testing::normGraph(m, m); },
                    +[](int64_t m) { return testing::addGraph(m, m); }}) {
    double last = 0;
    for (int64_t m : {16, 256, 4096}) {
      Problem problem = problemOf(make(m));
      double ns = Prior(problem, target, 2e10).score(schedule::defaultGenome(problem, target));
      EXPECT_TRUE(std::isfinite(ns));
      EXPECT_GT(ns, last);
      last = ns;
    }
  }
}

TEST(Prior, FusionSavesMemoryTraffic) {
  Problem problem = problemOf(testing::normGraph(4096, 4096));
  Target target = schedule::fakeTarget();
  PlanGenome fused = schedule::defaultGenome(problem, target), split = fused;
  std::fill(split.fuse.begin(), split.fuse.end(), uint8_t{0});
  split = schedule::repair(split, problem, target);
  ASSERT_GT(split.kernels.size(), fused.kernels.size());
  Prior prior(problem, target, 2e10);
  EXPECT_LT(prior.score(fused), prior.score(split));
}

}  // namespace
}  // namespace ktune::search
