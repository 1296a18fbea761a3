# ktune-opt: a development tool, not installed.
add_executable(ktune-opt ktune-opt.cpp)
target_link_libraries(ktune-opt PRIVATE ktune_ir_emit_cpu ktune_options ktune_mlir_pch)
target_precompile_headers(ktune-opt REUSE_FROM ktune_mlir_pch)
add_dependencies(ktune-opt ktune_tablegen)
