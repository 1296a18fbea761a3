# The fake device and compiler are in the library of the builds without MLIR only; these tests need them everywhere.
if(KTUNE_FAKE_DEVICE)
  add_library(ktune_test_fake INTERFACE)
  target_link_libraries(ktune_test_fake INTERFACE ktune_runtime_worker)
else()
  add_library(ktune_test_fake STATIC "${CMAKE_SOURCE_DIR}/runtime/launch/devices/fake/FakeDevice.cpp")
  target_link_libraries(ktune_test_fake PUBLIC ktune_runtime_worker PRIVATE ktune_options ktune_warnings)
endif()

# What the tests start as `PROGRAM worker compile|measure --device NAME`.
add_executable(ktune_test_worker runtime/TestWorker.cpp)
target_include_directories(ktune_test_worker PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
target_link_libraries(ktune_test_worker PRIVATE ktune_test_fake ktune_options ktune_warnings)

ktune_test(thread_pool_test SOURCES runtime/ThreadPoolTest.cpp DEPS runtime/launch)
ktune_test(cpu_device_test SOURCES runtime/CpuDeviceTest.cpp DEPS runtime/launch)
ktune_test(guard_test SOURCES runtime/GuardTest.cpp DEPS runtime/guard LINK ktune_test_fake)
ktune_test(workers_test SOURCES runtime/WorkersTest.cpp DEPS runtime/worker LINK ktune_test_fake)
target_compile_definitions(workers_test PRIVATE KTUNE_TEST_WORKER="$<TARGET_FILE:ktune_test_worker>")
add_dependencies(workers_test ktune_test_worker)
if(KTUNE_WITH_CUDA)
  ktune_test(cuda_device_test SOURCES runtime/CudaDeviceTest.cpp DEPS runtime/launch runtime/nvrtc LINK ktune_cuda_headers)
endif()
