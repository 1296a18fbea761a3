// References of a problem within a memory limit: op::evaluateReference, a block of rows and columns at a time.
#pragma once

#include <vector>

#include "ir/op/Reference.h"
#include "ir/schedule/Problem.h"
#include "runtime/launch/Inspector.h"

namespace ktune::runtime {

/// The fp64 reference takes 8 bytes an input element and 16 an intermediate one: a language-model head of 2.5 GB of
/// f32 weights would take 5 GB. So it is evaluated in blocks where the description allows:
///  - rows, when the one symbol counts independent rows (it is the outer dim of every value that has it, and no
///    contraction has it in its weights): the same description at smaller symbol values;
///  - columns, when every output column depends only on one column of the intermediate values (nothing reduces over
///    them): a description whose weights have fewer rows.
/// What may be cut is found on the primitives, whose meaning is known; what is evaluated is the description as
/// written, cut in its inputs' dims.
class ReferenceEvaluator {
 public:
  /// WORKINGBYTES: what one evaluation may take beyond its result, where cutting can help.
  /// ENGINE: for large contractions, may be null. PROBLEM and ENGINE must outlive the evaluator.
  ReferenceEvaluator(const schedule::Problem& problem, uint64_t workingBytes, op::DotEngine* engine = nullptr);

  /// Bytes beyond the result that evaluate() takes at these symbol values: more than workingBytes when the
  /// description can't be cut that small.
  [[nodiscard]] uint64_t workingBytes(const std::vector<int64_t>& symbolValues) const;
  /// INPUTS: the inputs in memory. RESULTS: one per output afterwards; memory that they have is used again.
  /// Errors: as op::evaluateReference.
  [[nodiscard]] Status evaluate(const std::vector<int64_t>& symbolValues, const std::vector<TensorView>& inputs,
                                const op::ParallelFor& parallelFor, std::vector<Expected>& results) const;

  [[nodiscard]] bool rowsAreIndependent() const { return rowsIndependent_; }
  [[nodiscard]] bool columnsAreIndependent() const { return columns_ > 0; }

 private:
  enum class Axis : uint8_t { kNone, kFirst, kLast };
  struct Block {
    int64_t symbol = 0;   ///< Value of the symbol in a block (unused when rows are not cut).
    int64_t columns = 0;  ///< Columns in a block (unused when columns are not cut).
    uint64_t bytes = 0;
  };

  /// A part of the outputs, in values of the symbol and in columns.
  struct Piece {
    int64_t row = 0, rows = 1, column = 0, columns = 0;
  };

  const schedule::Problem& problem_;
  uint64_t limit_;
  op::DotEngine* engine_;
  bool rowsIndependent_ = false;
  int64_t columns_ = 0;           ///< Extent of the outputs' last dim when it can be cut, else 0.
  std::vector<Axis> columnAxis_;  ///< Per input: where the columns are.

  void findRows();
  void findColumns();
  [[nodiscard]] op::Graph cut(int64_t columns) const;
  [[nodiscard]] uint64_t bytesOf(const op::Graph& graph, const std::vector<int64_t>& symbolValues) const;
  [[nodiscard]] Block chooseBlock(const std::vector<int64_t>& symbolValues, uint64_t limit) const;
  [[nodiscard]] bool hasContraction() const;
};

}  // namespace ktune::runtime
