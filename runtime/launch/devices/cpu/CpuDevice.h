// The cpu device: plans of shared objects that link to nothing, run on this process's threads.
#pragma once

#include <memory>

#include "base/System.h"
#include "runtime/launch/Device.h"

namespace ktune::runtime {

/// The target of the processor that CPU describes.
[[nodiscard]] schedule::Target cpuTarget(const CpuIdentity& cpu);

/// A cpu device with THREADS threads (0: as many as usableCores()).
///
/// Artefacts are ELF shared objects for this machine. A kernel is
///   extern "C" void SYMBOL(void* const* arguments, int64_t firstTile, int64_t lastTile)
/// with arguments[i] for Launch::parameters[i]: a tensor's or workspace slot's address, a symbol's value as a
/// pointer-sized integer, or a scalar's bytes zero-extended to one. It computes tiles [firstTile, lastTile) of the
/// grid's product.
[[nodiscard]] std::unique_ptr<Device> makeCpuDevice(int threads = 0);

/// Whether BYTES are a shared object that load() takes: no needed libraries, no references to symbols of others, no
/// code that runs by loading it, and nothing writable, so that a call can leave nothing behind for the next one.
/// Errors: kCorrupt with the reason.
[[nodiscard]] Status inspectSharedObject(std::string_view bytes);

}  // namespace ktune::runtime
