# Every operator and a set of fusable chains x random legal genomes, compiled by the cpu compiler, loaded by the cpu
# device, proven by the guard.
if(KTUNE_WITH_MLIR)
  ktune_test(cpu_conformance_test SOURCES conformance/CpuConformanceTest.cpp
    DEPS ir/emit/cpu runtime/guard TIMEOUT 900 LABELS unit)
  ktune_test(cpu_compiler_test SOURCES conformance/CpuCompilerTest.cpp DEPS ir/emit/cpu runtime/launch)
endif()
