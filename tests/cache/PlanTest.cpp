#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "cache/SampleRecords.h"
#include "cache/format/Plan.h"

namespace ktune::cache {
namespace {

using namespace testing;

TEST(Plan, RoundTrips) {
  for (const Plan& plan : {samplePlan(), Plan()}) {
    ASSERT_TRUE(plan.validate().isOk()) << plan.validate().message();
    Result<Plan> again = Plan::fromBytes(plan.bytes());
    ASSERT_TRUE(again.has_value()) << again.error().message();
    EXPECT_EQ(*again, plan);
    EXPECT_EQ(again->bytes(), plan.bytes());
    EXPECT_EQ(again->digest(), plan.digest());
  }
}

TEST(Plan, ExtentsRoundUp) {
  EXPECT_EQ((Extent{1, 0, 8}).evaluate({17}), 3);
  EXPECT_EQ((Extent{4096, -1, 512}).evaluate({}), 8);
  EXPECT_EQ((Extent{}).evaluate({}), 1);
}

TEST(Plan, PreconditionsDescribeThemselves) {
  EXPECT_EQ(samplePlan().preconditions[0].describe(), "tensor 0 is aligned to 64 bytes");
  EXPECT_EQ(samplePlan().preconditions[1].describe(), "symbol 0 lies in 1..16");
}

TEST(Plan, DigestFollowsWhatRuns) {
  Digest base = samplePlan().digest();
  Plan other = samplePlan();
  other.artefacts[0].bytes += "x";
  EXPECT_EQ(other.digest(), base) << "only the artefact's digest counts";
  other.artefacts[0].digest = digestOf(other.artefacts[0].bytes);
  EXPECT_NE(other.digest(), base);
  other = samplePlan();
  other.launches[0].grid[0].divisor = 4;
  EXPECT_NE(other.digest(), base);
  other = samplePlan();
  other.safeWithDependentLaunch = false;
  EXPECT_NE(other.digest(), base);
}

TEST(Plan, EveryIndexIsChecked) {
  struct {
    const char* why;
    std::function<void(Plan&)> spoil;
  } cases[] = {
      {"artefact 1 of 1", [](Plan& p) { p.launches[0].artefact = 1; }},
      {"artefact -1 of 1", [](Plan& p) { p.launches[0].artefact = -1; }},
      {"symbol is no name", [](Plan& p) { p.launches[0].symbol.clear(); }},
      {"parameters[0]: tensor 3 of 3", [](Plan& p) { p.launches[0].parameters[0] = PointerParameter{3}; }},
      {"parameters[1]: scalar", [](Plan& p) { p.launches[0].parameters[1] = ScalarParameter{}; }},
      {"symbol 1 of 1", [](Plan& p) { p.launches[0].parameters[2] = SymbolParameter{1}; }},
      {"workspace slot 1 of 1", [](Plan& p) { p.launches[0].parameters[3] = WorkspaceParameter{1}; }},
      {"1 to 5 dims", [](Plan& p) { p.launches[0].parameters[4] = TensorMapParameter{}; }},
      {"box and extents differ",
       [](Plan& p) { std::get<TensorMapParameter>(p.launches[0].parameters[4]).box.push_back(1); }},
      {"grid symbol -2 of 1", [](Plan& p) { p.launches[0].grid[0].symbol = -2; }},
      {"grid divisor is out of range", [](Plan& p) { p.launches[0].grid[0].divisor = 0; }},
      {"grid factor is out of range", [](Plan& p) { p.launches[0].grid[0].factor = INT64_MAX; }},
      {"block is not positive", [](Plan& p) { p.launches[0].block[1] = 0; }},
      {"cluster is not positive", [](Plan& p) { p.launches[0].cluster[2] = -1; }},
      {"dynamicSharedBytes is negative", [](Plan& p) { p.launches[0].dynamicSharedBytes = -1; }},
      {"workspaces[0]: alignment is no power of two", [](Plan& p) { p.workspaces[0].alignmentBytes = 48; }},
      {"bytes symbol 4 of 1", [](Plan& p) { p.workspaces[0].bytes.symbol = 4; }},
      {"preconditions[0]: tensor 9 of 3", [](Plan& p) { p.preconditions[0].index = 9; }},
      {"preconditions[0]: alignment is no power of two", [](Plan& p) { p.preconditions[0].low = 0; }},
      {"preconditions[1]: empty range", [](Plan& p) { p.preconditions[1].high = 0; }},
      {"symbolCount is out of range", [](Plan& p) { p.symbolCount = 1 << 30; }},
      {"tensorCount is out of range", [](Plan& p) { p.tensorCount = -1; }},
  };
  for (const auto& c : cases) {
    Plan plan = samplePlan();
    c.spoil(plan);
    EXPECT_EQ(plan.validate().code(), StatusCode::kCorrupt) << c.why;
    EXPECT_NE(plan.validate().message().find(c.why), std::string::npos) << plan.validate().message();
    EXPECT_EQ(Plan::fromBytes(plan.bytes()).status().code(), StatusCode::kCorrupt) << c.why;
  }
}

TEST(Plan, AnArtefactMustHaveItsDigest) {
  Plan plan = samplePlan();
  plan.artefacts[0].bytes[0] ^= 1;
  EXPECT_EQ(Plan::fromBytes(plan.bytes()).status().code(), StatusCode::kCorrupt);
}

TEST(Plan, TruncatedOrFlippedBytesAreRefused) {
  const std::string good = samplePlan().bytes();
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_EQ(Plan::fromBytes(good.substr(0, n)).status().code(), StatusCode::kCorrupt) << n;
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_EQ(Plan::fromBytes(bytes).status().code(), StatusCode::kCorrupt) << bit;
  }
  EXPECT_EQ(Plan::fromBytes(good + "x").status().code(), StatusCode::kCorrupt);
}

TEST(Plan, TheUncheckedDecoderNeverCrashes) {
  // Inside a record the record's checksum guards these bytes; the decoder must stand alone all the same.
  ByteWriter w;
  samplePlan().encode(w);
  const std::string good = w.bytes();
  for (size_t n = 0; n < good.size(); ++n) {
    ByteReader r(std::string_view(good).substr(0, n));
    static_cast<void>(Plan::decode(r));
    EXPECT_EQ(r.status().code(), StatusCode::kCorrupt) << n;
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    ByteReader r(bytes);
    Plan plan = Plan::decode(r);
    if (!r.good()) {
      EXPECT_EQ(plan, Plan());
      continue;
    }
    EXPECT_TRUE(plan.validate().isOk());
    std::vector<int64_t> symbols(static_cast<size_t>(plan.symbolCount), (1 << 22) - 1);
    for (const Launch& launch : plan.launches) {
      for (const Extent& e : launch.grid) EXPECT_GE(e.evaluate(symbols), 0);
    }
  }
}

}  // namespace
}  // namespace ktune::cache
