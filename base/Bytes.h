// Little-endian binary encoding: the one way ktune turns values into bytes (cache records, worker frames).
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/Status.h"

namespace ktune {

/// Appends little-endian values to a string of bytes. Integers are fixed width; strings and blobs are a u32 or u64
/// length followed by the bytes.
class ByteWriter {
 public:
  void u8(uint8_t v);
  void u32(uint32_t v);
  void u64(uint64_t v);
  void i32(int32_t v) { u32(static_cast<uint32_t>(v)); }
  void i64(int64_t v) { u64(static_cast<uint64_t>(v)); }
  void f64(double v) { u64(std::bit_cast<uint64_t>(v)); }
  void boolean(bool v) { u8(v ? 1 : 0); }
  /// u32 length, then the bytes.
  void text(std::string_view v);
  /// u64 length, then the bytes.
  void blob(std::string_view v);
  /// The bytes alone, no length.
  void raw(std::string_view v);
  [[nodiscard]] const std::string& bytes() const { return bytes_; }
  [[nodiscard]] std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads what ByteWriter wrote. Never reads past the end: after the first short or malformed read every further
/// read returns zero or empty, and status() tells kCorrupt with the offset. So a decoder reads all its fields and
/// checks once.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  uint8_t u8();
  uint32_t u32();
  uint64_t u64();
  int32_t i32() { return static_cast<int32_t>(u32()); }
  int64_t i64() { return static_cast<int64_t>(u64()); }
  double f64() { return std::bit_cast<double>(u64()); }
  bool boolean();  ///< Anything but 0 or 1 is an error.
  std::string text();
  std::string blob();
  /// A u32 element count, refused when COUNT * minBytesEach exceeds what is left (no huge allocations).
  uint32_t count(size_t minBytesEach);
  std::string_view raw(size_t n);
  /// Marks the input corrupt with a reason of the caller's.
  void fail(std::string_view why);
  [[nodiscard]] bool good() const { return error_.empty(); }
  [[nodiscard]] size_t remaining() const { return bytes_.size() - offset_; }
  [[nodiscard]] Status status() const;
  /// status(), and an error too when bytes are left over.
  [[nodiscard]] Status finish();

 private:
  std::string_view bytes_;
  size_t offset_ = 0;
  std::string error_;
};

}  // namespace ktune
