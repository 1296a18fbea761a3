#include "ir/op/Canonical.h"

#include "base/Bytes.h"

namespace ktune::op {
namespace {

// The layout is specified in docs/key.md. A change of layout needs a new version here and there: it changes every key.
constexpr uint32_t kVersion = 1;
constexpr std::string_view kKeyPrefix{"ktune-key-1\0", 12};

// Every struct is taken apart by a structured binding, so that a new field does not compile until it is encoded.

void write(ByteWriter& out, const std::vector<int64_t>& values) {
  out.u32(static_cast<uint32_t>(values.size()));
  for (int64_t v : values) out.i64(v);
}

void write(ByteWriter& out, const Symbol& symbol) {
  const auto& [name, min, max, edges] = symbol;
  out.text(name);
  out.i64(min);
  out.i64(max);
  write(out, edges);
}

void write(ByteWriter& out, const ValueType& type) {
  const auto& [dtype, shape] = type;
  out.u8(static_cast<uint8_t>(dtype));
  out.u32(static_cast<uint32_t>(shape.size()));
  for (const auto& [factor, symbol] : shape) {
    out.i64(factor);
    out.i32(symbol);
  }
}

void write(ByteWriter& out, const Input& input) {
  const auto& [name, type, strides, alignmentBytes, constant] = input;
  out.text(name);
  write(out, type);
  write(out, strides);
  out.i64(alignmentBytes);
  out.boolean(constant);
}

void write(ByteWriter& out, const Attribute& attribute) {
  static_assert(std::variant_size_v<Attribute> == 3);
  out.u8(static_cast<uint8_t>(attribute.index()));
  if (const auto* integer = std::get_if<int64_t>(&attribute)) out.i64(*integer);
  if (const auto* number = std::get_if<double>(&attribute)) out.f64(*number);
  if (const auto* text = std::get_if<std::string>(&attribute)) out.text(*text);
}

void write(ByteWriter& out, const Node& node) {
  const auto& [op, operands, attributes, result] = node;
  out.text(op);
  out.u32(static_cast<uint32_t>(operands.size()));
  for (int32_t id : operands) out.i32(id);
  out.u32(static_cast<uint32_t>(attributes.size()));
  for (const auto& [name, value] : attributes) {
    out.text(name);
    write(out, value);
  }
  out.text(result);
}

void write(ByteWriter& out, const Output& output) {
  const auto& [value, aliasInput, alignmentBytes] = output;
  out.i32(value);
  out.i32(aliasInput);
  out.i64(alignmentBytes);
}

void write(ByteWriter& out, const NumericContract& numerics) {
  const auto& [accumulate, tolerance, deterministic, batchInvariant] = numerics;
  out.u8(static_cast<uint8_t>(accumulate));
  out.u8(static_cast<uint8_t>(tolerance));
  out.boolean(deterministic);
  out.boolean(batchInvariant);
}

template <typename T>
void writeAll(ByteWriter& out, const std::vector<T>& items) {
  out.u32(static_cast<uint32_t>(items.size()));
  for (const T& item : items) write(out, item);
}

std::vector<int64_t> readIntegers(ByteReader& in) {
  std::vector<int64_t> values(in.count(8));
  for (int64_t& v : values) v = in.i64();
  return values;
}

DType readDType(ByteReader& in) {
  const uint8_t number = in.u8();
  if (number >= kDTypeCount) {
    in.fail("unknown dtype");
    return DType::kF32;
  }
  return static_cast<DType>(number);
}

void read(ByteReader& in, Symbol& symbol) {
  symbol.name = in.text();
  symbol.min = in.i64();
  symbol.max = in.i64();
  symbol.edges = readIntegers(in);
}

void read(ByteReader& in, Input& input) {
  input.name = in.text();
  input.type.dtype = readDType(in);
  input.type.shape.resize(in.count(12));
  for (Dim& dim : input.type.shape) {
    dim.factor = in.i64();
    dim.symbol = in.i32();
  }
  input.strides = readIntegers(in);
  input.alignmentBytes = in.i64();
  input.constant = in.boolean();
}

Attribute readAttribute(ByteReader& in) {
  switch (in.u8()) {
    case 0:
      return in.i64();
    case 1:
      return in.f64();
    case 2:
      return in.text();
    default:
      in.fail("unknown attribute type");
      return int64_t{0};
  }
}

void read(ByteReader& in, Node& node) {
  node.op = in.text();
  node.operands.resize(in.count(4));
  for (int32_t& id : node.operands) id = in.i32();
  const uint32_t attributes = in.count(4 + 1 + 4);
  for (uint32_t a = 0; a < attributes && in.good(); ++a) {
    std::string name = in.text();
    // One byte form per description: names ascend, so none is there twice.
    if (!node.attributes.empty() && name <= node.attributes.rbegin()->first) in.fail("attributes out of order");
    Attribute value = readAttribute(in);
    node.attributes.emplace(std::move(name), std::move(value));
  }
  node.result = in.text();
}

void read(ByteReader& in, Output& output) {
  output.value = in.i32();
  output.aliasInput = in.i32();
  output.alignmentBytes = in.i64();
}

/// MIN_BYTES: the least an item can take, so that a corrupt count never makes a large allocation.
template <typename T>
void readAll(ByteReader& in, std::vector<T>& items, size_t minBytes) {
  const uint32_t count = in.count(minBytes);
  for (uint32_t i = 0; i < count && in.good(); ++i) read(in, items.emplace_back());
}

}  // namespace

std::string canonicalBytes(const Graph& graph) {
  const auto& [symbols, inputs, nodes, outputs, numerics] = graph;
  ByteWriter out;
  out.u32(kVersion);
  writeAll(out, symbols);
  writeAll(out, inputs);
  writeAll(out, nodes);
  writeAll(out, outputs);
  write(out, numerics);
  return out.take();
}

Result<Graph> fromCanonicalBytes(std::string_view bytes) {
  ByteReader in(bytes);
  if (in.u32() != kVersion) in.fail("unknown version of the canonical form");
  Graph graph;
  readAll(in, graph.symbols, 4 + 8 + 8 + 4);
  readAll(in, graph.inputs, 4 + 1 + 4 + 4 + 8 + 1);
  readAll(in, graph.nodes, 4 + 4 + 4 + 4);
  readAll(in, graph.outputs, 4 + 4 + 8);
  graph.numerics.accumulate = readDType(in);
  const uint8_t tolerance = in.u8();
  if (tolerance > static_cast<uint8_t>(ToleranceClass::kRelaxed)) {
    in.fail("unknown tolerance class");
  } else {
    graph.numerics.tolerance = static_cast<ToleranceClass>(tolerance);
  }
  graph.numerics.deterministic = in.boolean();
  graph.numerics.batchInvariant = in.boolean();
  KTUNE_TRY(in.finish().withPrefix("description"));
  KTUNE_TRY(verify(graph).withPrefix("description"));
  return graph;
}

Key keyOf(const Graph& graph, std::string_view hardware) {
  ByteWriter out;
  out.raw(kKeyPrefix);
  out.blob(canonicalBytes(graph));
  out.raw(hardware);
  return {digestOf(out.bytes())};
}

}  // namespace ktune::op
