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
inline constexpr llvm::StringLiteral kValueAttr = "ktune.value";  ///< On a constant: its value before rounding, as f64.
inline constexpr llvm::StringLiteral kRoleAttr = "ktune.role";    ///< On a cuda kernel: roleName().
inline constexpr llvm::StringLiteral kNamesAttr = "ktune.names";  ///< On a cuda kernel: its buffers' names.
inline constexpr llvm::StringLiteral kAlignmentAttr = "ktune.alignment";  ///< On each buffer argument: bytes, of rows.
inline constexpr llvm::StringLiteral kAliasedAttr = "ktune.aliased";      ///< On an input that an output overwrites.
inline constexpr llvm::StringLiteral kOneRowAttr =
    "ktune.one_row";                                              ///< On a cuda map kernel whose tiles lie in one row.
inline constexpr llvm::StringLiteral kBlockAttr = "ktune.block";  ///< On a cuda kernel: BlockShape, as rows, columns,
                                                                  ///< threads, threads along a row, lanes.
inline constexpr llvm::StringLiteral kBucketAttr = "ktune.bucket";      ///< Index of the bucket.
inline constexpr llvm::StringLiteral kGenomeAttr = "ktune.genome";      ///< On the module: GenomeAttr.
inline constexpr llvm::StringLiteral kScheduleAttr = "ktune.schedule";  ///< On each kernel: ScheduleAttr.
inline constexpr llvm::StringLiteral kGridAttr = "ktune.grid";      ///< On each kernel: (factor, symbol, divisor) x 2.
inline constexpr llvm::StringLiteral kStrideAttr = "ktune.stride";  ///< On each buffer argument: elements
                                                                    ///< from row to row as (factor, symbol).

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
