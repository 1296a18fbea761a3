// ktune.hpp, used as its documentation shows.
#include <gtest/gtest.h>

#include <cstdlib>
#include <ktune/ktune.hpp>

#include "abi/TestRecord.h"

namespace ktune::abi {
namespace {

TEST(Wrapper, AWholeProgram) {
  const ktune::Context context;
  EXPECT_FALSE(context.devices().empty());
  const ktune::Operator op(context, addJson());
  EXPECT_EQ(op.label(), op::label(addGraph()));
  const std::string_view hardware = context.hardware("cpu");
  EXPECT_EQ(op.key(hardware), addRecord(1).key.hex());
  ASSERT_EQ(op.tensors().size(), 3U);
  EXPECT_EQ(op.tensors()[2].name, "y");
  EXPECT_TRUE(op.tensors()[2].isOutput);
  EXPECT_EQ(op.symbols(), std::vector<std::string_view>{"M"});
  ASSERT_EQ(op.buckets().size(), 2U);
  EXPECT_EQ(op.buckets()[1].high, std::vector<int64_t>{16});
  const int64_t m = 5;
  EXPECT_EQ(op.findBucket({&m, 1}), 1U);
  EXPECT_EQ(op.tensorExtents(0, {&m, 1}).bytes, 5U * 1024 * 4);

  const ktune::Device device(context, "cpu", 2);
  const std::string record = addRecord(1).bytes();
  ktune::Plan plan(context, std::as_bytes(std::span(record)));
  EXPECT_EQ(plan.info().key, op.key(hardware));
  plan.prepare(device, op);
  EXPECT_EQ(plan.workspace().bytes, 0U);
  alignas(64) static float a[16 * 1024], b[16 * 1024], y[16 * 1024];
  a[3] = 1;
  b[3] = 2;
  void* const tensors[] = {a, b, y};
  plan.run(tensors, {&m, 1});
  EXPECT_EQ(y[3], 3.0F);
  const int64_t tooMany = 17;
  EXPECT_EQ(plan.tryRun(tensors, {&tooMany, 1}), KTUNE_INVALID_ARGUMENT);
  ktune::Plan moved = std::move(plan);
  moved.run(tensors, {&m, 1});
}

TEST(Wrapper, FailuresThrowWithCodeAndMessage) {
  const ktune::Context context;
  try {
    const ktune::Operator op(context, "{}");
    FAIL() << "an empty description was accepted";
  } catch (const ktune::Error& error) {
    EXPECT_EQ(error.code(), KTUNE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(error.what()).find("nodes"), std::string::npos) << error.what();
  }
  EXPECT_THROW(ktune::Device(context, "tpu"), ktune::Error);
}

}  // namespace
}  // namespace ktune::abi
