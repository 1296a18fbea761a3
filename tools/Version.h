// Versions of this build, as they enter every record's stamp.
#pragma once

namespace ktune::tools {

/// From CMake's PROJECT_VERSION.
inline constexpr const char* kVersion = KTUNE_VERSION;
/// Version of the generators and the lowering. Raise it when the same genome begins to give other code: every record
/// made before becomes stale.
inline constexpr const char* kGeneratorVersion = "3";

}  // namespace ktune::tools
