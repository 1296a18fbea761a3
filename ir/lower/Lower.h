// From a description to tile programs. Included by MLIR translation units only.
//
//   importProblem       the description as one function: ktune.operator for composites, linalg for primitives
//   ktune-decompose     replaces ktune.operator by the linalg operations of its primitives
//   ktune-generate      one tile function per kernel of the genome
//
// No pass after import takes a decision: the genome holds them all.
#pragma once

#include "ir/dialect/KtuneDialect.h"
#include "ir/schedule/Problem.h"

namespace ktune::ir {

/// Attribute names on the imported function, its operations, and kernels.
inline constexpr llvm::StringLiteral kPrimitiveAttr = "ktune.primitive";      ///< Marks each primitive's operation.
inline constexpr llvm::StringLiteral kDescriptionAttr = "ktune.description";  ///< JSON text of the description.
inline constexpr llvm::StringLiteral kBucketAttr = "ktune.bucket";            ///< Index of the bucket.
inline constexpr llvm::StringLiteral kGenomeAttr = "ktune.genome";            ///< On the module: GenomeAttr.
inline constexpr llvm::StringLiteral kScheduleAttr = "ktune.schedule";        ///< On each kernel: ScheduleAttr.
inline constexpr llvm::StringLiteral kGridAttr = "ktune.grid";  ///< On each kernel: (factor, symbol, divisor) x 2.
inline constexpr llvm::StringLiteral kColumnsAttr = "ktune.columns";  ///< On each buffer argument: (factor, symbol).

/// A module with one function @operator that computes the description on tensors.
/// Errors: kUnsupported for a dtype that has no MLIR type here.
[[nodiscard]] Result<mlir::OwningOpRef<mlir::ModuleOp>> importProblem(mlir::MLIRContext& context,
                                                                      const schedule::Problem& problem);

/// Builds the linalg operation (or arith.constant) of one primitive node at the builder's place. Used by the importer
/// and by ktune-decompose.
[[nodiscard]] mlir::FailureOr<mlir::Value> buildPrimitive(mlir::OpBuilder& builder, mlir::Location location,
                                                          const op::Graph& graph, const op::Node& node,
                                                          const op::ValueType& resultType, mlir::ValueRange operands);

[[nodiscard]] std::unique_ptr<mlir::Pass> createDecomposePass();
[[nodiscard]] std::unique_ptr<mlir::Pass> createGeneratePass();
/// Makes both known to ktune-opt.
void registerLowerPasses();

/// The MLIR type of elements, or null.
[[nodiscard]] mlir::Type elementType(mlir::MLIRContext* context, op::DType dtype);

}  // namespace ktune::ir
