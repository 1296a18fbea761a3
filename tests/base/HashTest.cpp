#include <gtest/gtest.h>

#include <vector>

#include "base/Hash.h"

namespace ktune {
namespace {

std::string countingBytes(size_t n) {
  std::string bytes(n, '\0');
  for (size_t i = 0; i < n; ++i) bytes[i] = static_cast<char>(i & 255);
  return bytes;
}

// Computed with python-xxhash (xxHash 0.8.3): xxh3_128_hexdigest and xxh3_64_hexdigest. The lengths take each of
// XXH3's paths (0, 1-3, 4-8, 9-16, 17-128, 129-240, longer). Cache keys rest on these values: they must never change.
TEST(Hash, KnownVectors) {
  struct Case {
    std::string input;
    const char* digest;
    uint64_t checksum;
  };
  const std::vector<Case> kTable = {
      {"", "99aa06d3014798d86001c324468d497f", 0x2d06800538d394c2},
      {"a", "a96faf705af16834e6c632b61e964e1f", 0xe6c632b61e964e1f},
      {"abc", "06b05ab6733a618578af5f94892f3950", 0x78af5f94892f3950},
      {"ktune", "fac1bc1a1fad7bd8e29369da2b802604", 0x19a5060b2530ee02},
      {"0123456789abcdef", "ccba8085a0434e9e0befb4873dbe58f8", 0x64439946d8fa212d},
      {"0123456789abcdefg", "d54994a55733db61c7401fb9f6fbf86b", 0xd2e63ed5466f5c32},
      {"The quick brown fox jumps over the lazy dog", "ddd650205ca3e7fa24a1cc2e3a8a7651", 0xce7d19a5418fb365},
      {countingBytes(200), "cb0395310643ba0edd97e9af3609d9f5", 0xf42a8864feaf0703},
      {countingBytes(241), "1da1cb61bcb8a2a102e8cd95421c6d02", 0x02e8cd95421c6d02},
      {countingBytes(1000), "076f7e02b7120d2ad33dd80b46f60e50", 0xd33dd80b46f60e50},
  };
  for (const Case& c : kTable) {
    EXPECT_EQ(digestOf(c.input).hex(), c.digest) << c.input.size();
    EXPECT_EQ(checksumOf(c.input), c.checksum) << c.input.size();
    EXPECT_EQ(digestOf(std::as_bytes(std::span(c.input))), digestOf(c.input));
    EXPECT_EQ(checksumOf(std::as_bytes(std::span(c.input))), checksumOf(c.input));
  }
}

TEST(Hash, HexPutsTheHighWordFirst) {
  EXPECT_EQ((Digest{0x0123456789abcdef, 0xfedcba9876543210}).hex(), "0123456789abcdeffedcba9876543210");
  EXPECT_EQ((Digest{0, 1}).hex(), "00000000000000000000000000000001");
  EXPECT_LT((Digest{0, ~uint64_t{0}}), (Digest{1, 0}));
}

TEST(Hash, ParseReadsWhatHexWrites) {
  const Digest digest = digestOf("ktune");
  ASSERT_TRUE(Digest::parse(digest.hex()));
  EXPECT_EQ(*Digest::parse(digest.hex()), digest);
  EXPECT_EQ(*Digest::parse("00000000000000010000000000000ABC"), (Digest{1, 0xabc}));
}

TEST(Hash, ParseRefusesEverythingElse) {
  for (const char* text : {"", "0", "99aa06d3014798d86001c324468d497", "99aa06d3014798d86001c324468d497f0",
                           "g9aa06d3014798d86001c324468d497f", "99aa06d3014798d86001c324468d497 ",
                           "0x9aa06d3014798d86001c324468d497f", "+9aa06d3014798d86001c324468d497f"}) {
    const Result<Digest> digest = Digest::parse(text);
    ASSERT_FALSE(digest) << text;
    EXPECT_EQ(digest.error().code(), StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace ktune
