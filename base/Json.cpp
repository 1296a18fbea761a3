#include "base/Json.h"

#include <algorithm>
#include <iterator>
#include <new>
#include <optional>

namespace ktune {

namespace {

// Deeper than anything people write; code that walks a document recursively stays far from the end of its stack.
constexpr size_t kMaxDepth = 200;

// Reads a text and tells how far the parser has come, which is where an error of our own (SAX handlers get no
// position) is reported.
class CountingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  CountingIterator(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  reference operator*() const { return *at_; }
  CountingIterator& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  CountingIterator operator++(int) {
    CountingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const CountingIterator& o) const { return at_ == o.at_; }
  bool operator!=(const CountingIterator& o) const { return at_ != o.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

// Builds the document and, unlike the library's own builder, refuses a field given twice (it would drop one of the
// values in silence) and absurd nesting.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(Json& root) : root_(root) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override { return put(v); }
  bool number_float(number_float_t v, const string_t&) override { return put(v); }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return refuse("binary values are not JSON"); }
  bool start_object(size_t) override { return open(Json::object()); }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& name) override {
    if (open_.back()->contains(name)) return refuse("the field \"" + name + "\" is given twice");
    field_ = std::move(name);
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // The library counts the offending character too, and the end of the text as one.
    position_ = position == 0 ? 0 : position - 1;
    why_ = error.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 2: WHY": the caller says the position.
    if (const size_t bracket = why_.find("] "); bracket != std::string::npos) why_.erase(0, bracket + 2);
    if (why_.starts_with("parse error")) {
      if (const size_t colon = why_.find(": "); colon != std::string::npos) why_.erase(0, colon + 2);
    }
    hasPosition_ = true;
    return false;
  }

  [[nodiscard]] const std::string& why() const { return why_; }
  [[nodiscard]] bool hasPosition() const { return hasPosition_; }
  [[nodiscard]] size_t position() const { return position_; }

 private:
  Json& root_;
  std::vector<Json*> open_;
  std::string field_;
  std::string why_;
  size_t position_ = 0;
  bool hasPosition_ = false;

  bool refuse(std::string why) {
    why_ = std::move(why);
    return false;
  }
  Json* add(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_object()) return &(parent[field_] = std::move(value));
    parent.push_back(std::move(value));
    return &parent.back();
  }
  bool put(Json value) {
    add(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (open_.size() >= kMaxDepth) return refuse("nested deeper than " + std::to_string(kMaxDepth) + " levels");
    // Pointers stay valid: a container grows only while it is the innermost open one.
    open_.push_back(add(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }
};

std::string positionText(std::string_view text, size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const size_t newline = before.rfind('\n');
  const size_t column = newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  return std::to_string(1 + std::count(before.begin(), before.end(), '\n')) + ":" + std::to_string(column);
}

std::optional<int64_t> asInteger(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto v = value.get<uint64_t>();
    if (v > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(v);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  return std::nullopt;
}

}  // namespace

Result<Json> parseJson(std::string_view text, std::string_view what) {
  Json root;
  Builder builder(root);
  const char* furthest = text.data();
  std::string why;
  try {
    if (Json::sax_parse(CountingIterator(text.data(), &furthest),
                        CountingIterator(text.data() + text.size(), &furthest), &builder))
      return root;
    why = builder.why();
  } catch (const std::bad_alloc&) {
    return resourceExhausted(std::string(what) + ": out of memory");
  } catch (const std::exception& e) {
    // Syntax errors come through the builder.
    why = e.what();
  }
  // An error of our own is noticed when the offending token has just been read.
  const size_t read = static_cast<size_t>(furthest - text.data());
  const size_t offset = builder.hasPosition() ? builder.position() : (read == 0 ? 0 : read - 1);
  return invalidArgument(std::string(what) + ":" + positionText(text, offset) + ": " + why);
}

Result<JsonObject> JsonObject::of(const Json& value, std::string path) {
  if (!value.is_object()) return invalidArgument((path.empty() ? "the document" : path) + ": expected an object");
  JsonObject object;
  object.value_ = &value;
  object.path_ = std::move(path);
  return object;
}

bool JsonObject::has(std::string_view field) const {
  return value_->find(std::string(field)) != value_->end();
}

namespace {

std::string fieldPath(const std::string& path, std::string_view field) {
  return path.empty() ? std::string(field) : path + "." + std::string(field);
}

}  // namespace

Result<const Json*> JsonObject::find(std::string_view field) {
  if (std::find(asked_.begin(), asked_.end(), field) == asked_.end()) asked_.emplace_back(field);
  const auto found = value_->find(std::string(field));
  if (found == value_->end()) return invalidArgument(fieldPath(path_, field) + ": is missing");
  return &*found;
}

Result<std::string> JsonObject::text(std::string_view field) {
  KTUNE_ASSIGN(const Json* value, find(field));
  if (!value->is_string()) return invalidArgument(fieldPath(path_, field) + ": expected a string");
  return value->get<std::string>();
}

Result<int64_t> JsonObject::integer(std::string_view field) {
  KTUNE_ASSIGN(const Json* value, find(field));
  const std::optional<int64_t> v = asInteger(*value);
  if (!v) return invalidArgument(fieldPath(path_, field) + ": expected an integer of 64 bits");
  return *v;
}

Result<double> JsonObject::number(std::string_view field) {
  KTUNE_ASSIGN(const Json* value, find(field));
  if (!value->is_number()) return invalidArgument(fieldPath(path_, field) + ": expected a number");
  return value->get<double>();
}

Result<bool> JsonObject::boolean(std::string_view field) {
  KTUNE_ASSIGN(const Json* value, find(field));
  if (!value->is_boolean()) return invalidArgument(fieldPath(path_, field) + ": expected true or false");
  return value->get<bool>();
}

Result<const Json*> JsonObject::array(std::string_view field) {
  KTUNE_ASSIGN(const Json* value, find(field));
  if (!value->is_array()) return invalidArgument(fieldPath(path_, field) + ": expected an array");
  return value;
}

Result<const Json*> JsonObject::any(std::string_view field) {
  return find(field);
}

// The find calls with a discarded result record that the field was asked for.

Result<std::string> JsonObject::textOr(std::string_view field, std::string otherwise) {
  if (has(field)) return text(field);
  static_cast<void>(find(field));
  return otherwise;
}

Result<int64_t> JsonObject::integerOr(std::string_view field, int64_t otherwise) {
  if (has(field)) return integer(field);
  static_cast<void>(find(field));
  return otherwise;
}

Result<double> JsonObject::numberOr(std::string_view field, double otherwise) {
  if (has(field)) return number(field);
  static_cast<void>(find(field));
  return otherwise;
}

Result<bool> JsonObject::booleanOr(std::string_view field, bool otherwise) {
  if (has(field)) return boolean(field);
  static_cast<void>(find(field));
  return otherwise;
}

Status JsonObject::finish() const {
  for (const auto& item : value_->items()) {
    if (std::find(asked_.begin(), asked_.end(), item.key()) != asked_.end()) continue;
    std::string known;
    for (const std::string& name : asked_) known += (known.empty() ? "" : ", ") + name;
    return invalidArgument(fieldPath(path_, item.key()) + ": is an unknown field; known are: " + known);
  }
  return Status::ok();
}

}  // namespace ktune
