#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <thread>

#include "base/ChildModes.h"
#include "base/File.h"
#include "base/Subprocess.h"

namespace ktune {
namespace {

using testing_children::floodText;

#if defined(KTUNE_SANITIZED) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;
#else
constexpr bool kSanitized = false;
#endif

// Far above what anything here takes, even under a sanitizer on a busy machine; only a hang reaches it.
constexpr double kPatienceSeconds = 120;

Deadline patience() {
  return Deadline::after(kPatienceSeconds);
}

Subprocess::Options selfOptions(std::vector<std::string> arguments) {
  Subprocess::Options options;
  options.argv = {*currentProgramPath(), "--child"};
  options.argv.insert(options.argv.end(), arguments.begin(), arguments.end());
  return options;
}

Subprocess::Options shellOptions(const std::string& script) {
  Subprocess::Options options;
  options.argv = {"/bin/sh", "-c", script};
  return options;
}

Subprocess spawnOrDie(const Subprocess::Options& options) {
  Result<Subprocess> child = Subprocess::spawn(options);
  if (!child) {
    ADD_FAILURE() << child.error().toString();
    std::abort();
  }
  return *std::move(child);
}

// Ended, whether or not somebody has reaped it.
bool gone(pid_t pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(stat, text)) return true;
  const size_t state = text.rfind(')') + 2;
  return state >= text.size() || text[state] == 'Z' || text[state] == 'X';
}

bool becomesGone(pid_t pid) {
  for (const Deadline deadline = patience(); !deadline.passed();) {
    if (gone(pid)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return false;
}

size_t openDescriptors() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

std::map<std::string, std::string> describe(const Subprocess::Options& options) {
  Subprocess child = spawnOrDie(options);
  const Result<std::string> text = child.channel().receive(patience());
  EXPECT_TRUE(text) << text.error().toString() << child.standardError();
  std::map<std::string, std::string> values;
  std::istringstream lines(text ? *text : "");
  for (std::string line; std::getline(lines, line);)
    values[line.substr(0, line.find(' '))] = line.substr(line.find(' ') + 1);
  return values;
}

TEST(Subprocess, Endings) {
  struct Case {
    const char* script;
    const char* described;
    bool exited;
    int number;
  };
  const Case kTable[] = {
      {"exit 0", "exited with code 0", true, 0},
      {"exit 3", "exited with code 3", true, 3},
      {"kill -SEGV $$", "killed by signal 11 (Segmentation fault)", false, SIGSEGV},
      {"kill -ABRT $$", "killed by signal 6 (Aborted)", false, SIGABRT},
      {"kill -KILL $$", "killed by signal 9 (Killed)", false, SIGKILL},
  };
  for (const Case& c : kTable) {
    Subprocess child = spawnOrDie(shellOptions(c.script));
    const Result<ExitInfo> info = child.wait(patience());
    ASSERT_TRUE(info) << c.script;
    EXPECT_EQ(info->describe(), c.described);
    EXPECT_EQ(info->exited, c.exited);
    EXPECT_EQ(c.exited ? info->exitCode : info->signal, c.number);
    EXPECT_FALSE(child.running());
    // Waiting and killing again change nothing.
    EXPECT_EQ(child.wait(Deadline::after(0))->describe(), c.described);
    EXPECT_EQ(child.kill().describe(), c.described);
  }
}

TEST(Subprocess, FramesGoBothWays) {
  Subprocess child = spawnOrDie(selfOptions({"echo"}));
  for (const size_t n : {size_t{0}, size_t{10}, size_t{5} << 20}) {
    const std::string frame(n, 'f');
    ASSERT_TRUE(child.channel().send(frame, patience()).isOk());
    const Result<std::string> echo = child.channel().receive(patience());
    ASSERT_TRUE(echo) << echo.error().toString();
    EXPECT_TRUE(*echo == frame);
  }
  EXPECT_TRUE(child.running());
  child.channel().close();
  EXPECT_EQ(child.wait(patience())->describe(), "exited with code 0");
}

TEST(Subprocess, AHangingChildIsKilled) {
  Subprocess child = spawnOrDie(shellOptions("while :; do :; done"));
  const double start = monotonicSeconds();
  EXPECT_EQ(child.wait(Deadline::after(0.1)).error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(child.channel().receive(Deadline::after(0.1)).error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_GE(monotonicSeconds() - start, 0.2);
  EXPECT_TRUE(child.running());
  EXPECT_EQ(child.kill().describe(), "killed by signal 9 (Killed)");
  EXPECT_FALSE(child.running());
  EXPECT_EQ(child.channel().receive(patience()).error().message(), "closed");
  EXPECT_TRUE(gone(child.pid()));
}

TEST(Subprocess, ADeadChildClosesTheChannel) {
  Subprocess child = spawnOrDie(shellOptions("kill -SEGV $$"));
  EXPECT_EQ(child.channel().receive(patience()).error().code(), StatusCode::kUnavailable);
  EXPECT_EQ(child.wait(patience())->signal, SIGSEGV);
  EXPECT_EQ(child.channel().send("x", patience()).code(), StatusCode::kUnavailable);
}

TEST(Subprocess, TheDestructorKillsTheWholeGroup) {
  pid_t leader = 0;
  pid_t grandchild = 0;
  {
    Subprocess child =
        spawnOrDie(shellOptions("sleep 1000 & echo $! >&2; exec 2>&-; printf '\\000\\000\\000\\000' >&3; wait"));
    ASSERT_TRUE(child.channel().receive(patience()));
    leader = child.pid();
    grandchild = std::stoi(child.standardError());
    EXPECT_FALSE(gone(grandchild));
  }
  EXPECT_TRUE(gone(leader));
  EXPECT_TRUE(becomesGone(grandchild));
}

TEST(Subprocess, WhatALeaderLeavesBehindIsKilledWhenItIsReaped) {
  Subprocess child = spawnOrDie(shellOptions("sleep 1000 & echo $! >&2; exit 3"));
  EXPECT_EQ(child.wait(patience())->exitCode, 3);
  EXPECT_TRUE(becomesGone(std::stoi(child.standardError())));
}

TEST(Subprocess, StandardErrorIsCaptured) {
  Subprocess child = spawnOrDie(shellOptions("echo one >&2; echo two >&2; echo lost"));
  EXPECT_TRUE(child.wait(patience()));
  EXPECT_EQ(child.standardError(), "one\ntwo\n");
  EXPECT_EQ(child.standardError(), "one\ntwo\n");
}

TEST(Subprocess, AFloodOfStandardErrorNeverBlocks) {
  constexpr size_t kFloodBytes = size_t{10} << 20;
  Subprocess child = spawnOrDie(selfOptions({"flood", std::to_string(kFloodBytes)}));
  // The frame comes after the flood, so a child that blocked would never send it.
  ASSERT_EQ(child.channel().receive(patience()).value(), "flooded");
  EXPECT_EQ(child.wait(patience())->describe(), "exited with code 0");
  const std::string expected = floodText(kFloodBytes);
  EXPECT_EQ(child.standardError(), expected.substr(expected.size() - Subprocess::kMaxStderrBytes));
}

TEST(Subprocess, AnEndlessFloodIsKilled) {
  Subprocess child = spawnOrDie(shellOptions("while :; do echo flooding; done >&2"));
  for (int i = 0; i < 20; ++i) EXPECT_LE(child.standardError().size(), Subprocess::kMaxStderrBytes);
  EXPECT_EQ(child.wait(Deadline::after(0.1)).error().code(), StatusCode::kDeadlineExceeded);
  EXPECT_EQ(child.kill().signal, SIGKILL);
  EXPECT_NE(child.standardError().find("flooding\n"), std::string::npos);
}

TEST(Subprocess, WhatAChildFinds) {
  // Obstacles: an inheritable descriptor, an ignored signal, a blocked signal, an environment to change.
  const UniqueFd inheritable(::open("/dev/null", O_RDONLY));
  ASSERT_TRUE(inheritable.valid());
  const auto oldHandler = ::signal(SIGUSR2, SIG_IGN);
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  ASSERT_EQ(::pthread_sigmask(SIG_BLOCK, &usr1, nullptr), 0);
  ::setenv("KTUNE_TEST_A", "parent", 1);
  ::setenv("KTUNE_TEST_AB", "kept", 1);

  Subprocess::Options options = selfOptions({"describe"});
  options.extraEnvironment = {"KTUNE_TEST_A=child", "KTUNE_TEST_B="};
  options.workingDirectory = "/proc";
  options.niceIncrement = 3;
  options.limits.cpuSeconds = 1000;
  options.limits.fileBytes = 1 << 20;
  std::map<std::string, std::string> seen = describe(options);
  EXPECT_EQ(seen["fds"], "0,1,2,3,");
  EXPECT_EQ(seen["stdin"], "/dev/null");
  EXPECT_EQ(seen["stdout"], "/dev/null");
  EXPECT_EQ(seen["group"], "own");
  EXPECT_EQ(seen["deathSignal"], std::to_string(SIGKILL));
  EXPECT_EQ(seen["blocked"], "0");
  EXPECT_EQ(seen["ignored"], "0");
  EXPECT_EQ(seen["core"], "0/0");
  EXPECT_EQ(seen["cpu"], "1000/1001");
  EXPECT_EQ(seen["file"], "1048576/1048576");
  EXPECT_EQ(seen["cwd"], "/proc");
  EXPECT_EQ(seen["KTUNE_TEST_A"], "child");
  EXPECT_EQ(seen["KTUNE_TEST_B"], "");
  EXPECT_EQ(seen["KTUNE_TEST_AB"], "kept");
  const int nicer = std::stoi(seen["nice"]);

  seen = describe(selfOptions({"describe"}));
  EXPECT_EQ(nicer - std::stoi(seen["nice"]), 3);
  EXPECT_EQ(seen["KTUNE_TEST_A"], "parent");
  EXPECT_EQ(seen["KTUNE_TEST_B"], "(unset)");
  EXPECT_EQ(seen["cwd"], std::filesystem::current_path().string());

  ::signal(SIGUSR2, oldHandler);
  ::pthread_sigmask(SIG_UNBLOCK, &usr1, nullptr);
  ::unsetenv("KTUNE_TEST_A");
  ::unsetenv("KTUNE_TEST_AB");
}

// A service started without standard streams has descriptors 0 to 2 free, and pipes land there.
TEST(Subprocess, TheParentsStandardDescriptorsMayBeClosed) {
  static_cast<void>(describe(selfOptions({"describe"})));  // The service's own descriptors are in place by now.
  const UniqueFd saved[3] = {UniqueFd(::fcntl(0, F_DUPFD_CLOEXEC, 10)), UniqueFd(::fcntl(1, F_DUPFD_CLOEXEC, 10)),
                             UniqueFd(::fcntl(2, F_DUPFD_CLOEXEC, 10))};
  for (int fd = 0; fd < 3; ++fd) ::close(fd);
  std::map<std::string, std::string> seen;
  std::string error;
  {
    seen = describe(selfOptions({"describe"}));
    Subprocess child = spawnOrDie(shellOptions("echo works >&2"));
    static_cast<void>(child.wait(patience()));
    error = child.standardError();
  }
  for (int fd = 0; fd < 3; ++fd) {
    if (saved[fd].valid()) ::dup2(saved[fd].get(), fd);
  }
  EXPECT_EQ(seen["fds"], "0,1,2,3,");
  EXPECT_EQ(seen["stdin"], "/dev/null");
  EXPECT_EQ(error, "works\n");
}

TEST(Subprocess, SpawnErrors) {
  const std::string dir = *makeTempDirectory(testing::TempDir(), "ktune-spawn-test");
  ASSERT_TRUE(writeFileAtomically(dir + "/plain", "no program").isOk());
  ASSERT_TRUE(writeFileAtomically(dir + "/text", "no program").isOk());
  ASSERT_EQ(::chmod((dir + "/text").c_str(), 0755), 0);
  struct Case {
    std::string program;
    std::string workingDirectory;
    std::vector<std::string> environment;
    StatusCode code;
    std::string part;
  };
  const Case kTable[] = {
      {"", "", {}, StatusCode::kInvalidArgument, "no program given"},
      {dir + "/absent", "", {}, StatusCode::kNotFound, "/absent: No such file or directory"},
      {"sh", "", {}, StatusCode::kNotFound, "No such file"},  // No PATH search.
      {dir + "/plain", "", {}, StatusCode::kPermissionDenied, "/plain: Permission denied"},
      {dir, "", {}, StatusCode::kPermissionDenied, "Permission denied"},
      {dir + "/text", "", {}, StatusCode::kInvalidArgument, "/text: is no program"},
      {"/bin/sh", dir + "/absent", {}, StatusCode::kNotFound, "working directory " + dir + "/absent"},
      {"/bin/sh", "", {"novalue"}, StatusCode::kInvalidArgument, "novalue"},
      {"/bin/sh", "", {"=x"}, StatusCode::kInvalidArgument, "NAME=value"},
  };
  for (const Case& c : kTable) {
    Subprocess::Options options;
    options.argv = {c.program, "-c", "exit 0"};
    options.workingDirectory = c.workingDirectory;
    options.extraEnvironment = c.environment;
    const Result<Subprocess> child = Subprocess::spawn(options);
    ASSERT_FALSE(child) << c.program;
    EXPECT_EQ(child.error().code(), c.code) << child.error().toString();
    EXPECT_NE(child.error().message().find(c.part), std::string::npos) << child.error().toString();
  }
  EXPECT_EQ(Subprocess::spawn({}).error().code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(removeTree(dir).isOk());
  // None of the failed children is left as a zombie.
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);
}

TEST(Subprocess, ARelativeProgramIsRelativeToTheParent) {
  Subprocess::Options options = shellOptions("pwd >&2");
  options.argv[0] = std::filesystem::relative("/bin/sh");
  options.workingDirectory = "/proc";
  Subprocess child = spawnOrDie(options);
  EXPECT_EQ(child.wait(patience())->exitCode, 0);
  EXPECT_EQ(child.standardError(), "/proc\n");
}

TEST(Subprocess, TheAddressSpaceLimitHolds) {
  {
    Subprocess::Options options = shellOptions("ulimit -v >&2; dd if=/dev/zero of=/dev/null bs=512M count=1");
    options.limits.addressSpaceBytes = uint64_t{256} << 20;
    Subprocess child = spawnOrDie(options);
    const Result<ExitInfo> info = child.wait(patience());
    ASSERT_TRUE(info);
    EXPECT_EQ(info->describe(), "exited with code 1");
    EXPECT_TRUE(child.standardError().starts_with("262144\n")) << child.standardError();
    EXPECT_NE(child.standardError().find("memory exhausted"), std::string::npos) << child.standardError();
  }
  if (kSanitized) return;  // Their shadow memory alone exceeds any limit.
  Subprocess::Options options = selfOptions({"allocate"});
  options.limits.addressSpaceBytes = uint64_t{256} << 20;
  Subprocess child = spawnOrDie(options);
  const Result<std::string> frame = child.channel().receive(patience());
  ASSERT_TRUE(frame) << child.standardError();
  EXPECT_TRUE(frame->starts_with("bad_alloc after ")) << *frame;
  EXPECT_EQ(child.wait(patience())->exitCode, 7);
}

TEST(Subprocess, TheCpuLimitHolds) {
  Subprocess::Options options = shellOptions("while :; do :; done");
  options.limits.cpuSeconds = 1;
  Subprocess child = spawnOrDie(options);
  const Result<ExitInfo> info = child.wait(patience());
  ASSERT_TRUE(info);
  EXPECT_EQ(info->signal, SIGXCPU) << info->describe();
}

TEST(Subprocess, AChildOutlivesTheThreadThatSpawnedIt) {
  std::optional<Subprocess> child;
  std::thread([&] { child.emplace(spawnOrDie(selfOptions({"echo"}))); }).join();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  ASSERT_TRUE(child->running());
  ASSERT_TRUE(child->channel().send("still here", patience()).isOk());
  EXPECT_EQ(child->channel().receive(patience()).value(), "still here");
}

// The tuner is killed in a way that runs none of its code; its workers spin and read no channel.
TEST(Subprocess, AKilledParentLeavesNoWorkerBehind) {
  Subprocess tuner = spawnOrDie(selfOptions({"tuner"}));
  const Result<std::string> text = tuner.channel().receive(patience());
  ASSERT_TRUE(text) << text.error().toString() << tuner.standardError();
  std::vector<pid_t> workers;
  std::istringstream lines(*text);
  for (pid_t pid = 0; lines >> pid;) workers.push_back(pid);
  ASSERT_EQ(workers.size(), 3u);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  for (const pid_t pid : workers) EXPECT_FALSE(gone(pid)) << "a worker ended with the thread that asked for it";
  ASSERT_EQ(::kill(tuner.pid(), SIGKILL), 0);  // Only the tuner: the workers have groups of their own.
  for (const pid_t pid : workers) EXPECT_TRUE(becomesGone(pid)) << pid;
}

TEST(Subprocess, ManyThreadsSpawnAtOnce) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 5; ++i) {
        Subprocess child = spawnOrDie(shellOptions("echo " + std::to_string(t) + " >&2; exit " + std::to_string(i)));
        const Result<ExitInfo> info = child.wait(patience());
        ASSERT_TRUE(info);
        EXPECT_EQ(info->exitCode, i);
        EXPECT_EQ(child.standardError(), std::to_string(t) + "\n");
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

TEST(Subprocess, NoDescriptorLeaks) {
  { spawnOrDie(shellOptions("exit 0")); }  // Starts the service, whose descriptors stay.
  const size_t before = openDescriptors();
  for (int i = 0; i < 20; ++i) {
    Subprocess ended = spawnOrDie(shellOptions("echo x >&2"));
    EXPECT_TRUE(ended.wait(patience()));
    Subprocess running = spawnOrDie(shellOptions("while :; do echo flood; done >&2"));
    Subprocess moved = std::move(running);
    moved = std::move(ended);  // Kills what it held.
    Subprocess::Options absent;
    absent.argv = {"/no/such/program"};
    EXPECT_FALSE(Subprocess::spawn(absent));
  }
  EXPECT_EQ(openDescriptors(), before);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1) << "a child was not reaped";
}

TEST(Subprocess, AChildReapedByTheHostIsNoticed) {
  Subprocess child = spawnOrDie(shellOptions("exit 5"));
  int status = 0;
  ASSERT_EQ(::waitpid(child.pid(), &status, 0), child.pid());
  const Result<ExitInfo> info = child.wait(patience());
  ASSERT_TRUE(info);
  EXPECT_EQ(info->describe(), "ended in an unknown way (reaped by someone else)");
}

TEST(Subprocess, ChildrenDoNotInheritAPinnedThreadsAffinity) {
  cpu_set_t all;
  ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
  if (CPU_COUNT(&all) < 2) GTEST_SKIP() << "one core only";
  std::string seen;
  std::thread([&] {
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int cpu = 0; CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    }
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    Subprocess child = spawnOrDie(shellOptions("nproc >&2"));
    static_cast<void>(child.wait(patience()));
    seen = child.standardError();
  }).join();
  EXPECT_EQ(seen, std::to_string(CPU_COUNT(&all)) + "\n");
}

// A host that forks without exec: the copies in the fork must not touch the parent's children, and the fork can spawn.
TEST(Subprocess, AForkOfTheParentHasAServiceOfItsOwn) {
  if (kSanitized) GTEST_SKIP() << "the thread sanitizer allows no threads after a fork";
  Subprocess child = spawnOrDie(selfOptions({"echo"}));
  const pid_t fork = ::fork();
  if (fork == 0) {
    { const Subprocess copy = std::move(child); }
    Result<Subprocess> own = Subprocess::spawn(shellOptions("exit 6"));
    ::_exit(own && own->wait(patience()) ? own->kill().exitCode : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(fork, &status, 0), fork);
  EXPECT_EQ(WEXITSTATUS(status), 6);
  EXPECT_TRUE(child.running());
  ASSERT_TRUE(child.channel().send("alive", patience()).isOk());
  EXPECT_EQ(child.channel().receive(patience()).value(), "alive");
}

TEST(Subprocess, ProgramPath) {
  const Result<std::string> path = currentProgramPath();
  ASSERT_TRUE(path);
  EXPECT_TRUE(std::filesystem::equivalent(*path, "/proc/self/exe"));
}

}  // namespace
}  // namespace ktune
