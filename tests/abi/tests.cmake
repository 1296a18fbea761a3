# libktune: its interface, and that it lives with whatever else a process has loaded.
set(abi_dir "${CMAKE_CURRENT_SOURCE_DIR}/abi")

# A kernel that links to nothing, in a file of its own.
add_library(ktune_abi_kernel MODULE "${abi_dir}/Kernel.c")
target_compile_options(ktune_abi_kernel PRIVATE -O2 -ffreestanding -fno-stack-protector -fno-tree-loop-distribute-patterns)
target_link_options(ktune_abi_kernel PRIVATE -nostdlib LINKER:-z,relro,-z,now)

ktune_test(library_test
  SOURCES abi/LibraryTest.cpp abi/WrapperTest.cpp abi/TestRecord.cpp abi/Allocations.cpp
  DEPS runtime/launch LABELS unit abi LINK ktune_shared)
add_dependencies(library_test ktune_abi_kernel)
target_compile_definitions(library_test PRIVATE
  KTUNE_TEST_KERNEL="$<TARGET_FILE:ktune_abi_kernel>" KTUNE_TEST_VERSION="${PROJECT_VERSION}")

function(ktune_abi_check name)
  add_test(NAME abi.${name} COMMAND ${ARGN})
  set_tests_properties(abi.${name} PROPERTIES LABELS abi TIMEOUT 120)
endfunction()

# Public headers compile alone, the C one as C11 too.
set(include_dir "${CMAKE_SOURCE_DIR}/include")
set(strict -Wall -Wextra -Wpedantic -Werror -fsyntax-only "-I${include_dir}")
ktune_abi_check(header_c11 "${CMAKE_C_COMPILER}" -std=c11 -Wstrict-prototypes ${strict} -x c "${include_dir}/ktune/ktune.h")
foreach(header IN ITEMS ktune.h ktune.hpp)
  ktune_abi_check(header_cxx20.${header} "${CMAKE_CXX_COMPILER}" -std=c++20 ${strict} -x c++ "${include_dir}/ktune/${header}")
endforeach()

if(KTUNE_SANITIZE)
  # A sanitizer changes what the library needs and must be the first of the preloaded libraries.
  return()
endif()

ktune_abi_check(symbols "${CMAKE_SOURCE_DIR}/tools/checks/symbols" "$<TARGET_FILE:ktune_shared>")

add_executable(ktune_abi_client "${abi_dir}/Client.c")
set_target_properties(ktune_abi_client PROPERTIES C_STANDARD 11)
target_include_directories(ktune_abi_client PRIVATE "${include_dir}")
target_compile_options(ktune_abi_client PRIVATE -Wall -Wextra -Wpedantic)
target_link_libraries(ktune_abi_client PRIVATE ${CMAKE_DL_LIBS})
ktune_abi_check(dlopen_twice ktune_abi_client "$<TARGET_FILE:ktune_shared>" twice)

add_library(ktune_abi_hostile MODULE "${abi_dir}/Hostile.cpp")
target_link_libraries(ktune_abi_hostile PRIVATE ktune_options)
# Headers only: linking the folders would bring the true functions along.
target_include_directories(ktune_abi_hostile PRIVATE
  $<TARGET_PROPERTY:ktune_runtime_launch,INTERFACE_INCLUDE_DIRECTORIES>
  $<TARGET_PROPERTY:ktune_cache_format,INTERFACE_INCLUDE_DIRECTORIES>
  $<TARGET_PROPERTY:ktune_ir_schedule,INTERFACE_INCLUDE_DIRECTORIES>
  $<TARGET_PROPERTY:ktune_ir_op,INTERFACE_INCLUDE_DIRECTORIES>
  $<TARGET_PROPERTY:ktune_base,INTERFACE_INCLUDE_DIRECTORIES>)
foreach(mode IN ITEMS simple twice)
  ktune_abi_check(hostile_symbols.${mode} ktune_abi_client "$<TARGET_FILE:ktune_shared>" ${mode} ktune_hostile_marker)
  set_tests_properties(abi.hostile_symbols.${mode} PROPERTIES ENVIRONMENT "LD_PRELOAD=$<TARGET_FILE:ktune_abi_hostile>")
endforeach()
