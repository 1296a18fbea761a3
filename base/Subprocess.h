// Killable children with limits, and framed messages to and from them.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/Deadline.h"
#include "base/Status.h"

namespace ktune {

/// An owned file descriptor; closes it in the destructor. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& o) noexcept : fd_(o.release()) {}
  UniqueFd& operator=(UniqueFd&& o) noexcept;
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }
  [[nodiscard]] int get() const { return fd_; }
  [[nodiscard]] bool valid() const { return fd_ >= 0; }
  int release() noexcept {
    int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset(int fd = -1) noexcept;

 private:
  int fd_ = -1;
};

/// What a child may use. Zero means unlimited.
struct ProcessLimits {
  uint64_t addressSpaceBytes = 0;  ///< RLIMIT_AS; leave 0 in sanitizer builds (their shadow needs terabytes).
  uint64_t cpuSeconds = 0;         ///< RLIMIT_CPU.
  uint64_t fileBytes = 0;          ///< RLIMIT_FSIZE.
  bool coreDumps = false;          ///< RLIMIT_CORE 0 unless true.
};

/// One end of a stream of frames (u32 little-endian length, then that many bytes) over a socket or pipe pair.
/// Thread-compatible. A frame over maxFrameBytes is refused on both sides.
class FrameChannel {
 public:
  static constexpr uint32_t kMaxFrameBytes = 1u << 30;
  FrameChannel() = default;
  explicit FrameChannel(UniqueFd fd) : fd_(std::move(fd)) {}
  /// Errors: kUnavailable when the other end is gone (EPIPE never raises SIGPIPE), kDeadlineExceeded,
  /// kResourceExhausted for an oversized frame. A frame that the deadline cuts in two closes the channel: what
  /// follows would be misread.
  [[nodiscard]] Status send(std::string_view frame, Deadline deadline = {});
  /// Errors: as send; end of stream at a frame border is kUnavailable with message "closed". After kDeadlineExceeded
  /// the next call goes on where this one stopped, so a caller may wait in slices.
  [[nodiscard]] Result<std::string> receive(Deadline deadline = {});
  [[nodiscard]] int fd() const { return fd_.get(); }
  void close() { fd_.reset(); }

 private:
  UniqueFd fd_;
  // The frame of which a part has been received.
  unsigned char header_[4] = {};
  size_t headerBytes_ = 0;
  std::string body_;  // The first bodyBytes_ bytes have arrived.
  size_t bodyBytes_ = 0;
};

namespace detail {
class ErrorTail;
}

/// How a child ended.
struct ExitInfo {
  bool exited = false;  ///< true: exitCode is meaningful; false: signal is.
  int exitCode = 0;
  int signal = 0;
  /// "exited with code 3", "killed by signal 11 (Segmentation fault)".
  [[nodiscard]] std::string describe() const;
};

/// A child process in its own process group that dies with its parent process (PR_SET_PDEATHSIG; the thread that called
/// spawn may end earlier), whose standard input and output are /dev/null, whose standard error is captured (the last
/// kMaxStderrBytes of it; a child that floods it is drained, never blocked), and which finds its end of the frame
/// channel at descriptor 3. No other descriptor of the parent is inherited; signal mask and handlers are the defaults,
/// the affinity is that of the parent's main thread. What is left of the group is killed when the child is reaped. A
/// grandchild dies with the tuner only if the child, too, spawned it with this class. The program must not be
/// set-user-id or have file capabilities: the kernel then drops PR_SET_PDEATHSIG.
/// Thread-compatible; spawn is thread-safe. Move-only; the destructor kills and reaps the whole group.
///
/// The first spawn of a process starts one thread that lives as long as the process: it forks every child (the kernel
/// ties PR_SET_PDEATHSIG to the forking thread) and drains the standard errors of all of them.
class Subprocess {
 public:
  static constexpr int kChannelFd = 3;
  static constexpr size_t kMaxStderrBytes = 16 * 1024;

  struct Options {
    std::vector<std::string> argv;              ///< argv[0] is the program's path (no PATH search).
    std::vector<std::string> extraEnvironment;  ///< "NAME=value" entries added to (or replacing) the parent's.
    ProcessLimits limits;
    std::string workingDirectory;  ///< Empty: the parent's.
    int niceIncrement = 0;
  };

  /// Returns when the program has been started (execve succeeded). Errors: kNotFound (no such program or working
  /// directory), kPermissionDenied, kResourceExhausted (fork or pipe failed), kInvalidArgument (empty argv, a file that
  /// is no program, an environment entry without a name).
  [[nodiscard]] static Result<Subprocess> spawn(const Options& options);

  Subprocess(Subprocess&&) noexcept;
  Subprocess& operator=(Subprocess&&) noexcept;
  ~Subprocess();

  [[nodiscard]] pid_t pid() const { return pid_; }
  [[nodiscard]] FrameChannel& channel() { return channel_; }
  /// True while the child has not been reaped and has not exited.
  [[nodiscard]] bool running();
  /// SIGKILL to the group and reap. Idempotent. A child that the kernel does not let go within a minute (stuck in a
  /// driver) is given up with a warning.
  ExitInfo kill();
  /// Waits until the child exits or the deadline passes (kDeadlineExceeded).
  [[nodiscard]] Result<ExitInfo> wait(Deadline deadline);
  /// What the child wrote to standard error so far (its last kMaxStderrBytes bytes).
  [[nodiscard]] std::string standardError();

 private:
  Subprocess() = default;
  pid_t pid_ = -1;
  bool reaped_ = true;
  ExitInfo exit_;
  FrameChannel channel_;
  std::shared_ptr<detail::ErrorTail> errorTail_;
  bool reapIfExited();
  void dispose() noexcept;
};

/// The absolute path of the running program (/proc/self/exe).
[[nodiscard]] Result<std::string> currentProgramPath();

}  // namespace ktune
