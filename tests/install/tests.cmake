# Installs libktune below the build folder and builds a C and a C++ project against it, as a user's own would be.
if(NOT KTUNE_SANITIZE)
  foreach(language IN ITEMS c cpp)
    add_test(NAME install.${language} COMMAND "${CMAKE_COMMAND}"
      -DBUILD_DIR=${CMAKE_BINARY_DIR} -DPROJECT=${CMAKE_CURRENT_SOURCE_DIR}/install/${language} -DLANGUAGE=${language}
      -DVERSION=${PROJECT_VERSION} -DC_COMPILER=${CMAKE_C_COMPILER} -DCXX_COMPILER=${CMAKE_CXX_COMPILER}
      -P "${CMAKE_CURRENT_SOURCE_DIR}/install/Run.cmake")
    set_tests_properties(install.${language} PROPERTIES LABELS install TIMEOUT 300)
  endforeach()
endif()
