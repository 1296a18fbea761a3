# The IR's lit + FileCheck tests. They need ktune-opt, so MLIR.
if(KTUNE_WITH_MLIR)
  find_program(KTUNE_LIT NAMES lit llvm-lit HINTS "${KTUNE_LLVM_ROOT}/bin" NO_DEFAULT_PATH)
  find_program(KTUNE_FILECHECK NAMES FileCheck HINTS "${KTUNE_LLVM_ROOT}/bin" NO_DEFAULT_PATH REQUIRED)
  if(NOT KTUNE_LIT)
    message(FATAL_ERROR "lit was not found beside LLVM: install llvm-22-tools")
  endif()
  get_filename_component(llvm_tools "${KTUNE_FILECHECK}" DIRECTORY)
  add_test(NAME ir_lit COMMAND "${KTUNE_LIT}" -v --param exec_root=${CMAKE_CURRENT_BINARY_DIR}/lit
    --param tools=$<TARGET_FILE_DIR:ktune-opt> --param llvm_tools=${llvm_tools} "${CMAKE_SOURCE_DIR}/tests/lit")
  set_tests_properties(ir_lit PROPERTIES LABELS unit TIMEOUT 300)
endif()
