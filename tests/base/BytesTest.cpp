#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/Bytes.h"

namespace ktune {
namespace {

TEST(Bytes, LayoutIsLittleEndian) {
  ByteWriter w;
  w.u8(0xab);
  w.u32(0x01020304);
  w.u64(0x1122334455667788);
  w.i32(-2);
  w.i64(-3);
  w.f64(1.0);
  w.boolean(true);
  w.text("hi");
  w.blob("x");
  w.raw("yz");
  const std::string expected(
      "\xab"
      "\x04\x03\x02\x01"
      "\x88\x77\x66\x55\x44\x33\x22\x11"
      "\xfe\xff\xff\xff"
      "\xfd\xff\xff\xff\xff\xff\xff\xff"
      "\x00\x00\x00\x00\x00\x00\xf0\x3f"
      "\x01"
      "\x02\x00\x00\x00hi"
      "\x01\x00\x00\x00\x00\x00\x00\x00x"
      "yz",
      1 + 4 + 8 + 4 + 8 + 8 + 1 + 6 + 9 + 2);
  EXPECT_EQ(w.bytes(), expected);
}

struct Everything {
  uint8_t a;
  uint32_t b;
  uint64_t c;
  int32_t d;
  int64_t e;
  double f;
  bool g;
  std::string h;
  std::string i;
  uint32_t j;
  std::string k;
};

std::string encode(const Everything& v) {
  ByteWriter w;
  w.u8(v.a);
  w.u32(v.b);
  w.u64(v.c);
  w.i32(v.d);
  w.i64(v.e);
  w.f64(v.f);
  w.boolean(v.g);
  w.text(v.h);
  w.blob(v.i);
  w.u32(v.j);
  w.raw(v.k);
  return w.take();
}

Everything decode(ByteReader& r) {
  Everything v;
  v.a = r.u8();
  v.b = r.u32();
  v.c = r.u64();
  v.d = r.i32();
  v.e = r.i64();
  v.f = r.f64();
  v.g = r.boolean();
  v.h = r.text();
  v.i = r.blob();
  v.j = r.count(1);
  v.k = std::string(r.raw(3));
  return v;
}

const Everything kSample = {255,
                            std::numeric_limits<uint32_t>::max(),
                            std::numeric_limits<uint64_t>::max(),
                            std::numeric_limits<int32_t>::min(),
                            std::numeric_limits<int64_t>::min(),
                            -0.0,
                            true,
                            "a text",
                            std::string("a\0blob", 6),
                            3,
                            "end"};

TEST(Bytes, RoundTrip) {
  const std::string bytes = encode(kSample);
  ByteReader r(bytes);
  const Everything v = decode(r);
  EXPECT_TRUE(r.finish().isOk()) << r.status().toString();
  EXPECT_EQ(encode(v), bytes);
  EXPECT_TRUE(std::signbit(v.f));
  EXPECT_EQ(v.i, kSample.i);
}

TEST(Bytes, EveryTruncationIsCorruptAndNothingIsReadBeyond) {
  const std::string bytes = encode(kSample);
  for (size_t n = 0; n < bytes.size(); ++n) {
    // A buffer of its own of exactly this size, so that AddressSanitizer sees a read past the end.
    const std::vector<char> cut(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(n));
    ByteReader r(std::string_view(cut.data(), cut.size()));
    static_cast<void>(decode(r));
    EXPECT_FALSE(r.good()) << n;
    EXPECT_EQ(r.status().code(), StatusCode::kCorrupt) << n;
    EXPECT_EQ(r.finish().code(), StatusCode::kCorrupt) << n;
    // Reads after the failure are empty, and loops over what remains end.
    EXPECT_EQ(r.remaining(), 0u);
    EXPECT_EQ(r.u64(), 0u);
    EXPECT_EQ(r.text(), "");
    EXPECT_EQ(r.raw(0), "");
  }
}

TEST(Bytes, ErrorsNameTheOffset) {
  ByteReader r(std::string_view("\x01\x02\x03", 3));
  r.u8();
  r.u32();
  EXPECT_EQ(r.status().toString(), "corrupt: at byte 1: 4 bytes expected, 2 left");
  r.fail("a later reason");
  EXPECT_EQ(r.status().toString(), "corrupt: at byte 1: 4 bytes expected, 2 left");
}

TEST(Bytes, LeftOverBytesAreAnError) {
  ByteReader r("ab");
  r.u8();
  EXPECT_TRUE(r.status().isOk());
  EXPECT_EQ(r.finish().toString(), "corrupt: at byte 1: 1 bytes too many");
}

TEST(Bytes, BooleansAreZeroOrOne) {
  for (int v = 0; v < 256; ++v) {
    const char byte = static_cast<char>(v);
    ByteReader r(std::string_view(&byte, 1));
    EXPECT_EQ(r.boolean(), v == 1);
    EXPECT_EQ(r.finish().isOk(), v <= 1) << v;
  }
}

TEST(Bytes, HugeLengthsAllocateNothing) {
  const std::string ones(12, '\xff');
  {
    ByteReader r(ones);
    EXPECT_EQ(r.text(), "");
    EXPECT_FALSE(r.good());
  }
  {
    ByteReader r(ones);
    EXPECT_EQ(r.blob(), "");
    EXPECT_FALSE(r.good());
  }
  {
    ByteReader r(ones);
    EXPECT_EQ(r.count(0), 0u);  // Even elements without bytes: a count never exceeds the input.
    EXPECT_FALSE(r.good());
  }
}

TEST(Bytes, CountIsCheckedAgainstWhatIsLeft) {
  struct Case {
    uint32_t count;
    size_t minBytesEach;
    size_t left;
    bool good;
  };
  const Case kTable[] = {{0, 8, 0, true},  {1, 8, 8, true},  {2, 8, 15, false}, {2, 8, 16, true},
                         {3, 1, 2, false}, {1, 0, 0, false}, {3, 0, 3, true},   {0x80000000u, 0x7fffffff, 64, false}};
  for (const Case& c : kTable) {
    ByteWriter w;
    w.u32(c.count);
    w.raw(std::string(c.left, 'x'));
    ByteReader r(w.bytes());
    EXPECT_EQ(r.count(c.minBytesEach), c.good ? c.count : 0);
    EXPECT_EQ(r.good(), c.good) << c.count << " x " << c.minBytesEach << " in " << c.left;
  }
}

}  // namespace
}  // namespace ktune
