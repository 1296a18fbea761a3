// Private to ir/schedule: reads the attribute texts of schedules and genomes.
#pragma once

#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/Status.h"

namespace ktune::schedule {

/// A cursor over a text; blanks between tokens are skipped. Errors name the offset (REQUIRES: the text outlives it).
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  /// True, and moves past TOKEN, when it comes next.
  bool accept(std::string_view token) {
    skipBlanks();
    if (text_.substr(offset_, token.size()) != token) return false;
    offset_ += token.size();
    return true;
  }
  [[nodiscard]] Status expect(std::string_view token) {
    return accept(token) ? Status::ok() : error("expected '" + std::string(token) + "'");
  }
  [[nodiscard]] Result<std::string_view> identifier() {
    skipBlanks();
    size_t end = offset_;
    while (end < text_.size() && (isLetter(text_[end]) || (end > offset_ && isDigit(text_[end])))) ++end;
    if (end == offset_) return error("expected a name");
    std::string_view name = text_.substr(offset_, end - offset_);
    offset_ = end;
    return name;
  }
  [[nodiscard]] Result<int32_t> integer() {
    skipBlanks();
    int32_t value = 0;
    const char* begin = text_.data() + offset_;
    auto [end, problem] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (problem == std::errc::result_out_of_range) return error("number out of range");
    if (problem != std::errc()) return error("expected a number");
    offset_ += static_cast<size_t>(end - begin);
    return value;
  }
  [[nodiscard]] Status atEnd() {
    skipBlanks();
    return offset_ == text_.size() ? Status::ok() : error("unexpected text after the end");
  }
  /// The text from here up to and including the first STOP, which is consumed; empty when there is none.
  std::string_view through(char stop) {
    skipBlanks();
    size_t end = text_.find(stop, offset_);
    if (end == std::string_view::npos) return {};
    std::string_view piece = text_.substr(offset_, end + 1 - offset_);
    offset_ = end + 1;
    return piece;
  }
  [[nodiscard]] size_t offset() const { return offset_; }
  [[nodiscard]] Status error(const std::string& why) const {
    return invalidArgument("offset " + std::to_string(offset_) + ": " + why);
  }

 private:
  static bool isLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
  static bool isDigit(char c) { return c >= '0' && c <= '9'; }
  void skipBlanks() {
    while (offset_ < text_.size() && (text_[offset_] == ' ' || text_[offset_] == '\n' || text_[offset_] == '\t')) {
      ++offset_;
    }
  }
  std::string_view text_;
  size_t offset_ = 0;
};

}  // namespace ktune::schedule
