// What compileKernels() refuses although it compiles.
#include <gtest/gtest.h>

#include "runtime/nvrtc/KernelCompiler.h"

namespace ktune::nvrtc {
namespace {

TEST(KernelCompiler, JudgesTheAssemblersLog) {
  EXPECT_TRUE(judgeLog("").isOk());
  EXPECT_TRUE(
      judgeLog("ptxas info    : Used 40 registers\n    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill "
               "loads\n")
          .isOk());
  EXPECT_TRUE(judgeLog("    64 bytes stack frame, 64 bytes spill stores, 60 bytes spill loads").isOk());
  const Status spills = judgeLog("    72 bytes stack frame, 60 bytes spill stores, 72 bytes spill loads");
  EXPECT_EQ(spills.code(), StatusCode::kUnsupported);
  EXPECT_NE(spills.message().find("72 bytes"), std::string::npos) << spills.message();
  const Status slow = judgeLog(
      "fine\nptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions "
      "are serialized\n");
  EXPECT_EQ(slow.code(), StatusCode::kUnsupported);
  EXPECT_NE(slow.message().find("C7510"), std::string::npos) << slow.message();
  EXPECT_TRUE(judgeLog("ptxas info : (C7123) something else; C75 alone").isOk());
}

TEST(KernelCompiler, ARealKernelThatSpillsIsRefused) {
  const Result<const Nvrtc*> nvrtc = Nvrtc::load();
  if (!nvrtc) GTEST_SKIP() << nvrtc.error().message();
  // Two hundred sums live across a loop, with room for 64 registers.
  const std::string source = R"(
extern "C" __global__ void __launch_bounds__(1024) hungry(const float* x, float* y, int n) {
  float sums[200];
#pragma unroll
  for (int i = 0; i < 200; ++i) sums[i] = x[i];
  for (int k = 0; k < n; ++k) {
    const float v = y[k];
#pragma unroll
    for (int i = 0; i < 200; ++i) sums[i] = sums[i] * v + sums[(i + 7) % 200];
  }
#pragma unroll
  for (int i = 0; i < 200; ++i) y[i] = sums[i];
})";
  const Result<std::string> refused = compileKernels(**nvrtc, {"hungry", source, "sm_90a", {}});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kUnsupported);
  EXPECT_NE(refused.error().message().find("spills"), std::string::npos) << refused.error().message();
  const Result<std::string> wrong =
      compileKernels(**nvrtc, {"wrong", "__global__ void f() { no_such_name(); }", "sm_90a", {}});
  ASSERT_FALSE(wrong);
  EXPECT_EQ(wrong.error().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.error().message().find("no_such_name"), std::string::npos) << wrong.error().message();
}

}  // namespace
}  // namespace ktune::nvrtc
