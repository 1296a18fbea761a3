// The fake compiler as a worker's backend: runtime/launch/devices/fake does the work. Only where that is compiled.
#pragma once

#include "runtime/launch/devices/fake/FakeDevice.h"
#include "runtime/worker/Workers.h"

namespace ktune::runtime {

class FakeBackend final : public CompileBackend {
 public:
  explicit FakeBackend(FakeFaults faults) : faults_(std::move(faults)) {}
  [[nodiscard]] Result<cache::Plan> compile(const schedule::Problem& problem, const schedule::PlanGenome& genome,
                                            const schedule::Target& target) override {
    return compileFake(problem, genome, target, faults_);
  }

 private:
  FakeFaults faults_;
};

}  // namespace ktune::runtime
