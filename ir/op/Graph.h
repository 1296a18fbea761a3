// An operator description: what an application asks ktune to make fast.
//
// A small graph of typed values. Composites (rms_norm, linear) are nodes like any other; expand() turns them into
// primitives. Everything in a description is part of its key: see Canonical.h.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/Status.h"
#include "ir/op/DType.h"

namespace ktune::op {

/// A size known only at run time (the tokens, M), with the range the application promises and the bucket edges that
/// it wants tuned separately.
struct Symbol {
  std::string name;            ///< An identifier: [A-Za-z_][A-Za-z0-9_]*.
  int64_t min = 1;             ///< Smallest value, at least 1.
  int64_t max = 1;             ///< Largest value, at least min.
  std::vector<int64_t> edges;  ///< Strictly ascending upper ends of buckets; the last equals max. See Buckets.h.
  bool operator==(const Symbol&) const = default;
};

/// One extent: a constant, or a constant multiple of a symbol (`M`, `32*M`).
struct Dim {
  int64_t factor = 1;   ///< The extent itself when static; else the multiplier of the symbol. At least 1.
  int32_t symbol = -1;  ///< Index into Graph::symbols, or -1 when static.
  bool operator==(const Dim&) const = default;
  [[nodiscard]] bool isStatic() const { return symbol < 0; }
  [[nodiscard]] static Dim fixed(int64_t n) { return {n, -1}; }
  [[nodiscard]] static Dim symbolic(int32_t s, int64_t multiple = 1) { return {multiple, s}; }
  /// The extent for the given symbol values (one per Graph::symbols).
  [[nodiscard]] int64_t extent(const std::vector<int64_t>& symbolValues) const {
    return symbol < 0 ? factor : factor * symbolValues[static_cast<size_t>(symbol)];
  }
};

using Shape = std::vector<Dim>;

/// dtype and shape of a value inside the graph.
struct ValueType {
  DType dtype = DType::kF32;
  Shape shape;
  bool operator==(const ValueType&) const = default;
};

/// An input tensor as it lies in memory.
struct Input {
  std::string name;
  ValueType type;
  /// Elements between neighbours along each dim, outermost first; empty = dense row-major. A static stride only.
  std::vector<int64_t> strides;
  int64_t alignmentBytes = 64;  ///< Promised alignment of the first element, a power of two.
  bool constant = false;        ///< True: the same bytes at every call (weights).
  bool operator==(const Input&) const = default;
};

using Attribute = std::variant<int64_t, double, std::string>;

/// One operation. Operands are value ids: inputs first (0 .. inputs.size()-1), then the results of nodes in order.
struct Node {
  std::string op;  ///< A name of the operator table ("rms_norm").
  std::vector<int32_t> operands;
  std::map<std::string, Attribute> attributes;
  std::string result;  ///< Name of the one result value.
  bool operator==(const Node&) const = default;
};

/// A value handed back to the application.
struct Output {
  int32_t value = 0;        ///< Value id.
  int32_t aliasInput = -1;  ///< Index of the input whose memory it overwrites, or -1 for memory of its own.
  int64_t alignmentBytes = 64;
  bool operator==(const Output&) const = default;
};

enum class ToleranceClass : uint8_t { kDefault = 0, kStrict = 1, kRelaxed = 2 };

/// What the application demands of the numbers.
struct NumericContract {
  DType accumulate = DType::kF32;  ///< Type in which sums are kept.
  ToleranceClass tolerance = ToleranceClass::kDefault;
  bool deterministic = true;    ///< Equal inputs give equal bits, run after run.
  bool batchInvariant = false;  ///< A row's bits do not depend on M, the row's position or the bucket.
  bool operator==(const NumericContract&) const = default;
};

/// The description. Plain data; verify() says whether it means something.
struct Graph {
  std::vector<Symbol> symbols;
  std::vector<Input> inputs;
  std::vector<Node> nodes;  ///< In an order in which operands come before their users.
  std::vector<Output> outputs;
  NumericContract numerics;
  bool operator==(const Graph&) const = default;

  [[nodiscard]] size_t valueCount() const { return inputs.size() + nodes.size(); }
  [[nodiscard]] bool isInput(int32_t value) const { return value >= 0 && static_cast<size_t>(value) < inputs.size(); }
  /// Index into nodes of the node that makes VALUE. REQUIRES: !isInput(value).
  [[nodiscard]] size_t producerOf(int32_t value) const { return static_cast<size_t>(value) - inputs.size(); }
  [[nodiscard]] int32_t resultOf(size_t node) const { return static_cast<int32_t>(inputs.size() + node); }
  [[nodiscard]] const std::string& valueName(int32_t value) const {
    return isInput(value) ? inputs[static_cast<size_t>(value)].name : nodes[producerOf(value)].result;
  }
};

/// Checks everything: names, ranges, edges, strides, alignments, operands in order, operators known, attributes and
/// operand types right for each operator, outputs in range, aliases of equal type.
/// Errors: kInvalidArgument naming the offending field ("nodes[0] (rms_norm): operand 1 'weight' must have shape
/// [4096], has [4097]"); kUnsupported for a dtype that an operator does not have.
[[nodiscard]] Status verify(const Graph& graph);

/// Limits that verify() enforces, so that no description can make ktune run out of memory or overflow a size.
inline constexpr size_t kMaxSymbols = 8;
inline constexpr size_t kMaxInputs = 64;
inline constexpr size_t kMaxNodes = 1024;
inline constexpr size_t kMaxRank = 8;
inline constexpr size_t kMaxNameBytes = 128;  ///< Of names and of text attributes.
inline constexpr size_t kMaxBuckets = 4096;   ///< Cells of the grid of buckets, all symbols together.
inline constexpr int64_t kMaxElements = int64_t{1} << 62;

/// The one spelling of descriptions that mean the same: writes out defaults of attributes, turns an integer given for
/// a number attribute into a number, writes an empty edge list as {max}, drops strides that are the dense ones.
/// GraphBuilder::finish() and fromJson() return normalised descriptions; other code compares and hashes them as they
/// are. Never fails: what verify() would refuse stays as it is.
[[nodiscard]] Graph normalised(Graph graph);

/// The type of every value, by value id. Errors: as verify().
[[nodiscard]] Result<std::vector<ValueType>> inferTypes(const Graph& graph);

/// The same computation in primitives only (expands every composite, keeps inputs and outputs). Idempotent.
/// Errors: as verify().
[[nodiscard]] Result<Graph> expand(const Graph& graph);

/// A short name for people and kernel symbols: the operators of the description joined by "_", the first output's
/// dtype and its shape ("rms_norm_f32_Mx4096"), then the extent that is summed over when there is a contraction
/// ("linear_f32_Mx6144x4096": M tokens, 6144 results, 4096 terms each). Letters, digits and "_" only. Not unique; the
/// key is. "invalid" when verify() refuses the description.
[[nodiscard]] std::string label(const Graph& graph);

/// "[M, 4096]", "[32*M, 128]".
[[nodiscard]] std::string shapeText(const Graph& graph, const Shape& shape);

/// Number of elements for the given symbol values. Errors: kInvalidArgument when it exceeds 2^62.
[[nodiscard]] Result<int64_t> elementCount(const Shape& shape, const std::vector<int64_t>& symbolValues);

/// Row-major strides of a dense tensor, or INPUT's own where it states them, in elements, for given symbol values.
[[nodiscard]] std::vector<int64_t> stridesOf(const Input& input, const std::vector<int64_t>& symbolValues);

/// Bytes that a call must move at least (every input read once, every output written once) and operations it must
/// do (multiply and add count two), at the given symbol values.
struct Work {
  double bytes = 0;
  double operations = 0;
};
[[nodiscard]] Work workOf(const Graph& graph, const std::vector<int64_t>& symbolValues);

}  // namespace ktune::op
