// Small file helpers with clear errors.
#pragma once

#include <string>
#include <string_view>

#include "base/Status.h"

namespace ktune {

/// Errors: kNotFound, kPermissionDenied, kInvalidArgument (a folder), kResourceExhausted (over maxBytes).
[[nodiscard]] Result<std::string> readFile(const std::string& path, size_t maxBytes = size_t{1} << 30);
/// Writes to a temporary file beside PATH, fsyncs and renames: readers see the old or the new bytes, never a mix.
[[nodiscard]] Status writeFileAtomically(const std::string& path, std::string_view bytes);
/// mkdir -p with mode 0700 for what it creates.
[[nodiscard]] Status makeDirectories(const std::string& path);
/// Removes a folder and everything in it; a missing folder is success.
[[nodiscard]] Status removeTree(const std::string& path);
/// A new private folder PARENT/PREFIX-XXXXXX.
[[nodiscard]] Result<std::string> makeTempDirectory(const std::string& parent, std::string_view prefix);
/// True when PATH (or its nearest existing parent) lies on NFS, SMB, Lustre, GPFS, Ceph, FUSE or 9p.
[[nodiscard]] bool isNetworkFilesystem(const std::string& path);
/// Free bytes for this user where PATH lies; 0 when unknown.
[[nodiscard]] uint64_t freeDiskBytes(const std::string& path);

}  // namespace ktune
