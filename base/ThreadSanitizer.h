// What the thread sanitizer must not report: races inside libraries of the distribution, which are not instrumented, so
// that it does not see how they order things. Included by the files that use such a library; empty in other builds.
#pragma once

#if defined(__SANITIZE_THREAD__)
// TBB: a task's creation comes before its run. RocksDB: its lock-free memtable, write groups and background threads.
// Our own state that they hand round is under mutexes of our own, which the sanitizer does see.
extern "C" inline __attribute__((used, weak, visibility("default"))) const char* __tsan_default_suppressions() {
  return "race:tbb::detail\ncalled_from_lib:libtbb.so\nrace:rocksdb::\n";
}
#endif
