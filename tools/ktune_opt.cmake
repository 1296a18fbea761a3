# ktune-opt: a development tool, not installed. Its one source is compiled as a library's, like the precompiled header.
add_library(ktune_opt_main OBJECT ktune-opt.cpp)
target_link_libraries(ktune_opt_main PRIVATE ktune_ir_emit_cpu ktune_options ktune_mlir_pch)
target_precompile_headers(ktune_opt_main REUSE_FROM ktune_mlir_pch)
set_target_properties(ktune_opt_main PROPERTIES COMPILE_WARNING_AS_ERROR OFF)
add_dependencies(ktune_opt_main ktune_tablegen)
add_executable(ktune-opt $<TARGET_OBJECTS:ktune_opt_main>)
target_link_libraries(ktune-opt PRIVATE ktune_ir_emit_cpu ktune_options)
