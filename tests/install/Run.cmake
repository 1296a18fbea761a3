# cmake -DBUILD_DIR=... -DPROJECT=... -DLANGUAGE=... -P Run.cmake: install, move, configure, build, run.
set(work "${BUILD_DIR}/install_test/${LANGUAGE}")
file(REMOVE_RECURSE "${work}")

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE code)
  if(NOT code EQUAL 0)
    message(FATAL_ERROR "failed (${code}): ${ARGN}")
  endif()
endfunction()

run("${CMAKE_COMMAND}" --install "${BUILD_DIR}" --component library --prefix "${work}/first")
# An installed tree must work wherever it is moved to.
file(RENAME "${work}/first" "${work}/prefix")
run("${CMAKE_COMMAND}" -S "${PROJECT}" -B "${work}/build" "-DCMAKE_PREFIX_PATH=${work}/prefix" -DKTUNE_WANTED=${VERSION}
    "-DCMAKE_C_COMPILER=${C_COMPILER}" "-DCMAKE_CXX_COMPILER=${CXX_COMPILER}")
run("${CMAKE_COMMAND}" --build "${work}/build")
run("${work}/build/consumer")

# pkg-config gives the same, where there is one.
find_program(pkg_config pkg-config)
if(pkg_config)
  file(GLOB_RECURSE pc "${work}/prefix/*/ktune.pc")
  get_filename_component(pc_dir "${pc}" DIRECTORY)
  set(ENV{PKG_CONFIG_PATH} "${pc_dir}")
  execute_process(COMMAND "${pkg_config}" --cflags ktune OUTPUT_VARIABLE flags COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX REPLACE "^ *-I([^ \n]*).*$" "\\1" include "${flags}")
  if(NOT EXISTS "${include}/ktune/ktune.h")
    message(FATAL_ERROR "pkg-config --cflags ktune says '${flags}', but there is no ktune/ktune.h")
  endif()
endif()
