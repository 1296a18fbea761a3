# Every operator and a set of fusable chains x random legal genomes, compiled by the cpu compiler, loaded by the cpu
# device, proven by the guard.
if(KTUNE_WITH_MLIR)
  ktune_test(cpu_conformance_test SOURCES conformance/CpuConformanceTest.cpp
    DEPS ir/emit/cpu runtime/guard TIMEOUT 900 LABELS unit)
  ktune_test(cpu_compiler_test SOURCES conformance/CpuCompilerTest.cpp DEPS ir/emit/cpu runtime/launch)
  ktune_test(cuda_conformance_test
    SOURCES conformance/CudaConformanceTest.cpp conformance/CudaGoldenTest.cpp conformance/emulation/EmulatedCuda.cpp
    DEPS ir/emit/cuda runtime/guard TIMEOUT 1200 LABELS unit)
  target_compile_definitions(cuda_conformance_test PRIVATE
    KTUNE_EMULATION_FOLDER="${CMAKE_CURRENT_SOURCE_DIR}/conformance/emulation"
    KTUNE_DEVICE_FOLDER="${CMAKE_SOURCE_DIR}/ir/emit/cuda/include")
  if(KTUNE_WITH_CUDA)
    target_sources(cuda_conformance_test PRIVATE conformance/KernelCompilerTest.cpp conformance/CudaInspectorTest.cpp)
    target_link_libraries(cuda_conformance_test PRIVATE ktune_runtime_nvrtc)
  endif()
endif()
