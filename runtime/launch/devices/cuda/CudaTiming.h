// Times on a CUDA device, by its own clock. Private to devices/cuda. docs/cuda.md says what is measured and why.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/launch/devices/cuda/CudaContext.h"
#include "runtime/launch/devices/cuda/CudaPlan.h"

namespace ktune::runtime::cuda {

/// A CUDA graph of calls, with an event before and one after.
class CallGraph {
 public:
  /// ENQUEUE queues the graph's work on the context's stream, which is being captured.
  [[nodiscard]] static Result<std::unique_ptr<CallGraph>> capture(std::shared_ptr<CudaContext> context,
                                                                  const std::function<Status()>& enqueue);
  ~CallGraph();
  CallGraph(const CallGraph&) = delete;
  CallGraph& operator=(const CallGraph&) = delete;

  /// Nanoseconds of REPLAYS replays, one right after the other. Errors: kUnavailable; kInternal when the device goes on
  /// working after the last event: the time would be too short.
  [[nodiscard]] Result<double> replay(int64_t replays);

 private:
  explicit CallGraph(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  std::shared_ptr<CudaContext> context_;
  CUgraph graph_ = nullptr;
  CUgraphExec executable_ = nullptr;
  CUevent start_ = nullptr, end_ = nullptr;
};

/// Device::prepareTimedCalls.
[[nodiscard]] Result<std::unique_ptr<TimedCalls>> makeTimedCalls(CudaPlan& plan,
                                                                 const std::vector<std::vector<void*>>& sets,
                                                                 const std::vector<int64_t>& symbolValues,
                                                                 void* workspace);
/// Device::copyBytesPerSecond.
[[nodiscard]] Result<double> timeCopies(const std::shared_ptr<CudaContext>& context, void* to, const void* from,
                                        size_t bytes);
/// Device::emptyLaunchNanoseconds, by a kernel from IMAGE (a cubin or PTX text with an entry ktune_empty).
[[nodiscard]] Result<double> timeEmptyLaunch(const std::shared_ptr<CudaContext>& context, const std::string& image);

/// PTX of ktune_empty, for the driver to compile.
extern const char* const kEmptyPtx;
/// CUDA C++ of it.
extern const char* const kEmptySource;

}  // namespace ktune::runtime::cuda
