#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "GoldenSection.h"
#include "ir/schedule/Genome.h"
#include "ir/schedule/Schedule.h"
#include "ir/schedule/Target.h"

namespace ktune::schedule {
namespace {

KernelSchedule sampleSchedule(Generator generator) {
  KernelSchedule s;
  s.generator = generator;
  int step = 0;
  for (const ParameterDef& def : parameterTable()) s.set(def.id, def.values[++step % def.values.size()]);
  return s;
}

TEST(Schedule, TableAndFieldsAgree) {
  ASSERT_EQ(parameterTable().size(), kParameterCount);
  KernelSchedule s;
  for (size_t i = 0; i < kParameterCount; ++i) {
    const ParameterDef& def = parameterTable()[i];
    EXPECT_EQ(static_cast<size_t>(def.id), i);
    EXPECT_EQ(s.get(def.id), def.otherwise) << def.name;
    s.set(def.id, 1000 + static_cast<int32_t>(i));
  }
  for (const ParameterDef& def : parameterTable()) EXPECT_EQ(s.get(def.id), 1000 + static_cast<int32_t>(def.id));
  EXPECT_EQ(s.vector, 1000);
}

TEST(Schedule, TextRoundTrips) {
  for (int g = 0; g < kGeneratorCount; ++g) {
    KernelSchedule s = sampleSchedule(static_cast<Generator>(g));
    Result<KernelSchedule> again = KernelSchedule::parse(s.text());
    ASSERT_TRUE(again.has_value()) << again.error().message();
    EXPECT_EQ(*again, s);
    EXPECT_EQ(again->text(), s.text());
  }
  EXPECT_EQ(KernelSchedule().text(),
            "#ktune.schedule<generator = map, vector = 8, unroll = 2, tileRows = 1, tileColumns = 4096, "
            "streamStores = 0, prefetch = 0>");
}

TEST(Schedule, InactiveParametersDoNotCount) {
  KernelSchedule a, b;
  b.registerRows = 8;
  EXPECT_EQ(a, b);
  EXPECT_EQ(a.text(), b.text());
  b.unroll = 8;
  EXPECT_FALSE(a == b);
}

TEST(Schedule, MissingParametersTakeTheirDefault) {
  Result<KernelSchedule> s = KernelSchedule::parse(" #ktune.schedule< generator=row,unroll = 4 > ");
  ASSERT_TRUE(s.has_value()) << s.error().message();
  KernelSchedule expected;
  expected.generator = Generator::kRow;
  expected.unroll = 4;
  EXPECT_EQ(*s, expected);
}

TEST(Schedule, ParseRefusesWithOffset) {
  struct {
    const char* text;
    const char* why;
  } cases[] = {
      {"", "offset 0: expected '#ktune.schedule'"},
      {"#ktune.schedule", "expected '<'"},
      {"#ktune.schedule<>", "expected a name"},
      {"#ktune.schedule<vector = 8>", "expected 'generator' first"},
      {"#ktune.schedule<generator = attention>", "unknown generator 'attention'"},
      {"#ktune.schedule<generator = map, width = 8>", "offset 38: unknown parameter 'width'"},
      {"#ktune.schedule<generator = map, vector = 8, vector = 8>", "occurs twice"},
      {"#ktune.schedule<generator = map, registerRows = 1>", "has no meaning for generator map"},
      {"#ktune.schedule<generator = map, vector = >", "expected a number"},
      {"#ktune.schedule<generator = map, vector = 99999999999>", "out of range"},
      {"#ktune.schedule<generator = map, vector = 8", "expected '>'"},
      {"#ktune.schedule<generator = map> x", "unexpected text after the end"},
  };
  for (const auto& c : cases) {
    Result<KernelSchedule> s = KernelSchedule::parse(c.text);
    ASSERT_FALSE(s.has_value()) << c.text;
    EXPECT_EQ(s.error().code(), StatusCode::kInvalidArgument);
    EXPECT_NE(s.error().message().find(c.why), std::string::npos) << c.text << " -> " << s.error().message();
  }
}

TEST(Schedule, CodecRoundTripsAndSurvivesTheTableGrowing) {
  KernelSchedule s = sampleSchedule(Generator::kContraction);
  ByteWriter w;
  s.encode(w);
  ByteReader r(w.bytes());
  EXPECT_EQ(KernelSchedule::decode(r), s);
  EXPECT_TRUE(r.finish().isOk());

  // An older build knew two parameters, a newer one adds "later".
  ByteWriter other;
  other.u8(static_cast<uint8_t>(Generator::kRow));
  other.u32(3);
  other.text("vector");
  other.i32(16);
  other.text("later");
  other.i32(3);
  other.text("unroll");
  other.i32(8);
  KernelSchedule expected;
  expected.generator = Generator::kRow;
  expected.vector = 16;
  expected.unroll = 8;
  ByteReader reader(other.bytes());
  EXPECT_EQ(KernelSchedule::decode(reader), expected);
  EXPECT_TRUE(reader.finish().isOk());
}

TEST(Genome, TextAndCodecRoundTrip) {
  PlanGenome g;
  for (int bits = 0; bits < 3; ++bits) {
    Result<PlanGenome> again = PlanGenome::parse(g.text());
    ASSERT_TRUE(again.has_value()) << again.error().message();
    EXPECT_EQ(*again, g);
    ByteWriter w;
    g.encode(w);
    ByteReader r(w.bytes());
    EXPECT_EQ(PlanGenome::decode(r), g);
    EXPECT_TRUE(r.finish().isOk());
    g.fuse.push_back(static_cast<uint8_t>(bits & 1));
    g.kernels.push_back(sampleSchedule(static_cast<Generator>(bits)));
  }
}

TEST(Genome, HostileTextIsRefusedAndNeverCrashes) {
  PlanGenome g;
  g.fuse = {1, 0};
  g.kernels = {sampleSchedule(Generator::kRow), sampleSchedule(Generator::kContraction)};
  const std::string good = g.text();
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(PlanGenome::parse(good.substr(0, n)).has_value()) << n;
  std::mt19937_64 random(7);
  const std::string alphabet = "#<>[]=, 0123456789-abckrtune.\n\t\"";
  for (int i = 0; i < 20000; ++i) {
    std::string text = good;
    for (uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
      size_t at = random() % text.size();
      char c = random() % 8 ? alphabet[random() % alphabet.size()] : static_cast<char>(random());
      switch (random() % 3) {
        case 0:
          text[at] = c;
          break;
        case 1:
          text.insert(at, 1 + random() % 3, c);
          break;
        default:
          text.erase(at, 1 + random() % 5);
      }
    }
    Result<PlanGenome> parsed = PlanGenome::parse(text);
    if (parsed) {
      Result<PlanGenome> again = PlanGenome::parse(parsed->text());
      ASSERT_TRUE(again && *again == *parsed) << text;
    } else {
      EXPECT_EQ(parsed.error().code(), StatusCode::kInvalidArgument);
    }
  }
  EXPECT_FALSE(PlanGenome::parse("#ktune.genome<fuse = [2], kernels = []>").has_value());
  EXPECT_FALSE(PlanGenome::parse(std::string(1 << 20, '[')).has_value());
}

TEST(Genome, HostileBytesNeverCrash) {
  PlanGenome g;
  g.fuse = {1, 0};
  g.kernels = {sampleSchedule(Generator::kRow), sampleSchedule(Generator::kContraction)};
  ByteWriter w;
  g.encode(w);
  for (size_t n = 0; n < w.bytes().size(); ++n) {
    ByteReader r(std::string_view(w.bytes()).substr(0, n));
    static_cast<void>(PlanGenome::decode(r));
    EXPECT_EQ(r.finish().code(), StatusCode::kCorrupt);
  }
  std::mt19937_64 random(11);
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = w.bytes();
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << (random() % 8));
    ByteReader r(bytes);
    PlanGenome decoded = PlanGenome::decode(r);
    if (!r.finish().isOk()) continue;
    EXPECT_TRUE(PlanGenome::parse(decoded.text()).has_value());
  }
}

TEST(Target, CodecRoundTrips) {
  ByteWriter w;
  fakeTarget().encode(w);
  ByteReader r(w.bytes());
  EXPECT_EQ(Target::decode(r), fakeTarget());
  EXPECT_TRUE(r.finish().isOk());
  for (size_t n = 0; n < w.bytes().size(); ++n) {
    ByteReader shorter(std::string_view(w.bytes()).substr(0, n));
    static_cast<void>(Target::decode(shorter));
    EXPECT_FALSE(shorter.good());
  }
}

TEST(Schedule, DocumentMatchesTheTable) {
  std::string table =
      "| parameter | generators | devices | default | values | meaning |\n"
      "| --- | --- | --- | --- | --- | --- |\n";
  for (const ParameterDef& def : parameterTable()) {
    std::string generators, values;
    for (int g = 0; g < kGeneratorCount; ++g) {
      if (((def.generators >> g) & 1u) == 0) continue;
      generators += (generators.empty() ? "" : ", ") + std::string(generatorName(static_cast<Generator>(g)));
    }
    const std::string devices = def.families == Families::kHost   ? "cpu"
                                : def.families == Families::kCuda ? "cuda"
                                                                  : "cpu, cuda";
    for (int32_t v : def.values) values += (values.empty() ? "" : " ") + std::to_string(v);
    table += "| `" + std::string(def.name) + "` | " + generators + " | " + devices + " | " +
             std::to_string(def.otherwise) + " | " + values + " | " + std::string(def.meaning) + " |\n";
  }
  test::expectGoldenSection("schedule.md", "parameters", table);
}

}  // namespace
}  // namespace ktune::schedule
