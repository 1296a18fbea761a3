# libktune.so (what engines load) and its installation: headers, library, ktuneConfig.cmake, ktune.pc.
# The program is the target `ktune`, so the library is `ktune_shared` here and ktune::ktune outside.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

add_library(ktune_shared SHARED
  "${CMAKE_SOURCE_DIR}/runtime/library/Handles.cpp"
  "${CMAKE_SOURCE_DIR}/runtime/library/Library.cpp"
  "${CMAKE_SOURCE_DIR}/runtime/library/ProcessMark.cpp")
add_library(ktune::ktune ALIAS ktune_shared)
set(KTUNE_LIBRARY_ROOT "${CMAKE_BINARY_DIR}/include_roots/ktune_runtime_library")
file(MAKE_DIRECTORY "${KTUNE_LIBRARY_ROOT}/runtime")
file(CREATE_LINK "${CMAKE_SOURCE_DIR}/runtime/library" "${KTUNE_LIBRARY_ROOT}/runtime/library" SYMBOLIC)
target_include_directories(ktune_shared
  PUBLIC "$<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>"
  PRIVATE "${KTUNE_LIBRARY_ROOT}")
target_compile_definitions(ktune_shared PRIVATE KTUNE_PROJECT_VERSION="${PROJECT_VERSION}")
# BUILD_LOCAL_INTERFACE would say it better (CMake 3.26): the static folders go into the library, and no consumer of
# the installed target hears of them.
target_link_libraries(ktune_shared PRIVATE $<BUILD_INTERFACE:ktune_runtime_launch> $<BUILD_INTERFACE:ktune_options>
                                           $<BUILD_INTERFACE:ktune_warnings>)
set_target_properties(ktune_shared PROPERTIES
  OUTPUT_NAME ktune EXPORT_NAME ktune VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}
  LINK_DEPENDS "${CMAKE_SOURCE_DIR}/cmake/libktune.map")
# The version script isolates; Bsymbolic binds calls between the exported entries inside; libstdc++ stays dynamic: a
# second copy of it in an engine's process would split exceptions, locales and thread-local data.
target_link_options(ktune_shared PRIVATE
  "LINKER:--version-script=${CMAKE_SOURCE_DIR}/cmake/libktune.map" LINKER:--exclude-libs,ALL LINKER:--no-undefined
  LINKER:--gc-sections LINKER:--as-needed LINKER:-Bsymbolic LINKER:-z,relro,-z,now)

install(TARGETS ktune_shared EXPORT ktuneTargets
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT library NAMELINK_COMPONENT library)
install(FILES "${CMAKE_SOURCE_DIR}/include/ktune/ktune.h" "${CMAKE_SOURCE_DIR}/include/ktune/ktune.hpp"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/ktune" COMPONENT library)
set(KTUNE_CMAKE_DIR "${CMAKE_INSTALL_LIBDIR}/cmake/ktune")
install(EXPORT ktuneTargets NAMESPACE ktune:: DESTINATION "${KTUNE_CMAKE_DIR}" COMPONENT library)
configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/ktuneConfig.cmake.in" "${CMAKE_BINARY_DIR}/ktuneConfig.cmake"
  INSTALL_DESTINATION "${KTUNE_CMAKE_DIR}" NO_SET_AND_CHECK_MACRO)
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file("${CMAKE_BINARY_DIR}/ktuneConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${CMAKE_BINARY_DIR}/ktuneConfig.cmake" "${CMAKE_BINARY_DIR}/ktuneConfigVersion.cmake"
  DESTINATION "${KTUNE_CMAKE_DIR}" COMPONENT library)
# Relative, so that the installed tree may be moved.
file(RELATIVE_PATH KTUNE_PC_PREFIX "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" KTUNE_PC_PREFIX "${KTUNE_PC_PREFIX}")
configure_file("${CMAKE_SOURCE_DIR}/cmake/ktune.pc.in" "${CMAKE_BINARY_DIR}/ktune.pc" @ONLY)
install(FILES "${CMAKE_BINARY_DIR}/ktune.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT library)
install(FILES "${CMAKE_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT library)
