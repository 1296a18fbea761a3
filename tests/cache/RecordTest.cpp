#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "cache/SampleRecords.h"
#include "cache/format/Record.h"

namespace ktune::cache {
namespace {

using namespace testing;

/// Nothing in it depends on another folder's format.
Record fixedRecord() {
  Record r = sampleRecord();
  r.canonical = "a description";
  r.key.digest = {0x0123456789abcdef, 0xfedcba9876543210};
  return r;
}

/// BYTES with a right checksum, however wrong the rest.
std::string resealed(std::string bytes) {
  bytes.resize(bytes.size() - 8);
  ByteWriter w;
  w.raw(bytes);
  w.u64(checksumOf(bytes));
  return w.take();
}

TEST(Record, RoundTrips) {
  Record fallback;
  fallback.decision = Decision::kUseFallback;
  for (const Record& record : {sampleRecord(), fixedRecord(), fallback}) {
    Result<Record> again = Record::fromBytes(record.bytes());
    ASSERT_TRUE(again.has_value()) << again.error().message();
    EXPECT_EQ(*again, record);
    EXPECT_EQ(again->bytes(), record.bytes());
  }
}

TEST(Record, TheFormatDoesNotDrift) {
  // A change here means a new record version and a change of docs/record.md.
  EXPECT_EQ(digestOf(fixedRecord().bytes()).hex(), "781235abf947a159af907cd47dba744c");
  EXPECT_EQ(digestOf(samplePlan().bytes()).hex(), "c08f7712be2719892f731512bd7c830e");
}

TEST(Record, TruncatedOrFlippedBytesAreRefused) {
  const std::string good = sampleRecord().bytes();
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_EQ(Record::fromBytes(good.substr(0, n)).status().code(), StatusCode::kCorrupt) << n;
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bytes = good;
    bytes[bit / 8] ^= static_cast<char>(1 << (bit % 8));
    EXPECT_EQ(Record::fromBytes(bytes).status().code(), StatusCode::kCorrupt) << bit;
  }
  EXPECT_EQ(Record::fromBytes(good + "x").status().code(), StatusCode::kCorrupt);
}

TEST(Record, HostileBytesWithARightChecksumNeverCrash) {
  const std::string good = sampleRecord().bytes();
  std::mt19937_64 random(2);
  for (size_t n = 8; n < good.size(); ++n) {
    EXPECT_FALSE(Record::fromBytes(resealed(good.substr(0, n))).has_value()) << n;
  }
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    Result<Record> record = Record::fromBytes(resealed(bytes));
    if (record) {
      Result<Record> again = Record::fromBytes(record->bytes());
      ASSERT_TRUE(again && *again == *record);
    } else {
      EXPECT_TRUE(record.error().code() == StatusCode::kCorrupt || record.error().code() == StatusCode::kUnsupported);
    }
  }
}

TEST(Record, ANewerVersionIsUnsupported) {
  std::string bytes = sampleRecord().bytes();
  bytes[8] = 3;
  Result<Record> record = Record::fromBytes(resealed(bytes));
  ASSERT_FALSE(record.has_value());
  EXPECT_EQ(record.error().code(), StatusCode::kUnsupported);
  EXPECT_NE(record.error().message().find("version 3"), std::string::npos);
}

TEST(Record, VersionOneIsReadWithoutConditions) {
  Record record = sampleRecord();
  record.evidence.throttle.clear();
  std::string bytes = record.bytes();
  // Its evidence, the payload's end, lacked three figures and a text.
  constexpr size_t kAdded = 3 * 8 + 4;
  bytes.erase(bytes.size() - 8 - kAdded, kAdded);
  bytes[8] = 1;
  ByteWriter length;
  length.u64(bytes.size() - 8 - 20);
  bytes.replace(12, 8, length.bytes());
  Result<Record> old = Record::fromBytes(resealed(bytes));
  ASSERT_TRUE(old.has_value()) << old.error().message();
  record.evidence.clockMhz = record.evidence.powerWatts = record.evidence.temperatureC = 0;
  EXPECT_EQ(*old, record);
}

TEST(Record, FiguresAreFinite) {
  Record record = sampleRecord();
  record.evidence.ratio = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Record::fromBytes(record.bytes()).status().code(), StatusCode::kCorrupt);
}

TEST(Record, ALackingParameterTakesItsDefault) {
  // As an older build would have written it: a schedule without unroll.
  Record record = sampleRecord();
  ByteWriter now, then;
  record.genome.kernels[0].encode(now);
  const schedule::KernelSchedule& row = record.genome.kernels[0];
  uint32_t count = 0;
  ByteWriter pairs;
  for (const schedule::ParameterDef& def : schedule::parameterTable()) {
    if (!def.activeFor(row) || def.name == "unroll") continue;
    ++count;
    pairs.text(def.name);
    pairs.i32(row.get(def.id));
  }
  then.u8(static_cast<uint8_t>(row.generator));
  then.u32(count);
  then.raw(pairs.bytes());
  std::string bytes = record.bytes();
  size_t at = bytes.find(now.bytes());
  ASSERT_NE(at, std::string::npos);
  bytes.replace(at, now.bytes().size(), then.bytes());
  ByteWriter length;
  length.u64(bytes.size() - 8 - 20);
  bytes.replace(12, 8, length.bytes());
  Result<Record> old = Record::fromBytes(resealed(bytes));
  ASSERT_TRUE(old.has_value()) << old.error().message();
  EXPECT_EQ(row.unroll, 4);
  EXPECT_EQ(old->genome.kernels[0].unroll, 2);
  record.genome.kernels[0].unroll = 2;
  EXPECT_EQ(*old, record);
}

TEST(Record, DecisionsHaveNames) {
  EXPECT_EQ(decisionName(Decision::kTuned), "tuned");
  EXPECT_EQ(decisionName(Decision::kDefault), "default");
  EXPECT_EQ(decisionName(Decision::kUseFallback), "use-fallback");
}

}  // namespace
}  // namespace ktune::cache
