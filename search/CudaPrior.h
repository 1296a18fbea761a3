// The prior's formulas for cuda kernels.
#pragma once

#include "ir/schedule/Schedule.h"
#include "ir/schedule/Target.h"
#include "search/Prior.h"

namespace ktune::search {

/// Predicted nanoseconds of one kernel of SHAPE under the legal schedule S. COPYBYTESPERSECOND: of the device.
[[nodiscard]] double cudaKernelNs(const schedule::KernelSchedule& s, const KernelShape& shape,
                                  const schedule::Target& target, double copyBytesPerSecond);

}  // namespace ktune::search
