# What only a GPU can show. Without one the program compiles its kernels, says why it does no more, and succeeds. It
# starts `ktune` (beside it, $KTUNE_PROGRAM, --ktune=PATH or the build's), but building it does not build that.
if(KTUNE_WITH_MLIR AND KTUNE_WITH_CUDA)
  ktune_test(cuda_gpu_test SOURCES gpu/CudaGpuTest.cpp
    DEPS runtime/worker runtime/nvrtc LINK ktune_cuda_headers LABELS gpu TIMEOUT 600)
  set_tests_properties(cuda_gpu_test PROPERTIES RUN_SERIAL ON)
endif()
