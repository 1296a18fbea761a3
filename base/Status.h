// Status and Result<T>: how every fallible function of ktune reports what went wrong.
//
// No exception crosses a folder. A function that can fail returns a Status (nothing to return) or a
// Result<T> (a value or a Status), and both are [[nodiscard]]. Result keeps std::expected's member names, so
// that it can be replaced by std::expected when the project moves to C++23.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

namespace ktune {

/// What kind of failure happened. The numbers are stable: they cross the C ABI (ktune_status) and appear in
/// documented exit codes (docs/errors.md); append only.
enum class StatusCode : int32_t {
  kOk = 0,
  kInvalidArgument = 1,    ///< The caller's input is wrong: unknown operator, impossible shape, bad JSON.
  kNotFound = 2,           ///< A named thing (file, key, device) does not exist.
  kUnsupported = 3,        ///< Well-formed, but this build or device cannot do it.
  kCorrupt = 4,            ///< Stored bytes fail their checksum or do not decode.
  kPermissionDenied = 5,   ///< The operating system refused access.
  kResourceExhausted = 6,  ///< Memory, disk space or a stated cap ran out.
  kDeadlineExceeded = 7,   ///< A time limit passed.
  kCancelled = 8,          ///< The user or caller asked to stop.
  kUnavailable = 9,        ///< Something needed is busy or missing now: lock held, driver absent, worker died.
  kInternal = 10,          ///< A broken invariant of ktune itself.
};

/// The stable lower-case name of a code ("invalid-argument"), as printed in messages and JSON.
[[nodiscard]] std::string_view statusCodeName(StatusCode code);

/// Success, or a code with one clear message that says what to do. Cheap to move; thread-compatible.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  [[nodiscard]] static Status ok() { return {}; }
  [[nodiscard]] bool isOk() const { return code_ == StatusCode::kOk; }
  [[nodiscard]] StatusCode code() const { return code_; }
  [[nodiscard]] const std::string& message() const { return message_; }

  /// "invalid-argument: MESSAGE", or "ok".
  [[nodiscard]] std::string toString() const;

  /// The same code with "PREFIX: " put before the message; success stays success.
  [[nodiscard]] Status withPrefix(std::string_view prefix) const;

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

[[nodiscard]] inline Status invalidArgument(std::string m) {
  return {StatusCode::kInvalidArgument, std::move(m)};
}
[[nodiscard]] inline Status notFound(std::string m) {
  return {StatusCode::kNotFound, std::move(m)};
}
[[nodiscard]] inline Status unsupported(std::string m) {
  return {StatusCode::kUnsupported, std::move(m)};
}
[[nodiscard]] inline Status corrupt(std::string m) {
  return {StatusCode::kCorrupt, std::move(m)};
}
[[nodiscard]] inline Status permissionDenied(std::string m) {
  return {StatusCode::kPermissionDenied, std::move(m)};
}
[[nodiscard]] inline Status resourceExhausted(std::string m) {
  return {StatusCode::kResourceExhausted, std::move(m)};
}
[[nodiscard]] inline Status deadlineExceeded(std::string m) {
  return {StatusCode::kDeadlineExceeded, std::move(m)};
}
[[nodiscard]] inline Status cancelled(std::string m) {
  return {StatusCode::kCancelled, std::move(m)};
}
[[nodiscard]] inline Status unavailable(std::string m) {
  return {StatusCode::kUnavailable, std::move(m)};
}
[[nodiscard]] inline Status internalError(std::string m) {
  return {StatusCode::kInternal, std::move(m)};
}

/// The Status for an errno value: ENOENT/ENOTDIR -> kNotFound, EACCES/EPERM/EROFS -> kPermissionDenied,
/// ENOSPC/EDQUOT/ENOMEM/EMFILE/ENFILE -> kResourceExhausted, otherwise kInternal. Message: "WHAT: strerror".
[[nodiscard]] Status errnoStatus(int error, std::string_view what);

/// A T or the Status that says why there is none. REQUIRES: never built from an ok Status.
template <typename T>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}       // NOLINT: implicit by design
  Result(Status error) : state_(std::in_place_index<1>, std::move(error)) {}  // NOLINT: implicit by design

  [[nodiscard]] bool has_value() const { return state_.index() == 0; }
  explicit operator bool() const { return has_value(); }
  [[nodiscard]] T& value() & { return *std::get_if<0>(&state_); }
  [[nodiscard]] const T& value() const& { return *std::get_if<0>(&state_); }
  [[nodiscard]] T&& value() && { return std::move(*std::get_if<0>(&state_)); }
  [[nodiscard]] const Status& error() const { return *std::get_if<1>(&state_); }
  /// ok() when there is a value, else the error.
  [[nodiscard]] Status status() const { return has_value() ? Status::ok() : error(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
};

}  // namespace ktune

#define KTUNE_CONCAT_IMPL(a, b) a##b
#define KTUNE_CONCAT(a, b) KTUNE_CONCAT_IMPL(a, b)

/// Returns from the enclosing function when EXPR (a Status) is not ok.
#define KTUNE_TRY(...)                                                                                 \
  do {                                                                                                 \
    if (::ktune::Status ktuneTryStatus = (__VA_ARGS__); !ktuneTryStatus.isOk()) return ktuneTryStatus; \
  } while (false)

/// KTUNE_ASSIGN(auto x, f()): x = value of f(), or returns its error from the enclosing function.
#define KTUNE_ASSIGN(decl, ...) KTUNE_ASSIGN_IMPL(KTUNE_CONCAT(ktuneResult, __LINE__), decl, __VA_ARGS__)
#define KTUNE_ASSIGN_IMPL(tmp, decl, ...)   \
  auto tmp = (__VA_ARGS__);                 \
  if (!tmp.has_value()) return tmp.error(); \
  decl = std::move(*tmp)
