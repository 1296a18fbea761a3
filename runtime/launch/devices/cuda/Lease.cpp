#include "runtime/launch/devices/cuda/Lease.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/Deadline.h"
#include "base/Settings.h"

namespace ktune::runtime::cuda {

namespace {

constexpr auto kPollInterval = std::chrono::milliseconds(100);

bool isAlive(pid_t pid) {
  return pid > 0 && (::kill(pid, 0) == 0 || errno == EPERM);
}

// The parent of PID by /proc, 0 when unknown.
pid_t parentOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  // After the name, which may hold anything: state, parent.
  const size_t end = line.rfind(')');
  if (end == std::string::npos || end + 4 >= line.size()) return 0;
  return static_cast<pid_t>(std::strtol(line.c_str() + end + 4, nullptr, 10));
}

std::string commandOf(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return name;
}

std::string megabytes(uint64_t bytes) {
  return std::to_string(bytes >> 20) + " MiB";
}

// Something listens at the other end of a socket or named pipe.
bool answers(const std::string& path) {
  struct stat info = {};
  if (::lstat(path.c_str(), &info) != 0) return false;
  if (S_ISFIFO(info.st_mode)) {
    const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
    return fd.valid();
  }
  if (!S_ISSOCK(info.st_mode)) return false;
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  for (const int type : {SOCK_STREAM, SOCK_SEQPACKET, SOCK_DGRAM}) {
    const UniqueFd fd(::socket(AF_UNIX, type | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd.valid()) return false;
    if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
    if (errno == EAGAIN || errno == EINPROGRESS || errno == EACCES) return true;  // There, and busy or not for us.
    if (errno != EPROTOTYPE) return false;
  }
  return false;
}

// Opens the lock file, making it if need be. Sticky folders refuse O_CREAT on a file of another user (Linux's
// fs.protected_regular), so opening and making are two steps.
int openLock(const std::string& path) {
  for (int attempt = 0; attempt < 3; ++attempt) {
    int fd = ::open(path.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 || errno != ENOENT) return fd;
    fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd >= 0) {
      (void)::fchmod(fd, 0666);  // Whatever the umask: other users lock it too.
      return fd;
    }
    if (errno != EEXIST) return -1;
  }
  return -1;
}

std::string holderOf(int fd) {
  char text[128] = {};
  const ssize_t n = ::pread(fd, text, sizeof text - 1, 0);
  return n > 0 ? std::string(text, static_cast<size_t>(n)) : "another ktune process";
}

std::string describe(const GpuProcess& process) {
  std::string text = "process " + std::to_string(process.pid);
  if (const std::string name = commandOf(process.pid); !name.empty()) text += " (" + name + ")";
  if (process.memoryBytes != 0) text += " with " + megabytes(process.memoryBytes);
  return text;
}

}  // namespace

std::string lockDirectory() {
  const Result<Settings> settings = readSettings();
  const std::string runtimeDir = settings ? settings->xdgRuntimeDir : std::string();
  for (const std::string& directory : {std::string("/run/lock"), runtimeDir}) {
    if (!directory.empty() && ::access(directory.c_str(), W_OK | X_OK) == 0) return directory;
  }
  return "/tmp";
}

std::string findActiveMps(const std::string& given) {
  std::string directory = given;
  if (directory.empty()) {
    const Result<Settings> settings = readSettings();
    directory = settings && !settings->mpsPipeDir.empty() ? settings->mpsPipeDir : "/tmp/nvidia-mps";
  }
  std::ifstream file(directory + "/nvidia-cuda-mps-control.pid");
  pid_t pid = 0;
  if (file >> pid && isAlive(pid)) return directory;
  // The daemon of another namespace: its number says nothing here, but its pipe does.
  return answers(directory + "/control") ? directory : std::string();
}

bool isOurProcess(pid_t pid) {
  return pid == ::getpid() || (isAlive(pid) && (::getpgid(pid) == ::getpgrp() || parentOf(pid) == ::getpid()));
}

Result<Lease> Lease::take(const std::string& uuid, LeaseProbes probes, bool share) {
  const std::string path = probes.directory + "/ktune-gpu-" + uuid + ".lock";
  const Deadline deadline = Deadline::after(probes.patienceSeconds);
  Lease lease;
  lease.share_ = share;
  lease.lock_ = UniqueFd(openLock(path));
  if (!lease.lock_.valid()) return unavailable(errnoStatus(errno, "the lock file " + path).message());
  while (::flock(lease.lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) return unavailable(errnoStatus(errno, "locking " + path).message());
    if (deadline.passed())
      return unavailable("GPU " + uuid + " is in use by " + holderOf(lease.lock_.get()) +
                         "; wait for it, or choose another --device (lock file " + path + ")");
    std::this_thread::sleep_for(kPollInterval);
  }
  const std::string holder = "ktune process " + std::to_string(::getpid());
  if (::ftruncate(lease.lock_.get(), 0) != 0 ||
      ::pwrite(lease.lock_.get(), holder.data(), holder.size(), 0) != static_cast<ssize_t>(holder.size()))
    return unavailable(errnoStatus(errno, "writing " + path).message());

  if (!share) {
    switch (probes.computeMode()) {
      case ComputeMode::kExclusiveProcess:
        return unavailable("GPU " + uuid +
                           " is in exclusive-process mode: somebody reserves it for one process; set the mode back "
                           "(nvidia-smi -c DEFAULT), or give --share-device");
      case ComputeMode::kProhibited:
        return unavailable("GPU " + uuid + " is in prohibited mode; set it back (nvidia-smi -c DEFAULT)");
      case ComputeMode::kDefault:
        break;
    }
    if (const std::string mps = probes.activeMps(); !mps.empty())
      return unavailable("an MPS control daemon is active (" + mps +
                         "): other processes could run beside a measurement on GPU " + uuid +
                         "; stop it (echo quit | nvidia-cuda-mps-control), or give --share-device");
    for (;;) {
      std::string others;
      for (const GpuProcess& process : probes.processes().value_or(std::vector<GpuProcess>())) {
        if (!probes.isOurs(process.pid)) others += (others.empty() ? "" : ", ") + describe(process);
      }
      if (others.empty()) break;
      if (deadline.passed())
        return unavailable("GPU " + uuid + " is used by " + others +
                           "; times would be wrong, and its work disturbed: end it, choose another --device, or give "
                           "--share-device");
      std::this_thread::sleep_for(kPollInterval);
    }
  }
  lease.probes_ = std::move(probes);
  return lease;
}

std::string Lease::foreignActivity() {
  if (!held() || share_) return {};
  std::vector<GpuProcess> others;
  bool oursListed = false;
  for (const GpuProcess& process : probes_.processes().value_or(std::vector<GpuProcess>())) {
    if (probes_.isOurs(process.pid)) {
      oursListed = true;
    } else if (process.pid != self_) {
      others.push_back(process);
    }
  }
  // The device was empty when it was leased. The first newcomer is this process, unless that is listed as itself.
  if (self_ == 0 && !oursListed && others.size() == 1) {
    self_ = others.front().pid;
    others.clear();
  }
  std::string text;
  for (const GpuProcess& process : others) text += (text.empty() ? "" : ", ") + describe(process);
  return text;
}

}  // namespace ktune::runtime::cuda
