#include "base/Hash.h"

// Inlined rather than linked: no dependence on the libxxhash of the machine, and short keys hash without a call.
#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ktune {

namespace {

constexpr size_t kDigestHexDigits = 32;

int hexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string Digest::hex() const {
  static constexpr char kHexDigits[] = "0123456789abcdef";
  std::string text(kDigestHexDigits, '0');
  for (size_t i = 0; i < kDigestHexDigits / 2; ++i) {
    const unsigned shift = 60 - 4 * static_cast<unsigned>(i);
    text[i] = kHexDigits[(high >> shift) & 15];
    text[i + kDigestHexDigits / 2] = kHexDigits[(low >> shift) & 15];
  }
  return text;
}

Result<Digest> Digest::parse(std::string_view text) {
  if (text.size() != kDigestHexDigits)
    return invalidArgument("a digest has 32 hex digits, not " + std::to_string(text.size()) + " characters");
  Digest digest;
  for (size_t i = 0; i < kDigestHexDigits; ++i) {
    const int value = hexValue(text[i]);
    if (value < 0)
      return invalidArgument("a digest has hex digits only; character " + std::to_string(i + 1) + " is none");
    uint64_t& word = i < kDigestHexDigits / 2 ? digest.high : digest.low;
    word = word << 4 | static_cast<uint64_t>(value);
  }
  return digest;
}

Digest digestOf(std::span<const std::byte> bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return {hash.high64, hash.low64};
}

Digest digestOf(std::string_view text) {
  return digestOf(std::as_bytes(std::span(text.data(), text.size())));
}

uint64_t checksumOf(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

uint64_t checksumOf(std::string_view text) {
  return checksumOf(std::as_bytes(std::span(text.data(), text.size())));
}

}  // namespace ktune
