#include "base/File.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "base/Subprocess.h"  // UniqueFd
#include "base/SystemDetail.h"

namespace ktune {

namespace {

constexpr size_t kReadChunkBytes = size_t{1} << 16;

int openRetrying(const char* path, int flags, mode_t mode = 0) {
  int fd;
  do fd = ::open(path, flags | O_CLOEXEC, mode);
  while (fd < 0 && errno == EINTR);
  return fd;
}

std::string parentOf(const std::string& path) {
  const size_t last = path.find_last_not_of('/');
  if (last == std::string::npos) return path.empty() ? "." : "/";
  const size_t slash = path.rfind('/', last);
  if (slash == std::string::npos) return ".";
  const size_t end = path.find_last_not_of('/', slash);
  return end == std::string::npos ? "/" : path.substr(0, end + 1);
}

// PATH, or the nearest of its parents that QUERY succeeds on; false when there is none.
template <typename Query>
bool atNearestExisting(std::string path, Query query) {
  while (true) {
    if (query(path.empty() ? "." : path.c_str())) return true;
    if ((errno != ENOENT && errno != ENOTDIR) || path == "/" || path == "." || path.empty()) return false;
    path = parentOf(path);
  }
}

Status writeAll(int fd, std::string_view bytes, const std::string& what) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const int error = errno;
      // The file size limit (RLIMIT_FSIZE, or the file system's own) is a cap that ran out.
      if (error == EFBIG) return resourceExhausted("write " + what + ": file too large");
      return errnoStatus(error, "write " + what);
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return Status::ok();
}

// Makes a rename durable. File systems that can't sync a folder say EINVAL; the rename is atomic all the same.
Status syncFolder(const std::string& folder) {
  const UniqueFd fd(openRetrying(folder.c_str(), O_RDONLY | O_DIRECTORY));
  if (!fd.valid()) {
    // A folder may be writable but not readable.
    if (errno == EACCES) return Status::ok();
    return errnoStatus(errno, "open folder " + folder);
  }
  if (::fsync(fd.get()) != 0 && errno != EINVAL && errno != ENOTSUP) return errnoStatus(errno, "sync folder " + folder);
  return Status::ok();
}

}  // namespace

Result<std::string> readFile(const std::string& path, size_t maxBytes) {
  const UniqueFd fd(openRetrying(path.c_str(), O_RDONLY));
  if (!fd.valid()) return errnoStatus(errno, path);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errnoStatus(errno, path);
  if (S_ISDIR(info.st_mode)) return invalidArgument(path + ": is a folder, not a file");
  const auto tooLarge = [&] {
    return resourceExhausted(path + ": is larger than the " + std::to_string(maxBytes) + " bytes allowed here");
  };
  const uint64_t statedBytes = S_ISREG(info.st_mode) ? static_cast<uint64_t>(info.st_size) : 0;
  if (statedBytes > maxBytes) return tooLarge();

  // Read until the end whatever the stated size: files of /proc state 0, and others may be growing.
  std::string bytes;
  size_t used = 0;
  while (true) {
    if (used == bytes.size()) {
      const size_t wanted = used == 0 ? static_cast<size_t>(statedBytes) + 1 : std::max(used * 2, kReadChunkBytes);
      // One byte over the cap is enough to notice that the file exceeds it.
      bytes.resize(wanted > maxBytes ? (maxBytes == SIZE_MAX ? maxBytes : maxBytes + 1) : wanted);
    }
    const ssize_t n = ::read(fd.get(), bytes.data() + used, bytes.size() - used);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errnoStatus(errno, "read " + path);
    if (n == 0) break;
    used += static_cast<size_t>(n);
    if (used > maxBytes) return tooLarge();
  }
  bytes.resize(used);
  return bytes;
}

Status writeFileAtomically(const std::string& path, std::string_view bytes) {
  const std::string folder = parentOf(path);
  // open with our own name instead of mkstemp: the file gets the mode that the user's umask asks for, as any new file.
  static std::atomic<uint64_t> counter{0};
  UniqueFd fd;
  std::string temporary;
  do {
    temporary = folder + "/.ktune-" + std::to_string(::getpid()) + "-" + std::to_string(counter++) + ".tmp";
    fd.reset(openRetrying(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL, 0666));
  } while (!fd.valid() && errno == EEXIST);  // Left over by a process of the same number that was killed.
  if (!fd.valid()) return errnoStatus(errno, "create a file in " + folder);

  Status status = writeAll(fd.get(), bytes, path);
  if (status.isOk() && ::fsync(fd.get()) != 0) status = errnoStatus(errno, "sync " + path);
  // close reports late write errors of network file systems.
  if (const int raw = fd.release(); ::close(raw) != 0 && errno != EINTR && status.isOk())
    status = errnoStatus(errno, "close " + path);
  if (status.isOk() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    status = errno == EISDIR ? invalidArgument(path + ": is a folder, not a file") : errnoStatus(errno, path);
  }
  if (!status.isOk()) {
    ::unlink(temporary.c_str());
    return status;
  }
  return syncFolder(folder);
}

Status makeDirectories(const std::string& path) {
  if (path.empty()) return invalidArgument("an empty folder path");
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), 0700) == 0) continue;
    const int error = errno;
    // Any error on a folder that exists is none: mkdir says EROFS or EACCES for parents that we may only read.
    struct stat info {};
    if (::stat(part.c_str(), &info) == 0) {
      if (S_ISDIR(info.st_mode)) continue;
      return invalidArgument(part + ": exists and is no folder");
    }
    return errnoStatus(error, "create folder " + part);
  }
  return Status::ok();
}

Status removeTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  if (error && error.value() != ENOENT) return errnoStatus(error.value(), "remove " + path);
  return Status::ok();
}

Result<std::string> makeTempDirectory(const std::string& parent, std::string_view prefix) {
  std::string path = parent + "/" + std::string(prefix) + "-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return errnoStatus(errno, "create a temporary folder in " + parent);
  return path;
}

bool isNetworkFilesystem(const std::string& path) {
  struct statfs info {};
  return atNearestExisting(path, [&](const char* p) { return ::statfs(p, &info) == 0; }) &&
         // f_type is signed on some platforms; the magic numbers have 32 bits.
         detail::isNetworkFilesystemMagic(static_cast<uint32_t>(info.f_type));
}

uint64_t freeDiskBytes(const std::string& path) {
  struct statvfs info {};
  if (!atNearestExisting(path, [&](const char* p) { return ::statvfs(p, &info) == 0; })) return 0;
  return static_cast<uint64_t>(info.f_bavail) * info.f_frsize;
}

}  // namespace ktune
