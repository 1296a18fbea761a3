# The folders of docs/architecture.md, in the order in which dependences may point (only upwards in this list).
include(KtuneCuda)
ktune_library(base
  SOURCES Status.cpp Hash.cpp Bytes.cpp Log.cpp Settings.cpp Subprocess.cpp File.cpp System.cpp Json.cpp
  LINK Threads::Threads)
if(KTUNE_WITH_CUDA)
  ktune_library(runtime/nvrtc SOURCES Nvrtc.cpp KernelCompiler.cpp DEPS base LINK ${CMAKE_DL_LIBS})
  target_link_libraries(ktune_runtime_nvrtc PRIVATE ktune_cuda_headers)
  target_compile_definitions(ktune_runtime_nvrtc PUBLIC KTUNE_WITH_CUDA=1)
endif()
ktune_library(ir/op
  SOURCES DType.cpp Graph.cpp Builder.cpp Buckets.cpp Canonical.cpp GraphJson.cpp Reference.cpp OperatorTable.cpp
          ${KTUNE_OPERATOR_SOURCES}
  DEPS base)
target_include_directories(ktune_ir_op PRIVATE "${CMAKE_BINARY_DIR}/generated")
ktune_library(ir/schedule
  SOURCES Schedule.cpp Genome.cpp Problem.cpp IterationSpace.cpp Legality.cpp CudaRules.cpp Architecture.cpp Vary.cpp Target.cpp
  DEPS ir/op)
ktune_library(cache/format SOURCES Plan.cpp Record.cpp DEPS ir/schedule)
ktune_library(cache/store SOURCES Store.cpp RocksStore.cpp MemoryStore.cpp DEPS cache/format LINK ktune_rocksdb)
if(KTUNE_WITH_MLIR)
  ktune_library(ir/dialect MLIR SOURCES KtuneDialect.cpp DEPS ir/schedule)
  ktune_library(ir/lower MLIR SOURCES Import.cpp Decompose.cpp Generate.cpp PlanLayout.cpp DEPS ir/dialect cache/format)
  # Pure data from pure data: no MLIR header comes in.
  set_source_files_properties("${CMAKE_SOURCE_DIR}/ir/lower/PlanLayout.cpp" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  ktune_library(ir/emit/cpu MLIR SOURCES TileToVector.cpp Native.cpp DEPS ir/lower)
  include(KtuneDeviceLibrary)
  ktune_library(ir/emit/cuda MLIR SOURCES CudaEmitter.cpp TileToCuda.cpp "${KTUNE_DEVICE_LIBRARY}" DEPS ir/lower)
  set_source_files_properties("${KTUNE_DEVICE_LIBRARY}" PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
endif()
# The kinds of device: one line each here and one in runtime/launch/Device.cpp.
set(KTUNE_DEVICE_SOURCES devices/cpu/CpuDevice.cpp)
if(KTUNE_WITH_CUDA)
  foreach(part IN ITEMS Cubin CudaContext CudaDevice CudaDot CudaInspector CudaKernels CudaPlan CudaTiming Driver Lease Nvml)
    list(APPEND KTUNE_DEVICE_SOURCES devices/cuda/${part}.cpp)
  endforeach()
endif()
if(KTUNE_FAKE_DEVICE)
  list(APPEND KTUNE_DEVICE_SOURCES devices/fake/FakeDevice.cpp)
endif()
ktune_library(runtime/launch
  SOURCES Device.cpp Elements.cpp Inspector.cpp ThreadPool.cpp ${KTUNE_DEVICE_SOURCES}
  DEPS cache/format LINK ${CMAKE_DL_LIBS})
if(KTUNE_WITH_CUDA)
  target_link_libraries(ktune_runtime_launch PRIVATE ktune_cuda_headers)
  target_compile_definitions(ktune_runtime_launch PUBLIC KTUNE_WITH_CUDA=1)
endif()
if(KTUNE_FAKE_DEVICE)
  target_compile_definitions(ktune_runtime_launch PUBLIC KTUNE_FAKE_DEVICE=1)
endif()
ktune_library(search
  SOURCES Archive.cpp Bandit.cpp Budget.cpp CudaPrior.cpp Evolution.cpp Prior.cpp Race.cpp Statistics.cpp Tuner.cpp
  DEPS cache/format cache/store)
ktune_library(runtime/guard SOURCES Guard.cpp GuardedBuffer.cpp Inputs.cpp References.cpp DEPS runtime/launch)
ktune_library(runtime/worker
  SOURCES Protocol.cpp CompilePool.cpp CompileWorker.cpp MeasureClient.cpp MeasureWorker.cpp
          WorkerFolders.cpp Child.cpp TimingBuffers.cpp
  DEPS runtime/guard search LINK TBB::tbb)
include(KtuneShared)
