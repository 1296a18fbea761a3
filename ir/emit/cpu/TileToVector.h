// ktune-tile-to-vector: tile functions become functions on vectors and memory for the cpu device.
// Included by MLIR translation units only.
#pragma once

#include "ir/dialect/MlirHeaders.h"

namespace ktune::emit {

/// Replaces every kernel (a function with ktune.schedule) by `SYMBOL(arguments: ptr, first: i64, last: i64)`, which
/// runs the tiles [first, last). Tiles become one-dimensional vectors of the schedule's width (columns that are no
/// multiple of it become scalars); a tile that a matrix product accumulates becomes one vector of partial sums per
/// element, summed across once at the end. Layout follows from the schedule; nothing is decided here.
std::unique_ptr<mlir::Pass> createTileToVectorPass();
/// ktune-math: exp, log, tanh and erf of f32 vectors become polynomials, since the artefact links to no library.
std::unique_ptr<mlir::Pass> createMathPass();
void registerCpuPasses();

}  // namespace ktune::emit
