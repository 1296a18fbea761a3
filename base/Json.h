// Reading JSON from people: nlohmann-json without its exceptions, errors that name the file position or field.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/Status.h"

namespace ktune {

using Json = nlohmann::ordered_json;

/// Errors: kInvalidArgument "WHAT:LINE:COLUMN: why". WHAT names the source (a file's path).
[[nodiscard]] Result<Json> parseJson(std::string_view text, std::string_view what);

/// Typed access to one JSON object with errors like "inputs[0].dtype: expected a string". Remembers which fields
/// were asked for, so that finish() can refuse unknown ones (a misspelt field must not be ignored).
class JsonObject {
 public:
  /// Errors: kInvalidArgument when VALUE is no object. VALUE must outlive the reader.
  [[nodiscard]] static Result<JsonObject> of(const Json& value, std::string path);

  [[nodiscard]] bool has(std::string_view field) const;
  [[nodiscard]] Result<std::string> text(std::string_view field);
  [[nodiscard]] Result<int64_t> integer(std::string_view field);
  [[nodiscard]] Result<double> number(std::string_view field);
  [[nodiscard]] Result<bool> boolean(std::string_view field);
  [[nodiscard]] Result<const Json*> array(std::string_view field);
  [[nodiscard]] Result<const Json*> any(std::string_view field);
  /// As above, with a value for an absent field.
  [[nodiscard]] Result<std::string> textOr(std::string_view field, std::string otherwise);
  [[nodiscard]] Result<int64_t> integerOr(std::string_view field, int64_t otherwise);
  [[nodiscard]] Result<double> numberOr(std::string_view field, double otherwise);
  [[nodiscard]] Result<bool> booleanOr(std::string_view field, bool otherwise);
  /// Errors: kInvalidArgument naming the first field nobody asked for and those that exist.
  [[nodiscard]] Status finish() const;
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  const Json* value_ = nullptr;
  std::string path_;
  std::vector<std::string> asked_;
  [[nodiscard]] Result<const Json*> find(std::string_view field);
};

}  // namespace ktune
