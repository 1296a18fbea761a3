#include "runtime/library/ProcessMark.h"

#include <sys/mman.h>
#include <unistd.h>

#include <new>

namespace ktune::library {

ProcessMark::ProcessMark() noexcept : owner_(::getpid()), pageBytes_(static_cast<size_t>(::sysconf(_SC_PAGESIZE))) {
  void* page = ::mmap(nullptr, pageBytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return;
  if (::madvise(page, pageBytes_, MADV_WIPEONFORK) != 0) {
    ::munmap(page, pageBytes_);
    return;
  }
  page_ = new (page) std::atomic<int>(1);
}

ProcessMark::~ProcessMark() {
  if (page_ != nullptr) ::munmap(static_cast<void*>(page_), pageBytes_);
}

bool ProcessMark::inSameProcess() const noexcept {
  return page_ != nullptr ? page_->load(std::memory_order_relaxed) == 1 : ::getpid() == owner_;
}

}  // namespace ktune::library
