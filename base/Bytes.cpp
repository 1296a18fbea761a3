#include "base/Bytes.h"

#include <algorithm>
#include <cassert>
#include <limits>

namespace ktune {

namespace {

// Byte by byte, so that the format does not depend on the host; compilers turn these loops into one move.
template <typename T>
void appendLittleEndian(std::string& bytes, T v) {
  char encoded[sizeof(T)];
  for (size_t i = 0; i < sizeof(T); ++i) encoded[i] = static_cast<char>(static_cast<uint8_t>(v >> (8 * i)));
  bytes.append(encoded, sizeof(T));
}

template <typename T>
T loadLittleEndian(std::string_view bytes) {
  if (bytes.size() != sizeof(T)) return 0;  // The short read has been recorded already.
  T v = 0;
  for (size_t i = 0; i < sizeof(T); ++i) v |= static_cast<T>(static_cast<T>(static_cast<uint8_t>(bytes[i])) << (8 * i));
  return v;
}

}  // namespace

void ByteWriter::u8(uint8_t v) {
  bytes_.push_back(static_cast<char>(v));
}
void ByteWriter::u32(uint32_t v) {
  appendLittleEndian(bytes_, v);
}
void ByteWriter::u64(uint64_t v) {
  appendLittleEndian(bytes_, v);
}

void ByteWriter::text(std::string_view v) {
  assert(v.size() <= std::numeric_limits<uint32_t>::max() && "what may exceed 4 GiB is a blob");
  u32(static_cast<uint32_t>(v.size()));
  raw(v);
}

void ByteWriter::blob(std::string_view v) {
  u64(v.size());
  raw(v);
}

void ByteWriter::raw(std::string_view v) {
  bytes_.append(v);
}

uint8_t ByteReader::u8() {
  return loadLittleEndian<uint8_t>(raw(1));
}
uint32_t ByteReader::u32() {
  return loadLittleEndian<uint32_t>(raw(4));
}
uint64_t ByteReader::u64() {
  return loadLittleEndian<uint64_t>(raw(8));
}

bool ByteReader::boolean() {
  const uint8_t v = u8();
  if (v > 1) fail("a boolean is " + std::to_string(v));
  return v == 1;
}

std::string ByteReader::text() {
  return std::string(raw(u32()));
}

std::string ByteReader::blob() {
  const uint64_t size = u64();
  // Compared before the conversion to size_t, which may be narrower.
  if (size > remaining()) {
    fail("a blob of " + std::to_string(size) + " bytes, " + std::to_string(remaining()) + " left");
    return {};
  }
  return std::string(raw(static_cast<size_t>(size)));
}

uint32_t ByteReader::count(size_t minBytesEach) {
  const uint32_t n = u32();
  if (n > remaining() / std::max<size_t>(minBytesEach, 1)) {
    fail("a count of " + std::to_string(n) + ", " + std::to_string(remaining()) + " bytes left");
    return 0;
  }
  return n;
}

std::string_view ByteReader::raw(size_t n) {
  if (!good()) return {};
  if (n > remaining()) {
    fail(std::to_string(n) + " bytes expected, " + std::to_string(remaining()) + " left");
    return {};
  }
  const std::string_view v = bytes_.substr(offset_, n);
  offset_ += n;
  return v;
}

void ByteReader::fail(std::string_view why) {
  if (!good()) return;  // The first reason is the useful one.
  error_ = "at byte " + std::to_string(offset_) + ": " + std::string(why);
  // Nothing remains, so that loops over what remains end.
  offset_ = bytes_.size();
}

Status ByteReader::status() const {
  return good() ? Status::ok() : corrupt(error_);
}

Status ByteReader::finish() {
  if (good() && remaining() > 0) fail(std::to_string(remaining()) + " bytes too many");
  return status();
}

}  // namespace ktune
