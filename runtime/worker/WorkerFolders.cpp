#include "runtime/worker/WorkerFolders.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <vector>

#include "base/File.h"
#include "base/Log.h"

namespace ktune::runtime {

namespace {

constexpr std::string_view kPrefix = "ktune-";

// The pid in "ktune-PID-XXXXXX", or 0.
pid_t ownerOf(std::string_view name) {
  if (!name.starts_with(kPrefix)) return 0;
  name.remove_prefix(kPrefix.size());
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc() || end == name.data() + name.size() || *end != '-' || pid <= 0) return 0;
  return pid;
}

bool isDead(const std::string& path, pid_t owner) {
  if (::kill(owner, 0) == 0 || errno != ESRCH) return false;
  struct stat info {};
  // Ours, and no link planted in a shared folder.
  if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid()) return false;
  const UniqueFd lock(::open((path + "/lock").c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  return !lock.valid() ? errno == ENOENT : ::flock(lock.get(), LOCK_EX | LOCK_NB) == 0;
}

}  // namespace

void sweepWorkerFolders(const std::string& parent) {
  DIR* directory = ::opendir(parent.c_str());
  if (directory == nullptr) return;
  std::vector<std::string> dead;
  while (const dirent* entry = ::readdir(directory)) {
    const pid_t owner = ownerOf(entry->d_name);
    const std::string path = parent + "/" + entry->d_name;
    if (owner > 0 && isDead(path, owner)) dead.push_back(path);
  }
  ::closedir(directory);
  for (const std::string& path : dead) {
    if (Status s = removeTree(path); !s.isOk()) logDebug("left " + path + ": " + s.toString());
  }
}

Result<std::unique_ptr<WorkerFolders>> WorkerFolders::create(const std::string& parent) {
  KTUNE_TRY(makeDirectories(parent));
  sweepWorkerFolders(parent);
  KTUNE_ASSIGN(std::string path, makeTempDirectory(parent, std::string(kPrefix) + std::to_string(::getpid())));
  UniqueFd lock(::open((path + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid() || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    Status status = errnoStatus(errno, path + "/lock");
    (void)removeTree(path);
    return status;
  }
  return std::unique_ptr<WorkerFolders>(new WorkerFolders(std::move(path), std::move(lock)));
}

WorkerFolders::~WorkerFolders() {
  if (Status s = removeTree(path_); !s.isOk()) logDebug("left " + path_ + ": " + s.toString());
}

Result<std::string> WorkerFolders::makeFolder() {
  return makeTempDirectory(path_, "worker");
}

void WorkerFolders::removeFolder(const std::string& path) {
  if (path.empty()) return;
  if (Status s = removeTree(path); !s.isOk()) logDebug("left " + path + ": " + s.toString());
}

}  // namespace ktune::runtime
