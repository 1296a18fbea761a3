// The fake device and compiler: plans that are evaluated by the fp64 reference and whose times are made up. They
// stand in for real ones in the tests of everything above them, and misbehave on request.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "ir/schedule/Genome.h"
#include "ir/schedule/Problem.h"
#include "runtime/launch/Device.h"

namespace ktune::runtime {

/// Which candidates misbehave, and how. A fault "NAME=N" hits every genome with digest().low % N == 0; the default
/// genome is never hit. Names:
///   compile-error, compile-crash (SIGSEGV), compile-hang (endless loop), compile-memory (allocates to the limit),
///   run-crash (SIGSEGV), run-hang (endless loop), flood (50 MB to standard error, then right),
///   wrong (one element just outside its bound), unwritten (the last element is not written),
///   overrun (an element past an output's end is written), input (an input is overwritten),
///   flaky (a bit flips in every second run), refused (a run is refused as invalid), device (a run fails as on a
///   device that is gone), start (the tests' worker program exits at once; hits always).
class FakeFaults {
 public:
  /// "compile-crash=7,run-hang=9"; empty for none. Errors: kInvalidArgument.
  [[nodiscard]] static Result<FakeFaults> parse(const std::string& text);
  [[nodiscard]] bool hits(const std::string& fault, const schedule::Problem& problem,
                          const schedule::PlanGenome& genome, const schedule::Target& target) const;
  [[nodiscard]] bool has(const std::string& fault) const { return moduli_.contains(fault); }

 private:
  std::map<std::string, uint64_t> moduli_;
};

/// A plan with an artefact of kind kFake. Errors: kInvalidArgument when schedule::check refuses the genome; kInternal
/// for an injected compile-error.
[[nodiscard]] Result<cache::Plan> compileFake(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                              const schedule::Target& target, const FakeFaults& faults);

/// The noise-free time of a genome. Smooth in every parameter's place in its list, with one minimum: for each active
/// parameter at index fakeOptimumIndex(), everything fused. Never below the time that the problem's bytes take at
/// kFakeBytesPerSecond.
[[nodiscard]] double fakeCostNs(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                const std::vector<int64_t>& symbolValues);
[[nodiscard]] constexpr size_t fakeOptimumIndex(size_t listLength) {
  return listLength * 2 / 3;
}
inline constexpr double kFakeBytesPerSecond = 20e9;
inline constexpr double kFakeEmptyLaunchNs = 100;

/// The fake device. Its times are fakeCostNs with hash noise of up to 0.5 %, and now and then a stretch of runs that
/// are all 3 % slower, as on a machine whose clock drifts.
[[nodiscard]] std::unique_ptr<Device> makeFakeDevice(FakeFaults faults);

}  // namespace ktune::runtime
