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

// The inspector's kernels on an emulated device.
class CudaInspector : public testing::Test {
 protected:
  void SetUp() override {
    Result<std::unique_ptr<runtime::Device>> made = test::makeEmulatedCuda("sm_90a", temp_);
    if (!made) GTEST_SKIP() << made.error().message();
    device_ = std::move(*made);
    Result<std::unique_ptr<test::EmulatedKernels>> kernels =
        test::EmulatedKernels::compile(runtime::cuda::kInspectorSource, temp_ + "/inspector");
    ASSERT_TRUE(kernels.has_value()) << kernels.error().message();
    kernels_ = std::move(*kernels);
    inspector_ = runtime::cuda::makeKernelInspector(
        *device_, [this](const char* name, unsigned blocks, std::span<const uint64_t> arguments) {
          if (std::string(name) == "ktune_inspect_seal") sealed_ = reinterpret_cast<const uint64_t*>(arguments[0]);
          const unsigned grid[3] = {blocks, 1, 1};
          return kernels_->launch(name, grid, runtime::cuda::kInspectorThreads, 0, arguments);
        });
  }
  void TearDown() override {
    inspector_.reset();
    EXPECT_TRUE(removeTree(temp_).isOk());
  }

  const std::string temp_ = *makeTempDirectory(testing::TempDir(), "inspector");
  std::unique_ptr<runtime::Device> device_;
  std::unique_ptr<test::EmulatedKernels> kernels_;
  std::unique_ptr<runtime::Inspector> inspector_;
  const uint64_t* sealed_ = nullptr;  // The reference that was sealed last.
};

TEST_F(CudaInspector, SaysWhatTheHostSays) {
  runtime::testing::InspectorChecks(*device_, *inspector_).run();
}

TEST_F(CudaInspector, KeepsReferencesUnreadable) {
  std::vector<uint64_t> sealed[2];
  for (std::vector<uint64_t>& copy : sealed) {
    runtime::Expected expected{runtime::ReferenceValues(100, 1.5), runtime::ReferenceValues(100, 0.25)};
    const std::unique_ptr<runtime::KeptReference> kept = *inspector_->keep(expected);
    ASSERT_NE(sealed_, nullptr);
    copy.assign(sealed_, sealed_ + 200);
  }
  // Written over, it is no reference any more.
  runtime::Expected expected{runtime::ReferenceValues(100, 1.5), runtime::ReferenceValues(100, 0.25)};
  const std::unique_ptr<runtime::KeptReference> kept = *inspector_->keep(expected);
  std::vector<double> right(100, 1.5);
  const runtime::TensorView view = runtime::TensorView::dense(op::DType::kF64, right.data(), {100});
  EXPECT_TRUE(inspector_->compare(view, *kept)->right());
  const_cast<uint64_t*>(sealed_)[150] ^= 1;
  EXPECT_EQ(inspector_->compare(view, *kept).status().code(), StatusCode::kCorrupt);
  // Equal numbers look different at every place, and different the next time.
  for (size_t i = 1; i < 200; ++i) {
    EXPECT_NE(sealed[0][i], sealed[0][0]);
    EXPECT_NE(sealed[0][i], sealed[1][i]);
    EXPECT_NE(sealed[0][i], std::bit_cast<uint64_t>(i < 100 ? 1.5 : 0.25));
  }
}

TEST(CudaInspectorSource, CompilesForEveryArchitecture) {
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
