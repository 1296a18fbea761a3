// What a cubin is made of.
#pragma once

#include <string_view>

#include "base/Status.h"

namespace ktune::runtime::cuda {

/// Whether BYTES are a cubin that a device takes: a 64-bit CUDA ELF file without zero-initialised variables in the
/// device's memory, in which a kernel could keep an earlier answer (measuring.md, 6). Initialised ones can't be told
/// from constants here: nvrtc::usedVariables looks at the code. Errors: kCorrupt (no cubin, or cut short), kUnsupported
/// (keeps state between calls).
[[nodiscard]] Status inspectCubin(std::string_view bytes);

}  // namespace ktune::runtime::cuda
