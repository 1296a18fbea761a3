// The ktune dialect in C++. Included by MLIR translation units only.
#pragma once

#include "ir/dialect/KtuneDialect.h.inc"
#include "ir/dialect/MlirHeaders.h"
#include "ir/op/Operator.h"
#include "ir/schedule/Genome.h"

#define GET_ATTRDEF_CLASSES
#include "ir/dialect/KtuneAttributes.h.inc"

#define GET_OP_CLASSES
#include "ir/dialect/KtuneOps.h.inc"

namespace ktune::ir {

/// Registers and loads every dialect that ktune's IR uses: ktune, linalg, tensor, arith, math, scf, func, memref,
/// vector, llvm, cf and affine, and nothing else.
void loadDialects(mlir::MLIRContext& context);
/// For ktune-opt.
void registerDialects(mlir::DialectRegistry& registry);

/// The schedule or genome behind an attribute, and back. REQUIRES: the attribute was parsed or built here (its text
/// is valid).
[[nodiscard]] schedule::KernelSchedule scheduleOf(ScheduleAttr attribute);
[[nodiscard]] ScheduleAttr scheduleAttr(mlir::MLIRContext* context, const schedule::KernelSchedule& schedule);
[[nodiscard]] schedule::PlanGenome genomeOf(GenomeAttr attribute);
[[nodiscard]] GenomeAttr genomeAttr(mlir::MLIRContext* context, const schedule::PlanGenome& genome);

/// How reductions combine: the names in the IR, the element that changes no result, one step.
[[nodiscard]] llvm::StringRef combineName(op::Combine combine);
[[nodiscard]] std::optional<op::Combine> combineOf(llvm::StringRef name);
[[nodiscard]] mlir::Attribute identityOf(op::Combine combine, mlir::Type element);
[[nodiscard]] mlir::Value combined(mlir::OpBuilder& b, mlir::Location loc, op::Combine combine, mlir::Value x,
                                   mlir::Value y);

}  // namespace ktune::ir
