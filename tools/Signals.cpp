#include "tools/Signals.h"

#include <signal.h>

#include <atomic>

namespace ktune::tools {

namespace {

// A handler has no other way to reach its data.
std::atomic<CancellationFlag*> currentFlag{nullptr};
std::atomic<int> receivedSignal{0};
static_assert(std::atomic<CancellationFlag*>::is_always_lock_free && std::atomic<int>::is_always_lock_free);

void setAction(void (*handler)(int), int flags) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = flags;
  sigemptyset(&action.sa_mask);
  for (int signal : {SIGINT, SIGTERM}) ::sigaction(signal, &action, nullptr);
}

void onSignal(int signal) {
  receivedSignal.store(signal);
  if (CancellationFlag* flag = currentFlag.load()) flag->raise();
  setAction(SIG_DFL, 0);
}

}  // namespace

SignalGuard::SignalGuard(CancellationFlag& flag) {
  receivedSignal.store(0);
  currentFlag.store(&flag);
  // SA_RESTART: the flag is polled, and no call needs to end early for it.
  setAction(onSignal, SA_RESTART);
}

SignalGuard::~SignalGuard() {
  setAction(SIG_DFL, 0);
  currentFlag.store(nullptr);
}

int SignalGuard::received() const {
  return receivedSignal.load();
}

}  // namespace ktune::tools
