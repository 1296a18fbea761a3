"""lit configuration: ktune-opt and FileCheck come from the build (tests/lit/tests.cmake gives their folders)."""
import os

import lit.formats

config.name = "ktune-ir"
config.test_format = lit.formats.ShTest(True)
config.suffixes = [".mlir", ".test"]
config.excludes = ["Inputs"]
config.test_source_root = os.path.dirname(__file__)
config.test_exec_root = lit_config.params["exec_root"]
config.environment["PATH"] = os.pathsep.join(
    [lit_config.params["tools"], lit_config.params["llvm_tools"], config.environment["PATH"]])
