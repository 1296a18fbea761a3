#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "base/ChildModes.h"
#include "base/File.h"
#include "base/Subprocess.h"

namespace ktune::testing_children {

std::string floodText(size_t bytes) {
  std::string text;
  for (size_t line = 0; text.size() < bytes; ++line) text += "line " + std::to_string(line) + "\n";
  return text + kLastWords;
}

namespace {

void writeToStandardError(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data(), text.size());
    if (n <= 0) ::_exit(98);  // A failing or non-blocking standard error would show here.
    text.remove_prefix(static_cast<size_t>(n));
  }
}

bool send(FrameChannel& channel, std::string_view frame) {
  return channel.send(frame, Deadline::after(60)).isOk();
}

std::string limitText(int resource) {
  rlimit limit{};
  ::getrlimit(resource, &limit);
  const auto text = [](rlim_t v) { return v == RLIM_INFINITY ? std::string("inf") : std::to_string(v); };
  return text(limit.rlim_cur) + "/" + text(limit.rlim_max);
}

// The state that a child must find, one "NAME value" line each.
std::string describeSelf() {
  std::string text;
  const auto line = [&](const std::string& name, const std::string& value) { text += name + " " + value + "\n"; };
  std::vector<int> fds;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    fds.push_back(std::atoi(entry.path().filename().c_str()));
  std::sort(fds.begin(), fds.end());
  // The iterator's own descriptor is closed by now.
  fds.erase(std::remove_if(fds.begin(), fds.end(), [](int fd) { return ::fcntl(fd, F_GETFD) < 0; }), fds.end());
  std::string list;
  for (const int fd : fds) list += std::to_string(fd) + ",";
  line("fds", list);
  line("stdin", std::filesystem::read_symlink("/proc/self/fd/0"));
  line("stdout", std::filesystem::read_symlink("/proc/self/fd/1"));
  line("group", ::getpgrp() == ::getpid() ? "own" : "shared");
  int deathSignal = 0;
  ::prctl(PR_GET_PDEATHSIG, &deathSignal);
  line("deathSignal", std::to_string(deathSignal));
  sigset_t mask;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
  int blocked = 0;
  int ignored = 0;
  for (int s = 1; s < NSIG; ++s) {
    if (sigismember(&mask, s) == 1) ++blocked;
    struct sigaction action {};
    if (::sigaction(s, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) ++ignored;
  }
  line("blocked", std::to_string(blocked));
  line("ignored", std::to_string(ignored));
  line("core", limitText(RLIMIT_CORE));
  line("cpu", limitText(RLIMIT_CPU));
  line("file", limitText(RLIMIT_FSIZE));
  line("nice", std::to_string(::getpriority(PRIO_PROCESS, 0)));
  line("cwd", std::filesystem::current_path());
  for (const char* name : {"KTUNE_TEST_A", "KTUNE_TEST_B", "KTUNE_TEST_AB"})
    line(name, std::getenv(name) == nullptr ? "(unset)" : std::getenv(name));
  return text;
}

// A tuner with workers that never end by themselves, spawned by a thread that has ended. Sends their process ids and
// waits to be killed.
int runTuner(FrameChannel& channel) {
  std::vector<Subprocess> workers;
  std::string pids;
  std::thread([&] {
    const std::string self = *currentProgramPath();
    const std::vector<std::vector<std::string>> kWorkers = {
        {"/bin/sh", "-c", "while :; do :; done"}, {self, "--child", "spin"}, {self, "--child", "echo"}};
    for (const auto& argv : kWorkers) {
      Subprocess::Options options;
      options.argv = argv;
      Result<Subprocess> worker = Subprocess::spawn(options);
      if (!worker) continue;
      pids += std::to_string(worker->pid()) + "\n";
      workers.push_back(*std::move(worker));
    }
  }).join();
  send(channel, pids);
  while (true) ::pause();
}

}  // namespace

int runChildMode(const std::string& mode, const std::vector<std::string>& arguments) {
  FrameChannel channel{UniqueFd(Subprocess::kChannelFd)};
  if (mode == "echo") {
    while (true) {
      const Result<std::string> frame = channel.receive();
      if (!frame) return frame.error().message() == "closed" ? 0 : 1;
      if (!send(channel, *frame)) return 2;
    }
  }
  if (mode == "flood") {
    writeToStandardError(floodText(std::strtoull(arguments.at(0).c_str(), nullptr, 10)));
    if (!send(channel, "flooded")) return 2;
    return 0;
  }
  if (mode == "spin") {
    for (volatile int v = 0;;) v = v + 1;
  }
  if (mode == "describe") return send(channel, describeSelf()) ? 0 : 2;
  if (mode == "tuner") return runTuner(channel);
  if (mode == "allocate") {
    // Touches what it gets, so that this is no mere reservation.
    std::vector<std::string> held;
    try {
      for (int i = 0; i < 64; ++i) held.emplace_back(size_t{16} << 20, 'x');
    } catch (const std::bad_alloc&) {
      send(channel, "bad_alloc after " + std::to_string(held.size()));
      return 7;
    }
    return 0;
  }
  if (mode == "overwrite") {
    ::signal(SIGXFSZ, SIG_IGN);
    const Status status = writeFileAtomically(arguments.at(0), std::string(100000, 'n'));
    return send(channel, statusCodeName(status.code())) ? 0 : 2;
  }
  return 99;
}

}  // namespace ktune::testing_children

int main(int argc, char** argv) {
  if (argc >= 3 && std::string_view(argv[1]) == "--child")
    return ktune::testing_children::runChildMode(argv[2], std::vector<std::string>(argv + 3, argv + argc));
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
