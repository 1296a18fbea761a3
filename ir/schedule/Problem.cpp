#include "ir/schedule/Problem.h"

#include <algorithm>
#include <numeric>

#include "ir/op/Operator.h"

namespace ktune::schedule {

namespace {

using op::Dim;
using op::Graph;
using op::OperatorKind;

bool isOne(const Dim& d) {
  return d.isStatic() && d.factor == 1;
}

OperatorKind kindOf(const Graph& graph, size_t node) {
  return op::findOperator(graph.nodes[node].op)->kind;
}

std::string nodeText(const Graph& graph, size_t node) {
  return "node " + std::to_string(node) + " (" + graph.nodes[node].op + ")";
}

std::string dimText(const Graph& graph, const Dim& dim) {
  return op::shapeText(graph, {dim});
}

/// Which nodes reach an output; the others are never computed.
std::vector<bool> liveNodes(const Graph& graph) {
  std::vector<bool> live(graph.nodes.size(), false);
  for (const op::Output& output : graph.outputs) {
    if (!graph.isInput(output.value)) live[graph.producerOf(output.value)] = true;
  }
  for (size_t n = graph.nodes.size(); n-- > 0;) {
    if (!live[n]) continue;
    for (int32_t operand : graph.nodes[n].operands) {
      if (!graph.isInput(operand)) live[graph.producerOf(operand)] = true;
    }
  }
  return live;
}

bool isOutput(const Graph& graph, int32_t value) {
  return std::any_of(graph.outputs.begin(), graph.outputs.end(),
                     [&](const op::Output& output) { return output.value == value; });
}

/// Union-find over node indices.
class Components {
 public:
  explicit Components(size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0); }
  int32_t find(int32_t n) {
    while (parent_[static_cast<size_t>(n)] != n) {
      int32_t& parent = parent_[static_cast<size_t>(n)];
      parent = parent_[static_cast<size_t>(parent)];
      n = parent;
    }
    return n;
  }
  /// The smaller index stays the representative.
  void join(int32_t a, int32_t b) {
    a = find(a);
    b = find(b);
    if (a != b) parent_[static_cast<size_t>(std::max(a, b))] = std::min(a, b);
  }

 private:
  std::vector<int32_t> parent_;
};

Components componentsOf(const Problem& problem, const std::vector<uint8_t>& fuse) {
  Components components(problem.primitives.nodes.size());
  for (size_t e = 0; e < problem.edges.size(); ++e) {
    if (fuse[e]) components.join(problem.edges[e].producer, problem.edges[e].consumer);
  }
  return components;
}

/// Sets the bits of edges that lie inside one group anyway, so that one partition has one bit pattern.
std::vector<uint8_t> closed(const Problem& problem, std::vector<uint8_t> fuse) {
  Components components = componentsOf(problem, fuse);
  for (size_t e = 0; e < fuse.size(); ++e) {
    fuse[e] = components.find(problem.edges[e].producer) == components.find(problem.edges[e].consumer) ? 1 : 0;
  }
  return fuse;
}

/// Chooses the generator for one kernel's nodes and checks that their shapes fit it. These rules only get stricter as
/// nodes are added. NODES: without constants, ascending. Returns the extents of the kernel's rows x columns domain.
struct Domain {
  Generator generator = Generator::kMap;
  Dim rows = Dim::fixed(1), columns = Dim::fixed(1);
};
Result<Domain> domainOf(const Problem& problem, const std::vector<int32_t>& nodes) {
  const Graph& graph = problem.primitives;
  std::vector<size_t> contractions, reductions;
  for (int32_t n : nodes) {
    OperatorKind kind = kindOf(graph, static_cast<size_t>(n));
    if (kind == OperatorKind::kContraction) contractions.push_back(static_cast<size_t>(n));
    if (kind == OperatorKind::kReduction) reductions.push_back(static_cast<size_t>(n));
  }
  if (contractions.size() > 1) return invalidArgument("two contractions in one kernel");
  if (!contractions.empty() && !reductions.empty()) {
    return invalidArgument("a contraction and a reduction in one kernel");
  }
  Domain domain;
  std::vector<int32_t> values;  // Everything that must fit the domain.
  if (!contractions.empty()) {
    domain.generator = Generator::kContraction;
    size_t node = contractions[0];
    for (int32_t operand : graph.nodes[node].operands) {
      if (graph.isInput(operand)) continue;
      if (std::binary_search(nodes.begin(), nodes.end(), static_cast<int32_t>(graph.producerOf(operand)))) {
        return invalidArgument("prologue on a contraction operand is not supported on this generator: " +
                               nodeText(graph, node) + " reads " + graph.valueName(operand) + " of its own kernel");
      }
    }
    for (int32_t operand : graph.nodes[node].operands) {
      if (!problem.matrixOf(operand).columns.isStatic()) {
        return invalidArgument("a contraction over a symbolic extent: " + nodeText(graph, node));
      }
    }
    Problem::Matrix result = problem.matrixOf(graph.resultOf(node));
    if (!result.columns.isStatic()) {
      return invalidArgument("a contraction with symbolic columns: " + nodeText(graph, node));
    }
    domain.rows = result.rows;
    domain.columns = result.columns;
  }
  if (!reductions.empty()) {
    domain.generator = Generator::kRow;
    for (size_t i = 0; i < reductions.size(); ++i) {
      Dim length = problem.matrixOf(graph.nodes[reductions[i]].operands[0]).columns;
      if (!length.isStatic()) {
        return invalidArgument("a reduction over a symbolic extent: " + nodeText(graph, reductions[i]));
      }
      if (i > 0 && !(length == domain.columns)) return invalidArgument("reduces over different row lengths");
      domain.columns = length;
    }
  }
  for (int32_t n : nodes) {
    auto node = static_cast<size_t>(n);
    values.push_back(graph.resultOf(node));
    if (kindOf(graph, node) == OperatorKind::kContraction) continue;
    values.insert(values.end(), graph.nodes[node].operands.begin(), graph.nodes[node].operands.end());
  }
  if (domain.generator != Generator::kContraction) {
    for (int32_t v : values) {
      Problem::Matrix m = problem.matrixOf(v);
      if (isOne(domain.rows)) domain.rows = m.rows;
      if (domain.generator == Generator::kMap && isOne(domain.columns)) domain.columns = m.columns;
    }
  }
  for (int32_t v : values) {
    Problem::Matrix m = problem.matrixOf(v);
    if (!isOne(m.rows) && !(m.rows == domain.rows)) {
      return invalidArgument(graph.valueName(v) + " has " + dimText(graph, m.rows) + " rows in a kernel of " +
                             dimText(graph, domain.rows) + ": only whole rows are broadcast");
    }
    if (!isOne(m.columns) && !(m.columns == domain.columns)) {
      return invalidArgument(graph.valueName(v) + " has " + dimText(graph, m.columns) + " columns in a kernel of " +
                             dimText(graph, domain.columns));
    }
  }
  for (size_t node : reductions) {
    if (!(problem.matrixOf(graph.resultOf(node)).rows == domain.rows)) {
      return invalidArgument("a reduction of a value that is the same for every row: " + nodeText(graph, node));
    }
  }
  return domain;
}

/// Fails when a value leaves the group and comes back.
Status checkConvex(const Problem& problem, const std::vector<int32_t>& nodes) {
  const Graph& graph = problem.primitives;
  std::vector<bool> inside(graph.nodes.size(), false), after(graph.nodes.size(), false);
  for (int32_t n : nodes) inside[static_cast<size_t>(n)] = true;
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    for (int32_t operand : graph.nodes[n].operands) {
      if (graph.isInput(operand)) continue;
      size_t producer = graph.producerOf(operand);
      if (inside[n] && after[producer]) {
        return invalidArgument("group is not convex: " + nodeText(graph, n) + " is fed through another kernel");
      }
      if (!inside[n] && (inside[producer] || after[producer])) after[n] = true;
    }
  }
  return Status::ok();
}

/// One kernel from its nodes (without constants, ascending; or one constant alone).
Result<Group> makeGroup(const Problem& problem, const std::vector<int32_t>& nodes, const std::vector<bool>& live) {
  const Graph& graph = problem.primitives;
  KTUNE_ASSIGN(Domain domain, domainOf(problem, nodes));
  KTUNE_TRY(checkConvex(problem, nodes));
  Group group;
  group.generator = domain.generator;
  group.nodes = nodes;
  auto inside = [&](size_t node) { return std::binary_search(nodes.begin(), nodes.end(), static_cast<int32_t>(node)); };
  for (int32_t n : nodes) {
    for (int32_t operand : graph.nodes[static_cast<size_t>(n)].operands) {
      if (graph.isInput(operand)) {
        group.inputs.push_back(operand);
        continue;
      }
      size_t producer = graph.producerOf(operand);
      if (inside(producer)) continue;
      if (kindOf(graph, producer) == OperatorKind::kConstant) {
        group.nodes.push_back(static_cast<int32_t>(producer));
      } else {
        group.inputs.push_back(operand);
      }
    }
  }
  for (std::vector<int32_t>* list : {&group.nodes, &group.inputs}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  for (int32_t n : nodes) {
    auto node = static_cast<size_t>(n);
    int32_t value = graph.resultOf(node);
    bool written = isOutput(graph, value);
    // A constant is copied into its users, so that only the application reads it from memory.
    for (size_t user = node + 1; user < graph.nodes.size() && kindOf(graph, node) != OperatorKind::kConstant; ++user) {
      const std::vector<int32_t>& operands = graph.nodes[user].operands;
      bool reads = std::find(operands.begin(), operands.end(), value) != operands.end();
      written = written || (live[user] && !inside(user) && reads);
    }
    if (written) group.outputs.push_back(value);
  }
  for (int32_t v : group.outputs) {
    // Several tiles would write it.
    Problem::Matrix m = problem.matrixOf(v);
    bool wholeColumns = m.columns == domain.columns || (domain.generator == Generator::kRow && isOne(m.columns));
    if (!(m.rows == domain.rows) || !wholeColumns) {
      return invalidArgument(graph.valueName(v) + " is broadcast inside the kernel that writes it");
    }
    for (const op::Output& output : graph.outputs) {
      if (output.value != v || output.aliasInput < 0 || domain.generator != Generator::kContraction) continue;
      for (int32_t n : nodes) {
        if (kindOf(graph, static_cast<size_t>(n)) != OperatorKind::kContraction) continue;
        const std::vector<int32_t>& operands = graph.nodes[static_cast<size_t>(n)].operands;
        if (std::find(operands.begin(), operands.end(), output.aliasInput) != operands.end()) {
          return invalidArgument(graph.valueName(v) + " overwrites an operand of the contraction that makes it");
        }
      }
    }
  }
  return group;
}

/// Producers before consumers; a kernel that overwrites an input after every kernel that reads it.
Result<std::vector<Group>> ordered(const Problem& problem, std::vector<Group> groups) {
  const Graph& graph = problem.primitives;
  auto has = [](const std::vector<int32_t>& list, int32_t value) {
    return std::binary_search(list.begin(), list.end(), value);
  };
  auto precedes = [&](const Group& a, const Group& b) {
    for (int32_t v : a.outputs) {
      if (has(b.inputs, v)) return true;
    }
    for (const op::Output& output : graph.outputs) {
      if (output.aliasInput >= 0 && has(b.outputs, output.value) && has(a.inputs, output.aliasInput)) return true;
    }
    return false;
  };
  std::vector<Group> result;
  std::vector<bool> done(groups.size(), false);
  while (result.size() < groups.size()) {
    size_t next = groups.size();
    for (size_t b = 0; b < groups.size() && next == groups.size(); ++b) {
      bool ready = !done[b];
      for (size_t a = 0; a < groups.size() && ready; ++a) {
        ready = a == b || done[a] || !precedes(groups[a], groups[b]);
      }
      if (ready) next = b;
    }
    if (next == groups.size()) {
      return invalidArgument(
          "the kernels wait for one another in a circle, or one overwrites what another still reads");
    }
    done[next] = true;
    result.push_back(groups[next]);
  }
  return result;
}

/// Whether the leading dims of an input can be walked with one stride.
Status checkStrides(const Graph& graph, const op::Input& input) {
  const op::Shape& shape = input.type.shape;
  if (input.strides.empty() || shape.empty()) return Status::ok();
  if (input.strides.back() != 1 && !isOne(shape.back())) {
    return unsupported("input '" + input.name + "': elements of the last dim are not neighbours (stride " +
                       std::to_string(input.strides.back()) + ")");
  }
  // From the innermost leading dim outwards; dims of extent 1 have any stride.
  int64_t expected = -1;
  for (size_t d = shape.size() - 1; d-- > 0;) {
    if (isOne(shape[d])) continue;
    if (expected != -1 && input.strides[d] != expected) {
      return unsupported("input '" + input.name + "' " + op::shapeText(graph, shape) +
                         ": its leading dims are not rows at one stride");
    }
    // Under a symbolic extent a static stride cannot be right for every value: nothing matches -2.
    expected = shape[d].isStatic() ? input.strides[d] * shape[d].factor : -2;
  }
  return Status::ok();
}

}  // namespace

Problem::Matrix Problem::matrixOf(int32_t value) const {
  const op::Shape& shape = types[static_cast<size_t>(value)].shape;
  if (shape.empty()) return {Dim::fixed(1), Dim::fixed(1)};
  Matrix matrix{Dim::fixed(1), shape.back()};
  for (size_t d = 0; d + 1 < shape.size(); ++d) {
    matrix.rows.factor *= shape[d].factor;
    if (!shape[d].isStatic()) matrix.rows.symbol = shape[d].symbol;
  }
  return matrix;
}

Result<Problem> Problem::create(const op::Graph& source, const op::Bucket& bucket) {
  KTUNE_TRY(op::verify(source));
  std::vector<op::Bucket> buckets = op::bucketsOf(source);
  if (std::find(buckets.begin(), buckets.end(), bucket) == buckets.end()) {
    return invalidArgument("the bucket is none of the description's");
  }
  Problem problem;
  problem.source = source;
  problem.bucket = bucket;
  KTUNE_ASSIGN(problem.primitives, op::expand(source));
  KTUNE_ASSIGN(problem.types, op::inferTypes(problem.primitives));
  const Graph& graph = problem.primitives;

  for (size_t v = 0; v < problem.types.size(); ++v) {
    const op::Shape& shape = problem.types[v].shape;
    KTUNE_TRY(op::elementCount(shape, bucket.high).status().withPrefix(graph.valueName(static_cast<int32_t>(v))));
    int symbols = 0;
    for (size_t d = 0; d + 1 < shape.size(); ++d) symbols += shape[d].isStatic() ? 0 : 1;
    if (symbols > 1) {
      return unsupported(graph.valueName(static_cast<int32_t>(v)) + " " + op::shapeText(graph, shape) +
                         ": its rows are a product of two symbols");
    }
  }
  for (const op::Input& input : graph.inputs) KTUNE_TRY(checkStrides(graph, input));

  std::vector<bool> live = liveNodes(graph);
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    if (!live[n]) continue;
    std::vector<int32_t> producers;
    for (int32_t operand : graph.nodes[n].operands) {
      if (graph.isInput(operand)) continue;
      size_t producer = graph.producerOf(operand);
      if (kindOf(graph, producer) != OperatorKind::kConstant) producers.push_back(static_cast<int32_t>(producer));
    }
    std::sort(producers.begin(), producers.end());
    producers.erase(std::unique(producers.begin(), producers.end()), producers.end());
    for (int32_t producer : producers) {
      // What does not fit one kernel as a pair never does: not worth a bit.
      if (domainOf(problem, {producer, static_cast<int32_t>(n)})) {
        problem.edges.push_back({producer, static_cast<int32_t>(n)});
      }
    }
  }

  // Everything apart or, where an output overwrites an input that is read later, everything together.
  Result<std::vector<Group>> apart = problem.groups(std::vector<uint8_t>(problem.edges.size(), 0));
  if (!apart && !problem.groups(std::vector<uint8_t>(problem.edges.size(), 1))) {
    return unsupported("no generator for this description: " + apart.error().message());
  }
  return problem;
}

Result<std::vector<Group>> Problem::groups(const std::vector<uint8_t>& fuse) const {
  if (fuse.size() != edges.size()) {
    return invalidArgument("expected " + std::to_string(edges.size()) + " fusion bits, got " +
                           std::to_string(fuse.size()));
  }
  std::vector<bool> live = liveNodes(primitives);
  Components components = componentsOf(*this, fuse);
  std::vector<std::vector<int32_t>> members(primitives.nodes.size());
  for (size_t n = 0; n < primitives.nodes.size(); ++n) {
    if (!live[n]) continue;
    auto node = static_cast<int32_t>(n);
    bool constant = kindOf(primitives, n) == OperatorKind::kConstant;
    if (!constant || isOutput(primitives, primitives.resultOf(n))) {
      members[static_cast<size_t>(components.find(node))].push_back(node);
    }
  }
  std::vector<Group> result;
  for (const std::vector<int32_t>& nodes : members) {
    if (nodes.empty()) continue;
    KTUNE_ASSIGN(Group group, makeGroup(*this, nodes, live));
    result.push_back(std::move(group));
  }
  return ordered(*this, std::move(result));
}

std::vector<uint8_t> Problem::legalFusion(std::vector<uint8_t> fuse) const {
  fuse.resize(edges.size(), 0);
  for (uint8_t& bit : fuse) bit = bit ? 1 : 0;
  std::vector<uint8_t> wanted = closed(*this, std::move(fuse));
  if (groups(wanted)) return wanted;

  std::vector<uint8_t> legal(edges.size(), 0);
  if (!groups(legal)) return std::vector<uint8_t>(edges.size(), 1);  // create() saw to it that one of the two is legal.
  // An edge may become possible only after others (a diamond), so go round until nothing changes.
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t e = 0; e < edges.size(); ++e) {
      if (!wanted[e] || legal[e]) continue;
      std::vector<uint8_t> trial = legal;
      trial[e] = 1;
      trial = closed(*this, std::move(trial));
      if (!groups(trial)) continue;
      legal = std::move(trial);
      changed = true;
    }
  }
  return legal;
}

}  // namespace ktune::schedule
