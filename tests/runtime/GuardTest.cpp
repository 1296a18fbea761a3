#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "ir/op/Builder.h"
#include "ir/schedule/Vary.h"
#include "runtime/Kernels.h"
#include "runtime/RemoteDevice.h"
#include "runtime/guard/Guard.h"
#include "runtime/guard/GuardedBuffer.h"
#include "runtime/guard/Inputs.h"
#include "runtime/guard/References.h"
#include "runtime/launch/devices/cpu/CpuDevice.h"
#include "runtime/launch/devices/fake/FakeDevice.h"

namespace ktune::runtime {
namespace {

using op::Dim;
using op::DType;
using testing::planOfC;

constexpr Distribution kDistributions[] = {Distribution::kNormal, Distribution::kUniformPositive,
                                           Distribution::kMixedMagnitudes, Distribution::kCancellation,
                                           Distribution::kSpecialValues};

schedule::Problem problemOf(const op::Graph& graph, size_t bucket = 0) {
  Result<schedule::Problem> problem = schedule::Problem::create(graph, op::bucketsOf(graph)[bucket]);
  EXPECT_TRUE(problem) << (problem ? "" : problem.error().toString());
  return *problem;
}

// ---------------------------------------------------------------------------------------------------------- inputs

std::vector<float> filled(const InputStream& stream, std::vector<int64_t> extents) {
  TensorView view = TensorView::dense(DType::kF32, nullptr, std::move(extents));
  std::vector<float> values(static_cast<size_t>(view.rows() * view.columns()));
  view.data = values.data();
  fillInput(stream, view, op::serialFor());
  return values;
}

TEST(Inputs, DependOnSeedInputAndDistributionOnly) {
  const op::ParallelFor reversed = [](int64_t n, const std::function<void(int64_t, int64_t)>& body) {
    for (int64_t i = n; i-- > 0;) body(i, i + 1);
  };
  for (Distribution d : kDistributions) {
    InputStream stream{d, 7, 0};
    const std::vector<float> whole = filled(stream, {9, 5001});
    // Fewer rows, other threads, another start: the same values.
    std::vector<float> again(3 * 5001);
    TensorView view = TensorView::dense(DType::kF32, again.data(), {3, 5001});
    fillInput(stream, view, reversed);
    EXPECT_EQ(std::memcmp(again.data(), whole.data(), again.size() * 4), 0);
    stream.firstRow = 4;
    EXPECT_EQ(std::memcmp(filled(stream, {3, 5001}).data(), whole.data() + 4 * 5001, 3 * 5001 * 4), 0);
    // Strided rows, the gaps untouched; and other types round the same values.
    std::vector<float> strided(9 * 6000, -77);
    fillInput({d, 7, 0}, {DType::kF32, strided.data(), {9, 5001}, {6000, 1}}, op::serialFor());
    std::vector<uint16_t> narrow(9 * 5001);
    fillInput({d, 7, 0}, TensorView::dense(DType::kBF16, narrow.data(), {9, 5001}), op::serialFor());
    for (size_t r = 0; r < 9; ++r) {
      EXPECT_EQ(std::memcmp(strided.data() + r * 6000, whole.data() + r * 5001, 5001 * 4), 0);
      EXPECT_EQ(strided[r * 6000 + 5001], -77);
    }
    for (size_t i = 0; i < narrow.size(); i += 37) {
      double value = 0;
      loadElements(DType::kBF16, &narrow[i], 1, 1, &value);
      ASSERT_EQ(value, op::roundTo(DType::kBF16, whole[i])) << distributionName(d) << " " << i;
    }
    EXPECT_NE(filled({d, 8, 0}, {9, 5001}), whole);
    EXPECT_NE(filled({d, 7, 1}, {9, 5001}), whole);
  }
}

TEST(Inputs, HaveTheShapeTheyPromise) {
  const std::vector<float> normal = filled({Distribution::kNormal, 1, 0}, {100, 1000});
  double sum = 0, squares = 0;
  for (float v : normal) sum += v, squares += v * v;
  EXPECT_NEAR(sum / 1e5, 0, 0.02);
  EXPECT_NEAR(squares / 1e5, 1, 0.02);

  for (float v : filled({Distribution::kUniformPositive, 1, 0}, {10, 1000})) {
    ASSERT_GT(v, 0);
    ASSERT_LT(v, 1);
  }
  float least = 1e30f, most = 0;
  for (float v : filled({Distribution::kMixedMagnitudes, 1, 0}, {10, 1000})) {
    least = std::min(least, std::fabs(v));
    most = std::max(most, std::fabs(v));
  }
  EXPECT_LT(least, 1e-3f);
  EXPECT_GT(most, 1e3f);

  // Sums of a row, and dot products with the second input, nearly vanish against the sum of magnitudes.
  const std::vector<float> x = filled({Distribution::kCancellation, 1, 0}, {1, 1000});
  const std::vector<float> w = filled({Distribution::kCancellation, 1, 1, true}, {1, 1000});
  double dot = 0, magnitude = 0, row = 0, rowMagnitude = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    dot += static_cast<double>(x[i]) * w[i];
    magnitude += std::fabs(static_cast<double>(x[i]) * w[i]);
    row += x[i];
    rowMagnitude += std::fabs(x[i]);
  }
  EXPECT_LT(std::fabs(dot), magnitude * 1e-3);
  EXPECT_LT(std::fabs(row), rowMagnitude * 1e-3);

  const std::vector<float> special = filled({Distribution::kSpecialValues, 1, 0}, {4, 1000});
  int negativeZeros = 0, denormals = 0, huge = 0, tiny = 0, large = 0;
  for (float v : special) {
    negativeZeros += v == 0 && std::signbit(v);
    denormals += std::fpclassify(v) == FP_SUBNORMAL;
    huge += std::fabs(v) > 1e13f;
    large += std::fabs(v) > 1e3f && std::fabs(v) < 1e6f;
    tiny += std::fabs(v) < 1e-2f && std::fabs(v) > 1e-20f;
  }
  EXPECT_GT(negativeZeros, 10);
  EXPECT_GT(denormals, 50);
  EXPECT_GT(huge, 500);
  EXPECT_GT(large, 500);
  EXPECT_GT(tiny, 500);
  for (float v : filled({Distribution::kSpecialValues, 1, 0, true}, {30, 100})) ASSERT_LT(std::fabs(v), 1e6f);
}

// --------------------------------------------------------------------------------------------------------- buffers

TEST(GuardedBuffer, PlacesAsAskedAndFindsDamage) {
  const std::unique_ptr<Inspector> inspector = makeHostInspector(op::serialFor());
  for (size_t alignment : {size_t{1}, size_t{4}, size_t{64}, size_t{4096}}) {
    for (size_t bytes : {size_t{1}, size_t{60}, size_t{4096}, size_t{100000}}) {
      Result<GuardedBuffer> buffer = GuardedBuffer::create(100000, alignment, {nullptr, nullptr, inspector.get()});
      ASSERT_TRUE(buffer);
      for (bool shifted : {false, true}) {
        char* data = buffer->place(bytes, alignment, shifted);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % (2 * alignment), shifted ? alignment : 0);
        std::memset(data, 0, bytes);
        EXPECT_FALSE(buffer->damage()->has_value());
        data[bytes] ^= 1;
        EXPECT_EQ(*buffer->damage(), std::optional<int64_t>(0));
        data[bytes] ^= 1;
        data[-1] ^= 1;
        EXPECT_EQ(*buffer->damage(), std::optional<int64_t>(-1));
        data[-1] ^= 1;
        data[bytes + GuardedBuffer::kBandBytes - 1] ^= 1;
        EXPECT_TRUE(buffer->damage()->has_value());
        ASSERT_TRUE(buffer->poison(1).isOk());
        for (size_t i = 0; i < bytes; ++i) ASSERT_EQ(static_cast<unsigned char>(data[i]), kPoison[1][i % 2]);
      }
    }
  }
}

TEST(GuardedBuffer, PoisonIsNotANumber) {
  for (DType type : {DType::kF64, DType::kF32, DType::kF16, DType::kBF16}) {
    for (const auto& pattern : kPoison) {
      unsigned char bytes[8];
      for (size_t i = 0; i < 8; ++i) bytes[i] = pattern[i & 1];
      double value = 0;
      loadElements(type, bytes, 1, 1, &value);
      EXPECT_TRUE(std::isnan(value)) << op::dtypeName(type);
    }
  }
  EXPECT_NE(kPoison[0][0], kPoison[1][0]);
  EXPECT_NE(kPoison[0][1], kPoison[1][1]);
}

// ------------------------------------------------------------------------------------------------------ references

op::Graph linearWithBias() {
  op::GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 40, {40});
  const int32_t x = b.input("x", DType::kF32, {Dim::symbolic(m), Dim::fixed(96)});
  const int32_t w = b.input("w", DType::kF32, {Dim::fixed(200), Dim::fixed(96)}, true);
  const int32_t bias = b.input("bias", DType::kF32, {Dim::fixed(200)}, true);
  b.output(b.node("add", {b.node("linear", {x, w}), bias}));
  return *b.finish();
}

op::Graph linearThenNorm() {
  op::GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 40, {40});
  const int32_t x = b.input("x", DType::kF32, {Dim::symbolic(m), Dim::fixed(96)});
  const int32_t w = b.input("w", DType::kF32, {Dim::fixed(200), Dim::fixed(96)}, true);
  const int32_t scale = b.input("scale", DType::kF32, {Dim::fixed(200)}, true);
  b.output(b.node("rms_norm", {b.node("linear", {x, w}), scale}, {{"eps", 1e-6}}));
  return *b.finish();
}

// y = (x * w1^T) * (x * w2^T): two weights cut along the same columns.
op::Graph gated() {
  op::GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 40, {40});
  const int32_t x = b.input("x", DType::kF32, {Dim::symbolic(m), Dim::fixed(96)});
  const int32_t w1 = b.input("w1", DType::kF32, {Dim::fixed(200), Dim::fixed(96)}, true);
  const int32_t w2 = b.input("w2", DType::kF32, {Dim::fixed(200), Dim::fixed(96)}, true);
  b.output(b.node("mul", {b.node("linear", {x, w1}), b.node("linear", {x, w2})}));
  return *b.finish();
}

TEST(References, BlocksGiveTheSameAsTheWhole) {
  const struct {
    op::Graph graph;
    bool rows, columns;
  } table[] = {
      {linearWithBias(), true, true},
      {linearThenNorm(), true, false},
      {gated(), true, true},
      {*op::makeRmsNorm({"M", 1, 40, {40}}, 3, 500, 1e-6, DType::kF32), true, false},
      {*op::makeAdd({"M", 1, 40, {40}}, 77, DType::kBF16), true, true},
  };
  for (const auto& row : table) {
    const schedule::Problem problem = problemOf(row.graph);
    const ReferenceEvaluator whole(problem, uint64_t{1} << 40);
    const ReferenceEvaluator cut(problem, 20000);
    EXPECT_EQ(cut.rowsAreIndependent(), row.rows) << op::label(row.graph);
    EXPECT_EQ(cut.columnsAreIndependent(), row.columns) << op::label(row.graph);
    EXPECT_LT(cut.workingBytes({37}), whole.workingBytes({37}));

    std::vector<TensorView> views = tensorViews(row.graph, *op::inferTypes(row.graph), {37});
    std::vector<std::vector<char>> blocks;
    for (size_t i = 0; i < row.graph.inputs.size(); ++i) {
      blocks.emplace_back(static_cast<size_t>(views[i].spanBytes()));
      views[i].data = blocks.back().data();
      fillInput({Distribution::kMixedMagnitudes, 3, static_cast<int32_t>(i)}, views[i], op::serialFor());
    }
    views.resize(row.graph.inputs.size());
    // The second into memory that was used before.
    std::vector<Expected> a, b(row.graph.outputs.size(), {ReferenceValues(99, -7.0), ReferenceValues(99999, -7.0)});
    ASSERT_TRUE(whole.evaluate({37}, views, op::serialFor(), a).isOk());
    ASSERT_TRUE(cut.evaluate({37}, views, op::serialFor(), b).isOk());
    ASSERT_EQ(a.size(), b.size());
    for (size_t o = 0; o < a.size(); ++o) {
      EXPECT_EQ(a[o].values, b[o].values) << op::label(row.graph);
      EXPECT_EQ(a[o].bounds, b[o].bounds) << op::label(row.graph);
    }
  }
}

// measuring.md, 3: an op that does nothing on the test inputs could be left out. Every op of these descriptions that
// can be bypassed is, and some distribution must show it.
TEST(References, EveryDroppedOpIsNoticed) {
  const op::Graph graphs[] = {*op::makeRmsNorm({"M", 1, 8, {8}}, 1, 256, 1e-6, DType::kF32), linearWithBias(),
                              linearThenNorm(), gated(), *op::makeAdd({"M", 1, 8, {8}}, 64, DType::kF32)};
  for (const op::Graph& graph : graphs) {
    const schedule::Problem problem = problemOf(graph);
    const op::Graph& primitives = problem.primitives;
    const std::vector<int64_t> point{8};
    int dropped = 0;
    for (size_t n = 0; n < primitives.nodes.size(); ++n) {
      const int32_t result = primitives.resultOf(n);
      for (int32_t operand : primitives.nodes[n].operands) {
        if (!(problem.types[static_cast<size_t>(operand)] == problem.types[static_cast<size_t>(result)])) continue;
        op::Graph mutant = primitives;
        for (op::Node& node : mutant.nodes)
          for (int32_t& o : node.operands)
            if (o == result) o = operand;
        for (op::Output& output : mutant.outputs)
          if (output.value == result) output.value = operand;
        ++dropped;
        bool noticed = false;
        for (Distribution d : kDistributions) {
          std::vector<op::RefTensor> inputs;
          for (size_t i = 0; i < primitives.inputs.size(); ++i) {
            const op::Input& input = primitives.inputs[i];
            op::RefTensor tensor{extentsOf(input.type.shape, point), {}, {}};
            const std::vector<float> values = [&] {
              TensorView view = TensorView::dense(DType::kF32, nullptr, tensor.shape);
              std::vector<float> v(static_cast<size_t>(view.rows() * view.columns()));
              view.data = v.data();
              fillInput({d, 1, static_cast<int32_t>(i), input.constant}, view, op::serialFor());
              return v;
            }();
            tensor.values.assign(values.begin(), values.end());
            inputs.push_back(std::move(tensor));
          }
          const auto right = op::evaluateReference(primitives, point, inputs, op::serialFor());
          // With its last op gone a description hands an input back.
          const bool copies = primitives.isInput(mutant.outputs[0].value);
          const auto wrong = copies ? Result<std::vector<op::RefTensor>>(std::vector<op::RefTensor>{
                                          inputs[static_cast<size_t>(mutant.outputs[0].value)]})
                                    : op::evaluateReference(mutant, point, inputs, op::serialFor());
          ASSERT_TRUE(right) << right.error().toString();
          ASSERT_TRUE(wrong) << wrong.error().toString();
          for (size_t e = 0; e < (*right)[0].values.size(); ++e) {
            const double error = std::fabs((*right)[0].values[e] - (*wrong)[0].values[e]);
            if (error > (*right)[0].bounds[e]) noticed = true;
          }
        }
        EXPECT_TRUE(noticed) << op::label(graph) << ": node " << n << " (" << primitives.nodes[n].op << ")";
      }
    }
    EXPECT_GT(dropped, 0) << op::label(graph);
  }
}

// ------------------------------------------------------------------------------------------- candidates on the fake

std::unique_ptr<testing::RemoteDevice> remoteDevice(bool inspects, FakeFaults faults = {},
                                                    uint64_t memoryBytes = uint64_t{1} << 30) {
  auto device = std::make_unique<testing::RemoteDevice>(std::move(faults), memoryBytes);
  if (inspects) device->inspects = std::make_unique<testing::RemoteInspector>();
  return device;
}

TEST(FakeGuard, HonestIsRightAndEachFaultIsNamed) {
  const schedule::Problem problem = problemOf(*op::makeRmsNorm({"M", 1, 6, {6}}, 1, 96, 1e-6, DType::kF32));
  const schedule::Target target = schedule::fakeTarget();
  const schedule::PlanGenome usual = schedule::defaultGenome(problem, target);
  schedule::Random random(1);
  const schedule::PlanGenome other = schedule::mutate(usual, problem, target, 1, random);
  const struct {
    const char* faults;
    const char* reason;
  } table[] = {{"", ""},
               {"wrong=1", "wrong-result"},
               {"unwritten=1", "unwritten-output"},
               {"overrun=1", "guard-band"},
               {"input=1", "input-overwritten"},
               {"flaky=1", "nondeterministic"},
               {"refused=1", "load-failed"}};
  // On the host's memory; on a device with memory of its own; and on one that looks at its memory itself.
  for (int n = 0; n < 3 * static_cast<int>(std::size(table)); ++n) {
    const auto& row = table[n / 3];
    const FakeFaults faults = *FakeFaults::parse(row.faults);
    std::unique_ptr<Device> device = makeFakeDevice(faults);
    if (n % 3 > 0) device = remoteDevice(n % 3 == 2, faults);
    Result<std::unique_ptr<Guard>> guard = Guard::create(problem, *device, {});
    ASSERT_TRUE(guard) << guard.error().toString();
    // Twice, the honest default in between: a bad candidate must not spoil what comes after it.
    for (int round = 0; round < 2; ++round) {
      for (const auto* genome : {&other, &usual}) {
        const std::string reason = genome == &usual ? "" : row.reason;
        std::unique_ptr<LoadedPlan> plan = *device->load(*compileFake(problem, *genome, target, faults));
        for (const GuardVerdict& verdict : {(*guard)->screen(*plan), (*guard)->prove(*plan)}) {
          EXPECT_EQ(verdict.reason, reason) << row.faults << ": " << verdict.detail;
          EXPECT_EQ(verdict.right, reason.empty());
          EXPECT_EQ(verdict.detail.empty(), reason.empty());
          EXPECT_LE(verdict.worstErrorShare, 1);
          EXPECT_TRUE(verdict.device.isOk());
        }
      }
    }
  }
}

// A problem, its default plan, and another one that faults hit.
struct Remote {
  explicit Remote(const op::Graph& graph) : problem(problemOf(graph)) {
    schedule::Random random(1);
    other = schedule::mutate(usual, problem, target, 1, random);
  }
  std::unique_ptr<LoadedPlan> load(Device& device, const schedule::PlanGenome& genome) const {
    return *device.load(*compileFake(problem, genome, target, {}));
  }
  const schedule::Target target = schedule::fakeTarget();
  const schedule::Problem problem;
  const schedule::PlanGenome usual = schedule::defaultGenome(problem, target);
  schedule::PlanGenome other;
};

TEST(RemoteGuard, ADeadDeviceIsTheCandidatesInItsHandsOnly) {
  const Remote remote(*op::makeRmsNorm({"M", 1, 6, {6}}, 1, 96, 1e-6, DType::kF32));
  const FakeFaults faults = *FakeFaults::parse("device=1");
  {
    // Noticed when it is waited for, as on a GPU, or by the launch itself.
    testing::RemoteDevice waiting(faults);
    std::unique_ptr<Device> launching = makeFakeDevice(faults);
    for (Device* device : {static_cast<Device*>(&waiting), launching.get()}) {
      std::unique_ptr<Guard> guard = *Guard::create(remote.problem, *device, {});
      EXPECT_TRUE(guard->prove(*remote.load(*device, remote.usual)).right);
      const GuardVerdict verdict = guard->screen(*remote.load(*device, remote.other));
      EXPECT_FALSE(verdict.right);
      EXPECT_EQ(verdict.reason, "run-crash");
      EXPECT_NE(verdict.detail.find("illegal access"), std::string::npos) << verdict.detail;
      EXPECT_EQ(verdict.device.code(), StatusCode::kUnavailable);
    }
  }
  testing::RemoteDevice device({});
  std::unique_ptr<Guard> guard = *Guard::create(remote.problem, device, {});
  std::unique_ptr<LoadedPlan> plan = remote.load(device, remote.usual);
  device.fail("unplugged");
  const GuardVerdict verdict = guard->screen(*plan);
  EXPECT_FALSE(verdict.right);
  EXPECT_EQ(verdict.reason, "");
  EXPECT_EQ(verdict.device.code(), StatusCode::kUnavailable);
}

TEST(RemoteGuard, TakesNoMoreThanThereIs) {
  const Remote remote(*op::makeAdd({"M", 1, 64, {64}}, 4096, DType::kF32));
  testing::RemoteDevice small({}, 1 << 20);
  Result<std::unique_ptr<Guard>> guard = Guard::create(remote.problem, small, {});
  ASSERT_FALSE(guard);
  EXPECT_EQ(guard.error().code(), StatusCode::kResourceExhausted);
  EXPECT_EQ(small.allocated, 0u);
  testing::RemoteDevice device({});
  GuardOptions options;
  options.deviceMemoryBytes = 1 << 20;
  guard = Guard::create(remote.problem, device, options);
  ASSERT_FALSE(guard);
  EXPECT_EQ(guard.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(guard.error().message().find("device's memory"), std::string::npos);
  options.deviceMemoryBytes = 8 << 20;
  ASSERT_TRUE(Guard::create(remote.problem, device, options));
}

class RemoteWorkspace : public ::testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(InspectedThere, RemoteWorkspace, ::testing::Bool());

TEST_P(RemoteWorkspace, IsWatched) {
  const Remote remote(*op::makeRmsNorm({"M", 1, 6, {6}}, 1, 96, 1e-6, DType::kF32));
  const std::unique_ptr<testing::RemoteDevice> made = remoteDevice(GetParam(), {}, 8 << 20);
  testing::RemoteDevice& device = *made;
  device.slots = {{0, 100, cache::WorkspaceKind::kScratch}, {256, 64, cache::WorkspaceKind::kZeroed}};
  std::unique_ptr<Guard> guard = *Guard::create(remote.problem, device, {});
  std::unique_ptr<LoadedPlan> plan = remote.load(device, remote.usual);
  bool zeroed = true;
  const auto honest = [&](char* workspace) {
    for (int i = 0; i < 64; ++i) zeroed = zeroed && workspace[256 + i] == 0;
    std::memset(workspace, 1, 100);
  };
  const struct {
    const char* name;
    std::function<void(char*)> use;
    const char* reason;
  } table[] = {{"honest", honest, ""},
               {"between the slots", [](char* w) { w[101] = 1; }, "guard-band"},
               {"past the end", [](char* w) { w[256 + 64] = 1; }, "guard-band"},
               {"before the start", [](char* w) { w[-1] = 1; }, "guard-band"},
               {"not left zero", [](char* w) { w[300] = 1; }, "wrong-result"},
               {"honest again", honest, ""}};
  for (const auto& row : table) {
    device.useWorkspace = row.use;
    const GuardVerdict verdict = guard->screen(*plan);
    EXPECT_EQ(verdict.reason, row.reason) << row.name << ": " << verdict.detail;
  }
  EXPECT_TRUE(zeroed);
  // One that doesn't fit is its plan's; what was right before is right afterwards.
  device.slots[1].bytes = 64 << 20;
  EXPECT_EQ(guard->screen(*plan).reason, "load-failed");
  device.slots[1].bytes = 64;
  EXPECT_TRUE(guard->screen(*plan).right);
}

TEST(RemoteGuard, UploadsInputsOnce) {
  const Remote remote(*op::makeAdd({"M", 1, 64, {64}}, 4096, DType::kF32));
  constexpr uint64_t kTensor = 64 * 4096 * 4;
  constexpr uint64_t kSlack = 12 * GuardedBuffer::kBandBytes * 2;
  testing::RemoteDevice device({});
  std::unique_ptr<Guard> guard = *Guard::create(remote.problem, device, {});
  std::unique_ptr<LoadedPlan> plan = remote.load(device, remote.usual);
  EXPECT_EQ(device.transferred, 0u);
  uint64_t before = 0;
  for (int round = 0; round < 3; ++round) {
    before = device.transferred;
    ASSERT_TRUE(guard->screen(*plan).right);
    const uint64_t moved = device.transferred - before;
    // Outputs there and back for each of two runs, inputs back for the last look, and there in the first round.
    const uint64_t tensors = 2 * 2 + 2 + (round == 0 ? 2 : 0);
    EXPECT_GE(moved, tensors * kTensor);
    EXPECT_LE(moved, tensors * kTensor + kSlack * 2);
  }
}

TEST(RemoteGuard, AliasedAndStridedOutputs) {
  op::GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 16, {16});
  const int32_t x = b.input("a", DType::kF32, {Dim::symbolic(m), Dim::fixed(33)});
  const int32_t y = b.input("b", DType::kF32, {Dim::symbolic(m), Dim::fixed(33)});
  b.output(b.node("add", {x, y}), x);
  b.graph().inputs[1].strides = {40, 1};
  b.graph().inputs[1].alignmentBytes = 32;
  const Remote remote(*b.finish());
  for (const auto& [faults, reason] :
       {std::pair("", ""), std::pair("wrong=1", "wrong-result"), std::pair("overrun=1", "guard-band")}) {
    for (const bool inspects : {false, true}) {
      const std::unique_ptr<testing::RemoteDevice> made = remoteDevice(inspects, *FakeFaults::parse(faults));
      testing::RemoteDevice& device = *made;
      std::unique_ptr<Guard> guard = *Guard::create(remote.problem, device, {});
      EXPECT_EQ(guard->prove(*remote.load(device, remote.other)).reason, reason) << faults;
      const GuardVerdict usual = guard->prove(*remote.load(device, remote.usual));
      EXPECT_TRUE(usual.right) << usual.detail;
    }
  }
}

TEST(RemoteGuard, InspectsOnTheDevice) {
  const Remote remote(*op::makeAdd({"M", 1, 64, {64}}, 4096, DType::kF32));
  constexpr uint64_t kTensor = 64 * 4096 * 4;
  const std::unique_ptr<testing::RemoteDevice> device = remoteDevice(true);
  std::unique_ptr<Guard> guard = *Guard::create(remote.problem, *device, {});
  std::unique_ptr<LoadedPlan> plan = remote.load(*device, remote.usual);
  EXPECT_EQ(device->transferred, 0u);
  ASSERT_TRUE(guard->screen(*plan).right);
  // Inputs there, once, with their bands; nothing back.
  EXPECT_GE(device->transferred, 2 * kTensor);
  EXPECT_LE(device->transferred, 2 * (kTensor + 2 * GuardedBuffer::kBandBytes));
  uint64_t before = device->transferred, looked = device->inspects->looks;
  ASSERT_TRUE(guard->screen(*plan).right);
  EXPECT_EQ(device->transferred, before);
  EXPECT_GE(device->inspects->looks, looked + 2 * kTensor);
  // Each content of a proof goes there once: the second proof and the screening after it find them all.
  ASSERT_TRUE(guard->prove(*plan).right);
  before = device->transferred;
  ASSERT_TRUE(guard->prove(*plan).right);
  ASSERT_TRUE(guard->screen(*plan).right);
  EXPECT_EQ(device->transferred, before);
  // Stray writes into everything there are noticed, in what is kept for later, too: it is made anew.
  device->stray();
  EXPECT_EQ(guard->screen(*plan).reason, "input-overwritten");
  const GuardVerdict again = guard->prove(*plan);
  EXPECT_TRUE(again.right) << again.detail;
  EXPECT_GT(device->transferred, before);
}

TEST(RemoteGuard, AReferenceThatWasWrittenOverIsMadeAnew) {
  const Remote remote(*op::makeAdd({"M", 1, 64, {64}}, 4096, DType::kF32));
  const std::unique_ptr<testing::RemoteDevice> device = remoteDevice(true, *FakeFaults::parse("wrong=1"));
  std::unique_ptr<Guard> guard = *Guard::create(remote.problem, *device, {});
  std::unique_ptr<LoadedPlan> honest = remote.load(*device, remote.usual), wrong = remote.load(*device, remote.other);
  ASSERT_TRUE(guard->prove(*honest).right);
  device->inspects->overwritten = 1;
  EXPECT_TRUE(guard->screen(*honest).right);
  device->inspects->overwritten = 1;
  EXPECT_EQ(guard->screen(*wrong).reason, "wrong-result");
  EXPECT_TRUE(guard->prove(*honest).right);
}

TEST(RemoteGuard, InspectsOnTheHostWhatDoesNotFitWithItsReferences) {
  const Remote remote(*op::makeAdd({"M", 1, 64, {64}}, 4096, DType::kF32));
  const std::unique_ptr<testing::RemoteDevice> device = remoteDevice(true);
  GuardOptions options;
  options.deviceMemoryBytes = 8 << 20;  // Two inputs and twice the output are 4 MiB; the reference takes 4 more.
  std::unique_ptr<Guard> guard = *Guard::create(remote.problem, *device, options);
  std::unique_ptr<LoadedPlan> plan = remote.load(*device, remote.usual);
  EXPECT_TRUE(guard->prove(*plan).right);
  EXPECT_EQ(device->inspects->looks, 0u);
}

TEST(RemoteGuard, SpareMemoryGivesWayToAWorkspace) {
  const Remote remote(*op::makeAdd({"M", 1, 64, {64}}, 4096, DType::kF32));
  const std::unique_ptr<testing::RemoteDevice> device = remoteDevice(true, {}, 24 << 20);
  std::unique_ptr<Guard> guard = *Guard::create(remote.problem, *device, {});
  std::unique_ptr<LoadedPlan> plan = remote.load(*device, remote.usual);
  ASSERT_TRUE(guard->prove(*plan).right);
  device->slots = {
      {0, (24 << 20) - static_cast<size_t>(device->allocated) + (1 << 20), cache::WorkspaceKind::kScratch}};
  const GuardVerdict verdict = guard->prove(*plan);
  EXPECT_TRUE(verdict.right) << verdict.reason << ": " << verdict.detail;
}

TEST(RemoteGuard, KeptWeightsLieOnTheDevice) {
  op::GraphBuilder b;
  const int32_t x = b.input("x", DType::kF32, {Dim::fixed(1), Dim::fixed(4096)});
  const int32_t w = b.input("w", DType::kF32, {Dim::fixed(4100), Dim::fixed(4096)}, true);
  b.output(b.node("linear", {x, w}));
  const Remote remote(*b.finish());
  testing::RemoteDevice device({});
  std::unique_ptr<Guard> guard = *Guard::create(remote.problem, device, {});
  const Result<void*> none = guard->keptWeights(0), kept = guard->keptWeights(1);
  ASSERT_TRUE(none && kept);
  EXPECT_EQ(*none, nullptr);
  ASSERT_NE(*kept, nullptr);
  std::vector<float> first(1024);
  ASSERT_TRUE(device.copyFromDevice(first.data(), *kept, first.size() * 4).isOk());
  EXPECT_FALSE(std::isnan(first[0]));
  EXPECT_NE(first[0], first[1]);
  const uint64_t before = device.transferred;
  EXPECT_EQ(*guard->keptWeights(1), *kept);
  EXPECT_EQ(device.transferred, before);
}

// An engine that counts its calls, and gives what the host gives.
class CountingEngine final : public op::DotEngine {
 public:
  int calls = 0;
  Status dots(const double* x, int64_t rows, const double* w, int64_t columns, int64_t k, double* sums,
              double* reaches) override {
    ++calls;
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) {
        double lanes[8] = {}, most[8] = {};
        for (int64_t t = 0; t < k; ++t) {
          lanes[t % 8] += x[i * k + t] * w[j * k + t];
          if (t % 128 == 127 || t + 1 == k)
            for (int l = 0; l < 8; ++l) most[l] = std::max(most[l], std::fabs(lanes[l]));
        }
        sums[i * columns + j] = reaches[i * columns + j] = 0;
        for (int l = 0; l < 8; ++l) {
          sums[i * columns + j] += lanes[l];
          reaches[i * columns + j] += most[l];
        }
      }
    }
    return Status::ok();
  }
};

TEST(RemoteGuard, ReferencesUseTheDevicesEngine) {
  op::GraphBuilder b;
  const int32_t x = b.input("x", DType::kF32, {Dim::fixed(96), Dim::fixed(1200)});
  const int32_t w = b.input("w", DType::kF32, {Dim::fixed(1200), Dim::fixed(1200)}, true);
  b.output(b.node("linear", {x, w}));
  const schedule::Problem problem = problemOf(*b.finish());
  CountingEngine engine;
  testing::RemoteDevice device({});
  device.engine = &engine;
  Result<std::unique_ptr<Guard>> guard = Guard::create(problem, device, {});
  ASSERT_TRUE(guard) << guard.error().toString();
  EXPECT_EQ(engine.calls, 1);  // Of the first distribution, by which trivial outputs are refused.
}

TEST(Guard, RefusesWhatItCannotCheck) {
  std::unique_ptr<Device> device = makeFakeDevice({});
  const schedule::Problem big = problemOf(*op::makeAdd({"M", 1, 512, {512}}, 4096, DType::kF32));
  GuardOptions options;
  options.memoryBytes = 1 << 20;
  Result<std::unique_ptr<Guard>> guard = Guard::create(big, *device, options);
  ASSERT_FALSE(guard);
  EXPECT_EQ(guard.error().code(), StatusCode::kResourceExhausted);
  EXPECT_NE(guard.error().message().find("bytes"), std::string::npos);

  op::GraphBuilder b;
  const int32_t x = b.input("x", DType::kF32, {Dim::fixed(4), Dim::fixed(64)});
  b.output(b.node("sub", {x, x}));
  guard = Guard::create(problemOf(*b.finish()), *device, {});
  ASSERT_FALSE(guard);
  EXPECT_EQ(guard.error().code(), StatusCode::kUnsupported);
}

// --------------------------------------------------------------------------------------- red team: kernels written in
// C

struct RedTeam {
  const char* name;
  const char* screen;  ///< The screen's verdict, empty when it lets the kernel pass.
  const char* prove;
  const char* body;
};

void challenge(const schedule::Problem& problem, Device& device, const RedTeam& row,
               std::vector<cache::Workspace> workspaces = {}) {
  SCOPED_TRACE(row.name);
  Result<std::unique_ptr<Guard>> guard = Guard::create(problem, device, {});
  ASSERT_TRUE(guard) << guard.error().toString();
  cache::Plan plan = planOfC(problem, row.body);
  plan.workspaces = std::move(workspaces);
  for (size_t w = 0; w < plan.workspaces.size(); ++w)
    plan.launches[0].parameters.emplace_back(cache::WorkspaceParameter{static_cast<int32_t>(w)});
  Result<std::unique_ptr<LoadedPlan>> loaded = device.load(plan);
  ASSERT_TRUE(loaded) << loaded.error().toString();
  const GuardVerdict screen = (*guard)->screen(**loaded);
  EXPECT_EQ(screen.reason, row.screen) << screen.detail;
  const GuardVerdict prove = (*guard)->prove(**loaded);
  EXPECT_EQ(prove.reason, row.prove) << prove.detail;
  EXPECT_EQ(prove.right, std::string(row.prove).empty());
  if (prove.right) {
    EXPECT_GT(prove.checks.size(), 8u);
  }
}

#define ADD_ROWS(expression)                                                                                    \
  "KERNEL { const f32* a = args[0]; const f32* b = args[1]; f32* y = args[2]; i64 m = (i64)args[3]; (void)m;\n" \
  "  for (i64 i = first * 1003; i < last * 1003; ++i) y[i] = " expression "; }\n"

TEST(RedTeam, Add) {
  KTUNE_NEEDS_HOST_COMPILER();
  const schedule::Problem problem = problemOf(*op::makeAdd({"M", 1, 16, {16}}, 1003, DType::kF32));
  const RedTeam table[] = {
    {"honest", "", "", ADD_ROWS("a[i] + b[i]")},
    {"copies an input", "wrong-result", "wrong-result", ADD_ROWS("a[i]")},
    {"zeros", "wrong-result", "wrong-result", ADD_ROWS("0 * (a[i] + b[i])")},
    {"assumes positive values", "wrong-result", "wrong-result", ADD_ROWS("__builtin_fabsf(a[i] + b[i])")},
    {"rounds to bf16", "wrong-result", "wrong-result",
     ADD_ROWS("({ union { f32 f; unsigned u; } v; v.f = a[i] + b[i]; v.u &= 0xffff0000u; v.f; })")},
    {"never writes", "unwritten-output", "unwritten-output", "KERNEL { (void)args; }"},
    {"writes NaN", "wrong-result", "wrong-result", ADD_ROWS("__builtin_nanf(\"\")")},
    {"skips the tail", "unwritten-output", "unwritten-output",
     "KERNEL { const f32* a = args[0]; const f32* b = args[1]; f32* y = args[2];\n"
     "  for (i64 r = first; r < last; ++r) for (i64 c = 0; c < 1000; ++c) y[r*1003+c] = a[r*1003+c] + b[r*1003+c]; }"},
    {"skips the last row", "unwritten-output", "unwritten-output",
     "KERNEL { const f32* a = args[0]; const f32* b = args[1]; f32* y = args[2]; i64 m = (i64)args[3];\n"
     "  for (i64 i = first * 1003; i < last * 1003 && i < (m - 1) * 1003; ++i) y[i] = a[i] + b[i]; }"},
    {"writes past the end", "guard-band", "guard-band",
     "KERNEL { const f32* a = args[0]; const f32* b = args[1]; f32* y = args[2]; i64 m = (i64)args[3];\n"
     "  for (i64 i = first * 1003; i < last * 1003; ++i) y[i] = a[i] + b[i];\n"
     "  if (last == m) y[m * 1003 + 4] = 0; }"},
    {"writes before the start", "guard-band", "guard-band",
     "KERNEL { const f32* a = args[0]; const f32* b = args[1]; f32* y = args[2];\n"
     "  for (i64 i = first * 1003; i < last * 1003; ++i) y[i] = a[i] + b[i];\n"
     "  if (first == 0) y[-1] = 0; }"},
    {"writes past an input", "guard-band", "guard-band",
     "KERNEL { f32* a = args[0]; const f32* b = args[1]; f32* y = args[2]; i64 m = (i64)args[3];\n"
     "  for (i64 i = first * 1003; i < last * 1003; ++i) y[i] = a[i] + b[i];\n"
     "  if (last == m) a[m * 1003] = 0; }"},
    {"overwrites an input", "input-overwritten", "input-overwritten",
     "KERNEL { f32* a = args[0]; const f32* b = args[1]; f32* y = args[2];\n"
     "  for (i64 i = first * 1003; i < last * 1003; ++i) { y[i] = a[i] + b[i]; a[i] = y[i]; } }"},
    {"right for one size", "", "unwritten-output",
     "KERNEL { const f32* a = args[0]; const f32* b = args[1]; f32* y = args[2]; i64 m = (i64)args[3];\n"
     "  if (m == 16) for (i64 i = first * 1003; i < last * 1003; ++i) y[i] = a[i] + b[i]; }"},
    {"wrong between the scored sizes", "", "wrong-result",
     "KERNEL { const f32* a = args[0]; const f32* b = args[1]; f32* y = args[2]; i64 m = (i64)args[3];\n"
     "  for (i64 i = first * 1003; i < last * 1003; ++i)\n"
     "    y[i] = m == 1 || m == 4 || m == 16 ? a[i] + b[i] : a[i]; }"},
    {"relies on better alignment than promised", "", "wrong-result",
     "KERNEL { const f32* a = (const f32*)((i64)args[0] & ~127ll); const f32* b = args[1]; f32* y = args[2];\n"
     "  for (i64 i = first * 1003; i < last * 1003; ++i) y[i] = a[i] + b[i]; }"},
#if defined(__x86_64__)
    {"depends on the clock", "nondeterministic", "nondeterministic",
     ADD_ROWS("(a[i] + b[i]) * (1 + (__builtin_ia32_rdtsc() & 64 ? 0x1p-23f : 0))")},
#endif
    {"depends on the address", "nondeterministic", "nondeterministic",
     ADD_ROWS("(a[i] + b[i]) * (1 + (((i64)y >> 12) % 257) * 0x1p-23f)")},
  };
  std::unique_ptr<Device> device = makeCpuDevice(2);
  for (const RedTeam& row : table) challenge(problem, *device, row);
}

TEST(RedTeam, Workspace) {
  KTUNE_NEEDS_HOST_COMPILER();
  const schedule::Problem problem = problemOf(*op::makeAdd({"M", 1, 16, {16}}, 1003, DType::kF32));
  std::unique_ptr<Device> device = makeCpuDevice(2);
  const cache::Workspace scratch{cache::WorkspaceKind::kScratch, 64, {1003 * 4, 0, 1}};
  const cache::Workspace zeroed{cache::WorkspaceKind::kZeroed, 4096, {64, -1, 1}};
#define WORKSPACE_KERNEL(before, value, after)                                                                       \
  "KERNEL { const f32* a = args[0]; const f32* b = args[1]; f32* y = args[2]; f32* w = args[4]; int* z = args[5];\n" \
  "  i64 m = (i64)args[3]; (void)z; (void)w; (void)m;" before                                                        \
  "  for (i64 i = first * 1003; i < last * 1003; ++i) y[i] = " value ";\n" after "}\n"
  const RedTeam table[] = {
      {"honest use of both", "", "", WORKSPACE_KERNEL("", "(w[i] = a[i], w[i] + b[i] + z[first])", "")},
      {"reads scratch that it did not write", "wrong-result", "wrong-result",
       WORKSPACE_KERNEL("", "w[i] > 0 ? a[i] + b[i] : a[i]", "")},
      {"writes past its workspace", "guard-band", "guard-band",
       WORKSPACE_KERNEL("", "a[i] + b[i]", "if (last == m) z[16] = 1;")},
      {"writes between two slots", "guard-band", "guard-band",
       WORKSPACE_KERNEL("", "a[i] + b[i]", "if (last == m) w[m * 1003] = 1;")},
      {"leaves zeroed scratch dirty", "wrong-result", "wrong-result",
       WORKSPACE_KERNEL("", "a[i] + b[i]", "if (last == m) z[3] = 1;")},
  };
  for (const RedTeam& row : table) challenge(problem, *device, row, {scratch, zeroed});
}

#define NORM(sum, scale, value)                                                                                \
  "static f32 root(f32 v) { f32 r; __asm__(\"sqrtss %1, %0\" : \"=x\"(r) : \"x\"(v)); return r; }\n"           \
  "KERNEL { const f32* x = args[0]; const f32* w = args[1]; f32* y = args[2]; i64 m = (i64)args[3]; (void)m; " \
  "(void)w;\n"                                                                                                 \
  "  for (i64 r = first; r < last; ++r) { const f32* a = x + r * 512; f32 s = 0;\n" sum "    f32 k = " scale   \
  "; for (i64 c = 0; c < 512; ++c) y[r*512+c] = " value "; } }\n"
#define NORM_SUM "for (i64 c = 0; c < 512; ++c) s += a[c] * a[c];\n"

TEST(RedTeam, RmsNorm) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "the kernels use an x86 instruction";
#endif
  KTUNE_NEEDS_HOST_COMPILER();
  const schedule::Problem problem = problemOf(*op::makeRmsNorm({"M", 1, 16, {16}}, 1, 512, 1e-6, DType::kF32));
  std::unique_ptr<Device> device = makeCpuDevice(2);
  const RedTeam table[] = {
      {"honest", "", "", NORM(NORM_SUM, "1 / root(s / 512 + 1e-6f)", "a[c] * k * w[c]")},
      {"drops eps", "", "wrong-result", NORM(NORM_SUM, "1 / root(s / 512)", "a[c] * k * w[c]")},
      {"drops the weights", "wrong-result", "wrong-result", NORM(NORM_SUM, "1 / root(s / 512 + 1e-6f)", "a[c] * k")},
      {"sums half of the row", "wrong-result", "wrong-result",
       NORM("for (i64 c = 0; c < 512; c += 2) s += 2 * a[c] * a[c];\n", "1 / root(s / 512 + 1e-6f)",
            "a[c] * k * w[c]")},
      {"accumulates in bf16", "wrong-result", "wrong-result",
       NORM("for (i64 c = 0; c < 512; ++c) { union { f32 f; unsigned u; } v; v.f = s + a[c] * a[c]; v.u += 0x8000u; "
            "v.u &= 0xffff0000u; s = v.f; }\n",
            "1 / root(s / 512 + 1e-6f)", "a[c] * k * w[c]")},
  };
  for (const RedTeam& row : table) challenge(problem, *device, row);
}

TEST(RedTeam, BatchInvariance) {
#if !defined(__x86_64__)
  GTEST_SKIP() << "the kernels use an x86 instruction";
#endif
  KTUNE_NEEDS_HOST_COMPILER();
  // Honest numbers, but summed in another order for larger batches, or for odd rows.
  const char* byBatch = NORM(
      "if (m > 4) for (i64 c = 0; c < 512; ++c) s += a[c] * a[c];\n"
      "else for (i64 c = 511; c >= 0; --c) s += a[c] * a[c];\n",
      "1 / root(s / 512 + 1e-6f)", "a[c] * k * w[c]");
  const char* byRow = NORM(
      "if (r % 2) for (i64 c = 0; c < 512; ++c) s += a[c] * a[c];\n"
      "else for (i64 c = 511; c >= 0; --c) s += a[c] * a[c];\n",
      "1 / root(s / 512 + 1e-6f)", "a[c] * k * w[c]");
  const char* honest = NORM(NORM_SUM, "1 / root(s / 512 + 1e-6f)", "a[c] * k * w[c]");
  op::Graph graph = *op::makeRmsNorm({"M", 1, 16, {16}}, 1, 512, 1e-6, DType::kF32);
  std::unique_ptr<Device> device = makeCpuDevice(2);
  for (const char* body : {byBatch, byRow, honest})
    challenge(problemOf(graph), *device, {"not demanded", "", "", body});
  graph.numerics.batchInvariant = true;
  challenge(problemOf(graph), *device, {"by batch", "", "nondeterministic", byBatch});
  challenge(problemOf(graph), *device, {"by row", "", "nondeterministic", byRow});
  challenge(problemOf(graph), *device, {"honest", "", "", honest});
}

TEST(RedTeam, AliasedAndStrided) {
  KTUNE_NEEDS_HOST_COMPILER();
  // a += b in place; rows of b are 40 apart.
  op::GraphBuilder b;
  const int32_t m = b.symbol("M", 1, 16, {16});
  const int32_t a = b.input("a", DType::kF32, {Dim::symbolic(m), Dim::fixed(33)});
  const int32_t other = b.input("b", DType::kF32, {Dim::symbolic(m), Dim::fixed(33)});
  b.output(b.node("add", {a, other}), a);
  b.graph().inputs[1].strides = {40, 1};
  b.graph().inputs[1].alignmentBytes = 32;
  const Result<op::Graph> graph = b.finish();
  ASSERT_TRUE(graph) << graph.error().toString();
  const schedule::Problem problem = problemOf(*graph);
#define IN_PLACE(value)                                                               \
  "KERNEL { f32* a = args[0]; f32* b = args[1]; for (i64 r = first; r < last; ++r)\n" \
  "  for (i64 c = 0; c < 33; ++c) " value "; }\n"
  const RedTeam table[] = {
      {"honest", "", "", IN_PLACE("a[r * 33 + c] += b[r * 40 + c]")},
      {"adds twice", "wrong-result", "wrong-result", IN_PLACE("a[r * 33 + c] += 2 * b[r * 40 + c]")},
      {"takes b for dense", "wrong-result", "wrong-result", IN_PLACE("a[r * 33 + c] += b[r * 33 + c]")},
      {"does nothing", "wrong-result", "wrong-result", "KERNEL { (void)args; }"},
      {"writes the gaps of an input", "input-overwritten", "input-overwritten",
       IN_PLACE("{ a[r * 33 + c] += b[r * 40 + c]; b[36] = 0; }")},
      {"overwrites the other input", "input-overwritten", "input-overwritten",
       IN_PLACE("{ a[r * 33 + c] += b[r * 40 + c]; b[r * 40] = 0; }")},
  };
  std::unique_ptr<Device> device = makeCpuDevice(2);
  for (const RedTeam& row : table) challenge(problem, *device, row);
}

}  // namespace
}  // namespace ktune::runtime
