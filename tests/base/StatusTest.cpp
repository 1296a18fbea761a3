#include <gtest/gtest.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "base/Status.h"

namespace ktune {
namespace {

TEST(Status, CodesKeepTheirNumbersAndNames) {
  const std::vector<std::pair<int, std::string_view>> kTable = {
      {0, "ok"},        {1, "invalid-argument"},  {2, "not-found"},          {3, "unsupported"},
      {4, "corrupt"},   {5, "permission-denied"}, {6, "resource-exhausted"}, {7, "deadline-exceeded"},
      {8, "cancelled"}, {9, "unavailable"},       {10, "internal"},          {99, "unknown"},
  };
  for (const auto& [number, name] : kTable) EXPECT_EQ(statusCodeName(static_cast<StatusCode>(number)), name);
}

TEST(Status, FactoriesSetTheirCode) {
  const std::vector<std::pair<Status, StatusCode>> kTable = {
      {invalidArgument("m"), StatusCode::kInvalidArgument},   {notFound("m"), StatusCode::kNotFound},
      {unsupported("m"), StatusCode::kUnsupported},           {corrupt("m"), StatusCode::kCorrupt},
      {permissionDenied("m"), StatusCode::kPermissionDenied}, {resourceExhausted("m"), StatusCode::kResourceExhausted},
      {deadlineExceeded("m"), StatusCode::kDeadlineExceeded}, {cancelled("m"), StatusCode::kCancelled},
      {unavailable("m"), StatusCode::kUnavailable},           {internalError("m"), StatusCode::kInternal},
  };
  for (const auto& [status, code] : kTable) {
    EXPECT_FALSE(status.isOk());
    EXPECT_EQ(status.code(), code);
    EXPECT_EQ(status.toString(), std::string(statusCodeName(code)) + ": m");
  }
}

TEST(Status, PrefixAndText) {
  EXPECT_EQ(Status::ok().toString(), "ok");
  EXPECT_TRUE(Status::ok().withPrefix("a").isOk());
  const Status status = corrupt("bad").withPrefix("record").withPrefix("cache");
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.toString(), "corrupt: cache: record: bad");
}

TEST(Status, ErrnoMapping) {
  struct Case {
    int error;
    StatusCode code;
    const char* text;
  };
  const Case kTable[] = {
      {ENOENT, StatusCode::kNotFound, "x: No such file or directory"},
      {ENOTDIR, StatusCode::kNotFound, "x: Not a directory"},
      {EACCES, StatusCode::kPermissionDenied, "x: Permission denied"},
      {EPERM, StatusCode::kPermissionDenied, "x: Operation not permitted"},
      {EROFS, StatusCode::kPermissionDenied, "x: Read-only file system"},
      {ENOSPC, StatusCode::kResourceExhausted, "x: No space left on device"},
      {EDQUOT, StatusCode::kResourceExhausted, "x: Disk quota exceeded"},
      {ENOMEM, StatusCode::kResourceExhausted, "x: Cannot allocate memory"},
      {EMFILE, StatusCode::kResourceExhausted, "x: Too many open files"},
      {ENFILE, StatusCode::kResourceExhausted, "x: Too many open files in system"},
      {EIO, StatusCode::kInternal, "x: Input/output error"},
  };
  for (const Case& c : kTable) {
    const Status status = errnoStatus(c.error, "x");
    EXPECT_EQ(status.code(), c.code) << c.text;
    EXPECT_EQ(status.message(), c.text);
  }
}

Result<int> half(int v) {
  if (v % 2 != 0) return invalidArgument("odd");
  return v / 2;
}

Result<std::string> quarterText(int v) {
  KTUNE_ASSIGN(const int h, half(v));
  KTUNE_ASSIGN(const int q, half(h));
  KTUNE_TRY(half(4).status());
  return std::to_string(q);
}

TEST(Result, MacrosPassValuesAndErrors) {
  EXPECT_EQ(quarterText(12).value(), "3");
  EXPECT_EQ(quarterText(6).error().toString(), "invalid-argument: odd");
  EXPECT_TRUE(quarterText(12).status().isOk());
  EXPECT_FALSE(quarterText(7).status().isOk());
}

TEST(Result, HoldsMoveOnlyValues) {
  Result<std::unique_ptr<int>> result = std::make_unique<int>(7);
  ASSERT_TRUE(result);
  const std::unique_ptr<int> value = *std::move(result);
  EXPECT_EQ(*value, 7);
}

}  // namespace
}  // namespace ktune
