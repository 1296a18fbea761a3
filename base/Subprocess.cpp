#include "base/Subprocess.h"

#include <fcntl.h>
#include <limits.h>
#include <linux/close_range.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>

#include "base/Log.h"

extern char** environ;

namespace ktune {

// ---------------------------------------------------------------------------------------------------- UniqueFd

UniqueFd& UniqueFd::operator=(UniqueFd&& o) noexcept {
  reset(o.release());
  return *this;
}

void UniqueFd::reset(int fd) noexcept {
  // Not retried on EINTR: Linux has closed the descriptor all the same, and another thread may have it by now.
  if (fd_ >= 0 && fd_ != fd) ::close(fd_);
  fd_ = fd;
}

// ------------------------------------------------------------------------------------------------ FrameChannel

namespace {

constexpr size_t kHeaderBytes = 4;
// How much of a frame is made room for at a time. Memory follows what arrives, so a peer that announces a large frame
// and sends none costs address space only.
constexpr size_t kReceiveStepBytes = size_t{1} << 20;

// Waits until FD is ready for EVENTS; what is wrong with it shows in the next system call on it.
Status awaitReady(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    const int ready = ::poll(&entry, 1, deadline.pollTimeoutMs());
    if (ready > 0) return Status::ok();
    if (ready < 0 && errno != EINTR) return errnoStatus(errno, "poll");
    if (deadline.passed()) return deadlineExceeded("no answer within the time limit");
  }
}

bool isGone(int error) {
  return error == EPIPE || error == ECONNRESET || error == ENOTCONN;
}

// At least one byte, or 0 at the end of the stream.
Result<size_t> receiveSome(int fd, void* bytes, size_t n, Deadline deadline) {
  while (true) {
    ssize_t got = ::recv(fd, bytes, n, MSG_DONTWAIT);
    if (got < 0 && errno == ENOTSOCK) {
      KTUNE_TRY(awaitReady(fd, POLLIN, deadline));
      got = ::read(fd, bytes, n);
    }
    if (got >= 0) return static_cast<size_t>(got);
    if (errno == EINTR) continue;
    // A peer that died with our message unread resets the connection; for us this is its end, too.
    if (isGone(errno)) return size_t{0};
    if (errno != EAGAIN && errno != EWOULDBLOCK) return errnoStatus(errno, "receive");
    KTUNE_TRY(awaitReady(fd, POLLIN, deadline));
  }
}

// write(2) to a pipe without the SIGPIPE of a pipe that nobody reads: MSG_NOSIGNAL is for sockets only.
ssize_t writeWithoutSignal(int fd, const void* bytes, size_t n) {
  sigset_t pipeSignal;
  sigset_t pending;
  sigset_t before;
  sigemptyset(&pipeSignal);
  sigaddset(&pipeSignal, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &pipeSignal, &before);
  const ssize_t written = ::write(fd, bytes, n);
  const int error = errno;
  if (written < 0 && error == EPIPE && sigismember(&pending, SIGPIPE) == 0) {
    const timespec now{0, 0};
    while (sigtimedwait(&pipeSignal, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = error;
  return written;
}

}  // namespace

Status FrameChannel::send(std::string_view frame, Deadline deadline) {
  if (!fd_.valid()) return unavailable("closed");
  if (frame.size() > kMaxFrameBytes)
    return resourceExhausted("a frame of " + std::to_string(frame.size()) + " bytes; the limit is " +
                             std::to_string(kMaxFrameBytes));
  unsigned char header[kHeaderBytes];
  for (size_t i = 0; i < kHeaderBytes; ++i) header[i] = static_cast<unsigned char>(frame.size() >> (8 * i));

  const size_t total = kHeaderBytes + frame.size();
  size_t sent = 0;
  while (sent < total) {
    iovec parts[2];
    int count = 0;
    if (sent < kHeaderBytes) parts[count++] = {header + sent, kHeaderBytes - sent};
    const size_t skip = sent < kHeaderBytes ? 0 : sent - kHeaderBytes;
    if (skip < frame.size()) parts[count++] = {const_cast<char*>(frame.data()) + skip, frame.size() - skip};

    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = static_cast<size_t>(count);
    ssize_t n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    Status ready;
    if (n < 0 && errno == ENOTSOCK) {
      // A ready pipe takes PIPE_BUF bytes without blocking.
      ready = awaitReady(fd_.get(), POLLOUT, deadline);
      if (ready.isOk())
        n = writeWithoutSignal(fd_.get(), parts[0].iov_base, std::min<size_t>(parts[0].iov_len, PIPE_BUF));
    }
    if (ready.isOk()) {
      if (n >= 0) {
        sent += static_cast<size_t>(n);
        continue;
      }
      if (errno == EINTR) continue;
      if (isGone(errno)) return unavailable("closed");
      if (errno != EAGAIN && errno != EWOULDBLOCK) return errnoStatus(errno, "send");
      ready = awaitReady(fd_.get(), POLLOUT, deadline);
    }
    if (!ready.isOk()) {
      if (sent > 0) close();
      return ready;
    }
  }
  return Status::ok();
}

Result<std::string> FrameChannel::receive(Deadline deadline) {
  if (!fd_.valid()) return unavailable("closed");
  while (headerBytes_ < kHeaderBytes) {
    KTUNE_ASSIGN(const size_t n, receiveSome(fd_.get(), header_ + headerBytes_, kHeaderBytes - headerBytes_, deadline));
    if (n == 0) return unavailable(headerBytes_ == 0 ? "closed" : "closed within a frame");
    headerBytes_ += n;
  }
  size_t length = 0;
  for (size_t i = 0; i < kHeaderBytes; ++i) length |= static_cast<size_t>(header_[i]) << (8 * i);
  if (length > kMaxFrameBytes) {
    // The stream can't be followed further.
    close();
    return resourceExhausted("a frame of " + std::to_string(length) + " bytes; the limit is " +
                             std::to_string(kMaxFrameBytes));
  }
  try {
    body_.reserve(length);  // Address space only; pages come with the bytes.
    while (bodyBytes_ < length) {
      if (bodyBytes_ == body_.size()) body_.resize(std::min(length, bodyBytes_ + kReceiveStepBytes));
      KTUNE_ASSIGN(const size_t n,
                   receiveSome(fd_.get(), body_.data() + bodyBytes_, body_.size() - bodyBytes_, deadline));
      if (n == 0) return unavailable("closed within a frame");
      bodyBytes_ += n;
    }
  } catch (const std::bad_alloc&) {
    close();
    return resourceExhausted("no memory for a frame of " + std::to_string(length) + " bytes");
  }
  headerBytes_ = 0;
  bodyBytes_ = 0;
  return std::exchange(body_, std::string());
}

// ---------------------------------------------------------------------------------------------------- ExitInfo

std::string ExitInfo::describe() const {
  if (exited) return "exited with code " + std::to_string(exitCode);
  if (signal == 0) return "ended in an unknown way (reaped by someone else)";
  const char* name = ::sigdescr_np(signal);  // strsignal is not thread-safe.
  return "killed by signal " + std::to_string(signal) + (name == nullptr ? "" : " (" + std::string(name) + ")");
}

// --------------------------------------------------------------------------------------------- standard error

namespace detail {

// The end of what a child writes to its standard error. The pipe is drained by the process service as bytes arrive, so
// that a flooding child is never blocked whatever the parent is doing, and once more by whoever asks for the text, so
// that after an exit nothing is missing. (A non-blocking write side would be simpler, but drops the last words of a
// flooding child, which are the ones that say why it died; a temporary file would grow without bound.)
class ErrorTail {
 public:
  ErrorTail(uint64_t id, UniqueFd fd) : id_(id), fd_(std::move(fd)) {}

  [[nodiscard]] uint64_t id() const { return id_; }

  /// Reads what is in the pipe; true at the end of the stream.
  bool drain() {
    const std::lock_guard lock(mutex_);
    return drainLocked();
  }
  [[nodiscard]] std::string text() {
    const std::lock_guard lock(mutex_);
    drainLocked();
    return bytes_.size() <= Subprocess::kMaxStderrBytes ? bytes_
                                                        : bytes_.substr(bytes_.size() - Subprocess::kMaxStderrBytes);
  }
  void close() noexcept {
    const std::lock_guard lock(mutex_);
    fd_.reset();
  }

 private:
  // A pipe holds at most 1 MiB unless a privileged child enlarges it; more than this in one go means that the child
  // writes as fast as we read, and nobody should wait for that to end.
  static constexpr size_t kMaxDrainBytes = size_t{4} << 20;

  const uint64_t id_;
  std::mutex mutex_;
  UniqueFd fd_;
  std::string bytes_;

  bool drainLocked() {
    char buffer[1 << 16];
    for (size_t total = 0; fd_.valid() && total < kMaxDrainBytes;) {
      const ssize_t n = ::read(fd_.get(), buffer, sizeof buffer);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return errno != EAGAIN;
      if (n == 0) return true;
      total += static_cast<size_t>(n);
      bytes_.append(buffer, static_cast<size_t>(n));
      // Cut at twice the size that is kept, so that most appends move nothing.
      if (bytes_.size() > 2 * Subprocess::kMaxStderrBytes) bytes_.erase(0, bytes_.size() - Subprocess::kMaxStderrBytes);
    }
    return !fd_.valid();
  }
};

}  // namespace detail

// ------------------------------------------------------------------------------------------------ the child's side

namespace {

using detail::ErrorTail;

// Which of the steps between fork and exec failed.
enum class ChildStep : int32_t { kParentGone, kGroup, kDescriptors, kLimits, kNice, kWorkingDirectory, kExec };

struct ChildFailure {
  ChildStep step;
  int32_t error;
};

struct ResourceLimit {
  int resource;
  rlim_t soft;
  rlim_t hard;
};

// Everything that the child needs, prepared before the fork. Between fork and exec the child shares the parent's
// memory, so it only makes system calls (through async-signal-safe functions) and writes to its own stack frames.
struct ChildPlan {
  const char* program = nullptr;
  char* const* argv = nullptr;
  char* const* environment = nullptr;
  const char* workingDirectory = nullptr;  // Null: the parent's.
  ResourceLimit limits[4] = {};
  int limitCount = 0;
  int niceIncrement = 0;
  pid_t parent = -1;
};

// The descriptors of a child, all above kChannelFd, so that moving one into place overwrites none of the others.
struct ChildFds {
  int null = -1;
  int standardError = -1;
  int channel = -1;
  int status = -1;
};

[[noreturn]] void failChild(int statusFd, ChildStep step) {
  const ChildFailure failure{step, errno};
  [[maybe_unused]] const ssize_t written = ::write(statusFd, &failure, sizeof failure);
  ::_exit(127);
}

[[noreturn]] void runChild(const ChildPlan& plan, const ChildFds& fds) {
  // First of all: whatever happens below, the child ends with its parent. A parent that died before this call sends
  // no signal any more; then the child has been given another parent.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != plan.parent)
    failChild(fds.status, ChildStep::kParentGone);
  // A group of its own: Ctrl-C at the terminal reaches the tuner alone, and kill reaches the grandchildren.
  if (::setpgid(0, 0) != 0) failChild(fds.status, ChildStep::kGroup);

  // exec keeps ignored signals and the mask; a worker must not inherit either. All signals are blocked until here, so
  // none of the parent's handlers can run in the child.
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);

  if (::dup2(fds.null, STDIN_FILENO) < 0 || ::dup2(fds.null, STDOUT_FILENO) < 0 ||
      ::dup2(fds.standardError, STDERR_FILENO) < 0 || ::dup2(fds.channel, Subprocess::kChannelFd) < 0)
    failChild(fds.status, ChildStep::kDescriptors);
  // Close on exec rather than now: the status pipe is needed until then.
  constexpr unsigned kFirst = Subprocess::kChannelFd + 1;
  if (::syscall(SYS_close_range, kFirst, ~0u, CLOSE_RANGE_CLOEXEC) != 0) {
    // Linux before 5.11.
    rlimit open{};
    ::getrlimit(RLIMIT_NOFILE, &open);
    const int end = static_cast<int>(std::min<rlim_t>(open.rlim_cur, 1 << 20));
    for (int fd = static_cast<int>(kFirst); fd < end; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
  }

  if (plan.workingDirectory != nullptr && ::chdir(plan.workingDirectory) != 0)
    failChild(fds.status, ChildStep::kWorkingDirectory);
  if (plan.niceIncrement != 0) {
    errno = 0;
    const int current = ::getpriority(PRIO_PROCESS, 0);
    if ((current == -1 && errno != 0) || ::setpriority(PRIO_PROCESS, 0, current + plan.niceIncrement) != 0)
      failChild(fds.status, ChildStep::kNice);
  }
  // Last, as the address space limit counts what the parent has mapped until exec replaces it.
  for (int i = 0; i < plan.limitCount; ++i) {
    const ResourceLimit& wanted = plan.limits[i];
    rlimit limit{};
    if (::getrlimit(wanted.resource, &limit) != 0) failChild(fds.status, ChildStep::kLimits);
    // A limit that the parent itself is under stays.
    limit.rlim_max = std::min(limit.rlim_max, wanted.hard);
    limit.rlim_cur = std::min(limit.rlim_max, wanted.soft);
    if (::setrlimit(wanted.resource, &limit) != 0) failChild(fds.status, ChildStep::kLimits);
  }
  ::execve(plan.program, plan.argv, plan.environment);
  failChild(fds.status, ChildStep::kExec);
}

// ---------------------------------------------------------------------------------------------- the process service

// What a spawn leaves in the parent.
struct Started {
  pid_t pid = -1;
  UniqueFd channel;
  UniqueFd status;  // Ends without a byte when exec succeeds, with a ChildFailure otherwise.
  std::shared_ptr<ErrorTail> errorTail;
};

// Moves FD above the descriptors that a child finds in place. Those may be free in the parent.
bool moveAboveChannel(UniqueFd& fd) {
  if (fd.get() > Subprocess::kChannelFd) return true;
  fd = UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, Subprocess::kChannelFd + 1));
  return fd.valid();
}

// One thread per process that forks all children and drains their standard errors. PR_SET_PDEATHSIG fires when the
// *thread* that forked ends, and children are asked for by pool threads that come and go; this one ends with the
// process only. It is started by the first spawn, blocks all signals, and is neither joined nor destroyed: at exit it
// sleeps in epoll_wait and the kernel ends it.
class ProcessService {
 public:
  static Result<ProcessService*> instance();
  /// The instance if this process has one; starts none.
  static ProcessService* existing();

  Result<Started> spawn(const ChildPlan& plan);
  /// Stops draining; the pipe is closed when this returns.
  void forget(ErrorTail& tail) noexcept;

 private:
  struct Request {
    const ChildPlan& plan;
    bool done = false;
    Status status;
    Started started;
  };
  static constexpr uint64_t kWakeId = 0;

  pid_t owner_ = -1;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::mutex mutex_;
  std::condition_variable answered_;
  std::deque<Request*> requests_;
  std::map<uint64_t, std::pair<int, std::shared_ptr<ErrorTail>>> tails_;  // By id, with the pipe's descriptor.
  uint64_t nextId_ = kWakeId + 1;

  Status start();
  void run();
  Status launch(const ChildPlan& plan, Started& started);
  Status watch(UniqueFd fd, std::shared_ptr<ErrorTail>& tail);
};

constinit std::mutex serviceCreation;
constinit std::atomic<ProcessService*> currentService{nullptr};

ProcessService* ProcessService::existing() {
  ProcessService* const service = currentService.load(std::memory_order_acquire);
  // A process that was forked without exec inherits the object but not its thread.
  return service != nullptr && service->owner_ == ::getpid() ? service : nullptr;
}

Result<ProcessService*> ProcessService::instance() {
  const std::lock_guard lock(serviceCreation);
  if (ProcessService* const service = existing()) return service;
  auto service = std::make_unique<ProcessService>();
  KTUNE_TRY(service->start());
  currentService.store(service.get(), std::memory_order_release);
  return service.release();  // Never destroyed: see above.
}

Status ProcessService::start() {
  owner_ = ::getpid();
  epoll_.reset(::epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return errnoStatus(errno, "epoll_create1");
  wake_.reset(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return errnoStatus(errno, "eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWakeId;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) return errnoStatus(errno, "epoll_ctl");

  // The thread inherits the mask: signals of the process are never handled on it, nor in a child before its exec.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  Status status;
  try {
    std::thread([this] { run(); }).detach();
  } catch (const std::system_error& e) {
    status = resourceExhausted(std::string("cannot start the thread that spawns children: ") + e.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return status;
}

Result<Started> ProcessService::spawn(const ChildPlan& plan) {
  Request request{plan, false, {}, {}};
  std::unique_lock lock(mutex_);
  requests_.push_back(&request);
  const uint64_t one = 1;
  // Fails only when the counter is full, that is when the thread has been woken already.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof one);
  answered_.wait(lock, [&] { return request.done; });
  if (!request.status.isOk()) return request.status;
  return std::move(request.started);
}

void ProcessService::run() {
  ::pthread_setname_np(::pthread_self(), "ktune-spawn");
  epoll_event events[64];
  while (true) {
    const int count = ::epoll_wait(epoll_.get(), events, std::size(events), -1);
    for (int i = 0; i < count; ++i) {
      const uint64_t id = events[i].data.u64;
      if (id != kWakeId) {
        std::shared_ptr<ErrorTail> tail;
        {
          const std::lock_guard lock(mutex_);
          if (const auto found = tails_.find(id); found != tails_.end()) tail = found->second.second;
        }
        if (!tail || !tail->drain()) continue;
        // At its end a pipe is ready for ever.
        const std::lock_guard lock(mutex_);
        if (const auto found = tails_.find(id); found != tails_.end()) {
          ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.first, nullptr);
          tails_.erase(found);
        }
        continue;
      }
      uint64_t wakes = 0;
      [[maybe_unused]] const ssize_t n = ::read(wake_.get(), &wakes, sizeof wakes);
      std::unique_lock lock(mutex_);
      while (!requests_.empty()) {
        Request* const request = requests_.front();
        requests_.pop_front();
        lock.unlock();
        Status status;
        try {
          status = launch(request->plan, request->started);
        } catch (const std::exception& e) {
          status = resourceExhausted(std::string("spawn: ") + e.what());
        }
        lock.lock();
        // The request is its caller's again, and may be gone, as soon as done is seen.
        request->status = std::move(status);
        request->done = true;
        answered_.notify_all();
      }
    }
  }
}

Status ProcessService::watch(UniqueFd fd, std::shared_ptr<ErrorTail>& tail) {
  const std::lock_guard lock(mutex_);
  const uint64_t id = nextId_++;
  const int raw = fd.get();
  tail = std::make_shared<ErrorTail>(id, std::move(fd));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = id;
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, raw, &event) != 0) return errnoStatus(errno, "epoll_ctl");
  tails_.emplace(id, std::pair(raw, tail));
  return Status::ok();
}

void ProcessService::forget(ErrorTail& tail) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = tails_.find(tail.id()); found != tails_.end()) {
      ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second.first, nullptr);
      tails_.erase(found);
    }
  }
  // The thread may be about to drain it; it then finds the pipe closed.
  tail.close();
}

// A thread's children inherit its affinity. This thread was started by whoever spawned first, perhaps a pool thread
// pinned to one core, so it takes the mask of the main thread.
void adoptMainThreadAffinity(pid_t process) {
  alignas(cpu_set_t) unsigned char mask[CPU_ALLOC_SIZE(1 << 14)];
  auto* const set = reinterpret_cast<cpu_set_t*>(mask);
  if (::sched_getaffinity(process, sizeof mask, set) == 0) ::sched_setaffinity(0, sizeof mask, set);
}

Status ProcessService::launch(const ChildPlan& plan, Started& started) {
  UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  if (!null.valid()) return errnoStatus(errno, "/dev/null");
  int pair[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) return errnoStatus(errno, "socketpair");
  UniqueFd parentChannel(pair[0]);
  UniqueFd childChannel(pair[1]);
  if (::pipe2(pair, O_CLOEXEC) != 0) return errnoStatus(errno, "pipe");
  UniqueFd errorRead(pair[0]);
  UniqueFd errorWrite(pair[1]);
  if (::pipe2(pair, O_CLOEXEC) != 0) return errnoStatus(errno, "pipe");
  UniqueFd statusRead(pair[0]);
  UniqueFd statusWrite(pair[1]);
  // Only the parent's end: the flag belongs to the end, and a child that gets EAGAIN would lose what it writes.
  if (::fcntl(errorRead.get(), F_SETFL, O_NONBLOCK) != 0) return errnoStatus(errno, "fcntl");
  for (UniqueFd* const fd : {&null, &childChannel, &errorWrite, &statusWrite}) {
    if (!moveAboveChannel(*fd)) return errnoStatus(errno, "fcntl");
  }

  std::shared_ptr<ErrorTail> tail;
  KTUNE_TRY(watch(std::move(errorRead), tail));
  adoptMainThreadAffinity(plan.parent);
  const ChildFds fds{null.get(), errorWrite.get(), childChannel.get(), statusWrite.get()};
  // vfork: the child borrows our memory until its exec, which takes the same time however large this process is; fork
  // copies page tables (at 2 GiB a spawn took 320 ms instead of 1.5). It suspends this thread alone, runs no
  // pthread_atfork hook, and is sound here as runChild only makes system calls and all signals are blocked.
  const pid_t pid = ::vfork();
  if (pid == 0) runChild(plan, fds);
  if (pid < 0) {
    const int error = errno;
    forget(*tail);
    // EAGAIN: too many processes (RLIMIT_NPROC or the control group's pids.max).
    if (error == EAGAIN) return resourceExhausted("vfork: too many processes");
    return errnoStatus(error, "vfork");
  }
  // The child's ends close here, in the only thread that forks, so that no other child holds them.
  started.pid = pid;
  started.channel = std::move(parentChannel);
  started.status = std::move(statusRead);
  started.errorTail = std::move(tail);
  return Status::ok();
}

// The parent's environment with the extra entries replacing or following its own.
Result<std::vector<std::string>> mergedEnvironment(const std::vector<std::string>& extra) {
  for (const std::string& entry : extra) {
    if (const size_t equals = entry.find('='); equals == 0 || equals == std::string::npos)
      return invalidArgument("the environment entry \"" + entry + "\" is not NAME=value");
  }
  std::vector<std::string> merged;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    const bool replaced = std::any_of(extra.begin(), extra.end(), [&](const std::string& e) {
      return e.size() > name.size() && e[name.size()] == '=' && e.compare(0, name.size(), name) == 0;
    });
    if (!replaced) merged.emplace_back(text);
  }
  merged.insert(merged.end(), extra.begin(), extra.end());
  return merged;
}

std::vector<char*> pointersTo(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (std::string& s : strings) pointers.push_back(s.data());
  pointers.push_back(nullptr);
  return pointers;
}

Status childFailureStatus(const ChildFailure& failure, const Subprocess::Options& options) {
  const std::string& program = options.argv[0];
  switch (failure.step) {
    case ChildStep::kParentGone:
      return unavailable("spawn " + program + ": the parent is ending");
    case ChildStep::kGroup:
      return errnoStatus(failure.error, "spawn " + program + ": setpgid");
    case ChildStep::kDescriptors:
      return errnoStatus(failure.error, "spawn " + program + ": dup2");
    case ChildStep::kLimits:
      return errnoStatus(failure.error, "spawn " + program + ": setrlimit");
    case ChildStep::kNice:
      return errnoStatus(failure.error, "spawn " + program + ": setpriority");
    case ChildStep::kWorkingDirectory:
      return errnoStatus(failure.error, "spawn " + program + ": working directory " + options.workingDirectory);
    case ChildStep::kExec:
      if (failure.error == ENOEXEC) return invalidArgument("spawn " + program + ": is no program");
      return errnoStatus(failure.error, "spawn " + program);
  }
  return internalError("spawn " + program + ": failed at an unknown step");
}

// How long a killed child may take to disappear: process exit frees device memory, which takes seconds at times.
constexpr double kReapSeconds = 60;
// Without pidfd_open (Linux before 5.3, some sandboxes) exits are looked for at this interval.
constexpr int kExitPollMs = 5;

}  // namespace

// -------------------------------------------------------------------------------------------------- Subprocess

Result<Subprocess> Subprocess::spawn(const Options& options) {
  if (options.argv.empty() || options.argv[0].empty()) return invalidArgument("spawn: no program given");
  std::string program = options.argv[0];
  if (!options.workingDirectory.empty()) {
    // A relative path means the parent's folder, wherever the child starts.
    std::error_code error;
    program = std::filesystem::absolute(program, error).string();
    if (error) return errnoStatus(error.value(), "spawn " + options.argv[0]);
  }
  std::vector<std::string> arguments = options.argv;
  KTUNE_ASSIGN(std::vector<std::string> environment, mergedEnvironment(options.extraEnvironment));
  const std::vector<char*> argv = pointersTo(arguments);
  const std::vector<char*> envp = pointersTo(environment);

  ChildPlan plan;
  plan.program = program.c_str();
  plan.argv = argv.data();
  plan.environment = envp.data();
  plan.workingDirectory = options.workingDirectory.empty() ? nullptr : options.workingDirectory.c_str();
  plan.niceIncrement = options.niceIncrement;
  plan.parent = ::getpid();
  const ProcessLimits& limits = options.limits;
  const auto limit = [&](int resource, rlim_t soft, rlim_t hard) {
    plan.limits[plan.limitCount++] = {resource, soft, hard};
  };
  if (!limits.coreDumps) limit(RLIMIT_CORE, 0, 0);
  // SIGXCPU at the soft limit can be handled; SIGKILL at the hard one can't.
  if (limits.cpuSeconds != 0) limit(RLIMIT_CPU, limits.cpuSeconds, limits.cpuSeconds + 1);
  if (limits.fileBytes != 0) limit(RLIMIT_FSIZE, limits.fileBytes, limits.fileBytes);
  if (limits.addressSpaceBytes != 0) limit(RLIMIT_AS, limits.addressSpaceBytes, limits.addressSpaceBytes);

  KTUNE_ASSIGN(ProcessService* const service, ProcessService::instance());
  KTUNE_ASSIGN(Started started, service->spawn(plan));
  Subprocess child;
  child.pid_ = started.pid;
  child.reaped_ = false;
  child.channel_ = FrameChannel(std::move(started.channel));
  child.errorTail_ = std::move(started.errorTail);

  ChildFailure failure{};
  ssize_t n;
  do n = ::read(started.status.get(), &failure, sizeof failure);
  while (n < 0 && errno == EINTR);
  if (n == sizeof failure) return childFailureStatus(failure, options);  // The destructor reaps.
  return child;
}

Subprocess::Subprocess(Subprocess&& o) noexcept
    : pid_(o.pid_),
      reaped_(std::exchange(o.reaped_, true)),
      exit_(o.exit_),
      channel_(std::move(o.channel_)),
      errorTail_(std::move(o.errorTail_)) {}

Subprocess& Subprocess::operator=(Subprocess&& o) noexcept {
  if (this == &o) return *this;
  dispose();
  pid_ = o.pid_;
  reaped_ = std::exchange(o.reaped_, true);
  exit_ = o.exit_;
  channel_ = std::move(o.channel_);
  errorTail_ = std::move(o.errorTail_);
  return *this;
}

Subprocess::~Subprocess() {
  dispose();
}

void Subprocess::dispose() noexcept {
  kill();
  if (!errorTail_) return;
  if (ProcessService* const service = ProcessService::existing()) service->forget(*errorTail_);
  errorTail_.reset();
}

bool Subprocess::reapIfExited() {
  if (reaped_) return true;
  siginfo_t info{};
  int result;
  // Looks without reaping: as long as the child is a zombie nobody else can get its number, so the kill below can only
  // reach what is left of its own group.
  do result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  while (result != 0 && errno == EINTR);
  if (result != 0) {
    // ECHILD: the host ignores SIGCHLD or has a wait(2) loop of its own. How the child ended can't be known.
    reaped_ = true;
    return true;
  }
  if (info.si_pid == 0) return false;
  ::kill(-pid_, SIGKILL);
  int status = 0;
  do result = ::waitpid(pid_, &status, 0);
  while (result < 0 && errno == EINTR);
  reaped_ = true;
  if (result < 0) return true;
  exit_.exited = WIFEXITED(status);
  exit_.exitCode = exit_.exited ? WEXITSTATUS(status) : 0;
  exit_.signal = exit_.exited ? 0 : WTERMSIG(status);
  return true;
}

bool Subprocess::running() {
  return !reapIfExited();
}

ExitInfo Subprocess::kill() {
  if (reapIfExited()) return exit_;
  ::kill(-pid_, SIGKILL);
  if (!wait(Deadline::after(kReapSeconds))) {
    logWarning("process " + std::to_string(pid_) + " was killed but does not end; the kernel holds it (a driver?)");
    reaped_ = true;
    exit_ = {false, 0, SIGKILL};
  }
  return exit_;
}

Result<ExitInfo> Subprocess::wait(Deadline deadline) {
  if (reapIfExited()) return exit_;
  const UniqueFd handle(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  while (!reapIfExited()) {
    if (deadline.passed())
      return deadlineExceeded("process " + std::to_string(pid_) + " did not end within the time limit");
    const int timeoutMs = deadline.pollTimeoutMs();
    if (handle.valid()) {
      pollfd entry{handle.get(), POLLIN, 0};
      ::poll(&entry, 1, timeoutMs);
    } else {
      ::poll(nullptr, 0, timeoutMs < 0 ? kExitPollMs : std::min(timeoutMs, kExitPollMs));
    }
  }
  return exit_;
}

std::string Subprocess::standardError() {
  return errorTail_ ? errorTail_->text() : std::string();
}

Result<std::string> currentProgramPath() {
  std::error_code error;
  std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return errnoStatus(error.value(), "/proc/self/exe");
  return path;
}

}  // namespace ktune
