// The kernels that look at a GPU's memory, executed on the CPU, against the host's own looking.
#include <gtest/gtest.h>

#include <bit>

#include "base/File.h"
#include "conformance/emulation/EmulatedCuda.h"
#include "ir/schedule/Architecture.h"
#include "runtime/InspectorChecks.h"
#include "runtime/launch/devices/cuda/CudaInspector.h"
#include "runtime/nvrtc/KernelCompiler.h"

namespace ktune {
namespace {

TEST(CudaInspector, SaysWhatTheHostSays) {
  const std::string temp = *makeTempDirectory(testing::TempDir(), "inspector");
  Result<std::unique_ptr<runtime::Device>> device = test::makeEmulatedCuda("sm_90a", temp);
  if (!device) {
    EXPECT_TRUE(removeTree(temp).isOk());
    GTEST_SKIP() << device.error().message();
  }
  Result<std::unique_ptr<test::EmulatedKernels>> kernels =
      test::EmulatedKernels::compile(runtime::cuda::kInspectorSource, temp + "/inspector");
  ASSERT_TRUE(kernels.has_value()) << kernels.error().message();
  const std::unique_ptr<runtime::Inspector> inspector = runtime::cuda::makeKernelInspector(
      **device, [&](const char* name, unsigned blocks, std::span<const uint64_t> arguments) {
        const unsigned grid[3] = {blocks, 1, 1};
        return (*kernels)->launch(name, grid, runtime::cuda::kInspectorThreads, 0, arguments);
      });
  runtime::testing::InspectorChecks(**device, *inspector).run();
  EXPECT_TRUE(removeTree(temp).isOk());
}

TEST(CudaInspector, KeepsReferencesUnreadable) {
  const std::string temp = *makeTempDirectory(testing::TempDir(), "inspector");
  Result<std::unique_ptr<runtime::Device>> device = test::makeEmulatedCuda("sm_90a", temp);
  if (!device) {
    EXPECT_TRUE(removeTree(temp).isOk());
    GTEST_SKIP() << device.error().message();
  }
  Result<std::unique_ptr<test::EmulatedKernels>> kernels =
      test::EmulatedKernels::compile(runtime::cuda::kInspectorSource, temp + "/inspector");
  ASSERT_TRUE(kernels.has_value()) << kernels.error().message();
  const uint64_t* words = nullptr;
  const std::unique_ptr<runtime::Inspector> inspector = runtime::cuda::makeKernelInspector(
      **device, [&](const char* name, unsigned blocks, std::span<const uint64_t> arguments) {
        if (std::string(name) == "ktune_inspect_seal") words = reinterpret_cast<const uint64_t*>(arguments[0]);
        const unsigned grid[3] = {blocks, 1, 1};
        return (*kernels)->launch(name, grid, runtime::cuda::kInspectorThreads, 0, arguments);
      });
  std::vector<uint64_t> sealed[2];
  for (std::vector<uint64_t>& copy : sealed) {
    runtime::Expected expected{runtime::ReferenceValues(100, 1.5), runtime::ReferenceValues(100, 0.25)};
    const std::unique_ptr<runtime::KeptReference> kept = *inspector->keep(expected);
    ASSERT_NE(words, nullptr);
    copy.assign(words, words + 200);
  }
  // Written over, it is no reference any more.
  runtime::Expected expected{runtime::ReferenceValues(100, 1.5), runtime::ReferenceValues(100, 0.25)};
  const std::unique_ptr<runtime::KeptReference> kept = *inspector->keep(expected);
  std::vector<double> right(100, 1.5);
  const runtime::TensorView view = runtime::TensorView::dense(op::DType::kF64, right.data(), {100});
  EXPECT_TRUE(inspector->compare(view, *kept)->right());
  const_cast<uint64_t*>(words)[150] ^= 1;
  EXPECT_EQ(inspector->compare(view, *kept).status().code(), StatusCode::kCorrupt);
  // Equal numbers look different at every place, and different the next time.
  for (size_t i = 1; i < 200; ++i) {
    EXPECT_NE(sealed[0][i], sealed[0][0]);
    EXPECT_NE(sealed[0][i], sealed[1][i]);
    EXPECT_NE(sealed[0][i], std::bit_cast<uint64_t>(i < 100 ? 1.5 : 0.25));
  }
  EXPECT_TRUE(removeTree(temp).isOk());
}

TEST(CudaInspector, CompilesForEveryArchitecture) {
  const Result<const nvrtc::Nvrtc*> nvrtc = nvrtc::Nvrtc::load();
  if (!nvrtc) GTEST_SKIP() << nvrtc.error().message();
  for (const schedule::Architecture& architecture : schedule::architectures()) {
    const Result<std::string> cubin =
        nvrtc::compileKernels(**nvrtc, {"inspector",
                                        runtime::cuda::kInspectorSource,
                                        schedule::cudaTarget(std::string(architecture.name)).architecture,
                                        {}});
    EXPECT_TRUE(cubin.has_value()) << cubin.error().message();
  }
}

}  // namespace
}  // namespace ktune
