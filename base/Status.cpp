#include "base/Status.h"

#include <cerrno>
#include <system_error>

namespace ktune {

std::string_view statusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid-argument";
    case StatusCode::kNotFound:
      return "not-found";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kCorrupt:
      return "corrupt";
    case StatusCode::kPermissionDenied:
      return "permission-denied";
    case StatusCode::kResourceExhausted:
      return "resource-exhausted";
    case StatusCode::kDeadlineExceeded:
      return "deadline-exceeded";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kInternal:
      return "internal";
  }
  return "unknown";  // A number from another version's worker or C caller.
}

std::string Status::toString() const {
  if (isOk()) return "ok";
  return std::string(statusCodeName(code_)) + ": " + message_;
}

Status Status::withPrefix(std::string_view prefix) const {
  if (isOk()) return *this;
  return {code_, std::string(prefix) + ": " + message_};
}

Status errnoStatus(int error, std::string_view what) {
  // generic_category instead of strerror: the latter is not thread-safe.
  std::string message = std::string(what) + ": " + std::generic_category().message(error);
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return notFound(std::move(message));
    case EACCES:
    case EPERM:
    case EROFS:
      return permissionDenied(std::move(message));
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE:
      return resourceExhausted(std::move(message));
    default:
      return internalError(std::move(message));
  }
}

}  // namespace ktune
